"""The names that plans and the command line may use: three explicit tables."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from colonnade.errors import MissingExtra, PlanError
from colonnade.table import nearest

if TYPE_CHECKING:
    from colonnade.attacks.base import ActiveAttack, Attack
    from colonnade.hooks import Defence
    from colonnade.models.base import Estimator

T = TypeVar("T")


class Names(Mapping[str, T], Generic[T]):
    """What names stand for; a class is imported when it is asked for, so that its extra is needed only then."""

    def __init__(self, what: str, homes: Mapping[str, tuple[str, str]]) -> None:
        self._what, self._homes = what, homes

    def __getitem__(self, name: str) -> T:
        """What a name stands for."""
        if name not in self._homes:
            raise PlanError(
                f"There is no {self._what} {name!r}.{nearest(name, self._homes)} Known are {', '.join(self._homes)}."
            )
        module, attribute = self._homes[name]
        try:
            found: T = getattr(importlib.import_module(f"colonnade.{module}"), attribute)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise MissingExtra("torch", f"The {self._what} {name!r}") from error
        return found

    def __iter__(self) -> Iterator[str]:
        """All names."""
        return iter(self._homes)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._homes)


ATTACKS: Names[type[Attack] | type[ActiveAttack]] = Names(
    "attack",
    {
        "direct-label": ("attacks.direct", "DirectLabel"),
        "direction-score": ("attacks.gradient_scores", "DirectionScore"),
        "norm-score": ("attacks.gradient_scores", "NormScore"),
    },
)

DEFENCES: Names[type[Defence]] = Names(
    "defence",
    {
        "gradient-noise": ("defences.noise", "GradientNoise"),
    },
)

MODELS: Names[type[Estimator]] = Names(
    "model",
    {
        "label-dp-shadow": ("models.labeldp", "LabelDPShadow"),
        "one-shot": ("models.oneshot", "OneShot"),
        "one-shot-regressor": ("models.oneshot", "OneShotRegressor"),
        "served-classifier": ("models.served", "ServedClassifier"),
        "served-regressor": ("models.served", "ServedRegressor"),
        "split-classifier": ("models.split", "SplitClassifier"),
        "split-regressor": ("models.split", "SplitRegressor"),
        "u-shape-classifier": ("models.ushape", "UShapeClassifier"),
        "u-shape-regressor": ("models.ushape", "UShapeRegressor"),
    },
)
