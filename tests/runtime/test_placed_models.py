"""Trees and predictions on a table that is placed on workers are those on one in memory, whoever is lost."""

import gc
import os
import random
import signal
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.scale import written
from colonnade.crypto.hinted import PublicMatrix
from colonnade.crypto.placed_bins import adding_up
from colonnade.models import LogisticRegression, OneShotClassifier, SecureBoostClassifier, SplitClassifier
from colonnade.models.trees.bins import Bins
from colonnade.models.trees.rows import BinnedRows
from colonnade.models.trees.splits import Split
from colonnade.roles import Roles
from colonnade.runtime.placed import placed_table
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table
from tests.runtime.tasks import BANK_AND_SHOP as ROLES
from tests.runtime.tasks import own_pid

# Partitions of encrypted sums end where a public polynomial of 8,192 rows ends.
N, PARTITION_ROWS = 20_000, 3000


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The bank's table, and the shop's in Parquet parts: numbers with ties and gaps, and text."""
    folder, drawn = tmp_path_factory.mktemp("models") / "shop", np.random.default_rng(0)
    folder.mkdir()
    x = drawn.standard_normal((N, 2))
    shop = {
        "id": np.arange(N),
        "x0": pa.array(x[:, 0], mask=drawn.random(N) < 0.1),
        "x1": np.round(x[:, 1], 1),
        "job": drawn.choice(["cook", "nurse", "clerk"], N),
    }
    for number, begin in enumerate(range(0, N, 7000)):
        pq.write_table(pa.table(shop).slice(begin, 7000), folder / f"{number}.parquet", row_group_size=2500)
    labels = (x.sum(axis=1) + drawn.standard_normal(N) > 0).astype(int)
    return Table.of({"id": np.arange(N), "age": drawn.random(N), "y": labels}, labels="y", owner="bank"), folder


def near_and_far(tables, crew):
    """The shop's table in memory, and the same on workers."""
    near = Table.read(tables[1], ids="id", owner="shop")
    return near, placed_table(tables[1], crew, ids="id", owner="shop")


def grown(bank, shop, **settings):
    """What each party has learned, and the scores of all rows."""
    model = SecureBoostClassifier(**{"n_estimators": 1, "max_depth": 2, "max_bin": 4, "leak_budget": None, **settings})
    tables = {"bank": bank, "shop": shop}
    trained = simulate(model.fit, tables, roles=ROLES, seed=1).results
    predicted = simulate({name: each.predict for name, each in trained.items()}, tables, roles=ROLES, seed=2)
    shares = [trained[name].share() for name in tables]
    return repr(shares), predicted.results["bank"].probabilities.tobytes()


def test_trees_and_their_scores_are_the_same(tables, crew):
    near, far = near_and_far(tables, crew)
    grown_near, grown_far = grown(tables[0], near), grown(tables[0], far)
    assert grown_near == grown_far
    assert "splits_" in grown_near[0]


def test_bins_sums_and_sides_are_the_same_for_any_rows(tables, crew):
    near, far = near_and_far(tables, crew)
    rows = np.sort(np.random.default_rng(1).permutation(N)[:17_000])
    bins = [Bins.learned(table, rows, max_bin=8) for table in (near, far)]
    assert repr(bins[0].state()) == repr(bins[1].state())
    assert max(column.n_bins for column in bins[0].columns) == 8
    here, there = (BinnedRows.of(table, bins[0]) for table in (near, far))
    assert len(here.parts) == 1
    assert len(there.parts) == 7
    np.testing.assert_array_equal(here.collected().codes, there.collected().codes)
    splits = [Split(0, 3, None, True), Split(2, -1, (0, 2), False)]
    for begin, end in ((0, None), (2500, 9100), (3000, 3000), (19_999, N)):
        found = there.left(splits, begin, end)
        assert found.shape == (2, (N if end is None else end) - begin)
        np.testing.assert_array_equal(found, here.left(splits, begin, end))
    assert here.vary(rows)
    assert there.vary(rows)
    assert not there.vary(rows[:1])
    assert there.histogram(rows).parts.bounds == (0, 8192, 16_384, 17_000)


def test_a_placed_holder_gives_the_hints_and_sums_of_all_rows(tables, crew):
    near, far = near_and_far(tables, crew)
    rows, drawn = np.arange(1, N), np.random.default_rng(2)
    bins, public = Bins.learned(near, rows, max_bin=3), PublicMatrix(bytes(32), N - 1)
    here, there = (BinnedRows.of(table, bins).histogram(rows) for table in (near, far))
    ring, limits = public.ring, public.ring.limits
    hints = [ring.canonical(each.hints(ring, public.blocks)) for each in (here, there)]
    np.testing.assert_array_equal(*hints)
    # The highest bits of a word lie below those of any prime.
    words = drawn.integers(0, 2**48, (3, 3, N - 1)).astype(np.uint64)
    tails = drawn.integers(0, 2**8, (3, N - 1)).astype(np.uint8)
    some = np.array([True, False, True])
    for one, other in ((here, there), (here.narrowed(some), there.narrowed(some))):
        assert one.n_sums == other.n_sums
        np.testing.assert_array_equal(one.sums_of(np.ones(len(one.widths), bool)).sum(), one.n_sums)
        found = [adding_up(each, "cpu")(each, words, tails, limits) for each in (one, other)]
        np.testing.assert_array_equal(*found)
        assert found[0].any()


def predicted(model, tables, shares=None):
    """What a model sends in a prediction, and what it predicts; trained first unless shares are given."""
    if shares is None:
        shares = simulate(model.fit, tables, roles=ROLES, seed=3).results
    run = simulate({name: each.predict for name, each in shares.items()}, tables, roles=ROLES, seed=4)
    sent = [(entry.kind, entry.digest) for entry in run.transcripts["shop"].entries if entry.sent]
    return shares, sent, run.results["bank"].values.tobytes()


SPLIT = SplitClassifier(epochs=1, batch_size=700, embedding=4, n_iter_no_change=None)
PARTIAL = SplitClassifier(epochs=1, batch_size=700, embedding=4, n_iter_no_change=None, overlap="partial")
ONE_SHOT = OneShotClassifier(leak_budget={"shop": 1.0}, components=2, epochs=1, batch_size=4096)


@pytest.mark.parametrize("model", [SPLIT, PARTIAL, ONE_SHOT], ids=["split", "partial", "one-shot"])
def test_embeddings_of_a_prediction_are_the_same(model, tables, crew):
    near, far = near_and_far(tables, crew)
    shares, *expected = predicted(model, {"bank": tables[0], "shop": near})
    _, *found = predicted(model, {"bank": tables[0], "shop": far}, shares)
    assert found == expected
    assert found[0] != []


def test_scores_of_a_regression_are_the_same(tables, crew):
    near, far = near_and_far(tables, crew)
    model = LogisticRegression(max_iter=1, tol=0, batch_size=None, partial_scores="plain")
    roles = Roles(label="bank", features=("shop",), arbiter="keeper")
    shares = simulate(model.fit, {"bank": tables[0], "shop": near}, roles=roles, seed=3).results
    scores = [shares["shop"]._own_scores(shares["shop"].design_, table) for table in (near, far)]
    assert scores[0].tobytes() == scores[1].tobytes()
    whole = shares["shop"].design_.matrix(near) @ shares["shop"].coef_
    np.testing.assert_allclose(scores[1], whole, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"subsample": 0.5, "n_estimators": 2}, {"colsample_bytree": 0.5, "max_bin": 8}])
def test_trees_of_some_rows_and_columns_are_the_same_whoever_of_the_workers_is_killed(tables, unlucky, settings):
    near, far = near_and_far(tables, unlucky)
    unlucky.kills = sorted(random.sample(range(1, 40), 2))
    assert grown(tables[0], near, **settings) == grown(tables[0], far, **settings), unlucky.kills
    assert unlucky.n_calls > 40


@pytest.mark.slow
def test_workers_of_a_cluster_grow_the_same_trees_although_one_is_killed(tables, cluster):
    near, far = near_and_far(tables, cluster)
    pids = set(far.map(own_pid))
    assert len(pids) == 2
    os.kill(pids.pop(), signal.SIGKILL)
    assert grown(tables[0], far) == grown(tables[0], near)
    shares, *expected = predicted(SPLIT, {"bank": tables[0], "shop": near})
    _, *found = predicted(SPLIT, {"bank": tables[0], "shop": far}, shares)
    assert found == expected


def taken_here(path, n, crew, act=lambda rows: None):
    """Bytes of this process: the most while bins are learned, the most while sides are found, and what is kept.

    How many hints are under way at a time is chance, so the most is not asked for while they are.
    """
    tracemalloc.start()
    try:
        table = placed_table(path, crew, ids="id", exclude=["y"], owner="shop")
        bins = Bins.learned(table, np.arange(n), max_bin=2)
        learning = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        rows = BinnedRows.of(table, bins)
        held = rows.histogram(np.arange(n))
        rows.left([Split(0, 0, None, False)])
        act(rows)
        finding = tracemalloc.get_traced_memory()[1]
        public = PublicMatrix(bytes(32), n)
        held.hints(public.ring, public.blocks)
        del public
        gc.collect()
        return learning, finding, tracemalloc.get_traced_memory()[0] + table._arrow.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_what_further_rows_take_of_the_driver_for_trees_does_not_depend_on_columns(tmp_path, crew):
    further = []
    # What is imported and made once is there before.
    taken_here(written(tmp_path / "before", N, 4), N, crew)
    for columns in (4, 24):
        paths = {n: written(tmp_path / f"{n} {columns}", n, columns) for n in (N, 2 * N)}
        few, many = (taken_here(path, n, crew) for n, path in paths.items())
        further.append(np.subtract(many, few))
    # Codes of bins take a byte for each row and column, numbers eight.
    codes = 20 * N
    assert (further[1] - further[0] < codes / 4).all(), further
    # They would be noticed.
    few, many = (taken_here(path, n, crew, BinnedRows.collected) for n, path in paths.items())
    assert (many[1] - few[1]) - further[0][1] > codes
