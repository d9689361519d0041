"""What two parties compute on shares in turns, against the numbers themselves."""

import numpy as np
import pytest

from colonnade.crypto.paired import Pair
from colonnade.crypto.transfers import Chooser, in_turns
from colonnade.errors import CryptoError


@pytest.fixture(scope="module")
def pairs():
    both = Pair(leading=True), Pair(leading=False)
    in_turns(both[0].begin(), both[1].begin())
    return both


def shared(values, seed=0):
    words = np.array([int(value) % 2**64 for value in values], np.uint64)
    first = np.random.default_rng(seed).integers(0, 2**64, len(words), dtype=np.uint64)
    return first, words - first


def both(pairs, method, values, *about):
    first, second = shared(values)
    return in_turns(getattr(pairs[0], method)(first, *about), getattr(pairs[1], method)(second, *about))


def signed(first, second):
    return (first + second).view(np.int64)


def test_shifted_numbers_are_quotients_or_one_less(pairs):
    values = [0, 1, -1, 2**61, -(2**61), 12345678901, *range(-500, 500, 7)]
    found = signed(*both(pairs, "shifted", values, 5))
    expected = np.array([value // 32 for value in values])
    assert set((expected - found).tolist()) == {0, 1}


def test_shifting_rounds_at_random_without_bias_to_one_unit_less(pairs):
    for value in (0, 5, 16, 31, -1):
        found = signed(*both(pairs, "shifted", [value] * 4000, 5))
        # Five standard deviations of the mean of 4,000 coins are 0.04.
        assert found.mean() == pytest.approx(value / 32 - 1, abs=0.04 + 1 / 32)


def test_floored_numbers_are_rounded_down_always(pairs):
    random = np.random.default_rng(0)
    values = [0, -1, 1, 2**32, -(2**32), 2**33 - 1, -(2**33), *random.integers(-(2**45), 2**45, 3000).tolist()]
    for _ in range(2):
        first, second = both(pairs, "floored", values, 33)
        assert (((first + second) << np.uint64(33)).view(np.int64) >> 33 == np.array(values) // 2**33).all()


def test_signs_are_those_of_the_numbers(pairs):
    values = [0, -1, 1, 2**14, -(2**14), 2**15 - 1, -(2**15)]
    first, second = both(pairs, "negative", values, 16)
    assert (first ^ second).tolist() == [0, 1, 0, 0, 1, 0, 1]


def test_words_are_kept_where_shared_bits_are_one(pairs):
    values = shared([7, -8, 9, 10])
    bits = np.array([1, 0, 1, 0], np.uint8), np.array([0, 0, 1, 1], np.uint8)
    found = in_turns(*(pair.kept(value, bit) for pair, value, bit in zip(pairs, values, bits, strict=True)))
    assert signed(*found).tolist() == [7, 0, 0, 10]


@pytest.mark.parametrize("bits", [1, 2, 3, 7])
def test_words_of_a_table_stand_at_shared_places(pairs, bits):
    table = np.random.default_rng(bits).integers(0, 2**64, 1 << bits, dtype=np.uint64)
    places = np.random.default_rng(1).integers(-(2**40), 2**40, 5000)
    first, second = both(pairs, "looked_up", places.tolist(), table)
    assert (first + second == table[places % (1 << bits)]).all()
    # Each share alone is uniform.
    for share in (first, second):
        assert (share >> np.uint64(63)).mean() == pytest.approx(0.5, abs=0.05)


def test_all_messages_of_a_lookup_but_the_chosen_one_are_hidden(pairs):
    """A chooser that opens another message of its table gets nothing that has to do with the table."""
    table, (first, second) = np.full(8, 5, np.uint64), shared([3] * 2000)
    honest, showing = pairs[0].looked_up(first, table), pairs[1].looked_up(second, table)
    sent, _ = next(honest), next(showing)
    came = showing.send(sent)
    honest.send(np.zeros(0, np.uint64))
    messages = came.reshape(-1, 8).copy()
    with pytest.raises(StopIteration) as own:
        showing.send(np.zeros(0, np.uint64))
    others = (first + np.uint64(1)) % np.uint64(8)
    wrong = messages.copy()
    rows = np.arange(len(first))
    wrong[rows, (first % np.uint64(8)).astype(int)] = messages[rows, others.astype(int)]
    with pytest.raises(StopIteration) as found:
        honest.send(wrong.ravel())
    assert (found.value.value + own.value.value != 5).all()


def test_messages_of_a_lookup_do_not_hide_behind_words_that_others_share(pairs):
    """Words of halves that served several messages would cancel out in the four corners of a rectangle."""
    table, (first, second) = np.full(16, 5, np.uint64), shared([3] * 100)
    honest, showing = pairs[0].looked_up(first, table), pairs[1].looked_up(second, table)
    sent, _ = next(honest), next(showing)
    messages = showing.send(sent).reshape(-1, 4, 4)
    corners = messages[:, 1:] ^ messages[:, :1]
    corners = corners[:, :, 1:] ^ corners[:, :, :1]
    assert (corners != 0).all()


def test_the_length_is_the_sum_of_squares(pairs):
    values = [3, -4, 12, 2**20, -(2**25)]
    first, second = both(pairs, "length", values)
    assert int((first + second)[0]) == sum(value**2 for value in values) % 2**64


def test_what_is_sent_is_new_each_time(pairs):
    first, _ = shared([1, 2, 3])
    sent = [next(pairs[0].looked_up(first, np.arange(8, dtype=np.uint64))).tobytes() for _ in range(2)]
    assert sent[0] != sent[1]


def test_words_of_a_wrong_length_are_refused(pairs):
    turns = Pair(leading=True).begin()
    turns.send(None)
    turns.send(Chooser().point.view(np.uint64).ravel())
    with pytest.raises(CryptoError, match="Expected 256 points"):
        turns.send(np.zeros(3, np.uint64))
    turns = pairs[1].negative(np.zeros(5, np.uint64), 16)
    next(turns)
    with pytest.raises(CryptoError, match="Expected 128 columns of 3 words, got an array of shape"):
        turns.send(np.zeros(3, np.uint64))
    turns = pairs[0].looked_up(np.zeros(5, np.uint64), np.zeros(8, np.uint64))
    next(turns)
    turns.send(np.zeros(0, np.uint64))
    with pytest.raises(CryptoError, match="Expected 40 words of tables"):
        turns.send(np.zeros(3, np.uint64))


def test_computing_needs_sessions_first():
    turns = Pair(leading=False).shifted(np.zeros(1, np.uint64), 3)
    next(turns)
    with pytest.raises(CryptoError, match="Begin with these"):
        turns.send(np.zeros(128, np.uint64))
