"""Noisy products of two parties' curves without an arbiter: shares by encryption, noise of both on the shares.

    feature party                                label party
         Offer ───────────────────────────────────▶          once
         ◀─────────────────────────────── Layout             once
         ◀───────────────────── EncryptedOutputs             once
         MaskedProducts ──────────────────────────▶          once
         NoisyShares ─────────────────────────────▶          once per stage
         ◀─────────────────────────────── Chosen             once
         ◀────────────────────── Surface(column)             once per column of a prediction
         PartialPrediction ───────────────────────▶          once per prediction

The label party encrypts its outputs under a key of its own. The feature party multiplies its columns with them, adds
masks that are uniform modulo 2^64 and a flood, and sends that back: what the label party decrypts is its share, minus
the masks the feature party's. Each adds noise to its share, and the feature party sends its own: their sum is the
product with noise of both. The second stage takes the same shares with noise of its own. Either knows its own noise,
and could subtract it from what it sees or is given later; the other's, which alone is as much as the budget asks for,
remains. So the label party's view is private for the inputs, by the feature party's noise and ledger, and what the
feature party is given for the outputs, by the label party's. Products of inputs with inputs are the feature party's own
and carry its noise only. Two parties only: with more of them, products between feature parties take an arbiter.

Masks and noise are the same after a crash, and each party holds the other to what it said before
(`colonnade.runtime.replay`). So the label party encrypts the same outputs to the same bytes.

Products are those of `colonnade.crypto.rlwe`, as in `colonnade.models.glm.shares`. Semi-honest parties; not reviewed.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3

from colonnade.crypto import rlwe
from colonnade.crypto.profiles import DISTANCE_BITS, SHARES
from colonnade.crypto.ring import Residues
from colonnade.crypto.rlwe import PublicKey, SecretKey
from colonnade.crypto.sampling import SEED_BYTES, Stream
from colonnade.curves.basis import FloatArray
from colonnade.errors import Overflow
from colonnade.models.functional.messages import Chosen, EncryptedOutputs, Layout, MaskedProducts, NoisyShares
from colonnade.models.functional.moments_masked import (
    MOMENT_NOISE,
    MomentBudget,
    ProductBlocks,
    clipped_to_ring,
    from_ring,
    noisy,
    require_chosen,
    ring_length,
    ring_product,
    second_stage,
    stage_terms,
    uniform,
    widths_of,
)
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.wire.message import Int64Array, UInt64Array, sealed, unsealed

HIDDEN = (SHARES.name, "mask", "flood")


class GivenShares:
    """The feature party's side.

    Args:
        party: The feature party.
        layout: What the label party has told.
        clipped: Its inputs in coordinates, clipped.
        budget: How much noise.
    """

    def __init__(self, party: Party, layout: Layout, clipped: FloatArray, budget: MomentBudget) -> None:
        self._party, self._layout, self._budget = party, layout, budget
        self._bits = budget.share_bits(layout.rows)
        self._x = clipped_to_ring(clipped, self._bits, clip=budget.clip_x, size=layout.size)
        _require_hidden(party.name, self._x.view(np.int64))
        line = party.label_party
        message = line.receive(EncryptedOutputs)
        self._key = PublicKey.from_bytes(message.key.tobytes(), SHARES)
        self._block = rlwe.rows_per_block(layout.rows, self._x.shape[1])
        size = self._key.vector_size(layout.rows, self._block)
        data = unsealed(message.columns, self._key, layout.outputs * size, line.peer)
        self._outputs = data.reshape(layout.outputs, size, *data.shape[1:])
        self._answered = party.budget(SHARES, line.peer)

    def give(self) -> None:
        """Give noisy shares of the products of both stages."""
        party, line, bits = self._party, self._party.label_party, 2 * self._bits
        budget, about = self._budget, (Secret.FEATURES,)
        share = self._shared()
        length = noisy(party, ring_length(self._x), budget.scalar_x.on_ring(bits), "length", about)
        cross = noisy(party, share, budget.first.on_ring(bits), "first", about)
        line.send(NoisyShares(1, [length, cross]), under=(MOMENT_NOISE,))
        chosen = line.receive(Chosen).columns
        require_chosen(chosen, budget.inputs, line.peer)
        if not len(chosen):
            return
        own = ProductBlocks.of(widths_of(party, self._layout), chosen, self._layout.size).kept[party.name]
        x, products = self._x[:, own], _bordered(share[own])
        products[: len(own), : len(own)] = ring_product(x, x)
        mechanism = budget.second(len(chosen)).on_ring(bits)
        released = noisy(party, products, mechanism, second_stage(chosen), about, symmetric=True)
        gram, cross = released[: len(own), : len(own)], released[: len(own), len(own) :]
        line.send(NoisyShares(2, [gram, cross]), under=(MOMENT_NOISE,))

    def _shared(self) -> UInt64Array:
        """Multiply all columns with every output, send the products masked, and return the share that stays here."""
        key, matrix = self._key, self._x.view(np.int64)
        # After a crash the masks are the same, and so is the share that was given.
        masks = uniform(self._party.random.child("masks"), (matrix.shape[1], len(self._outputs)))
        prepared = key.prepare(matrix, self._block, cached=rlwe.fits_cache(matrix.size))
        sent = []
        for place, output in enumerate(self._outputs):
            sums = key.product(prepared, output)
            masked, _ = key.masked(sums, self._block, len(masks), masks[:, place])
            self._answered.spend(len(masked) * key.coefficients)
            sent.append(masked)
        products = sealed(np.concatenate(sent), key)
        self._party.label_party.send(MaskedProducts(1, products), under=HIDDEN)
        return np.uint64(0) - masks


class OpenedShares:
    """The label party's side: noisy products, opened from the shares of both.

    Args:
        party: The label party.
        layout: What it has told the feature party.
        clipped: Its outputs in coordinates, clipped.
        budget: How much noise.
    """

    def __init__(self, party: Party, layout: Layout, clipped: FloatArray, budget: MomentBudget) -> None:
        self._party, self._layout, self._budget = party, layout, budget
        self._bits = budget.share_bits(layout.rows)
        (self._line,) = party.feature_parties
        self._width = widths_of(party, layout)[self._line.peer]
        self._key = SecretKey(party.once("outputs key", lambda: Stream().raw(SEED_BYTES)), SHARES)
        self._block = rlwe.rows_per_block(layout.rows, self._width)
        y = clipped_to_ring(clipped, self._bits, clip=budget.clip_y, size=layout.outputs).view(np.int64)
        public = self._key.public
        data = np.concatenate([self._encrypted(place, column) for place, column in enumerate(y.T)])
        key = np.frombuffer(public.to_bytes(), np.uint8)
        self._line.send(EncryptedOutputs(key, sealed(data, public)), under=HIDDEN[:1])

    def _encrypted(self, place: int, column: Int64Array) -> Residues:
        """One column of outputs; after a crash the same bytes, to which the feature party holds the label party."""
        values = np.ascontiguousarray(column)
        # Other values get other coins: two plaintexts under the same coins would show their difference.
        coins = self._party.random.child("outputs", place, blake3(values.tobytes()).hexdigest()).key
        return self._key.public.encrypt(values, self._block, coins=coins)

    def first(self) -> tuple[float, FloatArray]:
        """The noisy squared length of all inputs, and the noisy products of every input with the output."""
        outputs = self._layout.outputs
        self._share = self._decrypted()
        theirs = stage_terms(self._line, NoisyShares, 1, [(1, 1), self._share.shape])
        own = noisy(self._party, self._share, self._budget.first.on_ring(2 * self._bits), "first", (Secret.LABELS,))
        cross = from_ring(own + theirs[1], 2 * self._bits)
        length = float(from_ring(theirs[0], 2 * self._bits)[0, 0])
        return length, cross.reshape(-1, self._layout.size, outputs)

    def second(self, chosen: Int64Array) -> tuple[FloatArray, FloatArray]:
        """The noisy products among chosen inputs, and with the output."""
        self._line.send(Chosen(chosen))
        places = ProductBlocks.of(widths_of(self._party, self._layout), chosen, self._layout.size).kept[self._line.peer]
        own, n_own = self._share[places], len(places)
        if not n_own:
            return np.zeros((0, 0)), np.zeros(own.shape)
        theirs = stage_terms(self._line, NoisyShares, 2, [(n_own, n_own), own.shape])
        mechanism = self._budget.second(len(chosen)).on_ring(2 * self._bits)
        stage, about = second_stage(chosen), (Secret.LABELS,)
        released = noisy(self._party, _bordered(own), mechanism, stage, about, symmetric=True)
        gram = from_ring(theirs[0], 2 * self._bits)
        return (gram + gram.T) / 2, from_ring(released[:n_own, n_own:] + theirs[1], 2 * self._bits)

    def _decrypted(self) -> UInt64Array:
        """The label party's share of the products of all columns with every output."""
        message = self._line.receive(MaskedProducts, fields={"stage": 1})
        public, outputs, n_columns = self._key.public, self._layout.outputs, self._width
        size = public.masked_size(n_columns, self._block)
        data = unsealed(message.products, public, outputs * size, self._line.peer)
        parts = data.reshape(outputs, size, *data.shape[1:])
        return np.stack([self._key.decrypt(part, self._block, n_columns) for part in parts], axis=1)


def _bordered(cross: UInt64Array) -> UInt64Array:
    """A square matrix of products among inputs and outputs that holds those of inputs with outputs, and zeros."""
    inputs, outputs = cross.shape
    whole = np.zeros((inputs + outputs, inputs + outputs), np.uint64)
    whole[:inputs, inputs:] = cross
    return whole


def _require_hidden(owner: str, columns: Int64Array) -> None:
    wide = columns.astype(np.float64)
    noise = rlwe.noise(1, float((wide**2).sum(axis=0).max()), float(np.abs(wide).sum(axis=0).max()))
    if SHARES.distance_bits(noise, SHARES.most_values) < DISTANCE_BITS:
        raise Overflow(
            f"{owner}'s curves are too many for their products to be hidden by a flood of {SHARES.flood_bits} bits, "
            f"with {len(columns)} rows. Bring fewer rows, or an arbiter."
        )
