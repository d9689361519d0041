"""SelfReport: what a party that prepares a run tells the others about itself, and what two of them show together.

A peer learns the public plan, versions, the number of rows, by which rules [align] reads ids, and three digests of the
ids: in row order, sorted, and sorted without regard to type, case and spaces; none of the three if the plan has a
section [align]. A digest shows whether two lists are equal; a peer that can guess a whole list can check the guess. The
peer also learns how long the messages on its line will be, which the run itself would show. Failed checks are told by
name, never with their values.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from colonnade._version import __version__
from colonnade.align.opening import differing_rules
from colonnade.deploy.doctor.checklist import Checklist
from colonnade.errors import AuthError, ProtocolError, VersionMismatch, WireError
from colonnade.models.estimate import TrafficEstimate
from colonnade.plans.plan import Plan
from colonnade.tables.table import Table
from colonnade.text import printable


@dataclass(frozen=True)
class SelfReport:
    """What a party tells about itself; of its rows -1 and empty text where there is no table.

    Attributes:
        version: Of Colonnade.
        python: Its version.
        plan: The public plan as JSON.
        checkpoint_every: The interval of checkpoints, which must be equal too.
        rows: How many there are.
        in_order: A digest of the ids in row order.
        as_set: A digest of the sorted ids.
        alike: A digest of the sorted ids without regard to type, case and spaces.
        sizes: What the party's dry run says of messages on the line to the peer: a `TrafficEstimate` by name.
        wrong: What the party found wrong on its own side, by topic.
        rules: By which rules an alignment reads the party's ids; empty if there is none.

    >>> account = SelfReport("1.0", "3.12", "{}", 50, 2, "aa", "bb", "cc", {}, ["port"], [])
    >>> SelfReport.read(account.to_json(), "shop") == account
    True
    """

    version: str
    python: str
    plan: str
    checkpoint_every: int
    rows: int
    in_order: str
    as_set: str
    alike: str
    sizes: dict[str, int]
    wrong: list[str]
    rules: list[str]

    @classmethod
    def of(cls, plan: Plan, name: str, table: Table | None, wrong: list[str]) -> SelfReport:
        """The account of a party with this plan and table."""
        public, python = plan.public().to_json(), platform.python_version()
        account = cls(__version__, python, public, plan.run.checkpoint_every, -1, "", "", "", {}, wrong, [])
        if table is None:
            return account
        rules: list[str] = []
        if plan.align is not None and "ids" not in wrong:
            leads = name == plan.roles.holders[0]
            rules = plan.align.identifiers(table, plan.align.columns.get(name), name, leads=leads).rules
        return replace(
            account,
            rows=len(table),
            rules=rules,
            # Where rows are aligned privately, not even a digest of them is told.
            in_order="" if plan.align is not None else table.id_digest(),
            as_set="" if plan.align is not None else _sorted_digest(table.ids),
            alike="" if plan.align is not None else _sorted_digest(alike(table.ids)),
        )

    @classmethod
    def read(cls, text: str, peer: str) -> SelfReport:
        """The account that a peer sent."""
        kinds = {"str": str, "int": int, "list[str]": list, "dict[str, int]": dict}
        try:
            told = json.loads(text)
            account = cls(**{field.name: told[field.name] for field in fields(cls)})
            fits = all(type(told[field.name]) is kinds[str(field.type)] for field in fields(cls))
            fits = fits and all(type(size) is int and 0 <= size < 2**60 for size in told["sizes"].values())
            if not fits or not all(isinstance(word, str) for word in (*account.wrong, *account.rules)):
                raise ValueError
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(
                f"{peer} should tell about itself and sent something else. Install the same version at both."
            ) from error
        return account

    @property
    def traffic(self) -> TrafficEstimate:
        """What the party's dry run says of the line to the peer."""
        return TrafficEstimate(**{field.name: self.sizes.get(field.name, 0) for field in fields(TrafficEstimate)})

    def to_json(self) -> str:
        """The account as JSON."""
        return json.dumps(asdict(self))


def compare(name: str, mine: SelfReport, peer: str, theirs: SelfReport, found: Checklist) -> None:
    """What two parties could not run together with."""
    if theirs.version == mine.version:
        found.good("version", f"Colonnade {mine.version}; Python {mine.python} here and {_short(theirs.python)} there")
    else:
        words = f"{name} runs Colonnade {mine.version} and {peer} runs {_short(theirs.version)}"
        found.fail("version", VersionMismatch(f"{words}. Install the same version at both."))
    differing = _differences(mine, theirs)
    if differing:
        words = f"{name} and {peer} have different plans: {', '.join(differing)}"
        found.fail("plan", AuthError(f"{words}. Give both the same plan file."))
    else:
        found.good("plan", "the public parts of both plans are equal")
    if theirs.wrong:
        topics = ", ".join(_short(topic) for topic in theirs.wrong[:8])
        found.fail("there", WireError(f"{peer} found something wrong on its own side: {topics}. Look at its list."))


def compare_rows(name: str, mine: SelfReport, peer: str, theirs: SelfReport, found: Checklist) -> None:
    """Whether two parties that bring tables have the same rows."""
    if mine.rows < 0 or theirs.rows < 0:
        who = name if mine.rows < 0 else peer
        found.note("rows", f"they could not be compared, for {who} could not read its table")
    elif mine.in_order == theirs.in_order == "":
        if mine.rules and theirs.rules and mine.rules != theirs.rules:
            found.fail("ids", differing_rules(name, mine.rules, peer, theirs.rules))
        found.good("rows", f"{mine.rows:,} here and {theirs.rows:,} there, to be aligned in the run")
    elif mine.in_order == theirs.in_order:
        found.good("rows", f"the same {mine.rows:,} ids in the same order")
    else:
        words = f"{name} has {mine.rows:,} rows and {peer} has {theirs.rows:,}, and they are not the same"
        fix = "Keep the rows that both have, in one order"
        if mine.as_set == theirs.as_set:
            words, fix = f"{name} and {peer} have the same ids in different orders", "Sort both tables by id"
        elif mine.alike == theirs.alike:
            words = f"the ids of {name} and {peer} differ, but only by type, case, spaces or order"
            fix = "Write them alike at both, and sort both tables by id"
        found.fail("rows", AuthError(f"{words}. {fix}."))


def alike(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Ids as text without regard to type, case, spaces and look-alike characters."""
    text = pc.utf8_normalize(ids.cast(pa.large_string()), form="NFKC")
    return pc.utf8_trim_whitespace(pc.utf8_lower(text))


def _short(text: str) -> str:
    """A peer's words, short and safe to print."""
    return printable(text[:60])


def _sorted_digest(ids: pa.ChunkedArray) -> str:
    return Table.of({"id": ids.take(pc.sort_indices(ids))}).id_digest()


def _differences(mine: SelfReport, theirs: SelfReport) -> list[str]:
    """Where two plans differ in what must be equal, by key."""
    try:
        here, there = (_flat(json.loads(account.plan)) for account in (mine, theirs))
    except ValueError:
        return ["everything"]
    here["checkpoint_every"], there["checkpoint_every"] = mine.checkpoint_every, theirs.checkpoint_every
    return [_short(key) for key in sorted(here.keys() | there.keys()) if here.get(key) != there.get(key)]


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    inside = [_flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in tree.items()]
    return {key: value for part in inside for key, value in part.items()}
