"""Fitting rules: how the label party fits coefficients to released curves.

A rule is told which rows to train on and how much of their known noise to take off, and returns coefficients. The
estimator judges them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from colonnade.curves import Basis
from colonnade.curves.basis import FloatArray
from colonnade.models.functional.guard import TrainingRows
from colonnade.models.functional.legacy import legacy_boost
from colonnade.models.functional.moments import Moments
from colonnade.models.functional.path import BoostingPath, Halves, PathStopping
from colonnade.models.functional.refit import joint_fit, low_rank
from colonnade.models.functional.solve import Penalties, SurfaceRoughness
from colonnade.runtime.party import Party


@dataclass(frozen=True)
class RuleFit:
    """What a rule has fitted.

    Attributes:
        w: The coefficients in coordinates, shape (features, size, outputs).
        selected: The features in the order they were selected; all for a joint fit.
        traces: Criteria along the way.
    """

    w: FloatArray
    selected: tuple[int, ...]
    traces: Mapping[str, list[float]]


@dataclass(frozen=True)
class FittingRule(ABC):
    """How coefficients are fitted to inputs in the basis x and outputs in the basis y."""

    is_judged: ClassVar[bool] = True
    """Whether folds judge how much of the noise to take off, and how much of the fit to take."""

    penalties: Penalties
    x: Basis
    y: Basis

    @cached_property
    def roughness(self) -> SurfaceRoughness:
        """The whitened roughness that is punished."""
        return self.penalties.roughness(self.x, self.y)

    def signs(self, party: Party, shape: tuple[int, ...]) -> FloatArray | None:
        """Random signs for an estimate of degrees of freedom, where the rule asks for one."""
        return None

    @abstractmethod
    def fit(self, party: Party, rows: TrainingRows, correction: float, *, without: int | None = None) -> RuleFit:
        """Fit to rows, perhaps without a fold, with a share of the noise taken off."""

    def _absolute(self, moments: Moments) -> Penalties:
        return self.penalties.absolute(moments.blocks.mean(axis=0) / moments.freedom, self.roughness)


@dataclass(frozen=True)
class JointRule(FittingRule):
    """All inputs at once, by penalised least squares."""

    def fit(self, party: Party, rows: TrainingRows, correction: float, *, without: int | None = None) -> RuleFit:
        unbiased = rows.moments("A", without=without) + rows.moments("B", without=without)
        moments = unbiased.for_training(correction)
        w = joint_fit(moments, self.roughness, self._absolute(moments))
        return RuleFit(w, tuple(range(len(w))), {"sse": [unbiased.total, unbiased.squared_error(w)]})


@dataclass(frozen=True)
class BoostingRule(FittingRule):
    """One input at a time; see `colonnade.models.functional.path`."""

    stopping: PathStopping
    shrinkage: float
    refit: Literal["none", "joint", "low-rank"]

    def signs(self, party: Party, shape: tuple[int, ...]) -> FloatArray | None:
        if self.stopping.criterion == "cv" or self.stopping.freedom == "exact":
            return None
        draw = party.random.generator("hutchinson")
        return draw.choice([-1.0, 1.0], size=(shape[0], self.stopping.probes * shape[1]))

    def fit(self, party: Party, rows: TrainingRows, correction: float, *, without: int | None = None) -> RuleFit:
        # Outputs are turned so that their roughness is diagonal, and the coefficients turned back.
        roughness, rotation = self.roughness, self.roughness.rotation[1]
        a, b = (rows.moments(half, without=without).rotated(rotation) for half in "AB")
        halves = Halves.of(a, b, correction)
        penalties = self._absolute(halves.train["F"])
        path = BoostingPath(halves, roughness, penalties, self.stopping, shrinkage=self.shrinkage, n_rows=len(rows.y))
        judged = "" if without is None else f" without fold {without}"
        name = f"boost with {1e6 * correction:.0f} millionths corrected{judged}"
        steps = party.steps(self.stopping.max_steps, path, name=name, shared=False)
        for _ in steps:
            path.step()
            steps.show(cv=path.traces["cv"][-1] / path.traces["cv"][0])
            if path.ended:
                steps.stop()
        w, n_steps = path.coefficients()
        selected = tuple(path.selected[:n_steps])
        if self.refit != "none":
            diagonal = SurfaceRoughness(roughness.x, np.diag(roughness.rotation[0]))
            w = joint_fit(halves.train["F"], diagonal, penalties, selected)
        if self.refit == "low-rank":
            w = low_rank(w, halves.train["F"], a + b)
        return RuleFit(w @ rotation.T, selected, path.traces)


@dataclass(frozen=True)
class LegacyRule(FittingRule):
    """The published algorithm on raw coefficients, turned into coordinates for everything that comes after."""

    is_judged: ClassVar[bool] = False

    stopping: PathStopping
    shrinkage: float

    def fit(self, party: Party, rows: TrainingRows, correction: float, *, without: int | None = None) -> RuleFit:
        x, y, penalties = self.x, self.y, self.penalties
        operators, selected, traces = legacy_boost(
            rows.z @ x.inverse_root,
            rows.y @ y.inverse_root,
            x.inverse_root @ rows.noise @ x.inverse_root,
            (x.penalty(penalties.operator_s), y.penalty(penalties.operator_t)),
            penalties,
            self.stopping,
            self.shrinkage,
            (rows.half("A"), rows.half("B")),
        )
        return RuleFit(x.inverse_root @ operators @ y.root, selected, traces)
