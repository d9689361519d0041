"""Reserves: both sides hold what fits together, draw it once, and fill up what is lacking."""

import pickle
from dataclasses import fields

import numpy as np
import pytest

from colonnade.crypto.paired import negative
from colonnade.crypto.reserves import Amount, Reserve, begin_first, begin_second, fill_first, fill_second
from colonnade.crypto.transfers import in_turns
from colonnade.crypto.triples import AT_ONCE
from colonnade.errors import CryptoError


@pytest.fixture(scope="module")
def sessions():
    return in_turns(begin_first(), begin_second())


def filled(sessions, amount, reserves=None):
    one, two = reserves or (Reserve(leading=True), Reserve(leading=False))
    in_turns(fill_first(sessions[0], one, amount), fill_second(sessions[1], two, amount))
    return one, two


def test_both_sides_hold_as_much_and_what_they_hold_fits_together(sessions):
    amount = Amount.of_signs(50, 21) + Amount(forth=30, back=20, triples=10, squares=5, seeds=40)
    one, two = filled(sessions, amount)
    assert one.left == two.left
    assert all(getattr(one.left, each.name) >= getattr(amount, each.name) for each in fields(Amount))
    a, b = one.triples(10), two.triples(10)
    assert ((a.a + b.a) * (a.b + b.b) == a.product + b.product).all()
    a, b = one.squares(5), two.squares(5)
    assert ((a.a + b.a) ** 2 == a.square + b.square).all()
    values = np.arange(-25, 25)
    first = np.random.default_rng(0).integers(0, 2**64, 50, dtype=np.uint64)
    found = in_turns(
        negative(first, 21, one.signs(50, 21)),
        negative(values.view(np.uint64) - first, 21, two.signs(50, 21)),
    )
    assert (found[0] ^ found[1] == (values < 0)).all()
    (own, others), (their_own, their_others) = one.choices(20), two.choices(20)
    assert (others.words == np.where(others.places, their_own.one, their_own.zero)).all()
    assert (their_others.words == np.where(their_others.places, own.one, own.zero)).all()


def test_what_was_drawn_is_gone_and_a_refill_makes_what_is_lacking(sessions):
    one, two = filled(sessions, Amount(forth=30, triples=10))
    first, second = one.shifts(20).words, one.shifts(10).words
    assert not set(first) & set(second)
    with pytest.raises(CryptoError, match=r"Expected a reserve of 1 forth, but 0 are left. Prepare more ahead."):
        one.shifts(1)
    two.shifts(30)
    assert one.left == Amount(triples=AT_ONCE)
    filled(sessions, Amount(forth=8, triples=AT_ONCE), (one, two))
    assert one.left == two.left == Amount(forth=8, triples=AT_ONCE)


def test_a_reserve_is_never_copied_and_a_fork_has_none(sessions, monkeypatch):
    one, _ = filled(sessions, Amount(forth=3))
    with pytest.raises(CryptoError, match="serves once and cannot be copied"):
        pickle.dumps(one)
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(CryptoError, match="serves the process that prepared it"):
        one.shifts(1)


def test_a_side_that_prepares_another_amount_is_noticed(sessions):
    turns = fill_second(sessions[1], Reserve(leading=False), Amount(forth=100))
    next(turns)
    with pytest.raises(CryptoError, match=r"Expected 128 columns of 2 words, got an array of shape \(128,\)"):
        turns.send(np.zeros(128, np.uint64))
    turns = fill_second(sessions[1], Reserve(leading=False), Amount(triples=1))
    next(turns)
    turns.send(np.zeros(0, np.uint64))
    with pytest.raises(CryptoError, match=r"Expected 16 ciphertexts, got 5 words"):
        turns.send(np.zeros(5, np.uint64))
    turns = begin_second()
    next(turns)
    with pytest.raises(CryptoError, match=r"Expected 1 points, got an array of shape \(3,\)"):
        turns.send(np.zeros(3, np.uint64))
