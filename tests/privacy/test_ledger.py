import json
import math
import resource
from dataclasses import replace
from pathlib import Path

import dp_accounting as dp
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant

from colonnade.errors import BudgetSpent, PlanError, StorageError
from colonnade.privacy.ledger import Adjacency, Event, Ledger, Spent, compose
from colonnade.privacy.mechanisms import GaussianMechanism, LaplaceMechanism, RandomisedResponse
from colonnade.secret import Secret

CLEAR = Event.not_private(Secret.FEATURES, "embeddings sent in the clear")


def gaussian(sigma: float, adjacency: Adjacency = "replace-one", unit: str = "record") -> Event:
    return GaussianMechanism(1.0, sigma).event(Secret.FEATURES, unit, adjacency)


def laplace(scale: float, adjacency: Adjacency = "replace-one", unit: str = "record") -> Event:
    return LaplaceMechanism(1.0, scale).event(Secret.FEATURES, unit, adjacency)


def flip(epsilon: float, n_classes: int = 2) -> Event:
    return RandomisedResponse(epsilon, n_classes).event(Secret.FEATURES, "record")


def ledger_of(*spending: tuple[Event, int]) -> Ledger:
    ledger = Ledger()
    for event, count in spending:
        ledger.spend(event, count)
    return ledger


def epsilon(delta: float, *spending: tuple[Event, int]) -> float:
    return ledger_of(*spending).epsilon(delta, protects=Secret.FEATURES)


def accounted(delta: float, *events: dp.DpEvent, neighbours: dp.NeighboringRelation) -> float:
    accountant = PLDAccountant(neighbours)
    for event in events:
        accountant.compose(event)
    return float(accountant.get_epsilon(delta))


def test_gaussian_releases_compose_exactly() -> None:
    composed = epsilon(1e-5, (gaussian(4.0), 3), (gaussian(7.0), 5))
    sigma = 1 / math.sqrt(3 / 4.0**2 + 5 / 7.0**2)
    assert composed == pytest.approx(get_epsilon_gaussian(sigma, 1e-5), rel=1e-9)


def test_ten_thousand_gaussian_steps_agree_with_dp_accounting() -> None:
    oracle = accounted(
        1e-5,
        dp.SelfComposedDpEvent(dp.GaussianDpEvent(50.0), 10_000),
        neighbours=dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    assert epsilon(1e-5, (gaussian(50.0), 10_000)) == pytest.approx(oracle, rel=1e-4)


@pytest.mark.parametrize(
    ("events", "counts", "oracles"),
    [
        ([laplace(1.0)], [1], [dp.LaplaceDpEvent(1.0)]),
        ([laplace(100.0)], [10_000], [dp.LaplaceDpEvent(100.0)]),
        ([laplace(2.0), gaussian(3.0)], [4, 6], [dp.LaplaceDpEvent(2.0), dp.GaussianDpEvent(3.0)]),
        ([laplace(2.0), laplace(9.0)], [2, 30], [dp.LaplaceDpEvent(2.0), dp.LaplaceDpEvent(9.0)]),
    ],
    ids=["one laplace", "many small laplace", "laplace and gaussian", "two scales of laplace"],
)
def test_laplace_releases_agree_with_dp_accounting(
    events: list[Event], counts: list[int], oracles: list[dp.DpEvent]
) -> None:
    repeated = [dp.SelfComposedDpEvent(event, count) for event, count in zip(oracles, counts, strict=True)]
    oracle = accounted(1e-5, *repeated, neighbours=dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert epsilon(1e-5, *zip(events, counts, strict=True)) == pytest.approx(oracle, rel=1e-3)


@pytest.mark.parametrize(("n_classes", "count"), [(2, 1), (2, 40), (10, 7)])
def test_randomised_responses_agree_with_dp_accounting(n_classes: int, count: int) -> None:
    uniform = n_classes / (math.exp(0.5) + n_classes - 1)
    event = dp.RandomizedResponseDpEvent(uniform, n_classes)
    oracle = accounted(1e-5, *[event] * count, neighbours=dp.NeighboringRelation.REPLACE_ONE)
    assert epsilon(1e-5, (flip(0.5, n_classes), count)) == pytest.approx(oracle, rel=2e-3)


def test_all_mechanisms_together_cost_less_than_their_sum_and_more_than_each() -> None:
    parts = [(gaussian(2.0), 3), (laplace(2.0), 3), (flip(0.5, 4), 3)]
    together = epsilon(1e-5, *parts)
    assert max(epsilon(1e-5, part) for part in parts) < together < sum(epsilon(1e-5, part) for part in parts)


def test_pure_releases_add_up_at_delta_zero() -> None:
    assert epsilon(0.0, (laplace(4.0), 3), (flip(0.5), 2)) == pytest.approx(1.75, rel=1e-12)


def test_a_gaussian_release_is_not_private_at_delta_zero() -> None:
    spent = ledger_of((gaussian(4.0), 1)).spent(Secret.FEATURES, 0.0)
    assert not spent.is_private
    assert str(spent) == "not private at delta 0"


def test_releases_with_a_hopeless_epsilon_are_added_up() -> None:
    assert epsilon(1e-5, (flip(200.0), 2), (laplace(1 / 60), 1)) == pytest.approx(460)


def test_many_tiny_releases_cost_far_less_than_their_sum() -> None:
    assert epsilon(1e-5, (laplace(1000.0), 1_000_000)) < 5.5


def test_one_event_that_is_not_private_makes_the_whole_not_private() -> None:
    ledger = ledger_of((gaussian(100.0), 10), (CLEAR, 2), (laplace(100.0), 1))
    spent = ledger.spent(Secret.FEATURES, 1e-5)
    assert spent.epsilon == math.inf
    assert not spent.is_private
    assert spent.releases == {"gaussian": 10, "not-private": 2, "laplace": 1}
    assert str(spent) == "not private: embeddings sent in the clear"


def test_a_secret_is_charged_only_for_its_own_events() -> None:
    ledger = ledger_of((CLEAR, 1), (RandomisedResponse(1.0, 2).event(), 1))
    assert ledger.epsilon(0.0, protects=Secret.LABELS) == 1.0


def test_nothing_released_costs_nothing() -> None:
    spent = Ledger().spent(Secret.IDS, 1e-5)
    assert (spent.epsilon, spent.releases, str(spent)) == (0.0, {}, "nothing released")


def test_what_was_spent_is_told_in_one_line() -> None:
    spent = ledger_of((gaussian(4.0), 2), (laplace(5.0), 1)).spent(Secret.FEATURES, 1e-6)
    assert str(spent).endswith(" at delta 1e-06 per record (replace-one; 2 × gaussian, 1 × laplace)")


def test_rho_is_told_only_if_every_release_was_gaussian() -> None:
    assert ledger_of((gaussian(4.0), 8)).spent(Secret.FEATURES, 1e-5).rho == pytest.approx(8 / 4.0**2 / 2)
    assert ledger_of((gaussian(4.0), 8), (laplace(1.0), 1)).spent(Secret.FEATURES, 1e-5).rho is None
    assert Ledger().spent(Secret.FEATURES, 1e-5).rho is None


def test_mixed_adjacencies_are_counted_as_replace_one_with_doubled_sensitivity() -> None:
    mixed = ledger_of((gaussian(4.0, "add-remove"), 3), (laplace(5.0, "add-remove"), 1), (flip(0.5), 1))
    spent = mixed.spent(Secret.FEATURES, 1e-5)
    assert spent.adjacency == "replace-one"
    assert spent.doubled == 4
    doubled = [(GaussianMechanism(2.0, 4.0), 3), (LaplaceMechanism(2.0, 5.0), 1)]
    expected = epsilon(1e-5, *((m.event(Secret.FEATURES, "record"), n) for m, n in doubled), (flip(0.5), 1))
    assert spent.epsilon == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_single_adjacency_is_kept_as_it_was_declared(adjacency: Adjacency) -> None:
    spent = ledger_of((gaussian(4.0, adjacency), 1)).spent(Secret.FEATURES, 1e-5)
    assert (spent.adjacency, spent.doubled) == (adjacency, 0)
    assert spent.epsilon == pytest.approx(get_epsilon_gaussian(4.0, 1e-5), rel=1e-9)


def test_releases_for_several_units_are_composed_together_and_the_units_named() -> None:
    ledger = ledger_of((gaussian(4.0, unit="label"), 1), (gaussian(4.0, unit="record"), 1))
    spent = ledger.spent(Secret.FEATURES, 1e-5)
    assert spent.unit == "label and record"
    assert spent.epsilon == pytest.approx(epsilon(1e-5, (gaussian(4.0), 2)), rel=1e-12)


def test_one_unit_may_be_asked_for_alone() -> None:
    ledger = ledger_of((gaussian(4.0, unit="label"), 1), (gaussian(9.0, unit="record"), 1))
    asked = ledger.epsilon(1e-5, protects=Secret.FEATURES, unit="record")
    assert asked == pytest.approx(epsilon(1e-5, (gaussian(9.0), 1)), rel=1e-12)


def test_what_is_not_private_counts_for_every_unit() -> None:
    ledger = ledger_of((CLEAR, 1), (gaussian(4.0, unit="label"), 1))
    assert ledger.epsilon(1e-5, protects=Secret.FEATURES, unit="label") == math.inf


def test_events_without_an_identity_are_counted_each_time() -> None:
    ledger = Ledger()
    assert [ledger.spend(gaussian(4.0)), ledger.spend(CLEAR, 10), ledger.spend(gaussian(4.0))] == [True] * 3
    assert dict(ledger.events) == {gaussian(4.0): 2, CLEAR: 10}
    assert repr(ledger) == "Ledger(12 events of 2 kinds)"


def test_an_event_with_a_known_identity_is_counted_once() -> None:
    ledger = Ledger()
    assert [ledger.spend(CLEAR, 3, identity=name) for name in (b"", b"a", b"a", b"b", b"")] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert dict(ledger.events) == {CLEAR: 9}


def test_an_identity_pays_neither_for_another_kind_of_event_nor_for_more_of_them() -> None:
    ledger = Ledger()
    assert ledger.spend(gaussian(40.0), identity=b"a")
    assert ledger.spend(gaussian(4.0), identity=b"a")
    assert ledger.spend(gaussian(40.0), 10, identity=b"a")
    assert dict(ledger.events) == {gaussian(40.0): 11, gaussian(4.0): 1}


def test_a_known_identity_is_free_also_when_the_budget_is_spent() -> None:
    ledger = Ledger(budget={Secret.FEATURES: (1.0, 0.0)})
    ledger.spend(laplace(1.0), identity=b"a")
    with pytest.raises(BudgetSpent):
        ledger.spend(laplace(1.0), identity=b"b")
    assert not ledger.spend(laplace(1.0), identity=b"a")


def test_a_refused_event_leaves_its_identity_unknown() -> None:
    ledger = Ledger(budget={Secret.FEATURES: (1.0, 0.0)})
    for _ in range(2):
        with pytest.raises(BudgetSpent):
            ledger.spend(laplace(0.5), identity=b"a")
    assert not ledger.events


def test_the_events_of_a_ledger_cannot_be_changed_from_outside() -> None:
    ledger = ledger_of((CLEAR, 1))
    with pytest.raises(TypeError):
        ledger.events[CLEAR] = 0  # type: ignore[index]


def test_an_event_that_exceeds_the_budget_is_refused_and_not_recorded() -> None:
    mechanism = GaussianMechanism.calibrated(1.0, epsilon=1.0, delta=1e-5)
    ledger = Ledger(budget={Secret.LABELS: (1.0, 1e-5)})
    ledger.spend(mechanism.event(Secret.LABELS, "label"))
    with pytest.raises(BudgetSpent) as caught:
        ledger.spend(mechanism.event(Secret.LABELS, "label"))
    twice = get_epsilon_gaussian(mechanism.sigma / math.sqrt(2), 1e-5)
    assert str(caught.value) == (
        "Expected to spend at most epsilon 1 at delta 1e-05 on labels, but the next gaussian release would bring it to "
        f"{twice:g}; nothing was released. Release less often, add more noise, or agree on a larger budget."
    )
    assert sum(ledger.events.values()) == 1


def test_a_budget_also_refuses_several_events_at_once() -> None:
    ledger = Ledger(budget={Secret.FEATURES: (1.0, 0.0)})
    with pytest.raises(BudgetSpent):
        ledger.spend(laplace(4.0), 5)
    assert ledger.spend(laplace(4.0), 4)
    assert dict(ledger.events) == {laplace(4.0): 4}


def test_a_budget_counts_what_composition_saves() -> None:
    ledger = Ledger(budget={Secret.FEATURES: (2.0, 1e-5)})
    ledger.spend(laplace(100.0), 2000)
    assert sum(ledger.events.values()) / 100 > 2


def test_what_is_not_private_exceeds_every_budget() -> None:
    ledger = Ledger(budget={Secret.FEATURES: (1e6, 0.1)})
    with pytest.raises(BudgetSpent, match="the next not-private release would bring it to inf"):
        ledger.spend(CLEAR)


def test_a_secret_without_a_budget_may_be_spent_freely() -> None:
    ledger = Ledger(budget={Secret.LABELS: (0.1, 1e-5)})
    ledger.spend(CLEAR)
    assert dict(ledger.events) == {CLEAR: 1}


def test_a_restored_ledger_says_what_it_said() -> None:
    ledger = ledger_of((gaussian(4.1, "add-remove"), 3), (laplace(5.0, unit="label"), 2), (flip(0.3, 7), 1), (CLEAR, 9))
    copy = Ledger.from_json(ledger.to_json())
    assert copy.events == ledger.events
    assert list(copy.events) == list(ledger.events)


def test_a_ledger_survives_json_with_sorted_keys() -> None:
    ledger = ledger_of((gaussian(4.1), 3), (laplace(5.0), 2), (flip(0.3, 7), 1))
    copy = Ledger.from_json(json.dumps(json.loads(ledger.to_json()), sort_keys=True))
    assert copy.events == ledger.events


def test_who_released_survives_json_and_may_be_missing_from_it() -> None:
    ledger = ledger_of((replace(laplace(2.0), by="NoisyMeans"), 1), (laplace(2.0), 1))
    assert Ledger.from_json(ledger.to_json()).events == ledger.events
    entries = json.loads(ledger.to_json())["events"]
    assert [entry.pop("by") for entry in entries] == ["NoisyMeans", ""]
    assert Ledger.from_json(json.dumps({"events": entries})).events == {laplace(2.0): 2}


def test_a_ledger_from_json_is_held_to_its_budget() -> None:
    text = ledger_of((laplace(2.0), 1)).to_json()
    ledger = Ledger.from_json(text, budget={Secret.FEATURES: (1.0, 0.0)})
    ledger.spend(laplace(2.0))
    with pytest.raises(BudgetSpent):
        ledger.spend(laplace(2.0))


def test_entries_of_one_kind_in_json_are_added_up() -> None:
    entries = json.loads(ledger_of((CLEAR, 2)).to_json())["events"]
    assert dict(Ledger.from_json(json.dumps({"events": entries * 3})).events) == {CLEAR: 6}


def unreadable(reason: str) -> str:
    return f"Expected the events of a privacy ledger but could not read them ({reason}). Restore an undamaged copy."


DAMAGES = [
    ({"count": -5}, "ValueError: a count of -5"),
    ({"count": 1.5}, "ValueError: a count of 1.5"),
    ({"protects": "weather"}, "ValueError: 'weather' is not a valid Secret"),
    ({"parameters": None}, "AttributeError: 'NoneType' object has no attribute 'items'"),
    (
        {"mechanism": "hope"},
        "PlanError: Expected a mechanism among gaussian, discrete-gaussian, laplace, randomised-response, not-private; "
        "got 'hope'. Name one of these, or record the release with Event.not_private.",
    ),
]


@pytest.mark.parametrize(("change", "reason"), DAMAGES)
def test_json_with_a_damaged_entry_is_refused(change: dict[str, object], reason: str) -> None:
    entry = json.loads(ledger_of((gaussian(4.0), 1)).to_json())["events"][0]
    with pytest.raises(StorageError) as caught:
        Ledger.from_json(json.dumps({"events": [entry | change]}))
    assert str(caught.value) == unreadable(reason)


@pytest.mark.parametrize("text", ["[]", "{}", '{"events": 3}', '{"events": [{}]}', "null"])
def test_json_of_another_origin_is_refused(text: str) -> None:
    with pytest.raises(StorageError, match="Expected the events of a privacy ledger but could not read them"):
        Ledger.from_json(text)


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(StorageError) as caught:
        Ledger.from_json("")
    assert str(caught.value) == unreadable("JSONDecodeError: Expecting value: line 1 column 1 (char 0)")


RELEASES = [(gaussian(4.1, "add-remove"), 3, b"a"), (flip(0.3, 7), 1, b""), (CLEAR, 9, None), (flip(0.3, 7), 1, b"b")]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A ledger's file with four entries of three kinds."""
    path = tmp_path / "bank" / "ledger"
    ledger = Ledger(path=path)
    for event, count, identity in RELEASES:
        ledger.spend(event, count, identity=identity)
    return path


def test_a_ledger_survives_a_restart(written: Path) -> None:
    ledger = Ledger(path=written)
    assert list(ledger.events.items()) == [(gaussian(4.1, "add-remove"), 3), (flip(0.3, 7), 2), (CLEAR, 9)]
    assert ledger.to_json() == Ledger(path=written).to_json()


def test_a_restart_knows_every_identity_and_no_other(written: Path) -> None:
    ledger = Ledger(path=written)
    assert [ledger.spend(event, count, identity=identity) for event, count, identity in RELEASES] == [
        False,
        False,
        True,
        False,
    ]
    assert ledger.spend(flip(0.3, 7), identity=b"c")


def test_an_event_is_in_the_file_once_it_is_spent(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path=path)
    for n in range(1, 4):
        ledger.spend(CLEAR)
        assert dict(Ledger(path=path).events) == {CLEAR: n}


def test_a_known_or_refused_event_is_not_written(written: Path) -> None:
    before = written.read_bytes()
    ledger = Ledger({Secret.FEATURES: (0.1, 0.0)}, path=written)
    ledger.spend(flip(0.3, 7), identity=b"b")
    with pytest.raises(BudgetSpent):
        ledger.spend(flip(0.3, 7), identity=b"c")
    assert written.read_bytes() == before


def test_the_budget_is_counted_across_restarts(tmp_path: Path) -> None:
    path, budget = tmp_path / "ledger", {Secret.FEATURES: (1.0, 0.0)}
    for _ in range(2):
        Ledger(budget, path=path).spend(laplace(2.0))
    with pytest.raises(BudgetSpent, match=r"at most epsilon 1 at delta 0 on features, .* would bring it to 1\.5;"):
        Ledger(budget, path=path).spend(laplace(2.0))
    assert dict(Ledger(path=path).events) == {laplace(2.0): 2}


def test_wherever_writing_broke_off_each_release_is_charged_once(written: Path) -> None:
    whole, identified = written.read_bytes(), [release for release in RELEASES if release[2] is not None]
    for length in range(0, len(whole) + 1, 7):
        written.write_bytes(whole[:length])
        finished = whole[:length].count(b"\n")
        ledger = Ledger(path=written)
        assert sum(ledger.events.values()) == sum(count for _, count, _ in RELEASES[:finished])
        assert written.read_bytes() == b"".join(whole.splitlines(keepends=True)[:finished])
        clear = ledger.events.get(CLEAR, 0)
        for event, count, identity in identified:
            ledger.spend(event, count, identity=identity)
        expected = {gaussian(4.1, "add-remove"): 3, flip(0.3, 7): 2} | ({CLEAR: clear} if clear else {})
        assert Ledger(path=written).events == ledger.events == expected


def test_an_unfinished_line_need_not_be_text(written: Path) -> None:
    before = written.read_bytes()
    written.write_bytes(before + b"\xff\x00")
    assert dict(Ledger(path=written).events)[CLEAR] == 9
    assert written.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        *DAMAGES,
        ({"identity": 3}, "TypeError: fromhex() argument must be str, not int"),
        ({"identity": "x"}, "ValueError: non-hexadecimal number found in fromhex() arg at position 0"),
    ],
)
def test_a_damaged_line_in_the_file_is_refused_and_the_file_kept(
    written: Path, change: dict[str, object], reason: str
) -> None:
    first, *rest = written.read_text().splitlines(keepends=True)
    damaged = json.dumps(json.loads(first) | change) + "\n" + "".join(rest) + "unfinished"
    written.write_text(damaged)
    with pytest.raises(StorageError) as caught:
        Ledger(path=written)
    assert str(caught.value) == unreadable(reason)
    assert written.read_text() == damaged


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        (b"{}", "KeyError: 'identity'"),
        (b"\xff", "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
    ids=["empty", "of another origin", "not text"],
)
def test_a_line_that_is_no_event_is_refused(written: Path, line: bytes, reason: str) -> None:
    written.write_bytes(line + b"\n" + written.read_bytes())
    with pytest.raises(StorageError) as caught:
        Ledger(path=written)
    assert str(caught.value) == unreadable(reason)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        Ledger(path=tmp_path)
    assert str(caught.value) == (f"Could not read {tmp_path.name}: Is a directory. Check the path and who may read it.")


def test_an_event_that_cannot_be_written_is_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "bank").write_text("a file where the folder should be")
    ledger = Ledger(path=tmp_path / "bank" / "ledger")
    for _ in range(2):
        with pytest.raises(StorageError) as caught:
            ledger.spend(CLEAR, identity=b"a")
        assert str(caught.value) == (
            "Could not write ledger: File exists. "
            "Free some space or choose a folder that can be written, then run again."
        )
    assert not ledger.events


def test_an_event_that_was_written_only_in_part_is_not_recorded(written: Path) -> None:
    before, ledger = written.read_bytes(), Ledger(path=written)
    events = dict(ledger.events)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        with pytest.raises(StorageError, match="Could not write ledger: File too large"):
            ledger.spend(CLEAR, identity=b"c")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert dict(ledger.events) == events
    restarted = Ledger(path=written)
    assert dict(restarted.events) == events
    assert restarted.spend(CLEAR, identity=b"c")
    assert dict(Ledger(path=written).events) == {**events, CLEAR: 10}


def test_the_file_of_this_version_can_be_read_by_every_later_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text(
        '{"protects": "features", "unit": "record", "mechanism": "gaussian", "parameters": {"sensitivity": 1.0, '
        '"sigma": 4.0}, "adjacency": "replace-one", "note": "", "count": 1, "identity": "0aff"}\n'
        '{"protects": "features", "unit": "record", "mechanism": "not-private", "parameters": {}, '
        '"adjacency": "replace-one", "note": "embeddings sent in the clear", "count": 2, "identity": null}\n'
    )
    ledger = Ledger(path=path)
    assert dict(ledger.events) == {gaussian(4.0): 1, CLEAR: 2}
    assert not ledger.spend(gaussian(4.0), identity=b"\x0a\xff")


def test_parties_ledgers_compose_per_secret() -> None:
    bank = ledger_of((RandomisedResponse(1.0, 2).event(), 1), (gaussian(4.0), 1))
    shop = ledger_of((gaussian(4.0), 2))
    spent = compose([bank, shop], delta=1e-5)
    assert list(spent) == [Secret.LABELS, Secret.FEATURES]
    assert spent[Secret.FEATURES] == Spent(
        protects=Secret.FEATURES,
        epsilon=epsilon(1e-5, (gaussian(4.0), 3)),
        delta=1e-5,
        unit="record",
        adjacency="replace-one",
        releases={"gaussian": 3},
        rho=3 / 4.0**2 / 2,
    )
    assert dict(bank.events) == {RandomisedResponse(1.0, 2).event(): 1, gaussian(4.0): 1}


def test_one_party_that_is_not_private_makes_the_secret_not_private() -> None:
    assert not compose([ledger_of((gaussian(4.0), 1)), ledger_of((CLEAR, 1))], delta=1e-5)[Secret.FEATURES].is_private


def test_ledgers_without_events_compose_to_nothing() -> None:
    assert compose([Ledger(), Ledger()], delta=1e-5) == {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Event(Secret.LABELS, "label", "gaussian", (("sigma", 1.0),)),
            "Expected a gaussian event to have positive parameters (sensitivity, sigma), got {'sigma': 1.0}. "
            "Let the mechanism make its own event.",
        ),
        (
            lambda: Event(Secret.LABELS, "label", "gaussian", (("sensitivity", 1.0), ("sigma", 0.0))),
            "Expected a gaussian event to have positive parameters (sensitivity, sigma), "
            "got {'sensitivity': 1.0, 'sigma': 0.0}. Let the mechanism make its own event.",
        ),
        (
            lambda: Event(Secret.LABELS, "label", "randomised-response", (("epsilon", 1.0), ("n_classes", 2.5))),
            "Expected a randomised-response event to have positive parameters (epsilon, n_classes), "
            "got {'epsilon': 1.0, 'n_classes': 2.5}. Let the mechanism make its own event.",
        ),
        (
            lambda: Event(Secret.LABELS, "label", "not-private", (("epsilon", 1.0),)),
            "Expected a not-private event to have positive parameters (none), got {'epsilon': 1.0}. "
            "Let the mechanism make its own event.",
        ),
        (
            lambda: gaussian(1.0, "near"),  # type: ignore[arg-type]
            "Expected the adjacency 'replace-one' or 'add-remove', got 'near'. "
            "Name the one that the sensitivity was computed for.",
        ),
        (
            lambda: Event(
                Secret.LABELS, "label", "randomised-response", (("epsilon", 1.0), ("n_classes", 2)), "add-remove"
            ),
            "Expected randomised response to be counted as 'replace-one', got 'add-remove': a randomised label shows "
            "that its row exists. Use 'replace-one'.",
        ),
        (
            lambda: Ledger(budget={Secret.LABELS: (1.0, 1.5)}),
            "Expected the budget for labels to have epsilon >= 0 and 0 <= delta < 1, got epsilon 1 and delta 1.5. "
            "Correct the budget.",
        ),
        (
            lambda: Ledger().spend(CLEAR, 0),
            "Expected to spend an event at least once, got a count of 0. Give a count from 1.",
        ),
        (
            lambda: Ledger().spent(Secret.LABELS, 1.0),
            "Expected a delta of at least 0 and below 1, got 1. Give one far below 1 / rows.",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert str(caught.value) == message


def test_where_others_know_the_noise_every_release_is_not_private(tmp_path: Path) -> None:
    flip = Event(Secret.LABELS, "label", "randomised-response", (("epsilon", 1.0), ("n_classes", 2)), by="flip")
    noise = Event(Secret.FEATURES, "record", "gaussian", (("sensitivity", 1.0), ("sigma", 4.0)), "add-remove")
    known = Ledger(path=tmp_path / "ledger", noise_is_known=True)
    assert (known.spend(flip, identity=b"a"), known.spend(flip, identity=b"a"), known.spend(noise)) == (
        True,
        False,
        True,
    )
    for ledger in (known, Ledger(path=tmp_path / "ledger")):
        for secret, mechanism in ((Secret.LABELS, "randomised-response"), (Secret.FEATURES, "gaussian")):
            spent = ledger.spent(secret, 1e-5)
            assert not spent.is_private
            assert str(spent) == (
                f"not private: {mechanism} noise from the plan's seed, which all who know the plan can subtract"
            )
        assert {event.by for event in ledger.events} == {"flip", ""}


def test_where_others_know_the_noise_no_budget_suffices() -> None:
    ledger = Ledger({Secret.LABELS: (100.0, 1e-5)}, noise_is_known=True)
    with pytest.raises(BudgetSpent):
        ledger.spend(Event(Secret.LABELS, "label", "randomised-response", (("epsilon", 1.0), ("n_classes", 2))))
