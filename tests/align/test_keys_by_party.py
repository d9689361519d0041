"""A key for each feature party: rows of the label party looked up by another id at each of them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from colonnade import Roles, Table, simulate
from colonnade.align import Align, Limits, Settings
from colonnade.align.messages import AlignTerms
from colonnade.align.protocol import Aligned
from colonnade.errors import DataError, PlanError, PrivacyError, ProtocolError
from colonnade.models.networks.messages import Gradient
from colonnade.models.networks.split import SplitClassifier
from colonnade.plans.plan import Plan
from colonnade.wire.channel import Channel

ROLES = Roles(label="airline", features=("weather", "fleet"))
KEYS = {"fleet": "text", "weather": "text+integer"}
COLUMNS = {"airline": {"fleet": "tail", "weather": "airport+hour"}, "weather": ["place+h"]}


def flights(n: int = 120, seed: int = 0) -> dict[str, Table]:
    """Flights with an aircraft that the fleet may not know, and an airport and hour that have weather or not."""
    random = np.random.default_rng(seed)
    tail, airport, hour = random.integers(0, 25, n), random.integers(0, 3, n), random.integers(0, 24, n)
    known, hours = random.permutation(30)[:24], random.permutation(72)[:66]
    return {
        "airline": Table.of(
            {
                "flight": np.arange(n),
                "tail": [f"N{number}" if number else None for number in tail],
                "airport": [f"AP{number}" for number in airport],
                "hour": hour,
                "late": random.integers(0, 2, n),
            },
            ids="flight",
            labels="late",
        ),
        "fleet": Table.of({"id": [f" n{number}" for number in known], "seats": 10.0 * known}),
        "weather": Table.of(
            {"no": np.arange(66), "place": [f"ap{at // 24}" for at in hours], "h": hours % 24, "wind": 1.0 * hours},
            ids="no",
        ),
    }


def aligned(tables, *, limits=None, columns=None, features=None, **settings):
    align = Align(
        Settings(keys=KEYS, **settings),
        COLUMNS if columns is None else columns,
        limits or Limits(fewest=1),
        workers=1,
        features=features or {},
    )
    return simulate(align, tables, roles=ROLES, keep="all")


@pytest.mark.parametrize("join", ["inner", "left"])
@pytest.mark.parametrize("ids_per_bucket", [None, 9])
def test_each_row_of_the_label_party_finds_its_row_at_every_feature_party_by_that_partys_key(join, ids_per_bucket):
    tables = flights()
    run = aligned(tables, join=join, ids_per_bucket=ids_per_bucket)
    held = tables["airline"].take(run.results["airline"].rows).to_arrow().to_pylist()
    seats = {name.strip().upper(): n for name, n in zip(*tables["fleet"].to_arrow().to_pydict().values(), strict=True)}
    wind = {(row["place"].upper(), row["h"]): row["wind"] for row in tables["weather"].to_arrow().to_pylist()}
    wanted = [(seats.get(row["tail"]), wind.get((row["airport"], row["hour"]))) for row in held]
    found = [run.results[name].take(tables[name]).to_arrow() for name in ("fleet", "weather")]
    assert list(zip(found[0]["seats"].to_pylist(), found[1]["wind"].to_pylist(), strict=True)) == wanted
    everybody = tables["airline"].to_arrow().to_pylist()
    complete = sum(row["tail"] in seats and (row["airport"], row["hour"]) in wind for row in everybody)
    assert len(held) == (len(everybody) if join == "left" else complete)
    assert 0 < complete < len(everybody)
    if join == "left":
        partners = run.results["airline"].partners
        assert (partners["weather"] == [value is not None for _, value in wanted]).all()


def test_a_feature_party_sees_no_count_and_no_id_of_another_partys_key():
    run = aligned(flights())
    (opening,) = (e for e in run.transcripts["fleet"].entries if e.kind == "align/opening")
    masked = [e for e in run.transcripts["fleet"].entries if e.kind == "align/masked" and not e.sent]
    assert opening.peer == "airline"
    # 24 tail numbers of airline's 25 are known; its airports and hours are not sent here.
    assert len(masked) == 1
    told = " ".join(event.note for event in run.ledgers["airline"].events)
    n_hours = len({(row["airport"], row["hour"]) for row in flights()["airline"].to_arrow().to_pylist()})
    assert "fleet learns that airline has 24 ids" in told
    assert f"weather learns that airline has {n_hours} ids" in told
    assert "fleet learns in which of the aligned rows each of its ids stands" in told
    assert f"{n_hours}" not in " ".join(run.results["fleet"].learned)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"fewest": 60}, "at least 60 ids under each key, but airline itself brings 24"),
        ({"fewest": 1, "most_common": 40}, "airline and weather should have at most 40 ids in common"),
        ({"fewest": 1, "most_ids": 50}, "weather should bring at most 50 ids under each key, but brings 66"),
        ({"fewest": 1, "fewest_common": 23}, "airline and fleet should have at least 23 ids in common"),
    ],
)
def test_the_limits_hold_for_each_key(limits, words):
    with pytest.raises(PrivacyError, match=words):
        aligned(flights(), limits=Limits(**limits))


def test_a_count_of_ids_under_another_partys_key_is_refused():
    class Crooked(Channel):
        def send(self, message, **options):
            if isinstance(message, AlignTerms):
                message = replace(message, ids=[message.ids[0], 10**9])
            super().send(message, **options)

    def play(party, honest):
        lines = {name: Crooked(name, line._transport, line._recording) for name, line in party.peers.items()}
        return honest(replace(party, peers=lines))

    align = Align(Settings(keys=KEYS), COLUMNS, Limits(fewest=1), workers=1)
    with pytest.raises(ProtocolError, match="Expected fleet to count ids under its pair's own key only"):
        simulate(align, flights(), roles=ROLES, instead={"fleet": play})


def test_rows_that_many_rows_look_up_count_once_as_common():
    run = aligned(flights(), join="left")
    fleet, airline = run.results["fleet"].rows, run.results["airline"]
    assert run.results["fleet"].n_common == len(set(fleet[fleet >= 0])) < (fleet >= 0).sum()
    assert airline.n_common == min(mask.sum() for mask in airline.partners.values()) < len(airline.rows)
    assert replace(airline, partners={}).n_common == len(airline.rows), "an inner join has no partners to count with"


def test_an_aligned_run_is_repeated_on_the_rows_that_it_trained_on():
    align = Align(Settings(keys=KEYS), COLUMNS, Limits(fewest=1), workers=1)
    run = simulate(Aligned(align, SplitClassifier(epochs=1, batch_size=32).fit), flights(), roles=ROLES)
    again = pickle.loads(pickle.dumps(run.on_aligned_rows().simulation)).run()
    trained = [
        [recorded.rows.tolist() for recorded in each.transcripts["fleet"].messages(Gradient)] for each in (run, again)
    ]
    assert trained[0] == trained[1]
    assert run.on_aligned_rows().simulation.changed(seed=1).shared is None


def test_every_pair_counts_one_alignment(tmp_path):
    aligned(flights(), limits=Limits(fewest=1, log=tmp_path / "log"))
    assert (tmp_path / "log").read_text().count('"aligned"') == 4, "two at airline, one at each other party"


def test_a_feature_party_that_repeats_an_id_is_refused_or_brings_its_first_row():
    tables = flights()
    fleet = tables["fleet"].to_arrow()
    tables["fleet"] = Table.of({"id": fleet["id"].to_pylist() * 2, "seats": [*range(24), *range(100, 124)]})
    with pytest.raises(DataError, match="fleet should have one row for each id, but 24 of 48 rows repeat"):
        aligned(tables)
    taken = aligned(tables, duplicates="first").results["fleet"].take(tables["fleet"])
    assert taken.column("seats").max() < 24


def test_columns_of_keys_are_features_if_the_party_says_so():
    tables = flights()
    taken = aligned(tables, features={"airline": ["hour", "airport"]}).results["airline"].take(tables["airline"])
    assert taken.columns == ("airport", "hour")
    with pytest.raises(PlanError, match="should name columns of its keys, which are tail, airport, hour, but names"):
        aligned(tables, features={"airline": ["hours"]})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"topology": "ring"}, "a key for each feature party requires topology = 'star', but topology is 'ring'"),
        ({"reveal": "one"}, "a key for each feature party requires reveal = 'both', but reveal is 'one'"),
        ({"engine": "rr22"}, "a key for each feature party requires engine = 'ecdh', but engine is 'rr22'"),
        ({"duplicates": "all"}, "requires duplicates = 'error' or 'first', but duplicates is 'all'"),
    ],
)
def test_settings_that_do_not_go_with_a_key_for_each_party_are_refused(settings, words):
    with pytest.raises(PlanError, match=words):
        Settings(keys=KEYS, **settings)


def test_every_feature_party_needs_a_key_and_the_label_party_a_column_for_each():
    with pytest.raises(PlanError, match="should have a key for each of weather, fleet, whom airline is compared with"):
        simulate(Align(Settings(keys={"fleet": "text"}), COLUMNS), flights(), roles=ROLES)
    for columns in ({}, {"airline": {"fleet": "tail"}}, {"airline": ["tail"]}):
        with pytest.raises(PlanError, match="airline should name its columns for each of fleet, weather"):
            aligned(flights(), columns=columns)
    for wrong in (["place", "h"], {"weather": "place+h"}, []):
        with pytest.raises(PlanError, match="weather should name its columns for one key, as a list of one text"):
            aligned(flights(), columns={**COLUMNS, "weather": wrong})
    with pytest.raises(PlanError, match="columns of airline should be a list with one for each key, but are given by"):
        simulate(Align(Settings(keys=("text",)), COLUMNS), flights(), roles=ROLES)


PLAN = """
[data.airline]
path = "airline.parquet"
ids = "flight"
labels = "late"
[data.fleet]
path = "fleet.parquet"
ids = "id"
[data.weather]
path = "weather.parquet"
ids = "no"
[roles]
label = "airline"
features = ["fleet", "weather"]
[align]
fewest = 1
join = "left"
[align.keys]
fleet = "text"
weather = "text+integer"
[align.columns]
weather = ["place+h"]
[align.columns.airline]
fleet = "tail"
weather = "airport+hour"
[align.features]
airline = ["airport", "hour"]
[model]
name = "split-classifier"
epochs = 1
overlap = "partial"
[audit]
attacks = ["norm-score"]
nulls = 1
"""


def test_a_plan_gives_each_feature_party_a_key_and_trains(tmp_path):
    import pyarrow.parquet as pq

    from colonnade.experiment.run_folder import RunFolder

    for name, table in flights().items():
        pq.write_table(table.to_arrow(), tmp_path / f"{name}.parquet")
    (tmp_path / "plan.toml").write_text(PLAN)
    plan = Plan.read(tmp_path / "plan.toml")
    (tmp_path / "again.toml").write_text(plan.to_toml())
    assert Plan.read(tmp_path / "again.toml").hash == plan.hash
    assert plan.public().settings["align"]["keys"] == {"fleet": "text", "weather": "text+integer"}
    folder = RunFolder.create(plan, tmp_path / "runs")
    run = folder.simulate()
    assert run.simulation.tables["airline"].columns == ("airport", "hour")
    assert folder.audit().attacks


def test_a_plan_without_a_key_for_a_feature_party_is_refused(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN.replace('fleet = "text"\n', ""))
    with pytest.raises(PlanError, match="should have a key for each of fleet, weather"):
        Plan.read(tmp_path / "plan.toml")


def test_a_left_join_that_would_leave_a_feature_party_without_curves_is_refused_before_anything_is_sent():
    from colonnade.curves import BSplines, Curves

    curves = Curves(np.ones((3, 4)), BSplines((0, 1), 4))
    tables = {
        "bank": Table.of({"id": [1, 2, 3], "late": [0, 1, 0]}, labels="late"),
        "shop": Table.of({"id": [1, 2, 4], "day": curves}),
    }
    with pytest.raises(DataError, match="gives shop rows without values, but its column 'day' holds curves"):
        simulate(
            Align(Settings(join="left"), limits=Limits(fewest=1)), tables, roles=Roles(label="bank", features=("shop",))
        )
