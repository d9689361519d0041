import re
from functools import cache, partial

import numpy as np
import pytest
import torch

from colonnade.attacks.labels.clustering import GradientClusters
from colonnade.attacks.labels.gradients import DirectLabel
from colonnade.data import load
from colonnade.defences import confusion
from colonnade.defences.compression import DiscreteGradient
from colonnade.defences.confusion import ConfusionalAutoencoder, learned
from colonnade.errors import PlanError
from colonnade.models.networks.server import UShapeClassifier
from colonnade.models.networks.split import SplitClassifier
from colonnade.models.networks.tracks import ShadowProxy, ShadowTop
from colonnade.roles import Roles
from colonnade.runtime.context import HookContext
from colonnade.runtime.simulate import simulate
from colonnade.testing import attempt_on

BOTH = Roles(label="bank", features=("shop",))


@pytest.mark.parametrize("entropy", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_every_class_gets_a_soft_label_of_other_classes_that_decodes_to_it(n_classes, entropy):
    soft, decoder = learned(n_classes, entropy, 0)
    torch.testing.assert_close(soft.sum(dim=1), torch.ones(n_classes))
    assert soft.diagonal().max() < 0.05
    assert decoder(soft).argmax(dim=1).tolist() == list(range(n_classes))


@pytest.mark.slow
def test_a_hundred_classes_decode_as_well():
    soft, decoder = learned(100, 0.5, 0)
    assert decoder(soft).argmax(dim=1).tolist() == list(range(100))


def test_more_entropy_spreads_soft_labels_wider():
    spreads = []
    for entropy in (0.0, 1.0):
        soft, _ = learned(5, entropy, 0)
        spreads.append(-(soft * soft.clamp_min(1e-12).log()).sum(dim=1).mean().item())
    assert spreads[1] > spreads[0] + 0.3


def at(phase="train", **more):
    return HookContext(0, 0, np.arange(4), phase, n_classes=3, **more)


def test_the_loss_becomes_the_cross_entropy_with_the_soft_labels(held):
    ready = held(ConfusionalAutoencoder())
    outputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 1])
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    confused = ready.loss(loss + 7, at(labels=labels, outputs=outputs))
    soft = torch.from_numpy(ready.state()["soft"])
    expected = torch.nn.functional.cross_entropy(outputs, soft[labels])
    assert confused.item() == pytest.approx(expected.item() + 7, abs=1e-5)


def test_the_local_track_is_left_alone(held):
    ready = held(ConfusionalAutoencoder())
    values = torch.tensor([[0.2, 0.8]])
    where = at(track="local", labels=torch.tensor([1]))
    assert ready.loss(values, where) is values
    assert ready.prediction(values, where) is values
    assert ready.labels(values, at("validate", track="local")) is values


def test_validation_is_against_the_class_that_the_soft_label_names(held):
    ready = held(ConfusionalAutoencoder())
    labels = torch.tensor([0, 1, 2, 1])
    assert ready.labels(labels, at()) is labels
    named = ready.labels(labels, at("validate"))
    assert named.tolist() == ready.state()["soft"].argmax(axis=1)[labels].tolist()
    assert (named != labels).all()


@pytest.fixture(scope="module")
def digits():
    return load("digits", rows=700).split()


@pytest.mark.parametrize("also", [[], [DiscreteGradient(bins=12)]], ids=["CAE", "DCAE"])
@pytest.mark.parametrize("n_iter_no_change", [None, pytest.param(5, marks=pytest.mark.slow)])
def test_a_model_trained_on_soft_labels_predicts_the_true_ones(digits, also, n_iter_no_change):
    defences = {"bank": [ConfusionalAutoencoder(), *also]}
    model = SplitClassifier(epochs=25, batch_size=64, n_iter_no_change=n_iter_no_change)
    run = simulate(model.fit, digits, roles=BOTH, defences=defences)
    protocols = {name: share.predict for name, share in run.results.items()}
    predicted = simulate(protocols, digits, roles=BOTH, defences=defences).results["bank"]
    assert (predicted.values == np.asarray(digits["bank"].labels)).mean() > 0.9
    np.testing.assert_allclose(predicted.probabilities.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("head", ["federated", "local"])
@pytest.mark.parametrize(
    ("model", "tracks"),
    [
        (SplitClassifier, ShadowTop(by="random")),
        (SplitClassifier, ShadowProxy(by="random")),
        (UShapeClassifier, ShadowProxy(by="random")),
    ],
)
def test_each_head_of_two_tracks_predicts_the_true_labels(fitted, model, tracks, head):
    """The local head is trained on true labels: to decode what it says would make it wrong."""
    run, tables, roles = fitted(model, tracks)
    protocols = {name: partial(share.predict, head=head) for name, share in run.results.items()}
    defences = {"bank": [ConfusionalAutoencoder()]}
    predicted = simulate(protocols, tables, roles=roles, defences=defences).results["bank"]
    assert (predicted.values == np.asarray(tables["bank"].labels)).mean() > 0.9


@pytest.fixture(scope="module")
def fitted():
    """A model of two tracks trained with the autoencoder, once for both heads."""
    tables = load("breast-cancer").split()

    @cache
    def fit(model, tracks):
        roles = BOTH if model is SplitClassifier else Roles(label="bank", features=("shop",), server="cloud")
        settings = {"tracks": tracks, "epochs": 15, "n_iter_no_change": None, "batch_size": 64, "learning_rate": 0.01}
        defences = {"bank": [ConfusionalAutoencoder()]}
        return simulate(model(**settings).fit, tables, roles=roles, defences=defences), tables, roles

    return fit


def test_the_direct_attack_is_always_wrong_and_two_classes_are_still_told_apart():
    tables = load("breast-cancer").split()
    model = SplitClassifier(fusion="sum", top=None, epochs=3, n_iter_no_change=None)
    run = simulate(model.fit, tables, roles=BOTH, defences={"bank": [ConfusionalAutoencoder()]})
    labels = np.asarray(tables["bank"].labels)
    right = {}
    for attack in (DirectLabel(), GradientClusters(when="first")):
        attempt = attempt_on(run, attack)
        guess = attempt.attack.guess(attempt.view(run))
        right[type(attack)] = (guess.classes == labels[guess.rows]).mean()
    assert right[DirectLabel] < 0.01
    assert right[GradientClusters] > 0.99


def test_what_was_learned_is_kept_for_prediction(held):
    ready, other = held(ConfusionalAutoencoder()), held(ConfusionalAutoencoder(), seed=1)
    assert ready.state() == {}
    probabilities = torch.tensor([[0.1, 0.7, 0.2]])
    decoded = ready.prediction(probabilities, at("predict"))
    other.restore(ready.state())
    assert torch.equal(other.prediction(probabilities, at("predict")), decoded)


def test_outputs_must_be_where_labels_are(held):
    words = "but the outputs are not where the labels are. Use another defence."
    with pytest.raises(PlanError, match=re.escape(words)):
        held(ConfusionalAutoencoder()).loss(torch.tensor(1.0), at(labels=torch.tensor([0])))


def test_measurements_cannot_be_confused(held):
    where = HookContext(0, 0, np.arange(1), "train", labels=torch.tensor([0.5]), outputs=torch.ones(1, 1))
    with pytest.raises(PlanError, match="confuses classes, but the labels of this run are measurements"):
        held(ConfusionalAutoencoder()).loss(torch.tensor(1.0), where)


def test_soft_labels_that_cannot_be_told_apart_are_refused(monkeypatch):
    monkeypatch.setattr(confusion, "MOST_STEPS", 0)
    with pytest.raises(PlanError, match="should find 3 soft labels that can be told apart, but found fewer"):
        learned(3, 0.123, 0)


def test_entropy_is_at_least_0():
    with pytest.raises(PlanError, match=r"entropy should be a number, at least 0, but is -1\.0\. Change it"):
        ConfusionalAutoencoder(entropy=-1.0)
