"""The messages of generalised linear models: with an arbiter, on shares, and to predict."""

from __future__ import annotations

from dataclasses import dataclass
from sys import float_info

from colonnade.secret import Secret
from colonnade.wire.message import Ciphertexts, Float64Array, Int64Array, Message, UInt8Array, UInt64Array


@dataclass(frozen=True)
class _StepRule:
    """What all parties must know to take steps of the same length.

    Attributes:
        scale: The power of two by which linear regression divides labels.
        curvature: What residuals are multiplied by; for Poisson regression the mean of the labels.
        learning_rate: The length of a step.
        weights: The weight of each row; empty if rows have none.
    """

    scale: float
    curvature: float
    learning_rate: float
    weights: Float64Array


@dataclass(frozen=True)
class EncryptedMessage:
    """Ciphertexts that belong to a step."""

    step: int
    ciphertexts: Ciphertexts


COLUMN_BOUNDS = {"count": (0, 2**20), "curvature": (0.0, float_info.max)}
"""What a `ColumnSummary` may say; lengths of blocks and of a layout follow from the count."""

SCHEDULE_BOUNDS = {"n_batches": (1, 2**40), "block": (1, 2**20), "fraction": (1, 30), "n_outputs": (1, 2**12)}
LAYOUT_BOUNDS = {"n_outputs": SCHEDULE_BOUNDS["n_outputs"]}


@dataclass(frozen=True)
class ColumnSummary(Message, kind="glm/columns", reveals={Secret.FEATURES}):
    """How many columns a feature party has, and the largest eigenvalue of their covariance, for the step size."""

    count: int
    curvature: float


@dataclass(frozen=True)
class ColumnToken(Message, kind="glm/column-token", fresh=True):
    """Names for a feature party's columns, by which the label party sees whether they are the same as before.

    Attributes:
        token: The same in all runs of the feature party.
        run_token: The same in this run alone, however often the run is taken up.
    """

    token: bytes
    run_token: bytes


@dataclass(frozen=True)
class OpenableSums(Message, kind="glm/openable-sums", reveals={Secret.FEATURES}, fresh=True):
    """What the arbiter may open: for each party with columns, how many sums in a step, and on which rows.

    Attributes:
        parties: The parties with columns, the label party first.
        counts: How many sums each party may open in a step.
        tokens: The name of each party's columns.
        n_rows: How many rows there are.
        batch_rows: How many rows the smallest batch has.
        rows: The smallest hashes of ids, under a key of the label party.
        sensitivity: How far one label moves the sums of a step; 0 where gradients have no noise.
        sigma: The width of the noise that the arbiter adds to gradients; 0 for none.
    """

    parties: list[str]
    counts: Int64Array
    tokens: list[bytes]
    n_rows: int
    batch_rows: int
    rows: UInt64Array
    sensitivity: int
    sigma: float


@dataclass(frozen=True)
class PublicKeyBytes(Message, kind="glm/key", fresh=True, varies=True):
    """A public key: the arbiter's for one epoch, or a computing party's for the whole training."""

    key: UInt8Array


@dataclass(frozen=True)
class StopVerdict(Message, kind="glm/verdict", reveals={Secret.FEATURES, Secret.LABELS}, varies=True):
    """Whether training ends with this epoch."""

    epoch: int
    stop: int


@dataclass(frozen=True)
class StillVote(Message, kind="glm/still", reveals={Secret.FEATURES, Secret.LABELS}, varies=True):
    """Whether a feature party's coefficients have all but stood still in an epoch."""

    epoch: int
    still: int


@dataclass(frozen=True)
class Schedule(Message, kind="glm/schedule"):
    """How an epoch is cut up.

    Attributes:
        n_batches: How many batches it has.
        block: How many rows a ciphertext has.
        fraction: How many bits residuals have behind the point.
        n_outputs: How many models are trained: one, or one for each class but the last.
    """

    n_batches: int
    block: int
    fraction: int
    n_outputs: int


@dataclass(frozen=True)
class StepOutline(_StepRule, Message, kind="glm/outline", reveals={Secret.LABELS}):
    """How steps are taken with an arbiter.

    Attributes:
        inputs: A name for all parties' columns, labels and weights in this run, under a key of the label party.
    """

    inputs: bytes


@dataclass(frozen=True)
class ScoreShare(Message, kind="glm/score-share", fresh=True, varies=True, secret=True):
    """One of two shares of a feature party's scores of a batch: words that are uniform to the receiver."""

    step: int
    words: UInt64Array


@dataclass(frozen=True)
class EncryptedMeans(EncryptedMessage, Message, kind="glm/encrypted-means", fresh=True, varies=True):
    """The arbiter's share of the means of a batch, under its own key."""


@dataclass(frozen=True)
class EncryptedResiduals(
    EncryptedMessage,
    Message,
    kind="glm/encrypted-residuals",
    reveals={Secret.FEATURES, Secret.LABELS},
    fresh=True,
    varies=True,
):
    """Means less labels of a batch, under the arbiter's key."""


@dataclass(frozen=True)
class MaskedSums(EncryptedMessage, Message, kind="glm/masked", fresh=True, varies=True):
    """Sums for the arbiter to decrypt: uniform masks hide the sums, a flood hides their noise."""

    n_values: int


@dataclass(frozen=True)
class OpenedSums(Message, kind="glm/opened", fresh=True, varies=True):
    """Masked sums, decrypted and rounded, modulo 2^53."""

    step: int
    sums: UInt64Array


@dataclass(frozen=True)
class SharesLayout(_StepRule, Message, kind="glm/layout", reveals={Secret.FEATURES, Secret.LABELS}):
    """How steps are taken on shares.

    Attributes:
        counts: How many columns each party has, in the order of the roles, with intercept.
        n_outputs: How many models are trained: one, or one for each class but the last.
    """

    counts: Int64Array
    n_outputs: int


@dataclass(frozen=True)
class SharedVector(EncryptedMessage, Message, kind="glm/shared-vector", fresh=True, varies=True):
    """A computing party's share of a vector, or its question about a table, under its own key."""


@dataclass(frozen=True)
class MaskedProduct(EncryptedMessage, Message, kind="glm/masked-product", fresh=True, varies=True):
    """A product with a private matrix or vector, under the receiver's key, masked and flooded."""


@dataclass(frozen=True)
class PairedWords(Message, kind="glm/paired-words", fresh=True, varies=True, secret=True):
    """What a party sends in a turn of computing on shares with another: words that are uniform to the receiver."""

    step: int
    words: UInt64Array


@dataclass(frozen=True)
class OpenedShare(
    Message, kind="glm/opening", reveals={Secret.FEATURES, Secret.LABELS}, fresh=True, varies=True, secret=True
):
    """A share of what the receiver is to learn: whether training ends, and at the end its own coefficients."""

    share: UInt64Array


@dataclass(frozen=True)
class ScoreMaskSeed(Message, kind="glm/mask-seed", fresh=True, varies=True, secret=True):
    """The seed of a stream that two senders share for one prediction."""

    seed: bytes


@dataclass(frozen=True)
class MaskedScores(
    Message, kind="glm/masked-scores", reveals={Secret.FEATURES}, fresh=True, varies=True, per_row="values"
):
    """Partial scores, one per row, under masks that cancel in the sum over senders."""

    values: UInt64Array


@dataclass(frozen=True)
class PartialScores(Message, kind="glm/partial-scores", reveals={Secret.FEATURES}, per_row="values"):
    """Partial scores, one per row, as they are."""

    values: Float64Array
