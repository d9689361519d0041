"""Accelerator: word sums and pads on a device of PyTorch, the same numbers as those of the compiled kernels.

PyTorch has neither unsigned words nor a fused multiply-add, and needs none here. A product modulo p of 50 bits is
a b - k p in words of 64 bits that wrap around, k = a b / p rounded by doubles: with |a| <= c p and |b| <= p/2 the
quotient k is off by 1/2 + c/8 at most, so the rest lies within (1/2 + c/8) p, as in `wide_kernels`, and all bits that
wrap around cancel. Sums are of 2^13 residues at most before they are reduced, which a signed word holds; additions of
whole numbers give the same in every order. Packed residues cross to the device, 25 bytes a row, and sums or pads cross
back. What crosses stays in the memory of the device until it is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.crypto.histograms import HistogramBins, faulty_query
from colonnade.crypto.sampling import ERROR_BITS, Stream
from colonnade.crypto.wide import PRIME_BITS, Float64Array, WideRing

ROWS_AT_ONCE = 2**13
"""How many residues of 50 bits stay below 2^63 when they are added up."""
_MASK = 2**PRIME_BITS - 1


class Accelerator:
    """Word sums and pads on one device, "cuda" or "cpu"."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        # What is the same at every call is copied to the device once.
        self._places: tuple[HistogramBins, list[Tensor]] | None = None
        self._blocks: tuple[Float64Array, Tensor] | None = None
        self._tables: tuple[WideRing, list[Tensor]] | None = None

    @torch.no_grad()
    def sums(
        self, bins: HistogramBins, words: NDArray[np.uint64], tails: NDArray[np.uint8], limits: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """One addition to a cell for each row, column and lane; stretches of rows have cells of their own."""
        count, n_rows = len(words), bins.n_rows
        primes = self._on_device(limits.view(np.int64))
        values = _unpacked(self._on_device(words.view(np.int64)), self._on_device(tails).long())
        if bool((values >= primes).any()):
            raise faulty_query()
        values = values.reshape(n_rows, -1)
        stretches, found = -(-n_rows // ROWS_AT_ONCE), []
        for width, places in zip(bins.widths, self._places_of(bins), strict=True):
            cells = torch.zeros((stretches * width, values.shape[1]), dtype=torch.int64, device=self._device)
            cells = cells.index_add_(0, places, values).reshape(stretches, width, count, -1) % primes
            # 2^11 stretches of residues at most: no sum leaves a word.
            found.append(cells.sum(dim=0)[:-1] % primes)
        out: NDArray[np.int64] = torch.cat(found).cpu().numpy()
        return out.view(np.uint64)

    @torch.no_grad()
    def pad(
        self, ring: WideRing, blocks: Float64Array, secret: Float64Array, stream: Stream, out: Float64Array
    ) -> None:
        """All polynomials at once, one stage of the transform after the other."""
        if self._blocks is None or self._blocks[0] is not blocks:
            self._blocks = blocks, self._on_device(blocks).long()
        primes, roots, roots_q, ends, ends_q = self._tables_of(ring)
        factor = self._on_device(secret)
        x = _product(self._blocks[1], factor.long(), factor / primes, primes)
        # Values stand transposed, as `WideRing.forward` leaves them.
        x = _centred(x.reshape(*x.shape[:2], ring.columns, -1).transpose(-1, -2).flatten(-2), primes)
        length = 1
        while length < ring.n:
            low, high = x.reshape(*x.shape[:2], -1, 2, length).unbind(-2)
            stage = slice(length, 2 * length)
            high = _product(high, roots[:, None, stage], roots_q[:, None, stage], primes[..., None])
            x = torch.stack([low + high, low - high], dim=-2).flatten(-3)
            # Between two reductions there are at most seven stages, as in the kernel.
            x = _centred(x, primes) if length == ring.columns // 2 else x
            length *= 2
        errors = self._on_device(stream.words(len(blocks) * ring.n).view(np.int64)).reshape(-1, 1, ring.n)
        mask = 2**ERROR_BITS - 1
        x = _product(x, ends, ends_q, primes) + _ones(errors & mask) - _ones(errors >> ERROR_BITS & mask)
        torch.from_numpy(out).copy_(_centred(x, primes))

    def _on_device(self, array: NDArray[np.generic]) -> Tensor:
        # PyTorch warns of arrays that cannot be written to, which nobody does here.
        writeable = array if array.flags.writeable else array.copy()
        return torch.from_numpy(writeable).to(self._device)

    def _places_of(self, bins: HistogramBins) -> Sequence[Tensor]:
        """For each column the cell of each row."""
        if self._places is None or self._places[0] is not bins:
            stretch = np.arange(bins.n_rows) // ROWS_AT_ONCE
            cells = [stretch * width + codes for codes, width in zip(bins.codes, bins.widths, strict=True)]
            self._places = bins, [self._on_device(each.astype(np.int32)) for each in cells]
        return self._places[1]

    def _tables_of(self, ring: WideRing) -> Sequence[Tensor]:
        """The primes (L, 1) and the tables of the inverse transform."""
        if self._tables is None or self._tables[0] is not ring:
            (roots, roots_q), (ends, ends_q) = ring.inverse_tables
            integers = [self._on_device(each).long() for each in (ring.primes[:, None], roots, ends)]
            quotients = [self._on_device(each) for each in (roots_q, ends_q)]
            self._tables = ring, [integers[0], integers[1], quotients[0], integers[2], quotients[1]]
        return self._tables[1]


def _unpacked(words: Tensor, tails: Tensor) -> Tensor:
    """Residues (rows, numbers, 4) from words (numbers, 3, rows) and tails (numbers, rows), as `seal` packs them."""
    a, b, c = words.unbind(1)
    # A shift to the right copies the sign, so that what it brings in is masked.
    parts = [
        a & _MASK,
        (a >> 50 & (2**14 - 1)) | (b << 14 & _MASK),
        (b >> 36 & (2**28 - 1)) | (c << 28 & _MASK),
        (c >> 22 & (2**42 - 1)) | tails << 42,
    ]
    return torch.stack([each.T for each in parts], dim=-1)


def _product(a: Tensor, b: Tensor, quotient: Tensor, primes: Tensor) -> Tensor:
    """Products modulo the primes, given b / p."""
    return a * b - torch.round(a * quotient).long() * primes


def _centred(a: Tensor, primes: Tensor) -> Tensor:
    return a - torch.round(a.double() / primes).long() * primes


def _ones(x: Tensor) -> Tensor:
    """How many bits of words of 21 bits are set."""
    x = x - (x >> 1 & 0x155555)
    x = (x & 0x333333) + (x >> 2 & 0x333333)
    return ((x + (x >> 4) & 0x0F0F0F) * 0x010101 >> 16) & 0x3F
