"""The contract of attacks: one guess, made from the view alone."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.attacks.base import ActiveAttack, AnyAttack, Attack, Guess, View
from colonnade.auditing.attempt import Attempt
from colonnade.auditing.null import honesty_check
from colonnade.auditing.settings import Simulated
from colonnade.auditing.subjects.by_secret import SUBJECTS
from colonnade.errors import PlanError, UndeclaredAccess
from colonnade.runtime.simulate import Run
from colonnade.storage import pack
from colonnade.testing.assertions import must, must_refuse
from colonnade.wire.message import Message

SEEDS = 20
LEAST_P = 0.001


def check_attack(attack: AnyAttack, run: Run[Any], *, attacker: str | None = None) -> None:
    """Check that an attack is a function of its view alone, and at chance where there is nothing to find.

    A fresh interpreter repeats the attack with its saved view alone, which shows whether the attack looks at the truth
    elsewhere. An active attack cannot be repeated so: one that reads the real labels in this process is not found out.

    Args:
        attack: An attack of a class that other processes can import. So must be the class of the attacker's model,
            where the attack needs one; it need not be in the catalogue.
        run: A run that it applies to.
        attacker: Who makes it; the first party that can if None.
    """
    attempt = attempt_on(run, attack, attacker)
    for check in ATTACK_CHECKS:
        check(attempt, run)


def attempt_on(run: Run[Any], attack: AnyAttack, attacker: str | None = None, *, seed: int = 0) -> Attempt:
    """An attempt by a party, or the first that can, with what the attack needs granted; all follows from the seed."""
    setting, subject = Simulated(run, seed=seed), SUBJECTS[attack.about]
    reasons = []
    for owner in setting.owners(subject, attack):
        assert owner is not None, "a run to check an attack on has somebody to attack"
        for name in setting.attackers(owner) if attacker is None else (attacker,):
            attempt = setting.attempt(subject, attack, name, owner)
            if isinstance(attempt, Attempt):
                return attempt
            reasons.append(attempt)
    raise AssertionError(f"{type(attack).__name__} should apply to the run it is checked on, but {reasons[0]}.")


def one_run_gives_one_guess(attempt: Attempt, run: Run[Any]) -> None:
    """An attack has no memory, and no randomness but what it is given."""
    once, twice = (_packed(attempt.guess(run.simulation, lambda: run)) for _ in range(2))
    must(once == twice, f"{attempt.name} should make the same guess about the same run.")


def what_is_not_declared_cannot_be_read(attempt: Attempt, run: Run[Any]) -> None:
    """The view holds what the attack declared and refuses everything else."""
    if isinstance(attempt.attack, ActiveAttack):
        return
    needs, view = attempt.attack.needs, attempt.view(run)
    seen = {entry.kind for entry in run.transcripts[attempt.attacker].entries}
    for kind in sorted(seen - {message.kind for message in needs.messages}):
        for read in (view.messages, view.row_means):
            must_refuse(partial(read, Message.kinds[kind]), UndeclaredAccess, kind, what=f"Reading {kind} undeclared")
    if not needs.own_features:
        must_refuse(lambda: view.own.table, UndeclaredAccess, "table", what="Reading the attacker's table undeclared")
    if not needs.own_model:
        must_refuse(lambda: view.own.model, UndeclaredAccess, "model", what="Reading the attacker's model undeclared")
    if not needs.forest:
        must_refuse(lambda: view.own.forest, UndeclaredAccess, "forest", what="Reading a forest undeclared")
    for need, told in (("known_labels", view.grant.labels), ("known_records", view.grant.records)):
        must(bool(getattr(needs, need)) or not len(told), f"An attack that declares no {need} should be told none.")


def a_fresh_interpreter_makes_the_same_guess(attempt: Attempt, run: Run[Any]) -> None:
    """The saved view is all that the attack needs: in another process, it leads to the same guess."""
    if isinstance(attempt.attack, ActiveAttack):
        return
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        attempt.view(run).save(directory / "view")
        model = type(run.results[attempt.attacker])
        recipe = {**_recipe(attempt.attack), "model": [model.__module__, model.__qualname__]}
        (directory / "attack.json").write_text(json.dumps(recipe))
        command = [sys.executable, "-c", "from colonnade.testing.attack import guess_here; guess_here()"]
        # The code may lie anywhere on this process's path; of the data there is only the folder.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path)}
        ended = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        must(ended.returncode == 0, f"{attempt.name} should run in a fresh interpreter, but failed:\n{ended.stderr}")
        elsewhere = (directory / "guess.safetensors").read_bytes()
    here = _packed(attempt.attack.guess(attempt.view(run)))
    must(elsewhere == here, f"{attempt.name} should make the identical guess where it has only the saved view.")


def guess_here() -> None:
    """Attack the view that lies in the working directory, and leave the guess there."""
    recipe = json.loads(Path("attack.json").read_text())
    attack: Attack = getattr(import_module(recipe["module"]), recipe["class"])(**recipe["arguments"])
    module, model = recipe["model"]
    # By its module, not from the catalogue, in which a user's own model is not.
    view = View.load(Path("view"), attack.needs, lambda path: getattr(import_module(module), model).load(path))
    Path("guess.safetensors").write_bytes(_packed(attack.guess(view)))


def a_guess_is_about_rows_that_exist_and_were_not_granted(attempt: Attempt, run: Run[Any]) -> None:
    """Each row at most once, usable values, and no score for what was told."""
    guess = attempt.guess(run.simulation, lambda: run)
    try:
        scored = Simulated(run).truth(attempt).scorable(guess, attack=attempt.name)
    except PlanError as error:
        raise AssertionError(f"A guess should be fit to be scored. {error}") from error
    must(len(scored.rows) > 0, f"{attempt.name} should guess about some rows that it was not told.")
    told = np.isin(scored.rows, attempt.grant.rows).any()
    must(not told, f"{attempt.name} should not be scored on rows that it was told.")


def it_is_at_chance_where_there_is_nothing_to_find(attempt: Attempt, run: Run[Any]) -> None:
    """Granted and scored from permutations of the truth that nothing else depends on, it knows nothing."""
    p = honesty_check(run, attempt.attack, attempt.attacker, owner=attempt.grant.owner, seeds=SEEDS)
    must(
        p >= LEAST_P,
        f"Granted and scored from {SEEDS} independent permutations of the truth, {attempt.name} should be at "
        f"chance, but what it scores would happen so with probability {p:.1g}.",
    )


def _packed(guess: Guess) -> bytes:
    return pack(dict(vars(guess)))


def _recipe(attack: Attack) -> dict[str, Any]:
    """How to make the attack again: its class, and its constructor's arguments as it stores them."""
    arguments = {name: getattr(attack, name) for name in inspect.signature(type(attack)).parameters}
    return {"module": type(attack).__module__, "class": type(attack).__qualname__, "arguments": arguments}


ATTACK_CHECKS: tuple[Callable[[Attempt, Run[Any]], None], ...] = (
    one_run_gives_one_guess,
    what_is_not_declared_cannot_be_read,
    a_fresh_interpreter_makes_the_same_guess,
    a_guess_is_about_rows_that_exist_and_were_not_granted,
    it_is_at_chance_where_there_is_nothing_to_find,
)
