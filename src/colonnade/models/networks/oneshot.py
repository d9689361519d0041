"""One shot: feature parties send an embedding that no label had a hand in, once, and are sent nothing at all.

    feature party                             label party
         Statement ────────────────────────────────▶          once
         Embedding(rows) ──────────────────────────▶          once to train, once per prediction

A feature party learns nothing: not a gradient, not how long training took, not how well it went. What it holds
afterwards is a function of its own columns and its own randomness, so no attack, present or future, can say more about
labels than the feature party could alone. That holds as long as the settings, the rows and the occasions of predictions
were not chosen by labels, and nothing computed from labels is given to it by another way.

The price is paid on the other side. The label party learns an embedding of every row that is as good for rebuilding the
columns as it is wide: so many principal components as a table has columns are the table. The feature party therefore
measures what could be rebuilt before it sends anything, states it, and refuses above the budget that its owner set.
It measures with its embedding alone. The label party has columns of its own too, which the feature party cannot know;
where these are correlated with the feature party's, more can be rebuilt than was stated.

Principal components after Hotelling 1933; random Fourier features after Rahimi and Recht 2007.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import numpy as np
import torch

from colonnade.errors import DataError, ProtocolError
from colonnade.models.base import Prediction, is_count, is_number
from colonnade.models.batches import in_order
from colonnade.models.networks.cut import Embedding, require_answer, require_columns
from colonnade.models.networks.encoders import (
    ENCODERS,
    Encoder,
    EncoderName,
    principal_directions,
    width_by_variance,
)
from colonnade.models.networks.label_only import Material, SoloModel, SoloNetwork
from colonnade.models.networks.leak_budget import Leak, Statement, measured_leak, require_budgets, require_within_budget
from colonnade.models.networks.modules import BottomFactory, TopFactory
from colonnade.models.networks.targets import Classes, Numbers
from colonnade.models.networks.training import OptimiserName, as_array, loaded
from colonnade.runtime.hooks import At, Phase, applied
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.tables.encode import Inputs
from colonnade.wire.message import Float32Array, Float64Array, Message

__all__ = ["Embedding", "OneShot", "OneShotRegressor", "Statement"]

MOST_WIDE = 100_000
ROWS_PER_MESSAGE = 65_536


class OneShotNetwork(SoloModel):
    """A network at the label party over its own columns and the embeddings that feature parties send once.

    Args:
        leak_budget: For each feature party, the most of its columns' variance that may be rebuilt from what it sends,
            from 0 to 1. It has no default: the owner of the columns sets it.
        column_budget: Likewise for any single column of a party, where its owner sets such a bound.
        encoder: "pca", "rff" for random Fourier features, or "autoencoder".
        components: How many components the embedding is of; if None, as many principal components as explain
            `variance`, up to 64. With "rff" the embedding is twice as wide, with the others as wide.
        variance: The share of the columns' variance that is explained.
        embedding: The width of the label party's own networks before the top.
        bottom: The label party's network over its own columns, by name or as a callable.
        top: Its network over everything, by name or as a callable.
        optimiser: "adam", "adamw" or "sgd", at the label party.
        learning_rate: How far a step goes.
        weight_decay: At the label party.
        batch_size: Rows per step.
        epochs: Passes over the training rows, at most.
        patience: Epochs without improvement on the label party's held-out rows before it stops; None trains to the end.
        validation: The share of rows it holds out for that.
        device: "cpu", "cuda", or "auto" for a GPU where there is one; of interest to the label party only.
    """

    hooks: ClassVar[Mapping[str, frozenset[str]]] = {
        # It trains alone: what protects labels from others would act on nothing that leaves.
        "label": frozenset({"incoming", "prediction"}),
        "feature": frozenset({"outgoing"}),
    }
    sends: ClassVar[Mapping[str, tuple[type[Message], ...]]] = {"label": (), "feature": (Embedding,)}

    encoder_: Encoder | None
    leak_: Leak | None
    stated_: dict[str, dict[str, float]]

    def __init__(
        self,
        *,
        leak_budget: Mapping[str, float] | None = None,
        column_budget: Mapping[str, float] | None = None,
        encoder: EncoderName = "pca",
        components: int | None = None,
        variance: float = 0.95,
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
        self.leak_budget = leak_budget
        self.column_budget = column_budget
        self.encoder = encoder
        self.components = components
        self.variance = variance
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
        """Send an embedding, or train on those that come."""
        self._validate(party)
        self._prepare(party)
        self.target_ = self.inputs_ = self.encoder_ = self.leak_ = self.network_ = None
        self.stated_, self.history_ = {}, []
        if party.holds_labels:
            self._train(party)
        else:
            self._encode(party)
        self.remember(party)
        return self

    def predict(self, party: Party) -> Prediction | None:
        """Send an embedding of the rows, or predict from those that come; only the label party learns the result."""
        self.require_fitted("used to predict")
        self.prepare(party)
        if not party.holds_labels:
            _send(party, *self._sent(party, "predict"))
            return None
        received = {
            line.peer: _receive(party, line.peer, int(self.stated_[line.peer]["width"]))
            for line in party.feature_parties
        }
        return self.predict_alone(party, Material.of(self, party, received, "predict"))

    def share(self) -> Tree:
        """What this party has learned, as a tree of arrays and plain values."""
        return {
            "target": None if self.target_ is None else self.target_.state(),
            "inputs": None if self.inputs_ is None else self.inputs_.state(),
            "encoder": None if self.encoder_ is None else self.encoder_.state(),
            "leak": None if self.leak_ is None else {"mse": self.leak_.relative_mse, "columns": self.leak_.columns},
            "stated": self.stated_,
            "network": None if self.network_ is None else self.network_.state_dict(),
            "history": self.history_,
            "defences": self.defences_,
        }

    def take_share(self, tree: Tree) -> None:
        """Take up what `share` gave."""
        self.target_ = None if tree["target"] is None else self.target.of(tree["target"])
        self.inputs_ = None if tree["inputs"] is None else Inputs.of(tree["inputs"])
        self.encoder_ = None if tree["encoder"] is None else ENCODERS[self.encoder].of(tree["encoder"])
        self.leak_ = None if tree["leak"] is None else Leak(tree["leak"]["mse"], tree["leak"]["columns"])
        self.stated_, self.history_, self.defences_ = tree["stated"], tree["history"], tree["defences"]
        self.network_ = None
        if tree["network"] is not None:
            self.network_ = loaded(self._new_network(), tree["network"])  # type: ignore[assignment]

    def summary(self) -> str:
        """What the model is, and what each role learns, in a few lines."""
        explaining = f"so many components as explain {self.variance:.0%} of the variance"
        components = f"{self.components} components" if self.components else explaining
        lines = [
            f"{type(self).__name__}: an embedding by {self.encoder} of {components}, sent once.",
            "A feature party learns nothing about labels: it is sent nothing. Encryption: none.",
            "The label party learns an embedding of every row, from which columns can be rebuilt.",
        ]
        if self.is_fitted and self.leak_ is not None:
            lines.append(f"Of this party's columns: {self.leak_} (column {self.leak_.worst_column!r}).")
        if self.is_fitted:
            for peer, said in self.stated_.items():
                figures = f"relative MSE {said['relative_mse']:.2f}, worst column R² {said['worst_r2']:.2f}"
                lines.append(f"Of {peer}'s columns, by its own measurement: {figures}, at width {said['width']}.")
        return "\n".join(lines)

    def _encode(self, party: Party) -> None:
        """Learn an encoder, see what its embedding gives away, and send it if that is allowed."""
        require_columns(party)
        self.inputs_ = Inputs.learned(party.own_table, np.arange(len(party.own_table)))
        x, owners = self.inputs_.one_hot(party.own_table)
        n_components = self._n_components(x)
        if not n_components:
            raise DataError(
                f"{party.name} should have a column whose values vary, but all {len(x)} rows are alike. Bring others."
            )
        self.encoder_ = ENCODERS[self.encoder].learned(x, n_components, party)
        values, under = self._sent(party, "train")
        leak = measured_leak(values.astype(np.float64), x, owners, party.random.generator("leak"))
        # Both were looked at before anything was computed.
        allowed, per_column = (self.leak_budget or {})[party.name], (self.column_budget or {}).get(party.name)
        require_within_budget(leak, party.name, allowed, per_column)
        self.leak_ = leak
        party.label_party.send(Statement(values.shape[1], leak.relative_mse, leak.worst_r2))
        _send(party, values, under)

    def _n_components(self, x: Float64Array) -> int:
        """How many components an embedding of these numbers is of; 0 where all rows are alike."""
        most = len(principal_directions(x)[0])
        return min(self.components or width_by_variance(x, self.variance), most) if most else 0

    def _sent(self, party: Party, phase: Phase) -> tuple[Float32Array, tuple[str, ...]]:
        """The embedding of all rows as it will leave, and the defences that had a hand in it."""
        assert self.inputs_ is not None
        assert self.encoder_ is not None
        x, _ = self.inputs_.one_hot(party.own_table)
        embedding = torch.from_numpy(self.encoder_.encode(x))
        line, rows = party.label_party, np.arange(len(x))
        inputs = torch.from_numpy(x.astype(np.float32))
        at = At(0, 0, rows, phase, line.peer, Embedding, own={"embedding": embedding}, inputs=inputs)
        sent, names = applied(party.defences, "outgoing", embedding, at)
        return as_array(sent), names

    def _train(self, party: Party) -> None:
        """Take in what feature parties send, and train alone."""
        labels = self.learn_target(party)
        received = {}
        for line in party.feature_parties:
            said = line.receive(Statement)
            if not 1 <= said.width <= MOST_WIDE:
                raise ProtocolError(
                    f"{line.peer} announced an embedding of width {said.width}; 1 to {MOST_WIDE} are possible. "
                    "Check that both parties run the same plan."
                )
            if not (0 <= said.relative_mse <= 1 and 0 <= said.worst_r2 <= 1):
                raise ProtocolError(
                    f"{line.peer} should state a relative MSE and a worst column R² from 0 to 1, but states "
                    f"{said.relative_mse} and {said.worst_r2}. Check that both parties run the same version."
                )
            self.stated_[line.peer] = dict(vars(said))
            received[line.peer] = _receive(party, line.peer, said.width)
        if party.own_table.columns:
            self.inputs_ = Inputs.learned(party.own_table, np.arange(len(labels)))
        material = Material.of(self, party, received, "train")
        self.network_ = self._new_network()
        self.train_alone(party, material, labels)

    def _new_network(self) -> SoloNetwork:
        return SoloNetwork(self, [int(said["width"]) for said in self.stated_.values()])

    def _validate(self, party: Party) -> None:
        self._require_roles(party)
        self._require_settings(
            ("encoder", self.encoder in ENCODERS, f"one of {', '.join(ENCODERS)}"),
            ("components", self.components is None or is_count(self.components), "None or a whole number, at least 1"),
            ("variance", is_number(self.variance) and 0 < self.variance <= 1, "above 0 and at most 1"),
        )
        require_budgets(self.leak_budget, self.column_budget, party.roles.features)


class OneShot(OneShotNetwork):
    """A classifier for which feature parties send a label-free embedding once and are sent nothing.

    Its settings are those of `OneShotNetwork`. Nothing about labels reaches a feature party, by construction; what the
    label party could rebuild of a feature party's columns is measured, stated, and held to the owner's budget. It is
    measured from the embedding alone: with correlated columns of its own, the label party can rebuild more.

    >>> OneShot(leak_budget={"shop": 0.9}).encoder
    'pca'
    """

    task = "classification"
    target = Classes


class OneShotRegressor(OneShotNetwork):
    """A regression for which feature parties send a label-free embedding once and are sent nothing.

    Its settings are those of `OneShotNetwork`. What the label party could rebuild of a feature party's columns is
    measured as for `OneShot`: from the embedding alone.

    >>> OneShotRegressor(leak_budget={"shop": 0.9}).variance
    0.95
    """

    task = "regression"
    target = Numbers


def _send(party: Party, values: Float32Array, under: tuple[str, ...]) -> None:
    for number, rows in enumerate(in_order(np.arange(len(values)), ROWS_PER_MESSAGE)):
        party.label_party.send(Embedding(number, values[rows]), under=under, rows=rows, epoch=0)


def _receive(party: Party, peer: str, width: int) -> Float32Array:
    parts = []
    for number, rows in enumerate(in_order(np.arange(len(party.own_table)), ROWS_PER_MESSAGE)):
        message = party.peers[peer].receive(Embedding, shape=(len(rows), width), rows=rows, epoch=0)
        require_answer(message, message.values, number, peer)
        parts.append(message.values)
    return np.concatenate(parts)
