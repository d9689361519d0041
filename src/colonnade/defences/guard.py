"""A guard on received gradients: a feature party looks, without labels, for signs of an attack on its columns.

    zero rows        a row's gradient is exactly zero          active inversion as published trains known rows only
    one direction    all rows are pulled the same way          a critic pulls the whole batch towards its own encoder
    norm ratio       some first gradients are far longer       a loss over few known rows outweighs that of the batch
    norm level       all first gradients are far too short     a generator's loss hardly depends on one embedding
                     or far too long
    persistence      rows whose gradients leave the common     evidence only: known rows lead the list,
                     directions in every epoch                 but an honest list looks alike

Why an honest run raises no alarm. A classifier pulls rows of different classes in different directions, and its
intercept takes the mean away: the sum of all gradients is small beside the sum of their lengths. Nothing is fitted in
the first batches, so that all rows' gradients are about as long, and as long as in a rehearsal: the party trains a
network of the same widths on clusters of its own rows. Later lengths depend on the labels, and no rehearsal tells them;
they are not judged.

A rehearsal: after Erdoğan et al. 2022, "SplitGuard", and "SplitOut" (CANS 2024), both of which need labels.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from colonnade.errors import GuardAlarm
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.models.networks.modules import TOPS, perceptron
from colonnade.models.networks.training import as_array
from colonnade.parameters import Limit, check_parameters, choice
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.hooks import index_of
from colonnade.runtime.party import Defence, Party
from colonnade.storage import Tree
from colonnade.tables.encode import filled
from colonnade.wire.message import Float64Array

Policy: TypeAlias = Literal["warn", "pause", "abort"]

WINDOW, FIRST, SLOW = 10, 3, 0.01
"""Batches that are judged together, and those whose lengths are compared with a rehearsal: more than one only at slow
learning rates, for a step at a fast one fits rows already."""
ZERO_ROWS_AT_FIRST, ZERO_ROWS, ZERO_ROWS_OF_SUMS, SATURATED = 0.01, 0.25, 0.5, 1e-6
"""The share of zero rows that is allowed at first, and later: where a fit saturates, other gradients vanish as well.
More where embeddings are summed: whether a top's ReLU passes a row then depends on other parties' embeddings too."""
ONE_DIRECTION, EVEN, WARM_UP, PATIENCE = 0.7, 0.3, 10, 3
"""The share of all pull that may go the same way, where lengths are at least this even (1 is all alike): late in a fit
a few rows outweigh all others. Judged after some windows, and in several windows in a row."""
RATIO, OVER_REHEARSAL = 10.0, 4.0
"""How much longer than the median the longest hundredth of the first gradients may be, and beside the rehearsal's."""
SHORTER, LONGER = 5.0, 10.0
"""How many times shorter or longer than in a rehearsal the first gradients may be."""
CLUSTERS, REHEARSED_ROWS, RATE = (2, 10), 2_000, 3e-3
DIRECTIONS, ENERGY, SHOWN_ROWS = 4, 0.85, 10
CHECKS = ("zero rows", "one direction", "norm ratio", "norm level")

_log = logging.getLogger(__name__)


class GradientGuard(Defence):
    """Checks of the gradients that arrive, which need no labels and change nothing.

    What was seen goes into the party's recording, and from there into the privacy report.

    Args:
        policy: What an alarm does. "warn" logs it and goes on. "pause" stops the run, which goes on if the party starts
            it again from the same folder. "abort" stops it for good.

    >>> GradientGuard(policy="abort").name
    'GradientGuard'
    """

    known_by = (("active-inversion", {"matched": True}),)
    # Gradients come back to a party that sends embeddings.
    acts_on = (Embedding,)
    limits: ClassVar[Mapping[str, Limit]] = {"policy": choice("warn", "pause", "abort")}

    def __init__(self, *, policy: Policy = "warn") -> None:
        self.policy = policy
        check_parameters(self)

    def affects_predictions(self, sent: Any) -> bool:
        return False

    def before_run(self, party: Party) -> None:
        self._party, self._place = party, index_of(self, party)
        n_rows = len(party.own_table)
        self._off, self._times = np.zeros(n_rows), np.zeros(n_rows, np.int64)
        self._batches, self._streak, self._saturated = 0, 0, False
        self._figures: dict[str, float] = {}
        self._alarms: dict[str, str] = {}
        self._window: list[Sequence[NDArray[Any]]] = []
        party.recording.notes[f"guard {self._place}"] = self.evidence
        # A run that goes back to a checkpoint from before an alarm has had the alarm nevertheless.
        earlier = {check: party.checkpoints.made(self._name_of(check)) for check in CHECKS}
        self._earlier = {check: said for check, said in earlier.items() if said is not None}
        if self.policy == "abort" and self._earlier:
            raise GuardAlarm(
                f"{party.name} stopped this run for good, because {'; '.join(self._earlier.values())}. Begin another "
                "run in a new folder, or hold the guard with policy = 'pause'."
            )

    def incoming(self, tensor: Tensor, at: HookContext) -> Tensor:
        if at.message is Gradient:
            (embedding,) = at.own.values()
            self._window.append((at.rows, as_array(tensor), as_array(embedding)))
            self._batches += 1
            if self._batches == (FIRST if _learning_rate(self._party) <= SLOW else 1):
                self._judge_lengths(at)
            if len(self._window) == WINDOW:
                self._judge(at)
                self._window = []
        return tensor

    def evidence(self) -> dict[str, Any]:
        """What was seen so far: a few figures, however long the run."""
        figures = dict(self._figures)
        seen = np.flatnonzero(self._times)
        rows: list[int] = []
        if len(seen):
            share = self._off[seen] / self._times[seen]
            figures["persistence"] = float(np.quantile(share, 0.99))
            rows = seen[np.argsort(-share, kind="stable")[:SHOWN_ROWS]].tolist()
        alarms = self._earlier | self._alarms
        return {"by": self.name, "batches": self._batches, "alarms": alarms, "figures": figures, "rows": rows}

    def state(self) -> Tree:
        return {name: getattr(self, f"_{name}") for name in _STATE}

    def restore(self, tree: Tree) -> None:
        for name in _STATE:
            value = tree[name]
            setattr(self, f"_{name}", value.copy() if isinstance(value, np.ndarray) else value)

    def _judge(self, at: HookContext) -> None:
        """Compare a window with what honest runs show."""
        rows, gradients, embeddings = (np.concatenate(each) for each in zip(*self._window, strict=True))
        gradients = gradients.astype(np.float64)
        lengths = np.sqrt(np.einsum("ij,ij->i", gradients, gradients))
        is_zero = lengths == 0
        self._judge_zeros(lengths, is_zero & (embeddings > 0).any(axis=1), at)
        units = gradients / np.where(is_zero, 1.0, lengths)[:, None]
        by_length = float(np.linalg.norm(gradients.sum(axis=0))) / max(float(lengths.sum()), 1e-300)
        one_way = min(by_length, float(np.linalg.norm(units.mean(axis=0))))
        if lengths.sum() ** 2 < EVEN * len(lengths) * (lengths**2).sum():
            one_way = 0.0
        is_warm = self._batches > WINDOW * WARM_UP
        if is_warm:
            self._note("one direction", one_way)
        self._streak = self._streak + 1 if is_warm and one_way > ONE_DIRECTION else 0
        if self._streak >= PATIENCE:
            self._alarm("one direction", f"{one_way:.0%} of all pull goes the same way for every row", at)
        energies, directions = np.linalg.eigh(units.T @ units)
        share = np.cumsum(energies[::-1]) / max(float(energies.sum()), 1e-300)
        self._figures["spectrum"] = float(share[min(3, len(share)) - 1])
        n_kept = min(DIRECTIONS, int(np.searchsorted(share, ENERGY)) + 1)
        along = units @ directions[:, ::-1][:, :n_kept]
        np.add.at(self._off, rows, 1 - np.einsum("ij,ij->i", along, along))
        np.add.at(self._times, rows, 1)

    def _judge_zeros(self, lengths: Float64Array, is_zero: NDArray[np.bool_], at: HookContext) -> None:
        """Compare the share of zero rows with what a fit that saturates shows."""
        zeros = float(is_zero.mean())
        self._note("zero rows", zeros)
        if zeros:
            self._saturated = self._saturated or _saturates(lengths[lengths > 0])
        allowed = ZERO_ROWS_AT_FIRST if self._batches == WINDOW else ZERO_ROWS
        if self._party.plan.settings.get("fusion", "concat") != "concat":
            allowed = ZERO_ROWS_OF_SUMS
        if zeros > allowed and not self._saturated:
            self._alarm("zero rows", f"{zeros:.0%} of rows have a gradient of exactly zero", at)

    def _judge_lengths(self, at: HookContext) -> None:
        """Compare the lengths of the first gradients with a rehearsal."""
        gradients = [gradient for _, gradient, _ in self._window]
        lengths = np.linalg.norm(np.concatenate(gradients).astype(np.float64), axis=1)
        lengths = lengths[lengths > 0]
        if not len(lengths):
            return
        width, batch = gradients[0].shape[1], len(gradients[0])
        rehearsed = [_lengths_in_rehearsal(self._party, width, batch, n, self._place) for n in CLUSTERS]
        self._note("norm ratio", ratio := _ratio(lengths))
        allowed = max(RATIO, OVER_REHEARSAL * max(map(_ratio, rehearsed)))
        if ratio > allowed:
            self._alarm(
                "norm ratio",
                f"the longest hundredth of the first gradients is {ratio:.0f} times as long as the median, and at most "
                f"{allowed:.0f} times was expected",
                at,
            )
        level, levels = float(lengths.mean()), [float(each.mean()) for each in rehearsed]
        low, high = min(levels) / SHORTER, max(levels) * LONGER
        self._note("norm level", level / float(np.mean(levels)))
        if not low <= level <= high:
            said = f"the first gradients are {level:.2g} long on average; {low:.2g} to {high:.2g} was expected"
            self._alarm("norm level", said, at)

    def _note(self, check: str, value: float) -> None:
        """Keep the largest value of a figure."""
        self._figures[check] = max(value, self._figures.get(check, 0.0))

    def _alarm(self, check: str, said: str, at: HookContext) -> None:
        """Raise an alarm, once for each check."""
        if check in self._alarms:
            return
        said = f"{said} (batch {self._batches})"
        self._alarms[check] = said
        words = (
            f"{self._party.name} expects gradients of an honest training from {at.peer}, but {said}: a sign of an "
            "attack that makes its network send what rebuilds its columns."
        )
        if check not in self._earlier:
            self._party.once(self._name_of(check), lambda: said)
            if self.policy == "abort":
                raise GuardAlarm(f"{words} Ask {at.peer} what it trains, or hold the guard with policy = 'pause'.")
            if self.policy == "pause":
                raise GuardAlarm(f"{words} To go on nevertheless, start the run again from the same folder.")
        # Otherwise the party has started the run again after the alarm, and so agrees.
        _log.warning("%s", words)

    def _name_of(self, check: str) -> str:
        return f"alarm {check} of guard {self._place}"


_STATE = ("off", "times", "batches", "streak", "saturated", "figures", "alarms", "window")


def _learning_rate(party: Party) -> float:
    """The fastest learning rate of the plan."""
    rate = party.plan.settings.get("learning_rate", RATE)
    return float(max(rate.values()) if isinstance(rate, Mapping) else rate)


def _saturates(lengths: Float64Array) -> bool:
    """Whether a tenth of the gradients that are not zero are next to nothing beside the others."""
    return bool(len(lengths)) and bool(np.quantile(lengths, 0.1) < SATURATED * np.quantile(lengths, 0.9))


def _ratio(lengths: Float64Array) -> float:
    """How much longer the longest hundredth is than the median."""
    median, high = np.quantile(lengths, [0.5, 0.99])
    return float(high / median)


def _lengths_in_rehearsal(party: Party, width: int, batch: int, n_clusters: int, place: int) -> Float64Array:
    """The lengths of the first gradients of a network that learns clusters of a party's own rows."""
    from sklearn.cluster import KMeans

    seed = party.random.seed("guard", place, n_clusters) % 2**32
    random = np.random.default_rng(seed)
    x = filled(party.own_table)
    x = x[random.permutation(len(x))[:REHEARSED_ROWS]]
    with warnings.catch_warnings():
        # Rows may be all alike.
        warnings.simplefilter("ignore")
        clusters = KMeans(min(n_clusters, len(x)), n_init=1, max_iter=20, random_state=seed).fit_predict(x)
    settings, found = party.plan.settings, []
    n_joined = 1 + (len(party.roles.features) if settings.get("fusion", "concat") == "concat" else 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        bottom: nn.Module = perceptron(x.shape[1], (64,), width)
        top: nn.Module = nn.Identity()
        if settings.get("top", "mlp") is not None:
            top = TOPS.get(str(settings.get("top")), TOPS["mlp"])(n_joined * width, n_clusters - 1)
        optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], _learning_rate(party))
        for _ in range(FIRST):
            rows = random.integers(len(x), size=max(1, batch))
            sent = bottom(torch.from_numpy(x[rows]).float())
            sent.retain_grad()
            # Embeddings of other parties, of which this one knows nothing but their number.
            others = sent.detach().std(correction=0) * torch.randn(len(rows), (n_joined - 1) * width)
            outputs = nn.functional.pad(top(torch.cat([sent, others], dim=1)), (0, 1))
            classes = torch.from_numpy(clusters[rows] % outputs.shape[1]).long()
            optimizer.zero_grad()
            nn.functional.cross_entropy(outputs, classes).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            assert sent.grad is not None
            found.append(sent.grad.norm(dim=1).double().numpy())
    lengths = np.concatenate(found)
    return lengths[lengths > 0]
