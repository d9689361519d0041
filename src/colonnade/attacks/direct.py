"""Direct label inference: where embeddings are logits, the gradient's negative entry is the label.

The gradient of cross-entropy in the logits is p - y, whose only negative coordinate is the true class.
Fu et al. 2022, "Label inference attacks against vertical federated learning".
"""

from __future__ import annotations

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs
from colonnade.attacks.view import View
from colonnade.models.split import Gradient


class DirectLabel(Attack):
    """The smallest coordinate of a row's gradient, in the first epoch, is its class."""

    needs = Needs(messages=(Gradient,))

    def unfit(self, view: View) -> str | None:
        """Only where the gradient has one coordinate per class."""
        first = next(view.messages(Gradient, sent=False), None)
        if first is None or first.epoch != 0:
            return "no gradients of the first epoch were kept"
        width = first.message.values.shape[1]
        if width != view.grant.n_classes or view.public.settings.get("top") is not None:
            return "a top network stands between the gradients and the classes"
        return None

    def guess(self, view: View) -> Guess:
        """Read the class off each gradient of the first epoch."""
        rows, classes = [], []
        for recorded in view.messages(Gradient, sent=False):
            if recorded.epoch == 0 and recorded.rows is not None:
                rows.append(recorded.rows)
                classes.append(recorded.message.values.argmin(axis=1))
        return Guess(np.concatenate(rows), classes=np.concatenate(classes).astype(np.int64))
