"""Boundary-wandering learning in both of its forms: what it costs, and what a feature party still finds out.

Both forms, `ShadowProxy` and `ShadowTop`, on five data sets, with alpha 0 (the partition of columns only), 0.1, 1 and
10. Around `ShadowTop` with alpha 1, one factor at a time is changed: what the private columns are ranked by, on which
embeddings the loss acts, and by which kernel. Beside them stand a single track without a defence, a single track with
the loss on received embeddings (the loss only), labels randomised once for all that the attacker sees (label-private
shadow), and one shot, in which nothing that depends on labels is sent. The attacks are those of an ordinary audit and
those that know boundary wandering, which solve for the classes in the penalty's own gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any, Literal

import numpy as np

from colonnade import audit, simulate
from colonnade.catalogue import DEFENCES, attacks_of_audit
from colonnade.experiment.quality import classification_quality, quality
from colonnade.experiment.sweep import Trial
from colonnade.models import LabelDPShadow, OneShotClassifier, SplitClassifier
from colonnade.secret import Secret
from experiments.sets import ROLES, ROWS, halves
from experiments.tables import held_out, over_seeds, told_seeds

ALPHAS = (0.0, 0.1, 1.0, 10.0)
SEEDS = (0, 1, 2)
NULLS = 20
# A null run of all rows of this set takes a minute.
NULLS_OF = {"mnist": 5}
FORMS = ("shadow-proxy", "shadow-top")
OTHER_MODELS: Mapping[str, Any] = {
    "label-dp": LabelDPShadow(epsilon=1.0),
    "one-shot": OneShotClassifier(leak_budget={"shop": 1.0}),
}
EPOCHS = 30
VERSION = 2
EARLIER = (
    "These figures were measured before attacks were joined, without the attacks that know wandering and without the "
    "last forms named above; the columns of *strongest* are empty."
)


def trials(*, quick: bool) -> list[Trial]:
    """Every configuration with every seed; the longest first, so that no core is idle in the end."""
    found = []
    for seed in SEEDS[:1] if quick else SEEDS:
        for name in ROWS:
            for cell in _cells():
                base = cell["alpha"] == 1 and cell["scope"] == "public" and cell["by"] == "mutual-information"
                nulls = (NULLS if quick else NULLS_OF.get(name, NULLS)) if base and seed == 0 else 1
                configuration = {"set": name, **cell, "nulls": nulls, "quick": quick, "version": VERSION}
                found.append(Trial(configuration, seed))
    cost = {"mnist": 3, "adult": 2, "credit-default": 2}
    return sorted(found, key=lambda t: -t.configuration["nulls"] * cost.get(t.configuration["set"], 1))


def _cells() -> Iterator[dict[str, Any]]:
    yield _cell("single", 0.0)
    yield _cell("single", 1.0, scope="received")
    for form in FORMS:
        for alpha in ALPHAS:
            yield _cell(form, alpha, scope="public", by="mutual-information")
    for scope in ("received", "both"):
        yield _cell("shadow-top", 1.0, scope=scope, by="mutual-information")
    yield _cell("shadow-top", 1.0, scope="received", by="mutual-information", kernel="gaussian")
    for by in ("shap", "importance", "random"):
        yield _cell("shadow-top", 1.0, scope="public", by=by)
    for form in OTHER_MODELS:
        yield _cell(form, 0.0)


def _cell(form: str, alpha: float, *, scope: str = "none", by: str = "none", kernel: str = "cosine") -> dict[str, Any]:
    return {"form": form, "alpha": alpha, "scope": scope, "by": by, "kernel": kernel}


def measure(trial: Trial) -> Mapping[str, Any]:
    """Train, predict with both heads, and attack."""
    import torch

    torch.set_num_threads(1)
    cell = trial.configuration
    train, test = halves(cell["set"], trial.seed, quick=cell["quick"])
    # Alpha 0 is the partition without the loss, which is not the same as no partition.
    held = [] if cell["alpha"] == 0 else [_wandering(cell)]
    figures: dict[str, Any] = {}
    if cell["form"] in OTHER_MODELS:
        run: Any = simulate(OTHER_MODELS[cell["form"]].clone().fit, train, roles=ROLES, seed=trial.seed)
        found = quality(run, test)
        figures = {"federated": found.pop("accuracy"), "federated AUC": found.pop("AUC", None), **found}
    else:
        single = cell["form"] == "single"
        tracks = "single" if single else {"name": cell["form"], "by": cell["by"]}
        model = SplitClassifier(tracks=tracks, epochs=EPOCHS, n_iter_no_change=None)
        run = simulate(model.fit, train, roles=ROLES, seed=trial.seed, defences={"bank": held})
        truth = np.asarray(test["bank"].labels)
        heads: tuple[Literal["federated", "local"], ...] = ("federated",) if single else ("federated", "local")
        for head in heads:
            shares = {name: partial(share.predict, head=head) for name, share in run.results.items()}
            prediction = simulate(shares, test, roles=ROLES, seed=trial.seed, defences={"bank": held}).results["bank"]
            assert prediction is not None
            found = classification_quality(prediction, truth)
            figures |= {head: found.pop("accuracy"), f"{head} AUC": found.pop("AUC", None), **found}
    attacks = [attack for attack in attacks_of_audit(defences=held) if attack.about is Secret.LABELS]
    report = audit(run, attacks, nulls=cell["nulls"], seed=trial.seed, progress=False)
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
        if finding.leakage is not None and finding.leakage.excess is not None:
            share = finding.leakage.normalised
            figures["leakage"] = {
                "excess": finding.leakage.excess.value,
                "low": finding.leakage.excess.low,
                "high": finding.leakage.excess.high,
                "normalised": None if share is None else share.value,
            }
    return figures


def _wandering(cell: Mapping[str, Any]) -> Any:
    make: Any = DEFENCES["boundary-wandering"]
    return make(alpha=cell["alpha"], scope=cell["scope"], kernel=cell["kernel"])


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
        "area under the ROC curve, *federated* the accuracy of the other. *strongest* is what all attacks reach "
        "together, joined without a look at the truth, on rows whose labels were not told; *alone* is what the "
        "attacker reaches with its own columns and as many known labels, *excess* the difference in points with its "
        "interval, *share* the excess relative to the way from alone to what the columns say with all labels known: "
        "more than 1 tells what the columns never could. *null* is how high strongest gets, at the 95th percentile, "
        f"where labels were permuted before training ({NULLS} runs of one seed"
        + ("" if quick else f", {NULLS_OF['mnist']} on mnist") + "). The "
        "best single attack is the one with the highest mean score, under the names of classes that suit it best.",
    ]  # fmt: skip
    if all(row.get("Strongest plain.score") is None for row in rows):
        lines += ["", EARLIER]
    for name in ROWS:
        of_set = [row for row in rows if row["set"] == name]
        if of_set:
            lines += ["", f"## {name}", "", *held_out(of_set, name), *_table(of_set)]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    ending = " renamed.score"
    attacks = sorted({key.removesuffix(ending) for row in rows for key in row if key.endswith(ending)} - {"Strongest"})
    heads = "form | alpha | scope | kernel | private by | main | AUC | federated | strongest | alone | excess | share"
    yield f"| {heads} | null | best single attack | score |"
    yield "|" + "---|" * 15
    for cell in _cells():
        mine = [row for row in rows if all(row.get(key, "cosine") == value for key, value in cell.items())]
        if not mine:
            continue
        main = "federated" if _mean(mine, "local") is None else "local"
        settings = [str(cell[name]) for name in ("form", "alpha", "scope", "kernel", "by")]
        shown = settings + [over_seeds(mine, key) for key in (main, f"{main} AUC", "federated")]
        shown += [_told(_mean(mine, f"Strongest plain.{name}")) for name in ("score", "alone")]
        beyond = [_mean(mine, f"leakage.{name}") for name in ("excess", "low", "high")]
        points = [f"{100 * each:+.0f}" for each in beyond if each is not None]
        shown += [
            f"{points[0]} ({points[1]} to {points[2]})" if points else "",
            _told(_mean(mine, "leakage.normalised")),
        ]
        singles = {name: score for name in attacks if (score := _mean(mine, f"{name} renamed.score")) is not None}
        best = max(singles, key=lambda name: singles[name], default="none applies")
        nulls = [row for row in mine if row["nulls"] > 1]
        shown += [_told(_mean(nulls, "Strongest plain.null_high")), best, _told(singles.get(best))]
        yield f"| {' | '.join(shown)} |"


def _told(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return mean(values) if values else None
