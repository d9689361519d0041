"""Every defence of the catalogue names the attacks that know it, and the documentation says the same."""

import re
from pathlib import Path

import pytest

from colonnade.auditing.attempt import name_of
from colonnade.catalogue import DEFENCES, attacks_knowing, attacks_of_audit
from colonnade.models.networks.messages import Embedding
from colonnade.secret import Secret

PAGE = Path(__file__).parents[2] / "docs" / "defences" / "index.md"


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
