"""The messages of boosted trees: what crosses once, in each tree, and to predict."""

from __future__ import annotations

from dataclasses import dataclass

from colonnade.secret import Secret
from colonnade.wire.message import Ciphertexts, Int64Array, Message, UInt8Array, UInt64Array


@dataclass(frozen=True)
class ColumnOutline(Message, kind="trees/columns", reveals={Secret.FEATURES}):
    """What everybody may know of a feature party's columns, in their order.

    Attributes:
        n_bins: How many bins hold values.
        missing: 1 where one more bin holds missing values.
        categorical: 1 where bins are levels without an order.
    """

    n_bins: Int64Array
    missing: UInt8Array
    categorical: UInt8Array


@dataclass(frozen=True)
class ForestOutline(Message, kind="trees/outline", reveals={Secret.FEATURES, Secret.LABELS}):
    """What a feature party must know of the forest.

    Attributes:
        n_scores: How many trees a round has: one, or one for each class where there are more than two.
        first_column: The number of this party's first column among those of all parties.
        n_columns: How many columns all parties have.
    """

    n_scores: int
    first_column: int
    n_columns: int


@dataclass(frozen=True)
class SeedCommitment(Message, kind="trees/seed-commitment", fresh=True):
    """What parties say of their parts of the public seed before they have seen the others'.

    A feature party sends its own. The label party, when it has all, sends all, its own first, then in the order of the
    roles.
    """

    commitments: list[bytes]


@dataclass(frozen=True)
class SeedNonce(Message, kind="trees/seed-nonce", fresh=True):
    """Parts of the seed of the public polynomials: a feature party's own, or all that the label party passes on."""

    nonces: list[bytes]


@dataclass(frozen=True)
class Hint(Message, kind="trees/hint", fresh=True, varies=True):
    """A hint for each bin of a feature party's columns, over the rows of one fold."""

    fold: int
    words: UInt64Array


@dataclass(frozen=True)
class TransferPoint(Message, kind="trees/transfer-point", fresh=True, varies=True):
    """The label party's point, with which oblivious transfers begin."""

    point: UInt8Array


@dataclass(frozen=True)
class TransferPoints(Message, kind="trees/transfer-points", fresh=True, varies=True):
    """A feature party's points, in pairs; of each pair the party knows the key of one point."""

    points: UInt8Array


@dataclass(frozen=True)
class QueryKeys(Message, kind="trees/query-keys", fresh=True, varies=True):
    """The keys of queries that a tree may ask, ahead of any gradient; `first` is the number of the first."""

    tree: int
    first: int
    keys: UInt64Array


@dataclass(frozen=True)
class NextAct(Message, kind="trees/next-act", reveals={Secret.FEATURES, Secret.LABELS}, varies=True):
    """What comes next in a tree: 0 its end, 1 a query for sums, 2 chosen splits."""

    tree: int
    act: int


@dataclass(frozen=True)
class SharedSums(Message, kind="trees/shared-sums", fresh=True, varies=True, secret=True):
    """The sums over the bins of a feature party's columns under uniform masks, which leave both sides with shares."""

    tree: int
    words: UInt64Array


@dataclass(frozen=True)
class GradientBounds(Message, kind="trees/gradient-bounds", reveals={Secret.FEATURES, Secret.LABELS}, varies=True):
    """The largest whole-number gradient and hessian of a tree, which noise on sums is made for."""

    tree: int
    g: int
    h: int


@dataclass(frozen=True)
class SumsQuery(Message, kind="trees/sums-query", fresh=True, varies=True):
    """Gradients and hessians of the rows of some nodes, encrypted, and zeros for all other rows.

    Attributes:
        tree: The tree.
        first: The number of the first encrypted number; the others follow.
        words: The first 192 bits of each row's residues (numbers, 3, rows).
        tails: The last 8 bits (numbers, rows).
    """

    tree: int
    first: int
    words: UInt64Array
    tails: UInt8Array


@dataclass(frozen=True)
class SumsAnswer(Message, kind="trees/sums-answer", reveals={Secret.FEATURES}, fresh=True, varies=True):
    """The sums over the bins of a feature party's columns, which the label party can open."""

    tree: int
    words: UInt64Array


@dataclass(frozen=True)
class SumsKey(Message, kind="trees/sums-key", fresh=True, varies=True):
    """The label party's public key, where sums are encrypted by the conventional scheme."""

    key: UInt8Array


@dataclass(frozen=True)
class EncryptedRows(Message, kind="trees/encrypted-rows", fresh=True, varies=True):
    """Gradients and hessians of rows under the label party's key.

    Attributes:
        tree: The tree.
        n_nodes: How many nodes are asked for, each in its place of a ciphertext; 0 where `NodeRows` says which.
        ciphertexts: One for each row of the fold.
    """

    tree: int
    n_nodes: int
    ciphertexts: Ciphertexts


@dataclass(frozen=True)
class NodeRows(Message, kind="trees/node-rows", reveals={Secret.FEATURES, Secret.LABELS}, varies=True):
    """Which rows each node has: `counts` of them one after the other, numbered within the fold."""

    tree: int
    counts: Int64Array
    rows: Int64Array


@dataclass(frozen=True)
class EncryptedSums(Message, kind="trees/encrypted-sums", reveals={Secret.FEATURES}, fresh=True, varies=True):
    """The sums over the bins of a feature party's columns, under the label party's key."""

    tree: int
    ciphertexts: Ciphertexts


@dataclass(frozen=True)
class HiddenTurn(Message, kind="trees/hidden-turn", fresh=True, varies=True, secret=True):
    """What one side sends in one turn of a computation on shares of sums; -1 is the tree of what comes before any."""

    tree: int
    words: UInt64Array


@dataclass(frozen=True)
class BestShares(Message, kind="trees/best-shares", fresh=True, varies=True, secret=True):
    """A feature party's shares of the best candidate of each node, for the first feature party."""

    tree: int
    words: UInt64Array


@dataclass(frozen=True)
class ChosenSplits(Message, kind="trees/chosen-splits", reveals={Secret.FEATURES, Secret.LABELS}, varies=True):
    """The splits by a feature party's columns that gain most, as whole numbers."""

    tree: int
    splits: Int64Array


@dataclass(frozen=True)
class SideChoices(Message, kind="trees/side-choices", fresh=True, varies=True):
    """For each row which split's side the label party fetches, hidden by oblivious transfer.

    Attributes:
        step: The tree, or in prediction the level.
        columns: What makes the transfers (columns, words).
        moved: The choices under the transfers' places.
    """

    step: int
    columns: UInt64Array
    moved: UInt64Array


@dataclass(frozen=True)
class RowSides(Message, kind="trees/row-sides", reveals={Secret.FEATURES}, fresh=True, varies=True):
    """The sides of all rows under each split; the label party can open one side of each row."""

    step: int
    words: UInt64Array


@dataclass(frozen=True)
class RoundVerdict(Message, kind="trees/verdict", reveals={Secret.FEATURES, Secret.LABELS}, varies=True):
    """Whether boosting ends with this tree; sent after each round that held-out rows are looked at."""

    tree: int
    stop: int


@dataclass(frozen=True)
class ForestSize(Message, kind="trees/forest-size", reveals={Secret.FEATURES, Secret.LABELS}, varies=True):
    """How many trees are kept in the end."""

    n_trees: int


@dataclass(frozen=True)
class AskedSplits(Message, kind="trees/asked-splits", reveals={Secret.FEATURES, Secret.LABELS}, varies=True):
    """Which of a feature party's splits rows may meet at a level of the forest, tree by tree.

    Attributes:
        level: The level, the roots first; -1 ends the prediction.
        first: The first row of the batch.
        n_rows: How many rows the batch has.
        trees: The trees that have such splits.
        counts: How many each of them has.
        numbers: The numbers of these splits among the feature party's splits of their tree.
    """

    level: int
    first: int
    n_rows: int
    trees: Int64Array
    counts: Int64Array
    numbers: Int64Array
