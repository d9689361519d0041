"""Noise on gradients and on embeddings: blurs what can be read from them. It is noise, not differential privacy.

On gradients, each row comes up once per epoch with fresh noise, so a patient attacker averages it away; nothing is
promised, and the ledger is not charged. Noise from one step is the same when the step is repeated after a crash.

Max-norm and isotropic noise: Li et al. 2022, "Label leakage and protection in two-party split learning".

GradPerturb: each gradient leaves with a random mixture of the gradients that other labels would have led to. A row's
gradient is linear in its one-hot label: g = sum over classes c of y_c g(c), where g(c) is the gradient if the label
were c. Laplace numbers of scale 2 / epsilon on y make one step epsilon label-private, given all that g(c) depends on.
The ledger is not charged all the same: the label party's own networks learn from true labels, on which the g(c) of
later steps depend, and each epoch sends every row again. The g(c) are those of the loss that compares outputs with
labels; what other defences add to a gradient is not mixed. With a penalty on received embeddings, or behind noise by
the size of true gradients, not even one step is epsilon label-private. Yang et al. 2022, "Differentially private label
protection in split learning", arXiv 2203.02073.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from blake3 import blake3

from colonnade.errors import PlanError
from colonnade.models.networks.messages import GRADIENTS, Embedding
from colonnade.parameters import Limit, check_parameters, choice, number, optional
from colonnade.privacy.ledger import Event
from colonnade.privacy.mechanisms import FloatArray, Kind, _standard_noise
from colonnade.privacy.randomness import Randomness, Step
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.hooks import index_of
from colonnade.runtime.party import Defence, Party
from colonnade.secret import Secret
from colonnade.storage import Tree


def blur(shape: tuple[int, ...], scale: float, kind: Kind, random: Randomness, path: tuple[Step, ...]) -> FloatArray:
    """Noise of a shape and a scale that no ledger knows of, with all digits of a double.

    Add the noise in double precision and round the sum once. A gradient has fewer digits, so that its lowest ones are
    under noise as well. The same path gives the same noise: give every call a path of its own.
    """
    if not 0 < scale < math.inf:
        raise PlanError(f"Expected scale to be positive and finite, got {scale!r}. Correct scale.")
    words = random.uniform_bits(2 * math.prod(shape), "noise", *path)
    return scale * _standard_noise(kind, words).reshape(shape)


class NoisyGradient(Defence):
    """A defence that changes every gradient that leaves by noise of its own."""

    known_by: tuple[tuple[str, Mapping[str, Any]], ...] = (("averaged-gradients", {}), ("co-training", {}))
    acts_on = GRADIENTS

    def before_run(self, party: Party) -> None:
        self._random = party.random.child("gradient noise", index_of(self, party))

    def outgoing(self, tensor: Tensor, at: HookContext) -> Tensor:
        """Change a gradient; embeddings pass unchanged, and so does a gradient that is nothing or not finite."""
        if at.message not in GRADIENTS or not 0 < float(tensor.float().square().sum()) < math.inf:
            return tensor
        return self.noisy(tensor, at)

    @abstractmethod
    def noisy(self, gradient: Tensor, at: HookContext) -> Tensor:
        """The gradient as it is to leave."""

    def drawn(
        self,
        gradient: Tensor,
        at: HookContext,
        scale: float = 1.0,
        kind: Kind = "gaussian",
        *,
        width: int | None = None,
    ) -> Tensor:
        """Noise for each row of a gradient in double precision, as wide as the gradient or as is asked for."""
        # Bound to the gradient, so that a peer who makes a step repeat with other inputs meets other noise.
        exact = blake3(gradient.detach().cpu().float().numpy().tobytes()).hexdigest()
        shape = (len(gradient), gradient.shape[1] if width is None else width)
        noise = blur(shape, scale, kind, self._random, (at.step, at.peer or "", exact))
        return torch.from_numpy(noise).to(gradient.device)


class GradientNoise(NoisyGradient):
    """Noise on every gradient that leaves, as large as the gradients themselves times a ratio.

    Args:
        ratio: The noise's standard deviation, relative to the root mean square of the batch's gradient entries.
        kind: "gaussian" or "laplace".
        scale: The noise's own scale parameter (of Gaussian noise the standard deviation), in place of the ratio. A
            gradient at the cut is that of the batch's mean loss: about 1 / rows of a single row's.
        clip: Rows longer than this are shortened to it first.

    >>> GradientNoise(ratio=2.0).name
    'GradientNoise(ratio=2)'
    """

    limits: ClassVar[Mapping[str, Limit]] = {
        "ratio": number(above=0),
        "kind": choice("gaussian", "laplace"),
        "scale": optional(number(above=0)),
        "clip": optional(number(above=0)),
    }

    def __init__(
        self,
        *,
        ratio: float = 5.0,
        kind: Literal["gaussian", "laplace"] = "gaussian",
        scale: float | None = None,
        clip: float | None = None,
    ) -> None:
        self.ratio, self.kind, self.scale, self.clip = ratio, kind, scale, clip
        check_parameters(self)

    @property
    def name(self) -> str:
        return f"GradientNoise(ratio={self.ratio:g})" if self.scale is None else f"GradientNoise(scale={self.scale:g})"

    def noisy(self, gradient: Tensor, at: HookContext) -> Tensor:
        if self.clip is not None:
            gradient = gradient * (self.clip / gradient.norm(dim=1, keepdim=True).clamp_min(self.clip))
        scale = self.scale
        if scale is None:
            deviation = self.ratio * float(gradient.float().square().mean().sqrt())
            scale = deviation if self.kind == "gaussian" else deviation / 2**0.5
        return (gradient.double() + self.drawn(gradient, at, scale, self.kind)).to(gradient)


class IsotropicNoise(NoisyGradient):
    """Gaussian noise in all directions, as large as the longest gradient of the batch times a ratio.

    Args:
        ratio: The noise's root mean square length, relative to the longest gradient of the batch.

    >>> IsotropicNoise(ratio=1.0).name
    'IsotropicNoise(ratio=1)'
    """

    named_by = "ratio"
    limits: ClassVar[Mapping[str, Limit]] = {"ratio": number(above=0)}

    def __init__(self, *, ratio: float = 1.0) -> None:
        self.ratio = ratio
        check_parameters(self)

    def noisy(self, gradient: Tensor, at: HookContext) -> Tensor:
        longest = float(gradient.float().norm(dim=1).max())
        drawn = self.drawn(gradient, at, self.ratio * longest / gradient.shape[1] ** 0.5)
        return (gradient.double() + drawn).to(gradient)


class MaxNorm(NoisyGradient):
    """Noise across each gradient, so that all are at least as long as the longest of the batch.

    The noise stands at right angles to the gradient and fills its length up to a random one. Lengths then say nothing;
    the part along the gradient is left as it was, and directions still tell.

    Args:
        least: The least length, relative to the longest gradient of the batch.
        most: The greatest length, likewise.

    >>> MaxNorm().name
    'MaxNorm'
    """

    known_by = (
        ("gradient-completion", {}),
        ("column-spreading", {}),
        ("embedding-spreading", {}),
        ("co-training", {}),
    )
    limits: ClassVar[Mapping[str, Limit]] = {"least": number(1), "most": number(1)}

    def __init__(self, *, least: float = 1.0, most: float = 10.0) -> None:
        self.least, self.most = least, most
        check_parameters(self)
        if least > most:
            raise PlanError(f"MaxNorm's least should be at most most = {most!r}, but is {least!r}. Change one.")

    def noisy(self, gradient: Tensor, at: HookContext) -> Tensor:
        if gradient.shape[1] < 2:
            raise PlanError("MaxNorm adds noise across gradients, but these are 1 wide. Use a wider embedding.")
        exact, drawn = gradient.double(), self.drawn(gradient, at, width=gradient.shape[1] + 1)
        lengths = exact.norm(dim=1, keepdim=True)
        # The first number says how long the row becomes; its normal distribution is made uniform.
        share = torch.special.ndtr(drawn[:, :1])
        wanted = lengths.max() * (self.least + (self.most - self.least) * share)
        along = exact / lengths.clamp_min(1e-30)
        across = drawn[:, 1:] - (drawn[:, 1:] * along).sum(dim=1, keepdim=True) * along
        missing = (wanted.square() - lengths.square()).clamp_min(0).sqrt()
        filled: Tensor = exact + missing * across / across.norm(dim=1, keepdim=True).clamp_min(1e-30)
        return filled.to(gradient)


class GradientPerturbation(NoisyGradient):
    """Laplace noise on the labels that gradients are made of, row by row and step by step.

    Args:
        epsilon: Of a single step, where no other defence adds to the gradient; the noise has scale 2 / epsilon.

    >>> GradientPerturbation(epsilon=10.0).name
    'GradientPerturbation(noise=0.2)'
    """

    known_by = (("averaged-gradients", {}), ("column-spreading", {}), ("co-training", {}))
    reads_labels = True
    limits: ClassVar[Mapping[str, Limit]] = {"epsilon": number(above=0)}

    def __init__(self, *, epsilon: float = 1.0) -> None:
        self.epsilon = epsilon
        check_parameters(self)

    @property
    def name(self) -> str:
        return f"GradientPerturbation(noise={2 / self.epsilon:g})"

    def noisy(self, gradient: Tensor, at: HookContext) -> Tensor:
        if at.gradient_if is None or at.labels is None or at.n_classes is None:
            raise PlanError(
                "GradientPerturbation mixes the gradients of all classes, but this run has no classes, or the labels "
                "are not where the gradients are made. Use another defence."
            )
        weights = self.drawn(gradient, at, 2 / self.epsilon, "laplace", width=at.n_classes)
        mixture = gradient.double()
        for label in range(at.n_classes):
            of_class = at.gradient_if(torch.full_like(at.labels, label))
            mixture = mixture + weights[:, label : label + 1] * of_class.to(mixture)
        return mixture.to(gradient)


class EmbeddingNoise(Defence):
    """Gaussian noise on every embedding that leaves, drawn once for each record.

    Numbers are brought between -1 and 1 by tanh first. A record has the same noise in all epochs and in predictions, so
    that no mean over epochs takes the noise away. Two embeddings of a record from different epochs differ by what the
    network has learned between them, without noise: nothing is promised, and the ledger says so.

    Args:
        sigma: The noise's standard deviation.

    >>> EmbeddingNoise(sigma=0.5).name
    'EmbeddingNoise(sigma=0.5)'
    """

    known_by = (("epoch-ridge", {}), ("epoch-ridge", {"read": "difference"}))
    acts_on = (Embedding,)
    named_by = "sigma"
    limits: ClassVar[Mapping[str, Limit]] = {"sigma": number(above=0)}

    def __init__(self, *, sigma: float = 0.3) -> None:
        self.sigma = sigma
        check_parameters(self)

    def before_run(self, party: Party) -> None:
        self._random = party.random.child("embedding noise", index_of(self, party))
        self._ledger = party.ledger
        self._noise: dict[int, FloatArray] = {}

    def outgoing(self, tensor: Tensor, at: HookContext) -> Tensor:
        if at.message is not Embedding or at.inputs is None:
            return tensor
        note = f"embeddings under {self.name}, whose noise cancels between epochs"
        self._ledger.spend(Event.not_private(Secret.FEATURES, note), identity=note.encode())
        new = [place for place, row in enumerate(at.rows) if int(row) not in self._noise]
        if new:
            inputs = at.inputs.detach().cpu().numpy()
            for place in new:
                # By the record and not by its row: a prediction has other rows.
                record = blake3(np.ascontiguousarray(inputs[place]).tobytes()).hexdigest()
                drawn = blur((tensor.shape[1],), self.sigma, "gaussian", self._random, (record,))
                self._noise[int(at.rows[place])] = drawn
        noise = np.stack([self._noise[int(row)] for row in at.rows])
        return (tensor.tanh().double() + torch.from_numpy(noise).to(tensor.device)).to(tensor)

    def state(self) -> Tree:
        return {"key": self._random.key.hex(), "source": self._random.source}

    def restore(self, tree: Tree) -> None:
        self._random = Randomness.from_key(bytes.fromhex(tree["key"]), source=tree["source"])
        self._noise = {}
