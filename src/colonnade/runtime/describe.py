"""Parameters as plain data: what a public plan's hash and a saved share hold of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np


def describe(value: Any) -> Any:
    """A parameter as plain data that is the same in every process.

    >>> describe({"rate": np.float64(0.5), "sizes": (1, 2)})
    {'rate': 0.5, 'sizes': [1, 2]}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, partial):
        return {"is": describe(value.func), "with": describe([*value.args, value.keywords])}
    if hasattr(value, "__qualname__"):
        return stable_name(value)
    inside = value.get_params() if hasattr(value, "get_params") else getattr(value, "__dict__", {})
    plain = {name: part for name, part in inside.items() if not name.startswith("_")}
    return {"is": stable_name(type(value)), **describe(plain)}


def stable_name(named: Any) -> str:
    """What a class or function is called in plans and saved shares.

    Colonnade's own are called by their name alone, which no two share, so that a file can move to another folder.
    """
    if named.__module__.partition(".")[0] == "colonnade":
        return f"colonnade.{named.__qualname__}"
    return f"{named.__module__}.{named.__qualname__}"
