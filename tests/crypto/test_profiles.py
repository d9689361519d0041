"""The parameters are the frozen ones, and what is claimed of them follows."""

from math import log2, sqrt
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.lattice import bdd_bits, dual_bits, primal_bits
from colonnade.crypto import hinted, rlwe
from colonnade.crypto.additive import MOST_ROWS, Widths
from colonnade.crypto.profiles import ARBITER, DISTANCE_BITS, HISTOGRAM, SHARES

PROFILES = [HISTOGRAM, ARBITER, SHARES]


def is_prime(p):
    if any(p % d == 0 for d in range(2, 1000) if d < p):
        return False
    # Any factor of a number below 2^50 is below 2^25.
    return bool((p % np.arange(3, int(sqrt(p)) + 1, 2)).all())


@pytest.mark.parametrize(
    ("profile", "bits"),
    [pytest.param(HISTOGRAM, 50, marks=pytest.mark.slow), (ARBITER, 26), (SHARES, 26)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_primes_are_the_largest_that_the_ring_allows(profile, bits):
    candidates = range(2**bits - (2**bits - 1) % (2 * profile.n), 2, -2 * profile.n)
    found = []
    for p in candidates:
        assert p % (2 * profile.n) == 1
        if is_prime(p):
            found.append(p)
        if len(found) == len(profile.primes):
            break
    assert tuple(found) == profile.primes


def test_the_moduli_are_within_what_the_estimator_was_asked():
    # For n = 8192, 132.1 bits were estimated at log q = 208, and 180.8 at 156.
    assert HISTOGRAM.n == 8192
    assert HISTOGRAM.modulus_bits < 200
    for profile in (ARBITER, SHARES):
        assert profile.n == 8192
        assert profile.modulus_bits < 156
    assert all(profile.security_bits >= 128 for profile in PROFILES)


def test_the_fingerprints_are_the_agreed_ones():
    known = {
        "hinted-8192-200": "2af886af6fb1e74a3b3ac114686e371d",
        "rlwe-8192-156": "8e162878dc97c49ee60870cae7328b61",
        "shares-8192-156": "30527c2066ad3290a483461140ba354e",
    }
    assert {profile.name: profile.fingerprint.hex() for profile in PROFILES} == known


def test_answered_histograms_are_within_the_statistical_distance_at_their_caps():
    noise = hinted.noise(HISTOGRAM.most_rows)
    assert noise == sqrt(10.5 * 2**24 + 14 * 8192)
    assert HISTOGRAM.distance_bits(noise, HISTOGRAM.most_values) >= DISTANCE_BITS
    assert HISTOGRAM.distance_bits(noise, 4 * HISTOGRAM.most_values) < DISTANCE_BITS


@pytest.mark.parametrize("n_rows", [1, 1000, 2**17, 2**19, 2**24])
def test_the_cap_on_answers_about_fewer_rows_is_where_the_distance_is_reached(n_rows):
    noise = hinted.noise(n_rows)
    most = HISTOGRAM.values_within(noise)
    assert HISTOGRAM.distance_bits(noise, most) >= DISTANCE_BITS
    assert HISTOGRAM.distance_bits(noise, most + most // 1000 + 1) < DISTANCE_BITS
    assert most >= HISTOGRAM.most_values
    assert n_rows > 2**19 or most >= 2**27


@pytest.mark.parametrize("n_rows", [1, 100, 4096, 2**17, MOST_ROWS])
def test_masked_gradients_are_within_the_statistical_distance_at_their_caps(n_rows):
    largest = 2 ** Widths.of(n_rows).column_bits
    noise = rlwe.noise(5, n_rows * largest**2, n_rows * largest)
    assert ARBITER.distance_bits(noise, ARBITER.most_values) >= DISTANCE_BITS


def test_no_flood_reaches_half_a_message():
    for profile in PROFILES:
        assert 3 * 2 ** (profile.flood_bits - 1) < profile.scale / 2 * 0.8


def test_slots_fit_into_what_is_left_of_the_modulus():
    for n_rows in (1, 2**20, 2**20 + 1, 2**24):
        slots = hinted.Slots.of(n_rows)
        room = HISTOGRAM.modulus // HISTOGRAM.scale
        # The highest slot is signed as the others are, and half of the modulus stands for negative numbers.
        assert 2 ** (2 * slots.nodes * slots.bits) < room
        assert slots.most_total < 2 ** (slots.bits - 1)
        # The largest hint and answer are off by less than what the flood leaves free.
        assert 2 ** (HISTOGRAM.scale_bits - 1) > 3 * 2**14 + hinted._MOST_NOISE


def test_sums_of_words_and_of_doubles_stay_exact():
    from colonnade.crypto import wide_kernels

    # Numbers of 50 bits are added up in words; masks and hints are 49 bits and a sign times n terms.
    assert 50 + log2(wide_kernels.MOST_ADDED) <= 64
    assert 49 + log2(HISTOGRAM.n) < 63
    # Numbers in transforms grow to less than eight primes within seven stages, each of them by what a product is.
    size = 0.5
    for _ in range(7):
        size += 0.5 + size / 8
    assert size * max(HISTOGRAM.primes) < 2**53


@pytest.mark.parametrize(
    ("n", "modulus_bits", "decoding", "dual"),
    [
        (2048, 52, 131.5, 131.6),
        (4096, 104, 131.6, 132.0),
        (4096, 106, 128.9, 129.6),
        (8192, 156, 180.8, 181.3),
        (8192, 208, 132.1, 132.8),
    ],
)
def test_costs_of_attacks_are_those_of_the_lattice_estimator_within_a_bit(n, modulus_bits, decoding, dual):
    lattice = SimpleNamespace(n=n, modulus_bits=modulus_bits)
    assert bdd_bits(lattice) == pytest.approx(decoding, abs=0.9)
    assert dual_bits(lattice) == pytest.approx(dual, abs=0.9)


def test_every_attack_on_the_profile_of_sums_costs_more_than_its_figure():
    assert min(attack(HISTOGRAM) for attack in (primal_bits, bdd_bits, dual_bits)) > HISTOGRAM.security_bits
