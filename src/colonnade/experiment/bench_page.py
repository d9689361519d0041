"""The benchmark's page, and the README's table.

A cell of a table has figures or a word that a note explains, and is never empty. Figures that are not what a table's
others are bear a mark, which the text beside the table explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, TypeAlias

from colonnade.data.datasets import Task, available
from colonnade.errors import StorageError
from colonnade.experiment.bench import LEADING, NONE, SETS, SPLITS, Cell, cells, how_trained, is_network, why_no_split
from colonnade.experiment.compare import JOINED
from colonnade.experiment.measurement import INAPPLICABLE, NOT_MADE
from colonnade.text import how_many

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
NO_ATTACK = "no attack applies"
UNJOINED = "\\*"
"""What marks a figure of the best single attack among figures of all attacks joined."""
OUTDONE = "†"
"""What marks a figure of all attacks joined where a single attack is judged to leak and they are not."""
LEAKS = ("leaks", "leaks, classes unnamed")
_EXCESSES = "the excess of attacks on labels / on columns, in points"
_SECRETS = {"labels": "labels", "features": "columns", "membership": "membership"}

Row: TypeAlias = Mapping[str, Any]


def page(rows: Sequence[Row], attacks: Sequence[Row]) -> str:
    """The results for a reader."""
    rows = _marked(rows, attacks)
    lines = [
        "# The standing benchmark",
        "",
        "How good every model of the catalogue is with every defence that it takes, beside what the label party "
        "reaches alone and what all columns in one place would give; and what the attacks of an audit find in each. "
        "[How to read the tables](../bench.md) is told apart. `bench.csv` has every trial, `bench_attacks.parquet` "
        "every attack in every trial.",
        "",
        " ".join([*_made(rows), *_trained(rows)]),
        *_absent(rows),
    ]
    for name in dict.fromkeys(row["set"] for row in rows):
        lines += ["", f"## {name}", "", *_set(*([row for row in of if row["set"] == name] for of in (rows, attacks)))]
    return "\n".join(lines).rstrip() + "\n"


def readme_block(rows: Sequence[Row], attacks: Sequence[Row]) -> str:
    """The README's table: each model without a defence on each set of classes, between the marks."""
    rows = [row for row in _marked(rows, attacks) if _task(row["set"]) in ("binary", "classes")]
    natural = [row for row in rows if row["split"] == _first_split(rows) and row.get("defence") in (None, NONE)]
    sets = [
        name
        for name in dict.fromkeys(row["set"] for row in natural)
        if any(row["set"] == name and _is_measured(row) for row in natural)
    ]
    models = list(dict.fromkeys(row["model"] for row in natural if row.get("model")))
    lines = [
        BEGIN,
        "| | " + " | ".join(f"{name}, {LEADING[_task(name)]}" for name in sets) + " |",
        "|" + "---|" * (1 + len(sets)),
    ]
    by_set = {name: [row for row in natural if row["set"] == name] for name in sets}
    for title, key in (("label party alone", "alone"), ("all columns in one place", "central")):
        cells = [_figure([r for r in by_set[name] if not r.get("model")], f"{key}.{_leading(name)}") for name in sets]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    for model in models:
        told = []
        for name in sets:
            mine = [row for row in by_set[name] if row.get("model") == model]
            told.append(_short(mine, ("labels",)) or _reason(mine))
        lines.append(f"| `{model}` | {' | '.join(told)} |")
    skipped = [n for n in SETS if _task(n) in ("binary", "classes") and n not in {row["set"] for row in rows}]
    left = {row["set"]: row["why"] for row in rows if row["set"] not in sets and row.get("why")}
    lines += [
        "",
        " ".join(
            [
                "After each figure of quality: by how many points of a hundred attacks on labels exceed what the "
                "attacker reaches alone. Where a party makes several attacks, all of them are joined.",
                *_unjoined(natural, attacks),
                *_outdone(natural),
                f"Here {_seeds(natural)}.",
                *_trained(natural),
                *_no_better(natural),
                *_made(rows),
            ]
        ),
        *(f"Not measured: {name} ({why})." for name, why in left.items()),
        *([f"Not run: {_listed(skipped)}."] if skipped else []),
        END,
    ]
    return "\n".join(lines)


def with_block(text: str, block: str) -> str:
    """A page with the block between the marks replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise StorageError(
            f"The page should have the lines {BEGIN} and {END}, between which the table is written, but has not. Add "
            "both."
        )
    return before + block + after


def _marked(rows: Sequence[Row], attacks: Sequence[Row]) -> list[Row]:
    """The lines, with what the headline about labels is not: of all attacks joined, or the worst verdict."""
    singles: dict[tuple[Any, ...], list[Row]] = {}
    for row in attacks:
        if row.get("score") is not None and row["about"] == "labels" and row["attack"] != JOINED:
            singles.setdefault(_trial(row), []).append(row)
    marked: list[Row] = []
    for row in rows:
        made, is_joined = singles.get(_trial(row), []), row.get("leak.labels.by") == JOINED
        leaking = [each["attack"] for each in made if each["verdict"] in LEAKS]
        outdone = leaking if is_joined and row.get("leak.labels.verdict") not in LEAKS else []
        unjoined = not is_joined and row.get("leak.labels.by") is not None and len(made) > 1
        marked.append({**row, "unjoined": unjoined, "outdone": outdone})
    return marked


def _trial(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("set", "split", "model", "defence", "seed"))


def _unjoined(rows: Sequence[Row], attacks: Sequence[Row]) -> Iterator[str]:
    """What the marks of some lines mean, if there are any, and why attacks were not joined as far as that was noted."""
    marked = {_trial(row) for row in rows if row["unjoined"]}
    if marked:
        noted = [row for row in attacks if row["attack"] == JOINED and _trial(row) in marked and row.get("reason")]
        why = "; ".join(dict.fromkeys(row["reason"].partition(": ")[2] for row in noted))
        yield (
            f"{UNJOINED} Not joined{f' ({why})' if why else ''}: the single attack that finds most, picked by the "
            "truth, so the figure is too high by luck."
        )


def _outdone(rows: Sequence[Row]) -> Iterator[str]:
    """What the marks of lines mean in which a single attack is judged to leak and all joined are not, if any."""
    if names := sorted({name for row in rows for name in row["outdone"]}):
        yield (
            f"{OUTDONE} A single attack ({', '.join(names)}) is judged to leak labels there, and all joined are not. "
            "Of some twenty attacks one or two may be so judged by luck; a report's verdict is that of the worst one."
        )


def _seeds(rows: Sequence[Row]) -> str:
    """How many seeds figures are means of, in a clause."""
    seeds: dict[tuple[Any, ...], set[int]] = {}
    for row in rows:
        if _is_measured(row):
            seeds.setdefault(_trial(row)[:-1], set()).add(row["seed"])
    counts = sorted({len(each) for each in seeds.values()}) or [0]
    if counts[-1] <= 1:
        return "every figure is of one seed, so no spread is known"
    fewest = "" if counts[0] == counts[-1] else "one to " if counts[0] == 1 else f"{counts[0]} to "
    return f"figures are means over {fewest}{counts[-1]} seeds, ± their standard deviation where there are several"


def _trained(rows: Sequence[Row]) -> Iterator[str]:
    """How long models were trained, in a sentence."""
    ran = dict.fromkeys((row["model"], row.get("epochs"), row.get("rounds")) for row in rows if row.get("date"))
    told: dict[str, dict[str, None]] = {}
    for model, epochs, rounds in ran:
        if model and (trained := how_trained(model, epochs, rounds)):
            told.setdefault(trained[0], {})[trained[1]] = None
    if told:
        (first, lengths), *others = ((kind, " or ".join(lengths)) for kind, lengths in told.items())
        clauses = [f"{first.capitalize()} were trained {lengths}", *(" ".join(other) for other in others)]
        yield f"{'; '.join(clauses)}."


def _no_better(rows: Sequence[Row]) -> Iterator[str]:
    """In how many trials networks do no better than a constant guess, if in any."""
    told = [row for row in rows if row.get("quality.commonest") is not None and is_network(row["model"])]
    if low := sum(row["quality.accuracy"] <= row["quality.commonest"] for row in told):
        yield (
            f"In {low:,} of {len(told):,} trials of networks the model is right no more often than a guess at the "
            "commonest class."
        )


def _made(rows: Sequence[Row]) -> list[str]:
    """By what, when and how the figures were made, in sentences."""
    ran = [row for row in rows if row.get("date")]
    if not ran:
        return ["Nothing was measured."]
    dates = sorted({row["date"] for row in ran})
    seeds = len({row["seed"] for row in ran})
    most, nulls = (sorted({row[key] for row in ran}) for key in ("rows", "nulls"))
    more = {row["set"]: row["drawn"] for row in ran if (row.get("drawn") or 0) > row["rows"]}
    rarest = ", so that the rarest class has enough to train on for attacks to be joined"
    drawn = f" ({_listed(f'{n:,} of {name}' for name, n in more.items())}{rarest})" if more else ""
    thorough = any(row["thorough"] for row in ran)
    minutes = sum(row["seconds"] for row in ran) / 60
    return [
        f"Made by `colonnade bench` on {_listed(dates)} with {_where(rows)}: "
        f"at most {_listed(f'{n:,}' for n in most)} rows of a set{drawn}, {how_many(seeds, 'seed')}, "
        f"{_listed(nulls)} null run{'' if nulls == [1] else 's'} of each attack with each seed, "
        f"{'all attacks in several forms' if thorough else 'the attacks of an ordinary audit'}, "
        f"{len(ran):,} trials in {minutes:,.0f} minutes of one core."
    ]


def _where(rows: Sequence[Row]) -> str:
    """On which machines and by which versions lines were made, in words."""
    machines, versions = (sorted({row[key] for row in rows if row.get("date")}) for key in ("hardware", "code_version"))
    return f"{'; '.join(machines)}; version {', '.join(versions)}"


def _absent(rows: Sequence[Row]) -> Iterator[str]:
    """What the whole benchmark has and these results have not, in lines of a list."""
    present = {row["set"] for row in rows}
    measured = [name for name in SETS if any(row["set"] == name and row.get("model") for row in rows)]
    lines: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    if sets := tuple(name for name in SETS if name not in present):
        lines["sets", sets] = []
    for name in measured:
        had = [row for row in rows if row["set"] == name]
        for kind in ("model", "defence", "split"):
            wanted = {getattr(cell, kind) for cell in _whole(name)} - {row.get(kind) for row in had}
            if lacking := tuple(sorted(wanted)):
                lines.setdefault((f"{kind}s", lacking), []).append(name)
    if lines:
        yield ""
        yield "The whole benchmark has more. Not run for these results:"
        yield ""
    for (kind, lacking), names in lines.items():
        yield f"- {kind}{f' on {_listed(names)}' if names else ''}: {', '.join(lacking)}"


def _whole(name: str) -> list[Cell]:
    """The cells of a set in the whole benchmark that could be measured where its file is."""
    splits = [split for split in SPLITS if split == "natural" or why_no_split(name, split) is None]
    takes = [cell for cell in cells([name], splits) if cell.why_no_model_or_defence() is None]
    return [cell for cell in takes if cell.defence == NONE or cell.split == splits[0]]


def _set(rows: Sequence[Row], attacks: Sequence[Row]) -> Iterator[str]:
    first = _first_split(rows)
    missing = [row["why"] for row in rows if not row.get("model") and row["split"] == first and row.get("why")]
    if missing and not any(row.get("model") for row in rows):
        yield f"Not measured: {missing[0]}."
        return
    here = [row for row in rows if row["split"] == first]
    models = [row for row in here if row.get("model")]
    names = list(dict.fromkeys(row["model"] for row in models))
    yield from _setting(rows, first, attacks)
    yield from _undefended([row for row in models if row["defence"] == NONE], names)
    made = [row for row in attacks if row["split"] == first and row["defence"] == NONE]
    yield from _by_attack(made, [name for name in names if any(row["model"] == name for row in made)])
    if any(row["defence"] != NONE for row in models):
        yield from _defended(models, names)
    others = [row for row in rows if row["split"] != first]
    if others:
        yield from _splits(rows)


def _setting(rows: Sequence[Row], first: str, attacks: Sequence[Row]) -> Iterator[str]:
    """What holds for all tables of a set, and what is reached on its first split without a joint model."""
    cut, name = [row for row in rows if not row.get("model") and row["split"] == first], rows[0]["set"]
    measured = [row for row in rows if row.get("quality.rows") is not None]
    if measured:
        constant = [row["quality.commonest"] for row in measured if row.get("quality.commonest") is not None]
        trained = max(int(row["trained_rows"]) for row in measured)
        yield " ".join(
            [
                f"{trained:,} rows to train on, {int(max(row['quality.rows'] for row in measured)):,} held out;",
                f"{_seeds(rows)}.",
                *([f"A constant guess is right in {mean(constant):.3f} of the held-out rows."] if constant else []),
                *_no_better(measured),
                *_unjoined(rows, attacks),
                *_outdone(rows),
                f"Run with {_where(rows)}.",
            ]
        )
        yield ""
    failed = [row["why"] for row in cut if row.get("why")]
    leading = _leading(name)
    if failed:
        yield f"Without a joint model: {failed[0]}."
    elif any(row.get(f"alone.{leading}") is not None for row in cut):
        yield (
            f"Without a joint model, {leading} is {_figure(cut, f'alone.{leading}')} for the label party alone and "
            f"{_figure(cut, f'central.{leading}')} for all columns in one place."
        )
    else:
        yield "Nothing is fitted without a joint model: the columns are curves."
    yield ""


def _undefended(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    leading = _leading(rows[0]["set"])
    secrets = [each for each in _SECRETS if each != "membership" or any(r.get("leak.membership.by") for r in rows)]
    yield (
        f"| model | {leading} | "
        + " | ".join(f"{_SECRETS[each]}: excess | by | score / alone" for each in secrets)
        + " |"
    )
    yield "|" + "---|" * (2 + 3 * len(secrets))
    for name in names:
        mine = [row for row in rows if row["model"] == name]
        if not any(map(_is_measured, mine)):
            yield f"| {name} | {_reason(mine)} |" + " - |" * (3 * len(secrets))
            continue
        cells = [_figure(mine, f"quality.{leading}")]
        for secret in secrets:
            cells += _leak(mine, secret)
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def _leak(rows: Sequence[Row], secret: str) -> list[str]:
    found = [row for row in rows if row.get(f"leak.{secret}.by")]
    if not found:
        return [NO_ATTACK, "-", "-"]
    by = "; ".join(dict.fromkeys(row[f"leak.{secret}.by"] for row in found))
    score, alone = (mean(row[f"leak.{secret}.{key}"] for row in found) for key in ("score", "alone"))
    return [_points(found, secret), by, f"{score:.2f} / {alone:.2f}"]


def _by_attack(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Each attack that applies to a model, without a defence; and the joint one, made or not."""
    told = sorted({row["attack"] for row in rows if row.get("score") is not None or row["attack"] == JOINED})
    if not told:
        return
    yield "Each attack without a defence: score / null / alone; n/a where an attack does not apply to a model."
    yield ""
    yield f"| attack | about | {' | '.join(names)} |"
    yield "|" + "---|" * (2 + len(names))
    for attack in told:
        mine = [row for row in rows if row["attack"] == attack]
        about = _SECRETS.get(mine[0]["about"], mine[0]["about"])
        cells = [_controlled([row for row in mine if row["model"] == name]) for name in names]
        yield f"| {attack} | {about} | {' | '.join(cells)} |"
    yield ""


def _controlled(rows: Sequence[Row]) -> str:
    made = [row for row in rows if row.get("score") is not None]
    if not made:
        return "n/a" if {row["verdict"] for row in rows} <= {INAPPLICABLE} else NOT_MADE
    return " / ".join(_mean(made, key, 2) for key in ("score", "null", "alone"))


def _defended(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Each defence with each model that takes one, and under the table what letters stand for."""
    by_cell: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_cell.setdefault((row["model"], row["defence"]), []).append(row)
    defences = list(dict.fromkeys(row["defence"] for row in rows))
    shown = [n for n in names if any(map(_is_measured, (r for d in defences[1:] for r in by_cell.get((n, d), ()))))]
    notes: dict[str, str] = {}
    if shown:
        yield f"With a defence: {_leading(rows[0]['set'])}, then {_EXCESSES}."
        yield ""
        yield "| defence | " + " | ".join(shown) + " |"
        yield "|" + "---|" * (1 + len(shown))
        for defence in defences:
            cells = []
            for name in shown:
                mine = by_cell.get((name, defence), [])
                why = _reason(mine)
                letter = notes.setdefault(why, _letter(len(notes))) if why else ""
                cells.append(f"({letter})" if why else _short(mine, ("labels", "features")))
            yield f"| {defence} | {' | '.join(cells)} |"
        yield ""
    for why, letter in notes.items():
        yield f"- ({letter}) {why}"
    reasons: dict[str, list[str]] = {}
    for name in names:
        if name not in shown:
            for why in dict.fromkeys(_reason(by_cell.get((name, defence), [])) for defence in defences[1:]):
                reasons.setdefault(why, []).append(name)
    for why in reasons:
        yield f"- {why}"
    yield ""


def _splits(rows: Sequence[Row]) -> Iterator[str]:
    """The same models on other splits of the columns."""
    rows = [row for row in rows if row.get("defence") in (None, NONE)]
    leading = _leading(rows[0]["set"])
    names = list(dict.fromkeys(row["model"] for row in rows if row.get("model")))
    yield f"By how columns are split: {leading}, then {_EXCESSES}."
    yield ""
    heads = ["split", "columns", "importance", "alpha", "Icor", "beta", "alone", "in one place", *names]
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for split in dict.fromkeys(row["split"] for row in rows):
        here = [row for row in rows if row["split"] == split]
        cut = [row for row in here if not row.get("model")]
        why = _reason(cut)
        cells = [why, *"-" * 6] if why else [_parties(cut, "columns", 0), _parties(cut, "importance", 2)]
        if not why:
            cells += [_mean(cut, key, digits) for key, digits in (("alpha", 1), ("correlation", 2), ("beta", 2))]
            cells += [_figure(cut, f"{key}.{leading}") for key in ("alone", "central")]
        for name in names:
            mine = [row for row in here if row.get("model") == name]
            cells.append("-" if why else _short(mine, ("labels", "features")) or _reason(mine))
        yield f"| {split} | {' | '.join(cells)} |"
    yield ""


def _parties(rows: Sequence[Row], key: str, digits: int) -> str:
    names = [name for name in rows[0] if name.startswith(f"{key}.") and rows[0][name] is not None]
    return " / ".join(_mean(rows, name, digits) for name in names) or "not measured"


def _mean(rows: Sequence[Row], key: str, digits: int) -> str:
    values = [row[key] for row in rows if row.get(key) is not None]
    return f"{mean(values):,.{digits}f}" if values else "not measured"


def _short(rows: Sequence[Row], secrets: Iterable[str]) -> str:
    """A cell's quality and the excess of attacks; empty where nothing was measured."""
    if not rows or not any(map(_is_measured, rows)):
        return ""
    quality = _figure(rows, f"quality.{_leading(rows[0]['set'])}")
    return f"{quality}, {' / '.join(_points(rows, secret) for secret in secrets)}"


def _points(rows: Sequence[Row], secret: str) -> str:
    """The mean excess in points with its spread over seeds, marked where that of labels is not what others are."""
    values = [100 * row[f"leak.{secret}.excess"] for row in rows if row.get(f"leak.{secret}.excess") is not None]
    if not values:
        return "no attack"
    mark = ""
    if secret == "labels":
        mark += UNJOINED if any(row["unjoined"] for row in rows) else ""
        mark += OUTDONE if any(row["outdone"] for row in rows) else ""
    return f"{mean(values):+.0f}" + (f" ± {stdev(values):.0f}" if len(values) > 1 else "") + mark


def _figure(rows: Sequence[Row], key: str) -> str:
    """The mean of a figure over seeds with their standard deviation, or why there is none."""
    values = [row[key] for row in rows if row.get(key) is not None]
    if not values:
        return _reason(rows) or "not measured"
    lost = f" ({len(values)} of {len(rows)} seeds)" if len(values) < len(rows) else ""
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "") + lost


def _reason(rows: Sequence[Row]) -> str:
    """Why a cell has no figures; empty where it has."""
    if any(map(_is_measured, rows)):
        return ""
    return str(next((row["why"] for row in rows if row.get("why")), "was not asked for"))


def _is_measured(row: Row) -> bool:
    return not row.get("why")


def _first_split(rows: Sequence[Row]) -> str:
    return str(rows[0]["split"]) if rows else "natural"


def _task(name: str) -> Task:
    return next(info.task for info in available() if info.name == name)


def _leading(name: str) -> str:
    return LEADING[_task(name)]


def _letter(place: int) -> str:
    return chr(ord("a") + place)


def _listed(values: Iterable[Any]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last
