import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colonnade.attacks.base import Attack, Guess, Needs
from colonnade.auditing import Finding, JointAudit, PrivacyReport, audit
from colonnade.auditing.joint import AloneRatings, LabelGrant, LabelGuess
from colonnade.errors import BudgetSpent, DataError, PlanError, ProtocolError
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.party import Party
from colonnade.runtime.simulate import Run, simulate
from colonnade.secret import Secret
from colonnade.wire.recording.recording import Transcript

NOTHING = np.zeros(0, np.int64)


def jointly(run: Run[Any], attacks: Any, attacker: str = "shop", **settings: Any) -> dict[str, JointAudit]:
    """What each party of a run plays, with its own recording."""
    settings = {"nulls": 20, **settings}
    return {
        name: JointAudit(
            run.plan, attacks, attacker, run.transcripts[name], ledger=run.ledgers[name], model=None, **settings
        )
        for name in run.plan.roles.parties
    }


def play(run: Run[Any], protocols: Any, **settings: Any) -> Run[Any]:
    return simulate(protocols, run.simulation.tables, roles=run.plan.roles, **settings)


def attacked(run: Run[Any], attacks: Any, **settings: Any) -> PrivacyReport:
    report = play(run, jointly(run, attacks, **settings)).results["bank"]
    assert isinstance(report, PrivacyReport)
    return report


def told(finding: Finding) -> tuple[Any, ...]:
    """All of a finding that does not depend on how the null is made."""
    evidence = [(e.score, e.chance, e.alone) for e in (finding.plain, finding.up_to_naming)]
    return (finding.attack, finding.granted, finding.rows, finding.coverage, *evidence)


class NeedsModel(Attack):
    """Wants a share of a model."""

    needs = Needs(own_model=True)

    def guess(self, view):
        return Guess(np.arange(30), classes=np.zeros(30, np.int64) + (not view.own.model.is_fitted))


class Rich(Attack):
    """Ranks rows by a column of its own if there is one; wants many labels of few classes."""

    needs = Needs(own_features=True, table_optional=True, known_labels=4, known_in_all=40)

    def guess(self, view):
        x = view.own.table.column("x0") if view.own.has_table else np.zeros(200)
        return Guess(np.arange(200), scores=np.asarray(x, np.float64))


def test_the_owner_gets_the_scores_of_a_simulated_audit_and_the_attacker_nothing(toy: SimpleNamespace) -> None:
    run = toy.run(strength=2, signal=1)
    attacks = [toy.ReadHint(), toy.RankByHint(), toy.NearestKnown(), toy.Silent()]
    played = play(run, jointly(run, attacks, seed=3))
    report = played.results["bank"]
    simulated = audit(run, attacks, nulls=1, seed=3).attacks
    assert [told(f) for f in report.attacks] == [told(f) for f in simulated if f.leakage is None]
    assert played.results["shop"] is None
    assert report.run.mode == "joint"
    assert report.run.plan == run.plan.hash
    assert report.untested == ("Silent by shop: it guessed no row that had not been granted",)


@pytest.mark.network
def test_two_organisations_get_the_same_over_a_network(
    toy: SimpleNamespace, deployed: Callable[..., Any], tmp_path: Path
) -> None:
    run = toy.run(strength=2)
    attacks, tables = [toy.ReadHint(), toy.NearestKnown()], run.simulation.tables
    consenting = replace(run.plan, settings={**run.plan.settings, "received": "audit"})
    deployed(dict.fromkeys(tables, run.simulation.protocol), tables, consenting, "run", shop={"keep_received": "audit"})
    audits = {}
    for name in tables:
        folder = tmp_path / "run" / name
        found = json.loads((folder / "run.json").read_text())
        made = {"randomness": found["randomness"], "insecure": found["insecure"], "seed": 3}
        audits[name] = JointAudit(consenting, attacks, "shop", Transcript.load(folder / "transcript"), **made)
    results = deployed(audits, tables, audits["bank"].plan, "audit")
    simulated = audit(run, attacks, nulls=1, seed=3).attacks
    assert [told(f) for f in results["bank"].attacks] == [told(f) for f in simulated if f.leakage is None]
    assert results["shop"] is None
    assert (results["bank"].run.randomness, results["bank"].run.insecure) == ("seeded", True)
    seen = Transcript.load(tmp_path / "audit" / "shop" / "transcript").entries
    assert {(entry.kind, entry.sent) for entry in seen} == {
        ("audit/grant", False),
        ("audit/guess", True),
        ("audit/alone", True),
    }


def test_a_report_of_a_run_in_the_clear_says_so(toy: SimpleNamespace) -> None:
    words = "TLS was off in this run"
    assert words in attacked(toy.run(), [toy.ReadHint()], insecure=True).render()
    assert words not in attacked(toy.run(), [toy.ReadHint()]).render()


def test_the_attacker_receives_grants_and_nothing_else(toy: SimpleNamespace) -> None:
    run = toy.run()
    transcript = play(run, jointly(run, [toy.ReadHint(), toy.NearestKnown()])).transcripts["shop"]
    assert {e.kind for e in transcript.entries if not e.sent} == {"audit/grant"}
    none, three = (recorded.message for recorded in transcript.messages(LabelGrant))
    assert (none.n_classes, len(none.labels)) == (2, 0)
    assert np.bincount(three.labels).tolist() == [3, 3]


def test_what_was_received_but_not_kept_cannot_be_attacked(toy: SimpleNamespace) -> None:
    run = toy.run()
    digests = replace(
        run.transcripts["shop"],
        entries=tuple(e if e.sent else e._replace(place=None) for e in run.transcripts["shop"].entries),
        means=(),
    )
    protocols = jointly(run, [toy.ReadHint()])
    protocols["shop"] = replace(protocols["shop"], transcript=digests)
    assert play(run, protocols).results["bank"].untested == (
        "ReadHint by shop: the run kept only digests of audit-tests/hint; run with keep_received='audit'",
        "shop about bank's labels, given audit-tests/hint: none of the attacks that were tried applies",
    )


def test_an_attack_that_fails_or_guesses_records_is_listed_and_the_others_are_kept(toy: SimpleNamespace) -> None:
    class Lost(toy.ReadHint):
        def guess(self, view):
            return Guess(np.arange(len(view.row_means(toy.Hint, peer="nobody"))))

    class Records(toy.ReadHint):
        def guess(self, view):
            return Guess(np.arange(3), values=np.zeros((3, 2)))

    report = attacked(toy.run(), [Lost(), Records(), toy.ReadHint()])
    assert report.untested[0].startswith("Lost by shop: Row means of audit-tests/hint should come from one line")
    assert report.untested[1] == "Records by shop: it should guess classes or scores, but it guesses records"
    assert [finding.attack for finding in report.attacks] == ["ReadHint"]


def test_what_cannot_be_made_or_scored_is_listed(toy: SimpleNamespace) -> None:
    report = attacked(toy.run(), [toy.TakePart(), toy.AboutModel(), NeedsModel()])
    assert report.untested == (
        "TakePart by shop: it takes part in a run, and the one that a joint audit looks at is over",
        "AboutModel by shop: guesses about model cannot be scored, only those about labels, features, membership",
        "NeedsModel by shop: it needs shop's share of the model, and this run left none",
        "shop about bank's labels, given audit-tests/hint: none of the attacks that were tried applies",
    )
    rare = toy.run(labels=["rare"] * 2 + ["common"] * 198)
    assert attacked(rare, [toy.NearestKnown()]).untested[0] == (
        "NearestKnown by shop: it must be told 3 labels per class, and one class has fewer"
    )


def test_the_attackers_share_of_the_model_is_used_where_it_is_given(toy: SimpleNamespace) -> None:
    run = toy.run()
    protocols = jointly(run, [NeedsModel()])
    protocols["shop"] = replace(protocols["shop"], model=SplitClassifier())
    (finding,) = play(run, protocols).results["bank"].attacks
    assert finding.rows == 30


def test_what_the_attackers_own_columns_say_is_not_a_leak(toy: SimpleNamespace) -> None:
    (finding,) = attacked(toy.run(strength=0, signal=4), [toy.NearestKnown()]).attacks
    assert finding.plain.score.value > 0.9 > finding.plain.null_high
    assert finding.verdict == "no more than alone"


def test_a_party_that_neither_owns_nor_attacks_is_left_in_peace(toy: SimpleNamespace) -> None:
    run = toy.run(parties=("shop", "telco"))
    played = play(run, jointly(run, [toy.ReadHint()], attacker="telco"))
    assert (played.results["shop"], played.transcripts["shop"].entries) == (None, ())
    report = played.results["bank"]
    assert [(f.attacker, f.verdict) for f in report.attacks] == [("telco", "leaks")]
    assert {d.receiver for d in report.disclosures} == {"telco"}


def test_a_server_without_a_table_can_be_the_attacker(toy: SimpleNamespace) -> None:
    plan = PublicPlan(Roles(label="bank", features=("shop",), server="cloud"), "SplitClassifier.fit")
    assert JointAudit(plan, (), "cloud", Transcript("cloud")).plan.roles == Roles((), label="bank", server="cloud")


def test_labels_that_are_told_are_charged_as_not_private(toy: SimpleNamespace) -> None:
    run = toy.run(under=("RandomisedLabels",), epsilon=1.5)
    nothing_told = attacked(run, [toy.ReadHint()], delta=0.0).budget["labels"]
    assert nothing_told.epsilon == pytest.approx(1.5)
    assert attacked(run, [toy.NearestKnown()]).budget["labels"].notes == ("labels told to shop in a joint audit",)


def test_a_budget_keeps_labels_from_being_told(toy: SimpleNamespace) -> None:
    run = toy.run()
    with pytest.raises(BudgetSpent, match="nothing was released"):
        play(run, jointly(run, [toy.NearestKnown()]), budgets={"bank": {Secret.LABELS: (1.0, 1e-5)}})


def test_the_plan_of_an_audit_says_what_both_agree_on_and_nobodys_seed(toy: SimpleNamespace) -> None:
    run = toy.run(parties=("shop", "telco"))
    one = jointly(run, [toy.ReadHint(shift=1)], seed=1)["bank"].plan
    assert one == jointly(run, [toy.ReadHint(shift=1)], seed=2)["shop"].plan
    assert one.roles == Roles(label="bank", features=("shop",))
    assert one.settings == {"audits": run.plan.hash, "attacker": "shop", "attacks": ["ReadHint(shift=1)"]}
    assert one.hash != jointly(run, [toy.ReadHint()])["bank"].plan.hash


def test_without_a_seed_grants_follow_from_the_owners_own_randomness(toy: SimpleNamespace) -> None:
    run = toy.run()
    granted = []
    for seed in (0, 0, 1):
        played = play(run, jointly(run, [toy.NearestKnown()]), seed=seed)
        (grant,) = played.transcripts["shop"].messages(LabelGrant)
        granted.append(grant.message.rows.tolist())
    assert granted[0] == granted[1] != granted[2]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            LabelGuess(1, "", NOTHING, NOTHING, np.zeros(0)),
            "Expected audit/guess for attack 0 from shop, got one for attack 1. Check that both parties run the same "
            "plan.",
        ),
        (
            LabelGuess(0, "", np.arange(2), np.arange(2), np.zeros(2)),
            "Expected shop to guess one class or one score for each row, but it sent 2 rows, 2 classes and 2 scores. "
            "Check that both run the same version.",
        ),
    ],
)
def test_a_guess_that_is_none_is_refused(toy: SimpleNamespace, said: LabelGuess, words: str) -> None:
    def lie(party: Party) -> None:
        party.label_party.receive(LabelGrant)
        party.label_party.send(said)
        party.label_party.send(AloneRatings(0, NOTHING, [], 0, []))

    run = toy.run()
    with pytest.raises(ProtocolError) as caught:
        play(run, {**jointly(run, [toy.ReadHint()]), "shop": lie})
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            LabelGuess(0, "", np.array([0, 200]), np.arange(2), np.zeros(0)),
            "it should guess each of 200 rows at most once, but 1 of its rows do not exist and 0 are repeated",
        ),
        (
            LabelGuess(0, "", np.arange(2), NOTHING, np.array([0.5, np.nan])),
            "it should guess finite scores, but 1 of 2 values are something else",
        ),
    ],
)
def test_a_guess_that_cannot_be_scored_is_listed(toy: SimpleNamespace, said: LabelGuess, reason: str) -> None:
    def mumble(party: Party) -> None:
        party.label_party.receive(LabelGrant)
        party.label_party.send(said)
        party.label_party.send(AloneRatings(0, NOTHING, [], 0, []))

    run = toy.run()
    report = play(run, {**jointly(run, [toy.ReadHint()]), "shop": mumble}).results["bank"]
    assert report.attacks == ()
    assert report.untested[0] == f"ReadHint by shop: {reason}"


def test_ratings_of_another_shape_are_refused(toy: SimpleNamespace) -> None:
    def lie(party: Party) -> None:
        party.label_party.receive(LabelGrant)
        party.label_party.send(LabelGuess(0, "", np.arange(2), np.arange(2), np.zeros(0)))
        party.label_party.send(AloneRatings(0, np.arange(2), ["magic"], 1, [np.zeros((2, 9))]))

    run = toy.run()
    with pytest.raises(ProtocolError) as caught:
        play(run, {**jointly(run, [toy.ReadHint()]), "shop": lie})
    assert str(caught.value) == (
        "Expected shop to rate 2 classes for each of 2 rows by 1 methods, but its 1 ratings are of other shapes. "
        "Check that both run the same version."
    )


def test_a_reason_from_a_stranger_is_cut_short(toy: SimpleNamespace) -> None:
    def excuse(party: Party) -> None:
        party.label_party.receive(LabelGrant)
        party.label_party.send(LabelGuess(0, "no " * 5000, NOTHING, NOTHING, np.zeros(0)))

    run = toy.run()
    report = play(run, {**jointly(run, [toy.ReadHint()]), "shop": excuse}).results["bank"]
    assert len(report.untested[0]) < 350


@pytest.mark.parametrize(
    "grant",
    [
        LabelGrant(0, 1, 2, np.arange(7), np.array([0, 0, 0, 1, 1, 1, 1])),
        LabelGrant(0, 1, 2, np.arange(6), np.array([0, 0, 1, 1, 1, 1])),
        LabelGrant(0, 1, 2, np.arange(6), np.array([0, 0, 0, 1, 1])),
        LabelGrant(0, 1, 2, np.array([0, 1, 2, 3, 4, 200]), np.array([0, 0, 0, 1, 1, 1])),
        LabelGrant(0, 1, 2, np.array([0, 1, 2, 3, 4, 4]), np.array([0, 0, 0, 1, 1, 1])),
        LabelGrant(0, 1, 2**60, np.arange(6), np.array([0, 0, 0, 1, 1, 1])),
    ],
)
def test_a_grant_that_was_not_asked_for_is_refused(toy: SimpleNamespace, grant: LabelGrant) -> None:
    run = toy.run()
    with pytest.raises(ProtocolError) as caught:
        play(run, {**jointly(run, [toy.NearestKnown()]), "bank": lambda party: party.peers["shop"].send(grant)})
    assert str(caught.value) == (
        f"Expected bank to tell 3 labels of each of {grant.n_classes} classes, but it tells something else in "
        f"{len(grant.rows)} labels. Check that both parties run the same version on the same rows."
    )


@pytest.mark.parametrize(
    ("sizes", "told_each"),
    [pytest.param((100, 100), 20, id="as many as asked for"), pytest.param((140, 60), 15, id="a quarter of the rarest"),
     pytest.param((190, 10), 4, id="as few as there must be")],
)  # fmt: skip
def test_a_grant_of_more_labels_where_classes_are_few_is_the_one_that_the_owner_draws(
    toy: SimpleNamespace, sizes: tuple[int, int], told_each: int
) -> None:
    run = toy.run(labels=["a"] * sizes[0] + ["b"] * sizes[1])
    (finding,) = attacked(run, [Rich()]).attacks
    assert finding.granted.known_labels == told_each


@pytest.mark.parametrize("per_class", [3, 21])
def test_more_or_fewer_labels_than_the_attack_asks_for_are_refused(toy: SimpleNamespace, per_class: int) -> None:
    run, rows = toy.run(), np.arange(2 * per_class)
    grant = LabelGrant(0, 1, 2, rows, np.repeat([0, 1], per_class))
    with pytest.raises(ProtocolError, match=r"Expected bank to tell 4 to 20 labels of each of 2 classes, but it tells"):
        play(run, {**jointly(run, [Rich()]), "bank": lambda party: party.peers["shop"].send(grant)})


def test_an_attack_that_had_its_optional_table_is_said_to_have_had_it(toy: SimpleNamespace) -> None:
    run = toy.run(signal=2)
    (joint,), simulated = attacked(run, [Rich()], seed=3).attacks, audit(run, [Rich()], nulls=1, seed=3).attacks
    assert joint.granted.own_features
    assert [told(joint)] == [told(finding) for finding in simulated]


def test_another_partys_recording_is_refused(toy: SimpleNamespace) -> None:
    run = toy.run()
    protocols = jointly(run, [toy.ReadHint()])
    with pytest.raises(PlanError) as caught:
        play(run, {"bank": protocols["bank"], "shop": protocols["bank"]})
    assert str(caught.value) == (
        "shop should bring its own recording of the audited run, but this one is bank's. "
        "Name the folder of its own run."
    )


def test_other_rows_than_the_audited_runs_are_refused(toy: SimpleNamespace) -> None:
    run, smaller = toy.run(), toy.run(n=100)
    words = r"at least 200 rows, but the table has 100\. Give the rows that the run was made on"
    with pytest.raises(DataError, match=words):
        play(smaller, jointly(run, [toy.ReadHint()]))


@pytest.mark.parametrize(
    ("roles", "attacker", "words"),
    [
        (
            Roles(features=("shop",)),
            "shop",
            "A joint audit needs an owner of labels, but the audited run has no label party. Audit another run.",
        ),
        (
            Roles(features=("shop", "telco"), label="bank"),
            "bank",
            "A joint audit needs an attacker other than the label party, but bank was named. Name one of shop, telco.",
        ),
    ],
)
def test_an_audit_without_owner_or_attacker_is_refused(roles: Roles, attacker: str, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        JointAudit(PublicPlan(roles, "SplitClassifier.fit"), (), attacker, Transcript("bank"))
    assert str(caught.value) == words
