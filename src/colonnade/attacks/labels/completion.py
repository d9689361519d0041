"""Completion: a head over what the attacker already has, trained with a few known labels, names all other rows.

In training, a feature party's bottom network learns to tell the classes apart. With a head of its own on top of it and
a handful of labels, it becomes a model that needs nobody else. Gradients, too, are points on which a head can be
trained. Rows that are not known take part by self-training or, as published, by MixMatch (`heads`).

A dishonest party makes its bottom learn more than its share: its optimizer enlarges every step that goes the way of the
step before, so the joint model comes to rely on this bottom.

Fu et al. 2022, "Label inference attacks against vertical federated learning".
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from colonnade.attacks.base import ActiveAttack, Attack, ExampleRun, Grant, Guess, Inapplicable, Needs, View
from colonnade.attacks.labels.heads import in_batches, mixmatched, reproducible, self_trained
from colonnade.attacks.labels.own_steps import played_with, why_no_bottom
from colonnade.attacks.points import KNOWN_PER_CLASS, WHEN, WHENS, Points, When, why_no_gradients
from colonnade.models.networks.messages import Gradient
from colonnade.models.networks.modules import perceptron
from colonnade.parameters import Limit, check_parameters, count, number
from colonnade.runtime.context import Tensor
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import Protocol
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array

FINE_TUNING_RATE, HEAD_RATE = 2e-3, 5e-3
HIDDEN = 64
# How much a dishonest optimizer enlarges a step at least and at most, and what keeps a quotient finite.
LEAST, MOST, TINY = 1.0, 5.0, 1e-7


class ModelCompletion(Attack):
    """The attacker's own bottom network, completed by a head that learned from a few known labels.

    Args:
        fine_tune: Train the bottom together with the head; False leaves it as it came out of the joint training, as
            the published attack's code in effect does.
        self_training: How many times to train on, with the rows it is surest of taken for known.
        mixmatch: For how many steps to train by MixMatch, in the place of self-training; 0 is self-training.
        layers: Of the head; more than one undo a defence that puts layers behind the cut.

    >>> ModelCompletion().needs.own_model
    True
    """

    needs = Needs(own_features=True, own_model=True, known_labels=KNOWN_PER_CLASS)
    limits: ClassVar[Mapping[str, Limit]] = {"self_training": count(0), "mixmatch": count(0), "layers": count()}

    def __init__(self, *, fine_tune: bool = True, self_training: int = 2, mixmatch: int = 0, layers: int = 1) -> None:
        self.fine_tune, self.self_training, self.mixmatch, self.layers = fine_tune, self_training, mixmatch, layers
        check_parameters(self)

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return [
            cls(),
            cls(fine_tune=False),
            cls(layers=2),
            cls(fine_tune=False, mixmatch=2_000),
            cls(mixmatch=2_000),
        ]

    def why_not(self, view: View) -> str | None:
        if getattr(_trained_jointly(view.own.model), "bottom_", None) is None:
            return Inapplicable("its share of the model has no bottom network to complete")
        return None

    def guess(self, view: View) -> Guess:
        ratings = self.ratings(view.own.model, view.own.table, view.grant, view.random)
        return Guess.classified(np.arange(len(ratings)), ratings)

    def ratings(self, model: Any, table: Table, grant: Grant, random: np.random.Generator) -> Float64Array:
        """How the completed share of a model rates each class of a table's rows."""
        model = _trained_jointly(model)
        bottom = copy.deepcopy(model.bottom_).eval()
        device = next((parameter.device for parameter in bottom.parameters()), torch.device("cpu"))
        x = torch.from_numpy(model.inputs_.encode(table)).to(device)
        with reproducible(random):
            if not self.fine_tune:
                x, bottom = in_batches(bottom, x), nn.Identity()
            width = bottom(x[:1]).shape[1]
            hidden = (HIDDEN,) * (self.layers - 1)
            if self.mixmatch:
                norm: nn.Module = nn.BatchNorm1d(width)
            else:
                norm = nn.LayerNorm(width)
            head = nn.Sequential(norm, nn.ReLU(), perceptron(width, hidden, grant.n_classes)).to(device)
            network = nn.Sequential(bottom, head)
            if self.mixmatch:
                scores = mixmatched(network, x, grant.rows, grant.labels, steps=self.mixmatch)
            else:
                rate = FINE_TUNING_RATE if self.fine_tune else HEAD_RATE
                scores = self_trained(
                    network, x, grant.rows, grant.labels, rounds=self.self_training, rate=rate, random=random
                )
        return _as_ratings(scores)


class ActiveCompletion(ActiveAttack):
    """The attacker's own bottom network, made to learn too much by a dishonest optimizer, and then completed.

    The attacker keeps to the protocol but replaces its own optimizer by stochastic gradient descent whose steps grow
    where they keep their direction: each is multiplied, coordinate by coordinate, by 1 + gain x step / step before,
    within 1 and 5. Adam would cancel the factor. The attack takes long runs: in short ones it does harm to itself.

    Args:
        gain: How fast steps grow.
        aliased: Whether one array serves for gradient, momentum and step, as in the published code. There, clearing the
            gradient before a step clears the momentum as well, so that a step begins as 2 x momentum x gradient. False
            keeps the momentum, as the paper says.
        learning_rate: Of the dishonest optimizer.
        momentum: Of the dishonest optimizer.
        completion: How the bottom is completed.

    >>> ActiveCompletion(aliased=False).needs.known_labels
    4
    """

    needs = Needs(messages=(Gradient,), own_features=True, own_model=True, known_labels=KNOWN_PER_CLASS)
    example_run = ExampleRun(parameters={"epochs": 1, "batch_size": 128})
    limits: ClassVar[Mapping[str, Limit]] = {
        "gain": number(0),
        "learning_rate": number(above=0),
        "momentum": number(0, below=1),
    }

    def __init__(
        self,
        *,
        gain: float = 1.0,
        aliased: bool = True,
        learning_rate: float = 0.01,
        momentum: float = 0.9,
        completion: ModelCompletion | None = None,
    ) -> None:
        self.gain, self.aliased, self.learning_rate, self.momentum = gain, aliased, learning_rate, momentum
        self.completion = completion
        check_parameters(self)

    @classmethod
    def example(cls) -> Self:
        return cls(completion=ModelCompletion(fine_tune=False, self_training=0))

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return cls(), cls(aliased=False)

    def why_not(self, view: View) -> str | None:
        return why_no_bottom(view.public, view.party)

    def play(self, party: Party, honest: Protocol[Any], grant: Grant) -> Guess:
        def enlarge(number: int, weights: nn.Parameter) -> None:
            steps = EnlargedSteps(self.gain, self.momentum, aliased=self.aliased)
            weights.register_hook(steps)  # type: ignore[no-untyped-call]

        share = played_with(enlarge, honest, party, learning_rate=self.learning_rate)
        random = party.random.generator("active completion")
        ratings = (self.completion or ModelCompletion()).ratings(share, party.own_table, grant, random)
        return Guess.classified(np.arange(len(ratings)), ratings)


class EnlargedSteps:
    """Turns the gradients of one array of weights into the steps of the dishonest optimizer, one after the other."""

    def __init__(self, gain: float, momentum: float, *, aliased: bool) -> None:
        self._gain, self._momentum, self._aliased = gain, momentum, aliased
        self._buffer: Tensor | None = None
        self._before: Tensor | None = None

    def __call__(self, gradient: Tensor) -> Tensor:
        """The step in the place of a gradient."""
        if self._before is None or self._buffer is None:
            self._before = self._buffer = gradient.clone()
            return gradient
        remembered = gradient if self._aliased else self._buffer
        self._buffer = self._momentum * remembered + (self._momentum if self._aliased else 1) * gradient
        self._before = self._buffer * (1 + self._gain * self._buffer / (self._before + TINY)).clamp(LEAST, MOST)
        return self._before


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

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return [cls(when=when) for when in WHENS]

    def why_not(self, view: View) -> str | None:
        return why_no_gradients(view) or Points.of_gradients(view, self.when).why_not(view.grant)

    def guess(self, view: View) -> Guess:
        points = Points.of_gradients(view, self.when).directions().standardised()
        known, labels = points.known(view.grant)
        x = torch.from_numpy(points.values.astype(np.float32))
        with reproducible(view.random):
            head = nn.Linear(x.shape[1], view.grant.n_classes)
            scores = self_trained(head, x, known, labels, rounds=self.self_training, rate=HEAD_RATE, random=view.random)
        return Guess.classified(points.rows, _as_ratings(scores))


def _trained_jointly(model: Any) -> Any:
    """The part of the attacker's share that was trained together with the others."""
    return getattr(model, "shadow_", model)


def _as_ratings(scores: Tensor) -> Float64Array:
    return np.asarray(scores.cpu().numpy(), np.float64)
