import numpy as np
import pytest

from colonnade import audit
from colonnade.errors import DataError, LeakBudgetSpent, PlanError, ProtocolError
from colonnade.models.networks.encoders import ENCODERS, ColumnMoments
from colonnade.models.networks.messages import Embedding, LeakStatement
from colonnade.models.networks.oneshot import OneShotClassifier, OneShotRegressor
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.party import Defence
from colonnade.runtime.simulate import simulate
from colonnade.tables.encode import Inputs
from colonnade.tables.placement import InMemory
from colonnade.tables.table import Table

BOTH = Roles(label="bank", features=("shop",))
ALL = {"shop": 1.0}


def labels_of(tables):
    return np.asarray(tables["bank"].labels)


@pytest.mark.parametrize("encoder", ["pca", "rff", pytest.param("autoencoder", marks=pytest.mark.slow)])
def test_it_learns_from_a_label_free_embedding(digits, predicted, encoder):
    run = simulate(OneShotClassifier(leak_budget=ALL, encoder=encoder, epochs=15).fit, digits, roles=BOTH)
    assert (predicted(run, digits).values == labels_of(digits)).mean() > 0.95


def test_it_regresses(numbers, predicted):
    model = OneShotRegressor(
        leak_budget=ALL, epochs=80, n_iter_no_change=None, learning_rate=0.01, batch_size=64, most_rebuilt=1.0
    )
    prediction = predicted(simulate(model.fit, numbers, roles=BOTH), numbers)
    truth = labels_of(numbers)
    assert 1 - ((prediction.values - truth) ** 2).mean() / truth.var() > 0.95


@pytest.mark.parametrize("encoder", ENCODERS)
def test_frames_of_a_feature_party_do_not_depend_on_labels(cancer, encoder):
    """Permuted labels, early stopping and prediction included: the shop sends and receives the very same."""
    shuffled = cancer["bank"].with_labels(np.random.default_rng(1).permutation(labels_of(cancer)))
    seen = []
    for bank in (cancer["bank"], shuffled):
        tables = {**cancer, "bank": bank}
        run = simulate(
            OneShotClassifier(leak_budget=ALL, encoder=encoder, epochs=12, n_iter_no_change=1).fit, tables, roles=BOTH
        )
        again = simulate({n: e.predict for n, e in run.results.items()}, tables, roles=BOTH)
        received = [e for t in (run, again) for e in t.transcripts["shop"].entries if not e.sent]
        assert received == []
        lengths = len(run.results["bank"].history_)
        seen.append((run.transcripts["shop"].digests(), again.transcripts["shop"].digests(), lengths))
    assert seen[0][:2] == seen[1][:2]
    assert seen[0][2] != seen[1][2], "training should have taken another number of epochs, which nobody was told"


def test_no_attack_finds_anything_to_read(cancer):
    from colonnade.catalogue import ATTACKS

    run = simulate(OneShotClassifier(leak_budget=ALL, epochs=2).fit, cancer, roles=BOTH)
    report = audit(run, [ATTACKS["norm-score"](), ATTACKS["direction-score"]()], nulls=1)
    assert report.attacks == ()
    assert any("shop sent and received no split/gradient" in why for why in report.untested)


def test_so_many_components_as_columns_are_the_columns(cancer):
    with pytest.raises(LeakBudgetSpent, match=r"shop allows 99% of its columns' variance .* but 100.0% could be"):
        simulate(OneShotClassifier(leak_budget={"shop": 0.99}, components=15).fit, cancer, roles=BOTH)


def test_fewer_components_leak_less_and_both_sides_say_how_much(cancer):
    shares = {}
    for components in (2, 12):
        run = simulate(OneShotClassifier(leak_budget=ALL, components=components, epochs=1).fit, cancer, roles=BOTH)
        shares[components] = run.results
    few, many = (shares[n]["shop"].leak_ for n in (2, 12))
    assert 0 < many.relative_mse < 0.1 < few.relative_mse < 1
    assert many.worst_r2 > few.worst_r2
    assert shares[2]["bank"].stated_["shop"]["relative_mse"] == few.relative_mse
    assert f"Of shop's columns, by its own measurement: {few}" in shares[2]["bank"].summary()
    assert f"Of this party's columns: {few} (column {few.worst_column!r})" in shares[2]["shop"].summary()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, r"leak_budget has no value for it. There is no default: shop's owner sets it. With 0, shop sends nothing"),
        ({"leak_budget": {"shop": 2.0}}, "leak_budget should be a share from 0 to 1, but for shop it is 2.0. Have"),
        ({"leak_budget": {"shop": float("nan")}}, "leak_budget should be a share from 0 to 1, but for shop it is nan"),
        ({"leak_budget": {"shop": "0.9"}}, "leak_budget should be a share from 0 to 1, but for shop it is '0.9'"),
        ({"leak_budget": 0.9}, r"leak_budget should give a share .*, but is 0.9. Write {'shop': 0.9}"),
        ({"leak_budget": {"shop": 0.9, "bank": 0.9}}, "leak_budget should name feature parties, which are shop, but"),
        (
            {"leak_budget": ALL, "column_budget": {"shp": 0.5}},
            "column_budget should name feature parties, which are shop, but names 'shp'. The nearest name is 'shop'",
        ),
        ({"leak_budget": ALL, "column_budget": {"shop": 90.0}}, "column_budget should be a share .* for shop it is 90"),
        ({"leak_budget": ALL, "column_budget": {"shop": float("nan")}}, "column_budget .* but for shop it is nan"),
        ({"leak_budget": ALL, "column_budget": {"shop": True}}, "column_budget .* but for shop it is True"),
    ],
)
def test_a_budget_that_would_not_hold_is_refused_by_every_party(cancer, settings, words):
    refused = []

    def look(mine, honest):
        with pytest.raises(PlanError, match=words):
            honest(mine)
        refused.append(mine.name)

    run = simulate(OneShotClassifier(**settings).fit, cancer, roles=BOTH, instead={"bank": look, "shop": look})
    assert sorted(refused) == ["bank", "shop"]
    assert all(not transcript.entries for transcript in run.transcripts.values())


def test_a_budget_for_single_columns_is_kept(cancer):
    model = OneShotClassifier(leak_budget=ALL, column_budget={"shop": 0.5}, components=8)
    with pytest.raises(LeakBudgetSpent, match=r"shop allows 50% of any column's variance to be rebuilt .* of '\w+'"):
        simulate(model.fit, cancer, roles=BOTH)


def test_a_budget_of_nothing_says_what_could_be_rebuilt_and_lets_nothing_leave(cancer):
    with pytest.raises(LeakBudgetSpent, match=r"shop allows 0% of .* but 9\d\.\d% could be \(relative MSE 0\.0\d"):
        simulate(OneShotClassifier(leak_budget={"shop": 0}, most_rebuilt=1.0).fit, cancer, roles=BOTH)


def test_a_party_over_its_budget_sends_nothing_though_others_may_have_sent(cancer):
    """Nobody waits for the others' measurement: to hear of it, a feature party would have to be sent something."""
    shop = cancer["shop"]
    tables = {**cancer, "shop": shop.select(shop.columns[:7]), "telco": shop.select(shop.columns[7:])}

    def look(mine, honest):
        if mine.name == "telco":
            with pytest.raises(LeakBudgetSpent, match="telco allows 10%"):
                honest(mine)
        elif mine.name == "shop":
            honest(mine)

    roles, budget = Roles(label="bank", features=("shop", "telco")), {"shop": 1.0, "telco": 0.1}
    run = simulate(
        OneShotClassifier(leak_budget=budget, epochs=1).fit, tables, roles=roles, instead=dict.fromkeys(tables, look)
    )
    sent = {name: [entry.kind for entry in run.transcripts[name].entries if entry.sent] for name in roles.features}
    assert sent == {"shop": ["one-shot/statement", "split/embedding"], "telco": []}


@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_embedding_is_as_wide_as_its_encoder_says(cancer, encoder):
    run = simulate(OneShotClassifier(leak_budget=ALL, encoder=encoder, components=5, epochs=1).fit, cancer, roles=BOTH)
    assert run.results["bank"].stated_["shop"]["width"] == 5 * ENCODERS[encoder].per_component
    assert f"an embedding by {encoder} of 5 components, sent once" in run.results["shop"].summary()


def test_noise_on_the_embedding_counts_in_what_can_be_rebuilt(cancer):
    class Noise(Defence):
        acts_on = (Embedding,)

        def before_run(self, party):
            self.random = party.random

        def outgoing(self, tensor, at):
            import torch

            noise = self.random.generator("noise", at.phase).standard_normal(tuple(tensor.shape))
            return tensor + torch.from_numpy(noise).to(tensor.dtype)

    model = OneShotClassifier(leak_budget=ALL, components=10, epochs=1)
    bare = simulate(model.fit, cancer, roles=BOTH)
    noisy = simulate(model.fit, cancer, roles=BOTH, defences={"shop": [Noise()]})
    assert noisy.results["shop"].leak_.relative_mse > bare.results["shop"].leak_.relative_mse + 0.2
    predicting = {name: share.predict for name, share in noisy.results.items()}
    later = simulate(predicting, cancer, roles=BOTH, defences={"shop": [Noise()]})
    for run in (noisy, later):
        (entry,) = [e for e in run.transcripts["shop"].entries if e.kind == "split/embedding"]
        assert entry.under == ("Noise",)


def test_the_width_follows_from_explained_variance():
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2000, 3)) @ np.diag([10.0, 3.0, 1.0])
    moments, flat = (ColumnMoments.of(InMemory((0, len(each)), [each])) for each in (x, np.ones((5, 2))))
    assert [moments.width_by_variance(share) for share in (0.5, 0.95, 0.999, 1.0)] == [1, 2, 3, 3]
    assert flat.width_by_variance(0.9) == 0


def test_categories_become_one_number_for_each_level():
    table = Table.of({"id": range(4), "x": [1.0, 2.0, 3.0, 4.0], "city": ["a", "b", "a", None]})
    inputs = Inputs.learned(table, np.arange(4))
    x, owners = inputs.one_hot(table)
    assert owners == ("x", "city", "city", "city")
    np.testing.assert_array_equal(x[:, 1:], [[0, 1, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]])


def test_columns_that_do_not_vary_are_refused(cancer):
    flat = Table.of({"id": cancer["shop"].ids, "x": np.ones(569)}, owner="shop")
    with pytest.raises(DataError, match="shop should have a column whose values vary, but all 569 rows are alike"):
        simulate(OneShotClassifier(leak_budget=ALL).fit, {**cancer, "shop": flat}, roles=BOTH)


def test_an_absurd_width_is_refused(cancer):
    def lies(party, honest):
        party.label_party.send(LeakStatement(10**9, 0.5, 0.5))

    with pytest.raises(ProtocolError, match=r"with width from 1 to 100000 from shop, got one with width 1e\+09"):
        simulate(OneShotClassifier(leak_budget=ALL).fit, cancer, roles=BOTH, instead={"shop": lies})


@pytest.mark.parametrize("figures", [(float("nan"), 0.5), (0.5, 1.5), (-0.1, 0.5)])
def test_an_absurd_statement_is_refused(cancer, figures):
    def lies(party, honest):
        party.label_party.send(LeakStatement(4, *figures))

    words = r"with (relative_mse|worst_r2) from 0 to 1 from shop, got one with \1 (nan|1\.5|-0\.1)\."
    with pytest.raises(ProtocolError, match=words):
        simulate(OneShotClassifier(leak_budget=ALL).fit, cancer, roles=BOTH, instead={"shop": lies})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"encoder": "umap"}, "encoder should be 'pca', 'rff' or 'autoencoder', but is 'umap'"),
        ({"variance": 0.0}, "variance should be a number, above 0 and at most 1"),
        ({"components": 0}, "components should be None or a whole number, at least 1"),
        ({"batch_size": 0}, "batch_size should be a whole number, at least 1"),
        ({"device": "tpu"}, "device should be 'cpu', 'cuda' or 'auto', but is 'tpu'"),
    ],
)
def test_impossible_settings_are_refused(cancer, settings, words):
    with pytest.raises(PlanError, match=words):
        simulate(OneShotClassifier(leak_budget=ALL, **settings).fit, cancer, roles=BOTH)


@pytest.mark.slow
def test_nuisance_columns_do_not_make_it_worse_than_the_label_party_alone(digits, predicted):
    """The stress set: 96 high-variance columns of 24 dimensions beside the digits' own, over three draws."""
    from colonnade.data import train_test_split

    accuracies = {"one shot": [], "alone": []}
    for seed in range(3):
        generator = np.random.default_rng(seed)
        noise = generator.standard_normal((1797, 24)) @ (2 * generator.standard_normal((24, 96)) / 24**0.5)
        arrow = digits["shop"].to_arrow()
        for i in range(96):
            arrow = arrow.append_column(f"nuisance_{i}", [noise[:, i]])
        stressed = {**digits, "shop": Table.of(arrow, ids=digits["shop"].id_name, owner="shop")}
        train, test = train_test_split(stressed, test=0.3, seed=seed)
        run = simulate(OneShotClassifier(leak_budget=ALL).fit, train, roles=BOTH, seed=seed)
        accuracies["one shot"].append((predicted(run, test).values == labels_of(test)).mean())
        alone = [{"bank": part["bank"].select([]), "shop": part["bank"].without_labels()} for part in (train, test)]
        run = simulate(SplitClassifier().fit, alone[0], roles=BOTH, seed=seed)
        accuracies["alone"].append((predicted(run, alone[1]).values == labels_of(test)).mean())
    assert np.mean(accuracies["one shot"]) >= np.mean(accuracies["alone"])


@pytest.mark.parametrize("name", ["breast-cancer", "digits", "bank-shop-telco"])
def test_no_column_is_rebuilt_above_the_bound_by_default(name):
    from colonnade.data import load

    tables = {party: table.take(np.arange(500)) for party, table in load(name).split().items()}
    roles = Roles(label="bank", features=tuple(party for party in tables if party != "bank"))
    budget = dict.fromkeys(roles.features, 1.0)
    run = simulate(OneShotClassifier(leak_budget=budget, epochs=1).fit, tables, roles=roles)
    free = simulate(OneShotClassifier(leak_budget=budget, epochs=1, most_rebuilt=1.0).fit, tables, roles=roles)
    assert max(run.results[party].leak_.worst_r2 for party in roles.features) <= 0.95
    assert max(free.results[party].leak_.worst_r2 for party in roles.features) > 0.95
    for party in roles.features:
        assert 1 < run.results["bank"].stated_[party]["width"] <= free.results["bank"].stated_[party]["width"]


def test_an_only_column_is_sent_for_it_cannot_be_hidden(cancer):
    tables = {**cancer, "shop": cancer["shop"].select(cancer["shop"].columns[:1])}
    run = simulate(OneShotClassifier(leak_budget=ALL, epochs=1).fit, tables, roles=BOTH)
    assert run.results["shop"].leak_.worst_r2 > 0.99
    with pytest.raises(LeakBudgetSpent, match="allows 90% of any column's variance to be rebuilt"):
        simulate(OneShotClassifier(leak_budget=ALL, column_budget={"shop": 0.9}, epochs=1).fit, tables, roles=BOTH)


def test_columns_of_few_values_are_recognised_in_any_mixture_and_cost_few_components(cancer):
    flags = np.eye(12, dtype=int)[np.random.default_rng(0).integers(12, size=len(cancer["bank"]))]
    shop = Table.of({"id": cancer["shop"].ids, **{f"soil_{i}": flags[:, i] for i in range(12)}}, owner="shop")
    widths = []
    for bound in (0.95, 1.0):
        model = OneShotClassifier(leak_budget=ALL, epochs=1, most_rebuilt=bound)
        run = simulate(model.fit, {**cancer, "shop": shop}, roles=BOTH)
        widths.append(run.results["bank"].stated_["shop"]["width"])
        assert run.results["shop"].leak_.worst_r2 > 0.95
    assert 0.75 * widths[1] < widths[0] <= widths[1]
