import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from colonnade.auditing import audit
from colonnade.auditing.contents import BestBaseline, Evidence, Finding, Granted, RunIdentity, Score
from colonnade.auditing.report import PrivacyReport
from colonnade.errors import StorageError
from colonnade.privacy.ledger import Spent
from colonnade.secret import Secret

GOLDEN = Path(__file__).parent / "golden"

NOTHING = Evidence(Score(0.5, 0.45, 0.55), 0.5, (0.48, 0.52), BestBaseline(0.5, "chance"))
CLEAR = Evidence(Score(0.9, 0.85, 0.94), 0.5, (0.48, 0.6), BestBaseline(0.7, "label spreading"))


def finding(plain: Evidence = NOTHING, up_to_naming: Evidence = NOTHING) -> Finding:
    return Finding(
        attack="NormScore",
        summary="Rows of the rarer class have longer gradients.",
        attacker="shop",
        owner="bank",
        about=Secret.LABELS,
        is_active=False,
        granted=Granted(("split/gradient",), False, False, 0),
        measure="AUC",
        rows=100,
        coverage=0.5,
        plain=plain,
        up_to_naming=up_to_naming,
    )


def test_a_score_whose_whole_interval_exceeds_all_controls_is_a_leak() -> None:
    assert CLEAR.leaks
    assert CLEAR.threshold == 0.7
    assert CLEAR.excess == pytest.approx(0.2)


@pytest.mark.parametrize(
    "change",
    [
        {"score": Score(0.9, 0.69, 0.94)},
        {"chance": 0.86},
        {"null": (0.48, 0.86)},
        {"alone": BestBaseline(0.86, "label spreading")},
    ],
)
def test_one_control_above_the_lower_end_is_enough_for_no_leak(change: dict[str, object]) -> None:
    assert not replace(CLEAR, **change).leaks


def test_of_few_nulls_the_highest_counts_and_of_many_the_95th_percentile() -> None:
    def high(n: int) -> float:
        return replace(CLEAR, null=tuple(number / 1000 for number in range(n))).null_high

    assert (high(20), high(38)) == (0.019, 0.037)
    # Among n nulls in random order, a score like them is above the k-th with probability 1 - k / (n + 1).
    assert (high(39), high(199)) == (0.037, 0.189)


@pytest.mark.parametrize(("n", "luck"), [(4, 0.2), (19, 0.05), (39, 0.05), (199, 0.05)])
def test_luck_is_how_often_one_of_many_like_scores_exceeds_the_null(n: int, luck: float) -> None:
    evidence = replace(CLEAR, null=tuple(range(n)))
    places = [place for place in range(n + 1) if place - 0.5 > evidence.null_high]
    assert evidence.false_positive_rate == pytest.approx(luck) == len(places) / (n + 1)


def test_the_verdict_is_the_worst_that_the_evidence_allows() -> None:
    assert finding(CLEAR, CLEAR).verdict == "leaks"
    assert finding(NOTHING, CLEAR).verdict == "leaks, classes unnamed"
    assert finding(NOTHING, NOTHING).verdict == "no leak found"
    assert finding(NOTHING, CLEAR).strongest is CLEAR


def test_messages_that_tell_no_more_than_the_attacker_knows_alone_are_called_so() -> None:
    known = replace(CLEAR, alone=BestBaseline(0.95, "label spreading"))
    assert (known.exceeds_null, known.leaks) == (True, False)
    assert finding(known, NOTHING).verdict == "no more than alone"
    assert finding(NOTHING, known).strongest is known
    assert finding(known, CLEAR).verdict == "leaks, classes unnamed"
    assert not replace(known, null=(0.86,)).exceeds_null
    assert not replace(known, chance=0.86).exceeds_null


def test_an_attack_reads_what_it_declared_or_all_if_it_takes_part_and_declares_nothing() -> None:
    passive = finding()
    assert [passive.reads(kind) for kind in ("split/gradient", "split/verdict")] == [True, False]
    active = replace(passive, is_active=True)
    assert not active.reads("split/verdict")
    assert replace(active, granted=replace(active.granted, messages=())).reads("split/verdict")


@pytest.mark.parametrize(
    ("name", "measure"), [("report-v1.json", "accuracy"), ("report-v1-balanced.json", "balanced accuracy")]
)
def test_a_report_of_the_first_version_still_loads(name: str, measure: str) -> None:
    report = PrivacyReport.from_json((GOLDEN / name).read_text())
    assert {f.measure for f in report.attacks} == {measure, "AUC"}
    assert {f.attack: f.verdict for f in report.attacks} == {
        "NormScore": "no leak found",
        "DirectionScore": "leaks",
        "DirectLabel": "leaks",
    }
    assert report.run.parties == {"bank": "label party", "shop": "feature party"}
    assert math.isinf(report.budget["labels"].epsilon)
    assert {d.kind for d in report.disclosures if Secret.FEATURES in d.reveals} == {"split/embedding"}
    assert len(report.attacks[0].plain.null) == 20


@pytest.mark.parametrize("name", ["report-v1.json", "report-v1-balanced.json"])
def test_a_report_of_the_first_version_is_written_as_it_was_and_with_what_was_added(name: str) -> None:
    text = (GOLDEN / name).read_text()
    written, golden = json.loads(PrivacyReport.from_json(text).to_json()), json.loads(text)
    for finding in golden["attacks"]:
        finding["granted"] |= {"known_records": 0, "forest": [], "prior": 0}
        finding |= {"rebuilt": None, "leakage": None, "over_epochs": []}
    del written["summary"]
    added = {"stated": [], "over_runs": {}, "guarded": [], "inapplicable": [], "tried": [], "quality": None}
    added |= {"attackers": [], "partial": False}
    run = {**golden["run"], "insecure": False, "date": "", "n_classes": None}
    assert written == {**golden, "run": run, **added}


@pytest.mark.parametrize("text", ["", "[]", "{}", "no JSON"])
def test_a_file_that_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(StorageError, match=r"should be JSON with a version, but this is not .* Give the file that"):
        PrivacyReport.from_json(text)


def test_a_report_of_a_later_version_is_refused() -> None:
    with pytest.raises(StorageError) as caught:
        PrivacyReport.from_json('{"version": 99}')
    assert str(caught.value) == (
        "A privacy report of version 1 to 1 can be read, but this one is of version 99. Upgrade colonnade."
    )


def test_a_report_without_one_of_its_parts_is_refused() -> None:
    tree = json.loads((GOLDEN / "report-v1.json").read_text())
    del tree["attacks"][0]["plain"]
    with pytest.raises(StorageError) as caught:
        PrivacyReport.from_json(json.dumps(tree))
    assert str(caught.value) == (
        "A privacy report of version 1 should have all its parts, but this one cannot be read (KeyError: 'plain'). "
        "Write the report again."
    )


def test_what_all_runs_spent_is_shown_beside_what_this_one_did_and_survives_the_file(tmp_path: Path) -> None:
    identity = RunIdentity("0" * 64, "a.fit", {"bank": "label party"}, 9, 0, "system", "own side")
    one, all_runs = (
        Spent(Secret.LABELS, epsilon, 0.0, "label", releases={"randomised-response": n})
        for epsilon, n in ((1.5, 1), (4.5, 3))
    )
    features = Spent(Secret.FEATURES, math.inf, 0.0, releases={"not-private": 1}, notes=("sent in the clear",))
    over_runs = {"bank": {"labels": all_runs, "features": features}}
    report = PrivacyReport(identity, (), {"labels": one}, (), (), over_runs=over_runs)
    assert PrivacyReport.from_json(report.to_json()) == report
    text = report.render(160)
    assert "labels: epsilon 1.5 at delta 0" in text
    assert "labels, over all runs on bank's records: epsilon 4.5 at delta 0 per label" in text
    assert "features, over all runs on bank's records: not private: sent in the clear" in text
    report.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "spent over all runs on these records" in page
    assert "epsilon 4.5 at delta 0 per label" in page
    assert "over_runs" in json.loads(report.to_json())
    # Reports of earlier versions do not have it.
    earlier = {key: value for key, value in json.loads(report.to_json()).items() if key != "over_runs"}
    assert PrivacyReport.from_json(json.dumps(earlier)).over_runs == {}


def test_what_was_joined_survives_a_file(toy: SimpleNamespace) -> None:
    report = audit(toy.run(strength=2, signal=1), [toy.ReadHint(), toy.RankByHint()], nulls=3)
    (strongest,) = report.strongest
    assert strongest.leakage is not None
    assert strongest.leakage.excess is not None
    assert strongest.leakage.excess.low > 0
    assert PrivacyReport.from_json(report.to_json()) == report
