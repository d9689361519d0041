from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from shutil import copy

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from colonnade.data import available, intersect, load, require_same_rows
from colonnade.data.datasets import DatasetInfo
from colonnade.errors import DataError, PlanError, StorageError
from colonnade.tables.table import Table

INFO = {info.name: info for info in available()}
BUILT_IN = [name for name, info in INFO.items() if info.built_in]
EXTERNAL = [name for name, info in INFO.items() if not info.built_in]


@pytest.fixture
def info(data_folder: Path) -> dict[str, DatasetInfo]:
    """What is listed where the folder is the one that is set, or that of slices."""
    return {each.name: each for each in available()}


def test_the_list_names_the_built_in_sets_and_tells_the_others_apart():
    assert BUILT_IN == ["bank-shop-telco", "breast-cancer", "digits"]
    assert {"adult", "credit-default", "mnist", "cifar10", "febrl-1"} <= set(EXTERNAL)
    assert all(INFO[name].present for name in BUILT_IN)
    assert all(info.licence and info.rows > 0 and info.columns > 0 for info in INFO.values())


def test_a_set_is_present_when_its_file_is_in_the_folder(tmp_path, monkeypatch):
    (tmp_path / "adult.parquet").touch()
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    assert {info.name for info in available() if info.present} == {*BUILT_IN, "adult"}
    monkeypatch.delenv("COLONNADE_DATA")
    assert {info.name for info in available() if info.present} == set(BUILT_IN)


@pytest.mark.parametrize("name", ["breast-cancer", "digits"])
def test_a_built_in_set_is_as_listed(name):
    dataset = load(name)
    assert len(dataset.joined()) == INFO[name].rows
    assert len(dataset.joined().columns) == INFO[name].columns
    assert dataset.label_party == "bank"
    assert {party: len(columns) for party, columns in dataset.columns.items()} == {
        "bank": INFO[name].columns // 2,
        "shop": INFO[name].columns // 2,
    }
    require_same_rows(dataset.split())
    for party, table in dataset.split().items():
        table.checked(party)


def test_malignant_tumours_are_labelled_one():
    assert load("breast-cancer").joined().labels.to_numpy().sum() == 212


def test_the_shop_sees_the_left_half_of_a_digit():
    from sklearn.datasets import load_digits

    shop = load("digits").tables["shop"]
    image = np.array([shop.column(name)[0] for name in shop.columns]).reshape(8, 4)
    np.testing.assert_array_equal(image, load_digits().images[0][:, :4])


def test_rows_are_drawn_in_order_and_by_seed():
    def images(**which: int) -> list[bytes]:
        table = load("digits", **which).joined()
        return [row.tobytes() for row in np.stack([table.column(name) for name in table.columns], axis=1)]

    places = {image: place for place, image in enumerate(images())}
    drawn = images(rows=50, seed=3)
    assert len(drawn) == 50
    assert (np.diff([places[image] for image in drawn]) > 0).all()
    assert images(rows=50, seed=3) == drawn
    assert images(rows=50, seed=4) != drawn


def test_more_rows_than_there_are_cannot_be_drawn():
    with pytest.raises(DataError) as error:
        load("digits", rows=2000)
    assert str(error.value) == (
        "2,000 rows of 'digits' were to be drawn, but it has 1,797. Draw fewer, or leave rows out."
    )


@pytest.mark.parametrize("name", ["digits", "bank-shop-telco"])
def test_no_rows_cannot_be_drawn(name):
    with pytest.raises(PlanError) as error:
        load(name, rows=0)
    assert str(error.value) == f"At least one row of '{name}' must be drawn, but rows is 0. Choose a larger number."


def test_an_unknown_set_is_refused_with_the_nearest_name():
    with pytest.raises(PlanError) as error:
        load("credit_default")
    assert str(error.value) == (
        "A data set was expected, but none is called 'credit_default'. The nearest name is 'credit-default'. List the "
        "names with: colonnade data list"
    )


def test_a_set_without_a_folder_is_refused_with_what_to_set(monkeypatch):
    monkeypatch.delenv("COLONNADE_DATA", raising=False)
    with pytest.raises(DataError) as error:
        load("adult")
    assert str(error.value) == (
        "The file adult.parquet was sought in the folder that $COLONNADE_DATA names, but this variable is not set. Set "
        "$COLONNADE_DATA to the folder that holds the file."
    )


def test_a_missing_file_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    with pytest.raises(DataError) as error:
        load("adult")
    assert str(error.value) == (
        f"The file adult.parquet was sought in {tmp_path}, but it is not there. Put it there, or set $COLONNADE_DATA "
        "to the folder that holds it."
    )


def test_an_unreadable_file_is_a_storage_error(tmp_path, monkeypatch):
    (tmp_path / "adult.parquet").mkdir()
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    with pytest.raises(StorageError, match=r"Could not read .*adult\.parquet: Is a directory\. Check the path and who"):
        load("adult")


def test_a_file_with_another_checksum_is_refused(tmp_path, monkeypatch):
    (tmp_path / "adult.parquet").write_bytes(b"PAR1")
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    with pytest.raises(DataError) as error:
        load("adult")
    assert str(error.value) == (
        f"The SHA-256 of {tmp_path / 'adult.parquet'} should begin with 1e7fe84cdc46, but it begins with "
        "fbc62d3b5113: the file is damaged or another version. Fetch it again."
    )


def test_one_changed_byte_is_noticed(tmp_path, monkeypatch, data_folder):
    data = bytearray((data_folder / "febrl_1.parquet").read_bytes())
    data[1000] ^= 1
    if (data_folder / "datasets.toml").exists():
        copy(data_folder / "datasets.toml", tmp_path)
    (tmp_path / "febrl_1.parquet").write_bytes(data)
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="the file is damaged or another version"):
        load("febrl-1")


@pytest.mark.parametrize("name", [name for name in EXTERNAL if name != "cifar10" and INFO[name].task != "alignment"])
def test_an_external_set_is_as_listed(name, info):
    dataset = load(name)
    tables = dataset.split()
    assert sum(map(len, dataset.columns.values())) == info[name].columns
    assert {len(table) for table in tables.values()} == {info[name].rows}
    assert dataset.label_party == "bank"
    # Where there are only curves, the label party has just the curve to predict.
    assert all(dataset.columns.values()) or INFO[name].task == "curves"
    labels = tables["bank"].labels
    n_classes = len(labels) if INFO[name].task == "curves" else len(labels.unique())
    assert {"binary": n_classes == 2, "classes": 2 < n_classes <= 10}.get(INFO[name].task, n_classes >= 10)
    for party, table in tables.items():
        table.checked(party)


def test_a_folder_that_describes_its_own_files_is_believed_for_rows_and_checksums(tmp_path, monkeypatch):
    (tmp_path / "adult.parquet").write_bytes(b"PAR1")
    digest = sha256(b"PAR1").hexdigest()
    (tmp_path / "datasets.toml").write_text(f'[adult]\nrows = 3\nsha256 = "{digest}"\n')
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    assert {each.name: each.rows for each in available()} == {name: each.rows for name, each in INFO.items()} | {
        "adult": 3
    }
    with pytest.raises(pa.ArrowInvalid, match="Parquet file size is 4 bytes"):
        load("adult")


@pytest.mark.parametrize("line", ['[adultt]\nrows = 3\nsha256 = "00"', '[adult]\nlabels = "age"'])
def test_a_folder_that_describes_something_else_is_refused(line, tmp_path, monkeypatch):
    (tmp_path / "datasets.toml").write_text(line)
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"datasets\.toml should say rows and sha256 .* name is 'adult'\. Correct"):
        available()


def test_the_slices_are_small_and_have_every_set():
    folder = Path(__file__).parent / "slices"
    files = {info.file for info in INFO.values() if info.file is not None}
    assert {path.name for path in folder.iterdir()} == files | {"datasets.toml"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 10**6


@pytest.mark.parametrize("name", ["febrl-1", "febrl-2", "febrl-3"])
def test_originals_and_altered_copies_are_two_parties_tables(name, info):
    dataset = load(name)
    assert dataset.label_party is None
    assert sum(map(len, dataset.tables.values())) == info[name].rows
    assert dataset.columns["bank"] == dataset.columns["shop"]
    assert len(dataset.columns["bank"]) == info[name].columns
    assert set(dataset.tables["shop"].ids.to_pylist()) <= set(dataset.tables["bank"].ids.to_pylist())
    dataset.tables["bank"].checked("bank")


def test_the_suggested_cuts_are_those_of_the_published_comparison(data_folder):
    credit = load("credit-default", rows=10).columns
    assert len(credit["shop"]) == 12
    assert all(name.startswith("PAY_") for name in credit["shop"])
    assert len(credit["bank"]) == 11
    adult = load("adult", rows=10).columns
    assert adult["bank"] == ("age", "marital_status", "relationship", "capital_gain", "capital_loss")


def test_cifar_images_are_pixels_by_colour(info):
    pytest.importorskip("PIL")
    dataset = load("cifar10", rows=min(500, info["cifar10"].rows))
    images = dataset.joined()
    assert len(images.columns) == 3072
    means = [
        np.mean([images.column(name).mean() for name in images.columns if name.startswith(colour)]) / 255
        for colour in ("red", "green", "blue")
    ]
    np.testing.assert_allclose(means, [0.4913, 0.4821, 0.4465], atol=0.03)
    assert {name[-2:] for name in dataset.columns["shop"]} == {f"{column:02d}" for column in range(16)}


@pytest.fixture(scope="module")
def customers() -> dict[str, Table]:
    return dict(load("bank-shop-telco").tables)


def test_customers_overlap_in_part_and_in_different_orders(customers):
    held = {party: set(table.ids.to_pylist()) for party, table in customers.items()}
    common = set.intersection(*held.values())
    assert 2000 < len(common) < 3000
    for party, own in held.items():
        assert own - set.union(*(ids for other, ids in held.items() if other != party))
    shared = [[i for i in table.ids.to_pylist() if i in common] for table in customers.values()]
    assert shared[0] != shared[1] != shared[2] != shared[0]
    assert all(pa.types.is_large_string(table.ids.type) for table in customers.values())


def test_customers_have_the_dirt_of_real_tables(customers):
    for party, table in customers.items():
        table.checked(party)
        assert set(table.kinds.values()) == {"numeric", "categorical", "boolean"}
        missing = [np.mean(pd.isna(table.column(name))) for name in table.columns]
        assert 0.01 < max(missing) < 0.2
        assert min(missing) == 0
        texts = [table.column(name) for name, kind in table.kinds.items() if kind == "categorical"]
        levels = pd.concat([pd.Series(text).value_counts() for text in texts])
        assert 0 < levels.min() < 60
    text = " ".join(str(level) for level in customers["bank"].to_arrow().column("city").unique())
    assert "東京" in text


def test_customers_are_the_same_for_the_same_seed():
    first, again, other = (load("bank-shop-telco", rows=200, seed=seed).tables["shop"] for seed in (5, 5, 6))
    assert first.id_digest() == again.id_digest()
    np.testing.assert_array_equal(first.column("return_rate"), again.column("return_rate"))
    assert first.id_digest() != other.id_digest()


@pytest.mark.parametrize("people", [1, 2, 20])
def test_few_customers_can_be_made(people):
    tables = load("bank-shop-telco", rows=people).tables
    assert {len(table) for table in tables.values()} == {max(1, round(0.85 * people))}


def test_the_parties_together_predict_default_visibly_better_than_the_bank_alone(customers):
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    tables = intersect(customers)
    labels = tables["bank"].labels.to_numpy()
    assert 0.15 < labels.mean() < 0.25

    def auc(parties: list[str], model: object) -> float:
        columns = {name: tables[party].column(name) for party in parties for name in tables[party].columns}
        frame = pd.get_dummies(pd.DataFrame(columns)).astype(float)
        frame = frame.fillna(frame.median())
        return float(cross_val_score(model, frame, labels, cv=3, scoring="roc_auc").mean())

    trees = HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=8, random_state=0)
    linear = make_pipeline(StandardScaler(), LogisticRegression(C=0.1))
    for model in (trees, linear):
        alone = auc(["bank"], model)
        assert auc(["bank", "shop", "telco"], model) > alone + 0.05
        assert auc(["bank", "shop"], model) > alone + 0.02
        assert auc(["bank", "telco"], model) > alone + 0.02
        assert alone > 0.6


def test_the_joined_table_holds_the_common_rows_and_all_columns(customers):
    dataset = load("bank-shop-telco")
    joined = dataset.joined()
    assert joined.columns == tuple(name for columns in dataset.columns.values() for name in columns)
    assert joined.label_name == "default"
    aligned = intersect(customers)
    assert joined.id_digest() == aligned["telco"].id_digest()
    np.testing.assert_array_equal(joined.column("minutes"), aligned["telco"].column("minutes"))
