"""Regressions without an arbiter: the plain optimiser's coefficients, nothing but uniform numbers before the end."""

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import Ridge

from colonnade.crypto import products
from colonnade.errors import Overflow, PlanError
from colonnade.models import glm_arbiter, glm_shares
from colonnade.models.families import LINEAR, LOGISTIC, POISSON
from colonnade.models.glm import LinearRegression, LogisticRegression, PoissonRegression
from colonnade.models.glm_shares import ComputingSide, MatrixSide
from colonnade.run import simulate
from colonnade.table import Table
from colonnade.testing.estimator import _drawn
from colonnade.wire.message import Message
from colonnade.wire.plan import Roles

NAMES = ("bank", "shop", "telco", "insurer", "clinic")
N = 300


def roles(n_parties=2):
    return Roles(label="bank", features=NAMES[1:n_parties])


def columns(n_parties=2, seed=0):
    random = np.random.default_rng(seed)
    values = random.standard_normal((N, 2 * n_parties))
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    return {name: values[:, 2 * i : 2 * i + 2] for i, name in enumerate(NAMES[:n_parties])}


def labels_of(model, values):
    random = np.random.default_rng(1)
    scores = np.hstack(list(values.values())) @ random.uniform(-0.5, 0.5, 2 * len(values)) + 0.3
    if model is LinearRegression:
        return 20 * scores + random.standard_normal(N) + 100
    if model is LogisticRegression:
        return (random.random(N) < LOGISTIC.mean(scores)).astype(np.int64)
    return random.poisson(np.exp(scores))


def made(values, labels, **extra):
    ids = {"id": np.arange(N)}
    tables = {name: ids | {f"{name} {i}": held[:, i] for i in range(held.shape[1])} for name, held in values.items()}
    tables["bank"] |= extra | {"y": labels}
    return {name: Table.of(data, labels="y" if name == "bank" else None, owner=name) for name, data in tables.items()}


def coefficients(run):
    own = {name: list(share.coefficients.values()) for name, share in run.results.items()}
    *bank, intercept = own.pop("bank")
    return np.array([*bank, *(value for each in own.values() for value in each), intercept])


def in_plain(model, values, labels, batches, family, weights=None):
    """The same optimiser in one place and in double precision, with the same polynomial for the mean."""
    target = family.quadratic(family.checked(np.asarray(labels), "bank"))
    known = {"linear": target.values, "logistic": (labels > 0) * 1.0, "Poisson": labels / labels.mean()}[family.name]
    factor = {"linear": 2.0, "logistic": 1.0, "Poisson": labels.mean()}[family.name]
    bend = {"linear": 2.0, "logistic": 0.25, "Poisson": 4 * labels.mean()}[family.name]
    weights = np.ones(N) if weights is None else weights * N / weights.sum()
    matrices = [np.hstack([values["bank"], np.ones((N, 1))])] + [
        held for name, held in values.items() if name != "bank"
    ]
    bend *= weights.max() * sum(np.linalg.eigvalsh(m.T @ m / N)[-1] for m in matrices)
    matrix = np.hstack(matrices)
    rate = 1 / (bend + model.penalty / N)
    theta, move = np.zeros(matrix.shape[1]), np.zeros(matrix.shape[1])
    penalties = np.full(len(theta), model.penalty / N)
    penalties[2] = 0
    for step in range(model.epochs * len(batches)):
        rows = batches[step % len(batches)]
        mean = matrix[rows] @ theta
        if family.polynomial is not None:
            mean = family.polynomial(mean)
        gradient = matrix[rows].T @ (weights[rows] * (mean - known[rows]))
        move = model.momentum * move + rate * (factor * len(batches) / N * gradient + penalties * theta)
        theta = theta - move
    theta = theta * target.scale
    return np.array([*theta[:2], *theta[3:], theta[2] + target.centre])


def batches_of(model, run):
    from colonnade.models.batches import fixed
    from colonnade.run import shared_randomness

    return fixed(N, model.batch_size, shared_randomness(run.plan, run.id_digest))


FAMILIES = [(LinearRegression, LINEAR), (LogisticRegression, LOGISTIC), (PoissonRegression, POISSON)]


@pytest.mark.parametrize(("n_parties", "batch_size"), [(2, None), (3, 100), (5, None)])
def test_linear_regression_on_shares_is_the_plain_optimisers(n_parties, batch_size):
    values = columns(n_parties)
    labels = labels_of(LinearRegression, values)
    model = LinearRegression(epochs=4, batch_size=batch_size)
    run = simulate(model.fit, made(values, labels), roles=roles(n_parties), seed=3)
    plain = in_plain(model, values, labels, batches_of(model, run), LINEAR)
    np.testing.assert_allclose(coefficients(run), plain, rtol=1e-3, atol=1e-3 * np.abs(plain[:-1]).max())


@pytest.mark.parametrize(("model", "family"), FAMILIES[1:], ids=lambda each: getattr(each, "name", ""))
def test_polynomial_means_on_shares_are_the_plain_optimisers(model, family):
    values = columns(2)
    labels = labels_of(model, values)
    estimator = model(epochs=2)
    run = simulate(estimator.fit, made(values, labels), roles=roles(), seed=3)
    plain = in_plain(estimator, values, labels, batches_of(estimator, run), family)
    np.testing.assert_allclose(coefficients(run), plain, atol=1e-3 * np.abs(plain).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "family", "n_parties"),
    [(LinearRegression, LINEAR, 4), (LogisticRegression, LOGISTIC, 5), (PoissonRegression, POISSON, 3)],
    ids=["linear", "logistic", "Poisson"],
)
def test_training_on_shares_is_the_plain_optimisers_to_the_end(model, family, n_parties):
    values = columns(n_parties)
    labels = labels_of(model, values)
    estimator = model(epochs=8, batch_size=150)
    run = simulate(estimator.fit, made(values, labels), roles=roles(n_parties), seed=3)
    plain = in_plain(estimator, values, labels, batches_of(estimator, run), family)
    np.testing.assert_allclose(coefficients(run), plain, atol=1e-3 * np.abs(plain).max())


@pytest.mark.slow
def test_linear_regression_on_shares_is_ridge():
    values = columns(3)
    labels = labels_of(LinearRegression, values)
    run = simulate(LinearRegression(penalty=8.0, epochs=80).fit, made(values, labels), roles=roles(3), seed=3)
    ridge = Ridge(alpha=4.0).fit(np.hstack(list(values.values())), labels)
    np.testing.assert_allclose(coefficients(run), [*ridge.coef_, ridge.intercept_], rtol=1e-3, atol=1e-2)


def test_row_weights_count_on_shares():
    values = columns(2)
    labels = labels_of(LinearRegression, values)
    weights = np.random.default_rng(4).uniform(0.2, 3, N)
    model = LinearRegression(epochs=4, weights="weight")
    run = simulate(model.fit, made(values, labels, weight=weights), roles=roles(), seed=3)
    plain = in_plain(model, values, labels, batches_of(model, run), LINEAR, weights)
    np.testing.assert_allclose(coefficients(run), plain, rtol=1e-3, atol=1e-3 * np.abs(plain[:-1]).max())


def test_polynomials_are_as_close_as_the_documentation_says():
    scores = np.linspace(-8, 8, 4001)
    assert np.abs(LOGISTIC.polynomial(scores) - LOGISTIC.mean(scores)).max() < 0.03
    rates = np.linspace(-4, 4, 4001)
    assert np.abs(POISSON.polynomial(rates) - np.exp(rates)).max() < 0.03


class Decrypted:
    """Everything that computing parties decrypt, by party."""

    def __init__(self, monkeypatch):
        self.seen = {}
        honest, honest_products = ComputingSide._decrypted, products.decrypt

        def decrypted(side, step, line, block, n_values):
            found = honest(side, step, line, block, n_values)
            self.seen.setdefault(side.party.name, []).append(found.copy())
            return found

        def of_products(key, data, n_values, n_primes):
            found = honest_products(key, data, n_values, n_primes)
            self.seen.setdefault("bank", []).append(found.copy())
            return found

        monkeypatch.setattr(ComputingSide, "_decrypted", decrypted)
        monkeypatch.setattr(glm_shares.products, "decrypt", of_products)

    def uniform(self, name):
        return np.concatenate(self.seen[name]) / 2.0**64


@pytest.mark.parametrize("model", [LinearRegression, pytest.param(LogisticRegression, marks=pytest.mark.slow)])
def test_all_that_is_decrypted_before_the_end_is_uniform_whatever_the_labels(model, monkeypatch):
    values = columns(3)
    labels = labels_of(model, values)
    seen = {"bank": [], "shop": []}
    for known in (labels, labels.max() - labels):
        spy = Decrypted(monkeypatch)
        simulate(model(epochs=2, batch_size=150).fit, made(values, known), roles=roles(3), seed=3)
        for name in seen:
            seen[name].append(spy.uniform(name))
            assert stats.kstest(seen[name][-1], "uniform").pvalue > 1e-6
        monkeypatch.undo()
    for one, two in seen.values():
        n = min(len(one), len(two))
        assert abs(np.corrcoef(one[:n], two[:n])[0, 1]) < 6 / np.sqrt(n)


def test_only_ciphertexts_and_public_numbers_cross_before_the_opening():
    values = columns(3)
    labels = labels_of(LogisticRegression, values)
    run = simulate(LogisticRegression(epochs=1).fit, made(values, labels), roles=roles(3), seed=3)
    in_the_clear = {
        glm_arbiter.Columns,
        glm_shares.Layout,
        glm_shares.SharesKey,
        glm_shares.Opening,
    }
    for name, transcript in run.transcripts.items():
        kinds = [Message.kinds[entry.kind] for entry in transcript.entries if not entry.sent]
        encrypted = set(kinds) - in_the_clear
        assert encrypted <= {glm_shares.SharedVector, glm_shares.MaskedProduct, glm_shares.Operands}
        opened = [place for place, kind in enumerate(kinds) if kind is glm_shares.Opening]
        assert opened == list(range(len(kinds) - len(opened), len(kinds))), f"{name} is told coefficients too early"
        assert len(opened) == (1 if name in ("bank", "shop") else 2)


def test_the_drawing_shows_the_messages_that_cross():
    values = columns(3)
    run = simulate(
        LogisticRegression(epochs=1).fit, made(values, labels_of(LogisticRegression, values)), roles=roles(3), seed=3
    )
    crossed = {Message.kinds[e.kind].__name__ for t in run.transcripts.values() for e in t.entries}
    assert set(_drawn(glm_shares.__doc__)) == crossed


@pytest.mark.parametrize("at", [5, *(pytest.param(step, marks=pytest.mark.slow) for step in (0, 1, 8, 9))])
def test_a_crash_resumes_to_the_same_coefficients_within_the_truncation(at, tmp_path, monkeypatch):
    values = columns(3)
    labels = labels_of(LinearRegression, values)
    model = LinearRegression(epochs=5, batch_size=150)
    options = {"roles": roles(3), "seed": 3, "checkpoint_every": 2}
    straight = simulate(model.fit, made(values, labels), **options)
    honest = MatrixSide.answer

    def dies(side, step, what, batch):
        if step == at and what == "gradients":
            raise KeyboardInterrupt
        return honest(side, step, what, batch)

    monkeypatch.setattr(MatrixSide, "answer", dies)
    with pytest.raises(KeyboardInterrupt):
        simulate(model.fit, made(values, labels), directory=tmp_path, **options)
    monkeypatch.undo()
    resumed = simulate(model.fit, made(values, labels), directory=tmp_path, **options)
    scale = np.abs(coefficients(straight)[:-1]).max()
    np.testing.assert_allclose(coefficients(resumed), coefficients(straight), rtol=1e-4, atol=1e-4 * scale)


def test_predictions_on_opened_coefficients_are_the_joint_models():
    values = columns(3)
    labels = labels_of(LinearRegression, values)
    run = simulate(LinearRegression(epochs=3).fit, made(values, labels), roles=roles(3), seed=3)
    predicted = simulate({n: s.predict for n, s in run.results.items()}, made(values, labels), roles=roles(3)).results
    expected = np.hstack([*values.values(), np.ones((N, 1))]) @ coefficients(run)
    np.testing.assert_allclose(predicted["bank"].values, expected, rtol=1e-9)
    assert predicted["shop"] is predicted["telco"] is None


def test_columns_beyond_the_fixed_point_are_refused_by_party():
    values = columns(2)
    values["shop"][0, 0] = 100.0
    with pytest.raises(Overflow, match=r"shop's columns should be at most 16 in absolute value .* but 1 of 600"):
        simulate(
            LinearRegression(standardised=False).fit,
            made(values, labels_of(LinearRegression, columns(2))),
            roles=roles(),
        )


def test_an_arbiter_cannot_ask_where_there_is_none():
    values = columns(2)
    run = simulate(
        LinearRegression(epochs=1, asker="arbiter").fit,
        made(values, labels_of(LinearRegression, values)),
        roles=roles(),
    )
    with pytest.raises(PlanError, match=r"Predictions go to the arbiter, but the roles name none"):
        simulate(
            {n: s.predict for n, s in run.results.items()},
            made(values, labels_of(LinearRegression, values)),
            roles=roles(),
        )
