"""What all models of networks share: their settings, what they predict, and how a party's defences are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from colonnade.errors import DataError, PlanError
from colonnade.models.base import Estimator, is_count, is_number
from colonnade.models.batches import Batches, hold_out, in_order
from colonnade.models.networks.cut import party_role
from colonnade.models.networks.modules import BottomFactory, TopFactory
from colonnade.models.networks.targets import Classes, Target
from colonnade.models.networks.tracks import holds_factory
from colonnade.models.networks.training import (
    DEVICES,
    OPTIMISERS,
    OptimiserName,
    Optimisers,
    PerNetwork,
    Side,
    as_array,
    values_of,
)
from colonnade.privacy.randomness import Randomness
from colonnade.runtime.hooks import At, Defence, Tensor, applied, prepare
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.wire.message import Float32Array, Int64Array


class NetworkModel(Estimator):
    """A model of networks that are trained in batches, of which only the label party knows what is predicted."""

    target: ClassVar[type[Target]]
    local_params = frozenset({"device"})

    embedding: int
    bottom: PerNetwork[str | BottomFactory]
    top: str | TopFactory | None
    optimiser: PerNetwork[OptimiserName]
    learning_rate: PerNetwork[float]
    momentum: float
    weight_decay: float
    batch_size: int
    epochs: int
    patience: int | None
    validation: float
    device: Literal["cpu", "cuda", "auto"]

    target_: Target | None
    history_: list[dict[str, float]]
    defences_: list[Tree]

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

    def learn_target(self, party: Party) -> Tensor:
        """Learn from the label party's labels what is predicted; returns them encoded."""
        table = party.own_table
        if table.labels is None:
            raise DataError(f"{party.name} is the label party but its table has no labels. Name the label column.")
        labels = np.asarray(table.labels)
        self.target_ = self.target.learned(labels, party.name)
        return self.target_.encode(labels)

    def optimisers(self, networks: Mapping[str, nn.Module], party: str) -> Optimisers:
        """The optimisers of one party's networks."""
        return Optimisers(
            networks,
            party,
            optimiser=self.optimiser,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )

    def run_epochs(
        self,
        party: Party,
        n_rows: int,
        random: Randomness,
        side_on: Callable[[Int64Array], Side],
        *,
        name: str,
        shared: bool = True,
    ) -> list[dict[str, float]]:
        """Train one side until its epochs are over, or it ends earlier; returns the history.

        Args:
            party: Whose side it is.
            n_rows: How many rows there are, those to be held out included.
            random: Where batches and held-out rows come from.
            side_on: Makes the side, given the rows to train on.
            name: What the loop is called.
            shared: Whether the other parties take the same steps.
        """
        train, held_out = hold_out(n_rows, self.validation if self.patience else 0.0, random)
        if not len(train):
            raise DataError(
                f"{party.name} has {n_rows} rows, of which none is left to train on when "
                f"{self.validation:.0%} are held out. Bring more rows or set patience to None."
            )
        batches, held_out_batches = Batches(train, self.batch_size, random), in_order(held_out, self.batch_size)
        side = side_on(train)
        steps = party.steps(self.epochs * batches.per_epoch, side, name=name, shared=shared)
        for step in steps:
            epoch, rows = batches.at(step)
            steps.show(**side.train(step, epoch, rows))
            if (step + 1) % batches.per_epoch == 0 and side.ends_after(epoch, held_out_batches):
                steps.stop()
        side.finish()
        return side.history

    def scored(
        self,
        party: Party,
        outputs: Tensor,
        step: int,
        rows: Int64Array,
        *,
        track: Literal["federated", "local"] = "federated",
    ) -> Float32Array:
        """What a batch of outputs predicts, after the party's defences."""
        target = self.require_target()
        at = At(step, 0, rows, "predict", track=track, outputs=outputs, n_classes=target.n_classes)
        scores, _ = applied(party.defences, "prediction", target.scores(outputs), at)
        return as_array(scores)

    def remember(self, party: Party) -> None:
        """Take what predictions need of a party's defences into its share."""
        self.defences_ = [
            {"name": defence.name, "state": defence.state()} for defence in self._shaping_predictions(party)
        ]

    def prepare(self, party: Party) -> None:
        """Ready a party's defences for a prediction, as they were when training ended; refuses others."""
        self._prepare(party)
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

    def _shaping_predictions(self, party: Party) -> list[Defence]:
        _, sent = self.sides()[party_role(party)]
        return [defence for defence in party.defences if defence.shapes_predictions(sent)]

    @classmethod
    def is_factory(cls, name: str, value: Any) -> bool:
        """Whether a saved parameter names a callable that must be given again."""
        return name in ("bottom", "top", "tracks") and holds_factory(value)

    def _prepare(self, party: Party) -> None:
        """Ready a party's defences for a run; refuses those that the model would never ask."""
        sides = self.sides()
        prepare(party, *sides[party_role(party)], type(self).__name__, sides)

    def _require_roles(self, party: Party) -> None:
        if party.roles.label is None or not party.roles.features:
            raise PlanError(
                f"{type(self).__name__} needs a label party and at least one feature party, but the roles are "
                f"{party.roles}. Name both."
            )

    def _require_settings(self, *others: tuple[str, bool, str]) -> None:
        """Refuse settings that mean nothing: those that all such models have, and others as (name, holds, wanted)."""
        rates, kinds = values_of(self.learning_rate), values_of(self.optimiser)
        for name, holds, wanted in (
            ("embedding", is_count(self.embedding), "a whole number, at least 1"),
            ("batch_size", is_count(self.batch_size), "a whole number, at least 1"),
            ("epochs", is_count(self.epochs), "a whole number, at least 1"),
            ("learning_rate", all(is_number(rate) and rate > 0 for rate in rates), "above 0"),
            ("momentum", is_number(self.momentum) and 0 <= self.momentum < 1, "from 0 to below 1"),
            ("weight_decay", is_number(self.weight_decay) and self.weight_decay >= 0, "at least 0"),
            ("validation", is_number(self.validation) and 0 < self.validation < 1, "between 0 and 1"),
            ("patience", self.patience is None or is_count(self.patience), "None or a whole number, at least 1"),
            ("optimiser", all(kind in OPTIMISERS for kind in kinds), "'adam', 'adamw' or 'sgd'"),
            ("device", self.device in DEVICES, "'cpu', 'cuda' or 'auto'"),
            *others,
        ):
            if not holds:
                raise PlanError(
                    f"{type(self).__name__}'s {name} should be {wanted}, but is {getattr(self, name)!r}. Change it."
                )
