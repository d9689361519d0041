"""Trees from encrypted sums are the plain ones: splits, whole-number sums and leaves."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from colonnade.crypto import hinted
from colonnade.crypto.histograms import HistogramBins
from colonnade.crypto.profiles import HISTOGRAM, Budget
from colonnade.errors import ProtocolError
from colonnade.models.trees.bins import BinMatrix, Column, starts
from colonnade.models.trees.grow import PlainSums, grow
from colonnade.models.trees.hinted_sums import _with_own
from colonnade.models.trees.losses import Gradients, Logistic
from colonnade.models.trees.splits import TreeParameters
from tests.models.trees.sources import Joined

COLUMNS = (Column(7, True), Column(4), Column(5, True, True), Column(1), Column(3, False, True), Column(9))


class Asked:
    """The sources of several feature parties that answer one query, each by the hinted scheme, in this process."""

    def __init__(self, parts):
        self.public = hinted.PublicMatrix(bytes(32), len(parts[0].codes))
        self.queries, self.answers, self.sources = hinted.Queries(self.public), {}, []
        for part in parts:
            widths = [column.width for column in part.columns]
            holder = hinted.Holder(HistogramBins(part.codes.T, widths), self.public, Budget(HISTOGRAM, peer="bank"))
            self.sources.append(Source(self, part, holder, hinted.Reader(self.public, holder.hint())))
        self.n_queries = 0

    def asked(self, gradients, nodes):
        """The one query for all sources; asked when the first of them needs it."""
        key = id(gradients), tuple(rows.tobytes() for rows in nodes)
        if key not in self.answers:
            messages = hinted.Messages(self.public, gradients.g, gradients.h)
            keys = self.queries.prepare(messages.slots.n_numbers(len(nodes)), [each.reader for each in self.sources])
            for each in self.sources:
                each.holder.prepare(keys)
            places = np.full(len(gradients.g), -1, np.int32)
            for place, rows in enumerate(nodes):
                places[rows] = place
            self.answers = {key: (messages, self.queries.ask(messages, places, len(nodes)))}
            self.n_queries += 1
        return self.answers[key]


class Source(PlainSums):
    """One feature party's sums, asked for under encryption."""

    def __init__(self, group, bins, holder, reader):
        super().__init__(bins)
        object.__setattr__(self, "group", group)
        object.__setattr__(self, "holder", holder)
        object.__setattr__(self, "reader", reader)

    def sums(self, gradients, nodes):
        messages, query = self.group.asked(gradients, nodes)
        found = self.reader.read(query, len(nodes), messages, self.holder.answer(query))
        ends = starts(self.columns)
        out = np.zeros((len(nodes), ends[-1], 2), np.int64)
        out[:, np.setdiff1d(np.arange(ends[-1]), ends[1:] - 1)] = found
        totals = np.array([(gradients.g[rows].sum(), gradients.h[rows].sum()) for rows in nodes])
        out[:, ends[1:] - 1] = totals[:, None] - np.add.reduceat(out, ends[:-1], axis=1)
        return out


@pytest.mark.parametrize("grow_policy", ["depthwise", "lossguide"])
@pytest.mark.parametrize("cuts", [[0, 6], [2, 6], [2, 3, 6], [1, 2, 4, 6]], ids=str)
def test_trees_from_encrypted_sums_are_the_plain_ones(cuts, grow_policy):
    random = np.random.default_rng(1)
    n_rows = 9000
    codes = np.column_stack([random.integers(0, column.width, n_rows) for column in COLUMNS]).astype(np.uint8)
    labels = (codes[:, 0] * codes[:, 1] + 3 * (codes[:, 2] == 1) + 4 * random.normal(size=n_rows) > 6).astype(float)
    own = BinMatrix(COLUMNS[: cuts[0]], codes[:, : cuts[0]])
    parts = [BinMatrix(COLUMNS[a:b], np.ascontiguousarray(codes[:, a:b])) for a, b in pairwise(cuts)]
    group = Asked(parts)
    source = Joined((PlainSums(own), *group.sources)) if cuts[0] else Joined(tuple(group.sources))
    parameters = TreeParameters(max_depth=4, max_leaves=12, grow_policy=grow_policy)
    scores = np.zeros((n_rows, 1))
    for _ in range(2):
        g, h = Logistic().gradients(scores, labels)
        gradients = Gradients.of(g[:, 0], h[:, 0])
        tree, added = grow(gradients, source, parameters)
        plain, plainly = grow(gradients, PlainSums(BinMatrix(COLUMNS, codes)), parameters)
        assert tree == plain
        assert (added == plainly).all()
        assert tree.n_leaves > 8
        scores[:, 0] += added
    # However many holders there are, a level or a leaf is one query.
    assert group.n_queries <= (8 if grow_policy == "depthwise" else 24)


def test_a_label_party_that_passes_on_another_nonce_is_refused():
    """It could choose the public polynomials, and with them read hints."""
    line = SimpleNamespace(peer="bank")
    own, other = bytes(32), bytes(range(32))
    assert _with_own([other, own], own, 1, line) == [other, own]
    for passed_on in ([other, other], [other]):
        with pytest.raises(ProtocolError, match="this party's own among them"):
            _with_own(passed_on, own, 1, line)
