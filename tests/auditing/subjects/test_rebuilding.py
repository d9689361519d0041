import numpy as np
import pytest

from colonnade import audit
from colonnade.attacks import ActiveGenerative, ActiveInversion, InformedRidge, PassiveRidge
from colonnade.auditing import audit_own_side
from colonnade.auditing.contents import Evidence, Finding, Granted, Reconstruction, Score
from colonnade.auditing.render.words import questions
from colonnade.auditing.report import PrivacyReport
from colonnade.auditing.subjects.rebuilding import (
    Pixels,
    named_categories,
    near_share,
    random_error,
    singled_out,
)
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.tables.encode import centred
from colonnade.tables.table import Table

X = np.random.default_rng(0).normal(size=(200, 3))
ROLES = Roles(label="bank", features=("shop",))


def rebuilt(**changes):
    known = {"relative_mse": 0.3, "controls": {"mean": 1.0}, "worst_column": "a", "near": 0.5, "singled_out": 0.5}
    return Reconstruction(**{**known, "singled_out_at_best": 1.0, "median_rank": 0.0, "rows": 200, **changes})


def test_exact_values_single_everybody_out_and_others_only_by_chance():
    assert singled_out(X, X) == (1.0, 1.0, 0.0)
    share, best, rank = singled_out(np.random.default_rng(1).normal(size=X.shape), X)
    assert (share < 0.05, best, 60 < rank < 140) == (True, 1.0, True)


def test_equal_records_share_the_place():
    binary = (np.arange(100) % 2)[:, None].astype(float)
    share, best, rank = singled_out(binary, binary)
    assert (share, best) == (pytest.approx(0.02), pytest.approx(0.02))
    assert rank == pytest.approx(24.5)


def test_numbers_that_the_guess_says_nothing_about_do_not_count():
    said = X.copy()
    said[:, 2] = 0.0
    assert singled_out(said, X)[0] == 1.0


def test_the_error_of_a_random_guess_is_that_of_many_random_guesses():
    low, high = X.min(axis=0), X.max(axis=0)
    drawn = np.random.default_rng(1).uniform(low, high, size=(4000, *X.shape))
    np.testing.assert_allclose(random_error(X).mean(axis=0), ((drawn - X) ** 2).mean(axis=(0, 1)), rtol=0.01)


def test_numbers_are_near_within_a_tenth_of_their_range_and_missing_ones_do_not_count():
    truth = np.array([[0.0], [10.0], [5.0], [np.nan]])
    assert near_share(np.array([[0.9], [8.0], [5.5], [0.0]]), truth) == pytest.approx(2 / 3)


def test_levels_are_named_by_the_likeliest_and_compared_with_the_commonest():
    table = Table.of({"job": ["a", "a", "a", "b", "c"], "age": [1.0, 2, 3, 4, 5]}, ids=None)
    values, columns = centred(table)
    assert named_categories(values, values, columns) == {"job": (1.0, 0.6)}
    right, commonest = named_categories(np.zeros_like(values), values, columns)["job"]
    assert (right, commonest) == (0.6, 0.6)


def test_images_are_compared_in_their_own_units():
    columns = {f"pixel_{i:02}_{j:02}": X[:, i + j] for i in range(2) for j in range(2)}
    table = Table.of(columns, ids=None)
    values, names = centred(table)
    pixels = Pixels.of(table, names)
    psnr, ssim = pixels.quality(values, values)
    assert psnr > 60
    assert ssim == pytest.approx(1.0)
    noisy = np.stack(list(columns.values()), axis=1) + 0.1 * pixels.peak
    psnr, ssim = pixels.quality((noisy - pixels.means) / pixels.deviations, values)
    assert psnr == pytest.approx(20.0)
    assert ssim < 1
    assert Pixels.of(Table.of({"a": X[:, 0]}, ids=None), ("a",)) is None


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "leaks"),
        ({"singled_out": 0.025}, "leaks"),
        ({"singled_out": 0.024}, "leaks, nobody singled out"),
        ({"singled_out": 0.01, "singled_out_at_best": 0.02}, "leaks"),
    ],
)
def test_columns_leak_only_where_rows_are_singled_out(changes, verdict):
    evidence = Evidence(Score(0.9, 0.85, 0.94), 0.0, (0.1,), None)
    granted = Granted(("split/embedding",), own_features=False, own_model=False, known_labels=0, known_records=50)
    about = ("PassiveRidge", "Words.", "bank", "shop", Secret.FEATURES, False, granted)
    assert Finding(*about, "R²", 100, 1.0, evidence, None, rebuilt(**changes)).verdict == verdict


def test_controls_that_are_not_beaten_are_named():
    controls = {"random guess": 5.0, "mean": 1.0, "imputation": 0.3, "honest ridge": 0.2}
    assert "That is no better than imputation and honest ridge." in str(rebuilt(controls=controls))
    assert "no better" not in str(rebuilt(controls={"mean": 1.0, "imputation": 0.5}))
    tied = rebuilt(relative_mse=1.0, controls={"mean": 1.0, "honest ridge": 1.0})
    assert tied.failed == ("mean",)


@pytest.fixture(scope="module")
def report():
    random = np.random.default_rng(0)
    shop, own = random.normal(size=(200, 2)), random.normal(size=200)
    job = random.choice(["nurse", "cook", "judge"], size=200)
    tables = {
        "bank": Table.of({"own": own + shop[:, 0], "y": (own + shop[:, 1] > 0).astype(int)}, ids=None, labels="y"),
        "shop": Table.of({"a": shop[:, 0], "b": shop[:, 1], "job": job}, ids=None),
    }
    model = SplitClassifier(epochs=2, batch_size=64, embedding=8, n_iter_no_change=None)
    attacks = [PassiveRidge(), InformedRidge(), ActiveInversion(), ActiveGenerative()]
    return audit(simulate(model.fit, tables, roles=ROLES, seed=1), attacks, nulls=1)


def test_every_attack_on_columns_stands_beside_all_controls_that_can_be_had(report):
    found = {finding.attack: finding.rebuilt.controls for finding in report.attacks}
    everything = ["random guess", "mean", "imputation", "honest ridge"]
    assert [list(controls) for controls in found.values()] == [everything] * 3 + [everything[:3]]
    for controls in found.values():
        assert controls["random guess"] > 1.5
        assert controls["mean"] == 1.0
        assert controls["imputation"] < 0.95
    # The honest regression is one of the attacks.
    informed = next(finding for finding in report.attacks if finding.attack == "InformedRidge")
    assert informed.rebuilt.relative_mse == pytest.approx(informed.rebuilt.controls["honest ridge"])
    assert informed.rebuilt.categories.keys() == {"job"}


def test_an_active_attack_must_beat_an_honest_one(report):
    active = next(finding for finding in report.attacks if finding.attack == "ActiveInversion")
    assert active.is_active
    assert active.plain.alone.value >= 0
    assert "Relative MSE" in report.render(width=200)


def test_a_generator_that_does_not_beat_imputation_is_said_to(report):
    generated = next(finding for finding in report.attacks if finding.attack == "ActiveGenerative")
    assert "imputation" in generated.rebuilt.failed
    assert "That is no better than" in str(generated.rebuilt)
    assert not generated.verdict.startswith("leaks")


def test_what_was_rebuilt_is_written_and_read_back(report):
    assert PrivacyReport.from_json(report.to_json()) == report
    (question,) = (q for q in questions(report) if q.about is Secret.FEATURES)
    assert question.title == "What could bank learn about shop's features?"


def test_pictures_show_pixels_at_their_places_true_beside_rebuilt():
    table = Table.of({"pixel_1_2": [0.0, 10.0, 5.0], "pixel_0_1": [10.0, 0.0, 0.0]}, ids=None)
    values, names = centred(table)
    first, *others = Pixels.of(table, names).pictures(np.zeros_like(values), values)
    assert first.true == ("ff..", "..00")
    assert first.rebuilt == ("55..", "..80")
    assert [picture.true for picture in others] == [("00..", "..ff"), ("00..", "..80")]


def test_only_a_simulated_audit_shows_records():
    random = np.random.default_rng(0)
    pixels = {f"pixel_{place}_0": random.normal(size=80) for place in range(3)}
    tables = {"bank": Table.of({"y": [0, 1] * 40}, ids=None, labels="y"), "shop": Table.of(pixels, ids=None)}
    run = simulate(SplitClassifier(epochs=1, n_iter_no_change=None).fit, tables, roles=ROLES)
    (finding,) = audit(run, [PassiveRidge()], nulls=1).attacks
    assert len(finding.rebuilt.pictures) == 6
    report = PrivacyReport.from_json(audit(run, [PassiveRidge()], nulls=1).to_json())
    assert report.attacks[0] == finding
    own = audit_own_side(
        run.transcripts["shop"], [PassiveRidge()], plan=run.plan, table=tables["shop"], ledger=run.ledgers["shop"]
    )
    assert own.attacks[0].rebuilt.psnr is not None
    assert own.attacks[0].rebuilt.pictures == ()
