"""Signs of shared numbers, many at once, from a stock that was made ahead, against the numbers themselves."""

import numpy as np
import pytest

from colonnade.crypto import paired
from colonnade.crypto.paired import (
    RandomProducts,
    all_of,
    chooser_products,
    chooser_stock,
    kept,
    n_digits,
    n_products,
    negative,
    sender_products,
    sender_stock,
)
from colonnade.crypto.transfers import Chooser, Sender, in_turns
from colonnade.errors import CryptoError


@pytest.fixture(scope="module")
def sessions():
    """Two sessions, one in each direction."""

    def begun():
        chooser = Chooser()
        sender = Sender(chooser.point)
        chooser.begin(sender.points)
        return chooser, sender

    return begun(), begun()


def shared(values, seed=0):
    words = np.array([int(value) % 2**64 for value in values], np.uint64)
    first = np.random.default_rng(seed).integers(0, 2**64, len(words), dtype=np.uint64)
    return first, words - first


def stocks(session, count, bits):
    chooser, sender = session
    first, sent = chooser_stock(chooser, count, bits)
    return first, sender_stock(sender, count, bits, sent)


def compared(session, values, bits, seed=0):
    shares, (ours, theirs) = shared(values, seed), stocks(session, len(values), bits)
    first, second = in_turns(negative(shares[0], bits, ours), negative(shares[1], bits, theirs))
    return first, second


@pytest.mark.parametrize("bits", [2, 3, 5, 6, 9, 10, 13, 17, 21, 33, 40, 63, 64])
def test_shared_bits_say_which_numbers_are_negative(sessions, bits):
    limit = 2 ** (bits - 1)
    drawn = np.random.default_rng(bits).integers(-limit, limit - 1, 200, endpoint=True).tolist()
    values = [0, -1, limit - 1, -limit, min(1, limit - 1), max(-2, -limit), limit // 2, -limit // 2, *drawn]
    first, second = compared(sessions[0], values, bits, bits)
    assert (first ^ second).tolist() == [int(value < 0) for value in values]


def test_neither_share_alone_says_anything(sessions):
    first, second = compared(sessions[0], [-5] * 10_000 + [5] * 10_000, 16)
    # Five standard deviations of the mean of 10,000 coins are 0.025.
    for share in (first, second):
        for half in (share[:10_000], share[10_000:]):
            assert half.mean() == pytest.approx(0.5, abs=0.025)


def test_neither_side_learns_how_single_digits_compare(sessions, monkeypatch):
    """Both sides hold shares of each comparison of digits, which are uniform by themselves."""
    seen, honest = [], paired._columns

    def columns(found, count):
        seen.append(honest(found, count))
        return seen[-1]

    monkeypatch.setattr(paired, "_columns", columns)
    compared(sessions[0], [0] * 500, 33)
    assert len(seen) == 2
    for found in seen:
        # 500 numbers of 8 digits are 4,000 coins of each kind: five standard deviations are 0.04.
        assert found.mean(axis=(1, 2)) == pytest.approx([0.5, 0.5], abs=0.04)


def test_random_products_are_products(sessions):
    ours, theirs = stocks(sessions[0], 500, 40)
    one, two = ours.products, theirs.products
    assert ((one.a ^ two.a) & (one.b ^ two.b) == one.product ^ two.product).all()
    assert len(one.a) == 500 * n_products(40)
    for bits in (one.a ^ two.a, one.b ^ two.b, one.product, two.product):
        assert bits.mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("bits", "digits", "products"), [(2, 1, 0), (5, 1, 0), (9, 2, 1), (40, 10, 14), (64, 16, 26)])
def test_digits_and_products_are_as_many_as_the_page_says(bits, digits, products):
    assert n_digits(bits) == digits
    assert n_products(bits) == products


def test_words_are_kept_where_the_shared_bit_is_one(sessions):
    random = np.random.default_rng(0)
    words = random.integers(0, 2**64, 300, dtype=np.uint64)
    bits = random.integers(0, 2, 300).astype(np.uint8)
    first_bits = random.integers(0, 2, 300).astype(np.uint8)
    shares = shared(words.tolist())
    made = []
    for chooser, sender in sessions:
        theirs, sent = chooser.extend_words(300)
        made.append((theirs, sender.extend_words(300, sent)))
    # In the first session the first side chooses, in the second one it sends.
    (first_chooses, second_sends), (second_chooses, first_sends) = made
    one, two = in_turns(
        kept(shares[0], first_bits, first_sends, first_chooses),
        kept(shares[1], first_bits ^ bits, second_sends, second_chooses),
    )
    assert (one + two == words * bits).all()


def test_a_stock_that_is_too_small_is_refused(sessions):
    from dataclasses import replace

    ours, theirs = stocks(sessions[0], 10, 9)
    few = RandomProducts(*(part[:3] for part in vars(ours.products).values()))
    shares = shared([1] * 10)
    with pytest.raises(CryptoError, match=r"a stock of 10 products of bits, but 3 are left. Make more ahead."):
        in_turns(negative(shares[0], 9, replace(ours, products=few)), negative(shares[1], 9, theirs))


def test_another_number_of_comparisons_is_noticed(sessions):
    ours, theirs = stocks(sessions[0], 10, 9)
    shares = shared([1] * 10)
    turns = negative(shares[1], 9, theirs)
    next(turns)
    with pytest.raises(CryptoError, match=r"Expected 20 numbers of 4 bits, got an array of shape \(5,\)"):
        turns.send(np.zeros(5, np.uint64))
    assert len(ours.digits.pads) == 20


@pytest.mark.parametrize("factors", [2, 3, 7])
def test_shared_bits_say_whether_all_of_a_column_are_one(sessions, factors):
    random = np.random.default_rng(factors)
    bits = (random.random((factors, 40, 5)) < 0.8).astype(np.uint8)
    first = random.integers(0, 2, bits.shape).astype(np.uint8)
    chooser, sender = sessions[0]
    ours, sent = chooser_products(chooser, 200 * (factors - 1))
    theirs = sender_products(sender, 200 * (factors - 1), sent)
    one, two = in_turns(all_of(first, ours, leading=True), all_of(first ^ bits, theirs, leading=False))
    assert (one ^ two == bits.all(axis=0)).all()
