"""Spectra: the direction in which embeddings vary most, and the slow directions of their neighbourhoods.

Training pulls the embeddings of two classes apart, most of all along one direction. Sun et al. 2022, "Label leakage and
protection from forward embedding in vertical federated learning", arXiv 2203.01451. More than two classes are the
clusters of a graph of neighbours: Ng et al. 2001, "On spectral clustering".

The graph has at most 2,000 rows; every other row follows the five nearest of these.
"""

from __future__ import annotations

import numpy as np

from colonnade.attacks.base import Attack, Guess, Inapplicable, Needs, View
from colonnade.attacks.labels.spreading import followed, neighbour_links
from colonnade.attacks.points import (
    KNOWN_PER_CLASS,
    LANDMARKS,
    Points,
    chosen_rows,
    cluster_names,
    distances,
    k_means,
)
from colonnade.models.networks.messages import Embedding


class SpectralScore(Attack):
    """Rows far out along the main direction of the attacker's embeddings are of the rarer class, taken for the last."""

    needs = Needs(messages=(Embedding,))

    def why_not(self, view: View) -> str | None:
        if view.grant.n_classes != 2:
            return Inapplicable(f"it tells two classes apart and this run has {view.grant.n_classes}")
        return Points.of_embeddings(view).why_not(view.grant, known=False)

    def guess(self, view: View) -> Guess:
        """Score rows along the direction of most variance, towards the smaller of its two clusters."""
        points = Points.of_embeddings(view)
        centred = points.values - points.values.mean(axis=0)
        along = centred @ np.linalg.eigh(centred.T @ centred)[1][:, -1]
        member, centres = k_means(along[:, None], 2, view.random)
        smaller = np.bincount(member, minlength=2).argmin()
        return Guess(points.rows, scores=along * np.sign(centres[smaller, 0] - centres[1 - smaller, 0]))


class SpectralClusters(Attack):
    """Clusters of a graph of neighbours among the attacker's own embeddings, named by a few known rows."""

    needs = Needs(messages=(Embedding,), known_labels=KNOWN_PER_CLASS)

    def why_not(self, view: View) -> str | None:
        return Points.of_embeddings(view).why_not(view.grant)

    def guess(self, view: View) -> Guess:
        from scipy.linalg import eigh

        points, n_classes = Points.of_embeddings(view).directions(), view.grant.n_classes
        known, labels = points.known(view.grant)
        landmarks = chosen_rows(len(points.rows), LANDMARKS, known, view.random)
        n = len(landmarks)
        links = neighbour_links(points.values[landmarks]).toarray()
        slow = eigh(links, subset_by_index=(n - min(n, n_classes), n - 1))[1]
        slow = Points(landmarks, slow).directions().values
        member, centres = k_means(slow, n_classes, view.random)
        at = np.searchsorted(landmarks, known)
        names = cluster_names(member, at, labels, distances(centres, slow[at]), n_classes)
        found = np.eye(n_classes)[names[member]]
        return Guess.classified(points.rows, followed(points.values, landmarks, found))
