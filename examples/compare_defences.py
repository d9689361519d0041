"""What each defence of the catalogue costs in accuracy, and what it gains against the attacks of the catalogue.

    python compare_defences.py digits --seeds 3
    python compare_defences.py breast-cancer --defences gradient-noise marvell

The label party holds one defence at a time, with its default settings. For each it prints the accuracy on held-out rows
and the attack that does best: its score under the names of the classes that suit it best, what it scores in runs with
permuted labels (null), and what the attacker could do with its own columns alone. An attacker that knows the defence
may do better than all of these.
"""

import argparse
from statistics import mean

from colonnade import Roles, simulate
from colonnade.catalogue import DEFENCES
from colonnade.data import load, train_test_split
from colonnade.errors import PlanError
from colonnade.experiment.compare import averaged, best_of, standings
from colonnade.experiment.quality import quality
from colonnade.models import SplitClassifier

ROLES = Roles(label="bank", features=("shop",))


def trial(name, tables, held_out, seed, epochs, nulls):
    """Accuracy, and how each attack did."""
    defences = {} if name == "none" else {"bank": [DEFENCES[name]()]}
    model = SplitClassifier(epochs=epochs, n_iter_no_change=None)
    run = simulate(model.fit, tables, roles=ROLES, seed=seed, defences=defences)
    return quality(run, held_out)["accuracy"], standings(run, nulls=nulls, seed=seed)


def main():
    """Compare."""
    parser = argparse.ArgumentParser(description="Compare the defences of the catalogue.")
    parser.add_argument("dataset", nargs="?", default="breast-cancer")
    parser.add_argument("--rows", type=int, help="how many rows to draw; all if not given")
    parser.add_argument("--defences", nargs="*", default=["none", *DEFENCES])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--nulls", type=int, default=2)
    options = parser.parse_args()
    train, held_out = train_test_split(load(options.dataset, rows=options.rows).split())
    print("| defence | accuracy | best attack | score | null | alone |\n|---|---|---|---|---|---|")
    for name in options.defences:
        try:
            trials = [
                trial(name, train, held_out, seed, options.epochs, options.nulls) for seed in range(options.seeds)
            ]
        except PlanError as refusal:
            print(f"| {name} | {refusal} | | | | |")
            continue
        scores = averaged([found for _, found in trials])
        best = best_of(scores)
        figures = " | ".join(f"{value:.2f}" for value in (scores[best].score, scores[best].null, scores[best].alone))
        print(f"| {name} | {mean(accuracy for accuracy, _ in trials):.3f} | {best} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
