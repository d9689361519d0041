"""dp_release: curves clipped and noised in one consistent geometry, with the event that accounts for it.

A curve with coefficients c has coordinates z = M^(1/2) c, whose length is its L2 norm. Noise protects in the metric in
which it is isotropic, and only if curves are clipped in that same metric:

    metric     clipped          noise isotropic in    sensitivity, replace-one
    "l2"       |z| <= S         z                     2 S
    "rkhs"     |u| <= S         u = M^(-1) z          2 S
    "legacy"   |z| <= S         u = M^(-1) z          2 S / (least eigenvalue of M), though 2 S was claimed for it

"rkhs" is noise of covariance s^2 M on coefficients, clipped in the norm of its own reproducing kernel Hilbert space
(Hall, Rinaldo & Wasserman 2013). "legacy" mixes the two and is there for comparison only; what is charged is its true
cost. See Mirshani, Reimherr & Slavkovic 2019, arXiv 1711.06660, for Gaussian noise on functions.

A record has a curve in every feature, so one record's change moves all releases at once. Gaussian releases compose
exactly: the squares of sensitivity / sigma add up over features and parties (colonnade.privacy.gaussian).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from colonnade.curves import Basis, Curves
from colonnade.curves.basis import FloatArray
from colonnade.errors import PlanError
from colonnade.parameters import Limit, check_parameters, choice, count, number, optional
from colonnade.privacy.gaussian import gaussian_epsilon, gaussian_mu
from colonnade.privacy.ledger import Adjacency, Event, Ledger
from colonnade.privacy.mechanisms import GaussianMechanism
from colonnade.privacy.randomness import Randomness, Step
from colonnade.secret import Secret

Metric: TypeAlias = Literal["l2", "rkhs", "legacy"]
Clip: TypeAlias = float | Mapping[str, float] | Literal["empirical"] | None

PROTECTION = "dp_release"
UNIT = "record"
EMPIRICAL_QUANTILE = 0.95
_RADIUS = Limit(lambda value: value not in (None, "empirical"), "a radius where epsilon is given", (None, "empirical"))
_NO_NOISE = Limit(lambda value: not value, "0 where epsilon is given", (1.0,))


@dataclass(frozen=True)
class Release:
    """How the curves of one feature are released: clipped to a radius, with Gaussian noise.

    Attributes:
        clip: The radius S; None does not clip.
        sigma: The noise s; 0 adds none, and nothing is promised.
        metric: In which geometry; "legacy" is for comparison only.
        adjacency: What counts as a change of the data; only "replace-one", since every record has a released row of its
            own, which shows that the record is present.
        empirical: Whether the radius was taken from the data, so that nothing is promised.

    >>> Release(clip=3.0, sigma=0.2).is_private
    True
    """

    limits: ClassVar[Mapping[str, Limit]] = {
        "clip": optional(number(above=0)),
        "sigma": number(0),
        "metric": choice("l2", "rkhs", "legacy"),
    }

    clip: float | None
    sigma: float
    metric: Metric = "l2"
    adjacency: Adjacency = "replace-one"
    empirical: bool = False

    def __post_init__(self) -> None:
        """Refuse noise without a clip, which promises nothing."""
        check_parameters(self)
        if self.sigma and self.clip is None:
            raise PlanError(
                "A release with noise needs a clip radius, without which the noise promises nothing, but clip is None. "
                "Name a radius that does not depend on the data."
            )
        refuse_presence(self.adjacency)

    @property
    def is_private(self) -> bool:
        """Whether it promises anything."""
        return self.sigma > 0 and not self.empirical

    def sensitivity(self, basis: Basis) -> float:
        """How far one record can move the released numbers, where the noise is isotropic."""
        assert self.clip is not None
        reach = self.clip
        if self.metric == "legacy":
            reach /= float(np.linalg.eigvalsh(basis.gram)[0])
        return 2 * reach

    def noise(self, basis: Basis) -> FloatArray:
        """The covariance of the noise, in coordinates."""
        shape = np.eye(basis.size) if self.metric == "l2" else basis.gram @ basis.gram
        return self.sigma**2 * shape

    def clipped(self, curves: Curves) -> FloatArray:
        """The coordinates of the curves, none longer than the radius."""
        z = curves.coordinates
        if self.clip is None:
            return z
        measured = z @ np.linalg.inv(curves.basis.gram) if self.metric == "rkhs" else z
        lengths = np.linalg.norm(measured, axis=1, keepdims=True)
        return np.asarray(z * np.minimum(1.0, self.clip / np.maximum(lengths, 1e-300)))

    def event(self, basis: Basis) -> Event:
        """The event that accounts for one release."""
        if not self.is_private:
            why = "with a clip radius from the data: simulation only" if self.empirical else "without noise"
            return Event.not_private(Secret.FEATURES, f"curves released {why}", unit=UNIT)
        mechanism = GaussianMechanism(self.sensitivity(basis), self.sigma)
        return mechanism.event(Secret.FEATURES, UNIT, self.adjacency, by=PROTECTION)


def refuse_presence(adjacency: str) -> None:
    """Raise `PlanError` for a promise that nobody sees who is present: every record has a released row of its own."""
    if adjacency != "replace-one":
        raise PlanError(
            f"Curves released row by row should be counted as adjacency 'replace-one', but it is {adjacency!r}: one "
            "row for each record shows which records are present, and noise for 'add-remove' would be half of what a "
            "replaced curve needs. Use 'replace-one'."
        )


@dataclass(frozen=True)
class Protection:
    """How all parties release their curves; every party derives its own noise from it.

    Attributes:
        clip: The radius to which curves are clipped: one number, one for each column, None, or "empirical" in
            simulations. It must not depend on the data for privacy to be claimed.
        noise: The noise on released curves: one number, or one for each column.
        epsilon: Instead of `noise`: what a record's curves in all columns of all parties may cost together.
        delta: Likewise.
        n_curves: How many columns feature parties have in all, where `clip` does not name them.
        metric: "l2", "rkhs", or "legacy" for comparison only.
        adjacency: What a record's change is: "replace-one" only, because released rows show who is present.

    >>> Protection(clip=3.0, epsilon=50.0, n_curves=6).delta
    1e-05
    """

    limits: ClassVar[Mapping[str, Limit]] = {
        "epsilon": optional(number(above=0)),
        "delta": number(above=0, below=1),
        "n_curves": optional(count()),
        "metric": choice("l2", "rkhs", "legacy"),
        "adjacency": choice("replace-one", "add-remove"),
    }

    clip: Clip = None
    noise: float | Mapping[str, float] = 0.0
    epsilon: float | None = None
    delta: float = 1e-5
    n_curves: int | None = None
    metric: Metric = "l2"
    adjacency: Adjacency = "replace-one"

    def __post_init__(self) -> None:
        """Refuse what makes no sense, and a budget beside noise or without a radius."""
        check_parameters(self, {} if self.epsilon is None else {"noise": _NO_NOISE, "clip": _RADIUS})
        refuse_presence(self.adjacency)

    def release(self, column: str, curves: Curves) -> Release:
        """How one column is released; for "legacy", with the noise that was once thought to be worth `epsilon`."""
        empirical = self.clip == "empirical"
        clip: float | None
        if self.clip == "empirical":
            clip = empirical_clip(curves, self.metric)
        else:
            clip = per_column(self.clip, column, "clip")
        if self.epsilon is None:
            sigma = per_column(self.noise, column, "noise") or 0.0
            return Release(clip, sigma, self.metric, self.adjacency, empirical and sigma > 0)
        return Release(clip, self._calibrated(), self.metric, self.adjacency)

    def __str__(self) -> str:
        """Say what is promised, in one sentence."""
        if self.clip == "empirical":
            return "Privacy: none is claimed, because the clip radius comes from the data (simulation only)."
        if self.epsilon is None and not self.noise:
            return "Privacy: none; curves are released as they are."
        told = "" if self.epsilon is None else f" at epsilon {self.epsilon:g}, delta {self.delta:g} for all curves"
        return f"Privacy: curves of one record ({self.adjacency}){told}; outputs and coefficients are not covered."

    def _calibrated(self) -> float:
        assert self.epsilon is not None
        if isinstance(self.clip, Mapping):
            clips = list(self.clip.values())
        elif isinstance(self.clip, int | float) and self.n_curves:
            clips = [float(self.clip)] * self.n_curves
        else:
            raise PlanError(
                "Noise for a budget needs the clip radius of every column of every party, because a record's change "
                f"moves all of them, but clip is {self.clip!r} and n_curves {self.n_curves!r}. Give clip as a number "
                "together with n_curves, or as a number for each column; it must not depend on the data."
            )
        return calibrate(clips, self.epsilon, self.delta, adjacency=self.adjacency)


def dp_release(
    curves: Curves, release: Release, *, random: Randomness, ledger: Ledger, path: tuple[Step, ...] = ()
) -> FloatArray:
    """Clip curves, charge the ledger, and return their coordinates with noise.

    The noise is a function of `random`, `path` and the curves: the same again gives the same numbers and costs nothing;
    anything else is another release and is charged, or refused with `BudgetSpent`.
    """
    z, basis = release.clipped(curves), curves.basis
    if not release.is_private:
        # Where there is noise, the mechanism charges what it would be worth; the ledger must also say: worth nothing.
        ledger.spend(release.event(basis), identity=random.child("release", *path).key)
    if release.sigma == 0:
        return z
    isotropic = z if release.metric == "l2" else z @ np.linalg.inv(basis.gram)
    mechanism = GaussianMechanism(release.sensitivity(basis), release.sigma)
    noisy = mechanism.release(
        isotropic,
        random=random,
        ledger=ledger,
        protects=Secret.FEATURES,
        unit=UNIT,
        adjacency=release.adjacency,
        path=path,
        by=PROTECTION if release.is_private else "",
    )
    return noisy if release.metric == "l2" else np.asarray(noisy @ basis.gram)


def calibrate(clips: Sequence[float], epsilon: float, delta: float, *, adjacency: Adjacency = "replace-one") -> float:
    """The least noise under which a record's curves in all features together are (epsilon, delta) private.

    It is the same for all features. The radius of every feature of every party counts, because one record's change
    moves them all.

    >>> calibrate([1.0], 1.0, 1e-5, adjacency="add-remove")  # doctest: +ELLIPSIS
    3.730631634...
    """
    if not (epsilon > 0 and 0 < delta < 1):
        raise PlanError(
            f"A budget needs epsilon above 0 and delta between 0 and 1, but they are {epsilon} and {delta}. "
            "Give a delta far below 1 / rows."
        )
    if not clips or min(clips) <= 0:
        raise PlanError("Calibration needs a clip radius above 0 for every feature. Name them in clip.")
    reach = (2.0 if adjacency == "replace-one" else 1.0) * np.asarray(clips, dtype=np.float64)
    return float(np.linalg.norm(reach)) / gaussian_mu(epsilon, delta)


def cost(mus: FloatArray, delta: float) -> tuple[float, float, float]:
    """The exact epsilon of Gaussian releases, the one by way of zero-concentrated privacy, and its rho."""
    rho = float((mus**2).sum()) / 2
    return gaussian_epsilon(math.sqrt(2 * rho), delta), rho + 2 * math.sqrt(-rho * math.log(delta)), rho


def empirical_clip(curves: Curves, metric: Metric) -> float:
    """The 95 % quantile of the curves' lengths: for simulations only, since it depends on the data."""
    z = curves.coordinates
    measured = z @ np.linalg.inv(curves.basis.gram) if metric == "rkhs" else z
    return float(np.quantile(np.linalg.norm(measured, axis=1), EMPIRICAL_QUANTILE))


def per_column(value: float | Mapping[str, float] | None, column: str, name: str) -> float | None:
    """A setting that may be one number for all columns, or one for each."""
    if not isinstance(value, Mapping):
        return value
    if column not in value:
        raise PlanError(
            f"{name} names a number for {', '.join(value)}, but there is also a column {column!r}. Add it to {name}."
        )
    return value[column]
