"""The doctor, with all parties in this process, each in a thread of its own, over the loopback interface."""

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from colonnade._version import __version__
from colonnade.experiment.account import Account
from colonnade.experiment.doctor import examine
from colonnade.experiment.finding import Finding, exit_code
from colonnade.experiment.network import PlannedAddress, PlannedNetwork
from colonnade.experiment.plan import Plan, PlannedData, PlannedModel, PlannedRun, PlannedTable
from colonnade.wire import certs
from colonnade.wire.certs import Credentials
from colonnade.wire.grpc import GrpcTransport, Patience
from colonnade.wire.plan import Roles

pytestmark = pytest.mark.network

N = 40


def free_port() -> int:
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)):
                return port


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
    roles, model = Roles(label="bank", features=("shop",)), PlannedModel("split-classifier", {"patience": None})
    tables = {
        "bank": PlannedTable(tmp_path / "bank.csv", "id", labels="late"),
        "shop": PlannedTable(tmp_path / "shop.csv", "id"),
    }
    return {
        name: Plan(PlannedData(tables={name: table}), roles, model, network=network) for name, table in tables.items()
    }


def examined(
    plans: dict[str, Plan], options: dict[str, dict[str, Any]] | None = None, **shared: Any
) -> dict[str, tuple[Finding, ...]]:
    """What the doctor finds at all parties, asked at the same time."""
    found: dict[str, tuple[Finding, ...]] = {}
    failed: list[BaseException] = []

    def ask(name: str) -> None:
        try:
            found[name] = examine(plans[name], name, **{"wait": 10.0, **shared, **(options or {}).get(name, {})})
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed, failed
    assert found.keys() == plans.keys()
    return found


def wrong(findings: tuple[Finding, ...]) -> dict[tuple[str, str], Finding]:
    return {(finding.about, finding.topic): finding for finding in findings if finding.state == "wrong"}


def said(findings: tuple[Finding, ...], about: str, topic: str, state: str = "good") -> list[str]:
    return [f.said for f in findings if (f.about, f.topic, f.state) == (about, topic, state)]


def test_two_parties_that_fit_are_told_that_nothing_is_wrong(plans: dict[str, Plan], authority: Path) -> None:
    found = examined(plans)
    for findings in found.values():
        assert wrong(findings) == {}
        assert exit_code(findings) == 0
    at_shop = found["shop"]
    assert said(at_shop, "shop", "table") == ["40 rows, 1 columns (1 numeric), no labels"]
    assert said(at_shop, "shop", "ids") == ["40 different ids in column 'id', whole numbers"]
    assert said(at_shop, "bank", "rows") == ["the same 40 ids in the same order"]
    assert said(at_shop, "bank", "reach") == said(found["bank"], "shop", "reach") == ["shop reaches bank"]
    words = certs.show(authority / "bank.pem").words
    assert said(at_shop, "bank", "certificate") == [f"TLS on, peer bank, fingerprint {words}"]
    assert re.fullmatch(r"[\d.]+ ms for a round trip, [\d.]+ MB/s", said(at_shop, "bank", "line")[0])
    # 30 epochs of one batch, and the outline.
    assert "in 31 round trips, which takes this line" in said(at_shop, "bank", "estimate", "note")[0]


def test_findings_are_told_as_they_come_and_given_in_order(plans: dict[str, Plan]) -> None:
    told: list[Finding] = []
    found = examined(plans, {"bank": {"told": told.append}})
    assert tuple(told) == found["bank"]
    assert [finding.about for finding in told] == sorted(finding.about for finding in told)


def test_everything_works_in_the_clear_too_and_is_noted(plans: dict[str, Plan]) -> None:
    found = examined(plans, insecure=True)
    assert {code for findings in found.values() if (code := exit_code(findings))} == set()
    assert said(found["bank"], "bank", "certificate", "note") == [
        "TLS is off, so that everybody on the way reads along"
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
    for name, findings in found.items():
        assert wrong(findings) == {}
        assert {finding.about for finding in findings if finding.topic == "reach"} == set(three) - {name}


def test_different_plans_are_shown_by_key_and_not_refused(plans: dict[str, Plan]) -> None:
    plans["shop"] = replace(
        plans["shop"], model=PlannedModel("split-classifier", {"patience": None, "epochs": 3}), seed=5
    )
    plans["shop"] = replace(plans["shop"], run=PlannedRun(checkpoint_every=7))
    found = examined(plans)
    for name, peer in (("bank", "shop"), ("shop", "bank")):
        ((key, finding),) = wrong(found[name]).items()
        assert key == (peer, "plan")
        assert finding.said == f"{name} and {peer} have different plans: checkpoint_every, seed, settings.epochs"
        assert finding.fix == "Give both the same plan file."
        assert exit_code(found[name]) == 7


def test_repeated_ids_are_wrong_at_home_and_told_to_the_other_by_name_only(
    plans: dict[str, Plan], tmp_path: Path
) -> None:
    write(tmp_path / "shop.csv", [0, 0, *range(2, N)], spend=list(range(N)))
    found = examined(plans)
    finding = wrong(found["shop"])["shop", "ids"]
    assert "1 of 40 rows repeat an earlier id in column 'id'" in finding.said
    assert finding.fix == "Drop or merge the repeated rows."
    assert exit_code(found["shop"]) == 3
    at_bank = wrong(found["bank"])
    assert at_bank["shop", "there"].said == "shop found something wrong on its own side: ids"
    assert at_bank["shop", "there"].fix == "Look at its list."


@pytest.mark.parametrize(
    ("ids", "words", "fix"),
    [
        (
            list(range(N))[::-1],
            "bank and shop have the same ids in different orders",
            "Sort both tables by id.",
        ),
        (
            [f"{i} x"[:-2] + " " for i in range(N)],
            "the ids of bank and shop differ, but only by type, case, spaces or order",
            "Write them alike at both, and sort both tables by id.",
        ),
        (
            list(range(1, N)),
            "bank has 40 rows and shop has 39, and they are not the same",
            "Keep the rows that both have, in one order.",
        ),
    ],
)
def test_rows_that_differ_are_told_with_how(
    plans: dict[str, Plan], tmp_path: Path, ids: list[Any], words: str, fix: str
) -> None:
    if isinstance(ids[0], str):
        ids = [f'"{i}"' for i in ids]
    write(tmp_path / "shop.csv", ids, spend=list(range(len(ids))))
    finding = wrong(examined(plans)["bank"])["shop", "rows"]
    assert (finding.said, finding.fix, finding.exit_code) == (words, fix, 7)


def alone(plan: Plan, name: str, **options: Any) -> tuple[Finding, ...]:
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
    findings = alone(plans["shop"], "shop", insecure=True)
    assert oddity in said(findings, "shop", "ids", "note")
    assert ("shop", "ids") not in wrong(findings)


def test_digits_held_as_text_are_noted(plans: dict[str, Plan], tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

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
    findings = alone(plans["shop"], "shop", insecure=True)
    assert wrong(findings)["shop", topic].said.startswith(words)
    assert exit_code(findings) == code
    assert ("bank", "reach") in wrong(findings)


def test_labels_of_one_class_are_wrong(plans: dict[str, Plan], tmp_path: Path) -> None:
    write(tmp_path / "bank.csv", list(range(N)), income=list(range(N)), late=[1] * N)
    finding = wrong(alone(plans["bank"], "bank", insecure=True))["bank", "model"]
    assert finding.said.startswith("bank should have labels of at least two classes")


def test_a_peer_that_is_not_there_is_named_with_the_reason(plans: dict[str, Plan]) -> None:
    network = plans["shop"].network
    assert network is not None
    address = network.parties["bank"].address
    finding = wrong(alone(plans["shop"], "shop"))["bank", "reach"]
    assert finding.said == (f"bank did not answer at {address} within 0 s: the machine is there, but nothing listens")
    assert finding.fix == "Run the doctor there at the same time, with the same plan."
    assert finding.exit_code == 4
    finding = wrong(alone(plans["bank"], "bank"))["shop", "reach"]
    assert finding.said == f"shop did not come to {address} within 0 s"
    assert finding.fix.startswith("Run the doctor there at the same time and read what it says")


def test_an_address_that_nobody_knows_is_told(plans: dict[str, Plan]) -> None:
    network = plans["shop"].network
    assert network is not None
    plan = replace(plans["shop"], network=replace(network, parties={"bank": PlannedAddress("bank.invalid:7431")}))
    finding = wrong(alone(plan, "shop"))["bank", "reach"]
    assert finding.said == "bank did not answer at bank.invalid:7431 within 0 s: its name is not known"


def test_a_port_in_use_is_wrong_and_nobody_is_visited(plans: dict[str, Plan]) -> None:
    network = plans["bank"].network
    assert network is not None
    host, port = str(network.parties["bank"].address).split(":")
    with socket.create_server((host, int(port))):
        findings = alone(plans["bank"], "bank")
    finding = wrong(findings)["bank", "port"]
    assert finding.said == f"bank cannot listen at {host}:{port}: Address already in use"
    assert f'listen = "0.0.0.0:{port}" under [network.bank]' in finding.fix
    assert {finding.about for finding in findings} == {"bank"}


def test_a_certificate_that_is_not_there_is_wrong_and_nobody_is_visited(plans: dict[str, Plan], tmp_path: Path) -> None:
    findings = alone(plans["shop"], "shop", certificates=tmp_path / "none")
    assert "Expected to read" in wrong(findings)["shop", "certificate"].said
    assert exit_code(findings) == 9
    assert {finding.about for finding in findings} == {"shop"}


def test_a_certificate_that_ends_soon_is_noted(plans: dict[str, Plan], authority: Path, tmp_path: Path) -> None:
    certs.issue(authority, "shop", days=3, out=tmp_path / "short")
    notes = said(alone(plans["shop"], "shop", certificates=tmp_path / "short"), "shop", "certificate", "note")
    assert notes == ["it ends in 2 days"]


def test_a_certificate_of_another_authority_is_told_where_it_is_noticed(plans: dict[str, Plan], tmp_path: Path) -> None:
    certs.init(tmp_path / "other")
    certs.issue(tmp_path / "other", "shop")
    found = examined(plans, {"shop": {"certificates": tmp_path / "other", "wait": 8}, "bank": {"wait": 8}})
    finding = wrong(found["shop"])["bank", "reach"]
    assert finding.said.startswith("shop could not make sure that 127.0.0.1:")
    assert finding.exit_code == 7
    assert wrong(found["bank"])["shop", "reach"].exit_code == 4


def test_another_certificate_than_the_one_handed_over_is_wrong(
    plans: dict[str, Plan], authority: Path, tmp_path: Path
) -> None:
    certs.issue(authority, "shop", out=tmp_path / "new")
    (tmp_path / "new" / "bank.pem").write_bytes((authority / "shop.pem").read_bytes())
    found = examined(plans, {"shop": {"certificates": tmp_path / "new"}})
    finding = wrong(found["shop"])["bank", "certificate"]
    assert finding.said.startswith(f"bank shows another certificate than the one in {tmp_path / 'new' / 'bank.pem'}")
    assert finding.fix == "Compare the words by telephone, then replace or delete the file."


@pytest.mark.parametrize(("ahead", "words"), [(3600, "3600 s ahead"), (-3600, "3600 s behind")])
def test_a_clock_that_is_wrong_is_told(plans: dict[str, Plan], ahead: float, words: str) -> None:
    found = examined(plans, {"shop": {"clock": lambda: time.time() + ahead}})
    finding = wrong(found["bank"])["shop", "clock"]
    assert (finding.said, finding.exit_code) == (f"shop's clock is {words}", 7)
    assert ("bank", "clock") in wrong(found["shop"])


@contextmanager
def listening(
    plan: Plan, agreement: dict[str, str], credentials: Credentials, serve: Callable[[GrpcTransport], None]
) -> Iterator[None]:
    """Somebody at bank's address who is not the doctor of this version."""
    network = plan.network
    assert network is not None
    transport = GrpcTransport(
        "bank",
        network.addresses(("bank", "shop")),
        agreement=agreement,
        credentials=credentials,
        patience=Patience(10, 10, 10, 10, 0.1),
    )
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
        finding = wrong(examine(plans["shop"], "shop", wait=5))["bank", "reach"]
    assert finding.said == ("bank refused shop: bank runs SplitClassifier.fit and shop runs colonnade doctor")
    assert (finding.fix, finding.exit_code) == ("Run the same command at both.", 7)


def test_a_peer_of_another_version_is_told_and_its_words_are_harmless(plans: dict[str, Plan], authority: Path) -> None:
    from colonnade.experiment.visit import Probe, Report
    from colonnade.wire.codec import decode, encode

    account = replace(Account.of(plans["bank"], None, []), version="9.9\x1b[2J", wrong=["\x1b[31mport"])

    def serve(transport: GrpcTransport) -> None:
        transport.send("shop", encode(Report(account.to_json())))
        transport.receive("shop")
        transport.send("shop", encode(Probe(0, 1, time.time(), decode_payload())))
        transport.receive("shop")
        while True:
            probe = decode(transport.receive("shop"), Probe)
            transport.send("shop", encode(replace(probe, clock=time.time())))
            if probe.last:
                return

    def decode_payload() -> Any:
        import numpy as np

        return np.zeros(0, np.uint8)

    credentials = Credentials.read(authority, "bank")
    with listening(plans["bank"], {"protocol": "colonnade doctor"}, credentials, serve):
        findings = wrong(examine(plans["shop"], "shop", wait=10))
    assert findings["bank", "version"].said == f"shop runs Colonnade {__version__} and bank runs 9.9?[2J"
    assert findings["bank", "version"].exit_code == 8
    assert findings["bank", "there"].said == "bank found something wrong on its own side: ?[31mport"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}'])
def test_a_peer_that_tells_nonsense_is_refused(plans: dict[str, Plan], authority: Path, text: str) -> None:
    from colonnade.experiment.visit import Report
    from colonnade.wire.codec import encode

    credentials = Credentials.read(authority, "bank")
    with listening(
        plans["bank"],
        {"protocol": "colonnade doctor"},
        credentials,
        lambda transport: transport.send("shop", encode(Report(text))),
    ):
        finding = wrong(examine(plans["shop"], "shop", wait=10))["bank", "reach"]
    assert finding.said == "bank should tell about itself and sent something else"
    assert finding.exit_code == 8


def test_a_peer_that_asks_without_end_is_refused(plans: dict[str, Plan], authority: Path) -> None:
    import numpy as np

    from colonnade.experiment.visit import MOST_PROBES, Probe, Report
    from colonnade.wire.codec import encode

    def serve(transport: GrpcTransport) -> None:
        transport.send("shop", encode(Report(Account.of(plans["bank"], None, []).to_json())))
        for number in range(MOST_PROBES + 1):
            transport.send("shop", encode(Probe(number, 0, 0.0, np.zeros(0, np.uint8))))

    credentials = Credentials.read(authority, "bank")
    with listening(plans["bank"], {"protocol": "colonnade doctor"}, credentials, serve):
        finding = wrong(examine(plans["shop"], "shop", wait=10))["bank", "reach"]
    assert finding.said == "bank asks without end"
