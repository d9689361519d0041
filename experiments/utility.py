"""What splitting a network costs in accuracy: against central training, one shot, and on labels randomised once.

The central network is the default multilayer perceptron on all columns in one place. That is one bottom where a split
network has one at each of two parties, and so the smaller network of the two: *central-wide* has a bottom with twice as
many hidden units and an embedding twice as wide, so that as much reaches the same top. The label party alone has its
own columns only. One shot uses the default rule for the width of its embedding; beside its accuracy stands what the
label party could rebuild of the feature party's columns. The stress set is digits with 96 columns of high variance that
say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from colonnade import Table, simulate
from colonnade.experiment.quality import quality
from colonnade.experiment.sweep import Trial
from colonnade.models import LabelDPShadow, OneShotClassifier, SplitClassifier
from experiments.sets import ROLES, halves

if TYPE_CHECKING:
    from torch import nn

    from colonnade.tables.encode import Inputs

SETS = ("digits", "mnist", "credit-default", "adult", "breast-cancer", "stress")
WAYS = ("central", "central-wide", "alone", "split", "one-shot", "label-dp")
SEEDS = (0, 1, 2)
# The default widths of a bottom: of its embedding and of its hidden layer.
EMBEDDING, HIDDEN = 16, 64
VERSION = 1


def trials(*, quick: bool) -> list[Trial]:
    """Every way on every set with every seed."""
    seeds = SEEDS[:1] if quick else SEEDS
    cells = [{"set": name, "way": way, "quick": quick, "version": VERSION} for name in SETS for way in WAYS]
    return [Trial(cell, seed) for cell in cells for seed in seeds]


def measure(trial: Trial) -> Mapping[str, Any]:
    """Train one way, and predict held-out rows."""
    import torch

    torch.set_num_threads(1)
    name, way = trial.configuration["set"], trial.configuration["way"]
    train, test = halves(name, trial.seed, quick=trial.configuration["quick"])
    if way in ("central", "central-wide", "alone"):
        train, test = (_gathered(tables, everything=way != "alone") for tables in (train, test))
    models = {
        "central-wide": SplitClassifier(embedding=2 * EMBEDDING, bottom=wide),
        "one-shot": OneShotClassifier(leak_budget={"shop": 1.0}),
        "label-dp": LabelDPShadow(epsilon=0.5),
    }
    model: Any = models.get(way, SplitClassifier())
    run = simulate(model.fit, train, roles=ROLES, seed=trial.seed, keep="digests")
    figures: dict[str, Any] = dict(quality(run, test))
    if way == "one-shot":
        leak = run.results["shop"].leak_
        width = run.results["bank"].stated_["shop"]["width"]
        figures |= {"width": width, "relative_mse": leak.relative_mse, "worst_r2": leak.worst_r2}
    return figures


def wide(inputs: Inputs, width: int) -> nn.Module:
    """The default bottom with twice as many hidden units."""
    from colonnade.models.networks.modules import TabularMLP

    return TabularMLP(inputs, width, hidden=(2 * HIDDEN,))


def _gathered(tables: Mapping[str, Table], *, everything: bool) -> dict[str, Table]:
    """All columns, or the label party's only, behind one cut: the same network in one place."""
    bank, shop = tables["bank"], tables["shop"]
    arrow = bank.to_arrow()
    if everything:
        for column in shop.columns:
            arrow = arrow.append_column(column, shop.to_arrow().column(column))
    one = Table.of(arrow, ids=bank.id_name, labels=bank.label_name, owner="shop")
    return {"bank": bank.select([]), "shop": one.without_labels()}


def page(rows: Sequence[Mapping[str, Any]], *, quick: bool) -> str:
    """The results for a reader."""
    n_seeds, flag = len({row["trial.seed"] for row in rows}), " --quick" if quick else ""
    lines = [
        "# What splitting costs",
        "",
        *(__doc__ or "").strip().splitlines()[2:],
        "",
        f"Means over {n_seeds} seed{'s' if n_seeds > 1 else ''} on held-out rows: accuracy, or AUC where there are two "
        f"classes; default settings. Made with `python -m experiments utility{flag}`; `utility.csv` has every figure.",
        "",
        "| set | measure | " + " | ".join(WAYS) + " | width | relative MSE | worst column R² |",
        "|---|---|" + "---|" * (len(WAYS) + 3),
    ]
    for name in SETS:
        of_set = [row for row in rows if row["set"] == name]
        if not of_set:
            continue
        measured = "accuracy" if name in ("digits", "mnist", "stress") else "AUC"
        by_way = {way: [row for row in of_set if row["way"] == way] for way in WAYS}
        figures = [f"{mean(row[measured] for row in by_way[way]):.3f}" if by_way[way] else "" for way in WAYS]
        shot = by_way["one-shot"]
        leak = [f"{mean(row[key] for row in shot):.2f}" for key in ("width", "relative_mse", "worst_r2")]
        lines.append(f"| {name} | {measured} | {' | '.join(figures + leak)} |")
    return "\n".join(lines) + "\n"
