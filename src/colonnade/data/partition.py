"""Cut tables: into parties' tables, to common rows, into training and test rows.

All functions see several parties' tables in the clear, so they are for simulation; between real organisations,
`colonnade.align` finds common rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from colonnade.curves import CurvesType
from colonnade.errors import DataError, PlanError
from colonnade.tables.table import Table
from colonnade.text import nearest

MAX_STRATA = 50


def split(table: Table, columns: Mapping[str, Sequence[str]], *, labels: str | None = None) -> dict[str, Table]:
    """Cut one table into parties' tables, column by column; every party gets all rows.

    Args:
        table: The table all columns are in.
        columns: Each party's columns; columns that are not named go to nobody.
        labels: The party that gets the labels; nobody when None.

    Example:
        >>> table = Table.of({"id": [1, 2], "income": [10, 20], "spend": [1, 2], "late": [0, 1]}, labels="late")
        >>> split(table, {"bank": ["income"], "shop": ["spend"]}, labels="bank")["shop"]
        Table(shop: 2 rows, 1 column (1 numeric), no labels)
    """
    if labels is not None and labels not in columns:
        raise DataError(
            f"The labels were to go to {labels!r}, but the parties are {_listed(columns)}.{nearest(labels, columns)} "
            "Name one of them, or give the label party an empty list of columns."
        )
    if labels is not None and table.label_name is None:
        raise DataError(f"The labels were to go to {labels!r}, but the table has none. Name its label column first.")
    owners: dict[str, str] = {}
    for party, names in columns.items():
        if not names and party != labels:
            raise DataError(
                f"Every party but the label party needs a column, but {party!r} has none. Give it one or leave it out."
            )
        for name in names:
            if name in owners:
                raise DataError(
                    f"A column belongs to one party, but {name!r} is given to {owners[name]!r} and {party!r}. "
                    "Name it once."
                )
            owners[name] = party
    parts = {party: replace(table.select(names), owner=party) for party, names in columns.items()}
    return {party: part if party == labels else part.without_labels() for party, part in parts.items()}


def intersect(tables: Mapping[str, Table]) -> dict[str, Table]:
    """The rows whose ids all tables hold, in the order of their sorted ids: alignment in the clear, for simulation.

    Raises:
        DataError: Ids are missing, repeated or of different types, or no id is held by all.

    Example:
        >>> bank = Table.of({"id": [3, 1, 2], "income": [30, 10, 20]})
        >>> shop = Table.of({"id": [2, 9, 3], "spend": [2, 9, 3]})
        >>> intersect({"bank": bank, "shop": shop})["bank"].ids.to_pylist()
        [2, 3]
    """
    _require_comparable_ids(tables)
    first, *others = tables.values()
    common = first.ids
    for other in others:
        common = common.filter(pc.is_in(common, value_set=other.ids))
    if len(common) == 0:
        counts = ", ".join(f"{party} has {len(table):,}" for party, table in tables.items())
        raise DataError(f"Some ids must be held by all parties, but none is ({counts} rows). Check the id columns.")
    common = common.take(pc.sort_indices(common))
    rows = {party: pc.index_in(common, value_set=table.ids).to_numpy() for party, table in tables.items()}
    return {party: replace(table.take(rows[party]), owner=party) for party, table in tables.items()}


def extend(tables: Mapping[str, Table], *, to: str) -> dict[str, Table]:
    """Give every party the rows of one of them, in its order; a row that another does not hold is missing there.

    In a missing row all columns are null. Models that take partial overlap leave such a party out of that row.

    Raises:
        DataError: Ids are missing, repeated or of different types.

    Example:
        >>> bank = Table.of({"id": [1, 2], "income": [10, 20]})
        >>> shop = Table.of({"id": [2, 9], "spend": [2, 9]})
        >>> extend({"bank": bank, "shop": shop}, to="bank")["shop"].column("spend")
        array([nan,  2.])
    """
    _require_comparable_ids(tables)
    ids = tables[to].ids.combine_chunks()
    extended = {}
    for party, table in tables.items():
        places = pc.index_in(ids, value_set=table.ids.combine_chunks())
        arrow = table.to_arrow()
        columns = {name: arrow.column(name).take(places) for name in arrow.column_names} | {table.id_name: ids}
        extended[party] = Table.of(pa.table(columns), ids=table.id_name, labels=table.label_name, owner=party)
    return extended


def train_test_split(
    tables: Mapping[str, Table], *, test: float = 0.25, seed: int = 0, stratify: bool = True
) -> tuple[dict[str, Table], dict[str, Table]]:
    """Cut the rows into training and test rows, the same rows at every party.

    Args:
        tables: The parties' tables, with rows in one common order.
        test: The share of test rows.
        seed: Which random cut to make.
        stratify: Keep the shares of the classes alike on both sides, where there are labels of at most 50 classes.

    Raises:
        DataError: The rows of two parties differ or are in different orders, or there are fewer than two.

    Example:
        >>> bank = Table.of({"id": range(8), "income": range(8), "late": [0, 1] * 4}, labels="late")
        >>> train, test = train_test_split({"bank": bank})
        >>> len(train["bank"]), len(test["bank"])
        (6, 2)
    """
    if not 0 < test < 1:
        raise PlanError(f"test, the share of test rows, must lie between 0 and 1, but is {test}. Choose 0.25.")
    require_same_rows(tables)
    n_rows = len(next(iter(tables.values())))
    if n_rows < 2:
        raise DataError(f"A train/test split needs at least two rows, but there are {n_rows}. Give more rows.")
    strata = _strata(tables.values()) if stratify else None
    order = np.random.default_rng(seed).permutation(n_rows)
    if strata is not None:
        order = order[np.argsort(strata[order], kind="stable")]
    # Evenly spaced places in the order by class: every class gives its share, to within one row.
    n_test = min(max(round(n_rows * test), 1), n_rows - 1)
    places = ((np.arange(n_test) + 0.5) * n_rows / n_test).astype(np.int64)
    in_test = np.zeros(n_rows, dtype=bool)
    in_test[order[places]] = True
    return (
        {party: table.take(~in_test) for party, table in tables.items()},
        {party: table.take(in_test) for party, table in tables.items()},
    )


def require_same_rows(tables: Mapping[str, Table]) -> None:
    """Refuse tables whose rows are not the same, in the same order.

    Raises:
        DataError: The ids of two parties differ; the message names both.
    """
    (first, reference), *others = tables.items()
    for party, table in others:
        if len(table) != len(reference) or table.id_digest() != reference.id_digest():
            raise DataError(
                f"All parties need the same rows in the same order, but those of {first} ({len(reference):,} rows) and "
                f"{party} ({len(table):,} rows) differ. Align the tables first, in simulation with intersect."
            )


def _require_comparable_ids(tables: Mapping[str, Table]) -> None:
    for party, table in tables.items():
        table.check_ids(party)
    if len({table.ids.type for table in tables.values()}) > 1:
        found = ", ".join(f"{party} has {table.ids.type}" for party, table in tables.items())
        raise DataError(
            f"All parties need ids of one type, but {found}. Convert the ids of one side, or align by a rule that "
            'reads both alike: in a plan by keys = ["integer"] under [align], if 007 and 7 are the same, and otherwise '
            'by ["exact"].'
        )


def _strata(tables: Iterable[Table]) -> npt.NDArray[np.int64] | None:
    """A class number per row, from the first labels that are few enough to be classes."""
    for table in tables:
        if table.labels is not None and not _is_measured(table.labels.type):
            encoded = table.labels.combine_chunks().dictionary_encode()
            if len(encoded.dictionary) <= MAX_STRATA:
                return np.asarray(encoded.indices.fill_null(-1).to_numpy(), dtype=np.int64)
    return None


def _is_measured(label_type: pa.DataType) -> bool:
    return pa.types.is_floating(label_type) or isinstance(label_type, CurvesType)


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(map(repr, names))
