"""Measurements: every attack that was tried has a verdict, the joint one too."""

from __future__ import annotations

import pytest

from colonnade.attacks import EmbeddingNearest, GradientNearest
from colonnade.data import load, train_test_split
from colonnade.experiment.measurement import measured
from colonnade.models import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate


@pytest.mark.parametrize("attacks", [(GradientNearest(), EmbeddingNearest()), (GradientNearest(),)])
def test_a_joint_attack_that_could_not_be_made_has_a_verdict_and_a_reason_where_it_was_tried(attacks):
    train, test = train_test_split(load("breast-cancer", rows=40).split(), test=0.3)
    run = simulate(
        SplitClassifier(epochs=1, n_iter_no_change=None).fit, train, roles=Roles(label="bank", features=("shop",))
    )
    found = measured(run, test, attacks, nulls=1, seed=0)
    assert found["leak"]["labels"]["by"] in {type(attack).__name__ for attack in attacks}
    if len(attacks) == 1:
        assert "Strongest" not in found["attacks"]
    else:
        assert found["attacks"]["Strongest"] == {
            "verdict": "not made",
            "about": "labels",
            "reason": "Strongest by shop: it must be told 12 labels per class, and one class has fewer",
        }
