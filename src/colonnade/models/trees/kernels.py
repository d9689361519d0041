"""The loops of trees that must be fast, compiled by numba at first use and cached on disk."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def add_up(places: NDArray[np.int32], rows: Any, g: Any, h: Any, out: NDArray[np.int64]) -> None:
    """Add gradient and hessian of each of some rows to the sums of its bins: out[places[row, column]] += (g, h)."""
    for i in range(rows.shape[0]):
        row = rows[i]
        g_row, h_row = g[row], h[row]
        for column in range(places.shape[1]):
            place = places[row, column]
            out[place, 0] += g_row
            out[place, 1] += h_row
