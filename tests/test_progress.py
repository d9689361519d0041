"""Bars are drawn on the error stream where they are wanted, and nowhere else."""

from __future__ import annotations

import pytest

from colonnade.progress import Bars


def test_a_bar_that_is_not_wanted_draws_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars(shown=False) as bars:
        bars.update("train", 1, 2, {"loss": 0.5})
        bars.remove("train")
        assert list(bars.track("alphas", [1, 2])) == [1, 2]
    assert capsys.readouterr() == ("", "")


def test_a_bar_shows_the_loop_its_steps_and_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars(shown=True) as bars:
        bars.update("train", 2, 3, {"loss": 0.125})
    out, err = capsys.readouterr()
    assert out == ""
    for words in ("train", "2 of 3", "loss 0.125"):
        assert words in err


def test_a_counter_counts_to_its_total_and_not_beyond(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars(shown=True) as bars:
        advance = bars.counter("null runs", 2)
        for _ in range(3):
            advance()
    err = capsys.readouterr().err
    assert "2 of 2" in err
    assert "3 of 2" not in err
