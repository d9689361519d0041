import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_ndtr
from scipy.stats import chisquare, laplace, norm

from colonnade.errors import BudgetSpent, DataError, PlanError
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.mechanisms import (
    FloatArray,
    GaussianMechanism,
    Kind,
    LaplaceMechanism,
    RandomisedResponse,
    _standard_noise,
    grid_step,
    noise,
)
from colonnade.privacy.randomness import Randomness
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
    assert chisquare(counts, N * expected).pvalue >= 1e-4


@pytest.mark.parametrize(("kind", "mechanism", "distribution"), BOTH)
def test_the_noise_has_its_moments(kind, mechanism, distribution) -> None:
    out = released(mechanism(1.0, 2.5), np.zeros(N), path=("moments", kind))
    _, variance, _, excess = (float(moment) for moment in distribution.stats(scale=2.5, moments="mvsk"))
    assert abs(out.mean()) < 4 * math.sqrt(variance / N)
    assert abs(out.var() / variance - 1) < 4 * math.sqrt((excess + 2) / N)


@pytest.mark.parametrize(("kind", "mechanism", "distribution"), BOTH)
def test_the_lowest_bits_of_the_output_are_uniform(kind, mechanism, distribution) -> None:
    index = released(mechanism(1.0, 1.0), np.full(N, 0.123456789), path=("bits", kind)) / grid_step(1.0)
    assert chisquare(np.bincount(index.astype(int) % 16)).pvalue >= 1e-4


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
    assert max(gaps) < 4
    # The promise is also used up: the best threshold comes close to it.
    assert max(gaps) > -4


@pytest.mark.parametrize(("kind", "mechanism", "distribution"), BOTH)
def test_value_and_noise_are_rounded_together_and_only_once(kind, mechanism, distribution) -> None:
    values = np.linspace(-0.01, 0.01, 10_001)
    out = released(mechanism(1.0, 1.7), values, path=("once", kind))
    ideal = values + 1.7 * _standard_noise(kind, RANDOM.uniform_bits(2 * values.size, "release", "once", kind, 0))
    assert np.max(np.abs(out - ideal)) <= grid_step(1.7) * (0.5 + 1e-9)


def test_a_zero_has_no_sign() -> None:
    out = released(LaplaceMechanism(1.0, 1.0), np.full(N, -1e-9), path=("zero",))
    zeros = out[out == 0]
    assert zeros.size > 10
    assert not np.signbit(zeros).any()


def test_noise_is_added_exactly_to_large_values() -> None:
    mechanism, large = GaussianMechanism(1.0, 1.0), 2.0**40
    difference = released(mechanism, np.full(1000, large)) - large
    assert np.array_equal(difference, released(mechanism, np.zeros(1000)))


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


def test_two_releases_never_share_their_noise() -> None:
    ledger, mechanism = Ledger(), GaussianMechanism(1.0, 1.0)
    releases = [released(mechanism, np.zeros(50), ledger) for _ in range(5)]
    assert len({release.tobytes() for release in releases}) == 5
    flips = [RandomisedResponse(1.0, 2).release([0] * 50, random=RANDOM, ledger=ledger) for _ in range(5)]
    assert len({flip.tobytes() for flip in flips}) == 5


def test_a_release_repeated_after_a_restore_has_the_same_noise_and_is_charged_once() -> None:
    ledger, mechanism = Ledger(), GaussianMechanism(1.0, 1.0)
    released(mechanism, np.zeros(50), ledger)
    state = ledger.state()
    before = released(mechanism, np.zeros(50), ledger)
    ledger.restore(state)
    assert np.array_equal(released(mechanism, np.zeros(50), ledger), before)
    assert sum(ledger.events.values()) == 2


@pytest.mark.parametrize(
    "mechanism",
    [
        GaussianMechanism.calibrated(1.0, epsilon=0.6, delta=1e-5),
        LaplaceMechanism.calibrated(1.0, epsilon=0.6),
        RandomisedResponse(epsilon=0.6, n_classes=3),
    ],
    ids=["gaussian", "laplace", "randomised response"],
)
def test_nothing_is_released_once_the_budget_is_spent(mechanism) -> None:
    ledger = Ledger(budget={Secret.LABELS: (0.6, 1e-5)})
    settings = {"random": RANDOM, "ledger": ledger, "protects": Secret.LABELS, "unit": "label"}
    mechanism.release([1, 2], **settings)
    with pytest.raises(BudgetSpent, match="nothing was released"):
        mechanism.release([1, 2], **settings)
    assert sum(ledger.events.values()) == 1


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
        (
            lambda: noise((2,), 0.0, "gaussian", RANDOM, ()),
            "Expected scale to be positive and finite, got 0.0. Correct scale.",
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
        assert chisquare(counts, counts.sum() * expected).pvalue >= 1e-4


def test_labels_are_randomised_independently_of_their_neighbours() -> None:
    kept = RandomisedResponse(1.0, 2).release(np.zeros(N, int), random=RANDOM, ledger=Ledger(), path=("apart",)) == 0
    assert abs(np.corrcoef(kept[:-1], kept[1:])[0, 1]) < 4 / math.sqrt(N)


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


def test_noise_alone_is_a_function_of_its_path() -> None:
    one, same, other = (noise((20, 3), 0.5, "gaussian", RANDOM, ("gradient", step)) for step in (1, 1, 2))
    assert one.shape == (20, 3)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert noise((0, 3), 0.5, "laplace", RANDOM, ()).shape == (0, 3)


def test_noise_is_the_same_on_every_platform() -> None:
    steps = noise((3,), 1.0, "gaussian", Randomness.seeded(1), ("a",)) / grid_step(1.0)
    assert steps.tolist() == [-1031.0, 363.0, -247.0]
    steps = noise((3,), 1.0, "laplace", Randomness.seeded(1), ("a",)) / grid_step(1.0)
    assert steps.tolist() == [-1186.0, 332.0, -216.0]


def test_steps_of_a_run_have_uncorrelated_noise() -> None:
    draws = [noise((N // 4,), 1.0, "gaussian", RANDOM, ("run", step)) for step in range(4)]
    for one, other in pairwise(draws):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / math.sqrt(N // 4)
