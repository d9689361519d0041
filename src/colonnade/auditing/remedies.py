"""Remedies: the defences and models whose price and effect on labels were measured, with their figures.

`remedies.json` is made from the results of experiments by `python -m experiments.remedies`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

# By how much attacks may exceed the attacker alone, on average over seeds, where a defence counts as sufficient.
SUFFICIENT = 0.02


@dataclass(frozen=True)
class Remedy:
    """A defence, or a model to take instead of a split network, on one data set; means over seeds.

    Attributes:
        name: As the catalogue calls it; "none" is the split network without a defence.
        before: Accuracy and AUC of the split network without a defence.
        after: The same with the remedy.
        attack: The attack that exceeds the attacker alone by most; None where nothing that depends on labels is sent.
        excess: By how much it does.
        worst_seed: By how much any attack exceeds the attacker alone in the seed where one does by most.
        single: The single attack with the highest score.
        score: That score.
        null: The same attack's mean score where labels were shuffled.
        rebuilt: Which share of the variance of a feature party's columns the label party could rebuild, if measured.
        setting: How a model was run, where that matters, in words.
        size: How large the model was, where that matters, in words.
        cost: What a part of it took, all parties together, in a sentence.

    >>> min(each.seeds for each in remedies()) > 1
    True
    """

    name: str
    is_model: bool
    set: str
    seeds: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    attack: str | None
    excess: float | None
    worst_seed: float | None
    single: str | None
    score: float | None
    null: float | None
    rebuilt: float | None
    setting: str = ""
    size: str = ""
    cost: str = ""

    @property
    def still_tells(self) -> bool:
        """Whether a single attack scored higher than where labels were shuffled, however much the attacker knows."""
        return self.score is not None and self.null is not None and self.score - self.null > SUFFICIENT

    @property
    def hides_labels(self) -> bool:
        """Whether no attack told more on average than the attacker alone knows."""
        return self.excess is None or self.excess <= SUFFICIENT


@cache
def remedies() -> tuple[Remedy, ...]:
    """All remedies that were measured."""
    text = files("colonnade.auditing").joinpath("remedies.json").read_text("utf-8")
    return tuple(Remedy(**item) for item in json.loads(text))


def comparable_set(n_classes: int) -> str:
    """The data set whose figures say most about a run: with two classes, or with several."""
    return "credit-default" if n_classes <= 2 else "digits"


def alike(remedy: Remedy) -> tuple[Remedy, ...]:
    """The same remedy on every set that it was measured on."""
    return tuple(each for each in remedies() if (each.name, each.setting) == (remedy.name, remedy.setting))


def without_embeddings(n_classes: int) -> tuple[Remedy, ...]:
    """The models that send no embedding of a row and tell no sums of columns, where measured on the comparable set."""
    wanted = (("secureboost-classifier", "hidden sums"), ("logistic-regression", "with an arbiter"))
    here = {(each.name, each.setting): each for each in remedies() if each.set == comparable_set(n_classes)}
    return tuple(here[key] for key in wanted if key in here)


def sufficient(n_classes: int, held: Collection[str] = ()) -> tuple[Remedy, ...]:
    """The cheapest model and the cheapest defence that hid labels on every set measured, on the comparable set.

    Args:
        n_classes: How many classes the run tells apart.
        held: Remedies that the run has already.
    """
    known = [each for each in remedies() if each.name not in ("none", *held)]
    failed = {(each.name, each.setting) for each in known if not each.hides_labels}
    measured = [each for each in known if each.set == comparable_set(n_classes)]
    here = [each for each in measured if (each.name, each.setting) not in failed]
    cheapest = sorted(here, key=lambda each: each.before["AUC"] - each.after["AUC"])
    return tuple(each for wanted in (True, False) for each in [c for c in cheapest if c.is_model is wanted][:1])
