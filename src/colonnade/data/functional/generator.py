"""Simulated curves for function-on-function regression: many inputs, and an output that depends on a few.

In coordinates (colonnade.curves) inputs are standard normal, the output is the sum over active inputs z_j W_j of
low-rank operators W_j, plus noise for a given ratio of signal to noise. How the inputs are dealt out to parties changes
nothing else: the same records for every number of parties.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from colonnade.curves import Basis, BSplines, Curves, basis_of
from colonnade.curves.basis import FloatArray
from colonnade.parameters import Limit, check_parameters, choice, count, number
from colonnade.tables.table import Table

Draws: TypeAlias = Literal["numpy", "r"]

_WORD = 2**32
_STEP = 2.3283064365386963e-10
_TINY = 2.328306437080797e-10 / 2
SINGULAR_VALUES = (1.0, 0.7, 0.4)
RESPONSE = "response"


@dataclass(frozen=True)
class FunctionalSetting:
    """All that shapes the simulated curves.

    Attributes:
        n: How many records, the same for every number of parties.
        p: How many inputs.
        active: The inputs that the output depends on, counted from 1.
        rank: The rank of each operator.
        strength: The size of each operator: its Frobenius norm is strength * sqrt(rank).
        snr: Variance of the signal over variance of the noise.
        correlation: Of any two inputs, by a component they have in common.
        basis: Of inputs and output.
        draws: "r" draws what R would draw, "numpy" is faster.
        seed: Where the operators start from; with "numpy", replicate h draws its records from (seed, h).

    >>> FunctionalSetting(n=50, p=4, active=(1, 2)).draw(replicates=1)[0].y
    Curves(50 curves on [0, 100], 20 b-splines)
    """

    limits: ClassVar[Mapping[str, Limit]] = {
        "n": count(2),
        "p": count(),
        "rank": count(),
        "strength": number(above=0),
        "snr": number(above=0),
        "correlation": number(0, below=1),
        "draws": choice("numpy", "r"),
    }

    n: int = 500
    p: int = 20
    active: tuple[int, ...] = (1, 2, 3, 4, 5)
    rank: int = 3
    strength: float = 1.0
    snr: float = 10.0
    correlation: float = 0.0
    basis: Basis = field(default_factory=lambda: BSplines((0.0, 100.0), 20))
    draws: Draws = "numpy"
    seed: int = 1001

    def __post_init__(self) -> None:
        inputs, size = range(1, self.p + 1), self.basis.size
        drawn = {
            "active": Limit(lambda active: set(active) <= set(inputs), f"numbers from 1 to {self.p}", ()),
            "rank": Limit(lambda rank: rank <= size, f"from 1 to {size}", ()),
        }
        check_parameters(self, drawn, called="The generator's")

    def describe(self) -> dict[str, Any]:
        """The setting as plain data."""
        return {**vars(self), "active": list(self.active), "basis": self.basis.describe()}

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> FunctionalSetting:
        """The setting that `describe` described."""
        fields = dict(description)
        fields["basis"], fields["active"] = basis_of(fields["basis"]), tuple(fields["active"])
        return cls(**fields)

    def draw(self, replicates: int) -> list[FunctionalData]:
        """The records of each replicate; all have the same operators."""
        if self.draws == "numpy":
            return [self.draw_one(number) for number in range(1, replicates + 1)]
        # One stream for everything, as a script in R draws.
        source = RRandom(self.seed)
        operators = self._operators(source)
        return [self._replicate(source, operators) for _ in range(replicates)]

    def draw_one(self, replicate: int) -> FunctionalData:
        """One replicate by itself, counted from 1; R's numbers have to be drawn from the first on."""
        if self.draws == "r":
            return self.draw(replicate)[-1]
        return self._replicate(_NumpySource(self.seed, replicate), self._operators(_NumpySource(self.seed, 0)))

    def _operators(self, source: RRandom | _NumpySource) -> FloatArray:
        size, operators = self.basis.size, np.zeros((self.p, self.basis.size, self.basis.size))
        values = np.resize(np.array(SINGULAR_VALUES), self.rank) if self.rank <= 3 else np.linspace(1, 0.4, self.rank)
        for feature in self.active:
            left = np.linalg.qr(source.matrix(size, self.rank))[0]
            right = np.linalg.qr(source.matrix(size, self.rank))[0]
            operator = (left * values) @ right.T
            operators[feature - 1] = operator * (self.strength * np.sqrt(self.rank) / np.linalg.norm(operator))
        return operators

    def _replicate(self, source: RRandom | _NumpySource, operators: FloatArray) -> FunctionalData:
        size = self.basis.size
        z = np.stack([source.matrix(size, self.n).T for _ in range(self.p)])
        if self.correlation:
            common = source.matrix(size, self.n).T
            z = np.sqrt(1 - self.correlation) * z + np.sqrt(self.correlation) * common
        signal = np.einsum("jnq,jqk->nk", z, operators)
        sigma = float(np.sqrt(signal.var(axis=0, ddof=1).sum() / (size * self.snr)))
        y = signal + sigma * source.matrix(size, self.n).T
        inputs = tuple(Curves.of_coordinates(each, self.basis) for each in z)
        output = Curves.of_coordinates(y, self.basis)
        return FunctionalData(inputs, output, self.active, operators, Curves.of_coordinates(signal, self.basis))


@dataclass(frozen=True)
class FunctionalData:
    """Curves of many inputs and one output, record by record.

    Attributes:
        active: The inputs that the output depends on, counted from 1.
        operators: How, in coordinates; None where it is not known.
        signal: The output without its noise; None where it is not known.
        ids: The records' numbers; from 0 if None.
    """

    x: tuple[Curves, ...]
    y: Curves
    active: tuple[int, ...]
    operators: FloatArray | None = None
    signal: Curves | None = None
    ids: NDArray[np.int64] | None = None

    @property
    def record_ids(self) -> NDArray[np.int64]:
        """The records' numbers."""
        return np.arange(len(self.y)) if self.ids is None else self.ids

    def take(self, rows: Any) -> FunctionalData:
        """Some of the records."""
        signal = None if self.signal is None else self.signal.take(rows)
        x, y = tuple(each.take(rows) for each in self.x), self.y.take(rows)
        return FunctionalData(x, y, self.active, self.operators, signal, self.record_ids[rows])

    def tables(self, parties: int) -> dict[str, Table]:
        """The tables of "label", which has the output, and of "worker 1" and so on, who share out the inputs."""
        ids = self.record_ids
        tables = {"label": Table.of({"id": ids, RESPONSE: self.y.to_arrow()}, labels=RESPONSE, owner="label")}
        for worker in range(1, parties + 1):
            owned = owned_features(worker, parties, len(self.x))
            columns = {column(j): self.x[j - 1].to_arrow() for j in owned}
            name = f"worker {worker}"
            tables[name] = Table.of({"id": ids, **columns}, owner=name)
        return tables


def owned_features(worker: int, parties: int, p: int) -> list[int]:
    """The inputs of one worker: input j belongs to worker ((j - 1) mod parties) + 1.

    >>> owned_features(2, 4, 10)
    [2, 6, 10]
    """
    return [j for j in range(1, p + 1) if (j - 1) % parties + 1 == worker]


def column(feature: int) -> str:
    """What an input is called in a table; names sort in the order of the inputs."""
    return f"x{feature:02d}"


class RRandom:
    """What `set.seed(seed)` begins in R, bit for bit: not cryptographic, for simulated data only.

    R seeds a Mersenne Twister by a linear congruential generator, and makes normals by inverting the distribution
    function at uniforms of two words.
    """

    def __init__(self, seed: int) -> None:
        word = seed % _WORD
        for _ in range(50):
            word = (69069 * word + 1) % _WORD
        words = []
        for _ in range(625):
            word = (69069 * word + 1) % _WORD
            words.append(word)
        self._twister = np.random.MT19937()
        state = self._twister.state
        # R keeps the position as the first word, and starts at the end.
        state["state"] = {"key": np.array(words[1:], dtype=np.uint32), "pos": 624}
        self._twister.state = state

    def uniform(self, n: int) -> FloatArray:
        """`runif(n)`."""
        return np.clip(self._twister.random_raw(n).astype(np.float64) * _STEP, _TINY, 1 - _TINY)

    def normal(self, n: int) -> FloatArray:
        """`rnorm(n)`."""
        from scipy.special import ndtri

        pairs = self.uniform(2 * n).reshape(n, 2)
        return np.asarray(ndtri((np.floor(2.0**27 * pairs[:, 0]) + pairs[:, 1]) / 2.0**27))

    def matrix(self, rows: int, columns: int) -> FloatArray:
        """`matrix(rnorm(rows * columns), rows, columns)`, which R fills column by column."""
        return np.ascontiguousarray(self.normal(rows * columns).reshape(columns, rows).T)


class _NumpySource:
    """A stream of standard normal numbers: one for the operators and one for each replicate."""

    def __init__(self, *seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int) -> FloatArray:
        return self._random.standard_normal((columns, rows)).T
