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
products among the chosen inputs and with the output. Products are computed on masked numbers
(colonnade.models.functional.shared_products), and the arbiter, who deals the masks, adds the noise to its term. The
label party learns the noisy products and nothing else of the inputs; a feature party learns which inputs were chosen;
the arbiter learns how many rows and columns there are, and which were chosen. The arbiter must not collude with the
label party: together they could unmask every curve. Coefficients depend on noisy products alone, so that giving them
away is covered; a prediction still gives the label party the exact part that an owner's columns make.

Noise on products, in the norm in which it is isotropic: Dwork, Talwar, Thakurta & Zhang 2014, "Analyze Gauss".
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np

from colonnade.curves import Basis, basis_of
from colonnade.curves.basis import FloatArray
from colonnade.errors import PlanError, ProtocolError
from colonnade.hooks import prepare
from colonnade.models.base import Estimator
from colonnade.models.functional.estimator import CurvePrediction, response
from colonnade.models.functional.exchange import Design, Held, PartialPrediction, Protection, Surface
from colonnade.models.functional.release import UNIT, Release
from colonnade.models.functional.shared_products import (
    fraction_bits,
    from_ring,
    ring_product,
    to_ring,
    uniform,
)
from colonnade.models.functional.solve import PenalisedSolver, Penalties, Roughness
from colonnade.party import Party
from colonnade.privacy.gaussian import gaussian_mu
from colonnade.privacy.ledger import Event
from colonnade.privacy.mechanisms import GaussianMechanism, noise
from colonnade.privacy.randomness import Randomness
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.wire.message import Int64Array, Message, UInt64Array

PROTECTION = "moment noise"
MOST_ROWS = 10_000_000
GUARD = 3.0
# Of the squared privacy loss mu^2: for each of two scalars, and for the first stage; the rest is for the second.
SCALAR_SHARE = 0.02
FIRST_SHARE = 0.35


@dataclass(frozen=True)
class Layout(Message, kind="functional/layout"):
    """How many rows there are, how many columns each feature party has, and how many functions each basis."""

    rows: int
    columns: Int64Array
    size: int
    outputs: int


@dataclass(frozen=True)
class MaskSeed(Message, kind="functional/mask-seed"):
    """What a holder's mask and pads derive from: known to the arbiter and that holder only."""

    seed: bytes


@dataclass(frozen=True)
class Masked(Message, kind="functional/masked"):
    """A holder's matrix behind its mask: uniform for everybody but the arbiter, who never sees it."""

    holder: str
    values: UInt64Array


@dataclass(frozen=True)
class Terms(Message, kind="functional/terms"):
    """A feature party's terms of the products behind its pads, uniform by themselves."""

    stage: int
    values: list[UInt64Array]


@dataclass(frozen=True)
class Correction(Message, kind="functional/correction", reveals={Secret.FEATURES, Secret.LABELS}):
    """The arbiter's terms with noise: they turn the parties' terms into noisy products."""

    stage: int
    values: list[UInt64Array]


@dataclass(frozen=True)
class Chosen(Message, kind="functional/chosen"):
    """The inputs that stood out in the first release; it follows from what was released, and adds nothing to it."""

    columns: Int64Array


@dataclass(frozen=True)
class Budget:
    """Sensitivities and noise of all releases, from the settings and the layout alone.

    One record changes products by the lengths to which its curves are clipped: the sum of all Z_j'Y by at most
    2 Sx Sy sqrt(p), and the outer product of [z, y] with k chosen inputs by at most sqrt(2) (k Sx^2 + Sy^2) in the
    Frobenius norm, for which symmetric noise has half the variance off the diagonal.
    """

    clip_x: float
    clip_y: float
    epsilon: float
    delta: float
    inputs: int

    @property
    def mu(self) -> float:
        """The privacy loss that all releases together may have."""
        return gaussian_mu(self.epsilon, self.delta)

    @property
    def scalar_x(self) -> GaussianMechanism:
        """The squared length of all inputs."""
        reach = self.inputs * self.clip_x**2
        return GaussianMechanism(reach, reach / (math.sqrt(SCALAR_SHARE) * self.mu))

    @property
    def scalar_y(self) -> GaussianMechanism:
        """The squared length of the output."""
        reach = self.clip_y**2
        return GaussianMechanism(reach, reach / (math.sqrt(SCALAR_SHARE) * self.mu))

    @property
    def first(self) -> GaussianMechanism:
        """All products of inputs and output."""
        reach = 2 * self.clip_x * self.clip_y * math.sqrt(self.inputs)
        return GaussianMechanism(reach, reach / (math.sqrt(FIRST_SHARE) * self.mu))

    def second(self, chosen: int) -> GaussianMechanism:
        """All products among chosen inputs and the output."""
        reach = math.sqrt(2) * (chosen * self.clip_x**2 + self.clip_y**2)
        share = 1 - FIRST_SHARE - 2 * SCALAR_SHARE
        return GaussianMechanism(reach, reach / (math.sqrt(share) * self.mu))

    def bits(self, rows: int) -> int:
        """How many bits after the point numbers have."""
        largest = rows * max(self.clip_x, self.clip_y) ** 2 * self.inputs
        widest = max(self.first.sigma, self.second(self.inputs).sigma, self.scalar_x.sigma)
        return fraction_bits(largest + 20 * widest)


class MomentRegression(Estimator):
    """Regression of curves on curves from noisy products, private for inputs and outputs together.

    Curves are clipped and their products released once, through masks that an arbiter deals. They are not centred:
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

    task: ClassVar[Literal["regression"]] = "regression"

    design_: Design
    held_: Held
    y_basis_: Basis
    selected_: tuple[str, ...]

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
        prepare(party, frozenset(), (), type(self).__name__)
        if party.name == party.roles.arbiter:
            self.dealt_ = _deal(party, self)
        elif party.holds_labels:
            self._fit_label_side(party)
        else:
            self._fit_feature_side(party)
        return self

    def predict(self, party: Party) -> CurvePrediction | None:
        """Predict together; an owner is given its coefficients and gives the exact part that its columns make."""
        self.require_fitted("used to predict")
        prepare(party, frozenset(), (), type(self).__name__)
        if party.name == party.roles.arbiter:
            return None
        if not party.holds_labels:
            self.held_.partial(party)
            return None
        predicted = np.zeros((len(party.own_table), self.y_basis_.size))
        for line in party.feature_parties:
            for place in self.design_.of_party(line.peer):
                centre = np.zeros(self.design_.basis.size)
                line.send(Surface(self.design_.columns[place][1], self.w_[place], centre), under=(PROTECTION,))
        for line in party.feature_parties:
            rows = np.arange(len(predicted))
            predicted += line.receive(PartialPrediction, shape=predicted.shape, rows=rows).values
        return CurvePrediction(predicted @ self.y_basis_.inverse_root, basis=self.y_basis_)

    def budget(self, inputs: int) -> Budget:
        """How the budget is spent on so many inputs."""
        return Budget(self.clip_x, self.clip_y, self.epsilon, self.delta, inputs)

    def _fit_feature_side(self, party: Party) -> None:
        self.held_ = Held.of(party, Protection(clip=self.clip_x), type(self).__name__)
        line = party.label_party
        line.send(self.held_.offer())
        seed = party.arbiter.receive(MaskSeed).seed
        layout = line.receive(Layout)
        table, n = party.own_table, len(party.own_table)
        _require(layout.rows == n, f"a layout of {n} rows", line.peer)
        budget = self.budget(int(layout.columns.sum()))
        bits = budget.bits(n)
        columns = zip(self.held_.columns, self.held_.releases, strict=True)
        z = [release.clipped(self.held_.curves_of(table, column)) for column, release in columns]
        x = to_ring(np.concatenate(z, axis=1), bits)
        source = Randomness.from_key(seed, source="system")
        mask = uniform(source, x.shape, "mask")
        line.send(Masked(party.name, x - mask))
        others = {}
        for name, width in _widths(party, layout).items():
            if name != party.name:
                masked = line.receive(Masked)
                _require(masked.holder == name and masked.values.shape == (n, width), f"{name}'s matrix", line.peer)
                others[name] = masked.values
        label = party.roles.label
        assert label is not None
        length = (x * x).sum(dtype=np.uint64)[None, None] + uniform(source, (1, 1), "pad", 1, "length")
        cross = ring_product(mask, others[label])
        line.send(Terms(1, [length, cross + uniform(source, cross.shape, "pad", 1, label)]))
        chosen = line.receive(Chosen).columns
        widths = _widths(party, layout)
        own = _kept(party.name, chosen, widths, layout.size, label)
        terms = []
        for name in widths:
            kept = _kept(name, chosen, widths, layout.size, label)
            if name == party.name:
                product = ring_product(x[:, own], x[:, own])
            else:
                product = ring_product(mask[:, own], others[name][:, kept])
            terms.append(product + uniform(source, product.shape, "pad", 2, str(chosen.tolist()), name))
        line.send(Terms(2, terms))

    def _fit_label_side(self, party: Party) -> None:
        y = response(party)
        label, n = party.name, len(y)
        self.design_ = Design.collected(party, Protection(clip=self.clip_x), type(self).__name__)
        self.y_basis_ = y.basis
        if self.design_.of_party(label):
            raise PlanError(
                f"MomentRegression takes inputs of feature parties only, but {label} has columns of curves besides its "
                "output. Give them to a feature party."
            )
        counts = [len(self.design_.of_party(name)) for name in party.roles.features]
        layout = Layout(n, np.array(counts), self.design_.basis.size, y.basis.size)
        party.arbiter.send(layout)
        for line in party.feature_parties:
            line.send(layout)
        budget = self.budget(sum(counts))
        bits = budget.bits(n)
        source = Randomness.from_key(party.arbiter.receive(MaskSeed).seed, source="system")
        clipped = Release(self.clip_y, 0.0).clipped(y)
        own = to_ring(clipped, bits)
        masked = {label: own - uniform(source, own.shape, "mask")}
        widths = _widths(party, layout)
        for line in party.feature_parties:
            message = line.receive(Masked)
            _require(
                message.values.shape == (n, widths[line.peer]), f"a matrix of {widths[line.peer]} columns", line.peer
            )
            masked[line.peer] = message.values
        for line in party.feature_parties:
            for name, values in masked.items():
                if name != line.peer:
                    line.send(Masked(name, values))
        lengths, crosses = self._first_stage(party, own, masked, widths, bits)
        variance_y = self._variance_y(party, clipped, budget)
        chosen = self._choose(lengths, crosses, variance_y, budget, n)
        for line in (party.arbiter, *party.feature_parties):
            line.send(Chosen(chosen))
        gram, cross = self._second_stage(party, own, masked, widths, chosen, bits)
        self._solve(gram / n, cross / n, crosses[chosen] / n, chosen, budget, n, variance_y)

    def _first_stage(
        self, party: Party, own: UInt64Array, masked: dict[str, UInt64Array], widths: dict[str, int], bits: int
    ) -> tuple[float, FloatArray]:
        """The noisy squared length of all inputs, and the noisy products of every input with the output."""
        length, parts = np.zeros((1, 1), np.uint64), []
        for line in party.feature_parties:
            theirs = _terms(line.receive(Terms), 1, [(1, 1), (widths[line.peer], own.shape[1])], line.peer)
            length = length + theirs[0]
            parts.append(theirs[1] + ring_product(masked[line.peer], own))
        shapes = [(1, 1), (sum(widths.values()) - own.shape[1], own.shape[1])]
        correction = party.arbiter.receive(Correction)
        theirs = _terms(correction, 1, shapes, party.arbiter.peer)
        cross = from_ring(np.concatenate(parts) + theirs[1], 2 * bits)
        size = self.design_.basis.size
        return float(from_ring(length + theirs[0], 2 * bits)[0, 0]), cross.reshape(-1, size, own.shape[1])

    def _second_stage(
        self,
        party: Party,
        own: UInt64Array,
        masked: dict[str, UInt64Array],
        widths: dict[str, int],
        chosen: Int64Array,
        bits: int,
    ) -> tuple[FloatArray, FloatArray]:
        """The noisy products among chosen inputs, and with the output."""
        names, size = list(widths), self.design_.basis.size
        assert names[0] == party.name
        kept = {name: _kept(name, chosen, widths, size, party.name) for name in names}
        ends = np.cumsum([0, *(len(kept[name]) for name in names)])
        place = {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(names)}
        total = np.zeros((ends[-1], ends[-1]), np.uint64)
        for line in party.feature_parties:
            p = line.peer
            shapes = [(len(kept[p]), len(kept[name])) for name in names]
            for name, term in zip(names, _terms(line.receive(Terms), 2, shapes, p), strict=True):
                if name == party.name:
                    total[place[p], place[name]] += term + ring_product(masked[p][:, kept[p]], own)
                elif name == p:
                    total[place[p], place[p]] += term
                else:
                    # What p computes is A_p'E_q; its transpose belongs to the product of q with p.
                    total[place[p], place[name]] += term
                    total[place[name], place[p]] += term.T
                    if names.index(p) < names.index(name):
                        both = ring_product(masked[p][:, kept[p]], masked[name][:, kept[name]])
                        total[place[p], place[name]] += both
                        total[place[name], place[p]] += both.T
        inputs = slice(ends[1], ends[-1])
        n_inputs = int(ends[-1] - ends[1])
        correction = party.arbiter.receive(Correction)
        shapes = [(n_inputs, n_inputs), (n_inputs, own.shape[1])]
        theirs = _terms(correction, 2, shapes, party.arbiter.peer)
        gram = from_ring(total[inputs, inputs] + theirs[0], 2 * bits)
        cross = from_ring(total[inputs, place[party.name]] + theirs[1], 2 * bits)
        return (gram + gram.T) / 2, cross

    def _variance_y(self, party: Party, clipped: FloatArray, budget: Budget) -> float:
        released = budget.scalar_y.release(
            [(clipped**2).sum()],
            random=party.random,
            ledger=party.ledger,
            protects=Secret.LABELS,
            unit=UNIT,
            path=("length",),
            by=PROTECTION,
        )
        return max(float(released[0]), 0.0) / clipped.size

    def _choose(self, length: float, crosses: FloatArray, variance_y: float, budget: Budget, n: int) -> Int64Array:
        """The inputs whose products with the output are larger than noise and sampling make them."""
        inputs, size, outputs = crosses.shape
        variance_x = max(length, 0.0) / (n * inputs * size)
        variance = budget.first.sigma**2 + n * variance_x * variance_y
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
            error = 2 * budget.first.sigma / n * float(np.linalg.norm(w))
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
        return {
            "design": self.design_.state(),
            "y_basis": json.dumps(self.y_basis_.describe()),
            "w": self.w_,
            "selected": list(self.selected_),
            "is_mean": self.is_mean_,
        }

    def take_share(self, tree: Tree) -> None:
        """Take up what `share` gave."""
        if "dealt" in tree:
            self.dealt_ = tree["dealt"]
        elif "held" in tree:
            self.held_ = Held.from_state(tree["held"])
        else:
            self.design_ = Design.from_state(tree["design"])
            self.y_basis_ = basis_of(json.loads(tree["y_basis"]))
            self.w_, self.is_mean_ = tree["w"], tree["is_mean"]
            self.selected_ = tuple(tree["selected"])

    @property
    def B_(self) -> dict[str, FloatArray]:
        """Each column's operator on raw coefficients."""
        left, right = self.design_.basis.root, self.y_basis_.inverse_root
        return {name: left @ w @ right for name, w in zip(self.design_.names, self.w_, strict=True)}

    def summary(self) -> str:
        """What the model is, and what each role learns, in a few lines."""
        lines = [
            f"MomentRegression: epsilon {self.epsilon:g} at delta {self.delta:g} per record, inputs and output.",
            "Encryption: additive masks modulo 2^64 from an arbiter, who must not collude with the label party.",
            "The label party learns noisy products. A feature party learns which inputs were chosen.",
        ]
        if hasattr(self, "w_"):
            used = ", ".join(self.selected_) or "none: zero is predicted"
            lines.append(f"This share: coefficients of {len(self.design_.names)} columns; used are {used}.")
        return "\n".join(lines)

    def _validate(self, party: Party) -> None:
        if party.roles.label is None or not party.roles.features or party.roles.arbiter is None:
            raise PlanError(
                "MomentRegression needs a label party, a feature party and an arbiter who deals masks, but the roles "
                f"are {party.roles}. Name all three."
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


def _deal(party: Party, model: MomentRegression) -> dict[str, int]:
    """The arbiter's side: deal masks, and add the noise to the terms that the masks leave over."""
    layout = party.label_party.receive(Layout)
    _require(
        0 < layout.rows <= MOST_ROWS and len(layout.columns) == len(party.roles.features) and layout.columns.min() > 0,
        "a layout of all feature parties",
        party.label_party.peer,
    )
    widths = _widths(party, layout)
    names, label, n = list(widths), party.label_party.peer, layout.rows
    inputs = int(layout.columns.sum())
    budget = model.budget(inputs)
    bits = budget.bits(n)
    sources = {name: party.random.child("masks", name) for name in names}
    for name in names:
        party.peers[name].send(MaskSeed(sources[name].key))
    masks = {name: uniform(sources[name], (n, widths[name]), "mask") for name in names}
    length = _noise(party, (1, 1), budget.scalar_x, 2 * bits, "length", (Secret.FEATURES,))
    crosses = []
    for name in names[1:]:
        shape = (widths[name], layout.outputs)
        length = length - uniform(sources[name], (1, 1), "pad", 1, "length")
        pad = uniform(sources[name], shape, "pad", 1, label)
        crosses.append(ring_product(masks[name], masks[label]) - pad)
    shape = (inputs * layout.size, layout.outputs)
    first = _noise(party, shape, budget.first, 2 * bits, "first", (Secret.FEATURES, Secret.LABELS))
    terms = [length, np.concatenate(crosses) + first]
    party.label_party.send(Correction(1, terms), under=(PROTECTION,))

    chosen = party.label_party.receive(Chosen).columns
    _require(
        bool(((chosen >= 0) & (chosen < inputs)).all() and (np.diff(chosen) > 0).all()),
        "rising numbers of inputs",
        label,
    )
    kept = {name: _kept(name, chosen, widths, layout.size, label) for name in names}
    ends = np.cumsum([0, *(len(kept[name]) for name in names)])
    place = {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(names)}
    total = np.zeros((ends[-1], ends[-1]), np.uint64)
    for p in names[1:]:
        for q in names:
            shape = (len(kept[p]), len(kept[q]))
            # Were the choice another after a crash, so would be the pads and the noise.
            pad = uniform(sources[p], shape, "pad", 2, str(chosen.tolist()), q)
            total[place[p], place[q]] -= pad
            if q == label:
                total[place[p], place[q]] += ring_product(masks[p][:, kept[p]], masks[q][:, kept[q]])
            elif q != p:
                total[place[q], place[p]] -= pad.T
                total[place[p], place[q]] += ring_product(masks[p][:, kept[p]], masks[q][:, kept[q]])
    width = int(ends[-1])
    if len(chosen):
        mechanism = budget.second(len(chosen))
        stage = f"second of {chosen.tolist()}"
        flat = _noise(party, (width, width), mechanism, 2 * bits, stage, (Secret.FEATURES, Secret.LABELS))
        # Symmetric, isotropic in the Frobenius norm: half the variance off the diagonal.
        signed = flat.view(np.int64)
        upper = np.triu(np.rint(signed / math.sqrt(2)).astype(np.int64), 1)
        symmetric = (upper + upper.T + np.diag(np.diag(signed))).view(np.uint64)
        total = total + symmetric
    inputs_at = slice(int(ends[1]), width)
    party.label_party.send(
        Correction(2, [total[inputs_at, inputs_at], total[inputs_at, place[label]]]), under=(PROTECTION,)
    )
    return {"rows": n, "inputs": inputs, "chosen": len(chosen)}


def _noise(
    party: Party,
    shape: tuple[int, ...],
    mechanism: GaussianMechanism,
    bits: int,
    stage: str,
    protects: tuple[Secret, ...],
) -> UInt64Array:
    """Noise as integers modulo 2^64, charged to the arbiter's ledger in the same breath."""
    for secret in protects:
        event: Event = mechanism.event(secret, UNIT, by=PROTECTION)
        party.ledger.spend(event, identity=party.random.child("moments", stage).key)
    drawn = noise(shape, mechanism.sigma, "gaussian", party.random, ("moments", stage))
    return np.rint(np.ldexp(drawn, bits)).astype(np.int64).view(np.uint64)


def _widths(party: Party, layout: Layout) -> dict[str, int]:
    """How many columns of numbers each holder has; the label party first."""
    label = party.roles.label
    assert label is not None
    counts = zip(party.roles.features, layout.columns.tolist(), strict=True)
    return {label: layout.outputs} | {name: n * layout.size for name, n in counts}


def _kept(name: str, chosen: Int64Array, widths: dict[str, int], size: int, label: str) -> Int64Array:
    """Which of a holder's columns of numbers belong to chosen inputs; all of the output's."""
    if name == label:
        return np.arange(widths[label])
    before = sum(width // size for other, width in list(widths.items())[1:] if _comes_before(other, name, widths))
    own = chosen[(chosen >= before) & (chosen < before + widths[name] // size)] - before
    return (own[:, None] * size + np.arange(size)).ravel()


def _comes_before(other: str, name: str, widths: dict[str, int]) -> bool:
    names = list(widths)
    return names.index(other) < names.index(name)


def _terms(message: Terms | Correction, stage: int, shapes: Sequence[tuple[int, ...]], peer: str) -> list[UInt64Array]:
    found = [values.shape for values in message.values]
    _require(
        message.stage == stage and found == list(shapes), f"{message.kind} of stage {stage} and shapes {shapes}", peer
    )
    return message.values


def _require(holds: bool, wanted: str, peer: str) -> None:
    if not holds:
        raise ProtocolError(
            f"Expected {wanted} from {peer}, got something else. Check that all parties run the same plan on equally "
            "many rows."
        )
