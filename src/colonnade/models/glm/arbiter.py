"""The sides of a generalised linear model whose keys an arbiter holds; `glm` draws the exchange.

Every family is here a least-squares problem: with pseudo-responses t and a curvature c the objective is

    c/2 sum_i w_i z_i^2 + penalty/2 |theta|^2,      z = sum_k u_k - t,      u_k = X_k theta_k

exactly for linear regression, and to second order for the others (`families`). A gradient is c X_k' W z, one encrypted
product for its owner. The loss is the sum over parties of what each part of z has in common with z, so it needs no more
than one sum from each: with two parties these are L_A + L_AB/2 and L_B + L_AB/2.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from colonnade.crypto import paillier, rlwe
from colonnade.crypto.additive import Data, PublicKey, SecretKey, unmasked
from colonnade.crypto.fixedpoint import PRODUCT_BITS, Widths, column_scales, encoded
from colonnade.crypto.profiles import ARBITER
from colonnade.errors import PrivacyError, ProtocolError
from colonnade.models.glm.ciphertexts import sealed
from colonnade.models.glm.descent import Descent
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
from colonnade.models.glm.sides import Columns, Descending, Encrypted, Key, Side, Verdict, accepted, told
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.wire.channel import Channel
from colonnade.wire.message import Ciphertexts, Float64Array, Int64Array, Message, UInt64Array

if TYPE_CHECKING:
    from colonnade.models.glm.estimator import GeneralisedLinearModel

Backend: TypeAlias = Literal["rlwe", "paillier"]

ROWS_PER_COLUMN = 10
SCHEMES: Mapping[str, Any] = {"rlwe": rlwe, "paillier": paillier}


@dataclass(frozen=True)
class Schedule(Message, kind="glm/schedule"):
    """How many batches an epoch has, and how many rows a ciphertext."""

    n_batches: int
    block: int


@dataclass(frozen=True)
class Outline(Descending, Message, kind="glm/outline", reveals={Secret.LABELS}):
    """How steps are taken; and scores are at most two to the power of `range_bits`."""

    range_bits: int


@dataclass(frozen=True)
class EncryptedScores(Encrypted, Message, kind="glm/encrypted-scores", reveals={Secret.FEATURES}, fresh=True):
    """A feature party's part of the scores of a batch, under the arbiter's key."""


@dataclass(frozen=True)
class EncryptedResiduals(
    Encrypted, Message, kind="glm/encrypted-residuals", reveals={Secret.FEATURES, Secret.LABELS}, fresh=True
):
    """Scores less pseudo-responses of a batch, under the arbiter's key."""


@dataclass(frozen=True)
class EncryptedLoss(Encrypted, Message, kind="glm/encrypted-loss", reveals={Secret.FEATURES}, fresh=True):
    """A feature party's summand of an epoch's loss, under the arbiter's key."""


@dataclass(frozen=True)
class Masked(Encrypted, Message, kind="glm/masked", fresh=True):
    """So many sums to be decrypted: uniform masks hide them, a flood hides their noise."""

    n_values: int


@dataclass(frozen=True)
class Opened(Message, kind="glm/opened", fresh=True):
    """Masked sums, rounded, modulo 2^53."""

    step: int
    sums: UInt64Array


class ArbiterSide(Side):
    """The arbiter: makes a key for each epoch, decrypts masked sums, learns nothing but how many there are."""

    def __init__(self, model: GeneralisedLinearModel, party: Party) -> None:
        super().__init__(model, party)
        self.lines = (party.label_party, *party.feature_parties)
        schedule = party.label_party.receive(Schedule)
        self.n_batches, self.block = schedule.n_batches, schedule.block
        self.key: SecretKey | None = None
        self.n_opened = 0

    def train(self, step: int) -> dict[str, float]:
        """Do one step; returns figures to be shown."""
        if step % self.n_batches == 0:
            self.key = SCHEMES[self.model.backend].SecretKey()
            assert self.key is not None
            for line in self.lines:
                line.send(Key(np.frombuffer(self.key.public.to_bytes(), np.uint8)), epoch=self.epoch_of(step))
        for line in self.lines:
            self._open(step, line)
        return {}

    def ends_after(self, epoch: int) -> bool:
        """Close an epoch; returns whether training ends with it."""
        self._open((epoch + 1) * self.n_batches - 1, self.lines[0])
        return told(self.party, epoch)

    def _open(self, step: int, line: Channel) -> None:
        assert self.key is not None
        masked, public = line.receive(Masked, epoch=self.epoch_of(step)), self.key.public
        data = accepted(masked, step, public, public.masked_size(masked.n_values, self.block), line.peer)
        # Rounded inside: no noise of a decryption ever leaves the holder of the key.
        opened = Opened(step, self.key.decrypt(data, self.block, masked.n_values))
        line.send(opened, under=("mask",), epoch=self.epoch_of(step))
        self.n_opened += masked.n_values

    def state(self) -> Tree:
        """All that the next step depends on."""
        return {"key": None if self.key is None else self.key.to_bytes(), "opened": self.n_opened}

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said."""
        self.key = None if tree["key"] is None else SCHEMES[self.model.backend].SecretKey.from_bytes(tree["key"])
        self.n_opened = tree["opened"]

    def finish(self) -> None:
        """Put what was learned into the model."""
        self.model.opened_ = self.n_opened


class HolderSide(Side):
    """A party with columns: its coefficients, its encrypted products, its masks."""

    block: int
    descent: Descent

    def __init__(self, model: GeneralisedLinearModel, party: Party, matrix: Matrix) -> None:
        super().__init__(model, party)
        self.batches = model.batches(party)
        self.matrix, (self.n_rows, self.n_columns) = matrix, matrix.shape
        self.of_batch, self.of_all = Widths.of(max(map(len, self.batches))), Widths.of(self.n_rows)
        self._require_rows()
        self.key: PublicKey | None = None
        self.prepared: dict[int, Any] = {}
        self.loss: Data | None = None
        self.squares, self.longest = np.zeros(0), 0.0
        self.budget = party.budget(ARBITER, party.arbiter.peer)

    def set_up(self, outline: Outline) -> None:
        """Quantise the columns and set up the descent; what is public about that has been agreed."""
        n_parties, weights = len(self.party.roles.holders), outline.weights
        self.range_bits = outline.range_bits
        # Sums over parties and over rows must fit: each party's part leaves room for those of the others.
        self.part_bits = self.of_all.residual_bits - ceil(log2(n_parties))
        self.loss_bits = PRODUCT_BITS - ceil(log2(max(self.n_rows, 1))) - self.of_all.residual_bits
        self.loss_bits -= ceil(log2(n_parties))
        columns = weighted(self.matrix, weights)
        self.scales = column_scales(largest(columns), self.of_batch.column_bits)
        places = of_columns(columns, self.scales)
        self.integers = with_entries(columns, np.rint(np.ldexp(entries(columns), places)).astype(np.int64))
        if not len(weights):
            # Scores are those of the columns that gradients are taken of, to the last bit.
            self.matrix = with_entries(columns, np.ldexp(entries(self.integers).astype(np.float64), -places))
        self.weights, self.squares = weights, squares(self.matrix, axis=1)
        total = float(weights.sum()) if len(weights) else float(self.n_rows)
        design = self.model.design_
        assert design is not None
        self.descent = Descent(
            penalised=design.penalised,
            penalty=self.model.penalty / total,
            factor=outline.curvature * self.n_batches / total,
            learning_rate=outline.learning_rate,
            momentum=self.model.momentum,
        )
        self.label_scale = outline.scale

    def train(self, step: int) -> dict[str, float]:
        """Do one step; returns figures to be shown."""
        epoch, batch = divmod(step, self.n_batches)
        if batch == 0:
            line = self.party.arbiter
            key = line.receive(Key, epoch=self.epoch_of(step)).key.tobytes()
            self.key = SCHEMES[self.model.backend].PublicKey.from_bytes(key)
            self.loss = None
        assert self.key is not None
        rows = self.batches[batch]
        part = self.part(rows)
        what = f"{self.party.name}'s scores"
        own = encoded(part, self.part_bits - self.range_bits, self.part_bits, what)
        residuals = self.exchanged(step, epoch, rows, self.key.encrypt(own, self.block))
        self._add_to_loss(rows, part, residuals)
        gradient = self._gradient(step, batch, residuals)
        self._watch(epoch, rows, gradient)
        self.descent.step(gradient)
        return {}

    @abstractmethod
    def part(self, rows: Int64Array) -> Float64Array:
        """This party's part of the residuals of some rows."""

    @abstractmethod
    def exchanged(self, step: int, epoch: int, rows: Int64Array, own: Data) -> Data:
        """Encrypted residuals of a batch, from everybody's parts."""

    def ciphertexts(self, data: Data) -> Ciphertexts:
        """Ciphertexts that say which key they belong to."""
        assert self.key is not None
        return sealed(data, self.key)

    def opened(self, step: int, data: Data, n_values: int) -> Int64Array:
        """Sums that the arbiter decrypts without seeing them."""
        assert self.key is not None
        masked, masks = self.key.masked(data, self.block, n_values)
        self.budget.spend(len(masked) * self.key.coefficients)
        message = Masked(step, self.ciphertexts(masked), n_values)
        self.party.arbiter.send(message, under=(self.key.scheme, "mask", "flood"), epoch=self.epoch_of(step))
        answer = self.party.arbiter.receive(Opened, epoch=self.epoch_of(step))
        if answer.step != step or answer.sums.shape != (n_values,):
            raise ProtocolError(
                f"Expected {n_values} opened sums of step {step} from {self.party.arbiter.peer}, got "
                f"{answer.sums.size} of step {answer.step}. Check that all parties run the same plan."
            )
        return unmasked(answer.sums, masks)

    def _gradient(self, step: int, batch: int, residuals: Data) -> Float64Array:
        assert self.key is not None
        prepared = self.prepared.get(batch)
        if prepared is None:
            integers, fits = self.integers[self.batches[batch]], rlwe.fits_cache(self.n_rows * self.n_columns)
            prepared = self.key.prepare(integers, self.block, cached=fits)
            if fits:
                self.prepared[batch] = prepared
        product = self.key.product(prepared, residuals)
        sums = self.opened(step, product, self.n_columns)
        return np.ldexp(sums.astype(np.float64), -self.scales - (self.part_bits - self.range_bits))

    def _add_to_loss(self, rows: Int64Array, part: Float64Array, residuals: Data) -> None:
        assert self.key is not None
        weighted = part * self.weights[rows] if len(self.weights) else part
        what = f"{self.party.name}'s scores"
        column = encoded(weighted, self.loss_bits - self.range_bits, self.loss_bits, what)[:, None]
        product = self.key.product(self.key.prepare(column, self.block), residuals)
        self.loss = product if self.loss is None else self.key.add(self.loss, product)

    def _watch(self, epoch: int, rows: Int64Array, gradient: Float64Array) -> None:
        length = float(np.sqrt((gradient**2).sum()))
        if epoch == 0:
            self.longest = max(self.longest, length)
        # Residuals of noise, one unit each, would give gradients as long as the columns.
        usual = max(self.longest, float(np.sqrt(self.squares[rows].sum())))
        self.model.watch(self.party.name, epoch, usual, length)

    def _require_rows(self) -> None:
        n_columns, fewest = self.n_columns, min(map(len, self.batches))
        if fewest <= ROWS_PER_COLUMN * n_columns:
            raise PrivacyError(
                f"{self.party.name} has {n_columns} columns, so a batch needs more than {ROWS_PER_COLUMN * n_columns} "
                f"rows or its gradients would tell single residuals, but the smallest has {fewest}. Use larger batches "
                "or fewer columns."
            )

    def state(self) -> Tree:
        """All that the next step depends on."""
        return {
            "descent": self.descent.state(),
            "key": None if self.key is None else self.key.to_bytes(),
            "loss": self.loss,
            "longest": self.longest,
        }

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said."""
        self.descent.restore(tree["descent"])
        self.key = None if tree["key"] is None else SCHEMES[self.model.backend].PublicKey.from_bytes(tree["key"])
        self.loss, self.longest = tree["loss"], tree["longest"]

    def finish(self) -> None:
        """Put what was learned into the model."""
        self.model.coef_ = self.descent.coefficients * self.label_scale
        self.model.gradients_ = np.array(self.descent.gradients).reshape(-1, len(self.descent.coefficients))


class FeatureSide(HolderSide):
    """A party with columns and without labels."""

    def __init__(self, model: GeneralisedLinearModel, party: Party, matrix: Matrix) -> None:
        super().__init__(model, party, matrix)
        line = party.label_party
        line.send(Columns(self.n_columns, largest_eigenvalue(party.name, matrix)))
        schedule, outline = line.receive(Schedule), line.receive(Outline)
        self.n_batches, self.block = schedule.n_batches, schedule.block
        if schedule.n_batches != len(self.batches) or len(outline.weights) not in (0, self.n_rows):
            raise ProtocolError(
                f"Expected {len(self.batches)} batches and a weight for none or all of {self.n_rows} rows from "
                f"{line.peer}, got {schedule.n_batches} and {len(outline.weights)}. Check that both run the same plan."
            )
        self.set_up(outline)

    def part(self, rows: Int64Array) -> Float64Array:
        """This party's part of the residuals of some rows."""
        return np.asarray(self.matrix[rows] @ self.descent.coefficients)

    def exchanged(self, step: int, epoch: int, rows: Int64Array, own: Data) -> Data:
        """Encrypted residuals of a batch, from everybody's parts."""
        assert self.key is not None
        line = self.party.label_party
        line.send(EncryptedScores(step, self.ciphertexts(own)), under=(self.key.scheme,), rows=rows, epoch=epoch)
        message = line.receive(EncryptedResiduals, rows=rows, epoch=epoch)
        return accepted(message, step, self.key, len(own), line.peer)

    def ends_after(self, epoch: int) -> bool:
        """Close an epoch; returns whether training ends with it."""
        assert self.key is not None
        assert self.loss is not None
        step = (epoch + 1) * self.n_batches - 1
        loss = EncryptedLoss(step, self.ciphertexts(self.key.refreshed(self.loss)))
        self.party.label_party.send(loss, under=(self.key.scheme,), epoch=epoch)
        return told(self.party, epoch)


class LabelSide(HolderSide):
    """The party with labels: adds up everybody's parts, sees the loss, says when training ends."""

    def __init__(self, model: GeneralisedLinearModel, party: Party, matrix: Matrix) -> None:
        super().__init__(model, party, matrix)
        self.target = model.quadratic(party)
        weights = model.row_weights(party)
        columns = [line.receive(Columns) for line in party.feature_parties]
        self.n_batches = len(self.batches)
        wide = max([self.n_columns, *(each.count for each in columns)])
        self.block = SCHEMES[model.backend].rows_per_block(max(map(len, self.batches)), wide)
        range_bits = max(5, ceil(log2(float(np.abs(self.target.values).max(initial=1.0)))) + 2)
        heaviest = float(weights.max(initial=1.0))
        bend = self.target.curvature * heaviest
        bend *= largest_eigenvalue(party.name, matrix) + sum(each.curvature for each in columns)
        bend += model.penalty / max(self.n_rows, 1)
        rate = model.learning_rate if model.learning_rate is not None else 1 / max(bend, 1e-12)
        schedule = Schedule(self.n_batches, self.block)
        outline = Outline(self.target.scale, self.target.curvature, rate, weights, range_bits)
        party.arbiter.send(schedule)
        for line in party.feature_parties:
            line.send(schedule)
            line.send(outline)
        self.set_up(outline)
        self.history: list[dict[str, float]] = []

    def train(self, step: int) -> dict[str, float]:
        """Do one step; returns figures to be shown."""
        super().train(step)
        return {"loss": self.history[-1]["loss"]} if self.history else {}

    def part(self, rows: Int64Array) -> Float64Array:
        """This party's part of the residuals of some rows."""
        return np.asarray(self.matrix[rows] @ self.descent.coefficients - self.target.values[rows])

    def exchanged(self, step: int, epoch: int, rows: Int64Array, own: Data) -> Data:
        """Encrypted residuals of a batch, from everybody's parts."""
        assert self.key is not None
        total = own
        for line in self.party.feature_parties:
            came = line.receive(EncryptedScores, rows=rows, epoch=epoch)
            total = self.key.add(total, accepted(came, step, self.key, len(own), line.peer))
        message = EncryptedResiduals(step, self.ciphertexts(total))
        for line in self.party.feature_parties:
            line.send(message, under=(self.key.scheme,), rows=rows, epoch=epoch)
        return total

    def ends_after(self, epoch: int) -> bool:
        """Close an epoch; returns whether training ends with it."""
        assert self.key is not None
        assert self.loss is not None
        step, total = (epoch + 1) * self.n_batches - 1, self.loss
        for line in self.party.feature_parties:
            message = line.receive(EncryptedLoss, epoch=epoch)
            total = self.key.add(total, accepted(message, step, self.key, 1, line.peer))
        (opened,) = self.opened(step, total, 1)
        squares = float(np.ldexp(float(opened), -(self.loss_bits + self.part_bits - 2 * self.range_bits)))
        loss = self.target.loss(squares, self.n_rows)
        stop = self.model.ends(self.history, loss)
        self.history.append({"epoch": epoch, "loss": loss})
        verdict = Verdict(epoch, int(stop))
        for line in (*self.party.feature_parties, self.party.arbiter):
            line.send(verdict, epoch=epoch)
        return stop

    def state(self) -> Tree:
        """All that the next step depends on."""
        return {**super().state(), "history": self.history}

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said."""
        super().restore(tree)
        self.history = tree["history"]

    def finish(self) -> None:
        """Put what was learned into the model."""
        super().finish()
        self.model.history_ = self.history
        self.model.centre_ = self.target.centre
