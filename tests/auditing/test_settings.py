import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colonnade.attacks.base import Attack, Guess, Needs
from colonnade.attacks.labels.gradients import DirectionScore, DirectLabel, NormScore
from colonnade.auditing import Finding, PrivacyReport, audit, audit_own_side
from colonnade.auditing.render.html import html
from colonnade.auditing.render.words import questions
from colonnade.errors import DataError, PlanError
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.models.networks.split import SplitClassifier
from colonnade.privacy.ledger import Ledger
from colonnade.roles import Roles
from colonnade.runtime.simulate import Run, simulate
from colonnade.tables.table import Table
from colonnade.wire.recording.recording import Transcript

ATTACKS = (NormScore(), DirectionScore(), DirectLabel())


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A split network whose embeddings are logits, what a simulated audit finds in it, and bank's folder alone."""
    random = np.random.default_rng(0)
    labels = random.random(240) < 0.3
    columns = random.normal(size=(240, 6)) + labels[:, None] * 0.4
    bank = Table.of({"a": columns[:, 0], "default": labels.astype(int)}, ids=None, labels="default")
    shop = Table.of({f"x{i}": columns[:, i] for i in range(2, 6)}, ids=None)
    model = SplitClassifier(fusion="sum", top=None, epochs=2, batch_size=64)
    folder = tmp_path_factory.mktemp("split")
    roles = Roles(label="bank", features=("shop",))
    run = simulate(model.fit, {"bank": bank, "shop": shop}, roles=roles, seed=1, directory=folder)
    simulated = audit(run, ATTACKS, nulls=1, seed=5)
    shutil.rmtree(folder / "shop")
    own = {"plan": run.plan, "table": bank, "ledger": Ledger(path=folder / "bank" / "ledger")}
    return SimpleNamespace(simulated=simulated, transcript=Transcript.load(folder / "bank" / "transcript"), own=own)


@pytest.fixture(scope="module")
def report(split: SimpleNamespace) -> PrivacyReport:
    return audit_own_side(split.transcript, ATTACKS, **split.own, seed=5)


def from_bank(run: Run[Any], attacks: Any, party: str = "bank", **settings: Any) -> PrivacyReport:
    """A mirror audit of a toy run, from one party's transcript alone."""
    own = {"plan": run.plan, "table": run.simulation.tables[party], "ledger": run.ledgers[party]}
    return audit_own_side(run.transcripts[party], attacks, **{**own, **settings})


class Both(Attack):
    """Wants what crossed in both directions."""

    needs = Needs(messages=(Gradient, Embedding))

    def guess(self, view):
        raise AssertionError("half of it is missing")


class Greedy(Attack):
    """Wants all that the peer has."""

    needs = Needs(own_features=True, own_model=True)

    def guess(self, view):
        raise AssertionError("only the peer has that")


class Modest(Attack):
    """Uses a table if there is one, and guesses without one as well."""

    needs = Needs(own_features=True, table_optional=True)

    def guess(self, view):
        assert not view.own.has_table
        return Guess(np.arange(9), scores=np.arange(9.0))


class Undecided(Attack):
    """Ranks rows by numbers that are none."""

    needs = Needs()

    def guess(self, view):
        return Guess(np.arange(9), scores=np.full(9, np.nan))


class FirstNine(Attack):
    """Ranks a few rows by their numbers."""

    needs = Needs()

    def guess(self, view):
        return Guess(np.arange(9), scores=np.arange(9.0))


def test_a_party_alone_finds_what_a_simulated_audit_finds(split: SimpleNamespace, report: PrivacyReport) -> None:
    def scores(finding: Finding) -> tuple[Any, ...]:
        return finding.attack, finding.plain.score, finding.up_to_naming.score, finding.rows, finding.coverage

    simulated = [f for f in split.simulated.attacks if f.leakage is None]
    assert [scores(f) for f in report.attacks] == [scores(f) for f in simulated]
    (direct,) = (f for f in report.attacks if f.attack == "DirectLabel")
    assert (direct.plain.score.value, direct.verdict) == (1.0, "leaks")


def test_the_null_is_the_same_guess_against_permuted_labels(report: PrivacyReport) -> None:
    for finding in report.attacks:
        null = finding.plain.null
        assert len(null) == 200
        assert len(set(null)) > 10
        assert max(null) < 1
        if finding.measure == "AUC":
            assert np.mean(null) == pytest.approx(0.5, abs=0.02)


def test_granted_and_scored_from_permuted_labels_a_mirror_finds_nothing(split: SimpleNamespace) -> None:
    table, ranks = split.own["table"], []
    for seed in range(20):
        permuted = np.random.default_rng(seed).permutation(table.labels)
        own = {**split.own, "table": table.with_labels(permuted)}
        for finding in audit_own_side(split.transcript, ATTACKS, **own, seed=seed, nulls=100).attacks:
            null, score = np.array(finding.plain.null), finding.plain.score.value
            ranks.append((null < score).mean() + (null == score).mean() / 2)
    assert len(ranks) == 60
    # Under the null ranks are uniform; those of one seed share their labels, so only seeds count as independent.
    assert abs(np.mean(ranks) - 0.5) * math.sqrt(12 * 20) < 3.29


@pytest.mark.network
def test_a_deployed_party_needs_nothing_but_the_folder_its_run_left(
    toy: SimpleNamespace, deployed: Callable[..., Any], tmp_path: Path
) -> None:
    run = toy.run(parties=("shop", "telco"))
    protocol = run.simulation.protocol
    deployed(dict.fromkeys(run.plan.roles.parties, protocol), run.simulation.tables, run.plan, "run")
    transcript = Transcript.load(tmp_path / "run" / "bank" / "transcript")
    assert transcript.digests() == run.transcripts["bank"].digests()
    attacks = [toy.ReadHint(), toy.RankByHint()]
    own = {"plan": run.plan, "table": run.simulation.tables["bank"], "ledger": Ledger()}
    found = audit_own_side(transcript, attacks, **own).attacks
    expected = [f for f in audit(run, attacks, nulls=1).attacks if f.leakage is None]
    assert [(f.attack, f.attacker, f.plain.score) for f in found] == [
        (f.attack, f.attacker, f.plain.score) for f in expected
    ]
    assert {f.verdict for f in found} == {"leaks"}


def test_what_needs_the_peers_own_is_listed_as_untested(toy: SimpleNamespace) -> None:
    attacks = [toy.NearestKnown(), Greedy(), toy.TakePart(), toy.AboutModel(), NormScore(), toy.Silent()]
    report = from_bank(toy.run(), attacks)
    assert report.attacks == ()
    assert report.untested == (
        "NearestKnown by shop: it needs shop's own columns",
        "Greedy by shop: it needs shop's own columns and model",
        "TakePart by shop: it needs shop's own part in a run, and a mirror audit runs nothing",
        "AboutModel: guesses about model cannot be scored, only those about labels, features, membership",
        "NormScore by shop: it needs split/gradient, but bank sent shop none",
        "Silent by shop: it guessed no row that had not been granted",
        "shop about bank's labels, given audit-tests/hint: none of the attacks that were tried applies",
    )
    assert report.inapplicable == ("NormScore by shop: it needs split/gradient, but bank sent shop none",)


def test_an_attack_whose_table_is_optional_is_made_without_the_peers_and_not_said_to_have_had_it(
    toy: SimpleNamespace,
) -> None:
    (finding,) = from_bank(toy.run(), [Modest()], nulls=5).attacks
    assert not finding.granted.own_features


def test_a_peers_messages_of_which_only_digests_were_kept_are_the_peers_own(split: SimpleNamespace) -> None:
    # A deployed party keeps only digests of what it receives.
    transcript = split.transcript
    entries = tuple(e if e.sent else e._replace(place=None) for e in transcript.entries)
    kept = replace(transcript, entries=entries, means=tuple(m for m in transcript.means if m.sent))
    assert audit_own_side(kept, [Both()], **split.own).untested[0] == (
        "Both by shop: it needs shop's own split/embedding, but bank kept only digests"
    )


def test_own_messages_of_which_only_digests_were_kept_are_a_reason(toy: SimpleNamespace) -> None:
    assert from_bank(toy.run(keep="digests"), [toy.ReadHint()]).untested[0] == (
        "ReadHint by shop: it needs audit-tests/hint, but bank kept only digests; run with keep='audit'"
    )


def test_an_attacks_own_reason_and_a_rare_class_are_listed(split: SimpleNamespace, toy: SimpleNamespace) -> None:
    plan = replace(split.own["plan"], settings={"top": "mlp"})
    untested = audit_own_side(split.transcript, [DirectLabel()], **{**split.own, "plan": plan}).untested
    assert untested[0] == "DirectLabel by shop: a top network stands between the gradients and the classes"
    rare = toy.run(labels=["rare"] * 2 + ["common"] * 198)
    assert from_bank(rare, [toy.NearestKnown()]).untested[0] == (
        "NearestKnown by shop: it must be told 3 labels per class, and one class has fewer"
    )


def test_a_guess_that_cannot_be_scored_is_listed(toy: SimpleNamespace) -> None:
    report = from_bank(toy.run(), [Undecided(), toy.ReadHint()], nulls=5)
    assert [f.attack for f in report.attacks] == ["ReadHint"]
    assert report.untested[0] == (
        "Undecided by shop: it should guess finite scores, but 9 of 9 values are something else"
    )
    one_class = from_bank(toy.run(labels=["no"] * 150 + ["yes"] * 50), [FirstNine()], nulls=5)
    assert one_class.untested[0] == "FirstNine by shop: all rows it could be scored on are of one class"


def test_a_party_without_labels_has_none_to_lose(toy: SimpleNamespace) -> None:
    report = from_bank(toy.run(), [toy.ReadHint()], party="shop")
    assert report.untested == report.inapplicable == ("ReadHint: shop holds no labels",)
    assert [(d.sender, d.receiver) for d in report.disclosures] == [("shop", "bank")]


def test_the_report_says_what_could_not_be_measured(report: PrivacyReport) -> None:
    assert {f.plain.alone for f in report.attacks} == {None}
    assert "what shop could do alone: it needs shop's own columns" in report.untested
    assert questions(report)[0].sentence.endswith(
        "; whether shop could know as much by itself was not measured. "
        "What split/verdict may give away has not been measured."
    )
    assert report.render().count("not measured") >= 2 * len(report.attacks)
    page = html(report)
    assert "<dd>not measured</dd>" in page
    assert "of 200 permutations" in page
    assert "for a deployed run cannot be repeated" in page
    assert 'class="alone" d="M0-7' not in page
    assert PrivacyReport.from_json(report.to_json()) == report


def test_a_report_is_about_what_the_party_itself_sent_and_spent(toy: SimpleNamespace) -> None:
    run = toy.run(parties=("shop", "telco"), under=("RandomisedLabels",), epsilon=1.5)
    report = from_bank(run, [], delta=0.0)
    assert [(d.sender, d.receiver, d.kind, d.confirmed) for d in report.disclosures] == [
        ("bank", "shop", "audit-tests/hint", None),
        ("bank", "telco", "audit-tests/hint", None),
    ]
    assert "recordings differ" not in report.render()
    assert "the receiver recorded something else" not in html(report)
    assert report.budget["labels"].epsilon == pytest.approx(1.5)
    identity = report.run
    assert (identity.plan, identity.mode, identity.randomness) == (run.plan.hash, "mirror", "system")
    assert (identity.n_rows, identity.seed) == (200, run.plan.seed)


def test_a_mirror_audit_without_a_null_is_refused(toy: SimpleNamespace) -> None:
    with pytest.raises(PlanError) as caught:
        from_bank(toy.run(), [], nulls=0)
    assert str(caught.value) == (
        "An audit needs at least one permutation of the labels to tell a leak from luck, but nulls is 0. Use 200."
    )


def test_a_table_with_too_few_rows_is_refused(toy: SimpleNamespace) -> None:
    run = toy.run()
    with pytest.raises(DataError) as caught:
        from_bank(run, [], table=run.simulation.tables["bank"].take(np.arange(150)))
    assert str(caught.value) == (
        "bank's table should hold the rows of the run, and the recording is about at least 200 rows, but the table has "
        "150. Give the rows that the run was made on, in the same order."
    )


def test_a_report_says_how_many_classes_the_labels_have(toy: SimpleNamespace) -> None:
    run = toy.run(n_classes=3)
    assert audit(run, (), nulls=1).run.n_classes == 3
    assert from_bank(run, ()).run.n_classes == 3
    # Shop, alone, does not know.
    assert from_bank(run, (), "shop").run.n_classes is None
    assert audit(toy.run(labels=np.linspace(0, 1, 200)), (), nulls=1).run.n_classes == 0


def test_whole_numbers_that_a_regression_predicts_are_no_classes(split: SimpleNamespace) -> None:
    plan = replace(split.own["plan"], protocol="SplitRegressor.fit")
    counts = {**split.own, "plan": plan}
    assert audit_own_side(split.transcript, (), **counts).run.n_classes == 0
    assert audit_own_side(split.transcript, (), **split.own).run.n_classes == 2
