"""Memory: what the C library keeps of what a process frees."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

# As malloc.h numbers them; the largest piece that glibc lets a heap hold.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST_PIECE = 2**25


@cache
def keep_freed_memory(most: int, heaps: int | None = None) -> None:
    """Tell glibc to keep freed pieces of up to 32 MiB for the next ones.

    By default glibc gives them back to the system, which clears them page by page when they are asked for again. Other
    systems have no such settings, nor the need for them.

    Args:
        most: How many bytes at the end of a heap are kept.
        heaps: How many heaps there are at most; several for each core if None.
    """
    settings = [(_TRIM_THRESHOLD, most), (_MMAP_THRESHOLD, _LARGEST_PIECE)]
    if heaps is not None:
        settings.append((_ARENA_MAX, heaps))
    with suppress(OSError, AttributeError):
        for setting, value in settings:
            ctypes.CDLL(None).mallopt(setting, value)
