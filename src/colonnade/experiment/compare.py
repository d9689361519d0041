"""Comparing defences: what each attack scores in a run beside its controls, and which attack does best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import mean

from colonnade.attacks.base import AnyAttack
from colonnade.auditing import audit
from colonnade.catalogue import attacks_of_audit
from colonnade.models.base import Estimator
from colonnade.runtime.simulate import Run
from colonnade.secret import Secret


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
    found: dict[str, Standing] = {}
    for finding in report.attacks:
        evidence = finding.up_to_naming
        assert evidence is not None
        assert evidence.alone is not None, "a simulated audit measures everything"
        standing = Standing(evidence.score.value, mean(evidence.null), evidence.alone.value)
        # Several feature parties may make the same attack; the one that does best counts.
        if finding.attack not in found or found[finding.attack].score < standing.score:
            found[finding.attack] = standing
    return found


def averaged(trials: Sequence[Mapping[str, Standing]]) -> dict[str, Standing]:
    """The standing of each attack that was made in every trial, on average over the trials."""
    common = [name for name in trials[0] if all(name in trial for trial in trials)]
    return {
        name: Standing(*map(mean, zip(*(astuple(trial[name]) for trial in trials), strict=True))) for name in common
    }


def best_of(found: Mapping[str, Standing]) -> str:
    """The attack with the highest score."""
    return max(found, key=lambda name: found[name].score)
