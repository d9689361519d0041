"""Noisy products of curves that several parties hold, computed on numbers that are masked modulo 2^64.

Feature parties and the label party hold matrices: curves in coordinates, one row per record. Every holder h has a
matrix X_h of integers and a mask A_h, uniform modulo 2^64, which the arbiter deals and knows too. With the masked
E_h = X_h - A_h in everybody's hands,

    X_p'X_q = E_p'E_q + A_p'E_q + E_p'A_q + A_p'A_q

where p can compute the second term, q the third and the arbiter the last. Each adds a pad to its term; the arbiter's
pads cancel the others', and its term carries the noise. The label party adds up all terms, and learns the noisy product
and nothing else: each term by itself is uniform. (Beaver 1991, "Efficient multiparty protocols using circuit
randomization".) The arbiter must not collude with a holder of the masked matrices. Semi-honest parties; not audited.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from colonnade.curves.basis import FloatArray
from colonnade.errors import CryptoError, ProtocolError
from colonnade.models.functional.messages import Chosen, Correction, Layout, Masked, MaskSeed, NoisyShares, Terms
from colonnade.models.functional.release import UNIT
from colonnade.privacy.discrete_gaussian import root_above
from colonnade.privacy.gaussian import gaussian_mu
from colonnade.privacy.mechanisms import DiscreteGaussianMechanism
from colonnade.privacy.randomness import Randomness, Step
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.wire.channel import Channel
from colonnade.wire.message import Int64Array, UInt64Array

MOMENT_NOISE = "moment noise"
MOST_ROWS = 10_000_000
SHARE_BITS, MOST_SHARE_BITS = 12, 15
# Of the squared privacy loss mu^2: for each of two scalars, for the mean of the output, and for the first stage; the
# rest is for the second.
SCALAR_SHARE = 0.015
MEAN_SHARE = 0.01
FIRST_SHARE = 0.35
_LIMB_BITS = 22
_LIMBS = 3
_ROWS_AT_ONCE = 2**9
LEAST_BITS = 8
MOST_BITS = 22


@dataclass(frozen=True)
class Reach:
    """How far one record can move a release, and how much privacy loss that release may have.

    Attributes:
        squared: The square of the L2 sensitivity, exactly, where curves are what they measure.
        mu: The privacy loss.

    >>> reach = Reach(Fraction(9), mu=0.5)
    >>> reach.sensitivity, reach.sigma, reach.on_ring(24).sensitivity == 3 * 2**24
    (3.0, 6.0, True)
    """

    squared: Fraction
    mu: float

    @property
    def sensitivity(self) -> float:
        """The L2 sensitivity."""
        return math.sqrt(self.squared)

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise."""
        return self.sensitivity / self.mu

    def on_ring(self, bits: int) -> DiscreteGaussianMechanism:
        """The noise for sums of integers with a number of bits after the point, and their integer sensitivity."""
        return DiscreteGaussianMechanism.of_loss(root_above(self.squared * 4**bits), self.mu)


@dataclass(frozen=True)
class MomentBudget:
    """Sensitivities and noise of all releases, from the settings and the layout alone.

    One record changes products by the lengths to which its curves are clipped: the sum of all Z_j'Y by at most
    2 Sx Sy sqrt(p), and the outer product of [z, y] with k chosen inputs by at most sqrt(2) (k Sx^2 + Sy^2) in the
    Frobenius norm, for which symmetric noise has half the variance off the diagonal.

    Attributes:
        n_noises: How many parties each add such noise to products of inputs and output.
    """

    clip_x: float
    clip_y: float
    epsilon: float
    delta: float
    inputs: int
    n_noises: int = 1

    @property
    def mu(self) -> float:
        """The privacy loss that all releases together may have."""
        return gaussian_mu(self.epsilon, self.delta)

    @property
    def scalar_x(self) -> Reach:
        """The squared length of all inputs."""
        return self._reach((self.inputs * self._squared_x) ** 2, SCALAR_SHARE)

    @property
    def scalar_y(self) -> Reach:
        """The squared length of the output."""
        return self._reach(self._squared_y**2, SCALAR_SHARE)

    @property
    def mean(self) -> Reach:
        """The sum of the outputs."""
        return self._reach(4 * self._squared_y, MEAN_SHARE)

    @property
    def first(self) -> Reach:
        """All products of inputs and output."""
        return self._reach(4 * self._squared_x * self._squared_y * self.inputs, FIRST_SHARE)

    def second(self, chosen: int) -> Reach:
        """All products among chosen inputs and the output."""
        squared = 2 * (chosen * self._squared_x + self._squared_y) ** 2
        return self._reach(squared, 1 - FIRST_SHARE - MEAN_SHARE - 2 * SCALAR_SHARE)

    @property
    def first_deviation(self) -> float:
        """The standard deviation of all noise on a product of an input and the output in the first stage."""
        return self.first.sigma * math.sqrt(self.n_noises)

    def fewest_rows(self, size: int, outputs: int, threshold: float) -> int:
        """With fewer rows no input stands out from noise but by chance: products are no longer than radii allow.

        >>> MomentBudget(2.0, 2.0, 0.1, 1e-5, 1).fewest_rows(8, 8, 4.0)
        700
        """
        # Noise has size x outputs numbers; what it adds to a squared length varies by the root of twice as many.
        needed = self.first_deviation * math.sqrt(threshold * math.sqrt(2 * size * outputs))
        return math.ceil(needed / (self.clip_x * self.clip_y))

    def share_bits(self, rows: int) -> int:
        """How many bits after the point encrypted numbers have: none is longer than 16 bits."""
        return min(SHARE_BITS, MOST_SHARE_BITS - math.ceil(math.log2(self.clip_x)), self.bits(rows))

    def bits(self, rows: int) -> int:
        """How many bits after the point numbers have."""
        largest = rows * max(self.clip_x, self.clip_y) ** 2 * self.inputs
        widest = max(self.first.sigma, self.second(self.inputs).sigma, self.scalar_x.sigma)
        return fraction_bits(largest + 20 * widest)

    @property
    def _squared_x(self) -> Fraction:
        return Fraction(self.clip_x) ** 2

    @property
    def _squared_y(self) -> Fraction:
        return Fraction(self.clip_y) ** 2

    def _reach(self, squared: Fraction, share: float) -> Reach:
        return Reach(squared, math.sqrt(share) * self.mu)


@dataclass(frozen=True)
class ProductBlocks:
    """How a square matrix of products is made up of the holders' columns of numbers; the label party comes first.

    Attributes:
        kept: Which of each holder's columns of numbers take part.

    >>> blocks = ProductBlocks({"label": np.arange(2), "shop": np.array([4, 5, 6])})
    >>> blocks.at("shop")
    slice(2, 5, None)
    """

    kept: dict[str, Int64Array]

    @classmethod
    def of(cls, widths: dict[str, int], chosen: Int64Array, size: int) -> ProductBlocks:
        """The columns of numbers that belong to chosen inputs, and all of the output's."""
        (label, outputs), *features = widths.items()
        kept, before = {label: np.arange(outputs)}, 0
        for name, width in features:
            own = chosen[(chosen >= before) & (chosen < before + width // size)] - before
            kept[name] = (own[:, None] * size + np.arange(size)).ravel()
            before += width // size
        return cls(kept)

    def at(self, name: str) -> slice:
        """Where a holder's columns stand in the whole."""
        names = list(self.kept)
        start = sum(len(self.kept[other]) for other in names[: names.index(name)])
        return slice(start, start + len(self.kept[name]))

    @property
    def width(self) -> int:
        """How many columns there are in all."""
        return sum(len(columns) for columns in self.kept.values())

    @property
    def inputs(self) -> slice:
        """Where the inputs stand: after the output."""
        return slice(len(next(iter(self.kept.values()))), self.width)

    def zeros(self) -> UInt64Array:
        """A matrix of products, to be added up."""
        return np.zeros((self.width, self.width), np.uint64)


def widths_of(party: Party, layout: Layout) -> dict[str, int]:
    """How many columns of numbers each holder has; the label party first."""
    label = party.roles.label
    assert label is not None
    counts = zip(party.roles.features, layout.columns.tolist(), strict=True)
    return {label: layout.outputs} | {name: n * layout.size for name, n in counts}


def give_terms(party: Party, layout: Layout, clipped: FloatArray, seed: bytes, budget: MomentBudget) -> None:
    """A feature party's side: its matrix behind a mask, then its terms of the products of both stages."""
    line, widths, label, n = party.label_party, widths_of(party, layout), party.roles.label, layout.rows
    assert label is not None
    source = bound_to(Randomness.from_key(seed, source="system"), layout)
    x = clipped_to_ring(clipped, budget.bits(n), clip=budget.clip_x, size=layout.size)
    mask = uniform(source, x.shape, "mask")
    line.send(Masked(party.name, x - mask))
    others = {}
    for name, width in widths.items():
        if name != party.name:
            others[name] = _masked(line, name, (n, width))
    length = ring_length(x) + uniform(source, (1, 1), "pad", 1, "length")
    cross = ring_product(mask, others[label])
    line.send(Terms(1, [length, cross + uniform(source, cross.shape, "pad", 1, label)]))
    chosen = line.receive(Chosen).columns
    blocks = ProductBlocks.of(widths, chosen, layout.size)
    own = blocks.kept[party.name]
    terms = []
    for name in widths:
        if name == party.name:
            product = ring_product(x[:, own], x[:, own])
        else:
            product = ring_product(mask[:, own], others[name][:, blocks.kept[name]])
        terms.append(product + _pad(source, product.shape, chosen, name))
    line.send(Terms(2, terms))


def deal(party: Party, layout: Layout, budget: MomentBudget) -> int:
    """The arbiter's side: deal masks, and add the noise to the terms that the masks leave over.

    Returns:
        How many inputs were chosen.
    """
    widths = widths_of(party, layout)
    names, label, n = list(widths), party.label_party.peer, layout.rows
    bits = 2 * budget.bits(n)
    sources = {name: party.random.child("masks", name) for name in names}
    for name in names:
        party.peers[name].send(MaskSeed(sources[name].key))
    sources = {name: bound_to(source, layout) for name, source in sources.items()}
    masks = {name: uniform(sources[name], (n, widths[name]), "mask") for name in names}
    both = (Secret.FEATURES, Secret.LABELS)
    length, crosses = np.zeros((1, 1), np.uint64), []
    for name in names[1:]:
        length = length - uniform(sources[name], (1, 1), "pad", 1, "length")
        pad = uniform(sources[name], (widths[name], layout.outputs), "pad", 1, label)
        crosses.append(ring_product(masks[name], masks[label]) - pad)
    length = noisy(party, length, budget.scalar_x.on_ring(bits), "length", (Secret.FEATURES,))
    first = noisy(party, np.concatenate(crosses), budget.first.on_ring(bits), "first", both)
    party.label_party.send(Correction(1, [length, first]), under=(MOMENT_NOISE,))

    chosen = party.label_party.receive(Chosen).columns
    require_chosen(chosen, budget.inputs, label)
    blocks = ProductBlocks.of(widths, chosen, layout.size)
    total, kept = blocks.zeros(), blocks.kept
    for p in names[1:]:
        for q in names:
            pad = _pad(sources[p], (len(kept[p]), len(kept[q])), chosen, q)
            total[blocks.at(p), blocks.at(q)] -= pad
            if q != p:
                total[blocks.at(p), blocks.at(q)] += ring_product(masks[p][:, kept[p]], masks[q][:, kept[q]])
            if q not in (p, label):
                total[blocks.at(q), blocks.at(p)] -= pad.T
    if len(chosen):
        mechanism = budget.second(len(chosen)).on_ring(bits)
        total = noisy(party, total, mechanism, second_stage(chosen), both, symmetric=True)
    products = total[blocks.inputs, blocks.inputs], total[blocks.inputs, blocks.at(label)]
    party.label_party.send(Correction(2, list(products)), under=(MOMENT_NOISE,))
    return len(chosen)


class OpenedProducts:
    """The label party's side: noisy products, opened from the terms of all others.

    Args:
        party: The label party.
        layout: What it has told everybody.
        clipped: Its outputs in coordinates, clipped.
        budget: How much noise.
    """

    def __init__(self, party: Party, layout: Layout, clipped: FloatArray, budget: MomentBudget) -> None:
        bits = budget.bits(layout.rows)
        self._party, self._layout, self._bits = party, layout, 2 * bits
        self._widths = widths_of(party, layout)
        source = bound_to(Randomness.from_key(party.arbiter.receive(MaskSeed).seed, source="system"), layout)
        self._own = clipped_to_ring(clipped, bits, clip=budget.clip_y, size=layout.outputs)
        self._masked = {party.name: self._own - uniform(source, self._own.shape, "mask")}
        for line in party.feature_parties:
            self._masked[line.peer] = _masked(line, line.peer, (layout.rows, self._widths[line.peer]))
        for line in party.feature_parties:
            for name, values in self._masked.items():
                if name != line.peer:
                    line.send(Masked(name, values))

    def first(self) -> tuple[float, FloatArray]:
        """The noisy squared length of all inputs, and the noisy products of every input with the output."""
        outputs = self._layout.outputs
        length, parts = np.zeros((1, 1), np.uint64), []
        for line in self._party.feature_parties:
            theirs = stage_terms(line, Terms, 1, [(1, 1), (self._widths[line.peer], outputs)])
            length = length + theirs[0]
            parts.append(theirs[1] + ring_product(self._masked[line.peer], self._own))
        shapes = [(1, 1), (sum(self._widths.values()) - outputs, outputs)]
        correction = stage_terms(self._party.arbiter, Correction, 1, shapes)
        cross = from_ring(np.concatenate(parts) + correction[1], self._bits)
        return float(from_ring(length + correction[0], self._bits)[0, 0]), cross.reshape(-1, self._layout.size, outputs)

    def second(self, chosen: Int64Array) -> tuple[FloatArray, FloatArray]:
        """The noisy products among chosen inputs, and with the output."""
        party, label = self._party, self._party.name
        for line in (party.arbiter, *party.feature_parties):
            line.send(Chosen(chosen))
        blocks = ProductBlocks.of(self._widths, chosen, self._layout.size)
        names, kept, total = list(self._widths), blocks.kept, blocks.zeros()
        masked = {name: values[:, kept[name]] for name, values in self._masked.items()}
        for line in party.feature_parties:
            p = line.peer
            shapes = [(len(kept[p]), len(kept[name])) for name in names]
            for name, term in zip(names, stage_terms(line, Terms, 2, shapes), strict=True):
                total[blocks.at(p), blocks.at(name)] += term
                if name == label:
                    total[blocks.at(p), blocks.at(name)] += ring_product(masked[p], self._own)
                elif name != p:
                    # What p computes is A_p'E_q; its transpose belongs to the product of q with p.
                    total[blocks.at(name), blocks.at(p)] += term.T
                    if names.index(p) < names.index(name):
                        both = ring_product(masked[p], masked[name])
                        total[blocks.at(p), blocks.at(name)] += both
                        total[blocks.at(name), blocks.at(p)] += both.T
        products = total[blocks.inputs, blocks.inputs], total[blocks.inputs, blocks.at(label)]
        theirs = stage_terms(party.arbiter, Correction, 2, [each.shape for each in products])
        gram, cross = (from_ring(a + b, self._bits) for a, b in zip(products, theirs, strict=True))
        return (gram + gram.T) / 2, cross


def require(holds: bool, wanted: str, peer: str) -> None:
    """Refuse what a peer should not have sent."""
    if not holds:
        raise ProtocolError(
            f"Expected {wanted} from {peer}, got something else. Check that all parties run the same plan on equally "
            "many rows."
        )


def require_chosen(chosen: Int64Array, inputs: int, peer: str) -> None:
    """Refuse a choice of inputs that do not exist."""
    exist = (chosen >= 0) & (chosen < inputs)
    require(bool(exist.all() and (np.diff(chosen) > 0).all()), "rising numbers of inputs", peer)


def bound_to(source: Randomness, layout: Layout) -> Randomness:
    """What masks and pads are drawn from.

    An arbiter that is told of fewer inputs would add less noise. With another layout its masks fit nobody's.
    """
    told = (layout.rows, layout.columns.tolist(), layout.size, layout.outputs)
    return source.child("layout", str(told))


def _pad(source: Randomness, shape: tuple[int, ...], chosen: Int64Array, name: str) -> UInt64Array:
    """A feature party's pad in the second stage. Were the choice another after a crash, so would be the pad."""
    return uniform(source, shape, "pad", 2, str(chosen.tolist()), name)


def noisy(
    party: Party,
    values: UInt64Array,
    mechanism: DiscreteGaussianMechanism,
    stage: str,
    protects: tuple[Secret, ...],
    *,
    symmetric: bool = False,
) -> UInt64Array:
    """Values with the noise of one stage, charged to the ledger of the party that adds it.

    Symmetric noise on a square matrix is isotropic in the Frobenius norm.
    """
    return mechanism.release(
        values,
        random=party.random,
        ledger=party.ledger,
        protects=protects,
        unit=UNIT,
        path=("moments", stage),
        by=MOMENT_NOISE,
        symmetric=symmetric,
    )


def second_stage(chosen: Int64Array) -> str:
    """The name of the second stage's noise: with other inputs chosen it is other noise."""
    return f"second of {chosen.tolist()}"


def stage_terms(
    line: Channel, kind: type[Terms | Correction | NoisyShares], stage: int, shapes: Sequence[tuple[int, ...]]
) -> list[UInt64Array]:
    """The matrices of a stage that a peer sends, which must be of given shapes."""
    values = line.receive(kind, fields={"stage": stage}).values
    expected = f"{kind.kind} of stage {stage} and shapes {shapes}"
    require([each.shape for each in values] == list(shapes), expected, line.peer)
    return values


def _masked(line: Channel, holder: str, shape: tuple[int, int]) -> UInt64Array:
    values = line.receive(Masked, fields={"holder": holder}).values
    require(values.shape == shape, f"{holder}'s matrix of shape {shape}", line.peer)
    return values


def fraction_bits(largest: float) -> int:
    """How many bits after the point numbers may have whose products stay below a bound, noise included.

    >>> fraction_bits(1e6)
    21
    """
    bits = min(MOST_BITS, (62 - math.ceil(math.log2(max(largest, 1.0)))) // 2)
    if bits < LEAST_BITS:
        raise CryptoError(
            f"Products up to {largest:.2g} should fit into 62 bits with {LEAST_BITS} bits after the point, but do not. "
            "Bring fewer rows, clip to a smaller radius, or allow a larger epsilon."
        )
    return bits


def to_ring(values: FloatArray, bits: int) -> UInt64Array:
    """Numbers as integers modulo 2^64, rounded towards zero, so that no row becomes longer."""
    return np.trunc(np.ldexp(values, bits)).astype(np.int64).view(np.uint64)


def clipped_to_ring(values: FloatArray, bits: int, *, clip: float, size: int) -> UInt64Array:
    """Curves as integers modulo 2^64, none of them longer than the radius, by exact arithmetic.

    Curves clipped in floating point may be too long by a rounding error, and sensitivities on the ring allow for none.

    Args:
        values: Curves in coordinates, clipped; each row has one or several.
        bits: How many bits after the point the integers have.
        clip: The radius.
        size: How many coordinates a curve has.
    """
    curves = to_ring(values, bits).view(np.int64).reshape(-1, size)
    longest = math.floor(Fraction(clip) ** 2 * 4**bits)
    while len(rows := np.flatnonzero((excess := (curves**2).sum(axis=1) - longest) > 0)):
        columns = np.abs(curves[rows]).argmax(axis=1)
        largest = curves[rows, columns]
        shorter = np.abs(largest) - excess[rows] // (2 * np.abs(largest)) - 1
        curves[rows, columns] = np.sign(largest) * np.maximum(shorter, 0)
    return curves.reshape(values.shape).view(np.uint64)


def from_ring(values: UInt64Array, bits: int) -> FloatArray:
    """The numbers that integers modulo 2^64 stand for."""
    return np.ldexp(values.view(np.int64).astype(np.float64), -bits)


def ring_length(x: UInt64Array) -> UInt64Array:
    """The sum of all squares modulo 2^64, as a matrix of one number."""
    return np.asarray((x * x).sum(dtype=np.uint64)[None, None])


def uniform(random: Randomness, shape: tuple[int, ...], *path: Step) -> UInt64Array:
    """A matrix uniform modulo 2^64, from a cryptographic stream."""
    return random.uniform_bits(math.prod(shape), *path).reshape(shape)


def ring_product(left: UInt64Array, right: UInt64Array) -> UInt64Array:
    """Left' right modulo 2^64: exact products of 22-bit pieces in floating point, which is fast.

    >>> a = np.array([[2**63, 3], [5, 2**64 - 1]], dtype=np.uint64)
    >>> bool((ring_product(a, a) == a.T @ a).all())
    True
    """
    total: UInt64Array = np.zeros((left.shape[1], right.shape[1]), np.uint64)
    # 22 + 22 bits and 2^9 rows make 53 bits, which a double holds exactly.
    for start in range(0, len(left), _ROWS_AT_ONCE):
        lefts = _limbs(left[start : start + _ROWS_AT_ONCE])
        rights = _limbs(right[start : start + _ROWS_AT_ONCE])
        for i in range(_LIMBS):
            for j in range(_LIMBS - i):
                product = (lefts[i].T @ rights[j]).astype(np.uint64)
                total += product << np.uint64(_LIMB_BITS * (i + j))
    return total


def _limbs(values: UInt64Array) -> list[NDArray[np.float64]]:
    mask = np.uint64(2**_LIMB_BITS - 1)
    return [((values >> np.uint64(_LIMB_BITS * i)) & mask).astype(np.float64) for i in range(_LIMBS)]
