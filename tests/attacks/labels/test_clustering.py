import numpy as np
import pytest

from colonnade.attacks.base import Grant
from colonnade.attacks.labels.clustering import EmbeddingClusters, EmbeddingNearest, GradientClusters, GradientNearest
from colonnade.attacks.points import Points
from colonnade.attacks.view import View
from colonnade.errors import PlanError
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.simulate import simulate
from colonnade.testing import attempt_on
from colonnade.wire.recording.recording import RowMeans, Transcript

BOTH = Roles(label="bank", features=("shop",))
ON_GRADIENTS = [GradientClusters, GradientNearest]
ALL = [EmbeddingClusters, EmbeddingNearest, *ON_GRADIENTS]


@pytest.fixture(scope="module")
def run(tables):
    return simulate(SplitClassifier(epochs=10).fit, tables, roles=BOTH, keep="all")


def guessed(run, attack, seed=0):
    attempt = attempt_on(run, attack, seed=seed)
    return attempt.attack.guess(attempt.view(run)), attempt.grant


def view_of(attack, gradients, grant):
    values = np.asarray(gradients, np.float32)
    means = RowMeans("split/gradient", "bank", False, 0, values, np.ones(len(values), np.int64))
    plan = PublicPlan(BOTH, "SplitClassifier.fit")
    return View.cut(attack.needs, Transcript("shop", means=(means,)), public=plan, grant=grant)


def told(labels, per_class=4):
    rows = np.sort(np.concatenate([np.flatnonzero(labels == k)[:per_class] for k in np.unique(labels)]))
    return Grant(len(np.unique(labels)), rows, labels[rows])


@pytest.mark.parametrize("attack", ALL)
def test_an_undefended_run_gives_the_classes_away(run, tables, attack):
    guess, grant = guessed(run, attack())
    unknown = ~np.isin(guess.rows, grant.rows)
    hits = guess.classes == np.asarray(tables["bank"].labels)[guess.rows]
    assert hits[unknown].mean() > (0.97 if attack in ON_GRADIENTS else 0.8)


def test_embeddings_are_guessed_for_all_rows_and_gradients_for_those_trained_on(run, tables):
    n_rows = len(tables["bank"])
    assert guessed(run, EmbeddingNearest())[0].rows.tolist() == list(range(n_rows))
    assert len(guessed(run, GradientNearest())[0].rows) == n_rows - round(0.1 * n_rows)


@pytest.mark.parametrize("when", ["first", "last", "mean"])
def test_the_points_are_those_of_the_epoch_that_was_asked_for(run, tables, when):
    by_row = {}
    for recorded in run.transcripts["shop"].messages(Gradient):
        for row, gradient in zip(recorded.rows, recorded.message.values, strict=True):
            by_row.setdefault(int(row), []).append(gradient)
    expected = {"first": lambda g: g[0], "last": lambda g: g[-1], "mean": lambda g: np.mean(g, axis=0)}[when]
    attempt = attempt_on(run, GradientNearest())
    points = Points.of_gradients(attempt.view(run), when)
    assert points.rows.tolist() == sorted(by_row)
    np.testing.assert_allclose(points.values, [expected(by_row[row]) for row in points.rows], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("when", ["mean", "first", "last"])
def test_a_row_is_the_embedding_that_was_asked_for(run, when):
    by_row = {}
    for recorded in run.transcripts["shop"].messages(Embedding, sent=True):
        for row, embedding in zip(recorded.rows, recorded.message.values, strict=True):
            by_row.setdefault(int(row), []).append(embedding)
    expected = {"first": lambda e: e[0], "last": lambda e: e[-1], "mean": lambda e: np.mean(e, axis=0)}[when]
    points = Points.of_embeddings(attempt_on(run, EmbeddingNearest()).view(run), when)
    assert points.rows.tolist() == sorted(by_row)
    np.testing.assert_allclose(points.values, [expected(by_row[row]) for row in points.rows], rtol=1e-4, atol=1e-6)


def test_clusters_take_the_names_that_bring_known_rows_near():
    random = np.random.default_rng(0)
    labels = np.repeat([2, 0, 1], 30)
    centres = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    gradients = centres[labels] + 0.1 * random.standard_normal((90, 3))
    attack = GradientClusters()
    guess = attack.guess(view_of(attack, gradients, told(labels)))
    assert (guess.classes == labels).all()


def test_antipodal_codes_fall_to_two_clusters_per_class_and_to_neighbours_and_not_to_one_cluster_per_class():
    random = np.random.default_rng(0)
    labels, signs = np.repeat(np.arange(10), 100), np.tile([1, -1], 500)
    codes = signs[:, None] * np.eye(10)[labels] + 0.05 * random.standard_normal((1000, 10))

    def hits(attack):
        return (attack.guess(view_of(attack, codes, told(labels))).classes == labels).mean()

    # Ten clusters for twenty tight groups: half of the rows are in the wrong one, under whatever names.
    assert 0.4 < hits(GradientClusters(per_class=1)) < 0.6
    assert hits(GradientClusters(per_class=2)) == 1
    assert hits(GradientNearest()) == 1


def test_directions_do_not_depend_on_lengths_and_places_do():
    random = np.random.default_rng(1)
    labels = np.repeat([0, 1], 40)
    directions = np.eye(2)[labels] + 0.1 * random.standard_normal((80, 2))
    stretched = directions * random.lognormal(0, 2, (80, 1))
    hits = {}
    for angular in (True, False):
        attack = GradientNearest(angular=angular)
        hits[angular] = (attack.guess(view_of(attack, stretched, told(labels))).classes == labels).mean()
    assert hits[True] == 1 > hits[False]


@pytest.mark.parametrize("attack", ON_GRADIENTS)
def test_gradients_that_are_all_alike_tell_nothing_and_break_nothing(attack):
    guess = attack().guess(view_of(attack(), np.zeros((20, 3)), told(np.arange(20) % 2)))
    assert len(np.unique(guess.classes)) == 1


@pytest.mark.parametrize("attack", ON_GRADIENTS)
def test_rows_without_a_finite_gradient_are_left_out(attack):
    values = np.random.default_rng(0).standard_normal((20, 3))
    values[18], values[19] = np.nan, np.inf
    guess = attack().guess(view_of(attack(), values, told(np.arange(20) % 2)))
    assert guess.rows.tolist() == list(range(18))


def test_where_nothing_of_a_known_row_was_kept_an_attack_does_not_apply():
    values = np.ones((10, 3))
    values[:8] = np.nan
    grant = Grant(2, np.array([0, 9]), np.array([0, 1]))
    attack = GradientNearest()
    assert attack.why_not(view_of(attack, values, grant)) == "nothing was kept of the known rows of some class"
    values[:] = np.nan
    assert attack.why_not(view_of(attack, values, grant)) == "nothing that could be compared was kept of any row"
    clusters = GradientClusters(per_class=8)
    assert clusters.why_not(view_of(clusters, np.ones((10, 3)), grant)) == "10 rows make no 16 clusters"


@pytest.mark.parametrize("attack", [EmbeddingClusters, GradientClusters])
def test_a_class_has_at_least_one_cluster(attack):
    with pytest.raises(PlanError, match=r"per_class should be a whole number, at least 1, but is 0\. Change it"):
        attack(per_class=0)
