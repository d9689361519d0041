"""Fitting rules: how the label party fits coefficients to released curves.

A rule is told which rows to train on and how much of their known noise to take off, and returns coefficients. The
estimator judges them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from colonnade.curves import Basis
from colonnade.curves.basis import FloatArray
from colonnade.models.functional.guard import TrainingRows
from colonnade.models.functional.moments import Moments
from colonnade.models.functional.path import PATHS, BoostingPath, Halves, PathStopping
from colonnade.models.functional.solve import Penalties, SurfaceRoughness, solve_penalised
from colonnade.runtime.party import Party


@dataclass(frozen=True)
class RuleFit:
    """What a rule has fitted: coefficients in coordinates, shape (features, size, outputs), and criteria along the way.

    Features are in the order they were selected; a joint fit selects all.
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
        if not self.penalties.relative:
            return self.penalties
        return self.penalties.absolute(moments.blocks.mean(axis=0) / moments.freedom, self.roughness)


@dataclass(frozen=True)
class JointRule(FittingRule):
    """All inputs at once, by penalised least squares."""

    def fit(self, party: Party, rows: TrainingRows, correction: float, *, without: int | None = None) -> RuleFit:
        unbiased = rows.moments("F", without=without)
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
        every = {name: rows.moments(name, without=without) for name in PATHS}
        halves = Halves.of(every, correction).rotated(rotation)
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
            w = low_rank(w, halves.train["F"], every["F"].rotated(rotation))
        return RuleFit(w @ rotation.T, selected, path.traces)


def joint_fit(
    moments: Moments, roughness: SurfaceRoughness, penalties: Penalties, features: Sequence[int] | None = None
) -> FloatArray:
    """The penalised least squares of all outputs on some or all features at once, shape (all features, size, outputs).

    The moments are fit to train on, the penalties absolute.
    """
    n_features, size = moments.noise.shape[:2]
    chosen = np.arange(n_features) if features is None else np.asarray(sorted(set(features)), dtype=np.int64)
    fitted = np.zeros((n_features, size, moments.cross.shape[1]))
    if not len(chosen):
        return fitted
    kept = (chosen[:, None] * size + np.arange(size)).ravel()
    omega = roughness.of_inputs(len(chosen))
    gram = moments.gram[np.ix_(kept, kept)]
    gram, cross = (gram + gram.T) / (2 * moments.freedom), moments.cross[kept] / moments.freedom
    solved = solve_penalised(gram, cross, omega, roughness.y, penalties)
    fitted[chosen] = solved.reshape(len(chosen), size, -1)
    return fitted


def low_rank(fitted: FloatArray, moments: Moments, unbiased: Moments) -> FloatArray:
    """A joint fit with small singular values of each feature's coefficients taken off, and large ones shrunk.

    Taken in units in which a feature's inputs have variance 1, its coefficients have noise of about sqrt(v / m) in each
    entry, with v the variance left in the outputs and m the degrees of freedom left. The largest singular value of such
    noise is about 2 sqrt(size) times that, and what is no larger is taken off. Larger ones become sqrt(s^2 -
    threshold^2). The error is judged by the unbiased moments, before their repair.
    """
    features, size, outputs = fitted.shape
    used = [j for j in range(features) if fitted[j].any()]
    freedom = moments.freedom - len(used) * size
    if not used or freedom < 1:
        return fitted
    variance = max(unbiased.squared_error(fitted), 0.0) / (freedom * outputs)
    threshold = 2 * np.sqrt(max(size, outputs)) * np.sqrt(variance / freedom)
    blocks, shrunk = moments.blocks / moments.freedom, np.zeros_like(fitted)
    for j in used:
        root = np.linalg.cholesky(blocks[j] + 1e-12 * np.trace(blocks[j]) * np.eye(size))
        left, values, right = np.linalg.svd(root.T @ fitted[j], full_matrices=False)
        kept = np.sqrt(np.maximum(values**2 - threshold**2, 0.0))
        shrunk[j] = np.linalg.solve(root.T, (left * kept) @ right)
    return shrunk
