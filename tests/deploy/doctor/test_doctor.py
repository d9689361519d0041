"""The doctor, with all parties in this process, each in a thread of its own, over the loopback interface."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from colonnade._version import __version__
from colonnade.curves import BSplines, Curves
from colonnade.deploy.doctor.checklist import Check, exit_code
from colonnade.deploy.doctor.doctor import examine
from colonnade.deploy.doctor.probe import MOST_PROBES, Probe, Report
from colonnade.deploy.doctor.self_report import SelfReport
from colonnade.plans.align import PlannedAlign
from colonnade.plans.plan import Plan
from colonnade.plans.sections import (
    PlannedAddress,
    PlannedData,
    PlannedModel,
    PlannedNetwork,
    PlannedPrivacy,
    PlannedRun,
    PlannedTable,
)
from colonnade.roles import Roles
from colonnade.tables.table import Table
from colonnade.testing.ports import free_port
from colonnade.wire.certs import authority as certs
from colonnade.wire.certs.credentials import Credentials, show
from colonnade.wire.codec import decode, encode
from colonnade.wire.grpc.link import Patience
from colonnade.wire.grpc.transport import GrpcTransport

pytestmark = pytest.mark.network

N = 40
EMPTY = np.zeros(0, np.uint8)
LONG = 60.0


def write(path: Path, ids: list[Any], **columns: list[Any]) -> None:
    names = ["id", *columns]
    lines = [",".join(map(str, row)) for row in zip(ids, *columns.values(), strict=True)]
    path.write_text("\n".join([",".join(names), *lines]) + "\n")


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority")
    certs.init(folder, federation="credit")
    for name in ("bank", "shop", "telco"):
        certs.issue(folder, name)
    return folder


@pytest.fixture
def plans(tmp_path: Path, authority: Path) -> dict[str, Plan]:
    """The plans of bank, which listens, and shop, which dials; each has its own table only."""
    write(tmp_path / "bank.csv", list(range(N)), income=list(range(N)), late=[i % 2 for i in range(N)])
    write(tmp_path / "shop.csv", list(range(N)), spend=list(range(N)))
    network = PlannedNetwork({"bank": PlannedAddress(f"127.0.0.1:{free_port()}")}, authority)
    roles = Roles(label="bank", features=("shop",))
    model = PlannedModel("split-classifier", {"epochs": 30, "n_iter_no_change": None})
    tables = {
        "bank": PlannedTable(tmp_path / "bank.csv", "id", labels="late"),
        "shop": PlannedTable(tmp_path / "shop.csv", "id"),
    }
    accepted = PlannedPrivacy(accept_label_leak=True)
    return {
        name: Plan(PlannedData(tables={name: table}), roles, model, network=network, privacy=accepted)
        for name, table in tables.items()
    }


def examined(
    plans: dict[str, Plan], options: dict[str, dict[str, Any]] | None = None, **shared: Any
) -> dict[str, tuple[Check, ...]]:
    """What the doctor finds at all parties, asked at the same time."""
    found: dict[str, tuple[Check, ...]] = {}
    failed: list[BaseException] = []

    def ask(name: str) -> None:
        try:
            found[name] = examine(plans[name], name, **{"wait": LONG, **shared, **(options or {}).get(name, {})})
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LONG)
    assert not failed, failed
    assert found.keys() == plans.keys()
    return found


def wrong(checks: tuple[Check, ...]) -> dict[tuple[str, str], Check]:
    return {(check.about, check.topic): check for check in checks if check.state == "wrong"}


def said(checks: tuple[Check, ...], about: str, topic: str, state: str = "good") -> list[str]:
    return [f.said for f in checks if (f.about, f.topic, f.state) == (about, topic, state)]


def test_two_parties_that_fit_are_told_that_nothing_is_wrong(plans: dict[str, Plan], authority: Path) -> None:
    found = examined(plans)
    for checks in found.values():
        assert wrong(checks) == {}
        assert exit_code(checks) == 0
    at_shop = found["shop"]
    assert said(at_shop, "shop", "table") == ["40 rows, 1 column (1 numeric), no labels"]
    assert said(at_shop, "shop", "ids") == ["40 different ids in column 'id', whole numbers"]
    assert said(at_shop, "bank", "rows") == ["the same 40 ids in the same order"]
    assert said(at_shop, "bank", "reach") == said(found["bank"], "shop", "reach") == ["shop reaches bank"]
    words = show(authority / "bank.pem").words
    assert said(at_shop, "bank", "certificate") == [f"TLS on, peer bank, fingerprint {words}"]
    assert re.fullmatch(r"[\d.]+ ms for a round trip, [\d.]+ MB/s", said(at_shop, "bank", "line")[0])
    # 30 epochs of one batch.
    assert "in 30 round trips, which takes this line" in said(at_shop, "bank", "estimate", "note")[0]


@pytest.mark.parametrize(
    ("model", "parameters", "words"),
    [
        (
            "split-regressor",
            {"epochs": 2},
            r"training sends at most about \d+ kB in 4 round trips, which takes",
        ),
        ("one-shot", {"leak_budget": {"shop": 1.0}}, r"training sends at most about \d+ kB in 0 round trips"),
        (
            "label-dp-shadow",
            {"epochs": 30, "n_iter_no_change": None},
            r"training sends about 0\.\d MB in 31 round trips",
        ),
        ("logistic-regression", {"max_iter": 3}, r"training sends at most about \d+\.\d MB in \d+ round trips"),
    ],
)
def test_what_a_training_sends_is_told_for_every_model(
    plans: dict[str, Plan], model: str, parameters: dict[str, Any], words: str
) -> None:
    found = examined({name: replace(plan, model=PlannedModel(model, parameters)) for name, plan in plans.items()})
    for name, peer in (("bank", "shop"), ("shop", "bank")):
        (told,) = said(found[name], peer, "estimate", "note")
        assert re.match(words, told), told


def test_a_table_that_the_model_cannot_train_on_is_wrong(plans: dict[str, Plan]) -> None:
    moments = PlannedModel("functional-moments", {})
    found = examined({name: replace(plan, model=moments) for name, plan in plans.items()})
    assert "reads curves, but shop's column 'spend' holds numeric values" in wrong(found["shop"])["shop", "model"].said
    assert said(found["shop"], "bank", "estimate", "note") == []


def test_with_an_alignment_ahead_an_estimate_is_one(plans: dict[str, Plan]) -> None:
    found = examined({name: replace(plan, align=PlannedAlign(fewest=1)) for name, plan in plans.items()})
    assert said(found["bank"], "shop", "estimate", "note")[0].startswith("training sends about 0.2 MB in 30")


def test_rows_without_an_id_that_an_alignment_leaves_out_do_not_spoil_the_estimate(
    plans: dict[str, Plan], tmp_path: Path
) -> None:
    late = [i % 2 for i in range(N)]
    write(tmp_path / "bank.csv", ["", "", *range(2, N)], income=list(range(N)), late=late)
    found = examined({name: replace(plan, align=PlannedAlign(fewest=1)) for name, plan in plans.items()})
    assert "2 of 40 rows have no id, and take no part" in said(found["bank"], "bank", "ids", "note")
    assert not [told for told in said(found["bank"], "bank", "estimate", "note") if "failed" in told]
    assert said(found["bank"], "shop", "estimate", "note")[0].startswith("training sends about 0.2 MB in 30")


def test_what_is_found_is_told_as_it_comes_and_given_in_order(plans: dict[str, Plan]) -> None:
    told: list[Check] = []
    found = examined(plans, {"bank": {"told": told.append}})
    assert tuple(told) == found["bank"]
    assert [check.about for check in told] == sorted(check.about for check in told)


def test_noise_from_the_plans_seed_is_wrong_at_home(plans: dict[str, Plan], tmp_path: Path) -> None:
    """Without a certificate nobody is visited, so this ends at once."""
    network = plans["shop"].network
    assert network is not None
    seeded = replace(plans["shop"], network=replace(network, randomness="seeded"))
    drawn, known = (wrong(examine(plan, "shop", certificates=tmp_path / "none")) for plan in (plans["shop"], seeded))
    assert known.keys() - drawn.keys() == {("shop", "randomness")}
    assert "so everybody who knows the plan can subtract it" in known["shop", "randomness"].said


def test_everything_works_in_the_clear_too_and_is_noted(plans: dict[str, Plan]) -> None:
    found = examined(plans, insecure=True)
    assert {code for checks in found.values() if (code := exit_code(checks))} == set()
    assert said(found["bank"], "bank", "certificate", "note") == [
        "TLS is off: anyone on the network path can read the traffic"
    ]


def test_three_parties_are_examined_pair_by_pair(plans: dict[str, Plan], tmp_path: Path) -> None:
    network = plans["bank"].network
    assert network is not None
    network = replace(network, parties={**network.parties, "shop": PlannedAddress(f"127.0.0.1:{free_port()}")})
    roles = Roles(label="bank", features=("shop", "telco"))
    table = PlannedTable(tmp_path / "shop.csv", "id")
    three = {
        "bank": plans["bank"],
        "shop": plans["shop"],
        "telco": replace(plans["shop"], data=PlannedData(tables={"telco": table}), roles=roles),
    }
    three = {name: replace(plan, roles=roles, network=network) for name, plan in three.items()}
    found = examined(three)
    for name, checks in found.items():
        assert wrong(checks) == {}
        assert {check.about for check in checks if check.topic == "reach"} == set(three) - {name}


def test_different_plans_are_shown_by_key_and_not_refused(plans: dict[str, Plan]) -> None:
    plans["shop"] = replace(
        plans["shop"], model=PlannedModel("split-classifier", {"n_iter_no_change": None, "epochs": 3}), seed=5
    )
    plans["shop"] = replace(plans["shop"], run=PlannedRun(checkpoint_every=7))
    found = examined(plans)
    for name, peer in (("bank", "shop"), ("shop", "bank")):
        ((key, check),) = wrong(found[name]).items()
        assert key == (peer, "plan")
        assert check.said == f"{name} and {peer} have different plans: checkpoint_every, seed, settings.epochs"
        assert check.fix == "Give both the same plan file."
        assert exit_code(found[name]) == 7


def test_repeated_ids_are_wrong_at_home_and_told_to_the_other_by_name_only(
    plans: dict[str, Plan], tmp_path: Path
) -> None:
    write(tmp_path / "shop.csv", [0, 0, *range(2, N)], spend=list(range(N)))
    found = examined(plans)
    check = wrong(found["shop"])["shop", "ids"]
    assert "1 of 40 rows repeat an earlier id in column 'id'" in check.said
    assert check.fix == "Drop or merge the repeated rows."
    assert exit_code(found["shop"]) == 3
    at_bank = wrong(found["bank"])
    assert at_bank["shop", "there"].said == "shop found something wrong on its own side: ids"
    assert at_bank["shop", "there"].fix == "Look at its list."


@pytest.mark.parametrize(
    ("at_bank", "at_shop", "words", "fix"),
    [
        (
            range(N),
            reversed(range(N)),
            "bank and shop have the same ids in different orders",
            "Sort both tables by id.",
        ),
        (
            [f"a{i}" for i in range(N)],
            [f'"A{i} "' for i in range(N)],
            "the ids of bank and shop differ, but only by type, case, spaces or order",
            "Write them alike at both, and sort both tables by id.",
        ),
        (
            range(N),
            range(1, N),
            "bank has 40 rows and shop has 39, and they are not the same",
            "Keep the rows that both have, in one order.",
        ),
    ],
)
def test_rows_that_differ_are_told_with_how(
    plans: dict[str, Plan], tmp_path: Path, at_bank: Iterable[Any], at_shop: Iterable[Any], words: str, fix: str
) -> None:
    ids = list(at_shop)
    write(tmp_path / "bank.csv", list(at_bank), income=list(range(N)), late=[i % 2 for i in range(N)])
    write(tmp_path / "shop.csv", ids, spend=list(range(len(ids))))
    check = wrong(examined(plans)["bank"])["shop", "rows"]
    assert (check.said, check.fix, check.exit_code) == (words, fix, 7)


def alone(plan: Plan, name: str, **options: Any) -> tuple[Check, ...]:
    return examine(plan, name, wait=0.5, **options)


@pytest.mark.parametrize(
    ("ids", "oddity"),
    [
        ([f"a{i} " for i in range(N)], "40 of 40 ids begin or end with a space"),
        (["ﬁ0", *(f"a{i}" for i in range(1, N))], "1 of 40 ids hold look-alike or invisible characters"),
        (["MÃ¼ller", *(f"a{i}" for i in range(1, N))], "1 of 40 ids seem to have been read in a wrong encoding"),
        (["1.2E+10", *(f"a{i}" for i in range(1, N))], "1 of 40 ids look like numbers out of a spreadsheet"),
        (
            ["A1", *(f"a{i}" for i in range(1, N))],
            "1 of 40 ids differ from another one only by case, spaces or look-alike characters",
        ),
    ],
)
def test_odd_ids_are_noted_with_their_count(
    plans: dict[str, Plan], tmp_path: Path, ids: list[str], oddity: str
) -> None:
    write(tmp_path / "shop.csv", [f'"{i}"' for i in ids], spend=list(range(N)))
    checks = alone(plans["shop"], "shop", insecure=True)
    assert oddity in said(checks, "shop", "ids", "note")
    assert ("shop", "ids") not in wrong(checks)


def by_mail(plan: Plan, **settings: Any) -> tuple[Check, ...]:
    """What the doctor says of a shop that is aligned by its column of addresses."""
    align = PlannedAlign(keys=("email",), columns={"shop": ("mail",)}, **{"fewest": 1, **settings})
    return alone(replace(plan, align=align), "shop", insecure=True)


def test_ids_are_looked_at_as_an_alignment_reads_them(plans: dict[str, Plan], tmp_path: Path) -> None:
    mails = ["Ada@Post.example", "none", "", *(f"a{i}@post.example" for i in range(3, N))]
    write(tmp_path / "shop.csv", list(range(N)), mail=mails, spend=list(range(N)))
    checks = by_mail(plans["shop"])
    assert said(checks, "shop", "ids") == ["38 different ids in 'mail', read by the rule 'email'"]
    assert said(checks, "shop", "ids", "note") == ["2 of 40 rows have no id, and take no part"]


def test_ids_that_an_alignment_reads_alike_are_wrong_unless_it_may_use_one(
    plans: dict[str, Plan], tmp_path: Path
) -> None:
    mails = ["A7@post.example ", *(f"a{i}@post.example" for i in range(1, N))]
    write(tmp_path / "shop.csv", list(range(N)), mail=mails, spend=list(range(N)))
    check = wrong(by_mail(plans["shop"]))["shop", "ids"]
    assert check.said == (
        "shop should have one row for each id, but 1 of 40 rows repeat an id of an earlier one in 'mail'"
    )
    assert check.fix == "Merge them, or set duplicates under [align] to 'first' or 'all'."
    for duplicates, taken in (("first", "only the first row of each is used"), ("all", "all of them are used")):
        checks = by_mail(plans["shop"], duplicates=duplicates)
        assert ("shop", "ids") not in wrong(checks)
        assert said(checks, "shop", "ids", "note") == [f"1 of 40 rows repeat an id of an earlier one; {taken}"]


def test_a_column_of_ids_that_is_not_there_is_wrong(plans: dict[str, Plan]) -> None:
    check = wrong(by_mail(plans["shop"]))["shop", "table"]
    assert check.said.startswith("shop's table was expected to have a column 'mail', but none of its")
    assert check.fix == "Correct the columns that people are matched by."


def test_a_column_in_which_nothing_is_an_id_is_wrong(plans: dict[str, Plan], tmp_path: Path) -> None:
    write(tmp_path / "shop.csv", list(range(N)), mail=["none"] * N, spend=list(range(N)))
    check = wrong(by_mail(plans["shop"]))["shop", "ids"]
    assert check.said == "shop should have ids by the rule 'email' in 'mail', but none of its 40 rows has one"


def test_curves_that_a_left_join_would_leave_without_values_are_wrong(plans: dict[str, Plan], tmp_path: Path) -> None:
    days = Table.of({"id": range(N), "day": Curves(np.ones((N, 4)), BSplines((0, 1), 4))}, owner="shop")
    pq.write_table(days.to_arrow(), tmp_path / "shop.parquet")
    data = PlannedData(tables={"shop": PlannedTable(tmp_path / "shop.parquet", "id")})
    plan = replace(plans["shop"], data=data, model=PlannedModel("functional-moments", {}))
    inner, left = (
        alone(replace(plan, align=PlannedAlign(fewest=1, join=join)), "shop", insecure=True)
        for join in ("inner", "left")
    )
    assert ("shop", "ids") not in wrong(inner)
    check = wrong(left)["shop", "ids"]
    assert check.said == (
        "join = 'left' gives shop rows without values, but its column 'day' holds curves, which have no missing values"
    )
    assert check.fix == "Use join = 'inner'."


def test_fewer_ids_than_an_alignment_takes_are_wrong_before_the_others_are_met(
    plans: dict[str, Plan], tmp_path: Path
) -> None:
    write(tmp_path / "shop.csv", list(range(N)), mail=[f"a{i}@post.example" for i in range(N)], spend=list(range(N)))
    assert ("shop", "ids") not in wrong(by_mail(plans["shop"], fewest=N))
    check = wrong(by_mail(plans["shop"], fewest=N + 1))["shop", "ids"]
    few = "A set to be aligned should have at least 41 ids under each key, but shop itself brings 40"
    assert check.said.startswith(few)
    assert check.fix == "Bring more rows, or lower fewest under [align] at shop."


def test_digits_held_as_text_are_noted(plans: dict[str, Plan], tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [f"{i:03}" for i in range(N)], "spend": range(N)}), tmp_path / "shop.parquet")
    plan = replace(plans["shop"], data=PlannedData(tables={"shop": PlannedTable(tmp_path / "shop.parquet", "id")}))
    assert said(alone(plan, "shop", insecure=True), "shop", "ids", "note") == [
        "all ids are digits held as text, and 7 and '7' are different ids"
    ]


@pytest.mark.parametrize(
    ("content", "topic", "words", "code"),
    [
        (None, "table", "A Parquet or CSV file, or a directory of .parquet files, was expected at", 9),
        ("id,spend\n,1\n2,2\n", "ids", "Every row of shop's table needs an id, but 1 of 2 rows have none", 3),
        ("id\n1\n2\n", "model", "shop is a feature party but its table has no columns besides the ids", 3),
        ("id,spend\n1,inf\n2,2\n", "model", "The numbers in shop's table must be finite or missing", 3),
        ("customer,spend\n1,1\n", "table", "shop's table was expected to have a column 'id'", 3),
    ],
)
def test_a_table_that_does_not_fit_is_wrong_and_the_others_are_visited_all_the_same(
    plans: dict[str, Plan], tmp_path: Path, content: str | None, topic: str, words: str, code: int
) -> None:
    (tmp_path / "shop.csv").unlink()
    if content is not None:
        (tmp_path / "shop.csv").write_text(content)
    checks = alone(plans["shop"], "shop", insecure=True)
    assert wrong(checks)["shop", topic].said.startswith(words)
    assert exit_code(checks) == code
    assert ("bank", "reach") in wrong(checks)


def test_labels_of_one_class_are_wrong(plans: dict[str, Plan], tmp_path: Path) -> None:
    write(tmp_path / "bank.csv", list(range(N)), income=list(range(N)), late=[1] * N)
    check = wrong(alone(plans["bank"], "bank", insecure=True))["bank", "model"]
    assert check.said.startswith("bank should have labels of at least two classes")


def test_a_peer_that_is_not_there_is_named_with_the_reason(plans: dict[str, Plan]) -> None:
    network = plans["shop"].network
    assert network is not None
    address = network.parties["bank"].address
    check = wrong(alone(plans["shop"], "shop"))["bank", "reach"]
    assert check.said == (f"bank did not answer at {address} within 0.5 s: the machine is there, but nothing listens")
    assert check.fix == "Run the doctor there at the same time, with the same plan."
    assert check.exit_code == 4
    check = wrong(alone(plans["bank"], "bank"))["shop", "reach"]
    assert check.said == f"shop did not come to {address} within 0.5 s"
    assert check.fix.startswith("Run the doctor there at the same time and read what it says")


def test_an_address_that_nobody_knows_is_told(plans: dict[str, Plan]) -> None:
    network = plans["shop"].network
    assert network is not None
    plan = replace(plans["shop"], network=replace(network, parties={"bank": PlannedAddress("bank.invalid:7431")}))
    check = wrong(alone(plan, "shop"))["bank", "reach"]
    assert check.said == "bank did not answer at bank.invalid:7431 within 0.5 s: its name is not known"


def test_a_port_in_use_is_wrong_and_nobody_is_visited(plans: dict[str, Plan]) -> None:
    network = plans["bank"].network
    assert network is not None
    host, port = str(network.parties["bank"].address).split(":")
    with socket.create_server((host, int(port))):
        checks = alone(plans["bank"], "bank")
    check = wrong(checks)["bank", "port"]
    assert check.said == f"bank cannot listen at {host}:{port}: Address already in use"
    assert f'listen = "0.0.0.0:{port}" under [network.bank]' in check.fix
    assert {check.about for check in checks} == {"bank"}


def test_a_certificate_that_is_not_there_is_wrong_and_nobody_is_visited(plans: dict[str, Plan], tmp_path: Path) -> None:
    checks = alone(plans["shop"], "shop", certificates=tmp_path / "none")
    assert "Expected to read" in wrong(checks)["shop", "certificate"].said
    assert exit_code(checks) == 9
    assert {check.about for check in checks} == {"shop"}


def test_a_certificate_that_ends_soon_is_noted(plans: dict[str, Plan], authority: Path, tmp_path: Path) -> None:
    certs.issue(authority, "shop", days=3, out=tmp_path / "short")
    notes = said(alone(plans["shop"], "shop", certificates=tmp_path / "short"), "shop", "certificate", "note")
    assert notes == ["it ends in 2 days"]


@pytest.mark.slow
def test_a_certificate_of_another_authority_is_told_where_it_is_noticed(plans: dict[str, Plan], tmp_path: Path) -> None:
    certs.init(tmp_path / "other")
    certs.issue(tmp_path / "other", "shop")
    found = examined(plans, {"shop": {"certificates": tmp_path / "other", "wait": 8}, "bank": {"wait": 5}})
    check = wrong(found["shop"])["bank", "reach"]
    assert check.said.startswith("shop could not make sure that 127.0.0.1:")
    assert check.exit_code == 7
    assert wrong(found["bank"])["shop", "reach"].exit_code == 4


@pytest.mark.slow
def test_another_certificate_than_the_one_handed_over_is_wrong(
    plans: dict[str, Plan], authority: Path, tmp_path: Path
) -> None:
    certs.issue(authority, "shop", out=tmp_path / "new")
    (tmp_path / "new" / "bank.pem").write_bytes((authority / "shop.pem").read_bytes())
    found = examined(plans, {"shop": {"certificates": tmp_path / "new", "wait": 8}, "bank": {"wait": 5}})
    check = wrong(found["shop"])["bank", "reach"]
    assert f"Expected bank to show the certificate in {tmp_path / 'new' / 'bank.pem'}" in check.said
    assert check.fix.endswith("compare the words by telephone, then replace or delete the file.")


@pytest.mark.parametrize(("ahead", "words"), [(3600, "ahead"), (-3600, "behind")])
def test_a_clock_that_is_wrong_is_told(plans: dict[str, Plan], ahead: float, words: str) -> None:
    found = examined(plans, {"shop": {"clock": lambda: time.time() + ahead}})
    check = wrong(found["bank"])["shop", "clock"]
    # As exact as a message is quick.
    assert re.fullmatch(rf"shop's clock is 3(59|60)\d s {words}", check.said)
    assert check.exit_code == 7
    assert ("bank", "clock") in wrong(found["shop"])


@contextmanager
def listening(
    plan: Plan, agreement: dict[str, str], credentials: Credentials, serve: Callable[[GrpcTransport], None]
) -> Iterator[None]:
    """Somebody at bank's address who is not the doctor of this version."""
    network = plan.network
    assert network is not None
    transport = GrpcTransport(
        network.addresses(("bank", "shop")),
        credentials=credentials,
        patience=Patience(LONG, LONG, LONG, LONG, 0.1),
    )
    transport.bind("bank", ("bank", "shop"), agreement)
    transport.open()
    thread = threading.Thread(target=partial(serve, transport), daemon=True)
    thread.start()
    try:
        yield
    finally:
        transport.close()


def test_a_peer_that_runs_something_else_says_so(plans: dict[str, Plan], authority: Path) -> None:
    credentials = Credentials.read(authority, "bank")
    with listening(plans["bank"], {"protocol": "SplitClassifier.fit"}, credentials, lambda transport: None):
        check = wrong(examine(plans["shop"], "shop", wait=LONG))["bank", "reach"]
    assert check.said == ("bank refused shop: bank runs SplitClassifier.fit and shop runs colonnade doctor")
    assert (check.fix, check.exit_code) == ("Run the same command at both.", 7)


def test_a_peer_of_another_version_is_told_and_its_words_are_harmless(plans: dict[str, Plan], authority: Path) -> None:
    account = replace(SelfReport.of(plans["bank"], "bank", None, []), version="9.9\x1b[2J", wrong=["\x1b[31mport"])

    def serve(transport: GrpcTransport) -> None:
        transport.send("shop", encode(Report(account.to_json())))
        transport.receive("shop")
        transport.send("shop", encode(Probe(0, 1, time.time(), EMPTY)))
        transport.receive("shop")
        while True:
            probe = decode(transport.receive("shop"), Probe)
            transport.send("shop", encode(replace(probe, clock=time.time())))
            if probe.last:
                return

    credentials = Credentials.read(authority, "bank")
    with listening(plans["bank"], {"protocol": "colonnade doctor"}, credentials, serve):
        checks = wrong(examine(plans["shop"], "shop", wait=LONG))
    assert checks["bank", "version"].said == f"shop runs Colonnade {__version__} and bank runs 9.9?[2J"
    assert checks["bank", "version"].exit_code == 8
    assert checks["bank", "there"].said == "bank found something wrong on its own side: ?[31mport"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}'])
def test_a_peer_that_tells_nonsense_is_refused(plans: dict[str, Plan], authority: Path, text: str) -> None:
    credentials = Credentials.read(authority, "bank")
    with listening(
        plans["bank"],
        {"protocol": "colonnade doctor"},
        credentials,
        lambda transport: transport.send("shop", encode(Report(text))),
    ):
        check = wrong(examine(plans["shop"], "shop", wait=LONG))["bank", "reach"]
    assert check.said == "bank should tell about itself and sent something else"
    assert check.exit_code == 8


def test_a_peer_that_asks_without_end_is_refused(plans: dict[str, Plan], authority: Path) -> None:
    def serve(transport: GrpcTransport) -> None:
        transport.send("shop", encode(Report(SelfReport.of(plans["bank"], "bank", None, []).to_json())))
        for number in range(MOST_PROBES + 1):
            transport.send("shop", encode(Probe(number, 0, 0.0, EMPTY)))

    credentials = Credentials.read(authority, "bank")
    with listening(plans["bank"], {"protocol": "colonnade doctor"}, credentials, serve):
        check = wrong(examine(plans["shop"], "shop", wait=LONG))["bank", "reach"]
    assert check.said == "bank asks without end"


def test_keys_that_can_be_enumerated_are_noted(plans: dict[str, Plan], tmp_path: Path) -> None:
    write(tmp_path / "shop.csv", list(range(N)), spend=list(range(N)))
    numbered = alone(replace(plans["shop"], align=PlannedAlign(keys=("integer",), fewest=1)), "shop", insecure=True)
    noted = [check for check in numbered if check.topic == "ids" and check.state == "note"]
    assert any(
        check.said.startswith("The key 'integer' has so few values that a peer can list many") for check in noted
    )
    by_text = alone(replace(plans["shop"], align=PlannedAlign(keys=("text",), fewest=1)), "shop", insecure=True)
    assert not any("so few values" in check.said for check in by_text)


def test_ids_that_two_parties_read_by_different_rules_are_wrong_before_they_meet(
    plans: dict[str, Plan], tmp_path: Path
) -> None:
    write(tmp_path / "shop.csv", [f"{i:05d}" for i in range(N)], spend=list(range(N)))
    found = examined({name: replace(plan, align=PlannedAlign(fewest=1)) for name, plan in plans.items()})
    told = wrong(found["bank"])["shop", "ids"]
    assert "bank reads integer and shop reads text" in told.said
    assert told.fix == "Name the same keys under [align] at both, and install the same versions."
