"""Cost: what a regression sends in an epoch, and over each line, computed before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from colonnade.crypto import paillier, products, rlwe
from colonnade.crypto.packing import n_words
from colonnade.crypto.profiles import ARBITER
from colonnade.models.traffic import Traffic
from colonnade.roles import Roles

if TYPE_CHECKING:
    from colonnade.models.glm.estimator import GeneralisedLinearModel

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


def traffic_of(
    model: GeneralisedLinearModel, roles: Roles, line: tuple[str, str], n_rows: int, columns: Mapping[str, int]
) -> Traffic | None:
    """What training sends over a line, if it takes all epochs; `columns` counts those of parties that have told it.

    How many rows a ciphertext has depends on the party with most columns. Where not all have told how many they have,
    those of others are left out of account.
    """
    n_batches, sure = max(1, n_rows // (model.batch_size or n_rows)), _sure(model)
    if roles.arbiter is None:
        return _on_the_line_of_shares(model, roles, line, n_rows, columns)
    if roles.arbiter not in line and roles.label not in line:
        return Traffic()
    (holder,) = (name for name in line if name != (roles.arbiter if roles.arbiter in line else roles.label))
    if not columns.get(holder):
        return None
    batch, bytes_each = -(-n_rows // n_batches), _BYTES[model.backend]
    if model.backend == "paillier":
        of_batch, of_sums = batch, -(-columns[holder] // ((paillier.KEY_BITS - 1) // paillier.SLOT_BITS))
    else:
        block = rlwe.rows_per_block(batch, max(columns.values()))
        of_batch, of_sums = -(-batch // block), -(-columns[holder] * block // ARBITER.n)
    if roles.arbiter not in line:
        up = model.epochs * (n_batches * of_batch + 1) * bytes_each
        weights = 8 * n_rows if model.weights is not None else 0
        down = model.epochs * n_batches * of_batch * bytes_each + weights
        return Traffic({holder: up, str(roles.label): down}, 1 + model.epochs * (n_batches + 1), sure)
    loss = int(holder == roles.label)
    up = model.epochs * (n_batches * of_sums + loss) * bytes_each
    # A key is half as long as a ciphertext.
    down = model.epochs * (bytes_each // 2 + 8 * (n_batches * columns[holder] + loss))
    return Traffic({holder: up, roles.arbiter: down}, model.epochs * (n_batches + loss), sure)


def _sure(model: GeneralisedLinearModel) -> Literal["about", "at most about"]:
    """How certain an estimate is: training stops when it changes little."""
    return "at most about" if model.tolerance else "about"


def _on_the_line_of_shares(
    model: GeneralisedLinearModel, roles: Roles, line: tuple[str, str], n_rows: int, columns: Mapping[str, int]
) -> Traffic | None:
    if len(roles.holders) > 2 or not all(columns.get(name) for name in roles.holders):
        return None
    counted = {name: columns[name] for name in roles.holders}
    cost = cost_of(model, n_rows, counted, arbiter=False)
    n_batches = max(1, n_rows // (model.batch_size or n_rows))
    # Scores, gradients, and one for each truncation; products of shares take one more. The end of an epoch takes three.
    per_batch = 14 if model.family.polynomial is not None else 5
    per_epoch = n_batches * per_batch + (3 if model.tolerance else 0)
    # Both send about half: which of them more, depends on the columns.
    half = model.epochs * cost.bytes // 2
    return Traffic(dict.fromkeys(line, half), 3 + model.epochs * per_epoch, _sure(model))


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
