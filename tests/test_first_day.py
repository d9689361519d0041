"""The first day of a newcomer, stumble by stumble: what was typed then, and what has to happen now.

`newcomer.toml` beside this file lists every stumble of a review of commit ebf5774, the tests that keep it from coming
back, and what they met on that commit. The tests here use only what a user types, so that this very file can be run on
that commit too, where all tests fail but for those of rows that the list calls fine:

    git worktree add ../old ebf5774
    PYTHONPATH=../old/src python -m pytest tests/test_first_day.py --noconftest -o addopts=--import-mode=importlib
"""

from __future__ import annotations

import ast
import gzip
import importlib
import inspect
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import tomllib
import zipfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import colonnade

SOURCE = Path(colonnade.__path__[0])
ROOT = SOURCE.parents[1]
LIST = Path(__file__).with_name("newcomer.toml")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
TWO = 'label = "bank"\nfeatures = ["shop"]'
FOUR = 'label = "bank"\nfeatures = ["shop", "telco"]\narbiter = "judge"'
ONE_SHOT = 'name = "one-shot"\nepochs = 1\nleak_budget = { shop = 1.0 }'
N = 160


def public(name: str) -> Any:
    """A public name, wherever the version that is tested has it."""
    for home in ("", ".models", ".defences", ".attacks", ".data", ".audit"):
        try:
            found = getattr(importlib.import_module(f"colonnade{home}"), name)
            return getattr(found, name) if inspect.ismodule(found) else found
        except (AttributeError, ImportError):
            continue
    raise AssertionError(f"There is no public name {name}.")


def typed(*arguments: str | Path) -> tuple[int, str]:
    """Type a command in this process: its exit code, and all that it says with single spaces."""
    home = "colonnade.cli.main" if (SOURCE / "cli").is_dir() else "colonnade.cli"
    result = CliRunner().invoke(importlib.import_module(home).app, [str(each) for each in arguments])
    return result.exit_code, " ".join(result.output.split())


def together(folder: Path, *arguments: str, **each: list[str]) -> dict[str, tuple[int, str]]:
    """Type a command at bank and shop at the same time, each with options of its own."""
    started = {party: start(folder, party, *arguments, *each.get(party, [])) for party in ("shop", "bank")}
    said = {party: process.communicate(timeout=200)[0] for party, process in started.items()}
    return {party: (started[party].returncode, " ".join(said[party].split())) for party in started}


def start(folder: Path, party: str, command: str, *options: str) -> Any:
    """Begin a command of one party in a process of its own."""
    typed = [command, "plan.toml", "--as", party, "--insecure", *options]
    try:
        from tests.commands import Command
    except ImportError:  # The version of the review had nothing to fork from.
        whole = [sys.executable, "-m", "colonnade", *typed]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(whole, cwd=folder / party, env=ENVIRONMENT, **pipes)
    return Command(*typed, cwd=folder / party, env=ENVIRONMENT, merged=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def plan(model: str, data: str = "", *, roles: str = TWO, network: str = "", more: str = "") -> str:
    network = network or f'[network.bank]\naddress = "127.0.0.1:{free_port()}"'
    return f'name = "credit"\nseed = 1\n[roles]\n{roles}\n[model]\n{model}\n{data}\n{more}\n{network}\n'


def table_of(party: str, *, ids: str = "id", labels: str = "", more: str = "") -> str:
    label = f'labels = "{labels}"' if labels else ""
    return f'[data.{party}]\npath = "{party}.csv"\nids = "{ids}"\n{label}\n{more}'


def write_csv(path: Path, columns: dict[str, list[Any]]) -> None:
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([",".join(columns), *rows, ""]), encoding="utf-8")


def wrong(said: str) -> str:
    """What the doctor of one party alone calls wrong, but for the others' absence."""
    return " ".join(line for line in re.split(r"(?=WRONG|\bok\b|\bnote\b)", said) if line.startswith("WRONG"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


# A1, A4, A5: rows, alignments, one applicant


def federation(folder: Path, shop: range, model: str = ONE_SHOT, align: str = "") -> Path:
    """A bank with 160 customers and a shop with some of them."""
    mails = {"bank": [f"p{i}@example.org" for i in range(N)], "shop": [f" P{i}@Example.org" for i in shop]}
    columns = {"bank": {"income": range(N), "late": [i % 2 for i in range(N)]}, "shop": {"spend": list(shop)}}
    more = f'[align]\nkeys = ["email"]\nworkers = 1\nfewest = 20\n{align}'
    network = f'[network]\nstart = 60\nrejoin = 60\n[network.bank]\naddress = "127.0.0.1:{free_port()}"'
    for party, ids in mails.items():
        (folder / party).mkdir(parents=True, exist_ok=True)
        write_csv(folder / party / f"{party}.csv", {"mail": ids, **{k: list(v) for k, v in columns[party].items()}})
        data = table_of(party, ids="mail", labels="late" if party == "bank" else "")
        (folder / party / "plan.toml").write_text(plan(model, data, network=network, more=more))
    return folder


def change(folder: Path, old: str, new: str, *parties: str) -> None:
    for party in parties or ("bank", "shop"):
        path = folder / party / "plan.toml"
        path.write_text(path.read_text().replace(old, new))


def counted(folder: Path, party: str = "shop") -> int:
    """How many alignments a party's log holds."""
    log = folder / party / "runs" / f"alignments-of-{party}"
    return log.read_text().count("aligned") if log.exists() else 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, str]]]:
    """A bank and a shop that have trained on 150 common rows, and what they were told."""
    folder = federation(tmp_path_factory.mktemp("trained"), range(10, 170), align="most_runs = 1")
    said = together(folder, "join")
    assert {code for code, _ in said.values()} == {0}, said
    return folder, said


def model_of(folder: Path, party: str) -> list[str]:
    (found,) = (folder / party / "runs").glob(f"credit-*/{party}")
    return ["--model", str(found)]


@pytest.mark.slow
@pytest.mark.network
def test_join_says_how_many_rows_are_common_and_of_how_many(trained) -> None:
    for _, said in trained[1].values():
        assert "150 of your 160 rows" in said


@pytest.mark.slow
@pytest.mark.network
def test_the_file_of_a_run_holds_how_many_rows_are_common(trained) -> None:
    for party in ("bank", "shop"):
        (path,) = trained[0].glob(f"{party}/runs/*/{party}/run.json")
        held = json.loads(path.read_text())
        assert (held["common_rows"], held["own_rows"]) == (150, 160)


@pytest.mark.slow
@pytest.mark.network
def test_nothing_is_trained_on_a_handful_of_common_rows(tmp_path: Path) -> None:
    said = together(federation(tmp_path, range(156, 204)), "join")
    assert 0 not in {code for code, _ in said.values()}
    assert any("fewest_common" in text for _, text in said.values()), said
    assert not list(tmp_path.rglob("model.safetensors"))


@pytest.mark.slow
@pytest.mark.network
def test_a_refusal_before_the_first_id_costs_no_alignment(tmp_path: Path) -> None:
    said = together(federation(tmp_path, range(N), model='name = "one-shot"'), "join")
    assert 0 not in {code for code, _ in said.values()}
    assert (counted(tmp_path, "bank"), counted(tmp_path, "shop")) == (0, 0)


@pytest.mark.slow
@pytest.mark.network
def test_a_prediction_does_not_use_up_the_alignments_for_training(trained) -> None:
    folder, _ = trained
    said = together(folder, "predict", **{name: model_of(folder, name) for name in ("bank", "shop")})
    assert {code for code, _ in said.values()} == {0}, said
    assert "150 of your 160 rows" in said["bank"][1]


@pytest.mark.slow
@pytest.mark.network
def test_trials_on_a_finished_alignment_cost_no_other_one(tmp_path: Path) -> None:
    federation(tmp_path, range(N))
    assert {code for code, _ in together(tmp_path, "align").values()} == {0}
    for party in ("bank", "shop"):
        (found,) = (tmp_path / party / "runs").glob(f"*/{party}")
        change(tmp_path, "fewest = 20", f'fewest = 20\nfinished = "{found.parent}"', party)
    for epochs in (1, 2):
        change(tmp_path, "epochs = 1", f"epochs = {epochs}")
        said = together(tmp_path, "join")
        assert {code for code, _ in said.values()} == {0}, said
    assert counted(tmp_path) == 1


@pytest.mark.slow
@pytest.mark.network
def test_one_applicant_is_scored(trained) -> None:
    folder, _ = trained
    (folder / "bank" / "one.csv").write_text("mail,income\np77@example.org,5\n")
    change(folder, "fewest = 20", "fewest = 20\nmost_lookups = 1", "shop")
    options = {name: [*model_of(folder, name), "--lookup"] for name in ("bank", "shop")}
    options["bank"] += ["--rows", "one.csv", "--out", "one-scored.csv"]
    said = together(folder, "predict", **options)
    assert {code for code, _ in said.values()} == {0}, said
    assert (folder / "bank" / "one-scored.csv").read_text().splitlines()[1].startswith('"p77@example.org",')


# A2, A3: what the run will need


@pytest.fixture
def four(here: Path) -> Path:
    for party in ("bank", "shop", "telco"):
        label = {"late": [i % 2 for i in range(N)]} if party == "bank" else {}
        write_csv(here / f"{party}.csv", {"id": list(range(N)), "x": [i * 7 % 11 for i in range(N)], **label})
    return here


def examined(folder: Path, party: str, text: str) -> tuple[int, str]:
    (folder / "plan.toml").write_text(text)
    return typed("doctor", folder / "plan.toml", "--as", party, "--insecure", "--wait", "1")


@pytest.mark.network
@pytest.mark.parametrize(
    ("addressed", "lacking"), [(["bank"], ("shop", "judge")), (["bank", "judge"], ("shop", "telco"))]
)
def test_the_doctor_misses_no_line_that_training_or_prediction_needs(four: Path, addressed, lacking) -> None:
    network = "".join(f'[network.{name}]\naddress = "127.0.0.1:{free_port()}"\n' for name in addressed)
    text = plan('name = "logistic-regression"', table_of("shop"), roles=FOUR, network=network)
    assert "needs a line between {} and {}".format(*lacking) in wrong(examined(four, "shop", text)[1]).replace(
        "judge and shop", "shop and judge"
    )


@pytest.mark.slow
@pytest.mark.network
def test_the_doctor_compares_how_both_read_ids(tmp_path: Path) -> None:
    federation(tmp_path, range(N))
    change(tmp_path, 'keys = ["email"]', "")
    for party, form in (("bank", "{:d}"), ("shop", "{:05d}")):
        path = tmp_path / party / f"{party}.csv"
        head, *rows = path.read_text().splitlines()
        path.write_text(
            "\n".join([head, *(f"{form.format(i)},{row.split(',', 1)[1]}" for i, row in enumerate(rows)), ""])
        )
    for code, said in together(tmp_path, "doctor", "--wait", "40").values():
        assert code != 0
        assert "reads" in wrong(said)


@pytest.mark.network
@pytest.mark.parametrize(
    ("budget", "words"), [("", "leak_budget has no value"), ("leak_budget = { shop = 0.1 }", "could be")]
)
def test_the_doctor_knows_the_leak_budget_of_one_shot(four: Path, budget: str, words: str) -> None:
    assert words in wrong(examined(four, "shop", plan(f'name = "one-shot"\n{budget}', table_of("shop")))[1])


@pytest.mark.network
def test_the_doctor_knows_how_many_rows_shares_take(four: Path) -> None:
    pq, pa = importlib.import_module("pyarrow.parquet"), importlib.import_module("pyarrow")
    ids = np.arange(530_000)
    pq.write_table(pa.table({"id": ids, "x": ids % 7}), four / "shop.parquet")
    data = table_of("shop").replace(".csv", ".parquet")
    _, said = examined(four, "shop", plan('name = "linear-regression"', data))
    assert "at most 524,288" in wrong(said)


@pytest.mark.network
def test_an_arbiter_writes_a_plan_without_data(four: Path) -> None:
    network = "".join(f'[network.{name}]\naddress = "127.0.0.1:{free_port()}"\n' for name in ("bank", "judge", "telco"))
    _, said = examined(four, "judge", plan('name = "logistic-regression"', roles=FOUR, network=network))
    assert "data" not in wrong(said)
    assert "ok" in said


def test_the_page_on_machines_has_the_plans_of_a_federation_with_an_arbiter() -> None:
    page = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")
    assert any("arbiter = " in block for block in re.findall(r"```toml.*?```", page, re.DOTALL))


# A6: a lost peer. A7: the demo


@pytest.mark.slow
@pytest.mark.network
def test_a_lost_peer_is_announced_at_once_and_with_the_time(tmp_path: Path) -> None:
    federation(tmp_path, range(N), model=endless())
    bank, shop = (start(tmp_path, name, "join") for name in ("bank", "shop"))
    try:
        assert heard(bank, "train", 90)
        shop.send_signal(signal.SIGKILL)
        assert re.search(r"\d\d:\d\d:\d\d.*shop is gone", heard(bank, "shop is gone", 20))
    finally:
        for process in (bank, shop):
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_the_demo_calls_no_balanced_accuracy_an_auc(here: Path) -> None:
    code, said = typed("demo", "--quick", "--out", here / "runs")
    assert code == 0, said
    for attack in ("GradientClusters", "EmbeddingClusters"):
        assert re.search(rf"{attack} (shop|telco) balanced accuracy [01]\.\d", said)
    assert re.search(r"NormScore (shop|telco) AUC [01]\.\d", said)


def endless() -> str:
    """A regression that does not end by itself."""
    known = inspect.signature(public("LogisticRegression")).parameters
    settings = {"max_iter": 10**6, "epochs": 10**6, "tol": 0.0, "tolerance": 0.0}
    return "\n".join(['name = "logistic-regression"', *(f"{k} = {v}" for k, v in settings.items() if k in known)])


def heard(process: Any, words: str, seconds: float) -> str:
    """What a process says until it says some words, or for some seconds."""
    said, end, pipe = "", time.monotonic() + seconds, process.stdout.fileno()
    while words not in said and time.monotonic() < end:
        if select.select([pipe], [], [], 0.5)[0]:
            said += os.read(pipe, 65536).decode()
    return said


# A8, A9, A10: labels, columns, files


COLUMNS: dict[str, tuple[Any, str]] = {
    "comma": (lambda i: f'"{i},50"', "numbers with a decimal comma"),
    "thousands": (lambda i: f'"1,{i:03}"', "numbers whose thousands are set apart"),
    "euro": (lambda i: f"{i} €", "numbers with a unit"),
    "gaps": (lambda i: "?" if i % 50 == 0 else i * 3 % 97, 'all numbers but for "?"'),
    "born": (lambda i: f"{1 + i % 28}.01.20{i % 99:02}", "dates"),
    "surname": (lambda i: f"name {i}", "nearly one for each row"),
    "unnamed": (lambda i: i, "'unnamed' counts the rows"),
}


@pytest.fixture(scope="module")
def doctored(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the doctor says of a bank's file with all that banks' files have."""
    folder = tmp_path_factory.mktemp("doctored")
    label = ["no" if i % 3 else "yes" for i in range(N)]
    label[:7] = ["YES"] * 4 + [" yes"] * 3
    columns = {name: [make(i) for i in range(N)] for name, (make, _) in COLUMNS.items()}
    write_csv(folder / "bank.csv", {"id": [f"c{i}" for i in range(N)], **columns, "default": label})
    (folder / "plan.toml").write_text(plan('name = "split-classifier"', table_of("bank", labels="default")))
    return typed("doctor", folder / "plan.toml", "--as", "bank", "--insecure", "--wait", "1")[1]


def test_the_doctor_counts_labels_and_names_those_that_look_alike(doctored: str) -> None:
    assert re.search(r"'no' 10\d, 'yes' \d\d, 'YES' 4, ' yes' 3", doctored)
    assert "'yes' and 'YES' and ' yes' are different classes" in doctored
    assert "class 'YES' has 4 of 160 rows" in doctored


@pytest.mark.parametrize("column", COLUMNS)
def test_the_doctor_says_of_a_column_what_its_text_looks_like(doctored: str, column: str) -> None:
    assert re.search(rf"'{column}' [^']*{re.escape(COLUMNS[column][1].removeprefix(f'{column!r} '))}", doctored)


def test_a_column_of_iso_dates_stops_nothing(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", {"id": [1, 2, 3], "born": ["2001-01-31", "1999-12-01", "1980-06-30"]})
    table = public("Table").read(tmp_path / "t.csv", ids="id")
    assert table.kinds == {"born": "numeric"}


def spreadsheet(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("xl/workbook.xml", "<workbook/>")


FILES: dict[str, tuple[str, bytes | None, str]] = {
    "semicolons": ("t.csv", b"mail;x\na@b.de;1\nc@d.de;2\n", "delimiter = ';'"),
    "latin-1": ("t.csv", "mail,name\na@b.de,Müller\n".encode("latin-1"), "encoding"),
    "tabs": ("t.csv", b"mail\tx\na@b.de\t1\nc@d.de\t2\n", "delimiter = "),
    "empty": ("t.csv", b"", "empty"),
    "ragged": ("t.csv", b"mail,x\na@b.de,1\nc@d.de,2,3\n", "[Ll]ine 3"),
    "repeated": ("t.csv", b"mail,x,x\na@b.de,1,2\n", "'x'"),
    "spreadsheet": ("t.xlsx", None, "spreadsheet"),
}


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path, file: str) -> None:
    name, text, words = FILES[file]
    if text is None:
        spreadsheet(tmp_path / name)
    else:
        (tmp_path / name).write_bytes(text)
    with pytest.raises(Exception, match=words) as refused:
        public("Table").read(tmp_path / name, ids="mail").select(["name"] if file == "latin-1" else [])
    assert "damaged or of another format" not in str(refused.value)


def test_a_plan_reads_a_file_as_a_bank_exports_it(here: Path) -> None:
    keys = (
        'delimiter = ";"\nencoding = "latin-1"\ndecimal = ","\nthousands = "."\nmissing = ["?"]\ndates = ["%d.%m.%Y"]\n'
        'exclude = ["note"]\n[data.bank.types]\nzip = "text"\n'
    )
    rows = [
        f"c{i};1.{i:03},50;{'?' if i == 3 else i};31.01.20{i:02};0{i:04};Bemerkung é;{i % 2}" for i in range(10, 60)
    ]
    text = "\n".join(["id;amount;score;born;zip;note;late", *rows, ""])
    (here / "bank.csv").write_bytes(text.encode("latin-1"))
    _, said = examined(here, "bank", plan('name = "one-shot"', table_of("bank", labels="late", more=keys)))
    assert "3 numeric" in said
    assert "1 categorical" in said


def test_what_was_read_well_still_is(tmp_path: Path) -> None:
    (tmp_path / "marked.csv").write_bytes(b"\xef\xbb\xbfid,x\n1,2\n")
    with gzip.open(tmp_path / "packed.csv.gz", "wb") as packed:
        packed.write(b"id,x\n1,2\n")
    for name in ("marked.csv", "packed.csv.gz"):
        assert public("Table").read(tmp_path / name, ids="id").columns == ("x",)


# Smaller things: A11


@pytest.mark.slow
@pytest.mark.network
def test_localhost_is_not_shared_with_a_program_that_listens_on_ipv4_only(tmp_path: Path) -> None:
    federation(tmp_path, range(N))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        place = f"localhost:{other.getsockname()[1]}"
        for party in ("bank", "shop"):
            path = tmp_path / party / "plan.toml"
            path.write_text(re.sub(r"127\.0\.0\.1:\d+", place, path.read_text()).replace("start = 60", "start = 5"))
        process = start(tmp_path, "bank", "join")
        said = process.communicate(timeout=60)[0]
    assert "cannot listen" in said


def test_the_page_on_machines_names_every_exit_code() -> None:
    page = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert codes >= {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}


@pytest.mark.slow
@pytest.mark.network
def test_the_doctor_counts_what_a_long_training_sends_in_gigabytes(tmp_path: Path) -> None:
    federation(tmp_path, range(N), model=endless())
    for _, said in together(tmp_path, "doctor", "--wait", "60").values():
        assert re.search(r"training sends [^.]*?[\d,]+\.\d GB in", said), said


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of an encrypted regression, in words."""
    folder = tmp_path_factory.mktemp("encrypted")
    known = inspect.signature(public("LogisticRegression")).parameters
    steps = next(name for name in ("max_iter", "epochs") if name in known)
    text = plan(
        f'name = "logistic-regression"\n{steps} = 2', '[data]\nname = "breast-cancer"\n', network="[audit]\nnulls = 1"
    )
    (folder / "plan.toml").write_text(text)
    assert typed("simulate", folder / "plan.toml", "--out", folder / "runs")[0] == 0
    (run,) = (folder / "runs").glob("credit-*")
    assert typed("audit", run)[0] == 0
    code, said = typed("report", run)
    assert code == 0
    return said


@pytest.mark.slow
def test_nobody_asks_about_labels_of_a_party_that_has_none(encrypted: str) -> None:
    assert "bank's labels" in encrypted
    assert "shop's labels" not in encrypted


@pytest.fixture(scope="module")
def encrypted_sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The reports in words that bank and shop get when each audits its side of an encrypted regression."""
    folder, parameters = tmp_path_factory.mktemp("sides"), vars(regression())
    steps = next(name for name in ("max_iter", "epochs") if name in parameters)
    federation(folder, range(N), model=f'name = "logistic-regression"\n{steps} = 1')
    said = together(folder, "join")
    assert {code for code, _ in said.values()} == {0}, said
    found = {}
    for party in said:
        (side,) = (folder / party / "runs").glob(f"credit-*/{party}")
        assert typed("audit", side)[0] == 0
        found[party] = typed("report", side)[1]
    return found


@pytest.mark.slow
@pytest.mark.network
def test_an_encrypted_run_is_not_drawn_as_the_most_alarming_one(encrypted_sides: dict[str, str]) -> None:
    for said in encrypted_sides.values():
        assert "Nothing has been tested" not in said
        assert "encrypted" in said


@pytest.mark.slow
def test_an_attack_that_need_not_apply_is_not_said_to_be_due(encrypted: str) -> None:
    assert "should apply to this run, but" not in encrypted


def test_the_page_on_plans_names_every_model() -> None:
    page = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")
    names = importlib.import_module("colonnade.catalogue").MODELS if (SOURCE / "catalogue.py").exists() else ()
    for name in (*names, "linear-regression", "logistic-regression", "poisson-regression", "functional-boost"):
        assert f"`{name}`" in page


def test_the_page_on_defences_does_not_promise_the_script_for_any_data() -> None:
    assert not re.search(
        "any data set(?! of `colonnade data list`)", (ROOT / "docs/defences/index.md").read_text("utf-8")
    )


def test_the_picture_of_the_report_has_a_rule_that_makes_it() -> None:
    assert "docs/images/report.png" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_report_before_an_audit_names_the_command(trained_nothing: Path) -> None:
    assert "colonnade audit" in typed("report", trained_nothing)[1]


def test_an_audit_of_the_folder_above_names_the_parties(trained_nothing: Path) -> None:
    said = typed("audit", trained_nothing.parent)[1]
    assert str(trained_nothing.name) in said
    assert "simulate" not in said


@pytest.fixture
def trained_nothing(here: Path) -> Path:
    """The folder of a bank whose partner never came."""
    federation(here, range(N))
    change(here, "start = 60", "start = 1")
    assert alone(here)[0] == 4
    (found,) = (here / "bank" / "runs").glob("credit-*/bank")
    return found


def alone(folder: Path) -> tuple[int, str]:
    return typed("join", folder / "bank" / "plan.toml", "--as", "bank", "--insecure", "--out", folder / "bank" / "runs")


@pytest.mark.network
def test_a_join_that_met_nobody_is_simply_typed_again(trained_nothing: Path) -> None:
    code, said = alone(trained_nothing.parents[3])
    assert code == 4, said
    assert "--resume" not in said


def test_an_expired_certificate_is_called_expired(here: Path) -> None:
    x509, serialization = (
        importlib.import_module(f"cryptography.{each}") for each in ("x509", "hazmat.primitives.serialization")
    )
    assert typed("certs", "init", "--federation", "credit")[0] == 0
    assert typed("certs", "issue", "bank")[0] == 0
    path, authority = here / "certs" / "bank.pem", next(here.rglob("ca.key"))
    held = x509.load_pem_x509_certificate(path.read_bytes())
    build = x509.CertificateBuilder(held.issuer, held.subject, held.public_key(), held.serial_number)
    build = build.not_valid_before(held.not_valid_before_utc - timedelta(days=9))
    build = build.not_valid_after(held.not_valid_before_utc - timedelta(days=2))
    for each in held.extensions:
        build = build.add_extension(each.value, each.critical)
    key = serialization.load_pem_private_key(authority.read_bytes(), None)
    path.write_bytes(build.sign(key, held.signature_hash_algorithm).public_bytes(serialization.Encoding.PEM))
    assert "expired" in typed("certs", "show", path)[1]


def test_one_epoch_is_one_epoch(run: Any) -> None:
    assert "weights after 1 epoch." in run.results["bank"].summary()


@pytest.mark.slow
@pytest.mark.network
def test_the_report_has_the_seed_of_the_plan(encrypted_sides: dict[str, str]) -> None:
    for said in encrypted_sides.values():
        assert re.search(r"\bseed 1\b", said)


@pytest.mark.parametrize(("parameter", "value"), [("epochs", -1), ("fusion", "cat")])
def test_a_value_that_means_nothing_is_refused_by_fit_with_class_and_parameter(parameter: str, value: Any) -> None:
    model = public("SplitClassifier")(**{parameter: value})
    with pytest.raises(Exception, match=rf"^SplitClassifier's {parameter} should be .*, but is {value!r}"):
        public("simulate")(model.fit, public("load")("breast-cancer").split(), roles=roles())


@pytest.mark.network
def test_the_doctor_calls_a_value_wrong_that_means_nothing(four: Path) -> None:
    text = plan('name = "split-classifier"\nepochs = -1', table_of("shop"))
    assert "SplitClassifier's epochs should be" in wrong(examined(four, "shop", text)[1])


def test_an_unknown_parameter_is_refused_in_the_name_of_the_class_that_was_typed() -> None:
    with pytest.raises(Exception, match=r"^LogisticRegression has no parameter 'epoch'"):
        public("LogisticRegression")(epoch=3)


# D: the notebook


def roles() -> Any:
    return public("Roles")(label="bank", features=("shop",))


@pytest.fixture(scope="module")
def run() -> Any:
    return public("simulate")(
        public("SplitClassifier")(epochs=1).fit, public("load")("breast-cancer").split(), roles=roles()
    )


def test_a_model_a_result_and_a_defence_are_shown_by_what_was_typed(run: Any) -> None:
    assert repr(run.results["shop"]) == repr(public("SplitClassifier")(epochs=1)) == "SplitClassifier(epochs=1)"
    assert repr(public("GradientNoise")(ratio=2)) == "GradientNoise(ratio=2)"


def test_a_run_is_shown_in_four_lines(run: Any) -> None:
    assert len(repr(run).splitlines()) == 4
    assert len(repr(run)) < 500


def test_a_report_shows_itself(run: Any) -> None:
    report = public("audit")(run, [public("NormScore")()], nulls=1)
    assert "<iframe" in report._repr_html_()
    assert len(repr(report).splitlines()) == 1
    assert "PrivacyReport(" not in str(report)


def test_progress_without_widgets_is_text_and_warns_of_nothing(recwarn: Any, capfd: Any, monkeypatch: Any) -> None:
    import builtins

    # What tqdm and others look at to learn that they are in a notebook; ipywidgets is not installed here.
    monkeypatch.setattr(builtins, "get_ipython", notebook, raising=False)
    simulate, model = public("simulate"), public("SplitClassifier")(epochs=2)
    simulate(model.fit, public("load")("breast-cancer").split(), roles=roles(), progress=True)
    assert not [each for each in recwarn if "ipywidgets" in str(each.message)]
    assert "train" in "".join(capfd.readouterr())


def notebook() -> Any:
    """The shell that a notebook's kernel answers with."""
    return type("ZMQInteractiveShell", (), {"config": {"IPKernelApp": {}}})()


def test_a_run_predicts_in_one_call(run: Any) -> None:
    tables = public("load")("breast-cancer").split()
    assert len(run.predict(tables).values) == len(tables["bank"])


def test_a_prediction_is_a_frame_with_ids(run: Any, tmp_path: Path) -> None:
    tables = public("load")("breast-cancer").split()
    predict = {name: share.predict for name, share in run.results.items()}
    prediction = public("simulate")(predict, tables, roles=roles()).results["bank"]
    assert len(repr(prediction)) < 200
    assert prediction.to_frame().iloc[:, 0].tolist() == tables["bank"].ids.to_pylist()
    prediction.to_csv(tmp_path / "p.csv")
    assert len((tmp_path / "p.csv").read_text().splitlines()) == len(tables["bank"]) + 1


def test_a_table_is_given_as_a_frame() -> None:
    table = public("Table").of({"id": [1, 2], "x": [0.5, 1.5]}, ids="id")
    assert table.to_pandas()["x"].tolist() == table.to_polars()["x"].to_list() == [0.5, 1.5]


def regression() -> Any:
    known = inspect.signature(public("LogisticRegression")).parameters
    return public("LogisticRegression")(**{next(name for name in ("max_iter", "epochs") if name in known): 1})


def test_a_regression_says_why_it_has_no_history() -> None:
    X = np.random.default_rng(0).normal(size=(200, 2))
    tables = {
        "bank": public("Table").of({"a": X[:, 0]}, ids=None),
        "shop": public("Table").of({"b": X[:, 1]}, ids=None),
    }
    tables["bank"] = tables["bank"].with_labels((X[:, 0] > 0).astype(int))
    trained = public("simulate")(regression().fit, tables, roles=roles())
    with pytest.raises(AttributeError, match="Networks note figures of each epoch"):
        _ = trained.results["bank"].history_


def test_a_vertical_passes_coefficients_on_and_is_saved(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(300, 2))
    with_judge = public("Roles")(label="bank", features=("shop",), arbiter="judge")
    vertical = public("Vertical")(regression(), columns={"bank": [0], "shop": [1]}, roles=with_judge).fit(
        X, X[:, 0] > 0
    )
    assert vertical.coef_["shop"].shape == (1,)
    vertical.save(tmp_path / "model")
    assert list((tmp_path / "model").iterdir())


GRID = """
name = "grid"
[data]
name = "breast-cancer"
[roles]
label = "bank"
features = ["shop"]
[model]
name = "split-classifier"
[sweep]
seeds = [1, 2]
[sweep.vary]
"model.learning_rate" = [0.01, 0.02]
"""


def test_a_researcher_has_a_command_and_a_page_for_sweeps(here: Path) -> None:
    (here / "grid.toml").write_text(GRID)
    code, said = typed("sweep", "grid.toml", "--dry-run")
    assert (code, "4 trials" in said) == (0, True), said
    assert "colonnade sweep figures" in (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")


# The list


def listed() -> list[dict[str, Any]]:
    return tomllib.loads(LIST.read_text(encoding="utf-8"))["row"]


def test_every_stumble_of_the_list_has_a_test_that_exists() -> None:
    known: dict[str, set[str]] = {}
    for row in listed():
        assert row["tests"], row["row"]
        for named in row["tests"]:
            file, _, test = named.partition("::")
            if file not in known:
                tree = ast.parse((LIST.parent / file).read_text(encoding="utf-8"))
                known[file] = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
            assert test in known[file], named


def test_the_list_has_every_section_and_each_row_once() -> None:
    rows = Counter(row["row"] for row in listed())
    assert set(rows.values()) == {1}
    assert {name.partition(".")[0] for name in rows} == {*(f"A{i}" for i in range(1, 12)), "D"}
    assert {row["then"] for row in listed()} <= {"wrong", "missing", "fine"}
    assert {row["shown"] for row in listed()} == {"run"}


def test_every_test_of_this_file_is_in_the_list() -> None:
    here = {name for name, value in globals().items() if name.startswith("test_") and inspect.isfunction(value)}
    about_the_list = {name for name in here if "the_list" in name}
    named = {each.partition("::")[2] for row in listed() for each in row["tests"] if each.startswith("test_first_day")}
    assert named == here - about_the_list
