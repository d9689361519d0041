"""Tuning components: what the width of a one-shot embedding gives in accuracy, and what it gives away, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from colonnade.data.partition import train_test_split
from colonnade.errors import PlanError
from colonnade.experiment.quality import quality
from colonnade.models.networks.oneshot import OneShotNetwork
from colonnade.progress import Bars
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table

COMPONENTS = (1, 2, 4, 8, 16, 32, None)


@dataclass(frozen=True)
class TriedComponents:
    """What a number of components leads to, on average over the seeds.

    Attributes:
        components: The number; None is the rule of the model.
        quality: Of the joint model on validation rows: its accuracy, or R² of a regression.
        worst_r2: How well the column is rebuilt that is rebuilt best, of any feature party.
        rebuilt: The share of all columns' variance that is rebuilt, of the feature party of which most is.
    """

    components: int | None
    quality: float
    worst_r2: float
    rebuilt: float


@dataclass(frozen=True)
class ComponentTuning:
    """Quality against rebuilt columns for each number of components, and the number chosen.

    Among the numbers whose quality is within the tolerance of the best, the one is chosen at which the best rebuilt
    column is rebuilt least. That is the best of those tried and no promise.

    >>> tried = TriedComponents(8, 0.91, 0.99, 0.9), TriedComponents(4, 0.905, 0.8, 0.6)
    >>> ComponentTuning(tried, tolerance=0.01).chosen
    4
    """

    tried: tuple[TriedComponents, ...]
    tolerance: float

    @property
    def chosen(self) -> int | None:
        """The number of components to use; None is the rule of the model."""
        enough = max(trial.quality for trial in self.tried) - self.tolerance
        allowed = [trial for trial in self.tried if trial.quality >= enough]
        return min(allowed, key=lambda trial: (trial.worst_r2, trial.rebuilt)).components

    def __str__(self) -> str:
        lines = ["  components  quality  worst column R²  rebuilt"]
        for trial in self.tried:
            mark = "*" if trial.components == self.chosen else " "
            name = "by rule" if trial.components is None else trial.components
            lines.append(f"{mark} {name:>10}  {trial.quality:7.3f}  {trial.worst_r2:15.2f}  {trial.rebuilt:7.2f}")
        return "\n".join(lines)


def tune_components(
    model: OneShotNetwork,
    tables: Mapping[str, Table],
    *,
    roles: Roles,
    components: Sequence[int | None] = COMPONENTS,
    validation: float = 0.25,
    tolerance: float = 0.01,
    seeds: Sequence[int] = (0,),
    progress: bool | None = None,
) -> ComponentTuning:
    """Train with each number of components, measure quality on validation rows, and what could be rebuilt of columns.

    Everything is simulated, so this process holds all tables: between real parties, a party tunes on its own data, cut
    in two as the columns of the parties are. A number chosen by true labels and told to a feature party tells a little
    about these labels. Budgets of the model do not count here: what is simulated is sent to nobody.

    Args:
        model: The one-shot model, not fitted.
        tables: The parties' rows, in one common order.
        roles: Who does what.
        components: The numbers to try; None is the rule of the model.
        validation: The share of rows that quality is measured on.
        tolerance: How much quality may be given up.
        seeds: Each number is tried with each of these.
        progress: Whether to show a bar over the runs; None shows it on a terminal only.
    """
    if not components or not seeds:
        raise PlanError(
            "tune_components should be given at least one number of components and one seed, but components is "
            f"{tuple(components)} and seeds is {tuple(seeds)}. Add what is missing."
        )
    free = model.clone().set_params(leak_budget=dict.fromkeys(roles.features, 1.0), column_budget=None)
    train, held_out = train_test_split(tables, test=validation)
    measure = "accuracy" if model.task == "classification" else "R2"
    found: dict[int | None, list[TriedComponents]] = {number: [] for number in components}
    with Bars(progress) as bars:
        for number, seed in bars.track("components", [(number, seed) for number in components for seed in seeds]):
            fit = free.clone().set_params(components=number).fit
            run = simulate(fit, train, roles=roles, seed=seed, keep="digests")
            leaks = [leak for name in roles.features if (leak := run.results[name].leak_) is not None]
            worst, rebuilt = max(leak.worst_r2 for leak in leaks), max(leak.rebuilt for leak in leaks)
            found[number].append(TriedComponents(number, quality(run, held_out)[measure], worst, rebuilt))
    return ComponentTuning(tuple(_averaged(trials) for trials in found.values()), tolerance)


def _averaged(trials: Sequence[TriedComponents]) -> TriedComponents:
    """What was tried with one number of components, as one."""
    means = {name: mean(getattr(trial, name) for trial in trials) for name in ("quality", "worst_r2", "rebuilt")}
    return TriedComponents(trials[0].components, **means)
