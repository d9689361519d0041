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

from colonnade import Table, audit, simulate
from colonnade.auditing.engine import make
from colonnade.auditing.settings import Simulated
from colonnade.catalogue import DEFENCES, attacks_of_audit
from colonnade.experiment.quality import classification_quality, quality
from colonnade.experiment.sweep import Trial
from colonnade.models import LabelDPShadow, OneShotClassifier, SplitClassifier
from colonnade.runtime.party import Defence
from colonnade.runtime.simulate import Run
from colonnade.secret import Secret
from experiments.sets import ROLES, ROWS, halves
from experiments.tables import held_out, over_seeds, told_joined, told_seeds, told_versions

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
FORMS_VERSION = 1
BARE, PARTED, OWN = "no defence", "columns parted, no loss", "wandering, own embedding"
RECEIVED, GAUSSIAN = "wandering, received", "wandering, received, Gaussian"
SHADOW, SHOT = "label-private shadow", "one shot"
# How the name of an attack's score ends, under the names of classes that suit it best.
SCORE = " renamed.score"


def trials(*, quick: bool) -> list[Trial]:
    """Every configuration with every seed; the longest first, so that no core is idle in the end."""
    found = []
    for seed in SEEDS[:1] if quick else SEEDS:
        for name in ROWS:
            for _, _, cell in _choices():
                forms = {"set": name, **cell, "nulls": 0, "quick": quick, "every_form": True, "version": FORMS_VERSION}
                found.append(Trial(forms, seed))
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


def _choices() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What a user may choose, what is promised, and the cell that measures the choice."""
    by = "mutual-information"
    yield BARE, "nothing", _cell("single", 0.0)
    yield PARTED, "nothing", _cell("shadow-top", 0.0, scope="public", by=by)
    yield OWN, "nothing", _cell("shadow-top", 1.0, scope="public", by=by)
    yield RECEIVED, "nothing", _cell("shadow-top", 1.0, scope="received", by=by)
    yield GAUSSIAN, "nothing", _cell("shadow-top", 1.0, scope="received", by=by, kernel="gaussian")
    yield SHADOW, "epsilon 1 for each label", _cell("label-dp", 0.0)
    yield SHOT, "nothing that is sent depends on labels", _cell("one-shot", 0.0)


def _cell(form: str, alpha: float, *, scope: str = "none", by: str = "none", kernel: str = "cosine") -> dict[str, Any]:
    return {"form": form, "alpha": alpha, "scope": scope, "by": by, "kernel": kernel}


def measure(trial: Trial) -> Mapping[str, Any]:
    """Train, predict with both heads, and attack; or train, and make every attack in every form."""
    import torch

    torch.set_num_threads(1)
    cell = trial.configuration
    train, test = halves(cell["set"], trial.seed, quick=cell["quick"])
    # Alpha 0 is the partition without the loss, which is not the same as no partition.
    held = [] if cell["alpha"] == 0 else [_wandering(cell)]
    run = _trained(cell, train, held, trial.seed)
    if cell.get("every_form"):
        return {"every form": _in_every_form(run, trial.seed)}
    figures: dict[str, Any] = {}
    if cell["form"] in OTHER_MODELS:
        found = quality(run, test)
        figures = {"federated": found.pop("accuracy"), "federated AUC": found.pop("AUC", None), **found}
    else:
        truth = np.asarray(test["bank"].labels)
        heads: tuple[Literal["federated", "local"], ...] = ("federated", "local")
        for head in heads[:1] if cell["form"] == "single" else heads:
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


def _trained(cell: Mapping[str, Any], train: Mapping[str, Table], held: Sequence[Defence], seed: int) -> Run[Any]:
    if cell["form"] in OTHER_MODELS:
        return simulate(OTHER_MODELS[cell["form"]].clone().fit, train, roles=ROLES, seed=seed)
    tracks = "single" if cell["form"] == "single" else {"name": cell["form"], "by": cell["by"]}
    model = SplitClassifier(tracks=tracks, epochs=EPOCHS, n_iter_no_change=None)
    return simulate(model.fit, train, roles=ROLES, seed=seed, defences={"bank": held})


def _in_every_form(run: Run[Any], seed: int) -> dict[str, Any]:
    """The best of all attacks on labels in all their forms, under the names of classes that suit it best."""
    attacks = [attack for attack in attacks_of_audit(thorough=True) if attack.about is Secret.LABELS]
    made, _ = make(Simulated(run, seed=seed), attacks)
    scores = {each.attempt.name: each.truth.scores(each.guess).up_to_naming for each in made}
    best = max(scores, key=lambda name: scores[name], default="none applies")
    return {"best": best, "reached": scores.get(best), "forms": len(scores)}


def _wandering(cell: Mapping[str, Any]) -> Any:
    make: Any = DEFENCES["boundary-wandering"]
    return make(alpha=cell["alpha"], scope=cell["scope"], kernel=cell["kernel"])


def page(rows: Sequence[Mapping[str, Any]], *, quick: bool) -> str:
    """The results for a reader."""
    in_forms = [row for row in rows if row.get("every_form")]
    rows = [row for row in rows if not row.get("every_form")]
    lines = [
        "# Boundary-wandering learning, measured",
        "",
        *(__doc__ or "").strip().splitlines()[2:],
        "",
        f"{told_seeds(rows)}, {EPOCHS} epochs, 70 % of the rows to train on"
        + (", at most 4,000 rows: the reduced grid, made with `python -m experiments wandering --quick`." if quick else
           "; made with `python -m experiments wandering`.") + " Scores of attacks are means."
        + told_versions([*rows, *in_forms]),
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
    lines += _fewer(rows, len(SEEDS[:1] if quick else SEEDS))
    lines += ["", "## What follows for a user who must choose today", "", *_to_choose(rows)]
    lines += [*_in_every_form_told(rows, in_forms)]
    for name in ROWS:
        of_set = [row for row in rows if row["set"] == name]
        if of_set:
            lines += ["", f"## {name}", "", *held_out(of_set, name), *_table(of_set)]
    lines += ["", "## Joined attacks beside the best single one", "", *told_joined(_short(rows))]
    return "\n".join(lines) + "\n"


def _short(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How far all attacks joined are below the best single one, in each cell of each set."""
    short = {}
    for name in ROWS:
        for cell in _cells():
            mine = _of([row for row in rows if row["set"] == name], cell)
            joined, singles = _mean(mine, f"Strongest{SCORE}"), _singles(mine)
            if joined is not None and singles:
                short[f"{name} {_named(cell)}"] = max(singles.values()) - joined
    return short


def _singles(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean score of each single attack."""
    names = sorted({key.removesuffix(SCORE) for row in rows for key in row if key.endswith(SCORE)} - {"Strongest"})
    return {name: score for name in names if (score := _mean(rows, f"{name}{SCORE}")) is not None}


def _named(cell: Mapping[str, Any]) -> str:
    return " ".join(str(value) for value in cell.values() if value not in ("none", "cosine"))


def _fewer(rows: Sequence[Mapping[str, Any]], wanted: int) -> Iterator[str]:
    """A paragraph on the rows of the tables that have fewer seeds than the others; none where all have as many."""
    fewer: dict[str, list[str]] = {}
    for name in ROWS:
        of_set = [row for row in rows if row["set"] == name]
        for cell in _cells():
            if len(_of(of_set, cell)) < wanted:
                fewer.setdefault(_named(cell), []).append(f"{name} ({len(_of(of_set, cell))})")
    if fewer:
        yield ""
        yield (
            f"Fewer than {wanted} seeds: " + "; ".join(f"{cell} on {', '.join(on)}" for cell, on in fewer.items()) + "."
        )


def _to_choose(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each choice on each set: what attacks find beyond the attacker alone, what the choice costs, and what follows."""
    sets = [name for name in ROWS if any(row["set"] == name for row in rows)]
    bare = {name: _of([row for row in rows if row["set"] == name], _cell("single", 0.0)) for name in sets}
    found: dict[str, list[tuple[float, float] | None]] = {}
    for choice, _, cell in _choices():
        mine = {name: _of([row for row in rows if row["set"] == name], cell) for name in sets}
        excess = {name: _mean(mine[name], "leakage.excess") for name in sets}
        found[choice] = [
            None if e is None or not bare[name] else (100 * e, 100 * (_main(mine[name]) - _main(bare[name])))
            for name, e in excess.items()
        ]
    yield (
        "What all attacks joined find beyond the attacker alone / the change of accuracy against no defence, in points:"
    )
    yield ""
    yield f"| choice | promise | {' | '.join(sets)} |"
    yield "|" + "---|" * (2 + len(sets))
    for choice, promise, _ in _choices():
        cells = ["" if each is None else f"{each[0]:+.0f} / {each[1]:+.1f}" for each in found[choice]]
        yield f"| {choice} | {promise} | {' | '.join(cells)} |"
    if any(each is None for cells in found.values() for each in cells):
        return

    def span(choice: str, place: int) -> str:
        values = [each[place] for each in found[choice] if each is not None]
        return f"{min(values):+.{place}f} to {max(values):+.{place}f}"

    yield ""
    yield (
        "- **Boundary wandering as its authors describe it protects no label.** All attacks joined find "
        f"{span(OWN, 0)} points more than the attacker alone. Without any defence they find {span(BARE, 0)}, and with "
        f"the columns parted but no loss {span(PARTED, 0)}. The loss acts on an embedding that stays with the label "
        "party, so that a feature party receives the same gradients as before."
    )
    yield (
        "- **On received embeddings it hides classes only from attacks that do not know it.** Attacks on the geometry "
        "of embeddings fail. But the penalty is computed from the classes, and the attack `penalty-classes` solves its "
        f"gradient for them: attacks joined find {span(RECEIVED, 0)} points, with the Gaussian kernel "
        f"{span(GAUSSIAN, 0)}."
    )
    yield (
        "- **Where labels must not leak, choose one shot.** Nothing that depends on labels is sent. No attack, known "
        f"or not, can find more than the attacker finds alone; those made here find {span(SHOT, 0)} points. Accuracy "
        f"changes by {span(SHOT, 1)} points. The price is paid by the feature party: the label party can rebuild much "
        "of its columns ([what splitting costs](utility.md))."
    )
    yield (
        "- **Where a feature party must not show its columns, choose the label-private shadow.** It promises an "
        f"epsilon for each label. At epsilon 1 attacks still find {span(SHADOW, 0)} points, because many randomised "
        f"labels train a classifier; accuracy changes by {span(SHADOW, 1)}. A smaller epsilon [hides "
        "more](defences.md#label-private-shadow-on-adult)."
    )
    yield "- **Do not choose a defence because the attacks of a table fail.** Only the last two rows promise anything."


def _in_every_form_told(rows: Sequence[Mapping[str, Any]], in_forms: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What a thorough audit finds beyond an ordinary one, for each choice on each set; nothing where none was made."""
    if not in_forms:
        return
    sets = [name for name in ROWS if any(row["set"] == name for row in in_forms)]
    n_forms = [row["every form.forms"] for row in in_forms]
    yield ""
    yield "### Every attack in every form"
    yield ""
    yield (
        "What a user may choose today was also attacked by every attack on labels that applies, in all its forms: "
        f"{min(n_forms):.0f} to {max(n_forms):.0f} of them, as a thorough audit makes them. The best of all / the best "
        "attack of the tables below, and which form was best most often. Scores are means; each "
        "trial's best one is chosen by the truth, so that luck makes the best of many higher. Nothing is joined here."
    )
    yield ""
    yield f"| choice | {' | '.join(sets)} |"
    yield "|" + "---|" * (1 + len(sets))
    for choice, _, cell in _choices():
        cells = [
            _best_form(*(_of([row for row in some if row["set"] == name], cell) for some in (in_forms, rows)))
            for name in sets
        ]
        yield f"| {choice} | {' | '.join(cells)} |"


def _best_form(in_forms: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> str:
    """The mean best score of all forms, that of an ordinary audit, and the form that was best most often."""
    score = _mean(in_forms, "every form.reached")
    if score is None:
        return ""
    best = [row["every form.best"] for row in in_forms]
    usual = _mean([{"best": max(_singles([row]).values(), default=None)} for row in rows], "best")
    return f"{score:.2f} / {_told(usual)}, {max(best, key=best.count)}"


def _main(rows: Sequence[Mapping[str, Any]]) -> float:
    """The mean accuracy of the head that predicts."""
    found = _mean(rows, "federated" if _mean(rows, "local") is None else "local")
    assert found is not None
    return found


def _of(rows: Sequence[Mapping[str, Any]], cell: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The trials of a cell; the first ones named no kernel."""
    return [row for row in rows if all(row.get(key, "cosine") == value for key, value in cell.items())]


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    heads = "form | alpha | scope | kernel | private by | main | AUC | federated | strongest | alone | excess | share"
    yield f"| {heads} | null | best single attack | score |"
    yield "|" + "---|" * 15
    for cell in _cells():
        mine = _of(rows, cell)
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
        singles = _singles(mine)
        best = max(singles, key=lambda name: singles[name], default="none applies")
        nulls = [row for row in mine if row["nulls"] > 1]
        shown += [_told(_mean(nulls, "Strongest plain.null_high")), best, _told(singles.get(best))]
        yield f"| {' | '.join(shown)} |"


def _told(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return mean(values) if values else None
