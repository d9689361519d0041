"""An alignment that is killed, in whatever phase or bucket, resumes to the alignment it would have been."""

import itertools
import os
import re
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from colonnade import Roles, Table, simulate
from colonnade.align import Align, Limits, Settings
from colonnade.align import messages as kinds
from colonnade.align import settings as settings_module
from colonnade.errors import PrivacyError, StorageError
from colonnade.testing.resume import forking
from colonnade.wire import codec
from colonnade.wire.channel import Channel
from colonnade.wire.memory import MemoryTransport

ROOT = Path(__file__).parents[2]
ROLES = Roles(label="bank", features=("shop", "telco"))
IDS = {"bank": range(0, 60), "shop": range(20, 80), "telco": range(10, 50)}
STAR = Settings(ids_per_bucket=20)
RING = Settings(topology="ring", ids_per_bucket=20)
LEFT = Settings(join="left", ids_per_bucket=20)
ALL = Settings(keys=("text",), join="left", duplicates="all", ids_per_bucket=15)
KEYS = Settings(keys=("text", "text"), join="left", duplicates="first", ids_per_bucket=30)
ACTS = {"frame": (MemoryTransport, "send"), "rename": (os, "replace")}


def table(ids):
    """Rows whose mail is often that of the row before, and sometimes missing, like their number."""
    return Table.of(
        {
            "id": list(ids),
            "mail": [f"m{i // 2}" if i % 3 else None for i in ids],
            "tel": [f"t{i}" if i % 5 else None for i in ids],
        }
    )


def align(how, directory, instead=None):
    tables = {name: table(ids) for name, ids in IDS.items()}
    columns = {None: None, 1: ("mail",), 2: ("mail", "tel")}[None if how.keys is None else len(how.keys)]
    limits = Limits(fewest=1, log=directory / "log")
    protocol = Align(how, columns=dict.fromkeys(IDS, columns), limits=limits)
    return simulate(protocol, tables, roles=ROLES, directory=directory / "run", keep="all", instead=instead or {})


def live(how, directory, act, number):
    """Align in this process, and kill it at the n-th time of an act."""
    owner, name = ACTS[act]
    honest, calls = getattr(owner, name), itertools.count(1)

    def fatal(*arguments):
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return honest(*arguments)

    setattr(owner, name, fatal)
    settings_module.FEWEST_COUNTED = 1
    align(how, directory)


def dies(how, directory, act, number):
    # The new process looks for this module where this one does.
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    process = forking().Process(target=live, args=(how, directory, act, number))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def ending(run):
    """All that must be the same, however often a run was killed."""
    return {
        name: (
            result.rows.tolist(),
            result.schedule,
            result.learned,
            dict(run.ledgers[name].events),
            [(entry.peer, entry.sent, entry.kind) for entry in run.transcripts[name].entries],
        )
        for name, result in run.results.items()
    }


def left_in_peace(how, directory, act, monkeypatch):
    """How an alignment ends, and the number of each party's last message of a kind, or last file of a name."""
    owner, name = ACTS[act]
    honest, calls = getattr(owner, name), []

    def noted(*arguments):
        kind = (arguments[0]._name, codec._open(arguments[2], "a peer")[0]) if act == "frame" else str(arguments[1])
        calls.append(re.sub(r"\d+", "", str(kind)))
        return honest(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, noted)
        run = align(how, directory)
    last = {kind: number for number, kind in enumerate(calls, 1)}
    return ending(run), sorted(last.values())


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param(STAR, id="star"), pytest.param(RING, id="ring")])
def test_an_alignment_that_was_killed_between_buckets_ends_like_one_left_in_peace(how, tmp_path):
    expected = ending(align(how, tmp_path / "straight"))
    assert dies(how, tmp_path / "killed", "frame", 14)
    assert dies(how, tmp_path / "killed", "rename", 5)
    resumed = align(how, tmp_path / "killed")
    assert ending(resumed) == expected
    assert len({result.digest for result in resumed.results.values()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("act", ["frame", "rename"])
@pytest.mark.parametrize("how", [LEFT, ALL, KEYS], ids=["left", "all", "keys"])
def test_an_alignment_of_another_kind_that_was_killed_ends_like_one_left_in_peace(how, act, tmp_path):
    expected = ending(align(how, tmp_path / "straight"))
    moments = itertools.takewhile(lambda number: dies(how, tmp_path / str(number), act, number), itertools.count(2, 6))
    n_moments = 0
    for number in moments:
        n_moments += 1
        assert ending(align(how, tmp_path / str(number))) == expected, f"killed at {act} {number}"
    assert n_moments >= 4


@pytest.mark.slow
@pytest.mark.parametrize("act", ["frame", "rename"])
@pytest.mark.parametrize("how", [STAR, RING], ids=["star", "ring"])
def test_wherever_an_alignment_is_killed_it_ends_like_one_left_in_peace(how, act, tmp_path, monkeypatch):
    straight, moments = left_in_peace(how, tmp_path / "straight", act, monkeypatch)
    n_deaths = 0
    for number in moments:
        n_deaths += dies(how, tmp_path / str(number), act, number)
        assert ending(align(how, tmp_path / str(number))) == straight, f"killed at {act} {number}"
        assert list((tmp_path / str(number)).rglob("buckets")) == [], f"killed at {act} {number}"
    assert n_deaths >= 15


def test_an_alignment_that_goes_on_masks_with_the_secret_it_had_and_counts_once(tmp_path):
    def masked(run):
        found = set()
        for recorded in run.transcripts["bank"].messages(MASKED, sent=True):
            found |= {(recorded.peer, point.tobytes()) for point in recorded.message.points}
        return found

    from colonnade.align.messages import MaskedIds as MASKED

    assert dies(STAR, tmp_path, "frame", 18)
    key = (tmp_path / "run" / "bank" / "checkpoints" / "once-align-shop.safetensors").read_bytes()
    assert dies(STAR, tmp_path, "frame", 6)
    assert (tmp_path / "run" / "bank" / "checkpoints" / "once-align-shop.safetensors").read_bytes() == key
    run = align(STAR, tmp_path)
    other = align(STAR, tmp_path / "other")
    assert not masked(run) & masked(other)
    assert len(masked(run)) == len(masked(other))
    # Three parties share this log: bank asks both others, and each of them asks bank.
    log = (tmp_path / "log").read_text().splitlines()
    assert len(log) == 4


def saying(act):
    """A party that keeps to the protocol but for its messages, which an act may exchange."""

    class Crooked(Channel):
        def send(self, message, **options):
            super().send(act(message), **options)

    def play(party, honest):
        lines = {name: Crooked(name, line._transport, line._recording) for name, line in party.peers.items()}
        return honest(replace(party, peers=lines))

    return play


def stops_before(kind):
    def act(message):
        if isinstance(message, kind):
            raise RuntimeError("that is enough")
        return message

    return saying(act)


def says_otherwise(kind, field, change):
    def act(message):
        return replace(message, **{field: change(getattr(message, field))}) if isinstance(message, kind) else message

    return saying(act)


def forget_steps(directory, who):
    """Let a party come back as one that has done nothing yet: then all begin at the first step."""
    for path in (directory / "run" / who / "checkpoints").glob("[0-9]*.safetensors"):
        path.unlink()


def reverse(values):
    return values[::-1].copy()


OTHER_MESSAGES = [
    (STAR, "bank", kinds.AlignOpening, "salt", lambda salt: bytes(32)),
    (STAR, "bank", kinds.MaskedIds, "points", reverse),
    (STAR, "bank", kinds.ChosenRows, "theirs", reverse),
    (STAR, "shop", kinds.AlignTerms, "ids", lambda ids: [ids[0] + 1]),
    (STAR, "shop", kinds.MaskedIds, "points", reverse),
    (STAR, "shop", kinds.TwiceMaskedIds, "values", reverse),
    (ALL, "shop", kinds.Copies, "counts", lambda counts: counts + 1),
    (ALL, "bank", kinds.Copies, "counts", lambda counts: counts + 1),
    (KEYS, "bank", kinds.Places, "places", reverse),
    (RING, "bank", kinds.MaskedIds, "points", reverse),
    (RING, "bank", kinds.Common, "values", reverse),
    (RING, "telco", kinds.MaskedIds, "points", reverse),
    (RING, "telco", kinds.TwiceMaskedIds, "values", reverse),
    (RING, "telco", kinds.Places, "places", reverse),
]


@pytest.mark.parametrize(
    ("how", "who", "kind", "field", "change"),
    OTHER_MESSAGES,
    ids=[f"{who}'s {kind.__name__}" for _, who, kind, _, _ in OTHER_MESSAGES],
)
def test_a_peer_that_comes_back_with_another_message_gets_no_second_answer(how, who, kind, field, change, tmp_path):
    last = kinds.Agreed if who == "bank" else kinds.OrderDigest
    with pytest.raises(RuntimeError, match="that is enough"):
        align(how, tmp_path, {who: stops_before(last)})
    forget_steps(tmp_path, who)
    with pytest.raises(
        PrivacyError,
        match=rf"^{who} should resend \w+ exactly the bytes it sent before when a run resumes, but sent other bytes: "
        rf"a second question in a run that counts once\. Resume {who} from the folder of the run that it had\. If that "
        r"folder is lost, delete this run at \w+ too and align again, which counts as another alignment\.",
    ):
        align(how, tmp_path, {who: says_otherwise(kind, field, change)})
    assert '"why": "another message than before the run was resumed"' in (tmp_path / "log").read_text()


def test_a_peer_that_was_refused_and_says_the_same_again_is_aligned_with(tmp_path):
    with pytest.raises(RuntimeError, match="that is enough"):
        align(STAR, tmp_path, {"bank": stops_before(kinds.Agreed)})
    forget_steps(tmp_path, "bank")
    with pytest.raises(PrivacyError):
        align(STAR, tmp_path, {"bank": says_otherwise(kinds.MaskedIds, "points", reverse)})
    again = align(STAR, tmp_path, {"bank": saying(lambda message: message)})
    assert ending(again) == ending(align(STAR, tmp_path / "straight"))


def test_an_alignment_that_had_finished_and_is_simulated_again_counts_again(tmp_path):
    """Its secrets are erased, so that it is another one; between machines its folder is refused."""
    for counted in (4, 8):
        align(STAR, tmp_path)
        assert len((tmp_path / "log").read_text().splitlines()) == counted


def test_a_message_whose_digest_was_not_written_to_its_end_was_not_answered_and_does_not_count(tmp_path):
    with pytest.raises(RuntimeError, match="that is enough"):
        align(STAR, tmp_path, {"bank": stops_before(kinds.ChosenRows)})
    shutil.copytree(tmp_path / "run", tmp_path / "copy" / "run")
    said = tmp_path / "run" / "shop" / "checkpoints" / "said"
    said.write_bytes(said.read_bytes()[:-10])
    assert align(STAR, tmp_path, {"bank": saying(lambda message: message)}).results["shop"].size == 30
    (tmp_path / "copy" / said.relative_to(tmp_path)).write_text("{}\n")
    with pytest.raises(StorageError, match=r"said should hold one message per line, but is damaged\. Restore it, or"):
        align(STAR, tmp_path / "copy", {"bank": saying(lambda message: message)})


def test_two_runs_of_one_seed_count_as_two(tmp_path):
    for number in range(2):
        protocol = Align(STAR, limits=Limits(fewest=1, log=tmp_path / "log"))
        tables = {name: table(ids) for name, ids in IDS.items()}
        simulate(protocol, tables, roles=ROLES, directory=tmp_path / str(number))
    assert len((tmp_path / "log").read_text().splitlines()) == 8


def test_whoever_watches_an_alignment_that_goes_on_is_told_of_all_points_to_the_last(tmp_path):
    def watched_until(last):
        told = []

        def watch(name, loop, done, total, figures):
            told.append((done, total))
            if len(told) == last:
                raise RuntimeError("that is enough")

        tables = {name: table(ids) for name, ids in IDS.items()}
        instead = {"shop": lambda party, honest: honest(replace(party, watcher=watch))}
        simulate(Align(STAR, limits=Limits(fewest=1)), tables, roles=ROLES, directory=tmp_path, instead=instead)
        return told

    with pytest.raises(RuntimeError, match="that is enough"):
        watched_until(4)
    done, total = zip(*watched_until(None), strict=True)
    assert done[-1] == total[-1] > 0
    assert list(done) == sorted(done)


@pytest.mark.parametrize("how", [STAR, RING], ids=["star", "ring"])
def test_neither_secrets_nor_digests_stay_when_the_alignment_is_done_and_it_can_be_done_again(how, tmp_path):
    first = ending(align(how, tmp_path))
    left = {path.name for path in (tmp_path / "run").rglob("*")}
    assert "transcript" in left
    assert not [name for name in left if "align-" in name or "checkpoints" in name or "said" in name]
    assert ending(align(how, tmp_path)) == first


def test_buckets_leave_nothing_on_disk_when_the_alignment_is_done(tmp_path):
    killed = tmp_path / "run" / "shop" / "checkpoints" / "buckets" / "key-7"
    killed.mkdir(parents=True)
    (killed / "00000").write_bytes(bytes(24))
    align(STAR, tmp_path)
    assert list((tmp_path / "run").rglob("buckets")) == []
