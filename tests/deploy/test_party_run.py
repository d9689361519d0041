"""One party's side of a planned run, mostly as far as it goes without the others."""

import fcntl
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from colonnade.curves import BSplines
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.deploy.party_run import PartyRun, ProgressCallbacks
from colonnade.deploy.preflight import require_network
from colonnade.errors import (
    AuthError,
    ColonnadeError,
    DataError,
    PeerUnreachable,
    PlanError,
    PrivacyError,
    StorageError,
)
from colonnade.models.base import Prediction
from colonnade.plans.align import PlannedAlign
from colonnade.plans.plan import Plan
from colonnade.plans.sections import (
    PlannedAddress,
    PlannedData,
    PlannedDefence,
    PlannedModel,
    PlannedNetwork,
    PlannedPrivacy,
    PlannedRun,
    PlannedTable,
)
from colonnade.privacy.ledger import spent_over_runs
from colonnade.roles import Roles
from colonnade.runtime.protocol import private_randomness
from colonnade.runtime.session import NetworkSession
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.testing.ports import free_port
from colonnade.wire.certs import authority as certs
from colonnade.wire.certs.credentials import show
from colonnade.wire.recording.storage_key import make_key

NETWORK = PlannedNetwork({"bank": PlannedAddress("127.0.0.1:1", listen="127.0.0.1:2")}, start=0.1)
PLAN = Plan(
    PlannedData("breast-cancer", rows=60),
    Roles(label="bank", features=("shop",)),
    PlannedModel("split-classifier", {"epochs": 1}),
    network=NETWORK,
    name="credit run",
    privacy=PlannedPrivacy(accept_label_leak=True),
)


def side(tmp_path: Path, name: str = "shop", plan: Plan = PLAN, **options: Any) -> PartyRun:
    return PartyRun.of(plan, name, tmp_path / "runs", insecure=True, **options)


def refusal(error: type[ColonnadeError], act: Any) -> str:
    with pytest.raises(error) as caught:
        act()
    return str(caught.value)


def test_a_side_has_a_folder_named_after_the_public_plan_and_the_party(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / f"credit-run-{PLAN.public().hash[:8]}" / "shop"
    assert side(tmp_path).path == folder
    elsewhere = replace(PLAN, network=replace(NETWORK, start=9.0), defences=(PlannedDefence("bank", "gradient-noise"),))
    assert side(tmp_path, plan=elsewhere).path == folder


def test_a_plan_without_a_network_is_refused() -> None:
    assert refusal(PlanError, lambda: require_network(replace(PLAN, network=None), "bank")) == (
        "A run between machines needs a section [network] in the plan, but it has none. Write [network.bank] and under "
        'it address = "host:port", where the others reach bank.'
    )


def test_a_party_listens_where_the_operator_then_the_plan_says(tmp_path: Path) -> None:
    assert side(tmp_path, "bank").listen == "127.0.0.1:2"
    assert side(tmp_path, "bank", listen="127.0.0.1:3").listen == "127.0.0.1:3"
    assert side(tmp_path, "shop").listen is None
    message = refusal(PlanError, lambda: side(tmp_path, "bank", listen="here"))
    assert message.startswith("--listen should be a host and a port")


def test_a_party_trains_on_its_part_of_a_named_sets_training_rows(tmp_path: Path) -> None:
    expected = PLAN.tables().train
    for name in ("bank", "shop"):
        table = side(tmp_path, name).table()
        assert table is not None
        assert table.digest() == expected[name].digest()
    judged = replace(PLAN, roles=replace(PLAN.roles, arbiter="notary"))
    assert side(tmp_path, "notary", judged).table() is None


def test_a_party_trains_on_all_rows_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text("id,spend\n1,1\n2,2\n3,3\n")
    plan = replace(PLAN, data=PlannedData(tables={"shop": PlannedTable(tmp_path / "shop.csv", "id")}))
    table = side(tmp_path, plan=plan).table()
    assert table is not None
    assert table.ids.to_pylist() == [1, 2, 3]


def test_a_run_in_which_nobody_came_is_begun_again_and_one_that_met_is_resumed_only_on_demand(tmp_path: Path) -> None:
    alone = side(tmp_path)
    assert alone.status == "planned"
    for _ in range(2):
        with pytest.raises(PeerUnreachable):
            alone.train()
        assert alone.status == "failed"
        assert refusal(StorageError, alone.audit) == (
            f"{alone.path} should hold a finished run, but it is failed. Run `colonnade join` again."
        )
    # What is put right before the others are met needs no new folder.
    defended = replace(PLAN, defences=(PlannedDefence("shop", "embedding-noise"),))
    assert side(tmp_path, plan=defended).path == alone.path
    with pytest.raises(PeerUnreachable):
        side(tmp_path, plan=defended).train()
    with pytest.raises(PeerUnreachable):
        alone.train()
    written = alone.path / "run.json"
    written.write_text(json.dumps({**json.loads(written.read_text()), "met": True}))
    assert refusal(PlanError, alone.train) == (
        f"{alone.path} should be new, but holds shop's side of this run, whose status is 'failed'. "
        "Go on with --resume, delete it to start again, or choose another folder with --out."
    )
    with pytest.raises(PeerUnreachable):
        alone.train(resume=True)
    assert Plan.read(alone.path / "plan.toml") == PLAN


def test_what_cannot_be_read_of_a_run_is_a_storage_error(tmp_path: Path) -> None:
    alone = side(tmp_path)
    alone.path.mkdir(parents=True)
    for damage in ("", "[]", "{}"):
        (alone.path / "run.json").write_text(damage)
        assert refusal(StorageError, lambda: alone.status) == (
            f"{alone.path / 'run.json'} should say how a run stands, but is damaged. "
            "Restore it, or delete the folder to start again."
        )


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    alone = side(tmp_path)
    alone.path.mkdir(parents=True)
    with (alone.path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert refusal(StorageError, alone.train) == (
            f"{alone.path} should be used by one process, but another one runs shop's side there. "
            "Wait until it ends, or choose another folder with --out."
        )


def test_randomness_comes_from_the_system_unless_the_plan_is_seeded(tmp_path: Path) -> None:
    for source, network in (("system", NETWORK), ("seeded", replace(NETWORK, randomness="seeded"))):
        alone = side(tmp_path / source, plan=replace(PLAN, network=network))
        with pytest.raises(PeerUnreachable):
            alone.train()
        assert json.loads((alone.path / "run.json").read_text())["randomness"] == source


def test_what_the_plan_says_about_keeping_is_kept_to_and_written_down(tmp_path: Path) -> None:
    network = replace(NETWORK, key_file=make_key(tmp_path / "storage.key"), keep_received="audit")
    alone = side(tmp_path, plan=replace(PLAN, network=network, run=PlannedRun(received="audit")))
    with pytest.raises(PeerUnreachable):
        alone.train()
    written = json.loads((alone.path / "run.json").read_text())
    assert (written["encrypted"], written["keep_received"], written["insecure"]) == (True, "audit", True)
    assert alone.path.stat().st_mode & 0o777 == 0o700


def test_a_party_holds_its_own_defences_only_and_the_seed_of_a_simulation(tmp_path: Path) -> None:
    defences = tuple(PlannedDefence(name, "gradient-noise", {"ratio": r}) for name, r in (("bank", 1), ("shop", 2)))
    plan = replace(PLAN, defences=defences, network=replace(NETWORK, randomness="seeded"), seed=7)
    bank = side(tmp_path, "bank", plan)
    party = bank._connect(plan.public(), bank.table(), tmp_path / "bank", ProgressCallbacks())
    assert isinstance(party.session, NetworkSession)
    assert [defence.name for defence in party.session.defences] == ["GradientNoise(ratio=1)"]
    assert party.random == private_randomness(7, "bank", plan.public())


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    certs.init(folder)
    for name in ("bank", "shop"):
        certs.issue(folder, name)
    return folder


def test_a_peer_is_recognised_by_the_certificate_it_has_handed_over(federation: Path, tmp_path: Path) -> None:
    shop = PartyRun.of(PLAN, "shop", tmp_path, certificates=federation)
    bank, other = (show(federation / f"{name}.pem") for name in ("bank", "shop"))
    assert shop.expected("bank") == bank
    assert shop.credentials is not None
    shop.credentials.recognise("bank", bank)
    assert refusal(AuthError, lambda: shop.credentials.recognise("bank", other)) == (
        f"Expected bank to show the certificate in {federation / 'bank.pem'}, whose words are '{bank.words}', but it "
        f"shows one whose words are '{other.words}'. If bank has a new one, compare the words by telephone, then "
        "replace or delete the file."
    )


def test_a_list_of_revoked_certificates_is_found_beside_the_plan(federation: Path, tmp_path: Path) -> None:
    assert PLAN.network is not None
    plan = replace(PLAN, network=replace(PLAN.network, revoked=tmp_path / "revoked.txt"))
    shop, bank = PartyRun.of(plan, "shop", tmp_path, certificates=federation), show(federation / "bank.pem")
    assert shop.credentials is not None
    shop.credentials.recognise("bank", bank)
    (tmp_path / "revoked.txt").write_text(f"{bank.words}\n")
    with pytest.raises(AuthError, match=r"Expected a certificate of bank that is not revoked, but .*revoked\.txt"):
        shop.credentials.recognise("bank", bank)
    (tmp_path / "revoked.txt").write_text(f"{show(federation / 'shop.pem').words}\n")
    with pytest.raises(AuthError, match="Expected a certificate of shop that is not revoked"):
        PartyRun.of(plan, "shop", tmp_path, certificates=federation)


def test_a_peer_that_has_handed_nothing_over_is_known_by_its_name(federation: Path, tmp_path: Path) -> None:
    shop = PartyRun.of(PLAN, "shop", tmp_path, certificates=federation)
    assert shop.expected("notary") is None
    assert shop.credentials is not None
    shop.credentials.recognise("notary", show(federation / "bank.pem"))
    assert side(tmp_path).expected("bank") is None


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `train` leaves it at shop."""
    plan = replace(PLAN, roles=Roles(label="bank", features=("shop",)))
    model = plan.trained.build()
    run = simulate(model.fit, plan.tables().train, roles=plan.roles, seed=plan.seed)
    folder = tmp_path_factory.mktemp("trained")
    run.results["shop"].save(folder / "model.safetensors")
    (folder / "run.json").write_text(json.dumps({"status": "finished", "plan": plan.public().hash}))
    return folder


def test_a_prediction_needs_a_model_of_its_plan(trained: Path, tmp_path: Path) -> None:
    other = replace(PLAN, seed=9)
    message = refusal(PlanError, lambda: side(tmp_path, plan=other).predict(trained))
    assert message == (
        f"{trained} should hold a model of this plan, but holds one of another. Name the folder that `colonnade join` "
        "made for this plan, or use the plan of the folder."
    )
    missing = refusal(StorageError, lambda: side(tmp_path).predict(tmp_path / "none"))
    assert missing.startswith(f"Could not read {tmp_path / 'none' / 'run.json'}: No such file or directory.")


def test_a_report_before_an_audit_names_the_command_that_makes_one(tmp_path: Path) -> None:
    bank = side(tmp_path)
    assert refusal(StorageError, bank.report) == (
        f"{bank.path} should hold a report, but the run was not audited yet. Run: colonnade audit {bank.path}"
    )


def test_a_prediction_is_written_as_csv_or_parquet_only(trained: Path, tmp_path: Path) -> None:
    two = side(tmp_path, plan=replace(PLAN, roles=Roles(label="bank", features=("shop",))))
    assert refusal(PlanError, lambda: two.predict(trained, out=tmp_path / "p.txt")) == (
        f"A prediction is written as .csv or .parquet, but --out is {tmp_path / 'p.txt'}. Choose one of them."
    )


def test_other_rows_are_for_plans_with_files(trained: Path, tmp_path: Path) -> None:
    two = side(tmp_path, plan=replace(PLAN, roles=Roles(label="bank", features=("shop",))))
    assert refusal(PlanError, lambda: two.predict(trained, file=tmp_path / "rows.csv")) == (
        "--rows is for plans that name shop's file, whose columns it should have, but this plan names a data set. "
        "Leave it out."
    )


def test_rows_to_predict_with_other_columns_or_too_few_of_them_are_refused_before_anybody_is_met(
    tmp_path: Path,
) -> None:
    (tmp_path / "shop.csv").write_text("id,spend,visits\n" + "".join(f"{i},{i % 7},{i}\n" for i in range(40)))
    files = PlannedData(tables={"shop": PlannedTable(tmp_path / "shop.csv", "id")})
    plan = replace(PLAN, data=files, model=PlannedModel("linear-regression"))
    bank = Table.of({"id": range(40), "y": range(40)}, labels="y")
    tables = {"bank": bank, "shop": plan.rows_to_predict("shop", None)}
    share = simulate(plan.trained.build().set_params(max_iter=1).fit, tables, roles=plan.roles).results["shop"]
    shop = side(tmp_path, plan=plan)
    shop.path.mkdir(parents=True)
    share.save(shop.model_path)
    (shop.path / "run.json").write_text(json.dumps({"status": "finished", "plan": plan.public().hash}))
    (tmp_path / "new.csv").write_text("id,visits\n1,2\n")
    assert refusal(DataError, lambda: shop.predict(shop.path, file=tmp_path / "new.csv")) == (
        "shop trained with the column 'spend' but its table has only visits. Bring the columns the model was trained "
        "with."
    )
    (tmp_path / "new.csv").write_text("id,spend,visits\n1,much,2\n")
    message = refusal(DataError, lambda: shop.predict(shop.path, file=tmp_path / "new.csv"))
    assert message.startswith("shop trained with numbers in the column 'spend', which now holds categorical values.")
    (tmp_path / "new.csv").write_text("id,spend,visits\n1,5,2\n")
    aligned = replace(shop, plan=replace(plan, align=PlannedAlign()))
    (shop.path / "run.json").write_text(json.dumps({"status": "finished", "plan": aligned.plan.public().hash}))
    message = refusal(PrivacyError, lambda: aligned.predict(shop.path, file=tmp_path / "new.csv"))
    assert message.startswith("A set to be aligned should have at least 100 ids under each key, but shop itself brings")
    assert not (shop.path / "predictions").exists()


@pytest.mark.network
@pytest.mark.parametrize(
    ("model", "settings"), [("split-classifier", {"tracks": "shadow-top"}), ("label-dp-shadow", {"epsilon": 0.5})]
)
def test_the_label_party_chooses_the_head_that_predicts(tmp_path: Path, model: str, settings: dict[str, Any]) -> None:
    address = PlannedAddress(f"127.0.0.1:{free_port()}")
    plan = replace(
        PLAN,
        roles=Roles(label="bank", features=("shop",)),
        model=PlannedModel(model, {"epochs": 1, **settings}),
        network=PlannedNetwork({"bank": address}, start=60),
    )
    tables = plan.tables()
    run = simulate(plan.trained.build().fit, tables.train, roles=plan.roles, seed=plan.seed)
    sides = {}
    for name, share in run.results.items():
        sides[name] = side(tmp_path, name, plan)
        sides[name].path.mkdir(parents=True)
        share.save(sides[name].model_path)
        (sides[name].path / "run.json").write_text(json.dumps({"status": "finished", "plan": plan.public().hash}))
    probabilities = {}
    for head in ("federated", "local"):
        with ThreadPoolExecutor() as pool:
            at_shop = pool.submit(sides["shop"].predict, sides["shop"].path)
            written = sides["bank"].predict(sides["bank"].path, head=head, out=tmp_path / f"{head}.parquet")
            assert at_shop.result() is None
        assert written is not None
        probabilities[head] = pq.read_table(written).column("probability 1").to_numpy()
        predicts: dict[str, Any] = {name: share.predict for name, share in run.results.items()}
        shares = {name: partial(predict, head=head) for name, predict in predicts.items()}
        expected = simulate(shares, tables.test, roles=plan.roles).results["bank"]
        np.testing.assert_allclose(probabilities[head], expected.probabilities[:, 1], rtol=1e-5)
    assert np.abs(probabilities["federated"] - probabilities["local"]).max() > 0.01


def test_a_head_is_refused_where_there_is_none_to_choose(trained: Path, tmp_path: Path) -> None:
    two = side(tmp_path, plan=replace(PLAN, roles=Roles(label="bank", features=("shop",))))
    before = sorted(trained.rglob("*"))
    assert refusal(PlanError, lambda: two.predict(trained, head="local")) == (
        "--head is for the label party of a model with two heads, but shop has none of SplitClassifier's. Leave it out."
    )
    assert sorted(trained.rglob("*")) == before


def test_every_prediction_has_a_folder_of_its_own(trained: Path, tmp_path: Path) -> None:
    two = side(tmp_path, plan=replace(PLAN, roles=Roles(label="bank", features=("shop",))))
    before = len(list((trained / "predictions").glob("*")))
    for _ in range(2):
        with pytest.raises(PeerUnreachable):
            two.predict(trained)
    numbers = sorted(path.name for path in (trained / "predictions").iterdir())
    assert numbers == [f"{number:04d}" for number in range(1, before + 3)]
    assert not list(trained.rglob("*checkpoints*")), "nobody goes on with a prediction that failed"


def test_a_prediction_is_written_with_ids_and_the_probability_of_every_class(tmp_path: Path) -> None:
    table = Table.of({"customer": ["a", "b"], "x": [1, 2]}, ids="customer")
    prediction = Prediction(np.array(["no", "yes"]), np.array([[0.9, 0.1], [0.2, 0.8]]))
    prediction.about(table, ["no", "yes"]).to_csv(tmp_path / "p.parquet")
    assert pq.read_table(tmp_path / "p.parquet").to_pydict() == {
        "customer": ["a", "b"],
        "prediction": ["no", "yes"],
        "probability no": [0.9, 0.2],
        "probability yes": [0.1, 0.8],
    }
    Prediction(np.array([1.5, 2.5])).about(table, None).to_csv(tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text() == '"customer","prediction"\n"a",1.5\n"b",2.5\n'


def test_a_planned_budget_counts_all_runs_between_machines_and_stops_the_next(tmp_path: Path) -> None:
    data = FunctionalSetting(n=60, p=1, active=(1,), basis=BSplines((0, 1), 6)).draw_one(1)
    files = {}
    for name, table in zip(("bank", "shop"), data.tables(1).values(), strict=True):
        pq.write_table(table.to_arrow(), tmp_path / f"{name}.parquet")
        files[name] = PlannedTable(tmp_path / f"{name}.parquet", "id", labels="response" if name == "bank" else None)
    settings = {
        "protection": {"clip": {"x01": 3.0}, "epsilon": 50},
        "stopping": {"max_steps": 10},
        "guard": False,
        "correction": 1,
    }

    def train(name: str, seed: int, address: str) -> str:
        network = PlannedNetwork({"bank": PlannedAddress(address)}, start=30)
        planned = PlannedModel("functional-boost", settings)
        roles, privacy = Roles(label="bank", features=("shop",)), PlannedPrivacy({"features": (60.0, 1e-5)})
        plan = Plan(PlannedData(tables=files), roles, planned, network=network, seed=seed, privacy=privacy)
        try:
            PartyRun.of(plan, name, tmp_path / "runs", insecure=True).train()
        except ColonnadeError as error:
            return type(error).__name__
        return "finished"

    outcomes = []
    for seed in (1, 2):
        address = f"127.0.0.1:{free_port()}"
        with ThreadPoolExecutor(2) as pool:
            outcomes.append(list(pool.map(train, ("bank", "shop"), (seed,) * 2, (address,) * 2)))
    assert outcomes[0] == ["finished", "finished"]
    assert outcomes[1][1] == "BudgetSpent"
    assert outcomes[1][0] != "finished"
    (spent,) = spent_over_runs(tmp_path / "runs" / "privacy-of-shop", 1e-5)
    assert spent.spent[Secret.FEATURES].epsilon == pytest.approx(50)


def test_an_alignment_between_machines_by_numbers_begins_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {}
    for name in ("bank", "shop"):
        (tmp_path / f"{name}.csv").write_text("id,mail\n" + "".join(f"{i},a{i}@post.example\n" for i in range(150)))
        files[name] = PlannedTable(tmp_path / f"{name}.csv", "id")

    def align(name: str, key: str, column: str, address: str) -> int | None:
        network = PlannedNetwork({"bank": PlannedAddress(address)}, start=30)
        planned = PlannedAlign(keys=(key,), columns=dict.fromkeys(("bank", "shop"), (column,)))
        roles = Roles(label="bank", features=("shop",))
        plan = Plan(PlannedData(tables=files), roles, network=network, align=planned)
        return PartyRun.of(plan, name, tmp_path / "runs" / key, insecure=True).align().size

    def both(key: str, column: str) -> list[str]:
        caplog.clear()
        address = f"127.0.0.1:{free_port()}"
        with ThreadPoolExecutor(2) as pool:
            sizes = list(pool.map(align, ("bank", "shop"), (key,) * 2, (column,) * 2, (address,) * 2))
        assert sizes == [150, 150]
        return [record.message for record in caplog.records if record.name == "colonnade.align.protocol"]

    warned = both("integer", "id")
    assert sorted(line.partition("learn which ")[2].split()[0] for line in warned) == ["bank", "shop"]
    assert both("email", "mail") == []
