"""MARVELL: Gaussian noise, shaped so that the gradients of two classes look as alike as its power allows.

Both classes' gradients are taken to be normal: means that differ by D, coordinate variances u (first class) and v
(last class). The noise of class k has variance l1k along D and l2k across it. With

    a = l20 + u    b = l21 + v    c = l10 + u    e = l11 + v    g = |D|^2    d = width    p = share of the last class

the divergence between the two, summed over both directions, is

    sumKL = ((d - 1) (a/b + b/a) + (c + g)/e + (e + g)/c) / 2 - d,

which is least under a mean power p (l11 + (d-1) l21) + (1-p) (l10 + (d-1) l20) <= P. It is a sum of products of powers
of the variables, hence convex in their logarithms. Across D, noise only ever makes the quieter class as loud as the
other, so if u <= v then b = v and u <= a <= v; what power is left goes along D, all of it. Two nested searches in one
variable each find the optimum.

An attacker who sees one gradient is wrong about its class with probability at least 1/2 - sqrt(sumKL)/4, if gradients
are normal and the attacker sees each row only once.

Li et al. 2022, "Label leakage and protection in two-party split learning", arXiv 2102.08504.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from colonnade.defences.noise import NoisyGradient
from colonnade.errors import PlanError
from colonnade.parameters import Limit, check_parameters, number
from colonnade.runtime.context import HookContext, Tensor


class Marvell(NoisyGradient):
    """Noise on gradients of two classes, shaped to make the classes alike at the least power.

    In a batch of one class, or where both classes have one mean, there is nothing to shape: the noise is then the same
    in all directions, with the same power relative to the mean squared length of the gradients.

    Args:
        power: The noise's mean squared length, relative to the squared distance between the classes' mean gradients.

    >>> Marvell(power=4.0).name
    'Marvell(power=4)'
    """

    known_by = (("averaged-gradients", {"own_spread": True}), ("column-spreading", {}), ("co-training", {}))
    reads_labels = True
    named_by = "power"
    limits: ClassVar[Mapping[str, Limit]] = {"power": number(above=0)}

    def __init__(self, *, power: float = 4.0) -> None:
        self.power = power
        check_parameters(self)

    def noisy(self, gradient: Tensor, at: HookContext) -> Tensor:
        if at.n_classes != 2 or at.labels is None:
            found = "measurements" if at.n_classes is None else f"{at.n_classes} classes"
            raise PlanError(f"Marvell makes two classes alike, but the labels of this run are {found}. Use another.")
        exact, drawn = gradient.double(), self.drawn(gradient, at)
        is_last = (at.labels == 1).to(gradient.device)
        last, first = exact[is_last], exact[~is_last]
        width = gradient.shape[1]
        difference = (last.mean(dim=0) - first.mean(dim=0)) if len(last) and len(first) else torch.zeros(width)
        apart = float(difference.square().sum())
        if not apart > 1e-12 * float(exact.square().sum(dim=1).mean()):
            spread = math.sqrt(self.power * float(exact.square().sum(dim=1).mean()) / width)
            return (exact + spread * drawn).to(gradient)
        shape = least_divergence(
            width,
            apart,
            variance=(_variance(first), _variance(last)),
            share=float(is_last.double().mean()),
            power=self.power * apart,
        )
        direction = difference.to(exact) / math.sqrt(apart)
        along = (drawn @ direction)[:, None] * direction
        picked = is_last[:, None]
        deviation_along = torch.where(picked, math.sqrt(shape.along[1]), math.sqrt(shape.along[0]))
        deviation_across = torch.where(picked, math.sqrt(shape.across[1]), math.sqrt(shape.across[0]))
        return (exact + deviation_along * along + deviation_across * (drawn - along)).to(gradient)


@dataclass(frozen=True)
class NoiseShape:
    """The variances of the noise: of the first and the last class, along the difference of their means and across."""

    along: tuple[float, float]
    across: tuple[float, float]
    divergence: float


def sum_kl(
    width: int,
    apart: float,
    *,
    variance: tuple[float, float],
    along: tuple[float, float],
    across: tuple[float, float],
) -> float:
    """The divergence between two classes' noisy gradients, summed over both directions.

    Args:
        width: Of the gradients.
        apart: The squared distance between the classes' means.
        variance: Each class's variance per coordinate, without noise.
        along: Each class's variance of the noise along the difference of the means.
        across: Likewise, in each direction across it.
    """
    a, b = across[0] + variance[0], across[1] + variance[1]
    c, e = along[0] + variance[0], along[1] + variance[1]
    return ((width - 1) * (a / b + b / a) + (c + apart) / e + (e + apart) / c) / 2 - width


def least_divergence(
    width: int, apart: float, *, variance: tuple[float, float], share: float, power: float
) -> NoiseShape:
    """The noise under which two classes' gradients are most alike. Arguments not named here are those of `sum_kl`.

    `share` is the last class's share of the rows; the noise's mean squared length is at most `power`.
    """
    u, v = (max(each, 1e-9 * apart) for each in variance)
    if u > v:
        mirrored = least_divergence(width, apart, variance=(v, u), share=1 - share, power=power)
        return NoiseShape(mirrored.along[::-1], mirrored.across[::-1], mirrored.divergence)

    def along(a: float) -> tuple[float, float]:
        # What the first class's noise across has not used up is spent along.
        left = power - (1 - share) * (width - 1) * (a - u)

        def other(c: float) -> float:
            affordable = v + max(0.0, left - (1 - share) * (c - u)) / share
            return max(v, min(affordable, math.sqrt(c * (c + apart))))

        def divergence(log_c: float) -> float:
            c = math.exp(log_c)
            e = other(c)
            return (c + apart) / e + (e + apart) / c

        c = math.exp(_least(divergence, math.log(u), math.log(u + max(0.0, left) / (1 - share))))
        return c - u, other(c) - v

    def divergence(log_a: float) -> float:
        a = math.exp(log_a)
        return sum_kl(width, apart, variance=(u, v), along=along(a), across=(a - u, 0.0))

    affordable = u + power / ((1 - share) * max(width - 1, 1))
    a = math.exp(_least(divergence, math.log(u), math.log(min(v, affordable)))) if width > 1 else u
    found = tuple(max(0.0, each) for each in along(a))
    best = (found[0], found[1])
    across = (max(0.0, a - u), 0.0)
    return NoiseShape(best, across, sum_kl(width, apart, variance=(u, v), along=best, across=across))


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one valley is least."""
    from scipy.optimize import minimize_scalar

    return float(minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": 1e-9}).x)


def _variance(rows: Tensor) -> float:
    return float(rows.var(dim=0, correction=0).mean())
