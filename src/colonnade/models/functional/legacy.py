"""The published boosting algorithm, to the letter, for comparison with the corrected one and for nothing else.

It works on raw coefficients with a loss that is not the L2 loss of curves; its increments estimate the whole operator
from the partial residual and are added all the same, so that features selected again overshoot; its cross-validation
uses residuals and penalised matrices of all rows, so that what is left out is not left out. Only the Kronecker solve is
replaced by one that gives the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from colonnade.models.functional.guard import TrainingRows
from colonnade.models.functional.path import PathStopping
from colonnade.models.functional.rules import FittingRule, RuleFit
from colonnade.models.functional.solve import PenalisedSolver
from colonnade.runtime.party import Party

MIXING = 0.05
RIDGE = 1e-6


@dataclass(frozen=True)
class LegacyRule(FittingRule):
    """The published algorithm on raw coefficients, turned into coordinates for everything that comes after."""

    is_judged: ClassVar[bool] = False

    stopping: PathStopping
    shrinkage: float

    def fit(self, party: Party, rows: TrainingRows, correction: float, *, without: int | None = None) -> RuleFit:
        penalties, stopping, shrinkage = self.penalties, self.stopping, self.shrinkage
        x, y = rows.z @ self.x.inverse_root, rows.y @ self.y.inverse_root
        noise = self.x.inverse_root @ rows.noise @ self.x.inverse_root
        omegas = self.x.penalty(penalties.operator_s), self.y.penalty(penalties.operator_t)
        n, features, size = x.shape
        z = (x - x.mean(axis=0)).transpose(1, 0, 2)
        target = y - y.mean(axis=0)
        solvers = []
        for j in range(features):
            gram = z[j].T @ z[j] / (n - 1) - noise[j]
            level = np.trace(gram) / size
            a1 = (1 - MIXING) * (gram + penalties.s * omegas[0]) + (MIXING * level + RIDGE) * np.eye(size)
            values, vectors = np.linalg.eigh((a1 + a1.T) / 2)
            a1 = (vectors * np.maximum(values, RIDGE)) @ vectors.T
            a2 = penalties.t * np.eye(size) + penalties.st * omegas[0]
            solvers.append(PenalisedSolver(a1, a2, omegas[1]))
        a, b = rows.half("A"), rows.half("B")
        parts = {"all": np.arange(n), "a": a, "b": b}
        found = np.zeros((features, size, y.shape[1]))
        fitted = np.zeros_like(target)
        held_out = {"a": np.zeros((len(b), y.shape[1])), "b": np.zeros((len(a), y.shape[1]))}
        best, kept, since = np.inf, None, 0
        selected: list[int] = []
        traces: dict[str, list[float]] = {"cv": [], "sse": []}
        while len(selected) < stopping.max_steps and since < stopping.patience:
            scores, candidates = np.zeros(features), []
            for j in range(features):
                partial = target - fitted + z[j] @ found[j]
                step = {
                    name: solvers[j].solve(z[j][part].T @ partial[part] / (len(part) - 1))
                    for name, part in parts.items()
                }
                for train, test in (("a", b), ("b", a)):
                    error = ((z[j][test] @ step[train] - partial[test]) ** 2).sum()
                    scores[j] += error - (len(test) - 1) * np.einsum("qk,qr,rk->", step[train], noise[j], step[train])
                candidates.append(step)
            j = int(np.argmin(scores))
            selected.append(j)
            found[j] += shrinkage * candidates[j]["all"]
            fitted = fitted + shrinkage * z[j] @ candidates[j]["all"]
            held_out["a"] += shrinkage * z[j][b] @ candidates[j]["a"]
            held_out["b"] += shrinkage * z[j][a] @ candidates[j]["b"]
            cv = float(((target[b] - held_out["a"]) ** 2).sum() + ((target[a] - held_out["b"]) ** 2).sum())
            traces["cv"].append(cv)
            traces["sse"].append(float(((target - fitted) ** 2).sum()))
            if len(selected) >= stopping.min_steps:
                if cv + 1e-8 < best:
                    best, since = cv, 0
                    kept = (found.copy(), len(selected))
                else:
                    since += 1
        operators, n_steps = (found, len(selected)) if kept is None else kept
        return RuleFit(self.x.inverse_root @ operators @ self.y.root, tuple(selected[:n_steps]), traces)
