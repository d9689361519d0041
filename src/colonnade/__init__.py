"""Colonnade: vertical federated learning that measures what each party could learn about the others."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from colonnade._version import __version__

if TYPE_CHECKING:
    from colonnade.align.protocol import Align, Aligned
    from colonnade.alignment import Alignment
    from colonnade.attacks.base import ActiveAttack, Attack, Grant, Guess, Needs
    from colonnade.attacks.clustering import EmbeddingClusters, EmbeddingNearest, GradientClusters, GradientNearest
    from colonnade.attacks.completion import GradientCompletion, ModelCompletion
    from colonnade.attacks.direct import DirectLabel
    from colonnade.attacks.gradient_scores import DirectionScore, NormScore
    from colonnade.attacks.residue import CoefficientScore, Residue
    from colonnade.attacks.view import View
    from colonnade.audit.report import PrivacyReport
    from colonnade.curves import Curves
    from colonnade.data.partition import FeaturePartition, public_private
    from colonnade.defences.compression import AverageGradient, DiscreteGradient, SparseGradient
    from colonnade.defences.confusion import ConfusionalAutoencoder
    from colonnade.defences.embedding import DistanceCorrelation, PotentialEnergy
    from colonnade.defences.labels import RandomisedLabels
    from colonnade.defences.marvell import Marvell
    from colonnade.defences.noise import GradientNoise, IsotropicNoise, MaxNorm
    from colonnade.defences.perturbation import GradientPerturbation
    from colonnade.defences.received import EarlierCut, InformationBottleneck
    from colonnade.defences.wandering import BoundaryWandering
    from colonnade.errors import ColonnadeError
    from colonnade.experiment.tune import tune_alpha
    from colonnade.hooks import At, Defence
    from colonnade.models.base import Estimator, Prediction
    from colonnade.models.functional.boost import FunctionalBoost
    from colonnade.models.functional.central import MomentRegression
    from colonnade.models.functional.regression import FunctionalRegression
    from colonnade.models.glm import LinearRegression, LogisticRegression, PoissonRegression
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
    "Align": "align.protocol",
    "Aligned": "align.protocol",
    "Alignment": "alignment",
    "At": "hooks",
    "Attack": "attacks.base",
    "AverageGradient": "defences.compression",
    "BoundaryWandering": "defences.wandering",
    "CoefficientScore": "attacks.residue",
    "ColonnadeError": "errors",
    "ConfusionalAutoencoder": "defences.confusion",
    "Curves": "curves",
    "Defence": "hooks",
    "DirectLabel": "attacks.direct",
    "DirectionScore": "attacks.gradient_scores",
    "DiscreteGradient": "defences.compression",
    "DistanceCorrelation": "defences.embedding",
    "EarlierCut": "defences.received",
    "EmbeddingClusters": "attacks.clustering",
    "EmbeddingNearest": "attacks.clustering",
    "Estimator": "models.base",
    "FeaturePartition": "data.partition",
    "FunctionalBoost": "models.functional.boost",
    "FunctionalRegression": "models.functional.regression",
    "GradientClusters": "attacks.clustering",
    "GradientCompletion": "attacks.completion",
    "GradientNearest": "attacks.clustering",
    "GradientNoise": "defences.noise",
    "GradientPerturbation": "defences.perturbation",
    "Grant": "attacks.base",
    "Guess": "attacks.base",
    "InformationBottleneck": "defences.received",
    "IsotropicNoise": "defences.noise",
    "LabelDPShadow": "models.labeldp",
    "LinearRegression": "models.glm",
    "LogisticRegression": "models.glm",
    "Marvell": "defences.marvell",
    "MaxNorm": "defences.noise",
    "Message": "wire.message",
    "ModelCompletion": "attacks.completion",
    "MomentRegression": "models.functional.central",
    "Needs": "attacks.base",
    "NormScore": "attacks.gradient_scores",
    "OneShot": "models.oneshot",
    "OneShotRegressor": "models.oneshot",
    "Party": "party",
    "PoissonRegression": "models.glm",
    "PotentialEnergy": "defences.embedding",
    "Prediction": "models.base",
    "PrivacyReport": "audit.report",
    "RandomisedLabels": "defences.labels",
    "Residue": "attacks.residue",
    "Roles": "wire.plan",
    "Run": "run",
    "Secret": "secret",
    "ServedClassifier": "models.served",
    "ServedRegressor": "models.served",
    "ShadowProxy": "models.tracks",
    "ShadowTop": "models.tracks",
    "SingleTrack": "models.tracks",
    "SparseGradient": "defences.compression",
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
    "tune_alpha": "experiment.tune",
}

__all__ = [
    "ActiveAttack",
    "Align",
    "Aligned",
    "Alignment",
    "At",
    "Attack",
    "AverageGradient",
    "BoundaryWandering",
    "CoefficientScore",
    "ColonnadeError",
    "ConfusionalAutoencoder",
    "Curves",
    "Defence",
    "DirectLabel",
    "DirectionScore",
    "DiscreteGradient",
    "DistanceCorrelation",
    "EarlierCut",
    "EmbeddingClusters",
    "EmbeddingNearest",
    "Estimator",
    "FeaturePartition",
    "FunctionalBoost",
    "FunctionalRegression",
    "GradientClusters",
    "GradientCompletion",
    "GradientNearest",
    "GradientNoise",
    "GradientPerturbation",
    "Grant",
    "Guess",
    "InformationBottleneck",
    "IsotropicNoise",
    "LabelDPShadow",
    "LinearRegression",
    "LogisticRegression",
    "Marvell",
    "MaxNorm",
    "Message",
    "ModelCompletion",
    "MomentRegression",
    "Needs",
    "NormScore",
    "OneShot",
    "OneShotRegressor",
    "Party",
    "PoissonRegression",
    "PotentialEnergy",
    "Prediction",
    "PrivacyReport",
    "RandomisedLabels",
    "Residue",
    "Roles",
    "Run",
    "Secret",
    "ServedClassifier",
    "ServedRegressor",
    "ShadowProxy",
    "ShadowTop",
    "SingleTrack",
    "SparseGradient",
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
    "tune_alpha",
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
