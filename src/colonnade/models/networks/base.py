"""What all models of networks share: their parameters, their limits, and the defences that predictions depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from numpy.typing import NDArray

from colonnade.devices import DEVICES
from colonnade.errors import DataError, PlanError
from colonnade.models.base import Estimator, role_of
from colonnade.models.batches import EPOCHS, PATIENCE, Batches, batch_sizes, counted, hold_out, ordered_batches
from colonnade.models.networks.messages import Embedding
from colonnade.models.networks.modules import BottomFactory, TopFactory
from colonnade.models.networks.share import require_columns
from colonnade.models.networks.targets import Classes, Target, learned_target
from colonnade.models.networks.tracks import holds_factory
from colonnade.models.networks.training import (
    OPTIMIZERS,
    EpochSchedule,
    OptimizerName,
    OptimizerSettings,
    PerNetwork,
    as_array,
)
from colonnade.parameters import Limit, choice, count, each, number, optional, or_auto
from colonnade.privacy.randomness import PublicRandomness, Randomness
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.hooks import applied
from colonnade.runtime.party import Defence, Party
from colonnade.storage import Tree
from colonnade.tables.encode import rare_levels
from colonnade.wire.message import Float32Array, Int64Array

SMALL_ROWS, SMALL_DECAY, MOST_DECAY = 2_500, 1_500.0, 6.0
"""Below how many rows a table is small; its weight decay by default, over its number of rows, and the largest."""

HELD_OUT, SMALL_HELD_OUT = 0.1, 0.2
"""The share of rows held out by default, of a large and of a small table."""


@dataclass(kw_only=True, eq=False, repr=False)
class NetworkModel(Estimator):
    """A model of networks that are trained in batches; only the label party knows what is predicted.

    Args:
        embedding: The width of each embedding before the top.
        bottom: A name ("mlp", "resnet-mlp", "cnn", "resnet-20") or a callable from `Inputs` and a width to a module.
        top: A name ("mlp", "linear") or a callable from two widths to a module.
        optimizer: "adam", "adamw" or "sgd".
        learning_rate: How far a step goes.
        weight_decay: At every party; "auto" is 0, but for a small table 1,500 over its number of rows (at most 6),
            beside the steps of Adam as AdamW has it. Small is a classifier's table of fewer than 2,500 rows where
            `epochs` is "auto".
        batch_size: Rows per step.
        epochs: Passes over the training rows, at most; "auto" makes 30, or as many as give 1,000 steps.
        n_iter_no_change: Epochs without improvement on held-out rows before training stops; "auto" waits for 5, or as
            many as give 100 steps. None trains to the end, and then nothing is held out.
        validation_fraction: The share of rows held out for early stopping; "auto" is 0.1, and 0.2 of a small table.
        device: "cpu", "cuda", or "auto" for a GPU where there is one; parties may differ.
    """

    target: ClassVar[type[Target]]
    local_params = frozenset({"device"})
    limits: ClassVar[Mapping[str, Limit]] = {
        "embedding": count(),
        "optimizer": each(choice(*OPTIMIZERS)),
        "learning_rate": each(number(above=0)),
        "weight_decay": or_auto(number(0)),
        "batch_size": count(),
        "epochs": or_auto(count()),
        "n_iter_no_change": optional(or_auto(count())),
        "validation_fraction": or_auto(number(above=0, below=1)),
        "device": choice(*DEVICES),
    }
    former_names: ClassVar[Mapping[str, str]] = {
        "optimiser": "optimizer",
        "patience": "n_iter_no_change",
        "validation": "validation_fraction",
    }

    embedding: int = 16
    bottom: PerNetwork[str | BottomFactory] = "mlp"
    top: str | TopFactory | None = "mlp"
    optimizer: PerNetwork[OptimizerName] = "adam"
    learning_rate: PerNetwork[float] = 3e-3
    weight_decay: float | Literal["auto"] = "auto"
    batch_size: int = 256
    epochs: int | Literal["auto"] = "auto"
    n_iter_no_change: int | Literal["auto"] | None = "auto"
    validation_fraction: float | Literal["auto"] = "auto"
    device: Literal["cpu", "cuda", "auto"] = "cpu"

    target_: Target | None = field(init=False)
    history_: list[dict[str, float]] = field(init=False)
    defences_: list[Tree] = field(init=False)

    @classmethod
    def example(cls) -> Self:
        return cls(epochs=3, batch_size=32, embedding=4, n_iter_no_change=2)

    def check_table(self, party: Party) -> tuple[str, ...]:
        table = party.own_table
        if party.holds_labels:
            learned_target(self.target, party)
        else:
            require_columns(party)
        self.schedule(party, len(table), party.shared)
        return tuple(rare_levels(table))

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, at the label party."""
        target = getattr(self, "target_", None)
        if not isinstance(target, Classes):
            raise AttributeError(f"This {type(self).__name__} holds no classes.")
        return target.classes

    def require_target(self) -> Target:
        """What is predicted, which the label party knows."""
        assert self.target_ is not None
        return self.target_

    def optimizer_settings(self, n_rows: int, momentum: float = 0.9) -> OptimizerSettings:
        """What the optimizers of a party's networks are made from, for a training on this number of rows."""
        if self.weight_decay != "auto":
            return OptimizerSettings(self.optimizer, self.learning_rate, momentum, self.weight_decay)
        decay = min(MOST_DECAY, SMALL_DECAY / max(1, n_rows)) if self.is_small(n_rows) else 0.0
        return OptimizerSettings(self.optimizer, self.learning_rate, momentum, decay, decoupled=decay > 0)

    def is_small(self, n_rows: int) -> bool:
        """Whether the defaults for small tables hold: not where the number of epochs was chosen by hand."""
        return self.epochs == "auto" and self.target is Classes and n_rows < SMALL_ROWS

    def held_out_on(self, n_rows: int) -> float:
        """The share of this number of rows that is held out."""
        if not self.n_iter_no_change:
            return 0.0
        if self.validation_fraction != "auto":
            return self.validation_fraction
        return SMALL_HELD_OUT if self.is_small(n_rows) else HELD_OUT

    def epochs_on(self, n_rows: int) -> int:
        """How many epochs a training on this number of rows takes at most."""
        n_held_out = round(self.held_out_on(n_rows) * n_rows)
        return counted(self.epochs, EPOCHS, len(batch_sizes(n_rows - n_held_out, self.batch_size)))

    def counted_on(self, n_rows: int) -> dict[str, Any]:
        """The parameters by which a training on this number of rows is counted, as if they had been chosen by hand."""
        chosen: dict[str, Any] = {"epochs": self.epochs_on(n_rows)}
        return chosen | ({"validation_fraction": self.held_out_on(n_rows)} if self.n_iter_no_change else {})

    def schedule(self, party: Party, n_rows: int, random: PublicRandomness | Randomness) -> EpochSchedule:
        """The rows to train on and those held out, in batches that follow from a source of randomness."""
        share = self.held_out_on(n_rows)
        train, held_out = hold_out(n_rows, share, random)
        if not len(train):
            raise DataError(
                f"{party.name} has {n_rows} rows and none is left to train on when validation_fraction = "
                f"{share} of them are held out. Bring more rows or set n_iter_no_change to None."
            )
        batches, held_out_batches = Batches(train, self.batch_size, random), ordered_batches(held_out, self.batch_size)
        patience = self.n_iter_no_change and counted(self.n_iter_no_change, PATIENCE, batches.per_epoch)
        return EpochSchedule(batches, held_out_batches, self.epochs_on(n_rows), patience)

    def admit_defences(self, party: Party) -> None:
        if party.holds_labels and not party.own_table.columns:
            for defence in party.defences:
                if defence.acts_on == (Embedding,):
                    raise PlanError(
                        f"{party.name} holds {defence.name}, which acts on embeddings, but sends none without columns. "
                        "Leave it out."
                    )
        super().admit_defences(party)

    def remember_defences(self, party: Party) -> None:
        """Take what predictions need of a party's defences into its share."""
        self.defences_ = [
            {"name": defence.name, "state": defence.state()} for defence in self._shaping_predictions(party)
        ]

    def restore_defences(self, party: Party) -> None:
        """Ready a party's defences for a prediction, as they were when training ended; refuses others."""
        self.admit_defences(party)
        held = self._shaping_predictions(party)
        found, wanted = [defence.name for defence in held], [learned["name"] for learned in self.defences_]
        if found != wanted:
            raise PlanError(
                f"{party.name} should predict with the defences of its training that predictions depend on, "
                f"{', '.join(wanted) or 'none'}; of that kind it now holds {', '.join(found) or 'none'}. Give it the "
                "same, with the same settings and in the same order; defences of other kinds may differ."
            )
        for defence, learned in zip(held, self.defences_, strict=True):
            defence.restore(learned["state"])

    @classmethod
    def is_factory(cls, name: str, value: Any) -> bool:
        return name in ("bottom", "top", "tracks") and holds_factory(value)

    def _shaping_predictions(self, party: Party) -> list[Defence]:
        _, sent = self.sides()[role_of(party)]
        return [defence for defence in party.defences if defence.affects_predictions(sent)]


def scored(
    target: Target,
    party: Party,
    outputs: Tensor,
    step: int,
    rows: Int64Array,
    track: Literal["federated", "local"] = "federated",
) -> Float32Array:
    """What a batch of outputs predicts, after the party's defences."""
    at = HookContext(step, 0, rows, "predict", track=track, outputs=outputs, n_classes=target.n_classes)
    scores, _ = applied(party.defences, "prediction", target.scores(outputs), at)
    return as_array(scores)
