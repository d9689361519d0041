"""Limits: what keeps a peer from asking too much, and a log of the alignments with each peer.

A party that aligns a list of one person asks whether the other party knows that person; a list of one person and of
made-up ids asks the same, and so do two lists that differ in one person. A list of all telephone numbers there are asks
for everybody. So a party refuses tiny sets, sets far larger than its own, and tiny or large intersections where it
learns their size; it counts its alignments with each peer, and logs refusals too (`Limits`). Alignments for training
count for ever; those for predictions, and people looked up one by one, count within some days. An alignment counts from
its first id on: what fails before has told the sizes of lists and no more.

A peer that resumes a run must resend exactly the bytes it sent before the crash (`colonnade.runtime.replay`). Its
secrets were stored before their first use, so an honest peer sends the same messages again. A different message would
be a second question in a run that counts once, answered under the secrets of the first.

A party does not see what side processes of the engine rr22 say to each other, and a peer may give its process another
list. So a party counts another alignment whenever side processes meet again over the same bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from colonnade.errors import PeerChanged, PrivacyError
from colonnade.parameters import Limit, check_parameters, count, number, optional
from colonnade.runtime.party import Party
from colonnade.storage import Entry, HeldLog, SharedLog

Purpose: TypeAlias = Literal["training", "prediction", "lookup"]

HOLDS = "one alignment"
# A party with fewer ids counts as having this number. A peer that brings a few thousand goes through no list of all
# ids.
_SMALL = 100
# A model of fewer rows is hardly what parties met for.
_FEWEST_COMMON = 100
_ONE_IN = 20


@dataclass(frozen=True)
class Limits:
    """How small and how large sets and intersections may be, and how often one aligns with a peer.

    Attributes:
        fewest: How many ids each party's set must have under each key, this party's included.
        most_runs: How many alignments with one peer for training the log may hold.
        most_predictions: How many alignments with one peer for predictions there may be within `days`.
        most_lookups: How many people a label party may look up here within `days`; 0 answers no lookup.
        days: How many days predictions and lookups count.
        asked_for: What the alignment is for. A lookup is about a few people: the label party's list may be tiny.
        most_ids: How many ids a peer may bring under each key; None sets no number.
        most_times: How many times as many ids as this party has a peer may bring under each key; a party with fewer
            than 100 counts as having 100.
        fewest_common: How many ids must be common; if None, a tenth of `fewest` to align, and one in 20 of this
            party's rows, at most 100, to train.
        most_common: How many ids may be common; None sets no number.
        log: A file with a line for each alignment and each refusal. None counts nothing in a simulation; between
            machines None stands for `alignments-of-<party>` beside the file in which the party counts its answers.

    >>> Limits().check_size("bank", "shop", 5000)
    """

    fewest: int = 100
    most_runs: int = 20
    log: Path | None = None
    most_ids: int | None = None
    most_times: float = 50.0
    fewest_common: int | None = None
    most_common: int | None = None
    most_predictions: int = 40
    most_lookups: int = 0
    days: int = 30
    asked_for: Purpose = "training"

    limits: ClassVar[Mapping[str, Limit]] = {
        "fewest": count(0),
        "most_runs": count(),
        "most_ids": optional(count()),
        "most_times": number(1),
        "fewest_common": optional(count(0)),
        "most_common": optional(count()),
        "most_predictions": count(),
        "most_lookups": count(0),
        "days": count(),
    }

    def __post_init__(self) -> None:
        """Raise `PlanError` for limits that let nothing pass."""
        check_parameters(self, called="[align]")

    def between_machines(self, party: Party) -> Limits:
        """The same limits, with a log if the peers run on other machines."""
        return replace(self, log=self.log or party.alignment_log)

    def admit(self, party: str, peer: str, run: str, n_ids: int = 1, *, counts: bool = True) -> None:
        """Count an alignment with a peer once in a run; raise `PrivacyError` if the log holds too many.

        Args:
            party: This party.
            peer: The peer.
            run: The name of the alignment.
            n_ids: How many ids a label party looks up.
            counts: False only looks whether there is room.
        """
        if self.log is None:
            return
        log = SharedLog(self.log, HOLDS)
        with log.locked() as held:
            earlier = self._earlier(log, held.entries(), peer)
            if any(each["run"] == run for each in earlier):
                return
            spent, most = self._spent(earlier), self._most
            too_many = spent + n_ids > most
            if too_many or counts:
                what, why = ("refused", f"{spent} of {most} already") if too_many else ("aligned", "")
                _write(held, peer, run, what, why, **{"for": self.asked_for, "ids": n_ids})
        if too_many:
            raise self._too_many(party, peer, spent, n_ids)

    def require_room(self, party: str, peer: str) -> int:
        """How many more alignments with a peer the log has room for; raises `PrivacyError` for none, and logs nothing.

        Args:
            party: This party.
            peer: The peer.
        """
        if self.log is None:
            return self._most
        log = SharedLog(self.log, HOLDS)
        spent = self._spent(self._earlier(log, log.entries(), peer))
        if spent >= self._most:
            raise self._too_many(party, peer, spent, 1)
        return self._most - spent

    def _earlier(self, log: SharedLog, entries: list[Entry], peer: str) -> list[Entry]:
        """The alignments with a peer for the same purpose that a log holds."""
        if not all({"peer", "run", "what"} <= entry.keys() for entry in entries):
            raise log.damaged()
        return [
            each
            for each in entries
            if each["peer"] == peer and each["what"] == "aligned" and each.get("for", "training") == self.asked_for
        ]

    @property
    def _most(self) -> int:
        by_purpose = {"training": self.most_runs, "prediction": self.most_predictions, "lookup": self.most_lookups}
        return by_purpose[self.asked_for]

    def _spent(self, earlier: list[Entry]) -> int:
        """How much of the limit earlier alignments for the same purpose have used up."""
        if self.asked_for == "training":
            return len(earlier)
        since = datetime.now(UTC) - timedelta(days=self.days)
        recent = [each for each in earlier if datetime.fromisoformat(each["at"]) >= since]
        return sum(int(each["ids"]) for each in recent) if self.asked_for == "lookup" else len(recent)

    def _too_many(self, party: str, peer: str, spent: int, n_ids: int) -> PrivacyError:
        if self.asked_for == "lookup":
            return PrivacyError(
                f"{party} should answer lookups of at most {self.most_lookups:,} people by {peer} within {self.days} "
                f"days, and the log {self.log} holds {spent:,} already, but {peer} asks for {n_ids:,} more: a lookup "
                f"tells {peer} whether {party} knows one person. If {party} agrees to that, raise most_lookups under "
                f"[align] at {party}."
            )
        within = "" if self.asked_for == "training" else f" for predictions within {self.days} days"
        key = "most_runs" if self.asked_for == "training" else "most_predictions"
        return PrivacyError(
            f"{party} should align with {peer} at most {self._most} times{within}, and the log {self.log} holds "
            f"{spent} alignments with {peer} already. Repeated alignments show who was added or removed between them. "
            "Take a finished alignment, by the key finished under [align], which asks nothing. If all of them were "
            f"intended, raise {key} under [align]."
        )

    @contextmanager
    def logging_changes(self, party: str, run: str) -> Iterator[None]:
        """Log it if a peer resends another message than it sent before the run was resumed.

        Raises:
            PrivacyError: In the words of an alignment, if a peer does.
        """
        try:
            yield
        except PeerChanged as error:
            peer = error.peer
            self._note(peer, run, "refused", "another message than before the run was resumed")
            raise PrivacyError(
                f"{peer} should resend {party} exactly the bytes it sent before when a run resumes, but sent other "
                f"bytes: a second question in a run that counts once. Resume {peer} from the folder of the run that it "
                f"had. If that folder is lost, delete this run at {party} too and align again, which counts as another "
                "alignment."
            ) from error

    def check_size(self, party: str, peer: str, n_ids: int, run: str = "", *, padded: bool = False) -> None:
        """Raise `PrivacyError` if a set is too small, or may be because its size was rounded up (`padded`)."""
        least = n_ids // 2 + 1 if padded and n_ids > 1 else n_ids
        if least >= self.fewest:
            return
        brings = f"{n_ids:,}" if least == n_ids else f"between {least:,} and {n_ids:,}"
        self._note(peer, run, "refused", f"{brings} ids")
        whose = f"{party} itself" if peer == party else peer
        raise PrivacyError(
            f"A set to be aligned should have at least {self.fewest:,} ids under each key, but {whose} brings "
            f"{brings}: that would be a question about single people. Bring more rows, or lower fewest under [align] "
            f"at {party}."
        )

    def check_most(self, party: str, peer: str, n_ids: int, n_own: int, run: str = "") -> None:
        """Raise `PrivacyError` if a peer's set is far too large: a list of all ids would ask for everybody."""
        if self.most_ids is not None and n_ids > self.most_ids:
            wanted, key = f"{self.most_ids:,}", "most_ids"
        elif n_ids > self.most_times * max(n_own, _SMALL):
            wanted, key = f"{self.most_times:g} times {party}'s {max(n_own, _SMALL):,}", "most_times"
        else:
            return
        self._note(peer, run, "refused", f"{n_ids:,} ids")
        raise PrivacyError(
            f"{peer} should bring at most {wanted} ids under each key, but brings {n_ids:,}: a long list of made-up "
            f"ids asks who of all people is known to {party}. If {peer} does know that number of people, raise {key} "
            f"under [align] at {party}."
        )

    def check_common(self, party: str, peer: str, n_common: int, run: str = "", *, told: bool = True) -> None:
        """Raise `PrivacyError` if too few or too many ids are common; `told` says whether the peer may know which."""
        fewest = self.fewest // 10 if self.fewest_common is None else self.fewest_common
        if fewest <= n_common and (self.most_common is None or n_common <= self.most_common):
            return
        self._note(peer, run, "refused", f"{n_common:,} common ids")
        if n_common < fewest:
            wanted, key = f"at least {fewest:,}", "lower fewest_common"
            why = "a list of made-up ids with one real id among them would look like that, or columns that do not match"
        else:
            wanted, key = f"at most {self.most_common:,}", "raise most_common"
            why = "a list that goes through all ids there are would look like that"
        known = f"{peer} may know them already; {party} goes no further" if told else f"{peer} was not told which"
        raise PrivacyError(
            f"{party} and {peer} should have {wanted} ids in common, but have {n_common:,}: {why}. {known}. Check with "
            f"{peer} which list it brought, or {key} under [align] at {party}."
        )

    def check_training(self, party: str, n_common: int, n_own: int) -> None:
        """Raise `PrivacyError` if too few rows are common to train on, those that are held out not counted."""
        fewest = min(_FEWEST_COMMON, n_own // _ONE_IN) if self.fewest_common is None else self.fewest_common
        if n_common < fewest:
            raise PrivacyError(
                f"{party} should train on at least {fewest:,} of its {n_own:,} rows, but {n_common:,} are common to "
                "all parties, or after a left join to a pair, and not held out: gradients about a few people tell much "
                "about each. Check at all parties that the right columns were matched by the right rules, or lower "
                f"fewest_common under [align] at {party}."
            )

    def _note(self, peer: str, run: str, what: str, why: str) -> None:
        if self.log is not None:
            with SharedLog(self.log, HOLDS).locked() as held:
                _write(held, peer, run, what, why)


def _write(held: HeldLog, peer: str, run: str, what: str, why: str, **more: Any) -> None:
    at = datetime.now(UTC).isoformat(timespec="seconds")
    held.append({"at": at, "peer": peer, "run": run, "what": what, "why": why, **more})
