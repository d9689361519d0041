"""A transport of one's own, which only moves frames, taken through whole runs."""

import json
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from colonnade import Roles, Table, join, simulate
from colonnade.errors import (
    AuthError,
    BadFrame,
    DataError,
    EngineError,
    PeerFailed,
    PeerUnreachable,
    ProtocolError,
    StorageError,
)
from colonnade.models import LinearRegression
from colonnade.roles import PublicPlan
from colonnade.runtime.session import connect
from colonnade.runtime.status import Status
from colonnade.storage import read_tree
from colonnade.testing import check_transport
from colonnade.wire.message import Float64Array, Message
from colonnade.wire.transport import (
    MAX_NOTE_BYTES,
    NAME_BYTES,
    HeldCheckpoint,
    RunByFrames,
    Transport,
    failure_note,
    next_start,
    pack_note,
)

ROLES = Roles(label="bank", features=("shop",))
NOTHING_HELD = HeldCheckpoint(0, bytes(NAME_BYTES))


class Mailbox(Transport):
    """Frames as files in a folder that all parties can reach."""

    def __init__(self, folder: Path, own: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.own, self.sent, self.taken = folder, own, {}, {}

    def send(self, peer, frame):
        self.sent[peer] = self.sent.get(peer, 0) + 1
        path = self.folder / f"{self.own}-{peer}-{self.sent[peer]}"
        path.with_suffix(".part").write_bytes(frame)
        path.with_suffix(".part").rename(path)

    def receive(self, peer):
        self.taken[peer] = self.taken.get(peer, 0) + 1
        path, deadline = self.folder / f"{peer}-{self.own}-{self.taken[peer]}", time.monotonic() + 60
        while not path.exists():
            if time.monotonic() > deadline:
                raise PeerUnreachable(f"{peer} sent nothing to {self.own} for a minute.")
            time.sleep(0.001)
        return path.read_bytes()


@dataclass(frozen=True)
class Word(Message, kind="mailbox/word"):
    value: Float64Array


def at_once(acts):
    """Do what each party does at the same time; returns what each returned or raised."""
    outcomes = {}

    def live(name):
        try:
            outcomes[name] = acts[name]()
        except Exception as error:
            outcomes[name] = error

    threads = [threading.Thread(target=live, args=(name,), daemon=True) for name in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a party did not come to its end"
    return outcomes


def joined(protocol, tables, folder, *, plan=None, every=50):
    """Run a protocol through `connect`, each party with a mailbox."""
    plan = plan or PublicPlan(ROLES, "walk")

    def live(name):
        lines = Mailbox(folder / "mail", name)
        chosen = plan[name] if isinstance(plan, dict) else plan
        party = connect(chosen, name, tables[name], transport=lines, directory=folder / name, checkpoint_every=every)
        return join(protocol, party)

    return at_once({name: partial(live, name) for name in tables})


def rows():
    return {name: Table.of({"id": (1, 2, 3), "x": [1.0, 2.0, 3.0]}) for name in ("bank", "shop")}


def peer_of(party):
    (channel,) = party.peers.values()
    return channel


def test_a_run_over_any_transport_fulfils_the_contract_of_transports(tmp_path):
    runs = iter(range(100))

    def run(sides):
        folder, failures = tmp_path / str(next(runs)), []

        def live(name):
            transport = RunByFrames(Mailbox(folder, name))
            transport.bind(name, tuple(sides), {})
            transport.open()
            try:
                transport.meet(NOTHING_HELD)
                result = sides[name](transport)
                transport.finish()
            except Exception as error:
                failures.append(error)
                transport.fail(error)
                raise
            return result

        outcomes = at_once({name: partial(live, name) for name in sides})
        if failures:
            raise failures[0]
        return outcomes

    check_transport(run)


def test_a_model_trains_over_a_transport_of_ones_own_as_it_does_in_a_simulation(tmp_path):
    generator = np.random.default_rng(0)
    columns = generator.normal(size=(200, 2))
    labels = columns @ [1.0, -2.0] + 0.1 * generator.normal(size=200)
    tables = {
        "bank": Table.of({"id": np.arange(200), "a": columns[:, 0], "y": labels}, labels="y"),
        "shop": Table.of({"id": np.arange(200), "b": columns[:, 1]}),
    }
    model = LinearRegression(max_iter=2, tol=0)
    together = simulate(model.fit, tables, roles=ROLES, seed=1)
    apart = joined(lambda party: model.clone().fit(party), tables, tmp_path, plan=together.plan)
    for name in tables:
        np.testing.assert_allclose(apart[name].coef_, together.results[name].coef_, atol=1e-3)
        status = json.loads((tmp_path / name / "run.json").read_text())
        assert (status["status"], status["insecure"]) == ("finished", True)


class Sum:
    """What a party has come to."""

    def __init__(self):
        self.value = np.zeros(1)

    def state(self):
        return {"value": self.value}

    def restore(self, tree):
        self.value = tree["value"]


def test_all_parties_resume_from_the_newest_common_checkpoint(tmp_path):
    done, dies, kept = [], True, []

    def walk(party):
        own, channel = Sum(), peer_of(party)
        for step in party.steps(8, own, name="walk"):
            if dies and step == 5 and party.name == "shop":
                raise DataError("Enough for today.")
            if party.name == "bank":
                done.append(step)
            channel.send(Word(own.value + step))
            own.value = own.value + channel.receive(Word).value
        if party.name == "bank" and party.session is not None:
            kept.extend(path.name for path in party.checkpoints.directory.glob("[0-9]*"))
        return own.value

    first = joined(walk, rows(), tmp_path, every=2)
    assert str(first["bank"]) == "shop stopped at step 5 of walk: Enough for today."
    dies, done = False, []
    for path in (tmp_path / "mail").iterdir():
        path.unlink()
    second = joined(walk, rows(), tmp_path, every=2)
    assert done[0] == 4
    np.testing.assert_array_equal(second["bank"], simulate(walk, rows(), roles=ROLES).results["bank"])
    assert 0 < len(kept) < 4, "checkpoints that nobody goes back to are deleted"


def test_nobody_erases_secrets_before_all_have_written_down_the_end(tmp_path, monkeypatch):
    """Shop cannot write that it has finished, so bank keeps what a run resumes from, and both resume."""
    write, once = Status.write, []

    def fails(status, words, error=None):
        if words == "finished" and status._directory.name == "shop" and not once:
            once.append(words)
            raise StorageError("The disk is full.")
        write(status, words, error)

    monkeypatch.setattr(Status, "write", fails)

    def draws(party):
        return party.once("key", party.random.seed)

    first = joined(draws, rows(), tmp_path)
    assert str(first["shop"]) == "The disk is full."
    assert str(first["bank"]) == "shop stopped: The disk is full."
    kept = {name: read_tree(tmp_path / name / "checkpoints" / "once-key.safetensors")["value"] for name in first}
    for path in (tmp_path / "mail").iterdir():
        path.unlink()
    assert joined(draws, rows(), tmp_path) == kept
    assert not list(tmp_path.rglob("checkpoints"))


def test_parties_with_different_plans_are_refused(tmp_path):
    plans = {name: PublicPlan(ROLES, "walk", {"of": name}) for name in ("bank", "shop")}
    outcomes = joined(lambda party: None, rows(), tmp_path, plan=plans)
    assert any(isinstance(outcome, AuthError) for outcome in outcomes.values())
    for outcome in outcomes.values():
        assert "have different plans. Give both the same plan file." in str(outcome)


def test_a_failure_reaches_the_other_party_in_its_own_words(tmp_path):
    def protocol(party):
        if party.name == "shop":
            raise DataError("No rows are left.")
        return peer_of(party).receive(Word)

    outcomes = joined(protocol, rows(), tmp_path)
    assert isinstance(outcomes["bank"], PeerFailed)
    assert str(outcomes["bank"]) == "shop stopped: No rows are left."


@pytest.mark.parametrize(
    ("first", "error", "words"),
    [
        (b"\x00a frame", ProtocolError, "shop should greet bank first and did not"),
        (b"\x01" + pack_note({"dance": 1}), ProtocolError, "shop should greet bank first and did not"),
        (b"\x01" + pack_note({"hello": {}, "held": [-1, bytes(NAME_BYTES), b""]}), ProtocolError, "should greet"),
        (b"\x01" + pack_note({"hello": {}, "held": [0, b"short", b""]}), ProtocolError, "should greet"),
        (b"\x01\xc1", BadFrame, "A peer's note cannot be read"),
        (b"\x01" + bytes(MAX_NOTE_BYTES + 1), BadFrame, f"at most {MAX_NOTE_BYTES} are allowed"),
        (b"\x02", BadFrame, "shop sent what is neither a frame nor a note"),
        (b"", BadFrame, "shop sent what is neither a frame nor a note"),
    ],
)
def test_a_peer_that_does_not_greet_is_refused(tmp_path, first, error, words):
    bank = RunByFrames(Mailbox(tmp_path, "bank"))
    bank.bind("bank", ("bank", "shop"), {"plan": "a plan"})
    bank.open()
    Mailbox(tmp_path, "shop").send("bank", first)
    with pytest.raises(error, match=words):
        bank.meet(NOTHING_HELD)


def test_a_note_that_nobody_knows_is_refused(tmp_path):
    bank, shop = RunByFrames(Mailbox(tmp_path, "bank")), Mailbox(tmp_path, "shop")
    bank.bind("bank", ("bank", "shop"), {})
    bank.open()
    shop.send("bank", b"\x01" + pack_note({"dance": 1}))
    with pytest.raises(ProtocolError, match="shop sent a note that this version does not know"):
        bank.receive("shop")


NAMES = ("bank", "shop", "telco")


def fresh(*names, folder=b"first"):
    return {name: HeldCheckpoint(0, folder + name.encode()) for name in names}


def holding(newest, held):
    """The same parties a few checkpoints later."""
    run = next_start(1, held).run
    return {name: HeldCheckpoint(number, held[name].folder, run) for name, number in zip(held, newest, strict=True)}


def test_all_go_on_from_the_oldest_of_their_newest_checkpoints():
    held = holding((5, 3, 4), fresh(*NAMES))
    assert next_start(2, held) == (2, 3, held["bank"].run)


def test_one_who_has_no_checkpoint_yet_makes_all_begin_the_same_run_anew():
    held = holding((5, 0, 4), fresh(*NAMES))
    held["shop"] = held["shop"]._replace(run=b"")
    assert next_start(2, held) == (2, 0, held["bank"].run)


def test_a_new_folder_makes_a_new_run():
    held = holding((5, 3, 4), fresh(*NAMES))
    start = next_start(2, held | fresh("shop", folder=b"new"))
    assert start.common == 0
    assert start.run != held["bank"].run


@pytest.mark.parametrize("behind", ["bank", "telco"])
def test_who_was_killed_before_it_heard_of_a_new_run_does_not_mix_two(behind):
    old = holding((4, 4, 4), fresh(*NAMES))
    new = holding((4, 4, 4), old | fresh("shop", folder=b"new"))
    start = next_start(3, new | {behind: old[behind]})
    assert start == (3, 0, new["shop"].run)


@pytest.mark.parametrize("third", ["none", "first", "second"])
def test_checkpoints_of_different_runs_are_refused_whatever_a_third_party_holds(third):
    first, second = (holding((4, 4, 4), fresh(*NAMES, folder=folder)) for folder in (b"first", b"second"))
    telco = {"none": fresh("telco"), "first": first, "second": second}[third]["telco"]
    with pytest.raises(AuthError, match="bank and shop go on with different runs of the same plan"):
        next_start(2, {"bank": first["bank"], "shop": second["shop"], "telco": telco})


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StorageError("/srv/clinic/shop.parquet should be there."), "shop.parquet should be there."),
        (StorageError("Files '/mnt/a/b' and C:\\data\\x.csv differ."), "Files 'b' and x.csv differ."),
        (DataError("glm/opening has 3/4 of its rows."), "glm/opening has 3/4 of its rows."),
        (EngineError("ray should answer at 10.0.0.7:6379."), "its workers could not be reached, or were lost."),
        (ValueError("could not convert 'Ann'"), "ValueError"),
    ],
)
def test_others_are_told_why_a_party_failed_but_not_where_its_files_and_workers_are(error, told):
    assert failure_note(error, "align")["failed"] == told
