"""The folder of a run: enough to audit it, to show its report, and to go on after a crash.

    runs/credit-1f3a9c02/
        plan.toml                  the plan, with absolute paths
        run.json                   what was run on which tables, and its status
        metrics.json               how well the model predicts held-out rows
        quality.json, ...          the same by more measures; with a section [evaluate], beside the label party alone
        report.json, report.html   the privacy report, once the run is audited
        report-partial.json, .html beside it, one of less than the plan asks for
        nulls.jsonl                what an interrupted audit goes on from; erased when its report is written
        nulls-partial.jsonl        the same of an audit of less than the plan asks for
        alignment/                 if the plan has a section [align]: the same for the alignment, and its outcome
        bank/                      what this party alone would hold
            model.safetensors      its share of the model
            ledger                 what its releases cost, if there were any
            transcript/            what it sent and received
            checkpoints/           what an interrupted run goes on from; erased when the run has finished

Every file is whole or absent, but for recordings in progress.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from colonnade._version import __version__
from colonnade.errors import DataError, PlanError, StorageError
from colonnade.experiment.quality import quality
from colonnade.models.base import Estimator
from colonnade.models.evaluation import Alone, HeldOut, evaluate, keep_evaluation, predict_alone
from colonnade.models.quality import Quality
from colonnade.plans.plan import Plan, Tables
from colonnade.plans.sections import PlannedAudit
from colonnade.privacy.history import History, Records, history_path
from colonnade.privacy.ledger import Ledger
from colonnade.runtime.alignment import Alignment
from colonnade.runtime.checkpoint import Checkpoints
from colonnade.runtime.placed import released
from colonnade.runtime.protocol import describe
from colonnade.runtime.simulate import Run
from colonnade.runtime.status import has_begun, read_status, status_of
from colonnade.storage import explained, write_atomically
from colonnade.tables.table import Table
from colonnade.wire.recording.recording import Transcript

if TYPE_CHECKING:
    from colonnade.auditing.report import PrivacyReport
    from colonnade.runtime.executor import Executor


class RunFolder:
    """The folder of one run.

    >>> import tempfile
    >>> from colonnade.plans.sections import PlannedData, PlannedModel
    >>> from colonnade.roles import Roles
    >>> model = PlannedModel("split-classifier", {"epochs": 1})
    >>> plan = Plan(PlannedData("breast-cancer"), Roles(label="bank", features=("shop",)), model)
    >>> with tempfile.TemporaryDirectory() as out:
    ...     folder = RunFolder.create(plan, out)
    ...     run = folder.simulate()
    ...     RunFolder.open(folder.path).metrics()["rows"]
    142
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.plan = path, plan

    @classmethod
    def create(
        cls, plan: Plan, out: Path | str, *, existing: Literal["refuse", "resume", "delete"] = "refuse"
    ) -> RunFolder:
        """The folder for a plan's run, named after the plan and its hash.

        Raises:
            PlanError: The plan was run before, and `existing` refuses that.
            StorageError: The folder cannot be written.
        """
        folder = cls(Path(out) / f"{plan.name.replace(' ', '-')}-{plan.hash[:8]}", plan)
        exists = folder._has("plan.toml")
        if exists and existing == "refuse":
            raise PlanError(
                f"{folder.path} should be new, but holds a run of this plan whose status is '{folder.status}'. "
                "Go on with --resume, delete it, or choose another folder."
            )
        if exists and existing == "delete":
            with explained(f"delete {folder.path}"):
                shutil.rmtree(folder.path)
        if not exists or existing == "delete":
            folder._write("plan.toml", plan.to_toml())
        return folder

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """The folder of a run that exists.

        Raises:
            StorageError: There is no such folder, or it holds no run.
            PlanError: Its plan cannot be read by this version.
        """
        path = Path(path)
        with explained(f"read {path}"):
            found = "has no plan.toml" if path.is_dir() else "is no folder"
            if (path / "plan.toml").is_file():
                return cls(path, Plan.read(path / "plan.toml"))
        sides = [str(each.parent) for each in sorted(path.glob("*/plan.toml"))]
        named = "Name a folder that `colonnade simulate` made, or a party's within one that `colonnade join` made."
        raise StorageError(
            f"The folder of a run was expected at {path}, but that {found}. "
            + (f"It holds parties' sides of a run: name {' or '.join(sides)}." if sides else named)
        )

    @property
    def status(self) -> str:
        """How far the run has come: "planned", "running", "failed" or "finished"."""
        return status_of(self.path)

    def tables(self) -> Tables:
        """The run's tables, made again as the plan says.

        Raises:
            DataError: They are not what they were when the run began.
        """
        self.plan.require_training()
        tables = self.plan.tables(None if self.plan.align is None else self.alignments())
        if has_begun(self.path):
            for party in _changed(tables.train, self._identity()["tables"]):
                raise DataError(
                    f"{party}'s rows to train on should be those the run began with, but they have changed. "
                    "Restore the data, or simulate again in another folder."
                )
        return tables

    def alignments(self, *, progress: bool | None = False) -> dict[str, Alignment]:
        """The alignment that the plan asks for, made once, and gone on with where it was interrupted.

        Args:
            progress: Whether to show a bar; None shows it on a terminal only.

        Raises:
            PlanError: The plan asks for none.
            DataError: The data has changed since it was made or begun.
        """
        folder = self.path / "alignment"
        files = {party: folder / party / "alignment.safetensors" for party in self.plan.roles.parties}
        simulation = self.plan.alignment(self.plan.load(self.plan.roles.holders))
        if has_begun(folder):
            for party in _changed(simulation.tables, read_status(folder, "tables")["tables"]):
                raise DataError(
                    f"{party}'s rows should be those that were aligned in {folder}, but they have changed. Restore the "
                    "data, or align again in another folder."
                )
        if not all(self._has(str(path.relative_to(self.path))) for path in files.values()):
            run = simulation.run(folder, self.plan.run.checkpoint_every, progress, self._histories)
            for party, alignment in run.results.items():
                alignment.save(files[party])
        with _undamaged(folder):
            return {party: Alignment.load(path) for party, path in files.items()}

    def simulate(
        self, *, progress: bool | None = False, tables: Tables | None = None, alone: Alone | None = None
    ) -> Run[Estimator]:
        """Run the plan, or go on where it was interrupted, and write down all that comes of it.

        A run that has finished is only read.

        Args:
            progress: Whether to show a bar; None shows it on a terminal only.
            tables: What `tables` gave, where it was already called.
            alone: What the model is compared with; if None, `predict_alone` where the plan has a section [evaluate].
        """
        if self.status == "finished" and self._has("metrics.json"):
            for party in self.plan.roles.parties:
                Checkpoints(self.path / party / "checkpoints").erase()  # A crash may have left them.
            return self.load()
        tables = self.tables() if tables is None else tables
        with ExitStack() as workers:
            for table in tables.held.values():
                workers.enter_context(released(table))
            return self._simulated(tables, progress, alone)

    def _simulated(self, tables: Tables, progress: bool | None, alone: Alone | None) -> Run[Estimator]:
        simulation = self.plan.simulation(tables.train)
        run = simulation.run(self.path, self.plan.run.checkpoint_every, progress, self._histories)
        for party, share in run.results.items():
            if share.is_fitted:
                share.save(self.path / party / "model.safetensors")
        label, held_out = str(self.plan.roles.label), self.plan.evaluate or HeldOut()
        prediction = run.predict(tables.test)
        self._write("metrics.json", json.dumps(quality(run, tables.test, prediction), indent=1))
        train, rows = tables.train[label], tables.test[label]
        if alone is None and self.plan.evaluate is not None:
            alone = predict_alone
        found = evaluate(run.results[label], prediction, train, rows, threshold=held_out.threshold, alone=alone)
        keep_evaluation(self.path, found, prediction, train)
        return run

    @property
    def _histories(self) -> Path | None:
        """Where simulated releases are counted over all runs, if the plan has a budget for them.

        A simulation tells nobody anything, so its releases count apart from those between machines.
        """
        return self.path.parent / "simulated" if self.plan.privacy.budget else None

    def load(self) -> Run[Estimator]:
        """The run as it was when it had finished.

        Raises:
            StorageError: It has not finished, or a file is missing, damaged or changed.
            DataError: The data has changed since.
        """
        if self.status != "finished":
            raise StorageError(
                f"{self.path} should hold a finished run, but it is {self.status}. "
                "Finish it with `colonnade simulate --resume`."
            )
        simulation = self.plan.simulation(self.tables().train)
        written = self._identity()
        # Defences are a party's own affair, so the plan's hash says nothing about them.
        here = {"plan": simulation.plan.hash, "seed": self.plan.seed, "defences": describe(simulation.defences)}
        for key, value in {**here, "version": __version__}.items():
            if written[key] != value:
                named = "other defences" if key == "defences" else f"another {key}"
                raise StorageError(
                    f"{self.path} should hold a run of its plan.toml by version {__version__}, but run.json names "
                    f"{named}. Restore the folder, or simulate again in another one."
                )
        parties = simulation.plan.roles.parties
        return Run(
            results={party: self._share(party) for party in parties},
            transcripts={party: self._transcript(party) for party in parties},
            ledgers={party: self._ledger(party, simulation.tables.get(party)) for party in parties},
            simulation=simulation,
            plan=simulation.plan,
            id_digest=next(iter(simulation.tables.values())).id_digest(),
        )

    def audit(
        self,
        planned: PlannedAudit | None = None,
        *,
        executor: Executor | None = None,
        attackers: Collection[str] | None = None,
    ) -> PrivacyReport:
        """Audit the finished run, and write the report as JSON and as a page; go on with an audit that was interrupted.

        A report of fewer attacks, attackers, null runs or epochs than the plan asks for, or of a less thorough audit,
        does not replace that of the planned audit, nor does such an audit touch what a planned one goes on from.

        Args:
            planned: How; as the plan says if None.
            executor: What repeats the run; one repetition after the other in this process if None.
            attackers: The parties that attack; every party if None.
        """
        from colonnade.auditing import audit
        from colonnade.auditing.null import NullJournal

        planned = planned or self.plan.audit
        attacks, run = planned.build(self.plan.defences), self.load()
        how: dict[str, Any] = {name: getattr(planned, name) for name in ("nulls", "seed", "delta", "epochs")}
        audited = f"{__version__} {run.plan.hash} {self.plan.seed} {planned.seed}"
        all_attack = attackers is None or set(attackers) >= set(run.plan.roles.parties)
        partial = not (planned.covers(self.plan.audit) and all_attack)
        journal = NullJournal(self.path / ("nulls-partial.jsonl" if partial else "nulls.jsonl"), audited)
        report = audit(run, attacks, executor=executor, attackers=attackers, journal=journal, **how)
        report = replace(report, quality=self.quality(), partial=partial)
        report.write(self.path)
        journal.erase()
        return report

    def metrics(self) -> Mapping[str, float]:
        """How well the model predicts held-out rows."""
        metrics: dict[str, float] = self._read_json("metrics.json")
        return metrics

    def quality(self) -> Quality | None:
        """How well the model predicts held-out rows; None in the folder of an early version."""
        return Quality.load(self.path / "quality.json") if self._has("quality.json") else None

    def report(self) -> PrivacyReport:
        """The report of the last audit; a partial one does not replace a whole one.

        Raises:
            StorageError: The run was not audited yet, or the report is damaged.
        """
        from colonnade.auditing.report import PrivacyReport

        return PrivacyReport.read(self.path)

    def _share(self, party: str) -> Estimator:
        model, path = self.plan.trained.build(), self.path / party / "model.safetensors"
        with _undamaged(path):
            return type(model).load(path) if self._has(f"{party}/model.safetensors") else model

    def _transcript(self, party: str) -> Transcript:
        transcripts = []
        for path in (self.path / "alignment" / party / "transcript", self.path / party / "transcript"):
            if path.is_dir() or path.parent.parent == self.path:
                with _undamaged(path):
                    transcripts.append(Transcript.load(path))
        *earlier, last = transcripts
        return last.after(earlier[0]) if earlier else last

    def _ledger(self, party: str, table: Table | None) -> Ledger:
        """What the party's releases cost, those of its alignment included, beside those of all runs if they count."""
        past = None if self._histories is None else history_path(self._histories, party)
        history = None
        if past is not None and past.exists() and table is not None:
            history = History(past, Records.of(table), self.path.name)
        ledger = Ledger(path=self.path / party / "ledger", history=history)
        path = self.path / "alignment" / party / "ledger"
        return ledger.after(Ledger(path=path)) if path.exists() else ledger

    def _identity(self) -> dict[str, Any]:
        return read_status(self.path, "seed", "defences", "tables", "version")

    def _read_json(self, name: str) -> Any:
        with _undamaged(self.path / name):
            return json.loads(self._read(name))

    def _read(self, name: str) -> str:
        path = self.path / name
        if not self._has(name):
            raise StorageError(
                f"{path} should be there after a run, but is missing. Restore it, or simulate again in another folder."
            )
        with _undamaged(path), explained(f"read {path}"):
            return path.read_text(encoding="utf-8")

    def _has(self, name: str) -> bool:
        with explained(f"read {self.path / name}"):
            return (self.path / name).is_file()

    def _write(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text.encode())


def _changed(tables: Mapping[str, Table], digests: Mapping[str, str]) -> list[str]:
    """The parties whose rows are not those that a run began with."""
    return [party for party, table in tables.items() if table.digest() != digests.get(party)]


@contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    """Turn what goes wrong in reading a file that a run wrote into one error."""
    try:
        yield
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise StorageError(
            f"{path} should be as the run wrote it, but is damaged ({type(error).__name__}). "
            "Restore it, or simulate again in another folder."
        ) from error
