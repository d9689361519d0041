"""Sides of rows: those of the node's rows, and nothing else."""

import numpy as np
import pytest

from colonnade.crypto.transfers import Chooser, Sender, in_turns
from colonnade.models.trees.sides import MOST_SPLITS, choice_bits, fetch_sides, serve_sides


@pytest.fixture(scope="module")
def session():
    chooser = Chooser()
    sender = Sender(chooser.point)
    chooser.begin(sender.points)
    return chooser, sender


def pads(session, n_rows, n_splits):
    chooser, sender = session
    theirs, sent = chooser.extend(n_rows, choice_bits(n_splits), 1)
    return theirs, sender.extend(n_rows, choice_bits(n_splits), 1, sent)


@pytest.mark.parametrize("n_splits", [1, 2, 3, 4, 8, 16, MOST_SPLITS])
def test_the_label_party_gets_the_sides_of_each_nodes_rows(session, n_splits):
    random = np.random.default_rng(n_splits)
    place = random.integers(-1, n_splits, 3000)
    nodes = [np.flatnonzero(place == node) for node in range(n_splits)]
    sides = [random.random(3000) < 0.5 for _ in range(n_splits)]
    theirs, ours = pads(session, 3000, n_splits)
    found, _ = in_turns(fetch_sides(theirs, nodes, 3000), serve_sides(ours, sides))
    for rows, side, got in zip(nodes, sides, found, strict=True):
        assert (got == side[rows]).all()


def recorded(turns, sent):
    try:
        out = next(turns)
        while True:
            sent.append(out)
            out = turns.send((yield out))
    except StopIteration as end:
        return end.value


def test_what_crosses_is_the_same_size_whatever_the_nodes_are_and_looks_random(session):
    sizes = []
    for rows in (np.arange(2), np.arange(5000)):
        sent: list[np.ndarray] = []
        theirs, ours = pads(session, 5000, 1)
        side = np.ones(5000, bool)
        in_turns(recorded(fetch_sides(theirs, [rows], 5000), sent), recorded(serve_sides(ours, [side]), sent))
        sizes.append([message.nbytes for message in sent])
        for message in sent:
            if message.size:
                # 5,000 coins at least: five standard deviations are 0.036. The last word is not full.
                assert np.unpackbits(message[:-1].view(np.uint8)).mean() == pytest.approx(0.5, abs=0.036)
    assert sizes[0] == sizes[1]


def test_a_row_outside_all_nodes_tells_nothing(session):
    # What the label party could open with the pad it knows is the message 0, whatever the row's side is.
    theirs, ours = pads(session, 1000, 1)
    choices = np.zeros(1000, np.uint64)
    moved = theirs.moved(choices)
    for side in (0, 1):
        words = ours.sealed(np.full(1000, side << 1, np.uint64), moved)
        assert (theirs.opened(words, choices) == 0).all()
    # Under the other choice it would take the pad that it does not know.
    words = ours.sealed(np.full(1000, 2, np.uint64), moved)
    guessed = (words >> np.uint64(1) & np.uint64(1)) ^ theirs.pads
    assert guessed.mean() == pytest.approx(0.5, abs=0.08)
