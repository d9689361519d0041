"""What a party can do to its own bottom network in a run: look at weights and gradients step by step, or change them.

The protocol is played as it is. Only the party's own network is made by a function of the attacker's, which puts hooks
on the weights: a hook sees the gradient of its weights in every step, and may put another in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import nn

from colonnade.attacks.base import Inapplicable
from colonnade.errors import PrivacyError
from colonnade.models.networks.modules import BottomFactory, bottom_named
from colonnade.models.networks.split import SplitNetwork
from colonnade.models.networks.training import chosen
from colonnade.roles import PublicPlan
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import Protocol
from colonnade.tables.encode import Inputs


def played_with(
    hook: Callable[[int, nn.Parameter], None],
    honest: Protocol[Any],
    party: Party,
    *,
    learning_rate: float | None = None,
) -> SplitNetwork:
    """Train with the others, with hooks on the weights of the party's own bottom; returns the party's share.

    Args:
        hook: What is called once with each number of an array of weights and the array.
        honest: The protocol, which trains a split network.
        party: The attacker.
        learning_rate: Take plain steps of this rate along what hooks return; None keeps the honest optimizer.
    """
    model = getattr(honest, "__self__", None)
    if not isinstance(model, SplitNetwork):
        raise PrivacyError("it changes its own part of a split network, and this run trains none")
    honest_bottom = model.bottom

    def make(inputs: Inputs, width: int) -> nn.Module:
        choice = cast("str | BottomFactory", chosen(honest_bottom, "bottom", party.name, "bottom"))
        module = bottom_named(choice)(inputs, width)
        for number, weights in enumerate(module.parameters()):
            hook(number, weights)
        return module

    model.set_params(bottom=make)
    if learning_rate is not None:
        model.set_params(optimizer="sgd", learning_rate=learning_rate, momentum=0.0)
    trained: SplitNetwork = honest(party)
    return trained


def why_no_bottom(public: PublicPlan, party: str) -> str | None:
    """Why a party has no bottom network of its own that learns in a run; None if it has."""
    if "fusion" not in public.settings or public.roles.server is not None:
        return Inapplicable("it changes its own part of a split network, and this run trains none")
    return None if party in public.roles.features else f"{party} has no part of a split network without labels"
