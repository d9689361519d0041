import json
import math
from decimal import Decimal, localcontext
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_ndtr
from scipy.stats import chisquare, laplace, norm

from colonnade.errors import BudgetSpent, DataError, PlanError, PrivacyError, StorageError
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.mechanisms import (
    DiscreteGaussianMechanism,
    FloatArray,
    GaussianMechanism,
    Kind,
    LaplaceMechanism,
    RandomisedResponse,
    _charged,
    _noisy,
    _standard_noise,
    grid_step,
)
from colonnade.privacy.randomness import PublicRandomness, Randomness
from colonnade.secret import Secret

RANDOM = Randomness.seeded(11, "tests")
BOTH = [("gaussian", GaussianMechanism, norm), ("laplace", LaplaceMechanism, laplace)]
N = 200_000


def released(
    mechanism: GaussianMechanism | LaplaceMechanism,
    values: object,
    ledger: Ledger | None = None,
    path: tuple[str | int, ...] = (),
) -> FloatArray:
    ledger = Ledger() if ledger is None else ledger
    return mechanism.release(
        values,  # type: ignore[arg-type]
        random=RANDOM,
        ledger=ledger,
        protects=Secret.FEATURES,
        unit="record",
        path=path,
    )


def words_for(
    mechanism: GaussianMechanism | LaplaceMechanism, values: FloatArray, path: tuple[str | int, ...] = ()
) -> npt.NDArray[np.uint64]:
    event = mechanism.event(Secret.FEATURES, "record")
    return _charged(values, [event], RANDOM, Ledger(), path).uniform_bits(2 * values.size)


@given(st.floats(1e-9, 1e9), st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20))
def test_every_output_lies_on_a_grid_that_depends_on_the_scale_alone(scale: float, values: list[float]) -> None:
    step = grid_step(scale)
    assert math.frexp(step)[0] == 0.5
    assert 1024 <= scale / step < 2048
    for mechanism in (GaussianMechanism(1.0, scale), LaplaceMechanism(1.0, scale)):
        index = released(mechanism, np.array(values) * scale) / step
        assert np.array_equal(index, np.rint(index))


@pytest.mark.parametrize(("kind", "mechanism", "distribution"), BOTH)
@pytest.mark.parametrize("value", [0.0, 0.0004, -3.2, 1e9])
def test_the_noise_has_its_distribution_around_every_value(kind, mechanism, distribution, value) -> None:
    scale = 1.7
    out = released(mechanism(1.0, scale), np.full(N, value), path=(kind, str(value)))
    edges = np.rint(distribution.ppf(np.linspace(0, 1, 201)[1:-1], scale=scale) / grid_step(scale)) + 0.5
    counts = np.bincount(np.searchsorted(edges, out / grid_step(scale) - np.rint(value / grid_step(scale))))
    offset = value / grid_step(scale) - np.rint(value / grid_step(scale))
    expected = np.diff(distribution.cdf((edges - offset) * grid_step(scale), scale=scale), prepend=0, append=1)
    assert chisquare(counts, N * expected).pvalue >= 1e-6


@pytest.mark.parametrize(("kind", "mechanism", "distribution"), BOTH)
def test_the_noise_has_its_moments(kind, mechanism, distribution) -> None:
    out = released(mechanism(1.0, 2.5), np.zeros(N), path=("moments", kind))
    _, variance, _, excess = (float(moment) for moment in distribution.stats(scale=2.5, moments="mvsk"))
    assert abs(out.mean()) < 5 * math.sqrt(variance / N)
    assert abs(out.var() / variance - 1) < 5 * math.sqrt((excess + 2) / N)


@pytest.mark.parametrize(("kind", "mechanism", "distribution"), BOTH)
def test_the_lowest_bits_of_the_output_are_uniform(kind, mechanism, distribution) -> None:
    index = released(mechanism(1.0, 1.0), np.full(N, 0.123456789), path=("bits", kind)) / grid_step(1.0)
    assert chisquare(np.bincount(index.astype(int) % 16)).pvalue >= 1e-6


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_the_tails_are_right_far_beyond_what_is_ever_drawn(kind: Kind) -> None:
    words = RANDOM.uniform_bits(2000, "tails", kind).reshape(-1, 2)
    shifts = np.arange(1000, dtype=np.uint64) % np.uint64(63)
    words[:, 0] >>= shifts
    tail = (words[:, 0] >> np.uint64(1)) * 2.0**-63 + words[:, 1] * 2.0**-127
    size = np.abs(_standard_noise(kind, words.ravel()))
    log_tail = math.log(2) + log_ndtr(-size) if kind == "gaussian" else -size
    # A relative error e of the tail is one of at most 2 * 2048 * e / hazard, with a hazard of at least 0.79, of a cell.
    assert np.max(np.abs(log_tail - np.log(tail))) < 1e-13
    assert size.max() > (8 if kind == "gaussian" else 35)


@pytest.mark.parametrize(("kind", "mechanism", "distribution"), BOTH)
def test_neighbours_cannot_be_told_apart_better_than_promised(kind, mechanism, distribution) -> None:
    epsilon, delta = 1.0, 1e-2 if kind == "gaussian" else 0.0
    promise = {"epsilon": epsilon} | ({"delta": delta} if delta else {})
    calibrated = mechanism.calibrated(1.0, **promise)
    without, with_one = (released(calibrated, np.full(N, x), path=("told", kind, int(x))) for x in (0.0, 1.0))
    gaps = []
    for threshold in np.linspace(-2, 6, 33):
        p, q = (np.mean(out > threshold) for out in (with_one, without))
        error = math.sqrt((p * (1 - p) + math.exp(2 * epsilon) * q * (1 - q)) / N)
        gaps.append((p - math.exp(epsilon) * q - delta) / max(error, 1 / N))
    assert max(gaps) < 5
    # The promise is also used up: the best threshold comes close to it.
    assert max(gaps) > -5


@pytest.mark.parametrize(("kind", "mechanism", "distribution"), BOTH)
def test_value_and_noise_are_rounded_together_and_only_once(kind, mechanism, distribution) -> None:
    values = np.linspace(-0.01, 0.01, 10_001)
    out = released(mechanism(1.0, 1.7), values, path=("once", kind))
    ideal = values + 1.7 * _standard_noise(kind, words_for(mechanism(1.0, 1.7), values, ("once", kind)))
    assert np.max(np.abs(out - ideal)) <= grid_step(1.7) * (0.5 + 1e-9)


def test_a_zero_has_no_sign() -> None:
    out = released(LaplaceMechanism(1.0, 1.0), np.full(N, -1e-9), path=("zero",))
    zeros = out[out == 0]
    assert zeros.size > 10
    assert not np.signbit(zeros).any()


def test_noise_is_added_exactly_to_large_values() -> None:
    mechanism, large = GaussianMechanism(1.0, 1.0), np.full(1000, 2.0**40)
    noise_alone = _noisy(np.zeros(1000), "gaussian", 1.0, words_for(mechanism, large))
    assert noise_alone.std() > 0.8
    assert np.array_equal(released(mechanism, large) - large, noise_alone)


def test_a_release_keeps_its_shape() -> None:
    assert released(GaussianMechanism(1.0, 1.0), np.zeros((2, 3, 4), np.float32)).shape == (2, 3, 4)
    assert released(LaplaceMechanism(1.0, 1.0), 5).shape == ()


def test_each_release_spends_its_event_exactly_once() -> None:
    ledger, mechanism = Ledger(), GaussianMechanism(2.0, 3.0)
    released(mechanism, [1.0, 2.0], ledger)
    assert dict(ledger.events) == {mechanism.event(Secret.FEATURES, "record"): 1}
    released(mechanism, [1.0], ledger)
    assert dict(ledger.events) == {mechanism.event(Secret.FEATURES, "record"): 2}


def test_calibrated_mechanisms_spend_what_they_were_calibrated_to() -> None:
    gaussian, laplacian = Ledger(), Ledger()
    released(GaussianMechanism.calibrated(7.0, epsilon=0.3, delta=1e-6), [1.0], gaussian)
    released(LaplaceMechanism.calibrated(7.0, epsilon=0.3), [1.0], laplacian)
    assert gaussian.epsilon(1e-6, protects=Secret.FEATURES) == pytest.approx(0.3, rel=1e-9)
    assert laplacian.epsilon(0.0, protects=Secret.FEATURES) == pytest.approx(0.3, rel=1e-12)


@pytest.mark.parametrize(("kind", "mechanism", "distribution"), BOTH)
def test_releases_that_differ_in_anything_have_independent_noise(kind, mechanism, distribution) -> None:
    ledger, values, n = Ledger(), np.full(20_000, 0.5), 20_000
    about = {"random": RANDOM, "ledger": ledger, "protects": Secret.FEATURES, "unit": "record", "path": ("apart", 1)}
    last_changed = values.copy()
    last_changed[-1] = np.nextafter(0.5, 1)
    releases = {
        "reference": (1.0, 1.0, values, about),
        "sensitivity": (1.5, 1.0, values, about),
        "scale": (1.0, 2.0, values, about),
        "values": (1.0, 1.0, values + 8.0, about),
        "the last bit of one value": (1.0, 1.0, last_changed, about),
        "shape": (1.0, 1.0, values.reshape(2, -1), about),
        "more values": (1.0, 1.0, np.full(n + 1, 0.5), about),
        "path": (1.0, 1.0, values, {**about, "path": ("apart", 2)}),
        "type of a step": (1.0, 1.0, values, {**about, "path": ("apart", "1")}),
        "longer path": (1.0, 1.0, values, {**about, "path": ("apart", 1, 0)}),
        "secret": (1.0, 1.0, values, {**about, "protects": Secret.LABELS}),
        "unit": (1.0, 1.0, values, {**about, "unit": "label"}),
        "adjacency": (1.0, 1.0, values, {**about, "adjacency": "add-remove"}),
        "random": (1.0, 1.0, values, {**about, "random": RANDOM.child("other")}),
    }
    noises = {
        name: ((mechanism(sensitivity, scale).release(given, **how) - given) / scale).ravel()[:n]
        for name, (sensitivity, scale, given, how) in releases.items()
    }
    for (one, first), (other, second) in combinations(noises.items(), 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(n), (one, other)
    assert sum(ledger.events.values()) == len(releases)


def test_randomised_labels_that_differ_in_anything_are_flipped_independently() -> None:
    ledger, n = Ledger(), 20_000
    labels = np.arange(n) % 2
    about = {"random": RANDOM, "ledger": ledger, "path": ("flips", 1)}
    releases = {
        "reference": (1.0, 2, labels, about),
        "epsilon": (1.1, 2, labels, about),
        "classes": (1.0, 3, labels, about),
        "labels": (1.0, 2, 1 - labels, about),
        "shape": (1.0, 2, labels.reshape(2, -1), about),
        "path": (1.0, 2, labels, {**about, "path": ("flips", 2)}),
        "unit": (1.0, 2, labels, {**about, "unit": "record"}),
        "random": (1.0, 2, labels, {**about, "random": RANDOM.child("other")}),
    }
    flips = {
        name: (RandomisedResponse(epsilon, n_classes).release(given, **how) != given).ravel()
        for name, (epsilon, n_classes, given, how) in releases.items()
    }
    for (one, first), (other, second) in combinations(flips.items(), 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(n), (one, other)
    assert sum(ledger.events.values()) == len(releases)


THREE = pytest.mark.parametrize(
    "mechanism",
    [
        GaussianMechanism.calibrated(1.0, epsilon=0.6, delta=1e-5),
        LaplaceMechanism.calibrated(1.0, epsilon=0.6),
        RandomisedResponse(epsilon=0.6, n_classes=3),
    ],
    ids=["gaussian", "laplace", "randomised response"],
)


def about_labels(ledger: Ledger) -> dict[str, Any]:
    return {"random": RANDOM, "ledger": ledger, "protects": Secret.LABELS, "unit": "label"}


@THREE
def test_a_release_that_is_repeated_has_the_same_noise_and_is_charged_once(mechanism) -> None:
    about = about_labels(Ledger())
    values = np.arange(50) % 3
    before = mechanism.release(values, path=("step", 4), **about)
    for again in (values, values.tolist(), np.repeat(values, 2)[::2], values.astype(np.uint8)):
        assert np.array_equal(mechanism.release(again, path=("step", np.int64(4)), **about), before)
    assert sum(about["ledger"].events.values()) == 1


@THREE
def test_a_release_repeated_after_a_restart_has_the_same_noise_and_is_charged_once(mechanism, tmp_path: Path) -> None:
    budget, path, values = {Secret.LABELS: (0.6, 1e-5)}, tmp_path / "ledger", np.arange(50) % 3
    before = mechanism.release(values, **about_labels(Ledger(budget, path=path)))
    about = about_labels(Ledger(budget, path=path))
    assert np.array_equal(mechanism.release(values, **about), before)
    with pytest.raises(BudgetSpent, match="nothing was released"):
        mechanism.release(values, path=("other",), **about)
    assert dict(Ledger(path=path).events) == {mechanism.event(Secret.LABELS, "label"): 1}


@THREE
def test_a_release_repeated_with_another_key_is_charged_again(mechanism, tmp_path: Path) -> None:
    for n in (1, 2):
        about = about_labels(Ledger(path=tmp_path / "ledger")) | {"random": Randomness.system()}
        mechanism.release([0, 1], **about)
        assert sum(about["ledger"].events.values()) == n


@THREE
def test_nothing_is_released_if_the_ledger_cannot_be_written(mechanism, tmp_path: Path) -> None:
    (tmp_path / "bank").write_text("a file where the folder should be")
    ledger = Ledger(path=tmp_path / "bank" / "ledger")
    for _ in range(2):
        with pytest.raises(StorageError, match="Could not write ledger: File exists"):
            mechanism.release([0, 1], **about_labels(ledger))
    assert not ledger.events


def test_the_ledgers_file_tells_neither_the_values_nor_where_the_noise_came_from(tmp_path: Path) -> None:
    files = []
    for name, key in (("one", bytes(32)), ("other", bytes(31) + b"1")):
        about = about_labels(Ledger(path=tmp_path / name))
        random = Randomness.from_key(key, source="system")
        RandomisedResponse(0.6, 3).release([0, 1, 2], **about | {"random": random})
        files.append(json.loads((tmp_path / name).read_text()))
    # The identity of the same labels differs with the key, so that without the key no guess at them can be tried.
    assert files[0]["identity"] != files[1]["identity"]
    event = RandomisedResponse(0.6, 3).event()
    stream = _charged(np.arange(3), [event], Randomness.from_key(bytes(32), source="system"), Ledger(), ())
    assert files[0]["identity"] == stream.child("identity").key.hex() != stream.key.hex()


@THREE
def test_nothing_is_released_once_the_budget_is_spent(mechanism) -> None:
    about = about_labels(Ledger(budget={Secret.LABELS: (0.6, 1e-5)}))
    mechanism.release([1, 2], path=(0,), **about)
    for values, path in (([1, 2], (1,)), ([1, 1], (0,))):
        with pytest.raises(BudgetSpent, match="nothing was released"):
            mechanism.release(values, path=path, **about)
    assert sum(about["ledger"].events.values()) == 1


@pytest.mark.parametrize(
    "mechanism",
    [
        GaussianMechanism(1.0, 1.0),
        LaplaceMechanism(1.0, 1.0),
        DiscreteGaussianMechanism(1, 1),
        RandomisedResponse(1.0, 3),
    ],
)
def test_no_noise_is_drawn_from_randomness_that_all_parties_share_and_nothing_is_charged(mechanism) -> None:
    about = about_labels(Ledger()) | {"random": PublicRandomness.seeded(0, "shared")}
    with pytest.raises(PrivacyError, match="what follows from it hides nothing"):
        mechanism.release(np.array([1, 2]), **about)
    assert not about["ledger"].events


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "Expected at least one number to release, got an empty array. Check what is released."),
        (
            [1.0, np.nan, np.inf],
            "Expected finite numbers to release; 2 of 3 are missing or infinite. Fill or drop them first.",
        ),
        (["ten"], "Expected numbers to release, got something else. Encode it as numbers first."),
        (
            [1.0, -1e20],
            "Expected numbers below 4.4e+12, which noise of scale 1 could protect; 1 of 2 are larger. "
            "Clip the values to what the sensitivity assumes.",
        ),
    ],
    ids=["empty", "not finite", "not numbers", "too large"],
)
def test_values_that_cannot_be_protected_are_refused_and_cost_nothing(values: list[object], message: str) -> None:
    for mechanism in (GaussianMechanism(1.0, 1.0), LaplaceMechanism(1.0, 1.0)):
        ledger = Ledger()
        with pytest.raises(DataError) as caught:
            released(mechanism, values, ledger)
        assert str(caught.value) == message
        assert not ledger.events


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: GaussianMechanism(0.0, 1.0),
            "Expected sensitivity to be positive and finite, got 0.0. Correct sensitivity.",
        ),
        (lambda: GaussianMechanism(1.0, math.inf), "Expected sigma to be positive and finite, got inf. Correct sigma."),
        (lambda: LaplaceMechanism(1.0, -2), "Expected scale to be positive and finite, got -2. Correct scale."),
        (
            lambda: LaplaceMechanism.calibrated(1.0, epsilon=math.nan),
            "Expected epsilon to be positive and finite, got nan. Correct epsilon.",
        ),
        (
            lambda: GaussianMechanism.calibrated(1.0, epsilon=1.0, delta=1.0),
            "Expected a delta below 1, got 1. Give one far below 1 / rows.",
        ),
        (
            lambda: RandomisedResponse(1.0, 1),
            "Expected randomised response over at least 2 classes, got 1. Correct n_classes.",
        ),
    ],
)
def test_impossible_parameters_are_refused(make, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(("epsilon", "n_classes"), [(0.5, 2), (1.0, 3), (3.0, 10), (1e-3, 5)])
def test_randomised_response_keeps_and_replaces_labels_as_often_as_promised(epsilon: float, n_classes: int) -> None:
    mechanism = RandomisedResponse(epsilon, n_classes)
    for label in range(n_classes):
        out = mechanism.release(
            np.full(20_000, label), random=RANDOM, ledger=Ledger(), path=("frequencies", str(epsilon), label)
        )
        expected = np.full(n_classes, 1 / (math.exp(epsilon) + n_classes - 1))
        expected[label] *= math.exp(epsilon)
        assert expected[label] == pytest.approx(mechanism.keep_probability, rel=1e-12)
        counts = np.bincount(out, minlength=n_classes)
        assert chisquare(counts, counts.sum() * expected).pvalue >= 1e-6


def test_a_label_is_never_kept_more_often_than_promised_not_even_by_rounding() -> None:
    """By exact arithmetic over all words, for the least probable of the other classes."""
    with localcontext(prec=60):
        for epsilon, n_classes in product(np.arange(1, 200) * 0.0637, (2, 3, 5, 100)):
            flipping = RandomisedResponse(float(epsilon), n_classes)._flipping_words
            least = Decimal(flipping) * (2**64 // (n_classes - 1)) / Decimal(2**128)
            kept = 1 - Decimal(flipping) / Decimal(2**64)
            assert kept <= Decimal(float(epsilon)).exp() * least
            assert kept >= Decimal(float(epsilon)).exp() * least * (1 - Decimal(10) ** -9)


def test_labels_are_randomised_independently_of_their_neighbours() -> None:
    kept = RandomisedResponse(1.0, 2).release(np.zeros(N, int), random=RANDOM, ledger=Ledger(), path=("apart",)) == 0
    assert abs(np.corrcoef(kept[:-1], kept[1:])[0, 1]) < 5 / math.sqrt(N)


def test_randomised_response_with_an_enormous_epsilon_keeps_every_label() -> None:
    labels = np.arange(1000).reshape(10, 100) % 7
    out = RandomisedResponse(1000.0, 7).release(labels, random=RANDOM, ledger=Ledger())
    assert np.array_equal(out, labels)


def test_randomised_response_counts_as_a_release_about_labels() -> None:
    ledger = Ledger()
    RandomisedResponse(1.5, 2).release([True, False], random=RANDOM, ledger=ledger)
    spent = ledger.spent(Secret.LABELS, 0.0)
    assert (spent.epsilon, spent.unit, spent.adjacency) == (1.5, "label", "replace-one")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "Expected labels to be class numbers from 0 to 2, got none. Give at least one label."),
        (
            [0.0, 1.0],
            "Expected labels to be class numbers from 0 to 2, got an array of float64. "
            "Encode the classes as integers first.",
        ),
        (
            [0, 3, -1, 2],
            "Expected labels to be class numbers from 0 to 2; 2 of 4 lie outside. Correct n_classes or the labels.",
        ),
    ],
    ids=["empty", "not integers", "outside"],
)
def test_labels_that_are_no_classes_are_refused_and_cost_nothing(labels: list[float], message: str) -> None:
    ledger = Ledger()
    with pytest.raises(DataError) as caught:
        RandomisedResponse(1.0, 3).release(labels, random=RANDOM, ledger=ledger)
    assert str(caught.value) == message
    assert not ledger.events


def test_a_release_is_the_same_on_every_platform() -> None:
    about = {"random": Randomness.seeded(1), "ledger": Ledger(), "path": ("a", 1)}
    features = {"protects": Secret.FEATURES, "unit": "record", **about}
    steps = GaussianMechanism(1.0, 1.0).release([0.5, 1.0, -2.0], **features) / grid_step(1.0)
    assert steps.tolist() == [1211.0, 614.0, -1513.0]
    steps = LaplaceMechanism(1.0, 1.0).release([0.5, 1.0, -2.0], **features) / grid_step(1.0)
    assert steps.tolist() == [2464.0, 1835.0, -2240.0]
    labels = RandomisedResponse(1.0, 5).release([0, 1, 2, 3, 4, 0, 1, 2], **about)
    assert labels.tolist() == [0, 0, 4, 3, 0, 2, 4, 2]


@pytest.mark.parametrize(
    "mechanism", [GaussianMechanism(1.0, 2.0), LaplaceMechanism(1.0, 2.0), RandomisedResponse(1.0, n_classes=2)]
)
def test_an_event_says_which_protection_released_it(mechanism):
    ledger = Ledger()
    common = {"random": RANDOM, "ledger": ledger, "protects": Secret.LABELS, "unit": "label"}
    mechanism.release([0, 1], **common, by="NoisyLabels")
    mechanism.release([0, 1], **common)
    assert [event.by for event in ledger.events] == ["NoisyLabels", ""]
    assert mechanism.event(Secret.LABELS, "label", by="NoisyLabels") in ledger.events
