"""Text for people: the nearest of known names, sizes, durations, and a peer's words made safe for a terminal."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


def nearest(name: str, names: Iterable[str], former: Mapping[str, str] | None = None) -> str:
    """A hint at the known name most like a wrong one; empty if no name is alike.

    Args:
        name: The wrong name.
        names: Those that are known.
        former: Names that were known once, and what they are now.

    >>> nearest("incme", ["income", "age"]), nearest("salary", ["income"], {"salary": "income"})
    (" The nearest name is 'income'.", ' Its name is now income.')
    """
    hints = {old.lower(): f" Its name is now {now}." for old, now in (former or {}).items()}
    hints |= {other.lower(): f" The nearest name is {other!r}." for other in names}
    found = difflib.get_close_matches(name.lower(), hints, n=1)
    return hints[found[0]] if found else ""


def printable(text: str, *, lines: bool = False) -> str:
    r"""Text without control characters, which a terminal would obey.

    >>> printable("1.0\x1b[31m")
    '1.0?[31m'
    """
    return "".join(letter if letter.isprintable() or (lines and letter == "\n") else "?" for letter in text)


def how_many(n: int, noun: str) -> str:
    """A number of things.

    >>> how_many(1, "epoch"), how_many(2000, "epoch")
    ('1 epoch', '2,000 epochs')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def data_size(n_bytes: int) -> str:
    """A number of bytes in a unit that people read.

    >>> data_size(18_000), data_size(250_000), data_size(119_808_000_000)
    ('18 kB', '0.2 MB', '119.8 GB')
    """
    if n_bytes < 100_000:
        return f"{n_bytes / 1e3:.0f} kB"
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """A time span in the units that people read.

    >>> duration(42), duration(290), duration(7900), duration(200_000)
    ('42 s', '5 min', '2 h 12 min', '2 d 8 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours = round(minutes / 60)
    return f"{minutes // 60} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
