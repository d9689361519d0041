"""Runs between processes end like the same run in one process, whatever happens on the way."""

import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from copy import deepcopy
from multiprocessing.forkserver import ensure_running

import numpy as np
import psutil
import pytest

from colonnade.align.rr22 import INTERPRETER_VARIABLE
from colonnade.storage import unpack
from colonnade.testing.resume import forking
from colonnade.testing.setup import arrays

pytestmark = pytest.mark.network

KILLED = -signal.SIGKILL
THREE = ("shop", "telco")


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)


def killed_and_started_again(run, victim, *deaths):
    """Start all; each time the victim has died, start it again, and at last in peace. Returns what they leave."""
    run.start(*(name for name in run.names if name != victim))
    for death in deaths:
        run.start(victim, planted=[(*death, "SIGKILL")])
        assert run.wait(victim) == KILLED, f"it never came to {death}:\n{run.said()}"
    run.start(victim)
    return run.finish()


# The same frames over memory and over the network.


@pytest.mark.parametrize("features", [("shop",), THREE])
def test_a_run_between_processes_leaves_what_a_run_in_one_process_leaves(
    federation, undisturbed, certificates, features
):
    run = federation(features=features, certs=certificates)
    run.start()
    assert run.finish() == undisturbed(features=features)


@pytest.mark.slow
@pytest.mark.parametrize("features", [("shop",), THREE])
def test_a_split_network_trained_between_processes_is_the_one_trained_in_one_process(
    federation, undisturbed, certificates, features
):
    run = federation("split", features, certs=certificates)
    run.start()
    assert run.finish() == undisturbed("split", features)


@pytest.mark.slow
def test_curves_boosted_between_processes_are_those_boosted_in_one_process(federation, undisturbed, certificates):
    run = federation("functional", THREE, certs=certificates)
    run.start()
    assert run.finish() == undisturbed("functional", THREE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "death"),
    [
        ("shop", ("charge", 1, "before")),
        ("shop", ("charge", 2, "after")),
        ("shop", ("send", 1, "after")),
        ("shop", ("send", 3, "before")),
        ("bank", ("receive", 3, "after")),
        ("bank", ("rename", 3, "before")),
        ("bank", ("rename", 9, "before")),
        ("telco", ("finish", 1, "before")),
        # Predicting.
        ("bank", ("send", 2, "before")),
        ("shop", ("receive", 1, "after")),
    ],
)
def test_curves_are_boosted_to_the_same_end_though_a_party_was_killed(
    federation, undisturbed, certificates, victim, death
):
    run = federation("functional", THREE, certs=certificates)
    assert killed_and_started_again(run, victim, death) == undisturbed("functional", THREE)


JUDGED = {"arbiter": "telco"}


@pytest.mark.slow
def test_moments_released_between_processes_are_those_released_in_one_process(federation, undisturbed, certificates):
    run = federation("moments", certs=certificates, **JUDGED)
    run.start()
    assert run.finish() == undisturbed("moments", **JUDGED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "death"),
    [
        ("telco", ("send", 2, "before")),
        ("telco", ("charge", 1, "before")),
        ("telco", ("charge", 5, "after")),
        ("telco", ("send", 4, "before")),
        ("telco", ("finish", 1, "before")),
        ("bank", ("send", 1, "after")),
        ("bank", ("receive", 5, "after")),
        ("bank", ("charge", 1, "after")),
        ("bank", ("rename", 3, "before")),
        ("shop", ("send", 3, "after")),
        ("shop", ("receive", 3, "after")),
        ("shop", ("send", 4, "before")),
        # Predicting.
        ("shop", ("send", 5, "before")),
    ],
)
def test_moments_are_released_once_and_with_the_same_noise_though_a_party_was_killed(
    federation, undisturbed, certificates, victim, death
):
    run = federation("moments", certs=certificates, **JUDGED)
    assert killed_and_started_again(run, victim, death) == undisturbed("moments", **JUDGED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "death"),
    [
        (None, None),
        ("bank", ("charge", 1, "after")),
        ("bank", ("receive", 4, "after")),
        ("shop", ("charge", 2, "after")),
        ("shop", ("send", 5, "after")),
    ],
)
def test_moments_released_by_two_parties_alone_are_the_same_over_the_network_and_after_a_crash(
    federation, undisturbed, certificates, victim, death
):
    run = federation("moments", certs=certificates)
    if victim is None:
        run.start()
        left = run.finish()
    else:
        left = killed_and_started_again(run, victim, death)
    assert left == undisturbed("moments")


def test_a_walk_is_charged_once_for_each_release(undisturbed):
    for left in undisturbed().values():
        assert sum(left["ledger"].values()) == 1 + 2 * 8


@pytest.mark.slow
def test_parties_may_be_started_in_any_order(federation, undisturbed):
    run = federation(features=THREE)
    for name in ("telco", "bank", "shop"):
        run.start(name)
        time.sleep(0.5)
    assert run.finish() == undisturbed(features=THREE)


# Crashes.

QUICK_DEATHS = [
    ("shop", ("send", 5, "before")),
    ("bank", ("rename", 4, "before")),
]

DEATHS = {
    "handshake": [("greet", 1, "before"), ("greet", 1, "after"), ("accept", 1, "after")],
    "meeting": [("meet", 1, "before"), ("meet", 1, "after")],
    "forward and backward": [
        ("send", 1, "before"),
        ("send", 4, "after"),
        ("send", 13, "before"),
        ("receive", 1, "before"),
        ("receive", 6, "after"),
        ("receive", 16, "after"),
    ],
    "charging the ledger": [("charge", 1, "before"), ("charge", 1, "after"), ("charge", 8, "before")],
    "between writing and renaming": [("rename", number, "before") for number in range(1, 11)],
    "after renaming": [("rename", number, "after") for number in (2, 3, 5, 8)],
    "finishing": [("finish", 1, "before"), ("await", 1, "before")],
}
PREDICTING = {"shop": [("send", 18, "before"), ("send", 21, "after")], "bank": [("receive", 19, "after")]}


@pytest.mark.parametrize(("victim", "death"), QUICK_DEATHS)
def test_a_killed_party_that_starts_again_is_not_noticed_in_the_end(federation, undisturbed, victim, death):
    assert killed_and_started_again(federation(), victim, death) == undisturbed()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["bank", "shop"])
@pytest.mark.parametrize("phase", [*DEATHS, "predicting"])
def test_a_party_killed_in_any_phase_is_not_noticed_in_the_end(
    tmp_path, federation, undisturbed, certificates, phase, victim
):
    for place, death in enumerate(PREDICTING[victim] if phase == "predicting" else DEATHS[phase]):
        run = federation(certs=certificates)
        run.folder = tmp_path / str(place)
        run.config["folder"] = str(run.folder)
        run.folder.mkdir()
        assert killed_and_started_again(run, victim, death) == undisturbed(), death


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_parties_killed_at_random_three_times_are_not_noticed_in_the_end(federation, undisturbed, seed):
    draw = random.Random(seed)
    victim = draw.choice(["bank", "shop"])
    acts = {"send": 14, "receive": 14, "rename": 8, "charge": 15}
    # Each life is shorter than what is left, because the one before may have come far.
    deaths = []
    for share in (1, 3, 6):
        act = draw.choice(list(acts))
        deaths.append((act, draw.randint(1, max(1, acts[act] // share)), draw.choice(["before", "after"])))
    assert killed_and_started_again(federation(), victim, *deaths[::-1]) == undisturbed()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "death"),
    [
        ("telco", ("greet", 1, "after")),
        ("telco", ("send", 5, "before")),
        ("telco", ("receive", 11, "after")),
        ("telco", ("rename", 4, "before")),
        ("telco", ("finish", 1, "before")),
        ("shop", ("rename", 7, "before")),
        ("bank", ("receive", 9, "after")),
        ("bank", ("rename", 5, "before")),
        ("bank", ("await", 1, "before")),
    ],
)
def test_a_party_killed_among_three_of_whom_two_have_no_line_is_not_noticed_in_the_end(
    federation, undisturbed, certificates, victim, death
):
    run = federation(features=THREE, certs=certificates)
    assert killed_and_started_again(run, victim, death) == undisturbed(features=THREE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "death"),
    [
        ("shop", ("send", 7, "before")),
        ("bank", ("send", 9, "after")),
        ("bank", ("rename", 4, "before")),
        ("shop", ("send", 18, "before")),
    ],
)
def test_a_split_network_whose_training_or_prediction_was_killed_is_the_same(federation, undisturbed, victim, death):
    assert killed_and_started_again(federation("split"), victim, death) == undisturbed("split")


BRIEF = {"epochs": 2, "batch_size": 32}
CATALOGUE = {
    "split": {"protocol": "split"},
    "alignment": {"protocol": "align", "features": THREE},
    "curves": {"protocol": "functional", "features": THREE},
    "regression with an arbiter": {
        "model": "logistic-regression",
        "settings": {"max_iter": 4, "rows_per_column": 10, "fewest_rows": 1},
        "arbiter": "telco",
    },
    "regression on shares": {"model": "logistic-regression", "settings": {"max_iter": 2}},
    "one-shot": {"model": "one-shot", "settings": {**BRIEF, "leak_budget": {"shop": 1.0}}},
    "u-shape": {"model": "u-shape-classifier", "settings": BRIEF, "server": "telco"},
    "served": {"model": "served-classifier", "settings": BRIEF, "server": "telco"},
    "trees": {
        "model": "secureboost-classifier",
        "settings": {"n_estimators": 4, "max_depth": 3, "max_bin": 8, "leak_budget": None},
        "features": ("shop", "telco"),
    },
    "trees of three classes": {
        "model": "secureboost-classifier",
        "settings": {"n_estimators": 2, "max_depth": 2, "max_bin": 4, "leak_budget": None},
        "classes": 3,
    },
    "trees of counts, leaf by leaf": {
        "model": "secureboost-regressor",
        "settings": {
            "objective": "count:poisson",
            "grow_policy": "lossguide",
            "max_leaves": 4,
            "n_estimators": 3,
            "max_bin": 4,
            "leak_budget": None,
        },
        "classes": 4,
    },
    "trees with hidden sums": {
        "model": "secureboost-classifier",
        "settings": {"n_estimators": 2, "max_depth": 2, "max_bin": 4, "sums": "hidden"},
    },
    "label-dp": {"model": "label-dp-shadow", "settings": BRIEF},
}


TWICE = ("split", "alignment", "curves", "regression with an arbiter", "regression on shares")


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "seed"), [*((each, 0) for each in CATALOGUE), *((each, 1) for each in TWICE)])
def test_a_model_of_which_every_party_was_killed_once_at_random_is_the_same(
    federation, undisturbed, certificates, chosen, seed
):
    arrangement = {"protocol": "catalogued", **CATALOGUE[chosen]}
    expected = undisturbed(**arrangement)
    run, draw, deaths = federation(certs=certificates, **arrangement), random.Random(chosen + " again" * seed), {}
    for name in run.names:
        act, number = draw.choice(sorted(expected[name]["numbers"].items()))
        deaths[name] = (act, draw.randint(1, number), draw.choice(["before", "after"]))
        run.start(name, planted=[(*deaths[name], "SIGKILL")])
    dying = set(run.names)

    def all_have_died_and_live_again():
        for name in sorted(dying):
            if run.processes[name].poll() is not None:
                assert run.wait(name) == KILLED, f"{name} never came to {deaths[name]}:\n{run.said()}"
                run.start(name)
                dying.remove(name)
        return not dying

    until(all_have_died_and_live_again)
    left = run.finish()
    if "shares" in chosen:
        # Truncating shares, whose randomness nobody can repeat, may take away one unit more or less each time.
        for name in run.names:
            found, wanted = (list(arrays(unpack(each[name].pop("result")))) for each in (left, deepcopy(expected)))
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        expected = {name: {part: each[part] for part in left[name]} for name, each in expected.items()}
    assert left == expected, deaths


@pytest.mark.slow
def test_all_parties_killed_at_once_go_on_together(federation, undisturbed):
    run = federation(features=THREE)
    for name, death in zip(run.names, [("send", 9), ("receive", 5), ("rename", 4)], strict=True):
        run.start(name, planted=[(*death, "before", "SIGKILL")])
    until(lambda: any(process.poll() == KILLED for process in run.processes.values()))
    run.stop()
    run.start()
    assert run.finish() == undisturbed(features=THREE)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["bank", "shop"])
def test_a_party_killed_when_the_others_have_left_waits_for_them_once_and_erases_its_secrets(
    federation, undisturbed, victim
):
    run = federation()
    run.start(*(name for name in run.names if name != victim))
    run.start(victim, planted=[("finish", 1, "after", "SIGKILL")])
    assert run.wait(victim) == KILLED
    others = [name for name in run.names if name != victim]
    assert [run.wait(name) for name in others] == [0]
    run.start(victim, patience={"start": 2})
    assert run.wait(victim) == 4
    assert f"{victim} waited for {others[0]} and gave up" in run.log(victim).read_text()
    for name in run.names:
        assert run.status(name)["status"] == "finished"
        assert not (run.folder / name / "checkpoints").exists()
    results = {name: left["result"] for name, left in undisturbed().items()}
    assert {name: (run.folder / name / "result").read_bytes() for name in others} == {
        name: results[name] for name in others
    }


# A party that stops, and one that fails.


@pytest.mark.slow
def test_a_party_that_falls_silent_is_given_up_in_time(federation):
    run = federation(patience={"silence": 1, "rejoin": 2, "heartbeat": 0.2})
    run.start("bank")
    run.start("shop", planted=[("send", 5, "before", "SIGSTOP")])
    assert run.wait("bank") == 4
    status = run.status("bank")
    assert status["status"] == "failed"
    assert "PeerUnreachable: bank waits for shop, whose connection broke and who did not come back" in status["error"]


@pytest.mark.slow
@pytest.mark.parametrize("silent", ["bank", "shop"])
def test_a_party_that_falls_silent_for_a_while_is_not_noticed_in_the_end(federation, undisturbed, silent):
    run = federation(patience={"silence": 0.5, "heartbeat": 0.1})
    run.start(*(name for name in run.names if name != silent))
    run.start(silent, planted=[("send", 5, "before", "SIGSTOP")])
    process = run.processes[silent]
    until(lambda: b" (python) T " in state(process) or b") T " in state(process))
    time.sleep(2)
    process.send_signal(signal.SIGCONT)
    assert run.finish() == undisturbed()


def state(process):
    with suppress(OSError), open(f"/proc/{process.pid}/stat", "rb") as file:
        return file.read()
    return b""


@pytest.mark.parametrize(("failing", "step"), [("bank", 4), ("shop", 4)])
def test_a_party_that_fails_ends_the_run_everywhere_with_its_words(federation, failing, step):
    run = federation(features=THREE, fails=[failing, "home", step])
    run.start()
    codes = {name: run.wait(name) for name in run.names}
    assert codes == {name: 3 if name == failing else 4 for name in run.names}
    for name in run.names:
        status = run.status(name)
        assert status["status"] == "failed"
        assert "The vault is empty." in status["error"]
        if name != failing:
            assert f"{failing} stopped at step {step} of home: " in status["error"]


@pytest.mark.slow
def test_a_run_that_failed_goes_on_when_its_cause_is_gone(federation, undisturbed):
    run = federation()
    run.start(fails=["shop", "home", 4])
    assert {run.wait(name) for name in run.names} == {3, 4}
    run.start()
    assert run.finish() == undisturbed()


# Bad networks.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_slow_network_that_is_cut_again_and_again_changes_nothing(federation, undisturbed, certificates, proxy, seed):
    run = federation(certs=certificates, steps=30)
    cutting = proxy(run.config["addresses"]["bank"], seed=seed)
    run.start("bank")
    run.start("shop", addresses={"bank": cutting.address, "shop": None})
    assert run.finish() == undisturbed(steps=30)
    assert cutting.n_cuts >= 3


@pytest.mark.slow
def test_a_split_network_trained_over_a_bad_network_is_the_same(federation, undisturbed, certificates, proxy):
    run = federation("split", certs=certificates)
    cutting = proxy(run.config["addresses"]["bank"], cuts=(0.5, 1.5))
    run.start("bank")
    run.start("shop", addresses={"bank": cutting.address, "shop": None})
    assert run.finish() == undisturbed("split")


class Hosts:
    """Two hosts of their own, with a cable between them, on this machine."""

    def __init__(self):
        mark = f"{os.getpid() % 100_000}"
        self.names = {"bank": f"cb{mark}", "shop": f"cs{mark}"}
        self.made = []

    def make(self):
        for host in self.names.values():
            self.ip("netns", "add", host)
            self.made.append(host)
        bank, shop = self.names.values()
        self.ip("link", "add", f"v{bank}", "netns", bank, "type", "veth", "peer", "name", f"v{shop}", "netns", shop)
        for host, address in ((bank, "10.231.7.1/30"), (shop, "10.231.7.2/30")):
            self.ip("-n", host, "address", "add", address, "dev", f"v{host}")
            self.ip("-n", host, "link", "set", f"v{host}", "up")
            self.ip("-n", host, "link", "set", "lo", "up")

    def ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)

    def remove(self):
        for host in self.made:
            self.ip("netns", "delete", host)


@pytest.fixture
def hosts():
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip (Debian's iproute2)")
    if os.geteuid() != 0:
        pytest.skip("needs root, to make network namespaces")
    made = Hosts()
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"cannot make network namespaces here: {error.stderr.decode().strip()}")
    yield made
    made.remove()


def test_two_hosts_of_which_one_only_dials_run_together(federation, undisturbed, certificates, hosts):
    addresses = {"bank": "10.231.7.1:26001", "shop": None}
    run = federation(certs=certificates, addresses=addresses)
    for name, host in hosts.names.items():
        run.start(name, before=("ip", "netns", "exec", host))
    assert run.finish() == undisturbed()


@pytest.mark.slow
def test_a_host_whose_cable_is_pulled_for_a_while_goes_on(federation, undisturbed, certificates, hosts):
    addresses = {"bank": "10.231.7.1:26002", "shop": None}
    patience = {"silence": 1, "heartbeat": 0.2}
    run = federation(certs=certificates, addresses=addresses, patience=patience)
    host = hosts.names["shop"]
    run.start("bank", before=("ip", "netns", "exec", hosts.names["bank"]))
    run.start("shop", before=("ip", "netns", "exec", host), planted=[("send", 5, "before", "SIGSTOP")])
    until(lambda: b") T " in state(run.processes["shop"]))
    hosts.ip("-n", host, "link", "set", f"v{host}", "down")
    run.processes["shop"].send_signal(signal.SIGCONT)
    time.sleep(3)
    hosts.ip("-n", host, "link", "set", f"v{host}", "up")
    assert run.finish() == undisturbed()


# Alignments.


@pytest.mark.parametrize(
    ("features", "topology"),
    [
        (("shop",), "star"),
        pytest.param(("shop",), "ring", marks=pytest.mark.slow),
        pytest.param(THREE, "star", marks=pytest.mark.slow),
    ],
)
def test_parties_of_different_processes_align_as_those_of_one_process_do(federation, undisturbed, features, topology):
    run = federation("align", features=features, topology=topology)
    run.start()
    assert run.finish() == undisturbed("align", features=features, topology=topology)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "death"),
    [
        ("bank", ("send", 5)),
        ("bank", ("receive", 9)),
        ("bank", ("rename", 6)),
        ("shop", ("receive", 6)),
        ("shop", ("rename", 4)),
        ("shop", ("charge", 2)),
    ],
    ids=str,
)
def test_an_alignment_that_is_killed_resumes_to_the_same(federation, undisturbed, victim, death):
    run = federation("align", features=THREE)
    left = killed_and_started_again(run, victim, (*death, "before"))
    assert left == undisturbed("align", features=THREE)


def side_processes(folder):
    """The side processes of the engine rr22 that live and work for parties of this folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mine = any(part.endswith("rr22_process.py") for part in process.cmdline())
            if mine and process.cwd().startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


# One side process tests itself; from the second on, each is that of a bucket.
RR22_DEATHS = {
    "self-test": ("spawn", 1, "after"),
    "terms": ("send", 1, "before"),
    "meeting": ("send", 2, "after"),
    "start of the first side process": ("spawn", 2, "after"),
    "first bucket": ("side", 2, "before"),
    "end of the first side process": ("side", 2, "after"),
    "checkpoint of the first bucket": ("rename", 7, "before"),
    "second bucket": ("side", 3, "before"),
    "last bucket": ("side", 4, "before"),
    "finishing": ("finish", 1, "before"),
}


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETER_VARIABLE not in os.environ, reason="spu is not installed; `make psi-fast`")
@pytest.mark.usefixtures("no_trace_stays")
@pytest.mark.parametrize("victim", ["bank", "shop"])
@pytest.mark.parametrize("phase", RR22_DEATHS)
def test_an_rr22_alignment_that_is_killed_resumes_to_the_same_and_leaves_nothing(
    federation, undisturbed, monkeypatch, victim, phase
):
    run = federation("align", engine="rr22")
    temporary = run.folder / "temporary"
    temporary.mkdir()
    # Libraries that the server imports for all tests leave folders among the temporary files of its own.
    forking()
    ensure_running()
    monkeypatch.setenv("TMPDIR", str(temporary))
    run.start(*(name for name in run.names if name != victim))
    run.start(victim, planted=[(*RR22_DEATHS[phase], "SIGKILL")])
    assert run.wait(victim) == KILLED, run.said()
    until(lambda: not side_processes(run.folder / victim))
    run.start(victim)
    left = run.finish()
    # The transcripts name ports, which are others each time.
    expected = undisturbed("align", engine="rr22")
    for name in run.names:
        assert (left[name]["result"], left[name]["ledger"]) == (expected[name]["result"], expected[name]["ledger"])
    assert side_processes(run.folder) == []
    assert [path for path in run.folder.rglob("buckets/**/*") if path.is_file()] == []
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETER_VARIABLE not in os.environ, reason="spu is not installed; `make psi-fast`")
def test_a_side_process_that_is_killed_ends_the_run_everywhere_with_its_party_s_words(federation):
    run = federation("align", engine="rr22")
    run.start()
    folder = run.folder / "shop" / "checkpoints" / "buckets" / "side"

    def killed():
        # That of a bucket: the one that is tested with small lists has no such file.
        found = side_processes(folder) if (folder / "input.csv").exists() else []
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return bool(found)

    until(killed)
    assert {name: run.wait(name) for name in run.names} == {"shop": 8, "bank": 4}
    words = "The side processes of shop and bank should have found their common ids, but shop's failed: "
    assert f"ProtocolError: {words}" in run.status("shop")["error"]
    heard = run.status("bank")["error"]
    assert heard.startswith("PeerFailed: shop stopped at step ")
    assert words in heard
