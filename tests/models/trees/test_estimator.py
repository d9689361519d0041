"""SecureBoost: the forest of one table, at each number of parties; what crosses, and what is refused."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from colonnade.crypto import hinted
from colonnade.crypto.accelerator import Accelerator
from colonnade.errors import DataError, LeakBudgetSpent, Overflow, PlanError, ProtocolError
from colonnade.models.trees import prediction, protocol
from colonnade.models.trees.bins import BinMatrix, Bins, starts
from colonnade.models.trees.boosting import Boosting, Sampling
from colonnade.models.trees.estimator import SecureBoostClassifier, SecureBoostRegressor
from colonnade.models.trees.grow import PlainSums
from colonnade.models.trees.hidden import MOST_TOTAL
from colonnade.models.trees.hinted_sums import slots_of
from colonnade.models.trees.messages import ChosenSplits, EncryptedRows, NodeRows, SumsQuery
from colonnade.models.trees.protocol import END, SIDES, LabelSide
from colonnade.models.trees.splits import Split
from colonnade.models.trees.storage import splits_array
from colonnade.models.vertical import Vertical
from colonnade.privacy.ledger import Ledger
from colonnade.roles import Roles
from colonnade.runtime.party import shared_randomness
from colonnade.runtime.protocol import public_plan
from colonnade.runtime.simulate import private_randomness, simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.wire.channel import Channel
from colonnade.wire.codec import decode
from colonnade.wire.message import Message

NAMES = ("bank", "shop", "telco", "insurer", "clinic", "club")
N = 240
SMALL = {"n_estimators": 3, "max_depth": 3, "max_bin": 5, "leak_budget": None}


def roles(n_features):
    return Roles(label="bank", features=NAMES[1 : 1 + n_features])


def tables_of(n_features, labels, *, own=True, n_rows=N, **extra):
    """Numbers with and without gaps at all parties, and words; labels may depend on all."""
    random = np.random.default_rng(n_features)
    score, tables = random.normal(size=n_rows), {}
    for name in NAMES[: 1 + n_features]:
        x = random.normal(size=(n_rows, 2))
        words = np.array(["a", "b", "c", "d", "e"])[random.integers(0, 5, n_rows)]
        score += x[:, 0] * (1 + x[:, 1] / 2) + (words == "b")
        x[random.random(n_rows) < 0.2, 1] = np.nan
        columns = {f"{name} x": x[:, 0], f"{name} gaps": x[:, 1], f"{name} words": words}
        tables[name] = {"id": np.arange(n_rows)} | (columns if own or name != "bank" else {})
    score /= np.sqrt(n_features)
    made = {
        "binary": (score > 0).astype(int),
        "multiclass": np.array(["low", "mid", "high"])[np.digitize(score, [-1, 1])],
        "squared": 10 * score,
        "poisson": np.floor(np.exp(score / 2)),
    }
    tables["bank"] |= {**extra, "y": made[labels]}
    return {name: Table.of(data, labels="y" if name == "bank" else None, owner=name) for name, data in tables.items()}


def model_of(labels, **changes):
    given = SMALL | changes
    if labels in ("binary", "multiclass"):
        return SecureBoostClassifier(**given)
    return SecureBoostRegressor(objective={"squared": "reg:squarederror", "poisson": "count:poisson"}[labels], **given)


def central(model, tables, run):
    """The same forest grown on one table, by the same mathematics and the same public draws."""
    settings = model._settings().boost
    table = tables["bank"]
    sampling = Sampling(settings, len(table), shared_randomness(run.plan, run.id_digest))
    parts = []
    for name, held in tables.items():
        own = held.select([column for column in held.columns if not (name == "bank" and column == model.sample_weight)])
        parts.append(Bins.learned(own, sampling.parts[0], max_bin=model.max_bin).encode(own))
    columns = tuple(column for part in parts for column in part.columns)
    codes = np.concatenate([part.codes.astype(np.uint16) for part in parts], axis=1)
    loss, labels, weights = model.clone()._loss(np.asarray(table.labels), "bank")
    if model.sample_weight is not None:
        weights = weights * table.column(model.sample_weight)
    random = private_randomness(0, "bank", run.plan)
    most_total = MOST_TOTAL if model.sums == "hidden" else slots_of(sampling.folds).most_total
    boosting = Boosting(settings, loss, labels, weights, sampling, random, most_total)
    source = PlainSums(BinMatrix(columns, codes))
    for number in range(boosting.n_trees):
        boosting.grow(number, source)
        if boosting.ends_after(number):
            break
    return boosting


def fitted(model, tables, **options):
    return simulate(model.fit, tables, roles=roles(len(tables) - 1), keep="digests", **options)


def assert_equal_to_central(model, tables):
    run = fitted(model, tables)
    expected, found = central(model, tables, run), run.results["bank"]
    assert list(found.trees_) == expected.trees[: expected.n_kept]
    assert found.losses_ == expected.losses
    assert (found.start_ == expected.start).all()
    return run, expected


@pytest.mark.parametrize("labels", ["binary", "multiclass", "squared", "poisson"])
@pytest.mark.parametrize("n_features", [1, 2])
def test_the_forest_is_the_one_grown_on_one_table(n_features, labels):
    tables = tables_of(n_features, labels)
    run, expected = assert_equal_to_central(model_of(labels), tables)
    owners = {split.column // 3 for tree in expected.trees for split in tree.splits if split is not None}
    assert owners == set(range(n_features + 1))
    scores = simulate({name: share.scores for name, share in run.results.items()}, tables, roles=roles(n_features))
    # What the parties predict together are the scores of training, to the last bit.
    assert (scores.results["bank"] == expected.scores).all()


@pytest.mark.parametrize("n_features", [3, 4, 5])
def test_more_parties_grow_the_same_forest(n_features):
    assert_equal_to_central(model_of("binary"), tables_of(n_features, "binary"))


def test_a_label_party_without_columns_grows_the_same_forest():
    tables = tables_of(1, "binary", own=False)
    run, _ = assert_equal_to_central(model_of("binary"), tables)
    assert run.results["bank"].feature_importances_ == {"shop": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"grow_policy": "lossguide", "max_leaves": 6, "max_depth": 0},
        {"max_leaves": 5},
        {"subsample": 0.5, "n_estimators": 4},
        {"subsample": 0.7, "colsample_bytree": 0.5},
        {"top_rate": 0.3, "other_rate": 0.2},
        {"early_stopping_rounds": 1, "n_estimators": 8, "learning_rate": 1.0},
        {"gamma": 2.0, "reg_alpha": 1.0, "reg_lambda": 0.5, "min_child_weight": 5.0, "max_delta_step": 0.5},
        {"scale_pos_weight": 3.0},
        {"class_weight": "balanced", "sample_weight": "importance"},
    ],
    ids=str,
)
def test_every_parameter_gives_the_forest_of_one_table(changes):
    extra = {"importance": np.arange(N) % 3} if "sample_weight" in changes else {}
    tables = tables_of(1, "binary", **extra)
    plain = central(model_of("binary"), tables, fitted(model_of("binary", n_estimators=1), tables))
    _, expected = assert_equal_to_central(model_of("binary", **changes), tables)
    assert expected.trees != plain.trees[: len(expected.trees)]


@pytest.mark.parametrize(
    ("n_features", "labels", "changes"),
    [
        (1, "binary", {}),
        (2, "multiclass", {"n_estimators": 1}),
        (3, "squared", {"colsample_bytree": 0.6}),
        (1, "binary", {"grow_policy": "lossguide", "max_depth": 0, "max_leaves": 5}),
        (2, "squared", {"grow_policy": "lossguide", "max_leaves": 6, "n_estimators": 2}),
        (1, "binary", {"max_depth": 0, "max_leaves": 4, "n_estimators": 2}),
        (2, "poisson", {"max_delta_step": 0.0}),
    ],
)
def test_hidden_sums_give_the_forest_of_one_table(n_features, labels, changes):
    """At these sizes no two candidates of a node gain nearly the same, so that splits are equal without exception."""
    model = model_of(labels, sums="hidden", **changes)
    run, _ = assert_equal_to_central(model, tables_of(n_features, labels))
    assert all(run.results[name].splits_ for name in NAMES[1 : 1 + n_features])


@pytest.mark.parametrize(
    ("labels", "changes", "words"),
    [
        ("binary", {"reg_alpha": 1.0}, "require reg_alpha = 0"),
        ("binary", {"max_delta_step": 0.5}, "require max_delta_step = 0, but max_delta_step is 0.5"),
        ("poisson", {}, "require max_delta_step = 0, but max_delta_step is 0.7.*which count:poisson takes too"),
    ],
)
def test_hidden_sums_refuse_what_they_cannot_compare(labels, changes, words):
    with pytest.raises(PlanError, match=words):
        fitted(model_of(labels, sums="hidden", **changes), tables_of(1, labels))


def test_early_stopping_keeps_the_best_round_at_all_parties():
    model = model_of("multiclass", early_stopping_rounds=1, n_estimators=10, learning_rate=2.0)
    run, expected = assert_equal_to_central(model, tables_of(1, "multiclass"))
    n_kept = 3 * (int(np.argmin(expected.losses)) + 1)
    assert n_kept < len(expected.trees) < 30
    assert len(run.results["bank"].trees_) == len(run.results["shop"].splits_) == n_kept


def test_folds_cut_the_bytes_of_queries():
    tables = tables_of(1, "binary")
    sizes = []
    for subsample in (1.0, 0.5):
        entries = fitted(model_of("binary", n_estimators=2, subsample=subsample), tables).transcripts["bank"].entries
        sizes.append(sum(entry.size for entry in entries if entry.kind == "trees/sums-query"))
    assert sizes[1] < 0.6 * sizes[0]


def test_a_party_is_asked_about_the_columns_of_a_tree_alone():
    """One column of nine may split in each tree, so that one party at most is asked."""
    tables, model = tables_of(2, "binary"), model_of("binary", n_estimators=6, colsample_bytree=0.12, keep_record=True)
    run, _ = assert_equal_to_central(model, tables)
    sampling = Sampling(model._settings().boost, N, shared_randomness(run.plan, run.id_digest))
    (chosen,) = zip(*(np.flatnonzero(sampling.allowed(tree, 9)) for tree in range(6)), strict=True)
    assert len({column // 3 for column in chosen}) > 1
    record = run.results["bank"].forest_record
    for place, name in enumerate(("shop", "telco"), 1):
        entries = run.transcripts[name].entries
        asked = {entry.epoch for entry in entries if entry.kind == "trees/sums-query"}
        assert asked == {tree for tree, column in enumerate(chosen) if column // 3 == place}
        for tree, seen in enumerate(record.trees):
            assert [seen.tells(name, column) for column in range(3)] == [
                chosen[tree] == 3 * place + column for column in range(3)
            ]


def test_a_label_party_that_asks_about_columns_of_other_trees_is_refused(monkeypatch):
    monkeypatch.setattr(protocol, "asked_lines", lambda party, told: party.feature_parties)
    with pytest.raises(ProtocolError, match=r"Expected no query in tree \d from bank, since no column of this party"):
        fitted(model_of("binary", n_estimators=6, colsample_bytree=0.12), tables_of(2, "binary"))


def test_sampled_columns_cut_the_bytes_of_answers():
    sizes = []
    for share in (1.0, 0.5):
        run = fitted(model_of("binary", colsample_bytree=share), tables_of(1, "binary", own=False))
        sizes.append(sum(entry.size for entry in run.transcripts["bank"].entries if entry.kind == "trees/sums-answer"))
    assert sizes[1] < 0.6 * sizes[0]


def test_a_forest_in_words_has_own_splits_in_full_and_others_by_their_owner():
    tables = tables_of(1, "binary")
    shares = fitted(model_of("binary"), tables).results
    own, others = shares["bank"].text(), shares["shop"].text()
    assert "bank x <" in own
    assert "shop's column" in own
    assert "shop x" not in own
    assert "shop x <" in others
    assert "bank" not in others
    importances = {name: share.feature_importances_ for name, share in shares.items()}
    assert set(importances["bank"]) == {"bank x", "bank gaps", "bank words", "shop"}
    assert set(importances["shop"]) == {"shop x", "shop gaps", "shop words"}
    for each in importances.values():
        assert sum(each.values()) == pytest.approx(1)


def test_levels_that_training_never_saw_are_predicted_as_missing():
    tables = tables_of(1, "binary")
    shares = fitted(model_of("binary"), tables).results
    arrow = tables["shop"].to_arrow()
    strange = {name: arrow.column(name) for name in arrow.column_names} | {"shop words": ["z"] * N}
    predict = {name: share.predict for name, share in shares.items()}
    found = simulate(predict, {**tables, "shop": Table.of(strange, owner="shop")}, roles=roles(1)).results["bank"]
    assert np.isfinite(found.probabilities).all()


@pytest.mark.parametrize("owner", ["bank", "shop"])
def test_rows_held_out_may_have_gaps_and_levels_that_no_training_row_has(owner):
    tables, model = tables_of(1, "binary"), model_of("binary", early_stopping_rounds=3)
    run = fitted(model, tables)
    sampling = Sampling(model._settings().boost, N, shared_randomness(run.plan, run.id_digest))
    held = sampling.parts[1][:3]
    arrow = tables[owner].to_arrow()
    columns = {name: arrow.column(name).to_numpy(zero_copy_only=False).copy() for name in arrow.column_names}
    columns[f"{owner} x"][held] = np.nan
    columns[f"{owner} words"] = columns[f"{owner} words"].astype(object)
    columns[f"{owner} words"][held] = "only here"
    changed = Table.of(columns, labels="y" if owner == "bank" else None, owner=owner)
    again, _ = assert_equal_to_central(model, {**tables, owner: changed})
    # Other losses may end the forest earlier or later; they change no tree.
    first, second = (each.results["bank"].trees_ for each in (run, again))
    n_both = min(len(first), len(second))
    assert n_both
    assert first[:n_both] == second[:n_both]
    assert again.results["bank"].losses_ != run.results["bank"].losses_


def test_columns_that_say_nothing_change_nothing():
    tables = tables_of(1, "binary")
    arrow = tables["shop"].to_arrow()
    constant = {"a constant": np.ones(N), "all missing": np.full(N, np.nan)}
    more = Table.of({name: arrow.column(name) for name in arrow.column_names} | constant, owner="shop")
    one, other = (fitted(model_of("binary"), {**tables, "shop": shop}).results for shop in (tables["shop"], more))
    assert [tree.values for tree in one["bank"].trees_] == [tree.values for tree in other["bank"].trees_]


def test_a_tree_without_a_good_split_is_a_leaf():
    shares = fitted(model_of("binary", min_child_weight=1e6), tables_of(1, "binary")).results
    assert [len(tree) for tree in shares["bank"].trees_] == [1, 1, 1]
    assert shares["shop"].splits_ == ((), (), ())


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "no columns"),
        ({"one": np.ones(N)}, "constant"),
        ({"none": np.full(N, np.nan)}, "empty"),
        ({"one": np.ones(N), "none": np.array([None] * N, object)}, "constant or empty"),
    ],
    ids=["no columns", "a constant column", "a column of gaps", "both"],
)
def test_a_feature_party_with_nothing_to_split_by_is_refused(columns, words):
    tables = tables_of(1, "binary")
    tables["shop"] = Table.of({"id": np.arange(N), **columns}, owner="shop")
    with pytest.raises(DataError, match=f"shop should bring a column .* {words}.*leave this party out"):
        fitted(model_of("binary"), tables)


@pytest.mark.parametrize(
    ("labels", "changes", "error", "words"),
    [
        ("binary", {"top_rate": 0.5}, PlanError, "top_rate and other_rate should both"),
        ("binary", {"top_rate": 0.7, "other_rate": 0.7}, PlanError, "sum to at most 1"),
        ("binary", {"max_depth": 0}, PlanError, "max_depth and max_leaves are both 0"),
        ("multiclass", {"scale_pos_weight": 2.0}, PlanError, "bank has 3 classes"),
        ("binary", {"sample_weight": "no such"}, PlanError, "'no such' is none"),
        ("binary", {"sample_weight": "bank words"}, DataError, "bank's weights in 'bank words' should be numbers"),
    ],
)
def test_bad_settings_are_refused_with_the_parameters_name(labels, changes, error, words):
    with pytest.raises(error, match=words):
        fitted(model_of(labels, **changes), tables_of(1, labels))


@pytest.mark.parametrize("labels", ["binary", "multiclass"])
def test_labels_of_one_class_are_refused(labels):
    tables = tables_of(1, labels)
    same = np.full(N, np.asarray(tables["bank"].labels)[0])
    with pytest.raises(DataError, match=r"bank should have labels of at least two classes .* all 240 rows are of one"):
        fitted(model_of(labels), {**tables, "bank": tables["bank"].with_labels(same)})


def test_a_class_whose_rows_are_all_held_out_is_refused():
    tables, model = tables_of(1, "binary"), model_of("binary", early_stopping_rounds=2)
    run = fitted(model, tables)
    held = Sampling(model._settings().boost, N, shared_randomness(run.plan, run.id_digest)).parts[1]
    rare = np.isin(np.arange(N), held[:2]).astype(int)
    with pytest.raises(DataError, match="should have two classes, but all are 0"):
        fitted(model, {**tables, "bank": tables["bank"].with_labels(rare)})


def test_labels_too_large_for_their_squares_are_refused():
    tables = tables_of(1, "squared")
    large = np.where(np.arange(N) % 2, 1e200, -1e200)
    with pytest.raises(Overflow, match=r"gradients of a tree should be finite .* scale labels and weights down"):
        fitted(model_of("squared"), {**tables, "bank": tables["bank"].with_labels(large)})


@pytest.mark.parametrize("sums", ["exact", "hidden"])
def test_large_labels_fit_into_the_slots(sums):
    """Whole numbers have as many bits as the sum of all absolute values leaves, so that no sum is beyond a slot."""
    tables = tables_of(1, "squared")
    found = []
    for scale in (0, 60):
        bank = tables["bank"].with_labels(np.ldexp(np.asarray(tables["bank"].labels), scale))
        run, _ = assert_equal_to_central(model_of("squared", sums=sums, n_estimators=1), {**tables, "bank": bank})
        found.append([tree.splits for tree in run.results["bank"].trees_])
    assert found[0] == found[1]
    assert len(found[0][0]) > 1


def test_weights_that_are_out_of_range_are_refused():
    tables = tables_of(1, "binary", importance=np.where(np.arange(N) == 0, 1e300, 1.0))
    with pytest.raises(DataError, match=r"weights in 'importance' should be numbers from 0 to 1e\+30.*1 of 240"):
        fitted(model_of("binary", sample_weight="importance"), tables)


def test_folds_of_one_row_are_refused():
    with pytest.raises(DataError, match="should have two rows at least in each fold"):
        fitted(model_of("binary", subsample=1 / 40), tables_of(1, "binary", n_rows=60))


def test_gradients_that_are_no_numbers_are_refused():
    tables = tables_of(1, "poisson")
    tables["bank"] = tables["bank"].with_labels(np.where(np.arange(N) == 0, -1.0, 1.0))
    with pytest.raises(DataError, match="should be counts"):
        fitted(model_of("poisson"), tables)


def test_a_forest_predicts_with_the_parties_that_grew_it_only():
    tables = tables_of(2, "binary")
    shares = fitted(model_of("binary", n_estimators=1), tables).results
    predict = {name: shares[name].predict for name in ("bank", "shop")}
    with pytest.raises(PlanError, match="was grown by bank, shop, telco"):
        simulate(predict, {name: tables[name] for name in predict}, roles=roles(1))


def test_the_label_party_learns_no_more_sums_than_the_owner_of_columns_allows(tmp_path):
    tables = tables_of(1, "binary")
    # A tree of depth 3 takes three encrypted numbers of two nodes, two equations each.
    model = model_of("binary", leak_budget=25 / N, n_estimators=2)
    fitted(model, tables, directory=tmp_path / "one")
    with pytest.raises(LeakBudgetSpent, match=r"bank may learn 25 sums .* learned 24 and asks for 4 more"):
        fitted(model.clone().set_params(n_estimators=3), tables)


def test_sums_are_counted_over_all_runs_on_the_same_rows(tmp_path):
    tables, model = tables_of(1, "binary"), model_of("binary", leak_budget=25 / N, n_estimators=2)
    arrow = tables["shop"].to_arrow()
    columns = {name: arrow.column(name) for name in arrow.column_names}
    # Another column and fewer rows: the same people all the same.
    wider = Table.of(columns | {"more": np.arange(N)}, owner="shop").take(np.arange(N - 1))
    log = tmp_path / "equations-of-shop"
    counting = {"shop": lambda party, protocol: protocol(replace(party, answer_log=tmp_path / "answers"))}
    fitted(model, tables, instead=counting)
    counted = log.read_text()
    with pytest.raises(LeakBudgetSpent, match="learned 24 and asks for 4 more"):
        fitted(model, {"bank": tables["bank"].take(np.arange(N - 1)), "shop": wider}, instead=counting)
    assert log.read_text() == counted
    strangers = {name: table.to_arrow() for name, table in tables.items()}
    strangers = {name: arrow.set_column(0, "id", [np.arange(N) + N]) for name, arrow in strangers.items()}
    made = {name: Table.of(arrow, labels="y" if name == "bank" else None) for name, arrow in strangers.items()}
    fitted(model, made, instead=counting)


@pytest.mark.parametrize("sums", ["exact", "noisy", "hidden"])
def test_the_label_party_learns_no_more_sides_of_rows_than_the_owner_of_columns_allows(tmp_path, sums):
    tables = tables_of(1, "binary", own=False)
    # All splits are by the shop's columns, so each of three levels tells a side of each row.
    model = model_of("binary", side_budget=5, n_estimators=1, sums=sums)
    counting = {"shop": lambda party, protocol: protocol(replace(party, answer_log=tmp_path / "answers"))}
    fitted(model, tables, instead=counting)
    with pytest.raises(LeakBudgetSpent, match=r"bank may learn 5 sides of each row .* learned 5 and asks for 1 more"):
        fitted(model, tables, instead=counting)
    fitted(model.clone().set_params(side_budget=None), tables, instead=counting)


def test_bare_hints_are_kept_while_a_run_goes_on_and_not_longer(tmp_path):
    tables, seen = tables_of(1, "binary"), []

    class Stopped(Exception):
        pass

    def stopping(party, protocol):
        def watch(*_):
            seen.append(sorted(path.name for path in (tmp_path / "shop" / "checkpoints" / "hints").iterdir()))
            if len(seen) == 2:
                raise Stopped

        return protocol(replace(party, watcher=watch))

    with pytest.raises(Stopped):
        fitted(model_of("binary"), tables, directory=tmp_path, instead={"shop": stopping}, checkpoint_every=1)
    run = fitted(model_of("binary"), tables, directory=tmp_path, instead={"shop": stopping}, checkpoint_every=1)
    assert seen[0] == seen[-1]
    assert len(seen[0]) == 1
    assert not (tmp_path / "shop" / "checkpoints" / "hints").exists()
    assert list(run.results["bank"].trees_) == central(model_of("binary"), tables, run).trees


def frames_at(run, name, *, sent=False):
    transcript = run.transcripts[name]
    return [
        (entry, transcript.frames.read(entry.section, entry.place)[0])
        for entry in transcript.entries
        if entry.sent is sent and entry.place is not None
    ]


def test_a_feature_party_gets_frames_of_the_same_sizes_whoever_is_in_a_node():
    """Queries and choices depend on the number of nodes alone, and gradients or rows never cross in the clear."""
    tables = tables_of(1, "squared", n_rows=200)
    run = simulate(model_of("squared").fit, tables, roles=roles(1), keep="all")
    labels = np.asarray(tables["bank"].labels)
    kinds = {}
    for entry, frame in frames_at(run, "shop"):
        kinds.setdefault(entry.kind, []).append(len(frame))
        assert labels[:8].tobytes() not in bytes(frame)
        assert np.arange(8).tobytes() not in bytes(frame)
    fresh = {kind for kind in kinds if Message.kinds[kind].fresh}
    # What is not under encryption or an oblivious transfer is a handful of numbers for each tree.
    clear = {kind: max(sizes) for kind, sizes in kinds.items() if kind not in fresh}
    assert set(clear) == {"trees/outline", "trees/next-act", "trees/chosen-splits", "trees/forest-size"}
    assert max(clear.values()) < 400
    assert set(fresh) == {
        "trees/seed-commitment",
        "trees/seed-nonce",
        "trees/transfer-point",
        "trees/query-keys",
        "trees/sums-query",
        "trees/side-choices",
    }


def test_queries_look_random_whoever_is_in_a_node():
    tables = tables_of(1, "squared", n_rows=2000)
    run = simulate(model_of("squared", n_estimators=1).fit, tables, roles=roles(1), keep="all")
    queries = [frame for entry, frame in frames_at(run, "shop") if entry.kind == "trees/sums-query"]
    for frame in queries:
        tails = decode(frame, SumsQuery).tails
        counts = np.bincount(tails.reshape(-1) >> 4, minlength=16)
        # The lowest bits of a residue below a prime are uniform as far as 2,000 rows show.
        assert stats.chisquare(counts).pvalue > 1e-6


def test_no_secret_of_a_query_serves_twice(monkeypatch):
    asked = []
    honest = hinted.Queries.ask

    def noting(self, messages, places, n_nodes):
        query = honest(self, messages, places, n_nodes)
        asked.append(query.words.copy())
        return query

    monkeypatch.setattr(hinted.Queries, "ask", noting)
    fitted(model_of("binary"), tables_of(1, "binary"))
    words = np.concatenate([each[:, 0, :8] for each in asked])
    assert len(np.unique(words, axis=0)) == len(words) >= 9


def test_noisy_sums_are_charged_what_was_asked_for_and_sides_are_said_to_be_exact():
    tables, model = tables_of(1, "binary"), model_of("binary", sums="noisy", epsilon=2.0, delta=1e-5)
    ledger = fitted(model, tables).ledgers["shop"]
    noise = Ledger()
    for event, count in ledger.events.items():
        if event.is_private:
            noise.spend(event, count)
    # Three trees of three levels, each with sums of gradients and of hessians.
    assert sum(noise.events.values()) == 18
    assert noise.epsilon(1e-5, protects=Secret.FEATURES) == pytest.approx(2.0, rel=1e-6)
    assert not ledger.spent(Secret.FEATURES, 1e-5).is_private
    assert "side of each row" in str(ledger.spent(Secret.FEATURES, 1e-5))


@pytest.mark.parametrize(("epsilon", "is_equal"), [(1e9, True), (0.5, False)])
def test_noise_on_sums_changes_splits_as_far_as_it_is_large(epsilon, is_equal):
    tables = tables_of(1, "binary")
    run = fitted(model_of("binary", sums="noisy", epsilon=epsilon), tables)
    expected = central(model_of("binary"), tables, run)
    splits = [tree.splits for tree in run.results["bank"].trees_]
    assert (splits == [tree.splits for tree in expected.trees]) is is_equal


def test_exact_sums_are_entered_in_the_ledger_with_what_they_fit():
    run = fitted(model_of("binary", n_estimators=1), tables_of(1, "binary"))
    assert "exact sums over bins, which fit a million rows" in str(run.ledgers["shop"].spent(Secret.FEATURES, 1e-5))


@pytest.mark.parametrize("sums", ["exact", "hidden"])
def test_the_record_has_what_the_label_party_saw_and_no_more(sums, tmp_path):
    tables = tables_of(1, "binary")
    share = fitted(model_of("binary", sums=sums, keep_record=True, n_estimators=2), tables).results["bank"]
    share.save(tmp_path / "share")
    record = SecureBoostClassifier.load(tmp_path / "share").forest_record
    own = tables["shop"]
    bins = Bins.learned(own, np.arange(N), max_bin=5).encode(own)
    assert record.columns == {"shop": bins.columns}
    assert record.released("shop") is (sums == "exact")
    for tree, grown in zip(record.trees, share.trees_, strict=True):
        expected = PlainSums(bins).sums(tree.gradients, tree.nodes)
        assert (np.array(tree.sums.get("shop", expected[:0])) == expected).all()
        assert len(tree.sides["shop"]) == sum(split is not None and split.column >= 3 for split in grown.splits)
        for seen in tree.sides["shop"]:
            assert (PlainSums(bins).left([(seen.split, seen.rows)])[0] == seen.left).all()


def test_the_record_has_the_noise_of_each_party_and_tree():
    tables, n_trees = tables_of(2, "squared"), 3
    narrow = tables["telco"].select(["telco x"])
    model = model_of("squared", sums="noisy", epsilon=1e3, keep_record=True, n_estimators=n_trees)
    record = fitted(model, {**tables, "telco": narrow}).results["bank"].forest_record
    own = tables["shop"]
    plain = PlainSums(Bins.learned(own, np.arange(N), max_bin=5).encode(own))
    # The last bin of a column has the noise of the others; each of the others has noise of its own alone.
    ends = starts(plain.columns)
    alone = np.setdiff1d(np.arange(ends[-1]), np.array(ends)[1:] - 1)
    for part in range(2):
        found = []
        for tree in record.trees:
            deviation = tree.noise["shop"][part]
            off = np.array(tree.sums["shop"]) - plain.sums(tree.gradients, tree.nodes)
            found += list(off[:, alone, part].ravel() / deviation)
            assert tree.noise["telco"][part] < deviation
        squares = float(np.square(found).sum())
        assert 1e-6 < stats.chi2.cdf(squares, len(found)) < 1 - 1e-6


def test_sampled_columns_have_noise_of_their_own():
    tables = tables_of(1, "binary")
    model = model_of("binary", sums="noisy", epsilon=1e6, colsample_bytree=0.5, keep_record=True)
    record, own = fitted(model, tables).results["bank"].forest_record, tables["shop"]
    plain = PlainSums(Bins.learned(own, np.arange(N), max_bin=5).encode(own))
    ends = starts(plain.columns)
    for tree in record.trees:
        off = np.array(tree.sums["shop"]) - plain.sums(tree.gradients, tree.nodes)
        for column, (first, end) in enumerate(pairwise(ends)):
            found = np.abs(off[:, first : end - 1]).max(axis=(0, 1))
            within = (found > 0).all() and (found < np.multiply(6, tree.noise["shop"])).all()
            assert within == tree.tells("shop", column)


def test_nothing_is_recorded_unless_asked_for():
    assert fitted(model_of("binary", n_estimators=1), tables_of(1, "binary")).results["bank"].forest_record is None


def test_the_accelerator_gives_the_same_forest(monkeypatch):
    monkeypatch.setattr(hinted, "engine_of", lambda device: Accelerator("cpu"))
    assert_equal_to_central(model_of("binary", n_estimators=1, colsample_bytree=0.7), tables_of(1, "binary"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("sums", ["exact", "hidden"])
def test_a_gpu_gives_the_same_forest(sums):
    assert_equal_to_central(model_of("binary", n_estimators=2, sums=sums, device="cuda"), tables_of(1, "binary"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(PlanError, match="The device 'cuda' needs an NVIDIA GPU, but there is none"):
        fitted(model_of("binary", device="cuda"), tables_of(1, "binary"))
    assert fitted(model_of("binary", n_estimators=1, device="auto"), tables_of(1, "binary")).results["bank"].is_fitted


def test_where_a_party_computes_is_no_part_of_the_public_plan():
    plans = [public_plan(model_of("binary", **each).fit, roles(1), 0) for each in ({}, {"device": "auto"})]
    assert plans[0].hash == plans[1].hash != public_plan(model_of("binary", gamma=1.0).fit, roles(1), 0).hash


@pytest.mark.parametrize("membership", ["hidden", "revealed"])
def test_paillier_gives_the_same_forest(membership):
    pytest.importorskip("gmpy2")
    sampled = {"colsample_bytree": 0.7} if membership == "hidden" else {}
    model = model_of("binary", n_estimators=1, max_depth=2, backend="paillier", membership=membership, **sampled)
    run, _ = assert_equal_to_central(model, tables_of(1, "binary", n_rows=60))
    kinds = {entry.kind for entry in run.transcripts["shop"].entries if not entry.sent}
    assert ("trees/node-rows" in kinds) is (membership == "revealed")


@pytest.mark.parametrize(
    ("membership", "kind", "lie", "words"),
    [
        (
            "hidden",
            EncryptedRows,
            lambda sent: {"n_nodes": 0},
            "trees/encrypted-rows with n_nodes from 1 to 31 from bank",
        ),
        ("revealed", NodeRows, lambda sent: {"counts": sent.counts[None]}, "Expected the rows of nodes from bank"),
    ],
    ids=["hidden", "revealed"],
)
def test_a_label_party_cannot_have_fewer_nodes_counted_than_it_asks_for(membership, kind, lie, words, monkeypatch):
    pytest.importorskip("gmpy2")
    honest = Channel.send

    def send(line, message, **about):
        honest(line, replace(message, **lie(message)) if isinstance(message, kind) else message, **about)

    monkeypatch.setattr(Channel, "send", send)
    model = model_of("binary", n_estimators=1, max_depth=1, backend="paillier", membership=membership)
    with pytest.raises(ProtocolError, match=words):
        fitted(model, tables_of(1, "binary", n_rows=12))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["over each bin of each column in each node, and the side", "nothing of rows", "RLWE of degree 8192"]),
        ({"sums": "noisy"}, ["in each node, with noise, and the side"]),
        ({"sums": "hidden"}, ["which split wins at each node and what the split gains, and no sums"]),
        ({"backend": "paillier", "membership": "revealed"}, ["the rows of each node", "Sums: Paillier's scheme"]),
    ],
    ids=str,
)
def test_a_summary_says_what_the_settings_tell(changes, words):
    summary = model_of("binary", **changes).summary()
    assert [each for each in words if each not in summary] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"membership": "revealed"}, 'membership="revealed" requires backend="paillier"'),
        ({"backend": "paillier", "sums": "hidden"}, 'backend="paillier" requires sums="exact", but sums is \'hidden\''),
        ({"backend": "paillier", "device": "cuda"}, 'device="cuda" requires backend="hinted"'),
        ({"backend": "paillier", "max_depth": 8}, "asks for 31 nodes at once at most"),
    ],
)
def test_schemes_that_do_not_fit_are_refused(changes, words):
    with pytest.raises(PlanError, match=words):
        fitted(model_of("binary", **changes), tables_of(1, "binary"))


def test_a_label_party_that_asks_about_rows_twice_is_refused(monkeypatch):
    tables = tables_of(1, "binary")
    shares = fitted(model_of("binary", n_estimators=1), tables).results
    honest = prediction._ask

    def twice(line, fetching, level, rows, met, nodes):
        honest(line, fetching, level, rows, met, nodes)
        fetching.read(level)
        return honest(line, fetching, level, rows, met, nodes)

    monkeypatch.setattr(prediction, "_ask", twice)
    with pytest.raises(ProtocolError, match="each row to be asked about once at each split from bank"):
        simulate({name: share.predict for name, share in shares.items()}, tables, roles=roles(1))


def test_a_label_party_that_asks_for_sides_in_more_turns_than_a_tree_has_levels_is_refused(monkeypatch):
    """Each turn tells one bit of every row: in as many turns as a column has cuts, the bins of all rows."""
    tables, read = tables_of(1, "binary"), []

    def asks(side, step):
        side._asking.prepare(step, 0, side._told_in(step))
        (name, fetching), everybody = next(iter(side._fetching.items())), np.arange(N)
        for cut in range(side.parts[name][0].n_bins - 1):
            side._say(SIDES, side._lines)
            side._lines[0].send(ChosenSplits(step, splits_array([Split(0, cut, None, False)])))
            fetching.ask(step, [everybody], N)
            read.append(fetching.read(step)[0])
        side._say(END, side._lines)

    monkeypatch.setattr(LabelSide, "train", asks)
    with pytest.raises(ProtocolError, match="Expected at most 7 splits in 3 turns in a tree from bank, got more"):
        fitted(model_of("binary", n_estimators=1), tables)
    assert len(read) == 3


def test_many_rows_are_predicted_in_batches(monkeypatch):
    tables = tables_of(2, "multiclass")
    shares = fitted(model_of("multiclass"), tables).results
    protocols = {name: share.scores for name, share in shares.items()}
    whole = simulate(protocols, tables, roles=roles(2)).results["bank"]
    monkeypatch.setattr(prediction, "PAIRS_AT_ONCE", 9 * 50)
    assert (simulate(protocols, tables, roles=roles(2)).results["bank"] == whole).all()


def test_a_forest_works_behind_scikit_learns_interface():
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 4))
    columns = {"bank": range(2), "shop": range(2, 4)}
    model = Vertical(model_of("binary"), columns=columns, roles=roles(1)).fit(x, (x[:, 0] + x[:, 2] > 0) * 1)
    assert model.score(x, (x[:, 0] + x[:, 2] > 0) * 1) > 0.8
    assert model.predict_proba(x).shape == (200, 2)


def test_with_hidden_sums_no_message_to_the_label_party_has_a_sum():
    tables = tables_of(2, "binary")
    run = fitted(model_of("binary", sums="hidden"), tables)
    telling = {entry.kind for entry in run.transcripts["bank"].entries if not entry.sent and entry.reveals}
    assert telling == {"trees/columns", "trees/row-sides"}
