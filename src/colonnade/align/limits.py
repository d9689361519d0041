"""Limits: what keeps a peer from asking too much, and a log of who asked when.

Somebody who aligns with a list of one person asks whether the other knows that person. Somebody who aligns again and
again with lists that differ in one person asks the same. So tiny sets are refused, runs with each peer are counted, and
both are written down.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from colonnade.errors import PlanError, PrivacyError, StorageError
from colonnade.runtime.party import Party
from colonnade.storage import append_durably, explained


@dataclass(frozen=True)
class Limits:
    """How small a set may be, and how often one aligns with a peer.

    Attributes:
        fewest: How many ids a set must have under each key, the own one as well.
        most_runs: How many alignments with one peer the log may hold.
        log: A file with a line for each alignment and each refusal. None counts nothing in a simulation; between
            machines it is `alignments-of-<party>` beside the file in which the party counts its answers.

    >>> Limits().check_size("bank", "shop", 5000)
    """

    fewest: int = 100
    most_runs: int = 20
    log: Path | None = None

    def __post_init__(self) -> None:
        """Refuse limits that let nothing pass."""
        for name, value, least in (("fewest", self.fewest, 0), ("most_runs", self.most_runs, 1)):
            if value < least:
                raise PlanError(f"[align] {name} should be at least {least}, but is {value}. Raise it.")

    def between_machines(self, party: Party) -> Limits:
        """The same limits, with a log wherever a party is asked from another machine."""
        if party.session is None or party.answers is None or self.log is not None:
            return self
        return replace(self, log=party.answers.with_name(f"alignments-of-{party.name}"))

    def admit(self, party: str, peer: str, run: str) -> None:
        """Count an alignment with a peer, unless it is one that goes on.

        Args:
            party: The own name.
            peer: The other one's.
            run: What tells this run from others.

        Raises:
            PrivacyError: There were too many already.
        """
        if self.log is None:
            return
        earlier = {entry["run"] for entry in self._entries() if entry["peer"] == peer and entry["what"] == "aligned"}
        if run in earlier:
            return
        if len(earlier) >= self.most_runs:
            self._note(peer, run, "refused", f"{len(earlier)} alignments already")
            raise PrivacyError(
                f"{party} should align with {peer} at most {self.most_runs} times, and the log {self.log} holds "
                f"{len(earlier)} alignments with it already. Repeated alignments show who was added or removed between "
                "them. If these were meant, raise most_runs under [align]."
            )
        self._note(peer, run, "aligned", "")

    def refuse_other(self, party: str, peer: str, run: str) -> NoReturn:
        """Refuse a peer that says something else than it said before the run was taken up.

        Raises:
            PrivacyError: Always.
        """
        if self.log is not None:
            self._note(peer, run, "refused", "another message than before the run was taken up")
        raise PrivacyError(
            f"{peer} should send {party} the same again where a run is taken up, but sent something else than before: "
            "that would be a second question in a run that counts once. Go on with the side of the run that it had. If "
            f"that is lost, delete this run at {party} as well and align anew, which counts as another alignment."
        )

    def check_size(self, party: str, peer: str, n_ids: int, run: str = "", *, padded: bool = False) -> None:
        """Refuse a set that is too small, or may be.

        Args:
            party: The own name.
            peer: Whose set it is.
            n_ids: How many ids it has under one key.
            run: What tells this run from others.
            padded: Whether the number was rounded up to a power of two.

        Raises:
            PrivacyError: It is.
        """
        least = n_ids // 2 + 1 if padded and n_ids > 1 else n_ids
        if least >= self.fewest:
            return
        brings = f"{n_ids:,}" if least == n_ids else f"between {least:,} and {n_ids:,}"
        if self.log is not None:
            self._note(peer, run, "refused", f"{brings} ids")
        whose = f"{party} itself" if peer == party else peer
        raise PrivacyError(
            f"A set to be aligned should have at least {self.fewest:,} ids under each key, but {whose} brings "
            f"{brings}: that would be a question about single people. Bring more rows, or lower fewest under [align] "
            f"at {party}."
        )

    def _entries(self) -> list[dict[str, Any]]:
        assert self.log is not None
        if not self.log.exists():
            return []
        with explained(f"read {self.log}"):
            lines = self.log.read_text(encoding="utf-8").splitlines()
        try:
            return [{key: entry[key] for key in ("peer", "run", "what")} for entry in map(json.loads, lines)]
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{self.log} should hold one alignment per line, but is damaged. Restore it; do not delete it, for it "
                "says how often whom was asked."
            ) from error

    def _note(self, peer: str, run: str, what: str, why: str) -> None:
        assert self.log is not None
        at = datetime.now(UTC).isoformat(timespec="seconds")
        append_durably(self.log, json.dumps({"at": at, "peer": peer, "run": run, "what": what, "why": why}) + "\n")
