"""The guard catches tampering that can be seen, says what it saw, and is silent on honest runs."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch

from colonnade.attacks import (
    ActiveGenerative,
    ActiveInversion,
    EpochRidge,
    FeatureHijacking,
    InformedRidge,
    PassiveRidge,
)
from colonnade.attacks.base import Grant
from colonnade.auditing import audit, audit_own_side
from colonnade.auditing.contents import GuardRecord
from colonnade.auditing.report import PrivacyReport
from colonnade.defences import GradientGuard
from colonnade.defences.guard import CHECKS
from colonnade.errors import GuardAlarm, PlanError
from colonnade.models import OneShotClassifier, ServedClassifier, SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.encode import centred, filled_with_labels
from colonnade.tables.table import Table
from colonnade.wire.recording.recording import Transcript

ROLES = Roles(label="bank", features=("shop",))
MODEL = SplitClassifier(epochs=25, batch_size=20, embedding=8, n_iter_no_change=None)
SHORT = MODEL.clone().set_params(epochs=3)


@pytest.fixture(scope="module")
def tables():
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 8))
    y = (x @ random.normal(size=8) + 0.3 * random.normal(size=120) > 0).astype(np.int64)
    own = {f"a{i}": x[:, i] for i in range(3)}
    theirs = {f"b{i}": x[:, i] for i in range(3, 8)}
    return {
        "bank": Table.of({"id": range(120), **own, "y": y}, labels="y"),
        "shop": Table.of({"id": range(120), **theirs}),
    }


@pytest.fixture(scope="module")
def guarded(tables):
    """What the shop's guard saw of a run, honest or attacked."""

    def run(attack=None, model=MODEL, roles=ROLES, seed=0, **options):
        values, columns = centred(tables["shop"])
        rows = np.arange(0, 120, 10)
        prior = {"shop": values[60:], "bank": filled_with_labels(tables["bank"])[60:]}
        prior["cloud"] = np.zeros((60, 0))
        grant = Grant(0, rows, owner="shop", columns=columns, records=values[rows], prior=prior)
        attacker = roles.server or "bank"
        instead = {} if attack is None else {attacker: lambda party, honest: attack.tampered(party, honest, grant)}
        guard = options.pop("guard", GradientGuard())
        made = simulate(
            model.fit, tables, roles=roles, seed=seed, instead=instead, defences={"shop": [guard]}, **options
        )
        return made.transcripts["shop"].notes["guard 0"]

    return run


def test_an_honest_run_raises_no_alarm(guarded):
    seen = guarded()
    assert seen["alarms"] == {}
    assert seen["batches"] == 150
    assert set(seen["figures"]) == {
        *("zero rows", "one direction", "norm ratio", "norm level", "spectrum", "persistence"),
    }


@pytest.mark.parametrize(
    ("attack", "check"),
    [
        (ActiveInversion(fill="zero"), "zero rows"),
        (ActiveInversion(), "norm ratio"),
        (ActiveGenerative(), "norm level"),
    ],
)
def test_tampering_is_seen_at_once(guarded, attack, check):
    assert check in guarded(attack, SHORT)["alarms"]


def test_hijacking_is_seen(guarded):
    assert set(guarded(FeatureHijacking())["alarms"]) == {"one direction"}


def test_matched_lengths_are_missed_but_lead_the_list_of_persistent_rows(guarded):
    seen = guarded(ActiveInversion(matched=True))
    assert seen["alarms"] == {}
    n_known = sum(row % 10 == 0 for row in seen["rows"])
    assert n_known >= 7  # by chance 1


def test_a_server_that_tampers_is_seen(guarded):
    served = ServedClassifier(epochs=4, batch_size=20, embedding=8, n_iter_no_change=None)
    seen = guarded(ActiveInversion(fill="zero"), served, replace(ROLES, server="cloud"))
    assert "zero rows" in seen["alarms"]
    assert guarded(None, served, replace(ROLES, server="cloud"))["alarms"] == {}


def test_what_was_seen_is_small_and_does_not_grow_with_epochs(guarded):
    lengths = [len(str(guarded(model=MODEL.clone().set_params(epochs=epochs)))) for epochs in (3, 12)]
    assert max(lengths) < 1000


def test_abort_stops_the_run_and_says_what_was_seen(guarded):
    with pytest.raises(GuardAlarm, match=r"shop expects gradients of an honest training from bank, but .* \(batch 3\)"):
        guarded(ActiveInversion(fill="zero"), SHORT, guard=GradientGuard(policy="abort"))


def test_pause_stops_once_and_goes_on_when_the_run_is_started_again(guarded, tmp_path):
    def start(policy):
        guard = GradientGuard(policy=policy)
        return guarded(
            ActiveInversion(fill="zero"), SHORT, guard=guard, directory=tmp_path / policy, checkpoint_every=5
        )

    with pytest.raises(GuardAlarm, match="start the run again from the same folder"):
        start("pause")
    with pytest.raises(GuardAlarm):
        start("abort")
    with pytest.raises(GuardAlarm):
        start("abort")
    seen = {"alarms": {}}
    # One alarm for each check that is set off, and no more.
    for _ in CHECKS:
        with suppress(GuardAlarm):
            seen = start("pause")
            break
    assert "zero rows" in seen["alarms"]


@pytest.mark.parametrize("policy", ["pause", "abort"])
def test_an_alarm_is_not_forgotten_if_the_run_goes_back_and_the_attacker_stops(guarded, tmp_path, policy):
    class AtFirst(ActiveInversion):
        stopped = False

        def tampered(self, party, honest, grant):
            return honest(party) if self.stopped else super().tampered(party, honest, grant)

    attack, options = AtFirst(fill="zero"), {"directory": tmp_path, "checkpoint_every": 50}
    with pytest.raises(GuardAlarm, match=r"\(batch 3\)") as caught:
        guarded(attack, SHORT, guard=GradientGuard(policy=policy), **options)
    attack.stopped = True
    if policy == "abort":
        with pytest.raises(GuardAlarm, match=r"shop stopped this run for good, because .* \(batch 3\)\. Begin another"):
            guarded(attack, SHORT, guard=GradientGuard(policy=policy), **options)
        return
    (said,) = guarded(attack, SHORT, guard=GradientGuard(policy=policy), **options)["alarms"].values()
    assert said in str(caught.value)


def test_the_report_tells_what_the_guard_saw_and_is_read_back(tables, tmp_path):
    model = SplitClassifier(epochs=3, batch_size=20, embedding=8, n_iter_no_change=None)
    run = simulate(model.fit, tables, roles=ROLES, defences={"shop": [GradientGuard()]}, directory=tmp_path)
    report = audit(run, [], nulls=1)
    assert report.guarded == (
        GuardRecord("shop", **{**run.transcripts["shop"].notes["guard 0"], "rows": report.guarded[0].rows}),
    )
    assert "shop's GradientGuard looked at 18 batches of gradients and raised no alarm." in str(report)
    assert PrivacyReport.from_json(report.to_json()) == report
    assert Transcript.load(tmp_path / "shop" / "transcript").notes == run.transcripts["shop"].notes


def test_the_guard_is_refused_where_no_gradients_arrive(tables):
    with pytest.raises(PlanError, match="bank holds GradientGuard"):
        simulate(MODEL.fit, tables, roles=ROLES, defences={"bank": [GradientGuard()]})
    with pytest.raises(PlanError, match="shop holds GradientGuard"):
        simulate(
            OneShotClassifier(leak_budget={"shop": 1.0}).fit, tables, roles=ROLES, defences={"shop": [GradientGuard()]}
        )


def test_a_rehearsal_draws_nothing_from_the_global_generators(guarded):
    torch.manual_seed(5)
    np.random.seed(5)
    guarded(model=SHORT)
    drawn = torch.rand(3), np.random.rand(3)
    torch.manual_seed(5)
    np.random.seed(5)
    assert torch.equal(drawn[0], torch.rand(3))
    assert np.array_equal(drawn[1], np.random.rand(3))


def test_a_feature_party_alone_attacks_what_it_sent_and_reads_what_its_guard_saw(tables, tmp_path):
    model = SplitClassifier(epochs=4, batch_size=20, embedding=8, n_iter_no_change=None)
    run = simulate(model.fit, tables, roles=ROLES, defences={"shop": [GradientGuard()]}, directory=tmp_path)
    transcript = Transcript.load(tmp_path / "shop" / "transcript")
    own = {"plan": run.plan, "table": tables["shop"], "ledger": run.ledgers["shop"]}
    attacks = [PassiveRidge(), EpochRidge(), InformedRidge(), ActiveInversion()]
    report = audit_own_side(transcript, attacks, **own)
    assert [(each.attack, each.attacker, each.verdict) for each in report.attacks] == [
        ("PassiveRidge", "bank", "leaks"),
        ("EpochRidge", "bank", "leaks"),
    ]
    assert "InformedRidge by bank about shop: it needs bank's own columns" in report.untested
    assert report.guarded[0].batches == 24
