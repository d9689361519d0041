"""colonnade status: how one party's side of a run stands, while it goes on and afterwards."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer

from colonnade.cli.console import say
from colonnade.progress import in_words


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of one party's side of a run.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print all that is known as JSON.")] = False,
) -> None:
    """Say how a run stands: its status, its common rows, the step it is at, for whom it waits and who is gone."""
    from colonnade.runtime.status import read_live, read_status

    found, live = read_status(run), read_live(run)
    if json:
        print(json_format.dumps({**found, "live": live}))
        return
    for line in _told(found, live):
        say(line)


def _told(found: dict[str, Any], live: dict[str, Any]) -> list[str]:
    told = [f"{found.get('party', 'This run')}: {found['status']} since {found.get('at', 'an unknown time')}."]
    if "begun" in found:
        told.append(f"Begun {found['begun']}.")
    if "common_rows" in found:
        told.append(f"{found['common_rows']:,} of {found['own_rows']:,} rows are common to all parties.")
    if "loop" in live:
        figures = in_words(live["figures"])
        told.append(f"{live['loop']}: step {live['done']} of {live['total']}{f', {figures}' if figures else ''}.")
    if found["status"] == "running":
        if live.get("waiting_for"):
            told.append(f"Waiting for {', '.join(live['waiting_for'])}, {live['seconds_left']} s left.")
        if live.get("gone"):
            told.append(f"Gone: {', '.join(live['gone'])}.")
        if live:
            told.append(f"Last sign of life {live['at']}.")
    if found.get("error"):
        told.append(str(found["error"]))
    if found["status"] in ("failed", "stopped"):
        again = "--resume goes on where it stopped" if found.get("met", True) else "it never met the others"
        told.append(f"Run the same command again: {again}.")
    return told
