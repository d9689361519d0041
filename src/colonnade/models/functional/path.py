"""Boosting in moments: paths of coefficients whose steps cost the same however many rows there are.

    R^(e|t) = C^e - G^e B^t              what is left in the rows e of a path trained on the rows t
    Delta_j = P_j [(P_j' R_j^(t|t)) D_j] / n_t                                       all features j at once
    score_j = sum over (t, e) in (A, B), (B, A) of  <Delta_j, G_jj^e Delta_j> - 2 <Delta_j, R_j^(e|t)>
    j* = argmin;   B_j*^t += nu Delta_j*;   R^(e|t) -= nu G^e[:, j*] Delta_j*

Three honest paths (all rows, half A, half B) share nothing but the sequence of selected features; the two halves score
each other, and all rows follow. The moments of evaluation are corrected for noise and unbiased, cross-terms of old and
new coefficients included, because the residual moments carry them.

Each path has coordinates of its own, in which P is the identity: residuals are turned once by P', coefficients are
turned back at the end, and a step's increments are products number by number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from colonnade.curves.basis import FloatArray
from colonnade.models.functional.moments import Moments
from colonnade.models.functional.solve import BlockSolver, Penalties, SurfaceRoughness
from colonnade.parameters import Limit, check_parameters, choice, count
from colonnade.storage import Tree

# What is trained on: all rows, one half, and the other; and the half that judges each of the halves.
PATHS = ("F", "A", "B")
HALVES = ("A", "B")
TESTS = ("B", "A")
# The part of all there is to explain by which a step must be better for a path to go on.
SLIGHT = 1e-5
# What the path of all rows goes on from.
ARRAYS = ("b", "residuals", "hat")


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
        patience: Steps without a new minimum of the criterion before the path ends. A minimum that is lower by less
            than a hundred-thousandth of all there is to explain does not count as new.
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
    """The coefficients of all rows at the best step so far, in the path's own coordinates."""

    criterion: float = np.inf
    steps: int = 0
    coefficients: FloatArray | None = None

    def state(self) -> list[Any] | None:
        """What `of` takes; None before the first step."""
        return None if self.coefficients is None else [self.criterion, self.steps, self.coefficients.copy()]

    @classmethod
    def of(cls, state: Sequence[Any] | None) -> BestStep:
        """What `state` said, perhaps as it was read from a file."""
        return cls() if state is None else cls(state[0], state[1], np.array(state[2]))


class FullPath:
    """The path of all rows: a step of whatever feature it is told, and degrees of freedom where they are asked for.

    Only features that were ever selected have coefficients and residuals, in the order they came. Random signs are
    outputs like the others, which nobody is to predict: arrays have the shape (numbers, 1 + probes, outputs).
    """

    def __init__(
        self,
        moments: Moments,
        roughness: SurfaceRoughness,
        penalties: Penalties,
        *,
        shrinkage: float,
        freedom: Literal["exact", "hutchinson"] | None,
    ) -> None:
        self._moments, self._roughness, self._penalties = moments, roughness, penalties
        self._shrinkage, self._freedom = shrinkage, freedom
        self._n_features, self._size = moments.noise.shape[:2]
        outputs = moments.cross.shape[1]
        signs = moments.probes if freedom == "hutchinson" else moments.probes[:, :0]
        self._cross = np.hstack((moments.cross, signs)).reshape(self._n_features, self._size, -1, outputs)
        self.features: list[int] = []
        self.sse, self.df = moments.total, 0.0
        self._lefts: list[FloatArray] = []
        self._gains: list[FloatArray] = []
        self._gram = np.zeros((0, 0))
        self._targets = np.zeros((0, *self._cross.shape[2:]))
        self.b, self.residuals, self.hat = self._targets, self._targets, np.zeros((outputs, 0, 0))

    def step(self, feature: int) -> None:
        """Add an increment of a feature that has its place."""
        place = self.features.index(feature)
        if place * self._size == len(self.b):
            self._enter()
        own, gains = slice(place * self._size, (place + 1) * self._size), self._gains[place]
        added = self.residuals[own] * gains[:, None]
        self.b[own] += added
        gram = self._gram[: len(self.b), own]
        taken = gram.dot(added.reshape(self._size, -1)).reshape(self.residuals.shape)
        # Residuals of the feature before the step and after it tell how much the step explains.
        self.sse -= float(np.vdot(added[:, 0], 2 * self.residuals[own, 0] - taken[own, 0]))
        self.residuals -= taken
        if self._freedom == "exact":
            # For output k the matrix that turns outputs into fits is Z T_k Z', and degrees of freedom are its trace.
            # A step adds nu D_k (E_j - G_j: T_k) / n to T_k's rows j.
            right = -(gram.T @ self.hat)
            right[:, np.arange(self._size), np.arange(own.start, own.stop)] += 1
            change = gains.T[:, :, None] * right
            self.hat[:, own] += change
            self.df += float(np.einsum("kab,ba->", change, gram))
        elif self._freedom == "hutchinson":
            signs = self._targets[: len(self.b), 1:]
            self.df = float((signs * self.b[:, 1:]).sum()) / signs.shape[1]

    def _enter(self) -> None:
        """Make room for a feature that is selected for the first time."""
        n, end = len(self.b), len(self.b) + self._size
        target = self._targets[n:end]
        self.b = np.concatenate((self.b, np.zeros_like(target)))
        explained = self._gram[n:end, :end] @ self.b.reshape(end, -1)
        self.residuals = np.concatenate((self.residuals, target - explained.reshape(target.shape)))
        if self._freedom == "exact":
            self.hat = np.pad(self.hat, ((0, 0), (0, self._size), (0, self._size)))

    def place(self, features: Sequence[int]) -> None:
        """Form what does not change of features that will be selected next, in the order they come.

        These are a feature's own coordinates, its products with those before it, and its targets.
        """
        features = [feature for feature in dict.fromkeys(features) if feature not in self.features]
        if not features:
            return
        moments, freedom, size = self._moments, self._moments.freedom, self._size
        blocks = np.stack([moments.block(feature, feature) for feature in features]) / freedom
        solver = BlockSolver(blocks, self._roughness.x, self._roughness.rotation[0], self._penalties)
        for feature, left, gains in zip(features, solver.left, solver.gains, strict=True):
            self.features.append(feature)
            self._lefts.append(left)
            self._gains.append(self._shrinkage * gains / freedom)
            pairs = zip(self.features, self._lefts, strict=True)
            turned = np.concatenate([of_other.T @ moments.block(other, feature) @ left for other, of_other in pairs])
            above = np.hstack((self._gram, turned[:-size]))
            self._gram = np.vstack((above, turned.T))
            target = left.T @ self._cross[feature].reshape(size, -1)
            self._targets = np.concatenate((self._targets, target.reshape(size, *self._targets.shape[1:])))

    def coefficients(self, b: FloatArray | None = None) -> FloatArray:
        """Coefficients in the features' common coordinates, shape (features, size, outputs): these, or those of now."""
        found = np.zeros((self._n_features, self._size, self._cross.shape[3]))
        b = self.b[:, 0] if b is None else b
        for place in range(len(b) // self._size):
            found[self.features[place]] = self._lefts[place] @ b[place * self._size : (place + 1) * self._size]
        return found

    def state(self) -> Tree:
        """What the next step depends on."""
        arrays = {name: getattr(self, name).copy() for name in ARRAYS}
        return {"features": list(self.features), "sse": self.sse, "df": self.df, **arrays}

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said, on a path that has not begun."""
        self.place(tree["features"])
        for name in ARRAYS:
            # Arrays from a file are read-only, and steps change them.
            setattr(self, name, np.array(tree[name]))
        self.sse, self.df = tree["sse"], tree["df"]


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
        from scipy.linalg.blas import dgemm

        self.stopping, self.shrinkage, self.n_rows, self._dgemm = stopping, shrinkage, n_rows, dgemm
        freedom = None if stopping.criterion == "cv" else stopping.freedom
        full = halves.train["F"]
        self.full = FullPath(full, roughness, penalties, shrinkage=shrinkage, freedom=freedom)
        trains, tests = [halves.train[name] for name in HALVES], [halves.evaluate[name] for name in TESTS]
        blocks = np.stack([m.blocks / m.freedom for m in trains])
        solver = BlockSolver(blocks, roughness.x, roughness.rotation[0], penalties)
        # Both paths stand in one array, and so do their residuals in the rows trained on and in those that judge: a
        # step is a handful of products of arrays.
        self._moments = list(zip(trains, tests, strict=True))
        self._left, self._left_t = solver.left, solver.left_t
        self._gains = solver.gains / np.array([m.freedom for m in trains])[:, None, None, None]
        # Half of the blocks: half of a score is as good as a score. BLAS multiplies sooner by what lies transposed,
        # and they are symmetric.
        diagonal = self._left_t @ np.stack([m.blocks / 2 for m in tests]) @ self._left
        self._diagonal = diagonal.swapaxes(-1, -2)
        self._turned_grams: dict[int, FloatArray] = {}
        shape = self._gains.shape
        crosses = np.stack([[m.cross.reshape(shape[1:]) for m in pair] for pair in self._moments])
        self._residuals = self._left_t[:, None] @ crosses
        # Steps write to the same memory again: fresh pieces of this size would come from the system, each time.
        self._increments, self._squared = np.empty((2, *shape))
        self._left_out = float(sum(m.total for m in tests))
        self._slight = SLIGHT * self._left_out if stopping.criterion == "cv" else 0.0
        self._outputs = shape[-1]
        self.selected: list[int] = []
        self.traces: dict[str, list[float]] = {"cv": [self._left_out], "sse": [self.full.sse]}
        if stopping.criterion != "cv":
            self.traces |= {stopping.criterion: [], "df": []}
        self.best = BestStep()
        self._since_best = 0

    @property
    def ended(self) -> bool:
        """Whether the path is as long as it may be, or as long as it must be and no longer getting better."""
        steps, until = len(self.selected), self.stopping
        return steps >= until.max_steps or (steps >= until.min_steps and self._since_best >= until.patience)

    def step(self) -> None:
        """Add an increment of the feature that the halves agree on."""
        own, other = self._residuals[:, 0], self._residuals[:, 1]
        increments, squared = self._increments, self._squared
        np.multiply(own, self._gains, out=increments)
        np.matmul(self._diagonal, increments, out=squared)
        flat = (*own.shape[:2], -1)
        numbers = increments.reshape(flat)
        squares = np.add(*np.vecdot(numbers, squared.reshape(flat)))
        products = np.add(*np.vecdot(numbers, other.reshape(flat)))
        chosen = int((squares - products).argmin())
        # Of the score only the squares grow with the square of the shrinkage.
        self._left_out -= 2 * self.shrinkage * float(products[chosen] - self.shrinkage * squares[chosen])
        added = -self.shrinkage * increments[:, chosen]
        for gram, increment, left in zip(self._grams_of(chosen), added, self._residuals, strict=True):
            # The product is added where the residuals lie, which BLAS counts by columns.
            lying = left.reshape(-1, self._outputs).T
            self._dgemm(1.0, increment.T, gram.T, 1.0, lying, overwrite_c=True)
        self.selected.append(chosen)
        self.traces["cv"].append(self._left_out)
        self._judge()

    def _grams_of(self, chosen: int) -> FloatArray:
        """What an increment of a feature takes off every residual: for each path, all numbers by the increment's."""
        if chosen not in self._turned_grams:
            turned = np.empty((len(HALVES), 2, *self._left.shape[1:]))
            for pair, left, left_t, grams in zip(self._moments, self._left, self._left_t, turned, strict=True):
                for moments, gram in zip(pair, grams, strict=True):
                    columns = moments.products.columns_of(chosen)
                    own = columns.reshape(-1, columns.shape[-1]).dot(left[chosen]).reshape(columns.shape)
                    own[chosen] += moments.added[chosen].dot(left[chosen])
                    np.matmul(left_t, own, out=gram)
            self._turned_grams[chosen] = turned.reshape(len(HALVES), -1, turned.shape[-1])
        return self._turned_grams[chosen]

    def _judge(self) -> None:
        criterion = self.traces["cv"][-1]
        if self.stopping.criterion != "cv":
            self.follow()
            criterion = self._akaike()
            self.traces[self.stopping.criterion].append(criterion)
            self.traces["df"].append(self.full.df)
        better = self.best.criterion - criterion
        if better > 0:
            self.best = BestStep(criterion, len(self.selected))
            self._keep_best()
        self._since_best = 0 if better > self._slight else self._since_best + 1

    def follow(self) -> None:
        """Let all rows take the steps that the halves have chosen since; many at once take less time."""
        pending = self.selected[len(self.traces["sse"]) - 1 :]
        self.full.place(pending)
        for feature in pending:
            self.full.step(feature)
            self.traces["sse"].append(self.full.sse)
            self._keep_best()

    def _keep_best(self) -> None:
        """Keep the coefficients of all rows where they have just taken the best step."""
        if self.best.coefficients is None and len(self.traces["sse"]) - 1 == self.best.steps:
            self.best.coefficients = self.full.b[:, 0].copy()

    def _akaike(self) -> float:
        """Akaike's criterion, with the correction for small samples where asked for (Hurvich & Tsai 1989)."""
        n, df = self.n_rows * self._outputs, self.full.df
        penalty = 2.0 * df
        if self.stopping.criterion == "aicc":
            penalty *= n / max(n - df - 1, 1.0)
        return float(n * np.log(max(self.full.sse, 1e-300) / n) + penalty)

    def coefficients(self) -> tuple[FloatArray, int]:
        """The coefficients from all rows at the best step, and how many steps that is."""
        self.follow()
        steps = len(self.selected) if self.best.coefficients is None else self.best.steps
        return self.full.coefficients(self.best.coefficients), steps

    def state(self) -> Tree:
        """What the next step depends on."""
        self.follow()
        return {
            "residuals": self._residuals.copy(),
            "left_out": self._left_out,
            "since_best": self._since_best,
            "full": self.full.state(),
            "selected": list(self.selected),
            "traces": {name: list(trace) for name, trace in self.traces.items()},
            "best": self.best.state(),
        }

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said, on a path that has not begun."""
        # Arrays from a file are read-only, and steps change them.
        self._residuals = np.array(tree["residuals"])
        self._left_out, self._since_best = tree["left_out"], tree["since_best"]
        self.full.restore(tree["full"])
        self.selected, self.traces = list(tree["selected"]), tree["traces"]
        self.best = BestStep.of(tree["best"])
