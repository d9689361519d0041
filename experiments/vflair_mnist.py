"""Batch and direct label inference on MNIST, in the setting of VFLAIR's benchmark, beside its logged figures.

Two parties hold the upper and the lower 14 rows of each image. Both send their shares of the logits, made by a network
of 392, 32 and 10 units on pixels from 0 to 1; the label party adds the shares up. Adam with a rate of 0.01, batches of
1,024, 30 epochs. Attacked is the first batch of the first epoch. *direct* takes the first coordinate below 0 as VFLAIR
does, *smallest* the smallest one; *batch* matches the gradient of the attacker's own weights in 10,000 steps.

Some rows stand beside another to tell what VFLAIR's code does otherwise. *its first weights*: VFLAIR draws the weights
of the first layer as Glorot and Bengio do and sets its biases to 0; the other rows begin as PyTorch does, with weights
0.42 times as large. The logarithm of distance correlation does not change when all embeddings grow, so that its
gradient shrinks as they grow, and hides less of the signs of the loss's own gradient. That row is trained for one
epoch, which is all that the attacks on the first batch need, so that it has no accuracy. *either head*: VFLAIR matches
gradients twice, without and with a top network of the attacker's, and counts the better of both by the truth.

Three differences are left: VFLAIR divides the learning rate by the root of the number of the epoch; it never shuffles,
so that all its runs attack the same 1,024 rows; and it takes the distances of distance correlation as roots of squares
less products, which its GPU may round to 10 bits.

Zou et al. 2024, "VFLAIR", arXiv 2310.09827; the logged figures are those of the authors' own runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import nn

from colonnade import Roles, simulate
from colonnade.attacks.base import Grant
from colonnade.attacks.labels.gradients import DirectLabel
from colonnade.attacks.labels.matching import BatchLabels
from colonnade.attacks.view import View
from colonnade.data import load, train_test_split
from colonnade.defences import (
    ConfusionalAutoencoder,
    Defence,
    DistanceCorrelation,
    GradientNoise,
    InformationBottleneck,
    SparseGradient,
)
from colonnade.experiment.quality import quality
from colonnade.experiment.sweep import Trial
from colonnade.models import SplitClassifier
from colonnade.models.networks.messages import Gradient
from colonnade.models.networks.modules import perceptron
from colonnade.tables.encode import Inputs
from colonnade.wire.message import Float64Array
from experiments.tables import over_seeds, told_seeds

ROLES = Roles(label="bank", features=("shop",))
SEEDS = tuple(range(5))
BATCH, EPOCHS, STEPS, N_TEST = 1024, 30, 10_000, 10_000
# What VFLAIR logged for each defence: accuracy, batch label inference, direct label inference.
LOGGED: Mapping[str, tuple[float, float, float]] = {
    "none": (0.975, 0.996, 1.000),
    "laplace 1e-3": (0.956, 0.414, 0.171),
    "sparse 95 %": (0.975, 0.339, 0.553),
    "distance correlation 0.1": (0.911, 0.783, 0.405),
    "distance correlation 0.1, its first weights": (0.911, 0.783, 0.405),
    "information bottleneck 1e-4": (0.957, 0.124, 0.103),
    "confusional autoencoder 1.0": (0.928, 0.113, 0.000),
    "confusional autoencoder 1.0, either head": (0.928, 0.113, 0.000),
}
FIRST_WEIGHTS = ", its first weights"
# How far a figure may be from the logged one.
NEAR = 0.06
VERSION = 1


def trials(*, quick: bool) -> list[Trial]:
    """Every defence with every seed."""
    cells = [{"defence": name, "quick": quick, "version": VERSION} for name in LOGGED]
    return [Trial(cell, seed) for cell in cells for seed in (SEEDS[:1] if quick else SEEDS)]


def measure(trial: Trial) -> Mapping[str, Any]:
    """Train, predict, and attack the first batch."""
    torch.set_num_threads(1)
    quick = trial.configuration["quick"]
    tables = load("mnist").split()
    upper = [name for name in (*tables["shop"].columns, *tables["bank"].columns) if int(name.split("_")[1]) < 14]
    tables = _cut_across(tables, upper)
    train, test = train_test_split(tables, test=N_TEST / len(tables["bank"]), seed=trial.seed)
    defences = {"bank": _held(trial.configuration["defence"])}
    first_weights = trial.configuration["defence"].endswith(FIRST_WEIGHTS)
    epochs = 1 if first_weights else 2 if quick else EPOCHS
    model = SplitClassifier(
        bottom=two_layers_of_vflair if first_weights else two_layers,
        fusion="sum",
        top=None,
        optimizer="adam",
        learning_rate=0.01,
        batch_size=BATCH,
        epochs=epochs,
        n_iter_no_change=None,
    )
    run = simulate(model.fit, train, roles=ROLES, seed=trial.seed, defences=defences)
    truth, grant = np.unique(np.asarray(train["bank"].labels), return_inverse=True)[1], Grant(10)
    figures: dict[str, Any] = {} if first_weights else {"accuracy": quality(run, test)["accuracy"]}
    batch = next(each.rows for each in run.transcripts["shop"].messages(Gradient, sent=False))
    assert batch is not None
    for name, attack in (("direct", DirectLabel(first_negative=True)), ("smallest", DirectLabel())):
        view = View.cut(attack.needs, run.transcripts["shop"], public=run.plan, grant=grant, seed=trial.seed)
        guess = attack.guess(view)
        assert guess.classes is not None
        figures[name] = float((guess.classes == truth[guess.rows])[np.isin(guess.rows, batch)].mean())
    heads = (BatchLabels, BehindTop) if trial.configuration["defence"].endswith("either head") else (BatchLabels,)
    recovered = []
    for head in heads:
        play = head(steps=100 if quick else STEPS).play
        played = simulate(
            model.clone().set_params(epochs=1).fit,
            train,
            roles=ROLES,
            seed=trial.seed,
            defences=defences,
            instead={"shop": partial(play, grant=grant)},
            keep="digests",
        )
        found: Any = played.results["shop"]
        recovered.append(float((found.classes == truth[found.rows]).mean()))
    return figures | {"batch": max(recovered)}


class BehindTop(BatchLabels):
    """The attack of a party that takes its share of the logits for an embedding, and learns a top network for it."""

    def _matched(
        self, bottom: nn.Module, x: torch.Tensor, observed: Sequence[torch.Tensor], n_classes: int, *, has_top: bool
    ) -> Float64Array:
        return super()._matched(bottom, x, observed, n_classes, has_top=True)


def two_layers(inputs: Inputs, width: int) -> nn.Module:
    """The benchmark's network, on pixels from 0 to 1."""
    return nn.Sequential(_Pixels(inputs), perceptron(len(inputs.numeric), (32,), width))


def two_layers_of_vflair(inputs: Inputs, width: int) -> nn.Module:
    """The same network with the first weights that VFLAIR begins with."""
    network = two_layers(inputs, width)
    first = next(each for each in network.modules() if isinstance(each, nn.Linear))
    nn.init.xavier_uniform_(first.weight)
    nn.init.zeros_(first.bias)
    return network


class _Pixels(nn.Module):
    """Standardised columns as the pixels that they were."""

    means: torch.Tensor
    scales: torch.Tensor

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.register_buffer("means", torch.from_numpy(inputs.means / 255).float())
        self.register_buffer("scales", torch.from_numpy(inputs.scales / 255).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scales + self.means


def _cut_across(tables: Mapping[str, Any], upper: Sequence[str]) -> dict[str, Any]:
    """The upper half of each image at the shop, the lower at the bank."""
    from colonnade import Table

    bank, shop = tables["bank"], tables["shop"]
    arrow = bank.to_arrow()
    for name in shop.columns:
        arrow = arrow.append_column(name, shop.to_arrow().column(name))
    both = Table.of(arrow, ids=bank.id_name, labels=bank.label_name, owner="bank")
    lower = [name for name in both.columns if name not in set(upper)]
    own = Table.of(arrow.select([bank.id_name, *upper]), ids=bank.id_name, owner="shop")
    return {"bank": both.select(lower), "shop": own}


def _held(name: str) -> list[Defence]:
    held: dict[str, Defence] = {
        "laplace 1e-3": GradientNoise(kind="laplace", scale=1e-3, clip=0.2),
        "sparse 95 %": SparseGradient(keep=0.05, residual="batch"),
        "distance correlation 0.1": DistanceCorrelation(weight=0.1),
        "information bottleneck 1e-4": InformationBottleneck(weight=1e-4),
        "confusional autoencoder 1.0": ConfusionalAutoencoder(entropy=1.0),
    }
    name = name.removesuffix(", either head").removesuffix(FIRST_WEIGHTS)
    return [held[name]] if name in held else []


def page(rows: Sequence[Mapping[str, Any]], *, quick: bool) -> str:
    """The results for a reader."""
    flag = " --quick" if quick else ""
    lines = [
        "# Label inference on MNIST beside VFLAIR",
        "",
        *(__doc__ or "").strip().splitlines()[2:],
        "",
        f"{told_seeds(rows)}{_fewer(rows)}; made with `python -m experiments vflair_mnist{flag}`.",
        "",
        "| defence | accuracy | logged | batch | logged | direct | logged | smallest |",
        "|" + "---|" * 8,
        *_lines(rows),
        "",
        *_apart(rows),
    ]
    return "\n".join(lines) + "\n"


def _fewer(rows: Sequence[Mapping[str, Any]]) -> str:
    """Which rows have fewer seeds than others."""
    n_seeds = {name: sum(row["defence"] == name for row in rows) for name in LOGGED}
    few = [f"{n} of {name}" for name, n in n_seeds.items() if 0 < n < max(n_seeds.values())]
    return f" ({'; '.join(few)})" if few else ""


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for name, logged in LOGGED.items():
        mine = [row for row in rows if row["defence"] == name]
        if not mine:
            continue
        shown = {key: over_seeds(mine, key) for key in ("accuracy", "batch", "direct", "smallest")}
        cells = [f"{shown[key]} | {value:.3f}" for key, value in zip(shown, logged, strict=False)]
        yield f"| {name} | {' | '.join(cells)} | {shown['smallest']} |"


def _apart(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Which figures are farther from the logged ones than allowed."""
    far = {}
    for name, logged in LOGGED.items():
        mine = [row for row in rows if row["defence"] == name]
        if mine:
            off = {
                key: mean(row[key] for row in mine) - value
                for key, value in zip(("accuracy", "batch", "direct"), logged, strict=True)
                if all(row.get(key) is not None for row in mine)
            }
            far[name] = [f"{key} {value:+.3f}" for key, value in off.items() if abs(value) > NEAR]
    near = [name for name, off in far.items() if not off]
    yield f"All figures are within {NEAR} of the logged ones: {'; '.join(near)}."
    yield ""
    yield "Farther away: " + "; ".join(f"{name} ({', '.join(off)})" for name, off in far.items() if off) + "."
    plain = [name for name, off in far.items() if off and "," not in name]
    unexplained = [name for name in plain if not any(each.startswith(f"{name},") for each in near)]
    if unexplained:
        yield ""
        yield f"Not explained: {', '.join(unexplained)}. No row beside it reaches the logged figures."
