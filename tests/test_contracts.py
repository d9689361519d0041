"""Everything in the catalogue, and every transport, keeps its contract."""

import re
import tempfile
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from colonnade.auditing.attempt import Attempt
from colonnade.auditing.settings import Simulated
from colonnade.auditing.subjects.by_secret import SUBJECTS
from colonnade.catalogue import ATTACKS, DEFENCES, MODELS, THOROUGH
from colonnade.curves import BSplines
from colonnade.data import load
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.models.evaluation import Evaluated, HeldOut, evaluate
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table
from colonnade.testing import ATTACK_CHECKS, DEFENCE_CHECKS, ESTIMATOR_CHECKS, TRANSPORT_CHECKS, Setup, attempt_on
from colonnade.testing.defence import composes, it_composes_with_every_defence_in_any_order
from colonnade.testing.ports import free_port
from colonnade.testing.restart import restarted_peers_learn_nothing
from colonnade.wire.certs import authority as certs
from colonnade.wire.certs.credentials import Credentials
from colonnade.wire.grpc.link import Patience
from colonnade.wire.grpc.transport import GrpcTransport
from colonnade.wire.memory import MemoryNetwork
from colonnade.wire.transport import NAME_BYTES, HeldCheckpoint


@cache
def credentials():
    with tempfile.TemporaryDirectory() as folder:
        certs.init(folder)
        for name in ("bank", "shop", "telco"):
            certs.issue(folder, name, out=Path(folder, name))
        return {name: Credentials.read(Path(folder, name), name) for name in ("bank", "shop", "telco")}


def over_grpc(sides):
    """Run every side in a thread, on a transport of its own with TLS; the first failure is raised."""
    addresses = {name: f"127.0.0.1:{free_port()}" for name in sides}
    patience = Patience(start=60, rejoin=60, message=60)
    trusted, results, failures = credentials(), {}, []

    def live(name):
        transport = GrpcTransport(addresses, credentials=trusted[name], patience=patience)
        transport.bind(name, tuple(addresses), {})
        try:
            transport.open()
            transport.meet(HeldCheckpoint(0, bytes(NAME_BYTES)))
            results[name] = sides[name](transport)
            transport.finish()
        except Exception as error:
            failures.append(error)
            transport.fail(error)
        finally:
            transport.close()

    threads = [threading.Thread(target=live, args=(name,), daemon=True) for name in sides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a side did not come to its end"
    if failures:
        raise failures[0]
    return results


TRANSPORTS = {
    "memory": lambda sides: MemoryNetwork(list(sides)).run(sides),
    "grpc": over_grpc,
}

THREE = Roles(label="bank", features=("shop", "telco"))
JUDGED = replace(THREE, arbiter="judge")
SERVED = replace(THREE, server="cloud")
PAGE = Path(__file__).parents[1] / "docs" / "attacks-on-columns.md"
COLUMN_ATTACKS = {
    model: re.findall(r"`([\w-]+)`", cells)
    for models, cells in re.findall(r"^\| (`[^|]*`) \|([^|]*)\|[^|]*\|$", PAGE.read_text(), re.MULTILINE)
    for model in re.findall(r"`([\w-]+)`", models)
}
KILLING = "a_killed_run_resumes_to_the_same_end"
LONG = (
    "a_fresh_interpreter_makes_the_same_guess",
    "a_killed_run_resumes_with_it",
    "a_peer_that_restarts_with_other_values_learns_nothing",
    KILLING,
)


def named(checks):
    return [
        pytest.param(check, id=check.__name__, marks=[pytest.mark.slow] if check.__name__ in LONG else [])
        for check in checks
    ]


@pytest.fixture(scope="module")
def customers():
    return load("bank-shop-telco", rows=150).split()


@pytest.fixture(scope="module")
def more_customers():
    """Rows for batches that regressions do not refuse, and columns for gradients that are quickly encrypted."""
    columns = {
        "bank": ["age", "income", "balance"],
        "shop": ["orders", "spend", "payment"],
        "telco": ["minutes", "data_gb"],
    }
    tables = load("bank-shop-telco", rows=1000).split()
    return {name: table.select(columns[name]) for name, table in tables.items()}


@pytest.fixture(scope="module")
def setups(customers, more_customers):
    """For each model, rows that it can learn from, and who takes part."""
    drawn = FunctionalSetting(n=120, p=4, active=(1, 2), basis=BSplines((0.0, 1.0), 6)).draw(1)[0].tables(2)
    curves = dict(zip(THREE.parties, drawn.values(), strict=True))

    def setup_for(model):
        make, family = MODELS[model].example, MODELS[model].__module__.split(".")[2]
        tables, roles = customers, THREE
        if family == "glm":
            tables, roles = more_customers, JUDGED
        elif family == "functional":
            tables, roles = curves, JUDGED if model == "functional-moments" else THREE
        elif "server" in MODELS[model].hooks:
            roles = SERVED
        return Setup(make, tables, roles)

    return setup_for


@pytest.fixture(scope="module")
def runs(setups):
    """The run that an attack declares; attacks that declare the same one share it."""
    made = {}

    def run_for(attack):
        example = ATTACKS[attack].example_run
        key = str(example)
        if key not in made:
            setup = setups(example.model)
            setup = replace(setup, make=lambda make=setup.make: make().set_params(**example.parameters))
            made[key] = setup.both(seed=1)[1] if example.predicts else setup.fit(seed=1)
        return made[key]

    return run_for


@pytest.mark.parametrize("check", named(TRANSPORT_CHECKS))
@pytest.mark.parametrize(
    "transport", [pytest.param(name, marks=[pytest.mark.network] if name != "memory" else []) for name in TRANSPORTS]
)
def test_a_transport_keeps_its_contract(transport, check):
    check(TRANSPORTS[transport])


@pytest.mark.parametrize("check", named(ESTIMATOR_CHECKS))
@pytest.mark.parametrize("model", MODELS)
def test_a_model_keeps_its_contract(model, check, setups):
    check(setups(model))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_held_out_rows_of_every_model_are_predicted_scored_and_no_part_of_the_training(model, setups):
    setup, kept = setups(model), []
    held_out = HeldOut(share=0.5, seed=2)
    protocol = Evaluated(setup.make(), held_out, lambda share, prediction: kept.append((share, prediction)))
    run = simulate(protocol, setup.tables, roles=setup.roles, seed=1, keep="digests")
    (share, prediction), label = kept[0], setup.roles.label
    train, rest = held_out.split(setup.tables[label])
    assert len(prediction.values) == len(rest)
    quality = evaluate(share, prediction, train, rest)
    assert quality.alone_by
    assert all(figure.difference for name, figure in quality.figures.items() if name != "calibration slope")
    # With other values in the rows that are held out, everything that crosses in training is the same.
    others = {name: exchanged(table, held_out.mask(len(table))) for name, table in setup.tables.items()}
    again = simulate(protocol, others, roles=setup.roles, seed=1, keep="digests")
    for name, transcript in run.transcripts.items():
        assert transcript.digests() == again.transcripts[name].digests()
    assert all(others[name].digest() != table.digest() for name, table in setup.tables.items())


def exchanged(table, mask):
    """A table whose marked rows have each other's values, labels included, and the ids that they had."""
    places = np.arange(len(table))
    places[mask] = places[mask][::-1]
    arrow = table.to_arrow()
    moved = arrow.take(places).set_column(0, table.id_name, arrow.column(0))
    return Table.of(moved, ids=table.id_name, labels=table.label_name, owner=table.owner)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("model", MODELS)
def test_a_peer_that_restarts_with_other_values_learns_nothing_from_parties_that_live_on(model, setups):
    setup = setups(model)
    # The label party of every other model, a feature party of the others; in memory both restart for every model.
    place = sorted(MODELS).index(model) % 2
    restarted_peers_learn_nothing(setup, carrier="grpc", peers=setup.roles.holders[place : place + 1], seeds=(1,))


@pytest.mark.parametrize("check", named(ATTACK_CHECKS))
@pytest.mark.parametrize(
    "attack", [pytest.param(name, marks=[pytest.mark.slow] if name in THOROUGH else []) for name in ATTACKS]
)
def test_an_attack_keeps_its_contract(attack, check, runs):
    run = runs(attack)
    check(attempt_on(run, ATTACKS[attack].example()), run)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_attack_on_columns_that_the_documentation_names_for_a_model_applies_to_it(model, setups):
    parameters = {"keep_record": True} if model.startswith("secureboost") else {}
    setup = setups(model)
    runs = replace(setup, make=lambda: setup.make().set_params(**parameters)).both(seed=1)
    assert COLUMN_ATTACKS[model]
    for name in COLUMN_ATTACKS[model]:
        assert any(applies(ATTACKS[name](), run) for run in runs), f"{name} does not apply to {model}"


def applies(attack, run):
    setting = Simulated(run)
    subject = SUBJECTS[attack.about]
    pairs = [(owner, name) for owner in setting.owners(subject, attack) for name in setting.attackers(owner)]
    attempts = [setting.attempt(subject, attack, name, owner) for owner, name in pairs]
    found = [attempt for attempt in attempts if isinstance(attempt, Attempt)]
    # Whether a dishonest party can play its part is only seen where it does.
    return any(len(attempt.guess(run.simulation, lambda: run).rows) for attempt in found[:1])


def test_the_documentation_names_attacks_on_columns_for_every_model():
    assert COLUMN_ATTACKS.keys() == set(MODELS)
    assert {name for names in COLUMN_ATTACKS.values() for name in names} <= set(ATTACKS)


ALONE = [check for check in DEFENCE_CHECKS if check is not it_composes_with_every_defence_in_any_order]


@pytest.mark.parametrize("check", named(ALONE))
@pytest.mark.parametrize("defence", DEFENCES)
def test_a_defence_keeps_its_contract(defence, check, customers):
    setup = Setup(SplitClassifier.example, customers, THREE)
    held = DEFENCES[defence]()
    check(held, setup.holders(held)[0], setup)


@pytest.mark.slow
@pytest.mark.parametrize("defence", DEFENCES)
def test_a_defence_composes_with_every_defence_in_any_order(defence, customers):
    """As `it_composes_with_every_defence_in_any_order` demands, but each pair is tried in one of two tests only."""
    setup, names = Setup(SplitClassifier.example, customers, THREE), list(DEFENCES)
    held = DEFENCES[defence]()
    holder = setup.holders(held)[0]
    composes(held, holder, held, holder, setup)
    for name, make in DEFENCES.items():
        other = make()
        first, *others = setup.holders(other)
        # The other's own test has both at their first holders, if it comes first.
        for party in others if names.index(name) < names.index(defence) else (first, *others):
            composes(held, holder, other, party, setup)
