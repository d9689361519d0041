"""PartyRun: what one organisation does of a planned run between machines, and the folder it keeps of it.

    runs/credit-1f3a9c02/bank/
        plan.toml              the plan, with absolute paths
        run.json, live.json    what was run, on which rows, and its status; where it is just now
        model.safetensors      this party's share of the model
        alignment.safetensors  which of its rows are common, if the plan has a section [align]
        ledger, transcript/    what its releases cost; what it sent, and digests of what it received
        checkpoints/           what the run goes on from after a crash, and the key of its randomness; erased when all
                               parties have finished
        predictions/0001/      the first prediction with this model
        audits/0001/           the first joint audit: what it sent and received there
        quality.json, ...      how well the model predicts held-out rows (`colonnade.deploy.evaluation`)
        report.json, .html     what its last audit found; in report-partial.*, where that stood beside a whole one

The number in the name is that of the public plan, hence the same at all parties.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from colonnade.deploy.common_rows import agreed_alignment, finished_alignment, keep_alignment, on_common_rows
from colonnade.deploy.evaluation import score_file, score_held_out, score_rows
from colonnade.deploy.label_leak import require_accepted
from colonnade.deploy.preflight import counts_path, require_lines, require_list, require_network, require_ready
from colonnade.errors import DataError, PlanError, StorageError
from colonnade.models.base import Estimator, Prediction
from colonnade.models.evaluation import Evaluated
from colonnade.models.quality import Quality
from colonnade.plans.plan import Plan
from colonnade.plans.sections import PlannedNetwork
from colonnade.privacy.history import History, Records, history_path
from colonnade.privacy.ledger import Ledger
from colonnade.roles import PublicPlan
from colonnade.runtime.alignment import Alignment
from colonnade.runtime.checkpoint import Checkpoints
from colonnade.runtime.join import join
from colonnade.runtime.placed import released
from colonnade.runtime.protocol import describe_protocol, private_randomness
from colonnade.runtime.status import LiveStatus, read_status, status_of
from colonnade.storage import explained, is_erased, make_private, open_private, write_atomically
from colonnade.tables.table import Table
from colonnade.wire.recording.recording import Transcript
from colonnade.wire.transport import check_address, require_loopback

if TYPE_CHECKING:
    from colonnade.align.limits import Purpose
    from colonnade.align.protocol import Align
    from colonnade.auditing.report import PrivacyReport
    from colonnade.plans.align import PlannedAlign
    from colonnade.plans.sections import PlannedAudit
    from colonnade.runtime.checkpoint import Watcher
    from colonnade.runtime.party import Party
    from colonnade.wire.certs.credentials import Credentials, Identity

R = TypeVar("R")


@dataclass(frozen=True)
class ProgressCallbacks:
    """What a run calls as it goes on; each callback does nothing unless it is given.

    >>> ProgressCallbacks().met("shop", None)
    """

    wait: Callable[[Sequence[str], float], None] = lambda names, seconds: None
    met: Callable[[str, Identity | None], None] = lambda peer, identity: None
    rows: Callable[[int, int], None] = lambda n_common, n_own: None
    quality: Callable[[Quality], None] = lambda quality: None
    step: Watcher | None = None


SILENT = ProgressCallbacks()


@dataclass(frozen=True)
class PartyRun:
    """One party's side of a plan's run.

    >>> from colonnade.plans.sections import PlannedAddress
    >>> from colonnade.plans.sections import PlannedData, PlannedModel
    >>> from colonnade.roles import Roles
    >>> roles, network = Roles(label="bank", features=("shop",)), PlannedNetwork({"bank": PlannedAddress("[::1]:7431")})
    >>> plan = Plan(PlannedData("breast-cancer"), roles, PlannedModel("split-classifier"), network=network)
    >>> PartyRun.of(plan, "shop", "runs", insecure=True).addresses
    {'bank': '[::1]:7431', 'shop': None}
    """

    plan: Plan
    name: str
    path: Path
    credentials: Credentials | None
    listen: str | None = None
    looks_up: bool = False

    @classmethod
    def of(
        cls,
        plan: Plan,
        name: str,
        out: Path | str,
        *,
        certificates: Path | None = None,
        insecure: bool = False,
        listen: str | None = None,
    ) -> PartyRun:
        """The side of one party of a plan.

        Args:
            plan: What will run; its section [network] says where the parties are.
            name: The party.
            out: Where runs are kept.
            certificates: The folder of its certificate and key, if not the plan's.
            insecure: Send everything in the clear; every address must be on this machine.
            listen: Where to listen, if not where the plan says.
        """
        network = require_network(plan, name)
        if listen is not None:
            check_address(listen, "--listen")
        listen = listen or network.listen(name)
        if insecure:
            require_loopback((*network.addresses(plan.roles.parties).values(), listen))
            credentials = None
        else:
            from colonnade.wire.certs.credentials import Credentials

            found = certificates or network.certificates
            credentials = Credentials.read(found, name, revoked=network.revoked)
        folder = f"{plan.name.replace(' ', '-')}-{plan.public().hash[:8]}"
        return cls(plan, name, Path(out) / folder / name, credentials, listen)

    @classmethod
    def open(cls, path: Path | str) -> PartyRun:
        """The side whose folder this is, for looking at what it left there."""
        folder = Path(path)
        found = read_status(folder)
        if "party" not in found or not (folder / "plan.toml").is_file():
            raise StorageError(
                f"{folder} should be one party's side of a run, as `colonnade join` makes it, but is not. Name such a "
                "folder."
            )
        return cls(Plan.read(folder / "plan.toml"), str(found["party"]), folder, credentials=None)

    @property
    def status(self) -> str:
        """How far this side has come: "planned", "running", "failed", "stopped" or "finished"."""
        return status_of(self.path)

    @property
    def has_met(self) -> bool:
        """Whether this side has met the others; before, it has told nobody anything and there is nothing to resume."""
        return self.status != "planned" and bool(read_status(self.path).get("met", True))

    @property
    def model_path(self) -> Path:
        """Where this party's share of the model lies."""
        return self.path / "model.safetensors"

    @property
    def addresses(self) -> dict[str, str | None]:
        """Where every party is reached."""
        return self._network.addresses(self.plan.roles.parties)

    @property
    def alignment_path(self) -> Path:
        """Where it lies which of this party's rows are common, if they were aligned."""
        return self.path / "alignment.safetensors"

    def table(self) -> Table | None:
        """The rows this party brings: its whole file, or its part of a named set's training rows.

        Of a named set that is to be aligned, it brings all that it holds.
        """
        if self.name not in self.plan.roles.holders:
            return None
        if self.plan.data.name is None or self.plan.align is not None:
            return self.plan.load((self.name,))[self.name]
        tables = self.plan.tables()
        return (tables.train if self.plan.evaluate is None else tables.common)[self.name]

    def common_rows(self) -> Table | None:
        """This party's rows in the common order of its run, those that were held out among them."""
        table = self.table()
        return table if table is None or self.plan.align is None else Alignment.load(self.alignment_path).take(table)

    def trained_rows(self) -> Table | None:
        """This party's rows that its run trained on."""
        rows, held_out = self.common_rows(), self.plan.evaluate
        return rows if rows is None or held_out is None else held_out.split(rows)[0]

    def expected(self, peer: str) -> Identity | None:
        """Whom the certificate in this party's folder names that the peer has handed over, if it has."""
        if self.credentials is None:
            return None
        return self.credentials.expected(peer)

    @property
    def log(self) -> Literal["text", "json"]:
        """How lines with times are written while the run goes on."""
        return self._network.log

    @property
    def noise_is_known(self) -> bool:
        """Whether everybody who knows the plan can compute this party's noise."""
        return self._network.randomness == "seeded"

    def train(self, *, resume: bool = False, shown: ProgressCallbacks = SILENT) -> Estimator:
        """Train with the other parties, and keep this party's share of the model."""
        self._require_new("run", resume)
        self.plan.require_training()
        if self.name == self.plan.roles.label:
            require_accepted(self.plan)
        with self._alone(self.path), released(self.table()) as table:
            # A run that goes on has spent something itself.
            require_ready(self.plan, self.name, table, None if resume else self._counts)
            write_atomically(self.path / "plan.toml", self.plan.to_toml().encode())
            model, held_out, kept = self.plan.trained.build(), self.plan.evaluate, dict[str, Prediction]()
            party = self._connect(self.plan.public(), table, self.path, shown)
            fit: Callable[[Party], Estimator] = model.fit
            if held_out is not None:
                fit = Evaluated(model, held_out, lambda share, prediction: kept.update(held_out=prediction))
            protocol = self._on_aligned_rows(fit, self.alignment_path, party, shown, trains=True)
            share = join(protocol, party, keep=lambda share: share.save(self.model_path))
            if kept:
                shown.quality(score_held_out(self, share, kept["held_out"]))
            return share

    def align(self, *, resume: bool = False, shown: ProgressCallbacks = SILENT) -> Alignment:
        """Align with the other parties and do nothing else; the outcome lies at `alignment_path`."""
        planned, public = self.plan.aligned, self.plan.public_alignment()
        if planned.finished is not None:
            raise PlanError(
                f"An alignment should begin without a finished one, but [align] has finished = '{planned.finished}'. "
                "Leave the key out to align again."
            )
        self._require_new("alignment", resume)
        require_lines(self.plan)
        with self._alone(self.path), released(self.table()) as table:
            write_atomically(self.path / "plan.toml", self.plan.to_toml().encode())
            protocol = self._planned_align(planned)
            require_list(self.plan, self.name, table)
            party = self._connect(public, table, self.path, shown)
            kept = self.alignment_path
            return join(protocol, party, keep=lambda found: keep_alignment(self.plan, party, kept, found))

    def erase_secrets(self) -> None:
        """Erase what a finished run goes on from, if this party was killed before it did so.

        Raises:
            StorageError: Another process of this party still waits there for the others to finish.
        """
        if not is_erased(self.path / "checkpoints"):
            with self._alone(self.path):
                Checkpoints(self.path / "checkpoints").erase()

    def of_alignment(self) -> PartyRun:
        """The side of an alignment alone, which has a folder of its own."""
        return replace(self, path=self.path.parent.with_name(f"{self.path.parent.name}-alignment") / self.name)

    def predict(
        self,
        model: Path | str,
        *,
        file: Path | None = None,
        out: Path | None = None,
        head: str | None = None,
        shown: ProgressCallbacks = SILENT,
    ) -> Path | None:
        """Predict with the other parties; returns where the prediction lies, or None where this party learns nothing.

        Args:
            model: The folder of this party's side of the training.
            file: The rows to predict, if not the plan's file or, of a named set, its held-out rows.
            out: Where to write the prediction, a CSV or Parquet file.
            head: Which of two heads the label party uses, where its model has two; the others need not know.
            shown: Where to say what goes on.
        """
        trained = replace(self, path=Path(model))
        found = read_status(trained.path)
        if found["plan"] != self.plan.public().hash:
            raise PlanError(
                f"{model} should hold a model of this plan, but holds one of another. Name the folder that "
                "`colonnade join` made for this plan, or use the plan of the folder."
            )
        require_lines(self.plan)
        share = self._share(Path(model))
        labelled = self.plan.rows_to_predict(self.name, file)
        table = None if labelled is None else labelled.without_labels()
        if table is not None:
            share.check_columns(table)
        require_list(self.plan, self.name, None if self.looks_up else table)
        predict: Callable[..., Prediction | None] = share.predict
        if head is not None:
            if self.name != self.plan.roles.label or "head" not in signature(predict).parameters:
                raise PlanError(
                    f"--head is for the label party of a model with two heads, but {self.name} has none of "
                    f"{type(share).__name__}'s. Leave it out."
                )
            predict = partial(predict, head=head)
        folder = trained._next_folder("predictions")
        alignment_path = folder / "alignment.safetensors"
        written = out or folder / "prediction.csv"
        if written.suffix not in (".csv", ".parquet"):
            raise PlanError(f"A prediction is written as .csv or .parquet, but --out is {written}. Choose one of them.")
        name, settings = describe_protocol(share.predict)
        public = replace(self.plan.public(), protocol=name, settings={**settings, "trained": found["plan"]})

        def keep(prediction: Prediction | None) -> None:
            if prediction is not None and table is not None:
                rows = table if self.plan.align is None else Alignment.load(alignment_path).take(table)
                prediction = prediction.about(rows, getattr(share, "classes_", None))
            if prediction is not None:  # An arbiter that asks has no ids: its rows are numbered.
                prediction.to_csv(written)

        party = self._connect(public, table, folder, shown)
        protocol = self._on_aligned_rows(predict, alignment_path, party, shown)
        prediction = _join_once(protocol, party, keep=keep)
        if prediction is None:
            return None
        if labelled is not None and labelled.labels is not None:
            rows = labelled if self.plan.align is None else Alignment.load(alignment_path).take(labelled)
            quality = score_rows(trained, share, prediction, rows, folder)
            if quality is not None:
                shown.quality(quality)
        return written

    def audit(self, planned: PlannedAudit | None = None) -> PrivacyReport:
        """Attack what this party itself sent, without asking the others, and write the report into the folder.

        Args:
            planned: How; as the plan says if None. Its nulls are permutations here, of which at least 200 are made.
        """
        from colonnade.auditing import audit_own_side

        planned, found, table = _permuting(planned or self.plan.audit), read_status(self.path), self._audited_table()
        if table is None:
            raise StorageError(
                f"{self.path} should hold the run of a party with a table, but {self.name} has none. Audit the side "
                "of a label or feature party."
            )
        report = audit_own_side(
            self._transcript(),
            planned.build(self.plan.defences),
            plan=self.plan.public(),
            table=table,
            ledger=self._ledger(table),
            nulls=planned.nulls,
            seed=planned.seed,
            delta=planned.delta,
            randomness=found["randomness"],
            insecure=found["insecure"],
        )
        return self._write_report(report, planned)

    def audit_jointly(
        self, attacker: str, planned: PlannedAudit | None = None, *, shown: ProgressCallbacks = SILENT
    ) -> PrivacyReport | None:
        """Audit together with another party: the attacker guesses, the label party scores and gets the report.

        Returns:
            The report at the label party, None at the attacker.
        """
        from colonnade.auditing import JointAudit

        planned, found, table = _permuting(planned or self.plan.audit), read_status(self.path), self._audited_table()
        is_owner = self.name == self.plan.roles.label
        joint = JointAudit(
            self.plan.public(),
            planned.build(),
            attacker,
            self._transcript(),
            ledger=self._ledger(table) if is_owner else None,
            model=None if is_owner else self._share(self.path),
            nulls=planned.nulls,
            delta=planned.delta,
            randomness=found["randomness"],
            insecure=found["insecure"],
        )
        if self.name not in joint.plan.roles.parties:
            raise PlanError(
                f"A joint audit is between {joint.owner} and {attacker}, but this folder is {self.name}'s. Name the "
                "folder of one of the two, or another attacker."
            )
        party = self._connect(joint.plan, table, self._next_folder("audits"), shown, audits=True)
        report = _join_once(joint, party)
        return None if report is None else self._write_report(report, planned)

    def _ledger(self, table: Table | None) -> Ledger:
        """What the run spent, beside what all runs on the same records did."""
        past = history_path(self.path.parent.parent, self.name)
        history = None if table is None or not past.exists() else History(past, Records.of(table), str(self.path))
        return Ledger(path=self.path / "ledger", history=history)

    def _audited_table(self) -> Table | None:
        """The rows that this party brought to its finished run."""
        table = self.table()
        if self.status != "finished":
            again = "Finish it with `colonnade join --resume`." if self.has_met else "Run `colonnade join` again."
            raise StorageError(f"{self.path} should hold a finished run, but it is {self.status}. {again}")
        if table is None:
            return None
        if self._differs(table):
            raise DataError(
                f"{self.name}'s rows should be those the run was made on, but they have changed. Restore the data."
            )
        # After an alignment ids may differ between parties or be missing, but the places of rows are the same.
        rows = table if self.plan.align is None else Alignment.load(self.alignment_path).take(table).numbered()
        return rows if self.plan.evaluate is None else self.plan.evaluate.split(rows)[0]

    @property
    def has_other_rows(self) -> bool:
        """Whether this party's rows are no longer those that its run was made on; not where they cannot be read."""
        try:
            table = self.table()
        except DataError:
            return False
        return table is not None and self._differs(table)

    def _differs(self, table: Table) -> bool:
        return bool(table.digest() != read_status(self.path, "table")["table"])

    def _transcript(self) -> Transcript:
        from colonnade.wire.recording.storage_key import StorageKey

        key = None if self._network.key_file is None else StorageKey.read(self._network.key_file)
        return Transcript.load(self.path / "transcript", key)

    def _write_report(self, report: PrivacyReport, planned: PlannedAudit) -> PrivacyReport:
        """Write a report with the model's quality and the plan's seed, and return what was written.

        A joint audit takes the others' consent, so its report is kept beside that of a later audit of the own side.
        """
        run, asked = replace(report.run, seed=self.plan.seed), _permuting(self.plan.audit)
        report = replace(report, run=run, quality=self.quality(), partial=not planned.covers(asked))
        name = report.file_name(self.path)
        if report.run.mode != "joint" and self._holds_joint(name):
            for file in self.path.glob(f"{name}.*"):
                file.replace(file.with_stem(f"{name}-joint"))
        report.write(self.path)
        return report

    def _holds_joint(self, name: str) -> bool:
        from colonnade.auditing.report import PrivacyReport

        try:
            return PrivacyReport.read(self.path, name).run.mode == "joint"
        except StorageError:
            return False  # There is none, or a damaged one.

    def quality(self) -> Quality | None:
        """How well the model predicts the held-out rows; None where no rows were held out, or another party knows."""
        path = self.path / "quality.json"
        return Quality.load(path) if path.exists() else None

    def evaluate(self, prediction: Path, rows: Path) -> Quality:
        """Measure a prediction that `predict` wrote, once the labels of its rows are known: a file like the plan's."""
        return score_file(self, self._share(self.path), prediction, rows)

    def report(self) -> PrivacyReport:
        """The report of the last audit; a partial one does not replace a whole one."""
        from colonnade.auditing.report import PrivacyReport

        return PrivacyReport.read(self.path)

    @property
    def _counts(self) -> Path:
        return counts_path(self.path.parent.parent, self.name)

    @property
    def _network(self) -> PlannedNetwork:
        return require_network(self.plan, self.name)

    def _require_new(self, what: str, resume: bool) -> None:
        if self.has_met and not resume:
            raise PlanError(
                f"{self.path} should be new, but holds {self.name}'s side of this {what}, whose status is "
                f"'{self.status}'. Go on with --resume, delete it to start again, or choose another folder with --out."
            )

    def _on_aligned_rows(
        self,
        protocol: Callable[[Party], R],
        path: Path,
        party: Party,
        shown: ProgressCallbacks,
        *,
        trains: bool = False,
    ) -> Callable[[Party], R]:
        """A protocol on the rows that are common, if the plan aligns them; which they are is written to a file."""
        align = None if self.plan.align is None else self._planned_align(self.plan.align)
        purpose: Purpose = "training" if trains else "lookup" if self.looks_up else "prediction"
        return on_common_rows(protocol, self.plan, party, align, purpose, path, shown.rows)

    def _planned_align(self, planned: PlannedAlign) -> Align:
        if self.credentials is None:
            return planned.build(self.name)
        authority, certificate, key = self.credentials.files
        return planned.build(self.name, (certificate, key, authority))

    def _connect(
        self,
        public: PublicPlan,
        table: Table | None,
        directory: Path,
        shown: ProgressCallbacks,
        *,
        audits: bool = False,
    ) -> Party:
        from colonnade.runtime.session import connect
        from colonnade.wire.grpc.link import Patience
        from colonnade.wire.grpc.transport import GrpcTransport

        plan, network = self.plan, self._network
        if self.looks_up:
            public = replace(public, settings={**public.settings, "looks_up": True})
        finished = None if audits or self.looks_up else finished_alignment(plan, self.name, table)
        live = LiveStatus(directory, shown.wait, shown.step)
        transport = GrpcTransport(
            {party: self.addresses[party] for party in public.roles.parties},
            credentials=self.credentials,
            listen=self.listen,
            patience=Patience(network.start, network.rejoin, network.silence, network.message),
            on_wait=live.wait,
            on_line=live.line,
        )
        return connect(
            public,
            self.name,
            table,
            transport=transport,
            directory=directory,
            answers=self._counts,
            aligns=plan.align is not None and not audits,
            agreed=agreed_alignment(finished),
            random=private_randomness(plan.seed, self.name, public) if network.randomness == "seeded" else None,
            defences=[planned.build() for planned in plan.defences if planned.party == self.name and not audits],
            budget=plan.privacy.budgets,
            keep=plan.run.keep,
            # Senders consent in the settings of the training; an audit keeps nothing of what it receives.
            keep_received="digests" if audits else network.keep_received,
            key_file=network.key_file,
            checkpoint_every=plan.run.checkpoint_every,
            watcher=live.step,
            on_met=shown.met,
        )

    def _share(self, path: Path) -> Estimator:
        """This party's share of the model that was trained in a folder."""
        planned = self.plan.trained.build()
        # The share may have been trained on another machine than this one.
        local = {key: value for key, value in planned.get_params().items() if key in planned.local_params}
        return type(planned).load(replace(self, path=path).model_path, **local)

    def _next_folder(self, kind: str) -> Path:
        number = 1
        while (folder := self.path / kind / f"{number:04d}").exists():
            number += 1
        with explained(f"make {folder}"):
            make_private(folder)
        return folder

    @contextmanager
    def _alone(self, folder: Path) -> Iterator[None]:
        """Keep a second process of this party out of a folder."""
        with explained(f"write to {folder}"):
            make_private(folder)
            # Checkpoints hold the key of this party's randomness, and its recording what it sent.
            folder.chmod(0o700)
            lock = open_private(folder / "lock", "wb")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StorageError(
                    f"{folder} should be used by one process, but another one runs {self.name}'s side there. "
                    "Wait until it ends, or choose another folder with --out."
                ) from error
            yield


def _permuting(planned: PlannedAudit) -> PlannedAudit:
    return replace(planned, nulls=max(200, planned.nulls))  # They cost next to nothing.


def _join_once(protocol: Callable[[Party], R], party: Party, *, keep: Callable[[R], None] = lambda result: None) -> R:
    """Run a protocol in a folder that no later run goes on from, so that a failed one leaves no secrets either."""
    try:
        return join(protocol, party, keep=keep)
    finally:
        party.checkpoints.erase()
