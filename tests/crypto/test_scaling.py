"""Shared words times one side's factors, against the products themselves."""

import numpy as np
import pytest

from colonnade.crypto.scaling import scale_as_chooser, scale_as_sender
from colonnade.crypto.transfers import Chooser, Sender, in_turns
from colonnade.errors import CryptoError


@pytest.fixture(scope="module")
def session():
    chooser = Chooser()
    sender = Sender(chooser.point)
    chooser.begin(sender.points)
    return chooser, sender


def seeds(session, count):
    chooser, sender = session
    ours, sent = chooser.extend_seeds(count)
    return ours, sender.extend_seeds(count, sent)


def test_a_chooser_knows_one_of_two_seeds_and_they_look_random(session):
    ours, theirs = seeds(session, 300)
    known = np.where(ours.places[:, None], theirs.one, theirs.zero)
    other = np.where(ours.places[:, None], theirs.zero, theirs.one)
    assert (ours.words == known).all()
    assert not (ours.words == other).any()
    assert np.unpackbits(other.view(np.uint8)).mean() == pytest.approx(0.5, abs=0.015)


@pytest.mark.parametrize("bits", [2, 22, 47, 63])
def test_shares_of_scaled_words_add_up_to_the_products(session, bits):
    random = np.random.default_rng(bits)
    words, first = random.integers(0, 2**64, (2, 4, 9), dtype=np.uint64)
    most = 2 ** (bits - 1) - 1
    factors = np.array([0, most, -most, int(random.integers(-most, most, endpoint=True))])
    ours, theirs = seeds(session, 4 * bits)
    one, two = in_turns(scale_as_chooser(factors, bits, first, ours), scale_as_sender(bits, words - first, theirs))
    assert (one + two == factors.view(np.uint64)[:, None] * words).all()


def test_what_the_sender_gets_and_sends_looks_random_whatever_the_factor(session):
    ours, theirs = seeds(session, 30 * 40)
    turns = scale_as_chooser(np.zeros(40, np.int64), 30, np.zeros((40, 50), np.uint64), ours)
    moved = next(turns)
    answering = scale_as_sender(30, np.zeros((40, 50), np.uint64), theirs)
    next(answering)
    sent = answering.send(moved)
    # 1,200 coins and some millions of them.
    assert np.unpackbits(moved.view(np.uint8))[:1200].mean() == pytest.approx(0.5, abs=0.075)
    assert np.unpackbits(sent.view(np.uint8)).mean() == pytest.approx(0.5, abs=0.003)


def test_another_number_of_words_is_noticed(session):
    ours, _ = seeds(session, 10)
    turns = scale_as_chooser(np.array([3]), 10, np.zeros((1, 5), np.uint64), ours)
    next(turns)
    turns.send(np.zeros(0, np.uint64))
    with pytest.raises(CryptoError, match=r"Expected 5 words times 10 bits, got an array of shape \(7,\)"):
        turns.send(np.zeros(7, np.uint64))
