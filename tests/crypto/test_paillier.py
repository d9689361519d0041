"""Paillier agrees with python-paillier and with plain integers."""

import numpy as np
import pytest

from colonnade.crypto import paillier
from colonnade.crypto.additive import unmasked
from colonnade.errors import CryptoError, KeyMismatch, PlanError

pytest.importorskip("gmpy2")
SECRET = paillier.SecretKey(key_bits=2048)
KEY = paillier.PublicKey.from_bytes(SECRET.public.to_bytes())


def test_python_paillier_decrypts_what_was_encrypted_here_and_the_other_way_round():
    phe = pytest.importorskip("phe")
    public = phe.PaillierPublicKey(int(KEY.n))
    private = phe.PaillierPrivateKey(public, int(SECRET._p), int(SECRET._q))
    values = [0, 1, -1, 2**52, -(2**52)]
    ours = KEY.encrypt(np.array(values), 1)
    numbers = [int.from_bytes(row.astype("<u8").tobytes(), "little") for row in ours]
    decrypted = [private.raw_decrypt(number) for number in numbers]
    assert [d - int(KEY.n) if d > KEY.n // 2 else d for d in decrypted] == values
    theirs = KEY._words_of([public.raw_encrypt(value % int(KEY.n)) for value in values])
    assert [int(number) for number in SECRET.numbers(theirs)] == values


def test_masked_sums_are_exact_and_packed():
    random = np.random.default_rng(0)
    matrix, vector = random.integers(-(2**15), 2**15, (12, 20)), random.integers(-(2**20), 2**20, 12)
    product = KEY.product(KEY.prepare(matrix, 1), KEY.encrypt(vector, 1))
    masked, masks = KEY.masked(product, 1, 20)
    assert len(masked) == KEY.masked_size(20, 1) == 2
    assert (KEY.unpacked(KEY.packed(masked), 2, "shop") == masked).all()
    assert (unmasked(SECRET.decrypt(masked, 1, 20), masks) == matrix.T @ vector).all()


def test_sums_are_exact_at_the_ends_of_their_range():
    ends = np.array([2**52 - 1, -(2**52), 0, -1])
    masked, masks = KEY.masked(KEY.encrypt(ends, 1), 1, 4)
    assert unmasked(SECRET.decrypt(masked, 1, 4), masks).tolist() == ends.tolist()


def test_what_the_holder_of_the_key_decrypts_is_under_masks_longer_than_sums():
    """Without masks the arbiter reads gradients; masks as long as sums would tell how large these are."""
    sums = KEY.encrypt(np.array([3, -5, 7]), 1)
    high, low = [], []
    for _ in range(4):
        (number,) = SECRET.numbers(KEY.masked(sums, 1, 3)[0])
        slots = [int(number) >> paillier.SLOT_BITS * place & 2**paillier.SLOT_BITS - 1 for place in range(3)]
        high += [slot >> paillier.SUM_BITS for slot in slots]
        low += [slot % 2**paillier.SUM_BITS for slot in slots]
    assert len(set(low)) == len(set(high)) == 12
    # Twelve uniform numbers of 64 bits are all below 2^56 once in 2^96 times.
    assert max(high) > 2**56
    assert max(low) > 2**45


def test_the_same_number_is_never_encrypted_alike():
    assert len({row.tobytes() for row in KEY.encrypt(np.zeros(8, np.int64), 1)}) == 8


def test_refreshed_ciphertexts_differ_and_say_the_same():
    data = KEY.encrypt(np.array([5]), 1)
    again = KEY.refreshed(data)
    assert (again != data).any()
    assert [int(number) for number in SECRET.numbers(again)] == [5]


def test_a_key_comes_back_from_its_bytes():
    again = paillier.SecretKey.from_bytes(SECRET.to_bytes())
    assert again.public.fingerprint == KEY.fingerprint
    assert [int(number) for number in again.numbers(KEY.encrypt(np.array([-3]), 1))] == [-3]


@pytest.mark.parametrize("key_bits", [1024, 2046, 2049])
def test_short_keys_are_refused(key_bits):
    with pytest.raises(PlanError, match=rf"at least 2048 bits .* but {key_bits} were asked for. Use 3072."):
        paillier.SecretKey(key_bits=key_bits)


def test_the_default_key_has_3072_bits():
    assert paillier.SecretKey().public.key_bits == 3072


def test_a_key_that_is_none_is_refused():
    with pytest.raises(KeyMismatch, match=r"a Paillier key of at least 2048 bits, got 30 bytes"):
        paillier.PublicKey.from_bytes(bytes(30))


def test_ciphertexts_that_are_none_are_refused_by_sender():
    data = KEY.encrypt(np.array([1]), 1)
    with pytest.raises(CryptoError, match=r"Expected 2 ciphertexts of paillier-2048 from shop"):
        KEY.unpacked(data, 2, "shop")
    with pytest.raises(CryptoError, match=r"from shop should be invertible"):
        KEY.unpacked(np.zeros_like(data), 1, "shop")
