"""Each broken defence is found out."""

import textwrap
from functools import partial
from importlib import import_module
from typing import ClassVar

import numpy as np
import pytest
import torch

from colonnade.data import load
from colonnade.defences.noise import GradientNoise
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.party import Defence
from colonnade.testing import Setup, check_defence
from colonnade.testing.defence import (
    a_killed_run_resumes_with_it,
    it_composes_with_every_defence_in_any_order,
    it_is_refused_where_it_would_never_act,
    its_state_can_be_written_down,
    one_seed_gives_one_run,
    the_message_ledger_names_it_where_it_acts,
    what_it_returns_has_the_same_shape_and_type,
)

BOTH = Roles(label="bank", features=("shop",))
SMALL = partial(SplitClassifier, epochs=2, batch_size=32, n_iter_no_change=1, embedding=4)


class Widening(Defence):
    def outgoing(self, tensor, at):
        return tensor.double()


class Cutting(Defence):
    def labels(self, labels, at):
        return labels[:1]


class Sneaking(Defence):
    """Acts through an instance's attribute, which the class does not show."""

    def before_run(self, party):
        self.outgoing = lambda tensor, at: tensor * 2

    def overridden(self):
        return frozenset()


class Restless(Defence):
    def outgoing(self, tensor, at):
        return tensor + float(np.random.default_rng().random())


class Amnesiac(Defence):
    def __init__(self):
        self.count = 0

    def loss(self, loss, at):
        self.count += 1
        return loss * 1

    def state(self):
        return {"count": self.count}


class Exploding(Defence):
    def loss(self, loss, at):
        return loss * torch.inf


class Anonymous(Defence):
    """Has another name each time it is asked."""

    names = iter(range(10**6))

    @property
    def name(self):
        return f"number {next(self.names)}"

    def outgoing(self, tensor, at):
        return tensor * 1


class Softening(Defence):
    def loss(self, loss, at):
        return loss / 2


class Lenient(SplitClassifier):
    """Accepts a defence where it is never asked for anything."""

    hooks: ClassVar = {"label": SplitClassifier.hooks["label"], "feature": frozenset({"outgoing"})}

    def admit_defences(self, party):
        for defence in party.defences:
            defence.before_run(party)


@pytest.fixture(scope="module")
def tables():
    return load("breast-cancer", rows=80).split()


@pytest.mark.parametrize(
    ("defence", "check", "words"),
    [
        (
            Widening,
            what_it_returns_has_the_same_shape_and_type,
            "outgoing at step 0 should keep the type torch.float32",
        ),
        (Cutting, what_it_returns_has_the_same_shape_and_type, r"labels at step 0 should keep the shape \(32,\)"),
        (
            Sneaking,
            what_it_returns_has_the_same_shape_and_type,
            "Sneaking.outgoing at step 0 acts, but is not overridden",
        ),
        (Restless, one_seed_gives_one_run, "A repeated run with Restless should end like the first"),
        (Amnesiac, its_state_can_be_written_down, "Amnesiac should have the same state after it was restored"),
        (Exploding, it_composes_with_every_defence_in_any_order, "training should come to its end, but split/gradient"),
        (
            Anonymous,
            the_message_ledger_names_it_where_it_acts,
            "changes split/gradient, but bank's message ledger does not",
        ),
    ],
)
def test_a_broken_defence_is_found_out(defence, check, words, tables):
    with pytest.raises(AssertionError, match=words):
        check(defence(), "bank", Setup(SMALL, tables, BOTH))


def test_a_model_that_lets_a_defence_do_nothing_is_found_out(tables):
    with pytest.raises(AssertionError, match="Softening at shop, where loss is never called, should be refused"):
        it_is_refused_where_it_would_never_act(Softening(), "bank", Setup(Lenient, tables, BOTH))


def test_a_model_that_lets_a_defence_do_without_the_labels_it_reads_is_found_out(tables):
    class Reading(Softening):
        reads_labels = True

    class Careless(Lenient):
        """Says that a feature party has no labels, and does not refuse what reads them there."""

        hooks: ClassVar = SplitClassifier.hooks

    with pytest.raises(AssertionError, match="Reading at shop, which has no labels, should be refused"):
        it_is_refused_where_it_would_never_act(Reading(), "bank", Setup(Careless, tables, BOTH))


def test_a_defence_that_is_of_no_use_to_a_model_is_refused(tables):
    class Deaf(SplitClassifier):
        hooks: ClassVar = {"label": frozenset({"outgoing"}), "feature": frozenset({"outgoing"})}

    with pytest.raises(AssertionError, match="Softening should be of use to some party of Deaf, but is to none"):
        check_defence(Softening(), Deaf, tables, BOTH)


@pytest.mark.slow
def test_a_defence_that_keeps_the_contract_passes(tables):
    check_defence(GradientNoise(ratio=0.1, kind="laplace"), SMALL, tables, BOTH, holder="bank")


FORGETFUL = """
    from colonnade.runtime.party import Defence

    class Forgetful(Defence):
        def __init__(self):
            self.count = 0

        def outgoing(self, tensor, at):
            self.count += 1
            return tensor * self.count
"""


@pytest.mark.slow
def test_a_defence_that_forgets_in_a_crash_is_found_out(tables, tmp_path, monkeypatch):
    (tmp_path / "forgetful_defence.py").write_text(textwrap.dedent(FORGETFUL))
    monkeypatch.syspath_prepend(tmp_path)
    defence = import_module("forgetful_defence").Forgetful()
    with pytest.raises(AssertionError, match=r"A run that was killed at frame \d+ should end like the first"):
        a_killed_run_resumes_with_it(defence, "bank", Setup(SMALL, tables, BOTH))
