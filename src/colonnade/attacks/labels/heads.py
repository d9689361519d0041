"""Heads: small networks that learn the classes of all rows from a few known ones, and two ways to train them.

Self-training. The rows that a first network is surest of are taken for known.

MixMatch. Known and other rows are mixed in pairs, the others with the network's own sharpened guesses; the weights that
guess in the end are a running mean over steps. As in the code of Fu et al. 2022 there is one guess per row and no
augmentation. Berthelot et al. 2019, arXiv 1905.02249.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from colonnade.attacks.points import FITTED_ROWS, chosen_rows
from colonnade.runtime.context import Tensor
from colonnade.wire.message import Int64Array

STEPS = 150
BATCH = 256
# The share of each guessed class that is taken for known, and how much more a row counts that is known.
SURE = 0.6
KNOWN_WEIGHT = 5
# MixMatch as published: rate, rows of each kind in a step, temperature, mixing, weight of other rows, mean and decay.
MIX_RATE, MIX_BATCH, SHARPNESS, MIXING, OTHERS, MEMORY, DECAY = 2e-3, 16, 0.8, 0.75, 50.0, 0.999, 0.02


def self_trained(
    network: nn.Module,
    x: Tensor,
    known: Int64Array,
    labels: Int64Array,
    *,
    rounds: int,
    rate: float,
    random: np.random.Generator,
) -> Tensor:
    """Train a network on known rows, then in rounds also on rows that it is sure of; returns all rows' logits."""
    at, wanted = torch.from_numpy(known).to(x.device), torch.from_numpy(labels).to(x.device)
    optimiser = torch.optim.Adam(network.parameters(), rate, weight_decay=1e-3)

    def learn(rows: Tensor, classes: Tensor) -> None:
        loss = nn.functional.cross_entropy(network(x[rows]), classes)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    for _ in range(STEPS):
        learn(at, wanted)
    fitted = torch.from_numpy(chosen_rows(len(x), FITTED_ROWS, known, random)).to(x.device) if rounds else at
    for _ in range(rounds):
        scores = in_batches(network, x[fitted])
        sure, guessed = scores.softmax(dim=1).max(dim=1)
        taken = torch.cat([_surest(sure, guessed == k) for k in range(scores.shape[1])])
        rows = torch.cat([at.repeat(KNOWN_WEIGHT), fitted[taken]])
        classes = torch.cat([wanted.repeat(KNOWN_WEIGHT), guessed[taken]])
        for batch in torch.split(torch.randperm(len(rows)), BATCH):
            learn(rows[batch], classes[batch])
    return in_batches(network, x)


def mixmatched(network: nn.Module, x: Tensor, known: Int64Array, labels: Int64Array, *, steps: int) -> Tensor:
    """Train a network by MixMatch; returns all rows' logits by the running mean of the weights."""
    at, others = torch.from_numpy(known), torch.from_numpy(np.setdiff1d(np.arange(len(x)), known))
    wanted = torch.from_numpy(labels)
    n_classes = network(x[:2]).shape[1]
    mean = copy.deepcopy(network).requires_grad_(False)
    optimiser = torch.optim.Adam(network.parameters(), MIX_RATE)
    mixing = torch.distributions.Beta(torch.tensor(MIXING), torch.tensor(MIXING))
    network.train()
    for step in range(steps):
        picked = torch.randint(len(at), (MIX_BATCH,))
        rows = torch.cat([at[picked], others[torch.randint(len(others), (MIX_BATCH,))]])
        given = x[rows.to(x.device)]
        with torch.no_grad():
            sharp = network(given[MIX_BATCH:]).softmax(dim=1) ** (1 / SHARPNESS)
        targets = torch.cat([nn.functional.one_hot(wanted[picked], n_classes).to(sharp), _normalised(sharp)])
        weight, order = mixing.sample().item(), torch.randperm(len(rows)).to(x.device)
        weight = max(weight, 1 - weight)
        mixed = weight * given + (1 - weight) * given[order]
        targets = weight * targets + (1 - weight) * targets[order]
        logits = network(mixed)
        loss = nn.functional.cross_entropy(logits[:MIX_BATCH], targets[:MIX_BATCH])
        unlike = (logits[MIX_BATCH:].softmax(dim=1) - targets[MIX_BATCH:]).square().mean()
        loss = loss + OTHERS * step / steps * unlike
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            for remembered, weights in zip(mean.parameters(), network.parameters(), strict=True):
                weights.mul_(1 - DECAY * MIX_RATE)
                # A short run would otherwise remember the start.
                remembered.lerp_(weights, max(1 - MEMORY, 1 / (step + 1)))
    for kept, buffer in zip(mean.buffers(), network.buffers(), strict=True):
        kept.copy_(buffer)
    return in_batches(mean.eval(), x)


def in_batches(network: nn.Module, x: Tensor) -> Tensor:
    """What a network makes of many rows, without a graph."""
    with torch.no_grad():
        return torch.cat([network(part) for part in torch.split(x, 16 * BATCH)])


@contextmanager
def reproducible(random: np.random.Generator) -> Iterator[None]:
    """Randomness from a generator, and one thread: the number of threads shows in the last bits of a sum."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random.integers(2**31)))
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _surest(sure: Tensor, is_class: Tensor) -> Tensor:
    """The rows of a class that the network is surest of."""
    rows = is_class.nonzero()[:, 0]
    order = sure[rows].argsort(descending=True, stable=True)
    return rows[order[: int(SURE * len(rows))]]


def _normalised(values: Tensor) -> Tensor:
    return values / values.sum(dim=1, keepdim=True)
