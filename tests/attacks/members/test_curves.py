import numpy as np
import pytest

from colonnade.attacks.base import Grant, Guess
from colonnade.attacks.labels.gradients import DirectLabel
from colonnade.attacks.members.curves import FitMembership, ReleaseMembership
from colonnade.attacks.view import View
from colonnade.auditing import audit, audit_own_side, measure_membership
from colonnade.auditing.attempt import Attempt, PartyRecord
from colonnade.auditing.render.words import headline, questions
from colonnade.auditing.subjects.members import epsilon_bound, most_advantage
from colonnade.catalogue import ATTACKS
from colonnade.curves import BSplines
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.errors import PlanError
from colonnade.models.functional.estimator import FunctionalBoost
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table

ROLES = Roles(label="label", features=("worker 1", "worker 2"))
SETTING = FunctionalSetting(n=400, p=4, active=(1, 2), basis=BSplines((0, 100), 6))


def made(**settings):
    tables = SETTING.draw_one(1).tables(2)
    more = {"guard": False, "correction": 1.0, "stopping": {"max_steps": 20}}
    model = FunctionalBoost(protection=settings, **more)
    return simulate(model.fit, tables, roles=ROLES)


def test_a_release_without_noise_gives_everybody_away():
    found = measure_membership(made(clip=3.0), ReleaseMembership())
    assert found.score.value > 0.99
    assert found.leaks
    assert found.measured > 2
    assert found.claimed == float("inf")
    assert str(found).startswith("ReleaseMembership by label: AUC 1.000")


def test_little_noise_still_gives_many_away_and_much_noise_nobody():
    some = measure_membership(made(clip=3.0, noise=0.5), ReleaseMembership())
    none = measure_membership(made(clip=3.0, noise=30.0), ReleaseMembership())
    assert some.leaks
    assert not none.leaks
    assert abs(none.score.value - 0.5) < 0.08


@pytest.mark.parametrize("noise", [1.0, 4.0, 15.0])
def test_what_is_measured_is_no_more_than_what_is_claimed(noise):
    found = measure_membership(made(clip=3.0, noise=noise), ReleaseMembership())
    assert found.measured <= found.claimed


def test_a_fit_tells_little_about_who_was_in_it():
    found = measure_membership(made(), FitMembership())
    assert 0.5 < found.score.value < 0.9


def test_people_who_were_not_there_are_not_told_apart():
    found = measure_membership(made(clip=3.0), ReleaseMembership(), nulls=50)
    assert np.mean(found.null) == pytest.approx(0.5, abs=0.03)


def test_a_bound_on_epsilon_holds_for_randomised_response():
    """Oracle: a mechanism of known epsilon."""
    random, n, epsilon = np.random.default_rng(0), 20_000, 1.0
    members = random.integers(2, size=n)
    keep = random.random(n) < np.exp(epsilon) / (1 + np.exp(epsilon))
    scores = np.where(keep, members, 1 - members) + 1e-9 * random.random(n)
    assert 0.85 < epsilon_bound(scores, members, 0.0, random) <= 1.05
    assert epsilon_bound(random.random(n), members, 0.0, random) < 0.1


@pytest.mark.parametrize("attack", [ReleaseMembership(), FitMembership()])
def test_a_saved_view_leads_to_the_same_guess(attack, tmp_path):
    run = made(clip=3.0, noise=1.0)
    tables = SETTING.draw_one(1).tables(2)
    names = {name: table.curves(name).coordinates for table in tables.values() for name in table.columns}
    grant = Grant(2, candidates={**names, "": tables["label"].curves("response").coordinates})
    attempt = Attempt(attack, "label", grant, 0)
    view = attempt.view(run)
    view.save(tmp_path)
    again = View.load(tmp_path, attack.needs, FunctionalBoost.load)
    np.testing.assert_array_equal(attack.guess(again).scores, attack.guess(view).scores)


def test_an_attack_that_is_told_nothing_or_saw_nothing_is_refused():
    run = made(clip=3.0, noise=1.0)
    with pytest.raises(PlanError, match="told candidates, made by a party of the run, but DirectLabel is not told any"):
        measure_membership(run, DirectLabel())
    with pytest.raises(PlanError, match="but it was sent no released curves"):
        measure_membership(run, ReleaseMembership(), attacker="worker 1")
    with pytest.raises(PlanError, match="but it holds no coefficients"):
        measure_membership(run, FitMembership(), attacker="worker 1")
    assert Attempt(ReleaseMembership(), "label", Grant(2), 0).why_not(PartyRecord.of(run, "label")) == (
        "it must be told candidates, who may have been in the run or not"
    )


def test_the_report_puts_the_measured_leak_beside_the_claimed_budget():
    run = made(clip=3.0, noise=0.5)
    report = audit(run, [ReleaseMembership()], nulls=20)
    assert [(finding.attacker, finding.owner, finding.verdict) for finding in report.attacks] == [
        ("label", "worker 1", "leaks"),
        ("label", "worker 2", "leaks"),
    ]
    assert "measured epsilon at least" in report.attacks[0].summary
    assert "at most 1.000 by what is claimed" in report.attacks[0].summary
    assert report.budget["features"].is_private
    assert "ReleaseMembership" in report.render()


def test_the_report_speaks_of_membership_in_its_own_words_and_lists_columns_that_nobody_attacked():
    report = audit(made(clip=3.0, noise=0.5), [ReleaseMembership()], nulls=20)
    assert {finding.about for finding in report.attacks} == {Secret.MEMBERSHIP}
    for worker in ("worker 1", "worker 2"):
        untested = f"label about {worker}'s features, given functional/released-curves: no attack was made"
        assert untested in report.untested
    assert headline(report) == (
        "who was among worker 1's rows and who was among worker 2's rows can be inferred by label"
    )
    # Which of the two releases gives more away is a matter of luck, and the worse one stands first.
    first, second = questions(report)[:2]
    assert {first.title, second.title} == {
        f"Could label tell who was among {worker}'s rows?" for worker in ("worker 1", "worker 2")
    }
    assert first.gain >= second.gain
    assert "tells people in the run from people outside it with an AUC of" in first.sentence
    text = " ".join(report.render().split())
    assert "class" not in text
    assert "features can be inferred" not in text


def test_the_report_tells_what_a_fitted_model_says_about_whole_records():
    (finding,) = audit(made(clip=3.0, noise=0.5), [ATTACKS["fit-membership"]()], nulls=20).attacks
    assert (finding.attacker, finding.owner, finding.plain.chance) == ("label", "everybody", 0.5)
    assert "It was told records" in finding.summary


def test_where_there_are_no_curves_membership_is_untested_and_nothing_is_run_again(monkeypatch):
    tables = {"bank": Table.of({"id": range(9), "late": [0, 1, 1] * 3}, labels="late")}
    run = simulate(
        lambda party: None,
        {**tables, "shop": Table.of({"id": range(9)})},
        roles=Roles(label="bank", features=("shop",)),
    )
    monkeypatch.setattr(type(run), "again", None)
    report = audit(run, [ATTACKS[name]() for name in ("fit-membership", "release-membership")], nulls=1)
    assert not report.attacks
    assert report.untested[0] == (
        "FitMembership by bank about everybody: it needs bank's share of the model, and this run left none"
    )
    assert report.untested[2] == (
        "ReleaseMembership by bank about shop: bank sent and received no functional/offer or functional/released-curves"
    )


def test_an_attack_that_names_members_without_scores_is_listed():
    class Named(ReleaseMembership):
        def guess(self, view):
            scores = super().guess(view).scores
            return Guess(np.arange(len(scores)), classes=(scores > np.median(scores)).astype(np.int64))

    report = audit(made(clip=3.0, noise=0.5), [Named()], nulls=1)
    assert not report.attacks
    assert "Named by label about worker 1: it should guess scores, but 400 of 400 values are something else" in (
        report.untested
    )


def test_a_deployed_party_is_told_why_membership_is_untested():
    run = made(clip=3.0, noise=0.5)
    own = {"plan": run.plan, "table": run.simulation.tables["label"], "ledger": run.ledgers["label"]}
    report = audit_own_side(run.transcripts["label"], [ReleaseMembership()], **own)
    assert report.untested[0] == (
        "ReleaseMembership: it needs a second training run on half of the rows, which is possible only in a simulation"
    )


@pytest.mark.parametrize(("epsilon", "most"), [(0.0, 2e-5 / 2), (1.0, None), (1e9, 1.0), (float("inf"), 1.0)])
def test_the_largest_advantage_is_that_of_randomised_response(epsilon, most):
    """Oracle: two answers, the true one e^epsilon times as likely, after all is told with probability delta."""
    wanted = (np.exp(epsilon) - 1 + 2e-5) / (np.exp(epsilon) + 1) if most is None else most
    assert most_advantage(epsilon, 1e-5) == pytest.approx(wanted)


def test_what_an_attack_gains_is_no_more_than_its_claim_allows():
    found = measure_membership(made(clip=3.0, noise=40.0), ReleaseMembership())
    assert found.most_advantage < 1
    # An advantage of 400 candidates' halves has a standard error of 0.1.
    assert found.advantage < found.most_advantage + 0.5
