"""Columns become a matrix, which is sparse where most of it is 0, and a model does not notice the difference."""

import tracemalloc

import numpy as np
import pytest
from scipy.sparse import issparse
from sklearn.linear_model import Ridge

from colonnade.crypto import rlwe
from colonnade.models.glm import matrix
from colonnade.models.glm import matrix as glm_matrix
from colonnade.models.glm.estimator import LinearRegression
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables import encode
from colonnade.tables.encode import Design
from colonnade.tables.table import Table

N = 600
ALONE = Roles(label="bank", features=("shop",))
JUDGED = Roles(label="bank", features=("shop",), arbiter="judge")


def shop(n_rows=N, n_levels=30, seed=0, **extra):
    random = np.random.default_rng(seed)
    towns = np.array([f"town {i:04d}" for i in random.integers(0, n_levels, n_rows)], object)
    return Table.of({"id": np.arange(n_rows), "town": towns} | extra, owner="shop")


def bank(n_rows=N, seed=1):
    random = np.random.default_rng(seed)
    x = random.standard_normal(n_rows)
    return Table.of(
        {"id": np.arange(n_rows), "x": x, "y": 3 * x + random.standard_normal(n_rows)}, labels="y", owner="bank"
    )


def rare(share=0.05, seed=2):
    random = np.random.default_rng(seed)
    return np.where(random.random(N) < share, random.integers(1, 9, N), 0)


@pytest.fixture
def dense(monkeypatch):
    """Do as if no matrix was ever sparse."""

    def switch():
        monkeypatch.setattr(encode, "SPARSE", 10**9)

    return switch


def learned(table, *, standardised=True, intercept=False):
    return Design.learned(table, standardised=standardised, intercept=intercept)


def test_a_column_with_many_levels_becomes_a_sparse_matrix_with_one_entry_per_row(dense):
    towns = shop().column("town")
    towns[0] = None
    table = Table.of({"id": np.arange(N), "town": towns}, owner="shop")
    found = learned(table)
    sparse = found.matrix(table)
    assert issparse(sparse)
    assert sparse.nnz == N - 1
    assert sparse.shape == (N, len(found.names))
    dense()
    plain = found.matrix(table)
    assert isinstance(plain, np.ndarray)
    assert (sparse.toarray() == plain).all()
    assert [found.names[place] for place in plain[1:].argmax(axis=1)] == [f"town={town}" for town in towns[1:]]


def test_few_levels_and_full_columns_stay_dense():
    table = shop(n_levels=3, income=np.arange(N) + 0.5)
    assert isinstance(learned(table).matrix(table), np.ndarray)


def test_columns_that_are_mostly_zero_keep_their_zeros_and_are_not_centred():
    table = shop(**{f"bought {i}": rare(seed=i) for i in range(9)})
    found = learned(table, intercept=True)
    assert found.mostly_zero == tuple(f"bought {i}" for i in range(9))
    sparse = found.matrix(table)
    assert issparse(sparse)
    first = sparse.toarray()[:, 0]
    assert ((first == 0) == (rare(seed=0) == 0)).all()
    assert first.std() == pytest.approx(1)
    assert not learned(table, standardised=False).matrix(table).toarray()[:, 0].any() ^ rare(seed=0).any()


def test_a_level_never_seen_in_training_has_no_entry():
    table = shop()
    other = Table.of({"id": [1, 2], "town": ["elsewhere", "town 0003"]}, owner="shop")
    assert learned(table).matrix(other).sum(axis=1).tolist() == [0, 1]


def test_a_design_comes_back_from_its_tree():
    table = shop(bought=rare())
    found = learned(table)
    assert (Design.of(found.state()).matrix(table) != found.matrix(table)).nnz == 0


@pytest.mark.parametrize("roles", [JUDGED, ALONE], ids=["arbiter", "shares"])
@pytest.mark.parametrize("weights", [None, "w"])
def test_a_sparse_matrix_trains_to_the_coefficients_of_a_dense_one(roles, weights, dense, monkeypatch):
    # Only dense columns are whitened; the same steps are compared here.
    monkeypatch.setattr(glm_matrix, "MOST_WHITENED", 0)
    tables = {"bank": bank(), "shop": shop()}
    if weights is not None:
        arrow = tables["bank"].to_arrow().append_column("w", [np.random.default_rng(3).uniform(0.5, 2, N)])
        tables["bank"] = Table.of(arrow, labels="y", owner="bank")
    model = LinearRegression(
        max_iter=3, sample_weight=weights, tol=0, rows_per_column=10, fewest_rows=1, gradient_bits=None
    )
    sparse = simulate(model.fit, tables, roles=roles, seed=3)
    predicted = simulate({n: share.predict for n, share in sparse.results.items()}, tables, roles=roles).results["bank"]
    dense()
    plain = simulate(model.fit, tables, roles=roles, seed=3)
    again = simulate({n: share.predict for n, share in plain.results.items()}, tables, roles=roles).results["bank"]
    close = 1e-12 if roles is JUDGED else 1e-4
    for name in tables:
        np.testing.assert_allclose(sparse.results[name].coef_, plain.results[name].coef_, atol=close)
    np.testing.assert_allclose(predicted.values, again.values, atol=10 * close)


def test_paillier_multiplies_sparse_columns_too():
    tables = {"bank": bank(120), "shop": shop(120, n_levels=6, seed=5)}
    model = LinearRegression(max_iter=1, tol=0, rows_per_column=10, fewest_rows=1)
    runs = [simulate(model.clone().set_params(backend=each).fit, tables, roles=JUDGED) for each in ("rlwe", "paillier")]
    assert runs[0].results["shop"].design_.is_sparse
    assert (runs[0].results["shop"].coef_ == runs[1].results["shop"].coef_).all()


@pytest.mark.slow
def test_mostly_zero_columns_have_scikit_learns_coefficients():
    counts = {f"bought {i}": rare(seed=i) for i in range(12)}
    table = Table.of({"id": np.arange(N), **counts}, owner="shop")
    labels = np.array(bank().labels) + sum(counts.values())
    tables = {"bank": bank().with_labels(labels), "shop": table}
    model = LinearRegression(alpha=1.0, max_iter=300, tol=1e-9, rows_per_column=10, fewest_rows=10)
    run = simulate(model.fit, tables, roles=JUDGED, seed=3)
    assert run.results["shop"].design_.is_sparse
    together = np.column_stack([bank().column("x"), *counts.values()])
    ridge = Ridge(alpha=1.0).fit((together - together.mean(axis=0)) / together.std(axis=0), labels)
    np.testing.assert_allclose(run.results["shop"].coef_, ridge.coef_[1:], atol=1e-2)


def test_the_largest_eigenvalue_of_a_sparse_matrix_is_that_of_the_dense_one():
    sparse = learned(shop(bought=rare())).matrix(shop(bought=rare()))
    assert issparse(sparse)
    assert matrix.largest_eigenvalue("shop", sparse) == pytest.approx(
        matrix.largest_eigenvalue("shop", sparse.toarray()), rel=1e-9
    )


@pytest.mark.slow
def test_training_on_many_levels_takes_less_memory_than_one_dense_matrix_would(monkeypatch):
    n_rows, n_levels = 80_000, 800
    # What is kept transformed is bounded by a constant, which is larger than this table.
    monkeypatch.setattr(rlwe, "MOST_CACHED_BYTES", 0)
    monkeypatch.setattr(rlwe, "_CHUNK_BYTES", 2**24)
    tables = {"bank": bank(n_rows), "shop": shop(n_rows, n_levels)}
    tracemalloc.start()
    run = simulate(LinearRegression(max_iter=1).fit, tables, roles=JUDGED, keep="digests")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(run.results["shop"].coef_) == n_levels
    assert peak < 8 * n_rows * n_levels
