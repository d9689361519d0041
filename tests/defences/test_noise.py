import math
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from colonnade.defences.noise import GradientNoise, IsotropicNoise, MaxNorm, blur
from colonnade.errors import PlanError
from colonnade.models.networks.messages import Embedding
from colonnade.privacy.mechanisms import grid_step
from colonnade.privacy.randomness import Randomness
from colonnade.runtime.context import HookContext

ALL = [GradientNoise, IsotropicNoise, MaxNorm]
RANDOM = Randomness.seeded(11, "tests")
N = 200_000


@pytest.fixture
def gradient():
    lengths = torch.linspace(0.001, 0.02, 4000)[:, None]
    directions = torch.nn.functional.normalize(torch.randn(4000, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    return lengths * directions


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_noise_by_ratio_has_the_size_and_the_distribution_it_says(held, leaving, gradient, kind):
    added = held(GradientNoise(ratio=3.0, kind=kind)).outgoing(gradient, leaving(4000)) - gradient
    size = 3 * gradient.square().mean().sqrt().item()
    assert added.std().item() == pytest.approx(size, rel=0.03)
    scale = size if kind == "gaussian" else size / 2**0.5
    distribution = stats.norm if kind == "gaussian" else stats.laplace
    assert stats.kstest(added.flatten().numpy() / scale, distribution.cdf).pvalue > 1e-6


@pytest.mark.parametrize(("kind", "deviation"), [("gaussian", 0.01), ("laplace", 0.01 * 2**0.5)])
def test_noise_by_scale_does_not_depend_on_the_gradient(held, leaving, gradient, kind, deviation):
    for factor in (1.0, 100.0):
        added = held(GradientNoise(scale=0.01, kind=kind)).outgoing(factor * gradient, leaving(4000))
        assert (added - factor * gradient).std().item() == pytest.approx(deviation, rel=0.03)


def test_long_rows_are_shortened_before_the_noise(held, leaving, gradient):
    quiet = held(GradientNoise(scale=1e-9, clip=0.01)).outgoing(gradient, leaving(4000))
    torch.testing.assert_close(quiet.norm(dim=1), gradient.norm(dim=1).clamp_max(0.01), rtol=1e-4, atol=1e-8)


def test_isotropic_noise_is_as_long_as_the_longest_row_times_the_ratio_in_every_direction(held, leaving, gradient):
    added = held(IsotropicNoise(ratio=2.0)).outgoing(gradient, leaving(4000)) - gradient
    assert added.square().sum(dim=1).mean().sqrt().item() == pytest.approx(2 * 0.02, rel=0.03)
    np.testing.assert_allclose(np.corrcoef(added.T.numpy()), np.eye(8), atol=0.07)


def test_under_max_norm_lengths_say_nothing_and_the_part_along_the_gradient_stays(held, leaving, gradient):
    sent = held(MaxNorm(least=1.0, most=10.0)).outgoing(gradient, leaving(4000))
    lengths = sent.norm(dim=1) / gradient.norm(dim=1).max()
    assert lengths.min() > 1 - 1e-4
    assert lengths.max() < 10 + 1e-3
    assert stats.kstest((lengths.numpy() - 1) / 9, "uniform").pvalue > 1e-6
    assert abs(stats.spearmanr(lengths, gradient.norm(dim=1)).statistic) < 0.06
    along = (sent * torch.nn.functional.normalize(gradient, dim=1)).sum(dim=1)
    torch.testing.assert_close(along, gradient.norm(dim=1), rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("defence", ALL)
def test_embeddings_empty_gradients_and_gradients_that_are_not_finite_pass_untouched(held, leaving, defence):
    ready = held(defence())
    values = torch.ones(3, 4)
    assert ready.outgoing(values, HookContext(0, 0, np.arange(3), "train", peer="shop", message=Embedding)) is values
    for nothing in (torch.zeros(3, 4), torch.full((3, 4), torch.nan)):
        assert ready.outgoing(nothing, leaving(3)) is nothing


@pytest.mark.parametrize("defence", ALL)
def test_a_repeated_step_gets_the_same_noise_and_any_other_gets_its_own(held, leaving, gradient, defence):
    ready = held(defence())
    sent = ready.outgoing(gradient, leaving(4000))
    assert torch.equal(ready.outgoing(gradient, leaving(4000)), sent)
    for other in (
        ready.outgoing(gradient, leaving(4000, step=1)),
        held(defence(), seed=1).outgoing(gradient, leaving(4000)),
    ):
        assert abs(np.corrcoef((other - gradient).flatten(), (sent - gradient).flatten())[0, 1]) < 0.05


@pytest.mark.parametrize("defence", ALL)
def test_a_step_that_is_repeated_with_another_gradient_gets_other_noise(held, leaving, gradient, defence):
    ready = held(defence())
    one, other = (ready.outgoing(sign * gradient, leaving(4000)) - sign * gradient for sign in (1, -1))
    assert abs(np.corrcoef(one.flatten(), other.flatten())[0, 1]) < 0.05


@pytest.mark.parametrize("defence", ALL)
def test_half_precision_gradients_stay_half(held, leaving, gradient, defence):
    sent = held(defence()).outgoing(gradient.bfloat16(), leaving(4000))
    assert sent.dtype == torch.bfloat16
    assert torch.isfinite(sent.float()).all()


def test_max_norm_needs_room_across_the_gradient(held, leaving):
    with pytest.raises(PlanError, match=r"MaxNorm adds noise across gradients, but these are 1 wide\. Use a wider"):
        held(MaxNorm()).outgoing(torch.ones(3, 1), leaving(3))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: GradientNoise(ratio=0.0),
            "GradientNoise's ratio should be a number, above 0, but is 0.0. Change it",
        ),
        (
            lambda: GradientNoise(scale=-1.0),
            "scale should be None or a number, above 0, but is -1.0. Change it",
        ),
        (
            lambda: GradientNoise(clip=0.0),
            "clip should be None or a number, above 0, but is 0.0. Change it",
        ),
        (lambda: GradientNoise(kind="cauchy"), "kind should be 'gaussian' or 'laplace', but is 'cauchy'. Change it"),
        (
            lambda: IsotropicNoise(ratio=-1.0),
            "IsotropicNoise's ratio should be a number, above 0, but is -1.0. Change it",
        ),
        (
            lambda: MaxNorm(least=0.5),
            "MaxNorm's least should be a number, at least 1, but is 0.5. Change it",
        ),
        (lambda: MaxNorm(least=3.0, most=2.0), "MaxNorm's least should be at most most = 2.0, but is 3.0. Change one"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(make, words):
    with pytest.raises(PlanError, match=re.escape(words)):
        make()


def test_names_say_how_much():
    assert GradientNoise(scale=0.01).name == "GradientNoise(scale=0.01)"


def test_noise_alone_is_a_function_of_its_path():
    one, same, other = (blur((20, 3), 0.5, "gaussian", RANDOM, ("gradient", step)) for step in (1, 1, 2))
    assert one.shape == (20, 3)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert blur((0, 3), 0.5, "laplace", RANDOM, ()).shape == (0, 3)


def test_noise_is_the_same_on_every_platform():
    steps = blur((3,), 1.0, "gaussian", Randomness.seeded(1), ("a",)) / grid_step(1.0)
    assert np.rint(steps).tolist() == [-1031.0, 363.0, -247.0]
    steps = blur((3,), 1.0, "laplace", Randomness.seeded(1), ("a",)) / grid_step(1.0)
    assert np.rint(steps).tolist() == [-1186.0, 332.0, -216.0]


def test_steps_of_a_run_have_uncorrelated_noise():
    draws = [blur((N // 4,), 1.0, "gaussian", RANDOM, ("run", step)) for step in range(4)]
    for one, other in pairwise(draws):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(N // 4)


@pytest.mark.parametrize("defence", [GradientNoise(ratio=5.0), GradientNoise(scale=0.1), IsotropicNoise(ratio=5.0)])
def test_the_lowest_digits_of_a_gradient_are_under_noise(held, leaving, gradient, defence):
    """Modulo any step far below the noise, what leaves is uniform and tells nothing of the gradient."""
    left = held(defence).outgoing(gradient, leaving(4000)).double()
    deviation = (left - gradient).std().item()
    for step in (grid_step(deviation), grid_step(deviation) / 2):
        share = (left.numpy() / step) % 1
        assert stats.kstest(share.ravel(), stats.uniform.cdf).pvalue > 1e-6
        of_gradient = (gradient.double().numpy() / step) % 1
        # With noise on the grid, the difference would be the same for every number.
        assert stats.kstest(((share - of_gradient) % 1).ravel(), stats.uniform.cdf).pvalue > 1e-6


def test_noise_without_a_scale_is_refused():
    with pytest.raises(PlanError) as caught:
        blur((2,), 0.0, "gaussian", RANDOM, ())
    assert str(caught.value) == "Expected scale to be positive and finite, got 0.0. Correct scale."
