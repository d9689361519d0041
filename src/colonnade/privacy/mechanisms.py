"""Mechanisms: noise, and the event that accounts for it, in one call.

What is promised about integers. `DiscreteGaussianMechanism` draws exactly (colonnade.privacy.discrete_gaussian), on the
grid that the values themselves lie on. Use it for everything on a ring.

What is promised about floating point. Noise added in floating point can betray the value under it through its
lowest bits (Mironov 2012). Here the sum of value and noise is rounded to multiples of a power of two, the grid, with
1024 to 2048 grid steps to one noise scale. Which grid it is depends on the scale alone, and every value can end on
every point of it. Rounding comes after the noise, so it is post-processing: it does not enlarge the sensitivity, as
rounding the values first would. Noise is drawn by inverting the distribution function in double precision at uniforms
of 127 bits from a cryptographic stream. Within 10 standard deviations (50 scales for Laplace) the probability of each
grid point is right to a relative error of 1e-9; all that lies beyond has a probability below 2**-70.

What is not promised. For floating point the ledger charges for ideal noise on real numbers. For each released number
that differs between neighbours the difference is at most 2e-9 in epsilon and 2**-70 * (1 + e**epsilon) in delta, and is
not charged. Nothing is said about the sensitivity, which the caller computes (in floating point, too), nor about time,
memory or errors as side channels. Two releases under one path show whether their values were the same: if a peer's
inputs enter the values, give the path a digest of these inputs. Under seeded randomness everybody who knows the seed
can subtract the noise: only `Randomness.system` protects anybody.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from colonnade.errors import DataError, PlanError
from colonnade.privacy.discrete_gaussian import check_width, draw, width_above
from colonnade.privacy.gaussian import ROUNDING_VARIANCE, gaussian_mu
from colonnade.privacy.ledger import Adjacency, Event, Ledger
from colonnade.privacy.randomness import Randomness, Step
from colonnade.secret import Secret

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
Kind: TypeAlias = Literal["gaussian", "laplace"]
Integers = TypeVar("Integers", npt.NDArray[np.int64], npt.NDArray[np.uint64])

_STEPS_PER_SCALE_BITS = 10
_LARGEST_INDEX = 2.0**52


@dataclass(frozen=True)
class _AdditiveNoise(ABC):
    """Noise added to numbers whose sensitivity, over the whole array released at once, is known."""

    kind: ClassVar[Kind]

    sensitivity: float

    def __post_init__(self) -> None:
        _check_positive(**vars(self))

    @property
    @abstractmethod
    def noise_scale(self) -> float:
        """How much noise: the standard deviation of "gaussian", the scale parameter of "laplace"."""

    def event(self, protects: Secret, unit: str, adjacency: Adjacency = "replace-one", *, by: str = "") -> Event:
        """Return the event that accounts for one release."""
        parameters = tuple(sorted((name, float(value)) for name, value in vars(self).items()))
        return Event(protects, unit, self.kind, parameters, adjacency, by=by)

    def release(
        self,
        values: npt.ArrayLike,
        *,
        random: Randomness,
        ledger: Ledger,
        protects: Secret,
        unit: str,
        adjacency: Adjacency = "replace-one",
        path: tuple[Step, ...] = (),
        by: str = "",
    ) -> FloatArray:
        """Spend the event, then return the values with noise.

        The noise is a function of `random`, `path`, the event and the values. A release repeated after a crash
        gives the same numbers and costs nothing; one of other values or under another path has noise of its own.
        `by` names the protection as messages that go out under it do; without it, the event accounts for no message.

        Raises:
            DataError: Nothing was given, or something that is not a finite number, or is far too large.
            BudgetSpent: The ledger's budget does not allow it; nothing was drawn.
        """
        event = self.event(protects, unit, adjacency, by=by)
        exact = _check_values(values, self.noise_scale)
        stream = _charged(exact, [event], random, ledger, path)
        return _noisy(exact, self.kind, self.noise_scale, stream.uniform_bits(2 * exact.size))


@dataclass(frozen=True)
class GaussianMechanism(_AdditiveNoise):
    """Gaussian noise on numbers whose L2 sensitivity, over the whole array released at once, is known.

    Example:
        >>> mechanism = GaussianMechanism.calibrated(1.0, epsilon=1.0, delta=1e-5)
        >>> round(mechanism.sigma, 6)
        3.730632
        >>> ledger = Ledger()
        >>> means = mechanism.release(
        ...     [20.0, 30.0], random=Randomness.seeded(0), ledger=ledger, protects=Secret.FEATURES, unit="record"
        ... )
        >>> print(ledger.spent(Secret.FEATURES, 1e-5))
        epsilon 1 at delta 1e-05 per record (replace-one; 1 × gaussian)
    """

    kind: ClassVar[Kind] = "gaussian"

    sigma: float

    @classmethod
    def calibrated(cls, sensitivity: float, *, epsilon: float, delta: float) -> Self:
        """Return the mechanism with the least noise that is (epsilon, delta) private (Balle & Wang 2018)."""
        return cls(sensitivity, sensitivity / _allowed_mu(epsilon, delta))

    @property
    def noise_scale(self) -> float:
        return self.sigma


@dataclass(frozen=True)
class LaplaceMechanism(_AdditiveNoise):
    """Laplace noise on numbers whose L1 sensitivity, over the whole array released at once, is known.

    Example:
        >>> ledger = Ledger()
        >>> count = LaplaceMechanism.calibrated(1.0, epsilon=0.5).release(
        ...     42, random=Randomness.seeded(0), ledger=ledger, protects=Secret.LABELS, unit="record"
        ... )
        >>> ledger.epsilon(0.0, protects=Secret.LABELS)
        0.5
    """

    kind: ClassVar[Kind] = "laplace"

    scale: float

    @classmethod
    def calibrated(cls, sensitivity: float, *, epsilon: float) -> Self:
        """Return the mechanism that is epsilon private."""
        _check_positive(epsilon=epsilon)
        return cls(sensitivity, sensitivity / epsilon)

    @property
    def noise_scale(self) -> float:
        return self.scale


@dataclass(frozen=True)
class DiscreteGaussianMechanism:
    """Discrete Gaussian noise on integers whose L2 sensitivity, over the whole array released at once, is known.

    Values are 64-bit integers, signed or not; noise is added modulo 2^64, so that shares of a sum can carry it.

    Attributes:
        sensitivity: An integer from 1.
        sigma: The width, an exact fraction, in units of the values.

    Example:
        >>> mechanism = DiscreteGaussianMechanism.calibrated(1000, epsilon=1.0, delta=1e-5)
        >>> round(float(mechanism.sigma), 3)
        3730.632
        >>> ledger = Ledger()
        >>> sums = mechanism.release(
        ...     [20, 30], random=Randomness.seeded(0), ledger=ledger, protects=Secret.FEATURES, unit="record"
        ... )
        >>> print(ledger.spent(Secret.FEATURES, 1e-5))
        epsilon 1 at delta 1e-05 per record (replace-one; 1 × discrete-gaussian)
    """

    sensitivity: int
    sigma: Fraction | int

    def __post_init__(self) -> None:
        check_width(self.sigma)
        if isinstance(self.sensitivity, bool) or not isinstance(self.sensitivity, int) or self.sensitivity < 1:
            raise PlanError(
                f"Expected the sensitivity of integers to be an integer from 1, got {self.sensitivity!r}. "
                "Round the sensitivity up."
            )

    @classmethod
    def calibrated(cls, sensitivity: int, *, epsilon: float, delta: float) -> Self:
        """Return the mechanism with the least noise that is charged at most (epsilon, delta)."""
        return cls.of_loss(sensitivity, _allowed_mu(epsilon, delta))

    @classmethod
    def of_loss(cls, sensitivity: int, mu: float) -> Self:
        """Return the mechanism with the least noise that is charged as Gaussian noise of this mu at most."""
        _check_positive(mu=mu)
        return cls(sensitivity, width_above((sensitivity / Fraction(mu)) ** 2 + ROUNDING_VARIANCE))

    def event(self, protects: Secret, unit: str, adjacency: Adjacency = "replace-one", *, by: str = "") -> Event:
        """Return the event that accounts for one release."""
        parameters = (("sensitivity", self.sensitivity), ("sigma", float(self.sigma)))
        return Event(protects, unit, "discrete-gaussian", parameters, adjacency, by=by)

    def release(
        self,
        values: Integers | list[int],
        *,
        random: Randomness,
        ledger: Ledger,
        protects: Secret | tuple[Secret, ...],
        unit: str,
        adjacency: Adjacency = "replace-one",
        path: tuple[Step, ...] = (),
        by: str = "",
        symmetric: bool = False,
    ) -> Integers:
        """Spend one event for each secret, then return the values with noise; see `GaussianMechanism.release`.

        `symmetric` noise is for a square matrix, whose sensitivity is in the Frobenius norm. What one record moves off
        the diagonal moves twice, but need be hidden once: noise there has half the variance. Numbers on the diagonal
        and above are drawn apart, each from its own width.
        """
        exact = _check_integers(values)
        if symmetric and (exact.ndim != 2 or exact.shape[0] != exact.shape[1]):
            raise DataError(f"Expected a square matrix to release, got the shape {exact.shape}. Give a square one.")
        secrets = (protects,) if isinstance(protects, Secret) else protects
        events = [self.event(secret, unit, adjacency, by=by) for secret in secrets]
        stream = _charged(exact, events, random, ledger, path)
        if symmetric:
            upper = np.triu_indices(len(exact), 1)
            noise = np.diag(draw(len(exact), self.sigma, stream.child("diagonal")))
            noise[upper] = draw(len(upper[0]), self._sigma_above_diagonal, stream.child("above the diagonal"))
            noise.T[upper] = noise[upper]
        else:
            noise = draw(exact.size, self.sigma, stream).reshape(exact.shape)
        return exact + noise.view(exact.dtype)

    @property
    def _sigma_above_diagonal(self) -> Fraction:
        # With the variance v of rounding, 2 (s^2 - v) >= sigma^2 - v keeps what is charged.
        return width_above((Fraction(self.sigma) ** 2 + ROUNDING_VARIANCE) / 2)


@dataclass(frozen=True)
class RandomisedResponse:
    """Labels kept with probability e**epsilon / (e**epsilon + K - 1), else replaced by any other of the K classes.

    Each label is randomised by itself. If every unit has one label, a whole array costs epsilon once. Labels drawn
    twice cost twice: draw once and keep what was drawn. How many classes there are is public: where they are counted
    among the labels, a class of one label is not hidden.

    Example:
        >>> ledger = Ledger()
        >>> labels = RandomisedResponse(epsilon=1.0, n_classes=3).release(
        ...     [0, 1, 2, 2, 1, 0], random=Randomness.seeded(0), ledger=ledger
        ... )
        >>> ledger.epsilon(0.0, protects=Secret.LABELS)
        1.0
    """

    epsilon: float
    n_classes: int

    def __post_init__(self) -> None:
        _check_positive(epsilon=self.epsilon)
        if self.n_classes < 2:
            raise PlanError(
                f"Expected randomised response over at least 2 classes, got {self.n_classes}. Correct n_classes."
            )

    @property
    def keep_probability(self) -> float:
        """How probably a label stays what it is."""
        return 1 / (1 + (self.n_classes - 1) * math.exp(-self.epsilon))

    def event(self, protects: Secret = Secret.LABELS, unit: str = "label", *, by: str = "") -> Event:
        """Return the event that accounts for one release."""
        parameters = (("epsilon", float(self.epsilon)), ("n_classes", int(self.n_classes)))
        return Event(protects, unit, "randomised-response", parameters, by=by)

    def release(
        self,
        labels: npt.ArrayLike,
        *,
        random: Randomness,
        ledger: Ledger,
        protects: Secret = Secret.LABELS,
        unit: str = "label",
        path: tuple[Step, ...] = (),
        by: str = "",
    ) -> IntArray:
        """Spend the event, then return the randomised labels; see `GaussianMechanism.release`."""
        kept = self._check_labels(labels)
        stream = _charged(kept, [self.event(protects, unit, by=by)], random, ledger, path)
        words = stream.uniform_bits(2 * kept.size).reshape(2, *kept.shape)
        flipped = words[0] < np.uint64(self._flipping_words)
        shift = (words[1] % np.uint64(self.n_classes - 1)).astype(np.int64) + 1
        return np.asarray(np.where(flipped, (kept + shift) % self.n_classes, kept))

    @property
    def _flipping_words(self) -> int:
        """How many of the 2^64 words flip a label.

        Rounded up by more than floating point can be off, and by more than a word's remainder favours any class: no
        label is kept more often, compared with each other class, than promised.
        """
        others = self.n_classes - 1
        flip_probability = others * math.exp(-self.epsilon) * self.keep_probability
        return max(1, math.ceil(flip_probability * (1 + (16 + others) * 2.0**-52) * 2.0**64))

    def _check_labels(self, labels: npt.ArrayLike) -> IntArray:
        given = np.asarray(labels)
        expected = f"Expected labels to be class numbers from 0 to {self.n_classes - 1}"
        if given.size == 0:
            raise DataError(f"{expected}, got none. Give at least one label.")
        if given.dtype.kind not in "biu":
            raise DataError(f"{expected}, got an array of {given.dtype}. Encode the classes as integers first.")
        if outside := int(np.count_nonzero((given < 0) | (given >= self.n_classes))):
            raise DataError(f"{expected}; {outside} of {given.size} lie outside. Correct n_classes or the labels.")
        return given.astype(np.int64)


def grid_step(scale: float) -> float:
    """Return the distance between neighbouring outputs of a mechanism with this noise scale: a power of two."""
    _, exponent = math.frexp(scale)
    return math.ldexp(1.0, exponent - 1 - _STEPS_PER_SCALE_BITS)


def _charged(
    values: FloatArray | IntArray | npt.NDArray[np.uint64],
    events: list[Event],
    random: Randomness,
    ledger: Ledger,
    path: tuple[Step, ...],
) -> Randomness:
    """Spend a release's events; return what its noise is drawn from, bound to its place, mechanism and values.

    The same values at the same place get the same noise, so that a step repeated after a crash gives nothing new away;
    other values never get that noise, so that a peer who provokes a repetition with other inputs cannot subtract.
    """
    kind = blake3(repr((events[0], values.shape)).encode()).digest()
    stream = random.child("release", *path, blake3(np.ascontiguousarray(values).tobytes(), key=kind).hexdigest())
    for event in events:
        # Derived under the key: the ledger's file then betrays no values, and noise of another key is never free.
        ledger.spend(event, identity=stream.child("identity").key)
    return stream


def _noisy(values: FloatArray, kind: Kind, scale: float, words: npt.NDArray[np.uint64]) -> FloatArray:
    """Return values with noise, rounded together to the grid."""
    step = grid_step(scale)
    position = values / step
    # Split off the whole steps, so that adding noise to the rest loses no bits however large the value is.
    whole = np.rint(position)
    noise_steps = _standard_noise(kind, words).reshape(values.shape) * (scale / step)
    index = whole + np.rint((position - whole) + noise_steps)
    # Adding zero turns -0.0 into 0.0; the sign of a zero would tell on which side the value lay.
    return np.asarray(index * step + 0.0)


def _standard_noise(kind: Kind, words: npt.NDArray[np.uint64]) -> FloatArray:
    """Return noise of scale 1, from two words a number: one bit for the sign, 127 for the size."""
    high, low = words.reshape(-1, 2).T
    # Small tails keep all 53 bits of a double, because the second word fills up what the first one lacks.
    tail = (high >> np.uint64(1)).astype(np.float64) * 2.0**-63 + (low.astype(np.float64) + 0.5) * 2.0**-127
    if kind == "gaussian":
        from scipy.special import ndtri

        negative = ndtri(tail / 2)
    else:
        negative = np.log(tail)
    return np.asarray(negative * (2.0 * (high & np.uint64(1)) - 1.0))


def _check_values(values: npt.ArrayLike, scale: float) -> FloatArray:
    try:
        exact = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError("Expected numbers to release, got something else. Encode it as numbers first.") from error
    if exact.size == 0:
        raise DataError("Expected at least one number to release, got an empty array. Check what is released.")
    if bad := exact.size - int(np.count_nonzero(np.isfinite(exact))):
        raise DataError(
            f"Expected finite numbers to release; {bad} of {exact.size} are missing or infinite. "
            f"Fill or drop them first."
        )
    if large := int(np.count_nonzero(np.abs(exact) >= _LARGEST_INDEX * grid_step(scale))):
        raise DataError(
            f"Expected numbers below {_LARGEST_INDEX * grid_step(scale):.2g}, which noise of scale {scale:g} could "
            f"protect; {large} of {exact.size} are larger. Clip the values to what the sensitivity assumes."
        )
    return exact


def _check_integers(values: Integers | list[int]) -> Integers:
    given = np.asarray(values)
    if given.dtype not in (np.int64, np.uint64):
        raise DataError(f"Expected 64-bit integers to release, got an array of {given.dtype}. Round the values first.")
    if given.size == 0:
        raise DataError("Expected at least one number to release, got an empty array. Check what is released.")
    return given


def _allowed_mu(epsilon: float, delta: float) -> float:
    """Return the mu of Gaussian noise that spends a budget."""
    _check_positive(epsilon=epsilon, delta=delta)
    if delta >= 1:
        raise PlanError(f"Expected a delta below 1, got {delta:g}. Give one far below 1 / rows.")
    return gaussian_mu(epsilon, delta)


def _check_positive(**parameters: float) -> None:
    for name, value in parameters.items():
        if not 1e-250 < value < 1e250:
            raise PlanError(f"Expected {name} to be positive and finite, got {value!r}. Correct {name}.")
