"""The ring of wide primes is what its definition says, and what the narrow ring computes."""

from dataclasses import replace

import numpy as np
import pytest

from colonnade.crypto import wide_kernels
from colonnade.crypto.profiles import ARBITER, HISTOGRAM
from colonnade.crypto.ring import ring_of
from colonnade.crypto.sampling import Stream
from colonnade.crypto.wide import WideRing, wide_ring_of

NARROW = replace(ARBITER, name="narrow", n=4096, primes=(67084289, 67043329, 66994177, 66969601))


def polynomials(ring, count, seed=1):
    return ring.centred(Stream(bytes([seed]) * 32).wide_residues((count, ring.n), ring.limits))


def schoolbook(a, b, p):
    n = len(a)
    out = [0] * n
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[(i + j) % n] += (1 if i + j < n else -1) * int(x) * int(y)
    return [value % p for value in out]


@pytest.mark.parametrize("n", [8, 16, 32, 64, 128])
def test_products_are_those_of_the_schoolbook(n):
    # The primes of the profile are 1 modulo 2n for every smaller n as well.
    ring = WideRing(n, HISTOGRAM.primes)
    a, b = polynomials(ring, 1, 2), polynomials(ring, 1, 3)
    found = ring.canonical(ring.product(a, b))
    for limb, p in enumerate(HISTOGRAM.primes):
        assert found[0, limb].tolist() == schoolbook(a[0, limb], b[0, limb], p)


def test_the_inverse_undoes_a_transform():
    ring = wide_ring_of(HISTOGRAM)
    x = polynomials(ring, 3)
    assert (ring.inverse(ring.forward(x.copy())) == x).all()


@pytest.mark.parametrize("profile", [NARROW, ARBITER], ids=lambda profile: profile.name)
def test_products_over_narrow_primes_are_those_of_the_narrow_ring(profile):
    wide, narrow = WideRing(profile.n, profile.primes), ring_of(profile)
    a, b = (Stream(bytes([seed]) * 32).residues((1, profile.n), narrow.primes) for seed in (1, 2))
    found = wide.canonical(wide.product(wide.centred(a.astype(np.uint64)), wide.centred(b.astype(np.uint64))))
    assert (found[0] == narrow.product(a[0], b[0])).all()


def test_products_hold_at_the_edges():
    ring = wide_ring_of(HISTOGRAM)
    largest = np.empty((1, 4, ring.n))
    largest[:] = ((ring.primes - 1) / 2)[:, None]
    x, last = np.zeros_like(largest), np.zeros_like(largest)
    x[..., 1], last[..., -1] = 1, 1
    assert not ring.product(np.zeros_like(largest), largest).any()
    # X^(n-1) X = -1
    assert ring.product(last, x)[0, :, 0].tolist() == [-1] * 4
    assert not ring.product(last, x)[..., 1:].any()
    # (p - 1)/2 is -1/2: the coefficient i of the square is (2 (i + 1) - n) / 4.
    square = ring.canonical(ring.product(largest, largest))
    for limb, p in enumerate(HISTOGRAM.primes):
        quarter = pow(4, -1, p)
        assert square[0, limb].tolist() == [(2 * (i + 1) - ring.n) * quarter % p for i in range(ring.n)]


def test_sums_of_products_are_exact_for_many_terms():
    ring = wide_ring_of(HISTOGRAM)
    a, b = polynomials(ring, 40, 4), polynomials(ring, 40, 5)
    found = ring.canonical(ring.dot(a, b)[None])[0]
    for limb, p in enumerate(HISTOGRAM.primes):
        for j in (0, 1, ring.n - 1):
            assert found[limb, j] == sum(int(x) * int(y) for x, y in zip(a[:, limb, j], b[:, limb, j], strict=True)) % p


def as_integers(residues, primes):
    """The integers between -q/2 and q/2 with residues (L, m)."""
    modulus = int(np.prod(np.array(primes, object)))
    out = []
    for column in residues.T:
        total = sum(
            int(value) % p * (modulus // p) * pow(modulus // p, -1, p) for value, p in zip(column, primes, strict=True)
        )
        total %= modulus
        out.append(total - modulus if total > modulus // 2 else total)
    return out


def test_division_by_the_first_prime_is_off_by_half_at_most():
    ring = wide_ring_of(HISTOGRAM)
    x = polynomials(ring, 1, 6)[:, :, :50]
    numbers = as_integers(x[0], HISTOGRAM.primes)
    divided = as_integers(ring.rescaled(x)[0], HISTOGRAM.primes[1:])
    for number, found in zip(numbers, divided, strict=True):
        assert 2 * abs(number - found * HISTOGRAM.primes[0]) <= HISTOGRAM.primes[0]


def test_errors_are_those_that_the_words_hold():
    ring = wide_ring_of(HISTOGRAM)
    x = polynomials(ring, 2, 7)
    with_errors = ring.with_errors(x.copy(), Stream(bytes(32)))
    errors = Stream(bytes(32)).errors(2 * ring.n).reshape(2, 1, ring.n)
    difference = with_errors - x
    wrapped = difference - np.rint(difference / ring.primes[:, None]) * ring.primes[:, None]
    assert (wrapped == errors).all()


@pytest.mark.parametrize("n", [8192, 8190, 5, 1])
def test_ternary_products_are_inner_products(n):
    random = np.random.default_rng(n)
    ternary = random.integers(-1, 2, (7, n)).astype(np.int8)
    numbers = random.integers(-(2**49), 2**49, (n, 130))
    threes = -(-n // 3)
    indices = np.empty((7, threes + threes % 2), np.uint8)
    wide_kernels.trits(ternary, indices)
    out = np.empty((7, 130), np.int64)
    wide_kernels.ternary_products(indices, numbers, out)
    assert (out == ternary.astype(np.int64) @ numbers).all()


def test_a_flood_is_bounded_centred_and_uniform_in_its_low_bits():
    ring, primes = wide_ring_of(HISTOGRAM), HISTOGRAM.primes
    sums = np.zeros((4000, 1, 4), np.uint64)
    out = np.empty((4000, 4, 1))
    wide_kernels.flood(sums, sums.astype(np.int64), Stream().words(24_000).reshape(4000, 1, 6), 65, ring.primes, out)
    found = np.array(as_integers(out[:, :, 0].T, primes), object)
    assert max(abs(int(value)) for value in found) <= 3 * 2**64
    scaled = (found / 2**65).astype(float)
    # Three uniforms have a variance of 1/4; both statistics stay within five standard deviations.
    assert abs(scaled.mean()) < 5 * 0.5 / np.sqrt(4000)
    assert scaled.var() == pytest.approx(0.25, abs=0.03)
    low = np.array([int(value) % 16 for value in found])
    counts = np.bincount(low, minlength=16)
    assert ((counts - 250) ** 2 / 250).sum() < 60


def test_a_flood_is_the_sum_of_what_its_words_say():
    ring = wide_ring_of(HISTOGRAM)
    random = np.random.default_rng(0)
    sums = random.integers(0, 2**49, (3, 2, 4)).astype(np.uint64)
    keyed = random.integers(0, 2**49, (3, 2, 4))
    words = random.integers(0, 2**64, (3, 2, 6), dtype=np.uint64)
    words[0, 0], words[2, 1] = 0, 2**64 - 1
    out = np.empty((3, 4, 2))
    wide_kernels.flood(sums, keyed, words, 65, ring.primes, out)
    for k in range(3):
        for j in range(2):
            drawn = sum((int(words[k, j, 2 * u]) >> 24) + ((int(words[k, j, 2 * u + 1]) >> 39) << 40) for u in range(3))
            for limb, p in enumerate(HISTOGRAM.primes):
                wanted = int(sums[k, j, limb]) + int(keyed[k, j, limb]) + drawn - 3 * 2**64
                assert int(out[k, limb, j]) % p == wanted % p


@pytest.mark.parametrize(("width", "slots"), [(33, 4), (60, 2)])
def test_slots_come_back_from_residues_with_their_noise(width, slots):
    primes = HISTOGRAM.primes[1:]
    random = np.random.default_rng(width)
    edge = 2 ** (width - 1) - 1
    wanted = random.integers(-edge, edge, (200, slots))
    wanted[:4] = [[edge] * slots, [-edge] * slots, [0] * slots, [-1] * slots]
    noise = random.integers(-(2**16) + 1, 2**16, 200)
    noise[:4] = [2**16 - 1, -(2**16) + 1, -1, 0]
    residues = np.empty((3, 200), np.int64)
    for m in range(200):
        number = int(noise[m]) + (sum(int(s) << width * place for place, s in enumerate(wanted[m])) << 17)
        residues[:, m] = [number % p for p in primes]
    inverses = [pow(primes[0], -1, primes[1]), pow(primes[0] * primes[1], -1, primes[2]), primes[0] % primes[2]]
    sums, rests = np.empty((200, slots), np.int64), np.empty(200, np.int64)
    wide_kernels.decode(residues, np.array(primes), np.array(inverses), 17, width, sums, rests)
    assert (sums == wanted).all()
    assert (rests == noise).all()
