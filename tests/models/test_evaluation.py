"""Rows that are held out by a public rule, and what the label party predicts of them alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.crypto.profiles import HISTOGRAM
from colonnade.curves import BSplines, Curves
from colonnade.data import load
from colonnade.errors import BudgetSpent, PlanError, StorageError
from colonnade.models.base import Estimator, Prediction
from colonnade.models.evaluation import Evaluated, HeldOut, compare, evaluate, keep_evaluation, predict_alone
from colonnade.models.functional.estimator import FunctionalBoost
from colonnade.models.functional.model import CurvePrediction
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.alignment import Alignment
from colonnade.runtime.party import Party
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table
from colonnade.wire.recording.recording import Transcript

ROLES = Roles(label="bank", features=("shop",))


def test_the_rule_names_the_same_rows_in_every_version() -> None:
    """Parties of different machines follow the rule by themselves, so it must never change."""
    assert np.flatnonzero(HeldOut(share=0.25, seed=0).mask(20)).tolist() == [1, 5, 14, 17, 18]
    assert np.flatnonzero(HeldOut(share=0.25, seed=1).mask(20)).tolist() == [0, 4, 8, 10, 16]


@pytest.mark.parametrize(("n", "share", "held"), [(10, 0.2, 2), (2, 0.9, 1), (3, 0.01, 1), (1000, 0.2, 200)])
def test_a_share_of_the_rows_is_held_out_and_some_are_left_to_train_on(n: int, share: float, held: int) -> None:
    assert HeldOut(share=share).mask(n).sum() == held


def test_a_single_row_cannot_be_held_out() -> None:
    with pytest.raises(PlanError) as caught:
        HeldOut().mask(1)
    assert str(caught.value) == (
        "Rows can be held out of at least 2, but 1 are common. Leave out [evaluate], or bring more."
    )


def drawn(*, curved: bool = False, numbers: bool = False) -> Table:
    draw = np.random.default_rng(1)
    a, b = draw.normal(size=(2, 500))
    score = (a * b if curved else a + b) + draw.normal(size=500) / 4
    label = score if numbers else np.where(score > 0, "late", "paid")
    return Table.of({"id": np.arange(500), "a": a, "b": b, "label": label}, labels="label")


@pytest.mark.parametrize("numbers", [False, True])
def test_the_label_party_alone_takes_the_model_that_fits_its_columns(numbers: bool) -> None:
    task: Any = "regression" if numbers else "classification"
    found = {}
    for curved in (False, True):
        train, rest = HeldOut().split(drawn(curved=curved, numbers=numbers))
        prediction, found[curved] = predict_alone(train, rest, task)
        truth = np.asarray(rest.labels)
        fits = np.corrcoef(prediction.values, truth)[0, 1] if numbers else (prediction.values == truth).mean()
        assert fits > 0.8
    assert "regression" in found[False]
    assert found[True] == "boosted trees"


def test_a_label_party_without_columns_has_the_shares_of_the_classes_alone() -> None:
    train, rest = HeldOut().split(drawn().select([]))
    prediction, by = predict_alone(train, rest, "classification")
    assert by == "the share of each class"
    late = (np.asarray(train.labels) == "late").mean()
    np.testing.assert_allclose(prediction.probabilities, np.tile([late, 1 - late], (100, 1)))


class Interrupted(SplitClassifier):
    """A model whose shop loses its power once, in the middle of a prediction."""

    breaks = True

    def predict(self, party: Party, **options: Any) -> Prediction | None:
        prediction = super().predict(party, **options)
        if party.name == "shop" and Interrupted.breaks:
            Interrupted.breaks = False
            raise StorageError("The power is gone.")
        return prediction


def test_a_run_that_breaks_off_while_rows_are_predicted_goes_on_to_the_same_end(tmp_path: Path) -> None:
    tables = load("breast-cancer", rows=120).split()
    kept: list[Prediction] = []

    def keep(share: Estimator, prediction: Prediction) -> None:
        kept.append(prediction)

    protocol = Evaluated(Interrupted(epochs=2, batch_size=32), HeldOut(), keep)
    with pytest.raises(StorageError):
        simulate(protocol, tables, roles=ROLES, directory=tmp_path / "broken", checkpoint_every=2)
    kept.clear()
    resumed = simulate(protocol, tables, roles=ROLES, directory=tmp_path / "broken", checkpoint_every=2)
    straight = simulate(protocol, tables, roles=ROLES, directory=tmp_path / "straight", checkpoint_every=2)
    assert kept[0].probabilities is not None
    np.testing.assert_array_equal(kept[0].probabilities, kept[1].probabilities)
    for party in ("bank", "shop"):
        assert resumed.transcripts[party].digests() == straight.transcripts[party].digests()
        aside = [Transcript.load(tmp_path / run / party / "evaluation") for run in ("broken", "straight")]
        assert aside[0].digests() == aside[1].digests() != ()


def test_what_the_evaluation_draws_is_apart_from_what_the_training_drew() -> None:
    seen: list[Party] = []

    class Looking(SplitClassifier):
        def fit(self, party: Party) -> Any:
            seen.append(party)
            return super().fit(party)

        def predict(self, party: Party, **options: Any) -> Prediction | None:
            seen.append(party)
            return super().predict(party, **options)

    simulate(Evaluated(Looking(epochs=1), HeldOut()), load("breast-cancer", rows=60).split(), roles=ROLES)
    for name in ("bank", "shop"):
        train, aside = (party for party in seen if party.name == name)
        assert train.random.key != aside.random.key
        assert train.shared != aside.shared
        assert train.recording is not aside.recording
        assert not set(train.own_table.ids.to_pylist()) & set(aside.own_table.ids.to_pylist())


@pytest.mark.parametrize("aligns", [False, True])
def test_answers_about_other_selections_of_the_same_rows_count_together(tmp_path: Path, aligns: bool) -> None:
    table = drawn().without_labels()
    plan = PublicPlan(ROLES, "protocol")
    party = replace(Party.alone(plan, "shop", table), answer_log=tmp_path / "answers")
    for seed in range(4):
        rows = Alignment(np.random.default_rng(seed).permutation(500), 500, "", str(seed))
        begun = party.aligned(rows) if aligns else party
        train, _ = HeldOut(seed=seed).split(begun.own_table)
        budget = begun.on(train).budget(HISTOGRAM, "bank", most=100)
        assert budget.spent == 30 * seed
        if seed < 3:
            budget.spend(30)
    with pytest.raises(BudgetSpent, match="but 90 were answered and 30 more are asked for"):
        budget.spend(30)


def test_a_joint_model_is_compared_with_the_label_party_alone_unless_asked_not_to() -> None:
    train, rest = HeldOut().split(drawn())

    class Share(SplitClassifier):
        classes_ = np.array(["late", "paid"])  # type: ignore[assignment]

    late = np.where(np.asarray(rest.labels) == "late", 0.8, 0.3)
    prediction = Prediction(np.where(late > 0.5, "late", "paid"), np.column_stack([late, 1 - late]))
    compared, by_itself = (
        evaluate(Share(), prediction, train, rest),
        evaluate(Share(), prediction, train, rest, alone=None),
    )
    alone, by = predict_alone(train, rest, "classification")
    assert compared.alone_by == by
    assert compared.figures["accuracy"].alone == pytest.approx(np.mean(alone.values == np.asarray(rest.labels)))
    assert (by_itself.alone_by, by_itself.figures["accuracy"].alone) == ("", None)


def test_two_models_are_compared_on_the_same_rows_whatever_their_order(tmp_path: Path) -> None:
    train, rest = HeldOut().split(drawn())
    truth = np.asarray(rest.labels) == "late"
    good, poor = np.where(truth, 0.8, 0.3), np.where(truth, 0.55, 0.5)
    order = np.random.default_rng(0).permutation(len(rest))

    class Share(SplitClassifier):
        classes_ = np.array(["late", "paid"])  # type: ignore[assignment]

    for name, scores, rows in (("first", poor, rest), ("second", good[order], rest.take(order))):
        values = np.where(scores > 0.52, "late", "paid")
        prediction = Prediction(values, np.column_stack([scores, 1 - scores]))
        (tmp_path / name).mkdir()
        quality = evaluate(Share(), prediction, train, rows, alone=None)
        keep_evaluation(tmp_path / name, quality, prediction.about(rows, Share.classes_), train)
    found = compare(tmp_path / "first", tmp_path / "second")
    assert found.figures["log loss"].surely == -1
    assert (found.figures["AUC"].together, found.figures["AUC"].alone) == (1, 1)
    first = -np.log(np.where(truth, poor, 1 - poor)).mean()
    assert found.figures["log loss"].alone == pytest.approx(first)


def test_two_models_of_curves_are_compared_on_the_same_rows_whatever_their_order(tmp_path: Path) -> None:
    basis, draw = BSplines((0, 1), 5), np.random.default_rng(3)
    shapes = 20 + draw.normal(size=(60, 5))
    train, rest = (
        Table.of({"id": range(start, end), "y": Curves(shapes[start:end], basis)}, ids="id", labels="y")
        for start, end in ((0, 30), (30, 60))
    )
    poor, good = (shapes[30:] + size * draw.normal(size=(30, 5)) for size in (0.5, 0.1))
    order = draw.permutation(30)
    for name, guess, rows in (("first", poor, rest), ("second", good[order], rest.take(order))):
        prediction = CurvePrediction(guess, rows=rows, basis=basis)
        (tmp_path / name).mkdir()
        quality = evaluate(FunctionalBoost(), prediction, train, rows)
        keep_evaluation(tmp_path / name, quality, prediction, train)
    found = compare(tmp_path / "first", tmp_path / "second")
    figure = found.figures["OverMean"]
    assert (found.leading, figure.surely, found.alone_by) == ("OverMean", -1, str(tmp_path / "first"))
    whitened = [Curves(each, basis).coordinates for each in (shapes[30:], poor, good, shapes[:30])]
    true, *guesses = whitened[:3]
    of_mean = ((true - whitened[3].mean(axis=0)) ** 2).sum()
    errors = [((guess - true) ** 2).sum() / of_mean for guess in guesses]
    assert (figure.alone, figure.together) == pytest.approx(tuple(errors))


def test_the_label_party_alone_says_the_one_class_that_it_was_trained_on() -> None:
    train, rows = (
        Table.of({"id": range(n), "age": range(n), "late": ["no"] * n}, ids="id", labels="late") for n in (4, 2)
    )
    said, by = predict_alone(train, rows, "classification")
    assert (said.values.tolist(), by) == (["no", "no"], "the share of each class")
