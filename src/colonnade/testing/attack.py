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

from colonnade.attacks.base import ActiveAttack, Attack, Guess
from colonnade.attacks.view import View
from colonnade.auditing.attempt import Attempt, draw_grant, training_rows
from colonnade.auditing.membership import attempt_with_candidates, membership_honesty
from colonnade.auditing.null import class_numbers, honesty_check
from colonnade.auditing.score import Truth, scorable
from colonnade.catalogue import MODELS
from colonnade.errors import PlanError, UndeclaredAccess
from colonnade.runtime.simulate import Run
from colonnade.storage import pack
from colonnade.testing.assertions import must, must_refuse
from colonnade.wire.message import Message

SEEDS = 20
LEAST_P = 0.001


def check_attack(attack: Attack | ActiveAttack, run: Run[Any], *, attacker: str | None = None) -> None:
    """Check that an attack is a function of its view alone, and at chance where there is nothing to find.

    Whether it looks at the truth behind its view's back is checked by repeating it in a fresh interpreter, and so for
    passive attacks only: an active attack that reads the real labels in this process is not found out.

    Args:
        attack: An attack of a class that other processes can import.
        run: A run that it applies to.
        attacker: Who makes it; if None the first feature party, or the label party if it is told candidates.
    """
    attempt = attempt_on(run, attack, attacker)
    for check in ATTACK_CHECKS:
        check(attempt, run)


def attempt_on(run: Run[Any], attack: Attack | ActiveAttack, attacker: str | None = None, *, seed: int = 0) -> Attempt:
    """An attempt at a run, with as many true labels as the attack needs.

    Args:
        run: The run to attack.
        attack: The attack.
        attacker: Who makes it; if None the first feature party, or the label party if it is told candidates.
        seed: Which labels are told, and the attack's own randomness, follow from it.
    """
    if attack.needs.candidates:
        return attempt_with_candidates(run, attack, attacker, seed=seed)
    attacker = attacker or run.plan.roles.features[0]
    labels, n_classes = class_numbers(run.simulation)
    rows = training_rows(run.transcripts[attacker], len(labels))
    order = np.random.default_rng(seed).permutation(len(labels))
    grant = draw_grant(labels, n_classes, attack.needs.known_labels, rows, order)
    if grant is None:
        raise AssertionError("Every class should have as many rows as the attack must be told. Choose another run.")
    attempt = Attempt(attack, attacker, grant, seed)
    reason = attempt.unfit(run)
    must(reason is None, f"{attempt.name} should apply to the run it is checked on, but {reason}.")
    return attempt


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
        must_refuse(lambda: view.own.table, UndeclaredAccess, "table", what="Reading the own table undeclared")
    if not needs.own_model:
        must_refuse(lambda: view.own.model, UndeclaredAccess, "model", what="Reading the own model undeclared")
    if not needs.known_labels:
        must(not len(view.grant.labels), "An attack that declares no known labels should be told none.")


def a_fresh_interpreter_makes_the_same_guess(attempt: Attempt, run: Run[Any]) -> None:
    """The saved view is all that the attack needs: in another process, it leads to the same guess."""
    if isinstance(attempt.attack, ActiveAttack):
        return
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        attempt.view(run).save(directory / "view")
        (directory / "attack.json").write_text(json.dumps(_recipe(attempt.attack)))
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
    estimators = {estimator.__name__: estimator for estimator in MODELS.values()}
    view = View.load(Path("view"), attack, lambda name, path: estimators[name].load(path))
    Path("guess.safetensors").write_bytes(_packed(attack.guess(view)))


def a_guess_is_about_rows_that_exist_and_were_not_granted(attempt: Attempt, run: Run[Any]) -> None:
    """Each row at most once, usable values, and no score for what was told."""
    guess = attempt.guess(run.simulation, lambda: run)
    try:
        scored = scorable(guess, _truth(attempt, run), attack=attempt.name)
    except PlanError as error:
        raise AssertionError(f"A guess should be fit to be scored. {error}") from error
    must(len(scored.rows) > 0, f"{attempt.name} should guess about some rows that it was not told.")
    told = np.isin(scored.rows, attempt.grant.rows).any()
    must(not told, f"{attempt.name} should not be scored on rows that it was told.")


def it_is_at_chance_where_there_is_nothing_to_find(attempt: Attempt, run: Run[Any]) -> None:
    """Granted and scored from permutations of the labels that nothing else depends on, it knows nothing."""
    if attempt.attack.needs.candidates:
        p = membership_honesty(run, attempt, seeds=SEEDS)
    else:
        p = honesty_check(run, attempt.attack, attempt.attacker, seeds=SEEDS)
    must(
        p >= LEAST_P,
        f"Granted and scored from {SEEDS} independent permutations of the truth, {attempt.name} should be at "
        f"chance, but what it scores would happen so with probability {p:.1g}.",
    )


def _truth(attempt: Attempt, run: Run[Any]) -> Truth:
    """What a guess is scored against: labels of rows, or that all candidates were there."""
    told = list(attempt.grant.candidates.values())
    labels = np.ones(len(told[0]), np.int64) if told else class_numbers(run.simulation)[0]
    return Truth.of(labels, attempt.grant)


def _packed(guess: Guess) -> bytes:
    return pack(dict(vars(guess)))


def _recipe(attack: Attack) -> dict[str, Any]:
    """How to make the attack anew: its class, and its constructor's arguments as it stores them."""
    arguments = {name: getattr(attack, name) for name in inspect.signature(type(attack)).parameters}
    return {"module": type(attack).__module__, "class": type(attack).__qualname__, "arguments": arguments}


ATTACK_CHECKS: tuple[Callable[[Attempt, Run[Any]], None], ...] = (
    one_run_gives_one_guess,
    what_is_not_declared_cannot_be_read,
    a_fresh_interpreter_makes_the_same_guess,
    a_guess_is_about_rows_that_exist_and_were_not_granted,
    it_is_at_chance_where_there_is_nothing_to_find,
)
