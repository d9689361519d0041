"""The section [privacy] of a plan: how much a party may release about its records, over all runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from colonnade.errors import PlanError
from colonnade.secret import Secret
from colonnade.text import nearest

_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?"


@dataclass(frozen=True)
class PlannedPrivacy:
    """What each party of a plan may spend on its own secrets, over all runs on the same records.

    Attributes:
        budget: For each secret the epsilon and the delta.

    >>> PlannedPrivacy({"labels": (2.0, 1e-5)}).budgets
    {<Secret.LABELS: 'labels'>: (2.0, 1e-05)}
    """

    budget: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse unknown secrets and impossible numbers."""
        secrets = [secret.value for secret in Secret]
        for secret, (epsilon, delta) in self.budget.items():
            if secret not in secrets:
                raise PlanError(
                    f"[privacy] budget takes {', '.join(secrets)}, but has the key {secret!r}."
                    f"{nearest(secret, secrets)} Correct the key."
                )
            if not (epsilon >= 0 and 0 <= delta < 1):
                raise PlanError(
                    f"[privacy] budget.{secret} should be an epsilon of at least 0 and a delta of at least 0 and below "
                    f"1, but is {epsilon:g} and {delta:g}. Write numbers such as [2.0, 1e-5]."
                )

    @property
    def budgets(self) -> dict[Secret, tuple[float, float]]:
        """The (epsilon, delta) that may be spent, by secret."""
        return {Secret(secret): allowed for secret, allowed in self.budget.items()}

    def with_options(self, options: Iterable[str]) -> PlannedPrivacy:
        """The same with budgets of the command line, each as `secret=epsilon,delta`, in place of those of the plan.

        >>> PlannedPrivacy().with_options(["labels=2,1e-5"]).budget
        {'labels': (2.0, 1e-05)}
        """
        budget = dict(self.budget)
        for option in options:
            found = re.fullmatch(rf"(\w+)=({_NUMBER}),({_NUMBER})", option)
            if found is None:
                raise PlanError(
                    f"--budget should be a secret with epsilon and delta, but is {option!r}. Write it as labels=2,1e-5."
                )
            budget[found[1]] = (float(found[2]), float(found[3]))
        return PlannedPrivacy(budget)
