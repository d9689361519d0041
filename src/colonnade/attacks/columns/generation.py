"""Generation without known records: the attacker knows the distribution of whole records, and no record of the run.

Active generation (AGN): a conditional generator, a critic, and feature parties' networks that learn to fool the critic.

    fake        [x0, G(z, x0, y)], the attacker's own columns copied
    critic      minimises  BCE(D(sample + e, y), 0.9) + BCE(D(fake + e, y), 0)        spectral norms, instance noise e
    G and z     minimise   BCE(D(fake + e, y), 1), whose gradient in z is sent to the feature parties
                where BCE(p, 1) = -mean log p  and  BCE(p, 0) = -mean log(1 - p)

That loss depends on the law of (x0, fake, y) alone: any generator with the right conditional law is optimal, one that
ignores z included. A draw from this law has twice the squared error of its mean. So the attack rebuilds nobody's record
that imputation from the same sample would not rebuild better. `anchor` adds the generator's output to such an
imputation and penalises it: the attack then falls back to the imputation.

Feature-space hijacking (FSHA): an encoder of the attacker's own, trained on the sample together with a decoder. A
critic tells embeddings of this encoder from the owner's, given x0 and y; the owner's network learns to fool the critic,
and the decoder reads what it then sends.

Vu et al. 2023, "Active data reconstruction attacks in vertical federated learning"; the signs of the BCE are corrected.
Pasquini et al. 2021, "Unleashing the tiger", arXiv 2012.02670.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from colonnade.attacks.base import ActiveAttack, Grant, Guess, Needs, View
from colonnade.attacks.columns.passive import ridge
from colonnade.attacks.columns.tampering import (
    HIDDEN,
    Batch,
    Objective,
    Ranges,
    Tampering,
    descend,
    own_numbers,
    played,
    rebuilt,
    why_no_gradients_sent,
)
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.models.networks.modules import perceptron
from colonnade.parameters import Limit, check_parameters, count, number, optional, truth
from colonnade.runtime.context import Tensor
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import Protocol
from colonnade.secret import Secret
from colonnade.tables.encode import filled
from colonnade.wire.message import Float64Array

PRIOR = 60
RATE, ANCHORED_RATE, ENCODER_RATE, BETAS = 5e-4, 2e-4, 1e-3, (0.5, 0.999)
SMOOTHED, NOISE = 0.9, 0.1


class ActiveGenerative(ActiveAttack):
    """Gradients of a conditional generator, which learns from a sample of the population and from no record of the run.

    Args:
        conditioned: Whether the generator reads the attacker's own columns and labels beside the embeddings.
        with_labels: Whether labels are among what the generator and the critic read.
        anchor: How strongly the generator is held to an imputation from the attacker's own columns and labels, to which
            its output is added; None for a generator of its own.
        noise_epochs: Over how many epochs the critic's instance noise falls to nothing.

    >>> ActiveGenerative(with_labels=False).needs.known_records
    0
    """

    needs = Needs(messages=(Embedding, Gradient), prior=PRIOR, inference_rows=True)
    about = Secret.FEATURES
    limits: ClassVar[Mapping[str, Limit]] = {
        "conditioned": truth(),
        "with_labels": truth(),
        "anchor": optional(number(0)),
        "noise_epochs": count(),
    }

    def __init__(
        self,
        *,
        conditioned: bool = True,
        with_labels: bool = True,
        anchor: float | None = None,
        noise_epochs: int = 50,
    ) -> None:
        self.conditioned, self.with_labels, self.anchor = conditioned, with_labels, anchor
        self.noise_epochs = noise_epochs
        check_parameters(self)

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return cls(), cls(conditioned=False), cls(anchor=1.0)

    def why_not(self, view: View) -> str | None:
        return why_no_gradients_sent(view)

    def play(self, party: Party, honest: Protocol[Any], grant: Grant) -> Guess:
        return rebuilt(self.tampered(party, honest, grant), grant)

    def tampered(self, party: Party, honest: Protocol[Any], grant: Grant) -> Tampering:
        """The hook after the run."""
        own = own_numbers(party)
        if not self.with_labels and party.table is not None:
            own = filled(party.table)
        sample = _Sample(grant, party.name, 0 if own is None else own.shape[1])
        objective = _Generation(sample, self.conditioned, self.anchor, self.noise_epochs)
        hook = Tampering(objective, own, seed=party.random.seed("attack", type(self).__name__))
        played(party, honest, hook)
        return hook


class FeatureHijacking(ActiveAttack):
    """Gradients that make the owner's network imitate an encoder of the attacker's own, whose decoder it knows.

    >>> FeatureHijacking().needs.prior
    60
    """

    needs = ActiveGenerative.needs
    about = Secret.FEATURES

    def why_not(self, view: View) -> str | None:
        return why_no_gradients_sent(view)

    def play(self, party: Party, honest: Protocol[Any], grant: Grant) -> Guess:
        return rebuilt(self.tampered(party, honest, grant), grant)

    def tampered(self, party: Party, honest: Protocol[Any], grant: Grant) -> Tampering:
        """The hook after the run."""
        own = own_numbers(party)
        sample = _Sample(grant, party.name, 0 if own is None else own.shape[1])
        hook = Tampering(_Hijacking(sample), own, seed=party.random.seed("attack", type(self).__name__))
        played(party, honest, hook)
        return hook


class _Sample:
    """A sample of the population: whole records, of which the attacker has its own part of everybody as well.

    Attributes:
        own: The attacker's columns and labels.
        records: The owner's columns, in units of their ranges.
        blocks: Which numbers are the levels of one column of text.
    """

    def __init__(self, grant: Grant, attacker: str, n_own: int) -> None:
        records, self.owner = grant.prior[grant.owner], grant.owner
        own = grant.prior[attacker][:, :n_own] if n_own else np.zeros((len(records), 0))
        self.ranges = Ranges.of(records)
        self.own, self.records = torch.from_numpy(own).float(), self.ranges.scaled(records)
        self.blocks = _blocks(grant.columns, records)

    def drawn(self, n: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Some records, drawn with replacement: the attacker's part and the owner's."""
        rows = torch.randint(len(self.records), (n,), generator=random)
        return self.own[rows], self.records[rows]

    def bounded(self, raw: Tensor) -> Tensor:
        """Numbers within their ranges; levels of a column of text as probabilities."""
        bounded = raw.sigmoid()
        for block in self.blocks:
            bounded = bounded.index_copy(1, block, raw[:, block].softmax(dim=1))
        return bounded


def _blocks(columns: Any, records: Float64Array) -> list[Tensor]:
    """The numbers that are levels of one column: several of one name, each with two values at most."""
    names = np.array(columns)
    two_valued = np.array([len(np.unique(each)) <= 2 for each in records.T], np.bool_)
    found = [np.flatnonzero(names == name) for name in dict.fromkeys(columns)]
    return [torch.from_numpy(block) for block in found if len(block) > 1 and two_valued[block].all()]


def _generator(n_in: int, n_out: int) -> nn.Sequential:
    """Two hidden layers with LayerNorm."""
    layers: list[nn.Module] = []
    for size in (n_in, HIDDEN):
        layers += [nn.Linear(size, HIDDEN), nn.LayerNorm(HIDDEN), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, n_out))


def _critic(n_in: int) -> nn.Sequential:
    """Two hidden layers of leaky units, and one logit; spectral norms bound every layer."""
    bounded = nn.utils.parametrizations.spectral_norm
    layers: list[nn.Module] = []
    for size in (n_in, HIDDEN):
        layers += [bounded(nn.Linear(size, HIDDEN)), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, bounded(nn.Linear(HIDDEN, 1)))


def _believed(critic: nn.Module, record: Tensor, belief: float) -> Tensor:
    """The binary cross-entropy of a critic's logits with what it should believe of every row."""
    logits = critic(record)
    loss: Tensor = nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, belief))
    return loss


class _Generation(Objective):
    """A generator, and a critic of whole records."""

    def __init__(self, sample: _Sample, conditioned: bool, anchor: float | None, noise_epochs: int) -> None:
        self.sample, self.conditioned, self.anchor, self.noise_epochs = sample, conditioned, anchor, noise_epochs

    def begin(self, first: Batch, random: torch.Generator) -> None:
        n_own, n_record = self.sample.own.shape[1], self.sample.records.shape[1]
        self.random = random
        self.generator = _generator(self._read(first).shape[1], n_record)
        self.critic = _critic(n_own + n_record)
        rate = RATE if self.anchor is None else ANCHORED_RATE
        self.generating = torch.optim.Adam(self.generator.parameters(), rate, BETAS)
        self.criticising = torch.optim.Adam(self.critic.parameters(), RATE, BETAS)
        if self.anchor is not None:
            last = self.generator[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.imputation = _imputation(self.sample)

    def learn(self, batch: Batch) -> NDArray[np.bool_]:
        noise = 0.0 if self.anchor is not None else NOISE * max(0.0, 1 - batch.epoch / self.noise_epochs)
        fake, raw = self._fake(batch)
        own, record = self.sample.drawn(len(batch.rows), self.random)
        real, false = self._noisy(own, record, noise), self._noisy(batch.own, fake.detach(), noise)
        descend(self.criticising, _believed(self.critic, real, SMOOTHED) + _believed(self.critic, false, 0.0))
        loss = _believed(self.critic, self._noisy(batch.own, fake, noise), 1.0)
        if self.anchor is not None:
            loss = loss + self.anchor * (raw**2).sum(dim=1).mean()
        descend(self.generating, loss)
        return np.ones(len(batch.rows), np.bool_)

    def rebuild(self, batch: Batch) -> Tensor:
        return self.sample.ranges.restored(self._fake(batch)[0])

    def _read(self, batch: Batch) -> Tensor:
        return batch.joined() if self.conditioned else torch.cat(list(batch.embeddings.values()), dim=1)

    def _fake(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What the generator makes of a batch, and its own output before that is bounded."""
        raw: Tensor = self.generator(self._read(batch))
        return self.sample.bounded(raw) if self.anchor is None else (self.imputation(batch.own) + raw).clamp(0, 1), raw

    def _noisy(self, own: Tensor, record: Tensor, noise: float) -> Tensor:
        drawn = torch.randn(record.shape, generator=self.random)
        return torch.cat([own, record + noise * drawn], dim=1)


class _Hijacking(Objective):
    """An encoder and a decoder of the sample, and a critic of embeddings."""

    def __init__(self, sample: _Sample) -> None:
        self.sample = sample

    def begin(self, first: Batch, random: torch.Generator) -> None:
        n_own, n_record = self.sample.own.shape[1], self.sample.records.shape[1]
        width = first.embeddings[self.sample.owner].shape[1]
        self.random = random
        self.encoder = perceptron(n_record, (HIDDEN,), width)
        self.decoder = perceptron(width + n_own, (HIDDEN,), n_record)
        self.critic = _critic(width + n_own)
        coded = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.coding = torch.optim.Adam(coded, ENCODER_RATE)
        self.criticising = torch.optim.Adam(self.critic.parameters(), RATE, BETAS)

    def learn(self, batch: Batch) -> NDArray[np.bool_]:
        own, record = self.sample.drawn(len(batch.rows), self.random)
        code = self.encoder(record)
        descend(self.coding, ((self._decoded(code, own) - record) ** 2).sum(dim=1).mean())
        received = batch.embeddings[self.sample.owner]
        imitated = torch.cat([code.detach(), own], dim=1)
        told = torch.cat([received.detach(), batch.own], dim=1)
        descend(self.criticising, _believed(self.critic, imitated, SMOOTHED) + _believed(self.critic, told, 0.0))
        _believed(self.critic, torch.cat([received, batch.own], dim=1), 1.0).backward()  # type: ignore[no-untyped-call]
        return np.ones(len(batch.rows), np.bool_)

    def rebuild(self, batch: Batch) -> Tensor:
        return self.sample.ranges.restored(self._decoded(batch.embeddings[self.sample.owner], batch.own))

    def _decoded(self, code: Tensor, own: Tensor) -> Tensor:
        return self.sample.bounded(self.decoder(torch.cat([code, own], dim=1)))


def _imputation(sample: _Sample) -> Any:
    """A ridge regression of the owner's columns on the attacker's own, fitted to the sample."""
    if not sample.own.shape[1]:
        return lambda own: sample.records.mean(dim=0).expand(len(own), -1)
    weights, intercept = (torch.from_numpy(part).float() for part in ridge(sample.own.numpy(), sample.records.numpy()))
    return lambda own: own @ weights + intercept
