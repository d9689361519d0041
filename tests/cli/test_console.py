from typing import Any

import pytest

from colonnade.cli.console import Progress, complain, say, warn


def test_a_terminal_obeys_nothing_of_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    say("shop stopped: \x1b[2J\x07[bold]not bold[/bold]\nnext line")
    assert capsys.readouterr().out == "shop stopped: ?[2J?[bold]not bold[/bold]\nnext line\n"


def test_an_error_is_followed_by_its_notes_on_the_error_stream(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValueError()
    error.add_note("This happened at bank.")
    complain("Error: it went wrong.", error)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Error: it went wrong.\nThis happened at bank.\n")


def test_a_warning_is_red_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    warn("NOT PRIVATE")
    assert capsys.readouterr().err == "\x1b[31mNOT PRIVATE\x1b[0m\n"


def told(capsys: pytest.CaptureFixture[str], **times: Any) -> list[str]:
    with Progress(**times) as progress:
        progress.wait(["shop", "telco"], 60.0)
        progress.wait(["shop", "telco"], 59.0)
        progress.wait(["telco"], 58.0)
        progress.wait([], 57.0)
        progress.step("bank", "train", 1, 3, {"loss": 0.5})
        progress.step("bank", "train", 2, 3, {"loss": 0.25})
        progress.step("bank", "train", 3, 3, {"loss": 0.125})
    return capsys.readouterr().err.splitlines()


def test_away_from_a_terminal_a_wait_is_said_once_for_each_who_is_awaited(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys) == [
        "Waiting for shop, telco, for 60 more seconds.",
        "Waiting for telco, for 58 more seconds.",
        "Waiting until all others are there, for 57 more seconds.",
        "train: step 3 of 3  loss 0.125",
    ]


def test_what_lasts_is_said_again_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(told(capsys, waits_every_s=-1.0, steps_every_s=-1.0)) == 7


def test_on_a_terminal_the_line_is_live(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    shown = "\n".join(told(capsys))
    assert "Waiting for shop, telco, 60 s left" in shown
    assert "3 of 3  loss 0.125" in shown
