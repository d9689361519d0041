import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colonnade import audit
from colonnade.errors import DataError, PlanError, StorageError
from colonnade.experiment.run_folder import RunFolder
from colonnade.plans.plan import Plan
from colonnade.plans.sections import PlannedAudit, PlannedData, PlannedDefence, PlannedModel, PlannedTable
from colonnade.privacy.ledger import Event, Ledger
from colonnade.roles import Roles
from colonnade.runtime.executor import Serial
from colonnade.secret import Secret

PLAN = Plan(
    PlannedData("breast-cancer", rows=200),
    Roles(label="bank", features=("shop",)),
    PlannedModel("split-classifier", {"epochs": 3, "batch_size": 32}),
    audit=PlannedAudit(("norm-score", "direction-score"), nulls=2),
    name="two parties",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder.create(PLAN, tmp_path_factory.mktemp("runs"))
    folder.simulate()
    return folder


@pytest.fixture
def copied(finished: RunFolder, tmp_path: Path) -> RunFolder:
    shutil.copytree(finished.path, tmp_path / "copy")
    return RunFolder.open(tmp_path / "copy")


def test_a_folder_is_named_after_the_plan_and_its_hash(finished: RunFolder) -> None:
    assert finished.path.name == f"two-parties-{PLAN.hash[:8]}"


def test_a_finished_run_leaves_what_each_party_alone_would_hold(finished: RunFolder) -> None:
    assert finished.status == "finished"
    for party in ("bank", "shop"):
        left = {path.name for path in (finished.path / party).iterdir()}
        assert left == {"model.safetensors", "transcript"}


def test_a_run_that_has_finished_is_read_and_not_run_again(copied: RunFolder) -> None:
    left = {path: path.stat().st_mtime_ns for path in copied.path.rglob("*") if path.is_file()}
    leftover = copied.path / "shop" / "checkpoints" / "once-shares-key.safetensors"
    leftover.parent.mkdir()
    leftover.write_bytes(b"a crash came before it was erased")
    run = copied.simulate()
    assert {path: path.stat().st_mtime_ns for path in copied.path.rglob("*") if path.is_file()} == left
    assert run.results["bank"].is_fitted


def test_the_plan_in_a_folder_is_the_one_that_ran(finished: RunFolder) -> None:
    assert RunFolder.open(finished.path).plan == PLAN


def test_a_loaded_run_is_the_one_that_ended(finished: RunFolder) -> None:
    ended = PLAN.simulation(finished.tables().train).run()
    loaded = RunFolder.open(finished.path).load()
    assert loaded.plan == ended.plan
    assert loaded.id_digest == ended.id_digest
    for party in ("bank", "shop"):
        assert loaded.transcripts[party].digests() == ended.transcripts[party].digests()
        assert loaded.ledgers[party].events == ended.ledgers[party].events
        assert loaded.results[party].get_params() == ended.results[party].get_params()


def test_a_loaded_run_can_be_run_again(finished: RunFolder) -> None:
    loaded = finished.load()
    again = loaded.again()
    assert again.transcripts["shop"].digests() == loaded.transcripts["shop"].digests()


def test_an_audit_of_a_folder_finds_what_an_audit_of_the_run_finds(copied: RunFolder) -> None:
    run = PLAN.simulation(copied.tables().train).run()
    expected = replace(audit(run, PLAN.audit.build(), nulls=2), quality=copied.quality())
    assert copied.audit() == expected


def test_an_audit_leaves_its_report_to_be_read(copied: RunFolder) -> None:
    report = copied.audit(replace(PLAN.audit, nulls=1))
    assert "NormScore" in [finding.attack for finding in report.attacks]
    assert copied.report() == report
    assert "NormScore" in (copied.path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("part", [{"attacks": ("norm-score",)}, {"nulls": 1}, {"attackers": ("shop",)}], ids=str)
def test_an_audit_of_a_part_does_not_replace_the_report_of_the_whole(copied: RunFolder, part: dict[str, Any]) -> None:
    attackers = part.get("attackers")
    some = PLAN.audit if attackers else replace(PLAN.audit, **part)
    first = copied.audit(some, attackers=attackers)
    assert "partial simulated audit" in (copied.path / "report.html").read_text(encoding="utf-8")
    whole = copied.audit(PLAN.audit, attackers=PLAN.roles.parties)
    assert (first.partial, whole.partial) == (True, False)
    again = copied.audit(some, attackers=attackers)
    assert (copied.report(), again) == (whole, first)
    assert "partial simulated audit" in (copied.path / "report-partial.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("planned", "made", "covers"),
    [
        ({"attacks": ("norm-score",)}, {"attacks": ("norm-score", "direction-score")}, True),
        ({"attacks": ("norm-score", "direction-score")}, {"attacks": ("direction-score", "norm-score")}, True),
        ({"attacks": ("norm-score", "direction-score")}, {"attacks": ("norm-score",)}, False),
        ({"attacks": ("norm-score",)}, {}, True),
        ({"attacks": ("hint-score",)}, {}, False),
        ({"attacks": ("hint-score",)}, {"thorough": True}, True),
        ({}, {"attacks": ("norm-score",)}, False),
        ({}, {"thorough": True}, True),
        ({"thorough": True}, {}, False),
        ({"thorough": True}, {"thorough": True}, True),
        ({}, {"nulls": 19}, False),
        ({}, {"nulls": 21}, True),
        ({"epochs": 4}, {"epochs": 3}, False),
        ({"epochs": 4}, {"epochs": 5, "seed": 1}, True),
    ],
    ids=str,
)
def test_an_audit_is_whole_if_it_has_all_that_the_plan_asks_for(
    planned: dict[str, Any], made: dict[str, Any], covers: bool
) -> None:
    assert PlannedAudit(**made).covers(PlannedAudit(**planned)) is covers


def test_an_audit_with_more_than_the_plan_asks_for_is_whole(copied: RunFolder) -> None:
    more = replace(PLAN.audit, attacks=("direction-score", "norm-score", "hint-score"), nulls=3)
    report = copied.audit(more)
    assert not report.partial
    assert copied.report() == report


class Counted(Serial):
    """Counts its tasks, and is interrupted after some of them."""

    def __init__(self, most: float = math.inf) -> None:
        self.done, self.most = 0, most

    def map_unordered(self, function, tasks):
        for found in super().map_unordered(function, tasks):
            if self.done >= self.most:
                raise KeyboardInterrupt
            self.done += 1
            yield found


def test_an_interrupted_audit_goes_on_where_it_stopped(copied: RunFolder, finished: RunFolder) -> None:
    undisturbed = replace(PLAN.audit, nulls=4)
    with pytest.raises(KeyboardInterrupt):
        copied.audit(undisturbed, executor=Counted(most=3))
    journal = copied.path / "nulls.jsonl"
    assert len(journal.read_text().splitlines()) == 3
    journal.write_text(journal.read_text()[:-20])  # The last line was being written.
    rest = Counted()
    report = copied.audit(undisturbed, executor=rest)
    assert rest.done == 2
    assert not journal.exists()
    assert report == replace(audit(copied.load(), PLAN.audit.build(), nulls=4), quality=copied.quality())


def test_an_interrupted_audit_goes_on_after_another_one_was_made(copied: RunFolder) -> None:
    with pytest.raises(KeyboardInterrupt):
        copied.audit(replace(PLAN.audit, nulls=4), executor=Counted(most=3))
    copied.audit(replace(PLAN.audit, attacks=("norm-score",)))
    copied.audit(PLAN.audit, attackers=("shop",))
    rest = Counted()
    copied.audit(replace(PLAN.audit, nulls=4), executor=rest)
    assert rest.done == 1
    assert not list(copied.path.glob("nulls*"))


def test_an_interrupted_audit_of_a_part_goes_on_as_well(copied: RunFolder) -> None:
    some = replace(PLAN.audit, attacks=("norm-score",), nulls=4)
    with pytest.raises(KeyboardInterrupt):
        copied.audit(some, executor=Counted(most=3))
    copied.audit(PLAN.audit)
    rest = Counted()
    copied.audit(some, executor=rest)
    assert rest.done == 1
    assert not list(copied.path.glob("nulls*"))


@pytest.mark.slow
def test_a_killed_audit_goes_on_to_the_same_report(copied: RunFolder) -> None:
    journal = copied.path / "nulls.jsonl"
    call = (
        "from colonnade.experiment.run_folder import RunFolder\n"
        "from colonnade.plans.sections import PlannedAudit\n"
        f"RunFolder.open({str(copied.path)!r}).audit(PlannedAudit(('norm-score', 'direction-score'), nulls=500))"
    )
    child = subprocess.Popen([sys.executable, "-c", call])
    try:
        while not journal.exists() or len(journal.read_text().splitlines()) < 2:
            assert child.poll() is None
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
    rest = Counted()
    kept = len(journal.read_text().splitlines())
    whole = replace(audit(copied.load(), PLAN.audit.build()), quality=copied.quality())
    assert copied.audit(replace(PLAN.audit, nulls=20), executor=rest) == whole
    assert rest.done == max(0, 20 - kept)


def test_one_party_attacks_where_it_is_named(copied: RunFolder) -> None:
    attacks = replace(PLAN.audit, attacks=("norm-score", "passive-ridge"), nulls=1)
    report = copied.audit(attacks, attackers=["shop"])
    assert {finding.attacker for finding in report.attacks} == {"shop"}
    with pytest.raises(PlanError, match="An attacker should be a party of the run, one of bank, shop, but club"):
        copied.audit(attacks, attackers=["club"])


def test_a_plan_that_was_run_is_not_run_over(finished: RunFolder) -> None:
    with pytest.raises(PlanError) as caught:
        RunFolder.create(PLAN, finished.path.parent)
    assert str(caught.value) == (
        f"{finished.path} should be new, but holds a run of this plan whose status is 'finished'. "
        "Go on with --resume, delete it, or choose another folder."
    )


def test_a_run_that_is_to_be_deleted_starts_anew(tmp_path: Path) -> None:
    (RunFolder.create(PLAN, tmp_path).path / "old").touch()
    assert not (RunFolder.create(PLAN, tmp_path, existing="delete").path / "old").exists()


def test_a_finished_run_that_is_resumed_stays_as_it_is(copied: RunFolder) -> None:
    before = copied.metrics()
    copied.simulate()
    assert copied.metrics() == before


def test_another_seed_has_another_folder(tmp_path: Path) -> None:
    paths = {RunFolder.create(replace(PLAN, seed=seed), tmp_path).path for seed in range(3)}
    assert len(paths) == 3


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        RunFolder.open(tmp_path / "nothing")
    assert str(caught.value) == (
        f"The folder of a run was expected at {tmp_path / 'nothing'}, but that is no folder. "
        "Name a folder that `colonnade simulate` made, or a party's within one that `colonnade join` made."
    )


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"was expected at .+, but that has no plan\.toml\."):
        RunFolder.open(tmp_path)


def test_a_run_that_has_not_finished_cannot_be_loaded(tmp_path: Path) -> None:
    folder = RunFolder.create(PLAN, tmp_path)
    assert folder.status == "planned"
    with pytest.raises(StorageError) as caught:
        folder.load()
    assert str(caught.value) == (
        f"{folder.path} should hold a finished run, but it is planned. Finish it with `colonnade simulate --resume`."
    )


def test_a_run_that_was_not_audited_has_no_report(finished: RunFolder) -> None:
    with pytest.raises(StorageError) as caught:
        finished.report()
    assert str(caught.value) == (
        f"{finished.path} should hold a report, but the run was not audited yet. Run: colonnade audit {finished.path}"
    )


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["run.json", "bank/model.safetensors"])
def test_a_truncated_file_is_a_storage_error(copied: RunFolder, name: str) -> None:
    truncate(copied.path / name)
    with pytest.raises(StorageError):
        copied.load()


def test_a_truncated_index_of_a_transcript_is_a_storage_error(copied: RunFolder) -> None:
    truncate(copied.path / "shop" / "transcript" / "index.safetensors")
    with pytest.raises(StorageError):
        copied.load()


@pytest.mark.parametrize("name", ["metrics.json", "report.json"])
def test_a_truncated_result_is_a_storage_error(copied: RunFolder, name: str) -> None:
    read: Callable[[], object] = copied.metrics if name == "metrics.json" else copied.report
    (copied.path / name).write_text('{"rows": 5')
    with pytest.raises(StorageError):
        read()


def test_a_damaged_file_is_named(copied: RunFolder) -> None:
    (copied.path / "run.json").write_text("[]")
    with pytest.raises(StorageError) as caught:
        copied.load()
    assert str(caught.value) == (
        f"{copied.path / 'run.json'} should say how a run stands, but is damaged. "
        "Restore it, or delete the folder to start again."
    )


def test_a_missing_file_is_named(copied: RunFolder) -> None:
    (copied.path / "metrics.json").unlink()
    with pytest.raises(StorageError) as caught:
        copied.metrics()
    assert str(caught.value) == (
        f"{copied.path / 'metrics.json'} should be there after a run, but is missing. "
        "Restore it, or simulate again in another folder."
    )


def test_a_plan_that_was_changed_after_the_run_is_noticed(copied: RunFolder) -> None:
    path = copied.path / "plan.toml"
    path.write_text(path.read_text().replace("epochs = 3", "epochs = 4"))
    with pytest.raises(StorageError, match=r"but run\.json names another plan\. Restore the folder"):
        RunFolder.open(copied.path).load()


def test_a_run_is_not_audited_under_a_defence_that_was_written_into_its_plan_later(copied: RunFolder) -> None:
    defended = replace(copied.plan, defences=(PlannedDefence("bank", "gradient-noise", {"ratio": 2}),))
    assert defended.public().hash == copied.plan.public().hash
    with pytest.raises(StorageError, match=r"but run\.json names other defences\. Restore the folder"):
        RunFolder(copied.path, defended).load()


def test_a_run_of_another_version_is_not_audited_by_this_one(copied: RunFolder) -> None:
    path = copied.path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": "0.0.1"}))
    with pytest.raises(StorageError, match=r"but run\.json names another version\. Restore the folder"):
        copied.load()


@pytest.mark.parametrize("changed", ["{},51.0,b,0", "{},,b,0", "{},50.0,a,0", "{},50.0,b,1"])
def test_changed_data_is_noticed(tmp_path: Path, changed: str) -> None:
    bank, shop = tmp_path / "bank.csv", tmp_path / "shop.csv"
    bank.write_text("id,income,job,late\n" + "".join(f"{i},50.0,b,{i % 2}\n" for i in range(40)))
    shop.write_text("id,spend\n" + "".join(f"{i},{i}\n" for i in range(40)))
    tables = {"bank": PlannedTable(bank, "id", labels="late"), "shop": PlannedTable(shop, "id")}
    folder = RunFolder.create(replace(PLAN, data=PlannedData(tables=tables)), tmp_path / "runs")
    folder.simulate()
    trained_on = next(i for i in folder.tables().train["bank"].ids.to_pylist() if i % 2 == 0)
    bank.write_text(bank.read_text().replace(f"\n{trained_on},50.0,b,0\n", f"\n{changed.format(trained_on)}\n"))
    with pytest.raises(DataError) as caught:
        folder.tables()
    assert str(caught.value) == (
        "bank's rows to train on should be those the run began with, but they have changed. "
        "Restore the data, or simulate again in another folder."
    )


def test_what_releases_cost_is_loaded_with_the_run(copied: RunFolder) -> None:
    spent = Event(Secret.LABELS, "label", "randomised-response", (("epsilon", 1.0), ("n_classes", 2)))
    Ledger(path=copied.path / "bank" / "ledger").spend(spent)
    assert copied.load().ledgers["bank"].events == {spent: 1}


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as caught:
        RunFolder.create(PLAN, tmp_path / "file")
    assert str(caught.value) == (
        "Could not write plan.toml: Not a directory. Free some space or choose a folder that can be written, "
        "then run again."
    )


def test_a_name_that_is_too_long_for_the_disk_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="File name too long"):
        RunFolder.create(replace(PLAN, name="n" * 300), tmp_path)
