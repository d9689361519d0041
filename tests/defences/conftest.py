from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from colonnade.models.networks.messages import Gradient
from colonnade.roles import Roles
from colonnade.runtime.context import HookContext
from colonnade.runtime.party import Defence, Party
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table


@pytest.fixture
def held() -> Callable[..., Any]:
    """Makes a defence ready, as it is held by a bank; the bank's party goes with it as `party`."""

    def ready(defence: Defence, *, seed: int = 0, labels: Sequence[int] = (0, 1)) -> Defence:
        ids = {"id": range(len(labels))}
        bank = Table.of({**ids, "label": np.asarray(labels)}, labels="label")
        parties: list[Party] = []
        simulate(
            parties.append,
            {"bank": bank, "shop": Table.of({**ids, "x": range(len(labels))})},
            roles=Roles(label="bank", features=("shop",)),
            seed=seed,
            defences={"bank": [defence]},
        )
        party = next(party for party in parties if party.holds_labels)
        (own,) = party.defences
        own.before_run(party)
        own.party = party
        return own

    return ready


@pytest.fixture
def leaving() -> Callable[..., HookContext]:
    """Where a gradient is about to leave for the shop."""

    def at(n_rows: int, *, step: int = 0, **more: Any) -> HookContext:
        rows = more.pop("rows", np.arange(n_rows))
        return HookContext(step, 0, rows, "train", peer="shop", message=Gradient, **more)

    return at
