"""An alignment finds exactly the common ids, in one order at all parties, and shows nothing else."""

import itertools
import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import colonnade
from colonnade import Roles, Table, simulate
from colonnade.align import Align, Aligned, Alignment, Limits, Settings
from colonnade.align import messages as kinds
from colonnade.align import ring as ring_module
from colonnade.align import settings as settings_module
from colonnade.align import star as star_module
from colonnade.align.identifiers import as_text
from colonnade.align.messages import AlignTerms, MaskedIds, OrderDigest
from colonnade.align.rr22 import INTERPRETER_VARIABLE
from colonnade.align.star import expanded
from colonnade.catalogue import MODELS
from colonnade.crypto.curve import multiply
from colonnade.data import load
from colonnade.errors import ColonnadeError, DataError, PlanError, PrivacyError, ProtocolError, StorageError
from colonnade.secret import Secret
from colonnade.wire.channel import Channel
from colonnade.wire.message import Message

SOURCE = str(Path(colonnade.__path__[0]))
ANY_SIZE = Limits(fewest=0)
NAMES = ("bank", "shop", "telco", "gym")
PAIR = Roles(label="bank", features=("shop",))
THREE = Roles(label="bank", features=("shop", "telco"))
TOPOLOGIES = pytest.mark.parametrize("topology", ["star", "ring"])

installed = pytest.mark.skipif(INTERPRETER_VARIABLE not in os.environ, reason="spu is not installed; `make psi-fast`")
few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def table(ids, **columns):
    values = pa.array(list(ids), None if len(ids) else pa.large_string())
    return Table.of({"id": values, "place": np.arange(len(ids), dtype=float), **columns})


def tables(*lists):
    return {name: table(ids) for name, ids in zip(NAMES, lists, strict=False)}


def aligned(held, *, limits=ANY_SIZE, columns=None, seed=0, instead=None, **how):
    roles = Roles(label="bank", features=tuple(held)[1:])
    protocol = Align(Settings(**how), columns=columns or {}, limits=limits)
    return simulate(protocol, held, roles=roles, seed=seed, keep="all", instead=instead or {})


def noting_openings(told, *names):
    """A leader that notes what it opens with, which no recording keeps."""

    def note(value):
        told.append(value)
        return value

    return {"bank": sending(kinds.AlignOpening, **dict.fromkeys(names, note))}


def ids_of(run, name):
    """The ids that an alignment gives a party, in their order; empty where nothing is common."""
    rows = run.results[name].rows
    return [None if row < 0 else run.simulation.tables[name].ids[int(row)].as_py() for row in rows]


def frames(run, name):
    return b"".join(
        bytes(value)
        if isinstance(value, bytes)
        else value.tobytes()
        if isinstance(value, np.ndarray)
        else repr(value).encode()
        for kind in {entry.kind for entry in run.transcripts[name].entries}
        for recorded in run.transcripts[name].messages(Message.kinds[kind])
        for value in vars(recorded.message).values()
    )


def sending(kind, **change):
    """A party that keeps to the protocol but for one kind of message, in which it changes something."""

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

    return play


# The oracle: set intersection.

# Texts of which many are alike only once they are read: any at all, and some of a few letters in several forms.
words = st.lists(st.text(max_size=6) | st.text("aAäÄ\u0308ßsS \u00a0\u200b1\u0661-\u2013", max_size=3), max_size=30)


@few
@given(words, words, st.sampled_from(["star", "ring"]), st.sampled_from([1, 7, 1000]), st.booleans())
@example([], [], "star", 1000, False)
@example(["a"], ["a"], "ring", 1, True)
@example(["a"], ["b"], "star", 7, False)
@example(["Ä", "日本", "🙂"], ["🙂", "a\u0308", "x"], "star", 1, False)
@example(["\u200b", " ", "STRASSE"], ["", "straße", "strasse"], "ring", 1, False)
def test_the_result_is_the_intersection_of_the_sets(here, there, topology, per_bucket, pad):
    run = aligned(tables(here, there), topology=topology, ids_per_bucket=per_bucket, pad=pad, duplicates="first")
    common = ({as_text(each) for each in here} & {as_text(each) for each in there}) - {""}
    found = {name: [as_text(each) for each in ids_of(run, name)] for name in run.results}
    assert set(found["bank"]) == common
    assert found["bank"] == found["shop"]
    assert {result.size for result in run.results.values()} == {len(common)}


@TOPOLOGIES
@pytest.mark.parametrize("n_parties", [3, 4])
def test_the_result_is_the_intersection_of_all_sets(topology, n_parties):
    random = np.random.default_rng(n_parties)
    lists = [random.choice(90, 60, replace=False).tolist() for _ in range(n_parties)]
    run = aligned(tables(*lists), topology=topology, ids_per_bucket=20)
    assert set(ids_of(run, "bank")) == set.intersection(*map(set, lists))
    assert len({tuple(ids_of(run, name)) for name in NAMES[:n_parties]}) == 1
    assert len({result.digest for result in run.results.values()}) == 1


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (range(500), range(1)),
        (range(1), range(1)),
        (range(300), range(300)),
        (range(300), range(300, 600)),
        (range(2000), range(1990, 2010)),
    ],
    ids=["one id", "one common id", "identical", "disjoint", "skewed"],
)
def test_sets_of_very_different_shapes_are_aligned(here, there):
    run = aligned(tables(list(here), list(there)), ids_per_bucket=150)
    assert set(ids_of(run, "shop")) == set(here) & set(there)


def test_an_empty_intersection_is_a_result_that_explains_itself():
    run = aligned(tables(["a", "b"], ["c", "d"]))
    assert run.results["bank"].size == 0
    assert "No id is held by all parties: check the columns and rules" in run.results["shop"].summary()
    with pytest.raises(DataError, match=r"has no row in common with all others.*by the right rules"):
        run.results["bank"].take(run.simulation.tables["bank"])


@TOPOLOGIES
def test_the_order_does_not_depend_on_the_order_of_a_file(topology):
    ids, random = [f"c{i}" for i in range(60)], np.random.default_rng(0)
    orders = {
        tuple(ids_of(aligned(tables(*(random.permutation(ids).tolist() for _ in range(2))), topology=topology), "shop"))
        for _ in range(3)
    }
    assert len(orders) == 1
    assert orders != {tuple(ids)}


def test_of_rows_with_one_id_the_order_is_that_of_their_file_and_of_nobody_elses():
    bank = table(["p", "q", "p"])
    for places in ([0.0, 1.0, 2.0], [2.0, 1.0, 0.0]):
        shop = Table.of({"id": ["p", "q", "p"], "place": places})
        run = aligned({"bank": bank, "shop": shop}, duplicates="all")
        rows = {
            name: run.results[name].take(held).column("place").tolist() for name, held in run.simulation.tables.items()
        }
        of_p = [pair for pair in zip(rows["bank"], rows["shop"], strict=True) if pair != (1.0, 1.0)]
        first, last = places[0], places[2]
        assert of_p == [(0.0, first), (0.0, last), (2.0, first), (2.0, last)]


def test_the_same_seed_gives_the_same_order_and_another_one_another():
    held = tables(range(60), range(20, 80))
    one, again, other = (aligned(held, seed=seed) for seed in (0, 0, 1))
    assert ids_of(one, "bank") == ids_of(again, "bank") != ids_of(other, "bank")
    assert one.results["bank"].schedule == again.results["shop"].schedule != other.results["bank"].schedule


# What is revealed to whom.


@TOPOLOGIES
def test_to_reveal_to_one_tells_the_others_nothing_but_sizes(topology):
    run = aligned(tables(range(50), range(30, 90), range(40, 100)), topology=topology, reveal="one")
    assert set(ids_of(run, "bank")) == set(range(40, 50))
    assert [(run.results[name].rows, run.results[name].size) for name in ("shop", "telco")] == [(None, None)] * 2
    kinds_seen = {entry.kind for entry in run.transcripts["shop"].entries}
    assert not kinds_seen & {"align/chosen", "align/agreed"}
    with pytest.raises(DataError, match=r'did not tell it which they are. Align with reveal = "both"'):
        run.results["shop"].take(run.simulation.tables["shop"])


@pytest.mark.parametrize(("topology", "n_parties"), [("star", 2), ("ring", 2), ("ring", 3)])
def test_to_reveal_the_size_tells_nobody_which(topology, n_parties):
    lists = [range(50), range(30, 90), range(40, 100)][:n_parties]
    run = aligned(tables(*lists), topology=topology, reveal="size")
    wanted = len(set.intersection(*map(set, lists)))
    assert {(result.rows, result.size) for result in run.results.values()} == {(None, wanted)}


def test_the_size_alone_needs_a_ring_for_more_than_two():
    with pytest.raises(PlanError, match=r"bank can count what it has in common with each.*topology = 'ring'"):
        aligned(tables([1], [1], [1]), reveal="size")


@TOPOLOGIES
def test_the_values_that_count_come_back_in_an_order_of_their_own(topology):
    run = aligned(tables(range(200), range(200)), reveal="size", topology=topology)
    returned = [m.message.values for m in run.transcripts["bank"].messages(kinds.TwiceMaskedIds, sent=False)]
    whole = [value.tobytes() for value in np.concatenate(returned)]
    assert whole == sorted(whole)


def test_a_follower_is_told_of_common_rows_only_and_not_of_those_it_shares_with_the_leader():
    run = aligned(tables(range(0, 60), range(20, 80), range(50, 110)))
    told = np.concatenate([m.message.theirs for m in run.transcripts["shop"].messages(kinds.ChosenRows)])
    assert len(told) == 10
    assert len(run.results["shop"].rows) == 10


@TOPOLOGIES
def test_the_ledger_says_what_each_side_learned(topology):
    run = aligned(tables(range(50), range(30, 90), range(40, 100)), topology=topology)
    notes = {name: [event.note for event in run.ledgers[name].events] for name in run.ledgers}
    assert "alignment: bank learns that shop has 60 ids" in notes["shop"]
    assert all(event.protects is Secret.IDS for event in run.ledgers["shop"].events)
    if topology == "star":
        assert notes["shop"] == [
            "alignment: bank learns that shop has 60 ids",
            "alignment: telco learns into how many buckets of 131,072 ids the longest list is cut",
            "alignment: bank learns which of its own ids shop has",
            "alignment: telco learns which of its own ids all parties have",
        ]
        assert "alignment: telco learns which of its own ids all parties have" in notes["bank"]
        assert "bank learned besides which of its ids each other party has." in run.results["bank"].learned
    else:
        assert notes["shop"] == [
            "alignment: bank learns that shop has 60 ids",
            "alignment: telco learns that shop has 60 ids",
            "alignment: bank learns which of its own ids all parties have",
            "alignment: bank learns how many ids each group of parties has in common",
            "alignment: telco learns which of its own ids all parties have",
        ]
        said = "bank learned besides how many ids each group of parties has in common, but not which."
        assert said in run.results["telco"].learned
    assert "(bank 50," in run.results["bank"].learned[0]


@pytest.mark.parametrize(
    ("how", "of_bank", "of_shop"),
    [
        ({"reveal": "one"}, [], ["bank learns which of its own ids shop has"]),
        ({"reveal": "size"}, ["shop learns how many ids are common"], ["bank learns how many ids are common"]),
        (
            {"join": "left", "duplicates": "all"},
            [
                "shop learns which of its own ids bank has",
                "shop learns how many rows bank keeps",
                "shop learns how many rows bank has for each id that bank keeps",
            ],
            [
                "bank learns which of its own ids shop has",
                "bank learns how many rows shop has for each id that bank keeps",
            ],
        ),
    ],
    ids=["one", "size", "left, all"],
)
def test_the_ledger_knows_what_a_setting_shows_besides(how, of_bank, of_shop):
    run = aligned(tables(range(9), range(5)), **how)
    for name, expected in (("bank", of_bank), ("shop", of_shop)):
        notes = [event.note.removeprefix("alignment: ") for event in run.ledgers[name].events]
        assert notes[1:] == expected


ALL_HAVE = "which of its own ids all parties have"


def notes_of(run, name):
    return {event.note.removeprefix("alignment: ") for event in run.ledgers[name].events}


def test_a_left_join_shows_each_feature_party_what_it_shares_with_the_label_party_alone():
    run = aligned(tables(range(9), range(5), range(4, 12)), join="left")
    # Of three parties only id 4 is common, but telco is told of five.
    told = np.concatenate([m.message.theirs for m in run.transcripts["telco"].messages(kinds.ChosenRows)])
    assert (told >= 0).sum() == 5
    assert "telco learns which of its own ids bank has" in notes_of(run, "bank")
    assert not any("all parties have" in note for note in notes_of(run, "bank"))
    assert "Every other party learned which of its own ids bank has." in run.results["telco"].learned


def test_combining_repeated_rows_in_a_left_join_shows_the_numbers_of_every_row_that_is_kept():
    run = aligned(tables("abc", "aad", "ccc"), join="left", duplicates="all")
    counts = np.concatenate([m.message.counts for m in run.transcripts["telco"].messages(kinds.Copies, sent=False)])
    assert sorted(counts[:, 1]) == [1, 1, 2]
    assert "telco learns how many rows shop has for each id that bank keeps" in notes_of(run, "shop")
    said = "Every party learned how many rows each other party has for each id that bank keeps."
    assert said in run.results["shop"].learned


def test_several_keys_in_a_star_show_each_feature_party_also_what_all_have():
    held = {
        name: table(ids, mail=[f"{i}@x" for i in ids]) for name, ids in zip(NAMES, ([1, 2], [2, 3], [2]), strict=False)
    }
    columns = dict.fromkeys(held, ("mail", "id"))
    run = aligned(held, keys=("email", "integer"), columns=columns)
    of_shop = {"shop learns which of its own ids bank has, and by which key", f"shop learns {ALL_HAVE}"}
    assert of_shop < notes_of(run, "bank")
    assert f"shop learns {ALL_HAVE}" in notes_of(run, "telco")
    said = run.results["shop"].learned
    assert "Every other party learned which of its own ids bank has, and by which key." in said
    assert "Every party learned which of its own ids are common to all (1 rows)." in said


def test_the_number_of_buckets_shows_a_feature_party_how_long_the_list_of_another_one_is():
    told = []
    run = aligned(tables(range(5), range(4), range(300)), ids_per_bucket=100, instead=noting_openings(told, "buckets"))
    assert told == [3, 3], "shop and telco are told"
    assert "shop learns into how many buckets of 100 ids the longest list is cut" in notes_of(run, "telco")
    said = "Every other party learned into how many buckets of 100 ids the longest list is cut."
    assert said in run.results["bank"].learned


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"buckets": 2**60}, r"buckets from 1 to 16384 from bank, got one with buckets 1\.15292e\+18"),
        ({"buckets": 0}, "buckets from 1 to 16384 from bank, got one with buckets 0"),
        ({"keys": 2**60}, "for keys 1 from bank, got one for keys"),
    ],
)
def test_an_arbiter_refuses_an_opening_of_rounds_without_end(change, words):
    def only_opens(party, honest):
        party.peers["judge"].send(replace(kinds.AlignOpening(b"", b"", 1, 1, [], []), **change))

    roles = Roles(label="bank", features=("shop",), arbiter="judge")
    instead = {"bank": only_opens, "shop": lambda party, honest: None}
    with pytest.raises(ProtocolError, match=f"^Expected align/opening (with )?{words}"):
        simulate(Align(limits=ANY_SIZE), tables([1], [1]), roles=roles, instead=instead)


@pytest.mark.parametrize(
    ("how", "size"),
    [({}, "rows are aligned"), ({"reveal": "size"}, "ids are common"), ({"reveal": "one"}, None)],
    ids=["both", "size", "one"],
)
def test_what_an_arbiter_is_told_is_in_everybodys_ledger(how, size):
    roles = Roles(label="bank", features=("shop",), arbiter="judge")
    run = simulate(Align(Settings(**how, ids_per_bucket=100), limits=ANY_SIZE), tables("abcd", "bcde"), roles=roles)
    cut = "into how many buckets of 100 ids the longest list is cut"
    if how.get("reveal") == "size":
        cut = "into how many buckets lists are cut, hence about how long the longest or the shortest is"
    told = [cut] if size is None else [cut, f"how many {size}"]
    for name in ("bank", "shop"):
        notes = [note for note in notes_of(run, name) if note.startswith("judge ")]
        assert sorted(notes) == sorted(f"judge learns {each}" for each in told)
    sentence = f"judge learned {', and '.join(reversed(told))}."
    assert run.results["judge"].learned == (sentence,)
    assert sentence in run.results["shop"].learned


def test_a_ring_that_tells_the_leader_alone_shows_the_last_party_how_many_are_common():
    run = aligned(tables(range(50), range(30, 90), range(40, 100)), topology="ring", reveal="one", ids_per_bucket=30)
    seen = {name: [len(m.message.values) for m in run.transcripts[name].messages(kinds.Common)] for name in run.results}
    assert (sum(seen["telco"]), seen["shop"]) == (10, [])
    assert len(seen["telco"]) > 1
    note = "telco learns how many ids are common in each bucket"
    assert [note in notes_of(run, name) for name in ("bank", "shop", "telco")] == [True, True, False]
    assert "telco learned how many ids are common in each bucket." in run.results["bank"].learned


def test_a_ring_by_several_keys_shows_by_which_key():
    held = {name: table(range(3), mail=["a@x", "b@x", None]) for name in NAMES[:3]}
    columns = dict.fromkeys(held, ("mail", "id"))
    run = aligned(held, topology="ring", keys=("email", "integer"), columns=columns)
    assert "telco learns which of its own ids all parties have, and by which key" in notes_of(run, "bank")
    assert "(3 rows), and by which key." in " ".join(run.results["telco"].learned)


def test_what_is_learned_is_in_the_ledger_before_anything_is_compared():
    seen = []

    def spy(party, honest):
        send = party.peers["bank"].send

        def noting(message, **named):
            if isinstance(message, MaskedIds):
                seen.append([event.note for event in party.ledger.events])
            send(message, **named)

        party.peers["bank"].send = noting
        return honest(party)

    simulate(Align(limits=ANY_SIZE), tables([1, 2], [1, 2]), roles=PAIR, instead={"shop": spy})
    assert "alignment: bank learns which of its own ids shop has" in seen[0]


def test_whoever_watches_is_told_of_all_points_to_the_last():
    told = []

    def watched(party, honest):
        watcher = lambda name, loop, done, total, figures: told.append((loop, done, total))  # noqa: E731
        return honest(replace(party, watcher=watcher))

    simulate(Align(limits=ANY_SIZE), tables(range(50), range(80)), roles=PAIR, instead={"shop": watched})
    assert told[-1] == ("align", 130, 130)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_padding_shows_a_power_of_two_in_place_of_a_size():
    run = aligned(tables(range(50), range(90)), pad=True)
    shown = [m.message.ids for m in run.transcripts["bank"].messages(AlignTerms)]
    assert shown == [[128]]
    assert "bank learns that shop has 128 ids, rounded up to a power of two" in notes_of(run, "shop")
    assert sum(len(m.message.points) for m in run.transcripts["shop"].messages(MaskedIds, sent=True)) == 128
    assert set(ids_of(run, "shop")) == set(range(50))


# What crosses.


@pytest.mark.parametrize(
    "how",
    [
        {"ids_per_bucket": 10},
        {},
        {"topology": "ring", "ids_per_bucket": 10},
        {"topology": "ring"},
        {"topology": "ring", "reveal": "one"},
        {"topology": "ring", "reveal": "size"},
        {"reveal": "one"},
        {"join": "left"},
        {"join": "left", "duplicates": "all"},
        {"keys": ("text", "text")},
        pytest.param({"engine": "rr22"}, marks=[installed, pytest.mark.slow, pytest.mark.network]),
    ],
    ids=str,
)
def test_no_transcript_holds_an_id_or_a_hash_of_one_or_anything_of_an_id_twice(how):
    from hashlib import blake2b, sha256

    from blake3 import blake3

    from colonnade.align.identifiers import Identifiers
    from colonnade.crypto.curve import hash_to_curve

    ids = [f"customer-{i}" for i in range(40)]
    # Of those whom nobody else knows, too: where all of a list is found, its places are the same every time.
    held = tables(ids, *([*known, *(f"{known[-1]}-{i}" for i in range(10))] for known in (ids[5:], ids[:30])))
    columns = dict.fromkeys(held, ("id", "id")) if "keys" in how else None
    opened = []
    runs = [aligned(held, columns=columns, instead=noting_openings(opened, "salt", "veil"), **how) for _ in range(2)]
    salt = opened[0]
    for name in ("bank", "shop", "telco"):
        first, second = (frames(run, name) + b"".join(opened) for run in runs)
        digests = np.concatenate(
            [part for part, _ in Identifiers.of(held["bank"], None, None).digests(held["bank"], 0, salt)]
        )
        for number, (each, digest, point) in enumerate(zip(ids, digests, hash_to_curve(digests), strict=True)):
            text = each.encode()
            plain = (text, sha256(text).digest(), blake2b(text).digest(), blake3(text).digest())
            for secret in (*plain, sha256(text).hexdigest().encode(), digest.tobytes(), point.tobytes()):
                assert secret[:16] not in first, f"something of id {number} is in the transcript of {name}"
        seen = [_values(run.transcripts[name]) for run in runs]
        assert len(seen[0]) > (100 if "engine" not in how else 3)
        assert not seen[0] & seen[1]
        assert first != second


def test_the_key_of_digests_is_new_in_every_run():
    """Were it not, an id would lie in the same bucket in every run, whose sizes would tell who came and went."""
    ids, opened = [f"customer-{i}" for i in range(20)], []
    for seed in range(2):
        aligned(tables(ids, ids), seed=seed, instead=noting_openings(opened, "salt"))
    assert len(set(opened)) == len(opened) == 2


def _values(transcript):
    """Everything of 16 bytes or more that depends on ids."""
    found = set()
    for kind, name in ((kinds.MaskedIds, "points"), (kinds.TwiceMaskedIds, "values"), (kinds.Common, "values")):
        for recorded in transcript.messages(kind):
            found |= {value.tobytes()[:16] for value in getattr(recorded.message, name)}
    for kind, name in ((kinds.ChosenRows, "theirs"), (kinds.Places, "places")):
        found |= {b"".join(getattr(each.message, name).tobytes() for each in transcript.messages(kind))} - {b""}
    found |= {recorded.message.point for recorded in transcript.messages(kinds.OrderPoint)}
    found |= {recorded.message.digest for recorded in transcript.messages(OrderDigest)}
    found |= {digest for recorded in transcript.messages(kinds.Agreed) for digest in recorded.message.digests}
    return found


def test_how_many_rows_there_are_for_each_id_comes_in_an_order_that_is_another_one_in_each_run():
    held = tables(*(np.repeat(np.arange(40), np.arange(40) % 5 + 1).tolist() for _ in range(2)))
    first, second = (
        [
            m.message.counts.tolist()
            for m in aligned(held, duplicates="all", seed=seed).transcripts["shop"].messages(kinds.Copies)
        ]
        for seed in (0, 1)
    )
    assert [sorted(counts) for counts in first] == [sorted(counts) for counts in second]
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_a_list_goes_out_in_another_order_each_time():
    def sent_rows(run):
        return [m.message.theirs.tolist() for m in run.transcripts["shop"].messages(kinds.ChosenRows)]

    held = tables(range(60), range(60))
    assert sent_rows(aligned(held)) != sent_rows(aligned(held))


@pytest.mark.parametrize(
    ("module", "runs"),
    [
        (star_module, [{"join": "left", "duplicates": "all"}, {"reveal": "size"}, {"keys": ("text", "text")}]),
        (ring_module, [{"topology": "ring"}, {"topology": "ring", "reveal": "size"}]),
    ],
    ids=["star", "ring"],
)
def test_the_drawing_shows_the_messages_that_cross(module, runs):
    drawing = [line for line in module.__doc__.splitlines() if any(arrow in line for arrow in "▶◀⇄")]
    drawn = {kind.__name__ for kind in Message.kinds.values() for line in drawing if f" {kind.__name__} " in f"{line} "}
    crossed = set()
    for how in runs:
        columns = {name: ("id", "id") for name in NAMES} if "keys" in how else None
        run = aligned(tables(["a", "b"], ["b", "c"]), columns=columns, **how)
        crossed |= {Message.kinds[entry.kind].__name__ for entry in run.transcripts["bank"].entries}
    assert drawn == crossed


# Identifiers as they are.


def test_ids_that_are_written_differently_are_matched():
    run = aligned(tables([" Ann ", "BOB", "Zoë"], ["zoe\u0308", "ann", "carl"]))
    assert sorted(ids_of(run, "bank")) == [" Ann ", "Zoë"]
    assert dict(zip(ids_of(run, "bank"), ids_of(run, "shop"), strict=True)) == {" Ann ": "ann", "Zoë": "zoe\u0308"}


def test_whole_numbers_and_text_match_only_if_both_say_so():
    held = tables([7, 8], ["008", "9"])
    run = aligned(held, keys=("integer",))
    assert (ids_of(run, "bank"), ids_of(run, "shop")) == ([8], ["008"])
    with pytest.raises(
        PlanError, match=r"bank and shop should read ids by the same rules, but bank reads integer and shop"
    ):
        aligned(held)


def test_rows_without_an_id_are_left_out_and_counted():
    run = aligned(tables(["a", None, "", "b"], ["b", "a", None]))
    assert sorted(ids_of(run, "bank")) == ["a", "b"]
    assert [run.results[name].missing for name in ("bank", "shop")] == [2, 1]
    assert "Here 2 rows have no id, and 0 that of an earlier row." in run.results["bank"].summary()


def test_repeated_ids_are_refused_with_a_count_unless_the_plan_says_what_to_do():
    with pytest.raises(DataError, match=r"shop should have one row for each id, but 2 of 4 rows repeat an id.*in 'id'"):
        aligned(tables(["a", "b"], ["a", "A", "a ", "b"]))


def test_of_repeated_ids_the_first_is_used():
    run = aligned(tables(["a", "b"], ["b", "a", "a", "c"]), duplicates="first", ids_per_bucket=1)
    assert sorted(run.results["shop"].rows) == [0, 1]
    assert run.results["shop"].repeated == 1


small_words = st.lists(st.sampled_from("abcdef"), max_size=8)


@few
@given(small_words, small_words, small_words, st.sampled_from(["inner", "left"]), st.sampled_from([2, 100]))
def test_all_repeated_rows_are_combined_as_a_join_would(one, other, third, join, per_bucket):
    lists = {"bank": one, "shop": other, "telco": third}
    run = aligned(tables(one, other, third), duplicates="all", join=join, ids_per_bucket=per_bucket)
    got = sorted(zip(*(run.results[name].rows.tolist() for name in lists), strict=True))
    places = {
        name: {word: [i for i, each in enumerate(ids) if each == word] for word in set(ids)}
        for name, ids in lists.items()
    }
    wanted = []
    for word in places["bank"]:
        options = [places[name].get(word, [-1] if join == "left" else []) for name in lists]
        wanted += itertools.product(*options)
    assert got == sorted(wanted)


def test_keys_are_tried_in_their_order_and_a_matched_row_is_not_matched_again():
    bank = table(range(4), mail=["a@x", "b@x", None, "d@x"], tel=["1234567", "2234567", "3234567", "4234567"])
    shop = table(range(4), mail=["A@X", None, "q@x", "z@x"], tel=["2234567", "1234567", "3234567", "9934567"])
    columns = {"bank": ("mail", "tel"), "shop": ("mail", "tel")}
    for topology in ("star", "ring"):
        run = aligned({"bank": bank, "shop": shop}, keys=("email", "phone:1"), columns=columns, topology=topology)
        pairs = sorted(zip(run.results["bank"].rows.tolist(), run.results["shop"].rows.tolist(), strict=True))
        # Row 0 of both is taken by its address, so nobody is left for the number 1234567 or 2234567 of the other side.
        assert pairs == [(0, 0), (2, 2)]
        kept = run.results["bank"].take(bank)
        assert kept.columns == ("place",)


def test_people_may_be_matched_with_different_parties_by_different_keys():
    bank = table(range(3), mail=["a@x", "b@x", None], name=["ann", "bob", "cyd"])
    shop = table(range(2), mail=["a@x", "b@x"], name=["?", "!"])
    telco = table(range(3), mail=[None, "b@x", None], name=["ann", "zed", "cyd"])
    names = ("bank", "shop", "telco")
    columns = dict.fromkeys(names, ("mail", "name"))
    run = aligned(
        dict(zip(names, (bank, shop, telco), strict=True)), keys=("email", "text"), columns=columns, ids_per_bucket=2
    )
    got = sorted(zip(*(run.results[name].rows.tolist() for name in names), strict=True))
    assert got == [(0, 0, 0), (1, 1, 1)]


def test_composite_keys_are_matched():
    bank = table(range(3), surname=["Lee", "Lee", "Ng"], born=[1970, 1980, 1990])
    shop = table(range(3), family=["LEE", "ng", "lee"], year=["1980", "1990", "1999"])
    run = aligned(
        {"bank": bank, "shop": shop},
        keys=("text+integer",),
        columns={"bank": ("surname+born",), "shop": ("family+year",)},
    )
    assert sorted(zip(run.results["bank"].rows.tolist(), run.results["shop"].rows.tolist(), strict=True)) == [
        (1, 0),
        (2, 1),
    ]


def test_febrl_records_with_their_dirty_keys_are_aligned_as_far_as_a_key_is_clean(data_folder):
    arrow = pq.read_table(data_folder / "febrl_1.parquet")
    flags = np.asarray(arrow.column("is_duplicate"))
    sides = {"bank": arrow.filter(pa.array(~flags)), "shop": arrow.filter(pa.array(flags))}
    held = {name: Table.of(side, ids="rec_id") for name, side in sides.items()}
    keys = ("text", "text+text+text")
    columns = dict.fromkeys(held, ("soc_sec_id", "given_name+surname+date_of_birth"))
    run = aligned(held, keys=keys, columns=columns, limits=Limits(), ids_per_bucket=100, duplicates="first")
    rows = {name: run.results[name].rows for name in held}
    entity = {name: np.asarray(sides[name].column("entity"))[rows[name]] for name in held}
    assert len(entity["bank"]) == _joined_in_the_clear(sides, keys, columns)
    assert (entity["bank"] == entity["shop"]).mean() > 0.99
    assert len(entity["bank"]) > 400
    left_out = run.results["shop"].take(held["shop"])
    assert "soc_sec_id" not in left_out.columns


def _joined_in_the_clear(sides, keys, columns):
    """How many pairs the same keys find in one table, tried in the same order."""
    left = {name: dict.fromkeys(range(side.num_rows)) for name, side in sides.items()}
    n = 0
    for key in range(len(keys)):
        index = {}
        for name, side in sides.items():
            names = columns[name][key].split("+")
            values = list(zip(*(side.column(each).to_pylist() for each in names), strict=True))
            read = {}
            for row in left[name]:
                parts = tuple(None if value is None else as_text(value) for value in values[row])
                if all(parts):
                    read.setdefault(parts, row)
            index[name] = read
        for parts in index["bank"].keys() & index["shop"].keys():
            n += 1
            for name in sides:
                del left[name][index[name][parts]]
    return n


def test_a_party_of_whose_rows_none_has_an_id_is_told_which_rule_and_column_that_was():
    held = {"bank": table(range(200), mail=[f"{i}@x" for i in range(200)]), "shop": table([f"{i}" for i in range(200)])}
    with pytest.raises(
        DataError,
        match=r"shop should have ids by the rule 'email' in 'id', but none of its 200 rows has one. Name the right "
        r"columns for shop under \[align.columns\], or another rule under \[align\] keys.",
    ):
        aligned(held, keys=("email",), columns={"bank": ("mail",)}, limits=Limits())


def test_errors_about_identifiers_name_the_party():
    with pytest.raises(DataError, match=r"^shop should be matched by its column 'mail', but has none of that name"):
        aligned(tables(["a"], ["a"]), keys=("text",), columns={"shop": ("mail",)})


# Rows without a partner.


def test_a_left_join_keeps_all_rows_of_the_label_party_and_marks_who_is_absent():
    bank, shop, telco = (table(ids) for ids in (["a", "b", None, "c", "d"], ["b", "x", "a"], ["c", "b"]))
    run = aligned({"bank": bank, "shop": shop, "telco": telco}, join="left")
    result, taken = run.results, {name: run.results[name].take(held) for name, held in run.simulation.tables.items()}
    ids = taken["bank"].ids.to_pylist()
    assert sorted(map(str, ids)) == ["None", "a", "b", "c", "d"]
    assert result["bank"].present is None
    for name, held in (("shop", {"a", "b"}), ("telco", {"b", "c"})):
        expected = [each in held for each in ids]
        assert result[name].present.tolist() == result["bank"].partners[name].tolist() == expected
        assert taken[name].present.tolist() == taken["bank"].partners[name].tolist() == expected
        assert taken[name].ids.to_pylist() == [each if each in held else None for each in ids]
        assert np.isnan(taken[name].column("place")).tolist() == [each not in held for each in ids]


@pytest.mark.parametrize("per_bucket", [1, 1000])
def test_a_left_join_by_several_keys_leaves_out_rows_that_repeat_an_id_and_keeps_those_without_one(per_bucket):
    bank = table(range(5), mail=["a@x", "a@x", None, "b@x", "b@x"], tel=["1234567", None, None, "2234567", "3234567"])
    shop = table(range(3), mail=["b@x", None, None], tel=["9934567", "1234567", "3234567"])
    columns = dict.fromkeys(("bank", "shop"), ("mail", "tel"))
    how = {"keys": ("email", "phone:1"), "join": "left", "duplicates": "first", "ids_per_bucket": per_bucket}
    run = aligned({"bank": bank, "shop": shop}, columns=columns, **how)
    pairs = sorted(zip(run.results["bank"].rows.tolist(), run.results["shop"].rows.tolist(), strict=True))
    # Row 1 repeats the address of row 0 and has no number; row 4 repeats an address too, but is found by its number.
    assert pairs == [(0, 1), (2, -1), (3, 0), (4, 2)]


def test_a_model_sees_who_is_present_on_its_party():
    def look(party):
        return party.present, dict(party.partners), len(party.own_table), party.shared

    run = simulate(Aligned(Align(Settings(join="left"), limits=ANY_SIZE), look), tables(["a", "b"], ["b"]), roles=PAIR)
    (none, partners, n, one), (present, nobody, m, other) = (run.results[name] for name in ("bank", "shop"))
    assert (none, nobody, n, m, one == other) == (None, {}, 2, 2, True)
    assert partners["shop"].tolist() == present.tolist()
    assert sum(present) == 1


# Who does not fit is refused.


def test_a_party_of_another_run_is_refused():
    def other_run(party, honest):
        return honest(replace(party, plan=replace(party.plan, seed=99)))

    with pytest.raises(ProtocolError, match=r"bank and shop should take part in the same run"):
        simulate(Align(limits=ANY_SIZE), tables([1], [1]), roles=PAIR, instead={"shop": other_run})


def test_a_party_with_another_normalisation_is_refused():
    def other_rules(party, honest):
        return Align(Settings(keys=("email",)), limits=ANY_SIZE)(party)

    with pytest.raises(PlanError, match=r"bank reads text and shop reads email. Name the same keys under \[align\]"):
        simulate(Align(limits=ANY_SIZE), tables(["a"], ["a"]), roles=PAIR, instead={"shop": other_rules})


@TOPOLOGIES
def test_a_tampered_order_digest_is_refused_before_anything_uses_the_rows(topology):
    used = []

    protocol = Aligned(Align(Settings(topology=topology), limits=ANY_SIZE), lambda party: used.append(party.name))
    with pytest.raises(
        ProtocolError, match=r"the digest that shop sent is another one. Nothing was done with these rows"
    ):
        simulate(protocol, tables([1, 2], [1, 2]), roles=PAIR, instead={"shop": sending(OrderDigest, digest=bytes(32))})
    assert used == []


@pytest.mark.parametrize(
    ("how", "who", "kind", "field"),
    [
        ({}, "bank", kinds.ChosenRows, "theirs"),
        ({"join": "left"}, "bank", kinds.ChosenRows, "theirs"),
        ({"duplicates": "all"}, "bank", kinds.ChosenRows, "theirs"),
        ({"topology": "ring"}, "bank", kinds.ChosenRows, "theirs"),
        ({"topology": "ring"}, "bank", kinds.Places, "places"),
        ({"topology": "ring"}, "shop", kinds.Places, "places"),
    ],
    ids=str,
)
def test_a_party_that_is_told_its_rows_in_another_order_than_the_others_is_found_out(how, who, kind, field):
    used, held = [], tables(range(5), range(5))
    protocol = Aligned(Align(Settings(**how), limits=ANY_SIZE), lambda party: used.append(party.name))
    with pytest.raises(ProtocolError, match=r"the digest that shop sent is another one"):
        simulate(
            protocol, held, roles=PAIR, instead={who: sending(kind, **{field: lambda places: places[::-1].copy()})}
        )
    assert used == []


def test_a_leader_that_compares_another_order_is_refused():
    instead = {"bank": sending(kinds.Agreed, digests=[bytes(32)])}
    with pytest.raises(ProtocolError, match=r"but bank says that this party's digest is another one"):
        simulate(Align(limits=ANY_SIZE), tables([1, 2], [1, 2]), roles=PAIR, instead=instead)


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (
            kinds.MaskedIds,
            {"begin": 5},
            "Expected align/masked for begin 0 from bank, got one for begin 5. Check that both",
        ),
        (
            kinds.MaskedIds,
            {"points": np.zeros((2, 31), np.uint8)},
            r"Expected bank to send align/masked of 32 bytes each from 0 of 2 on for bucket 0, got .* \(2, 31\)",
        ),
        (
            kinds.MaskedIds,
            {"points": np.zeros((2, 32), np.uint8)},
            "one is not, so the product would not depend on the key",
        ),
        (kinds.ChosenRows, {"theirs": np.array([0, 0])}, "to name places in this party's own list of 2, each once"),
        (kinds.ChosenRows, {"theirs": np.array([0, 7])}, "to name places in this party's own list of 2, each once"),
        (kinds.OrderPoint, {"point": b"short"}, "to send a point of 32 bytes for its order, got 5 bytes. Both must"),
        (kinds.ChosenRows, {"begin": 1}, "Expected align/chosen for begin 0 from bank, got one for begin 1"),
        (
            kinds.ChosenRows,
            {"total": 1},
            r"to send the order of at most 2 rows, got a part of shape \(2,\) of 1\. Both must run",
        ),
        (kinds.ChosenRows, {"total": 3}, "to send the order of at most 2 rows, got a part"),
        (
            kinds.AlignOpening,
            {"buckets": 2},
            "Expected bank to cut sets of these sizes into 1 buckets, got 2. Both must run",
        ),
        (kinds.AlignOpening, {"buckets": 0}, "Expected bank to open the alignment of bank by 1 keys"),
        (kinds.AlignOpening, {"buckets": 2**60}, "Expected bank to open the alignment of bank by 1 keys"),
        (kinds.AlignOpening, {"ids": [2**60]}, "Expected bank to open the alignment of bank by 1 keys"),
    ],
)
def test_what_a_leader_must_not_send_is_refused(kind, change, said):
    instead = {"bank": sending(kind, **change)}
    with pytest.raises(ColonnadeError, match=said):
        simulate(Align(limits=ANY_SIZE), tables([1, 2], [1, 2]), roles=PAIR, instead=instead)


@pytest.mark.parametrize(
    ("how", "who", "kind", "change", "said"),
    [
        (
            {}, "shop", kinds.MaskedIds, {"points": np.array(3, np.uint8)},
            "shop to send align/masked of 32 bytes each from 0 of 2 on",
        ),
        (
            {}, "shop", kinds.TwiceMaskedIds, {"values": np.array(3, np.uint8)},
            "shop to send align/doubled of 16 bytes each from 0 of 2 on",
        ),
        (
            {"topology": "ring"}, "bank", kinds.Common, {"values": np.array(3, np.uint8)},
            r"Expected bank to send the common values of bucket 0, got an array of shape \(\)\. Both must",
        ),
        (
            {"topology": "ring"}, "shop", kinds.Places, {"places": np.array(3)},
            r"Expected shop to name places in the list of bucket 0, got an array of shape \(\)\. Both",
        ),
        (
            {"keys": ("integer", "integer")}, "bank", kinds.Places, {"bucket": 7},
            r"Expected align/places for bucket 0 from bank, got one for bucket 7\. Check that both",
        ),
        (
            {"reveal": "one"}, "shop", kinds.TwiceMaskedIds, {"values": lambda values: values[[0, 0]]},
            "Expected shop to send a list of 2 different values, got one of them twice. Both must run the same",
        ),
        (
            {"reveal": "one"}, "shop", kinds.MaskedIds, {"points": lambda points: points[[0, 0]]},
            "Expected shop to send a list of 2 different values, got one of them twice",
        ),
        (
            {"topology": "ring"}, "bank", kinds.Common, {"values": lambda values: values[[0, 0]]},
            "Expected bank to send a list of 2 different values, got one of them twice",
        ),
        (
            {"duplicates": "all"}, "bank", kinds.Copies, {"counts": lambda counts: counts[:, ::-1] + [[0, 5]]},
            "Expected bank to say how often each id occurs here as this party told it, got other numbers. Both must",
        ),
        (
            {"duplicates": "all"}, "shop", kinds.Copies, {"counts": np.full((2, 1), 1 << 62)},
            r"combine to at most 134,217,728 rows with duplicates = 'all', but would to 9\.22e\+18: of one id the "
            r"parties have 1 and 4,611,686,018,427,387,904 rows\. That is most often an id which stands for none",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_messages_of_odd_shapes_and_repeated_values_are_refused_by_the_name_of_their_sender(
    how, who, kind, change, said
):
    columns = dict.fromkeys(NAMES, ("id", "id")) if "keys" in how else {}
    protocol = Align(Settings(**how), columns=columns, limits=ANY_SIZE)
    with pytest.raises(ColonnadeError, match=said):
        simulate(protocol, tables([1, 2], [1, 2]), roles=PAIR, instead={who: sending(kind, **change)})


def test_an_id_that_stands_for_none_is_not_combined_to_more_rows_than_fit():
    for counts in ([[50_000, 50_000]], [[1, 1 << 62]] * 4, [[1 << 40, 1]], [[(1 << 63) - 1] * 30]):
        with pytest.raises(DataError, match=r"should combine to at most 134,217,728 rows"):
            expanded(np.array(counts), own=0)


def test_what_a_peer_calls_its_keys_cannot_steer_a_terminal():
    crooked = sending(AlignTerms, rules="other", keys=["\x1b[31mred"])
    with pytest.raises(PlanError, match=r"bank reads integer and shop reads \?\[31mred\. Name the same keys"):
        simulate(Align(limits=ANY_SIZE), tables([1], [1]), roles=PAIR, instead={"shop": crooked})


@pytest.mark.parametrize("how", [{"reveal": "size"}, {"topology": "ring"}], ids=str)
def test_where_numbers_are_told_of_each_bucket_nobody_has_few_ids_in_one(how, monkeypatch):
    monkeypatch.setattr(settings_module, "FEWEST_COUNTED", 1 << 14)
    chosen = Settings(**how, ids_per_bucket=1)
    assert chosen.n_buckets([300, 300]) == chosen.n_buckets([10_000_000, 100]) == 1
    assert chosen.n_buckets([10_000_000, 1 << 16]) == 4
    assert replace(chosen, pad=True).n_buckets([10_000_000, 1 << 16]) == 2, "it may be little more than the half"
    told = []
    aligned(tables(range(300), range(150, 450)), ids_per_bucket=1, instead=noting_openings(told, "buckets"), **how)
    assert told == [1]


def test_what_is_told_of_each_bucket_is_said_of_each_bucket():
    pair = aligned(tables(range(60), range(30, 90)), reveal="size", ids_per_bucket=20)
    assert pair.results["shop"].learned[1:] == (
        "Every party learned how many ids are common, and nobody which.",
        "bank learned besides how many are in each of 3 buckets.",
    )
    assert "alignment: bank learns how many ids are common in each of 3 buckets" in notes(pair, "shop")
    assert "alignment: shop learns how many ids are common" in notes(pair, "bank")
    ring = aligned(tables(range(60), range(30, 90), range(60)), topology="ring", ids_per_bucket=20)
    group = "how many ids each group of parties has in common in each of 3 buckets"
    assert f"bank learned besides {group}, but not which." in ring.results["bank"].learned
    assert f"alignment: bank learns {group}" in notes(ring, "telco")


def notes(run, name):
    return [event.note for event in run.ledgers[name].events]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"topology": "rnig"}, r"\[align\] topology should be 'star' or 'ring', but is 'rnig'. Change it"),
        (
            {"reveal": "one", "join": "left"},
            "join = 'left' requires reveal = 'both', but reveal is 'one'. Change one of the two",
        ),
        ({"topology": "ring", "join": "left"}, "join = 'left' requires topology = 'star', but topology is 'ring'"),
        (
            {"topology": "ring", "duplicates": "all"},
            "duplicates = 'all' requires topology = 'star', but topology is 'ring'",
        ),
        ({"keys": ("text", "email"), "duplicates": "all"}, "duplicates = 'all' requires one key, but there are 2 keys"),
        (
            {"keys": ("text", "email"), "reveal": "one"},
            "more than one key requires reveal = 'both', but reveal is 'one'",
        ),
        ({"ids_per_bucket": 0}, "ids_per_bucket should be None or a whole number, at least 1, but is 0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(how, said):
    with pytest.raises(PlanError, match=said):
        Settings(**how)


@TOPOLOGIES
def test_a_multiplication_is_at_most_eleven_calls_below_the_runner(topology):
    stacks = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code is multiply.__code__:
            stacks.append([])
            # A party's stack begins with its greenlet.
            while frame is not None:
                if frame.f_code.co_filename.startswith(SOURCE):
                    stacks[-1].append(frame.f_code.co_name)
                frame = frame.f_back

    def watched(party, honest):
        sys.setprofile(note)
        try:
            return honest(party)
        finally:
            sys.setprofile(None)

    how = Align(Settings(topology=topology))
    held = tables(range(200), range(100, 300))
    simulate(how, held, roles=PAIR, instead=dict.fromkeys(held, watched))
    # The runner calls a replacement by way of one more function than the protocol itself.
    depths = [len(stack) - 1 for stack in stacks]
    assert len(depths) >= 8
    assert max(depths) <= 11, stacks[int(np.argmax(depths))]


def test_one_party_alone_has_nothing_to_align():
    with pytest.raises(PlanError, match=r"two parties with tables, but there is only bank"):
        simulate(Align(), {"bank": table([1])}, roles=Roles(label="bank", features=()))


# Limits.


def test_a_tiny_set_is_refused_unless_the_plan_allows_it():
    with pytest.raises(
        PrivacyError, match=r"at least 100 ids under each key, but bank itself brings 3: .*lower fewest"
    ):
        aligned(tables([1, 2, 3], range(200)), limits=Limits())
    generous = Align(limits=Limits(fewest=1))
    instead = {"shop": lambda party, honest: generous(party)}
    with pytest.raises(PrivacyError, match=r"at least 100 ids under each key, but shop brings 3: that would be a"):
        simulate(Align(), tables(range(200), [1, 2, 3]), roles=PAIR, instead=instead)


@TOPOLOGIES
@pytest.mark.parametrize(
    ("how", "mails", "said"),
    [
        ({"keys": ("email", "integer")}, 1, "shop brings 1: that would be a question about single people"),
        ({"keys": ("email", "integer"), "pad": True}, 65, "shop brings between 65 and 128: that would be"),
    ],
    ids=["one id under the first key", "rounded up"],
)
def test_a_set_that_is_tiny_under_one_key_is_refused_and_the_refusal_is_logged(how, mails, said, topology, tmp_path):
    held = {
        "bank": table(range(300), mail=[f"{i}@x" for i in range(300)]),
        "shop": table(range(300), mail=[f"{i}@x" if i < mails else None for i in range(300)]),
    }
    columns, log = dict.fromkeys(held, ("mail", "id")), tmp_path / "alignments"
    settings = Settings(**how, topology=topology)
    careful, generous = (Align(settings, columns=columns, limits=each) for each in (Limits(log=log), ANY_SIZE))
    with pytest.raises(PrivacyError, match=said):
        simulate(careful, held, roles=PAIR, instead={"shop": lambda party, honest: generous(party)})
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    # No id has crossed, so nothing is counted.
    assert [(entry["peer"], entry["what"]) for entry in entries] == [("shop", "refused")]


def test_alignments_with_a_peer_are_counted_and_refusals_are_logged(tmp_path):
    limits = Limits(fewest=2, most_runs=2, log=tmp_path / "alignments")
    for run in ("one", "two", "two"):
        limits.admit("bank", "shop", run)
    limits.admit("bank", "telco", "three")
    with pytest.raises(PrivacyError, match=r"bank should align with shop at most 2 times.*raise most_runs under"):
        limits.admit("bank", "shop", "three")
    with pytest.raises(PrivacyError, match=r"shop brings 1"):
        limits.check_size("bank", "shop", 1, "three")
    entries = [json.loads(line) for line in limits.log.read_text().splitlines()]
    assert [(entry["peer"], entry["what"]) for entry in entries] == [
        ("shop", "aligned"), ("shop", "aligned"), ("telco", "aligned"), ("shop", "refused"), ("shop", "refused"),
    ]  # fmt: skip


def test_a_damaged_log_is_not_taken_for_an_empty_one(tmp_path):
    limits = Limits(log=tmp_path / "alignments")
    limits.log.write_text("{}\n")
    with pytest.raises(StorageError, match=r"should hold one alignment per line, but is damaged. Restore it"):
        limits.admit("bank", "shop", "one")


def test_predictions_and_lookups_are_counted_apart_from_trainings_and_within_some_days(tmp_path):
    log = tmp_path / "alignments"
    limits = Limits(most_runs=1, most_predictions=2, most_lookups=3, days=7, log=log)
    predicts, looks_up = replace(limits, asked_for="prediction"), replace(limits, asked_for="lookup")
    limits.admit("shop", "bank", "one")
    for run in ("two", "three", "three"):
        predicts.admit("shop", "bank", run)
    with pytest.raises(PrivacyError, match=r"at most 2 times for predictions within 7 days.* raise most_predictions"):
        predicts.admit("shop", "bank", "four")
    looks_up.admit("shop", "bank", "five", 2)
    with pytest.raises(PrivacyError, match=r"at most 3 people by bank within 7 days.* 2 already, but .* for 2 more"):
        looks_up.admit("shop", "bank", "six", 2)
    looks_up.admit("shop", "bank", "seven", 1)
    # A week and a day later only the training counts.
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    past = (datetime.now(UTC) - timedelta(days=8)).isoformat(timespec="seconds")
    log.write_text("".join(json.dumps({**line, "at": past}) + "\n" for line in lines))
    predicts.admit("shop", "bank", "eight")
    looks_up.admit("shop", "bank", "nine", 3)
    with pytest.raises(PrivacyError, match="at most 1 times, and the log"):
        limits.admit("shop", "bank", "ten")


class AnnouncingOne(Align):
    """A leader that announces one id, whatever its list."""

    def _count(self, party, identifiers, known, *, may_repeat):
        counted, repeated = super()._count(party, identifiers, known, may_repeat=may_repeat)
        return [1 for _ in counted], repeated


@pytest.mark.parametrize("features", [("shop",), ("shop", "telco")])
def test_a_lookup_has_no_room_for_more_ids_than_it_is_counted_for(tmp_path, features):
    limits = Limits(asked_for="lookup", most_lookups=1, log=tmp_path / "log")
    how, liar = (each(Settings(ids_per_bucket=100), limits=limits) for each in (Align, AnnouncingOne))
    held = {"bank": table(range(0, 80, 2)), **{name: table(range(800)) for name in features}}
    roles = Roles(label="bank", features=features)
    with pytest.raises(DataError, match="A bucket should have at most 1 ids but has 40"):
        simulate(how, held, roles=roles, instead={"bank": lambda party, honest: liar(party)})
    if len(features) > 1:
        # A follower that does not know all sizes knows how many buckets a lookup has.
        with pytest.raises(ProtocolError, match="Expected bank to cut sets of these sizes into 1 buckets, got 64"):
            simulate(how, held, roles=roles, instead={"bank": sending(kinds.AlignOpening, buckets=64, ids=[0])})


def test_a_lookup_of_nobody_counts_because_a_leader_of_a_ring_learns_what_the_others_share(tmp_path):
    # Both feature parties of the simulation write to one log.
    limits = Limits(asked_for="lookup", most_lookups=2, log=tmp_path / "log")
    align = Align(Settings(topology="ring"), limits=limits)
    nobody = Table.of({"id": pa.array([], pa.int64()), "place": np.zeros(0)})
    held = {"bank": nobody, "shop": table(range(200)), "telco": table(range(100, 300))}
    simulate(align, held, roles=THREE)
    with pytest.raises(PrivacyError, match="2 already, but bank asks for 1 more"):
        simulate(align, held, roles=THREE)


def test_a_lookup_counts_people_who_have_ids_under_different_keys(tmp_path):
    limits, log = Limits(asked_for="lookup", most_lookups=5, log=tmp_path / "log"), tmp_path / "log"
    n = 200
    shop = Table.of({"id": range(n), "mail": [f"m{i}" for i in range(n)], "phone": [f"p{i}" for i in range(n)]})
    mails, phones = ([f"{kind}{i}" if (i < 3) == (kind == "m") else None for i in range(6)] for kind in "mp")
    bank = Table.of({"id": range(6), "mail": mails, "phone": phones})
    columns = dict.fromkeys(("bank", "shop"), ("mail", "phone"))
    align = Align(Settings(keys=("text", "text")), columns=columns, limits=limits)
    with pytest.raises(PrivacyError, match="0 already, but bank asks for 6 more"):
        simulate(align, {"bank": bank, "shop": shop}, roles=PAIR)
    simulate(replace(align, limits=replace(limits, most_lookups=6)), {"bank": bank, "shop": shop}, roles=PAIR)
    assert [json.loads(line)["ids"] for line in log.read_text().splitlines()] == [6, 6]


def test_a_log_of_an_earlier_version_counts_as_trainings(tmp_path):
    log = tmp_path / "alignments"
    log.write_text('{"at": "2026-01-01T00:00:00+00:00", "peer": "bank", "run": "one", "what": "aligned", "why": ""}\n')
    with pytest.raises(PrivacyError, match="holds 1 alignments with bank already"):
        Limits(most_runs=1, log=log).admit("shop", "bank", "two")
    Limits(asked_for="prediction", log=log).admit("shop", "bank", "two")


def test_an_alignment_that_fails_before_the_first_id_costs_nothing(tmp_path):
    log = tmp_path / "alignments"
    held = {"bank": table(range(300)), "shop": table([f"{i:05d}" for i in range(300)])}
    with pytest.raises(PlanError, match="bank reads integer and shop reads text"):
        simulate(Align(limits=Limits(log=log)), held, roles=PAIR)
    assert not log.exists() or log.read_text() == ""


@pytest.mark.parametrize("how", [{"fewest": -1}, {"most_runs": 0}])
def test_limits_that_let_nothing_pass_are_refused(how):
    with pytest.raises(PlanError, match=rf"\[align\] {next(iter(how))} should be a whole number, at least"):
        Limits(**how)


# What is left.


def test_an_alignment_can_be_saved_and_loaded(tmp_path):
    run = aligned(tables(["a", "b", "c"], ["b", "c"]), join="left")
    for result in run.results.values():
        result.save(tmp_path / "alignment")
        loaded = Alignment.load(tmp_path / "alignment")
        assert loaded.rows.tolist() == result.rows.tolist()
        assert {name: mask.tolist() for name, mask in loaded.partners.items()} == {
            name: mask.tolist() for name, mask in result.partners.items()
        }
        assert (loaded.size, loaded.digest, loaded.schedule, loaded.learned) == (
            result.size, result.digest, result.schedule, result.learned,
        )  # fmt: skip


def test_parties_without_tables_go_along():
    roles = Roles(label="bank", features=("shop",), arbiter="judge")
    for how in ({}, {"topology": "ring"}, {"reveal": "size"}, {"reveal": "one"}):
        run = simulate(Align(Settings(**how, ids_per_bucket=2), limits=ANY_SIZE), tables("abcd", "bcde"), roles=roles)
        judge = run.results["judge"]
        assert judge.rows is None
        assert judge.size == (None if how.get("reveal") == "one" else 3)
        assert not any(entry.kind == "align/masked" for entry in run.transcripts["judge"].entries)


def test_training_on_rows_that_are_aligned_first_is_training_on_the_common_rows():
    from colonnade.models.networks.split import SplitClassifier

    held = load("bank-shop-telco", rows=400).tables
    protocol = Aligned(Align(), SplitClassifier(epochs=2, batch_size=64).fit)
    run = simulate(protocol, held, roles=Roles(label="bank", features=("shop", "telco")))
    assert run.results["bank"].is_fitted
    assert run.results["shop"] is not run.results["bank"]
    assert run.plan.protocol == "SplitClassifier.fit"
    assert run.plan.settings["align"]["join"] == "inner"


def test_training_on_a_left_join_learns_what_stands_in_for_the_rows_that_each_party_lacks():
    from colonnade.models.networks.messages import Embedding
    from colonnade.models.networks.split import SplitClassifier

    held = load("bank-shop-telco", rows=400).tables
    found = {}

    def fit(party):
        found[party.name] = party.present, party.partners
        return SplitClassifier(overlap="partial", epochs=2, batch_size=64, n_iter_no_change=None).fit(party)

    run = simulate(Aligned(Align(Settings(join="left")), fit), held, roles=THREE, keep="all")
    vectors = run.results["bank"].missing_embeddings_
    for name, vector in zip(("shop", "telco"), vectors, strict=True):
        assert vector.std() > 0, "at the start all its values are alike"
        present, _ = found[name]
        assert 0 < present.sum() < len(present) == len(held["bank"])
        assert (found["bank"][1][name] == present).all()
        for recorded in run.transcripts[name].messages(Embedding, sent=True):
            assert (np.isnan(recorded.message.values).all(axis=1) == ~present[recorded.rows]).all()


ALIGNED_IN_MANY_WAYS = {
    "ids written differently": ({"keys": ("text",)}, {}, {}),
    "another key column": ({"keys": ("integer",)}, {"bank": ["person"], "shop": ["person"]}, {}),
    "rows without a partner": ({"join": "left"}, {}, {"overlap": "partial"}),
    "repeated ids": ({"duplicates": "all"}, {}, {}),
    "repeated ids and rows without a partner": ({"duplicates": "all", "join": "left"}, {}, {"overlap": "partial"}),
}


@pytest.mark.parametrize("case", ALIGNED_IN_MANY_WAYS)
def test_a_run_that_aligned_its_rows_is_audited_against_rows_in_the_common_order(case):
    from colonnade import audit
    from colonnade.attacks import NormScore
    from colonnade.auditing.settings import Simulated
    from colonnade.models.networks.split import SplitClassifier

    how, columns, parameters = ALIGNED_IN_MANY_WAYS[case]
    random = np.random.default_rng(0)
    people = {"bank": random.permutation(60), "shop": random.permutation(80)[:50]}
    if "repeated" in case:
        people["bank"] = np.concatenate([people["bank"], people["bank"][:20]])
    held = {
        name: Table.of(
            {
                "id": [f"{'P' if name == 'bank' else ' p'}{number}" for number in found],
                "person": found,
                "value": found.astype(float),
                **({"late": random.integers(0, 2, len(found))} if name == "bank" else {}),
            },
            labels="late" if name == "bank" else None,
        )
        for name, found in people.items()
    }
    align = Align(Settings(**how), columns, limits=ANY_SIZE)
    fit = SplitClassifier(epochs=1, n_iter_no_change=None, **parameters).fit
    run = simulate(Aligned(align, fit), held, roles=PAIR)
    report = audit(run, [NormScore()], nulls=1)
    assert [(finding.attacker, finding.rows) for finding in report.attacks] == [("shop", run.alignments["bank"].size)]
    assert "align/masked" in {disclosure.kind for disclosure in report.disclosures}
    used = Simulated(run, nulls=1).tables
    here, there = (used[name].column("value") for name in ("bank", "shop"))
    assert (here == there).sum() == (~np.isnan(there)).sum() > 20


FEW_EPOCHS = {"max_iter": 60, "rows_per_column": 0, "fewest_rows": 1}
JUDGE, SERVER = {"arbiter": "judge"}, {"server": "cloud"}


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"join": "left"}, {"duplicates": "all"}], ids=["rows without a partner", "repeated"])
@pytest.mark.parametrize(
    ("model", "parameters", "third"),
    [
        ("logistic-regression", FEW_EPOCHS, {}),
        ("logistic-regression", FEW_EPOCHS, JUDGE),
        ("secureboost-classifier", {"n_estimators": 3, "leak_budget": None}, {}),
        # Networks are at their defaults, overlap = "full" included.
        ("split-classifier", {}, {}),
        ("split-regressor", {}, {}),
        ("served-classifier", {}, SERVER),
        ("served-regressor", {}, SERVER),
        ("u-shape-classifier", {}, SERVER),
        ("u-shape-regressor", {}, SERVER),
        ("label-dp-shadow", {}, {}),
        ("one-shot", {"leak_budget": {"shop": 1.0}}, {}),
        ("one-shot-regressor", {"leak_budget": {"shop": 1.0}}, {}),
    ],
)
def test_models_learn_from_the_partners_column_on_every_kind_of_alignment(model, parameters, third, how):
    random = np.random.default_rng(0)
    people = {"bank": random.permutation(260), "shop": random.permutation(280)[:200]}
    if how.get("duplicates"):
        people["bank"] = np.concatenate([people["bank"], people["bank"][:40]])
    common = np.isin(people["bank"], people["shop"])
    classes = MODELS[model].task == "classification"
    # The bank's own column says nothing about its labels.
    held = {
        "bank": Table.of(
            {
                "id": people["bank"].astype(str),
                "noise": random.normal(size=len(people["bank"])),
                "y": (people["bank"] > 130).astype(int) if classes else people["bank"] / 100,
            },
            labels="y",
        ),
        "shop": Table.of(
            {"id": people["shop"].astype(str), "value": people["shop"] + random.normal(size=len(people["shop"]))}
        ),
    }
    fit = MODELS[model](**parameters).fit
    roles = Roles(label="bank", features=("shop",), **third)
    run = simulate(Aligned(Align(Settings(**how), limits=ANY_SIZE), fit), held, roles=roles, seed=0)
    assert run.alignments["bank"].size == (len(common) if "join" in how else common.sum())
    aligned = run.on_aligned_rows()
    bank = aligned.simulation.tables["bank"]
    has_partner = bank.partners.get("shop", np.ones(len(bank), bool))
    assert has_partner.sum() == common.sum()
    guessed, labels = (
        np.asarray(each)[has_partner] for each in (aligned.predict(aligned.simulation.tables).values, bank.labels)
    )
    quality = (guessed == labels).mean() if classes else np.corrcoef(guessed, labels)[0, 1]
    assert quality > 0.95


def test_a_run_that_only_aligned_is_not_audited():
    from colonnade import audit
    from colonnade.attacks import NormScore

    run = simulate(Align(limits=ANY_SIZE), tables("abc", "bcd"), roles=PAIR)
    with pytest.raises(PlanError, match=r"this run only aligned. Simulate Aligned\(Align\(\), model.fit\)"):
        audit(run, [NormScore()])


PHONES = [f"+4179{number:07}" for number in range(20_000)]


def asked(victim: list[str], question: list[str], *, leads: bool, keys=("exact",), **limits):
    """What becomes of a question that an honest party is asked, which leads the alignment or follows."""
    names = ("victim", "curious") if leads else ("curious", "victim")
    tables = {"victim": Table.of({"id": victim}), "curious": Table.of({"id": question})}
    # Each party sets its own limits, and those of a curious party refuse nothing.
    free = Limits(fewest=0, most_times=1e9, fewest_common=0)
    protocols = {
        "victim": Align(Settings(keys=keys), limits=Limits(**limits)),
        "curious": Align(Settings(keys=keys), limits=free),
    }
    return simulate(protocols, tables, roles=Roles(label=names[0], features=names[1:]))


def test_one_real_id_among_made_up_ones_gets_no_answer_from_a_leader():
    customers, question = [f"c{i}" for i in range(300)], ["c7", *(f"made up {i}" for i in range(99))]
    with pytest.raises(
        PrivacyError, match=r"victim and curious should have at least 10 .* but have 1: .* curious was not told which\."
    ):
        asked(customers, question, leads=True)
    found = asked(customers, question, leads=True, fewest_common=0)
    assert found.results["curious"].size == 1


def test_one_real_id_among_made_up_ones_ends_the_run_of_a_follower_who_learns_of_it_too_late():
    customers, question = [f"c{i}" for i in range(300)], ["c7", *(f"made up {i}" for i in range(99))]
    with pytest.raises(PrivacyError, match=r"but have 1: .* curious may know them already; victim goes no further\."):
        asked(customers, question, leads=False)


@pytest.mark.parametrize("leads", [True, False])
def test_a_whole_block_of_telephone_numbers_is_refused_before_any_id_is_compared(leads):
    with pytest.raises(
        PrivacyError,
        match=r"should bring at most 50 times victim's 300 ids .* but brings 20,000: .* most_times",
    ):
        asked(PHONES[5000:5300], PHONES, leads=leads)
    with pytest.raises(PrivacyError, match=r"curious should bring at most 5,000 ids under each key, but .* most_ids"):
        asked(PHONES[5000:5300], PHONES[:6000], leads=leads, most_ids=5000)


def test_an_intersection_that_is_too_large_is_not_told_by_a_leader():
    with pytest.raises(PrivacyError, match=r"at most 299 ids in common, but have 300: .* curious was not told which\."):
        asked(PHONES[:300], PHONES[:900], leads=True, most_common=299)
    assert asked(PHONES[:300], PHONES[:900], leads=True, most_common=300).results["victim"].size == 300


@pytest.mark.parametrize(
    "how", [{"topology": "ring"}, {"reveal": "size"}, {"reveal": "one"}, {"join": "left"}], ids=str
)
def test_every_kind_of_alignment_refuses_a_tiny_intersection(how):
    tables = {name: Table.of({"id": [*(f"{name} {i}" for i in range(150)), "both"]}) for name in ("bank", "shop")}
    roles = Roles(label="bank", features=("shop",))
    with pytest.raises(PrivacyError, match=r"(bank and shop|shop and bank) should have at least 10 .* have 1: "):
        simulate(Align(Settings(**how)), tables, roles=roles)


def test_each_follower_of_a_star_gets_another_veil(monkeypatch):
    ids = [f"c{i}" for i in range(200)]
    veils, follow, lead = {}, star_module.follow, star_module.lead

    def spied(protocol, state, process):
        veils[state.party.name] = dict(state.agreement.veils)
        return protocol(state, process)

    monkeypatch.setattr(star_module, "follow", partial(spied, follow))
    monkeypatch.setattr(star_module, "lead", partial(spied, lead))
    simulate(Align(), dict.fromkeys(("bank", "shop", "telco"), table(ids)), roles=THREE)
    assert veils["bank"] == {name: veils[name]["bank"] for name in ("shop", "telco")}
    assert len(set(veils["bank"].values())) == 2


@pytest.mark.parametrize(
    ("limits", "n_common", "refused"),
    [
        (Limits(), 8, "bank should train on at least 38 of its 760 rows, but 8 are common to all parties"),
        (Limits(), 38, None),
        (Limits(fewest_common=5), 8, None),
        (Limits(fewest_common=500), 400, "at least 500 of its 760 rows, but 400 are common"),
    ],
)
def test_a_party_does_not_train_on_a_few_of_its_rows(limits, n_common, refused):
    if refused is None:
        limits.check_training("bank", n_common, 760)
    else:
        with pytest.raises(PrivacyError, match=refused):
            limits.check_training("bank", n_common, 760)
