"""A dishonest party changes the numbers in gradients, and nothing else that anybody could see."""

import json
import subprocess
import sys

import numpy as np
import pytest

from colonnade import audit
from colonnade.attacks import ActiveGenerative, ActiveInversion, FeatureHijacking, Grant, InformedRidge
from colonnade.attacks.columns.generation import _Sample
from colonnade.attacks.columns.tampering import rebuilt
from colonnade.auditing.attempt import name_of
from colonnade.auditing.settings import Simulated
from colonnade.models.networks.messages import Gradient
from colonnade.models.networks.server import UShapeClassifier
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.storage import read_tree, write_tree
from colonnade.tables.encode import centred
from colonnade.tables.table import Table
from colonnade.testing import attempt_on
from colonnade.testing.ports import free_port

ROLES = Roles(label="bank", features=("shop", "telco"))
ACTIVE = [
    ActiveInversion(),
    ActiveInversion(fill="zero", read_out="network"),
    ActiveInversion(matched=True),
    ActiveGenerative(),
    ActiveGenerative(conditioned=False, with_labels=False),
    ActiveGenerative(anchor=1.0),
    FeatureHijacking(),
]
MODEL = SplitClassifier(epochs=2, batch_size=32, embedding=4, n_iter_no_change=None)


def tables(n=160):
    random = np.random.default_rng(0)
    shop, telco, own = random.normal(size=(n, 3)), random.normal(size=(n, 2)), random.normal(size=n)
    labels = (own + shop[:, 1] + telco[:, 0] > 0).astype(int)
    return {
        "bank": Table.of({"own": own, "y": labels}, ids=None, labels="y", owner="bank"),
        "shop": Table.of({f"s{i}": shop[:, i] for i in range(3)}, ids=None, owner="shop"),
        "telco": Table.of({f"t{i}": telco[:, i] for i in range(2)}, ids=None, owner="telco"),
    }


@pytest.fixture(scope="module")
def honest():
    return simulate(MODEL.fit, tables(), roles=ROLES, seed=1, keep="all")


def attacked(attack, run, known=None, attacker="bank"):
    """The same run with a dishonest party, which knows some of the shop's records."""
    attempt = attempt_on(run, attack, attacker)
    grant = attempt.grant
    if known is not None:
        values, columns = centred(run.simulation.tables["shop"])
        grant = Grant(0, np.asarray(known), owner="shop", columns=columns, records=values[known])
    return run.again(instead={attacker: lambda party, honest: attack.tampered(party, honest, grant)})


def gradients(run, peer="shop"):
    return [(m.rows, m.message.values) for m in run.transcripts[peer].messages(Gradient, sent=False)]


def outside(run, party):
    """What a party could see of its messages without reading the numbers in them."""
    seen = []
    for entry in run.transcripts[party].entries:
        seen.append((entry.sent, entry.peer, entry.kind, entry.size, entry.section))
    for recorded in run.transcripts[party].messages(Gradient):
        values = recorded.message.values
        seen.append((recorded.sent, values.shape, values.dtype, recorded.message.step, recorded.rows.tolist()))
    return seen


@pytest.mark.parametrize("attack", ACTIVE, ids=name_of)
def test_kinds_shapes_types_and_counts_of_messages_stay_as_they_are(attack, honest):
    run = attacked(attack, honest)
    for party in ("shop", "telco"):
        assert outside(run, party) == outside(honest, party)
    assert any(not np.array_equal(a, b) for (_, a), (_, b) in zip(gradients(run), gradients(honest), strict=True))
    assert all(np.isfinite(values).all() for _, values in gradients(run))


def test_rows_that_are_not_known_get_zero_as_published_or_the_honest_gradient(honest):
    known = np.arange(0, 160, 8)
    zero, filled = (attacked(ActiveInversion(fill=fill), honest, known) for fill in ("zero", "honest"))
    for rows, values in gradients(zero):
        assert (np.abs(values).max(axis=1) > 0).tolist() == np.isin(rows, known).tolist()
    # Before the first step, nothing that the gradients depend on differs.
    (rows, first), (_, told) = gradients(filled)[0], gradients(honest)[0]
    assert np.array_equal(first[~np.isin(rows, known)], told[~np.isin(rows, known)])
    assert not np.isclose(first, told)[np.isin(rows, known)].all()


def test_a_batch_without_a_known_record_is_honest_where_rows_are_filled_and_zero_where_they_are_not(honest):
    rows, told = gradients(honest)[0]
    known = np.setdiff1d(np.arange(160), rows)[:4]
    for fill, wanted in (("honest", told), ("zero", np.zeros_like(told))):
        _, sent = gradients(attacked(ActiveInversion(fill=fill), honest, known))[0]
        assert np.array_equal(sent, wanted)


def test_matched_gradients_of_known_rows_are_as_long_as_honest_ones(honest):
    known = np.arange(0, 160, 8)
    (rows, sent), (_, told) = gradients(attacked(ActiveInversion(matched=True), honest, known))[0], gradients(honest)[0]
    lengths = np.linalg.norm(sent[np.isin(rows, known)], axis=1)
    assert lengths.mean() == pytest.approx(np.linalg.norm(told, axis=1).mean(), rel=1e-4)


def test_hijacking_leaves_other_parties_alone(honest):
    run = attacked(FeatureHijacking(), honest)
    assert np.array_equal(gradients(run, "telco")[0][1], gradients(honest, "telco")[0][1])
    assert not np.array_equal(gradients(run, "shop")[0][1], gradients(honest, "shop")[0][1])


def test_rows_that_were_held_out_are_rebuilt_too():
    model = MODEL.clone().set_params(n_iter_no_change=2, validation_fraction=0.2)
    run = simulate(model.fit, tables(), roles=ROLES, seed=1)
    (finding,) = (f for f in audit(run, [ActiveInversion()], nulls=1).attacks if f.owner == "shop")
    assert finding.rows == 110
    assert finding.is_active


def test_a_server_that_is_given_no_labels_can_tamper_too():
    served = Roles(label="bank", features=("shop", "telco"), server="cloud")
    model = UShapeClassifier(epochs=1, batch_size=32, embedding=4, n_iter_no_change=None)
    run = simulate(model.fit, tables(), roles=served, seed=1, keep="all")
    assert outside(attacked(ActiveInversion(), run, attacker="cloud"), "shop") == outside(run, "shop")


def test_who_sends_no_gradients_cannot_tamper(honest):
    untested = audit(honest, [ActiveInversion()], nulls=1).untested
    assert "ActiveInversion by shop about telco: it received no embeddings from telco" in untested


@pytest.mark.slow
def test_tampering_with_the_network_makes_columns_easier_to_rebuild():
    """With few steps and many known records, embeddings that were trained for it tell more."""
    data = tables(300)
    model = MODEL.clone().set_params(epochs=30, embedding=2)
    run = simulate(model.fit, data, roles=ROLES, seed=1)
    setting = Simulated(run)
    scores = {}
    for attack in (InformedRidge(), ActiveInversion(fill="zero")):
        attempt = attempt_on(run, attack, "bank")
        truth, guess = setting.truth(attempt), attempt.guess(run.simulation, lambda: run)
        scores[attempt.name] = np.mean(list(truth.rebuilt(guess).values()))
    passive, active = scores.values()
    assert active > passive + 0.02


def test_levels_of_a_column_of_text_are_generated_as_probabilities():
    columns = ("job", "job", "job", "age", "curve", "curve")
    levels = np.eye(3)[np.arange(12) % 3]
    curve = np.random.default_rng(0).normal(size=(12, 2))
    records = np.concatenate([levels - 1 / 3, np.arange(12)[:, None], curve], axis=1)
    sample = _Sample(Grant(0, owner="shop", columns=columns, prior={"shop": records}), "bank", 0)
    assert [block.tolist() for block in sample.blocks] == [[0, 1, 2]]
    made = sample.bounded(sample.records)
    np.testing.assert_allclose(made[:, :3].sum(dim=1), 1, rtol=1e-6)
    restored = sample.ranges.restored(sample.records)
    np.testing.assert_allclose(restored, records, atol=1e-5)


def test_the_networks_own_read_out_and_the_ridge_are_two_guesses_about_one_run(honest):
    grant = attempt_on(honest, ActiveInversion(), "bank").grant
    guesses = [
        honest.again(
            instead={
                "bank": lambda party, protocol, how=how: ActiveInversion(read_out=how).play(party, protocol, grant)
            }
        ).results["bank"]
        for how in ("network", "ridge")
    ]
    hook = attacked(ActiveInversion(), honest).results["bank"]
    assert np.array_equal(rebuilt(hook, grant).values, guesses[0].values)
    assert not np.array_equal(guesses[0].values, guesses[1].values)


PARTY = """
import json, sys
from pathlib import Path
from colonnade import Roles, Table, join
from colonnade.attacks import ActiveInversion, Grant
from colonnade.models import SplitClassifier
from colonnade.roles import PublicPlan
from colonnade.runtime.session import connect
from colonnade.storage import read_tree, write_tree
from colonnade.wire.grpc.transport import GrpcTransport

name, addresses, folder = json.loads(sys.argv[1])
plan = PublicPlan(Roles(label="bank", features=("shop",)), "SplitClassifier.fit", {}, 5)
table = Table.load(Path(folder, f"{name}.arrow"))
party = connect(plan, name, table, transport=GrpcTransport(addresses, credentials=None), directory=Path(folder, name))
fit = SplitClassifier(epochs=2, batch_size=32, embedding=4, n_iter_no_change=None).fit
if name == "shop":
    join(fit, party)
else:
    grant = Grant(**read_tree(Path(folder, "grant")))
    guess = join(lambda party: ActiveInversion().play(party, fit, grant), party)
    write_tree(Path(folder, "guess"), {"rows": guess.rows, "values": guess.values})
"""


@pytest.mark.slow
@pytest.mark.network
def test_a_party_is_attacked_over_the_network_by_another_process(tmp_path):
    data = {name: table for name, table in tables().items() if name != "telco"}
    for name, table in data.items():
        table.save(tmp_path / f"{name}.arrow")
    values, columns = centred(data["shop"])
    rows = np.arange(40)
    write_tree(
        tmp_path / "grant",
        {"n_classes": 0, "rows": rows, "owner": "shop", "columns": list(columns), "records": values[rows]},
    )
    addresses = {name: f"127.0.0.1:{free_port()}" for name in data}
    processes = [
        subprocess.Popen([sys.executable, "-c", PARTY, json.dumps([name, addresses, str(tmp_path)])]) for name in data
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    guess = read_tree(tmp_path / "guess")
    assert guess["rows"].tolist() == list(range(160))
    error = ((guess["values"] - values) ** 2)[40:].mean() / values[40:].var()
    assert error < 0.8
