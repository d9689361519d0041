"""Membership inference: was this person's curve among those that were released, or that a model was fitted to?

Against a release with Gaussian noise the best test is known: a record that was released lies near its own noisy copy,
so the largest of log p(copy | record) - log p(copy) over all copies is large (Neyman & Pearson; Carlini et al. 2022 for
models). Against a fit only the fitted curves are used: a record that was trained on is fitted better than one that was
not. The attacker is told candidates; half of the candidates were in the run. The audit draws them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from colonnade.attacks.base import Attack, ExampleRun, Guess, Inapplicable, Needs, View
from colonnade.attacks.points import distances
from colonnade.models.functional.messages import Offer, ReleasedCurves
from colonnade.secret import Secret
from colonnade.wire.message import Float64Array
from colonnade.wire.recording.recording import Recorded


class ReleaseMembership(Attack):
    """A candidate that was released lies nearer to one of the released records than its distance to others explains."""

    needs = Needs(messages=(Offer, ReleasedCurves), candidates="curves")
    about = Secret.MEMBERSHIP
    example_run = ExampleRun("functional-boost")

    def why_not(self, view: View) -> str | None:
        if not view.grant.candidates:
            return "it must be told candidates, who may have been in the run or not"
        if not any(recorded.message.column in view.grant.candidates for recorded in _releases(view)):
            return Inapplicable("it was sent no released curves")
        return None

    def guess(self, view: View) -> Guess:
        """Score each candidate by its best match among the released records, over all columns at once."""
        sigmas: dict[str, float] = {}
        clips: dict[str, float] = {}
        for recorded_offer in view.messages(Offer, sent=False):
            offer = recorded_offer.message
            sigmas |= dict(zip(offer.columns, offer.sigmas.tolist(), strict=True))
            clips |= dict(zip(offer.columns, offer.clips.tolist(), strict=True))
        total: Float64Array | None = None
        for recorded in _releases(view):
            column, released = recorded.message.column, recorded.message.values
            if column not in view.grant.candidates:
                continue
            candidates = _clipped(view.grant.candidates[column], clips[column])
            # Without noise a release is a copy, told apart by rounding alone.
            variance = max(sigmas[column], 1e-6 * float(released.std())) ** 2
            spread = released.var(axis=0).sum() / released.shape[1] + 1e-300
            near = distances(candidates, released) ** 2 / (2 * variance)
            far = ((released - released.mean(axis=0)) ** 2).sum(axis=1) / (2 * spread)
            total = far - near if total is None else total + far - near
        assert total is not None
        return Guess(np.arange(len(total)), scores=total.max(axis=1))


class FitMembership(Attack):
    """A candidate that was fitted has a smaller error than one that was not; it is told their outputs, too."""

    needs = Needs(candidates="records", own_model=True)
    about = Secret.MEMBERSHIP
    example_run = ExampleRun("functional-boost")

    def why_not(self, view: View) -> str | None:
        if not view.grant.candidates or "" not in view.grant.candidates:
            return Inapplicable("it must be told candidates with their outputs")
        if not hasattr(view.own.model, "w_"):
            return Inapplicable("it holds no coefficients")
        return None

    def guess(self, view: View) -> Guess:
        model = view.own.model
        names = model.design_.names  # type: ignore[attr-defined]
        clips = model.design_.clips  # type: ignore[attr-defined]
        told = [_clipped(view.grant.candidates[name], clip) for name, clip in zip(names, clips, strict=True)]
        z = np.stack(told, axis=1)
        error = view.grant.candidates[""] - model.combined(z)  # type: ignore[attr-defined]
        return Guess(np.arange(len(error)), scores=-(error**2).sum(axis=1))


def _releases(view: View) -> Iterator[Recorded[ReleasedCurves]]:
    return view.messages(ReleasedCurves, sent=False)


def _clipped(z: Float64Array, radius: float) -> Float64Array:
    lengths = np.linalg.norm(z, axis=1, keepdims=True)
    return np.asarray(z * np.minimum(1.0, radius / np.maximum(lengths, 1e-300)))
