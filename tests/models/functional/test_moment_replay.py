"""A peer that comes back with other curves meets neither the same masks nor the same noise: it is refused."""

import shutil

import numpy as np
import pytest

from colonnade.curves import BSplines
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.errors import PrivacyError
from colonnade.models.functional.moment_regression import MomentRegression
from colonnade.models.functional.moments_masked import OpenedProducts
from colonnade.models.functional.moments_shared import OpenedShares
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table

PAIR = Roles(label="label", features=("shop",))
JUDGED = Roles(label="label", features=("shop",), arbiter="judge")
MODEL = MomentRegression(clip_x=3.0, clip_y=3.0, epsilon=1e6)


class Stopped(Exception):
    """The label party ends after the products of the first stage have come."""


def tables():
    drawn = FunctionalSetting(n=60, p=1, active=(1,), basis=BSplines((0.0, 1.0), 5)).draw_one(1).tables(1)
    return dict(zip(("label", "shop"), drawn.values(), strict=True))


def with_another_output(table):
    curves = table.curves("response")
    changed = curves.coefficients.copy()
    changed[17] += 0.01
    return Table.of({"id": table.ids, "response": type(curves)(changed, curves.basis)}, labels="response")


def interrupted(roles, folder, monkeypatch):
    def stop(self, chosen):
        raise Stopped

    with monkeypatch.context() as patched:
        for side in (OpenedShares, OpenedProducts):
            patched.setattr(side, "second", stop)
        with pytest.raises(Stopped):
            simulate(MODEL.fit, tables(), roles=roles, seed=1, directory=folder)


@pytest.mark.parametrize("roles", [PAIR, JUDGED], ids=["shares", "arbiter"])
def test_a_label_party_that_restarts_with_another_output_is_refused_by_name(roles, tmp_path, monkeypatch):
    interrupted(roles, tmp_path / "first", monkeypatch)
    for name in roles.parties[1:]:
        shutil.copytree(tmp_path / "first" / name, tmp_path / "second" / name)
    changed = {**tables(), "label": with_another_output(tables()["label"])}
    with pytest.raises(PrivacyError, match="label should resend shop exactly the bytes it sent before"):
        simulate(MODEL.fit, changed, roles=roles, seed=1, directory=tmp_path / "second")


@pytest.mark.parametrize("roles", [PAIR, JUDGED], ids=["shares", "arbiter"])
def test_a_run_that_is_taken_up_with_the_same_curves_ends_as_if_nothing_had_happened(roles, tmp_path, monkeypatch):
    interrupted(roles, tmp_path / "run", monkeypatch)
    resumed = simulate(MODEL.fit, tables(), roles=roles, seed=1, directory=tmp_path / "run")
    undisturbed = simulate(MODEL.fit, tables(), roles=roles, seed=1)
    assert np.array_equal(resumed.results["label"].w_, undisturbed.results["label"].w_)
    assert resumed.ledgers["shop"].events == undisturbed.ledgers["shop"].events
