"""The engine rr22 finds what the built-in engine finds, or says what is missing."""

import gc
import json
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from colonnade import Roles, Table, simulate
from colonnade.align import Align, Limits, Settings, rr22_process
from colonnade.align import rr22 as rr22_module
from colonnade.align.messages import AlignOpening, Finished, Meeting
from colonnade.align.rr22 import INTERPRETER_VARIABLE, SideProcess, pair_words
from colonnade.errors import MissingExtra, PlanError, ProtocolError
from colonnade.runtime.replay import ReplayGuard
from colonnade.testing.ports import free_port
from colonnade.wire.certs import authority as certs
from colonnade.wire.channel import Channel
from colonnade.wire.message import Message

installed = pytest.mark.skipif(INTERPRETER_VARIABLE not in os.environ, reason="spu is not installed; `make psi-fast`")
IDS = {"bank": range(200), "shop": range(50, 300), "telco": range(100, 400)}


def align(names, process=None, instead=None, directory=None, limits=None, **how):
    tables = {name: Table.of({"id": [f"c{i}" for i in IDS[name]]}) for name in names}
    roles = Roles(label=names[0], features=tuple(names[1:]))
    protocol = Align(Settings(**how), process=process or SideProcess(), limits=limits or Limits())
    return simulate(protocol, tables, roles=roles, instead=instead or {}, directory=directory)


@installed
@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("how", [{}, {"reveal": "one"}, {"join": "left"}, {"duplicates": "all"}], ids=str)
@pytest.mark.parametrize("names", [("bank", "shop"), ("bank", "shop", "telco")], ids=len)
def test_both_engines_find_the_same_rows_in_the_same_order(names, how):
    fast, slow = align(names, engine="rr22", **how), align(names, **how)
    for name in names:
        found = [None if run.results[name].rows is None else run.results[name].rows.tolist() for run in (fast, slow)]
        assert found[0] == found[1]
    said = "The side processes talked over a connection of their own, which is not in the recording."
    assert said in fast.results["bank"].learned


@installed
@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize(
    ("here", "there", "how"),
    [
        ([], ["a", "b"], {}),
        ([], [], {}),
        (["a", "b"], ["c", "d"], {}),
        (["a"], ["a"], {}),
        (["a", "b", "c"], ["c", "b", "a"], {}),
        (["a", "b", "a", "c", "d"], ["a", "d", "d", "a", "x"], {"duplicates": "all"}),
        (["a", "b", "a", "c", "d"], ["a", "d", "d", "a", "x"], {"duplicates": "all", "join": "left"}),
        (["a", "b", "c", "d", "e"], ["x", "e", "c"], {"pad": True}),
        ([f"c{i}" for i in range(60)], [f"c{i}" for i in range(30, 90)], {"ids_per_bucket": 20}),
        (["a", "b", "c"], ["b", "c", "d"], {"keys": ("text", "text"), "ids_per_bucket": 2}),
    ],
    ids=[
        "nothing here", "nothing at all", "nothing common", "one id", "identical", "repeated", "repeated, left",
        "padded", "buckets", "keys",
    ],
)  # fmt: skip
def test_both_engines_find_the_same_rows_of_sets_of_odd_shapes(here, there, how):
    tables = {
        name: Table.of({"id": pa.array(ids, pa.large_string()), "mail": pa.array(ids[::-1], pa.large_string())})
        for name, ids in (("bank", here), ("shop", there))
    }
    columns = dict.fromkeys(tables, ("mail", "id")) if "keys" in how else {}
    roles = Roles(label="bank", features=("shop",))
    fast, slow = (
        simulate(
            Align(Settings(engine=engine, **how), columns=columns, limits=Limits(fewest=0)), tables, roles=roles
        ).results
        for engine in ("rr22", "ecdh")
    )
    for name in tables:
        assert fast[name].rows.tolist() == slow[name].rows.tolist()
    assert fast["bank"].size == fast["shop"].size == slow["bank"].size


@installed
@pytest.mark.slow
@pytest.mark.network
def test_side_processes_talk_over_tls_where_there_are_certificates(tmp_path):
    certs.init(tmp_path)
    for name in ("bank", "shop"):
        certs.issue(tmp_path, name)
    files = tuple(tmp_path / name for name in ("bank.pem", "bank.key", "ca.pem"))
    run = align(("bank", "shop"), SideProcess(certificates=files), engine="rr22")
    assert run.results["bank"].size == 150


@installed
@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("attempt", range(3))
def test_side_processes_on_a_machine_with_too_much_to_do_all_come_to_an_end(tmp_path, attempt):
    # Where a first or a last word was lost, one pair in ten to a hundred waited for it for ever.
    process = SideProcess(timeout_s=30)
    process.find(tmp_path)
    with ExitStack() as stack:
        running = []
        for pair in range(8):
            parties = [(name, f"127.0.0.1:{free_port()}") for name in ("bank", "shop")]
            for rank in range(2):
                folder = stack.enter_context(rr22_module._side_folder(tmp_path / f"{pair}-{rank}"))
                (folder / "input.csv").write_text("".join(["id\n", *(f"{rank + i:064x}\n" for i in range(30))]))
                running.append(process.start(folder, rank, parties, ("one", "other"), broadcast=True))
                stack.callback(running[-1].close)
        assert [each.wait() for each in running] == [True] * len(running)


@installed
@pytest.mark.slow
@pytest.mark.network
def test_the_drawing_shows_the_messages_of_this_engine():
    drawn = {kind for kind in ("Meeting", "Finished") if f" {kind} " in rr22_module.__doc__}
    run = align(("bank", "shop"), engine="rr22")
    crossed = {Message.kinds[entry.kind].__name__ for entry in run.transcripts["bank"].entries}
    assert drawn == crossed - {"AlignTerms", "AlignOpening", "ChosenRows", "OrderPoint", "OrderDigest", "Agreed"}


def test_each_pair_has_a_veil_of_its_own_that_no_other_party_is_sent(tmp_path, monkeypatch):
    names = ("bank", "shop", "telco")
    openings, honest = {name: [] for name in names}, ReplayGuard.hear

    def hear(guard, peer, message, frame):
        if isinstance(message, AlignOpening):
            openings[guard._party].append(message)
        honest(guard, peer, message, frame)

    monkeypatch.setattr(ReplayGuard, "hear", hear)
    align(names, directory=tmp_path, engine="ecdh")
    assert openings["bank"] == []
    (shop,), (telco,) = openings["shop"], openings["telco"]
    assert len(shop.veil) == len(telco.veil) == 32
    assert shop.veil != telco.veil


def test_words_of_a_pair_follow_from_its_veil_and_bucket_and_neither_is_the_others_echo():
    veils, rounds = (bytes(32), bytes([1]) * 32), [(0, 0), (0, 1), (1, 0)]
    words = [word for veil in veils for at in rounds for word in pair_words(veil, *at)]
    assert len(set(words)) == 12
    assert pair_words(veils[0], 0, 1) == pair_words(veils[0], 0, 1)


class Line:
    """The other end of a side process's connection, which says what it likes."""

    def __init__(self, heard):
        self.heard, self.said = heard, None

    def all_gather(self, word):
        self.said = word
        return self.heard


def meet(rank, heard, words):
    """Let a side process meet another one over a connection that any certificate of the authority gets."""
    line = Line(heard)
    link = SimpleNamespace(
        Desc=lambda: SimpleNamespace(add_party=lambda *about: None), create_brpc=lambda desc, rank: line
    )
    task = {"sides": [{}], "parties": [], "words": words, "tls": None, "timeout_ms": 60_000}
    return rr22_process.connected(link, task, rank), line


@pytest.mark.parametrize("rank", [0, 1])
def test_a_side_process_answers_only_one_that_knows_the_words_of_the_pair(rank):
    mine, others = pair_words(bytes(32), 0, 0), pair_words(bytes([1]) * 32, 0, 0)
    met, line = meet(rank, list(mine), mine)
    assert met is line
    assert line.said == mine[rank]
    meet(rank, [word.encode() for word in mine], mine)
    echoed = [mine[rank]] * 2
    foreign = [mine[0], others[1]] if rank == 0 else [others[0], mine[1]]
    for heard in (echoed, foreign, ["here", "here"], [mine[rank]], []):
        with pytest.raises(ConnectionError, match="the process at the other end does not know the words of this pair"):
            meet(rank, heard, mine)


def test_without_spu_it_is_said_how_to_install_it(monkeypatch):
    monkeypatch.delenv(INTERPRETER_VARIABLE, raising=False)
    with pytest.raises(
        MissingExtra, match=r"rr22 runs spu 0\.9\.5 in an environment of its own.*pip install --no-deps spu"
    ):
        align(("bank", "shop"), engine="rr22")


@pytest.fixture
def old_spu(tmp_path):
    """An interpreter that has an spu of another version."""
    package = tmp_path / "packages" / "spu"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "psi.py").touch()
    (package / "libspu.py").write_text("link = None\ndef _get_version(): return '0.1.0'\n")
    code = (
        f"import runpy, sys; sys.path.append({str(package.parent)!r}); runpy.run_path(sys.argv[2], run_name='__main__')"
    )
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("interpreter", "why"),
    [
        (Path(sys.executable), "ImportError: spu is not installed here"),
        ("old_spu", "ImportError: spu 0.9.5 is needed, not 0.1.0"),
        (Path(shutil.which("false")), "it said nothing about why"),
    ],
    ids=["none", "old", "silent"],
)
def test_an_interpreter_that_fails_the_test_at_the_start_is_refused_with_its_reason(
    interpreter, why, tmp_path, request
):
    named = request.getfixturevalue(interpreter) if isinstance(interpreter, str) else interpreter
    work = tmp_path / "work"
    with pytest.raises(
        PlanError,
        match=rf"should find the common ids of two small lists with .*, but does not: {why}\. Install spu 0\.9\.5",
    ):
        SideProcess(interpreter=named).find(work)
    assert list(work.iterdir()) == []


def test_the_files_of_a_side_process_are_for_their_owner_alone(tmp_path):
    """Its interpreter is a program that lists them and ends."""
    listing, interpreter = tmp_path / "modes", tmp_path / "python"
    interpreter.write_text(
        f"#!{sys.executable}\nimport json, pathlib\n"
        "modes = {str(path): path.stat().st_mode & 0o777 for path in pathlib.Path().rglob('*')}\n"
        f"pathlib.Path({str(listing)!r}).write_text(json.dumps(modes | {{'.': pathlib.Path().stat().st_mode & 0o777}}))"
    )
    interpreter.chmod(0o755)
    before = os.umask(0)
    try:
        with pytest.raises(PlanError, match="should find the common ids of two small lists"):
            SideProcess(interpreter=interpreter).find(tmp_path / "work")
    finally:
        os.umask(before)
    private = {".": 0o700, "0": 0o700, "1": 0o700, "0/input.csv": 0o600, "1/input.csv": 0o600, "log": 0o600}
    assert json.loads(listing.read_text()) == private


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists what is open")
@pytest.mark.parametrize(("what", "why"), [("nowhere", "No such file or directory"), ("folder", "Permission denied")])
def test_an_interpreter_that_cannot_be_started_is_named_with_the_reason(what, why, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv(INTERPRETER_VARIABLE, str(tmp_path / what))
    before = open_files()
    with pytest.raises(
        PlanError,
        match=rf"rr22 should run in .*{what}, but that cannot be started: {why}\. Let COLONNADE_PSI_FAST name a Python",
    ):
        align(("bank", "shop"), engine="rr22")
    assert open_files() <= before


def open_files():
    """What this process has open, by number and by what the number leads to."""
    gc.collect()
    found = set()
    for number in os.listdir("/proc/self/fd"):
        # The folder that is listed has a number too, which leads nowhere by now.
        with suppress(FileNotFoundError):
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def changing(kind, **change):
    """The shop, which keeps to the protocol but for one kind of message."""

    class Crooked(Channel):
        def send(self, message, **options):
            if isinstance(message, kind):
                values = {
                    name: value(getattr(message, name)) if callable(value) else value for name, value in change.items()
                }
                message = replace(message, **values)
            super().send(message, **options)

    def play(party, honest):
        lines = {name: Crooked(name, line._transport, line._recording) for name, line in party.peers.items()}
        return honest(replace(party, peers=lines))

    return {"shop": play}


@installed
@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (Finished, {"good": 0}, "but shop's failed, which knows why. Check that both can reach each other"),
        (Meeting, {"address": "127.0.0.1"}, "shop to say at which host and port its side process listens, got '127"),
    ],
    ids=["failed", "address"],
)
def test_what_goes_wrong_at_the_other_party_is_said_to_be_there(kind, change, said):
    with pytest.raises(ProtocolError, match=said):
        align(("bank", "shop"), engine="rr22", instead=changing(kind, **change))


@installed
@pytest.mark.slow
@pytest.mark.network
def test_side_processes_that_meet_again_over_a_bucket_count_as_another_alignment(tmp_path):
    limits = Limits(log=tmp_path / "log", most_runs=2)

    def stop(good):
        raise RuntimeError("that is enough")

    def peers():
        return [json.loads(line)["peer"] for line in limits.log.read_text().splitlines()]

    def again(good):
        return align(
            ("bank", "shop"),
            instead=changing(Finished, good=good),
            directory=tmp_path / "run",
            limits=limits,
            engine="rr22",
        )

    with pytest.raises(RuntimeError, match="that is enough"):
        again(stop)
    assert sorted(peers()) == ["bank", "shop"]
    assert again(lambda good: good).results["bank"].size == 150
    assert sorted(peers()) == ["bank", "bank", "shop", "shop"]


@installed
@pytest.mark.slow
@pytest.mark.network
def test_a_run_in_a_folder_that_is_named_from_here_finds_its_side_process(tmp_path, monkeypatch):
    monkeypatch.setattr(rr22_module, "_tested", set())
    monkeypatch.chdir(tmp_path)
    assert align(("bank", "shop"), directory="runs", engine="rr22").results["bank"].size == 150


@installed
@pytest.mark.slow
@pytest.mark.network
def test_side_processes_that_do_not_meet_end_the_run_with_what_they_said():
    same = SideProcess(address=f"127.0.0.1:{free_port()}", timeout_s=5)
    with pytest.raises(
        ProtocolError,
        match=r"^The side processes of bank and shop should have found their common ids, but bank's failed: "
        r".*[Ee]rror.*\. Check that both can reach each other at the addresses under \[align\.addresses\], or use "
        r"engine = 'ecdh'\.",
    ):
        align(("bank", "shop"), same, engine="rr22")


@installed
@pytest.mark.slow
@pytest.mark.network
def test_a_side_process_gives_up_where_nobody_answers(tmp_path):
    (tmp_path / "input.csv").write_text("id\n")
    parties = [(name, f"127.0.0.1:{free_port()}") for name in ("bank", "shop")]
    running = SideProcess(timeout_s=2).start(tmp_path, 0, parties, ("one", "other"), broadcast=True)
    assert not running.wait()
    running.close()
    assert "Error: the other side was not met within 2 s" in (tmp_path / "log").read_text()


@installed
@pytest.mark.slow
@pytest.mark.network
@pytest.mark.usefixtures("no_trace_stays")
def test_nothing_is_left_in_the_temp_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(rr22_module, "_tested", set())
    assert align(("bank", "shop"), engine="rr22").results["bank"].size == 150
    assert list(tmp_path.iterdir()) == []
