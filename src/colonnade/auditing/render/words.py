"""The report in words: the headline, the questions it answers, and how numbers are written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from colonnade.auditing.contents import (
    EVERYBODY,
    HONEST_RIDGE,
    Disclosure,
    Evidence,
    Finding,
    Measure,
    ReportContents,
    SelfReportedLeak,
    Verdict,
    revealed,
    worst_first,
)
from colonnade.secret import Secret

Answer: TypeAlias = Verdict | Literal["not tested", "no attack applies", "measured by its owner"]

_ORDER: tuple[Answer, ...] = (
    "no attack applies",
    "not tested",
    "no leak found",
    "measured by its owner",
    "no more than alone",
    "leaks, nobody singled out",
    "leaks, classes unnamed",
    "leaks",
)
_RESERVES: dict[Answer, str] = {
    "leaks, classes unnamed": ", under the best names of the classes",
    "leaks, nobody singled out": ", but singles hardly anybody out",
}
_SCHEME = re.compile(r"(hinted|rlwe|shares|paillier)-\d")
IN_THE_CLEAR = "TLS was off in this run: anyone on the network path could read and change every message."
KNOWN_NOISE = (
    "Noise followed from the plan's seed in this run: all who know the plan can subtract it. No epsilon holds."
)


@dataclass(frozen=True)
class Question:
    """What one party could learn about a secret of another, and the answer: the worst finding, which comes first.

    Attributes:
        kinds: The messages that depend on the secret.
        is_repeated: Whether the null repeats the run, and so tells what the messages say from what the attacker knows.
        stated: What the owner itself found could be rebuilt; None where it stated nothing.
        is_tried: Whether the party could make attacks of this audit on such a secret, applicable or not.

    >>> Question("bank", "shop", Secret.FEATURES, (), ("split/embedding",)).title
    "What could bank learn about shop's features?"
    """

    attacker: str
    owner: str
    about: Secret
    findings: tuple[Finding, ...]
    kinds: tuple[str, ...]
    is_repeated: bool = True
    stated: SelfReportedLeak | None = None
    is_tried: bool = False

    @property
    def title(self) -> str:
        """The question."""
        if self.about is Secret.MEMBERSHIP:
            return f"Could {self.attacker} tell {secret_of(self.owner, self.about)}?"
        return f"What could {self.attacker} learn about {secret_of(self.owner, self.about)}?"

    @property
    def answer(self) -> Answer:
        """The answer in one word."""
        if self.findings:
            return self.findings[0].verdict
        if self.stated is not None:
            return "measured by its owner"
        return "no attack applies" if self.is_tried else "not tested"

    @property
    def joined(self) -> Finding | None:
        """All attacks of the party on this secret in one, where they were joined."""
        return next((finding for finding in self.findings if finding.leakage is not None), None)

    @property
    def gain(self) -> float:
        """By how much the worst finding exceeds the party alone."""
        if not self.findings:
            return 0.0
        evidence, leakage = self.findings[0].strongest, self.findings[0].leakage
        if leakage is not None and leakage.excess is not None:
            return leakage.excess.value
        return evidence.score.value - (evidence.chance if evidence.alone is None else evidence.alone.value)

    @property
    def sentence(self) -> str:
        """The answer in a few sentences."""
        if self.stated is not None:
            return f"{self.stated} {self.found if self.findings else 'This audit made no attack on them.'}"
        unread = [kind for kind in self.kinds if not any(finding.reads(kind) for finding in self.findings)]
        nothing = "No attack of this audit applies." if self.is_tried else "Nobody tried."
        found = self.found if self.findings else nothing
        return f"{found} What {' and '.join(unread)} may give away has not been measured." if unread else found

    @property
    def found(self) -> str:
        """What the worst finding says."""
        worst = self.findings[0]
        evidence = worst.strongest
        said = number(evidence.score.value, worst.measure)
        if self.answer == "no leak found":
            n = n_attacks(self.findings)
            tried = "One attack was tried" if n == 1 else f"{n} attacks were tried"
            return f"{tried} and none found a leak. That is no proof that there is none: a stronger attack may exist."
        if self.answer == "no more than alone":
            told = (
                f"The messages do tell {self.about}" if self.is_repeated else f"{worst.attack} finds out {self.about}"
            )
            without = "without them" if self.is_repeated else "by luck"
            most, reached = number(evidence.null_threshold, worst.measure), alone(evidence, worst.measure)
            rival = f"an honest {self.attacker}" if _is_honest(evidence) else self.attacker
            by_itself = "" if _is_honest(evidence) else " by itself"
            return f"{told} ({said}; {without} at most {most}), but {rival} reaches {reached}{by_itself}."
        whose = worst.attack if worst.leakage is None else f"{worst.attack}, all its attacks joined,"
        found = f"{whose} {self._success(worst, said)}{_RESERVES.get(self.answer, '')}."
        chance = number(evidence.chance, worst.measure)
        by_chance = f"A column's mean reaches {chance}" if worst.measure == "R²" else f"By chance it would be {chance}"
        if evidence.alone is None:
            unknown = f"whether {self.attacker} could know as much by itself was not measured"
            return f"{found} {by_chance}; {unknown}."
        if evidence.alone.value <= evidence.chance:
            return f"{found} {by_chance}, and {self.attacker} alone does no better{self._told_more(worst)}."
        reached = alone(evidence, worst.measure)
        rival = "an honest" if _is_honest(evidence) else "without collaboration"
        return f"{found} {by_chance}; {rival} {self.attacker} reaches {reached}."

    def _told_more(self, worst: Finding) -> str:
        """What the party reaches by itself with the labels that joined attacks are told."""
        joined = self.joined
        if joined is None or joined is worst or joined.measure != worst.measure or joined.plain.alone is None:
            return ""
        if joined.plain.alone.value <= joined.plain.chance:
            return ""
        reached = alone(joined.plain, joined.measure)
        return f"; with {joined.granted.known_labels} known labels per class it reaches {reached}"

    def _success(self, worst: Finding, said: str) -> str:
        share = f", {worst.coverage:.0%} of those it could have guessed" if round(worst.coverage, 2) < 1 else ""
        rows = f"{worst.rows:,} rows{share}"
        if worst.measure == "accuracy":
            return f"names {said} correctly of {rows}"
        if worst.measure == "balanced accuracy":
            return f"names {said} of each class correctly on average, on {rows}"
        if worst.measure == "R²":
            return f"rebuilds the most exposed of {self.owner}'s columns with an R² of {said} on {rows}"
        if self.about is Secret.MEMBERSHIP:
            return f"tells people in the run from people outside it with an AUC of {said} on {worst.rows:,} people"
        return f"tells the last class from the others with an AUC of {said} on {rows}"


@dataclass(frozen=True)
class Traffic:
    """All that one party sent another."""

    sender: str
    receiver: str
    disclosures: tuple[Disclosure, ...]

    @property
    def messages(self) -> int:
        """How many messages."""
        return sum(disclosure.messages for disclosure in self.disclosures)

    @property
    def bytes(self) -> int:
        """How many bytes."""
        return sum(disclosure.bytes for disclosure in self.disclosures)


def protection(under: Iterable[str]) -> str:
    """What messages went out under, in words: a scheme of encryption is called so.

    >>> protection(["rlwe-8192-156", "mask"]), protection([])
    ('encrypted (rlwe-8192-156), mask', 'none')
    """
    return ", ".join(f"encrypted ({name})" if _SCHEME.match(name) else name for name in under) or "none"


def questions(report: ReportContents) -> tuple[Question, ...]:
    """Every question that the report answers, and those it leaves open: the worst answers first, then labels."""
    stated = {(said.receiver, said.owner, Secret.FEATURES): said for said in report.stated}
    attacked = [(finding.attacker, finding.owner, finding.about) for finding in report.attacks]
    kinds = revealed(report.disclosures, report.run.parties)
    asked = [
        Question(
            *key,
            worst_first(f for f in report.attacks if (f.attacker, f.owner, f.about) == key),
            kinds.get(key, ()),
            is_repeated=report.run.mode == "simulated",
            stated=stated.get(key),
            # What the receiver could do with columns and a model of its own is never tried by the sender alone.
            is_tried=report.tries(key[0], key[2]) and report.run.mode != "mirror",
        )
        for key in dict.fromkeys([*attacked, *kinds, *stated])
    ]
    return tuple(
        sorted(asked, key=lambda each: (-_ORDER.index(each.answer), each.about is not Secret.LABELS, -each.gain))
    )


def traffic(report: ReportContents) -> tuple[Traffic, ...]:
    """The message ledger: what crossed between each pair of parties, in each direction."""
    pairs = dict.fromkeys((d.sender, d.receiver) for d in report.disclosures)
    return tuple(
        Traffic(*pair, tuple(d for d in report.disclosures if (d.sender, d.receiver) == pair)) for pair in pairs
    )


def headline(report: ReportContents) -> str:
    """The whole report in one line, labels first, then in the order of the parties."""
    order = {name: place for place, name in enumerate(report.run.parties)}

    def place(each: Question) -> tuple[bool, int, int]:
        return each.about is not Secret.LABELS, order.get(each.owner, len(order)), order.get(each.attacker, len(order))

    asked = sorted(questions(report), key=place)
    if leaks := _by_attackers(asked, *(answer for answer in _ORDER if answer.startswith("leaks"))):
        return "; ".join(f"{_listed(secrets)} can be inferred by {who}" for who, secrets in leaks.items())
    if known := _by_attackers(asked, "no more than alone"):
        return "; ".join(
            f"{who} can infer {_listed(secrets)}, but no more than alone" for who, secrets in known.items()
        )
    if n := n_attacks(report.attacks):
        return f"No leak found by {n} attack{'s' if n > 1 else ''}"
    if report.run.mode == "mirror" and report.disclosures:
        return f"No attack can be made on what {report.disclosures[0].sender} sent alone"
    return "Nothing has been tested"


def warnings(report: ReportContents) -> tuple[str, ...]:
    """What must not be overlooked beside the headline."""
    run = report.run
    return tuple(text for text, holds in ((IN_THE_CLEAR, run.insecure), (KNOWN_NOISE, run.noise_is_known)) if holds)


def _by_attackers(asked: Iterable[Question], *answers: Answer) -> dict[str, list[str]]:
    """The secrets about which questions have one of some answers, by the parties that attack them."""
    attackers: dict[str, list[str]] = {}
    for question in asked:
        if question.answer in answers:
            attackers.setdefault(secret_of(question.owner, question.about), []).append(question.attacker)
    found: dict[str, list[str]] = {}
    for secret, names in attackers.items():
        found.setdefault(_listed(names), []).append(secret)
    return found


def secret_of(owner: str, about: Secret) -> str:
    """A party's secret in words.

    >>> secret_of("bank", Secret.LABELS), secret_of("shop", Secret.MEMBERSHIP)
    ("bank's labels", "who was among shop's rows")
    """
    if about is not Secret.MEMBERSHIP:
        return f"{owner}'s {about}"
    return "who was in the run" if owner == EVERYBODY else f"who was among {owner}'s rows"


def n_classes(report: ReportContents) -> int | None:
    """How many classes labels have; None where they are no classes, or the report does not tell."""
    if report.run.n_classes is not None:
        return report.run.n_classes or None
    on_labels = [finding for finding in report.attacks if finding.about is Secret.LABELS]
    chances = [finding.plain.chance for finding in on_labels if finding.measure == "balanced accuracy"]
    if chances:
        return round(1 / min(chances))
    # Of more than two classes no attack gives scores.
    return 2 if any(finding.measure == "AUC" for finding in on_labels) else None


def n_attacks(findings: tuple[Finding, ...]) -> int:
    """How many different attacks findings come from."""
    return len({finding.attack for finding in findings})


def luck(report: ReportContents) -> str:
    """How many tests were made, and how many of them luck alone would decide."""
    tests = [evidence for finding in report.attacks for evidence in finding.tests]
    if not tests:
        return ""
    exceeding = sum(evidence.false_positive_rate for evidence in tests)
    twice = any(finding.up_to_naming is not None for finding in report.attacks)
    made = "1 test was made" if len(tests) == 1 else f"{len(tests)} tests were made"
    how = ", each guess of classes as it is and under the best names" if twice else ""
    return f"{made}{how}. By luck alone about {exceeding:.1f} of them would exceed their null."


def number(value: float, measure: Measure) -> str:
    """A score as people read it: accuracy in per cent, AUC and R² as a fraction."""
    return f"{value:.3f}" if measure in ("AUC", "R²") else f"{value:.1%}"


def points(share: float, sign: str = "") -> str:
    """A difference of two scores in hundredths.

    >>> points(0.012), points(-0.12), points(0.3, sign="+")
    ('1 point', '-12 points', '+30 points')
    """
    n = round(100 * share)
    return f"{n:{sign}d} point{'s' if abs(n) != 1 else ''}"


def up_to(share: float) -> str:
    """A difference of two scores above nothing, as a bound.

    >>> up_to(0.038), up_to(0.004)
    ('up to 4 points', 'less than 1 point')
    """
    return f"up to {points(share)}" if round(100 * share) else "less than 1 point"


def null(evidence: Evidence, measure: Measure, unit: str) -> str:
    """What is reached where the messages tell nothing, and in how many null runs or permutations that was seen."""
    n = len(evidence.null)
    return f"{number(evidence.null_high, measure)} of {n} {unit}{'s' if n > 1 else ''}"


def null_unit(report: ReportContents) -> str:
    """What a null is made of."""
    return "run" if report.run.mode == "simulated" else "permutation"


def alone_by(evidence: Evidence) -> str:
    """The method by which the attacker reaches most by itself."""
    if evidence.alone is None:
        return ""
    return "no better than chance" if evidence.alone.method == "chance" else evidence.alone.method


def alone(evidence: Evidence, measure: Measure) -> str:
    """What the attacker reached by itself, if that was measured."""
    return "not measured" if evidence.alone is None else number(evidence.alone.value, measure)


def _is_honest(evidence: Evidence) -> bool:
    """Whether the best baseline takes honest part in the run, and does not do without it."""
    return evidence.alone is not None and evidence.alone.method == HONEST_RIDGE


def interval(evidence: Evidence, measure: Measure) -> str:
    """The ends of a score's interval."""
    return f"{number(evidence.score.low, measure)} to {number(evidence.score.high, measure)}"


def size(n_bytes: int) -> str:
    """A number of bytes as people read it."""
    amount = float(n_bytes)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def audited(report: ReportContents) -> str:
    """What was audited, how and by whom."""
    run, some = report.run, report.attackers
    is_part = run.mode != "mirror" and some and set(some) < run.parties.keys()
    by = f", attacks by {_listed(some)} only" if is_part else ""
    what = "partial " if report.partial else ""
    return f"{run.protocol} on {run.n_rows:,} rows, {what}{run.mode} audit{by}."


def joined_from(finding: Finding) -> str:
    """From which attacks a joined guess comes, what luck would make of these, and what all labels would tell."""
    if finding.leakage is None:
        return ""
    told = f"{finding.leakage.multiplicity} They are {', '.join(finding.leakage.joined)}."
    if finding.leakage.all_labels is None:
        return told
    most = finding.leakage.all_labels
    reached = number(most.value, finding.measure)
    return f"{told} With the labels of all other rows, its own columns alone would reach {reached} ({most.method})."


def scored(finding: Finding) -> str:
    """What an attack was given, and how it was scored."""
    dishonest = "Takes part dishonestly. " if finding.is_active else ""
    return (
        f"{dishonest}Given {knowledge(finding)}. Scored by {finding.measure} on {finding.rows:,} rows, "
        f"{finding.coverage:.0%} of those it could have guessed."
    )


def over_epochs(finding: Finding) -> str:
    """What the same attack reaches on the messages of single epochs; empty where that was not asked for."""
    if not finding.over_epochs:
        return ""
    reached = (f"epoch {epoch + 1}: {number(score, finding.measure)}" for epoch, score in finding.over_epochs)
    limit = number(finding.strongest.threshold, finding.measure)
    return f"On the messages of one epoch alone, where {limit} must be exceeded: {', '.join(reached)}."


def knowledge(finding: Finding) -> str:
    """What an attack was given, in words."""
    granted = finding.granted
    parts = ["its own part in the run"] if finding.is_active else []
    parts += ["what its other attacks guessed"] if finding.leakage is not None else []
    parts += [f"the messages {' and '.join(granted.messages)}"] if granted.messages else []
    parts += ["its own columns"] if granted.own_features else []
    parts += ["its own model"] if granted.own_model else []
    parts += [f"what it saw of the forest in {' and '.join(granted.forest)}"] if granted.forest else []
    if granted.known_labels:
        parts.append(f"{granted.known_labels} known label{'s' if granted.known_labels > 1 else ''} per class")
    if granted.known_records:
        parts.append(f"{granted.known_records} known record{'s' if granted.known_records > 1 else ''}")
    if granted.prior:
        parts.append(f"a sample of {granted.prior} whole records")
    return _listed(parts) if parts else "nothing but its own part in the run"


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
