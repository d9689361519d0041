"""The sections of a plan, each a frozen dataclass; `colonnade.plans.plan` reads them and puts them together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from colonnade.errors import PlanError
from colonnade.plans.toml import Signature
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.text import nearest
from colonnade.wire.recording.recording import Keep
from colonnade.wire.transport import check_address

if TYPE_CHECKING:
    from colonnade.attacks.base import ActiveAttack, Attack
    from colonnade.models.base import Estimator
    from colonnade.plans.align import PlannedAlign
    from colonnade.plans.engine import PlannedEngine
    from colonnade.runtime.party import Defence

TIMES = ("start", "rejoin", "silence", "message")
_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?"


@dataclass(frozen=True)
class PlannedTable:
    """The file of one party's table.

    Attributes:
        path: A CSV or Parquet file, or a folder of Parquet parts.
        ids: Its id column.
        labels: Its label column, at the label party.
        columns: The columns to use; all when None.
        exclude: Columns that are not used.
        delimiter, encoding, decimal, thousands, missing, dates, types: How a CSV is written; see `Table.read`.
        hashed: For text columns of very many levels, into how many buckets these are hashed.
        placed: Whether workers of the plan's engine hold the columns, instead of this process; for Parquet only.

    >>> PlannedTable(Path("bank.parquet"), ids="customer").path.is_absolute()
    True
    """

    path: Path
    ids: str
    labels: str | None = None
    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    delimiter: str | None = None
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str | None = None
    missing: tuple[str, ...] | None = None
    dates: tuple[str, ...] = ()
    types: Mapping[str, Literal["number", "text", "date"]] = field(default_factory=dict, hash=False)
    hashed: Mapping[str, int] = field(default_factory=dict, hash=False)
    placed: bool = False

    def __post_init__(self) -> None:
        """Make the plan mean the same file wherever it is read; refuse fewer than two buckets."""
        for column, n in self.hashed.items():
            if n < 2:
                raise PlanError(f"hashed should give column {column!r} at least 2 buckets, but gives {n}. Use 256.")
        object.__setattr__(self, "path", self.path.absolute())

    def written(self) -> dict[str, Any]:
        """What a plan says of the file: everything that is not as without a word."""
        plain = PlannedTable(self.path, self.ids)
        return {key: value for key, value in vars(self).items() if key in ("path", "ids") or value != vars(plain)[key]}

    def read(self, party: str, align: PlannedAlign | None = None, engine: PlannedEngine | None = None) -> Table:
        """The table that a party holds there, with the columns by which it is aligned."""
        keys = () if align is None else align.key_columns(party, self.ids)
        for column in (column for column in self.hashed if column in keys):
            raise PlanError(
                f"[data.{party}.hashed] should name columns that nobody is matched by, but names {column!r}, which a "
                "key is in: people of one bucket would be one person. Leave it out."
            )
        if self.placed:
            from colonnade.plans.engine import PlannedEngine
            from colonnade.runtime.placed import placed_table

            crew, named = (engine or PlannedEngine()).crew(), ("path", "ids", "labels", "columns", "exclude")
            written = {key: getattr(self, key) for key in named}
            return placed_table(**written, crew=crew, keys=keys, owner=party).hashed(self.hashed)
        written = {key: value for key, value in vars(self).items() if key not in ("hashed", "placed")}
        return Table.read(**written, keys=keys, owner=party).hashed(self.hashed)


@dataclass(frozen=True)
class PlannedData:
    """The tables of a run: a named set, or a file for each party; none in the plan of a party without a table.

    Attributes:
        name: A name that ``colonnade data list`` shows.
        tables: The parties' files, where there is no name.
        rows: How many rows of a named set to draw; all when None.
        seed: Which rows are drawn, and which are held out.
        test: The share of rows that is held out.

    >>> PlannedData("breast-cancer").test
    0.25
    """

    name: str | None = None
    tables: Mapping[str, PlannedTable] = field(default_factory=dict, hash=False)
    rows: int | None = None
    seed: int = 0
    test: float = 0.25

    def __post_init__(self) -> None:
        if self.name is not None and self.tables:
            raise PlanError(
                f"[data] takes a name or files, but has the name {self.name!r} and files of {', '.join(self.tables)}. "
                "Leave out one of the two."
            )
        if self.rows is not None and self.tables:
            raise PlanError(f"[data] rows is for named sets, but is {self.rows} beside files. Leave it out.")
        if not 0 < self.test < 1:
            raise PlanError(f"[data] test should lie between 0 and 1, but is {self.test}. Choose a share such as 0.25.")

    def load(
        self, holders: tuple[str, ...], align: PlannedAlign | None = None, engine: PlannedEngine | None = None
    ) -> dict[str, Table]:
        """The tables of these parties, as they hold them, with the columns by which they are aligned."""
        if self.name is None:
            require_files(holders, self.tables)
            return {party: self.tables[party].read(party, align, engine) for party in holders}
        from colonnade.data.datasets import load

        tables = load(self.name, rows=self.rows, seed=self.seed).tables
        for party in holders:
            if party not in tables:
                raise PlanError(
                    f"[roles] names {party}, but the set {self.name!r} has tables of {', '.join(tables)} only."
                    f"{nearest(party, tables)} Correct the role or choose another set."
                )
        return {party: tables[party] for party in holders}


@dataclass(frozen=True)
class PlannedModel:
    """A model of the catalogue with its parameters.

    >>> PlannedModel("split-classifier", {"epochs": 3}).build().get_params()["epochs"]
    3
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        from colonnade.catalogue import MODELS

        signature = Signature.of(MODELS[self.name], "[model]")
        object.__setattr__(self, "parameters", signature.checked(self.parameters))

    def build(self) -> Estimator:
        """The model, not fitted."""
        from colonnade.catalogue import MODELS

        return MODELS[self.name](**self.parameters)


@dataclass(frozen=True)
class PlannedDefence:
    """A defence of the catalogue with its parameters, held by one party.

    >>> PlannedDefence("bank", "gradient-noise", {"ratio": 2}).build().name
    'GradientNoise(ratio=2)'
    """

    party: str
    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Check the parameters against the defence's constructor, which may refuse their values too."""
        from colonnade.catalogue import DEFENCES

        signature = Signature.of(DEFENCES[self.name], "[[defences]]")
        object.__setattr__(self, "parameters", signature.checked(self.parameters))
        self.build()

    def build(self) -> Defence:
        """The defence."""
        from colonnade.catalogue import DEFENCES

        return DEFENCES[self.name](**self.parameters)


@dataclass(frozen=True)
class PlannedAudit:
    """How the run is audited.

    Attributes:
        attacks: Names of the catalogue; when None, those that are strong and quick, and those that know a
            defence of the run.
        nulls: How many runs with permuted labels each score is compared with.
        seed: Which labels are granted, and how labels are permuted.
        delta: The delta at which the privacy budget is told.
        thorough: Make every attack of the catalogue in several forms, where none are named.
        epochs: At how many epochs the worst attack on labels is made again, on the messages of that epoch alone.

    >>> len(PlannedAudit(attacks=("norm-score",)).build())
    1
    """

    attacks: tuple[str, ...] | None = None
    nulls: int = 20
    seed: int = 0
    delta: float = 1e-5
    thorough: bool = False
    epochs: int = 0

    def __post_init__(self) -> None:
        """Refuse unknown attacks and impossible numbers; no attack is imported, because some need an extra."""
        from colonnade.catalogue import ATTACKS

        for name in self.attacks or ():
            ATTACKS.require(name)
        if self.nulls < 1:
            raise PlanError(f"[audit] nulls should be at least 1, but is {self.nulls}. Choose a number such as 20.")
        if self.epochs < 0:
            raise PlanError(f"[audit] epochs should be at least 0, but is {self.epochs}. Choose a number such as 8.")
        if not 0 <= self.delta < 1:
            raise PlanError(f"[audit] delta should be at least 0 and below 1, but is {self.delta}. Choose 1e-5 or so.")

    def build(self, defences: Iterable[PlannedDefence] = ()) -> tuple[Attack | ActiveAttack, ...]:
        """The attacks; where none are named, those that know the run's defences are among them."""
        from colonnade.catalogue import ATTACKS, attacks_of_audit

        if self.attacks is None:
            return attacks_of_audit(thorough=self.thorough, defences=[planned.build() for planned in defences])
        return tuple(ATTACKS[name]() for name in self.attacks)

    def covers(self, other: PlannedAudit) -> bool:
        """Whether it makes all attacks of another audit, as thoroughly, and with as many null runs and epochs.

        >>> PlannedAudit(nulls=100).covers(PlannedAudit()), PlannedAudit(("norm-score",)).covers(PlannedAudit())
        (True, False)
        """
        from colonnade.catalogue import ATTACKS, THOROUGH

        made = self.attacks
        if made is None:
            made = tuple(name for name in ATTACKS if self.thorough or name not in THOROUGH)
        # An audit that names none makes attacks in forms that no name stands for.
        all_made = self.attacks is None if other.attacks is None else set(other.attacks) <= set(made)
        least = self.thorough >= other.thorough, self.nulls >= other.nulls, self.epochs >= other.epochs
        return all_made and all(least)


@dataclass(frozen=True)
class PlannedRun:
    """What a run writes down.

    Attributes:
        keep: How much of the messages is kept for the audit.
        checkpoint_every: After how many steps a checkpoint is written.
        received: What receivers may keep of messages, to which all parties agree as senders by having the same plan:
            digests, or what a joint audit needs.

    >>> PlannedRun(keep="digests").checkpoint_every
    50
    """

    keep: Keep = "audit"
    checkpoint_every: int = 50
    received: Literal["digests", "audit"] = "digests"

    def __post_init__(self) -> None:
        if self.checkpoint_every < 1:
            raise PlanError(
                f"[run] checkpoint_every should be at least 1, but is {self.checkpoint_every}. "
                "Choose a number such as 50."
            )


@dataclass(frozen=True)
class PlannedPrivacy:
    """What each party of a plan may spend on its own secrets, over all runs on the same records, and what it accepts.

    Attributes:
        budget: The (epsilon, delta) that may be spent, by secret.
        accept_label_leak: Whether the label party takes part in a training that sends feature parties gradients of
            every row without a defence, from which labels can be told.

    >>> PlannedPrivacy({"labels": (2.0, 1e-5)}).budgets
    {<Secret.LABELS: 'labels'>: (2.0, 1e-05)}
    """

    budget: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    accept_label_leak: bool = False

    def __post_init__(self) -> None:
        secrets = [secret.value for secret in Secret]
        for secret, (epsilon, delta) in self.budget.items():
            if secret not in secrets:
                raise PlanError(
                    f"[privacy] budget takes {', '.join(secrets)}, but has the key {secret!r}."
                    f"{nearest(secret, secrets)} Correct the key."
                )
            if not (epsilon >= 0 and 0 <= delta < 1):
                raise PlanError(
                    f"[privacy] budget.{secret} should be an epsilon of at least 0 and a delta of at least 0 and below "
                    f"1, but is {epsilon:g} and {delta:g}. Write numbers such as [2.0, 1e-5]."
                )

    @property
    def budgets(self) -> dict[Secret, tuple[float, float]]:
        """The (epsilon, delta) that may be spent, by secret."""
        return {Secret(secret): allowed for secret, allowed in self.budget.items()}

    def with_options(self, options: Iterable[str]) -> PlannedPrivacy:
        """The same with budgets of the command line, each as `secret=epsilon,delta`, in place of those of the plan.

        >>> PlannedPrivacy().with_options(["labels=2,1e-5"]).budget
        {'labels': (2.0, 1e-05)}
        """
        budget = dict(self.budget)
        for option in options:
            found = re.fullmatch(rf"(\w+)=({_NUMBER}),({_NUMBER})", option)
            if found is None:
                raise PlanError(
                    f"--budget should be a secret with epsilon and delta, but is {option!r}. Write it as labels=2,1e-5."
                )
            budget[found[1]] = (float(found[2]), float(found[3]))
        return replace(self, budget=budget)


@dataclass(frozen=True)
class PlannedAddress:
    """Where one party is found.

    Attributes:
        address: Where the others reach it, `host:port`; None for a party that only dials out.
        listen: Where it listens, if not at its address: behind a router, or on all interfaces.

    >>> PlannedAddress("bank.example:7431", listen="0.0.0.0:7431").address
    'bank.example:7431'
    """

    address: str | None = None
    listen: str | None = None

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if value is not None:
                check_address(value, key)


@dataclass(frozen=True)
class PlannedNetwork:
    """Where the parties of a run find each other; no part of what they must agree on.

    Attributes:
        parties: Where each party is found; one that is not named only dials out.
        certificates: The folder of this party's certificate and key.
        key_file: The key under which recordings are encrypted on disk; None keeps them in the clear.
        keep_received: Of what this party receives: digests, or what a joint audit needs, if [run] allows that.
        randomness: "system" draws a key that nobody else knows; "seeded" follows from the plan's seed, for tests.
        start: How many seconds to wait for all parties at the beginning.
        rejoin: How many seconds to wait for a party that broke off.
        silence: After how many seconds without a sign of life a connection counts as broken.
        message: How many seconds to wait for a message of a party that is alive.
        revoked: The list of certificates that this party refuses in runs of the plan, besides the list in the folder
            of its certificate; there need be none.
        log: How lines with times are written while the run goes on: as text or as JSON.

    >>> PlannedNetwork({"bank": PlannedAddress("bank.example:7431")}).addresses(("bank", "shop"))
    {'bank': 'bank.example:7431', 'shop': None}
    """

    parties: Mapping[str, PlannedAddress] = field(default_factory=dict, hash=False)
    certificates: Path = Path("certs")
    key_file: Path | None = None
    keep_received: Literal["digests", "audit"] = "digests"
    randomness: Literal["system", "seeded"] = "system"
    start: float = 600.0
    rejoin: float = 1800.0
    silence: float = 30.0
    message: float = 3600.0
    revoked: Path = Path("revoked.txt")
    log: Literal["text", "json"] = "text"

    def __post_init__(self) -> None:
        """Refuse waits without a length, and make the plan mean the same files wherever it is read."""
        for key in TIMES:
            if not getattr(self, key) > 0:
                raise PlanError(
                    f"[network] {key} should be above 0 seconds, but is {getattr(self, key):g}. Choose a longer time."
                )
        object.__setattr__(self, "certificates", self.certificates.absolute())
        object.__setattr__(self, "revoked", self.revoked.absolute())
        if self.key_file is not None:
            object.__setattr__(self, "key_file", self.key_file.absolute())

    def addresses(self, names: Iterable[str]) -> dict[str, str | None]:
        """Where each of these parties is reached."""
        return {name: self.parties[name].address if name in self.parties else None for name in names}

    def listen(self, name: str) -> str | None:
        """Where a party listens, if not at its address."""
        return self.parties[name].listen if name in self.parties else None

    def check(self, names: tuple[str, ...]) -> None:
        """Refuse parties without a role, and two that could not find each other."""
        for name in self.parties:
            if name not in names:
                raise PlanError(
                    f"[network.{name}] names a party that has no role; those who have are {', '.join(names)}."
                    f"{nearest(name, names)} Correct the name or leave the section out."
                )
        found = self.addresses(names)
        for name in names[1:]:
            if found[name] is None and found[names[0]] is None:
                raise PlanError(
                    f"[network] gives neither {names[0]} nor {name} an address, so neither can reach the other. "
                    f'Write address = "host:port" under [network.{names[0]}].'
                )


def require_files(holders: Iterable[str], files: Mapping[str, PlannedTable]) -> None:
    """Refuse parties that should have a file in [data] and have none."""
    for party in holders:
        if party not in files:
            raise PlanError(
                f"[roles] names {party}, but [data] has files of {', '.join(files) or 'nobody'} only."
                f"{nearest(party, files)} "
                f"Add a section [data.{party}] or correct the role."
            )
