"""Clusters that are started here: who else reaches them, and what stays of them."""

import os
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from colonnade.runtime.clusters import (
    dask_cluster,
    in_pool,
    n_fitting,
    on_gpus,
    places_here,
    ray_cluster,
    worker_environment,
)

ASK_DASK = """
import sys, distributed
client = distributed.Client(sys.argv[1].replace("tls://", "tcp://"), timeout=5)
print("reached", client.run(len, ()))
"""
ASK_RAY = """
import sys
from ray._raylet import GcsClient
print("reached", GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, timeout=5))
"""


def stranger(code, address):
    """What another program on this machine is answered, one that knows the address and has the same home."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    asked = [sys.executable, "-c", code, address]
    return subprocess.run(asked, capture_output=True, text=True, env=known, timeout=120, check=False)


@pytest.mark.parametrize(
    ("found", "gpus", "places"),
    [
        ("0,1", 0.6, ["0", "1"]),
        ("0,1", 0.5, ["0", "0", "1", "1"]),
        ("0,1,2", 0.7, ["0", "1", "2"]),
        ("0,1,2,3,4", 2, ["0,1", "2,3"]),
    ],
)
def test_every_worker_sees_the_gpus_that_it_asked_for(found, gpus, places, monkeypatch):
    """A share is of one GPU: what is left of two makes no third worker, which would see none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", found)
    assert [place["CUDA_VISIBLE_DEVICES"] for place in places_here(9, 1, gpus)] == places
    assert n_fitting([(9, len(found.split(",")))], 1, gpus) == len(places)


def test_a_share_of_a_gpu_fits_as_often_as_it_says(monkeypatch):
    """1 / (1 / 93) is a little less than 93."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for n in range(1, 200):
        assert on_gpus(1, 1 / n) == in_pool(1, 1 / n) == len(places_here(1000, 1, 1 / n)) == n


def test_of_dask_s_gpus_tasks_take_shares_as_of_any_number():
    """A worker that is started here says that it has what one task takes of a GPU."""
    assert [in_pool(gpus, gpus) for gpus in (0.1, 0.3, 0.5, 1, 2)] == [1] * 5
    assert n_fitting([(4, 0.5), (4, 0.5)], 1, 0.5, in_pool) == 2
    assert n_fitting([(4, 2)], 1, 0.6, in_pool) == 3
    assert n_fitting([(4, 0.5)], 1, 0.5) == 0


@pytest.mark.slow
def test_a_dask_cluster_that_is_started_here_answers_no_other_program():
    with dask_cluster(None, [worker_environment(1)]) as client:
        assert client.submit(abs, -1).result() == 1
        answer = stranger(ASK_DASK, client.scheduler.address)
    assert answer.returncode != 0
    assert "reached" not in answer.stdout
    assert "CommClosedError" in answer.stderr


@pytest.mark.slow
def test_two_dask_clusters_are_started_on_one_machine():
    with socket.socket() as other:
        with suppress(OSError):  # Another cluster has that port already.
            other.bind(("127.0.0.1", 8787))  # Where every scheduler of Dask listens unless it is told otherwise.
            other.listen()
        with dask_cluster(None, [worker_environment(1)]) as client:
            assert client.submit(abs, -1).result() == 1


@pytest.mark.slow
def test_a_ray_cluster_that_is_started_here_answers_no_other_program_and_leaves_nothing(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    before = dict(os.environ)
    with ray_cluster(cores=1) as ray:
        folder = Path(ray._private.worker._global_node.get_session_dir_path()).parents[1]
        answer = stranger(ASK_RAY, ray.get_runtime_context().gcs_address)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert answer.returncode != 0
    assert "reached" not in answer.stdout
    assert "AuthenticationError" in answer.stderr
    assert not folder.exists()
    assert {name: os.environ[name] for name in before} == before
    assert "RAY_AUTH_TOKEN" not in os.environ
