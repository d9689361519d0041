"""Split network: features of several parties, one party's labels, one model.

    feature party                             label party
         ◀──────────────────────────────── Outline            once
         Embedding(batch) ─────────────────────────▶
         ◀──────────────────────────── Gradient(batch)        once per batch
         Embedding(held-out rows) ─────────────────▶
         ◀──────────────────────────────── Verdict            once per epoch, if there is early stopping
         Embedding(batch) ─────────────────────────▶          once per batch of a prediction

The label party learns the embeddings, from which columns can be reconstructed. A feature party learns the width of its
embedding, the gradients at the cut, from which labels can be inferred (see colonnade.attacks) unless a defence is held,
and after which epochs the joint model got better on held-out rows. Of a prediction it learns only that it took place.
With `fusion="sum"` and no top network the embeddings are the parties' shares of the logits, and their width is the
number of classes.

Gupta and Raskar 2018, arXiv 1810.06060; Vepakomma et al. 2018, arXiv 1812.00564.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from colonnade.errors import DataError, PlanError
from colonnade.hooks import At, Phase, Tensor, prepare
from colonnade.models.base import Estimator, Prediction, require_classes
from colonnade.models.batches import Batches, hold_out, in_order
from colonnade.models.inputs import Inputs
from colonnade.models.nets import BottomFactory, TopFactory, bottom_named, top_named
from colonnade.party import Party
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.wire.message import Float32Array, Int64Array, Message


@dataclass(frozen=True)
class Outline(Message, kind="split/outline"):
    """How wide an embedding the label party expects; with summed logits this is the number of classes, which is public."""

    width: int


@dataclass(frozen=True)
class Embedding(Message, kind="split/embedding", reveals={Secret.FEATURES}, per_row="values"):
    """A feature party's output at the cut, one row per sample of the batch."""

    step: int
    values: Float32Array


@dataclass(frozen=True)
class Gradient(Message, kind="split/gradient", reveals={Secret.LABELS}, per_row="values"):
    """Loss gradient at the cut, one row per sample of the batch."""

    step: int
    values: Float32Array


@dataclass(frozen=True)
class Verdict(Message, kind="split/verdict", reveals={Secret.LABELS}):
    """Whether the model got better on held-out rows, and whether training ends here."""

    epoch: int
    improved: int
    stop: int


class SplitClassifier(Estimator):
    """A classifier cut into a bottom network at each party and a top network at the label party.

    Args:
        embedding: The width of each party's embedding; ignored where embeddings are logits.
        bottom: A name ("mlp") or a callable from `Inputs` and a width to a module.
        top: A name ("mlp", "linear") or a callable from two widths to a module; None only with `fusion="sum"`, where
            embeddings then are logits.
        fusion: How embeddings are joined: "concat" or "sum".
        optimiser: "adam" or "sgd", at every party.
        learning_rate: At every party.
        momentum: Of "sgd".
        weight_decay: At every party.
        batch_size: Rows per step.
        epochs: Passes over the training rows, at most.
        patience: Epochs without improvement on held-out rows before training stops; None trains to the end, and then
            nothing is held out.
        validation: The share of rows held out for that.

    >>> SplitClassifier(fusion="sum", top=None).get_params()["fusion"]
    'sum'
    """

    task: ClassVar[Literal["classification"]] = "classification"
    hooks: ClassVar[Mapping[str, frozenset[str]]] = {
        "label": frozenset({"labels", "outgoing", "incoming", "loss", "prediction", "modules"}),
        "feature": frozenset({"outgoing", "incoming", "modules"}),
    }

    classes_: NDArray[Any]
    inputs_: Inputs | None
    bottom_: nn.Module | None
    top_: nn.Module | None
    history_: list[dict[str, float]]

    def __init__(
        self,
        *,
        embedding: int = 16,
        bottom: str | BottomFactory = "mlp",
        top: str | TopFactory | None = "mlp",
        fusion: Literal["concat", "sum"] = "concat",
        optimiser: Literal["adam", "sgd"] = "adam",
        learning_rate: float = 3e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        batch_size: int = 256,
        epochs: int = 30,
        patience: int | None = 5,
        validation: float = 0.1,
    ) -> None:
        self.embedding = embedding
        self.bottom = bottom
        self.top = top
        self.fusion = fusion
        self.optimiser = optimiser
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.validation = validation

    def fit(self, party: Party) -> Self:
        """Train together with the other parties; afterwards this holds the party's share."""
        self._validate(party)
        role = "label" if party.holds_labels else "feature"
        prepare(party, self.hooks[role], type(self).__name__)
        train, held_out = hold_out(len(party.rows), self.validation if self.patience else 0.0, party.shared)
        if not len(train):
            raise DataError(
                f"{party.name} has {len(party.rows)} rows, of which none is left to train on when "
                f"{self.validation:.0%} are held out. Bring more rows or set patience to None."
            )
        batches = Batches(train, self.batch_size, party.shared)
        side: _Side = _LabelSide(self, party, train) if party.holds_labels else _FeatureSide(self, party, train)
        held_out_batches = in_order(held_out, self.batch_size)
        steps = party.steps(self.epochs * batches.per_epoch, side, name="train")
        for step in steps:
            epoch, rows = batches.at(step)
            steps.show(**side.train(step, epoch, rows))
            if (step + 1) % batches.per_epoch == 0 and side.ends_after(epoch, held_out_batches):
                steps.stop()
        side.finish()
        return self

    def predict(self, party: Party) -> Prediction | None:
        """Predict together with the other parties; only the label party learns the result."""
        self.require_fitted("used to predict")
        role = "label" if party.holds_labels else "feature"
        prepare(party, self.hooks[role], type(self).__name__)
        batches = in_order(np.arange(len(party.rows)), self.batch_size)
        if not party.holds_labels:
            bottom = _Bottom(self, party)
            for step, rows in enumerate(batches):
                bottom.send(step, rows, phase="predict")
            return None
        joint = _Joint(self, party)
        probabilities = []
        for step, rows in enumerate(batches):
            at = At(step, 0, rows, "predict")
            logits = joint.logits(joint.collect(step, rows, "predict"))
            scores = torch.softmax(logits, dim=1)
            for defence in party.defences:
                scores = defence.prediction(scores, at)
            probabilities.append(scores.numpy().astype(np.float64))
        joined = np.concatenate(probabilities)
        return Prediction(self.classes_[joined.argmax(axis=1)], joined)

    def share(self) -> Tree:
        """What this party has learned, as a tree of arrays and plain values."""
        return {
            "classes": self.classes_.tolist() if hasattr(self, "classes_") else None,
            "inputs": None if self.inputs_ is None else self.inputs_.state(),
            "width": self.width_,
            "n_joined": self.n_joined_,
            "bottom": None if self.bottom_ is None else self.bottom_.state_dict(),
            "top": None if self.top_ is None else self.top_.state_dict(),
            "history": self.history_,
        }

    def take_share(self, tree: Tree) -> None:
        """Take up what `share` gave."""
        if tree["classes"] is not None:
            self.classes_ = np.array(tree["classes"])
        self.width_, self.n_joined_, self.history_ = tree["width"], tree["n_joined"], tree["history"]
        self.inputs_ = None if tree["inputs"] is None else Inputs.of(tree["inputs"])
        self.bottom_ = self.top_ = None
        if self.inputs_ is not None:
            self.bottom_ = _loaded(bottom_named(self.bottom)(self.inputs_, self.width_), tree["bottom"])
        if tree["top"] is not None:
            assert self.top is not None
            self.top_ = _loaded(top_named(self.top)(self.n_joined_, len(self.classes_)), tree["top"])

    @classmethod
    def is_factory(cls, name: str, value: Any) -> bool:
        """Whether a saved parameter names a callable that must be given again."""
        return name in ("bottom", "top") and isinstance(value, str) and "." in value

    def summary(self) -> str:
        """What the model is, and what each role learns, in a few lines."""
        cut = "shares of the logits" if self.top is None else f"embeddings of width {self.embedding}"
        lines = [
            f"SplitClassifier: {cut}, joined by {self.fusion}; {self.optimiser}, learning rate {self.learning_rate:g}.",
            "Encryption: none; a receiver reads what it is sent. Threat model: curious parties that keep to the rules.",
            "The label party learns every embedding. A feature party learns gradients at the cut, hence maybe labels.",
        ]
        if self.is_fitted:
            weights = sum(p.numel() for net in (self.bottom_, self.top_) if net is not None for p in net.parameters())
            lines.append(f"This share: {weights} weights after {len(self.history_)} epochs.")
        return "\n".join(lines)

    def _validate(self, party: Party) -> None:
        if party.roles.label is None or not party.roles.features:
            raise PlanError(
                f"A split network needs a label party and at least one feature party, but the roles are {party.roles}. "
                "Name both."
            )
        for name, holds, wanted in (
            ("embedding", self.embedding >= 1, "at least 1"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("epochs", self.epochs >= 1, "at least 1"),
            ("learning_rate", self.learning_rate > 0, "above 0"),
            ("validation", 0 < self.validation < 1, "between 0 and 1"),
            ("patience", self.patience is None or self.patience >= 1, "None or at least 1"),
            ("fusion", self.fusion in ("concat", "sum"), "'concat' or 'sum'"),
            ("optimiser", self.optimiser in ("adam", "sgd"), "'adam' or 'sgd'"),
            ("top", self.top is not None or self.fusion == "sum", "a network unless fusion is 'sum'"),
        ):
            if not holds:
                raise PlanError(
                    f"SplitClassifier's {name} should be {wanted}, but is {getattr(self, name)!r}. Change it."
                )

    def optimiser_for(self, *modules: nn.Module) -> torch.optim.Optimizer:
        """The optimiser of one party's modules."""
        parameters = [p for module in modules for p in module.parameters()]
        if self.optimiser == "adam":
            return torch.optim.Adam(parameters, self.learning_rate, weight_decay=self.weight_decay)
        return torch.optim.SGD(parameters, self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay)


class _Bottom:
    """A party's own bottom network over its own rows, and what it sends of it."""

    def __init__(self, model: SplitClassifier, party: Party) -> None:
        assert model.inputs_ is not None
        assert model.bottom_ is not None
        self.party, self.module = party, model.bottom_
        self.values = torch.from_numpy(model.inputs_.encode(party.rows))
        self._protections = tuple(d.name for d in party.defences if "outgoing" in d.overridden())

    def embed(self, rows: Int64Array, *, train: bool) -> Tensor:
        self.module.train(train)
        with torch.set_grad_enabled(train):
            out: Tensor = self.module(self.values[torch.from_numpy(rows)])
        return out

    def send(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> Tensor:
        """Send the embedding of some rows to the label party; returns what was sent, still differentiable."""
        embedding = self.embed(rows, train=phase == "train")
        at = At(
            step, epoch or 0, rows, phase, peer=self.party.roles.label, message=Embedding, own={"embedding": embedding}
        )
        for defence in self.party.defences:
            embedding = defence.outgoing(embedding, at)
        message = Embedding(step, embedding.detach().numpy())
        self.party.label_party.send(message, under=self._protections, rows=rows, epoch=epoch)
        return embedding


class _Joint:
    """The label party's side of a forward pass: own and received embeddings, joined, through the top."""

    def __init__(self, model: SplitClassifier, party: Party) -> None:
        self.model, self.party = model, party
        self.bottom = None if model.bottom_ is None else _Bottom(model, party)

    def collect(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> dict[str, Tensor]:
        """Every feature party's embedding of some rows, by name."""
        received = {}
        for line in self.party.feature_parties:
            shape = (len(rows), self.model.width_)
            message = line.receive(Embedding, shape=shape, rows=rows, epoch=epoch)
            embedding = torch.tensor(message.values)
            at = At(step, epoch or 0, rows, phase, peer=line.peer, message=Embedding)
            for defence in self.party.defences:
                embedding = defence.incoming(embedding, at)
            received[line.peer] = embedding
        if self.bottom is not None:
            received[self.party.name] = self.bottom.embed(rows, train=phase == "train")
        return received

    def logits(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """The joint model's output; the label party's own embedding comes first."""
        ordered = [embeddings[name] for name in self.party.roles.holders if name in embeddings]
        joined = torch.cat(ordered, dim=1) if self.model.fusion == "concat" else torch.stack(ordered).sum(dim=0)
        if self.model.top_ is None:
            return joined
        with torch.set_grad_enabled(any(e.requires_grad for e in ordered)):
            out: Tensor = self.model.top_(joined)
        return out


class _Side:
    """One party's side of training: what it does in a step, and all it needs to go on after a crash."""

    modules: list[nn.Module]
    optimiser: torch.optim.Optimizer

    def __init__(self, model: SplitClassifier, party: Party) -> None:
        self.model, self.party = model, party
        self.history: list[dict[str, float]] = []
        self.best: list[Tree] = []

    def start(self, modules: list[nn.Module]) -> None:
        self.modules = modules + [module for defence in self.party.defences for module in defence.modules()]
        self.optimiser = self.model.optimiser_for(*self.modules)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        raise AssertionError("each side trains in its own way")

    def ends_after(self, epoch: int, held_out: list[Int64Array]) -> bool:
        raise AssertionError("each side judges an epoch in its own way")

    def keep_if_best(self, improved: bool) -> None:
        if improved:
            self.best = [_copied(module.state_dict()) for module in self.modules]

    def finish(self) -> None:
        for module, best in zip(self.modules, self.best, strict=bool(self.best)):
            module.load_state_dict(_tensors(best))
        for module in self.modules:
            module.eval()
        self.model.history_ = self.history

    def state(self) -> Tree:
        return {
            "modules": [_copied(module.state_dict()) for module in self.modules],
            "optimiser": _copied(self.optimiser.state_dict()),
            "best": self.best,
            "history": self.history,
        }

    def restore(self, tree: Tree) -> None:
        for module, saved in zip(self.modules, tree["modules"], strict=True):
            module.load_state_dict(_tensors(saved))
        self.optimiser.load_state_dict(_tensors(tree["optimiser"]))
        self.best, self.history = tree["best"], tree["history"]


class _FeatureSide(_Side):
    """A feature party in training: embeddings up, gradients down."""

    def __init__(self, model: SplitClassifier, party: Party, train: Int64Array) -> None:
        super().__init__(model, party)
        model.width_ = party.label_party.receive(Outline).width
        if model.width_ < 1:
            raise DataError(
                f"{party.roles.label} asked for embeddings of width {model.width_}; it should be at least 1."
            )
        _require_columns(party)
        model.n_joined_, model.top_ = 0, None
        model.inputs_ = Inputs.learned(party.rows, train)
        model.bottom_ = bottom_named(model.bottom)(model.inputs_, model.width_)
        self.bottom = _Bottom(model, party)
        self.start([model.bottom_])

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        sent = self.bottom.send(step, rows, "train", epoch)
        line = self.party.label_party
        message = line.receive(Gradient, shape=tuple(sent.shape), rows=rows, epoch=epoch)
        gradient = torch.tensor(message.values)
        at = At(step, epoch, rows, "train", peer=line.peer, message=Gradient, own={"embedding": sent.detach()})
        for defence in self.party.defences:
            gradient = defence.incoming(gradient, at)
        self.optimiser.zero_grad()
        sent.backward(gradient)  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return {}

    def ends_after(self, epoch: int, held_out: list[Int64Array]) -> bool:
        self.history.append({"epoch": epoch})
        if not held_out:
            return False
        for step, rows in enumerate(held_out):
            self.bottom.send(step, rows, "validate", epoch)
        verdict = self.party.label_party.receive(Verdict)
        self.keep_if_best(bool(verdict.improved))
        return bool(verdict.stop)


class _LabelSide(_Side):
    """The label party in training: joins embeddings, computes the loss, returns gradients."""

    def __init__(self, model: SplitClassifier, party: Party, train: Int64Array) -> None:
        super().__init__(model, party)
        table = party.rows
        if table.labels is None:
            raise DataError(f"{party.name} is the label party but its table has no labels. Name the label column.")
        labels = np.asarray(table.labels)
        model.classes_ = require_classes(labels, party.name)
        model.width_ = len(model.classes_) if model.top is None else model.embedding
        for line in party.feature_parties:
            line.send(Outline(model.width_))
        self.labels = torch.from_numpy(np.searchsorted(model.classes_, labels))
        modules: list[nn.Module] = []
        model.inputs_ = model.bottom_ = model.top_ = None
        if table.columns:
            model.inputs_ = Inputs.learned(table, train)
            model.bottom_ = bottom_named(model.bottom)(model.inputs_, model.width_)
            modules.append(model.bottom_)
        n_embeddings = len(party.feature_parties) + (model.bottom_ is not None)
        model.n_joined_ = model.width_ * (n_embeddings if model.fusion == "concat" else 1)
        if model.top is not None:
            model.top_ = top_named(model.top)(model.n_joined_, len(model.classes_))
            modules.append(model.top_)
        self.joint = _Joint(model, party)
        self.losses: list[float] = []
        self._protections = tuple(
            d.name for d in party.defences if d.overridden() & {"labels", "outgoing", "loss", "modules"}
        )
        self.start(modules)

    def start(self, modules: list[nn.Module]) -> None:
        super().start(modules or [nn.Identity()])

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        if self.model.top_ is not None:
            self.model.top_.train()
        embeddings = self.joint.collect(step, rows, "train", epoch)
        peers = {line.peer: embeddings[line.peer].requires_grad_() for line in self.party.feature_parties}
        own = {name: e for name, e in embeddings.items() if name not in peers}
        at = At(step, epoch, rows, "train", own=own, received=peers)
        labels = self.labels[torch.from_numpy(rows)]
        for defence in self.party.defences:
            labels = defence.labels(labels, at)
        at = At(step, epoch, rows, "train", labels=labels, own=own, received=peers)
        loss = nn.functional.cross_entropy(self.joint.logits(embeddings), labels)
        for defence in self.party.defences:
            loss = defence.loss(loss, at)
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for line in self.party.feature_parties:
            gradient = peers[line.peer].grad
            assert gradient is not None
            at = At(
                step,
                epoch,
                rows,
                "train",
                peer=line.peer,
                message=Gradient,
                labels=labels,
                own=own,
                received=peers,
                gradient_if=self._gradient_if(embeddings, line.peer),
            )
            for defence in self.party.defences:
                gradient = defence.outgoing(gradient, at)
            message = Gradient(step, gradient.detach().numpy())
            line.send(message, under=self._protections, rows=rows, epoch=epoch)
        self.optimiser.step()
        self.losses.append(loss.item())
        return {"loss": loss.item()}

    def ends_after(self, epoch: int, held_out: list[Int64Array]) -> bool:
        record = {"epoch": epoch, "loss": float(np.mean(self.losses))}
        self.losses = []
        self.history.append(record)
        if not held_out:
            return False
        record["validation_loss"] = self._validation_loss(epoch, held_out)
        best = min(range(len(self.history)), key=lambda i: self.history[i]["validation_loss"])
        improved = best == epoch
        assert self.model.patience is not None
        stop = epoch - best >= self.model.patience
        self.keep_if_best(improved)
        for line in self.party.feature_parties:
            line.send(Verdict(epoch, int(improved), int(stop)))
        return stop

    def state(self) -> Tree:
        return {**super().state(), "losses": self.losses}

    def restore(self, tree: Tree) -> None:
        super().restore(tree)
        self.losses = tree["losses"]

    def _validation_loss(self, epoch: int, held_out: list[Int64Array]) -> float:
        if self.model.top_ is not None:
            self.model.top_.eval()
        total = 0.0
        for step, rows in enumerate(held_out):
            logits = self.joint.logits(self.joint.collect(step, rows, "validate", epoch))
            labels = self.labels[torch.from_numpy(rows)]
            total += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        return total / sum(len(rows) for rows in held_out)

    def _gradient_if(self, embeddings: Mapping[str, Tensor], peer: str) -> Callable[[Tensor], Tensor]:
        def gradient_if(labels: Tensor) -> Tensor:
            leaves = {name: e.detach() for name, e in embeddings.items()}
            leaves[peer].requires_grad_()
            loss = nn.functional.cross_entropy(self.joint.logits(leaves), labels)
            return torch.autograd.grad(loss, leaves[peer])[0]

        return gradient_if


def _require_columns(party: Party) -> None:
    if not party.rows.columns:
        raise DataError(f"{party.name} is a feature party but its table has no columns besides the ids. Bring some.")


def _loaded(module: nn.Module, saved: Tree) -> nn.Module:
    module.load_state_dict(_tensors(saved))
    return module.eval()


def _copied(tree: Tree) -> Tree:
    """A state dictionary as arrays of its own, so that later steps do not change it."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu().numpy().copy()
    if isinstance(tree, Mapping):
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_copied(value) for value in tree]
    return tree


def _tensors(tree: Tree) -> Any:
    """The state dictionary that `_copied` took apart."""
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(tree.copy())
    if isinstance(tree, Mapping):
        return {key: _tensors(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_tensors(value) for value in tree]
    return tree
