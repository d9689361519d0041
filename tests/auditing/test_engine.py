import json
from types import SimpleNamespace

import numpy as np
import pytest

from colonnade.attacks.base import ActiveAttack, Attack, Guess, Needs
from colonnade.attacks.labels.gradients import DirectionScore, DirectLabel, NormScore
from colonnade.attacks.labels.strongest import Strongest
from colonnade.auditing import PrivacyReport, audit, honesty_check
from colonnade.auditing.render.summary import matrix
from colonnade.auditing.render.words import questions
from colonnade.data import load
from colonnade.errors import PlanError
from colonnade.models.networks.messages import Gradient
from colonnade.models.networks.server import ServedClassifier
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.executor import Local, Serial
from colonnade.runtime.simulate import Run, simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table

ATTACKS = (NormScore(), DirectionScore(), DirectLabel())


@pytest.fixture(scope="module")
def split_run() -> Run[SplitClassifier]:
    """An undefended split network in which embeddings are logits, so that gradients are residuals."""
    random = np.random.default_rng(0)
    labels = random.random(240) < 0.3
    columns = random.normal(size=(240, 6)) + labels[:, None] * 0.4
    tables = {
        "bank": Table.of(
            {"a": columns[:, 0], "b": columns[:, 1], "default": labels.astype(int)}, ids=None, labels="default"
        ),
        "shop": Table.of({f"x{i}": columns[:, i] for i in range(2, 6)}, ids=None),
    }
    model = SplitClassifier(fusion="sum", top=None, epochs=2, batch_size=64)
    return simulate(model.fit, tables, roles=Roles(label="bank", features=("shop",)), seed=1)


@pytest.fixture(scope="module")
def split_report(split_run: Run[SplitClassifier]) -> PrivacyReport:
    return audit(split_run, ATTACKS, nulls=6)


class NeedsModel(Attack):
    """Wants a share of a model."""

    needs = Needs(own_model=True)

    def guess(self, view):
        raise AssertionError("there is no model")


class Undecided(Attack):
    """Ranks rows by numbers that are none: in every run, or only where gradients contradict the labels it was told."""

    needs = Needs(messages=(Gradient,), known_labels=5)

    def __init__(self, only_in_nulls=False):
        self.only_in_nulls = only_in_nulls

    def guess(self, view):
        read = DirectLabel().guess(view)
        said = dict(zip(read.rows.tolist(), read.classes.tolist(), strict=True))
        agrees = all(said[row] == label for row, label in zip(view.grant.rows, view.grant.labels, strict=True))
        return Guess(read.rows, scores=np.full(len(read.rows), 0.0 if self.only_in_nulls and agrees else np.nan))


class AboutSome(Attack):
    """Ranks some rows and says nothing about the others."""

    needs = Needs()

    def __init__(self, rows=()):
        self.rows = rows

    def guess(self, view):
        return Guess(np.array(self.rows), scores=np.arange(len(self.rows), dtype=float))


class Confused(ActiveAttack):
    """Returns something else than a guess."""

    needs = Needs()

    def play(self, party, honest, grant):
        return honest(party)


def test_strong_hints_are_found_to_leak_to_every_party_that_gets_them(toy: SimpleNamespace) -> None:
    report = audit(toy.run(parties=("shop", "telco")), [toy.ReadHint(), toy.RankByHint(), toy.TakePart()], nulls=5)
    assert [(f.attacker, f.owner, f.verdict) for f in report.attacks] == [
        ("shop", "bank", "leaks"),
        ("telco", "bank", "leaks"),
    ] * 4
    measures = ["balanced accuracy"] * 2 + ["AUC"] * 2 + ["balanced accuracy"] * 2
    assert [f.measure for f in report.attacks[:6]] == measures
    assert [f.is_active for f in report.attacks] == [False] * 4 + [True] * 2 + [False] * 2
    assert [f.leakage and f.leakage.joined for f in report.attacks] == [None] * 6 + [("ReadHint", "RankByHint")] * 2


def test_hints_of_strength_zero_are_not_found_to_leak(toy: SimpleNamespace) -> None:
    report = audit(toy.run(strength=0), [toy.ReadHint(), toy.RankByHint(), toy.TakePart()])
    assert {f.verdict for f in report.attacks} == {"no leak found"}


def test_swapped_names_are_found_to_leak_up_to_naming(toy: SimpleNamespace) -> None:
    (finding,) = audit(toy.run(), [toy.ReadHint(shift=1)], nulls=5).attacks
    assert finding.plain.score.value < 0.01
    assert finding.up_to_naming.score.value > 0.99
    assert finding.verdict == "leaks, classes unnamed"
    assert finding.attack == "ReadHint(shift=1)"


def test_what_own_columns_say_is_not_a_leak(toy: SimpleNamespace) -> None:
    (finding,) = audit(toy.run(strength=0, signal=4), [toy.NearestKnown()], nulls=3).attacks
    assert finding.plain.score.value > 0.9
    assert finding.verdict == "no leak found"
    assert finding.plain.alone.value >= finding.plain.score.value


def test_granted_labels_are_neither_scored_nor_counted(toy: SimpleNamespace) -> None:
    (finding,) = audit(toy.run(n_classes=4), [toy.NearestKnown()], nulls=1).attacks
    assert finding.granted.known_labels == 3
    assert (finding.rows, finding.coverage) == (200 - 4 * 3, 1.0)


def test_direct_label_inference_reads_every_training_label_of_summed_logits(split_report: PrivacyReport) -> None:
    (direct,) = (f for f in split_report.attacks if f.attack == "DirectLabel")
    assert direct.plain.score.value == 1.0
    assert direct.verdict == "leaks"
    # A tenth of the rows is held out, and no gradient is ever about those.
    assert direct.coverage == pytest.approx(0.9)


def test_the_direction_of_gradients_leaks(split_report: PrivacyReport) -> None:
    (direction,) = (f for f in split_report.attacks if f.attack == "DirectionScore")
    assert direction.verdict == "leaks"
    assert direction.granted.messages == ("split/gradient",)
    assert direction.summary.startswith("Gradients of one class point the same way")


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
def test_the_first_attacks_are_honest(split_run: Run[SplitClassifier], attack: Attack) -> None:
    assert honesty_check(split_run, attack, "shop") >= 0.001


def test_the_report_says_which_run_it_is_about(split_run: Run[SplitClassifier], split_report: PrivacyReport) -> None:
    identity = split_report.run
    assert identity.plan == split_run.plan.hash
    assert identity.parties == {"bank": "label party", "shop": "feature party"}
    assert (identity.protocol, identity.n_rows, identity.seed) == ("SplitClassifier.fit", 240, 1)
    assert (identity.mode, identity.randomness) == ("simulated", "seeded")


def test_what_was_sent_in_the_clear_is_not_private(split_report: PrivacyReport) -> None:
    assert not split_report.budget["labels"].is_private
    assert "split/gradient from bank to shop" in split_report.budget["labels"].notes
    assert split_report.budget["features"].notes == ("split/embedding from shop to bank",)


def test_what_nobody_attacked_is_listed(split_report: PrivacyReport) -> None:
    assert split_report.untested == (
        "shop about bank's labels, given split/verdict: no attack read them",
        "bank about shop's features, given split/embedding: no attack was made",
    )


def test_an_attack_that_reads_no_message_leaves_all_of_them_untested(toy: SimpleNamespace) -> None:
    report = audit(toy.run(), [toy.NearestKnown()], nulls=1)
    assert report.untested == ("shop about bank's labels, given audit-tests/hint: no attack read them",)


def test_a_private_event_bounds_what_a_protected_message_costs(toy: SimpleNamespace) -> None:
    report = audit(toy.run(under=("RandomisedLabels",), epsilon=1.5), [], delta=0.0)
    assert report.budget["labels"].epsilon == pytest.approx(1.5)


def test_attacks_that_do_not_apply_are_listed_with_their_reasons(toy: SimpleNamespace) -> None:
    attacks = [toy.AboutModel(), NeedsModel(), NormScore(), toy.Silent(), DirectionScore()]
    report = audit(toy.run(n_classes=3), attacks, nulls=1)
    assert report.attacks == ()
    assert report.untested == (
        "AboutModel: guesses about model cannot be scored, only those about labels, features, membership",
        "NeedsModel by shop: it needs shop's share of the model, and this run left none",
        "NormScore by shop: shop sent and received no split/gradient",
        "Silent by shop: it guessed no row that had not been granted",
        "DirectionScore by shop: shop sent and received no split/gradient",
        "shop about bank's labels, given audit-tests/hint: none of the attacks that were tried applies",
    )


def test_an_attack_whose_scores_are_no_numbers_is_listed_and_the_others_are_kept(
    split_run: Run[SplitClassifier],
) -> None:
    report = audit(split_run, [Undecided(), DirectLabel()], nulls=1)
    assert [f.attack for f in report.attacks] == ["DirectLabel"]
    assert report.untested[0] == (
        "Undecided by shop: it should guess finite scores, but 216 of 216 values are something else"
    )


def test_an_attack_whose_scores_are_no_numbers_in_a_null_run_is_listed(split_run: Run[SplitClassifier]) -> None:
    report = audit(split_run, [Undecided(only_in_nulls=True), DirectLabel()], nulls=2)
    assert [f.attack for f in report.attacks] == ["DirectLabel"]
    assert report.untested[0] == (
        "Undecided(only_in_nulls=True) by shop: in a null run it should guess finite scores, but 216 of 216 values are "
        "something else"
    )


def test_a_guess_about_rows_of_one_class_is_listed(toy: SimpleNamespace) -> None:
    labels = ["no"] * 150 + ["yes"] * 50
    report = audit(toy.run(labels=labels), [AboutSome(rows=tuple(range(100)))], nulls=1)
    assert report.attacks == ()
    (reason,) = (line for line in report.untested if line.startswith("AboutSome"))
    assert reason.endswith("by shop: all rows it could be scored on are of one class")


def test_a_leak_of_a_rare_class_is_found(toy: SimpleNamespace) -> None:
    labels = np.where(np.arange(1000) % 20 == 0, "rare", "common")
    (finding,) = audit(toy.run(n=1000, strength=2, labels=labels), [toy.ReadHint()], nulls=5).attacks
    assert finding.plain.chance == 0.5
    assert finding.verdict == "leaks"


def test_what_messages_tell_beside_own_columns_that_tell_it_too_is_said(toy: SimpleNamespace) -> None:
    (finding,) = audit(toy.run(strength=3, signal=30), [toy.ReadHint(shift=1)], nulls=5).attacks
    assert finding.up_to_naming.exceeds_null
    assert finding.verdict == "no more than alone"


def test_an_attacks_own_reason_is_listed(split_run: Run[SplitClassifier]) -> None:
    model = SplitClassifier(epochs=1, n_iter_no_change=None)
    run = simulate(model.fit, split_run.simulation.tables, roles=split_run.plan.roles)
    report = audit(run, [DirectLabel()], nulls=1)
    assert report.untested[0] == "DirectLabel by shop: a top network stands between the gradients and the classes"
    assert report.inapplicable == report.untested[:1]


class Puzzled(Attack):
    """Reads two lines as if they were one."""

    needs = Needs(messages=(Gradient,))

    def guess(self, view):
        return Guess(np.arange(9), scores=view.row_means(Gradient)[:9, 0])


class Suspicious(ActiveAttack):
    """Takes part, and wants candidates for a guess of labels."""

    needs = Needs(candidates="curves")

    def play(self, party, honest, grant):
        raise AssertionError("nobody can grant this")


@pytest.mark.parametrize("about", list(Secret))
@pytest.mark.parametrize("base", [Attack, ActiveAttack])
@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"candidates": "curves"},
        {"candidates": "records"},
        {"known_labels": 1},
        {"known_labels": 1, "known_in_all": 4},
        {"known_records": 3},
        {"prior": 3},
        {"own_features": True},
        {"own_model": True},
        {"messages": (Gradient,)},
    ],
    ids=str,
)
def test_every_attack_is_a_finding_or_listed_with_a_reason(toy: SimpleNamespace, about, base, wishes) -> None:
    secret = about

    class Any(base):
        needs = Needs(**wishes)
        about = secret

        def guess(self, view):
            return Guess(np.arange(20), scores=np.arange(20.0))

        def play(self, party, honest, grant):
            honest(party)
            return Guess(np.arange(20), scores=np.arange(20.0))

    report = audit(toy.run(n=30), [Any()], nulls=1)
    mentioned = [f.attack for f in report.attacks] + [line.split(" ")[0].rstrip(":") for line in report.untested]
    assert "Any" in mentioned


def test_an_active_attack_that_wants_what_its_subject_cannot_grant_is_listed(toy: SimpleNamespace) -> None:
    assert audit(toy.run(), [Suspicious()], nulls=1).untested[0] == (
        "Suspicious: it needs candidates, which an audit of labels cannot grant"
    )


def test_an_attack_that_reads_several_lines_as_one_is_listed_and_the_others_are_kept() -> None:
    tables = load("bank-shop-telco", rows=200).split()
    roles = Roles(label="bank", features=("shop", "telco"), server="cloud")
    run = simulate(ServedClassifier(epochs=1, n_iter_no_change=None).fit, tables, roles=roles)
    report = audit(run, [Puzzled()], nulls=1)
    (reason,) = (line for line in report.untested if line.startswith("Puzzled by cloud"))
    assert "Row means of split/gradient should come from one line" in reason


def test_an_attack_that_reads_a_line_that_is_not_there_to_see_whether_it_applies_is_listed(
    toy: SimpleNamespace,
) -> None:
    class Hasty(toy.ReadHint):
        def why_not(self, view):
            return None if len(view.row_means(toy.Hint, peer="nobody")) else "no rows"

    report = audit(toy.run(), [Hasty(), toy.ReadHint()], nulls=1)
    assert "Hasty by shop: Row means of audit-tests/hint should come from one line" in report.untested[0]
    assert [finding.attack for finding in report.attacks] == ["ReadHint"]


def test_an_attack_that_nobody_can_make_is_listed(toy: SimpleNamespace) -> None:
    class OnColumns(toy.ReadHint):
        about = Secret.FEATURES

    table = Table.of({"x": [1.0, 2.0]}, ids=None)
    run = simulate(lambda party: None, {"shop": table}, roles=Roles(features=("shop",)))
    assert audit(run, [OnColumns()]).untested == ("OnColumns: nobody in this run could make it about another party",)


def test_a_class_with_too_few_rows_to_tell_is_a_reason(toy: SimpleNamespace) -> None:
    labels = ["rare"] * 2 + ["common"] * 198
    report = audit(toy.run(labels=labels), [toy.NearestKnown()], nulls=1)
    assert report.untested[0] == ("NearestKnown by shop: it must be told 3 labels per class, and one class has fewer")
    assert report.inapplicable == ()
    assert report.gaps == report.untested


def test_labels_that_are_measurements_are_a_reason(toy: SimpleNamespace) -> None:
    report = audit(toy.run(labels=np.linspace(0, 1, 200)), [toy.ReadHint()], nulls=1)
    assert report.untested[0] == "ReadHint: bank's labels are measurements, and it guesses classes"


def test_a_run_without_labels_is_a_reason(toy: SimpleNamespace) -> None:
    table = Table.of({"x": [1.0, 2.0]}, ids=None)
    run = simulate(lambda party: None, {"shop": table}, roles=Roles(features=("shop",)))
    assert audit(run, [toy.ReadHint()]).untested == ("ReadHint: nobody in this run holds labels",)


def test_messages_of_which_only_digests_were_kept_are_a_reason(toy: SimpleNamespace) -> None:
    report = audit(toy.run(keep="digests"), [toy.ReadHint()])
    assert report.untested[0] == (
        "ReadHint by shop: the run kept only digests of audit-tests/hint; run with keep='audit'"
    )


def test_an_attacker_without_a_table_is_a_reason(toy: SimpleNamespace) -> None:
    tables = {"bank": Table.of({"x": [1.0, 2, 3, 4, 5, 6], "y": [0, 1] * 3}, ids=None, labels="y")}
    run = simulate(lambda party: None, tables, roles=Roles(label="bank", features=(), server="cloud"))
    assert audit(run, [toy.NearestKnown()]).untested == ("NearestKnown by cloud: it needs a table and cloud has none",)


def test_an_audit_repeated_is_the_same_whoever_repeats_the_runs(
    split_run: Run[SplitClassifier], split_report: PrivacyReport
) -> None:
    assert audit(split_run, ATTACKS, nulls=6, executor=Serial()).to_json() == split_report.to_json()


@pytest.mark.slow
def test_an_audit_does_not_depend_on_the_number_of_workers(split_run: Run[SplitClassifier]) -> None:
    executors = (None, Local(n_jobs=1), Local(n_jobs=2))
    reports = {audit(split_run, ATTACKS, nulls=6, executor=executor).to_json() for executor in executors}
    assert len(reports) == 1


def test_a_finding_does_not_depend_on_which_other_attacks_are_made(
    split_run: Run[SplitClassifier], split_report: PrivacyReport
) -> None:
    (alone,) = audit(split_run, [DirectionScore()], nulls=6).attacks
    assert alone in split_report.attacks


def test_another_seed_draws_other_grants_and_nulls(toy: SimpleNamespace) -> None:
    run = toy.run(strength=1)
    first, second = (audit(run, [toy.NearestKnown()], nulls=2, seed=seed).attacks[0] for seed in (0, 1))
    assert first.plain.score != second.plain.score


def test_a_bar_is_shown_when_asked_for(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    audit(toy.run(), [toy.ReadHint()], nulls=1, progress=True)
    assert "null runs" in capsys.readouterr().err
    audit(toy.run(), [toy.ReadHint()], nulls=1)
    assert capsys.readouterr().err == ""


def test_making_and_scoring_attacks_is_shown_as_well(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    audit(toy.run(), [toy.ReadHint(), toy.RankByHint()], nulls=1, progress=True)
    shown = capsys.readouterr().err
    for words in ("attacks: 2 of 2", "joined attacks: 1 of 1", "null runs: 1 of 1", "scores: 3 of 3"):
        assert words in shown


def test_a_party_that_was_not_to_attack_is_not_said_to_be_unable_to(toy: SimpleNamespace) -> None:
    run, by_shop = toy.run(parties=("shop", "telco")), {"attackers": ("shop",)}
    made = audit(run, [toy.ReadHint()], nulls=1, **by_shop)
    assert matrix(made)[0].cells == ("own", "leaks", "not tested")
    assert "telco about bank's labels, given audit-tests/hint: no attack was made" in made.gaps
    assert made.attackers == ("shop",)
    assert PrivacyReport.from_json(made.to_json()) == made
    assert "simulated audit, attacks by shop only." in made.render()
    # Of a party that was to attack, it is told that nothing applied.
    unfit = audit(run, [NormScore()], nulls=1, **by_shop)
    assert matrix(unfit)[0].cells == ("own", "no attack applies", "not tested")
    asked = {question.attacker: question.sentence for question in questions(unfit)}
    assert asked["shop"].startswith("No attack of this audit applies.")
    assert asked["telco"].startswith("Nobody tried.")
    assert "attacks by" not in audit(run, [NormScore()], nulls=1).render()


def test_an_audit_without_a_null_is_refused(toy: SimpleNamespace) -> None:
    with pytest.raises(PlanError) as caught:
        audit(toy.run(), [toy.ReadHint()], nulls=0)
    assert str(caught.value) == (
        "An audit needs at least one null run to tell a leak from what the attacker's own columns say, "
        "but nulls is 0. Use 20."
    )


def test_an_active_attack_that_returns_no_guess_is_refused(toy: SimpleNamespace) -> None:
    with pytest.raises(PlanError) as caught:
        audit(toy.run(), [Confused()], nulls=1)
    assert str(caught.value) == (
        "Confused should return a Guess from play, but returned a NoneType. Correct the attack."
    )


def test_the_json_of_an_audit_is_read_back_as_the_same_report(split_report: PrivacyReport) -> None:
    assert PrivacyReport.from_json(split_report.to_json()) == split_report
    assert json.loads(split_report.to_json())["version"] == 1


def test_joined_guesses_exceed_the_attacker_alone_by_what_the_messages_tell(toy: SimpleNamespace) -> None:
    attacks = [toy.ReadHint(), toy.RankByHint(), toy.NearestKnown()]
    told, silent = (audit(toy.run(strength=each, signal=1), attacks, nulls=19).strongest[0] for each in (3, 0))
    for finding in (told, silent):
        assert finding.leakage.all_labels.value >= finding.plain.alone.value
    assert (told.verdict, told.leakage.luck) == ("leaks", 0.05)
    assert told.leakage.excess.value == pytest.approx(told.plain.score.value - told.plain.alone.value)
    assert told.leakage.excess.low > 0
    assert silent.verdict != "leaks"
    assert silent.leakage.excess.low < 0


def test_joined_guesses_are_at_chance_where_labels_are_shuffled(toy: SimpleNamespace) -> None:
    found = audit(toy.run(strength=0), [toy.ReadHint(), toy.RankByHint()], nulls=40).strongest[0]
    assert np.mean(found.plain.null) == pytest.approx(0.5, abs=0.03)


def test_joined_guesses_stand_beside_an_attacker_that_was_told_as_many_labels(toy: SimpleNamespace) -> None:
    class ToldAsMany(toy.ReadHint):
        needs = Needs(messages=(toy.Hint,), known_labels=Strongest.needs.known_labels)

    run = toy.run(strength=1, signal=1)
    with_it, without_it = (
        audit(run, [*first, toy.ReadHint(), toy.RankByHint()], nulls=1) for first in ([ToldAsMany()], [])
    )
    beside, apart = with_it.strongest[0], without_it.strongest[0]
    assert with_it.attacks[0].granted.known_labels == 12
    assert beside.granted.known_labels == apart.granted.known_labels == 25
    # The rows that are scored are the same, so the attacker alone reaches the same.
    assert beside.plain.alone == apart.plain.alone != with_it.attacks[0].plain.alone
