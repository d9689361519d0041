import json
import math

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


def test_each_event_gets_its_number_on_the_ledger() -> None:
    ledger = Ledger()
    assert [ledger.spend(gaussian(4.0)), ledger.spend(CLEAR, 10), ledger.spend(gaussian(4.0))] == [0, 1, 11]
    assert dict(ledger.events) == {gaussian(4.0): 2, CLEAR: 10}
    assert repr(ledger) == "Ledger(12 events of 2 kinds)"


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
    assert ledger.spend(laplace(4.0), 4) == 0


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
    copy = Ledger.from_json(json.dumps(ledger.state(), sort_keys=True))
    assert copy.events == ledger.events


def test_restoring_forgets_what_was_spent_since_and_keeps_the_budget() -> None:
    ledger = Ledger(budget={Secret.FEATURES: (1.0, 0.0)})
    ledger.spend(laplace(2.0))
    state = ledger.state()
    ledger.spend(laplace(2.0))
    ledger.restore(state)
    assert dict(ledger.events) == {laplace(2.0): 1}
    ledger.spend(laplace(2.0))
    with pytest.raises(BudgetSpent):
        ledger.spend(laplace(2.0))


def test_a_state_is_not_changed_by_later_spending() -> None:
    ledger = ledger_of((CLEAR, 1))
    state = ledger.state()
    ledger.spend(CLEAR)
    assert state["events"][0]["count"] == 1


def test_entries_of_one_kind_in_a_state_are_added_up() -> None:
    state = ledger_of((CLEAR, 2)).state()
    ledger = Ledger()
    ledger.restore({"events": state["events"] * 3})
    assert dict(ledger.events) == {CLEAR: 6}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"count": -5}, "ValueError: a count of -5"),
        ({"count": 1.5}, "ValueError: a count of 1.5"),
        ({"protects": "weather"}, "ValueError: 'weather' is not a valid Secret"),
        ({"parameters": None}, "AttributeError: 'NoneType' object has no attribute 'items'"),
        (
            {"mechanism": "hope"},
            "PlanError: Expected a mechanism among gaussian, laplace, randomised-response, not-private; got 'hope'. "
            "Name one of these, or record the release with Event.not_private.",
        ),
    ],
)
def test_a_state_of_another_origin_is_refused_and_changes_nothing(change: dict[str, object], reason: str) -> None:
    ledger = ledger_of((gaussian(4.0), 1))
    state = {"events": [ledger.state()["events"][0] | change]}
    with pytest.raises(StorageError) as caught:
        ledger.restore(state)
    assert str(caught.value) == (
        f"Expected the state of a privacy ledger but could not read it ({reason}). "
        "Restore a checkpoint that this version wrote."
    )
    assert dict(ledger.events) == {gaussian(4.0): 1}


@pytest.mark.parametrize("text", ["[]", "{}", '{"events": 3}', '{"events": [{}]}', "null"])
def test_json_of_another_origin_is_refused(text: str) -> None:
    with pytest.raises(StorageError, match="Expected the state of a privacy ledger but could not read it"):
        Ledger.from_json(text)


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(StorageError) as caught:
        Ledger.from_json("{")
    assert str(caught.value).startswith("Expected the JSON of a privacy ledger but could not parse it (")
    assert str(caught.value).endswith("). Restore an undamaged copy.")


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
