"""Everything in the catalogue, and every transport, keeps its contract."""

import tempfile
import threading
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from colonnade.catalogue import ATTACKS, DEFENCES, MODELS
from colonnade.curves import BSplines
from colonnade.data import load
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.testing import ATTACK_CHECKS, DEFENCE_CHECKS, ESTIMATOR_CHECKS, TRANSPORT_CHECKS, Setup, attempt_on
from colonnade.testing.ports import free_port
from colonnade.wire.certs import authority as certs
from colonnade.wire.certs.credentials import Credentials
from colonnade.wire.epoch import NAME_BYTES, HeldCheckpoint
from colonnade.wire.grpc.patience import Patience
from colonnade.wire.grpc.transport import GrpcTransport
from colonnade.wire.transport import MemoryNetwork


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

# Small enough to train in a moment, and with every message that the model knows.
BRIEF = {"epochs": 3, "batch_size": 32, "embedding": 4, "patience": 2}
SMALL = {
    "linear-regression": {"max_iter": 2, "batch_size": 180},
    "logistic-regression": {"max_iter": 2, "batch_size": 180},
    "poisson-regression": {"max_iter": 2, "batch_size": 180},
    "functional-boost": {
        "protection": {"clip": 3.0, "noise": 0.2},
        "inputs": "partial",
        "correction": 1.0,
        "stopping": {"max_steps": 4, "min_steps": 2},
    },
    "functional-moments": {"clip_x": 3.0, "clip_y": 3.0, "epsilon": 1e6},
    "functional-regression": {"protection": {"clip": 3.0, "noise": 0.2}, "inputs": "partial"},
    "label-dp-shadow": {**BRIEF, "epsilon": 1.0},
    "one-shot": {**BRIEF, "leak_budget": {"shop": 1.0, "telco": 1.0}},
    "one-shot-regressor": {**BRIEF, "leak_budget": {"shop": 1.0, "telco": 1.0}},
    "served-classifier": {**BRIEF, "tracks": {"name": "shadow-proxy", "by": "random"}},
    "served-regressor": BRIEF,
    "split-classifier": BRIEF,
    "split-regressor": {**BRIEF, "tracks": {"name": "shadow-top", "by": "random"}},
    "u-shape-classifier": {**BRIEF, "tracks": {"name": "shadow-proxy", "by": "random"}},
    "u-shape-regressor": BRIEF,
}
REGRESSIONS = ("linear-regression", "logistic-regression", "poisson-regression")

# What a model must be like for an attack to apply to it, where the small one is not.
VULNERABLE = {
    "direct-label": {"fusion": "sum", "top": None},
}

THREE = Roles(label="bank", features=("shop", "telco"))
JUDGED = replace(THREE, arbiter="judge")
SERVED = replace(THREE, server="cloud")
OF_CURVES = ("fit-membership", "release-membership")
OF_REGRESSIONS = ("coefficient-score", "residue")
KILLING = "a_killed_run_resumes_to_the_same_end"
LONG = (
    "a_fresh_interpreter_makes_the_same_guess",
    "a_killed_run_resumes_with_it",
    "it_composes_with_every_defence_in_any_order",
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
        make, tables, roles = partial(MODELS[model], **SMALL.get(model, {})), customers, THREE
        if model in REGRESSIONS:
            tables, roles = more_customers, JUDGED
        elif model.startswith("functional"):
            tables, roles = curves, JUDGED if model == "functional-moments" else THREE
        elif "server" in MODELS[model].hooks:
            roles = SERVED
        return Setup(make, tables, roles)

    return setup_for


@pytest.fixture(scope="module")
def runs(customers, more_customers, setups):
    """The run that an attack is checked on; attacks with the same wishes share it."""
    made = {}

    def run_for(attack):
        if attack in OF_REGRESSIONS:
            if "regression" not in made:
                model = MODELS["logistic-regression"](**SMALL["logistic-regression"])
                made["regression"] = simulate(model.fit, more_customers, roles=JUDGED, seed=1)
            return made["regression"]
        if attack in OF_CURVES:
            if "curves" not in made:
                made["curves"] = setups("functional-boost").fit(seed=1)
            return made["curves"]
        wishes = VULNERABLE.get(attack, {})
        key = str(wishes)
        if key not in made:
            model = SplitClassifier(**{**SMALL["split-classifier"], **wishes})
            made[key] = simulate(model.fit, customers, roles=THREE, seed=1)
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


@pytest.mark.parametrize("check", named(ATTACK_CHECKS))
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_keeps_its_contract(attack, check, runs):
    run = runs(attack)
    check(attempt_on(run, ATTACKS[attack]()), run)


@pytest.mark.parametrize("check", named(DEFENCE_CHECKS))
@pytest.mark.parametrize("defence", DEFENCES)
def test_a_defence_keeps_its_contract(defence, check, customers):
    setup = Setup(partial(SplitClassifier, **SMALL["split-classifier"]), customers, THREE)
    held = DEFENCES[defence]()
    check(held, setup.holders(held)[0], setup)
