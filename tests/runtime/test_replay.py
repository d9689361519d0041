"""A peer of a resumed run repeats itself, in every step and under every protocol, or is refused by its name."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from colonnade.errors import PeerChanged
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table
from colonnade.wire.channel import Channel
from colonnade.wire.message import Float64Array, Message

ROLES = Roles(label="bank", features=("shop",))
TABLES = {name: Table.of({"id": (1, 2), "x": (0.0, 1.0)}) for name in ROLES.parties}


@dataclass(frozen=True)
class Word(Message, kind="replay/word"):
    value: Float64Array


@dataclass(frozen=True)
class Veiled(Message, kind="replay/veiled", varies=True):
    value: Float64Array


class Nothing:
    def state(self):
        return {}

    def restore(self, tree):
        pass


def talk(party):
    """Both say a word before, within and between two loops, of which one is within the other."""
    (line,) = party.peers.values()

    def say(number, kind=Word):
        line.send(kind(np.array([number])))
        return line.receive(kind).value[0]

    heard = [say(1.0), say(2.0, Veiled)]
    for outer in party.steps(2, Nothing(), name="outer"):
        heard.append(say(10.0 + outer))
        for inner in party.steps(2, Nothing(), name=f"inner {outer}"):
            heard.append(say(20.0 + inner))
        heard.append(say(30.0 + outer))
    return [*heard, say(3.0)]


def saying(act):
    """A party that keeps to the protocol but for its messages, which an act may exchange or forbid."""

    class Crooked(Channel):
        def send(self, message, **options):
            super().send(act(message), **options)

    def play(party, honest):
        lines = {name: Crooked(name, line._transport, line._recording) for name, line in party.peers.items()}
        return honest(replace(party, peers=lines))

    return {"shop": play}


def stops(message):
    if message.value[0] == 3.0:
        raise RuntimeError("that is enough")
    return message


def run(folder, act, every=50):
    return simulate(talk, TABLES, roles=ROLES, directory=folder, instead=saying(act), checkpoint_every=every)


@pytest.mark.parametrize(
    ("number", "where"),
    [(1.0, ""), (10.0, " in step 0 of outer"), (21.0, " in step 1 of inner 0"), (31.0, " in step 1 of outer")],
)
def test_a_word_that_a_peer_says_otherwise_in_its_place_is_refused(number, where, tmp_path):
    with pytest.raises(RuntimeError, match="that is enough"):
        run(tmp_path, stops)
    for path in tmp_path.rglob("[0-9]*.safetensors"):
        path.unlink()

    def otherwise(message):
        return Word(message.value + 0.5) if message.value[0] == number and isinstance(message, Word) else message

    with pytest.raises(PeerChanged) as refusal:
        run(tmp_path, otherwise)
    assert str(refusal.value) == (
        "shop should resend bank exactly the bytes it sent before when a run resumes, but sent another "
        f"replay/word{where}: masks and noise of a run serve one answer. Resume shop from the folder and the table "
        "that it had, or let shop begin another run in a new folder, which is charged by itself."
    )
    assert refusal.value.peer == "shop"


@pytest.mark.parametrize("every", [1, 50])
def test_a_message_that_varies_by_itself_may_differ_and_steps_that_are_skipped_are_not_missed(every, tmp_path):
    with pytest.raises(RuntimeError, match="that is enough"):
        run(tmp_path, stops, every)

    def veiled_otherwise(message):
        return Veiled(message.value + 0.5) if isinstance(message, Veiled) else message

    heard = run(tmp_path, veiled_otherwise, every).results["bank"]
    assert heard[:2] == [1.0, 2.5]
    assert heard[-1] == 3.0
