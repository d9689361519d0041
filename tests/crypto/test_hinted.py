"""Hinted RLWE: exact sums, a flood over every answer, secrets used once, and the attack that the flood stops."""

import copy
import itertools
import multiprocessing
import pickle
import stat
import threading
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from colonnade.crypto import hinted, sampling, wide_kernels
from colonnade.crypto.hinted import (
    Holder,
    Messages,
    PublicMatrix,
    Queries,
    Reader,
    Slots,
    commitment,
    joint_seed,
)
from colonnade.crypto.histograms import HistogramBins
from colonnade.crypto.packing import unpacked_wide
from colonnade.crypto.profiles import HISTOGRAM, Budget
from colonnade.crypto.sampling import Stream
from colonnade.crypto.wide import PRIME_BITS, WideRing
from colonnade.errors import BudgetSpent, CryptoError, DataError, KeyMismatch, Overflow

N = HISTOGRAM.n
# The primes are 1 modulo 2n for every smaller n too: a ring on which an attack takes seconds.
TINY = replace(HISTOGRAM, name="tiny", n=64)


class Parties:
    """An asker with one holder for each of some private bins."""

    def __init__(self, *bins, profile=HISTOGRAM, ahead=8, **options):
        self.public = PublicMatrix(bytes(32), bins[0].n_rows, profile)
        self.holders = [Holder(each, self.public, Budget(profile, peer="bank"), **options) for each in bins]
        self.readers = [Reader(self.public, holder.hint()) for holder in self.holders]
        self.queries = Queries(self.public)
        self.ahead(ahead)

    def ahead(self, count):
        if count:
            keys = self.queries.prepare(count, self.readers)
            for holder in self.holders:
                holder.prepare(keys)

    def messages(self, g, h):
        return Messages(self.public, np.asarray(g, np.int64), np.asarray(h, np.int64))

    def sums(self, g, h, places, n_nodes):
        messages = self.messages(g, h)
        query = self.queries.ask(messages, np.asarray(places, np.int32), n_nodes)
        return [
            reader.read(query, n_nodes, messages, holder.answer(query))
            for reader, holder in zip(self.readers, self.holders, strict=True)
        ]

    def ask(self, value=1):
        rows = np.full(self.public.n_rows, value)
        messages = self.messages(rows, rows)
        return messages, self.queries.ask(messages, np.zeros(self.public.n_rows, np.int32), 1)


def wanted(bins, g, h, places, n_nodes):
    """The sums over bins by definition, the last bin of each column left out."""
    rows = [codes == bin for codes, width in zip(bins.codes, bins.widths, strict=True) for bin in range(width - 1)]
    inside = [np.asarray(places) == node for node in range(n_nodes)]
    return np.array([[[int(v[row & node].sum()) for v in (g, h)] for row in rows] for node in inside])


def random_bins(widths, n_rows, seed=0):
    random = np.random.default_rng(seed)
    return HistogramBins(np.stack([random.integers(0, width, n_rows) for width in widths]).astype(np.uint16), widths)


def indicators(rows):
    """HistogramBins whose sums are those of the rows of a 0/1 matrix."""
    return HistogramBins((~rows).astype(np.uint8), [2] * len(rows))


def small(n_rows=10, n_sums=2):
    return indicators(np.ones((n_sums, n_rows), bool))


@pytest.mark.parametrize("n_rows", [1, N - 1, N, N + 1])
@pytest.mark.parametrize("n_nodes", [1, 2, 3])
def test_sums_are_exact_for_vectors_of_any_length(n_rows, n_nodes):
    random = np.random.default_rng(n_rows)
    bins = random_bins([4, 7], n_rows)
    g, h = random.integers(-(2**15), 2**15, n_rows), random.integers(0, 2**15, n_rows)
    places = random.integers(-1, n_nodes, n_rows)
    (found,) = Parties(bins).sums(g, h, places, n_nodes)
    assert (found == wanted(bins, g, h, places, n_nodes)).all()


@pytest.mark.slow
def test_sums_are_exact_for_a_hundred_thousand_rows():
    random = np.random.default_rng(0)
    bins = random_bins([8, 32, 3], 100_000)
    g, h = random.integers(-(2**15), 2**15, 100_000), random.integers(0, 2**15, 100_000)
    places = random.integers(0, 8, 100_000)
    (found,) = Parties(bins).sums(g, h, places, 8)
    assert (found == wanted(bins, g, h, places, 8)).all()


@pytest.mark.slow
def test_more_rows_than_four_slots_allow_take_two_slots():
    n_rows = 2**20 + 1
    random = np.random.default_rng(0)
    bins = random_bins([2, 3], n_rows)
    assert Slots.of(n_rows).nodes == 1
    g, h = random.integers(-(2**20), 2**20, n_rows), random.integers(0, 2**20, n_rows)
    places = random.integers(0, 2, n_rows)
    (found,) = Parties(bins).sums(g, h, places, 2)
    assert (found == wanted(bins, g, h, places, 2)).all()


@pytest.mark.parametrize("signs", [[1, 1, 1, 1], [-1, -1, -1, -1], [1, -1, 1, -1]], ids=str)
def test_sums_are_exact_up_to_the_largest_total_and_refused_beyond(signs):
    g = np.array(signs) * np.array([2**30, 2**30, 2**30, 2**30 - 1])
    bins = HistogramBins(np.array([[0, 0, 0, 0], [0, 1, 0, 1]], np.uint8), [2, 2])
    parties = Parties(bins)
    for places in ([0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1]):
        (found,) = parties.sums(g, np.abs(g), places, 2)
        assert (found == wanted(bins, g, np.abs(g), places, 2)).all()
    before = parties.queries.next
    with pytest.raises(Overflow, match=r"may sum to 4294967295, but those of one sum to more. Quantise to fewer bits"):
        parties.sums(g + np.array([signs[0], 0, 0, 0]), np.abs(g), [0] * 4, 1)
    assert parties.queries.next == before


def test_one_query_serves_several_holders():
    random = np.random.default_rng(0)
    several = [random_bins(widths, 500, seed) for seed, widths in enumerate([[3], [5, 2], [40, 40]])]
    g, h = random.integers(-1000, 1000, 500), random.integers(0, 1000, 500)
    places = random.integers(-1, 4, 500)
    for bins, found in zip(several, Parties(*several).sums(g, h, places, 4), strict=True):
        assert (found == wanted(bins, g, h, places, 4)).all()


def test_columns_without_anything_to_add_up_are_refused():
    for widths in ([], [1], [1, 1]):
        with pytest.raises(DataError, match=r"a column with two bins at least, but all of its columns are constant"):
            HistogramBins(np.zeros((len(widths), 20), np.uint8), widths)


@pytest.mark.parametrize("widths", [[3], [32, 32], [32, 33], [1000, 2, 3], [2, 1, 2, 2, 2]], ids=str)
@pytest.mark.parametrize("lanes", [4, 8])
def test_bins_add_up_what_their_definition_says(widths, lanes):
    bins = random_bins(widths, 700)
    limits = np.tile(np.array(HISTOGRAM.primes, np.uint64), lanes // 4)
    values = Stream(bytes(32)).words(700 * lanes).reshape(700, lanes) % limits
    found = bins.sums(values, limits)
    place = 0
    for codes, width in zip(bins.codes, bins.widths, strict=True):
        for bin in range(width - 1):
            totals = values[codes == bin].astype(object).sum(axis=0)
            assert found[place].tolist() == [int(total) % int(p) for total, p in zip(totals, limits, strict=True)]
            place += 1
    assert place == len(found) == bins.n_sums


def test_no_word_overflows_where_all_rows_are_in_one_bin():
    n_rows = 3 * wide_kernels.MOST_ADDED + 5
    bins = HistogramBins(np.zeros((2, n_rows), np.uint8), [2, 2])
    limits = np.array(HISTOGRAM.primes, np.uint64)
    values = np.tile(limits - np.uint64(1), (n_rows, 1))
    assert (bins.sums(values, limits) == (limits.astype(int) - n_rows)).all()


def test_hints_are_sums_of_the_public_polynomials():
    bins, public = random_bins([3], 100), PublicMatrix(bytes(32), 100, TINY)
    ring, n = public.ring, TINY.n
    hints = ring.canonical(ring.inverse(bins.hints(public.ring, public.blocks)))
    whole = ring.canonical(ring.inverse(public.blocks.copy()))
    for bin in range(2):
        for limb, p in enumerate(TINY.primes):
            total = 0
            for row in np.flatnonzero(bins.codes[0] == bin):
                block, power = divmod(int(row), n)
                # Coefficient 0 of a polynomial times X^-i is its coefficient i.
                total += int(whole[block, limb, power])
            assert hints[bin, limb, 0] == total % p


class Spied(Stream):
    """A stream that remembers the ternary numbers that every stream drew."""

    drawn: ClassVar[list] = []

    def ternary(self, n):
        out = super().ternary(n)
        Spied.drawn.append(out)
        return out


@pytest.fixture
def spied(monkeypatch):
    """What parties draw and what they divide by the first prime, in the order of events."""
    Spied.drawn = []
    seen = {"ternary": Spied.drawn, "errors": [], "whole": []}
    monkeypatch.setattr("colonnade.crypto.hinted.Stream", Spied)
    honest_errors, honest_rescaled = WideRing.with_errors, WideRing.rescaled

    def with_errors(ring, x, stream):
        before = x.copy()
        honest_errors(ring, x, stream)
        moved = x - before
        seen["errors"].append((moved - np.rint(moved / ring.primes[:, None]) * ring.primes[:, None])[:, 0])
        return x

    def rescaled(ring, x):
        seen["whole"].append(x.copy())
        return honest_rescaled(ring, x)

    monkeypatch.setattr(WideRing, "with_errors", with_errors)
    monkeypatch.setattr(WideRing, "rescaled", rescaled)
    return seen


def without_flood(monkeypatch):
    def bare(sums, keyed, words, bits, primes, out):
        limits = primes.astype(np.int64)
        total = (sums.astype(np.int64) + keyed) % limits
        out[:] = np.where(total > limits // 2, total - limits, total).transpose(0, 2, 1)

    monkeypatch.setattr(wide_kernels, "flood", bare)


def as_integers(residues, primes):
    """The integers between -q/2 and q/2 with residues (L, m)."""
    modulus = int(np.prod(np.array(primes, object)))
    weights = [(modulus // p) * pow(modulus // p, -1, p) for p in primes]
    total = sum(row.astype(object) * weight for row, weight in zip(residues, weights, strict=True)) % modulus
    return np.where(total > modulus // 2, total - modulus, total)


def first_of_product(a, b):
    """Coefficient 0 of products modulo X^n + 1."""
    return a[..., 0] * b[..., 0] - (a[..., 1:] * b[..., :0:-1]).sum(axis=-1)


def whole_numbers(values):
    """Doubles that hold whole numbers as Python's."""
    return values.astype(np.int64).astype(object)


def test_without_the_flood_the_noise_is_exactly_what_the_formula_says(monkeypatch, spied):
    without_flood(monkeypatch)
    rows = np.random.default_rng(0).random((5, 100)) < 0.5
    parties = Parties(indicators(rows), profile=TINY, ahead=2)
    parties.ask(value=3)
    _, query = parties.ask(value=3)
    parties.holders[0].answer(query)
    n = TINY.n
    masks, secrets = spied["ternary"][0].reshape(-1, n).astype(int), spied["ternary"][1].reshape(-1, n).astype(int)
    of_hints, of_keys, *of_pads = (each.astype(int) for each in spied["errors"])
    hints, answers = whole_numbers(spied["whole"][0]), whole_numbers(spied["whole"][-1])[:, :, 0]
    left = [answers[:, limb] - first_of_product(hints[:, limb], secrets[1].astype(object)) for limb in range(4)]
    message = rows.sum(axis=1).astype(object) * 3 * TINY.scale * (1 + 2**33)
    of_rows = rows.astype(int) @ of_pads[1].reshape(-1)[:100]
    expected = of_rows + first_of_product(masks, of_keys[1]) - first_of_product(of_hints, secrets[1])
    # Nothing is divided by the first prime here, so this is more than an asker has.
    assert (as_integers(np.array(left, object), TINY.primes) - message).tolist() == expected.tolist()


def opened_noise(parties, count):
    """The noise of answers to so many queries of nothing, as an asker sees it without the division by p_0."""
    hints = parties.whole_hints
    out = []
    for _ in range(count):
        _, query = parties.ask(value=0)
        parties.holders[0].answer(query)
        secret = parties.secrets[query.first].astype(object)
        answer = whole_numbers(parties.seen["whole"][-1][:, :, 0])
        left = [answer[:, limb] - first_of_product(hints[:, limb], secret) for limb in range(4)]
        out.append(as_integers(np.array(left, object), parties.public.profile.primes))
    return np.array(out, float)


def watched(rows, seen, n_queries):
    """Parties on the tiny ring whose secrets and errors are known to the attack, as an asker knows its own."""
    parties = Parties(indicators(rows), profile=TINY, ahead=n_queries)
    parties.seen, parties.whole_hints = seen, whole_numbers(seen["whole"][0])
    parties.secrets = seen["ternary"][1].reshape(-1, TINY.n)
    return parties


def bare_noise(parties, count):
    """The noise of so many answers where no flood hides it: so small that the first prime by itself tells it."""
    # Hints are divided some at a time.
    hints = np.concatenate([each[:, 0] for each in parties.seen["whole"]]).astype(np.int64)
    answers, first = [], []
    for _ in range(count):
        _, query = parties.ask(value=0)
        parties.holders[0].answer(query)
        answers.append(parties.seen["whole"].pop()[:, 0, 0])
        first.append(query.first)
    secrets = parties.secrets[first].astype(np.int64)
    # A hint is below 2^50 and a secret has 64 numbers of -1, 0 and 1: products fit into 64 bits.
    products = np.concatenate([secrets[:, :1], -secrets[:, :0:-1]], axis=1) @ hints.T
    prime = TINY.primes[0]
    left = (np.array(answers).astype(np.int64) - products) % prime
    return left - np.where(left > prime // 2, prime, 0)


def test_the_variance_of_the_noise_is_as_computed(monkeypatch, spied):
    without_flood(monkeypatch)
    # Rows without a common column: their residuals are all but independent, though they share a query's errors.
    n_rows, n_sums, n_queries = 500, 500, 500
    rows = np.arange(n_rows) // (n_rows // n_sums) == np.arange(n_sums)[:, None]
    noise = bare_noise(watched(rows, spied, n_queries), n_queries)
    # Masks and errors of a hint stay the same, and so do those of a query: 500 of each know the variance to 0.7 %.
    assert noise.var() == pytest.approx(10.5 * n_rows / n_sums + 14 * TINY.n, rel=0.03)


def attacked(rows, seen):
    """Recover a 0/1 matrix from the noise of N + 2n + 20 answers by linear algebra; returns the estimates."""
    n, count = TINY.n, rows.shape[1]
    n_queries = count + 2 * n + 20
    parties = watched(rows, seen, n_queries)
    noise = opened_noise(parties, n_queries)
    of_keys, pads = seen["errors"][1], np.array(seen["errors"][2 : 2 + n_queries]).reshape(n_queries, -1)[:, :count]

    def mirrored(x):
        return np.concatenate([x[:, :1], -x[:, :0:-1]], axis=1)

    known = np.hstack([pads, mirrored(of_keys), -mirrored(parties.secrets.astype(float))])
    return np.linalg.lstsq(known, noise, rcond=None)[0][:count].T


def test_noise_alone_gives_the_matrix_away_where_there_is_no_flood(monkeypatch, spied):
    without_flood(monkeypatch)
    rows = np.random.default_rng(5).random((20, 200)) < 0.5
    assert ((attacked(rows, spied) > 0.5) == rows).all()


def test_noise_gives_nothing_away_under_the_flood(spied):
    from sklearn.metrics import roc_auc_score

    rows = np.random.default_rng(5).random((20, 200)) < 0.5
    estimates = attacked(rows, spied)
    # 20 rows of 200: the mean has a standard deviation of about 0.01 under chance.
    assert np.mean([roc_auc_score(*each) for each in zip(rows, estimates, strict=True)]) == pytest.approx(0.5, abs=0.05)


def test_no_two_queries_share_their_secret():
    """Where they did, their difference would be the difference of gradients, give or take an error."""
    parties = Parties(small(), ahead=0)
    data = np.concatenate([parties.queries.prepare(2, []).data for _ in range(2)])
    first = int(parties.public.ring.limits[0])
    keys = unpacked_wide(data, N, PRIME_BITS)[:, 0].astype(np.int64)
    for one, other in itertools.combinations(keys, 2):
        apart = (one - other) % first
        # Two errors are 42 at most.
        assert (np.minimum(apart, first - apart) > 2**20).mean() > 0.99


def test_the_flood_of_answers_is_as_wide_as_the_profile_says(monkeypatch):
    seen, honest = [], wide_kernels.decode

    def decode(*arguments):
        honest(*arguments)
        seen.append(arguments[-1].astype(float))

    monkeypatch.setattr(wide_kernels, "decode", decode)
    parties = Parties(small(20, n_sums=300), ahead=1)
    parties.sums(np.ones(20), np.ones(20), np.zeros(20), 1)
    # Three uniform numbers of a width have half of the width as their standard deviation; answers are divided by p_0.
    width = 2.0 ** (HISTOGRAM.flood_bits - 1) / HISTOGRAM.primes[0]
    assert np.std(np.concatenate(seen)) == pytest.approx(width, rel=0.2)


def test_a_new_hint_has_new_masks_and_new_errors(spied):
    public = PublicMatrix(bytes(32), 10, TINY)
    holder = Holder(small(n_sums=3), public, Budget(TINY, peer="bank"))
    first, second = holder.hint(), holder.hint()
    assert (first != second).mean() > 0.9
    masks = [each.reshape(3, TINY.n) for each in spied["ternary"]]
    assert (masks[0] != masks[1]).mean() > 0.5
    ring = public.ring
    whole = [ring.canonical(each).astype(np.int64) for each in spied["whole"]]
    moved = ring.small((masks[0] - masks[1]).astype(np.int8))
    product = ring.canonical(ring.inverse(ring.times(ring.forward(moved), public.key))).astype(np.int64)
    limits = ring.limits.astype(np.int64)[:, None]
    rest = (whole[0] - whole[1] - product) % limits
    assert (np.where(rest > limits // 2, rest - limits, rest)[:, 0] == spied["errors"][0] - spied["errors"][1]).all()


def test_no_state_holds_a_bare_hint_or_a_mask():
    assert set(Parties(small()).holders[0].state()) == {"last"}


def test_the_public_polynomials_depend_on_both_nonces():
    nonces = {"bank": bytes(32), "shop": bytes([1]) * 32}
    committed = {name: commitment(nonce) for name, nonce in nonces.items()}
    seed = joint_seed(nonces, committed)
    assert seed == joint_seed(dict(reversed(nonces.items())), committed)
    for name in nonces:
        changed = {**nonces, name: bytes([9]) * 32}
        assert joint_seed(changed, {key: commitment(nonce) for key, nonce in changed.items()}) != seed


def test_a_nonce_that_was_not_committed_to_is_refused():
    committed = {"shop": commitment(bytes(32))}
    with pytest.raises(KeyMismatch, match=r"shop should reveal the 32 bytes it committed to, but revealed others"):
        joint_seed({"shop": bytes([1]) * 32}, committed)


def test_a_query_that_comes_again_is_answered_with_the_same_bytes_and_counted_once():
    parties = Parties(small())
    _, query = parties.ask()
    first = parties.holders[0].answer(query)
    again = replace(query, words=query.words.copy(), tails=query.tails.copy())
    assert parties.holders[0].answer(again).tobytes() == first.tobytes()
    assert parties.holders[0].budget.spent == 2


def test_another_query_under_an_old_number_is_refused():
    parties = Parties(small())
    (_, first), (_, second) = parties.ask(), parties.ask()
    parties.holders[0].answer(second)
    for query in (first, replace(second, words=first.words)):
        with pytest.raises(CryptoError, match=r"a query with a number above 1, got \d. A changed query needs a new"):
            parties.holders[0].answer(query)


def test_an_answer_can_be_read_once_only():
    parties = Parties(small())
    messages, query = parties.ask()
    answer = parties.holders[0].answer(query)
    parties.readers[0].read(query, 1, messages, answer)
    with pytest.raises(CryptoError, match=r"got one to number 0, which is read or was never asked. Ask again"):
        parties.readers[0].read(query, 1, messages, answer)


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda act: act.__name__)
@pytest.mark.parametrize("whose", ["queries", "reader", "holder"])
def test_what_holds_secrets_cannot_be_copied(act, whose):
    parties = Parties(small())
    thing = {"queries": parties.queries, "reader": parties.readers[0], "holder": parties.holders[0]}[whose]
    with pytest.raises(CryptoError, match=r"cannot be copied. Make (a )?new one"):
        act(thing)


def _ask_in_child(connection, parties):
    try:
        parties.ask()
    except CryptoError as error:
        connection.send(str(error))
    else:
        connection.send("asked")


def test_a_forked_process_cannot_use_secrets_that_were_drawn_before():
    parties = Parties(small())
    parties.queries.pad(4)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_ask_in_child, args=(sender, parties))
    child.start()
    assert "serve the process that drew them, but a forked process uses them" in receiver.recv()
    child.join()


def test_pads_that_are_made_ahead_change_nothing_but_when_they_are_made():
    parties = Parties(random_bins([3, 3], 50))
    parties.queries.pad(2)
    assert len(parties.queries._pads) == 2
    g = np.arange(50)
    (found,) = parties.sums(g, g, np.zeros(50), 1)
    assert (found == wanted(random_bins([3, 3], 50), g, g, np.zeros(50), 1)).all()
    assert len(parties.queries._pads) == 1


def test_more_queries_than_were_prepared_are_refused():
    parties = Parties(small(), ahead=1)
    parties.ask()
    with pytest.raises(CryptoError, match=r"secrets of 1 queries to be drawn, but 0 are. Prepare more."):
        parties.ask()


def test_the_budget_and_the_numbers_survive_a_restart(tmp_path):
    def started():
        public = PublicMatrix(bytes(32), 10)
        holder = Holder(small(), public, Budget(HISTOGRAM, peer="bank", log=tmp_path / "answers", most=3))
        reader = Reader(public, holder.hint())
        queries = Queries(public)
        keys = queries.prepare(2, [reader])
        return holder, queries, keys, Messages(public, np.ones(10, np.int64), np.ones(10, np.int64))

    holder, queries, keys, messages = started()
    holder.prepare(keys)
    nodes = np.zeros(10, np.int32)
    holder.answer(queries.ask(messages, nodes, 1))
    again, queries, keys, messages = started()
    assert again.budget.spent == 2
    again.prepare(keys)
    again.restore(holder.state())
    with pytest.raises(CryptoError, match=r"a number above 0, got 0"):
        again.answer(queries.ask(messages, nodes, 1))
    with pytest.raises(BudgetSpent, match=r"bank may be answered 3 encrypted values .* but 2 were answered and 2 more"):
        again.answer(queries.ask(messages, nodes, 1))


def test_a_spent_budget_is_noticed_before_anything_is_added_up(monkeypatch):
    parties = Parties(small())
    parties.holders[0].budget = Budget(HISTOGRAM, peer="bank", most=1)
    monkeypatch.setattr(HistogramBins, "sums", lambda *_: pytest.fail("the sums were computed"))
    with pytest.raises(BudgetSpent):
        parties.holders[0].answer(parties.ask()[1])


def test_queries_that_are_none_are_refused():
    parties = Parties(small())
    (holder,), (_, query) = parties.holders, parties.ask()
    with pytest.raises(CryptoError, match=r"Expected a query of 10 rows, got arrays of shape \(1, 3, 9\)"):
        holder.answer(replace(query, words=query.words[..., :9]))
    with pytest.raises(CryptoError, match=r"should look random, but part of it is constant"):
        holder.answer(replace(query, words=np.zeros_like(query.words)))
    with pytest.raises(CryptoError, match=r"the keys of queries 70 to 70 before the queries, but some did not come"):
        holder.answer(replace(query, first=70))
    assert holder.budget.spent == 0
    words = query.words.copy()
    words[0, :, 3] = 2**64 - 1
    with pytest.raises(CryptoError, match=r"residues below their primes"):
        holder.answer(replace(query, words=words))


def test_keys_that_are_none_are_refused():
    parties = Parties(small(), ahead=0)
    keys = parties.queries.prepare(2, parties.readers)
    (holder,) = parties.holders
    with pytest.raises(CryptoError, match=r"Expected keys of shape \(Q, 4, 6400\), got \(2, 3, 6400\)"):
        holder.prepare(replace(keys, data=keys.data[:, :3]))
    with pytest.raises(CryptoError, match=r"A key should hold residues below their primes"):
        holder.prepare(replace(keys, data=np.full_like(keys.data, 2**64 - 1)))
    with pytest.raises(CryptoError, match=r"A key should look random, but part of it is constant"):
        holder.prepare(replace(keys, data=np.zeros_like(keys.data)))


def test_more_keys_than_a_holder_keeps_are_refused(monkeypatch):
    monkeypatch.setattr(hinted, "MOST_KEYS", 3)
    parties = Parties(small(), ahead=2)
    with pytest.raises(CryptoError, match=r"at most 3 keys of queries .* but 2 wait and 2 more came. Prepare fewer"):
        parties.ahead(2)


def test_keys_before_the_hint_are_refused():
    public = PublicMatrix(bytes(32), 10)
    holder = Holder(small(), public, Budget(HISTOGRAM, peer="bank"))
    with pytest.raises(CryptoError, match=r"before a hint was given. Give the hint first."):
        holder.prepare(Queries(public).prepare(1, []))


def test_an_answer_that_no_honest_holder_gives_is_refused():
    parties = Parties(small())
    messages, query = parties.ask()
    answer = parties.holders[0].answer(query)
    with pytest.raises(
        CryptoError, match=r"a possible sum with noise within its bound and is not. The holder is faulty"
    ):
        parties.readers[0].read(query, 1, messages, answer ^ np.uint64(0xFFFFFFFF))
    messages, query = parties.ask()
    with pytest.raises(CryptoError, match=r"Expected an answer for 2 bins, got an array of shape \(1,\)"):
        parties.readers[0].read(query, 1, messages, answer[:1])


def test_a_hint_of_another_shape_is_refused():
    public = PublicMatrix(bytes(32), 10)
    with pytest.raises(CryptoError, match=r"Expected hints of 3 times 6400 words, got an array of shape \(2, 4, 5\)"):
        Reader(public, np.zeros((2, 4, 5), np.uint64))
    with pytest.raises(CryptoError, match=r"A hint should hold residues below their primes"):
        Reader(public, np.full((2, 3, 6400), 2**64 - 1, np.uint64))


def test_bytes_are_those_of_the_page_on_encryption():
    parties = Parties(small(3 * N))
    _, query = parties.ask()
    # Gradient and hessian of two nodes.
    assert query.words.nbytes + query.tails.nbytes == 25 * 3 * N
    assert parties.queries.prepare(1, parties.readers).data.nbytes == 25 * N
    assert parties.holders[0].hint().nbytes == 2 * 153_600


def test_too_long_a_vector_is_refused():
    with pytest.raises(Overflow, match=r"hinted-8192-200 takes vectors of at most 16777216 numbers, got 16777217"):
        PublicMatrix(bytes(32), 2**24 + 1)


def test_bare_hints_are_kept_for_a_restart_and_read_by_their_owner_only(tmp_path, monkeypatch):
    bins, seed = random_bins([3, 4], 100), bytes(32)
    first = Holder(bins, PublicMatrix(seed, 100), Budget(HISTOGRAM, peer="bank"), folder=tmp_path)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.setattr(HistogramBins, "hints", lambda *_: pytest.fail("the hints were computed again"))
    again = Holder(bins, PublicMatrix(seed, 100), Budget(HISTOGRAM, peer="bank"), folder=tmp_path)
    assert (first._bare == again._bare).all()


@pytest.mark.parametrize("other", ["bins", "seed", "damaged"])
def test_bare_hints_of_other_bins_or_another_training_are_not_taken(tmp_path, other):
    bins, seed = random_bins([3, 4], 100), bytes(32)
    Holder(bins, PublicMatrix(seed, 100), Budget(HISTOGRAM, peer="bank"), folder=tmp_path)
    if other == "bins":
        bins = random_bins([3, 4], 100, seed=1)
    elif other == "seed":
        seed = bytes([1]) * 32
    else:
        (path,) = tmp_path.iterdir()
        path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    public = PublicMatrix(seed, 100)
    found = Holder(bins, public, Budget(HISTOGRAM, peer="bank"), folder=tmp_path)
    assert (found._bare == bins.hints(public.ring, public.blocks)).all()


@pytest.mark.parametrize("n_rows", [1, 500, N + 1])
def test_shares_of_the_sums_add_up_to_within_a_few_units_and_cost_no_budget(n_rows):
    random = np.random.default_rng(n_rows)
    bins = random_bins([4, 3], n_rows)
    most = 2**43 // n_rows
    g, h = random.integers(-most, most, n_rows), random.integers(0, most, n_rows)
    places = random.integers(-1, 3, n_rows)
    parties = Parties(bins)
    messages = Messages(parties.public, g, h, shared=True)
    query = parties.queries.ask(messages, places.astype(np.int32), 3)
    answer, own = parties.holders[0].share(query)
    other = parties.readers[0].share(query, 3, answer)
    assert own.shape == other.shape == (3, bins.n_sums, 2)
    off = (own + other).view(np.int64) - wanted(bins, g, h, places, 3)
    # One unit for each prime and side in the lower word, and a carry and a borrow in the upper one.
    assert np.abs(off).max() <= 9
    assert parties.holders[0].budget.spent == 0


def test_shares_are_uniform_each_by_themselves():
    parties = Parties(small(20, n_sums=300), ahead=2)
    messages = Messages(parties.public, np.ones(20, np.int64), np.ones(20, np.int64), shared=True)
    query = parties.queries.ask(messages, np.zeros(20, np.int32), 1)
    answer, own = parties.holders[0].share(query)
    other = parties.readers[0].share(query, 1, answer)
    for share in (own, other):
        bits = np.unpackbits(share.view(np.uint8))
        # 38,400 coins: five standard deviations are 0.013.
        assert bits.mean() == pytest.approx(0.5, abs=0.013)
        assert len(np.unique(share)) == share.size


def test_a_shared_query_that_comes_again_gets_the_same_shares():
    parties = Parties(small())
    messages = Messages(parties.public, np.ones(10, np.int64), np.ones(10, np.int64), shared=True)
    query = parties.queries.ask(messages, np.zeros(10, np.int32), 1)
    first, again = (parties.holders[0].share(query) for _ in range(2))
    assert all((one == other).all() for one, other in zip(first, again, strict=True))


def ask_often(seeds):
    """Queries and answers with every seed that they draw noted down."""
    parties = Parties(small(), ahead=0)
    for _ in range(25):
        parties.ahead(1)
        parties.sums(np.ones(10), np.ones(10), np.zeros(10), 1)
    return seeds


def noted(seeds):
    honest = sampling.secrets.token_bytes

    def note(n):
        seed = honest(n)
        seeds.append(seed)
        return seed

    return note


def _in_child(connection, seeds):
    ask_often(seeds)
    connection.send(list(seeds))


def test_no_secret_is_drawn_twice_over_threads_and_forks(monkeypatch):
    seeds: list[bytes] = []
    monkeypatch.setattr(sampling.secrets, "token_bytes", noted(seeds))
    threads = [threading.Thread(target=ask_often, args=(seeds,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    here = len(seeds)
    # Secrets, pads and floods of 25 queries by each thread, and its hint.
    assert here == 4 * 76
    context = multiprocessing.get_context("fork")
    everywhere = seeds[:]
    for _ in range(2):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_in_child, args=(sender, seeds))
        child.start()
        everywhere += receiver.recv()[here:]
        child.join()
    assert len(everywhere) == here + 2 * 76
    assert len(set(everywhere)) == len(everywhere)
