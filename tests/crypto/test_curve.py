"""The group is that of libsodium, and everything hashed to it lies on the curve, never on the twist."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.crypto import curve
from colonnade.errors import CryptoError

P, A = 2**255 - 19, 486662


def digests(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 16), dtype=np.uint8)


def numbers(points):
    return [int.from_bytes(point.tobytes(), "little") for point in points]


def is_on_curve(u):
    """Slow and obvious: Euler's criterion for the right-hand side of the curve's equation."""
    return pow(u * (u * u + A * u + 1), (P - 1) // 2, P) in (0, 1)


def twice(u):
    """The u-coordinate of the double of a point."""
    return (u * u - 1) ** 2 * pow(4 * u * (u * u + A * u + 1), -1, P) % P


def test_every_hashed_id_lies_on_the_curve_and_so_does_its_product():
    points = curve.hash_to_curve(digests(300))
    assert all(map(is_on_curve, numbers(points)))
    assert all(map(is_on_curve, numbers(curve.multiply(curve.make_key(), points))))


def test_a_hash_taken_as_it_comes_would_lie_on_the_twist_half_of_the_time():
    raw = np.random.default_rng(0).integers(0, 256, (300, 32), dtype=np.uint8)
    on_curve = sum(is_on_curve(u % P) for u in numbers(raw))
    assert 100 < on_curve < 200


def test_the_map_is_that_of_libsodium_up_to_the_cofactor():
    from hashlib import blake2b

    from nacl.bindings import crypto_core_ed25519_from_uniform, crypto_sign_ed25519_pk_to_curve25519

    ids = digests(50)
    for digest, u in zip(ids, numbers(curve.hash_to_curve(ids)), strict=True):
        uniform = bytearray(blake2b(digest.tobytes(), digest_size=32, person=b"colonnade points").digest())
        uniform[31] &= 0x7F
        theirs = crypto_sign_ed25519_pk_to_curve25519(crypto_core_ed25519_from_uniform(bytes(uniform)))
        assert twice(twice(twice(u))) == int.from_bytes(theirs, "little")


@given(st.integers(0, P - 1))
def test_the_compiled_test_of_squares_agrees_with_eulers_criterion(number):
    words = np.frombuffer(number.to_bytes(32, "little"), "<u8").reshape(1, 4)
    assert curve._are_squares()(words)[0] == (pow(number, (P - 1) // 2, P) in (0, 1))


@pytest.mark.parametrize("number", [0, 1, 2, P - 1, P - 2, (P - 1) // 2, 2**64, 2**192 - 1])
def test_the_compiled_test_of_squares_is_right_at_the_edges(number):
    words = np.frombuffer(number.to_bytes(32, "little"), "<u8").reshape(1, 4)
    assert curve._are_squares()(words)[0] == (pow(number, (P - 1) // 2, P) in (0, 1))


def test_equal_digests_have_equal_points_and_different_ones_different_points():
    points = curve.hash_to_curve(np.concatenate([digests(100), digests(100)]))
    assert (points[:100] == points[100:]).all()
    assert len(np.unique(points, axis=0)) == 100


def test_secrets_commute_and_each_of_them_matters():
    points, one, other = curve.hash_to_curve(digests(20)), curve.make_key(), curve.make_key()
    both = curve.multiply(one, curve.multiply(other, points))
    assert (both == curve.multiply(other, curve.multiply(one, points))).all()
    assert not (both == curve.multiply(one, points)).all(axis=1).any()


def test_no_points_make_no_points():
    nothing = curve.hash_to_curve(np.zeros((0, 16), np.uint8))
    assert curve.multiply(curve.make_key(), nothing).shape == (0, 32)


def test_a_point_of_small_order_is_refused():
    with pytest.raises(CryptoError, match=r"large order, but one is not.*does not keep to the protocol"):
        curve.multiply(curve.make_key(), np.zeros((1, 32), np.uint8))


@pytest.mark.parametrize("number", [P, P + 9, 2**255 - 1, 2**255, 2**255 + 9, 2**256 - 1])
def test_a_second_encoding_of_a_point_is_refused_wherever_it_stands(number):
    points = curve.hash_to_curve(digests(3))
    points = np.concatenate([points, np.frombuffer(number.to_bytes(32, "little"), np.uint8).reshape(1, 32), points])
    with pytest.raises(CryptoError, match=r"below 2\^255 - 19, but one is not.*does not keep to the protocol"):
        curve.multiply(curve.make_key(), points)


def test_the_highest_number_of_a_point_is_taken():
    # The highest u-coordinate that is not of small order.
    highest = np.frombuffer((P - 2).to_bytes(32, "little"), np.uint8).reshape(1, 32)
    assert curve.multiply(curve.make_key(), highest).shape == (1, 32)
