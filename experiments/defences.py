"""What each defence costs in accuracy, and what the attacks of the catalogue find beside it.

Three questions, each on rows that were held out and against every attack that applies. First, a split network with each
defence of labels in turn, at its default settings, on digits and on credit default. Second, boundary wandering
on digits: on the label party's own embedding ("public") or on those of the feature party ("received"), with either
kernel, and on received embeddings with a defence of gradients after it. Third, the label-private shadow on adult. Made
are the attacks of an ordinary audit and, beside each defence, the attacks that know how it works.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any

from colonnade import simulate
from colonnade.catalogue import DEFENCES, attacks_of_audit
from colonnade.errors import PlanError
from colonnade.experiment.compare import JOINED, DefenceScores, Standing, averaged, best_of, singles, standings_in
from colonnade.experiment.measurement import measured
from colonnade.experiment.sweep import Trial
from colonnade.models import LabelDPShadow, SplitClassifier
from colonnade.models.networks.messages import Embedding
from colonnade.secret import Secret
from experiments.sets import ROLES, halves
from experiments.tables import held_out, over_seeds, told_joined, told_seeds

# Rows to draw at most of the sets on which every defence is held.
SETS = {"digits": None, "credit-default": 3_000}
SCOPES, KERNELS, ALPHAS = ("public", "received"), ("cosine", "gaussian"), (1.0, 5.0)
SHIELDS = ("gradient-noise", "max-norm", "isotropic-noise", "sparse-gradient")
EPSILONS = (0.5, 1.0, 2.0, 4.0)
SEEDS = (0, 1, 2)
NULLS, QUICK_NULLS = 5, 2
EPOCHS = 30
VERSION = 3

# A label party holds them; the others act on what a feature party sends.
OF_LABELS = tuple(name for name in DEFENCES if DEFENCES[name].acts_on != (Embedding,))


def trials(*, quick: bool) -> list[Trial]:
    """Every configuration with every seed; the longest first, so that no core is idle in the end."""
    nulls = QUICK_NULLS if quick else NULLS
    cells = [{**cell, "nulls": nulls, "quick": quick, "version": VERSION} for cell in _cells()]
    cost = {"label-dp": 3, "catalogue": 2}
    cells.sort(key=lambda cell: -cost.get(cell["part"], 1))
    return [Trial(cell, seed) for cell in cells for seed in (SEEDS[:1] if quick else SEEDS)]


def _cells() -> Iterator[dict[str, Any]]:
    for name in SETS:
        for defence in ("none", *OF_LABELS):
            yield {"part": "catalogue", "set": name, "defence": defence}
    yield from _wandering_cells()
    for epsilon in EPSILONS:
        yield {"part": "label-dp", "set": "adult", "epsilon": epsilon}


def _wandering_cells() -> Iterator[dict[str, Any]]:
    for scope in SCOPES:
        for kernel in KERNELS:
            for alpha in ALPHAS:
                yield _wandering_cell(scope, kernel, alpha, "none")
    for shield in SHIELDS:
        yield _wandering_cell("received", "cosine", 1.0, shield)


def _wandering_cell(scope: str, kernel: str, alpha: float, shield: str) -> dict[str, Any]:
    return {"part": "wandering", "set": "digits", "scope": scope, "kernel": kernel, "alpha": alpha, "shield": shield}


def measure(trial: Trial) -> Mapping[str, Any]:
    """Train, predict and attack; or say why the defence was refused."""
    import torch

    torch.set_num_threads(1)
    cell = trial.configuration
    train, test = halves(cell["set"], trial.seed, quick=cell["quick"], most=SETS.get(cell["set"]))
    attacks = attacks_of_audit(defences=held_in(cell))
    try:
        run = simulate(model_of(cell).fit, train, roles=ROLES, seed=trial.seed, defences={"bank": held_in(cell)})
    except PlanError as refusal:
        return {"refused": str(refusal)}
    on_labels = [attack for attack in attacks if attack.about is Secret.LABELS]
    found = measured(run, test, on_labels, nulls=cell["nulls"], seed=trial.seed)
    return {**found["quality"], **{name: asdict(each) for name, each in standings_in(found["attacks"]).items()}}


def model_of(cell: Mapping[str, Any]) -> Any:
    """What is trained in a cell."""
    if cell["part"] == "label-dp":
        return LabelDPShadow(epsilon=cell["epsilon"])
    return SplitClassifier(epochs=EPOCHS, n_iter_no_change=None)


def held_in(cell: Mapping[str, Any]) -> list[Any]:
    """The defences that the label party holds, in their order."""
    if cell["part"] == "catalogue":
        return [] if cell["defence"] == "none" else [DEFENCES[cell["defence"]]()]
    if cell["part"] == "label-dp":
        return []
    wandering: Any = DEFENCES["boundary-wandering"]
    first = wandering(alpha=cell["alpha"], scope=cell["scope"], kernel=cell["kernel"])
    return [first] if cell["shield"] == "none" else [first, DEFENCES[cell["shield"]]()]


def page(rows: Sequence[Mapping[str, Any]], *, quick: bool) -> str:
    """The results for a reader."""
    flag = " --quick" if quick else ""
    lines = [
        "# Defences, measured",
        "",
        *(__doc__ or "").strip().splitlines()[2:],
        "",
        f"{told_seeds(rows)}, {EPOCHS} epochs, 70 % of the rows to train on"
        + (", at most 4,000 rows: the reduced grid" if quick else "")
        + f"; scores of attacks are means. Made with `python -m experiments defences{flag}`. "
        "`defences.csv` beside this page has every figure of each trial.",
        "",
        "An attack's score is a balanced accuracy, or AUC where it ranks rows of two classes, on rows whose labels it "
        "was not told, under the names of classes that suit it best. *null* is its mean in "
        f"{QUICK_NULLS if quick else NULLS} runs of each seed with permuted labels, *alone* what the attacker reaches "
        "with its own columns and the same known labels. The best attack is the one with the highest score; "
        "*strongest* is what all attacks reach joined without a look at the truth. T-DCS is the score of a defence "
        "that VFLAIR publishes, from 0 to 1, over the single attacks here; *beyond alone* counts an attack only as far "
        "as it exceeds the attacker alone. A score at "
        "the level of *alone* proves nothing: an attack that was not made may do better.",
    ]  # fmt: skip
    for title, tell in (
        ("Every defence at its default settings", _catalogue),
        ("Boundary wandering on digits", _wandering),
        ("Label-private shadow on adult", _label_dp),
    ):
        told = list(tell(rows))
        if told:
            lines += ["", f"## {title}", "", *told]
    return "\n".join([*lines, "", *_joined(rows)]) + "\n"


def _joined(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Where all attacks joined fall short of the best single one."""
    names = ("part", "set", "defence", "scope", "kernel", "alpha", "shield", "epsilon")
    cells: dict[tuple[tuple[str, Any], ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if not row.get("refused"):
            cells.setdefault(tuple((name, row.get(name)) for name in names), []).append(row)
    short = {}
    for cell, mine in cells.items():
        found = averaged_standings(mine)
        if JOINED in found:
            short[cell] = found[best_of(singles(found))].score - found[JOINED].score
    named = (", ".join(f"{name} {value}" for name, value in cell if value is not None) for cell in short)
    yield from told_joined(dict(zip(named, short.values(), strict=True)))


def _catalogue(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [row for row in rows if row["part"] == "catalogue"]
    if not rows:
        return
    sets = [name for name in SETS if any(row["set"] == name for row in rows)]
    for name in sets:
        yield from held_out([row for row in rows if row["set"] == name], name)
    columns = "accuracy | AUC | best attack | score / null / alone | strongest | T-DCS | beyond alone"
    yield "| defence | " + " | ".join(f"{name}: {columns}" for name in sets) + " |"
    yield "|" + "---|" * (1 + 7 * len(sets))
    for defence in ("none", *OF_LABELS):
        held = [row for row in rows if row["defence"] == defence]
        if not held:
            continue
        cells: list[str] = []
        for name in sets:
            mine = [row for row in held if row["set"] == name]
            refusals = [row["refused"] for row in mine if row.get("refused")]
            if refusals or not mine:
                cells += [f"refused: {refusals[0]}" if refusals else "", *[""] * 6]
                continue
            found = averaged_standings(mine)
            best = best_of(found)
            cells += [over_seeds(mine, "accuracy"), over_seeds(mine, "AUC"), best, _all_of(found[best])]
            cells += [_all_of(found[JOINED]) if JOINED in found else "", *_traded(found, mine, rows)]
        yield f"| {defence} | {' | '.join(cells)} |"


def _traded(
    found: Mapping[str, Standing], mine: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> tuple[str, str]:
    """VFLAIR's score of a defence as published, and beyond what the attacker reaches alone."""
    bare = [row["accuracy"] for row in rows if row["defence"] == "none" and row["set"] == mine[0]["set"]]
    if not bare:
        return "", ""
    traded = DefenceScores.of(singles(found), mean(row["accuracy"] for row in mine), best_main=mean(bare))
    return f"{traded.published:.3f}", f"{traded.beyond_alone:.3f}"


def _wandering(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    undefended = [row for row in rows if row["part"] == "catalogue" and row["set"] == "digits"]
    undefended = [row for row in undefended if row["defence"] == "none"]
    rows = [row for row in rows if row["part"] == "wandering"]
    if not rows:
        return
    attacks = sorted(averaged_standings(rows))
    yield "Each attack's score / null / alone."
    yield ""
    yield "| scope | kernel | alpha | then | accuracy | " + " | ".join(attacks) + " |"
    yield "|" + "---|" * (5 + len(attacks))
    if undefended:
        yield "| | | | | " + _scores(undefended, attacks)
    for cell in _wandering_cells():
        mine = [row for row in rows if all(row[key] == value for key, value in cell.items())]
        if mine:
            shield = "" if cell["shield"] == "none" else cell["shield"]
            yield f"| {cell['scope']} | {cell['kernel']} | {cell['alpha']:g} | {shield} | {_scores(mine, attacks)}"


def _label_dp(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [row for row in rows if row["part"] == "label-dp"]
    if not rows:
        return
    attacks = sorted(averaged_standings(rows))
    yield from held_out(rows, "adult")
    yield (
        "*excess* is by how many points the attack that exceeds the attacker alone by most does so, measured alike. "
        "`predict` uses the main network, whose accuracy and AUC these are. Each attack's score / null / alone."
    )
    yield ""
    yield "| epsilon | accuracy | AUC | best attack | excess | by | " + " | ".join(attacks) + " |"
    yield "|" + "---|" * (6 + len(attacks))
    for epsilon in EPSILONS:
        mine = [row for row in rows if row["epsilon"] == epsilon]
        if not mine:
            continue
        found = averaged_standings(mine)
        most = max(found, key=lambda name: found[name].excess)
        shown = [
            f"{epsilon:g}",
            *(over_seeds(mine, key) for key in ("accuracy", "AUC")),
            best_of(found),
            f"{100 * found[most].excess:+.0f}",
            most,
            *(_all_of(found[name]) for name in attacks),
        ]
        yield f"| {' | '.join(shown)} |"


def averaged_standings(rows: Sequence[Mapping[str, Any]]) -> dict[str, Standing]:
    """What the figures of some trials say of each attack, on average."""
    return averaged(
        [
            {
                name.removesuffix(".score"): Standing(row[name], *(row[name[:-5] + key] for key in ("null", "alone")))
                for name in row
                if name.endswith(".score") and row[name] is not None
            }
            for row in rows
        ]
    )


def _scores(rows: Sequence[Mapping[str, Any]], attacks: Sequence[str]) -> str:
    found = averaged_standings(rows)
    cells = [over_seeds(rows, "accuracy")]
    cells += [_all_of(found[name]) if name in found else "" for name in attacks]
    return " | ".join(cells) + " |"


def _all_of(standing: Standing) -> str:
    return f"{standing.score:.2f} / {standing.null:.2f} / {standing.alone:.2f}"
