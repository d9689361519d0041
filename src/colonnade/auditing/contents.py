"""The contents of a privacy report: which run, what was sent and spent, what attacks found, what was not tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from colonnade._version import __version__
from colonnade.auditing.disclosure import Disclosure, SelfReportedLeak
from colonnade.auditing.evidence import Finding
from colonnade.privacy.ledger import Spent
from colonnade.privacy.randomness import Source
from colonnade.roles import PublicPlan


@dataclass(frozen=True)
class RunIdentity:
    """Which run a report is about.

    Attributes:
        parties: Each party's role.
        randomness: "seeded" where all noise follows from a seed; "system" where nobody can know it.
        mode: Who could audit what: "simulated", "mirror" or "joint".
        insecure: Whether messages crossed between machines without TLS.

    >>> RunIdentity("0" * 64, "SplitClassifier.fit", {"bank": "label party"}, 9, 0, "seeded", "simulated").mode
    'simulated'
    """

    plan: str
    protocol: str
    parties: Mapping[str, str]
    n_rows: int
    seed: int
    randomness: str
    mode: str
    code_version: str = __version__
    insecure: bool = False

    @property
    def noise_is_known(self) -> bool:
        """Whether parties on several machines drew noise that everybody who knows the plan can compute."""
        return self.mode != "simulated" and self.randomness == "seeded"

    @classmethod
    def of(
        cls,
        plan: PublicPlan,
        mode: str,
        *,
        n_rows: int,
        randomness: Source,
        seed: int | None = None,
        insecure: bool = False,
    ) -> RunIdentity:
        """The identity of a plan's run.

        Args:
            plan: What was run.
            mode: Who could audit what.
            n_rows: How many rows the parties have in common.
            randomness: How the parties' noise was drawn.
            seed: All randomness, where it followed from one seed; the plan's, which is public, if None.
            insecure: Whether messages crossed between machines without TLS.
        """
        roles = plan.roles
        special = {roles.label: "label party", roles.arbiter: "arbiter", roles.server: "server"}
        return cls(
            plan=plan.hash,
            protocol=plan.protocol,
            parties={name: special.get(name, "feature party") for name in roles.parties},
            n_rows=n_rows,
            seed=plan.seed if seed is None else seed,
            randomness=randomness,
            insecure=insecure,
            mode=mode,
        )


@dataclass(frozen=True)
class ReportContents:
    """What a privacy report says, before it is put into words, a page or a file.

    Attributes:
        disclosures: Who sent whom what, from the recordings.
        budget: What was spent on each secret, from all ledgers; "not private" is spelled out.
        attacks: What the attacks found out.
        untested: Attacks that do not apply or were not made, and why.
        stated: What parties themselves found could be rebuilt of their columns.
        over_runs: For each party whose earlier runs are known, what all of them spent on each secret of its records.
    """

    run: RunIdentity
    disclosures: tuple[Disclosure, ...]
    budget: Mapping[str, Spent]
    attacks: tuple[Finding, ...]
    untested: tuple[str, ...]
    stated: tuple[SelfReportedLeak, ...] = ()
    over_runs: Mapping[str, Mapping[str, Spent]] = field(default_factory=dict)
