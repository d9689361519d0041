"""Ways to cut one set's columns among its parties, and how uneven and how related the parts are.

    natural           the set's own cut
    random            as many columns for each party, drawn at random
    importance=ALPHA  shares of importance drawn from a Dirichlet distribution: alike if alpha is large, and nearly
                      everything at one party if alpha is small
    correlation=BETA  as many columns for each party; between parties they are related least at 0 and most at 1

alpha, beta and the measure of correlation are those of VertiBench (Wu, Hou and He, arXiv 2307.02040). Two things
differ. There a column goes to a party by chance, with the drawn shares as probabilities. Here columns are dealt so that
the parties' sums of importance follow the drawn shares, because few columns dealt by chance stray far from these. There
a genetic algorithm looks for the least and the most correlation. Here columns are ordered by how they are related, cut
in runs or dealt in turn, and then swapped as long as swaps help.

All columns lie in one place here, so this is for simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from colonnade.data.datasets import Dataset
from colonnade.data.partition import split
from colonnade.data.ranking import RANKED_ROWS, Ranking, column_scores
from colonnade.errors import DataError, PlanError
from colonnade.tables.encode import Inputs
from colonnade.tables.table import Table
from colonnade.text import nearest

LEAST_ALPHA, MOST_ALPHA = 1e-3, 1e6
"""An estimate of alpha ends here; of equal shares every larger one would be as likely."""
# A column that says nothing weighs this share of the mean, so that such columns are dealt out too.
LEAST_WEIGHT = 1e-3
MORE_STARTS = 2
# How many swaps are tried at most, times the columns cubed: each takes decompositions, in cubic time.
MOST_WORK, FEWEST_SWAPS = 100_000_000, 10
# From here on a correlation is as wanted, relative to the range of all.
CLOSE = 0.005

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
LabelsTask: TypeAlias = Literal["classification", "regression"]


@dataclass(frozen=True)
class ColumnSplit:
    """A set's columns cut among parties.

    Attributes:
        table: All columns, with the labels.
        columns: Each party's columns.
        label_party: The party that gets the labels.
        by: How the importance of columns is measured.
        task: What the labels are, which importance depends on.

    >>> from colonnade.data.datasets import load
    >>> cut = natural(load("breast-cancer"), by="mutual-information")
    >>> cut.tables["shop"]
    Table(shop: 569 rows, 15 columns (15 numeric), no labels)
    >>> {party: round(share, 1) for party, share in cut.importance.items()}
    {'bank': 0.5, 'shop': 0.5}
    """

    table: Table
    columns: Mapping[str, tuple[str, ...]]
    label_party: str
    by: Ranking = "shap"
    task: LabelsTask = "classification"

    @property
    def tables(self) -> dict[str, Table]:
        """Each party's table."""
        return split(self.table, self.columns, labels=self.label_party)

    @cached_property
    def importance(self) -> dict[str, float]:
        """Each party's share of all columns' importance."""
        scores = _weights(self.table, self.by, self.task)
        places = {name: place for place, name in enumerate(self.table.columns)}
        sums = np.array([scores[[places[name] for name in names]].sum() for names in self.columns.values()])
        return dict(zip(self.columns, (sums / sums.sum()).tolist(), strict=True))

    @property
    def alpha(self) -> float:
        """The most likely alpha of the Dirichlet distribution that the shares of importance come from.

        One split is one draw of few numbers, so this is rough; `estimated_alpha` takes several.
        """
        return estimated_alpha([tuple(self.importance.values())])

    @cached_property
    def correlation(self) -> float:
        """How much more the columns of different parties are related than those of the same party (Icor)."""
        return _between(_correlations(self.table), self._owners)

    @cached_property
    def beta(self) -> float:
        """Where the correlation lies between the least (0) and the most (1) that a search finds for as many columns."""
        (least, _), (most, _) = _extremes(_correlations(self.table), np.bincount(self._owners))
        return 0.0 if most <= least else float(np.clip((self.correlation - least) / (most - least), 0.0, 1.0))

    @property
    def _owners(self) -> IntArray:
        owner = {name: place for place, names in enumerate(self.columns.values()) for name in names}
        return np.array([owner[name] for name in self.table.columns], np.int64)


def cut_columns(dataset: Dataset, how: str, *, seed: int = 0, by: Ranking = "shap") -> ColumnSplit:
    """Cut a set's columns in a way that is named in text.

    Args:
        dataset: The set.
        how: "natural", "random", "importance=ALPHA" or "correlation=BETA".
        seed: Which of the possible splits.
        by: How the importance of columns is measured.

    >>> from colonnade.data.datasets import load
    >>> len(cut_columns(load("breast-cancer"), "random", seed=1).columns["shop"])
    15
    """
    name, value = parse(how)
    match name, value:
        case "natural", None:
            return natural(dataset, by=by)
        case "random", None:
            return at_random(dataset, seed=seed, by=by)
        case "importance", float():
            return by_importance(dataset, alpha=value, seed=seed, by=by)
        case _:
            assert value is not None
            return by_correlation(dataset, beta=value, seed=seed, by=by)


def parse(how: str) -> tuple[str, float | None]:
    """The name of a way to cut columns, and its number where it takes one.

    Raises:
        PlanError: There is no such way, or its alpha or beta is out of range.

    >>> parse("importance=0.5")
    ('importance', 0.5)
    """
    name, _, text = how.partition("=")
    try:
        value = float(text) if text else None
    except ValueError:
        value = None
    if name not in _WAYS or (value is None) != (name in ("natural", "random")) or (value is None and text):
        raise PlanError(
            "Columns are cut as natural, random, importance=ALPHA or correlation=BETA, such as importance=0.5, but "
            f"{how!r} was given.{nearest(name, _WAYS)} Name one of these."
        )
    if value is not None:
        _require_range(name, value)
    return name, value


_WAYS = ("natural", "random", "importance", "correlation")


def _require_range(name: str, value: float) -> None:
    parameter, low, high = ("alpha", LEAST_ALPHA, MOST_ALPHA) if name == "importance" else ("beta", 0.0, 1.0)
    if not low <= value <= high:
        raise PlanError(f"{parameter} should lie between {low:g} and {high:g}, but is {value:g}. Change it.")


def natural(dataset: Dataset, *, by: Ranking = "shap") -> ColumnSplit:
    """The set's own cut."""
    return ColumnSplit(dataset.joined(), dataset.columns, _label_party(dataset), by, _task(dataset))


def at_random(dataset: Dataset, *, seed: int = 0, by: Ranking = "shap") -> ColumnSplit:
    """As many columns for each party as can be, drawn at random."""
    table = dataset.joined()
    owners = _balanced(len(table.columns), _n_parties(dataset, table))
    return _split(dataset, table, np.random.default_rng(seed).permutation(owners), by)


def by_importance(dataset: Dataset, *, alpha: float, seed: int = 0, by: Ranking = "shap") -> ColumnSplit:
    """Columns dealt so that the parties' sums of importance follow shares drawn from a Dirichlet distribution.

    Args:
        dataset: The set.
        alpha: The distribution's parameter, the same for all parties: at 1 every mixture is as likely, above 1 parties
            are alike, below 1 one of them has most.
        seed: What the shares are drawn from.
        by: How the importance of columns is measured.
    """
    _require_range("importance", alpha)
    table = dataset.joined()
    shares = np.random.default_rng(seed).dirichlet(np.full(_n_parties(dataset, table), alpha))
    return _split(dataset, table, deal(_weights(table, by, _task(dataset)), shares), by)


def by_correlation(dataset: Dataset, *, beta: float, seed: int = 0, by: Ranking = "shap") -> ColumnSplit:
    """As many columns for each party as can be, cut so that parties' columns are related as much as wanted.

    Args:
        dataset: The set.
        beta: 0 for the least correlation between parties that is found, 1 for the most, and between them.
        seed: Which of the splits between least and most.
        by: How the importance of columns is measured.
    """
    _require_range("correlation", beta)
    table = dataset.joined()
    correlations = _correlations(table)
    sizes = np.bincount(_balanced(len(table.columns), _n_parties(dataset, table)))
    (least, apart), (most, together) = _extremes(correlations, sizes)
    wanted, random = (1 - beta) * least + beta * most, np.random.default_rng(seed)
    path = _path(apart, together, random)
    near = min(path, key=lambda owners: abs(_between(correlations, owners) - wanted))
    off = _searched(correlations, near, lambda found: abs(found - wanted), random, CLOSE * (most - least))
    return _split(dataset, table, off[1], by)


def deal(weights: FloatArray, shares: FloatArray) -> IntArray:
    """The party of each column, so that the parties' sums of weights are near to their shares; each gets a column.

    >>> deal(np.array([1.0, 3.0, 2.0]), np.array([0.5, 0.5])).tolist()
    [1, 0, 1]
    """
    missing, owners = shares * weights.sum(), np.zeros(len(weights), np.int64)
    for column in np.argsort(-weights, kind="stable"):
        owners[column] = missing.argmax()
        missing[owners[column]] -= weights[column]
    for party in range(len(shares)):
        if not (owners == party).any():
            richest = np.flatnonzero(owners == np.bincount(owners).argmax())
            owners[richest[weights[richest].argmin()]] = party
    return owners


def estimated_alpha(shares: Sequence[Sequence[float]]) -> float:
    """The most likely alpha of a Dirichlet distribution, the same for all parties, from the shares of some splits.

    >>> round(estimated_alpha(np.random.default_rng(0).dirichlet([2.0, 2.0, 2.0], 4_000)), 1)
    2.0
    """
    from scipy.optimize import brentq
    from scipy.special import digamma

    parts = np.maximum(np.asarray(shares, np.float64), 1e-12)
    n_parties, mean_log = parts.shape[1], float(np.log(parts).mean())

    def slope(log_alpha: float) -> float:
        alpha = np.exp(log_alpha)
        return float(digamma(n_parties * alpha) - digamma(alpha) + mean_log)

    low, high = np.log(LEAST_ALPHA), np.log(MOST_ALPHA)
    if slope(low) <= 0:
        return LEAST_ALPHA
    return MOST_ALPHA if slope(high) >= 0 else float(np.exp(brentq(slope, low, high)))


def _label_party(dataset: Dataset) -> str:
    if dataset.label_party is None:
        raise DataError(
            f"Columns are cut among a label party and others, but the set {dataset.name!r} has no labels. "
            "Choose another set."
        )
    return dataset.label_party


def _n_parties(dataset: Dataset, table: Table) -> int:
    n_parties, n_columns = len(dataset.tables), len(table.columns)
    if n_columns < n_parties:
        raise DataError(
            f"Each of {n_parties} parties should get a column, but the set {dataset.name!r} has {n_columns}. "
            "Use its natural cut."
        )
    return n_parties


def _split(dataset: Dataset, table: Table, owners: IntArray, by: Ranking) -> ColumnSplit:
    columns = {
        party: tuple(name for name, owner in zip(table.columns, owners, strict=True) if owner == place)
        for place, party in enumerate(dataset.tables)
    }
    return ColumnSplit(table, columns, _label_party(dataset), by, _task(dataset))


def _balanced(n_columns: int, n_parties: int) -> IntArray:
    return np.arange(n_columns) % n_parties


def _task(dataset: Dataset) -> LabelsTask:
    """Whether labels are classes: counts are whole numbers as well, but no classes."""
    return "classification" if dataset.task in ("binary", "classes") else "regression"


def _weights(table: Table, by: Ranking, task: LabelsTask) -> FloatArray:
    """How important each column is for the labels; never 0."""
    scores = np.maximum(np.array(list(column_scores(table, by=by, task=task).values())), 0.0)
    return np.maximum(scores, LEAST_WEIGHT * scores.mean()) if scores.any() else np.ones(len(scores))


def _correlations(table: Table) -> FloatArray:
    """Spearman's correlation of each column with each; categories count by their codes."""
    from scipy.stats import rankdata

    taken = table.take(np.unique(np.linspace(0, len(table) - 1, RANKED_ROWS).astype(np.int64)))
    ranks = rankdata(Inputs.learned(taken, np.arange(len(taken))).plain(taken), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: FloatArray = np.corrcoef(ranks.T)
    # A constant column has no correlation, which counts as none.
    return np.nan_to_num(found)


def _between(correlations: FloatArray, owners: IntArray) -> float:
    """VertiBench's Icor: the mean over pairs of parties of how related they are, less how related each is in itself."""
    places = [np.flatnonzero(owners == party) for party in range(int(owners.max()) + 1)]
    apart = [_related(correlations[np.ix_(one, other)]) for one, other in combinations(places, 2)]
    within = [_related(correlations[np.ix_(one, one)]) for one in places]
    return float(np.mean(apart) - np.mean(within))


def _related(block: FloatArray) -> float:
    """VertiBench's Pcor: the spread of a correlation matrix's singular values, 1 where all columns are one."""
    values = np.linalg.svd(block, compute_uv=False)
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


_Found: TypeAlias = tuple[float, IntArray]


def _extremes(correlations: FloatArray, sizes: IntArray) -> tuple[_Found, _Found]:
    """The least and the most correlation between parties of these sizes that is found, and where."""
    return _remembered_extremes(correlations.tobytes(), tuple(sizes.tolist()))


@lru_cache(maxsize=16)
def _remembered_extremes(numbers: bytes, sizes: tuple[int, ...]) -> tuple[_Found, _Found]:
    n = sum(sizes)
    correlations = np.frombuffer(numbers).reshape(n, n)
    # Neighbours in this order are related: the eigenvector is the usual relaxation of cutting a graph in two.
    order = np.argsort(np.linalg.eigh(np.abs(correlations))[1][:, -2]) if n > 1 else np.arange(n)
    runs, turns = np.empty(n, np.int64), np.empty(n, np.int64)
    runs[order] = np.repeat(np.arange(len(sizes)), sizes)
    # The party that has had the smallest share of its columns so far is next.
    ranks = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    turns[order] = np.repeat(np.arange(len(sizes)), sizes)[np.argsort(ranks, kind="stable")]
    random = np.random.default_rng(0)
    others = [random.permutation(runs) for _ in range(MORE_STARTS)]
    lows = [_searched(correlations, start, lambda found: found, random) for start in (runs, *others)]
    highs = [_searched(correlations, start, lambda found: -found, random) for start in (turns, *others)]
    (least, apart), (loss, together) = (min(found, key=lambda each: each[0]) for found in (lows, highs))
    return (least, apart), (-loss, together)


def _searched(
    correlations: FloatArray,
    owners: IntArray,
    loss: Callable[[float], float],
    random: np.random.Generator,
    enough: float = -np.inf,
) -> _Found:
    """The smallest loss that swaps of two columns lead to from a cut, until none helps, and the cut that has it."""
    n = len(owners)
    best, owners = loss(_between(correlations, owners)), owners.copy()
    left, helped = max(FEWEST_SWAPS, MOST_WORK // n**3), True
    while helped and left > 0:
        helped = False
        for one, other in random.permutation(list(combinations(range(n), 2))):
            if left <= 0 or best <= enough:
                return best, owners
            if owners[one] == owners[other]:
                continue
            left -= 1
            owners[[one, other]] = owners[[other, one]]
            found = loss(_between(correlations, owners))
            if found < best:
                best, helped = found, True
            else:
                owners[[one, other]] = owners[[other, one]]
    return best, owners


def _path(start: IntArray, end: IntArray, random: np.random.Generator) -> list[IntArray]:
    """Cuts on the way from one to another of the same sizes, each one swap of two columns from the last."""
    path, owners = [start], start.copy()
    for column in random.permutation(len(start)):
        if owners[column] != end[column]:
            other = np.flatnonzero((owners == end[column]) & (end != owners))[0]
            owners[[column, other]] = owners[[other, column]]
            path.append(owners.copy())
    return path
