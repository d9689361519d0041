"""Training with an arbiter, which holds the keys: one step, all roles side by side; `estimator` draws the exchange.

    scores       u_k = X_k theta_k at each party; feature parties share theirs between label party and arbiter
    mean         linear: the scores; else looked up by label party and arbiter on shares (`means`)
    residuals    mean - label: the arbiter encrypts its share under its own key, the label party adds its own
    gradients    X_k' residuals: one encrypted product for its owner, masked; the arbiter opens it under the mask
    update       each party its own coefficients, in the basis that whitens its own columns

Each party learns the gradient of its own coefficients at every step. These are sums of residuals over rows, and the
gradient of a level is a group sum of labels. From few rows a party could compute residuals (see colonnade.attacks), so
the label party tells the arbiter how many sums each party may open in a step, and the arbiter opens no others; both
refuse batches of at most `rows_per_column` rows per column, columns that earlier runs opened on these rows included
(`openings`). That each column has enough rows only its owner can check (`rare`). After each epoch the label party
learns one bit from each feature party, whether its coefficients stand still; feature parties and arbiter learn when
training ended. The arbiter sees uniform shares of scores and sums under uniform masks: it learns how many there are.
The arbiter must not work together with any party: together with the label party it could read every score.

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
from functools import reduce
from math import ceil, log2
from typing import Any

import numpy as np
from blake3 import blake3

from colonnade.crypto import paillier, rlwe
from colonnade.crypto.additive import (
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
from colonnade.crypto.shares import Share, fixed
from colonnade.errors import Overflow, PrivacyError, ProtocolError
from colonnade.models.glm.approximation import Approximation
from colonnade.models.glm.families import of_all_classes
from colonnade.models.glm.gradient_privacy import GRADIENT_NOISE, UNIT, with_noise
from colonnade.models.glm.means import MOST_SCORE, PairedLine
from colonnade.models.glm.messages import (
    COLUMN_BOUNDS,
    SCHEDULE_BOUNDS,
    ColumnSummary,
    ColumnToken,
    EncryptedMeans,
    EncryptedResiduals,
    MaskedSums,
    OpenableSums,
    OpenedSums,
    PublicKeyBytes,
    Schedule,
    ScoreShare,
    StepOutline,
    StillVote,
)
from colonnade.models.glm.openings import (
    KEY_BYTES,
    Openings,
    RowSketch,
    keyed,
    openable,
    own_key,
    require_rows,
    sums_token,
)
from colonnade.models.glm.rows import (
    BatchedRows,
    basis_of,
    column_digest,
    largest_entries,
    matrix_of,
    prepared_for,
    product_of,
    quantised,
    scores_of,
    sum_of_squares,
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
from colonnade.tables.encode import Design
from colonnade.tables.table import Table
from colonnade.wire.channel import Channel
from colonnade.wire.message import Ciphertexts, Float64Array, Int64Array, UInt64Array, sealed, unsealed

SCHEMES: Mapping[str, Any] = {"rlwe": rlwe, "paillier": paillier}


SCORE_BITS = 20
"""How many bits scores have behind the point where means are looked up; those of residuals where there is no table."""


class Scores:
    """Shared scores of a batch: how many bits they have, and what becomes of them."""

    def __init__(self, settings: RegressionSettings, fraction: int, line: PairedLine | None = None) -> None:
        self.family, self.table, self.fraction, self.line = settings.family, settings.family.table, fraction, line
        self.bits = fraction if self.table is None else SCORE_BITS

    def most_bits(self, residual_bits: int, n_parties: int) -> int:
        """How many bits the scores of one party may have, so that the sum over all parties fits."""
        whole = residual_bits if self.table is None else SCORE_BITS + int(log2(MOST_SCORE))
        return whole - ceil(log2(n_parties))

    def approximation(self, n_outputs: int, n_parties: int, own_score: float = 0.0) -> Approximation:
        """How far means are from the exact ones, where each party rounds its own part of a score."""
        score_off = n_parties * 2.0 ** -(self.bits + 1)
        return Approximation.of(
            self.family, n_outputs, score_off=score_off, mean_bits=self.fraction, own_score=own_score
        )

    def begin(self) -> None:
        """Begin to compute with the other of label party and arbiter."""
        assert self.line is not None
        self.line.take(0, 0, self.line.pair.begin())

    def means(self, step: int, epoch: int, scores: Share) -> Share:
        """This party's share of the link's inverse at shared scores (models, rows)."""
        if self.table is None:
            return scores
        assert self.line is not None
        return self.line.means(step, epoch, self.table, scores, self.bits, self.fraction)


class ArbiterSide(RegressionSide):
    """The arbiter: makes a key for each epoch, helps look up means, decrypts masked sums; learns how many there are."""

    block: int
    key: SecretKey | None = None
    noise: DiscreteGaussianMechanism | None = None
    n_opened = 0

    def begin(self) -> None:
        schedule = self.party.label_party.receive(Schedule, within=SCHEDULE_BOUNDS)
        self.n_batches, self.block, self.n_outputs = schedule.n_batches, schedule.block, schedule.n_outputs
        self.lines = (self.party.label_party, *self.party.feature_parties)
        found = self.party.label_party.receive(OpenableSums)
        noisy, holders = self.settings.gradient_privacy is not None, self.party.roles.holders
        self.allowed, rows = openable(found, holders, self.party.label_party.peer, noisy=noisy)
        self.noise = DiscreteGaussianMechanism(found.sensitivity, Fraction(found.sigma)) if noisy else None
        openings = Openings.kept_by(self.party)
        for name, token in zip(found.parties, found.tokens, strict=True):
            openings.admit(name, token, self.allowed[name], rows, self.settings.rows_per_column)
        self.scores = Scores(self.settings, schedule.fraction, PairedLine(self.lines[0], leading=False))
        self.scores.begin()

    def train(self, step: int) -> None:
        epoch = self.epoch_of(step)
        if step % self.n_batches == 0:
            self.key = SCHEMES[self.settings.backend].SecretKey()
            assert self.key is not None
            for line in self.lines:
                line.send(PublicKeyBytes(np.frombuffer(self.key.public.to_bytes(), np.uint8)), epoch=epoch)
        self._encrypt_means(step, self.scores.means(step, epoch, self._score_shares(step)))
        for line in self.lines:
            for _ in range(self.n_outputs):
                sums = self._decrypted(step, line)
                if self.noise is not None and len(sums):
                    sums = with_noise(sums, self.noise, self.party.random, step, line.peer)
                self._open(step, line, rounded(sums, self.settings.gradient_bits))

    def _score_shares(self, step: int) -> Share:
        """This party's share of the sum of all feature parties' scores (models, rows)."""
        epoch = self.epoch_of(step)
        first, *others = (line.receive(ScoreShare, fields={"step": step}, epoch=epoch).words for line in self.lines[1:])
        if first.ndim != 1 or not len(first) or len(first) % self.n_outputs:
            raise ProtocolError(
                f"Expected scores of {self.n_outputs} models for some rows from {self.lines[1].peer}, got an array of "
                f"shape {first.shape}. Check that all parties run the same plan."
            )
        for line, words in zip(self.lines[2:], others, strict=True):
            first = first + of_length(words, len(first), "shares of scores", line.peer)
        return first.reshape(self.n_outputs, -1)

    def _encrypt_means(self, step: int, means: Share) -> None:
        assert self.key is not None
        public, line = self.key.public, self.lines[0]
        for some in means:
            data = public.encrypt(unmasked(some, np.zeros_like(some)), self.block)
            message = EncryptedMeans(step, sealed(data, public))
            line.send(message, under=(public.scheme,), epoch=self.epoch_of(step))

    def stands_still(self, epoch: int) -> bool:
        return self.received_verdict(epoch)

    def _decrypted(self, step: int, line: Channel) -> UInt64Array:
        """The masked sums of one gradient that a party asks for."""
        assert self.key is not None
        masked, public = line.receive(MaskedSums, fields={"step": step}, epoch=self.epoch_of(step)), self.key.public
        allowed = self.allowed[line.peer] // self.n_outputs
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
        return {**super().state(), "key": None if self.key is None else self.key.to_bytes(), "n_opened": self.n_opened}

    def restore(self, tree: Tree) -> None:
        key = tree["key"]
        super().restore(
            tree | {"key": None if key is None else SCHEMES[self.settings.backend].SecretKey.from_bytes(key)}
        )

    def finish(self) -> LearnedRegression:
        approximation = self.scores.approximation(self.n_outputs, len(self.party.roles.holders))
        nothing = of_all_classes(np.zeros((self.n_outputs, 0)))
        return LearnedRegression(approximation, nothing, n_opened=self.n_opened)


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

    def __init__(self, settings: RegressionSettings, party: Party, design: Design, tables: BatchedRows[Table]) -> None:
        super().__init__(settings, party, (len(party.own_table), len(design.names)))
        # Encrypted products sum over the rows of a batch, however many rows there are in all.
        self.widths = Widths.of(max(map(len, self.batches)))
        require_rows(party.name, self.n_columns, min(map(len, self.batches)), settings.rows_per_column)
        self.rows = tables.then(matrix_of, design)
        self.digest = column_digest(self.rows, (self.n_rows, self.n_columns), self.batches)
        # One key recognises columns over all runs; the other is this run's, however often the run is taken up.
        self.secret, self.run_secret = own_key(party), party.random.child("inputs").key
        # Noise on gradients would be stretched with the directions that whitening stretches.
        whiten = settings.gradient_privacy is None
        self.basis, self.eigenvalue = basis_of(party.name, self.rows, design, self.penalised, self.ridge, whiten=whiten)
        self.key: PublicKey | None = None
        self.prepared: BatchedRows[Any] | None = None
        self.longest = 0.0
        self.budget = party.budget(ARBITER, party.arbiter.peer)

    def _set_up(self, schedule: Schedule, outline: StepOutline) -> None:
        """Quantise the columns and set up the descent, both by what the parties have agreed on."""
        weights, smallest = outline.weights, min(map(len, self.batches))
        self.block, self.n_outputs, self.fraction = schedule.block, schedule.n_outputs, schedule.fraction
        require_rows(self.party.name, self.n_outputs * self.n_columns, smallest, self.settings.rows_per_column)
        noise = self.settings.gradient_privacy
        # Batches order the rows here, and weights come in the order of the table.
        ordered = weights[np.concatenate(self.batches)] if len(weights) else weights
        most = largest_entries(self.rows, ordered)
        self.scales, self.is_zero = column_scales(most, self.widths.column_bits), most == 0
        if noise is not None:
            self.scales = np.full(self.n_columns, noise.scale(self.widths.column_bits))
        self.columns = quantised(self.rows, ordered, self.scales, noise, intercept=self.has_intercept)
        self.squares = [sum(self.columns.of_batch(batch, sum_of_squares)) for batch in range(self.n_batches)]
        self.descent = GradientDescent(
            self.basis,
            self.penalised,
            n_outputs=self.n_outputs,
            penalty=self.shrinkage(weights),
            factor=outline.curvature * self.n_batches / self.total(weights),
            learning_rate=outline.learning_rate,
            momentum=self.settings.momentum,
            n_long_steps=self.n_long_steps,
        )
        self.label_scale, self.inputs, self.has_weights = outline.scale, outline.inputs, len(weights) > 0
        own_part = self.shortest(outline.learning_rate) / len(self.party.roles.holders)
        self.shortest_move = max(own_part, self._moved_by_rounding(outline))
        self.scores = self._shared_scores()

    def _shared_scores(self) -> Scores:
        return Scores(self.settings, self.fraction)

    def _moved_by_rounding(self, outline: StepOutline) -> float:
        """Twice the squared change of the coefficients in an epoch that the rounding of gradients makes by itself."""
        bits, momentum = self.settings.gradient_bits or SUM_BITS, self.settings.momentum
        units = np.ldexp(1.0, SUM_BITS - bits - self.scales - self.fraction)
        # A rounded number is off by a twelfth of the squared unit; steps add up as far as momentum carries them.
        off = self.basis.coefficients(np.diag(units) if self.basis.back.ndim else units) * self.descent.length_of_step
        carried = min(self.n_batches**2 / (1 - momentum**2), self.n_batches / (1 - momentum) ** 2)
        # The last class's coefficients are off by as much as those of all others together.
        outputs = 1 if self.n_outputs == 1 else 2 * self.n_outputs
        return float((off**2).sum() / 12 * outputs * carried * 2)

    def train(self, step: int) -> None:
        epoch, batch = divmod(step, self.n_batches)
        if batch == 0:
            key = self.party.arbiter.receive(PublicKeyBytes, epoch=epoch).key.tobytes()
            self.key = SCHEMES[self.settings.backend].PublicKey.from_bytes(key)
        rows = self.batches[batch]
        residuals = self.exchanged(step, rows, self._own_scores(batch))
        found = [self._gradient(step, batch, output, each) for output, each in enumerate(residuals)]
        gradient = np.stack(found, axis=1)
        self._require_usual(epoch, batch, gradient)
        self.descent.step(gradient)

    def own_part(self, batch: int) -> Float64Array:
        """This party's part of the scores of a batch, (rows, outputs)."""
        return np.concatenate(list(self.columns.of_batch(batch, scores_of, self.descent.point)))

    def _own_scores(self, batch: int) -> Share:
        """This party's part of the scores of a batch in fixed point, one model after the other."""
        scores, n_parties = self.scores, len(self.party.roles.holders)
        most = scores.most_bits(self.widths.residual_bits, n_parties)
        part = of_all_classes(self.own_part(batch).T)
        found = encoded(part.ravel(), scores.bits, most, f"{self.party.name}'s scores").view(np.uint64)
        # Scores of the last class must fit too, but nobody sends them.
        return found[: self.n_outputs * len(self.batches[batch])]

    @abstractmethod
    def exchanged(self, step: int, rows: Int64Array, own: Share) -> list[Data]:
        """Encrypted residuals of a batch for each output, from all parties' scores."""

    def ciphertexts(self, data: Data) -> Ciphertexts:
        """Ciphertexts that say which key they belong to."""
        assert self.key is not None
        return sealed(data, self.key)

    def opened(self, step: int, data: Data, n_values: int, chosen: UInt64Array) -> Int64Array:
        """Sums that the arbiter decrypts without seeing them, under masks that were chosen."""
        assert self.key is not None
        line, epoch = self.party.arbiter, self.epoch_of(step)
        masked, masks = self.key.masked(data, self.block, n_values, chosen)
        self.budget.spend(len(masked) * self.key.coefficients)
        message = MaskedSums(step, self.ciphertexts(masked), n_values)
        line.send(message, under=(self.key.scheme, "mask", "flood"), epoch=epoch)
        answer = line.receive(OpenedSums, fields={"step": step}, epoch=epoch)
        return unmasked(of_length(answer.sums, n_values, f"opened sums of step {step}", line.peer), masks)

    def _gradient(self, step: int, batch: int, output: int, residuals: Data) -> Float64Array:
        assert self.key is not None
        scheme, key = self.settings.backend, self.key.to_bytes()
        if self.prepared is None:
            cached = rlwe.fits_cache(self.n_rows * self.n_columns)
            self.prepared = self.columns.then(prepared_for, scheme, key, self.block, cached)
        # A partition begins where a block does.
        bounds = self.prepared.batch_bounds(batch)
        cut = (residuals[begin // self.block : -(-end // self.block)] for begin, end in bounds)
        products = self.prepared.of_batch(batch, product_of, scheme, key, per_part=cut)
        sums = self.opened(step, reduce(self.key.add, products), self.n_columns, self._masks(step, output))
        # The sum of a column of zeros is 0, however the arbiter rounds it.
        sums = np.where(self.is_zero, 0, sums)
        return np.ldexp(sums.astype(np.float64), -self.scales - self.fraction)

    def _masks(self, step: int, output: int) -> UInt64Array:
        """Masks of a gradient, fresh but for the bits by which the arbiter rounds."""
        masks = Stream().words(self.n_columns) >> np.uint64(64 - SUM_BITS)
        lost = SUM_BITS - (self.settings.gradient_bits or SUM_BITS)
        place = blake3(self.inputs + self.descent.coefficients.tobytes()).hexdigest()
        low = self.party.random.child("rounding", step, output, place).uniform_bits(self.n_columns)
        keep = np.uint64(2**lost - 1)
        return np.asarray((masks & ~keep) | (low & keep))

    def _require_usual(self, epoch: int, batch: int, gradient: Float64Array) -> None:
        """Raise the alarm if a gradient is longer than any honest gradient is."""
        length = float(np.sqrt((gradient**2).sum()))
        if epoch == 0:
            self.longest = max(self.longest, length)
        # Residuals of noise, one unit each, would give gradients as long as the columns.
        usual, alarm = max(self.longest, float(np.sqrt(self.squares[batch]))), self.settings.alarm
        if alarm is not None and epoch and not length <= alarm * usual:
            raise ProtocolError(
                f"{self.party.name}'s gradients should stay within those of the first epoch, but one is more than "
                f"{alarm:g} times as long in epoch {epoch}. A party sends faked inputs, or the learning rate is too "
                "high. Distrust the run, or lower learning_rate."
            )

    def is_still(self) -> bool:
        """Whether an epoch moved this party's coefficients by little enough for training to end."""
        return self.descent.moved() < self.shortest_move

    def state(self) -> Tree:
        key = None if self.key is None else self.key.to_bytes()
        return {**super().state(), "descent": self.descent.state(), "key": key, "longest": self.longest}

    def restore(self, tree: Tree) -> None:
        self.descent.restore(tree["descent"])
        key = None if tree["key"] is None else SCHEMES[self.settings.backend].PublicKey.from_bytes(tree["key"])
        super().restore(tree | {"descent": self.descent, "key": key})

    def finish(self) -> LearnedRegression:
        gradients = np.array(self.descent.gradients).reshape(
            len(self.descent.gradients), self.n_columns, self.n_outputs
        )
        coefficients = of_all_classes(self.descent.coefficients.T * self.label_scale)
        return LearnedRegression(
            self.scores.approximation(self.n_outputs, len(self.party.roles.holders), self._own_score_off()),
            coefficients,
            of_all_classes(gradients.transpose(2, 0, 1)).transpose(1, 0, 2),
        )

    def _own_score_off(self) -> float:
        """How far this party's part of a score is off at most, because its columns are rounded or cut off."""
        if self.has_weights:
            # Scores are then taken of the columns as they are.
            return 0.0
        off = np.ldexp(0.5 if self.settings.gradient_privacy is None else 1.0, -self.scales)
        return float((np.abs(of_all_classes(self.descent.coefficients.T)) @ off).max())


class EncryptedFeatureSide(EncryptedSide):
    """A party with columns and without labels."""

    def begin(self) -> None:
        line = self.party.label_party
        line.send(ColumnSummary(self.n_columns, self.eigenvalue))
        line.send(ColumnToken(keyed(self.digest, self.secret), keyed(self.digest, self.run_secret)))
        schedule = line.receive(Schedule, fields={"n_batches": self.n_batches}, within=SCHEDULE_BOUNDS)
        outline = line.receive(StepOutline, finite=True)
        if len(outline.weights):
            of_length(outline.weights, self.n_rows, "weights of rows", line.peer)
        self._set_up(schedule, outline)

    def exchanged(self, step: int, rows: Int64Array, own: Share) -> list[Data]:
        assert self.key is not None
        line, epoch, mask = self.party.label_party, self.epoch_of(step), Stream().words(len(own))
        self.party.arbiter.send(ScoreShare(step, own - mask), under=("mask",), epoch=epoch)
        line.send(ScoreShare(step, mask), under=("mask",), epoch=epoch)
        size = self.key.vector_size(len(rows), self.block)
        return [self.received(line, EncryptedResiduals, step, self.key, size, rows) for _ in range(self.n_outputs)]

    def stands_still(self, epoch: int) -> bool:
        self.party.label_party.send(StillVote(epoch, int(self.is_still())), epoch=epoch)
        return self.received_verdict(epoch)


class EncryptedLabelSide(EncryptedSide):
    """The party with labels: looks up means with the arbiter, compares them with labels, says when training ends."""

    def __init__(self, settings: RegressionSettings, party: Party, design: Design, tables: BatchedRows[Table]) -> None:
        super().__init__(settings, party, design, tables)
        self.loss = settings.family.loss(numeric_labels(party, settings.family))
        self.mechanism: DiscreteGaussianMechanism | None = None
        self.has_charged = False

    def begin(self) -> None:
        party = self.party
        weights = mean_weights(party, self.settings.sample_weight)
        columns = [line.receive(ColumnSummary, within=COLUMN_BOUNDS) for line in party.feature_parties]
        tokens = [line.receive(ColumnToken) for line in party.feature_parties]
        fraction = self._fraction()
        self.mechanism = self._mechanism(fraction)
        limits = self._admitted([each.count for each in columns], tokens, weights)
        wide = max([self.n_columns, *(each.count for each in columns)])
        block = SCHEMES[self.settings.backend].rows_per_block(max(map(len, self.batches)), wide)
        rate = self.rate(self.loss, weights, self.eigenvalue + sum(each.curvature for each in columns))
        schedule = Schedule(self.n_batches, block, fraction, len(self.loss.labels))
        inputs = self._inputs([each.run_token for each in tokens], weights)
        outline = StepOutline(self.loss.scale, self.loss.factor, rate, weights, inputs)
        party.arbiter.send(schedule)
        party.arbiter.send(limits)
        for line in party.feature_parties:
            line.send(schedule)
            line.send(outline, under=self._noise)
        self._set_up(schedule, outline)
        self.labels = fixed(self.loss.labels, fraction, f"{party.name}'s labels")
        self.scores.begin()

    def _fraction(self) -> int:
        """How many bits residuals have behind the point, so that sums over parties and over rows fit."""
        table = self.settings.family.table
        largest = max(float(np.abs(self.loss.labels).max(initial=1.0)), 0.0 if table is None else table.above)
        range_bits = max(5, ceil(log2(largest)) + 1)
        found = self.widths.residual_bits - ceil(log2(len(self.party.roles.holders))) - range_bits
        if found < 1:
            most = max(map(len, self.batches))
            raise Overflow(
                f"{self.party.name}'s labels should be at most {2.0 ** (range_bits + found - 2):g} times their mean to "
                f"be encrypted in batches of {most} rows, but one is {largest:g} times as large. Train without an "
                "arbiter."
            )
        return found

    def _shared_scores(self) -> Scores:
        return Scores(self.settings, self.fraction, PairedLine(self.party.arbiter, leading=True))

    def _admitted(self, counts: list[int], found: list[ColumnToken], weights: Float64Array) -> OpenableSums:
        """What the arbiter may open: the columns of all parties, if these rows allow as many."""
        party, openings, n_outputs = self.party, Openings.kept_by(self.party), len(self.loss.labels)
        rows = RowSketch.of(party.own_table, self.batches, self.secret)
        said = weights, self.loss.labels
        tokens = [sums_token(keyed(self.digest, self.secret), *said, self.secret)]
        for line, count, each in zip(party.feature_parties, counts, found, strict=True):
            if not len(each.token) == len(each.run_token) == KEY_BYTES or count < 1:
                raise ProtocolError(
                    f"Expected from {line.peer} at least 1 column and tokens of {KEY_BYTES} bytes, got {count} and "
                    f"{len(each.token)} and {len(each.run_token)}. Check that all parties run the same version."
                )
            token = sums_token(each.token, *said, self.secret)
            openings.admit(line.peer, token, n_outputs * count, rows, self.settings.rows_per_column)
            tokens.append(token)
        numbers = n_outputs * np.array([self.n_columns, *counts], np.int64)
        noise = (0, 0.0) if self.mechanism is None else (self.mechanism.sensitivity, float(self.mechanism.sigma))
        return OpenableSums(
            list(party.roles.holders), numbers, tokens, rows.n_rows, rows.batch_rows, rows.hashes, *noise
        )

    def _inputs(self, run_tokens: list[bytes], weights: Float64Array) -> bytes:
        own = (self.digest, self.loss.labels.tobytes(), weights.tobytes())
        return keyed(b"".join((*run_tokens, *own)), self.run_secret)

    def _mechanism(self, fraction: int) -> DiscreteGaussianMechanism | None:
        """The noise of each step, where gradients have noise."""
        noise = self.settings.gradient_privacy
        if noise is None:
            return None
        return noise.mechanism(
            scale=noise.scale(self.widths.column_bits),
            fraction=fraction,
            n_parties=len(self.party.roles.holders),
            n_outputs=len(self.loss.labels),
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

    def train(self, step: int) -> None:
        self._charge(step)
        super().train(step)

    def exchanged(self, step: int, rows: Int64Array, own: Share) -> list[Data]:
        assert self.key is not None
        epoch, found = self.epoch_of(step), []
        for line in self.party.feature_parties:
            came = line.receive(ScoreShare, fields={"step": step}, epoch=epoch).words
            own = own + of_length(came, len(own), "shares of scores", line.peer)
        means = self.scores.means(step, epoch, own.reshape(self.n_outputs, -1))
        size, labels = self.key.vector_size(len(rows), self.block), self.labels[:, rows]
        for some, known in zip(means, labels, strict=True):
            others = self.received(self.party.arbiter, EncryptedMeans, step, self.key, size, rows)
            total = self.key.add(others, self.key.encrypt(unmasked(some, known), self.block))
            found.append(total)
            message = EncryptedResiduals(step, self.ciphertexts(total))
            for line in self.party.feature_parties:
                line.send(message, under=(self.key.scheme, *self._noise), rows=rows, epoch=epoch)
        return found

    def stands_still(self, epoch: int) -> bool:
        votes = [
            line.receive(StillVote, fields={"epoch": epoch}, epoch=epoch).still for line in self.party.feature_parties
        ]
        return self.decide(epoch, still=self.is_still() and all(votes))

    def finish(self) -> LearnedRegression:
        learned = super().finish()
        return replace(learned, centre=self.loss.centre, approximation=learned.approximation.beside(self.loss.labels))
