"""Passive inversion by a network: from embeddings, own columns and labels to records, learned from a few known records.

The comparison that is usual in publications. A ridge regression (`passive`) on the same records is mostly better.
"""

from __future__ import annotations

import copy

import numpy as np
import torch

from colonnade.attacks.base import Grant, Guess, View
from colonnade.attacks.columns.passive import InformedRidge
from colonnade.attacks.columns.tampering import HIDDEN, Ranges, descend
from colonnade.attacks.points import Points
from colonnade.models.networks.modules import perceptron

STEPS, EVERY, BATCH = 600, 20, 64
RATE, DECAY = 2e-3, 1e-4


class PassiveNetwork(InformedRidge):
    """Columns are what a small network makes of the embedding and of the attacker's own columns and labels.

    >>> PassiveNetwork().needs.own_features
    True
    """

    def guess(self, view: View) -> Guess:
        return network_guess(self.points(view), view.grant, seed=int(view.random.integers(2**31)))


def network_guess(points: Points, grant: Grant, *, seed: int) -> Guess:
    """A guess of every point's record, by a network that learns from the known records and stops by a fifth of them."""
    points = points.standardised()
    has_point = np.isin(grant.rows, points.rows)
    x = torch.from_numpy(points.values).float()
    known = x[torch.from_numpy(np.searchsorted(points.rows, grant.rows[has_point]))]
    records = grant.records[has_point]
    ranges = Ranges.of(records)
    wanted = ranges.scaled(records)
    n_held_out = max(1, len(known) // 5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = perceptron(x.shape[1], (HIDDEN,), wanted.shape[1])
        optimizer = torch.optim.Adam(network.parameters(), RATE, weight_decay=DECAY)
        best, kept = np.inf, copy.deepcopy(network)
        for step in range(STEPS):
            rows = n_held_out + torch.randperm(len(known) - n_held_out)[:BATCH]
            descend(optimizer, ((network(known[rows]) - wanted[rows]) ** 2).mean())
            if (step + 1) % EVERY == 0:
                with torch.no_grad():
                    error = float(((network(known[:n_held_out]) - wanted[:n_held_out]) ** 2).mean())
                if error < best:
                    best, kept = error, copy.deepcopy(network)
        with torch.no_grad():
            values = ranges.restored(kept(x)).numpy().astype(np.float64)
    return Guess(points.rows, values=values)
