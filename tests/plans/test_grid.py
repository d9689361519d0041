"""Grid plans: which trials they stand for, and what they refuse before any of them runs."""

from pathlib import Path

import pytest

from colonnade.errors import DataError, PlanError
from colonnade.experiment.sweep import Trial
from colonnade.plans.grid import GridPlan, planned
from colonnade.plans.plan import Plan

BASE = """
[data]
name = "breast-cancer"
rows = 120
[roles]
label = "bank"
features = ["shop"]
[model]
name = "split-classifier"
epochs = 2
"""


def read(tmp_path: Path, text: str) -> GridPlan:
    path = tmp_path / "grid.toml"
    path.write_text(text, encoding="utf-8")
    return GridPlan.read(path)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(PlanError) as caught:
        read(tmp_path, text).check()
    return str(caught.value)


def test_every_alternative_goes_with_every_other_one_but_for_what_is_excluded(tmp_path):
    grid = read(
        tmp_path,
        BASE
        + """
        [sweep]
        seeds = [3, 5]
        exclude = [{"model.epochs" = 4, "defences.bank" = {name = "gradient-noise", ratio = 10}}]
        [sweep.vary]
        "model.epochs" = [2, 4]
        "defences.bank" = ["none", "max-norm", {name = "gradient-noise", ratio = 10}]
        """,
    )
    assert grid.sweep.seeds == (3, 5)
    assert len(grid.combinations) == 2 * 3 - 1
    held = [
        (each.plan().trained.parameters["epochs"], [d.name for d in each.plan().defences]) for each in grid.combinations
    ]
    assert held == [(2, []), (2, ["max-norm"]), (2, ["gradient-noise"]), (4, []), (4, ["max-norm"])]


def test_keys_may_be_nested_or_written_with_dots(tmp_path):
    dotted = read(tmp_path, BASE + '[sweep.vary]\n"model.epochs" = [1, 2]\n')
    nested = read(tmp_path, BASE + "[sweep.vary.model]\nepochs = [1, 2]\n")
    assert dotted.combinations == nested.combinations


def test_the_order_of_keys_and_spelled_out_defaults_make_no_other_trial(tmp_path):
    def keys(text: str) -> set[str]:
        return {Trial(each.configuration(), 0).key for each in read(tmp_path, text).combinations}

    vary = '"model.epochs" = [1, 2]\n"data.test" = [0.25, 0.5]\n'
    turned = '"data.test" = [0.5, 0.25]\n"model.epochs" = [2, 1]\n'
    plain = keys(BASE + "[sweep.vary]\n" + vary)
    assert len(plain) == 4
    assert keys(BASE + "[sweep.vary]\n" + turned) == plain
    assert keys(BASE + "[audit]\nnulls = 20\n[run]\nkeep = 'audit'\n[sweep.vary]\n" + vary) == plain
    assert not keys(BASE + "[audit]\nnulls = 21\n[sweep.vary]\n" + vary) & plain


def test_a_trials_seed_takes_the_place_of_every_seed_that_the_plan_does_not_state(tmp_path):
    grid = read(tmp_path, BASE + "[evaluate]\n[audit]\nseed = 9\n[sweep]\nseeds = [4]\n")
    (combination,) = grid.combinations
    plan = planned(combination.configuration(), 4)
    assert (plan.seed, plan.data.seed, plan.evaluate.seed, plan.audit.seed) == (4, 4, 4, 9)


def test_a_configuration_gives_back_the_plan_that_it_comes_from(tmp_path):
    held = '[[defences]]\nparty = "shop"\nname = "sign-hash"\n'
    text = BASE + held + '[sweep.vary]\n"defences.bank" = [["max-norm", "marvell"]]\n'
    (combination,) = read(tmp_path, text).combinations
    plan = planned(combination.configuration(), 0)
    assert [(each.party, each.name) for each in plan.defences] == [
        ("shop", "sign-hash"),
        ("bank", "max-norm"),
        ("bank", "marvell"),
    ]
    assert plan.to_toml() == combination.plan().to_toml()


def test_a_file_that_changes_after_planning_is_refused(tmp_path):
    for party, more in (("bank", "late"), ("shop", "spend")):
        (tmp_path / f"{party}.csv").write_text(f"id,{more}\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    text = """
    [data.bank]
    path = "bank.csv"
    ids = "id"
    labels = "late"
    [data.shop]
    path = "shop.csv"
    ids = "id"
    [roles]
    label = "bank"
    features = ["shop"]
    [model]
    name = "split-classifier"
    [sweep]
    """
    (combination,) = read(tmp_path, text).combinations
    configuration = combination.configuration()
    assert planned(configuration, 0).data.tables["shop"].path == tmp_path / "shop.csv"
    (tmp_path / "shop.csv").write_text("id,spend\n1,2\n")
    with pytest.raises(
        DataError, match=r"shop.csv should be the file that the sweep was planned with, but it has changed"
    ):
        planned(configuration, 0)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("", "should have a section [sweep], but has none. Write [sweep]"),
        (
            "[sweep]\nseed = 1",
            "[sweep] takes seeds, vary, exclude, but has the key 'seed'. The nearest name is 'seeds'.",
        ),
        ("[sweep]\nseeds = []", "seeds should be different whole numbers of at least 0, but is []."),
        ("[sweep]\nseeds = [1, 1]", "seeds should be different whole numbers of at least 0, but is [1, 1]."),
        ("[sweep.vary]\n'model.epochs' = 3", "model.epochs should be a list of alternatives, but is 3."),
        ("[sweep.vary]\n'model.epochs' = []", "model.epochs should be a list of alternatives, but is []."),
        ("[sweep.vary]\n'model.epochs' = [3, 3]", "should list each alternative once, but one is there twice."),
        ("[sweep.vary]\n'modle.epochs' = [3]", "but has 'modle.epochs'. The nearest name is 'model'."),
        ("[sweep.vary]\nseed = [3]", "Seeds of a sweep stand under [sweep] seeds, but [sweep.vary] has 'seed'."),
        ("[sweep.vary]\ndefences = [[]]", "such as 'defences.bank', but has 'defences'. Name one party."),
        ("[sweep.vary]\n'defences.bank' = [3]", 'takes "none", the name of a defence, a section without a party'),
        ("[sweep.vary]\n'model.epochs.x' = [3]", "should lie in a section, but epochs is 2 in the plan."),
        (
            "[sweep]\nexclude = [{'model.epoch' = 3}]\n[sweep.vary]\n'model.epochs' = [3]",
            "exclude should name keys of [sweep.vary], but names 'model.epoch'. The nearest name is 'model.epochs'.",
        ),
        (
            "[sweep]\nexclude = [{'model.epochs' = 4}]\n[sweep.vary]\n'model.epochs' = [3, 5]",
            "exclude should name alternatives of model.epochs, but names 4; there are 3, 5. Correct the value.",
        ),
        (
            "[sweep]\nexclude = [{'model.epochs' = 3}]\n[sweep.vary]\n'model.epochs' = [3]",
            "[sweep] should leave a combination or more, but exclude leaves none.",
        ),
        ("[sweep]\n[engine]\nname = 'rey'", "[engine] name should be"),
        ("[align]\n[sweep]", "The plan of a sweep should not have 'align'"),
        # What is wrong with every combination is told once, as an ordinary plan tells it.
        ("[sweep.vary]\n'model.epoch' = [3, 4]", "but has the key 'epoch'. The nearest name is 'epochs'."),
        ("[audit]\nnull = 3\n[sweep]", "but has the key 'null'. The nearest name is 'nulls'."),
    ],
)
def test_what_is_wrong_with_a_grid_is_told_before_anything_runs(tmp_path, section, words):
    assert words in refusal(tmp_path, BASE + section)


def test_impossible_combinations_are_named_by_their_keys(tmp_path):
    text = """
    [sweep.vary]
    "model.name" = ["split-classifier", "logistic-regression"]
    "defences.bank" = ["none", "max-norm"]
    """
    said = refusal(tmp_path, BASE.replace("epochs = 2", "") + text)
    first, line = said.splitlines()
    assert first == (
        "All 4 combinations of a sweep should be possible, but 1 is not. Correct the plan, or leave them out under "
        "[sweep] exclude:"
    )
    assert line.startswith('  model.name = "logistic-regression", defences.bank = "max-norm": bank holds MaxNorm')
    excluded = 'exclude = [{"model.name" = "logistic-regression", "defences.bank" = "max-norm"}]'
    read(tmp_path, BASE.replace("epochs = 2", "") + f"[sweep]\n{excluded}" + text).check()


@pytest.mark.parametrize("alternatives", ['["none"]', '["none", "max-norm"]'])
def test_defences_of_a_party_without_a_role_name_the_nearest_and_advise_no_exclusion(tmp_path, alternatives):
    assert refusal(tmp_path, BASE + f'[sweep.vary]\n"defences.bnk" = {alternatives}\n') == (
        "[sweep.vary] defences.bnk should name a party with a role, which is bank, shop, but names 'bnk'. The nearest "
        "name is 'bank'. Correct the key."
    )


def test_a_party_that_has_a_role_in_some_combinations_may_hold_none_in_the_others(tmp_path):
    text = BASE.replace('"breast-cancer"', '"bank-shop-telco"')
    text += '[sweep.vary]\n"roles.features" = [["shop"], ["shop", "telco"]]\n"defences.telco" = ["none"]\n'
    read(tmp_path, text).check()


def test_a_set_whose_file_is_missing_is_found_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.delenv("COLONNADE_DATA", raising=False)
    said = refusal(tmp_path, BASE + '[sweep.vary]\n"data.name" = ["breast-cancer", "adult"]\n')
    assert '  data.name = "adult": ' in said
    assert "COLONNADE_DATA" in said


def test_a_name_that_is_no_name_of_a_file_is_refused(tmp_path):
    said = refusal(tmp_path, f"name = '../elsewhere'\n{BASE}[sweep]\n")
    assert said.startswith("Names of plans and parties should be letters, digits, spaces, '-' and '_'")


def test_an_ordinary_command_names_the_command_for_sweeps(tmp_path):
    read(tmp_path, BASE + "[sweep]\n")
    with pytest.raises(PlanError, match=r"its section \[sweep\] stands for many. Run: colonnade sweep"):
        Plan.read(tmp_path / "grid.toml")
