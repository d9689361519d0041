"""What crosses the cut about rows that not everybody holds."""

import numpy as np
import pytest
import torch

from colonnade.catalogue import DEFENCES
from colonnade.data.partition import extend
from colonnade.defences.embedding import DistanceCorrelation, PotentialEnergy
from colonnade.defences.wandering import BoundaryWandering
from colonnade.models.networks.messages import Embedding, EmbeddingWidth, Gradient
from colonnade.models.networks.server import ServedClassifier, UShapeClassifier
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.context import HookContext
from colonnade.runtime.party import Defence
from colonnade.runtime.simulate import simulate
from colonnade.testing.setup import Setup

BOTH = Roles(label="bank", features=("shop",))
SERVER = Roles(label="bank", features=("shop",), server="cloud")
TOPOLOGIES = [(SplitClassifier, BOTH), (UShapeClassifier, SERVER), (ServedClassifier, SERVER)]
# So small that some batches have no row at all that the shop holds.
QUICK = {"epochs": 1, "n_iter_no_change": None, "batch_size": 8, "embedding": 4, "overlap": "partial"}


@pytest.fixture(scope="module")
def tables(cancer):
    """Tables in which the shop holds every eighth row only."""
    some = {name: table.take(np.arange(96)) for name, table in cancer.items()}
    return extend({**some, "shop": some["shop"].take(np.arange(0, 96, 8))}, to="bank")


def is_held(rows):
    return rows % 8 == 0


@pytest.mark.filterwarnings("ignore:.*BoundaryWandering has few pairs")
@pytest.mark.parametrize("name", DEFENCES)
def test_no_defence_tells_a_feature_party_anything_about_rows_it_does_not_hold(tables, predicted, name):
    settings = {"scope": "both"} if name == "boundary-wandering" else {}
    defence = DEFENCES[name](**settings)
    for model, roles in TOPOLOGIES:
        refused = model is not SplitClassifier and name in ("earlier-cut", "information-bottleneck")
        for holder in Setup(model, tables, roles).holders(defence):
            if (refused and holder == "bank") or (name == "randomised-labels" and holder == "cloud"):
                continue
            held = {holder: [defence]}
            run = simulate(model(**QUICK).fit, tables, roles=roles, defences=held, keep="all")
            sent = list(run.transcripts["shop"].messages(Gradient))
            assert any(recorded.message.values.any() for recorded in sent)
            assert not all(is_held(recorded.rows).any() for recorded in sent)
            for recorded in sent:
                assert not recorded.message.values[~is_held(recorded.rows)].any(), (model, holder)
            assert np.isfinite(predicted(run, tables, roles=roles, defences=held).probabilities).all()


def test_defences_see_no_rows_that_are_not_held_and_what_goes_with_the_others_fits(tables):
    seen = set()

    class Look(Defence):
        def __init__(self, *, holds_labels):
            self.holds_labels = holds_labels

        def __deepcopy__(self, memo):
            return self

        def look(self, hook, tensor, at):
            assert is_held(at.rows).all()
            assert len(tensor) == len(at.rows) > 0
            for each in (at.labels, at.inputs, at.outputs, *at.own.values(), *at.received.values()):
                assert each is None or len(each) == len(at.rows)
            if at.gradient_if is not None:
                torch.testing.assert_close(at.gradient_if(at.labels), tensor)
            seen.add((hook, self.holds_labels, at.phase))
            return tensor

        def incoming(self, tensor, at):
            return self.look("incoming", tensor, at)

        def outgoing(self, tensor, at):
            return self.look("outgoing", tensor, at)

        def loss(self, loss, at):
            if not self.holds_labels:
                self.look("loss", at.own["embedding"], at)
            for embedding, there in at.each_received():
                self.look("received", embedding, there)
            return loss

    held = {"bank": [Look(holds_labels=True)], "shop": [Look(holds_labels=False)]}
    model = SplitClassifier(**{**QUICK, "n_iter_no_change": 1, "validation_fraction": 0.5})
    run = simulate(model.fit, tables, roles=BOTH, defences=held)
    simulate({name: share.predict for name, share in run.results.items()}, tables, roles=BOTH, defences=held)
    everywhere = {"train", "validate", "predict"}
    assert seen == {
        *(("incoming", True, phase) for phase in everywhere),
        *(("outgoing", False, phase) for phase in everywhere),
        ("outgoing", True, "train"),
        ("received", True, "train"),
        ("incoming", False, "train"),
        ("loss", False, "train"),
    }


def test_what_a_peer_says_about_rows_that_a_party_does_not_hold_moves_nothing(tables):
    """They pass the bottom in the place of its mean, so a gradient about them would train it on nobody's values."""

    def bank_that_says(value):
        def play(party, honest):
            line = party.peers["shop"]
            line.send(EmbeddingWidth(4))
            for step in range(12):
                embedding = line.receive(Embedding).values
                missing = np.isnan(embedding)
                line.send(Gradient(step, np.where(missing, np.float32(value), np.float32(0.01))))

        return play

    weights = []
    for value in (0.0, 1.0):
        run = simulate(SplitClassifier(**QUICK).fit, tables, roles=BOTH, instead={"bank": bank_that_says(value)})
        weights.append([p.detach().numpy() for p in run.results["shop"].bottom_.parameters()])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "defence", [DistanceCorrelation(), PotentialEnergy(), BoundaryWandering(scope="received")], ids=lambda d: d.name
)
def test_a_penalty_on_received_embeddings_counts_the_rows_that_are_held(defence):
    z = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    labels, held = torch.arange(12) % 2, torch.arange(12) % 3 != 0
    zeros = torch.where(held[:, None], z, 0)
    nobody = {"telco": torch.zeros(12, dtype=torch.bool)}
    loss = [
        defence.loss(torch.tensor(0.0), HookContext(1, 0, np.arange(len(y)), "train", labels=y, n_classes=2, **more))
        for y, more in (
            (labels, {"received": {"shop": zeros, "telco": zeros * 0}, "held": {"shop": held, **nobody}}),
            (labels[held], {"received": {"shop": z[held]}}),
        )
    ]
    assert loss[0].item() == pytest.approx(loss[1].item(), rel=1e-6)
    assert loss[0].item() != 0
