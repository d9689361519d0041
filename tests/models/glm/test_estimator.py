"""Regressions speak scikit-learn's words: parameters, learned attributes, and refusals by the parameter's name."""

import numpy as np
import pytest

from colonnade.catalogue import MODELS
from colonnade.errors import PlanError, StorageError
from colonnade.models.glm.estimator import LinearRegression, LogisticRegression, PoissonRegression
from colonnade.plans.sections import PlannedModel
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table

ROLES = Roles(label="bank", features=("shop",), arbiter="judge")
REGRESSIONS = (LinearRegression, LogisticRegression, PoissonRegression)


def tables(n_rows=300):
    random = np.random.default_rng(0)
    values = random.standard_normal((n_rows, 3))
    labels = random.poisson(np.exp(0.3 * values.sum(axis=1)))
    ids = {"id": np.arange(n_rows)}
    return {
        "bank": Table.of(ids | {"a": values[:, 0], "y": labels}, labels="y", owner="bank"),
        "shop": Table.of(ids | {"b": values[:, 1], "c": values[:, 2]}, owner="shop"),
    }


def test_coef_holds_no_intercept_and_only_the_label_party_has_one():
    shares = simulate(LinearRegression(max_iter=3).fit, tables(), roles=ROLES).results
    assert shares["bank"].coef_.shape == (1,)
    assert shares["shop"].coef_.shape == (2,)
    assert shares["bank"].intercept_ == shares["bank"].coefficients["intercept"]
    assert not hasattr(shares["shop"], "intercept_")
    assert not hasattr(shares["judge"], "coef_")


def test_a_saved_share_keeps_its_intercept(tmp_path):
    shares = simulate(LinearRegression(max_iter=3).fit, tables(), roles=ROLES).results
    shares["bank"].save(tmp_path / "share")
    loaded = LinearRegression.load(tmp_path / "share")
    assert loaded.coefficients == shares["bank"].coefficients
    assert loaded.intercept_ == shares["bank"].intercept_


def test_a_share_of_an_earlier_version_whose_coef_held_the_intercept_is_refused():
    share = simulate(LinearRegression(max_iter=1).fit, tables(), roles=ROLES).results["bank"]
    with pytest.raises(StorageError, match=r"should hold intercept_ apart from coef_, .* Fit the model again"):
        LinearRegression().take_share({**share.share(), "centre_": 0.0})


def test_a_share_of_an_earlier_version_that_told_each_class_from_all_others_is_refused():
    held = tables()
    held["bank"] = Table.of({"id": np.arange(len(held["shop"])), "y": np.arange(len(held["shop"])) % 3}, labels="y")
    share = simulate(LogisticRegression(max_iter=1, alarm=None).fit, held, roles=ROLES).results["bank"]
    loaded = LogisticRegression()
    loaded.take_share(share.share())
    assert loaded.strategy_ == "multinomial"
    earlier = {name: value for name, value in share.share().items() if name != "strategy_"}
    with pytest.raises(StorageError, match=r"should be multinomial, .* earlier version, .* Fit the model again"):
        LogisticRegression().take_share(earlier)


@pytest.mark.parametrize("model", REGRESSIONS)
def test_scikit_learns_penalty_by_name_is_refused_as_no_number(model):
    with pytest.raises(PlanError, match=rf"{model.__name__}'s alpha should be a number, at least 0, but is 'l2'"):
        simulate(model(alpha="l2").fit, tables(), roles=ROLES)


@pytest.mark.parametrize(
    ("name", "value", "now"),
    [
        ("penalty", 2.0, "alpha, and the number means what it means in scikit-learn"),
        ("epochs", 20, "max_iter"),
        ("tolerance", 0.1, "tol"),
        ("intercept", False, "fit_intercept"),
        ("weights", "w", "sample_weight"),
    ],
)
def test_a_plan_with_a_former_key_is_told_the_name_of_today(name, value, now):
    with pytest.raises(PlanError, match=rf"but has the key '{name}'\. Its name is now {now}\. Correct the key"):
        PlannedModel("logistic-regression", {name: value})


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name] in REGRESSIONS])
def test_the_limits_name_every_parameter_and_allow_the_defaults_and_the_example(name):
    model = MODELS[name]
    assert set(model.limits) == set(model().get_params())
    for made in (model(), model.example()):
        assert all(limit.holds(getattr(made, parameter)) for parameter, limit in model.limits.items())


def test_a_share_is_not_loaded_with_a_parameter_that_the_model_does_not_have(tmp_path):
    with pytest.raises(PlanError, match=r"LinearRegression has no parameter 'maximum'; it has .*max_iter.* Use one"):
        LinearRegression.load(tmp_path / "share", maximum=3)


def test_predicted_rates_beyond_the_table_of_training_are_counted_in_a_warning(caplog):
    model = PoissonRegression()
    model.mean_rate_ = 2.0
    assert model._prediction(np.log([1.0, 100.0])).values.tolist() == pytest.approx([1.0, 100.0])
    assert not caplog.records
    model._prediction(np.log([1.0, 110.0, 1e9]))
    assert "2 of 3 predicted rates are above 55 mean rates" in caplog.text
