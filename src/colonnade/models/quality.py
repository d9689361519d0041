"""Quality: how well a joint model predicts rows it has not seen, beside the label party alone.

    two classes      AUC, KS, log loss, calibration error and slope, lift at a tenth, accuracy, confusion
    more classes     accuracy, log loss, AUC of each class against the others on average
    numbers          R2, RMSE, MAE
    curves           OverMean and RIL2, beside predicting the mean curve

The interval on a difference is a paired bootstrap: both models are measured on the same drawn rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError, StorageError
from colonnade.models.base import Prediction
from colonnade.models.functional.metrics import CurveErrors
from colonnade.storage import explained, write_atomically

FloatArray = NDArray[np.float64]

HIGHER: Mapping[str, bool | None] = {
    "AUC": True,
    "KS": True,
    "log loss": False,
    "calibration error": False,
    "calibration slope": None,
    "lift at a tenth": True,
    "accuracy": True,
    "R2": True,
    "RMSE": False,
    "MAE": False,
    "OverMean": False,
    "RIL2": False,
}
"""Whether a higher figure is better; None where the best is 1. The first of a quality's figures decides its verdict."""

MOST_DRAWS, FEWEST_DRAWS = 1000, 100
ROWS_DRAWN = 20_000_000
"""With more rows than this divided by the most draws, fewer draws are made; the interval is narrow then."""
LEVEL = 0.95
FEWEST = 10
"""With fewer rows, or fewer rows of a class, no interval is told: draws of so few rows hardly differ."""
ROUNDING = 1e-9
"""Figures that differ by less, relative to themselves, are the same: rounding must decide nothing."""
TINY = 1e-15
BINS = 10
TOP = 0.1


@dataclass(frozen=True)
class Figure:
    """One measure: of the joint model, of the label party alone, and of the difference.

    Attributes:
        together: The joint model's figure.
        alone: The label party's figure without the others; None where nothing was fitted.
        difference: The interval that holds the difference, together less alone, with 95 % confidence; None where there
            is none, or where there are too few rows to tell.

    >>> Figure(0.8, 0.7, (0.02, 0.18)).surely
    1
    """

    together: float
    alone: float | None = None
    difference: tuple[float, float] | None = None

    @property
    def surely(self) -> int:
        """1 where the joint figure is surely the larger one, -1 where surely the smaller one, 0 where it is unsure."""
        if self.difference is None:
            return 0
        low, high = self.difference
        return int(low > 0) - int(high < 0)


@dataclass(frozen=True)
class Quality:
    """How well a joint model predicts rows that it was not trained on, beside the label party alone.

    Attributes:
        rows: How many rows it was measured on.
        digest: A digest of the ids of these rows: two qualities of one digest are about the same rows.
        trained_rows: How many rows the model was trained on.
        alone_by: What the label party fitted alone on these rows, in words; empty if nothing.
        figures: The measures by name; the first decides the verdict.
        confusion: For "together" and "alone", how many rows of each class are called so: "true positives" and so on,
            at the threshold; empty unless there are two classes.
        threshold: From which probability on a row is called positive.
        positive: The class that counts as positive; empty unless there are two.

    >>> figures = {"AUC": Figure(0.8, 0.7, (0.02, 0.18))}
    >>> print(Quality(200, "d", 800, "boosted trees", figures).verdict)
    Together is better than alone: AUC 0.800 against 0.700, a difference of 0.020 to 0.180.
    """

    rows: int
    digest: str
    trained_rows: int
    alone_by: str
    figures: Mapping[str, Figure]
    confusion: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    threshold: float = 0.5
    positive: str = ""

    @property
    def leading(self) -> str:
        """The measure that decides the verdict."""
        return next(iter(self.figures))

    @property
    def verdict(self) -> str:
        """Whether the others' columns help, in a sentence."""
        figure = self.figures[self.leading]
        if figure.alone is None:
            return f"{self.leading} {figure.together:.3f}; nothing was fitted alone."
        if figure.difference is None:
            return (
                f"Too few rows to tell whether together is better than alone: {self.leading} {figure.together:.3f} "
                f"against {figure.alone:.3f}, on fewer than {FEWEST} rows or fewer than {FEWEST} of a class."
            )
        better = figure.surely * (1 if HIGHER[self.leading] else -1)
        words = {1: "is better than", -1: "is worse than", 0: "is not surely better than"}[better]
        low, high = figure.difference
        return (
            f"Together {words} alone: {self.leading} {figure.together:.3f} against {figure.alone:.3f}, a difference of "
            f"{low:.3f} to {high:.3f}."
        )

    def __str__(self) -> str:
        positive = [f"Positive is {self.positive!r}, the second class in order."] if self.positive else []
        alone = [self._alone_in_words] if self.alone_by else []
        return "\n".join([*self.table(), *positive, *alone, self.verdict])

    @property
    def _alone_in_words(self) -> str:
        return f"Alone is {self.alone_by} on the label party's own columns of the same training rows."

    def table(self, heads: tuple[str, str] = ("together", "alone")) -> list[str]:
        """The figures as lines of text, under these heads."""
        title = f"On {self.rows:,} rows that were not trained on:"
        lines = [f"{title:<42}{heads[0]:>10}{heads[1]:>10}   difference (95 %)"]
        for name, figure in self.figures.items():
            alone = "" if figure.alone is None else f"{figure.alone:.3f}"
            between = "" if figure.difference is None else "{:+.3f} to {:+.3f}".format(*figure.difference)
            lines.append(f"  {name:<40}{figure.together:>10.3f}{alone:>10}   {between}".rstrip())
        for name in self.confusion.get("together", ()):
            counts = "".join(f"{self.confusion[who].get(name, 0):>10,}" for who in self.confusion)
            lines.append(f"  {f'{name}, at {self.threshold:g}':<40}{counts}")
        return lines

    def save(self, path: Path) -> None:
        """Write the quality as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        try:
            with explained(f"read {path}"):
                return cls.of(json.loads(path.read_text(encoding="utf-8")))
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{path} should hold the quality of a model, but is damaged ({type(error).__name__}). Measure it again "
                "with `colonnade evaluate`."
            ) from error

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Self:
        """The quality that `asdict` turned into plain data."""
        return cls(**{**tree, "figures": {name: _figure(figure) for name, figure in tree["figures"].items()}})


def _figure(tree: Mapping[str, Any]) -> Figure:
    between = tree["difference"]
    return Figure(tree["together"], tree["alone"], None if between is None else (between[0], between[1]))


@dataclass(frozen=True)
class Observed:
    """What came of some rows, and what is known of them.

    Attributes:
        truth: The label of each row.
        task: What kind of label it is.
        classes: The classes that the columns of probabilities are about, in their order; empty for numbers.
        digest: A digest of the ids of the rows.
        trained_rows: How many rows the model was trained on.
    """

    truth: NDArray[Any]
    task: Literal["classification", "regression"]
    classes: Sequence[Any]
    digest: str
    trained_rows: int


def measure(
    seen: Observed,
    together: Prediction,
    alone: Prediction | None = None,
    *,
    alone_by: str = "",
    threshold: float = 0.5,
    seed: int = 0,
) -> Quality:
    """Compare predictions with what came.

    Args:
        seen: The true labels.
        together: The joint model's prediction of these rows.
        alone: The label party's own prediction of them.
        alone_by: What made it, in words.
        threshold: From which probability on a row is called positive.
        seed: Which rows the bootstrap draws.
    """
    n = len(seen.truth)
    if not n:
        raise DataError("Quality is measured on rows with labels, but there are none. Bring rows with labels.")
    if alone is None:
        alone_by = ""
    measures = [_measures(seen, each) for each in (together, alone) if each is not None]
    ones = np.ones(n)
    found = [each(ones) for each in measures]
    is_compared = len(found) == 2 and _fewest(seen) >= FEWEST
    intervals = _intervals(measures, n, seed) if is_compared else {}
    figures = {
        name: Figure(value, found[1].get(name) if len(found) == 2 else None, intervals.get(name))
        for name, value in found[0].items()
    }
    confusion: dict[str, Mapping[str, int]] = {}
    positive = ""
    if seen.task == "classification" and len(seen.classes) == 2:
        positive = str(seen.classes[1])
        is_true = _coded(seen) == 1
        named = {"together": together} if alone is None else {"together": together, "alone": alone}
        for who, prediction in named.items():
            if prediction.probabilities is not None:
                figures |= _slopes(figures, who, is_true, prediction.probabilities[:, 1])
                confusion[who] = _confusion(is_true, prediction.probabilities[:, 1] >= threshold)
    ordered = {name: figures[name] for name in HIGHER if name in figures}
    return Quality(n, seen.digest, seen.trained_rows, alone_by, ordered, confusion, threshold, positive)


def measure_curves(
    together: CurveErrors, other: CurveErrors, other_by: str, *, digest: str, trained_rows: int
) -> Quality:
    """Compare the errors of predicted curves with those of another prediction of the same rows."""
    n = len(together.distance)
    intervals = _intervals((together.relative, other.relative), n, 0) if n >= FEWEST else {}
    theirs = other.relative()
    figures = {name: Figure(value, theirs[name], intervals.get(name)) for name, value in together.relative().items()}
    return Quality(n, digest, trained_rows, other_by, figures)


def _fewest(seen: Observed) -> int:
    """How many rows there are; of classes, how many of the rarest that the model tells apart."""
    if seen.task == "regression":
        return len(seen.truth)
    return int(np.bincount(_coded(seen) + 1, minlength=len(seen.classes) + 1)[1:].min(initial=len(seen.truth)))


def _intervals(
    measures: Sequence[Callable[[FloatArray], Mapping[str, float]]], n: int, seed: int
) -> dict[str, tuple[float, float]]:
    """The interval on each difference, by measuring both on the same drawn rows many times."""
    generator = np.random.default_rng(seed)
    together, alone = measures
    found: dict[str, list[float]] = {}
    for _ in range(int(np.clip(ROWS_DRAWN // n, FEWEST_DRAWS, MOST_DRAWS))):
        weights = np.bincount(generator.integers(n, size=n), minlength=n).astype(np.float64)
        here, there = together(weights), alone(weights)
        for name in here.keys() & there.keys():
            is_same = math.isclose(here[name], there[name], rel_tol=ROUNDING)
            found.setdefault(name, []).append(0.0 if is_same else here[name] - there[name])
    ends = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    spans = {name: np.quantile(values, ends) for name, values in found.items()}
    return {name: (float(low), float(high)) for name, (low, high) in spans.items()}


def _measures(seen: Observed, prediction: Prediction) -> Callable[[FloatArray], dict[str, float]]:
    """What measures a prediction on weighted rows; what is undefined there is left out."""
    if seen.task == "regression":
        return _number_measures(seen.truth.astype(np.float64), prediction.values.astype(np.float64))
    hits = (prediction.values == seen.truth).astype(np.float64)
    if prediction.probabilities is None:
        return lambda weights: {"accuracy": _mean(hits, weights)}
    return _class_measures(_coded(seen), hits, prediction.probabilities)


def _class_measures(
    codes: NDArray[np.int64], hits: FloatArray, probabilities: FloatArray
) -> Callable[[FloatArray], dict[str, float]]:
    # A class that the model has never seen is given no probability.
    told = np.where(codes >= 0, probabilities[np.arange(len(codes)), np.maximum(codes, 0)], 0.0)
    losses = -np.log(np.clip(told, TINY, 1.0))
    is_binary = probabilities.shape[1] == 2
    ranked = [
        _RankedRows(codes == i, probabilities[:, i]) for i in ([1] if is_binary else range(probabilities.shape[1]))
    ]
    bins = _bins(probabilities[:, 1]) if is_binary else None
    gaps = probabilities[:, 1] - (codes == 1)

    def figures(weights: FloatArray) -> dict[str, float]:
        said = {"accuracy": _mean(hits, weights), "log loss": _mean(losses, weights)}
        curves = [each.weighted(weights) for each in ranked]
        if all(curve is not None for curve in curves):
            said["AUC"] = float(np.mean([curve["AUC"] for curve in curves if curve is not None]))
        if bins is not None:
            said["calibration error"] = float(
                np.abs(np.bincount(bins, gaps * weights, BINS)).sum() / max(weights.sum(), TINY)
            )
            if curves[0] is not None:
                said |= curves[0]
        return said

    return figures


class _RankedRows:
    """Rows by their score, of which some are true, so that measures of the ranking take no sorting."""

    def __init__(self, is_true: NDArray[np.bool_], scores: FloatArray) -> None:
        self.order = np.argsort(-scores, kind="stable")
        in_order = scores[self.order]
        self.starts = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1])))
        self.is_true = is_true[self.order].astype(np.float64)

    def weighted(self, weights: FloatArray) -> dict[str, float] | None:
        """AUC, KS and lift, the highest scores first; None where all rows are true, or none is."""
        ordered = weights[self.order]
        true = np.add.reduceat(ordered * self.is_true, self.starts)
        false = np.add.reduceat(ordered * (1 - self.is_true), self.starts)
        n_true, n_false = true.sum(), false.sum()
        if not n_true or not n_false:
            return None
        found, mistaken = np.cumsum(true) / n_true, np.cumsum(false) / n_false
        share = np.cumsum(true + false) / (n_true + n_false)
        # Rows of one score stand in no order: half of the pairs count.
        auc = (true @ (1 - mistaken + false / n_false / 2)) / n_true
        gained = np.interp(TOP, np.concatenate(([0.0], share)), np.concatenate(([0.0], found)))
        return {"AUC": float(auc), "KS": float(np.abs(found - mistaken).max()), "lift at a tenth": float(gained / TOP)}


def _number_measures(truth: FloatArray, guess: FloatArray) -> Callable[[FloatArray], dict[str, float]]:
    off = guess - truth

    def figures(weights: FloatArray) -> dict[str, float]:
        squared = _mean(off**2, weights)
        spread = _mean((truth - _mean(truth, weights)) ** 2, weights)
        said = {"RMSE": float(np.sqrt(squared)), "MAE": _mean(np.abs(off), weights)}
        return said | ({"R2": 1 - squared / spread} if spread > 0 else {})

    return figures


def _mean(values: FloatArray, weights: FloatArray) -> float:
    return float(values @ weights / weights.sum())


def _coded(seen: Observed) -> NDArray[np.int64]:
    """The place of each label among the classes; -1 for a class that the model has never seen."""
    places = {each: place for place, each in enumerate(np.asarray(seen.classes).tolist())}
    return np.array([places.get(label, -1) for label in seen.truth.tolist()], np.int64)


def _bins(scores: FloatArray) -> NDArray[np.int64]:
    """A number of about equally many rows in each bin, lowest scores first; rows of one score share a bin."""
    edges = np.quantile(scores, np.linspace(0, 1, BINS + 1)[1:-1])
    return np.searchsorted(edges, scores, side="right").astype(np.int64)


def _slopes(
    figures: Mapping[str, Figure], who: str, is_true: NDArray[np.bool_], scores: FloatArray
) -> dict[str, Figure]:
    slope = _slope(is_true, scores)
    if slope is None:
        return {}
    if who == "together":
        return {"calibration slope": Figure(slope)}
    before = figures.get("calibration slope")
    return {} if before is None else {"calibration slope": Figure(before.together, slope)}


def _slope(is_true: NDArray[np.bool_], scores: FloatArray) -> float | None:
    """The slope of true rows on log odds: 1 is calibrated, below 1 too sure; None where there is no fit."""
    clipped = np.clip(scores, 1e-9, 1 - 1e-9)
    odds = np.log(clipped / (1 - clipped))
    if is_true.all() or not is_true.any() or np.ptp(odds) < TINY:
        return None
    design, fit = np.column_stack([np.ones(len(odds)), odds]), np.zeros(2)
    for _ in range(50):
        means = 1 / (1 + np.exp(-np.clip(design @ fit, -30, 30)))
        curvature = design.T @ (design * (means * (1 - means) + TINY)[:, None])
        step = np.linalg.solve(curvature + 1e-9 * np.eye(2), design.T @ (is_true - means))
        fit += step
        if np.abs(step).max() < 1e-8:
            return float(fit[1])
    # Perfectly parted classes have no slope.
    return None


def _confusion(is_true: NDArray[np.bool_], called: NDArray[np.bool_]) -> dict[str, int]:
    return {
        "true positives": int((is_true & called).sum()),
        "false positives": int((~is_true & called).sum()),
        "false negatives": int((is_true & ~called).sum()),
        "true negatives": int((~is_true & ~called).sum()),
    }
