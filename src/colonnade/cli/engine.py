"""The options `--engine` and `--jobs`: what runs trials, in place of what the plan says."""

from __future__ import annotations

from typing import Annotated

import typer

EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME[:ADDRESS]",
        help="What runs repetitions: local, ray or dask, with the address of a cluster or on this machine; in place of "
        "the plan's.",
    ),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="How many repetitions go on at once; as many as fit by default.")]
OwnCluster = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME[:ADDRESS]",
        help="What holds a placed table: local, ray or dask, with the address of your own cluster. An address in the "
        "plan is not taken without this.",
    ),
]
