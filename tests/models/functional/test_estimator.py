import json

import numpy as np
import pytest

from colonnade.curves import BSplines, Curves, Fourier
from colonnade.data.functional.generator import FunctionalData, FunctionalSetting
from colonnade.errors import BudgetSpent, DataError, PlanError, ProtocolError
from colonnade.models.functional.estimator import FunctionalBoost, FunctionalRegression
from colonnade.models.functional.messages import Offer, PartialPrediction, ReleasedCurves, Surface
from colonnade.models.functional.path import PathStopping
from colonnade.models.functional.release import Protection
from colonnade.models.functional.solve import Penalties
from colonnade.privacy.ledger import compose
from colonnade.roles import Roles
from colonnade.runtime.simulate import shared_randomness, simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table

SETTING = FunctionalSetting(n=260, p=6, active=(1, 2), basis=BSplines((0, 100), 8))
ROLES = Roles(label="label", features=("worker 1", "worker 2"))
TRAIN, TEST = np.arange(200), np.arange(200, 260)


@pytest.fixture(scope="module")
def data():
    return SETTING.draw(1)[0]


def fitted(model, data, roles=ROLES, **more):
    return simulate(model.fit, data.take(TRAIN).tables(len(roles.features)), roles=roles, **more)


def predicted(run, data, roles=ROLES, **more):
    protocols = {name: share.predict for name, share in run.results.items()}
    return simulate(protocols, data.take(TEST).tables(len(roles.features)), roles=roles, **more)


def relative_error(prediction, data):
    y = data.take(TEST).y.coordinates
    return float(((prediction.curves.coordinates - y) ** 2).sum() / (y**2).sum())


def test_it_selects_what_matters_and_predicts_nearly_as_well_as_can_be(data):
    run = fitted(FunctionalBoost(), data)
    model = run.results["label"]
    assert set(model.selected_) == {"x01", "x02"}
    answer = predicted(run, data)
    assert answer.results["worker 1"] is None
    assert relative_error(answer.results["label"], data) < 0.13
    signal = data.take(TEST).signal.coordinates
    assert relative_error(answer.results["label"], data) < 1.5 * relative_error_of(signal, data)


def relative_error_of(coordinates, data):
    y = data.take(TEST).y.coordinates
    return float(((coordinates - y) ** 2).sum() / (y**2).sum())


def test_how_inputs_are_dealt_out_to_parties_changes_nothing(data):
    errors, selected = [], []
    for parties in (1, 3, 6):
        roles = Roles(label="label", features=tuple(f"worker {i}" for i in range(1, parties + 1)))
        run = fitted(FunctionalBoost(), data, roles)
        errors.append(relative_error(predicted(run, data, roles).results["label"], data))
        selected.append(set(run.results["label"].selected_))
    # The halves that judge each other are drawn from the plan, which names the parties.
    assert max(errors) < 1.05 * min(errors)
    assert selected == [{"x01", "x02"}] * 3


def test_both_ways_to_predict_give_the_same_curves_where_there_is_no_noise(data):
    run = fitted(FunctionalBoost(protection=Protection(clip=2.0)), data)
    released = predicted(run, data).results["label"]
    for share in run.results.values():
        share.set_params(inputs="partial")
    partial = predicted(run, data).results["label"]
    np.testing.assert_allclose(partial.values, released.values, atol=1e-10)


def test_new_curves_are_clipped_too(data):
    run = fitted(FunctionalBoost(protection=Protection(clip=2.0), inputs="partial"), data)
    model = run.results["label"]
    loud = data.take(TEST)
    louder = type(loud)(tuple(Curves(100 * x.coefficients, x.basis) for x in loud.x), loud.y, loud.active)
    protocols = {name: share.predict for name, share in run.results.items()}
    answer = simulate(protocols, louder.tables(2), roles=ROLES).results["label"].curves.coordinates
    reach = 2.0 * sum(np.linalg.norm(w, 2) for w in model.w_)
    offset = np.linalg.norm(np.einsum("jq,jqk->k", model.z_mean_, model.w_)) + np.linalg.norm(model.y_mean_)
    assert np.linalg.norm(answer, axis=1).max() <= reach + offset + 1e-9


def test_the_operators_predict_raw_coefficients(data):
    run = fitted(FunctionalBoost(), data)
    model = run.results["label"]
    test = data.take(TEST)
    total = np.tile(model.centers_["y"].coefficients, (len(TEST), 1))
    for j, name in enumerate(["x01", "x02", "x03", "x04", "x05", "x06"]):
        total = total + (test.x[j].coefficients - model.centers_["x"][name].coefficients) @ model.B_[name]
    np.testing.assert_allclose(predicted(run, data).results["label"].values, total, atol=1e-9)


def test_the_surface_is_what_the_model_integrates(data):
    model = fitted(FunctionalBoost(), data).results["label"]
    grid = np.linspace(0, 100, 4001)
    x = data.x[0].take([210])
    beta = model.surface("x01", grid, [10.0, 60.0])
    values = x.evaluate(grid)[0] - model.centers_["x"]["x01"].evaluate(grid)[0]
    by_integral = np.trapezoid(values[:, None] * beta, grid, axis=0)
    coefficients = (x.coefficients - model.centers_["x"]["x01"].coefficients) @ model.B_["x01"]
    np.testing.assert_allclose(by_integral, Curves(coefficients, x.basis).evaluate([10.0, 60.0])[0], atol=1e-5)
    axes = model.plot_surface("x01")
    assert axes.get_title() == "x01"
    with pytest.raises(PlanError, match="but not for 'x9'"):
        model.surface("x9", grid, grid)


def test_what_was_learned_has_the_documents_names(data):
    model = fitted(
        FunctionalBoost(protection=Protection(clip=5.0, noise=0.1), stopping=PathStopping(criterion="aicc")), data
    ).results["label"]
    assert set(model.B_) == {"x01", "x02", "x03", "x04", "x05", "x06"}
    assert len(model.fitted_) == 200
    assert model.omega_x_.shape == model.omega_y_.shape == (8, 8)
    np.testing.assert_allclose(model.sigma_["x01"], 0.01 * np.linalg.inv(SETTING.basis.gram), atol=1e-9)
    assert {"sse", "cv", "aicc", "df"} <= set(model.traces_)
    residual = data.take(TRAIN).y.coordinates - model.fitted_.coordinates
    assert (residual**2).sum() < 0.2 * (data.take(TRAIN).y.coordinates ** 2).sum()


@pytest.mark.parametrize(
    "settings",
    [
        {"stopping": {"criterion": "aicc"}},
        {"stopping": {"criterion": "aic", "freedom": "hutchinson", "probes": 20}},
        {"refit": "joint"},
        {"refit": "low-rank"},
        {"penalties": {"relative": True, "s": 1e-3, "t": 1e-3}},
        {"penalties": {"operator_s": (0.0, 0.0, 1.0), "operator_t": 1}},
        {"protection": {"clip": 5.0, "noise": {f"x0{j}": 0.05 for j in range(1, 7)}}},
        {"protection": {"clip": 8.0, "noise": 0.01, "metric": "rkhs"}},
        {"protection": {"clip": "empirical", "noise": 0.05}},
    ],
    ids=str,
)
def test_every_option_leads_to_a_good_model(data, settings):
    run = fitted(FunctionalBoost(inputs="partial", **settings), data)
    assert {"x01", "x02"} <= set(run.results["label"].selected_)
    assert relative_error(predicted(run, data).results["label"], data) < 0.25


def test_the_legacy_algorithm_overshoots_where_the_honest_one_does_not(data):
    plain = FunctionalBoost(inputs="partial", stopping=PathStopping(max_steps=40))
    legacy = FunctionalBoost(inputs="partial", stopping=PathStopping(max_steps=40), algorithm="legacy")
    errors = [relative_error(predicted(fitted(each, data), data).results["label"], data) for each in (plain, legacy)]
    assert errors[0] < errors[1]


def test_a_budget_is_kept_over_all_parties_and_columns(data):
    run = fitted(FunctionalBoost(protection=Protection(clip=3.0, epsilon=50.0, n_curves=6)), data)
    spent = compose(run.ledgers.values(), 1e-5)[Secret.FEATURES]
    assert spent.epsilon == pytest.approx(50.0, rel=1e-9)
    assert spent.releases == {"gaussian": 6}
    told = run.results["label"].privacy()
    assert told["epsilon"] == pytest.approx(50.0, rel=1e-9)
    assert told["zcdp_epsilon"] > 50.0


def test_the_legacy_metric_reports_its_true_cost(data):
    protection = Protection(clip=3.0, epsilon=50.0, n_curves=6, metric="legacy")
    run = fitted(FunctionalBoost(protection=protection, algorithm="legacy"), data)
    assert compose(run.ledgers.values(), 1e-5)[Secret.FEATURES].epsilon > 51


def test_noise_that_leaves_nothing_makes_it_predict_the_mean(data):
    run = fitted(FunctionalBoost(protection=Protection(clip=3.0, noise=30.0)), data)
    model = run.results["label"]
    assert model.is_mean_
    assert model.selected_ == ()
    answer = predicted(run, data).results["label"]
    assert relative_error(answer, data) <= 1.02
    np.testing.assert_allclose(answer.curves.coordinates, np.tile(model.y_mean_, (60, 1)), atol=1e-12)


@pytest.mark.parametrize("seed", [1, pytest.param(7, marks=pytest.mark.slow)])
def test_a_guarded_fit_of_curves_that_vary_along_few_directions_is_no_worse_than_the_mean(seed):
    """With these seeds a fit to all rows is six to twelve times as large as what the folds judged."""
    rng, hours, basis, n = np.random.default_rng(seed), np.arange(24.0), BSplines((0, 23), 12), 260
    common = np.cumsum(rng.normal(size=(2 * n, 24)), axis=1) / 3
    columns = [Curves.smooth(common + 0.3 * rng.normal(size=common.shape), hours, basis) for _ in range(7)]
    curves = FunctionalData(tuple(columns[:6]), columns[6], (1,))
    protection = Protection(clip=10.0, epsilon=12.0, n_curves=6)
    run = simulate(
        FunctionalRegression(protection=protection, inputs="partial").fit,
        curves.take(np.arange(n)).tables(2),
        roles=ROLES,
        seed=seed,
    )
    shares = {name: share.predict for name, share in run.results.items()}
    test = curves.take(np.arange(n, 2 * n))
    found = simulate(shares, test.tables(2), roles=ROLES).results["label"].curves
    mean = run.results["label"].centers_["y"].coordinates
    y = test.y.coordinates
    assert ((found.coordinates - y) ** 2).sum() <= 1.02 * ((mean - y) ** 2).sum()


def test_a_feature_party_is_sent_nothing_in_training(data):
    run = fitted(FunctionalBoost(), data)
    for name in ROLES.features:
        entries = run.transcripts[name].entries
        assert all(entry.sent for entry in entries)
        assert [entry.kind for entry in entries] == [Offer.kind] + [ReleasedCurves.kind] * 3


def test_partial_predictions_are_told_as_not_private_by_both_sides(data):
    run = fitted(FunctionalBoost(protection=Protection(clip=3.0, noise=0.5), inputs="partial"), data)
    answer = predicted(run, data)
    kinds = {entry.kind for entry in answer.transcripts["label"].entries}
    assert kinds == {Surface.kind, PartialPrediction.kind}
    assert not answer.ledgers["label"].spent(Secret.LABELS, 1e-5).is_private
    assert not answer.ledgers["worker 1"].spent(Secret.FEATURES, 1e-5).is_private


def test_new_rows_are_charged_by_themselves_and_old_rows_on_top_of_what_they_cost(data):
    run = fitted(FunctionalBoost(protection=Protection(clip=3.0, epsilon=20.0, n_curves=6)), data)
    new = compose(predicted(run, data).ledgers.values(), 1e-5)[Secret.FEATURES]
    assert new.epsilon == pytest.approx(20.0, rel=1e-9)
    protocols = {name: share.predict for name, share in run.results.items()}
    old = simulate(protocols, data.take(TRAIN).tables(2), roles=ROLES)
    assert compose(old.ledgers.values(), 1e-5)[Secret.FEATURES].releases == {"gaussian": 12}
    budget = {name: {Secret.FEATURES: (15.0, 1e-5)} for name in ROLES.features}
    simulate(protocols, data.take(TEST).tables(2), roles=ROLES, budgets=budget)
    with pytest.raises(BudgetSpent, match="nothing was released"):
        simulate(protocols, data.take(TRAIN).tables(2), roles=ROLES, budgets=budget)


def test_a_budget_that_is_too_small_stops_the_run_before_a_release(data):
    model = FunctionalBoost(protection=Protection(clip=3.0, noise=0.1))
    with pytest.raises(BudgetSpent, match="nothing was released"):
        fitted(model, data, budgets={"worker 1": {Secret.FEATURES: (1.0, 1e-5)}})


def changed(data, party="worker 1", **columns):
    tables = data.take(TRAIN).tables(2)
    arrays = {"id": np.arange(200)} | {name: tables[party].curves(name) for name in tables[party].columns}
    return {**tables, party: Table.of({**arrays, **columns}, owner=party)}


def refused(error, words, tables, model=None):
    with pytest.raises(error) as raised:
        simulate((model or FunctionalBoost()).fit, tables, roles=ROLES)
    assert words in str(raised.value)


def test_curves_that_cannot_be_used_are_refused_with_party_and_column(data):
    x = data.take(TRAIN).x[0]
    elsewhere, constant = (
        Curves(x.coefficients, BSplines((0, 50), 8)),
        Curves(np.tile(x.coefficients[:1], (200, 1)), x.basis),
    )
    fourier = Curves(x.coefficients[:, :3], Fourier((0, 100), 3))
    broken = Curves(np.where(np.arange(200)[:, None] == 3, np.nan, x.coefficients), x.basis)
    fewer = changed(data)
    fewer["worker 1"] = fewer["worker 1"].take(np.arange(199))
    for words, tables in {
        "worker 1's column 'x05' is in another than 'x01'": changed(data, x05=elsewhere),
        "but worker 1 has 8 b-splines on [0, 50] and worker 2 8 b-splines on [0, 100]": changed(
            data, x01=elsewhere, x03=elsewhere, x05=elsewhere
        ),
        "worker 1 has 3 fourier on [0, 100]": changed(data, x01=fourier, x03=fourier, x05=fourier),
        "worker 1's column 'x01' should differ, but all 200 are the same": changed(data, x01=constant),
        "worker 1's column 'age' holds numeric values": changed(data, age=np.ones(200)),
        "x02 is used twice": changed(data, x02=x),
        "label has 7 curves in 'response', but the basis has 8 functions": {
            name: table.take(np.arange(7)) for name, table in changed(data).items()
        },
        "worker 1 is a feature party and should bring a column of curves": {
            **changed(data),
            "worker 1": Table.of({"id": np.arange(200)}),
        },
        "worker 1's table must be finite, but 1 of 200 in column 'x01'": changed(data, x01=broken),
        "199": fewer,
    }.items():
        refused(DataError, words, tables)


def test_a_label_party_without_curves_to_predict_is_refused(data):
    tables = data.take(TRAIN).tables(2)
    none = tables["label"].without_labels()
    numbers = Table.of({"id": np.arange(200), "y": np.ones(200)}, labels="y")
    refused(DataError, "label is the label party but its table has no labels", {**tables, "label": none})
    refused(DataError, "have curves in column 'y', but it holds numeric values", {**tables, "label": numbers})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"penalties": {"s": -1.0}}, "Penalties's s should be a number, at least 0, but is -1.0."),
        ({"shrinkage": 0.0}, "shrinkage should be a number, above 0 and at most 1, but is 0.0."),
        ({"stopping": {"max_steps": 5}}, "min_steps should be from 1 to max_steps (5), but is 10."),
        ({"stopping": {"criterion": "bic"}}, "criterion should be 'cv', 'aic' or 'aicc', but is 'bic'."),
        ({"inputs": "raw"}, "inputs should be 'released' or 'partial', but is 'raw'."),
        ({"protection": {"noise": 1.0}}, "A release with noise needs a clip radius"),
        ({"protection": {"epsilon": 1.0}}, "clip should be a radius where epsilon is given, but is None."),
        ({"protection": {"epsilon": 1.0, "clip": 3.0}}, "clip is 3.0 and n_curves None"),
        ({"protection": {"epsilon": 1.0, "clip": 3.0, "n_curves": 2}}, "but worker 1 alone has 3. Correct n_curves."),
        (
            {"protection": {"epsilon": 1.0, "clip": 3.0, "n_curves": 7}},
            "7 columns share the budget, but feature parties offer 6.",
        ),
        ({"protection": {"epsilon": 1.0, "clip": {"x01": 3.0}}}, "there is also a column 'x03'. Add it to clip."),
        (
            {"protection": {"epsilon": 1.0, "clip": 3.0, "noise": 1.0}},
            "noise should be 0 where epsilon is given, but is 1.0.",
        ),
        ({"protection": {"clip": 3.0, "noize": 1.0}}, "has the key 'noize'. The nearest name is 'noise'."),
        ({"stopping": 30}, "stopping should be a PathStopping or a mapping of its fields, but is 30."),
        ({"hold_out": (3, 2)}, "hold_out should be None or a fold, counted from 1, and how many there are"),
        ({"correction": 2.0}, "correction should be 'cv' or a number from 0 to 1, but is 2.0."),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(data, settings, words):
    refused(PlanError, words, data.take(TRAIN).tables(2), FunctionalBoost(**settings))


def test_roles_without_a_feature_party_are_refused(data):
    alone = {"label": data.take(TRAIN).tables(1)["label"]}
    with pytest.raises(PlanError, match="needs a label party and at least one feature party"):
        simulate(FunctionalBoost().fit, alone, roles=Roles(label="label", features=()))


@pytest.mark.parametrize(
    "basis",
    [
        b'{"kind": "fourier", "domain": [0, 1], "size": 200001, "period": null}',
        b'{"kind": "b-splines", "domain": [0, 1], "size": 200000, "order": 4, "knots": null}',
        b'{"kind": "fourier", "domain": [0, 1], "size": 1e9, "period": null}',
        b'{"kind": "b-splines", "domain": [0, 1], "size": 8, "order": 1e400, "knots": null}',
        b'{"kind": "fourier", "domain": [1, 0], "size": 3, "period": null}',
        b"\xff",
        b"[" * 100_000,
        b"[1]",
        b" " * (2**22 + 1),
    ],
    ids=["fourier", "bspline", "float", "order", "domain", "undecodable", "nested", "list", "long"],
)
def test_a_basis_that_asks_for_too_much_or_cannot_be_read_is_refused(data, basis):
    def dishonest(party, honest):
        offer = Offer(["x01"], np.frombuffer(basis, np.uint8), np.array([np.inf]), np.array([0.0]))
        party.label_party.send(offer)

    with pytest.raises(ProtocolError, match=r"with a basis of at most 2,048 functions.* from worker 1, got another"):
        fitted(FunctionalBoost(), data, instead={"worker 1": dishonest})


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (ReleasedCurves("x99", np.zeros((200, 8))), "for column 'x01' from worker 1, got one for column 'x99'."),
        (ReleasedCurves("x01", np.full((200, 8), np.nan)), "for column 'x01' holds numbers that are not finite"),
        (ReleasedCurves("x01", np.zeros((200, 9))), "with values of shape (200, 8) between here and worker 1, got"),
    ],
    ids=["column", "nan", "shape"],
)
def test_a_peer_that_sends_something_else_is_found_out(data, message, words):
    def dishonest(party, honest):
        text = np.frombuffer(json.dumps(SETTING.basis.describe(), sort_keys=True).encode(), np.uint8)
        party.label_party.send(Offer(["x01"], text, np.array([np.inf]), np.array([0.0])))
        party.label_party.send(message)

    with pytest.raises(ProtocolError) as error:
        fitted(FunctionalBoost(), data, instead={"worker 1": dishonest})
    assert words in str(error.value)


def test_the_label_partys_own_curves_count_and_are_not_sent(data):
    tables = data.take(TRAIN).tables(2)
    own = Table.of(
        {"id": np.arange(200), "x01": data.take(TRAIN).x[0], "response": data.take(TRAIN).y}, labels="response"
    )
    other = tables["worker 1"].select(["x03", "x05"])
    run = simulate(FunctionalBoost().fit, {**tables, "label": own, "worker 1": other}, roles=ROLES)
    model = run.results["label"]
    assert model.design_.columns[0] == ("label", "x01")
    assert set(model.selected_) == {"x01", "x02"}


def test_a_regression_of_all_inputs_at_once_is_least_squares(data):
    run = fitted(FunctionalRegression(penalties=Penalties()), data)
    model = run.results["label"]
    train = data.take(TRAIN)
    z = np.concatenate([x.coordinates for x in (train.x[j] for j in (0, 2, 4, 1, 3, 5))], axis=1)
    y = train.y.coordinates
    halves = [np.sort(half) for half in np.array_split(order_of(run), 2)]
    for half in halves:
        z[half] -= z[half].mean(axis=0)
        y[half] -= y[half].mean(axis=0)
    np.testing.assert_allclose(model.w_.reshape(48, 8), np.linalg.lstsq(z, y, rcond=None)[0], atol=1e-8)
    assert relative_error(predicted(run, data).results["label"], data) < 0.2


def order_of(run):
    return shared_randomness(run.plan, run.id_digest).generator("parts").permutation(200)


def test_the_summary_says_what_is_covered(data):
    assert "Privacy: none; curves are released as they are." in FunctionalBoost().summary()
    assert "simulation only" in FunctionalBoost(protection=Protection(clip="empirical", noise=1.0)).summary()
    private = FunctionalBoost(protection=Protection(clip=3.0, epsilon=2.0, n_curves=6)).summary()
    assert "epsilon 2, delta 1e-05 for all curves; outputs and coefficients are not covered." in private
    assert "used are x0" in fitted(FunctionalBoost(), data).results["label"].summary()


def test_settings_read_from_a_share_are_those_that_were_fitted_with(data, tmp_path):
    penalties = {"t": 0.1, "operator_s": (0.0, 0.0, 1.0)}
    protection = Protection(clip={f"x0{j}": 3.0 for j in range(1, 7)}, noise=0.1)
    run = fitted(FunctionalBoost(penalties=penalties, protection=protection, hold_out=(1, 4), inputs="partial"), data)
    for name, share in run.results.items():
        share.save(tmp_path / name)
    again = {name: FunctionalBoost.load(tmp_path / name) for name in run.results}
    np.testing.assert_array_equal(again["label"].omega_x_, run.results["label"].omega_x_)
    assert again["label"].privacy() == run.results["label"].privacy()
    assert again["label"].fitting_rule(SETTING.basis, SETTING.basis).penalties == Penalties(
        0.05, 0.1, operator_s=(0.0, 0.0, 1.0)
    )
    answers = [
        simulate({name: share.predict for name, share in shares.items()}, data.take(TEST).tables(2), roles=ROLES)
        for shares in (run.results, again)
    ]
    np.testing.assert_array_equal(*(answer.results["label"].values for answer in answers))
