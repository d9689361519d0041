import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from colonnade.errors import BudgetSpent, DataError, Deadlock, PlanError, PrivacyError, StorageError
from colonnade.privacy.mechanisms import LaplaceMechanism
from colonnade.privacy.randomness import Randomness
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.party import Defence
from colonnade.runtime.protocol import private_randomness
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array, Message

BOTH = Roles(label="bank", features=("shop",))


@dataclass(frozen=True)
class Number(Message, kind="test/number"):
    value: Float64Array


def table(n=4, start=0, **columns):
    return Table.of({"id": np.arange(start, start + n), "x": np.arange(n) * 1.0, **columns})


TABLES = {"bank": table(y=np.array([0, 1, 0, 1])).select(["x"]), "shop": table()}


def draw(party):
    """Everybody draws from libraries' generators and from its own, and tells the others."""
    drawn = []
    for _ in range(3):
        mine = np.array(
            [np.random.rand(), *party.random.generator("x").random(1), *party.shared.generator("x").random(1)]
        )
        for line in party.peers.values():
            line.send(Number(mine))
        drawn.append(mine)
        for line in party.peers.values():
            line.receive(Number)
    return np.array(drawn)


def test_two_runs_of_one_seed_are_the_same_to_the_byte():
    runs = [simulate(draw, TABLES, roles=BOTH, seed=3) for _ in range(3)]
    assert len({run.transcripts["shop"].digests() for run in runs}) == 1
    assert (
        simulate(draw, TABLES, roles=BOTH, seed=4).transcripts["shop"].digests()
        != runs[0].transcripts["shop"].digests()
    )


def test_each_party_draws_its_own_numbers_and_all_share_the_public_ones():
    results = simulate(draw, TABLES, roles=BOTH, seed=0).results
    bank, shop = results["bank"], results["shop"]
    assert not np.isclose(bank[:, :2], shop[:, :2]).any()
    np.testing.assert_array_equal(bank[:, 2], shop[:, 2])


def test_nothing_can_be_hidden_under_what_all_parties_share():
    with pytest.raises(PrivacyError, match=r"Draw from party\.random in place of party\.shared"):
        simulate(lambda party: party.shared.child("mask").uniform_bits(4), TABLES, roles=BOTH)


def test_what_a_party_draws_from_libraries_does_not_depend_on_the_others():
    three = {**TABLES, "telco": table()}
    two = simulate(draw, TABLES, roles=BOTH, seed=0).results["bank"]
    more = simulate(draw, three, roles=Roles(label="bank", features=("shop", "telco")), seed=0).results["bank"]
    np.testing.assert_array_equal(two[:, :2], more[:, :2])


def test_a_simulation_leaves_the_callers_generators_alone():
    np.random.seed(1)
    expected = np.random.randn(3)
    np.random.seed(1)
    first = np.random.randn()
    simulate(draw, TABLES, roles=BOTH, seed=0)
    assert [first, np.random.randn(), np.random.randn()] == expected.tolist()


def test_what_pytorch_is_told_by_one_party_does_not_reach_the_others():
    seen = {}

    def side(party):
        if party.name == "bank":
            with torch.no_grad(), torch.autocast("cpu"):
                party.peers["shop"].receive(Number)
                seen["bank"] = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
        else:
            seen["shop"] = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
            party.peers["bank"].send(Number(np.zeros(1)))

    with torch.no_grad():
        simulate(side, TABLES, roles=BOTH)
        assert not torch.is_grad_enabled()
    assert seen == {"bank": (False, True), "shop": (True, False)}


def test_again_changes_only_what_is_asked_for():
    labelled = {"bank": Table.of({"id": range(4), "y": [0, 1, 0, 1]}, labels="y"), "shop": table()}

    def labels_of(party):
        return None if party.own_table.labels is None else party.own_table.labels.to_pylist()

    run = simulate(labels_of, labelled, roles=BOTH)
    assert run.again(labels=np.array([1, 1, 0, 0])).results["bank"] == [1, 1, 0, 0]
    assert run.again().results["bank"] == [0, 1, 0, 1]
    assert run.again(seed=5).plan.seed != run.plan.seed
    shorter = {"bank": labelled["bank"].take([0, 1]), "shop": labelled["shop"].take([0, 1])}
    assert run.again(tables=shorter).results["bank"] == [0, 1]


def test_a_dishonest_party_is_given_the_honest_protocol():
    def cheat(party, honest):
        return "cheated", honest(party)

    run = simulate(lambda party: party.name, TABLES, roles=BOTH, instead={"shop": cheat})
    assert run.results == {"bank": "bank", "shop": ("cheated", "shop")}
    assert run.again(instead={}).results["shop"] == "shop"


def test_a_defence_that_is_listed_twice_is_held_as_two():
    once = Defence()
    run = simulate(lambda party: party.defences, TABLES, roles=BOTH, defences={"bank": [once, once]})
    first, second = run.results["bank"]
    assert first is not second


def test_a_party_holds_a_copy_of_its_defences():
    held = Defence()
    run = simulate(lambda party: party.defences, TABLES, roles=BOTH, defences={"shop": [held]})
    assert len(run.results["shop"]) == 1
    assert run.results["shop"][0] is not held
    assert run.results["bank"] == ()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"tables": {"bank": TABLES["bank"]}}, PlanError, "The roles name shop, but tables were given for bank only"),
        ({"tables": {**TABLES, "telco": table()}}, PlanError, "There is a table for telco, who has no role"),
        ({"defences": {"telco": [Defence()]}}, PlanError, "There is a defence for telco, who has no role"),
        ({"protocol": {"bank": draw}}, PlanError, "shop has a role but no protocol to run"),
        (
            {"tables": {**TABLES, "shop": table(0)}},
            DataError,
            "shop's table must have at least one row, but it is empty",
        ),
        ({"tables": {**TABLES, "shop": table(3)}}, DataError, r"of bank \(4 rows\) and shop \(3 rows\) differ"),
        ({"tables": {**TABLES, "shop": table(start=1)}}, DataError, "same rows in the same order, but those of bank"),
    ],
)
def test_parties_that_do_not_fit_together_are_refused_before_anything_runs(changes, error, words):
    with pytest.raises(error, match=words):
        simulate(**{"protocol": draw, "tables": TABLES, "roles": BOTH, **changes})


def test_a_party_that_raises_fails_the_run_with_its_own_error():
    def fails_at_shop(party):
        if party.name == "shop":
            raise DataError("shop lost its rows.")
        party.peers["shop"].receive(Number)

    with pytest.raises(DataError, match="shop lost its rows") as caught:
        simulate(fails_at_shop, TABLES, roles=BOTH)
    assert caught.value.__notes__ == ["This happened at shop."]


def test_parties_that_wait_for_each_other_are_told_so():
    def waits(party):
        next(iter(party.peers.values())).receive(Number)

    with pytest.raises(Deadlock, match="bank waits for shop, shop waits for bank"):
        simulate(waits, TABLES, roles=BOTH)


def test_lines_follow_the_roles():
    roles = Roles(label="bank", features=("shop", "telco"), arbiter="notary", server="host")
    tables = {**TABLES, "telco": table()}

    def who(party):
        others = tuple(line.peer for line in party.feature_parties)
        return others, party.holds_labels, party.table is None, party.arbiter.peer if party.name != "notary" else None

    results = simulate(who, tables, roles=roles).results
    assert results["bank"] == (("shop", "telco"), True, False, "notary")
    assert results["shop"] == (("telco",), False, False, "notary")
    assert results["notary"] == (("shop", "telco"), False, True, None)


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("server", "bank asks for the line to the server, but this run has no server in that role"),
        ("label_party", "bank asks for the line to the label party, but this run has bank, which is itself,"),
    ],
)
def test_a_line_that_is_not_there_is_refused(role, words):
    with pytest.raises(PlanError, match=words):
        simulate(lambda party: getattr(party, role), TABLES, roles=BOTH)


def test_a_role_without_rows_that_needs_some_is_refused():
    roles = Roles(label="bank", features=("shop",), arbiter="notary")
    with pytest.raises(DataError, match="notary should bring a table for its role but has none"):
        simulate(lambda party: party.own_table, TABLES, roles=roles)


def test_a_party_cannot_find_the_others_randomness_in_what_it_may_know():
    def guess_from_the_plan(party):
        theirs = "bank" if party.name == "shop" else "shop"
        return (
            Randomness.seeded(party.plan.seed, "party", theirs, party.plan.protocol).seed(),
            private_randomness(party.plan.seed, theirs, party.plan).seed(),
            party.random.seed(),
        )

    results = simulate(guess_from_the_plan, TABLES, roles=BOTH, seed=3).results
    assert results["bank"][2] not in results["shop"][:2]
    assert results["shop"][2] not in results["bank"][:2]


def test_a_party_that_exceeds_its_budget_is_stopped_before_it_releases_anything():
    def release(party):
        if party.name == "shop":
            mechanism = LaplaceMechanism(1.0, 1.0)
            args = {"random": party.random, "ledger": party.ledger, "protects": Secret.FEATURES, "unit": "record"}
            for step in range(3):
                mechanism.release([1.0], path=(step,), **args)

    with pytest.raises(BudgetSpent, match="nothing was released"):
        simulate(release, TABLES, roles=BOTH, budgets={"shop": {Secret.FEATURES: (2.0, 0.0)}})


@pytest.mark.parametrize("changed", ["labels", "values", "defences", "keep"])
def test_a_folder_does_not_go_on_with_another_experiment(changed, tmp_path):
    tables = {"bank": Table.of({"id": range(4), "y": [0, 1, 0, 1]}, labels="y"), "shop": table()}
    simulate(draw, tables, roles=BOTH, directory=tmp_path)
    other = {
        "labels": {"tables": {**tables, "bank": tables["bank"].with_labels([1, 1, 0, 0])}},
        "values": {"tables": {**tables, "shop": Table.of({"id": range(4), "x": [0.0] * 4})}},
        "defences": {"defences": {"bank": [Defence()]}},
        "keep": {"keep": "all"},
    }[changed]
    with pytest.raises(PlanError, match="holds another run than this one: its"):
        simulate(**{"protocol": draw, "tables": tables, "roles": BOTH, "directory": tmp_path, **other})


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        (lambda: Roles(features="shop"), "should be a tuple of names, but are the text 'shop'"),
        (lambda: Roles(features=(), arbiter="notary"), "no label or feature party was named"),
        (lambda: Roles(label="bank", features=("bank",)), "but bank was given two"),
        (lambda: Roles(label="", features=("bank",)), "name parties by non-empty text"),
    ],
)
def test_impossible_roles_are_refused(roles, words):
    with pytest.raises(PlanError, match=words):
        roles()


def test_a_plan_comes_back_from_json_with_its_hash():
    plan = PublicPlan(Roles(label="bänk", features=("shop",)), "draw", {"x": [1, None]}, seed=2)
    assert PublicPlan.from_json(plan.to_json()).hash == plan.hash
    assert plan.hash != PublicPlan(plan.roles, "draw", {"x": [1, 0]}, seed=2).hash


def test_a_folder_with_a_run_of_another_plan_is_refused(tmp_path):
    simulate(draw, TABLES, roles=BOTH, seed=0, directory=tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "finished"
    with pytest.raises(PlanError, match="holds another run than this one: its plan, seed differ"):
        simulate(draw, TABLES, roles=BOTH, seed=1, directory=tmp_path)


def test_a_run_that_failed_says_so_in_its_folder(tmp_path):
    def fails(party):
        raise DataError("no rows.")

    with pytest.raises(DataError):
        simulate(fails, TABLES, roles=BOTH, directory=tmp_path)
    status = json.loads((tmp_path / "run.json").read_text())
    assert (status["status"], status["error"]) == ("failed", "DataError: no rows.")


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"Could not write run\.json"):
        simulate(draw, TABLES, roles=BOTH, directory=tmp_path / "file" / "run")


WALK = textwrap.dedent(
    """
    import os, signal, sys
    # Walking takes no networks, and their import takes seconds.
    sys.modules["torch"] = None
    import numpy as np
    from colonnade.runtime.simulate import simulate
    from colonnade.tables.table import Table
    from colonnade.roles import Roles
    from tests_walk import Number, Walk

    directory, kill_at = sys.argv[1], int(sys.argv[2])
    tables = {name: Table.of({"id": range(3), "x": [1.0, 2.0, 3.0]}) for name in ("bank", "shop")}

    def walk(party):
        return Walk(party, kill_at).go()

    run = simulate(walk, tables, roles=Roles(label="bank", features=("shop",)), directory=directory, checkpoint_every=3)
    print(run.results, run.transcripts["bank"].digests(), run.transcripts["shop"].digests())
    """
)
WALK_MODULE = textwrap.dedent(
    """
    import os, signal
    from dataclasses import dataclass
    import numpy as np
    from colonnade.wire.message import Float64Array, Message

    @dataclass(frozen=True)
    class Number(Message, kind="test/walk"):
        value: Float64Array

    class Walk:
        def __init__(self, party, kill_at):
            self.party, self.kill_at, self.place = party, kill_at, np.zeros(1)
            self.secret = party.once("secret", lambda: party.random.generator("secret").random(1))

        def state(self):
            return {"place": self.place}

        def restore(self, tree):
            self.place = tree["place"]

        def go(self):
            (line,) = self.party.peers.values()
            for loop in ("there", "back"):
                for step in self.party.steps(8, self, name=loop):
                    if self.party.name == "shop" and step + 8 * (loop == "back") == self.kill_at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    line.send(Number(np.random.rand(1) + self.secret))
                    self.place = self.place + line.receive(Number).value
            return self.place.tolist()
    """
)


def walks(folder, directory, kill_at=-1):
    """Walk in a process of its own, which may be killed at a step."""
    (folder / "tests_walk.py").write_text(WALK_MODULE)
    command = [sys.executable, "-c", WALK, str(folder / directory), str(kill_at)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    done = walks(tmp_path_factory.mktemp("straight"), "straight")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kill_at", [4, *(pytest.param(place, marks=pytest.mark.slow) for place in (0, 1, 7, 9, 15))])
def test_a_simulation_that_was_killed_resumes_to_the_same_result(kill_at, straight, tmp_path):
    assert walks(tmp_path, "killed", kill_at).returncode == -signal.SIGKILL
    resumed = walks(tmp_path, "killed")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == straight
