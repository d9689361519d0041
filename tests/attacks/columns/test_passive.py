"""What embeddings tell about the columns they were made from."""

import numpy as np
import pytest

from colonnade import audit
from colonnade.attacks import PassiveRidge
from colonnade.auditing import audit_own_side
from colonnade.auditing.render.words import headline, knowledge, questions
from colonnade.models.networks.oneshot import OneShotClassifier
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.tables.encode import centred
from colonnade.tables.table import Table
from colonnade.testing import attempt_on

ROLES = Roles(label="bank", features=("shop", "telco"))


def tables(n=400, shared=0.0):
    """Three parties; `shared` is how much of the shop's first column the bank's own column says."""
    random = np.random.default_rng(0)
    shop, telco, own = random.normal(size=(n, 3)), random.normal(size=(n, 2)), random.normal(size=n)
    own = shared * shop[:, 0] + np.sqrt(1 - shared**2) * own
    labels = (own + shop[:, 1] + telco[:, 0] + random.normal(size=n) > 0).astype(int)
    return {
        "bank": Table.of({"own": own, "y": labels}, ids=None, labels="y", owner="bank"),
        "shop": Table.of({f"s{i}": shop[:, i] for i in range(3)}, ids=None, owner="shop"),
        "telco": Table.of({f"t{i}": telco[:, i] for i in range(2)}, ids=None, owner="telco"),
    }


@pytest.fixture(scope="module")
def one_shot():
    model = OneShotClassifier(leak_budget={"shop": 1.0, "telco": 1.0}, components=2, epochs=1)
    return simulate(model.fit, tables(), roles=ROLES)


@pytest.fixture(scope="module")
def split():
    return simulate(SplitClassifier(epochs=2, n_iter_no_change=None, embedding=8).fit, tables(), roles=ROLES)


def test_as_many_components_as_columns_are_the_columns(one_shot):
    report = audit(one_shot, [PassiveRidge()], nulls=5)
    found = {(finding.attacker, finding.owner): finding for finding in report.attacks}
    assert found.keys() == {("bank", "shop"), ("bank", "telco")}
    telco = found["bank", "telco"]
    assert (telco.about, telco.measure, telco.verdict) == (Secret.FEATURES, "R²", "leaks")
    # Two components of two columns: a linear read-out has nothing left to guess.
    assert telco.plain.score.value > 0.99
    assert telco.up_to_naming is None
    assert telco.granted.known_records == 50
    assert telco.rows == 350


def test_two_components_of_three_columns_tell_some_and_not_all(one_shot):
    (shop,) = (f for f in audit(one_shot, [PassiveRidge()], nulls=5).attacks if f.owner == "shop")
    assert shop.verdict == "leaks"
    attempt = attempt_on(one_shot, PassiveRidge(), "bank")
    guess = attempt.attack.guess(attempt.view(one_shot))
    truth = centred(one_shot.simulation.tables["shop"])[0][guess.rows]
    relative = ((guess.values - truth) ** 2).sum() / ((truth - truth.mean(axis=0)) ** 2).sum()
    # The best two of three directions of equal variance leave a third.
    assert 0.25 < relative < 0.45


def test_the_label_party_of_a_split_network_reads_every_line(split):
    found = {(f.attacker, f.owner, f.verdict) for f in audit(split, [PassiveRidge()], nulls=3).attacks}
    assert found == {("bank", "shop", "leaks"), ("bank", "telco", "leaks")}


def test_who_received_no_embeddings_is_told_so(split):
    untested = audit(split, [PassiveRidge()], nulls=1).untested
    assert "PassiveRidge by shop about telco: it received no embeddings from telco" in untested
    assert "PassiveRidge by telco about bank: it received no embeddings from bank" in untested
    assert not any("bank about shop" in line for line in untested)


def test_what_the_attackers_own_columns_tell_is_no_leak():
    """The bank's own column is the shop's only one."""
    data = tables(shared=1.0)
    data["shop"] = data["shop"].select(["s0"])
    model = OneShotClassifier(leak_budget={"shop": 1.0, "telco": 1.0}, components=1, epochs=1)
    (shop,) = (
        f for f in audit(simulate(model.fit, data, roles=ROLES), [PassiveRidge()], nulls=3).attacks if f.owner == "shop"
    )
    assert shop.plain.score.value > 0.99
    assert shop.plain.alone.value > 0.99
    assert shop.verdict == "no more than alone"


def test_in_null_runs_embeddings_of_other_rows_tell_nothing(one_shot):
    for finding in audit(one_shot, [PassiveRidge()], nulls=5).attacks:
        assert max(finding.plain.null) < 0.1


def test_the_report_says_which_column_and_in_which_measure(one_shot):
    report = audit(one_shot, [PassiveRidge()], nulls=3)
    assert headline(report).endswith("features can be inferred by bank")
    telco = next(q for q in questions(report) if (q.attacker, q.owner) == ("bank", "telco"))
    assert "PassiveRidge rebuilds the most exposed of telco's columns with an R² of" in telco.sentence
    assert "A column's mean reaches 0.000" in telco.sentence
    assert "The worst column is 't" in telco.findings[0].summary
    assert knowledge(telco.findings[0]) == "the messages split/embedding and 50 known records"


def test_text_and_missing_values_are_rebuilt_too():
    data = tables()
    random = np.random.default_rng(1)
    job = random.choice(["nurse", "cook", "judge"], size=400)
    income = np.where(random.random(400) < 0.1, np.nan, random.normal(size=400))
    data["shop"] = Table.of({"job": job, "income": income}, ids=None, owner="shop")
    run = simulate(SplitClassifier(epochs=1, n_iter_no_change=None).fit, data, roles=ROLES)
    (finding,) = (f for f in audit(run, [PassiveRidge()], nulls=3).attacks if f.owner == "shop")
    assert finding.verdict == "leaks"


def test_a_feature_party_finds_alone_what_its_embeddings_tell(one_shot):
    own = {"plan": one_shot.plan, "table": one_shot.simulation.tables["telco"], "ledger": one_shot.ledgers["telco"]}
    report = audit_own_side(one_shot.transcripts["telco"], [PassiveRidge()], **own)
    (finding,) = report.attacks
    assert (finding.attacker, finding.owner, finding.verdict) == ("bank", "telco", "leaks")
    assert finding.plain.alone is None
    assert "what bank could do alone: it needs bank's own columns" in report.untested


def test_too_few_rows_to_tell_are_a_reason(split):
    small = {name: table.take(np.arange(40)) for name, table in split.simulation.tables.items()}
    run = simulate(SplitClassifier(epochs=1, n_iter_no_change=None).fit, small, roles=ROLES)
    untested = audit(run, [PassiveRidge()], nulls=1).untested
    assert any("it must be told 50 records, and only" in line for line in untested)
