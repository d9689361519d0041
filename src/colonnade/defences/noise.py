"""Noise on gradients: blurs what a feature party can read from them. It is noise, not differential privacy."""

from __future__ import annotations

import math
from typing import Literal

import torch
from blake3 import blake3

from colonnade.errors import PlanError
from colonnade.hooks import At, Defence, Tensor
from colonnade.models.split import Gradient
from colonnade.party import Party
from colonnade.privacy.mechanisms import noise


class GradientNoise(Defence):
    """Noise on every gradient that leaves, as large as the gradients themselves times a ratio.

    Each row comes up once per epoch with fresh noise, so a patient attacker averages it away; nothing is promised and
    the ledger is not charged. Noise from one step is the same when the step is repeated after a crash.

    Args:
        ratio: The noise's standard deviation, relative to the root mean square of the batch's gradient entries.
        kind: "gaussian" or "laplace".

    >>> GradientNoise(ratio=2.0).name
    'GradientNoise(ratio=2)'
    """

    def __init__(self, *, ratio: float = 5.0, kind: Literal["gaussian", "laplace"] = "gaussian") -> None:
        if not ratio > 0:
            raise PlanError(
                f"GradientNoise's ratio should be above 0, but is {ratio!r}. Leave the defence out for none."
            )
        if kind not in ("gaussian", "laplace"):
            raise PlanError(
                f"GradientNoise's kind should be 'gaussian' or 'laplace', but is {kind!r}. Use one of them."
            )
        self.ratio, self.kind = ratio, kind

    @property
    def name(self) -> str:
        """What the message ledger calls it."""
        return f"GradientNoise(ratio={self.ratio:g})"

    acts_on = (Gradient,)

    def before_run(self, party: Party) -> None:
        """Take a stream of one's own from the party's randomness."""
        place = next((i for i, held in enumerate(party.defences) if held is self), 0)
        self._random = party.random.child("gradient noise", place)

    def outgoing(self, tensor: Tensor, at: At) -> Tensor:
        """Add noise to a gradient; embeddings pass unchanged."""
        if at.message is not Gradient:
            return tensor
        deviation = self.ratio * float(tensor.square().mean().sqrt())
        if not 0 < deviation < math.inf:
            return tensor
        scale = deviation if self.kind == "gaussian" else deviation / 2**0.5
        # Bound to the gradient, so that a peer who makes a step repeat with other inputs meets other noise.
        exact = blake3(tensor.detach().numpy().tobytes()).hexdigest()
        drawn = noise(tuple(tensor.shape), scale, self.kind, self._random, (at.step, at.peer or "", exact))
        return tensor + torch.from_numpy(drawn).to(tensor.dtype)
