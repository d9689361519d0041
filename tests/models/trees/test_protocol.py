"""The protocol of trees under kills: whichever message a party dies at, the forest is the same in the end."""

import multiprocessing
import os
import signal
from itertools import cycle

import numpy as np
import pytest

from colonnade.models.trees.estimator import SecureBoostClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.storage import pack
from colonnade.tables.table import Table
from colonnade.wire.channel import Channel

# A message of every phase: what comes once, keys, sums, splits, sides, held-out rows, the end.
EXACT = [
    "seed-nonce",
    "hint",
    "query-keys",
    "sums-query",
    "sums-answer",
    "side-choices",
    "row-sides",
    "verdict",
    "forest-size",
]
HIDDEN = ["hidden-turn", "shared-sums", "best-shares"]


def train(sums, directory):
    # Hidden sums of two feature parties have a message between these.
    roles = Roles(label="bank", features=("shop", "telco") if sums == "hidden" else ("shop",))
    x = np.random.default_rng(1).normal(size=(60, 3))
    tables = {
        name: Table.of({"id": np.arange(60), name: x[:, place]}, owner=name) for place, name in enumerate(roles.holders)
    }
    tables["bank"] = tables["bank"].with_labels((x.sum(axis=1) > 0).astype(int))
    model = SecureBoostClassifier(
        n_estimators=2, max_depth=1, max_bin=3, early_stopping_rounds=2, leak_budget=None, sums=sums
    )
    return simulate(model.fit, tables, roles=roles, seed=2, directory=directory, checkpoint_every=1)


def live(sums, directory, kind, when):
    """A life that ends with the first message of a kind, before the message is sent or after."""
    honest = Channel.send

    def fatal(line, message, **about):
        due = message.kind == f"trees/{kind}"
        if due and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        honest(line, message, **about)
        if due:
            os.kill(os.getpid(), signal.SIGKILL)

    Channel.send = fatal
    train(sums, directory)


@pytest.mark.slow
@pytest.mark.parametrize(("sums", "kinds"), [("exact", EXACT), ("hidden", HIDDEN)])
def test_a_run_killed_in_every_phase_ends_with_the_same_forest(sums, kinds, tmp_path):
    straight = train(sums, tmp_path / "straight")
    seen = {entry.kind for transcript in straight.transcripts.values() for entry in transcript.entries}
    assert {f"trees/{kind}" for kind in kinds} <= seen
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    for kind, when in zip(kinds, cycle(["before", "after"]), strict=False):
        process = context.Process(target=live, args=(sums, tmp_path / "killed", kind, when))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, (kind, when)
    after = train(sums, tmp_path / "killed")
    for name, share in straight.results.items():
        assert pack(after.results[name].share()) == pack(share.share())
