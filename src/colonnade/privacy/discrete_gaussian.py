"""Exact draws from the discrete Gaussian: integers z with probabilities proportional to exp(-z^2 / (2 sigma^2)).

Noise on integers must lie on the integers' own grid. Noise from a coarser grid leaves the lowest bits of every value
bare, however wide the noise is. The discrete Gaussian is at home on the integers (Canonne, Kamath & Steinke 2020,
arXiv 2004.00010), and its probabilities are those of its formula: all decisions compare integers, there is no floating
point.

How a number is drawn, with sigma = a / b. Let |z| b = k a + u with 0 <= u < a. Then

    exp(-z^2 / (2 sigma^2)) = exp(-(k + u/a)^2 / 2) = exp(-k/2) exp(-k (k-1) / 2) exp(-k u/a) exp(-u^2 / (2 a^2))

The first factor proposes k, the number of times in a row that an event of probability exp(-1/2) happens. The offset u
is proposed uniformly among those that make k a + u a multiple of b. The other factors decide whether the proposal is
kept: an event of probability exp(-x), x <= 1, happens if the first j for which an event of probability x / j does not
happen is odd (von Neumann 1951), and an event of probability u / a is a uniform integer below a that is below u. A
proposal is kept about half of the time. (Karney 2016, "Sampling exactly from the normal distribution".)
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from colonnade.errors import PlanError
from colonnade.privacy.randomness import Randomness

WIDEST = 2**62
FINEST = 2**40
# A draw takes 18 words on average; a block of words stays within a processor's cache.
_WORDS_PER_DRAW = 20
_MOST_WORDS = 2**18


def draw(n: int, sigma: Fraction | int, random: Randomness) -> npt.NDArray[np.int64]:
    """Return `n` independent draws, modulo 2^64; the same source gives the same draws, and must serve nothing else.

    >>> draw(6, Fraction(37, 10), Randomness.seeded(0)).tolist()
    [1, 2, 5, -2, -3, 7]
    """
    from colonnade.privacy.discrete_kernel import fill

    width = check_width(sigma)
    out = np.empty(n, np.int64)
    words, cursor = np.empty(0, np.int64), np.zeros(1, np.int64)
    done = block = 0
    while done < n:
        wanted = min(_WORDS_PER_DRAW * (n - done) + 64, _MOST_WORDS)
        # The kernel's integers are signed, so a word gives 63 bits.
        fresh = (random.uniform_bits(wanted, "block", block) >> np.uint64(1)).view(np.int64)
        words, cursor[0] = np.concatenate((words[cursor[0] :], fresh)), 0
        done = fill(out, done, width.numerator, width.denominator, words, cursor)
        block += 1
    return out


def check_width(sigma: Fraction | int) -> Fraction:
    """Return a width as a fraction, if numbers of that width can be drawn."""
    if isinstance(sigma, bool) or not isinstance(sigma, int | Fraction):
        raise PlanError(
            f"Expected sigma to be an integer or a Fraction, got {sigma!r}. Give an exact width: Fraction(37, 10), "
            "not 3.7."
        )
    width = Fraction(sigma)
    if not (0 < width.numerator < WIDEST and width.denominator <= FINEST):
        raise PlanError(
            "Expected sigma to be above 0, with a numerator below 2^62 and a denominator of at most 2^40, "
            f"got {sigma}. Round sigma up to such a fraction."
        )
    return width


def root_above(squared: Fraction | int) -> int:
    """Return the least integer whose square is at least `squared`.

    >>> root_above(9), root_above(10), root_above(Fraction(1, 4))
    (3, 4, 1)
    """
    whole = math.ceil(squared)
    root = math.isqrt(whole)
    return root + (root * root < whole)


def width_above(squared: Fraction | int) -> Fraction:
    """Return a width that can be drawn, that a double holds exactly, and whose square is at least `squared`.

    The width is larger than it must be by 2^-40 at most, or by a factor of 1 + 2^-47.

    >>> width_above(16), float(width_above(2))
    (Fraction(4, 1), 1.4142135623733338)
    """
    places = min(40, 49 - root_above(squared).bit_length())
    return root_above(squared * Fraction(4) ** places) * Fraction(2) ** -places
