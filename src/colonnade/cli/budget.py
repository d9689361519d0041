"""The command `budget`: what all runs in a folder told about each party's records, and to whom."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import say

BudgetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="SECRET=EPSILON,DELTA",
        help="What may be spent on a secret over all runs on the same records, such as labels=2,1e-5; in place of the "
        "plan's. May be given several times.",
    ),
]


def budget(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where runs are kept.")] = Path("runs"),
    *,
    delta: Annotated[float, typer.Option(min=0, max=1, help="The delta at which epsilon is told.")] = 1e-5,
) -> None:
    """Show what was spent on each party's records over all runs, and what each peer was answered."""
    from colonnade.privacy.ledger import spent_over_runs
    from colonnade.storage import SharedLog

    said = False
    for path in sorted([*folder.glob("privacy-of-*"), *(folder / "simulated").glob("privacy-of-*")]):
        party, simulated = path.name.removeprefix("privacy-of-"), path.parent.name == "simulated"
        for table in spent_over_runs(path, delta):
            said = True
            runs = f"{table.n_runs} {'simulated ' if simulated else ''}run{'s' * (table.n_runs > 1)}"
            say(f"{party}, table {table.table[:8]}, {runs} from {table.since[:10]} to {table.until[:10]}:")
            for secret, spent in table.spent.items():
                say(f"  {secret}: {spent}")
    for path in sorted(folder.glob("answers-of-*")):
        answered: Counter[tuple[str, str, str]] = Counter()
        for entry in SharedLog(path, "one portion of answers").entries():
            answered[entry["peer"], entry["data"], entry["profile"]] += entry["values"]
        for (peer, data, profile), n in answered.items():
            said = True
            party = path.name.removeprefix("answers-of-")
            say(f"{party}, table {data[:8]}: {peer} was answered at most {n:,} encrypted values ({profile}).")
    for path in sorted(folder.glob("alignments-of-*")):
        aligned = Counter((each["peer"], each["what"]) for each in SharedLog(path, "one alignment").entries())
        for peer in dict.fromkeys(peer for peer, _ in aligned):
            said = True
            party = path.name.removeprefix("alignments-of-")
            say(f"{party}: {aligned[peer, 'aligned']} alignments with {peer}, {aligned[peer, 'refused']} refused.")
    if not said:
        say(f"No run in {folder} has released anything that is counted.")
