"""Ranking: which of a party's columns say most about its labels, and which of them stay private."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from colonnade.errors import DataError, PlanError, imported
from colonnade.tables.encode import Inputs
from colonnade.tables.table import Table

RANKED_ROWS = 3_000
EXPLAINED_ROWS = 200
# Mutual information looks at the three nearest other rows.
FEWEST_RANKED = 4

Ranking: TypeAlias = Literal["shap", "shap-net", "importance", "mutual-information", "random"]
FloatArray: TypeAlias = npt.NDArray[np.float64]


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
    _require_known(by)
    if not 0 < private < 1:
        raise PlanError(f"private, the share of columns, should lie between 0 and 1, but is {private}. Use 0.2 or so.")
    _require_labels(table)
    names = table.columns
    n_private = round(private * len(names))
    if not 0 < n_private < len(names):
        raise DataError(
            f"{table.owner} should keep some columns private and use some in public, but {private:.0%} of "
            f"{len(names)} are {n_private}. Change the share, or bring more columns."
        )
    scores = column_scores(table, by=by, seed=seed, task=task)
    kept = set(sorted(names, key=lambda name: -scores[name])[:n_private])
    private_names, public = (tuple(name for name in names if (name in kept) is side) for side in (True, False))
    return FeaturePartition(public, private_names, scores, by)


def column_scores(
    table: Table, *, by: Ranking, seed: int = 0, task: Literal["classification", "regression"] | None = None
) -> dict[str, float]:
    """How much each column says about the labels, by the measures of `public_private`.

    Raises:
        DataError: There are no labels, or too few rows.

    >>> from colonnade.data.datasets import load
    >>> scores = column_scores(load("breast-cancer").joined(), by="mutual-information")
    >>> max(scores, key=scores.get)
    'worst_perimeter'
    """
    _require_known(by)
    _require_labels(table)
    rows = np.arange(len(table))
    if len(rows) > RANKED_ROWS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, RANKED_ROWS, replace=False))
    sample = _Ranked.of(table.take(rows), task)
    alike = np.unique(sample.labels, return_counts=True)[1].max() if sample.is_classes else len(rows)
    if by != "random" and (len(rows) < FEWEST_RANKED or alike < 2):
        of_class = f", at most {alike} of one class" if sample.is_classes else ""
        raise DataError(
            f"{table.owner} should have at least {FEWEST_RANKED} rows, and of some class two, for its columns to be "
            f"ranked by what they say about labels, but has {len(rows)} rows{of_class}. Bring more, or name the "
            "private columns."
        )
    # Libraries take seeds of 32 bits.
    return dict(zip(table.columns, map(float, _RANKINGS[by](sample, seed % 2**31)), strict=True))


def _require_known(by: str) -> None:
    if by not in _RANKINGS:
        raise PlanError(f"Columns are ranked by one of {', '.join(_RANKINGS)}, but {by!r} was given. Name one of them.")


def _require_labels(table: Table) -> None:
    if table.labels is None:
        raise DataError(
            f"{table.owner}'s columns are ranked by what they say about labels, but it has none. Name the label column."
        )


@dataclass(frozen=True)
class _Ranked:
    """Columns and labels as numbers, for a ranking; which columns hold codes."""

    values: FloatArray
    is_code: npt.NDArray[np.bool_]
    labels: npt.NDArray[Any]
    is_classes: bool

    @classmethod
    def of(cls, table: Table, task: str | None) -> _Ranked:
        values = Inputs.learned(table, np.arange(len(table))).plain(table)
        is_code = np.array([kind != "numeric" for kind in table.kinds.values()])
        # A missing boolean lies at the mean, but a code must be one of the codes.
        values[:, is_code] = np.rint(values[:, is_code])
        labels = np.asarray(table.labels)
        is_classes = labels.dtype.kind not in "fc" if task is None else task == "classification"
        if is_classes:
            labels = np.unique(labels, return_inverse=True)[1]
        return cls(values, is_code, labels, is_classes)


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
    with warnings.catch_warnings():
        # What these libraries use of others may be about to change; that is theirs to mend.
        warnings.simplefilter("ignore")
        return imported(name, "shap", "Ranking columns by a model")


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
