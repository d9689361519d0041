"""The commands of a run between machines, each party in a process of its own with its own folder."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

import colonnade
from colonnade.auditing.report import PrivacyReport
from colonnade.cli.main import app
from colonnade.errors import AuthError
from colonnade.models.networks.split import SplitClassifier
from colonnade.plans.plan import Plan
from colonnade.runtime.simulate import Run, simulate
from colonnade.tables.table import Table
from colonnade.testing.ports import free_port
from colonnade.wire.certs.credentials import Credentials
from colonnade.wire.recording.recording import Transcript
from tests.commands import Command, typed_in_a_shell

pytestmark = pytest.mark.network

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "network"
PAGE = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(colonnade.__path__[0]).parent), "OMP_NUM_THREADS": "1"}
PLAN = """
name = "credit"
seed = 3

[data.{party}]
path = "{party}.csv"
ids = "customer"
{labels}

[roles]
label = "bank"
features = ["shop"]

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
randomness = "{randomness}"
start = {start}
rejoin = 60

[network.bank]
address = "127.0.0.1:{port}"
"""
N_ROWS = 60
ENDLESS = 10**6


def call(*arguments: str | Path, input: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=input)


@dataclass(frozen=True)
class Federation:
    """A bank, which listens, and a shop, which dials, each with a folder of its own."""

    path: Path
    port: int
    started: list[Command] = field(default_factory=list)

    def write(self, *, epochs: int = 3, start: int = 60, randomness: str = "seeded") -> None:
        for party, labels in (("bank", 'labels = "late"'), ("shop", "")):
            told = {"epochs": epochs, "start": start, "randomness": randomness, "port": self.port}
            text = PLAN.format(party=party, labels=labels, **told)
            (self.path / party / "plan.toml").write_text(text)

    def start(self, command: str, party: str, *options: str | Path) -> Command:
        """Begin a command of one party, in its folder."""
        process = Command(command, "plan.toml", "--as", party, *options, cwd=self.path / party, env=ENVIRONMENT)
        self.started.append(process)
        return process

    def audit(self, party: str, *options: str) -> Command:
        """Begin an audit of one party's side."""
        process = Command("audit", self.folder(party), *options, cwd=self.path / party, env=ENVIRONMENT)
        self.started.append(process)
        return process

    def end(self) -> None:
        """Leave nothing behind that a failed test began."""
        for process in self.started:
            process.kill()
            process.communicate()

    def both(self, command: str, *options: str | Path) -> dict[str, Command]:
        """Let both run a command, the one that dials first."""
        return {party: self.start(command, party, *options) for party in ("shop", "bank")}

    def folder(self, party: str) -> Path:
        (path,) = (self.path / party / "runs").glob(f"credit-*/{party}")
        return path

    def status(self, party: str) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder(party) / "run.json").read_text())
        return found

    def wait_for_a_checkpoint(self, *processes: Command) -> None:
        while not list(self.path.glob("shop/runs/*/shop/checkpoints/*.step.safetensors")):
            for process in processes:
                assert process.poll() is None, process.communicate()
            time.sleep(0.02)

    def simulated(self) -> Run[SplitClassifier]:
        """The same training with both parties in this process."""
        plans = {party: Plan.read(self.path / party / "plan.toml") for party in ("bank", "shop")}
        tables = {party: plan.data.load((party,))[party] for party, plan in plans.items()}
        model = plans["bank"].model.build()
        assert isinstance(model, SplitClassifier)
        return simulate(model.fit, tables, roles=plans["bank"].roles, seed=plans["bank"].seed)

    def trained_like(self, run: Run[SplitClassifier]) -> bool:
        """Whether the shares and the messages of both are those of a simulation."""
        return all(
            Transcript.load(self.folder(party) / "transcript").digests() == run.transcripts[party].digests()
            and weights(SplitClassifier.load(self.folder(party) / "model.safetensors")) == weights(run.results[party])
            for party in ("bank", "shop")
        )


def weights(share: SplitClassifier) -> list[bytes]:
    modules = [module for module in (share.bottom_, share.top_) if module is not None]
    return [tensor.numpy().tobytes() for module in modules for tensor in module.state_dict().values()]


def ended(process: Command) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=120)
    return process.returncode, stdout, stderr


def made(path: Path) -> Federation:
    """A federation of which each party has its own table, certificate and key, and nothing of the other's."""
    federation = Federation(path, free_port())
    generator = np.random.default_rng(0)
    ids, income, spend = np.arange(N_ROWS), generator.normal(size=N_ROWS), generator.normal(size=N_ROWS)
    late = (income + spend > 0).astype(int)
    assert call("certs", "init", path / "authority", "--federation", "credit").exit_code == 0
    for party, columns in {"bank": {"income": income, "late": late}, "shop": {"spend": spend}}.items():
        (path / party).mkdir()
        csv.write_csv(pa.table({"customer": ids, **columns}), path / party / f"{party}.csv")
        issued = call("certs", "issue", party, "--authority", path / "authority", "--out", path / party / "certs")
        assert issued.exit_code == 0, issued.stderr
    federation.write()
    return federation


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    federation = made(tmp_path)
    yield federation
    federation.end()


@dataclass(frozen=True)
class Trained:
    federation: Federation
    outcomes: dict[str, tuple[int, str, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """A run that both have finished."""
    federation = made(tmp_path_factory.mktemp("trained"))
    processes = federation.both("join")
    yield Trained(federation, {party: ended(process) for party, process in processes.items()})
    federation.end()


def words(path: Path) -> str:
    shown = call("certs", "show", path).stdout
    found = re.search(r"^Fingerprint: (.+)$", shown, re.MULTILINE)
    assert found is not None, shown
    return found[1]


# Certificates.


def test_an_authority_is_made_once(tmp_path: Path) -> None:
    first = call("certs", "init", tmp_path, "--federation", "credit")
    assert first.exit_code == 0
    assert f"{tmp_path / 'ca.key'}, which is for its keeper alone." in first.stdout
    again = call("certs", "init", tmp_path)
    assert again.exit_code == 9
    assert "Expected a folder without an authority" in again.stderr


def test_a_certificate_is_shown_with_words_to_read_out(tmp_path: Path) -> None:
    call("certs", "init", tmp_path, "--federation", "credit")
    issued = call("certs", "issue", "bank", "--authority", tmp_path, "--out", tmp_path)
    shown = call("certs", "show", tmp_path / "bank.pem")
    assert re.match(
        r"bank of credit, from \d{4}-\d\d-\d\d to \d{4}-\d\d-\d\d\.\nFingerprint: (\w{5} ){8}\w{5}\n", shown.stdout
    )
    assert f"Fingerprint: {words(tmp_path / 'bank.pem')}\n" in issued.stdout
    same = call("certs", "show", tmp_path / "bank.pem", "--words", words(tmp_path / "bank.pem").upper())
    assert (same.exit_code, same.stdout.splitlines()[-1]) == (0, "They are the same.")
    other = call("certs", "show", tmp_path / "bank.pem", "--words", words(tmp_path / "ca.pem"))
    assert other.exit_code == 7
    assert "Expected the fingerprint that was read out, but" in other.stderr


def test_a_key_that_never_leaves_its_party_is_certified_by_request(tmp_path: Path) -> None:
    call("certs", "init", tmp_path / "authority")
    requested = call("certs", "request", "shop", "--certs", tmp_path / "shop")
    assert requested.exit_code == 0
    read_out = words(tmp_path / "shop" / "shop.csr")
    assert f"to be compared by telephone: {read_out}\n" in requested.stdout
    (tmp_path / "post").mkdir()
    (tmp_path / "post" / "shop.csr").write_bytes((tmp_path / "shop" / "shop.csr").read_bytes())
    signed = call("certs", "sign", "shop", tmp_path / "post" / "shop.csr", "--authority", tmp_path / "authority")
    assert signed.exit_code == 0, signed.stderr
    assert sorted(path.name for path in (tmp_path / "post").iterdir()) == ["ca.pem", "shop.csr", "shop.pem"]
    refused = call("certs", "sign", "bank", tmp_path / "post" / "shop.csr", "--authority", tmp_path / "authority")
    assert refused.exit_code == 7
    assert "Expected a request by bank" in refused.stderr


def test_the_authority_lies_apart_from_the_parties_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("certs", "init").exit_code == 0
    assert call("certs", "issue", "bank").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "authority").iterdir()) == ["ca.key", "ca.pem"]
    assert sorted(path.name for path in (tmp_path / "certs").iterdir()) == ["bank.key", "bank.pem", "ca.pem"]


def test_the_passphrase_of_an_authority_comes_from_a_file_or_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "passphrase"
    file.write_text("correct horse battery\n")
    file.chmod(0o644)
    readable = call("certs", "init", "--passphrase-file", file)
    assert readable.exit_code == 7
    assert "to be readable by its owner alone, but its mode is 644" in readable.stderr
    file.chmod(0o600)
    assert call("certs", "init", "--passphrase-file", file).exit_code == 0
    assert b"ENCRYPTED" in (tmp_path / "authority" / "ca.key").read_bytes()
    assert call("certs", "issue", "bank", "--passphrase-file", file).exit_code == 0
    assert call("certs", "issue", "shop", input="correct horse battery\n").exit_code == 0
    assert call("certs", "issue", "telco", input="another passphrase\n").exit_code == 7
    asked = call("certs", "init", "asked", "--passphrase", input="staple horse battery\nstaple horse battery\n")
    assert asked.exit_code == 0, asked.stderr
    assert "staple" not in asked.stdout + asked.stderr
    assert b"ENCRYPTED" in (tmp_path / "asked" / "ca.key").read_bytes()


def test_a_certificate_that_was_revoked_is_refused_by_the_next_command(tmp_path: Path) -> None:
    call("certs", "init", tmp_path / "authority")
    call("certs", "issue", "bank", "--authority", tmp_path / "authority", "--out", tmp_path)
    revoked = call("certs", "revoke", tmp_path / "bank.pem", "--certs", tmp_path)
    assert revoked.exit_code == 0, revoked.stderr
    assert f"whose words are '{words(tmp_path / 'bank.pem')}'" in revoked.stdout
    with pytest.raises(AuthError, match="Expected a certificate of bank that is not revoked"):
        Credentials.read(tmp_path, "bank")


def test_a_certificate_that_is_not_there_is_a_storage_error(tmp_path: Path) -> None:
    result = call("certs", "show", tmp_path / "bank.pem")
    assert result.exit_code == 9
    assert "Could not read" in result.stderr


def test_a_key_for_recordings_is_made_once(tmp_path: Path) -> None:
    assert call("certs", "key", tmp_path / "storage.key").exit_code == 0
    assert (tmp_path / "storage.key").stat().st_mode & 0o777 == 0o600
    assert call("certs", "key", tmp_path / "storage.key").exit_code == 9


# Training.


def test_two_parties_train_over_tls_and_keep_their_shares(trained: Trained) -> None:
    federation = trained.federation
    own = {party: words(federation.path / party / "certs" / f"{party}.pem") for party in ("bank", "shop")}
    for party, peer in (("bank", "shop"), ("shop", "bank")):
        code, stdout, stderr = trained.outcomes[party]
        assert code == 0, stderr
        assert f"TLS on, own certificate {party}, fingerprint {own[party]}\n" in stdout
        assert f"TLS on, peer {peer}, fingerprint {own[peer]}\n" in stdout
        assert "SplitClassifier: embeddings of width 16" in stdout
        assert "train: step 12 of 12" in stderr
        assert 'NOT PRIVATE: the plan says randomness = "seeded".' in " ".join(stderr.split())
        status = federation.status(party)
        assert (status["status"], status["insecure"], status["randomness"]) == ("finished", False, "seeded")


def test_what_crosses_and_what_is_learned_is_as_in_a_simulation(trained: Trained) -> None:
    assert trained.federation.trained_like(trained.federation.simulated())


def test_nobody_keeps_what_is_the_others(trained: Trained) -> None:
    path = trained.federation.path
    for party, peer in (("bank", "shop"), ("shop", "bank")):
        names = {file.name for file in (path / party).rglob("*")}
        assert not {f"{peer}.csv", f"{peer}.key"} & names
        assert not list((path / party / "runs").glob(f"*/{peer}"))


def test_a_party_audits_what_it_sent_without_the_other(trained: Trained) -> None:
    folder = trained.federation.folder("bank")
    audited = call("audit", folder, "--attack", "direction-score", "--attack", "direct-label")
    assert audited.exit_code == 0, audited.stderr
    assert "bank's labels" in audited.stdout
    assert "Noise followed from the plan's seed in this run" in " ".join(audited.stdout.split())
    report = PrivacyReport.from_json((folder / "report.json").read_text())
    assert (report.run.mode, report.run.randomness, report.run.insecure) == ("mirror", "seeded", False)
    assert [finding.attack for finding in report.attacks] == ["DirectionScore"]
    shown = call("report", folder)
    assert shown.exit_code == 0
    assert "What could shop learn about bank's labels?" in shown.stdout
    assert "not measured" in shown.stdout
    of_shop = call("audit", trained.federation.folder("shop"))
    assert of_shop.exit_code == 0
    # The shop has no labels to lose, but its embeddings tell the bank about its columns.
    of_columns = PrivacyReport.from_json((trained.federation.folder("shop") / "report.json").read_text()).attacks
    assert [(f.attack, f.attacker, f.owner) for f in of_columns] == [("PassiveRidge", "bank", "shop")]


@pytest.mark.slow
def test_two_parties_audit_a_run_together_and_the_label_party_gets_the_report(federation: Federation) -> None:
    federation.write()
    for party, more in (("bank", ""), ("shop", 'keep_received = "audit"\n')):
        path = federation.path / party / "plan.toml"
        text = path.read_text().replace("checkpoint_every = 5", 'checkpoint_every = 5\nreceived = "audit"')
        path.write_text(text.replace('randomness = "seeded"\n', 'randomness = "seeded"\n' + more))
    for process in federation.both("join").values():
        assert ended(process)[0] == 0
    audits = {
        party: federation.audit(party, "--attacker", "shop", "--attack", "norm-score", "--attack", "embedding-nearest")
        for party in ("shop", "bank")
    }
    (shop_code, shop_said, shop_error), (bank_code, _, bank_error) = map(ended, audits.values())
    assert (shop_code, bank_code) == (0, 0), shop_error + bank_error
    assert "shop made its guesses. The scores stay with bank." in shop_said
    assert not (federation.folder("shop") / "report.json").exists()
    report = PrivacyReport.from_json((federation.folder("bank") / "report.json").read_text())
    assert report.run.mode == "joint"
    assert {(f.attack, f.attacker, f.owner) for f in report.attacks} == {
        ("NormScore", "shop", "bank"),
        ("EmbeddingNearest", "shop", "bank"),
    }
    assert all(finding.plain.alone is not None for finding in report.attacks)
    assert "What could shop learn about bank's labels?" in call("report", federation.folder("bank")).stdout
    assert "labels told to shop in a joint audit" in report.budget["labels"].notes
    assert (federation.folder("shop") / "audits" / "0001" / "run.json").is_file()


def test_a_joint_audit_is_refused_where_it_cannot_be(trained: Trained) -> None:
    of_itself = call("audit", trained.federation.folder("bank"), "--attacker", "bank", "--insecure")
    assert of_itself.exit_code == 2
    assert "A joint audit needs an attacker other than the label party, but bank was named" in of_itself.stderr


def test_a_second_start_says_that_the_run_has_finished(trained: Trained) -> None:
    folder = trained.federation.path / "bank"
    leftover = trained.federation.folder("bank") / "checkpoints" / "once-shares-key.safetensors"
    assert not leftover.parent.exists()
    leftover.parent.mkdir()
    leftover.write_bytes(b"left by a crash at the end")
    result = call("join", folder / "plan.toml", "--as", "bank", "--out", folder / "runs")
    assert result.exit_code == 0
    assert not leftover.parent.exists()
    model = trained.federation.folder("bank") / "model.safetensors"
    assert f"bank's side of this run has finished; its model lies in {model}.\n" in result.stdout
    assert "rows have changed" not in result.stdout


def test_a_second_start_says_that_the_rows_are_no_longer_those_of_the_model(trained: Trained) -> None:
    folder = trained.federation.path / "bank"
    (file,) = folder.glob("*.csv")
    before = file.read_text()
    try:
        file.write_text("\n".join(before.splitlines()[:-1]) + "\n")
        result = call("join", folder / "plan.toml", "--as", "bank", "--out", folder / "runs")
    finally:
        file.write_text(before)
    assert result.exit_code == 0
    assert "bank's rows have changed since: the model was trained on what they were." in result.stdout


@pytest.mark.slow
def test_two_parties_predict_together_and_the_label_party_learns_it(trained: Trained, tmp_path: Path) -> None:
    federation = trained.federation
    for party, column in (("bank", "income"), ("shop", "spend")):
        new = pa.table({"customer": np.arange(100, 130), column: np.linspace(-2, 2, 30)})
        pq.write_table(new, federation.path / party / "new.parquet")
    processes = {
        party: federation.start(
            "predict", party, "--model", federation.folder(party), "--rows", "new.parquet", "--out", "prediction.csv"
        )
        for party in ("bank", "shop")
    }
    (code, stdout, stderr), at_shop = ended(processes["bank"]), ended(processes["shop"])
    assert (code, at_shop[0]) == (0, 0), (stderr, at_shop)
    assert stdout.endswith("Written to prediction.csv.\n")
    assert at_shop[1].endswith("shop learns nothing of the prediction.\n")
    assert not (federation.path / "shop" / "prediction.csv").exists()
    written = csv.read_csv(federation.path / "bank" / "prediction.csv")
    assert written.column_names == ["customer", "prediction", "probability 0", "probability 1"]
    shares = federation.simulated().results
    tables = {
        party: Table.read(federation.path / party / "new.parquet", ids="customer", owner=party)
        for party in ("bank", "shop")
    }
    roles = Plan.read(federation.path / "bank" / "plan.toml").roles
    expected = simulate({name: share.predict for name, share in shares.items()}, tables, roles=roles, seed=3)
    prediction = expected.results["bank"]
    assert prediction is not None
    assert written.column("prediction").to_pylist() == prediction.values.tolist()
    np.testing.assert_array_equal(written.column("probability 1").to_numpy(), prediction.probabilities[:, 1])


@pytest.mark.slow
def test_in_the_clear_it_works_too_and_is_warned_of_and_written_down(federation: Federation) -> None:
    for party, process in federation.both("join", "--insecure").items():
        code, stdout, stderr = ended(process)
        assert code == 0, stderr
        assert "INSECURE: TLS is off." in stderr
        assert "This run was in the clear" in stderr
        assert "TLS off, peer" in stdout
        assert federation.status(party)["insecure"] is True
    assert federation.trained_like(federation.simulated())


@pytest.mark.parametrize("command", ["join", "doctor", "predict"])
def test_nothing_leaves_this_machine_in_the_clear(federation: Federation, command: str) -> None:
    """Refused before anything is dialled: the name is nobody's, and the wait would be a minute."""
    plan = federation.path / "shop" / "plan.toml"
    plan.write_text(plan.read_text().replace("127.0.0.1", "bank.invalid"))
    model = ("--model", federation.path / "shop") if command == "predict" else ()
    refused = call(command, plan, "--as", "shop", "--insecure", *model)
    assert refused.exit_code == 2
    words = "A run without TLS needs addresses on this machine, such as 127.0.0.1:7431, but one of them is"
    assert f"{words} 'bank.invalid:{federation.port}'" in " ".join(refused.stderr.split())


def test_who_waits_in_vain_says_for_whom_and_writes_it_down(federation: Federation) -> None:
    federation.write(start=1)
    code, _, stderr = ended(federation.start("join", "bank", "--insecure"))
    assert code == 4
    assert re.search(r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d Waiting for shop, for [01] more seconds\.$", stderr)
    assert "Error: bank waited for shop and gave up." in stderr
    assert "INSECURE: TLS is off." in stderr
    status = federation.status("bank")
    assert (status["status"], status["insecure"]) == ("failed", True)
    folder = federation.path / "bank"
    # Nobody was met, so that the plain command begins again.
    again = call("join", folder / "plan.toml", "--as", "bank", "--insecure", "--out", folder / "runs")
    assert again.exit_code == 4
    assert "Error: bank waited for shop and gave up." in again.stderr


@pytest.mark.slow
def test_a_certificate_of_another_authority_is_refused_with_the_reason(federation: Federation) -> None:
    call("certs", "init", federation.path / "other")
    call("certs", "issue", "shop", "--authority", federation.path / "other", "--out", federation.path / "other")
    bank = federation.start("join", "bank")
    code, _, stderr = ended(federation.start("join", "shop", "--certs", federation.path / "other"))
    assert code == 7
    place = f"127.0.0.1:{federation.port}"
    assert f"Error: shop could not make sure that {place} is bank: unable to get local issuer certificate." in stderr
    assert federation.status("shop")["status"] == "failed"
    assert bank.poll() is None
    bank.send_signal(signal.SIGTERM)
    code, _, stderr = ended(bank)
    assert code == 143
    assert stderr.endswith("Terminated.\nThe others were not met. The same command begins again.\n")
    assert federation.status("bank")["status"] == "stopped"


def test_a_certificate_of_another_party_is_refused_before_anything_is_sent(federation: Federation) -> None:
    result = call(
        "join", federation.path / "shop" / "plan.toml", "--as", "shop", "--certs", federation.path / "authority"
    )
    assert result.exit_code == 9
    assert "Expected to read" in result.stderr
    assert "shop.pem" in result.stderr


def test_a_party_that_the_plan_does_not_have_is_refused(federation: Federation) -> None:
    result = call("join", federation.path / "shop" / "plan.toml", "--as", "shopp")
    assert result.exit_code == 2
    assert (
        "The parties of this plan are bank, shop, but --as names 'shopp'. The nearest name is 'shop'." in result.stderr
    )


@pytest.mark.slow
def test_a_party_told_to_end_tells_the_other(federation: Federation) -> None:
    federation.write(epochs=ENDLESS)
    processes = federation.both("join")
    federation.wait_for_a_checkpoint(*processes.values())
    processes["shop"].send_signal(signal.SIGTERM)
    code, _, stderr = ended(processes["bank"])
    assert code == 4
    assert re.search(r"Error: shop stopped at step \d+ of .*: its operator ended it\.", stderr)
    assert ended(processes["shop"])[0] == 143
    assert federation.status("shop")["status"] == "stopped"
    assert federation.status("bank")["status"] == "failed"


@pytest.mark.slow
def test_a_run_that_was_interrupted_is_resumed_to_the_same_end(federation: Federation) -> None:
    # Long enough that it is still training when the first checkpoint has been seen.
    federation.write(epochs=200)
    processes = federation.both("join")
    federation.wait_for_a_checkpoint(*processes.values())
    processes["bank"].kill()
    processes["bank"].communicate()
    assert federation.status("bank")["status"] == "running"
    refused = ended(federation.start("join", "bank"))
    assert refused[0] == 2
    assert "whose status is 'running'. Go on with --resume" in refused[2]
    assert ended(federation.start("join", "bank", "--resume"))[0] == 0
    assert ended(processes["shop"])[0] == 0
    assert federation.trained_like(federation.simulated())


@pytest.mark.slow
def test_a_folder_is_used_by_one_process_at_a_time(federation: Federation) -> None:
    bank = federation.start("join", "bank")
    while not list(federation.path.glob("bank/runs/*/bank/run.json")):
        assert bank.poll() is None
        time.sleep(0.02)
    code, _, stderr = ended(federation.start("join", "bank", "--resume"))
    bank.send_signal(signal.SIGTERM)
    ended(bank)
    assert code == 9
    assert "should be used by one process, but another one runs bank's side there" in stderr


def test_an_older_tls_than_1_3_is_refused(federation: Federation) -> None:
    federation.start("join", "bank")
    certificates = federation.path / "shop" / "certs"

    def connected(version: ssl.TLSVersion) -> str | None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(certificates / "ca.pem")
        context.load_cert_chain(certificates / "shop.pem", certificates / "shop.key")
        context.set_alpn_protocols(["h2"])
        context.minimum_version = context.maximum_version = version
        address = ("127.0.0.1", federation.port)
        with socket.create_connection(address, timeout=5) as plain, context.wrap_socket(plain) as secure:
            return secure.version()

    def listens() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", federation.port), timeout=1):
            return True
        return False

    deadline = time.monotonic() + 60
    while not listens():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert connected(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    with pytest.raises(ssl.SSLError):
        connected(ssl.TLSVersion.TLSv1_2)


# The doctor.


@pytest.mark.slow
def test_the_doctor_finds_nothing_wrong_with_two_that_fit(federation: Federation) -> None:
    federation.write(randomness="system")
    for party, process in federation.both("doctor", "--wait", "60").items():
        code, stdout, stderr = ended(process)
        assert code == 0, stdout + stderr
        assert "WRONG" not in stdout
        assert f"Nothing is wrong. Run: colonnade join plan.toml --as {party}\n" in stdout
        assert "the same 60 ids in the same order" in stdout


def test_the_doctor_alone_says_who_did_not_come_with_the_fix_beside_it(federation: Federation) -> None:
    federation.write(randomness="system")
    result = call("doctor", federation.path / "bank" / "plan.toml", "--as", "bank", "--wait", "1")
    assert result.exit_code == 4
    said, fix, count = result.stdout.splitlines()[-3:]
    assert said == f"WRONG  shop, reach: shop did not come to 127.0.0.1:{federation.port} within 1 s"
    assert fix.startswith("       -> Run the doctor there at the same time")
    assert count == "1 of 11 lines are wrong."


def test_the_doctor_exits_with_the_code_of_the_first_thing_that_is_wrong(federation: Federation) -> None:
    federation.write(randomness="system")
    (federation.path / "bank" / "bank.csv").write_text("customer,income,late\n1,1,0\n1,2,1\n")
    result = call("doctor", federation.path / "bank" / "plan.toml", "--as", "bank", "--wait", "1")
    assert result.exit_code == 3
    assert "WRONG  bank, ids: bank's table needs one row per id, but 1 of 2 rows repeat an earlier id" in result.stdout


@pytest.mark.slow
def test_the_doctor_calls_noise_from_the_plans_seed_wrong_at_both(federation: Federation) -> None:
    for party, process in federation.both("doctor", "--wait", "60").items():
        code, stdout, stderr = ended(process)
        assert code == 2, stdout + stderr
        assert f"WRONG  {party}, randomness: {party}'s noise follows from the plan's seed" in stdout
        assert 'Leave out randomness = "seeded" under [network]' in stdout
        assert "found something wrong on its own side: randomness" in stdout
        assert "training sends about" in stdout, "what a run would send is still estimated"


# What the page and the examples say.


def test_the_example_plans_and_the_page_can_be_read(tmp_path: Path) -> None:
    block = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0]
    (tmp_path / "plan.toml").write_text(block)
    for path in (*EXAMPLES.glob("*.toml"), tmp_path / "plan.toml"):
        network = Plan.read(path).network
        assert network is not None
        assert network.addresses(["shop"]) == {"shop": None}
    assert Plan.read(tmp_path / "plan.toml").data.tables.keys() == {"bank"}


def test_the_page_names_every_command(tmp_path: Path) -> None:
    shell = typer.main.get_command(app)
    commands = [f"colonnade certs {name}" for name in shell.commands["certs"].commands]
    commands += [f"colonnade {name}" for name in ("doctor", "join", "predict")]
    assert [command for command in commands if command not in PAGE] == []


@pytest.mark.slow
def test_the_page_can_be_followed_on_one_machine(tmp_path: Path) -> None:
    (script,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    plan = (EXAMPLES / "plan.toml").read_text().replace("localhost:7431", f"localhost:{free_port()}")
    (tmp_path / "plan.toml").write_text(plan)
    with typed_in_a_shell(tmp_path / "bin", ENVIRONMENT) as environment:
        ran = subprocess.run(
            ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Nothing is wrong. Run: colonnade join plan.toml --as bank" in ran.stdout
    assert csv.read_csv(tmp_path / "prediction.csv").num_rows == len(
        Plan.read(tmp_path / "plan.toml").tables().test["bank"]
    )
