"""Generalised linear models: linear, logistic and Poisson regression on columns that stay where they are.

    feature party                 label party                    arbiter
         ColumnSummary, ColumnToken ──▶                                        once
         ◀──────────────── StepOutline                                         once
         ◀─────────────────── Schedule  ·  Schedule ─────────────▶             once
                                           OpenableSums ─────────▶             once
         ◀───────────────────────────────────────── PublicKeyBytes             to both, once per epoch
         ScoreShare ──────────────────▶                                        once per batch
         ScoreShare ─────────────────────────────────────────────▶             once per batch
                                      ◀───── PairedWords ────────▶             in turns: the means
                                      ◀─────────── EncryptedMeans             once per batch and model
         ◀───────── EncryptedResiduals                                         once per batch and model
         MaskedSums ─────────────────────────────────────────────▶             from both, once per batch and model
         ◀───────────────────────────────────────────── OpenedSums             to both, once per batch and model
         StillVote ───────────────────▶                                        once per epoch
         ◀──────────────── StopVerdict  ·  StopVerdict ──────────▶             once per epoch
         ScoreMaskSeed ───────────────▶                                        between feature parties, to predict
         MaskedScores ────────────────▶                                        to predict

With an arbiter, residuals are encrypted under a key that only the arbiter can open; `arbiter` says what each role
learns. Without an arbiter everything is shared, and before the end only one bit after each epoch is opened; see
`shares`. Either way means are looked up on shares (`means`). `masked_sum` adds up predictions.

The objective is the sum of the losses of all rows plus a penalty on the squared coefficients of all parties, the
intercept excepted. Yang et al. 2019, "Federated machine learning: concept and applications".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.additive import MOST_ROWS
from colonnade.crypto.profiles import ARBITER, SHARES
from colonnade.errors import DataError, PlanError, PrivacyError, StorageError
from colonnade.models.base import Prediction, ScoringEstimator
from colonnade.models.batches import fixed_batches
from colonnade.models.glm.approximation import Approximation
from colonnade.models.glm.families import LINEAR, LOGISTIC, POISSON, Family
from colonnade.models.glm.masked_sum import Sending, masked_sum
from colonnade.models.glm.rare import without_rare
from colonnade.models.glm.rows import BatchedRows, own_scores
from colonnade.models.glm.sides import (
    Backend,
    LearnedRegression,
    RegressionSettings,
    RegressionSide,
    mean_weights,
    numeric_labels,
)
from colonnade.parameters import Limit, choice, count, is_integer, number, optional, truth
from colonnade.roles import Lines, Roles, star
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.tables.encode import Design
from colonnade.tables.table import Table
from colonnade.text import how_many
from colonnade.wire.message import Float64Array

if TYPE_CHECKING:
    from colonnade.models.glm.gradient_privacy import GradientPrivacy

_log = logging.getLogger(__name__)

_BITS = Limit(
    lambda value: is_integer(value) and 20 <= value <= 53, "a whole number, from 20 to 53", (19, 54, 26.0, "26", True)
)
_NOISE = Limit(
    lambda value: _is_noise(value),
    "a GradientPrivacy or a mapping of its fields",
    (1.0, "yes"),
)
_COLUMN = Limit(lambda value: isinstance(value, str), "the name of a column", (3, True, None))


class GeneralisedLinearModel(ScoringEstimator):
    """What linear, logistic and Poisson regression have in common.

    Args:
        alpha: How strongly squared coefficients are penalised; the intercept is free. Each class says which parameter
            of scikit-learn this is.
        max_iter: Passes over the rows, at most.
        batch_size: Rows per step, at least; None takes all. No step takes more than 524,288 rows. Batches are the same
            in every epoch.
        learning_rate: The length of a step along the gradient of the mean loss; None takes one that cannot diverge.
        momentum: How much of a move is taken again before the next gradient, at most. With more than two classes, the
            first 200 steps by default are three times as long and repeat the move after the gradient.
        tol: Training ends when each of ten epochs in a row changes the mean loss by less, as the change of the
            coefficients says; linear regression divides labels by a power of two first, so that they are at most 4. 0
            runs all epochs.
        fit_intercept: Whether the label party fits an intercept. Without it, `intercept_` is the constant about which
            the family expands its labels: their mean in linear regression, its logarithm in Poisson regression.
        standardised: Whether each party standardises its own columns first.
        sample_weight: The label party's column with a weight for each row; all parties learn the weights.
        backend: With an arbiter: "rlwe", or "paillier" for the conventional scheme, thousands of times slower.
        alarm: With an arbiter: a party stops the run if a gradient is more than this many times the largest of the
            first epoch; None never stops.
        rows_per_column: With an arbiter: a batch needs more than this many rows for each column of a party that was
            ever opened on these rows, in this run or an earlier one; 0 refuses nothing.
        fewest_rows: With an arbiter: how many rows of a batch each level needs, or it becomes "other"; and in how many
            rows a column of numbers must differ from its commonest value, or it is refused. 1 changes nothing.
        gradient_bits: With an arbiter: how many of the 53 bits of each gradient the arbiter opens; None opens all. With
            26, a mean gradient of standardised columns is right to about 2e-5.
        gradient_privacy: With an arbiter, for logistic regression: noise on opened gradients that hides each label, as
            `GradientPrivacy` or a mapping of its fields; it needs tol=0 and alarm=None. None adds none.
        partial_scores: In prediction: "masked", so that only sums over parties are learned, or "plain".
        asker: Who learns predictions: "label" or "arbiter".

    Attributes:
        coef_: The coefficients of this party's own columns, without the intercept; of more than two classes, a row for
            each class.
        intercept_: What is added to every score, or of more than two classes a number for each; only the label party
            has it.
        design_: How this party's columns become numbers; None at the arbiter.
        gradients_: With an arbiter, this party's gradient at each step, the intercept's last; of more than two classes
            (steps, classes, columns).
        n_iter_: How many epochs there were.
        converged_: Whether training ended because of `tol`; None where `tol` is 0.
        approximation_: How far the means that training took may be from the exact ones; None in a share that an earlier
            version saved.
        opened_: At the arbiter, how many sums it decrypted.
        protocol_: "arbiter" or "shares".
    """

    family: ClassVar[Family]
    limits: ClassVar[Mapping[str, Limit]] = {
        "alpha": number(0),
        "max_iter": count(),
        "batch_size": optional(count()),
        "learning_rate": optional(number(above=0)),
        "momentum": number(0, below=1),
        "tol": number(0),
        "fit_intercept": truth(),
        "standardised": truth(),
        "sample_weight": optional(_COLUMN),
        "backend": choice("rlwe", "paillier"),
        "alarm": optional(number(above=1)),
        "rows_per_column": count(0),
        "fewest_rows": count(),
        "gradient_bits": optional(_BITS),
        "gradient_privacy": optional(_NOISE),
        "partial_scores": choice("masked", "plain"),
        "asker": choice("label", "arbiter"),
    }

    dry_run_params: ClassVar[Mapping[str, Any]] = {"rows_per_column": 0, "fewest_rows": 1}
    former_names: ClassVar[Mapping[str, str]] = {
        "penalty": "alpha, and the number means what it means in scikit-learn",
        "epochs": "max_iter",
        "tolerance": "tol",
        "intercept": "fit_intercept",
        "weights": "sample_weight",
    }
    """What keys of plans written for earlier versions are called now."""

    coef_: Float64Array
    intercept_: float | Float64Array
    design_: Design | None
    gradients_: Float64Array
    opened_: int
    protocol_: Literal["arbiter", "shares"]
    n_iter_: int
    converged_: bool | None
    approximation_: Approximation | None

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        max_iter: int = 400,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        momentum: float = 0.95,
        tol: float = 1e-8,
        fit_intercept: bool = True,
        standardised: bool = True,
        sample_weight: str | None = None,
        backend: Backend = "rlwe",
        alarm: float | None = 10.0,
        rows_per_column: int = 64,
        fewest_rows: int = 20,
        gradient_bits: int | None = 26,
        gradient_privacy: GradientPrivacy | Mapping[str, Any] | None = None,
        partial_scores: Sending = "masked",
        asker: Literal["label", "arbiter"] = "label",
    ) -> None:
        self.alpha = alpha
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.standardised = standardised
        self.sample_weight = sample_weight
        self.backend = backend
        self.alarm = alarm
        self.rows_per_column = rows_per_column
        self.fewest_rows = fewest_rows
        self.gradient_bits = gradient_bits
        self.gradient_privacy = gradient_privacy
        self.partial_scores = partial_scores
        self.asker = asker

    @classmethod
    def example(cls) -> Self:
        """A regression of two epochs and few batches, which sends every kind of message; for 500 rows or more."""
        return cls(max_iter=2, batch_size=180, rows_per_column=10, fewest_rows=1)

    def fit(self, party: Party) -> Self:
        """Train together with the other parties; afterwards this holds the party's own coefficients."""
        self.check_setup(party)
        self.admit_defences(party)
        side = self._side(party)
        side.begin()
        steps = party.steps(self.max_iter * side.n_batches, side, name="train")
        for step in steps:
            side.train(step)
            if (step + 1) % side.n_batches == 0 and side.ends_after(step // side.n_batches):
                steps.stop()
        self._store(party, side.finish())
        self.n_iter_, self.converged_ = side.n_epochs, side.converged if self.tol else None
        if self.converged_ is False:
            _log.warning("%s: %s", party.name, self._end)
        _log.info("%s: %s", party.name, self.approximation_)
        return self

    def scores(self, party: Party) -> Float64Array | None:
        """The joint model's scores before the link, at the asker; None elsewhere."""
        self.require_fitted("used to predict")
        self.admit_defences(party)
        own = None if self.design_ is None else self._own_scores(self.design_, party.own_table)
        return masked_sum(party, own, self._asker(party.roles), self.partial_scores)

    def share(self) -> Tree:
        learned = {name: value for name, value in vars(self).items() if name.endswith("_") and name != "design_"}
        learned["design_"] = None if self.design_ is None else self.design_.state()
        if hasattr(self, "classes_"):
            learned["classes_"] = self.classes_.tolist()
        learned["approximation_"] = None if self.approximation_ is None else asdict(self.approximation_)
        return learned

    def take_share(self, tree: Tree) -> None:
        if "centre_" in tree:
            raise StorageError(
                "A share of a regression should hold intercept_ apart from coef_, but this one was saved by an earlier "
                "version, which did not. Fit the model again."
            )
        vars(self).update(tree)
        self.design_ = None if tree["design_"] is None else Design.of(tree["design_"])
        approximation = tree.get("approximation_")
        self.approximation_ = None if approximation is None else Approximation(**approximation)
        if "classes_" in tree:
            self.classes_ = np.array(tree["classes_"])

    @property
    def coefficients(self) -> Mapping[str, Any]:
        """This party's own coefficients by column, one or a list with one for each of more than two classes.

        Standardised columns count in standard deviations.
        """
        self.require_fitted("asked for coefficients")
        if self.design_ is None:
            return {}
        values = [*self.coef_.T.tolist(), *([np.asarray(self.intercept_).tolist()] if self.design_.intercept else [])]
        return dict(zip(self.design_.names, values, strict=True))

    @property
    def _end(self) -> str:
        """How training ended, in words."""
        if self.converged_ is False:
            return (
                f"after {how_many(self.n_iter_, 'epoch')} (max_iter) the mean loss has not stood still within "
                f"{self.tol:g} (tol). The model has not converged. Raise max_iter or tol."
            )
        ended = f"training ended after {how_many(self.n_iter_, 'epoch')}"
        return f"{ended}, {'by tol' if self.converged_ else 'as max_iter says'}."

    def summary(self) -> str:
        known = self.approximation_ if self.is_fitted else None
        about = f"{self.family.approximation}; " if known is None else ""
        learned = {
            "arbiter": f"With an arbiter: {about}{SECURITY[self.backend]}. Each party learns the "
            "gradients of its own coefficients, the label party from each party after each epoch whether its "
            "coefficients stand still, the arbiter only the number of shares and masked sums. The arbiter must work "
            "together with nobody.",
            "shares": f"Without an arbiter: {about}{SECURITY['shares']}. "
            "The parties learn when training ends, then each party its own coefficients. The label party and the first "
            "feature party must not work together.",
        }
        lines = [
            f"{type(self).__name__}: alpha {self.alpha:g}, momentum {self.momentum:g}, up to "
            f"{how_many(self.max_iter, 'epoch')}.",
            *(words for protocol, words in learned.items() if getattr(self, "protocol_", protocol) == protocol),
            "Threat model: curious parties that keep to the rules.",
        ]
        if self.is_fitted:
            lines.append(self._end[0].upper() + self._end[1:])
        if known is not None:
            lines.append(str(known))
        if self.is_fitted and self.design_ is not None:
            lines.append(f"This share: {how_many(len(self.coefficients), 'coefficient')}.")
        return "\n".join(lines)

    def _side(self, party: Party) -> RegressionSide:
        # Each protocol is imported where it runs: the other one's cryptography is not needed.
        names = [field.name for field in fields(RegressionSettings) if field.name not in ("family", "gradient_privacy")]
        settings = RegressionSettings(
            self.family, gradient_privacy=self._gradient_privacy, **{name: getattr(self, name) for name in names}
        )
        with_arbiter = party.roles.arbiter is not None
        if with_arbiter:
            from colonnade.models.glm.arbiter import ArbiterSide, EncryptedFeatureSide, EncryptedLabelSide

            if party.name == party.roles.arbiter:
                self.design_ = None
                return ArbiterSide(settings, party)
        if with_arbiter:
            rows = self._batched_rows(party)
            self.design_ = self._learned_design(party, rows)
            side = EncryptedLabelSide if party.holds_labels else EncryptedFeatureSide
            return side(settings, party, self.design_, rows)
        self.design_ = self._learned_design(party)
        matrix = self.design_.matrix(party.own_table)
        from colonnade.models.glm.shares import ComputingSide, MatrixSide

        computing = party.name in party.roles.holders[:2]
        return (ComputingSide if computing else MatrixSide)(settings, party, matrix)

    def _batched_rows(self, party: Party) -> BatchedRows[Table]:
        """This party's rows in the batches of training with an arbiter."""
        table = party.own_table
        return BatchedRows.of(table, fixed_batches(len(table), self.batch_size, party.shared))

    def _learned_design(self, party: Party, rows: BatchedRows[Table] | None = None) -> Design:
        table = party.own_table
        if len(table) < 2:
            raise DataError(f"{party.name} has {len(table)} rows, but a regression needs at least 2. Bring more rows.")
        if party.holds_labels:
            self._learn_labels(party)
        columns = [name for name in table.columns if name != self.sample_weight]
        if not party.holds_labels and not columns:
            raise DataError(
                f"{party.name} is a feature party but its table has no columns besides the ids. Bring some."
            )
        intercept = self.fit_intercept and party.holds_labels
        design = Design.learned(table.select(columns), standardised=self.standardised, intercept=intercept)
        if rows is None:
            return design
        common = without_rare(design, rows, self.fewest_rows, table.owner)
        if not party.holds_labels and not common.names:
            raise PrivacyError(
                f"{party.name} should have levels with at least {self.fewest_rows} rows in each batch (fewest_rows), "
                f"but all levels of {', '.join(map(repr, columns))} are rarer. Merge levels, bring other columns, or "
                "train without an arbiter."
            )
        return common

    def _learn_labels(self, party: Party) -> None:
        """Keep what predictions need of the labels."""

    def _store(self, party: Party, learned: LearnedRegression) -> None:
        self.protocol_ = "shares" if party.roles.arbiter is None else "arbiter"
        self.approximation_ = learned.approximation
        if self.design_ is None:
            self.opened_ = learned.n_opened
            return
        coefficients, constants = learned.coefficients, np.full(len(learned.coefficients), learned.centre)
        if self.design_.intercept:
            coefficients, constants = coefficients[:, :-1], constants + coefficients[:, -1]
        single = len(coefficients) == 1
        self.coef_ = coefficients[0] if single else coefficients
        self.gradients_ = learned.gradients[:, 0] if single else learned.gradients
        if party.holds_labels:
            self.intercept_ = float(constants[0]) if single else constants

    def _own_scores(self, design: Design, table: Table) -> Float64Array:
        weights, constant = self.coef_.T, np.asarray(getattr(self, "intercept_", 0.0))
        if design.intercept:
            weights, constant = np.concatenate([weights, constant[None]]), np.asarray(0.0)
        return np.concatenate(list(table.map(own_scores, design, weights, constant)))

    @property
    def _gradient_privacy(self) -> GradientPrivacy | None:
        if self.gradient_privacy is None:
            return None
        from colonnade.models.glm.gradient_privacy import GradientPrivacy

        return GradientPrivacy.of(self.gradient_privacy, f"{type(self).__name__}'s gradient_privacy")

    def check_setup(self, party: Party) -> None:
        super().check_setup(party)
        if self._gradient_privacy is not None:
            self._require_bounded(party)
        self._asker(party.roles)

    def lines(self, roles: Roles) -> Lines:
        centres = roles.holders[:2] if roles.arbiter is None else (roles.label, roles.arbiter)
        asker = roles.label if self.asker == "label" else roles.arbiter
        senders = [name for name in roles.holders if name != asker]
        masked = senders if self.partial_scores == "masked" else []
        others = [*roles.holders, *([] if roles.arbiter is None else [roles.arbiter])]
        trained = (star(centre, others) for centre in centres)
        return frozenset().union(*trained, star(asker, senders), *(star(sender, masked) for sender in masked))

    def most_rows(self, roles: Roles) -> int | None:
        return MOST_ROWS if roles.arbiter is None else None

    def check_table(self, party: Party) -> tuple[str, ...]:
        design = self.clone()._learned_design(party, None if party.roles.arbiter is None else self._batched_rows(party))
        if party.holds_labels:
            mean_weights(party, self.sample_weight)
        elif party.roles.arbiter is not None:
            from colonnade.models.glm.openings import require_rows

            batches = fixed_batches(len(party.own_table), self.batch_size, party.shared)
            require_rows(party.name, len(design.names), min(map(len, batches)), self.rows_per_column)
        return ()

    def check_columns(self, table: Table) -> None:
        if self.design_ is not None:
            self.design_.inputs.require_columns(table)

    def _asker(self, roles: Roles) -> str:
        asker = roles.label if self.asker == "label" else roles.arbiter
        if asker is None:
            raise PlanError(f"Predictions go to the {self.asker}, but the roles name none. Name one.")
        return asker

    def _require_bounded(self, party: Party) -> None:
        """Refuse noise where labels are seen elsewhere, or where no bound is known on what one label moves."""
        needs = {
            "labels that are classes, because other labels have no bound": self.family is LOGISTIC,
            "an arbiter, which draws the noise": party.roles.arbiter is not None,
            "sample_weight=None, because weights have no bound": self.sample_weight is None,
            "tol=0, because the epoch in which training ends depends on all labels": self.tol == 0,
            "alarm=None, because an alarm depends on all labels": self.alarm is None,
        }
        missing = [need for need, holds in needs.items() if not holds]
        if missing:
            raise PlanError(
                f"gradient_privacy needs {'; and '.join(missing)}, but {type(self).__name__} does not have "
                f"{'it' if len(missing) == 1 else 'these'}. Change this, or leave gradient_privacy out."
            )


SECURITY = {
    "shares": f"RLWE of degree {SHARES.n}, estimated at {SHARES.security_bits} bits, experimental and unaudited",
    "rlwe": f"RLWE of degree {ARBITER.n}, estimated at {ARBITER.security_bits} bits, experimental and unaudited",
    "paillier": "Paillier of 3,072 bits, about 128 bits of security",
}


class LinearRegression(GeneralisedLinearModel):
    """Least squares: the sum over rows of (score - label)² plus alpha times the squared coefficients.

    This is scikit-learn's `Ridge(alpha=alpha)` on all parties' columns.

    >>> LinearRegression(alpha=2.0).get_params()["alpha"]
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
    """Classes: the sum of logistic losses plus alpha/2 times the squared coefficients.

    This is scikit-learn's `LogisticRegression(C=1 / alpha)` on all parties' columns, with more than two classes its
    multinomial model: a softmax over one score for each class.

    Attributes:
        classes_: The classes, sorted; only the label party has them.
        strategy_: What was trained: "binary", one score for two classes, or "multinomial", one for each class.

    >>> LogisticRegression(max_iter=5).task
    'classification'
    """

    task: ClassVar[Literal["classification"]] = "classification"
    family = LOGISTIC

    classes_: NDArray[Any]
    strategy_: Literal["binary", "multinomial"]

    def take_share(self, tree: Tree) -> None:
        if "strategy_" not in tree and np.ndim(tree.get("coef_", 0.0)) == 2:
            raise StorageError(
                "A share of a logistic regression of more than two classes should be multinomial, but this one was "
                "saved by an earlier version, which told each class from all others. Fit the model again."
            )
        super().take_share({"strategy_": "binary"} | tree)

    def _store(self, party: Party, learned: LearnedRegression) -> None:
        super()._store(party, learned)
        self.strategy_ = "binary" if len(learned.coefficients) == 1 else "multinomial"

    def _learn_labels(self, party: Party) -> None:
        numeric_labels(party, self.family)
        self.classes_ = np.unique(np.asarray(party.own_table.labels))

    def _prediction(self, scores: Float64Array) -> Prediction:
        if scores.ndim == 1:
            second = self.family.mean(scores)
            means = np.stack([1 - second, second], axis=1)
        else:
            rates = np.exp(scores - scores.max(axis=1, keepdims=True))
            means = rates / rates.sum(axis=1, keepdims=True)
        # An arbiter that asks does not know what the classes are called.
        classes = self.classes_ if hasattr(self, "classes_") else np.arange(means.shape[1])
        return Prediction(classes[means.argmax(axis=1)], means)

    def _quality(self, labels: NDArray[Any], prediction: Prediction) -> float:
        return float((labels == prediction.values).mean())


class PoissonRegression(GeneralisedLinearModel):
    """Counts: the mean over rows of exp(score) - label * score plus alpha/2 times the squared coefficients.

    This is scikit-learn's `PoissonRegressor(alpha=alpha)` on all parties' columns.

    >>> PoissonRegression().family.name
    'Poisson'
    """

    task: ClassVar[Literal["regression"]] = "regression"
    family = POISSON

    mean_rate_: float

    def _learn_labels(self, party: Party) -> None:
        self.mean_rate_ = float(numeric_labels(party, self.family).mean())

    def _prediction(self, scores: Float64Array) -> Prediction:
        rates, table = self.family.mean(scores), self.family.table
        assert table is not None
        beyond = int((rates > table.above * getattr(self, "mean_rate_", np.inf)).sum())
        if beyond:
            _log.warning(
                "%d of %d predicted rates are above %.0f mean rates. Training counts such rates as %.0f mean rates.",
                *(beyond, len(rates), table.above, table.above),
            )
        return Prediction(rates)

    def _quality(self, labels: NDArray[Any], prediction: Prediction) -> float:
        from sklearn.metrics import d2_tweedie_score

        return float(d2_tweedie_score(labels, prediction.values, power=1))


def _is_noise(value: object) -> bool:
    # Noise on gradients is imported where it is asked for.
    from colonnade.models.glm.gradient_privacy import GradientPrivacy

    return isinstance(value, GradientPrivacy | Mapping)
