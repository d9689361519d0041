import os

import pytest

from tests.commands import ended

SMALL = ["--rows", "80", "--inputs", "3", "--active", "1", "--size", "6", "--replicates", "1", "--workers", "2"]


def colonnade(*arguments, folder):
    return ended("functional", *arguments, cwd=folder, env=os.environ)


@pytest.mark.slow
def test_curves_are_generated_run_and_reported(tmp_path):
    made = colonnade("generate", "curves", *SMALL, folder=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "1 replicates of 80 records with 3 inputs" in made.stdout
    again = colonnade("generate", "curves", *SMALL, folder=tmp_path)
    assert again.returncode == 2
    assert "generations must not be mixed" in again.stderr
    run = colonnade("run", "curves", "--folds", 2, "--jobs", 1, "--clip", 3, "--epsilon", 5, folder=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "RIL2" in run.stdout
    assert "predicting the mean" in run.stdout
    report = colonnade("report", "curves", folder=tmp_path)
    assert "Consider less noise" in report.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "x", "--active", "a"], "--active should be whole numbers with commas between them, but is 'a'"),
        (["generate", "x", "--inputs", "3", "--active", "4"], "active should be numbers from 1 to 3, but is (4,)"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(tmp_path, arguments, words):
    done = colonnade(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr.replace("\n", " ")
