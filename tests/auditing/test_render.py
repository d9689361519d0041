import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from colonnade.auditing.contents import HONEST_RIDGE, BestBaseline, Leakage, Picture, Reconstruction, Score
from colonnade.auditing.render.html import html
from colonnade.auditing.render.plots import trade
from colonnade.auditing.render.words import IN_THE_CLEAR, KNOWN_NOISE, headline, knowledge, luck, questions, size
from colonnade.auditing.report import PrivacyReport
from colonnade.errors import MissingExtra
from colonnade.models.quality import Figure, Quality
from colonnade.privacy.ledger import Spent
from colonnade.secret import Secret

GOLDEN = Path(__file__).parent / "golden" / "report-v1.json"
HOSTILE = '<script>document.title = "owned"</script><img src=x onerror="document.title = \'owned\'">'

CHROMIUM = shutil.which("chromium")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, to look at the page in a real browser")

PROBE = """
<script>
addEventListener("load", () => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  const strip = document.querySelector(".strip > svg"), track = strip.querySelector(".track").getBoundingClientRect();
  const middle = mark => { const box = mark.getBoundingClientRect(); return (box.left + box.right) / 2; };
  const at = name => (middle(strip.querySelector(name)) - track.left) / track.width;
  const seen = {
    overflow: document.documentElement.scrollWidth - innerWidth, width: innerWidth,
    score: at(".score"), chance: at(".chance"), alone: at(".alone"),
    background: getComputedStyle(document.body).backgroundColor, title: document.title,
    fontSize: parseFloat(getComputedStyle(strip.querySelector(".tick")).fontSize),
  };
  parent.postMessage(JSON.stringify(seen), "*");
});
</script>
"""


@pytest.fixture
def report() -> PrivacyReport:
    return PrivacyReport.from_json(GOLDEN.read_text())


@pytest.fixture
def probed(measured):
    """What a report looks like inside a window of some width."""

    def probe(report: PrivacyReport, width: int, *flags: str, script: str = PROBE, height: int = 800) -> dict[str, Any]:
        return measured(html(report), width, height, *flags, script=script)

    return probe


def renamed(report: PrivacyReport, name: str) -> PrivacyReport:
    """The same report with `shop`, the protocol and an attack called otherwise."""
    return replace(
        report,
        run=replace(report.run, protocol=name, parties={"bank": "label party", name: name}),
        attacks=tuple(replace(f, attacker=name, attack=name, summary=name) for f in report.attacks),
        disclosures=tuple(
            replace(d, kind=name, under=(name,), **({"sender": name} if d.sender == "shop" else {"receiver": name}))
            for d in report.disclosures
        ),
        budget={"labels": replace(report.budget["labels"], notes=(name,))},
        untested=(name,),
    )


def test_a_run_in_the_clear_is_called_so(report: PrivacyReport) -> None:
    words = "TLS was off in this run"
    exposed = replace(report, run=replace(report.run, insecure=True))
    assert words not in html(report)
    assert words not in report.render()
    assert words in html(exposed)
    assert words in exposed.render()
    assert PrivacyReport.from_json(exposed.to_json()).run.insecure


@pytest.mark.parametrize(
    ("mode", "randomness", "warned"),
    [
        ("mirror", "seeded", True),
        ("joint", "seeded", True),
        ("mirror", "system", False),
        ("simulated", "seeded", False),
    ],
)
def test_noise_from_a_seed_between_machines_is_called_so(
    report: PrivacyReport, mode: str, randomness: str, warned: bool
) -> None:
    words = "Noise followed from the plan's seed"  # the apostrophe is escaped on the page
    known = replace(report, run=replace(report.run, mode=mode, randomness=randomness))
    assert (words in " ".join(known.render().split())) == warned
    assert (words.partition("'")[0] in html(known)) == warned


def test_known_noise_and_traffic_in_the_clear_are_told_in_red(report: PrivacyReport) -> None:
    exposed = replace(report, run=replace(report.run, mode="mirror", randomness="seeded", insecure=True))
    wide = Console(width=1000, force_terminal=True, legacy_windows=False)
    red = {part.text.strip() for part in wide.render(exposed) if str(part.style) == "bold red"}
    assert red >= {KNOWN_NOISE, IN_THE_CLEAR}


def test_the_worst_answer_comes_first_and_open_questions_last(report: PrivacyReport) -> None:
    first, second = questions(report)
    assert first.title == "What could shop learn about bank's labels?"
    assert first.answer == "leaks"
    assert [f.attack for f in first.findings] == ["DirectLabel", "DirectionScore", "NormScore"]
    assert first.sentence == (
        "DirectLabel names 100.0% correctly of 512 rows, 90% of those it could have guessed. "
        "By chance it would be 62.7%, and shop alone does no better. "
        "What split/outline and split/verdict may give away has not been measured."
    )
    assert (second.title, second.answer) == ("What could bank learn about shop's features?", "not tested")
    assert second.sentence == "Nobody tried. What split/embedding may give away has not been measured."


def test_the_sentence_about_an_auc_says_what_is_told_apart(report: PrivacyReport) -> None:
    directions = replace(report, attacks=tuple(f for f in report.attacks if f.attack == "DirectionScore"))
    assert questions(directions)[0].sentence == (
        "DirectionScore tells the last class from the others with an AUC of 1.000 on 510 rows, 90% of those it could "
        "have guessed. By chance it would be 0.500; without collaboration shop reaches 0.934. "
        "What split/outline and split/verdict may give away has not been measured."
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.9, "By chance it would be 0.500; an honest shop reaches 0.900."),
        (0.996, "(0.994; without them at most 0.552), but an honest shop reaches 0.996."),
    ],
)
def test_what_an_honest_party_reaches_in_the_run_is_not_called_its_own_doing(
    report: PrivacyReport, value: float, words: str
) -> None:
    (direction,) = (f for f in report.attacks if f.attack == "DirectionScore")
    evidence = replace(direction.plain, score=Score(0.994, 0.99, 0.997), alone=BestBaseline(value, HONEST_RIDGE))
    found = replace(report, attacks=(replace(direction, plain=evidence, up_to_naming=None),))
    assert words in questions(found)[0].sentence


def test_a_leak_up_to_naming_is_called_so(report: PrivacyReport) -> None:
    (direct,) = (f for f in report.attacks if f.attack == "DirectLabel")
    swapped = replace(report, attacks=(replace(direct, plain=replace(direct.plain, chance=1.0)),))
    (question, _) = questions(swapped)
    assert question.answer == "leaks, classes unnamed"
    assert "of those it could have guessed, under the best names of the classes." in question.sentence


def test_no_leak_is_never_called_safe(report: PrivacyReport) -> None:
    norms = replace(report, attacks=tuple(f for f in report.attacks if f.attack == "NormScore"))
    assert headline(norms) == "No leak found by 1 attack"
    assert questions(norms)[0].sentence == (
        "One attack was tried and none found a leak. That is no proof that there is none: a stronger attack may exist. "
        "What split/outline and split/verdict may give away has not been measured."
    )
    assert "safe" not in norms.render().lower()


def test_balanced_accuracy_is_put_into_words_and_full_coverage_is_not(report: PrivacyReport) -> None:
    (direct,) = (f for f in report.attacks if f.attack == "DirectLabel")
    everywhere = replace(direct, measure="balanced accuracy", coverage=1.0)
    assert questions(replace(report, attacks=(everywhere,)))[0].sentence.startswith(
        "DirectLabel names 100.0% of each class correctly on average, on 512 rows. By chance"
    )


def known_anyway(report: PrivacyReport) -> PrivacyReport:
    """The same report, had the attacker been as good alone."""
    (direction,) = (f for f in report.attacks if f.attack == "DirectionScore")
    evidence = replace(direction.plain, score=Score(0.994, 0.99, 0.997), alone=BestBaseline(0.996, "self-training"))
    return replace(report, attacks=(replace(direction, plain=evidence, up_to_naming=evidence),))


def test_messages_that_tell_no_more_than_alone_are_not_called_no_leak(report: PrivacyReport) -> None:
    known = known_anyway(report)
    question = questions(known)[0]
    assert question.answer == "no more than alone"
    assert question.sentence.startswith(
        "The messages do tell labels (0.994; without them at most 0.552), but shop reaches 0.996 by itself."
    )
    assert headline(known) == "shop can infer bank's labels, but no more than alone"
    assert "No more than alone" in known.render()
    assert 'class="no-more-than-alone"' in html(known)


def test_where_nothing_was_run_again_a_guess_is_not_ascribed_to_the_messages(report: PrivacyReport) -> None:
    known = known_anyway(replace(report, run=replace(report.run, mode="joint")))
    assert questions(known)[0].sentence.startswith(
        "DirectionScore finds out labels (0.994; by luck at most 0.552), but shop reaches 0.996 by itself."
    )


def test_one_attack_by_two_parties_is_one_attack(report: PrivacyReport) -> None:
    (norms,) = (f for f in report.attacks if f.attack == "NormScore")
    assert headline(replace(report, attacks=(norms, replace(norms, attacker="telco")))) == "No leak found by 1 attack"


def test_under_the_headline_stands_how_much_is_luck(report: PrivacyReport) -> None:
    words = "By luck alone about 0.3 of them would exceed their null."
    assert luck(report) == f"6 tests were made, each guess of classes as it is and under the best names. {words}"
    assert words in report.render(width=200)
    assert words in html(report)
    assert "By luck" not in replace(report, attacks=()).render()


def test_the_headline_names_who_can_infer_what(report: PrivacyReport) -> None:
    assert headline(report) == "bank's labels can be inferred by shop"
    both = (*report.attacks, *(replace(f, attacker="telco") for f in report.attacks))
    assert headline(replace(report, attacks=both)) == "bank's labels can be inferred by shop and telco"
    of_columns = tuple(replace(f, attacker="bank", owner="shop", about=Secret.FEATURES) for f in report.attacks)
    assert headline(replace(report, attacks=(*both, *of_columns))) == (
        "bank's labels can be inferred by shop and telco; shop's features can be inferred by bank"
    )
    assert headline(replace(report, attacks=())) == "Nothing has been tested"


def test_what_an_attack_was_given_is_put_into_words(report: PrivacyReport) -> None:
    finding = report.attacks[1]
    assert knowledge(finding) == "the messages split/gradient and 1 known label per class"
    everything = replace(finding.granted, own_features=True, own_model=True, known_labels=4)
    assert knowledge(replace(finding, granted=everything)) == (
        "the messages split/gradient, its own columns, its own model and 4 known labels per class"
    )
    sampled = replace(finding, is_active=True, granted=replace(finding.granted, known_labels=0, prior=60))
    assert knowledge(sampled) == (
        "its own part in the run, the messages split/gradient and a sample of 60 whole records"
    )
    nothing = replace(finding.granted, messages=(), known_labels=0)
    assert knowledge(replace(finding, granted=nothing)) == "nothing but its own part in the run"


@pytest.mark.parametrize(
    ("n_bytes", "words"), [(31, "31 B"), (999, "999 B"), (20_960, "21.0 kB"), (3_200_000, "3.2 MB"), (5e9, "5.0 GB")]
)
def test_sizes_are_put_into_words(n_bytes: int, words: str) -> None:
    assert size(n_bytes) == words


def test_the_terminal_shows_scores_messages_budget_and_what_was_not_tested(report: PrivacyReport) -> None:
    text = report.render()
    for words in (
        "bank's labels can be inferred by shop",
        "DirectLabel",
        "100.0% to 100.0%",
        "split/gradient",
        "not private: split/embedding from shop to bank",
        "bank about shop's features, given split/embedding: no attack was made",
        "seeded randomness",
    ):
        assert words in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_terminal_obeys_neither_markup_nor_control_characters(report: PrivacyReport) -> None:
    text = renamed(report, "[red]x[/red]\x1b[2J").render(width=200)
    assert "[red]x[/red]?[2J" in text
    assert "\x1b" not in text


def test_rich_prints_a_report_in_colour(report: PrivacyReport) -> None:
    console = Console(force_terminal=True, width=100, color_system="standard")
    with console.capture() as capture:
        console.print(report)
    assert "\x1b[1;31mLeaks" in capture.get()


def test_recordings_that_differ_are_pointed_out(report: PrivacyReport) -> None:
    changed = replace(report, disclosures=tuple(replace(d, confirmed=False) for d in report.disclosures))
    assert "recordings differ" in changed.render(width=120)
    assert "the receiver recorded something else" in html(changed)
    assert "the receiver recorded something else" not in html(report)


def test_a_private_budget_is_shown_with_its_epsilon(report: PrivacyReport) -> None:
    spent = Spent(Secret.LABELS, 1.5, 1e-5, unit="label", releases={"randomised-response": 1})
    private = replace(report, budget={"labels": spent})
    assert "epsilon 1.5 at delta 1e-05 per label" in private.render()
    assert "epsilon 1.5 at delta 1e-05 per label" in html(private)
    assert "Not private" not in html(private)


def test_the_page_needs_nothing_from_elsewhere_and_runs_no_script(report: PrivacyReport) -> None:
    page = html(report)
    assert re.findall(r"https?:|//\w|<script|<link|<img|@import|url\(|\son\w+=", page) == []
    assert "default-src 'none'" in page


def test_pictures_and_epochs_are_drawn_without_a_script_or_an_image_file(report: PrivacyReport) -> None:
    rebuilt = Reconstruction(
        0.3,
        {"mean": 1.0},
        "a",
        0.5,
        0.5,
        1.0,
        0.0,
        200,
        psnr=15.5,
        ssim=0.89,
        pictures=(Picture(("00ff",), ("00f0",)),),
    )
    (direct,) = (f for f in report.attacks if f.attack == "DirectLabel")
    drawn = replace(direct, rebuilt=rebuilt, over_epochs=((0, 0.9), (3, 0.6)))
    page = html(replace(report, attacks=(drawn,)))
    assert page.count('aria-label="true"') == page.count('aria-label="rebuilt"') == 1
    assert "PSNR 15.5 dB, SSIM 0.89" in page
    assert 'aria-label="epoch 1: 90.0%; epoch 4: 60.0%; "' in page
    assert "<img" not in page
    assert PrivacyReport.from_json(replace(report, attacks=(drawn,)).to_json()).attacks == (drawn,)


def test_this_run_stands_among_the_defences_that_were_measured(report: PrivacyReport) -> None:
    drawn = trade(of_three(report))
    assert drawn is not None
    (own,) = (point for point in drawn.points if point.is_this_run)
    worst = max(f.up_to_naming.score.value - f.up_to_naming.alone.value for f in report.attacks)
    assert (own.leak, own.quality) == (pytest.approx(worst), 0.784)
    assert {point.name for point in drawn.points} > {"no defence", "gradient-averaging", "this run"}
    assert all(0 <= place <= 1 for point in drawn.points for place in (point.left, point.top))
    assert trade(replace(report, attacks=())) is None
    assert "this run: AUC 0.784" in html(of_three(report))
    assert "this run" not in {point.name for point in trade(report).points}


def test_an_empty_report_is_still_a_page(report: PrivacyReport) -> None:
    empty = html(replace(report, disclosures=(), budget={}, attacks=(), untested=()))
    assert "Nothing has been tested" in empty
    assert "Nothing crossed between any two parties." in empty
    assert "No message revealed a secret" in empty


def test_names_are_escaped_on_the_page(report: PrivacyReport) -> None:
    page = html(renamed(report, HOSTILE))
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;") > 10


def test_markdown_obeys_no_words_of_other_parties(report: PrivacyReport) -> None:
    text = renamed(report, f"{HOSTILE} | [x](y)\n# z").to_markdown()
    assert not re.search(r"(?<!\\)<", text)
    assert "\n# z" not in text
    assert "\\[x\\](y)" in text
    rows = [re.sub(r"\\.", "", line) for line in text.splitlines() if line.startswith("| ")]
    assert {line.count("|") for line in rows} == {4, 8, 9}


def test_the_page_without_its_extra_says_what_to_install(
    report: PrivacyReport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra) as caught:
        report.to_html(tmp_path / "report.html")
    assert str(caught.value) == (
        "Writing the report as HTML needs the extra 'report', which is not installed. "
        "Run: pip install 'colonnade[report]'"
    )


@needs_browser
def test_a_browser_shows_the_page_and_runs_nothing_in_it(report: PrivacyReport, browser, tmp_path: Path) -> None:
    renamed(report, HOSTILE).to_html(tmp_path / "report.html")
    document = browser(tmp_path / "report.html", "--dump-dom")
    assert re.findall(r"<script|<img", document) == []
    assert document.count("<article") == 3
    assert "<title>Privacy report: bank's labels can be inferred by &lt;script&gt;" in document


@needs_browser
@pytest.mark.parametrize("width", [360, 1000])
def test_marks_stand_where_their_numbers_say_and_nothing_sticks_out(report: PrivacyReport, probed, width: int) -> None:
    finding = questions(report)[0].findings[2]
    seen = probed(replace(report, attacks=(finding,)), width)
    assert seen["width"] == width
    assert seen["overflow"] <= 0
    assert seen["score"] == pytest.approx(finding.plain.score.value, abs=0.01)
    assert seen["chance"] == pytest.approx(finding.plain.chance, abs=0.01)
    assert seen["alone"] == pytest.approx(finding.plain.alone.value, abs=0.01)
    assert seen["fontSize"] >= 11


@needs_browser
def test_names_without_a_space_do_not_stick_out_of_a_phone(report: PrivacyReport, probed) -> None:
    assert probed(renamed(report, "x" * 80), 360)["overflow"] <= 0


@needs_browser
def test_the_page_follows_the_readers_light_and_dark(report: PrivacyReport, probed) -> None:
    light = probed(report, 1000, "--blink-settings=preferredColorScheme=1")["background"]
    dark = probed(report, 1000, "--blink-settings=preferredColorScheme=0")["background"]
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (light, dark)]
    assert brightness[0] > 700
    assert brightness[1] < 100


@needs_browser
def test_a_browser_takes_a_picture_of_the_page(report: PrivacyReport, browser, tmp_path: Path) -> None:
    report.to_html(tmp_path / "report.html")
    browser(tmp_path / "report.html", "--window-size=900,1200", f"--screenshot={tmp_path / 'report.png'}")
    # A page that failed to lay out is one flat colour, which compresses to a few kilobytes.
    assert (tmp_path / "report.png").stat().st_size > 30_000


def of_three(report: PrivacyReport) -> PrivacyReport:
    """A report of three parties in which labels and columns leak, as that of the demonstration."""
    run = replace(report.run, parties={**report.run.parties, "telco": "feature party"}, date="2026-05-31")
    by_telco = (replace(f, attacker="telco") for f in report.attacks)
    of_columns = (
        replace(f, attacker="bank", owner=owner, about=Secret.FEATURES)
        for owner in ("shop", "telco")
        for f in report.attacks
    )
    sent = tuple(
        replace(d, **{side: "telco" for side in ("sender", "receiver") if getattr(d, side) == "shop"})
        for d in report.disclosures
    )
    quality = Quality(926, "d", 2000, "boosted trees", {"AUC": Figure(0.784, 0.75, (0.01, 0.05))})
    leakage = Leakage(("NormScore", "DirectionScore"), 0.05, Score(0.31, 0.29, 0.33), None, Score(1.4, 1.3, 1.5))
    strongest = replace(report.attacks[-1], attack="Strongest", leakage=leakage)
    attacks, crossed = (*report.attacks, strongest, *by_telco, *of_columns), (*report.disclosures, *sent)
    return replace(report, run=run, attacks=attacks, disclosures=crossed, quality=quality)


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen_holds_matrix_quality_and_next_step_and_the_page_is_short(
    report: PrivacyReport, probed, first_screen: str, width: int, height: int
) -> None:
    seen = probed(of_three(report), width, script=first_screen, height=height)
    assert max(seen["matrix"], seen["quality"], seen["next"]) <= height
    assert seen["height"] <= 4000
    assert seen["unfocusable"] == 0
    assert seen["boxed"]
    assert seen["scrolls"] == (width == 390)


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", [0, 1])
def test_all_text_stands_out_from_what_is_behind_it(
    report: PrivacyReport, probed, first_screen: str, scheme: int
) -> None:
    flag = f"--blink-settings=preferredColorScheme={scheme}"
    seen = probed(of_three(known_anyway(report)), 1280, flag, script=first_screen)
    assert seen["texts"] > 300
    assert seen["pale"] == []


@needs_browser
@pytest.mark.slow
def test_a_printed_report_is_unfolded(report: PrivacyReport, browser, tmp_path: Path) -> None:
    pages = []
    for name, page in (("as it is", html(report)), ("folded", html(report).replace("::details-content", "::none"))):
        (tmp_path / f"{name}.html").write_text(page)
        browser(tmp_path / f"{name}.html", f"--print-to-pdf={tmp_path / name}.pdf")
        pages.append(len(re.findall(rb"/Type\s*/Page\b", (tmp_path / f"{name}.pdf").read_bytes())))
    assert pages[0] > pages[1]
