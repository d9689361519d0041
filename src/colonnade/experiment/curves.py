"""Experiments with simulated curves: replicates x numbers of workers x folds, on the executor and journal of sweeps.

A trial is one replicate, one number of workers and one fold. All folds of a replicate train on the same release: every
record is released once, with the same noise, and folds are cut afterwards, which costs no privacy. Workers only share
the inputs out; the records of a replicate are the same for every number of them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from colonnade.curves.basis import FloatArray
from colonnade.data.functional.folder import FunctionalFolder
from colonnade.data.functional.generator import column
from colonnade.errors import DataError, PlanError
from colonnade.experiment.sweep import Journal, Trial, sweep
from colonnade.models.functional.estimator import FunctionalBoost
from colonnade.models.functional.metrics import curve_metrics, selection_metrics
from colonnade.roles import Roles
from colonnade.runtime.executor import Executor, Serial
from colonnade.runtime.simulate import Run, simulate
from colonnade.storage import read_tree, write_atomically, write_tree

METRICS = ("RMSE", "NRMSE", "sMAPE", "WMAPE", "MAPE", "IL2", "RIL2", "OverMean", "Sensitivity", "Specificity")
MEASURES = (*METRICS, "Time_hours", "Comm_MB")
# In the order in which the published table has them.
SUMMARY = ("WMAPE", "sMAPE", "MAPE", "NRMSE", "RMSE", "IL2", "RIL2", "OverMean", *MEASURES[8:])
RESULTS = "results.safetensors"
R_RESULTS = "vfl_dp_foboost_results.RData"
POOR = 0.5


@dataclass(frozen=True)
class FunctionalExperiment:
    """What is run on a folder of curves.

    Attributes:
        model: Settings of `FunctionalBoost` that differ from its defaults.
        workers: Which numbers of workers; all that the folder has if None.
        replicates: How many replicates; all if None.
    """

    folder: FunctionalFolder
    folds: int = 4
    model: Mapping[str, Any] = field(default_factory=dict)
    workers: tuple[int, ...] | None = None
    replicates: int | None = None

    def trials(self) -> list[Trial]:
        """One trial per replicate, number of workers and fold, with the seed that the published runner gives it."""
        if self.folds < 2:
            raise PlanError(f"An experiment needs two folds or more, but folds is {self.folds}. Choose 4.")
        FunctionalBoost(**self.model)
        return [
            Trial(
                {
                    "folder": str(self.folder.path.absolute()),
                    "generation": _generation(self.folder),
                    "duplicate": hh,
                    "workers": k,
                    "fold": fold,
                    "folds": self.folds,
                    "model": dict(self.model),
                },
                seed=1_000_000 * hh + 1_000 * k + fold,
            )
            for hh in range(1, (self.replicates or self.folder.replicates) + 1)
            for k in self.workers or self.folder.workers
            for fold in range(1, self.folds + 1)
        ]

    def run(self, out: Path, executor: Executor | None = None, *, progress: bool = True) -> FunctionalResults:
        """Run what is not done yet, and write journal and results into a folder."""
        with Journal(out / "journal.sqlite") as journal:
            table = sweep(run_trial, self.trials(), journal=journal, executor=executor or Serial(), progress=progress)
        failed = [text for text in table.column("trial.traceback").to_pylist() if text]
        if failed:
            raise DataError(
                f"All {len(table)} trials should end, but {len(failed)} failed; the first says: "
                f"{failed[0].strip().splitlines()[-1]} Correct the cause and run again; finished trials are kept."
            )
        results = FunctionalResults.of(table)
        results.save(out)
        return results


@dataclass(frozen=True)
class FunctionalResults:
    """What an experiment measured.

    Attributes:
        res_df: One row per trial: duplicate, workers, fold, and every measure.
        arrays: Every measure over (workers, replicate, fold).
        workers: What the first axis stands for.
    """

    res_df: dict[str, list[float]]
    arrays: dict[str, FloatArray]
    workers: tuple[int, ...]

    @classmethod
    def of(cls, table: pa.Table) -> FunctionalResults:
        """The results of a sweep's table."""
        names = ("duplicate", "workers", "fold", *MEASURES)
        res_df = {name: table.column(name).to_pylist() for name in names}
        workers = tuple(sorted(set(res_df["workers"])))
        shape = (len(workers), max(res_df["duplicate"]), max(res_df["fold"]))
        arrays = {name: np.full(shape, np.nan) for name in MEASURES}
        ranks = np.searchsorted(workers, res_df["workers"])
        places = ranks, np.subtract(res_df["duplicate"], 1), np.subtract(res_df["fold"], 1)
        for name in MEASURES:
            arrays[name][places] = res_df[name]
        return cls(res_df, arrays, workers)

    @property
    def res(self) -> dict[str, list[float]]:
        """One row per number of workers: means over replicates and folds."""
        means = {f"{name}_mean": np.nanmean(self.arrays[name], axis=(1, 2)).tolist() for name in SUMMARY}
        return {"k": list(self.workers), **means}

    def advice(self) -> list[str]:
        """What may help, where a figure is poor; nothing where all are good."""
        res = self.res
        poor = [k for k, value in zip(self.workers, res["OverMean_mean"], strict=True) if not value < POOR]
        unselective = [k for k, value in zip(self.workers, res["Sensitivity_mean"], strict=True) if value < 1]
        lines = []
        if poor:
            worst = max(res["OverMean_mean"])
            lines.append(
                f"The error over the mean's reaches {worst:.2f}; 1 is what predicting the mean gives. Consider less "
                "noise, if the budget allows it, or a larger clip radius; more records; other penalties or shrinkage; "
                "a longer path."
            )
        if unselective:
            lines.append(
                "Some active inputs are missed. Consider less noise, if the budget allows it, or more records."
            )
        return lines

    def save(self, out: Path) -> None:
        """Write the results, and a copy for R where the extra `r` is installed."""
        tree = {"res_df": self.res_df, "arrays": self.arrays, "workers": list(self.workers)}
        write_tree(out / RESULTS, tree)
        write_atomically(out / "summary.json", json.dumps(self.res, indent=1).encode())
        self._save_for_r(out)

    def _save_for_r(self, out: Path) -> None:
        if importlib.util.find_spec("rdata") is None:
            return
        import pandas as pd

        from colonnade.data.functional.rdata import write_rdata

        frames = {name: pd.DataFrame(columns) for name, columns in (("res", self.res), ("res_df", self.res_df))}
        for frame in frames.values():
            frame.index = pd.RangeIndex(1, len(frame) + 1)
        write_rdata(out / R_RESULTS, **frames, **self.arrays, numworkersseq=np.array(self.workers, np.int32))

    @classmethod
    def load(cls, out: Path) -> FunctionalResults:
        """The results that `save` wrote."""
        tree = read_tree(out / RESULTS)
        return cls(tree["res_df"], dict(tree["arrays"]), tuple(tree["workers"]))


def run_trial(trial: Trial) -> dict[str, float]:
    """Fit and predict one fold of one replicate."""
    given = trial.configuration
    folder = FunctionalFolder.open(given["folder"])
    if _generation(folder) != given["generation"]:
        raise DataError(
            f"{folder.path} should hold the curves that the trial was planned for, but they were generated again. "
            "Run the experiment in another folder."
        )
    k, hh, fold, folds = (int(given[name]) for name in ("workers", "duplicate", "fold", "folds"))
    data = folder.load(replicate=hh, workers=k)
    test = np.array_split(np.arange(len(data.y)), folds)[fold - 1]
    roles = Roles(label="label", features=tuple(f"worker {i}" for i in range(1, k + 1)))
    model = FunctionalBoost(**{"inputs": "partial", **given["model"]}, hold_out=(fold, folds))
    start = time.perf_counter()
    # The seed is the replicate's, not the fold's: the noise of a release is then the same in every fold.
    run = simulate(model.fit, data.tables(k), roles=roles, seed=1_000_000 * hh + 1_000 * k, keep="digests")
    seconds = time.perf_counter() - start
    shares = {name: share.predict for name, share in run.results.items()}
    tables = data.take(test).tables(k)
    answer = simulate(shares, tables, roles=roles, seed=trial.seed, keep="digests").results["label"]
    assert answer is not None
    label = run.results["label"]
    assert isinstance(label, FunctionalBoost)
    active = [column(j) for j in data.active]
    return {
        **curve_metrics(answer.curves, data.y.take(test), mean=label.centers_["y"]),
        **selection_metrics(label.selected_, active, len(data.x)),
        "Time_hours": seconds / 3600,
        "Comm_MB": sent_bytes(run) / 2**20,
        "steps": len(label.path_),
        "epsilon": _finite(label.privacy()["epsilon"]),
    }


def sent_bytes(run: Run[Any]) -> int:
    """How many bytes crossed between parties, from the senders' recordings."""
    return sum(entry.size for transcript in run.transcripts.values() for entry in transcript.entries if entry.sent)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -1.0


def _generation(folder: FunctionalFolder) -> str:
    return hashlib.sha256(json.dumps(folder.manifest, sort_keys=True).encode()).hexdigest()[:16]
