"""The engine: the loop from attacks to a report, for every subject and in every setting.

    grant ──▶ attempt ──▶ why not? ──▶ guess ──▶ score ─┐
                 └──▶ shuffled secret ──▶ null ─────────┤
                 └──▶ the attacker alone ──▶ baseline ──┼──▶ finding ──▶ PrivacyReport
          transcripts, ledgers ─────────────────────────┘

Every attack is made by every party that could make it, and ends as a finding or among what was not tested, with the
reason. Guess and truth meet here and nowhere else. An attack has found a leak if its whole interval lies above chance,
above the null's 95th percentile and above what the attacker could do alone; if it lies only above the first two, the
messages tell something, but no more than the attacker could know alone.

What attacks are about is said by a *subject* (`subjects`), who has what by a *setting* (`settings`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from colonnade.attacks.base import ActiveAttack, AnyAttack, Attack, Inapplicable
from colonnade.attacks.labels.strongest import Strongest
from colonnade.auditing.attempt import name_of, tried
from colonnade.auditing.contents import EVERYBODY, Finding, Granted, Leakage, Reconstruction, luck_of_best, worst_first
from colonnade.auditing.null import NullJournal
from colonnade.auditing.report import (
    PrivacyReport,
    budget,
    budget_over_runs,
    guarded,
    never_attacked,
    self_reported_leaks,
)
from colonnade.auditing.settings import Mirror, Setting, Simulated
from colonnade.auditing.subjects.base import Judgement, Made, read_by
from colonnade.auditing.subjects.by_secret import SUBJECTS
from colonnade.auditing.subjects.members import MembershipFinding
from colonnade.errors import PlanError
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.randomness import Randomness, Source
from colonnade.progress import Bars
from colonnade.roles import PublicPlan
from colonnade.runtime.executor import Executor
from colonnade.runtime.simulate import Run
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.wire.recording.recording import Transcript


def audit(
    run: Run[Any],
    attacks: Sequence[AnyAttack],
    *,
    nulls: int = 20,
    seed: int = 0,
    delta: float = 1e-5,
    executor: Executor | None = None,
    progress: bool | None = None,
    epochs: int = 0,
    attackers: Collection[str] | None = None,
    journal: NullJournal | None = None,
) -> PrivacyReport:
    """Make every attack as every party that could, and report what was found, spent and sent.

    Args:
        run: The run to audit.
        attacks: The attacks to make. What they need is granted; granted rows are drawn here and never scored.
        nulls: How many times the run is repeated with a shuffled secret; fewer than 19 are too few for a test at 5 %.
        seed: Grants, shuffles and resampling follow from it.
        delta: At which the privacy budget is told.
        executor: What repeats the run; one repetition after the other in this process if None.
        progress: Whether to show bars over attacks, repetitions and scores; None shows them on a terminal only.
        epochs: At how many epochs the worst attack on labels of each party is made again, on the messages of that
            epoch alone. For this the run is repeated once more.
        attackers: The parties that attack; every party if None.
        journal: What remembers repetitions, so that an interrupted audit can go on; nothing if None.
    """
    return report_on(Simulated(run, nulls, seed, delta, executor, progress, epochs, attackers, journal), attacks)


def audit_own_side(
    transcript: Transcript,
    attacks: Sequence[AnyAttack],
    *,
    plan: PublicPlan,
    table: Table,
    ledger: Ledger,
    nulls: int = 200,
    seed: int = 0,
    delta: float = 1e-5,
    randomness: Source = "system",
    insecure: bool = False,
) -> PrivacyReport:
    """Make every attack that what this party sent allows, as each of its peers, and report what was found and sent.

    Args:
        transcript: The party's own recording of the run.
        attacks: The attacks to make.
        plan: The run's plan.
        table: The party's own rows in that run.
        ledger: What the party spent in that run.
        nulls: Against how many shuffles of its secret each guess is scored.
        seed: Grants, shuffles and resampling follow from it.
        delta: At which the privacy budget is told.
        randomness: How the party's noise was drawn.
        insecure: Whether the run was without TLS.
    """
    mirror = Mirror(
        plan,
        transcript,
        table,
        {transcript.party: ledger},
        nulls=nulls,
        random=Randomness.seeded(seed),
        delta=delta,
        randomness=randomness,
        insecure=insecure,
    )
    return report_on(mirror, attacks)


def measure_membership(
    run: Run[Any],
    attack: AnyAttack,
    *,
    attacker: str | None = None,
    nulls: int = 20,
    seed: int = 0,
    delta: float = 1e-5,
) -> MembershipFinding:
    """Run the protocol on a random half of the rows, and let an attack tell them from the other half.

    Args:
        run: A run whose protocol, tables and roles are used.
        attack: An attack that is told candidates.
        attacker: Who makes it; the label party if None.
        nulls: How many AUCs among people who were not in the run to compare with.
        seed: Who is in the run follows from it.
        delta: At which epsilon is told.

    Raises:
        PlanError: The attack does not apply to the run.
    """
    attacker = attacker or run.plan.roles.label
    if attacker is None or attack.about is not Secret.MEMBERSHIP:
        raise PlanError(
            "Membership is measured by an attack that is told candidates, made by a party of the run, but "
            f"{name_of(attack)} is {'not told any' if attacker else 'made by nobody'}. Choose another attack or party."
        )
    setting = Simulated(run, nulls, seed, delta)
    made = _made(setting, attack, attacker, EVERYBODY)
    if isinstance(made, str):
        raise PlanError(f"{name_of(attack)} should apply to this run, but {made}. Choose another run or attacker.")
    (judged,) = _judged(setting, [made])
    assert isinstance(judged, Judgement)
    assert isinstance(judged.measured, MembershipFinding)
    return judged.measured


def report_on(setting: Setting, attacks: Sequence[AnyAttack]) -> PrivacyReport:
    """Audit in a setting, on one thread."""
    from threadpoolctl import threadpool_limits

    # Attacks solve many small problems: threads that wait for work take most of the time of two cores, and the number
    # of threads shows in the last bits of a sum.
    with threadpool_limits(1):
        findings, untested = examine(setting, attacks)
    sent, parties = setting.disclosures, setting.identity.parties
    tried, attackers = {attack.about for attack in attacks}, setting.all_attackers
    unattacked = never_attacked(sent, parties, findings, [(name, about) for name in attackers for about in tried])
    return PrivacyReport(
        run=setting.identity,
        disclosures=sent,
        budget=budget(sent, setting.ledgers, setting.delta),
        attacks=tuple(findings),
        untested=(*untested, *setting.unmeasured(findings), *unattacked),
        stated=self_reported_leaks(setting.transcripts),
        over_runs=budget_over_runs(setting.ledgers, setting.delta),
        inapplicable=tuple(line for line in untested if isinstance(line, Inapplicable)),
        tried=tuple(sorted(tried)),
        attackers=attackers,
        guarded=guarded(setting.transcripts),
    )


def examine(setting: Setting, attacks: Iterable[AnyAttack]) -> tuple[list[Finding], list[str]]:
    """What the attacks find, and why others find nothing that could be said."""
    made, untested = make(setting, attacks)
    several = [name for name, n in Counter(_guessers(made)).items() if n > 1 and setting.joins]
    if several:
        joined, reasons = make(setting, [Strongest()], several.__contains__, made)
        made, untested = made + joined, untested + reasons
    found: list[tuple[Made, Finding]] = []
    for each, judged in zip(made, _judged(setting, made), strict=True):
        attempt = each.attempt
        if isinstance(judged, str):
            untested.append(_told(_title(attempt.attack, attempt.attacker, attempt.grant.owner), judged))
        else:
            finding = _finding(setting, each, judged)
            if isinstance(judged.measured, Leakage):
                earlier = [finding for _, finding in found]
                finding = replace(finding, leakage=_leakage(each, judged.measured, made, earlier))
            found.append((each, finding))
    return list(_with_epochs(setting, found)), untested


def _with_epochs(setting: Setting, found: Sequence[tuple[Made, Finding]]) -> Iterator[Finding]:
    """The findings; the worst of each attacker about labels with its scores in single epochs, where these are asked."""
    worst: dict[str, Finding] = {}
    for _, finding in found:
        if finding.about is Secret.LABELS and finding.leakage is None:
            rival = worst.setdefault(finding.attacker, finding)
            worst[finding.attacker] = worst_first([rival, finding])[0]
    for made, finding in found:
        if finding is worst.get(finding.attacker):
            named = finding.strongest is not finding.plain
            yield replace(finding, over_epochs=setting.over_epochs(made, up_to_naming=named))
        else:
            yield finding


def _guessers(made: Iterable[Made]) -> Iterator[str]:
    """Who made each guess that could be joined with others."""
    for each in made:
        if each.attempt.attack.about is Strongest.about and isinstance(each.attempt.attack, Attack):
            yield each.attempt.attacker


def _leakage(each: Made, measured: Leakage, made: Sequence[Made], findings: Sequence[Finding]) -> Leakage:
    """What was measured of a joined guess, with the attacks that it comes from and what luck would make of these."""
    attempt = each.attempt
    names = tuple(part.attempt.name for part in read_by(attempt, made))
    key = attempt.attacker, attempt.grant.owner, attempt.attack.about
    tests = [f.plain for f in findings if f.attack in names and (f.attacker, f.owner, f.about) == key]
    return replace(measured, joined=names, luck=luck_of_best(tests))


def make(
    setting: Setting,
    attacks: Iterable[AnyAttack],
    attackers: Callable[[str], bool] = lambda name: True,
    before: Sequence[Made] = (),
) -> tuple[list[Made], list[str]]:
    """The guesses that some parties' attacks make about rows they were not told, and why other attacks make none.

    Guesses that were made `before` can be read by attacks that declare so.
    """
    made: list[Made] = []
    untested: list[str] = []
    with Bars(setting.progress) as bars:
        for attack in bars.track("joined attacks" if before else "attacks", list(attacks)):
            ended = len(made) + len(untested)
            if reason := setting.why_not_audited(attack):
                untested.append(_told(setting.title(attack), reason))
                continue
            subject = SUBJECTS[attack.about]
            for owner in setting.owners(subject, attack):
                reason = subject.why_not_scorable(owner, setting.tables)
                if reason or owner is None:
                    untested.append(_told(setting.title(attack), reason or ""))
                    continue
                for attacker in filter(attackers, setting.attackers(owner)):
                    found = _made(setting, attack, attacker, owner, [*before, *made])
                    if isinstance(found, str):
                        untested.append(_told(_title(attack, attacker, owner), found))
                    else:
                        made.append(found)
            if len(made) + len(untested) == ended:
                nobody = Inapplicable("nobody in this run could make it about another party")
                untested.append(_told(setting.title(attack), nobody))
    return made, untested


def _told(title: str, reason: str) -> str:
    """Why an attack was not made, in a line that stays `Inapplicable` where the reason is."""
    return type(reason)(f"{title}: {reason}")


def _title(attack: AnyAttack, attacker: str, owner: str) -> str:
    """Which attack by whom, and about whom where that is not plain."""
    about = "" if SUBJECTS[attack.about].one_owner else f" about {owner}"
    return f"{name_of(attack)} by {attacker}{about}"


def _made(setting: Setting, attack: AnyAttack, attacker: str, owner: str, before: Sequence[Made] = ()) -> Made | str:
    """The part of a guess that can be scored, or why there is none."""
    attempt = setting.attempt(SUBJECTS[attack.about], attack, attacker, owner)
    if isinstance(attempt, str):
        return attempt
    guess = tried(lambda: setting.guess(attempt, tuple(part.guess for part in read_by(attempt, before))))
    if isinstance(guess, str):
        return guess
    truth = setting.truth(attempt)
    kept = truth.scored_part(guess)
    return kept if isinstance(kept, str) else Made(attempt, truth, kept, setting.attacked_ledgers(attempt))


def _judged(setting: Setting, made: Sequence[Made]) -> Iterator[Judgement | str]:
    """The evidence for each guess beside its controls, or why there is none."""
    nulls = setting.null(made)
    with Bars(setting.progress) as bars:
        for each, null in zip(bars.track("scores", made), nulls, strict=True):
            attempt = each.attempt
            if isinstance(null, str):
                yield f"in a null run {null}"
                continue
            interval = setting.random.generator("interval", attempt.name, attempt.attacker)
            subject = SUBJECTS[attempt.attack.about]
            yield subject.judge(each, null, setting.baseline(each), interval, setting.delta)


def _finding(setting: Setting, made: Made, judged: Judgement) -> Finding:
    attempt, attack, needs = made.attempt, made.attempt.attack, made.attempt.attack.needs
    messages, forest = (tuple(message.kind for message in kinds) for kinds in (needs.messages, needs.forest))
    sentence = (type(attack).__doc__ or "").strip().split("\n")[0]
    rebuilt = judged.measured if isinstance(judged.measured, Reconstruction) else None
    if rebuilt is not None and setting.mode != "simulated":
        rebuilt = replace(rebuilt, pictures=())
    return Finding(
        attack=attempt.name,
        summary=f"{sentence} {judged.remark}".strip(),
        attacker=attempt.attacker,
        owner=attempt.grant.owner,
        about=attack.about,
        is_active=isinstance(attack, ActiveAttack),
        granted=Granted(
            messages,
            own_features=needs.own_features and setting.has_table(attempt.attacker),
            own_model=needs.own_model,
            known_labels=attempt.grant.labels_per_class,
            known_records=needs.known_records,
            forest=forest,
            prior=needs.prior,
        ),
        measure=made.truth.measure(made.guess),
        rows=len(made.guess.rows),
        coverage=len(made.guess.rows) / len(made.truth.scored_rows),
        plain=judged.plain,
        up_to_naming=judged.up_to_naming,
        rebuilt=rebuilt,
    )
