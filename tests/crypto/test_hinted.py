"""Hinted RLWE: exact sums, a flood over every answer, secrets used once, and the attack that the flood stops."""

import copy
import multiprocessing
import pickle
import threading
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from colonnade.crypto import hinted, sampling
from colonnade.crypto.budget import Budget
from colonnade.crypto.hinted import (
    MOST_TOTAL,
    Asker,
    CumulativeBins,
    Holder,
    Indicators,
    PublicMatrix,
    commitment,
    joint_seed,
)
from colonnade.crypto.packing import n_words
from colonnade.crypto.profiles import HISTOGRAM
from colonnade.crypto.ring import Ring
from colonnade.crypto.sampling import Stream
from colonnade.errors import BudgetSpent, CryptoError, KeyMismatch, Overflow

N = HISTOGRAM.n
# The four largest primes of 26 bits that are 1 modulo 128: a ring on which an attack takes seconds.
TINY = replace(HISTOGRAM, name="tiny", n=64, primes=(67107713, 67107457, 67106561, 67104769))


def pair(rows, profile=HISTOGRAM, log=None, **options):
    public = PublicMatrix(bytes(32), rows.shape[1], profile)
    holder = Holder(rows, public, Budget(profile, peer="bank", log=log), **options)
    return holder, Asker(public, holder.hint())


def sums(holder, asker, vectors):
    query = asker.ask(vectors)
    return asker.read(query.number, holder.answer(query.number, query.data))


def wanted(bins, vectors):
    """The sums over cumulative bins by definition."""
    rows = [codes <= bin for codes in bins.codes for bin in range(bins.n_bins)]
    return np.array(rows).astype(np.int64) @ vectors.T


@pytest.mark.parametrize("n_columns", [1, N - 1, N, N + 1])
def test_sums_are_exact_for_vectors_of_any_length(n_columns):
    random = np.random.default_rng(n_columns)
    bins = CumulativeBins(random.integers(0, 4, (2, n_columns)).astype(np.uint8), 4)
    holder, asker = pair(bins)
    vectors = random.integers(-(2**15), 2**15, (3, n_columns))
    assert (sums(holder, asker, vectors) == wanted(bins, vectors)[holder.order]).all()


@pytest.mark.slow
def test_sums_are_exact_for_a_hundred_thousand_rows():
    random = np.random.default_rng(0)
    bins = CumulativeBins(random.integers(0, 8, (2, 100_000)).astype(np.uint8), 8)
    holder, asker = pair(bins)
    vectors = random.integers(-(2**18), 2**18, (2, 100_000))
    assert (sums(holder, asker, vectors) == wanted(bins, vectors)[holder.order]).all()


@pytest.mark.parametrize("signs", ["positive", "alternating"])
def test_sums_are_exact_up_to_the_largest_total_and_refused_beyond(signs):
    sign = np.ones(4, np.int64) if signs == "positive" else np.array([1, -1, 1, -1])
    rows = Indicators(np.array([[True] * 4, [True, False, True, False]]))
    holder, asker = pair(rows, shuffled=False)
    vector = (MOST_TOTAL // 4 * sign)[None]
    assert sums(holder, asker, vector)[:, 0].tolist() == (rows.matrix @ vector[0]).tolist()
    vector[0, 0] += 1
    before = asker.next
    with pytest.raises(Overflow, match=r"may sum to 34359738368, but those of one sum to more. Quantise"):
        asker.ask(vector)
    assert asker.next == before


def test_bins_and_indicators_give_the_same_hints_and_sums():
    bins = CumulativeBins(np.random.default_rng(0).integers(0, 3, (2, 100)).astype(np.uint16), 3)
    plain = Indicators(np.array([codes <= bin for codes in bins.codes for bin in range(3)]))
    public = PublicMatrix(bytes(32), 100)
    assert (bins.hints(public) == plain.hints(public)).all()
    values = np.random.default_rng(1).integers(0, 2**26, (100, 8)).astype(np.uint32)
    assert (bins.sums(values) == plain.sums(values)).all()


class Spied(Stream):
    """A stream that remembers what every stream drew."""

    drawn: ClassVar[list] = []

    def ternary(self, n):
        out = super().ternary(n)
        Spied.drawn.append(out)
        return out

    def errors(self, n):
        out = super().errors(n)
        Spied.drawn.append(out)
        return out


@pytest.fixture
def spied(monkeypatch):
    Spied.drawn = []
    monkeypatch.setattr("colonnade.crypto.hinted.Stream", Spied)
    return Spied.drawn


def with_whole_hints(monkeypatch):
    for name in ("halved", "restored"):
        monkeypatch.setattr(hinted, name, lambda ring, hints: hints)


def without_flood(monkeypatch):
    """Nothing hides the noise of answers: neither the flood, nor what is missing of halved hints."""
    with_whole_hints(monkeypatch)
    zeros = lambda ring, stream, shape, bits: np.zeros((*shape[:-1], len(ring.primes), shape[-1]), np.uint32)  # noqa: E731
    monkeypatch.setattr(Ring, "flood", zeros)


def first_of_product(a, b):
    """Coefficient 0 of products modulo X^n + 1."""
    return a[..., 0] * b[..., 0] - (a[..., 1:] * b[..., :0:-1]).sum(axis=-1)


def residuals(asker, secrets, answer, vectors, rows):
    """What is left of answers when the sums are taken away: all that an asker sees besides them."""
    ring = asker._public.ring
    numbers = ring.integers(np.moveaxis(asker._opened(secrets, answer), -1, -2))
    return numbers - (rows.astype(np.int64) @ vectors.T).astype(object) * 2**67


def test_without_the_flood_the_noise_is_exactly_what_the_formula_says(monkeypatch, spied):
    without_flood(monkeypatch)
    rows = np.random.default_rng(0).random((40, 500)) < 0.5
    holder, asker = pair(Indicators(rows), shuffled=False)
    masks, errors = spied[0].reshape(40, N).astype(np.int64), spied[1].reshape(40, N).astype(np.int64)
    vectors = np.random.default_rng(1).integers(-100, 100, (2, 500))
    query = asker.ask(vectors)
    secrets = asker._pending[query.number][0].astype(np.int64)
    noise = np.stack([each.reshape(-1, N).astype(np.int64) for each in spied[3:5]])
    found = residuals(asker, secrets.astype(np.int8), holder.answer(query.number, query.data), vectors, rows)
    for q in range(2):
        of_rows = rows.astype(np.int64) @ noise[q, 0, :500]
        expected = of_rows + first_of_product(masks, noise[q, 1]) - first_of_product(errors, secrets[q])
        assert found[:, q].tolist() == expected.tolist()


@pytest.mark.slow
def test_the_variance_of_the_noise_is_as_computed(monkeypatch):
    without_flood(monkeypatch)
    n_rows, n_queries = 20, 3000
    # Rows without a common column: their residuals are all but independent, though they share a query's errors.
    rows = np.arange(4000) // (4000 // n_rows) == np.arange(n_rows)[:, None]
    holder, asker = pair(Indicators(rows), shuffled=False)
    noise = []
    for _ in range(n_queries // 50):
        query = asker.ask(np.zeros((50, 4000), np.int64))
        secrets = asker._pending[query.number][0]
        noise.append(residuals(asker, secrets, holder.answer(query.number, query.data), np.zeros((50, 4000)), rows))
    # The variance of 60,000 numbers is known to 0.6 %: a right one fails once in a million runs.
    assert np.var(np.hstack(noise).astype(float)) == pytest.approx(10.5 * 4000 / n_rows + 14 * N, rel=0.03)


def attack(rows, flooded, monkeypatch, seed):
    """Recover a 0/1 matrix from the noise of N + 2n + 20 answers by linear algebra; returns the estimates."""
    Spied.drawn = []
    monkeypatch.setattr("colonnade.crypto.hinted.Stream", Spied)
    if not flooded:
        without_flood(monkeypatch)
    n, count = TINY.n, rows.shape[1]
    holder, asker = pair(Indicators(rows), TINY, shuffled=False)
    n_queries = count + 2 * n + 20
    vectors = np.random.default_rng(seed).integers(-10, 10, (n_queries, count))
    start = len(Spied.drawn)
    query = asker.ask(vectors)
    secrets = asker._pending[query.number][0]
    errors = np.stack([each.reshape(-1, n) for each in Spied.drawn[start + 1 : start + 1 + n_queries]])
    seen = residuals(asker, secrets, holder.answer(query.number, query.data), vectors, rows).astype(float)
    blocks = errors[:, :-1].reshape(n_queries, -1)[:, :count]

    def mirrored(x):
        return np.concatenate([x[:, :1], -x[:, :0:-1]], axis=1)

    known = np.hstack([blocks, mirrored(errors[:, -1].astype(float)), -mirrored(secrets.astype(float))])
    return np.linalg.lstsq(known, seen.T, rcond=None)[0][:count].T


def test_noise_alone_gives_the_matrix_away_where_there_is_no_flood(monkeypatch):
    rows = np.random.default_rng(5).random((20, 200)) < 0.5
    assert ((attack(rows, False, monkeypatch, 6) > 0.5) == rows).all()


def test_noise_gives_nothing_away_under_the_flood(monkeypatch):
    from sklearn.metrics import roc_auc_score

    rows = np.random.default_rng(5).random((20, 200)) < 0.5
    estimates = attack(rows, True, monkeypatch, 6)
    # 20 rows of 200: the mean has a standard deviation of about 0.01 under chance.
    assert np.mean([roc_auc_score(*each) for each in zip(rows, estimates, strict=True)]) == pytest.approx(0.5, abs=0.05)


def test_a_new_hint_has_new_masks_and_new_errors(monkeypatch, spied):
    with_whole_hints(monkeypatch)
    rows = Indicators(np.ones((3, 10), bool))
    public = PublicMatrix(bytes(32), 10)
    holder = Holder(rows, public, Budget(HISTOGRAM, peer="bank"), shuffled=False)
    hints = [holder.hint() for _ in range(2)]
    masks, errors = ([each.reshape(3, N) for each in spied[start::2]] for start in (0, 1))
    assert (masks[0] != masks[1]).mean() > 0.5
    ring = public.ring
    difference = ring.subtract(hints[0], hints[1])
    moved = ring.small((masks[0] - masks[1]).astype(np.int8))
    rest = ring.subtract(difference, ring.inverse(ring.times(ring.forward(moved), public.key)))
    assert ring.integers(rest).tolist() == (errors[0].astype(int) - errors[1]).tolist()


def test_no_state_holds_a_bare_hint_or_a_mask():
    holder, _ = pair(Indicators(np.ones((3, 10), bool)))
    assert set(holder.state()) == {"last"}


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


def test_rows_are_shuffled_anew_with_each_hint():
    holder, _ = pair(Indicators(np.ones((200, 3), bool)))
    first = holder.order.copy()
    holder.hint()
    assert sorted(first) == sorted(holder.order) == list(range(200))
    assert (first != holder.order).any()


def test_a_query_that_comes_again_is_answered_with_the_same_bytes_and_counted_once():
    holder, asker = pair(Indicators(np.ones((2, 10), bool)))
    query = asker.ask(np.ones((1, 10), np.int64))
    first = holder.answer(query.number, query.data)
    assert holder.answer(query.number, query.data).tobytes() == first.tobytes()
    assert holder.budget.spent == 2


def test_another_query_under_an_old_number_is_refused():
    holder, asker = pair(Indicators(np.ones((2, 10), bool)))
    first, second = (asker.ask(np.ones((1, 10), np.int64)) for _ in range(2))
    holder.answer(second.number, second.data)
    for query in (first, replace(second, data=first.data)):
        with pytest.raises(CryptoError, match=r"a query with a number above 1, got \d. A changed query needs a new"):
            holder.answer(query.number, query.data)


def test_an_answer_can_be_read_once_only():
    holder, asker = pair(Indicators(np.ones((2, 10), bool)))
    query = asker.ask(np.ones((1, 10), np.int64))
    answer = holder.answer(query.number, query.data)
    asker.read(query.number, answer)
    with pytest.raises(CryptoError, match=r"got one to number 0, which is read or was never asked. Ask anew"):
        asker.read(query.number, answer)


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda act: act.__name__)
def test_an_asker_with_open_secrets_cannot_be_copied(act):
    _, asker = pair(Indicators(np.ones((2, 10), bool)))
    with pytest.raises(CryptoError, match=r"holds secrets of open queries and cannot be copied"):
        act(asker)


def test_the_budget_and_the_numbers_survive_a_restart(tmp_path):
    rows, few = Indicators(np.ones((2, 10), bool)), replace(HISTOGRAM, most_values=3)
    holder, asker = pair(rows, few, tmp_path / "answers")
    query = asker.ask(np.ones((1, 10), np.int64))
    holder.answer(query.number, query.data)
    again, asker = pair(rows, few, tmp_path / "answers")
    again.restore(holder.state())
    assert again.budget.spent == 2
    old = asker.ask(np.ones((1, 10), np.int64))
    with pytest.raises(CryptoError, match=r"a number above 0, got 0"):
        again.answer(old.number, old.data)
    new = asker.ask(np.ones((1, 10), np.int64))
    with pytest.raises(BudgetSpent, match=r"bank may be answered 3 encrypted values .* but 2 were answered and 2 more"):
        again.answer(new.number, new.data)


def test_queries_that_are_none_are_refused():
    holder, asker = pair(Indicators(np.ones((2, 10), bool)))
    query = asker.ask(np.ones((1, 10), np.int64))
    with pytest.raises(CryptoError, match=r"Expected a query of shape"):
        holder.answer(query.number, query.data[:, :1])
    with pytest.raises(CryptoError, match=r"residues below their primes"):
        holder.answer(query.number, np.full_like(query.data, 2**64 - 1))
    constant = query.data.copy()
    constant[0, -1] = 0
    with pytest.raises(CryptoError, match=r"should look random, but part of it is constant"):
        holder.answer(query.number, constant)
    assert holder.budget.spent == 0


def test_a_query_before_the_hint_is_refused():
    public = PublicMatrix(bytes(32), 10)
    holder = Holder(Indicators(np.ones((2, 10), bool)), public, Budget(HISTOGRAM, peer="bank"))
    with pytest.raises(CryptoError, match=r"before a hint was given. Give the hint first."):
        holder.answer(0, np.zeros((1, 2, 4, n_words(N)), np.uint64))


def test_an_answer_that_no_honest_holder_gives_is_refused():
    holder, asker = pair(Indicators(np.ones((2, 10), bool)))
    query = asker.ask(np.ones((1, 10), np.int64))
    answer = holder.answer(query.number, query.data)
    with pytest.raises(
        CryptoError, match=r"a possible sum with noise within its bound and is not. The holder is faulty"
    ):
        asker.read(query.number, np.ascontiguousarray(answer[::-1]) ^ np.uint64(0xFFFF))


def test_a_halved_hint_is_off_by_less_than_its_lower_half_and_takes_half_the_bytes():
    ring = PublicMatrix(bytes(32), 1).ring
    whole = Stream(bytes(32)).residues((3, N), ring.primes)
    # The ends of the range, where a digit of the wrong radix would show.
    ends = np.array([0, 1, 2**52 - 1, 2**52, ring.modulus - 1], object)
    whole[0, :, : len(ends)] = [[int(end) % int(p) for end in ends] for p in ring.primes]
    halves = hinted.halved(ring, whole)
    off = ring.integers(ring.subtract(hinted.restored(ring, halves), whole))
    assert max(abs(int(each)) for each in off.ravel()) <= 2**51
    # 52 bits of 104; in memory a residue takes 32 bits of its 26.
    assert halves.nbytes == 3 * N * 52 // 8


def test_a_hint_of_another_shape_is_refused():
    public = PublicMatrix(bytes(32), 10)
    with pytest.raises(CryptoError, match=r"Expected hints in halves of 1664 words, got an array of shape \(2, 4, 5\)"):
        Asker(public, np.zeros((2, 4, 5), np.uint64))


def test_a_query_takes_thirteen_bytes_for_each_number():
    _, asker = pair(Indicators(np.ones((2, 3 * N), bool)))
    query = asker.ask(np.ones((2, 3 * N), np.int64))
    # Besides the numbers there is one more block, for the mask.
    assert query.data.nbytes == 2 * 13 * 4 * N


def test_too_long_a_vector_is_refused():
    with pytest.raises(Overflow, match=r"hinted-4096-104 takes vectors of at most 524288 numbers, got 524289"):
        PublicMatrix(bytes(32), 2**19 + 1)


def test_shares_of_the_sums_add_up_and_cost_no_budget():
    rows = np.random.default_rng(0).random((5, 30)) < 0.5
    holder, asker = pair(Indicators(rows), shuffled=False)
    vectors = np.random.default_rng(1).integers(-1000, 1000, (2, 30))
    query = asker.ask(vectors)
    answer, own = holder.shared(query.number, query.data)
    ring = asker._public.ring
    total = ring.add(*(np.ascontiguousarray(np.moveaxis(x, -1, -2)) for x in (own, asker.share(query.number, answer))))
    assert ((ring.integers(total) + 2**66) // 2**67 == rows.astype(int) @ vectors.T).all()
    assert holder.budget.spent == 0


def ask_often(seeds):
    """Queries and answers with every seed that they draw noted down."""
    holder, asker = pair(Indicators(np.ones((2, 10), bool)))
    for _ in range(100):
        sums(holder, asker, np.ones((1, 10), np.int64))
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
    # 100 queries and as many answers by each thread, and its hint.
    assert here == 4 * 201
    context = multiprocessing.get_context("fork")
    everywhere = seeds[:]
    for _ in range(2):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_in_child, args=(sender, seeds))
        child.start()
        everywhere += receiver.recv()[here:]
        child.join()
    assert len(everywhere) == here + 2 * 201
    assert len(set(everywhere)) == len(everywhere)
