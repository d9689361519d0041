"""CSVs as banks export them."""

import datetime
import gzip
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from colonnade.errors import DataError, StorageError
from colonnade.plans.sections import PlannedTable
from colonnade.tables.table import Table


def read(folder: Path, text: str | bytes, name: str = "t.csv", **written: Any) -> Table:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return Table.read(folder / name, ids="id", owner="bank", **written)


@pytest.mark.parametrize(
    ("text", "written", "held"),
    [
        ("id;x\n1;2,5\n2;-4,25\n", {"delimiter": ";", "decimal": ","}, [2.5, -4.25]),
        ("id;x\n1;1.002,5\n2;3\n", {"delimiter": ";", "decimal": ",", "thousands": "."}, [1002.5, 3.0]),
        ('id,x\n1,"1,037"\n2,\n', {"thousands": ","}, [1037.0, np.nan]),
        ("id|x\n1|2\n2|3\n", {"delimiter": "|"}, [2.0, 3.0]),
        ("id,x\n1,?\n2,3\n", {"missing": ["?"]}, [np.nan, 3.0]),
        ("id,x\n1,02.01.1970\n2,01.02.1970\n", {"dates": ["%d.%m.%Y"]}, [1.0, 31.0]),
        ("id,x\n1,1970-01-02\n2,1970-01-01\n", {}, [1.0, 0.0]),
        ("id,x\n1,1970-01-01 12:00:00\n2,\n", {}, [0.5, np.nan]),
    ],
)
def test_numbers_and_dates_are_read_as_they_are_written(tmp_path, text, written, held):
    table = read(tmp_path, text, **written)
    assert table.kinds["x"] == "numeric"
    np.testing.assert_array_equal(table.column("x"), held)
    planned = PlannedTable(
        tmp_path / "t.csv", "id", **{k: tuple(v) if isinstance(v, list) else v for k, v in written.items()}
    )
    np.testing.assert_array_equal(planned.read("bank").column("x"), held)


def test_text_keeps_its_zeros_and_its_letters(tmp_path):
    assert read(tmp_path, "id,x\n1,01234\n", types={"x": "text"}).column("x").tolist() == ["01234"]
    latin = "id,x\n1,Müller\n".encode("latin-1")
    assert read(tmp_path, latin, encoding="latin-1").column("x").tolist() == ["Müller"]
    assert read(tmp_path, gzip.compress(b"id\tx\n1\tb\n"), name="t.tsv.gz").column("x").tolist() == ["b"]
    assert read(tmp_path, "id,x,y\n1,2,3\n", exclude=["x"]).columns == ("y",)


@pytest.mark.parametrize(
    ("text", "written", "words"),
    [
        ("id;x\n1;2,5\n", {}, "fields apart by ',', but in its first line they seem to be apart by ';'. Write delim"),
        ("id\tx\n1\t2\n", {}, r"seem to be apart by '\t'. Write delimiter = '\t'."),
        ("id,x\n1,Müller\n".encode("latin-1"), {}, "but column 'x' is not. Name another one, such as encoding = 'lat"),
        ("id,x\nMüller,1\n".encode("latin-1"), {}, "but line 2 is not. Name another one, such as encoding = 'latin-1"),
        (b"id,x\n1,secret\x81\n", {"encoding": "cp1252"}, "in the encoding that was named, or in utf-8, but a later"),
        (b"id,x\n1,secret\n", {"encoding": "utf-16"}, "in the encoding that was named, or in utf-8, but a later"),
        ("id,x\n1,2\n", {"encoding": "rot13"}, "encoding should be one that Python knows, but is 'rot13'"),
        ("id,x\n1,2\n", {"exclude": ["id"]}, "exclude should name columns that are not used, but names 'id', which"),
        ("id,x\n1,2\n3,4,secret\n", {}, "should have 2 fields in every line, but has 3 in line 3. Quote fields"),
        ("", {}, "but it is empty. Check the file"),
        ("id,x,x\n1,2,3\n", {}, "should have columns of different names, but two are named 'x'. Rename one."),
        (
            "id,x\n1,2\n2,secret\n",
            {"types": {"x": "number"}},
            "starts as double and goes on as something else in line 3",
        ),
        ("id,x\n1,2\n2,secret\n", {"types": {"x": "number"}, "thousands": " "}, "have numbers in column 'x', as types"),
        ("id,x\n1,2\n", {"types": {"y": "number"}}, "types names the column 'y', but"),
        ("id,x\n1,2\n", {"types": {"x": "complex"}}, "types should be number, text, date, but is 'complex' for column"),
        ("id,x\n1,2\n", {"exclude": ["y"]}, "expected to have a column 'y', but none of its 2 columns is named so."),
        ("id,x\n1,2\n", {"delimiter": ";;"}, "delimiter should be one mark such as ';', but is ';;'. Write one mark."),
        ("id,x\n1,2\n", {"delimiter": ",", "decimal": ","}, "should be different marks, but are ',', ',' and None."),
        ("id,x\n1,2\n", {"encoding": "klingon"}, "encoding should be one that Python knows, but is 'klingon'."),
    ],
)
def test_what_cannot_be_read_is_refused_with_line_and_reason_and_without_a_value(tmp_path, text, written, words):
    with pytest.raises((DataError, StorageError)) as error:
        read(tmp_path, text, **written)
    assert words in str(error.value)
    assert "secret" not in "".join(traceback.format_exception(error.value))


def test_values_of_several_lines_are_read_in_files_of_several_blocks(tmp_path):
    address = "Elm Street\n" * 1_000
    table = read(tmp_path, "id,x\n" + "".join(f'{row},"{address}"\n' for row in range(1_600)))
    assert set(table.column("x")) == {address}


def test_a_spreadsheet_is_called_one(tmp_path):
    with pytest.raises(StorageError, match="it is a spreadsheet, which is read as CSV or Parquet"):
        read(tmp_path, "PK", name="t.xlsx")


def test_dates_are_days_wherever_they_come_from_and_no_labels():
    moments = [datetime.datetime(1970, 1, 2, 12, tzinfo=datetime.UTC), None]
    table = Table.of({"id": [1, 2], "since": moments, "born": [datetime.date(1969, 12, 31)] * 2})
    np.testing.assert_array_equal(table.column("since"), [1.5, np.nan])
    np.testing.assert_array_equal(table.column("born"), [-1.0, -1.0])
    with pytest.raises(DataError, match="needs numbers, text, booleans or curves as labels, but column 'born' holds"):
        Table.of(pa.table({"id": [1], "born": [datetime.date(1970, 1, 1)]}), labels="born")
