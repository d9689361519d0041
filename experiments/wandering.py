"""Boundary-wandering learning in both of its forms: what it costs, and what a feature party still finds out.

Both forms, `ShadowProxy` and `ShadowTop`, on five data sets, with alpha 0, 0.1, 1 and 10. Around `ShadowTop` with
alpha 1, one factor at a time is changed: what the private columns are ranked by, and on which embeddings the loss acts.
Beside them stands a single track without a defence. The attacks are scores of gradients, clusters, nearest known rows
and few-label completion, on embeddings and on gradients; each has beside it what the attacker reaches alone and, once
for each set and form, 20 null runs with permuted labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any, Literal

import numpy as np

from colonnade import audit, simulate
from colonnade.catalogue import ATTACKS, DEFENCES
from colonnade.experiment.quality import classification_quality
from colonnade.experiment.sweep import Trial
from colonnade.experiment.tune import GEOMETRIC
from colonnade.models import SplitClassifier
from experiments.sets import ROLES, ROWS, halves
from experiments.tables import held_out, over_seeds, told_seeds

ALPHAS = (0.0, 0.1, 1.0, 10.0)
SEEDS = (0, 1, 2)
NULLS = 20
FORMS = ("shadow-proxy", "shadow-top")
ATTACKED_BY = ("norm-score", "direction-score", *GEOMETRIC)
EPOCHS = 30
VERSION = 1


def trials(*, quick: bool) -> list[Trial]:
    """Every configuration with every seed; the longest first, so that no core is idle in the end."""
    found = []
    for seed in SEEDS[:1] if quick else SEEDS:
        for name in ROWS:
            for cell in _cells():
                base = cell["alpha"] == 1 and cell["scope"] == "public" and cell["by"] == "mutual-information"
                nulls = NULLS if base and seed == 0 else 1
                configuration = {"set": name, **cell, "nulls": nulls, "quick": quick, "version": VERSION}
                found.append(Trial(configuration, seed))
    cost = {"mnist": 3, "adult": 2, "credit-default": 2}
    return sorted(found, key=lambda t: -t.configuration["nulls"] * cost.get(t.configuration["set"], 1))


def _cells() -> Iterator[dict[str, Any]]:
    yield {"form": "single", "alpha": 0.0, "scope": "none", "by": "none"}
    for form in FORMS:
        for alpha in ALPHAS:
            yield {"form": form, "alpha": alpha, "scope": "public", "by": "mutual-information"}
    for scope in ("received", "both"):
        yield {"form": "shadow-top", "alpha": 1.0, "scope": scope, "by": "mutual-information"}
    for by in ("shap", "importance", "random"):
        yield {"form": "shadow-top", "alpha": 1.0, "scope": "public", "by": by}


def measure(trial: Trial) -> Mapping[str, Any]:
    """Train, predict with both heads, and attack."""
    import torch

    torch.set_num_threads(1)
    cell = trial.configuration
    train, test = halves(cell["set"], trial.seed, quick=cell["quick"])
    single = cell["form"] == "single"
    tracks = "single" if single else {"name": cell["form"], "by": cell["by"]}
    model = SplitClassifier(tracks=tracks, epochs=EPOCHS, n_iter_no_change=None)
    # Alpha 0 is the partition without the loss, which is not the same as no partition.
    held = [] if cell["alpha"] == 0 else [_wandering(cell["alpha"], cell["scope"])]
    run = simulate(model.fit, train, roles=ROLES, seed=trial.seed, defences={"bank": held})
    truth = np.asarray(test["bank"].labels)
    figures: dict[str, Any] = {}
    heads: tuple[Literal["federated", "local"], ...] = ("federated",) if single else ("federated", "local")
    for head in heads:
        shares = {name: partial(share.predict, head=head) for name, share in run.results.items()}
        prediction = simulate(shares, test, roles=ROLES, seed=trial.seed, defences={"bank": held}).results["bank"]
        assert prediction is not None
        found = classification_quality(prediction, truth)
        figures |= {head: found.pop("accuracy"), f"{head} AUC": found.pop("AUC", None), **found}
    report = audit(run, [ATTACKS[name]() for name in ATTACKED_BY], nulls=cell["nulls"], seed=trial.seed)
    for finding in report.attacks:
        for way, evidence in (("plain", finding.plain), ("renamed", finding.up_to_naming)):
            if evidence is not None:
                figures[f"{finding.attack} {way}"] = {
                    "score": evidence.score.value,
                    "alone": None if evidence.alone is None else evidence.alone.value,
                    "null_mean": mean(evidence.null),
                    "null_high": evidence.null_high,
                    "measure": finding.measure,
                }
    return figures


def _wandering(alpha: float, scope: str) -> Any:
    make: Any = DEFENCES["boundary-wandering"]
    return make(alpha=alpha, scope=scope)


def page(rows: Sequence[Mapping[str, Any]], *, quick: bool) -> str:
    """The results for a reader."""
    lines = [
        "# Boundary-wandering learning, measured",
        "",
        *(__doc__ or "").strip().splitlines()[2:],
        "",
        f"{told_seeds(rows)}, {EPOCHS} epochs, 70 % of the rows to train on"
        + (", at most 4,000 rows: the reduced grid, made with `python -m experiments wandering --quick`." if quick else
           "; made with `python -m experiments wandering`.") + " Scores of attacks are means.",
        "`wandering.csv` beside this page has every figure of every trial.",
        "",
        "*main* is the accuracy on held-out rows of the head that predicts (the local one of two tracks), *AUC* its "
        "area under the ROC curve, *federated* the accuracy of the other. An attack's column has its score, on rows it "
        "was not told, under the names of classes that suit it best, in brackets what the attacker reaches alone with "
        "the same help. *null* rows say how high the attack gets, at the 95th percentile of 20 runs, where labels were "
        "permuted before training.",
        "",
        "Attacks that solve for the classes in the penalty's own gradient, which a feature party is sent where the "
        "scope is *received* or *both*, are not among those tried: low figures there are no proof that labels are "
        "hidden.",
    ]  # fmt: skip
    for name in ROWS:
        of_set = [row for row in rows if row["set"] == name]
        if of_set:
            lines += ["", f"## {name}", "", *held_out(of_set, name), *_table(of_set)]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    attacks = sorted({key.removesuffix(".score") for row in rows for key in row if key.endswith(" renamed.score")})
    attacks = [attack for attack in attacks if any(row.get(f"{attack}.score") is not None for row in rows)]
    yield (
        "| form | alpha | scope | private by | main | AUC | federated | "
        + " | ".join(attack.removesuffix(" renamed") for attack in attacks)
        + " |"
    )
    yield "|" + "---|" * (7 + len(attacks))
    for cell in _cells():
        mine = [row for row in rows if all(row[key] == value for key, value in cell.items())]
        if not mine:
            continue
        main = "federated" if _mean(mine, "local") is None else "local"
        shown = [over_seeds(mine, key) for key in (main, f"{main} AUC", "federated")]
        for attack in attacks:
            score, alone = _mean(mine, f"{attack}.score"), _mean(mine, f"{attack}.alone")
            shown.append("" if score is None or alone is None else f"{score:.2f} ({alone:.2f})")
        yield f"| {cell['form']} | {cell['alpha']:g} | {cell['scope']} | {cell['by']} | {' | '.join(shown)} |"
        nulls = [row for row in mine if row["nulls"] == NULLS]
        if nulls:
            high = [_mean(nulls, f"{attack}.null_high") for attack in attacks]
            cells = ["" if value is None else f"{value:.2f}" for value in high]
            yield f"| {cell['form']} | {cell['alpha']:g} | *null* | | | | | {' | '.join(cells)} |"


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return mean(values) if values else None
