import numpy as np
import pytest

from colonnade.curves import BSplines
from colonnade.models.functional.moments import form_moments
from colonnade.models.functional.path import BoostingPath, Halves, PathStopping
from colonnade.models.functional.rules import joint_fit, low_rank
from colonnade.models.functional.solve import Penalties, SurfaceRoughness, solve_penalised

N, FEATURES, SIZE, OUTPUTS = 80, 4, 6, 5
PENALTIES = Penalties(0.3, 0.4, 0.2)


@pytest.fixture
def rows():
    rng = np.random.default_rng(3)
    z = rng.normal(size=(N, FEATURES, SIZE))
    w = np.zeros((FEATURES, SIZE, OUTPUTS))
    w[:2] = rng.normal(size=(2, SIZE, OUTPUTS))
    return z, np.einsum("njq,jqk->nk", z, w) + rng.normal(size=(N, OUTPUTS))


@pytest.fixture
def roughness():
    x, y = BSplines((0, 10), SIZE), BSplines((0, 10), OUTPUTS)
    return SurfaceRoughness.of(x, y)


def made(rows, roughness, stopping=None, signs=None, noise=None, penalties=PENALTIES):
    z, y = rows
    rotated = y @ roughness.rotation[1]
    parts = [slice(0, N // 2), slice(N // 2, N)]
    a, b = (form_moments(z[p], rotated[p], noise, None if signs is None else signs[p]) for p in parts)
    return BoostingPath(
        Halves.of({"A": a, "B": b, "F": a + b}), roughness, penalties, stopping or PathStopping(), n_rows=N
    )


def centred(rows):
    z, y = (each.copy() for each in rows)
    for part in (slice(0, N // 2), slice(N // 2, N)):
        z[part] -= z[part].mean(axis=0)
        y[part] -= y[part].mean(axis=0)
    return z, y


def test_moments_boost_as_rows_would(rows, roughness):
    """Oracle: three paths on rows, with residuals of N x K, scored on the other half's rows."""
    path = made(rows, roughness)
    z, y = centred(rows)
    a, b = np.arange(N // 2), np.arange(N // 2, N)
    every = {"F": np.arange(N), "A": a, "B": b}
    found = {name: np.zeros((FEATURES, SIZE, OUTPUTS)) for name in every}
    freedom = {"F": N - 2, "A": N // 2 - 1, "B": N // 2 - 1}

    def residual(name):
        return y - np.einsum("njq,jqk->nk", z, found[name])

    for _ in range(15):
        path.step()
        path.follow()
        steps = {}
        for name, rows_of in every.items():
            left = residual(name)[rows_of]
            steps[name] = []
            for j in range(FEATURES):
                zj = z[rows_of, j]
                gram, cross = zj.T @ zj / freedom[name], zj.T @ left / freedom[name]
                steps[name].append(solve_penalised(gram, cross, roughness.x, roughness.y, PENALTIES))
        scores = [
            sum(
                ((residual(train)[test] - z[test, j] @ steps[train][j]) ** 2).sum()
                for train, test in (("A", b), ("B", a))
            )
            for j in range(FEATURES)
        ]
        chosen = int(np.argmin(scores))
        for name in every:
            found[name][chosen] += 0.3 * steps[name][chosen]
        assert path.selected[-1] == chosen
        cv = sum((residual(train)[test] ** 2).sum() for train, test in (("A", b), ("B", a)))
        assert path.traces["cv"][-1] == pytest.approx(cv, rel=1e-9)
        assert path.traces["sse"][-1] == pytest.approx((residual("F") ** 2).sum(), rel=1e-9)
    np.testing.assert_allclose(path.full.coefficients() @ roughness.rotation[1].T, found["F"], atol=1e-10)


def brute_freedom(rows, roughness, selected):
    """Oracle: the N x N matrix that turns each rotated output into its fit, step by step."""
    z, _ = centred(rows)
    total = 0.0
    for value in roughness.rotation[0]:
        hat = np.zeros((N, N))
        for j in selected:
            a1 = z[:, j].T @ z[:, j] / (N - 2) + PENALTIES.s * roughness.x
            a2 = PENALTIES.t * np.eye(SIZE) + PENALTIES.st * roughness.x
            own = z[:, j] @ np.linalg.solve(a1 + value * a2, z[:, j].T) / (N - 2)
            hat += 0.3 * own @ (np.eye(N) - hat)
        total += np.trace(hat)
    return total


def test_degrees_of_freedom_are_exact(rows, roughness):
    path = made(rows, roughness, PathStopping(criterion="aicc"))
    for _ in range(12):
        path.step()
    wanted = brute_freedom(rows, roughness, path.selected)
    assert path.traces["df"][-1] == pytest.approx(wanted, rel=1e-8)
    assert all(np.diff(path.traces["df"]) > 0)


def test_hutchinsons_estimate_is_right_on_average(rows, roughness):
    n_probes = 400
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(N, n_probes * OUTPUTS))
    path = made(rows, roughness, PathStopping(criterion="aic", freedom="hutchinson"), signs)
    for _ in range(12):
        path.step()
    wanted = brute_freedom(rows, roughness, path.selected)
    assert path.traces["df"][-1] == pytest.approx(wanted, rel=0.06)


def test_akaikes_criterion_is_its_formula(rows, roughness):
    plain, corrected = (made(rows, roughness, PathStopping(criterion=stop)) for stop in ("aic", "aicc"))
    plain.step(), corrected.step()
    n, df, sse = N * OUTPUTS, plain.traces["df"][-1], plain.traces["sse"][-1]
    assert plain.traces["aic"][-1] == pytest.approx(n * np.log(sse / n) + 2 * df)
    assert corrected.traces["aicc"][-1] == pytest.approx(n * np.log(sse / n) + 2 * df * n / (n - df - 1))


def test_a_path_ends_with_its_patience_and_keeps_its_best_step(rows, roughness):
    z, y = rows
    loud = y + 5 * np.random.default_rng(6).normal(size=y.shape)
    stopping = PathStopping(min_steps=3, patience=4, max_steps=500)
    path = made((z, loud), roughness, stopping, penalties=Penalties(1e-3, 1e-3))
    while not path.ended:
        path.step()
    _, best = path.coefficients()
    cv = path.traces["cv"]
    assert len(path.selected) == max(best + 4, 3)
    assert cv[best] == min(cv[1:])
    assert len(path.selected) < 500


def test_the_best_step_may_come_before_the_shortest_path_ends(rows, roughness):
    z, y = rows
    loud = y + 20 * np.random.default_rng(6).normal(size=y.shape)
    path = made((z, loud), roughness, PathStopping(min_steps=30), penalties=Penalties(1e-3, 1e-3))
    while not path.ended:
        path.step()
    assert len(path.selected) == 30
    assert path.coefficients()[1] == int(np.argmin(path.traces["cv"][1:])) + 1 < 30


def test_a_path_that_is_restored_goes_on_as_if_nothing_had_happened(rows, roughness):
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(N, 2 * OUTPUTS))
    for stopping in (
        PathStopping(criterion="aicc"),
        PathStopping(criterion="aic", freedom="hutchinson"),
        PathStopping(),
    ):
        straight, first, second = (made(rows, roughness, stopping, signs) for _ in range(3))
        for _ in range(20):
            straight.step()
        for _ in range(11):
            first.step()
        second.restore(first.state())
        for _ in range(9):
            second.step()
        for path in (straight, second):
            path.follow()
        assert second.selected == straight.selected
        assert second.traces == straight.traces
        np.testing.assert_array_equal(second.coefficients()[0], straight.coefficients()[0])


def test_noise_that_is_corrected_for_does_not_make_the_path_diverge(rows, roughness):
    z, y = rows
    rng = np.random.default_rng(5)
    noisy = z + 3 * rng.normal(size=z.shape)
    path = made((noisy, y), roughness, noise=np.stack([9 * np.eye(SIZE)] * FEATURES))
    for _ in range(150):
        path.step()
    path.follow()
    assert np.abs(path.full.coefficients()).max() < 100


def test_the_joint_fit_is_least_squares_of_all_features_at_once(rows, roughness):
    z, y = centred(rows)
    moments = form_moments(z, y)
    found = joint_fit(moments, roughness, Penalties(), [0, 1])
    flat = z[:, :2].reshape(N, -1)
    wanted = np.linalg.lstsq(flat, y, rcond=None)[0]
    np.testing.assert_allclose(found[:2].reshape(-1, OUTPUTS), wanted, atol=1e-9)
    assert not found[2:].any()


def test_low_rank_takes_off_noise_and_keeps_what_is_large(roughness):
    rng = np.random.default_rng(4)
    z = rng.normal(size=(2000, 2, SIZE)) * np.array([1.0, 10.0])[:, None]
    w = np.zeros((2, SIZE, OUTPUTS))
    w[0] = np.outer(rng.normal(size=SIZE), rng.normal(size=OUTPUTS))
    y = np.einsum("njq,jqk->nk", z, w) + rng.normal(size=(2000, OUTPUTS))
    moments = form_moments(z, y)
    fitted = joint_fit(moments, roughness, Penalties())
    shrunk = low_rank(fitted, moments, moments)
    assert np.linalg.matrix_rank(shrunk[0]) == 1
    assert not shrunk[1].any()
    assert ((shrunk - w) ** 2).sum() < 0.5 * ((fitted - w) ** 2).sum()
