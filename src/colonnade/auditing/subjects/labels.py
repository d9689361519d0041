"""Labels: every other party guesses the label party's classes.

Granted: some labels of each class. Null: the run again with shuffled labels, scored against the true ones. Baseline:
ordinary methods on the attacker's own columns with the same known labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from colonnade.attacks.base import AnyAttack, Grant
from colonnade.auditing.attempt import Attempt
from colonnade.auditing.baseline import Baseline, attacker_alone
from colonnade.auditing.evidence import Evidence
from colonnade.auditing.subjects.base import Judgement, Made, Subject, Tables, Values
from colonnade.auditing.subjects.classes import ClassTruth, best_named, chance, measure_of, with_interval
from colonnade.curves import CurvesType
from colonnade.privacy.randomness import Randomness
from colonnade.roles import Roles
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.wire.message import Int64Array


class LabelsSubject(Subject):
    """The label party's classes."""

    secret = Secret.LABELS
    grants = frozenset({"known_labels"})
    one_owner = True

    def owners(self, attack: AnyAttack, roles: Roles) -> Sequence[str | None]:
        return (roles.label,)

    def why_not_scorable(self, owner: str | None, tables: Tables) -> str | None:
        labels = None if owner is None else tables[owner].labels
        if labels is None:
            return "nobody in this run holds labels" if owner is None else f"{owner} holds no labels"
        if isinstance(labels.type, CurvesType):
            return f"{owner}'s labels are curves, and it guesses classes"
        values = np.asarray(labels)
        if values.dtype.kind == "f" and (values % 1 != 0).any():
            return f"{owner}'s labels are measurements, and it guesses classes"
        return None

    def grant(self, attack: AnyAttack, owner: str, tables: Tables, rows: Int64Array, random: Randomness) -> Grant | str:
        labels, n_classes = class_numbers(tables[owner])
        order, known = random.generator("grant").permutation(len(labels)), attack.needs.known_labels
        grant = draw_grant(labels, n_classes, known, rows, order, owner)
        return grant or f"it must be told {known} labels per class, and one class has fewer"

    def truth(self, attempt: Attempt, tables: Tables, rows: Int64Array, random: Randomness) -> ClassTruth:
        return ClassTruth.of(class_numbers(tables[attempt.grant.owner])[0], attempt.grant)

    def shuffled(self, tables: Tables, roles: Roles, attacker: str, random: Randomness) -> dict[str, Table]:
        assert roles.label is not None
        table = tables[roles.label]
        return {roles.label: table.with_labels(random.generator("labels").permutation(np.asarray(table.labels)))}

    def baseline(self, made: Made, table: Table | None, random: Randomness) -> Baseline:
        attempt = made.attempt
        generator = random.generator("alone", attempt.attacker, attempt.attack.needs.known_labels)
        return attacker_alone(table, attempt.grant, made.guess.rows, generator)

    def judge(
        self, made: Made, null: Sequence[Values], baseline: Any, random: np.random.Generator, delta: float
    ) -> Judgement:
        guess, truth = made.guess, made.truth
        assert isinstance(truth, ClassTruth)
        measure = measure_of(guess)
        by_chance = chance(measure, truth, guess.rows)
        plain = Evidence(
            with_interval(guess, truth, random),
            by_chance,
            tuple(values.plain for values in null),
            None if baseline is None else baseline.best(guess.rows, measure, truth),
        )
        up_to_naming = Evidence(
            with_interval(best_named(guess, truth), truth, random),
            by_chance,
            tuple(values.up_to_naming for values in null),
            None if baseline is None else baseline.best_up_to_naming(guess.rows, measure, truth),
        )
        return Judgement(plain, up_to_naming)


def class_numbers(table: Table) -> tuple[Int64Array, int]:
    """A table's labels as class numbers in the sorted order of the classes, and how many classes there are."""
    classes, numbers = np.unique(np.asarray(table.labels), return_inverse=True)
    return numbers.astype(np.int64), len(classes)


def draw_grant(
    labels: Int64Array, n_classes: int, per_class: int, rows: Int64Array, order: Int64Array, owner: str = ""
) -> Grant | None:
    """Tell some labels of each class; None where a class has too few rows.

    Args:
        labels: Every row's class.
        n_classes: How many classes there are.
        per_class: How many labels of each to tell.
        rows: The rows to draw from.
        order: All rows in random order. A larger grant from the same order contains the smaller one.
        owner: Whose labels these are.
    """
    candidates = order[np.isin(order, rows)]
    of_class = [candidates[labels[candidates] == number][:per_class] for number in range(n_classes)]
    if any(len(drawn) < per_class for drawn in of_class):
        return None
    granted = np.sort(np.concatenate(of_class))
    return Grant(n_classes, granted, labels[granted], owner=owner)
