"""Accuracy of functional boosting: without privacy against its limits, under privacy against noise, and on real curves.

Prints tables for a reader. The figures with targets are those of the published default setting without privacy (10
replicates, 4 folds), the worst relative error of guarded fits under any amount of noise, and real data. Records under
privacy are drawn from a seed that had no part in any choice of the models' design.

It takes half an hour. With BENCHMARK_JOURNAL naming a file, what was measured is written down there, and a run that was
stopped goes on where it was.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from colonnade.curves import BSplines, Curves
from colonnade.curves.basis import FloatArray
from colonnade.data.functional.generator import FunctionalData, FunctionalSetting, column
from colonnade.experiment.sweep import Journal, Trial, sweep
from colonnade.models.functional.estimator import FunctionalBoost
from colonnade.models.functional.exchange import NewInputs
from colonnade.models.functional.metrics import curve_metrics, selection_metrics
from colonnade.models.functional.moment_regression import MomentRegression
from colonnade.models.functional.moments import form_moments
from colonnade.models.functional.path import PathStopping
from colonnade.models.functional.release import Protection
from colonnade.models.functional.rules import joint_fit
from colonnade.models.functional.solve import Penalties, SurfaceRoughness
from colonnade.roles import Roles
from colonnade.runtime.executor import Serial
from colonnade.runtime.simulate import simulate

TARGETS: Mapping[str, float] = {
    "missed_active": 0.0,
    "false_selected": 0.01,
    "ratio_to_oracle": 1.02,
    "low_rank_ril2": 0.11,
    "worst_guarded_ril2": 1.02,
}

TWO = Roles(label="label", features=("worker 1", "worker 2"))
ONE = Roles(label="label", features=("worker 1",))
WITH_ARBITER = Roles(label="label", features=("worker 1", "worker 2"), arbiter="arbiter")
CLIP, CLIP_Y = 5.5, 5.0
FRESH_SEED = 31_415
# From next to no penalty to one under which only straight lines are left.
PENALTIES = tuple(10.0**power for power in range(-5, 3))
HALVINGS = 5
# What the first measurements found, with fewer replicates; none where it was no better than the mean.
CELLS: Mapping[tuple[str, int, str], Mapping[float, float | None]] = {
    ("release", 500, "noise"): {0.2: 0.138, 0.5: 0.211, 1.0: 0.424, 2.0: 0.773, 4.0: None},
    ("release", 4000, "noise"): {0.5: 0.107, 1.0: 0.149, 2.0: 0.292, 4.0: 0.605},
    ("release", 40000, "epsilon"): {400.0: 0.135, 100.0: 0.312, 30.0: 0.651, 10.0: 0.925},
    ("unguarded release", 40000, "epsilon"): {10.0: 0.925},
    ("noisy new inputs", 500, "noise"): {0.2: None, 0.5: None, 1.0: None, 4.0: None},
    ("moments", 500, "epsilon"): {1.0: None, 3.0: None, 10.0: None, 30.0: None},
    ("moments", 5000, "epsilon"): {1.0: None, 3.0: 0.823, 10.0: 0.278, 30.0: 0.134},
    ("moments", 40000, "epsilon"): {1.0: 0.188, 3.0: 0.111, 10.0: 0.097, 30.0: 0.095},
    ("moments without an arbiter", 5000, "epsilon"): {3.0: None, 10.0: None, 30.0: None},
    ("moments without an arbiter", 40000, "epsilon"): {1.0: None, 3.0: None, 10.0: None},
}
QUICK_CELLS = {("release", 500, "noise"): {4.0: None}, ("moments", 500, "epsilon"): {10.0: None}}


def fitted_error(
    model: Any, data: FunctionalData, train: ArrayLike, test: ArrayLike, roles: Roles = TWO, seed: int = 0
) -> tuple[float, float, float]:
    """RIL2 on held-out records, sensitivity and specificity."""
    n = len(roles.features)
    run = simulate(model.fit, data.take(train).tables(n), roles=roles, keep="digests", seed=seed)
    shares = {name: share.predict for name, share in run.results.items()}
    answer = simulate(shares, data.take(test).tables(n), roles=roles, keep="digests", seed=seed)
    label = run.results["label"]
    error = curve_metrics(answer.results["label"].curves, data.y.take(test))["RIL2"]
    chosen = selection_metrics(label.selected_, [column(j) for j in data.active], len(data.x))
    return error, chosen["Sensitivity"], chosen["Specificity"]


def oracle_error(data: FunctionalData, train: FloatArray, test: FloatArray) -> float:
    """RIL2 of least squares that is told which inputs are active."""
    z = np.stack([each.coordinates for each in data.x], axis=1)
    y = data.y.coordinates
    basis = data.y.basis
    places = [j - 1 for j in data.active]
    w = joint_fit(form_moments(z[train], y[train]), SurfaceRoughness.of(basis, basis), Penalties(), places)
    predicted = np.einsum("njq,jqk->nk", z[test] - z[train].mean(axis=0), w) + y[train].mean(axis=0)
    return curve_metrics(Curves.of_coordinates(predicted, basis), data.y.take(test))["RIL2"]


def default_setting(trial: Trial) -> dict[str, float]:
    """One fold of one replicate of the published default setting, without privacy."""
    data = FunctionalSetting().draw_one(trial.seed)
    test = np.array_split(np.arange(500), 4)[trial.configuration["fold"]]
    train = np.setdiff1d(np.arange(500), test)
    error, sensitivity, specificity = fitted_error(FunctionalBoost(inputs="partial"), data, train, test)
    low_rank, *_ = fitted_error(FunctionalBoost(inputs="partial", refit="low-rank"), data, train, test)
    assert data.signal is not None
    return {
        "error": error,
        "sensitivity": sensitivity,
        "specificity": specificity,
        "low_rank": low_rank,
        "oracle": oracle_error(data, train, test),
        "limit": curve_metrics(data.signal.take(test), data.y.take(test))["RIL2"],
    }


def without_privacy(journal: Journal, quick: bool) -> dict[str, float]:
    """The published default setting: boosting, its low-rank refit, the oracle and the limit."""
    folds, replicates = range(1 if quick else 4), range(1, 2 if quick else 11)
    trials = [Trial({"part": "default setting", "fold": fold}, seed) for seed in replicates for fold in folds]
    found = measured(journal, default_setting, trials)
    names = ("error", "sensitivity", "specificity", "low_rank", "oracle", "limit")
    mean = {name: float(np.mean([each[name] for each in found])) for name in names}
    say(
        f"default setting, no privacy, {len(found)} fits",
        f"RIL2 boost {mean['error']:.4f}, low-rank refit {mean['low_rank']:.4f}, oracle {mean['oracle']:.4f}, "
        f"limit {mean['limit']:.4f}",
        f"sensitivity {mean['sensitivity']:.3f}, specificity {mean['specificity']:.3f}",
    )
    return {
        "missed_active": 1 - mean["sensitivity"],
        "false_selected": 1 - mean["specificity"],
        "ratio_to_oracle": mean["error"] / mean["oracle"],
        "ril2": mean["error"],
        "low_rank_ril2": mean["low_rank"],
    }


def measured(
    journal: Journal, function: Callable[[Trial], Mapping[str, Any]], trials: Sequence[Trial]
) -> list[dict[str, Any]]:
    """The results of some trials, run where the journal does not have them."""
    rows: list[dict[str, Any]] = sweep(function, trials, journal=journal, executor=Serial(), progress=False).to_pylist()
    for row in rows:
        assert row["trial.traceback"] is None, row["trial.traceback"]
    return rows


def model_of(mode: str, varied: str, value: float) -> tuple[Any, Roles]:
    """The model of a cell, and who takes part."""
    if mode.startswith("moments"):
        model = MomentRegression(clip_x=CLIP, clip_y=CLIP_Y, epsilon=value)
        return model, WITH_ARBITER if mode == "moments" else ONE
    by_noise, by_budget = Protection(CLIP, noise=value), Protection(CLIP, epsilon=value, n_curves=20)
    settings: dict[str, Any] = {"guard": False, "correction": 1.0} if mode == "unguarded release" else {}
    inputs: NewInputs = "released" if mode == "noisy new inputs" else "partial"
    protection = by_noise if varied == "noise" else by_budget
    return FunctionalBoost(protection=protection, inputs=inputs, **settings), TWO


def private_cell(trial: Trial) -> dict[str, float]:
    """One replicate of one cell."""
    mode, n, varied, value = (trial.configuration[name] for name in ("mode", "n", "varied", "value"))
    n_test = min(2000, n // 4)
    model, roles = model_of(mode, varied, value)
    data = FunctionalSetting(n=n, seed=FRESH_SEED).draw_one(trial.seed)
    found = fitted_error(model, data, np.arange(n_test, n), np.arange(n_test), roles, seed=trial.seed)
    return dict(zip(("error", "sensitivity", "specificity"), found, strict=True))


def under_privacy(journal: Journal, quick: bool) -> dict[str, float]:
    """The relative error against noise and epsilon, in both modes, and the worst of all guarded fits."""
    figures = {"worst_guarded_ril2": 0.0}
    for (mode, n, varied), found_before in (QUICK_CELLS if quick else CELLS).items():
        for value, before in found_before.items():
            cell = {"mode": mode, "n": n, "varied": varied, "value": value}
            found = measured(journal, private_cell, [Trial(cell, number) for number in range(1, 2 if quick else 6)])
            error, sensitivity, specificity = (
                np.array([each[name] for each in found]) for name in ("error", "sensitivity", "specificity")
            )
            if mode != "unguarded release":
                figures["worst_guarded_ril2"] = max(figures["worst_guarded_ril2"], float(error.max()))
            figures[f"{mode.replace(' ', '_')}_{n}_{varied}_{value:g}"] = float(error.mean())
            spread = float(error.std(ddof=1)) if len(error) > 1 else 0.0
            say(
                f"{mode}, N {n}, {varied} {value:g}",
                f"RIL2 {error.mean():.3f} (sd {spread:.3f}, worst {error.max():.3f})"
                + ("" if before is None else f", before {before:.3f}"),
                f"sensitivity {sensitivity.mean():.2f}, specificity {specificity.mean():.2f}",
            )
    return figures


def say(what: str, *figures: str) -> None:
    """Print one line."""
    print(f"    {what}: {'; '.join(figures)}", flush=True)


def real_curves() -> Iterator[tuple[str, FunctionalData, int]]:
    """Real data sets as inputs and outputs, and how many folds they are cut into; none without their files."""
    folder = os.environ.get("COLONNADE_DATA")
    if not folder:
        return
    hours, basis = np.arange(24.0), BSplines((0.0, 23.0), 12)

    def daily(values: FloatArray) -> Curves:
        return Curves.smooth(values, hours, basis)

    bikes = np.load(Path(folder, "fda_bike_sharing_curves.npz"))
    complete = np.isfinite(bikes["cnt"]).sum(axis=1) >= 20
    measures = ("temp", "hum", "windspeed")
    yield "bike sharing", _data([daily(bikes[name][complete]) for name in measures], daily(bikes["cnt"][complete])), 5
    import pyarrow.parquet as pq

    table = pq.read_table(Path(folder, "beijing_pm25_hourly.parquet")).to_pandas()
    table = table.sort_values("No")
    n_days = len(table) // 24
    names = ("pm2.5", "DEWP", "TEMP", "PRES", "Iws")
    values = {name: table[name].to_numpy(float)[: 24 * n_days].reshape(n_days, 24) for name in names}
    values |= {name: np.log1p(values[name]) for name in ("pm2.5", "Iws")}
    complete = np.isfinite(values["pm2.5"]).sum(axis=1) >= 20
    inputs = [daily(values[name][complete]) for name in names[1:]]
    yield "beijing PM2.5", _data(inputs, daily(values["pm2.5"][complete])), 5
    weather = np.load(Path(folder, "fda_canadian_weather.npz"))
    days, year = np.arange(365) + 0.5, BSplines((0.0, 365.0), 11)
    temperature = Curves.smooth(weather["temperature_c"], days, year)
    rain = Curves.smooth(weather["log10_precip"], days, year)
    yield "Canadian weather", _data([temperature], rain), 35


def _data(x: list[Curves], y: Curves) -> FunctionalData:
    return FunctionalData(tuple(x), y, tuple(range(1, len(x) + 1)))


def concurrent(x: FloatArray, y: FloatArray, new: FloatArray) -> FloatArray:
    """At each moment the output regressed on all inputs at the same moment, by least squares."""
    fitted = np.empty((new.shape[0], y.shape[1]))
    for moment in range(y.shape[1]):
        design = np.column_stack([np.ones(len(x)), x[:, :, moment]])
        weights = np.linalg.lstsq(design, y[:, moment], rcond=None)[0]
        fitted[:, moment] = np.column_stack([np.ones(len(new)), new[:, :, moment]]) @ weights
    return fitted


def ridge(z: FloatArray, y: FloatArray, new: FloatArray) -> FloatArray:
    """All inputs jointly by ridge regression whose penalty is found by leave-one-out cross-validation."""
    from sklearn.linear_model import RidgeCV

    flat, fresh = z.reshape(len(z), -1), new.reshape(len(new), -1)
    return np.asarray(RidgeCV(alphas=np.logspace(-3, 5, 17) * flat.var()).fit(flat, y).predict(fresh))


def real_errors(trial: Trial) -> dict[str, float]:
    """Out-of-sample error over that of the functional mean, for the model and two others, on one data set."""
    data, n_folds = next((data, n) for name, data, n in real_curves() if name == trial.configuration["data"])
    basis = data.y.basis
    grid = np.linspace(*basis.domain, 101)
    order = np.random.default_rng(trial.seed).permutation(len(data.y))
    errors: dict[str, float] = dict.fromkeys(("mean", "concurrent", "ridge", "boost"), 0.0)
    # Inputs are measured in different units.
    scaled = _data([Curves(each.coefficients / each.coordinates.std(), each.basis) for each in data.x], data.y)
    z = np.stack([each.coordinates for each in scaled.x], axis=1)
    x = np.stack([each.evaluate(grid) for each in scaled.x], axis=1)
    y, y_grid = data.y.coordinates, data.y.evaluate(grid)
    weights = np.full(len(grid), (grid[-1] - grid[0]) / (len(grid) - 1))
    weights[[0, -1]] /= 2
    for test in np.array_split(order, n_folds):
        train = np.setdiff1d(order, test)
        guesses = {
            "mean": np.tile(y[train].mean(axis=0), (len(test), 1)),
            "ridge": ridge(z[train], y[train], z[test]),
            "boost": _boosted(scaled, train, test).coordinates,
        }
        for model, guess in guesses.items():
            errors[model] += float(((guess - y[test]) ** 2).sum())
        by_moment = concurrent(x[train], y_grid[train], x[test])
        errors["concurrent"] += float((((by_moment - y_grid[test]) ** 2) * weights).sum())
    return {"curves": len(y), **{model: errors[model] / errors["mean"] for model in ("boost", "ridge", "concurrent")}}


def on_real_data(journal: Journal) -> dict[str, float]:
    """The errors on all real data sets; none without their files."""
    figures: dict[str, float] = {}
    for name, _, n_folds in real_curves():
        trial = Trial({"part": "real curves", "data": name, "halvings": HALVINGS}, 0)
        (found,) = measured(journal, real_errors, [trial])
        models = {model: float(found[model]) for model in ("boost", "ridge", "concurrent")}
        told = ", ".join(f"{model} {ratio:.3f}" for model, ratio in models.items())
        say(f"{name}, {found['curves']} curves, {n_folds} folds", f"error over that of the mean: {told}")
        figures |= {f"{name.replace(' ', '_')}_{model}": ratio for model, ratio in models.items()}
    return figures


def _boosted(data: FunctionalData, train: ArrayLike, test: ArrayLike) -> Curves:
    """Predicted curves of a model whose penalties were chosen by its own cross-validation on the training rows.

    Two halves of few rows judge each other differently each time they are drawn, so they are drawn several times.
    """
    roles = Roles(label="label", features=("worker 1",))
    tables = data.take(train).tables(1)
    found = {}
    for penalty in PENALTIES:
        penalties, stopping = Penalties(penalty, penalty, relative=True), PathStopping(max_steps=500, patience=20)
        model = FunctionalBoost(inputs="partial", penalties=penalties, stopping=stopping)
        runs = [simulate(model.fit, tables, roles=roles, keep="digests", seed=seed) for seed in range(HALVINGS)]
        found[penalty] = sum(min(run.results["label"].traces_["cv"]) for run in runs), runs[0]
    shares = {name: share.predict for name, share in min(found.values(), key=lambda each: each[0])[1].results.items()}
    answer = simulate(shares, data.take(test).tables(1), roles=roles, keep="digests").results["label"]
    assert answer is not None, "the label party is told"
    return answer.curves


def measure(*, quick: bool) -> dict[str, float]:
    """All of it."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(os.environ.get("BENCHMARK_JOURNAL") or Path(folder, "journal.sqlite"))
        with journal:
            figures = without_privacy(journal, quick) | under_privacy(journal, quick)
            return figures | ({} if quick else on_real_data(journal))
