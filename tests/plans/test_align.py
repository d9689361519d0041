"""The section [align] of a plan."""

from dataclasses import replace
from pathlib import Path

import pytest

from colonnade.data import intersect
from colonnade.errors import DataError, PlanError
from colonnade.plans.align import PlannedAlign
from colonnade.plans.plan import Plan
from colonnade.plans.sections import PlannedData, PlannedModel
from colonnade.roles import Roles

PLAN = Plan(
    PlannedData("bank-shop-telco", rows=400),
    Roles(label="bank", features=("shop", "telco")),
    PlannedModel("split-classifier", {"epochs": 1}),
)
TEXT = """
[data]
name = "bank-shop-telco"
[roles]
label = "bank"
features = ["shop", "telco"]
[model]
name = "split-classifier"
[align]
{align}
"""


def read(tmp_path: Path, align: str) -> Plan:
    path = tmp_path / "plan.toml"
    path.write_text(TEXT.format(align=align))
    return Plan.read(path)


def test_an_empty_section_is_enough(tmp_path: Path) -> None:
    assert read(tmp_path, "").align == PlannedAlign()


def test_a_plan_with_every_key_is_read_and_written_alike(tmp_path: Path) -> None:
    plan = read(
        tmp_path,
        'keys = ["email", "text+integer"]\ntopology = "ring"\nduplicates = "first"\npad = true\nids_per_bucket = 9\n'
        'fewest = 3\nmost_runs = 4\nworkers = 2\n[align.columns]\nbank = ["mail", "name+born"]\n'
        '[align.addresses]\nshop = "shop.example:7432"\n',
    )
    assert plan.align is not None
    assert plan.align.columns == {"bank": ("mail", "name+born")}
    (tmp_path / "again.toml").write_text(plan.to_toml())
    assert Plan.read(tmp_path / "again.toml") == plan
    built = plan.align.build("shop")
    assert (built.limits.fewest, built.limits.most_runs) == (3, 4)
    assert (built.workers, built.process.address) == (2, "shop.example:7432")


def test_what_parties_must_agree_on_is_in_the_public_plan_and_the_rest_is_not() -> None:
    bare, aligned = PLAN.public(), replace(PLAN, align=PlannedAlign()).public()
    assert bare.hash != aligned.hash
    own = PlannedAlign(fewest=7, workers=3, columns={"bank": ("customer",)})
    assert replace(PLAN, align=own).public().hash == aligned.hash
    assert replace(PLAN, align=PlannedAlign(join="left")).public().hash != aligned.hash


@pytest.mark.parametrize(
    ("align", "said"),
    [
        ('key = ["text"]', r"\[align\] takes .* but has the key 'key'. The nearest name is 'keys'"),
        ('topology = "tree"', r"\[align\] topology should be"),
        ('keys = ["txt"]', "'txt' was named"),
        ("workers = 0", "workers should be None or a whole number, at least 1, but is 0"),
        ('[align.columns]\nbnak = ["a"]', r"\[align.columns\] has an entry for bnak, who brings no table.*'bank'"),
        ('[align.addresses]\nbank = "here"', r"\[align.addresses\] should be a host and a port"),
        (
            '[align.columns]\nbank = "mail"',
            r"\[align\] columns.bank should be a list of texts or a section, but is \"mail\"",
        ),
        ('keys = ["text"]\n[align.columns]\nbank = ["a", "b"]', "Each of the 1 keys .* but 2 were named"),
    ],
)
def test_a_section_that_cannot_be_followed_is_refused(tmp_path: Path, align: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        read(tmp_path, align)


FILES = """
[data.bank]
path = "bank.csv"
ids = "no"
columns = ["income"]
[data.shop]
path = "shop.csv"
ids = "no"
[roles]
label = "bank"
features = ["shop"]
[align]
fewest = 1
"""


def align_files(tmp_path: Path, align: str) -> dict[str, list[str]]:
    """The aligned ids of both parties, whose people are 1 and 2, and 2 and 3."""
    (tmp_path / "bank.csv").write_text("no,tel,code,income\n1,0041791111111,007,5\n2,0041792222222,08001,6\n")
    (tmp_path / "shop.csv").write_text("no,tel,code,spend\n2,079 222 22 22,08001,1.5\n3,0793333333,7,2.5\n")
    return aligned_ids(tmp_path, align)


def aligned_ids(tmp_path: Path, align: str) -> dict[str, list[str]]:
    """The aligned ids of both parties' files."""
    (tmp_path / "plan.toml").write_text(FILES + align)
    plan = Plan.read(tmp_path / "plan.toml")
    tables = plan.data.load(plan.roles.holders, plan.align)
    results = plan.alignment(tables).run().results
    return {name: [str(each) for each in results[name].take(table).ids.to_pylist()] for name, table in tables.items()}


@pytest.mark.parametrize(("rule", "column"), [("phone:41", "tel"), ("text", "code"), ("exact", "code"), ("text", "no")])
def test_what_people_are_matched_by_is_read_from_a_csv_as_it_stands(tmp_path: Path, rule: str, column: str) -> None:
    columns = f'[align.columns]\nbank = ["{column}"]\nshop = ["{column}"]\n' if column != "no" else ""
    assert align_files(tmp_path, f'keys = ["{rule}"]\n{columns}') == {"bank": ["2"], "shop": ["2"]}


def test_columns_of_keys_need_not_be_among_those_that_are_used(tmp_path: Path) -> None:
    align_files(tmp_path, 'keys = ["text"]\n[align.columns]\nbank = ["code"]\nshop = ["code"]\n')
    plan = Plan.read(tmp_path / "plan.toml")
    run = plan.alignment(held := plan.data.load(plan.roles.holders, plan.align)).run()
    assert held["bank"].columns == ("income", "code")
    assert run.results["bank"].take(held["bank"]).columns == ("income",)


def test_columns_without_keys_are_read_by_what_they_hold(tmp_path: Path) -> None:
    """The bank is matched by its ids, the shop by another column of whole numbers, one of them missing."""
    (tmp_path / "bank.csv").write_text("no,income\n1,5\n2,6\n")
    (tmp_path / "shop.csv").write_text("no,customer,spend\nx,2.0,1.5\ny,3.0,2.5\nz,,3.5\n")
    assert aligned_ids(tmp_path, '[align.columns]\nshop = ["customer"]\n') == {"bank": ["2"], "shop": ["x"]}


@pytest.mark.parametrize("rule", ["exact", "text", "integer"])
def test_whole_numbers_with_gaps_meet_those_without(tmp_path: Path, rule: str) -> None:
    (tmp_path / "bank.csv").write_text("no,income\n1.0,5\n2.0,6\n,7\n")
    (tmp_path / "shop.csv").write_text("no,spend\n2,1.5\n3,2.5\n")
    assert aligned_ids(tmp_path, f'keys = ["{rule}"]\n') == {"bank": ["2"], "shop": ["2"]}


@pytest.mark.parametrize("rule", ["exact", "integer"])
def test_the_rules_that_a_refusal_names_match_ids_that_have_zeros_in_front_on_one_side_only(
    tmp_path: Path, rule: str
) -> None:
    (tmp_path / "bank.csv").write_text("no,income\n09999,5\n10000,6\n")
    (tmp_path / "shop.csv").write_text("no,spend\n10000,1.5\n10001,2.5\n")
    found = aligned_ids(tmp_path, f'keys = ["{rule}"]\n')
    assert found == {"bank": ["10000"], "shop": ["10000"]}
    plan = Plan.read(tmp_path / "plan.toml")
    with pytest.raises(DataError, match=rf'\["{rule}"\]'):
        intersect(plan.data.load(plan.roles.holders))
