import re

import numpy as np
import pytest

from colonnade.attacks.base import Grant, Needs
from colonnade.attacks.view import View
from colonnade.data import load
from colonnade.errors import PlanError, PrivacyError, StorageError, UndeclaredAccess
from colonnade.models.networks.messages import Embedding, EmbeddingWidth, EpochVerdict, Gradient
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate

BOTH = Roles(label="bank", features=("shop",))
TOLD = Grant(2, np.array([3, 5]), np.array([0, 1]))
KINDS = (EmbeddingWidth, Embedding, Gradient, EpochVerdict)
EVERYTHING = Needs(messages=KINDS, own_features=True, own_model=True, known_labels=1)


@pytest.fixture(scope="module")
def run():
    tables = load("breast-cancer", rows=100).split()
    return simulate(SplitClassifier(epochs=3, batch_size=32).fit, tables, roles=BOTH, keep="all")


def cut(run, needs, **more):
    return View.cut(
        needs,
        run.transcripts["shop"],
        public=run.plan,
        grant=TOLD,
        table=run.simulation.tables["shop"],
        model=run.results["shop"],
        **more,
    )


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda view: view.messages(Gradient), r"read messages of kind split/gradient .* Add messages=\(Gradient,\)"),
        (lambda view: view.row_means(Gradient), r"read messages of kind split/gradient .* Add messages=\(Gradient,\)"),
        (lambda view: view.own.table, "read the attacker's own table .* Add own_features=True to its Needs"),
        (lambda view: view.own.model, "read the attacker's own model .* Add own_model=True to its Needs"),
    ],
)
def test_what_was_not_declared_cannot_be_read(run, read, words):
    with pytest.raises(UndeclaredAccess, match=words):
        read(cut(run, Needs(messages=(Embedding,))))


def test_what_was_declared_can_be_read(run):
    view = cut(run, EVERYTHING)
    assert [len(list(view.messages(kind))) for kind in KINDS] == [
        1,
        12,
        9,
        3,
    ]
    assert view.own.table is run.simulation.tables["shop"]
    assert view.own.model is run.results["shop"]
    assert view.grant is TOLD


def test_a_view_holds_nothing_of_other_kinds(run):
    view = cut(run, Needs(messages=(Gradient,)))
    assert {entry.kind for entry in view._transcript.entries} == {mean.kind for mean in view._transcript.means}
    assert {entry.kind for entry in view._transcript.entries} == {"split/gradient"}


def test_labels_are_told_only_to_an_attack_that_needs_some(run):
    view = cut(run, Needs())
    assert (view.grant.n_classes, len(view.grant.rows), len(view.grant.labels)) == (2, 0, 0)


def test_messages_are_found_by_peer_and_direction(run):
    view = cut(run, EVERYTHING)
    assert list(view.messages(Embedding, sent=False)) == []
    assert list(view.messages(Gradient, peer="nobody")) == []
    assert {recorded.epoch for recorded in view.messages(Gradient, peer="bank", sent=False)} == {0, 1, 2}


def test_row_means_of_two_lines_are_not_mixed():
    tables = load("bank-shop-telco", rows=100).split()
    roles = Roles(label="bank", features=("shop", "telco"))
    run = simulate(SplitClassifier(epochs=1, n_iter_no_change=None).fit, tables, roles=roles)
    view = View.cut(EVERYTHING, run.transcripts["bank"], public=run.plan, grant=TOLD)
    words = (
        "Row means of split/gradient should come from one line, but bank recorded 2. Name the peer and the direction"
    )
    with pytest.raises(PrivacyError, match=re.escape(words)):
        view.row_means(Gradient)
    assert view.row_means(Gradient, peer="telco").shape == (len(tables["bank"]), 16)


def test_an_attacks_randomness_is_the_same_each_time(run):
    drawn = [cut(run, Needs(), seed=seed).random.integers(1000, size=5).tolist() for seed in (4, 4, 5)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_saved_view_comes_back_whole(run, tmp_path):
    view = cut(run, EVERYTHING, seed=7)
    view.save(tmp_path)
    loaded = View.load(tmp_path, EVERYTHING, SplitClassifier.load)
    assert (loaded.party, loaded.seed, loaded.public) == ("shop", 7, view.public)
    assert loaded.grant.labels.tolist() == [0, 1]
    assert loaded.own.table.to_arrow().equals(view.own.table.to_arrow())
    assert loaded.own.model.summary() == view.own.model.summary()
    np.testing.assert_array_equal(loaded.row_means(Gradient), view.row_means(Gradient))
    for kind in EVERYTHING.messages:
        for one, other in zip(view.messages(kind), loaded.messages(kind), strict=True):
            assert (one.peer, one.sent, one.epoch) == (other.peer, other.sent, other.epoch)
            np.testing.assert_equal(vars(one.message), vars(other.message))
            np.testing.assert_equal(one.rows, other.rows)


def test_a_saved_view_holds_only_what_was_declared(run, tmp_path):
    cut(run, Needs(messages=(Gradient,))).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["transcript", "view.safetensors"]
    loaded = View.load(tmp_path, Needs(messages=(Gradient, Embedding)), lambda path: None)
    assert list(loaded.messages(Embedding)) == []


OPTIONAL = Needs(own_features=True, table_optional=True)


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (
            {"known_in_all": 56},
            "known_in_all = 56 requires known_labels, but known_labels is 0. Declare known_labels as well, or leave "
            "out known_in_all.",
        ),
        (
            {"table_optional": True},
            "table_optional = True requires own_features, but own_features is False. Declare own_features as well, or "
            "leave out table_optional.",
        ),
    ],
)
def test_a_need_that_says_more_of_another_one_is_refused_without_it(needs, words):
    with pytest.raises(PlanError) as caught:
        Needs(**needs)
    assert str(caught.value) == words


def test_an_attack_whose_table_is_optional_is_told_to_look_before_it_reads(run):
    own = View.cut(OPTIONAL, run.transcripts["shop"], public=run.plan, grant=TOLD).own
    assert not own.has_table
    with pytest.raises(PrivacyError) as caught:
        own.table  # noqa: B018
    assert str(caught.value) == (
        "own.table should be the attacker's own rows, but this attacker has none. Ask own.has_table first."
    )
    assert not isinstance(caught.value, UndeclaredAccess)


@pytest.mark.parametrize("has_table", [False, True])
def test_a_saved_view_comes_back_with_its_table_and_without_one(run, tmp_path, has_table):
    table = run.simulation.tables["shop"] if has_table else None
    View.cut(OPTIONAL, run.transcripts["shop"], public=run.plan, grant=TOLD, table=table).save(tmp_path)
    assert View.load(tmp_path, OPTIONAL, lambda path: None).own.has_table == has_table


def test_a_saved_view_whose_table_is_lost_does_not_load_as_one_without_a_table(run, tmp_path):
    cut(run, OPTIONAL).save(tmp_path)
    (tmp_path / "table.arrow").unlink()
    with pytest.raises(StorageError, match=r"A saved table was expected at .*table\.arrow, but there is none"):
        View.load(tmp_path, OPTIONAL, lambda path: None)
