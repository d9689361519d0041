"""The files under deploy/ are not run by tests, but they say what the command line and the errors say."""

import re
import shlex
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer

from colonnade import errors
from colonnade.cli import app

DEPLOY = Path(__file__).parents[1] / "deploy"
RESTART_MENDS = {errors.WireError.exit_code, errors.StorageError.exit_code}


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


def test_the_compose_file_joins_as_the_party_it_is_told() -> None:
    yaml = pytest.importorskip("yaml")
    party = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["party"]
    found = parsed(party["command"])
    assert found["name"] == "${PARTY:?Name the party}"
    assert (found["resume"], found["insecure"]) == (True, False)
    assert str(found["plan"]) == "plan.toml"
    volumes = {place.split(":")[1] for place in party["volumes"]}
    assert {str(found["out"]), "/data"} <= volumes
    assert "WORKDIR /data" in party["build"]["dockerfile_inline"]


@pytest.mark.parametrize("path", sorted(DEPLOY.iterdir()), ids=lambda path: path.name)
def test_a_file_that_no_test_runs_says_so(path: Path) -> None:
    assert re.match(r"# Untested: ", path.read_text())
