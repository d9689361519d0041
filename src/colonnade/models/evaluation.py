"""Evaluation: rows that a training leaves out, their joint prediction, and what the label party predicts of them alone.

    every party                     leaves the held-out rows out, which a public rule names
    every party                     trains on the others
    feature parties ────────────▶   what the model sends to predict, about held-out rows
    label party                     compares the prediction with its labels; the outcome stays there

Nobody learns a label or a figure by this that the training and a prediction would not tell.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from colonnade.errors import PlanError, StorageError
from colonnade.models.base import Estimator, Prediction
from colonnade.models.functional.metrics import CurveErrors, mean_curve
from colonnade.models.functional.model import CurvePrediction
from colonnade.models.quality import TINY, Observed, Quality, measure, measure_curves
from colonnade.privacy.randomness import Randomness
from colonnade.runtime.party import Party
from colonnade.storage import write_atomically
from colonnade.tables.encode import Inputs
from colonnade.tables.table import Table

FOLDS = 3
MOST_COMPARED = 20_000
"""The label party alone chooses between two models on at most this many rows."""
MOST_LEVELS = 50
TRUE_LABEL, PROBABILITY = "true label", "probability "

Task: TypeAlias = Literal["classification", "regression"]
Alone: TypeAlias = Callable[[Table, Table, Task], tuple[Prediction, str]]
"""What the label party predicts by itself, and by what, given its training rows, other rows and the task."""


@dataclass(frozen=True)
class HeldOut:
    """Which rows a training leaves out, to measure the model's quality on them.

    The rule is public: it depends on the number of common rows and on the seed, so all parties find the same rows in
    their common order, and a model is compared with another one on the same rows.

    Attributes:
        share: The share of the common rows that is held out.
        seed: Which rows these are.
        threshold: From which probability on the label party calls a row positive; each party's own affair.

    >>> int(HeldOut(share=0.25).mask(8).sum())
    2
    """

    share: float = 0.2
    seed: int = 0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        for name in ("share", "threshold"):
            if not 0 < getattr(self, name) < 1:
                raise PlanError(
                    f"[evaluate] {name} should lie between 0 and 1, but is {getattr(self, name):g}. Choose "
                    f"{getattr(HeldOut, name):g} or so."
                )

    def describe(self) -> dict[str, Any]:
        """What all parties agree on."""
        return {"share": self.share, "seed": self.seed}

    def mask(self, n_rows: int) -> NDArray[np.bool_]:
        """Which of the common rows are held out: at least one is, and at least one is trained on."""
        if n_rows < 2:
            raise PlanError(
                f"Rows can be held out of at least 2, but {n_rows} are common. Leave out [evaluate], or bring more."
            )
        n = min(max(round(n_rows * self.share), 1), n_rows - 1)
        drawn = Randomness.seeded(self.seed, "held-out rows").uniform_bits(n_rows)
        mask = np.zeros(n_rows, np.bool_)
        mask[np.argsort(drawn, kind="stable")[:n]] = True
        return mask

    def trained(self, n_rows: int) -> int:
        """How many of the common rows are trained on.

        >>> HeldOut(share=0.25).trained(8)
        6
        """
        return n_rows if n_rows < 2 else int((~self.mask(n_rows)).sum())

    def split(self, table: Table) -> tuple[Table, Table]:
        """A table's rows to train on, and the others."""
        mask = self.mask(len(table))
        return table.take(~mask), table.take(mask)


@dataclass(frozen=True)
class Evaluated:
    """A training that leaves rows out, and the joint prediction of these rows after it; a function of one party.

    Attributes:
        model: What is trained.
        held_out: Which rows are left out.
        keep: Called at the label party with its share, and with its prediction of the held-out rows.

    >>> from colonnade import simulate
    >>> from colonnade.data import load
    >>> from colonnade.models import SplitClassifier
    >>> from colonnade.roles import Roles
    >>> found, roles = [], Roles(label="bank", features=("shop",))
    >>> protocol = Evaluated(SplitClassifier(epochs=1), HeldOut(), lambda share, prediction: found.append(prediction))
    >>> run = simulate(protocol, load("breast-cancer").tables, roles=roles)
    >>> found[0]
    Prediction(114 rows, with probabilities of 2 classes)
    """

    model: Estimator
    held_out: HeldOut
    keep: Callable[[Estimator, Prediction], None] = lambda share, prediction: None

    def __call__(self, party: Party) -> Estimator:
        """Train on the other rows, then predict those held out."""
        defences = copy.deepcopy(party.defences)
        train, rest = (None, None) if party.table is None else self.held_out.split(party.table)
        if party.session is not None and train is not None and rest is not None:
            party.session.note(trained_rows=len(train), held_out_rows=len(rest))
        # A single object is run by all parties of a simulation.
        share = self.model.clone().fit(party.on(train))
        aside = party.on(rest).aside("evaluation", defences)
        prediction = share.predict(aside)
        aside.recording.transcript()
        if prediction is not None and party.holds_labels:
            self.keep(share, prediction)
        return share


def predict_alone(train: Table, rows: Table, task: Task) -> tuple[Prediction, str]:
    """What the label party predicts by its own columns, and by what: the better of two models on its training rows.

    A penalised regression and boosted trees are compared by cross-validation on the training rows.
    """
    labels = np.asarray(train.labels)
    columns = [name for name in train.columns if train.kinds[name] != "curves"]
    if not columns or (task == "classification" and len(np.unique(labels)) < 2):
        return _constant(labels, len(rows), task), "the share of each class" if task == "classification" else "the mean"
    inputs = Inputs.learned(train.select(columns), np.arange(len(train)), MOST_LEVELS)
    x, wanted = inputs.one_hot(train)[0], inputs.one_hot(rows)[0]
    models = _models(task)
    with warnings.catch_warnings():
        # A regression that has not converged is compared like any other.
        warnings.simplefilter("ignore")
        by = min(models, key=lambda name: _loss(models[name], x, labels, task))
        fitted = models[by]().fit(x, labels)
    if task == "regression":
        return Prediction(np.asarray(fitted.predict(wanted), np.float64)), by
    return Prediction(fitted.predict(wanted), np.asarray(fitted.predict_proba(wanted), np.float64)), by


def evaluate(
    share: Estimator,
    prediction: Prediction,
    train: Table,
    rows: Table,
    *,
    threshold: float = 0.5,
    alone: Alone | None = predict_alone,
) -> Quality:
    """How well a joint model predicts rows that it was not trained on, beside the label party alone.

    Args:
        share: The label party's share of the model.
        prediction: The joint prediction of the rows.
        train: The label party's rows that the model was trained on.
        rows: Its other rows, with labels, in the order of the prediction.
        threshold: From which probability on a row is called positive.
        alone: What to compare with; nothing if None.
    """
    digest = rows.take(np.asarray(pc.sort_indices(rows.ids))).id_digest()
    if isinstance(prediction, CurvePrediction):
        errors = _curve_errors(prediction, train, rows)
        return measure_curves(errors, errors.of_mean(), "the mean curve", digest=digest, trained_rows=len(train))
    classes = getattr(share, "classes_", np.unique(np.asarray(train.labels))) if share.task == "classification" else ()
    seen = Observed(np.asarray(rows.labels), share.task, tuple(classes), digest, len(train))
    own, by = (None, "") if alone is None else alone(train, rows, share.task)
    return measure(seen, prediction, own, alone_by=by, threshold=threshold)


def keep_evaluation(folder: Path, quality: Quality, prediction: Prediction, train: Table) -> None:
    """Write a quality into a folder, and beside it what compares models row by row.

    That is the rows' labels and prediction, of curves the errors of each row.

    Args:
        folder: The label party's.
        quality: What `evaluate` found.
        prediction: The joint prediction, of rows that are known.
        train: The label party's rows that the model was trained on.
    """
    quality.save(folder / "quality.json")
    rows, buffer = prediction.rows, BytesIO()
    assert rows is not None
    if isinstance(prediction, CurvePrediction):
        told = pa.table({rows.id_name: rows.ids, **vars(_curve_errors(prediction, train, rows))})
    else:
        told = prediction.to_arrow().append_column(TRUE_LABEL, rows.labels)
    pq.write_table(told, buffer)
    write_atomically(folder / "evaluation.parquet", buffer.getvalue())


def _curve_errors(prediction: CurvePrediction, train: Table, rows: Table) -> CurveErrors:
    """The errors of predicted curves, beside those of the mean of the training rows."""
    observed, trained = (table.curves(str(table.label_name)) for table in (rows, train))
    return CurveErrors.of(prediction.curves, observed, mean_curve(trained))


def compare(first: Path, second: Path) -> Quality:
    """The quality of a second model, with a first one in the place of the label party alone, on the same rows.

    Args:
        first: A folder that `keep_evaluation` wrote to.
        second: Another one.

    Raises:
        PlanError: The two were measured on different rows.
    """
    earlier, later = (Quality.load(folder / "quality.json") for folder in (first, second))
    if (earlier.digest, earlier.figures.keys()) != (later.digest, later.figures.keys()):
        raise PlanError(
            f"Two models are compared on the same rows with the same labels, but {first} and {second} were measured on "
            "different ones. Predict the same rows with both, or train both on one alignment with the same [evaluate]."
        )
    tables = [read_prediction(folder / "evaluation.parquet") for folder in (first, second)]
    tables[1] = tables[1].take(pc.index_in(tables[0].column(0), value_set=tables[1].column(0).combine_chunks()))
    if "OverMean" in later.figures:
        one, other = (_read_errors(table) for table in tables)
        # Both are told over the mean that the second model's rows have.
        one = replace(one, from_mean=other.from_mean)
        return measure_curves(other, one, str(first), digest=later.digest, trained_rows=later.trained_rows)
    names = [name for name in tables[0].column_names if name.startswith(PROBABILITY)]
    task: Task = "classification" if "accuracy" in later.figures else "regression"
    read = np.asarray if task == "regression" else _as_text
    predictions = []
    for table in tables:
        probabilities = np.column_stack([np.asarray(table.column(name)) for name in names]) if names else None
        predictions.append(Prediction(read(table.column("prediction")), probabilities))
    classes = [name.removeprefix(PROBABILITY) for name in names]
    seen = Observed(read(tables[0].column(TRUE_LABEL)), task, classes, later.digest, later.trained_rows)
    return measure(seen, predictions[1], predictions[0], alone_by=str(first), threshold=later.threshold)


def read_prediction(file: Path) -> pa.Table:
    """A prediction with ids in its first column, as `Prediction.to_csv` or `keep_evaluation` wrote it."""
    import pyarrow.csv as csv

    try:
        return pq.read_table(file) if file.suffix == ".parquet" else csv.read_csv(file)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(
            f"A prediction was expected at {file}, but cannot be read ({type(error).__name__}). Check the path."
        ) from error


def _read_errors(table: pa.Table) -> CurveErrors:
    return CurveErrors(**{each.name: np.asarray(table.column(each.name)) for each in fields(CurveErrors)})


def _as_text(values: pa.ChunkedArray) -> NDArray[Any]:
    return np.array([str(value) for value in values.to_pylist()])


def _models(task: str) -> Mapping[str, Callable[[], Any]]:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge

    trees = {"learning_rate": 0.05, "max_leaf_nodes": 15, "random_state": 0}
    if task == "regression":
        return {"a ridge regression": Ridge, "boosted trees": lambda: HistGradientBoostingRegressor(**trees)}
    return {
        "a penalised logistic regression": lambda: LogisticRegression(max_iter=500),
        "boosted trees": lambda: HistGradientBoostingClassifier(**trees),
    }


def _loss(make: Callable[[], Any], x: NDArray[np.float64], labels: NDArray[Any], task: str) -> float:
    """The mean loss on rows of each part, of models fitted on the other parts."""
    n = min(len(labels), MOST_COMPARED)
    order = np.random.default_rng(0).permutation(len(labels))[:n]
    losses = []
    for part in range(FOLDS):
        tried = np.arange(n) % FOLDS == part
        fit, rest = order[~tried], order[tried]
        if not len(rest) or not len(fit) or (task == "classification" and len(np.unique(labels[fit])) < 2):
            return 0.0
        model = make().fit(x[fit], labels[fit])
        if task == "regression":
            losses.append(float(np.mean((model.predict(x[rest]) - labels[rest]) ** 2)))
            continue
        places = {label: place for place, label in enumerate(model.classes_.tolist())}
        told = model.predict_proba(x[rest])
        codes = np.array([places.get(label, -1) for label in labels[rest].tolist()])
        right = np.where(codes >= 0, told[np.arange(len(rest)), codes], 0.0)
        losses.append(float(-np.log(np.maximum(right, TINY)).mean()))
    return float(np.mean(losses))


def _constant(labels: NDArray[Any], n: int, task: str) -> Prediction:
    if task == "regression":
        return Prediction(np.full(n, labels.astype(np.float64).mean()))
    classes, counts = np.unique(labels, return_counts=True)
    return Prediction(np.full(n, classes[counts.argmax()]), np.tile(counts / counts.sum(), (n, 1)))
