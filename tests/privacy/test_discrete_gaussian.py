import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting.gaussian_mechanism import get_sigma_gaussian
from dp_accounting.pld.privacy_loss_mechanism import DiscreteGaussianPrivacyLoss
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare, norm

from colonnade.errors import BudgetSpent, DataError, PlanError
from colonnade.privacy import discrete_gaussian, discrete_kernel
from colonnade.privacy.discrete_gaussian import draw, root_above, width_above
from colonnade.privacy.gaussian import gaussian_epsilon
from colonnade.privacy.ledger import Event, Ledger
from colonnade.privacy.mechanisms import DiscreteGaussianMechanism
from colonnade.privacy.randomness import Randomness, Step
from colonnade.secret import Secret

RANDOM = Randomness.seeded(13, "tests")
N = 400_000
NARROW = [Fraction(1, 2), Fraction(1), Fraction(37, 10)]
WIDE = [Fraction(2**10), Fraction(2**30), Fraction(2**53)]
ODD = [Fraction(4, 3), Fraction(2**61 + 1), width_above(Fraction(10**18, 7)), width_above(2**110 + 1)]


def mass(z: npt.ArrayLike, sigma: Fraction) -> npt.NDArray[np.float64]:
    """The closed form."""
    reach = math.ceil(40 * sigma)
    total = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * float(sigma) ** 2)).sum()
    return np.asarray(np.exp(-(np.asarray(z) ** 2) / (2 * float(sigma) ** 2)) / total)


@pytest.mark.parametrize("sigma", NARROW, ids=str)
def test_narrow_draws_have_the_closed_forms_probabilities(sigma: Fraction) -> None:
    drawn = draw(N, sigma, RANDOM.child("narrow", str(sigma)))
    reach = int(np.flatnonzero(N * mass(np.arange(60), sigma) >= 5)[-1])
    inner = np.arange(-reach, reach + 1)
    counts = [(drawn < -reach).sum(), *(np.count_nonzero(drawn == z) for z in inner), (drawn > reach).sum()]
    tail = (1 - mass(inner, sigma).sum()) / 2
    assert chisquare(counts, N * np.array([tail, *mass(inner, sigma), tail])).pvalue >= 1e-6


@pytest.mark.parametrize("sigma", WIDE, ids=str)
def test_wide_draws_fill_the_closed_forms_quantiles(sigma: Fraction) -> None:
    drawn = draw(N, sigma, RANDOM.child("wide", str(sigma)))
    edges = np.array([math.floor(Fraction(q) * sigma) for q in norm.ppf(np.linspace(0, 1, 201)[1:-1])])
    counts = np.bincount(np.searchsorted(edges, drawn), minlength=200)
    if sigma <= 2**10:
        upto = np.cumsum(mass(np.arange(-40 * 2**10, 40 * 2**10 + 1), sigma))[edges + 40 * 2**10]
    else:
        # Euler and Maclaurin: the sum over integers differs from the integral by a share of 1 / sigma^2.
        upto = norm.cdf((edges + 0.5) / float(sigma))
    assert chisquare(counts, N * np.diff(upto, prepend=0, append=1)).pvalue >= 1e-6


@pytest.mark.parametrize("sigma", [*WIDE[1:], *ODD[1:]], ids=float)
@pytest.mark.parametrize("n_bits", [8, 16, 24])
def test_low_bits_of_a_released_value_are_uniform(sigma: Fraction, n_bits: int) -> None:
    """For every value alike: what is added to it modulo a power of two is uniform."""
    assert sigma > 2**n_bits
    mechanism = DiscreteGaussianMechanism(1, sigma)
    values = np.full(N, 2**40 + 3, np.uint64)
    released = mechanism.release(
        values, random=RANDOM, ledger=Ledger(), protects=Secret.FEATURES, unit="record", path=("low", n_bits)
    )
    low = released & np.uint64(2**n_bits - 1)
    assert chisquare(np.bincount(low >> np.uint64(max(0, n_bits - 12)))).pvalue >= 1e-6
    assert chisquare(np.bincount(low & np.uint64(2**8 - 1))).pvalue >= 1e-6


@given(st.integers(4, 8), st.integers(0, 2**32))
def test_a_width_of_a_few_grid_steps_leaves_no_coset_out(n_bits: int, seed: int) -> None:
    drawn = draw(64 * 2**n_bits, 2 ** (n_bits + 3), Randomness.seeded(seed))
    assert len(np.unique(drawn % 2**n_bits)) == 2**n_bits


RECORDED: list[int] = []


class Recorded(Randomness):
    """A source that remembers every word that was drawn from it, as 63 bits."""

    def uniform_bits(self, n: int, *path: Step) -> npt.NDArray[np.uint64]:
        words = super().uniform_bits(n, *path)
        RECORDED.extend(int(word) >> 1 for word in words)
        return words


def slowly_drawn(sigma: Fraction, words: Iterator[int]) -> int:
    """One draw by the algorithm that the module states, in integers and fractions of any size."""

    def below(n: int) -> int:
        while n > 1:
            if (found := next(words) % 2 ** (n - 1).bit_length()) < n:
                return found
        return 0

    def happens(share: Fraction, power: int, divisor: int) -> bool:
        """With probability exp(-share**power / divisor)."""
        k = 1
        while all(below(sigma.numerator) < share * sigma.numerator for _ in range(power)) and below(divisor * k) == 0:
            k += 1
        return k % 2 == 1

    while True:
        k = 0
        while happens(Fraction(0), 0, 2):
            k += 1
        if not all(happens(Fraction(0), 0, 2) for _ in range(k * (k - 1))):
            continue
        choice = below(math.ceil(sigma))
        # The offsets u below a that make k a + u a multiple of b, in rising order.
        first = -k * sigma.numerator % sigma.denominator
        u = first + choice * sigma.denominator
        if u >= sigma.numerator:
            continue
        share = Fraction(u, sigma.numerator)
        if not (all(happens(share, 1, 1) for _ in range(k)) and happens(share, 2, 2)):
            continue
        is_negative = below(2) == 1
        size = (k + share) * sigma
        assert size.denominator == 1
        if is_negative and size == 0:
            continue
        return int(-size if is_negative else size)


@pytest.mark.parametrize("sigma", [*NARROW, *WIDE, *ODD], ids=float)
def test_fast_draws_are_those_of_the_slow_and_obvious_algorithm(sigma: Fraction, monkeypatch) -> None:
    """Oracle, number by number; words are drawn in many blocks, whose ends fall into the middle of draws."""
    monkeypatch.setattr(discrete_gaussian, "_MOST_WORDS", 97)
    RECORDED.clear()
    drawn = draw(400, sigma, Recorded(RANDOM.child("slow", str(sigma)).key, "seeded"))
    assert len(RECORDED) > 20 * 97
    words = iter(RECORDED)
    wanted = [slowly_drawn(sigma, words) for _ in range(400)]
    assert drawn.view(np.uint64).tolist() == [number % 2**64 for number in wanted]


def published_draw(squared: Fraction, coins: Random) -> int:
    """Algorithm 3 of Canonne, Kamath & Steinke, word by word."""

    def bernoulli(p: Fraction) -> bool:
        return coins.randrange(p.denominator) < p.numerator

    def bernoulli_exp(gamma: Fraction) -> bool:
        while gamma > 1:
            if not bernoulli_exp(Fraction(1)):
                return False
            gamma -= 1
        k = 1
        while bernoulli(gamma / k):
            k += 1
        return k % 2 == 1

    t = math.isqrt(math.floor(squared)) + 1
    while True:
        u = coins.randrange(t)
        if not bernoulli_exp(Fraction(u, t)):
            continue
        v = 0
        while bernoulli_exp(Fraction(1)):
            v += 1
        is_negative, size = bernoulli(Fraction(1, 2)), u + t * v
        if is_negative and size == 0:
            continue
        if bernoulli_exp((size - squared / t) ** 2 / (2 * squared)):
            return -size if is_negative else size


@pytest.mark.parametrize("sigma", [Fraction(1, 2), Fraction(37, 10), Fraction(23)], ids=str)
def test_draws_have_the_distribution_of_the_published_algorithm(sigma: Fraction) -> None:
    """Oracle: another algorithm, with coins of another source."""
    coins = Random(5)
    slow = np.array([published_draw(sigma**2, coins) for _ in range(8000)])
    fast = draw(200_000, sigma, RANDOM.child("published", str(sigma)))
    edges = np.unique(np.quantile(fast, np.linspace(0, 1, 31)[1:-1]))
    table = [np.bincount(np.searchsorted(edges, each), minlength=len(edges) + 1) for each in (slow, fast)]
    kept = np.array(table)[:, np.sum(table, axis=0) > 0]
    assert chi2_contingency(kept).pvalue >= 1e-6


def test_no_floating_point_takes_part_in_a_draw() -> None:
    from numba import njit, types

    draw(10, Fraction(37, 10), RANDOM)
    for function in (discrete_kernel.fill, discrete_kernel._attempt, discrete_kernel._happens, discrete_kernel._below):
        signature = function.signatures[0]
        compiled = njit(function.py_func)
        compiled.compile(signature)
        found = compiled.overloads[signature].type_annotation.typemap.values()
        assert found
        assert not [each for each in found if isinstance(each, types.Float | types.Complex)]


def test_draws_are_a_function_of_their_source() -> None:
    one, same, other = (draw(50, 2**40, RANDOM.child(name)) for name in ("a", "a", "b"))
    assert np.array_equal(one, same)
    assert not np.isin(one, other).any()
    assert draw(0, 1, RANDOM).size == 0


def test_draws_are_the_same_on_every_platform() -> None:
    assert draw(5, Fraction(37, 10), Randomness.seeded(1)).tolist() == [2, 3, 2, 1, -1]
    assert draw(3, 2**60, Randomness.seeded(1)).tolist() == [
        260318640437622010,
        -483887856626387719,
        594436888690940259,
    ]


@given(st.fractions(Fraction(1, 100), 2**120))
def test_rounded_widths_are_enough_and_hardly_more(squared: Fraction) -> None:
    width = width_above(squared)
    assert width**2 >= squared
    assert Fraction(float(width)) == width
    assert width.denominator <= 2**40
    if squared >= 2**20:
        assert width**2 <= squared * (1 + Fraction(1, 2**46))
    assert (root_above(squared) - 1) ** 2 < squared <= root_above(squared) ** 2


EPSILONS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
DELTAS = (1e-12, 1e-8, 1e-5, 0.1)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_calibration_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    sensitivity = 2**30 + 1
    sigma = DiscreteGaussianMechanism.calibrated(sensitivity, epsilon=epsilon, delta=delta).sigma
    assert float(sigma / sensitivity) == pytest.approx(get_sigma_gaussian(epsilon, delta), rel=1e-9)


def charged(sensitivity: int, sigma: Fraction | int, delta: float, count: int = 1) -> float:
    ledger = Ledger()
    ledger.spend(DiscreteGaussianMechanism(sensitivity, sigma).event(Secret.FEATURES, "record"), count)
    return ledger.epsilon(delta, protects=Secret.FEATURES)


@pytest.mark.parametrize("sensitivity", [30_000, 60_000, 300_000])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-2])
def test_a_wide_release_is_charged_what_dp_accounting_says(sensitivity: int, delta: float) -> None:
    sigma = 2**16
    exact = DiscreteGaussianPrivacyLoss(sigma, sensitivity=sensitivity)
    epsilon = charged(sensitivity, sigma, delta)
    assert exact.get_delta_for_epsilon(epsilon * (1 + 1e-9)) <= delta
    assert exact.get_delta_for_epsilon(epsilon * (1 - 1e-9)) >= delta


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.7, 7.9, 8.0, 20.0, 1000.0])
@pytest.mark.parametrize("sensitivity", [1, 3, 20])
@pytest.mark.parametrize("delta", [1e-8, 1e-3])
def test_no_release_is_charged_less_than_dp_accounting_says(sigma: float, sensitivity: int, delta: float) -> None:
    # dp-accounting cuts the noise off where less than 1e-30 is left, which a shift must not reach.
    exact = DiscreteGaussianPrivacyLoss(sigma, sensitivity=sensitivity, truncation_bound=math.ceil(12 * sigma) + 60)
    epsilon = charged(sensitivity, Fraction(sigma).limit_denominator(10), delta)
    assert math.isfinite(epsilon)
    assert exact.get_delta_for_epsilon(epsilon) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("shift", [(6, 0), (4, 4), (5, 3)])
@pytest.mark.parametrize("sigma", [3, 8, 9])
def test_two_numbers_at_once_cost_no_more_than_charged(shift: tuple[int, int], sigma: int) -> None:
    """Brute force over both numbers; the directions of a lattice are not all alike."""
    reach, delta = 12 * sigma, 1e-4
    z = np.arange(-reach, reach + 1)
    joint = np.multiply.outer(mass(z, Fraction(sigma)), mass(z, Fraction(sigma)))
    moved = np.multiply.outer(mass(z - shift[0], Fraction(sigma)), mass(z - shift[1], Fraction(sigma)))
    epsilon = charged(root_above(shift[0] ** 2 + shift[1] ** 2), sigma, delta)
    assert np.maximum(joint - math.exp(epsilon) * moved, 0).sum() <= delta


def test_wide_releases_compose_with_gaussian_ones_exactly() -> None:
    ledger = Ledger()
    ledger.spend(DiscreteGaussianMechanism(3 * 2**20, 4 * 2**20).event(Secret.FEATURES, "record"), 2)
    ledger.spend(Event(Secret.FEATURES, "record", "gaussian", (("sensitivity", 1.0), ("sigma", 2.0))))
    spent = ledger.spent(Secret.FEATURES, 1e-5)
    assert spent.rho == pytest.approx((2 * 0.75**2 + 0.25) / 2, rel=1e-12)
    assert spent.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(2 * 0.75**2 + 0.25), 1e-5), rel=1e-9)
    assert dict(spent.releases) == {"discrete-gaussian": 2, "gaussian": 1}


def test_narrow_releases_cost_their_zero_concentrated_loss_whatever_else_was_released() -> None:
    ledger = Ledger()
    ledger.spend(DiscreteGaussianMechanism(1, 2).event(Secret.FEATURES, "record"), 3)
    rho = 3 / 8
    assert ledger.epsilon(1e-5, protects=Secret.FEATURES) == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e5)))
    ledger.spend(Event(Secret.FEATURES, "record", "laplace", (("scale", 2.0), ("sensitivity", 1.0))))
    rho += 0.5**2 / 2
    assert ledger.epsilon(1e-5, protects=Secret.FEATURES) == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e5)))
    assert ledger.epsilon(0.0, protects=Secret.FEATURES) == math.inf
    assert ledger.spent(Secret.FEATURES, 1e-5).rho is None


def test_a_ledger_keeps_integer_sensitivities_exactly(tmp_path) -> None:
    event = DiscreteGaussianMechanism(2**61 + 1, 2**53).event(Secret.FEATURES, "record")
    Ledger(path=tmp_path / "ledger").spend(event, identity=b"once")
    assert list(Ledger(path=tmp_path / "ledger").events) == [event]
    assert dict(event.parameters)["sensitivity"] == 2**61 + 1


MECHANISM = DiscreteGaussianMechanism(2**20, 2**30)


def released(values: Any, *, symmetric: bool = False, **more: Any) -> Any:
    about = {"random": RANDOM, "ledger": Ledger(), "protects": Secret.FEATURES, "unit": "record"} | more
    return MECHANISM.release(values, symmetric=symmetric, **about)


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_repeated_release_is_the_same_and_one_of_other_values_has_other_noise(symmetric: bool) -> None:
    ledger, values = Ledger(), np.arange(16).reshape(4, 4)
    one, same = (released(values, symmetric=symmetric, ledger=ledger) for _ in range(2))
    other = released(values + 1, symmetric=symmetric, ledger=ledger) - values - 1
    elsewhere = released(values, symmetric=symmetric, ledger=ledger, path=("b",)) - values
    assert np.array_equal(one, same)
    assert not np.isin(one - values, other).any()
    assert not np.isin(one - values, elsewhere).any()
    assert sum(ledger.events.values()) == 3


def test_one_release_about_two_secrets_is_charged_for_both_and_only_within_the_budget() -> None:
    ledger = Ledger({Secret.LABELS: (1e-2, 1e-5)})
    both = (Secret.FEATURES, Secret.LABELS)
    released([1, 2], ledger=ledger, protects=both, by="noise")
    assert Counter(event.protects for event in ledger.events) == Counter(both)
    assert {event.by for event in ledger.events} == {"noise"}
    with pytest.raises(BudgetSpent, match="the next discrete-gaussian release"):
        released([1, 3], ledger=Ledger({Secret.LABELS: (1e-6, 1e-9)}), protects=both)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_noise_is_added_modulo_two_to_the_64(dtype: Any) -> None:
    values = np.array([0, 5, -1, 2**63 - 1, -(2**63)], np.int64).view(dtype)
    one = released(values)
    assert one.dtype == dtype
    noise = [(int(a) - int(b) + 2**63) % 2**64 - 2**63 for a, b in zip(one, values, strict=True)]
    assert 2**28 < np.std(noise) < 2**32


def test_symmetric_noise_has_half_the_variance_off_the_diagonal_and_no_other_correlation() -> None:
    size, times = 5, 4000
    zeros = np.zeros((size, size), np.int64)
    drawn = np.stack([released(zeros, symmetric=True, path=("symmetric", i)) for i in range(times)]) / 2**30
    assert np.array_equal(drawn, drawn.transpose(0, 2, 1))
    rows, columns = np.triu_indices(size)
    found = np.cov(drawn[:, rows, columns].T)
    wanted = np.diag(np.where(rows == columns, 1.0, 0.5))
    # A covariance of independent normal numbers has a standard error of at most sqrt(2 / times).
    assert np.abs(found - wanted).max() < 6 * math.sqrt(2 / times)
    assert np.abs(drawn[:, rows, columns].mean(axis=0)).max() < 6 / math.sqrt(times)


def test_no_noise_on_the_diagonal_stands_above_it_with_either_sign() -> None:
    """One stream for both would make about half of the numbers on the diagonal again, in the same order."""
    drawn = released(np.zeros((40, 40), np.int64), symmetric=True)
    assert not np.isin(np.abs(np.diag(drawn)), np.abs(drawn[np.triu_indices(40, 1)])).any()


def test_symmetric_noise_fills_every_bit_on_and_off_the_diagonal() -> None:
    size = 300
    drawn = released(np.zeros((size, size), np.int64), symmetric=True)
    for numbers in (np.diag(drawn), drawn[np.triu_indices(size, 1)]):
        for n_bits in (1, 4, 20):
            top = (numbers % 2**n_bits) >> max(0, n_bits - 4)
            assert chisquare(np.bincount(top, minlength=2 ** min(n_bits, 4))).pvalue >= 1e-6


@pytest.mark.parametrize(("sensitivity", "sigma"), [(5, 9), (5, 3), (2**20, 2**22 + 1)])
def test_noise_above_the_diagonal_hides_what_the_frobenius_norm_says(sensitivity: int, sigma: int) -> None:
    """Per unit of the norm, a change above the diagonal counts twice, and must cost no more than on the diagonal."""
    above = DiscreteGaussianMechanism(sensitivity, sigma)._sigma_above_diagonal
    assert 2 * (above**2 - 4) >= sigma**2 - 4
    assert 2 * above**2 >= sigma**2
    assert above**2 <= Fraction(sigma**2 + 4, 2) * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: DiscreteGaussianMechanism(1, 3.7),
            PlanError,
            "Expected sigma to be an integer or a Fraction, got 3.7. Give an exact width: Fraction(37, 10), not 3.7.",
        ),
        (
            lambda: DiscreteGaussianMechanism(1, 0),
            PlanError,
            "Expected sigma to be above 0, with a numerator below 2^62 and a denominator of at most 2^40, got 0. "
            "Round sigma up to such a fraction.",
        ),
        (
            lambda: draw(1, 2**62, RANDOM),
            PlanError,
            "Expected sigma to be above 0, with a numerator below 2^62 and a denominator of at most 2^40, "
            "got 4611686018427387904. Round sigma up to such a fraction.",
        ),
        (
            lambda: DiscreteGaussianMechanism(1.5, 3),
            PlanError,
            "Expected the sensitivity of integers to be an integer from 1, got 1.5. Round the sensitivity up.",
        ),
        (
            lambda: DiscreteGaussianMechanism.calibrated(1, epsilon=1.0, delta=1.0),
            PlanError,
            "Expected a delta below 1, got 1. Give one far below 1 / rows.",
        ),
        (
            lambda: released(np.ones(3)),
            DataError,
            "Expected 64-bit integers to release, got an array of float64. Round the values first.",
        ),
        (
            lambda: released(np.zeros(0, np.int64)),
            DataError,
            "Expected at least one number to release, got an empty array. Check what is released.",
        ),
        (
            lambda: released(np.zeros((2, 3), np.int64), symmetric=True),
            DataError,
            "Expected a square matrix to release, got the shape (2, 3). Give a square one.",
        ),
    ],
)
def test_what_cannot_be_drawn_or_released_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == message
