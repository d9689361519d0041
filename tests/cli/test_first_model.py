"""The page that goes from two CSVs to a scored joint model is followed by a bank and a shop."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import colonnade
from colonnade.auditing.report import PrivacyReport
from colonnade.models.quality import Quality
from colonnade.testing.ports import free_port
from tests.commands import typed_in_a_shell

PAGE = (Path(__file__).parents[2] / "docs" / "first-model.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r'```bash title="at the (bank|shop)"\n(.*?)```', PAGE, re.DOTALL)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(colonnade.__path__[0]).parent), "OMP_NUM_THREADS": "1"}


def write_tables(folder: Path) -> None:
    """Two lists of the same people, written otherwise, some of whom only one of the two knows."""
    draw, n = np.random.default_rng(5), 400
    income, spend = draw.normal(size=(2, n))
    late = np.where(income - 2 * spend + draw.normal(size=n) > 0, "yes", "no")
    bank = [f"Person{i}@Example.org,{a:.3f},{b}" for i, (a, b) in enumerate(zip(income, late, strict=True))][:380]
    shop = [f" person{i}@example.org,{b:.3f}" for i, b in enumerate(spend)][20:]
    (folder / "bank" / "bank.csv").write_text("\n".join(["mail,income,late", *bank, ""]))
    (folder / "shop" / "shop.csv").write_text("\n".join(["e_mail,spend", *shop[::-1], ""]))


def test_the_path_takes_at_most_eight_commands_a_side_and_repeats_none() -> None:
    for party in ("bank", "shop"):
        commands = [line for name, text in BLOCKS if name == party for line in text.splitlines()]
        assert 0 < len(commands) <= 8
        assert all(line.startswith("colonnade ") for line in commands)
        assert len(set(commands)) == len(commands)


@pytest.mark.slow
@pytest.mark.network
def test_the_page_can_be_followed_from_two_csvs_to_a_scored_model_with_a_report(tmp_path: Path) -> None:
    for party in ("bank", "shop"):
        (tmp_path / party).mkdir()
        sections = dict(re.findall(r'```toml title="(.*?)"\n(.*?)```', PAGE, re.DOTALL))
        plan = f"{sections['in both plans']}\n{sections[party]}".replace("localhost:7431", f"localhost:{PORT}")
        (tmp_path / party / "plan.toml").write_text(plan)
    write_tables(tmp_path)
    said = ""
    waiting: list[tuple[str, str]] = []
    with typed_in_a_shell(tmp_path / "bin", ENVIRONMENT) as environment:
        for party, text in BLOCKS:
            waiting.append((party, text))
            # Both parties look and train at the same time; certificates and audits go one after the other.
            if party == "bank" and re.search(r"colonnade (doctor|join)", text):
                continue
            said += follow(tmp_path, waiting, environment)
            waiting = []
            if "request" in text:
                shutil.copy(tmp_path / "shop" / "certs" / "shop.csr", tmp_path / "bank")
            if "sign" in text:
                for name in ("ca.pem", "shop.pem"):
                    shutil.copy(tmp_path / "bank" / "for-shop" / name, tmp_path / "shop" / "certs")
    assert said.count("Nothing is wrong.") == 2
    assert "360 of your 380 rows" in said
    (folder,) = (tmp_path / "bank" / "runs").glob("credit-*/bank")
    quality = Quality.load(folder / "quality.json")
    assert str(quality).splitlines()[0] in said
    assert (quality.rows, quality.trained_rows) == (72, 288)
    assert quality.figures["AUC"].surely == 1
    assert PrivacyReport.from_json((folder / "report.json").read_text()).quality == quality
    assert (folder / "report.html").exists()


PORT = free_port()


def follow(folder: Path, sides: list[tuple[str, str]], environment: dict[str, str]) -> str:
    """Run what the page says at some parties, at the same time; returns what they said."""
    options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = [
        subprocess.Popen(["bash", "-e", "-c", text], cwd=folder / party, **options)  # type: ignore[call-overload]
        for party, text in sides
    ]
    told = [process.communicate(timeout=200)[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(running), "\n".join(told)
    return "\n".join(told)
