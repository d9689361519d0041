"""Released numbers: what a party sends about each row besides embeddings, regressed on a few known records.

    released curves                     noisy copies of columns, in the clear
    partial scores and predictions      one linear equation in a row's columns, or one for each number of the output

The label party does not know the coefficients of others. From known records it learns them: with more records than
columns a score is solved for its coefficients, and a new score then is an equation in the new row's columns. A ridge
regression from scores to columns takes the solution that fits the known records best. It is exact where there are as
many equations as columns.

Luo et al. 2021, "Feature inference attack on model predictions in vertical federated learning" (equality solving, there
with known coefficients).
"""

from __future__ import annotations

import numpy as np

from colonnade.attacks.base import ExampleRun, Needs, View
from colonnade.attacks.columns.passive import KNOWN_RECORDS, PassiveRidge
from colonnade.attacks.points import Points
from colonnade.models.functional.messages import PartialPrediction, ReleasedCurves
from colonnade.models.glm.masked_sum import FRACTION_BITS
from colonnade.models.glm.messages import MaskedScores, PartialScores
from colonnade.wire.message import Float64Array


class ReleasedRecords(PassiveRidge):
    """Each column is a linear function of the curves that its owner released.

    >>> ReleasedRecords().needs.known_records
    50
    """

    needs = Needs(messages=(ReleasedCurves,), known_records=KNOWN_RECORDS)
    example_run = ExampleRun("functional-boost")
    received = "released curves"

    def points(self, view: View) -> Points:
        released = view.messages(ReleasedCurves, peer=view.grant.owner, sent=False)
        return _by_row([recorded.message.values for recorded in released])


class EqualitySolving(PassiveRidge):
    """Each column is a linear function of the scores that its owner sent for a prediction.

    Masked scores of one sender are bare, and those of several add up to the sum of their scores.

    >>> EqualitySolving().needs.known_records
    50
    """

    needs = Needs(messages=(PartialScores, MaskedScores, PartialPrediction), known_records=KNOWN_RECORDS)
    example_run = ExampleRun("linear-regression", predicts=True)
    received = "scores"

    def points(self, view: View) -> Points:
        owner = view.grant.owner
        scores = view.messages(PartialScores, peer=owner, sent=False)
        predictions = view.messages(PartialPrediction, peer=owner, sent=False)
        found: list[Float64Array] = [recorded.message.values for recorded in scores]
        found += [recorded.message.values for recorded in predictions]
        masked = {recorded.peer: recorded.message.values for recorded in view.messages(MaskedScores, sent=False)}
        if owner in masked:
            total = np.sum(list(masked.values()), axis=0, dtype=np.uint64)
            found.append(np.ldexp(total.view(np.int64).astype(np.float64), -FRACTION_BITS))
        return _by_row(found)


def _by_row(found: list[Float64Array]) -> Points:
    """The numbers of several messages side by side, one line for each row."""
    if not found:
        return Points(np.zeros(0, np.int64), np.zeros((0, 0)))
    n_rows = min(len(values) for values in found)
    sent = [np.asarray(values[:n_rows], np.float64).reshape(n_rows, -1) for values in found]
    return Points(np.arange(n_rows), np.concatenate(sent, axis=1))
