"""Products and shifts of shared words, against the words themselves."""

import numpy as np
import pytest

from colonnade.crypto.paired import shift
from colonnade.crypto.profiles import SHARES
from colonnade.crypto.rlwe import SecretKey
from colonnade.crypto.transfers import Chooser, Sender, in_turns
from colonnade.crypto.triples import (
    Triples,
    ask_for_squares,
    ask_for_triples,
    help_with_squares,
    help_with_triples,
    multiply,
    receive_squares,
    receive_triples,
    square,
)
from colonnade.errors import CryptoError

COUNT = 300


@pytest.fixture(scope="module")
def made():
    """Triples of both sides."""
    secret = SecretKey(profile=SHARES)
    a, b, data = ask_for_triples(secret.public, COUNT)
    reply, helped = help_with_triples(secret.public, data, COUNT)
    return receive_triples(secret, a, b, reply), helped


@pytest.fixture(scope="module")
def session():
    chooser = Chooser()
    sender = Sender(chooser.point)
    chooser.begin(sender.points)
    return chooser, sender


def shared(words, seed):
    first = np.random.default_rng(seed).integers(0, 2**64, len(words), dtype=np.uint64)
    return first, words - first


def test_triples_are_products(made):
    asker, helper = made
    assert ((asker.a + helper.a) * (asker.b + helper.b) == asker.product + helper.product).all()


def drawn_words(public):
    """The words that each side takes off what it shares: of triples and of squares, asker's and helper's."""
    a, b, data = ask_for_triples(public, COUNT)
    helped = help_with_triples(public, data, COUNT)[1]
    root, encrypted = ask_for_squares(public, COUNT)
    return [a, b, helped.a, helped.b, root, help_with_squares(public, encrypted, COUNT)[1].a]


def test_words_that_hide_shares_are_drawn_anew_by_each_side():
    """A word that is known, or serves twice, shows a share or the difference of two."""
    public = SecretKey(profile=SHARES).public
    words = np.concatenate(drawn_words(public) + drawn_words(public))
    assert len(np.unique(words)) == len(words) == 12 * COUNT
    # Every bit is set in about half of the words: one in 2^60 runs is further off.
    share = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
    assert np.abs(share - 0.5).max() < 10 * 0.5 / np.sqrt(len(words))


def test_products_of_shared_words_are_shared(made):
    random = np.random.default_rng(0)
    x, y = random.integers(0, 2**64, (2, COUNT), dtype=np.uint64)
    (x1, x2), (y1, y2) = shared(x, 1), shared(y, 2)
    one, two = in_turns(multiply(x1, y1, made[0], leading=True), multiply(x2, y2, made[1], leading=False))
    assert (one + two == x * y).all()


@pytest.mark.parametrize("chooser_leads", [True, False])
@pytest.mark.parametrize("bits", [1, 17, 40])
def test_shifted_numbers_are_off_by_one_unit_at_most(session, bits, chooser_leads):
    random = np.random.default_rng(bits)
    numbers = np.concatenate([random.integers(-(2**62) + 1, 2**62, 2000), [0, 1, -1, 2**62 - 1, -(2**62) + 1]])
    chooser, sender = session
    theirs, sent = chooser.extend_words(len(numbers))
    ours = sender.extend_words(len(numbers), sent)
    first, second = shared(numbers.view(np.uint64), bits)
    one, two = in_turns(
        shift(first, bits, theirs, leading=chooser_leads),
        shift(second, bits, ours, leading=not chooser_leads),
    )
    off = (numbers >> bits) - (one + two).view(np.int64)
    assert set(off) <= {0, 1}


def test_another_number_of_words_is_noticed(made):
    few = Triples(*(part[:3] for part in vars(made[0]).values()))
    turns = multiply(np.zeros(3, np.uint64), np.zeros(3, np.uint64), few, leading=True)
    next(turns)
    with pytest.raises(CryptoError, match=r"Expected 6 words, got an array of shape \(5,\)"):
        turns.send(np.zeros(5, np.uint64))


def test_squares_of_shared_words_are_shared():
    secret = SecretKey(profile=SHARES)
    a, data = ask_for_squares(secret.public, COUNT)
    reply, theirs = help_with_squares(secret.public, data, COUNT)
    ours = receive_squares(secret, a, reply)
    assert ((ours.a + theirs.a) ** 2 == ours.square + theirs.square).all()
    x = np.random.default_rng(0).integers(0, 2**64, COUNT, dtype=np.uint64)
    first, second = shared(x, 1)
    one, two = in_turns(square(first, ours, leading=True), square(second, theirs, leading=False))
    assert (one + two == x * x).all()
