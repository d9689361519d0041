"""A party whose columns and embeddings say nothing attacks as others do, and its audit ends."""

import numpy as np
import pytest

from colonnade.attacks.base import ActiveAttack
from colonnade.auditing.engine import make
from colonnade.auditing.settings import Simulated
from colonnade.catalogue import attacks_of_audit
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table


@pytest.fixture(scope="module")
def run():
    random, ids = np.random.default_rng(0), np.arange(200)
    columns = {"weight": random.normal(size=200), "label": random.integers(2, size=200)}
    tables = {
        "bank": Table.of({"id": ids, **columns}, labels="label", owner="bank"),
        "shop": Table.of({"id": ids, "constant": np.ones(200)}, owner="shop"),
    }
    model = SplitClassifier(epochs=2, n_iter_no_change=None)
    return simulate(model.fit, tables, roles=Roles(label="bank", features=("shop",)))


ATTACKS = [
    attack
    for attack in attacks_of_audit(thorough=True)
    if attack.about is Secret.LABELS and not isinstance(attack, ActiveAttack)
]
QUICK = ("RandomisedPosterior", "Distillation", "EmbeddingProbe")


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(attack, marks=[] if type(attack).__name__ in QUICK else pytest.mark.slow, id=str(place))
        for place, attack in enumerate(ATTACKS)
    ],
)
def test_every_form_of_every_attack_on_labels_ends(run, attack):
    made, untested = make(Simulated(run), [attack])
    assert len(made) + len(untested) >= 1
