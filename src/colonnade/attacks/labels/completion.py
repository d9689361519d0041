"""Completion: a head over what the attacker already has, trained with a few known labels, names all other rows.

In training, a feature party's bottom network learns to tell the classes apart. With a head of its own on top of it and
a handful of labels, it becomes a model that needs nobody else. Gradients, too, are points on which a head can be
trained. Rows that the first model is sure of are then taken for known (self-training).

The published attack trains its head by MixMatch; here plain self-training stands in for it.

Fu et al. 2022, "Label inference attacks against vertical federated learning".
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.labels.clustering import KNOWN_PER_CLASS
from colonnade.attacks.points import WHEN, Points, When, why_no_gradients
from colonnade.models.networks.messages import Gradient
from colonnade.parameters import Limit, check_parameters, count
from colonnade.runtime.context import Tensor
from colonnade.wire.message import Int64Array

STEPS = 150
FINE_TUNING_RATE, HEAD_RATE = 2e-3, 5e-3
BATCH = 256
# The share of each guessed class that is taken for known, and how much more a row counts that is known.
SURE = 0.6
KNOWN_WEIGHT = 5


class ModelCompletion(Attack):
    """The attacker's own bottom network, completed by a head that learned from a few known labels.

    Args:
        fine_tune: Train the bottom together with the head; False leaves it as it came out of the joint training, as
            the published attack's code in effect does.
        self_training: How many times to train on, with the rows it is surest of taken for known.

    >>> ModelCompletion().needs.own_model
    True
    """

    needs = Needs(own_features=True, own_model=True, known_labels=KNOWN_PER_CLASS)
    limits: ClassVar[Mapping[str, Limit]] = {"self_training": count(0)}

    def __init__(self, *, fine_tune: bool = True, self_training: int = 2) -> None:
        self.fine_tune, self.self_training = fine_tune, self_training
        check_parameters(self)

    def why_not(self, view: View) -> str | None:
        if getattr(_trained_jointly(view), "bottom_", None) is None:
            return "its share of the model has no bottom network to complete"
        return None

    def guess(self, view: View) -> Guess:
        model, grant = _trained_jointly(view), view.grant
        bottom, inputs = copy.deepcopy(model.bottom_).cpu().eval(), model.inputs_
        x = torch.from_numpy(inputs.encode(view.own.table))
        with _reproducible(view):
            if not self.fine_tune:
                x, bottom = _in_batches(bottom, x), nn.Identity()
            body = nn.Sequential(bottom, nn.LayerNorm(bottom(x[:1]).shape[1]), nn.ReLU())
            rate = FINE_TUNING_RATE if self.fine_tune else HEAD_RATE
            classes = _completed(body, x, grant.rows, grant.labels, grant.n_classes, self.self_training, rate)
        return Guess(np.arange(len(x)), classes=classes)


class GradientCompletion(Attack):
    """A head over gradients that learned from a few known labels.

    Args:
        when: A row's mean gradient over all epochs, its first, or its last.
        self_training: How many times to train on, with the rows it is surest of taken for known.

    >>> GradientCompletion().needs.known_labels
    4
    """

    needs = Needs(messages=(Gradient,), known_labels=KNOWN_PER_CLASS)
    limits: ClassVar[Mapping[str, Limit]] = {"self_training": count(0), "when": WHEN}

    def __init__(self, *, when: When = "mean", self_training: int = 2) -> None:
        self.when, self.self_training = when, self_training
        check_parameters(self)

    def why_not(self, view: View) -> str | None:
        return why_no_gradients(view) or Points.of_gradients(view, self.when).why_not(view.grant)

    def guess(self, view: View) -> Guess:
        points = Points.of_gradients(view, self.when).directions().standardised()
        known, labels = points.known(view.grant)
        x = torch.from_numpy(points.values.astype(np.float32))
        with _reproducible(view):
            classes = _completed(nn.Identity(), x, known, labels, view.grant.n_classes, self.self_training, HEAD_RATE)
        return Guess(points.rows, classes=classes)


def _trained_jointly(view: View) -> Any:
    """The part of the attacker's share that was trained together with the others."""
    return getattr(view.own.model, "shadow_", view.own.model)


def _completed(
    body: nn.Module, x: Tensor, known: Int64Array, labels: Int64Array, n_classes: int, self_training: int, rate: float
) -> Int64Array:
    """The classes that a network with a trained head gives all rows."""
    at, wanted = torch.from_numpy(known), torch.from_numpy(labels)
    network = nn.Sequential(body, nn.Linear(body(x[:1]).shape[1], n_classes))
    optimiser = torch.optim.Adam(network.parameters(), rate, weight_decay=1e-3)

    def learn(rows: Tensor, classes: Tensor) -> None:
        loss = nn.functional.cross_entropy(network(x[rows]), classes)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    for _ in range(STEPS):
        learn(at, wanted)
    scores = _in_batches(network, x)
    for _ in range(self_training):
        sure, guessed = scores.softmax(dim=1).max(dim=1)
        taken = torch.cat([_surest(sure, guessed == k) for k in range(n_classes)])
        rows = torch.cat([at.repeat(KNOWN_WEIGHT), taken])
        classes = torch.cat([wanted.repeat(KNOWN_WEIGHT), guessed[taken]])
        for batch in torch.split(torch.randperm(len(rows)), BATCH):
            learn(rows[batch], classes[batch])
        scores = _in_batches(network, x)
    return np.asarray(scores.argmax(dim=1).numpy(), np.int64)


def _surest(sure: Tensor, is_class: Tensor) -> Tensor:
    """The rows of a class that the network is surest of."""
    rows = is_class.nonzero()[:, 0]
    order = sure[rows].argsort(descending=True, stable=True)
    return rows[order[: int(SURE * len(rows))]]


def _in_batches(network: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([network(part) for part in torch.split(x, 16 * BATCH)])


@contextmanager
def _reproducible(view: View) -> Iterator[None]:
    """Randomness of the view's own, and one thread: the number of threads shows in the last bits of a sum."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(view.random.integers(2**31)))
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
