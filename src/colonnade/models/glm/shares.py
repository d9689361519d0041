"""Training without an arbiter: everything is shared until the coefficients are opened; one step is read here.

    matrix holder                  computing party                 other computing party
         ColumnSummary ────────────────▶                                                    once, to the label party
         ◀───────────────── SharesLayout                                                    once, to all
         ◀─────────────── PublicKeyBytes                                                    once, from both, to all
         ◀───────────────── SharedVector                                                    from each, to all
         MaskedProduct ────────────────▶                                                    from all, to each
                                    PairedWords ─────────────────────▶                      in turns: the mean, what
                                    ◀───────────────────── PairedWords                      is shifted, what moved
                                    ◀───────────────────── OpenedShare                      per epoch: still or not
         ◀────────────────── StopVerdict                                                    per epoch, to all
         ◀────────────────── OpenedShare                                                    at the end, from both

The label party and the first feature party compute: each holds one share modulo 2^64 of every coefficient, score,
residual and gradient. All parties hold matrices: their own columns. A computing party sends its share of a vector
encrypted under its own key. A matrix holder multiplies its columns with the vector, adds a mask and a flood, and sends
the product back. Where the holder computes too, the negative of the mask is its share of the product. Where the holder
does not compute, the masks for the two computing parties cancel.

    basis        each party's own columns are whitened: Z_k, with a mean square of about 1 in every direction
    scores       Z_k theta_k, summed over parties        one round with all, with what the penalty adds to gradients
    mean         linear: the scores; else a table's words at the scores, 0 below the table, the last one above it
    gradients    Z_k' (mean - label)                     one round with all
    update       local, with public factors
    stopping     whether the squared change of all coefficients in an epoch is below a public bound: one bit

Before the end the label party learns one bit after each epoch, the others whether training ends, which is after ten
such epochs in a row, and nothing else: what a party decrypts is uniform. With tol=0 there is no such bit, and all
epochs are run. At the end each party learns its own coefficients. The two computing parties must not work together:
their shares add up to the coefficients, scores and residuals. Semi-honest, unreviewed. Mohassel and Zhang 2017
(SecureML) for training on shares; products with matrices are those of `colonnade.crypto.rlwe`, all else between the two
computing parties that of `colonnade.crypto.paired`.

Steps cannot grow without bound, because means lie within their table (`means`). Where a learning rate was set by hand
and shares wrapped around, the opened coefficients are out of range and are refused.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from colonnade.crypto import rlwe
from colonnade.crypto.additive import MOST_ROWS, encoded
from colonnade.crypto.profiles import DISTANCE_BITS, SHARES
from colonnade.crypto.rlwe import PublicKey, SecretKey
from colonnade.crypto.sampling import Stream
from colonnade.crypto.shares import MOST_BITS, Share, fixed, reals
from colonnade.crypto.transfers import Turns
from colonnade.errors import Overflow, ProtocolError
from colonnade.models.glm.approximation import Approximation
from colonnade.models.glm.families import of_all_classes
from colonnade.models.glm.matrix import (
    Matrix,
    entries,
    largest_eigenvalue,
    require_finite,
    squares,
    stacked,
    totals,
    weighted,
    whitened,
    with_entries,
    words,
)
from colonnade.models.glm.means import MOST_SCORE, PairedLine
from colonnade.models.glm.messages import (
    COLUMN_BOUNDS,
    LAYOUT_BOUNDS,
    ColumnSummary,
    MaskedProduct,
    OpenedShare,
    PublicKeyBytes,
    SharedVector,
    SharesLayout,
)
from colonnade.models.glm.sides import (
    LONGER,
    ColumnSide,
    LearnedRegression,
    RegressionSettings,
    lookahead,
    mean_weights,
    numeric_labels,
    of_length,
)
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.wire.channel import Channel
from colonnade.wire.message import Float64Array, sealed

if TYPE_CHECKING:
    from colonnade.crypto.additive import Data

# Bits behind the point: of columns, of coefficients, of everything in between.
COLUMN_BITS, COEFFICIENT_BITS, VALUE_BITS = 10, 24, 20
MOST_COLUMN_BITS = PENALTY_BITS = 16
HIDDEN = (SHARES.name, "mask", "flood")

T = TypeVar("T")


class MatrixSide(ColumnSide):
    """A party whose columns are multiplied with shares that others hold."""

    layout: SharesLayout

    def __init__(self, settings: RegressionSettings, party: Party, matrix: Matrix) -> None:
        super().__init__(settings, party, matrix.shape)
        require_finite(party.name, matrix)
        self._kept: dict[tuple[str, int], rlwe.Columns] = {}
        if self.n_rows > MOST_ROWS:
            raise Overflow(
                f"{party.name} has {self.n_rows} rows, but shares are multiplied for at most {MOST_ROWS}. Use fewer."
            )
        holders = party.roles.holders
        self.place, self.computing = holders.index(party.name), holders[:2]
        self.basis = whitened(matrix, self.penalised, self.ridge, 2.0 ** (MOST_COLUMN_BITS - COLUMN_BITS))
        self.columns = self._fixed(self.basis.columns, axis=1)
        penalties = np.rint(np.ldexp(entries(self.basis.penalty), PENALTY_BITS)).astype(np.int64)
        self.penalty = with_entries(self.basis.penalty, penalties)
        self.keys: dict[str, PublicKey] = {}
        self.budgets = {line.peer: party.budget(SHARES, line.peer) for line in self._computing_peers()}

    def begin(self) -> None:
        self._set_up(self._agreed())
        self._receive_keys()

    def train(self, step: int) -> None:
        batch = step % self.n_batches
        for what in ("scores", "gradients"):
            for _ in range(self.n_outputs):
                self.answer(step, what, batch)

    def answer(self, step: int, what: str, batch: int) -> Share:
        """Multiply this party's columns with each other computing party's share; returns its share of the products."""
        n_rows, n_values = self.n_columns, len(self.batches[batch]) + self.n_columns
        if what == "gradients":
            n_rows, n_values = len(self.batches[batch]), self.n_columns
        own = np.zeros(n_values, np.uint64)
        masks = None
        for line in self._computing_peers():
            block = self._block(what, len(self.batches[batch]), n_rows)
            prepared = self._prepared(what, batch, self.keys[line.peer], block)
            # Masks for the two computing parties cancel where this party keeps no share.
            masks = self._multiplied(step, line, prepared, None if masks is None else np.uint64(0) - masks)
            own -= masks
        return own

    def stands_still(self, epoch: int) -> bool:
        return self.received_verdict(epoch)

    def finish(self) -> LearnedRegression:
        length = self.n_outputs * self.n_columns
        first, second = (self._opened_by(line, length) for line in self._computing_peers())
        return self._learned(first + second)

    def _learned(self, opened: Share) -> LearnedRegression:
        found = of_all_classes(reals(np.asarray(opened, np.uint64), COEFFICIENT_BITS).reshape(self.n_outputs, -1)).T
        self._require_in_range(found)
        coefficients = self.basis.coefficients(found).T * self.layout.scale
        approximation = Approximation.of(
            self.settings.family,
            self.n_outputs,
            # Shared scores are rounded once, to either neighbour.
            score_off=2.0**-VALUE_BITS,
            mean_bits=VALUE_BITS,
            own_score=float(np.abs(found).sum(axis=0).max() * 2.0 ** -(COLUMN_BITS + 1)),
        )
        return LearnedRegression(approximation, coefficients, np.zeros((0, *coefficients.shape)))

    def _require_in_range(self, found: Float64Array) -> None:
        """Refuse coefficients whose scores outgrew their range: shares had wrapped around, or were about to."""
        n_parties, largest = len(self.party.roles.holders), 0.0
        if self.n_columns:
            largest = float(np.abs(self.basis.columns @ found).max(initial=0.0))
        if not largest <= MOST_SCORE / n_parties:
            raise Overflow(
                f"{self.party.name}'s scores should be at most {MOST_SCORE / n_parties:g} in absolute value at the end "
                f"of training, but one is {largest:.3g}: training diverged. Lower learning_rate."
            )

    def _opened_by(self, line: Channel, length: int, epoch: int | None = None) -> Share:
        return of_length(line.receive(OpenedShare, epoch=epoch).share, length, "opened shares", line.peer)

    def _computing_peers(self) -> list[Channel]:
        return [self.party.peers[name] for name in self.computing if name != self.party.name]

    def _agreed(self) -> SharesLayout:
        """What the label party lays down, with the numbers that it needs for that."""
        line = self.party.label_party
        line.send(ColumnSummary(self.n_columns, largest_eigenvalue(self.party.name, self.basis.columns)))
        layout = line.receive(SharesLayout, finite=True, within=LAYOUT_BOUNDS)
        holders = self.party.roles.holders
        least, most = COLUMN_BOUNDS["count"]
        fits = layout.counts.shape == (len(holders),) and layout.counts[self.place] == self.n_columns
        fits = fits and bool(((layout.counts >= least) & (layout.counts <= most)).all())
        if not fits or len(layout.weights) not in (0, self.n_rows):
            raise ProtocolError(
                f"Expected a layout for {len(holders)} parties and {self.n_rows} rows from {line.peer}, got one for "
                f"{layout.counts.size} parties and {len(layout.weights)} weights. Check that all parties run the same "
                "plan."
            )
        return layout

    def _set_up(self, layout: SharesLayout) -> None:
        self.layout, self.most_columns, self.n_outputs = layout, int(layout.counts.max()), layout.n_outputs
        self.gradient_columns = self._fixed(weighted(self.basis.columns, layout.weights), axis=0)

    def _receive_keys(self) -> None:
        for line in self._computing_peers():
            self.keys[line.peer] = PublicKey.from_bytes(line.receive(PublicKeyBytes).key.tobytes(), SHARES)

    def _multiplied(self, step: int, line: Channel, prepared: rlwe.Columns, chosen: Share | None = None) -> Share:
        """Multiply a private matrix with a computing party's vector, send the product masked; returns the masks."""
        key, (n_rows, n_values), epoch = self.keys[line.peer], prepared.matrix.shape, self.epoch_of(step)
        size = key.vector_size(n_rows, prepared.block)
        data = self.received(line, SharedVector, step, key, size)
        masked, masks = key.masked(key.product(prepared, data), prepared.block, n_values, chosen)
        self.budgets[line.peer].spend(len(masked) * key.coefficients)
        line.send(MaskedProduct(step, sealed(masked, key)), under=HIDDEN, epoch=epoch)
        return masks

    def _block(self, what: str, batch_size: int, n_rows: int) -> int:
        if what == "scores":
            return rlwe.rows_per_block(n_rows, batch_size + n_rows)
        return rlwe.rows_per_block(batch_size, self.most_columns)

    def _prepared(self, what: str, batch: int, key: PublicKey, block: int) -> rlwe.Columns:
        """A matrix as products need it; kept if those of all batches fit in memory."""
        if (what, batch) in self._kept:
            return self._kept[what, batch]
        rows, fits = self.batches[batch], rlwe.fits_cache(2 * self.n_rows * self.n_columns)
        matrix = stacked(self.columns[rows], self.penalty).T if what == "scores" else self.gradient_columns[rows]
        found = key.prepare(matrix, block, cached=fits)
        if fits:
            self._kept[what, batch] = found
        return found

    def _fixed(self, matrix: Matrix, *, axis: int) -> Matrix:
        """A matrix in fixed point, small enough for sums along an axis to be hidden."""
        what = f"{self.party.name}'s columns"
        found = with_entries(matrix, encoded(entries(matrix), COLUMN_BITS, MOST_COLUMN_BITS, what))
        longest, heaviest = (each(found, axis=axis).max(initial=0.0) for each in (squares, totals))
        if SHARES.distance_bits(max(rlwe.noise(1, longest, heaviest), 1.0), SHARES.most_values) < DISTANCE_BITS:
            raise Overflow(
                f"{what} are too large for their products to be hidden by a flood of {SHARES.flood_bits} bits. "
                "Standardise them or use fewer rows."
            )
        return found


class ComputingSide(MatrixSide):
    """One of the two parties that hold shares; the label party leads."""

    def __init__(self, settings: RegressionSettings, party: Party, matrix: Matrix) -> None:
        self.leading = party.holds_labels
        if self.leading:
            self.loss = settings.family.loss(numeric_labels(party, settings.family))
            self.labels = fixed(self.loss.labels, VALUE_BITS, f"{party.name}'s labels")
        super().__init__(settings, party, matrix)
        (other,) = self._computing_peers()
        self.other = PairedLine(other, leading=self.leading)
        self.key: SecretKey | None = None

    def begin(self) -> None:
        self._set_up(self._agreed())
        counts = self.layout.counts
        self.parts = [slice(int(counts[:i].sum()), int(counts[: i + 1].sum())) for i in range(len(counts))]
        shape = self.n_outputs, int(counts.sum())
        self.coefficients, self.point, self.before = (np.zeros(shape, np.uint64) for _ in range(3))
        self.key = SecretKey(self.party.once("shares key", lambda: Stream().raw(32)), SHARES)
        message = PublicKeyBytes(np.frombuffer(self.key.public.to_bytes(), np.uint8))
        for line in self.party.peers.values():
            line.send(message)
        self._receive_keys()
        self._in_turns(0, self.other.pair.begin())

    def train(self, step: int) -> None:
        batch, rows = step % self.n_batches, self.batches[step % self.n_batches]
        # A long step takes its gradient where coefficients are, a short one where the last move takes them.
        points = self.coefficients if step < self.n_long_steps else self.point
        found = [self._scores(step, batch, point) for point in points]
        residuals = self._mean(step, np.stack([scores for scores, _ in found]))
        if self.leading:
            residuals = residuals - self.labels[:, rows]
        gradients = np.stack([self._gradients(step, batch, each) for each in residuals])
        self._update(step, len(rows), gradients, np.stack([penalties for _, penalties in found]))

    def stands_still(self, epoch: int) -> bool:
        change, self.before = self.coefficients - self.before, self.coefficients
        still = self._is_short((epoch + 1) * self.n_batches - 1, of_all_classes(change).ravel())
        return self.decide(epoch, still=still) if self.leading else self.received_verdict(epoch)

    def state(self) -> Tree:
        return {**super().state(), **{name: getattr(self, name) for name in ("coefficients", "point", "before")}}

    def finish(self) -> LearnedRegression:
        for name, part in zip(self.party.roles.holders, self.parts, strict=True):
            if name != self.party.name:
                self.party.peers[name].send(OpenedShare(self.coefficients[:, part].ravel()))
        own = self.coefficients[:, self.parts[self.place]].ravel()
        learned = self._learned(own + self._opened_by(self.other.line, len(own)))
        if not self.leading:
            return learned
        approximation = learned.approximation.beside(self.loss.labels)
        return replace(learned, centre=self.loss.centre, approximation=approximation)

    def _agreed(self) -> SharesLayout:
        if not self.leading:
            return super()._agreed()
        columns = [line.receive(ColumnSummary, within=COLUMN_BOUNDS) for line in self.party.feature_parties]
        weights = mean_weights(self.party, self.settings.sample_weight)
        eigenvalues = largest_eigenvalue(self.party.name, self.basis.columns)
        eigenvalues += sum(each.curvature for each in columns)
        rate = self.rate(self.loss, weights, eigenvalues)
        counts = np.array([self.n_columns, *(each.count for each in columns)])
        layout = SharesLayout(self.loss.scale, self.loss.factor, rate, weights, counts, len(self.loss.labels))
        for line in self.party.feature_parties:
            line.send(layout)
        return layout

    def _vector(self, step: int, values: Share, block: int) -> SharedVector:
        assert self.key is not None
        public = self.key.public
        return SharedVector(step, sealed(public.encrypt(values.view(np.int64), block), public))

    def _scores(self, step: int, batch: int, point: Share) -> tuple[Share, Share]:
        """This party's share of the joint scores of a batch, and of what the penalty adds to everybody's gradients."""
        rows, holders = self.batches[batch], self.party.roles.holders
        for name, part in zip(holders, self.parts, strict=True):
            if name != self.party.name:
                block = self._block("scores", len(rows), part.stop - part.start)
                vector = self._vector(step, point[part], block)
                self.party.peers[name].send(vector, under=HIDDEN[:1], epoch=self.epoch_of(step))
        answered = self.answer(step, "scores", batch)
        scores, penalties = np.zeros(len(rows), np.uint64), np.zeros_like(point)
        for name, part in zip(holders, self.parts, strict=True):
            if name == self.party.name:
                found = answered + words(stacked(self.columns[rows], self.penalty)) @ point[part]
            else:
                block = self._block("scores", len(rows), part.stop - part.start)
                found = self._decrypted(step, self.party.peers[name], block, len(rows) + part.stop - part.start)
            scores += found[: len(rows)]
            penalties[part] = found[len(rows) :]
        return scores, penalties

    def _gradients(self, step: int, batch: int, residuals: Share) -> Share:
        """This party's share of everybody's gradients, one after the other."""
        rows, holders = self.batches[batch], self.party.roles.holders
        block = self._block("gradients", len(rows), 0)
        vector = self._vector(step, residuals, block)
        for name in holders:
            if name != self.party.name:
                self.party.peers[name].send(vector, under=HIDDEN[:1], epoch=self.epoch_of(step))
        gradients = np.zeros(self.coefficients.shape[1], np.uint64)
        own = self.parts[self.place]
        gradients[own] = self.answer(step, "gradients", batch)
        gradients[own] += words(self.gradient_columns[rows]).T @ residuals
        for name, part in zip(holders, self.parts, strict=True):
            if name != self.party.name:
                gradients[part] = self._decrypted(step, self.party.peers[name], block, part.stop - part.start)
        return gradients

    def _update(self, step: int, batch_size: int, gradients: Share, penalties: Share) -> None:
        """One step along the gradient on shares: all factors are public."""
        layout, places = self.layout, ceil(log2(batch_size))
        rate = layout.learning_rate * (LONGER if step < self.n_long_steps else 1.0)
        means, shrunk = self._truncated(step, np.stack([gradients, penalties]), places)
        bits = 2 * COEFFICIENT_BITS
        scale = rate * layout.curvature * self.n_batches / self.total(layout.weights) * 2.0**places
        of_gradient = round(scale * 2.0 ** (bits - COLUMN_BITS - VALUE_BITS))
        of_penalty = rate * self.shrinkage(layout.weights) / (self.ridge or 1.0)
        change = means * _word(of_gradient)
        change += shrunk * _word(round(of_penalty * 2.0 ** (COEFFICIENT_BITS - PENALTY_BITS + places)))
        before, self.coefficients = self.coefficients, self.point - self._truncated(step, change, COEFFICIENT_BITS)
        ahead = _word(round(lookahead(step, self.settings.momentum) * 2.0**COEFFICIENT_BITS))
        moved = (self.coefficients - before) * ahead
        self.point = self.coefficients + self._truncated(step, moved, COEFFICIENT_BITS)

    def _mean(self, step: int, scores: Share) -> Share:
        """This party's share of the link's inverse at shared scores."""
        shifted, table = (
            self._truncated(step, scores, COLUMN_BITS + COEFFICIENT_BITS - VALUE_BITS),
            self.settings.family.table,
        )
        if table is None:
            return shifted
        return self.other.means(step, self.epoch_of(step), table, shifted, VALUE_BITS, VALUE_BITS)

    def _is_short(self, step: int, change: Share) -> bool:
        """Whether all coefficients changed by so little that training ends, at the leading party; False elsewhere."""
        bound = self.shortest(self.layout.learning_rate)
        length = self._in_turns(step, self.other.pair.length(change))
        length = length - self.other.public(min(int(bound * 4.0**COEFFICIENT_BITS), 2**MOST_BITS))
        bits = self._in_turns(step, self.other.pair.negative(length, 64))
        if not self.leading:
            self.other.line.send(OpenedShare(bits.astype(np.uint64)), epoch=self.epoch_of(step))
            return False
        answer = int(bits[0]) ^ int(self._opened_by(self.other.line, 1, self.epoch_of(step))[0])
        if answer > 1:
            raise ProtocolError(
                f"Expected {self.other.line.peer} to help find out whether training ends, but what it says is no "
                "answer. Check that both parties run the same version."
            )
        return bool(answer)

    def _truncated(self, step: int, share: Share, bits: int) -> Share:
        """This party's share of shared values divided by a power of two, rounded at random to either neighbour."""
        found = self._in_turns(step, self.other.pair.shifted(share.ravel(), bits)) + self.other.public(1)
        return np.asarray(found).reshape(share.shape)

    def _in_turns(self, step: int, turns: Turns[T]) -> T:
        return self.other.take(step, self.epoch_of(step), turns)

    def _decrypted(self, step: int, line: Channel, block: int, n_values: int) -> Share:
        assert self.key is not None
        size = self.key.public.masked_size(n_values, block)
        return self.key.decrypt(self._masked_product(step, line, size), block, n_values)

    def _masked_product(self, step: int, line: Channel, size: int) -> Data:
        assert self.key is not None
        return self.received(line, MaskedProduct, step, self.key.public, size)


def _word(value: int) -> np.uint64:
    return np.uint64(value % 2**64)
