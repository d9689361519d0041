"""The names that plans and the command line may use: three explicit tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from colonnade.attacks.base import ActiveAttack, Attack
from colonnade.attacks.direct import DirectLabel
from colonnade.attacks.gradient_scores import DirectionScore, NormScore
from colonnade.defences.noise import GradientNoise
from colonnade.errors import PlanError
from colonnade.hooks import Defence
from colonnade.models.base import Estimator
from colonnade.models.split import SplitClassifier
from colonnade.table import nearest

T = TypeVar("T")

ATTACKS: Mapping[str, type[Attack] | type[ActiveAttack]] = {
    "direct-label": DirectLabel,
    "direction-score": DirectionScore,
    "norm-score": NormScore,
}

DEFENCES: Mapping[str, type[Defence]] = {
    "gradient-noise": GradientNoise,
}

MODELS: Mapping[str, type[Estimator]] = {
    "split-classifier": SplitClassifier,
}


def look_up(name: str, table: Mapping[str, T], what: str) -> T:
    """What a name stands for in one of the tables."""
    if name not in table:
        raise PlanError(f"There is no {what} {name!r}{nearest(name, table)}. Known are {', '.join(table)}.")
    return table[name]
