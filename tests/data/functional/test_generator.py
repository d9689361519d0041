import bz2
import gzip
import hashlib
import lzma
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rdata

from colonnade.curves import BSplines, Curves, Fourier, Tabulated
from colonnade.data.functional.folder import FunctionalFolder
from colonnade.data.functional.generator import FunctionalSetting, owned_features
from colonnade.data.functional.rdata import _bounded_sequences, read_rdata, write_rdata
from colonnade.errors import DataError, PlanError, StorageError

REFERENCE = Path(__file__).parents[2] / "reference"
R = np.load(REFERENCE / "r_fda.npz")
SMALL = FunctionalSetting(n=40, p=5, active=(1, 2), basis=BSplines((0, 100), 8))


def test_operators_and_inputs_are_those_that_r_draws():
    data = FunctionalSetting(draws="r").draw(1)[0]
    np.testing.assert_allclose(data.operators[4], R["rng_B5"], atol=1e-14)
    np.testing.assert_allclose(data.x[19].coordinates.T[:, [0, 499]], R["rng_Z20"], atol=1e-12)


def test_the_signal_has_the_strength_and_the_noise_the_ratio_that_were_asked_for():
    setting = FunctionalSetting(n=4000, snr=5.0, strength=2.0)
    data = setting.draw(1)[0]
    np.testing.assert_allclose(np.linalg.norm(data.operators, axis=(1, 2))[:5], 2 * np.sqrt(3))
    assert not data.operators[5:].any()
    assert all(np.linalg.matrix_rank(w) == 3 for w in data.operators[:5])
    noise = data.y.coordinates - data.signal.coordinates
    assert data.signal.coordinates.var() / noise.var() == pytest.approx(5.0, rel=0.05)


def test_correlated_inputs_have_that_correlation():
    data = FunctionalSetting(n=4000, p=3, active=(1,), correlation=0.6).draw(1)[0]
    a, b = (each.coordinates.ravel() for each in data.x[:2])
    assert np.corrcoef(a, b)[0, 1] == pytest.approx(0.6, abs=0.02)


def test_a_replicate_drawn_alone_is_the_one_drawn_with_others():
    for draws in ("numpy", "r"):
        setting = FunctionalSetting(n=30, p=3, active=(1,), draws=draws)
        together = setting.draw(3)
        np.testing.assert_array_equal(setting.draw_one(3).y.coefficients, together[2].y.coefficients)
        assert not np.array_equal(together[0].y.coefficients, together[1].y.coefficients)


def test_every_input_has_one_owner_and_all_numbers_of_workers_hold_the_same_records():
    for workers in (1, 2, 5):
        owned = [j for worker in range(1, workers + 1) for j in owned_features(worker, workers, 5)]
        assert sorted(owned) == [1, 2, 3, 4, 5]
        tables = SMALL.draw(1)[0].tables(workers)
        assert sorted(name for table in tables.values() for name in table.columns) == [f"x0{j}" for j in range(1, 6)]
        assert len({table.id_digest() for table in tables.values()}) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"active": (6,)}, "active should be numbers from 1 to 5, but is (6,)"),
        ({"rank": 9}, "rank should be from 1 to 8, but is 9"),
        ({"snr": 0.0}, "snr should be a number, above 0, but is 0.0"),
        ({"n": 1}, "n should be a whole number, at least 2, but is 1"),
    ],
)
def test_a_setting_that_cannot_be_drawn_is_refused(change, words):
    with pytest.raises(PlanError) as error:
        FunctionalSetting(**{**vars(SMALL), **change})
    assert words in str(error.value)


@pytest.mark.parametrize("format", ["arrays", "rdata"])
def test_a_folder_gives_back_the_records_for_every_number_of_workers(tmp_path, format):
    FunctionalFolder.generate(tmp_path / "a", SMALL, replicates=2, workers=(2, 3), format=format)
    folder = FunctionalFolder.open(tmp_path / "a")
    assert folder.setting == SMALL
    wanted = SMALL.draw(2)
    for workers in (2, 3):
        found = folder.load(replicate=2, workers=workers)
        np.testing.assert_array_equal(found.y.coefficients, wanted[1].y.coefficients)
        for one, other in zip(found.x, wanted[1].x, strict=True):
            np.testing.assert_array_equal(one.coefficients, other.coefficients)
        assert found.active == (1, 2)
    with pytest.raises(PlanError, match="has replicates 1 to 2 for"):
        folder.load(replicate=3, workers=2)


def test_generations_are_not_mixed(tmp_path):
    FunctionalFolder.generate(tmp_path / "a", SMALL, replicates=1, workers=(2,), format="rdata")
    with pytest.raises(PlanError, match="should hold no curves yet, but has 6 files of another generation"):
        FunctionalFolder.generate(tmp_path / "a", SMALL, replicates=1, workers=(2,))
    other = FunctionalSetting(**{**vars(SMALL), "seed": 5})
    FunctionalFolder.generate(tmp_path / "b", other, replicates=1, workers=(2,), format="rdata")
    stale = "predictorLst_2_2_1.RData"
    (tmp_path / "a" / stale).write_bytes((tmp_path / "b" / stale).read_bytes())
    with pytest.raises(DataError, match=f"{stale} should be of the generation that manifest.json describes"):
        FunctionalFolder.open(tmp_path / "a").load(replicate=1, workers=2)
    (tmp_path / "a" / stale).unlink()
    with pytest.raises(StorageError, match="should be there, as the manifest says, but is missing"):
        FunctionalFolder.open(tmp_path / "a").load(replicate=1, workers=2)


def damaged(tmp_path, worker, name, **objects):
    """A folder of which one file was changed and the manifest with it, as another program might have written it."""
    made = FunctionalFolder.generate(tmp_path / "a", SMALL, replicates=1, workers=(2,), format="rdata")
    file = tmp_path / "a" / f"{name}_{worker}_2_1.RData"
    write_rdata(file, **objects)
    made.manifest["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return made


def test_files_that_break_the_documents_rules_are_refused(tmp_path):
    x = list(SMALL.draw(1)[0].x)
    for number, (worker, name, objects, words) in enumerate(
        [
            (1, "predictorLst", {"predictorLst": x[:4]}, "should have 5 entries, one per input, but has 4"),
            (1, "predictorLst", {"predictorLst": x}, "2 entries differ, the first being 2. Each input has one owner"),
            (
                2,
                "yfdobj",
                {"yfdobj": x[0]},
                "workers of a replicate should have the same response, but yfdobj_2_2_1",
            ),
            (2, "predictorLst", {"other": x}, "should hold the object 'predictorLst', but holds other"),
        ]
    ):
        folder = damaged(tmp_path / str(number), worker, name, **objects)
        with pytest.raises((DataError, StorageError)) as error:
            folder.load(replicate=1, workers=2)
        assert words in str(error.value)


def test_a_folder_without_a_manifest_is_none(tmp_path):
    with pytest.raises(StorageError, match="Could not read"):
        FunctionalFolder.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(StorageError, match="should describe simulated curves, but cannot be read"):
        FunctionalFolder.open(tmp_path)


def test_fd_objects_of_r_are_read_exactly():
    response = read_rdata(REFERENCE / "yfdobj_1_2_1.RData", "yfdobj")
    assert response.basis == BSplines((0, 100), 20)
    np.testing.assert_array_equal(response.coefficients.T, R["yfdobj_coefs"])
    inputs = read_rdata(REFERENCE / "predictorLst_1_2_1.RData", "predictorLst")
    assert [each is None for each in inputs] == [True, False, True, False]
    np.testing.assert_array_equal(inputs[1].coefficients.T, R["predictorLst2_coefs"])
    assert read_rdata(REFERENCE / "truth_active_idx.RData", "active_idx").tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "basis",
    [BSplines((0, 100), 20), BSplines((0, 1), 6, 3, (0.1, 0.2, 0.7)), Fourier((0, 365), 5), Fourier((0, 2), 3, 1.0)],
)
def test_fd_objects_are_written_as_they_are_read(tmp_path, basis):
    curves = Curves(np.random.default_rng(0).normal(size=(4, basis.size)), basis)
    write_rdata(tmp_path / "x.RData", yfdobj=curves)
    again = read_rdata(tmp_path / "x.RData", "yfdobj")
    assert again.basis == basis
    np.testing.assert_array_equal(again.coefficients, curves.coefficients)


def test_a_written_fd_has_all_that_one_of_r_has(tmp_path):
    """The same names in the same order, at every level, and a call first in the basis: what fda looks at."""
    curves = read_rdata(REFERENCE / "yfdobj_1_2_1.RData", "yfdobj")
    write_rdata(tmp_path / "x.RData", yfdobj=curves)

    def skeleton(node):
        """Names, classes and types of a parsed object, without values."""
        attributes = {}
        entry = node.attributes
        while entry is not None and entry.info.type is not rdata.parser.RObjectType.NILVALUE:
            tag = entry.tag if entry.tag.info.type is rdata.parser.RObjectType.SYM else entry.tag.referenced_object
            attributes[tag.value.value] = entry.value[0]
            entry = entry.value[1]
        names = [each.value for each in attributes[b"names"].value] if b"names" in attributes else []
        kinds = [each.value for each in attributes[b"class"].value] if b"class" in attributes else []
        inner = []
        if node.info.type is rdata.parser.RObjectType.VEC:
            inner = [skeleton(each) for each in node.value]
        return node.info.type, names, kinds, inner

    ours, theirs = (
        skeleton(rdata.parser.parse_file(path).object.value[0])
        for path in (tmp_path / "x.RData", REFERENCE / "yfdobj_1_2_1.RData")
    )
    assert ours == theirs


def test_what_r_cannot_hold_or_nobody_can_read_is_refused(tmp_path):
    own = Tabulated.of(lambda t: np.stack([np.ones_like(t), t], axis=1), (0, 1))
    with pytest.raises(DataError, match="R's fda knows splines and Fourier bases, but these curves are in a tabulated"):
        write_rdata(tmp_path / "x.RData", y=Curves(np.ones((1, 2)), own))
    (tmp_path / "y.RData").write_bytes(b"no file of R")
    with pytest.raises(StorageError, match=r"y.RData should be a file that R's save wrote, but cannot be read"):
        read_rdata(tmp_path / "y.RData", "y")
    with pytest.raises(StorageError, match="A file of R was expected at"):
        read_rdata(tmp_path / "z.RData", "y")


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, lambda data: data])
def test_a_file_that_grows_beyond_the_limit_is_refused_before_it_is_unpacked(tmp_path, monkeypatch, compress):
    monkeypatch.setattr("colonnade.data.functional.rdata.MOST_BYTES", 2**16)
    (tmp_path / "bomb.RData").write_bytes(compress(b"RDX3\nX\n" + bytes(2**26)))
    tracemalloc.start()
    try:
        with pytest.raises(StorageError, match=r"^bomb\.RData should hold at most 65,536 bytes once decompressed"):
            read_rdata(tmp_path / "bomb.RData", "x")
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_file_that_was_compressed_twice_is_refused(tmp_path):
    (tmp_path / "bomb.RData").write_bytes(gzip.compress(gzip.compress(bytes(2**20))))
    with pytest.raises(StorageError, match=r"^bomb\.RData should hold at most"):
        read_rdata(tmp_path / "bomb.RData", "x")


@pytest.mark.parametrize("kind", [b"compact_intseq", b"compact_realseq"])
def test_a_sequence_of_three_numbers_does_not_become_a_disk_full(kind):
    expand = _bounded_sequences()[kind]
    assert expand(SimpleNamespace(value=[1000.0, 1.0, 1.0]))[1].tolist() == list(range(1, 1001))
    for n in (2.0**40, -1.0, np.nan):
        with pytest.raises(StorageError, match="A sequence of R should have at most 134,217,728 numbers, but has"):
            expand(SimpleNamespace(value=[n, 1.0, 1.0]))
