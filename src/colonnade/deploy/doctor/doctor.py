"""The doctor: what would keep a run between machines from going well, found before anything is spent.

It is run at all parties at the same time. Each looks at its own side first: table, ids, certificate, port. Then it
visits the others, as `colonnade.deploy.doctor.probe` says.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from colonnade.align.identifiers import enumerable_warning
from colonnade.align.limits import Limits
from colonnade.curves import CurvesType
from colonnade.deploy.doctor.checklist import Check, Checklist
from colonnade.deploy.doctor.columns import odd_columns, odd_labels, told_labels, told_place
from colonnade.deploy.doctor.counts import look_at_counts
from colonnade.deploy.doctor.probe import PeerProbe
from colonnade.deploy.doctor.self_report import SelfReport, alike
from colonnade.deploy.label_leak import label_leak, require_accepted
from colonnade.deploy.preflight import counts_path, require_lines, require_network
from colonnade.errors import ColonnadeError, DataError, PeerUnreachable, PlanError
from colonnade.models.base import require_classes
from colonnade.models.estimate import TrafficEstimate, estimate
from colonnade.plans.admission import check_model
from colonnade.plans.align import PlannedAlign
from colonnade.plans.plan import Plan
from colonnade.tables.table import Table
from colonnade.text import how_many
from colonnade.wire.certs.credentials import Credentials
from colonnade.wire.transport import check_address, places_of, require_loopback

FEW_DAYS = 30

ODDITIES: Mapping[str, Callable[[Any], Any]] = {
    "begin or end with a space": lambda ids: pc.not_equal(ids, pc.utf8_trim_whitespace(ids)),
    "hold look-alike or invisible characters": lambda ids: pc.not_equal(ids, pc.utf8_normalize(ids, form="NFKC")),
    "seem to have been read in a wrong encoding": lambda ids: pc.match_substring_regex(ids, "\ufffd|Ã[\u0080-\u00bf]"),
    "look like numbers out of a spreadsheet": lambda ids: pc.match_substring_regex(
        ids, r"^\d+\.0+$|^\d(\.\d+)?[eE]\+\d+$"
    ),
}
"""What is odd about ids that are text: they are easily written otherwise at another party."""


def examine(
    plan: Plan,
    name: str,
    *,
    certificates: Path | None = None,
    insecure: bool = False,
    listen: str | None = None,
    wait: float = 60.0,
    out: Path = Path("runs"),
    told: Callable[[Check], None] = lambda check: None,
    clock: Callable[[], float] = time.time,
) -> tuple[Check, ...]:
    """Look for what would keep a party's side of a plan from going well, while the others do the same.

    The checks of this party's side come first, then those of the others in the order of the roles. `told` is called
    with each check as it is made. `out` is where runs are kept, whose counts say what is left for another run.
    """
    network = require_network(plan, name)
    if listen is not None:
        check_address(listen, "--listen")
    home = Checklist(name, told)
    home.good("plan", f"{plan.name}: {plan.public().protocol} by {', '.join(plan.roles.parties)}")
    if network.randomness == "seeded":
        home.fail(
            "randomness",
            PlanError(
                f"{name}'s noise follows from the plan's seed, so everybody who knows the plan can subtract it, and no "
                'epsilon holds. Leave out randomness = "seeded" under [network], which is for tests.'
            ),
        )
    table = _look_at_table(home, plan, name)
    _look_at_model(home, plan, name, table, counts_path(out, name))
    if table is not None:
        look_at_counts(home, plan, name, table, out)
    _look_at_label_leak(home, plan, name)
    credentials = _look_at_certificate(home, certificates or network.certificates, network.revoked, name, insecure)
    listen = listen or network.listen(name) or network.addresses([name])[name]
    if insecure:
        require_loopback((*network.addresses(plan.roles.parties).values(), listen))
    if listen is not None:
        _look_at_port(home, name, listen)
    if "certificate" in home.wrong or "port" in home.wrong:
        home.note("others", "nobody was visited, for that takes a good certificate and a free port")
        return tuple(home.all)
    mine = SelfReport.of(plan, name, table, home.wrong)
    visitor = PeerProbe(plan, name, mine, credentials, listen, wait, clock, _estimate(home, plan, name, table))
    by_peer = visitor.visit_all(told)
    return (*home.all, *(check for peer in plan.roles.parties for check in by_peer.get(peer, ())))


def _estimate(home: Checklist, plan: Plan, name: str, table: Table | None) -> Mapping[str, TrafficEstimate]:
    """What the run would send over each line of this party, if its table is fit for the model."""
    if plan.model is None or table is None or set(home.wrong) - {"randomness"}:
        return {}
    home.note("estimate", "a dry run in memory on some rows shows what training sends; this takes some seconds")
    try:
        # Rows without an id take no part in an alignment, and need no id here.
        return estimate(plan.model.build(), plan.roles, name, table if plan.align is None else table.numbered())
    except ColonnadeError as error:
        home.note("estimate", f"the dry run failed, perhaps because the others' tables are unlike this one: {error}")
        return {}


def _look_at_table(home: Checklist, plan: Plan, name: str) -> Table | None:
    if name not in plan.roles.holders:
        return None
    table = None
    with home.trying("table"):
        whole = plan.data.name is None or plan.align is not None
        table = (plan.load((name,)) if whole else plan.tables().train)[name]
        home.good("table", repr(table).partition(": ")[2].removesuffix(")"))
        if table.placed is not None:
            home.good("rows", told_place(table))
        for said, fix in odd_columns(table):
            home.note("columns", said, fix)
    if table is None:
        return None
    with home.trying("ids"):
        if plan.align is not None:
            _look_at_keys(home, table, name, plan.align, leads=name == plan.roles.holders[0])
        else:
            _look_at_ids(home, table, name)
    if plan.model is None:
        return table
    with home.trying("model"):
        if name == plan.roles.label:
            _look_at_labels(home, table, name)
        elif not table.columns:
            raise DataError(f"{name} is a feature party but its table has no columns besides the ids. Bring some.")
    return table


def _look_at_model(home: Checklist, plan: Plan, name: str, table: Table | None, counts: Path) -> None:
    if plan.network is not None:
        with home.trying("lines"):
            needed = how_many(require_lines(plan), "line")
            home.good("lines", f"the run needs {needed}, each with an address at one end")
    if plan.model is None or (table is None and name in plan.roles.holders) or {"ids", "model"} & set(home.wrong):
        return
    with home.trying("model"):
        for sentence in check_model(plan, name, table, counts):
            home.note("model", sentence)
        has = "the table has" if table is not None else "the plan has"
        home.good("model", f"{has} what {plan.model.name} needs of {name}")


def _look_at_label_leak(home: Checklist, plan: Plan, name: str) -> None:
    told = label_leak(plan)
    if told is None:
        return
    if name == plan.roles.label:
        with home.trying("label leak"):
            require_accepted(plan)
    if "label leak" not in home.wrong:
        rehearse = "Rehearse it with doctor --rehearse." if name == plan.roles.label else ""
        home.note("label leak", told, rehearse)


def _look_at_ids(home: Checklist, table: Table, name: str) -> None:
    table.check_ids(name)
    kind = "whole numbers" if pa.types.is_int64(table.ids.type) else "text"
    home.good("ids", f"{len(table):,} different ids in column {table.id_name!r}, {kind}")
    for oddity in _oddities(table):
        home.note("ids", oddity, "Write them alike at all parties.")


def _look_at_keys(home: Checklist, table: Table, name: str, align: PlannedAlign, *, leads: bool) -> None:
    """Look at ids as an alignment reads them, and at columns that its rows may lack."""
    align.check_table(table, name, leads=leads)
    identifiers = align.identifiers(table, align.columns.get(name), name, leads=leads)
    known = np.zeros(len(table), np.bool_)
    looks_up = bool(align.by_party) and leads
    sizes: list[int] = []
    for number in identifiers.held:
        key = identifiers.keys[number]
        n_ids, repeated = identifiers.count(table, number, known)
        columns = " and ".join(repr(column) for column in identifiers.columns_of(number))
        if repeated and align.duplicates == "error" and not looks_up:
            raise identifiers.repetition(table, number, repeated, name)
        if not n_ids and len(table) and align.fewest > 0:
            raise identifiers.absence(table, number, name)
        home.good("ids", f"{n_ids:,} different ids in {columns}, read by the rule {key!r}")
        sizes.append(n_ids)
        if key in identifiers.enumerable:
            home.note("ids", enumerable_warning(name, key))
        if repeated:
            first = align.duplicates == "first" and not looks_up
            taken = "only the first row of each is used" if first else "all of them are used"
            home.note("ids", f"{repeated:,} of {len(table):,} rows repeat an id of an earlier one; {taken}")
    if missing := int((~known).sum()):
        home.note(
            "ids", f"{missing:,} of {len(table):,} rows have no id, and take no part", "Complete them, if they should."
        )
    # No log: a look refuses nobody.
    Limits(fewest=align.fewest).check_size(name, name, min(sizes, default=align.fewest))


def _look_at_labels(home: Checklist, table: Table, name: str) -> None:
    if table.labels is None:
        raise DataError(f"{name} is the label party but its table has no labels. Name the label column in the plan.")
    if isinstance(table.labels.type, CurvesType):
        return
    require_classes(np.asarray(table.labels.drop_null()), name)
    home.good("labels", f"{table.label_name!r}: {told_labels(table.labels)}")
    for oddity in odd_labels(table.labels):
        home.note("labels", oddity, "Write the classes alike, or leave rows of a rare one out, if that is an error.")


def _oddities(table: Table) -> Iterator[str]:
    ids, n = table.ids, len(table)
    if pa.types.is_int64(ids.type):
        return
    for oddity, is_odd in ODDITIES.items():
        count = pc.sum(is_odd(ids)).as_py()
        if count:
            yield f"{count:,} of {n:,} ids {oddity}"
    repeated = n - pc.count_distinct(alike(ids)).as_py()
    if repeated:
        yield f"{repeated:,} of {n:,} ids differ from another one only by case, spaces or look-alike characters"
    if pc.all(pc.match_substring_regex(ids, r"^\d+$")).as_py():
        yield "all ids are digits held as text, and 7 and '7' are different ids"


def _look_at_certificate(home: Checklist, folder: Path, revoked: Path, name: str, insecure: bool) -> Credentials | None:
    if insecure:
        home.note("certificate", "TLS is off: anyone on the network path can read the traffic", "Leave out --insecure.")
        return None
    with home.trying("certificate"):
        credentials = Credentials.read(folder, name, revoked=revoked)
        identity = credentials.identity
        left = (identity.not_after - datetime.now(UTC)).days
        home.good("certificate", f"{name} of {identity.federation}, {left} days left, fingerprint {identity.words}")
        if left < FEW_DAYS:
            home.note("certificate", f"it ends in {left} days", "Have it issued again; a running party takes it up.")
        return credentials
    return None


def _look_at_port(home: Checklist, name: str, listen: str) -> None:
    try:
        for each in places_of(listen):
            host, _, port = each.rpartition(":")
            family, kind, *_, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(place)
                trial.listen()
        home.good("port", f"free to listen at {listen}")
    except OSError as error:
        number = listen.rpartition(":")[2]
        home.fail(
            "port",
            PeerUnreachable(
                f"{name} cannot listen at {listen}: {error.strerror or error}. End the program that uses the port, or "
                f'name an address of this machine by listen = "0.0.0.0:{number}" under [network.{name}].'
            ),
        )
