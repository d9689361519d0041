"""Quality: how well a trained model predicts rows it has not seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import PlanError
from colonnade.models.base import Estimator, Prediction
from colonnade.models.functional.metrics import curve_metrics, mean_curve
from colonnade.models.functional.model import CurvePrediction
from colonnade.runtime.simulate import Run, simulate
from colonnade.tables.table import Table


def quality(run: Run[Estimator], tables: Mapping[str, Table], prediction: Prediction | None = None) -> dict[str, float]:
    """Let the parties of a run predict the rows of these tables together, and compare with the labels.

    Args:
        run: A training.
        tables: The parties' rows.
        prediction: The joint prediction of these rows, if it was already made.

    Returns:
        The number of "rows"; for a classifier its "accuracy", the share of the commonest class ("commonest"), which a
        constant guess would reach, and its "AUC" where both sides of every class occur; for curves their errors
        (`colonnade.models.functional.metrics`), with the mean of the training rows for a mean; else "R2".
    """
    simulation, label = run.simulation, run.simulation.roles.label
    if prediction is None and label is not None:
        shares = {party: share.predict for party, share in run.results.items()}
        predicted = simulate(
            shares, tables, roles=simulation.roles, seed=simulation.seed, defences=simulation.defences, keep="digests"
        )
        prediction = predicted.results[label]
    if label is None or prediction is None or tables[label].labels is None:
        raise PlanError(
            "Quality is measured against the predictions and labels of the label party, but this run has none. "
            "Name a label party, and its label column."
        )
    if isinstance(prediction, CurvePrediction):
        name = tables[label].label_name
        assert name is not None
        observed, trained = tables[label].curves(name), run.on_aligned_rows().simulation.tables[label].curves(name)
        return {"rows": len(observed), **curve_metrics(prediction.curves, observed, mean=mean_curve(trained))}
    truth = np.asarray(tables[label].labels)
    if run.results[label].task == "classification":
        return classification_quality(prediction, truth)
    from sklearn.metrics import r2_score

    return {"rows": len(truth), "R2": float(r2_score(truth, prediction.values))}


def classification_quality(prediction: Prediction, truth: NDArray[Any]) -> dict[str, float]:
    """The figures that `quality` has of a classifier, from one prediction."""
    counts = np.unique(truth, return_counts=True)[1]
    figures: dict[str, float] = {
        "rows": len(truth),
        "accuracy": float((prediction.values == truth).mean()),
        "commonest": float(counts.max() / counts.sum()),
    }
    probabilities = prediction.probabilities
    if probabilities is not None and probabilities.shape[1] == len(counts) > 1:
        from sklearn.metrics import roc_auc_score

        scores = probabilities[:, 1] if len(counts) == 2 else probabilities
        figures["AUC"] = float(roc_auc_score(truth, scores, multi_class="ovr"))
    return figures
