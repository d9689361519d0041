"""What a party does to its own network: the rest of the run is honest."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from colonnade.attacks.labels import matching
from colonnade.attacks.labels.completion import ActiveCompletion, EnlargedSteps, ModelCompletion
from colonnade.attacks.labels.matching import BatchLabels, SurrogateTop
from colonnade.attacks.labels.own_steps import played_with
from colonnade.attacks.points import Points
from colonnade.data import load
from colonnade.models.networks.modules import perceptron
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.simulate import simulate
from colonnade.testing import attempt_on

BOTH = Roles(label="bank", features=("shop",))
GRADIENTS = [torch.tensor([1.0, -2.0]), torch.tensor([3.0, 1.0]), torch.tensor([-1.0, 2.0])]


@pytest.fixture(scope="module")
def few():
    return load("breast-cancer", rows=120).split()


def stepped(steps):
    return [steps(gradient).tolist() for gradient in GRADIENTS]


def test_clean_steps_grow_where_they_keep_their_direction_and_momentum_stays_as_it_is():
    # Momentum: 3 + .9 = 3.9 and 1 - 1.8 = -.8, over the step before 3.9 and .4; so 1 + 3.9 and 1 + .4.
    (first, second, third) = stepped(EnlargedSteps(1.0, 0.9, aliased=False))
    assert first == [1.0, -2.0]
    assert second == pytest.approx([3.9 * 4.9, -0.8 * 1.4])
    buffer = (-1 + 0.9 * 3.9, 2 + 0.9 * -0.8)
    assert third == pytest.approx([b * min(max(1 + b / s, 1), 5) for b, s in zip(buffer, second, strict=True)])


def test_aliased_steps_forget_momentum_and_begin_as_twice_the_gradient_times_momentum():
    (first, second, _) = stepped(EnlargedSteps(1.0, 0.9, aliased=True))
    assert first == [1.0, -2.0]
    assert second == pytest.approx([1.8 * 3 * 5, 1.8 * 1 * 1])


def test_without_gain_the_dishonest_optimizer_is_gradient_descent_with_momentum(few):
    plain = {"optimizer": {"shop": "sgd", "default": "adam"}, "learning_rate": {"shop": 0.05, "default": 3e-3}}
    model = SplitClassifier(epochs=2, batch_size=32, n_iter_no_change=None, **plain)
    honest = simulate(model.fit, few, roles=BOTH).results["shop"].bottom_

    def enlarge(number, weights):
        weights.register_hook(EnlargedSteps(0.0, 0.9, aliased=False))

    instead = {"shop": lambda party, protocol: played_with(enlarge, protocol, party, learning_rate=0.05)}
    played = simulate(model.fit, few, roles=BOTH, instead=instead).results["shop"].bottom_
    for one, other in zip(honest.parameters(), played.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_gradient_of_the_own_weights_gives_the_labels_of_a_batch_away(few):
    summed = SplitClassifier(epochs=1, batch_size=40, fusion="sum", top=None, n_iter_no_change=None)
    run = simulate(summed.fit, few, roles=BOTH)
    guess = attempt_on(run, BatchLabels(steps=300)).guess(run.simulation, lambda: run)
    assert len(guess.rows) == 40
    assert (guess.classes == np.asarray(few["bank"].labels)[guess.rows]).mean() > 0.95


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_of_a_surrogate_top_tell_more_labels_than_the_nearest_known_gradient_does(seed):
    """Behind a steep top, rows of one class are sent in many directions."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        top = perceptron(16, (64,), 4)
        torch.nn.utils.vector_to_parameters(3 * torch.nn.utils.parameters_to_vector(top.parameters()), top.parameters())
        e, labels = torch.randn(400, 16, requires_grad=True), torch.randint(4, (400,))
        loss = torch.nn.functional.cross_entropy(top(e), labels, reduction="sum")
        (g,) = torch.autograd.grad(loss, e)
        sent, received = (each.detach().double().numpy() for each in (e, g / g.square().sum(dim=1).mean().sqrt()))
        labels = labels.numpy()
        known = np.concatenate([np.flatnonzero(labels == k)[:4] for k in range(4)])
        directions = Points(np.arange(400), received).directions().values
        first = matching._nearest(directions, known, labels[known], 4)
        found = SurrogateTop()._matched(sent / 4, received, first, known, labels[known])
    right = [(each.argmax(axis=1) == labels).mean() for each in (first, found)]
    assert right[1] > 0.92
    assert right[1] > right[0] + 0.05


@pytest.mark.slow
def test_a_surrogate_that_misleads_is_left_out():
    """The true top sees columns that the surrogate does not: left to itself, matching names hardly half of the rows."""
    tables = load("digits").split()
    run = simulate(SplitClassifier(epochs=15, n_iter_no_change=None).fit, tables, roles=BOTH, seed=0)
    right = []
    for attack in (SurrogateTop(steps=1), SurrogateTop()):
        attempt = attempt_on(run, attack)
        guess = attempt.attack.guess(attempt.view(run))
        right.append((guess.by_class(10).argmax(axis=1) == np.asarray(tables["bank"].labels)[guess.rows]).mean())
    assert right[1] > right[0] - 0.03
    assert right[1] > 0.85


def test_mixmatch_completes_a_frozen_bottom(few):
    run = simulate(SplitClassifier(epochs=10, n_iter_no_change=None).fit, few, roles=BOTH)
    attempt = attempt_on(run, ModelCompletion(fine_tune=False, mixmatch=100))
    guess = attempt.attack.guess(attempt.view(run))
    assert (guess.classes == np.asarray(few["bank"].labels)).mean() > 0.8


@pytest.mark.parametrize("attack", [ActiveCompletion(), BatchLabels()])
def test_only_a_feature_party_of_a_split_network_has_a_network_of_its_own_to_change(few, attack):
    run = simulate(SplitClassifier(epochs=1).fit, few, roles=BOTH)
    view = attempt_on(run, attack).view(run)
    assert attack.why_not(view) is None
    assert attack.why_not(replace(view, party="bank")) == "bank has no part of a split network without labels"
    regression = PublicPlan(BOTH, "LogisticRegression.fit")
    assert "this run trains none" in attack.why_not(replace(view, public=regression))
