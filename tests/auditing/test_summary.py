"""The first screen of a report, and the remedies that it names."""

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colonnade.auditing.contents import BestBaseline, Disclosure, Evidence, Finding, Leakage, Score
from colonnade.auditing.remedies import comparable_set, remedies, sufficient, without_embeddings
from colonnade.auditing.render.html import html
from colonnade.auditing.render.plots import trade
from colonnade.auditing.render.summary import (
    MEANINGS,
    SIGNS,
    beaten,
    grounds,
    joined,
    matrix,
    next_steps,
    quality,
    summary,
    verdict,
    worst,
)
from colonnade.auditing.render.words import headline, n_classes, questions
from colonnade.auditing.report import PrivacyReport
from colonnade.models.quality import Figure, Quality
from colonnade.secret import Secret

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden" / "report-v1.json"
MEASURED = Quality(900, "d", 2000, "boosted trees", {"AUC": Figure(0.784, 0.75, (0.01, 0.05))})


@pytest.fixture
def report() -> PrivacyReport:
    return PrivacyReport.from_json(GOLDEN.read_text())


def of_three(report: PrivacyReport) -> PrivacyReport:
    """The same report, had telco been there as well, sent bank embeddings, and been sent nothing."""
    embeddings = Disclosure("telco", "bank", "split/embedding", (Secret.FEATURES,), (), 40, 81_920, True)
    run = replace(report.run, parties={**report.run.parties, "telco": "feature party"})
    return replace(report, run=run, disclosures=(*report.disclosures, embeddings))


def test_the_matrix_has_a_row_for_each_secret_and_a_cell_for_each_party(report: PrivacyReport) -> None:
    rows = {row.title: row.cells for row in matrix(of_three(report))}
    assert rows == {
        "bank's labels": ("own", "leaks", "nothing sent"),
        "shop's features": ("not tested", "own", "nothing sent"),
        "telco's features": ("not tested", "nothing sent", "own"),
    }


def test_what_no_attack_can_read_is_not_called_untested(report: PrivacyReport) -> None:
    tried = replace(report, tried=(Secret.FEATURES, Secret.LABELS))
    assert matrix(tried)[1].cells == ("no attack applies", "own")


def test_every_verdict_has_a_sign_and_a_meaning() -> None:
    assert SIGNS.keys() - {"own"} == MEANINGS.keys()
    assert all(SIGNS[cell] for cell in MEANINGS)


def test_the_worst_findings_are_about_different_secrets(report: PrivacyReport) -> None:
    of_columns = (replace(f, attacker="bank", owner="shop", about=Secret.FEATURES) for f in report.attacks)
    by_telco = (replace(f, attacker="telco") for f in report.attacks)
    first, second = worst(replace(report, attacks=(*report.attacks, *by_telco, *of_columns)))
    assert first.startswith("shop about bank's labels: DirectLabel names 100.0% correctly of 512 rows")
    assert second.startswith("bank about shop's features: ")
    assert worst(replace(report, attacks=())) == ()


def test_quality_is_told_by_measure_or_said_to_be_unknown(report: PrivacyReport) -> None:
    assert quality(report) == "How well the model predicts is not known here."
    assert quality(replace(report, quality=MEASURED)) == (
        "Together is better than alone: AUC 0.784 against 0.750, a difference of 0.010 to 0.050. Measured on 900 rows "
        "that were not trained on."
    )


def test_a_leak_of_labels_is_answered_by_a_model_and_a_defence_with_their_measured_price(
    report: PrivacyReport,
) -> None:
    model, defence = sufficient(2)
    steps = next_steps(report)
    assert model.name in steps[0]
    assert f"AUC {model.after['AUC']:.3f} instead of {model.before['AUC']:.3f} on credit default" in steps[0]
    assert defence.name in steps[1]
    assert f"AUC {defence.after['AUC']:.3f} instead of {defence.before['AUC']:.3f} on credit default" in steps[1]


def test_a_defence_is_recommended_for_the_mean_over_seeds_and_with_its_worst_seed(report: PrivacyReport) -> None:
    (_, defence) = sufficient(2)
    assert defence.name == "gradient-averaging"
    assert next_steps(report)[1].startswith(
        "Labels: under the defence gradient-averaging, on average over 3 seeds no measured attack beat the attacker "
        "alone (in a single seed by up to 4 points): AUC "
    )
    (told,) = (line for line in grounds(report) if line.startswith("gradient-averaging"))
    assert "ended 1 point below the attacker alone. In the worst single seed an attack ended 4 points above it." in told


@pytest.mark.parametrize(
    ("excess", "worst_seed", "said"),
    [
        (-0.02, -0.01, "no measured attack beat the attacker alone"),
        (0.0, 0.004, "no measured attack beat the attacker alone (in a single seed by less than 1 point)"),
        (0.003, 0.01, "attacks beat the attacker alone by less than 1 point (in a single seed by up to 1 point)"),
        (0.016, 0.038, "attacks beat the attacker alone by up to 2 points (in a single seed by up to 4 points)"),
    ],
)
def test_by_how_much_attacks_beat_is_told_of_the_worst_set_in_words(
    excess: float, worst_seed: float, said: str
) -> None:
    (_, defence) = sufficient(2)
    mild = replace(defence, excess=-0.1, worst_seed=-0.05)
    assert beaten((mild, replace(defence, excess=excess, worst_seed=worst_seed))) == f"on average over 3 seeds {said}"


def test_a_defence_that_the_run_has_is_not_recommended(report: PrivacyReport) -> None:
    (_, defence) = sufficient(2)
    held = tuple(replace(d, under=("AverageGradient",)) for d in report.disclosures)
    assert defence.name == "gradient-averaging"
    assert not any(defence.name in step for step in next_steps(replace(report, disclosures=held)))


def test_a_leak_that_no_result_is_about_is_not_answered_by_a_figure(report: PrivacyReport) -> None:
    other = tuple(replace(d, kind="glm/opening") for d in report.disclosures)
    (step,) = next_steps(replace(report, disclosures=other))
    assert step.startswith("None of the results that come with this version says what would have stopped this.")


def test_without_a_leak_the_next_step_is_to_attack_harder(report: PrivacyReport) -> None:
    known = tuple(
        replace(f, plain=replace(f.plain, alone=BestBaseline(1.0, "x")), up_to_naming=None) for f in report.attacks
    )
    assert next_steps(replace(report, attacks=known))[0].startswith("Keep the plan.")
    untested = replace(report, attacks=())
    assert next_steps(untested)[0].startswith("Choose attacks that apply to this run.")
    # The report of a party that has just audited its own side does not tell it to do so.
    mirrored = replace(untested, run=replace(report.run, mode="mirror"))
    assert next_steps(mirrored)[0].startswith("Find out what the others make of it with their own columns: audit")
    # Alone it cannot try what the others could do with their own columns, so no attack is said not to apply.
    assert headline(mirrored) == "No attack can be made on what bank sent alone"
    assert {asked.answer for asked in questions(replace(mirrored, tried=(Secret.LABELS,)))} == {"not tested"}


def test_labels_that_a_feature_party_passes_on_are_the_label_partys(report: PrivacyReport) -> None:
    told = tuple(Disclosure("shop", to, "glm/opening", (Secret.LABELS,), (), 1, 64, True) for to in ("telco", "bank"))
    passed_on = replace(of_three(report), disclosures=told, attacks=())
    (labels,) = (row for row in matrix(passed_on) if row.about is Secret.LABELS)
    cells = dict(zip(passed_on.run.parties, labels.cells, strict=True))
    assert (cells["bank"], cells["telco"]) == ("own", "not tested")
    assert {(asked.attacker, asked.owner) for asked in questions(passed_on)} == {("telco", "bank")}


def test_a_sufficient_remedy_hid_labels_on_every_set_that_it_was_measured_on() -> None:
    for n in (2, 10):
        for chosen in sufficient(n):
            assert chosen.set == comparable_set(n)
            alike = [each for each in remedies() if (each.name, each.setting) == (chosen.name, chosen.setting)]
            assert all(each.hides_labels for each in alike)


def test_regressions_and_trees_are_among_the_remedies_with_what_attacks_on_labels_found() -> None:
    found = {(each.name, each.setting): each for each in remedies() if each.setting}
    regression = found["logistic-regression", "with an arbiter"]
    # The shop's own coefficients rank its rows by the label, so a regression is not called sufficient.
    assert regression.excess is not None
    assert not regression.hides_labels
    assert found["secureboost-classifier", "hidden sums"].hides_labels
    assert {each.name for each in sufficient(2) if each.is_model} == {"secureboost-classifier"}


def test_the_worst_seed_of_a_remedy_is_the_most_that_any_attack_exceeded_in_any_trial() -> None:
    with (ROOT / "docs" / "results" / "defences.csv").open(encoding="utf-8") as file:
        trials = [row for row in csv.DictReader(file) if row["part"] == "catalogue"]
    for each in remedies():
        if each.is_model:
            continue
        mine = [row for row in trials if (row["set"], row["defence"]) == (each.set, each.name)]
        scored = [(row, name.removesuffix(".score")) for row in mine for name in row if name.endswith(".score")]
        most = max(float(row[f"{a}.score"]) - float(row[f"{a}.alone"]) for row, a in scored if row[f"{a}.score"])
        assert each.worst_seed == pytest.approx(most, abs=1e-5)
        assert each.worst_seed >= each.excess


def test_the_remedies_that_are_shipped_are_those_that_the_results_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from experiments.remedies import REMEDIES, text

    assert REMEDIES.read_text("utf-8") == text()


def test_the_verdict_is_three_lines(report: PrivacyReport) -> None:
    leak, model, step = verdict(replace(report, quality=MEASURED))
    assert leak == "bank's labels can be inferred by shop."
    assert model.startswith("Quality: Together is better than alone: AUC 0.784")
    assert step.startswith("Next: Labels: ")


def test_the_file_holds_the_first_screen_in_words(report: PrivacyReport) -> None:
    written = json.loads(report.to_json())["summary"]
    assert written == json.loads(json.dumps(summary(report)))
    assert written["matrix"]["bank's labels"] == {"bank": "own", "shop": "leaks"}


def test_what_all_attacks_of_a_party_tell_together_stands_under_the_headline(report: PrivacyReport) -> None:
    leakage = Leakage(("A", "B", "C"), 0.05, Score(0.452, 0.43, 0.471), None, Score(1.4, 1.3, 1.5))
    less = replace(leakage, excess=Score(0.1, -0.02, 0.2), normalised=None)
    unknown = replace(leakage, excess=None)
    (direct,) = (f for f in report.attacks if f.attack == "DirectLabel")
    by_party = {"telco": less, "shop": leakage, "other": unknown}
    told = replace(report, attacks=tuple(replace(direct, attacker=who, leakage=by_party[who]) for who in by_party))
    first, second = joined(told)
    assert first == (
        "All 3 attacks by shop joined tell bank's labels +45 points (+43 to +47) against shop alone, more than its "
        "own columns would tell with all other labels known."
    )
    assert second == "All 3 attacks by telco joined tell bank's labels +10 points (-2 to +20) against telco alone."
    assert verdict(told)[0].endswith(f". {first}")
    assert first in " ".join(told.render().split())
    for text in (told.to_markdown(), html(told), told.to_json()):
        assert "(+43 to +47) against shop alone, more than its own columns would tell" in text
        assert "140%" not in text
    assert json.loads(told.to_json())["attacks"][1]["leakage"]["normalised"]["value"] == 1.4
    assert joined(report) == ()


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (6.28, ", more than its own columns would tell with all other labels known."),
        (1.0, ", 100% of the way to what its own columns would tell with all other labels known."),
        (0.62, ", 62% of the way to what its own columns would tell with all other labels known."),
        (0.0, "."),
        (-0.3, "."),
    ],
)
def test_a_share_above_one_is_told_in_words_and_one_below_nothing_is_left_out(
    report: PrivacyReport, share: float, said: str
) -> None:
    leakage = Leakage(("A", "B"), 0.05, Score(0.1, 0.05, 0.15), None, Score(share, share, share))
    (direct,) = (f for f in report.attacks if f.attack == "DirectLabel")
    (line,) = joined(replace(report, attacks=(replace(direct, leakage=leakage),)))
    assert line == f"All 2 attacks by shop joined tell bank's labels +10 points (+5 to +15) against shop alone{said}"


def test_columns_that_would_tell_no_more_with_all_labels_are_said_to(report: PrivacyReport) -> None:
    leakage = Leakage(("A", "B"), 0.05, Score(0.012, 0.005, 0.02), BestBaseline(0.63, "random forest"), None)
    (direct,) = (f for f in report.attacks if f.attack == "DirectLabel")
    (line,) = joined(replace(report, attacks=(replace(direct, leakage=leakage),)))
    assert line == (
        "All 2 attacks by shop joined tell bank's labels +1 point (+0 to +2) against shop alone; its own columns would "
        "tell no more with all other labels known."
    )


def by_telco(report: PrivacyReport) -> PrivacyReport:
    """A report in which a weak attack that was told nothing exceeds most what telco alone reaches by that."""
    (norms,) = (f for f in report.attacks if f.attack == "NormScore")

    def found(name: str, score: float, alone: float, **more: Any) -> Finding:
        plain = Evidence(Score(score, score - 0.01, score), 0.5, (0.5,), BestBaseline(alone, "network"))
        return replace(norms, attack=name, attacker="telco", plain=plain, up_to_naming=None, **more)

    leakage = Leakage(("NormScore", "CoTraining"), 0.05, Score(0.36, 0.3, 0.4), None, None)
    told = replace(norms.granted, known_labels=28)
    attacks = (
        found("NormScore", 0.957, 0.5),
        found("CoTraining", 1.0, 0.62),
        found("Strongest", 0.99, 0.631, leakage=leakage, granted=told),
    )
    run = replace(report.run, parties={**report.run.parties, "telco": "feature party"})
    return replace(report, run=run, attacks=attacks)


def test_a_question_is_led_by_all_attacks_joined_and_then_by_the_highest_score(report: PrivacyReport) -> None:
    question = questions(by_telco(report))[0]
    assert [finding.attack for finding in question.findings] == ["Strongest", "CoTraining", "NormScore"]
    assert question.found.startswith("Strongest, all its attacks joined, tells the last class from the others with an")
    assert question.found.endswith("By chance it would be 0.500; without collaboration telco reaches 0.631.")


def test_an_attack_that_was_told_nothing_stands_beside_what_the_party_reaches_with_the_labels_of_the_joined_ones(
    report: PrivacyReport,
) -> None:
    *singles, strongest = by_telco(report).attacks
    milder = replace(strongest, plain=replace(strongest.plain, score=Score(0.63, 0.6, 0.66)))
    question = questions(replace(report, attacks=(singles[0], milder)))[0]
    assert question.answer == "leaks"
    assert question.found.endswith(
        "By chance it would be 0.500, and telco alone does no better; with 28 known labels per class it reaches 0.631."
    )


def test_what_joined_attacks_are_told_is_left_out_where_it_tells_nothing(report: PrivacyReport) -> None:
    *singles, strongest = by_telco(report).attacks
    nothing = replace(strongest.plain, score=Score(0.7, 0.6, 0.8), alone=BestBaseline(0.5, "chance"))
    joined_leads = replace(report, attacks=(singles[0], replace(strongest, plain=nothing)))
    by_chance = "By chance it would be 0.500, and telco alone does no better."
    (question,) = (each for each in questions(joined_leads) if each.attacker == "telco")
    assert question.findings[0].attack == "Strongest"
    assert question.found.endswith(by_chance)
    # A single attack leads, and more known labels are of no use to telco.
    weak = replace(nothing, score=Score(0.6, 0.4, 0.7))
    (question,) = (
        each
        for each in questions(replace(report, attacks=(singles[0], replace(strongest, plain=weak))))
        if each.attacker == "telco"
    )
    assert question.findings[0].attack == "NormScore"
    assert question.found.endswith(by_chance)


def test_a_single_attack_that_leaks_leads_before_joined_ones_that_do_not(report: PrivacyReport) -> None:
    *singles, strongest = by_telco(report).attacks
    weak = replace(strongest, plain=replace(strongest.plain, score=Score(0.6, 0.5, 0.7)))
    question = questions(replace(report, attacks=(weak, *singles)))[0]
    assert (question.answer, question.findings[0].attack) == ("leaks", "CoTraining")


def test_the_lead_and_the_worst_finding_name_the_same_party(report: PrivacyReport) -> None:
    of_telco = by_telco(report)
    less = Leakage(("NormScore", "CoTraining"), 0.05, Score(0.2, 0.1, 0.3), None, None)
    of_shop = tuple(replace(f, attacker="shop", leakage=None if f.leakage is None else less) for f in of_telco.attacks)
    for attacks in ((*of_shop, *of_telco.attacks), (*of_telco.attacks, *of_shop)):
        told = replace(of_telco, attacks=attacks)
        assert joined(told)[0].startswith("All 2 attacks by telco")
        assert worst(told)[0].startswith("telco about bank's labels: Strongest")
        # The headline stays in the order of the parties.
        assert headline(told) == "bank's labels can be inferred by shop and telco"


def leaking_columns(report: PrivacyReport) -> PrivacyReport:
    of_columns = (replace(f, attacker="bank", owner="shop", about=Secret.FEATURES) for f in report.attacks)
    return replace(report, attacks=(*report.attacks, *of_columns))


def test_a_price_that_was_measured_is_told_for_columns_as_well(report: PrivacyReport) -> None:
    steps, (trees, regression) = next_steps(leaking_columns(report)), without_embeddings(2)
    (columns,) = (step for step in steps if step.startswith("Columns: "))
    assert columns == (
        f"Columns: secureboost-classifier (AUC {trees.after['AUC']:.3f}) and logistic-regression (AUC "
        f"{regression.after['AUC']:.3f}; labels +{100 * regression.excess:.0f} points) send no embedding of a row."
    )
    assert not any("not measured" in step for step in steps)
    assert steps[-1] == "These figures are not of your data: rehearse with colonnade simulate, then audit."


def test_a_price_that_was_not_measured_with_several_classes_is_said_not_to_be(report: PrivacyReport) -> None:
    several = tuple(
        replace(f, measure="balanced accuracy", plain=replace(f.plain, chance=0.1))
        for f in leaking_columns(report).attacks
    )
    steps = next_steps(replace(report, attacks=several))
    assert any("The price was not measured with so many classes." in step for step in steps)


def only_columns(report: PrivacyReport, n_classes: int | None) -> PrivacyReport:
    """A report in which only columns were attacked, of a run whose labels are known to have so many classes."""
    columns = tuple(f for f in leaking_columns(report).attacks if f.about is Secret.FEATURES)
    columns = tuple(replace(f, measure="R²") for f in columns)
    return replace(report, run=replace(report.run, n_classes=n_classes), attacks=columns)


def test_the_number_of_classes_is_the_runs_or_else_what_attacks_on_labels_show(report: PrivacyReport) -> None:
    assert [n_classes(only_columns(report, n)) for n in (10, 2, 0, None)] == [10, 2, None, None]
    assert n_classes(report) == 2
    named = tuple(
        replace(f, measure="balanced accuracy", plain=replace(f.plain, chance=chance))
        for f, chance in zip(report.attacks, (1 / 9, 0.1, 0.1), strict=True)
    )
    assert n_classes(replace(report, attacks=named)) == 10
    assert n_classes(replace(report, run=replace(report.run, n_classes=0))) is None


@pytest.mark.parametrize("n", [0, None])
def test_where_labels_are_no_classes_or_unknown_no_classifier_is_recommended(
    report: PrivacyReport, n: int | None
) -> None:
    of_columns = only_columns(report, n)
    (step,) = next_steps(of_columns)
    assert step == (
        "Columns: a regression, or boosted trees with hidden sums, sends no embedding of a row. The price was not "
        "measured with labels like these, as far as this report knows them."
    )
    assert grounds(of_columns) == ()
    assert trade(of_columns) is None
    of_numbers = replace(report, run=replace(report.run, n_classes=0))
    (step,) = next_steps(of_numbers)
    assert step.startswith("None of the results that come with this version says what would have stopped this.")
    assert trade(of_numbers) is None


def test_ten_classes_of_which_only_columns_were_attacked_are_not_answered_by_a_binary_classifier(
    report: PrivacyReport,
) -> None:
    steps = next_steps(only_columns(report, 10))
    assert not any("logistic-regression" in step or "AUC" in step for step in steps)
    assert any("The price was not measured with so many classes." in step for step in steps)


def test_what_was_measured_of_each_step_is_told_with_what_attacks_still_find(report: PrivacyReport) -> None:
    told = {line.partition(" (")[0].partition(":")[0]: line for line in grounds(leaking_columns(report))}
    trees, defence = sufficient(2)
    _, regression = without_embeddings(2)
    assert list(told) == [trees.name, defence.name, regression.name]
    assert f"(hidden sums, 10 trees of depth 3): AUC {trees.after['AUC']:.3f} instead of" in told[trees.name]
    assert f"means of {trees.seeds} seeds. It was measured on no other set." in told[trees.name]
    assert trees.cost in told[trees.name]
    # No attack beats the attacker alone, and yet messages are not silent.
    assert defence.hides_labels
    assert defence.still_tells
    assert (
        f"{defence.single} scored {defence.score:.2f}, and {defence.null:.2f} where labels were" in told[defence.name]
    )
    assert "stopped" not in " ".join((*told.values(), *next_steps(report)))
    assert grounds(replace(report, attacks=())) == ()


def test_what_a_tree_took_is_what_the_page_on_trees_says() -> None:
    (hidden,) = (each for each in remedies() if each.setting == "hidden sums")
    seconds, megabytes = re.findall(r"took ([\d.]+) processor seconds and (\d+) MB", hidden.cost)[0]
    assert f"| `hidden` | {seconds} s | {megabytes} |" in (ROOT / "docs/protocols/trees.md").read_text("utf-8")


def test_the_script_of_the_remedies_takes_no_word_for_an_order_to_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from experiments.remedies import REMEDIES

    before = REMEDIES.stat().st_mtime_ns
    for word, status in (("--help", 0), ("--dry-run", 2), ("elsewhere.json", 2)):
        command = [sys.executable, "-m", "experiments.remedies", word]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (ended.returncode, REMEDIES.stat().st_mtime_ns) == (status, before), ended.stderr
