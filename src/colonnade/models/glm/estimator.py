"""Generalised linear models: linear, logistic and Poisson regression on columns that stay where they are.

    feature party                 label party                    arbiter
         Columns ─────────────────────▶                                        once
         ◀──────────────────── Outline                                         once
         ◀─────────────────── Schedule  ·  Schedule ─────────────▶             once
         ◀──────────────────────────────────────────────────── Key             to both, once per epoch
         EncryptedScores ─────────────▶                                        once per batch
         ◀───────── EncryptedResiduals                                         once per batch
         Masked ─────────────────────────────────────────────────▶             from both, once per batch
         ◀───────────────────────────────────────────────── Opened             to both, once per batch
         EncryptedLoss ───────────────▶                                        once per epoch
         ◀──────────────────── Verdict  ·  Verdict ──────────────▶             once per epoch
         MaskSeed ────────────────────▶                                        between feature parties, to predict
         MaskedScores ────────────────▶                                        to predict

With an arbiter, everybody's part of the residuals is encrypted under a key that only the arbiter can open. Each party
learns the gradient of its own coefficients at every step; from gradients of few rows residuals could be computed, so
batches of at most ten rows per own column are refused (see colonnade.attacks). The label party learns the loss of every
epoch, feature parties and arbiter when training ended. The arbiter sees sums under uniform masks, hence nothing but how
many there are. It must not work together with any party: together with the label party it could read every score.

Without an arbiter everything is shared, and before the end nothing is opened but whether it has come: see `glm_shares`.

The objective is the sum of the losses of all rows plus penalty/2 times the squared coefficients of all parties, the
intercept excepted. Yang et al. 2019, "Federated machine learning: concept and applications"; the approximation of
logistic regression is that of Hardy et al. 2017, arXiv 1711.10677.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.profiles import ARBITER, SHARES
from colonnade.errors import DataError, PlanError, ProtocolError
from colonnade.models.base import Estimator, Prediction, is_count
from colonnade.models.batches import fixed
from colonnade.models.glm.arbiter import SCHEMES, ArbiterSide, Backend, FeatureSide, LabelSide
from colonnade.models.glm.families import LINEAR, LOGISTIC, POISSON, Family, Quadratic
from colonnade.models.glm.masked_sum import Sending, summed
from colonnade.models.glm.shares import ComputingSide, MatrixSide
from colonnade.models.glm.sides import Side
from colonnade.runtime.hooks import prepare
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.tables.encode import Design
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array, Int64Array


class GeneralisedLinearModel(Estimator):
    """What linear, logistic and Poisson regression have in common.

    Args:
        penalty: Half of it is multiplied with the squared coefficients; the intercept is free.
        epochs: Passes over the rows, at most.
        batch_size: Rows per step, at least; None takes all. Batches are the same in every epoch.
        learning_rate: The length of a step along the gradient of the mean loss; None takes one that cannot diverge.
        momentum: How much of a step is taken again in the next one.
        tolerance: Training ends when the mean loss of an epoch changes by less; without an arbiter, when the change of
            the coefficients says so. 0 runs all epochs.
        intercept: Whether the label party has an intercept.
        standardised: Whether each party standardises its own columns first.
        weights: The label party's column with a weight for each row, which all parties then know.
        backend: With an arbiter: "rlwe", or "paillier" for the conventional scheme, thousands of times slower.
        alarm: With an arbiter: a party stops the run if a gradient or the loss exceeds so many times the largest of
            the first epoch; None never stops.
        partial_scores: In prediction: "masked", so that only sums over parties are learned, or "plain".
        asker: Who learns predictions: "label" or "arbiter".
    """

    family: ClassVar[Family]

    coef_: Float64Array
    centre_: float
    design_: Design | None
    gradients_: Float64Array
    opened_: int
    protocol_: Literal["arbiter", "shares"]
    history_: list[dict[str, float]]

    def __init__(
        self,
        *,
        penalty: float = 1.0,
        epochs: int = 200,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        momentum: float = 0.8,
        tolerance: float = 1e-8,
        intercept: bool = True,
        standardised: bool = True,
        weights: str | None = None,
        backend: Backend = "rlwe",
        alarm: float | None = 10.0,
        partial_scores: Sending = "masked",
        asker: Literal["label", "arbiter"] = "label",
    ) -> None:
        self.penalty = penalty
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.tolerance = tolerance
        self.intercept = intercept
        self.standardised = standardised
        self.weights = weights
        self.backend = backend
        self.alarm = alarm
        self.partial_scores = partial_scores
        self.asker = asker

    def fit(self, party: Party) -> Self:
        """Train together with the other parties; afterwards this holds the party's own coefficients."""
        self._validate(party)
        prepare(party, frozenset(), (), type(self).__name__)
        self.protocol_ = "shares" if party.roles.arbiter is None else "arbiter"
        side = self._side(party)
        side.begin()
        steps = party.steps(self.epochs * side.n_batches, side, name="train")
        for step in steps:
            steps.show(**side.train(step))
            if (step + 1) % side.n_batches == 0 and side.ends_after(step // side.n_batches):
                steps.stop()
        side.finish()
        return self

    def predict(self, party: Party) -> Prediction | None:
        """Predict together with the other parties; only the asker learns the result."""
        scores = self.scores(party)
        return None if scores is None else self._prediction(scores)

    def scores(self, party: Party) -> Float64Array | None:
        """The joint model's scores before the link, at the asker; None elsewhere."""
        self.require_fitted("used to predict")
        prepare(party, frozenset(), (), type(self).__name__)
        asker = party.roles.label if self.asker == "label" else party.roles.arbiter
        if asker is None:
            raise PlanError(f"Predictions go to the {self.asker}, but the roles name none. Name one.")
        own = None
        if self.design_ is not None:
            own = self.design_.matrix(party.own_table) @ self.coef_ + self.centre_
        return summed(party, own, asker, self.partial_scores)

    def predict_proba(self, party: Party) -> NDArray[np.float64] | None:
        """The joint model's probabilities, one column per class, at the asker; None elsewhere."""
        prediction = self.predict(party)
        return None if prediction is None else prediction.probabilities

    def score(self, party: Party) -> float | None:
        """Accuracy, R² or the explained share of the deviance on this table, at the label party; None elsewhere."""
        prediction = self.predict(party)
        if prediction is None or not party.holds_labels:
            return None
        return self._quality(np.asarray(party.own_table.labels), prediction)

    def share(self) -> Tree:
        """What this party has learned, as a tree of arrays and plain values."""
        learned = {name: value for name, value in vars(self).items() if name.endswith("_") and name != "design_"}
        learned["design_"] = None if self.design_ is None else self.design_.state()
        if hasattr(self, "classes_"):
            learned["classes_"] = self.classes_.tolist()
        return learned

    def take_share(self, tree: Tree) -> None:
        """Take up what `share` gave."""
        vars(self).update(tree)
        self.design_ = None if tree["design_"] is None else Design.of(tree["design_"])
        if "classes_" in tree:
            self.classes_ = np.array(tree["classes_"])

    @property
    def coefficients(self) -> Mapping[str, float]:
        """This party's own coefficients by column; standardised columns count in standard deviations."""
        self.require_fitted("asked for coefficients")
        if self.design_ is None:
            return {}
        found = dict(zip(self.design_.names, self.coef_.tolist(), strict=True))
        if self.design_.intercept:
            found["intercept"] += self.centre_
        return found

    def summary(self) -> str:
        """What the model is, and what each role learns, in a few lines."""
        exact = self.family.polynomial is None
        learned = {
            "arbiter": f"With an arbiter: {self.family.approximation}; {SECURITY[self.backend]}. Each party learns the "
            "gradients of its own coefficients, the label party the loss of each epoch, the arbiter nothing but the "
            "number of masked sums. It must work together with nobody.",
            "shares": f"Without an arbiter: {'exact' if exact else 'a polynomial of degree 7'}; {SECURITY['shares']}. "
            "Nobody learns anything but when training ends, then each party its own coefficients. The label party and "
            "the first feature party must not work together.",
        }
        lines = [
            f"{type(self).__name__}: penalty {self.penalty:g}, momentum {self.momentum:g}, up to {self.epochs} epochs.",
            *(words for protocol, words in learned.items() if getattr(self, "protocol_", protocol) == protocol),
            "Threat model: curious parties that keep to the rules.",
        ]
        if self.is_fitted and self.design_ is not None:
            lines.append(f"This share: {len(self.coef_)} coefficients.")
        return "\n".join(lines)

    def batches(self, party: Party) -> list[Int64Array]:
        """The batches that all parties derive alike."""
        return fixed(len(party.own_table), self.batch_size, party.shared)

    def labels(self, party: Party) -> Float64Array:
        """The label party's labels as the numbers of the family."""
        labels = party.own_table.labels
        if labels is None:
            raise DataError(f"{party.name} is the label party but its table has no labels. Name the label column.")
        return self.family.checked(np.asarray(labels), party.name)

    def quadratic(self, party: Party) -> Quadratic:
        """The loss as a parabola over each row's score."""
        return self.family.quadratic(self.labels(party))

    def share_labels(self, party: Party, target: Quadratic) -> Float64Array:
        """Labels as what the mean on shares is compared with."""
        labels = self.labels(party)
        if self.family is LOGISTIC:
            return (labels + 1) / 2
        return target.values if self.family is LINEAR else labels / target.curvature

    def share_factor(self, target: Quadratic) -> float:
        """What the mean less the label is multiplied with in a gradient, on shares."""
        return 1.0 if self.family is LOGISTIC else target.curvature

    def share_curvature(self, target: Quadratic) -> float:
        """How strongly the loss bends at most, on shares: exp bends more the larger the rate."""
        return target.curvature * (4.0 if self.family is POISSON else 1.0)

    def row_weights(self, party: Party) -> Float64Array:
        """The weight of each row with mean 1; empty if rows are not weighted."""
        if self.weights is None:
            return np.zeros(0)
        if self.weights not in party.own_table.columns:
            raise PlanError(f"{party.name} should have the column of weights {self.weights!r}, but has none. Name one.")
        values = np.asarray(party.own_table.column(self.weights), np.float64)
        wrong = int((~(values >= 0) | np.isinf(values)).sum())
        if wrong or not values.any():
            raise DataError(
                f"{party.name}'s weights in {self.weights!r} should be numbers of 0 or more, not all 0, but {wrong:,} "
                f"of {len(values):,} are not. Correct them."
            )
        return np.asarray(values * (len(values) / values.sum()))

    def ends(self, history: list[dict[str, float]], loss: float) -> bool:
        """Whether training ends with an epoch of this loss; raises the alarm if it cannot be honest."""
        if not history:
            return False
        first, last = history[0]["loss"], history[-1]["loss"]
        if self.alarm is not None and not loss <= first + (self.alarm - 1) * max(abs(first), 1e-9):
            raise ProtocolError(
                f"The mean loss should fall below that of the first epoch, but is {self.alarm:g} times as large or "
                "more. A party sends faked inputs, or the learning rate is too high. Distrust the run, or lower it."
            )
        return abs(last - loss) < self.tolerance

    def watch(self, name: str, epoch: int, usual: float, length: float) -> None:
        """Raise the alarm if a gradient is longer than any honest one is.

        Args:
            name: Whose gradient it is.
            epoch: When it came.
            usual: How long gradients of the first epoch were, or would be if residuals were noise.
            length: How long it is.
        """
        if self.alarm is not None and epoch and not length <= self.alarm * usual:
            raise ProtocolError(
                f"{name}'s gradients should stay within those of the first epoch, but one is more than {self.alarm:g} "
                f"times as long in epoch {epoch}. A party sends faked inputs, or the learning rate is too high. "
                "Distrust the run, or lower it."
            )

    @abstractmethod
    def _prediction(self, scores: Float64Array) -> Prediction:
        """What scores mean."""

    @abstractmethod
    def _quality(self, labels: NDArray[Any], prediction: Prediction) -> float:
        """How well a prediction fits labels."""

    def _side(self, party: Party) -> Side:
        if party.name == party.roles.arbiter:
            self.design_ = None
            return ArbiterSide(self, party)
        table = party.own_table
        if len(table) < 2:
            raise DataError(f"{party.name} has {len(table)} rows, but a regression needs at least 2. Bring more rows.")
        if party.holds_labels:
            self._learn_labels(party)
        if not party.holds_labels and not self._kept(table).columns:
            raise DataError(
                f"{party.name} is a feature party but its table has no columns besides the ids. Bring some."
            )
        self.design_ = self._learned_design(table, holds_labels=party.holds_labels)
        self.centre_ = 0.0
        matrix = self.design_.matrix(table)
        if party.roles.arbiter is None:
            computing = party.name in party.roles.holders[:2]
            return (ComputingSide if computing else MatrixSide)(self, party, matrix)
        return (LabelSide if party.holds_labels else FeatureSide)(self, party, matrix)

    def _kept(self, table: Table) -> Table:
        """A table without the column of weights."""
        return table if self.weights is None else table.select([c for c in table.columns if c != self.weights])

    def _learned_design(self, table: Table, *, holds_labels: bool) -> Design:
        intercept = self.intercept and holds_labels
        return Design.learned(self._kept(table), standardised=self.standardised, intercept=intercept)

    def _learn_labels(self, party: Party) -> None:
        """What the label party has to know before training besides pseudo-responses."""

    def _validate(self, party: Party) -> None:
        if party.roles.label is None or not party.roles.features:
            raise PlanError(
                f"{type(self).__name__} needs a label party and at least one feature party, but the roles are "
                f"{party.roles}. Name both."
            )
        for name, holds, wanted in (
            ("penalty", self.penalty >= 0, "0 or more"),
            ("epochs", is_count(self.epochs), "a whole number, at least 1"),
            ("batch_size", self.batch_size is None or is_count(self.batch_size), "None or a whole number, at least 1"),
            ("learning_rate", self.learning_rate is None or self.learning_rate > 0, "None or above 0"),
            ("momentum", 0 <= self.momentum < 1, "between 0 and 1"),
            ("tolerance", self.tolerance >= 0, "0 or more"),
            ("backend", self.backend in SCHEMES, "'rlwe' or 'paillier'"),
            ("alarm", self.alarm is None or self.alarm > 1, "None or above 1"),
            ("partial_scores", self.partial_scores in ("masked", "plain"), "'masked' or 'plain'"),
            ("asker", self.asker in ("label", "arbiter"), "'label' or 'arbiter'"),
        ):
            if not holds:
                raise PlanError(
                    f"{type(self).__name__}'s {name} should be {wanted}, but is {getattr(self, name)!r}. Change it."
                )


SECURITY = {
    "shares": f"RLWE of degree {SHARES.n}, estimated at {SHARES.security_bits} bits, experimental and unaudited",
    "rlwe": f"RLWE of degree {ARBITER.n}, estimated at {ARBITER.security_bits} bits, experimental and unaudited",
    "paillier": "Paillier of 3,072 bits, about 128 bits of security",
}


class LinearRegression(GeneralisedLinearModel):
    """Least squares: the sum over rows of (score - label)² plus penalty/2 times the squared coefficients.

    This is scikit-learn's `Ridge(alpha=penalty / 2)` on all parties' columns.

    >>> LinearRegression(penalty=2.0).get_params()["penalty"]
    2.0
    """

    task: ClassVar[Literal["regression"]] = "regression"
    family = LINEAR

    def _prediction(self, scores: Float64Array) -> Prediction:
        return Prediction(scores)

    def _quality(self, labels: NDArray[Any], prediction: Prediction) -> float:
        from sklearn.metrics import r2_score

        return float(r2_score(labels, prediction.values))


class LogisticRegression(GeneralisedLinearModel):
    """Two classes: the sum of logistic losses plus penalty/2 times the squared coefficients.

    This is scikit-learn's `LogisticRegression(C=1 / penalty)` on all parties' columns; with an arbiter the loss is
    approximated to second order.

    >>> LogisticRegression(epochs=5).task
    'classification'
    """

    task: ClassVar[Literal["classification"]] = "classification"
    family = LOGISTIC

    classes_: NDArray[Any]

    def _learn_labels(self, party: Party) -> None:
        self.labels(party)
        self.classes_ = np.unique(np.asarray(party.own_table.labels))

    def _prediction(self, scores: Float64Array) -> Prediction:
        # An arbiter that asks does not know what the classes are called.
        classes = self.classes_ if hasattr(self, "classes_") else np.arange(2)
        second = self.family.mean(scores)
        return Prediction(classes[(second > 0.5).astype(np.int64)], np.stack([1 - second, second], axis=1))

    def _quality(self, labels: NDArray[Any], prediction: Prediction) -> float:
        return float((labels == prediction.values).mean())


class PoissonRegression(GeneralisedLinearModel):
    """Counts: the sum over rows of exp(score) - label * score plus penalty/2 times the squared coefficients.

    This is scikit-learn's `PoissonRegressor(alpha=penalty / rows)` on all parties' columns; with an arbiter the loss is
    approximated to second order.

    >>> PoissonRegression().family.name
    'Poisson'
    """

    task: ClassVar[Literal["regression"]] = "regression"
    family = POISSON

    def _prediction(self, scores: Float64Array) -> Prediction:
        return Prediction(self.family.mean(scores))

    def _quality(self, labels: NDArray[Any], prediction: Prediction) -> float:
        from sklearn.metrics import d2_tweedie_score

        return float(d2_tweedie_score(labels, prediction.values, power=1))
