"""The data sets of the experiments, cut into the parties' tables, to train on and to test on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from colonnade import Roles, Table
from colonnade.data import load, train_test_split

ROLES = Roles(label="bank", features=("shop",))
# Rows to draw of each set; all of it where None.
ROWS: Mapping[str, int | None] = {
    "breast-cancer": None,
    "digits": None,
    "credit-default": 10_000,
    "adult": 10_000,
    "mnist": 14_000,
}
QUICK_ROWS = 4_000
TEST = 0.3


def halves(
    name: str, seed: int, *, quick: bool = False, most: int | None = None
) -> tuple[dict[str, Table], dict[str, Table]]:
    """A set's tables to train on and to test on; the seed says which rows these are, and `most` how many at most."""
    if name == "stress":
        return train_test_split(_stressed(seed), test=TEST, seed=seed)
    rows = ROWS[name]
    if rows is not None:
        rows = min(rows, QUICK_ROWS if quick else rows, most or rows)
    return train_test_split(load(name, rows=rows, seed=seed).split(), test=TEST, seed=seed)


def _stressed(seed: int) -> dict[str, Table]:
    """Digits with 96 columns of high variance at the shop, which span 24 dimensions and say nothing."""
    tables = load("digits").split()
    random = np.random.default_rng(seed)
    noise = random.standard_normal((len(tables["shop"]), 24)) @ (2 * random.standard_normal((24, 96)) / 24**0.5)
    arrow = tables["shop"].to_arrow()
    for i in range(96):
        arrow = arrow.append_column(f"nuisance_{i}", [noise[:, i]])
    return {**tables, "shop": Table.of(arrow, ids=tables["shop"].id_name, owner="shop")}
