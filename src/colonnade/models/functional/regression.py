"""Function-on-function regression: curves of several parties, one party's curves to predict, all inputs at once.

    feature party                                    label party
         Offer ───────────────────────────────────────▶          once
         ReleasedCurves(column) ──────────────────────▶          once per column
         ◀───────────────────────────── Surface(column)          once per column of a prediction, inputs="partial"
         PartialPrediction ───────────────────────────▶          once per prediction, inputs="partial"

The label party learns the columns' names, basis, clip radius and noise, and every released curve. In training a feature
party learns nothing. A prediction with inputs="released" releases the new curves as in training. With inputs="partial"
a feature party learns the coefficients of its own columns, which depend on everybody's data, and the label party the
exact part of each prediction that these columns make; neither is private, and the ledgers say so.

Ramsay & Silverman 2005, "Functional data analysis", chapter 16; release: see colonnade.models.functional.release.
"""

from __future__ import annotations

from colonnade.models.functional.estimator import Fit, FunctionalEstimator
from colonnade.models.functional.guard import Rows
from colonnade.models.functional.refit import joint_fit
from colonnade.models.functional.solve import Roughness
from colonnade.runtime.party import Party


class FunctionalRegression(FunctionalEstimator):
    """Penalised regression of curves on all curves jointly, from releases that may be differentially private.

    Args:
        lambda_s: Penalty on roughness of coefficient surfaces in the inputs' time.
        lambda_t: In the output's time.
        lambda_st: In both.
        relative: Whether penalties are multiples of where data and penalty weigh the same.
        operator_s: What roughness is in the inputs' time: the order of a derivative, or weights of derivatives.
        operator_t: What it is in the output's time.
        clip: The radius to which curves are clipped: one number, one for each column, None, or "empirical" in
            simulations. It must not depend on the data for privacy to be claimed.
        noise: The noise on released curves: one number, or one for each column.
        epsilon: Instead of `noise`: what all curves of a record may cost together.
        delta: Likewise.
        n_curves: How many columns feature parties have in all, where `clip` does not name them.
        metric: "l2", "rkhs", or "legacy" for comparison only.
        adjacency: What a record's change is: "replace-one", since a released row shows that its record is present.
        correction: How much of the noise is taken off the moments that are trained on; "cv" chooses.
        guard: Whether to take only so much of the fit, perhaps nothing, as surely gains over the mean on unseen rows,
            where released noise leaves that in doubt.
        inputs: How new curves enter a prediction: "released" or "partial".
        hold_out: A fold, counted from 1, and how many there are: rows of that fold are released with the others, so
            that every record is released once whatever is held out, and not trained on.

    >>> FunctionalRegression(lambda_s=1.0).get_params()["lambda_s"]
    1.0
    """

    def _fitted(
        self, party: Party, rows: Rows, roughness: Roughness, correction: float, *, without: int | None = None
    ) -> Fit:
        unbiased = rows.moments("A", without=without) + rows.moments("B", without=without)
        moments = unbiased.for_training(correction)
        w = joint_fit(moments, roughness, self._penalties(moments, roughness))
        flat = w.reshape(-1, w.shape[2])
        sse = unbiased.total + float((flat * (unbiased.gram @ flat - 2 * unbiased.cross)).sum())
        return Fit(w, tuple(range(len(w))), {"sse": [unbiased.total, sse]})
