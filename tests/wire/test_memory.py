from contextvars import ContextVar

import pytest

from colonnade.errors import DataError, Deadlock, PeerFailed, PeerLeft, PlanError
from colonnade.wire.memory import MemoryNetwork


def run(**sides):
    return MemoryNetwork(list(sides)).run(sides)


def test_two_parties_that_wait_for_each_other_are_told_so():
    with pytest.raises(Deadlock, match="bank waits for shop, shop waits for bank") as caught:
        run(bank=lambda line: line.receive("shop"), shop=lambda line: line.receive("bank"))
    assert caught.value.__notes__[0].startswith("This happened at")


def test_three_parties_that_wait_in_a_ring_are_told_so():
    with pytest.raises(Deadlock, match="a waits for b, b waits for c, c waits for a"):
        run(a=lambda t: t.receive("b"), b=lambda t: t.receive("c"), c=lambda t: t.receive("a"))


def test_a_wait_that_starts_when_everybody_else_has_ended_or_waits_is_noticed():
    def leaves(line):
        return None

    with pytest.raises(Deadlock, match="a waits for b, b waits for a"):
        run(a=lambda t: t.receive("b"), b=lambda t: t.receive("a"), c=leaves)


def test_a_peer_that_has_finished_is_named():
    with pytest.raises(PeerLeft, match="bank waits for a message from shop, but shop has finished"):
        run(bank=lambda line: line.receive("shop"), shop=lambda line: None)


def test_the_first_cause_is_raised_and_the_others_hear_of_it():
    heard = {}

    def fails(line):
        raise DataError("shop has no rows.")

    def waits(line):
        try:
            line.receive("shop")
        except PeerFailed as error:
            heard["bank"] = str(error)
            raise

    with pytest.raises(DataError, match="shop has no rows") as caught:
        run(bank=waits, shop=fails)
    assert caught.value.__notes__ == ["This happened at shop."]
    assert heard["bank"] == "bank stops because shop failed: shop has no rows."


def test_a_foreign_error_keeps_its_type_and_is_named_to_the_others():
    heard = {}

    def fails(line):
        raise ZeroDivisionError("division by zero")

    def waits(line):
        try:
            line.receive("telco")
        except PeerFailed as error:
            heard["words"] = str(error)

    def idle(line):
        line.receive("bank")

    with pytest.raises(ZeroDivisionError):
        run(bank=waits, shop=fails, telco=idle)
    assert heard["words"] == "bank stops because shop failed: ZeroDivisionError: division by zero"


def test_an_unknown_peer_is_refused():
    with pytest.raises(PlanError, match="There is no line from bank to nobody; the parties of this run are bank, shop"):
        run(bank=lambda line: line.send("nobody", b""), shop=lambda line: None)


def test_only_one_party_runs_at_a_time_in_an_order_that_messages_fix():
    seen = []

    def side(name, other):
        def play(line):
            for i in range(3):
                seen.append((name, i))
                line.send(other, b"")
                line.receive(other)

        return play

    for _ in range(5):
        seen.clear()
        run(bank=side("bank", "shop"), shop=side("shop", "bank"))
        assert seen == [("bank", 0), ("shop", 0), ("shop", 1), ("bank", 1), ("bank", 2), ("shop", 2)]


def test_context_variables_set_by_one_party_are_unknown_to_the_others():
    mood = ContextVar("mood", default="calm")
    seen = {}

    def excited(line):
        mood.set("excited")
        line.receive("shop")
        seen["bank"] = mood.get()

    def calm(line):
        seen["shop"] = mood.get()
        line.send("bank", b"")

    run(bank=excited, shop=calm)
    assert seen == {"bank": "excited", "shop": "calm"}


def test_an_interruption_stops_every_party_and_is_raised():
    stopped = []

    def waits(line):
        try:
            line.receive("shop")
        except PeerFailed:
            stopped.append("bank")
            raise

    def interrupted(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(bank=waits, shop=interrupted)
    assert stopped == ["bank"]


def test_a_network_may_run_inside_a_party_of_another():
    def outer(line):
        return run(inner=lambda t: t.receive("other"), other=lambda t: t.send("inner", b"within"))["inner"]

    assert run(bank=outer, shop=lambda line: None)["bank"] == b"within"
