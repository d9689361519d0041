"""How well curves are predicted, and inputs selected: the measures that the experiments report."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from colonnade.curves import Curves
from colonnade.curves.basis import FloatArray

TINY = 1e-8
# Far below the square of any curve's length, in whatever unit: errors over nothing are large and finite.
NOTHING = 1e-100
N_POINTS = 101


@dataclass(frozen=True)
class CurveErrors:
    """The squared L2 errors of predicted curves, and the errors that they are compared with, one number per row.

    Attributes:
        distance: Of the prediction.
        length: Of predicting zero: the squared length of the observed curve.
        from_mean: Of predicting a mean curve.

    >>> CurveErrors(np.array([1.0, 1.0]), np.array([9.0, 11.0]), np.array([2.0, 6.0])).relative()
    {'OverMean': 0.25, 'RIL2': 0.1}
    """

    distance: FloatArray
    length: FloatArray
    from_mean: FloatArray

    @classmethod
    def of(cls, predicted: Curves, observed: Curves, mean: Curves) -> Self:
        """The errors of predicted curves, or of one curve that is predicted for every row."""
        true = observed.coordinates
        off = predicted.coordinates - true, true, mean.coordinates - true
        return cls(*((each**2).sum(axis=1) for each in off))

    def of_mean(self) -> CurveErrors:
        """The same for the mean curve as a prediction."""
        return replace(self, distance=self.from_mean)

    def relative(self, weights: FloatArray | None = None) -> dict[str, float]:
        """OverMean, the error over that of the mean curve, and RIL2, that over the squared length of the curves.

        OverMean is 1 for predicting the mean, RIL2 for predicting zero. Rows may have weights.
        """
        ones = np.ones(len(self.distance)) if weights is None else weights
        error, length, from_mean = (float(each @ ones) for each in (self.distance, self.length, self.from_mean))
        return {"OverMean": error / max(from_mean, NOTHING), "RIL2": error / max(length, NOTHING)}


def mean_curve(curves: Curves) -> Curves:
    """The mean of some curves, as one curve."""
    return Curves(curves.coefficients.mean(axis=0, keepdims=True), curves.basis)


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
        RIL2 and OverMean, that over what predicting zero has and over what predicting the mean curve has
        (`CurveErrors`).
    """
    grid = np.linspace(*observed.basis.domain, N_POINTS) if grid is None else grid
    guess, truth = predicted.evaluate(grid), observed.evaluate(grid)
    off = np.abs(guess - truth)
    rmse = float(np.sqrt((off**2).mean()))
    errors = CurveErrors.of(predicted, observed, mean_curve(observed) if mean is None else mean)
    relative = errors.relative()
    return {
        "RMSE": rmse,
        "NRMSE": rmse / (float(truth.std(ddof=1)) + TINY),
        "sMAPE": 100 * float((2 * off / (np.abs(guess) + np.abs(truth) + TINY)).mean()),
        "WMAPE": 100 * float(off.sum() / (np.abs(truth).sum() + TINY)),
        "MAPE": 100 * float((off / (np.abs(truth) + TINY)).mean()),
        "IL2": float(errors.distance.mean()),
        "RIL2": relative["RIL2"],
        "OverMean": relative["OverMean"],
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
