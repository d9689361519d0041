"""What `MomentRegression` predicts where little is left of the output's mean, and what others learn of this mean."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from colonnade.attacks.base import Grant
from colonnade.attacks.members.curves import FitMembership
from colonnade.auditing.attempt import Attempt
from colonnade.curves import BSplines, Curves
from colonnade.data.functional.generator import FunctionalData, FunctionalSetting
from colonnade.errors import StorageError
from colonnade.models.functional.messages import PartialPrediction, Surface
from colonnade.models.functional.moment_regression import MomentRegression, standing_out
from colonnade.models.functional.moments_masked import MomentBudget
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate

PAIR = Roles(label="label", features=("worker 1",))
JUDGED = replace(PAIR, arbiter="arbiter")
BOTH = pytest.mark.parametrize("roles", [PAIR, JUDGED], ids=["shares", "arbiter"])
SETTING = FunctionalSetting(n=360, p=2, active=(1,), basis=BSplines((0, 1), 6))
TRAIN, TEST = np.arange(300), np.arange(300, 360)


@pytest.fixture(scope="module")
def data():
    """Curves of mean zero and of length 1 or so."""
    drawn = SETTING.draw(1)[0]
    columns = [
        Curves.of_coordinates(each.coordinates / np.sqrt((each.coordinates**2).sum(axis=1).mean()), each.basis)
        for each in (*drawn.x, drawn.y)
    ]
    return FunctionalData(tuple(columns[:-1]), columns[-1], drawn.active)


def moved(curves, far):
    """The same curves that far from zero, in all coordinates together."""
    return Curves.of_coordinates(curves.coordinates + far / np.sqrt(curves.basis.size), curves.basis)


def clipped(z, radius):
    return z * np.minimum(1, radius / np.linalg.norm(z, axis=1, keepdims=True))


def fitted(data, roles, rows=TRAIN, seed=0, **settings):
    model = MomentRegression(**{"clip_x": 2.0, "clip_y": 2.0, **settings})
    return simulate(model.fit, data.take(rows).tables(1), roles=roles, seed=seed)


def predicted(run, data):
    shares = {name: share.predict for name, share in run.results.items()}
    return simulate(shares, data.take(TEST).tables(1), roles=run.simulation.roles, keep="all")


def over_the_mean(run, data):
    found = predicted(run, data).results["label"].curves.coordinates
    y, mean = data.y.take(TEST).coordinates, run.simulation.tables["label"].curves("response").coordinates.mean(axis=0)
    return float(((found - y) ** 2).sum() / ((mean - y) ** 2).sum())


@BOTH
@pytest.mark.parametrize(("epsilon", "far"), [(0.1, 5.0), (10.0, 20.0), (100.0, 80.0)])
def test_outputs_far_from_zero_are_predicted_no_worse_than_by_their_mean(data, roles, epsilon, far):
    """The zero curve has 26, 400 and 6,400 times the mean's error; the radius covers the mean."""
    away = replace(data, y=moved(data.y, far))
    run = fitted(away, roles, epsilon=epsilon, clip_y=far + 2)
    assert run.results["label"].is_mean_
    assert over_the_mean(run, away) == pytest.approx(1.0, abs=1e-9)


@BOTH
@pytest.mark.parametrize("epsilon", [1e2, 1e4])
@pytest.mark.parametrize("clip", [0.5, 2.0, 6.0])
def test_inputs_and_outputs_that_nobody_has_centred_are_predicted_no_worse_than_by_the_mean(data, roles, clip, epsilon):
    """Their products hold both means, and a radius of 0.5 leaves most of the output's mean in them."""
    away = FunctionalData(tuple(moved(x, 3.0) for x in data.x), moved(data.y, 3.0), data.active)
    run = fitted(away, roles, epsilon=epsilon, clip_x=6.0, clip_y=clip)
    assert over_the_mean(run, away) <= 1.02


def test_a_fit_that_gains_less_than_centring_has_left_is_not_taken_and_nobody_is_told(data, caplog):
    away = FunctionalData(tuple(moved(x, 3.0) for x in data.x), moved(data.y, 3.0), data.active)
    with caplog.at_level(logging.WARNING):
        run = fitted(away, JUDGED, epsilon=1e4, clip_x=6.0, clip_y=0.5)
    model = run.results["label"]
    assert model.is_mean_
    assert model.selected_ == ()
    assert model.w_.any()
    answer = predicted(run, away)
    mean = away.y.take(TRAIN).coordinates.mean(axis=0)
    np.testing.assert_allclose(answer.results["label"].curves.coordinates, np.tile(mean, (60, 1)), atol=1e-9)
    # Whether the label party takes the fit depends on its exact mean: it sends coefficients as if it did.
    sent = [each.message for each in answer.transcripts["label"].messages(Surface, sent=True)]
    np.testing.assert_array_equal([each.coefficients for each in sent], model.w_)
    (part,) = answer.transcripts["label"].messages(PartialPrediction, sent=False)
    assert np.abs(part.message.values).max() > 0.1
    words = "the fit gains less than what centring has left of this mean. Subtract a public mean curve from the outputs"
    assert words in model.summary()
    assert words in caplog.text


@BOTH
def test_a_fit_that_is_kept_starts_where_what_it_was_fitted_to_has_its_mean(data, roles):
    """Curves on one side of the mean are five times as long, and clipped: a mean of clipped ones starts too low."""
    side = data.y.coordinates.sum(axis=1, keepdims=True) > 0
    skewed = replace(data, y=Curves.of_coordinates(np.where(side, 5.0, 1.0) * data.y.coordinates, data.y.basis))
    run = fitted(skewed, roles, epsilon=1e5, clip_y=1.0)
    model, train = run.results["label"], skewed.take(TRAIN)
    assert not model.is_mean_
    left = clipped(train.y.coordinates - model.y_centre_, 1.0)
    y = train.y.coordinates
    np.testing.assert_allclose(model.y_mean_, y.mean(axis=0) - left.mean(axis=0), atol=1e-9)
    z = np.concatenate([clipped(x.coordinates, 2.0) for x in train.x], axis=1)
    parts = z @ model.w_.reshape(-1, 6)
    error, from_centre = (((parts + start - y) ** 2).sum() for start in (model.y_mean_, model.y_centre_))
    assert error < 0.97 * from_centre


def test_what_is_given_away_starts_from_the_mean_with_noise(data):
    """The exact mean is in the label party's predictions alone: not in `combined`, by which a fit is attacked."""
    away = replace(data, y=moved(data.y, 1.0))
    run = fitted(away, JUDGED, epsilon=100.0)
    model, z = run.results["label"], np.stack([x.coordinates for x in away.x], axis=1)
    parts = z.reshape(360, -1) @ model.w_.reshape(-1, 6)
    np.testing.assert_allclose(model.combined(z), parts + model.y_centre_, atol=1e-12)
    names = {name: x.coordinates for name, x in zip(model.design_.names, away.x, strict=True)}
    view = Attempt(FitMembership(), "label", Grant(2, candidates={**names, "": away.y.coordinates}), 0).view(run)
    scores = FitMembership().guess(view).scores
    model.y_mean_ = model.y_mean_ + 100.0
    np.testing.assert_array_equal(FitMembership().guess(view).scores, scores)


def test_where_inputs_say_nothing_the_mean_is_predicted_and_two_releases_are_charged(data):
    """Curves whose inputs were dealt out to other records."""
    order = np.random.default_rng(0).permutation(360)
    idle = FunctionalData(tuple(x.take(order) for x in data.x), moved(data.y, 1.0), data.active)
    run = fitted(idle, JUDGED, epsilon=100.0)
    model, mean = run.results["label"], idle.y.take(TRAIN).coordinates.mean(axis=0)
    assert model.is_mean_
    assert not model.w_.any()
    np.testing.assert_allclose(model.y_mean_, mean, atol=1e-12)
    assert 0 < ((model.y_centre_ - mean) ** 2).sum() < 0.1 * (mean**2).sum()
    # The mean with noise and the length of the output are the label party's own releases; all else is the arbiter's.
    assert sum(run.ledgers["label"].events.values()) == 2


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (
            0.1,
            ("used are none.", "training outputs, exactly: nothing certain is gained", "were not centred: nothing of"),
        ),
        (
            1e3,
            (
                "used are x01.",
                "start from the label party's own outputs: if given away, epsilon does not cover",
                "were centred by their mean with",
            ),
        ),
    ],
)
def test_the_summary_and_the_log_say_what_is_predicted(data, caplog, epsilon, words):
    with caplog.at_level(logging.INFO):
        run = fitted(replace(data, y=moved(data.y, 1.0)), PAIR, epsilon=epsilon)
    summary = run.results["label"].summary()
    for each in words:
        assert each in summary
    for each in words[1:]:
        assert each in caplog.text


@BOTH
def test_with_so_few_records_that_noise_hides_everything_the_label_party_is_warned(data, caplog, roles):
    with caplog.at_level(logging.WARNING):
        fitted(data, roles, rows=np.arange(30), epsilon=0.1)
    n_noises = 1 if roles.arbiter else 2
    fewest = MomentBudget(2.0, 2.0, 0.1, 1e-5, 2, n_noises).fewest_rows(6, 6, 4.0)
    assert (
        "label: MomentRegression predicts the mean of the training outputs, whatever the curves are: with 30 records, "
        f"noise at epsilon 0.1 hides every product. Bring {fewest} records at least, or raise epsilon." in caplog.text
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        fitted(data, roles, epsilon=100.0)
    assert "hides every product" not in caplog.text


def test_no_products_of_fewer_rows_stand_out():
    """The largest products that rows within the radii can have, without the noise that would be in them."""
    budget, model = MomentBudget(2.0, 3.0, 1.0, 1e-5, 1), MomentRegression(clip_x=2.0, clip_y=3.0)
    fewest = budget.fewest_rows(6, 5, 4.0)
    noise = budget.first_deviation**2 * 6 * 5
    for n, chosen in ((fewest - 1, 0), (fewest + 1, 1)):
        crosses = np.zeros((1, 6, 5))
        crosses[0, 0, 0] = np.sqrt((n * 2.0 * 3.0) ** 2 + noise)
        assert len(model._choose(0.0, crosses, 0.0, budget, n)) == chosen


def test_a_share_keeps_both_means_and_one_of_an_earlier_version_is_not_taken_for_the_mean(data, tmp_path):
    model = fitted(replace(data, y=moved(data.y, 1.0)), PAIR, epsilon=100.0).results["label"]
    model.save(tmp_path / "model.safetensors")
    again = MomentRegression.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.y_mean_, model.y_mean_)
    np.testing.assert_array_equal(again.y_centre_, model.y_centre_)
    tree, earlier = model.share(), MomentRegression()
    del tree["y_centre"]
    with pytest.raises(StorageError, match="kept what noise had left of the mean, perhaps nothing"):
        earlier.take_share({**tree, "is_mean": True})
    earlier.take_share({**tree, "is_mean": False})
    np.testing.assert_array_equal(earlier.y_centre_, model.y_mean_)


@pytest.mark.parametrize("deviation", [8.0, 0.25])
def test_noise_rarely_passes_for_a_mean_and_never_for_one_longer_than_the_radius(deviation):
    """Curves without a mean: chance exceeds three standard deviations once in 740 times, here about 16 times."""
    noise = deviation * np.random.default_rng(0).normal(size=(12_000, 8))
    lengths = np.array([np.linalg.norm(standing_out(each, deviation, 2.0)) for each in noise])
    assert 2 < np.count_nonzero(lengths) < 32
    # Of noise that is far longer than the radius, next to nothing is left.
    assert lengths.max() < (0.2 if deviation == 8.0 else 1.0)


def test_a_mean_of_the_radius_that_noise_does_not_reach_is_kept():
    mean = np.full(4, 1.0)
    np.testing.assert_allclose(standing_out(mean, 0.01, 2.0), mean, rtol=1e-3)
    assert not standing_out(mean, 1.0, 2.0).any()
