import inspect
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from colonnade.catalogue import DEFENCES, MODELS
from colonnade.errors import DataError, PlanError
from colonnade.plans.plan import Plan
from colonnade.plans.sections import PlannedAudit, PlannedData, PlannedDefence, PlannedModel, PlannedRun, PlannedTable
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
PAGE = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")

TWO = """
[data]
name = "breast-cancer"

[roles]
label = "bank"
features = ["shop"]

[model]
name = "split-classifier"
"""
FILES = """
[data.bank]
path = "bank.csv"
ids = "id"
labels = "late"

[data.shop]
path = "tables/shop.csv"
ids = "customer"
columns = ["spend"]

[roles]
label = "bank"
features = ["shop"]

[model]
name = "split-classifier"
"""


def read(tmp_path: Path, text: str) -> Plan:
    path = tmp_path / "credit.toml"
    path.write_text(text, encoding="utf-8")
    return Plan.read(path)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(PlanError) as caught:
        read(tmp_path, text)
    return str(caught.value)


def built(**changes: Any) -> Plan:
    plan = Plan(PlannedData("breast-cancer"), Roles(label="bank", features=("shop",)), PlannedModel("split-classifier"))
    return replace(plan, **changes)


def test_a_plan_read_from_a_file_is_the_one_built_in_python(tmp_path: Path) -> None:
    text = """
    seed = 7
    [data]
    name = "bank-shop-telco"
    rows = 500
    seed = 3
    test = 0.5
    [roles]
    label = "bank"
    features = ["telco", "shop"]
    [model]
    name = "split-classifier"
    learning_rate = 1
    top = "none"
    fusion = "sum"
    [[defences]]
    party = "bank"
    name = "gradient-noise"
    ratio = 2
    [audit]
    attacks = ["norm-score"]
    nulls = 5
    [run]
    keep = "all"
    """
    assert read(tmp_path, text) == Plan(
        PlannedData("bank-shop-telco", rows=500, seed=3, test=0.5),
        Roles(label="bank", features=("telco", "shop")),
        PlannedModel("split-classifier", {"learning_rate": 1.0, "top": None, "fusion": "sum"}),
        (PlannedDefence("bank", "gradient-noise", {"ratio": 2.0}),),
        PlannedAudit(("norm-score",), nulls=5),
        PlannedRun(keep="all"),
        seed=7,
        name="credit",
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_survives_being_written_and_read(path: Path, tmp_path: Path) -> None:
    plan = Plan.read(path)
    again = read(tmp_path, plan.to_toml())
    assert (again, again.hash, again.name) == (plan, plan.hash, path.stem)


def test_there_is_an_example_for_every_built_in_set() -> None:
    assert {Plan.read(path).data.name for path in EXAMPLES} == {"bank-shop-telco", "breast-cancer", "digits"}


def test_a_none_that_is_no_default_survives_being_written_and_read(tmp_path: Path) -> None:
    plan = built(model=PlannedModel("split-classifier", {"n_iter_no_change": None}))
    assert read(tmp_path, plan.to_toml()).model.parameters == {"n_iter_no_change": None}


def test_every_part_of_a_plan_changes_its_hash() -> None:
    plans = [
        built(),
        built(seed=1),
        built(name="other"),
        built(data=PlannedData("breast-cancer", test=0.5)),
        built(roles=Roles(label="shop", features=("bank",))),
        built(model=PlannedModel("split-classifier", {"epochs": 3})),
        built(defences=(PlannedDefence("bank", "gradient-noise"),)),
        built(audit=PlannedAudit(nulls=3)),
        built(run=PlannedRun(keep="all")),
    ]
    assert len({plan.hash for plan in plans}) == len(plans)


def test_a_plan_can_be_a_key() -> None:
    assert {built(): "here"}[built()] == "here"


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("sead = 1", "but has the key 'sead'. The nearest name is 'seed'. Correct the key or leave it out."),
        ("[rolls]\nlabel = 'bank'", "but has the key 'rolls'. The nearest name is 'roles'."),
        (
            "[run]\nkep = 'all'",
            "[run] takes keep, checkpoint_every, received, but has the key 'kep'. The nearest name is 'keep'.",
        ),
        ("[audit]\nnull = 3", "[audit] takes attacks, nulls, seed, delta, thorough, epochs, but has the key 'null'."),
        (
            "[[defences]]\nparty = 'bank'\nname = 'gradient-noise'\nratoi = 3",
            "[[defences]] takes ratio, kind, scale, clip, but has the key 'ratoi'. The nearest name is 'ratio'.",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(tmp_path: Path, added: str, said: str) -> None:
    text = f"{added}\n{TWO}" if "[" not in added else TWO + added
    assert said in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("section", "added", "said"),
    [
        (
            "[data]",
            "row = 9",
            "[data] takes name, rows, seed, test, but has the key 'row'. The nearest name is 'rows'.",
        ),
        ("[roles]", "lable = 'bank'", "[roles] takes features, label, arbiter, server, but has the key 'lable'."),
        ("[model]", "epoch = 3", "precision, but has the key 'epoch'. The nearest name is 'epochs'."),
        ("[model]", "parameters = {}", "but has the key 'parameters'."),
    ],
)
def test_an_unknown_key_of_a_section_is_refused_with_the_section(
    tmp_path: Path, section: str, added: str, said: str
) -> None:
    message = refusal(tmp_path, TWO.replace(section, f"{section}\n{added}"))
    assert message.startswith(section)
    assert said in message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "breast-cancer"', "name = 3", "[data] name should be text"),
        (
            'name = "breast-cancer"',
            'name = "breast-cancer"\ntest = "half"',
            '[data] test should be a number, but is "half"',
        ),
        ('features = ["shop"]', 'features = "shop"', '[roles] features should be a list of texts, but is "shop"'),
        (
            'name = "split-classifier"',
            'name = "split-classifier"\nepochs = 2.5',
            "[model] epochs should be a whole number",
        ),
        (
            'name = "split-classifier"',
            'name = "split-classifier"\nfusion = "add"',
            '[model] fusion should be "concat" or "sum" or "mean", but is "add".',
        ),
        ("[data]", "seed = '1'\n[data]", 'seed should be a whole number, but is "1". Correct the value.'),
        ("[data]", "run = 3\n[data]", "[run] should be a section, but is 3. Correct the value."),
        ("[data]", "defences = 3\n[data]", "[[defences]] should be a list of sections, but is 3. Correct the value."),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert said in refusal(tmp_path, TWO.replace(old, new))


@pytest.mark.parametrize(
    ("old", "said"),
    [
        (
            '[model]\nname = "split-classifier"',
            "A plan should train a model, or align rows, or both, but this one has neither [model] nor [align]. Add a "
            "section [model]; an alignment alone takes a section [align] and no defences.",
        ),
        ('name = "split-classifier"', "[model] needs the key 'name', but it is missing. Add it."),
        ('features = ["shop"]', "[roles] needs the key 'features', but it is missing. Add it."),
        (
            'name = "breast-cancer"',
            "[data] should have a name or a file for each party, but has neither. "
            "Write a name that `colonnade data list` shows, or sections such as [data.bank].",
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, old: str, said: str) -> None:
    assert refusal(tmp_path, TWO.replace(old, "")) == said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"split-classifier"', '"split-clasifier"', ("model 'split-clasifier'", "'split-classifier'")),
        ("[model]", "[audit]\nattacks = ['norm']\n[model]", ("attack 'norm'", "norm-score")),
        (
            "[model]",
            "[[defences]]\nparty = 'bank'\nname = 'noise'\n[model]",
            ("defence 'noise'", "gradient-noise"),
        ),
    ],
)
def test_a_name_that_the_catalogue_does_not_know_is_refused_with_those_it_knows(
    tmp_path: Path, old: str, new: str, said: tuple[str, ...]
) -> None:
    message = refusal(tmp_path, TWO.replace(old, new))
    assert all(words in message for words in said)


def test_a_defence_of_somebody_without_a_role_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, TWO + "[[defences]]\nparty = 'banc'\nname = 'gradient-noise'")
    assert message == (
        "[[defences]] gives gradient-noise to banc, who has no role; those who have are bank, shop. "
        "The nearest name is 'bank'. Correct the party."
    )


def test_a_defence_that_cannot_be_built_is_refused_before_anything_runs(tmp_path: Path) -> None:
    message = refusal(tmp_path, TWO + "[[defences]]\nparty = 'bank'\nname = 'gradient-noise'\nratio = -1")
    assert "GradientNoise's ratio should be a number, above 0" in message


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PlannedData("digits", test=1), "[data] test should lie between 0 and 1, but is 1. Choose a share"),
        (lambda: PlannedAudit(nulls=0), "[audit] nulls should be at least 1, but is 0. Choose a number such as 20."),
        (lambda: PlannedAudit(delta=1), "[audit] delta should be at least 0 and below 1, but is 1. Choose 1e-5 or so."),
        (lambda: PlannedRun(checkpoint_every=0), "[run] checkpoint_every should be at least 1, but is 0. Choose"),
        (
            lambda: PlannedData("digits", {"bank": PlannedTable(Path("bank.csv"), "id")}),
            "[data] takes a name or files, but has the name 'digits' and files of bank. Leave out one of the two.",
        ),
        (
            lambda: PlannedData(tables={"bank": PlannedTable(Path("bank.csv"), "id")}, rows=9),
            "[data] rows is for named sets, but is 9 beside files. Leave it out.",
        ),
    ],
)
def test_a_value_that_means_nothing_is_refused_in_python_too(make: Any, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("name", ["../bank", "bank/shop", "", ".hidden"])
def test_a_name_that_makes_no_folder_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match=r"Names of plans and parties should be letters, digits, spaces, '-' and '_'"):
        built(name=name)


def test_a_role_without_a_table_in_a_named_set_is_refused() -> None:
    plan = built(roles=Roles(label="bank", features=("shopp",)))
    with pytest.raises(PlanError) as caught:
        plan.tables()
    assert str(caught.value) == (
        "[roles] names shopp, but the set 'breast-cancer' has tables of bank, shop only. The nearest name is 'shop'. "
        "Correct the role or choose another set."
    )


def test_files_are_found_from_the_folder_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "bank.csv").write_text("id,income,late\n" + "".join(f"{i},{i},{i % 2}\n" for i in range(8)))
    (tmp_path / "tables" / "shop.csv").write_text(
        "customer,spend,age\n" + "".join(f"{i},{i},9\n" for i in range(20, 1, -1))
    )
    plan = read(tmp_path, FILES)
    monkeypatch.chdir("/")
    tables = plan.tables()
    assert {party: len(table) for party, table in tables.held.items()} == {"bank": 8, "shop": 19}
    assert tables.held["shop"].columns == ("spend",)
    for part in (tables.train, tables.test):
        assert part["bank"].ids.to_pylist() == part["shop"].ids.to_pylist()
    assert sorted(tables.train["bank"].ids.to_pylist() + tables.test["bank"].ids.to_pylist()) == [2, 3, 4, 5, 6, 7]


def test_a_table_that_lacks_its_planned_column_is_a_data_error_of_its_party(tmp_path: Path) -> None:
    (tmp_path / "bank.csv").write_text("id,income\n1,1\n")
    with pytest.raises(DataError, match="bank"):
        read(tmp_path, FILES).tables()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'features = ["shop"]',
            'features = ["shopp"]',
            "[roles] names shopp, but [data] has files of bank, shop only. The nearest name is 'shop'. "
            "Add a section [data.shopp] or correct the role.",
        ),
        (
            'features = ["shop"]',
            'features = ["shop"]\n[data.telco]\npath = "t.csv"\nids = "id"',
            "[data.telco] names a file, but telco has no role that takes one; those who have are bank, shop. "
            "Give telco a role or leave the section out.",
        ),
        (
            'labels = "late"',
            "",
            "bank is the label party, but [data.bank] names no label column. Add the key 'labels'.",
        ),
        ('ids = "customer"', "", "[data.shop] needs the key 'ids', but it is missing. Add it."),
        ('ids = "customer"', "idd = 'id'", "[data.shop] takes path, ids, labels, columns, "),
    ],
)
def test_files_and_roles_must_belong_together(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert refusal(tmp_path, FILES.replace(old, new)).startswith(said)


def test_a_plan_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.read(tmp_path / "none.toml")
    assert str(caught.value) == (
        f"A plan was expected at {tmp_path / 'none.toml'}, but cannot be read: No such file or directory. "
        "Check the path."
    )


@pytest.mark.parametrize("content", [b"seed = = 1", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.toml").write_bytes(content)
    with pytest.raises(PlanError, match=r"plan\.toml should be a plan in TOML, but is not: .+ Correct the file\."):
        Plan.read(tmp_path / "plan.toml")


def test_the_public_part_is_that_of_the_run() -> None:
    plan = built(
        data=PlannedData("breast-cancer", rows=60), model=PlannedModel("split-classifier", {"epochs": 1}), seed=4
    )
    tables = plan.tables().train
    run = simulate(plan.trained.build().fit, tables, roles=plan.roles, seed=4)
    assert plan.public() == run.plan
    assert "breast-cancer" not in plan.public().to_json()


def test_a_plans_simulation_gives_every_party_its_defences_in_order() -> None:
    noise = [PlannedDefence("bank", "gradient-noise", {"ratio": ratio}) for ratio in (1, 2)]
    held = built(defences=tuple(noise)).simulation({}).defences
    assert [defence.name for defence in held["bank"]] == ["GradientNoise(ratio=1)", "GradientNoise(ratio=2)"]


def test_the_seed_of_the_data_and_not_of_the_run_chooses_the_held_out_rows() -> None:
    def held_out(plan: Plan) -> list[int]:
        ids: list[int] = plan.tables().test["bank"].ids.to_pylist()
        return ids

    assert held_out(built(seed=1)) == held_out(built(seed=2))
    assert held_out(built()) != held_out(built(data=PlannedData("breast-cancer", seed=1)))


def test_the_example_of_the_page_can_be_read(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    assert read(tmp_path, example[1]).model.parameters == {"epochs": 2, "n_iter_no_change": None}


def keys_on_page(section: str) -> list[str]:
    table = PAGE[PAGE.index(section) :].split("|---|---|---|---|\n")[1].split("\n\n")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("`[data]` names", [field.name for field in fields(PlannedData) if field.name != "tables"]),
        ("`[data.bank]`", [field.name for field in fields(PlannedTable)]),
        ("`[roles]` says", [field.name for field in fields(Roles)]),
        ("`[audit]` says", [field.name for field in fields(PlannedAudit)]),
        ("`[run]` says", [field.name for field in fields(PlannedRun)]),
        ("`[model]` names", ["name", *inspect.signature(MODELS["split-classifier"]).parameters]),
        ("Each section `[[defences]]`", ["party", "name", *inspect.signature(DEFENCES["gradient-noise"]).parameters]),
        ("At the top:", ["name", "seed"]),
    ],
)
def test_the_page_names_every_key_of_a_section(section: str, keys: list[str]) -> None:
    assert keys_on_page(section) == keys
