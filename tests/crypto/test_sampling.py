"""Samplers draw from the laws they name, from seeds that are never used twice."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from blake3 import blake3
from scipy import stats

from colonnade.crypto.profiles import ARBITER
from colonnade.crypto.ring import ring_of
from colonnade.crypto.sampling import Stream
from colonnade.errors import CryptoError

# The ring of degree 4096 with primes of 26 bits.
NARROW = replace(ARBITER, name="narrow", n=4096, primes=(67084289, 67043329, 66994177, 66969601))

MANY = 10_000_000
# System randomness: some ten tests at this level fail by chance once in 100,000 runs.
LEVEL = 1e-6


def test_ternary_secrets_are_uniform():
    counts = np.bincount(Stream().ternary(MANY).astype(np.int64) + 1, minlength=3)
    assert counts.sum() == MANY
    assert stats.chisquare(counts).pvalue > LEVEL


def test_errors_are_centred_binomial_between_minus_21_and_21():
    errors = Stream().errors(MANY)
    assert errors.min() >= -21
    assert errors.max() <= 21
    expected = stats.binom(42, 0.5).pmf(np.arange(43)) * MANY
    counts = np.bincount(errors.astype(np.int64) + 21, minlength=43)
    usual = expected >= 10
    observed = [*counts[usual], counts[~usual].sum()]
    assert stats.chisquare(observed, [*expected[usual], expected[~usual].sum()]).pvalue > LEVEL


def test_residues_are_uniform_without_the_bias_of_a_remainder():
    p = 3 * 2**10 + 1  # 2^12 mod p would favour the low values by half
    drawn = Stream().residues((100, 10_000), np.array([p], np.uint64))
    assert drawn.max() < p
    assert stats.chisquare(np.bincount(drawn.ravel(), minlength=p)).pvalue > LEVEL


def test_known_seeds_give_the_numbers_they_always_gave():
    stream = Stream(bytes(range(32)))
    drawn = stream.ternary(1000).tobytes() + stream.errors(1000).tobytes()
    drawn += stream.residues((1, 64), np.array(NARROW.primes[:2], np.uint64)).astype("<u4").tobytes()
    assert blake3(drawn).hexdigest()[:32] == "654e78dff2a3f060a1a53c22db9f5013"


def test_wide_residues_are_uniform_without_the_bias_of_a_remainder():
    # A prime just above 2^49: of two ways to cut 50 bits down to it, only the rejection of half is without bias.
    p = 2**49 + 2**45 + 1
    drawn = Stream().wide_residues((100, 10_000), np.array([p], np.uint64))
    assert drawn.shape == (100, 1, 10_000)
    assert drawn.max() < p
    counts = np.histogram(drawn, bins=64, range=(0, p))[0]
    assert stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize("profile", [NARROW, ARBITER], ids=lambda profile: profile.name)
def test_the_flood_has_the_law_of_three_uniforms_down_to_its_last_bit(profile):
    ring, bits, count = ring_of(profile), profile.flood_bits, 40_000
    flood = ring.integers(ring.flood(Stream(), (1, count), bits))[0]
    width = 2**bits
    assert max(abs(int(value)) for value in flood) <= 3 * width // 2
    scaled = np.array([int(value) / width for value in flood])
    assert abs(scaled.mean()) < 6 * 0.5 / np.sqrt(count)
    assert scaled.var() == pytest.approx(1 / 4, rel=0.05)
    # The sum of three uniforms, by its distribution function.
    law = stats.kstest(
        scaled + 1.5, lambda x: (x**3 - 3 * np.clip(x - 1, 0, None) ** 3 + 3 * np.clip(x - 2, 0, None) ** 3) / 6
    )
    assert law.pvalue > LEVEL
    for place in (0, 8, 16, bits - 12):
        counts = np.bincount([int(value) >> place & 255 for value in flood], minlength=256)
        assert stats.chisquare(counts).pvalue > LEVEL


def test_no_two_floods_are_alike():
    ring = ring_of(NARROW)
    floods = {ring.flood(Stream(), (1, 4), 65).tobytes() for _ in range(1000)}
    assert len(floods) == 1000


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda act: act.__name__)
def test_a_stream_cannot_be_duplicated(act):
    with pytest.raises(CryptoError, match=r"cannot be copied or pickled. Draw a new one"):
        act(Stream())


def test_a_short_seed_is_refused():
    with pytest.raises(CryptoError, match=r"needs a seed of 32 bytes, got 3. Draw one"):
        Stream(b"abc")
