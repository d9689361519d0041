"""What models that send no gradient of a row cost instead of a split network, and what attacks on labels find.

A logistic regression with an arbiter, and boosted trees with exact and with hidden sums, on the rows and seeds on which
every defence of a split network is measured. Made are the attacks on labels of an ordinary audit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from colonnade import simulate
from colonnade.catalogue import attacks_of_audit
from colonnade.experiment.compare import standings_in
from colonnade.experiment.measurement import measured
from colonnade.experiment.sweep import Trial
from colonnade.models import LogisticRegression, SecureBoostClassifier
from colonnade.secret import Secret
from experiments.defences import SEEDS, SETS, averaged_standings
from experiments.sets import ROLES, halves
from experiments.tables import held_out, over_seeds, told_seeds

SET = "credit-default"
NULLS = 2
TREES: Mapping[str, Any] = {"n_estimators": 10, "max_depth": 3}
WAYS: Mapping[tuple[str, str], Any] = {
    ("logistic-regression", "with an arbiter"): LogisticRegression(tol=1e-5),
    ("secureboost-classifier", "hidden sums"): SecureBoostClassifier(**TREES, sums="hidden"),
    ("secureboost-classifier", "exact sums"): SecureBoostClassifier(**TREES, leak_budget=None),
}
VERSION = 1


def trials(*, quick: bool) -> list[Trial]:
    """Every model with every seed."""
    how = {"set": SET, "nulls": NULLS, "quick": quick, "version": VERSION}
    cells = [{**how, "model": model, "setting": setting} for model, setting in WAYS]
    return [Trial(cell, seed) for cell in cells for seed in (SEEDS[:1] if quick else SEEDS)]


def measure(trial: Trial) -> Mapping[str, Any]:
    """Train, predict and attack."""
    cell = trial.configuration
    train, test = halves(cell["set"], trial.seed, quick=cell["quick"], most=SETS[cell["set"]])
    roles = replace(ROLES, arbiter="judge") if cell["setting"] == "with an arbiter" else ROLES
    model = WAYS[cell["model"], cell["setting"]].clone()
    run = simulate(model.fit, train, roles=roles, seed=trial.seed)
    on_labels = [attack for attack in attacks_of_audit() if attack.about is Secret.LABELS]
    found = measured(run, test, on_labels, nulls=cell["nulls"], seed=trial.seed)
    return {**found["quality"], **{name: asdict(each) for name, each in standings_in(found["attacks"]).items()}}


def page(rows: Sequence[Mapping[str, Any]], *, quick: bool) -> str:
    """The results for a reader."""
    flag = " --quick" if quick else ""
    lines = [
        "# Models that send no gradient of a row, measured",
        "",
        *(__doc__ or "").strip().splitlines()[2:],
        "",
        f"{told_seeds(rows)}. Trees: {TREES['n_estimators']} of depth {TREES['max_depth']}. Made with "
        f"`python -m experiments private_models{flag}`. `private_models.csv` beside this page has every figure of each "
        "trial. An attack's score is an AUC or a balanced accuracy on rows whose labels it was not told; *null* is its "
        f"mean in {NULLS} runs of each seed with permuted labels, *alone* what the attacker reaches with its own "
        "columns. [Defences](defences.md) has the split network on the same rows. A regression on shares was not "
        "measured: there the shop is told the same coefficients, up to the error of the table that means are looked "
        "up in.",
        "",
        *held_out(rows, SET),
        "| model | | accuracy | AUC | attack | score | null | alone |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for model, setting in WAYS:
        mine = [row for row in rows if (row["model"], row["setting"]) == (model, setting)]
        figures = f"{over_seeds(mine, 'accuracy')} | {over_seeds(mine, 'AUC')}"
        found = averaged_standings(mine) if mine else {}
        if mine and not found:
            lines.append(f"| {model} | {setting} | {figures} | none applies | | | |")
        for name, each in found.items():
            scores = f"{each.score:.3f} | {each.null:.3f} | {each.alone:.3f}"
            lines.append(f"| {model} | {setting} | {figures} | {name} | {scores} |")
    return "\n".join(lines) + "\n"
