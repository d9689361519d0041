"""Label-private shadow: feature parties are trained on labels randomised once; the true ones never leave.

    feature party                             label party
         ◀──────────────────────────────── Outline            once
         Embedding(batch) ─────────────────────────▶
         ◀──────────────────────────── Gradient(batch)        once per batch, by randomised labels
         Embedding(held-out rows) ─────────────────▶
         ◀──────────────────────────────── Verdict            once per epoch, by randomised labels
         Embedding(rows) ──────────────────────────▶          once, when that is over; once per prediction

First a split network is trained on randomised labels: the shadow. Then feature parties send the embeddings they have
learned, and the label party trains its main network on the true labels, alone; see `label_only`.

All that a feature party is ever sent is computed from labels that were randomised once, so its whole view is
epsilon-label-private (randomised response, Warner 1965; by post-processing), early stopping included. That bounds what
it can infer about a single label. The classes are taken for public: they are those that occur among the true labels,
so a class which one row alone has is not hidden. Nor are attacks brought down to what the feature party could do alone:
many noisy labels still train a classifier. The label party learns the embeddings, from which columns can be
reconstructed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch

from colonnade.errors import PlanError
from colonnade.models.base import Prediction, is_number
from colonnade.models.batches import in_order
from colonnade.models.networks.cut import Bottom, Embedding, Gathering, Gradient, Outline, Verdict
from colonnade.models.networks.label_only import Material, SoloModel, SoloNetwork
from colonnade.models.networks.modules import BottomFactory, TopFactory
from colonnade.models.networks.split import SplitClassifier
from colonnade.models.networks.targets import Classes
from colonnade.models.networks.tracks import Head
from colonnade.models.networks.training import OptimiserName, as_array, loaded
from colonnade.privacy.mechanisms import RandomisedResponse
from colonnade.runtime.hooks import At, Defence, Tensor
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.tables.encode import Inputs
from colonnade.wire.message import Float32Array, Int64Array, Message

__all__ = ["Embedding", "Gradient", "LabelDPShadow", "Outline", "Verdict"]

NAME = "LabelDPShadow"


class LabelDPShadow(SoloModel):
    """A classifier whose feature parties see only what follows from labels randomised once, and how many classes occur.

    Args:
        epsilon: How private a label is; at 0.5 attacks were measured near what a feature party can do alone, at 1 well
            above it.
        embedding: The width of each party's embedding.
        bottom: A name or a callable, for every bottom network.
        top: A name or a callable, for the shadow's top and the main one.
        optimiser: "adam", "adamw" or "sgd".
        learning_rate: How far a step goes.
        weight_decay: At every party.
        batch_size: Rows per step.
        epochs: Passes over the training rows, at most, of the shadow and of the main network each.
        patience: Epochs without improvement on held-out rows before training stops; None trains to the end.
        validation: The share of rows held out for that.
        device: "cpu", "cuda", or "auto" for a GPU where there is one; parties may differ.

    >>> LabelDPShadow(epsilon=0.5).task
    'classification'
    """

    task = "classification"
    target = Classes
    hooks: ClassVar[Mapping[str, frozenset[str]]] = SplitClassifier.hooks
    sends: ClassVar[Mapping[str, tuple[type[Message], ...]]] = SplitClassifier.sends

    shadow_: SplitClassifier

    def __init__(
        self,
        *,
        epsilon: float = 0.5,
        embedding: int = 16,
        bottom: str | BottomFactory = "mlp",
        top: str | TopFactory = "mlp",
        optimiser: OptimiserName = "adam",
        learning_rate: float = 3e-3,
        weight_decay: float = 0.0,
        batch_size: int = 256,
        epochs: int = 30,
        patience: int | None = 5,
        validation: float = 0.1,
        device: Literal["cpu", "cuda", "auto"] = "cpu",
    ) -> None:
        self.epsilon = epsilon
        self.embedding = embedding
        self.bottom = bottom
        self.top = top
        self.optimiser = optimiser
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.validation = validation
        self.device = device

    def fit(self, party: Party) -> Self:
        """Train the shadow together on randomised labels, then the main network alone on the true ones."""
        self._require_settings(("epsilon", is_number(self.epsilon) and self.epsilon > 0, "above 0"))
        self.shadow_ = self._new_shadow()
        self.target_ = self.inputs_ = self.network_ = None
        self.history_ = []
        if not party.holds_labels:
            self.shadow_.fit(party)
            self._send(party)
            return self
        truth = self.learn_target(party)
        randomised = _Randomised(self._randomised(party, truth.numpy()))
        self.shadow_.fit(replace(party, defences=(randomised, *party.defences)))
        table = party.own_table
        if table.columns:
            self.inputs_ = Inputs.learned(table, np.arange(len(table)))
        material = self._material(party)
        self.network_ = self._new_network(len(party.feature_parties))
        self.train_alone(party, material, truth)
        self.shadow_.remember(party)
        return self

    def predict(self, party: Party, *, head: Head | None = None) -> Prediction | None:
        """Predict together with the other parties; only the label party learns the result.

        Args:
            party: One's own side.
            head: "local" for the main network, which is meant if None, or "federated" for the shadow's.
        """
        self.require_fitted("used to predict")
        if head == "federated":
            return self.shadow_.predict(party)
        if head not in (None, "local"):
            raise PlanError(f"A prediction uses the head 'local' or 'federated', but {head!r} was asked for. Use one.")
        self.shadow_.prepare(party)
        if not party.holds_labels:
            self._send(party)
            return None
        return self.predict_alone(party, self._material(party))

    def share(self) -> Tree:
        """What this party has learned, as a tree of arrays and plain values."""
        return {
            "shadow": self.shadow_.share(),
            "target": None if self.target_ is None else self.target_.state(),
            "inputs": None if self.inputs_ is None else self.inputs_.state(),
            "network": None if self.network_ is None else self.network_.state_dict(),
            "n_received": 0 if self.network_ is None else len(self.network_.others),
            "history": self.history_,
        }

    def take_share(self, tree: Tree) -> None:
        """Take up what `share` gave."""
        self.shadow_ = self._new_shadow()
        self.shadow_.take_share(tree["shadow"])
        self.target_ = None if tree["target"] is None else Classes.of(tree["target"])
        self.inputs_ = None if tree["inputs"] is None else Inputs.of(tree["inputs"])
        self.history_, self.network_ = tree["history"], None
        if tree["network"] is not None:
            self.network_ = loaded(self._new_network(tree["n_received"]), tree["network"])  # type: ignore[assignment]

    def summary(self) -> str:
        """What the model is, and what each role learns, in a few lines."""
        return "\n".join(
            [
                f"LabelDPShadow: a shadow on labels randomised once (epsilon {self.epsilon:g}), and a main network.",
                f"A feature party's view is {self.epsilon:g}-label-private, which classes there are being public; "
                "attacks can still exceed what it could do alone.",
                "The label party learns every embedding. Encryption: none.",
            ]
        )

    def _randomised(self, party: Party, truth: Int64Array) -> Int64Array:
        """Every label, randomised once in the life of a run, and what that costs on the ledger."""
        response = RandomisedResponse(self.epsilon, self.require_target().n_outputs)
        random = party.random.child("randomised labels")
        drawn = party.once(
            "randomised labels", lambda: response.release(truth, random=random, ledger=party.ledger, by=NAME)
        )
        return np.asarray(drawn)

    def _send(self, party: Party) -> None:
        """Send the learned embedding of every row."""
        Bottom(self.shadow_, party, party.label_party).send_all(self._batches(party), "predict")

    def _material(self, party: Party) -> Material:
        """Every feature party's embedding of every row, and the own columns."""
        gathering = Gathering(self.shadow_, party, party.feature_parties)
        received: dict[str, list[Float32Array]] = {line.peer: [] for line in party.feature_parties}
        for step, rows in enumerate(self._batches(party)):
            gathering.collect(step, rows, "predict")
            for peer, came in gathering.received.items():
                received[peer].append(as_array(came))
        joined = {peer: np.concatenate(parts) for peer, parts in received.items()}
        # Networks behind the cut have learned with the shadow, and are used as they are.
        return Material.of(self, party, joined, "predict")

    def _batches(self, party: Party) -> list[Int64Array]:
        return in_order(np.arange(len(party.own_table)), self.batch_size)

    def _new_shadow(self) -> SplitClassifier:
        given = self.get_params()
        del given["epsilon"]
        return SplitClassifier(**given)

    def _new_network(self, n_received: int) -> SoloNetwork:
        return SoloNetwork(self, [self.embedding] * n_received)


class _Randomised(Defence):
    """The randomised labels in the place of the true ones, wherever the shadow asks."""

    name = NAME

    def __init__(self, drawn: Int64Array) -> None:
        self.drawn = torch.from_numpy(drawn)

    def labels(self, labels: Tensor, at: At) -> Tensor:
        return self.drawn.index_select(0, torch.from_numpy(at.rows)).to(labels.device)
