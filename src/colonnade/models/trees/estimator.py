"""SecureBoost: boosted trees on columns that stay where they are, equal to those grown on one table.

    feature party                    label party
         ColumnOutline ────────────────────────────▶          once
         ◀──────────────────────────── ForestOutline          once
         SeedCommitment, SeedNonce ────────────────▶          once; those of all parties come back
         Hint ─────────────────────────────────────▶          once, for each fold of rows
         ◀──────────────────────────── TransferPoint          once, and to predict
         TransferPoints ───────────────────────────▶          once, and to predict
         ◀──────────────────────────────── QueryKeys          per tree
         ◀────────────────────────────────── NextAct          per level: sums, chosen splits, or the tree's end
         ◀──────────────────────────────── SumsQuery          per level
         SumsAnswer ───────────────────────────────▶          per level
         ◀───────────────────────────── ChosenSplits          per level
         ◀────────────────────────────── SideChoices          per level, where splits were chosen
         RowSides ─────────────────────────────────▶          per level, where splits were chosen
         ◀───────────────────────────── RoundVerdict          per round, where rows are held out
         ◀─────────────────────────────── ForestSize          at the end
         ◀────────────────────────────── AskedSplits          to predict

The label party holds the labels and grows the trees; feature parties answer for sums over the bins of their columns
(`hinted_sums`) and for the sides of rows (`sides`). `protocol` has both roles of a tree, `prediction` those of a
prediction. The mathematics is that of xgboost (Chen and Guestrin 2016) with histograms; the protocol is that of Cheng
et al. 2021 (SecureBoost, arXiv 1901.08755), except that feature parties do not learn which rows a node has.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.profiles import HISTOGRAM
from colonnade.devices import DEVICES, computes_on_gpu
from colonnade.errors import DataError, PlanError
from colonnade.models.base import Prediction, ScoringEstimator, own_labels, require_classes, row_weights
from colonnade.models.trees.bins import Bins, Column
from colonnade.models.trees.boosting import Boosting, BoostSettings, Sampling
from colonnade.models.trees.budgets import EQUATIONS_PER_NODE, LeakBudget
from colonnade.models.trees.hidden import MOST_TOTAL, hidden_parameters
from colonnade.models.trees.hinted_sums import slots_of
from colonnade.models.trees.losses import Logistic, Loss, Poisson, Softmax, Squared
from colonnade.models.trees.noise import NoiseSettings
from colonnade.models.trees.paillier_sums import MOST_NODES
from colonnade.models.trees.prediction import predict_as_feature_party, predict_as_label_party
from colonnade.models.trees.protocol import FeatureSide, ForestSettings, LabelSide, most_numbers, require_varied
from colonnade.models.trees.record import ForestRecord
from colonnade.models.trees.rows import BinnedRows
from colonnade.models.trees.splits import TreeParameters
from colonnade.models.trees.storage import splits_array, splits_of, tree_of, tree_state
from colonnade.models.trees.text import described_splits, described_tree
from colonnade.parameters import Limit, choice, count, number, optional, truth
from colonnade.roles import Lines, Roles, star
from colonnade.runtime.party import Party
from colonnade.storage import Tree as Stored
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array

_TOLD = {
    "exact": "the sums of gradients over each bin of each column in each node",
    "noisy": "the sums of gradients over each bin of each column in each node, with noise",
    "hidden": "which split wins at each node and what the split gains, and no sums",
}
_ROWS_TOLD = {
    "hidden": "nothing of rows, labels or gradients",
    "revealed": "the rows of each node, and nothing of labels or gradients beyond that",
}
_COLUMN = Limit(lambda value: isinstance(value, str), "the name of a column", (3, True))


@dataclass(kw_only=True, eq=False, repr=False)
class SecureBoost(ScoringEstimator):
    """What boosted trees for classes and for numbers have in common; parameters bear xgboost's names.

    Args:
        n_estimators: Rounds of boosting, at most; a round has one tree, or one for each of more than two classes.
        learning_rate: What leaves are multiplied by.
        max_depth: How many splits there are between the root and a leaf at most; 0 for no bound.
        max_leaves: How many leaves a tree has at most; 0 for no bound.
        grow_policy: "depthwise" splits all nodes of a level, "lossguide" the leaf that gains most.
        gamma: The least gain of a split.
        min_split_gain: A split gains more than this.
        reg_lambda: Ridge penalty of leaves' weights.
        reg_alpha: L1 penalty of leaves' weights.
        min_child_weight: The least sum of hessians on each side of a split.
        max_delta_step: The largest weight of a leaf before `learning_rate`; 0 for no bound, None for xgboost's own: 0.7
            for counts and no bound otherwise.
        max_bin: How many bins a column may have.
        max_cat_to_onehot: Categorical columns with fewer levels send one level to the left.
        subsample: The share of rows that a round learns from. 1/2, 1/3 and so on take public folds in turn, which cuts
            bytes and time; other shares are drawn for each round.
        colsample_bytree: The share of all parties' columns that a tree may split by, drawn in public. Sums of other
            columns are not told, and a party without a column of the tree is not asked.
        top_rate: With GOSS, the share of rows with the largest gradients that are kept; 0 for no GOSS.
        other_rate: With GOSS, the share of rows that is drawn among the others.
        early_stopping_rounds: After how many rounds without a better loss on rows held out boosting ends; None never.
        validation_fraction: The share of rows held out where boosting may end early.
        sample_weight: The label party's column with a weight for each row; it stays with the label party.
        sums: What the label party sees of the sums over a feature party's bins. "exact" shows them, under
            `leak_budget`. "noisy" shows them with noise, so that all sums of a training cost a record (epsilon, delta);
            the sides of rows stay exact. "hidden" keeps them as shares and opens the winning split alone; it takes
            trees without reg_alpha and max_delta_step, counts with max_delta_step=0, and categorical columns then send
            one level to the left.
        epsilon: With noisy sums, what all sums of a training together cost a record of a feature party.
        delta: The probability with which this may fail.
        leak_budget: With exact sums, how many sums about each of a feature party's columns the label party may learn,
            for each row and over all runs on these rows; None refuses nothing. Each feature party sets its own.
        side_budget: How many sides of each row at splits by a feature party's columns the label party may learn in
            training, over all runs on these rows; None counts them and refuses nothing. Each feature party sets its
            own. A level with such a split tells one side of each row.
        backend: "hinted", or "paillier" for the conventional scheme, thousands of times slower, with exact sums only.
        membership: "hidden"; with "paillier" also "revealed", which tells feature parties the rows of each node.
        device: "cpu", "cuda", or "auto" for a GPU where there is one; parties may differ. A GPU computes the label
            party's pads and adds up a feature party's words under "hinted"; the forest is the same.
        keep_record: Whether the label party keeps what it saw of sums and sides, so that an audit can attack it.

    Attributes:
        bins_: How this party's columns become bins.
        trees_: At the label party, the trees; columns of all parties are numbered, the label party's first.
        start_: At the label party, the scores that all rows begin with.
        parts_: At the label party, what it knows of each party's columns.
        losses_: At the label party, the mean loss on rows held out after each round.
        record_: At the label party, what it saw, with `keep_record`.
        splits_: At a feature party, its splits of each tree.
    """

    limits: ClassVar[Mapping[str, Limit]] = {
        "n_estimators": count(),
        "learning_rate": number(above=0),
        "max_depth": count(0),
        "max_leaves": count(0),
        "grow_policy": choice("depthwise", "lossguide"),
        "gamma": number(0),
        "min_split_gain": number(0),
        "reg_lambda": number(0),
        "reg_alpha": number(0),
        "min_child_weight": number(0),
        "max_delta_step": optional(number(0)),
        "max_bin": count(2),
        "max_cat_to_onehot": count(),
        "subsample": number(above=0, most=1),
        "colsample_bytree": number(above=0, most=1),
        "top_rate": number(0, most=1),
        "other_rate": number(0, most=1),
        "early_stopping_rounds": optional(count()),
        "validation_fraction": number(above=0, below=1),
        "sample_weight": optional(_COLUMN),
        "sums": choice("exact", "noisy", "hidden"),
        "epsilon": number(above=0),
        "delta": number(above=0, below=1),
        "leak_budget": optional(number(above=0)),
        "side_budget": optional(count()),
        "backend": choice("hinted", "paillier"),
        "membership": choice("hidden", "revealed"),
        "device": choice(*DEVICES),
        "keep_record": truth(),
    }
    local_params: ClassVar[frozenset[str]] = frozenset({"leak_budget", "side_budget", "device", "keep_record"})
    dry_run_params: ClassVar[Mapping[str, Any]] = {"leak_budget": None, "side_budget": None}
    label_columns_spare: ClassVar[bool] = True

    n_estimators: int = 100
    learning_rate: float = TreeParameters.eta
    max_depth: int = TreeParameters.max_depth
    max_leaves: int = TreeParameters.max_leaves
    grow_policy: Literal["depthwise", "lossguide"] = TreeParameters.grow_policy
    gamma: float = TreeParameters.gamma
    min_split_gain: float = TreeParameters.min_split_gain
    reg_lambda: float = TreeParameters.reg_lambda
    reg_alpha: float = TreeParameters.reg_alpha
    min_child_weight: float = TreeParameters.min_child_weight
    max_delta_step: float | None = None
    max_bin: int = 32
    max_cat_to_onehot: int = TreeParameters.max_cat_to_onehot
    subsample: float = BoostSettings.subsample
    colsample_bytree: float = BoostSettings.colsample_bytree
    top_rate: float = BoostSettings.top_rate
    other_rate: float = BoostSettings.other_rate
    early_stopping_rounds: int | None = BoostSettings.early_stopping_rounds
    validation_fraction: float = BoostSettings.validation_fraction
    sample_weight: str | None = None
    sums: Literal["exact", "noisy", "hidden"] = "exact"
    epsilon: float = 10.0
    delta: float = 1e-6
    leak_budget: float | None = 0.01
    side_budget: int | None = None
    backend: Literal["hinted", "paillier"] = "hinted"
    membership: Literal["hidden", "revealed"] = "hidden"
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    keep_record: bool = False

    @classmethod
    def example(cls) -> Self:
        """A forest of few shallow trees that sends every kind of message; so few rows need a larger leak budget."""
        return cls(n_estimators=6, max_depth=2, max_bin=4, early_stopping_rounds=6, leak_budget=None)

    def fit(self, party: Party) -> Self:
        """Train together with the other parties; afterwards this holds the party's own side of the forest."""
        self.check_setup(party)
        self.admit_defences(party)
        settings, sampling, table = self._prepared(party)
        if party.holds_labels:
            side: LabelSide | FeatureSide = LabelSide(
                settings, party, self.bins_.encode(table), self._boosting(party, settings, sampling)
            )
        else:
            side = FeatureSide(settings, party, BinnedRows.of(table, self.bins_), sampling)
        side.begin()
        steps = party.steps(side.n_trees, side, name="trees")
        for step in steps:
            steps.show(**side.train(step))
            if side.ends_after(step):
                steps.stop()
        if isinstance(side, FeatureSide):
            self.splits_ = side.finish()
        else:
            self.trees_, self.parts_ = side.finish(), dict(side.parts)
            self.start_, self.losses_ = side.boosting.start, list(side.boosting.losses)
            if side.record is not None:
                self.record_ = side.record
        return self

    def scores(self, party: Party) -> Float64Array | None:
        """The joint model's scores before the link (rows, scores), at the label party; None elsewhere."""
        self.require_fitted("used to predict")
        self.admit_defences(party)
        if not party.holds_labels:
            predict_as_feature_party(party, self.splits_, BinnedRows.of(party.own_table, self.bins_))
            return None
        matrix = self.bins_.encode(party.own_table)
        self._require_parties(party)
        added = predict_as_label_party(party, self.trees_, self.parts_, matrix)
        n_scores = len(self.start_)
        out = np.tile(self.start_, (len(matrix.codes), 1))
        # Tree after tree, in the order of training, so that scores are the same to the last bit.
        for first in range(0, len(self.trees_), n_scores):
            out = out + added[:, first : first + n_scores]
        return out

    @property
    def feature_importances_(self) -> Mapping[str, float]:
        """Shares of importance that sum to 1.

        At the label party the gain of splits, for own columns by name and for others by their owner. At a feature
        party, which knows no gains, the number of splits by its columns.
        """
        self.require_fitted("asked for importances")
        found = dict.fromkeys(self.bins_.names, 0.0)
        if hasattr(self, "splits_"):
            for own in (split for splits in self.splits_ for split in splits):
                found[self.bins_.names[own.column]] += 1
        else:
            names = self._column_names()
            for tree in self.trees_:
                for split, gain in zip(tree.splits, tree.gains, strict=True):
                    if split is not None:
                        found[names[split.column]] = found.get(names[split.column], 0.0) + gain
        total = sum(found.values()) or 1
        return {name: value / total for name, value in found.items()}

    def text(self) -> str:
        """This party's side of the forest in words: own splits in full, others' by their owner."""
        self.require_fitted("put into words")
        if hasattr(self, "splits_"):
            return described_splits(self.splits_, self.bins_)
        names = self._column_names()
        trees = [described_tree(tree, names, self.bins_) for tree in self.trees_]
        return "\n".join(f"tree {number}\n{tree}" for number, tree in enumerate(trees))

    def share(self) -> Stored:
        if hasattr(self, "splits_"):
            return {"bins_": self.bins_.state(), "splits_": [splits_array(splits) for splits in self.splits_]}
        parts = {
            name: [[column.n_bins, column.missing, column.categorical] for column in columns]
            for name, columns in self.parts_.items()
        }
        learned: dict[str, Any] = {"bins_": self.bins_.state(), "parts_": parts, "start_": self.start_}
        learned |= {"trees_": [tree_state(tree) for tree in self.trees_], "losses_": list(self.losses_)}
        if hasattr(self, "record_"):
            learned["record_"] = self.record_.state()
        return learned | self._learned_labels()

    def take_share(self, tree: Stored) -> None:
        self.bins_ = Bins.of(tree["bins_"])
        if "splits_" in tree:
            found = [splits_of(splits) for splits in tree["splits_"]]
            self.splits_ = tuple(tuple(split for split in splits if split is not None) for splits in found)
            return
        self.parts_ = {name: tuple(Column(*column) for column in columns) for name, columns in tree["parts_"].items()}
        self.trees_ = tuple(tree_of(each) for each in tree["trees_"])
        self.start_, self.losses_ = tree["start_"], list(tree["losses_"])
        if "record_" in tree:
            self.record_ = ForestRecord.of(tree["record_"])
        self._take_labels(tree)

    @property
    def forest_record(self) -> ForestRecord | None:
        """What the label party saw of the forest, where it kept that; None elsewhere."""
        return getattr(self, "record_", None)

    def summary(self) -> str:
        depth = f"depth {self.max_depth}" if self.max_depth else f"{self.max_leaves} leaves"
        lines = [
            f"{type(self).__name__}: up to {self.n_estimators} rounds of trees of {depth}, learning rate "
            f"{self.learning_rate:g}.",
            f"The label party learns {_TOLD[self.sums]}, and the side of each split that a row meets. Feature parties "
            "learn how many nodes there are and which of their splits were chosen, and "
            f"{_ROWS_TOLD[self.membership]}.",
            f"Sums: {self._scheme()}. Threat model: curious parties that keep to the rules.",
        ]
        if hasattr(self, "splits_"):
            lines.append(f"This share: {sum(map(len, self.splits_))} splits in {len(self.splits_)} trees.")
        elif self.is_fitted:
            lines.append(f"This share: {len(self.trees_)} trees with {sum(map(len, self.trees_))} nodes.")
        return "\n".join(lines)

    def _scheme(self) -> str:
        if self.backend == "paillier":
            return "Paillier's scheme, for comparison"
        return f"RLWE of degree {HISTOGRAM.n}, estimated at {HISTOGRAM.security_bits} bits, experimental and unaudited"

    @abstractmethod
    def _loss(self, labels: NDArray[Any], owner: str) -> tuple[Loss, Float64Array, Float64Array]:
        """What is boosted, labels as it counts them, and what rows are weighted by."""

    def _learned_labels(self) -> dict[str, Any]:
        """What predictions need of the labels."""
        return {}

    def _take_labels(self, tree: Stored) -> None:
        """Take up what `_learned_labels` gave."""

    def _settings(self) -> ForestSettings:
        given = self._given(TreeParameters) | {"max_delta_step": self._largest_step}
        trees = TreeParameters(eta=self.learning_rate, **given)
        if self.sums == "hidden":
            trees = hidden_parameters(trees)
        self._require_scheme(trees)
        noise = NoiseSettings(self.epsilon, self.delta) if self.sums == "noisy" else None
        boost = BoostSettings(trees, **self._given(BoostSettings))
        return ForestSettings(boost, noise=noise, **self._given(ForestSettings))

    @property
    def _largest_step(self) -> float:
        """`max_delta_step`, or what xgboost takes for this loss."""
        return self.max_delta_step or 0.0

    def _given(self, settings: type[TreeParameters | BoostSettings | ForestSettings]) -> dict[str, Any]:
        """The parameters that settings have under the same names."""
        return {field.name: getattr(self, field.name) for field in fields(settings) if hasattr(self, field.name)}

    def lines(self, roles: Roles) -> Lines:
        among = star(roles.features[0], roles.features) if self.sums == "hidden" else frozenset()
        return super().lines(roles) | among

    def most_rows(self, roles: Roles) -> int | None:
        return HISTOGRAM.most_rows if self.backend == "hinted" else None

    def check_setup(self, party: Party) -> None:
        super().check_setup(party)
        self._settings()

    def check_table(self, party: Party) -> tuple[str, ...]:
        trial = self.clone()
        settings, sampling, table = trial._prepared(party)
        if party.holds_labels:
            trial._boosting(party, settings, sampling)
            return ()
        require_varied(party.name, BinnedRows.of(table, trial.bins_), sampling)
        assert party.roles.label is not None
        notes = LeakBudget.of_sides(party, party.roles.label, self.side_budget).require_room(1)
        if self.sums == "exact":
            # Every tree asks about its root at least; early stopping may end after the first.
            fewest = 1 if self.early_stopping_rounds else self.n_estimators
            n_rows = len(sampling.parts[0])
            budget = LeakBudget.of_sums(party, party.roles.label, n_rows, self.leak_budget)
            notes += budget.require_room(EQUATIONS_PER_NODE * fewest)
        return notes

    def check_columns(self, table: Table) -> None:
        self.bins_.require_columns(table)

    def _prepared(self, party: Party) -> tuple[ForestSettings, Sampling, Table]:
        """What a party's side is made from, its columns last; learns their bins."""
        settings = self._settings()
        sampling = Sampling(settings.boost, len(party.own_table), party.shared)
        if min(map(len, sampling.folds)) < 2:
            raise DataError(
                f"{party.name} should have two rows at least in each fold of rows, but has {len(party.own_table)} rows "
                "in all. Bring more rows, or raise subsample."
            )
        table = self._columns(party)
        self.bins_ = Bins.learned(table, sampling.parts[0], max_bin=self.max_bin)
        return settings, sampling, table

    def _require_scheme(self, trees: TreeParameters) -> None:
        if self.backend == "hinted":
            if self.membership == "revealed":
                raise PlanError(
                    'membership="revealed" requires backend="paillier", but backend is "hinted", which gains nothing '
                    "by it. Change one of the two."
                )
            # A GPU that is not there is refused before anything crosses.
            computes_on_gpu(self.device)
            return
        if self.device == "cuda":
            raise PlanError(
                'device="cuda" requires backend="hinted", but backend is "paillier", which no GPU computes. Change one '
                "of the two."
            )
        if self.sums != "exact":
            raise PlanError(
                f'backend="paillier" requires sums="exact", but sums is {self.sums!r}. Change one of the two.'
            )
        if most_numbers(trees, 1)[1] > MOST_NODES:
            raise PlanError(
                f'backend="paillier" asks for {MOST_NODES} nodes at once at most, but a level may have more. Lower '
                "max_depth or max_leaves."
            )

    def _boosting(self, party: Party, settings: ForestSettings, sampling: Sampling) -> Boosting:
        loss, labels, weights = self._loss(own_labels(party), party.name)
        if self.sample_weight is not None:
            weights = weights * row_weights(party, self.sample_weight)
        most_total = MOST_TOTAL if settings.hidden else slots_of(sampling.folds).most_total
        return Boosting(settings.boost, loss, labels, weights, sampling, party.random, most_total)

    def _columns(self, party: Party) -> Table:
        table = party.own_table
        return table.select([name for name in table.columns if not (party.holds_labels and name == self.sample_weight)])

    def _column_names(self) -> list[str]:
        """For each column of all parties its name, or its owner's where another party has it."""
        (_, *others) = self.parts_.items()
        return [*self.bins_.names, *(name for name, columns in others for _ in columns)]

    def _require_parties(self, party: Party) -> None:
        if tuple(self.parts_) != (party.name, *party.roles.features):
            raise PlanError(
                f"This forest was grown by {', '.join(self.parts_)}, but the roles of the prediction name "
                f"{', '.join(party.roles.holders)}. Name the parties of the training, in the same order."
            )


@dataclass(kw_only=True, eq=False, repr=False)
class SecureBoostClassifier(SecureBoost):
    """Boosted trees for classes: xgboost's binary:logistic for two classes, multi:softprob for more.

    Args:
        scale_pos_weight: What rows of the second of two classes are weighted by.
        class_weight: "balanced" weights rows so that all classes weigh as much; None does not.

    The other parameters are those of `SecureBoost`.

    >>> SecureBoostClassifier(n_estimators=50).get_params()["learning_rate"]
    0.3
    """

    task: ClassVar[Literal["classification"]] = "classification"
    limits: ClassVar[Mapping[str, Limit]] = {
        **SecureBoost.limits,
        "scale_pos_weight": number(above=0),
        "class_weight": optional(choice("balanced")),
    }

    scale_pos_weight: float = 1.0
    class_weight: Literal["balanced"] | None = None

    def _loss(self, labels: NDArray[Any], owner: str) -> tuple[Loss, Float64Array, Float64Array]:
        self.classes_ = require_classes(labels, owner)
        n_classes, codes = len(self.classes_), np.searchsorted(self.classes_, labels)
        weights = np.ones(len(labels))
        if self.class_weight == "balanced":
            weights = len(labels) / (n_classes * np.bincount(codes))[codes]
        if self.scale_pos_weight != 1:
            if n_classes > 2:
                raise PlanError(
                    f"scale_pos_weight should be 1 where there are more than two classes, but is "
                    f"{self.scale_pos_weight:g} and {owner} has {n_classes} classes. Use class_weight or sample_weight."
                )
            weights = np.where(codes == 1, self.scale_pos_weight, 1.0) * weights
        return (Logistic() if n_classes == 2 else Softmax(n_classes)), codes.astype(np.float64), weights

    def _prediction(self, scores: Float64Array) -> Prediction:
        if scores.shape[1] == 1:
            second = Logistic().predicted(scores)
            probabilities = np.concatenate([1 - second, second], axis=1)
        else:
            probabilities = Softmax(scores.shape[1]).predicted(scores)
        return Prediction(self.classes_[np.argmax(probabilities, axis=1)], probabilities)

    def _quality(self, labels: NDArray[Any], prediction: Prediction) -> float:
        return float((labels == prediction.values).mean())

    def _learned_labels(self) -> dict[str, Any]:
        return {"classes_": self.classes_.tolist()}

    def _take_labels(self, tree: Stored) -> None:
        self.classes_ = np.array(tree["classes_"])


@dataclass(kw_only=True, eq=False, repr=False)
class SecureBoostRegressor(SecureBoost):
    """Boosted trees for numbers or counts.

    Args:
        objective: "reg:squarederror" for numbers, "count:poisson" for counts.

    The other parameters are those of `SecureBoost`.

    >>> SecureBoostRegressor(objective="count:poisson").task
    'regression'
    """

    task: ClassVar[Literal["regression"]] = "regression"
    limits: ClassVar[Mapping[str, Limit]] = {
        **SecureBoost.limits,
        "objective": choice("reg:squarederror", "count:poisson"),
    }

    objective: Literal["reg:squarederror", "count:poisson"] = "reg:squarederror"

    def _loss(self, labels: NDArray[Any], owner: str) -> tuple[Loss, Float64Array, Float64Array]:
        if labels.dtype.kind not in "fiub":
            raise DataError(
                f"{owner}'s labels should be numbers for a regression, but are {labels.dtype}. Choose another label "
                "column, or SecureBoostClassifier."
            )
        return self._family(), labels.astype(np.float64), np.ones(len(labels))

    def _prediction(self, scores: Float64Array) -> Prediction:
        return Prediction(self._family().predicted(scores)[:, 0])

    def _quality(self, labels: NDArray[Any], prediction: Prediction) -> float:
        from sklearn.metrics import r2_score

        return float(r2_score(labels, prediction.values))

    def _family(self) -> Loss:
        return Poisson(self._largest_step) if self.objective == "count:poisson" else Squared()

    @property
    def _largest_step(self) -> float:
        own = Poisson.max_delta_step if self.objective == "count:poisson" else 0.0
        return own if self.max_delta_step is None else self.max_delta_step
