"""Every network with every defence of the catalogue, at every party: the pair works, or is refused in words."""

import warnings
from functools import partial

import numpy as np
import pytest

from colonnade.catalogue import DEFENCES
from colonnade.data import load
from colonnade.errors import PlanError
from colonnade.models.networks.labeldp import LabelDPShadow
from colonnade.models.networks.oneshot import OneShotClassifier
from colonnade.models.networks.server import ServedClassifier, UShapeClassifier
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate

WITHOUT = Roles(label="bank", features=("shop",))
SERVER = Roles(label="bank", features=("shop",), server="cloud")
SMALL = {"epochs": 1, "n_iter_no_change": 1, "batch_size": 64, "embedding": 4}
PROXY = {"name": "shadow-proxy", "by": "random"}
NETWORKS = {
    "split": (partial(SplitClassifier, **SMALL), WITHOUT),
    "logits": (partial(SplitClassifier, top=None, fusion="sum", **SMALL), WITHOUT),
    "shadow-proxy": (partial(SplitClassifier, tracks=PROXY, **SMALL), WITHOUT),
    "shadow-top": (partial(SplitClassifier, tracks={"name": "shadow-top", "by": "random"}, **SMALL), WITHOUT),
    "u-shape": (partial(UShapeClassifier, **SMALL), SERVER),
    "u-shape shadow-proxy": (partial(UShapeClassifier, tracks=PROXY, **SMALL), SERVER),
    "served": (partial(ServedClassifier, **SMALL), SERVER),
    "served shadow-proxy": (partial(ServedClassifier, tracks=PROXY, **SMALL), SERVER),
    "one-shot": (partial(OneShotClassifier, leak_budget={"shop": 1.0}, **SMALL), WITHOUT),
    "label-dp": (partial(LabelDPShadow, **SMALL), WITHOUT),
}


@pytest.fixture(scope="module")
def tables():
    return load("breast-cancer", rows=120).split()


PAIRS = [(network, True) for network in NETWORKS]
PAIRS += [(network, False) for network in ("split", "u-shape", "served")]


@pytest.mark.parametrize(("network", "with_columns"), PAIRS)
def test_a_defence_leaves_its_name_on_a_message_or_is_refused(tables, network, with_columns):
    """What is accepted trains, predicts, and had a hand in what was sent or recorded: it does not just do nothing."""
    make, roles = NETWORKS[network]
    if not with_columns:
        tables = {**tables, "bank": tables["bank"].select([])}
    parties = [name for name in ("bank", "shop", roles.server) if name]
    accepted = 0
    for name in DEFENCES:
        for holder in parties:
            defences = {holder: [DEFENCES[name]()]}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    run = simulate(make().fit, tables, roles=roles, defences=defences)
                except PlanError:
                    continue
                shares = {party: share.predict for party, share in run.results.items()}
                predicted = simulate(shares, tables, roles=roles, defences=defences).results["bank"]
            accepted += 1
            assert np.isfinite(predicted.probabilities).all(), (name, holder)
            recorded = run.transcripts[holder]
            under = {each for entry in recorded.entries if entry.sent for each in entry.under}
            # A guard changes nothing, and notes what it saw.
            noted = {note["by"] for note in recorded.notes.values()}
            assert DEFENCES[name]().name in under | noted, (name, holder)
    assert accepted or network == "one-shot"
