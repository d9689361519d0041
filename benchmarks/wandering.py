"""The boundary-wandering loss: in closed form against a masked matrix of all pairs, and what it adds to a step.

Batches of 1,024 rows, embeddings of width 64, 10 classes, one thread. The loss is taken with its gradient, both ways
from the same embeddings; that both give the same is checked. A step is one of a split network, trained in one process
by two parties with 12 columns each, with and without the loss on the label party's own embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

import numpy as np
import torch

from benchmarks.clock import median_time
from colonnade import Roles, Table, simulate
from colonnade.defences import Defence
from colonnade.defences.wandering import BoundaryWandering, wandering_loss
from colonnade.models import SplitClassifier

TARGETS: Mapping[str, float] = {"closed_form_share": 0.05, "step_overhead": 0.2}
LEAST: Mapping[str, float] = {"step_overhead": 0.0}
ROLES = Roles(label="bank", features=("shop",))
N_BATCH, WIDTH, N_CLASSES, N_ROWS, N_COLUMNS = 1024, 64, 10, 30 * 1024, 12


def masked_pairs(embedding: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss by its definition: all cosines in one matrix, those of other classes masked."""
    units = torch.nn.functional.normalize(embedding, dim=1)
    is_pair = (labels[:, None] == labels).float().fill_diagonal_(0)
    return ((units @ units.T) * is_pair).sum() / is_pair.sum()


def make_tables() -> dict[str, Table]:
    """Numbers at both parties, and ten classes at the bank."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal((N_ROWS, 2 * N_COLUMNS))
    labels = (values @ generator.standard_normal((2 * N_COLUMNS, N_CLASSES))).argmax(axis=1)
    ids = {"id": np.arange(N_ROWS)}
    bank = {f"x{i}": values[:, i] for i in range(N_COLUMNS)} | {"label": labels}
    shop = {f"x{i}": values[:, i] for i in range(N_COLUMNS, 2 * N_COLUMNS)}
    return {"bank": Table.of(ids | bank, labels="label", owner="bank"), "shop": Table.of(ids | shop, owner="shop")}


def measure(*, quick: bool) -> dict[str, float]:
    """Ratios of median times: of the loss with its gradient, and of a step with the loss to one without, less 1."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(N_BATCH, WIDTH, generator=generator, requires_grad=True)
    labels = torch.randint(N_CLASSES, (N_BATCH,), generator=generator)

    def gradient(loss: Callable[[], torch.Tensor]) -> torch.Tensor:
        return torch.autograd.grad(loss(), embedding)[0]

    def closed_form() -> torch.Tensor:
        return gradient(lambda: wandering_loss(embedding, labels, N_CLASSES))

    def by_pairs() -> torch.Tensor:
        return gradient(lambda: masked_pairs(embedding, labels))

    if not torch.allclose(closed_form(), by_pairs(), rtol=1e-3, atol=1e-9):
        raise RuntimeError("Both ways of computing the loss should have one gradient, but they differ.")
    times = 3 if quick else 300
    closed, masked = median_time(closed_form, times=times), median_time(by_pairs, times=times)
    step, overhead = _step_times(epochs=1 if quick else 5, repetitions=1 if quick else 7)
    return {
        "closed_form_share": closed / masked,
        "step_overhead": overhead,
        "speed_up": masked / closed,
        "closed_form_ms": 1e3 * closed,
        "masked_ms": 1e3 * masked,
        "step_ms": 1e3 * step,
    }


def _step_times(*, epochs: int, repetitions: int) -> tuple[float, float]:
    """Seconds a step without the loss, and what share of them the loss adds: the median over neighbouring runs."""
    tables = make_tables()
    model = SplitClassifier(embedding=WIDTH, batch_size=N_BATCH, epochs=epochs, n_iter_no_change=None)

    def seconds(defences: Sequence[Defence]) -> float:
        start = perf_counter()
        simulate(model.fit, tables, roles=ROLES, defences={"bank": defences}, keep="digests")
        return (perf_counter() - start) / (epochs * N_ROWS // N_BATCH)

    pairs = [(seconds([]), seconds([BoundaryWandering()])) for _ in range(repetitions)]
    return median(without for without, _ in pairs), median(with_loss / without - 1 for without, with_loss in pairs)
