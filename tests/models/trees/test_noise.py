"""Noise on sums: added in the unit of the sums, wide enough for what one record moves."""

import itertools

import numpy as np
import pytest

from colonnade.crypto import hinted
from colonnade.crypto.histograms import HistogramBins
from colonnade.crypto.profiles import HISTOGRAM, Budget
from colonnade.models.trees import hinted_sums
from colonnade.models.trees.boosting import BoostSettings, Sampling
from colonnade.models.trees.estimator import SecureBoostClassifier
from colonnade.models.trees.hinted_sums import noised
from colonnade.models.trees.noise import NoiseSettings, SumNoise, mechanism, most_releases, widest
from colonnade.models.trees.splits import TreeParameters
from colonnade.privacy.gaussian import gaussian_epsilon
from colonnade.privacy.randomness import PublicRandomness
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table


def test_noise_is_added_to_each_sum_in_its_own_unit():
    random, n_rows = np.random.default_rng(0), 300
    public = hinted.PublicMatrix(bytes(32), n_rows)
    bins = HistogramBins(random.integers(0, 5, (2, n_rows)).astype(np.uint8), [5, 5])
    holder, queries = hinted.Holder(bins, public, Budget(HISTOGRAM, peer="bank")), hinted.Queries(public)
    reader = hinted.Reader(public, holder.hint())
    holder.prepare(queries.prepare(2, [reader]))
    g, h = random.integers(-(2**20), 2**20, n_rows), random.integers(0, 2**20, n_rows)
    messages = hinted.Messages(public, g, h, reach=(2**30, 2**30))
    places = random.integers(0, 3, n_rows).astype(np.int32)
    query = queries.ask(messages, places, 3)
    noise = random.integers(-(2**29), 2**29, (bins.n_sums, 2, 2, 2))
    found = reader.read(query, 3, messages, noised(public, holder.answer(query), noise))
    for node in range(3):
        for column in range(2):
            for bin in range(4):
                rows = (places == node) & (bins.codes[column] == bin)
                added = noise[4 * column + bin, node // 2, node % 2]
                assert found[node, 4 * column + bin].tolist() == [g[rows].sum() + added[0], h[rows].sum() + added[1]]


def test_all_releases_of_a_training_cost_what_was_asked_for():
    made = mechanism(1000, n_columns=8, n_releases=50, settings=NoiseSettings(3.0, 1e-6))
    # Two sums of each of eight columns move by 1,000 at most.
    assert made.sensitivity == 4000
    mu = made.sensitivity / float(made.sigma) * np.sqrt(50)
    assert gaussian_epsilon(mu, 1e-6) == pytest.approx(3.0, rel=1e-6)


def test_a_record_is_in_one_release_of_each_level_and_in_one_fold():
    boost = BoostSettings(TreeParameters(max_depth=5), 10, subsample=0.5)
    assert most_releases(boost, Sampling(boost, 100, PublicRandomness.seeded(0)), n_scores=3) == 2 * 5 * 3 * 5
    leafy = BoostSettings(TreeParameters(max_depth=0, max_leaves=7), 10)
    assert most_releases(leafy, Sampling(leafy, 100, PublicRandomness.seeded(0)), n_scores=1) == 2 * 10 * 7


def test_noise_leaves_room_in_a_slot():
    values, settings = np.array([0.5, -0.25, 1.0]), NoiseSettings(1.0, 1e-6)
    scale = int((2**32 - 1) / (1 + widest(values, 4, 30, settings)) / np.abs(values).sum())
    made = mechanism(scale, 4, 30, settings)
    assert scale * np.abs(values).sum() + 12 * made.sigma <= 2**32 - 1


class Drawing:
    """Draws noise for two queries whose largest gradient and hessian are alike."""

    def __call__(self, party):
        noise = SumNoise(party, n_columns=3, n_releases=4, settings=NoiseSettings(1.0, 1e-5))
        noise.begin(100, 100)
        return [noise.draw((50,), query) for query in (b"one", b"two", b"one")]


def test_no_noise_serves_two_sums():
    """Gradients and hessians, or two queries, with the same noise would differ by exact sums."""
    tables = {name: Table.of({"id": range(2), "x": range(2)}) for name in ("bank", "shop")}
    roles = Roles(label="bank", features=("shop",))
    one, two, again = simulate(Drawing(), tables, roles=roles).results["shop"]
    assert (one == again).all()
    drawn = [one[:, 0], one[:, 1], two[:, 0], two[:, 1]]
    for first, second in itertools.combinations(drawn, 2):
        assert (first != second).mean() > 0.9


class Added(Exception):
    """Noise was added to an answer."""


def test_what_is_charged_as_noise_is_added_to_what_is_sent(monkeypatch):
    def add(*arguments):
        raise Added

    monkeypatch.setattr(hinted_sums, "noised", add)
    random = np.random.default_rng(0)
    tables = {name: Table.of({"id": range(40), "x": random.normal(size=40)}) for name in ("bank", "shop")}
    tables["bank"] = tables["bank"].with_labels(np.arange(40) % 2)
    model = SecureBoostClassifier(n_estimators=1, max_depth=1, max_bin=3, sums="noisy", epsilon=5.0)
    with pytest.raises(Added):
        simulate(model.fit, tables, roles=Roles(label="bank", features=("shop",)))
