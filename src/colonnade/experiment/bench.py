"""The standing benchmark: every model with every defence that it takes, attacked by all that applies, on many sets.

    cell: set, split of columns, model, defence
      ├── why_not ──▶ a sentence: the file is missing, nobody could hold the defence, ...
      └── trial ────▶ train, predict held-out rows, attack ──▶ figures, a refusal, or the error it ended with
    cut:  set, split of columns
      └── trial ────▶ how uneven the split is; what the label party reaches alone, and all columns in one place

Every cell has figures or says why it has none. `colonnade.experiment.bench_page` tells them to a reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from math import ceil
from typing import Any, Literal

import numpy as np

from colonnade.attacks.labels.strongest import Strongest
from colonnade.catalogue import DEFENCES, MODELS, attacks_of_audit
from colonnade.data.datasets import FOLDER_VARIABLE, DatasetInfo, Task, available, load
from colonnade.data.partition import train_test_split
from colonnade.data.splits import ColumnSplit, cut_columns, parse
from colonnade.devices import computes_on_gpu, hardware
from colonnade.errors import DataError, PlanError
from colonnade.experiment.measurement import measured
from colonnade.experiment.quality import classification_quality
from colonnade.experiment.sweep import Trial
from colonnade.models.base import Estimator
from colonnade.models.estimate import unlogged
from colonnade.models.evaluation import predict_alone
from colonnade.models.functional.model import CurveModel
from colonnade.models.networks.messages import Embedding
from colonnade.roles import Roles
from colonnade.runtime.hooks import holders_of
from colonnade.runtime.party import Defence
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table
from colonnade.text import how_many, nearest

NONE = "none"
SETS = (
    *("breast-cancer", "digits", "bank-shop-telco", "adult", "credit-default", "bank-marketing", "mnist", "cifar10"),
    *("bike-sharing", "bike-sharing-curves"),
)
ON_GPU = frozenset({"cifar10"})
"""Sets of images whose networks are large ones for images, on a GPU; models that train no such network need none."""
SPLITS = ("natural", "random", "importance=0.1", "importance=10", "correlation=0", "correlation=1")
MOST_COLUMNS = 200
"""Sets with more columns are cut only naturally."""
TEST, HELD_OUT = 0.3, 0.2
"""The share of a set's rows that figures are of, and the share of the others by which networks stop early."""
TOLD = Strongest.needs.known_labels
"""How many labels of each class are told where attacks are joined."""
LEADING: Mapping[Task, str] = {
    "binary": "AUC",
    "classes": "accuracy",
    "count": "R2",
    "regression": "R2",
    "curves": "OverMean",
}
"""The measure of quality that is told of each kind of labels. Higher is better, but for OverMean, an error."""


@dataclass(frozen=True)
class Scale:
    """How much each trial does.

    Attributes:
        rows: How many rows of a set are drawn at most, held-out ones included.
        rows_per_class: How many rows of the rarest class there should be to train on: more rows than `rows` are drawn
            of a set that has fewer, because attacks are joined only where labels of every class can be told.
        seeds: How many times each cell is measured; each seed draws other rows.
        nulls: How many runs with a shuffled secret each attack is compared with.
        epochs: How many epochs networks are trained for; None leaves it to them, which also stop early.
        rounds: How long encrypted models are trained, at most: a regression for so many epochs, boosted trees for a
            third as many rounds. None leaves them at their defaults.
        thorough: Whether to make every attack of the catalogue in several forms.
    """

    rows: int = 3_000
    rows_per_class: int = 4 * TOLD
    seeds: int = 3
    nulls: int = 5
    epochs: int | None = None
    rounds: int | None = None
    thorough: bool = False


QUICK = Scale(rows=400, rows_per_class=2 * TOLD, seeds=1, nulls=2, epochs=10, rounds=10)


@dataclass(frozen=True)
class Cell:
    """What is measured: a model with a defence, or none, on a set whose columns are split in some way.

    >>> Cell("digits", "natural", "logistic-regression", "max-norm").why_not()
    'logistic-regression takes no defence of the catalogue'
    """

    set: str
    split: str
    model: str
    defence: str = NONE

    def why_not(self) -> str | None:
        """Why the cell cannot be measured here; None if it can."""
        return why_no_set(self.set, self.split) or self.why_no_model_or_defence() or self._why_no_gpu()

    def why_no_model_or_defence(self) -> str | None:
        """Why the model or the defence does not go with the set, wherever its file is; None if it does."""
        return self._why_no_model() or self._why_no_defence()

    def _why_no_model(self) -> str | None:
        task, model = _info(self.set).task, MODELS[self.model]
        if not suits(model, task):
            return f"{self.model} predicts {_predicted(model)}, and the labels of {self.set} are {_LABELS[task]}"
        return None

    def _why_no_gpu(self) -> str | None:
        if _embeds_images(self.set, self.model) and not computes_on_gpu("auto"):
            return f"networks for the images of {self.set} take a GPU, and there is none here"
        return None

    def _why_no_defence(self) -> str | None:
        if self.defence == NONE or holders_of(DEFENCES[self.defence](), MODELS[self.model].sides()):
            return None
        if not any(holders_of(DEFENCES[name](), MODELS[self.model].sides()) for name in DEFENCES):
            return f"{self.model} takes no defence of the catalogue"
        return f"nobody in {self.model} sends or learns from what this defence acts on"


def cells(
    sets: Sequence[str] = SETS,
    splits: Sequence[str] = SPLITS,
    models: Sequence[str] = tuple(MODELS),
    defences: Sequence[str] = tuple(DEFENCES),
) -> list[Cell]:
    """Every cell of a grid: models that suit the labels, each without a defence; with defences on the first split.

    Raises:
        PlanError: A name is not known, or no model suits any of the sets.
    """
    for name in sets:
        _info(name)
    for how in splits:
        parse(how)
    for name in models:
        MODELS.require(name)
    for name in defences:
        if name != NONE:
            DEFENCES.require(name)
    held = dict.fromkeys((NONE, *defences))
    grid = [
        Cell(name, how, model, defence)
        for name in sets
        for how in splits
        for model in models
        if suits(MODELS[model], _info(name).task)
        for defence in (held if how == splits[0] else (NONE,))
    ]
    if not grid:
        raise PlanError(
            f"A benchmark should have a model that predicts the labels of a set, but of the models {', '.join(models)} "
            f"none predicts the labels of {', '.join(sets)}. Choose another model or set."
        )
    return grid


def trials(grid: Sequence[Cell], scale: Scale) -> list[Trial]:
    """What is run for a grid: each cut and each cell that can be, with each seed; what takes longest comes first."""
    how = {name: value for name, value in asdict(scale).items() if name not in ("seeds", "rows_per_class")}
    cuts = dict.fromkeys((cell.set, cell.split) for cell in grid)
    wanted: list[dict[str, Any]] = [asdict(cell) for cell in grid if cell.why_not() is None]
    wanted += [{"set": name, "split": split} for name, split in cuts if why_no_set(name, split) is None]
    wanted.sort(key=_cost, reverse=True)
    drawn = {name: drawn_rows(name, scale) for name in dict.fromkeys(each["set"] for each in wanted)}
    return [Trial({**each, **how, "drawn": drawn[each["set"]]}, seed) for seed in range(scale.seeds) for each in wanted]


def drawn_rows(name: str, scale: Scale) -> int:
    """How many rows of a set are drawn: as many as a scale says, more where classes are rare, and never more than all.

    >>> drawn_rows("digits", Scale(rows=300)), drawn_rows("digits", Scale(rows=300, rows_per_class=0))
    (886, 300)
    """
    info, rows = _info(name), scale.rows
    if scale.rows_per_class and info.task in ("binary", "classes"):
        rows = max(rows, ceil(scale.rows_per_class / ((1 - TEST) * (1 - HELD_OUT) * _rarest(name))))
    return min(rows, info.rows)


@cache
def _rarest(name: str) -> float:
    """The share of a set's rows that all parties hold and that are of the rarest class."""
    dataset = load(name)
    labels = dataset.split()[str(dataset.label_party)].labels
    return float(np.unique(np.asarray(labels), return_counts=True)[1].min() / _info(name).rows)


def _cost(wanted: Mapping[str, Any]) -> int:
    """Roughly how long a trial takes beside others: wide sets take long, and models without a defence are encrypted."""
    info = _info(wanted["set"])
    encrypted = "model" in wanted and not MODELS[wanted["model"]].hooks
    return info.columns * (10 if info.task == "classes" else 1) * (10 if encrypted else 1)


def measure(trial: Trial) -> dict[str, Any]:
    """The figures of a trial and where it ran: of a cell, or of a cut where the configuration names no model."""
    return _measured(trial) | {"hardware": hardware()}


def _measured(trial: Trial) -> dict[str, Any]:
    how = trial.configuration
    name = str(how["set"])
    cut = cut_columns(load(name, rows=int(how["drawn"]), seed=trial.seed), str(how["split"]), seed=trial.seed)
    if "model" not in how:
        return _measured_cut(cut, _info(name).task, trial.seed)
    train, test = train_test_split(cut.tables, test=TEST, seed=trial.seed)
    features = tuple(party for party in train if party != cut.label_party)
    model = _built(str(how["model"]), name, features, how["epochs"], how["rounds"])
    server = "server" if "server" in model.hooks else None
    roles = Roles(features, label=cut.label_party, server=server)
    held = [] if how["defence"] == NONE else [DEFENCES[str(how["defence"])]()]
    defences = {party: [type(each)() for each in held] for party in _holders(held, model, roles)}
    try:
        with unlogged():
            run = simulate(model.fit, train, roles=roles, seed=trial.seed, defences=defences)
    except (PlanError, DataError) as refusal:
        return {"refused": str(refusal)}
    attacks = attacks_of_audit(thorough=bool(how["thorough"]), defences=held)
    figures = measured(run, test, attacks, nulls=int(how["nulls"]), seed=trial.seed)
    return {"trained_rows": len(train[cut.label_party]), **{k: v for k, v in figures.items() if k != "learning"}}


def suits(model: type[Estimator], task: Task) -> bool:
    """Whether a model is made for labels of a kind."""
    if issubclass(model, CurveModel) or task == "curves":
        return issubclass(model, CurveModel) and task == "curves"
    if task in ("binary", "classes"):
        return model.task == "classification"
    return model.task == "regression" and (task == "count" or model is not MODELS["poisson-regression"])


def why_no_set(name: str, split: str) -> str | None:
    """Why a set cannot be used here, or not be split so; None if it can."""
    info = _info(name)
    if not info.present:
        return f"set not found: put {info.file} into a folder and set {FOLDER_VARIABLE} to this folder"
    return why_no_split(name, split)


def why_no_split(name: str, split: str) -> str | None:
    """Why the columns of a set cannot be split so; None if they can."""
    info = _info(name)
    if split != "natural" and info.task == "curves":
        return "splits are searched among columns of numbers, and these are curves"
    if split != "natural" and info.columns > MOST_COLUMNS:
        return f"{info.columns:,} columns are more than the {MOST_COLUMNS} among which splits are searched"
    return None


_LABELS: Mapping[Task, str] = {
    "binary": "classes",
    "classes": "classes",
    "count": "counts",
    "regression": "numbers",
    "curves": "curves",
}


def _predicted(model: type[Estimator]) -> str:
    if issubclass(model, CurveModel):
        return "curves"
    return "classes" if model.task == "classification" else "counts" if "Poisson" in model.__name__ else "numbers"


def _info(name: str) -> DatasetInfo:
    known = {info.name: info for info in available() if info.task in LEADING}
    if name not in known:
        raise PlanError(
            f"The benchmark should be given sets with labels, but {name!r} is none.{nearest(name, known)} "
            "List the names with: colonnade data list"
        )
    return known[name]


def _holders(held: Sequence[Defence], model: Estimator, roles: Roles) -> tuple[str, ...]:
    """The parties that hold a defence: feature parties one of embeddings, else the label party or whoever can."""
    if not held:
        return ()
    (defence,) = held
    able = holders_of(defence, type(model).sides())
    order = ("feature", "label", "server") if defence.acts_on == (Embedding,) else ("label", "server", "feature")
    role = next(each for each in order if each in able)
    return {"feature": roles.features, "label": (str(roles.label),), "server": (str(roles.server),)}[role]


def is_network(name: str) -> bool:
    """Whether a model is made of networks."""
    return "n_iter_no_change" in MODELS[name]().get_params()


def how_trained(name: str, epochs: int | None, rounds: int | None) -> tuple[str, str] | None:
    """The kind of a model and how long it is trained, in words; None of a model that is not trained step by step.

    >>> how_trained("logistic-regression", None, 30), how_trained("split-classifier", None, 30)[1]
    (('regressions', 'for at most 30 epochs'), 'as long as they are by default, stopping early')
    """
    parameters, default = MODELS[name]().get_params(), "as long as they are by default"
    if "n_iter_no_change" in parameters:
        by_default = f"{default}, stopping early"
        return "networks", f"for {how_many(epochs, 'epoch')}, never stopping early" if epochs else by_default
    if "n_estimators" in parameters:
        return "boosted trees", f"for at most {how_many(_trees(rounds), 'round')}" if rounds else default
    if "max_iter" in parameters:
        return "regressions", f"for at most {how_many(rounds, 'epoch')}" if rounds else default
    return None


def _trees(rounds: int) -> int:
    """For how many rounds boosted trees are trained where regressions are trained for so many epochs."""
    return max(rounds // 3, 1)


def _embeds_images(of: str, name: str) -> bool:
    """Whether the bottoms of a model are networks for the images of a set."""
    parameters = MODELS[name]().get_params()
    return of in ON_GPU and "bottom" in parameters and "encoder" not in parameters


def _built(name: str, of: str, features: Sequence[str], epochs: int | None, rounds: int | None) -> Estimator:
    """A model at its default settings but for networks of images, how long it trains, and what it lets through."""
    model = MODELS[name]
    parameters, settings = model().get_params(), dict[str, Any]()
    if _embeds_images(of, name):
        settings |= {"bottom": "resnet-20", "device": "auto"}
    if "n_estimators" in parameters:
        settings |= {"leak_budget": None, "keep_record": True}
    if epochs is not None and is_network(name):
        settings |= {"epochs": epochs, "n_iter_no_change": None}
    if rounds is not None and "n_estimators" in parameters:
        settings["n_estimators"] = _trees(rounds)
    if rounds is not None and "max_iter" in parameters:
        settings["max_iter"] = rounds
    if name.startswith("one-shot"):
        settings["leak_budget"] = dict.fromkeys(features, 1.0)
    return model(**settings)


def _measured_cut(cut: ColumnSplit, task: Task, seed: int) -> dict[str, Any]:
    """How uneven and how related the parties' columns are, and what is reached without a joint model."""
    label = cut.label_party
    train, test = train_test_split({**cut.tables, "": cut.table}, test=TEST, seed=seed)
    found: dict[str, Any] = {
        "trained_rows": len(train[label]),
        "columns": {party: len(names) for party, names in cut.columns.items()},
    }
    if task == "curves":
        return found
    found |= {"importance": cut.importance, "alpha": cut.alpha, "correlation": cut.correlation, "beta": cut.beta}
    for name, party in (("alone", label), ("central", "")):
        found[name] = _without_others(train[party], test[party], task)
    return found


def _without_others(train: Table, test: Table, task: Task) -> dict[str, Any]:
    kind: Literal["classification", "regression"] = "classification" if task in ("binary", "classes") else "regression"
    prediction, by = predict_alone(train, test, kind)
    truth = np.asarray(test.labels)
    if kind == "classification":
        return {"by": by, **classification_quality(prediction, truth)}
    from sklearn.metrics import r2_score

    return {"by": by, "rows": len(truth), "R2": float(r2_score(truth, prediction.values))}
