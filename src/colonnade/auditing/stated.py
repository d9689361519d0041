"""Stated: what parties themselves found could be rebuilt of their columns from what they sent, read from recordings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from colonnade.models.networks.messages import LeakStatement
from colonnade.wire.recording.transcript import Transcript


@dataclass(frozen=True)
class Stated:
    """How well a party's columns can be rebuilt from the embedding that it sent, by its own measurement.

    Attributes:
        width: How many numbers the embedding has for each row.
        relative_mse: The squared error of what is rebuilt, relative to the columns' variance: 0 is all, 1 is nothing.
        worst_r2: The share of variance that is rebuilt (R²) of the column of which most is.

    >>> print(Stated("shop", "bank", 16, 0.25, 0.875))
    By shop's own measurement, its columns can be rebuilt from its embedding of width 16 with relative MSE 0.25 (0 is \
everything, 1 nothing) and worst column R² 0.88. bank's own columns, and better attacks, may tell more.
    """

    owner: str
    receiver: str
    width: int
    relative_mse: float
    worst_r2: float

    def __str__(self) -> str:
        return (
            f"By {self.owner}'s own measurement, its columns can be rebuilt from its embedding of width {self.width} "
            f"with relative MSE {self.relative_mse:.2f} (0 is everything, 1 nothing) and worst column R² "
            f"{self.worst_r2:.2f}. {self.receiver}'s own columns, and better attacks, may tell more."
        )


def statements(transcripts: Mapping[str, Transcript]) -> tuple[Stated, ...]:
    """Every statement that was kept in the recordings of its sender or its receiver."""
    found: dict[tuple[str, str], Stated] = {}
    for party, transcript in transcripts.items():
        for recorded in transcript.messages(LeakStatement):
            pair = (party, recorded.peer) if recorded.sent else (recorded.peer, party)
            said = recorded.message
            found[pair] = Stated(*pair, said.width, said.relative_mse, said.worst_r2)
    return tuple(found.values())
