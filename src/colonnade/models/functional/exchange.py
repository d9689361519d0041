"""Both ends of the exchange of curves: a feature party's own curves, and what the label party has of all inputs.

A feature party offers its columns and releases each of them once. It is sent nothing in training. The label party keeps
what it was sent. How curves are protected is settled in `colonnade.models.functional.release`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Self, TypeAlias

import numpy as np
from blake3 import blake3

from colonnade.curves import Basis, Curves, basis_of
from colonnade.curves.basis import FloatArray
from colonnade.curves.curves import described_basis, description_of
from colonnade.errors import DataError, PlanError, ProtocolError
from colonnade.models.functional.messages import Offer, PartialPrediction, ReleasedCurves, Surface
from colonnade.models.functional.release import PROTECTION, Metric, Protection, Release, dp_release
from colonnade.privacy.ledger import Event, Ledger
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.tables.table import Table
from colonnade.wire.message import UInt64Array

NewInputs: TypeAlias = Literal["released", "partial"]

MOST_COLUMNS = 10_000
MOST_BASIS_SIZE, MOST_BASIS_BYTES = 2048, 2**22


def offered_basis(peer: str, offer: Offer) -> Basis:
    """The basis that a peer describes, none of whose numbers asks for more memory than a basis needs.

    Raises:
        ProtocolError: The description is no basis, or a basis that is too large.
    """
    try:
        if offer.basis.nbytes > MOST_BASIS_BYTES:
            raise ValueError
        described = json.loads(bytes(offer.basis))
        sizes = [described.get(field, 1) for field in ("size", "order")]
        if not all(isinstance(size, int) and 1 <= size <= MOST_BASIS_SIZE for size in sizes):
            raise ValueError
        return described_basis(bytes(offer.basis))
    except (ValueError, AttributeError, RecursionError, OverflowError, DataError, PlanError) as error:
        raise ProtocolError(
            f"Expected functional/offer with a basis of at most {MOST_BASIS_SIZE:,} functions, described in at most "
            f"{MOST_BASIS_BYTES:,} bytes, from {peer}, got another basis. Smooth {peer}'s curves into a smaller basis, "
            "or check that both parties run the same version."
        ) from error


@dataclass(frozen=True)
class OwnCurves:
    """A party's columns of curves, checked, and how each is released."""

    columns: tuple[str, ...]
    basis: Basis
    releases: tuple[Release, ...]

    @classmethod
    def of(cls, party: Party, protection: Protection, estimator: str) -> OwnCurves:
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
        return Offer(
            list(self.columns),
            np.frombuffer(description_of(self.basis), np.uint8),
            np.array(clips),
            np.array([float(release.sigma) for release in self.releases]),
        )

    def send(self, party: Party, phase: str) -> None:
        """Release every column to the label party, each once."""
        table = party.own_table
        rows, digest = np.arange(len(table)), table.id_digest()
        for column, release in zip(self.columns, self.releases, strict=True):
            curves = self.curves_of(table, column)
            values = dp_release(curves, release, random=party.random, ledger=party.ledger, path=(phase, digest, column))
            under = (PROTECTION,) if release.is_private else ()
            party.label_party.send(ReleasedCurves(column, values), under=under, rows=rows, epoch=0)

    def partial(self, party: Party) -> None:
        """Answer the label party's coefficients with what this party's columns add to the prediction."""
        table = party.own_table
        total: FloatArray | None = None
        for column, release in zip(self.columns, self.releases, strict=True):
            surface = party.label_party.receive(Surface, fields={"column": column}, finite=True)
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

    def require_columns(self, table: Table) -> None:
        """Refuse a table that lacks a column, or has curves in another basis."""
        for column in self.columns:
            self.curves_of(table, column)

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
class CurveDesign:
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
    def collected(cls, party: Party, protection: Protection, estimator: str) -> CurveDesign:
        """What all parties offer, and agree on."""
        table = party.own_table
        own = curve_columns(table, party.name, estimator)
        for column in own:
            check_rows(table.curves(column), column, party.name)
        columns, clips, sigmas = [(party.name, column) for column in own], [np.inf] * len(own), [0.0] * len(own)
        bases = [(party.name, table.curves(column).basis) for column in own]
        for line in party.feature_parties:
            offer, peer = line.receive(Offer), line.peer
            n = len(offer.columns)
            if not 1 <= n <= MOST_COLUMNS or offer.clips.shape != (n,) or offer.sigmas.shape != (n,):
                raise ProtocolError(
                    f"Expected {peer} to offer from 1 to {MOST_COLUMNS} columns with a radius and a noise each, got "
                    f"{n} columns. Check that both parties run the same version."
                )
            bases.append((peer, offered_basis(peer, offer)))
            columns += [(peer, column) for column in offer.columns]
            clips += offer.clips.tolist()
            sigmas += offer.sigmas.tolist()
        for (name, basis), (other, another) in pairwise(bases):
            if basis != another:
                raise DataError(
                    f"All parties' curves should be in one basis, but {name} has {_words(basis)} and "
                    f"{other} {_words(another)}. Agree on one basis and smooth the curves into it."
                )
        names = [column for _, column in columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(
                f"Every column of curves needs a name of its own among all parties, but {', '.join(twice)} is used "
                "twice. Rename one of them."
            )
        offered = len(columns) - len(own)
        if protection.epsilon is not None and protection.n_curves not in (None, offered):
            raise PlanError(
                f"n_curves says that {protection.n_curves} columns share the budget, but feature parties offer "
                f"{offered}. Correct n_curves, or the noise does not fit the budget."
            )
        return cls(tuple(columns), bases[0][1], tuple(clips), tuple(sigmas), protection.metric)

    def receive(self, party: Party) -> FloatArray:
        """The released coordinates of all columns, shape (rows, columns, size)."""
        table = party.own_table
        z = np.empty((len(table), len(self.columns), self.basis.size))
        for place in self.of_party(party.name):
            z[:, place] = self.own(party, self.columns[place][1])
        rows, shape = np.arange(len(table)), (len(table), self.basis.size)
        for line in party.feature_parties:
            for place in self.of_party(line.peer):
                column = {"column": self.columns[place][1]}
                message = line.receive(ReleasedCurves, fields=column, shape=shape, finite=True, rows=rows, epoch=0)
                z[:, place] = message.values
        return z

    def owned_by(self, party: str) -> OwnCurves:
        """A party's own columns."""
        return OwnCurves(tuple(self.columns[place][1] for place in self.of_party(party)), self.basis, ())

    def own(self, party: Party, column: str) -> FloatArray:
        """The label party's own curves in coordinates, as they are."""
        return OwnCurves((column,), self.basis, ()).curves_of(party.own_table, column).coordinates

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
    def of(cls, party: Party, held: OwnCurves) -> PastReleases:
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


def _words(basis: Basis) -> str:
    low, high = basis.domain
    return f"{basis.size} {basis.kind} on [{low:g}, {high:g}]"
