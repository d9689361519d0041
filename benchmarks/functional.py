"""Speed of functional boosting: the solver against Kronecker products, a step against the number of rows, a fit."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from statistics import median
from time import perf_counter, process_time

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.clock import median_time
from colonnade.curves import BSplines
from colonnade.curves.basis import FloatArray
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.models.functional.estimator import FunctionalBoost
from colonnade.models.functional.moments import Moments, form_moments
from colonnade.models.functional.path import BoostingPath, Halves, PathStopping
from colonnade.models.functional.release import Protection
from colonnade.models.functional.solve import PenalisedSolver, Penalties, SurfaceRoughness
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate

TARGETS: Mapping[str, float] = {
    "cached_over_kronecker": 1 / 300,
    "step_ratio_32k_to_500": 2.0,
    "fit_cpu_ms": 50.0,
    "noisy_fit_cpu_ms": 150.0,
}

PENALTIES = Penalties(0.05, 0.05)
ROLES = Roles(label="label", features=("worker 1", "worker 2"))


def rows(n: int, p: int, size: int, *, active: int = 5) -> tuple[FloatArray, FloatArray]:
    """Random inputs and an output that depends on some of them."""
    random = np.random.default_rng(0)
    z = random.standard_normal((n, p, size))
    w = random.standard_normal((active, size, size)) / size
    return z, np.einsum("njq,jqk->nk", z[:, :active], w) + 0.3 * random.standard_normal((n, size))


def halves(z: FloatArray, y: FloatArray, roughness: SurfaceRoughness) -> tuple[Moments, Moments]:
    """The moments of both halves, with outputs rotated."""
    rotated, middle = y @ roughness.rotation[1], len(y) // 2
    return form_moments(z[:middle], rotated[:middle]), form_moments(z[middle:], rotated[middle:])


def roughness_of(size: int) -> SurfaceRoughness:
    """The roughness of splines on [0, 100]."""
    basis = BSplines((0.0, 100.0), size)
    return SurfaceRoughness.of(basis, basis)


def solves(size: int, *, times: int) -> dict[str, float]:
    """Seconds to solve with a factorisation at hand, with factoring, and as one large linear system."""
    roughness = roughness_of(size)
    z, y = rows(300, 1, size, active=1)
    moments = form_moments(z, y)
    gram, cross = moments.gram / moments.freedom, moments.cross / moments.freedom
    a1, a2 = gram + PENALTIES.s * roughness.x, PENALTIES.t * np.eye(size) + 0.1 * roughness.x
    solver = PenalisedSolver(a1, a2, roughness.y)

    def kronecker() -> FloatArray:
        system = np.kron(np.eye(size), a1) + np.kron(roughness.y, a2)
        return np.asarray(np.linalg.solve(system, cross.T.ravel()).reshape(size, size).T, dtype=float)

    wanted, found = kronecker(), solver.solve(cross)
    assert np.abs(found - wanted).max() < 1e-10 * np.abs(wanted).max(), "both should solve the same equation"
    return {
        "cached": median_time(lambda: solver.solve(cross), times=10 * times),
        "factored": median_time(lambda: PenalisedSolver(a1, a2, roughness.y).solve(cross), times=times),
        "kronecker": median_time(kronecker, times=max(3, times // 5)),
    }


def step_seconds(n: int, p: int, size: int, *, steps: int) -> tuple[float, float]:
    """Seconds for the moments of n rows, and for one step on them."""
    roughness = roughness_of(size)
    z, y = rows(n, p, size)
    start = perf_counter()
    a, b = halves(z, y, roughness)
    once = perf_counter() - start
    stopping = PathStopping(max_steps=10 * steps, min_steps=10 * steps)
    path = BoostingPath(Halves.of({"A": a, "B": b, "F": a + b}), roughness, PENALTIES, stopping, n_rows=n)

    def step() -> None:
        path.step()
        path.follow()

    return once, median_time(step, times=steps)


def fit_seconds(model: FunctionalBoost, times: int) -> list[float]:
    """Processor time of fits of the published data as a user calls them, sorted.

    These are 375 rows to train on, with 20 inputs of two feature parties and 20 functions. The first fit, which forms
    the bases' matrices, is not counted.
    """
    tables = FunctionalSetting().draw_one(1).take(np.arange(375)).tables(len(ROLES.features))
    found = []
    for _ in range(times + 1):
        start = process_time()
        simulate(model.fit, tables, roles=ROLES, keep="digests", seed=1)
        found.append(process_time() - start)
    return sorted(found[1:])


def growth(*, quick: bool) -> list[tuple[str, int, float, float]]:
    """What is varied, its value, and seconds for moments and for one step; all else as in the published setting."""
    steps = 20 if quick else 200
    found = []
    for name, values in {
        "N": (500, 2000) if quick else (500, 2000, 8000, 32000),
        "p": (5, 20) if quick else (5, 10, 20, 40, 80),
        "Q": (10, 20) if quick else (10, 20, 30, 40),
    }.items():
        for value in values:
            sizes = {"N": 500, "p": 20, "Q": 20, name: value}
            once, step = step_seconds(max(sizes["N"], sizes["Q"] * 4), sizes["p"], sizes["Q"], steps=steps)
            found.append((name, value, once, step))
    return found


def plot_growth(found: list[tuple[str, int, float, float]], path: str) -> None:
    """Draw how the time of a step grows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for ax, (name, words) in zip(axes, {"N": "rows", "p": "inputs", "Q": "functions"}.items(), strict=True):
        chosen = [each for each in found if each[0] == name]
        x = [each[1] for each in chosen]
        ax.loglog(x, [1e3 * each[3] for each in chosen], "o-", label="one step")
        ax.loglog(x, [1e3 * each[2] for each in chosen], "s--", label="moments, once")
        ax.set_xlabel(f"{name}, {words}")
    axes[0].set_ylabel("milliseconds")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def measure(*, quick: bool) -> dict[str, float]:
    """All figures, on one thread; the growth over N, p and Q is printed."""
    with threadpool_limits(1):
        seconds = solves(20, times=10 if quick else 200)
        found = growth(quick=quick)
        times = 3 if quick else 15
        plain = fit_seconds(FunctionalBoost(), times)
        noisy = fit_seconds(FunctionalBoost(protection=Protection(clip=3.0, noise=0.2)), times)
    for name, value, once, step in found:
        print(f"    {name} {value}: moments {1e3 * once:.1f} ms, step {1e3 * step:.3f} ms")
    by_rows = {value: step for name, value, _, step in found if name == "N"}
    return {
        "cached_over_kronecker": seconds["cached"] / seconds["kronecker"],
        "kronecker_over_cached": seconds["kronecker"] / seconds["cached"],
        "kronecker_over_factored": seconds["kronecker"] / seconds["factored"],
        "step_ratio_32k_to_500": by_rows[max(by_rows)] / by_rows[500],
        "step_ms": 1e3 * by_rows[500],
        "fit_cpu_ms": 1e3 * median(plain),
        "fit_cpu_ms_least": 1e3 * plain[0],
        "fit_cpu_ms_most": 1e3 * plain[-1],
        "noisy_fit_cpu_ms": 1e3 * median(noisy),
        "noisy_fit_cpu_ms_least": 1e3 * noisy[0],
        "noisy_fit_cpu_ms_most": 1e3 * noisy[-1],
    }


if __name__ == "__main__":
    plot_growth(growth(quick=False), sys.argv[1])
