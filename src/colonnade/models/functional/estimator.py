"""FunctionalEstimator: what regression and boosting of curves have in common, which is all but the fit itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from colonnade.curves import Curves
from colonnade.curves.basis import FloatArray
from colonnade.errors import PlanError
from colonnade.models.functional.exchange import (
    Clip,
    Design,
    Held,
    Inputs,
    PastReleases,
    Protection,
)
from colonnade.models.functional.guard import Rows
from colonnade.models.functional.model import CurveModel, CurvePrediction, response
from colonnade.models.functional.moments import Moments
from colonnade.models.functional.release import Metric, cost, refuse_presence
from colonnade.models.functional.solve import Penalties, Roughness
from colonnade.privacy.ledger import Adjacency
from colonnade.runtime.hooks import prepare_defences
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.wire.message import Int64Array

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Fit:
    """What the label party has fitted.

    Attributes:
        w: The coefficients in coordinates, shape (features, size, outputs).
        selected: The features in the order they were selected; all for a regression.
        traces: Criteria along the way.
    """

    w: FloatArray
    selected: tuple[int, ...]
    traces: Mapping[str, list[float]]


class FunctionalEstimator(CurveModel):
    """A regression of curves on curves of several parties; what the fits have in common."""

    held_: Held
    past_: PastReleases
    traces_: dict[str, list[float]]
    factor_: float

    def __init__(
        self,
        *,
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
        self.lambda_s = lambda_s
        self.lambda_t = lambda_t
        self.lambda_st = lambda_st
        self.relative = relative
        self.operator_s = operator_s
        self.operator_t = operator_t
        self.clip = clip
        self.noise = noise
        self.epsilon = epsilon
        self.delta = delta
        self.n_curves = n_curves
        self.metric = metric
        self.adjacency = adjacency
        self.correction = correction
        self.guard = guard
        self.inputs = inputs
        self.hold_out = hold_out

    @property
    def protection(self) -> Protection:
        """How curves are released."""
        return Protection(self.clip, self.noise, self.epsilon, self.delta, self.n_curves, self.metric, self.adjacency)

    def fit(self, party: Party) -> Self:
        """Train together with the other parties; afterwards this holds the party's share."""
        self._validate(party)
        prepare_defences(party, frozenset(), (), type(self).__name__)
        if party.holds_labels:
            self._fit_label_side(party)
        else:
            self.held_ = Held.of(party, self.protection, type(self).__name__)
            party.label_party.send(self.held_.offer())
            self.held_.send(party, "fit")
            self.past_ = PastReleases.of(party, self.held_)
        return self

    def predict(self, party: Party) -> CurvePrediction | None:
        """Predict together with the other parties; only the label party learns the result.

        With `inputs="released"` feature parties release their new curves, noised and charged. With `inputs="partial"`
        an owner is given the coefficients of its columns, and gives the exact part of the prediction that they make.
        """
        self.require_fitted("used to predict")
        prepare_defences(party, frozenset(), (), type(self).__name__)
        if not party.holds_labels:
            if self.inputs == "partial":
                self.held_.partial(party)
            else:
                self.past_.carry_over(party)
                self.held_.send(party, "predict")
            return None
        if self.inputs == "partial":
            return self.predicted(self.from_parts(party))
        return self.predicted(self.combined(self.design_.receive(party)))

    @abstractmethod
    def _fitted(
        self, party: Party, rows: Rows, roughness: Roughness, correction: float, *, without: int | None = None
    ) -> Fit:
        """Fit to the label party's rows, perhaps without a fold, having taken off so much of the noise."""

    def _signs(self, party: Party, shape: tuple[int, ...]) -> FloatArray | None:
        """Random signs for an estimate of degrees of freedom, where one is asked for."""
        return None

    def _fit_label_side(self, party: Party) -> None:
        y = response(party)
        self.design_ = Design.collected(party, self.protection, type(self).__name__)
        self.y_basis_ = y.basis
        z = self.design_.receive(party)
        if self.hold_out is not None:
            kept = self._trained_on(len(y))
            z, y = z[kept], y.take(kept)
        order = party.shared.generator("parts").permutation(len(y)).astype(np.int64)
        signs = self._signs(party, y.coefficients.shape)
        rows = Rows.of(z, y.coordinates, self.design_.noise, order, signs)
        self.z_mean_, self.y_mean_ = z.mean(axis=0), rows.y.mean(axis=0)
        roughness = Roughness.of(self.design_.basis, y.basis, self.operator_s, self.operator_t)
        correction, self.factor_ = self._judged(party, rows, roughness)
        fit = self._fitted(party, rows, roughness, correction)
        self.w_ = self.factor_ * fit.w
        self.traces_ = {name: list(trace) for name, trace in fit.traces.items()}
        self.path_ = [self.design_.names[place] for place in fit.selected]
        self.selected_ = () if self.is_mean_ else tuple(dict.fromkeys(self.path_))
        self.fitted_ = Curves.of_coordinates(self.combined(z), y.basis)

    def _trained_on(self, n: int) -> Int64Array:
        """The rows that are not held out: folds are cut from what was released, in the order of rows."""
        assert self.hold_out is not None
        fold, folds = self.hold_out
        held_out = np.array_split(np.arange(n), folds)[fold - 1]
        return np.setdiff1d(np.arange(n), held_out)

    def _judged(self, party: Party, rows: Rows, roughness: Roughness) -> tuple[float, float]:
        """How much of the noise to take off the moments, and how much of the fit to take.

        Each fold judges fits to the others. Without noise there is nothing to take off and nothing to judge.
        """
        if not rows.noise.any() or (self.correction != "cv" and not self.guard):
            return 1.0 if self.correction == "cv" else float(self.correction), 1.0
        verdicts = {}
        for correction in rows.corrections() if self.correction == "cv" else (float(self.correction),):
            fits = [self._fitted(party, rows, roughness, correction, without=fold).w for fold in rows.folds]
            verdicts[correction] = rows.judge(fits, self.inputs)
        if not self.guard:
            return max(verdicts, key=lambda each: verdicts[each].gain), 1.0
        best = max(verdicts, key=lambda each: verdicts[each].sure_gain)
        return best, verdicts[best].factor

    def _penalties(self, moments: Moments, roughness: Roughness) -> Penalties:
        asked = Penalties(self.lambda_s, self.lambda_t, self.lambda_st, self.relative)
        mean = moments.blocks.mean(axis=0) / moments.freedom
        return asked.absolute(mean, roughness.x, roughness.y)

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
        return self.design_.basis.penalty(self.operator_s)

    @property
    def omega_y_(self) -> FloatArray:
        """The roughness of outputs, of raw coefficients."""
        return self.y_basis_.penalty(self.operator_t)

    def share(self) -> Tree:
        """What this party has learned, as a tree of arrays and plain values."""
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
        """Take up what `share` gave."""
        if "held" in tree:
            self.held_, self.past_ = Held.from_state(tree["held"]), PastReleases(**tree["past"])
            return
        self.take_label_share(tree)
        self.fitted_, self.path_ = Curves(tree["fitted"], self.y_basis_), list(tree["path"])
        self.traces_, self.factor_ = tree["traces"], tree["factor"]

    def summary(self) -> str:
        """What the model is, and what each role learns, in a few lines."""
        lines = [
            f"{type(self).__name__}: curves on curves; penalties {self.lambda_s:g}, {self.lambda_t:g}, "
            f"{self.lambda_st:g}{' relative to the data' if self.relative else ''}.",
            "Encryption: none; a receiver reads what it is sent. Threat model: curious parties that keep to the rules.",
            "The label party learns every released curve. A feature party learns nothing in training.",
        ]
        if self.inputs == "partial":
            lines.append(
                "Of a prediction a feature party learns its own coefficients, which depend on the outputs, and the "
                "label party the exact part that its columns make."
            )
        lines.append(self._privacy_in_words())
        if hasattr(self, "w_"):
            used = ", ".join(self.selected_) or "none: the mean is predicted"
            lines.append(f"This share: coefficients of {len(self.design_.names)} columns; used are {used}.")
        return "\n".join(lines)

    def _privacy_in_words(self) -> str:
        if self.clip == "empirical":
            return "Privacy: none is claimed, because the clip radius comes from the data (simulation only)."
        if self.epsilon is None and not self.noise:
            return "Privacy: none; curves are released as they are."
        told = "" if self.epsilon is None else f" at epsilon {self.epsilon:g}, delta {self.delta:g} for all curves"
        return f"Privacy: curves of one record ({self.adjacency}){told}; outputs and coefficients are not covered."

    def privacy(self) -> dict[str, float]:
        """What a record's curves in all released columns cost together, at the label party: exact, and by zCDP."""
        from colonnade.models.functional.release import Release

        mus = [
            Release(clip, sigma, self.metric, self.adjacency).sensitivity(self.design_.basis) / sigma
            for clip, sigma in zip(self.design_.clips, self.design_.sigmas, strict=True)
            if sigma > 0
        ]
        epsilon, zcdp, rho = cost(np.array(mus), self.delta) if mus else (np.inf, np.inf, np.inf)
        return {"epsilon": epsilon, "zcdp_epsilon": zcdp, "rho": rho, "delta": self.delta}

    def _validate(self, party: Party) -> None:
        name = type(self).__name__
        if party.roles.label is None or not party.roles.features:
            raise PlanError(
                f"{name} needs a label party and at least one feature party, but the roles are {party.roles}. "
                "Name both."
            )
        Penalties(self.lambda_s, self.lambda_t, self.lambda_st)
        refuse_presence(self.adjacency)
        for setting, holds, wanted in (
            ("inputs", self.inputs in ("released", "partial"), "'released' or 'partial'"),
            ("correction", self.correction == "cv" or 0 <= self.correction <= 1, "'cv' or a number from 0 to 1"),
            ("metric", self.metric in ("l2", "rkhs", "legacy"), "'l2', 'rkhs' or 'legacy'"),
            ("epsilon", self.epsilon is None or self.epsilon > 0, "None or above 0"),
            (
                "hold_out",
                self.hold_out is None or (len(self.hold_out) == 2 and 1 <= self.hold_out[0] <= self.hold_out[1] >= 2),
                "None, or a fold from 1 and how many there are",
            ),
            ("noise", self.epsilon is None or not self.noise, "0 where epsilon is given"),
            ("clip", self.epsilon is None or self.clip not in (None, "empirical"), "a radius where epsilon is given"),
        ):
            if not holds:
                raise PlanError(f"{name}'s {setting} should be {wanted}, but is {getattr(self, setting)!r}. Change it.")
