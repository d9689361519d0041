import re
from pathlib import Path

import numpy as np
import pytest

from colonnade.attacks.labels.gradients import NormScore
from colonnade.auditing import PrivacyReport, SelfReportedLeak, audit, audit_own_side
from colonnade.auditing.render.html import html
from colonnade.auditing.render.words import questions
from colonnade.auditing.report import self_reported_leaks
from colonnade.data import load
from colonnade.models.networks.oneshot import OneShotClassifier, OneShotRegressor
from colonnade.roles import Roles
from colonnade.runtime.simulate import Run, simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table

ROLES = Roles(label="bank", features=("shop", "club"))
BUDGET = {"shop": 1.0, "club": 1.0}


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    """Three parties; the club has the last four of the shop's columns."""
    tables = load("breast-cancer", rows=200).split()
    shop = tables["shop"]
    club = Table.of(shop.select(shop.columns[-4:]).to_arrow(), ids=shop.id_name, owner="club")
    return {**tables, "shop": shop.select(shop.columns[:-4]), "club": club}


@pytest.fixture(scope="module")
def run(tables: dict[str, Table]) -> Run[OneShotClassifier]:
    return simulate(OneShotClassifier(leak_budget=BUDGET, components=3, epochs=2).fit, tables, roles=ROLES)


def figures(run: Run[OneShotClassifier], party: str) -> str:
    leak = run.results[party].leak_
    assert leak is not None
    said = f"relative MSE {leak.relative_mse:.2f} (0 is everything, 1 nothing) and worst column R² {leak.worst_r2:.2f}"
    return f"By {party}'s own measurement, its columns can be rebuilt from its embedding of width 3 with {said}."


def test_a_report_on_one_shot_shows_what_each_feature_party_stated(run: Run[OneShotClassifier]) -> None:
    report = audit(run, [NormScore()], nulls=1)
    assert [(said.owner, said.receiver, said.width) for said in report.stated] == [
        ("shop", "bank", 3),
        ("club", "bank", 3),
    ]
    text, page = " ".join(report.render().split()), html(report).replace("&#39;", "'")
    for party in ("shop", "club"):
        assert figures(run, party) in text
        assert figures(run, party) in page
    for question in questions(report):
        assert (question.about, question.answer) == (Secret.FEATURES, "measured by its owner")
        assert "has not been measured" not in question.sentence
        assert "This audit made no attack on them." in question.sentence


def test_a_report_on_a_one_shot_regression_shows_it_too(tables: dict[str, Table]) -> None:
    values = np.random.default_rng(0).standard_normal(len(tables["bank"]))
    numbers = {**tables, "bank": tables["bank"].with_labels(values)}
    model = OneShotRegressor(leak_budget=BUDGET, components=2, epochs=1)
    text = " ".join(audit(simulate(model.fit, numbers, roles=ROLES), [], nulls=1).render().split())
    for party in ("shop", "club"):
        assert re.search(rf"By {party}'s own measurement, .* width 2 with relative MSE 0\.\d\d .* R² \d\.\d\d\.", text)


@pytest.mark.parametrize("party", ["bank", "shop"])
def test_both_sides_of_a_deployed_run_show_what_was_stated(
    run: Run[OneShotClassifier], tables: dict[str, Table], party: str
) -> None:
    own = {"plan": run.plan, "table": tables[party], "ledger": run.ledgers[party]}
    text = " ".join(audit_own_side(run.transcripts[party], [], **own).render().split())
    assert figures(run, "shop") in text
    assert (figures(run, "club") in text) == (party == "bank")


def test_what_was_stated_survives_a_file(run: Run[OneShotClassifier], tmp_path: Path) -> None:
    report = audit(run, [], nulls=1)
    (tmp_path / "report.json").write_text(report.to_json())
    assert PrivacyReport.from_json((tmp_path / "report.json").read_text()).stated == report.stated != ()


def test_a_statement_is_told_once_though_two_recordings_hold_it(run: Run[OneShotClassifier]) -> None:
    both = {name: run.transcripts[name] for name in ("bank", "shop")}
    assert sorted(said.owner for said in self_reported_leaks(both)) == ["club", "shop"]


def test_a_report_on_a_run_without_statements_has_none() -> None:
    assert self_reported_leaks({}) == ()
    assert str(SelfReportedLeak("a", "b", 1, 1.0, 0.0)).endswith("b's own columns, and better attacks, may tell more.")
