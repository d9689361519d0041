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

The label party centres the output by its mean with noise. Stage 1 releases the products of all inputs with the output;
inputs that stand out are chosen. Stage 2 releases all products among the chosen inputs and with the output. Two parties
do this alone, by encryption (colonnade.models.functional.moments_shared). With an arbiter, products are computed on
masked numbers (colonnade.models.functional.moments_masked), and the arbiter, who deals the masks, adds the noise to its
term. The label party learns the noisy products and nothing else of the inputs; a feature party learns which inputs were
chosen; the arbiter learns how many rows and columns there are, and which were chosen. The arbiter must not collude with
the label party: together they could unmask every curve. Coefficients depend on noisy products alone, so that giving
them away is covered; a prediction still gives the label party the exact part that an owner's columns make.

The label party's predictions start from the exact mean of its own outputs, and are this mean where nothing certain is
to be gained. No message depends on it: the others are told coefficients, and the parts they make are told to the label
party. So this mean costs nothing, and what the label party shows of its predictions is not covered.

Let c be the mean with noise, z = clip(y - c), and x w what was fitted to z. The prediction mean(y) - mean(z) + x w has
the squared error of mean(y), less what x w gains over predicting c, plus |mean(z)|^2 for each record, whatever the mean
of x is: products with inputs that are not centred hold what is left of the output's mean, too. So where as much is left
as the fit is sure to gain, the label party predicts the mean, and tells nobody.

Noise on products, in the norm in which it is isotropic: Dwork, Talwar, Thakurta & Zhang 2014, "Analyze Gauss".
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from colonnade.curves import Curves
from colonnade.curves.basis import FloatArray
from colonnade.errors import PlanError, StorageError
from colonnade.models.functional.exchange import MOST_BASIS_SIZE, MOST_COLUMNS, CurveDesign, OwnCurves
from colonnade.models.functional.messages import Layout, MaskSeed
from colonnade.models.functional.model import CurveModel, CurvePrediction, LearnedCurves, combined, response
from colonnade.models.functional.moments_masked import (
    MOMENT_NOISE,
    MOST_ROWS,
    MomentBudget,
    OpenedProducts,
    clipped_to_ring,
    deal,
    from_ring,
    give_terms,
    noisy,
    require,
    ring_length,
)
from colonnade.models.functional.moments_shared import GivenShares, OpenedShares
from colonnade.models.functional.release import Protection, Release
from colonnade.models.functional.solve import Penalties, SurfaceRoughness, solve_penalised
from colonnade.parameters import Limit, number, settings_of
from colonnade.roles import Lines, Roles, star
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.wire.message import Int64Array

_log = logging.getLogger(__name__)
_PENALTIES = Penalties()
# By how many standard errors a fit must gain by the first release, and a mean stand out from its noise, to be kept.
GUARD = 3.0


@dataclass(frozen=True)
class LearnedMoments(LearnedCurves):
    """What the label party learns.

    Its means of outputs are those that predictions start from.

    Attributes:
        y_centre: The mean with noise that the outputs of the products were centred by; zero where none stood out.
        is_mean: Whether the mean of the training outputs is predicted, because nothing certain is to be gained over it.
    """

    y_centre: FloatArray
    is_mean: bool


class MomentRegression(CurveModel):
    """Regression of curves on curves from noisy products, private for inputs and outputs together.

    Curves are clipped and their products released once: between two parties by encryption, and with several feature
    parties through masks that an arbiter deals. Outputs are centred by as much of their mean as stands out from its
    noise. Inputs are not centred: subtract public mean curves first. The label party's predictions start from the exact
    mean of its own outputs, which nobody else is told; `combined` starts from the mean with noise.

    Args:
        clip_x: The radius to which every input is clipped; it must not depend on the data.
        clip_y: The radius to which outputs are clipped, before they are centred and afterwards.
        epsilon: What one record (its curves in all columns, its output) may cost in all (replace-one).
        delta: Likewise.
        threshold: By how many standard deviations of noise and sampling an input must stand out to be chosen.
        ridge: A ridge on the products, as a multiple of the size of their noise; three and ten times it are tried, too.
        penalties: How strongly roughness of coefficient surfaces is punished: `Penalties`, or a mapping of its fields.

    >>> MomentRegression(clip_x=5.5, clip_y=5.0, epsilon=10.0).delta
    1e-05
    """

    covered_by: ClassVar[tuple[str, ...]] = (MOMENT_NOISE,)
    limits: ClassVar[Mapping[str, Limit]] = {
        "clip_x": number(above=0),
        "clip_y": number(above=0),
        "epsilon": number(above=0),
        "delta": number(above=0, below=1),
        "threshold": number(above=0),
        "ridge": number(0),
    }

    held_: OwnCurves
    dealt_: dict[str, int]
    y_centre_: FloatArray
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
        penalties: Penalties | Mapping[str, Any] = _PENALTIES,
    ) -> None:
        self.clip_x = clip_x
        self.clip_y = clip_y
        self.epsilon = epsilon
        self.delta = delta
        self.threshold = threshold
        self.ridge = ridge
        self.penalties = penalties

    @classmethod
    def example(cls) -> Self:
        """A small one that is quickly trained."""
        return cls(clip_x=3.0, clip_y=3.0, epsilon=1e6)

    @property
    def _penalties(self) -> Penalties:
        return settings_of(self.penalties, _PENALTIES, "MomentRegression's penalties")

    def fit(self, party: Party) -> Self:
        """Train together with the other parties; afterwards this holds the party's share."""
        self.check_setup(party)
        self.admit_defences(party)
        _begin(party)
        if party.name == party.roles.arbiter:
            self.dealt_ = self._dealt(party)
        elif party.holds_labels:
            self.keep(self._learned(party))
            for sentence in self._predicted_in_words:
                _log.log(logging.WARNING if self.is_mean_ else logging.INFO, "%s: %s", party.name, sentence)
        else:
            self.held_ = self._given(party)
        return self

    def predict(self, party: Party) -> CurvePrediction | None:
        """Predict together; an owner is given its coefficients and gives the exact part that its columns make."""
        self.require_fitted("used to predict")
        self.admit_defences(party)
        if party.name == party.roles.arbiter:
            return None
        if not party.holds_labels:
            self.held_.partial(party)
            return None
        # Whether the parts are taken is the label party's own affair, and shows in no message.
        parts = self.from_parts(party)
        return self.predicted(np.broadcast_to(self.y_mean_, parts.shape) if self.is_mean_ else parts)

    def combined(self, z: FloatArray) -> FloatArray:
        """What the coefficients make of inputs, from the mean with noise: of training outputs no more is covered."""
        return combined(z, self.z_mean_, self.w_, self.y_centre_)

    def _budget(self, party: Party, inputs: int) -> MomentBudget:
        """How the budget is spent on a number of inputs; without an arbiter both parties add noise."""
        n_noises = 2 if party.roles.arbiter is None else 1
        return MomentBudget(self.clip_x, self.clip_y, self.epsilon, self.delta, inputs, n_noises)

    def _dealt(self, party: Party) -> dict[str, int]:
        """The arbiter's side: deal masks and noise."""
        layout = self._agreed(party)
        inputs = int(layout.columns.sum())
        chosen = deal(party, layout, self._budget(party, inputs))
        return {"rows": layout.rows, "inputs": inputs, "chosen": chosen}

    def _agreed(self, party: Party) -> Layout:
        """What the label party lays down; all noise and all sizes follow from the numbers of columns."""
        line, bounds = party.label_party, (1, MOST_BASIS_SIZE)
        layout = line.receive(Layout, within={"rows": (1, MOST_ROWS), "size": bounds, "outputs": bounds})
        told = layout.columns.shape == (len(party.roles.features),)
        told = told and bool(((layout.columns > 0) & (layout.columns <= MOST_COLUMNS)).all())
        require(told, "a layout of all feature parties", line.peer)
        return layout

    def _given(self, party: Party) -> OwnCurves:
        """A feature party's side: offer all columns, and give terms or shares of their products."""
        own = OwnCurves.of(party, Protection(clip=self.clip_x), type(self).__name__)
        line, table = party.label_party, party.own_table
        line.send(own.offer())
        seed = None if party.roles.arbiter is None else party.arbiter.receive(MaskSeed).seed
        layout = self._agreed(party)
        require(layout.rows == len(table), f"a layout of {len(table)} rows", line.peer)
        # Noise follows the layout: were its own columns understated, a feature party would add too little.
        counts = dict(zip(party.roles.features, layout.columns.tolist(), strict=True))
        shape = len(own.columns), own.basis.size
        require(
            (counts.get(party.name), layout.size) == shape, f"{shape[0]} columns of {shape[1]} functions", line.peer
        )
        columns = zip(own.columns, own.releases, strict=True)
        parts = [release.clipped(own.curves_of(table, column)) for column, release in columns]
        clipped, budget = np.concatenate(parts, axis=1), self._budget(party, int(layout.columns.sum()))
        if seed is None:
            GivenShares(party, layout, clipped, budget).give()
        else:
            give_terms(party, layout, clipped, seed, budget)
        return own

    def _learned(self, party: Party) -> LearnedMoments:
        """The label party's side: open the products of both stages, and fit to them."""
        y = response(party)
        design = CurveDesign.collected(party, Protection(clip=self.clip_x), type(self).__name__)
        if design.of_party(party.name):
            raise PlanError(
                f"MomentRegression takes inputs of feature parties only, but {party.name} has columns of curves "
                "besides its output. Give them to a feature party."
            )
        counts = [len(design.of_party(name)) for name in party.roles.features]
        n, inputs, size, outputs = len(y), sum(counts), design.basis.size, y.basis.size
        layout = Layout(n, np.array(counts), size, outputs)
        for line in party.peers.values():
            line.send(layout)
        budget = self._budget(party, inputs)
        fewest = budget.fewest_rows(size, outputs, self.threshold)
        if n < fewest:
            _log.warning(
                "%s: MomentRegression predicts the mean of the training outputs, whatever the curves are: with %d "
                "records, noise at epsilon %g hides every product. Bring %d records at least, or raise epsilon.",
                *(party.name, n, self.epsilon, fewest),
            )
        centre = self._released_mean(party, y, budget)
        clipped = Release(self.clip_y, 0.0).clipped(Curves.of_coordinates(y.coordinates - centre, y.basis))
        opened = OpenedShares if party.roles.arbiter is None else OpenedProducts
        products = opened(party, layout, clipped, budget)
        length, crosses = products.first()
        variance_y = self._variance_y(party, clipped, budget, n)
        chosen = self._choose(length, crosses, variance_y, budget, n)
        gram, cross = products.second(chosen)
        roughness = self._penalties.roughness(design.basis, y.basis)
        found, gain = self._solve(gram / n, cross / n, crosses[chosen] / n, chosen, budget, n, variance_y, roughness)
        w = np.zeros((inputs, size, outputs))
        w[chosen] = 0.0 if found is None else found.reshape(-1, size, outputs)
        own, left = y.coordinates.mean(axis=0), clipped.mean(axis=0)
        is_mean = gain <= float(left @ left)
        selected = () if is_mean else tuple(design.names[place] for place in chosen)
        # Inputs are not centred.
        z_mean, y_mean = np.zeros((inputs, size)), own if is_mean else own - left
        return LearnedMoments(design, y.basis, w, z_mean, y_mean, selected, centre, is_mean)

    def _released_mean(self, party: Party, y: Curves, budget: MomentBudget) -> FloatArray:
        """The mean of the clipped outputs with noise, and no more of it than stands out from that noise."""
        n, size = y.coordinates.shape
        bits = budget.bits(n)
        clipped = clipped_to_ring(Release(self.clip_y, 0.0).clipped(y), bits, clip=self.clip_y, size=size)
        total = clipped.sum(axis=0, dtype=np.uint64)
        mean = from_ring(noisy(party, total, budget.mean.on_ring(bits), "output mean", (Secret.LABELS,)), bits) / n
        return standing_out(mean, budget.mean.sigma / n, self.clip_y)

    def _variance_y(self, party: Party, clipped: FloatArray, budget: MomentBudget, n: int) -> float:
        bits = budget.bits(n)
        exact = ring_length(clipped_to_ring(clipped, bits, clip=self.clip_y, size=clipped.shape[1]))
        released = noisy(party, exact, budget.scalar_y.on_ring(2 * bits), "output length", (Secret.LABELS,))
        return max(float(from_ring(released, 2 * bits)[0, 0]), 0.0) / clipped.size

    def _choose(
        self, length: float, crosses: FloatArray, variance_y: float, budget: MomentBudget, n: int
    ) -> Int64Array:
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
        budget: MomentBudget,
        n: int,
        variance_y: float,
        roughness: SurfaceRoughness,
    ) -> tuple[FloatArray | None, float]:
        """Fit to the noisy products, and keep the fit only if the first release, whose noise is its own, agrees.

        Returns:
            The fit, if one is kept, and what it surely gains for each record.
        """
        kept, best, outputs = None, 0.0, cross.shape[1]
        for ridge in (self.ridge, 3 * self.ridge, 10 * self.ridge) if len(chosen) else ():
            w, system, freedom = self._ridge(gram, cross, budget.second(len(chosen)).sigma / n, ridge, roughness)
            # The system holds at least what the inputs vary; the bare products are too small along the fit itself,
            # which follows their noise. The first release has noise of its own, but is of the same rows: what the fit
            # owes to their chance is taken off (Mallows 1973).
            gain = 2 * float((w * first.reshape(w.shape)).sum()) - float((w * (system @ w)).sum())
            gain -= 2 * outputs * variance_y * freedom / n
            error = 2 * budget.first_deviation / n * float(np.linalg.norm(w))
            error = math.hypot(error, budget.second(len(chosen)).sigma / n * float(np.linalg.norm(w @ w.T)))
            if gain - GUARD * error > best:
                kept, best = w, gain - GUARD * error
        return kept, best

    def _ridge(
        self, gram: FloatArray, cross: FloatArray, sigma: float, ridge: float, roughness: SurfaceRoughness
    ) -> tuple[FloatArray, FloatArray, float]:
        """The fit to noisy products with a ridge that is a multiple of their noise, its system and its freedom."""
        # The norm of a symmetric matrix of such noise is about sqrt(2 m) sigma.
        level = sigma * math.sqrt(2 * (len(gram) + cross.shape[1]))
        values, vectors = np.linalg.eigh(gram)
        signal = np.maximum(values, 0.0)
        shifted = signal + ridge * level + 1e-3
        system = (vectors * shifted) @ vectors.T
        omega = roughness.of_inputs(len(gram) // len(roughness.x))
        penalties = self._penalties.absolute(np.diag(signal), roughness)
        w = solve_penalised(system, cross, omega, roughness.y, penalties)
        return w, system, float((signal / shifted).sum())

    def share(self) -> Tree:
        if hasattr(self, "dealt_"):
            return {"dealt": self.dealt_}
        if hasattr(self, "held_"):
            return {"held": self.held_.state()}
        return {**self.label_share(), "y_centre": self.y_centre_, "is_mean": self.is_mean_}

    def take_share(self, tree: Tree) -> None:
        if "dealt" in tree:
            self.dealt_ = tree["dealt"]
        elif "held" in tree:
            self.held_ = OwnCurves.from_state(tree["held"])
        else:
            if tree["is_mean"] and "y_centre" not in tree:
                raise StorageError(
                    "A share of MomentRegression that predicts the mean should hold this mean, but this one was saved "
                    "by an earlier version, which kept what noise had left of the mean, perhaps nothing. Predict the "
                    "mean of the label party's outputs, or fit the model again."
                )
            self.take_label_share(tree)
            self.is_mean_ = tree["is_mean"]
            # Fits of earlier versions start from the centre of the products, as most do where nothing is clipped.
            self.y_centre_ = tree.get("y_centre", tree["y_mean"])

    def summary(self) -> str:
        lines = [
            f"MomentRegression: epsilon {self.epsilon:g} at delta {self.delta:g} per record, inputs and output.",
            "Products: with an arbiter behind masks modulo 2^64, which it deals, and it must not collude with the "
            "label party; between two parties alone by RLWE, with noise of both.",
            "Threat model: curious parties that keep to the rules.",
            "The label party learns noisy products. A feature party learns which inputs were chosen.",
        ]
        if hasattr(self, "w_"):
            used = ", ".join(self.selected_) or "none"
            lines += [
                f"This share: coefficients of {len(self.design_.names)} columns; used are {used}.",
                *self._predicted_in_words,
            ]
        return "\n".join(lines)

    @property
    def _predicted_in_words(self) -> tuple[str, ...]:
        """What the label party predicts, and how much of the mean the products were centred by."""
        if not self.is_mean_:
            start = "Predictions start from the label party's own outputs: if given away, epsilon does not cover them."
        elif self.w_.any():
            start = (
                "Predicted is the mean of the label party's training outputs, exactly: the fit gains less than what "
                "centring has left of this mean. Subtract a public mean curve from the outputs, or raise clip_y."
            )
        else:
            start = "Predicted is the mean of the label party's training outputs, exactly: nothing certain is gained."
        if self.y_centre_.any():
            centre = "Outputs of the products were centred by their mean with noise."
        else:
            centre = "Outputs of the products were not centred: nothing of their mean stood out from its noise."
        return start, centre

    def lines(self, roles: Roles) -> Lines:
        return star(roles.label, roles.features) | star(roles.arbiter, roles.holders)

    def most_rows(self, roles: Roles) -> int | None:
        return MOST_ROWS

    def check_table(self, party: Party) -> tuple[str, ...]:
        if party.holds_labels:
            response(party)
        else:
            OwnCurves.of(party, Protection(clip=self.clip_x), type(self).__name__)
        return ()

    def check_setup(self, party: Party) -> None:
        super().check_setup(party)
        roles = party.roles
        if roles.arbiter is None and len(roles.features) > 1:
            raise PlanError(
                "MomentRegression needs a label party and one feature party, or several with an arbiter who deals "
                f"masks, but the roles are {roles}. Name an arbiter."
            )
        # Every party refuses penalties that make no sense, whether or not its side reads them.
        _ = self._penalties


def standing_out(mean: FloatArray, deviation: float, longest: float) -> FloatArray:
    """As much of a mean with noise of a standard deviation as stands out from that noise.

    No mean of clipped curves is longer than their radius, and much noise is: what stands out from it further is noise.

    >>> standing_out(np.array([0.3, 0.3]), 0.1, 2.0).round(3).tolist()
    [0.075, 0.075]
    """
    # The cubic root of the squared length of noise is nearly normal (Wilson & Hilferty 1931).
    spread = 2 / (9 * len(mean))
    chance = deviation**2 * len(mean) * (1 - spread + GUARD * math.sqrt(spread)) ** 3
    signal = min(max(float((mean**2).sum()) - chance, 0.0), longest**2)
    return np.asarray(mean * (signal / (signal + chance)))


def _begin(party: Party) -> None:
    """Refuse a second fit in one run: its masks and noise would be the first one's, and their differences the data."""
    try:
        party.checkpoints.begin("release of moments")
    except PlanError as error:
        raise PlanError(
            "MomentRegression should be fitted once in a run, because masks and noise serve one release only, but "
            f"{party.name} was about to fit it a second time. Fit it in a run of its own, which is charged by itself."
        ) from error
