"""connect and join, with all parties in this process, each in a thread of its own."""

import json
import os
import shutil
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest

from colonnade.align import Align, Limits
from colonnade.errors import (
    AuthError,
    BudgetSpent,
    DataError,
    PeerFailed,
    PeerUnreachable,
    PlanError,
    PrivacyError,
    StorageError,
)
from colonnade.privacy.mechanisms import LaplaceMechanism
from colonnade.roles import Roles
from colonnade.runtime.checkpoint import Checkpoints
from colonnade.runtime.join import join
from colonnade.runtime.protocol import private_randomness
from colonnade.runtime.session import connect
from colonnade.runtime.simulate import Simulation, simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.testing.ports import free_port
from colonnade.wire.grpc.link import Link, Patience
from colonnade.wire.grpc.transport import GrpcTransport
from colonnade.wire.message import Float64Array, Message
from colonnade.wire.recording.recording import Transcript
from colonnade.wire.transport import NAME_BYTES

BOTH = Roles(label="bank", features=("shop",))
WITH_NOTARY = Roles(label="bank", features=("shop",), arbiter="notary")
PATIENT = Patience(start=60, rejoin=60, silence=20, message=60, heartbeat=0.1)
HASTY = Patience(start=8, heartbeat=0.1)
SEED = 5


@dataclass(frozen=True)
class Drawn(Message, kind="test/drawn", reveals={Secret.FEATURES}):
    value: Float64Array


class Nothing:
    """A state without anything in it."""

    def state(self):
        return {}

    def restore(self, tree):
        pass


def rows(*ids):
    return Table.of({"id": ids or (1, 2, 3), "x": np.arange(len(ids or (1, 2, 3))) * 1.0})


def draw(party):
    """Everybody tells everybody a number of its own and one that all share."""
    own, shared = (source.generator("number").random(2) for source in (party.random, party.shared))
    for line in party.peers.values():
        line.send(Drawn(own))
    return {"own": own, "shared": shared, **{name: line.receive(Drawn).value for name, line in party.peers.items()}}


def plan_of(protocol, roles=BOTH):
    return Simulation(protocol, {}, roles, SEED, {}, {}, "audit").plan


def run_apart(protocol, folder, *, roles=BOTH, tables=None, changes=None):
    """Run a protocol over the network; returns what each party's `join` returned or raised."""
    plan, outcomes = plan_of(protocol, roles), {}
    addresses = {name: f"127.0.0.1:{free_port()}" for name in roles.parties}

    def live(name):
        settings = {
            "directory": folder / name,
            "random": private_randomness(SEED, name, plan),
            "patience": PATIENT,
            **(changes or {}).get(name, {}),
        }
        lines = GrpcTransport(addresses, credentials=None, patience=settings.pop("patience"))
        table = (tables or {}).get(name, rows() if name in roles.holders else None)
        try:
            outcomes[name] = join(protocol, connect(plan, name, table, transport=lines, **settings))
        except Exception as error:
            outcomes[name] = error

    threads = [threading.Thread(target=live, args=(name,), daemon=True) for name in roles.parties]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a party did not come to its end"
    return outcomes


def status(folder, name):
    return json.loads((folder / name / "run.json").read_text())


@pytest.mark.network
def test_an_alignment_between_machines_is_counted_and_refusals_are_logged_though_no_log_is_named(tmp_path):
    tables, shared = {name: rows(*range(5)) for name in ("bank", "shop")}, tmp_path / "counts" / "answers"
    for run, most in (("one", 1), ("two", 1), ("three", 2)):
        protocol = Align(limits=Limits(fewest=1, most_runs=most))
        changes = {name: {"aligns": True, "answers": shared.with_name(name) / "answers"} for name in tables}
        outcomes = run_apart(protocol, tmp_path / run, tables=tables, changes=changes)
        refused = [outcome for outcome in outcomes.values() if isinstance(outcome, PrivacyError)]
        assert bool(refused) == (run == "two")
    log = (tmp_path / "counts" / "bank" / "alignments-of-bank").read_text().splitlines()
    assert [json.loads(line)["what"] for line in log] == ["aligned", "refused", "aligned"]
    outcomes = run_apart(
        Align(limits=Limits(fewest=1)),
        tmp_path / "alone",
        tables=tables,
        changes={name: {"aligns": True} for name in tables},
    )
    assert {outcome.size for outcome in outcomes.values()} == {5}
    assert (tmp_path / "alone" / "shop" / "alignments-of-shop").exists()


@pytest.mark.network
def test_an_alignment_is_counted_again_for_a_peer_with_other_ids_in_a_new_folder_and_not_for_one_that_resumes(tmp_path):
    def aligns(party):
        size = Align(limits=Limits(fewest=1))(party).size
        raise DataError(f"{size} rows are enough for today.")

    def counted(**tables):
        changes = {name: {"aligns": True, "answers": tmp_path / name / "answers", "random": None} for name in tables}
        outcomes = run_apart(aligns, tmp_path / "run", tables=tables, changes=changes)
        assert not any(isinstance(outcome, PrivacyError) for outcome in outcomes.values())
        return len((tmp_path / "bank" / "alignments-of-bank").read_text().splitlines())

    assert counted(bank=rows(*range(5)), shop=rows(*range(5))) == 1
    assert counted(bank=rows(*range(5)), shop=rows(*range(5))) == 1
    shutil.rmtree(tmp_path / "run" / "shop")
    assert counted(bank=rows(*range(5)), shop=rows(*range(1, 6))) == 2


@pytest.mark.network
def test_a_run_over_the_network_returns_and_records_what_a_simulation_does(tmp_path):
    apart = run_apart(draw, tmp_path)
    together = simulate(draw, {"bank": rows(), "shop": rows()}, roles=BOTH, seed=SEED)
    for name in BOTH.parties:
        for key, value in together.results[name].items():
            assert (apart[name][key] == value).all()
        recorded = Transcript.load(tmp_path / name / "transcript")
        assert recorded.digests() == together.transcripts[name].digests()
        assert status(tmp_path, name)["status"] == "finished"


@pytest.mark.network
def test_every_message_drops_the_cached_gaussian_over_every_transport(tmp_path):
    def cached(party):
        """Whether NumPy still holds a second Gaussian after each of two messages."""
        if party.name == "shop":
            for _ in range(3):
                party.peers["bank"].send(Drawn(np.zeros(1)))
            return None
        party.peers["shop"].receive(Drawn)  # by now both threads have seeded the generator that they share here
        held = []
        for _ in range(2):
            np.random.randn()
            assert np.random.get_state()[3] == 1
            party.peers["shop"].receive(Drawn)
            held.append(np.random.get_state()[3])
        return held

    together = simulate(cached, {"bank": rows(), "shop": rows()}, roles=BOTH, seed=SEED).results
    assert together["bank"] == run_apart(cached, tmp_path)["bank"] == [0, 0]


@pytest.mark.network
def test_an_arbiter_shares_the_randomness_of_those_who_have_rows(tmp_path):
    apart = run_apart(draw, tmp_path, roles=WITH_NOTARY)
    assert (apart["notary"]["shared"] == apart["bank"]["shared"]).all()
    together = simulate(draw, {"bank": rows(), "shop": rows()}, roles=WITH_NOTARY, seed=SEED)
    assert (apart["notary"]["shared"] == together.results["notary"]["shared"]).all()


@pytest.mark.network
def test_of_what_is_received_only_digests_are_kept(tmp_path):
    run_apart(draw, tmp_path)
    recorded = Transcript.load(tmp_path / "bank" / "transcript")
    assert [message.sent for message in recorded.messages(Drawn)] == [True]
    assert [entry.sent for entry in recorded.entries] == [True, False]


@pytest.mark.slow
@pytest.mark.network
def test_rows_in_another_order_are_refused_on_both_sides(tmp_path):
    outcomes = run_apart(
        draw,
        tmp_path,
        tables={"bank": rows(1, 2, 3), "shop": rows(1, 3, 2)},
        changes={"bank": {"patience": HASTY}},
    )
    assert "bank and shop have different rows, or the same rows in another order" in str(outcomes["shop"])
    assert isinstance(outcomes["bank"], PeerUnreachable)
    for name in ("bank", "shop"):
        assert status(tmp_path, name)["status"] == "failed"


@pytest.mark.slow
@pytest.mark.network
def test_checkpoints_at_other_intervals_are_refused(tmp_path):
    outcomes = run_apart(draw, tmp_path, changes={"bank": {"patience": HASTY}, "shop": {"checkpoint_every": 7}})
    assert "bank and shop have different checkpoint interval" in str(outcomes["shop"])


@pytest.mark.network
def test_a_failure_is_in_both_status_files_in_its_own_words(tmp_path):
    def fails(party):
        if party.name == "shop":
            raise DataError("No rows are left.")
        return party.peers["shop"].receive(Drawn)

    outcomes = run_apart(fails, tmp_path)
    assert isinstance(outcomes["bank"], PeerFailed)
    assert str(outcomes["bank"]) == "shop stopped: No rows are left."
    assert status(tmp_path, "shop")["error"] == "DataError: No rows are left."
    assert status(tmp_path, "bank")["error"] == "PeerFailed: shop stopped: No rows are left."


@pytest.mark.network
def test_a_failure_says_in_which_step_it_happened(tmp_path):
    def fails(party):
        for step in party.steps(5, Nothing(), name="walk"):
            party.peers["shop" if party.name == "bank" else "bank"].send(Drawn(np.zeros(1)))
            party.peers["shop" if party.name == "bank" else "bank"].receive(Drawn)
            if step == 3 and party.name == "shop":
                raise DataError("No rows are left.")

    outcomes = run_apart(fails, tmp_path)
    assert str(outcomes["bank"]) == "shop stopped at step 3 of walk: No rows are left."


@pytest.mark.network
def test_sides_of_different_runs_of_one_plan_are_refused_on_both_sides(tmp_path):
    stopped = True

    def walks(party):
        for step in party.steps(5, Nothing(), name="walk"):
            if stopped and step == 3:
                raise DataError("Enough for today.")

    each = {name: {"checkpoint_every": 1, "patience": PATIENT} for name in ("bank", "shop")}
    for run in ("first", "second"):
        run_apart(walks, tmp_path / run, changes=each)
    stopped = False
    (tmp_path / "first" / "shop").rename(tmp_path / "first" / "other")
    (tmp_path / "second" / "shop").rename(tmp_path / "first" / "shop")
    outcomes = run_apart(walks, tmp_path / "first", changes=each)
    assert isinstance(outcomes["bank"], AuthError)
    for outcome in outcomes.values():
        assert "bank and shop go on with different runs of the same plan." in str(outcome)
    shutil.rmtree(tmp_path / "first" / "shop")
    assert run_apart(walks, tmp_path / "first", changes=each) == {"bank": None, "shop": None}, "both start anew"


@pytest.mark.network
def test_a_leader_that_names_another_run_for_checkpoints_of_this_one_is_refused(tmp_path, monkeypatch):
    stopped, went_on = True, []

    def walks(party):
        key = party.once("key", lambda: os.urandom(8).hex())
        for step in party.steps(5, Nothing(), name="walk"):
            if stopped and step == 3:
                raise DataError("Enough for today.")
            went_on.append((party.name, step, key))

    each = {name: {"checkpoint_every": 1, "random": None} for name in ("bank", "shop")}
    run_apart(walks, tmp_path, changes=each)
    stopped, before = False, list(went_on)
    honest = Link.put_control

    def lies(link, note):
        honest(link, {**note, "run": b"another run".ljust(NAME_BYTES)} if "start" in note else note)

    monkeypatch.setattr(Link, "put_control", lies)
    outcome = run_apart(walks, tmp_path, changes=each)["shop"]
    assert "shop" not in {name for name, *_ in went_on[len(before) :]}, "checkpoints would serve two runs"
    assert isinstance(outcome, AuthError)
    assert "bank should name the run that shop's checkpoints are of" in str(outcome)


@pytest.mark.network
def test_others_hear_of_a_failure_whose_status_cannot_be_written(tmp_path):
    def fails(party):
        if party.name == "bank":
            return party.peers["shop"].receive(Drawn)
        shutil.rmtree(tmp_path / "shop")
        (tmp_path / "shop").write_text("in the way")
        raise DataError("The disk is gone.")

    outcomes = run_apart(fails, tmp_path)
    assert str(outcomes["shop"]) == "The disk is gone."
    assert str(outcomes["bank"]) == "shop stopped: The disk is gone."


@pytest.mark.network
def test_a_spent_budget_ends_the_run_on_both_sides(tmp_path):
    def releases(party):
        if party.name == "bank":
            return party.peers["shop"].receive(Drawn)
        mechanism = LaplaceMechanism(sensitivity=1.0, scale=1.0)
        for number in range(3):
            mechanism.release(
                [0.0],
                random=party.random,
                ledger=party.ledger,
                protects=Secret.FEATURES,
                unit="record",
                path=(number,),
            )
        return None

    outcomes = run_apart(releases, tmp_path, changes={"shop": {"budget": {Secret.FEATURES: (2.0, 0.0)}}})
    assert isinstance(outcomes["shop"], BudgetSpent)
    assert "shop stopped: Expected to spend at most epsilon 2" in str(outcomes["bank"])


@pytest.mark.network
def test_noise_that_others_can_compute_promises_nothing_between_machines(tmp_path):
    """Bank draws from the system, and shop from the plan's seed."""

    def releases(party):
        mechanism, about = LaplaceMechanism(sensitivity=1.0, scale=1.0), {"protects": Secret.FEATURES, "unit": "record"}
        mechanism.release([0.0], random=party.random, ledger=party.ledger, **about)
        return str(party.ledger.spent(Secret.FEATURES, 0.0))

    outcomes = run_apart(releases, tmp_path, changes={"bank": {"random": None}})
    assert outcomes["bank"].startswith("epsilon 1 at delta 0")
    assert outcomes["shop"].startswith("not private: laplace noise from the plan's seed")


@pytest.mark.network
def test_a_party_that_waits_says_for_whom(tmp_path):
    told = []
    lines = GrpcTransport(
        {"bank": f"127.0.0.1:{free_port()}", "shop": None},
        credentials=None,
        patience=Patience(start=1),
        on_wait=lambda names, seconds: told.append(list(names)),
    )
    party = connect(plan_of(draw), "bank", rows(), transport=lines, directory=tmp_path)
    with pytest.raises(PeerUnreachable, match="bank waited for shop and gave up"):
        join(draw, party)
    assert told
    assert all(names == ["shop"] for names in told)


def connected(folder, name="shop", table=None, **changes):
    lines = GrpcTransport(changes.pop("addresses", {"bank": "127.0.0.1:1", "shop": None}), credentials=None)
    plan = changes.pop("plan", plan_of(draw))
    return connect(plan, name, rows() if table is None else table, transport=lines, directory=folder, **changes)


def test_randomness_from_the_system_is_drawn_once_and_kept(tmp_path):
    first, second = (connected(tmp_path / "run").random for _ in range(2))
    assert first == second
    assert first.source == "system"
    assert connected(tmp_path / "other").random != first


@pytest.mark.network
def test_what_is_drawn_serves_one_run_of_the_same_folders_and_tables(tmp_path):
    drawn = []

    def draws(party):
        for line in party.peers.values():
            line.send(Drawn(np.zeros(1)))
            line.receive(Drawn)
        if party.name == "bank":
            drawn.append((party.random.key, party.once("key", lambda: os.urandom(8).hex())))
            raise DataError("Enough for today.")
        return party.peers["bank"].receive(Drawn)

    def again(**tables):
        run_apart(draws, tmp_path, tables=tables, changes={name: {"random": None} for name in ("bank", "shop")})
        return drawn[-1]

    first = again()
    assert again() == first
    (tmp_path / "shop" / "run.json").unlink()
    others = replace(rows(), _arrow=rows().to_arrow().set_column(1, "x", [np.array([0.0, 1.0, 5.0])]))
    second = again(shop=others)
    shutil.rmtree(tmp_path / "shop")
    third = again(shop=others)
    for values in zip(first, second, third, strict=True):
        assert len(set(values)) == 3


def test_a_run_begins_as_running(tmp_path):
    connected(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "running"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plan": plan_of(rows)}, "plan differ"),
        ({"table": rows(4, 5, 6)}, "its rows, table differ"),
        ({"checkpoint_every": 7}, "its checkpoint interval differ"),
    ],
)
def test_a_folder_that_holds_another_run_is_refused(tmp_path, changes, words):
    connected(tmp_path)
    with pytest.raises(PlanError, match=words):
        connected(tmp_path, **changes)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (
            lambda folder: connected(folder, "mallory"),
            "mallory is not a party of this plan; its parties are bank, shop",
        ),
        (
            lambda folder: connected(folder, addresses={"bank": "127.0.0.1:1"}),
            "addresses were given for bank and the parties are bank, shop. Name them all",
        ),
        (
            lambda folder: connect(
                plan_of(draw),
                "shop",
                None,
                transport=GrpcTransport(dict.fromkeys(BOTH.parties), credentials=None),
                directory=folder,
            ),
            "shop needs a table for its role",
        ),
        (
            lambda folder: connected(
                folder, "notary", plan=plan_of(draw, WITH_NOTARY), addresses=dict.fromkeys(WITH_NOTARY.parties)
            ),
            "notary has a role that takes no table",
        ),
        (
            lambda folder: connected(folder, addresses={"bank": None, "shop": None}),
            "shop and bank both have no address, so neither can be reached",
        ),
        (lambda folder: connected(folder, keep="all", keep_received="audit"), "Use keep='audit'"),
        (lambda folder: connected(folder, keep_received="audit"), "Add received='audit' to the settings of all"),
    ],
)
def test_what_cannot_be_connected_is_refused(tmp_path, act, words):
    with pytest.raises(PlanError, match=words):
        act(tmp_path)
    assert not (tmp_path / "run.json").exists()


@pytest.mark.network
def test_a_finished_run_leaves_no_secrets_and_is_not_begun_again_in_its_folder(tmp_path):
    system = {name: {"random": None} for name in BOTH.parties}
    first = run_apart(draw, tmp_path, changes=system)
    assert not any(isinstance(outcome, Exception) for outcome in first.values()), first
    assert not list(tmp_path.rglob("*checkpoints*"))
    second = run_apart(draw, tmp_path, changes=system)
    for name in BOTH.parties:
        assert isinstance(second[name], PlanError)
        assert "should hold a new or an interrupted run, but holds a finished one, whose secrets are erased." in str(
            second[name]
        )
        assert status(tmp_path, name)["status"] == "finished"


def keyed(party):
    """Everybody draws a key once, and tells that it is there."""
    key = party.once("key", lambda: party.random.seed("key"))
    for line in party.peers.values():
        line.send(Drawn(np.zeros(1)))
    for line in party.peers.values():
        line.receive(Drawn)
    return key


@pytest.fixture
def killed_before_it_erases(monkeypatch, tmp_path):
    """Runs two parties to their end, after which those named are killed before they erase their secrets."""

    def run(*names):
        erase = Checkpoints.erase

        def erase_or_die(checkpoints):
            if checkpoints.directory.parent.name not in names:
                erase(checkpoints)

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "erase", erase_or_die)
            outcomes = run_apart(keyed, tmp_path, changes={name: {"random": None} for name in BOTH.parties})
        assert {path.parent.name for path in tmp_path.rglob("checkpoints")} == set(names)
        return outcomes

    return run


@pytest.mark.network
def test_parties_that_were_killed_before_they_erased_their_secrets_go_on_together_and_erase_them(
    killed_before_it_erases, tmp_path
):
    first = killed_before_it_erases("bank", "shop")
    second = run_apart(keyed, tmp_path, changes={name: {"random": None} for name in BOTH.parties})
    assert second == first, "the keys are those of the run"
    assert not list(tmp_path.rglob("*checkpoints*"))
    assert {status(tmp_path, name)["status"] for name in BOTH.parties} == {"finished"}


@pytest.mark.network
def test_a_party_that_was_killed_before_it_erased_its_secrets_erases_them_when_nobody_comes(
    killed_before_it_erases, tmp_path
):
    killed_before_it_erases("shop")
    addresses = {"bank": f"127.0.0.1:{free_port()}", "shop": None}
    lines = GrpcTransport(addresses, credentials=None, patience=Patience(start=0.5))
    party = connect(plan_of(keyed), "shop", rows(), transport=lines, directory=tmp_path / "shop")
    assert status(tmp_path, "shop")["status"] == "finished"
    with pytest.raises(PeerUnreachable):
        join(keyed, party)
    assert not list(tmp_path.rglob("*checkpoints*"))
    assert status(tmp_path, "shop")["status"] == "finished"


@pytest.mark.network
def test_a_run_whose_secrets_cannot_be_erased_has_finished_all_the_same(tmp_path, monkeypatch):
    erase = Checkpoints.erase

    def fails_at_shop(checkpoints):
        if checkpoints.directory.parent.name == "shop":
            raise StorageError("Could not erase them.")
        erase(checkpoints)

    monkeypatch.setattr(Checkpoints, "erase", fails_at_shop)
    outcomes = run_apart(keyed, tmp_path)
    assert str(outcomes["shop"]) == "Could not erase them."
    assert isinstance(outcomes["bank"], int)
    assert {status(tmp_path, name)["status"] for name in BOTH.parties} == {"finished"}


@pytest.mark.network
def test_a_run_that_failed_keeps_what_it_resumes_from(tmp_path):
    def fails(party):
        keyed(party)
        raise DataError("Not yet.")

    run_apart(fails, tmp_path)
    assert {path.parent.name for path in tmp_path.rglob("checkpoints")} == {"bank", "shop"}


def releases_after_an_alignment(party):
    """Align, count an answer, release something and write checkpoints, so that every kind of file is there."""
    Align(limits=Limits(fewest=1))(party)
    mechanism, about = LaplaceMechanism(sensitivity=1.0, scale=1.0), {"protects": Secret.FEATURES, "unit": "record"}
    for step in party.steps(3, Nothing(), name="walk"):
        mechanism.release([0.0], random=party.random, ledger=party.ledger, path=(step,), **about)
        for line in party.peers.values():
            line.send(Drawn(np.ones(1)))
        for line in party.peers.values():
            line.receive(Drawn)


@pytest.mark.network
def test_what_a_run_leaves_is_its_owners_alone(tmp_path):
    """The run's folder is new; other users may enter the one above, which was there before."""
    tables = {name: rows(*range(5)) for name in ("bank", "shop")}
    changes = {
        name: {
            "aligns": True,
            "checkpoint_every": 1,
            "answers": tmp_path / "runs" / f"answers-of-{name}",
            "keep": "all",
        }
        for name in tables
    }
    before = os.umask(0)
    try:
        outcomes = run_apart(releases_after_an_alignment, tmp_path / "runs", tables=tables, changes=changes)
    finally:
        os.umask(before)
    assert outcomes == {"bank": None, "shop": None}
    left = [tmp_path / "runs", *(tmp_path / "runs").rglob("*")]
    names = {path.name for path in left}
    assert {"run.json", "ledger", "transcript", "alignments-of-bank"} <= names, names
    assert any(name.endswith(".frames") for name in names)
    modes = {str(path): oct(path.stat().st_mode & 0o777) for path in left}
    assert modes == {str(path): "0o700" if path.is_dir() else "0o600" for path in left}
