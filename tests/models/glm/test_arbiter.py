"""Regressions with an arbiter: the plain optimiser's coefficients, scikit-learn's model, nothing told on the way."""

import json
import logging
import re
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from blake3 import blake3
from scipy import stats
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression as PlainLogistic
from sklearn.linear_model import PoissonRegressor, Ridge

from colonnade.crypto import additive, rlwe, sampling
from colonnade.crypto.additive import PRODUCT_BITS, SUM_BITS, Widths, column_scales
from colonnade.errors import CryptoError, DataError, KeyMismatch, Overflow, PlanError, PrivacyError, ProtocolError
from colonnade.models.glm import arbiter as glm_arbiter
from colonnade.models.glm import messages
from colonnade.models.glm.estimator import LinearRegression, LogisticRegression, PoissonRegression
from colonnade.models.glm.families import CLASS_MEANS, LINEAR, LOGISTIC, POISSON, SOFTPLUS, of_all_classes
from colonnade.models.glm.means import log_sums_of_others
from colonnade.models.glm.messages import (
    ColumnSummary,
    EncryptedResiduals,
    MaskedScores,
    MaskedSums,
    OpenedSums,
    PartialScores,
    Schedule,
    ScoreShare,
    StillVote,
)
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table
from colonnade.testing.ports import free_port
from colonnade.wire.channel import Channel
from colonnade.wire.message import Message

NAMES = ("bank", "shop", "telco", "insurer", "clinic")
N = 400


def roles(n_parties=2):
    return Roles(label="bank", features=NAMES[1:n_parties], arbiter="judge")


def columns(n_parties=2, per_party=2, seed=0, n_rows=N):
    """Standardised columns that have something in common, by party."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((n_rows, n_parties * per_party)) + 0.5 * random.standard_normal((n_rows, 1))
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    return {name: values[:, i * per_party : (i + 1) * per_party] for i, name in enumerate(NAMES[:n_parties])}


def made(values, labels, **extra):
    """Tables of the parties' columns."""
    ids = {"id": np.arange(len(labels))}
    tables = {}
    for name, held in values.items():
        data = ids | {f"{name} {i}": held[:, i] for i in range(held.shape[1])}
        if name == "bank":
            tables[name] = Table.of(data | extra | {"y": labels}, labels="y", owner=name)
        else:
            tables[name] = Table.of(data, owner=name)
    return tables


def joined(values):
    return np.hstack(list(values.values()))


def labels_of(model, values, seed=1):
    random = np.random.default_rng(seed)
    scores = joined(values) @ random.uniform(-0.4, 0.4, joined(values).shape[1]) + 0.3
    if model is LinearRegression:
        return 20 * scores + random.standard_normal(len(scores)) + 100
    if model is LogisticRegression:
        return (random.random(len(scores)) < LOGISTIC.mean(scores)).astype(np.int64)
    return random.poisson(np.exp(scores))


def fitted(model, values, labels, n_parties=2, **options):
    return simulate(model.fit, made(values, labels), roles=roles(n_parties), seed=3, **options)


def coefficients(run):
    """All parties' coefficients in the order of the columns, the intercept last."""
    own = {name: list(share.coefficients.values()) for name, share in run.results.items() if name != "judge"}
    *bank, intercept = own["bank"]
    return np.array([*bank, *(value for name in own if name != "bank" for value in own[name]), intercept])


def in_plain(model, values, labels, batches, family):
    """The same optimiser on the same fixed-point inputs, in one place and in Python integers."""
    n_rows, loss = len(labels), family.loss(family.checked(np.asarray(labels), "bank"))
    known, several = loss.labels.T, len(loss.labels) > 1
    matrices = {name: held for name, held in values.items()}
    matrices["bank"] = np.hstack([values["bank"], np.ones((n_rows, 1))])
    widths = Widths.of(max(map(len, batches)))
    largest = max(np.abs(known).max(initial=1), family.table.above if family.table else 0)
    range_bits = max(5, int(np.ceil(np.log2(largest))) + 1)
    fraction = widths.residual_bits - int(np.ceil(np.log2(len(values)))) - range_bits
    score_bits = 20 if family.table else fraction
    scales = {name: column_scales(np.abs(m).max(axis=0), widths.column_bits) for name, m in matrices.items()}
    integers = {name: np.rint(np.ldexp(m, scales[name])).astype(np.int64) for name, m in matrices.items()}
    quantised = {name: np.ldexp(m.astype(float), -scales[name]) for name, m in integers.items()}
    of_mean = {"linear": 2 / n_rows, "logistic": 1 / n_rows, "Poisson": 1}
    shrinkage = of_mean[family.name] * model.alpha
    penalties = {name: np.full(m.shape[1], shrinkage) for name, m in matrices.items()}
    penalties["bank"][-1] = 0
    back = {}
    for name, m in matrices.items():
        square = m.T @ m / n_rows
        found, vectors = np.linalg.eigh(square + np.diag(penalties[name] / family.bend + 1e-6 * np.diag(square)))
        back[name] = (vectors / np.sqrt(found)) @ vectors.T
    eigenvalues = (
        np.linalg.eigvalsh((m @ back[name]).T @ (m @ back[name]) / n_rows)[-1] for name, m in matrices.items()
    )
    rate = 1 / (loss.curvature * sum(eigenvalues) + family.bend)
    theta = {name: np.zeros((m.shape[1], known.shape[1])) for name, m in matrices.items()}
    ahead = dict(theta)
    for step in range(model.max_iter * len(batches)):
        rows = batches[step % len(batches)]
        # With several classes the first 200 steps are those of a heavy ball, three times as long.
        is_long = several and step < 200
        points = {name: back[name] @ (theta if is_long else ahead)[name] for name in values}
        scores = sum(np.rint(np.ldexp(quantised[name][rows] @ points[name], score_bits)) for name in values)
        means = scores
        if several:
            every = of_all_classes(np.ldexp(scores.T, -score_bits))
            others = log_sums_of_others(every, lambda a, b: b + in_units(SOFTPLUS(a - b), score_bits))
            means = np.rint(np.ldexp(CLASS_MEANS(every - others)[:-1].T, fraction))
        elif family.table:
            means = np.rint(np.ldexp(family.table(np.ldexp(scores, -score_bits)), fraction))
        residuals = means.astype(np.int64) - np.rint(np.ldexp(known[rows], fraction)).astype(np.int64)
        for name in values:
            sums = integers[name][rows].T.astype(object) @ residuals.astype(object)
            gradient = np.ldexp(sums.astype(float), -scales[name][:, None] - fraction)
            factor = loss.factor * len(batches) / n_rows
            direction = back[name] @ (factor * gradient + penalties[name][:, None] * points[name])
            before, theta[name] = theta[name], ahead[name] - (3 if is_long else 1) * rate * direction
            ahead[name] = theta[name] + min((step + 1) / (step + 4), model.momentum) * (theta[name] - before)
    found = {name: of_all_classes((back[name] @ theta[name] * loss.scale).T).T for name in values}
    *bank, intercept = found.pop("bank")
    all_found = np.array([*bank, *np.concatenate(list(found.values())), intercept + loss.centre])
    return all_found if several else all_found[:, 0]


def in_units(values, bits):
    return np.ldexp(np.rint(np.ldexp(values, bits)), -bits)


FAMILIES = [(LinearRegression, LINEAR), (LogisticRegression, LOGISTIC), (PoissonRegression, POISSON)]


@pytest.mark.parametrize(("model", "family"), FAMILIES, ids=lambda each: getattr(each, "name", ""))
@pytest.mark.parametrize(("n_parties", "batch_size"), [(2, None), (3, 130), (4, None), (5, 200)])
def test_coefficients_are_those_of_the_plain_optimiser_on_the_same_integers(model, family, n_parties, batch_size):
    values = columns(n_parties)
    labels = labels_of(model, values)
    estimator = model(max_iter=3, batch_size=batch_size, tol=0, rows_per_column=10, gradient_bits=None)
    run = fitted(estimator, values, labels, n_parties)
    seen = [entry.rows for entry in run.transcripts["shop"].messages(EncryptedResiduals) if entry.epoch == 0]
    plain = in_plain(estimator, values, labels, seen, family)
    np.testing.assert_allclose(coefficients(run), plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "n_parties"),
    [
        (LinearRegression, 2),
        pytest.param(LogisticRegression, 3, marks=pytest.mark.slow),
        pytest.param(PoissonRegression, 5, marks=pytest.mark.slow),
    ],
)
def test_paillier_gives_the_coefficients_of_the_lattice(model, n_parties):
    values = columns(n_parties, n_rows=60)
    labels = labels_of(model, values)
    runs = [
        fitted(model(max_iter=2, backend=backend, tol=0, rows_per_column=10), values, labels, n_parties)
        for backend in ("rlwe", "paillier")
    ]
    np.testing.assert_array_equal(coefficients(runs[0]), coefficients(runs[1]))


@pytest.mark.slow
@pytest.mark.parametrize("n_parties", [2, 3, 4, 5])
def test_linear_regression_is_ridge(n_parties):
    values = columns(n_parties)
    labels = labels_of(LinearRegression, values)
    run = fitted(LinearRegression(alpha=4.0, max_iter=150, tol=0, gradient_bits=None), values, labels, n_parties)
    ridge = Ridge(alpha=4.0).fit(joined(values), labels)
    np.testing.assert_allclose(coefficients(run), [*ridge.coef_, ridge.intercept_], rtol=1e-4, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("model", [LogisticRegression, PoissonRegression])
@pytest.mark.parametrize("n_parties", [2, 3, 4, 5])
def test_other_regressions_are_scikit_learns_to_two_digits(model, n_parties):
    values = columns(n_parties)
    labels = labels_of(model, values)
    alpha = 1.0 / N if model is PoissonRegression else 1.0
    run = fitted(model(alpha=alpha, max_iter=60, tol=1e-7), values, labels, n_parties)
    plain = {LogisticRegression: PlainLogistic(C=1.0), PoissonRegression: PoissonRegressor(alpha=1.0 / N)}[model]
    plain.fit(joined(values), labels)
    np.testing.assert_allclose(coefficients(run), np.r_[np.ravel(plain.coef_), plain.intercept_], atol=0.02)


@pytest.mark.slow
def test_row_weights_are_scikit_learns_sample_weights():
    values = columns(2)
    labels = labels_of(LinearRegression, values)
    weights = np.random.default_rng(4).uniform(0.2, 3, N)
    tables = made(values, labels, weight=weights)
    model = LinearRegression(alpha=2.0, max_iter=250, sample_weight="weight", tol=0)
    run = simulate(model.fit, tables, roles=roles(), seed=3)
    ridge = Ridge(alpha=2.0).fit(joined(values), labels, sample_weight=weights / weights.mean())
    np.testing.assert_allclose(coefficients(run), [*ridge.coef_, ridge.intercept_], rtol=1e-3, atol=5e-3)


def test_training_ends_when_all_parties_stand_still_and_says_so_if_it_does_not(caplog):
    values = columns(2)
    labels = labels_of(LinearRegression, values)
    run = fitted(LinearRegression(max_iter=200, tol=1e-7), values, labels, keep="all")
    ended = run.results["shop"].n_iter_
    assert 5 < ended < 100
    for share in run.results.values():
        assert (share.n_iter_, share.converged_) == (ended, True)
    votes = [entry.message.still for entry in run.transcripts["bank"].messages(StillVote)]
    assert votes[-10:] == [1] * 10
    assert "by tol" in run.results["shop"].summary()
    assert not caplog.records
    for tol, converged in ((1e-7, False), (0, None)):
        short = fitted(LinearRegression(max_iter=3, tol=tol), values, labels)
        assert {(share.n_iter_, share.converged_) for share in short.results.values()} == {(3, converged)}
    said = [record.getMessage() for record in caplog.records]
    assert sorted(each.split(":")[0] for each in said) == ["bank", "judge", "shop"]
    assert all("after 3 epochs (max_iter) the mean loss has not stood still within 1e-07" in each for each in said)


def test_three_classes_are_the_plain_optimisers_softmax():
    values = columns(2)
    codes = np.digitize(joined(values) @ [1.0, -1.0, 0.5, 2.0], [-1.0, 1.0])
    labels = np.array(["high", "low", "middle"], object)[codes]
    few = {name: held[:384] for name, held in values.items()}
    with pytest.raises(PrivacyError, match="bank has 6 columns, so a batch needs more than 384 rows"):
        fitted(LogisticRegression(), few, labels[:384])
    model = LogisticRegression(max_iter=4, tol=0, gradient_bits=None)
    run = fitted(model, values, labels)
    plain = in_plain(model, values, labels, [np.arange(N)], LOGISTIC)
    np.testing.assert_allclose(coefficients(run), plain, rtol=1e-4, atol=1e-5 * np.abs(plain).max())
    assert {share.strategy_ for share in run.results.values()} == {"multinomial"}
    assert run.results["shop"].gradients_.shape == (4, 3, 2)
    np.testing.assert_allclose(run.results["shop"].gradients_.sum(axis=1), 0, atol=1e-9)
    (entry,) = run.transcripts["judge"].messages(messages.OpenableSums, sent=False)
    assert entry.message.counts.tolist() == [6, 4]
    predicted = simulate({n: s.predict for n, s in run.results.items()}, made(values, labels), roles=roles())
    found = predicted.results["bank"]
    assert found.probabilities.shape == (N, 3)
    expected = softmax(np.c_[joined(values), np.ones(N)] @ coefficients(run), axis=1)
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-6)
    assert (found.values == labels).mean() > 0.6


@pytest.mark.slow
def test_labels_of_a_trillion_and_columns_without_scale_are_no_trouble_when_standardised():
    values = {name: 1e12 * held + 1e12 for name, held in columns(2).items()}
    labels = 1e12 * labels_of(LinearRegression, columns(2))
    run = fitted(LinearRegression(alpha=1e-6, max_iter=150, tol=0, gradient_bits=None), values, labels)
    ridge = Ridge(alpha=1e-6).fit(joined(columns(2)), labels)
    np.testing.assert_allclose(coefficients(run), [*ridge.coef_, ridge.intercept_], rtol=1e-3)


def test_scores_that_diverge_are_refused_before_they_are_sent(monkeypatch):
    sent = []
    honest = Channel.send
    monkeypatch.setattr(
        Channel, "send", lambda line, message, **about: sent.append(message) or honest(line, message, **about)
    )
    values = columns(2)
    labels = labels_of(LinearRegression, values)
    with pytest.raises(Overflow, match=r"'s scores should be at most .* of 400 are larger or not finite. Standardise"):
        fitted(LinearRegression(learning_rate=1e4, max_iter=3), values, labels)
    # Scores of the first step are 0; those of the second never leave their owner.
    assert {message.step for message in sent if isinstance(message, ScoreShare)} == {0}


# How two equal columns share a coefficient is left to the penalty, which rounded gradients hide.
@pytest.mark.parametrize(("bits", "apart"), [(None, 1e-6), (26, 1e-2)])
def test_constant_and_collinear_columns_train(bits, apart):
    values = columns(2)
    values["shop"] = np.column_stack([values["shop"], np.full(N, 7.0), values["shop"][:, 0]])
    labels = labels_of(LogisticRegression, columns(2))
    run = fitted(LogisticRegression(max_iter=15, gradient_bits=bits), values, labels)
    shop = run.results["shop"].coefficients
    assert shop["shop 2"] == pytest.approx(0, abs=1e-12)
    assert shop["shop 3"] == pytest.approx(shop["shop 0"], abs=apart)


def test_separable_labels_train_to_finite_coefficients():
    values = columns(2)
    labels = (values["shop"][:, 0] > 0).astype(np.int64)
    run = fitted(LogisticRegression(max_iter=15), values, labels)
    score = simulate({n: share.score for n, share in run.results.items()}, made(values, labels), roles=roles())
    assert np.isfinite(coefficients(run)).all()
    assert score.results["bank"] > 0.9


@pytest.mark.parametrize(
    ("model", "labels", "words"),
    [
        (LogisticRegression, np.zeros(N), r"bank should have labels of at least two classes"),
        (PoissonRegression, np.arange(N) - 3.0, r"bank's labels should be counts.* but 3 of 400 are negative"),
        (PoissonRegression, np.zeros(N), r"bank's labels should be counts.* but all are 0"),
        (LinearRegression, np.array(["a", "b"] * (N // 2)), r"bank's labels should be numbers for a regression"),
    ],
)
def test_labels_outside_the_family_are_refused(model, labels, words):
    with pytest.raises(DataError, match=words):
        fitted(model(max_iter=1), columns(2), labels)


def test_small_batches_are_refused_by_the_party_whose_gradients_would_tell():
    values = columns(2)
    values["shop"] = np.random.default_rng(0).standard_normal((N, 12))
    model = LinearRegression(max_iter=1, batch_size=100, rows_per_column=10)
    with pytest.raises(PrivacyError, match=r"shop has 12 columns, so a batch needs more than 120 rows .* has 100"):
        fitted(model, values, labels_of(LinearRegression, columns(2)))


def test_batches_train_although_all_rows_together_are_more_than_a_product_sums_over(monkeypatch):
    values = columns(2)
    labels = labels_of(LogisticRegression, values)
    model = LogisticRegression(max_iter=2, batch_size=130, tol=0, rows_per_column=10)
    expected = coefficients(fitted(model, values, labels))
    monkeypatch.setattr(additive, "MOST_ROWS", 140)
    np.testing.assert_array_equal(coefficients(fitted(model, values, labels)), expected)


def test_an_arbiter_that_is_also_a_party_is_refused():
    with pytest.raises(PlanError, match=r"Each party has one role, but bank was given two"):
        Roles(label="bank", features=("shop",), arbiter="bank")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": -1.0}, "alpha should be a number, at least 0, but is -1.0"),
        ({"backend": "rsa"}, "backend should be 'rlwe' or 'paillier'"),
        ({"momentum": 1.0}, "momentum should be a number, at least 0 and below 1, but is 1.0"),
        ({"alarm": 0.5}, "alarm should be None or a number, above 1, but is 0.5"),
        ({"partial_scores": "no"}, "partial_scores should be 'masked' or 'plain'"),
        ({"sample_weight": "w"}, "sample_weight should name a column of bank's table, but 'w' is none"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(PlanError, match=words):
        fitted(LinearRegression(**options), columns(2), labels_of(LinearRegression, columns(2)))


def test_bad_weights_are_refused_by_count():
    values = columns(2)
    tables = made(values, labels_of(LinearRegression, values), weight=np.r_[-1.0, np.ones(N - 1)])
    with pytest.raises(DataError, match=r"bank's weights in 'weight' should be numbers from 0 to .* but 1 of 400"):
        simulate(LinearRegression(sample_weight="weight").fit, tables, roles=roles())


def crossed(run, name):
    """What a party received, decoded, with kinds of messages as keys."""
    found = {}
    for entry in run.transcripts[name].entries:
        if not entry.sent:
            found.setdefault(Message.kinds[entry.kind], []).append(entry)
    return found


def test_only_the_arbiter_is_sent_what_it_can_decrypt_and_only_masked():
    run = fitted(LogisticRegression(max_iter=2, tol=0), columns(3), labels_of(LogisticRegression, columns(3)), 3)
    assert set(crossed(run, "judge")) == {
        *(messages.Schedule, messages.OpenableSums, MaskedSums, ScoreShare, messages.PairedWords)
    }
    for name in ("bank", "shop", "telco"):
        assert MaskedSums not in crossed(run, name)
        for entry in run.transcripts[name].messages(OpenedSums, sent=False):
            assert entry.message.sums.max() < 2**SUM_BITS
    # Nothing that depends on labels or columns crosses in the clear besides a few single numbers.
    for name in run.results:
        for kind in crossed(run, name):
            if kind is messages.OpenableSums:
                continue  # test_what_may_be_opened_is_told_by_counts_and_keyed_hashes_alone says what it carries.
            if kind not in (MaskedSums, messages.EncryptedMeans, EncryptedResiduals):
                uniform = OpenedSums, messages.PublicKeyBytes, ScoreShare, messages.PairedWords
                assert kind in uniform or not any(
                    shape.base is np.ndarray and kind is not messages.StepOutline for shape in shapes_of(kind)
                )


def test_what_may_be_opened_is_told_by_counts_and_keyed_hashes_alone():
    values, n_rows = columns(3), 400
    labels = labels_of(LogisticRegression, values)
    tables = made(values, labels)
    told = []
    for held in (tables, made({name: 3 * each[::-1] for name, each in values.items()}, 1 - labels)):
        run = simulate(LogisticRegression(max_iter=1, batch_size=200).fit, held, roles=roles(3), seed=3)
        (entry,) = run.transcripts["judge"].messages(messages.OpenableSums, sent=False)
        told.append(entry.message)
        assert {field.name for field in fields(entry.message)} == {
            *("parties", "counts", "tokens", "n_rows", "batch_rows", "rows", "sensitivity", "sigma")
        }
    for each in told:
        assert (each.parties, each.counts.tolist()) == (["bank", "shop", "telco"], [3, 2, 2])
        assert (each.n_rows, each.batch_rows, each.sensitivity, each.sigma) == (n_rows, 200, 0, 0.0)
        assert [len(token) for token in each.tokens] == [32] * 3
        assert each.rows.shape == (n_rows,)
        # Sorted by hash, not by row; uniform, as hashes under a key are.
        assert (np.diff(each.rows.astype(float)) > 0).all()
        assert stats.kstest(each.rows / 2.0**64, "uniform").pvalue > 1e-6
    # The ids are the same, and so was each column up to its order; keys are new, and so is every hash.
    assert not set(told[0].rows.tolist()) & set(told[1].rows.tolist())
    assert len({token for each in told for token in each.tokens}) == 6
    unkeyed = {int.from_bytes(blake3(str(row).encode()).digest(8), "little") for row in range(n_rows)}
    assert not unkeyed & set(told[0].rows.tolist())


def shapes_of(kind):
    from colonnade.wire.message import shapes

    return shapes(kind).values()


def masked_values(run):
    """Everything the arbiter decrypts in a run."""
    return np.concatenate([entry.message.sums for entry in run.transcripts["judge"].messages(OpenedSums, sent=True)])


def test_the_arbiters_view_is_independent_of_labels_and_columns(monkeypatch):
    shares, honest = [], glm_arbiter.ArbiterSide._score_shares
    monkeypatch.setattr(
        glm_arbiter.ArbiterSide, "_score_shares", lambda side, step: shares.append(honest(side, step)) or shares[-1]
    )
    values = columns(2)
    labels = labels_of(LogisticRegression, values)
    other = {name: 3 * held[::-1] for name, held in values.items()}
    seen = []
    for held, known in ((values, labels), (values, 1 - labels), (other, labels)):
        run = fitted(LogisticRegression(max_iter=15, tol=0), held, known, keep="all")
        seen.append(masked_values(run) / 2.0**SUM_BITS)
        assert stats.kstest(seen[-1], "uniform").pvalue > 1e-6
        assert stats.kstest(np.concatenate(shares[-15:], axis=None) / 2.0**64, "uniform").pvalue > 1e-6
    for one, two in ((0, 1), (0, 2)):
        assert stats.ks_2samp(seen[one], seen[two]).pvalue > 1e-6
        assert abs(np.corrcoef(seen[one], seen[two])[0, 1]) < 6 / np.sqrt(len(seen[one]))


def test_no_two_runs_send_the_same_ciphertext_or_key():
    values = columns(2)
    labels = labels_of(LinearRegression, values)
    runs = [fitted(LinearRegression(max_iter=2, tol=0), values, labels) for _ in range(2)]
    digests = [
        [entry.digest for entry in run.transcripts[name].entries if entry.sent and entry.fresh and entry.digest]
        for run in runs
        for name in run.results
    ]
    everything = [digest for each in digests for digest in each]
    # The arbiter sends each key to both parties, and the label party one ciphertext to its only feature party.
    keys = 2 * len(runs)
    assert len(everything) - len(set(everything)) == keys


def test_recordings_keep_ciphertexts_of_the_first_and_the_last_epoch_only():
    values = columns(2)
    for arbiter in ("judge", None):
        who = Roles(label="bank", features=("shop",), arbiter=arbiter)
        tables = made(values, labels_of(LinearRegression, values))
        run = simulate(LinearRegression(max_iter=4, tol=0).fit, tables, roles=who)
        for transcript in run.transcripts.values():
            big = [entry for entry in transcript.entries if entry.size > 10_000]
            kept = {entry.epoch for entry in big if transcript.frames.read(entry.section, entry.place) is not None}
            assert kept - {None} == {0, 3}
            assert {entry.kind for entry in big if entry.epoch is None} <= {"glm/key"}


def test_every_epoch_has_a_key_of_its_own():
    values = columns(2)
    run = fitted(LinearRegression(max_iter=3, batch_size=200, tol=0), values, labels_of(LinearRegression, values))
    keys = {entry.digest for entry in run.transcripts["shop"].entries if entry.kind == "glm/key"}
    assert len(keys) == 3


def test_ciphertexts_under_another_key_are_refused():
    values = columns(2)
    labels = labels_of(LinearRegression, values)

    def disagree(party, honest):
        original = glm_arbiter.EncryptedFeatureSide.ciphertexts
        stranger = rlwe.SecretKey().public

        def other(self, data):
            made = original(self, data)
            return type(made)(made.scheme, stranger.fingerprint, made.data)

        glm_arbiter.EncryptedFeatureSide.ciphertexts = other
        try:
            return honest(party)
        finally:
            glm_arbiter.EncryptedFeatureSide.ciphertexts = original

    with pytest.raises(KeyMismatch, match=r"under the key in use from shop, got some of 'rlwe-8192-156' under another"):
        simulate(LinearRegression(max_iter=1).fit, made(values, labels), roles=roles(), instead={"shop": disagree})


def test_malformed_ciphertexts_are_refused_by_sender():
    values = columns(2)
    labels = labels_of(LinearRegression, values)

    def truncate(party, honest):
        original = glm_arbiter.EncryptedFeatureSide.ciphertexts

        def none(self, data):
            made = original(self, data)
            return type(made)(made.scheme, made.key, made.data[:0])

        glm_arbiter.EncryptedFeatureSide.ciphertexts = none
        try:
            return honest(party)
        finally:
            glm_arbiter.EncryptedFeatureSide.ciphertexts = original

    with pytest.raises(CryptoError, match=r"ciphertexts of rlwe-8192-156, .* from shop, got shape \(0, 2, 6, 3328\)"):
        simulate(LinearRegression(max_iter=1).fit, made(values, labels), roles=roles(), instead={"shop": truncate})


@pytest.mark.parametrize(
    ("liar", "batch_size"),
    [("shop", None), ("bank", None), *(pytest.param(name, 130, marks=pytest.mark.slow) for name in ("shop", "bank"))],
)
def test_faked_inputs_raise_an_alarm_at_the_other_party_who_stops(liar, batch_size, monkeypatch):
    values = columns(2)
    labels = labels_of(LinearRegression, values)

    def lie(party, honest):
        # The liar itself raises no alarm.
        honest.__self__.set_params(alarm=None)
        return honest(party)

    # A fake that distorts the other party's gradients: within the range of scores, and in step with its first column.
    fake = 25 * np.sign(values["bank" if liar == "shop" else "shop"][:, 0])
    honest_part = glm_arbiter.EncryptedSide.own_part

    def part(self, batch):
        lies = self.party.name == liar and len(self.descent.gradients) == 9
        return fake[self.batches[batch], None] if lies else honest_part(self, batch)

    monkeypatch.setattr(glm_arbiter.EncryptedSide, "own_part", part)
    model = LinearRegression(
        max_iter=10 if batch_size is None else 4, batch_size=batch_size, momentum=0.0, tol=0, rows_per_column=10
    )
    words = f"{'shop' if liar == 'bank' else 'bank'}'s gradients should stay"
    with pytest.raises(ProtocolError, match=words + r".* A party sends faked inputs, or the learning rate is too high"):
        simulate(model.fit, made(values, labels), roles=roles(), instead={liar: lie})
    without = model.clone().set_params(alarm=None)
    simulate(without.fit, made(values, labels), roles=roles(), instead={liar: lie})


@pytest.mark.parametrize("sending", ["masked", "plain"])
@pytest.mark.parametrize("asker", ["label", "arbiter"])
def test_predictions_are_those_of_the_joint_model(sending, asker):
    values = columns(3)
    labels = labels_of(LogisticRegression, values)
    run = fitted(LogisticRegression(max_iter=5, partial_scores=sending, asker=asker), values, labels, 3)
    predicted = simulate({n: s.predict for n, s in run.results.items()}, made(values, labels), roles=roles(3))
    who = "bank" if asker == "label" else "judge"
    scores = np.hstack([joined(values), np.ones((N, 1))]) @ coefficients(run)
    assert [name for name, each in predicted.results.items() if each is not None] == [who]
    np.testing.assert_allclose(predicted.results[who].probabilities[:, 1], LOGISTIC.mean(scores), atol=1e-8)
    assert (predicted.results[who].values == (scores > 0)).all()
    message = MaskedScores if sending == "masked" else PartialScores
    assert {entry.message.values.dtype.kind for entry in predicted.transcripts[who].messages(message)} == {
        "u" if sending == "masked" else "f"
    }


def test_masked_partial_scores_are_uniform_and_only_their_sum_is_not():
    values = columns(3, n_rows=5000)
    labels = labels_of(LinearRegression, values)
    run = fitted(LinearRegression(max_iter=2), values, labels, 3)
    predicted = simulate(
        {n: s.predict for n, s in run.results.items()}, made(values, labels), roles=roles(3), keep="all"
    )
    seen = [entry.message.values for entry in predicted.transcripts["bank"].messages(MaskedScores)]
    assert len(seen) == 2
    for each in seen:
        assert stats.kstest(each / 2.0**64, "uniform").pvalue > 1e-6
    assert np.abs((seen[0] + seen[1]).view(np.int64)).max() < 2**60


@pytest.mark.slow
@pytest.mark.parametrize("model", [LinearRegression, LogisticRegression, PoissonRegression])
def test_the_score_is_scikit_learns(model):
    values = columns(2)
    labels = labels_of(model, values)
    run = fitted(model(max_iter=40, alpha=0.01 if model is PoissonRegression else 1.0), values, labels)
    tables = made(values, labels)
    scores = simulate({n: share.score for n, share in run.results.items()}, tables, roles=roles()).results
    plain = {
        LinearRegression: Ridge(),
        LogisticRegression: PlainLogistic(),
        PoissonRegression: PoissonRegressor(alpha=0.01),
    }
    expected = plain[model].fit(joined(values), labels).score(joined(values), labels)
    assert scores["shop"] is scores["judge"] is None
    assert scores["bank"] == pytest.approx(expected, abs=0.005)


def test_text_columns_and_missing_values_become_columns_of_their_own():
    values = columns(2)
    labels = labels_of(LinearRegression, values)
    tables = made(values, labels)
    colours = np.array(["red", "blue"] * (N // 2), object)
    holes = np.where(np.arange(N) % 7 == 0, np.nan, values["shop"][:, 0])
    tables["shop"] = Table.of({"id": np.arange(N), "colour": colours, "x": holes}, owner="shop")
    run = simulate(LinearRegression(max_iter=20).fit, tables, roles=roles())
    assert list(run.results["shop"].coefficients) == ["x", "x missing", "colour=blue", "colour=red"]
    predicted = simulate({n: s.predict for n, s in run.results.items()}, tables, roles=roles()).results["bank"]
    assert np.isfinite(predicted.values).all()


def test_a_label_party_without_columns_has_its_intercept():
    values = columns(2)
    labels = labels_of(LinearRegression, values)
    tables = made(values, labels)
    tables["bank"] = tables["bank"].select([])
    run = simulate(LinearRegression(max_iter=30).fit, tables, roles=roles())
    assert run.results["bank"].coefficients["intercept"] == pytest.approx(labels.mean(), rel=1e-2)


def test_a_label_party_without_columns_and_intercept_opens_nothing():
    values = columns(2)
    tables = made(values, labels_of(LinearRegression, values))
    tables["bank"] = tables["bank"].select([])
    run = simulate(LinearRegression(max_iter=2, fit_intercept=False).fit, tables, roles=roles())
    assert run.results["bank"].coef_.size == 0
    assert run.results["judge"].opened_ == run.results["shop"].gradients_.size


def test_without_intercept_there_is_none():
    values = columns(2)
    labels = labels_of(LinearRegression, values) - 100
    run = fitted(LinearRegression(max_iter=5, fit_intercept=False), values, labels)
    assert "intercept" not in run.results["bank"].coefficients


def test_a_summary_says_profile_security_and_what_each_role_learns():
    said = LogisticRegression().summary()
    for words in (
        "RLWE of degree 8192",
        "180.8 bits",
        "experimental and unaudited",
        "off by at most 0.008",
        "Without an",
    ):
        assert words in said
    assert "Paillier of 3,072 bits" in LogisticRegression(backend="paillier").summary()


@pytest.mark.parametrize(
    ("model", "n_classes", "words"),
    [
        (LinearRegression, None, "off by at most 9.6e-07 of the largest distance between a label and the mean label"),
        (LogisticRegression, 2, "A row's mean is off by at most 0.0079"),
        (LogisticRegression, 3, "off by at most 0.0078 in each class but the last, and by 0.017 in the last"),
        # Residuals have fewer bits than on shares.
        (PoissonRegression, None, "off by at most 3.2 % and 1e-05 mean rates; rates above 54.6 mean rates count as"),
    ],
    ids=["linear", "logistic", "three classes", "Poisson"],
)
def test_with_an_arbiter_every_party_is_told_how_far_means_are_off(model, n_classes, words, caplog, tmp_path):
    values = columns(2)
    labels = np.arange(N) % n_classes if n_classes else labels_of(model, values)
    with caplog.at_level(logging.INFO, "colonnade"):
        shares = fitted(model(max_iter=1, tol=0), values, labels).results
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    for name, share in shares.items():
        known, said = share.approximation_, share.summary()
        assert f"{name}: {known}" in told
        assert str(known) in said.splitlines()
        assert words in said
        assert "With an arbiter: RLWE of degree 8192" in said
        assert "Without an" not in said
        assert ("this party's part of a score" in said) == (name != "judge")
        share.save(tmp_path / name)
        loaded = type(share).load(tmp_path / name)
        assert loaded.approximation_ == known
        assert loaded.summary() == said
    assert "This share: 2 coefficients." in shares["shop"].summary()
    only_of_a_party = {"own_score": 0.0, "labels_beyond": None}
    assert len({replace(share.approximation_, **only_of_a_party) for share in shares.values()}) == 1


def test_no_seed_is_drawn_twice_although_a_run_crashes_and_resumes(tmp_path, monkeypatch):
    seeds = []
    honest = sampling.secrets.token_bytes
    monkeypatch.setattr(sampling.secrets, "token_bytes", lambda n: seeds.append(honest(n)) or seeds[-1])
    values = columns(2)
    labels = labels_of(LinearRegression, values)
    original = glm_arbiter.EncryptedFeatureSide.own_part

    def dies(side, batch):
        if len(side.descent.gradients) == 3:
            raise KeyboardInterrupt
        return original(side, batch)

    monkeypatch.setattr(glm_arbiter.EncryptedFeatureSide, "own_part", dies)
    options = {"directory": tmp_path, "checkpoint_every": 2}
    with pytest.raises(KeyboardInterrupt):
        fitted(LinearRegression(max_iter=5, tol=0), values, labels, **options)
    before = len(seeds)
    monkeypatch.setattr(glm_arbiter.EncryptedFeatureSide, "own_part", original)
    resumed = fitted(LinearRegression(max_iter=5, tol=0), values, labels, **options)
    assert 0 < before < len(seeds) == len(set(seeds))
    straight = fitted(LinearRegression(max_iter=5, tol=0), values, labels)
    np.testing.assert_array_equal(coefficients(resumed), coefficients(straight))


def test_too_many_rows_are_refused_before_anything_is_sent(monkeypatch):
    monkeypatch.setattr("colonnade.crypto.additive.MOST_ROWS", 300)
    monkeypatch.setattr(Channel, "send", lambda line, message, **about: pytest.fail(f"{message.kind} was sent"))
    with pytest.raises(Overflow, match=r"at most 300 rows, but 400 were given. Use smaller batches"):
        fitted(LinearRegression(max_iter=1), columns(2), labels_of(LinearRegression, columns(2)))


def test_sums_never_leave_their_bits():
    for n_rows in (2, 100, 4096, 2**17, 2**19):
        widths = Widths.of(n_rows)
        assert np.ceil(np.log2(n_rows)) + widths.column_bits + widths.residual_bits <= PRODUCT_BITS


PARTY = """
import json, sys
from pathlib import Path
from colonnade import Roles, Table, join
from colonnade.models import LinearRegression
from colonnade.runtime.session import connect
from colonnade.roles import PublicPlan
from colonnade.wire.grpc.transport import GrpcTransport

name, arbiter, addresses, folder = json.loads(sys.argv[1])
plan = PublicPlan(Roles(label="bank", features=("shop",), arbiter=arbiter), "LinearRegression.fit", {}, 5)
path = Path(folder, f"{name}.arrow")
table = Table.load(path) if path.exists() else None
lines = GrpcTransport(addresses, credentials=None)
party = connect(plan, name, table, transport=lines, directory=Path(folder, name))
join(LinearRegression(max_iter=3, tol=0, gradient_bits=None).fit, party).save(Path(folder, f"{name}.share"))
"""


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("arbiter", ["judge", None])
def test_parties_on_a_network_find_the_coefficients_of_a_simulation(arbiter, tmp_path):
    values = columns(2)
    tables = made(values, labels_of(LinearRegression, values))
    who = Roles(label="bank", features=("shop",), arbiter=arbiter)
    # Rounding follows from each run's own randomness.
    simulated = simulate(LinearRegression(max_iter=3, tol=0, gradient_bits=None).fit, tables, roles=who, seed=3)
    addresses = {name: f"127.0.0.1:{free_port()}" for name in who.parties}
    for name, table in tables.items():
        table.save(tmp_path / f"{name}.arrow")
    processes = [
        subprocess.Popen([sys.executable, "-c", PARTY, json.dumps([name, arbiter, addresses, str(tmp_path)])])
        for name in who.parties
    ]
    assert [process.wait(120) for process in processes] == [0] * len(processes)
    for name in ("bank", "shop"):
        found = LinearRegression.load(tmp_path / f"{name}.share")
        np.testing.assert_allclose(found.coef_, simulated.results[name].coef_, atol=1e-4)
        assert ("intercept_" in vars(found)) == (name == "bank")
    assert LinearRegression.load(tmp_path / "bank.share").intercept_ == pytest.approx(
        simulated.results["bank"].intercept_, abs=1e-4
    )
    # What the shop answered is counted: to the arbiter, or to the computing party.
    (portion,) = (json.loads(line) for line in (tmp_path / "shop" / "answers").read_text().splitlines())
    assert portion["peer"] == ("judge" if arbiter else "bank")


SIZES = [
    (ColumnSummary(2**40, 1.0), "count from 0 to 1.04858e+06 from shop, got one with count 1.09951e+12"),
    (ColumnSummary(-1, 1.0), "count from 0 to 1.04858e+06 from shop, got one with count -1"),
    (ColumnSummary(2, float("nan")), "curvature from 0 to 1.79769e+308 from shop, got one with curvature nan"),
    (ColumnSummary(2, -1.0), "curvature from 0 to 1.79769e+308 from shop, got one with curvature -1"),
]


@pytest.mark.parametrize("who", [roles(), Roles(label="bank", features=("shop",))], ids=["arbiter", "shares"])
@pytest.mark.parametrize(("message", "words"), SIZES)
def test_a_column_summary_that_no_table_has_is_refused(who, message, words):
    values = columns(2)

    def dishonest(party, honest):
        party.label_party.send(message)

    with pytest.raises(ProtocolError, match=re.escape(f"Expected glm/columns with {words}")):
        simulate(
            LinearRegression(max_iter=1).fit,
            made(values, labels_of(LinearRegression, values)),
            roles=who,
            instead={"shop": dishonest},
        )


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Schedule(0, 1, 10, 1), "n_batches from 1 to"),
        (Schedule(1, 2**50, 10, 1), "block from 1 to"),
        (Schedule(1, 0, 10, 1), "block from 1"),
        (Schedule(1, 1, 0, 1), "fraction from 1 to"),
        (Schedule(1, 1, 10, 2**20), "n_outputs from 1 to"),
    ],
)
def test_a_schedule_that_no_batches_have_is_refused_by_the_arbiter(message, words):
    values = columns(2)

    def dishonest(party, honest):
        party.arbiter.send(message)

    with pytest.raises(ProtocolError, match=f"Expected glm/schedule with {words}.* from bank, got one with"):
        simulate(
            LinearRegression(max_iter=1).fit,
            made(values, labels_of(LinearRegression, values)),
            roles=roles(),
            instead={"bank": dishonest, "shop": lambda party, honest: None},
        )
