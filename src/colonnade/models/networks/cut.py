"""The cut of a split network: what crosses it, and both of its ends.

`Bottom` is the end that sends embeddings and is told gradients. `Gathering` is the end that joins what several parties
send and gives gradients back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from colonnade.errors import DataError, ProtocolError
from colonnade.models.networks.training import as_array, set_mode
from colonnade.runtime.hooks import At, Phase, Tensor, applied, applied_where
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.tables.encode import Inputs, present_rows
from colonnade.wire.channel import Channel
from colonnade.wire.message import Float32Array, Int64Array, Message

if TYPE_CHECKING:
    from colonnade.models.networks.split import SplitNetwork


@dataclass(frozen=True)
class Outline(Message, kind="split/outline"):
    """How wide an embedding the label party expects; with summed logits, the number of classes, which is public."""

    width: int


@dataclass(frozen=True)
class Embedding(Message, kind="split/embedding", reveals={Secret.FEATURES}, per_row="values"):
    """A party's output at the cut, one row per sample of the batch; NaN for a sample that the party does not hold."""

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


class Bottom:
    """A party's bottom network over its own rows; with a line, the end of the cut that sends.

    Args:
        model: Whose bottom it is.
        party: The party that has it.
        line: Where embeddings go; None where they stay.
        name: What hooks call the embedding.
    """

    def __init__(self, model: SplitNetwork, party: Party, line: Channel | None, name: str = "embedding") -> None:
        assert model.inputs_ is not None
        assert model.bottom_ is not None
        self.party, self.line, self.name, self.machine = party, line, name, model.machine
        self.module = model.bottom_.to(self.machine.device)
        self.values = torch.from_numpy(model.inputs_.encode(party.own_table)).to(self.machine.device)
        self.inputs = self.values[:0]
        self.present: NDArray[np.bool_] | None = None
        if line is not None and model.overlap == "partial":
            self.present = present_rows(party.own_table)

    def embed(self, rows: Int64Array, *, train: bool) -> Tensor:
        """The embedding of some rows; `inputs` afterwards holds what it was made from."""
        set_mode(self.module, train=train)
        index = self.machine.index(rows)
        self.inputs = self.values.index_select(0, index)
        with torch.set_grad_enabled(train), self.machine.autocast():
            out: Tensor = self.module(self.inputs)
        return out.float()

    def send(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None, *, weighs: bool = True) -> Sent:
        """Send the embedding of some rows.

        Args:
            step: The number of the batch.
            rows: Its rows.
            phase: What it is sent for.
            epoch: In which pass over the data.
            weighs: Whether defences may ask for a penalty here; a party that has a loss of its own asks them there.
        """
        assert self.line is not None
        embedding = sent = self.embed(rows, train=phase == "train")
        held = self._held(rows)
        penalty: Tensor | None = None
        under: tuple[str, ...] = ()
        if self.party.defences:
            own = {self.name: embedding}
            at = At(step, epoch or 0, rows, phase, own=own, inputs=self.inputs)
            penalty, weighed = self._penalty(embedding, at, held) if weighs and phase == "train" else (None, ())
            at = replace(at, peer=self.line.peer, message=Embedding)
            sent, changed = applied_where(held, self.party.defences, "outgoing", embedding, at)
            under = tuple(dict.fromkeys(weighed + changed))
        values = as_array(sent if held is None else torch.where(held[:, None], sent, torch.nan))
        self.line.send(Embedding(step, values), under=under, rows=rows, epoch=epoch)
        # Where a defence cut it off from the network, the gradient goes straight through.
        return Sent(sent if sent.requires_grad else embedding, penalty)

    def send_all(self, batches: Sequence[Int64Array], phase: Phase = "predict", epoch: int | None = None) -> None:
        """Send the embeddings of many rows, from which nothing comes back."""
        for step, rows in enumerate(batches):
            self.send(step, rows, phase, epoch)

    def learn(self, sent: Sent, step: int, rows: Int64Array, epoch: int) -> None:
        """Wait for the gradient of what was sent, and trace it back through the network."""
        assert self.line is not None
        embedding = sent.embedding
        message = self.line.receive(Gradient, shape=tuple(embedding.shape), rows=rows, epoch=epoch)
        require_answer(message, message.values, step, self.line.peer)
        held = self._held(rows)
        gradient = _only(self.machine.tensor(message.values), held)
        if self.party.defences:
            own = {self.name: embedding.detach()}
            at = At(step, epoch, rows, "train", self.line.peer, Gradient, own=own, inputs=self.inputs)
            gradient, _ = applied_where(held, self.party.defences, "incoming", gradient, at)
        if not embedding.requires_grad:
            return
        if sent.penalty is None:
            embedding.backward(gradient)  # type: ignore[no-untyped-call]
        else:
            torch.autograd.backward([embedding, sent.penalty], [gradient, None])

    def _held(self, rows: Int64Array) -> Tensor | None:
        """Which rows this party holds; None if all."""
        return None if self.present is None else torch.from_numpy(self.present[rows]).to(self.machine.device)

    def _penalty(self, embedding: Tensor, at: At, held: Tensor | None) -> tuple[Tensor | None, tuple[str, ...]]:
        """What this party's own defences add to a loss that it does not know."""
        if not embedding.requires_grad or (held is not None and not held.any()):
            return None, ()
        nothing = embedding.sum() * 0
        penalty, names = applied(self.party.defences, "loss", nothing, at if held is None else at.about(held))
        return (None if penalty is nothing or not penalty.requires_grad else penalty), names


@dataclass(frozen=True)
class Sent:
    """What a gradient goes into: the embedding that was sent, and what the sender's own defences ask for."""

    embedding: Tensor
    penalty: Tensor | None


class Gathering:
    """The end of the cut that joins what several parties send, and gives gradients back.

    Args:
        model: Whose top takes what is joined.
        party: The party that has it.
        lines: Whom embeddings come from, in the order in which they are joined.
    """

    def __init__(self, model: SplitNetwork, party: Party, lines: Sequence[Channel]) -> None:
        self.model, self.party, self.lines, self.machine = model, party, lines, model.machine
        self.partial = model.overlap == "partial"
        self.received: dict[str, Tensor] = {}
        self.held: dict[str, Tensor] = {}
        self.changed: tuple[str, ...] = ()

    def collect(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> list[Tensor]:
        """The peers' embeddings of some rows, in order; `received` afterwards holds them as they came.

        Where not all hold all rows, `held` says who holds which. `changed` names the defences that changed some of the
        embeddings, and so the gradients in them.
        """
        self.received, self.held, self.changed, embeddings = {}, {}, (), []
        for line in self.lines:
            shape = (len(rows), self.model.width_)
            message = line.receive(Embedding, shape=shape, rows=rows, epoch=epoch)
            values = self._filled(message.values, line.peer) if self.partial else message.values
            require_answer(message, values, step, line.peer)
            came = self.machine.tensor(values, requires_grad=phase == "train")
            self.received[line.peer] = used = came
            if self.party.defences:
                at = At(step, epoch or 0, rows, phase, peer=line.peer, message=Embedding)
                used, names = applied_where(self.held.get(line.peer), self.party.defences, "incoming", came, at)
                self.changed += names
            embeddings.append(used)
        return self._completed(embeddings) if self.partial else embeddings

    def joined(self, own: Sequence[Tensor], embeddings: Sequence[Tensor]) -> Tensor:
        """All embeddings as one, the own ones first."""
        parts = [*own, *embeddings]
        if self.model.fusion == "concat":
            return torch.cat(parts, dim=1)
        total = torch.stack(parts).sum(dim=0)
        if self.model.fusion == "sum":
            return total
        if not self.partial:
            return total / len(parts)
        count = torch.stack(list(self.held.values())).sum(dim=0) + len(own)
        return total / count.clamp_min(1)[:, None]

    def give_back(self, step: int, at: At, gradient_if: GradientIf | None, under: tuple[str, ...]) -> None:
        """Send every peer the gradient in what it had sent: zeros where that was nothing, whatever a defence does."""
        for line in self.lines:
            came, held = self.received[line.peer], self.held.get(line.peer)
            gradient, names = torch.zeros_like(came) if came.grad is None else _only(came.grad, held), under
            if self.party.defences:
                hypothetical = None if gradient_if is None else gradient_if(came)
                about = replace(at, peer=line.peer, message=Gradient, gradient_if=hypothetical)
                gradient, blurred = applied_where(held, self.party.defences, "outgoing", gradient, about)
                names = tuple(dict.fromkeys(self.changed + under + blurred))
            line.send(Gradient(step, as_array(gradient)), under=names, rows=at.rows, epoch=at.epoch)

    def _filled(self, values: Float32Array, peer: str) -> Float32Array:
        """Note which rows a peer holds, and put zeros in the place of the others."""
        missing = np.asarray(np.isnan(values).all(axis=1))
        self.held[peer] = torch.from_numpy(~missing).to(self.machine.device)
        return np.where(missing[:, None], np.float32(0), values)

    def _completed(self, embeddings: list[Tensor]) -> list[Tensor]:
        """Put a learned vector in the place of rows that a peer does not hold; a mean leaves them out instead."""
        if self.model.fusion == "mean":
            return [_only(e, held) for e, held in zip(embeddings, self.held.values(), strict=True)]
        assert self.model.stand_ins_ is not None
        rest = zip(embeddings, self.held.values(), self.model.stand_ins_, strict=True)
        return [torch.where(held[:, None], embedding, stand_in) for embedding, held, stand_in in rest]


def _only(values: Tensor, held: Tensor | None) -> Tensor:
    """Values of the rows that are held, and zeros for the others."""
    return values if held is None else torch.where(held[:, None], values, 0)


GradientIf = Callable[[Tensor], Callable[[Tensor], Tensor]]


def stand_ins(n_peers: int, width: int) -> nn.ParameterList:
    """New vectors for rows that a peer does not hold, one for each peer."""
    # Many tops begin with a ReLU, which lets no gradient through to zeros: they would never be learned.
    return nn.ParameterList(nn.Parameter(torch.full((width,), 0.01)) for _ in range(n_peers))


def gradient_if(loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor) -> GradientIf:
    """What the gradient in an embedding would be if the labels of the batch were others."""

    def in_embedding(received: Tensor) -> Callable[[Tensor], Tensor]:
        def for_labels(labels: Tensor) -> Tensor:
            return torch.autograd.grad(loss(outputs, labels), received, retain_graph=True)[0]

        return for_labels

    return in_embedding


def learned_inputs(model: SplitNetwork, party: Party, columns: Sequence[str] | None, train: Int64Array) -> Inputs:
    """What a party's columns look like on the rows it trains on."""
    table = party.own_table if columns is None else party.own_table.select(columns)
    if model.overlap == "partial" and not party.holds_labels:
        train = train[present_rows(table)[train]]
        if not len(train):
            raise DataError(
                f"{party.name} should hold some of the rows to train on, but all its columns are empty in all of them. "
                "Check the ids it was aligned by."
            )
    return Inputs.learned(table, train)


def require_columns(party: Party) -> None:
    """Refuse a feature party without columns."""
    if not party.own_table.columns:
        raise DataError(f"{party.name} is a feature party but its table has no columns besides the ids. Bring some.")


class Stepped(Protocol):
    """A message that belongs to a step."""

    kind: ClassVar[str]

    @property
    def step(self) -> int:
        """The step."""


def require_answer(message: Stepped, values: Float32Array, step: int, peer: str) -> None:
    """Refuse what belongs to another step or is not finite."""
    if message.step != step:
        raise ProtocolError(
            f"Expected {message.kind} for step {step} from {peer}, got one for step {message.step}. "
            "Check that both parties run the same plan."
        )
    # One sum takes a third of the time of looking at each number, and is finite only if all are.
    with np.errstate(invalid="ignore", over="ignore"):
        total = values.sum()
    if not np.isfinite(total):
        raise ProtocolError(
            f"{message.kind} from {peer} at step {step} holds numbers that are not finite. "
            "Lower the learning rate, and check the peer's columns for extreme values."
        )


def party_role(party: Party) -> str:
    """What a party does: "label", "feature" or "server"."""
    return "label" if party.holds_labels else "server" if party.name == party.roles.server else "feature"
