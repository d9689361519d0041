import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import colonnade
from colonnade.auditing.report import PrivacyReport
from colonnade.cli.main import app
from colonnade.experiment.run_folder import RunFolder
from colonnade.secret import Secret
from tests.commands import Command, ended

ROOT = Path(__file__).parents[2]
SOURCE = Path(colonnade.__path__[0]).parent
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))

PLAN = """
[data]
name = "breast-cancer"
rows = 200
[roles]
label = "bank"
features = ["shop"]
[model]
name = "split-classifier"
epochs = 3
batch_size = 32
[audit]
attacks = ["norm-score"]
nulls = 2
"""
ENDLESS = PLAN.replace("epochs = 3", "epochs = 100000\nn_iter_no_change = 'none'") + "[run]\ncheckpoint_every = 20\n"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "colonnade", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE)}


def started(*arguments: str | Path) -> Command:
    return Command(*arguments, cwd=Path.cwd(), env=environment())


def only_folder(out: Path) -> Path:
    (path,) = out.iterdir()
    return path


def wait_for_a_checkpoint(out: Path, process: Command) -> None:
    while not list(out.glob("*/*/checkpoints/*.step.safetensors")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "credit.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was simulated and audited."""
    folder = tmp_path_factory.mktemp("audited")
    (folder / "credit.toml").write_text(PLAN)
    assert call("simulate", folder / "credit.toml", "--out", folder / "runs").exit_code == 0
    run = only_folder(folder / "runs")
    assert call("audit", run, "--jobs", "1").exit_code == 0
    return run


def test_the_version_is_the_packages() -> None:
    assert call("--version").stdout == f"colonnade {colonnade.__version__}\n"


def test_help_names_every_command() -> None:
    shown = call("--help").stdout
    assert all(re.search(rf"\b{name}\b", shown) for name in ("demo", "simulate", "audit", "report", "data"))


@pytest.mark.parametrize(
    ("command", "section"),
    [("doctor", "[network]"), ("join", "[network]"), ("predict", "[network]"), ("align", "[align]")],
)
def test_help_names_the_section_that_a_plan_needs(command: str, section: str) -> None:
    assert f"a section {section}." in call(command, "--help").stdout


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom colonnade.cli.main import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'numpy', 'sklearn', 'pyarrow') if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True
    ).stdout
    assert shown.endswith("[]\n")


def test_simulating_says_how_good_the_model_is_and_where_it_lies(plan: Path, tmp_path: Path) -> None:
    result = call("simulate", plan, "--out", tmp_path / "runs")
    folder = only_folder(tmp_path / "runs")
    assert result.exit_code == 0
    assert (
        "bank, shop hold 200 common rows, found in the clear as only a simulation may: 150 to train on" in result.stdout
    )
    assert f"AUC {RunFolder.open(folder).metrics()['AUC']:.3f}" in result.stdout
    assert f"Run: colonnade audit {folder}\n" in result.stdout


def test_simulating_one_shot_says_beside_its_quality_what_can_be_rebuilt(plan: Path, tmp_path: Path) -> None:
    plan.write_text(PLAN.replace('"split-classifier"', '"one-shot"\nleak_budget = {shop = 1.0}'))
    said = " ".join(call("simulate", plan, "--out", tmp_path / "runs").stdout.split())
    found = r"On held-out rows: .* By shop's own measurement, .* relative MSE 0\.\d\d .* worst column R² \d\.\d\d"
    assert re.search(found, said)


def test_another_seed_on_the_command_line_is_another_run(plan: Path, tmp_path: Path) -> None:
    assert call("simulate", plan, "--out", tmp_path / "runs", "--seed", "5").exit_code == 0
    assert RunFolder.open(only_folder(tmp_path / "runs")).plan.seed == 5


def test_a_run_that_is_there_is_refused_and_resumed_on_demand(audited: Path, tmp_path: Path) -> None:
    shutil.copytree(audited.parent, tmp_path / "runs")
    plan = audited.parents[1] / "credit.toml"
    refused = call("simulate", plan, "--out", tmp_path / "runs")
    assert refused.exit_code == 2
    assert "whose status is 'finished'. Go on with --resume" in refused.stderr
    assert call("simulate", plan, "--out", tmp_path / "runs", "--resume").exit_code == 0


def test_an_audit_prints_a_verdict_of_three_lines_and_writes_the_report(audited: Path, tmp_path: Path) -> None:
    shutil.copytree(audited, tmp_path / "run")
    result = call("audit", tmp_path / "run", "--nulls", "3", "--jobs", "1")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1] == (
        f"Written to {tmp_path / 'run' / 'report.html'} and report.json beside it. In full: colonnade report "
        f"{tmp_path / 'run'}"
    )
    assert lines[-4] == "No leak found by 1 attack."
    assert [line.split(":")[0] for line in lines[-3:-1]] == ["Quality", "Next"]
    assert "What could shop learn about bank's labels?" in call("report", tmp_path / "run").stdout
    assert {len(finding.plain.null) for finding in RunFolder.open(tmp_path / "run").report().attacks} == {3}


def test_an_audit_of_fewer_null_runs_leaves_the_planned_report_as_it_was(audited: Path, tmp_path: Path) -> None:
    shutil.copytree(audited, tmp_path / "run")
    result = call("audit", tmp_path / "run", "--nulls", "1", "--jobs", "1")
    assert result.stdout.splitlines()[-1].endswith("The report of the planned audit stays as it was.")
    assert call("report", tmp_path / "run").stdout == call("report", audited).stdout


def test_the_help_of_an_audit_says_which_report_is_replaced() -> None:
    shown = " ".join(call("audit", "--help").stdout.replace("│", " ").split())
    assert (
        "An audit with fewer attacks, attackers, null runs or epochs than the plan asks for, or not as thorough, does "
        "not replace the report of the planned audit." in shown
    )


def test_an_audit_of_a_named_attack_leaves_the_planned_report_as_it_was(audited: Path, tmp_path: Path) -> None:
    shutil.copytree(audited, tmp_path / "run")
    result = call("audit", tmp_path / "run", "--attack", "direction-score", "--nulls", "1", "--jobs", "1")
    assert result.stdout.splitlines()[-1] == (
        f"Written to {tmp_path / 'run' / 'report-partial.html'} and report-partial.json beside it. The report of the "
        "planned audit stays as it was."
    )
    assert call("report", tmp_path / "run").stdout == call("report", audited).stdout
    (finding,) = PrivacyReport.read(tmp_path / "run", "report-partial").attacks
    assert finding.attack == "DirectionScore"


def test_a_report_is_printed_in_full_and_as_markdown(audited: Path) -> None:
    assert "NormScore" in call("report", audited).stdout
    assert call("report", audited, "--markdown").stdout == RunFolder.open(audited).report().to_markdown()


def test_two_runs_are_compared_on_one_page(audited: Path, tmp_path: Path) -> None:
    shutil.copytree(audited, tmp_path / "other")
    shown = call("report", audited, "--beside", tmp_path / "other")
    assert shown.exit_code == 0, shown.stderr
    assert "shop about bank's labels" in shown.stdout
    result = call("report", audited, "--beside", tmp_path / "other", "--html", tmp_path / "page.html")
    assert result.stdout == f"Written to {tmp_path / 'page.html'}.\n"
    assert f"<title>{audited.name} beside other</title>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_report_of_a_folder_tells_the_quality_that_the_run_measured(audited: Path) -> None:
    folder = RunFolder.open(audited)
    quality = folder.report().quality
    assert quality is not None
    assert quality == folder.quality()
    assert quality.figures["AUC"].together == pytest.approx(folder.metrics()["AUC"])


def test_a_report_printed_as_json_is_the_one_in_the_folder(audited: Path) -> None:
    assert json.loads(call("report", audited, "--json").stdout) == json.loads((audited / "report.json").read_text())


def test_a_report_is_written_as_a_page_where_it_is_wanted(audited: Path, tmp_path: Path) -> None:
    result = call("report", audited, "--html", tmp_path / "page.html")
    assert result.stdout == f"Written to {tmp_path / 'page.html'}.\n"
    assert "NormScore" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_data_sets_are_listed_with_where_they_are() -> None:
    result = CliRunner().invoke(app, ["data", "list"], env={"COLONNADE_DATA": "/nowhere"})
    lines = result.stdout.splitlines()
    assert re.fullmatch(
        r"bank-shop-telco +4,000 +22 +binary +\S.* built in *", next(x for x in lines if "bank-shop" in x)
    )
    assert "adult.parquet (missing)" in result.stdout


def test_an_error_is_one_sentence_and_the_exit_code_of_its_class(tmp_path: Path) -> None:
    plan = tmp_path / "bad.toml"
    plan.write_text(PLAN.replace("epochs", "epoch"))
    result = call("simulate", plan)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.fullmatch(r"Error: \[model\] takes .+ The nearest name is 'epochs'\. .+\n", result.stderr)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("simulate", "none.toml"), 2, "A plan was expected at none.toml"),
        (("audit", "nowhere"), 9, "The folder of a run was expected at nowhere"),
        (("report", "nowhere"), 9, "The folder of a run was expected at nowhere"),
    ],
)
def test_what_is_not_there_is_said_with_its_exit_code(arguments: tuple[str, ...], code: int, said: str) -> None:
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith(f"Error: {said}")


def test_an_unknown_attack_is_refused(audited: Path) -> None:
    result = call("audit", audited, "--attack", "norm-scor")
    assert result.exit_code == 2
    assert "norm-score" in result.stderr


def test_a_report_before_the_audit_is_refused(plan: Path, tmp_path: Path) -> None:
    assert call("simulate", plan, "--out", tmp_path / "runs").exit_code == 0
    result = call("report", only_folder(tmp_path / "runs"))
    assert result.exit_code == 9
    assert "was not audited yet. Run: colonnade audit" in result.stderr


def test_an_error_at_a_party_is_followed_by_its_name(tmp_path: Path) -> None:
    plan = tmp_path / "credit.toml"
    plan.write_text(PLAN.replace("epochs = 3", "epochs = 0"))
    result = call("simulate", plan, "--out", tmp_path / "runs")
    assert result.exit_code == 2
    sentence, note = result.stderr.splitlines()
    assert "SplitClassifier's epochs should be 'auto' or a whole number, at least 1, but is 0." in sentence
    assert note == "This happened at bank."


def test_a_traceback_is_shown_only_on_demand(tmp_path: Path) -> None:
    typed = ("simulate", tmp_path / "none.toml")
    quiet, loud = (ended(*each, cwd=tmp_path, env=environment()) for each in (typed, ("--debug", *typed)))
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
    assert (quiet.returncode, quiet.stdout) == (2, "")


def test_a_place_that_cannot_be_written_is_a_storage_error(plan: Path) -> None:
    result = call("simulate", plan, "--out", plan)
    assert result.exit_code == 9
    assert "Could not write plan.toml: Not a directory." in result.stderr


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_a_storage_error(plan: Path, tmp_path: Path) -> None:
    # A limit on the size of files is refused by the same call as a full disk, and needs no rights.
    limited = ["bash", "-c", 'ulimit -f 16; exec "$@"', "bash", *command("simulate", plan, "--out", tmp_path / "runs")]
    result = subprocess.run(limited, env=environment(), capture_output=True, text=True, check=False)
    assert result.returncode == 9, result.stderr
    assert re.match(r"Error: Could not write .+: File too large\. Free some space", result.stderr)


def test_output_is_plain_where_it_is_no_terminal(audited: Path) -> None:
    for arguments in (("report", audited), ("data", "list"), ("simulate", "none.toml")):
        result = ended(*arguments, cwd=Path.cwd(), env=environment())
        assert "\x1b" not in result.stdout + result.stderr


def test_an_error_is_red_on_a_terminal(tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    environment_of_terminal = {**environment(), "TERM": "xterm"} | {"NO_COLOR": ""}
    with subprocess.Popen(command("audit", tmp_path), env=environment_of_terminal, stderr=terminal) as process:
        os.close(terminal)
        assert process.wait() == 9
        shown = os.read(master, 4096)
    os.close(master)
    assert shown.startswith(b"\x1b[31mError: The folder of a run was expected at ")


@pytest.mark.slow
def test_an_interrupted_simulation_exits_as_interrupted(tmp_path: Path) -> None:
    plan, out = tmp_path / "endless.toml", tmp_path / "runs"
    plan.write_text(ENDLESS)
    process = started("simulate", plan, "--out", out)
    wait_for_a_checkpoint(out, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr == "Interrupted.\nThe same command with --resume goes on where this one stopped.\n"
    assert RunFolder.open(only_folder(out)).status == "failed"


@pytest.mark.slow
def test_a_killed_simulation_resumes_to_the_same_end(tmp_path: Path) -> None:
    plan = tmp_path / "long.toml"
    # Long enough that it is still training when its first checkpoint has been seen.
    plan.write_text(ENDLESS.replace("100000", "300"))
    process = started("simulate", plan, "--out", tmp_path / "killed")
    wait_for_a_checkpoint(tmp_path / "killed", process)
    process.kill()
    process.communicate()
    killed = RunFolder.open(only_folder(tmp_path / "killed"))
    assert killed.status == "running"
    assert call("simulate", plan, "--out", tmp_path / "killed", "--resume").exit_code == 0
    assert call("simulate", plan, "--out", tmp_path / "straight").exit_code == 0
    straight = RunFolder.open(only_folder(tmp_path / "straight"))
    assert killed.metrics() == straight.metrics()
    for party in ("bank", "shop"):
        resumed, uninterrupted = (folder.load().transcripts[party] for folder in (killed, straight))
        assert resumed.digests() == uninterrupted.digests()


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_can_be_simulated_and_audited(path: Path, tmp_path: Path) -> None:
    simulated = call("simulate", path, "--out", tmp_path)
    assert simulated.exit_code == 0, simulated.stderr
    assert "On held-out rows" in simulated.stdout
    audited = call("audit", only_folder(tmp_path), "--nulls", "2", "--jobs", "1")
    assert audited.exit_code == 0, audited.stderr
    assert "What could shop learn about bank's labels?" in call("report", only_folder(tmp_path)).stdout


@pytest.mark.slow
def test_the_plan_on_the_page_can_be_simulated_and_audited(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")
    plan = tmp_path / "plan.toml"
    plan.write_text(page.split("```toml\n")[1].split("```")[0])
    assert call("simulate", plan, "--out", tmp_path / "runs").exit_code == 0
    assert call("audit", only_folder(tmp_path / "runs"), "--jobs", "1").exit_code == 0


@pytest.mark.slow
def test_the_python_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(page.split("```python\n")[1].split("```")[0], {})
    assert RunFolder.open(only_folder(tmp_path / "runs")).report().attacks


@pytest.mark.slow
def test_the_demo_tells_its_story_and_leaves_two_reports_whose_first_screen_says_it_all(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    result = call("demo", "--quick", "--out", tmp_path / "runs", "--jobs", "2")
    assert result.exit_code == 0, result.stderr
    assert "They find out without showing each other anybody else." in result.stdout
    figures = re.findall(r"^ (the bank alone|bank, shop and telco) +[\d.]+% +([\d.]+)", result.stdout, re.MULTILINE)
    assert [who for who, _ in figures] == ["the bank alone", "bank, shop and telco"]
    folders = {RunFolder.open(path).plan.name: path for path in (tmp_path / "runs").iterdir()}
    assert folders.keys() == {"demo", "demo-noise"}
    for path in folders.values():
        found = RunFolder.open(path).quality()
        assert found is not None
        assert found.alone_by == "the same network"
        assert f"{found.figures['AUC'].alone:.3f}" == figures[0][1]
        assert f"{path / 'report.html'}\n" in result.stdout
        assert (path / "report.html").exists()
        assert RunFolder.open(path).report().attacks
    for found in RunFolder.open(folders["demo"]).report().attacks:
        if found.about is Secret.LABELS:
            told = rf"^ {found.attack} +{found.attacker} +{found.measure} +{found.plain.score.value:.3f} "
            assert re.search(told, result.stdout, re.MULTILINE), told
    if shutil.which("chromium"):
        measured, script = request.getfixturevalue("measured"), request.getfixturevalue("first_screen")
        page = (folders["demo"] / "report.html").read_text(encoding="utf-8")
        for width, height in ((1280, 800), (390, 844)):
            seen = measured(page, width, height, script=script)
            assert max(seen[part] for part in ("matrix", "quality", "next")) <= height
            assert seen["height"] <= 4000
    # It can be told twice.
    assert call("demo", "--quick", "--out", tmp_path / "runs", "--jobs", "2").stdout == result.stdout
