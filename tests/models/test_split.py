import numpy as np
import pytest
import torch
from torch import nn

from colonnade.data import datasets
from colonnade.errors import BadFrame, DataError, PlanError
from colonnade.hooks import Defence
from colonnade.models.inputs import Inputs
from colonnade.models.split import Embedding, Gradient, Outline, SplitClassifier
from colonnade.run import simulate
from colonnade.table import Table
from colonnade.wire.plan import Roles

BOTH = Roles(label="bank", features=("shop",))
QUICK = {"epochs": 2, "patience": None, "batch_size": 64}


@pytest.fixture(scope="module")
def cancer():
    return datasets.load("breast-cancer").split()


def labels_of(tables):
    return np.asarray(tables["bank"].labels)


def predicted(run, tables, roles=BOTH, **more):
    return simulate({name: share.predict for name, share in run.results.items()}, tables, roles=roles, **more).results


class OneLayer(nn.Linear):
    """A bottom network of one's own."""

    def __init__(self, inputs: Inputs, width: int) -> None:
        super().__init__(inputs.width, width)


@pytest.mark.parametrize(
    "settings",
    [{}, {"fusion": "sum"}, {"fusion": "sum", "top": None}, {"bottom": OneLayer, "top": "linear", "optimiser": "sgd"}],
)
def test_two_parties_together_learn_to_classify(cancer, settings):
    model = SplitClassifier(epochs=20, patience=None, batch_size=64, learning_rate=0.01, **settings)
    run = simulate(model.fit, cancer, roles=BOTH, seed=1)
    results = predicted(run, cancer)
    assert results["shop"] is None
    prediction = results["bank"]
    assert (prediction.values == labels_of(cancer)).mean() > 0.95
    np.testing.assert_allclose(prediction.probabilities.sum(axis=1), 1, atol=1e-5)


def test_it_computes_what_one_network_in_one_place_would(cancer):
    """Oracle: the same modules, batches and optimisers, joined by ordinary autograd."""
    model = SplitClassifier(fusion="concat", **QUICK)
    run = simulate(model.fit, cancer, roles=BOTH, seed=4)
    started = simulate(
        SplitClassifier(**{**QUICK, "epochs": 1, "learning_rate": 1e-30}).fit, cancer, roles=BOTH, seed=4
    )
    bank, shop = started.results["bank"], started.results["shop"]
    nets = [bank.bottom_, bank.top_, shop.bottom_]
    optimisers = [torch.optim.Adam([*nets[0].parameters(), *nets[1].parameters()], 3e-3)]
    optimisers += [torch.optim.Adam(nets[2].parameters(), 3e-3)]
    x = {name: torch.from_numpy(run.results[name].inputs_.encode(cancer[name])) for name in ("bank", "shop")}
    y = torch.from_numpy(labels_of(cancer).astype(np.int64))
    for message in run.transcripts["shop"].messages(Gradient):
        rows = torch.from_numpy(message.rows)
        joined = torch.cat([nets[0](x["bank"][rows]), nets[2](x["shop"][rows])], dim=1)
        loss = nn.functional.cross_entropy(nets[1](joined), y[rows])
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
    together = [run.results["bank"].bottom_, run.results["bank"].top_, run.results["shop"].bottom_]
    for mine, theirs in zip(nets, together, strict=True):
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_three_parties_and_a_label_party_without_columns():
    tables = datasets.load("breast-cancer").split()
    columns = tables["bank"].columns
    three = {
        "bank": tables["bank"].select([]),
        "shop": tables["shop"],
        "telco": tables["bank"].select(columns[:5]).without_labels(),
    }
    roles = Roles(label="bank", features=("shop", "telco"))
    run = simulate(SplitClassifier(epochs=15, patience=None).fit, three, roles=roles)
    assert run.results["bank"].bottom_ is None
    assert (predicted(run, three, roles)["bank"].values == labels_of(tables)).mean() > 0.9


def test_text_labels_come_back_as_text(cancer):
    words = np.where(labels_of(cancer) == 1, "böse", "gut")
    tables = {**cancer, "bank": cancer["bank"].with_labels(words)}
    run = simulate(SplitClassifier(**QUICK).fit, tables, roles=BOTH)
    assert set(predicted(run, tables)["bank"].values) <= {"böse", "gut"}


def test_training_stops_early_and_goes_back_to_the_best_epoch(cancer):
    noise = {**cancer, "bank": cancer["bank"].with_labels(np.random.default_rng(0).integers(0, 2, 569))}
    model = SplitClassifier(epochs=40, patience=2, validation=0.3, learning_rate=0.02)
    run = simulate(model.fit, noise, roles=BOTH)
    history = run.results["bank"].history_
    losses = [epoch["validation_loss"] for epoch in history]
    assert len(history) == int(np.argmin(losses)) + 3 < 40
    assert len(run.results["shop"].history_) == len(history)


def test_without_patience_nothing_is_held_out_and_no_verdict_is_sent(cancer):
    run = simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH)
    kinds = {entry.kind for entry in run.transcripts["shop"].entries}
    assert kinds == {"split/outline", "split/embedding", "split/gradient"}


def test_the_parties_shares_are_their_own(cancer):
    run = simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH)
    bank, shop = run.results["bank"], run.results["shop"]
    assert bank is not shop
    assert shop.top_ is None
    assert not hasattr(shop, "classes_")
    assert bank.inputs_.numeric != shop.inputs_.numeric


def test_a_saved_share_predicts_the_same(cancer, tmp_path):
    run = simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH)
    loaded = {}
    for name, share in run.results.items():
        share.save(tmp_path / name)
        loaded[name] = SplitClassifier.load(tmp_path / name)
    before = predicted(run, cancer)["bank"]
    after = simulate({n: e.predict for n, e in loaded.items()}, cancer, roles=BOTH).results["bank"]
    np.testing.assert_array_equal(before.probabilities, after.probabilities)


def test_a_network_of_ones_own_must_be_given_again_when_loading(cancer, tmp_path):
    run = simulate(SplitClassifier(bottom=OneLayer, **QUICK).fit, cancer, roles=BOTH)
    run.results["shop"].save(tmp_path / "shop")
    with pytest.raises(PlanError, match=r"was fitted with bottom=.*OneLayer, which a file cannot hold. Give it again"):
        SplitClassifier.load(tmp_path / "shop")
    assert SplitClassifier.load(tmp_path / "shop", bottom=OneLayer).bottom_ is not None


def test_a_summary_says_what_each_role_learns(cancer):
    share = simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH).results["bank"]
    assert "A feature party learns gradients at the cut, hence maybe labels." in share.summary()
    assert "weights after 2 epochs" in share.summary()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "epochs should be at least 1, but is 0"),
        ({"batch_size": 0}, "batch_size should be at least 1"),
        ({"fusion": "max"}, "fusion should be 'concat', 'sum' or 'mean', but is 'max'"),
        ({"top": None}, "top should be a network unless fusion is 'sum', but is None"),
        ({"validation": 1.0}, "validation should be between 0 and 1"),
        ({"optimiser": "lbfgs"}, "optimiser should be 'adam', 'adamw' or 'sgd'"),
        ({"bottom": "mpl"}, "There is no bottom network 'mpl'; there are mlp"),
    ],
)
def test_impossible_settings_are_refused(cancer, settings, words):
    with pytest.raises(PlanError, match=words):
        simulate(SplitClassifier(**settings).fit, cancer, roles=BOTH)


def test_impossible_tables_are_refused(cancer):
    one_class = {**cancer, "bank": cancer["bank"].with_labels(np.ones(569))}
    with pytest.raises(
        DataError, match=r"bank should have labels of at least two classes.* but all 569 rows are of one"
    ):
        simulate(SplitClassifier().fit, one_class, roles=BOTH)
    unlabelled = {**cancer, "bank": cancer["bank"].without_labels()}
    with pytest.raises(DataError, match="bank is the label party but its table has no labels"):
        simulate(SplitClassifier().fit, unlabelled, roles=BOTH)
    bare = {**cancer, "shop": cancer["shop"].select([])}
    with pytest.raises(DataError, match="shop is a feature party but its table has no columns"):
        simulate(SplitClassifier().fit, bare, roles=BOTH)
    one_row = {name: table.take([0]) for name, table in cancer.items()}
    with pytest.raises(DataError, match=r"labels of at least two classes.* but all 1 rows"):
        simulate(SplitClassifier().fit, one_row, roles=BOTH)


def test_too_few_rows_to_hold_some_out_are_refused(cancer):
    two = {name: table.take([0, 1]) for name, table in cancer.items()}
    with pytest.raises(DataError, match=r"has 2 rows, of which none is left to train on when 90% are held out"):
        simulate(SplitClassifier(validation=0.9).fit, two, roles=BOTH)


def test_a_prediction_before_training_is_refused(cancer):
    with pytest.raises(PlanError, match="This SplitClassifier cannot be used to predict before it was fitted"):
        simulate(SplitClassifier().predict, cancer, roles=BOTH)


def test_an_embedding_of_another_shape_is_refused(cancer):
    def lies(party, honest):
        party.label_party.receive(Outline)
        party.label_party.send(Embedding(0, np.zeros((3, 16), np.float32)))

    with pytest.raises(
        BadFrame, match=r"Expected split/embedding with values of shape \(64, 16\) between here and shop, got \(3, 16\)"
    ):
        simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH, instead={"shop": lies})


def test_a_defence_that_would_never_be_asked_is_refused(cancer):
    class Relabel(Defence):
        def labels(self, labels, at):
            return 1 - labels

    with pytest.raises(PlanError, match="shop holds Relabel, which acts on labels, but SplitClassifier never asks"):
        simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH, defences={"shop": [Relabel()]})


def test_a_defence_can_ask_what_the_gradient_would_be_for_other_labels(cancer):
    seen = []

    class Look(Defence):
        def outgoing(self, tensor, at):
            seen.append(
                (
                    torch.allclose(at.gradient_if(at.labels), tensor, atol=1e-7),
                    torch.allclose(at.gradient_if(1 - at.labels), tensor, atol=1e-7),
                )
            )
            return tensor

    simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH, defences={"bank": [Look()]})
    assert seen
    assert set(seen) == {(True, False)}


def test_unknown_columns_and_levels_do_not_stop_a_prediction(cancer):
    n = 40
    generator = np.random.default_rng(0)
    shop = Table.of({"id": range(n), "city": generator.choice(["Zürich", "北京"], n), "x": generator.random(n)})
    bank = Table.of({"id": range(n), "y": generator.integers(0, 2, n)}, labels="y")
    run = simulate(SplitClassifier(**QUICK).fit, {"bank": bank, "shop": shop}, roles=BOTH)
    new_shop = Table.of({"id": [1], "city": ["São Paulo"], "x": np.array([np.nan])})
    results = predicted(run, {"bank": bank.take([1]).without_labels(), "shop": new_shop})
    assert np.isfinite(results["bank"].probabilities).all()
