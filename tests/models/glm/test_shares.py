"""Regressions without an arbiter: the plain optimiser's coefficients, nothing but uniform numbers before the end."""

import json
import logging
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression as PlainLogistic
from sklearn.linear_model import PoissonRegressor, Ridge

from colonnade.crypto import sampling
from colonnade.crypto.paired import Pair
from colonnade.crypto.profiles import SHARES
from colonnade.errors import BudgetSpent, DataError, Overflow, PlanError, ProtocolError
from colonnade.models.glm import messages
from colonnade.models.glm import shares as glm_shares
from colonnade.models.glm.estimator import LinearRegression, LogisticRegression, PoissonRegression
from colonnade.models.glm.families import CLASS_MEANS, LINEAR, LOGISTIC, POISSON, SOFTPLUS, of_all_classes
from colonnade.models.glm.means import PairedLine, log_sums_of_others
from colonnade.models.glm.messages import OpenedShare, SharesLayout, StopVerdict
from colonnade.models.glm.shares import ComputingSide
from colonnade.roles import Roles
from colonnade.runtime.replay import ReplayGuard
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table
from colonnade.testing.estimator import _drawn
from colonnade.wire.channel import Channel
from colonnade.wire.message import Message

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


def in_plain(model, values, labels, batches, family, weights=None, *, in_basis=False):
    """The same optimiser in one place and in double precision, with the same table for the mean."""
    target = family.loss(family.checked(np.asarray(labels), "bank"))
    shaped = {"linear": target.labels[0], "logistic": (labels > 0) * 1.0, "Poisson": labels / labels.mean()}
    several = len(target.labels) > 1
    known = target.labels.T if several else shaped[family.name][:, None]
    factor = {"linear": 2.0, "logistic": 1.0, "Poisson": labels.mean()}[family.name]
    bend = {"linear": 2.0, "logistic": 0.5 if several else 0.25, "Poisson": 4 * labels.mean()}[family.name]
    usual = {"linear": 2.0, "logistic": 0.25, "Poisson": 1.0}[family.name]
    shrinkage = {"linear": 2 * model.alpha / N, "logistic": model.alpha / N, "Poisson": model.alpha}[family.name]
    weights = np.ones(N) if weights is None else weights * N / weights.sum()
    matrices = [np.hstack([values["bank"], np.ones((N, 1))])] + [
        held for name, held in values.items() if name != "bank"
    ]
    back = np.zeros((2 * len(values) + 1,) * 2)
    first = 0
    for place, matrix in enumerate(matrices):
        ridge = np.eye(matrix.shape[1]) * shrinkage / usual
        if place == 0:
            ridge[2, 2] = 0
        square = matrix.T @ matrix / N
        found, vectors = np.linalg.eigh(square + ridge + 1e-6 * np.diag(np.diag(square)))
        end = first + matrix.shape[1]
        back[first:end, first:end] = vectors @ np.diag(found**-0.5) @ vectors.T
        first = end
    matrix = np.hstack(matrices) @ back
    sizes = np.cumsum([0, *(each.shape[1] for each in matrices)])
    blocks = [matrix[:, start:end] for start, end in pairwise(sizes)]
    bend *= weights.max() * sum(np.linalg.eigvalsh(block.T @ block / N)[-1] for block in blocks)
    rate = 1 / (bend + usual)
    penalties = np.full((len(back), 1), shrinkage)
    penalties[2] = 0
    theta = ahead = np.zeros((len(back), known.shape[1]))
    for step in range(model.max_iter * len(batches)):
        rows = batches[step % len(batches)]
        # With several classes the first 200 steps are those of a heavy ball, three times as long.
        length, point = (3 * rate, theta) if several and step < 200 else (rate, ahead)
        mean = matrix[rows] @ point
        if several:
            every = of_all_classes(mean.T)
            others = log_sums_of_others(every, lambda a, b: b + SOFTPLUS(a - b))
            mean = CLASS_MEANS(every - others)[:-1].T
        elif family.table is not None:
            mean = family.table(mean)
        gradient = factor * len(batches) / N * matrix[rows].T @ (weights[rows, None] * (mean - known[rows]))
        before, theta = theta, ahead - length * (gradient + back @ (penalties * (back @ point)))
        ahead = theta + min((step + 1) / (step + 4), model.momentum) * (theta - before)
    if in_basis:
        return theta, rate
    theta = of_all_classes((back @ theta * target.scale).T).T
    found = np.array([*theta[:2], *theta[3:], theta[2] + target.centre])
    return found if several else found[:, 0]


def batches_of(model, run):
    from colonnade.models.batches import fixed_batches
    from colonnade.runtime.party import shared_randomness

    return fixed_batches(N, model.batch_size, shared_randomness(run.plan, run.id_digest))


FAMILIES = [(LinearRegression, LINEAR), (LogisticRegression, LOGISTIC), (PoissonRegression, POISSON)]


@pytest.mark.parametrize(("n_parties", "batch_size"), [(2, None), (3, 100), (5, None)])
def test_linear_regression_on_shares_is_the_plain_optimisers(n_parties, batch_size):
    values = columns(n_parties)
    labels = labels_of(LinearRegression, values)
    model = LinearRegression(max_iter=4, batch_size=batch_size)
    run = simulate(model.fit, made(values, labels), roles=roles(n_parties), seed=3)
    plain = in_plain(model, values, labels, batches_of(model, run), LINEAR)
    np.testing.assert_allclose(coefficients(run), plain, rtol=1e-3, atol=1e-3 * np.abs(plain[:-1]).max())


@pytest.mark.parametrize(("model", "family"), FAMILIES[1:], ids=lambda each: getattr(each, "name", ""))
def test_means_from_a_table_on_shares_are_the_plain_optimisers(model, family):
    values = columns(2)
    labels = labels_of(model, values)
    estimator = model(max_iter=2)
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
    estimator = model(max_iter=8, batch_size=150)
    run = simulate(estimator.fit, made(values, labels), roles=roles(n_parties), seed=3)
    plain = in_plain(estimator, values, labels, batches_of(estimator, run), family)
    # Columns are rounded to 10 bits: a row next to a boundary of the table may fall on the other side of it.
    np.testing.assert_allclose(coefficients(run), plain, atol=2e-3 * np.abs(plain).max())


@pytest.mark.slow
@pytest.mark.parametrize("n_parties", [2, 3, 4, 5])
def test_linear_regression_on_shares_is_ridge(n_parties):
    values = columns(n_parties)
    labels = labels_of(LinearRegression, values)
    model = LinearRegression(alpha=4.0, max_iter=120, tol=1e-6)
    run = simulate(model.fit, made(values, labels), roles=roles(n_parties), seed=3)
    ridge = Ridge(alpha=4.0).fit(np.hstack(list(values.values())), labels)
    np.testing.assert_allclose(coefficients(run), [*ridge.coef_, ridge.intercept_], rtol=1e-3, atol=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("model", [LogisticRegression, PoissonRegression])
@pytest.mark.parametrize("n_parties", [2, 3, 4, 5])
def test_other_regressions_on_shares_are_scikit_learns_to_two_digits(model, n_parties):
    values = columns(n_parties)
    labels = labels_of(model, values)
    alpha = 1.0 / N if model is PoissonRegression else 1.0
    run = simulate(model(alpha=alpha, max_iter=45, tol=1e-7).fit, made(values, labels), roles=roles(n_parties), seed=3)
    plain = {LogisticRegression: PlainLogistic(C=1.0), PoissonRegression: PoissonRegressor(alpha=1.0 / N)}[model]
    plain.fit(np.hstack(list(values.values())), labels)
    np.testing.assert_allclose(coefficients(run), np.r_[np.ravel(plain.coef_), plain.intercept_], atol=0.02)


def epochs_in_plain(model, values, labels, batches, tolerance):
    """After how many epochs the optimiser in double precision moves so little that training ends."""
    lengths, before = [], np.zeros(5)
    for epochs in range(1, model.max_iter):
        some = model.clone().set_params(max_iter=epochs)
        after, rate = in_plain(some, values, labels, batches, LINEAR, in_basis=True)
        lengths.append(((after - before) ** 2).sum() * (1 - model.momentum) / (rate * len(batches)))
        before = after
    return 1 + next((place for place, length in enumerate(lengths) if length < tolerance), len(lengths))


@pytest.mark.parametrize(("batch_size", "momentum"), [(None, 0.5), (150, 0.0)])
def test_training_on_shares_ends_when_the_loss_would_change_by_less_than_the_tolerance(
    batch_size, momentum, monkeypatch
):
    monkeypatch.setattr("colonnade.models.glm.sides.STILL_EPOCHS", 1)
    values = columns(2)
    labels = labels_of(LinearRegression, values)
    # Labels are divided by 8 or 16 before training, and tol counts in these units.
    model = LinearRegression(max_iter=12, batch_size=batch_size, momentum=momentum, tol=1 / 128)
    run = simulate(model.fit, made(values, labels), roles=roles(), seed=3)
    ended = run.results["bank"].n_iter_
    assert ended == epochs_in_plain(model, values, labels, batches_of(model, run), 1 / 128)
    assert 2 < ended < 12
    assert all(share.converged_ for share in run.results.values())
    plain = in_plain(model.clone().set_params(max_iter=ended), values, labels, batches_of(model, run), LINEAR)
    np.testing.assert_allclose(coefficients(run), plain, rtol=1e-3, atol=1e-3 * np.abs(plain[:-1]).max())


def test_only_one_bit_for_each_epoch_is_opened_before_the_end(monkeypatch):
    values = columns(3)
    model = LinearRegression(max_iter=3, tol=1e-12)
    opened = {name: [] for name in NAMES[:3]}

    honest = ReplayGuard.hear

    def hear(guard, peer, message, frame):
        if isinstance(message, OpenedShare):
            opened[guard._party].append(message)
        honest(guard, peer, message, frame)

    monkeypatch.setattr(ReplayGuard, "hear", hear)
    run = simulate(model.fit, made(values, labels_of(LinearRegression, values)), roles=roles(3), seed=3, keep="all")
    # After each epoch the label party; then everybody its coefficients.
    assert [message.share.shape for message in opened["bank"]] == [(1,), (1,), (1,), (3,)]
    assert [message.share.shape for message in opened["shop"]] == [(2,)]
    assert [message.share.shape for message in opened["telco"]] == [(2,), (2,)]
    for name in ("shop", "telco"):
        assert [e.message for e in run.transcripts[name].messages(StopVerdict, sent=False)] == [
            StopVerdict(0, 0),
            StopVerdict(1, 0),
            StopVerdict(2, 0),
        ]


@pytest.mark.parametrize("count", [2**40, -1])
def test_a_layout_with_impossible_numbers_of_columns_is_refused(count):
    def dishonest(party, honest):
        line = party.peers["shop"]
        original = line.send

        def send(message, **more):
            if isinstance(message, SharesLayout):
                message = replace(message, counts=np.array([*message.counts[:2], count]))
            original(message, **more)

        line.send = send
        return honest(party)

    values = columns(3)
    tables = made(values, labels_of(LinearRegression, values))
    with pytest.raises(ProtocolError, match="Expected a layout for 3 parties and 300 rows from bank"):
        simulate(LinearRegression(max_iter=1).fit, tables, roles=roles(3), instead={"bank": dishonest})


def test_columns_of_any_size_and_with_outliers_train_on_shares():
    values = columns(2)
    values["shop"][0, 0] = 400.0
    values["shop"][:, 1] *= 1e6
    labels = labels_of(LinearRegression, columns(2))
    run = simulate(LinearRegression(max_iter=150, standardised=False).fit, made(values, labels), roles=roles(), seed=3)
    ridge = Ridge(alpha=1.0).fit(np.hstack(list(values.values())), labels)
    fitted = np.hstack([*values.values(), np.ones((N, 1))]) @ coefficients(run)
    expected = ridge.predict(np.hstack(list(values.values())))
    assert np.abs(fitted - expected).max() < 0.01 * expected.std()


def test_a_tolerance_of_0_tells_nobody_when_to_end():
    values = columns(2)
    model = LinearRegression(max_iter=3, tol=0)
    run = simulate(model.fit, made(values, labels_of(LinearRegression, values)), roles=roles(), seed=3)
    assert not any(entry.kind == StopVerdict.kind for entry in run.transcripts["shop"].entries)
    assert (run.results["shop"].n_iter_, run.results["shop"].converged_) == (3, None)


def test_an_answer_about_the_end_that_is_none_is_refused(monkeypatch):
    honest = Pair.negative

    def wrong(pair, share, bits):
        found = yield from honest(pair, share, bits)
        return found if pair.leading else found ^ 2

    monkeypatch.setattr(Pair, "negative", wrong)
    values = columns(2)
    with pytest.raises(ProtocolError, match=r"shop to help find out whether training ends, but what it says is no ans"):
        simulate(LinearRegression(max_iter=2).fit, made(values, labels_of(LinearRegression, values)), roles=roles())


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"momentum": 0.0}, marks=pytest.mark.slow),
        {"fit_intercept": False},
        pytest.param({"standardised": False}, marks=pytest.mark.slow),
    ],
)
def test_options_count_on_shares_as_they_do_with_an_arbiter(options):
    values = columns(2)
    values = values if "standardised" not in options else {name: held / 2 for name, held in values.items()}
    labels = labels_of(LinearRegression, columns(2))
    labels = labels if options.get("fit_intercept", True) else labels - labels.mean()
    model = LinearRegression(max_iter=30, momentum=options.pop("momentum", 0.8), tol=0, **options)
    arbiter = Roles(label="bank", features=("shop",), arbiter="judge")
    runs = [simulate(model.fit, made(values, labels), roles=who, seed=3) for who in (roles(), arbiter)]
    shares, judged = (np.concatenate([run.results[name].coef_ for name in ("bank", "shop")]) for run in runs)
    banks = [run.results["bank"] for run in runs]
    assert len(shares) == 4
    assert all(("intercept" in bank.coefficients) == options.get("fit_intercept", True) for bank in banks)
    np.testing.assert_allclose(shares, judged, atol=1e-3 * np.abs(judged).max())
    assert banks[0].intercept_ == pytest.approx(banks[1].intercept_, abs=1e-3 * np.abs(judged).max())


def test_constant_collinear_and_separating_columns_train_on_shares():
    values = columns(2)
    values["shop"] = np.column_stack([values["shop"], np.full(N, 7.0), values["shop"][:, 0]])
    labels = (values["shop"][:, 0] > 0).astype(np.int64)
    run = simulate(LogisticRegression(max_iter=3).fit, made(values, labels), roles=roles(), seed=3)
    shop = run.results["shop"].coefficients
    assert np.isfinite(coefficients(run)).all()
    assert shop["shop 2"] == pytest.approx(0, abs=1e-5)
    assert shop["shop 3"] == pytest.approx(shop["shop 0"], abs=1e-5)


def test_row_weights_count_on_shares():
    values = columns(2)
    labels = labels_of(LinearRegression, values)
    weights = np.random.default_rng(4).uniform(0.2, 3, N)
    model = LinearRegression(max_iter=4, sample_weight="weight")
    run = simulate(model.fit, made(values, labels, weight=weights), roles=roles(), seed=3)
    plain = in_plain(model, values, labels, batches_of(model, run), LINEAR, weights)
    np.testing.assert_allclose(coefficients(run), plain, rtol=1e-3, atol=1e-3 * np.abs(plain[:-1]).max())


def test_three_classes_on_shares_are_the_plain_optimisers_softmax():
    values = columns(2)
    codes = np.digitize(np.hstack(list(values.values())) @ [1.0, -1.0, 0.5, 2.0], [-1.0, 1.0])
    model = LogisticRegression(max_iter=3, tol=0)
    run = simulate(model.fit, made(values, codes), roles=roles(), seed=3)
    plain = in_plain(model, values, codes, batches_of(model, run), LOGISTIC)
    found = np.column_stack([*(run.results[name].coef_ for name in ("bank", "shop")), run.results["bank"].intercept_])
    np.testing.assert_allclose(found, plain.T, atol=1e-3 * np.abs(plain).max())
    np.testing.assert_allclose(found.sum(axis=0), 0, atol=1e-12)


def test_training_on_shares_that_diverges_is_refused():
    values = columns(2)
    labels = labels_of(LinearRegression, values)
    with pytest.raises(Overflow, match=r"'s scores should be at most 1024 .* training diverged. Lower learning_rate"):
        simulate(LinearRegression(learning_rate=20.0, max_iter=12).fit, made(values, labels), roles=roles(), seed=3)


def test_tables_are_as_close_as_the_documentation_says():
    scores = np.linspace(-60, 60, 60_001)
    assert np.abs(LOGISTIC.table(scores) - LOGISTIC.mean(scores)).max() < 0.008
    rates = np.linspace(-12, 4, 4001)[:-1]
    assert np.abs(POISSON.table(rates) / np.exp(rates) - 1).max() < 0.032
    assert POISSON.table(np.array([4.0, 90.0, -13.0])).tolist() == [np.exp(4), np.exp(4), 0.0]


class Received:
    """Everything that computing parties decrypt, and the shares that they compute in turns, by party."""

    def __init__(self, monkeypatch):
        self.seen = {}
        decrypt, compute = ComputingSide._decrypted, PairedLine.take

        def decrypted(side, step, line, block, n_values):
            found = decrypt(side, step, line, block, n_values)
            self.seen.setdefault(side.party.name, []).append(found.copy())
            return found

        def computed(line, step, epoch, turns):
            found = compute(line, step, epoch, turns)
            if found is not None and found.dtype == np.uint64 and turns.__name__ in ("looked_up", "kept"):
                self.seen.setdefault("bank" if line.leading else "shop", []).append(found.copy())
            return found

        monkeypatch.setattr(ComputingSide, "_decrypted", decrypted)
        monkeypatch.setattr(PairedLine, "take", computed)

    def uniform(self, name):
        return np.concatenate(self.seen[name]) / 2.0**64


@pytest.mark.parametrize("model", [LinearRegression, pytest.param(LogisticRegression, marks=pytest.mark.slow)])
def test_all_that_is_decrypted_before_the_end_is_uniform_whatever_the_labels(model, monkeypatch):
    values = columns(3)
    labels = labels_of(model, values)
    seen = {"bank": [], "shop": []}
    for known in (labels, labels.max() - labels):
        spy = Received(monkeypatch)
        simulate(model(max_iter=2, batch_size=150).fit, made(values, known), roles=roles(3), seed=3)
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
    run = simulate(LogisticRegression(max_iter=1, tol=0).fit, made(values, labels), roles=roles(3), seed=3)
    in_the_clear = {
        messages.ColumnSummary,
        messages.SharesLayout,
        messages.PublicKeyBytes,
        OpenedShare,
    }
    for name, transcript in run.transcripts.items():
        kinds = [Message.kinds[entry.kind] for entry in transcript.entries if not entry.sent]
        encrypted = set(kinds) - in_the_clear
        assert encrypted <= {messages.SharedVector, messages.MaskedProduct, messages.PairedWords}
        opened = [place for place, kind in enumerate(kinds) if kind is OpenedShare]
        assert opened == list(range(len(kinds) - len(opened), len(kinds))), f"{name} is told coefficients too early"
        assert len(opened) == (1 if name in ("bank", "shop") else 2)


def test_the_drawing_shows_the_messages_that_cross():
    values = columns(3)
    run = simulate(
        LinearRegression(max_iter=2).fit, made(values, labels_of(LinearRegression, values)), roles=roles(3), seed=3
    )
    crossed = {Message.kinds[e.kind].__name__ for t in run.transcripts.values() for e in t.entries}
    assert set(_drawn(glm_shares.__doc__)) == crossed


KILLED = """
import itertools, json, os, signal, sys
from pathlib import Path
from colonnade import Roles, Table, simulate
from colonnade.models import LinearRegression, LogisticRegression, PoissonRegression
from colonnade.crypto import sampling
from colonnade.wire.channel import Channel

folder, model, options, moments = json.loads(sys.argv[1])
names = ("bank", "shop", "telco")
tables = {name: Table.load(Path(folder, f"{name}.arrow")) for name in names}
roles = Roles(label="bank", features=("shop", "telco"))

def live(moment, number):
    calls, seeds = itertools.count(1), open(Path(folder, f"{moment} seeds"), "a", buffering=1)
    send, replace, token_bytes = Channel.send, os.replace, sampling.secrets.token_bytes

    def die(happens):
        if happens and next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def noted(n):
        drawn = token_bytes(n)
        seeds.write(drawn.hex() + "\\n")
        return drawn

    def sent(channel, message, **details):
        die(message.kind.replace("/", " ") == moment)
        return send(channel, message, **details)

    def replaced(*paths):
        die(moment == "rename")
        return replace(*paths)

    Channel.send, os.replace, sampling.secrets.token_bytes = sent, replaced, noted
    fit, directory = globals()[model](**options).fit, Path(folder, moment)
    simulate(fit, tables, roles=roles, seed=3, directory=directory, checkpoint_every=2)

for moment, number in moments.items():
    process = os.fork()
    if not process:
        live(moment, number)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL, f"{moment} came to its end"
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", [LinearRegression, LogisticRegression, PoissonRegression])
def test_a_run_killed_in_any_phase_resumes_to_the_same_coefficients_with_secrets_of_its_own(
    model, tmp_path, monkeypatch
):
    values = columns(3)
    tables = made(values, labels_of(model, values))
    for name, table in tables.items():
        table.save(tmp_path / f"{name}.arrow")
    linear = model is LinearRegression
    settings = {"max_iter": 4 if linear else 3, "batch_size": 150 if linear else None, "tol": 1e-12}
    options = {"roles": roles(3), "seed": 3, "checkpoint_every": 2}
    straight = simulate(model(**settings).fit, tables, directory=tmp_path / "straight", **options)
    kinds = Counter(e.kind for t in straight.transcripts.values() for e in t.entries if e.sent)
    assert len(kinds) == 8
    # In the middle of all messages of each kind, and between writing a checkpoint and renaming it.
    moments = {kind: -(-count // 2) for kind, count in kinds.items()} | {"rename": 5}
    moments = moments if linear else {kind: moments[kind] for kind in ("glm/paired-words", "rename")}
    told = json.dumps([str(tmp_path), model.__name__, settings, {k.replace("/", " "): n for k, n in moments.items()}])
    subprocess.run([sys.executable, "-c", KILLED, told], check=True)
    scale = np.abs(coefficients(straight)[:-1]).max()
    for moment in moments:
        before = (tmp_path / f"{moment} seeds".replace("/", " ")).read_text().split()
        seeds: list[bytes] = []
        honest = sampling.secrets.token_bytes
        monkeypatch.setattr(
            sampling.secrets, "token_bytes", lambda n, seeds=seeds, honest=honest: seeds.append(honest(n)) or seeds[-1]
        )
        resumed = simulate(model(**settings).fit, tables, directory=tmp_path / moment.replace("/", " "), **options)
        monkeypatch.undo()
        np.testing.assert_allclose(coefficients(resumed), coefficients(straight), rtol=1e-4, atol=1e-4 * scale)
        drawn = before + [seed.hex() for seed in seeds]
        assert len(drawn) == len(set(drawn)), moment
        assert before or moment in ("glm/columns", "glm/layout"), "nothing is drawn only before keys are made"


def test_answers_about_a_data_set_are_counted_over_runs_and_refused_past_the_cap(tmp_path):
    values = columns(2)
    tables = made(values, labels_of(LinearRegression, values))
    options = {"roles": roles(), "seed": 3}
    simulate(LinearRegression(max_iter=1).fit, tables, directory=tmp_path / "first", **options)
    log = tmp_path / "first" / "shop" / "answers"
    (entry,) = (json.loads(line) for line in log.read_text().splitlines())
    assert entry == {
        "profile": SHARES.name,
        "peer": "bank",
        "data": tables["shop"].checked("shop").digest(),
        "values": SHARES.most_values >> 10,
    }
    # Another run on the same rows, whose log says that the bank has been told almost all it may.
    again = tmp_path / "second" / "shop" / "answers"
    again.parent.mkdir(parents=True)
    again.write_text(json.dumps({**entry, "values": SHARES.most_values - 8192}) + "\n")
    with pytest.raises(BudgetSpent, match=r"bank may be answered 1073741824 encrypted values about one data set, but"):
        simulate(LinearRegression(max_iter=1).fit, tables, directory=tmp_path / "second", **options)


def test_predictions_on_opened_coefficients_are_the_joint_models():
    values = columns(3)
    labels = labels_of(LinearRegression, values)
    run = simulate(LinearRegression(max_iter=3).fit, made(values, labels), roles=roles(3), seed=3)
    predicted = simulate({n: s.predict for n, s in run.results.items()}, made(values, labels), roles=roles(3)).results
    expected = np.hstack([*values.values(), np.ones((N, 1))]) @ coefficients(run)
    np.testing.assert_allclose(predicted["bank"].values, expected, rtol=1e-9)
    assert predicted["shop"] is predicted["telco"] is None


def test_columns_too_large_for_a_variance_are_refused_by_party_before_anything_is_sent(monkeypatch):
    monkeypatch.setattr(Channel, "send", lambda line, message, **about: pytest.fail(f"{message.kind} was sent"))
    values = columns(2)
    values["shop"][0, 0] = 1e200
    with pytest.raises(DataError, match=r"shop's column 'shop 0' should hold numbers whose mean and deviation can be"):
        simulate(
            LinearRegression(standardised=False).fit,
            made(values, labels_of(LinearRegression, columns(2))),
            roles=roles(),
        )


def test_an_arbiter_cannot_ask_where_there_is_none():
    values = columns(2)
    tables = made(values, labels_of(LinearRegression, values))
    with pytest.raises(PlanError, match=r"Predictions go to the arbiter, but the roles name none"):
        simulate(LinearRegression(max_iter=1, asker="arbiter").fit, tables, roles=roles())


def test_columns_whose_products_a_flood_would_not_hide_are_refused():
    """Noise of a product grows with its columns, and what a flood does not hide of it tells the columns."""
    side = SimpleNamespace(party=SimpleNamespace(name="shop"))
    with pytest.raises(Overflow, match="too large for their products to be hidden by a flood of 90 bits"):
        ComputingSide._fixed(side, np.full((2**21, 1), 63.0), axis=0)
    assert ComputingSide._fixed(side, np.full((2**10, 1), 63.0), axis=0).shape == (2**10, 1)


@pytest.mark.parametrize(
    ("model", "n_classes", "words"),
    [
        (LinearRegression, None, "off by at most 4.8e-07 of the largest distance between a label and the mean label"),
        (LogisticRegression, 2, "A row's mean is off by at most 0.0079"),
        (LogisticRegression, 3, "off by at most 0.0078 in each class but the last, and by 0.017 in the last"),
        (PoissonRegression, None, "off by at most 3.2 % and 6.7e-06 mean rates; rates above 54.6 mean rates count as"),
    ],
    ids=["linear", "logistic", "three classes", "Poisson"],
)
def test_on_shares_every_party_is_told_how_far_means_are_off(model, n_classes, words, caplog, tmp_path):
    values = columns(3)
    labels = np.arange(N) % n_classes if n_classes else labels_of(model, values)
    with caplog.at_level(logging.INFO, "colonnade"):
        shares = simulate(model(max_iter=1, tol=0).fit, made(values, labels), roles=roles(3), seed=3).results
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    for name, share in shares.items():
        known, said = share.approximation_, share.summary()
        assert f"{name}: {known}" in told
        assert str(known) in said.splitlines()
        assert words in said
        assert "Without an arbiter: RLWE of degree" in said
        assert "With an" not in said
        assert "this party's part of a score by at most" in said
        share.save(tmp_path / name)
        loaded = type(share).load(tmp_path / name)
        assert loaded.approximation_ == known
        assert loaded.summary() == said


def test_a_share_that_an_earlier_version_saved_says_what_the_family_says_of_means():
    values = columns(2)
    shares = simulate(
        PoissonRegression(max_iter=1, tol=0).fit, made(values, labels_of(PoissonRegression, values)), roles=roles()
    ).results
    loaded = PoissonRegression()
    loaded.take_share({name: value for name, value in shares["shop"].share().items() if name != "approximation_"})
    assert loaded.approximation_ is None
    assert loaded.share()["approximation_"] is None
    assert "Without an arbiter: a row's rate is off by at most 3.2 %, and rates above 54 mean rates" in loaded.summary()
