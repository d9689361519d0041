"""Direct label inference: where embeddings are logits, the gradient's negative entry is the label.

The gradient of cross-entropy in the logits is p - y, whose only negative coordinate is the true class.
Fu et al. 2022, "Label inference attacks against vertical federated learning".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from colonnade.attacks.base import Attack, ExampleRun, Guess, Needs, View
from colonnade.models.networks.messages import Gradient
from colonnade.wire.message import Float32Array, Int64Array


class DirectLabel(Attack):
    """The smallest coordinate of a row's gradient, in the first epoch, is its class."""

    needs = Needs(messages=(Gradient,))
    example_run = ExampleRun(parameters={"fusion": "sum", "top": None})

    def why_not(self, view: View) -> str | None:
        first = next(_first_epoch(view), None)
        if first is None:
            return "no gradients of the first epoch were kept"
        width = first[1].shape[1]
        if width != view.grant.n_classes or view.public.settings.get("top") is not None:
            return "a top network stands between the gradients and the classes"
        return None

    def guess(self, view: View) -> Guess:
        rows, classes = [], []
        for about, gradients in _first_epoch(view):
            rows.append(about)
            classes.append(gradients.argmin(axis=1))
        return Guess(np.concatenate(rows), classes=np.concatenate(classes).astype(np.int64))


def _first_epoch(view: View) -> Iterator[tuple[Int64Array, Float32Array]]:
    """Rows and gradients of every message of the first epoch that says which rows it is about."""
    for recorded in view.messages(Gradient, sent=False):
        if recorded.epoch == 0 and recorded.rows is not None:
            yield recorded.rows, recorded.message.values
