"""The privacy ledger: what was released, about what, and what that costs together.

Spending appends an event and costs next to nothing; composition happens when somebody asks. "Not private" is a
value: one event that is not private makes epsilon infinite, whatever else was spent.

Gaussian releases, discrete ones among them, compose exactly (see `colonnade.privacy.gaussian`); narrow discrete ones by
their zero-concentrated cost; all others through the privacy loss distributions of dp-accounting.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from colonnade.errors import BudgetSpent, PlanError, StorageError
from colonnade.privacy.gaussian import NARROW, ROUNDING_VARIANCE, gaussian_epsilon
from colonnade.privacy.history import History, Records, open_history
from colonnade.secret import Secret
from colonnade.storage import append_durably, explained, write_atomically

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Adjacency: TypeAlias = Literal["replace-one", "add-remove"]

_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "gaussian": ("sensitivity", "sigma"),
    "discrete-gaussian": ("sensitivity", "sigma"),
    "laplace": ("scale", "sensitivity"),
    "randomised-response": ("epsilon", "n_classes"),
    "not-private": (),
}
# Rounding must not make a mechanism calibrated to a budget exceed that very budget.
_TOLERANCE = 1e-9
# Privacy losses are rounded up to this fraction of a bound on epsilon: finer is tighter, slower and takes more memory.
_LOSS_STEP = 2e-5
# Above this epsilon of a single release, composing losses gains nothing over adding them.
_HOPELESS = 50.0


@dataclass(frozen=True)
class Event:
    """One kind of release: what it protects, by which mechanism, under which change of the data.

    Two tables are neighbours if one `unit` of one is replaced ("replace-one"), or is missing from the other
    ("add-remove"); the mechanism's sensitivity was computed for that change.

    Attributes:
        by: The protection that released it, as messages name it; it accounts for messages under that protection only.

    Example:
        >>> Event(Secret.LABELS, "label", "randomised-response", (("epsilon", 1.0), ("n_classes", 2))).is_private
        True
        >>> Event.not_private(Secret.FEATURES, "embeddings sent in the clear").is_private
        False
    """

    protects: Secret
    unit: str
    mechanism: str
    parameters: tuple[tuple[str, float], ...] = ()
    adjacency: Adjacency = "replace-one"
    note: str = ""
    # Releases draw their noise from an event's repr, and a name must not change it.
    by: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        expected = _PARAMETERS.get(self.mechanism)
        if expected is None:
            raise PlanError(
                f"Expected a mechanism among {', '.join(_PARAMETERS)}; got {self.mechanism!r}. "
                f"Name one of these, or record the release with Event.not_private."
            )
        names_fit = tuple(name for name, _ in self.parameters) == expected
        if not names_fit or not all(_is_possible(name, value) for name, value in self.parameters):
            raise PlanError(
                f"Expected a {self.mechanism} event to have positive parameters ({', '.join(expected) or 'none'}), "
                f"got {dict(self.parameters)}. Let the mechanism make its own event."
            )
        if self.adjacency not in ("replace-one", "add-remove"):
            raise PlanError(
                f"Expected the adjacency 'replace-one' or 'add-remove', got {self.adjacency!r}. "
                f"Name the one that the sensitivity was computed for."
            )
        if self.mechanism == "randomised-response" and self.adjacency != "replace-one":
            raise PlanError(
                "Expected randomised response to be counted as 'replace-one', got 'add-remove': a randomised label "
                "shows that its row exists. Use 'replace-one'."
            )

    @classmethod
    def not_private(cls, protects: Secret, note: str, *, unit: str = "record") -> Self:
        """Return the event of a release without any privacy promise; the note says what it was."""
        return cls(protects, unit, "not-private", note=note)

    @property
    def is_private(self) -> bool:
        """Whether the event's mechanism promises anything."""
        return self.mechanism != "not-private"

    def with_known_noise(self) -> Self:
        """The event of the same release where others can compute its noise, which promises nothing."""
        if not self.is_private:
            return self
        note = f"{self.mechanism} noise from the plan's seed, which all who know the plan can subtract"
        return replace(self, mechanism="not-private", parameters=(), adjacency="replace-one", note=note)


@dataclass(frozen=True)
class Spent:
    """What all releases about one secret cost together.

    Attributes:
        epsilon: Infinite if it is not private at this delta.
        unit: Whose change is hidden. Releases declared for several units are composed together, which bounds what
            a change shows that counts as one unit of each kind (one label in one record); all are named here.
        adjacency: Where both occur, everything is counted as "replace-one".
        releases: How many, by mechanism.
        rho: The zero-concentrated cost, if every release was Gaussian, continuous or discrete.
        doubled: How many "add-remove" releases were counted as "replace-one", with twice their sensitivity.
        notes: What the releases without a privacy promise were.

    Example:
        >>> ledger = Ledger()
        >>> _ = ledger.spend(Event.not_private(Secret.FEATURES, "embeddings sent in the clear"))
        >>> print(ledger.spent(Secret.FEATURES, 1e-5))
        not private: embeddings sent in the clear
    """

    protects: Secret
    epsilon: float
    delta: float
    unit: str = ""
    adjacency: Adjacency = "replace-one"
    releases: Mapping[str, int] = field(default_factory=dict)
    rho: float | None = None
    doubled: int = 0
    notes: tuple[str, ...] = ()

    @property
    def is_private(self) -> bool:
        """Whether epsilon is finite."""
        return math.isfinite(self.epsilon)

    def __str__(self) -> str:
        if not self.releases:
            return "nothing released"
        if not self.is_private:
            return f"not private: {'; '.join(self.notes)}" if self.notes else f"not private at delta {self.delta:g}"
        releases = ", ".join(f"{n} × {mechanism}" for mechanism, n in self.releases.items())
        return f"epsilon {self.epsilon:.4g} at delta {self.delta:.2g} per {self.unit} ({self.adjacency}; {releases})"


@dataclass(frozen=True)
class SpentOnTable:
    """What all runs spent on the records of the table with a digest, from the first release to the last."""

    table: str
    n_runs: int
    since: str
    until: str
    spent: dict[Secret, Spent]


class Ledger:
    """The privacy events of one party, in the order in which each kind first occurred.

    A release is charged once however often a crash makes the run repeat it: events bear the identity of what was
    released, and one that is known already costs nothing. Nothing is ever taken off a ledger, also not when a run goes
    back to a checkpoint, for what was released stays released.

    Args:
        budget: The (epsilon, delta) that may be spent on a secret. An event that would exceed it is refused.
        path: A file to which every event is written before anything is released, and from which it starts.
        noise_is_known: Whether others can compute the noise, so that no release is private: in a run between machines
            whose randomness follows from the plan's seed.
        history: What all runs released about the same records. Each event is written there too, and the budget is for
            all runs together; without a history it is for this ledger alone.

    Example:
        >>> ledger = Ledger(budget={Secret.LABELS: (2.0, 0.0)})
        >>> flip = Event(Secret.LABELS, "label", "randomised-response", (("epsilon", 1.0), ("n_classes", 2)))
        >>> ledger.spend(flip, identity=b"first"), ledger.spend(flip, identity=b"first"), ledger.spend(flip)
        (True, False, True)
        >>> print(ledger.spent(Secret.LABELS, 0.0))
        epsilon 2 at delta 0 per label (replace-one; 2 × randomised-response)
    """

    def __init__(
        self,
        budget: Mapping[Secret, tuple[float, float]] | None = None,
        *,
        path: Path | None = None,
        noise_is_known: bool = False,
        history: History | None = None,
    ) -> None:
        self.budget, self._noise_is_known = dict(budget or {}), noise_is_known
        for secret, (epsilon, delta) in self.budget.items():
            if not (epsilon >= 0 and 0 <= delta < 1):
                raise PlanError(
                    f"Expected the budget for {secret} to have epsilon >= 0 and 0 <= delta < 1, "
                    f"got epsilon {epsilon:g} and delta {delta:g}. Correct the budget."
                )
        self._counts: Counter[Event] = Counter()
        self._identified: set[tuple[Event, int, bytes]] = set()
        self._past: Counter[Event] = Counter()
        self._past_identified: set[tuple[Event, int, bytes]] = set()
        self._path, self._history = path, history
        if path is not None and path.exists():
            self._load(path)

    @property
    def events(self) -> Mapping[Event, int]:
        """Each kind of event and how often it occurred."""
        return MappingProxyType(self._counts)

    def spend(self, event: Event, count: int = 1, *, identity: bytes | None = None, is_earlier: bool = False) -> bool:
        """Record an event, or several of its kind; returns whether it was new.

        Args:
            event: What is about to be released.
            count: How often.
            identity: What tells this release from others of its kind. None counts it as new each time.
            is_earlier: Whether an earlier run made the release, so that the history of all runs may have it already.

        Raises:
            BudgetSpent: The budget would be exceeded; nothing was recorded.
        """
        if count < 1:
            raise PlanError(f"Expected to spend an event at least once, got a count of {count}. Give a count from 1.")
        event = event.with_known_noise() if self._noise_is_known else event
        if identity is not None and (event, count, identity) in self._identified:
            return False
        entry = {**entry_of(event, count), "identity": None if identity is None else identity.hex()}
        if self._history is None:
            self._check_budget(self._counts, event, count)
        else:
            with self._history.locked() as held:
                self._look_back(self._history.unread(held))
                known = identity is not None and (event, count, identity) in self._past_identified
                if not known and not (is_earlier and self._past[event] >= count):
                    # The history has all events of this run, except those of a run that began without one.
                    self._check_budget(self._past | self._counts, event, count)
                    self._history.append(held, entry)
                    self._remember(event, count, identity)
        if self._path is not None:
            append_durably(self._path, json.dumps(entry) + "\n")
        self._record(event, count, identity)
        return True

    def _look_back(self, entries: Iterable[Mapping[str, Any]]) -> None:
        with _understood():
            for entry in entries:
                self._remember(*_read(entry))

    def _remember(self, event: Event, count: int, identity: bytes | None) -> None:
        self._past[event] += count
        if identity is not None:
            self._past_identified.add((event, count, identity))

    def spent_over_runs(self, protects: Secret, delta: float) -> Spent:
        """Compose the events of all runs about one secret; those of this ledger alone if there is no history."""
        if self._history is not None:
            with self._history.locked() as held:
                self._look_back(self._history.unread(held))
        return _compose(self._past | self._counts, protects, delta, None)

    @property
    def has_history(self) -> bool:
        """Whether the ledger knows what other runs released about the same records."""
        return self._history is not None

    def epsilon(self, delta: float, *, protects: Secret, unit: str | None = None) -> float:
        """Return the epsilon of `spent`."""
        return self.spent(protects, delta, unit=unit).epsilon

    def spent(self, protects: Secret, delta: float, *, unit: str | None = None) -> Spent:
        """Compose the events about one secret.

        Args:
            protects: The secret.
            delta: The failure probability at which epsilon is told; 0 for pure privacy.
            unit: Leave out private events declared for another unit than this.
        """
        return _compose(self._counts, protects, delta, unit)

    def after(self, earlier: Ledger) -> Self:
        """Return a ledger of an earlier run's events and these; it is written nowhere, and has no budget."""
        together = type(self)(history=self._history)
        together._counts = earlier._counts + self._counts
        return together

    def to_json(self) -> str:
        """Return the events as JSON text. The budget is the plan's and not part of it."""
        return json.dumps({"events": [entry_of(event, count) for event, count in self._counts.items()]})

    @classmethod
    def from_json(cls, text: str, *, budget: Mapping[Secret, tuple[float, float]] | None = None) -> Self:
        """Return a ledger with the events that `to_json` wrote."""
        ledger = cls(budget)
        with _understood():
            for entry in json.loads(text)["events"]:
                ledger._counts[_event_of(entry)] += _count(entry)
        return ledger

    def _load(self, path: Path) -> None:
        with explained(f"read {path.name}"):
            *lines, unfinished = path.read_bytes().split(b"\n")
        with _understood():
            for line in lines:
                self._record(*_read(json.loads(line)))
        if unfinished:
            # The crash came while this event was being written, hence before its release.
            write_atomically(path, b"".join(line + b"\n" for line in lines))

    def _record(self, event: Event, count: int, identity: bytes | None) -> None:
        self._counts[event] += count
        if identity is not None:
            self._identified.add((event, count, identity))

    def __repr__(self) -> str:
        return f"Ledger({self._counts.total()} events of {len(self._counts)} kinds)"

    def _check_budget(self, earlier: Counter[Event], event: Event, count: int) -> None:
        if event.protects not in self.budget:
            return
        epsilon, delta = self.budget[event.protects]
        about = Counter({each: n for each, n in earlier.items() if each.protects is event.protects})
        after = _Losses(about + Counter({event: count}))
        allowed = epsilon * (1 + _TOLERANCE)
        # The bound is cheap, and composition is only needed where the bound does not decide.
        if after.bound(delta) > allowed and (total := after.epsilon(delta)) > allowed:
            over = "" if self._history is None else " over all runs on these records"
            raise BudgetSpent(
                f"Expected to spend at most epsilon {epsilon:g} at delta {delta:g} on {event.protects}{over}, but the "
                f"next {event.mechanism} release would bring it to {total:g}; nothing was released. "
                f"Release less often, add more noise, or agree on a larger budget."
            )


def compose(ledgers: Iterable[Ledger], delta: float) -> dict[Secret, Spent]:
    """Compose all parties' ledgers: what was spent on each secret that any event is about.

    Example:
        >>> bank, shop = Ledger(), Ledger()
        >>> _ = bank.spend(Event(Secret.LABELS, "label", "gaussian", (("sensitivity", 1.0), ("sigma", 4.0))))
        >>> _ = shop.spend(Event.not_private(Secret.FEATURES, "embeddings sent in the clear"))
        >>> for secret, spent in compose([bank, shop], delta=1e-5).items():
        ...     print(f"{secret}: {spent}")
        labels: epsilon 0.9263 at delta 1e-05 per label (replace-one; 1 × gaussian)
        features: not private: embeddings sent in the clear
    """
    together: Counter[Event] = Counter()
    for ledger in ledgers:
        together.update(ledger.events)
    secrets = dict.fromkeys(event.protects for event in together)
    return {secret: _compose(together, secret, delta, None) for secret in secrets}


def spent_over_runs(path: Path, delta: float) -> Iterator[SpentOnTable]:
    """Yield what was spent on each table that a history names, with the tables that share records with it.

    The history is the file `privacy-of-<party>`; if it is damaged, this raises `StorageError`.
    """
    log = open_history(path)
    entries = log.entries()
    try:
        tables = [Records(entry["table"], frozenset(entry["ids"])) for entry in entries if "ids" in entry]
        for records in tables:
            related = {other.table for other in tables if other.overlap(records)}
            about = [entry for entry in entries if "ids" not in entry and entry["table"] in related]
            ledger = Ledger()
            for entry in about:
                event, count, identity = _read(entry)
                ledger.spend(event, count, identity=identity)
            times, runs = [entry["at"] for entry in about], {entry["run"] for entry in about}
            if about:
                yield SpentOnTable(records.table, len(runs), min(times), max(times), compose([ledger], delta))
    except (KeyError, TypeError, ValueError) as error:
        raise log.damaged() from error


def _compose(counts: Mapping[Event, int], protects: Secret, delta: float, unit: str | None) -> Spent:
    if not 0 <= delta < 1:
        raise PlanError(f"Expected a delta of at least 0 and below 1, got {delta:g}. Give one far below 1 / rows.")
    relevant = {
        event: count
        for event, count in counts.items()
        if event.protects is protects and (unit is None or event.unit == unit or not event.is_private)
    }
    losses = _Losses(relevant)
    releases: Counter[str] = Counter()
    for event, count in relevant.items():
        releases[event.mechanism] += count
    return Spent(
        protects=protects,
        epsilon=losses.epsilon(delta),
        delta=delta,
        unit=" and ".join(dict.fromkeys(event.unit for event in relevant)),
        adjacency=losses.adjacency,
        releases=dict(releases),
        rho=losses.rho if releases and set(releases) <= {"gaussian", "discrete-gaussian"} else None,
        doubled=losses.doubled,
        notes=tuple(dict.fromkeys(event.note for event in relevant if not event.is_private)),
    )


class _Losses:
    """The privacy losses of events, brought to one adjacency and gathered by kind.

    Replacing a record is removing one and adding another, so what was computed for "add-remove" holds for
    "replace-one" with twice the sensitivity. The converse has no bound.
    """

    def __init__(self, counts: Mapping[Event, int]) -> None:
        self.is_private = all(event.is_private for event in counts)
        self.mu_squared = self.narrow_rho = self.rho = 0.0
        self.laplace: Counter[float] = Counter()
        self.randomised_response: Counter[tuple[float, int]] = Counter()
        self.doubled = 0
        private = {event: count for event, count in counts.items() if event.is_private}
        adjacencies = {event.adjacency for event in private}
        self.adjacency: Adjacency = "add-remove" if adjacencies == {"add-remove"} else "replace-one"
        for event, count in private.items():
            converted = event.adjacency != self.adjacency
            self.doubled += count * converted
            factor = 2 if converted else 1
            parameters = dict(event.parameters)
            if event.mechanism in ("gaussian", "discrete-gaussian"):
                reach, sigma = factor * parameters["sensitivity"], parameters["sigma"]
                rho = count * (reach / sigma) ** 2 / 2
                self.rho += rho
                if event.mechanism == "gaussian":
                    self.mu_squared += 2 * rho
                elif sigma < NARROW:
                    self.narrow_rho += rho
                else:
                    self.mu_squared += 2 * rho / (1 - ROUNDING_VARIANCE / sigma**2)
            elif event.mechanism == "laplace":
                self.laplace[factor * parameters["sensitivity"] / parameters["scale"]] += count
            else:
                self.randomised_response[parameters["epsilon"], int(parameters["n_classes"])] += count
        self.pure = Counter(self.laplace)
        for (epsilon, _), count in self.randomised_response.items():
            self.pure[epsilon] += count

    def epsilon(self, delta: float) -> float:
        """The least epsilon that can be vouched for."""
        bound = self.bound(delta)
        if not math.isfinite(bound) or not self.pure or delta == 0 or max(self.pure) > _HOPELESS or self.narrow_rho:
            return bound
        step = _LOSS_STEP * bound
        return min(bound, float(self._distribution(step).get_epsilon_for_delta(delta)))

    def bound(self, delta: float) -> float:
        """A cheap bound on epsilon, exact for Gaussian releases alone unless they are discrete and narrow."""
        if not self.is_private:
            return math.inf
        by_adding = gaussian_epsilon(math.sqrt(self.mu_squared), delta) + sum(e * n for e, n in self.pure.items())
        if self.narrow_rho:
            by_adding = math.inf
        if delta == 0 or not (self.pure or self.narrow_rho):
            return by_adding
        # Pure epsilon is epsilon**2 / 2 in zCDP (Bun & Steinke 2016, proposition 1.4).
        rho = self.rho + sum(n * e**2 / 2 for e, n in self.pure.items())
        return min(by_adding, rho + 2 * math.sqrt(-rho * math.log(delta)))

    def _distribution(self, step: float) -> PrivacyLossDistribution:
        # The sensitivities here already mean the change that the adjacency names. dp-accounting's own adjacencies
        # would multiply them once more, so each distribution is built for a plain shift by the sensitivity.
        from dp_accounting.pld import privacy_loss_distribution as pld

        total = pld.identity(value_discretization_interval=step)
        if self.mu_squared:
            sigma = 1 / math.sqrt(self.mu_squared)
            total = total.compose(pld.from_gaussian_mechanism(sigma, value_discretization_interval=step))
        for epsilon, count in self.laplace.items():
            one = pld.from_laplace_mechanism(1 / epsilon, value_discretization_interval=step)
            total = total.compose(one.self_compose(count))
        for (epsilon, n_classes), count in self.randomised_response.items():
            uniform = n_classes / (math.exp(epsilon) + n_classes - 1)
            one = pld.from_randomized_response(uniform, n_classes, value_discretization_interval=step)
            total = total.compose(one.self_compose(count))
        return total


def _is_possible(name: str, value: float) -> bool:
    if not isinstance(value, float | int) or not 0 < value < math.inf:
        return False
    return name != "n_classes" or (value >= 2 and value == int(value))


@contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, PlanError) as error:
        raise StorageError(
            f"Expected the events of a privacy ledger but could not read them ({type(error).__name__}: {error}). "
            f"Restore an undamaged copy."
        ) from error


def entry_of(event: Event, count: int) -> dict[str, Any]:
    """Some events of one kind as a log holds them."""
    as_data = {"protects": event.protects.value, "parameters": dict(event.parameters)}
    return {**vars(event), **as_data, "count": count}


def _event_of(entry: Mapping[str, Any]) -> Event:
    """The kind of event that `entry_of` wrote."""
    protects, parameters = Secret(entry["protects"]), tuple(sorted(entry["parameters"].items()))
    named = {name: entry[name] for name in ("unit", "mechanism", "adjacency", "note")}
    return Event(protects, parameters=parameters, by=entry.get("by", ""), **named)


def _read(entry: Mapping[str, Any]) -> tuple[Event, int, bytes | None]:
    """Some events of one kind, their number and their identity, as a log holds them."""
    identity = entry["identity"]
    return _event_of(entry), _count(entry), None if identity is None else bytes.fromhex(identity)


def _count(entry: Mapping[str, Any]) -> int:
    count = entry["count"]
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"a count of {count!r}")
    return count
