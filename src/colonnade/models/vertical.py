"""Vertical: any estimator behind scikit-learn's ordinary `fit(X, y)`, in simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from colonnade.curves.plots import plot_history
from colonnade.errors import DataError
from colonnade.models.base import Estimator, Prediction
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Vertical(BaseEstimator):  # type: ignore[misc]
    """An estimator with its parties simulated, so that cross-validation, grid search and pipelines work on it.

    Args:
        estimator: What the parties run; `Vertical` fits a clone of it for each.
        columns: Which columns of X each party holds: names of a frame's columns, or numbers of an array's.
        roles: Who holds the labels, and the order of the others.
        seed: All randomness follows from it.

    >>> from colonnade.models.networks.split import SplitClassifier
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(200, random_state=0)
    >>> roles = Roles(label="bank", features=("shop",))
    >>> columns = {"bank": range(10), "shop": range(10, 20)}
    >>> Vertical(SplitClassifier(epochs=3), columns=columns, roles=roles).fit(X, y).predict(X).shape
    (200,)
    """

    def __init__(
        self, estimator: Estimator, *, columns: Mapping[str, Sequence[str | int]], roles: Roles, seed: int = 0
    ) -> None:
        self.estimator = estimator
        self.columns = columns
        self.roles = roles
        self.seed = seed

    def fit(self, X: Any, y: Any) -> Self:
        """Fit every party's share on its columns of X."""
        tables = self._tables(X)
        label = self.roles.label
        if label is None or label not in tables:
            raise DataError(f"The label party should be one of {', '.join(tables)}, but is {label}. Check the roles.")
        tables[label] = tables[label].with_labels(np.asarray(y))
        self.shares_ = dict(
            simulate(self.estimator.fit, tables, roles=self.roles, seed=self.seed, keep="digests").results
        )
        if self.estimator.task == "classification":
            self.classes_ = np.unique(np.asarray(y))
        self.n_features_in_ = np.shape(X)[1]
        return self

    def __getattr__(self, name: str) -> Any:
        """What every party has learned under this name, by party: `coef_`, `feature_importances_`, `history_`."""
        shares = vars(self).get("shares_", {})
        if name.endswith("_") and not name.startswith("_") and any(hasattr(share, name) for share in shares.values()):
            return {party: getattr(share, name) for party, share in shares.items() if hasattr(share, name)}
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}, and no party has learned one.")

    def plot_history(self, ax: Axes | None = None) -> Axes:
        """Draw the figures of each epoch by party; the extra `report`."""
        check_is_fitted(self)
        history = {party: share.history_ for party, share in self.shares_.items() if hasattr(share, "history_")}
        return plot_history(history, ax, type(self.estimator).__name__)

    def save(self, folder: Path | str) -> None:
        """Write every party's share into a file of the folder, as each would keep its own."""
        check_is_fitted(self)
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, share in self.shares_.items():
            share.save(Path(folder) / f"{name}.safetensors")

    def predict(self, X: Any) -> NDArray[Any]:
        """The joint prediction for every row of X."""
        return self._predict(X).values

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The joint model's probabilities, one column per class."""
        probabilities = self._predict(X).probabilities
        if probabilities is None:
            raise AttributeError(f"{type(self.estimator).__name__} gives no probabilities.")
        return probabilities

    def score(self, X: Any, y: Any) -> float:
        """Accuracy of a classifier, R² of a regression."""
        from sklearn.metrics import accuracy_score, r2_score

        metric = accuracy_score if self.estimator.task == "classification" else r2_score
        return float(metric(y, self.predict(X)))

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn whether this classifies."""
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.estimator_type = "classifier" if self.estimator.task == "classification" else "regressor"
        tags.classifier_tags = ClassifierTags() if self.estimator.task == "classification" else None
        return tags

    def _predict(self, X: Any) -> Prediction:
        check_is_fitted(self)
        protocols = {name: share.predict for name, share in self.shares_.items()}
        run = simulate(protocols, self._tables(X), roles=self.roles, seed=self.seed, keep="digests")
        prediction = run.results[str(self.roles.label)]
        assert prediction is not None
        return prediction

    def _tables(self, X: Any) -> dict[str, Table]:
        tables = {}
        for name in self.roles.holders:
            wanted = list(self.columns.get(name, ()))
            if hasattr(X, "columns"):
                data = {str(column): X[column] for column in wanted}
            else:
                array = np.asarray(X)
                data = {f"column {column}": array[:, int(column)] for column in wanted}
            data = {"row": np.arange(len(X)), **data}
            tables[name] = Table.of(data, ids="row", owner=name)
        return tables
