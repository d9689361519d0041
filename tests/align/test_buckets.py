"""Ids are cut into buckets alike at all parties, none is lost, and how full a bucket is shows nobody."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from colonnade.align.buckets import Bucket, Buckets, PaddedBucket, n_buckets, slots
from colonnade.align.identifiers import Identifiers
from colonnade.align.matching import positions
from colonnade.align.star import expanded
from colonnade.errors import DataError, StorageError
from colonnade.privacy.randomness import Randomness
from colonnade.tables.table import Table

SALT = b"s" * 32
RANDOM = Randomness.seeded(0)


def cut(ids, n, folder):
    table = Table.of({"id": list(ids)})
    return Buckets(Identifiers.of(table, None, None), table, 0, SALT, n=n, folder=folder)


def keys(bucket):
    return {digest.tobytes() for digest in bucket.digests}


def test_files_of_buckets_are_for_their_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        cut(range(100), 2, tmp_path / "run")
    finally:
        os.umask(before)
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(made) == 2
    assert {path.stat().st_mode & 0o777 for path in made} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (*made[0].parents,)[:2]} == {0o700}


def test_an_id_lies_in_the_same_bucket_wherever_it_stands(tmp_path):
    here = cut(range(3000), 7, tmp_path / "here")
    there = cut(reversed(range(1000, 4000)), 7, tmp_path / "there")
    common = sum(len(keys(one) & keys(other)) for one, other in zip(here, there, strict=True))
    assert common == 2000


def test_buckets_hold_every_row_once_and_are_about_equally_full(tmp_path):
    buckets = cut(range(7000), 7, tmp_path)
    assert sorted(np.concatenate([bucket.rows for bucket in buckets])) == list(range(7000))
    assert all(800 < len(bucket) < 1200 for bucket in buckets)
    assert max(len(bucket) for bucket in buckets) <= slots(7000, 7)


def test_buckets_on_disk_are_what_a_single_one_in_memory_is(tmp_path):
    (single,) = cut(range(500), 1, tmp_path / "one")
    many = list(cut(range(500), 5, tmp_path / "many"))
    assert set().union(*map(keys, many)) == keys(single)


def test_cutting_again_after_a_crash_replaces_what_was_there(tmp_path):
    cut(range(500), 5, tmp_path)
    assert sum(len(bucket) for bucket in cut(range(500), 5, tmp_path)) == 500


def test_a_bucket_whose_file_is_gone_is_not_taken_for_an_empty_one(tmp_path):
    buckets = cut(range(500), 5, tmp_path)
    buckets.delete()
    with pytest.raises(
        StorageError, match=r"should hold \d+ ids, but holds 0: somebody else changed it. Go on with --resume"
    ):
        buckets[0]


def test_deleted_buckets_leave_no_files(tmp_path):
    buckets = cut(range(500), 5, tmp_path)
    buckets.delete()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_of_rows_with_one_id_the_first_stands_for_all(tmp_path):
    (bucket,) = cut(["a", "b", "a", "c", "A "], 1, tmp_path)
    assert sorted(bucket.rows.tolist()) == [0, 1, 3]
    first = bucket.rows.tolist().index(0)
    start = bucket.starts[first]
    assert bucket.repeats[start : start + bucket.copies[first]].tolist() == [0, 2, 4]


def test_what_was_matched_is_left_out_afterwards(tmp_path):
    (bucket,) = cut(["a", "b", "c"], 1, tmp_path)
    assert sorted(bucket.without(np.array([False, True, False])).rows.tolist()) == [0, 2]


def test_a_list_is_filled_up_with_what_stands_for_nobody_and_shuffled(tmp_path):
    (bucket,) = cut(range(50), 1, tmp_path)
    listed = PaddedBucket.of(bucket, 64, RANDOM)
    assert len(listed.digests) == 64
    assert (listed.rows == -1).sum() == 14
    assert sorted(listed.rows[listed.rows >= 0]) == sorted(bucket.rows)
    assert listed.rows[listed.rows >= 0].tolist() != bucket.rows.tolist()
    assert len(np.unique(listed.digests, axis=0)) == 64


def test_the_same_secret_makes_the_same_list_again_and_another_one_another(tmp_path):
    (bucket,) = cut(range(50), 1, tmp_path)
    one, again, other = (PaddedBucket.of(bucket, 64, random) for random in (RANDOM, RANDOM, RANDOM.child("other")))
    assert (one.digests == again.digests).all()
    assert not (one.digests == other.digests).all()


def test_a_bucket_that_overflows_is_refused():
    bucket = Bucket.of(np.arange(48, dtype=np.uint8).reshape(3, 16), np.arange(3))
    with pytest.raises(DataError, match=r"at most 2 ids but has 3: they are cut most unevenly"):
        PaddedBucket.of(bucket, 2, RANDOM)


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_there_is_room_for_all_ids(n_ids, per_bucket):
    n = n_buckets(n_ids, per_bucket)
    assert n * slots(n_ids, n) >= n_ids
    assert n_ids <= n * per_bucket


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))))
def test_every_combination_of_rows_with_one_id_comes_once_and_at_the_same_place_everywhere(counts):
    table = np.array(counts, np.int64).reshape(-1, 3)
    columns = [expanded(table, own) for own in range(3)]
    ids = columns[0][0].tolist()
    assert all(column[0].tolist() == ids for column in columns)
    combined = list(zip(ids, *(column[1].tolist() for column in columns), strict=True))
    wanted = [(i, a, b, c) for i, (n, m, k) in enumerate(counts) for a in range(n) for b in range(m) for c in range(k)]
    assert combined == wanted


@given(
    st.lists(st.integers(0, 2**128 - 1) | st.integers(0, 20) | st.integers(0, 9).map(lambda n: n << 64), unique=True)
)
def test_values_are_found_where_they_stand_even_if_they_are_half_alike(numbers):
    half = len(numbers) // 3
    among, wanted = numbers[half:], numbers[: 2 * half]
    cut = [
        np.frombuffer(b"".join(n.to_bytes(16, "little") for n in each), np.uint8).reshape(-1, 16)
        for each in (wanted, among)
    ]
    expected = [among.index(n) if n in among else -1 for n in wanted]
    assert positions(*cut).tolist() == expected


@pytest.mark.parametrize(("n_ids", "n"), [(10**5, 4), (10**9, 2**14)])
def test_no_bucket_of_any_alignment_runs_over(n_ids, n):
    """Where one did, the alignment would end after hours, and not by anybody's fault."""
    share = 1 / n
    # The largest of n binomial numbers exceeds what is there with less than this probability.
    assert n * stats.binom.sf(slots(n_ids, n), n_ids, share) < 1e-9
