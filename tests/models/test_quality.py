from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, mean_absolute_error, r2_score, roc_auc_score, roc_curve

from colonnade.auditing.contents import RunIdentity
from colonnade.auditing.report import PrivacyReport
from colonnade.curves import BSplines, Curves
from colonnade.errors import DataError, StorageError
from colonnade.models.base import Prediction
from colonnade.models.functional.metrics import CurveErrors, curve_metrics
from colonnade.models.quality import Figure, Observed, Quality, measure, measure_curves

DRAW = np.random.default_rng(4)
TRUTH = np.where(DRAW.random(400) < 0.3, "late", "paid")
# "paid" counts as positive: it is the second class. Scores have ties.
SCORES = np.round(np.clip((TRUTH == "paid") * 0.2 + DRAW.random(400) * 0.8, 0.01, 0.99), 2)


def predicted(scores: NDArray[np.float64]) -> Prediction:
    return Prediction(np.where(scores >= 0.5, "paid", "late"), np.column_stack([1 - scores, scores]))


def seen(truth: NDArray[Any] = TRUTH, classes: tuple[Any, ...] = ("late", "paid")) -> Observed:
    return Observed(truth, "classification", classes, "digest", 1000)


def test_figures_of_two_classes_are_those_of_scikit_learn() -> None:
    found = {name: figure.together for name, figure in measure(seen(), predicted(SCORES)).figures.items()}
    false, true, _ = roc_curve(TRUTH == "paid", SCORES)
    odds = np.log(SCORES / (1 - SCORES))
    fitted = LogisticRegression(C=np.inf, tol=1e-10).fit(odds[:, None], TRUTH)
    expected = {
        "AUC": roc_auc_score(TRUTH == "paid", SCORES),
        "KS": (true - false).max(),
        "log loss": log_loss(TRUTH == "paid", SCORES),
        "accuracy": accuracy_score(TRUTH, predicted(SCORES).values),
        "calibration slope": fitted.coef_[0, 0],
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-4)


def test_lift_compares_the_tenth_with_the_highest_scores_with_all_rows() -> None:
    truth = np.repeat(["paid", "late"], [20, 80])
    best = measure(seen(truth), predicted(np.linspace(0.99, 0.01, 100))).figures["lift at a tenth"]
    assert best.together == pytest.approx(5)
    equal = measure(seen(truth), predicted(np.full(100, 0.3))).figures["lift at a tenth"]
    assert equal.together == pytest.approx(1)


def test_calibration_error_is_the_mean_gap_between_probability_and_rate() -> None:
    truth = np.array(["paid"] * 3 + ["late"] * 7 + ["paid"] * 9 + ["late"])
    said = np.repeat([0.3, 0.6], 10)
    assert measure(seen(truth), predicted(said)).figures["calibration error"].together == pytest.approx(0.15)


def test_confusion_counts_rows_at_the_threshold() -> None:
    truth, scores = np.array(["paid", "paid", "late", "late"]), np.array([0.9, 0.4, 0.6, 0.2])
    counted = measure(seen(truth), predicted(scores), threshold=0.5).confusion["together"]
    assert counted == {"true positives": 1, "false positives": 1, "false negatives": 1, "true negatives": 1}
    lower = measure(seen(truth), predicted(scores), threshold=0.3).confusion["together"]
    assert (lower["true positives"], lower["false negatives"]) == (2, 0)


def test_three_classes_have_the_figures_of_scikit_learn() -> None:
    truth = DRAW.integers(3, size=300)
    probabilities = DRAW.dirichlet(np.ones(3), 300) * 0.5 + 0.5 * np.eye(3)[truth] * DRAW.random((300, 1))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    prediction = Prediction(probabilities.argmax(axis=1), probabilities)
    found = measure(seen(truth, (0, 1, 2)), prediction)
    assert {name: figure.together for name, figure in found.figures.items()} == pytest.approx(
        {
            "AUC": roc_auc_score(truth, probabilities, multi_class="ovr"),
            "accuracy": accuracy_score(truth, prediction.values),
            "log loss": log_loss(truth, probabilities),
        }
    )
    assert found.confusion == {}


def test_numbers_have_the_figures_of_scikit_learn() -> None:
    truth = DRAW.normal(size=200)
    guess = truth + DRAW.normal(size=200) / 2
    found = measure(replace(seen(truth), task="regression", classes=()), Prediction(guess)).figures
    assert {name: figure.together for name, figure in found.items()} == pytest.approx(
        {
            "R2": r2_score(truth, guess),
            "RMSE": np.sqrt(((guess - truth) ** 2).mean()),
            "MAE": mean_absolute_error(truth, guess),
        }
    )


def test_a_class_that_was_never_trained_on_costs_log_loss_and_no_error() -> None:
    truth = np.array(["late", "paid", "sold"])
    figures = measure(seen(truth), predicted(np.array([0.1, 0.8, 0.5]))).figures
    assert figures["accuracy"].together == pytest.approx(2 / 3)
    assert figures["log loss"].together > 10


def test_rows_of_one_class_have_no_ranking() -> None:
    figures = measure(seen(np.full(20, "paid")), predicted(SCORES[:20])).figures
    assert "accuracy" in figures
    assert not {"AUC", "KS", "lift at a tenth", "calibration slope"} & set(figures)


def test_a_better_model_is_surely_better_and_an_equal_one_is_not() -> None:
    worse = np.clip(SCORES[DRAW.permutation(len(SCORES))], 0.01, 0.99)
    found = measure(seen(), predicted(SCORES), predicted(worse), alone_by="boosted trees")
    assert found.figures["AUC"].surely == 1
    assert found.figures["log loss"].surely == -1
    assert found.verdict.startswith("Together is better than alone: AUC")
    turned = measure(seen(), predicted(worse), predicted(SCORES), alone_by="boosted trees")
    assert turned.verdict.startswith("Together is worse than alone: AUC")
    same = measure(seen(), predicted(SCORES), predicted(SCORES), alone_by="boosted trees")
    assert same.figures["AUC"].difference == (0, 0)
    assert same.verdict.startswith("Together is not surely better than alone")


def test_the_interval_on_a_difference_is_as_wide_as_the_figure_varies_over_samples() -> None:
    """The spread over fresh samples is the oracle of the bootstrap."""
    differences = []
    for seed in range(200):
        draw = np.random.default_rng(seed)
        truth = draw.normal(size=300)
        off = [truth + draw.normal(size=300) * scale for scale in (0.8, 1.0)]
        differences.append(np.diff([mean_absolute_error(truth, each) for each in off[::-1]])[0])
    regression = replace(seen(truth), task="regression", classes=())
    between = measure(regression, Prediction(off[0]), Prediction(off[1])).figures["MAE"].difference
    assert between is not None
    low, high = np.quantile(differences, [0.025, 0.975])
    assert between[1] - between[0] == pytest.approx(high - low, rel=0.3)


def test_rows_without_labels_have_no_quality() -> None:
    with pytest.raises(DataError) as caught:
        measure(seen(TRUTH[:0]), predicted(SCORES[:0]))
    assert str(caught.value) == ("Quality is measured on rows with labels, but there are none. Bring rows with labels.")


def test_a_quality_is_read_as_it_was_written(tmp_path: Path) -> None:
    quality = measure(seen(), predicted(SCORES), predicted(SCORES[::-1]), alone_by="boosted trees")
    quality.save(tmp_path / "quality.json")
    assert Quality.load(tmp_path / "quality.json") == quality
    (tmp_path / "quality.json").write_text('{"rows": 4}')
    with pytest.raises(StorageError, match=r"quality\.json should hold the quality of a model, but is damaged"):
        Quality.load(tmp_path / "quality.json")


def test_a_report_keeps_the_quality_that_it_was_given() -> None:
    identity = RunIdentity("0" * 64, "SplitClassifier.fit", {"bank": "label party"}, 9, 0, "seeded", "simulated")
    quality = measure(seen(), predicted(SCORES), predicted(SCORES[::-1]), alone_by="boosted trees")
    report = PrivacyReport(identity, (), {}, (), (), quality=quality)
    assert PrivacyReport.from_json(report.to_json()) == report


def test_a_quality_is_told_as_a_table_with_a_verdict() -> None:
    figures = {"AUC": Figure(0.81, 0.74, (0.03, 0.11)), "log loss": Figure(0.4, 0.5, (-0.15, -0.05))}
    counts = {"together": {"true positives": 12}, "alone": {"true positives": 9}}
    told = str(Quality(1200, "digest", 4800, "boosted trees", figures, counts, positive="paid")).splitlines()
    assert told == [
        "On 1,200 rows that were not trained on:     together     alone   difference (95 %)",
        "  AUC                                          0.810     0.740   +0.030 to +0.110",
        "  log loss                                     0.400     0.500   -0.150 to -0.050",
        "  true positives, at 0.5                          12         9",
        "Positive is 'paid', the second class in order.",
        "Alone is boosted trees on the label party's own columns of the same training rows.",
        "Together is better than alone: AUC 0.810 against 0.740, a difference of 0.030 to 0.110.",
    ]


def test_few_rows_of_a_class_decide_nothing() -> None:
    truth, up = np.array(["paid"] + ["late"] * 29), np.linspace(0.99, 0.01, 30)
    # Every draw that holds the one paid row says 1 against 0: the interval would be a point.
    found = measure(seen(truth), predicted(up), predicted(1 - up), alone_by="a guess")
    assert (found.figures["AUC"].together, found.figures["AUC"].difference) == (1, None)
    assert found.verdict == (
        "Too few rows to tell whether together is better than alone: AUC 1.000 against 0.000, on fewer than 10 rows or "
        "fewer than 10 of a class."
    )
    numbers = Observed(np.arange(9.0), "regression", (), "digest", 20)
    few = measure(numbers, Prediction(np.arange(9.0)), Prediction(np.zeros(9)), alone_by="the mean")
    assert few.figures["R2"].difference is None


def curves_far_from_zero(n: int) -> tuple[Curves, Curves, Curves]:
    """Curves that came, the mean of others like them, and a prediction that explains a fifth of what they vary."""
    basis, draw = BSplines((0, 1), 5), np.random.default_rng(2)
    varying = draw.normal(size=(n, 5))
    observed, mean = Curves(20 + varying, basis), Curves(20 + 0.1 * draw.normal(size=(1, 5)), basis)
    return observed, mean, Curves(20 + 0.1 * varying, basis)


def over_the_mean(observed: Curves, guess: Curves, mean: Curves) -> Quality:
    """The quality of predicted curves beside a mean."""
    errors = CurveErrors.of(guess, observed, mean)
    return measure_curves(errors, errors.of_mean(), "the mean curve", digest="d", trained_rows=9)


def test_curves_are_judged_by_their_error_over_that_of_the_mean() -> None:
    """By their squared size alone, a model that explains a fifth would seem to be right to two parts in a thousand."""
    observed, mean, guess = curves_far_from_zero(80)
    found = over_the_mean(observed, guess, mean)
    over_mean, over_size = found.figures["OverMean"], found.figures["RIL2"]
    assert list(found.figures) == ["OverMean", "RIL2"]
    assert found.leading == "OverMean"
    assert over_mean.together == pytest.approx(0.81, abs=0.03)
    assert over_mean.alone == 1
    assert over_size.together < 0.003
    assert over_mean.surely == over_size.surely == -1
    assert found.verdict.startswith("Together is better than alone: OverMean 0.")
    by_row = curve_metrics(guess, observed, mean=mean)
    assert {name: figure.together for name, figure in found.figures.items()} == {
        name: by_row[name] for name in found.figures
    }


def test_the_interval_on_curves_is_that_of_rows_drawn_together() -> None:
    observed, mean, guess = curves_far_from_zero(80)
    low, high = over_the_mean(observed, guess, mean).figures["OverMean"].difference or (0, 0)
    off, far = (((each.coordinates - observed.coordinates) ** 2).sum(axis=1) for each in (guess, mean))
    drawn = np.random.default_rng(9).integers(80, size=(4000, 80))
    wanted = np.quantile(off[drawn].sum(axis=1) / far[drawn].sum(axis=1) - 1, [0.025, 0.975])
    assert (low, high) == pytest.approx(wanted, abs=0.01)


def test_predicting_the_mean_curve_is_no_better_than_the_mean_and_few_curves_tell_nothing() -> None:
    observed, mean, guess = curves_far_from_zero(80)
    same = Curves(np.tile(mean.coefficients, (80, 1)), mean.basis)
    # A last digit is no difference: all draws would agree on it.
    for almost in (same, Curves(same.coefficients * (1 + 1e-15), mean.basis)):
        found = over_the_mean(observed, almost, mean)
        assert found.figures["OverMean"].difference == (0.0, 0.0)
        assert found.verdict.startswith("Together is not surely better than alone")
    few = over_the_mean(observed.take(np.arange(9)), guess.take(np.arange(9)), mean)
    assert few.figures["OverMean"].difference is None
