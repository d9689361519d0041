"""Comparing defences: what each attack scores in a run beside its controls, and which attack does best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import mean
from typing import Any

from colonnade.attacks.base import AnyAttack
from colonnade.attacks.labels.strongest import Strongest
from colonnade.auditing import audit
from colonnade.catalogue import attacks_of_audit
from colonnade.experiment.measurement import attack_figures
from colonnade.models.base import Estimator
from colonnade.runtime.simulate import Run
from colonnade.secret import Secret

JOINED = Strongest.__name__


@dataclass(frozen=True)
class Standing:
    """How an attack on labels did, under the names of the classes that suit it best.

    Attributes:
        score: On rows whose labels it was not told.
        null: The same attack's mean score in runs with permuted labels.
        alone: What the attacker reaches with its own columns and the same known labels.

    >>> Standing(score=0.9, null=0.5, alone=0.75).excess
    0.15
    """

    score: float
    null: float
    alone: float

    @property
    def excess(self) -> float:
        """By how much it exceeds the attacker alone."""
        return round(self.score - self.alone, 12)


def standings(
    run: Run[Estimator],
    attacks: Sequence[AnyAttack] | None = None,
    *,
    nulls: int,
    seed: int,
) -> dict[str, Standing]:
    """Make attacks on the labels of a run, and say how each did.

    Args:
        run: The run to attack.
        attacks: What to attack with; if None, those of an ordinary audit. Those that do not apply are left out.
        nulls: How many times the run is repeated with permuted labels.
        seed: Grants, permutations and the attacks' own randomness follow from it.
    """
    made = attacks_of_audit() if attacks is None else attacks
    on_labels = [attack for attack in made if attack.about is Secret.LABELS]
    report = audit(run, on_labels, nulls=nulls, seed=seed, progress=False)
    return standings_in(attack_figures(report))


def standings_in(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Standing]:
    """How each attack did that was made, from the figures of a measurement."""
    made = {name: each for name, each in figures.items() if "score" in each}
    return {name: Standing(each["score"], each["null"], each["alone"]) for name, each in made.items()}


def averaged(trials: Sequence[Mapping[str, Standing]]) -> dict[str, Standing]:
    """The standing of each attack that was made in every trial, on average over the trials."""
    common = [name for name in trials[0] if all(name in trial for trial in trials)]
    return {
        name: Standing(*map(mean, zip(*(astuple(trial[name]) for trial in trials), strict=True))) for name in common
    }


def singles(found: Mapping[str, Standing]) -> dict[str, Standing]:
    """The attacks without the one that joins them."""
    return {name: standing for name, standing in found.items() if name != JOINED}


def best_of(found: Mapping[str, Standing]) -> str:
    """The single attack with the highest score."""
    return max(singles(found), key=lambda name: found[name].score)


def defence_score(attack: float, main: float, *, best_main: float, ideal_attack: float = 0.0) -> float:
    """How good a trade a defence is against one attack, from 0 to 1: VFLAIR's defence capability score (DCS).

    As published, an ideal defence leaves the attack at 0 and the main task where it was; both count alike. An attack
    below chance then counts as a better defence, though its labels are only renamed. `ideal_attack` at what the
    attacker reaches alone, and scores under the best names of the classes, mend this.

    Args:
        attack: The attack's score.
        main: The main task's score with the defence.
        best_main: The main task's score without a defence.
        ideal_attack: The attack's score that nobody can prevent.

    >>> round(defence_score(1.0, 0.975, best_main=0.975), 4)
    0.5858
    """
    away = max(attack - ideal_attack, 0.0), max(best_main - main, 0.0)
    return 1 / (1 + math.sqrt(0.5 * away[0] ** 2 + 0.5 * away[1] ** 2))


@dataclass(frozen=True)
class DefenceScores:
    """What a defence is worth against all attacks on labels.

    Attributes:
        published: VFLAIR's T-DCS: the mean of the published score over the attacks of one kind. With attacks on labels
            only, their mean over kinds of attack, C-DCS, is the same number.
        beyond_alone: The same mean where an attack counts only beyond chance and what the attacker reaches alone.
    """

    published: float
    beyond_alone: float

    @classmethod
    def of(cls, found: Mapping[str, Standing], main: float, *, best_main: float) -> DefenceScores:
        """The scores from how each attack stands."""
        return cls(
            mean(defence_score(each.score, main, best_main=best_main) for each in found.values()),
            mean(
                defence_score(each.score, main, best_main=best_main, ideal_attack=each.alone) for each in found.values()
            ),
        )


def mean_over_kinds(published: Mapping[str, float]) -> float:
    """VFLAIR's C-DCS: the mean of T-DCS over kinds of attack, such as attacks on labels and on columns.

    >>> mean_over_kinds({"labels": 0.5, "columns": 0.75})
    0.625
    """
    return mean(published.values())
