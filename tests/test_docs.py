"""What the documentation says can be run is run, and what it points at is there."""

import ast
import contextlib
import csv
import dataclasses
import importlib
import inspect
import io
import re
import shlex
import struct
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from textwrap import dedent

import pytest
import typer

from colonnade.catalogue import DEFENCES, MODELS
from colonnade.cli.main import app
from colonnade.crypto.profiles import ARBITER, HISTOGRAM, SHARES
from colonnade.data import load, split
from colonnade.deploy.preflight import require_lines
from colonnade.experiment.measurement import SECTIONS
from colonnade.models.functional import estimator, moment_regression, moments_shared
from colonnade.models.functional.path import PathStopping
from colonnade.models.functional.release import Protection
from colonnade.models.functional.solve import Penalties
from colonnade.models.glm import estimator as glm
from colonnade.models.glm import shares as glm_shares
from colonnade.models.glm.estimator import LogisticRegression
from colonnade.models.networks import labeldp, oneshot
from colonnade.models.networks import server as server_network
from colonnade.models.networks import split as split_network
from colonnade.models.networks.messages import Embedding
from colonnade.models.networks.split import SplitClassifier
from colonnade.models.trees import estimator as trees
from colonnade.models.trees.estimator import SecureBoostClassifier, SecureBoostRegressor
from colonnade.plans.engine import PlannedEngine
from colonnade.plans.grid import GridPlan, PlannedSweep
from colonnade.plans.plan import Plan
from colonnade.roles import Roles
from colonnade.testing import check_defence, check_estimator

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
DECISIONS = [page for page in PAGES if re.match(r"\d{4}-", page.name)]
PLANS = sorted(EXAMPLES.glob("*.toml"))
COLONNADE = [sys.executable, "-m", "colonnade"]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    info: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The file that the block is, by its title."""
        named = re.fullmatch(r'python title="(\w+\.py)"', self.info)
        return named[1] if named else None


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for fence in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(fence[1].strip(), fence[2], text[: fence.start()].count("\n") + 1)


def run_page(page: Path) -> dict:
    """Run a page's Python blocks in one namespace, in order; a block that is a file is written to it."""
    namespace = {"__name__": page.stem}
    for block in blocks(page):
        if block.file:
            Path(block.file).write_text(block.text)
        elif block.info == "python":
            # Empty lines in front make a traceback name the line of the page.
            exec(compile("\n" * block.line + block.text, page, "exec"), namespace)
    return namespace


def run_script(*command: str | Path, folder: Path) -> str:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def verdicts(report) -> dict[tuple[str, str], str]:
    return {(finding.attacker, finding.attack): finding.verdict for finding in report.attacks}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A working directory whose modules can be imported, here and in other processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_readme_prints_a_good_models_quality_and_sends_the_shop_no_readable_gradient(elsewhere):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        page = run_page(ROOT / "README.md")
    assert ast.literal_eval(printed.getvalue())["AUC"] > 0.95
    assert verdicts(page["report"]) == {("bank", "SplitNarrowing"): "leaks, nobody singled out"}
    assert page["report"].attacks[0].plain.score.value == pytest.approx(0.31, abs=0.05)
    kinds = {entry.kind for entry in page["run"].transcripts["shop"].entries if not entry.sent}
    assert "trees/sums-query" in kinds
    assert not {kind for kind in kinds if "gradient" in kind.lower()}
    assert "can be inferred by bank" in (elsewhere / "report.html").read_text()


def test_what_the_readme_does_not_run_fits_the_code():
    (block,) = (block for block in blocks(ROOT / "README.md") if block.info == "python no-run")
    tree = ast.parse(block.text)
    imported = {
        alias.name: getattr(importlib.import_module(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert {call.func.id for call in calls} == imported.keys()
    for call in calls:
        inspect.signature(imported[call.func.id]).bind(*call.args, **{each.arg: each.value for each in call.keywords})


def test_the_readme_starts_with_a_sentence_two_commands_and_two_short_programs():
    shown = [(block.info, len(block.text.splitlines())) for block in blocks(ROOT / "README.md")][:3]
    assert [info for info, _ in shown] == ["", "python", "python no-run"]
    assert all(lines <= 12 for _, lines in shown)


def test_the_picture_of_a_report_is_the_one_that_the_makefile_takes_of_the_demo():
    rule = r"^docs/images/report\.png: demo\n\tchromium [^\n]*--window-size=(\d+),(\d+)"
    taken = re.search(rule, (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert taken is not None
    header = (DOCS / "images" / "report.png").read_bytes()[16:24]
    assert struct.unpack(">II", header) == (int(taken[1]), int(taken[2]))


@pytest.mark.slow
def test_the_tutorial_runs_and_finds_what_its_text_says(elsewhere):
    page = run_page(DOCS / "tutorial.md")
    scores = {}
    for ratio, report in {0: page["bare_report"], **page["noisy_reports"]}.items():
        scores[ratio] = {finding.attack: finding.plain.score.value for finding in report.attacks}
        assert set(verdicts(report).values()) == {"leaks"} or ratio == 20
    assert min(scores[0].values()) > 0.9
    assert scores[5]["DirectionScore"] > 0.9
    assert max(scores[20].values()) < 0.7


@pytest.mark.slow
def test_the_page_on_quality_prints_a_table_with_a_verdict(elsewhere):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        page = run_page(DOCS / "quality.md")
    assert printed.getvalue().splitlines()[-1] == page["quality"].verdict
    assert page["quality"].figures["AUC"].together > 0.95


@pytest.mark.slow
def test_the_commands_and_the_script_of_the_page_on_sweeps_run(elsewhere):
    grid, commands = (
        next(block.text for block in blocks(DOCS / "sweeps.md") if block.info == info) for info in ("toml", "")
    )
    (elsewhere / "grid.toml").write_text(grid)
    said = {}
    for line in commands.splitlines():
        program, *arguments = line.split()
        assert program == "colonnade"
        said[line] = run_script(*COLONNADE, *arguments, folder=elsewhere)
    assert "10 trials: 0 finished" in said["colonnade sweep grid.toml --dry-run"]
    assert "10 trials: 1 finished" in said["colonnade sweep grid.toml --probe"]
    assert "10 trials: 10 finished" in said["colonnade sweep status grid.toml"]
    page = run_page(DOCS / "sweeps.md")
    assert page["again"].summary() == page["results"].summary()
    assert (elsewhere / "figures" / "index.html").exists()


def test_the_page_on_the_benchmark_runs(elsewhere):
    cut = run_page(DOCS / "bench.md")["cut"]
    assert set(cut.tables) == {"bank", "shop"}


def commands(page: Path) -> list[list[str]]:
    """The commands of a page's blocks, as a shell would take them apart."""
    lines = [
        line for block in blocks(page) if block.info.split(" ")[0] in ("", "bash") for line in block.text.splitlines()
    ]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("colonnade ")]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_every_command_of_a_page_is_one_of_the_command_line_with_its_options(page):
    for _, *words in commands(page):
        command = typer.main.get_command(app)
        while hasattr(command, "commands"):
            # `colonnade sweep PLAN` is `colonnade sweep run PLAN`.
            name = words.pop(0) if words[0] in command.commands or command.name != "sweep" else "run"
            command = command.commands[name]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= known, f"{command.name} has no {given - known}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_toml_of_a_page_is_toml(page):
    for block in blocks(page):
        if block.info.partition(" ")[0] == "toml":
            assert tomllib.loads(block.text), block.line


@pytest.mark.parametrize("path", sorted((EXAMPLES / "sweeps").glob("*.toml")), ids=lambda path: path.stem)
def test_every_combination_of_an_example_sweep_is_possible(path):
    GridPlan.read(path).check()


def test_the_page_on_sweeps_names_every_key_and_every_first_word_of_a_figure():
    text = (DOCS / "sweeps.md").read_text()
    assert [field.name for field in dataclasses.fields(PlannedSweep) if f"| `{field.name}` |" not in text] == []
    assert [word for word in SECTIONS if f"| `{word}" not in text] == []


def test_the_privacy_page_prints_what_it_shows(elsewhere):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run_page(DOCS / "privacy.md")
    shown = next(block.text for block in blocks(DOCS / "privacy.md") if block.info == "text")
    assert printed.getvalue() == shown


@pytest.mark.slow
def test_the_page_on_extending_runs_and_its_classes_keep_their_contracts(elsewhere):
    page = run_page(DOCS / "extending.md")
    assert set(verdicts(page["report"]).values()) == {"leaks"}
    defended = verdicts(page["defended_report"])
    assert {(attack, verdict) for (_, attack), verdict in defended.items()} == {
        ("NormScore", "no leak found"),
        ("NearestGradient", "leaks"),
        ("Strongest", "leaks"),
    }
    assert page["accuracy"] > 0.9
    assert page["predicted"]["shop"] is None
    small = partial(SplitClassifier, epochs=2, batch_size=32, embedding=4)
    tables = load("bank-shop-telco", rows=150).split()
    check_defence(page["EqualLength"](), small, tables, page["roles"])
    # The contract kills a run at several of its frames, and this model sends one for each feature party only.
    patients = load("breast-cancer", rows=100).joined()
    cut = {f"party {i}": patients.columns[i::5] for i in range(5)}
    roles = Roles(label="party 0", features=tuple(cut)[1:])
    check_estimator(page["OneNumber"], split(patients, cut, labels="party 0"), roles)


@pytest.mark.parametrize(
    ("module", "page"),
    [
        (split_network, "split"),
        (server_network, "topologies"),
        (oneshot, "one-shot"),
        (labeldp, "label-dp"),
    ],
)
def test_the_page_on_a_protocol_draws_what_the_module_draws(module, page):
    drawings = [dedent(each) for each in module.__doc__.split("\n\n") if "─▶" in each]
    assert drawings
    text = (DOCS / "protocols" / f"{page}.md").read_text()
    for drawing in drawings:
        assert "Embedding(" in drawing
        assert drawing in text


@pytest.mark.parametrize("page", ["split", "topologies", "one-shot", "label-dp"])
def test_a_page_on_a_protocol_runs(elsewhere, page):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run_page(DOCS / "protocols" / f"{page}.md")
    assert printed.getvalue()


def test_the_page_on_split_networks_names_every_option():
    text = (DOCS / "protocols" / "split.md").read_text()
    assert [option for option in SplitClassifier().get_params() if f"| `{option}` |" not in text] == []


def test_the_page_on_alignment_runs_and_draws_what_the_module_draws(elsewhere):
    from colonnade.align import star

    page = run_page(DOCS / "protocols" / "alignment.md")
    assert {result.size for result in page["run"].results.values()} == {page["run"].results["bank"].size}
    assert page["shares"]["shop"].is_fitted
    drawing = dedent("\n".join(line for line in star.__doc__.splitlines() if line.startswith("    ")))
    assert "OrderDigest" in drawing
    assert drawing in (DOCS / "protocols" / "alignment.md").read_text()


def test_the_four_plans_of_an_arbiters_federation_are_of_one_run_and_have_the_lines_they_need(tmp_path):
    found = {block.info: block.text for block in blocks(DOCS / "network.md") if block.info.startswith("toml title=")}
    common = found.pop('toml title="in all four plans"')
    found['toml title="judge"'] = ""  # An arbiter has no table, and nothing to add.
    plans = {}
    for info, own in found.items():
        party = info.removeprefix('toml title="').removesuffix('"')
        (tmp_path / "plan.toml").write_text(f"{common}\n{own}")
        plans[party] = Plan.read(tmp_path / "plan.toml")
    roles = plans["judge"].roles
    assert plans.keys() == set(roles.parties)
    assert len({plan.public().hash for plan in plans.values()}) == 1
    addresses = plans["judge"].network.addresses(roles.parties)
    assert sum(address is None for address in addresses.values()) == 1, "so each two parties have a line"
    assert [require_lines(plan) for plan in plans.values()] == [6] * 4


def test_every_message_of_the_page_on_trouble_is_one_of_the_products():
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    messages = re.findall(r"^\| `([^`]+)` \|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(messages) > 20
    assert [message for message in messages if message not in source] == []


def test_the_page_on_machines_has_a_row_for_every_exit_code():
    from colonnade import errors

    codes = {each.exit_code for each in vars(errors).values() if hasattr(each, "exit_code")}
    text = (DOCS / "network.md").read_text()
    assert [code for code in sorted(codes) if f"\n| {code} | " not in text] == []


@pytest.mark.parametrize("page", ["plans", "which-model"])
def test_a_page_for_choosing_names_every_model(page):
    text = (DOCS / f"{page}.md").read_text()
    assert [name for name in MODELS if f"`{name}`" not in text] == []


def test_the_page_for_choosing_gives_the_areas_under_the_curve_that_were_measured():
    ways = {
        "label party alone": "alone",
        "split network": "split",
        "one shot": "one-shot",
        "label-private shadow": "label-dp",
    }
    measured = defaultdict(list)
    with (DOCS / "results" / "utility.csv").open() as file:
        for row in csv.DictReader(file):
            measured[row["set"], row["way"]].append(float(row["AUC"]))
    areas = {key: f"{fmean(values):.3f}" for key, values in measured.items()}
    (gained,) = re.findall(r"^## What is gained\n(.*?)^## ", (DOCS / "which-model.md").read_text(), re.M | re.S)
    said = {}
    for about, sentence in re.findall(r"On (credit default|breast cancer) (.*?)(?=On [a-z]|\Z)", gained, re.S):
        for way, area in re.findall(rf"({'|'.join(ways)})[^0-9]*(0\.\d+)", " ".join(sentence.split())):
            said[about.replace(" ", "-"), ways[way]] = area
    assert len(said) == gained.count("0.") == 6
    assert said == {key: areas[key] for key in said}
    assert areas["breast-cancer", "split"] == max(areas["breast-cancer", way] for way in ways.values())


def test_the_page_on_plans_names_every_key_of_an_alignment():
    from dataclasses import fields

    from colonnade.plans.align import PlannedAlign

    text = (DOCS / "plans.md").read_text()
    assert [f.name for f in fields(PlannedAlign) if f"`{f.name}`" not in text and f"[align.{f.name}]" not in text] == []


def test_the_page_on_plans_names_every_key_of_an_engine():
    text = (DOCS / "plans.md").read_text()
    text = text[text.index("\n`[engine]`") : text.index("## A run's folder")]
    assert [field.name for field in dataclasses.fields(PlannedEngine) if f"| `{field.name}` |" not in text] == []


def test_the_page_on_regressions_draws_what_the_modules_draw_and_runs(elsewhere):
    text = (DOCS / "protocols" / "glm.md").read_text()
    for module in (glm, glm_shares):
        drawing = dedent("\n".join(line for line in module.__doc__.splitlines() if line.startswith("    ")))
        assert "─▶" in drawing
        assert drawing in text
    page = run_page(DOCS / "protocols" / "glm.md")
    assert page["scores"]["bank"] > 0.75
    assert page["scores"]["shop"] is None


def test_the_page_on_regressions_names_every_option():
    text = (DOCS / "protocols" / "glm.md").read_text()
    assert [option for option in LogisticRegression().get_params() if f"| `{option}` |" not in text] == []


def test_the_page_on_trees_draws_what_the_module_draws_and_runs(elsewhere):
    text = (DOCS / "protocols" / "trees.md").read_text()
    drawing = dedent("\n".join(line for line in trees.__doc__.splitlines() if line.startswith("    ")))
    assert "SumsQuery" in drawing
    assert drawing in text
    page = run_page(DOCS / "protocols" / "trees.md")
    assert page["scores"]["bank"] > 0.75
    assert page["scores"]["shop"] is None


def test_the_page_on_trees_names_every_option():
    text = (DOCS / "protocols" / "trees.md").read_text()
    for model in (SecureBoostClassifier(), SecureBoostRegressor()):
        assert [option for option in model.get_params() if f"| `{option}` |" not in text] == []


@pytest.mark.slow
def test_the_script_of_boosted_trees_runs(tmp_path):
    said = run_script(sys.executable, EXAMPLES / "secureboost.py", folder=tmp_path)
    assert "With hidden sums" in said
    assert "The shop's splits" in said


def test_the_page_on_encryption_states_the_frozen_parameters():
    text = (DOCS / "encryption.md").read_text()
    for profile in (HISTOGRAM, ARBITER, SHARES):
        row = next(line for line in text.splitlines() if line.startswith(f"| `{profile.name}`"))
        for words in (f"| {profile.n} |", f"| {profile.security_bits} |", f"3 × {profile.flood_bits} bits"):
            assert words in row


@pytest.mark.slow
def test_the_script_of_a_regression_runs(tmp_path):
    said = run_script(sys.executable, EXAMPLES / "regression.py", folder=tmp_path)
    assert "Without an arbiter" in said
    assert "coefficients differ by at most" in said


@pytest.mark.slow
def test_the_page_on_curves_runs_and_selects_what_its_data_depend_on(elsewhere):
    page = run_page(DOCS / "protocols" / "functional.md")
    assert page["model"].selected_[0] == "warm"
    assert page["model"].privacy()["epsilon"] == pytest.approx(500)


def test_the_page_on_curves_draws_what_the_modules_draw():
    text = (DOCS / "protocols" / "functional.md").read_text()
    for module in (estimator, moment_regression, moments_shared):
        drawing = dedent("\n".join(line for line in module.__doc__.splitlines() if line.startswith("    ")))
        assert "─▶" in drawing
        assert drawing in text


def test_the_page_on_curves_names_every_option():
    text = (DOCS / "protocols" / "functional.md").read_text()
    fields = [
        field.name for settings in (Penalties, Protection, PathStopping) for field in dataclasses.fields(settings)
    ]
    options = [*estimator.FunctionalBoost().get_params(), *moment_regression.MomentRegression().get_params(), *fields]
    assert [option for option in options if f"| `{option}` |" not in text] == []


@pytest.mark.slow
def test_the_tutorial_on_curves_runs_and_finds_what_its_text_says(elsewhere, data_folder):
    page = run_page(DOCS / "tutorial-functional.md")
    assert set(page["company"].selected_) == {"temperature", "humidity", "wind"}
    assert page["ratio"] == pytest.approx(0.75, abs=0.02)
    assert not page["report"].budget["features"].is_private
    errors = {epsilon: round(float(error), 2) for epsilon, (error, _) in page["findings"].items()}
    assert errors[10_000.0] < errors[1_000.0] < errors[100.0] <= 1
    assert page["findings"][10_000.0][1].leaks
    assert not page["findings"][100.0][1].leaks
    assert all(found.measured <= found.claimed for _, found in page["findings"].values())


@pytest.mark.slow
def test_the_script_of_bike_sharing_runs(tmp_path, data_folder):
    said = run_script(sys.executable, EXAMPLES / "bike_sharing.py", folder=tmp_path)
    assert "has selected temperature, humidity" in said
    assert (tmp_path / "bike-surface.png").exists()


def test_every_decision_has_its_line_in_the_list():
    listed = re.findall(r"\((\d{4}-[\w-]+\.md)\)", (DOCS / "decisions" / "index.md").read_text())
    assert listed == [page.name for page in DECISIONS]
    assert [int(name[:4]) for name in listed] == list(range(1, len(listed) + 1))


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_says_context_decision_and_consequences(page):
    assert re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE) == ["Context", "Decision", "Consequences"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", prose)]
    local = [target for target in targets if target and not re.match(r"\w+:", target)]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.slow
def test_the_script_of_two_parties_runs(tmp_path):
    said = run_script(sys.executable, EXAMPLES / "two_parties.py", folder=tmp_path)
    assert "held-out rows" in said
    assert "bank's labels can be inferred by shop" in said


@pytest.mark.slow
def test_the_script_of_an_own_attack_runs(tmp_path):
    assert "NearestGradient" in run_script(sys.executable, EXAMPLES / "own_attack.py", folder=tmp_path)


@pytest.mark.slow
def test_the_script_of_one_shot_runs(tmp_path):
    said = run_script(sys.executable, EXAMPLES / "one_shot.py", folder=tmp_path)
    assert "32 components: shop allows 97% of its columns' variance" in said
    assert "shop received 0 messages" in said


@pytest.mark.slow
def test_the_script_of_dirty_ids_finds_the_two_whom_both_know(tmp_path):
    said = run_script(sys.executable, EXAMPLES / "align_dirty_ids.py", folder=tmp_path)
    (shop,) = (line for line in said.splitlines() if line.startswith("shop ["))
    assert shop.count("None") == 2
    assert "'s-9'" in shop
    assert "'s-8'" in shop


@pytest.mark.slow
def test_the_script_of_joins_trains_on_rows_found_by_two_keys_and_audits_them(tmp_path):
    said = run_script(sys.executable, EXAMPLES / "join_by_keys.py", folder=tmp_path)
    assert "400 aligned rows." in said
    assert "leak" in said.splitlines()[-1]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_an_example_plan_can_be_read(path):
    assert Plan.read(path).name == path.stem


HEADINGS = ["What it does", "What it protects", "Against whom", "What it does not", "Settings", "Sources"]


def lacking(name, defence, docs=DOCS):
    """What the pages on a defence lack, one sentence each."""
    page, index = docs / "defences" / f"{name}.md", docs / "defences" / "index.md"
    wanted = [f"## {heading}" for heading in HEADINGS]
    if f"({name}.md)" not in index.read_text():
        yield f"docs/defences/index.md lacks a row with a link to ({name}.md)."
    if not page.exists():
        yield f"docs/defences/{name}.md does not exist. It needs the headings {', '.join(wanted)}, in this order."
        return
    text = page.read_text()
    found = re.findall(r"^## .+$", text, re.MULTILINE)
    if found != wanted:
        yield f"docs/defences/{name}.md should have the headings {', '.join(wanted)}, but has {', '.join(found)}."
    settings, listed = list(inspect.signature(defence).parameters), re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    if listed != settings:
        yield f"docs/defences/{name}.md should have a row for each of {settings} under Settings, but has {listed}."
    owner = "shop" if Embedding in defence.acts_on else "bank"
    if [type(held) for held in run_page(page).get("defences", {}).get(owner, ())] != [defence]:
        yield (
            f"docs/defences/{name}.md should have a Python block with defences = {{'{owner}': [{defence.__name__}()]}}."
        )


@pytest.mark.parametrize("name", DEFENCES)
def test_every_defence_has_a_page_that_says_what_it_does_not(name, elsewhere):
    assert list(lacking(name, DEFENCES[name])) == []


def test_a_defence_without_a_page_is_told_what_is_missing(tmp_path):
    folder = tmp_path / "defences"
    folder.mkdir()
    (folder / "index.md").write_text("# Defences\n")
    page = folder / "clipped-gradient.md"
    row, no_page = lacking("clipped-gradient", DEFENCES["max-norm"], tmp_path)
    assert row == "docs/defences/index.md lacks a row with a link to (clipped-gradient.md)."
    assert no_page.startswith(
        "docs/defences/clipped-gradient.md does not exist. It needs the headings ## What it does, "
    )
    page.write_text("## What it does\n")
    _, headings, settings, block = lacking("clipped-gradient", DEFENCES["max-norm"], tmp_path)
    assert headings.endswith("## Settings, ## Sources, but has ## What it does.")
    assert "a row for each of ['least', 'most'] under Settings, but has []" in settings
    assert "a Python block with defences = {'bank': [MaxNorm()]}" in block


@pytest.mark.slow
def test_the_script_that_compares_defences_runs(tmp_path):
    options = ["breast-cancer", "--defences", "none", "sparse-gradient", "--epochs", "2", "--nulls", "1"]
    said = run_script(sys.executable, EXAMPLES / "compare_defences.py", *options, folder=tmp_path)
    assert [line.split("|")[1].strip() for line in said.splitlines()[2:]] == ["none", "sparse-gradient"]
    page = " ".join((DOCS / "defences" / "index.md").read_text().split())
    assert "for any defences and any data set of `colonnade data list`" in page


def test_the_architecture_page_has_a_line_for_every_room_and_names_files_that_exist() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "colonnade"
    rooms = [path.parent for path in source.rglob("__init__.py") if path.parent != source]
    tree = page.split("```")[1]
    assert [room.name for room in rooms if f"{room.name}/" not in tree] == []
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", page)
    assert named
    assert [path for path in named if not (source / path).exists() and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("family", ["models", "attacks", "defences", "auditing"])
def test_the_reference_has_every_public_name(family: str) -> None:
    stub = (ROOT / "src" / "colonnade" / family / "__init__.pyi").read_text("utf-8")
    page = (ROOT / "docs" / "api" / f"{family}.md").read_text("utf-8")
    named = re.findall(r"^from \.([\w.]+) import (\w+)", stub, re.MULTILINE)
    assert named
    wanted = {f"colonnade.{family}.{module}.{name}" for module, name in named}
    assert set(re.findall(r"^::: (\S+)$", page, re.MULTILINE)) == wanted
