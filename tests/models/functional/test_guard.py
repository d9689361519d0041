import numpy as np
import pytest

from colonnade.models.functional.guard import GuardVerdict, TrainingRows

N, FEATURES, SIZE, OUTPUTS = 240, 4, 5, 3


def drawn(seed, scale=2.0, signal=1.0, n=N):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, FEATURES, SIZE))
    w = rng.normal(size=(FEATURES, SIZE, OUTPUTS)) / SIZE
    y = signal * np.einsum("njq,jqk->nk", z, w) + 0.3 * rng.normal(size=(n, OUTPUTS))
    noise = np.stack([scale**2 * np.eye(SIZE)] * FEATURES)
    noisy = z + scale * rng.normal(size=z.shape)
    return TrainingRows.of(noisy, y, noise, rng.permutation(n), None), z, y, w


def centred(values, rows):
    return np.concatenate([values[part] - values[part].mean(axis=0) for part in rows.parts.values()])


def test_the_gain_is_on_average_that_on_inputs_without_noise():
    """Few rows in a part: they are centred by their own mean, which takes some of the noise off already."""
    differences = []
    for seed in range(200):
        rows, z, y, w = drawn(seed, n=60)
        fitted = np.einsum("njq,jqk->nk", centred(z, rows), w)
        exact = (2 * centred(y, rows) * fitted - fitted**2).sum()
        differences.append(rows.judge([w] * 5, "partial").gain - exact)
    # The bound is five standard errors; the draws are fixed.
    assert abs(np.mean(differences)) < 5 * np.std(differences) / np.sqrt(200)
    inflation = 6 * float(np.mean([(drawn(seed, n=60)[3] ** 2).sum() for seed in range(20)])) * 4
    assert 5 * np.std(differences) / np.sqrt(200) < inflation


def test_where_new_inputs_carry_noise_what_it_adds_counts():
    rows, _, _, w = drawn(0)
    noisy = np.einsum("njq,jqk->nk", centred(rows.z, rows), w)
    y = centred(rows.y, rows)
    assert rows.judge([w] * 5, "released").gain == pytest.approx((2 * y * noisy - noisy**2).sum())
    assert rows.judge([w] * 5, "released").factor < rows.judge([w] * 5, "partial").factor


def errors(values):
    return 3 * values.std(ddof=1) * np.sqrt(len(values))


def test_the_factor_is_the_best_one_where_rows_leave_no_doubt():
    rng = np.random.default_rng(0)
    products, squares = 1 + 0.1 * rng.normal(size=100), 2 + 0.1 * rng.normal(size=100)
    verdict = GuardVerdict.of(products, squares)
    assert verdict.factor == pytest.approx(products.sum() / squares.sum())
    assert verdict.merit == pytest.approx(
        (products.sum() - errors(products) / 3) ** 2 / (squares.sum() + errors(squares) / 3)
    )


def test_a_doubtful_fit_is_taken_only_as_far_as_it_gains_at_both_unfavourable_ends():
    rng = np.random.default_rng(0)
    products, squares = 1 + rng.normal(size=100), 2 + 30 * rng.normal(size=100)
    a, b = products.sum() - errors(products), squares.sum() + errors(squares)
    factor = GuardVerdict.of(products, squares).factor
    assert factor == pytest.approx(2 * a / b)
    assert 0 < factor < 1
    assert 2 * factor * a - factor**2 * b == pytest.approx(0, abs=1e-9)


def test_a_fit_is_never_made_larger_and_one_that_gains_nothing_is_dropped():
    rows, _, _, w = drawn(0)
    assert rows.judge([w / 10] * 5, "partial").factor == 1
    unrelated, _, _, _ = drawn(1, signal=0.0)
    verdict = unrelated.judge([-w] * 5, "partial")
    assert verdict.factor == 0
    assert verdict.merit < 0


def test_rows_are_dealt_out_once_and_only_noise_makes_folds():
    rows, z, y, _ = drawn(0)
    assert sorted(np.concatenate(list(rows.parts.values()))) == list(range(N))
    assert list(rows.folds) == [0, 1, 2, 3, 4]
    quiet = TrainingRows.of(z, y, np.zeros_like(rows.noise), np.arange(N), None)
    assert list(quiet.folds) == [0]


def test_corrections_leave_ridges_between_what_inputs_vary_and_all_noise():
    rows, *_ = drawn(0, scale=5.0, n=4000)
    assert rows.variance_over_noise == pytest.approx(1 / 25, rel=0.5)
    first, near, less_near, half, none = rows.corrections()
    assert (first, half, none) == (1.0, 0.5, 0.0)
    assert near == pytest.approx(1 - rows.variance_over_noise)
    assert less_near == pytest.approx(1 - 10 * rows.variance_over_noise)
