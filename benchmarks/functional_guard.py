"""The guard of noisy curves on real data: how often a guarded fit is worse than predicting the mean.

Every set of curves in $COLONNADE_DATA, and one of simulated walks, is cut by ten seeds into rows to train on and rows
to predict. Sets of one curve per record are cut in the middle: the first half predicts the second. Curves are scaled as
if a public scale were known, and centred as if a public mean were: inputs and outputs, inputs alone, or nothing. A set
as it is has a mean of up to 81 standard deviations. All three models are fitted with budgets from 0.1 to 1,000, the one
on moments with an arbiter and on shares, and new inputs enter exactly, which is the harder promise: noise in new inputs
counts against a fit, and makes the guard careful. Models on released curves know the output's mean exactly, so that for
them outputs need not be varied by themselves.

Errors are squared errors over those of the mean of the training rows: 1 is what predicting that mean gives. It takes
four minutes of the processor. With BENCHMARK_JOURNAL naming a file, a run that was stopped goes on where it was.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.functional_accuracy import measured, say
from colonnade.curves import BSplines, Curves
from colonnade.curves.basis import FloatArray
from colonnade.data.functional.generator import FunctionalData
from colonnade.experiment.sweep import Journal, Trial
from colonnade.models.functional.estimator import FunctionalBoost, FunctionalRegression
from colonnade.models.functional.moment_regression import MomentRegression
from colonnade.models.functional.release import Protection
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate

TARGETS: Mapping[str, float] = {"share_worse_than_the_mean": 0.01, "largest_share": 0.01}

# The most that a fit may have of the mean's error to count as no worse.
NO_WORSE = 1.02
EPSILONS = (0.1, 1.0, 10.0, 100.0, 1000.0)
# Whether inputs and outputs are centred.
CENTRED, OUTPUTS_AS_THEY_ARE, AS_THEY_ARE = "centred", "outputs as they are", "as they are"
CENTRED_PARTS = {CENTRED: (True, True), OUTPUTS_AS_THEY_ARE: (True, False), AS_THEY_ARE: (False, False)}
ARBITER, SHARES = "moments by an arbiter", "moments on shares"
MODELS = {
    "boost": (CENTRED, AS_THEY_ARE),
    "regression": (CENTRED, AS_THEY_ARE),
    ARBITER: tuple(CENTRED_PARTS),
    SHARES: tuple(CENTRED_PARTS),
}
BASIS = BSplines((0.0, 1.0), 8)
CLIP = 2.0
WALKS = "walks"
# A file's arrays: inputs, and the output; a single array is cut in the middle.
SETS: Mapping[str, tuple[tuple[str, ...], str | None]] = {
    "aemet_spain_weather": (("temp", "wind_speed"), "logprec"),
    "berkeley_growth": (("height_boys", "height_girls"), None),
    "bike_sharing_curves": (("temp", "hum", "windspeed"), "cnt"),
    "canadian_weather": (("temperature_c",), "log10_precip"),
    "corn_nir": (("nir",), None),
    "dti": (("cca",), "rcst"),
    "emotion_eeg_emg": (("eeg",), "emg"),
    "fuel_spectra": (("nir",), "uvvis"),
    "gait": (("hip_angle",), "knee_angle"),
    "gasoline": (("nir",), None),
    "ocean_depth_curves": (("salinity", "temperature", "oxygen", "chloropigment"), "potential_density"),
    "phoneme": (("x_train", "x_test"), None),
    "tecator": (("absorbance",), None),
}


@cache
def grids(name: str) -> tuple[tuple[FloatArray, ...], FloatArray]:
    """A set's inputs and output on their grids; rows in which anything is missing are left out."""
    if name == WALKS:
        # Curves that vary along few directions, which all inputs share: noise then hides how far a fit reaches.
        random = np.random.default_rng(0)
        common = np.cumsum(random.normal(size=(360, 24)), axis=1)
        seven = [common + random.normal(size=common.shape) for _ in range(7)]
        return tuple(seven[:6]), seven[6]
    inputs, output = SETS[name]
    with np.load(Path(os.environ["COLONNADE_DATA"], f"fda_{name}.npz"), allow_pickle=False) as arrays:
        if output is None:
            whole = np.concatenate([arrays[each].astype(float) for each in inputs])
            x, y = (whole[:, : whole.shape[1] // 2],), whole[:, whole.shape[1] // 2 :]
        else:
            x, y = tuple(arrays[each].astype(float) for each in inputs), arrays[output].astype(float)
    complete = np.isfinite(np.concatenate([*x, y], axis=1)).all(axis=1)
    return tuple(each[complete] for each in x), y[complete]


def rows_of(name: str, seed: int, centring: str = CENTRED) -> tuple[FunctionalData, int]:
    """A set's curves in an order of their own, centred and scaled by the rows to train on, and how many these are."""
    x, y = grids(name)
    order = np.random.default_rng(seed).permutation(len(y))
    n = 7 * len(y) // 10
    inputs, outputs = CENTRED_PARTS[centring]
    curves = [*(_scaled(each[order], n, inputs) for each in x), _scaled(y[order], n, outputs)]
    return FunctionalData(tuple(curves[:-1]), curves[-1], tuple(range(1, len(curves)))), n


def _scaled(values: FloatArray, n: int, is_centred: bool) -> Curves:
    z = Curves.smooth(values, np.linspace(0.0, 1.0, values.shape[1]), BASIS).coordinates
    if is_centred:
        z = z - z[:n].mean(axis=0)
    return Curves.of_coordinates(z / np.sqrt((z[:n] ** 2).sum(axis=1).mean()), BASIS)


def model_of(name: str, epsilon: float, inputs: int) -> Any:
    """A guarded model with a budget."""
    if name in (ARBITER, SHARES):
        return MomentRegression(clip_x=CLIP, clip_y=CLIP, epsilon=epsilon)
    protection = Protection(CLIP, epsilon=epsilon, n_curves=inputs)
    return {"boost": FunctionalBoost, "regression": FunctionalRegression}[name](protection=protection, inputs="partial")


def fitted_ratio(trial: Trial) -> dict[str, float]:
    """The error on new rows over that of the mean, of one fit."""
    name, model, epsilon, centring = (trial.configuration[each] for each in ("data", "model", "epsilon", "centring"))
    data, n = rows_of(name, trial.seed, centring)
    roles = Roles(label="label", features=("worker 1",), arbiter="arbiter" if model == ARBITER else None)
    fit = model_of(model, epsilon, len(data.x)).fit
    run = simulate(fit, data.take(np.arange(n)).tables(1), roles=roles, keep="digests", seed=trial.seed)
    shares = {party: share.predict for party, share in run.results.items()}
    new = data.take(np.arange(n, len(data.y)))
    found = simulate(shares, new.tables(1), roles=roles, keep="digests", seed=trial.seed).results["label"]
    mean = data.y.coordinates[:n].mean(axis=0)
    error, of_mean = (float(((each - new.y.coordinates) ** 2).sum()) for each in (found.curves.coordinates, mean))
    return {"ratio": error / of_mean}


def measure(*, quick: bool) -> dict[str, float]:
    """The share of fits that are worse than the mean, the worst, and the mean ratio of each model and budget."""
    # A label party that predicts the mean says so each time.
    logging.getLogger("colonnade.models.functional").setLevel(logging.ERROR)
    names = (WALKS, *(SETS if "COLONNADE_DATA" in os.environ and not quick else ()))
    figures: dict[str, float] = {}
    every: dict[tuple[str, str], list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Journal(os.environ.get("BENCHMARK_JOURNAL") or Path(folder, "journal.sqlite")) as journal,
    ):
        for model, centring in ((model, each) for model, some in MODELS.items() for each in some):
            for epsilon in EPSILONS:
                cell = {"part": "guard", "model": model, "epsilon": epsilon, "centring": centring}
                seeds = range(1 if quick else 10)
                trials = [Trial({**cell, "data": name}, seed) for name in names for seed in seeds]
                ratios = np.array([each["ratio"] for each in measured(journal, fitted_ratio, trials)])
                figures[f"{model}_{centring}_{epsilon:g}".replace(" ", "_")] = float(ratios.mean())
                say(
                    f"{model}, {centring}, epsilon {epsilon:g}, {len(ratios)} fits",
                    f"{ratios.mean():.3f} of the mean's error, worst {ratios.max():.3f}",
                    f"{int((ratios > NO_WORSE).sum())} above {NO_WORSE}",
                )
                every.setdefault((model, centring), []).extend(ratios.tolist())
    shares = [float((np.array(each) > NO_WORSE).mean()) for each in every.values()]
    ratios = np.concatenate([np.array(each) for each in every.values()])
    worse = float((ratios > NO_WORSE).mean())
    return {
        "share_worse_than_the_mean": worse,
        "largest_share": max(shares),
        "worst": float(ratios.max()),
        "fits": len(ratios),
        **figures,
    }
