"""Each broken model is found out. This module draws no messages."""

import copy
import textwrap
from functools import partial
from importlib import import_module
from typing import ClassVar

import numpy as np
import pytest
import torch

from colonnade.data import load
from colonnade.models.base import Prediction
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.testing import Setup
from colonnade.testing.estimator import (
    a_peer_that_restarts_with_other_values_learns_nothing,
    a_role_without_a_party_is_refused,
    a_saved_share_predicts_the_same,
    arguments_are_stored_unchanged,
    bad_tables_are_refused_by_name,
    declared_hooks_are_called_and_others_refused,
    fit_gives_each_party_its_own_share,
    nothing_works_before_fit,
    only_the_label_party_learns_the_prediction,
    repeated_runs_send_identical_frames,
    the_drawing_shows_the_messages_that_cross,
)
from colonnade.testing.resume import killed_runs_end_alike

BOTH = Roles(label="bank", features=("shop",))


class Small(SplitClassifier):
    def __init__(self, *, epochs=1, n_iter_no_change=1, batch_size=64):
        super().__init__(epochs=epochs, n_iter_no_change=n_iter_no_change, batch_size=batch_size)


class Meddling(Small):
    def __init__(self, *, epochs=1, n_iter_no_change=1, batch_size=64):
        super().__init__(epochs=int(epochs) + 1, n_iter_no_change=n_iter_no_change, batch_size=batch_size)


class Presumptuous(Small):
    def save(self, path):
        path.write_text("nothing")


class Elsewhere(Small):
    def fit(self, party):
        super().fit(party)
        return copy.copy(self)


class Untidy(Small):
    def fit(self, party):
        self.cache = 3
        return super().fit(party)


class Sharing(Small):
    weights = np.zeros(9)

    def share(self):
        return {**super().share(), "common": self.weights}


class Restless(Small):
    def fit(self, party):
        super().fit(party)
        self.luck_ = np.random.default_rng().random(9)
        return self

    def share(self):
        return {**super().share(), "luck": self.luck_}


class Recorded(Small):
    """Learns how much is recorded."""

    def fit(self, party):
        super().fit(party)
        self.keep_ = party.recording.keep
        return self

    def share(self):
        return {**super().share(), "keep": self.keep_}


class Talkative(Small):
    def predict(self, party):
        return super().predict(party) or Prediction(np.zeros(len(party.own_table)))


class Sloppy(Small):
    def predict(self, party):
        prediction = super().predict(party)
        return None if prediction is None else Prediction(prediction.values[1:])


class Pickling(Small):
    def share(self):
        return {**super().share(), "extra": b"\x80\x04K\x03."}


class Gossiping(Small):
    """Keeps a copy of everybody's network in everybody's file."""

    heard: ClassVar = {}

    def fit(self, party):
        super().fit(party)
        self.heard[party.name] = self.bottom_.state_dict()
        return self

    def share(self):
        return {**super().share(), "heard": self.heard}


class Forgetful(Small):
    def take_share(self, tree):
        super().take_share(tree)
        self.bottom_ = None if self.bottom_ is None else self.bottom_.apply(zeroed)


def zeroed(module):
    for parameter in module.parameters():
        parameter.data.zero_()


class Promising(Small):
    hooks: ClassVar = {"label": SplitClassifier.hooks["label"], "feature": SplitClassifier.hooks["label"]}


class Lenient(Small):
    """Declares less than it accepts."""

    hooks: ClassVar = {"label": SplitClassifier.hooks["label"], "feature": frozenset({"outgoing"})}

    def admit_defences(self, party):
        for defence in party.defences:
            defence.before_run(party)


class Gullible(Small):
    """Trains on anything, or fails in words of its own."""

    def fit(self, party):
        if len(party.own_table) < 2 or (party.holds_labels and len(set(party.own_table.labels.to_pylist())) < 2):
            return self
        return super().fit(party)


class Hoarding(Small):
    """Begins every run of a folder with the same weights."""

    def fit(self, party):
        torch.manual_seed(party.once("folder seed", lambda: party.random.seed("weights")))
        return super().fit(party)


@pytest.fixture(scope="module")
def tables():
    return load("breast-cancer", rows=80).split()


def test_a_model_that_keeps_the_contract_passes(tables):
    for check in (arguments_are_stored_unchanged, fit_gives_each_party_its_own_share, a_saved_share_predicts_the_same):
        check(Setup(Small, tables, BOTH))


@pytest.mark.parametrize(
    ("model", "check", "words"),
    [
        (Meddling, arguments_are_stored_unchanged, "The constructor should store epochs as it was given"),
        (Presumptuous, nothing_works_before_fit, "Saving before training should be refused with a PlanError"),
        (Elsewhere, fit_gives_each_party_its_own_share, "fit should return the estimator itself, but does not at bank"),
        (Untidy, fit_gives_each_party_its_own_share, "should end in an underscore, but bank has cache"),
        (Sharing, fit_gives_each_party_its_own_share, "bank and shop should share no memory"),
        (Restless, repeated_runs_send_identical_frames, "these differ: the share of bank, the share of shop"),
        (Recorded, repeated_runs_send_identical_frames, "bank should learn the same with keep='all'"),
        (Talkative, only_the_label_party_learns_the_prediction, "shop should learn nothing of the prediction"),
        (Sloppy, only_the_label_party_learns_the_prediction, "bank should get one value for each of its 80 rows"),
        (Pickling, a_saved_share_predicts_the_same, "The file of bank should hold no pickle"),
        (Gossiping, a_saved_share_predicts_the_same, "should hold nothing of the share of"),
        (Forgetful, a_saved_share_predicts_the_same, "A prediction with loaded shares should end like the first"),
        (Gullible, bad_tables_are_refused_by_name, "A run with one row should be refused with a DataError"),
        (
            Hoarding,
            a_peer_that_restarts_with_other_values_learns_nothing,
            "with other columns and comes in a new folder, shop should draw again for split/embedding, but sent",
        ),
        (Small, the_drawing_shows_the_messages_that_cross, r"\['Embedding', .*\] only cross"),
        (Promising, declared_hooks_are_called_and_others_refused, "calls labels, prediction at shop, but never"),
        (Lenient, declared_hooks_are_called_and_others_refused, "at shop that acts only on incoming should be refused"),
    ],
)
def test_a_broken_model_is_found_out(model, check, words, tables):
    with pytest.raises(AssertionError, match=words):
        check(Setup(model, tables, BOTH))


def test_a_drawing_without_a_message_that_crosses_is_found_out(tables, monkeypatch):
    import colonnade.models.networks.split as module

    monkeypatch.setattr(
        module, "__doc__", module.__doc__.replace("EpochVerdict", "Embedding").replace("EmbeddingWidth", "Hello")
    )
    words = r"but \['Hello'\] are only drawn and \['EmbeddingWidth', 'EpochVerdict'\] only cross"
    with pytest.raises(AssertionError, match=words):
        the_drawing_shows_the_messages_that_cross(Setup(SplitClassifier, tables, BOTH))


def test_a_role_that_nobody_fills_is_found_out(tables):
    class Generous(Setup):
        def fit(self, tables=None, **options):
            return super().fit({**self.tables, **(tables or {})}, **options)

    with pytest.raises(AssertionError, match="A run without a table of bank should be refused with a PlanError"):
        a_role_without_a_party_is_refused(Generous(Small, tables, BOTH))


DROPPING = """
    from torch import nn

    class Dropping(nn.Sequential):
        def __init__(self, inputs, width):
            super().__init__(nn.Linear(inputs.width, width), nn.Dropout(0.5))
"""


@pytest.mark.slow
def test_a_model_that_draws_from_shared_generators_resumes_to_the_same_end(tables, tmp_path, monkeypatch):
    (tmp_path / "dropping_network.py").write_text(textwrap.dedent(DROPPING))
    monkeypatch.syspath_prepend(tmp_path)
    bottom = import_module("dropping_network").Dropping
    make = partial(SplitClassifier, bottom=bottom, epochs=3, n_iter_no_change=None, batch_size=32)
    killed_runs_end_alike(Setup(make, tables, BOTH), {}, renames=(3, 6))
