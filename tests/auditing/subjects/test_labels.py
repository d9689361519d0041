import numpy as np
import pytest

from colonnade.attacks.base import Grant
from colonnade.auditing.subjects import labels as subject
from colonnade.auditing.subjects.classes import ClassTruth
from colonnade.auditing.subjects.labels import attacker_alone, draw_grant
from colonnade.tables.table import Table

N = 300


def labelled(n_classes: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.arange(N) % n_classes)


def numeric(x: np.ndarray) -> Table:
    return Table.of({f"x{i}": x[:, i] for i in range(x.shape[1])}, ids=None)


def granted(labels: np.ndarray, per_class: int) -> Grant:
    grant = draw_grant(labels, labels.max() + 1, per_class, np.arange(N), np.random.default_rng(1).permutation(N))
    assert grant is not None
    return grant


def best(table: Table | None, labels: np.ndarray, per_class: int, measure="balanced accuracy") -> tuple[float, float]:
    grant = granted(labels, per_class)
    suite = attacker_alone(table, grant, np.arange(N), np.random.default_rng(2))
    truth = ClassTruth.of(labels, grant)
    rows = truth.scored_rows
    return suite.best(rows, measure, truth).value, suite.best(rows, measure, truth, up_to_naming=True).value


@pytest.mark.parametrize("measure", ["balanced accuracy", "AUC"])
@pytest.mark.parametrize("n_classes", [2, 5])
def test_a_few_known_labels_name_classes_that_lie_apart(n_classes: int, measure: str) -> None:
    labels = labelled(n_classes)
    x = 4 * np.eye(n_classes)[labels] + np.random.default_rng(3).normal(scale=0.5, size=(N, n_classes))
    assert min(best(numeric(x), labels, 2, measure)) > 0.97


def test_columns_that_say_nothing_are_worth_little_more_than_chance() -> None:
    x = np.random.default_rng(3).normal(size=(N, 5))
    plain, up_to_naming = best(numeric(x), labelled(), 4)
    # The best of some twenty methods by the truth: a standard error is 0.03, and the suite favours itself.
    assert 0.5 <= plain <= up_to_naming < 0.62


def test_without_a_known_label_clusters_count_up_to_naming_only() -> None:
    labels = labelled()
    x = np.random.default_rng(3).normal(size=(N, 3)) + 6 * labels[:, None]
    plain, up_to_naming = best(numeric(x), labels, 0)
    assert plain == 0.5
    assert up_to_naming > 0.97


def test_without_a_table_or_a_column_there_is_only_chance() -> None:
    no_columns = Table.of({"id": np.arange(N)})
    assert best(None, labelled(), 2) == best(no_columns, labelled(), 2) == (0.5, 0.5)


def test_text_booleans_and_missing_values_are_made_use_of() -> None:
    labels = labelled()
    table = Table.of(
        {
            "job": np.where(labels == 1, "nurse", "cook"),
            "empty": [None] * N,
            "constant": np.ones(N),
            "member": labels == 1,
            "income": [float(label) if row % 3 else None for row, label in enumerate(labels)],
        },
        ids=None,
    )
    assert best(table, labels, 1)[0] > 0.97


def test_which_values_are_missing_is_made_use_of() -> None:
    labels = labelled()
    income = np.where(labels == 1, np.nan, np.random.default_rng(0).normal(size=N))
    assert best(Table.of({"income": income}, ids=None), labels, 4)[0] > 0.9


def test_of_very_many_rows_a_sample_is_used_that_holds_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "ROWS", 50)
    labels = labelled()
    x = np.random.default_rng(3).normal(size=(N, 3)) + 6 * labels[:, None]
    grant = granted(labels, 3)
    suite = attacker_alone(numeric(x), grant, np.arange(N), np.random.default_rng(2))
    assert 50 <= len(suite.rows) <= 56
    assert set(grant.rows) <= set(suite.rows)
    truth = ClassTruth.of(labels, grant)
    assert suite.best(truth.scored_rows, "balanced accuracy", truth).value > 0.97


def test_a_sample_is_first_of_the_rows_that_were_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "ROWS", 50)
    labels, guessed = labelled(), np.arange(100, 140)
    grant = granted(labels, 3)
    suite = attacker_alone(numeric(np.eye(2)[labels]), grant, guessed, np.random.default_rng(2))
    assert set(guessed) <= set(suite.rows)
    assert 50 <= len(suite.rows) <= 56


def test_wide_tables_are_also_tried_on_their_principal_components() -> None:
    x = np.random.default_rng(3).normal(size=(N, 40))
    suite = attacker_alone(numeric(x), granted(labelled(), 1), np.arange(N), np.random.default_rng(2))
    assert "label spreading on principal components" in suite.named


def test_the_suite_has_what_attacks_make_of_own_columns_before_they_look_at_messages() -> None:
    labels = labelled(5)
    x = np.random.default_rng(3).normal(size=(N, 40))
    x[:, :5] += 3 * np.eye(5)[labels]
    suite = attacker_alone(numeric(x), granted(labels, 4), np.arange(N), np.random.default_rng(2))
    right = {method: (ratings.argmax(axis=1) == labels).mean() for method, ratings in suite.named.items()}
    # By chance it would be 0.2.
    assert min(right[method] for method in ("network", "first beliefs of co-training", "distillation")) > 0.4
