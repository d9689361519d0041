"""The contract of estimators: scikit-learn's manners, one share each, and a crash changes nothing."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, combinations, count, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from colonnade.errors import DataError, PlanError
from colonnade.models.base import Estimator, Prediction
from colonnade.roles import Roles
from colonnade.runtime.party import HOOKS
from colonnade.runtime.protocol import describe
from colonnade.runtime.simulate import simulate
from colonnade.storage import Tree, unpack
from colonnade.tables.table import Table
from colonnade.testing.assertions import must, must_be_alike, must_refuse
from colonnade.testing.restart import restarted_peers_learn_nothing
from colonnade.testing.resume import killed_runs_end_alike
from colonnade.testing.setup import Setup, arrays, ending, is_finite, witness
from colonnade.wire.message import Message


def check_estimator(make: Callable[[], Estimator], tables: Mapping[str, Table], roles: Roles) -> None:
    """Check that a model keeps the contract of `Estimator`.

    Args:
        make: Makes the estimator. Other processes import it, so it is a class or a `functools.partial` of one. Training
            should send every kind of message that the model knows and take a dozen steps.
        tables: Rows to train on.
        roles: Who does what.
    """
    for check in ESTIMATOR_CHECKS:
        check(Setup(make, tables, roles))


def arguments_are_stored_unchanged(setup: Setup) -> None:
    """The constructor stores; parameters are read and set by name; a clone is made of them."""
    from sklearn.base import clone as clone_by_sklearn

    estimator = setup.make()
    given = estimator.get_params()
    rebuilt = type(estimator)(**given)
    for name, value in given.items():
        must(getattr(rebuilt, name) is value, f"The constructor should store {name} as it was given.")
    must(estimator.set_params(**given) is estimator, "set_params should return the estimator itself.")
    for cloned in (estimator.clone(), clone_by_sklearn(estimator)):
        must(describe(cloned.get_params()) == describe(given), "A clone should have the same parameters.")
        must(not cloned.is_fitted, "A clone should not be fitted.")
    must_refuse(lambda: estimator.set_params(no_such=1), PlanError, "no_such", what="An unknown parameter")


def nothing_works_before_fit(setup: Setup) -> None:
    """An estimator that has learned nothing neither predicts nor saves."""
    unfitted = {name: setup.make() for name in setup.roles.parties}
    must_refuse(lambda: setup.predict(unfitted), PlanError, "fit", what="A prediction before training")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "share"
        must_refuse(lambda: setup.make().save(path), PlanError, "fit", what="Saving before training")


def fit_gives_each_party_its_own_share(setup: Setup) -> None:
    """`fit` returns the estimator, what it learned ends in an underscore, and no two parties share anything."""
    own = {name: setup.make() for name in setup.roles.parties}
    run = simulate({name: estimator.fit for name, estimator in own.items()}, setup.tables, roles=setup.roles)
    for name, estimator in own.items():
        must(run.results[name] is estimator, f"fit should return the estimator itself, but does not at {name}.")
        learned = vars(estimator).keys() - vars(setup.make()).keys()
        wrong = sorted(attribute for attribute in learned if attribute.startswith("_") or not attribute.endswith("_"))
        must(not wrong, f"What fit learns should end in an underscore, but {name} has {', '.join(wrong)}.")
        must(estimator.is_fitted, f"fit should leave something learned at {name}.")
    single = setup.make()
    shares = simulate(single.fit, setup.tables, roles=setup.roles).results
    must(not single.is_fitted, "A simulation should fit clones and leave the estimator as it was.")
    for one, other in combinations(shares, 2):
        must(shares[one] is not shares[other], f"{one} and {other} should have an estimator each.")
        pairs = product(arrays(shares[one].share()), arrays(shares[other].share()))
        must(not any(np.may_share_memory(a, b) for a, b in pairs), f"{one} and {other} should share no memory.")


def repeated_runs_send_identical_frames(setup: Setup) -> None:
    """The same again gives the same frames, shares and predictions, however much is recorded and wherever."""
    first, predicted = setup.both()
    second, predicted_again = setup.both()
    must_be_alike(ending(second), ending(first), "A repeated run")
    must_be_alike(ending(predicted_again), ending(predicted), "A repeated prediction")
    with tempfile.TemporaryDirectory() as folder:
        variants: dict[str, dict[str, Any]] = {
            "keep='all'": {"keep": "all"},
            "keep='digests'": {"keep": "digests"},
            "a folder": {"directory": folder},
        }
        for variant, options in variants.items():
            other = setup.fit(**options)
            for name in setup.roles.parties:
                same = ending(other)[f"the share of {name}"] == ending(first)[f"the share of {name}"]
                must(same, f"{name} should learn the same with {variant}.")
                same = other.transcripts[name].digests() == first.transcripts[name].digests()
                must(same, f"{name} should exchange the same frames with {variant}.")


def only_the_label_party_learns_the_prediction(setup: Setup) -> None:
    """One value per row there, None elsewhere."""
    _, run = setup.both()
    for name, prediction in run.results.items():
        if name != setup.roles.label:
            must(prediction is None, f"{name} should learn nothing of the prediction.")
            continue
        n_rows = len(setup.tables[name])
        if not isinstance(prediction, Prediction):
            raise AssertionError(f"{name} should get a Prediction, but got a {type(prediction).__name__}.")
        # Of a curve the value is a row of coefficients.
        must(len(prediction.values) == n_rows, f"{name} should get one value for each of its {n_rows} rows.")
        must(is_finite(prediction.values), f"{name} should get finite values.")
        if prediction.probabilities is not None:
            sums = prediction.probabilities.sum(axis=1)
            must(len(sums) == n_rows and np.allclose(sums, 1), f"{name} should get probabilities that sum to 1.")


def a_saved_share_predicts_the_same(setup: Setup) -> None:
    """Save, load, predict; and the file holds one party's share, without pickle."""
    fitted, predicted = setup.both()
    loaded, files = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, estimator in fitted.results.items():
            path = Path(folder) / name
            estimator.save(path)
            factories = {key: value for key, value in estimator.get_params().items() if callable(value)}
            loaded[name] = type(estimator).load(path, **factories)
            files[name] = path.read_bytes()
    must_be_alike(ending(setup.predict(loaded)), ending(predicted), "A prediction with loaded shares")
    for name, data in files.items():
        must(not any(_pickled(unpack(data))), f"The file of {name} should hold no pickle.")
        for other in files.keys() - {name}:
            # Short or monotonous arrays may be equal by chance.
            telling = [array for array in arrays(fitted.results[other].share()) if len(np.unique(array)) >= 8]
            held = any(array.tobytes() in data for array in telling)
            must(not held, f"The file of {name} should hold nothing of the share of {other}.")


def a_killed_run_resumes_to_the_same_end(setup: Setup) -> None:
    """Killed at some of its frames and before many renames, it leaves the same shares, recordings and ledgers.

    The first renames write what a run draws once; later ones are checkpoints, of which one in five is enough.
    """
    killed_runs_end_alike(setup, {}, renames=chain(range(1, 6), count(9, 5)))


def a_peer_that_restarts_with_other_values_learns_nothing(setup: Setup) -> None:
    """It is refused by name, or nothing that was drawn for the run before serves again; all is charged again."""
    restarted_peers_learn_nothing(setup)


def bad_tables_are_refused_by_name(setup: Setup) -> None:
    """Rows that cannot be trained on are refused with the name of the party, and a count where there is one to give."""
    owner, other = setup.roles.holders[:2]
    table, n_rows = setup.tables[owner], len(setup.tables[owner])
    ids, one = table.ids.to_pylist(), f"1 of {n_rows:,}"

    def refused(what: str, tables: Mapping[str, Table], *words: str) -> None:
        must_refuse(lambda: setup.fit({**setup.tables, **tables}), DataError, *words, what=f"A run with {what}")

    refused("empty tables", {name: held.take([]) for name, held in setup.tables.items()}, owner)
    refused("one row", {name: held.take([0]) for name, held in setup.tables.items()}, owner)
    refused("a null id", {owner: _with_ids(table, [None, *ids[1:]])}, owner, one)
    refused("a repeated id", {owner: _with_ids(table, [ids[1], *ids[1:]])}, owner, one)
    fewer = setup.tables[other].take(np.arange(n_rows - 1))
    refused("fewer rows at one party", {other: fewer}, owner, other, str(n_rows), str(n_rows - 1))
    if table.labels is not None:
        labels = table.labels.to_pylist()
        missing = pa.array([None, *labels[1:]], table.labels.type)
        refused("a missing label", {owner: table.with_labels(missing)}, owner, one)
        if isinstance(labels[0], int | float):
            refused("a NaN label", {owner: table.with_labels(np.array([np.nan, *labels[1:]]))}, owner, one)
        if setup.make().task == "classification":
            refused("one class", {owner: table.with_labels(labels[:1] * n_rows)}, owner)
    lists = table.to_arrow().append_column("since", pa.array([[0]] * n_rows))
    bring = partial(Table.of, lists, ids=table.id_name, labels=table.label_name, owner=owner)
    must_refuse(bring, DataError, owner, "since", what="A column of lists")


def a_role_without_a_party_is_refused(setup: Setup) -> None:
    """Whoever has a role brings a table."""
    for name in setup.roles.holders:
        others = {other: table for other, table in setup.tables.items() if other != name}
        must_refuse(partial(setup.fit, others), PlanError, name, what=f"A run without a table of {name}")


def the_drawing_shows_the_messages_that_cross(setup: Setup) -> None:
    """The exchange drawn in the module's docstring is the exchange that takes place; of several drawings, one is."""
    module = sys.modules[type(setup.make()).__module__]
    drawings = [set(_drawn(paragraph)) for paragraph in (module.__doc__ or "").split("\n\n")]
    transcripts = [transcript for run in setup.both(keep="digests") for transcript in run.transcripts.values()]
    crossed = {Message.kinds[entry.kind].__name__ for transcript in transcripts for entry in transcript.entries}
    drawn = min(drawings, key=lambda drawing: len(drawing ^ crossed))
    must(
        drawn == crossed,
        f"The drawing in {module.__name__} should show the messages of fit and predict, but {sorted(drawn - crossed)} "
        f"are only drawn and {sorted(crossed - drawn)} only cross.",
    )


def declared_hooks_are_called_and_others_refused(setup: Setup) -> None:
    """Each hook that the model declares for a role is called there; a defence that acts elsewhere is refused."""
    for party, declared in setup.hooks.items():
        called: set[str] = set()

        def note(hook: str, *_: Any, called: set[str] = called) -> None:
            called.add(hook)

        setup.both(defences={party: [witness(declared, note)]})
        silent = sorted(declared - called)
        must(not silent, f"The model declares that it calls {', '.join(silent)} at {party}, but never does.")
        for hook in sorted(set(HOOKS) - declared):
            idle = partial(setup.fit, defences={party: [witness({hook}, note)]})
            must_refuse(idle, PlanError, party, hook, what=f"A defence at {party} that acts only on {hook}")


def _with_ids(table: Table, ids: list[Any]) -> Table:
    arrow = table.to_arrow()
    place = arrow.column_names.index(table.id_name)
    arrow = arrow.set_column(place, table.id_name, pa.array(ids, table.ids.type))
    return Table.of(arrow, ids=table.id_name, labels=table.label_name, owner=table.owner)


def _pickled(tree: Tree) -> Iterator[bool]:
    """Whether each piece of bytes in a tree looks like a pickle, or like the archive that PyTorch puts one into."""
    pieces = [array.tobytes() for array in arrays(tree) if array.dtype == np.uint8]
    for piece in (*pieces, *_raw_bytes(tree)):
        yield piece[:2] == b"PK" or (piece[:1] == b"\x80" and piece[-1:] == b".")


def _raw_bytes(tree: Tree) -> Iterator[bytes]:
    if isinstance(tree, bytes):
        yield tree
    elif isinstance(tree, Mapping | list):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _raw_bytes(value)


def _drawn(docstring: str) -> Iterator[str]:
    """The names of messages at the arrows of a drawing; notes stand apart from these by at least three spaces."""
    for line in docstring.splitlines():
        for piece in re.split(r"\s{3,}", line.strip()):
            if "─▶" in piece or "◀─" in piece:
                yield from re.findall(r"\b[A-Z]\w*", re.sub(r"\(.*?\)", "", piece))


ESTIMATOR_CHECKS: tuple[Callable[[Setup], None], ...] = (
    arguments_are_stored_unchanged,
    nothing_works_before_fit,
    fit_gives_each_party_its_own_share,
    repeated_runs_send_identical_frames,
    only_the_label_party_learns_the_prediction,
    a_saved_share_predicts_the_same,
    a_killed_run_resumes_to_the_same_end,
    a_peer_that_restarts_with_other_values_learns_nothing,
    bad_tables_are_refused_by_name,
    a_role_without_a_party_is_refused,
    the_drawing_shows_the_messages_that_cross,
    declared_hooks_are_called_and_others_refused,
)
