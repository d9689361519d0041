"""The demonstration: one story, told with built-in data, in under a minute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from colonnade._version import __version__
from colonnade.experiment.run_folder import RunFolder
from colonnade.models.base import Prediction
from colonnade.plans.align import PlannedAlign
from colonnade.plans.plan import Plan, Tables
from colonnade.plans.sections import PlannedAudit, PlannedData, PlannedDefence, PlannedModel
from colonnade.roles import Roles
from colonnade.runtime.executor import Executor
from colonnade.secret import Secret
from colonnade.tables.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from colonnade.auditing.contents import Finding
    from colonnade.auditing.report import PrivacyReport

NOISE = 20.0


def planned(*, quick: bool = False) -> Plan:
    """The demonstration's plan, without a defence.

    >>> planned().roles.parties
    ('bank', 'shop', 'telco')
    """
    return Plan(
        PlannedData("bank-shop-telco", rows=2000 if quick else 6000),
        Roles(label="bank", features=("shop", "telco")),
        PlannedModel("split-classifier", {"epochs": 4 if quick else 12}),
        align=PlannedAlign(),
        audit=PlannedAudit(nulls=3 if quick else 20, epochs=4 if quick else 6),
        name="demo",
    )


def demonstrate(console: Console, out: Path, executor: Executor, *, quick: bool = False) -> None:
    """Tell the story: meet, align, train, attack, defend, report. A quick one has fewer rows and repetitions."""
    plan = planned(quick=quick)
    noise = PlannedDefence("bank", "gradient-noise", {"ratio": NOISE})
    bare = RunFolder.create(plan, out, existing="delete")
    noisy = RunFolder.create(replace(plan, defences=(noise,), name="demo-noise"), out, existing="delete")
    console.print(f"Colonnade {__version__}", style="bold")
    _meet(console, plan)
    tables = _align(console, bare)
    _train(console, bare, tables)
    report = _attack(console, bare, executor)
    _attack_columns(console, report)
    _defend(console, bare, report, noisy, executor)
    _report(console, report, (bare, noisy))


def _meet(console: Console, plan: Plan) -> None:
    _ask(console, "Three companies know the same people, each from another side.")
    rows = (
        (party, f"{len(table):,}", str(len(table.columns)), "knows who defaulted" if table.label_name else "")
        for party, table in plan.data.load(plan.roles.holders).items()
    )
    _show(console, ("", "customers", "columns", ""), rows)


def _align(console: Console, folder: RunFolder) -> Tables:
    _ask(console, "Whom do all three know? They find out without showing each other anybody else.")
    learned = folder.alignments(progress=None)["bank"].learned
    tables = folder.tables()
    n_train, n_test = len(tables.train["bank"]), len(tables.test["bank"])
    _say(
        console,
        f"{n_train + n_test:,} customers are known to all three; {n_test:,} of these are held out for testing. "
        "Only points of an elliptic curve crossed, each multiplied by secrets of this run. What was learned by that:",
    )
    for sentence in learned:
        console.print(f"  {sentence}", markup=False)
    return tables


def _train(console: Console, folder: RunFolder, tables: Tables) -> None:
    _ask(console, "Does the bank foresee defaults better with the others than alone?")
    folder.simulate(progress=None, tables=tables, alone=partial(_bank_alone, folder.plan))
    found = folder.quality()
    assert found is not None, "a simulation measures its model"
    accuracy, auc = found.figures["accuracy"], found.figures["AUC"]
    assert accuracy.alone is not None
    assert auc.alone is not None
    rows = (
        ("the bank alone", f"{accuracy.alone:.1%}", f"{auc.alone:.3f}"),
        ("bank, shop and telco", f"{accuracy.together:.1%}", f"{auc.together:.3f}"),
    )
    _show(console, ("", "accuracy", "AUC"), rows)
    _say(
        console,
        "Measured on the held-out customers. AUC is the chance that somebody who defaults is ranked above somebody who "
        "does not: 0.5 is guessing, 1 is perfect.",
    )


def _bank_alone(plan: Plan, train: Table, rows: Table, task: str) -> tuple[Prediction, str]:
    """What the same network predicts on the bank's columns only: the bank plays both parties."""
    alone = replace(plan, roles=Roles(label="bank", features=("bank alone",)))

    def cut(table: Table) -> dict[str, Table]:
        return {"bank": table.select([]), "bank alone": table.without_labels()}

    return alone.simulation(cut(train)).run().predict(cut(rows)), "the same network"


def _attack(console: Console, folder: RunFolder, executor: Executor) -> PrivacyReport:
    _ask(console, "What could shop and telco have found out about who defaulted?")
    _say(
        console,
        "No table left its owner. But to train, the bank sent gradients to the others, and gradients depend on labels.",
    )
    report = folder.audit(executor=executor)
    rows, found = [], _on_labels(report)
    for finding in found:
        evidence = finding.plain
        assert evidence.alone is not None, "a simulated audit measures everything"
        figures = (evidence.score.value, evidence.alone.value, evidence.null_high)
        shown = (f"{figure:.3f}" for figure in figures)
        rows.append((finding.attack, finding.attacker, finding.measure, *shown, finding.verdict))
    _show(console, ("attack", "by", "measure", "score", "at home", "shuffled", "verdict"), rows)
    for attack, summary in {finding.attack: finding.summary for finding in found}.items():
        _say(console, f"{attack}: {summary}")
    _say(
        console,
        "At home is what the attacker reaches without taking part. Shuffled is what the attack reaches where labels "
        f"were shuffled before training ({folder.plan.audit.nulls} runs). Only what clearly exceeds both is a leak.",
    )
    return report


def _attack_columns(console: Console, report: PrivacyReport) -> None:
    _ask(console, "And what could the bank have found out about the columns of shop and telco?")
    rows = []
    for finding in report.attacks:
        if finding.about is Secret.FEATURES and finding.rebuilt is not None:
            imputed = finding.rebuilt.controls.get("imputation", 1.0)
            figures = (finding.plain.score.value, finding.rebuilt.relative_mse, imputed)
            nearest = f"{finding.rebuilt.singled_out:.1%}"
            rows.append((finding.attack, finding.owner, *(f"{f:.3f}" for f in figures), nearest, finding.verdict))
    _show(console, ("attack", "about", "worst R²", "relative MSE", "imputed", "own record nearest", "verdict"), rows)
    _say(
        console,
        "The bank received an embedding of each customer, and is told 50 customers' records. Relative MSE is 0 where "
        "everything is rebuilt and 1 for the mean; imputed is what the bank's own columns and labels reach alone.",
    )


def _defend(console: Console, bare: RunFolder, before: PrivacyReport, noisy: RunFolder, executor: Executor) -> None:
    from colonnade.auditing.contents import worst_first

    _ask(console, f"And if the bank adds noise to its gradients, {NOISE:g} times as large as they are?")
    noisy.simulate(progress=None, alone=partial(_bank_alone, bare.plan))
    after = noisy.audit(executor=executor)
    rows = [("the model", "AUC", *(f"{folder.metrics()['AUC']:.3f}" for folder in (bare, noisy)))]
    attackers = dict.fromkeys(finding.attacker for finding in _on_labels(before))
    for attacker in attackers:
        found = worst_first(each for each in _on_labels(before) if each.attacker == attacker)[0]
        same = (each for each in _on_labels(after) if (each.attack, each.attacker) == (found.attack, attacker))
        scores = (f"{each.plain.score.value:.3f}" for each in (found, *same))
        rows.append((f"{found.attack} by {attacker}", found.measure, *scores))
    _show(console, ("", "measure", "no defence", "noise"), rows)
    _say(console, "Of each attacker, this is the worst finding.")
    tried = _on_labels(after)
    leaks = sum(finding.verdict.startswith("leaks") for finding in tried)
    _say(console, f"That is the trade. Of {len(tried)} attacks on the noisy run, {leaks} still find something.")


def _on_labels(report: PrivacyReport) -> list[Finding]:
    return [finding for finding in report.attacks if finding.about is Secret.LABELS]


def _report(console: Console, report: PrivacyReport, folders: tuple[RunFolder, ...]) -> None:
    from colonnade.auditing.render.summary import verdict

    _ask(console, "The verdict on the run without a defence")
    for line in verdict(report):
        console.print(line, markup=False)
    _say(console, "The reports say what each party could learn, and how that was measured:")
    for folder in folders:
        console.print(f"  {folder.path / 'report.html'}", markup=False, soft_wrap=True)


def _ask(console: Console, question: str) -> None:
    console.print()
    console.print(question, style="bold", markup=False)


def _say(console: Console, text: str) -> None:
    console.print()
    console.print(text, markup=False)


def _show(console: Console, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table as Grid

    grid = Grid(*header, box=SIMPLE, show_edge=False)
    for row in rows:
        grid.add_row(*row)
    console.print()
    console.print(grid)
