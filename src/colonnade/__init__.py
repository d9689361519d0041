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
    from colonnade.curves import Curves
    from colonnade.defences.noise import GradientNoise
    from colonnade.errors import ColonnadeError
    from colonnade.hooks import At, Defence
    from colonnade.models.base import Estimator, Prediction
    from colonnade.models.functional.boost import FunctionalBoost
    from colonnade.models.functional.central import MomentRegression
    from colonnade.models.functional.regression import FunctionalRegression
    from colonnade.models.split import SplitClassifier
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
    "Curves": "curves",
    "Defence": "hooks",
    "DirectLabel": "attacks.direct",
    "DirectionScore": "attacks.gradient_scores",
    "Estimator": "models.base",
    "FunctionalBoost": "models.functional.boost",
    "FunctionalRegression": "models.functional.regression",
    "GradientNoise": "defences.noise",
    "Grant": "attacks.base",
    "Guess": "attacks.base",
    "Message": "wire.message",
    "MomentRegression": "models.functional.central",
    "Needs": "attacks.base",
    "NormScore": "attacks.gradient_scores",
    "Party": "party",
    "Prediction": "models.base",
    "PrivacyReport": "audit.report",
    "Roles": "wire.plan",
    "Run": "run",
    "Secret": "secret",
    "SplitClassifier": "models.split",
    "Table": "table",
    "Vertical": "models.vertical",
    "View": "attacks.view",
    "join": "run",
    "simulate": "run",
}

__all__ = [
    "ActiveAttack",
    "At",
    "Attack",
    "ColonnadeError",
    "Curves",
    "Defence",
    "DirectLabel",
    "DirectionScore",
    "Estimator",
    "FunctionalBoost",
    "FunctionalRegression",
    "GradientNoise",
    "Grant",
    "Guess",
    "Message",
    "MomentRegression",
    "Needs",
    "NormScore",
    "Party",
    "Prediction",
    "PrivacyReport",
    "Roles",
    "Run",
    "Secret",
    "SplitClassifier",
    "Table",
    "Vertical",
    "View",
    "__version__",
    "join",
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
