"""Estimator: scikit-learn's contract, one side at a time."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from colonnade._version import __version__
from colonnade.curves.plots import plot_history
from colonnade.errors import DataError, PlanError, StorageError
from colonnade.parameters import Limit, check_parameters
from colonnade.roles import Lines, Roles, star
from colonnade.runtime.hooks import Sides, prepare_defences
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import describe
from colonnade.storage import Tree, read_tree, write_atomically, write_tree
from colonnade.tables.table import Table
from colonnade.text import nearest
from colonnade.wire.message import Message

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_WEIGHT = 1e30
"""Heavier rows would overflow squares of sums."""


@dataclass(frozen=True, repr=False)
class Prediction:
    """What a party learns of the joint prediction, row by row of its table.

    Attributes:
        values: The predicted class or number of each row.
        probabilities: One column per class, where the model gives them.
        rows: The rows that were predicted, if it is known which; their ids stand beside the values in `to_arrow`.
        classes: What the columns of the probabilities are about, if it is known.

    >>> prediction = Prediction(np.array(["no", "yes"]), np.array([[0.9, 0.1], [0.2, 0.8]]))
    >>> prediction.about(Table.of({"id": [7, 8]}), ["no", "yes"]).to_arrow().to_pylist()[0]
    {'id': 7, 'prediction': 'no', 'probability no': 0.9, 'probability yes': 0.1}
    """

    values: NDArray[Any]
    probabilities: NDArray[np.float64] | None = None
    rows: Table | None = field(default=None, kw_only=True, repr=False)
    classes: Sequence[Any] | None = field(default=None, kw_only=True, repr=False)

    def about(self, rows: Table, classes: Sequence[Any] | None) -> Self:
        """The same with the rows and the classes that it is about."""
        return replace(self, rows=rows, classes=classes)

    def to_arrow(self) -> pa.Table:
        """Ids, predictions and probabilities as an Arrow table; rows are numbered where no ids are known."""
        ids, name = np.arange(len(self.values)), "row"
        if self.rows is not None:
            ids, name = self.rows.ids, self.rows.id_name
        columns: dict[str, Any] = {}
        if self.values.ndim == 1:
            columns["prediction"] = self.values
        else:
            columns |= {f"coefficient {i}": column for i, column in enumerate(self.values.T)}
        if self.probabilities is not None:
            classes = range(self.probabilities.shape[1]) if self.classes is None else self.classes
            columns |= {f"probability {each}": self.probabilities[:, i] for i, each in enumerate(classes)}
        return pa.table({f"id {name}" if name in columns else name: ids} | columns)

    def to_frame(self) -> Any:
        """Ids, predictions and probabilities as a pandas frame."""
        return self.to_arrow().to_pandas()

    def to_csv(self, path: Path | str) -> None:
        """Write ids, predictions and probabilities into a CSV, or into Parquet if the file is named so."""
        import pyarrow.csv as csv
        import pyarrow.parquet as pq

        buffer = BytesIO()
        (pq.write_table if Path(path).suffix == ".parquet" else csv.write_csv)(self.to_arrow(), buffer)
        write_atomically(Path(path), buffer.getvalue())

    def __repr__(self) -> str:
        given = "" if self.probabilities is None else f", with probabilities of {self.probabilities.shape[1]} classes"
        return f"{type(self).__name__}({len(self.values):,} rows{given})"

    def _repr_html_(self) -> str:
        first = self.to_arrow().slice(0, 10).to_pylist()
        head = "".join(f"<th>{escape(str(name))}</th>" for name in self.to_arrow().column_names)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_shown(value))}</td>" for value in row.values()) + "</tr>" for row in first
        )
        return f"<p>{escape(repr(self))}</p><table><tr>{head}</tr>{body}</table>"


class Estimator(ABC):
    """A model; each party fits, holds and saves only its own share.

    `__init__` stores its arguments; `fit` validates and returns self; learned attributes end in an underscore.
    """

    task: ClassVar[Literal["classification", "regression"]]
    limits: ClassVar[Mapping[str, Limit]] = {}
    """What the parameters may be."""
    former_names: ClassVar[Mapping[str, str]] = {}
    """What parameters that had other names are called now."""
    hooks: ClassVar[Mapping[str, frozenset[str]]] = {}
    """The defence hooks called on the side of each role: "label", "feature", "server"."""
    sends: ClassVar[Mapping[str, tuple[type[Message], ...]]] = {}
    """The kinds of messages that go through `outgoing` on the side of each role."""
    local_params: ClassVar[frozenset[str]] = frozenset()
    """The parameters that are a party's own affair: no part of the public plan, and free to differ between parties."""
    randomises_labels: ClassVar[bool] = False
    """Whether all that others are told of labels follows from labels that were randomised once."""
    dry_run_params: ClassVar[Mapping[str, Any]] = {}
    """Parameters of a dry run on few rows in one process: limits that would refuse so few, and protect nobody there."""
    label_columns_spare: ClassVar[bool] = False
    """Whether the label party's columns spare others messages; a dry run leaves these out and finds the most."""

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """Refuse unknown parameters in the name of the class that was called, whichever class has the constructor."""
        _require_parameters(cls, given)
        return super().__new__(cls)

    @classmethod
    def example(cls) -> Self:
        """A small instance that trains in a moment and sends every kind of message that the model knows.

        Contract tests train it on the parties of the data set "bank-shop-telco": bank has the labels, shop and telco
        have columns.
        """
        return cls()

    @classmethod
    def sides(cls) -> Sides:
        """The hooks called and the kinds sent on the side of each role."""
        return {role: (called, cls.sends[role]) for role, called in cls.hooks.items()}

    @abstractmethod
    def fit(self, party: Party) -> Self:
        """Train together with the other parties; afterwards this holds the party's share."""

    @abstractmethod
    def predict(self, party: Party) -> Prediction | None:
        """Predict together with the other parties; None where this party learns nothing."""

    @abstractmethod
    def share(self) -> Tree:
        """What this party has learned, as a tree of arrays and plain values."""

    @abstractmethod
    def take_share(self, tree: Tree) -> None:
        """Take up what `share` gave."""

    @abstractmethod
    def summary(self) -> str:
        """What the model is, and what each role learns, in a few lines."""

    def __repr__(self) -> str:
        """The class with the parameters that are not the default ones, as scikit-learn shows an estimator."""
        defaults = inspect.signature(type(self).__init__).parameters
        changed = {
            name: value
            for name, value in self.get_params().items()
            if not (value is defaults[name].default or repr(value) == repr(defaults[name].default))
        }
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    if not TYPE_CHECKING:  # A type checker would take any attribute to be there.

        def __getattr__(self, name: str) -> Any:
            """Say why there is no history where a model has none."""
            why = " Networks note figures of each epoch, at parties that learn any." if name == "history_" else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.{why}")

    def plot_history(self, ax: Axes | None = None) -> Axes:
        """Draw this party's figures of each epoch; the extra `report`."""
        return plot_history({"this party": getattr(self, "history_", ())}, ax, type(self).__name__)

    @property
    def is_fitted(self) -> bool:
        """Whether this holds a learned share."""
        return any(name.endswith("_") and not name.startswith("_") for name in vars(self))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in _parameters(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments by name."""
        _require_parameters(type(self), params)
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def clone(self) -> Self:
        """The same estimator, unfitted and sharing nothing with this one."""
        return type(self)(**copy.deepcopy(self.get_params()))

    def save(self, path: Path | str) -> None:
        """Write this party's share, and no other party's, to one file."""
        self.require_fitted("saved")
        tree = {
            "estimator": type(self).__name__,
            "version": __version__,
            "parameters": describe(self.get_params()),
            "share": self.share(),
        }
        write_tree(Path(path), tree)

    @classmethod
    def load(cls, path: Path | str, **given: Any) -> Self:
        """Read a share that `save` wrote.

        Args:
            path: The file.
            given: Constructor's arguments in the place of the saved ones: callables, which a file cannot hold, and what
                is another on this machine, such as the device.
        """
        _require_parameters(cls, given)
        tree = read_tree(Path(path))
        if tree.get("estimator") != cls.__name__:
            raise StorageError(
                f"{Path(path).name} should hold a {cls.__name__} but holds {tree.get('estimator')!r}. "
                "Load it with the class that saved it."
            )
        parameters = tree["parameters"]
        known = _parameters(cls)
        for name, value in parameters.items():
            if name not in known:
                raise StorageError(
                    f"{Path(path).name} was fitted with {name}={value}, which {cls.__name__} of version {__version__} "
                    f"does not take; version {tree.get('version')} wrote the file. Fit the model again."
                )
            if name not in given and cls.is_factory(name, value):
                raise PlanError(
                    f"{Path(path).name} was fitted with {name}={value}, which a file cannot hold. "
                    f"Give it again: {cls.__name__}.load(path, {name}=...)."
                )
        estimator = cls(**{**parameters, **given})
        estimator.take_share(tree["share"])
        return estimator

    @classmethod
    def is_factory(cls, name: str, value: Any) -> bool:
        """Whether a saved parameter names a callable that must be given again."""
        return False

    def require_fitted(self, act: str) -> None:
        """Refuse to go on without a learned share."""
        if not self.is_fitted:
            raise PlanError(f"This {type(self).__name__} cannot be {act} before it was fitted. Call fit first.")

    def lines(self, roles: Roles) -> Lines:
        """The pairs of parties between which `fit` or `predict` sends something."""
        return star(roles.label, roles.features)

    def most_rows(self, roles: Roles) -> int | None:
        """How many rows `fit` takes at most; None sets no number."""
        return None

    def check_setup(self, party: Party) -> None:
        """Raise `PlanError` for parameters or roles that `fit` or `predict` would refuse."""
        check_parameters(self)
        if party.roles.label is None or not party.roles.features:
            raise PlanError(
                f"{type(self).__name__} needs a label party and at least one feature party, but the roles are "
                f"{party.roles}. Name both."
            )

    def check_table(self, party: Party) -> tuple[str, ...]:
        """What a party with a table should know before training; raises what `fit` would before anything is sent.

        The party need have no lines. Nothing is learned or spent.
        """
        return ()

    def check_columns(self, table: Table) -> None:
        """Raise `DataError` for rows to predict whose columns are not those that this party trained with."""
        self.require_fitted("used to predict")

    def admit_defences(self, party: Party) -> None:
        """Ready a party's defences for a run; refuses those that the model would never ask."""
        sides = self.sides()
        called, sent = sides.get(role_of(party), (frozenset(), ()))
        prepare_defences(party, called, sent, type(self).__name__, sides)


class ScoringEstimator(Estimator):
    """A model whose joint scores one party learns, and with them the prediction."""

    @abstractmethod
    def scores(self, party: Party) -> NDArray[np.float64] | None:
        """The joint model's scores before the link, at the party that learns the prediction; None elsewhere."""

    @abstractmethod
    def _prediction(self, scores: NDArray[np.float64]) -> Prediction:
        """What scores mean."""

    @abstractmethod
    def _quality(self, labels: NDArray[Any], prediction: Prediction) -> float:
        """How well a prediction fits labels."""

    def predict(self, party: Party) -> Prediction | None:
        scores = self.scores(party)
        return None if scores is None else self._prediction(scores)

    def predict_proba(self, party: Party) -> NDArray[np.float64] | None:
        """The joint model's probabilities, one column per class, at the party that learns them; None elsewhere."""
        prediction = self.predict(party)
        return None if prediction is None else prediction.probabilities

    def score(self, party: Party) -> float | None:
        """Accuracy, R² or the explained share of the deviance on this table, at the label party; None elsewhere."""
        prediction = self.predict(party)
        if prediction is None or not party.holds_labels:
            return None
        return self._quality(own_labels(party), prediction)


def role_of(party: Party) -> str:
    """What a party is to the hooks of a model: "label", "server" or "feature"."""
    return "label" if party.holds_labels else "server" if party.name == party.roles.server else "feature"


def require_classes(labels: NDArray[Any], owner: str) -> NDArray[Any]:
    """The distinct classes among the labels; a classifier needs at least two."""
    classes = np.unique(labels)
    if len(classes) < 2:
        raise DataError(
            f"{owner} should have labels of at least two classes to train a classifier, but all {len(labels)} rows are "
            "of one. Check the label column."
        )
    return classes


def own_labels(party: Party) -> NDArray[Any]:
    """The label party's labels, one for each row of its table."""
    labels = party.own_table.labels
    if labels is None:
        raise DataError(f"{party.name} is the label party but its table has no labels. Name the label column.")
    return np.asarray(labels)


def row_weights(party: Party, column: str) -> NDArray[np.float64]:
    """The weight of each row, from a column of the label party's table."""
    table = party.own_table
    if column not in table.columns:
        raise PlanError(
            f"sample_weight should name a column of {party.name}'s table, but {column!r} is none. Name another column."
        )
    values = np.asarray(table.column(column))
    wrong = len(values) if values.dtype.kind not in "fiub" else int((~((values >= 0) & (values <= MOST_WEIGHT))).sum())
    if wrong or not values.any():
        raise DataError(
            f"{party.name}'s weights in {column!r} should be numbers from 0 to {MOST_WEIGHT:g}, not all 0, but "
            f"{wrong:,} of {len(values):,} are not. Correct them."
        )
    return values.astype(np.float64)


def _require_parameters(cls: type[Estimator], given: Mapping[str, Any]) -> None:
    known = _parameters(cls)
    for name in given:
        if name not in known:
            hint = nearest(name, known, cls.former_names)
            raise PlanError(
                f"{cls.__name__} has no parameter {name!r}; it has {', '.join(known)}.{hint} Use one of these."
            )


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _parameters(cls: type[Estimator]) -> tuple[str, ...]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(cls.__init__).parameters
    return tuple(name for name, given in parameters.items() if name != "self" and given.kind in named)
