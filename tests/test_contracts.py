"""Everything in the catalogue, and every transport, keeps its contract."""

import tempfile
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from colonnade.catalogue import ATTACKS, DEFENCES, MODELS
from colonnade.curves import BSplines
from colonnade.data import load
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.testing import ATTACK_CHECKS, DEFENCE_CHECKS, ESTIMATOR_CHECKS, TRANSPORT_CHECKS, Setup, attempt_on
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
KILLING = "a_killed_run_resumes_to_the_same_end"
LONG = (
    "a_fresh_interpreter_makes_the_same_guess",
    "a_killed_run_resumes_with_it",
    "it_composes_with_every_defence_in_any_order",
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
            made[key] = replace(setup, make=lambda: setup.make().set_params(**example.parameters)).fit(seed=1)
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
@pytest.mark.network
@pytest.mark.parametrize("model", MODELS)
def test_a_peer_that_restarts_with_other_values_learns_nothing_from_parties_that_live_on(model, setups):
    setup = setups(model)
    # The label party of every other model, a feature party of the others; in memory both restart for every model.
    place = sorted(MODELS).index(model) % 2
    restarted_peers_learn_nothing(setup, carrier="grpc", peers=setup.roles.holders[place : place + 1], seeds=(1,))


@pytest.mark.parametrize("check", named(ATTACK_CHECKS))
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_keeps_its_contract(attack, check, runs):
    run = runs(attack)
    check(attempt_on(run, ATTACKS[attack].example()), run)


@pytest.mark.parametrize("check", named(DEFENCE_CHECKS))
@pytest.mark.parametrize("defence", DEFENCES)
def test_a_defence_keeps_its_contract(defence, check, customers):
    setup = Setup(SplitClassifier.example, customers, THREE)
    held = DEFENCES[defence]()
    check(held, setup.holders(held)[0], setup)
