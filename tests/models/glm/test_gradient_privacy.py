"""Noise on opened gradients: the bound on what a label moves, the width of the noise, the charge, the refusals."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.sparse import csr_array

from colonnade import audit
from colonnade.crypto.additive import SUM_BITS, Widths
from colonnade.errors import BudgetSpent, PlanError, ProtocolError
from colonnade.models.glm import arbiter as glm_arbiter
from colonnade.models.glm.estimator import LinearRegression, LogisticRegression, PoissonRegression
from colonnade.models.glm.gradient_privacy import GRADIENT_NOISE, GradientPrivacy, with_noise
from colonnade.privacy.history import History, Records
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.mechanisms import DiscreteGaussianMechanism
from colonnade.privacy.randomness import Randomness
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table

JUDGED = Roles(label="bank", features=("shop",), arbiter="judge")
QUIET = {"tol": 0.0, "alarm": None}


def tables(n_rows=600, seed=0, labels=None):
    random = np.random.default_rng(seed)
    x, z = random.standard_normal((2, n_rows))
    y = (x + z + random.standard_normal(n_rows) > 0).astype(np.int64) if labels is None else labels
    bank = Table.of({"id": np.arange(n_rows), "x": x, "y": y}, labels="y", owner="bank")
    return {"bank": bank, "shop": Table.of({"id": np.arange(n_rows), "z": z, "w": 9 * z**3}, owner="shop")}


def noisy(max_iter=2, **options):
    noise = options.pop("gradient_privacy", GradientPrivacy(epsilon=3.0))
    return LogisticRegression(max_iter=max_iter, gradient_privacy=noise, **QUIET, **options)


def trained(model, held, **options):
    return simulate(model.fit, held, roles=JUDGED, seed=1, **options)


def sums_of_first_step(held, monkeypatch):
    """What the arbiter would open in the first step without noise, by party, and the label party's mechanism."""
    found, honest = {}, glm_arbiter.EncryptedSide.opened

    def spy(side, step, data, n_values, chosen):
        if step == 0:
            z = -np.ldexp(side.loss.labels, side.fraction) if side.party.holds_labels else None
            (integers,) = side.columns.of_batch(0, lambda part: part.integers)
            found[side.party.name] = integers, z
            found["mechanism"] = found.get("mechanism") or getattr(side, "mechanism", None)
        return honest(side, step, data, n_values, chosen)

    with monkeypatch.context() as patch:
        patch.setattr(glm_arbiter.EncryptedSide, "opened", spy)
        trained(noisy(max_iter=1), held)
    residuals = found["bank"][1]
    joint = np.hstack([residuals @ np.asarray(found[name][0], float) for name in ("bank", "shop")])
    return joint, found["mechanism"]


def test_one_label_moves_all_opened_sums_by_no_more_than_the_stated_integer_and_by_nearly_as_much(monkeypatch):
    held = tables()
    joint, mechanism = sums_of_first_step(held, monkeypatch)
    moved = []
    # Rows of the shop are long where z is, and are clipped there.
    longest = np.argsort(-np.abs(np.asarray(held["shop"].column("w"))))[:3]
    for row in (*longest, 5, 77):
        labels = np.asarray(held["bank"].labels).copy()
        labels[row] = 1 - labels[row]
        other, same = sums_of_first_step(tables(labels=labels), monkeypatch)
        assert same == mechanism
        moved.append(float(np.linalg.norm(other - joint)))
    assert isinstance(mechanism.sensitivity, int)
    assert max(moved) <= mechanism.sensitivity
    # The shop's part is at its bound, the bank's is not.
    assert max(moved) > 0.6 * mechanism.sensitivity


def test_of_three_classes_one_label_moves_the_sums_of_two_models_and_the_noise_is_made_for_both(monkeypatch):
    labels = np.arange(600) % 3
    held = tables(labels=labels)
    joint, mechanism = sums_of_first_step(held, monkeypatch)
    longest = np.argmax(np.abs(np.asarray(held["shop"].column("w"))) + np.abs(np.asarray(held["bank"].column("x"))))
    labels[longest] = (labels[longest] + 1) % 3
    other, same = sums_of_first_step(tables(labels=labels), monkeypatch)
    moved = float(np.linalg.norm(other - joint))
    assert same == mechanism
    assert mechanism.sensitivity / np.sqrt(2) < moved <= mechanism.sensitivity


@pytest.mark.parametrize("kind", [np.asarray, csr_array])
@pytest.mark.parametrize("intercept", [False, True])
def test_rows_are_clipped_and_an_intercept_stays(kind, intercept):
    random = np.random.default_rng(0)
    matrix = random.standard_normal((50, 6)) * random.choice([0.1, 5.0], (50, 1))
    matrix[:, -1] = 1.0 if intercept else matrix[:, -1]
    found = GradientPrivacy(clip=2.0).clipped(kind(matrix), intercept=intercept)
    dense = found if isinstance(found, np.ndarray) else found.toarray()
    own, before = (each[:, :-1] if intercept else each for each in (dense, matrix))
    lengths, earlier = np.linalg.norm(own, axis=1), np.linalg.norm(before, axis=1)
    assert (lengths <= 2.0).all()
    np.testing.assert_allclose(lengths, np.minimum(earlier, 2.0), rtol=1e-9)
    assert not intercept or (dense[:, -1] == 1.0).all()


def test_what_a_training_costs_is_what_dp_accounting_says_of_its_noise():
    noise, epochs = GradientPrivacy(epsilon=2.0, delta=1e-6), 30
    mechanism = noise.mechanism(scale=12, fraction=17, n_parties=3, n_outputs=1, epochs=epochs)
    ledger = Ledger()
    ledger.spend(mechanism.event(Secret.LABELS, "label", by=GRADIENT_NOISE), epochs)
    spent = ledger.epsilon(1e-6, protects=Secret.LABELS)
    assert spent == pytest.approx(2.0, rel=1e-9)
    assert spent <= 2.0 * (1 + 1e-9)
    multiplier = float(mechanism.sigma) / mechanism.sensitivity
    one = pld.from_gaussian_mechanism(multiplier, value_discretization_interval=1e-4)
    assert spent == pytest.approx(one.self_compose(epochs).get_epsilon_for_delta(1e-6), rel=2e-3)


def test_the_label_party_is_charged_once_per_epoch_whatever_the_batches_and_the_audit_reads_its_epsilon():
    for size, epochs in ((None, 3), (200, 2)):
        run = trained(noisy(max_iter=epochs, batch_size=size), tables())
        (event,) = run.ledgers["bank"].events.items()
        assert (event[0].mechanism, event[0].protects, event[0].unit) == ("discrete-gaussian", Secret.LABELS, "label")
        assert event[1] == epochs
        assert not run.ledgers["shop"].events
        assert not run.ledgers["judge"].events
    spent = audit(run, []).budget["labels"]
    assert spent.epsilon == pytest.approx(3.0, rel=1e-6)


def test_a_step_that_comes_again_after_a_crash_is_charged_again(monkeypatch):
    run = trained(noisy(max_iter=1), tables())
    (before,) = run.ledgers["bank"].events.values()
    honest = glm_arbiter.EncryptedLabelSide.train

    def from_the_middle(side, step):
        side.has_charged = side.has_charged and step != 1
        return honest(side, step)

    monkeypatch.setattr(glm_arbiter.EncryptedLabelSide, "train", from_the_middle)
    again = trained(noisy(max_iter=1, batch_size=200), tables())
    assert before == 1
    assert sum(again.ledgers["bank"].events.values()) == 2


def test_a_budget_over_all_runs_refuses_the_run_that_exceeds_it(tmp_path):
    held, spent = tables(), []
    for number in range(3):
        mechanism = GradientPrivacy(epsilon=2.0).mechanism(scale=12, fraction=17, n_parties=2, n_outputs=1, epochs=1)
        history = History(tmp_path / "privacy-of-bank", Records.of(held["bank"]), f"run {number}")
        ledger = Ledger({Secret.LABELS: (3.0, 1e-5)}, history=history)
        if number < 2:
            ledger.spend(mechanism.event(Secret.LABELS, "label", by=GRADIENT_NOISE))
            spent.append(ledger.spent_over_runs(Secret.LABELS, 1e-5).epsilon)
        else:
            with pytest.raises(BudgetSpent, match=r"on labels over all runs on these records"):
                ledger.spend(mechanism.event(Secret.LABELS, "label", by=GRADIENT_NOISE))
    assert spent[0] == pytest.approx(2.0)
    assert 2.0 < spent[1] <= 3.0


@pytest.mark.slow
def test_gradients_have_the_noise_that_the_label_party_asked_for():
    held, model = tables(), noisy(max_iter=1, gradient_privacy=GradientPrivacy(epsilon=0.5))
    found = [trained(model, held) for _ in range(30)]
    gradients = np.stack(
        [np.concatenate([run.results[name].gradients_[0] for name in ("bank", "shop")]) for run in found]
    )
    (event,) = found[0].ledgers["bank"].events
    widths = Widths.of(600)
    scale, fraction = model._gradient_privacy.scale(widths.column_bits), widths.residual_bits - 1 - 5
    deviation = np.ldexp(dict(event.parameters)["sigma"], -(scale + fraction))
    # The variance of 4 sums in 30 runs is known to 13 %.
    assert gradients.var(axis=0, ddof=1).mean() / deviation**2 == pytest.approx(1.0, abs=0.6)


def test_no_two_openings_share_their_noise():
    sums = np.arange(40, dtype=np.uint64)
    random, noise = Randomness.seeded(0), DiscreteGaussianMechanism(2**28, Fraction(2**30))
    one, other = with_noise(sums, noise, random, 3, "shop"), with_noise(sums + np.uint64(1), noise, random, 3, "shop")
    assert (one < 2**SUM_BITS).all()
    assert (one != other).all()
    assert ((other - one) % np.uint64(2**SUM_BITS) != 1).all()
    assert (with_noise(sums, noise, random, 3, "telco") != one).all()


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (LinearRegression, QUIET, "labels that are classes, because other labels have no bound"),
        (PoissonRegression, QUIET, "labels that are classes, because other labels have no bound"),
        (LogisticRegression, QUIET | {"sample_weight": "x"}, "sample_weight=None, because weights have no bound"),
        (LogisticRegression, {"alarm": None}, "tol=0, because the epoch in which training ends"),
        (LogisticRegression, {"tol": 0.0}, "alarm=None, because an alarm depends on all labels"),
    ],
)
def test_noise_is_refused_where_what_a_label_moves_has_no_bound(model, options, words):
    with pytest.raises(PlanError, match=f"gradient_privacy needs {words}"):
        trained(model(max_iter=1, gradient_privacy={"epsilon": 1.0}, **options), tables())


def test_noise_is_refused_on_shares_and_where_it_does_not_fit():
    with pytest.raises(PlanError, match="gradient_privacy needs an arbiter, which draws the noise"):
        simulate(noisy().fit, tables(), roles=Roles(label="bank", features=("shop",)))
    with pytest.raises(PlanError, match=r"gradient_privacy should fit beside sums of 53 bits, but epsilon 0\.0001"):
        trained(noisy(max_iter=100, gradient_privacy={"epsilon": 1e-4}), tables())
    with pytest.raises(PlanError, match="GradientPrivacy's clip should be a number, at least 1"):
        GradientPrivacy(clip=0.5)


def test_the_arbiter_refuses_a_label_party_that_asks_for_no_noise_against_the_plan(monkeypatch):
    honest = glm_arbiter.EncryptedLabelSide._admitted
    monkeypatch.setattr(glm_arbiter.EncryptedLabelSide, "_admitted", lambda *about: replace(honest(*about), sigma=0.0))
    with pytest.raises(ProtocolError, match="got numbers that do not fit together"):
        trained(noisy(), tables())


@pytest.mark.slow
def test_a_noisy_fit_on_many_rows_predicts_as_well_as_one_without_noise():
    held = tables(10_000)
    scores = []
    for model in (LogisticRegression(max_iter=12, **QUIET), noisy(max_iter=12, gradient_privacy={"epsilon": 2.0})):
        run = trained(model, held, keep="digests")
        found = simulate({name: share.score for name, share in run.results.items()}, held, roles=JUDGED)
        scores.append(found.results["bank"])
    assert scores[1] > scores[0] - 0.02
