"""Text for people: the nearest of known names, and a peer's words made safe for a terminal."""

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
