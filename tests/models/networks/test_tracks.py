from functools import partial

import numpy as np
import pytest
import torch

from colonnade.defences.wandering import BoundaryWandering
from colonnade.errors import DataError, PlanError
from colonnade.models.networks.messages import Gradient
from colonnade.models.networks.split import SplitClassifier, SplitRegressor
from colonnade.models.networks.tracks import ShadowProxy, ShadowTop, SingleTrack, tracks_of
from colonnade.plans.plan import Plan
from colonnade.roles import Roles
from colonnade.runtime.party import Defence
from colonnade.runtime.simulate import simulate

BOTH = Roles(label="bank", features=("shop",))
QUICK = {"epochs": 2, "n_iter_no_change": None, "batch_size": 64}
TWO = [ShadowProxy(by="random"), ShadowTop(by="random")]


def labels_of(tables):
    return np.asarray(tables["bank"].labels)


class Look(Defence):
    """Sees every loss with its surroundings, and changes none."""

    def __init__(self, see):
        self.see = see

    def __deepcopy__(self, memo):
        return self

    def loss(self, loss, at):
        self.see(loss, at)
        return loss


@pytest.mark.parametrize("tracks", [TWO[0], pytest.param(TWO[1], marks=pytest.mark.slow)])
def test_both_heads_learn_and_the_local_one_predicts_unless_another_is_asked_for(digits, predicted, tracks):
    model = SplitClassifier(tracks=tracks, epochs=25, n_iter_no_change=None, batch_size=128)
    run = simulate(model.fit, digits, roles=BOTH, seed=1)
    federated, local = (predicted(run, digits, head=head) for head in ("federated", "local"))
    assert (federated.values == labels_of(digits)).mean() > 0.95
    assert (local.values == labels_of(digits)).mean() > 0.85
    np.testing.assert_array_equal(predicted(run, digits).probabilities, local.probabilities)


def test_a_single_track_has_no_local_head(cancer, predicted):
    run = simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH)
    with pytest.raises(PlanError, match="'local' was asked for and the tracks are SingleTrack"):
        predicted(run, cancer, head="local")


@pytest.mark.parametrize("tracks", TWO)
def test_each_track_trains_only_its_own_networks(cancer, tracks):
    """After either track's loss alone, gradients are None wherever the other track's networks begin.

    What came in is cut off for hooks, so that only what is sent back shows which loss reaches the sender: see below.
    """
    flows = []

    def see(loss, at):
        live = {name: end for name, end in at.own.items() if end.requires_grad}
        gradients = torch.autograd.grad(loss, list(live.values()), retain_graph=True, allow_unused=True)
        reached = {name for name, gradient in zip(live, gradients, strict=True) if gradient is not None}
        flows.append((at.track, frozenset(reached)))

    model = SplitClassifier(tracks=tracks, **QUICK)
    simulate(model.fit, cancer, roles=BOTH, defences={"bank": [Look(see)]})
    assert set(flows) == {("federated", frozenset({"public"})), ("local", frozenset({"private"}))}


@pytest.mark.parametrize("tracks", TWO)
def test_a_step_of_the_local_track_leaves_no_gradient_in_the_federated_networks(cancer, tracks):
    """And a step of the federated track leaves none in the local ones."""
    left = []

    class Zero(Defence):
        """Takes one track's loss away, so that only the other could leave a gradient."""

        def __init__(self, track):
            self.track = track

        def loss(self, loss, at):
            return loss if at.track != self.track else torch.zeros((), requires_grad=True)

    for silent in ("federated", "local"):
        model = SplitClassifier(tracks=tracks, epochs=1, n_iter_no_change=None, batch_size=1000)
        run = simulate(model.fit, cancer, roles=BOTH, defences={"bank": [Zero(silent)]}, keep="all")
        share = run.results["bank"]
        sent = [each.message.values for each in run.transcripts["bank"].messages(Gradient, sent=True)]
        assert sent
        # The sender hears of the federated loss, and of nothing else.
        assert bool(np.concatenate(sent).any()) == (silent == "local")
        federated = [p.grad for net in (share.bottom_, share.top_) for p in net.parameters()]
        local = [p.grad for p in share.local_.parameters()]
        left.append(([g is None for g in federated], [g is None for g in local]))
    (federated_silent, local_heard), (federated_heard, local_silent) = left
    assert all(federated_silent)
    assert not any(local_heard)
    assert not any(federated_heard)
    assert all(local_silent)


@pytest.mark.parametrize("kernel", ["cosine", "gaussian"])
@pytest.mark.parametrize("tracks", TWO)
def test_wandering_of_the_public_embedding_does_not_change_the_gradient_that_leaves(cancer, tracks, kernel):
    """From identical states: the first gradients are equal for alpha 0 and 5, and later ones are not."""
    sent = []
    for alpha in (0.0, 5.0):
        model = SplitClassifier(tracks=tracks, **QUICK)
        held = BoundaryWandering(alpha=alpha, kernel=kernel)
        run = simulate(model.fit, cancer, roles=BOTH, defences={"bank": [held]}, seed=3, keep="all")
        sent.append([m.message.values for m in run.transcripts["shop"].messages(Gradient)])
    np.testing.assert_array_equal(sent[0][0], sent[1][0])
    assert not np.array_equal(sent[0][-1], sent[1][-1])


@pytest.mark.parametrize("kind", ["shadow-proxy", "shadow-top"])
def test_what_a_feature_party_sees_does_not_depend_on_private_columns(cancer, kind):
    """Frames to the shop are the same when private columns hold something else, early stopping included."""
    private = ("mean_radius", "worst_radius")
    generator = np.random.default_rng(0)
    arrow = cancer["bank"].to_arrow()
    for name in private:
        column = generator.permutation(np.asarray(arrow.column(name)))
        arrow = arrow.set_column(arrow.column_names.index(name), name, [column])
    from colonnade.tables.table import Table

    changed = {**cancer, "bank": Table.of(arrow, ids=cancer["bank"].id_name, labels="malignant", owner="bank")}
    seen = []
    for tables in (cancer, changed):
        model = SplitClassifier(tracks={"name": kind, "columns": private}, epochs=6, n_iter_no_change=2)
        run = simulate(model.fit, tables, roles=BOTH, seed=5)
        local = run.results["bank"].history_[-1]["local_loss"]
        seen.append((run.transcripts["shop"].digests(), local))
    assert seen[0][0] == seen[1][0]
    assert seen[0][1] != seen[1][1]


def test_the_private_columns_are_chosen_on_training_rows_only(cancer):
    """Labels of held-out rows have no say: permuting them leaves the partition as it is."""
    from colonnade.models.batches import hold_out

    model = SplitClassifier(tracks=ShadowTop(private=0.3), epochs=1, validation_fraction=0.4)
    first = simulate(model.fit, cancer, roles=BOTH)
    n = len(cancer["bank"])
    _, held_out = hold_out(n, 0.4, _shared(first))
    labels = labels_of(cancer).copy()
    labels[held_out] = 1 - labels[held_out]
    second = first.again(labels=labels)
    assert first.results["bank"].partition_ == second.results["bank"].partition_
    assert (
        first.again(labels=1 - labels_of(cancer)[::-1]).results["bank"].partition_ != first.results["bank"].partition_
    )


def _shared(run):
    from colonnade.runtime.party import shared_randomness

    return shared_randomness(run.plan, run.id_digest)


def test_an_untrained_main_top_stays_as_it_was_drawn(cancer):
    share = {}
    for epochs in (1, 3):
        tracks = ShadowTop(by="random", train_main_top=False)
        model = SplitClassifier(tracks=tracks, **{**QUICK, "epochs": epochs})
        share[epochs] = simulate(model.fit, cancer, roles=BOTH, seed=2).results["bank"].local_
    for one, other in zip(share[1].head.parameters(), share[3].head.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    pairs = zip(share[1].private.parameters(), share[3].private.parameters(), strict=True)
    assert not all(torch.equal(one, other) for one, other in pairs)


def test_tops_may_differ(cancer):
    tracks = ShadowTop(by="random", shadow_top="linear", main_top="mlp")
    share = simulate(SplitClassifier(tracks=tracks, **QUICK).fit, cancer, roles=BOTH).results["bank"]
    assert type(share.top_) is torch.nn.Linear
    assert type(share.local_.head) is torch.nn.Sequential


def test_labels_may_differ_between_the_tracks(cancer, predicted):
    """What only the federated track is told never reaches the local one."""

    class FlipFederated(Defence):
        def labels(self, labels, at):
            return 1 - labels if at.track == "federated" else labels

    model = SplitClassifier(tracks=ShadowTop(by="random"), epochs=15, n_iter_no_change=None, batch_size=64)
    run = simulate(model.fit, cancer, roles=BOTH, defences={"bank": [FlipFederated()]})
    accuracy = {h: (predicted(run, cancer, head=h).values == labels_of(cancer)).mean() for h in ("federated", "local")}
    assert accuracy["federated"] < 0.1
    assert accuracy["local"] > 0.9


@pytest.mark.slow
def test_two_tracks_regress_as_well(numbers, predicted):
    model = SplitRegressor(
        tracks=ShadowTop(private=0.34), epochs=60, n_iter_no_change=None, batch_size=64, learning_rate=0.01
    )
    prediction = predicted(simulate(model.fit, numbers, roles=BOTH), numbers)
    truth = labels_of(numbers)
    assert 1 - ((prediction.values - truth) ** 2).mean() / truth.var() > 0.95


def test_counts_are_ranked_as_numbers_when_they_are_regressed(numbers):
    """Whole numbers of many values: as classes of their own, no column would say more than any other."""
    counts = {**numbers, "bank": numbers["bank"].with_labels(np.rint(labels_of(numbers) * 10).astype(int))}
    model = SplitRegressor(tracks=ShadowTop(private=0.34), **QUICK)
    scores = simulate(model.fit, counts, roles=BOTH).results["bank"].partition_.scores
    as_measured = {**counts, "bank": counts["bank"].with_labels(labels_of(counts).astype(float))}
    measured = simulate(model.fit, as_measured, roles=BOTH).results["bank"].partition_.scores
    assert scores == pytest.approx(measured)


def test_saved_tracks_are_read_back(cancer, predicted, tmp_path):
    tracks = ShadowTop(private=0.3, by="random", main_top="linear")
    run = simulate(SplitClassifier(tracks=tracks, **QUICK).fit, cancer, roles=BOTH)
    loaded = {}
    for name, share in run.results.items():
        share.save(tmp_path / name)
        loaded[name] = SplitClassifier.load(tmp_path / name)
    assert tracks_of(loaded["bank"].tracks) == tracks
    assert loaded["bank"].partition_ == run.results["bank"].partition_
    for head in ("federated", "local"):
        after = simulate({n: partial(e.predict, head=head) for n, e in loaded.items()}, cancer, roles=BOTH)
        before = predicted(run, cancer, head=head)
        np.testing.assert_array_equal(after.results["bank"].probabilities, before.probabilities)


def own_top(n_in, n_out):
    return torch.nn.Linear(n_in, n_out)


def test_tracks_with_a_network_of_ones_own_must_be_given_again_when_loading(cancer, tmp_path):
    tracks = ShadowTop(by="random", main_top=own_top)
    run = simulate(SplitClassifier(tracks=tracks, **QUICK).fit, cancer, roles=BOTH)
    run.results["bank"].save(tmp_path / "bank")
    with pytest.raises(PlanError, match=r"was fitted with tracks=.*which a file cannot hold. Give it again"):
        SplitClassifier.load(tmp_path / "bank")
    assert SplitClassifier.load(tmp_path / "bank", tracks=tracks).local_ is not None


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("single", SingleTrack()),
        ({"name": "shadow-proxy", "private": 0.3}, ShadowProxy(private=0.3)),
        ({"name": "shadow-top", "columns": ["a", "b"]}, ShadowTop(columns=("a", "b"))),
        (ShadowTop(), ShadowTop()),
    ],
)
def test_tracks_are_named_in_several_ways(choice, expected):
    assert tracks_of(choice) == expected


def test_a_plan_names_tracks_and_rates_in_sections_of_their_own(tmp_path):
    text = """
        [data]
        name = "breast-cancer"
        [roles]
        label = "bank"
        features = ["shop"]
        [model]
        name = "split-classifier"
        bottom = "resnet-mlp"
        [model.learning_rate]
        shop = 0.001
        default = 0.003
        [model.tracks]
        name = "shadow-top"
        private = 0.3
    """
    (tmp_path / "plan.toml").write_text(text)
    plan = Plan.read(tmp_path / "plan.toml")
    (tmp_path / "again.toml").write_text(plan.to_toml())
    for read in (plan, Plan.read(tmp_path / "again.toml")):
        model = read.model.build()
        assert tracks_of(model.tracks) == ShadowTop(private=0.3)
        assert model.learning_rate == {"shop": 0.001, "default": 0.003}


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("shadow_top", r"tracks should be one of single, shadow-proxy, shadow-top, but is 'shadow_top'"),
        (
            {"name": "shadow-top", "privat": 0.3},
            r"The choice of tracks 'shadow-top' takes private, by, .* but has the key 'privat'",
        ),
    ],
)
def test_unknown_tracks_are_refused(cancer, choice, words):
    with pytest.raises(PlanError, match=words):
        simulate(SplitClassifier(tracks=choice).fit, cancer, roles=BOTH)


def test_private_columns_that_do_not_exist_or_are_all_there_are_refused(cancer):
    with pytest.raises(DataError, match=r"bank's private columns should be columns of its table, but age are not"):
        simulate(SplitClassifier(tracks=ShadowTop(columns=("age",))).fit, cancer, roles=BOTH)
    everything = ShadowTop(columns=cancer["bank"].columns)
    with pytest.raises(DataError, match=r"bank should keep some columns private and use some in public, but 15 of 15"):
        simulate(SplitClassifier(tracks=everything).fit, cancer, roles=BOTH)
