import pytest

from colonnade.data import load
from colonnade.experiment.traffic import needs_classes, traffic
from colonnade.models.split import SplitClassifier
from colonnade.run import simulate
from colonnade.wire.plan import Roles

ROLES = Roles(label="bank", features=("shop", "telco"))


@pytest.fixture(scope="module")
def tables():
    return load("bank-shop-telco", rows=300).split()


@pytest.mark.parametrize(
    "parameters",
    [
        {"epochs": 3, "patience": None, "batch_size": 32},
        # Steps and epochs whose numbers take one, two and three bytes.
        {"epochs": 140, "patience": 1000, "batch_size": 64, "validation": 0.13},
        {"epochs": 2, "fusion": "sum", "top": None, "patience": None, "batch_size": 64},
    ],
)
def test_the_bytes_of_a_training_are_known_before_it_runs(tables, parameters):
    model = SplitClassifier(**parameters)
    transcript = simulate(model.fit, tables, roles=ROLES, keep="digests").transcripts["shop"]
    expected = traffic(model, len(tables["bank"]), n_classes=2)
    assert expected.up == sum(entry.size for entry in transcript.entries if entry.sent)
    assert expected.down == sum(entry.size for entry in transcript.entries if not entry.sent)
    assert expected.exact == (parameters["patience"] is None)


def test_a_model_that_stops_early_sends_less_than_the_most(tables):
    model = SplitClassifier(epochs=50, patience=1, batch_size=64, learning_rate=0.5)
    transcript = simulate(model.fit, tables, roles=ROLES, keep="digests").transcripts["shop"]
    expected = traffic(model, len(tables["bank"]), n_classes=2)
    assert sum(entry.size for entry in transcript.entries) < expected.up + expected.down
    assert not expected.exact


def test_only_summed_logits_need_the_number_of_classes():
    assert needs_classes(SplitClassifier(fusion="sum", top=None))
    assert not needs_classes(SplitClassifier())
