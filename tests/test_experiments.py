"""The experiments ask what they say they ask; what they find is in docs/results."""

from collections import Counter
from itertools import product
from pathlib import Path
from statistics import mean

import pyarrow as pa
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def wandering(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from experiments import wandering

    return wandering


@pytest.fixture
def utility(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from experiments import utility

    return utility


def test_wandering_is_measured_in_both_forms_on_five_sets_for_every_alpha_and_seed(wandering):
    found = {
        (t.configuration["set"], t.configuration["form"], t.configuration["alpha"], t.seed)
        for t in wandering.trials(quick=False)
        if t.configuration["scope"] == "public" and t.configuration["by"] == "mutual-information"
    }
    sets = ("breast-cancer", "digits", "adult", "credit-default", "mnist")
    assert found == set(product(sets, ("shadow-proxy", "shadow-top"), (0.0, 0.1, 1.0, 10.0), (0, 1, 2)))


def test_wandering_changes_one_factor_at_a_time(wandering):
    base = {"form": "shadow-top", "alpha": 1.0, "scope": "public", "by": "mutual-information"}
    cells = [cell for cell in wandering._cells() if cell["form"] != "single"]
    assert base in cells
    for cell in cells:
        changed = [key for key in base if cell[key] != base[key]]
        # The two forms are both taken through all alphas.
        assert len(changed) <= 1 or set(changed) == {"form", "alpha"}


def test_every_set_and_form_has_twenty_null_runs(wandering):
    nulls = Counter(
        (t.configuration["set"], t.configuration["form"])
        for t in wandering.trials(quick=True)
        if t.configuration["nulls"] == 20
    )
    assert set(nulls.values()) == {1}
    assert len(nulls) == 10


def test_no_trial_is_made_twice(wandering, utility):
    for experiment, quick in product((wandering, utility), (True, False)):
        trials = experiment.trials(quick=quick)
        assert len({trial.key for trial in trials}) == len(trials)


def test_a_page_shows_scores_beside_their_controls(wandering, tmp_path):
    cell = {"set": "digits", "form": "shadow-top", "alpha": 1.0, "scope": "public", "by": "mutual-information"}
    figures = {"score": 0.75, "alone": 0.6, "null_mean": 0.2, "null_high": 0.3, "measure": "accuracy"}
    row = {
        **cell, "nulls": 20, "federated": 0.9, "local": 0.95,
        **{f"NormScore renamed.{key}": value for key, value in figures.items()},
        "trial.state": "done", "trial.seed": 0, "trial.key": "k", "trial.traceback": None, "trial.started": 0.0,
    }  # fmt: skip
    wandering.write(pa.Table.from_pylist([row]), tmp_path, quick=True)
    page = (tmp_path / "wandering.md").read_text()
    assert "| shadow-top | 1 | public | mutual-information | 0.950 | 0.900 | 0.75 (0.60) |" in page
    assert "| shadow-top | 1 | *null* | | | | 0.30 |" in page
    assert "NormScore renamed.score" in (tmp_path / "wandering.csv").read_text()


@pytest.mark.slow
def test_on_digits_a_split_network_is_as_good_as_a_central_one_and_one_shot_nearly_so(utility):
    """Within one point of the central network, and within one and a half of that, over all seeds of the experiment."""
    found = {way: [] for way in utility.WAYS}
    for trial in utility.trials(quick=False):
        if trial.configuration["set"] == "digits":
            found[trial.configuration["way"]].append(utility.measure(trial)["accuracy"])
    accuracy = {way: mean(values) for way, values in found.items()}
    assert accuracy["split"] > accuracy["central"] - 0.01
    assert accuracy["one-shot"] > accuracy["split"] - 0.015
    assert accuracy["alone"] < min(accuracy["split"], accuracy["one-shot"], accuracy["label-dp"])
