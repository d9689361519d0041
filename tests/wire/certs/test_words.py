import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from colonnade.errors import AuthError
from colonnade.wire.certs.words import from_words, to_words


def test_every_sixteen_bits_have_a_word_of_their_own() -> None:
    words = {to_words(number.to_bytes(2) + bytes(14)).split()[0] for number in range(2**16)}
    assert len(words) == 2**16
    assert {len(word) for word in words} == {5}


@given(st.binary(min_size=32, max_size=32))
def test_words_give_back_the_first_128_bits(fingerprint: bytes) -> None:
    assert from_words(to_words(fingerprint)) == fingerprint[:16]


@given(
    st.binary(min_size=16, max_size=16), st.integers(0, 8), st.integers(0, 4), st.sampled_from("abdefgijklmnoprstuvxz")
)
def test_one_wrong_letter_is_always_noticed(fingerprint: bytes, place: int, at: int, letter: str) -> None:
    words = to_words(fingerprint).split()
    assume(words[place][at] != letter)
    words[place] = words[place][:at] + letter + words[place][at + 1 :]
    with pytest.raises(AuthError):
        from_words(" ".join(words))


def test_two_words_in_the_wrong_order_are_noticed() -> None:
    draw = random.Random(0)
    for _ in range(1000):
        words = to_words(draw.randbytes(16)).split()
        i, j = sorted(draw.sample(range(9), 2))
        words[i], words[j] = words[j], words[i]
        with pytest.raises(AuthError, match="misheard or mistyped"):
            from_words(" ".join(words))


def test_words_that_do_not_check_are_refused() -> None:
    with pytest.raises(
        AuthError, match=r"^Expected the last word .* at least one word was misheard or mistyped\. Ask "
    ):
        from_words("babab " * 8 + "babad")


def test_too_few_words_are_refused_with_their_count() -> None:
    with pytest.raises(AuthError, match=r"^Expected a fingerprint of 9 words, got 2\. Ask for all of them"):
        from_words("babab dabik")


@pytest.mark.parametrize("word", ["babe", "bababa", "babeb", "12345"])
def test_a_word_that_is_none_is_refused_with_its_place(word: str) -> None:
    with pytest.raises(AuthError, match=rf"^Expected word 2 .* to be spelt like 'dabik', got '{word}'\. Ask"):
        from_words(f"babab {word} " + "babab " * 7)
