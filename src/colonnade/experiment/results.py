"""Results: the table of a sweep, as data for other tools, as comparisons and as figures.

    Results.read("runs/defences.sqlite")        a journal, Parquet, or JSON lines
        .to_pandas(), .to_polars(), .to_arrow()
        .to_parquet(path), .to_jsonl(path), .to_csv(path)
        .pareto(), .heat_map(), .curves(), .paired("defences.bank")
        .gallery(folder)                        all figures as PDF and SVG, and one page of HTML

A row is a trial. Its settings are the columns of its plan, its figures those of `colonnade.experiment.measurement`.
Figures are means over seeds; a setting that was refused, failed or is not finished is named, never left out.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from colonnade.errors import PlanError, StorageError
from colonnade.experiment import figures
from colonnade.experiment.figures import LEVEL, Estimated, HeatCell, Mark, PairedDifference, Trace
from colonnade.experiment.measurement import SECTIONS
from colonnade.experiment.sweep import Journal, columns_of
from colonnade.experiment.trackers import TrackedTrial, track
from colonnade.models.quality import HIGHER
from colonnade.storage import explained, write_atomically
from colonnade.text import nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
Method = Literal["t", "bootstrap"]

PANELS = ("data.name", "data")
"""Models on different data sets are not compared: along these axes each alternative has a panel of its own."""
MEASURES = ("AUC", "accuracy", "R2")
RANGES = {"quality.AUC": (0.0, 1.0), "quality.accuracy": (0.0, 1.0), "quality.R2": (-math.inf, 1.0)}
"""Where values lie: Student's interval of a few seeds may reach further."""
DRAWS = 10_000
POINTS = 100


@dataclass(frozen=True)
class Group:
    """The trials of one setting, one for each seed.

    Attributes:
        settings: In words, by axis.
    """

    settings: Mapping[str, str]
    rows: Sequence[Row]

    def name(self, without: Sequence[str] = ()) -> str:
        """What the setting is called, perhaps without some axes."""
        return ", ".join(text for axis, text in self.settings.items() if axis not in without and text) or "as planned"

    def values(self, figure: str) -> list[Any]:
        """A figure of every trial that has it."""
        return [row[figure] for row in self.rows if row.get(figure) is not None]

    @property
    def why_not(self) -> str:
        """Why trials have no figures; empty where all have some."""
        states = Counter(filter(None, map(_why_not, self.rows)))
        return ", ".join(f"{n} of {len(self.rows)} {state}" for state, n in states.items())


class Results:
    """The results of a sweep.

    Args:
        table: What `Journal.table` gives.
        axes: The places of the plan that were varied; by themselves, all settings that have several values.

    >>> rows = [{"model.epochs": n, "quality.AUC": 0.5 + n / 10, "trial.seed": 0} for n in (1, 2)]
    >>> results = Results(pa.Table.from_pylist(rows))
    >>> results.axes, [group.name() for group in results.groups]
    (('model.epochs',), ['epochs=1', 'epochs=2'])
    """

    def __init__(self, table: pa.Table, axes: Sequence[str] | None = None) -> None:
        self.table = table
        self.rows: list[dict[str, Any]] = table.to_pylist()
        self.settings = tuple(name for name in table.column_names if name.split(".")[0] not in (*SECTIONS, "trial"))
        self._varied = [name for name in self.settings if len({_canonical(row[name]) for row in self.rows}) > 1]
        inferred = [name for name in self._varied if not any(name.startswith(f"{each}.") for each in self._varied)]
        self.axes = tuple(inferred if axes is None else axes)

    @classmethod
    def read(cls, path: Path | str) -> Results:
        """Read a journal, a Parquet file or a file of JSON lines.

        Of a journal all trials are read. Of a trial that several versions of the code ran, the last one counts.

        Raises:
            StorageError: There is no such file, or it is none of these.
        """
        import pyarrow.parquet as pq

        path = Path(path)
        readers: dict[str, Callable[[], pa.Table]] = {
            ".sqlite": lambda: _of_journal(path),
            ".parquet": lambda: pq.read_table(path),
            ".jsonl": lambda: pa.table(columns_of([json.loads(line) for line in path.read_text("utf-8").splitlines()])),
        }
        try:
            with explained(f"read {path}"):
                if not path.is_file() or path.suffix not in readers:
                    raise ValueError("no file that ends in .sqlite, .parquet or .jsonl")
                return cls(readers[path.suffix]())
        except (ValueError, pa.ArrowException) as error:
            raise StorageError(
                f"{path} should be a journal, Parquet or JSON lines of a sweep, but is not: {error}. Name the file "
                "that `colonnade sweep` or `colonnade sweep table` wrote."
            ) from error

    def to_arrow(self) -> pa.Table:
        """One row per trial, as an Arrow table."""
        return self.table

    def to_pandas(self) -> Any:
        """One row per trial, as a pandas frame."""
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """One row per trial, as a polars frame."""
        import polars

        return polars.from_arrow(self.table)

    def to_parquet(self, path: Path | str) -> None:
        """Write one row per trial as Parquet."""
        import pyarrow.parquet as pq

        buffer = BytesIO()
        pq.write_table(self.table, buffer)
        write_atomically(Path(path), buffer.getvalue())

    def to_jsonl(self, path: Path | str) -> None:
        """Write one row per trial as JSON lines; a figure that a trial does not have is left out of its line."""
        lines = [json.dumps({key: value for key, value in row.items() if value is not None}) for row in self.rows]
        write_atomically(Path(path), "".join(f"{line}\n" for line in lines).encode())

    def to_csv(self, path: Path | str) -> None:
        """Write one row per trial as comma-separated values; lists become JSON text."""
        import pyarrow.csv as csv

        plain = {
            name: [json.dumps(value) if isinstance(value, list) else value for value in self.table[name].to_pylist()]
            for name in self.table.column_names
        }
        buffer = BytesIO()
        csv.write_csv(pa.table(plain), buffer)
        write_atomically(Path(path), buffer.getvalue())

    def save(self, path: Path | str) -> None:
        """Write one row per trial in the format that the file's name ends in."""
        writers = {".parquet": self.to_parquet, ".jsonl": self.to_jsonl, ".csv": self.to_csv}
        suffix = Path(path).suffix
        if suffix not in writers:
            raise PlanError(f"A table should be a file that ends in {', '.join(writers)}, but is {path}. Rename it.")
        writers[suffix](path)

    @cached_property
    def groups(self) -> list[Group]:
        """The trials by setting, in the order of the table."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(_canonical([self._at(row, axis) for axis in self.axes]), []).append(row)
        defended = [axis for axis in self.axes if axis.startswith("defences.")]
        return [
            Group({axis: self._worded(rows[0], axis, len(defended) > 1) for axis in self.axes}, rows)
            for rows in found.values()
        ]

    @property
    def measure(self) -> str:
        """The figure of quality that most models have."""
        names = [name.removeprefix("quality.") for name in self.table.column_names if name.startswith("quality.")]
        known = [*(name for name in MEASURES if name in names), *(name for name in names if name in HIGHER)]
        if not known:
            raise PlanError(
                "Results should have a figure of quality, such as quality.AUC, but have none. Sweep first, and see why "
                "trials failed: colonnade sweep status."
            )
        return f"quality.{max(known, key=lambda name: self.table.num_rows - self.table[f'quality.{name}'].null_count)}"

    def pareto(self, *, secret: str = "labels", measure: str | None = None) -> Figure:
        """Draw what each setting leaks against how good its model is.

        Args:
            secret: What the leak is about.
            measure: A figure of quality; the one that most models have if None.
        """
        measure = self._figure(measure or self.measure)
        panels: dict[str, list[Mark]] = {}
        absent: dict[str, list[str]] = {}
        for title, groups in self._panels().items():
            panels[title], absent[title] = [], []
            for group in groups:
                leak, quality = group.values(f"leak.{secret}.excess"), group.values(measure)
                name = group.name(PANELS)
                if leak and quality:
                    mark = Mark(name, estimated(leak).times(POINTS), _in_range(estimated(quality), measure))
                    panels[title].append(mark)
                if not leak or not quality or group.why_not:
                    absent[title].append(f"{name} ({group.why_not or f'no attack on {secret} applies'})")
        short = measure.removeprefix("quality.")
        labels = f"leak of {secret}: points beyond the attacker alone", f"{short} on held-out rows"
        return figures.pareto(panels, absent, labels, higher=HIGHER.get(short) is not False)

    def heat_map(self, *, secret: str = "labels") -> Figure:
        """Draw by how much every attack exceeds the attacker alone, in every setting.

        Args:
            secret: What the attacks are about.
        """
        panels = {}
        for title, groups in self._panels().items():
            attacks = self._attacks(groups, secret)
            cells = [[cell(group, attack) for group in groups] for attack in attacks]
            panels[title] = (attacks, [group.name(PANELS) for group in groups], cells)
        return figures.heat_map(panels, "points beyond the attacker alone")

    def curves(self, *, figure: str | None = None) -> Figure:
        """Draw how settings learn and leak over epochs.

        Args:
            figure: What is drawn of learning, such as `learning.bank.loss`; the first figure if None.
        """
        noted = [n for n in self.table.column_names if n.startswith("learning.") and not n.endswith(".epoch")]
        wanted = self._figure(figure) if figure else next(iter(noted), "")
        over = [name.removesuffix("epochs") for name in self.table.column_names if name.endswith(".epochs")]
        over = [name for name in over if name.startswith("attacks.")]
        learned = wanted.removeprefix("learning.").replace(".", ": ") or "learning"
        traces = {
            learned: list(self._traces([(f"{wanted.rpartition('.')[0]}.epoch", wanted)] if wanted else [])),
            "score of the worst attack": list(self._traces([(f"{n}epochs", f"{n}epoch_scores") for n in over])),
        }
        missing = {
            learned: "No model here notes figures of its epochs.",
            "score of the worst attack": "Nobody asked for leaks over epochs: write epochs = 8 under [audit].",
        }
        return figures.curves(traces, missing)

    def paired(
        self, axis: str, *, figure: str | None = None, baseline: str | None = None, method: Method = "t"
    ) -> Figure:
        """Draw each setting of an axis against one of them, seed by seed.

        Args:
            axis: The place of the plan whose alternatives are compared.
            figure: Which figure; the quality that most models have if None.
            baseline: What the others are compared with, in words; the first alternative if None.
            method: Student's interval of the mean difference, or a bootstrap of the seeds.
        """
        figure = self._figure(figure or self.measure)
        found = self.differences(axis, figure, baseline=baseline, method=method)
        return figures.paired(found, f"difference in {figure}\n({LEVEL:.0%} interval; dots are seeds)")

    def differences(
        self, axis: str, figure: str, *, baseline: str | None = None, method: Method = "t"
    ) -> list[PairedDifference]:
        """Each setting of an axis less one of them, over the seeds that both have, where all else is equal."""
        figure = self._figure(figure)
        if axis not in self.axes:
            raise PlanError(
                f"The axis should be one of {', '.join(self.axes) or 'none: nothing was varied'}, but is {axis!r}."
                f"{nearest(axis, self.axes)} Correct the axis."
            )
        first = self.groups[0].settings[axis] if baseline is None else baseline
        if first not in {group.settings[axis] for group in self.groups}:
            known = dict.fromkeys(group.settings[axis] for group in self.groups)
            raise PlanError(
                f"The baseline should be one of {', '.join(known)}, but is {first!r}. Correct the baseline."
            )
        found = []
        for group in self.groups:
            if group.settings[axis] == first:
                continue
            alike = {**group.settings, axis: first}
            other = next((each for each in self.groups if each.settings == alike), Group(alike, ()))
            mine, theirs = _by_seed(group, figure), _by_seed(other, figure)
            seeds = tuple(seed for seed in mine if seed in theirs)
            differences = [mine[seed] - theirs[seed] for seed in seeds]
            where = "" if len(self.axes) == 1 else f" | {group.name((axis,))}"
            found.append(
                PairedDifference(
                    f"{group.settings[axis]} against {first}{where}",
                    seeds,
                    len({row["trial.seed"] for row in (*group.rows, *other.rows)}) - len(seeds),
                    estimated(differences, method) if seeds else None,
                )
            )
        return found

    def summary(self) -> list[list[str]]:
        """A line for each setting, under a head: its trials, its quality, what it leaks and by which attack."""
        measure = self.measure
        secrets = [name.split(".")[1] for name in self.table.column_names if _is_leak(name)]
        head = [*self.axes, "trials", measure.removeprefix("quality.")]
        lines = [[*head, *(f"leak of {secret}" for secret in secrets)]]
        for group in self.groups:
            cells = [*group.settings.values(), group.why_not or str(len(group.rows))]
            cells.append(_told(group.values(measure), "{:.3f}", measure))
            for secret in secrets:
                excess = [POINTS * each for each in group.values(f"leak.{secret}.excess")]
                by = Counter(group.values(f"leak.{secret}.by")).most_common(1)
                cells.append(
                    f"{_told(excess, '{:+.1f}')} by {by[0][0]}" if by else group.why_not or "no attack applies"
                )
            lines.append(cells)
        return lines

    def notes(self) -> list[str]:
        """What failed, was refused or is not finished, one sentence for each setting and reason."""
        found: dict[tuple[str, str], list[str]] = {}
        for group in self.groups:
            for row in group.rows:
                reason = row.get("refused") or (row.get("trial.traceback") or "").strip().rpartition("\n")[2]
                if state := _why_not(row):
                    said = f"{state}: {reason}" if reason else state
                    found.setdefault((group.name(), said), []).append(str(row["trial.seed"]))
        return [
            f"{name}, seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}: {said}"
            for (name, said), seeds in found.items()
        ]

    def gallery(self, folder: Path | str, title: str = "Results of a sweep") -> Path:
        """Write all figures as PDF and SVG, and one page that shows them and needs nothing else; returns the page."""
        folder = Path(folder)
        secrets = [name.split(".")[1] for name in self.table.column_names if _is_leak(name)] or ["labels"]
        drawn: dict[str, tuple[Figure, str]] = {}
        for secret in secrets:
            drawn[f"pareto-{secret}"] = (
                self.pareto(secret=secret),
                f"What settings leak of {secret} beside how good their models are; means over seeds with "
                f"{LEVEL:.0%} intervals. No setting beats those with a ring in both; in the shaded part "
                "nothing leaks beyond what the attacker has alone, and all settings leak alike.",
            )
            drawn[f"heat-map-{secret}"] = (
                self.heat_map(secret=secret),
                f"By how many points every attack on {secret} exceeds the attacker alone, as means over seeds. "
                "'= null': no more than in runs with a shuffled secret.",
            )
        drawn["curves"] = (self.curves(), "Learning and leak over epochs; thin lines are seeds.")
        for axis in (axis for axis in self.axes if len({group.settings[axis] for group in self.groups}) > 1):
            for figure in (self.measure, *(f"leak.{secret}.excess" for secret in secrets)):
                if axis not in PANELS and figure in self.table.column_names:
                    name = f"paired-{axis}-{figure}".replace(".", "-").replace(" ", "-")
                    caption = f"{axis}: differences in {figure} to the first alternative, on equal seeds."
                    drawn[name] = (self.paired(axis, figure=figure), caption)
        for name, (figure_, _) in drawn.items():
            for kind in figures.FORMATS:
                figures.save(figure_, folder / f"{name}.{kind}")
        write_atomically(folder / "index.html", figures.page(title, drawn, self.summary(), self.notes()).encode())
        return folder / "index.html"

    def log_to(self, tracker: str, folder: Path | str, experiment: str = "sweep") -> Path:
        """Write every trial for MLflow or TensorBoard, through their own interfaces; returns the folder.

        Args:
            tracker: "mlflow" or "tensorboard", which are extras.
            folder: Where to write. MLflow writes where MLFLOW_TRACKING_URI says, if that is set.
            experiment: What the trials are gathered under.
        """
        track(tracker, self._tracked(), Path(folder), experiment)
        return Path(folder)

    def _tracked(self) -> Iterator[TrackedTrial]:
        for group in self.groups:
            for row in group.rows:
                over = {name: value for name, value in row.items() if isinstance(value, list) and _is_figure(name)}
                figures_ = {name: value for name, value in row.items() if isinstance(value, float) and _is_figure(name)}
                series = {
                    name: [(int(x), y) for x, y in zip(row[_epochs_of(name)], values, strict=True) if y is not None]
                    for name, values in over.items()
                    if name != _epochs_of(name) and row.get(_epochs_of(name))
                }
                seed = row["trial.seed"]
                settings = {**group.settings, "seed": str(seed)}
                yield TrackedTrial(f"{group.name()}, seed {seed}", settings, figures_, series, bool(_why_not(row)))

    def _at(self, row: Row, axis: str) -> dict[str, Any]:
        """What a trial has at a place of the plan, without what all trials have in common."""
        names = [name for name in self._varied if name == axis or name.startswith(f"{axis}.")]
        return {name.removeprefix(axis).removeprefix("."): row[name] for name in names if row[name] is not None}

    def _worded(self, row: Row, axis: str, several: bool) -> str:
        """An alternative in words: text as it is, anything else with its name."""
        found, last = self._at(row, axis), axis.rpartition(".")[2]
        if axis.startswith("defences."):
            return f"{last}: {_words(found.get('', []))}" if several else _words(found.get("", []))
        if set(found) <= {""}:
            value = found.get("")
            return "" if value is None else value if isinstance(value, str) else f"{last}={_words(value)}"
        return _words({key or "name": value for key, value in found.items()})

    def _panels(self) -> dict[str, list[Group]]:
        found: dict[str, list[Group]] = {}
        for group in self.groups:
            title = ", ".join(group.settings[axis] for axis in PANELS if axis in group.settings)
            found.setdefault(title, []).append(group)
        return found

    def _attacks(self, groups: Sequence[Group], secret: str) -> list[str]:
        """The attacks on a secret that some trial was asked to make, the one that finds most first."""
        names = [n.removeprefix("attacks.").removesuffix(".verdict") for n in self.table.column_names if _is_verdict(n)]
        rows = [row for group in groups for row in group.rows]
        asked = [name for name in names if any(row.get(f"attacks.{name}.about") == secret for row in rows)]
        found = {name: [row.get(f"attacks.{name}.excess") for row in rows] for name in asked}
        return sorted(asked, key=lambda name: -max((each for each in found[name] if each is not None), default=-1.0))

    def _traces(self, columns: Sequence[tuple[str, str]]) -> Iterator[Trace]:
        for group in self.groups if columns else ():
            pairs = [(row[x], row[y]) for row in group.rows for x, y in columns if row.get(x) and row.get(y)]
            epochs, values = (tuple(tuple(each[i]) for each in pairs) for i in range(2))
            yield Trace(
                group.name() if pairs else f"{group.name()}: {group.why_not or 'nothing noted'}", epochs, values
            )

    def _figure(self, name: str) -> str:
        if name not in self.table.column_names:
            raise PlanError(
                f"The results should have the figure {name!r}, but do not.{nearest(name, self.table.column_names)} "
                "Correct the name."
            )
        return name


def estimated(values: Sequence[float], method: Method = "t") -> Estimated:
    """The mean of some values with a 95 % interval of the mean; without an interval if there is one value.

    >>> estimated([0.5]).low is None
    True
    """
    centre, n = mean(values), len(values)
    if n < 2:
        return Estimated(centre, None, None, tuple(values))
    if method == "bootstrap":
        drawn = np.random.default_rng(0).choice(np.asarray(values, float), (DRAWS, n)).mean(axis=1)
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    else:
        from scipy import stats

        half = stats.t.ppf((1 + LEVEL) / 2, n - 1) * np.std(values, ddof=1) / n**0.5
        low, high = centre - half, centre + half
    return Estimated(centre, float(low), float(high), tuple(values))


def cell(group: Group, attack: str) -> HeatCell:
    """What an attack finds in a setting on average, or why there is nothing to say."""
    excess, verdicts = group.values(f"attacks.{attack}.excess"), set(group.values(f"attacks.{attack}.verdict"))
    if not excess:
        return HeatCell((group.why_not or ", ".join(sorted(verdicts)) or "not asked for").replace(" of ", "/"), None)
    value = POINTS * mean(excess)
    text = f"{value:+.0f}"
    if len(excess) < len(group.rows):
        text += f"\n{len(excess)} of {len(group.rows)}"
    return HeatCell(f"{text}\n= null" if verdicts == {"no leak found"} else text, value)


def _of_journal(path: Path) -> pa.Table:
    with Journal(path, read_only=True) as journal:
        table = journal.table()
    first_words = (*SECTIONS, "trial")
    settings = [name for name in table.column_names if name.split(".")[0] not in first_words]
    rows = table.select([*settings, "trial.seed"]).to_pylist()
    last = {_canonical(row): place for place, row in enumerate(rows)}
    return table.take(pa.array(sorted(last.values()), pa.int64()))


def _why_not(row: Row) -> str:
    """Why a trial has no figures; empty if it has."""
    if row.get("refused"):
        return "refused"
    states = {"quarantined": "failed", "queued": "not begun", "running": "not finished"}
    return states.get(row.get("trial.state", "done"), "")


def _by_seed(group: Group, figure: str) -> dict[int, float]:
    return {row["trial.seed"]: row[figure] for row in group.rows if row.get(figure) is not None}


def _is_figure(name: str) -> bool:
    return name.split(".")[0] in SECTIONS


def _epochs_of(name: str) -> str:
    """The column of the epochs that a column of figures over epochs is about."""
    return f"{name.rpartition('.')[0]}.{'epochs' if name.startswith('attacks.') else 'epoch'}"


def _is_leak(name: str) -> bool:
    return name.startswith("leak.") and name.endswith(".excess")


def _is_verdict(name: str) -> bool:
    return name.startswith("attacks.") and name.endswith(".verdict")


def _in_range(found: Estimated, figure: str) -> Estimated:
    return found.within(*RANGES.get(figure, (-math.inf, math.inf)))


def _told(values: Sequence[float], form: str, figure: str = "") -> str:
    """A mean with its interval."""
    if not values:
        return "none"
    found = _in_range(estimated(values), figure)
    between = "" if found.low is None else f" ({form.format(found.low)} to {form.format(found.high)})"
    return form.format(found.mean) + between


def _words(value: Any) -> str:
    """A value of a plan for a reader: defences by their names, with what was set."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        value = json.loads(value)
    if isinstance(value, list):
        return " + ".join(map(_words, value)) or "none"
    if isinstance(value, Mapping):
        given = ", ".join(f"{key}={_words(each)}" for key, each in value.items() if key != "name" and each is not None)
        return f"{value.get('name', '')}({given})" if given else str(value.get("name", ""))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
