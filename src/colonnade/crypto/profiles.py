"""The frozen parameters of the lattice schemes, how far they are from perfect hiding, and the budget of answers.

`security_bits` is the least of the lattice-estimator's attacks in the MATZOV model, for ternary secrets and centred
binomial errors. That of `hinted-8192-200` was estimated for a modulus of 208 bits, which is easier to attack. Nothing
here can be chosen by a plan: other values are other code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import log2, prod, sqrt
from pathlib import Path

from blake3 import blake3

from colonnade.errors import BudgetSpent
from colonnade.storage import Entry, HeldLog, SharedLog

# Fisher information of a sum of three uniforms of width W is 4.56 / W^2.
FISHER = 4.56
# The largest statistical distance that any profile may reach at its caps.
DISTANCE_BITS = 40


@dataclass(frozen=True)
class Profile:
    """One frozen set of lattice parameters.

    Attributes:
        name: What it is called on the wire.
        n: The degree of the ring.
        primes: The factors of the modulus q, each 1 modulo 2n.
        scale_bits: Messages are multiples of 2^scale_bits times the first prime, by which hints and answers are divided
            before they are sent; 0 where they are multiples of q / 2^message_bits instead.
        message_bits: Messages are integers modulo 2^message_bits; 0 where they are bounded integers instead.
        flood_bits: Three uniforms of that many bits hide the noise of an answer; 0 where a mask over all of Z_q does.
        security_bits: The estimated cost of the best known attack, as a power of two.
        most_rows: The longest vector.
        most_values: How many values may be answered about one data set of this many rows before noise could tell
            anything; for fewer rows see `values_within`.
    """

    name: str
    n: int
    primes: tuple[int, ...]
    scale_bits: int
    message_bits: int
    flood_bits: int
    security_bits: float
    most_rows: int
    most_values: int

    @cached_property
    def modulus(self) -> int:
        """The modulus q."""
        return prod(self.primes)

    @property
    def modulus_bits(self) -> float:
        """The logarithm of q."""
        return log2(self.modulus)

    @property
    def scale(self) -> int:
        """What messages are multiplied by."""
        return self.primes[0] << self.scale_bits if self.scale_bits else self.modulus >> self.message_bits

    @cached_property
    def fingerprint(self) -> bytes:
        """A digest of all parameters, which two parties compare before they begin."""
        return blake3(repr(sorted(asdict(self).items())).encode()).digest(16)

    def distance_bits(self, noise: float, values: int) -> float:
        """How far, as minus a power of two, answers are from hiding their noise altogether.

        The statistical distance is at most sqrt(values) * noise * sqrt(Fisher information) / 2.

        Args:
            noise: The root mean square of the noise below the flood.
            values: How many values are answered.
        """
        return -log2(sqrt(values) * noise * sqrt(FISHER) / 2) + self.flood_bits

    def values_within(self, noise: float) -> int:
        """How many values may be answered with such noise before the distance exceeds 2^-40."""
        return int((2.0 ** (self.flood_bits - DISTANCE_BITS + 1) / (noise * sqrt(FISHER))) ** 2)


HISTOGRAM = Profile(
    name="hinted-8192-200",
    n=8192,
    primes=(1125899906826241, 1125899906629633, 1125899905744897, 1125899905351681),
    scale_bits=17,
    message_bits=0,
    flood_bits=65,
    security_bits=132.1,
    most_rows=2**24,
    most_values=2**22,
)

ARBITER = Profile(
    name="rlwe-8192-156",
    n=8192,
    primes=(67043329, 66994177, 66961409, 66813953, 66551809, 66420737),
    scale_bits=0,
    message_bits=53,
    flood_bits=100,
    security_bits=180.8,
    most_rows=2**19,
    most_values=2**30,
)

SHARES = replace(ARBITER, name="shares-8192-156", message_bits=64, flood_bits=90)


class Budget:
    """How many values one peer may still be answered about one data set, over all runs; past the cap it refuses.

    Every flooded answer tells a little, and what it tells adds up: a new run does not make anybody forget. So the count
    outlives runs. It is taken from a log in portions, each written down before the first of its values is answered; a
    crash loses the rest of a portion, never an answer. The party that answers keeps the log and asks nobody. Runs that
    go on at the same time take their portions one after the other, under the lock of the log.

    Args:
        profile: Under which the peer is answered.
        peer: Who is answered.
        data: What tells the data set from others.
        log: A file with a line for each portion; None counts this run only, as in a simulation.
        most: The cap; the profile's where None.

    >>> budget = Budget(HISTOGRAM, peer="bank")
    >>> budget.spend(640)
    >>> budget.spent
    640
    """

    def __init__(
        self, profile: Profile, *, peer: str, data: str = "", log: Path | None = None, most: int | None = None
    ) -> None:
        self.profile, self.peer, self.data, self.log = profile, peer, data, log
        self.most = profile.most_values if most is None else most
        self._shared = None if log is None else SharedLog(log, "one portion of answers")
        self._taken = self._left = 0

    @property
    def spent(self) -> int:
        """How many values were answered, or written down for this run or others."""
        return (self._taken if self._shared is None else self._written(self._shared.entries())) - self._left

    def spend(self, values: int) -> None:
        """Count values about to be answered.

        Raises:
            BudgetSpent: They would exceed the cap; nothing was counted.
        """
        if values > self._left:
            with self._held() as held:
                written = self._taken if held is None else self._written(held.entries())
                spent, cap = written - self._left, self.most
                if spent + values > cap:
                    raise BudgetSpent(
                        f"{self.peer} may be answered {cap} encrypted values about one data set, but {spent} were "
                        f"answered and {values} more are asked for. Train with fewer steps or rows of data."
                    )
                # A thousandth of the cap at a time costs few writes, and a crash little.
                portion = min(max(values - self._left, cap >> 10), cap - spent - self._left)
                if held is not None:
                    held.append({**self._whose, "values": portion})
            self._taken += portion
            self._left += portion
        self._left -= values

    @contextmanager
    def _held(self) -> Iterator[HeldLog | None]:
        if self._shared is None:
            yield None
            return
        with self._shared.locked() as held:
            yield held

    @property
    def _whose(self) -> dict[str, str]:
        return {"profile": self.profile.name, "peer": self.peer, "data": self.data}

    def _written(self, entries: Iterable[Entry]) -> int:
        try:
            return sum(int(entry["values"]) for entry in entries if entry.items() >= self._whose.items())
        except (ValueError, KeyError, TypeError) as error:
            assert self._shared is not None
            raise self._shared.damaged() from error
