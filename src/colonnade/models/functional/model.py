"""CurveModel: what the label party does with coefficients of curves on curves: it predicts, draws and saves them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from colonnade.curves import Basis, Curves, basis_of
from colonnade.curves.basis import FloatArray
from colonnade.errors import DataError, PlanError
from colonnade.models.base import Estimator, Prediction
from colonnade.models.functional.exchange import CurveDesign, OwnCurves, check_rows
from colonnade.models.functional.messages import PartialPrediction, Surface
from colonnade.privacy.ledger import Event
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.tables.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, repr=False)
class CurvePrediction(Prediction):
    """Predicted curves: one row of coefficients per record, in the basis of the outputs.

    >>> from colonnade.curves import BSplines
    >>> CurvePrediction(np.zeros((3, 5)), basis=BSplines((0, 1), 5)).curves
    Curves(3 curves on [0, 1], 5 b-splines)
    """

    basis: Basis | None = None

    @property
    def curves(self) -> Curves:
        """The predicted curves."""
        assert self.basis is not None
        return Curves(self.values, self.basis)


@dataclass(frozen=True)
class LearnedCurves:
    """What the label party learns: coefficients in coordinates, shape (columns, size, outputs), and of what.

    Inputs are centred by their means, and predictions start from a mean of outputs; `selected` are the columns that are
    used.
    """

    design: CurveDesign
    y_basis: Basis
    w: FloatArray
    z_mean: FloatArray
    y_mean: FloatArray
    selected: tuple[str, ...]


class CurveModel(Estimator):
    """A regression of curves on curves of several parties: what the label party can do with its coefficients."""

    task: ClassVar[Literal["regression"]] = "regression"
    # What protects coefficients that are given away; nothing where they depend on the outputs as they are.
    covered_by: ClassVar[tuple[str, ...]] = ()

    design_: CurveDesign
    y_basis_: Basis
    w_: FloatArray
    z_mean_: FloatArray
    y_mean_: FloatArray
    selected_: tuple[str, ...]
    held_: OwnCurves

    def check_columns(self, table: Table) -> None:
        # An arbiter has neither; a feature party has its curves, the label party the design of all.
        if hasattr(self, "held_"):
            self.held_.require_columns(table)
        elif hasattr(self, "design_"):
            self.design_.owned_by(table.owner or "").require_columns(table)

    def combined(self, z: FloatArray) -> FloatArray:
        """What the coefficients make of inputs, all in coordinates; inputs have shape (rows, columns, size)."""
        return combined(z, self.z_mean_, self.w_, self.y_mean_)

    def keep(self, learned: LearnedCurves) -> None:
        """Keep what the label party has learned, each in the attribute of its name."""
        for name, value in vars(learned).items():
            setattr(self, f"{name}_", value)

    def predicted(self, coordinates: FloatArray) -> CurvePrediction:
        """The curves that predicted coordinates stand for."""
        return CurvePrediction(coordinates @ self.y_basis_.inverse_root, basis=self.y_basis_)

    def from_parts(self, party: Party) -> FloatArray:
        """The label party's prediction in coordinates, the sum of the exact parts that all columns make."""
        predicted = np.tile(self.y_mean_, (len(party.own_table), 1))
        for place in self.design_.of_party(party.name):
            z = self.design_.own(party, self.design_.columns[place][1])
            predicted += (z - self.z_mean_[place]) @ self.w_[place]
        for line in party.feature_parties:
            places = self.design_.of_party(line.peer)
            for place in places:
                column = self.design_.columns[place][1]
                line.send(Surface(column, self.w_[place], self.z_mean_[place]), under=self.covered_by)
            if not self.covered_by:
                note = "coefficients fitted to the outputs given to feature parties"
                party.ledger.spend(Event.not_private(Secret.LABELS, note), identity=line.peer.encode())
        for line in party.feature_parties:
            rows = np.arange(len(predicted))
            predicted += line.receive(PartialPrediction, shape=predicted.shape, rows=rows).values
        return predicted

    @property
    def B_(self) -> dict[str, FloatArray]:
        """Each column's operator on raw coefficients: the output's are those of the inputs, less centre, times it."""
        left, right = self.design_.basis.root, self.y_basis_.inverse_root
        return {name: left @ w @ right for name, w in zip(self.design_.names, self.w_, strict=True)}

    @property
    def centers_(self) -> dict[str, Any]:
        """The means that inputs are centred by, and the mean that predictions start from: curves."""
        x = {
            name: Curves.of_coordinates(mean[None], self.design_.basis)
            for name, mean in zip(self.design_.names, self.z_mean_, strict=True)
        }
        return {"x": x, "y": Curves.of_coordinates(self.y_mean_[None], self.y_basis_)}

    def surface(self, column: str, s: ArrayLike, t: ArrayLike) -> FloatArray:
        """The coefficient surface of a column: what the input at s adds to the output at t, per unit of time."""
        if column not in self.design_.names:
            raise PlanError(
                f"There is a surface for {', '.join(self.design_.names)}, but not for {column!r}. Name one of these."
            )
        w = self.w_[self.design_.names.index(column)]
        x, y = self.design_.basis, self.y_basis_
        # beta(s, t) = phi(s)' B eta(t) with B = Mx^(-1/2) W My^(-1/2), because the model integrates over s.
        inner = x.inverse_root @ w @ y.inverse_root
        return np.asarray(x.evaluate(s) @ inner @ y.evaluate(t).T)

    def plot_surface(self, column: str, ax: Axes | None = None, *, n_points: int = 60) -> Axes:
        """Draw the coefficient surface of a column."""
        from colonnade.curves.plots import plot_surface

        s = np.linspace(*self.design_.basis.domain, n_points)
        t = np.linspace(*self.y_basis_.domain, n_points)
        return plot_surface(s, t, self.surface(column, s, t), ax, column)

    def label_share(self) -> Tree:
        """What the label party has learned, as a tree."""
        return {
            "design": self.design_.state(),
            "y_basis": json.dumps(self.y_basis_.describe()),
            "w": self.w_,
            "z_mean": self.z_mean_,
            "y_mean": self.y_mean_,
            "selected": list(self.selected_),
        }

    def take_label_share(self, tree: Tree) -> None:
        """Take up what `label_share` gave."""
        self.design_ = CurveDesign.from_state(tree["design"])
        self.y_basis_ = basis_of(json.loads(tree["y_basis"]))
        self.w_, self.z_mean_, self.y_mean_ = tree["w"], tree["z_mean"], tree["y_mean"]
        self.selected_ = tuple(tree["selected"])


def combined(z: FloatArray, z_mean: FloatArray, w: FloatArray, y_mean: FloatArray) -> FloatArray:
    """What coefficients make of inputs, all in coordinates."""
    centred = (z - z_mean).reshape(len(z), -1)
    return np.asarray(centred @ w.reshape(centred.shape[1], -1) + y_mean)


def response(party: Party) -> Curves:
    """The label party's curves to predict, checked."""
    table = party.own_table
    if table.label_name is None:
        raise DataError(f"{party.name} is the label party but its table has no labels. Name the column of curves.")
    curves = table.curves(table.label_name)
    check_rows(curves, table.label_name, party.name)
    return curves
