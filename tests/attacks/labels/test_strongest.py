"""Tests for the attack that joins all others."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from colonnade.attacks.base import Attack, Grant, Guess, Needs
from colonnade.attacks.labels import strongest
from colonnade.attacks.labels.clustering import EmbeddingNearest, GradientNearest
from colonnade.attacks.labels.gradients import DirectionScore
from colonnade.attacks.labels.spreading import ColumnSpreading
from colonnade.attacks.labels.strongest import Strongest
from colonnade.attacks.points import KNOWN_PER_CLASS
from colonnade.attacks.view import Own
from colonnade.auditing.engine import make
from colonnade.auditing.settings import Simulated
from colonnade.auditing.subjects.labels import LabelsSubject
from colonnade.catalogue import DEFENCES, attacks_of_audit
from colonnade.data import load
from colonnade.errors import PrivacyError
from colonnade.models import LabelDPShadow
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.models.networks.oneshot import OneShotClassifier
from colonnade.models.networks.split import SplitClassifier
from colonnade.privacy.randomness import Randomness
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.testing import check_attack

N_ROWS, N_CLASSES = 600, 3


def joined(guesses, grant, columns=None):
    """All guesses joined by an attacker that has some columns, or none."""
    table = None
    if columns is not None:
        named = {f"x{number}": column for number, column in enumerate(columns.T)}
        table = Table.of(pa.table({"id": np.arange(len(columns)), **named}), ids="id", owner="shop")
    own, random = Own(Strongest.needs, table, None, None), np.random.default_rng(0)
    return Strongest().guess(SimpleNamespace(guesses=tuple(guesses), grant=grant, own=own, random=random))


def right_share(guess, labels):
    return float((guess.classes == labels[guess.rows]).mean())


@pytest.fixture
def labels():
    return np.random.default_rng(0).integers(N_CLASSES, size=N_ROWS)


@pytest.fixture
def grant(labels):
    rows = np.sort(np.concatenate([np.flatnonzero(labels == number)[:12] for number in range(N_CLASSES)]))
    return Grant(N_CLASSES, rows, labels[rows])


def noisy(labels, share, seed):
    """A guess that is right about a share of the rows, and random else."""
    random = np.random.default_rng(seed)
    said = np.where(random.random(len(labels)) < share, labels, random.integers(N_CLASSES, size=len(labels)))
    return Guess(np.arange(len(labels)), classes=said)


def test_independent_weak_guesses_are_worth_more_together(labels, grant):
    guesses = [noisy(labels, 0.5, seed) for seed in range(1, 8)]
    best = max(right_share(guess, labels) for guess in guesses)
    assert right_share(joined(guesses, grant), labels) > best + 0.1


def test_one_good_guess_is_not_outvoted_by_many_that_repeat_each_other(labels, grant):
    crowd = noisy(labels, 0.3, seed=1)
    guesses = [noisy(labels, 0.95, seed=2), *[crowd] * 9]
    assert right_share(joined(guesses, grant), labels) > right_share(guesses[0], labels) - 0.02


def test_skill_is_told_by_agreement_with_attacks_that_err_independently():
    """Where there are hardly any known labels, the products of pairs still rank three attacks."""
    labels = np.random.default_rng(0).integers(2, size=4_000)
    shares = 0.9, 0.6, 0.3
    guesses = [
        Guess(
            np.arange(4_000),
            classes=np.where(random.random(4_000) < share, labels, random.integers(2, size=4_000)),
        )
        for share, random in zip(shares, (np.random.default_rng(seed) for seed in (1, 2, 3)), strict=True)
    ]
    cells = [strongest._cells(guess, np.arange(4_000), 2) for guess in guesses]
    names = [strongest._names(guess, 2) for guess in guesses]
    # One known row of each class that no guess is about: only agreement tells.
    grant = Grant(2, np.array([4_000, 4_001]), np.array([0, 1]))
    skills, alike = strongest._skills(guesses, grant, cells, names)
    agreed = np.zeros((3, 3))
    for i, j in itertools.permutations(range(3), 2):
        agreed[i, j] = strongest._agreed(cells[i].T @ cells[j] / 4_000, names[i], names[j])
    assert strongest._implied(agreed, alike)[0] == pytest.approx(shares, abs=0.05)
    assert (np.diff(skills) < 0).all()


def test_an_inverted_score_tells_as_much_as_a_right_one():
    labels = np.random.default_rng(0).integers(2, size=400)
    rows = np.sort(np.concatenate([np.flatnonzero(labels == number)[:12] for number in range(2)]))
    scores = labels + np.random.default_rng(1).normal(size=400)
    noise = Guess(np.arange(400), scores=np.random.default_rng(2).normal(size=400))

    def found(sign):
        guess = joined([Guess(np.arange(400), scores=sign * scores), noise], Grant(2, rows, labels[rows]))
        return np.corrcoef(guess.scores, labels)[0, 1]

    assert found(-1) == pytest.approx(found(1), abs=0.02)
    assert found(-1) > 0.3


def test_rows_that_only_one_attack_guesses_are_guessed(labels, grant):
    whole, part = noisy(labels, 0.9, 1), noisy(labels, 0.9, 2).only(np.arange(N_ROWS) < 100)
    assert len(joined([whole, part], grant).rows) == N_ROWS


def test_a_single_guess_is_not_joined(labels, grant):
    with pytest.raises(PrivacyError, match="two attacks or more"):
        joined([noisy(labels, 0.9, 1)], grant)


def test_own_columns_tell_what_messages_do_not(labels, grant):
    guesses = [noisy(labels, 0.1, seed) for seed in (1, 2)]
    columns = 3 * np.eye(N_CLASSES)[labels] + np.random.default_rng(3).normal(size=(N_ROWS, N_CLASSES))
    assert right_share(joined(guesses, grant), labels) < 0.5
    assert right_share(joined(guesses, grant, columns), labels) > 0.85


def test_own_columns_that_fit_the_known_rows_and_no_others_are_not_believed(labels, grant):
    """Forty columns of noise fit 36 known rows without an error; another known row shows that they know nothing."""
    guesses = [noisy(labels, 0.8, 1), noisy(labels, 0.1, 2)]
    columns = np.random.default_rng(3).normal(size=(N_ROWS, 40))
    without = right_share(joined(guesses, grant), labels)
    assert right_share(joined(guesses, grant, columns), labels) > without - 0.02


@pytest.mark.parametrize(
    ("sizes", "per_class"),
    [pytest.param((200, 200), 28, id="two classes"), pytest.param((200, 60), 15, id="one of two classes is rare"),
     pytest.param((200, 20), 12, id="and rarer still"), pytest.param((100,) * 10, 12, id="ten classes")],
)  # fmt: skip
def test_of_two_classes_more_labels_each_are_told_than_of_ten(sizes, per_class):
    values = np.repeat(np.arange(len(sizes)), sizes)
    bank = Table.of(pa.table({"id": np.arange(len(values)), "y": values}), ids="id", labels="y", owner="bank")
    grant = LabelsSubject().grant(Strongest(), "bank", {"bank": bank}, np.arange(len(values)), Randomness.seeded(0))
    assert np.bincount(grant.labels).tolist() == [per_class] * len(sizes)


class Joined(Attack):
    """Makes four attacks with few of the labels that it is told, and joins what they say, as an audit does."""

    needs = Needs(messages=(Gradient, Embedding), own_features=True, known_labels=Strongest.needs.known_labels)

    def guess(self, view):
        grant, n_classes = view.grant, view.grant.n_classes
        few = [np.flatnonzero(grant.labels == number)[:KNOWN_PER_CLASS] for number in range(n_classes)]
        few = np.sort(np.concatenate(few))
        told = Grant(n_classes, grant.rows[few], grant.labels[few])
        said = []
        for attack in (GradientNearest(), EmbeddingNearest(), DirectionScore(), ColumnSpreading()):
            guess = attack.guess(replace(view, needs=attack.needs, grant=told))
            said.append(guess.only(~np.isin(guess.rows, told.rows)))
        return Strongest().guess(replace(view, needs=replace(self.needs, guesses=True), _guesses=tuple(said)))


@pytest.mark.slow
def test_joined_guesses_keep_the_contract_of_an_attack_and_are_at_chance_on_shuffled_labels():
    tables = load("breast-cancer", rows=150).split()
    model = SplitClassifier(epochs=2, batch_size=32)
    check_attack(Joined(), simulate(model.fit, tables, roles=Roles(label="bank", features=("shop",))))


ROLES = Roles(label="bank", features=("shop",))
# The rule was chosen by runs with seeds 0 to 2, 20 to 22 and 100 to 102; its power of skill also by these.
SEEDS = (11, 12, 13)
# Single runs of this cell fall short by up to 5 points: where 80 known rows say too little of attacks so near.
MORE_SEEDS = {("digits", "shadow-4"): (*SEEDS, 14, 15, 16)}


def made_by(model, name, held, seed, labels=None):
    """All single guesses about the labels of a run, and the joined one; told and scored by other labels if given."""
    attacks = [attack for attack in attacks_of_audit(defences=held) if attack.about is Secret.LABELS]
    run = simulate(model.clone().fit, load(name).split(), roles=ROLES, seed=seed, defences={"bank": held})
    if labels is not None:
        tables = run.simulation.tables
        arrow = tables["bank"].to_arrow()
        column = tables["bank"].label_name
        arrow = arrow.set_column(arrow.column_names.index(column), column, arrow[column].take(labels(len(arrow))))
        bank = Table.of(arrow, ids=tables["bank"].id_name, labels=column, owner="bank")
        run = replace(run, simulation=run.simulation.changed(tables={**tables, "bank": bank}))
    setting = Simulated(run, seed=seed)
    made, _ = make(setting, attacks)
    (joint,), _ = make(setting, [Strongest()], before=made)
    return made, joint


def short_of_best(model, name, held, seeds=SEEDS):
    """By how much joined guesses fall short of the best single one, by seed; and how many attacks were made."""
    short = []
    for seed in seeds:
        made, joint = made_by(model, name, held, seed)
        best = max(each.truth.scores(each.guess).up_to_naming for each in made)
        short.append(best - joint.truth.scores(joint.guess).up_to_naming)
    return short, len(made)


SPLIT = SplitClassifier(epochs=30, n_iter_no_change=None)
HELD = ("gradient-noise", "max-norm", "sparse-gradient", "randomised-labels")
SHADOWS = {"shadow-1": LabelDPShadow(epsilon=1.0), "shadow-4": LabelDPShadow(epsilon=4.0)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["breast-cancer", "digits"])
@pytest.mark.parametrize("cell", ["none", *HELD, *SHADOWS])
def test_joined_guesses_are_nowhere_two_points_below_the_best_single_one(name, cell):
    held = [DEFENCES[cell]()] if cell in HELD else []
    short, n_attacks = short_of_best(SHADOWS.get(cell, SPLIT), name, held, MORE_SEEDS.get((name, cell), SEEDS))
    assert n_attacks > 8
    assert np.mean(short) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", ["breast-cancer", "digits"])
def test_joined_guesses_are_at_chance_about_labels_that_were_shuffled_apart_from_the_run(name):
    total = 0.0
    for seed in SEEDS:
        _, joint = made_by(SPLIT, name, [], seed, labels=np.random.default_rng(seed).permutation)
        total += joint.truth.deviation(joint.guess)
    assert math.erfc(abs(total) / math.sqrt(2 * len(SEEDS))) >= 0.001


def test_an_attack_that_is_right_more_often_is_handed_the_votes_of_those_that_say_nearly_the_same():
    skills, alike = np.array([0.85, 0.85, 0.92, 0.6]), np.full((4, 4), 0.9)
    alike[3, :] = alike[:, 3] = 0.5
    np.fill_diagonal(alike, 1.0)
    before, about = np.ones(4), np.ones((4, 10))
    after = strongest._handed(before, skills, alike, about, n_known=80)
    assert after.sum() == pytest.approx(before.sum())
    assert after[2] > 2.5
    assert after[3] == 1
    # Few known rows tell nothing of two attacks that are so near.
    assert strongest._handed(before, skills, alike, about, n_known=4)[2] < 1.5


def test_no_vote_is_handed_to_an_attack_that_leaves_out_rows():
    about = np.ones((2, 10))
    about[1, 0] = 0
    after = strongest._handed(np.ones(2), np.array([0.5, 0.9]), np.ones((2, 2)), about, n_known=80)
    assert after.tolist() == pytest.approx([1, 1])


def test_votes_are_finite_with_many_known_rows():
    skills = np.array([0.0, 0.5, 1.0])
    assert np.isfinite(strongest._handed(np.ones(3), skills, np.eye(3), np.ones((3, 10)), n_known=10**6)).all()


@pytest.mark.slow
def test_of_two_attacks_the_weaker_one_does_not_undo_what_the_better_one_calls_the_classes():
    """One shot leaves two attacks, which err alike: what one means cannot be learned from the other."""
    short, n_attacks = short_of_best(OneShotClassifier(leak_budget={"shop": 1.0}), "digits", [])
    assert n_attacks == 2
    assert np.mean(short) < 0.02
