"""Trackers: the results of a sweep for MLflow or TensorBoard, through their own interfaces; extras of these names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from colonnade.errors import PlanError, imported
from colonnade.storage import make_private
from colonnade.text import nearest

MODULES = {"mlflow": "mlflow", "tensorboard": "torch.utils.tensorboard"}
MOST_AT_ONCE = 1000
"""How many figures MLflow takes in one call."""


@dataclass(frozen=True)
class TrackedTrial:
    """A trial as trackers know it: its settings, its figures, and figures over epochs as (epoch, value)."""

    name: str
    settings: Mapping[str, str]
    figures: Mapping[str, float]
    series: Mapping[str, Sequence[tuple[int, float]]]
    failed: bool


def require_tracker(name: str) -> None:
    """Refuse a tracker that is unknown or not installed."""
    if name not in MODULES:
        raise PlanError(
            f"log_to should be {' or '.join(MODULES)}, but is {name!r}.{nearest(name, MODULES)} Correct the name."
        )
    imported(MODULES[name], name, f"Logging to {name}")


def track(tracker: str, trials: Iterable[TrackedTrial], folder: Path, experiment: str) -> None:
    """Write trials for a tracker into a folder; MLflow's own variable MLFLOW_TRACKING_URI goes before the folder."""
    require_tracker(tracker)
    write = _to_mlflow if tracker == "mlflow" else _to_tensorboard
    write(trials, folder, experiment)


def _to_mlflow(trials: Iterable[TrackedTrial], folder: Path, experiment: str) -> None:
    mlflow = imported("mlflow", "mlflow", "Logging to mlflow")
    own = mlflow.environment_variables.MLFLOW_TRACKING_URI.get()
    make_private(folder)
    client = mlflow.MlflowClient(tracking_uri=own or f"sqlite:///{folder.absolute()}/mlflow.db")
    known = client.get_experiment_by_name(experiment)
    place = client.create_experiment(experiment) if known is None else known.experiment_id
    for trial in trials:
        run = client.create_run(place, run_name=trial.name)
        began, identity = run.info.start_time, run.info.run_id
        metrics = [
            # MLflow takes letters, digits and these marks.
            mlflow.entities.Metric(re.sub(r"[^\w./ -]", "_", key), value, began, step)
            for key, points in _steps(trial).items()
            for step, value in points
        ]
        settings = [mlflow.entities.Param(key, text) for key, text in trial.settings.items()]
        client.log_batch(identity, params=settings)
        for first in range(0, len(metrics), MOST_AT_ONCE):
            client.log_batch(identity, metrics=metrics[first : first + MOST_AT_ONCE])
        client.set_terminated(identity, "FAILED" if trial.failed else "FINISHED")


def _to_tensorboard(trials: Iterable[TrackedTrial], folder: Path, experiment: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for trial in trials:
        with SummaryWriter(str(folder / "tensorboard" / re.sub(r"[^\w.=-]+", "_", trial.name))) as writer:
            writer.add_text("settings", "  \n".join(f"{key}: {text}" for key, text in trial.settings.items()))
            writer.add_text("sweep", experiment + (", failed" if trial.failed else ""))
            for key, points in _steps(trial).items():
                for step, value in points:
                    writer.add_scalar(key.replace(".", "/"), value, step)


def _steps(trial: TrackedTrial) -> dict[str, Sequence[tuple[int, float]]]:
    """Every figure as (epoch, value), those without epochs at epoch 0."""
    return {**{key: [(0, value)] for key, value in trial.figures.items()}, **trial.series}
