"""Regression of curves from moments that are released with noise: privacy for inputs and outputs alike.

    feature party                 label party                 arbiter
         Offer ─────────────────────▶                                      once
                                       Layout ──────────────────▶          once
         ◀───────────────────────────────────────────── MaskSeed           once to each feature party
                                       ◀────────────── MaskSeed            once
         Masked ────────────────────▶                                      once
         ◀────────────────── Masked                                        once for each other party
         Terms ─────────────────────▶                                      once per stage
                                       ◀──────────── Correction            once per stage
                                       Chosen ─────────────────▶           once
         ◀────────────────── Chosen                                        once
         ◀───────── Surface(column)                                        once per column of a prediction
         PartialPrediction ─────────▶                                      once per prediction

Stage 1 releases the products of all inputs with the output; inputs that stand out are chosen. Stage 2 releases all
products among the chosen inputs and with the output. Two parties do this alone, by encryption
(colonnade.models.functional.moments_shared). With an arbiter, products are computed on masked numbers
(colonnade.models.functional.shared_products), and the arbiter, who deals the masks, adds the noise to its term. The
label party learns the noisy products and nothing else of the inputs; a feature party learns which inputs were chosen;
the arbiter learns how many rows and columns there are, and which were chosen. The arbiter must not collude with the
label party: together they could unmask every curve. Coefficients depend on noisy products alone, so that giving them
away is covered; a prediction still gives the label party the exact part that an owner's columns make.

Noise on products, in the norm in which it is isotropic: Dwork, Talwar, Thakurta & Zhang 2014, "Analyze Gauss".
"""

from __future__ import annotations

import math
from typing import ClassVar, Self

import numpy as np

from colonnade.curves.basis import FloatArray
from colonnade.errors import PlanError
from colonnade.models.functional.exchange import Design, Held, Protection
from colonnade.models.functional.model import CurveModel, CurvePrediction, response
from colonnade.models.functional.moments_masked import (
    MOST_ROWS,
    PROTECTION,
    Budget,
    Layout,
    MaskSeed,
    OpenedProducts,
    deal,
    give_terms,
    noisy,
    require,
)
from colonnade.models.functional.moments_shared import GivenShares, OpenedShares, ring_length
from colonnade.models.functional.release import Release
from colonnade.models.functional.shared_products import clipped_to_ring, from_ring
from colonnade.models.functional.solve import PenalisedSolver, Penalties, Roughness
from colonnade.runtime.hooks import prepare_defences
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.wire.message import Int64Array

# A fit is kept if what it gains by the first release is at least so many standard errors.
GUARD = 3.0


class MomentRegression(CurveModel):
    """Regression of curves on curves from noisy products, private for inputs and outputs together.

    Curves are clipped and their products released once: between two parties by encryption, and with several feature
    parties through masks that an arbiter deals. They are not centred:
    subtract public mean curves first.

    Args:
        clip_x: The radius to which every input is clipped; it must not depend on the data.
        clip_y: The radius to which outputs are clipped.
        epsilon: What one record (its curves in all columns, its output) may cost in all (replace-one).
        delta: Likewise.
        threshold: By how many standard deviations of noise and sampling an input must stand out to be chosen.
        ridge: A ridge on the products, as a multiple of the size of their noise; three and ten times it are tried, too.
        lambda_s: Penalty on roughness of coefficient surfaces in the inputs' time.
        lambda_t: In the output's time.
        lambda_st: In both.
        operator_s: What roughness is in the inputs' time: the order of a derivative.
        operator_t: In the output's time.

    >>> MomentRegression(clip_x=5.5, clip_y=5.0, epsilon=10.0).delta
    1e-05
    """

    covered_by: ClassVar[tuple[str, ...]] = (PROTECTION,)

    held_: Held
    dealt_: dict[str, int]
    is_mean_: bool

    def __init__(
        self,
        *,
        clip_x: float = 1.0,
        clip_y: float = 1.0,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        threshold: float = 4.0,
        ridge: float = 0.3,
        lambda_s: float = 0.0,
        lambda_t: float = 0.0,
        lambda_st: float = 0.0,
        operator_s: int = 2,
        operator_t: int = 2,
    ) -> None:
        self.clip_x = clip_x
        self.clip_y = clip_y
        self.epsilon = epsilon
        self.delta = delta
        self.threshold = threshold
        self.ridge = ridge
        self.lambda_s = lambda_s
        self.lambda_t = lambda_t
        self.lambda_st = lambda_st
        self.operator_s = operator_s
        self.operator_t = operator_t

    def fit(self, party: Party) -> Self:
        """Train together with the other parties; afterwards this holds the party's share."""
        self._validate(party)
        prepare_defences(party, frozenset(), (), type(self).__name__)
        _begin(party)
        if party.name == party.roles.arbiter:
            self._deal(party)
        elif party.holds_labels:
            self._fit_label_side(party)
        else:
            self._fit_feature_side(party)
        return self

    def predict(self, party: Party) -> CurvePrediction | None:
        """Predict together; an owner is given its coefficients and gives the exact part that its columns make."""
        self.require_fitted("used to predict")
        prepare_defences(party, frozenset(), (), type(self).__name__)
        if party.name == party.roles.arbiter:
            return None
        if not party.holds_labels:
            self.held_.partial(party)
            return None
        return self.predicted(self.from_parts(party))

    def _budget(self, party: Party, inputs: int) -> Budget:
        """How the budget is spent on so many inputs; without an arbiter both parties add noise."""
        n_noises = 2 if party.roles.arbiter is None else 1
        return Budget(self.clip_x, self.clip_y, self.epsilon, self.delta, inputs, n_noises)

    def _deal(self, party: Party) -> None:
        layout, peer = party.label_party.receive(Layout), party.label_party.peer
        told = 0 < layout.rows <= MOST_ROWS and len(layout.columns) == len(party.roles.features)
        require(told and layout.columns.min() > 0, "a layout of all feature parties", peer)
        inputs = int(layout.columns.sum())
        chosen = deal(party, layout, self._budget(party, inputs))
        self.dealt_ = {"rows": layout.rows, "inputs": inputs, "chosen": chosen}

    def _fit_feature_side(self, party: Party) -> None:
        self.held_ = Held.of(party, Protection(clip=self.clip_x), type(self).__name__)
        line, table = party.label_party, party.own_table
        line.send(self.held_.offer())
        seed = None if party.roles.arbiter is None else party.arbiter.receive(MaskSeed).seed
        layout = line.receive(Layout)
        require(layout.rows == len(table), f"a layout of {len(table)} rows", line.peer)
        # Noise follows the layout: were its own columns understated, a feature party would add too little.
        counts = dict(zip(party.roles.features, layout.columns.tolist(), strict=False))
        own = len(self.held_.columns), self.held_.basis.size
        require((counts.get(party.name), layout.size) == own, f"{own[0]} columns of {own[1]} functions", line.peer)
        columns = zip(self.held_.columns, self.held_.releases, strict=True)
        parts = [release.clipped(self.held_.curves_of(table, column)) for column, release in columns]
        clipped, budget = np.concatenate(parts, axis=1), self._budget(party, int(layout.columns.sum()))
        if seed is None:
            GivenShares(party, layout, clipped, budget).give()
        else:
            give_terms(party, layout, clipped, seed, budget)

    def _fit_label_side(self, party: Party) -> None:
        y = response(party)
        self.design_ = Design.collected(party, Protection(clip=self.clip_x), type(self).__name__)
        self.y_basis_ = y.basis
        if self.design_.of_party(party.name):
            raise PlanError(
                f"MomentRegression takes inputs of feature parties only, but {party.name} has columns of curves "
                "besides its output. Give them to a feature party."
            )
        counts = [len(self.design_.of_party(name)) for name in party.roles.features]
        n, inputs, size, outputs = len(y), sum(counts), self.design_.basis.size, y.basis.size
        layout = Layout(n, np.array(counts), size, outputs)
        for line in party.peers.values():
            line.send(layout)
        # Curves are not centred.
        self.z_mean_, self.y_mean_ = np.zeros((inputs, size)), np.zeros(outputs)
        budget = self._budget(party, inputs)
        clipped = Release(self.clip_y, 0.0).clipped(y)
        opened = OpenedShares if party.roles.arbiter is None else OpenedProducts
        products = opened(party, layout, clipped, budget)
        length, crosses = products.first()
        variance_y = self._variance_y(party, clipped, budget, n)
        chosen = self._choose(length, crosses, variance_y, budget, n)
        gram, cross = products.second(chosen)
        self._solve(gram / n, cross / n, crosses[chosen] / n, chosen, budget, n, variance_y)

    def _variance_y(self, party: Party, clipped: FloatArray, budget: Budget, n: int) -> float:
        bits = budget.bits(n)
        exact = ring_length(clipped_to_ring(clipped, bits, clip=self.clip_y, size=clipped.shape[1]))
        released = noisy(party, exact, budget.scalar_y.on_ring(2 * bits), "output length", (Secret.LABELS,))
        return max(float(from_ring(released, 2 * bits)[0, 0]), 0.0) / clipped.size

    def _choose(self, length: float, crosses: FloatArray, variance_y: float, budget: Budget, n: int) -> Int64Array:
        """The inputs whose products with the output are larger than noise and sampling make them."""
        inputs, size, outputs = crosses.shape
        variance_x = max(length, 0.0) / (n * inputs * size)
        variance = budget.first_deviation**2 + n * variance_x * variance_y
        excess = (crosses**2).sum(axis=(1, 2)) / variance - size * outputs
        return np.flatnonzero(excess > self.threshold * math.sqrt(2 * size * outputs))

    def _solve(
        self,
        gram: FloatArray,
        cross: FloatArray,
        first: FloatArray,
        chosen: Int64Array,
        budget: Budget,
        n: int,
        variance_y: float,
    ) -> None:
        """Fit to the noisy products, and keep the fit only if the first release, whose noise is its own, agrees."""
        size, outputs = self.design_.basis.size, self.y_basis_.size
        self.w_ = np.zeros((len(self.design_.columns), size, outputs))
        self.is_mean_ = True
        best = 0.0
        for ridge in (self.ridge, 3 * self.ridge, 10 * self.ridge) if len(chosen) else ():
            w, system, freedom = self._ridge(gram, cross, budget.second(len(chosen)).sigma / n, ridge)
            # The system holds at least what the inputs vary; the bare products are too small along the fit itself,
            # which follows their noise. The first release has noise of its own, but is of the same rows: what the fit
            # owes to their chance is taken off (Mallows 1973).
            gain = 2 * float((w * first.reshape(w.shape)).sum()) - float((w * (system @ w)).sum())
            gain -= 2 * outputs * variance_y * freedom / n
            error = 2 * budget.first_deviation / n * float(np.linalg.norm(w))
            error = math.hypot(error, budget.second(len(chosen)).sigma / n * float(np.linalg.norm(w @ w.T)))
            if gain - GUARD * error > best:
                best, self.is_mean_ = gain - GUARD * error, False
                self.w_[chosen] = w.reshape(len(chosen), size, outputs)
        kept = () if self.is_mean_ else tuple(chosen)
        self.selected_ = tuple(self.design_.names[place] for place in kept)

    def _ridge(
        self, gram: FloatArray, cross: FloatArray, sigma: float, ridge: float
    ) -> tuple[FloatArray, FloatArray, float]:
        """The fit to noisy products with a ridge that is a multiple of their noise, its system and its freedom."""
        roughness = Roughness.of(self.design_.basis, self.y_basis_, self.operator_s, self.operator_t)
        # The norm of a symmetric matrix of such noise is about sqrt(2 m) sigma.
        level = sigma * math.sqrt(2 * (len(gram) + cross.shape[1]))
        values, vectors = np.linalg.eigh(gram)
        signal = np.maximum(values, 0.0)
        shifted = signal + ridge * level + 1e-3
        system = (vectors * shifted) @ vectors.T
        omega = np.kron(np.eye(len(gram) // len(roughness.x)), roughness.x)
        a2 = self.lambda_t * np.eye(len(gram)) + self.lambda_st * omega
        w = PenalisedSolver(system + self.lambda_s * omega, a2, roughness.y).solve(cross)
        return w, system, float((signal / shifted).sum())

    def share(self) -> Tree:
        """What this party has learned, as a tree of arrays and plain values."""
        if hasattr(self, "dealt_"):
            return {"dealt": self.dealt_}
        if hasattr(self, "held_"):
            return {"held": self.held_.state()}
        return {**self.label_share(), "is_mean": self.is_mean_}

    def take_share(self, tree: Tree) -> None:
        """Take up what `share` gave."""
        if "dealt" in tree:
            self.dealt_ = tree["dealt"]
        elif "held" in tree:
            self.held_ = Held.from_state(tree["held"])
        else:
            self.take_label_share(tree)
            self.is_mean_ = tree["is_mean"]

    def summary(self) -> str:
        """What the model is, and what each role learns, in a few lines."""
        lines = [
            f"MomentRegression: epsilon {self.epsilon:g} at delta {self.delta:g} per record, inputs and output.",
            "Products: with an arbiter behind masks modulo 2^64, which it deals, and it must not collude with the "
            "label party; between two parties alone by RLWE, with noise of both.",
            "Threat model: curious parties that keep to the rules.",
            "The label party learns noisy products. A feature party learns which inputs were chosen.",
        ]
        if hasattr(self, "w_"):
            used = ", ".join(self.selected_) or "none: zero is predicted"
            lines.append(f"This share: coefficients of {len(self.design_.names)} columns; used are {used}.")
        return "\n".join(lines)

    def _validate(self, party: Party) -> None:
        roles = party.roles
        if roles.label is None or not roles.features or (roles.arbiter is None and len(roles.features) > 1):
            raise PlanError(
                "MomentRegression needs a label party and one feature party, or several with an arbiter who deals "
                f"masks, but the roles are {roles}. Name an arbiter."
            )
        Penalties(self.lambda_s, self.lambda_t, self.lambda_st)
        for name, holds, wanted in (
            ("clip_x", self.clip_x > 0, "above 0"),
            ("clip_y", self.clip_y > 0, "above 0"),
            ("epsilon", self.epsilon > 0, "above 0"),
            ("delta", 0 < self.delta < 1, "between 0 and 1"),
            ("threshold", self.threshold > 0, "above 0"),
            ("ridge", self.ridge >= 0, "a number from 0"),
        ):
            if not holds:
                raise PlanError(
                    f"MomentRegression's {name} should be {wanted}, but is {getattr(self, name)!r}. Change it."
                )


def _begin(party: Party) -> None:
    """Refuse a second fit in one run: its masks and noise would be the first one's, and their differences the data."""
    try:
        party.checkpoints.begin("release of moments")
    except PlanError as error:
        raise PlanError(
            "MomentRegression should be fitted once in a run, because masks and noise serve one release only, but "
            f"{party.name} was about to fit it a second time. Fit it in a run of its own, which is charged by itself."
        ) from error
