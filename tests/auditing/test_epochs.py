"""Leak over epochs, on a run that tells everything in its first epoch and nothing in its second."""

from types import SimpleNamespace

import numpy as np
import pytest

from colonnade.auditing import audit
from colonnade.roles import Roles
from colonnade.runtime.party import Party
from colonnade.runtime.simulate import Run, simulate


@pytest.fixture
def forgetful(toy: SimpleNamespace) -> Run[None]:
    """A run that tells the labels in epoch 0 and noise in epoch 1."""

    def protocol(party: Party) -> None:
        rows = np.arange(len(party.own_table))
        for epoch in (0, 1):
            if not party.holds_labels:
                party.label_party.receive(toy.Hint, rows=rows, epoch=epoch)
                continue
            numbers = np.unique(np.asarray(party.own_table.labels), return_inverse=True)[1]
            noise = np.random.default_rng(epoch).normal(size=(len(rows), 2))
            values = noise if epoch else 9 * np.eye(2)[numbers]
            for line in party.feature_parties:
                line.send(toy.Hint(values.astype(np.float32)), rows=rows, epoch=epoch)

    tables = toy.run().simulation.tables
    return simulate(protocol, tables, roles=Roles(label="bank", features=("shop",)), keep="audit")


def test_an_attack_is_scored_in_each_epoch_by_the_messages_of_that_epoch(
    toy: SimpleNamespace, forgetful: Run[None]
) -> None:
    (finding,) = audit(forgetful, [toy.ReadHint()], nulls=1, epochs=2).attacks
    (first, told), (second, noise) = finding.over_epochs
    assert (first, told, second) == (0, 1.0, 1)
    assert noise == pytest.approx(0.5, abs=0.15)


def test_only_the_worst_attack_of_a_party_is_looked_at_in_single_epochs_and_only_if_asked(
    toy: SimpleNamespace, forgetful: Run[None]
) -> None:
    attacks = [toy.ReadHint(), toy.ReadHint(shift=1), toy.NearestKnown()]
    found = audit(forgetful, attacks, nulls=1, epochs=5).attacks
    assert [len(finding.over_epochs) for finding in found if finding.leakage is None] == [2, 0, 0]
    assert not any(finding.over_epochs for finding in audit(forgetful, attacks, nulls=1).attacks)


def test_a_run_of_one_epoch_has_no_leak_over_epochs(toy: SimpleNamespace) -> None:
    (finding,) = audit(toy.run(), [toy.ReadHint()], nulls=1, epochs=3).attacks
    assert finding.over_epochs == ()
