"""The list of mutants does not rot: every fault still has its place, and its tests are there."""

import ast
import shlex

import pytest

from tests.mutants.__main__ import ROOT, SOURCE, Journal, Mutant, judge, mutants, outcome


def test_every_mutant_has_its_place_once():
    texts = {each.file: (SOURCE / each.file).read_text() for each in mutants()}
    assert [f"{each.file}: {each.old}" for each in mutants() if not each.fits(texts[each.file])] == []


@pytest.mark.slow
def test_every_mutant_stays_readable():
    for each in mutants():
        ast.parse((SOURCE / each.file).read_text().replace(each.old, each.new))


def test_the_tests_of_every_mutant_exist():
    named = {word for each in mutants() for word in shlex.split(each.tests) if word.startswith("tests/")}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_no_fault_is_listed_twice_and_each_says_what_would_be_lost():
    listed = [(each.file, each.old, each.new) for each in mutants()]
    assert len(set(listed)) == len(listed)
    assert all(each.lost and each.tests for each in mutants())


@pytest.fixture
def copy(tmp_path):
    (tmp_path / "colonnade").mkdir()
    (tmp_path / "colonnade" / "two.py").write_text("two = 1 + 1\n")
    return tmp_path


def check(copy, words):
    path = copy / "test_two.py"
    lines = (
        "from os import environ",
        "from runpy import run_path",
        "def test_two():",
        "    two = run_path(environ['PYTHONPATH'] + '/colonnade/two.py')['two']",
        f"    assert {words}",
    )
    path.write_text("\n".join(lines))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "words", "end"),
    [("1 + 1", "two == 2", "dies"), ("1 + 1", "two > 0", "SURVIVES"), ("2 + 2", "two == 2", "STALE")],
)
def test_a_mutant_dies_if_a_test_notices_it_and_leaves_the_source_as_it_was(copy, old, words, end):
    fault = Mutant("two.py", old, "1 + 2", "two", check(copy, words))
    assert outcome(fault, copy)[0] == end
    assert (copy / "colonnade" / "two.py").read_text() == "two = 1 + 1\n"


@pytest.mark.slow
def test_a_mutant_whose_tests_do_not_run_is_stale(copy):
    assert outcome(Mutant("two.py", "1 + 1", "1 + 2", "two", f"{copy}/test_none.py"), copy)[0] == "STALE"


def judged(copy, fault, *, seconds=60):
    [(_, end)] = judge([fault], copy, Journal(copy / "journal", "state"), workers=1, seconds=seconds)
    return end and end[0]


@pytest.mark.slow
def test_a_test_that_fails_without_the_fault_kills_no_mutant(copy):
    assert judged(copy, Mutant("two.py", "1 + 1", "1 + 2", "two", check(copy, "two == 5"))) == "UNJUDGED"


@pytest.mark.slow
def test_a_stopped_run_goes_on_where_the_journal_ends(copy):
    fault = Mutant("two.py", "1 + 1", "1 + 2", "two", check(copy, "two == 2"))
    assert judged(copy, fault, seconds=0) is None
    assert judged(copy, fault) == "dies"
    assert judged(copy, fault, seconds=0) == "dies"
