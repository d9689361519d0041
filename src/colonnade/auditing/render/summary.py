"""The first screen of a report: who could learn what about whom, how good the model is, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from colonnade.auditing.contents import EVERYBODY, Finding, ReportContents, Score
from colonnade.auditing.remedies import Remedy, sufficient
from colonnade.auditing.render import words
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.secret import Secret

Cell: TypeAlias = words.Answer | Literal["nothing sent", "own"]

# A verdict is never told by colour alone.
SIGNS: Mapping[Cell, str] = {
    "leaks": "✖",
    "leaks, classes unnamed": "▲",
    "leaks, nobody singled out": "▲",
    "no more than alone": "≈",
    "no leak found": "○",
    "measured by its owner": "◆",
    "not tested": "?",
    "no attack applies": "□",
    "nothing sent": "∅",
    "own": "",
}
MEANINGS: Mapping[Cell, str] = {
    "leaks": "an attack found more than the attacker could know alone",
    "leaks, classes unnamed": "the classes are told apart, but not named",
    "leaks, nobody singled out": "columns are rebuilt in part, and hardly a row is recognised",
    "no more than alone": "messages tell what the attacker knows anyway",
    "no leak found": "attacks were made and found nothing, which is no proof",
    "measured by its owner": "the owner told how much can be rebuilt; nobody attacked",
    "not tested": "messages depend on the secret, and nobody attacked them",
    "no attack applies": "messages depend on the secret, and no attack that we have can read them",
    "nothing sent": "no message to this party depends on the secret",
}
_SECRETS = (Secret.LABELS, Secret.FEATURES, Secret.MEMBERSHIP)


@dataclass(frozen=True)
class Row:
    """One secret, and what each party could learn about it, in the order of the parties.

    >>> Row("bank", Secret.LABELS, ("own", "leaks")).title
    "bank's labels"
    """

    owner: str
    about: Secret
    cells: tuple[Cell, ...]

    @property
    def title(self) -> str:
        """The secret in words."""
        return words.secret_of(self.owner, self.about)


def matrix(report: ReportContents) -> tuple[Row, ...]:
    """Who could learn what about whom: a row for each secret that somebody holds, a cell for each party."""
    answers = {(each.attacker, each.owner, each.about): each.answer for each in words.questions(report)}
    parties = report.run.parties
    rows = []
    for about in _SECRETS:
        owners = dict.fromkeys(owner for _, owner, secret in answers if secret is about)
        if about is Secret.LABELS:
            owners = dict.fromkeys(name for name, role in parties.items() if role == "label party")
        for owner in owners:
            cells: list[Cell] = []
            for party in parties:
                unsent: Cell = "own" if owner in (party, EVERYBODY) else "nothing sent"
                cells.append("own" if owner == party else answers.get((party, owner, about), unsent))
            rows.append(Row(owner, about, tuple(cells)))
    return tuple(rows)


def told(cell: Cell) -> str:
    """A verdict with its sign.

    >>> told("leaks"), told("own")
    ('✖ leaks', 'its own')
    """
    return "its own" if cell == "own" else f"{SIGNS[cell]} {cell}"


def joined(report: ReportContents) -> tuple[str, ...]:
    """What all attacks of each party tell together beyond the party alone, the worst party first."""
    found = [(f, f.leakage.excess) for f in report.strongest if f.leakage is not None and f.leakage.excess is not None]
    return tuple(_beyond_alone(finding, excess) for finding, excess in sorted(found, key=lambda each: -each[1].value))


def _beyond_alone(finding: Finding, excess: Score) -> str:
    assert finding.leakage is not None
    share = finding.leakage.normalised
    return (
        f"All {len(finding.leakage.joined)} attacks by {finding.attacker} joined tell "
        f"{words.secret_of(finding.owner, finding.about)} {100 * excess.value:+.0f} points ({100 * excess.low:+.0f} to "
        f"{100 * excess.high:+.0f}) against {finding.attacker} alone{_beside_all_labels(share)}."
    )


def _beside_all_labels(share: Score | None) -> str:
    """How much that is beside what the party's own columns would tell with every other label known."""
    if share is None or share.value <= 0:
        return ""
    told = "its own columns would tell with the labels of all other rows known"
    return f", more than {told}" if share.value > 1 else f", {share.value:.0%} of the way to what {told}"


def worst(report: ReportContents) -> tuple[str, ...]:
    """The two worst findings, each about another secret, in a sentence or two."""
    found: dict[tuple[str, Secret], str] = {}
    for question in words.questions(report):
        if question.answer.startswith("leaks"):
            found.setdefault((question.owner, question.about), f"{_asked(question)}: {question.found}")
    return tuple(found.values())[:2]


def _asked(question: words.Question) -> str:
    return f"{question.attacker} about {words.secret_of(question.owner, question.about)}"


def quality(report: ReportContents) -> str:
    """How well the model predicts, in a sentence."""
    found = report.quality
    if found is None:
        return "How well the model predicts is not known here."
    return f"{found.verdict} Measured on {found.rows:,} rows that were not trained on."


def next_steps(report: ReportContents) -> tuple[str, ...]:
    """What would have stopped the leaks, at which price, as far as that was measured."""
    leaks = [question for question in words.questions(report) if question.answer.startswith("leaks")]
    steps: list[str] = []
    kinds = {question.about: question.kinds for question in reversed(leaks)}
    if Gradient.kind in kinds.get(Secret.LABELS, ()):
        steps += [_recommended(remedy) for remedy in sufficient(n_classes(report), _held(report))]
    if Embedding.kind in kinds.get(Secret.FEATURES, ()):
        steps.append(
            "Columns: a regression, or boosted trees with hidden sums, sends no embedding of any row. The price was "
            "not measured; rehearse it with colonnade simulate."
        )
    if leaks and not steps:
        steps.append(
            "None of the results that come with this version says what would have stopped this. Take another model, "
            "rehearse it with colonnade simulate, and audit it."
        )
    if not leaks:
        steps.append(_without_leaks(report))
    return tuple(steps)


def _without_leaks(report: ReportContents) -> str:
    """What to do where no attack found a leak, or none was made."""
    if report.attacks or report.run.mode == "simulated":
        found = "Keep the plan" if report.attacks else "Choose attacks that apply to this run"
        return f"{found}. Before you rely on it, audit with thorough = true: more attacks are made."
    return (
        "Find out what the others make of it with their own columns: audit jointly with colonnade audit --attacker, or "
        "rehearse with colonnade simulate or colonnade doctor --rehearse."
    )


def _recommended(remedy: Remedy) -> str:
    """A remedy with its figures."""
    cost = f"AUC {remedy.after['AUC']:.3f} instead of {remedy.before['AUC']:.3f} on {remedy.set.replace('-', ' ')}"
    if remedy.excess is None:
        columns = (
            "" if remedy.rebuilt is None else f", but {remedy.rebuilt:.0%} of the columns' variance can be rebuilt"
        )
        return f"Labels: the model {remedy.name} sends nothing that depends on labels ({cost}{columns})."
    side = "below" if remedy.excess < 0 else "above"
    left = f"the best attack ended {abs(100 * remedy.excess):.0f} points {side} the attacker alone"
    if remedy.is_model:
        how = f" ({remedy.setting})" if remedy.setting else ""
        return f"Labels: the model {remedy.name}{how} sends no gradient of a row ({left}; {cost})."
    return f"Labels: the defence {remedy.name} stopped every attack that was measured ({left}; {cost})."


def n_classes(report: ReportContents) -> int:
    """How many classes attacks on labels tell apart; 2 where none was made."""
    chances = [f.plain.chance for f in report.attacks if f.about is Secret.LABELS and f.measure == "balanced accuracy"]
    return round(1 / max(chances)) if chances else 2


def _held(report: ReportContents) -> set[str]:
    """The remedies that a run has already, as the catalogue calls them."""
    from colonnade.catalogue import DEFENCES

    under = {name.partition("(")[0] for sent in report.disclosures for name in sent.under}
    return {name for name in DEFENCES if DEFENCES.class_name(name) in under}


def verdict(report: ReportContents) -> tuple[str, str, str]:
    """The report in three lines: what leaks, how good the model is, what to do."""
    leak = " ".join((f"{words.headline(report)}.", *joined(report)[:1]))
    return leak, f"Quality: {quality(report)}", f"Next: {next_steps(report)[0]}"


def summary(report: ReportContents) -> dict[str, Any]:
    """The first screen as plain data."""
    parties = tuple(report.run.parties)
    return {
        "headline": words.headline(report),
        "joined": joined(report),
        "matrix": {row.title: dict(zip(parties, row.cells, strict=True)) for row in matrix(report)},
        "worst": worst(report),
        "quality": quality(report),
        "next": next_steps(report),
    }
