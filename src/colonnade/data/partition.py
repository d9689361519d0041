"""Cut tables: into parties' tables, to common rows, into training and test rows, into public and private columns.

What takes several parties' tables sees them in the clear and is for simulation; between real organisations,
`colonnade.align` finds common rows. `public_private` is for one party alone, which ranks its own columns.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from colonnade.curves import CurvesType
from colonnade.errors import DataError, MissingExtra, PlanError
from colonnade.tables.table import Table
from colonnade.text import nearest

MAX_STRATA = 50
RANKED_ROWS = 3_000
EXPLAINED_ROWS = 200
# Mutual information looks at the three nearest other rows.
FEWEST_RANKED = 4
_ONE_TYPE = (
    'Convert the ids of one side, or align by a rule that reads both alike: in a plan by keys = ["integer"] under '
    '[align], if 007 and 7 are the same, and otherwise by ["exact"].'
)

Ranking: TypeAlias = Literal["shap", "shap-net", "importance", "mutual-information", "random"]
FloatArray: TypeAlias = npt.NDArray[np.float64]


def split(table: Table, columns: Mapping[str, Sequence[str]], *, labels: str | None = None) -> dict[str, Table]:
    """Cut one table into parties' tables, column by column; every party gets all rows.

    Args:
        table: The table all columns are in.
        columns: Each party's columns; columns that are not named go to nobody.
        labels: The party that gets the labels; nobody when None.

    Example:
        >>> table = Table.of({"id": [1, 2], "income": [10, 20], "spend": [1, 2], "late": [0, 1]}, labels="late")
        >>> split(table, {"bank": ["income"], "shop": ["spend"]}, labels="bank")["shop"]
        Table(shop: 2 rows, 1 columns (1 numeric), no labels)
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
    for party, table in tables.items():
        table.check_ids(party)
    if len({table.ids.type for table in tables.values()}) > 1:
        found = ", ".join(f"{party} has {table.ids.type}" for party, table in tables.items())
        raise DataError(f"All parties need ids of one type, but {found}. {_ONE_TYPE}")
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
    for party, table in tables.items():
        table.check_ids(party)
    ids = tables[to].ids.combine_chunks()
    extended = {}
    for party, table in tables.items():
        if table.ids.type != ids.type:
            raise DataError(
                f"All parties need ids of one type, but {to} has {ids.type} and {party} has {table.ids.type}. "
                f"{_ONE_TYPE}"
            )
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
        raise PlanError(f"The share of test rows must lie between 0 and 1, but it is {test}. Choose one such as 0.25.")
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


@dataclass(frozen=True)
class FeaturePartition:
    """Which of a party's columns take part in what others can see, and which stay private.

    >>> FeaturePartition(("age",), ("income",), {"income": 0.4, "age": 0.1}, "random").private
    ('income',)
    """

    public: tuple[str, ...]
    private: tuple[str, ...]
    scores: Mapping[str, float]
    by: str

    @classmethod
    def named(cls, table: Table, private: Sequence[str]) -> FeaturePartition:
        """The partition that keeps columns of these names private."""
        public = tuple(name for name in table.columns if name not in private)
        _require_both_sides(table, public, private)
        return cls(public, tuple(private), {}, "name")

    def table(self) -> pa.Table:
        """Every column with its score and its side, the highest score first."""
        ranked = sorted(self.scores.items(), key=lambda item: -item[1])
        sides = ["private" if name in self.private else "public" for name, _ in ranked]
        names, scores = [name for name, _ in ranked], [score for _, score in ranked]
        return pa.table({"column": names, "score": scores, "side": sides})


def public_private(
    table: Table,
    *,
    private: float = 0.2,
    by: Ranking = "mutual-information",
    seed: int = 0,
    task: Literal["classification", "regression"] | None = None,
) -> FeaturePartition:
    """Keep private those of the label party's own columns that say most about its labels.

    Give training rows only: what is ranked on test rows makes tests look better than they are.

    Args:
        table: The label party's table, with labels.
        private: The share of columns to keep private; 10 to 30 % are advised.
        by: "shap" for mean absolute SHAP values of boosted trees, "shap-net" of a small network, "importance" for the
            gain that boosted trees draw from a column, "mutual-information", or "random".
        seed: What the ranking's randomness follows from.
        task: Whether labels are classes or numbers; if None, labels of a floating-point type are numbers and all others
            are classes, so say "regression" for counts.

    Raises:
        DataError: There are no labels, or one side would be left without a column.

    Example:
        >>> from colonnade.data.datasets import load
        >>> bank = load("breast-cancer").tables["bank"]
        >>> public_private(bank, private=0.2).private
        ('mean_perimeter', 'worst_radius', 'worst_perimeter')
    """
    if by not in _RANKINGS:
        raise PlanError(f"Columns are ranked by one of {', '.join(_RANKINGS)}, but {by!r} was given. Name one of them.")
    if not 0 < private < 1:
        raise PlanError(f"The share of private columns should lie between 0 and 1, but is {private}. Use 0.2 or so.")
    if table.labels is None:
        raise DataError(
            f"{table.owner}'s columns are ranked by what they say about labels, but it has none. Name the label column."
        )
    names = table.columns
    n_private = round(private * len(names))
    if not 0 < n_private < len(names):
        raise DataError(
            f"{table.owner} should keep some columns private and use some in public, but {private:.0%} of "
            f"{len(names)} are {n_private}. Change the share, or bring more columns."
        )
    rows = np.arange(len(table))
    if len(rows) > RANKED_ROWS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, RANKED_ROWS, replace=False))
    sample = _Ranked.of(table.take(rows), task)
    alike = np.unique(sample.labels, return_counts=True)[1].max() if sample.is_classes else len(rows)
    if by != "random" and (len(rows) < FEWEST_RANKED or alike < 2):
        of_class = f", of which at most {alike} of one class" if sample.is_classes else ""
        raise DataError(
            f"{table.owner} should have at least {FEWEST_RANKED} rows, and of some class two, for its columns to be "
            f"ranked by what they say about labels, but has {len(rows)} rows{of_class}. Bring more, or name the "
            "private columns."
        )
    # Libraries take seeds of 32 bits.
    scores = _RANKINGS[by](sample, seed % 2**31)
    ranked = sorted(range(len(names)), key=lambda i: (-scores[i], i))[:n_private]
    kept = tuple(names[i] for i in sorted(ranked))
    public = tuple(name for name in names if name not in kept)
    return FeaturePartition(public, kept, dict(zip(names, map(float, scores), strict=True)), by)


@dataclass(frozen=True)
class _Ranked:
    """Columns and labels as numbers, for a ranking; which columns hold codes."""

    values: FloatArray
    is_code: npt.NDArray[np.bool_]
    labels: npt.NDArray[Any]
    is_classes: bool

    @classmethod
    def of(cls, table: Table, task: str | None) -> _Ranked:
        columns, is_code = [], []
        for name, kind in table.kinds.items():
            values = table.column(name)
            if kind == "categorical":
                values = np.unique([str(value) for value in values], return_inverse=True)[1].astype(np.float64)
            present = values[~np.isnan(values)]
            columns.append(np.where(np.isnan(values), np.median(present) if len(present) else 0.0, values))
            is_code.append(kind != "numeric")
        labels = np.asarray(table.labels)
        is_classes = labels.dtype.kind not in "fc" if task is None else task == "classification"
        if is_classes:
            labels = np.unique(labels, return_inverse=True)[1]
        return cls(np.stack(columns, axis=1), np.array(is_code), labels, is_classes)


def _by_mutual_information(ranked: _Ranked, seed: int) -> FloatArray:
    from sklearn.feature_selection import mutual_info_classif, mutual_info_regression

    measure = mutual_info_classif if ranked.is_classes else mutual_info_regression
    found = measure(ranked.values, ranked.labels, discrete_features=ranked.is_code, random_state=seed)
    return np.asarray(found, dtype=np.float64)


def _by_importance(ranked: _Ranked, seed: int) -> FloatArray:
    return np.asarray(_boosted(ranked, seed).feature_importances_, dtype=np.float64)


def _by_shap(ranked: _Ranked, seed: int) -> FloatArray:
    xgboost = _imported("xgboost")
    booster = _boosted(ranked, seed).get_booster()
    # Contributions are exact SHAP values of the trees (Lundberg et al. 2020); the last of them is the bias.
    contributions = np.abs(booster.predict(xgboost.DMatrix(ranked.values), pred_contribs=True))
    per_class = contributions.reshape(len(contributions), -1, contributions.shape[-1])
    return np.asarray(per_class[:, :, :-1].mean(axis=(0, 1)), dtype=np.float64)


def _by_shap_of_net(ranked: _Ranked, seed: int) -> FloatArray:
    shap = _imported("shap")
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    net: Any = (MLPClassifier if ranked.is_classes else MLPRegressor)((32,), max_iter=60, random_state=seed)
    x = (ranked.values - ranked.values.mean(axis=0)) / np.maximum(ranked.values.std(axis=0), 1e-12)
    with warnings.catch_warnings():
        # The network is trained at fixed effort; what has not converged is ranked as it is.
        warnings.simplefilter("ignore")
        net.fit(x, ranked.labels)
        predict = net.predict_proba if ranked.is_classes else net.predict
        random = np.random.default_rng(seed)
        background = x[random.choice(len(x), min(50, len(x)), replace=False)]
        explained = x[random.choice(len(x), min(EXPLAINED_ROWS, len(x)), replace=False)]
        explainer = shap.PermutationExplainer(predict, background, seed=seed)
        values = np.abs(explainer(explained, max_evals=2 * x.shape[1] + 1, silent=True).values)
    return np.asarray(values.reshape(*values.shape[:2], -1).mean(axis=(0, 2)), dtype=np.float64)


def _at_random(ranked: _Ranked, seed: int) -> FloatArray:
    return np.asarray(np.random.default_rng(seed).random(ranked.values.shape[1]))


def _boosted(ranked: _Ranked, seed: int) -> Any:
    xgboost = _imported("xgboost")
    kind = xgboost.XGBClassifier if ranked.is_classes else xgboost.XGBRegressor
    model = kind(n_estimators=60, max_depth=4, random_state=seed, n_jobs=1, importance_type="gain")
    return model.fit(ranked.values, ranked.labels)


def _imported(name: str) -> Any:
    try:
        with warnings.catch_warnings():
            # What these libraries use of others may be about to change; that is theirs to mend.
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra("shap", "Ranking columns by a model") from error


_RANKINGS: Mapping[str, Callable[[_Ranked, int], FloatArray]] = {
    "shap": _by_shap,
    "shap-net": _by_shap_of_net,
    "importance": _by_importance,
    "mutual-information": _by_mutual_information,
    "random": _at_random,
}


def _require_both_sides(table: Table, public: Sequence[str], private: Sequence[str]) -> None:
    if not public or not private:
        raise DataError(
            f"{table.owner} should keep some columns private and use some in public, but {len(private)} of "
            f"{len(table.columns)} would be private. Name some, and not all."
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
