"""Products of private vectors: exact modulo 2^64, and uniform to the party that decrypts."""

import numpy as np
import pytest
from scipy import stats

from colonnade.crypto import products
from colonnade.crypto.profiles import DISTANCE_BITS, SHARES
from colonnade.crypto.ring import ring_of
from colonnade.crypto.rlwe import SecretKey

SECRET = SecretKey(profile=SHARES)
KEY = SECRET.public


def words(n, seed):
    return np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64)


def shares(first, second):
    data = products.encrypt(KEY, first)
    assert len(data) == len(first) * products.n_ciphertexts(len(first[0]))
    masked, own = products.multiply(KEY, data, second)
    assert len(masked) == products.n_ciphertexts(len(first[0]))
    return products.decrypt(SECRET, masked, len(first[0])), own


@pytest.mark.parametrize("n_values", [1, 100, 8192, 8193])
def test_shares_of_a_sum_of_products_add_up(n_values):
    first, second = ([words(n_values, seed + i) for i in range(2)] for seed in (0, 10))
    one, other = shares(first, second)
    assert (one + other == first[0] * second[0] + first[1] * second[1]).all()


def test_products_hold_at_the_ends_of_the_range():
    ends = np.array([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1], np.uint64)
    one, other = shares([np.repeat(ends, 6)], [np.tile(ends, 6)])
    assert (one + other == np.repeat(ends, 6) * np.tile(ends, 6)).all()


def test_products_of_single_bits_take_fewer_ciphertexts():
    first, second = (words(9000, seed) % np.uint64(2) for seed in (3, 4))
    data = products.encrypt(KEY, [first], products.BITS)
    assert len(data) == products.n_ciphertexts(9000, products.BITS) == 6
    masked, own = products.multiply(KEY, data, [second], products.BITS)
    one = products.decrypt(SECRET, masked, 9000, products.BITS)
    assert (one + own == first * second).all()
    assert stats.kstest(one / 2.0**64, "uniform").pvalue > 1e-6


def test_either_share_by_itself_is_uniform():
    for value in (0, 2**64 - 1):
        same = np.full(8192, value, np.uint64)
        for share in shares([same], [same]):
            assert stats.kstest(share / 2.0**64, "uniform").pvalue > 1e-6


def test_a_product_is_never_masked_twice_alike():
    data = products.encrypt(KEY, [words(10, 0)])
    seen = [products.multiply(KEY, data, [words(10, 1)]) for _ in range(2)]
    assert (seen[0][0] != seen[1][0]).mean() > 0.99
    assert (seen[0][1] != seen[1][1]).all()


def test_the_sum_of_products_and_its_mask_stay_below_the_product_of_the_primes():
    for n_primes, most in ((products.WORDS, 2 * 2**128), (products.BITS, 1)):
        product = int(np.prod([int(p) for p in products.SLOT_PRIMES[:n_primes]], dtype=object))
        assert most + 2 ** products.mask_bits(n_primes) < product / 100
        # What a mask leaves open is its product over its range.
        assert products.mask_bits(n_primes) - np.log2(float(most)) >= 69
    assert not set(products.SLOT_PRIMES) & set(SHARES.primes)


def test_the_flood_hides_the_noise_of_products():
    # Fresh noise and rounding times coefficients of 25 bits, for two products.
    fresh = np.sqrt(10.5 * (4 * SHARES.n / 3 + 1))
    noise = 2 * (fresh * np.sqrt(SHARES.n) + SHARES.n) * 2**25
    spare = products.FLOOD_BITS - SHARES.flood_bits
    assert SHARES.distance_bits(noise, SHARES.most_values) + spare >= DISTANCE_BITS
    assert SHARES.modulus / max(products.SLOT_PRIMES) / 4 > 3 * 2 ** (products.FLOOD_BITS - 1) + 2**45


def test_the_flood_of_products_is_as_wide_as_it_should_be():
    """What is left of a decrypted product after rounding is the flood, not the other party's numbers times errors."""
    few = products.BITS
    masked, _ = products.multiply(KEY, products.encrypt(KEY, [words(4, 0)], few), [words(4, 1)], few)
    ring, t = ring_of(SHARES), products.SLOT_PRIMES[0]
    found = ring.integers(SECRET.residues(masked))[0]
    rest = [float((value * t) - round(value * t / ring.modulus) * ring.modulus) / t for value in found.tolist()]
    assert np.std(rest) == pytest.approx(2.0 ** (products.FLOOD_BITS - 1), rel=0.05)
