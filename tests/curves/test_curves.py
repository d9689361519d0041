import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from colonnade.curves import BSplines, Curves, CurvesType, Fourier, Tabulated
from colonnade.errors import DataError, PlanError
from colonnade.tables.table import Table

GRID = np.linspace(0, 10, 41)
BASIS = BSplines((0, 10), 12)


@pytest.fixture
def truth():
    return Curves(np.random.default_rng(1).normal(size=(30, BASIS.size)).cumsum(axis=1), BASIS)


def test_smoothing_without_noise_or_penalty_gives_the_curves_back(truth):
    again = Curves.smooth(truth.evaluate(GRID), GRID, BASIS, roughness=0.0)
    np.testing.assert_allclose(again.coefficients, truth.coefficients, atol=1e-9)


def test_smoothing_is_penalised_least_squares(truth):
    """Oracle: the normal equation, curve by curve."""
    values = truth.evaluate(GRID) + np.random.default_rng(2).normal(size=(30, 41))
    values[3, [0, 7, 9]] = np.nan
    smoothed = Curves.smooth(values, GRID, BASIS, roughness=0.7, operator=2)
    for row in (0, 3):
        seen = np.isfinite(values[row])
        design = BASIS.evaluate(GRID[seen])
        wanted = np.linalg.solve(design.T @ design + 0.7 * BASIS.penalty(2), design.T @ values[row, seen])
        np.testing.assert_allclose(smoothed.coefficients[row], wanted, atol=1e-8)


def test_cross_validation_chooses_a_penalty_near_the_best(truth):
    rough = truth.evaluate(GRID) + 2 * np.random.default_rng(3).normal(size=(30, 41))

    def error(curves):
        return float(((curves.coordinates - truth.coordinates) ** 2).sum())

    chosen = Curves.smooth(rough, GRID, BASIS)
    errors = [error(Curves.smooth(rough, GRID, BASIS, roughness=10.0**k)) for k in range(-6, 4)]
    assert error(chosen) < 1.05 * min(errors)
    assert error(chosen) < 0.9 * errors[0]


def test_curves_seen_at_points_of_their_own_are_smoothed_like_those_on_a_grid(truth):
    values = truth.evaluate(GRID)
    values[2, 5:9] = np.nan
    on_grid = Curves.smooth(values, GRID, BASIS, roughness=0.1)
    kept = [np.isfinite(row) for row in values]
    irregular = Curves.smooth_irregular(
        [GRID[k] for k in kept], [v[k] for v, k in zip(values, kept, strict=True)], BASIS, roughness=0.1
    )
    np.testing.assert_allclose(irregular.coefficients, on_grid.coefficients, atol=1e-8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v, g: (v[:, :-1], g), "Curves on a grid of 41 points need one row per curve"),
        (lambda v, g: (v, g[::-1]), "The points of a grid should rise and be finite"),
        (lambda v, g: (np.where(np.arange(41) == 3, np.inf, v), g), "30 of 30 curves have infinite ones"),
        (lambda v, g: (np.where(np.arange(41) > 0, np.nan, v), g), "at least 2 observed points to be smoothed, but 30"),
        (lambda v, g: (v, g + 5), "20 of 41 points lie outside"),
    ],
)
def test_grids_that_cannot_be_smoothed_are_refused(truth, change, words):
    values, grid = change(truth.evaluate(GRID), GRID)
    with pytest.raises(DataError) as error:
        Curves.smooth(values, grid, BASIS)
    assert words in str(error.value)


def test_irregular_curves_need_a_value_for_each_time():
    with pytest.raises(DataError, match="but curve 1 has 3 times and 2 values"):
        Curves.smooth_irregular([[0, 1, 2], [0, 1, 2]], [[0, 1, 2], [0, 1]], BASIS)
    with pytest.raises(DataError, match="as many lists of times as of values, but there are 1 and 2"):
        Curves.smooth_irregular([[0, 1, 2]], [[0, 1, 2], [0, 1]], BASIS)
    with pytest.raises(PlanError, match="should be 'gcv' or a number from 0, but is -1"):
        Curves.smooth_irregular([[0, 1, 2]], [[0, 1, 2]], BASIS, roughness=-1)


def test_coefficients_that_do_not_fit_the_basis_are_refused():
    with pytest.raises(DataError, match="a basis of 12 functions need as many coefficients each"):
        Curves(np.zeros((3, 5)), BASIS)


def test_a_table_holds_curves_beside_other_columns_and_gives_them_back(truth, tmp_path):
    table = Table.of({"id": np.arange(30), "day": truth, "n": np.ones(30)}, owner="shop")
    assert table.kinds == {"day": "curves", "n": "numeric"}
    assert repr(table) == "Table(shop: 30 rows, 2 columns (1 curves, 1 numeric), no labels)"
    np.testing.assert_array_equal(table.curves("day").coefficients, truth.coefficients)
    assert table.curves("day").basis == BASIS
    np.testing.assert_array_equal(table.take([4, 2]).column("day"), truth.coefficients[[4, 2]])
    table.save(tmp_path / "table.arrow")
    np.testing.assert_array_equal(Table.load(tmp_path / "table.arrow").curves("day").coefficients, truth.coefficients)
    pq.write_table(table.to_arrow(), tmp_path / "table.parquet")
    again = Table.read(tmp_path / "table.parquet", ids="id").curves("day")
    np.testing.assert_array_equal(again.coefficients, truth.coefficients)
    assert again.basis == BASIS


def test_curves_of_part_of_a_column_are_those_rows_and_are_not_copied(truth):
    column = truth.to_arrow()
    part = Curves.of_arrow(column[5:12])
    np.testing.assert_array_equal(part.coefficients, truth.coefficients[5:12])
    assert np.shares_memory(part.coefficients, Curves.of_arrow(column).coefficients)
    pieces = Curves.of_arrow(pa.chunked_array([column[:4], column[9:]]))
    np.testing.assert_array_equal(pieces.coefficients, truth.coefficients[[*range(4), *range(9, 30)]])


def test_the_digest_of_a_table_depends_on_coefficients_and_basis(truth):
    def digest(curves):
        return Table.of({"id": np.arange(30), "day": curves}).digest()

    other = Curves(truth.coefficients, BSplines((0, 11), 12))
    changed = truth.coefficients.copy()
    changed[0, 0] += 1e-9
    assert len({digest(truth), digest(other), digest(Curves(changed, BASIS))}) == 3


def test_curves_can_be_labels_and_missing_ones_are_counted(truth):
    table = Table.of({"id": np.arange(30), "day": truth}, labels="day", owner="bank")
    assert table.checked("bank").curves("day").basis == BASIS
    lists = [None, *truth.coefficients[1:].tolist()]
    missing = table.with_labels(pa.array(lists, CurvesType(BASIS)), name="day")
    with pytest.raises(DataError, match="but 1 of 30 rows have none in column 'day'"):
        missing.checked("bank")


def test_curves_that_are_not_finite_are_refused_with_owner_column_and_count(truth):
    broken = truth.coefficients.copy()
    broken[5, 0] = np.nan
    table = Table.of({"id": np.arange(30), "day": Curves(broken, BASIS)})
    with pytest.raises(DataError) as error:
        table.checked("shop")
    assert str(error.value) == (
        "The curves in shop's table must be finite, but 1 of 30 in column 'day' are missing or not finite. "
        "Leave these rows out, or smooth the curves from the points that are there."
    )


def test_asking_for_curves_where_there_are_numbers_says_so():
    with pytest.raises(DataError, match="have curves in column 'n', but it holds numeric values"):
        Table.of({"id": [1], "n": [2.0]}, owner="shop").curves("n")


@pytest.mark.parametrize("basis", [BASIS, BSplines((0, 10), 8, 3, (1, 2, 4, 7, 9)), Fourier((0, 10), 7)], ids=repr)
def test_curves_go_to_scikit_fda_and_come_back(basis):
    curves = Curves(np.random.default_rng(0).normal(size=(4, basis.size)), basis)
    theirs = curves.to_skfda()
    np.testing.assert_allclose(theirs(GRID)[..., 0], curves.evaluate(GRID), atol=1e-10)
    again = Curves.from_skfda(theirs)
    assert again.basis == basis
    np.testing.assert_array_equal(again.coefficients, curves.coefficients)


def test_a_basis_that_scikit_fda_lacks_goes_there_on_a_grid():
    own = Tabulated.of(lambda t: np.stack([np.ones_like(t), t], axis=1), (0, 10))
    curves = Curves(np.array([[1.0, 2.0]]), own)
    again = Curves.from_skfda(curves.to_skfda(), own)
    np.testing.assert_allclose(again.coefficients, curves.coefficients, atol=1e-6)
    with pytest.raises(DataError, match="An FDataGrid has no basis to keep, and none was given"):
        Curves.from_skfda(curves.to_skfda())
    with pytest.raises(DataError, match="but a list came"):
        Curves.from_skfda([1, 2])


def test_curves_are_drawn(truth):
    axes = truth.plot(rows=[0, 1, 2])
    assert len(axes.lines) == 3
    np.testing.assert_allclose(axes.lines[1].get_ydata(), truth.evaluate(axes.lines[1].get_xdata())[1])


def test_curves_need_neither_scikit_fda_nor_matplotlib_to_be_imported():
    script = "import sys, colonnade.curves; print([m for m in ('skfda', 'matplotlib', 'scipy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"


def test_a_table_of_curves_is_read_back_by_a_process_that_has_not_met_curves(tmp_path):
    """Arrow knows the type only once `colonnade.curves` was imported, which tables do not do by themselves."""
    table = Table.of({"id": [1, 2], "day": Curves(np.arange(24.0).reshape(2, 12), BASIS)})
    table.save(tmp_path / "table.arrow")
    pq.write_table(table.to_arrow(), tmp_path / "table.parquet")
    script = (
        "import sys; from colonnade import Table; assert 'colonnade.curves' not in sys.modules\n"
        "for table in (Table.load(sys.argv[1]), Table.read(sys.argv[2], ids='id')): print(table.digest())"
    )
    files = [str(tmp_path / "table.arrow"), str(tmp_path / "table.parquet")]
    found = subprocess.run([sys.executable, "-c", script, *files], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [table.digest()] * 2
