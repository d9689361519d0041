"""The notebooks under examples/ run from top to bottom, and what their last cells show is there."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))


def executed(name: str) -> tuple[dict[str, Any], list[Any]]:
    """Run a notebook's cells in one namespace; returns it, and what each cell shows."""
    space: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), space)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), name, "eval"), space))
    return space, [each for each in shown if each is not None]


def test_there_is_a_notebook_for_each_kind_of_federation() -> None:
    assert NOTEBOOKS == ["arbiter.ipynb", "credit.ipynb", "curves.ipynb", "six-parties.ipynb"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    tree = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))
    assert tree["nbformat"] == 4
    for cell in tree["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
def test_the_notebook_on_credit_scores_the_model_beside_the_bank_alone() -> None:
    space, shown = executed("credit.ipynb")
    assert space["quality"].alone_by
    assert space["quality"].figures["AUC"].together > 0.6
    assert len(space["prediction"].to_frame()) == len(space["test"]["bank"])
    assert shown[-1]._repr_html_().startswith("<iframe")


@pytest.mark.slow
def test_the_notebook_with_an_arbiter_shows_each_party_its_own_coefficients() -> None:
    space, shown = executed("arbiter.ipynb")
    coefficients = next(each for each in shown if isinstance(each, dict))
    for name, columns in space["columns"].items():
        assert {each.removesuffix(" missing") for each in coefficients[name]} - {"intercept"} == set(columns)
    assert space["quality"].figures["AUC"].together > 0.6


@pytest.mark.slow
def test_the_notebook_with_six_parties_draws_its_history_and_finds_less_behind_a_defence() -> None:
    space, shown = executed("six-parties.ipynb")
    assert len(space["run"].plan.roles.parties) == 6
    drawn = {line.get_label() for figure in shown if hasattr(figure, "axes") for line in figure.axes[0].lines}
    assert drawn == {"label holder: loss", "label holder: validation loss"}
    assert shown[-1]["bare"] > shown[-1]["defended"]


@pytest.mark.slow
def test_the_notebook_on_curves_predicts_better_than_the_mean_curve() -> None:
    space, _ = executed("curves.ipynb")
    assert set(space["company"].selected_)
    figure = space["evaluate"](
        space["company"], space["prediction"], space["train"]["company"], space["test"]["company"]
    ).figures["OverMean"]
    assert figure.surely == -1
