import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from colonnade.errors import CryptoError, PlanError, PrivacyError
from colonnade.privacy.randomness import PublicRandomness, Randomness

PATHS = st.lists(st.text(max_size=4) | st.integers(), max_size=4).map(tuple)


def test_streams_are_the_same_on_every_platform() -> None:
    random = Randomness.seeded(2025, "bank")
    assert random.key.hex() == "3b37b3b945e6b0022ce28485197b20f271518fe3f2f39c0fa7f5df607f07070c"
    assert random.uniform_bits(3, "noise", 7).tolist() == [
        10601329173427582780,
        15474475322474053791,
        65013669526135612,
    ]
    assert random.generator("schedule", 0).bit_generator.random_raw(3).tolist() == [
        7619305151573751030,
        6893692326169007241,
        5298674728153868144,
    ]
    assert random.seed("torch") == 1618520553730315422


def test_the_same_path_gives_the_same_numbers() -> None:
    one, other = Randomness.seeded(3, "shop"), Randomness.seeded(3, "shop")
    assert np.array_equal(one.uniform_bits(100, "a", 1), other.uniform_bits(100, "a", 1))
    assert np.array_equal(one.generator("a", 1).normal(size=100), other.generator("a", 1).normal(size=100))
    assert one.seed("a", 1) == other.seed("a", 1)


@given(PATHS, PATHS)
def test_different_paths_lead_to_different_sources(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    random = Randomness.seeded(0)
    assert (random.child(*one) == random.child(*other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "bc"), ("ab", "c")),
        (("a", "b"), ("ab",)),
        (("1",), (1,)),
        ((1, 2), (12,)),
        (("",), ()),
        (("", ""), ("",)),
        ((-1,), (1,)),
        (("i1",), (1,)),
        (("=bits",), ()),
    ],
)
def test_paths_that_look_alike_do_not_collide(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    random = Randomness.seeded(0)
    assert random.child(*one).key != random.child(*other).key
    assert random.seed(*one) != random.seed(*other)
    assert not np.array_equal(random.uniform_bits(2, *one), random.uniform_bits(2, *other))


@given(PATHS, PATHS)
def test_a_path_may_be_walked_in_parts(first: tuple[str | int, ...], second: tuple[str | int, ...]) -> None:
    random = Randomness.seeded(0)
    assert random.child(*first).child(*second) == random.child(*first, *second)
    assert random.child(*first).seed(*second) == random.seed(*first, *second)


def test_different_seeds_give_different_sources() -> None:
    assert len({Randomness.seeded(seed).key for seed in range(-50, 50)}) == 100


def test_different_purposes_at_one_path_share_nothing() -> None:
    random = Randomness.seeded(0)
    words = random.uniform_bits(1, "a"), random.generator("a").bit_generator.random_raw(1)
    assert len({random.seed("a"), *(int(word[0]) >> 1 for word in words)}) == 3


def test_a_longer_draw_begins_with_the_shorter() -> None:
    random = Randomness.seeded(0)
    assert np.array_equal(random.uniform_bits(1000, "a")[:10], random.uniform_bits(10, "a"))


def test_drawing_nothing_gives_nothing() -> None:
    assert Randomness.seeded(0).uniform_bits(0).shape == (0,)


def test_every_byte_of_the_cryptographic_stream_is_equally_frequent() -> None:
    counts = np.bincount(Randomness.seeded(0).uniform_bits(200_000).view(np.uint8), minlength=256)
    assert chisquare(counts).pvalue >= 1e-6


def test_streams_of_neighbouring_paths_are_uncorrelated() -> None:
    random = Randomness.seeded(0)
    one, other = (random.uniform_bits(100_000, "step", step).view(np.uint8) for step in (1, 2))
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(one.size)


def test_a_seed_fits_into_63_bits() -> None:
    seeds = [Randomness.seeded(0).seed(i) for i in range(1000)]
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63


def test_two_system_sources_differ_and_say_what_they_are() -> None:
    one, other = Randomness.system(), Randomness.system()
    assert one.key != other.key
    assert (one.source, Randomness.seeded(0).source) == ("system", "seeded")
    assert one.child("a").source == "system"


def test_a_persisted_key_restores_its_source() -> None:
    random = Randomness.system().child("noise")
    restored = Randomness.from_key(random.key, source=random.source)
    assert restored == random
    assert np.array_equal(restored.uniform_bits(5, "a"), random.uniform_bits(5, "a"))


def test_the_key_is_not_shown() -> None:
    random = Randomness.seeded(0)
    assert repr(random) == str(random) == f"{random}" == "Randomness(source='seeded')"


def test_a_key_of_the_wrong_length_is_refused_without_showing_it() -> None:
    with pytest.raises(CryptoError) as caught:
        Randomness.from_key(b"secret", source="system")
    assert str(caught.value) == (
        "Expected a randomness key of 32 bytes, got 6 bytes. "
        "Restore the key from the checkpoint that wrote it, or start from Randomness.system()."
    )


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        Randomness.from_key(bytes(32), source="lava lamp")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "Expected the source of randomness to be 'seeded' or 'system', got 'lava lamp'. Name one of the two."
    )


def test_public_randomness_gives_the_generators_that_its_seed_gives_everybody() -> None:
    public, own = PublicRandomness.seeded(3, "shared"), Randomness.seeded(3, "shared")
    for path in ((), ("epoch", 1)):
        assert public.generator(*path).integers(2**40) == own.generator(*path).integers(2**40)
    assert public.child("epoch", 1) == public.child("epoch").child(1) != public


def test_public_randomness_offers_nothing_to_hide_under() -> None:
    assert {name for name in dir(PublicRandomness) if not name.startswith("_")} == {"seeded", "child", "generator"}


@pytest.mark.parametrize("name", ["key", "seed", "source", "uniform_bits"])
def test_what_hides_is_not_drawn_from_public_randomness_nor_from_its_children(name: str) -> None:
    public = PublicRandomness.seeded(0)
    for each in (public, public.child("masks"), copy.deepcopy(public), pickle.loads(pickle.dumps(public))):
        with pytest.raises(PrivacyError) as caught:
            getattr(each, name)
        assert str(caught.value) == (
            f"Expected the randomness of one party, which gives a {name}, got the randomness that all parties share: "
            "what follows from it hides nothing. Draw from party.random in place of party.shared."
        )
    assert not hasattr(public, "colour")
