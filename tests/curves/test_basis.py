from pathlib import Path

import numpy as np
import pytest

from colonnade.curves import BSplines, Fourier, Tabulated, basis_of
from colonnade.errors import DataError, PlanError

R = np.load(Path(__file__).parents[1] / "reference" / "r_fda.npz")
SPLINES = BSplines((0, 100), 20)


def test_splines_have_the_values_that_r_gives_them():
    np.testing.assert_allclose(SPLINES.evaluate(np.arange(101)), R["basis_eval_0_100"], atol=1e-9)


def test_the_gram_matrix_of_splines_is_that_of_r_where_r_is_exact():
    np.testing.assert_allclose(SPLINES.gram, R["gram_bsplinepen0_20_0_100"], rtol=1e-9, atol=1e-12)


def test_r_by_romberg_is_off_in_the_fourth_digit():
    assert 1e-5 < np.abs(SPLINES.gram - R["gram_bspline20_0_100"]).max() < 1e-3


def test_the_roughness_of_splines_is_that_of_r():
    np.testing.assert_allclose(SPLINES.penalty(2), R["pen2_bspline20_0_100"], rtol=1e-9, atol=1e-15)


def test_fourier_functions_are_orthonormal_and_their_roughness_is_that_of_r():
    basis = Fourier((0, 365), 15)
    np.testing.assert_allclose(basis.gram, np.eye(15), atol=1e-12)
    np.testing.assert_allclose(basis.gram, R["gram_fourier15_0_365"], atol=2e-6)
    np.testing.assert_allclose(basis.penalty(2), R["pen2_fourier15_0_365"], rtol=1e-9, atol=1e-15)


def brute(basis, operator, n=200_001):
    """Integrals by the trapezoid rule on a fine grid."""
    points = np.linspace(*basis.domain, n)
    values = basis.apply(operator, points)
    weights = np.full(n, points[1] - points[0])
    weights[[0, -1]] /= 2
    return (values * weights[:, None]).T @ values


BASES = [
    BSplines((0, 3), 7, order=3, knots=(0.2, 0.9, 2.0, 2.5)),
    Fourier((0, 2), 5),
    Fourier((1, 2.5), 5, period=4.0),
    Tabulated.of(lambda t: np.stack([np.ones_like(t), t, np.exp(-t)], axis=1), (0, 3), n=31),
]


@pytest.mark.parametrize("basis", BASES, ids=lambda basis: basis.kind)
@pytest.mark.parametrize(
    "operator",
    [0, 1, (0.0, 2.0, 0.0), (1.0, -0.5), (lambda t: 1 + t, 1.0)],
    ids=["value", "slope", "twice the slope", "constants", "a function of t"],
)
def test_penalties_are_the_integrals_that_they_stand_for(basis, operator):
    np.testing.assert_allclose(basis.penalty(operator), brute(basis, operator), rtol=1e-5, atol=1e-6)


def test_the_harmonic_operator_does_not_punish_the_first_harmonic():
    basis = Fourier((0, 10), 5)
    penalty = basis.penalty((0.0, (2 * np.pi / 10) ** 2, 0.0, 1.0))
    np.testing.assert_allclose(penalty[:3, :3], 0, atol=1e-12)
    assert penalty[3, 3] > 0.1


@pytest.mark.parametrize("basis", BASES, ids=lambda basis: basis.kind)
def test_a_derivative_is_the_limit_of_differences(basis):
    points = np.linspace(basis.domain[0] + 0.11, basis.domain[1] - 0.11, 9)
    differences = (basis.evaluate(points + 1e-6) - basis.evaluate(points - 1e-6)) / 2e-6
    np.testing.assert_allclose(basis.evaluate(points, derivative=1), differences, atol=1e-4)


@pytest.mark.parametrize("basis", [*BASES, SPLINES], ids=lambda basis: basis.kind)
def test_a_basis_is_the_same_after_it_was_described(basis):
    again = basis_of(basis.describe())
    assert again == basis
    np.testing.assert_array_equal(again.gram, basis.gram)


def test_whitened_curves_have_the_length_of_the_curve():
    basis = BASES[0]
    coefficients = np.random.default_rng(0).normal(size=basis.size)
    length = np.linalg.norm(coefficients @ basis.root)
    assert length**2 == pytest.approx(coefficients @ basis.gram @ coefficients, rel=1e-12)
    np.testing.assert_allclose(basis.root @ basis.inverse_root, np.eye(basis.size), atol=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BSplines((1, 1), 5), "A basis needs an interval from low to high, but got (1, 1)."),
        (lambda: BSplines((0, 1), 3), "Splines of order 4 need a size of 4 or more, but size is 3."),
        (lambda: BSplines((0, 1), 6, knots=(0.5,)), "need 2 rising knots inside of (0.0, 1.0), but got 1 knots."),
        (lambda: Fourier((0, 1), 4), "hence an odd size, but its size is 4. Use 5."),
        (lambda: Fourier((0, 1), 3, period=-1), "should be positive, but is -1."),
        (lambda: Tabulated((0, 1), 2, (0.0, 1.0), ((1.0, 2.0),)), "but got 2 points and values of shape (1, 2)."),
        (lambda: BSplines((0, 1), 5).penalty(-1), "A derivative is of order 0 or more, but the operator is -1."),
        (lambda: BSplines((0, 1), 5).penalty(()), "needs at least one weight, but it is empty."),
        (lambda: Tabulated.of(lambda t: np.ones((len(t), 2)), (0, 1)).root, "should be linearly independent"),
    ],
)
def test_a_basis_that_cannot_be_is_refused(make, words):
    with pytest.raises(PlanError) as error:
        make()
    assert words in str(error.value)


def test_points_outside_of_the_domain_are_refused_with_their_number():
    with pytest.raises(DataError) as error:
        SPLINES.evaluate([-1, 50, np.nan])
    assert str(error.value) == (
        "Curves on [0, 100] can be evaluated there only, but 2 of 3 points lie outside or are missing. "
        "Widen the domain of the basis or leave these points out."
    )


def test_a_description_that_is_none_is_refused():
    with pytest.raises(DataError, match="one of b-splines, fourier, tabulated, but it cannot be understood"):
        basis_of({"kind": "wavelets"})
