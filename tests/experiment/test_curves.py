import numpy as np
import pytest

from colonnade.curves import BSplines, Curves
from colonnade.data.functional.folder import FunctionalFolder
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.data.functional.rdata import read_rdata
from colonnade.errors import DataError, PlanError
from colonnade.experiment.curves import MEASURES, FunctionalExperiment, FunctionalResults, run_trial
from colonnade.models.functional.estimator import FunctionalBoost
from colonnade.models.functional.metrics import curve_metrics
from colonnade.models.functional.release import Protection
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate

SMALL = FunctionalSetting(n=120, p=4, active=(1, 2), basis=BSplines((0, 100), 6))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return FunctionalFolder.generate(tmp_path_factory.mktemp("curves") / "a", SMALL, replicates=2, workers=(2, 4))


@pytest.fixture(scope="module")
def results(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    return FunctionalExperiment(folder, folds=3).run(out), out


def test_every_replicate_number_of_workers_and_fold_is_measured(results):
    found, _ = results
    assert found.workers == (2, 4)
    assert set(found.arrays) == set(MEASURES)
    for array in found.arrays.values():
        assert array.shape == (2, 2, 3)
        assert np.isfinite(array).all()
    assert found.arrays["Sensitivity"].min() == 1
    assert found.arrays["RIL2"].max() < 0.4
    assert len(found.res_df["fold"]) == 12
    assert list(found.res) == [
        "k",
        "WMAPE_mean",
        "sMAPE_mean",
        "MAPE_mean",
        "NRMSE_mean",
        "RMSE_mean",
        "IL2_mean",
        "RIL2_mean",
        "OverMean_mean",
        "Sensitivity_mean",
        "Specificity_mean",
        "Time_hours_mean",
        "Comm_MB_mean",
    ]
    assert found.res["RIL2_mean"][0] == pytest.approx(found.arrays["RIL2"][0].mean())


def test_results_are_read_back_here_and_in_r(results):
    found, out = results
    again = FunctionalResults.load(out)
    assert again.res_df == found.res_df
    np.testing.assert_array_equal(again.arrays["RIL2"], found.arrays["RIL2"])
    file = out / "vfl_dp_foboost_results.RData"
    np.testing.assert_array_equal(read_rdata(file, "RIL2"), found.arrays["RIL2"])
    assert read_rdata(file, "res")["RIL2_mean"].tolist() == found.res["RIL2_mean"]
    assert list(read_rdata(file, "res_df").columns)[:3] == ["duplicate", "workers", "fold"]


def test_what_was_done_is_not_done_again(folder, tmp_path):
    experiment = FunctionalExperiment(folder, folds=2, workers=(2,), replicates=1)
    first = experiment.run(tmp_path)
    again = experiment.run(tmp_path)
    assert again.res_df["Time_hours"] == first.res_df["Time_hours"]


def test_communication_is_what_crossed(folder):
    trial = FunctionalExperiment(folder, folds=3, workers=(2,)).trials()[0]
    measured = run_trial(trial)["Comm_MB"] * 2**20
    values = 4 * 120 * 6 * 8
    assert values < measured < values + 3000


def test_a_trial_has_the_seed_of_the_published_runner(folder):
    trials = FunctionalExperiment(folder, folds=3).trials()
    assert trials[0].seed == 1_002_001
    assert trials[-1].seed == 2_004_003


def test_all_folds_train_on_the_same_release(folder):
    """Every record is released once: held out or not, its noise is the same, and the budget is charged once."""
    data = folder.load(replicate=1, workers=2)
    roles = Roles(label="label", features=("worker 1", "worker 2"))
    digests = []
    for fold in (1, 2, 3):
        model = FunctionalBoost(protection=Protection(clip=3.0, noise=0.1), hold_out=(fold, 3))
        run = simulate(model.fit, data.tables(2), roles=roles, seed=5)
        digests.append([entry.digest for entry in run.transcripts["label"].entries])
        assert len(run.results["label"].fitted_) == 80
    assert digests[0] == digests[1] == digests[2]


def test_advice_is_given_where_a_figure_is_poor_and_only_there(results, folder, tmp_path):
    good, _ = results
    assert good.advice() == []
    loud = {"protection": {"clip": 1.0, "noise": 20.0}}
    poor = FunctionalExperiment(folder, 3, loud, workers=(2,), replicates=1).run(tmp_path)
    assert any("1 is what predicting the mean gives. Consider less noise" in line for line in poor.advice())
    assert poor.arrays["RIL2"].max() < 1.1


def test_trials_that_fail_are_told_with_the_cause(folder, tmp_path):
    with pytest.raises(DataError, match=r"All 2 trials should end, but 2 failed; the first says: .*"):
        FunctionalExperiment(folder, 2, {"protection": {"noise": 1.0}}, workers=(2,), replicates=1).run(tmp_path)
    with pytest.raises(PlanError, match="needs two folds or more, but folds is 1"):
        FunctionalExperiment(folder, 1).trials()


def test_the_measures_are_their_formulas():
    basis = BSplines((0, 100), 8)
    rng = np.random.default_rng(0)
    predicted, observed = (Curves(rng.normal(size=(5, 8)), basis) for _ in range(2))
    grid = np.arange(101.0)
    found = curve_metrics(predicted, observed, grid)
    p, y = predicted.evaluate(grid), observed.evaluate(grid)
    assert found["RMSE"] == pytest.approx(np.sqrt(((p - y) ** 2).mean()))
    assert found["NRMSE"] == pytest.approx(found["RMSE"] / y.std(ddof=1))
    assert found["WMAPE"] == pytest.approx(100 * np.abs(p - y).sum() / np.abs(y).sum())
    assert found["sMAPE"] == pytest.approx(100 * (2 * np.abs(p - y) / (np.abs(p) + np.abs(y) + 1e-8)).mean())
    assert found["MAPE"] == pytest.approx(100 * (np.abs(p - y) / (np.abs(y) + 1e-8)).mean())
    difference = predicted.coefficients - observed.coefficients
    il2 = np.einsum("nq,qr,nr->n", difference, basis.gram, difference).mean()
    norm = np.einsum("nq,qr,nr->n", observed.coefficients, basis.gram, observed.coefficients).mean()
    assert found["IL2"] == pytest.approx(il2)
    assert found["RIL2"] == pytest.approx(il2 / norm)


def test_predicting_the_mean_has_the_error_of_the_mean():
    basis = BSplines((0, 100), 8)
    observed = Curves(7 + np.random.default_rng(0).normal(size=(5, 8)), basis)
    own, other = (Curves(np.tile(mean, (5, 1)), basis) for mean in (observed.coefficients.mean(axis=0), np.full(8, 7)))
    assert curve_metrics(own, observed)["OverMean"] == pytest.approx(1)
    assert curve_metrics(other, observed, mean=other.take([0]))["OverMean"] == pytest.approx(1)
    assert curve_metrics(other, observed)["OverMean"] > 1 > 20 * curve_metrics(own, observed)["RIL2"]
