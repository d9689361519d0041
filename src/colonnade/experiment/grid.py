"""GridSweep: the trials of a grid plan, their journal, and what is left to do."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean

from colonnade.errors import PlanError
from colonnade.experiment.measurement import measure_trial
from colonnade.experiment.results import Results
from colonnade.experiment.sweep import Journal, Trial, log_of, sweep
from colonnade.plans.grid import GridPlan
from colonnade.runtime.executor import Executor
from colonnade.text import data_size, duration, how_many


@dataclass(frozen=True)
class SweepStatus:
    """How far a sweep has come, and what is left as far as finished trials tell.

    Attributes:
        done: How many trials have a result.
        failed: How many failed twice, and rest.
        running: How many somebody has begun.
        others: How many trials more the journal has: of another plan, or of another version of the code.
        seconds: How long a finished trial took on average; None where none has finished. The first trial of a worker
            also loads libraries.
        bytes: How much of the disk a trial of the journal takes; None where there is none.
        free: How much the disk has left.

    >>> print(SweepStatus(12, 3, 0, 2, 0, 60.0, 2000.0, 5_000_000_000).told(jobs=2))
    12 trials: 3 finished, 0 failed, 2 running, 7 not begun.
    Time: about 5 min for the 9 that are left, 2 at once, as 3 finished trials tell.
    Disk: about 18 kB more for the journal; 5.0 GB are free.
    """

    trials: int
    done: int
    failed: int
    running: int
    others: int
    seconds: float | None
    bytes: float | None
    free: int

    @property
    def left(self) -> int:
        """How many trials have not ended."""
        return self.trials - self.done - self.failed

    def told(self, jobs: int | None) -> str:
        """The status in sentences, if this many trials run at once; None where nobody knows."""
        counts = f"{self.done} finished, {self.failed} failed, {self.running} running"
        lines = [f"{how_many(self.trials, 'trial')}: {counts}, {self.left - self.running} not begun."]
        if self.others:
            more = how_many(self.others, "trial")
            lines.append(f"The journal has {more} more, of another plan or another version of the code.")
        if self.left and (self.seconds is None or self.bytes is None):
            lines.append("Time and disk: unknown until a trial has finished. --probe runs one, and keeps its result.")
        elif self.left:
            assert self.seconds is not None
            assert self.bytes is not None
            time = duration(self.seconds * -(-self.left // (jobs or 1)))
            how = "one after the other" if jobs is None else f"{jobs} at once"
            told = how_many(self.done, "finished trial") + (" tells" if self.done == 1 else " tell")
            left = f"{self.left} that {'is' if self.left == 1 else 'are'} left"
            lines.append(f"Time: about {time} for the {left}, {how}, as {told}.")
            needed = round(self.bytes * self.left)
            short = "" if needed < self.free else " That is too little: free some space first."
            lines.append(
                f"Disk: about {data_size(needed)} more for the journal; {data_size(self.free)} are free.{short}"
            )
        return "\n".join(lines)


class GridSweep:
    """A grid plan's trials with the journal that remembers them.

    Args:
        plan: What to sweep over.
        out: The folder of the journal, which is called after the plan.
    """

    def __init__(self, plan: GridPlan, out: Path) -> None:
        self.plan = plan
        self.path = out / f"{plan.name.replace(' ', '-')}.sqlite"

    @cached_property
    def trials(self) -> list[Trial]:
        """Every combination with every seed; all combinations of a seed before the next seed."""
        found = [each.configuration() for each in self.plan.combinations]
        return [Trial(configuration, seed) for seed in self.plan.sweep.seeds for configuration in found]

    def run(
        self,
        executor: Executor,
        *,
        resume: bool = False,
        retry: bool = False,
        most: int | None = None,
        progress: bool = True,
    ) -> Results:
        """Run what the journal does not have yet.

        Args:
            executor: What runs the trials.
            resume: Go on with a journal that has trials of this plan.
            retry: Run failed trials again.
            most: How many trials to run at most, the first ones; all if None.
            progress: Whether to draw a bar, where standard error is a terminal.

        Raises:
            PlanError: A combination is impossible, or the plan was swept over before and `resume` is false.
            StorageError: The disk is full or read-only; finished trials are kept.
        """
        self.plan.check()
        status = self.status()
        begun = status.done + status.failed + status.running
        if begun and not resume:
            raise PlanError(
                f"{self.path} should have no trial of this plan, but {begun} of {status.trials} have begun or ended "
                "there. Go on with --resume, or choose another folder with --out."
            )
        with Journal(self.path) as journal:
            if retry:
                journal.requeue_quarantined()
            table = sweep(measure_trial, self.trials[:most], journal=journal, executor=executor, progress=progress)
        return Results(table, tuple(self.plan.sweep.vary))

    def status(self) -> SweepStatus:
        """How far the sweep has come; reads the journal, if there is one, and changes nothing."""
        folder = next(each for each in (self.path.parent, *self.path.absolute().parents) if each.exists())
        free = shutil.disk_usage(folder).free
        if not self.path.exists():
            return SweepStatus(len(self.trials), 0, 0, 0, 0, None, None, free)
        with Journal(self.path, read_only=True) as journal:
            table = journal.table().select(["trial.key", "trial.state", "trial.seconds"]).to_pylist()
        keys = {trial.key for trial in self.trials}
        mine = [row for row in table if row["trial.key"] in keys]
        states = Counter(row["trial.state"] for row in mine)
        seconds = [row["trial.seconds"] for row in mine if row["trial.state"] == "done"]
        return SweepStatus(
            trials=len(keys),
            done=states["done"],
            failed=states["quarantined"],
            running=states["running"],
            others=len(table) - len(mine),
            seconds=mean(seconds) if seconds else None,
            bytes=_size(self.path) / len(table) if seconds else None,
            free=free,
        )

    def results(self) -> Results:
        """What the journal has of this plan's trials, finished or not; changes nothing.

        Raises:
            PlanError: The plan was not swept over yet.
        """
        if not self.path.exists():
            raise PlanError(
                f"{self.path} should have trials of this plan, but there is no such file. Run colonnade sweep "
                "first, or name its folder with --out."
            )
        with Journal(self.path, read_only=True) as journal:
            return Results(journal.table(self.trials, complete=False), tuple(self.plan.sweep.vary))


def _size(path: Path) -> int:
    return sum(part.stat().st_size for part in (path, log_of(path)) if part.exists())
