"""Axes to draw curves on, and figures of coefficient surfaces; the extra `report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from colonnade.curves.basis import FloatArray
from colonnade.errors import imported

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


def new_axes() -> Axes:
    """New axes in a figure of their own, without a window."""
    imported("matplotlib", "report", "Drawing curves")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.add_subplot()
