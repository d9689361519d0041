"""Feature leak: how much of a party's columns can be rebuilt from an embedding of them, measured by their owner.

A receiver of an embedding who knows some records can learn to rebuild the others. The owner tries this before sending
anything: by ridge regression and by kernel ridge regression from a twentieth of the rows, and by least squares from all
rows. The worst result counts. Stronger attacks may exist, and the receiver may have columns that are correlated with
these: this is a measurement, not a bound.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from colonnade.errors import LeakBudgetSpent, PlanError
from colonnade.parameters import is_number
from colonnade.text import nearest
from colonnade.wire.message import Float64Array

KNOWN_SHARE, LEAST_KNOWN, MOST_KNOWN, MOST_SCORED = 0.05, 50, 1_000, 2_000


@dataclass(frozen=True)
class Leak:
    """What can be rebuilt of a party's columns.

    Attributes:
        relative_mse: The squared error of what is rebuilt, relative to the columns' variance: 0 is all, 1 is nothing.
        columns: For each column the share of its variance that is rebuilt (R²).

    >>> Leak(0.25, {"age": 0.6, "income": 0.99}).worst_column
    'income'
    """

    relative_mse: float
    columns: Mapping[str, float]

    @property
    def rebuilt(self) -> float:
        """The share of all columns' variance that is rebuilt."""
        return 1 - self.relative_mse

    @property
    def worst_column(self) -> str:
        """The column that is rebuilt best."""
        return max(self.columns, key=lambda name: self.columns[name])

    @property
    def worst_r2(self) -> float:
        """How well that is rebuilt."""
        return max(self.columns.values())

    def __str__(self) -> str:
        """The two figures to judge an embedding by."""
        return f"relative MSE {self.relative_mse:.2f}, worst column R² {self.worst_r2:.2f}"


def measured_leak(embedding: Float64Array, x: Float64Array, owners: Sequence[str], random: np.random.Generator) -> Leak:
    """Try to rebuild columns from an embedding; `owners` names the column that each number is of.

    The randomness decides which records the rebuilding party knows.
    """
    order = random.permutation(len(x))
    n_known = min(max(round(KNOWN_SHARE * len(x)), LEAST_KNOWN), MOST_KNOWN, max(len(x) // 2, 1))
    known, scored = order[:n_known], order[n_known : n_known + MOST_SCORED]
    if not len(scored):
        known = scored = order
    rebuilt = [
        _ridge(embedding[known], x[known], embedding[scored]),
        _kernel_ridge(embedding[known], x[known], embedding[scored]),
        _ridge(embedding, x, embedding[scored]),
    ]
    truth = x[scored]
    spread = ((truth - truth.mean(axis=0)) ** 2).sum(axis=0)
    errors = np.stack([((each - truth) ** 2).sum(axis=0) for each in rebuilt])
    relative = float((errors.sum(axis=1) / max(spread.sum(), 1e-300)).min())
    names = np.array(owners)
    columns = {}
    for name in dict.fromkeys(owners):
        mine = names == name
        varies = spread[mine].sum() > 0
        left = float(errors[:, mine].sum(axis=1).min() / spread[mine].sum()) if varies else 1.0
        columns[name] = float(np.clip(1 - left, 0, 1))
    return Leak(float(np.clip(relative, 0, 1)), columns)


def require_budgets(
    leak_budget: Mapping[str, float] | None, column_budget: Mapping[str, float] | None, parties: Sequence[str]
) -> None:
    """Raise `PlanError` for a budget of an unknown party, a budget outside 0 to 1, or a sender without a budget."""
    for name, budget in (("leak_budget", leak_budget), ("column_budget", column_budget)):
        if budget is None:
            continue
        if not isinstance(budget, Mapping):
            raise PlanError(
                f"{name} should give a share from 0 to 1 for each feature party, but is {budget!r}. "
                f"Write {{{parties[0]!r}: 0.9}}, with the share that {parties[0]}'s owner allows."
            )
        for party, allowed in budget.items():
            if party not in parties:
                raise PlanError(
                    f"{name} should name feature parties, which are {', '.join(parties)}, but names {party!r}."
                    f"{nearest(str(party), parties)} Correct the name, or leave it out."
                )
            if not is_number(allowed) or not 0 <= allowed <= 1:
                raise PlanError(
                    f"{name} should be a share from 0 to 1, but for {party} it is {allowed!r}. Have {party}'s owner "
                    "set another."
                )
    for party in parties:
        if party not in (leak_budget or {}):
            raise PlanError(
                f"{party} should say how much of its columns' variance may be rebuilt from what it sends, from 0 to 1, "
                f"but leak_budget has no value for it. There is no default: {party}'s owner sets it. With 0, {party} "
                "sends nothing and says how much could be rebuilt."
            )


def require_within_budget(leak: Leak, party: str, allowed: float, per_column: float | None) -> None:
    """Raise `LeakBudgetSpent` if more can be rebuilt, of all columns or of any single one, than their owner allows."""
    if leak.rebuilt > allowed:
        raise LeakBudgetSpent(
            f"{party} allows {allowed:.0%} of its columns' variance to be rebuilt from what it sends, but "
            f"{leak.rebuilt:.1%} could be ({leak}). Lower components or variance, drop columns, or raise the budget."
        )
    if per_column is not None and leak.worst_r2 > per_column:
        raise LeakBudgetSpent(
            f"{party} allows {per_column:.0%} of any column's variance to be rebuilt from what it sends, but of "
            f"{leak.worst_column!r} {leak.worst_r2:.1%} could be. Drop the column, lower components or variance, or "
            "raise the budget."
        )


def _ridge(known: Float64Array, truth: Float64Array, wanted: Float64Array) -> Float64Array:
    from sklearn.linear_model import Ridge

    return _predicted(Ridge(alpha=1.0), known, truth, wanted)


def _kernel_ridge(known: Float64Array, truth: Float64Array, wanted: Float64Array) -> Float64Array:
    from sklearn.kernel_ridge import KernelRidge

    return _predicted(KernelRidge(alpha=0.1, kernel="rbf", gamma=0.5 / known.shape[1]), known, truth, wanted)


def _predicted(model: object, known: Float64Array, truth: Float64Array, wanted: Float64Array) -> Float64Array:
    mean, scale = known.mean(axis=0), np.maximum(known.std(axis=0), 1e-12)
    centre = truth.mean(axis=0)
    with warnings.catch_warnings():
        # An ill-conditioned system makes a weak attack; the strongest of the three counts.
        warnings.simplefilter("ignore")
        fitted = model.fit((known - mean) / scale, truth - centre)  # type: ignore[attr-defined]
        found = fitted.predict((wanted - mean) / scale)
    return np.asarray(np.asarray(found).reshape(len(wanted), -1) + centre)
