"""A picture of digits, true and rebuilt by each attack: `python -m experiments.reconstruction`.

The label party has the upper three rows of pixels, two feature parties the others. The set, the network and the grants
are those of the benchmark of the same name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.loopback import BANK
from benchmarks.reconstruction import EPOCHS, OWNERS, ROLES, Problem, watched
from colonnade import simulate
from colonnade.attacks import ActiveGenerative, ActiveInversion, FeatureHijacking
from colonnade.attacks.base import Guess
from colonnade.attacks.columns.passive import ridge_guess
from colonnade.attacks.columns.tampering import rebuilt
from colonnade.attacks.points import Points
from colonnade.tables.encode import filled_with_labels

KNOWN, SHOWN = 50, 12
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "reconstruction.png"


def pictures() -> dict[str, np.ndarray[Any, Any]]:
    """Some rows that nobody knows as images, true and by each attack."""
    torch.set_num_threads(1)
    problem = Problem.drawn("digits", 0)
    model = problem.model(16, EPOCHS["digits"])
    own = filled_with_labels(problem.tables[BANK])
    told, sampled = ([problem.grant(owner, known) for owner in OWNERS] for known in (KNOWN, 0))
    rows = np.setdiff1d(np.arange(len(own)), told[0].rows)[:SHOWN]
    honest: Any = simulate(model.fit, problem.tables, roles=ROLES, seed=0, instead={BANK: watched}).results[BANK]
    guesses: dict[str, list[Guess]] = {
        "imputed from own columns": [ridge_guess(Points(np.arange(len(own)), own), grant) for grant in told],
        "passive ridge": [ridge_guess(honest.points(grant.owner), grant) for grant in told],
    }
    hooks = [problem.attacked(model, ActiveInversion(), grant) for grant in told]
    guesses["active inversion, its network"] = [rebuilt(*pair) for pair in zip(hooks, told, strict=True)]
    guesses["active inversion, ridge"] = [
        ridge_guess(hook.points(grant.owner), grant) for hook, grant in zip(hooks, told, strict=True)
    ]
    for name, attack in (("active generation", ActiveGenerative()), ("hijacking", FeatureHijacking())):
        guesses[name] = [rebuilt(problem.attacked(model, attack, grant), grant) for grant in sampled]
    found = {"true": problem.images(rows, None)}
    return found | {name: problem.images(rows, guess) for name, guess in guesses.items()}


def draw() -> None:
    """Write the picture."""
    from matplotlib.figure import Figure

    made = pictures()
    figure = Figure(figsize=(0.62 * SHOWN + 2.6, 0.66 * len(made)), layout="constrained")
    axes = figure.subplots(len(made), SHOWN)
    for line, (name, images) in zip(axes, made.items(), strict=True):
        for place, (axis, image) in enumerate(zip(line, images, strict=True)):
            axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            axis.axhline(2.5, color="tab:blue", linewidth=0.8)
            if place == 0:
                axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    draw()
