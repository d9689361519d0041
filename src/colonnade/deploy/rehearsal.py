"""Rehearsal: the label party trains and audits alone, with columns made up in the place of the others'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from colonnade.curves import CurvesType
from colonnade.errors import DataError, PlanError
from colonnade.plans.plan import Plan
from colonnade.privacy.randomness import Randomness
from colonnade.tables.encode import Inputs
from colonnade.tables.table import Table

if TYPE_CHECKING:
    from colonnade.auditing.report import PrivacyReport

MOST_ROWS = 1000
COLUMNS = 8
TOLD = 0.5
"""How much of each made-up column follows the labels and the label party's own columns; the rest is noise."""


def rehearse(plan: Plan, name: str, *, most_rows: int = MOST_ROWS) -> PrivacyReport:
    """Train as planned with made-up partners, and audit what they could have learned about the labels.

    Nobody else is asked, and nothing leaves. What feature parties could learn from gradients depends little on their
    columns; how good the model is depends on them, so a rehearsal says nothing about that.

    Args:
        plan: What will be run.
        name: The label party.
        most_rows: On how many of its rows.
    """
    from colonnade.auditing import audit

    if name != plan.roles.label:
        raise PlanError(
            f"A rehearsal needs labels, but {name} is not the label party. Run it at {plan.roles.label or 'the party'}."
        )
    own = plan.load((name,))[name]
    if own.labels is None or isinstance(own.labels.type, CurvesType):
        raise DataError(
            f"{name} should have a label column of classes or numbers to rehearse with, but has "
            f"{'none' if own.labels is None else 'curves'}. Name such a column, or rehearse with colonnade simulate."
        )
    labelled = own.take(np.asarray(own.labels.is_valid(), np.bool_))
    seed = Randomness.seeded(plan.seed, "rehearsal").seed()
    chosen = np.sort(np.random.default_rng(seed).permutation(len(labelled))[:most_rows])
    tables = {name: labelled.take(chosen).numbered()}
    tables |= stand_ins(tables[name], plan.roles.features, seed)
    run = replace(plan, evaluate=None).simulation(tables).run()
    attacks = plan.audit.build(plan.defences)
    return audit(run, attacks, nulls=plan.audit.nulls, seed=plan.audit.seed, delta=plan.audit.delta)


def stand_ins(own: Table, names: tuple[str, ...], seed: int) -> Mapping[str, Table]:
    """Tables of made-up columns in the place of feature parties', which correlate with labels and own columns."""
    generator, labels = np.random.default_rng(seed), np.asarray(own.labels)
    told = (labels if labels.dtype.kind == "f" else np.unique(labels, return_inverse=True)[1]).reshape(-1, 1)
    if own.columns:
        told = np.hstack([told, Inputs.learned(own, np.arange(len(own)), 20).one_hot(own)[0]])
    told = (told - told.mean(axis=0)) / np.maximum(told.std(axis=0), 1e-9)
    made = {}
    for name in names:
        mixed = told @ generator.normal(size=(told.shape[1], COLUMNS)) / np.sqrt(told.shape[1])
        mixed = np.sqrt(TOLD) * mixed + np.sqrt(1 - TOLD) * generator.normal(size=mixed.shape)
        columns = {f"made up {i}": mixed[:, i] for i in range(COLUMNS)}
        made[name] = Table.of({"id": np.arange(len(own)), **columns}, ids="id", owner=name)
    return made
