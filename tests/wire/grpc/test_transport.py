"""GrpcTransport, with all parties in this process, each in a thread of its own, over the loopback interface."""

import random
import re
import shutil
import socket
import ssl
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import grpc
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from colonnade.errors import (
    AuthError,
    DataError,
    PeerFailed,
    PeerLeft,
    PeerRestarted,
    PeerUnreachable,
    PlanError,
    ProtocolError,
    StorageError,
    WireError,
)
from colonnade.testing.ports import free_port
from colonnade.wire.certs import authority as certs
from colonnade.wire.certs.credentials import Credentials, host_of
from colonnade.wire.grpc.envelope import LAST, Envelope, Type
from colonnade.wire.grpc.link import OUTBOX_MEMORY_BYTES, WINDOW_BYTES, Gap, Link, Patience
from colonnade.wire.grpc.tls import Tls, diagnose
from colonnade.wire.grpc.transport import GrpcTransport
from colonnade.wire.transport import NAME_BYTES, EpochStart, HeldCheckpoint, next_start, pack_note, places_of

pytestmark = pytest.mark.network

MEBIBYTE = 2**20
FOLDER = bytes(NAME_BYTES)
NOTHING_HELD = HeldCheckpoint(0, FOLDER)
RUN = next_start(1, dict.fromkeys(("bank", "shop", "telco"), NOTHING_HELD)).run
SHORT = Patience(start=20, rejoin=20, silence=10, message=20, heartbeat=0.1)
BRIEF = replace(SHORT, start=1)
AGREED = {"version": "1.0", "plan": "the plan", "rows": "the rows"}


def addresses_of(*listening, dialling=()):
    return {**{name: f"127.0.0.1:{free_port()}" for name in listening}, **dict.fromkeys(dialling)}


@pytest.fixture
def opened():
    """Makes transports that are closed when the test ends."""
    made = []

    def make(
        name, addresses, *, agreement=AGREED, credentials=None, patience=SHORT, open_=True, spill=None, **settings
    ):
        made.append(GrpcTransport(addresses, credentials=credentials, patience=patience, **settings))
        made[-1].bind(name, tuple(addresses), agreement, spill=spill)
        if open_:
            made[-1].open()
        return made[-1]

    yield make
    for transport in made:
        transport.close()


@pytest.fixture
def pair(opened):
    """Bank, which listens, and shop, which dials, when they have met."""
    addresses = addresses_of("bank", dialling=["shop"])
    return meeting(opened("bank", addresses), opened("shop", addresses))


def at_once(*acts, seconds=30):
    """Do several things at the same time; returns what they returned or raised, and fails if one does not end."""
    outcomes = [None] * len(acts)

    def do(place, act):
        try:
            outcomes[place] = act()
        except BaseException as error:
            outcomes[place] = error

    threads = [threading.Thread(target=do, args=item, daemon=True) for item in enumerate(acts)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), f"not all ended within {seconds} s"
    return outcomes


def require(*outcomes):
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def meeting(*transports, newest=0):
    require(*at_once(*(partial(transport.meet, HeldCheckpoint(newest, FOLDER)) for transport in transports)))
    return transports


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.01)


def cut(transport):
    """Break every connection of a party, as a network does."""
    for line in transport._rendezvous.links.values():
        line.cut_if_silent(-1)


# How a run begins and ends.


def test_parties_that_meet_agree_on_the_newest_common_checkpoint(opened):
    addresses = addresses_of("bank", "shop", dialling=["telco"])
    transports = [opened(name, addresses) for name in addresses]
    for epoch, newest in ((1, (5, 3, 4)), (2, (6, 7, 8))):
        ways = [partial(t.meet, HeldCheckpoint(n, FOLDER, RUN)) for t, n in zip(transports, newest, strict=True)]
        assert at_once(*ways) == [EpochStart(epoch, min(newest), RUN)] * 3


def test_a_party_that_waits_says_for_whom_and_gives_up_in_time(opened):
    addresses = addresses_of("bank", dialling=["shop", "telco"])
    told, brief = [], replace(SHORT, start=1.5)
    bank = opened(
        "bank", addresses, patience=brief, on_wait=lambda names, seconds: told.append((tuple(names), seconds))
    )
    shop = opened("shop", addresses, patience=brief)
    bank_gave_up, shop_gave_up = at_once(partial(bank.meet, NOTHING_HELD), partial(shop.meet, NOTHING_HELD))
    assert isinstance(bank_gave_up, PeerUnreachable)
    assert str(bank_gave_up) == (
        "bank waited for telco and gave up. Start them with the same plan, check the addresses, and run "
        "`colonnade doctor` on both sides."
    )
    assert isinstance(shop_gave_up, PeerUnreachable)
    assert "shop waited for bank (which waits for others) and gave up" in str(shop_gave_up)
    assert told[-1][0] == ("telco",)
    assert 0 < told[-1][1] <= 1


def test_a_party_that_nobody_answers_gives_up_in_time(opened):
    shop = opened("shop", addresses_of("bank", dialling=["shop"]), patience=BRIEF)
    with pytest.raises(PeerUnreachable, match="shop waited for bank and gave up"):
        shop.meet(NOTHING_HELD)


@pytest.mark.parametrize(
    ("addresses", "listen"),
    [
        ({"bank": "192.0.2.1:7431", "shop": None}, None),
        ({"bank": "127.0.0.1:7431", "shop": "shop.example:7431"}, None),
        ({"bank": "127.0.0.1:7431", "shop": None}, "0.0.0.0:7431"),
        ({"bank": "localhost.example:7431", "shop": None}, None),
        ({"bank": "[2001:db8::1]:7431", "shop": None}, None),
    ],
)
def test_a_run_in_the_clear_does_not_leave_this_machine(addresses, listen):
    bank = GrpcTransport(addresses, credentials=None, listen=listen)
    with pytest.raises(PlanError, match="A run without TLS needs addresses on this machine"):
        bank.bind("bank", ("bank", "shop"), {})


@pytest.mark.parametrize("address", ["127.0.0.1:7431", "127.8.0.1:7431", "localhost:7431", "[::1]:7431"])
def test_a_run_in_the_clear_on_this_machine_is_allowed(address):
    bank = GrpcTransport({"bank": address, "shop": None}, credentials=None)
    bank.bind("bank", ("bank", "shop"), {})
    assert bank.insecure


def test_two_parties_of_whom_neither_listens_are_refused():
    with pytest.raises(PlanError, match="shop and bank both have no address, so neither can be reached"):
        GrpcTransport({"bank": None, "shop": None}, credentials=None).bind("shop", ("bank", "shop"), {})


def test_two_dialling_parties_have_no_line_to_each_other(opened):
    addresses = addresses_of("bank", dialling=["shop", "telco"])
    transports = meeting(*(opened(name, addresses) for name in addresses))
    with pytest.raises(PlanError, match="There is no line from shop to telco"):
        transports[1].send("telco", b"")


def test_an_address_in_use_is_told(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    opened("bank", addresses)
    second = opened("bank", addresses, open_=False)
    with pytest.raises(
        PeerUnreachable, match=r"bank cannot listen at 127\.0\.0\.1:\d+\. Another program may use the port"
    ):
        second.open()


def test_whoever_listens_elsewhere_is_reached_at_its_address(opened, trusted):
    addresses = addresses_of("bank", dialling=["shop"])
    port = addresses["bank"].partition(":")[2]
    elsewhere = {**addresses, "bank": "bank.invalid:1"}
    bank = opened("bank", elsewhere, listen=f"0.0.0.0:{port}", credentials=trusted["bank"])
    meeting(bank, opened("shop", addresses, credentials=trusted["shop"]))


def test_parties_that_have_finished_leave_without_waiting_for_silence(opened):
    addresses = addresses_of("bank", "shop", dialling=["telco"])
    patient = replace(SHORT, silence=600)
    for _ in range(5):
        transports = meeting(*(opened(name, addresses, patience=patient) for name in addresses))
        require(*at_once(*(transport.finish for transport in transports), seconds=10))
        require(*at_once(*(transport.close for transport in transports), seconds=10))


def test_a_party_that_closes_leaves_no_thread_of_its_own_behind(opened):
    before = set(threading.enumerate())
    addresses = addresses_of("bank", "shop", dialling=["telco"])
    transports = meeting(*(opened(name, addresses) for name in addresses))
    transports[0].send("telco", b"a message")
    assert transports[2].receive("bank") == b"a message"
    require(*at_once(*(transport.close for transport in transports)))
    until(lambda: set(threading.enumerate()) <= before)


def test_a_party_that_closes_waits_for_no_answer_to_its_greeting(opened):
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = {"bank": f"127.0.0.1:{silent.getsockname()[1]}", "shop": None}
        shop = opened("shop", addresses)
        with silent.accept()[0]:
            require(*at_once(shop.close))
            # A timer that was cancelled ends a moment later.
            until(lambda: set(threading.enumerate()) <= before)


def test_a_party_that_closes_takes_no_new_connection(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    bank = opened("bank", addresses)
    # As between the end of the links and the end of the server.
    bank._streams._closing.set()
    shop = opened("shop", addresses)
    time.sleep(0.5)
    assert not shop._rendezvous.links["bank"].connected


def test_nobody_leaves_before_all_have_finished(pair):
    bank, shop = pair
    left = threading.Event()
    waiting = threading.Thread(target=lambda: (shop.finish(), left.set()), daemon=True)
    waiting.start()
    assert not left.wait(0.5)
    bank.finish()
    assert left.wait(10)


def test_waiting_for_a_message_of_a_party_that_has_finished_is_refused(opened):
    addresses = addresses_of("bank", "shop", dialling=["telco"])
    bank, shop, telco = meeting(*(opened(name, addresses) for name in addresses))
    shop.send("telco", b"the last one")
    leaving = threading.Thread(target=lambda: at_once(shop.finish), daemon=True)
    leaving.start()
    assert telco.receive("shop") == b"the last one"
    with pytest.raises(PeerLeft, match="telco waits for a message from shop, but shop has finished"):
        telco.receive("shop")
    require(*at_once(bank.finish, telco.finish))
    leaving.join(10)
    assert not leaving.is_alive()


def test_a_party_whose_peer_vanishes_before_the_end_gives_up_in_time(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    bank, shop = meeting(*(opened(name, addresses, patience=replace(SHORT, rejoin=1)) for name in addresses))
    shop.close()
    with pytest.raises(PeerUnreachable, match="bank waits for shop, whose connection broke and who did not come back"):
        bank.finish()


def test_a_message_that_does_not_come_ends_the_wait_in_time(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    bank, _ = meeting(*(opened(name, addresses, patience=replace(SHORT, message=1)) for name in addresses))
    with pytest.raises(PeerUnreachable, match=r"bank waited \d+ s for shop, who is alive but sends nothing"):
        bank.receive("shop")


def test_whoever_comes_to_the_end_first_waits_for_the_others_however_long_they_compute(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    bank, shop = meeting(*(opened(name, addresses, patience=replace(SHORT, message=0.2)) for name in addresses))

    def finish_later():
        time.sleep(1)
        bank.finish()

    require(*at_once(shop.finish, finish_later))


# Failures cross.


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_reaches_the_other_side_in_its_own_words(pair, failing):
    fails, hears = pair[failing], pair[1 - failing]
    _, heard = at_once(partial(fails.fail, DataError("The vault is empty.")), partial(hears.receive, fails.name))
    assert isinstance(heard, PeerFailed)
    assert str(heard) == f"{fails.name} stopped: The vault is empty."


def test_of_an_unforeseen_failure_only_the_name_crosses(pair):
    bank, shop = pair
    _, heard = at_once(partial(shop.fail, ValueError("row 7 has income 12345")), partial(bank.receive, "shop"))
    assert str(heard) == "shop stopped: ValueError"


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_is_told_although_the_connection_has_just_been_cut(pair, failing):
    fails, hears = pair[failing], pair[1 - failing]
    cut(fails)
    _, heard = at_once(partial(fails.fail, DataError("The vault is empty.")), partial(hears.receive, fails.name))
    assert str(heard) == f"{fails.name} stopped: The vault is empty."


def test_a_failure_behind_more_than_the_outbox_can_hold_is_told(pair, tmp_path, monkeypatch):
    bank, shop = pair
    shop._rendezvous.links["bank"]._outbox._memory_bytes = MEBIBYTE
    shop._rendezvous.links["bank"]._outbox._directory = tmp_path / "missing"
    with pytest.raises(StorageError, match="Could not spill unsent messages") as failure:
        shop.send("bank", bytes(50 * MEBIBYTE))
    _, heard = at_once(partial(shop.fail, failure.value), partial(bank.receive, "shop"))
    assert isinstance(heard, PeerFailed)
    assert "Could not spill unsent messages" in str(heard)


def test_a_failure_is_told_to_a_peer_that_has_not_taken_what_was_sent_before(pair):
    bank, shop = pair
    for _ in range(3 * WINDOW_BYTES // MEBIBYTE):
        bank.send("shop", bytes(MEBIBYTE))

    def take_once_it_was_heard():
        until(lambda: shop._rendezvous._failure is not None)
        while True:
            shop.receive("bank")

    _, heard = at_once(partial(bank.fail, DataError("The vault is empty.")), take_once_it_was_heard)
    assert str(heard) == "bank stopped: The vault is empty."


def test_a_failure_while_others_still_meet_ends_their_wait(opened):
    addresses = addresses_of("bank", dialling=["shop", "telco"])
    bank, shop = opened("bank", addresses), opened("shop", addresses)

    def fail_when_connected():
        until(lambda: shop._rendezvous.links["bank"].connected)
        shop.fail(DataError("No columns."))

    heard, _ = at_once(partial(bank.meet, NOTHING_HELD), fail_when_connected)
    assert str(heard) == "shop stopped: No columns."


# Cuts, crashes and confusion.


def test_cut_connections_lose_and_repeat_nothing(pair):
    bank, shop = pair
    sent = [random.Random(i).randbytes(random.Random(i).randrange(200_000)) for i in range(200)]

    def talk(own, peer):
        for i, frame in enumerate(sent):
            own.send(peer.name, frame)
            if i % 20 == 7:
                cut(own)
        return [own.receive(peer.name) for _ in sent]

    came = require(*at_once(partial(talk, bank, shop), partial(talk, shop, bank), seconds=60))
    assert list(came) == [sent, sent]


class Faulty:
    """Stands before a line's end and loses, repeats, delays and reorders what comes in."""

    def __init__(self, line, seed):
        self.line, self.draw, self.late, self.faults = line, random.Random(seed), [], Counter()
        self.honest, line.incoming = line.incoming, self

    def __call__(self, connection, envelope):
        fault = self.draw.choice(["none"] * 20 + ["lost", "twice", "late", "reordered", "cut"])
        self.faults[fault] += 1
        if fault == "lost":
            return
        if fault == "cut":
            raise Gap
        if fault == "late":
            time.sleep(0.05)
        if fault == "reordered":
            self.late.append((connection, envelope))
            return
        self.honest(connection, envelope)
        if fault == "twice":
            self.honest(connection, envelope)
        while self.late and fault == "none":
            self.honest(*self.late.pop())


@pytest.mark.parametrize("seed", range(4))
def test_lost_repeated_reordered_and_late_envelopes_change_nothing(pair, seed):
    faulty = [Faulty(line, seed + 10 * i) for i, t in enumerate(pair) for line in t._rendezvous.links.values()]

    def converse(own, peer):
        heard = []
        for number in range(60):
            own.send(peer.name, b"%s %d" % (own.name.encode(), number) * (1 + number % 7))
            heard.append(own.receive(peer.name))
        own.finish()
        return heard

    bank, shop = pair
    came = require(*at_once(partial(converse, bank, shop), partial(converse, shop, bank), seconds=60))
    for receiver, sender in ((0, b"shop"), (1, b"bank")):
        assert came[receiver] == [b"%s %d" % (sender, number) * (1 + number % 7) for number in range(60)]
    assert all(sum((one.faults + other.faults).values()) > 100 for one, other in [faulty])


def test_a_line_on_which_everything_is_lost_ends_in_a_clear_error(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    hasty = replace(SHORT, rejoin=0.75, message=1.5)
    bank, shop = meeting(*(opened(name, addresses, patience=hasty) for name in addresses))
    for transport in (bank, shop):
        for line in transport._rendezvous.links.values():
            line.incoming = lambda connection, envelope: None
    shop.send("bank", b"lost")
    (outcome,) = at_once(partial(bank.receive, "shop"), seconds=10)
    assert isinstance(outcome, PeerUnreachable)


@pytest.mark.parametrize("crashing", ["bank", "shop", "telco"])
@pytest.mark.parametrize("listening", [["bank"], ["bank", "shop", "telco"]])
def test_a_party_that_starts_anew_makes_all_others_meet_again(opened, crashing, listening):
    names = ("bank", "shop", "telco")
    addresses = {name: f"127.0.0.1:{free_port()}" if name in listening else None for name in names}
    transports = dict(zip(names, meeting(*(opened(name, addresses) for name in names)), strict=True))
    transports["bank"].send("shop", b"of the first epoch")
    until(lambda: transports["shop"]._rendezvous.links["bank"]._inbox)
    transports[crashing].close()
    transports[crashing] = opened(crashing, addresses)

    def survive(name):
        for _ in range(5):
            with suppress(PeerRestarted):
                if name != crashing or transports[name].epoch:
                    transports[name].receive("bank" if name != "bank" else "shop")
            epoch, common, _ = transports[name].meet(HeldCheckpoint(7, FOLDER, RUN))
            if name != "bank":
                transports[name].send("bank", b"of epoch %d" % epoch)
                return transports[name].receive("bank"), common
            try:
                came = {transports["bank"].receive(peer) for peer in names[1:]}
                assert came == {b"of epoch %d" % epoch}
                for peer in names[1:]:
                    transports["bank"].send(peer, b"agreed")
                return b"agreed", common
            except PeerRestarted:
                continue
        raise AssertionError("they do not come together")

    for line in transports["shop"]._rendezvous.links.values():
        line._inbox.clear()
    outcomes = require(*at_once(*(partial(survive, name) for name in names), seconds=40))
    assert list(outcomes) == [(b"agreed", 7)] * 3


def test_a_report_that_was_overtaken_does_not_begin_another_epoch(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    bank, shop = opened("bank", addresses), opened("shop", addresses)
    shop._rendezvous.links["bank"].put_control({"ready": [0, FOLDER, b""], "epoch": 0})
    shop._rendezvous.links["bank"].put_control({"ready": [0, FOLDER, b""], "epoch": 0})
    meeting(bank, shop)
    shop._rendezvous.links["bank"].put_control({"ready": [0, FOLDER, b""], "epoch": 0})
    shop.send("bank", b"behind it")
    assert bank.receive("shop") == b"behind it"
    assert bank.epoch == 1


def test_a_beginning_that_comes_before_a_party_asks_for_it_is_not_lost(pair):
    bank, shop = pair
    bank._rendezvous.links["shop"].put_control({"restart": 1})
    bank._rendezvous.links["shop"].put_control({"start": 2, "from": 0, "run": RUN, "processes": {}})
    until(lambda: shop._rendezvous._start == EpochStart(2, 0, RUN))
    assert at_once(partial(shop.meet, NOTHING_HELD)) == [EpochStart(2, 0, RUN)]


@pytest.mark.parametrize("met", [True, False])
def test_being_called_back_right_behind_a_beginning_is_not_lost(opened, met):
    addresses = addresses_of("bank", dialling=["shop"])
    bank, shop = opened("bank", addresses), opened("shop", addresses)
    if met:
        meeting(bank, shop)
    until(lambda: bank._rendezvous.links["shop"].connected and shop._rendezvous.links["bank"].connected)
    bank._rendezvous.links["shop"].put_control({"start": 2, "from": 0, "run": RUN, "processes": {}})
    bank._rendezvous.links["shop"].put_control({"restart": 2})
    until(lambda: shop._rendezvous._interrupted == "bank")
    assert at_once(partial(shop.meet, NOTHING_HELD)) == [EpochStart(2, 0, RUN)]
    with pytest.raises(PeerRestarted):
        shop.check()


def test_what_a_peer_said_before_it_was_started_anew_counts_no_more(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    bank, shop = meeting(opened("bank", addresses), opened("shop", addresses))
    bank._rendezvous.hear("shop", b"an earlier process of it", {"done": bank.epoch})
    assert not bank._rendezvous.has_finished("shop")
    bank._rendezvous.hear("shop", shop._rendezvous.incarnation, {"done": bank.epoch})
    assert bank._rendezvous.has_finished("shop")


def test_a_line_that_comes_late_between_two_others_does_not_keep_a_run_from_ending(opened):
    addresses = addresses_of("bank", "shop", "telco")
    bank, shop, telco = meeting(*(opened(name, addresses) for name in addresses))
    telco.close()
    telco, may_dial = opened("telco", addresses, open_=False), threading.Event()
    dial = telco._streams._dial

    def dial_shop_late(peer, address):
        if peer == "shop":
            may_dial.wait(20)
        dial(peer, address)

    telco._streams._dial = dial_shop_late
    telco.open()
    until(lambda: bank._rendezvous._interrupted == "telco")
    meeting(bank, shop, telco)
    shop.send("telco", b"before they are connected")
    may_dial.set()
    assert telco.receive("shop") == b"before they are connected"
    shop.check()
    require(*at_once(bank.finish, shop.finish, telco.finish))


def test_leaving_an_epoch_with_much_untaken_does_not_block_the_next(opened):
    addresses = addresses_of("bank", dialling=["shop", "telco"])
    bank, shop, telco = meeting(*(opened(name, addresses) for name in addresses))
    for _ in range(4 * WINDOW_BYTES // MEBIBYTE):
        shop.send("bank", bytes(MEBIBYTE))
    telco.close()
    telco = opened("telco", addresses)
    until(lambda: bank._rendezvous._interrupted == "telco")
    outcomes = at_once(
        partial(bank.meet, NOTHING_HELD),
        partial(shop.meet, NOTHING_HELD),
        partial(telco.meet, NOTHING_HELD),
    )
    assert [start[:2] for start in outcomes] == [(2, 0)] * 3


def test_a_second_process_of_a_party_displaces_the_first_which_is_told(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    bank, first = meeting(opened("bank", addresses), opened("shop", addresses))
    second = opened("shop", addresses)
    with pytest.raises(AuthError, match="bank refused shop: shop was started a second time while this process"):
        first.receive("bank")
    with pytest.raises(PeerRestarted, match="shop was started again; bank goes back to the last checkpoint"):
        bank.receive("shop")
    meeting(bank, second)


def test_checkpoints_are_settled_when_all_hold_them(opened):
    addresses = addresses_of("bank", dialling=["shop", "telco"])
    transports = meeting(*(opened(name, addresses) for name in addresses))
    settled = {transport.name: [] for transport in transports}
    for transport in transports:
        transport._rendezvous.on_settled = settled[transport.name].append
    for number in (1, 2, 3):
        for transport in transports[: 3 if number < 3 else 2]:
            transport.checkpointed(number)
    until(lambda: all(said and said[-1] == 2 for said in settled.values()))
    assert all(said == sorted(said) for said in settled.values())


def test_settled_checkpoints_are_told_by_one_thread_at_a_time(pair):
    bank, _ = pair
    inside, overlaps = threading.Lock(), []

    def on_settled(number):
        overlaps.append(not inside.acquire(blocking=False))
        time.sleep(0.002)
        if not overlaps[-1]:
            inside.release()

    bank._rendezvous.on_settled = on_settled
    in_pace = threading.Barrier(2)

    def write(transport):
        for number in range(1, 100):
            in_pace.wait(10)
            transport.checkpointed(number)

    require(*at_once(*(partial(write, transport) for transport in pair)))
    until(lambda: bank._rendezvous._checkpoints == {"bank": 99, "shop": 99} and bank._rendezvous._settled is None)
    assert len(overlaps) > 10
    assert not any(overlaps)


def test_a_disk_that_fails_while_a_peer_speaks_ends_the_run_with_the_reason(pair):
    _, shop = pair

    def fails(number):
        raise StorageError("Could not delete checkpoints: Read-only file system.")

    shop._rendezvous.on_settled = fails
    for transport in pair:
        transport.checkpointed(1)
    (outcome,) = at_once(partial(shop.receive, "bank"))
    assert isinstance(outcome, StorageError)


@pytest.mark.parametrize(
    "note",
    [
        {"dance": 1},
        {"ready": "soon", "epoch": 0},
        {"ready": [-1, FOLDER, b""], "epoch": 0},
        {"ready": [0, FOLDER, b""], "epoch": 2**64 - 1},
        {"ready": [0, b"short", b""], "epoch": 0},
        {"start": 2, "from": 0, "run": RUN, "processes": {}},
        {"settled": 10**9},
        {"end": 1},
        {"leave": 1},
        {},
    ],
)
def test_control_that_makes_no_sense_from_this_peer_is_refused(pair, note):
    bank, shop = pair
    shop._rendezvous.links["bank"].put_control(note)
    with pytest.raises(ProtocolError, match="shop sent a control message that this version does not know"):
        bank.receive("shop")


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": -1},
        {"start": 2**64 - 1},
        {"from": -7},
        {"run": b"short"},
        {"processes": {"telco": 7}},
        {"processes": {"telco": b"short"}},
    ],
)
def test_a_beginning_that_makes_no_sense_is_refused(pair, wrong):
    bank, shop = pair
    bank._rendezvous.links["shop"].put_control({"start": 2, "from": 0, "run": RUN, "processes": {}} | wrong)
    with pytest.raises(ProtocolError, match="bank sent a control message that this version does not know"):
        shop.receive("bank")


def test_a_beginning_with_a_process_that_was_succeeded_since_leaves_the_newer_one_in_place(opened):
    addresses = addresses_of("bank", dialling=["shop", "telco"])
    addresses["shop"] = f"127.0.0.1:{free_port()}"
    bank, shop, telco = meeting(*(opened(name, addresses) for name in addresses))
    until(lambda: shop._rendezvous.links["telco"].connected)
    earlier = (int.from_bytes(telco._rendezvous.incarnation, "big") - 1).to_bytes(NAME_BYTES, "big")
    note = {"start": 2, "from": 0, "run": RUN, "processes": {"telco": earlier, "bank": earlier}}
    bank._rendezvous.links["shop"].put_control(note)
    until(lambda: shop._rendezvous._start.epoch == 2)
    assert shop._rendezvous.links["telco"].peer_incarnation == telco._rendezvous.incarnation
    assert shop._rendezvous.links["bank"].peer_incarnation == bank._rendezvous.incarnation


def test_nobody_may_leave_before_the_leader_has_written_down_the_end(pair):
    bank, shop = pair
    written = []

    def write():
        time.sleep(0.3)
        written.append("the end")

    def finish():
        shop.finish()
        assert written

    require(*at_once(partial(bank.finish, write), finish))


def test_whoever_comes_for_the_next_run_is_not_refused_by_the_one_before(opened, pair):
    require(*at_once(*(transport.finish for transport in pair)))
    bank, _ = pair
    addresses = {"bank": bank._addresses["bank"], "shop": None}
    early = opened("shop", addresses, agreement={**AGREED, "plan": "the next plan"}, patience=BRIEF)
    (outcome,) = at_once(partial(early.meet, NOTHING_HELD))
    assert isinstance(outcome, PeerUnreachable), "it waits for the next process"


# Silence and slowness.


class Hose:
    """A TCP proxy that can be made to swallow everything without closing anything."""

    def __init__(self, address):
        host, _, port = address.partition(":")
        self.target, self.blocked, self.sockets = (host, int(port)), threading.Event(), []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.server.accept()
                far = socket.create_connection(self.target, timeout=5)
            except OSError:
                return
            blocked = threading.Event()
            self.sockets.append((near, far, blocked))
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(a, b, blocked), daemon=True).start()

    def pump(self, source, sink, blocked):
        try:
            while data := source.recv(65536):
                if not blocked.is_set():
                    sink.sendall(data)
        except OSError:
            pass

    def swallow(self):
        """Let no connection that is open now carry anything any more."""
        for *_, blocked in self.sockets:
            blocked.set()

    def close(self):
        self.server.close()
        for near, far, _ in self.sockets:
            near.close()
            far.close()


def test_a_connection_that_has_fallen_silent_is_replaced(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    wary = replace(SHORT, silence=0.8)
    bank = opened("bank", addresses, patience=wary)
    hose = Hose(addresses["bank"])
    shop = opened("shop", {**addresses, "bank": hose.address}, patience=wary)
    try:
        meeting(bank, shop)
        hose.swallow()
        shop.send("bank", b"into the void at first")
        (came,) = require(*at_once(partial(bank.receive, "shop"), seconds=15))
        assert came == b"into the void at first"
        assert len(hose.sockets) > 1
    finally:
        hose.close()


def test_whoever_only_sends_is_not_taken_for_silent(opened, monkeypatch):
    addresses = addresses_of("bank", dialling=["shop"])
    bank, shop = meeting(*(opened(name, addresses, patience=replace(SHORT, silence=1.5)) for name in addresses))
    attached = []
    monkeypatch.setattr(Link, "attach", lambda *a, **k: attached.append(a))
    for _ in range(100):
        shop.send("bank", b"small")
        assert bank.receive("shop") == b"small"
        time.sleep(0.02)
    assert not attached


def test_a_slow_reader_bounds_what_is_under_way_and_the_rest_lies_on_disk(opened, tmp_path):
    addresses = addresses_of("bank", dialling=["shop"])
    bank, shop = meeting(opened("bank", addresses), opened("shop", addresses, spill=tmp_path))
    frame, n = random.Random(0).randbytes(MEBIBYTE), 2 * OUTBOX_MEMORY_BYTES // MEBIBYTE
    for _ in range(n):
        shop.send("bank", frame)
    line = bank._rendezvous.links["shop"]
    until(lambda: line._inbox_bytes >= WINDOW_BYTES)
    time.sleep(1)
    assert line._inbox_bytes <= 2 * WINDOW_BYTES + 2 * MEBIBYTE
    assert shop._rendezvous.links["bank"]._outbox._in_memory <= OUTBOX_MEMORY_BYTES
    assert shop._rendezvous.links["bank"]._outbox._spill is not None
    for _ in range(n):
        assert bank.receive("shop") == frame
    until(lambda: shop._rendezvous.links["bank"]._outbox._spill is None)


def test_a_frame_of_64_mebibytes_passes(pair):
    bank, shop = pair
    frame = random.Random(0).randbytes(64 * MEBIBYTE)
    shop.send("bank", frame)
    assert bank.receive("shop") == frame


# Who may speak.


@pytest.fixture(scope="module")
def trusted(tmp_path_factory):
    """Credentials of one federation, by party."""
    folder = tmp_path_factory.mktemp("certs")
    certs.init(folder)
    for name in ("bank", "shop", "telco", "mallory"):
        certs.issue(folder, name)
    return {name: Credentials.read(folder, name) for name in ("bank", "shop", "telco", "mallory")}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """The same names, vouched for by somebody else."""
    folder = tmp_path_factory.mktemp("foreign")
    certs.init(folder)
    for name in ("bank", "shop"):
        certs.issue(folder, name)
    return {name: Credentials.read(folder, name) for name in ("bank", "shop")}


def expired(credentials):
    """The same credentials as they will look when they are no longer good."""
    old = x509.load_pem_x509_certificate(credentials.certificate_pem)
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), old.serial_number, now - timedelta(2), now - timedelta(1)
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    authority = load_pem_private_key((credentials.directory / "ca.key").read_bytes(), None)
    return replace(credentials, certificate_pem=builder.sign(authority, SHA256()).public_bytes(Encoding.PEM))


def test_a_connection_whose_certificate_has_expired_meanwhile_is_refused(trusted):
    """TLS does not look at dates again where a session is resumed."""
    tls = Tls("bank", trusted["bank"])
    context = {"ssl_tls_version": [b"TLSv1.3"], "x509_pem_cert": [trusted["shop"].certificate_pem]}
    assert tls.shown(context).name == "shop"
    with pytest.raises(AuthError, match=r"Expected a certificate of shop that holds at .* but it expired at"):
        tls.shown({**context, "x509_pem_cert": [expired(trusted["shop"]).certificate_pem]})


def both_sides(opened, bank, shop, *, names=("bank", "shop"), **shops):
    """What a listening bank and a dialling shop say after they have tried to meet."""
    addresses = addresses_of("bank", dialling=names[1:])
    at_bank = opened("bank", addresses, credentials=bank, patience=BRIEF)
    at_shop = opened("shop", {**addresses, **shops.pop("addresses", {})}, credentials=shop, patience=BRIEF, **shops)
    return at_once(partial(at_bank.meet, NOTHING_HELD), partial(at_shop.meet, NOTHING_HELD))


def test_parties_of_one_federation_meet_over_tls(opened, trusted):
    addresses = addresses_of("bank", dialling=["shop"])
    bank, shop = meeting(*(opened(name, addresses, credentials=trusted[name]) for name in addresses))
    assert not bank.insecure
    shop.send("bank", b"hello")
    assert bank.receive("shop") == b"hello"


@pytest.mark.parametrize(
    ("key", "value", "listener", "dialler"),
    [
        ("version", "2.0", "bank runs Colonnade 1.0 and shop runs 2.0", "bank runs Colonnade 1.0 and shop runs 2.0"),
        ("plan", "another", "bank and shop have different plans", "Give both the same plan file"),
        ("rows", "others", "bank and shop have different rows", "Align the tables first"),
        ("checkpoint interval", "7", "bank waited for shop and gave up", None),
    ],
)
def test_a_party_that_agrees_on_less_is_refused_on_both_sides(opened, trusted, key, value, listener, dialler):
    bank, shop = both_sides(opened, trusted["bank"], trusted["shop"], agreement={**AGREED, key: value})
    assert isinstance(bank, PeerUnreachable)
    assert listener in str(bank)
    if dialler is None:
        assert "shop and bank have different checkpoint interval" in str(shop)
    else:
        assert str(shop).startswith("bank refused shop: ")
        assert dialler in str(shop)
        assert "shop (refused: " in str(bank)
    assert isinstance(shop, WireError)


def test_rows_are_compared_with_whoever_has_some(opened):
    addresses = addresses_of("notary", dialling=["bank", "shop"])
    without = {key: value for key, value in AGREED.items() if key != "rows"}
    notary = opened("notary", addresses, agreement=without, patience=BRIEF)
    bank = opened("bank", addresses, patience=BRIEF)
    until(lambda: bank._rendezvous.links["notary"].connected)
    shop = opened("shop", addresses, agreement={**AGREED, "rows": "others"}, patience=BRIEF)
    _, _, refused = at_once(*(partial(t.meet, NOTHING_HELD) for t in (notary, bank, shop)))
    assert "notary refused shop: notary and shop have different rows" in str(refused)


def test_a_peer_that_is_not_in_the_plan_is_refused_on_both_sides(opened, trusted):
    addresses = addresses_of("bank", dialling=["shop"])
    bank = opened("bank", addresses, credentials=trusted["bank"], patience=BRIEF)
    mallory = opened("mallory", {**addresses, "mallory": None}, credentials=trusted["mallory"], patience=BRIEF)
    gave_up, refused = at_once(partial(bank.meet, NOTHING_HELD), partial(mallory.meet, NOTHING_HELD))
    assert isinstance(refused, AuthError)
    assert str(refused).startswith(
        "bank refused mallory: mallory is not a party that bank expects; the plan's parties are bank, shop."
    )
    assert "bank waited for shop and gave up" in str(gave_up)
    assert "mallory was refused: mallory is not a party that bank expects" in str(gave_up)


def test_a_party_with_the_certificate_of_another_is_refused_on_both_sides(opened, trusted):
    names = ("bank", "shop", "telco")
    bank, shop = both_sides(opened, trusted["bank"], trusted["telco"], names=names)
    assert "A peer calls itself shop but its certificate is telco's" in str(shop)
    assert "telco (refused: A peer calls itself shop but its certificate is telco's" in str(bank)


def test_a_listening_party_with_the_certificate_of_another_is_refused(opened, trusted):
    _, shop = both_sides(opened, trusted["telco"], trusted["shop"])
    assert isinstance(shop, AuthError)
    assert "shop could not make sure that 127.0.0.1:" in str(shop)
    assert "Hostname mismatch, certificate is not valid for 'bank.party.colonnade'" in str(shop)


BROKEN_HANDSHAKE = re.compile(
    r"bank waited for shop and gave up.* Somebody tried to connect \d+ times and did not get through TLS: its "
    "certificate is missing, has expired or is signed by another authority"
)


@pytest.mark.parametrize(
    ("bank", "shop", "words"),
    [
        ("trusted", "foreign", "self-signed certificate in certificate chain|unable to get local issuer certificate"),
        ("expired", "trusted", "certificate has expired"),
        ("trusted", "expired", "it refuses this party's certificate|it ended the handshake: .*certificate"),
        (None, "trusted", "it ended the handshake: .*wrong version number"),
    ],
)
def test_a_certificate_that_does_not_hold_is_refused_with_the_reason(opened, trusted, foreign, bank, shop, words):
    made = {
        "trusted": trusted,
        "foreign": foreign,
        "expired": {name: expired(trusted[name]) for name in ("bank", "shop")},
        None: dict.fromkeys(("bank", "shop")),
    }
    at_bank, at_shop = both_sides(opened, made[bank]["bank"], made[shop]["shop"])
    assert isinstance(at_shop, AuthError)
    with pytest.raises(AuthError, match=words):
        raise at_shop
    assert "bank waited for shop" in str(at_bank)
    if bank is not None:
        assert BROKEN_HANDSHAKE.search(str(at_bank))


@pytest.mark.parametrize("other", ["bank", "shop"])
def test_a_certificate_that_was_handed_over_is_the_only_one_that_passes(opened, trusted, tmp_path, other):
    """One of the two shows another certificate, which their authority has signed as well."""
    folders = {name: tmp_path / name for name in ("bank", "shop")}
    for folder in folders.values():
        shutil.copytree(trusted["bank"].directory, folder)
    (folders[other] / f"{other}.key").unlink()
    certs.issue(folders[other], other)
    deceived = "shop" if other == "bank" else "bank"
    said = dict(zip(folders, both_sides(opened, *(Credentials.read(folders[n], n) for n in folders)), strict=True))
    assert isinstance(said["shop"], AuthError)
    words = f"Expected {other} to show the certificate in {folders[deceived] / other}.pem, whose words are"
    assert words in str(said[deceived])
    assert words in str(said["shop"]), "the dialling side is told, whichever of the two refuses"


@pytest.mark.parametrize("hindered", ["bank", "shop"])
def test_a_certificate_that_was_handed_over_and_cannot_be_read_ends_the_wait(opened, trusted, tmp_path, hindered):
    other = "shop" if hindered == "bank" else "bank"
    shutil.copytree(trusted["bank"].directory, tmp_path / "certs")
    (tmp_path / "certs" / f"{other}.pem").unlink()
    (tmp_path / "certs" / f"{other}.pem").mkdir()
    held = {**trusted, hindered: Credentials.read(tmp_path / "certs", hindered)}
    said = dict(zip(("bank", "shop"), both_sides(opened, held["bank"], held["shop"]), strict=True))
    assert isinstance(said[hindered], StorageError)
    assert f"{other}.pem" in str(said[hindered])


def test_a_client_whose_authority_the_listener_does_not_know_is_refused_with_the_reason(
    opened, trusted, foreign, tmp_path
):
    # It trusts the right authority but shows a certificate of another one.
    intruder = replace(foreign["shop"], ca_pem=trusted["shop"].ca_pem, directory=tmp_path)
    at_bank, at_shop = both_sides(opened, trusted["bank"], intruder)
    assert isinstance(at_shop, AuthError)
    assert "it refuses this party's certificate" in str(at_shop) or "it ended the handshake" in str(at_shop)
    assert BROKEN_HANDSHAKE.search(str(at_bank))


def test_a_party_without_certificates_does_not_reach_one_that_has_them(opened, trusted):
    bank, shop = both_sides(opened, trusted["bank"], None)
    assert BROKEN_HANDSHAKE.search(str(bank))
    assert "shop waited for bank and gave up" in str(shop)


def test_nothing_is_wrong_with_a_good_peer_or_with_nobody(opened, trusted):
    addresses = addresses_of("bank", dialling=["shop"])
    assert diagnose(addresses["bank"], "bank", trusted["shop"]) is None
    opened("bank", addresses, credentials=trusted["bank"])
    assert diagnose(addresses["bank"], "bank", trusted["shop"]) is None


def test_a_connection_that_breaks_in_the_middle_of_the_handshake_is_no_matter_of_trust(trusted):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up():
            connection, _ = server.accept()
            connection.recv(10)
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()

        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert at_once(hang_up, lambda: diagnose(address, "bank", trusted["shop"]))[1] is None


def test_a_renewed_certificate_is_used_without_a_restart(opened, trusted, tmp_path):
    certs.init(tmp_path)
    for name in ("bank", "shop"):
        certs.issue(tmp_path, name)
    first = {name: Credentials.read(tmp_path, name) for name in ("bank", "shop")}
    addresses = addresses_of("bank", dialling=["shop"])
    bank, shop = meeting(*(opened(name, addresses, credentials=first[name]) for name in addresses))

    def shown():
        context = ssl.create_default_context(cadata=first["shop"].ca_pem.decode())
        context.check_hostname = False
        context.load_cert_chain(tmp_path / "shop.pem", tmp_path / "shop.key")
        port = int(addresses["bank"].partition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
            context.wrap_socket(plain) as secure,
        ):
            return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True)).serial_number

    before = shown()
    for name in ("bank", "shop"):
        certs.issue(tmp_path, name)
    cut(shop)
    shop.send("bank", b"after the renewal")
    assert bank.receive("shop") == b"after the renewal"
    assert shown() != before


# Strangers who speak the wire's language, or another.


def raw_channel(address, credentials=None, name="bank"):
    if credentials is None:
        return grpc.insecure_channel(address)
    secure = grpc.ssl_channel_credentials(credentials.ca_pem, credentials.key_pem, credentials.certificate_pem)
    return grpc.secure_channel(address, secure, options=(("grpc.ssl_target_name_override", host_of(name)),))


def hello(**changes):
    note = {
        **{f"agree {key}": value for key, value in AGREED.items()},
        "name": "shop",
        "incarnation": b"i" * 16,
        "knows": b"",
        "received": 0,
        "runs": [],
    }
    kept = {key: value for key, value in {**note, **changes}.items() if value is not None}
    return Envelope(Type.HELLO, payload=pack_note(kept)).pack()


def answers(channel, messages, *, hold=0.0):
    """What comes back to somebody who sends some messages and keeps the stream open for a while, and how it ends."""

    came, ended = [], threading.Event()

    def requests():
        yield from messages
        ended.wait(hold)

    try:
        for data in channel.stream_stream("/colonnade.Wire/Exchange")(requests(), timeout=5):
            came.append(Envelope.unpack(data))
    except grpc.RpcError as error:
        return came, error.code()
    finally:
        ended.set()
    return came, grpc.StatusCode.OK


def test_whoever_greets_with_nothing_is_told_nothing(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    opened("bank", addresses)
    with raw_channel(addresses["bank"]) as channel:
        assert answers(channel, [], hold=0.5) == ([], grpc.StatusCode.OK)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (hello(name="bank"), "bank is not a party that bank expects"),
        (hello(name=None), "should greet first and did not"),
        (hello(incarnation="text"), "should greet first and did not"),
        (hello(received=-1), "should greet first and did not"),
        (hello(**{"agree plan": None}), "bank and shop have different plans"),
        (hello(**{"agree plan": 7}), "bank and shop have different plans"),
        (Envelope(Type.DATA, 1, 1, 0, 5, LAST, b"hello").pack(), "should greet first and did not"),
        (Envelope(Type.HEARTBEAT, total=2**63).pack(), "should greet first and did not"),
        (Envelope(Type.HELLO, payload=b"\xc1").pack(), "A peer's hello cannot be read"),
        (b"GET / HTTP/1.1", "got 14 other bytes"),
        (b"", "got 0 other bytes"),
    ],
)
def test_whoever_greets_wrongly_gets_a_reason_and_nothing_else(opened, first, words):
    addresses = addresses_of("bank", dialling=["shop"])
    bank = opened("bank", addresses)
    bank._rendezvous.links["shop"].put_control({"restart": 0})
    with raw_channel(addresses["bank"]) as channel:
        (refusal,), _ = answers(channel, [first, hello()], hold=0.2)
    assert refusal.type is Type.REFUSAL
    assert words in refusal.note["because"]


def test_whoever_claims_to_have_received_too_much_is_refused(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    bank = opened("bank", addresses)
    with raw_channel(addresses["bank"]) as channel:
        (refusal,), _ = answers(channel, [hello(knows=bank._rendezvous.incarnation, received=10**9)])
    assert "shop claims to have received what was never sent to it" in refusal.note["because"]


def test_a_dialling_party_sends_nothing_but_its_greeting_before_it_is_answered(opened):
    heard, answer, ended = [], threading.Event(), threading.Event()

    def record(requests, context):
        heard.append(Envelope.unpack(next(requests)))
        threading.Thread(target=listen, args=(requests,), daemon=True).start()
        answer.wait(10)
        yield hello(name="bank")
        ended.wait(20)

    def listen(requests):
        with suppress(grpc.RpcError):
            heard.extend(Envelope.unpack(request) for request in requests)

    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.stream_stream_rpc_method_handler(record)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("colonnade.Wire", {"Exchange": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        shop = opened("shop", {"bank": f"127.0.0.1:{port}", "shop": None}, patience=replace(SHORT, silence=30))
        shop._rendezvous.links["bank"].put_control({"ready": [0, FOLDER, b""], "epoch": 0})
        shop.send("bank", b"secret")
        time.sleep(0.5)
        assert [envelope.type for envelope in heard] == [Type.HELLO]
        answer.set()
        until(lambda: len(heard) >= 3)
        assert [envelope.type for envelope in heard[1:3]] == [Type.CONTROL, Type.DATA]
    finally:
        ended.set()
        server.stop(None).wait(5)


def test_nobody_reaches_the_wire_without_a_certificate(opened, trusted):
    addresses = addresses_of("bank", dialling=["shop"])
    opened("bank", addresses, credentials=trusted["bank"])
    bare = grpc.ssl_channel_credentials(trusted["shop"].ca_pem)
    named = (("grpc.ssl_target_name_override", host_of("bank")),)
    with grpc.secure_channel(addresses["bank"], bare, options=named) as channel:
        assert answers(channel, [hello()]) == ([], grpc.StatusCode.UNAVAILABLE)


def test_hundreds_of_malformed_streams_do_not_keep_an_honest_peer_out(opened):
    draw = random.Random(0)
    addresses = addresses_of("bank", dialling=["shop"])
    bank = opened("bank", addresses)
    whole = [hello(), Envelope(Type.DATA, 1, 1, 0, 5, LAST, b"hello").pack()]
    before = psutil.Process().memory_info().rss
    outcomes = Counter()
    with raw_channel(addresses["bank"]) as channel:
        for _ in range(300):
            data = bytearray(draw.choice(whole))
            for _ in range(draw.randrange(1, 5)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            came, _ = answers(
                channel, [bytes(data) if draw.random() < 0.9 else draw.randbytes(draw.randrange(3_000_000))]
            )
            outcomes.update(envelope.type for envelope in came[:1])
            assert all(envelope.type is not Type.DATA for envelope in came)
    assert outcomes[Type.REFUSAL] > 200
    assert psutil.Process().memory_info().rss - before < 100 * MEBIBYTE
    shop = opened("shop", addresses)
    until(lambda: shop._rendezvous.links["bank"].connected)
    shop.send("bank", b"honest")
    bank._rendezvous._interrupted = None
    assert bank.receive("shop") == b"honest"


def test_a_message_larger_than_any_envelope_is_cut_off(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    opened("bank", addresses)
    with raw_channel(addresses["bank"]) as channel:
        assert answers(channel, [bytes(20 * MEBIBYTE)]) == ([], grpc.StatusCode.RESOURCE_EXHAUSTED)


def test_streams_that_never_greet_do_not_keep_an_honest_peer_out(opened):
    addresses = addresses_of("bank", dialling=["shop"])
    bank = opened("bank", addresses, patience=replace(SHORT, silence=0.5))
    with raw_channel(addresses["bank"]) as channel:
        release = threading.Event()
        calls = [channel.stream_stream("/colonnade.Wire/Exchange")(iter(release.wait, None)) for _ in range(20)]
        meeting(bank, opened("shop", addresses, patience=replace(SHORT, silence=0.5)))
        release.set()
        for call in calls:
            call.cancel()


def test_strangers_that_never_greet_are_turned_away_at_once(opened, trusted):
    addresses = addresses_of("bank", dialling=["shop"])
    bank = opened("bank", addresses, credentials=trusted["bank"], patience=replace(SHORT, silence=600))
    with raw_channel(addresses["bank"], trusted["mallory"]) as channel:
        release = threading.Event()
        calls = [channel.stream_stream("/colonnade.Wire/Exchange")(iter(release.wait, None)) for _ in range(20)]
        for call in calls:
            assert "mallory is not a party that bank expects" in Envelope.unpack(next(call)).note["because"]
        meeting(bank, opened("shop", addresses, credentials=trusted["shop"]))
        release.set()


@pytest.mark.parametrize(
    ("envelope", "words"),
    [
        (b"rubbish", "got 7 other bytes"),
        (Envelope(Type.ACK, ack=2**60).pack(), "shop acknowledged what was never sent"),
        (Envelope(Type.DATA, 1, 1, 0, 9, LAST, b"hello").pack(), "sent a frame of 5 bytes but announced 9"),
        (Envelope(Type.CONTROL, 0, 1, payload=b"\xc1").pack(), "A peer's control cannot be read"),
    ],
)
def test_a_party_that_speaks_rubbish_ends_the_run_with_the_reason(opened, envelope, words):
    addresses = addresses_of("bank", dialling=["shop"])
    bank = opened("bank", addresses)
    with raw_channel(addresses["bank"]) as channel:
        outcome, came = at_once(
            partial(bank.meet, NOTHING_HELD), lambda: answers(channel, [hello(), envelope], hold=10)
        )
    assert isinstance(outcome, ProtocolError)
    assert words in str(outcome)
    assert came[1] is not grpc.StatusCode.DEADLINE_EXCEEDED, "the connection was closed at once"


def soon(condition, seconds=10):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


def test_a_peer_that_is_lost_in_the_middle_of_a_run_and_comes_back_is_announced_at_once(opened, caplog):
    addresses, seen = addresses_of("bank", dialling=["shop"]), []
    bank = opened("bank", addresses, on_line=lambda peer, is_there: seen.append((peer, is_there)))
    shop = opened("shop", addresses)
    meeting(bank, shop)
    assert seen == []
    shop.close()
    assert soon(lambda: seen == [("shop", False)])
    assert "bank: shop is gone, its connection broke. bank waits up to 20 s." in caplog.text
    again = opened("shop", addresses)
    assert soon(lambda: seen == [("shop", False), ("shop", True)])
    assert "bank: shop is back." in caplog.text
    again.close()


def test_peers_that_leave_at_the_end_are_not_announced_as_lost(pair, caplog):
    bank, shop = pair
    require(*at_once(bank.finish, shop.finish))
    bank.close()
    shop.close()
    assert "is gone" not in caplog.text


@pytest.mark.parametrize("taken", ["127.0.0.1", "::1"])
def test_localhost_is_refused_if_another_program_has_its_port_by_either_protocol(opened, taken):
    port = free_port()
    family = socket.AF_INET6 if ":" in taken else socket.AF_INET
    try:
        other = socket.create_server((taken, port), family=family)
    except OSError:
        pytest.skip("This machine has no IPv6.")
    with other, pytest.raises(PeerUnreachable, match="cannot listen at"):
        opened("bank", {"bank": f"localhost:{port}", "shop": None})


def test_localhost_is_reached_by_both_protocols(opened):
    port = free_port()
    bank = opened("bank", {"bank": f"localhost:{port}", "shop": None})
    for place in places_of(f"localhost:{port}"):
        host, _, number = place.rpartition(":")
        socket.create_connection((host.strip("[]"), int(number)), timeout=5).close()
    shop = opened("shop", {"bank": f"127.0.0.1:{port}", "shop": None})
    meeting(bank, shop)
