"""What a label party finds out about its model's quality, and where that lies in the folder of its side.

quality.json            how well the model predicts the held-out rows, beside the label party alone
evaluation.parquet      the held-out rows' labels and joint prediction, by which two runs are compared
evaluation/             what was sent and received to predict them
predictions/0001/       the same of a prediction whose rows have labels
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from colonnade.errors import DataError, PlanError, StorageError
from colonnade.models.base import Estimator, Prediction
from colonnade.models.evaluation import HeldOut, evaluate, keep_evaluation, read_prediction
from colonnade.models.quality import Quality
from colonnade.plans.plan import Plan
from colonnade.tables.table import Table

_log = logging.getLogger(__name__)


class ScoredSide(Protocol):
    """What is asked of a label party's side of a run: a `PartyRun`."""

    @property
    def plan(self) -> Plan:
        """What was run."""

    @property
    def name(self) -> str:
        """The label party."""

    @property
    def path(self) -> Path:
        """The folder of the side."""

    def common_rows(self) -> Table | None:
        """The party's rows in the common order."""

    def trained_rows(self) -> Table | None:
        """Those that were trained on."""


def score_held_out(side: ScoredSide, share: Estimator, prediction: Prediction) -> Quality:
    """Measure the joint prediction of held-out rows, and keep the outcome in the side's folder."""
    held_out, rows = side.plan.evaluate, side.common_rows()
    assert held_out is not None
    assert rows is not None
    train, rest = held_out.split(rows)
    return _scored(side, share, prediction, train, rest, side.path)


def score_rows(side: ScoredSide, share: Estimator, prediction: Prediction, rows: Table, folder: Path) -> Quality | None:
    """Measure a prediction on those of its rows that have a label and were not trained on; None if there are none."""
    try:
        train = side.trained_rows()
    except (DataError, StorageError) as error:
        _log.warning("The prediction was not scored, because the rows that were trained on are unknown. %s", error)
        return None
    if train is None or rows.labels is None:
        return None
    is_new = pc.invert(pc.is_in(_as_text(rows.ids), value_set=_as_text(train.ids)))
    chosen = np.asarray(pc.and_(is_new, rows.labels.is_valid()), np.bool_)
    if not chosen.any():
        return None
    return _scored(side, share, _some(prediction, chosen), train, rows.take(chosen), folder)


def _scored(
    side: ScoredSide, share: Estimator, prediction: Prediction, train: Table, rows: Table, folder: Path
) -> Quality:
    threshold = HeldOut.threshold if side.plan.evaluate is None else side.plan.evaluate.threshold
    quality = evaluate(share, prediction, train, rows, threshold=threshold)
    keep_evaluation(folder, quality, prediction.about(rows, getattr(share, "classes_", None)), train)
    return quality


def score_file(side: ScoredSide, share: Estimator, file: Path, labelled: Path) -> Quality:
    """Measure a prediction that was written to a file, once the labels of its rows are known.

    Args:
        side: The label party's side of the run.
        share: Its share of the model.
        file: What `predict` wrote.
        labelled: The rows that were predicted, with their labels, written as the plan's file is.
    """
    planned = side.plan.data.tables.get(side.name)
    if side.name != side.plan.roles.label or planned is None:
        raise PlanError(
            f"A prediction is measured by the label party, by labels in a file, but {side.name} has none. Run this at "
            f"{side.plan.roles.label}."
        )
    rows = replace(planned, path=labelled).read(side.name)
    arrow = read_prediction(file)
    ids = pc.index_in(_as_text(rows.ids), value_set=_as_text(arrow.column(0)))
    found = np.asarray(ids.is_valid(), np.bool_)
    if rows.labels is None or not found.any():
        raise DataError(
            f"--rows should bring labels of rows that {file.name} predicts, but {found.sum():,} of its {len(rows):,} "
            "rows are predicted there. Name the file whose rows were predicted, with a label column."
        )
    taken = arrow.take(ids.drop_null())
    values = np.asarray(taken.column("prediction").cast(rows.labels.type))
    names = [name for name in taken.column_names if name.startswith("probability ")]
    probabilities = np.column_stack([np.asarray(taken.column(name)) for name in names]) if names else None
    quality = score_rows(side, share, Prediction(values, probabilities), rows.take(found), file.parent)
    if quality is None:
        raise DataError(
            f"Quality is measured on rows with labels that were not trained on, but {file.name} has none. Predict "
            "other rows."
        )
    return quality


def _as_text(ids: pa.ChunkedArray) -> pa.Array:
    """Ids of one file as text, because another file may hold them as whole numbers."""
    return ids.cast(pa.large_string()).combine_chunks()


def _some(prediction: Prediction, rows: NDArray[np.bool_]) -> Prediction:
    given = prediction.probabilities
    return replace(prediction, values=prediction.values[rows], probabilities=None if given is None else given[rows])
