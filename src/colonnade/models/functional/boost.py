"""Functional boosting: curves of several parties, one party's curves to predict, one feature at a time.

    feature party                                    label party
         Offer ───────────────────────────────────────▶          once
         ReleasedCurves(column) ──────────────────────▶          once per column
         ◀───────────────────────────── Surface(column)          once per column of a prediction, inputs="partial"
         PartialPrediction ───────────────────────────▶          once per prediction, inputs="partial"

The label party learns the columns' names, basis, clip radius and noise, and every released curve. In training a feature
party learns nothing, not even whether its columns are used. A prediction with inputs="released" releases the new curves
as in training. With inputs="partial" a feature party learns the coefficients of its own columns, which depend on
everybody's data, and the label party the exact part of each prediction that these columns make; neither is private, and
the ledgers say so. Privacy covers the inputs: coefficients are a function of the outputs as they are.

Buehlmann & Yu 2003, "Boosting with the L2 loss"; the paths are those of colonnade.models.functional.path, the release
that of colonnade.models.functional.release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from colonnade.curves.basis import FloatArray
from colonnade.errors import PlanError
from colonnade.models.functional.estimator import Fit, FunctionalEstimator
from colonnade.models.functional.exchange import Clip, Inputs
from colonnade.models.functional.guard import Rows
from colonnade.models.functional.legacy import legacy_boost
from colonnade.models.functional.path import BoostingPath, Freedom, Halves, Rules, Stop
from colonnade.models.functional.refit import joint_fit, low_rank
from colonnade.models.functional.release import Metric
from colonnade.models.functional.solve import Roughness
from colonnade.privacy.ledger import Adjacency
from colonnade.runtime.party import Party


class FunctionalBoost(FunctionalEstimator):
    """Boosting of curves on curves: selects the inputs that matter, from releases that may be private.

    Args:
        shrinkage: How much of each increment is added.
        max_steps: The longest path.
        min_steps: How long a path is at least; the best of all its steps is taken.
        patience: Steps without a new minimum of the criterion before the path ends.
        stop: The criterion: "cv" (each half of the rows judges the other), "aic" or "aicc".
        freedom: How "aic" and "aicc" count degrees of freedom: "exact", or "hutchinson", which is an estimate.
        probes: How many random signs per output Hutchinson's estimate takes.
        refit: "none", "joint" (all selected inputs at once, without shrinkage), or "low-rank" (that, with small
            singular values of each surface taken off).
        algorithm: "honest", or "legacy", which follows the published algorithm to the letter and is for comparison
            only: increments estimate the whole and are added, and its cross-validation is not out of sample.

    The other arguments are those of `FunctionalRegression`.

    >>> FunctionalBoost(stop="aicc").max_steps
    150
    """

    def __init__(
        self,
        *,
        shrinkage: float = 0.3,
        max_steps: int = 150,
        min_steps: int = 10,
        patience: int = 6,
        stop: Stop = "cv",
        freedom: Freedom = "exact",
        probes: int = 5,
        refit: Literal["none", "joint", "low-rank"] = "none",
        algorithm: Literal["honest", "legacy"] = "honest",
        lambda_s: float = 0.05,
        lambda_t: float = 0.05,
        lambda_st: float = 0.0,
        relative: bool = False,
        operator_s: int | Sequence[float] = 2,
        operator_t: int | Sequence[float] = 2,
        clip: Clip = None,
        noise: float | Mapping[str, float] = 0.0,
        epsilon: float | None = None,
        delta: float = 1e-5,
        n_curves: int | None = None,
        metric: Metric = "l2",
        adjacency: Adjacency = "replace-one",
        correction: float | Literal["cv"] = "cv",
        guard: bool = True,
        inputs: Inputs = "released",
        hold_out: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(
            lambda_s=lambda_s,
            lambda_t=lambda_t,
            lambda_st=lambda_st,
            relative=relative,
            operator_s=operator_s,
            operator_t=operator_t,
            clip=clip,
            noise=noise,
            epsilon=epsilon,
            delta=delta,
            n_curves=n_curves,
            metric=metric,
            adjacency=adjacency,
            correction=correction,
            guard=guard,
            inputs=inputs,
            hold_out=hold_out,
        )
        self.shrinkage = shrinkage
        self.max_steps = max_steps
        self.min_steps = min_steps
        self.patience = patience
        self.stop = stop
        self.freedom = freedom
        self.probes = probes
        self.refit = refit
        self.algorithm = algorithm

    def _fitted(
        self, party: Party, rows: Rows, roughness: Roughness, correction: float, *, without: int | None = None
    ) -> Fit:
        rules = Rules(
            self.shrinkage, self.max_steps, self.min_steps, self.patience, self.stop, self.freedom, len(rows.y)
        )
        if self.algorithm == "legacy":
            return self._legacy(rows, rules)
        rotation = roughness.rotation[1]
        a, b = (rows.moments(half, without=without).rotated(rotation) for half in "AB")
        halves = Halves.of(a, b, correction)
        penalties = self._penalties(halves.train["F"], roughness)
        path = BoostingPath(halves, roughness, penalties, rules)
        judged = "" if without is None else f" without fold {without}"
        name = f"boost with {1e6 * correction:.0f} millionths corrected{judged}"
        steps = party.steps(self.max_steps, path, name=name, shared=False)
        for _ in steps:
            path.step()
            steps.show(cv=path.traces["cv"][-1] / path.traces["cv"][0])
            if path.ended:
                steps.stop()
        w, n_steps = path.coefficients()
        selected = tuple(path.selected[:n_steps])
        if self.refit != "none":
            diagonal = Roughness(roughness.x, np.diag(roughness.rotation[0]))
            w = joint_fit(halves.train["F"], diagonal, penalties, selected)
        if self.refit == "low-rank":
            w = low_rank(w, halves.train["F"], a + b)
        return Fit(w @ rotation.T, selected, path.traces)

    def _signs(self, party: Party, shape: tuple[int, ...]) -> FloatArray | None:
        if self.stop == "cv" or self.freedom == "exact":
            return None
        draw = party.random.generator("hutchinson")
        return draw.choice([-1.0, 1.0], size=(shape[0], self.probes * shape[1]))

    def _legacy(self, rows: Rows, rules: Rules) -> Fit:
        """The published algorithm on raw coefficients, turned into coordinates for everything that comes after."""
        x, y = self.design_.basis, self.y_basis_
        operators, selected, traces = legacy_boost(
            rows.z @ x.inverse_root,
            rows.y @ y.inverse_root,
            x.inverse_root @ rows.noise @ x.inverse_root,
            (self.omega_x_, self.omega_y_),
            (self.lambda_s, self.lambda_t, self.lambda_st),
            rules,
            (rows.half("A"), rows.half("B")),
        )
        return Fit(x.inverse_root @ operators @ y.root, selected, traces)

    def _judged(self, party: Party, rows: Rows, roughness: Roughness) -> tuple[float, float]:
        return (1.0, 1.0) if self.algorithm == "legacy" else super()._judged(party, rows, roughness)

    def _validate(self, party: Party) -> None:
        super()._validate(party)
        for name, holds, wanted in (
            ("shrinkage", 0 < self.shrinkage <= 1, "above 0 and at most 1"),
            ("max_steps", self.max_steps >= 1, "at least 1"),
            ("min_steps", 1 <= self.min_steps <= self.max_steps, f"from 1 to max_steps ({self.max_steps})"),
            ("patience", self.patience >= 1, "at least 1"),
            ("stop", self.stop in ("cv", "aic", "aicc"), "'cv', 'aic' or 'aicc'"),
            ("freedom", self.freedom in ("exact", "hutchinson"), "'exact' or 'hutchinson'"),
            ("probes", self.probes >= 1, "at least 1"),
            ("refit", self.refit in ("none", "joint", "low-rank"), "'none', 'joint' or 'low-rank'"),
            ("algorithm", self.algorithm in ("honest", "legacy"), "'honest' or 'legacy'"),
        ):
            if not holds:
                raise PlanError(
                    f"FunctionalBoost's {name} should be {wanted}, but is {getattr(self, name)!r}. Change it."
                )
