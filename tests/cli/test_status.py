from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colonnade.cli.log import logged
from colonnade.cli.main import app
from colonnade.runtime.status import LiveStatus, Status


def told(folder: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["status", str(folder), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_is_told_while_it_goes_on_and_after_it_failed(tmp_path: Path) -> None:
    status, live = Status(tmp_path, {"party": "bank", "plan": "p"}), LiveStatus(tmp_path, every_s=0)
    live.wait(["shop"], 59.6)
    assert "bank: running since 20" in told(tmp_path)
    assert "Waiting for shop, 60 s left." in told(tmp_path)
    status.met = True
    status.note(common_rows=686, own_rows=760)
    live.step("bank", "train", 6, 40, {"loss": 0.5})
    live.line("shop", False)
    shown = told(tmp_path)
    assert "686 of 760 rows are common to all parties." in shown
    assert "train: step 6 of 40, loss 0.5." in shown
    assert "Gone: shop." in shown
    assert "Waiting" not in shown
    live.line("shop", True)
    assert "Gone" not in told(tmp_path)
    assert json.loads(told(tmp_path, "--json"))["live"]["done"] == 6
    status.write("failed", ValueError("No rows are left."))
    assert "ValueError: No rows are left." in told(tmp_path)
    assert "--resume goes on where it stopped" in told(tmp_path)


def test_a_run_that_never_met_the_others_needs_no_resume(tmp_path: Path) -> None:
    Status(tmp_path, {"party": "bank", "plan": "p"}).write("failed", ValueError("bank waited for shop."))
    assert "Run the same command again: it never met the others." in told(tmp_path)


def test_a_folder_without_a_run_is_a_storage_error(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["status", str(tmp_path)]).exit_code == 9


def test_what_cannot_be_written_live_ends_no_run(tmp_path: Path) -> None:
    LiveStatus(tmp_path / "nowhere").wait(["shop"], 1.0)


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_of_the_log_have_times_and_harmless_characters(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    with logged(form):  # type: ignore[arg-type]
        logging.getLogger("colonnade.wire").warning("%s is gone \x1b[2J", "shop")
    (line,) = capsys.readouterr().err.splitlines()
    if form == "json":
        found = json.loads(line)
        assert (found["level"], found["from"]) == ("warning", "colonnade.wire")
        assert found["message"].startswith("shop is gone")
        assert found["at"].startswith("20")
    else:
        assert line[4] == "-"
        assert line[19:] == " shop is gone ?[2J"
    logging.getLogger("colonnade.wire").info("afterwards nothing is written")
    assert capsys.readouterr().err == ""


def test_the_folder_above_a_run_is_refused_with_the_runs_below_it(tmp_path: Path) -> None:
    for party in ("bank", "shop"):
        (tmp_path / "credit-1" / party).mkdir(parents=True)
        (tmp_path / "credit-1" / party / "run.json").write_text("{}")
    result = CliRunner().invoke(app, ["status", str(tmp_path)])
    assert result.exit_code == 9
    assert "should be the folder of a run" in result.stderr
    for party in ("bank", "shop"):
        assert str(tmp_path / "credit-1" / party) in result.stderr.replace("\n", "")
