"""Tracks: what stands at the label party between its columns, the embeddings that arrive, and the labels.

    SingleTrack     all own columns ──▶ embedding ─┐
                    received embeddings ───────────┴▶ top

    ShadowProxy     public columns ──▶ public ─────┬▶ top                      federated track
                    received embeddings ───────────┘
                    public, cut off ───────────────┬▶ local head               local track
                    private columns ──▶ private ───┘

    ShadowTop       public columns ──▶ public ─────┬▶ shadow top               federated track
                    received embeddings ───────────┘
                    public, cut off ───────────────┬▶ main top                 local track
                    received, cut off ─────────────┤
                    private columns ──▶ private ───┘

Only the federated track's gradients reach feature parties. The local track's inputs are cut off from the graph, so
nothing of the local track flows back into what others see. Early stopping looks at the federated track alone.

This isolates the private columns once they are chosen; a ranking that chooses them looks at all columns, and at the
labels that the federated track learns from. The labels are not hidden: the federated track is trained on them as well.
docs/results measures what a feature party can infer from its gradients and embeddings, with and without a
boundary-wandering loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from colonnade.data.ranking import FeaturePartition, Ranking, public_private
from colonnade.errors import DataError, PlanError
from colonnade.models.networks.modules import TopFactory
from colonnade.parameters import settings_of
from colonnade.runtime.protocol import stable_name
from colonnade.tables.table import Table
from colonnade.text import nearest
from colonnade.wire.message import Int64Array

Head: TypeAlias = Literal["federated", "local"]
Task: TypeAlias = Literal["classification", "regression"]
Top: TypeAlias = str | TopFactory


class Tracks:
    """What the label party makes of its columns and the embeddings it receives."""

    own: ClassVar[str]
    """What hooks call the label party's embedding on the federated track."""
    bottom: ClassVar[str]
    """What settings call the network that makes this embedding."""
    top: ClassVar[str]
    """What settings call the federated track's head."""
    local_name: ClassVar[str] = "local_head"
    """What settings call the local track's head."""
    predicts: ClassVar[Head]
    """The head that predicts unless another is asked for."""
    takes_received: ClassVar[bool] = False
    """Whether the local track's head also takes the embeddings that arrive."""

    def federated_top(self, default: Top | None) -> Top | None:
        """The head of the federated track, given the estimator's."""
        return default

    def local_top(self, default: Top | None) -> Top:
        """The head of the local track, given the estimator's."""
        raise AssertionError(f"{type(self).__name__} has no local track, and is not asked for its head")

    @property
    def trains_local_top(self) -> bool:
        """Whether the local track's head is trained."""
        return True

    @property
    def ranks_by_labels(self) -> bool:
        """Whether labels decide which columns the federated track may use."""
        return False

    def partition(self, table: Table, rows: Int64Array, seed: int, task: Task) -> FeaturePartition | None:
        """Which of the label party's columns the federated track may use; None if all, and then no track is local.

        Args:
            table: The label party's, with the labels that the federated track learns from: what columns are ranked by
                decides what leaves.
            rows: Those to train on.
            seed: What a ranking's randomness follows from.
            task: Whether labels are classes or numbers.
        """
        return None


@dataclass(frozen=True)
class SingleTrack(Tracks):
    """One bottom over all own columns, one top over all embeddings.

    >>> SingleTrack().predicts
    'federated'
    """

    own: ClassVar[str] = "embedding"
    bottom: ClassVar[str] = "bottom"
    top: ClassVar[str] = "top"
    predicts: ClassVar[Head] = "federated"


@dataclass(frozen=True)
class _TwoTracks(Tracks):
    """A federated track over public columns, and a local one that has the private columns too."""

    private: float = 0.2
    by: Ranking = "mutual-information"
    columns: tuple[str, ...] | None = None

    own: ClassVar[str] = "public"
    bottom: ClassVar[str] = "public"
    predicts: ClassVar[Head] = "local"

    @property
    def ranks_by_labels(self) -> bool:
        return self.columns is None and self.by != "random"

    def partition(self, table: Table, rows: Int64Array, seed: int, task: Task) -> FeaturePartition | None:
        if self.columns is not None:
            unknown = [name for name in self.columns if name not in table.columns]
            if unknown:
                raise DataError(
                    f"{table.owner}'s private columns should be columns of its table, but {', '.join(unknown)} are "
                    f"not.{nearest(unknown[0], table.columns)} Correct the names."
                )
            return FeaturePartition.named(table, self.columns)
        return public_private(table.take(rows), private=self.private, by=self.by, seed=seed, task=task)


@dataclass(frozen=True)
class ShadowProxy(_TwoTracks):
    """A shadow model over public columns for the others, and a local head over public and private embeddings.

    The local head does not see what feature parties send; the federated head does not see the private columns.

    Attributes:
        private: The share of the columns that stay private; 10 to 30 % are advised.
        by: What they are ranked by.
        columns: The private columns by name, instead of a ranking.
        local_head: The head of the local track; the estimator's top if None.

    >>> ShadowProxy(private=0.3).by
    'mutual-information'
    """

    local_head: Top | None = None

    top: ClassVar[str] = "top"

    def local_top(self, default: Top | None) -> Top:
        return self.local_head or default or "mlp"


@dataclass(frozen=True)
class ShadowTop(_TwoTracks):
    """A shadow top over public and received embeddings for the others, and a main top over all of them.

    Attributes:
        private, by, columns: The columns that stay private, as for `ShadowProxy`.
        shadow_top: The head of the federated track; the estimator's top if None.
        main_top: The head of the local track; like the shadow top if None.
        train_main_top: Whether the main top is trained. Where it is not, it stays as it was drawn, as the method's
            description says literally, and only the private bottom learns.

    >>> ShadowTop(main_top="linear").main_top
    'linear'
    """

    shadow_top: Top | None = None
    main_top: Top | None = None
    train_main_top: bool = True

    top: ClassVar[str] = "shadow_top"
    local_name: ClassVar[str] = "main_top"
    takes_received: ClassVar[bool] = True

    def federated_top(self, default: Top | None) -> Top | None:
        return self.shadow_top or default

    @property
    def trains_local_top(self) -> bool:
        return self.train_main_top

    def local_top(self, default: Top | None) -> Top:
        return self.main_top or self.shadow_top or default or "mlp"


TRACKS: Mapping[str, type[Tracks]] = {"single": SingleTrack, "shadow-proxy": ShadowProxy, "shadow-top": ShadowTop}
TracksChoice: TypeAlias = str | Mapping[str, Any] | Tracks


def tracks_of(choice: TracksChoice) -> Tracks:
    """The tracks that a setting means: a name, an object, or a mapping with a name and parameters.

    >>> tracks_of({"name": "shadow-top", "private": 0.3})
    ShadowTop(private=0.3, by='mutual-information', columns=None, shadow_top=None, main_top=None, train_main_top=True)
    """
    if isinstance(choice, Tracks):
        return choice
    given: dict[str, Any] = {"name": choice} if isinstance(choice, str) else dict(choice)
    # A saved object names its class under "is".
    homes = {stable_name(cls): cls for cls in TRACKS.values()}
    name = given.pop("name", None) or given.pop("is", None)
    found = TRACKS.get(str(name)) or homes.get(str(name))
    if found is None:
        raise PlanError(
            f"tracks should be one of {', '.join(TRACKS)}, but is {name!r}.{nearest(str(name), TRACKS)} Correct it."
        )
    return settings_of(given, found(), f"The choice of tracks {name!r}")


def head_of(tracks: Tracks, head: Head | None) -> Head:
    """The head that predicts: the one that is asked for, or else the one that the tracks are for."""
    wanted = tracks.predicts if head is None else head
    if wanted not in ("federated", "local") or (wanted == "local" and tracks.predicts != "local"):
        raise PlanError(
            f"A prediction uses the head 'federated', or 'local' where the tracks have one; {wanted!r} was asked "
            f"for and the tracks are {type(tracks).__name__}. Choose another head or other tracks."
        )
    return wanted


def holds_factory(saved: Any) -> bool:
    """Whether saved tracks, or a saved setting per network, name a callable that must be given again."""
    values = [value for key, value in saved.items() if key != "is"] if isinstance(saved, Mapping) else [saved]
    return any(isinstance(value, str) and "." in value for value in values)
