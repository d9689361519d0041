from inspect import signature

import numpy as np
import pytest
import torch
from torch import nn

from colonnade.catalogue import MODELS
from colonnade.data import datasets
from colonnade.data.partition import extend
from colonnade.defences.received import InformationBottleneck
from colonnade.devices import DEVICES
from colonnade.errors import BadFrame, DataError, PlanError
from colonnade.models.networks.messages import Embedding, EmbeddingWidth, Gradient
from colonnade.models.networks.split import SplitClassifier, SplitRegressor
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.party import Defence
from colonnade.runtime.protocol import describe_protocol
from colonnade.runtime.simulate import simulate
from colonnade.tables.encode import Inputs
from colonnade.tables.table import Table

BOTH = Roles(label="bank", features=("shop",))
QUICK = {"epochs": 2, "n_iter_no_change": None, "batch_size": 64}


def labels_of(tables):
    return np.asarray(tables["bank"].labels)


def results(run, tables, roles=BOTH, **more):
    return simulate({name: share.predict for name, share in run.results.items()}, tables, roles=roles, **more).results


class OneLayer(nn.Linear):
    """A bottom network of one's own."""

    def __init__(self, inputs: Inputs, width: int) -> None:
        super().__init__(inputs.width, width)


@pytest.mark.parametrize(
    "settings",
    [{}, {"fusion": "sum"}, {"fusion": "sum", "top": None}, {"bottom": OneLayer, "top": "linear", "optimizer": "sgd"}],
)
def test_two_parties_together_learn_to_classify(cancer, settings):
    model = SplitClassifier(epochs=20, n_iter_no_change=None, batch_size=64, learning_rate=0.01, **settings)
    run = simulate(model.fit, cancer, roles=BOTH, seed=1)
    found = results(run, cancer)
    assert found["shop"] is None
    prediction = found["bank"]
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


class Rotating(nn.Module):
    """A bottom whose parameters are complex numbers."""

    def __init__(self, inputs, width):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(inputs.width, width, dtype=torch.complex64) / inputs.width**0.5)

    def forward(self, values):
        return (values.to(torch.complex64) @ self.weights).abs()


def test_a_bottom_with_complex_parameters_trains(cancer):
    run = simulate(SplitClassifier(bottom=Rotating, **QUICK).fit, cancer, roles=BOTH)
    losses = [epoch["loss"] for epoch in run.results["bank"].history_]
    assert losses[-1] < losses[0]


def test_three_parties_and_a_label_party_without_columns():
    tables = datasets.load("breast-cancer").split()
    columns = tables["bank"].columns
    three = {
        "bank": tables["bank"].select([]),
        "shop": tables["shop"],
        "telco": tables["bank"].select(columns[:5]).without_labels(),
    }
    roles = Roles(label="bank", features=("shop", "telco"))
    run = simulate(SplitClassifier(epochs=15, n_iter_no_change=None).fit, three, roles=roles)
    assert run.results["bank"].bottom_ is None
    assert (results(run, three, roles)["bank"].values == labels_of(tables)).mean() > 0.9


def test_text_labels_come_back_as_text(cancer):
    words = np.where(labels_of(cancer) == 1, "böse", "gut")
    tables = {**cancer, "bank": cancer["bank"].with_labels(words)}
    run = simulate(SplitClassifier(**QUICK).fit, tables, roles=BOTH)
    assert set(results(run, tables)["bank"].values) <= {"böse", "gut"}


def test_training_stops_early_and_goes_back_to_the_best_epoch(cancer):
    noise = {**cancer, "bank": cancer["bank"].with_labels(np.random.default_rng(0).integers(0, 2, 569))}
    model = SplitClassifier(epochs=40, n_iter_no_change=2, validation_fraction=0.3, learning_rate=0.02)
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
    before = results(run, cancer)["bank"]
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
    share.history_ = share.history_[:1]
    assert share.summary().endswith("weights after 1 epoch.")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "SplitClassifier's epochs should be 'auto' or a whole number, at least 1, but is 0"),
        ({"epochs": "3"}, "epochs should be 'auto' or a whole number, at least 1, but is '3'"),
        ({"epochs": 2.5}, "epochs should be 'auto' or a whole number, at least 1, but is 2.5"),
        ({"batch_size": True}, "batch_size should be a whole number, at least 1, but is True"),
        ({"n_iter_no_change": 0}, "n_iter_no_change should be None or 'auto' or a whole number, at least 1, but is 0"),
        (
            {"learning_rate": "fast"},
            "learning_rate should be a number, above 0, or a mapping of such values, but is 'fast'",
        ),
        ({"learning_rate": {"shop": float("nan"), "default": 0.1}}, "learning_rate should be a number, above 0"),
        ({"momentum": 1.0}, "momentum should be a number, at least 0 and below 1, but is 1.0"),
        ({"weight_decay": -1.0}, "weight_decay should be 'auto' or a number, at least 0, but is -1.0"),
        (
            {"validation_fraction": "0.1"},
            "validation_fraction should be 'auto' or a number, above 0 and below 1, but is '0.1'",
        ),
        ({"fusion": "max"}, "fusion should be 'concat', 'sum' or 'mean', but is 'max'"),
        ({"top": None}, "top should be a network unless fusion is 'sum', but is None"),
        ({"validation_fraction": 1.0}, "validation_fraction should be 'auto' or a number, above 0 and below 1"),
        ({"optimizer": "lbfgs"}, "optimizer should be 'adam', 'adamw' or 'sgd'"),
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
    words = r"has 2 rows and none is left to train on when validation_fraction = 0\.9 of them are held out"
    with pytest.raises(DataError, match=words):
        simulate(SplitClassifier(validation_fraction=0.9).fit, two, roles=BOTH)


def test_a_prediction_before_training_is_refused(cancer):
    with pytest.raises(PlanError, match="This SplitClassifier cannot be used to predict before it was fitted"):
        simulate(SplitClassifier().predict, cancer, roles=BOTH)


def test_an_embedding_of_another_shape_is_refused(cancer):
    def lies(party, honest):
        party.label_party.receive(EmbeddingWidth)
        party.label_party.send(Embedding(0, np.zeros((3, 16), np.float32)))

    with pytest.raises(
        BadFrame, match=r"Expected split/embedding with values of shape \(64, 16\) between here and shop, got \(3, 16\)"
    ):
        simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH, instead={"shop": lies})


def test_a_defence_that_would_never_be_asked_is_refused(cancer):
    class Relabel(Defence):
        def labels(self, labels, at):
            return 1 - labels

    words = (
        r"shop holds Relabel, which acts on labels, but SplitClassifier never asks .* Give it to the label party, or"
    )
    with pytest.raises(PlanError, match=words):
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
    found = results(run, {"bank": bank.take([1]).without_labels(), "shop": new_shop})
    assert np.isfinite(found["bank"].probabilities).all()


@pytest.mark.parametrize("fusion", ["concat", "sum", "mean"])
def test_a_regression_predicts_in_the_labels_units(numbers, predicted, fusion):
    # A larger rate leaves the mean of a prediction to the last few batches.
    model = SplitRegressor(fusion=fusion, epochs=60, n_iter_no_change=None, batch_size=64, learning_rate=0.001)
    prediction = predicted(simulate(model.fit, numbers, roles=BOTH), numbers)
    truth = labels_of(numbers)
    assert prediction.probabilities is None
    assert 1 - ((prediction.values - truth) ** 2).mean() / truth.var() > 0.95
    assert abs(prediction.values.mean() - truth.mean()) < 2


def test_labels_that_no_regression_can_learn_are_refused(cancer):
    constant = {**cancer, "bank": cancer["bank"].with_labels(np.ones(569))}
    with pytest.raises(DataError, match="bank should have labels that vary to train a regression, but all 569 rows"):
        simulate(SplitRegressor(**QUICK).fit, constant, roles=BOTH)
    vast = {**cancer, "bank": cancer["bank"].with_labels([1e300, *[0.0] * 568])}
    with pytest.raises(DataError, match=r"bank should have labels with a finite mean .* but some are too large\. Clip"):
        simulate(SplitRegressor(**QUICK).fit, vast, roles=BOTH)
    words = {**cancer, "bank": cancer["bank"].with_labels(["a", "b", *["a"] * 567])}
    with pytest.raises(DataError, match="bank should have numbers as labels to train a regression"):
        simulate(SplitRegressor(**QUICK).fit, words, roles=BOTH)


@pytest.mark.parametrize("bottom", ["resnet-mlp", "cnn", pytest.param("resnet-20", marks=pytest.mark.slow)])
def test_the_networks_by_name_learn_images(digits, predicted, bottom):
    settings = {"epochs": 6 if bottom == "resnet-20" else 12, "n_iter_no_change": None, "batch_size": 128}
    run = simulate(SplitClassifier(bottom=bottom, **settings).fit, digits, roles=BOTH)
    assert (predicted(run, digits).values == labels_of(digits)).mean() > 0.85


def test_networks_and_parties_have_optimisers_and_rates_of_their_own(cancer):
    """A rate of next to nothing leaves that network where it was, and only that one."""
    rates = {"shop": 1e-30, "top": 1e-30, "default": 0.01}
    shares = {}
    for epochs in (1, 3):
        settings = {**QUICK, "epochs": epochs, "optimizer": {"shop": "sgd", "default": "adamw"}, "learning_rate": rates}
        shares[epochs] = simulate(SplitClassifier(**settings).fit, cancer, roles=BOTH).results
    for party, network, moves in (("bank", "bottom_", True), ("bank", "top_", False), ("shop", "bottom_", False)):
        before, after = (getattr(shares[epochs][party], network).parameters() for epochs in (1, 3))
        moved = any(not torch.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(before, after, strict=True))
        assert moved == moves, (party, network)


def test_a_network_without_a_rate_is_refused(cancer):
    with pytest.raises(
        PlanError, match=r"learning_rate should have a value for the network 'bottom' of bank, but names"
    ):
        simulate(SplitClassifier(learning_rate={"top": 0.1, "shop": 0.1}).fit, cancer, roles=BOTH)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"learning_rate": {"botom": 1.0, "default": 1e-3}},
            r"learning_rate should be for networks and parties, which are bottom, top, .*, bank, shop, default, but "
            r"names 'botom'\. The nearest name is 'bottom'",
        ),
        ({"optimizer": {"cloud": "sgd", "default": "adam"}}, "optimizer should be for networks .* names 'cloud'"),
        ({"bottom": {"main_top": "mlp", "default": "mlp"}}, "bottom should be for networks .* names 'main_top'"),
    ],
)
def test_values_for_networks_and_parties_that_there_are_not_are_refused(cancer, settings, words):
    with pytest.raises(PlanError, match=words):
        simulate(SplitClassifier(**settings).fit, cancer, roles=BOTH)


def test_networks_of_tracks_and_defences_have_rates_of_their_own(cancer):
    rates = {"public": 1e-3, "private": 1e-3, "shadow_top": 1e-3, "main_top": 1e-3, "defence 0": 1e-3, "bottom": 1e-3}
    model = SplitClassifier(**{**QUICK, "learning_rate": rates, "tracks": "shadow-top", "epochs": 1})
    run = simulate(model.fit, cancer, roles=BOTH, defences={"bank": [InformationBottleneck()]})
    assert len(run.results["bank"].history_) == 1


def test_bottoms_may_differ_between_parties(digits):
    run = simulate(SplitClassifier(bottom={"shop": "cnn", "default": "mlp"}, **QUICK).fit, digits, roles=BOTH)
    assert type(run.results["bank"].bottom_) is not type(run.results["shop"].bottom_)


def test_mixed_precision_learns_and_sends_single_precision(cancer, predicted):
    losses = []

    class Look(Defence):
        def __deepcopy__(self, memo):
            return self

        def loss(self, loss, at):
            losses.append((loss.dtype, at.own["embedding"].dtype, at.outputs.dtype, torch.is_autocast_enabled("cpu")))
            return loss

    model = SplitClassifier(precision="bfloat16", epochs=15, n_iter_no_change=None, batch_size=64, learning_rate=0.01)
    run = simulate(model.fit, cancer, roles=BOTH, defences={"bank": [Look()]})
    assert set(losses) == {(torch.float32, torch.float32, torch.float32, False)}
    (first, *_) = run.transcripts["shop"].messages(Embedding)
    assert first.message.values.dtype == np.float32
    assert (predicted(run, cancer).values == labels_of(cancer)).mean() > 0.93
    exact = simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH).transcripts["shop"].digests()
    rough = (
        simulate(SplitClassifier(precision="bfloat16", **QUICK).fit, cancer, roles=BOTH).transcripts["shop"].digests()
    )
    assert exact != rough


def test_a_gpu_that_is_not_there_is_refused(cancer):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(PlanError, match="The device 'cuda' needs an NVIDIA GPU, but there is none"):
        simulate(SplitClassifier(device="cuda").fit, cancer, roles=BOTH)
    assert simulate(SplitClassifier(device="auto", **QUICK).fit, cancer, roles=BOTH).results["bank"].is_fitted


WITH_A_DEVICE = [name for name, model in MODELS.items() if {"device", "batch_size"} <= {*signature(model).parameters}]


@pytest.mark.parametrize("name", WITH_A_DEVICE)
def test_where_a_party_computes_is_no_part_of_the_public_plan(name):
    plans = [PublicPlan(BOTH, *describe_protocol(MODELS[name](device=device).fit)) for device in DEVICES]
    assert len({plan.hash for plan in plans}) == 1
    assert "device" not in plans[0].settings
    assert plans[0].hash != PublicPlan(BOTH, *describe_protocol(MODELS[name](batch_size=17).fit)).hash


def test_where_a_party_computes_changes_neither_batches_nor_first_weights(cancer):
    """On a machine without a GPU, "auto" is "cpu": then not a bit may differ."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, on which sums come out a little different")
    runs = [simulate(SplitClassifier(device=device, **QUICK).fit, cancer, roles=BOTH) for device in ("cpu", "auto")]
    assert runs[0].transcripts["shop"].digests() == runs[1].transcripts["shop"].digests()


def test_a_share_from_a_machine_with_a_gpu_predicts_on_one_without(cancer, tmp_path):
    run = simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH)
    shares = {}
    for name, share in run.results.items():
        share.set_params(device="cuda").save(tmp_path / name)
        shares[name] = SplitClassifier.load(tmp_path / name, device="cpu")
    loaded = simulate({name: share.predict for name, share in shares.items()}, cancer, roles=BOTH).results["bank"]
    for share in run.results.values():
        share.set_params(device="cpu")
    np.testing.assert_array_equal(loaded.probabilities, results(run, cancer)["bank"].probabilities)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("bank", ["cpu", "cuda"])
# PyTorch says this once in every process whose first use of cuBLAS is in its thread for gradients.
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
def test_a_gpu_trains_to_the_same_losses_within_a_tolerance(cancer, bank):
    """Both parties on a GPU, or only one: batches and first weights are the same as without."""

    def losses(**devices):
        protocols = {name: SplitClassifier(device=device, **QUICK).fit for name, device in devices.items()}
        history = simulate(protocols, cancer, roles=BOTH).results["bank"].history_
        return [record["loss"] for record in history]

    assert losses(bank=bank, shop="cuda") == pytest.approx(losses(bank="cpu", shop="cpu"), rel=1e-2)


def half_of_the_shop(tables):
    """Tables in which the shop holds every other row only."""
    held = tables["shop"].take(np.arange(0, len(tables["shop"]), 2))
    return extend({**tables, "shop": held}, to="bank")


@pytest.mark.parametrize(
    "fusion", [pytest.param("concat", marks=pytest.mark.slow), pytest.param("sum", marks=pytest.mark.slow), "mean"]
)
def test_rows_that_a_feature_party_does_not_hold_are_trained_and_predicted_without_it(digits, predicted, fusion):
    tables = half_of_the_shop(digits)
    model = SplitClassifier(overlap="partial", fusion=fusion, epochs=25, n_iter_no_change=None, batch_size=128)
    run = simulate(model.fit, tables, roles=BOTH, keep="all")
    right = predicted(run, tables).values == labels_of(digits)
    assert right[::2].mean() > 0.95
    assert right[1::2].mean() > 0.85
    for recorded in run.transcripts["bank"].messages(Embedding):
        missing = recorded.rows % 2 == 1
        assert np.isnan(recorded.message.values[missing]).all()
        assert not np.isnan(recorded.message.values[~missing]).any()
    for recorded in run.transcripts["shop"].messages(Gradient):
        assert (recorded.message.values[recorded.rows % 2 == 1] == 0).all(), "nothing is said about rows it lacks"


def test_a_feature_party_that_holds_no_row_is_refused(cancer):
    arrow = cancer["shop"].to_arrow()
    columns = {name: np.full(569, np.nan) for name in cancer["shop"].columns}
    empty = Table.of({"id": arrow.column(cancer["shop"].id_name).to_numpy(), **columns}, owner="shop")
    bank = (
        cancer["bank"]
        .to_arrow()
        .rename_columns(
            ["id" if name == cancer["bank"].id_name else name for name in cancer["bank"].to_arrow().column_names]
        )
    )
    tables = {"bank": Table.of(bank, labels="malignant", owner="bank"), "shop": empty}
    with pytest.raises(DataError, match="shop should hold some of the rows to train on, but all its columns are empty"):
        simulate(SplitClassifier(overlap="partial", **QUICK).fit, tables, roles=BOTH)


def test_a_feature_party_may_weigh_its_own_embedding(cancer):
    """Its loss hook is called with nothing, attached to its embedding, beside its own columns."""
    seen = []

    class Shrink(Defence):
        def __deepcopy__(self, memo):
            return self

        def loss(self, loss, at):
            seen.append((float(loss.detach()), at.inputs.shape, at.labels))
            return loss + 10 * at.own["embedding"].square().mean()

    model = SplitClassifier(epochs=10, n_iter_no_change=None, batch_size=64, learning_rate=0.01)
    lengths = []
    for held in ([], [Shrink()]):
        run = simulate(model.fit, cancer, roles=BOTH, defences={"shop": held})
        lengths.append(
            np.abs(np.concatenate([m.message.values for m in run.transcripts["bank"].messages(Embedding)][-5:]))
        )
    assert lengths[1].mean() < 0.2 * lengths[0].mean()
    assert {value for value, _, _ in seen} == {0.0}
    assert all(shape[1] == 15 and labels is None for _, shape, labels in seen)
    assert {e.under for e in run.transcripts["shop"].entries if e.sent} == {("Shrink",)}


def test_hooks_at_the_label_party_see_outputs_inputs_and_the_number_of_classes(digits):
    seen = set()

    class Look(Defence):
        def __deepcopy__(self, memo):
            return self

        def loss(self, loss, at):
            seen.add((at.track, at.outputs.shape[1], at.inputs.shape[1], at.n_classes, tuple(at.own)))
            return loss

    simulate(SplitClassifier(**QUICK).fit, digits, roles=BOTH, defences={"bank": [Look()]})
    assert seen == {("federated", 10, 32, 10, ("embedding",))}


def test_a_row_that_is_left_over_does_not_stop_batch_normalisation(cancer, predicted):
    """65 rows in batches of 64: the 65th would be a batch without a variance."""

    def normalised(inputs, width):
        return nn.Sequential(nn.Linear(inputs.width, width), nn.BatchNorm1d(width))

    tables = {name: table.take(np.arange(65)) for name, table in cancer.items()}
    run = simulate(SplitClassifier(bottom=normalised, **QUICK).fit, tables, roles=BOTH, keep="all")
    assert [len(sent.rows) for sent in run.transcripts["shop"].messages(Gradient)] == [65, 65]
    assert np.isfinite(predicted(run, tables).probabilities).all()
