"""The network and the batches of `split_overhead`, trained by two parties: in one process, and over gRPC with TLS.

Over the network each party is a process of its own, with a thread of its own, as it would be between organisations; the
clock runs from the moment at which both are there until the bank has its share. Every process has trained for an epoch
before it is measured, so that loading PyTorch counts nowhere. All messages are recorded as digests.
The central network is trained in the same run, before and after.
"""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
from collections.abc import Mapping
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from benchmarks.loopback import BANK, SHOP, free_port, issue_certificates
from benchmarks.split_overhead import EMBEDDING, ROLES, Timings, bottom, make_tables, top, train_apart, train_centrally
from colonnade import Party, join
from colonnade.models import SplitClassifier
from colonnade.runtime.party import shared_randomness
from colonnade.runtime.protocol import public_plan
from colonnade.runtime.session import connect
from colonnade.wire.certs.credentials import Credentials
from colonnade.wire.grpc.link import Patience
from colonnade.wire.grpc.transport import GrpcTransport

TARGETS: Mapping[str, float] = {"process_ratio": 1.3, "network_ratio": 2.0}
LEAST: Mapping[str, float] = {"process_ratio": 1.0, "network_ratio": 1.0}
SPAWNING = multiprocessing.get_context("spawn")


def model(epochs: int) -> SplitClassifier:
    """The network of `split_overhead`."""
    return SplitClassifier(
        embedding=EMBEDDING, bottom=bottom, top=top, batch_size=1024, epochs=epochs, n_iter_no_change=None
    )


def take_part(name: str, folder: Path, port: int, epochs: int, times: SimpleQueue[float]) -> None:
    """One party's process: train, and say how long that took."""
    torch.set_num_threads(1)
    estimator, tables = model(epochs), make_tables()
    # What a process loads on its first step takes a second; the others are measured after theirs, too.
    train_apart(model(1), tables, "digests")
    plan = public_plan(estimator.fit, ROLES, seed=0)
    party = connect(
        plan,
        name,
        tables[name],
        transport=GrpcTransport(
            {BANK: f"127.0.0.1:{port}", SHOP: None},
            credentials=Credentials.read(folder, name),
            patience=Patience(start=120, rejoin=60, message=120),
        ),
        directory=folder / name,
        keep="digests",
        checkpoint_every=10**9,
    )

    def train(party: Party) -> None:
        gc.collect()  # what loading has left behind takes a sixth of a second
        begun = perf_counter()
        estimator.fit(party)
        if party.holds_labels:
            times.put(perf_counter() - begun)

    join(train, party)


def over_the_network(epochs: int) -> float:
    """How long training takes two processes, in seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        issue_certificates(folder)
        times: SimpleQueue[float] = SPAWNING.SimpleQueue()
        parties = [SPAWNING.Process(target=take_part, args=(p, folder, port, epochs, times)) for p in (BANK, SHOP)]
        for party in parties:
            party.start()
        for party in parties:
            party.join()
            if party.exitcode != 0:
                raise RuntimeError(f"A party's process should end well, but ended with {party.exitcode}.")
        return times.get()


def measure(*, quick: bool) -> dict[str, float]:
    """Ratios of median times to the central network's."""
    torch.set_num_threads(1)
    epochs, repetitions = (1, 1) if quick else (20, 3)
    estimator, tables = model(epochs), make_tables()
    first = train_apart(estimator, tables, "digests")
    shared = shared_randomness(first.plan, first.id_digest)
    central, process = Timings(), Timings()
    network = []
    for _ in range(repetitions):
        central.add(lambda: train_centrally(estimator, tables, shared))
        process.add(lambda: train_apart(estimator, tables, "digests"))
        network.append(over_the_network(epochs))
        central.add(lambda: train_centrally(estimator, tables, shared))
    alone = median(central.wall)
    return {
        "process_ratio": median(process.wall) / alone,
        "network_ratio": median(network) / alone,
        "process_processor_ratio": median(process.processor) / median(central.processor),
        "central_epoch_ms": 1e3 * alone / epochs,
        "process_epoch_ms": 1e3 * median(process.wall) / epochs,
        "network_epoch_ms": 1e3 * median(network) / epochs,
    }
