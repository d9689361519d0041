"""Speed of functional boosting: the solver against Kronecker products, a step against the number of rows, a fit."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from statistics import median
from time import perf_counter, process_time

import numpy as np

from benchmarks.clock import median_time
from colonnade.curves import BSplines
from colonnade.curves.basis import FloatArray
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.models.functional.moments import Moments, form_moments
from colonnade.models.functional.path import BoostingPath, Halves, PathStopping
from colonnade.models.functional.solve import PenalisedSolver, Penalties, SurfaceRoughness

TARGETS: Mapping[str, float] = {"cached_over_kronecker": 1 / 300, "step_ratio_32k_to_500": 2.0, "fit_ms": 50.0}

PENALTIES = Penalties(0.05, 0.05)


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
    path = BoostingPath(Halves.of(a, b), roughness, PENALTIES, stopping, n_rows=n)
    return once, median_time(path.step, times=steps)


def fit_seconds(times: int) -> tuple[float, float, int]:
    """Median wall and processor time of a whole fit of the published data, and its steps.

    These are 375 rows to train on, with 20 inputs and 20 functions; the path goes on until it stops by itself.
    """
    roughness = roughness_of(20)
    data = FunctionalSetting().draw_one(1)
    z = np.stack([each.coordinates[:375] for each in data.x], axis=1)
    y = data.y.coordinates[:375]
    durations, processor, steps = [], [], 0
    for _ in range(times):
        start, start_cpu = perf_counter(), process_time()
        a, b = halves(z, y, roughness)
        path = BoostingPath(Halves.of(a, b), roughness, PENALTIES, PathStopping(), n_rows=375)
        while not path.ended:
            path.step()
        durations.append(perf_counter() - start)
        processor.append(process_time() - start_cpu)
        steps = len(path.selected)
    return median(durations), median(processor), steps


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
    """All figures; the growth over N, p and Q is printed."""
    seconds = solves(20, times=10 if quick else 200)
    found = growth(quick=quick)
    for name, value, once, step in found:
        print(f"    {name} {value}: moments {1e3 * once:.1f} ms, step {1e3 * step:.3f} ms")
    by_rows = {value: step for name, value, _, step in found if name == "N"}
    fit, fit_cpu, steps = fit_seconds(3 if quick else 31)
    return {
        "cached_over_kronecker": seconds["cached"] / seconds["kronecker"],
        "kronecker_over_cached": seconds["kronecker"] / seconds["cached"],
        "kronecker_over_factored": seconds["kronecker"] / seconds["factored"],
        "step_ratio_32k_to_500": by_rows[max(by_rows)] / by_rows[500],
        "step_ms": 1e3 * by_rows[500],
        "fit_ms": 1e3 * fit,
        "fit_cpu_ms": 1e3 * fit_cpu,
        "fit_steps": steps,
    }


if __name__ == "__main__":
    plot_growth(growth(quick=False), sys.argv[1])
