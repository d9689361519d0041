"""Label-private shadow: feature parties are trained on labels randomised once; the true ones never leave.

    feature party                             label party
         ◀───────────────────────── EmbeddingWidth            once
         Embedding(batch) ─────────────────────────▶
         ◀──────────────────────────── Gradient(batch)        once per batch, by randomised labels
         Embedding(held-out rows) ─────────────────▶
         ◀─────────────────────────── EpochVerdict            once per epoch, by randomised labels
         Embedding(rows) ──────────────────────────▶          once, when that is over; once per prediction

First a split network is trained on randomised labels: the shadow. Then feature parties send the embeddings they have
learned, and the label party trains its main network on the true labels, alone; see `label_only`.

All that a feature party is ever sent is computed from labels that were randomised once, so its whole view is
epsilon-label-private (randomised response, Warner 1965; by post-processing), early stopping included. This bounds what
the feature party can infer about a single label. The classes are public: they are the ones that occur among the true
labels, so a class that only one row has is not hidden. Attacks can still do better than the feature party alone: many
noisy labels train a classifier. The label party learns the embeddings, from which columns can be reconstructed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import torch

from colonnade.errors import PlanError
from colonnade.models.base import Prediction
from colonnade.models.batches import ordered_batches
from colonnade.models.networks.label_only import LabelOnlyModel, TrainingInputs
from colonnade.models.networks.split import EmbeddingCollector, SplitClassifier, send_for_prediction
from colonnade.models.networks.targets import Classes, Target, learned_target
from colonnade.models.networks.tracks import Head
from colonnade.models.networks.training import as_array
from colonnade.parameters import Limit, number
from colonnade.privacy.mechanisms import RandomisedResponse
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.party import Defence, Party
from colonnade.storage import Tree
from colonnade.tables.encode import Inputs
from colonnade.tables.table import Table
from colonnade.wire.message import Float32Array, Int64Array, Message

NAME = "LabelDPShadow"


@dataclass(kw_only=True, eq=False, repr=False)
class LabelDPShadow(LabelOnlyModel):
    """A classifier whose feature parties see only what follows from labels randomised once, and how many classes occur.

    Args:
        epsilon: How private a label is; at 0.5 attacks were measured near what a feature party can do alone, at 1 well
            above it.

    The other settings are those of `NetworkModel`, and hold for the shadow and for the main network each.

    >>> LabelDPShadow(epsilon=0.5).task
    'classification'
    """

    task = "classification"
    target = Classes
    hooks: ClassVar[Mapping[str, frozenset[str]]] = SplitClassifier.hooks
    sends: ClassVar[Mapping[str, tuple[type[Message], ...]]] = SplitClassifier.sends
    randomises_labels = True
    limits: ClassVar[Mapping[str, Limit]] = {**LabelOnlyModel.limits, "epsilon": number(above=0)}

    epsilon: float = 0.5

    shadow_: SplitClassifier = field(init=False)
    n_received_: int = field(init=False)

    @classmethod
    def example(cls) -> Self:
        return super().example().set_params(epsilon=1.0)

    def fit(self, party: Party) -> Self:
        """Train the shadow together on randomised labels, then the main network alone on the true ones."""
        self.check_setup(party)
        self.shadow_ = self._new_shadow()
        self.target_ = self.inputs_ = self.network_ = None
        self.history_, self.n_received_ = [], len(party.feature_parties) if party.holds_labels else 0
        if not party.holds_labels:
            self.shadow_.fit(party)
            self._send(party)
            return self
        target, truth = learned_target(self.target, party)
        randomised = _Randomised(self._randomised(party, truth.numpy(), target))
        self.shadow_.fit(replace(party, defences=(randomised, *party.defences)))
        self.target_, table = target, party.own_table
        if table.columns:
            self.inputs_ = Inputs.learned(table, np.arange(len(table)))
        self.train_alone(party, self._collected(party), truth)
        self.shadow_.remember_defences(party)
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
        self.shadow_.restore_defences(party)
        if not party.holds_labels:
            self._send(party)
            return None
        return self.predict_alone(party, self._collected(party))

    def check_setup(self, party: Party) -> None:
        super().check_setup(party)
        self._new_shadow().check_setup(party)

    def check_columns(self, table: Table) -> None:
        super().check_columns(table)
        self.shadow_.check_columns(table)

    def share(self) -> Tree:
        return {**super().share(), "shadow": self.shadow_.share(), "n_received": self.n_received_}

    def take_share(self, tree: Tree) -> None:
        self.shadow_ = self._new_shadow()
        self.shadow_.take_share(tree["shadow"])
        self.n_received_ = tree["n_received"]
        super().take_share(tree)

    def widths(self) -> list[int]:
        return [self.embedding] * self.n_received_

    def summary(self) -> str:
        return "\n".join(
            [
                f"LabelDPShadow: a shadow on labels randomised once (epsilon {self.epsilon:g}), and a main network.",
                f"A feature party's view is {self.epsilon:g}-label-private, which classes there are being public; "
                "attacks can still exceed what it could do alone.",
                "The label party learns every embedding. Encryption: none.",
            ]
        )

    def _randomised(self, party: Party, truth: Int64Array, target: Target) -> Int64Array:
        """Every label, randomised once in the life of a run, and what that costs on the ledger."""
        response = RandomisedResponse(self.epsilon, target.n_outputs)
        random = party.random.child("randomised labels")
        drawn = party.once(
            "randomised labels", lambda: response.release(truth, random=random, ledger=party.ledger, by=NAME)
        )
        return np.asarray(drawn)

    def _send(self, party: Party) -> None:
        """Send the learned embedding of every row."""
        send_for_prediction(self.shadow_.learned(), party, party.label_party, self._batches(party))

    def _collected(self, party: Party) -> TrainingInputs:
        """Every feature party's embedding of every row, and the label party's own columns."""
        collector = EmbeddingCollector(self.shadow_.learned(), party, party.feature_parties)
        received: dict[str, list[Float32Array]] = {line.peer: [] for line in party.feature_parties}
        for step, rows in enumerate(self._batches(party)):
            collector.collect(step, rows, "predict")
            for peer, came in collector.received.items():
                received[peer].append(as_array(came))
        joined = {peer: np.concatenate(parts) for peer, parts in received.items()}
        # Networks behind the cut have learned with the shadow, and are used as they are.
        return TrainingInputs.of(self.inputs_, party, joined, "predict", self.machine())

    def _batches(self, party: Party) -> list[Int64Array]:
        return ordered_batches(np.arange(len(party.own_table)), self.batch_size)

    def _new_shadow(self) -> SplitClassifier:
        given = self.get_params()
        del given["epsilon"]
        return SplitClassifier(**given)


class _Randomised(Defence):
    """The randomised labels in the place of the true ones, wherever the shadow asks."""

    name = NAME

    def __init__(self, drawn: Int64Array) -> None:
        self.drawn = torch.from_numpy(drawn)

    def labels(self, labels: Tensor, at: HookContext) -> Tensor:
        return self.drawn.index_select(0, torch.from_numpy(at.rows)).to(labels.device)
