import re

import numpy as np
import pytest
import torch

from colonnade.data import load
from colonnade.defences.received import EarlierCut, InformationBottleneck
from colonnade.errors import PlanError
from colonnade.models.networks.labeldp import LabelDPShadow
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.models.networks.oneshot import OneShotClassifier
from colonnade.models.networks.server import ServedClassifier, UShapeClassifier
from colonnade.models.networks.split import SplitClassifier, SplitRegressor
from colonnade.models.networks.training import NetworkSide, OptimizerSettings
from colonnade.roles import Roles
from colonnade.runtime.context import HookContext
from colonnade.runtime.hooks import prepare_defences
from colonnade.runtime.party import Party
from colonnade.runtime.simulate import simulate

THREE = Roles(label="bank", features=("shop", "telco"))
MODEL = {"epochs": 3, "batch_size": 32, "embedding": 4}
BOTH_KINDS = [InformationBottleneck, EarlierCut]


@pytest.fixture(scope="module")
def tables():
    return load("bank-shop-telco", rows=200).split()


class Reader(SplitClassifier):
    """Trains nothing, and hands out the bank's party."""

    def fit(self, party):
        prepare_defences(party, self.hooks["label" if party.holds_labels else "feature"], (), "Reader")
        self.party_ = party
        return self


def ready(defence, tables, **model):
    run = simulate(Reader(**{**MODEL, **model}).fit, tables, roles=THREE, defences={"bank": [defence]})
    party = run.results["bank"].party_
    assert isinstance(party, Party)
    return party.defences[0]


def at(phase="train", peer="shop", **more):
    return HookContext(0, 0, np.arange(5), phase, peer=peer, message=Embedding, **more)


@pytest.mark.parametrize("defence", BOTH_KINDS)
def test_each_feature_party_has_a_network_of_its_own_that_keeps_the_width(tables, defence):
    held = ready(defence(), tables)
    embedding = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    passed = [held.incoming(embedding, at("predict", peer)) for peer in THREE.features]
    assert all(each.shape == (5, 4) for each in passed)
    assert not torch.equal(*passed)


@pytest.mark.parametrize("defence", BOTH_KINDS)
@pytest.mark.parametrize("phase", ["train", "predict"])
def test_the_networks_follow_embeddings_to_another_device(tables, defence, phase):
    elsewhere = torch.empty(5, 4, device="meta")
    assert ready(defence(), tables).incoming(elsewhere, at(phase)).device == elsewhere.device


@pytest.mark.parametrize("defence", BOTH_KINDS)
def test_training_begins_with_the_networks_on_the_device_of_the_holders_own(tables, defence):
    """What an optimiser remembered before a crash is restored to the device on which parameters are then."""

    class Still(NetworkSide):
        def train(self, step, epoch, rows):
            return {}

        def ends_by(self, epoch, held_out):
            return True

    class Elsewhere(SplitClassifier):
        def fit(self, party):
            prepare_defences(party, self.hooks["label" if party.holds_labels else "feature"], (), "Elsewhere")
            side = Still(party, {"top": torch.nn.Linear(4, 2, device="meta")}, OptimizerSettings("sgd"), None)
            self.places_ = {p.device.type for network in side.networks.values() for p in network.parameters()}
            return self

    run = simulate(Elsewhere(**MODEL).fit, tables, roles=THREE, defences={"bank": [defence()]})
    assert run.results["bank"].places_ == {"meta"}


@pytest.mark.parametrize("defence", BOTH_KINDS)
def test_where_embeddings_are_logits_the_networks_are_as_wide_as_there_are_classes(tables, defence):
    held = ready(defence(), tables, fusion="sum", top=None)
    assert held.incoming(torch.ones(5, 2), at("predict")).shape == (5, 2)


@pytest.mark.parametrize("defence", BOTH_KINDS)
def test_logits_of_rows_without_labels_pass_networks_of_the_width_they_were_trained_with(tables, defence):
    defences = {"bank": [defence()]}
    run = simulate(SplitClassifier(fusion="sum", top=None, **MODEL).fit, tables, roles=THREE, defences=defences)
    protocols = {name: share.predict for name, share in run.results.items()}
    unlabelled = {**tables, "bank": tables["bank"].without_labels()}
    seen = [
        simulate(protocols, given, roles=THREE, defences=defences).results["bank"].probabilities
        for given in (tables, unlabelled)
    ]
    np.testing.assert_array_equal(*seen)


@pytest.mark.parametrize("defence", BOTH_KINDS)
def test_summed_predictions_of_a_regression_have_no_networks_behind_them(tables, defence):
    numbers = {**tables, "bank": tables["bank"].with_labels(np.arange(len(tables["bank"])) % 7 + 0.5)}
    words = (
        f"{defence().name} stands behind embeddings or shares of logits, but shop sent its share of a regression's "
        "predictions. Use a model with a top network."
    )
    with pytest.raises(PlanError, match=re.escape(words)):
        simulate(
            SplitRegressor(fusion="sum", top=None, **MODEL).fit, numbers, roles=THREE, defences={"bank": [defence()]}
        )


@pytest.mark.parametrize("defence", BOTH_KINDS)
def test_the_networks_are_trained_saved_and_used_in_prediction(tables, defence, tmp_path):
    defences = {"bank": [defence()]}
    run = simulate(SplitClassifier(**MODEL).fit, tables, roles=THREE, defences=defences)
    untrained = ready(defence(), tables).state()
    (trained,) = (learned["state"] for learned in run.results["bank"].defences_)
    assert trained.keys() == untrained.keys()
    assert all(not np.array_equal(trained[name], untrained[name]) for name in trained)
    probabilities = []
    for name, share in run.results.items():
        share.save(tmp_path / name)
    loaded = {name: SplitClassifier.load(tmp_path / name) for name in run.results}
    for shares in (run.results, loaded):
        protocols = {name: share.predict for name, share in shares.items()}
        result = simulate(protocols, tables, roles=THREE, defences=defences, seed=9).results["bank"]
        probabilities.append(result.probabilities)
    np.testing.assert_array_equal(*probabilities)


def test_the_penalty_is_the_divergence_from_a_standard_normal_distribution(tables):
    held = ready(InformationBottleneck(weight=2.0), tables)
    embedding = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    base, expected = torch.tensor(0.5), 0.0
    for peer in THREE.features:
        held.incoming(embedding, at(peer=peer))
        mean, deviation = held._behind(at(peer=peer)).encode(embedding)
        normal, standard = torch.distributions.Normal(mean, deviation), torch.distributions.Normal(0.0, 1.0)
        expected += torch.distributions.kl_divergence(normal, standard).sum(dim=1).mean().item()
    assert held.loss(base, at(track="local")) is base
    assert held.loss(base, at()).item() == pytest.approx(0.5 + 2 * expected, rel=1e-4)
    assert held.loss(base, at()) is base


def test_codes_are_random_in_training_and_their_mean_otherwise(tables):
    held = ready(InformationBottleneck(), tables)
    embedding = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    trained = [held.incoming(embedding, at("train")) for _ in range(2)]
    for phase in ("validate", "predict"):
        fixed = [held.incoming(embedding, at(phase)) for _ in range(2)]
        assert torch.equal(*fixed)
        assert not fixed[0].requires_grad
    assert not torch.equal(*trained)


def test_gradients_pass_the_network_behind_the_cut(tables):
    def first_gradient(defences):
        run = simulate(SplitClassifier(**MODEL).fit, tables, roles=THREE, defences=defences, keep="all")
        return next(iter(run.transcripts["shop"].messages(Gradient))), run

    recorded, run = first_gradient({"bank": [EarlierCut(layers=1)]})
    assert recorded.message.values.any()
    entries = [entry for entry in run.transcripts["bank"].entries if entry.kind == "split/gradient"]
    assert {entry.under for entry in entries} == {("EarlierCut(layers=1)",)}


def test_more_layers_make_a_deeper_network(tables):
    for layers in (1, 3):
        held = ready(EarlierCut(layers=layers), tables)
        linear = [part for part in held._behind(at()) if isinstance(part, torch.nn.Linear)]
        assert len(linear) == layers


def test_a_plan_that_does_not_say_how_wide_embeddings_are_is_refused(held):
    words = "EarlierCut(layers=2) should learn from the plan how wide embeddings are, but the plan has no such setting."
    with pytest.raises(PlanError, match=re.escape(words)):
        held(EarlierCut())


@pytest.mark.parametrize(
    ("model", "defence"),
    [(UShapeClassifier, InformationBottleneck), (UShapeClassifier, EarlierCut), (ServedClassifier, EarlierCut)],
)
def test_a_label_party_whose_server_gets_the_embeddings_cannot_hold_it(tables, model, defence):
    roles = Roles(label="bank", features=("shop", "telco"), server="cloud")
    words = (
        f"{defence().name} stands behind the embeddings of feature parties, but bank holds the defence and the "
        "embeddings go to cloud."
    )
    with pytest.raises(PlanError, match=re.escape(words)):
        simulate(model(**MODEL).fit, tables, roles=roles, defences={"bank": [defence()]})


@pytest.mark.parametrize("defence", BOTH_KINDS)
def test_a_server_with_the_labels_puts_networks_behind_feature_parties_alone(tables, defence):
    roles = Roles(label="bank", features=("shop", "telco"), server="cloud")
    model = ServedClassifier(**MODEL)
    run = simulate(model.fit, tables, roles=roles, defences={"cloud": [defence()]})
    (learned,) = run.results["cloud"].defences_
    assert {name.split(".")[0] for name in learned["state"]} == {"0", "1"}
    embedding = torch.ones(5, 4)
    assert ready(defence(), tables).incoming(embedding, at(peer="bank")) is embedding


@pytest.mark.parametrize("defence", BOTH_KINDS)
def test_after_a_shadow_the_networks_are_used_as_they_were_trained_with_it(tables, defence):
    """The main network is trained alone, on what they make of the embeddings, and they do not move with it."""
    seen = []

    class Noting(defence):
        def passed(self, embedding, at):
            seen.append((at.phase, {name: value.copy() for name, value in self.state().items()}))
            return super().passed(embedding, at)

    defences = {"bank": [Noting()]}
    run = simulate(LabelDPShadow(**MODEL).fit, tables, roles=THREE, defences=defences)
    phase, handed_over = seen[-1]
    assert phase == "predict"
    bank = run.results["bank"]
    (kept,) = (learned["state"] for learned in bank.shadow_.defences_)
    assert all(np.array_equal(kept[name], handed_over[name]) for name in kept)
    assert bank.history_[-1]["loss"] < bank.history_[0]["loss"]


@pytest.mark.parametrize("defence", BOTH_KINDS)
def test_embeddings_that_are_sent_once_have_no_networks_behind_them(tables, defence):
    model = OneShotClassifier(leak_budget={"shop": 1.0, "telco": 1.0})
    with pytest.raises(PlanError, match=r"but OneShotClassifier never asks for that on bank's side"):
        simulate(model.fit, tables, roles=THREE, defences={"bank": [defence()]})


@pytest.mark.parametrize("defence", BOTH_KINDS)
def test_a_feature_party_receives_no_embeddings_to_put_a_network_behind(tables, defence):
    with pytest.raises(PlanError, match="which reads labels, but in SplitClassifier shop has none"):
        simulate(SplitClassifier(**MODEL).fit, tables, roles=THREE, defences={"shop": [defence()]})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: InformationBottleneck(weight=-1.0),
            "InformationBottleneck's weight should be a number, at least 0, but is -1.0",
        ),
        (lambda: EarlierCut(layers=0), "EarlierCut's layers should be a whole number, at least 1, but is 0. Change it"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(make, words):
    with pytest.raises(PlanError, match=re.escape(words)):
        make()
