"""Fixed point: reals as integers, with the bounds under which no sum overflows.

A product sums, over at most N rows, a column of at most 2^c times a residual of at most 2^r. It is exact while
N 2^c 2^r <= 2^51. `Widths` divides these 51 bits so that at 2^19 rows columns have 12 and residuals 20, and with fewer
rows both have more; the noise of an encrypted product, which grows with sqrt(N) 2^c, is then never larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, frexp, log2

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import Overflow

PRODUCT_BITS = 51
MOST_ROWS = 2**19
_NORM_BITS = 43


@dataclass(frozen=True)
class Widths:
    """How many bits the numbers of a product may have.

    >>> Widths.of(2**19)
    Widths(column_bits=12, residual_bits=20)
    >>> Widths.of(4096)
    Widths(column_bits=15, residual_bits=24)
    """

    column_bits: int
    residual_bits: int

    @classmethod
    def of(cls, n_rows: int) -> Widths:
        """The widths for sums over `n_rows` rows."""
        if n_rows > MOST_ROWS:
            raise Overflow(
                f"An encrypted product sums over at most {MOST_ROWS} rows, but {n_rows} were given. "
                "Use smaller batches."
            )
        rows = ceil(log2(max(n_rows, 1)))
        columns = min((_NORM_BITS - rows) // 2, 20)
        return cls(columns, min(PRODUCT_BITS - rows - columns, 30))


def encoded(values: NDArray[np.float64], fraction_bits: int, most_bits: int, what: str) -> NDArray[np.int64]:
    """Reals as integer multiples of 2^-fraction_bits; raises `Overflow` if one is above 2^most_bits or not a number.

    `what` says what the values are, and whose, for the error.

    >>> encoded(np.array([1.5, -0.25]), 8, 20, "example's scores").tolist()
    [384, -64]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.rint(np.ldexp(values, fraction_bits))
        within = np.abs(scaled) <= 2.0**most_bits
    if not within.all():
        raise Overflow(
            f"{what} should be at most {2.0 ** (most_bits - fraction_bits):g} in absolute value to be encrypted, but "
            f"{np.count_nonzero(~within)} of {within.size} are larger or not finite. Standardise the columns or lower "
            "the learning rate."
        )
    return scaled.astype(np.int64)


def column_scales(largest: NDArray[np.float64], column_bits: int) -> NDArray[np.int64]:
    """For each column, given its largest absolute value, the bits behind the point with which that just fits."""
    exponents = np.array([frexp(value)[1] if value > 0 else 0 for value in largest], np.int64)
    return column_bits - exponents
