"""Regression and boosting of curves: curves of several parties, one party's curves to predict.

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

Ramsay & Silverman 2005, "Functional data analysis", chapter 16; Buehlmann & Yu 2003, "Boosting with the L2 loss". The
fitting rules are those of colonnade.models.functional.rules, the release that of colonnade.models.functional.release.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np

from colonnade.curves import Basis, Curves
from colonnade.curves.basis import FloatArray
from colonnade.models.functional.exchange import CurveDesign, NewInputs, OwnCurves, PastReleases
from colonnade.models.functional.guard import TrainingRows
from colonnade.models.functional.legacy import LegacyRule
from colonnade.models.functional.model import CurveModel, CurvePrediction, LearnedCurves, combined, response
from colonnade.models.functional.path import PathStopping
from colonnade.models.functional.release import Protection, Release, cost
from colonnade.models.functional.rules import BoostingRule, FittingRule, JointRule, RuleFit
from colonnade.models.functional.solve import Penalties
from colonnade.parameters import Limit, choice, is_integer, number, optional, settings_of, truth
from colonnade.runtime.party import Party
from colonnade.storage import Tree

_PENALTIES, _PROTECTION, _STOPPING = Penalties(0.05, 0.05), Protection(), PathStopping()
_SHARE = number(0, most=1)
_FOLD = Limit(
    lambda value: (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(map(is_integer, value))
        and 1 <= value[0] <= value[1] >= 2
    ),
    "a fold, counted from 1, and how many there are",
    ((0, 2), (3, 2), (1, 1), (1,), 3),
)


@dataclass(frozen=True)
class LearnedFit(LearnedCurves):
    """What the label party learns, and how.

    Attributes:
        path: The columns in the order they were selected, one fit after the other; all for a regression.
        traces: Criteria along the way, likewise.
        factor: How much of the fit is taken.
        fitted: The fits to the rows that were trained on.
    """

    path: list[str]
    traces: dict[str, list[float]]
    factor: float
    fitted: Curves


@dataclass(kw_only=True, eq=False, repr=False)
class FunctionalEstimator(CurveModel):
    """A regression of curves on released curves of several parties, by a fitting rule."""

    limits: ClassVar[Mapping[str, Limit]] = {
        "correction": Limit(
            lambda value: value == "cv" or _SHARE.holds(value), "'cv' or a number from 0 to 1", (-0.1, 1.1, "aic", None)
        ),
        "guard": truth(),
        "inputs": choice("released", "partial"),
        "hold_out": optional(_FOLD),
    }

    penalties: Penalties | Mapping[str, Any] = _PENALTIES
    protection: Protection | Mapping[str, Any] = _PROTECTION
    correction: float | Literal["cv"] = "cv"
    guard: bool = True
    inputs: NewInputs = "released"
    hold_out: tuple[int, int] | None = None

    held_: OwnCurves = field(init=False)
    past_: PastReleases = field(init=False)
    path_: list[str] = field(init=False)
    traces_: dict[str, list[float]] = field(init=False)
    factor_: float = field(init=False)
    fitted_: Curves = field(init=False)

    @property
    def _penalties(self) -> Penalties:
        return settings_of(self.penalties, _PENALTIES, f"{type(self).__name__}'s penalties")

    @property
    def _protection(self) -> Protection:
        return settings_of(self.protection, _PROTECTION, f"{type(self).__name__}'s protection")

    @abstractmethod
    def fitting_rule(self, x: Basis, y: Basis) -> FittingRule:
        """How coefficients are fitted to inputs in one basis and outputs in another."""

    def fit(self, party: Party) -> Self:
        self.check_setup(party)
        self.admit_defences(party)
        if party.holds_labels:
            self.keep(self._learned(party))
        else:
            self.held_ = self._released(party)
            self.past_ = PastReleases.of(party, self.held_)
        return self

    def _released(self, party: Party) -> OwnCurves:
        """A feature party's side: offer all columns, and release each."""
        own = OwnCurves.of(party, self._protection, type(self).__name__)
        party.label_party.send(own.offer())
        own.send(party, "fit")
        return own

    def _learned(self, party: Party) -> LearnedFit:
        """The label party's side: collect all columns, and fit; under noise folds judge what is taken."""
        y = response(party)
        design = CurveDesign.collected(party, self._protection, type(self).__name__)
        z = design.receive(party)
        if self.hold_out is not None:
            # Folds are cut from what was released, in the order of rows.
            fold, folds = self.hold_out
            kept = np.setdiff1d(np.arange(len(y)), np.array_split(np.arange(len(y)), folds)[fold - 1])
            z, y = z[kept], y.take(kept)
        rule = self.fitting_rule(design.basis, y.basis)
        order = party.shared.generator("parts").permutation(len(y)).astype(np.int64)
        signs = rule.signs(party, y.coefficients.shape)
        rows = TrainingRows.of(z, y.coordinates, design.noise, order, signs)
        factor, fits = self._fitted(party, rows, rule)
        w, z_mean, y_mean = factor * np.mean([fit.w for fit in fits], axis=0), z.mean(axis=0), rows.y.mean(axis=0)
        names = design.names
        path = [names[place] for fit in fits for place in fit.selected]
        traces = {name: [each for fit in fits for each in fit.traces[name]] for name in fits[0].traces}
        fitted = Curves.of_coordinates(combined(z, z_mean, w, y_mean), y.basis)
        selected = tuple(dict.fromkeys(path)) if factor else ()
        return LearnedFit(design, y.basis, w, z_mean, y_mean, selected, path, traces, factor, fitted)

    def _fitted(self, party: Party, rows: TrainingRows, rule: FittingRule) -> tuple[float, Sequence[RuleFit]]:
        """How much of a fit to take, and the fits whose mean it is, with as much noise taken off as is best.

        Each fold judges a fit to the others; the first also chooses how much noise is taken off, which takes less time
        than if all did. A guard promises only what was judged. It takes those fits, and none to all rows: where noise
        leaves the moments nearly singular, such a fit can be a thousand times as large. Without noise there is nothing
        to take off and nothing to judge.
        """
        share = 1.0 if self.correction == "cv" else float(self.correction)
        if not (rule.is_judged and rows.noise.any()) or (self.correction != "cv" and not self.guard):
            return 1.0, [rule.fit(party, rows, share if rule.is_judged else 1.0)]
        fits: dict[float, list[RuleFit]] = {
            correction: [] for correction in (rows.corrections() if self.correction == "cv" else (share,))
        }
        for fold in rows.folds:
            for correction, found in fits.items():
                found.append(rule.fit(party, rows, correction, without=fold))
            if fold in (rows.folds[0], rows.folds[-1]):
                verdicts = {each: rows.judge([fit.w for fit in fits[each]], self.inputs) for each in fits}
                best = max(verdicts, key=lambda each: verdicts[each].merit if self.guard else verdicts[each].gain)
                fits = {best: fits[best]}
        return (verdicts[best].factor, fits[best]) if self.guard else (1.0, [rule.fit(party, rows, best)])

    def predict(self, party: Party) -> CurvePrediction | None:
        """Predict together with the other parties; only the label party learns the result.

        With `inputs="released"` feature parties release their new curves, noised and charged. With `inputs="partial"`
        an owner is given the coefficients of its columns, and gives the exact part of the prediction that they make.
        """
        self.require_fitted("used to predict")
        self.admit_defences(party)
        if party.holds_labels:
            partial = self.inputs == "partial"
            return self.predicted(self.from_parts(party) if partial else self.combined(self.design_.receive(party)))
        if self.inputs == "partial":
            self.held_.partial(party)
        else:
            self.past_.carry_over(party)
            self.held_.send(party, "predict")
        return None

    @property
    def is_mean_(self) -> bool:
        """Whether the mean is predicted, because nothing certain is to be gained over it."""
        return self.factor_ == 0

    @property
    def sigma_(self) -> dict[str, FloatArray]:
        """The covariance of each column's noise, on raw coefficients."""
        inverse = self.design_.basis.inverse_root
        return {
            name: inverse @ noise @ inverse for name, noise in zip(self.design_.names, self.design_.noise, strict=True)
        }

    @property
    def omega_x_(self) -> FloatArray:
        """The roughness of inputs, of raw coefficients."""
        return self.design_.basis.penalty(self._penalties.operator_s)

    @property
    def omega_y_(self) -> FloatArray:
        """The roughness of outputs, of raw coefficients."""
        return self.y_basis_.penalty(self._penalties.operator_t)

    def privacy(self) -> dict[str, float]:
        """What a record's curves in all released columns cost together, at the label party: exact, and by zCDP."""
        asked = self._protection
        mus = [
            Release(clip, sigma, asked.metric, asked.adjacency).sensitivity(self.design_.basis) / sigma
            for clip, sigma in zip(self.design_.clips, self.design_.sigmas, strict=True)
            if sigma > 0
        ]
        epsilon, zcdp, rho = cost(np.array(mus), asked.delta) if mus else (np.inf, np.inf, np.inf)
        return {"epsilon": epsilon, "zcdp_epsilon": zcdp, "rho": rho, "delta": asked.delta}

    def share(self) -> Tree:
        if hasattr(self, "held_"):
            return {"held": self.held_.state(), "past": dict(vars(self.past_))}
        return {
            **self.label_share(),
            "fitted": self.fitted_.coefficients,
            "path": list(self.path_),
            "traces": self.traces_,
            "factor": self.factor_,
        }

    def take_share(self, tree: Tree) -> None:
        if "held" in tree:
            self.held_, self.past_ = OwnCurves.from_state(tree["held"]), PastReleases(**tree["past"])
            return
        self.take_label_share(tree)
        self.fitted_, self.path_ = Curves(tree["fitted"], self.y_basis_), list(tree["path"])
        self.traces_, self.factor_ = tree["traces"], tree["factor"]

    def summary(self) -> str:
        penalties = self._penalties
        lines = [
            f"{type(self).__name__}: curves on curves; penalties {penalties.s:g}, {penalties.t:g}, {penalties.st:g}"
            f"{' relative to the data' if penalties.relative else ''}.",
            "Encryption: none; a receiver reads what it is sent. Threat model: curious parties that keep to the rules.",
            "The label party learns every released curve. A feature party learns nothing in training.",
        ]
        if self.inputs == "partial":
            lines.append(
                "Of a prediction a feature party learns its own coefficients, which depend on the outputs, and the "
                "label party the exact part that its columns make."
            )
        lines.append(str(self._protection))
        if hasattr(self, "w_"):
            used = ", ".join(self.selected_) or "none: the mean is predicted"
            lines.append(f"This share: coefficients of {len(self.design_.names)} columns; used are {used}.")
        return "\n".join(lines)

    def check_table(self, party: Party) -> tuple[str, ...]:
        if party.holds_labels:
            response(party)
        else:
            OwnCurves.of(party, self._protection, type(self).__name__)
        return ()

    def check_setup(self, party: Party) -> None:
        super().check_setup(party)
        # Every party refuses a mapping that makes no sense, whether or not its side reads it.
        _ = self._penalties, self._protection


class FunctionalRegression(FunctionalEstimator):
    """Penalised regression of curves on all curves jointly, from releases that may be differentially private.

    Args:
        penalties: How strongly roughness of coefficient surfaces is punished: `Penalties`, or a mapping of its fields.
        protection: How curves are clipped and noised before they are released: `Protection`, or a mapping.
        correction: How much of the noise is taken off the moments that are trained on; "cv" chooses.
        guard: Whether to take only as much of the fit, perhaps nothing, as surely gains over the mean on unseen rows,
            where released noise leaves that in doubt.
        inputs: How new curves enter a prediction: "released" or "partial".
        hold_out: A fold, counted from 1, and how many there are: rows of that fold are released with the others, so
            that every record is released once whatever is held out, and not trained on.

    >>> FunctionalRegression(penalties=Penalties(s=1.0)).get_params()["penalties"].s
    1.0
    """

    @classmethod
    def example(cls) -> Self:
        return cls(protection=Protection(clip=3.0, noise=0.2), inputs="partial")

    def fitting_rule(self, x: Basis, y: Basis) -> FittingRule:
        return JointRule(self._penalties, x, y)


@dataclass(kw_only=True, eq=False, repr=False)
class FunctionalBoost(FunctionalEstimator):
    """Boosting of curves on curves: selects the inputs that matter, from releases that may be private.

    Args:
        stopping: When the path ends: `PathStopping`, or a mapping.
        shrinkage: How much of each increment is added.
        refit: "none", "joint" (all selected inputs at once, without shrinkage), or "low-rank" (that, with small
            singular values of each surface taken off).
        algorithm: "honest", or "legacy", which follows the published algorithm to the letter and is for comparison
            only: increments estimate the whole and are added, and its cross-validation is not out of sample.

    The other arguments are those of `FunctionalRegression`.

    >>> FunctionalBoost(stopping=PathStopping(criterion="aicc")).shrinkage
    0.3
    """

    limits: ClassVar[Mapping[str, Limit]] = {
        **FunctionalEstimator.limits,
        "shrinkage": number(above=0, most=1),
        "refit": choice("none", "joint", "low-rank"),
        "algorithm": choice("honest", "legacy"),
    }

    stopping: PathStopping | Mapping[str, Any] = _STOPPING
    shrinkage: float = 0.3
    refit: Literal["none", "joint", "low-rank"] = "none"
    algorithm: Literal["honest", "legacy"] = "honest"

    @classmethod
    def example(cls) -> Self:
        protection, stopping = Protection(clip=3.0, noise=0.2), PathStopping(max_steps=4, min_steps=2)
        return cls(protection=protection, stopping=stopping, correction=1.0, inputs="partial")

    @property
    def _stopping(self) -> PathStopping:
        return settings_of(self.stopping, _STOPPING, "FunctionalBoost's stopping")

    def fitting_rule(self, x: Basis, y: Basis) -> FittingRule:
        if self.algorithm == "legacy":
            return LegacyRule(self._penalties, x, y, self._stopping, self.shrinkage)
        return BoostingRule(self._penalties, x, y, self._stopping, self.shrinkage, self.refit)

    def check_setup(self, party: Party) -> None:
        super().check_setup(party)
        _ = self._stopping
