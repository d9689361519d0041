"""What predictions need of the defences that were held in training."""

import re

import numpy as np
import pytest
import torch

from colonnade.align import Align, Aligned
from colonnade.catalogue import DEFENCES
from colonnade.defences.compression import DiscreteGradient, SparseGradient
from colonnade.defences.confusion import ConfusionalAutoencoder
from colonnade.defences.labels import RandomisedLabels
from colonnade.defences.noise import GradientNoise
from colonnade.defences.received import EarlierCut, InformationBottleneck
from colonnade.errors import PlanError
from colonnade.models.networks.labeldp import LabelDPShadow
from colonnade.models.networks.messages import Embedding
from colonnade.models.networks.oneshot import OneShotClassifier
from colonnade.models.networks.server import ServedClassifier
from colonnade.models.networks.split import SplitClassifier, SplitRegressor
from colonnade.privacy.randomness import PublicRandomness
from colonnade.roles import Roles
from colonnade.runtime.party import Defence
from colonnade.runtime.simulate import simulate

BOTH = Roles(label="bank", features=("shop",))
SERVER = Roles(label="bank", features=("shop",), server="cloud")
QUICK = {"epochs": 1, "n_iter_no_change": None, "batch_size": 64}


class Turned(Defence):
    """A feature party's embedding leaves with its coordinates in another order."""

    acts_on = (Embedding,)

    def outgoing(self, tensor, at):
        return tensor.flip(1)


class Halved(Defence):
    """Whatever leaves is half as large."""

    def outgoing(self, tensor, at):
        return tensor / 2


class Blunt(Defence):
    """Predictions are given away in tenths."""

    def prediction(self, prediction, at):
        return torch.round(prediction, decimals=1)


def refusal(party, wanted, held):
    return re.escape(
        f"{party} should predict with the defences of its training that predictions depend on, {wanted}; of that kind "
        f"it now holds {held}. Give it the same, with the same settings and in the same order; defences of other kinds "
        "may differ."
    )


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("defence", [ConfusionalAutoencoder(), InformationBottleneck(), EarlierCut()])
def test_a_prediction_without_a_defence_that_it_depends_on_is_refused(cancer, predicted, defence, is_loaded, tmp_path):
    run = simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH, defences={"bank": [GradientNoise(), defence]})
    if is_loaded:
        for name, share in run.results.items():
            share.save(tmp_path / name)
            run.results[name] = SplitClassifier.load(tmp_path / name)
    with pytest.raises(PlanError, match=refusal("bank", defence.name, "none")):
        predicted(run, cancer, defences={"bank": [GradientNoise()]})


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ([ConfusionalAutoencoder(), EarlierCut()], "ConfusionalAutoencoder(entropy=1), EarlierCut(layers=2)"),
        ([EarlierCut(layers=1), ConfusionalAutoencoder()], "EarlierCut(layers=1), ConfusionalAutoencoder(entropy=1)"),
        (
            [EarlierCut(), *[ConfusionalAutoencoder()] * 2],
            "EarlierCut(layers=2)" + 2 * ", ConfusionalAutoencoder(entropy=1)",
        ),
    ],
    ids=["another order", "other settings", "one more"],
)
def test_a_prediction_with_other_defences_than_in_training_is_refused(cancer, predicted, held, words):
    trained = {"bank": [EarlierCut(), ConfusionalAutoencoder()]}
    run = simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH, defences=trained)
    wanted = "EarlierCut(layers=2), ConfusionalAutoencoder(entropy=1)"
    with pytest.raises(PlanError, match=refusal("bank", wanted, words)):
        predicted(run, cancer, defences={"bank": held})


def test_a_defence_that_has_learned_nothing_in_training_is_refused_in_a_prediction(cancer, predicted):
    run = simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH)
    with pytest.raises(PlanError, match=refusal("bank", "none", "EarlierCut(layers=2)")):
        predicted(run, cancer, defences={"bank": [EarlierCut()]})


def test_what_is_sent_counts_for_predictions_only_where_it_is_about_features(cancer, predicted):
    run = simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH, defences={"bank": [Halved()], "shop": [Halved()]})
    with pytest.raises(PlanError, match=refusal("shop", "Halved", "none")):
        predicted(run, cancer)
    assert predicted(run, cancer, defences={"shop": [Halved()]}).values.size


@pytest.mark.parametrize("name", sorted(DEFENCES))
def test_a_defence_is_held_through_an_alignment_that_is_kept_in_a_folder(cancer, name, tmp_path):
    fit = Aligned(Align(), SplitClassifier(**QUICK, embedding=4).fit)
    defences = {"bank": [DEFENCES[name]()]}
    try:
        simulate(SplitClassifier(**QUICK, embedding=4).fit, cancer, roles=BOTH, defences=defences)
    except PlanError:
        pytest.skip(f"{name} is not for this model's label party")
    kept, not_kept = (
        simulate(fit, cancer, roles=BOTH, defences=defences, directory=folder).results["bank"]
        for folder in (tmp_path, None)
    )
    assert kept.history_ == not_kept.history_


def test_defences_that_predictions_do_not_depend_on_come_and_go(cancer, predicted):
    needed = [EarlierCut(), ConfusionalAutoencoder()]
    trained = [SparseGradient(residual="row"), needed[0], DiscreteGradient(), needed[1], RandomisedLabels()]
    run = simulate(SplitClassifier(**QUICK).fit, cancer, roles=BOTH, defences={"bank": trained})
    assert [learned["name"] for learned in run.results["bank"].defences_] == [each.name for each in needed]
    seen = [
        predicted(run, cancer, defences={"bank": held}).probabilities
        for held in (trained, needed, [needed[0], GradientNoise(), needed[1]])
    ]
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(seen[0], seen[2])


@pytest.mark.parametrize(
    ("model", "roles", "party", "defence"),
    [
        (SplitClassifier(**QUICK), BOTH, "shop", Turned()),
        (ServedClassifier(**QUICK), SERVER, "cloud", EarlierCut()),
        (LabelDPShadow(**QUICK), BOTH, "bank", EarlierCut()),
        (OneShotClassifier(epochs=1, leak_budget={"shop": 1.0}), BOTH, "shop", Turned()),
        (OneShotClassifier(epochs=1, leak_budget={"shop": 1.0}), BOTH, "bank", Blunt()),
    ],
    ids=lambda each: type(each).__name__,
)
def test_every_party_of_every_network_predicts_with_the_defences_of_its_training(
    cancer, predicted, model, roles, party, defence
):
    run = simulate(model.fit, cancer, roles=roles, defences={party: [defence]})
    assert predicted(run, cancer, roles=roles, defences={party: [defence]}) is not None
    with pytest.raises(PlanError, match=refusal(party, defence.name, "none")):
        predicted(run, cancer, roles=roles)


def test_a_shadow_predicts_with_the_defences_of_its_training(cancer, predicted):
    run = simulate(LabelDPShadow(**QUICK).fit, cancer, roles=BOTH, defences={"bank": [EarlierCut()]})
    with pytest.raises(PlanError, match=refusal("bank", "EarlierCut(layers=2)", "none")):
        predicted(run, cancer, head="federated")


@pytest.mark.parametrize(
    ("settings", "n_rows", "epochs", "patience"),
    [
        ({}, 800, 334, 34),  # 640 rows to train on are three steps
        ({}, 100_000, 30, 5),
        ({"batch_size": 32}, 600, 67, 7),
        ({"epochs": 30, "n_iter_no_change": 5}, 600, 30, 5),
        ({"n_iter_no_change": None}, 600, 334, None),
    ],
)
def test_by_default_a_small_table_is_trained_for_as_many_steps_as_a_large_one(settings, n_rows, epochs, patience):
    model = SplitClassifier(**settings)
    schedule = model.schedule(None, n_rows, PublicRandomness.seeded(0))
    assert (schedule.epochs, schedule.patience) == (epochs, patience)
    assert model.epochs_on(n_rows) == epochs


@pytest.mark.parametrize(
    ("settings", "n_rows", "decay", "n_held_out"),
    [
        ({}, 2_499, 1_500 / 2_499, 500),
        ({}, 2_500, 0.0, 250),
        ({}, 600, 2.5, 120),
        ({}, 100, 6.0, 20),
        ({"n_iter_no_change": None}, 600, 2.5, 0),
        ({"epochs": 7}, 600, 0.0, 60),
        ({"weight_decay": 0.5}, 600, 0.5, 120),
        ({"validation_fraction": 0.3}, 600, 2.5, 180),
    ],
)
def test_small_tables_have_a_weight_decay_and_hold_a_fifth_out_where_epochs_are_not_chosen(
    settings, n_rows, decay, n_held_out
):
    model = SplitClassifier(**settings)
    optimizers = model.optimizer_settings(n_rows)
    assert (optimizers.weight_decay, optimizers.decoupled) == (decay, decay not in (0.0, 0.5))
    assert sum(map(len, model.schedule(None, n_rows, PublicRandomness.seeded(0)).held_out)) == n_held_out
    again = model.clone().set_params(**model.counted_on(n_rows)).schedule(None, n_rows, PublicRandomness.seeded(0))
    assert (again.epochs, sum(map(len, again.held_out))) == (model.epochs_on(n_rows), n_held_out)


def test_regressors_have_no_weight_decay_and_hold_a_tenth_out_however_small_the_table_is():
    model = SplitRegressor()
    assert model.optimizer_settings(600).weight_decay == 0
    assert model.held_out_on(600) == 0.1
