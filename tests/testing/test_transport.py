"""Each broken transport is found out."""

import pytest

from colonnade.errors import Deadlock, PeerFailed, PeerLeft, PlanError
from colonnade.testing.transport import (
    a_failure_reaches_the_others_in_its_own_words,
    a_peer_that_ends_while_awaited_has_left,
    an_unknown_peer_is_refused,
    check_transport,
    frames_arrive_once_in_order_and_unchanged,
    frames_sent_in_answer_arrive,
    one_peer_can_be_awaited_while_another_has_sent,
    sending_never_waits,
)
from colonnade.wire.memory import MemoryNetwork
from colonnade.wire.transport import Transport

MEBIBYTE = 2**20


class Plain(Transport):
    def __init__(self, line):
        self.line = line

    def send(self, peer, frame):
        self.line.send(peer, frame)

    def receive(self, peer):
        return self.line.receive(peer)


class Twice(Plain):
    def send(self, peer, frame):
        self.line.send(peer, frame)
        self.line.send(peer, frame)


class Shortening(Plain):
    def receive(self, peer):
        return self.line.receive(peer)[:MEBIBYTE]


class Waiting(Plain):
    """Sends and waits until the peer has taken the frame."""

    def send(self, peer, frame):
        self.line.send(peer, frame)
        self.line.receive(peer)

    def receive(self, peer):
        frame = self.line.receive(peer)
        self.line.send(peer, b"taken")
        return frame


class OneQueue(Plain):
    """Gives whatever came first, whoever sent it."""

    taken = 0

    def receive(self, peer):
        self.taken += 1
        return self.line.receive("shop" if self.taken <= 3 else "telco")


class Careless(Plain):
    def send(self, peer, frame):
        if peer != "nobody":
            self.line.send(peer, frame)


class Mute(Plain):
    def receive(self, peer):
        try:
            return self.line.receive(peer)
        except PeerFailed:
            raise PeerFailed("Something went wrong.") from None


class Hopeful(Plain):
    """Takes an empty frame for the end."""

    def receive(self, peer):
        try:
            return self.line.receive(peer)
        except PeerLeft:
            return b""


def runner(kind):
    def run(sides):
        wrapped = {name: lambda line, side=side: side(kind(line)) for name, side in sides.items()}
        return MemoryNetwork(list(sides)).run(wrapped)

    return run


def test_a_wrapped_transport_that_changes_nothing_passes():
    check_transport(runner(Plain))


@pytest.mark.parametrize(
    ("kind", "check", "words"),
    [
        (
            Twice,
            frames_arrive_once_in_order_and_unchanged,
            "bank should receive what shop sent, in order and unchanged",
        ),
        (Shortening, frames_arrive_once_in_order_and_unchanged, "bank should receive what shop sent"),
        (Twice, frames_sent_in_answer_arrive, "fifty answers, each to its own question"),
        (Twice, sending_never_waits, "should receive all 16 frames"),
        (OneQueue, one_peer_can_be_awaited_while_another_has_sent, "although shop's were there first"),
        (Careless, an_unknown_peer_is_refused, "Sending to an unknown peer should be refused with a PlanError"),
        (Mute, a_failure_reaches_the_others_in_its_own_words, "told: Something went wrong"),
        (Twice, a_peer_that_ends_while_awaited_has_left, "Waiting for a peer that has ended should be refused"),
        (Hopeful, a_peer_that_ends_while_awaited_has_left, "Waiting for a peer that has ended should be refused"),
    ],
)
def test_a_broken_transport_is_found_out(kind, check, words):
    with pytest.raises(AssertionError, match=words):
        check(runner(kind))


def test_a_transport_that_waits_for_the_peers_code_is_found_out():
    with pytest.raises(Deadlock):
        sending_never_waits(runner(Waiting))


def test_a_runner_that_hides_a_failure_is_found_out():
    def run(sides):
        try:
            return MemoryNetwork(list(sides)).run(sides)
        except Exception:
            return dict.fromkeys(sides)

    with pytest.raises(AssertionError, match="A run in which one side fails should be refused"):
        a_failure_reaches_the_others_in_its_own_words(run)


def test_a_refusal_in_other_words_is_found_out():
    class Terse(Plain):
        def send(self, peer, frame):
            try:
                self.line.send(peer, frame)
            except PlanError:
                raise PlanError("No.") from None

    with pytest.raises(AssertionError, match="with mention of nobody, but was with: No"):
        an_unknown_peer_is_refused(runner(Terse))
