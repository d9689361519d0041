"""`python -m experiments.joined`: the joined attacks of docs/results/defences.csv once more, with the rule of today.

A trial of `defences` takes most of its time to repeat the run with permuted labels. Where only the rule of joining has
changed, single attacks and their controls are what they were. Each trial is trained and attacked again without these
repetitions, and the score of the joined attacks is replaced; with it that of `RandomisedPosterior`, which changed with
the rule. A trial in which another single attack scores otherwise than the file says keeps its row: it needs a run of
the whole experiment. *null* and *alone* of what is replaced stay those of before.

The file is written after each trial, so that the command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import inspect
from collections.abc import Mapping
from time import monotonic
from typing import Any

import torch

from colonnade import simulate
from colonnade.attacks.labels import randomised, strongest
from colonnade.auditing.engine import make
from colonnade.auditing.settings import Simulated
from colonnade.catalogue import attacks_of_audit
from colonnade.experiment.compare import JOINED
from colonnade.experiment.sweep import Trial
from colonnade.secret import Secret
from experiments import defences
from experiments.__main__ import RESULTS
from experiments.sets import ROLES, halves
from experiments.tables import read

RULE = "joined.rule"
SINGLES = "joined.singles"
SAME = 1e-6
# The single attack that changed with the rule.
ANEW = randomised.RandomisedPosterior.__name__


def rule() -> str:
    """What the sources of the rule, and of the one single attack that changed with it, are known by."""
    sources = (inspect.getsource(module).encode() for module in (strongest, randomised))
    return hashlib.sha256(b"".join(sources)).hexdigest()[:12]


def scores(trial: Trial) -> dict[str, float]:
    """What each attack and all of them joined score, under the names of classes that suit them best."""
    torch.set_num_threads(1)
    cell = trial.configuration
    train, _ = halves(cell["set"], trial.seed, quick=cell["quick"], most=defences.SETS.get(cell["set"]))
    model, held = defences.model_of(cell), defences.held_in(cell)
    run = simulate(model.fit, train, roles=ROLES, seed=trial.seed, defences={"bank": held})
    setting = Simulated(run, seed=trial.seed)
    made, _ = make(setting, [each for each in attacks_of_audit(defences=held) if each.about is Secret.LABELS])
    joined, _ = make(setting, [strongest.Strongest()], before=made)
    return {each.attempt.name: each.truth.scores(each.guess).up_to_naming for each in made + joined}


def joined_anew(row: Mapping[str, Any], trial: Trial) -> dict[str, Any]:
    """A row of the file with the score of today's rule, if single attacks score as the row says, but for one."""
    found = scores(trial)
    joined = found.pop(JOINED)
    changed = [name for name, score in found.items() if abs(score - float(row[f"{name}.score"] or -1)) > SAME]
    if set(changed) - {ANEW}:
        return {**row, RULE: rule(), SINGLES: f"otherwise: {', '.join(changed)}"}
    if changed:
        row = {**row, f"{ANEW}.score": found[ANEW]}
    return {**row, f"{JOINED}.score": joined, RULE: rule(), SINGLES: "same but one" if changed else "same"}


def main() -> None:
    """Read the command line, and go on for so many seconds."""
    parser = argparse.ArgumentParser(prog="python -m experiments.joined", description="Join attacks anew.")
    parser.add_argument("--seconds", type=float, default=240, help="begin no trial after this time")
    begin, seconds = monotonic(), parser.parse_args().seconds
    path = RESULTS / "defences.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    trials = {key_of(trial.configuration, trial.seed): trial for trial in defences.trials(quick=False)}
    left = [i for i, row in enumerate(rows) if not row["refused"] and is_left(row)]
    parsed = read(path)
    for i in left:
        if monotonic() - begin > seconds:
            break
        trial = trials[key_of(parsed[i], int(parsed[i]["trial.seed"]))]
        rows[i] = joined_anew(rows[i], trial)
        names = list(dict.fromkeys(name for row in rows for name in row))
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
        print(rows[i][SINGLES], rows[i][f"{JOINED}.score"], dict(trial.configuration), trial.seed, flush=True)
    undone = sum(not row["refused"] and is_left(row) for row in rows)
    print(f"{undone} of {len(rows)} trials are left")


def is_left(row: Mapping[str, Any]) -> bool:
    """Whether a row is of another rule than today's."""
    return row.get(RULE) != rule()


def key_of(cell: Mapping[str, Any], seed: int) -> tuple[Any, ...]:
    """What tells a trial from others, whether it comes from the file or from the grid."""
    names = ("part", "set", "defence", "scope", "kernel", "alpha", "shield", "epsilon")
    return (*(cell.get(name) for name in names), seed)


if __name__ == "__main__":
    main()
