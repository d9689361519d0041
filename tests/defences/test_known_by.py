"""Every defence of the catalogue names the attacks that know it, and the documentation says the same."""

import csv
import re
from pathlib import Path
from statistics import mean

import pytest

from colonnade.auditing.attempt import name_of
from colonnade.catalogue import DEFENCES, attacks_knowing, attacks_of_audit
from colonnade.models.networks.messages import Embedding
from colonnade.secret import Secret

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "defences" / "index.md"


@pytest.mark.parametrize("name", DEFENCES)
def test_a_defence_names_attacks_on_its_secret_that_know_it(name):
    attacks = attacks_knowing(DEFENCES[name]())
    secret = Secret.FEATURES if Embedding in DEFENCES[name].acts_on else Secret.LABELS
    assert {attack.about for attack in attacks} == {secret}
    documented = dict(re.findall(r"^\| `([a-z-]+)` \| (`[^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert documented[name] == ", ".join(f"`{name_of(attack)}`" for attack in attacks)


@pytest.mark.parametrize("name", ["confusional-autoencoder", "marvell", "gradient-noise"])
def test_an_audit_makes_the_attacks_that_know_a_runs_defences_once_each(name):
    defence = DEFENCES[name]()
    made = [name_of(attack) for attack in attacks_of_audit(defences=[defence, defence])]
    assert {name_of(attack) for attack in attacks_knowing(defence)} <= set(made)
    assert len(made) == len(set(made))


@pytest.mark.parametrize("name", DEFENCES)
def test_a_thorough_audit_makes_all_attacks_of_an_ordinary_one_once_each(name):
    defence = DEFENCES[name]()
    ordinary, thorough = (
        [name_of(attack) for attack in attacks_of_audit(thorough=deep, defences=[defence])] for deep in (False, True)
    )
    assert set(ordinary) <= set(thorough)
    assert len(thorough) == len(set(thorough))


def measured():
    """The mean score and null of each attack, for each set and defence that was measured on the set."""
    with (DOCS / "results" / "defences.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "catalogue" and not row["refused"]]
    for place in sorted({(row["set"], row["defence"]) for row in rows if row["defence"] != "none"}):
        mine = [row for row in rows if (row["set"], row["defence"]) == place]
        attacks = [key.removesuffix(".score") for key in mine[0] if key.endswith(".score")]
        made = [name for name in attacks if name != "Strongest" and all(row[f"{name}.score"] for row in mine)]
        yield (
            *place,
            {
                name: tuple(mean(float(row[f"{name}.{key}"]) for row in mine) for key in ("score", "null"))
                for name in made
            },
        )


def test_no_attack_finds_more_than_those_that_know_a_defence_do():
    surpassed = {}
    for name, defence, found in measured():
        knowing = {name_of(attack) for attack in attacks_knowing(DEFENCES[defence]())}
        assert knowing <= found.keys()
        best, other = (max(group, key=found.get) for group in (knowing, found.keys() - knowing))
        if found[other][0] > found[best][0] + 0.005:
            surpassed[name, defence] = found[other]
    # As the documentation says: what is found there comes from the attacker's own columns.
    assert surpassed.keys() == {("digits", "gradient-perturbation"), ("digits", "gradient-averaging")}
    assert all(score < null + 0.02 for score, null in surpassed.values())
