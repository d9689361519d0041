"""Training with an arbiter, which holds the keys: one step, all roles side by side; `estimator` draws the exchange.

Every family is a least-squares problem here. With pseudo-responses t and a curvature c the objective is

    c/2 sum_i w_i z_i^2 + penalty,      z = sum_k u_k - t,      u_k = X_k theta_k

which is exact for linear regression, and of second order for the others (`families`). A gradient is c X_k' W z: one
encrypted product for its owner. The loss is a sum over parties: each party multiplies its part of z with z. With two
parties these summands are L_A + L_AB/2 and L_B + L_AB/2.

Each party learns the gradient of its own coefficients at every step. These are sums of residuals over rows, and the
gradient of a level is a group sum of labels. From few rows a party could compute residuals (see colonnade.attacks), so
the label party tells the arbiter how many sums each party may open in a step, and the arbiter opens no others; both
refuse batches of at most `rows_per_column` rows per column, columns that earlier runs opened on these rows included
(`openings`). That each column has enough rows only its owner can check (`rare`). The label party learns the loss of
every epoch; feature parties and arbiter learn when training ended. The arbiter sees sums under uniform masks:
it learns how many there are. The arbiter must not work together with any party: together with the label party it could
read every score.

The arbiter opens the highest `gradient_bits` bits of a gradient. The lowest bits of a mask decide how its sum is
rounded, so a party derives these bits from its own randomness, all parties' inputs, the step and its coefficients: a
run that is taken up after a crash rounds as before, and a run with other inputs uses other masks. Where labels are to
be differentially private, the arbiter adds noise before it rounds, and the label party charges its ledger
(`gradient_privacy`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil, log2
from typing import Any

import numpy as np
from blake3 import blake3

from colonnade.crypto import paillier, rlwe
from colonnade.crypto.additive import (
    PRODUCT_BITS,
    SUM_BITS,
    Data,
    PublicKey,
    SecretKey,
    Widths,
    column_scales,
    encoded,
    unmasked,
)
from colonnade.crypto.profiles import ARBITER
from colonnade.crypto.sampling import Stream
from colonnade.errors import PrivacyError, ProtocolError
from colonnade.models.glm.gradient_privacy import GRADIENT_NOISE, UNIT, with_noise
from colonnade.models.glm.matrix import (
    Matrix,
    entries,
    largest,
    largest_eigenvalue,
    of_columns,
    squares,
    weighted,
    with_entries,
)
from colonnade.models.glm.messages import (
    COLUMN_BOUNDS,
    SCHEDULE_BOUNDS,
    ColumnSummary,
    ColumnToken,
    EncryptedLoss,
    EncryptedResiduals,
    EncryptedScores,
    MaskedSums,
    OpenableSums,
    OpenedSums,
    PublicKeyBytes,
    Schedule,
    StepOutline,
    StopVerdict,
)
from colonnade.models.glm.openings import (
    KEY_BYTES,
    Openings,
    RowSketch,
    column_digest,
    keyed,
    openable,
    own_key,
    require_rows,
    sums_token,
)
from colonnade.models.glm.sides import (
    ColumnSide,
    GradientDescent,
    LearnedRegression,
    RegressionSettings,
    RegressionSide,
    mean_weights,
    numeric_labels,
    of_length,
)
from colonnade.privacy.mechanisms import DiscreteGaussianMechanism
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.wire.channel import Channel
from colonnade.wire.message import Ciphertexts, Float64Array, Int64Array, UInt64Array, sealed, unsealed

SCHEMES: Mapping[str, Any] = {"rlwe": rlwe, "paillier": paillier}


class ArbiterSide(RegressionSide):
    """The arbiter: makes a key for each epoch, decrypts masked sums, learns only how many there are."""

    block: int
    key: SecretKey | None = None
    noise: DiscreteGaussianMechanism | None = None
    n_opened = 0

    def begin(self) -> None:
        schedule = self.party.label_party.receive(Schedule, within=SCHEDULE_BOUNDS)
        self.n_batches, self.block = schedule.n_batches, schedule.block
        self.lines = (self.party.label_party, *self.party.feature_parties)
        found = self.party.label_party.receive(OpenableSums)
        noisy, holders = self.settings.gradient_privacy is not None, self.party.roles.holders
        self.allowed, rows = openable(found, holders, self.party.label_party.peer, noisy=noisy)
        self.noise = DiscreteGaussianMechanism(found.sensitivity, Fraction(found.sigma)) if noisy else None
        openings = Openings.kept_by(self.party)
        for name, token in zip(found.parties, found.tokens, strict=True):
            openings.admit(name, token, self.allowed[name], rows, self.settings.rows_per_column)

    def train(self, step: int) -> dict[str, float]:
        if step % self.n_batches == 0:
            self.key = SCHEMES[self.settings.backend].SecretKey()
            assert self.key is not None
            for line in self.lines:
                key = PublicKeyBytes(np.frombuffer(self.key.public.to_bytes(), np.uint8))
                line.send(key, epoch=self.epoch_of(step))
        for line in self.lines:
            sums = self._decrypted(step, line, self.allowed[line.peer])
            if self.noise is not None and len(sums):
                sums = with_noise(sums, self.noise, self.party.random, step, line.peer)
            self._open(step, line, rounded(sums, self.settings.gradient_bits))
        return {}

    def ends_after(self, epoch: int) -> bool:
        step, line = (epoch + 1) * self.n_batches - 1, self.lines[0]
        self._open(step, line, self._decrypted(step, line, 1))
        return self.received_verdict(epoch)

    def _decrypted(self, step: int, line: Channel, allowed: int) -> UInt64Array:
        """The masked sums that a party asks for."""
        assert self.key is not None
        masked, public = line.receive(MaskedSums, fields={"step": step}, epoch=self.epoch_of(step)), self.key.public
        if masked.n_values != allowed:
            raise PrivacyError(
                f"{line.peer} may have {allowed} sums opened in step {step}, as {self.lines[0].peer} said, but asks "
                f"for {masked.n_values}. Distrust {line.peer}, or check that all parties run the same version."
            )
        size = public.masked_size(masked.n_values, self.block)
        data = unsealed(masked.ciphertexts, public, size, line.peer)
        # `decrypt` rounds: no noise of a decryption ever leaves the holder of the key.
        return self.key.decrypt(data, self.block, masked.n_values)

    def _open(self, step: int, line: Channel, sums: UInt64Array) -> None:
        line.send(OpenedSums(step, sums), under=("mask",), epoch=self.epoch_of(step))
        self.n_opened += len(sums)

    def state(self) -> Tree:
        return {"key": None if self.key is None else self.key.to_bytes(), "opened": self.n_opened}

    def restore(self, tree: Tree) -> None:
        self.key = None if tree["key"] is None else SCHEMES[self.settings.backend].SecretKey.from_bytes(tree["key"])
        self.n_opened = tree["opened"]

    def finish(self) -> LearnedRegression:
        return LearnedRegression(n_opened=self.n_opened)


def rounded(sums: UInt64Array, bits: int | None) -> UInt64Array:
    """Sums modulo 2^53, rounded to their `bits` highest bits; None keeps all.

    >>> rounded(np.array([2**52 + 3, 2**53 - 1], np.uint64), 10).tolist() == [2**52, 0]
    True
    """
    if bits is None or bits >= SUM_BITS:
        return sums
    lost = np.uint64(SUM_BITS - bits)
    half = np.uint64(1) << (lost - np.uint64(1))
    return np.asarray((sums + half) >> lost << lost) & np.uint64(2**SUM_BITS - 1)


class EncryptedSide(ColumnSide):
    """A party with columns: its coefficients, its encrypted products, its masks."""

    block: int
    descent: GradientDescent

    def __init__(self, settings: RegressionSettings, party: Party, matrix: Matrix) -> None:
        super().__init__(settings, party, matrix)
        self.matrix = matrix
        self.of_batch, self.of_all = Widths.of(max(map(len, self.batches))), Widths.of(self.n_rows)
        require_rows(party.name, self.n_columns, min(map(len, self.batches)), settings.rows_per_column)
        self.digest = column_digest(matrix, self.batches)
        # One key recognises columns over all runs; the other is this run's, however often the run is taken up.
        self.secret, self.run_secret = own_key(party), party.random.child("inputs").key
        self.key: PublicKey | None = None
        self.loss: Data | None = None
        self.squares, self.longest = np.zeros(0), 0.0
        self.budget = party.budget(ARBITER, party.arbiter.peer)

    def _set_up(self, outline: StepOutline) -> None:
        """Quantise the columns and set up the descent, both by what the parties have agreed on."""
        n_parties, weights = len(self.party.roles.holders), outline.weights
        self.range_bits = outline.range_bits
        # Sums over parties and over rows must fit: each party's part leaves room for the others' parts.
        self.part_bits = self.of_all.residual_bits - ceil(log2(n_parties))
        self.loss_bits = PRODUCT_BITS - ceil(log2(max(self.n_rows, 1))) - self.of_all.residual_bits
        self.loss_bits -= ceil(log2(n_parties))
        columns, noise = weighted(self.matrix, weights), self.settings.gradient_privacy
        self.scales = column_scales(largest(columns), self.of_batch.column_bits)
        if noise is not None:
            columns = noise.clipped(columns, intercept=self.has_intercept)
            self.scales = np.full(self.n_columns, noise.scale(self.of_batch.column_bits))
        places, self.is_zero = of_columns(columns, self.scales), largest(columns) == 0
        shifted = np.ldexp(entries(columns), places)
        # Cutting off makes no row longer than it was clipped to.
        whole = np.rint(shifted) if noise is None else np.trunc(shifted)
        self.integers = with_entries(columns, whole.astype(np.int64))
        if not len(weights):
            # Scores are taken of the same columns as gradients, to the last bit.
            self.matrix = with_entries(columns, np.ldexp(entries(self.integers).astype(np.float64), -places))
        self.weights, self.squares = weights, squares(self.matrix, axis=1)
        penalised = np.ones(self.n_columns)
        if self.has_intercept:
            penalised[-1] = 0
        self.descent = GradientDescent(
            penalised=penalised,
            penalty=self.shrinkage(weights),
            factor=outline.curvature * self.n_batches / self.total(weights),
            learning_rate=outline.learning_rate,
            momentum=self.settings.momentum,
        )
        self.label_scale, self.inputs = outline.scale, outline.inputs

    @property
    def has_intercept(self) -> bool:
        """Whether the last column is the intercept."""
        return self.party.holds_labels and self.settings.fit_intercept

    def train(self, step: int) -> dict[str, float]:
        epoch, batch = divmod(step, self.n_batches)
        if batch == 0:
            key = self.party.arbiter.receive(PublicKeyBytes, epoch=epoch).key.tobytes()
            self.key = SCHEMES[self.settings.backend].PublicKey.from_bytes(key)
            self.loss = None
        assert self.key is not None
        rows = self.batches[batch]
        part = self.part(rows)
        what = f"{self.party.name}'s scores"
        own = encoded(part, self.part_bits - self.range_bits, self.part_bits, what)
        residuals = self.exchanged(step, rows, self.key.encrypt(own, self.block))
        self._add_to_loss(rows, part, residuals)
        gradient = self._gradient(step, batch, residuals)
        self._require_usual(epoch, rows, gradient)
        self.descent.step(gradient)
        return {}

    @abstractmethod
    def part(self, rows: Int64Array) -> Float64Array:
        """This party's part of the residuals of some rows."""

    @abstractmethod
    def exchanged(self, step: int, rows: Int64Array, own: Data) -> Data:
        """Encrypted residuals of a batch, from all parties' parts."""

    def ciphertexts(self, data: Data) -> Ciphertexts:
        """Ciphertexts that say which key they belong to."""
        assert self.key is not None
        return sealed(data, self.key)

    def opened(self, step: int, data: Data, n_values: int, chosen: UInt64Array | None = None) -> Int64Array:
        """Sums that the arbiter decrypts without seeing them, under masks that may be chosen."""
        assert self.key is not None
        line, epoch = self.party.arbiter, self.epoch_of(step)
        masked, masks = self.key.masked(data, self.block, n_values, chosen)
        self.budget.spend(len(masked) * self.key.coefficients)
        message = MaskedSums(step, self.ciphertexts(masked), n_values)
        line.send(message, under=(self.key.scheme, "mask", "flood"), epoch=epoch)
        answer = line.receive(OpenedSums, fields={"step": step}, epoch=epoch)
        return unmasked(of_length(answer.sums, n_values, f"opened sums of step {step}", line.peer), masks)

    def _gradient(self, step: int, batch: int, residuals: Data) -> Float64Array:
        assert self.key is not None
        rows, n_entries = self.batches[batch], self.n_rows * self.n_columns
        prepared = self.prepared(self.key, batch, lambda: self.integers[rows], self.block, n_entries)
        product = self.key.product(prepared, residuals)
        sums = self.opened(step, product, self.n_columns, self._masks(step))
        # The sum of a column of zeros is 0, however the arbiter rounds it.
        sums = np.where(self.is_zero, 0, sums)
        return np.ldexp(sums.astype(np.float64), -self.scales - (self.part_bits - self.range_bits))

    def _masks(self, step: int) -> UInt64Array:
        """Masks of a gradient, fresh but for the bits by which the arbiter rounds."""
        masks = Stream().words(self.n_columns) >> np.uint64(64 - SUM_BITS)
        lost = SUM_BITS - (self.settings.gradient_bits or SUM_BITS)
        place = blake3(self.inputs + self.descent.coefficients.tobytes()).hexdigest()
        low = self.party.random.child("rounding", step, place).uniform_bits(self.n_columns)
        keep = np.uint64(2**lost - 1)
        return np.asarray((masks & ~keep) | (low & keep))

    def _add_to_loss(self, rows: Int64Array, part: Float64Array, residuals: Data) -> None:
        assert self.key is not None
        weighted = part * self.weights[rows] if len(self.weights) else part
        what = f"{self.party.name}'s scores"
        column = encoded(weighted, self.loss_bits - self.range_bits, self.loss_bits, what)[:, None]
        product = self.key.product(self.key.prepare(column, self.block), residuals)
        self.loss = product if self.loss is None else self.key.add(self.loss, product)

    def _require_usual(self, epoch: int, rows: Int64Array, gradient: Float64Array) -> None:
        """Raise the alarm if a gradient is longer than any honest gradient is."""
        length = float(np.sqrt((gradient**2).sum()))
        if epoch == 0:
            self.longest = max(self.longest, length)
        # Residuals of noise, one unit each, would give gradients as long as the columns.
        usual, alarm = max(self.longest, float(np.sqrt(self.squares[rows].sum()))), self.settings.alarm
        if alarm is not None and epoch and not length <= alarm * usual:
            raise ProtocolError(
                f"{self.party.name}'s gradients should stay within those of the first epoch, but one is more than "
                f"{alarm:g} times as long in epoch {epoch}. A party sends faked inputs, or the learning rate is too "
                "high. Distrust the run, or lower learning_rate."
            )

    def state(self) -> Tree:
        return {
            "descent": self.descent.state(),
            "key": None if self.key is None else self.key.to_bytes(),
            "loss": self.loss,
            "longest": self.longest,
        }

    def restore(self, tree: Tree) -> None:
        self.descent.restore(tree["descent"])
        self.key = None if tree["key"] is None else SCHEMES[self.settings.backend].PublicKey.from_bytes(tree["key"])
        self.loss, self.longest = tree["loss"], tree["longest"]

    def finish(self) -> LearnedRegression:
        gradients = np.array(self.descent.gradients).reshape(-1, self.n_columns)
        return LearnedRegression(self.descent.coefficients * self.label_scale, gradients)


class EncryptedFeatureSide(EncryptedSide):
    """A party with columns and without labels."""

    def begin(self) -> None:
        line = self.party.label_party
        line.send(ColumnSummary(self.n_columns, largest_eigenvalue(self.party.name, self.matrix)))
        line.send(ColumnToken(keyed(self.digest, self.secret), keyed(self.digest, self.run_secret)))
        schedule = line.receive(Schedule, fields={"n_batches": self.n_batches}, within=SCHEDULE_BOUNDS)
        outline = line.receive(StepOutline, finite=True)
        if len(outline.weights):
            of_length(outline.weights, self.n_rows, "weights of rows", line.peer)
        self.block = schedule.block
        self._set_up(outline)

    def part(self, rows: Int64Array) -> Float64Array:
        return np.asarray(self.matrix[rows] @ self.descent.point)

    def exchanged(self, step: int, rows: Int64Array, own: Data) -> Data:
        assert self.key is not None
        line, epoch = self.party.label_party, self.epoch_of(step)
        line.send(EncryptedScores(step, self.ciphertexts(own)), under=(self.key.scheme,), rows=rows, epoch=epoch)
        return self.received(line, EncryptedResiduals, step, self.key, len(own), rows)

    def ends_after(self, epoch: int) -> bool:
        assert self.key is not None
        assert self.loss is not None
        step = (epoch + 1) * self.n_batches - 1
        loss = EncryptedLoss(step, self.ciphertexts(self.key.refreshed(self.loss)))
        self.party.label_party.send(loss, under=(self.key.scheme,), epoch=epoch)
        return self.received_verdict(epoch)


class EncryptedLabelSide(EncryptedSide):
    """The party with labels: adds up all parties' parts, sees the loss, says when training ends."""

    def __init__(self, settings: RegressionSettings, party: Party, matrix: Matrix) -> None:
        super().__init__(settings, party, matrix)
        self.target = settings.family.quadratic(numeric_labels(party, settings.family))
        self.history: list[dict[str, float]] = []
        self.mechanism: DiscreteGaussianMechanism | None = None
        self.has_charged = False

    def begin(self) -> None:
        party = self.party
        weights = mean_weights(party, self.settings.sample_weight)
        columns = [line.receive(ColumnSummary, within=COLUMN_BOUNDS) for line in party.feature_parties]
        tokens = [line.receive(ColumnToken) for line in party.feature_parties]
        range_bits = max(5, ceil(log2(float(np.abs(self.target.values).max(initial=1.0)))) + 2)
        self.mechanism = self._mechanism(range_bits)
        limits = self._admitted([each.count for each in columns], tokens, weights)
        wide = max([self.n_columns, *(each.count for each in columns)])
        self.block = SCHEMES[self.settings.backend].rows_per_block(max(map(len, self.batches)), wide)
        eigenvalues = largest_eigenvalue(party.name, self.matrix) + sum(each.curvature for each in columns)
        rate = self.rate(self.target.curvature, weights, eigenvalues)
        schedule = Schedule(self.n_batches, self.block)
        inputs = self._inputs([each.run_token for each in tokens], weights)
        outline = StepOutline(self.target.scale, self.target.curvature, rate, weights, range_bits, inputs)
        party.arbiter.send(schedule)
        party.arbiter.send(limits)
        for line in party.feature_parties:
            line.send(schedule)
            line.send(outline, under=self._noise)
        self._set_up(outline)

    def _admitted(self, counts: list[int], found: list[ColumnToken], weights: Float64Array) -> OpenableSums:
        """What the arbiter may open: the columns of all parties, if these rows allow as many."""
        party, openings = self.party, Openings.kept_by(self.party)
        rows = RowSketch.of(party.own_table, self.batches, self.secret)
        said = weights, self.target.values
        tokens = [sums_token(keyed(self.digest, self.secret), *said, self.secret)]
        for line, count, each in zip(party.feature_parties, counts, found, strict=True):
            if not len(each.token) == len(each.run_token) == KEY_BYTES or count < 1:
                raise ProtocolError(
                    f"Expected from {line.peer} at least 1 column and tokens of {KEY_BYTES} bytes, got {count} and "
                    f"{len(each.token)} and {len(each.run_token)}. Check that all parties run the same version."
                )
            token = sums_token(each.token, *said, self.secret)
            openings.admit(line.peer, token, count, rows, self.settings.rows_per_column)
            tokens.append(token)
        numbers = np.array([self.n_columns, *counts], np.int64)
        noise = (0, 0.0) if self.mechanism is None else (self.mechanism.sensitivity, float(self.mechanism.sigma))
        return OpenableSums(
            list(party.roles.holders), numbers, tokens, rows.n_rows, rows.batch_rows, rows.hashes, *noise
        )

    def _inputs(self, run_tokens: list[bytes], weights: Float64Array) -> bytes:
        own = (self.digest, self.target.values.tobytes(), weights.tobytes())
        return keyed(b"".join((*run_tokens, *own)), self.run_secret)

    def _mechanism(self, range_bits: int) -> DiscreteGaussianMechanism | None:
        """The noise of each step, where gradients have noise."""
        noise, n_parties = self.settings.gradient_privacy, len(self.party.roles.holders)
        if noise is None:
            return None
        return noise.mechanism(
            scale=noise.scale(self.of_batch.column_bits),
            fraction=self.of_all.residual_bits - ceil(log2(n_parties)) - range_bits,
            n_parties=n_parties,
            epochs=self.settings.max_iter,
        )

    @property
    def _noise(self) -> tuple[str, ...]:
        """What protects labels in messages of this party, besides encryption."""
        return () if self.mechanism is None else (GRADIENT_NOISE,)

    def _charge(self, step: int) -> None:
        """Charge the ledger for the noisy gradients of an epoch, and again for steps that come again after a crash."""
        if self.mechanism is not None and (step % self.n_batches == 0 or not self.has_charged):
            self.party.ledger.spend(self.mechanism.event(Secret.LABELS, UNIT, by=GRADIENT_NOISE))
            self.has_charged = True

    def train(self, step: int) -> dict[str, float]:
        self._charge(step)
        super().train(step)
        return {"loss": self.history[-1]["loss"]} if self.history else {}

    def part(self, rows: Int64Array) -> Float64Array:
        return np.asarray(self.matrix[rows] @ self.descent.point - self.target.values[rows])

    def exchanged(self, step: int, rows: Int64Array, own: Data) -> Data:
        assert self.key is not None
        total = own
        for line in self.party.feature_parties:
            total = self.key.add(total, self.received(line, EncryptedScores, step, self.key, len(own), rows))
        message = EncryptedResiduals(step, self.ciphertexts(total))
        for line in self.party.feature_parties:
            line.send(message, under=(self.key.scheme, *self._noise), rows=rows, epoch=self.epoch_of(step))
        return total

    def ends_after(self, epoch: int) -> bool:
        assert self.key is not None
        assert self.loss is not None
        step, total = (epoch + 1) * self.n_batches - 1, self.loss
        for line in self.party.feature_parties:
            total = self.key.add(total, self.received(line, EncryptedLoss, step, self.key, 1))
        (opened,) = self.opened(step, total, 1)
        squares = float(np.ldexp(float(opened), -(self.loss_bits + self.part_bits - 2 * self.range_bits)))
        loss = self.target.loss(squares, self.n_rows)
        stop = self._stands_still(loss)
        self.history.append({"epoch": epoch, "loss": loss})
        verdict = StopVerdict(epoch, int(stop))
        for line in (*self.party.feature_parties, self.party.arbiter):
            line.send(verdict, under=self._noise, epoch=epoch)
        return stop

    def _stands_still(self, loss: float) -> bool:
        """Whether the loss changes by less than `tol`; raises the alarm if it is larger than any honest loss is."""
        if not self.history:
            return False
        first, last, alarm = self.history[0]["loss"], self.history[-1]["loss"], self.settings.alarm
        if alarm is not None and not loss <= first + (alarm - 1) * max(abs(first), 1e-9):
            raise ProtocolError(
                f"The mean loss should fall below that of the first epoch, but is {alarm:g} times as large or more. "
                "A party sends faked inputs, or the learning rate is too high. Distrust the run, or lower "
                "learning_rate."
            )
        return abs(last - loss) < self.settings.tol

    def state(self) -> Tree:
        return {**super().state(), "history": self.history}

    def restore(self, tree: Tree) -> None:
        super().restore(tree)
        self.history = tree["history"]

    def finish(self) -> LearnedRegression:
        return replace(super().finish(), centre=self.target.centre, history=self.history)
