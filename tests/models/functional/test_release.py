import math

import numpy as np
import pytest

from colonnade.curves import BSplines, Curves
from colonnade.errors import BudgetSpent, PlanError
from colonnade.models.functional.release import Release, calibrate, cost, dp_release, empirical_clip
from colonnade.privacy.gaussian import gaussian_epsilon
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.randomness import Randomness
from colonnade.secret import Secret

BASIS = BSplines((0, 100), 20)


@pytest.fixture
def curves():
    return Curves.of_coordinates(np.random.default_rng(0).normal(size=(400, 20)), BASIS)


def released(curves, release, ledger=None, path=(), seed=0):
    ledger = Ledger() if ledger is None else ledger
    return dp_release(curves, release, random=Randomness.seeded(seed), ledger=ledger, path=path)


def lengths(z, metric):
    return np.linalg.norm(z if metric != "rkhs" else z @ np.linalg.inv(BASIS.gram), axis=1)


@pytest.mark.parametrize("metric", ["l2", "rkhs", "legacy"])
def test_no_released_curve_is_longer_than_the_radius_but_for_its_noise(curves, metric):
    release = Release(clip=3.0, sigma=0.0, metric=metric)
    assert lengths(released(curves, release), metric).max() <= 3.0 * (1 + 1e-12)
    assert (lengths(curves.coordinates, metric) > 3.0).mean() > 0.5


def test_a_curve_within_the_radius_is_left_as_it_is(curves):
    np.testing.assert_array_equal(released(curves, Release(clip=1e3, sigma=0.0)), curves.coordinates)


@pytest.mark.parametrize("metric", ["l2", "rkhs", "legacy"])
def test_the_noise_has_the_covariance_that_moments_are_corrected_by(metric):
    zero = Curves(np.zeros((60_000, 20)), BASIS)
    release = Release(clip=1.0, sigma=0.7, metric=metric)
    noise = release.noise(BASIS)
    found = np.cov(released(zero, release).T)
    scale = np.sqrt(np.outer(np.diag(noise), np.diag(noise)))
    assert np.abs((found - noise) / scale).max() < 6 / math.sqrt(60_000)


@pytest.mark.parametrize("metric", ["l2", "rkhs"])
def test_two_curves_at_the_radius_are_as_far_apart_as_the_sensitivity_says(metric):
    """The worst pair: opposite curves along any direction; in the coordinate of the noise they are 2 S apart."""
    release = Release(clip=3.0, sigma=0.2, metric=metric)
    rng = np.random.default_rng(1)
    worst = 0.0
    for _ in range(50):
        direction = rng.normal(size=(1, 20))
        z = release.clipped(Curves.of_coordinates(1e3 * direction, BASIS))[0]
        noise = np.linalg.inv(release.noise(BASIS))
        worst = max(worst, math.sqrt((2 * z) @ noise @ (2 * z)))
    assert worst == pytest.approx(release.sensitivity(BASIS) / 0.2, rel=1e-9)


def test_the_mixed_metric_is_charged_what_it_is_worth():
    """Clipped in L2 with noise that is not isotropic there: the worst pair lies along the least eigenvector."""
    legacy, claimed = Release(3.0, 0.2, "legacy"), Release(3.0, 0.2)
    values, vectors = np.linalg.eigh(BASIS.gram)
    z = legacy.clipped(Curves.of_coordinates(1e3 * vectors[:, :1].T, BASIS))[0]
    worst = math.sqrt((2 * z) @ np.linalg.solve(legacy.noise(BASIS), 2 * z))
    assert worst == pytest.approx(137.4, abs=0.05)
    assert worst == pytest.approx(legacy.sensitivity(BASIS) / 0.2, rel=1e-9)
    assert claimed.sensitivity(BASIS) / 0.2 == pytest.approx(30)
    assert 1 / values[0] == pytest.approx(4.579, abs=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "delta", "sigma"),
    [(1, 1e-5, 3.7306316348), (10, 1e-5, 0.4998886197), (100, 1e-5, 0.0946699070), (0.1, 1e-5, 30.7495661320)],
)
def test_calibration_is_that_of_dp_accounting(epsilon, delta, sigma):
    from dp_accounting import gaussian_mechanism

    found = calibrate([1.0], epsilon, delta, adjacency="add-remove")
    assert found == pytest.approx(sigma, abs=1e-9)
    assert found == pytest.approx(gaussian_mechanism.get_sigma_gaussian(epsilon, delta), rel=1e-9)
    exact, by_zcdp, _ = cost(np.array([1.0 / found]), delta)
    assert exact == pytest.approx(epsilon, rel=1e-9)
    assert by_zcdp > exact


def test_a_record_is_charged_for_all_its_features_at_once():
    together = calibrate([3.0] * 20, 10.0, 1e-5)
    assert together == pytest.approx(2 * 3 * math.sqrt(20) * 0.4998886197, rel=1e-8)


def test_the_seeds_default_costs_what_its_authors_print_by_zcdp():
    epsilon, zcdp, rho = cost(np.full(20, 2 * 3.0 / 0.2), 1e-5)
    assert zcdp == pytest.approx(9643.8, abs=0.1)
    assert epsilon == pytest.approx(9571, abs=1)
    assert rho == pytest.approx(9000)


def test_many_features_compose_in_the_ledger_to_the_joint_cost(curves):
    ledger = Ledger()
    for column in range(20):
        released(curves, Release(3.0, 20.0), ledger, path=(column,))
    spent = ledger.spent(Secret.FEATURES, 1e-5)
    assert spent.epsilon == pytest.approx(6.17449066, abs=1e-7)
    assert spent.epsilon == pytest.approx(gaussian_epsilon(2 * 3 * math.sqrt(20) / 20, 1e-5))


def test_the_same_release_again_gives_the_same_numbers_and_is_charged_once(curves):
    ledger, release = Ledger(), Release(3.0, 20.0)
    first, again = (released(curves, release, ledger, path=("fit", "x")) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert sum(ledger.events.values()) == 1


def test_a_second_release_of_the_same_rows_is_refused_where_the_budget_is_spent(curves):
    release = Release(3.0, 20.0)
    once = gaussian_epsilon(release.sensitivity(BASIS) / 20, 1e-5)
    ledger = Ledger({Secret.FEATURES: (once, 1e-5)})
    released(curves, release, ledger, path=("fit",))
    with pytest.raises(BudgetSpent, match="nothing was released"):
        released(curves, release, ledger, path=("predict",))
    ample = Ledger({Secret.FEATURES: (2 * once, 1e-5)})
    one, other = (released(curves, release, ample, path=(phase,)) for phase in ("fit", "predict"))
    assert np.abs(one - other).max() > 1
    assert sum(ample.events.values()) == 2


def test_without_noise_nothing_is_promised(curves):
    ledger = Ledger()
    released(curves, Release(3.0, 0.0), ledger)
    assert str(ledger.spent(Secret.FEATURES, 1e-5)) == "not private: curves released without noise"


def test_a_radius_from_the_data_promises_nothing(curves):
    ledger = Ledger()
    radius = empirical_clip(curves, "l2")
    assert (np.linalg.norm(curves.coordinates, axis=1) <= radius).mean() == pytest.approx(0.95, abs=0.005)
    released(curves, Release(radius, 20.0, empirical=True), ledger)
    spent = ledger.spent(Secret.FEATURES, 1e-5)
    assert str(spent) == "not private: curves released with a clip radius from the data: simulation only"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clip": 0.0, "sigma": 1.0}, "Release's clip should be None or a number, above 0, but is 0.0."),
        ({"clip": 1.0, "sigma": -1.0}, "Release's sigma should be a number, at least 0, but is -1.0."),
        ({"clip": None, "sigma": 1.0}, "A release with noise needs a clip radius"),
        ({"clip": 1.0, "sigma": 1.0, "metric": "sup"}, "should be 'l2', 'rkhs' or 'legacy', but is 'sup'"),
    ],
)
def test_a_release_that_promises_nonsense_is_refused(settings, words):
    with pytest.raises(PlanError) as error:
        Release(**settings)
    assert words in str(error.value)


def test_a_budget_that_is_none_is_refused():
    with pytest.raises(PlanError, match="epsilon above 0 and delta between 0 and 1, but they are 0 and 1e-05"):
        calibrate([1.0], 0, 1e-5)
    with pytest.raises(PlanError, match="a clip radius above 0 for every feature"):
        calibrate([], 1, 1e-5)


def test_a_promise_of_presence_is_refused_where_rows_show_who_is_present(curves):
    with pytest.raises(PlanError, match=r"'replace-one', but it is 'add-remove': one row for each record shows which"):
        released(curves, Release(clip=3.0, sigma=0.3, adjacency="add-remove"))
