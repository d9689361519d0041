"""The contract of transports: frames arrive in order and exactly once, or somebody is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from blake3 import blake3

from colonnade.errors import ColonnadeError, DataError, PeerLeft, PlanError, WireError
from colonnade.testing.assertions import must, must_refuse
from colonnade.wire.codec import Frame
from colonnade.wire.transport import Transport

Side: TypeAlias = Callable[[Transport], Any]
Runner: TypeAlias = Callable[[Mapping[str, Side]], Mapping[str, Any]]

MEBIBYTE = 2**20


def check_transport(run: Runner) -> None:
    """Check that a transport moves frames in order and exactly once, or raises.

    Args:
        run: Runs each party's side on a transport of its own, all in this process, and returns what each returned.

    >>> from colonnade.wire.memory import MemoryNetwork
    >>> check_transport(lambda sides: MemoryNetwork(list(sides)).run(sides))
    """
    for check in TRANSPORT_CHECKS:
        check(run)


def frames_arrive_once_in_order_and_unchanged(run: Runner) -> None:
    """Both directions at once, empty, odd and large frames among them."""
    sizes = [0, 1, 8 * MEBIBYTE, 0, *range(100)]
    sent = {name: [_frame(name, number, size) for number, size in enumerate(sizes)] for name in ("bank", "shop")}

    def exchange(own: str, peer: str, line: Transport) -> list[Frame]:
        for frame in sent[own]:
            line.send(peer, frame)
        return [line.receive(peer) for _ in sent[peer]]

    came = run({"bank": partial(exchange, "bank", "shop"), "shop": partial(exchange, "shop", "bank")})
    for receiver, sender in (("bank", "shop"), ("shop", "bank")):
        must(came[receiver] == sent[sender], f"{receiver} should receive what {sender} sent, in order and unchanged.")


def frames_sent_in_answer_arrive(run: Runner) -> None:
    """A conversation: each frame follows from the one before."""

    def ask(line: Transport) -> Frame:
        word: Frame = b""
        for _ in range(50):
            line.send("shop", word)
            word = line.receive("shop")
        return word

    def answer(line: Transport) -> None:
        for _ in range(50):
            line.send("bank", bytes(line.receive("bank")) + b"!")

    said = run({"bank": ask, "shop": answer})["bank"]
    must(said == b"!" * 50, "Fifty questions should bring fifty answers, each to its own question.")


def sending_never_waits(run: Runner) -> None:
    """A ring of three in which everybody sends 16 MiB before it receives."""
    ring = ("bank", "shop", "telco")

    def send_then_receive(place: int, line: Transport) -> bool:
        own, following, previous = ring[place], ring[(place + 1) % 3], ring[place - 1]
        for number in range(16):
            line.send(following, _frame(own, number, MEBIBYTE))
        return all(line.receive(previous) == _frame(previous, number, MEBIBYTE) for number in range(16))

    came = run({name: partial(send_then_receive, place) for place, name in enumerate(ring)})
    for name in ring:
        must(came[name], f"{name} should receive all 16 frames that were sent before it began to receive.")


def one_peer_can_be_awaited_while_another_has_sent(run: Runner) -> None:
    """What one peer sent does not stand in the way of another."""

    def shop(line: Transport) -> None:
        for number in range(3):
            line.send("bank", _frame("shop", number, 10))
        line.send("telco", b"now you")

    def telco(line: Transport) -> None:
        line.receive("shop")
        line.send("bank", b"telco")

    def bank(line: Transport) -> list[Frame]:
        return [line.receive(peer) for peer in ("telco", "shop", "shop", "shop")]

    came = run({"bank": bank, "shop": shop, "telco": telco})["bank"]
    expected = [b"telco", *(_frame("shop", number, 10) for number in range(3))]
    must(came == expected, "bank should receive telco's frame although shop's were there first, and then shop's.")


def an_unknown_peer_is_refused(run: Runner) -> None:
    """Sending to nobody, or waiting for nobody, is a mistake in the plan."""

    def bank(line: Transport) -> None:
        must_refuse(lambda: line.send("nobody", b""), PlanError, "nobody", what="Sending to an unknown peer")
        must_refuse(lambda: line.receive("nobody"), PlanError, "nobody", what="Waiting for an unknown peer")

    run({"bank": bank, "shop": lambda line: None})


def a_failure_reaches_the_others_in_its_own_words(run: Runner) -> None:
    """Whoever waits for a party that fails is told who failed and why."""
    heard: dict[str, str] = {}
    words = "The vault is empty."

    def fail(line: Transport) -> None:
        line.receive("shop")
        raise DataError(words)

    def wait(own: str, line: Transport) -> None:
        try:
            line.send("bank", b"go on")
            line.receive("bank")
        except WireError as error:
            heard[own] = str(error)

    sides: dict[str, Side] = {"bank": fail, "shop": partial(wait, "shop"), "telco": partial(wait, "telco")}
    must_refuse(lambda: run(sides), ColonnadeError, words, what="A run in which one side fails")
    for name in ("shop", "telco"):
        must(name in heard, f"{name} should get a WireError when the party that it waits for fails.")
        told = "bank" in heard[name] and words in heard[name]
        must(told, f"{name} should be told that bank failed, and in bank's own words, but was told: {heard[name]}")


def a_peer_that_ends_while_awaited_has_left(run: Runner) -> None:
    """What it had sent arrives, once; then the waiting ends."""

    def bank(line: Transport) -> Frame:
        came = line.receive("shop")
        must_refuse(lambda: line.receive("shop"), PeerLeft, "shop", what="Waiting for a peer that has ended")
        return came

    came = run({"bank": bank, "shop": lambda line: line.send("bank", b"the only one")})["bank"]
    must(came == b"the only one", "A frame should arrive even if its sender has ended.")


def _frame(sender: str, number: int, size: int) -> bytes:
    return blake3(f"{sender} {number}".encode()).digest(length=size)


TRANSPORT_CHECKS: tuple[Callable[[Runner], None], ...] = (
    frames_arrive_once_in_order_and_unchanged,
    frames_sent_in_answer_arrive,
    sending_never_waits,
    one_peer_can_be_awaited_while_another_has_sent,
    an_unknown_peer_is_refused,
    a_failure_reaches_the_others_in_its_own_words,
    a_peer_that_ends_while_awaited_has_left,
)
