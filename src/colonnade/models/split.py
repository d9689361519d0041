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

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from colonnade.errors import DataError, PlanError, ProtocolError
from colonnade.hooks import At, Phase, Tensor, applied, prepare
from colonnade.models.base import Estimator, Prediction, require_classes
from colonnade.models.batches import Batches, hold_out, in_order
from colonnade.models.inputs import Inputs
from colonnade.models.nets import BottomFactory, TopFactory, bottom_named, top_named
from colonnade.party import Party
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.wire.message import Float32Array, Int64Array, Message

MOST_CLASSES = 10_000


@dataclass(frozen=True)
class Outline(Message, kind="split/outline"):
    """How wide an embedding the label party expects; with summed logits, the number of classes, which is public."""

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
        "feature": frozenset({"outgoing", "incoming", "loss", "modules"}),
    }

    sends: ClassVar[Mapping[str, tuple[type[Message], ...]]] = {"label": (Gradient,), "feature": (Embedding,)}

    classes_: NDArray[Any]
    inputs_: Inputs | None
    bottom_: nn.Module | None
    top_: nn.Module | None
    history_: list[dict[str, float]]
    defences_: list[Tree]

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
        self._prepare(party)
        train, held_out = hold_out(len(party.own_table), self.validation if self.patience else 0.0, party.shared)
        if not len(train):
            raise DataError(
                f"{party.name} has {len(party.own_table)} rows, of which none is left to train on when "
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
        self.defences_ = [defence.state() for defence in party.defences]
        return self

    def predict(self, party: Party) -> Prediction | None:
        """Predict together with the other parties; only the label party learns the result."""
        self.require_fitted("used to predict")
        self._prepare(party)
        for defence, learned in zip(party.defences, self.defences_, strict=False):
            defence.restore(learned)
        batches = in_order(np.arange(len(party.own_table)), self.batch_size)
        if not party.holds_labels:
            bottom = _Bottom(self, party)
            for step, rows in enumerate(batches):
                bottom.send(step, rows, phase="predict")
            return None
        joint = _Joint(self, party)
        probabilities = []
        for step, rows in enumerate(batches):
            at = At(step, 0, rows, "predict", n_classes=len(self.classes_))
            logits = joint.logits(joint.collect(step, rows, "predict"))
            scores, _ = applied(party.defences, "prediction", torch.softmax(logits, dim=1), at)
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
            "defences": self.defences_,
        }

    def take_share(self, tree: Tree) -> None:
        """Take up what `share` gave."""
        if tree["classes"] is not None:
            self.classes_ = np.array(tree["classes"])
        self.width_, self.n_joined_, self.history_ = tree["width"], tree["n_joined"], tree["history"]
        self.defences_ = tree["defences"]
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

    def _prepare(self, party: Party) -> None:
        role = "label" if party.holds_labels else "feature"
        prepare(party, self.hooks[role], self.sends[role], type(self).__name__)

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

    def optimiser_for(self, modules: list[nn.Module]) -> torch.optim.Optimizer | None:
        """The optimiser of one party's modules; None where there is nothing to train."""
        parameters = [p for module in modules for p in module.parameters()]
        if not parameters:
            return None
        if self.optimiser == "adam":
            return torch.optim.Adam(parameters, self.learning_rate, weight_decay=self.weight_decay)
        return torch.optim.SGD(parameters, self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay)


class _Bottom:
    """A party's own bottom network over its own rows, and what it sends of it."""

    def __init__(self, model: SplitClassifier, party: Party) -> None:
        assert model.inputs_ is not None
        assert model.bottom_ is not None
        self.party, self.module = party, model.bottom_
        self.values = torch.from_numpy(model.inputs_.encode(party.own_table))
        self.inputs = self.values
        self.penalty: Tensor | None = None

    def embed(self, rows: Int64Array, *, train: bool) -> Tensor:
        _set_mode(self.module, train=train)
        self.inputs = self.values.index_select(0, torch.from_numpy(rows))
        with torch.set_grad_enabled(train):
            out: Tensor = self.module(self.inputs)
        return out

    def send(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> Tensor:
        """Send the embedding of some rows to the label party; returns what a gradient for it goes into.

        That is what was sent, or, where a defence cut it off from the network, the embedding before (straight through).
        In training, `penalty` afterwards holds what defences add to the loss, if they do.
        """
        embedding = self.embed(rows, train=phase == "train")
        at = At(step, epoch or 0, rows, phase, own={"embedding": embedding}, inputs=self.inputs)
        self.penalty, penalised = None, tuple[str, ...]()
        if phase == "train" and self.party.defences:
            penalty, penalised = applied(self.party.defences, "loss", 0 * embedding.sum(), at)
            self.penalty = penalty if penalised else None
        at = replace(at, peer=self.party.roles.label, message=Embedding)
        sent, names = applied(self.party.defences, "outgoing", embedding, at)
        names = tuple(dict.fromkeys(penalised + names))
        message = Embedding(step, sent.detach().numpy())
        self.party.label_party.send(message, under=names, rows=rows, epoch=epoch)
        return sent if sent.requires_grad else embedding


class _Joint:
    """The label party's side of a forward pass: own and received embeddings, joined, through the top."""

    def __init__(self, model: SplitClassifier, party: Party) -> None:
        self.model, self.party = model, party
        self.bottom = None if model.bottom_ is None else _Bottom(model, party)
        self.received: dict[str, Tensor] = {}
        self.changed: tuple[str, ...] = ()

    def collect(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> dict[str, Tensor]:
        """Every party's embedding of some rows, by name; `received` afterwards holds the peers' as they came."""
        self.received, self.changed, embeddings = {}, (), {}
        for line in self.party.feature_parties:
            shape = (len(rows), self.model.width_)
            message = line.receive(Embedding, shape=shape, rows=rows, epoch=epoch)
            _require_answer(message, step, line.peer)
            came = torch.tensor(message.values, requires_grad=phase == "train")
            at = At(step, epoch or 0, rows, phase, peer=line.peer, message=Embedding)
            self.received[line.peer] = came
            embeddings[line.peer], names = applied(self.party.defences, "incoming", came, at)
            self.changed += names
        if self.bottom is not None:
            embeddings[self.party.name] = self.bottom.embed(rows, train=phase == "train")
        return embeddings

    def logits(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """The joint model's output; the label party's own embedding comes first."""
        ordered = [embeddings[name] for name in self.party.roles.holders if name in embeddings]
        joined = torch.cat(ordered, dim=1) if self.model.fusion == "concat" else torch.stack(ordered).sum(dim=0)
        if self.model.top_ is None:
            return joined
        with torch.set_grad_enabled(any(e.requires_grad for e in ordered)):
            out: Tensor = self.model.top_(joined)
        return out


class _Side(ABC):
    """One party's side of training: what it does in a step, and all it needs to go on after a crash."""

    modules: list[nn.Module]
    optimiser: torch.optim.Optimizer | None

    def __init__(self, model: SplitClassifier, party: Party) -> None:
        self.model, self.party = model, party
        self.history: list[dict[str, float]] = []
        self.best: list[Tree] = []

    def start(self, modules: list[nn.Module]) -> None:
        self.modules = modules + [module for defence in self.party.defences for module in defence.modules()]
        self.optimiser = self.model.optimiser_for(self.modules)
        self._parameters = [p for module in self.modules for p in module.parameters()]

    @abstractmethod
    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Do one step; returns figures to be shown."""

    @abstractmethod
    def ends_after(self, epoch: int, held_out: list[Int64Array]) -> bool:
        """Close an epoch; returns whether training ends with it."""

    def forget_gradients(self) -> None:
        # The optimiser's own zero_grad spends 30 microseconds on profiling, half as much as a message takes.
        for parameter in self._parameters:
            parameter.grad = None

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
            "optimiser": None if self.optimiser is None else _copied(self.optimiser.state_dict()),
            "best": self.best,
            "history": self.history,
        }

    def restore(self, tree: Tree) -> None:
        for module, saved in zip(self.modules, tree["modules"], strict=True):
            module.load_state_dict(_tensors(saved))
        if self.optimiser is not None:
            self.optimiser.load_state_dict(_tensors(tree["optimiser"]))
        self.best, self.history = tree["best"], tree["history"]


class _FeatureSide(_Side):
    """A feature party in training: embeddings up, gradients down."""

    def __init__(self, model: SplitClassifier, party: Party, train: Int64Array) -> None:
        super().__init__(model, party)
        model.width_ = party.label_party.receive(Outline).width
        if model.width_ != model.embedding if model.top is not None else not 2 <= model.width_ <= MOST_CLASSES:
            wanted = f"{model.embedding}" if model.top is not None else f"2 to {MOST_CLASSES}"
            raise ProtocolError(
                f"{party.roles.label} asked for embeddings of width {model.width_}; the plan allows {wanted}. "
                "Check that both parties run the same plan."
            )
        _require_columns(party)
        model.n_joined_, model.top_ = 0, None
        model.inputs_ = Inputs.learned(party.own_table, train)
        model.bottom_ = bottom_named(model.bottom)(model.inputs_, model.width_)
        self.bottom = _Bottom(model, party)
        self.start([model.bottom_])

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        sent = self.bottom.send(step, rows, "train", epoch)
        line = self.party.label_party
        message = line.receive(Gradient, shape=tuple(sent.shape), rows=rows, epoch=epoch)
        _require_answer(message, step, line.peer)
        at = At(step, epoch, rows, "train", peer=line.peer, message=Gradient, own={"embedding": sent.detach()})
        gradient, _ = applied(self.party.defences, "incoming", torch.tensor(message.values), at)
        if self.optimiser is not None:
            self.forget_gradients()
            penalty = self.bottom.penalty
            roots, gradients = ([sent], [gradient]) if penalty is None else ([sent, penalty], [gradient, None])
            torch.autograd.backward(roots, gradients)
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
        table = party.own_table
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
        self.start(modules)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        if self.model.top_ is not None:
            _set_mode(self.model.top_, train=True)
        embeddings = self.joint.collect(step, rows, "train", epoch)
        received, defences = self.joint.received, self.party.defences
        own = {"embedding": embeddings[self.party.name]} if self.party.name in embeddings else {}
        n_classes = len(self.model.classes_)
        at = At(step, epoch, rows, "train", own=own, received=received, n_classes=n_classes)
        labels, relabelled = applied(defences, "labels", self.labels.index_select(0, torch.from_numpy(rows)), at)
        logits = self.joint.logits(embeddings)
        at = replace(at, labels=labels, outputs=logits)
        loss, reweighed = applied(defences, "loss", nn.functional.cross_entropy(logits, labels), at)
        self.forget_gradients()
        loss.backward(retain_graph=bool(defences))  # type: ignore[no-untyped-call]
        for line in self.party.feature_parties:
            came = received[line.peer]
            gradient = torch.zeros_like(came) if came.grad is None else came.grad
            about = replace(at, peer=line.peer, message=Gradient, gradient_if=_gradient_if(logits, came))
            gradient, blurred = applied(defences, "outgoing", gradient, about)
            message = Gradient(step, gradient.detach().numpy())
            under = tuple(dict.fromkeys(self.joint.changed + relabelled + reweighed + blurred))
            line.send(message, under=under, rows=rows, epoch=epoch)
        if self.optimiser is not None:
            self.optimiser.step()
        value = loss.item()
        self.losses.append(value)
        return {"loss": value}

    def ends_after(self, epoch: int, held_out: list[Int64Array]) -> bool:
        record = {"epoch": epoch, "loss": float(np.mean(self.losses))}
        self.losses = []
        self.history.append(record)
        if not held_out:
            return False
        record["validation_loss"], under = self._validation_loss(epoch, held_out)
        best = min(range(len(self.history)), key=lambda i: self.history[i]["validation_loss"])
        improved = best == epoch
        assert self.model.patience is not None
        stop = epoch - best >= self.model.patience
        self.keep_if_best(improved)
        for line in self.party.feature_parties:
            line.send(Verdict(epoch, int(improved), int(stop)), under=under)
        return stop

    def state(self) -> Tree:
        return {**super().state(), "losses": self.losses}

    def restore(self, tree: Tree) -> None:
        super().restore(tree)
        self.losses = tree["losses"]

    def _validation_loss(self, epoch: int, held_out: list[Int64Array]) -> tuple[float, tuple[str, ...]]:
        """The loss on held-out rows, and the defences that had a hand in their labels."""
        if self.model.top_ is not None:
            self.model.top_.eval()
        total, names = 0.0, dict[str, None]()
        for step, rows in enumerate(held_out):
            logits = self.joint.logits(self.joint.collect(step, rows, "validate", epoch))
            n_classes = len(self.model.classes_)
            at = At(step, epoch, rows, "validate", received=self.joint.received, n_classes=n_classes)
            labels, relabelled = applied(self.party.defences, "labels", self.labels[torch.from_numpy(rows)], at)
            names |= dict.fromkeys(relabelled)
            total += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        return total / sum(len(rows) for rows in held_out), tuple(names)


def _gradient_if(logits: Tensor, received: Tensor) -> Callable[[Tensor], Tensor]:
    """What the gradient at the cut would be if the labels of the batch were others."""

    def gradient_if(labels: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(logits, labels)
        return torch.autograd.grad(loss, received, retain_graph=True)[0]

    return gradient_if


def _require_answer(message: Embedding | Gradient, step: int, peer: str) -> None:
    if message.step != step:
        raise ProtocolError(
            f"Expected {message.kind} for step {step} from {peer}, got one for step {message.step}. "
            "Check that both parties run the same plan."
        )
    # One sum takes a third of the time of looking at each number, and is finite only if all are.
    with np.errstate(invalid="ignore", over="ignore"):
        total = message.values.sum()
    if not np.isfinite(total):
        raise ProtocolError(
            f"{message.kind} from {peer} at step {step} holds numbers that are not finite. "
            "Lower the learning rate, and check the peer's columns for extreme values."
        )


def _require_columns(party: Party) -> None:
    if not party.own_table.columns:
        raise DataError(f"{party.name} is a feature party but its table has no columns besides the ids. Bring some.")


def _set_mode(module: nn.Module, *, train: bool) -> None:
    """Put a module into training or evaluation, unless it is there: going through all its parts takes time."""
    if module.training != train:
        module.train(train)


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
