"""The exact privacy curve of Gaussian noise (Balle & Wang 2018, arXiv 1805.06530).

Noise of standard deviation sigma on a query of L2 sensitivity D is described by mu = D / sigma alone.
Gaussian releases compose exactly: the squares of their mu add up.

Discrete Gaussian noise of width sigma on integers is charged as Gaussian noise of variance sigma^2 - 4. Proof: add
Gaussian noise of variance sigma^2 - 4 to an integer, then round the result x to the integer z with probability
exp(-(z - x)^2 / 8) / N(x). Rounding is post-processing. By Poisson's summation the sum N(x) differs from its mean by a
factor of at most 1 + t, t = 1.1e-34, so every z comes up as probably as under the discrete Gaussian, up to a factor
(1 + t) / (1 - t) (Peikert 2010, "An efficient and parallel Gaussian sampler for lattices"). For a million integers
released at once this is below 1e-27 in epsilon, less than a double can tell, and is not charged.

Narrow discrete noise is charged by its zero-concentrated cost, which is sensitivity^2 / (2 sigma^2) as for Gaussian
noise (Canonne, Kamath & Steinke 2020, arXiv 2004.00010).
"""

from __future__ import annotations

import math
from collections.abc import Callable

# The variance of the rounding that turns Gaussian noise into discrete Gaussian noise.
ROUNDING_VARIANCE = 4
# Below this width the zero-concentrated cost is the better bound.
NARROW = 8


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon at which Gaussian noise with this mu is (epsilon, delta) private."""
    if mu == 0 or delta >= 1:
        return 0.0
    if delta == 0:
        return math.inf
    target = math.log(delta)
    if _log_delta(mu, 0.0) <= target:
        return 0.0
    # mu**2 / 2 is the zCDP rho, whose conversion bounds epsilon from above (Bun & Steinke 2016).
    above = mu**2 / 2 + mu * math.sqrt(-2 * target)
    return _first(lambda epsilon: _log_delta(mu, epsilon) <= target, above)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu that is (epsilon, delta) private: sigma = sensitivity / mu is the least noise."""
    target = math.log(delta)
    above = 1.0
    while _log_delta(1 / above, epsilon) > target:
        above *= 2
    return 1 / _first(lambda noise: _log_delta(1 / noise, epsilon) <= target, above)


def _log_delta(mu: float, epsilon: float) -> float:
    """Return the logarithm of Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu), without cancelling or overflow."""
    from scipy.special import log_ndtr

    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    if second >= first:
        return -math.inf
    return first + math.log(-math.expm1(second - first))


def _first(holds: Callable[[float], bool], above: float) -> float:
    """Return the least x in [0, above] where a monotone condition holds, from the side where it does."""
    below = 0.0
    while below < (middle := (below + above) / 2) < above:
        if holds(middle):
            above = middle
        else:
            below = middle
    return above
