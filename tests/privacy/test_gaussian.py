import math

import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian, get_sigma_gaussian
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from colonnade.privacy.gaussian import gaussian_epsilon, gaussian_mu

EPSILONS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
DELTAS = (1e-12, 1e-8, 1e-5, 0.1)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_calibration_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    assert 1 / gaussian_mu(epsilon, delta) == pytest.approx(get_sigma_gaussian(epsilon, delta), rel=1e-9)


@pytest.mark.parametrize("sigma", [0.01, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_agrees_with_dp_accounting(sigma: float, delta: float) -> None:
    assert gaussian_epsilon(1 / sigma, delta) == pytest.approx(get_epsilon_gaussian(sigma, delta), rel=1e-9, abs=1e-11)


def test_delta_is_the_hockey_stick_divergence_of_two_normals() -> None:
    mu, epsilon = 0.8, 1.3

    def excess(x: float) -> float:
        return max(0.0, math.exp(-((x - mu) ** 2) / 2) - math.exp(epsilon - x**2 / 2)) / math.sqrt(2 * math.pi)

    delta, _ = quad(excess, mu / 2 + epsilon / mu, 20)
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-7)


@given(st.floats(0.01, 500), st.floats(1e-12, 0.5))
def test_epsilon_undoes_calibration(epsilon: float, delta: float) -> None:
    assert gaussian_epsilon(gaussian_mu(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-9)


def test_the_classic_formula_would_be_too_little_noise_above_epsilon_one() -> None:
    classic = math.sqrt(2 * math.log(1.25 / 1e-5)) / 10
    assert classic < 1 / gaussian_mu(10, 1e-5)


def test_no_sensitivity_costs_nothing() -> None:
    assert gaussian_epsilon(0.0, 1e-5) == 0


def test_gaussian_noise_is_never_purely_private() -> None:
    assert gaussian_epsilon(0.1, 0.0) == math.inf


def test_epsilon_is_zero_where_delta_alone_covers_the_release() -> None:
    assert gaussian_epsilon(0.01, 0.1) == 0
    assert gaussian_epsilon(5.0, 1.0) == 0
