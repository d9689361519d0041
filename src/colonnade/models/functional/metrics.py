"""How well curves are predicted, and inputs selected: the measures that the experiments report."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from colonnade.curves import Curves
from colonnade.curves.basis import FloatArray

TINY = 1e-8
N_POINTS = 101


def curve_metrics(
    predicted: Curves, observed: Curves, grid: FloatArray | None = None, *, mean: Curves | None = None
) -> dict[str, float]:
    """Errors of predicted curves: at the points of a grid, and in the L2 norm.

    Args:
        predicted: The predicted curves.
        observed: The curves that came.
        grid: Where pointwise errors are taken; 101 equally spaced points if None.
        mean: The mean curve that a model is compared with; the observed curves' own if None.

    Returns:
        RMSE; NRMSE, over the standard deviation; sMAPE, WMAPE and MAPE in percent; IL2, the mean squared L2 distance;
        RIL2, that over the mean squared L2 norm of the observed curves, which is 1 for predicting zero; OverMean, that
        over what predicting the mean curve has, which is 1 for predicting the mean.
    """
    grid = np.linspace(*observed.basis.domain, N_POINTS) if grid is None else grid
    guess, truth = predicted.evaluate(grid), observed.evaluate(grid)
    off = np.abs(guess - truth)
    rmse = float(np.sqrt((off**2).mean()))
    distance = predicted.coordinates - observed.coordinates
    il2 = float((distance**2).sum(axis=1).mean())
    centre = observed.coordinates.mean(axis=0) if mean is None else mean.coordinates
    return {
        "RMSE": rmse,
        "NRMSE": rmse / (float(truth.std(ddof=1)) + TINY),
        "sMAPE": 100 * float((2 * off / (np.abs(guess) + np.abs(truth) + TINY)).mean()),
        "WMAPE": 100 * float(off.sum() / (np.abs(truth).sum() + TINY)),
        "MAPE": 100 * float((off / (np.abs(truth) + TINY)).mean()),
        "IL2": il2,
        "RIL2": il2 / (float((observed.coordinates**2).sum(axis=1).mean()) + TINY),
        "OverMean": il2 / (float(((observed.coordinates - centre) ** 2).sum(axis=1).mean()) + TINY),
    }


def selection_metrics(selected: Collection[str], active: Collection[str], n_features: int) -> dict[str, float]:
    """The share of active inputs that were selected, and of the others that were not.

    >>> selection_metrics({"x1", "x2"}, {"x1"}, 4)
    {'Sensitivity': 1.0, 'Specificity': 0.6666666666666667}
    """
    chosen, true = set(selected), set(active)
    idle = n_features - len(true)
    return {
        "Sensitivity": len(chosen & true) / len(true) if true else 1.0,
        "Specificity": 1 - len(chosen - true) / idle if idle else 1.0,
    }
