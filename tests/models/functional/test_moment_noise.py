"""What leaves a ring of products carries noise in every bit: attacks on the lowest bits, and how these are spread."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from colonnade.curves import BSplines, Curves
from colonnade.models.functional import moments_masked, moments_shared
from colonnade.models.functional.messages import NoisyShares
from colonnade.models.functional.moment_regression import MomentRegression
from colonnade.models.functional.moments_masked import MomentBudget, Reach, clipped_to_ring, ring_product
from colonnade.models.functional.moments_shared import OpenedShares
from colonnade.privacy.mechanisms import grid_step
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table

N, EPSILON, CLIPS = 500, 0.1, {"clip_x": 5.5, "clip_y": 5.0}
X_BASIS, Y_BASIS = BSplines((0, 23), 10), BSplines((0, 23), 20)
VICTIMS = np.arange(20) * 7 + 3
TWO = Roles(label="label", features=("shop",))
THREE = Roles(label="label", features=("shop", "bank"), arbiter="arbiter")


def inputs(seed):
    return Curves(np.random.default_rng(seed).normal(size=(N, 10)) * 0.4, X_BASIS)


def of_coordinates(z):
    w, v = np.linalg.eigh(Y_BASIS.gram)
    return Curves(z @ np.linalg.inv(v @ np.diag(np.sqrt(w)) @ v.T), Y_BASIS)


def chosen_output(bits):
    """An output that the label party makes up: for each victim one coordinate, of one unit of the ring."""
    z = np.zeros((N, 20))
    z[VICTIMS, np.arange(20)] = 1.5 * 2.0**-bits
    return of_coordinates(z)


def opened(monkeypatch, module, model, x, y, roles):
    """A run, and all rings of numbers that the label party turned into products, in turn: its own memory."""
    seen, original = [], module.from_ring

    def spy(values, bits):
        seen.append((values.copy(), bits))
        return original(values, bits)

    monkeypatch.setattr(module, "from_ring", spy)
    tables = {name: Table.of({"id": range(N), f"in of {name}": curves}) for name, curves in x.items()}
    tables["label"] = Table.of({"id": range(N), "out": y}, labels="out")
    return simulate(model.fit, tables, roles=roles, keep="all"), seen


def low_part(view, grid):
    return (view.view(np.int64) + grid // 2) % grid - grid // 2


def curves_read(low, x, bits):
    """How many victims' curves stand exactly in what is left modulo the grid."""
    truth = np.trunc(np.ldexp(x.coordinates[VICTIMS], bits)).astype(np.int64)
    return int((truth == low.T).all(axis=1).sum())


def test_an_output_of_the_label_partys_choice_reads_no_curve_between_two_parties(monkeypatch):
    x, budget = inputs(5), MomentBudget(5.5, 5.0, EPSILON, 1e-5, 1, 2)
    assert budget.share_bits(N) == 12
    model = MomentRegression(epsilon=EPSILON, **CLIPS)
    run, seen = opened(monkeypatch, moments_shared, model, {"shop": x}, chosen_output(12), TWO)
    assert run.ledgers["shop"].spent(Secret.FEATURES, 1e-5).epsilon < EPSILON
    (view, bits), *_ = seen
    assert view.shape == (10, 20)
    assert bits == 24
    low = low_part(view, int(grid_step(budget.first.sigma) * 2**bits))
    assert curves_read(low, x, 12) == 0


def test_an_output_of_the_label_partys_choice_reads_no_curve_through_an_arbiter(monkeypatch):
    x, budget = {"shop": inputs(5), "bank": inputs(6)}, MomentBudget(5.5, 5.0, EPSILON, 1e-5, 2)
    half = budget.bits(N)
    model = MomentRegression(epsilon=EPSILON, **CLIPS)
    _, seen = opened(monkeypatch, moments_masked, model, x, chosen_output(half), THREE)
    (view, bits), *_ = seen
    assert view.shape == (20, 20)
    assert bits == 2 * half
    low = low_part(view, int(grid_step(budget.first.sigma) * 2**bits))
    assert curves_read(low[:10], x["shop"], half) == 0
    assert curves_read(low[10:], x["bank"], half) == 0


def exact(curves, bits, clip, center=0.0):
    z = curves.coordinates - center
    z = z * np.minimum(1, clip / np.linalg.norm(z, axis=1, keepdims=True))
    return clipped_to_ring(z, bits, clip=clip, size=z.shape[1])


def require_uniform(noise, sigma):
    """Every low part is uniform, whichever bits it is made of; sigma is in units of the ring."""
    noise = noise.ravel().view(np.uint64)
    assert sigma > 2**26
    # Were products subtracted that are not under the noise, numbers modulo 2^64 would be left, uniform as well.
    assert np.abs(noise.view(np.int64)).max() < 6 * sigma
    for n_bits in (8, 16, 24):
        share = (noise % np.uint64(2**n_bits)).astype(float) / 2**n_bits
        assert stats.kstest(share, stats.uniform.cdf).pvalue >= 1e-6
        top = np.bincount((share * 16).astype(int), minlength=16)
        assert stats.chisquare(top).pvalue >= 1e-6
        lowest = np.bincount((noise % np.uint64(16)).astype(int), minlength=16)
        assert stats.chisquare(lowest).pvalue >= 1e-6
    step = np.uint64(grid_step(sigma))
    assert stats.kstest((noise % step).astype(float) / float(step), stats.uniform.cdf).pvalue >= 1e-6


@pytest.fixture
def related():
    """Inputs that an output depends on, so that both stages have something to release."""
    random = np.random.default_rng(3)
    x = Curves(random.normal(size=(N, 10)), X_BASIS)
    z = np.repeat(x.coordinates, 2, axis=1) + 0.1 * random.normal(size=(N, 20))
    return x, of_coordinates(z)


def test_all_but_one_record_known_the_feature_partys_products_tell_no_low_bits_of_it(monkeypatch, related):
    """The adversary of the definition: what it sees, less everybody's products, is noise in every bit."""
    x, y = related
    owned, decrypted = [], OpenedShares._decrypted

    def spy(self):
        owned.append(decrypted(self))
        return owned[-1]

    monkeypatch.setattr(OpenedShares, "_decrypted", spy)
    budget = MomentBudget(5.5, 5.0, 50.0, 1e-5, 1, 2)
    run, _ = opened(monkeypatch, moments_shared, MomentRegression(epsilon=50.0, **CLIPS), {"shop": x}, y, TWO)
    sent = [each.message.values for each in run.transcripts["label"].messages(NoisyShares, sent=False)]
    # One share serves both stages, each with noise of its own.
    assert (len(sent), len(owned)) == (2, 1)
    zx, zy = exact(x, 12, 5.5), exact(y, 12, 5.0, run.results["label"].y_centre_)
    cross = ring_product(zx, zy)
    off_diagonal = np.triu_indices(10, 1)
    gram = sent[1][0] - ring_product(zx, zx)
    np.testing.assert_array_equal(gram, gram.T)
    units = 2.0**24
    first, second = budget.first.sigma * units, budget.second(1).sigma * units
    require_uniform(sent[0][1] + owned[0] - cross, first)
    require_uniform(sent[1][1] + owned[0] - cross, second / np.sqrt(2))
    require_uniform(sent[1][1] - sent[0][1], np.hypot(first, second / np.sqrt(2)))
    require_uniform(gram[off_diagonal], second / np.sqrt(2))
    require_uniform(np.diag(gram).copy(), second)


def test_all_but_one_record_known_products_through_an_arbiter_tell_no_low_bits_of_it(monkeypatch, related):
    x, y = related
    budget = MomentBudget(5.5, 5.0, 50.0, 1e-5, 2)
    half = budget.bits(N)
    model = MomentRegression(epsilon=50.0, **CLIPS)
    run, seen = opened(monkeypatch, moments_masked, model, {"shop": x, "bank": x}, y, THREE)
    (first, bits), (length, _), (gram, _), (second, _) = seen
    center = run.results["label"].y_centre_
    zx, zy = np.tile(exact(x, half, 5.5), (1, 2)), exact(y, half, 5.0, center)
    units = 2.0**bits
    require_uniform(first - ring_product(zx, zy), budget.first.sigma * units)
    require_uniform(second - ring_product(zx, zy), budget.second(2).sigma * units / np.sqrt(2))
    left = gram - ring_product(zx, zx)
    np.testing.assert_array_equal(left, left.T)
    require_uniform(left[np.triu_indices(20, 1)], budget.second(2).sigma * units / np.sqrt(2))
    require_uniform(np.diag(left).copy(), budget.second(2).sigma * units)
    assert length.shape == (1, 1)


@pytest.mark.parametrize("clip", [5.5, 0.1, 1 / 3, 300.0])
@pytest.mark.parametrize("bits", [6, 12, 20])
def test_no_curve_on_the_ring_is_longer_than_the_radius(clip, bits):
    """By integers; floating point itself makes some curves too long."""
    rows = np.random.default_rng(1).normal(size=(400, 15))
    curves = rows.reshape(-1, 5)
    curves *= clip / np.linalg.norm(curves, axis=1, keepdims=True)
    # A curve along one axis loses nothing by rounding towards zero.
    curves[:3] = 0
    curves[:3, 2] = clip, -np.nextafter(clip, np.inf), clip * 1.01
    ring = clipped_to_ring(rows, bits, clip=clip, size=5).view(np.int64)
    longest = Fraction(clip) ** 2 * 4**bits
    assert all(sum(number**2 for number in curve) <= longest for curve in ring.reshape(-1, 5).tolist())
    np.testing.assert_allclose(np.ldexp(ring[2:], -bits), rows[2:], atol=2.0**-bits)


def test_sensitivities_on_the_ring_are_integers_no_smaller_than_the_real_ones():
    budget = MomentBudget(5.5, 0.1, 1.0, 1e-5, 20)
    for reach in (budget.first, budget.second(3), budget.scalar_x, budget.scalar_y):
        assert isinstance(reach, Reach)
        for bits in (12, 24, 44):
            mechanism = reach.on_ring(bits)
            assert isinstance(mechanism.sensitivity, int)
            assert mechanism.sensitivity**2 >= reach.squared * 4**bits > (mechanism.sensitivity - 1) ** 2
            assert mechanism.sensitivity / mechanism.sigma <= reach.mu
