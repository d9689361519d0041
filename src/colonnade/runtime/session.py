"""connect: an organisation's own side of a run, over the network."""

from __future__ import annotations

import copy
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from blake3 import blake3

from colonnade._version import __version__
from colonnade.errors import AuthError, PlanError, StorageError, WireError
from colonnade.privacy.history import History, Records, history_path
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.randomness import Randomness
from colonnade.roles import PublicPlan
from colonnade.runtime.checkpoint import Checkpoints, GlobalGenerators, Watcher
from colonnade.runtime.party import Defence, Party, shared_randomness
from colonnade.runtime.protocol import describe
from colonnade.runtime.replay import ReplayGuard
from colonnade.runtime.status import Status
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.wire.channel import Channel
from colonnade.wire.recording.recording import Keep, Recording
from colonnade.wire.transport import NAME_BYTES, HeldCheckpoint, RunByFrames, RunTransport, Transport

if TYPE_CHECKING:
    from colonnade.wire.certs.credentials import Identity

_log = logging.getLogger(__name__)


def connect(
    plan: PublicPlan,
    name: str,
    table: Table | None,
    *,
    transport: Transport,
    directory: Path | str,
    answers: Path | str | None = None,
    aligns: bool = False,
    agreed: Mapping[str, str] | None = None,
    random: Randomness | None = None,
    defences: Sequence[Defence] = (),
    budget: Mapping[Secret, tuple[float, float]] | None = None,
    keep: Keep = "audit",
    keep_received: Literal["digests", "audit"] = "digests",
    key_file: Path | str | None = None,
    checkpoint_every: int = 50,
    watcher: Watcher | None = None,
    on_met: Callable[[str, Identity | None], None] = lambda peer, identity: None,
) -> Party:
    """This organisation's side of a run, to be handed to `join`.

    Args:
        plan: What all parties agree on; its hash must be equal everywhere.
        name: Which of the plan's parties this is.
        table: Its rows, in the order all parties share unless the protocol aligns them; None for an arbiter or server.
        transport: What moves frames between the parties: a `GrpcTransport`, or any other `Transport`.
        directory: Where checkpoints, the recording and the status are kept; a crashed run goes on from there.
        answers: The file that counts how much each peer was answered about this party's rows; one file for all runs on
            them. Alignments and privacy events are counted beside it. None counts in the directory, hence for this run
            only.
        aligns: Whether the protocol begins by aligning rows. Otherwise a digest of the ids in their order must be equal
            at all parties, and is told to them.
        agreed: What must be equal at all parties besides plan, rows and version, by name.
        random: This party's randomness; None draws a key from the system once for each run and keeps it in the
            directory.
        defences: What this party holds to protect itself.
        budget: The (epsilon, delta) that this party may spend, by secret: over all runs on the same records that count
            beside `answers`, or in this run only where `answers` is None.
        keep: How much is kept of what is sent.
        keep_received: How much is kept of what is received. "audit", which a joint audit needs, requires that the
            senders consented to it in the plan.
        key_file: A key made by `make_key`, which encrypts the recording in the directory and in every checkpoint; None
            keeps it in the clear. The rest of the directory is in the clear either way: the model and the values made
            once in the checkpoints, the ledger and the status.
        checkpoint_every: After how many steps a checkpoint is written; equal at all parties.
        watcher: Told how far the run has come.
        on_met: Called with each peer when all parties have met, and with whom its certificate names.
    """
    checked = _checked(plan, name, table, aligns=aligns)
    _require_consent(plan, keep, keep_received)
    key = None
    if key_file is not None:
        from colonnade.wire.recording.storage_key import StorageKey

        key = StorageKey.read(key_file)
    folder = Path(directory)
    rows = "" if checked is None or aligns else checked.id_digest()
    agreement = {"protocol": plan.protocol, "version": __version__, "plan": plan.hash, **(agreed or {})}
    agreement["checkpoint interval"] = str(checkpoint_every)
    if rows:
        agreement["rows"] = rows
    lines = transport if isinstance(transport, RunTransport) else RunByFrames(transport)
    lines.bind(name, plan.roles.parties, agreement, spill=folder)
    checkpoints = Checkpoints(folder / "checkpoints", every=checkpoint_every)
    identity = {
        **agreement,
        "party": name,
        "table": "" if checked is None else checked.digest(),
        "keep": keep,
        "keep_received": keep_received,
        "encrypted": key is not None,
        "randomness": "system" if random is None else random.source,
        "insecure": lines.insecure,
        "defences": describe(list(defences)),
    }
    record = partial(Recording, name, keep, folder / "transcript", keep_received=keep_received, key=key)
    status = Status(folder, identity)
    _require_unfinished(status, checkpoints, folder)
    history: Callable[[], History] | None = None
    if answers is not None and checked is not None:
        counted = history_path(Path(answers).parent, name)
        history = partial(History, counted, Records.of(checked), str(folder))
    brought = identity["table"].encode()
    session = NetworkSession(
        lines, status, folder, record, tuple(defences), dict(budget or {}), history, on_met, random, brought
    )
    recording = record()
    return Party(
        name=name,
        plan=plan,
        table=checked,
        random=session.randomness(checkpoints),
        shared=shared_randomness(plan, rows),
        peers=session.channels(name, [peer for peer in plan.roles.parties if peer != name], recording, checkpoints),
        ledger=Ledger(),
        recording=recording,
        checkpoints=checkpoints,
        watcher=watcher,
        session=session,
        answer_log=Path(answers) if answers is not None else folder / "answers",
    )


def _checked(plan: PublicPlan, name: str, table: Table | None, *, aligns: bool) -> Table | None:
    """A party's table, which must fit its role."""
    roles = plan.roles
    if name not in roles.parties:
        raise PlanError(
            f"{name} is not a party of this plan; its parties are {', '.join(roles.parties)}. Use one of them."
        )
    if (name in roles.holders) != (table is not None):
        raise PlanError(
            f"{name} {'needs a table for its role' if table is None else 'has a role that takes no table'}. "
            "Check the roles and the tables."
        )
    return None if table is None else replace(table, owner=name) if aligns else table.checked(name)


def _require_consent(plan: PublicPlan, keep: Keep, keep_received: str) -> None:
    """Refuse to keep what is received unless all parties agreed."""
    if keep == "all" and keep_received == "audit":
        raise PlanError(
            "keep_received='audit' keeps some epochs of what is received, but keep='all' drops none. Use keep='audit'."
        )
    if keep_received == "audit" and plan.settings.get("received") != "audit":
        raise PlanError(
            "A party may keep what it receives only if all parties agreed to that, but the plan's settings do not say "
            "so. Add received='audit' to the settings of all parties' plans, or leave keep_received out."
        )


def _require_unfinished(status: Status, checkpoints: Checkpoints, folder: Path) -> None:
    """Refuse to run again in the folder of a finished run.

    A party that was killed after it wrote down the end, but before it erased its secrets, may still be awaited by
    parties that were called back. It goes on with them; if nobody comes, it erases its secrets then.
    """
    assert checkpoints.directory is not None
    if status.finished and not checkpoints.directory.exists():
        checkpoints.erase()  # A crash may have left it half done.
        raise PlanError(
            f"{folder} should hold a new or an interrupted run, but holds a finished one, whose secrets are erased. "
            "Run again in another folder."
        )


@dataclass(frozen=True)
class NetworkSession:
    """Takes a party through a run between machines, as often as the run has to be taken up."""

    transport: RunTransport
    status: Status
    directory: Path
    record: Callable[[], Recording]
    defences: tuple[Defence, ...]
    budget: Mapping[Secret, tuple[float, float]]
    history: Callable[[], History] | None
    on_met: Callable[[str, Identity | None], None]
    random: Randomness | None
    brought: bytes

    def randomness(self, checkpoints: Checkpoints) -> Randomness:
        """The party's randomness: what it was given, or what the system draws once for each run."""
        if self.random is not None:
            return self.random
        drawn = checkpoints.once("randomness", lambda: Randomness.system().key)
        return Randomness.from_key(drawn, source="system")

    def channels(
        self, own: str, peers: Iterable[str], recording: Recording, checkpoints: Checkpoints
    ) -> dict[str, Channel]:
        """Channels to some peers, who must repeat themselves when the run resumes.

        `simulate` swaps NumPy's generator between parties, which drops its cached Gaussian. Drop it here too, so every
        transport gives the same numbers.
        """
        lose, hear = GlobalGenerators().lose_half_draw, ReplayGuard(own, checkpoints).hear
        return {peer: Channel(peer, self.transport, recording, on_arrival=lose, hear=hear) for peer in peers}

    def begin(self, party: Party) -> Party:
        """Wait for all others; returns the party ready to go on from the common checkpoint."""
        checkpoints = party.checkpoints
        if self.transport.epoch == 0:
            checkpoints.on_write = self.transport.checkpointed
            self.transport.open(checkpoints.forget_before)
        else:
            self.status.write("running")
        # Other rows in the same folder are another run, as another folder is.
        folder = blake3(checkpoints.folder + self.brought).digest(NAME_BYTES)
        start = self.transport.meet(HeldCheckpoint(checkpoints.newest, folder, checkpoints.run))
        if start.common and start.run != checkpoints.run:
            raise AuthError(
                f"{party.plan.roles.parties[0]} should name the run that {party.name}'s checkpoints are of, or let all "
                f"begin at the beginning, but names another run that goes on from checkpoint {start.common}: what was "
                "drawn for a run serves no other run. Distrust the leader of the run, or begin in a new folder."
            )
        if self.status.finished or not self.status.met:
            self.status.met = True
            self.status.write("running")
        for peer in self.transport.peers:
            identity = self.transport.identity(peer)
            if identity is not None or self.transport.insecure:
                self.on_met(peer, identity)
        checkpoints.resume(start.common)
        if checkpoints.belong_to(start.run):
            _log.warning(
                "%s begins another run: a party has come with another folder or table. Secrets and noise are drawn and "
                "charged again.",
                party.name,
            )
        if start.common == 0:
            shutil.rmtree(self.directory / "transcript", ignore_errors=True)
        recording, random = self.record(), self.randomness(checkpoints)
        return replace(
            party,
            random=random,
            shared=shared_randomness(party.plan, self.transport.agreement.get("rows", "")),
            peers=self.channels(party.name, party.peers, recording, checkpoints),
            ledger=Ledger(
                self.budget,
                path=self.directory / "ledger",
                noise_is_known=random.source == "seeded",
                history=self.history and self.history(),
            ),
            recording=recording,
            defences=copy.deepcopy(self.defences),
        )

    def note(self, **facts: Any) -> None:
        """Write more about the run into its status."""
        self.status.note(**facts)

    def finish(self, party: Party) -> None:
        """Write down what was seen, wait until all others have finished too, and erase the secrets of the run."""
        party.recording.transcript()
        self.transport.finish(lambda: self.status.write("finished"))
        party.checkpoints.erase()

    def fail(self, party: Party, error: BaseException) -> None:
        """Write down why this party stops, and tell the others."""
        met = self.transport.epoch > 0
        if self.status.finished and met and not isinstance(error, WireError):
            return  # All have come to the end, so that nobody need fail; the next start erases the secrets.
        with suppress(StorageError):  # a full disk is no reason to let the others wait
            if self.status.finished and not met:
                party.checkpoints.erase()  # Nobody came back for a run that had finished.
            else:
                self.status.write("stopped" if isinstance(error, KeyboardInterrupt) else "failed", error)
        self.transport.fail(error, at=party.checkpoints.at)

    def close(self) -> None:
        """End all connections."""
        self.transport.close()
