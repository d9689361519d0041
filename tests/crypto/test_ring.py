"""The ring is what its definition says, and what SEAL computes, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
from blake3 import blake3

from colonnade.crypto.profiles import ARBITER, SHARES
from colonnade.crypto.ring import Ring, ring_of
from colonnade.crypto.sampling import Stream

# The ring of degree 4096 with primes of 26 bits.
NARROW = replace(ARBITER, name="narrow", n=4096, primes=(67084289, 67043329, 66994177, 66969601))

SMALL = Ring(16, (97, 193, 257))


def schoolbook(a, b, n):
    """The product modulo X^n + 1 by definition, over the integers."""
    out = [0] * n
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            sign = 1 if i + j < n else -1
            out[(i + j) % n] += sign * int(x) * int(y)
    return out


def polynomials(ring, count, seed=1):
    return Stream(bytes([seed]) * 32).residues((count, ring.n), ring.primes)


def test_a_transform_evaluates_at_odd_powers_of_the_least_root_in_bit_reversed_order():
    (x,) = polynomials(SMALL, 1)
    transformed = SMALL.forward(x.copy())
    for limb, p in enumerate(SMALL.primes.tolist()):
        root = min(w for w in range(p) if pow(w, 16, p) == p - 1)
        for place in range(16):
            power = 2 * int(f"{place:04b}"[::-1], 2) + 1
            value = sum(int(c) * pow(root, power * i, p) for i, c in enumerate(x[limb])) % p
            assert transformed[limb, place] == value


@pytest.mark.parametrize("ring", [SMALL, ring_of(NARROW), ring_of(ARBITER)], ids=["16", "4096", "8192"])
def test_the_inverse_undoes_a_transform(ring):
    x = polynomials(ring, 3)
    assert (ring.inverse(ring.forward(x.copy())) == x).all()


@pytest.mark.parametrize("seed", range(5))
def test_products_are_those_of_the_schoolbook(seed):
    random = np.random.default_rng(seed)
    a, b = random.integers(-1000, 1000, (2, 16))
    product = SMALL.integers(SMALL.product(SMALL.residues(a), SMALL.residues(b)))
    wanted = [(c + SMALL.modulus // 2) % SMALL.modulus - SMALL.modulus // 2 for c in schoolbook(a, b, 16)]
    assert product.tolist() == wanted


@pytest.mark.parametrize("profile", [NARROW, ARBITER], ids=lambda profile: profile.name)
def test_products_hold_at_the_edges(profile):
    ring = ring_of(profile)
    zero, x, last = (np.zeros(ring.n, np.int64) for _ in range(3))
    x[1], last[-1] = 1, 1
    largest = np.full(ring.n, -1)  # p - 1 in every residue
    assert not ring.product(ring.residues(zero), ring.residues(largest)).any()
    # X^(n-1) X = -1
    assert ring.integers(ring.product(ring.residues(last), ring.residues(x))).tolist() == [-1] + [0] * (ring.n - 1)
    # The coefficient i of the square of 1 + X + ... is 2 (i + 1) - n.
    square = ring.integers(ring.product(ring.residues(largest), ring.residues(largest)))
    assert square.tolist() == [2 * (i + 1) - ring.n for i in range(ring.n)]


@pytest.mark.parametrize(
    ("profile", "digest"),
    [(NARROW, "c8fc56897781d5abda5f325ef9cfb76b"), (ARBITER, "22f161f5a3d16c2502fc5e0ac86bf229")],
    ids=["4096", "8192"],
)
def test_transforms_are_the_ones_they_always_were(profile, digest):
    ring = ring_of(profile)
    assert blake3(ring.forward(polynomials(ring, 2)).astype("<u4").tobytes()).hexdigest()[:32] == digest


@pytest.mark.parametrize("profile", [NARROW, ARBITER], ids=lambda profile: profile.name)
def test_transforms_and_products_are_bit_for_bit_those_of_seal(profile):
    seal = pytest.importorskip("tenseal.sealapi")
    ring, n = ring_of(profile), profile.n
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(n)
    spare = 66961409 if n == 4096 else 66404353
    parameters.set_coeff_modulus([seal.Modulus(p) for p in (*profile.primes, spare)])
    parameters.set_plain_modulus(seal.Modulus(1 << 20))
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.NONE)
    secret = seal.KeyGenerator(context).secret_key()
    encryptor, evaluator = seal.Encryptor(context, secret), seal.Evaluator(context)

    def array(data, polynomials):
        flat = data.dyn_array()
        limbs = len(profile.primes)
        values = np.array([flat[i] for i in range(polynomials * limbs * n)], np.uint32)
        return values.reshape(polynomials, limbs, n)

    plain, factor = seal.Plaintext("1x^5 + 3x^1 + 7"), seal.Plaintext(f"1x^{n - 1:d} + 5x^17 + FFFFFx^3 + 1")
    ciphertext, transformed, multiplied = (seal.Ciphertext(context) for _ in range(3))
    encryptor.encrypt_symmetric(plain, ciphertext)
    evaluator.transform_to_ntt(ciphertext, transformed)
    evaluator.multiply_plain(ciphertext, factor, multiplied)
    ours = array(ciphertext, 2)
    assert (ring.forward(ours.copy()) == array(transformed, 2)).all()
    assert (ring.inverse(array(transformed, 2)) == ours).all()
    small = np.zeros(n, np.int64)
    small[[n - 1, 17, 3, 0]] = 1, 5, -1, 1
    for index in range(2):
        assert (ring.product(ours[index], ring.residues(small)) == array(multiplied, 2)[index]).all()
    # RLWE: what SEAL encrypted, our arithmetic decrypts with SEAL's key.
    key = array(secret.data(), 1)[0]
    opened = ring.integers(ring.add(ours[0], ring.inverse(ring.times(ring.forward(ours[1].copy()), key))))
    message = [round(int(c) * 2**20 / ring.modulus) % 2**20 for c in opened[:6]]
    assert message == [7, 3, 0, 0, 0, 1]


def test_sums_of_many_products_do_not_overflow():
    ring = ring_of(NARROW)
    largest = np.broadcast_to((ring.primes - 1).astype(np.uint32)[:, None], (1, 5000, len(ring.primes), 8))
    largest = np.ascontiguousarray(largest)
    narrow = Ring(4, NARROW.primes)  # any n that divides: only the number of terms matters here
    assert (narrow.dot(largest, largest)[0, 0] == (5000 % ring.primes)[:, None]).all()


def test_combined_integers_are_exact_at_the_ends_of_64_bits():
    ring = ring_of(ARBITER)
    ends = np.array([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1])
    factors = [3**40, -(5**30)]
    found = ring.combined([ends, ends[::-1].copy()], factors)
    for place, (a, b) in enumerate(zip(ends.tolist(), ends[::-1].tolist(), strict=True)):
        wanted = [(a * factors[0] + b * factors[1]) % int(p) for p in ring.primes]
        assert found[:, place].tolist() == wanted


@pytest.mark.parametrize("profile", [ARBITER, SHARES], ids=lambda profile: profile.name)
def test_messages_are_scaled_to_within_three_and_rounded_back(profile):
    ring, bits = ring_of(profile), profile.message_bits
    random = np.random.default_rng(0)
    half = 2 ** (bits - 1)
    messages = np.concatenate([random.integers(-half, half, 200), [0, 1, -1, half - 1, -half]])
    scaled = ring.scaled(messages, bits)
    exact = ring.integers(scaled)
    for message, integer in zip(messages.tolist(), exact.tolist(), strict=True):
        distance = (integer * 2**bits - message * ring.modulus) % (ring.modulus * 2**bits)
        assert min(distance, ring.modulus * 2**bits - distance) <= 3 * 2**bits
    back, off = ring.rounded(scaled, bits)
    assert (back == messages.astype(np.uint64) & np.uint64(2**bits - 1)).all()
    assert np.abs(off).max() < 1e-6


def test_rounding_holds_up_to_almost_half_a_message():
    ring, bits = ring_of(ARBITER), ARBITER.message_bits
    noise = int(0.499 * ring.modulus) >> bits
    for sign in (-1, 1):
        shifted = ring.add(ring.scaled(np.array([12345]), bits), ring.combined([np.array([sign])], [noise]))
        back, off = ring.rounded(shifted, bits)
        assert back.tolist() == [12345]
        assert off[0] == pytest.approx(sign * 0.499, abs=1e-6)
