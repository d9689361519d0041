"""Each dishonest attack is found out."""

import sys
import textwrap
from importlib import import_module

import numpy as np
import pytest

from colonnade.attacks.base import ActiveAttack, Guess, Needs
from colonnade.attacks.labels.gradients import DirectionScore
from colonnade.data import load
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.testing import ATTACK_CHECKS, attempt_on, check_attack
from colonnade.testing.attack import (
    a_fresh_interpreter_makes_the_same_guess,
    a_guess_is_about_rows_that_exist_and_were_not_granted,
    it_is_at_chance_where_there_is_nothing_to_find,
    one_run_gives_one_guess,
    what_is_not_declared_cannot_be_read,
)
from colonnade.wire.message import Message

BOTH = Roles(label="bank", features=("shop",))
ROWS = 100

# A module of its own, which a fresh interpreter can import as well.
DISHONEST = """
    import sys
    import numpy as np
    from colonnade.attacks.base import Attack, Guess, Needs
    from colonnade.auditing.subjects.base import Truth
    from colonnade.models.networks.messages import Gradient

    TRUTH = None

    class Plain(Attack):
        needs = Needs(messages=(Gradient,), own_features=True, own_model=True, known_labels=1)

        def __init__(self, weight=1.0):
            self.weight = weight

        def guess(self, view):
            assert view.own.table.owner == "shop" and view.own.model.is_fitted
            rows = np.arange(len(view.own.table))
            return Guess(rows, scores=self.weight * view.random.random(len(rows)))

    class Restless(Plain):
        def guess(self, view):
            return Guess(np.arange(100), scores=np.random.default_rng().random(100))

    class Remembering(Plain):
        def guess(self, view):
            return Guess(np.arange(100), scores=np.zeros(100) if TRUTH is None else TRUTH.astype(float))

    class Boundless(Plain):
        def guess(self, view):
            return Guess(np.arange(101), scores=np.zeros(101))

    class Vague(Plain):
        def guess(self, view):
            return Guess(np.arange(100), scores=np.full(100, np.nan))

    class Reciting(Plain):
        def guess(self, view):
            return Guess(view.grant.rows, classes=view.grant.labels)

    class Peeping(Plain):
        def guess(self, view):
            frame = sys._getframe()
            while frame is not None:
                for value in frame.f_locals.values():
                    if isinstance(value, Truth):
                        return Guess(np.arange(100), scores=value.labels.astype(float))
                frame = frame.f_back
            return Guess(np.arange(100), scores=np.zeros(100))
"""


@pytest.fixture(scope="module")
def run():
    tables = load("breast-cancer", rows=ROWS).split()
    return simulate(SplitClassifier(epochs=2, batch_size=32).fit, tables, roles=BOTH)


@pytest.fixture(scope="module")
def dishonest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    (folder / "dishonest_attacks.py").write_text(textwrap.dedent(DISHONEST))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield import_module("dishonest_attacks")
    del sys.modules["dishonest_attacks"]


def test_an_attack_with_arguments_and_everything_declared_passes(run, dishonest):
    check_attack(dishonest.Plain(weight=2.0), run)


@pytest.mark.parametrize(
    ("attack", "check", "words"),
    [
        ("Restless", one_run_gives_one_guess, "should make the same guess about the same run"),
        ("Boundless", a_guess_is_about_rows_that_exist_and_were_not_granted, "1 of its rows do not exist"),
        ("Vague", a_guess_is_about_rows_that_exist_and_were_not_granted, "100 of 100 values are something else"),
        ("Reciting", a_guess_is_about_rows_that_exist_and_were_not_granted, "some rows that it was not told"),
        ("Peeping", it_is_at_chance_where_there_is_nothing_to_find, "should be at chance, but what it scores"),
    ],
)
def test_a_dishonest_attack_is_found_out(attack, check, words, run, dishonest):
    with pytest.raises(AssertionError, match=words):
        check(attempt_on(run, getattr(dishonest, attack)()), run)


@pytest.mark.slow
def test_an_attack_that_remembers_the_truth_is_found_out_by_a_fresh_interpreter_only(run, dishonest, monkeypatch):
    monkeypatch.setattr(dishonest, "TRUTH", np.asarray(run.simulation.tables["bank"].labels))
    attempt = attempt_on(run, dishonest.Remembering())
    one_run_gives_one_guess(attempt, run)
    it_is_at_chance_where_there_is_nothing_to_find(attempt, run)
    with pytest.raises(AssertionError, match="the identical guess where it has only the saved view"):
        a_fresh_interpreter_makes_the_same_guess(attempt, run)


def test_an_attack_that_fails_elsewhere_is_found_out(run, dishonest, monkeypatch):
    monkeypatch.setattr(dishonest.Restless, "__module__", "no_such_module")
    with pytest.raises(AssertionError, match=r"should run in a fresh interpreter, but failed:(.|\n)*no_such_module"):
        a_fresh_interpreter_makes_the_same_guess(attempt_on(run, dishonest.Restless()), run)


def test_a_view_that_hides_nothing_is_found_out(run):
    attempt = attempt_on(run, DirectionScore())
    what_is_not_declared_cannot_be_read(attempt, run)

    class Open(type(attempt)):
        def view(self, run):
            seen = super().view(run)
            object.__setattr__(seen, "needs", Needs(messages=tuple(Message.kinds.values())))
            return seen

    with pytest.raises(AssertionError, match="Reading split/embedding undeclared should be refused"):
        what_is_not_declared_cannot_be_read(Open(**vars(attempt)), run)


def test_a_run_that_an_attack_does_not_apply_to_is_refused():
    tables = load("digits", rows=100).split()
    run = simulate(SplitClassifier(epochs=1).fit, tables, roles=BOTH)
    with pytest.raises(
        AssertionError, match="DirectionScore should apply to the run it is checked on, but it tells two"
    ):
        attempt_on(run, DirectionScore())


def test_an_active_attack_is_checked_by_what_it_plays(run):
    class Lazy(ActiveAttack):
        needs = Needs(known_labels=1)

        def play(self, party, honest, grant):
            honest(party)
            return Guess(np.arange(ROWS), scores=np.zeros(ROWS))

    class Restless(Lazy):
        def play(self, party, honest, grant):
            honest(party)
            return Guess(np.arange(ROWS), scores=np.random.default_rng().random(ROWS))

    for check in ATTACK_CHECKS:
        check(attempt_on(run, Lazy()), run)
    with pytest.raises(AssertionError, match="should make the same guess about the same run"):
        one_run_gives_one_guess(attempt_on(run, Restless()), run)


# A model that no catalogue names, and an attack on it.
OWN_MODEL = """
    import numpy as np
    from colonnade.attacks import Attack, Guess, Needs
    from colonnade.models import Estimator

    class Nothing(Estimator):
        task = "classification"

        def __init__(self, *, number=1.0):
            self.number = number

        def fit(self, party):
            self.mean_ = np.array([self.number])
            return self

        def predict(self, party):
            return None

        def share(self):
            return {"mean_": self.mean_}

        def take_share(self, tree):
            self.mean_ = tree["mean_"]

        def summary(self):
            return "Nothing."

    class ReadModel(Attack):
        needs = Needs(own_features=True, own_model=True)

        def guess(self, view):
            rows = np.arange(len(view.own.table))
            return Guess(rows, scores=view.own.model.mean_[0] * (rows % 7))
"""


def test_an_attack_on_a_users_own_model_keeps_the_contract(tmp_path, monkeypatch):
    (tmp_path / "own_model_and_attack.py").write_text(textwrap.dedent(OWN_MODEL))
    monkeypatch.syspath_prepend(tmp_path)
    own = import_module("own_model_and_attack")
    run = simulate(own.Nothing(number=2.0).fit, load("breast-cancer", rows=ROWS).split(), roles=BOTH)
    check_attack(own.ReadModel(), run)
