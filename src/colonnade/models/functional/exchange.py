"""What crosses between parties in function-on-function regression, and both sides of each exchange.

A feature party offers its columns and releases each of them once. It is sent nothing in training. The label party keeps
what it was sent. How curves are protected is settled in `colonnade.models.functional.release`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

import numpy as np
from blake3 import blake3

from colonnade.curves import Basis, Curves, basis_of
from colonnade.curves.basis import FloatArray
from colonnade.errors import DataError, PlanError, ProtocolError
from colonnade.models.functional.release import (
    PROTECTION,
    Metric,
    Release,
    calibrate,
    dp_release,
    empirical_clip,
    per_column,
)
from colonnade.privacy.ledger import Adjacency, Event, Ledger
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array, Message, UInt8Array, UInt64Array

Inputs: TypeAlias = Literal["released", "partial"]
Clip: TypeAlias = float | Mapping[str, float] | Literal["empirical"] | None

MOST_COLUMNS = 10_000


@dataclass(frozen=True)
class Offer(Message, kind="functional/offer"):
    """The columns a feature party will release, in which basis, and how each is clipped and noised."""

    columns: list[str]
    basis: UInt8Array
    clips: Float64Array
    sigmas: Float64Array


@dataclass(frozen=True)
class ReleasedCurves(Message, kind="functional/released-curves", reveals={Secret.FEATURES}, per_row="values"):
    """The curves of one column in coordinates, clipped and noised, one row per record."""

    column: str
    values: Float64Array


@dataclass(frozen=True)
class Surface(Message, kind="functional/surface", reveals={Secret.LABELS, Secret.MODEL}):
    """The coefficients of one column, given to its owner so that it can predict its part, and the inputs' centre."""

    column: str
    coefficients: Float64Array
    centre: Float64Array


@dataclass(frozen=True)
class PartialPrediction(Message, kind="functional/partial-prediction", reveals={Secret.FEATURES}, per_row="values"):
    """What all of an owner's columns together add to the prediction, one row per record."""

    values: Float64Array


@dataclass(frozen=True)
class Protection:
    """How all parties release their curves; every party derives its own noise from it.

    Attributes:
        clip: A radius for all columns or for each, None, or "empirical" in simulations.
        noise: The noise for all columns or for each; not used with `epsilon`.
        epsilon: What a record's curves in all columns of all parties may cost together.
        delta: Likewise.
        n_curves: How many columns of curves there are in all, where `clip` does not name them.
        metric: In which geometry.
        adjacency: What a record's change is.
    """

    clip: Clip = None
    noise: float | Mapping[str, float] = 0.0
    epsilon: float | None = None
    delta: float = 1e-5
    n_curves: int | None = None
    metric: Metric = "l2"
    adjacency: Adjacency = "replace-one"

    def release(self, column: str, curves: Curves) -> Release:
        """How one column is released; for "legacy", with the noise that was once thought to be worth `epsilon`."""
        empirical = self.clip == "empirical"
        clip: float | None
        if self.clip == "empirical":
            clip = empirical_clip(curves, self.metric)
        else:
            clip = per_column(self.clip, column, "clip")
        if self.epsilon is None:
            sigma = per_column(self.noise, column, "noise") or 0.0
            return Release(clip, sigma, self.metric, self.adjacency, empirical and sigma > 0)
        return Release(clip, self._calibrated(), self.metric, self.adjacency)

    def _calibrated(self) -> float:
        assert self.epsilon is not None
        if isinstance(self.clip, Mapping):
            clips = list(self.clip.values())
        elif isinstance(self.clip, int | float) and self.n_curves:
            clips = [float(self.clip)] * self.n_curves
        else:
            raise PlanError(
                "Noise for a budget needs the clip radius of every column of every party, because a record's change "
                f"moves all of them, but clip is {self.clip!r} and n_curves {self.n_curves!r}. Give clip as a number "
                "together with n_curves, or as a number for each column; it must not depend on the data."
            )
        return calibrate(clips, self.epsilon, self.delta, adjacency=self.adjacency).sigma[0]


@dataclass(frozen=True)
class Held:
    """A party's own columns of curves, checked, and how each is released."""

    columns: tuple[str, ...]
    basis: Basis
    releases: tuple[Release, ...]

    @classmethod
    def of(cls, party: Party, protection: Protection, estimator: str) -> Held:
        """A feature party's columns, fit to be released."""
        table = party.own_table
        columns = curve_columns(table, party.name, estimator)
        if not columns:
            raise DataError(
                f"{party.name} is a feature party and should bring a column of curves, but has none. "
                "Smooth values on a grid with Curves.smooth."
            )
        first = table.curves(columns[0]).basis
        releases = []
        for column in columns:
            curves = table.curves(column)
            if curves.basis != first:
                raise DataError(
                    f"All curves should be in one basis, but {party.name}'s column {column!r} is in another than "
                    f"{columns[0]!r}. Smooth both into the same basis."
                )
            check_rows(curves, column, party.name)
            releases.append(protection.release(column, curves))
        if protection.n_curves is not None and len(columns) > protection.n_curves:
            raise PlanError(
                f"n_curves says that all parties together have {protection.n_curves} columns of curves, but "
                f"{party.name} alone has {len(columns)}. Correct n_curves."
            )
        return cls(columns, first, tuple(releases))

    def offer(self) -> Offer:
        """What the label party is told beforehand."""
        clips = [np.inf if release.clip is None else float(release.clip) for release in self.releases]
        text = json.dumps(self.basis.describe(), sort_keys=True).encode()
        return Offer(
            list(self.columns),
            np.frombuffer(text, np.uint8),
            np.array(clips),
            np.array([float(release.sigma) for release in self.releases]),
        )

    def send(self, party: Party, phase: str) -> None:
        """Release every column to the label party, each once."""
        table = party.own_table
        rows = np.arange(len(table))
        for column, release in zip(self.columns, self.releases, strict=True):
            curves = self.curves_of(table, column)
            values = dp_release(
                curves, release, random=party.random, ledger=party.ledger, path=(phase, table.id_digest(), column)
            )
            under = (PROTECTION,) if release.is_private else ()
            party.label_party.send(ReleasedCurves(column, values), under=under, rows=rows, epoch=0)

    def partial(self, party: Party) -> None:
        """Answer the label party's coefficients with what the own columns add to the prediction."""
        table = party.own_table
        total: FloatArray | None = None
        for column, release in zip(self.columns, self.releases, strict=True):
            surface = party.label_party.receive(Surface)
            _require_column(surface.column, column, party.label_party.peer)
            if surface.coefficients.ndim != 2 or len(surface.coefficients) != self.basis.size:
                raise ProtocolError(
                    f"Expected coefficients for {self.basis.size} functions from {party.label_party.peer}, got shape "
                    f"{surface.coefficients.shape}. Check that both parties run the same plan."
                )
            z = release.clipped(self.curves_of(table, column)) - surface.centre
            part = z @ surface.coefficients
            total = part if total is None else total + part
        assert total is not None
        digest = table.id_digest().encode()
        note = "exact parts of predictions given to the label party"
        party.ledger.spend(Event.not_private(Secret.FEATURES, note), identity=digest)
        party.label_party.send(PartialPrediction(total), rows=np.arange(len(table)))

    def curves_of(self, table: Table, column: str) -> Curves:
        """The curves of a column as they were in training."""
        if column not in table.columns:
            raise DataError(
                f"{table.owner} trained with the column {column!r} but its table has only "
                f"{', '.join(table.columns) or 'no columns'}. Bring the columns the model was trained with."
            )
        curves = table.curves(column)
        if curves.basis != self.basis:
            raise DataError(
                f"{table.owner} trained with {column!r} in another basis than it has now. "
                "Smooth the new curves into the basis of training."
            )
        return curves

    def state(self) -> Tree:
        """The columns and releases as a tree."""
        return {
            "columns": list(self.columns),
            "basis": json.dumps(self.basis.describe()),
            "releases": [dict(vars(release)) for release in self.releases],
        }

    @classmethod
    def from_state(cls, tree: Tree) -> Self:
        """What `state` wrote down."""
        releases = tuple(Release(**each) for each in tree["releases"])
        return cls(tuple(tree["columns"]), basis_of(json.loads(tree["basis"])), releases)


@dataclass(frozen=True)
class Design:
    """All that the label party has of the inputs: columns of all parties, in order, and what noise is in them.

    Attributes:
        columns: Each column's party and name; the label party's own come first.
        basis: Of all inputs.
        clips: The radius of each column; infinite where it is not clipped.
        sigmas: The noise of each column.
        metric: In which geometry.
    """

    columns: tuple[tuple[str, str], ...]
    basis: Basis
    clips: tuple[float, ...]
    sigmas: tuple[float, ...]
    metric: Metric

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(column for _, column in self.columns)

    @property
    def noise(self) -> FloatArray:
        """The covariance of each column's noise in coordinates."""
        one = Release(1.0, 1.0, self.metric).noise(self.basis)
        return np.stack([sigma**2 * one for sigma in self.sigmas])

    def of_party(self, name: str) -> list[int]:
        """The places of one party's columns."""
        return [place for place, (party, _) in enumerate(self.columns) if party == name]

    @classmethod
    def collected(cls, party: Party, protection: Protection, estimator: str) -> Design:
        """What all parties offer, and agree on."""
        table = party.own_table
        columns: list[tuple[str, str]] = []
        clips: list[float] = []
        sigmas: list[float] = []
        found: tuple[str, Basis] | None = None
        own = curve_columns(table, party.name, estimator)
        for column in own:
            check_rows(table.curves(column), column, party.name)
        offers = {line.peer: line.receive(Offer) for line in party.feature_parties}
        bases = {party.name: [table.curves(column).basis for column in own]}
        for peer, offer in offers.items():
            n = len(offer.columns)
            if not 1 <= n <= MOST_COLUMNS or offer.clips.shape != (n,) or offer.sigmas.shape != (n,):
                raise ProtocolError(
                    f"Expected {peer} to offer from 1 to {MOST_COLUMNS} columns with a radius and a noise each, got "
                    f"{n} columns. Check that both parties run the same version."
                )
            bases[peer] = [basis_of(json.loads(bytes(offer.basis)))]
        for name, theirs in bases.items():
            for basis in theirs:
                if found is not None and basis != found[1]:
                    raise DataError(
                        f"All parties' curves should be in one basis, but {found[0]} has {_words(found[1])} and "
                        f"{name} {_words(basis)}. Agree on one basis and smooth the curves into it."
                    )
                found = (name, basis)
        columns += [(party.name, column) for column in own]
        clips += [np.inf] * len(own)
        sigmas += [0.0] * len(own)
        for peer, offer in offers.items():
            columns += [(peer, column) for column in offer.columns]
            clips += offer.clips.tolist()
            sigmas += offer.sigmas.tolist()
        names = [column for _, column in columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(
                f"Every column of curves needs a name of its own among all parties, but {', '.join(twice)} is used "
                "twice. Rename one of them."
            )
        offered = sum(len(offer.columns) for offer in offers.values())
        if protection.epsilon is not None and protection.n_curves not in (None, offered):
            raise PlanError(
                f"n_curves says that {protection.n_curves} columns share the budget, but feature parties offer "
                f"{offered}. Correct n_curves, or the noise does not fit the budget."
            )
        assert found is not None
        return cls(tuple(columns), found[1], tuple(clips), tuple(sigmas), protection.metric)

    def receive(self, party: Party) -> FloatArray:
        """The released coordinates of all columns, shape (rows, columns, size)."""
        table = party.own_table
        z = np.empty((len(table), len(self.columns), self.basis.size))
        for place in self.of_party(party.name):
            z[:, place] = self.own(party, self.columns[place][1])
        rows = np.arange(len(table))
        for line in party.feature_parties:
            for place in self.of_party(line.peer):
                shape = (len(table), self.basis.size)
                message = line.receive(ReleasedCurves, shape=shape, rows=rows, epoch=0)
                _require_column(message.column, self.columns[place][1], line.peer)
                if not np.isfinite(message.values).all():
                    raise ProtocolError(
                        f"{message.kind} from {line.peer} for {message.column!r} holds numbers that are not finite. "
                        "Check the peer's curves."
                    )
                z[:, place] = message.values
        return z

    def own(self, party: Party, column: str) -> FloatArray:
        """The label party's own curves in coordinates, as they are."""
        return Held((column,), self.basis, ()).curves_of(party.own_table, column).coordinates

    def state(self) -> Tree:
        """The design as a tree."""
        return {
            "columns": [list(column) for column in self.columns],
            "basis": json.dumps(self.basis.describe()),
            "clips": [None if np.isinf(clip) else clip for clip in self.clips],
            "sigmas": list(self.sigmas),
            "metric": self.metric,
        }

    @classmethod
    def from_state(cls, tree: Tree) -> Self:
        """What `state` wrote down."""
        return cls(
            tuple((party, column) for party, column in tree["columns"]),
            basis_of(json.loads(tree["basis"])),
            tuple(np.inf if clip is None else clip for clip in tree["clips"]),
            tuple(tree["sigmas"]),
            tree["metric"],
        )


@dataclass(frozen=True)
class PastReleases:
    """Which records a party has released before, and at what cost; kept by that party alone.

    A record that is released again costs what it has cost before and what it costs now.
    """

    ids: UInt64Array
    salt: bytes
    ledger: str

    @classmethod
    def of(cls, party: Party, held: Held) -> PastReleases:
        """The records of a party's table, and what releasing their curves has cost."""
        salt = party.random.child("released records").key
        spent = Ledger()
        for release in held.releases:
            spent.spend(release.event(held.basis))
        return cls(_id_digests(party.own_table, salt), salt, spent.to_json())

    def carry_over(self, party: Party) -> None:
        """Charge earlier releases of any of these records to the party's present ledger, too."""
        if not np.isin(_id_digests(party.own_table, self.salt), self.ids).any():
            return
        for event, count in Ledger.from_json(self.ledger).events.items():
            identity = blake3(f"{self.ledger}{event!r}".encode(), key=self.salt).digest()
            party.ledger.spend(event, count, identity=identity, is_earlier=True)


def curve_columns(table: Table, owner: str, estimator: str) -> tuple[str, ...]:
    """The columns of a table, which must all be curves."""
    for name, kind in table.kinds.items():
        if kind != "curves":
            raise DataError(
                f"{estimator} reads curves, but {owner}'s column {name!r} holds {kind} values. "
                "Smooth values on a grid with Curves.smooth, or leave the column out."
            )
    return table.columns


def check_rows(curves: Curves, column: str, owner: str) -> None:
    """Refuse curves from which no coefficients can be learned."""
    n, size = curves.coefficients.shape
    if n < size:
        raise DataError(
            f"{owner} has {n} curves in {column!r}, but the basis has {size} functions and needs at least as many "
            "curves. Bring more rows, or smooth into a smaller basis."
        )
    # Rounding in smoothing leaves equal curves unequal in their last digits.
    spread = np.ptp(curves.coordinates, axis=0).max()
    if spread <= 1e-12 * max(float(np.abs(curves.coordinates).max()), 1e-300):
        raise DataError(
            f"The curves in {owner}'s column {column!r} should differ, but all {n} are the same. Leave the column out."
        )


def _id_digests(table: Table, salt: bytes) -> UInt64Array:
    digests = (blake3(repr(each).encode(), key=salt).digest(8) for each in table.ids.to_pylist())
    return np.frombuffer(b"".join(digests), np.uint64)


def _require_column(came: str, wanted: str, peer: str) -> None:
    if came != wanted:
        raise ProtocolError(
            f"Expected {wanted!r} from {peer}, got {came!r}. Check that both parties run the same plan and model."
        )


def _words(basis: Basis) -> str:
    low, high = basis.domain
    return f"{basis.size} {basis.kind} on [{low:g}, {high:g}]"
