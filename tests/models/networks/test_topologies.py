"""Where the top model lives: at the label party, at a server, or at a server that has the labels too."""

import re
from functools import partial

import numpy as np
import pytest
import torch

from colonnade import audit
from colonnade.attacks.labels.gradients import DirectionScore
from colonnade.defences.compression import AverageGradient, DiscreteGradient, SparseGradient
from colonnade.defences.confusion import ConfusionalAutoencoder
from colonnade.defences.embedding import DistanceCorrelation, PotentialEnergy
from colonnade.defences.marvell import Marvell
from colonnade.defences.noise import GradientNoise, GradientPerturbation, MaxNorm
from colonnade.defences.wandering import BoundaryWandering
from colonnade.errors import PlanError, ProtocolError
from colonnade.models.batches import IN_FLIGHT, sent_ahead
from colonnade.models.networks import server
from colonnade.models.networks.messages import (
    Embedding,
    GivenLabels,
    Gradient,
    Hidden,
    HiddenGradient,
    Outputs,
    RowCount,
)
from colonnade.models.networks.server import ServedClassifier, ServedRegressor, UShapeClassifier, UShapeRegressor
from colonnade.models.networks.split import SplitClassifier
from colonnade.models.networks.tracks import ShadowTop
from colonnade.roles import Roles
from colonnade.runtime.context import HookContext
from colonnade.runtime.party import Defence
from colonnade.runtime.simulate import simulate

WITHOUT = Roles(label="bank", features=("shop",))
SERVER = Roles(label="bank", features=("shop",), server="cloud")
QUICK = {"epochs": 2, "n_iter_no_change": None, "batch_size": 64}
LEARNING = {"epochs": 20, "n_iter_no_change": None, "batch_size": 64, "learning_rate": 0.01}


def labels_of(tables):
    return np.asarray(tables["bank"].labels)


def kinds(run, receiver, sender):
    return {e.kind for e in run.transcripts[receiver].entries if not e.sent and e.peer == sender}


@pytest.mark.parametrize("model", [UShapeClassifier, ServedClassifier])
@pytest.mark.parametrize("tracks", ["single", "shadow-proxy"])
def test_a_top_at_a_server_learns_to_classify(cancer, predicted, model, tracks):
    run = simulate(model(tracks=tracks, **LEARNING).fit, cancer, roles=SERVER)
    for head in ("federated",) if tracks == "single" else ("federated", "local"):
        accuracy = (predicted(run, cancer, roles=SERVER, head=head).values == labels_of(cancer)).mean()
        assert accuracy > 0.93, head


@pytest.mark.parametrize("model", [UShapeRegressor, pytest.param(ServedRegressor, marks=pytest.mark.slow)])
def test_a_top_at_a_server_learns_to_regress(numbers, predicted, model):
    settings = {**LEARNING, "epochs": 60}
    prediction = predicted(simulate(model(**settings).fit, numbers, roles=SERVER), numbers, roles=SERVER)
    truth = labels_of(numbers)
    assert 1 - ((prediction.values - truth) ** 2).mean() / truth.var() > 0.95


@pytest.mark.parametrize("model", [UShapeClassifier, ServedClassifier])
def test_a_label_party_without_columns_needs_no_bottom(cancer, predicted, model):
    tables = {**cancer, "bank": cancer["bank"].select([])}
    run = simulate(model(**LEARNING).fit, tables, roles=SERVER)
    assert run.results["bank"].bottom_ is None
    assert (predicted(run, tables, roles=SERVER).values == labels_of(cancer)).mean() > 0.9
    assert kinds(run, "bank", "cloud") <= {"split/hidden"}


def test_served_training_is_the_same_computation_as_at_the_label_party(cancer):
    """Oracle: with the same initial weights, the shop is sent the same gradients in both topologies."""

    def bottom(inputs, width):
        torch.manual_seed(len(inputs.numeric[0]))
        return torch.nn.Linear(inputs.width, width)

    def top(n_in, n_out):
        torch.manual_seed(7)
        return torch.nn.Linear(n_in, n_out)

    sent = []
    for model, roles in ((SplitClassifier, WITHOUT), (ServedClassifier, SERVER)):
        # The batch schedule follows from the plan, which names the topology; one batch is all rows.
        settings = {"bottom": bottom, "top": top, "epochs": 3, "n_iter_no_change": None, "batch_size": 569}
        run = simulate(model(**settings).fit, cancer, roles=roles, keep="all")
        by_row = []
        for recorded in run.transcripts["shop"].messages(Gradient):
            by_row.append(recorded.message.values[np.argsort(recorded.rows)])
        sent.append(np.stack(by_row))
    np.testing.assert_allclose(sent[0], sent[1], rtol=1e-3, atol=1e-7)


def test_in_u_shape_the_server_is_sent_neither_labels_nor_the_loss(cancer):
    run = simulate(UShapeClassifier(epochs=2, batch_size=64).fit, cancer, roles=SERVER)
    assert kinds(run, "cloud", "bank") == {"split/rows", "split/embedding", "split/hidden-gradient", "split/verdict"}
    assert kinds(run, "cloud", "shop") == {"split/embedding"}
    assert kinds(run, "shop", "cloud") == {"split/gradient"}
    assert kinds(run, "bank", "cloud") == {"split/hidden", "split/gradient"}
    assert kinds(run, "bank", "shop") == set()
    assert run.results["cloud"].target_ is None


def test_a_served_label_party_gives_its_labels_to_the_server_and_to_nobody_else(cancer):
    run = simulate(ServedClassifier(epochs=2, batch_size=64).fit, cancer, roles=SERVER)
    (told,) = run.transcripts["cloud"].messages(GivenLabels)
    np.testing.assert_array_equal(told.message.values, labels_of(cancer))
    assert kinds(run, "shop", "bank") == set()
    assert kinds(run, "shop", "cloud") == {"split/gradient", "split/verdict"}
    assert kinds(run, "bank", "cloud") == {"split/gradient", "split/verdict"}


def test_a_loss_on_the_public_embedding_is_computed_where_the_topology_says(cancer):
    """At the label party in U-shape, at the server where that has the labels; its gradient returns over the wire."""
    seen = {}

    class Pull(Defence):
        def __init__(self, where):
            self.where = where

        def loss(self, loss, at):
            if at.track == "local":
                return loss
            seen[self.where] = (set(at.own), set(at.received), at.labels is not None)
            return loss + 100 * at.own["public"].sum()

    model = UShapeClassifier(tracks={"name": "shadow-proxy", "by": "random"}, **QUICK)
    simulate(model.fit, cancer, roles=SERVER, defences={"bank": [Pull("bank")]})
    model = ServedClassifier(tracks={"name": "shadow-proxy", "by": "random"}, **QUICK)
    run = simulate(model.fit, cancer, roles=SERVER, defences={"cloud": [Pull("cloud")]}, keep="all")
    assert seen == {"bank": ({"public", "private"}, {"cloud"}, True), "cloud": ({"public"}, {"shop"}, True)}
    (first, *_) = run.transcripts["bank"].messages(Gradient)
    assert first.message.values.mean() > 99
    (first, *_) = run.transcripts["shop"].messages(Gradient)
    assert abs(first.message.values).max() < 1


@pytest.mark.parametrize("scope", ["public", "received"])
@pytest.mark.parametrize(("model", "holder"), [(UShapeClassifier, "bank"), (ServedClassifier, "cloud")])
def test_boundary_wandering_is_computed_by_whoever_computes_the_loss(cancer, model, holder, scope):
    """In the public scope no party but the label party gets another gradient; in the received one the shop does."""
    first = {"shop": [], "bank": []}
    for alpha in (0.0, 5.0):
        held = {holder: [BoundaryWandering(alpha=alpha, scope=scope)]}
        tracks = {"name": "shadow-proxy", "by": "random"}
        run = simulate(model(tracks=tracks, **QUICK).fit, cancer, roles=SERVER, defences=held, keep="all", seed=1)
        for party, seen in first.items():
            seen.append([recorded.message.values for recorded in run.transcripts[party].messages(Gradient)])
    is_same = {party: np.array_equal(seen[0][0], seen[1][0]) for party, seen in first.items()}
    # In U-shape the label party adds the penalty's gradient itself, to what the server sends it. What it receives, the
    # server has made of its embedding, too.
    own_changes = (model is ServedClassifier) == (scope == "public")
    assert is_same == {"shop": scope == "public", "bank": not own_changes}
    assert not np.array_equal(first["shop"][0][-1], first["shop"][1][-1])


@pytest.mark.parametrize("defence", [BoundaryWandering(scope="received"), DistanceCorrelation(), PotentialEnergy()])
def test_in_u_shape_a_penalty_on_what_was_received_is_one_on_the_servers_output(cancer, defence):
    """Which is all that the label party receives: feature parties' embeddings never come to it."""
    sent = {}
    for held in ((), (defence,)):
        run = simulate(UShapeClassifier(**QUICK).fit, cancer, roles=SERVER, defences={"bank": held}, keep="all")
        (hidden, *_), (gradient, *_) = (run.transcripts["cloud"].messages(kind) for kind in (Hidden, HiddenGradient))
        sent[held] = torch.tensor(gradient.message.values)
    output = torch.tensor(hidden.message.values, requires_grad=True)
    labels = torch.from_numpy(labels_of(cancer)[hidden.rows].astype(np.int64))
    at = HookContext(0, 0, hidden.rows, "train", labels=labels, received={"cloud": output}, n_classes=2)
    defence.loss(torch.tensor(0.0), at).backward()
    torch.testing.assert_close(sent[(defence,)] - sent[()], output.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("defence", [BoundaryWandering(), DistanceCorrelation(), PotentialEnergy()])
def test_a_label_party_that_gave_its_labels_away_has_no_loss_to_add_to(cancer, defence):
    words = f"bank holds {defence.name}, which acts on loss, but ServedClassifier never asks for that on bank's side. "
    words += "Give it to the server, or leave it out." if defence.reads_labels else "Give it to a feature party or the"
    with pytest.raises(PlanError, match=re.escape(words)):
        simulate(ServedClassifier(**QUICK).fit, cancer, roles=SERVER, defences={"bank": [defence]})


@pytest.mark.parametrize("party", ["bank", "cloud", "shop"])
def test_a_defence_that_no_party_could_hold_is_refused_as_such(cancer, party):
    """The confusional autoencoder changes the loss, which is the server's, and predictions, which are the bank's."""
    held = {party: [ConfusionalAutoencoder()]}
    words = "but ServedClassifier never asks for that .* Leave it out: no party here could hold it"
    with pytest.raises(PlanError, match=words):
        simulate(ServedClassifier(**QUICK).fit, cancer, roles=SERVER, defences=held)


def test_early_stopping_returns_every_party_to_the_same_epoch(cancer):
    noise = {**cancer, "bank": cancer["bank"].with_labels(np.random.default_rng(0).integers(0, 2, 569))}
    for model in (UShapeClassifier, ServedClassifier):
        settings = {"epochs": 40, "n_iter_no_change": 2, "validation_fraction": 0.3, "learning_rate": 0.02}
        run = simulate(model(**settings).fit, noise, roles=SERVER)
        lengths = {len(share.history_) for share in run.results.values()}
        assert len(lengths) == 1
        assert lengths.pop() < 40


@pytest.mark.parametrize("model", [UShapeClassifier, ServedClassifier])
def test_what_a_server_cannot_do_is_refused(cancer, model):
    with pytest.raises(PlanError, match=f"{model.__name__} needs a server that holds the top network"):
        simulate(model(**QUICK).fit, cancer, roles=WITHOUT)
    with pytest.raises(PlanError, match="ShadowTop's main top takes the embeddings of feature parties, but in"):
        simulate(model(tracks=ShadowTop(), **QUICK).fit, cancer, roles=SERVER)
    with pytest.raises(PlanError, match=f"{model.__name__}'s top should be a network, but is None"):
        simulate(model(top=None, fusion="sum", **QUICK).fit, cancer, roles=SERVER)


def test_an_absurd_number_of_rows_is_refused(cancer):
    def lies(party, honest):
        party.server.send(RowCount(10**12, 0))

    with pytest.raises(ProtocolError, match=r"with number from 1 to 1\.34218e\+08 from bank, got .* number 1e\+12"):
        simulate(ServedClassifier(**QUICK).fit, cancer, roles=SERVER, instead={"bank": lies})


def test_labels_that_are_none_are_refused(cancer):
    def lies(party, honest):
        party.server.send(RowCount(569, 0))
        party.server.send(GivenLabels(2, np.full(569, 7, np.float32)))

    with pytest.raises(ProtocolError, match="bank sent labels of 2 classes, which are not what a classification"):
        simulate(ServedClassifier(**QUICK).fit, cancer, roles=SERVER, instead={"bank": lies})


def test_a_defence_of_the_server_acts_on_what_it_sends(cancer):
    class Meddle(Defence):
        acts_on = (Hidden, Gradient)

        def outgoing(self, tensor, at):
            return tensor * 0 if at.message is Gradient else tensor + 1

    run = simulate(UShapeClassifier(**QUICK).fit, cancer, roles=SERVER, defences={"cloud": [Meddle()]}, keep="all")
    assert all((m.message.values == 0).all() for m in run.transcripts["shop"].messages(Gradient))
    assert {e.under for e in run.transcripts["cloud"].entries if e.sent} == {("Meddle",)}
    assert any((m.message.values != 0).any() for m in run.transcripts["cloud"].messages(HiddenGradient))


@pytest.mark.parametrize(
    "defence",
    [
        GradientNoise(),
        MaxNorm(),
        Marvell(),
        GradientPerturbation(epsilon=10.0),
        SparseGradient(),
        DiscreteGradient(),
        AverageGradient(),
    ],
    ids=lambda defence: type(defence).__name__,
)
def test_in_u_shape_a_defence_of_gradients_at_the_label_party_acts_on_what_the_server_is_sent(cancer, defence):
    """And on nothing else: the embedding of the label party leaves as it was."""
    model, first = UShapeClassifier(**QUICK), {}
    for held in ((), (defence,)):
        run = simulate(model.fit, cancer, roles=SERVER, defences={"bank": held}, keep="all")
        for kind in (HiddenGradient, Embedding):
            came = next(iter(run.transcripts["cloud"].messages(kind, peer="bank")))
            first.setdefault(kind, []).append(came.message.values)
    assert not np.array_equal(*first[HiddenGradient])
    np.testing.assert_array_equal(*first[Embedding])
    under = {entry.kind: entry.under for entry in run.transcripts["bank"].entries if entry.sent}
    assert under == {"split/rows": (), "split/embedding": (), "split/hidden-gradient": (defence.name,)}


def test_summaries_say_who_learns_what():
    assert "The server learns every embedding and is given all labels." in ServedClassifier().summary()
    assert "The server learns every embedding, and gradients at its output" in UShapeClassifier().summary()


@pytest.mark.slow
@pytest.mark.parametrize("model", [UShapeClassifier, ServedClassifier])
def test_an_audit_attacks_as_a_feature_party_and_says_why_not_as_the_server(cancer, model):
    run = simulate(model(epochs=5, batch_size=64).fit, cancer, roles=SERVER)
    report = audit(run, [DirectionScore()], nulls=2)
    assert [(finding.attacker, finding.verdict) for finding in report.attacks] == [("shop", "leaks")]
    assert "DirectionScore by cloud: cloud received no split/gradient" in report.untested


def predicting(run, tables, roles):
    return simulate({name: share.predict for name, share in run.results.items()}, tables, roles=roles)


def directions(run, party, peer):
    """Which messages of a prediction's batches went out at a party, and which came in, in order."""
    entries = (e for e in run.transcripts[party].entries if e.peer == peer and e.kind != "split/rows")
    return ["sent" if e.sent else "received" for e in entries]


@pytest.mark.parametrize("tracks", ["single", "shadow-proxy"])
@pytest.mark.parametrize("model", [UShapeClassifier, ServedClassifier])
def test_several_batches_are_sent_to_a_server_before_the_first_is_answered(cancer, monkeypatch, model, tracks):
    trained = simulate(model(tracks=tracks, **{**QUICK, "batch_size": 48}).fit, cancer, roles=SERVER)
    ahead = predicting(trained, cancer, SERVER)
    n_batches = -(-len(cancer["bank"]) // 48)
    answered = ["received", "sent"] * (n_batches - IN_FLIGHT)
    assert directions(ahead, "bank", "cloud") == ["sent"] * IN_FLIGHT + answered + ["received"] * IN_FLIGHT
    assert directions(ahead, "shop", "cloud") == ["sent"] * n_batches
    monkeypatch.setattr(server, "sent_ahead", partial(sent_ahead, in_flight=1))
    waiting = predicting(trained, cancer, SERVER)
    assert directions(waiting, "bank", "cloud") == ["sent", "received"] * n_batches
    np.testing.assert_array_equal(ahead.results["bank"].probabilities, waiting.results["bank"].probabilities)
    assert sorted(map(repr, ahead.transcripts["bank"].digests())) == sorted(
        map(repr, waiting.transcripts["bank"].digests())
    )


def test_a_prediction_for_another_batch_is_refused(cancer):
    trained = simulate(ServedClassifier(**QUICK).fit, cancer, roles=SERVER)

    def mistaken(party, honest):
        party.label_party.receive(RowCount)
        party.label_party.send(Outputs(1, np.zeros((64, 2), np.float32)))

    protocols = {name: share.predict for name, share in trained.results.items()}
    with pytest.raises(ProtocolError, match="Expected split/outputs for step 0 from cloud, got one for step 1"):
        simulate(protocols, cancer, roles=SERVER, instead={"cloud": mistaken})


def test_all_batches_of_a_feature_party_are_sent_without_waiting(cancer):
    trained = simulate(SplitClassifier(**QUICK).fit, cancer, roles=WITHOUT)
    run = predicting(trained, cancer, WITHOUT)
    assert directions(run, "shop", "bank") == ["sent"] * -(-len(cancer["bank"]) // 64)


def test_held_out_rows_are_sent_to_a_server_before_the_first_is_answered(cancer):
    settings = {**QUICK, "epochs": 1, "n_iter_no_change": 1, "validation_fraction": 0.4}
    run = simulate(UShapeClassifier(**settings).fit, cancer, roles=SERVER)
    n_batches = -(-round(0.4 * len(cancer["bank"])) // 64)
    held_out = directions(run, "bank", "cloud")[-2 * n_batches - 1 :]
    assert held_out == ["sent"] * n_batches + ["received"] * n_batches + ["sent"]
