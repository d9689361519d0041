"""Text for people: the nearest of known names, sizes, and a peer's words made safe for a terminal."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at the known name most like a wrong one; empty if no name is alike.

    >>> nearest("incme", ["income", "age"])
    " The nearest name is 'income'."
    """
    lowered = {other.lower(): other for other in names}
    found = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f" The nearest name is {lowered[found[0]]!r}." if found else ""


def printable(text: str, *, lines: bool = False) -> str:
    r"""Text without control characters, which a terminal would obey.

    >>> printable("1.0\x1b[31m")
    '1.0?[31m'
    """
    return "".join(letter if letter.isprintable() or (lines and letter == "\n") else "?" for letter in text)


def data_size(n_bytes: int) -> str:
    """A number of bytes in a unit that people read.

    >>> data_size(250_000), data_size(119_808_000_000)
    ('0.2 MB', '119.8 GB')
    """
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"
