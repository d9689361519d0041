"""The first screen of a report: who could learn what about whom, how good the model is, and what to do next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from colonnade.auditing.contents import EVERYBODY, Finding, Leakage, ReportContents
from colonnade.auditing.remedies import Remedy, alike, sufficient, without_embeddings
from colonnade.auditing.render import plots, words
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.secret import Secret
from colonnade.wire.message import Message

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
    "no attack applies": "messages depend on the secret, and no attack that was tried can read them",
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
    parties, rows = report.run.parties, []
    order = {name: place for place, name in enumerate(parties)}
    for about in _SECRETS:
        owners = dict.fromkeys(owner for _, owner, secret in answers if secret is about)
        if about is Secret.LABELS:
            owners = dict.fromkeys(name for name, role in parties.items() if role == "label party")
        for owner in sorted(owners, key=lambda name: order.get(name, len(order))):
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
    """What all attacks of each party tell together beyond the party alone, in the order of the questions."""
    found = (finding for question in words.questions(report) for finding in question.findings)
    return tuple(line for finding in found if (line := _beyond_alone(finding)))


def _beyond_alone(finding: Finding) -> str:
    if finding.leakage is None or finding.leakage.excess is None:
        return ""
    excess = finding.leakage.excess
    return (
        f"All {len(finding.leakage.joined)} attacks by {finding.attacker} joined tell "
        f"{words.secret_of(finding.owner, finding.about)} {words.points(excess.value, '+')} ({100 * excess.low:+.0f} "
        f"to {100 * excess.high:+.0f}) against {finding.attacker} alone{_beside_all_labels(finding.leakage)}."
    )


def _beside_all_labels(leakage: Leakage) -> str:
    """How much that is beside what the party's own columns would tell with every other label known."""
    share, told = leakage.normalised, "with all other labels known"
    if share is None:
        return "" if leakage.all_labels is None else f"; its own columns would tell no more {told}"
    if share.value <= 0:
        return ""
    columns = f"its own columns would tell {told}"
    return f", more than {columns}" if share.value > 1 else f", {share.value:.0%} of the way to what {columns}"


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
    for_labels, for_columns = _remedies(report)
    steps = [_recommended(remedy) for remedy in for_labels]
    if for_columns:
        models = " and ".join(f"{each.name} (AUC {each.after['AUC']:.3f}{_but(each)})" for each in for_columns)
        steps.append(f"Columns: {models} send no embedding of a row.")
    elif _leaked(report, Secret.FEATURES, Embedding):
        known = words.n_classes(report) is not None
        such = "so many classes" if known else "labels like these, as far as this report knows them"
        steps.append(
            "Columns: a regression, or boosted trees with hidden sums, sends no embedding of a row. The price was not "
            f"measured with {such}."
        )
    if for_labels or for_columns:
        steps.append("These figures are not of your data: rehearse with colonnade simulate, then audit.")
    if leaks and not steps:
        steps.append(
            "None of the results that come with this version says what would have stopped this. Take another model, "
            "rehearse it with colonnade simulate, and audit it."
        )
    if not leaks:
        steps.append(_without_leaks(report))
    return tuple(steps)


def grounds(report: ReportContents) -> tuple[str, ...]:
    """What was measured of the models and defences that the next steps name."""
    for_labels, for_columns = _remedies(report)
    once = {(each.name, each.setting): each for each in (*for_labels, *for_columns)}
    return tuple(_measured(remedy) for remedy in once.values())


def _remedies(report: ReportContents) -> tuple[tuple[Remedy, ...], tuple[Remedy, ...]]:
    """What to take against leaks of labels through gradients, and against those of columns through embeddings."""
    n_classes = words.n_classes(report)
    if n_classes is None:
        return (), ()
    return (
        sufficient(n_classes, _held(report)) if _leaked(report, Secret.LABELS, Gradient) else (),
        without_embeddings(n_classes) if _leaked(report, Secret.FEATURES, Embedding) else (),
    )


def _leaked(report: ReportContents, about: Secret, kind: type[Message]) -> bool:
    """Whether a secret leaks to somebody who is sent such messages about it."""
    leaks = (each for each in words.questions(report) if each.about is about and each.answer.startswith("leaks"))
    return any(kind.kind in each.kinds for each in leaks)


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
    """A remedy for labels with its price."""
    if remedy.is_model:
        what = "sends no gradient of a row" if remedy.excess is not None else "sends nothing that depends on labels"
        return f"Labels: the model {_named(remedy)} {what}: {_price(remedy)}."
    return f"Labels: under the defence {remedy.name}, {beaten(alike(remedy))}: {_price(remedy)}."


def beaten(sets: Collection[Remedy]) -> str:
    """By how much attacks beat the attacker alone under a defence, on the worst of the sets that it was measured on."""
    most, worst_seed = max(each.excess or 0.0 for each in sets), max(each.worst_seed or 0.0 for each in sets)
    told = "no measured attack beat the attacker alone"
    if most > 0:
        told = f"attacks beat the attacker alone by {words.up_to(most)}"
    single = f" (in a single seed by {words.up_to(worst_seed)})" if worst_seed > 0 else ""
    return f"on average over {min(each.seeds for each in sets)} seeds {told}{single}"


def _but(remedy: Remedy) -> str:
    """What a model that is good for columns tells of labels."""
    return "" if remedy.hides_labels else f"; labels {words.points(remedy.excess or 0.0, '+')}"


def _measured(remedy: Remedy) -> str:
    """All that was measured of a remedy, in some sentences."""
    sets = alike(remedy)
    also = f" It was measured on {len(sets)} sets." if len(sets) > 1 else " It was measured on no other set."
    said = [f"{_named(remedy)}: {_price(remedy)}, means of {remedy.seeds} seeds.{also}"]
    if remedy.excess is not None and remedy.worst_seed is not None:
        said.append(
            f"The attack on labels that came furthest ({remedy.attack}) ended {_beside(remedy.excess)} the attacker "
            f"alone. In the worst single seed an attack ended {_beside(remedy.worst_seed)} it."
        )
    if remedy.still_tells:
        said.append(
            f"Messages still tell something of labels: {remedy.single} scored {remedy.score:.2f}, and "
            f"{remedy.null:.2f} where labels were shuffled."
        )
    if remedy.rebuilt is not None:
        said.append(f"{remedy.rebuilt:.0%} of the variance of columns can be rebuilt.")
    elif remedy.is_model:
        said.append("What it tells of columns was not measured there.")
    said.append(f"{remedy.cost}." if remedy.cost else "Its running time was not measured.")
    return " ".join(said)


def _beside(excess: float) -> str:
    n = round(100 * excess)
    return "level with" if n == 0 else f"{words.points(abs(excess))} {'above' if n > 0 else 'below'}"


def _named(remedy: Remedy) -> str:
    how = ", ".join(each for each in (remedy.setting, remedy.size) if each)
    return f"{remedy.name} ({how})" if how else remedy.name


def _price(remedy: Remedy) -> str:
    before, after = remedy.before["AUC"], remedy.after["AUC"]
    return f"AUC {after:.3f} instead of {before:.3f} on {remedy.set.replace('-', ' ')}"


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
    """All that a report says in words, as plain data: the first screen, each question's answer, and what follows."""
    parties = tuple(report.run.parties)
    trade = plots.trade(report)
    return {
        "headline": words.headline(report),
        "joined": joined(report),
        "matrix": {row.title: dict(zip(parties, row.cells, strict=True)) for row in matrix(report)},
        "worst": worst(report),
        "quality": quality(report),
        "next": next_steps(report),
        "measured": grounds(report),
        "audited": words.audited(report),
        "luck": words.luck(report),
        "questions": [
            {"title": each.title, "answer": each.answer, "sentence": each.sentence} for each in words.questions(report)
        ],
        "privacy_beside_quality": None if trade is None else {"caption": trade.caption, "points": trade.told},
    }
