"""Every engine gives the numbers of the compiled kernels."""

import numpy as np
import pytest
import torch

from colonnade.crypto.accelerator import ROWS_AT_ONCE, Accelerator
from colonnade.crypto.engines import Processor
from colonnade.crypto.histograms import HistogramBins
from colonnade.crypto.profiles import HISTOGRAM
from colonnade.crypto.sampling import Stream
from colonnade.crypto.wide import wide_ring_of
from colonnade.errors import CryptoError

RING = wide_ring_of(HISTOGRAM)
N_ROWS = ROWS_AT_ONCE + 100
without_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, without_gpu])]


def bins(seed=1):
    """Columns of 1 to 40 bins; nearly all rows of the last one are in one bin."""
    random = np.random.default_rng(seed)
    codes = [random.integers(0, width, N_ROWS) for width in (2, 40, 1)]
    rare = np.zeros(N_ROWS, np.int64)
    rare[:5] = 1
    return HistogramBins(np.array([*codes, rare], np.uint8), (2, 40, 1, 3))


def query(residues):
    """Residues (numbers, rows, 4) as a query packs them."""
    one, two, three, four = np.moveaxis(residues, -1, 0)
    words = [one | two << np.uint64(50), two >> np.uint64(14) | three << np.uint64(36)]
    words.append(three >> np.uint64(28) | four << np.uint64(22))
    return np.ascontiguousarray(np.stack(words, axis=1)), (four >> np.uint64(42)).astype(np.uint8)


def residues(count, largest=False):
    if largest:
        return np.broadcast_to(RING.limits - np.uint64(1), (count, N_ROWS, 4)).copy()
    drawn = Stream(bytes(32)).wide_residues((count, N_ROWS), RING.limits)
    return np.ascontiguousarray(np.moveaxis(drawn, 1, -1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("count", "largest"), [(1, False), (3, False), (2, True)])
def test_sums_over_bins_are_those_of_the_kernels(device, count, largest):
    packed, columns = query(residues(count, largest)), bins()
    engine = Accelerator(device)
    expected = Processor().sums(columns, *packed, RING.limits)
    # The second time what is the same stands on the device already.
    for _ in range(2):
        assert np.array_equal(engine.sums(columns, *packed, RING.limits), expected)
    other = bins(seed=2)
    assert np.array_equal(engine.sums(other, *packed, RING.limits), Processor().sums(other, *packed, RING.limits)), (
        "other bins have other sums"
    )


@pytest.mark.parametrize("engine", [Processor(), Accelerator("cpu")], ids=lambda engine: type(engine).__name__)
@pytest.mark.parametrize("limb", range(4))
def test_a_residue_that_is_not_below_its_prime_is_refused(engine, limb):
    faulty = residues(2)
    faulty[1, -1, limb] = RING.limits[limb]
    with pytest.raises(CryptoError, match="residues below their primes"):
        engine.sums(bins(), *query(faulty), RING.limits)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("edge", [False, True])
def test_pads_are_those_of_the_kernels(device, edge):
    blocks, secret = (
        RING.centred(Stream(bytes([seed]) * 32).wide_residues((3, RING.n), RING.limits)) for seed in (1, 2)
    )
    if edge:
        blocks[0] = ((RING.primes - 1) / 2)[:, None]
        secret[0] = -((RING.primes - 1) / 2)[:, None]
    engine, found, expected = Accelerator(device), np.empty_like(blocks), np.empty_like(blocks)
    for number in range(2):
        Processor().pad(RING, blocks, secret[number], Stream(bytes([number]) * 32), expected)
        engine.pad(RING, blocks, secret[number], Stream(bytes([number]) * 32), found)
        assert np.array_equal(RING.canonical(found), RING.canonical(expected))
