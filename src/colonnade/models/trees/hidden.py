"""Hidden sums: the best split of each node, found on secret shares; only the winners are opened.

The label party and a feature party have shares of the sums over bins (`crypto.hinted`). A split with left sums (G, H)
at a node with sums (A, H_node) gains, with C = H_node + 2 reg_lambda, b = H + reg_lambda and z = G - (A / C) b,

    A^2 / C + C z^2 / (b (C - b)) - A^2 / (H_node + reg_lambda)

so candidates of a node are compared by  z_1^2 v_2 > z_2^2 v_1  with  v = b (C - b), without a division, and both
children weigh enough exactly if  v >= w (C - w)  with  w = min_child_weight + reg_lambda.

    label party                                              feature party
    which nodes: the parents of those asked for    ---->     the parents' shares less these are the siblings'
    its factors, by transfers                      <--->     shares of  s (G - (A / C) b)  and of  t b         `scaling`
    both shift, square and shift again             <--->     shares of z^2 and of v
    both compare v with the least one              <--->     z^2 where a child weighs too little becomes 0
    both compare by twos, fours and at last tens   <--->     shares of the best candidate: number, z^2 and v
    several feature parties                                  the others give their shares of it to the first one
    both compare the best of each party            <--->     the first feature party alone
    reads number, z^2 and v of each node's best    <----     its shares of these

The label party's own best split, or the gain that a split needs, is the first candidate of the first feature party,
known to the label party alone. What is opened tells the label party which split wins at a node, and what it gains; the
sides of rows, which it fetches next, tell it the same. Of other candidates nobody learns anything, however good they
are. A feature party learns how many nodes there are and which of them were split. Assumed is that parties are
semi-honest, and that the label party and the first feature party do not pool what they have: together they could read
the best candidate of each party at each node, though no other.

Numbers are scaled by factors that only the label party knows, so that z has 30 bits, z^2 has 32 and v has 19 at each
node. z is then known to 2^-22 of the most that the node's gradients allow, and v to 2^-18 of C^2 / 4; a candidate that
gains more than an earlier one, but by less than that, loses, and candidates that gain the same do as the rule for ties
says. Children with less than 2^-17 of a node's hessians are left out. Categorical columns send one level to the left,
whatever their number of levels: their order cannot be known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import floor, log2
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.paired import Bits, all_of, kept, negative, shift
from colonnade.crypto.reserves import Amount, Reserve
from colonnade.crypto.scaling import scale_as_chooser, scale_as_sender
from colonnade.crypto.shares import Share
from colonnade.crypto.transfers import NOTHING, Turns
from colonnade.crypto.triples import multiply, square
from colonnade.errors import CryptoError, PlanError
from colonnade.models.trees.bins import MOST_BINS, Column, starts
from colonnade.models.trees.grow import Node
from colonnade.models.trees.losses import Gradients
from colonnade.models.trees.splits import Candidates, Choice, Split, TreeParameters
from colonnade.wire.message import Int64Array

MOST_TOTAL = 2**38
"""What absolute values of gradients, and of hessians, sum to at most: `Gradients.of` takes it where sums are hidden."""
SUM_BITS, RATIO_BITS, WEIGHT_BITS = 35, 47, 31
"""How many bits the label party's factors have: of G, of A / C, and of b."""
_SHIFT, _SQUARE_SHIFT = 31, 28
# z has 30 bits after the first shift; the middle of v's parabola has 23.5, so that v has 19.
_MOST_Z, _MOST_WEIGHT = 2**61, 50_000_000_000_000_000
_VALUE_BITS, _LEAST_BITS = 53, 21
_MOST_VALUE, _MOST_V = 2**32, 2**19
_NO_CHILD = 2**20 - 1
# What shares of sums and two shifts may be off by, in units of v.
_OFF = 3
# By how many units of v an earlier candidate is ahead of later ones.
_AHEAD = 2
# How many units shares of the sums over some bins are off by, at most in practice.
_OFF_SUMS = 64
_ROOT = np.uint64(2**64 - 1)
_SMALLEST_CHILD = 2**-17
_TWOS, _FOURS = 64, 12

Best: TypeAlias = Share
"""One side's shares of the best candidates (3, nodes): z^2, v and number."""
Exchange: TypeAlias = Callable[[Sequence[Turns[Any]]], list[Any]]
"""Takes turns with feature parties, the first of them first, and returns what the label party ends with for each."""


def hidden_parameters(parameters: TreeParameters) -> TreeParameters:
    """Parameters as trees with hidden sums take them.

    Raises:
        PlanError: reg_alpha or max_delta_step is set. With either, a side with sums (G, H) gains less than
            G^2 / (H + reg_lambda): by c (2 G - c) over the same, c being G cut to reg_alpha, or by the square of what
            |G| exceeds max_delta_step (H + reg_lambda) by, over the same. In which case a sum is, nobody may see. That
            takes four comparisons for each candidate beside the two that there are, two squares and two products, by
            count twice the bytes and time, and has not been built.
    """
    for name in ("reg_alpha", "max_delta_step"):
        if getattr(parameters, name):
            raise PlanError(
                f"Hidden sums require {name} = 0, but {name} is {getattr(parameters, name)}: the formula of a gain "
                f"would depend on the signs and sizes of sums that nobody may see. Set {name}=0, which count:poisson "
                "takes too, or choose other sums."
            )
    return replace(parameters, max_cat_to_onehot=MOST_BINS + 1)


def filled(
    sums: NDArray[Any], columns: Sequence[Column], totals: NDArray[Any], told: NDArray[np.bool_] | None = None
) -> NDArray[Any]:
    """Sums over all bins (nodes, bins, 2), from those over all but the last bin of each column and the nodes' totals.

    It serves for shares too, where one side takes the totals and the other one zeros. Sums of columns that are not told
    are 0.
    """
    ends, widths = starts(columns), [column.width for column in columns]
    told = np.ones(len(columns), np.bool_) if told is None else told
    out, inside = np.zeros((len(totals), int(ends[-1]), 2), sums.dtype), np.repeat(told, widths)
    inside[ends[1:] - 1] = False
    out[:, inside] = sums
    rest = totals[:, None] - np.add.reduceat(out, ends[:-1], axis=1, dtype=out.dtype)
    out[:, (ends[1:] - 1)[told]] = rest[:, told]
    return out


def n_candidates(columns: Sequence[Column], allowed: NDArray[np.bool_] | None = None) -> int:
    """How many candidates columns have where sums are hidden."""
    return len(_chosen(Candidates(tuple(columns), MOST_BINS + 1), allowed))


def needed(n_nodes: int, n_candidates: int) -> Amount:
    """What one batch of nodes takes of the reserve between the label party and one feature party."""
    factors = SUM_BITS + RATIO_BITS + WEIGHT_BITS
    each = Amount(forth=4 + 2, back=2, squares=2) + Amount.of_signs(1, _LEAST_BITS)
    # The first feature party has one candidate more, the label party's.
    return Amount(seeds=n_nodes * factors) + each * (n_nodes * n_candidates) + _tournament(n_nodes, n_candidates + 1)


def needed_for_tree(n_nodes: int, n_candidates: int, n_parties: int = 1) -> Amount:
    """What a tree takes at most between the label party and the first feature party; the others take no more.

    Args:
        n_nodes: At how many nodes a split is looked for.
        n_candidates: How many candidates the feature party has.
        n_parties: How many feature parties there are.
    """
    return needed(n_nodes, n_candidates) + _tournament(n_nodes, n_parties)


def _tournament(n_nodes: int, n: int) -> Amount:
    total = Amount()
    for size in _sizes(n):
        groups = n_nodes * -(-n // size)
        pairs = groups * size * (size - 1) // 2
        total = total + Amount.of_signs(pairs, _VALUE_BITS) + Amount(triples=2 * pairs)
        total = total + Amount(bits=2 * groups * (size - 1) * (size - 2))
        total = total + Amount(forth=3, back=3) * (groups * (size - 1))
        n = -(-n // size)
    return total


def _sizes(n: int) -> list[int]:
    """How large the groups of each round are: by twos while there are many, since larger groups compare more pairs."""
    sizes = []
    while n > 1:
        size = 2 if n > _TWOS else 4 if n > _FOURS else n
        sizes.append(size)
        n = -(-n // size)
    return sizes


class HiddenChooser:
    """The label party's `Chooser` for one tree.

    Args:
        own: The label party's columns, which come first.
        others: The columns of each feature party.
        gradients: What is summed up.
        parameters: How the tree grows; see `hidden_parameters`.
        reserves: What was prepared ahead with each feature party; the label party is the first side.
        exchange: Takes turns with as many of the feature parties as it is given turns, the first of them first.
        allowed: Which columns may split; None for all.
    """

    def __init__(
        self,
        own: Sequence[Column],
        others: Sequence[Sequence[Column]],
        gradients: Gradients,
        parameters: TreeParameters,
        reserves: Sequence[Reserve],
        exchange: Exchange,
        allowed: NDArray[np.bool_] | None = None,
    ) -> None:
        self._parts = [Candidates(tuple(each), MOST_BINS + 1) for each in (own, *others)]
        self._gradients, self._parameters = gradients, hidden_parameters(parameters)
        self._reserves, self._exchange = reserves, exchange
        ends = np.cumsum([0, *(len(part.columns) for part in self._parts)])
        self._first_columns = [int(each) for each in ends[:-1]]
        cuts = None if allowed is None else [allowed[a:b] for a, b in pairwise(ends)]
        self._allowed = [None if cuts is None else cuts[place] for place in range(len(self._parts))]
        self._chosen = [_chosen(part, some) for part, some in zip(self._parts, self._allowed, strict=True)]
        self._ids: dict[int, int] = {}

    def __call__(self, nodes: Sequence[Node]) -> list[Choice | None]:
        """The best splits of nodes, the children of one node beside each other."""
        # Of each pair the child that was asked for comes first, so that nobody is told whether it is the left one.
        order = sorted(range(len(nodes)), key=lambda place: (place // 2, not nodes[place].asked))
        ordered = [nodes[place] for place in order]
        parents = [_ROOT if each.parent is None else self._ids[each.parent] for each in ordered if each.asked]
        self._ids |= {each.number: len(self._ids) + place for place, each in enumerate(ordered)}
        own = self._own_choices(ordered)
        scales = _Scales.of(ordered, self._gradients, self._parameters, own)
        bests = self._exchange(self._ranks(np.array(parents, np.uint64), ordered, scales))
        (opened,) = self._exchange([_decide_as_label(bests, scales, self._reserves[0])])
        choices: list[Choice | None] = [None] * len(nodes)
        for place, number in enumerate(opened[2].tolist()):
            gain = scales.gain(place, *opened[:2, place].tolist())
            choices[order[place]] = own[place] if number == 0 else Choice(self._split(number), gain)
        return choices

    def _own_choices(self, nodes: Sequence[Node]) -> list[Choice | None]:
        """The best splits by the label party's own columns."""
        own = self._parts[0]
        sums = np.stack([node.sums[: starts(own.columns)[-1]] for node in nodes])
        totals = np.array([node.totals for node in nodes], np.int64)
        return own.best(sums, totals, self._gradients, self._parameters, self._allowed[0])

    def _ranks(self, parents: NDArray[np.uint64], nodes: Sequence[Node], scales: _Scales) -> list[Turns[Best]]:
        """The turns with each feature party."""
        turns, first, number = [], int(starts(self._parts[0].columns)[-1]), 1
        for place, (part, chosen) in enumerate(zip(self._parts[1:], self._chosen[1:], strict=True)):
            end = first + int(starts(part.columns)[-1])
            sums = np.stack([node.sums[first:end] for node in nodes]).astype(np.int64).view(np.uint64)
            turns.append(
                _rank_as_label(
                    parents, part.lefts(sums)[:, chosen], scales, self._reserves[place], number, beside=place == 0
                )
            )
            first, number = end, number + len(chosen)
        return turns

    def _split(self, number: int) -> Split:
        """The split of an opened number."""
        number -= 1
        for part, chosen, first in zip(self._parts[1:], self._chosen[1:], self._first_columns[1:], strict=True):
            if number < len(chosen):
                return replace(found := part.split(int(chosen[number])), column=found.column + first)
            number -= len(chosen)
        raise CryptoError("Expected the number of a candidate, but it was opened to none. A feature party is faulty.")


class HiddenShares:
    """A feature party's side for one tree: its shares of the sums of all nodes so far.

    Args:
        columns: Its columns.
        reserve: What was prepared ahead with the label party; this is the second side.
        first: Whether this is the first feature party.
        allowed: Which of its columns may split; None for all.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        reserve: Reserve,
        *,
        first: bool = True,
        allowed: NDArray[np.bool_] | None = None,
    ) -> None:
        self._candidates, self._reserve, self._first = Candidates(tuple(columns), MOST_BINS + 1), reserve, first
        self._chosen = _chosen(self._candidates, allowed)
        self._nodes: list[Share] = []

    def rank(self, found: Share) -> Turns[Best]:
        """The turns after each query.

        Args:
            found: This party's shares (nodes, sums, 2), without the last bin of each column.

        Returns:
            Its shares of the best candidates. All but the first feature party send them there.
        """
        asked = filled(found, self._candidates.columns, np.zeros((len(found), 2), np.uint64))
        parents = yield NOTHING
        if parents.shape != (len(asked),):
            raise CryptoError(
                f"Expected the parents of {len(asked)} nodes, got an array of shape {parents.shape}. "
                "Check that both parties run the same version."
            )
        before = len(self._nodes)
        for parent, sums in zip(parents, asked, strict=True):
            if parent == _ROOT:
                self._nodes = [sums]
                before = 0
            elif parent < before:
                self._nodes += [sums, self._nodes[int(parent)] - sums]
            else:
                raise CryptoError(f"Expected a node of the tree as a parent, got number {parent}. Start the run again.")
        nodes = np.stack(self._nodes[before:])
        left = self._candidates.lefts(nodes)[:, self._chosen]
        best = yield from _ranked(left, None, self._reserve)
        return (yield from _winner(_beside(best, None, self._first), None, self._reserve))

    def decide(self, bests: Sequence[Best]) -> Turns[None]:
        """The first feature party's turns after the best candidates of all feature parties have come."""
        best = yield from _winner(np.stack(bests, axis=2), None, self._reserve)
        yield best.ravel()


@dataclass(frozen=True)
class _Scales:
    """What the label party knows of nodes: its factors, and the candidate that the others have to beat.

    Attributes:
        sums: The factors s of G.
        ratios: The factors s A / C of b.
        weights: The factors t of b.
        ridge: reg_lambda in units of hessians.
        half: t C / 2.
        least: The least v.
        ahead: By how much of z^2 an earlier candidate is ahead of later ones.
        entry: z^2 and v (2, nodes) of the candidate to beat.
        units: What z^2 / v is multiplied by.
        constants: C and what else belongs to a gain (2, nodes).
    """

    sums: Int64Array
    ratios: Int64Array
    weights: Int64Array
    ridge: int
    half: Int64Array
    least: Int64Array
    ahead: Int64Array
    entry: Share
    units: NDArray[np.float64]
    constants: NDArray[np.float64]

    @classmethod
    def of(
        cls, nodes: Sequence[Node], gradients: Gradients, parameters: TreeParameters, own: Sequence[Choice | None]
    ) -> _Scales:
        """The scales of nodes, with the best split by own columns of each."""
        ridge = round(parameters.reg_lambda * 2**gradients.h_bits)
        found = [_scale(*each, gradients, parameters, ridge) for each in zip(nodes, own, strict=True)]
        sums, ratios, weights, half, least, ahead, value, weight, units, *constants = zip(*found, strict=True)
        return cls(
            sums=np.array(sums, np.int64),
            ratios=np.array(ratios, np.int64),
            weights=np.array(weights, np.int64),
            ridge=ridge,
            half=np.array(half, np.int64),
            least=np.array(least, np.int64),
            ahead=np.array(ahead, np.int64),
            entry=np.array([value, weight], np.int64).view(np.uint64),
            units=np.array(units),
            constants=np.array(constants),
        )

    def gain(self, place: int, value: float, weight: float) -> float:
        """What a candidate of a node gains."""
        return float(self.constants[0, place] * value / max(weight, 1) / self.units[place] + self.constants[1, place])


def _scale(
    node: Node, own: Choice | None, gradients: Gradients, parameters: TreeParameters, ridge: int
) -> tuple[float, ...]:
    """One node's part of all that `_Scales` holds, in its order."""
    total, weight = node.totals
    whole = weight + 2 * ridge
    if whole <= 0:
        return 1, 0, 1, 0, _NO_CHILD, 0, _MOST_VALUE, 1, 1.0, 0.0, 0.0
    g, h = gradients.g[node.rows], gradients.h[node.rows]
    # The most that |z| can be; shares of sums are off by a few units for each bin.
    most = float(np.abs(g - total / whole * h).sum()) / 2 + 2**11
    factor = min(2 ** (SUM_BITS - 1) - 1, floor(_MOST_Z / most))
    if total:
        factor = max(1, min(factor, (2 ** (RATIO_BITS - 1) - 1) * whole // abs(total) - 1))
    ratio = (2 * factor * total + whole) // (2 * whole)
    times = max(1, min(2 ** (WEIGHT_BITS - 1) - 1, _MOST_WEIGHT // whole))
    smallest = max(round(parameters.min_child_weight * 2**gradients.h_bits), floor(_SMALLEST_CHILD * whole) + 1) + ridge
    least = (smallest * times * (whole - smallest) * times >> 2 * _SHIFT + _SQUARE_SHIFT) - _OFF
    constant, real = float(np.ldexp(total, -gradients.g_bits)), float(np.ldexp(whole, -gradients.h_bits))
    alone = float(parameters.gains(gradients.reals(np.array(node.totals, np.int64))))
    wanted = max(parameters.gamma, parameters.min_split_gain) if own is None else own.gain
    unit = (factor / times) ** 2 * 4.0 ** (gradients.g_bits - gradients.h_bits)
    rest = constant**2 / real - alone
    beaten = max((wanted - rest) / real * unit, 0.0)
    weight_bits = 19 if beaten <= _MOST_VALUE / _MOST_V else max(0, floor(log2(_MOST_VALUE / beaten)))
    return (
        factor,
        ratio,
        times,
        times * whole // 2,
        max(1, least) if 2 * smallest <= whole else _NO_CHILD,
        6 + (_OFF_SUMS * factor >> _SHIFT - 2),
        min(_MOST_VALUE, round(beaten * 2**weight_bits)),
        2**weight_bits,
        unit,
        real,
        rest,
    )


def _rank_as_label(
    parents: NDArray[np.uint64], left: Share, scales: _Scales, reserve: Reserve, number: int, *, beside: bool
) -> Turns[Best]:
    """The label party's turns with one feature party, whose candidates are numbered from `number` on."""
    yield parents
    ranked = yield from _ranked(left, scales, reserve, number)
    return (yield from _winner(_beside(ranked, scales, beside), scales, reserve))


def _decide_as_label(bests: Sequence[Best], scales: _Scales, reserve: Reserve) -> Turns[NDArray[np.int64]]:
    """The label party's turns with the first feature party: z^2, v and number of the best candidates, opened."""
    best = yield from _winner(np.stack(bests, axis=2), scales, reserve)
    came = yield NOTHING
    if came.shape != (best.size,) or came.dtype != np.uint64:
        raise CryptoError(
            f"Expected {best.size} shares of the best candidates, got an array of shape {came.shape}. "
            "Check that both parties run the same version."
        )
    return (best + came.reshape(best.shape)).view(np.int64)


def _ranked(left: Share, scales: _Scales | None, reserve: Reserve, number: int = 0) -> Turns[Share]:
    """Either side's turns: shares of z^2, v and the number (3, nodes, candidates); `scales` are the label party's."""
    n_nodes, n, leading = *left.shape[:2], reserve.leading
    if n == 0:
        return np.zeros((3, n_nodes, 0), np.uint64)
    g, b = left[..., 0], left[..., 1]
    if scales is not None:
        b = b + np.uint64(scales.ridge)
    factors = (None, None, None) if scales is None else (scales.sums, scales.ratios, scales.weights)
    z = yield from _scaled(g, factors[0], SUM_BITS, reserve)
    z = z - (yield from _scaled(b, factors[1], RATIO_BITS, reserve))
    y = yield from _scaled(b, factors[2], WEIGHT_BITS, reserve)
    if scales is not None:
        y = y - scales.half.view(np.uint64)[:, None]
    small = yield from _shifted(np.stack([z, y]), _SHIFT, reserve)
    squares = yield from square(small.ravel(), reserve.squares(small.size), leading=leading)
    z2, y2 = squares.reshape(small.shape)
    v = np.uint64(0) - y2
    if scales is not None:
        v = v + ((scales.half >> _SHIFT) ** 2).view(np.uint64)[:, None]
    z2, v = yield from _shifted(np.stack([z2, v]), _SQUARE_SHIFT, reserve)
    spare = v if scales is None else v - scales.least.view(np.uint64)[:, None]
    light = yield from negative(spare.ravel(), _LEAST_BITS, reserve.signs(spare.size, _LEAST_BITS))
    heavy = (light ^ np.uint8(leading)).reshape(n_nodes, n)
    most = np.uint64(_MOST_V * leading)
    kept_z2, kept_v = yield from _kept(np.stack([z2, v - most]), np.stack([heavy, heavy]), reserve)
    numbers = np.arange(number, number + n, dtype=np.uint64) if leading else np.zeros(n, np.uint64)
    return np.stack([kept_z2, kept_v + most, np.broadcast_to(numbers, (n_nodes, n))])


def _beside(ranked: Share, scales: _Scales | None, first: bool) -> Share:
    """The candidates, behind the one to beat where the feature party is the first one; one at least."""
    n_nodes = ranked.shape[1]
    if not first and ranked.shape[2]:
        return ranked
    entry = np.zeros((3, n_nodes, 1), np.uint64)
    if scales is not None:
        entry[:2, :, 0] = scales.entry if first else np.array([[0], [_MOST_V]], np.uint64)
    return np.concatenate([entry, ranked], axis=2)


def _winner(entries: Share, scales: _Scales | None, reserve: Reserve) -> Turns[Best]:
    """Either side's turns: shares of the best candidate (3, nodes); of equal ones the first."""
    ahead = np.uint64(0) if scales is None else scales.ahead.view(np.uint64)[:, None, None]
    n_nodes, leading = entries.shape[1], reserve.leading
    for size in _sizes(entries.shape[2]):
        lacking = -entries.shape[2] % size
        filling = np.zeros((3, n_nodes, lacking), np.uint64)
        filling[1] = np.uint64(_MOST_V * leading)
        groups = np.concatenate([entries, filling], axis=2).reshape(3, n_nodes, -1, size)
        earlier, later = np.triu_indices(size, 1)
        value, weight = groups[0], groups[1]
        # The earlier candidate is ahead by what equal ones may differ by.
        x = np.stack([value[..., earlier] + ahead, value[..., later]])
        y = np.stack([weight[..., later] + np.uint64(_AHEAD * leading), weight[..., earlier]])
        products = yield from multiply(x.ravel(), y.ravel(), reserve.triples(x.size), leading=leading)
        products = products.reshape(x.shape)
        behind = (products[0] - products[1]).ravel()
        beats = yield from negative(behind, _VALUE_BITS, reserve.signs(behind.size, _VALUE_BITS))
        best = yield from _last_record(beats.reshape(x.shape[1:]), size, reserve)
        differences = np.moveaxis(groups[..., 1:] - groups[..., :1], -1, 1)
        taken = yield from _kept(differences, np.broadcast_to(best, differences.shape), reserve)
        entries = groups[..., 0] + taken.sum(axis=1, dtype=np.uint64)
    return entries[..., 0]


def _last_record(beats: Bits, size: int, reserve: Reserve) -> Turns[Bits]:
    """Either side's turns: which of the candidates of a group but the first is the last to beat all earlier ones.

    Args:
        beats: For each pair of a group whether the later one beats the earlier one (nodes, groups, pairs).
        size: How many candidates a group has.
        reserve: What was prepared ahead.
    """
    true, n_products = np.uint8(reserve.leading), (size - 1) * (size - 2) * beats[..., 0].size
    factors = np.full((size - 1, size - 1, *beats.shape[:2]), true)
    for place, (one, two) in enumerate(zip(*np.triu_indices(size, 1), strict=True)):
        factors[one, two - 1] = beats[..., place]
    records = yield from all_of(factors, reserve.bits(n_products), leading=reserve.leading)
    factors = np.full_like(factors, true)
    for number in range(size - 1):
        factors[number, number] = records[number]
        factors[number + 1 :, number] = records[number + 1 :] ^ true
    return (yield from all_of(factors, reserve.bits(n_products), leading=reserve.leading))


def _scaled(share: Share, factors: Int64Array | None, bits: int, reserve: Reserve) -> Turns[Share]:
    seeds = reserve.seeds(len(share) * bits)
    if factors is None:
        return (yield from scale_as_sender(bits, share, seeds))
    return (yield from scale_as_chooser(factors, bits, share, seeds))


def _shifted(share: Share, bits: int, reserve: Reserve) -> Turns[Share]:
    found = yield from shift(share.ravel(), bits, reserve.shifts(share.size), leading=reserve.leading)
    return found.reshape(share.shape)


def _kept(share: Share, bits: Bits, reserve: Reserve) -> Turns[Share]:
    own, others = reserve.choices(share.size)
    found = yield from kept(share.ravel(), bits.ravel(), own, others)
    return found.reshape(share.shape)


def _chosen(candidates: Candidates, allowed: NDArray[np.bool_] | None) -> Int64Array:
    """The numbers of the candidates that are compared."""
    return np.arange(len(candidates)) if allowed is None else np.flatnonzero(candidates.among(allowed))
