"""Colonnade: vertical federated learning that measures what each party could learn about the others."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from colonnade._version import __version__

if TYPE_CHECKING:
    from colonnade.attacks.base import ActiveAttack, Attack, Grant, Guess, Needs
    from colonnade.attacks.direct import DirectLabel
    from colonnade.attacks.gradient_scores import DirectionScore, NormScore
    from colonnade.attacks.view import View
    from colonnade.audit.report import PrivacyReport
    from colonnade.data.partition import FeaturePartition, public_private
    from colonnade.defences.noise import GradientNoise
    from colonnade.errors import ColonnadeError
    from colonnade.hooks import At, Defence
    from colonnade.models.base import Estimator, Prediction
    from colonnade.models.labeldp import LabelDPShadow
    from colonnade.models.oneshot import OneShot, OneShotRegressor
    from colonnade.models.served import ServedClassifier, ServedRegressor
    from colonnade.models.split import SplitClassifier, SplitRegressor
    from colonnade.models.tracks import ShadowProxy, ShadowTop, SingleTrack
    from colonnade.models.ushape import UShapeClassifier, UShapeRegressor
    from colonnade.models.vertical import Vertical
    from colonnade.party import Party
    from colonnade.run import Run, join, simulate
    from colonnade.secret import Secret
    from colonnade.table import Table
    from colonnade.wire.message import Message
    from colonnade.wire.plan import Roles

# Where each public name lives; it is imported when first asked for, so that `import colonnade` stays light.
_HOMES = {
    "ActiveAttack": "attacks.base",
    "At": "hooks",
    "Attack": "attacks.base",
    "ColonnadeError": "errors",
    "Defence": "hooks",
    "DirectLabel": "attacks.direct",
    "DirectionScore": "attacks.gradient_scores",
    "Estimator": "models.base",
    "FeaturePartition": "data.partition",
    "GradientNoise": "defences.noise",
    "Grant": "attacks.base",
    "Guess": "attacks.base",
    "LabelDPShadow": "models.labeldp",
    "Message": "wire.message",
    "Needs": "attacks.base",
    "NormScore": "attacks.gradient_scores",
    "OneShot": "models.oneshot",
    "OneShotRegressor": "models.oneshot",
    "Party": "party",
    "Prediction": "models.base",
    "PrivacyReport": "audit.report",
    "Roles": "wire.plan",
    "Run": "run",
    "Secret": "secret",
    "ServedClassifier": "models.served",
    "ServedRegressor": "models.served",
    "ShadowProxy": "models.tracks",
    "ShadowTop": "models.tracks",
    "SingleTrack": "models.tracks",
    "SplitClassifier": "models.split",
    "SplitRegressor": "models.split",
    "Table": "table",
    "UShapeClassifier": "models.ushape",
    "UShapeRegressor": "models.ushape",
    "Vertical": "models.vertical",
    "View": "attacks.view",
    "join": "run",
    "public_private": "data.partition",
    "simulate": "run",
}

__all__ = [
    "ActiveAttack",
    "At",
    "Attack",
    "ColonnadeError",
    "Defence",
    "DirectLabel",
    "DirectionScore",
    "Estimator",
    "FeaturePartition",
    "GradientNoise",
    "Grant",
    "Guess",
    "LabelDPShadow",
    "Message",
    "Needs",
    "NormScore",
    "OneShot",
    "OneShotRegressor",
    "Party",
    "Prediction",
    "PrivacyReport",
    "Roles",
    "Run",
    "Secret",
    "ServedClassifier",
    "ServedRegressor",
    "ShadowProxy",
    "ShadowTop",
    "SingleTrack",
    "SplitClassifier",
    "SplitRegressor",
    "Table",
    "UShapeClassifier",
    "UShapeRegressor",
    "Vertical",
    "View",
    "__version__",
    "join",
    "public_private",
    "simulate",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        try:
            value = getattr(_import_module(f"colonnade.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            from colonnade.errors import MissingExtra

            raise MissingExtra("torch", f"colonnade.{name}") from error
        globals()[name] = value
        return value
    raise AttributeError(f"module 'colonnade' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
