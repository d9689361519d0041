"""Figures for papers, drawn from numbers that `colonnade.experiment.results` works out; the extra `report`.

Nothing is left blank without a word: what could not be measured is named in the figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.errors import imported
from colonnade.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg")
GREY = "0.88"
MARKERS = "os^Dv"
LEAST_REACH = 10.0
"""How many points the colours of a heat map span at least, so that a few points do not look like many."""
LEVEL = 0.95
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
figure { margin: 2rem 0; overflow-x: auto; } svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; } th, td { padding: .2rem .7rem; text-align: left; border-bottom: 1px solid #ccc; }
"""


@dataclass(frozen=True)
class Estimated:
    """A mean over seeds with its interval; the interval is missing where there is one seed."""

    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    def times(self, factor: float) -> Estimated:
        """The same in another unit."""
        low, high = (None if each is None else factor * each for each in (self.low, self.high))
        return Estimated(factor * self.mean, low, high, tuple(factor * each for each in self.values))

    def within(self, least: float, most: float) -> Estimated:
        """The same with an interval that ends where no value can lie."""
        if self.low is None or self.high is None:
            return self
        return Estimated(self.mean, max(self.low, least), min(self.high, most), self.values)

    @property
    def reach(self) -> tuple[tuple[float], tuple[float]] | None:
        """How far the interval lies below and above the mean, as error bars take it."""
        return None if self.low is None or self.high is None else ((self.mean - self.low,), (self.high - self.mean,))


@dataclass(frozen=True)
class Mark:
    """A setting by what it leaks and how good its model is."""

    name: str
    leak: Estimated
    quality: Estimated


@dataclass(frozen=True)
class HeatCell:
    """What is written into a cell of a heat map, and the number that colours it; None where there is none."""

    text: str
    value: float | None


@dataclass(frozen=True)
class Trace:
    """A figure over epochs: one sequence of values for each seed."""

    name: str
    epochs: tuple[tuple[float, ...], ...]
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class PairedDifference:
    """A setting against another one, seed by seed.

    Attributes:
        name: Which setting against which, and where.
        seeds: The seeds that both have.
        unpaired: How many seeds only one of the two has a figure of.
        estimated: The mean of the differences, with an interval.
    """

    name: str
    seeds: tuple[int, ...]
    unpaired: int
    estimated: Estimated | None


def pareto(
    panels: Mapping[str, Sequence[Mark]], absent: Mapping[str, Sequence[str]], labels: tuple[str, str], *, higher: bool
) -> Figure:
    """Draw leak against quality: one mark for each setting, rings around those that no other one beats.

    Args:
        panels: The marks by data set.
        absent: By data set, the settings without a mark, with the reason.
        labels: What the axes show.
        higher: Whether a higher quality is better.
    """
    longest = max((len(mark.name) for marks in panels.values() for mark in marks), default=0)
    figure = _figure(len(panels) or 1, 5.0 + 0.06 * longest, 4.2)
    for axes, (title, marks) in zip(_row(figure, len(panels) or 1), panels.items(), strict=False):
        # Names would cover each other where settings are alike: the plot has numbers, and the legend their names.
        for place, mark in enumerate(marks):
            x, y, style = mark.leak, mark.quality, MARKERS[place // 10 % len(MARKERS)]
            label = f"{place + 1}  {mark.name}"
            axes.errorbar(x.mean, y.mean, y.reach, x.reach, style, capsize=2, elinewidth=0.8, label=label)
            axes.annotate(str(place + 1), (x.mean, y.mean), xytext=(4, 4), textcoords="offset points", fontsize=8)
        if marks:
            _name_beside(axes)
        best = frontier(marks, higher=higher)
        where = [each.leak.mean for each in best], [each.quality.mean for each in best]
        axes.plot(*where, "--o", color="0.4", markersize=11, markerfacecolor="none", zorder=0)
        axes.axvline(0, color="0.7", linewidth=0.8)
        left, right = axes.get_xlim()
        axes.axvspan(min(left, 0), 0, color="0.95", zorder=-1)
        axes.set_xlim(left, right)
        axes.set(xlabel=labels[0], ylabel=labels[1], title=title)
        _note(axes, absent.get(title, ()))
    return figure


def frontier(marks: Sequence[Mark], *, higher: bool = True) -> list[Mark]:
    """The marks that no other one beats in leak and quality at once, from the least leak to the most.

    Settings that leak nothing beyond what the attacker has alone are alike in their leak.
    """
    sign = 1 if higher else -1
    found: list[Mark] = []
    for mark in sorted(marks, key=lambda each: (max(each.leak.mean, 0.0), -sign * each.quality.mean)):
        if not found or sign * mark.quality.mean > sign * found[-1].quality.mean:
            found.append(mark)
    return found


def heat_map(
    panels: Mapping[str, tuple[Sequence[str], Sequence[str], Sequence[Sequence[HeatCell]]]], label: str
) -> Figure:
    """Draw attacks against settings; a cell without a number is grey and hatched, and says why.

    Args:
        panels: By data set: the attacks, the settings, and a line of cells for each attack.
        label: What the colours show.
    """
    rows = max((len(attacks) for attacks, _, _ in panels.values()), default=1)
    columns = max((len(settings) for _, settings, _ in panels.values()), default=1)
    figure = _figure(len(panels) or 1, 2.4 + 0.95 * columns, max(3.4, 1.8 + 0.38 * rows))
    values = [cell.value for *_, cells in panels.values() for line in cells for cell in line if cell.value is not None]
    # An attack that finds less than the attacker has alone is no leak, however much less.
    reach = max(*values, LEAST_REACH) if values else LEAST_REACH
    every = _row(figure, len(panels) or 1)
    drawn = None
    for axes, (title, (attacks, settings, cells)) in zip(every, panels.items(), strict=False):
        axes.set_title(title)
        if not attacks:
            _say(axes, "No such attack was asked for.")
            continue
        numbers = [[float("nan") if cell.value is None else cell.value for cell in line] for line in cells]
        drawn = axes.imshow(numbers, cmap="Reds", vmin=0, vmax=reach, aspect="auto")
        axes.set_facecolor(GREY)
        for y, line in enumerate(cells):
            for x, cell in enumerate(line):
                if cell.value is None:
                    axes.fill_between([x - 0.5, x + 0.5], y - 0.5, y + 0.5, facecolor=GREY, edgecolor="0.7", hatch="//")
                dark = cell.value is not None and cell.value > 0.6 * reach
                axes.text(x, y, cell.text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
        axes.set_xticks(range(len(settings)), settings, rotation=30, ha="right", fontsize=8)
        axes.set_yticks(range(len(attacks)), attacks, fontsize=8)
    if drawn is not None:
        figure.colorbar(drawn, ax=every).set_label(label, fontsize=8)
    return figure


def curves(traces: Mapping[str, Sequence[Trace]], missing: Mapping[str, str]) -> Figure:
    """Draw figures over epochs, a panel for each kind: a thick line for the mean of a setting, thin ones for its seeds.

    Args:
        traces: The settings' traces by kind.
        missing: By kind, why there is no trace.
    """
    longest = max((len(trace.name) for several in traces.values() for trace in several), default=0)
    figure = _figure(len(traces), 4.6 + 0.06 * longest, 3.8)
    for axes, (kind, several) in zip(_row(figure, len(traces)), traces.items(), strict=True):
        for place, trace in enumerate(several):
            colour = f"C{place % 10}"
            for epochs, values in zip(trace.epochs, trace.values, strict=True):
                axes.plot(epochs, values, color=colour, alpha=0.35, linewidth=0.8)
            axes.plot(*_mean_trace(trace), color=colour, marker="o", markersize=2.5, label=trace.name)
        axes.set(xlabel="epoch", ylabel=kind)
        axes.locator_params(axis="x", integer=True)
        if several:
            _name_beside(axes)
        else:
            _say(axes, missing[kind])
    return figure


def paired(differences: Sequence[PairedDifference], label: str) -> Figure:
    """Draw differences between settings: for each the mean with its interval, and below it every seed."""
    longest = max((len(_with_seeds(each)) for each in differences), default=0)
    figure = _figure(1, 4.4 + 0.06 * longest, 1.3 + 0.5 * max(1, len(differences)))
    (axes,) = _row(figure, 1)
    if not differences:
        _say(axes, "There is one alternative: nothing to compare.")
    for y, each in enumerate(differences):
        found = each.estimated
        if found is None:
            axes.text(0, y, "no seed has both figures", va="center", ha="center", fontsize=8)
            continue
        axes.plot(found.values, [y + 0.22] * len(found.values), "o", color="0.5", markersize=3)
        axes.errorbar(found.mean, y, xerr=found.reach, fmt="s", color="C0", capsize=3, markersize=5)
    axes.axvline(0, color="0.5", linewidth=0.8)
    axes.set_yticks(range(len(differences)), [_with_seeds(each) for each in differences], fontsize=8)
    axes.set_ylim(max(1, len(differences)) - 0.5, -0.5)
    axes.set_xlabel(label)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure, as PDF, SVG or PNG by the name of the file; its text stays text."""
    write_atomically(path, rendered(figure, path.suffix.removeprefix("."), path.stem))


def rendered(figure: Figure, kind: str, salt: str) -> bytes:
    """The bytes of a figure, the same each time."""
    import matplotlib

    buffer = BytesIO()
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "pdf.fonttype": 42}):
        figure.savefig(buffer, format=kind, metadata=undated)
    return buffer.getvalue()


def page(
    title: str, figures: Mapping[str, tuple[Figure, str]], table: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    """A page of HTML with all figures in it, which needs no other file and no network.

    Args:
        title: The page's heading.
        figures: By name, each figure with what it shows.
        table: Lines of cells, the head first.
        notes: What failed or was refused, one sentence each.
    """
    parts = [f"<h1>{escape(title)}</h1>"]
    head, *lines = table
    cells = ["".join(f"<td>{escape(cell)}</td>" for cell in line) for line in lines]
    parts.append("<table><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>")
    parts += [*(f"<tr>{line}</tr>" for line in cells), "</table>"]
    parts += [f"<p>{escape(note)}</p>" for note in notes]
    for name, (figure, caption) in figures.items():
        svg = rendered(figure, "svg", name).decode()
        files = ", ".join(f'<a href="{name}.{kind}">{kind.upper()}</a>' for kind in FORMATS)
        parts.append(f"<figure>{svg[svg.index('<svg') :]}<figcaption>{escape(caption)} ({files})</figcaption></figure>")
    head_of_page = f"<meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"
    return "\n".join(["<!doctype html>", f"<html lang=en>{head_of_page}", *parts, "</html>", ""])


def _mean_trace(trace: Trace) -> tuple[list[float], list[float]]:
    """The mean over seeds in each epoch that a seed has."""
    at: dict[float, list[float]] = {}
    for epochs, values in zip(trace.epochs, trace.values, strict=True):
        for epoch, value in zip(epochs, values, strict=True):
            at.setdefault(epoch, []).append(value)
    return sorted(at), [sum(at[epoch]) / len(at[epoch]) for epoch in sorted(at)]


def _with_seeds(each: PairedDifference) -> str:
    n = len(each.seeds)
    lost = f", {each.unpaired} without a pair" if each.unpaired else ""
    return f"{each.name} ({n} seed{'' if n == 1 else 's'}{lost})"


def _figure(panels: int, width: float, height: float) -> Figure:
    """An empty figure without a window, so many panels wide."""
    imported("matplotlib", "report", "Drawing results")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * panels, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _row(figure: Figure, panels: int) -> list[Axes]:
    found: Any = figure.subplots(1, panels, squeeze=False)[0]
    return list(found)


def _name_beside(axes: Axes) -> None:
    """Write the legend beside the panel, where it covers nothing."""
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, frameon=False)


def _note(axes: Axes, lines: Sequence[str]) -> None:
    if lines:
        axes.text(0, -0.22, "Not drawn: " + "; ".join(lines), transform=axes.transAxes, fontsize=7, va="top", wrap=True)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=8, wrap=True)
