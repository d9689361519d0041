"""Public-key RLWE: sums are exact at the extremes, and a masked ciphertext tells nothing."""

import itertools

import numpy as np
import pytest
from scipy import stats

from colonnade.crypto import rlwe
from colonnade.crypto.additive import MOST_ROWS, Widths, unmasked
from colonnade.crypto.profiles import ARBITER, SHARES
from colonnade.crypto.ring import Ring, ring_of
from colonnade.errors import CryptoError, KeyMismatch

SECRET = rlwe.SecretKey()
KEY = rlwe.PublicKey.from_bytes(SECRET.public.to_bytes())


def opened(matrix, vectors, block):
    data = KEY.encrypt(vectors[0], block)
    for vector in vectors[1:]:
        data = KEY.add(data, KEY.encrypt(vector, block))
    product = KEY.product(KEY.prepare(matrix, block), data)
    masked, masks = KEY.masked(product, block, matrix.shape[1])
    assert len(data) == KEY.vector_size(len(matrix), block)
    assert len(masked) == KEY.masked_size(matrix.shape[1], block)
    return unmasked(SECRET.decrypt(masked, block, matrix.shape[1]), masks)


@pytest.mark.parametrize(("n_rows", "n_columns"), [(1, 1), (100, 3), (511, 40), (8191, 2), (8192, 5), (8193, 5)])
def test_sums_are_exact_whatever_the_block(n_rows, n_columns):
    random = np.random.default_rng(n_rows)
    matrix = random.integers(-(2**12), 2**12, (n_rows, n_columns))
    vectors = random.integers(-(2**18), 2**18, (3, n_rows))
    for block in {rlwe.rows_per_block(n_rows, n_columns), 512, 8192}:
        assert (opened(matrix, vectors, block) == matrix.T @ vectors.sum(axis=0)).all()


@pytest.mark.parametrize("signs", ["positive", "alternating"])
def test_sums_are_exact_at_the_ends_of_the_range(signs):
    widths, n_rows = Widths.of(2**16), 2**16
    sign = np.ones(n_rows, np.int64) if signs == "positive" else np.where(np.arange(n_rows) % 2, 1, -1)
    matrix = np.stack([2**widths.column_bits * sign, np.full(n_rows, -(2**widths.column_bits))], axis=1)
    vector = 2**widths.residual_bits * sign
    assert (opened(matrix, [vector], 8192) == matrix.T @ vector).all()


def test_few_ciphertexts_carry_many_columns():
    block = rlwe.rows_per_block(4096, 300)
    assert KEY.vector_size(4096, block) + KEY.masked_size(300, block) <= 30


def test_columns_that_are_not_kept_in_memory_give_the_same_sums(monkeypatch):
    random = np.random.default_rng(0)
    matrix, vector = random.integers(-100, 100, (3000, 50)), random.integers(-100, 100, 3000)
    monkeypatch.setattr(rlwe, "_CHUNK_BYTES", 2**20)
    data = KEY.encrypt(vector, 1024)
    kept, made_anew = (KEY.prepare(matrix, 1024, cached=cached) for cached in (True, False))
    assert made_anew.cached is None
    assert (KEY.product(kept, data) == KEY.product(made_anew, data)).all()
    assert rlwe.fits_cache(10**7)
    assert not rlwe.fits_cache(10**8)


def test_the_noise_below_the_flood_is_as_computed():
    random = np.random.default_rng(0)
    matrix, vector = random.integers(-(2**12), 2**12, (8192, 1)), np.zeros(8192, np.int64)
    data = KEY.product(KEY.prepare(matrix, 8192), KEY.encrypt(vector, 8192))
    ring = ring_of(ARBITER)
    bare = ring.subtract(data[:, 0], ring.times(data[:, 1], SECRET._secret))
    noise = ring.integers(ring.inverse(bare))[0].astype(float)
    bound = rlwe.noise(1, float((matrix**2).sum()), 0)
    assert 0.9 * bound < noise.std() < 1.1 * bound


def test_what_the_holder_of_the_key_sees_is_uniform_whatever_the_sums():
    zero, large = np.zeros(512, np.int64), np.full(512, 2**20)
    matrix = np.full((512, 16), 2**12)
    seen = []
    for vector in (zero, large):
        product = KEY.product(KEY.prepare(matrix, 512), KEY.encrypt(vector, 512))
        values = [SECRET.decrypted(KEY.masked(product, 512, 16)[0]) for _ in range(5)]
        messages = np.concatenate([message.ravel() for message, _ in values])
        assert stats.kstest(messages / 2.0**53, "uniform").pvalue > 1e-6
        seen.append(np.concatenate([off.ravel() for _, off in values]))
    # The noise is the flood's: the same law for both, and far from an honest ciphertext's.
    assert stats.ks_2samp(*seen).pvalue > 1e-6
    assert np.std(seen[0]) > 0.05


def test_every_coefficient_is_masked_not_only_those_that_are_read():
    matrix, vector = np.full((512, 16), 2**12), np.full(512, 2**20)
    product = KEY.product(KEY.prepare(matrix, 512), KEY.encrypt(vector, 512))
    bare, _ = SECRET.decrypted(product)
    hidden, _ = SECRET.decrypted(KEY.masked(product, 512, 16)[0])
    assert len(np.unique(bare)) < 2000
    assert len(np.unique(hidden)) == hidden.size


def test_refreshed_ciphertexts_share_nothing_with_those_before():
    product = KEY.product(KEY.prepare(np.ones((8, 1), np.int64), 8192), KEY.encrypt(np.arange(8), 8192))
    first, second = KEY.refreshed(product), KEY.refreshed(product)
    assert (first != product).mean() > 0.99
    assert (first != second).mean() > 0.99
    assert SECRET.decrypt(first, 8192, 1).tolist() == SECRET.decrypt(second, 8192, 1).tolist() == [28]


def test_the_same_vector_is_never_encrypted_alike():
    vector = np.arange(10)
    seen = {KEY.encrypt(vector, 8192).tobytes() for _ in range(20)}
    assert len(seen) == 20


def quotient(ring, a, b):
    """The polynomial that a transformed one is the other's multiple by, as integers."""
    found = np.empty_like(a)
    for limb, p in enumerate(map(int, ring.primes)):
        inverses = np.array([pow(int(value), -1, p) if value else 0 for value in b[limb]], object)
        found[limb] = (a[limb].astype(object) * inverses % p).astype(np.uint32)
    return ring.integers(ring.inverse(found[None]))[0]


def test_the_holder_of_the_key_cannot_divide_what_comes_back_by_what_it_sent():
    """Without a fresh encryption of zero the quotient has the other party's columns as its coefficients."""
    random, ring, block = np.random.default_rng(0), ring_of(SHARES), 512
    matrix, vector = random.integers(-50, 50, (block, 16)), random.integers(-1000, 1000, block)
    key = rlwe.SecretKey(profile=SHARES).public
    asked = key.encrypt(vector, block)
    product = key.product(key.prepare(matrix, block), asked)

    def rebuilt(answer):
        c = quotient(ring, answer[0, 1], asked[0, 1])
        places = np.arange(16)[None] * block - np.arange(block)[:, None]
        return np.where(places >= 0, c[places % ring.n], -c[places % ring.n])

    assert (rebuilt(product) == matrix).all()
    assert (rebuilt(key.masked(product, block, 16)[0]) == matrix).mean() < 0.01


def test_no_two_encryptions_share_their_secret():
    """Where they did, their difference would be the difference of plaintexts, give or take an error."""
    ring = ring_of(ARBITER)
    first, second = (KEY.encrypt(np.zeros(8, np.int64), 8192)[0, 1] for _ in range(2))
    rest = ring.integers(ring.inverse(ring.subtract(first, second)[None]))[0]
    # Two errors are 42 at most, a uniform number is as small once in 2^149 times.
    assert (np.abs(rest) > 2**100).all()


def test_the_flood_is_as_wide_as_the_profile_says():
    ring = ring_of(SHARES)
    secret = rlwe.SecretKey(profile=SHARES)
    nothing = np.zeros((2, 2, len(SHARES.primes), SHARES.n), np.uint32)
    masked, _ = secret.public.masked(nothing, 8192, 2)
    scale = ring.modulus / 2.0**SHARES.message_bits
    _, off = secret.decrypted(masked)
    # Three uniform numbers of a width have half of the width as their standard deviation.
    assert np.std(off) * scale == pytest.approx(2.0 ** (SHARES.flood_bits - 1), rel=0.05)


def test_a_key_comes_back_from_its_bytes():
    again = rlwe.SecretKey.from_bytes(SECRET.to_bytes())
    assert again.public.fingerprint == KEY.fingerprint
    data = KEY.encrypt(np.array([-7]), 8192)
    assert again.decrypt(data, 8192, 1).tolist() == [2**53 - 7]


def test_two_keys_are_never_alike():
    prints = {rlwe.SecretKey().public.fingerprint for _ in range(10)}
    assert len(prints) == 10


def test_a_public_key_of_something_else_is_refused():
    data = KEY.to_bytes()
    for wrong in (data[:-1], b"x" + data[1:], b""):
        with pytest.raises(KeyMismatch, match=r"Expected a public key of rlwe-8192-156, got \d+ bytes of another kind"):
            rlwe.PublicKey.from_bytes(wrong)


def test_a_public_key_that_is_not_random_is_refused():
    head = 16 + 32
    for fill in (b"\x00", b"\xff"):
        with pytest.raises(KeyMismatch, match=r"canonical and random, got one whose are not"):
            rlwe.PublicKey.from_bytes(KEY.to_bytes()[:head] + fill * (len(KEY.to_bytes()) - head))


def test_ciphertexts_that_are_none_are_refused_by_sender():
    words = KEY.packed(KEY.encrypt(np.arange(4), 8192))
    KEY.unpacked(words, 1, "shop")
    with pytest.raises(CryptoError, match=r"Expected 2 ciphertexts of rlwe-8192-156, .* from shop, got shape"):
        KEY.unpacked(words, 2, "shop")
    with pytest.raises(CryptoError, match=r"from shop should hold residues below their primes"):
        KEY.unpacked(np.full_like(words, 2**64 - 1), 1, "shop")
    with pytest.raises(CryptoError, match=r"from shop should look random, but some are constant"):
        KEY.unpacked(np.zeros_like(words), 1, "shop")


def test_a_ciphertext_crosses_in_26_bits_for_each_residue():
    data = KEY.encrypt(np.arange(4), 8192)
    words = KEY.packed(data)
    assert words.nbytes == 2 * 6 * 8192 * 26 // 8
    assert (KEY.unpacked(words, 1, "shop") == data).all()


def test_products_of_many_blocks_are_those_of_the_definition():
    ring = Ring(16, ARBITER.primes)
    random = np.random.default_rng(0)
    a, b = (random.integers(0, 2**25, (2, 3, 6, 16)).astype(np.uint32) for _ in range(2))
    out = ring.dot(a, b)
    for r, c, limb, j in itertools.product(range(2), range(2), range(6), range(16)):
        total = sum(int(a[r, k, limb, j]) * int(b[c, k, limb, j]) for k in range(3))
        assert out[r, c, limb, j] == total % ARBITER.primes[limb]


@pytest.mark.slow
def test_sums_over_the_most_rows_are_exact():
    widths = Widths.of(MOST_ROWS)
    matrix = np.full((MOST_ROWS, 1), 2**widths.column_bits)
    vector = np.full(MOST_ROWS, -(2**widths.residual_bits))
    assert opened(matrix, [vector], 8192).tolist() == [-(2**51)]
