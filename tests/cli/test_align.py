"""Alignment from the command line: simulated, between processes, killed and resumed, and as part of a training."""

import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow.csv as csv
import pytest
from typer.testing import CliRunner

import colonnade
from colonnade.cli.main import app
from colonnade.experiment.run_folder import RunFolder
from colonnade.models.networks.messages import Embedding
from colonnade.privacy.ledger import Ledger
from colonnade.runtime.alignment import Alignment
from colonnade.tables.table import Table
from colonnade.testing.ports import free_port
from colonnade.wire.recording.recording import Transcript
from tests.commands import Command

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(colonnade.__path__[0]).parent), "OMP_NUM_THREADS": "1"}
PLAN = """
name = "credit"
seed = 3
{data}
[roles]
label = "bank"
features = ["shop"]

[align]
ids_per_bucket = 50
{align}

[model]
name = "split-classifier"
epochs = {epochs}
batch_size = 16
n_iter_no_change = "none"

[privacy]
accept_label_leak = true

[run]
checkpoint_every = 5

[network]
start = 60
rejoin = 60

[network.bank]
address = "127.0.0.1:{port}"
"""
FILE = '[data.{party}]\npath = "{party}.csv"\nids = "customer"\n'
BANK, SHOP = range(0, 200), range(60, 260)
COMMON = range(60, 200)


@pytest.fixture
def plan(tmp_path):
    """A folder with both parties' files, in which people stand in different orders and are written differently."""
    draw = np.random.default_rng(0)
    for party, people, write in (("bank", BANK, "Client {}"), ("shop", SHOP, " CLIENT  {}")):
        rows = draw.permutation(list(people)).tolist()
        lines = [
            f"{write.format(each)},{(each * 37) % 100}" + (f",{each % 2}" if party == "bank" else "") for each in rows
        ]
        head = "customer,income,default" if party == "bank" else "customer,spend"
        (tmp_path / f"{party}.csv").write_text("\n".join([head, *lines]) + "\n")
    return write_plan(tmp_path)


def write_plan(folder, parties=("bank", "shop"), align="", epochs=2, port=None):
    data = "".join(FILE.format(party=party) + ('labels = "default"\n' if party == "bank" else "") for party in parties)
    path = folder / "plan.toml"
    path.write_text(PLAN.format(data=data, align=align, epochs=epochs, port=port or free_port()))
    return path


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def start(plan, name, *arguments):
    out = () if "predict" in arguments or "doctor" in arguments else ("--out", plan.parent / "runs" / name)
    typed = (*arguments, plan, "--as", name, "--insecure", *out)
    return Command(*typed, cwd=plan.parent, env=ENVIRONMENT, log=plan.parent / f"{name}.log")


def finish(plan, processes):
    codes = [process.wait(120) for process in processes]
    said = "\n".join((plan.parent / f"{name}.log").read_text() for name in ("bank", "shop"))
    assert codes == [0, 0], said
    return said


def people(path, table, rows):
    ids = Table.read(path.parent / f"{table}.csv", ids="customer").ids.to_pylist()
    return [int(ids[row].split()[-1]) for row in rows]


# In one process.


def test_a_simulated_alignment_says_what_each_party_learned(plan):
    said = run("align", plan, "--out", plan.parent / "runs")
    assert "140 aligned rows" in said
    assert "how many ids there are (bank 200, shop 200)" in said
    folder = next((plan.parent / "runs").iterdir()) / "alignment"
    found = {name: Alignment.load(folder / name / "alignment.safetensors") for name in ("bank", "shop")}
    matched = [people(plan, name, found[name].rows) for name in found]
    assert matched[0] == matched[1]
    assert set(matched[0]) == set(COMMON)


@pytest.mark.slow
def test_a_training_on_aligned_rows_is_audited_with_what_its_alignment_sent(plan):
    out = plan.parent / "runs"
    said = run("simulate", plan, "--out", out)
    assert "bank, shop hold 140 common rows, found by private set intersection: 105 to train on, 35 held out" in said
    (folder,) = out.iterdir()
    run("audit", folder, "--attack", "norm-score", "--nulls", "1")
    report = json.loads((folder / "report.json").read_text())
    kinds = {(each["sender"], each["kind"]) for each in report["disclosures"]}
    assert {("bank", "align/masked"), ("shop", "align/masked"), ("shop", "align/doubled")} <= kinds
    assert ("bank", "split/gradient") in kinds
    assert any(
        "alignment: bank learns which of its own ids shop has" in note for note in report["budget"]["ids"]["notes"]
    )


def test_a_plan_that_reveals_too_little_to_train_on_is_refused_before_anything_runs(plan):
    write_plan(plan.parent, align='reveal = "size"')
    said = run("simulate", plan, "--out", plan.parent / "runs", code=2)
    assert "[align] has reveal = 'size'. Use 'both', or only `colonnade align`" in said
    assert "140 aligned rows; which they are was not told" in run("align", plan, "--out", plan.parent / "runs")


def test_a_plan_without_the_section_cannot_be_aligned(plan):
    plan.write_text(plan.read_text().replace("[align]\nids_per_bucket = 50\n", ""))
    assert "needs a section [align] in the plan" in run("align", plan, "--out", plan.parent / "runs", code=2)


def only_align(plan, *, labels):
    """Leave nothing in a plan but what an alignment needs."""
    text = plan.read_text()
    text = text[: text.index("[model]")] + text[text.index("[run]") :]
    plan.write_text(text if labels else text.replace('labels = "default"\n', ""))


@pytest.mark.parametrize("labels", [True, False])
def test_a_plan_without_a_model_aligns_and_does_nothing_else(plan, labels):
    only_align(plan, labels=labels)
    assert "140 aligned rows" in run("align", plan, "--out", plan.parent / "runs")
    again = run("align", plan, "--out", plan.parent / "runs")
    assert "140 aligned rows" in again
    said = run("simulate", plan, "--out", plan.parent / "other", code=2)
    assert "A training needs a section [model] in the plan, but this one only aligns" in said


def test_rows_without_a_partner_are_trained_on_with_those_who_have_one(plan):
    write_plan(plan.parent, align='join = "left"')
    plan.write_text(
        plan.read_text().replace('n_iter_no_change = "none"', 'n_iter_no_change = "none"\noverlap = "partial"')
    )
    said = run("simulate", plan, "--out", plan.parent / "runs")
    found = (
        "bank keeps 200 rows, of which shop has 140, found by private set intersection: 150 to train on, 50 held out"
    )
    assert found in said
    (folder,) = (plan.parent / "runs").iterdir()
    sent = Transcript.load(folder / "shop" / "transcript").messages(Embedding, sent=True)
    rows = np.concatenate([recorded.message.values for recorded in sent if recorded.epoch == 0])
    absent = int(np.isnan(rows).all(axis=1).sum())
    assert (len(rows), np.isnan(rows).any(axis=1).sum()) == (150, absent)
    assert 30 <= absent <= 60
    (stand_in,) = RunFolder.open(folder).load().results["bank"].missing_embeddings_
    assert stand_in.std() > 0, "at the start all its values are alike"


@pytest.mark.parametrize("command", ["align", "simulate"])
def test_rows_that_have_changed_since_they_were_aligned_are_not_taken_for_those_that_were(plan, command):
    run("align", plan, "--out", plan.parent / "runs")
    path = plan.parent / "shop.csv"
    head, first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([head, *rest, first]) + "\n")
    more = ["--resume"] if command == "simulate" else []
    said = run(command, plan, "--out", plan.parent / "runs", *more, code=3)
    assert "shop's rows should be those that were aligned in" in said
    assert "but they have changed. Restore the data, or align again in another folder" in said


# Between processes.


@pytest.mark.network
@pytest.mark.slow
def test_two_processes_align_and_one_that_was_killed_resumes_to_the_same(plan):
    bank = start(plan, "bank", "align")
    shop = start(plan, "shop", "align")
    checkpoints = plan.parent / "runs" / "shop"
    end = time.monotonic() + 60
    while not list(checkpoints.glob("*/shop/checkpoints/0*.safetensors")):
        assert time.monotonic() < end
        time.sleep(0.005)
    shop.send_signal(signal.SIGKILL)
    shop.wait()
    finish(plan, [bank, start(plan, "shop", "align", "--resume")])
    found = {
        name: Alignment.load(next((plan.parent / "runs" / name).glob(f"*/{name}/alignment.safetensors")))
        for name in ("bank", "shop")
    }
    matched = [people(plan, name, found[name].rows) for name in found]
    assert matched[0] == matched[1]
    assert set(matched[0]) == set(COMMON)
    assert found["bank"].digest == found["shop"].digest
    assert not list((plan.parent / "runs").rglob("once-align-*"))
    log = [json.loads(line) for line in (plan.parent / "runs" / "shop" / "alignments-of-shop").read_text().splitlines()]
    assert [(entry["peer"], entry["what"]) for entry in log] == [("bank", "aligned")]
    again = run("align", plan, "--as", "bank", "--insecure", "--out", plan.parent / "runs" / "bank")
    assert "bank's side of this alignment has finished" in again


@pytest.mark.network
@pytest.mark.slow
def test_two_processes_align_by_a_plan_without_a_model(plan):
    only_align(plan, labels=False)
    said = finish(plan, [start(plan, name, "doctor") for name in ("bank", "shop")])
    assert "Nothing is wrong. Run: colonnade align" in said
    said = finish(plan, [start(plan, name, "align") for name in ("bank", "shop")])
    assert "140 aligned rows" in said
    refused = run("join", plan, "--as", "bank", "--insecure", "--out", plan.parent / "runs" / "bank", code=2)
    assert "this one only aligns" in refused


@pytest.mark.network
@pytest.mark.slow
def test_two_processes_train_predict_and_audit_on_rows_they_align_first(plan):
    said = finish(plan, [start(plan, name, "join") for name in ("bank", "shop")])
    assert re.search(r"140 of your \d+ rows \(\d+%\) are common to all parties\.", said)
    sides = {name: next((plan.parent / "runs" / name).glob(f"*/{name}")) for name in ("bank", "shop")}
    found = {name: Alignment.load(side / "alignment.safetensors") for name, side in sides.items()}
    assert [set(people(plan, name, found[name].rows)) for name in found] == [set(COMMON)] * 2
    assert json.loads((sides["bank"] / "run.json").read_text())["common_rows"] == 140
    notes = [event.note for event in Ledger(path=sides["shop"] / "ledger").events]
    assert "alignment: bank learns which of its own ids shop has" in notes
    predictions = [start(plan, name, "predict", "--model", str(sides[name])) for name in sides]
    finish(plan, predictions)
    written = csv.read_csv(sides["bank"] / "predictions" / "0001" / "prediction.csv")
    assert {int(each.split()[-1]) for each in written.column("customer").to_pylist()} == set(COMMON)
    run("audit", sides["bank"], "--attack", "norm-score")
    report = json.loads((sides["bank"] / "report.json").read_text())
    assert {"align/masked", "split/gradient"} <= {each["kind"] for each in report["disclosures"]}


@pytest.mark.network
@pytest.mark.slow
def test_the_doctor_tells_no_digest_of_ids_that_are_to_be_aligned(plan):
    said = finish(plan, [start(plan, name, "doctor") for name in ("bank", "shop")])
    assert "200 here and 200 there, to be aligned in the run" in said
