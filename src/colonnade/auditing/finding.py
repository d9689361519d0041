"""Findings: a guess beside its controls, and what there is no finding about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from colonnade.attacks.base import ActiveAttack, Attack, Guess
from colonnade.auditing.alone import Alone
from colonnade.auditing.attempt import Attempt
from colonnade.auditing.disclosure import Disclosure
from colonnade.auditing.report import Evidence, Finding, Granted
from colonnade.auditing.score import (
    Truth,
    Values,
    best_named,
    chance,
    measure_of,
    scorable,
    too_little,
    unusable,
    with_interval,
)
from colonnade.curves import CurvesType
from colonnade.secret import Secret


def unscorable(attack: Attack | ActiveAttack, owner: str | None, labels: pa.ChunkedArray | None) -> str | None:
    """Why what an attack says could not be scored; None if it can.

    Args:
        attack: The attack.
        owner: Whose labels it would be scored against.
        labels: These labels, if there are any.
    """
    if attack.needs.candidates:
        return "it is judged in a run of its own with half of the people, which takes a simulation"
    if attack.about is not Secret.LABELS:
        return f"guesses about {attack.about} cannot be scored yet, only those about labels"
    if labels is None:
        return "nobody in this run holds labels" if owner is None else f"{owner} holds no labels"
    if isinstance(labels.type, CurvesType):
        return f"{owner}'s labels are curves, and it guesses classes"
    values = np.asarray(labels)
    if values.dtype.kind == "f" and (values % 1 != 0).any():
        return f"{owner}'s labels are measurements, and it guesses classes"
    return None


def scored_part(attempt: Attempt, guess: Guess, truth: Truth) -> Guess | str:
    """The part of a guess that can be scored, or why there is none."""
    reason = unusable(guess, truth)
    if reason is None:
        kept = scorable(guess, truth, attack=attempt.name)
        reason = too_little(kept, truth)
    return kept if reason is None else reason


def finding_of(
    attempt: Attempt,
    guess: Guess,
    truth: Truth,
    *,
    owner: str,
    null: Sequence[Values],
    alone: Alone | None,
    random: np.random.Generator,
) -> Finding:
    """A guess about one party's labels, as it was made and up to naming, beside its controls.

    Args:
        attempt: Who made it, how, and what it was told.
        guess: Its guess, without the granted rows.
        truth: What it is about.
        owner: Whose labels these are.
        null: What it scores where there is nothing to find.
        alone: What the attacker could do by itself; None where that is not known.
        random: For the interval.
    """
    attack, needs, measure = attempt.attack, attempt.attack.needs, measure_of(guess)
    by_chance = chance(measure, truth, guess.rows)
    plain = Evidence(
        with_interval(guess, truth, random),
        by_chance,
        tuple(values.plain for values in null),
        None if alone is None else alone.best(guess.rows, measure, truth),
    )
    up_to_naming = Evidence(
        with_interval(best_named(guess, truth), truth, random),
        by_chance,
        tuple(values.up_to_naming for values in null),
        None if alone is None else alone.best_up_to_naming(guess.rows, measure, truth),
    )
    return Finding(
        attack=attempt.name,
        summary=(type(attack).__doc__ or "").strip().split("\n")[0],
        attacker=attempt.attacker,
        owner=owner,
        about=attack.about,
        is_active=isinstance(attack, ActiveAttack),
        granted=Granted(
            tuple(message.kind for message in needs.messages), needs.own_features, needs.own_model, needs.known_labels
        ),
        measure=measure,
        rows=len(guess.rows),
        coverage=len(guess.rows) / len(truth.scored_rows),
        plain=plain,
        up_to_naming=up_to_naming,
    )


def never_attacked(sent: Sequence[Disclosure], findings: Sequence[Finding]) -> Iterator[str]:
    """What was revealed to somebody and no attack made use of."""
    kinds: dict[tuple[str, str, Secret], list[str]] = {}
    for disclosure in sent:
        for secret in disclosure.reveals:
            kinds.setdefault((disclosure.receiver, disclosure.sender, secret), []).append(disclosure.kind)
    for (receiver, sender, secret), revealing in kinds.items():
        made = [f for f in findings if (f.attacker, f.owner, f.about) == (receiver, sender, secret)]
        unread = [kind for kind in dict.fromkeys(revealing) if not any(finding.reads(kind) for finding in made)]
        if unread:
            reason = "no attack read them" if made else "no attack was made"
            yield f"{receiver} about {sender}'s {secret}, given {' and '.join(unread)}: {reason}"
