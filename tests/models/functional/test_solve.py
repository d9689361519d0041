from pathlib import Path

import numpy as np
import pytest

from colonnade.curves import BSplines
from colonnade.errors import DataError, PlanError
from colonnade.models.functional.solve import (
    BlockSolver,
    PenalisedSolver,
    Penalties,
    SurfaceRoughness,
    solve_penalised,
)

R = np.load(Path(__file__).parents[2] / "reference" / "r_fda.npz")
SETS = [(0.05, 0.05, 0.0), (0.05, 0.05, 0.5), (1.0, 2.0, 3.0)]


def kronecker(a1, a2, omega_y, c, gram_y=None):
    """Oracle: the same equation as one large linear system."""
    size, outputs = c.shape
    gram_y = np.eye(outputs) if gram_y is None else gram_y
    system = np.kron(gram_y, a1) + np.kron(omega_y, a2)
    return np.linalg.solve(system, c.T.ravel()).reshape(outputs, size).T


def problem(size=20, outputs=15, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(100, size))
    gram = z.T @ z / 99
    return gram, rng.normal(size=(size, outputs)), BSplines((0, 100), size), BSplines((0, 100), outputs)


def relative(found, wanted):
    return np.abs(found - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize(("s", "t", "st"), [*SETS, (0.0, 0.0, 0.0), (0.0, 0.0, 2.0)])
def test_the_solution_is_that_of_the_kronecker_system(s, t, st):
    gram, cross, x, y = problem()
    roughness = SurfaceRoughness.of(x, y)
    found = solve_penalised(gram, cross, roughness.x, roughness.y, Penalties(s, t, st))
    wanted = kronecker(gram + s * roughness.x, t * np.eye(20) + st * roughness.x, roughness.y, cross)
    assert relative(found, wanted) < 1e-10


@pytest.mark.parametrize("name", ["0_05_0_05_0", "0_05_0_05_0_5", "1_2_3"])
def test_the_solution_is_that_of_r(name):
    s, t, st = {"0_05_0_05_0": SETS[0], "0_05_0_05_0_5": SETS[1], "1_2_3": SETS[2]}[name]
    z, y = R["solve_Z"] - R["solve_Z"].mean(axis=0), R["solve_Y"] - R["solve_Y"].mean(axis=0)
    # R whitened with its inexact Gram matrix.
    values, vectors = np.linalg.eigh(R["gram_bspline20_0_100"])
    inverse_root = (vectors / np.sqrt(values)) @ vectors.T
    omega = inverse_root @ R["pen2_bspline20_0_100"] @ inverse_root
    found = solve_penalised(z.T @ z / 374, z.T @ y / 374, omega, omega, Penalties(s, t, st))
    assert relative(found, R[f"solve_B_{name}"]) < 1e-10


def test_the_regression_of_r_on_canadian_weather_is_reproduced():
    """`linmod` with an intercept curve: the intercept is one more input, with a penalty of its own."""
    x, y = R["cw_xcoef"].T, R["cw_ycoef"].T
    intercept, s, t = 1e2, 1e3, 1e4
    design = np.column_stack([np.ones(len(x)), x @ R["cw_Mx"]])
    a1 = design.T @ design
    a1[1:, 1:] += s * R["cw_Ox"]
    a2 = np.zeros((16, 16))
    a2[0, 0], a2[1:, 1:] = intercept, t * R["cw_Mx"]
    found = PenalisedSolver(a1, a2, R["cw_Oy"], R["cw_My"]).solve(design.T @ y @ R["cw_My"])
    assert relative(found[1:], R["cw_linmod_beta1"]) < 1e-8
    assert relative(found[0], R["cw_linmod_beta0"]) < 1e-8


def test_raw_and_whitened_coordinates_give_the_same_surface():
    _, _, x, y = problem(8, 6)
    rng = np.random.default_rng(1)
    c, d = rng.normal(size=(50, 8)), rng.normal(size=(50, 6))
    z, w = c @ x.root, d @ y.root
    roughness = SurfaceRoughness.of(x, y)
    whitened = solve_penalised(z.T @ z, z.T @ w, roughness.x, roughness.y, Penalties(0.3, 0.2, 0.1))
    inner = c @ x.gram
    a1 = inner.T @ inner + 0.3 * x.penalty(2)
    a2 = 0.2 * x.gram + 0.1 * x.penalty(2)
    raw = PenalisedSolver(a1, a2, y.penalty(2), y.gram).solve(inner.T @ d @ y.gram)
    np.testing.assert_allclose(x.inverse_root @ whitened @ y.inverse_root, raw, atol=1e-9)


def test_many_inputs_at_once_are_solved_like_each_by_itself():
    rng = np.random.default_rng(2)
    _, _, x, y = problem(7, 5)
    roughness, penalties = SurfaceRoughness.of(x, y), Penalties(0.1, 0.2, 0.3)
    z = rng.normal(size=(3, 40, 7))
    blocks = z.transpose(0, 2, 1) @ z / 39
    cross = rng.normal(size=(3, 7, 5))
    values, vectors = roughness.rotation
    together = BlockSolver(blocks, roughness.x, values, penalties).solve(cross @ vectors) @ vectors.T
    for j in range(3):
        alone = solve_penalised(blocks[j], cross[j], roughness.x, roughness.y, penalties)
        np.testing.assert_allclose(together[j], alone, atol=1e-10)


@pytest.mark.parametrize("factor", [1e-3, 24.0])
def test_relative_penalties_do_not_depend_on_the_unit_of_time(factor):
    def surface(unit):
        x, y = BSplines((0, 100 * unit), 12), BSplines((0, 100 * unit), 10)
        rng = np.random.default_rng(3)
        c, d = rng.normal(size=(60, 12)), rng.normal(size=(60, 10))
        z, w = c @ x.root, d @ y.root
        roughness = SurfaceRoughness.of(x, y)
        solved = solve_penalised(z.T @ z, z.T @ w, roughness.x, roughness.y, Penalties(0.3, 0.2, 0.1, relative=True))
        return c @ x.root @ solved @ y.inverse_root

    np.testing.assert_allclose(surface(factor), surface(1.0), rtol=1e-6, atol=1e-9)


def test_relative_penalties_do_not_depend_on_the_scale_of_the_inputs():
    gram, cross, x, y = problem()
    roughness = SurfaceRoughness.of(x, y)
    penalties = Penalties(0.3, 0.2, 0.1, relative=True)
    one = solve_penalised(gram, cross, roughness.x, roughness.y, penalties)
    other = solve_penalised(100 * gram, 10 * cross, roughness.x, roughness.y, penalties)
    np.testing.assert_allclose(10 * other, one, rtol=1e-9)


@pytest.mark.parametrize("name", ["s", "t", "st"])
def test_a_negative_penalty_is_refused(name):
    with pytest.raises(PlanError, match=f"Penalties's {name} should be a number, at least 0, but is -1.0"):
        Penalties(**{name: -1.0})


def test_a_singular_equation_is_refused_with_advice():
    z = np.random.default_rng(0).normal(size=(5, 8))
    omega = BSplines((0, 1), 8).whitened_penalty(2)
    with pytest.raises(DataError, match="bring more rows than the basis has functions"):
        solve_penalised(z.T @ z * 0, z.T @ z, omega, omega, Penalties())
    with pytest.raises(DataError, match="bring more rows than the basis has functions"):
        BlockSolver(np.zeros((2, 8, 8)), omega, np.ones(8), Penalties())
