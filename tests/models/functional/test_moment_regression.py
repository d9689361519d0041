from dataclasses import replace

import numpy as np
import pytest

from colonnade.attacks.members.curves import FitMembership
from colonnade.auditing import measure_membership
from colonnade.curves import BSplines, Curves
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.errors import BudgetSpent, DataError, PlanError, ProtocolError
from colonnade.models.functional.messages import Correction, Layout, Masked, Terms
from colonnade.models.functional.moment_regression import MomentRegression
from colonnade.models.functional.moments_masked import MomentBudget, OpenedProducts
from colonnade.models.functional.solve import Penalties
from colonnade.privacy.ledger import Ledger, compose
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table

SETTING = FunctionalSetting(n=900, p=6, active=(1, 4), basis=BSplines((0, 100), 8))
ROLES = Roles(label="label", features=("worker 1", "worker 2", "worker 3"), arbiter="arbiter")
TRAIN, TEST = np.arange(800), np.arange(800, 900)
SETTINGS = {"clip_x": 3.0, "clip_y": 4.0}


@pytest.fixture(scope="module")
def data():
    return SETTING.draw(1)[0]


def fitted(model, data, **more):
    return simulate(model.fit, data.take(TRAIN).tables(3), roles=ROLES, **more)


def relative_error(run, data):
    protocols = {name: share.predict for name, share in run.results.items()}
    answer = simulate(protocols, data.take(TEST).tables(3), roles=ROLES)
    y = data.take(TEST).y.coordinates
    return float(((answer.results["label"].curves.coordinates - y) ** 2).sum() / (y**2).sum())


def test_with_next_to_no_noise_it_is_ridge_regression_on_clipped_curves(data):
    """Oracle: the products of clipped curves in one place."""
    model = fitted(MomentRegression(epsilon=1e12, **SETTINGS), data).results["label"]
    assert set(model.selected_) == {"x01", "x04"}

    def clipped(z, radius):
        return z * np.minimum(1, radius / np.linalg.norm(z, axis=1, keepdims=True))

    train = data.take(TRAIN)
    # x01 and x04 belong to worker 1, who has both.
    z = np.concatenate([clipped(train.x[j].coordinates, 3.0) for j in (0, 3)], axis=1)
    mean = clipped(train.y.coordinates, 4.0).mean(axis=0)
    np.testing.assert_allclose(model.y_centre_, mean, atol=1e-4)
    y = clipped(train.y.coordinates - mean, 4.0)
    wanted = np.linalg.solve(z.T @ z / 800 + 1e-3 * np.eye(16), z.T @ y / 800)
    places = [model.design_.names.index(name) for name in ("x01", "x04")]
    np.testing.assert_allclose(model.w_[places].reshape(16, 8), wanted, atol=1e-3)


def test_products_between_feature_parties_come_out_right_too(data):
    """Active inputs at two different parties: their product needs terms of both."""
    setting = FunctionalSetting(n=900, p=6, active=(1, 2), correlation=0.6, basis=BSplines((0, 100), 8))
    correlated = setting.draw(1)[0]
    run = fitted(MomentRegression(epsilon=1e12, clip_x=50.0, clip_y=50.0), correlated)
    model = run.results["label"]
    train = correlated.take(TRAIN)
    order = [model.design_.names.index(name) for name in model.selected_]
    z = np.concatenate([train.x[int(name[1:]) - 1].coordinates for name in model.selected_], axis=1)
    y = train.y.coordinates - train.y.coordinates.mean(axis=0)
    wanted = np.linalg.solve(z.T @ z / 800 + 1e-3 * np.eye(z.shape[1]), z.T @ y / 800)
    assert {"x01", "x02"} <= set(model.selected_)
    np.testing.assert_allclose(model.w_[order].reshape(-1, 8), wanted, atol=2e-3)


def test_a_generous_budget_gives_a_good_model(data):
    run = fitted(MomentRegression(epsilon=200.0, **SETTINGS), data)
    assert set(run.results["label"].selected_) == {"x01", "x04"}
    assert relative_error(run, data) < 0.35


def test_the_ledgers_say_what_was_agreed_for_inputs_and_outputs_together(data):
    run = fitted(MomentRegression(epsilon=200.0, **SETTINGS), data)
    spent = compose(run.ledgers.values(), 1e-5)
    mus = sum(spent[secret].rho for secret in (Secret.FEATURES,)) * 2
    budget = MomentBudget(3.0, 4.0, 200.0, 1e-5, 6)
    own = sum((reach.sensitivity / reach.sigma) ** 2 for reach in (budget.scalar_y, budget.mean))
    assert mus + own == pytest.approx(budget.mu**2, rel=1e-9)
    assert spent[Secret.FEATURES].epsilon < 200.0
    assert spent[Secret.LABELS].epsilon < 200.0


def test_one_record_moves_products_no_further_than_the_budget_assumes():
    rng = np.random.default_rng(0)
    budget = MomentBudget(3.0, 4.0, 1.0, 1e-5, 5)

    def on_sphere(radius, size):
        v = rng.normal(size=size)
        return radius * v / np.linalg.norm(v)

    for _ in range(300):
        (z1, y1), (z2, y2) = (([on_sphere(3.0, 4) for _ in range(5)], on_sphere(4.0, 3)) for _ in range(2))
        first = np.sqrt(sum(((np.outer(a, y1) - np.outer(b, y2)) ** 2).sum() for a, b in zip(z1, z2, strict=True)))
        assert first <= budget.first.sensitivity * (1 + 1e-12)
        v1, v2 = np.concatenate([*z1[:2], y1]), np.concatenate([*z2[:2], y2])
        assert np.linalg.norm(np.outer(v1, v1) - np.outer(v2, v2)) <= budget.second(2).sensitivity * (1 + 1e-12)
    v1 = np.concatenate([on_sphere(3.0, 4), on_sphere(3.0, 4), on_sphere(4.0, 3)])
    v2 = np.roll(v1, 1) * np.where(np.arange(11) % 2, 1, -1)
    v2 = v2 - v1 * (v1 @ v2) / (v1 @ v1)
    v2 *= np.linalg.norm(v1) / np.linalg.norm(v2)
    assert np.linalg.norm(np.outer(v1, v1) - np.outer(v2, v2)) == pytest.approx(budget.second(2).sensitivity)


def test_noise_in_the_second_release_has_half_the_variance_off_the_diagonal(data):
    """The label party's gram matrix, less the one without noise, over several seeds."""
    grams = []

    class Watched(MomentRegression):
        def _solve(self, gram, cross, first, chosen, budget, n, *rest):
            grams.append((gram, chosen, budget.second(len(chosen)).sigma / n))
            return super()._solve(gram, cross, first, chosen, budget, n, *rest)

    for seed in range(6):
        simulate(Watched(epsilon=500.0, **SETTINGS).fit, data.take(TRAIN).tables(3), roles=ROLES, seed=seed)
    simulate(Watched(epsilon=1e12, **SETTINGS).fit, data.take(TRAIN).tables(3), roles=ROLES)
    clean, chosen, _ = grams.pop()
    noise = [(gram - clean) / sigma for gram, each, sigma in grams if np.array_equal(each, chosen)]
    assert len(noise) >= 4
    off = np.concatenate([each[np.triu_indices(16, 1)] for each in noise])
    on = np.concatenate([np.diag(each) for each in noise])
    assert off.std() == pytest.approx(np.sqrt(0.5), rel=0.15)
    assert on.std() == pytest.approx(1.0, rel=0.3)


def test_what_the_label_party_is_sent_before_the_correction_is_uniform(data):
    run = fitted(MomentRegression(epsilon=200.0, **SETTINGS), data, keep="all")
    for kind in (Masked, Terms):
        for recorded in run.transcripts["label"].messages(kind, sent=False):
            arrays = recorded.message.values if kind is Terms else [recorded.message.values]
            for values in arrays:
                if values.size >= 100:
                    top = (values >> np.uint64(56)).astype(np.float64)
                    assert abs(top.mean() - 127.5) < 6 * 74 / np.sqrt(values.size)


def test_the_arbiter_receives_no_curves(data):
    run = fitted(MomentRegression(epsilon=200.0, **SETTINGS), data)
    received = {entry.kind for entry in run.transcripts["arbiter"].entries if not entry.sent}
    assert received == {"functional/layout", "functional/chosen"}
    assert run.results["arbiter"].dealt_ == {"rows": 800, "inputs": 6, "chosen": 2}


def test_the_report_tells_one_budget_for_inputs_and_one_for_outputs(data):
    from colonnade import audit

    report = audit(fitted(MomentRegression(epsilon=200.0, **SETTINGS), data), [])
    assert report.budget["features"].is_private
    assert report.budget["labels"].is_private


def test_a_correction_of_another_shape_is_found_out(data):
    def dishonest(party, honest):
        original = party.label_party.send

        def send(message, **more):
            if isinstance(message, Correction):
                message = Correction(message.stage, [each[:, :0] for each in message.values])
            original(message, **more)

        party.label_party.send = send
        return honest(party)

    with pytest.raises(ProtocolError, match="Expected functional/correction of stage 1 and shapes"):
        fitted(MomentRegression(epsilon=200.0, **SETTINGS), data, instead={"arbiter": dishonest})


@pytest.mark.parametrize("change", [{"columns": np.array([2, 1, 2])}, {"columns": np.array([2])}, {"size": 4}])
def test_a_layout_that_understates_a_feature_partys_columns_is_refused(data, change):
    """Noise follows from the layout."""

    def dishonest(party, honest):
        for line in party.peers.values():
            original = line.send

            def send(message, original=original, **more):
                original(replace(message, **change) if isinstance(message, Layout) else message, **more)

            line.send = send
        return honest(party)

    with pytest.raises(ProtocolError, match=r"Expected 2 columns of 8 functions from label|a layout of all feature"):
        fitted(MomentRegression(epsilon=200.0, **SETTINGS), data, instead={"label": dishonest})


def test_an_arbiter_that_is_told_fewer_inputs_opens_nothing(data, monkeypatch):
    """Three wide inputs in place of six: masks of the same shapes, and noise that hides three inputs only."""
    opened, honest_first = [], OpenedProducts.first

    def first(products):
        opened.append(honest_first(products)[1])
        return 0.0, np.zeros_like(opened[-1])

    def dishonest(party, honest):
        original = party.arbiter.send

        def send(message, **more):
            wide = isinstance(message, Layout)
            original(replace(message, columns=np.ones(3, np.int64), size=16) if wide else message, **more)

        party.arbiter.send = send
        return honest(party)

    monkeypatch.setattr(OpenedProducts, "first", first)
    for label in ({}, {"label": dishonest}):
        fitted(MomentRegression(epsilon=200.0, **SETTINGS), data, instead=label)
    largest = len(TRAIN) * SETTINGS["clip_x"] * SETTINGS["clip_y"]
    assert np.abs(opened[0]).max() < 2 * largest
    assert np.median(np.abs(opened[1])) > 10 * largest


def test_it_needs_an_arbiter_and_sound_settings(data):
    tables = data.take(TRAIN).tables(3)
    without = Roles(label="label", features=ROLES.features)
    with pytest.raises(PlanError, match="or several with an arbiter who deals masks"):
        simulate(MomentRegression().fit, tables, roles=without)
    for settings, words in {
        ("clip_x", 0.0): "clip_x should be a number, above 0, but is 0.0",
        ("epsilon", -1.0): "epsilon should be a number, above 0, but is -1.0",
        ("ridge", -1.0): "ridge should be a number, at least 0, but is -1.0",
    }.items():
        with pytest.raises(PlanError, match=words):
            fitted(MomentRegression(**dict([settings])), data)
    with pytest.raises(PlanError, match=r"Penalties's s should be a number, at least 0, but is -1\.0"):
        fitted(MomentRegression(penalties={"s": -1.0}), data)


def test_relative_penalties_mean_the_same_in_another_unit_of_the_curves(data):
    penalties, scale, fits = Penalties(s=0.1, t=0.1, relative=True), 10.0, []
    for unit in (1.0, scale):
        train = data.take(TRAIN)
        curves = [Curves(unit * each.coefficients, each.basis) for each in (*train.x, train.y)]
        scaled = type(train)(tuple(curves[:-1]), curves[-1], train.active)
        clips = {"clip_x": 3.0 * unit, "clip_y": 4.0 * unit}
        model = MomentRegression(epsilon=1e12, ridge=0.0, penalties=penalties, **clips)
        fits.append(simulate(model.fit, scaled.tables(3), roles=ROLES).results["label"].w_)
    plain = fitted(MomentRegression(epsilon=1e12, **SETTINGS), data).results["label"].w_
    np.testing.assert_allclose(fits[0], fits[1], atol=0.02 * np.abs(fits[0]).max())
    assert np.abs(fits[0] - plain).max() > 0.1 * np.abs(plain).max()


def test_a_second_release_of_the_same_rows_is_charged_and_refused_where_the_budget_is_spent(data):
    ledger = Ledger({Secret.FEATURES: (250.0, 1e-5), Secret.LABELS: (250.0, 1e-5)})

    def released(seed):
        kept = {"arbiter": lambda party, honest: honest(replace(party, ledger=ledger))}
        return fitted(MomentRegression(epsilon=200.0, **SETTINGS), data, seed=seed, instead=kept).results["label"]

    first, charged = released(0), dict(ledger.events)
    np.testing.assert_array_equal(released(0).w_, first.w_)
    assert dict(ledger.events) == charged
    with pytest.raises(BudgetSpent, match="nothing was released"):
        released(1)


def test_a_second_fit_in_one_run_would_reuse_masks_and_is_refused(data):
    def twice(party):
        MomentRegression(epsilon=200.0, **SETTINGS).fit(party)
        return MomentRegression(epsilon=200.0, **SETTINGS).fit(party)

    with pytest.raises(PlanError, match=r"was about to fit it a second time. Fit it in a run of its own"):
        simulate(twice, data.take(TRAIN).tables(3), roles=ROLES)


def test_curves_that_cannot_be_used_are_refused_with_party_and_column(data):
    train = data.take(TRAIN)
    constant = Curves(np.tile(train.x[0].coefficients[:1], (800, 1)), train.x[0].basis)
    elsewhere = Curves(train.x[0].coefficients, BSplines((0, 50), 8))
    broken = Curves(np.where(np.arange(800)[:, None] == 3, np.nan, train.x[0].coefficients), train.x[0].basis)
    tables = train.tables(3)
    for words, changed in {
        "worker 1's column 'x01' should differ, but all 800 are the same": {"x01": constant},
        "worker 1's column 'x04' is in another than 'x01'": {"x04": elsewhere},
        "worker 1's table must be finite, but 1 of 800 in column 'x01'": {"x01": broken},
        "worker 1's column 'age' holds numeric values": {"age": np.ones(800)},
    }.items():
        held = {name: tables["worker 1"].curves(name) for name in tables["worker 1"].columns}
        table = Table.of({"id": np.arange(800), **held, **changed}, owner="worker 1")
        with pytest.raises(DataError) as raised:
            simulate(MomentRegression(**SETTINGS).fit, {**tables, "worker 1": table}, roles=ROLES)
        assert words in str(raised.value)
    few = {name: table.take(np.arange(7)) for name, table in tables.items()}
    with pytest.raises(DataError, match=r"7 curves in .*, but the basis has 8 functions"):
        simulate(MomentRegression(**SETTINGS).fit, few, roles=ROLES)


def test_its_surfaces_predict_and_are_drawn_as_those_of_other_models(data):
    model = fitted(MomentRegression(epsilon=1e12, **SETTINGS), data).results["label"]
    test = data.take(TEST)
    z = np.stack([test.x[int(name[1:]) - 1].coordinates for name in model.design_.names], axis=1)
    raw = sum(test.x[int(name[1:]) - 1].coefficients @ model.B_[name] for name in model.selected_)
    raw += model.y_centre_ @ model.y_basis_.inverse_root
    np.testing.assert_allclose(model.combined(z) @ model.y_basis_.inverse_root, raw, atol=1e-9)
    assert model.plot_surface("x01").get_title() == "x01"
    assert not any(center.coefficients.any() for center in model.centers_["x"].values())


def test_membership_in_a_fit_to_moments_can_be_measured(data):
    run = fitted(MomentRegression(epsilon=200.0, **SETTINGS), data)
    found = measure_membership(run, FitMembership(), nulls=5)
    assert found.claimed < 200.0
    # Noise hides everybody: 400 members among 800, so that the AUC's standard error is 0.02.
    assert abs(found.score.value - 0.5) < 0.12
