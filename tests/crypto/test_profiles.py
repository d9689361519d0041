"""The parameters are the frozen ones, and what is claimed of them follows."""

from math import log2, sqrt

import pytest

from colonnade.crypto import rlwe
from colonnade.crypto.fixedpoint import MOST_ROWS, Widths
from colonnade.crypto.profiles import ARBITER, DISTANCE_BITS, HISTOGRAM, SHARES

PROFILES = [HISTOGRAM, ARBITER, SHARES]


def is_prime(p):
    return p > 1 and all(p % d for d in range(2, int(sqrt(p)) + 1))


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_the_primes_are_the_largest_of_26_bits_that_the_ring_allows(profile):
    candidates = range(2**26 - (2**26 - 1) % (2 * profile.n), 2, -2 * profile.n)
    largest = [p for p in candidates if p % (2 * profile.n) == 1]
    found = []
    for p in largest:
        if is_prime(p):
            found.append(p)
        if len(found) == len(profile.primes):
            break
    assert tuple(found) == profile.primes


def test_the_moduli_are_within_what_the_estimator_was_asked():
    # 131.6 bits were estimated at log q = 104 for n = 4096, and 180.8 at 156 for n = 8192.
    assert HISTOGRAM.n == 4096
    assert HISTOGRAM.modulus_bits < 104
    for profile in (ARBITER, SHARES):
        assert profile.n == 8192
        assert profile.modulus_bits < 156
    assert all(profile.security_bits >= 128 for profile in PROFILES)


def test_the_fingerprints_are_the_agreed_ones():
    known = {
        "hinted-4096-104": "6434bec6ebc18f7382fc47627a421e63",
        "rlwe-8192-156": "8e162878dc97c49ee60870cae7328b61",
        "shares-8192-156": "30527c2066ad3290a483461140ba354e",
    }
    assert {profile.name: profile.fingerprint.hex() for profile in PROFILES} == known


def test_answered_histograms_are_within_the_statistical_distance_at_their_caps():
    noise = sqrt(10.5 * HISTOGRAM.most_rows + 14 * HISTOGRAM.n)
    assert HISTOGRAM.distance_bits(noise, HISTOGRAM.most_values) >= DISTANCE_BITS
    assert HISTOGRAM.distance_bits(noise, 4 * HISTOGRAM.most_values) < DISTANCE_BITS


@pytest.mark.parametrize("n_rows", [1, 100, 4096, 2**17, MOST_ROWS])
def test_masked_gradients_are_within_the_statistical_distance_at_their_caps(n_rows):
    largest = 2 ** Widths.of(n_rows).column_bits
    noise = rlwe.noise(5, n_rows * largest**2, n_rows * largest)
    assert ARBITER.distance_bits(noise, ARBITER.most_values) >= DISTANCE_BITS


def test_no_flood_reaches_half_a_message():
    for profile in PROFILES:
        scale = 2**profile.scale_bits if profile.scale_bits else profile.modulus >> profile.message_bits
        assert 3 * 2 ** (profile.flood_bits - 1) < scale / 2 * 0.8


def test_sums_of_lanes_and_of_doubles_stay_exact():
    # A histogram lane sums 26-bit residues; a mask is 26 bits times n terms in a double.
    assert 26 + log2(HISTOGRAM.most_rows) < 64
    assert 26 + log2(HISTOGRAM.n) < 53
