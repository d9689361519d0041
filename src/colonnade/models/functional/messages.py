"""Messages of regressions of curves: released curves, then moments through an arbiter, then moments on shares."""

from __future__ import annotations

from dataclasses import dataclass

from colonnade.secret import Secret
from colonnade.wire.message import Ciphertexts, Float64Array, Int64Array, Message, UInt8Array, UInt64Array


@dataclass(frozen=True)
class Offer(Message, kind="functional/offer"):
    """The columns a feature party will release, in which basis, and how each is clipped and noised."""

    columns: list[str]
    basis: UInt8Array
    clips: Float64Array
    sigmas: Float64Array


@dataclass(frozen=True)
class ReleasedCurves(Message, kind="functional/released-curves", reveals={Secret.FEATURES}, per_row="values"):
    """The curves of one column in coordinates, clipped and noised, one row per record."""

    column: str
    values: Float64Array


@dataclass(frozen=True)
class Surface(Message, kind="functional/surface", reveals={Secret.LABELS, Secret.MODEL}):
    """The coefficients of one column, given to its owner so that it can predict its part, and the inputs' centre."""

    column: str
    coefficients: Float64Array
    centre: Float64Array


@dataclass(frozen=True)
class PartialPrediction(Message, kind="functional/partial-prediction", reveals={Secret.FEATURES}, per_row="values"):
    """What all of an owner's columns together add to the prediction, one row per record."""

    values: Float64Array


@dataclass(frozen=True)
class Layout(Message, kind="functional/layout"):
    """How many rows there are, how many columns each feature party has, and how many functions each basis."""

    rows: int
    columns: Int64Array
    size: int
    outputs: int


@dataclass(frozen=True)
class MaskSeed(Message, kind="functional/mask-seed", secret=True):
    """What a holder's mask and pads derive from: known to the arbiter and that holder only."""

    seed: bytes


@dataclass(frozen=True)
class Masked(Message, kind="functional/masked"):
    """A holder's matrix behind its mask: uniform for everybody but the arbiter, who never sees it."""

    holder: str
    values: UInt64Array


@dataclass(frozen=True)
class StageMatrices:
    """The fields of a message about one stage of the moments: its number, and matrices on the ring."""

    stage: int
    values: list[UInt64Array]


class Terms(StageMatrices, Message, kind="functional/terms"):
    """A feature party's terms of the products behind its pads, uniform by themselves."""


class Correction(StageMatrices, Message, kind="functional/correction", reveals={Secret.FEATURES, Secret.LABELS}):
    """The arbiter's terms with noise: they turn the parties' terms into noisy products."""


@dataclass(frozen=True)
class Chosen(Message, kind="functional/chosen"):
    """The inputs that stood out in the first release; it follows from what was released, and adds nothing to it."""

    columns: Int64Array


@dataclass(frozen=True)
class EncryptedOutputs(Message, kind="functional/encrypted-outputs", fresh=True):
    """The label party's public key, and its outputs under it, one column after the other."""

    key: UInt8Array
    columns: Ciphertexts


@dataclass(frozen=True)
class MaskedProducts(Message, kind="functional/masked-products", fresh=True, varies=True):
    """The products of the feature party's columns with each output, behind masks: the label party's shares."""

    stage: int
    products: Ciphertexts


class NoisyShares(StageMatrices, Message, kind="functional/noisy-shares", reveals={Secret.FEATURES, Secret.LABELS}):
    """The feature party's products of its own, and its shares of the others, all with its noise."""
