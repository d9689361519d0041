"""What a peer was answered is counted over runs and restarts, and refused past the cap."""

from dataclasses import replace

import pytest

from colonnade.crypto.profiles import ARBITER, HISTOGRAM, Budget
from colonnade.errors import BudgetSpent, StorageError

# A cap of 4,096 values is taken in portions of 4.
SMALL = replace(HISTOGRAM, most_values=4096)


def test_a_spent_budget_refuses_and_counts_nothing():
    budget = Budget(HISTOGRAM, peer="bank")
    budget.spend(HISTOGRAM.most_values - 10)
    with pytest.raises(BudgetSpent, match=r"bank may be answered 4194304 .* 4194294 were answered and 11 more"):
        budget.spend(11)
    budget.spend(10)
    assert budget.spent == HISTOGRAM.most_values


def test_a_cap_may_be_another_than_that_of_the_profile():
    budget = Budget(HISTOGRAM, peer="bank", most=7)
    budget.spend(7)
    with pytest.raises(BudgetSpent, match=r"bank may be answered 7 encrypted values .* 7 were answered and 1 more"):
        budget.spend(1)


def test_a_budget_outlives_the_run_and_loses_no_more_than_a_portion(tmp_path):
    log = tmp_path / "answers"
    budget = Budget(SMALL, peer="bank", log=log)
    for values in (3, 1, 1000, 2):
        budget.spend(values)
    assert budget.spent == 1006
    again = Budget(SMALL, peer="bank", log=log)
    assert 1006 <= again.spent < 1006 + 4
    again.spend(4096 - again.spent)
    with pytest.raises(BudgetSpent, match=r"bank may be answered 4096 .* but 4096 were answered and 1 more"):
        Budget(SMALL, peer="bank", log=log).spend(1)


def test_portions_are_written_before_they_are_answered_and_seldom(tmp_path):
    log = tmp_path / "answers"
    budget = Budget(SMALL, peer="bank", log=log)
    for _ in range(8):
        budget.spend(1)
    assert len(log.read_text().splitlines()) == 2


@pytest.mark.parametrize("other", [{"peer": "shop"}, {"data": "other rows"}, {"profile": ARBITER}])
def test_peers_data_sets_and_profiles_are_counted_apart(tmp_path, other):
    log = tmp_path / "answers"
    Budget(SMALL, peer="bank", data="rows", log=log).spend(4096)
    assert Budget(**{"profile": SMALL, "peer": "bank", "data": "rows", "log": log, **other}).spent == 0


def test_two_runs_at_once_cannot_exceed_the_cap_together(tmp_path):
    one, two = (Budget(SMALL, peer="bank", log=tmp_path / "answers") for _ in range(2))
    one.spend(4000)
    with pytest.raises(BudgetSpent, match=r"4000 were answered and 97 more"):
        two.spend(97)


def test_a_line_that_a_crash_cut_off_is_dropped(tmp_path):
    log = tmp_path / "answers"
    Budget(SMALL, peer="bank", log=log).spend(8)
    whole = log.read_text()
    log.write_text(whole + '{"profile": "hin')
    assert Budget(SMALL, peer="bank", log=log).spent == 8
    assert log.read_text() == whole


@pytest.mark.parametrize("line", ["no portion", "[]", '{"profile": "hinted-8192-200", "peer": "bank", "data": ""}'])
def test_a_damaged_log_is_refused(tmp_path, line):
    log = tmp_path / "answers"
    log.write_text(line + "\n")
    with pytest.raises(
        StorageError, match=r"one portion of answers per line, but is damaged. Restore it; do not delete"
    ):
        Budget(SMALL, peer="bank", log=log).spend(1)
