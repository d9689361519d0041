from __future__ import annotations

import datetime
import gc
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.errors import ColonnadeError, DataError, StorageError
from colonnade.tables.table import Table
from colonnade.text import nearest

ROWS = {
    "id": ["c", "a", "b"],
    "age": [31, None, 52],
    "income": [1.5, float("nan"), 2.5],
    "job": ["nurse", None, "Käser"],
    "member": [True, None, False],
    "late": [0, 1, 0],
}


def bank() -> Table:
    return Table.of(ROWS, labels="late", owner="bank")


def message(error: pytest.ExceptionInfo[ColonnadeError]) -> str:
    return str(error.value)


SOURCES = {
    "dict": ROWS,
    "pandas": pd.DataFrame(ROWS),
    "pandas with the ids as index": pd.DataFrame(ROWS).set_index("id"),
    "pandas with a category": pd.DataFrame(ROWS).astype({"job": "category"}),
    "polars": pl.DataFrame(ROWS),
    "polars with a category": pl.DataFrame(ROWS).with_columns(pl.col("job", "id").cast(pl.Categorical)),
    "arrow table": pa.table(ROWS),
    "arrow batch": pa.RecordBatch.from_pydict(ROWS),
    "arrow with a dictionary": pa.table(ROWS | {"job": pa.array(ROWS["job"]).dictionary_encode()}),
    "a table": bank(),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_every_kind_of_source_gives_the_same_table(source):
    table = Table.of(source, labels="late")
    assert table.ids.to_pylist() == ["c", "a", "b"]
    assert table.labels.to_pylist() == [0, 1, 0]
    assert dict(table.kinds) == {"age": "numeric", "income": "numeric", "job": "categorical", "member": "boolean"}
    np.testing.assert_array_equal(table.column("age"), [31, math.nan, 52])
    np.testing.assert_array_equal(table.column("income"), [1.5, math.nan, 2.5])
    np.testing.assert_array_equal(table.column("member"), [1, math.nan, 0])
    assert table.column("job").tolist() == ["nurse", None, "Käser"]


def test_the_index_left_by_a_pandas_filter_is_not_a_column():
    frame = pd.DataFrame(ROWS).iloc[[2, 0]]
    assert Table.of(frame, labels="late").columns == ("age", "income", "job", "member")


def test_numbers_of_every_arrow_type_are_numeric():
    arrow = pa.table(
        {
            "id": [1, 2],
            "decimal": pa.array([1, None], pa.decimal128(5, 2)),
            "half": pa.array([np.float16(1), None], pa.float16()),
            "unsigned": pa.array([2**63, None], pa.uint64()),
            "nothing": pa.nulls(2),
        }
    )
    table = Table.of(arrow)
    assert set(table.kinds.values()) == {"numeric"}
    assert [table.column(name)[0] for name in table.columns[:3]] == [1.0, 1.0, 2.0**63]
    assert np.isnan(table.column("nothing")).all()


def test_a_category_of_numbers_is_categorical():
    table = Table.of(pd.DataFrame({"id": [1, 2], "grade": pd.Categorical([7, None], categories=[7, 8])}))
    assert table.kinds["grade"] == "categorical"
    assert table.column("grade").tolist() == ["7", None]


def test_labels_come_as_a_plain_array():
    small = Table.of({"id": [1, 2], "y": np.array([0, 1], dtype=np.uint8)}, labels="y")
    named = Table.of({"id": [1, 2], "y": pa.array(["no", "yes"]).dictionary_encode()}, labels="y")
    assert small.labels.to_numpy().dtype == np.int64
    assert named.labels.to_numpy().tolist() == ["no", "yes"]
    assert Table.of({"id": [1]}).labels is None


def test_rows_are_numbered_without_an_id_column():
    table = Table.of({"x": [5, 6, 7]}, ids=None)
    assert table.ids.to_pylist() == [0, 1, 2]
    assert table.columns == ("x",)


def test_whole_floats_with_gaps_are_integer_ids():
    assert Table.of({"id": [1.0, math.nan, 3.0]}).ids.to_pylist() == [1, None, 3]


def test_a_description_shows_no_value():
    assert repr(bank()) == "Table(bank: 3 rows, 4 columns (2 numeric, 1 categorical, 1 boolean), labels 'late')"
    assert repr(Table.of({"id": [1]})) == "Table(no owner: 1 row, 0 columns, no labels)"


@pytest.mark.parametrize(
    ("values", "arrow_type"),
    [
        ([datetime.time(12, 0)] * 2, "time64[us]"),
        ([[1], [2]], "list<item: int64>"),
        ([{"a": 1}] * 2, "struct<a: int64>"),
        ([b"x", b"y"], "binary"),
        (pa.array([b"x", b"y"]).dictionary_encode(), "binary"),
    ],
)
def test_an_unsupported_column_is_refused_by_name_and_type(values, arrow_type):
    with pytest.raises(DataError) as error:
        Table.of({"id": [1, 2], "when": values}, owner="bank")
    assert message(error) == (
        f"bank's table may hold numbers, text, booleans, dates and curves, but its column 'when' is of Arrow type "
        f"{arrow_type}. Turn it into one of these (a list into one column per element, values on a grid into Curves) "
        "or leave it out."
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            {"id": [1, 2], "x": ["secret", 3]},
            "column 'x' is not a flat list of values of one type. Make them all numbers",
        ),
        (pd.DataFrame({"id": [1, 2], "x": ["secret", 3]}), "column 'x' is not a flat list of values of one type."),
        ({"id": [1, 2], "x": np.zeros((2, 2))}, "column 'x' is not a flat list of values of one type."),
        ({"id": [1, 2], "x": [1]}, "differ in their number of rows: 'id' has 2, 'x' has 1. Make them equally long."),
        ({"id": [1, 2**64]}, "column 'id' is not a flat list of values of one type."),
        ({"id": [1, 2], 0: [1, 2]}, "its column name 0 is not text. Rename the column."),
        (7, "an object of type int came. Convert it first."),
    ],
)
def test_data_that_is_no_table_is_refused_with_the_reason(data, reason):
    with pytest.raises(DataError) as error:
        Table.of(data, owner="bank")
    assert message(error).startswith(
        "bank's table was expected as a pandas or polars frame, an Arrow table or a dict of"
    )
    assert reason in message(error)
    assert "secret" not in message(error)


def test_a_missing_id_column_is_refused_with_the_nearest_name():
    with pytest.raises(DataError) as error:
        Table.of({"ID": [1], "x": [2]}, owner="bank")
    assert message(error) == (
        "bank's table was expected to have a column 'id', but none of its 2 columns is named so. The nearest name is "
        "'ID'. Name the id column with ids=, or number the rows with ids=None."
    )


def test_a_missing_label_column_is_refused_with_the_nearest_name():
    with pytest.raises(DataError, match=r"a column 'lat', .* nearest name is 'late'\. Name the label column"):
        Table.of(ROWS, labels="lat")


def test_ids_that_are_labels_too_are_refused():
    with pytest.raises(DataError, match=r"needs different columns for ids and labels, but both are 'id'\. Name"):
        Table.of(ROWS, labels="id")


def test_a_repeated_column_name_is_refused():
    twice = pa.table([[1], [2], [3]], names=["id", "x", "x"])
    with pytest.raises(
        DataError, match=r"needs a different name for every column, but 'x' occurs more than once\. Rename"
    ):
        Table.of(twice)
    with pytest.raises(DataError, match="but 'age' occurs more than once"):
        bank().select(["age", "age"])
    with pytest.raises(DataError, match="but 'row_number' occurs more than once"):
        Table.of({"row_number": [1]}, ids=None)


@pytest.mark.parametrize(
    ("ids", "came"),
    [
        ([1.5], "column 'id' is of Arrow type double and holds numbers that are not 64-bit integers"),
        (
            np.array([2**64 - 1], np.uint64),
            "column 'id' is of Arrow type uint64 and holds numbers that are not 64-bit integers",
        ),
        ([True], "column 'id' is of Arrow type bool"),
        ([b"x"], "column 'id' is of Arrow type binary"),
    ],
)
def test_ids_that_are_neither_whole_numbers_nor_text_are_refused(ids, came):
    with pytest.raises(DataError) as error:
        Table.of({"id": ids}, owner="bank")
    assert message(error) == (
        f"bank's table needs whole numbers or text as ids, but {came}. Convert them to text, at every party alike: "
        "a date, for one, to 1980-05-17."
    )


def test_a_checked_table_bears_its_owner():
    checked = Table.of(ROWS, labels="late").checked("bank")
    assert checked.owner == "bank"
    assert checked.ids.equals(bank().ids)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            {"id": [], "late": []},
            "bank's table must have at least one row, but it is empty. Check the file or filter it came from.",
        ),
        (
            {"id": ["a", None, None], "late": [0, 1, 0]},
            "Every row of bank's table needs an id, but 2 of 3 rows have none in column 'id'. Drop these rows or find "
            "their ids.",
        ),
        (
            {"id": [7, 7, 7, 8], "late": [0, 1, 0, 1]},
            "bank's table needs one row per id, but 2 of 4 rows repeat an earlier id in column 'id'. Drop or merge the "
            "repeated rows.",
        ),
        (
            {"id": [1, 2, 3], "late": [0.0, math.nan, 1.0]},
            "Every row of bank's table needs a label, but 1 of 3 rows have none in column 'late'. Drop these rows or "
            "find their labels.",
        ),
        (
            {"id": [1, 2, 3], "late": ["no", None, None]},
            "Every row of bank's table needs a label, but 2 of 3 rows have none in column 'late'. Drop these rows or "
            "find their labels.",
        ),
        (
            {"id": [1, 2], "x": [math.inf, -math.inf], "z": [1.0, math.nan], "late": [0.5, math.inf]},
            "The numbers in bank's table must be finite or missing, but there are infinite values in 'x' (2 of 2 "
            "rows), 'late' (1 of 2 rows). Clip them or make them missing.",
        ),
    ],
    ids=["empty", "null ids", "repeated ids", "NaN label", "null label", "infinite"],
)
def test_a_table_unfit_for_training_is_refused_with_counts(data, text):
    table = Table.of(data, labels="late")
    with pytest.raises(DataError) as error:
        table.checked("bank")
    assert message(error) == text


def test_one_row_is_enough_for_a_table():
    table = Table.of({"id": ["é"], "x": [1]}).checked("bank")
    assert len(table) == 1
    assert table.take([0]).id_digest() == table.id_digest()


def test_rows_are_taken_in_the_order_asked_for():
    taken = bank().take([2, 0, 2])
    assert taken.ids.to_pylist() == ["b", "c", "b"]
    assert taken.labels.to_pylist() == [0, 0, 0]
    assert taken.owner == "bank"
    assert bank().take(np.array([True, False, True])).ids.to_pylist() == ["c", "b"]
    assert len(bank().take([])) == 0


@pytest.mark.parametrize("rows", [[3], [-1, 0]])
def test_rows_that_do_not_exist_are_refused(rows):
    with pytest.raises(
        DataError, match=r"bank's table has rows 0 to 2, but rows from .* were asked for\. Take only rows"
    ):
        bank().take(rows)


@pytest.mark.parametrize("rows", [[0.5], [[0, 1]], [True, False], True, 1])
def test_rows_that_are_no_numbers_are_refused(rows):
    with pytest.raises(
        DataError, match="take needs one whole row number per row, or a mask of 3 booleans, but got an array"
    ):
        bank().take(rows)


def test_a_selection_keeps_ids_and_labels():
    selected = bank().select(["job", "age"])
    assert selected.columns == ("job", "age")
    assert selected.id_digest() == bank().id_digest()
    assert selected.labels.equals(bank().labels)


def test_an_unknown_column_is_refused_with_the_nearest_name():
    for use in (lambda: bank().select(["incme"]), lambda: bank().column("incme")):
        with pytest.raises(
            DataError, match=r"bank's table was .* column 'incme', .* nearest name is 'income'\. Correct"
        ):
            use()


def test_labels_are_not_among_the_columns():
    with pytest.raises(DataError, match="a column 'late'"):
        bank().column("late")


def test_labels_are_replaced_added_and_removed():
    assert bank().with_labels(np.array([1, 0, 1])).labels.to_pylist() == [1, 0, 1]
    assert bank().with_labels([1, 0, 1]).label_name == "late"
    bare = bank().without_labels()
    assert bare.labels is None
    assert bare.columns == bank().columns
    assert bare.without_labels().columns == bank().columns
    assert bare.with_labels(pa.array(["x", "y", "z"])).label_name == "label"
    assert bare.with_labels([1, 2, 3], name="churn").label_name == "churn"


def test_labels_of_another_length_are_refused():
    with pytest.raises(
        DataError, match=r"bank's table has 3 rows and needs as many labels, but got 2\. Give one label per"
    ):
        bank().with_labels([1, 2])


def test_the_digest_tells_orders_types_and_boundaries_apart():
    tables = [
        Table.of({"id": ids})
        for ids in (
            ["1", "2"],
            ["2", "1"],
            [1, 2],
            [2, 1],
            ["12", ""],
            ["", "12"],
            ["1", None],
            ["1", ""],
            [1, None],
            [1, 0],
        )
    ]
    assert len({table.id_digest() for table in tables}) == len(tables)


def test_the_digest_does_not_depend_on_how_arrow_stores_the_ids():
    whole = pa.table({"id": ["é", None, "", "bb", "c"]})
    pieces = pa.concat_tables([whole.slice(0, 2), whole.slice(2, 0), whole.slice(2)])
    padded = pa.concat_tables([pa.table({"id": ["zz"]}), whole]).combine_chunks().slice(1)
    as_views = whole.cast(pa.schema({"id": pa.string_view()}))
    assert len({Table.of(arrow).id_digest() for arrow in (whole, pieces, padded, as_views)}) == 1
    numbers = pa.chunked_array([[1, None], [], [3]], pa.int32())
    assert Table.of({"id": numbers}).id_digest() == Table.of({"id": [1, None, 3]}).id_digest()


def test_a_table_speaks_arrow():
    assert pl.DataFrame(bank()).columns == ["id", "age", "income", "job", "member", "late"]
    assert pa.table(bank().select(["age", "job"])).equals(bank().select(["age", "job"]).to_arrow())


def test_a_name_unlike_all_others_gets_no_hint():
    assert nearest("xyz", ["income", "age"]) == ""
    assert nearest("ID", ["age", "id"]) == " The nearest name is 'id'."


tables = st.integers(0, 12).flatmap(
    lambda n: st.fixed_dictionaries(
        {
            "id": st.lists(st.text(max_size=6), min_size=n, max_size=n),
            "größe ✓": st.lists(st.none() | st.floats(allow_nan=False), min_size=n, max_size=n),
            "text": st.lists(st.none() | st.text(max_size=6), min_size=n, max_size=n),
            "flag": st.lists(st.none() | st.booleans(), min_size=n, max_size=n),
            "label": st.lists(st.integers(-(2**40), 2**40), min_size=n, max_size=n),
        }
    )
)


@given(data=tables, owner=st.none() | st.text(max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_saved_table_loads_unchanged(data, owner):
    table = Table.of(data, labels="label", owner=owner)
    with tempfile.TemporaryDirectory() as folder:
        table.save(Path(folder) / "table.arrow")
        loaded = Table.load(Path(folder) / "table.arrow")
    assert loaded.to_arrow().equals(table.to_arrow())
    assert (loaded.owner, loaded.id_name, loaded.label_name) == (owner, "id", "label")
    assert loaded.id_digest() == table.id_digest()


@given(data=tables, seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_taking_rows_takes_the_same_values_as_a_loop_would(data, seed):
    table = Table.of(data, labels="label")
    n = len(table)
    rows = np.random.default_rng(seed).integers(0, max(n, 1), 2 * n)
    taken = table.take(rows)
    for name in ("text", "flag", "größe ✓"):
        np.testing.assert_array_equal(taken.column(name), [table.column(name)[row] for row in rows])
    assert taken.ids.to_pylist() == [data["id"][row] for row in rows]
    assert taken.labels.to_pylist() == [data["label"][row] for row in rows]


def test_row_numbers_survive_saving(tmp_path):
    Table.of({"x": [5, 6]}, ids=None).take([1]).save(tmp_path / "t")
    assert Table.load(tmp_path / "t").ids.to_pylist() == [1]


def test_saving_over_a_loaded_table_leaves_it_readable(tmp_path):
    bank().save(tmp_path / "t")
    loaded = Table.load(tmp_path / "t")
    bank().take([0]).save(tmp_path / "t")
    assert loaded.ids.to_pylist() == ["c", "a", "b"]
    assert os.listdir(tmp_path) == ["t"]


def test_a_table_that_was_never_saved_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError) as error:
        Table.load(tmp_path / "t")
    assert message(error) == f"A saved table was expected at {tmp_path / 't'}, but there is none. Check the path."


def test_a_file_that_is_no_saved_table_is_a_storage_error(tmp_path):
    bank().save(tmp_path / "saved")
    (tmp_path / "truncated").write_bytes((tmp_path / "saved").read_bytes()[:-40])
    (tmp_path / "empty").touch()
    with pa.OSFile(str(tmp_path / "foreign"), "wb") as sink, pa.ipc.new_file(sink, pa.schema({"id": pa.int64()})):
        pass
    for name in ("truncated", "empty", "foreign", "."):
        with pytest.raises(
            StorageError, match=r"written by Table\.save was expected at .* damaged\. Save the table again"
        ):
            Table.load(tmp_path / name)


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as error:
        bank().save(tmp_path / "file" / "t")
    assert message(error).startswith(f"bank's table was to be saved at {tmp_path / 'file' / 't'}, but writing its ")
    assert message(error).endswith("bytes failed: Not a directory. Free some space or choose another place.")


def under_a_file_size_limit(code: str, folder: Path) -> str:
    """Run code where no file may grow beyond 64 KiB, as on a full disk, and return what it prints."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))\n" + dedent(code)
    done = subprocess.run([sys.executable, "-c", limited, folder], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_saving_on_a_full_disk_is_a_storage_error_and_leaves_nothing(tmp_path):
    said = under_a_file_size_limit(
        """
        import sys
        from colonnade.errors import StorageError
        from colonnade.tables.table import Table
        try:
            Table.of({"id": range(10**5)}, owner="bank").save(sys.argv[1] + "/t")
        except StorageError as error:
            print(error)
        """,
        tmp_path,
    )
    assert said.endswith("writing its 800,000 bytes failed: File too large. Free some space or choose another place.")
    assert os.listdir(tmp_path) == []


def test_reading_beyond_memory_on_a_full_disk_is_a_storage_error(tmp_path):
    (tmp_path / "spill").mkdir()
    pq.write_table(pa.table({"id": np.arange(10**5)}), tmp_path / "t.parquet")
    said = under_a_file_size_limit(
        """
        import sys, tempfile
        from colonnade.errors import StorageError
        from colonnade.tables.table import Table
        tempfile.tempdir = sys.argv[1] + "/spill"
        try:
            Table.read(sys.argv[1] + "/t.parquet", ids="id", memory=1000)
        except StorageError as error:
            print(error)
        """,
        tmp_path,
    )
    assert said == (
        f"{tmp_path / 't.parquet'} does not fit in memory and was to be kept in a temporary file, but writing it "
        "failed: File too large. Point TMPDIR at a larger disk, read fewer columns, or raise memory=."
    )
    assert os.listdir(tmp_path / "spill") == []


def test_only_reading_beyond_memory_needs_a_temporary_folder(tmp_path, monkeypatch):
    pq.write_table(pa.table({"id": np.arange(1000)}), tmp_path / "t.parquet")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert len(Table.read(tmp_path / "t.parquet", ids="id", memory=10_000)) == 1000
    with pytest.raises(
        StorageError, match=r"kept in a temporary file, but writing it failed: No such file or directory\."
    ):
        Table.read(tmp_path / "t.parquet", ids="id", memory=5_000)


N_ROWS = 30_000


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """The same rows as a Parquet file, a CSV file and a directory of Parquet parts."""
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(0)
    arrow = pa.table(
        {
            "name": [f"ü{i}" for i in random.permutation(N_ROWS)],
            "x": pa.array(random.normal(size=N_ROWS), mask=random.random(N_ROWS) < 0.1),
            "level": pa.array(random.choice(["a", "b"], N_ROWS), mask=random.random(N_ROWS) < 0.1),
            "flag": random.random(N_ROWS) < 0.5,
            "y": random.integers(0, 3, N_ROWS),
        }
    )
    pq.write_table(arrow, folder / "t.parquet", row_group_size=7_000)
    pa.csv.write_csv(arrow, folder / "t.csv")
    (folder / "parts").mkdir()
    for i, start in enumerate(range(0, N_ROWS, 11_000)):
        pq.write_table(arrow.slice(start, 11_000), folder / "parts" / f"part-{i}.parquet")
    (folder / "parts" / "_SUCCESS").touch()
    return {"parquet": folder / "t.parquet", "csv": folder / "t.csv", "parts": folder / "parts"}


@pytest.mark.parametrize("memory", [None, 100_000], ids=["in memory", "beyond memory"])
@pytest.mark.parametrize("form", ["parquet", "csv", "parts"])
def test_files_of_every_form_and_size_give_the_same_table(files, form, memory):
    expected = Table.of(pq.read_table(files["parquet"]), ids="name", labels="y")
    table = Table.read(files[form], ids="name", labels="y", owner="bank", memory=memory)
    assert table.to_arrow().equals(expected.to_arrow())
    assert table.id_digest() == expected.id_digest()
    assert table.checked("bank").take([N_ROWS - 1, 0]).ids.to_pylist() == [
        expected.ids[-1].as_py(),
        expected.ids[0].as_py(),
    ]


def test_a_table_beyond_memory_leaves_no_file_and_outlives_its_parent(files, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table = Table.read(files["parquet"], ids="name", labels="y", memory=1000)
    assert os.listdir(tmp_path) == []
    part = table.select(["x"])
    expected = np.nansum(table.column("x"))
    del table
    gc.collect()
    assert np.nansum(part.column("x")) == expected


def test_row_numbers_run_on_over_batches_and_parts(files):
    table = Table.read(files["parts"], ids=None, columns=["x"], memory=1000)
    np.testing.assert_array_equal(table.ids.to_numpy(), np.arange(N_ROWS))
    assert table.columns == ("x",)


def test_only_the_columns_asked_for_are_read(files):
    table = Table.read(files["csv"], ids="name", columns=["level"])
    assert table.columns == ("level",)
    assert table.labels is None


def test_an_empty_csv_field_is_missing_in_text_too(tmp_path):
    (tmp_path / "t.csv").write_text("id,job,x\n1,nurse,2.5\n2,,\n", encoding="utf-8")
    table = Table.read(tmp_path / "t.csv", ids="id")
    assert table.column("job").tolist() == ["nurse", None]
    assert np.isnan(table.column("x")[1])


@pytest.mark.parametrize(
    ("written", "held"),
    [
        (["7", " 8", "", "-9"], [7, 8, None, -9]),
        (["7.0", "", "8.0"], [7, None, 8]),
        (["7", "007"], ["7", "007"]),
        (["+41791234567", "41791234568"], ["+41791234567", "41791234568"]),
        (["1980-05-17", ""], ["1980-05-17", None]),
        (["7", "8.0", ""], [7, 8, None]),
        (["1234567890123456789", "-9223372036854775808"], [1234567890123456789, -(2**63)]),
        (["9223372036854775808", "1"], ["9223372036854775808", "1"]),
        (["12345678901234567890", "1"], ["12345678901234567890", "1"]),
    ],
)
def test_ids_of_a_csv_are_whole_numbers_only_where_nothing_of_them_is_lost(tmp_path, written, held):
    (tmp_path / "t.csv").write_text("id,x\n" + "".join(f'"{each}",1\n' for each in written), encoding="utf-8")
    assert Table.read(tmp_path / "t.csv", ids="id").ids.to_pylist() == held


def test_an_id_with_a_zero_in_front_keeps_it_however_late_it_comes(tmp_path):
    rows = "".join(f"{i},{i % 7}\n" for i in range(1, 2_100_000))
    (tmp_path / "t.csv").write_text(f"id,x\n{rows}007,1\n", encoding="utf-8")
    assert Table.read(tmp_path / "t.csv", ids="id").ids[-1].as_py() == "007"


def test_an_id_written_as_a_float_is_a_whole_number_however_late_it_comes(tmp_path):
    rows = "".join(f"{i},{'x' * 400}\n" for i in range(1, 60_000))
    (tmp_path / "t.csv").write_text(f"id,x\n{rows}70000.0,y\n", encoding="utf-8")
    assert Table.read(tmp_path / "t.csv", ids="id").ids[-1].as_py() == 70_000


def test_the_columns_of_keys_are_read_besides_the_others_and_from_a_csv_as_ids_are(tmp_path):
    text = "id,phone,born,x,no\n1,0041791234567,1980-05-17,2.5,7.0\n"
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    table = Table.read(tmp_path / "t.csv", ids="id", columns=["x"], keys=["phone", "born", "no", "id"])
    assert table.to_arrow().to_pylist() == [
        {"id": 1, "x": 2.5, "phone": "0041791234567", "born": "1980-05-17", "no": 7}
    ]
    with pytest.raises(DataError, match=r"a column 'phon', .* nearest name is 'phone'\. Correct the columns that"):
        Table.read(tmp_path / "t.csv", ids="id", keys=["phon"])


@pytest.mark.parametrize("memory", [None, 0])
def test_a_file_without_rows_is_an_empty_table(tmp_path, memory):
    (tmp_path / "t.csv").write_text("id,x\n", encoding="utf-8")
    assert len(Table.read(tmp_path / "t.csv", ids="id", memory=memory)) == 0


def test_reading_an_unknown_column_is_refused_with_the_nearest_name(files):
    with pytest.raises(
        DataError, match=r"bank's table was expected to have a column 'nam', .* nearest name is 'name'\."
    ):
        Table.read(files["csv"], ids="nam", owner="bank")
    with pytest.raises(DataError, match=r"a column 'levl', .* nearest name is 'level'\."):
        Table.read(files["parquet"], ids="name", columns=["levl"])


def test_an_unsupported_column_is_refused_when_read(tmp_path):
    pq.write_table(pa.table({"id": [1], "when": [datetime.time(12, 0)]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"column 'when' is of Arrow type time64\[us\]"):
        Table.read(tmp_path / "t.parquet", ids="id")
    assert Table.read(tmp_path / "t.parquet", ids="id", columns=[]).columns == ()


def test_a_missing_file_or_an_empty_directory_is_a_storage_error(tmp_path):
    for path in (tmp_path / "none.parquet", tmp_path):
        with pytest.raises(StorageError) as error:
            Table.read(path, ids="id")
        assert message(error) == (
            f"A Parquet or CSV file, or a directory of .parquet files, was expected at {path}, but there is none. "
            "Check the path."
        )


def test_a_damaged_file_is_a_storage_error(files, tmp_path):
    whole = files["parquet"].read_bytes()
    (tmp_path / "truncated.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "holed.parquet").write_bytes(whole[:100] + bytes(len(whole) // 2) + whole[100 + len(whole) // 2 :])
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(StorageError) as error:
            Table.read(path, ids=None)
        assert message(error) == (
            f"A readable Parquet or CSV table was expected at {path}, but it is damaged or of another format. Check "
            "the file or write it again."
        )


def test_a_csv_column_that_changes_its_type_is_refused_without_its_value(tmp_path):
    rows = "".join(f"{i},{i % 7}\n" for i in range(2_100_000))
    (tmp_path / "t.csv").write_text(f"id,x\n{rows}9999999,secret\n", encoding="utf-8")
    with pytest.raises(DataError) as error:
        Table.read(tmp_path / "t.csv", ids="id")
    assert message(error) == (
        f"Every CSV column must be of one type, but in {tmp_path / 't.csv'} column 'x' starts as int64 and goes on as "
        "something else in line 2,100,002. Clean the column, or name missing values by missing = [...] or its type by "
        "types."
    )


def test_parts_with_different_columns_are_refused(tmp_path):
    pq.write_table(pa.table({"id": [1], "x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [2]}), tmp_path / "b.parquet")
    with pytest.raises(DataError) as error:
        Table.read(tmp_path, ids="id")
    assert message(error) == (
        f"All parts under {tmp_path} must have the same columns, but b.parquet differs from the first part in 'x'. "
        "Write the parts again with one schema."
    )


# Rows that an alignment says are absent.


def test_absent_rows_have_nothing_and_the_mask_goes_where_the_rows_go(tmp_path: Path) -> None:
    table = Table.of({"id": ["a", "b", "c"], "x": [1.0, 2.0, 3.0], "y": [0, 1, 0]}, labels="y")
    arranged = table.arranged([2, -1, 0], {"shop": np.array([True, False, False])})
    assert arranged.ids.to_pylist() == ["c", None, "a"]
    assert np.isnan(arranged.column("x")).tolist() == [False, True, False]
    variants = {
        "as it is": arranged,
        "without labels": arranged.without_labels(),
        "with other labels": arranged.with_labels([1, 0, 1]),
        "of some columns": arranged.select(["x"]),
        "numbered": arranged.numbered(),
        "checked": arranged.with_labels([1, 0, 1]).checked("bank", ids=False),
    }
    arranged.save(tmp_path / "table")
    variants["saved and loaded"] = Table.load(tmp_path / "table")
    for what, variant in variants.items():
        assert variant.present is not None, what
        taken = variant.take([1, 2])
        assert taken.present is not None
        assert taken.present.tolist() == [False, True], what
        assert taken.partners["shop"].tolist() == [False, False], what


def test_a_table_whose_rows_are_all_there_has_no_mask() -> None:
    table = Table.of({"id": ["a", "b"]})
    assert table.arranged([1, 0]).present is None
    assert (table.present, dict(table.partners)) == (None, {})


def test_numbered_rows_are_known_by_their_places() -> None:
    table = Table.of({"id": ["b", "a"], "x": [1, 2]}).numbered()
    assert table.ids.to_pylist() == [0, 1]
    assert table.id_name == "id"


def test_rows_without_an_id_pass_where_an_alignment_says_which_belong_together() -> None:
    table = Table.of({"id": ["a", None, "a"]})
    assert len(table.checked("bank", ids=False)) == 3
    with pytest.raises(DataError, match="needs an id"):
        table.checked("bank")
