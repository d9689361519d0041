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
number of classes. Where parties hold different rows, the label party learns which of them a feature party holds.

What stands between embeddings and labels is a choice of the label party: see `tracks`. Who else could
hold the top network: see `ushape` and `labels_at_server`.

Gupta and Raskar 2018, arXiv 1810.06060; Vepakomma et al. 2018, arXiv 1812.00564.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self, TypeAlias, cast

import numpy as np
import torch
from torch import nn

from colonnade.data.ranking import FeaturePartition
from colonnade.errors import PlanError
from colonnade.models.base import Prediction
from colonnade.models.batches import in_order
from colonnade.models.networks.base import NetworkModel
from colonnade.models.networks.cut import Bottom, Embedding, Gradient, Outline, Verdict, stand_ins
from colonnade.models.networks.modules import BottomFactory, TopFactory, bottom_named, top_named
from colonnade.models.networks.sides import FeatureSide, Joint, LabelSide, LocalEnd
from colonnade.models.networks.targets import Classes, Numbers
from colonnade.models.networks.tracks import Head, LocalShape, LocalTrack, Tracks, TracksChoice, tracks_of
from colonnade.models.networks.training import (
    PRECISIONS,
    Machine,
    OptimiserName,
    PerNetwork,
    Side,
    chosen,
    loaded,
    require_known,
)
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.tables.encode import Inputs
from colonnade.wire.message import Int64Array, Message

__all__ = ["Embedding", "Gradient", "Outline", "SplitClassifier", "SplitNetwork", "SplitRegressor", "Verdict"]

Fusion: TypeAlias = Literal["concat", "sum", "mean"]
FUSIONS = ("concat", "sum", "mean")
PER_NETWORK = ("bottom", "optimiser", "learning_rate")


class SplitNetwork(NetworkModel):
    """A network cut into a bottom at each party and a top, trained on one party's labels.

    Args:
        embedding: The width of each party's embedding; ignored where embeddings are logits.
        bottom: A name ("mlp", "resnet-mlp", "cnn", "resnet-20") or a callable from `Inputs` and a width to a module.
        top: A name ("mlp", "linear") or a callable from two widths to a module; None only with `fusion="sum"`, where
            embeddings then are logits.
        fusion: How embeddings are joined: "concat", "sum" or "mean".
        tracks: What the label party does with its own columns: "single", "shadow-proxy", "shadow-top", an object such
            as `ShadowTop(private=0.3)`, or a mapping of its settings.
        optimiser: "adam", "adamw" or "sgd".
        learning_rate: How far a step goes.
        momentum: Of "sgd".
        weight_decay: At every party.
        batch_size: Rows per step.
        epochs: Passes over the training rows, at most.
        patience: Epochs without improvement on held-out rows before training stops; None trains to the end, and then
            nothing is held out.
        validation: The share of rows held out for that.
        overlap: "full" if every party holds every row; "partial" if rows of which a feature party holds no value are
            to be trained and predicted without it.
        device: "cpu", "cuda", or "auto" for a GPU where there is one; parties may differ.
        precision: "float32", or "bfloat16" for mixed precision; losses and messages are float32 in any case.

    `bottom`, `optimiser` and `learning_rate` may be mappings from a network ("bottom", "top", "public", "private", ...)
    or a party to its value, with "default" for the rest.
    """

    hooks: ClassVar[Mapping[str, frozenset[str]]] = {
        "label": frozenset({"labels", "outgoing", "incoming", "loss", "prediction", "modules"}),
        "feature": frozenset({"outgoing", "incoming", "loss", "modules"}),
    }
    sends: ClassVar[Mapping[str, tuple[type[Message], ...]]] = {"label": (Gradient,), "feature": (Embedding,)}

    inputs_: Inputs | None
    bottom_: nn.Module | None
    top_: nn.Module | None
    local_inputs_: Inputs | None
    local_: LocalTrack | None
    partition_: FeaturePartition | None
    stand_ins_: nn.ParameterList | None

    def __init__(
        self,
        *,
        embedding: int = 16,
        bottom: PerNetwork[str | BottomFactory] = "mlp",
        top: str | TopFactory | None = "mlp",
        fusion: Fusion = "concat",
        tracks: TracksChoice = "single",
        optimiser: PerNetwork[OptimiserName] = "adam",
        learning_rate: PerNetwork[float] = 3e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        batch_size: int = 256,
        epochs: int = 30,
        patience: int | None = 5,
        validation: float = 0.1,
        overlap: Literal["full", "partial"] = "full",
        device: Literal["cpu", "cuda", "auto"] = "cpu",
        precision: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        self.embedding = embedding
        self.bottom = bottom
        self.top = top
        self.fusion = fusion
        self.tracks = tracks
        self.optimiser = optimiser
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.validation = validation
        self.overlap = overlap
        self.device = device
        self.precision = precision

    def fit(self, party: Party) -> Self:
        """Train together with the other parties; afterwards this holds the party's share."""
        self._validate(party)
        self._prepare(party)
        self.target_ = self.inputs_ = self.bottom_ = self.top_ = self.local_inputs_ = self.local_ = None
        self.partition_ = self.stand_ins_ = None
        self.party_, self.n_received_ = party.name, len(party.feature_parties)
        self.width_ = self.n_joined_ = self.n_outputs_ = 0
        self.history_ = self.run_epochs(
            party, self.n_rows(party), party.shared, lambda train: self.side(party, train), name="train"
        )
        self.remember(party)
        return self

    def predict(self, party: Party, *, head: Head | None = None) -> Prediction | None:
        """Predict together with the other parties; only the label party learns the result.

        Args:
            party: One's own side.
            head: Which of two heads the label party uses, "federated" or "local"; the one its tracks are for if None.
        """
        self.require_fitted("used to predict")
        self.prepare(party)
        self.to(self.machine.device)
        return self.predict_side(party, in_order(np.arange(self.n_rows(party)), self.batch_size), head)

    def n_rows(self, party: Party) -> int:
        """How many rows there are, which a party without a table is told."""
        return len(party.own_table)

    def side(self, party: Party, train: Int64Array) -> Side:
        """This party's side of training."""
        return LabelSide(self, party, train) if party.holds_labels else FeatureSide(self, party, train)

    def predict_side(self, party: Party, batches: Sequence[Int64Array], head: Head | None) -> Prediction | None:
        """This party's side of a prediction."""
        if not party.holds_labels:
            Bottom(self, party, party.label_party).send_all(batches)
            return None
        track = self.head_named(head)
        local = LocalEnd(self, party) if track == "local" else None
        joint = Joint(self, party)
        parts = []
        for step, rows in enumerate(batches):
            passed = joint.forward(step, rows, "predict")
            outputs = passed.outputs if local is None else local.predict(rows, passed.own, passed.embeddings)
            parts.append(self.scored(party, outputs, step, rows, track=track))
        return self.require_target().prediction(np.concatenate(parts))

    def head_named(self, head: Head | None) -> Head:
        """The head that predicts; refuses one that is not there."""
        wanted = self.architecture.predicts if head is None else head
        if wanted not in ("federated", "local") or (wanted == "local" and self.local_ is None):
            raise PlanError(
                f"A prediction uses the head 'federated', or 'local' where the tracks have one; {wanted!r} was asked "
                f"for and the tracks are {type(self.architecture).__name__}. Choose another head or other tracks."
            )
        return wanted

    @property
    def architecture(self) -> Tracks:
        """What stands at the label party."""
        return tracks_of(self.tracks)

    @property
    def machine(self) -> Machine:
        """Where this party computes."""
        return Machine.of(self.device, self.precision)

    def make_bottom(self, inputs: Inputs, network: str, party: str) -> nn.Module:
        """A new bottom network."""
        return self._bottom_factory(network, party)(inputs, self.width_)

    def make_top(self, n_in: int, n_out: int) -> nn.Module | None:
        """A new top network of the federated track; None where there is none."""
        choice = self.architecture.federated_top(self.top)
        return None if choice is None else top_named(choice)(n_in, n_out)

    def make_local(self, inputs: Inputs, n_received: int, n_outputs: int, party: str) -> LocalTrack:
        """New networks of the local track."""
        shape = LocalShape(inputs, self.width_, n_received, n_outputs)
        made = self.architecture.local(self._bottom_factory("private", party), self.top, shape)
        assert made is not None
        return made

    def to(self, device: torch.device) -> None:
        """Move this party's networks to a device."""
        for network in (self.bottom_, self.top_, self.local_, self.stand_ins_):
            if network is not None:
                network.to(device)

    def share(self) -> Tree:
        """What this party has learned, as a tree of arrays and plain values."""
        networks = {"bottom": self.bottom_, "top": self.top_, "local": self.local_, "stand_ins": self.stand_ins_}
        return {
            "target": None if self.target_ is None else self.target_.state(),
            "inputs": None if self.inputs_ is None else self.inputs_.state(),
            "local_inputs": None if self.local_inputs_ is None else self.local_inputs_.state(),
            "party": self.party_,
            "width": self.width_,
            "n_joined": self.n_joined_,
            "n_outputs": self.n_outputs_,
            "n_received": self.n_received_,
            **{name: None if network is None else network.state_dict() for name, network in networks.items()},
            "partition": None if self.partition_ is None else vars(self.partition_),
            "history": self.history_,
            "defences": self.defences_,
        }

    def take_share(self, tree: Tree) -> None:
        """Take up what `share` gave."""
        self.party_, self.width_ = tree["party"], tree["width"]
        self.n_joined_, self.n_outputs_ = tree["n_joined"], tree["n_outputs"]
        self.n_received_, self.history_, self.defences_ = tree["n_received"], tree["history"], tree["defences"]
        self.target_ = None if tree["target"] is None else self.target.of(tree["target"])
        self.inputs_ = None if tree["inputs"] is None else Inputs.of(tree["inputs"])
        self.local_inputs_ = None if tree["local_inputs"] is None else Inputs.of(tree["local_inputs"])
        self.partition_ = None
        if tree["partition"] is not None:
            saved = tree["partition"]
            sides = tuple(saved["public"]), tuple(saved["private"])
            self.partition_ = FeaturePartition(*sides, saved["scores"], saved["by"])
        self.bottom_ = self.top_ = self.local_ = self.stand_ins_ = None
        network = self.architecture.bottom if self.target_ is not None else "bottom"
        if self.inputs_ is not None:
            self.bottom_ = loaded(self.make_bottom(self.inputs_, network, self.party_), tree["bottom"])
        if tree["top"] is not None:
            top = self.make_top(self.n_joined_, self.n_outputs_)
            assert top is not None
            self.top_ = loaded(top, tree["top"])
        if self.local_inputs_ is not None:
            n_outputs = self.require_target().n_outputs
            local = self.make_local(self.local_inputs_, self.n_received_, n_outputs, self.party_)
            self.local_ = loaded(local, tree["local"])  # type: ignore[assignment]
        if tree["stand_ins"] is not None:
            self.stand_ins_ = loaded(stand_ins(self.n_received_, self.width_), tree["stand_ins"])  # type: ignore[assignment]

    def summary(self) -> str:
        """What the model is, and what each role learns, in a few lines."""
        cut = "shares of the logits" if self.top is None else f"embeddings of width {self.embedding}"
        lines = [
            f"{type(self).__name__}: {cut}, joined by {self.fusion}; {type(self.architecture).__name__} at the label "
            f"party; {self.optimiser}, learning rate {self.learning_rate}.",
            "Encryption: none; a receiver reads what it is sent. Threat model: curious parties that keep to the rules.",
            *self.disclosures(),
        ]
        if self.is_fitted:
            networks = (self.bottom_, self.top_, self.local_)
            weights = sum(p.numel() for net in networks if net is not None for p in net.parameters())
            lines.append(f"This share: {weights} weights after {len(self.history_)} epochs.")
        return "\n".join(lines)

    def disclosures(self) -> tuple[str, ...]:
        """Who learns what, one sentence each."""
        return (
            "The label party learns every embedding. A feature party learns gradients at the cut, hence maybe labels.",
        )

    def _bottom_factory(self, network: str, party: str) -> BottomFactory:
        return bottom_named(cast("str | BottomFactory", chosen(self.bottom, network, party, "bottom")))

    def _validate(self, party: Party) -> None:
        self._require_roles(party)
        self._require_settings(
            ("fusion", self.fusion in FUSIONS, "'concat', 'sum' or 'mean'"),
            ("top", self.top is not None or self.fusion == "sum", "a network unless fusion is 'sum'"),
            ("overlap", self.overlap in ("full", "partial"), "'full' or 'partial'"),
            ("precision", self.precision in PRECISIONS, "'float32' or 'bfloat16'"),
        )
        # These refuse what they do not know.
        tracks = tracks_of(self.tracks)
        Machine.of(self.device, self.precision)
        networks = dict.fromkeys(
            ("bottom", "top", tracks.bottom, "private", tracks.top, tracks.local_name, "stand_ins")
        )
        require_known({name: getattr(self, name) for name in PER_NETWORK}, (*networks, *party.roles.parties))


class SplitClassifier(SplitNetwork):
    """A classifier cut into a bottom network at each party and a top network at the label party.

    Its settings are those of `SplitNetwork`.

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
