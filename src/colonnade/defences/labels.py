"""Randomised labels: everything a feature party receives is computed from labels that were randomised once.

Each label is kept with probability e^epsilon / (e^epsilon + K - 1) and otherwise replaced by any other class. Whatever
is computed from randomised labels alone is epsilon label-private, by post-processing, however often it is repeated:
gradients, early stopping, all epochs, against attacks not thought of yet. The ledger is charged once.

The classes are public. They are the ones that occur among the true labels, and their number decides how labels are
randomised, so a class that only one row has is not hidden.

This bounds what can be inferred about one label from the messages. It does not make messages useless to an attacker:
the randomised labels of many rows train a good classifier on the attacker's own columns.

Warner 1965; Ghazi et al. 2021, "Deep learning with label differential privacy", arXiv 2102.06062.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch

from colonnade.defences.base import classes_of
from colonnade.errors import DataError, PlanError
from colonnade.parameters import Limit, check_parameters, number
from colonnade.privacy.mechanisms import RandomisedResponse
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.hooks import index_of
from colonnade.runtime.party import Defence, Party
from colonnade.wire.message import Int64Array


class RandomisedLabels(Defence):
    """Labels randomised once, before their first use in the federated track; in validation, too.

    Where there is a local track that nothing flows back from, it learns from the true labels. Which classes there are
    is not protected.

    Args:
        epsilon: What one label costs; smaller is more private.

    >>> RandomisedLabels(epsilon=0.5).name
    'RandomisedLabels(epsilon=0.5)'
    """

    reads_labels = True
    named_by = "epsilon"
    limits: ClassVar[Mapping[str, Limit]] = {"epsilon": number(above=0)}

    def __init__(self, *, epsilon: float = 1.0) -> None:
        self.epsilon = epsilon
        check_parameters(self)
        self.known_by = (
            ("randomised-posterior", {}),
            ("randomised-posterior", {"epsilon": epsilon}),
            ("averaged-gradients", {}),
            ("co-training", {}),
        )

    def before_run(self, party: Party) -> None:
        if party.table is None:
            raise PlanError(
                f"{self.name} randomises labels before they leave their owner, but {party.name}, which holds the "
                "defence, has no table and would be given the true labels. Give the defence to the label party."
            )
        self._party, self._place = party, index_of(self, party)
        self._shifts: Int64Array | None = None

    def labels(self, labels: Tensor, at: HookContext) -> Tensor:
        if at.track == "local":
            return labels
        classes = classes_of(at, "RandomisedLabels replaces classes by others")
        if self._shifts is None:
            self._shifts = self._drawn(classes)
        shifts = torch.from_numpy(self._shifts[at.rows]).to(labels)
        return (labels + shifts) % classes

    def _drawn(self, n_classes: int) -> Int64Array:
        """By how much each row's class is moved on.

        Drawn for the whole table in one release, which is the same when it is repeated after a crash. A shift does not
        depend on the class it moves, so that it randomises whatever label another defence has put in its place.
        """
        table = self._party.own_table
        if table.labels is None:
            raise DataError(
                f"{self._party.name} holds {self.name}, but its table has no labels. Name the label column."
            )
        classes, numbers = np.unique(np.asarray(table.labels), return_inverse=True)
        if len(classes) != n_classes:
            raise DataError(
                f"{self._party.name}'s table should have labels of {n_classes} classes, but has {len(classes)}. "
                "Bring the rows the model was trained with."
            )
        randomised = RandomisedResponse(self.epsilon, n_classes).release(
            numbers,
            random=self._party.random,
            ledger=self._party.ledger,
            path=("randomised labels", self._place),
            by=self.name,
        )
        return np.asarray((randomised - numbers) % n_classes, np.int64)
