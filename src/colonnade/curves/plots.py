"""Axes to draw curves on, figures of coefficient surfaces, and how a training went; the extra `report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from colonnade.curves.basis import FloatArray
from colonnade.errors import PlanError, imported

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_surface(s: FloatArray, t: FloatArray, values: FloatArray, ax: Axes | None, title: str) -> Axes:
    """Draw a coefficient surface: what input time s does to output time t."""
    ax = new_axes() if ax is None else ax
    reach = float(np.abs(values).max()) or 1.0
    mesh = ax.pcolormesh(t, s, values, cmap="RdBu_r", vmin=-reach, vmax=reach, shading="gouraud")
    ax.figure.colorbar(mesh, ax=ax)
    ax.set_xlabel("t, output")
    ax.set_ylabel("s, input")
    ax.set_title(title)
    return ax


def plot_history(history: Mapping[str, Sequence[Mapping[str, float]]], ax: Axes | None, what: str) -> Axes:
    """Draw the figures of each epoch, by party.

    Args:
        history: By party, the figures of each epoch; a party that learned none is left out.
        ax: Where to draw; new axes if None.
        what: What was trained, for the title and for a refusal.

    Raises:
        PlanError: No party learned a figure.
    """
    drawn = {party: sorted({name for step in steps for name in step} - {"epoch"}) for party, steps in history.items()}
    if not any(drawn.values()):
        raise PlanError(
            f"A history has the figures of each epoch, but no party learned any while {what} was trained. Look at "
            "n_iter_ and converged_, or at the quality on held-out rows."
        )
    ax = new_axes("Drawing a history") if ax is None else ax
    for party, names in drawn.items():
        for name in names:
            points = [(step["epoch"], step[name]) for step in history[party] if name in step]
            ax.plot(*zip(*points, strict=True), label=f"{party}: {name.replace('_', ' ')}")
    ax.set_xlabel("epoch")
    ax.set_title(what)
    ax.legend()
    return ax


def new_axes(act: str = "Drawing curves") -> Axes:
    """New axes in a figure of their own, without a window."""
    imported("matplotlib", "report", act)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.add_subplot()
