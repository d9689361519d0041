"""Boosting in moments: paths of coefficients whose steps cost the same however many rows there are.

    R^(e|t) = C^e - G^e B^t              what is left in the rows e of a path trained on the rows t
    Delta_j = P_j [(P_j' R_j^(t|t)) D_j] / n_t                                       all features j at once
    score_j = sum over (t, e) in (A, B), (B, A) of  <Delta_j, G_jj^e Delta_j> - 2 <Delta_j, R_j^(e|t)>
    j* = argmin;   B_j*^t += nu Delta_j*;   R^(e|t) -= nu G^e[:, j*] Delta_j*

Three honest paths (all rows, half A, half B) share nothing but the sequence of selected features; the two halves score
each other. The moments of evaluation are corrected for noise and unbiased, cross-terms of old and new coefficients
included, because the residual moments carry them.

Each path has coordinates of its own, in which P is the identity: residuals are turned once by P', coefficients are
turned back at the end, and a step's increments are products number by number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from colonnade.curves.basis import FloatArray
from colonnade.models.functional.moments import Moments
from colonnade.models.functional.solve import BlockSolver, Penalties, SurfaceRoughness
from colonnade.parameters import Limit, check_parameters, choice, count
from colonnade.storage import Tree

# Trained on all rows, on one half and on the other; and the half that judges each of the latter two.
PATHS = ("F", "A", "B")
TESTS = ("B", "A")
# What a path goes on from.
ARRAYS = ("b", "own", "other", "hat", "probed", "probe_left")
NUMBERS = ("left_out", "sse", "since_best", "df")


@dataclass(frozen=True)
class Halves:
    """The moments of two halves of the rows: fit to train on, and unbiased to evaluate on."""

    train: dict[str, Moments]
    evaluate: dict[str, Moments]

    @classmethod
    def of(cls, moments: Mapping[str, Moments], correction: float = 1.0) -> Halves:
        """Both halves, A and B, and all rows, F, the latter centred half by half."""
        train = {name: moments[name].for_training(correction) for name in PATHS}
        return cls(train, {name: moments[name] for name in TESTS})

    def rotated(self, rotation: FloatArray) -> Halves:
        """The same with outputs turned."""
        train, evaluate = (
            {name: each.rotated(rotation) for name, each in some.items()} for some in (self.train, self.evaluate)
        )
        return Halves(train, evaluate)


@dataclass(frozen=True)
class PathStopping:
    """When a path ends, and what it is judged by.

    Attributes:
        max_steps: The longest path.
        min_steps: How long a path is at least; the best of all its steps is taken.
        patience: Steps without a new minimum of the criterion before the path ends.
        criterion: "cv" (each half of the rows judges the other), "aic" or "aicc".
        freedom: How "aic" and "aicc" count degrees of freedom: "exact", or "hutchinson", which is an estimate.
        probes: How many random signs per output Hutchinson's estimate takes.

    >>> PathStopping(max_steps=30).criterion
    'cv'
    """

    limits: ClassVar[Mapping[str, Limit]] = {
        "max_steps": count(),
        "min_steps": count(),
        "patience": count(),
        "criterion": choice("cv", "aic", "aicc"),
        "freedom": choice("exact", "hutchinson"),
        "probes": count(),
    }

    max_steps: int = 150
    min_steps: int = 10
    patience: int = 6
    criterion: Literal["cv", "aic", "aicc"] = "cv"
    freedom: Literal["exact", "hutchinson"] = "exact"
    probes: int = 5

    def __post_init__(self) -> None:
        """Refuse a path that is longer than the longest."""
        most = self.max_steps
        shorter = Limit(lambda steps: steps <= most, f"from 1 to max_steps ({most})", ())
        check_parameters(self, {"min_steps": shorter})


@dataclass
class BestStep:
    """The coefficients at the best step so far, in the path's own coordinates."""

    criterion: float = np.inf
    steps: int = 0
    coefficients: FloatArray | None = None


class BoostingPath:
    """One boosting path, step by step; `best` holds the coefficients at the minimum of its criterion.

    The outputs of the moments are rotated by the eigenvectors of their roughness, and penalties are absolute.
    """

    def __init__(
        self,
        halves: Halves,
        roughness: SurfaceRoughness,
        penalties: Penalties,
        stopping: PathStopping,
        *,
        shrinkage: float = 0.3,
        n_rows: int,
    ) -> None:
        self.stopping, self.shrinkage, self.n_rows = stopping, shrinkage, n_rows
        self._train = [halves.train[name] for name in PATHS]
        self._test = [halves.evaluate[name] for name in TESTS]
        solvers = [
            BlockSolver(m.blocks / m.freedom, roughness.x, roughness.rotation[0], penalties) for m in self._train
        ]
        # All paths stand in one array, so that a step is a handful of products of arrays.
        self._left = np.stack([each.left for each in solvers])
        self._left_t = np.stack([each.left_t for each in solvers])
        self._gains = np.stack([each.gains / m.freedom for each, m in zip(solvers, self._train, strict=True)])
        self._diagonal = self._left_t[1:] @ np.stack([m.blocks for m in self._test]) @ self._left[1:]
        self._turned_grams: dict[int, tuple[FloatArray, FloatArray]] = {}
        first = self._train[0]
        self._features, self._size = first.noise.shape[:2]
        self._outputs = first.cross.shape[1]
        shape = (self._features, self._size, self._outputs)
        self._b = np.zeros((len(PATHS), *shape))
        self._own = self._turned(np.stack([m.cross for m in self._train]), self._left_t)
        self._other = self._turned(np.stack([m.cross for m in self._test]), self._left_t[1:])
        self._left_out = float(sum(m.total for m in self._test))
        self._sse = first.total
        self.selected: list[int] = []
        self.traces: dict[str, list[float]] = {"cv": [self._left_out], "sse": [self._sse]}
        if stopping.criterion != "cv":
            self.traces |= {stopping.criterion: [], "df": []}
        self.best = BestStep()
        self._since_best = 0
        self._touched: list[int] = []
        self._hat = np.zeros((self._outputs, 0, 0))
        self._df = 0.0
        columns = first.probes.reshape(len(first.gram), -1, self._outputs)
        self._probes = np.ascontiguousarray(columns.transpose(1, 0, 2))
        self._probed = np.zeros((len(self._probes), *shape))
        self._probe_left = self._probes.copy()

    @property
    def ended(self) -> bool:
        """Whether the path is as long as it may be, or as long as it must be and no longer getting better."""
        steps, until = len(self.selected), self.stopping
        return steps >= until.max_steps or (steps >= until.min_steps and self._since_best >= until.patience)

    def step(self) -> None:
        """Add an increment of the feature that the halves agree on."""
        halves = self._own[1:] * self._gains[1:]
        scores = (halves * (self._diagonal @ halves - 2 * self._other)).sum(axis=(0, 2, 3))
        chosen = int(np.argmin(scores))
        added = self.shrinkage * self._own[:, chosen] * self._gains[:, chosen]
        full, seen = added[0], added[1:]
        train, test = self._grams_of(chosen)
        self._left_out += float((seen * (self._diagonal[:, chosen] @ seen - 2 * self._other[:, chosen])).sum())
        self._sse += float((full * (train[0, chosen] @ full - 2 * self._own[0, chosen])).sum())
        if self.stopping.criterion != "cv":
            self._update_freedom(chosen, slice(chosen * self._size, (chosen + 1) * self._size))
        self._b[:, chosen] += added
        flat = (-1, self._features * self._size)
        self._own -= (train.reshape(*flat, self._size) @ added).reshape(self._own.shape)
        self._other -= (test.reshape(*flat, self._size) @ seen).reshape(self._other.shape)
        self.selected.append(chosen)
        self.traces["cv"].append(self._left_out)
        self.traces["sse"].append(self._sse)
        self._judge()

    def _turned(self, values: FloatArray, left_t: FloatArray) -> FloatArray:
        """Numbers for every feature, in each path's own coordinates: shape (paths, features, size, columns)."""
        return np.asarray(left_t @ values.reshape(len(values), self._features, self._size, -1))

    def _grams_of(self, chosen: int) -> tuple[FloatArray, FloatArray]:
        """What an increment of a feature takes off every residual, in the rows trained on and in those that judge."""
        if chosen not in self._turned_grams:
            # Gram matrices are symmetric, and their rows lie together in memory.
            rows, left = slice(chosen * self._size, (chosen + 1) * self._size), self._left[:, None, chosen]
            train, test = (np.stack([m.gram[rows].T for m in each]) for each in (self._train, self._test))
            turned = self._turned(train, self._left_t) @ left, self._turned(test, self._left_t[1:]) @ left[1:]
            self._turned_grams[chosen] = turned
        return self._turned_grams[chosen]

    def _judge(self) -> None:
        criterion = self.traces["cv"][-1]
        if self.stopping.criterion != "cv":
            criterion = self._akaike()
            self.traces[self.stopping.criterion].append(criterion)
            self.traces["df"].append(self._df)
        if criterion < self.best.criterion:
            self.best, self._since_best = BestStep(criterion, len(self.selected), self._b[0].copy()), 0
        else:
            self._since_best += 1

    def _akaike(self) -> float:
        """Akaike's criterion, with the correction for small samples where asked for (Hurvich & Tsai 1989)."""
        n = self.n_rows * self._outputs
        penalty = 2.0 * self._df
        if self.stopping.criterion == "aicc":
            penalty *= n / max(n - self._df - 1, 1.0)
        return float(n * np.log(max(self._sse, 1e-300) / n) + penalty)

    def _update_freedom(self, chosen: int, rows: slice) -> None:
        """Degrees of freedom of the fit after this step: the trace of the matrix that turns outputs into fits.

        For rotated output k that matrix is Z T_k Z', and a step adds nu P D_k P' (E_j - G_j: T_k) / n to T_k's block
        row j. Only blocks of features that were ever selected are kept.
        """
        full, nu = self._train[0], self.shrinkage
        left, left_t, gains = self._left[0, chosen], self._left_t[0, chosen], self._gains[0, chosen]
        if self.stopping.freedom == "hutchinson":
            delta = nu * (left @ ((left_t @ self._probe_left[:, rows]) * gains))
            self._probed[:, chosen] += delta
            self._probe_left -= full.gram[:, rows] @ delta
            flat = self._probed.reshape(self._probes.shape)
            self._df = float((self._probes * flat).sum()) / len(self._probes)
            return
        if chosen not in self._touched:
            self._touched.append(chosen)
            self._hat = np.pad(self._hat, ((0, 0), (0, self._size), (0, self._size)))
        size, place = self._size, self._touched.index(chosen)
        kept = np.concatenate([np.arange(j * size, (j + 1) * size) for j in self._touched])
        own = slice(place * size, (place + 1) * size)
        right = -(full.gram[rows][:, kept] @ self._hat)
        right[:, np.arange(size), np.arange(own.start, own.stop)] += 1
        change = nu * (left @ (gains.T[:, :, None] * (left_t @ right)))
        self._hat[:, own] += change
        self._df += float(np.einsum("kab,ba->", change, full.gram[np.ix_(kept, np.arange(rows.start, rows.stop))]))

    def coefficients(self) -> tuple[FloatArray, int]:
        """The coefficients from all rows at the best step, and how many steps that is."""
        if self.best.coefficients is None:
            return self._left[0] @ self._b[0], len(self.selected)
        return self._left[0] @ self.best.coefficients, self.best.steps

    def state(self) -> Tree:
        """What the next step depends on."""
        return {
            **{name: getattr(self, f"_{name}").copy() for name in ARRAYS},
            **{name: getattr(self, f"_{name}") for name in NUMBERS},
            "selected": list(self.selected),
            "touched": list(self._touched),
            "traces": {name: list(trace) for name, trace in self.traces.items()},
            "best": None if self.best.coefficients is None else list(vars(self.best).values()),
        }

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said."""
        for name in ARRAYS:
            # Arrays from a file are read-only, and steps change them.
            setattr(self, f"_{name}", np.array(tree[name]))
        for name in NUMBERS:
            setattr(self, f"_{name}", tree[name])
        self.selected, self._touched, self.traces = list(tree["selected"]), list(tree["touched"]), tree["traces"]
        self.best = BestStep() if tree["best"] is None else BestStep(*tree["best"])
