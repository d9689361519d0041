"""Split network: features of several parties, one party's labels, one model.

    feature party                             label party
         ◀───────────────────────── EmbeddingWidth            once
         Embedding(batch) ─────────────────────────▶
         ◀──────────────────────────── Gradient(batch)        once per batch
         Embedding(held-out rows) ─────────────────▶
         ◀─────────────────────────── EpochVerdict            once per epoch, if there is early stopping
         Embedding(batch) ─────────────────────────▶          once per batch of a prediction

The label party learns the embeddings, from which columns can be reconstructed. A feature party learns the width of its
embedding, the gradients at the cut, from which labels can be inferred (see colonnade.attacks) unless a defence is held,
and after which epochs the joint model got better on held-out rows. Of a prediction it learns only that it took place.
With `fusion="sum"` and no top network the embeddings are the parties' shares of the logits, and their width is the
number of classes. Where parties hold different rows, the label party learns which of them a feature party holds.

One step reads from top to bottom: `SplitFeatureSide.train` sends through `Bottom`; `SplitLabelSide.train` joins what
`EmbeddingCollector` receives, computes the loss, and sends gradients back. The label party chooses what stands between
embeddings and labels: see `tracks`. A server can hold the top network instead: see `server`.

Gupta and Raskar 2018, arXiv 1810.06060; Vepakomma et al. 2018, arXiv 1812.00564.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from colonnade.errors import ProtocolError
from colonnade.models.base import Prediction
from colonnade.models.batches import ordered_batches
from colonnade.models.networks.base import NetworkModel, scored
from colonnade.models.networks.embeddings import send_embeddings
from colonnade.models.networks.labelled import GradientIf, LabelledSide, LocalTrackRunner, gradient_if
from colonnade.models.networks.messages import Embedding, EmbeddingWidth, Gradient, RowCount
from colonnade.models.networks.share import LEARNED, Fusion, SplitSettings, SplitShare, require_columns
from colonnade.models.networks.targets import Classes, Numbers, learned_target
from colonnade.models.networks.tracks import Head, TracksChoice, head_of, tracks_of
from colonnade.models.networks.training import PRECISIONS, HostCopy, Machine, NetworkSide, require_known, trace_back
from colonnade.parameters import Limit, check_parameters, choice, number
from colonnade.runtime.context import HookContext, Phase, Tensor
from colonnade.runtime.hooks import applied, applied_where, is_used
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.tables.encode import present_rows
from colonnade.tables.table import Table
from colonnade.text import how_many
from colonnade.wire.channel import Channel
from colonnade.wire.message import Float32Array, Int64Array, Message


class SplitFeatureSide(NetworkSide[SplitShare]):
    """A feature party in training: embeddings up, gradients down.

    Both cross `line`, by default the line to the label party; `judge`, by default the same line, says when to stop.
    """

    def __init__(
        self,
        settings: SplitSettings,
        party: Party,
        train: Int64Array,
        line: Channel | None = None,
        judge: Channel | None = None,
    ) -> None:
        width = settings.embedding if line is not None else _asked_width(settings, party)
        require_columns(party)
        line = line or party.label_party
        self.judge_line = judge or line
        share = SplitShare(settings, party.name, width, len(party.feature_parties))
        networks = share.build_bottom(party, None, train, "bottom")
        self.bottom = Bottom(share, party, line)
        super().__init__(party, networks, settings.optimizers, share)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Send embeddings, learn from gradients."""
        sent = self.bottom.send(step, rows, "train", epoch)
        self.optimizers.forget_gradients()
        self.bottom.learn(sent, step, rows, epoch)
        self.optimizers.step()
        return {}

    def ends_by(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Send embeddings of held-out rows, and wait for the verdict on the epoch."""
        self.bottom.send_all(held_out, "validate", epoch)
        return self.await_verdict(epoch, self.judge_line)


class SplitLabelSide(LabelledSide):
    """The label party in training, or a server that is given labels: joins embeddings, returns gradients.

    Embeddings come over `lines`; over `told` go the verdicts on epochs.
    """

    def __init__(
        self,
        share: SplitShare,
        party: Party,
        labels: Tensor,
        networks: Mapping[str, nn.Module],
        *,
        lines: Sequence[Channel],
        told: Sequence[Channel],
    ) -> None:
        self.joint, self.told = JointForward(share, party, lines), told
        super().__init__(share, party, labels, networks)

    @classmethod
    def of(cls, settings: SplitSettings, party: Party, train: Int64Array) -> SplitLabelSide:
        """The label party's side."""
        target, labels = learned_target(settings.target, party)
        width = target.n_outputs if settings.top is None else settings.embedding
        for line in party.feature_parties:
            line.send(EmbeddingWidth(width))
        share = SplitShare(settings, party.name, width, len(party.feature_parties), target=target)
        networks = share.build_label_networks(party, train, labels)
        networks |= share.build_top(share.n_received + (share.bottom is not None), target.n_outputs)
        return cls(share, party, labels, networks, lines=party.feature_parties, told=party.feature_parties)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Collect embeddings, compute the losses of all tracks, send gradients back."""
        joint = self.joint
        passed = joint.forward(step, rows, "train", epoch)
        truth = self.labels.index_select(0, passed.index)
        received, held = dict(joint.collector.received), joint.collector.held
        # A server finds the label party's embedding among those that it receives.
        found = received.pop(str(self.party.roles.label), None) if passed.own is None else passed.own
        own, private = self.own_embeddings(found, passed.index)
        inputs = None if joint.bottom is None else joint.bottom.inputs
        at = HookContext(step, epoch, rows, "train", own=own, received=received, held=held, inputs=inputs)
        loss, at, under = self.loss(passed.outputs, truth, at)
        self.optimizers.forget_gradients()
        asks = is_used("outgoing", self.party.defences)
        trace_back(loss, retain_graph=asks)
        asked = gradient_if(self.target.loss, passed.outputs) if asks else None
        gradients, told = joint.collector.gradients(at, asked, under), self.machine.host_copy(loss)
        joint.collector.send_gradients(step, at, gradients)
        passed.trace_back()
        figures = {"loss": told.number()}
        if private is not None:
            assert passed.own is not None
            figures["local_loss"] = self.train_local(passed.own, private, passed.embeddings, truth, at)
        self.optimizers.step()
        return self.note(figures)

    def ends_by(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Compare with earlier epochs on held-out rows, and tell the others."""
        return self.judge(epoch, held_out, self._validate, self.told)

    def _validate(self, step: int, epoch: int, rows: Int64Array) -> tuple[Tensor, HookContext]:
        outputs, collector = self.joint.forward(step, rows, "validate", epoch).outputs, self.joint.collector
        return outputs, HookContext(step, epoch, rows, "validate", received=collector.received, held=collector.held)


@dataclass(frozen=True)
class SentEmbedding:
    """What a gradient goes into: the embedding that was sent, and the penalty that the sender's own defences add."""

    embedding: Tensor
    penalty: Tensor | None


class Bottom:
    """A party's bottom network over its own rows; with a line, the end of the cut that sends.

    Hooks call the embedding by the name that is given.
    """

    def __init__(self, share: SplitShare, party: Party, line: Channel | None, name: str = "embedding") -> None:
        assert share.inputs is not None
        assert share.bottom is not None
        self.party, self.line, self.name, self.machine = party, line, name, share.settings.machine
        self.module = share.bottom.to(self.machine.device)
        self.values = torch.from_numpy(share.inputs.encode(party.own_table)).to(self.machine.device)
        self.inputs = self.values[:0]
        self.present: NDArray[np.bool_] | None = None
        if line is not None and share.settings.partial:
            self.present = present_rows(party.own_table)

    def embed(self, index: Tensor, *, train: bool) -> Tensor:
        """The embedding of some rows; `inputs` afterwards holds what it was made from."""
        self.inputs = self.values.index_select(0, index)
        return self.machine.forward(self.module, self.inputs, train=train)

    def send(
        self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None, *, weighs: bool = True
    ) -> SentEmbedding:
        """Send the embedding of some rows.

        Defences may ask for a penalty here (`weighs`), except where the party computes a loss and asks them there.
        """
        assert self.line is not None
        embedding = sent = self.embed(self.machine.index(rows), train=phase == "train")
        held = self._held(rows)
        penalty: Tensor | None = None
        under: tuple[str, ...] = ()
        if self.party.defences:
            at = HookContext(step, epoch or 0, rows, phase, own={self.name: embedding}, inputs=self.inputs)
            penalty, weighed = self._penalty(embedding, at, held) if weighs and phase == "train" else (None, ())
            at = replace(at, peer=self.line.peer, message=Embedding)
            sent, changed = applied_where(held, self.party.defences, "outgoing", embedding, at)
            under = tuple(dict.fromkeys(weighed + changed))
        values = self.machine.host_copy(sent if held is None else torch.where(held[:, None], sent, torch.nan))
        self.line.send(Embedding(step, values.array()), under=under, rows=rows, epoch=epoch)
        # Where a defence cut it off from the network, the gradient goes straight through.
        return SentEmbedding(sent if sent.requires_grad else embedding, penalty)

    def send_all(self, batches: Sequence[Int64Array], phase: Phase = "predict", epoch: int | None = None) -> None:
        """Send the embeddings of many rows, for which no gradients come back."""
        for step, rows in enumerate(batches):
            self.send(step, rows, phase, epoch)

    def learn(self, sent: SentEmbedding, step: int, rows: Int64Array, epoch: int) -> None:
        """Wait for the gradient of what was sent, and trace it back through the network."""
        assert self.line is not None
        embedding, shape = sent.embedding, tuple(sent.embedding.shape)
        message = self.line.receive(Gradient, fields={"step": step}, shape=shape, finite=True, rows=rows, epoch=epoch)
        held = self._held(rows)
        gradient = _only(self.machine.tensor(message.values), held)
        if is_used("incoming", self.party.defences):
            own = {self.name: embedding.detach()}
            at = HookContext(step, epoch, rows, "train", self.line.peer, Gradient, own=own, inputs=self.inputs)
            gradient, _ = applied_where(held, self.party.defences, "incoming", gradient, at)
        if not embedding.requires_grad:
            return
        if sent.penalty is None:
            trace_back(embedding, gradient)
        else:
            torch.autograd.backward([embedding, sent.penalty], [gradient, None])

    def _held(self, rows: Int64Array) -> Tensor | None:
        return None if self.present is None else torch.from_numpy(self.present[rows]).to(self.machine.device)

    def _penalty(
        self, embedding: Tensor, at: HookContext, held: Tensor | None
    ) -> tuple[Tensor | None, tuple[str, ...]]:
        # This party's defences add to a loss that this party does not know.
        unused = not is_used("loss", self.party.defences)
        if unused or not embedding.requires_grad or (held is not None and not held.any()):
            return None, ()
        nothing = embedding.sum() * 0
        penalty, names = applied(self.party.defences, "loss", nothing, at if held is None else at.about(held))
        return (None if penalty is nothing or not penalty.requires_grad else penalty), names


def send_for_prediction(share: SplitShare, party: Party, line: Channel, batches: Sequence[Int64Array]) -> None:
    """Send the embeddings of all rows, made where the rows lie unless a defence has to see them."""
    there = partial(send_embeddings, share, party.own_table, line)
    (Bottom(share, party, line).send_all if party.defences else there)(batches)


class EmbeddingCollector:
    """The end of the cut that joins embeddings in the order of their lines, and sends gradients back."""

    def __init__(self, share: SplitShare, party: Party, lines: Sequence[Channel]) -> None:
        self.share, self.party, self.lines, self.machine = share, party, lines, share.settings.machine
        self.fusion, self.partial = share.settings.fusion, share.settings.partial
        self.received: dict[str, Tensor] = {}
        self.held: dict[str, Tensor] = {}
        self.changed: tuple[str, ...] = ()

    def collect(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> list[Tensor]:
        """The peers' embeddings of some rows, in order; `received` afterwards holds them as they came.

        Where parties hold different rows, `held` says who holds which. `changed` names the defences that changed some
        of the embeddings, and so the gradients in them.
        """
        self.received, self.held, self.changed, embeddings = {}, {}, (), []
        shape = (len(rows), self.share.width)
        for line in self.lines:
            message = line.receive(
                Embedding, fields={"step": step}, shape=shape, finite=not self.partial, rows=rows, epoch=epoch
            )
            values = self._filled(message, line.peer) if self.partial else message.values
            came = self.machine.tensor(values, requires_grad=phase == "train")
            self.received[line.peer] = used = came
            if is_used("incoming", self.party.defences):
                at = HookContext(step, epoch or 0, rows, phase, peer=line.peer, message=Embedding)
                used, names = applied_where(self.held.get(line.peer), self.party.defences, "incoming", came, at)
                self.changed += names
            embeddings.append(used)
        return self._completed(embeddings) if self.partial else embeddings

    def joined(self, own: Sequence[Tensor], embeddings: Sequence[Tensor]) -> Tensor:
        """All embeddings as one, the party's own first."""
        parts = [*own, *embeddings]
        if self.fusion == "concat":
            return torch.cat(parts, dim=1)
        total = torch.stack(parts).sum(dim=0)
        if self.fusion == "sum":
            return total
        if not self.partial:
            return total / len(parts)
        n_held = torch.stack(list(self.held.values())).sum(dim=0) + len(own)
        return total / n_held.clamp_min(1)[:, None]

    def gradients(
        self, at: HookContext, asked: GradientIf | None, under: tuple[str, ...]
    ) -> list[tuple[HostCopy, tuple[str, ...]]]:
        """Every peer's gradient in its embedding, in order, and the defences that had a hand in it.

        A gradient is zero for rows that the peer does not hold, whatever a defence does.
        """
        found = []
        for line in self.lines:
            came, held = self.received[line.peer], self.held.get(line.peer)
            gradient = torch.zeros_like(came) if came.grad is None else _only(came.grad, held)
            names = self.changed + under
            if is_used("outgoing", self.party.defences):
                hypothetical = None if asked is None else partial(asked, came)
                about = replace(at, peer=line.peer, message=Gradient, gradient_if=hypothetical)
                gradient, blurred = applied_where(held, self.party.defences, "outgoing", gradient, about)
                names += blurred
            found.append((self.machine.host_copy(gradient), tuple(dict.fromkeys(names))))
        return found

    def send_gradients(self, step: int, at: HookContext, gradients: Sequence[tuple[HostCopy, tuple[str, ...]]]) -> None:
        """Send every peer its gradient."""
        for line, (gradient, names) in zip(self.lines, gradients, strict=True):
            line.send(Gradient(step, gradient.array()), under=names, rows=at.rows, epoch=at.epoch)

    def _filled(self, message: Embedding, peer: str) -> Float32Array:
        """Note which rows a peer holds, and put zeros in the place of the others."""
        missing = np.asarray(np.isnan(message.values).all(axis=1))
        self.held[peer] = torch.from_numpy(~missing).to(self.machine.device)
        filled = np.where(missing[:, None], np.float32(0), message.values)
        if not np.isfinite(filled).all():
            raise ProtocolError(
                f"{message.kind} from {peer} for step {message.step} should hold finite numbers in every row that is "
                "not missing, but does not. Lower the learning rate, and check the peer's columns for extreme values."
            )
        return filled

    def _completed(self, embeddings: list[Tensor]) -> list[Tensor]:
        """Put a learned vector in the place of rows that a peer does not hold; a mean leaves them out instead."""
        if self.fusion == "mean":
            return [_only(e, held) for e, held in zip(embeddings, self.held.values(), strict=True)]
        assert self.share.missing_embeddings is not None
        rest = zip(embeddings, self.held.values(), self.share.missing_embeddings, strict=True)
        return [torch.where(held[:, None], embedding, vector) for embedding, held, vector in rest]


@dataclass(frozen=True)
class ForwardPass:
    """One forward pass at the label party: what went in, and what the federated track makes of it.

    On a processor the party's own embedding is cut off from the network that made it, so that others get their
    gradients before that network gets its own. A GPU is given both at once, and the party goes on meanwhile.
    """

    index: Tensor
    made: Tensor | None
    own: Tensor | None
    embeddings: list[Tensor]
    outputs: Tensor

    def trace_back(self) -> None:
        """Take the gradient in the party's own embedding through the network that made it, if that was cut off."""
        if self.made is None or self.own is None or self.own is self.made or self.own.grad is None:
            return
        if self.made.requires_grad:
            trace_back(self.made, self.own.grad)


class JointForward:
    """The networks of who has the top: over a label party's own rows, and over the embeddings that arrive."""

    def __init__(self, share: SplitShare, party: Party, lines: Sequence[Channel]) -> None:
        self.party, self.machine, self.top = party, share.settings.machine, share.top
        share.to(self.machine.device)
        self.bottom = None if share.bottom is None else Bottom(share, party, None, share.settings.tracks.own)
        self.collector = EmbeddingCollector(share, party, lines)

    def forward(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> ForwardPass:
        """Collect all embeddings of some rows, and put them through the federated track."""
        train = phase == "train"
        # The party's own part first: the others compute theirs meanwhile.
        index = self.machine.index(rows)
        made = None if self.bottom is None else self.bottom.embed(index, train=train)
        own = made if made is None or self.machine.is_apart else made.detach().requires_grad_(train)
        embeddings = self.collector.collect(step, rows, phase, epoch)
        outputs = self.collector.joined([] if own is None else [own], embeddings)
        if self.top is not None:
            outputs = self.machine.forward(self.top, outputs, train=train)
        return ForwardPass(index, made, own, embeddings, outputs)


def _only(values: Tensor, held: Tensor | None) -> Tensor:
    """Values of the rows that are held, and zeros for the others."""
    return values if held is None else torch.where(held[:, None], values, 0)


def _asked_width(settings: SplitSettings, party: Party) -> int:
    """The width of embedding that the label party asks for, if the plan allows it."""
    allowed = settings.target.widths if settings.top is None else (settings.embedding, settings.embedding)
    return party.label_party.receive(EmbeddingWidth, within={"width": allowed}).width


@dataclass(kw_only=True, eq=False, repr=False)
class SplitNetwork(NetworkModel):
    """A network cut into a bottom at each party and a top, trained on one party's labels.

    Args:
        embedding: The width of each party's embedding; ignored where embeddings are logits.
        top: As in `NetworkModel`; None only with `fusion="sum"`, where embeddings then are logits.
        fusion: How embeddings are joined: "concat", "sum" or "mean".
        tracks: What the label party does with its own columns: "single", "shadow-proxy", "shadow-top", an object such
            as `ShadowTop(private=0.3)`, or a mapping of its settings.
        momentum: Of "sgd".
        overlap: "full" if every party holds every row; "partial" if feature parties may lack rows, which are then
            trained and predicted without them.
        precision: "float32", or "bfloat16" for mixed precision; losses and messages are float32 in any case.

    The other settings are those of `NetworkModel`. `bottom`, `optimizer` and `learning_rate` may be mappings from a
    network ("bottom", "top", "public", "private", ...) or a party to its value, with "default" for the rest. What is
    learned are the fields of `SplitShare`, each under its name and an underscore: `bottom_`, `top_`, `partition_`, ...
    """

    hooks: ClassVar[Mapping[str, frozenset[str]]] = {
        "label": frozenset({"labels", "outgoing", "incoming", "loss", "prediction", "modules"}),
        "feature": frozenset({"outgoing", "incoming", "loss", "modules"}),
    }
    sends: ClassVar[Mapping[str, tuple[type[Message], ...]]] = {"label": (Gradient,), "feature": (Embedding,)}
    limits: ClassVar[Mapping[str, Limit]] = {
        **NetworkModel.limits,
        "fusion": choice("concat", "sum", "mean"),
        "momentum": number(0, below=1),
        "overlap": choice("full", "partial"),
        "precision": choice(*PRECISIONS),
    }

    fusion: Fusion = "concat"
    tracks: TracksChoice = "single"
    momentum: float = 0.9
    overlap: Literal["full", "partial"] = "full"
    precision: Literal["float32", "bfloat16"] = "float32"

    def fit(self, party: Party) -> Self:
        """Train together with the other parties; afterwards this holds the party's share."""
        self.check_setup(party)
        settings = self.settings()
        self.admit_defences(party)
        count = self._row_count(party)
        settings = replace(settings, optimizers=self.optimizer_settings(count.number, self.momentum))
        schedule = self.schedule(party, count.number, party.shared)
        side = self._side(settings, party, schedule.batches.rows, count)
        self._store(side.run_epochs(schedule, name="train"))
        self.history_ = side.history
        self.remember_defences(party)
        return self

    def predict(self, party: Party, *, head: Head | None = None) -> Prediction | None:
        """Predict together with the other parties; only the label party learns the result.

        Args:
            party: One's own side.
            head: Which of two heads the label party uses, "federated" or "local"; the one its tracks are for if None.
        """
        self.require_fitted("used to predict")
        self.restore_defences(party)
        share = self.learned()
        share.to(share.settings.machine.device)
        count = self._row_count(party)
        batches = ordered_batches(np.arange(count.number), self.batch_size)
        if not party.holds_labels:
            self._send_for_prediction(share, party, batches, count)
            return None
        track, target = head_of(share.settings.tracks, head), share.require_target()
        local = LocalTrackRunner(share, party) if track == "local" else None
        outputs = self._outputs(share, party, batches, local)
        parts = [
            scored(target, party, each, step, rows, track)
            for step, (rows, each) in enumerate(zip(batches, outputs, strict=True))
        ]
        return target.prediction(np.concatenate(parts))

    def settings(self) -> SplitSettings:
        """The parameters as all sides read them."""
        return SplitSettings(
            target=self.target,
            embedding=self.embedding,
            bottom=self.bottom,
            top=self.top,
            fusion=self.fusion,
            tracks=tracks_of(self.tracks),
            partial=self.overlap == "partial",
            device=self.device,
            precision=self.precision,
        )

    def learned(self) -> SplitShare:
        """What this party has learned, as sides use it."""
        return SplitShare(self.settings(), **{name: getattr(self, f"{name}_") for name in LEARNED})

    def share(self) -> Tree:
        return {**self.learned().state(), "history": self.history_, "defences": self.defences_}

    def take_share(self, tree: Tree) -> None:
        self._store(SplitShare.of(tree, self.settings()))
        self.history_, self.defences_ = tree["history"], tree["defences"]

    def summary(self) -> str:
        cut = "shares of the logits" if self.top is None else f"embeddings of width {self.embedding}"
        lines = [
            f"{type(self).__name__}: {cut}, joined by {self.fusion}; {type(tracks_of(self.tracks)).__name__} at the "
            f"label party; {self.optimizer}, learning rate {self.learning_rate}.",
            "Encryption: none; a receiver reads what it is sent. Threat model: curious parties that keep to the rules.",
            *self.disclosures(),
        ]
        if self.is_fitted:
            epochs = how_many(len(self.history_), "epoch")
            lines.append(f"This share: {self.learned().n_weights} weights after {epochs}.")
        return "\n".join(lines)

    def disclosures(self) -> tuple[str, ...]:
        """Who learns what, one sentence each."""
        said = (
            "The label party learns every embedding. A feature party learns gradients at the cut, hence maybe labels."
        )
        return (said,)

    def _row_count(self, party: Party) -> RowCount:
        """How many rows there are, and whether the label party sends embeddings of its own."""
        return RowCount(len(party.own_table), 0)

    def _side(
        self, settings: SplitSettings, party: Party, train: Int64Array, count: RowCount
    ) -> NetworkSide[SplitShare]:
        """This party's side of training."""
        return (SplitLabelSide.of if party.holds_labels else SplitFeatureSide)(settings, party, train)

    def _send_for_prediction(
        self, share: SplitShare, party: Party, batches: Sequence[Int64Array], count: RowCount
    ) -> None:
        """What a party without labels does in a prediction."""
        send_for_prediction(share, party, party.label_party, batches)

    def _outputs(
        self, share: SplitShare, party: Party, batches: Sequence[Int64Array], local: LocalTrackRunner | None
    ) -> Iterator[Tensor]:
        """The outputs of the label party's head, batch by batch; those of the local track where it is given."""
        joint = JointForward(share, party, party.feature_parties)
        for step, rows in enumerate(batches):
            passed = joint.forward(step, rows, "predict")
            yield passed.outputs if local is None else local.predict(rows, passed.own, passed.embeddings)

    def _store(self, share: SplitShare) -> None:
        for name in LEARNED:
            setattr(self, f"{name}_", getattr(share, name))

    def check_columns(self, table: Table) -> None:
        share = self.learned()
        for inputs in (share.inputs, share.local_inputs):
            if inputs is not None:
                inputs.require_columns(table)

    def check_setup(self, party: Party) -> None:
        super().check_setup(party)
        has_top = Limit(lambda top: top is not None or self.fusion == "sum", "a network unless fusion is 'sum'", ())
        check_parameters(self, {"top": has_top})
        Machine.of(self.device, self.precision)
        tracks = tracks_of(self.tracks)
        networks = ("bottom", "top", tracks.bottom, "private", tracks.top, tracks.local_name, "missing_embeddings")
        per_network = {name: getattr(self, name) for name in ("bottom", "optimizer", "learning_rate")}
        require_known(per_network, (*dict.fromkeys(networks), *party.roles.parties))


class SplitClassifier(SplitNetwork):
    """A classifier cut into a bottom network at each party and a top, with the settings of `SplitNetwork`.

    >>> SplitClassifier(fusion="sum", top=None).get_params()["fusion"]
    'sum'
    """

    task = "classification"
    target = Classes


class SplitRegressor(SplitNetwork):
    """A regression cut into a bottom network at each party and a top network at the label party.

    Labels are standardised and fitted by least squares. Its settings are those of `SplitNetwork`.

    >>> SplitRegressor(top="linear").task
    'regression'
    """

    task = "regression"
    target = Numbers

    @classmethod
    def example(cls) -> Self:
        return super().example().set_params(tracks={"name": "shadow-top", "by": "random"})
