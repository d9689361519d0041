"""Every arrangement of parties exchanges the same frames between processes as within one."""

import json
import os
from pathlib import Path

import pytest
import torch

from colonnade.catalogue import MODELS
from colonnade.data import load
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.testing.ports import free_port
from tests.e2e.forked import Forked

SCRIPT = Path(__file__).parent / "train.py"
BRIEF = {"epochs": 2, "batch_size": 64}


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("split-regressor", {**BRIEF, "tracks": {"name": "shadow-top", "by": "random"}}),
        ("u-shape-classifier", {**BRIEF, "tracks": {"name": "shadow-proxy", "by": "random"}}),
        ("served-classifier", BRIEF),
        ("one-shot", {**BRIEF, "leak_budget": {"shop": 1.0}}),
        ("label-dp-shadow", BRIEF),
    ],
)
def test_frames_are_the_same_over_grpc_and_in_memory(model, settings, tmp_path):
    server = "cloud" if "server" in MODELS[model].hooks else None
    roles = Roles(label="bank", features=("shop",), server=server)
    addresses = json.dumps({name: f"127.0.0.1:{free_port()}" for name in roles.parties})
    log = tmp_path / "log"
    processes = [
        Forked(SCRIPT, [name, model, str(tmp_path), json.dumps(settings), addresses], dict(os.environ), log)
        for name in roles.parties
    ]
    assert [process.wait() for process in processes] == [0] * len(processes), log.read_text()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run = simulate(MODELS[model](**settings).fit, load("breast-cancer").split(), roles=roles)
    finally:
        torch.set_num_threads(threads)
    for name in roles.parties:
        assert (tmp_path / f"{name}.digests").read_text() == repr(run.transcripts[name].digests()), name
