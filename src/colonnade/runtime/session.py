"""connect: an organisation's own side of a run, over the network."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from colonnade._version import __version__
from colonnade.errors import PlanError, StorageError
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.randomness import Randomness
from colonnade.roles import PublicPlan
from colonnade.runtime.checkpoint import Checkpoints, Watcher
from colonnade.runtime.describe import describe
from colonnade.runtime.party import Defence, Party, shared_randomness
from colonnade.runtime.status import Status
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.wire.certs.authority import Credentials
from colonnade.wire.channel import Channel
from colonnade.wire.grpc.rendezvous import Held
from colonnade.wire.grpc.transport import GrpcTransport, Patience
from colonnade.wire.recording.storage_key import StorageKey
from colonnade.wire.recording.transcript import Keep, Recording


def connect(
    plan: PublicPlan,
    name: str,
    table: Table | None,
    *,
    addresses: Mapping[str, str | None],
    credentials: Credentials | None,
    directory: Path | str,
    answers: Path | str | None = None,
    listen: str | None = None,
    aligns: bool = False,
    random: Randomness | None = None,
    defences: Sequence[Defence] = (),
    budget: Mapping[Secret, tuple[float, float]] | None = None,
    keep: Keep = "audit",
    keep_received: Literal["digests", "audit"] = "digests",
    key_file: Path | str | None = None,
    checkpoint_every: int = 50,
    patience: Patience | None = None,
    on_wait: Callable[[Sequence[str], float], None] | None = None,
    watcher: Watcher | None = None,
) -> Party:
    """This organisation's side of a run, to be handed to `join`.

    Args:
        plan: What all parties agree on; its hash must be equal everywhere.
        name: Which of the plan's parties this is.
        table: Its rows, in the order all parties share unless the protocol aligns them; None for an arbiter or server.
        addresses: Where each party listens, `host:port`; None for those that only dial.
        credentials: This party's certificate and key; None sends in the clear, for tests on one machine.
        directory: Where checkpoints, the recording and the status are kept; a crashed run goes on from there.
        answers: Where it is counted how much each peer was answered about the own rows; one file for all runs on them.
            Alignments are counted beside it. None counts in the directory, hence for this run only.
        listen: Where to listen, if not at the own address.
        aligns: Whether the protocol begins by aligning rows. Otherwise a digest of the ids in their order must be equal
            at all parties, and is told to them.
        random: The own randomness; None draws a key from the system once and keeps it in the directory.
        defences: What this party holds to protect itself.
        budget: The (epsilon, delta) that this party may spend, by secret.
        keep: How much is kept of what is sent.
        keep_received: How much is kept of what is received. "audit", which a joint audit needs, is for those whose
            senders consented to it in the plan.
        key_file: A key made by `make_key`, under which the recording is encrypted in the directory, and its part of
            every checkpoint; None keeps it in the clear. The rest of the directory is in the clear either way: the
            model and the values made once in the checkpoints, the ledger and the status.
        checkpoint_every: After how many steps a checkpoint is written; equal at all parties.
        patience: How long to wait for what.
        on_wait: Told who is being waited for, and for how many more seconds.
        watcher: Told how far the run has come.
    """
    roles = plan.roles
    if name not in roles.parties:
        raise PlanError(
            f"{name} is not a party of this plan; its parties are {', '.join(roles.parties)}. Use one of them."
        )
    if set(addresses) != set(roles.parties):
        raise PlanError(
            f"Every party needs an address or None, but addresses were given for {', '.join(addresses)} and the "
            f"parties are {', '.join(roles.parties)}. Name them all."
        )
    checked = None if table is None else replace(table, owner=name) if aligns else table.checked(name)
    if (name in roles.holders) != (checked is not None):
        raise PlanError(
            f"{name} {'needs a table for its role' if checked is None else 'has a role that takes no table'}. "
            "Check the roles and the tables."
        )
    if keep == "all" and keep_received == "audit":
        raise PlanError(
            "keep_received='audit' keeps some epochs of what is received, but keep='all' drops none. Use keep='audit'."
        )
    if keep_received == "audit" and plan.settings.get("received") != "audit":
        raise PlanError(
            "A party may keep what it receives only if all parties agreed to that, but the plan's settings do not say "
            "so. Add received='audit' to the settings of all parties' plans, or leave keep_received out."
        )
    key = None if key_file is None else StorageKey.read(key_file)
    folder = Path(directory)
    rows = "" if checked is None or aligns else checked.id_digest()
    agreement = {"protocol": plan.protocol, "version": __version__, "plan": plan.hash}
    agreement["checkpoint interval"] = str(checkpoint_every)
    if rows:
        agreement["rows"] = rows
    transport = GrpcTransport(
        name,
        {party: addresses[party] for party in roles.parties},
        agreement=agreement,
        credentials=credentials,
        listen=listen,
        spill=folder,
        patience=patience,
        on_wait=on_wait,
    )
    checkpoints = Checkpoints(folder / "checkpoints", every=checkpoint_every)
    identity = {
        **agreement,
        "party": name,
        "table": "" if checked is None else checked.digest(),
        "keep": keep,
        "keep_received": keep_received,
        "encrypted": key is not None,
        "randomness": "system" if random is None else random.source,
        "insecure": transport.insecure,
        "defences": describe(list(defences)),
    }
    record = partial(Recording, name, keep, folder / "transcript", keep_received=keep_received, key=key)
    session = NetworkSession(transport, Status(folder, identity), folder, record, tuple(defences), dict(budget or {}))
    if random is None:
        drawn = checkpoints.once("randomness", lambda: Randomness.system().key)
        random = Randomness.from_key(drawn, source="system")
    recording = record()
    return Party(
        name=name,
        plan=plan,
        table=checked,
        random=random,
        shared=shared_randomness(plan, rows),
        peers={peer: Channel(peer, transport, recording) for peer in roles.parties if peer != name},
        ledger=Ledger(),
        recording=recording,
        checkpoints=checkpoints,
        watcher=watcher,
        session=session,
        answer_log=Path(answers) if answers is not None else folder / "answers",
    )


@dataclass(frozen=True)
class NetworkSession:
    """Takes a party through a run between machines, as often as the run has to be taken up."""

    transport: GrpcTransport
    status: Status
    directory: Path
    record: Callable[[], Recording]
    defences: tuple[Defence, ...]
    budget: Mapping[Secret, tuple[float, float]]

    def begin(self, party: Party) -> Party:
        """Wait for all others; returns the party ready to go on from the common checkpoint."""
        checkpoints = party.checkpoints
        if self.transport.epoch == 0:
            self.transport.on_settled = checkpoints.forget_before
            checkpoints.on_write = self.transport.checkpointed
            self.transport.open()
        else:
            self.status.write("running")
        start = self.transport.meet(Held(checkpoints.newest, checkpoints.folder, checkpoints.run))
        checkpoints.resume(start.common)
        checkpoints.belong_to(start.run)
        if start.common == 0:
            shutil.rmtree(self.directory / "transcript", ignore_errors=True)
        recording = self.record()
        return replace(
            party,
            shared=shared_randomness(party.plan, self.transport.agreement.get("rows", "")),
            peers={peer: Channel(peer, self.transport, recording) for peer in party.peers},
            ledger=Ledger(self.budget, path=self.directory / "ledger"),
            recording=recording,
            defences=copy.deepcopy(self.defences),
        )

    def finish(self, party: Party) -> None:
        """Write down what was seen, and wait until all others have finished too."""
        party.recording.transcript()
        self.transport.finish(lambda: self.status.write("finished"))
        party.checkpoints.finish()

    def fail(self, party: Party, error: BaseException) -> None:
        """Write down why this party stops, and tell the others."""
        with suppress(StorageError):  # a full disk is no reason to let the others wait
            self.status.write("stopped" if isinstance(error, KeyboardInterrupt) else "failed", error)
        self.transport.fail(error, at=party.checkpoints.at)

    def close(self) -> None:
        """End all connections."""
        self.transport.close()
