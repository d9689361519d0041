"""Tuning alpha: what boundary wandering costs in accuracy, and what it gains against attacks, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from statistics import mean

from colonnade.attacks.base import AnyAttack
from colonnade.auditing.attempt import name_of
from colonnade.auditing.engine import make
from colonnade.auditing.settings import Simulated
from colonnade.catalogue import ATTACKS
from colonnade.data.partition import train_test_split
from colonnade.defences.wandering import BoundaryWandering
from colonnade.errors import PlanError
from colonnade.experiment.quality import quality
from colonnade.models.base import Estimator
from colonnade.progress import Bars
from colonnade.roles import Roles
from colonnade.runtime.hooks import holders_of
from colonnade.runtime.party import Defence
from colonnade.runtime.simulate import Run, simulate
from colonnade.tables.table import Table

ALPHAS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
GEOMETRIC = (
    "embedding-clusters",
    "embedding-nearest",
    "gradient-clusters",
    "gradient-nearest",
    "model-completion",
    "gradient-completion",
)


@dataclass(frozen=True)
class Tried:
    """What one alpha leads to, on average over the seeds.

    Attributes:
        accuracy: Of the joint model, on validation rows.
        attacks: What each attack scores on training rows, up to naming, as the party that does best.

    >>> Tried(1.0, 0.95, {"GradientNearest": 0.8, "EmbeddingNearest": 0.3}).worst
    0.8
    """

    alpha: float
    accuracy: float
    attacks: Mapping[str, float]

    @property
    def worst(self) -> float:
        """The score of the best attack."""
        return max(self.attacks.values())


@dataclass(frozen=True)
class Tuning:
    """Accuracy against attacks for each alpha, and the one chosen.

    Among the alphas whose accuracy is within the tolerance of the best, the one is chosen at which the best attack
    scores least; the smaller one, where two are alike. That is the best of those tried and no promise.

    >>> tuning = Tuning((Tried(0.0, 0.95, {"A": 0.9}), Tried(1.0, 0.945, {"A": 0.6})), tolerance=0.01)
    >>> tuning.chosen
    1.0
    """

    tried: tuple[Tried, ...]
    tolerance: float

    @property
    def chosen(self) -> float:
        """The alpha to use."""
        enough = max(trial.accuracy for trial in self.tried) - self.tolerance
        allowed = [trial for trial in self.tried if trial.accuracy >= enough]
        return min(allowed, key=lambda trial: (trial.worst, trial.alpha)).alpha

    def __str__(self) -> str:
        names = list(self.tried[0].attacks)
        lines = ["  ".join(["  alpha", "accuracy", "worst", *names])]
        for trial in self.tried:
            scores = [f"{trial.attacks[name]:>{len(name)}.3f}" for name in names]
            mark = "*" if trial.alpha == self.chosen else " "
            lines.append(
                "  ".join([f"{mark} {trial.alpha:>5g}", f"{trial.accuracy:8.3f}", f"{trial.worst:5.3f}", *scores])
            )
        return "\n".join(lines)


def tune_alpha(
    model: Estimator,
    tables: Mapping[str, Table],
    *,
    roles: Roles,
    wandering: BoundaryWandering | None = None,
    beside: Sequence[Defence] = (),
    alphas: Sequence[float] = ALPHAS,
    attacks: Sequence[AnyAttack] | None = None,
    validation: float = 0.25,
    tolerance: float = 0.01,
    seeds: Sequence[int] = (0,),
    progress: bool | None = None,
) -> Tuning:
    """Train with each alpha, measure accuracy on validation rows, and attack.

    Everything is simulated, so this process holds all tables. Between real parties a label party tunes on tables like
    theirs; an alpha chosen by true labels and told to others tells a little about these labels.

    The party that computes the loss holds the defence: the label party, or a server that was given the labels. All
    other parties attack.

    Args:
        model: The classifier, not fitted.
        tables: The parties' rows, in one common order.
        roles: Who does what.
        wandering: The defence whose alpha is tuned, with its scope, kernel and weighting.
        beside: Other defences that the same party holds, after it.
        alphas: The values to try.
        attacks: What to attack with; if None, clusters, nearest known rows and completion, on embeddings and gradients.
        validation: The share of rows that accuracy is measured on.
        tolerance: How much accuracy may be given up.
        seeds: Each alpha is tried with each of these.
        progress: Whether to show a bar over the runs; None shows it on a terminal only.
    """
    if not alphas or not seeds:
        raise PlanError(
            "tune_alpha should be given at least one alpha and one seed, but alphas is "
            f"{tuple(alphas)} and seeds is {tuple(seeds)}. Add what is missing."
        )
    if roles.label is None:
        raise PlanError("tune_alpha needs a label party, but the roles name none. Name one.")
    if model.task != "classification":
        raise PlanError(
            "tune_alpha needs a classifier, whose accuracy it measures and whose classes attacks look for, but "
            f"{type(model).__name__} is a regression. Give a classifier."
        )
    defences = {alpha: _with_alpha(wandering or BoundaryWandering(), alpha) for alpha in alphas}
    holder = _holder(model, roles, next(iter(defences.values())))
    made = [ATTACKS[name]() for name in GEOMETRIC] if attacks is None else list(attacks)
    train, held_out = train_test_split(tables, test=validation)
    tried: dict[float, list[Tried]] = {alpha: [] for alpha in alphas}
    with Bars(progress) as bars:
        for alpha, seed in bars.track("alphas", [(alpha, seed) for alpha in alphas for seed in seeds]):
            held = {holder: [defences[alpha], *beside]}
            run = simulate(model.fit, train, roles=roles, seed=seed, defences=held)
            attackers = [party for party in roles.parties if party not in (roles.label, holder)]
            scores = {name_of(attack): _best(run, attack, attackers, seed) for attack in made}
            applied = {name: score for name, score in scores.items() if score is not None}
            tried[alpha].append(Tried(alpha, quality(run, held_out)["accuracy"], applied))
    common = [name for name in map(name_of, made) if all(name in t.attacks for ts in tried.values() for t in ts)]
    if not common:
        raise PlanError(
            "tune_alpha needs an attack that applies to every run, but none of "
            f"{', '.join(map(name_of, made)) or 'no attacks'} does. Give others, or more rows of each class."
        )
    return Tuning(tuple(_averaged(trials, common) for trials in tried.values()), tolerance)


def _averaged(trials: Sequence[Tried], attacks: Sequence[str]) -> Tried:
    """What was tried with one alpha, as one."""
    scores = {name: mean(trial.attacks[name] for trial in trials) for name in attacks}
    return Tried(trials[0].alpha, mean(trial.accuracy for trial in trials), scores)


def _with_alpha(wandering: BoundaryWandering, alpha: float) -> BoundaryWandering:
    """The same defence with another alpha, if that is one."""
    settings = {name: getattr(wandering, name) for name in signature(type(wandering)).parameters}
    return type(wandering)(**{**settings, "alpha": alpha})


def _holder(model: Estimator, roles: Roles, defence: Defence) -> str:
    """The party that knows labels and computes the loss, which a server may be."""
    parties = {"label": roles.label, "server": roles.server}
    for role in holders_of(defence, model.sides()):
        party = parties.get(role)
        if party is not None:
            return party
    raise PlanError(
        f"tune_alpha needs a model that trains on labels and on what {defence.name} adds to the loss, but no party of "
        f"{type(model).__name__} does with {roles}. Use a split network."
    )


def _best(run: Run[Estimator], attack: AnyAttack, attackers: Sequence[str], seed: int) -> float | None:
    """The best score of an attack over the attackers that can make it; None if none can."""
    made, _ = make(Simulated(run, seed=seed), [attack], lambda name: name in attackers)
    return max((each.truth.scores(each.guess).up_to_naming for each in made), default=None)
