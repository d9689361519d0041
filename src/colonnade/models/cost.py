"""Cost: what an epoch of a regression sends, computed before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colonnade.crypto import paillier, products, rlwe
from colonnade.crypto.packing import n_words
from colonnade.crypto.profiles import ARBITER

if TYPE_CHECKING:
    from colonnade.models.glm import GeneralisedLinearModel

_BYTES = {"rlwe": 2 * len(ARBITER.primes) * n_words(ARBITER.n) * 8, "paillier": paillier.KEY_BITS // 4}


@dataclass(frozen=True)
class Cost:
    """How many ciphertexts all parties together send in an epoch, and how many bytes these have."""

    ciphertexts: int
    bytes: int


def cost_of(model: GeneralisedLinearModel, n_rows: int, columns: Mapping[str, int], *, arbiter: bool) -> Cost:
    """What an epoch costs; `columns` counts those of each party, the label party first, with its intercept."""
    n_batches = max(1, n_rows // (model.batch_size or n_rows))
    batch = -(-n_rows // n_batches)
    counts = list(columns.values())
    if not arbiter:
        total = n_batches * _on_shares(batch, counts, polynomial=model.family.polynomial is not None)
        if model.tolerance and model.epochs > 1:
            # The squares of changes, and two looks into tables.
            total += 2 * products.n_ciphertexts(sum(counts)) + 4
        return _of(total, "rlwe")
    peers = len(counts) - 1
    if model.backend == "paillier":
        slots = (paillier.KEY_BITS - 1) // paillier.SLOT_BITS
        per_batch = 2 * peers * batch + sum(-(-count // slots) for count in counts)
    else:
        block = rlwe.rows_per_block(batch, max(counts))
        per_batch = 2 * peers * -(-batch // block) + sum(-(-count * block // ARBITER.n) for count in counts)
    return _of(n_batches * per_batch + peers + 1, model.backend)


def _on_shares(batch: int, counts: list[int], *, polynomial: bool) -> int:
    """The ciphertexts of one batch without an arbiter."""
    total = 0
    shared = rlwe.rows_per_block(batch, max(counts))
    for place, count in enumerate(counts):
        n_askers = 1 if place < 2 else 2
        block = rlwe.rows_per_block(count, batch)
        scores = -(-count // block) + -(-batch * block // ARBITER.n)
        gradients = -(-batch // shared) + -(-count * shared // ARBITER.n)
        total += n_askers * (scores + gradients)
    bits = 2 * products.n_ciphertexts(1, products.BITS)
    # Truncations of gradients and of moves; all coefficients together fit into one ciphertext for each prime.
    total += 2 * bits * -(-sum(counts) // ARBITER.n)
    of_batch = products.n_ciphertexts(batch, products.BITS)
    if not polynomial:
        return total + 2 * of_batch
    # Two squares and two products: six vectors of operands, four of results. Scores, four products and both halves of
    # the polynomial are truncated, the halves in one go.
    halves = products.n_ciphertexts(2 * batch, products.BITS)
    return total + 10 * products.n_ciphertexts(batch) + 2 * (5 * of_batch + halves)


def _of(ciphertexts: int, backend: str) -> Cost:
    return Cost(ciphertexts, ciphertexts * _BYTES[backend])
