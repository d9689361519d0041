"""Means looked up by two parties on shares, against the table itself."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import softmax

from colonnade.crypto.additive import encoded
from colonnade.models.glm.arbiter import SCORE_BITS, Scores
from colonnade.models.glm.families import LOGISTIC, POISSON, of_all_classes
from colonnade.models.glm.means import MOST_SCORE, PairedLine
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table

PAIR = Roles(label="bank", features=("shop",))
VALUE_BITS = 20


def looked_up(table, scores):
    """The means (models, rows) that both parties' shares add up to."""
    words = np.rint(np.ldexp(scores, SCORE_BITS)).astype(np.int64).view(np.uint64)
    mask = np.random.default_rng(0).integers(0, 2**64, words.shape, np.uint64)

    def side(party):
        line = PairedLine(next(iter(party.peers.values())), leading=party.holds_labels)
        line.take(0, 0, line.pair.begin())
        share = words - mask if party.holds_labels else mask
        return line.means(0, 0, table, share, SCORE_BITS, VALUE_BITS)

    held = {name: Table.of({"id": [0], "y": [0]}, labels="y" if name == "bank" else None) for name in PAIR.parties}
    found = simulate({name: side for name in PAIR.parties}, held, roles=PAIR).results
    return np.ldexp((found["bank"] + found["shop"]).view(np.int64).astype(np.float64), -VALUE_BITS)


@pytest.mark.parametrize("family", [LOGISTIC, POISSON])
def test_every_score_that_may_be_sent_has_the_means_of_the_table(family):
    ends = np.array([MOST_SCORE, MOST_SCORE - 1, 8.0, 4.0, 0.0, -8.0 - 2.0**-SCORE_BITS, -12.0 - 2.0**-SCORE_BITS])
    scores = np.r_[ends, -ends, np.random.default_rng(1).normal(0, 6, 200).round(5)]
    np.testing.assert_allclose(looked_up(family.table, scores[None])[0], family.table(scores), atol=2.0**-VALUE_BITS)


@pytest.mark.parametrize(("n_classes", "most_off"), [(3, 0.008), (4, 0.012), (7, 0.02), (10, 0.03)])
def test_means_of_more_than_two_classes_are_a_softmax_however_large_the_scores_are(n_classes, most_off):
    scores = np.random.default_rng(n_classes).normal(0, 3, (n_classes - 1, 300)).round(5)
    scores[:, 100] = 0.0
    scores[:2, 101:104] = [[MOST_SCORE, MOST_SCORE, 0.0], [-MOST_SCORE, 0.0, -MOST_SCORE]]
    off = looked_up(LOGISTIC.table, scores) - softmax(of_all_classes(scores), axis=0)[:-1]
    assert np.abs(off).max() < most_off
    assert np.abs(off).mean() < most_off / 5


@pytest.mark.parametrize("n_parties", [2, 3, 5])
def test_scores_that_all_parties_may_send_add_up_to_one_that_can_be_looked_up(n_parties):
    settings = SimpleNamespace(family=LOGISTIC)
    most = Scores(settings, 19).most_bits(30, n_parties)
    largest = np.ldexp(1.0, most - SCORE_BITS)
    assert n_parties * encoded(np.array([largest]), SCORE_BITS, most, "scores")[0] <= MOST_SCORE * 2**SCORE_BITS
    assert n_parties * largest > MOST_SCORE / 2
