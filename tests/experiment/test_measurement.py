"""Measurements: every attack that was tried has a verdict, the joint one too."""

from __future__ import annotations

import pytest

from colonnade.attacks import EmbeddingNearest, GradientNearest
from colonnade.auditing.contents import BestBaseline, Evidence, Finding, Granted, RunIdentity, Score
from colonnade.auditing.report import PrivacyReport
from colonnade.data import load, train_test_split
from colonnade.experiment.measurement import attack_figures, measured
from colonnade.models import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret


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


def found_by(attacker: str, score: float, alone: float) -> Finding:
    """What an attack of a party on labels reached, in an interval of a tenth."""
    evidence = Evidence(Score(score, score - 0.05, score + 0.05), 0.5, (0.5, 0.5), BestBaseline(alone, "columns"))
    granted = Granted((), own_features=False, own_model=False, known_labels=0)
    about = ("NormScore", "Long gradients.", attacker, "bank", Secret.LABELS, False, granted)
    return Finding(*about, "AUC", 100, 1.0, evidence, None)


@pytest.mark.parametrize("turned", [False, True])
def test_of_several_parties_the_one_counts_whose_messages_tell_most_and_not_whose_columns_do(turned):
    """The shop's columns tell the labels already; only the telephone company learns anything from messages."""
    findings = (found_by("shop", 1.0, 1.0), found_by("telco", 0.9, 0.6))
    identity = RunIdentity("0" * 64, "SplitClassifier.fit", {"bank": "label party"}, 9, 0, "seeded", "simulated")
    report = PrivacyReport(identity, (), {}, findings[::-1] if turned else findings, ())
    figures = attack_figures(report)["NormScore"]
    assert (figures["attacker"], figures["verdict"]) == ("telco", "leaks")
    assert figures["excess"] == pytest.approx(0.3)
