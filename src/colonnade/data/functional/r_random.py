"""R's default random numbers, bit for bit, so that data sets made with R can be made again without it.

R seeds a Mersenne Twister by a linear congruential generator, makes normals by inverting the distribution function at
uniforms of two words, and samples integers by rejection. Not cryptographic: for simulated data only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WORD = 2**32
_STEP = 2.3283064365386963e-10
_TINY = 2.328306437080797e-10 / 2


class RRandom:
    """What `set.seed(seed)` begins in R.

    >>> RRandom(42).sample(10).tolist()
    [1, 5, 10, 8, 2, 4, 6, 9, 7, 3]
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

    def uniform(self, n: int) -> NDArray[np.float64]:
        """`runif(n)`."""
        return np.clip(self._twister.random_raw(n).astype(np.float64) * _STEP, _TINY, 1 - _TINY)

    def normal(self, n: int) -> NDArray[np.float64]:
        """`rnorm(n)`."""
        from scipy.special import ndtri

        pairs = self.uniform(2 * n).reshape(n, 2)
        return np.asarray(ndtri((np.floor(2.0**27 * pairs[:, 0]) + pairs[:, 1]) / 2.0**27))

    def matrix(self, rows: int, columns: int) -> NDArray[np.float64]:
        """`matrix(rnorm(rows * columns), rows, columns)`, which R fills column by column."""
        return np.ascontiguousarray(self.normal(rows * columns).reshape(columns, rows).T)

    def sample(self, n: int, size: int | None = None) -> NDArray[np.int64]:
        """`sample.int(n, size)`: numbers from 1, without repetition."""
        left, drawn = list(range(1, n + 1)), []
        for _ in range(n if size is None else size):
            place = self._index(len(left))
            drawn.append(left[place])
            last = left.pop()
            if place < len(left):
                left[place] = last
        return np.array(drawn, dtype=np.int64)

    def _index(self, n: int) -> int:
        bits = (n - 1).bit_length()
        while True:
            value, drawn = 0, 0
            while drawn < bits:
                value = 65536 * value + int(self.uniform(1)[0] * 65536)
                drawn += 16
            value &= (1 << bits) - 1
            if value < n:
                return value
