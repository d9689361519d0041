"""The files under deploy/ are not run by tests, but they say what the command line and the errors say."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer

from colonnade import errors
from colonnade.cli.main import app

DEPLOY = Path(__file__).parents[2] / "deploy"
RESTART_MENDS = {errors.WireError.exit_code, errors.StorageError.exit_code, errors.EngineError.exit_code}


def parsed(arguments: list[str]) -> dict[str, Any]:
    """What the command line understands of some arguments, without doing it."""
    command, *rest = arguments
    shell: Any = typer.main.get_command(app)
    context = shell.commands[command].make_context(command, rest)
    found: dict[str, Any] = context.params
    return found


@pytest.fixture
def unit() -> ConfigParser:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((DEPLOY / "colonnade@.service").read_text())
    return unit


def test_the_unit_joins_as_its_instance_and_resumes(unit: ConfigParser) -> None:
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/colonnade")
    found = parsed(arguments)
    assert (found["name"], found["resume"], found["insecure"]) == ("%i", True, False)
    assert str(found["out"]).startswith(unit["Service"]["WorkingDirectory"])


def test_the_unit_starts_again_only_after_what_a_restart_mends(unit: ConfigParser) -> None:
    codes = {
        each.exit_code
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.ColonnadeError) and each is not errors.ColonnadeError
    }
    kept_down = {int(code) for code in unit["Service"]["RestartPreventExitStatus"].split()}
    assert kept_down == codes - RESTART_MENDS


def test_the_unit_writes_only_into_folders_that_systemd_makes_for_its_user(unit: ConfigParser) -> None:
    service = unit["Service"]
    state, cache = f"/var/lib/{service['StateDirectory']}", f"/var/cache/{service['CacheDirectory']}"
    assert service["ProtectSystem"] == "strict"
    assert service["WorkingDirectory"] == state
    assert service["Environment"] == f"NUMBA_CACHE_DIR={cache}"
    assert parsed(shlex.split(service["ExecStart"])[1:])["out"].is_relative_to(state)
    assert service["User"] == service["Group"] != "root"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    # It looks for the program, which is not installed where the unit says.
    text = (DEPLOY / "colonnade@.service").read_text().replace("/opt/colonnade/bin/colonnade", sys.executable)
    (tmp_path / "colonnade@.service").write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "colonnade@.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "colonnade@" not in done.stderr


@pytest.fixture
def compose() -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


@pytest.fixture
def party(compose: Any) -> Any:
    return compose["services"]["party"]


def places(party: Any) -> dict[str, str]:
    """What lies at each path that is mounted."""
    return {target: source for source, target, *_ in (volume.split(":") for volume in party["volumes"])}


def instruction(party: Any, name: str) -> list[str]:
    """The words of the image's one instruction of a name, or of all of them."""
    lines = party["build"]["dockerfile_inline"].replace("\\\n", " ").splitlines()
    return [word for line in lines if line.startswith(f"{name} ") for word in shlex.split(line)[1:]]


def test_the_compose_file_joins_as_the_party_it_is_told(party: Any) -> None:
    found = parsed(party["command"])
    assert found["name"] == "${PARTY:?Name the party}"
    assert (found["resume"], found["insecure"]) == (True, False)
    assert str(found["plan"]) == "plan.toml"
    assert {str(found["out"]), *instruction(party, "WORKDIR")} <= set(places(party))


def test_the_container_s_user_owns_all_that_it_writes_to(compose: Any, party: Any) -> None:
    made = instruction(party, "RUN")
    (user,) = instruction(party, "USER")
    assert made[made.index("useradd") :][:5] == ["useradd", "--uid", "1000", "--user-group", "--create-home"]
    install = made[made.index("install", made.index("useradd")) :]
    assert install[install.index("--owner") + 1] == install[install.index("--group") + 1] == user
    named = {target for target, source in places(party).items() if source in compose["volumes"]}
    assert {word for word in install if word.startswith("/")} == named
    assert {source for source in places(party).values() if not source.startswith(".")} == set(compose["volumes"])
    assert party["environment"]["HOME"] in party["tmpfs"]


def test_the_container_writes_nowhere_else(party: Any) -> None:
    found, written = parsed(party["command"]), {"/runs", "/cache"}
    assert party["read_only"] is True
    assert {str(found["out"]), party["environment"]["NUMBA_CACHE_DIR"]} == written
    assert [volume for volume in party["volumes"] if not volume.endswith(":ro")] == ["runs:/runs", "cache:/cache"]
    assert "/tmp" in party["tmpfs"]


def test_the_image_has_extras_that_exist_and_among_them_the_network(party: Any) -> None:
    (wanted,) = (word for word in instruction(party, "RUN") if word.startswith("/src["))
    extras = set(wanted.removeprefix("/src[").removesuffix("]").split(","))
    known = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "net" in extras <= set(known)


@pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0,
    reason="needs docker compose",
)
def test_compose_finds_nothing_wrong_with_the_file() -> None:
    command = ["docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(
        command, env={**os.environ, "PARTY": "bank"}, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", sorted(DEPLOY.iterdir()), ids=lambda path: path.name)
def test_a_file_that_no_test_runs_says_so(path: Path) -> None:
    assert re.match(r"# Untested: ", path.read_text())
