import numpy as np
import pytest
from sklearn.metrics import r2_score

from colonnade.attacks.base import Attack, Guess, Needs
from colonnade.auditing import audit
from colonnade.auditing.contents import BestBaseline
from colonnade.auditing.null import honesty_check
from colonnade.auditing.subjects.columns import ColumnTruth
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table

NOTHING = np.zeros(0, np.int64)
X = np.random.default_rng(0).normal(size=(60, 3))


def truth(columns=("a", "b", "b"), granted=NOTHING, **more):
    return ColumnTruth(X, columns, np.asarray(granted), **more)


def guess(noise, rows=range(60)):
    rows = np.array(rows)
    return Guess(rows, values=X[rows] + noise * np.random.default_rng(1).normal(size=(len(rows), 3)))


def test_one_numbers_score_is_scikit_learns_r2():
    said = guess(0.5)
    assert truth().rebuilt(said)["a"] == pytest.approx(r2_score(X[:, 0], said.values[:, 0]), abs=1e-4)


def test_several_numbers_of_one_column_are_scored_together():
    said = guess(0.5)
    expected = r2_score(X[:, 1:], said.values[:, 1:], multioutput="variance_weighted")
    assert truth().rebuilt(said)["b"] == pytest.approx(expected, abs=1e-4)


def test_the_worst_column_is_the_one_that_exceeds_imputation_most():
    said = Guess(np.arange(60), values=X * [0.9, 0.5, 0.5])
    assert truth().worst(said)[0] == "a"
    known = {"a": BestBaseline(0.98, "ridge"), "b": BestBaseline(0.1, "ridge")}
    assert truth(imputed=known).worst(said)[0] == "b"


def test_missing_values_and_granted_rows_are_not_scored():
    values = X.copy()
    values[5, 0] = np.nan
    broken = ColumnTruth(values, ("a", "b", "b"), np.array([7]))
    kept = broken.scored_part(guess(0.1))
    assert 7 not in kept.rows
    assert broken.rebuilt(kept)["a"] > 0.9


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (Guess(np.arange(3), values=np.zeros((3, 2))), "it should guess 3 numbers per row, but 3 of 3 values are"),
        (Guess(np.arange(3), scores=np.zeros(3)), "it should guess 3 numbers per row, but 3 of 3 values are"),
        (Guess(np.arange(2), values=np.array([[0, 0, np.nan], [0, 0, 0]])), "finite values, but 1 of 2 values are"),
        (Guess(np.array([0]), values=np.zeros((1, 3))), "no column varies among the rows it could be scored on"),
    ],
)
def test_what_cannot_be_scored_has_a_reason(said, reason):
    assert reason in truth().scored_part(said)


def test_deviations_have_mean_zero_and_variance_one_over_random_orders():
    random, said = np.random.default_rng(2), guess(1.0)
    found = [truth().permuted(random).deviation(said) for _ in range(2000)]
    assert np.mean(found) == pytest.approx(0, abs=0.1)
    assert np.var(found) == pytest.approx(1, abs=0.15)


class Peeking(Attack):
    """Says what it finds among the variables of its callers."""

    needs = Needs(known_records=5)
    about = Secret.FEATURES

    def guess(self, view):
        import inspect

        variables = [value for frame in inspect.stack() for value in frame.frame.f_locals.values()]
        found = next(value for value in variables if isinstance(value, ColumnTruth))
        return Guess(np.arange(len(found.values)), values=found.values)


class Means(Attack):
    """Says the mean of what it was told."""

    needs = Needs(known_records=5, prior=7)
    about = Secret.FEATURES

    def guess(self, view):
        told = np.concatenate([view.grant.records, view.grant.prior[view.grant.owner]])
        assert told.shape == (12, len(view.grant.columns))
        return Guess(np.arange(60), values=np.tile(told.mean(axis=0), (60, 1)))


@pytest.fixture(scope="module")
def run():
    tables = {
        "bank": Table.of({"y": np.arange(60) % 2}, ids=None, labels="y", owner="bank"),
        "shop": Table.of({"a": X[:, 0], "b": X[:, 1]}, ids=None, owner="shop"),
    }
    return simulate(lambda party: None, tables, roles=Roles(label="bank", features=("shop",)))


def test_an_attack_that_peeks_is_found_out(run):
    assert honesty_check(run, Peeking(), "bank") < 1e-6
    assert honesty_check(run, Means(), "bank") >= 0.001


def test_records_that_were_told_with_or_without_their_rows_are_not_scored(run):
    report = audit(run, [Means()], nulls=1)
    (finding,) = report.attacks
    assert (finding.rows, finding.coverage, finding.verdict) == (48, 1.0, "no leak found")
    assert report.untested == ("Means: bank holds no columns that vary",)
