"""Noisy products of curves that several parties hold: what crosses for them, and each side of the exchange.

Products are computed on masked numbers (colonnade.models.functional.shared_products). Feature parties and the label
party hold matrices, curves in coordinates, one row per record; the arbiter deals masks and adds noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from colonnade.curves.basis import FloatArray
from colonnade.errors import ProtocolError
from colonnade.models.functional.release import UNIT
from colonnade.models.functional.shared_products import (
    clipped_to_ring,
    fraction_bits,
    from_ring,
    ring_product,
    uniform,
)
from colonnade.privacy.discrete_gaussian import root_above
from colonnade.privacy.gaussian import gaussian_mu
from colonnade.privacy.mechanisms import DiscreteGaussianMechanism
from colonnade.privacy.randomness import Randomness
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.wire.message import Int64Array, Message, UInt64Array

PROTECTION = "moment noise"
MOST_ROWS = 10_000_000
SHARE_BITS, MOST_SHARE_BITS = 12, 15
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


class HasTerms(Protocol):
    """A message with matrices of one stage."""

    @property
    def kind(self) -> str:
        """What kind of message it is."""

    @property
    def stage(self) -> int:
        """Of which stage."""

    @property
    def values(self) -> list[UInt64Array]:
        """The matrices."""


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
        """The noise for sums of integers with so many bits after the point, and their integer sensitivity."""
        return DiscreteGaussianMechanism.of_loss(root_above(self.squared * 4**bits), self.mu)


@dataclass(frozen=True)
class Budget:
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
    def first(self) -> Reach:
        """All products of inputs and output."""
        return self._reach(4 * self._squared_x * self._squared_y * self.inputs, FIRST_SHARE)

    def second(self, chosen: int) -> Reach:
        """All products among chosen inputs and the output."""
        squared = 2 * (chosen * self._squared_x + self._squared_y) ** 2
        return self._reach(squared, 1 - FIRST_SHARE - 2 * SCALAR_SHARE)

    @property
    def first_deviation(self) -> float:
        """The standard deviation of all noise on a product of an input and the output in the first stage."""
        return self.first.sigma * math.sqrt(self.n_noises)

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
class Blocks:
    """How a square matrix of products is made up of the holders' columns of numbers; the label party comes first.

    Attributes:
        kept: Which of each holder's columns of numbers take part.

    >>> blocks = Blocks({"label": np.arange(2), "shop": np.array([4, 5, 6])})
    >>> blocks.at("shop")
    slice(2, 5, None)
    """

    kept: dict[str, Int64Array]

    @classmethod
    def of(cls, widths: dict[str, int], chosen: Int64Array, size: int) -> Blocks:
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


def give_terms(party: Party, layout: Layout, clipped: FloatArray, seed: bytes, budget: Budget) -> None:
    """A feature party's side: its matrix behind a mask, then its terms of the products of both stages."""
    line, widths, label, n = party.label_party, widths_of(party, layout), party.roles.label, layout.rows
    assert label is not None
    source = Randomness.from_key(seed, source="system")
    x = clipped_to_ring(clipped, budget.bits(n), clip=budget.clip_x, size=layout.size)
    mask = uniform(source, x.shape, "mask")
    line.send(Masked(party.name, x - mask))
    others = {}
    for name, width in widths.items():
        if name != party.name:
            masked = line.receive(Masked)
            require(masked.holder == name and masked.values.shape == (n, width), f"{name}'s matrix", line.peer)
            others[name] = masked.values
    length = (x * x).sum(dtype=np.uint64)[None, None] + uniform(source, (1, 1), "pad", 1, "length")
    cross = ring_product(mask, others[label])
    line.send(Terms(1, [length, cross + uniform(source, cross.shape, "pad", 1, label)]))
    chosen = line.receive(Chosen).columns
    blocks = Blocks.of(widths, chosen, layout.size)
    own = blocks.kept[party.name]
    terms = []
    for name in widths:
        if name == party.name:
            product = ring_product(x[:, own], x[:, own])
        else:
            product = ring_product(mask[:, own], others[name][:, blocks.kept[name]])
        terms.append(product + _pad(source, product.shape, chosen, name))
    line.send(Terms(2, terms))


def deal(party: Party, layout: Layout, budget: Budget) -> int:
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
    masks = {name: uniform(sources[name], (n, widths[name]), "mask") for name in names}
    both = (Secret.FEATURES, Secret.LABELS)
    length, crosses = np.zeros((1, 1), np.uint64), []
    for name in names[1:]:
        length = length - uniform(sources[name], (1, 1), "pad", 1, "length")
        pad = uniform(sources[name], (widths[name], layout.outputs), "pad", 1, label)
        crosses.append(ring_product(masks[name], masks[label]) - pad)
    length = noisy(party, length, budget.scalar_x.on_ring(bits), "length", (Secret.FEATURES,))
    first = noisy(party, np.concatenate(crosses), budget.first.on_ring(bits), "first", both)
    party.label_party.send(Correction(1, [length, first]), under=(PROTECTION,))

    chosen = party.label_party.receive(Chosen).columns
    require_chosen(chosen, budget.inputs, label)
    blocks = Blocks.of(widths, chosen, layout.size)
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
        total = symmetrically_noisy(party, total, budget.second(len(chosen)).on_ring(bits), chosen, both)
    products = total[blocks.inputs, blocks.inputs], total[blocks.inputs, blocks.at(label)]
    party.label_party.send(Correction(2, list(products)), under=(PROTECTION,))
    return len(chosen)


class OpenedProducts:
    """The label party's side: noisy products, opened from the terms of all others.

    Args:
        party: The label party.
        layout: What it has told everybody.
        clipped: Its outputs in coordinates, clipped.
        budget: How much noise.
    """

    def __init__(self, party: Party, layout: Layout, clipped: FloatArray, budget: Budget) -> None:
        bits = budget.bits(layout.rows)
        self._party, self._layout, self._bits = party, layout, 2 * bits
        self._widths = widths_of(party, layout)
        source = Randomness.from_key(party.arbiter.receive(MaskSeed).seed, source="system")
        self._own = clipped_to_ring(clipped, bits, clip=budget.clip_y, size=layout.outputs)
        self._masked = {party.name: self._own - uniform(source, self._own.shape, "mask")}
        for line in party.feature_parties:
            message, width = line.receive(Masked), self._widths[line.peer]
            require(message.values.shape == (layout.rows, width), f"a matrix of {width} columns", line.peer)
            self._masked[line.peer] = message.values
        for line in party.feature_parties:
            for name, values in self._masked.items():
                if name != line.peer:
                    line.send(Masked(name, values))

    def first(self) -> tuple[float, FloatArray]:
        """The noisy squared length of all inputs, and the noisy products of every input with the output."""
        outputs = self._layout.outputs
        length, parts = np.zeros((1, 1), np.uint64), []
        for line in self._party.feature_parties:
            theirs = terms_of(line.receive(Terms), 1, [(1, 1), (self._widths[line.peer], outputs)], line.peer)
            length = length + theirs[0]
            parts.append(theirs[1] + ring_product(self._masked[line.peer], self._own))
        shapes = [(1, 1), (sum(self._widths.values()) - outputs, outputs)]
        arbiter = self._party.arbiter
        correction = terms_of(arbiter.receive(Correction), 1, shapes, arbiter.peer)
        cross = from_ring(np.concatenate(parts) + correction[1], self._bits)
        return float(from_ring(length + correction[0], self._bits)[0, 0]), cross.reshape(-1, self._layout.size, outputs)

    def second(self, chosen: Int64Array) -> tuple[FloatArray, FloatArray]:
        """The noisy products among chosen inputs, and with the output."""
        party, label = self._party, self._party.name
        for line in (party.arbiter, *party.feature_parties):
            line.send(Chosen(chosen))
        blocks = Blocks.of(self._widths, chosen, self._layout.size)
        names, kept, total = list(self._widths), blocks.kept, blocks.zeros()
        masked = {name: values[:, kept[name]] for name, values in self._masked.items()}
        for line in party.feature_parties:
            p = line.peer
            shapes = [(len(kept[p]), len(kept[name])) for name in names]
            for name, term in zip(names, terms_of(line.receive(Terms), 2, shapes, p), strict=True):
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
        arbiter = party.arbiter
        theirs = terms_of(arbiter.receive(Correction), 2, [each.shape for each in products], arbiter.peer)
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


def _pad(source: Randomness, shape: tuple[int, ...], chosen: Int64Array, name: str) -> UInt64Array:
    """A feature party's pad in the second stage. Were the choice another after a crash, so would be the pad."""
    return uniform(source, shape, "pad", 2, str(chosen.tolist()), name)


def noisy(
    party: Party, values: UInt64Array, mechanism: DiscreteGaussianMechanism, stage: str, protects: tuple[Secret, ...]
) -> UInt64Array:
    """Values with the noise of one stage, charged to the ledger of the party that adds it."""
    return mechanism.release(
        values,
        random=party.random,
        ledger=party.ledger,
        protects=protects,
        unit=UNIT,
        path=("moments", stage),
        by=PROTECTION,
    )


def symmetrically_noisy(
    party: Party,
    values: UInt64Array,
    mechanism: DiscreteGaussianMechanism,
    chosen: Int64Array,
    protects: tuple[Secret, ...],
) -> UInt64Array:
    """A square matrix with the noise of the second stage: symmetric, and isotropic in the Frobenius norm."""
    return mechanism.release_symmetric(
        values,
        random=party.random,
        ledger=party.ledger,
        protects=protects,
        unit=UNIT,
        path=("moments", f"second of {chosen.tolist()}"),
        by=PROTECTION,
    )


def terms_of(message: HasTerms, stage: int, shapes: Sequence[tuple[int, ...]], peer: str) -> list[UInt64Array]:
    """The matrices of a message, which must be of a stage and of given shapes."""
    found = [values.shape for values in message.values]
    require(
        message.stage == stage and found == list(shapes), f"{message.kind} of stage {stage} and shapes {shapes}", peer
    )
    return message.values
