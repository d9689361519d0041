"""Workers: the curve's work, done by processes of one's own machine, in order and a few chunks ahead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from colonnade.crypto.curve import Points, hash_to_curve, multiply
from colonnade.errors import CryptoError

CHUNK = 1 << 13
FEW_POINTS = 1 << 15


class Workers:
    """Masks ids and multiplies points.

    Args:
        n: How many processes work at the same time; one per core if None. One works in this process.
        points: How many points there are to multiply; for a few no process is started.

    >>> import numpy as np
    >>> from colonnade.crypto.curve import make_key
    >>> [masked.shape for masked in Workers(1).mask(make_key(), [np.zeros((3, 16), np.uint8)])]
    [(3, 32)]
    """

    def __init__(self, n: int | None = None, *, points: int = 0) -> None:
        self._n = 1 if points < FEW_POINTS else n or _n_cores()

    def mask(self, key: bytes, digests: Iterable[Points]) -> Iterator[Points]:
        """The ids of these digests, hashed to the curve and multiplied by a key, chunk by chunk."""
        return self._map(_mask, key, digests)

    def multiply(self, key: bytes, points: Iterable[Points]) -> Iterator[Points]:
        """These points multiplied by a key, chunk by chunk."""
        return self._map(multiply, key, points)

    def _map(self, function: Any, key: bytes, chunks: Iterable[Points]) -> Iterator[Points]:
        if self._n == 1:
            for chunk in chunks:
                yield function(key, chunk)
            return
        from joblib.externals.loky import get_reusable_executor

        # Idle workers end after this time, also where their parent was killed.
        pool = get_reusable_executor(max_workers=self._n, timeout=20)
        ahead: deque[Future[Points]] = deque()
        try:
            for chunk in chunks:
                ahead.append(pool.submit(function, key, chunk))
                if len(ahead) > 2 * self._n:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        except BrokenProcessPool as error:
            raise CryptoError(
                f"{self._n} worker processes should multiply points, but one of them was ended from outside, perhaps "
                "for want of memory. Go on with --resume, and set workers under [align] to fewer."
            ) from error


def _n_cores() -> int:
    """How many cores this process may use, as far as the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _mask(key: bytes, digests: Points) -> Points:
    return multiply(key, hash_to_curve(digests))
