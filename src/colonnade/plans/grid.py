"""GridPlan: a plan with a section [sweep], which stands for many plans.

    [sweep]
    seeds = [0, 1, 2]
    exclude = [{"data.name" = "digits", "defences.bank" = "marvell"}]

    [sweep.vary]
    "data.name" = ["breast-cancer", "digits"]
    "defences.bank" = ["none", "marvell", {name = "gradient-noise", ratio = 10}]

All other sections are those of an ordinary plan. A key of [sweep.vary] is a place in the plan, and its list holds the
alternatives for that place. Every alternative of a key goes with every alternative of the other keys and with every
seed, but for what is excluded. Under "defences.bank" an alternative is "none", the name of a defence, a section, or a
list of these.

A trial's seed takes the place of every seed that the plan does not state: of the run, of the rows that are drawn and
held out, of the audit.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from blake3 import blake3

from colonnade.errors import ColonnadeError, DataError, PlanError
from colonnade.plans.admission import check_model
from colonnade.plans.engine import PlannedEngine
from colonnade.plans.plan import Plan, require_name
from colonnade.plans.toml import Signature, conform, read_toml
from colonnade.tables.table import Table
from colonnade.text import nearest

VARIED = ("data", "roles", "model", "defences", "audit", "evaluate", "run", "privacy")
"""The sections of a plan whose keys may be varied."""
SEEDED = ("data", "audit", "evaluate")
SHOWN = 5


@dataclass(frozen=True)
class PlannedSweep:
    """The section [sweep].

    Attributes:
        seeds: Every combination is run with each of these.
        vary: For each place in the plan the alternatives.
        exclude: Combinations that are left out: every one that has all alternatives of an entry.

    >>> PlannedSweep((0, 1), {"model": {"epochs": [2, 4]}}).vary
    {'model.epochs': [2, 4]}
    """

    seeds: tuple[int, ...] = (0,)
    vary: Mapping[str, Any] = field(default_factory=dict, hash=False)
    exclude: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        """Write keys with dots, however TOML nests them, and refuse what would be no list of different alternatives."""
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise PlanError(
                f"[sweep] seeds should be different whole numbers of at least 0, but is {list(self.seeds)}. Write "
                "seeds = [0, 1, 2]."
            )
        vary = dict(_flat(self.vary, lambda _: False))
        for key, alternatives in vary.items():
            _check_key(key)
            if not isinstance(alternatives, list | tuple) or not alternatives:
                raise PlanError(
                    f"[sweep.vary] {key} should be a list of alternatives, but is {_shown(alternatives)}. Write a list "
                    "with a value or more."
                )
            if len({_canonical(each) for each in alternatives}) < len(alternatives):
                raise PlanError(
                    f"[sweep.vary] {key} should list each alternative once, but one is there twice. Remove it."
                )
        object.__setattr__(self, "vary", vary)
        object.__setattr__(self, "exclude", tuple(dict(_flat(each, vary.__contains__)) for each in self.exclude))
        for entry in self.exclude:
            self._check_exclusion(entry)

    def settings(self) -> Iterator[dict[str, Any]]:
        """One alternative of every key, in every combination that is not excluded."""
        for chosen in product(*self.vary.values()):
            settings = dict(zip(self.vary, chosen, strict=True))
            if not any(all(settings[key] == value for key, value in entry.items()) for entry in self.exclude):
                yield settings

    def _check_exclusion(self, entry: Mapping[str, Any]) -> None:
        """Refuse an entry that leaves out nothing, or everything."""
        if not entry:
            raise PlanError("An entry of [sweep] exclude should name a key or more, but one is empty. Remove it.")
        for key, value in entry.items():
            if key not in self.vary:
                raise PlanError(
                    f"[sweep] exclude should name keys of [sweep.vary], but names {key!r}.{nearest(key, self.vary)} "
                    "Correct the key."
                )
            if value not in self.vary[key]:
                raise PlanError(
                    f"[sweep] exclude should name alternatives of {key}, but names {_shown(value)}; there are "
                    f"{', '.join(map(_shown, self.vary[key]))}. Correct the value."
                )


@dataclass(frozen=True)
class Combination:
    """One alternative of every key, and the plan with all of them in place.

    Attributes:
        settings: The alternatives by their keys.
        tree: The sections of the plan, as TOML has them, without a seed of the run.
    """

    settings: Mapping[str, Any]
    tree: Mapping[str, Any] = field(repr=False)
    folder: Path = field(repr=False)

    def plan(self) -> Plan:
        """The plan of one trial, with seed 0."""
        return Plan.of({"name": "trial", **_with_defences(self.tree)}, self.folder)

    def parties(self) -> tuple[str, ...]:
        """Everybody who has a role, whoever holds defences."""
        return Plan.of({"name": "trial", **self.tree, "defences": []}, self.folder).roles.parties

    def configuration(self) -> dict[str, Any]:
        """All that shapes a trial besides its seed; defaults are spelled out, so the plan may state them or not."""
        plan = self.plan()
        tree = tomllib.loads(plan.to_toml())
        tree = {key: section for key, section in tree.items() if key in VARIED}
        for name in SEEDED:
            if name in tree and "seed" not in self.tree.get(name, {}):
                del tree[name]["seed"]
        held = tree.pop("defences", [])
        tree["defences"] = {
            party: [
                {key: value for key, value in each.items() if key != "party"} for each in held if each["party"] == party
            ]
            for party in self.tree.get("defences", {})
        }
        if plan.data.tables:
            tree["files"] = {party: _digest(table.path) for party, table in plan.data.tables.items()}
        return tree

    def __str__(self) -> str:
        return ", ".join(f"{key} = {_shown(value)}" for key, value in self.settings.items()) or "the plan as it is"


@dataclass(frozen=True)
class GridPlan:
    """A plan that stands for many.

    >>> import tempfile
    >>> text = '''
    ... [data]
    ... name = "breast-cancer"
    ... [roles]
    ... label = "bank"
    ... features = ["shop"]
    ... [model]
    ... name = "split-classifier"
    ... [sweep]
    ... seeds = [0, 1]
    ... [sweep.vary]
    ... model.epochs = [1, 2, 4]
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "epochs.toml").write_text(text)
    ...     grid = GridPlan.read(Path(folder) / "epochs.toml")
    >>> [str(each) for each in grid.combinations], grid.sweep.seeds
    (['model.epochs = 1', 'model.epochs = 2', 'model.epochs = 4'], (0, 1))
    """

    name: str
    sweep: PlannedSweep
    combinations: tuple[Combination, ...]
    engine: PlannedEngine = field(default_factory=PlannedEngine)

    @classmethod
    def read(cls, path: Path | str) -> GridPlan:
        """Read a grid plan from a TOML file; relative paths in it start at its folder.

        Raises:
            PlanError: The file is missing or is no TOML, or its section [sweep] is missing or wrong.
        """
        path = Path(path)
        tree = {"name": path.stem, **read_toml(path)}
        if not isinstance(tree.get("sweep"), dict):
            raise PlanError(
                f"{path} should have a section [sweep], but has none. Write [sweep] with seeds = [0, 1, 2] and "
                "alternatives under [sweep.vary], or run: colonnade simulate."
            )
        for key, instead in (
            ("seed", "Write it under [sweep] seeds."),
            ("network", "Leave the section out: all parties of a sweep are in one process."),
            ("align", "Leave the section out: a sweep finds the common rows in the clear."),
        ):
            if key in tree:
                raise PlanError(f"The plan of a sweep should not have {key!r}, but {path} has it. {instead}")
        sweep = PlannedSweep(**Signature.of(PlannedSweep, "[sweep]").checked(tree.pop("sweep")))
        name = conform(tree.pop("name"), str, "name")
        require_name(name)
        section = conform(tree.pop("engine", {}), dict[str, Any], "[engine]")
        engine = PlannedEngine(**Signature.of(PlannedEngine, "[engine]").checked(section))
        tree["defences"] = _by_party(tree.get("defences", []))
        folder = path.absolute().parent
        combinations = [Combination(each, _changed(tree, each), folder) for each in sweep.settings()]
        if not combinations:
            raise PlanError("[sweep] should leave a combination or more, but exclude leaves none. Exclude less.")
        return cls(name, sweep, tuple(combinations), engine)

    def check(self) -> None:
        """Refuse combinations that could not run, all at once, before any of them runs.

        Raises:
            PlanError: Some combinations are impossible; the message names them by their keys.
        """
        self._check_holders()
        found: list[tuple[Combination, ColonnadeError]] = []
        loaded: dict[str, Mapping[str, Table]] = {}
        for combination in self.combinations:
            try:
                _check(combination, loaded)
            except ColonnadeError as error:
                found.append((combination, error))
        if not found:
            return
        first = found[0][1]
        if len(found) == len(self.combinations) and len({str(error) for _, error in found}) == 1:
            raise first
        lines = [f"  {combination}: {error}" for combination, error in found[:SHOWN]]
        lines += [f"  and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise PlanError(
            f"All {len(self.combinations)} combinations of a sweep should be possible, but {len(found)} "
            f"{'is' if len(found) == 1 else 'are'} not. Correct the plan, or leave them out under [sweep] exclude:\n"
            + "\n".join(lines)
        ) from first

    def _check_holders(self) -> None:
        """Refuse defences of a party that has a role in no combination: "none" of them would go unnoticed."""
        parties = dict[str, None]()
        for combination in self.combinations:
            # What else is wrong with a combination is told of each.
            with suppress(ColonnadeError):
                parties |= dict.fromkeys(combination.parties())
        for key in self.sweep.vary:
            section, _, holder = key.partition(".")
            if section == "defences" and parties and holder not in parties:
                raise PlanError(
                    f"[sweep.vary] {key} should name a party with a role, which is {', '.join(parties)}, but names "
                    f"{holder!r}.{nearest(holder, parties)} Correct the key."
                )


def planned(configuration: Mapping[str, Any], seed: int) -> Plan:
    """The plan of a trial, from what `Combination.configuration` gave.

    Raises:
        DataError: A file is not the one that the trial was planned with.
    """
    tree = deepcopy(dict(configuration))
    files = tree.pop("files", {})
    for name in SEEDED:
        if name in tree:
            tree[name].setdefault("seed", seed)
    plan = Plan.of({"name": "trial", "seed": seed, **_with_defences(tree)}, Path())
    for party, digest in files.items():
        path = plan.data.tables[party].path
        if _digest(path) != digest:
            raise DataError(
                f"{path} should be the file that the sweep was planned with, but it has changed. Restore the file, or "
                "begin the sweep again."
            )
    return plan


def _check(combination: Combination, loaded: dict[str, Mapping[str, Table]]) -> None:
    plan = combination.plan()
    plan.require_training()
    plan.audit.build(plan.defences)
    data = _canonical([combination.tree.get("data"), combination.tree.get("roles")])
    if data not in loaded:
        loaded[data] = plan.tables().train
    for party in plan.roles.parties:
        check_model(plan, party, loaded[data].get(party))


def _check_key(key: str) -> None:
    section, _, rest = key.partition(".")
    if key == "seed" or key.endswith(".seed"):
        raise PlanError(f"Seeds of a sweep stand under [sweep] seeds, but [sweep.vary] has {key!r}. Write them there.")
    if section not in VARIED:
        raise PlanError(
            f"[sweep.vary] takes keys of the sections {', '.join(VARIED)}, but has {key!r}.{nearest(section, VARIED)} "
            "Correct the key."
        )
    if section == "defences" and (not rest or "." in rest):
        raise PlanError(
            f"[sweep.vary] takes the defences of a party, such as 'defences.bank', but has {key!r}. Name one party."
        )


def _changed(tree: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's sections with other values at some places; a whole section comes before keys in it."""
    changed = deepcopy(dict(tree))
    for key, value in sorted(settings.items(), key=lambda item: item[0].count(".")):
        *above, last = key.split(".")
        section = changed
        for part in above:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise PlanError(
                    f"[sweep.vary] {key} should lie in a section, but {part} is {_shown(section)} in the plan. Vary "
                    f"{part} as a whole."
                )
        section[last] = _held(value, key) if above == ["defences"] else deepcopy(value)
    return changed


def _held(alternative: Any, key: str) -> list[dict[str, Any]]:
    """The defences of one alternative, each as a section."""
    found: list[dict[str, Any]] = []
    for each in alternative if isinstance(alternative, list | tuple) else [alternative]:
        if not isinstance(each, str | Mapping) or (isinstance(each, Mapping) and "party" in each):
            raise PlanError(
                f'[sweep.vary] {key} takes "none", the name of a defence, a section without a party, or a list of '
                f"these, but has {_shown(each)}. Correct the value."
            )
        if each != "none":
            found.append({"name": each} if isinstance(each, str) else dict(each))
    return found


def _by_party(defences: Any) -> dict[str, Any]:
    """The sections [[defences]] by party; what is no such list is left for the plan to refuse."""
    if not isinstance(defences, list) or not all(isinstance(each, dict) and "party" in each for each in defences):
        raise PlanError("[[defences]] should be sections with a party each, but one has none. Add the key 'party'.")
    return {
        party: [
            {key: value for key, value in each.items() if key != "party"} for each in defences if each["party"] == party
        ]
        for party in dict.fromkeys(each["party"] for each in defences)
    }


def _with_defences(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a plan whose defences are by party, with its sections [[defences]]."""
    held = tree.get("defences", {})
    return {**tree, "defences": [{"party": party, **each} for party, several in held.items() for each in several]}


def _flat(tree: Mapping[str, Any], is_value: Callable[[str], bool], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values in nested sections by their names joined by dots."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and not is_value(key):
            yield from _flat(value, is_value, f"{key}.")
        else:
            yield key, value


def _digest(path: Path) -> str:
    """A digest of a file, or of all files of a folder."""
    paths: Sequence[Path] = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    digest = blake3()
    for each in paths:
        try:
            digest.update(each.name.encode()).update_mmap(each)
        except OSError as error:
            raise DataError(
                f"{each} should be a file that can be read, but: {error.strerror}. Check the path."
            ) from error
    return digest.hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
