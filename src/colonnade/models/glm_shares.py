"""The sides of a generalised linear model without an arbiter: everything is shared until the coefficients are opened.

    matrix holder                  computing party                 other computing party
         Columns ──────────────────────▶                                                    once, to the label party
         ◀─────────────────────── Layout                                                    once, to all
         ◀──────────────────── SharesKey                                                    once, from both, to all
         ◀───────────────── SharedVector                                                    from each, to all
         MaskedProduct ────────────────▶                                                    from all, to each
                                    Operands ────────────────────────▶                      per product of shares,
                                    ◀─────────────────── MaskedProduct                      and per truncation
         ◀────────────────────── Opening                                                    at the end, from both

The label party and the first feature party compute: of every coefficient, score, residual and gradient each holds one
share modulo 2^64. All parties hold matrices, their own columns. A computing party sends its share of a vector encrypted
under its own key; a matrix holder multiplies its columns with it, adds a mask and a flood, and sends it back. Where the
holder computes too, less the mask is its share of the product; where it does not, the masks for the two cancel.

    scores       X_k theta_k, summed over parties        one round with all
    mean         linear: the scores; else a polynomial of degree 7 in them, by products of shares
    gradients    X_k' (mean - label)                     one round with all
    update       local, with public factors

Before the end nobody learns anything: what a party decrypts is uniform. At the end each party learns its own
coefficients. The two computing parties must not work together: their shares are the coefficients, scores and residuals.
Semi-honest, unreviewed. Mohassel and Zhang 2017 (SecureML) for training on shares; products are those of
`colonnade.crypto.rlwe` and `colonnade.crypto.products`, truncation that of `colonnade.crypto.shares`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import TYPE_CHECKING, Any

import numpy as np

from colonnade.crypto import products, rlwe
from colonnade.crypto.fixedpoint import MOST_ROWS, encoded
from colonnade.crypto.profiles import DISTANCE_BITS, SHARES, Budget
from colonnade.crypto.rlwe import PublicKey, SecretKey
from colonnade.crypto.sampling import Stream
from colonnade.crypto.shares import Share, fixed, low_half, raised, reals, truncated
from colonnade.errors import Overflow, ProtocolError
from colonnade.models.glm_arbiter import Columns, Side, accepted, largest_eigenvalue, require_step
from colonnade.party import Party
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.wire.channel import Channel
from colonnade.wire.message import Ciphertexts, Float64Array, Int64Array, Message, UInt8Array, UInt64Array

if TYPE_CHECKING:
    from colonnade.models.glm import GeneralisedLinearModel

# Bits behind the point: of columns, of coefficients, of everything in between.
COLUMN_BITS, COEFFICIENT_BITS, VALUE_BITS = 12, 24, 20
FACTOR_BITS = 16
MOST_COLUMN_BITS = 16
HIDDEN = (SHARES.name, "mask", "flood")


@dataclass(frozen=True)
class Layout(Message, kind="glm/layout", reveals={Secret.FEATURES, Secret.LABELS}):
    """How many columns each party has, in the order of the roles, and how steps are taken.

    Attributes:
        counts: The columns of each party, the intercept included.
        scale: The power of two that linear regression divides labels by.
        curvature: How strongly the loss bends at most; for Poisson regression the mean of the labels.
        learning_rate: The length of a step.
        weights: The weight of each row, if rows are weighted.
    """

    counts: Int64Array
    scale: float
    curvature: float
    learning_rate: float
    weights: Float64Array


@dataclass(frozen=True)
class SharesKey(Message, kind="glm/shares-key", fresh=True):
    """A computing party's public key."""

    key: UInt8Array


@dataclass(frozen=True)
class SharedVector(Message, kind="glm/shared-vector", fresh=True):
    """A computing party's share of a vector, under its own key."""

    step: int
    vector: Ciphertexts


@dataclass(frozen=True)
class MaskedProduct(Message, kind="glm/masked-product", fresh=True):
    """A product with a private matrix or vector, under the receiver's key, masked and flooded."""

    step: int
    product: Ciphertexts


@dataclass(frozen=True)
class Operands(Message, kind="glm/operands", fresh=True):
    """Shares to be multiplied number by number, under the sender's key."""

    step: int
    shares: Ciphertexts


@dataclass(frozen=True)
class Opening(Message, kind="glm/opening", reveals={Secret.FEATURES, Secret.LABELS}, fresh=True):
    """A share of the receiver's own coefficients, at the end."""

    share: UInt64Array


class MatrixSide(Side):
    """A party whose columns enter into products with shares that others hold."""

    def __init__(self, model: GeneralisedLinearModel, party: Party, matrix: Float64Array) -> None:
        super().__init__(model, party)
        if len(matrix) > MOST_ROWS:
            raise Overflow(
                f"{party.name} has {len(matrix)} rows, but shares are multiplied for at most {MOST_ROWS}. Use fewer."
            )
        self.batches = model.batches(party)
        self.n_batches = len(self.batches)
        holders = party.roles.holders
        self.place, self.computing = holders.index(party.name), holders[:2]
        self.layout = self._agreed(matrix)
        weights = self.layout.weights
        what = f"{party.name}'s columns"
        self.columns = encoded(matrix, COLUMN_BITS, MOST_COLUMN_BITS, what)
        weighted = matrix * weights[:, None] if len(weights) else matrix
        self.gradient_columns = encoded(weighted, COLUMN_BITS, MOST_COLUMN_BITS, what)
        self._require_hidden()
        self.prepared: dict[tuple[str, int], Any] = {}
        self.keys: dict[str, PublicKey] = {}
        self.budgets = {name: Budget(SHARES, peer=name) for name in self.computing}
        self.most_columns = int(self.layout.counts.max())

    def begin(self) -> None:
        """Learn the keys of the computing parties."""
        for line in self._computing_peers():
            self.keys[line.peer] = PublicKey.from_bytes(line.receive(SharesKey).key.tobytes(), SHARES)

    def train(self, step: int) -> dict[str, float]:
        """Do one step; returns figures to be shown."""
        batch = step % self.n_batches
        self.answer(step, "scores", batch)
        self.answer(step, "gradients", batch)
        return {}

    def answer(self, step: int, what: str, batch: int) -> Share:
        """Multiply the own columns with every other computing party's share; returns the own share of the products."""
        rows = self.batches[batch]
        n_rows, n_values = len(self.columns[0]), len(rows)
        if what == "gradients":
            n_rows, n_values = n_values, n_rows
        own = np.zeros(n_values, np.uint64)
        masks = None
        for line in self._computing_peers():
            key, block = self.keys[line.peer], self._block(what, len(rows), n_rows)
            message = line.receive(SharedVector, epoch=self.epoch_of(step))
            require_step(message, step, line.peer)
            data = accepted(message.vector, key, key.vector_size(n_rows, block), line.peer)
            sums = key.product(self._prepared(what, batch, key, block), data)
            # Masks for the two computing parties cancel where this party keeps no share.
            chosen = None if masks is None else np.uint64(0) - masks
            masked, masks = key.masked(sums, block, n_values, chosen)
            self.budgets[line.peer].spend(len(masked) * key.coefficients)
            product = MaskedProduct(step, Ciphertexts(key.scheme, key.fingerprint, masked))
            line.send(product, under=HIDDEN, epoch=self.epoch_of(step))
            own -= masks
        return own

    def ends_after(self, epoch: int) -> bool:
        """Close an epoch; training goes on to its last, since nobody sees a loss."""
        return False

    def state(self) -> Tree:
        """All that the next step depends on."""
        return {"spent": {name: budget.spent for name, budget in self.budgets.items()}}

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said."""
        for name, spent in tree["spent"].items():
            self.budgets[name].spent = spent

    def finish(self) -> None:
        """Put what was learned into the model."""
        first, second = (line.receive(Opening).share for line in self._computing_peers())
        self._keep(first + second)

    def _keep(self, opened: Share) -> None:
        coefficients = reals(np.asarray(opened, np.uint64), COEFFICIENT_BITS)
        self.model.coef_ = coefficients * self.layout.scale
        self.model.gradients_ = np.zeros((0, len(coefficients)))

    def _computing_peers(self) -> list[Channel]:
        return [self.party.peers[name] for name in self.computing if name != self.party.name]

    def _agreed(self, matrix: Float64Array) -> Layout:
        line = self.party.label_party
        line.send(Columns(matrix.shape[1], largest_eigenvalue(self.party.name, matrix)))
        layout = line.receive(Layout)
        holders = self.party.roles.holders
        fits = layout.counts.shape == (len(holders),) and layout.counts[self.place] == matrix.shape[1]
        if not fits or len(layout.weights) not in (0, len(matrix)):
            raise ProtocolError(
                f"Expected a layout for {len(holders)} parties and {len(matrix)} rows from {line.peer}, got another. "
                "Check that all parties run the same plan."
            )
        return layout

    def _block(self, what: str, batch_size: int, n_rows: int) -> int:
        if what == "scores":
            return rlwe.rows_per_block(n_rows, batch_size)
        return rlwe.rows_per_block(batch_size, self.most_columns)

    def _prepared(self, what: str, batch: int, key: PublicKey, block: int) -> Any:
        if (what, batch) in self.prepared:
            return self.prepared[what, batch]
        rows = self.batches[batch]
        matrix = self.columns[rows].T if what == "scores" else self.gradient_columns[rows]
        whole = 2 * self.columns.size
        prepared = key.prepare(np.ascontiguousarray(matrix), block, cached=rlwe.fits_cache(whole))
        if prepared.cached is not None:
            self.prepared[what, batch] = prepared
        return prepared

    def _require_hidden(self) -> None:
        for matrix in (self.columns.T, self.gradient_columns):
            wide = matrix.astype(np.float64)
            squares, totals = (wide**2).sum(axis=0).max(initial=0.0), np.abs(wide).sum(axis=0).max(initial=0.0)
            if SHARES.distance_bits(max(rlwe.noise(1, squares, totals), 1.0), SHARES.most_values) < DISTANCE_BITS:
                raise Overflow(
                    f"{self.party.name}'s columns are too large for their products to be hidden by a flood of "
                    f"{SHARES.flood_bits} bits. Standardise them or use fewer rows."
                )


class ComputingSide(MatrixSide):
    """One of the two parties that hold shares; the label party leads."""

    def __init__(self, model: GeneralisedLinearModel, party: Party, matrix: Float64Array) -> None:
        self.leading = party.holds_labels
        if self.leading:
            self.target = model.quadratic(party)
            self.labels = fixed(model.share_labels(party, self.target), VALUE_BITS, f"{party.name}'s labels")
        super().__init__(model, party, matrix)
        (self.other,) = (party.peers[name] for name in self.computing if name != party.name)
        counts = self.layout.counts
        self.parts = [slice(int(counts[:i].sum()), int(counts[: i + 1].sum())) for i in range(len(counts))]
        self.coefficients = np.zeros(int(counts.sum()), np.uint64)
        self.moves = np.zeros(int(counts.sum()), np.uint64)
        self.key: SecretKey | None = None

    def begin(self) -> None:
        """Make a key for this training, and learn the other's."""
        seed = self.party.once("shares key", lambda: Stream().raw(32))
        self.key = SecretKey(seed, SHARES)
        message = SharesKey(np.frombuffer(self.key.public.to_bytes(), np.uint8))
        for line in self.party.peers.values():
            line.send(message)
        super().begin()

    def train(self, step: int) -> dict[str, float]:
        """Do one step; returns figures to be shown."""
        batch, rows = step % self.n_batches, self.batches[step % self.n_batches]
        residuals = self._mean(step, self._scores(step, batch))
        if self.leading:
            residuals = residuals - self.labels[rows]
        gradients = self._gradients(step, batch, residuals)
        self._update(step, len(rows), gradients)
        return {}

    def state(self) -> Tree:
        """All that the next step depends on."""
        return {**super().state(), "coefficients": self.coefficients, "moves": self.moves}

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said."""
        super().restore(tree)
        self.coefficients, self.moves = tree["coefficients"], tree["moves"]

    def finish(self) -> None:
        """Open everybody's coefficients to their owner, and put the own ones into the model."""
        for name, part in zip(self.party.roles.holders, self.parts, strict=True):
            if name != self.party.name:
                self.party.peers[name].send(Opening(self.coefficients[part]))
        self._keep(self.coefficients[self.parts[self.place]] + self.other.receive(Opening).share)
        if self.leading:
            self.model.history_, self.model.centre_ = [], self.target.centre

    def _agreed(self, matrix: Float64Array) -> Layout:
        if not self.leading:
            return super()._agreed(matrix)
        columns = [line.receive(Columns) for line in self.party.feature_parties]
        weights = self.model.row_weights(self.party)
        own = largest_eigenvalue(self.party.name, matrix)
        bend = self.model.share_curvature(self.target) * float(weights.max(initial=1.0))
        bend *= own + sum(each.curvature for each in columns)
        rate = self.model.learning_rate or 1 / max(bend + self.model.penalty / len(matrix), 1e-12)
        counts = np.array([matrix.shape[1], *(each.count for each in columns)])
        factor = self.model.share_factor(self.target)
        layout = Layout(counts, self.target.scale, factor, rate, weights)
        for line in self.party.feature_parties:
            line.send(layout)
        return layout

    def _encrypted(self, share: Share, block: int) -> Ciphertexts:
        assert self.key is not None
        public = self.key.public
        return Ciphertexts(public.scheme, public.fingerprint, public.encrypt(share.view(np.int64), block))

    def _scores(self, step: int, batch: int) -> Share:
        """The own share of the joint scores of a batch."""
        rows, holders = self.batches[batch], self.party.roles.holders
        for name, part in zip(holders, self.parts, strict=True):
            if name != self.party.name:
                block = self._block("scores", len(rows), part.stop - part.start)
                vector = self._encrypted(self.coefficients[part], block)
                self.party.peers[name].send(SharedVector(step, vector), under=HIDDEN[:1], epoch=self.epoch_of(step))
        total = self.answer(step, "scores", batch)
        total += self.columns[rows].view(np.uint64) @ self.coefficients[self.parts[self.place]]
        for name, part in zip(holders, self.parts, strict=True):
            if name != self.party.name:
                block = self._block("scores", len(rows), part.stop - part.start)
                total += self._decrypted(step, self.party.peers[name], block, len(rows))
        return total

    def _gradients(self, step: int, batch: int, residuals: Share) -> Share:
        """The own share of everybody's gradients, one after the other."""
        rows, holders = self.batches[batch], self.party.roles.holders
        block = self._block("gradients", len(rows), 0)
        vector = SharedVector(step, self._encrypted(residuals, block))
        for name in holders:
            if name != self.party.name:
                self.party.peers[name].send(vector, under=HIDDEN[:1], epoch=self.epoch_of(step))
        gradients = np.zeros_like(self.coefficients)
        own = self.parts[self.place]
        gradients[own] = self.answer(step, "gradients", batch)
        gradients[own] += self.gradient_columns[rows].T.view(np.uint64) @ residuals
        for name, part in zip(holders, self.parts, strict=True):
            if name != self.party.name:
                gradients[part] = self._decrypted(step, self.party.peers[name], block, part.stop - part.start)
        return gradients

    def _update(self, step: int, batch_size: int, gradients: Share) -> None:
        """One step of momentum on shares: all factors are public."""
        model, layout = self.model, self.layout
        total = float(layout.weights.sum()) if len(layout.weights) else float(sum(map(len, self.batches)))
        places = ceil(log2(batch_size))
        means = self._truncated(step, gradients, places)
        bits = 2 * COEFFICIENT_BITS
        scale = layout.learning_rate * layout.curvature * self.n_batches / total * 2.0**places
        of_gradient = round(scale * 2.0 ** (bits - COLUMN_BITS - VALUE_BITS))
        penalty = np.full(len(gradients), round(layout.learning_rate * model.penalty / total * 2.0**COEFFICIENT_BITS))
        if model.intercept:
            penalty[self.parts[0].stop - 1] = 0
        moves = self.moves * _word(round(model.momentum * 2.0**COEFFICIENT_BITS)) + means * _word(of_gradient)
        moves = moves + self.coefficients * penalty.astype(np.int64).view(np.uint64)
        self.moves = self._truncated(step, moves, COEFFICIENT_BITS)
        self.coefficients = self.coefficients - self.moves

    def _mean(self, step: int, scores: Share) -> Share:
        """The own share of the link's inverse at shared scores."""
        places = COLUMN_BITS + COEFFICIENT_BITS - VALUE_BITS
        polynomial = self.model.family.polynomial
        if polynomial is None:
            return self._truncated(step, scores, places)
        # Scores over the range of the polynomial: between -1 and 1.
        w = self._truncated(step, scores, places + int(log2(polynomial.reach)))
        w2 = self._product(step, w, w)
        w3, w4 = self._product(step, w2, w), self._product(step, w2, w2)
        powers = [w, w2, w3]
        sides = []
        for c in (polynomial.coefficients[:4], polynomial.coefficients[4:]):
            total = np.zeros_like(w)
            for power, a in zip(powers, c[1:], strict=True):
                total += power * _word(round(float(a) * 2.0**VALUE_BITS))
            if self.leading:
                total += _word(round(float(c[0]) * 2.0 ** (2 * VALUE_BITS)))
            sides.append(total)
        low, high = np.split(self._truncated(step, np.concatenate(sides), VALUE_BITS), 2)
        return low + self._product(step, w4, high)

    def _product(self, step: int, x: Share, y: Share) -> Share:
        """The own share of the product of shared vectors, truncated."""
        if x is y:
            own, others = [x], [x + x]
        else:
            own, others = [x, y], [y, x]
        return self._truncated(step, x * y + self._crossed(step, own, others, products.WORDS), VALUE_BITS)

    def _crossed(self, step: int, leaders: list[Share], followers: list[Share], n_primes: int) -> Share:
        """The own share of the sum of products of the leading party's vectors with the following one's."""
        assert self.key is not None
        n_values = len(leaders[0])
        count = products.n_ciphertexts(n_values, n_primes)
        if self.leading:
            public = self.key.public
            data = products.encrypt(public, leaders, n_primes)
            encrypted = Operands(step, Ciphertexts(public.scheme, public.fingerprint, data))
            self.other.send(encrypted, under=HIDDEN[:1], epoch=self.epoch_of(step))
            message = self.other.receive(MaskedProduct, epoch=self.epoch_of(step))
            require_step(message, step, self.other.peer)
            answer = accepted(message.product, public, count, self.other.peer)
            return products.decrypt(self.key, answer, n_values, n_primes)
        key = self.keys[self.other.peer]
        operands = self.other.receive(Operands, epoch=self.epoch_of(step))
        require_step(operands, step, self.other.peer)
        data = accepted(operands.shares, key, len(followers) * count, self.other.peer)
        masked, own = products.multiply(key, data, followers, n_primes)
        self.budgets[self.other.peer].spend(len(masked) * key.coefficients)
        product = MaskedProduct(step, Ciphertexts(key.scheme, key.fingerprint, masked))
        self.other.send(product, under=HIDDEN, epoch=self.epoch_of(step))
        return own

    def _truncated(self, step: int, share: Share, bits: int) -> Share:
        """The own share of shared values divided by a power of two."""
        positive = raised(share, leading=self.leading)
        half = low_half(positive)
        unwrapped = self._crossed(step, [half], [half], products.BITS)
        return truncated(positive, unwrapped, bits, leading=self.leading)

    def _decrypted(self, step: int, line: Channel, block: int, n_values: int) -> Share:
        assert self.key is not None
        message = line.receive(MaskedProduct, epoch=self.epoch_of(step))
        require_step(message, step, line.peer)
        public = self.key.public
        data = accepted(message.product, public, public.masked_size(n_values, block), line.peer)
        return self.key.decrypt(data, block, n_values)


def _word(value: int) -> np.uint64:
    return np.uint64(value % 2**64)
