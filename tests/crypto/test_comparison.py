"""A shared number is found negative exactly where it is, whatever its shares."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from colonnade.crypto import comparison
from colonnade.crypto.profiles import SHARES
from colonnade.crypto.rlwe import SecretKey

WORD = st.integers(0, 2**64 - 1)


def answered(value, first, mask, look=lambda vector, column: int(vector @ column[:, 0])):
    """The opened answer, with what the first look gave shared as `rlwe` would."""
    second = (value - first) % 2**64
    found = look(comparison.digits_asked(first), comparison.digits_table(second))
    asked = comparison.sign_asked(first, (found + mask) % 2**64)
    return look(asked, comparison.sign_table(second, -mask % 2**64))


@given(st.integers(-(2**63), 2**63 - 1), WORD, WORD)
@example(0, 0, 0)
@example(0, 2**63, 2**64 - 1)
@example(-1, 2**63, 0)
@example(2**63 - 1, 2**64 - 1, 1)
@example(-(2**63), 1, 0)
def test_the_answer_is_the_sign(value, first, mask):
    assert answered(value, first, mask) == int(value < 0)


@pytest.mark.parametrize("near", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("first", [0, 255, 256, 2**56, 2**63 - 1, 2**63, 2**64 - 1])
def test_the_sign_is_right_next_to_zero(near, first):
    assert answered(near, first, 12345) == int(near < 0)


def test_looks_are_hidden_products_of_the_profile_for_shares():
    secret = SecretKey(profile=SHARES)
    key = secret.public

    def look(vector, column):
        block = len(vector)
        product = key.product(key.prepare(column, block), key.encrypt(vector, block))
        masked, masks = key.masked(product, block, 1)
        return (int(secret.decrypt(masked, block, 1)[0]) - int(masks[0])) % 2**64

    for value in (-(2**40), -1, 0, 2**40):
        assert answered(value, 2**63 + 17, 99, look) == int(value < 0)
