import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from colonnade import Roles, simulate
from colonnade.curves import BSplines
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.errors import BudgetSpent, StorageError
from colonnade.models.functional.estimator import FunctionalBoost
from colonnade.privacy.history import History, Records, history_path
from colonnade.privacy.ledger import Event, Ledger, spent_over_runs
from colonnade.secret import Secret
from colonnade.tables.table import Table

FLIP = Event(Secret.LABELS, "label", "randomised-response", (("epsilon", 1.0), ("n_classes", 2)))
BUDGET = {Secret.LABELS: (3.0, 0.0)}
TABLE = Table.of({"id": [f"person {i}" for i in range(40)], "x": list(range(40))})


def ledger_of(folder: Path, table: Table = TABLE, budget=BUDGET, run: str = "") -> Ledger:
    return Ledger(budget, history=History(history_path(folder, "bank"), Records.of(table), run))


def spend_all(folder: Path) -> int:
    """Release again and again, each time as another run, until the budget refuses."""
    released = 0
    try:
        while True:
            ledger_of(folder, budget={Secret.LABELS: (30.0, 0.0)}).spend(FLIP)
            released += 1
    except BudgetSpent:
        return released


def test_a_budget_is_for_all_runs_on_the_same_records_together(tmp_path):
    for run in range(3):
        ledger = ledger_of(tmp_path)
        ledger.spend(FLIP, identity=bytes([run]))
        assert ledger.epsilon(0.0, protects=Secret.LABELS) == 1
    refused = ledger_of(tmp_path)
    with pytest.raises(BudgetSpent, match=r"epsilon 3 at delta 0 on labels over all runs on these .* to 4"):
        refused.spend(FLIP, identity=b"next")
    assert refused.events == {}
    assert refused.spent_over_runs(Secret.LABELS, 0.0).epsilon == 3


def test_the_same_release_is_charged_once_in_whichever_run_it_is_repeated(tmp_path):
    for _ in range(10):
        assert ledger_of(tmp_path).spend(FLIP, identity=b"same")
    assert ledger_of(tmp_path).spent_over_runs(Secret.LABELS, 0.0).epsilon == 1


def test_a_release_of_an_earlier_run_is_charged_only_if_the_history_lacks_it(tmp_path):
    for expected in (1, 1):
        ledger = ledger_of(tmp_path)
        ledger.spend(FLIP, identity=b"carried over", is_earlier=True)
        assert ledger.spent_over_runs(Secret.LABELS, 0.0).epsilon == expected
    ledger = ledger_of(tmp_path)
    ledger.spend(FLIP, identity=b"another name", is_earlier=True)
    assert ledger.spent_over_runs(Secret.LABELS, 0.0).epsilon == 1


@pytest.mark.parametrize(
    ("other", "together"),
    [
        (TABLE.take(range(30)), True),
        (TABLE.take(range(39, -1, -1)), True),
        (Table.of({"id": TABLE.ids.to_pylist(), "y": [0.5] * 40}), True),
        (Table.of({"id": [f"somebody {i}" for i in range(40)], "x": list(range(40))}), False),
    ],
    ids=["fewer rows", "another order", "another column", "other people"],
)
def test_tables_with_common_people_count_together_and_others_apart(tmp_path, other, together):
    ledger_of(tmp_path).spend(FLIP, count=3)
    ledger = ledger_of(tmp_path, other)
    if together:
        with pytest.raises(BudgetSpent):
            ledger.spend(FLIP)
    else:
        ledger.spend(FLIP)


def test_a_random_tenth_of_a_large_table_is_recognised_as_the_same_people():
    rng = np.random.default_rng(3)
    table = Table.of({"id": rng.permutation(20_000), "x": np.zeros(20_000)})
    tenth = table.take(rng.choice(20_000, 2000, replace=False))
    assert Records.of(table).overlap(Records.of(tenth))


def test_two_processes_at_once_cannot_exceed_a_budget(tmp_path):
    command = [sys.executable, __file__, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    assert sum(int(process.communicate(timeout=120)[0]) for process in processes) == 30


def test_a_run_sees_what_another_run_releases_in_the_meantime(tmp_path):
    one, two = ledger_of(tmp_path), ledger_of(tmp_path)
    one.spend(FLIP)
    two.spend(FLIP)
    one.spend(FLIP)
    with pytest.raises(BudgetSpent):
        two.spend(FLIP)


@pytest.mark.parametrize("line", ["nothing", "[]", '{"table": 3}', '{"no": "table"}'])
def test_a_damaged_history_is_not_taken_for_an_empty_one(tmp_path, line):
    ledger_of(tmp_path).spend(FLIP)
    with history_path(tmp_path, "bank").open("a") as log:
        log.write(line + "\n")
    if line == '{"table": 3}':
        # It is about another table, of which nothing counts here.
        ledger_of(tmp_path).spend(FLIP)
        return
    with pytest.raises(StorageError, match=r"one table or one privacy event per line, but is damaged. Restore it; do"):
        ledger_of(tmp_path).spend(FLIP)


def test_what_was_spent_is_shown_table_by_table(tmp_path):
    ledger_of(tmp_path, run="january").spend(FLIP)
    ledger_of(tmp_path, run="february").spend(FLIP)
    ledger_of(tmp_path, Table.of({"id": ["someone"], "x": [1]}), run="march").spend(FLIP)
    first, second = spent_over_runs(history_path(tmp_path, "bank"), 0.0)
    assert (first.n_runs, first.spent[Secret.LABELS].epsilon) == (2, 2)
    assert (second.n_runs, second.spent[Secret.LABELS].epsilon) == (1, 1)


def test_thirty_runs_that_each_keep_to_a_budget_do_not_get_past_it_together(tmp_path):
    """Each run releases the same curves with noise of its own; the mean of thirty would have next to none."""
    data = FunctionalSetting(n=60, p=1, active=(1,), basis=BSplines((0, 1), 6)).draw_one(1)
    tables = data.tables(1)
    label, worker = tables
    model = FunctionalBoost(
        protection={"clip": {"x01": 3.0}, "epsilon": 50}, stopping={"max_steps": 10}, guard=False, correction=1
    )
    roles, outcomes = Roles(label=label, features=(worker,)), Counter()
    for seed in range(30):
        budgets = {worker: {Secret.FEATURES: (50.0, 1e-5)}}
        try:
            simulate(model.fit, tables, roles=roles, seed=seed, budgets=budgets, histories=tmp_path)
            outcomes["released"] += 1
        except BudgetSpent:
            outcomes["refused"] += 1
    assert outcomes == {"released": 1, "refused": 29}
    (spent,) = spent_over_runs(history_path(tmp_path, worker), 1e-5)
    assert spent.spent[Secret.FEATURES].epsilon == pytest.approx(50)


if __name__ == "__main__":
    print(spend_all(Path(sys.argv[1])))
