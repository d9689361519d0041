"""Columns: every party guesses the values in every other party's columns.

A guess is scored by R², one minus its squared error relative to that of the column's mean, column by column. The score
is that of the worst column: the one whose R² exceeds most what the attacker could impute by itself. Beside it stands
how well whole records are rebuilt (`rebuilding`). Columns leak if the worst one does and rows are singled out.

Granted: some records with their rows, or whole records without them. Null: the run again with the rows of all other
tables shuffled, scored against the true ones. Baseline: the column's mean, and imputation from the attacker's own
columns, and labels where it has them, learned from the same records. A dishonest attacker must also exceed what an
honest one rebuilds by a ridge regression from embeddings to the same known records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from colonnade.attacks.base import ActiveAttack, AnyAttack, Grant, Guess
from colonnade.attacks.columns.passive import InformedRidge, PassiveRidge, ridge
from colonnade.auditing.attempt import Attempt, PartyRecord
from colonnade.auditing.contents import HONEST_RIDGE, BestBaseline, Evidence, Measure, Reconstruction, Score
from colonnade.auditing.subjects.base import (
    RESAMPLES,
    TAILS,
    Judgement,
    Made,
    Subject,
    Tables,
    Truth,
    Values,
    deviation,
)
from colonnade.auditing.subjects.rebuilding import (
    MOST_ROWS,
    Pixels,
    named_categories,
    near_share,
    random_error,
    singled_out,
)
from colonnade.privacy.randomness import Randomness
from colonnade.roles import Roles
from colonnade.secret import Secret
from colonnade.tables.encode import centred, filled, filled_with_labels
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array, Int64Array

MEAN = BestBaseline(0.0, "chance")
NEIGHBOURS = 5


@dataclass(frozen=True)
class ColumnTruth(Truth):
    """The numbers in a party's columns; NaN where a value is missing, which is not scored.

    Attributes:
        columns: For each number, the column that it comes from.
        granted: The rows that are not scored.
        imputed: The R² that the attacker reaches by itself, by column; None where that is not known.
        pixels: What turns the numbers into pixels, where columns are pixels.
    """

    values: Float64Array
    columns: tuple[str, ...]
    granted: Int64Array
    imputed: Mapping[str, BestBaseline] | None = None
    pixels: Pixels | None = None

    @property
    def n_rows(self) -> int:
        return len(self.values)

    def measure(self, guess: Guess) -> Measure:
        return "R²"

    def wrong_values(self, guess: Guess) -> tuple[np.ndarray[Any, Any], str]:
        width = len(self.columns)
        if guess.values is None or guess.values.shape[1:] != (width,):
            return np.ones(len(guess.rows), bool), f"{width} numbers per row"
        return np.asarray(~np.isfinite(guess.values).all(axis=1)), "finite values"

    def too_little(self, guess: Guess) -> str | None:
        return None if self.rebuilt(guess) else "no column varies among the rows it could be scored on"

    def rebuilt(self, guess: Guess) -> dict[str, float]:
        """The R² of every column that varies."""
        return {name: _r2(error, spread) for name, error, spread in self._errors(guess)}

    def worst(self, guess: Guess) -> tuple[str, float]:
        """The column whose R² exceeds most what the attacker imputes by itself, and by how much."""
        excess = {name: found - self.alone(name).value for name, found in self.rebuilt(guess).items()}
        name = max(excess, key=lambda each: excess[each])
        return name, excess[name]

    def alone(self, column: str) -> BestBaseline:
        """The better of the column's mean and what the attacker imputes by itself."""
        return max(MEAN, (self.imputed or {}).get(column, MEAN), key=lambda best: best.value)

    def interval(self, guess: Guess, column: str, random: np.random.Generator) -> Score:
        """One column's R² with its interval."""
        error, spread = next((e, s) for name, e, s in self._errors(guess) if name == column)
        found = []
        for _ in range(RESAMPLES):
            drawn = random.integers(len(error), size=len(error))
            found.append(_r2(error[drawn], spread[drawn]))
        exact, (low, high) = _r2(error, spread), np.quantile(found, TAILS)
        return Score(exact, min(exact, float(low)), max(exact, float(high)))

    def scores(self, guess: Guess) -> Values:
        _, excess = self.worst(guess)
        return Values(excess, excess)

    def permuted(self, random: np.random.Generator) -> ColumnTruth:
        values, rows = self.values.copy(), self.scored_rows
        values[rows] = values[random.permutation(rows)]
        return replace(self, values=values)

    def deviation(self, guess: Guess) -> float:
        truth = self.values[guess.rows]
        assert guess.values is not None
        return deviation(guess.values, np.where(np.isnan(truth), 0.0, truth))

    def _errors(self, guess: Guess) -> Iterator[tuple[str, Float64Array, Float64Array]]:
        """For each column that varies: its squared error in each row, and that of its mean."""
        assert guess.values is not None
        truth, names = self.values[guess.rows], np.array(self.columns)
        for name in dict.fromkeys(self.columns):
            mine = truth[:, names == name]
            present = ~np.isnan(mine).any(axis=1)
            if present.sum() < 2:
                continue
            mine = mine[present]
            spread = ((mine - mine.mean(axis=0)) ** 2).sum(axis=1)
            if spread.sum() > 0:
                yield name, ((guess.values[present][:, names == name] - mine) ** 2).sum(axis=1), spread


class ColumnsSubject(Subject):
    """The values in a party's columns."""

    secret = Secret.FEATURES
    grants = frozenset({"known_records", "prior"})

    def owners(self, attack: AnyAttack, roles: Roles) -> Sequence[str | None]:
        return roles.holders

    def why_not_scorable(self, owner: str | None, tables: Tables) -> str | None:
        assert owner is not None
        return None if centred(tables[owner])[1] else f"{owner} holds no columns that vary"

    def grant(self, attack: AnyAttack, owner: str, tables: Tables, rows: Int64Array, random: Randomness) -> Grant | str:
        (values, columns), needs = centred(tables[owner]), attack.needs
        order = random.generator("grant").permutation(len(values))
        drawn = order[np.isin(order, rows)]
        told = needs.known_records + needs.prior
        if len(drawn) < told + 2:
            return f"it must be told {told} records, and only {len(drawn)} rows were trained on"
        known, sample = np.sort(drawn[: needs.known_records]), drawn[needs.known_records : told]
        records = np.nan_to_num(values, nan=0.0)
        prior = {}
        if needs.prior:
            whole = {name: records if name == owner else filled_with_labels(table) for name, table in tables.items()}
            prior = {name: each[sample] for name, each in whole.items()}
        return Grant(0, known, owner=owner, columns=columns, records=records[known], prior=prior)

    def truth(self, attempt: Attempt, tables: Tables, rows: Int64Array, random: Randomness) -> ColumnTruth:
        needs, grant = attempt.attack.needs, attempt.grant
        values, columns = centred(tables[grant.owner])
        order = random.generator("grant").permutation(len(values))
        told = order[np.isin(order, rows)][: needs.known_records + needs.prior]
        trained = rows if not needs.inference_rows else np.arange(len(values))
        pixels = Pixels.of(tables[grant.owner], columns)
        truth = ColumnTruth(values, columns, told, pixels=pixels).without(np.setdiff1d(order, trained))
        table = tables.get(attempt.attacker)
        return replace(truth, imputed=None if table is None else _imputed(truth, np.sort(told), table))

    def shuffled(self, tables: Tables, roles: Roles, attacker: str, random: Randomness) -> dict[str, Table]:
        return {
            name: _with_shuffled_columns(table, random.generator("rows", name).permutation(len(table)))
            for name, table in tables.items()
            if name != attacker and table.columns
        }

    def null_group(self, attempt: Attempt) -> str:
        return attempt.attacker

    def baseline(self, attempt: Attempt, rows: Int64Array, record: PartyRecord, random: Randomness) -> Guess | None:
        """The guess of an honest ridge regression from embeddings to the same known records; None without those."""
        control = PassiveRidge() if record.table is None else InformedRidge()
        honest = replace(attempt, attack=control)
        if not len(attempt.grant.rows) or honest.why_not(record) is not None:
            return None
        guess = control.guess(honest.view_on(record))
        return guess.only(np.isin(guess.rows, rows))

    def judge(
        self, made: Made, null: Sequence[Values], baseline: Any, random: np.random.Generator, delta: float
    ) -> Judgement:
        truth, guess = made.truth, made.guess
        assert isinstance(truth, ColumnTruth)
        honest = {} if baseline is None else truth.rebuilt(baseline)
        rivals = truth
        if isinstance(made.attempt.attack, ActiveAttack) and honest:
            reached = {name: BestBaseline(found, HONEST_RIDGE) for name, found in honest.items()}
            both = {name: max(truth.alone(name), reached[name], key=lambda each: each.value) for name in reached}
            rivals = replace(truth, imputed=both)
        column, _ = rivals.worst(guess)
        score, alone = truth.interval(guess, column, random), rivals.alone(column)
        # Null runs are compared by their worst excess over the baseline, whichever column has it.
        values = tuple(truth.alone(column).value + each.plain for each in null)
        evidence = Evidence(score, MEAN.value, values, None if rivals.imputed is None else alone)
        return Judgement(
            evidence,
            remark=f"The worst column is {column!r}: relative MSE {1 - score.value:.2f} (0 is everything, 1 nothing).",
            measured=_reconstruction(truth, guess, column, honest),
        )


def _reconstruction(truth: ColumnTruth, guess: Guess, column: str, honest: Mapping[str, float]) -> Reconstruction:
    """How well a guess rebuilds whole records; `honest` is the R² of an honest ridge regression, by column."""
    assert guess.values is not None
    wanted = truth.values[guess.rows]
    # A column may miss in all rows that are scored.
    present = ~np.isnan(wanted).all(axis=0)
    said, wanted, names = guess.values[:, present], wanted[:, present], np.array(truth.columns)[present]
    found = truth.rebuilt(guess)
    errors, spread = random_error(wanted), (wanted - np.nanmean(wanted, axis=0)) ** 2
    by_chance = [np.nansum(errors[:, names == name]) / np.nansum(spread[:, names == name]) for name in found]
    controls = {"random guess": float(np.mean(by_chance)), "mean": 1.0}
    if truth.imputed is not None:
        controls["imputation"] = 1 - float(np.mean([truth.alone(name).value for name in found]))
    if honest:
        controls["honest ridge"] = 1 - float(np.mean(list(honest.values())))
    share, best, rank = singled_out(said, wanted)
    psnr, ssim = (None, None) if truth.pixels is None else truth.pixels.quality(said, wanted)
    return Reconstruction(
        relative_mse=1 - float(np.mean(list(found.values()))),
        controls=controls,
        worst_column=column,
        near=near_share(said, wanted),
        singled_out=share,
        singled_out_at_best=best,
        median_rank=rank,
        rows=min(len(wanted), MOST_ROWS),
        categories=named_categories(said, wanted, tuple(names)),
        psnr=psnr,
        ssim=ssim,
        pictures=() if truth.pixels is None else truth.pixels.pictures(said, wanted),
    )


def _r2(error: Float64Array, spread: Float64Array) -> float:
    # A ten-thousandth of a column's variance is no difference: two exact copies differ by rounding.
    return round(1 - float(error.sum()) / max(float(spread.sum()), 1e-300), 4)


def _imputed(truth: ColumnTruth, known: Int64Array, table: Table) -> dict[str, BestBaseline]:
    """What the attacker's own columns, and its labels if it has some, tell of each column by themselves."""
    from sklearn.neighbors import KNeighborsRegressor

    rows, records = truth.scored_rows, np.nan_to_num(truth.values[known])
    own = {"its own columns": filled(table)}
    if table.label_name is not None:
        own["its own columns and labels"] = filled_with_labels(table)
    best: dict[str, BestBaseline] = {}
    for source, x in own.items():
        if not x.shape[1] or len(known) < 2:
            continue
        weights, intercept = ridge(x[known], records)
        neighbours = KNeighborsRegressor(min(NEIGHBOURS, len(known))).fit(x[known], records)
        methods = {
            "ridge regression": x[rows] @ weights + intercept,
            "nearest known records": neighbours.predict(x[rows]),
        }
        for method, predicted in methods.items():
            guess = Guess(rows, values=np.asarray(predicted, np.float64).reshape(len(rows), -1))
            for column, found in truth.rebuilt(guess).items():
                reached = BestBaseline(found, f"{method} on {source}")
                best[column] = max(reached, best.get(column, MEAN), key=lambda each: each.value)
    return best


def _with_shuffled_columns(table: Table, order: Int64Array) -> Table:
    """The same ids and labels beside the columns of other rows."""
    arrow, taken = table.to_arrow(), table.take(order).to_arrow()
    for place, name in enumerate(arrow.column_names):
        if name in table.columns:
            arrow = arrow.set_column(place, arrow.schema.field(place), taken.column(name))
    shuffled = Table.of(arrow, ids=table.id_name, labels=table.label_name, owner=table.owner)
    present = None if table.present is None else table.present[order]
    return replace(shuffled, present=present, partners=table.partners)
