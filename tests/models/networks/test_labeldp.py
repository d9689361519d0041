import shutil

import numpy as np
import pytest

from colonnade import audit
from colonnade.errors import BudgetSpent, PlanError
from colonnade.models.networks.labeldp import LabelDPShadow
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret

BOTH = Roles(label="bank", features=("shop",))


def labels_of(tables):
    return np.asarray(tables["bank"].labels)


def test_the_main_network_learns_from_true_labels_and_the_shadow_from_noise(digits, predicted):
    run = simulate(LabelDPShadow(epsilon=0.5, epochs=15).fit, digits, roles=BOTH)
    accuracy = {head: (predicted(run, digits, head=head).values == labels_of(digits)).mean() for head in HEADS}
    assert accuracy["local"] > 0.9
    assert accuracy["federated"] < accuracy["local"] - 0.2
    np.testing.assert_array_equal(
        predicted(run, digits).probabilities, predicted(run, digits, head="local").probabilities
    )


HEADS = ("local", "federated")


def test_frames_to_a_feature_party_are_the_same_when_true_labels_change_under_fixed_randomised_ones(cancer, tmp_path):
    """The randomised labels of the first run are put where the second finds them; early stopping included."""
    model = LabelDPShadow(epochs=8, n_iter_no_change=1)
    drawn = tmp_path / "second" / "bank" / "checkpoints" / "once-randomised-labels.safetensors"
    drawn.parent.mkdir(parents=True)

    def copying(party, honest):
        fitted = honest(party)
        shutil.copy(party.checkpoints.directory / drawn.name, drawn)
        return fitted

    first = simulate(model.fit, cancer, roles=BOTH, directory=tmp_path / "first", instead={"bank": copying})
    flipped = {**cancer, "bank": cancer["bank"].with_labels(1 - labels_of(cancer))}
    second = simulate(model.fit, flipped, roles=BOTH, directory=tmp_path / "second")
    received = [[e.digest for e in run.transcripts["shop"].entries if not e.sent] for run in (first, second)]
    assert received[0] == received[1] != []
    assert first.results["bank"].history_ != second.results["bank"].history_
    fresh = simulate(model.fit, flipped, roles=BOTH)
    assert [e.digest for e in fresh.transcripts["shop"].entries if not e.sent] != received[0]


def test_the_ledger_accounts_for_every_message_to_a_feature_party(cancer):
    run = simulate(LabelDPShadow(epsilon=0.7, epochs=2).fit, cancer, roles=BOTH)
    assert run.ledgers["bank"].epsilon(0.0, protects=Secret.LABELS) == pytest.approx(0.7)
    report = audit(run, [], nulls=1)
    assert report.budget["labels"].epsilon == pytest.approx(0.7, rel=1e-4)
    telling = {e.under for e in run.transcripts["bank"].entries if e.sent and "labels" in e.reveals}
    assert telling == {("LabelDPShadow",)}


def test_what_a_feature_party_sees_depends_on_how_many_classes_occur(cancer):
    """Epsilon does not cover that, and what the model says of itself says so."""
    labels = labels_of(cancer).copy()
    labels[0] = 2
    drawn = []
    for bank in (cancer["bank"], cancer["bank"].with_labels(labels)):
        run = simulate(LabelDPShadow(epochs=1).fit, {**cancer, "bank": bank}, roles=BOTH)
        (event,) = run.ledgers["bank"].events
        drawn.append(dict(event.parameters)["n_classes"])
    assert drawn == [2, 3]
    assert "0.5-label-private, which classes there are being public" in run.results["shop"].summary()


def test_a_budget_below_epsilon_is_refused(cancer):
    with pytest.raises(BudgetSpent):
        simulate(
            LabelDPShadow(epsilon=1.0, epochs=1).fit,
            cancer,
            roles=BOTH,
            budgets={"bank": {Secret.LABELS: (0.5, 0.0)}},
        )


def test_impossible_settings_are_refused(cancer, predicted):
    with pytest.raises(PlanError, match="LabelDPShadow's epsilon should be a number, above 0, but is 0"):
        simulate(LabelDPShadow(epsilon=0.0).fit, cancer, roles=BOTH)
    words = "LabelDPShadow's epochs should be 'auto' or a whole number, at least 1, but is 0"
    with pytest.raises(PlanError, match=words):
        simulate(LabelDPShadow(epochs=0).fit, cancer, roles=BOTH)
    run = simulate(LabelDPShadow(epochs=1).fit, cancer, roles=BOTH)
    with pytest.raises(PlanError, match="A prediction uses the head 'local' or 'federated', but 'main' was asked for"):
        predicted(run, cancer, head="main")
