"""Matching: labels that would have led to the gradients that were seen, found by optimisation.

Batch labels. A party that is told the gradient of its own weights only, summed over a batch as under encryption, looks
for labels (and for the others' share of the logits) whose gradient is that sum. Zou et al. 2022, arXiv 2112.05409. The
attack takes honest part in the run, because no recording keeps the gradients of a party's own weights.

Surrogate top. A party that knows each row's embedding and gradient trains a top network of its own, and labels for all
rows, until the gradients of its own top are the ones that it received. Kariyappa and Qureshi 2023, "ExPLoit", arXiv
2111.12840. The true top also sees what other parties send, and learns meanwhile, so that a surrogate may send like
gradients for wrong labels. Half of the known rows are therefore kept back in turn, and the labels count only if they
are right about more of these rows than the nearest known gradients are.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from colonnade.attacks.base import ActiveAttack, Attack, ExampleRun, Grant, Guess, Needs, View
from colonnade.attacks.labels.heads import reproducible
from colonnade.attacks.labels.own_steps import played_with, why_no_bottom
from colonnade.attacks.points import (
    KNOWN_PER_CLASS,
    LANDMARKS,
    Points,
    chosen_rows,
    distances,
    why_no_gradients,
)
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.models.networks.modules import perceptron
from colonnade.parameters import Limit, check_parameters, count, number
from colonnade.runtime.context import Tensor
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import Protocol
from colonnade.wire.message import Float64Array, Int64Array

SURROGATE_RATE, HIDDEN = 0.01, 64
# How much it counts, beside matching gradients, that the top foretells the labels and that all classes occur.
FORETELLING, OCCURRING = 1e-3, 1e-3
# How much a label begins by leaning to the class of the nearest known gradient, as a logit.
BELIEF = 2.0


class BatchLabels(ActiveAttack):
    """Labels of the first batch, found by matching the gradient of the attacker's own weights.

    Only the sum over the batch is used, as where gradients are encrypted row by row. Recovery is good while the batch
    has fewer rows than the network has weights. Where a top network stands between embeddings and classes, a linear
    one takes its place, and classes are found up to their names.

    Args:
        steps: Of the optimisation.
        learning_rate: Of the optimisation.

    >>> BatchLabels(steps=200).needs.known_labels
    0
    """

    needs = Needs(messages=(Gradient,), own_features=True, own_model=True)
    example_run = ExampleRun(parameters={"epochs": 1, "batch_size": 64, "fusion": "sum", "top": None})
    limits: ClassVar[Mapping[str, Limit]] = {"steps": count(), "learning_rate": number(above=0)}

    def __init__(self, *, steps: int = 1_000, learning_rate: float = 0.05) -> None:
        self.steps, self.learning_rate = steps, learning_rate
        check_parameters(self)

    @classmethod
    def example(cls) -> Self:
        return cls(steps=3)

    def why_not(self, view: View) -> str | None:
        return why_no_bottom(view.public, view.party)

    def play(self, party: Party, honest: Protocol[Any], grant: Grant) -> Guess:
        weights: list[Tensor] = []
        observed: dict[int, Tensor] = {}

        def note(number: int, parameter: nn.Parameter) -> None:
            weights.append(parameter.detach().clone())

            def note_first(gradient: Tensor) -> None:
                if number not in observed:
                    observed[number] = gradient.clone()

            parameter.register_hook(note_first)  # type: ignore[no-untyped-call]

        share: Any = played_with(note, honest, party)
        _, rows = share.schedule(party, len(party.own_table), party.shared).batches.at(0)
        bottom = copy.deepcopy(share.bottom_)
        device = next(bottom.parameters()).device
        for parameter, start in zip(bottom.parameters(), weights, strict=True):
            parameter.data.copy_(start)
        x = torch.from_numpy(share.inputs_.encode(party.own_table)[rows]).to(device)
        with reproducible(party.random.generator("batch labels")):
            wanted = [observed[number].to(device) for number in range(len(weights))]
            labels = self._matched(bottom, x, wanted, grant.n_classes, has_top=share.top is not None)
        return Guess.classified(rows, labels)

    def _matched(
        self, bottom: nn.Module, x: Tensor, observed: Sequence[Tensor], n_classes: int, *, has_top: bool
    ) -> Float64Array:
        """How likely each class of each row is, by the labels that best explain the gradient of the weights."""
        embedding, parameters = bottom(x), list(bottom.parameters())
        shape = (len(x), n_classes)
        labels = (0.1 * torch.randn(shape)).to(x.device).requires_grad_()
        others = torch.zeros(shape, device=x.device, requires_grad=True)
        top = torch.eye(n_classes, device=x.device)
        free = [labels, others]
        if has_top:
            top = (0.1 * torch.randn(n_classes, embedding.shape[1])).to(x.device).requires_grad_()
            free.append(top)
        size = sum(each.square().sum() for each in observed)
        known = embedding.detach()
        optimiser = torch.optim.Adam(free, self.learning_rate)
        for _ in range(self.steps):
            logits = known @ top.T + others
            errors = (logits.softmax(dim=1) - labels.softmax(dim=1)) @ top / len(x)
            implied = torch.autograd.grad(embedding, parameters, errors, create_graph=True, retain_graph=True)
            unlike = [(got - seen).square().sum() for got, seen in zip(implied, observed, strict=True)]
            optimiser.zero_grad()
            (torch.stack(unlike).sum() / size).backward(inputs=free, retain_graph=True)  # type: ignore[no-untyped-call]
            optimiser.step()
        return np.asarray(labels.detach().softmax(dim=1).cpu().numpy(), np.float64)


class SurrogateTop(Attack):
    """Labels under which a top network of the attacker's own sends the gradients that were received.

    A few known labels name the classes. At most 2,000 rows are guessed.

    Args:
        steps: Of the optimisation.

    >>> [message.kind for message in SurrogateTop().needs.messages]
    ['split/embedding', 'split/gradient']
    """

    needs = Needs(messages=(Embedding, Gradient), known_labels=KNOWN_PER_CLASS)
    limits: ClassVar[Mapping[str, Limit]] = {"steps": count()}

    def __init__(self, *, steps: int = 300) -> None:
        self.steps = steps
        check_parameters(self)

    @classmethod
    def example(cls) -> Self:
        return cls(steps=3)

    def why_not(self, view: View) -> str | None:
        return why_no_gradients(view) or self._points(view)[0].why_not(view.grant)

    def _points(self, view: View) -> tuple[Points, Points]:
        """First gradients and first embeddings, of the rows that have both."""
        gradients, embeddings = Points.of_gradients(view, "first"), Points.of_embeddings(view, when="first")
        rows = np.intersect1d(gradients.rows, embeddings.rows)
        return Points(rows, gradients.at(rows)), Points(rows, embeddings.at(rows))

    def guess(self, view: View) -> Guess:
        gradients, embeddings = self._points(view)
        known, classes = gradients.known(view.grant)
        rows = gradients.rows[chosen_rows(len(gradients.rows), LANDMARKS, known, view.random)]
        g, e = gradients.at(rows), embeddings.at(rows)
        at, n_classes = np.searchsorted(rows, gradients.rows[known]), view.grant.n_classes
        directions = Points(rows, g).directions().values
        begun = _nearest(directions, at, classes, n_classes)
        if np.bincount(classes, minlength=n_classes).min() < 2:
            return Guess.rated(rows, begun)
        found, gained = [], 0
        with reproducible(view.random):
            for told in _halves(classes):
                first = _nearest(directions, at[told], classes[told], n_classes)
                labels = self._matched(e / _size(e), g / _size(g), first, at[told], classes[told])
                right, before = ((each[at].argmax(axis=1) == classes)[~told].sum() for each in (labels, first))
                gained += int(right - before)
                found.append(labels)
        return Guess.rated(rows, np.mean(found, axis=0) if gained > 0 else begun)

    def _matched(
        self, e: Float64Array, g: Float64Array, first: Float64Array, known: Int64Array, classes: Int64Array
    ) -> Float64Array:
        """How likely each class of each row is, by the labels and the top that best explain the gradients."""
        start, n_classes = BELIEF * first, first.shape[1]
        labels = torch.tensor(start, dtype=torch.float32, requires_grad=True)
        embedding, gradient = (torch.tensor(each, dtype=torch.float32) for each in (e, g))
        embedding.requires_grad_()
        told = nn.functional.one_hot(torch.from_numpy(classes), n_classes).float()
        top = perceptron(e.shape[1], (HIDDEN,), n_classes)
        optimiser = torch.optim.Adam([labels, *top.parameters()], SURROGATE_RATE)
        for _ in range(self.steps):
            soft = labels.softmax(dim=1).index_copy(0, torch.from_numpy(known), told)
            loss = nn.functional.cross_entropy(top(embedding), soft, reduction="sum")
            # The graph of the gradient is kept: without it, matching would move neither the top nor the labels.
            (implied,) = torch.autograd.grad(loss, embedding, create_graph=True)
            unlike = (implied - gradient).square().sum(dim=1).mean()
            occurring = -soft.mean(dim=0).clamp_min(1e-6).log().mean()
            optimiser.zero_grad()
            total = unlike + FORETELLING * loss / len(e) + OCCURRING * occurring
            total.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return np.asarray(labels.detach().softmax(dim=1).numpy(), np.float64)


def _nearest(directions: Float64Array, known: Int64Array, classes: Int64Array, n_classes: int) -> Float64Array:
    """The class of the nearest known row (rows, classes): 1 for this class, 0 for the others."""
    nearest = classes[distances(directions, directions[known]).argmin(axis=1)]
    return np.asarray(np.eye(n_classes)[nearest])


def _halves(classes: Int64Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Every other row of each class, and the rest."""
    place = np.zeros(len(classes), np.int64)
    for each in np.unique(classes):
        place[classes == each] = np.arange((classes == each).sum())
    return place % 2 == 0, place % 2 == 1


def _size(values: Float64Array) -> float:
    """The root mean square length of vectors; 1 where all are nothing."""
    return float(np.sqrt((values**2).sum(axis=1).mean())) or 1.0
