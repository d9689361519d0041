"""Plan: what an experiment will do, before it does it.

A plan is built in Python from the dataclasses below, or read from a TOML file with a section for each of them:

    name, seed      what the run is called, and what its randomness follows from
    [data]          PlannedData       a named set, or a file for each party: [data.bank]
    [roles]         Roles             who does what
    [align]         PlannedAlign      how the parties find their common rows
    [model]         PlannedModel      a name of the catalogue and its parameters; without it, a plan only aligns
    [[defences]]    PlannedDefence    who holds what
    [audit]         PlannedAudit      which attacks, and how thoroughly
    [evaluate]      HeldOut           which rows are held out, on which the model's quality is measured
    [run]           PlannedRun        what is kept
    [privacy]       PlannedPrivacy    how much may be released about the same records, over all runs
    [network]       PlannedNetwork    where the parties are, for a run between machines: [network.bank]
    [engine]        PlannedEngine     what runs the repetitions of an audit: this machine or a cluster

Whatever is wrong with a plan is a `PlanError` before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from blake3 import blake3

from colonnade.errors import DataError, PlanError
from colonnade.models.evaluation import HeldOut
from colonnade.plans.engine import PlannedEngine
from colonnade.plans.sections import (
    PlannedAddress,
    PlannedAudit,
    PlannedData,
    PlannedDefence,
    PlannedModel,
    PlannedNetwork,
    PlannedPrivacy,
    PlannedRun,
    PlannedTable,
    require_files,
)
from colonnade.plans.toml import Signature, conform, read_toml, to_toml
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.protocol import public_plan
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.text import nearest

if TYPE_CHECKING:
    from colonnade.models.base import Estimator
    from colonnade.plans.align import PlannedAlign
    from colonnade.runtime.alignment import Alignment
    from colonnade.runtime.party import Defence
    from colonnade.runtime.simulate import Simulation

S = TypeVar("S", bound="PlannedModel | PlannedDefence")


@dataclass(frozen=True)
class Tables:
    """The tables of a plan: as the parties hold them, and their common rows, to train on and to test on."""

    held: Mapping[str, Table]
    common: Mapping[str, Table]
    train: Mapping[str, Table]
    test: Mapping[str, Table]


@dataclass(frozen=True)
class Plan:
    """What an experiment will do: train a model, or, without one, only align.

    >>> roles = Roles(label="bank", features=("shop",))
    >>> plan = Plan(PlannedData("breast-cancer"), roles, PlannedModel("split-classifier"), seed=7)
    >>> plan.public().roles == roles, len(plan.hash)
    (True, 64)
    """

    data: PlannedData
    roles: Roles
    model: PlannedModel | None = None
    defences: tuple[PlannedDefence, ...] = ()
    audit: PlannedAudit = field(default_factory=PlannedAudit)
    run: PlannedRun = field(default_factory=PlannedRun)
    network: PlannedNetwork | None = None
    seed: int = 0
    name: str = "run"
    align: PlannedAlign | None = None
    privacy: PlannedPrivacy = field(default_factory=PlannedPrivacy)
    evaluate: HeldOut | None = None
    engine: PlannedEngine = field(default_factory=PlannedEngine)

    def __post_init__(self) -> None:
        for name in (self.name, *self.roles.parties):
            require_name(name)
        parties = self.roles.parties
        if self.model is None and (self.align is None or self.defences):
            found = "defences and no [model]" if self.defences else "neither [model] nor [align]"
            raise PlanError(
                f"A plan should train a model, or align rows, or both, but this one has {found}. Add a section "
                "[model]; an alignment alone takes a section [align] and no defences."
            )
        for defence in self.defences:
            if defence.party not in parties:
                raise PlanError(
                    f"[[defences]] gives {defence.name} to {defence.party}, who has no role; those who have are "
                    f"{', '.join(parties)}.{nearest(defence.party, parties)} Correct the party."
                )
        if self.evaluate is not None:
            self._check_evaluation()
        if self.data.name is None:
            self._check_files()
        if self.align is not None:
            self.align.check(self.roles.holders)
        if self.network is not None:
            self.network.check(parties)
            if self.network.keep_received == "audit" and self.run.received != "audit":
                raise PlanError(
                    "A party may keep what it receives only if all parties agreed to that, but [network] has "
                    "keep_received = 'audit' and [run] has received = 'digests'. Write received = 'audit' into the "
                    "plans of all parties, or leave keep_received out."
                )

    @classmethod
    def read(cls, path: Path | str) -> Plan:
        """Read a plan from a TOML file; relative paths in it start at its folder.

        Raises:
            PlanError: The file is missing, is no TOML, or has a key or a value that no plan has.
        """
        path = Path(path)
        tree = read_toml(path)
        if "sweep" in tree:
            raise PlanError(
                f"{path} should be a plan of one run, but its section [sweep] stands for many. Run: colonnade sweep "
                f"{path}, or leave the section out."
            )
        return cls.of({"name": path.stem, **tree}, path.absolute().parent)

    @classmethod
    def of(cls, tree: Mapping[str, Any], folder: Path) -> Plan:
        """The plan of a tree of sections, as TOML has them; relative paths start at the folder."""
        return _read_plan(tree, folder)

    @property
    def hash(self) -> str:
        """A digest over everything in the plan but the engine, on which no result depends."""
        return blake3(replace(self, engine=PlannedEngine()).to_toml().encode()).hexdigest()

    def public(self) -> PublicPlan:
        """What every party may know of it."""
        if self.model is None:
            return self.public_alignment()
        plan = self._agreeing(public_plan(self.trained.build().fit, self.roles, self.seed))
        more = {} if self.align is None else {"align": self.align.settings.describe()}
        if self.evaluate is not None:
            more["evaluate"] = self.evaluate.describe()
        return replace(plan, settings={**plan.settings, **more}) if more else plan

    def public_alignment(self) -> PublicPlan:
        """What every party may know of the alignment alone."""
        return self._agreeing(public_plan(self.aligned.build(), self.roles, self.seed))

    def _agreeing(self, plan: PublicPlan) -> PublicPlan:
        """A public plan that says what receivers may keep, if it is more than digests."""
        if self.run.received == "digests":
            return plan
        return replace(plan, settings={**plan.settings, "received": self.run.received})

    def load(self, holders: tuple[str, ...]) -> dict[str, Table]:
        """The tables of these parties, as they hold them, with the columns by which they are aligned."""
        return self.data.load(holders, self.align, self.engine)

    def tables(self, alignments: Mapping[str, Alignment] | None = None) -> Tables:
        """Load the tables, keep the rows that all parties hold, and hold some of them out.

        Args:
            alignments: Which rows each party has found to be common; without them they are found in the clear, as only
                a simulation may.
        """
        from colonnade.data.partition import intersect, train_test_split

        held = self.load(self.roles.holders)
        if alignments is not None:
            # Parties may write the id of one person differently; from here on, a row is known by its place.
            common = {party: alignments[party].take(table).numbered() for party, table in held.items()}
        else:
            in_order = len({table.id_digest() for table in held.values()}) == 1
            common = held if in_order else intersect(held)
        if self.evaluate is None:
            train, test = train_test_split(common, test=self.data.test, seed=self.data.seed)
        else:
            parts = {party: self.evaluate.split(table) for party, table in common.items()}
            train, test = ({party: part[i] for party, part in parts.items()} for i in range(2))
        return Tables(held, common, train, test)

    def rows_to_predict(self, party: str, file: Path | None) -> Table | None:
        """The rows that a party brings to a prediction, at the label party with their labels if the file has any."""
        if party not in self.roles.holders:
            return None
        planned = self.data.tables.get(party)
        if planned is None:
            if file is not None:
                raise PlanError(
                    f"--rows is for plans that name {party}'s file, whose columns it should have, but this plan names "
                    "a data set. Leave it out."
                )
            return self.tables().test[party] if self.align is None else self.load((party,))[party]
        found = replace(planned, path=file or planned.path)
        try:
            return found.read(party, self.align, self.engine)
        except DataError:
            # A file of new rows need not have labels; if something else is wrong, the next line says so.
            return replace(found, labels=None).read(party, self.align, self.engine)

    def on_own_engine(self, party: str, engine: str | None) -> Plan:
        """The plan as a party runs it between machines: with the cluster that its operator names, and no other.

        A plan may come from another party. A cluster that holds a party's table learns the rows and the secrets of the
        alignment, and answers with what Python unpickles.

        Args:
            party: The party.
            engine: What the command line says, `NAME` or `NAME:ADDRESS`.
        """
        table, planned = self.data.tables.get(party), self.engine
        if engine is not None:
            return replace(self, engine=planned.with_options(engine, None))
        if planned.address is None or table is None or not table.placed:
            return self
        raise PlanError(
            f"The rows of {party} should go to a cluster that {party}'s operator names, but only the plan names one: "
            f"[engine] address is {planned.address!r}. If it is your own, add --engine {planned.name}:{planned.address}"
        )

    @property
    def aligned(self) -> PlannedAlign:
        """How rows are aligned."""
        if self.align is None:
            raise PlanError(
                "An alignment needs a section [align] in the plan, but there is none. Add it; it may be empty."
            )
        return self.align

    @property
    def trained(self) -> PlannedModel:
        """The model that is trained."""
        if self.model is None:
            raise PlanError(
                "A training needs a section [model] in the plan, but this one only aligns. Add it, or use "
                "`colonnade align`."
            )
        return self.model

    def require_training(self) -> None:
        """Refuse to train without a model, or on rows that nobody may know."""
        _ = self.trained
        if self.align is not None and self.align.reveal != "both":
            raise PlanError(
                "Training needs parties that know which of their rows are common, but [align] has reveal = "
                f"{self.align.reveal!r}. Use 'both', or only `colonnade align`."
            )

    def simulation(self, tables: Mapping[str, Table]) -> Simulation[Estimator]:
        """The planned training on these tables, ready to run."""
        from colonnade.runtime.simulate import Simulation

        defences: dict[str, tuple[Defence, ...]] = {}
        for planned in self.defences:
            defences[planned.party] = (*defences.get(planned.party, ()), planned.build())
        fit = self.trained.build().fit
        return Simulation(fit, tables, self.roles, self.seed, defences, {}, self.run.keep, self._budgets)

    def alignment(self, tables: Mapping[str, Table]) -> Simulation[Alignment]:
        """The planned alignment of these tables, ready to run."""
        from colonnade.runtime.simulate import Simulation

        align = self.aligned.build()
        return Simulation(align, tables, self.roles, self.seed, {}, {}, self.run.keep, self._budgets)

    @property
    def _budgets(self) -> dict[str, dict[Secret, tuple[float, float]]]:
        return dict.fromkeys(self.roles.parties, self.privacy.budgets)

    def to_toml(self) -> str:
        """The plan as TOML that `read` understands anywhere on this machine: its paths are absolute."""
        data = {key: value for key, value in vars(self.data).items() if key != "tables"}
        files = {party: table.written() for party, table in self.data.tables.items()}
        tree: dict[str, Any] = {
            "name": self.name,
            "seed": self.seed,
            "data": data | files,
            "roles": asdict(self.roles),
            "align": None if self.align is None else self.align.written(),
            "model": None if self.model is None else {"name": self.model.name, **_written(self.model.parameters)},
            "defences": [{"party": d.party, "name": d.name, **_written(d.parameters)} for d in self.defences],
            "audit": asdict(self.audit),
            "run": asdict(self.run),
        }
        if self.evaluate is not None:
            tree["evaluate"] = asdict(self.evaluate)
        if self.privacy != PlannedPrivacy():
            tree["privacy"] = {"budget": dict(self.privacy.budget)} if self.privacy.budget else {}
            tree["privacy"] |= {"accept_label_leak": True} if self.privacy.accept_label_leak else {}
        if self.engine != PlannedEngine():
            tree["engine"] = asdict(self.engine)
        if self.run.received == "digests":
            # A plan that says nothing of it has the hash that it had before the key existed.
            del tree["run"]["received"]
        if self.network is not None:
            network = asdict(self.network)
            parties = network.pop("parties")
            tree["network"] = network | parties
        return to_toml(tree)

    def _check_evaluation(self) -> None:
        """Refuse to measure what nobody could: a plan without a model, or one whose prediction another party learns."""
        found = (
            "no [model]" if self.model is None else "roles without a label party" if self.roles.label is None else ""
        )
        if self.model is not None and self.model.parameters.get("asker") == "arbiter":
            found = 'a model with asker = "arbiter"'
        if found:
            raise PlanError(
                f"[evaluate] needs a label party that learns the prediction, but the plan has {found}. Leave out "
                "[evaluate], or let the label party learn it."
            )

    def _check_files(self) -> None:
        files, holders, label = self.data.tables, self.roles.holders, self.roles.label
        # Between machines every organisation names its own file only; an arbiter or a server has none.
        if not files and (self.network is None or holders == self.roles.parties):
            raise PlanError(
                "[data] should have a name or a file for each party, but has neither. "
                "Write a name that `colonnade data list` shows, or sections such as [data.bank]."
            )
        if self.network is None:
            require_files(holders, files)
        for party in files:
            if party not in holders:
                raise PlanError(
                    f"[data.{party}] names a file, but {party} has no role that takes one; those who have are "
                    f"{', '.join(holders)}. Give {party} a role or leave the section out."
                )
        if self.model is not None and label is not None and label in files and files[label].labels is None:
            raise PlanError(
                f"{label} is the label party, but [data.{label}] names no label column. Add the key 'labels'."
            )


def require_name(name: str) -> None:
    """Refuse a name of a plan or party that could not be the name of a file or folder."""
    if not re.fullmatch(r"\w[\w -]*", name):
        raise PlanError(
            f"Names of plans and parties should be letters, digits, spaces, '-' and '_', but one is {name!r}. "
            "Rename it."
        )


def _read_plan(tree: Mapping[str, Any], folder: Path) -> Plan:
    if "network" in tree:
        tree = {"data": {}, **tree}
    Signature.of(Plan, "The plan").check_names(tree)
    parts: dict[str, Any] = {}
    for key, value in tree.items():
        where = f"[{key}]"
        match key:
            case "name" | "seed":
                parts[key] = conform(value, str if key == "name" else int, key)
            case "defences":
                sections = conform(value, tuple[dict[str, Any], ...], "[[defences]]")
                parts[key] = tuple(_read_named(PlannedDefence, section, "[[defences]]") for section in sections)
            case "data":
                parts[key] = _read_data(conform(value, dict[str, Any], where), folder)
            case "network":
                parts[key] = _read_network(conform(value, dict[str, Any], where), folder)
            case "model":
                parts[key] = _read_named(PlannedModel, conform(value, dict[str, Any], where), where)
            case _:
                section = _section(key)
                values = Signature.of(section, where).checked(conform(value, dict[str, Any], where))
                if values.get("finished") is not None:
                    values["finished"] = folder / values["finished"]
                parts[key] = section(**values)
    return Plan(**parts)


def _section(key: str) -> type[Any]:
    if key == "align":
        # Only a plan that aligns imports the alignment.
        from colonnade.plans.align import PlannedAlign

        return PlannedAlign
    sections: dict[str, type[Any]] = {"roles": Roles, "audit": PlannedAudit, "run": PlannedRun}
    return {**sections, "privacy": PlannedPrivacy, "evaluate": HeldOut, "engine": PlannedEngine}[key]


def _read_named(section: type[S], tree: Mapping[str, Any], where: str) -> S:
    """A section that mixes keys of its own with the parameters of what it names."""
    signature = Signature.of(section, where, without="parameters")
    own = {key: value for key, value in tree.items() if key in signature.types}
    parameters = {key: value for key, value in tree.items() if key not in own}
    return section(**signature.checked(own), parameters=parameters)


def _read_data(tree: Mapping[str, Any], folder: Path) -> PlannedData:
    files = {party: section for party, section in tree.items() if isinstance(section, dict)}
    own = {key: value for key, value in tree.items() if key not in files}
    checked = Signature.of(PlannedData, "[data]", without="tables").checked(own)
    tables = {}
    for party, section in files.items():
        values = Signature.of(PlannedTable, f"[data.{party}]").checked(section)
        tables[party] = PlannedTable(**{**values, "path": folder / values["path"]})
    return PlannedData(**checked, tables=tables)


def _read_network(tree: Mapping[str, Any], folder: Path) -> PlannedNetwork:
    sections = {party: section for party, section in tree.items() if isinstance(section, dict)}
    own = {key: value for key, value in tree.items() if key not in sections}
    checked = Signature.of(PlannedNetwork, "[network]", without="parties").checked(own)
    paths = {"certificates": PlannedNetwork.certificates, "revoked": PlannedNetwork.revoked, **checked}
    named = ("certificates", "revoked", "key_file")
    checked |= {key: folder / paths[key] for key in named if paths.get(key) is not None}
    parties = {
        party: PlannedAddress(**Signature.of(PlannedAddress, f"[network.{party}]").checked(section))
        for party, section in sections.items()
    }
    return PlannedNetwork(parties, **checked)


def _written(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with the word that stands for None, which TOML does not know."""
    return {
        key: _written(value) if isinstance(value, Mapping) else "none" if value is None else value
        for key, value in parameters.items()
    }
