"""The names that plans and the command line may use: three explicit tables."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from colonnade.errors import MissingExtra, PlanError
from colonnade.text import nearest

if TYPE_CHECKING:
    from colonnade.attacks.base import ActiveAttack, AnyAttack, Attack
    from colonnade.models.base import Estimator
    from colonnade.runtime.party import Defence

T = TypeVar("T")


class Names(Mapping[str, T], Generic[T]):
    """What names stand for; a class is imported when it is asked for, so that its extra is needed only then."""

    def __init__(self, what: str, homes: Mapping[str, tuple[str, str]]) -> None:
        self._what, self._homes = what, homes

    @property
    def modules(self) -> tuple[str, ...]:
        """Where the classes are, without importing anything."""
        return tuple(dict.fromkeys(f"colonnade.{module}" for module, _ in self._homes.values()))

    def class_name(self, name: str) -> str:
        """What the class of a name is called, without importing it."""
        self.require(name)
        return self._homes[name][1]

    def require(self, name: str) -> None:
        """Refuse an unknown name, without importing anything."""
        if name not in self._homes:
            raise PlanError(
                f"There is no {self._what} {name!r}.{nearest(name, self._homes)} Known are {', '.join(self._homes)}."
            )

    def __getitem__(self, name: str) -> T:
        self.require(name)
        module, attribute = self._homes[name]
        try:
            found: T = getattr(importlib.import_module(f"colonnade.{module}"), attribute)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise MissingExtra("torch", f"The {self._what} {name!r}") from error
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


ATTACKS: Names[type[Attack] | type[ActiveAttack]] = Names(
    "attack",
    {
        "active-completion": ("attacks.labels.completion", "ActiveCompletion"),
        "active-generative": ("attacks.columns.generation", "ActiveGenerative"),
        "active-inversion": ("attacks.columns.inversion", "ActiveInversion"),
        "averaged-gradients": ("attacks.labels.averaging", "AveragedGradients"),
        "batch-labels": ("attacks.labels.matching", "BatchLabels"),
        "binary-columns": ("attacks.columns.binary", "BinaryColumns"),
        "boxed-sums": ("attacks.columns.sums", "BoxedSums"),
        "co-training": ("attacks.labels.cotraining", "CoTraining"),
        "coefficient-score": ("attacks.labels.regression", "CoefficientScore"),
        "column-spreading": ("attacks.labels.spreading", "ColumnSpreading"),
        "direct-label": ("attacks.labels.gradients", "DirectLabel"),
        "direction-score": ("attacks.labels.gradients", "DirectionScore"),
        "distillation": ("attacks.labels.distillation", "Distillation"),
        "embedding-clusters": ("attacks.labels.clustering", "EmbeddingClusters"),
        "embedding-nearest": ("attacks.labels.clustering", "EmbeddingNearest"),
        "embedding-probe": ("attacks.labels.probes", "EmbeddingProbe"),
        "embedding-spreading": ("attacks.labels.spreading", "EmbeddingSpreading"),
        "epoch-ridge": ("attacks.columns.passive", "EpochRidge"),
        "equality-solving": ("attacks.columns.released", "EqualitySolving"),
        "feature-hijacking": ("attacks.columns.generation", "FeatureHijacking"),
        "fit-membership": ("attacks.members.curves", "FitMembership"),
        "gradient-clusters": ("attacks.labels.clustering", "GradientClusters"),
        "gradient-completion": ("attacks.labels.completion", "GradientCompletion"),
        "gradient-nearest": ("attacks.labels.clustering", "GradientNearest"),
        "gradient-probe": ("attacks.labels.probes", "GradientProbe"),
        "group-sums": ("attacks.labels.regression", "GroupSums"),
        "hint-score": ("attacks.labels.gradients", "HintScore"),
        "informed-ridge": ("attacks.columns.passive", "InformedRidge"),
        "lattice-labels": ("attacks.labels.lattice", "LatticeLabels"),
        "linear-sums": ("attacks.columns.sums", "LinearSums"),
        "model-completion": ("attacks.labels.completion", "ModelCompletion"),
        "norm-score": ("attacks.labels.gradients", "NormScore"),
        "own-splits": ("attacks.labels.forests", "OwnSplits"),
        "passive-network": ("attacks.columns.network", "PassiveNetwork"),
        "passive-ridge": ("attacks.columns.passive", "PassiveRidge"),
        "penalty-classes": ("attacks.labels.penalties", "PenaltyClasses"),
        "permuted-labels": ("attacks.labels.averaging", "PermutedLabels"),
        "randomised-posterior": ("attacks.labels.randomised", "RandomisedPosterior"),
        "relinked-sums": ("attacks.columns.relinking", "RelinkedSums"),
        "release-membership": ("attacks.members.curves", "ReleaseMembership"),
        "released-records": ("attacks.columns.released", "ReleasedRecords"),
        "residue": ("attacks.labels.regression", "Residue"),
        "shared-nodes": ("attacks.labels.forests", "SharedNodes"),
        "spectral-clusters": ("attacks.labels.spectral", "SpectralClusters"),
        "spectral-score": ("attacks.labels.spectral", "SpectralScore"),
        "split-narrowing": ("attacks.columns.narrowing", "SplitNarrowing"),
        "surrogate-top": ("attacks.labels.matching", "SurrogateTop"),
    },
)

THOROUGH = frozenset(
    {
        "active-completion",
        "active-generative",
        "active-inversion",
        "batch-labels",
        "binary-columns",
        "distillation",
        "embedding-probe",
        "epoch-ridge",
        "feature-hijacking",
        "gradient-probe",
        "hint-score",
        "passive-network",
        "penalty-classes",
        "permuted-labels",
        "spectral-clusters",
        "surrogate-top",
    }
)
"""Attacks that take long, or that seldom find more than another: only a thorough audit makes them."""

DEFENCES: Names[type[Defence]] = Names(
    "defence",
    {
        "adversarial-reconstructor": ("defences.sent", "AdversarialReconstructor"),
        "boundary-wandering": ("defences.wandering", "BoundaryWandering"),
        "confusional-autoencoder": ("defences.confusion", "ConfusionalAutoencoder"),
        "dimension-limit": ("defences.sent", "DimensionLimit"),
        "discrete-gradient": ("defences.compression", "DiscreteGradient"),
        "distance-correlation": ("defences.embedding", "DistanceCorrelation"),
        "earlier-cut": ("defences.received", "EarlierCut"),
        "embedding-noise": ("defences.noise", "EmbeddingNoise"),
        "gradient-averaging": ("defences.compression", "AverageGradient"),
        "gradient-guard": ("defences.guard", "GradientGuard"),
        "gradient-noise": ("defences.noise", "GradientNoise"),
        "gradient-perturbation": ("defences.noise", "GradientPerturbation"),
        "information-bottleneck": ("defences.received", "InformationBottleneck"),
        "isotropic-noise": ("defences.noise", "IsotropicNoise"),
        "marvell": ("defences.marvell", "Marvell"),
        "max-norm": ("defences.noise", "MaxNorm"),
        "potential-energy": ("defences.embedding", "PotentialEnergy"),
        "randomised-labels": ("defences.labels", "RandomisedLabels"),
        "sign-hash": ("defences.sent", "SignHash"),
        "sparse-gradient": ("defences.compression", "SparseGradient"),
    },
)

MODELS: Names[type[Estimator]] = Names(
    "model",
    {
        "functional-boost": ("models.functional.estimator", "FunctionalBoost"),
        "functional-moments": ("models.functional.moment_regression", "MomentRegression"),
        "functional-regression": ("models.functional.estimator", "FunctionalRegression"),
        "label-dp-shadow": ("models.networks.labeldp", "LabelDPShadow"),
        "linear-regression": ("models.glm.estimator", "LinearRegression"),
        "logistic-regression": ("models.glm.estimator", "LogisticRegression"),
        "one-shot": ("models.networks.oneshot", "OneShotClassifier"),
        "one-shot-regressor": ("models.networks.oneshot", "OneShotRegressor"),
        "poisson-regression": ("models.glm.estimator", "PoissonRegression"),
        "secureboost-classifier": ("models.trees.estimator", "SecureBoostClassifier"),
        "secureboost-regressor": ("models.trees.estimator", "SecureBoostRegressor"),
        "served-classifier": ("models.networks.server", "ServedClassifier"),
        "served-regressor": ("models.networks.server", "ServedRegressor"),
        "split-classifier": ("models.networks.split", "SplitClassifier"),
        "split-regressor": ("models.networks.split", "SplitRegressor"),
        "u-shape-classifier": ("models.networks.server", "UShapeClassifier"),
        "u-shape-regressor": ("models.networks.server", "UShapeRegressor"),
    },
)


def attacks_of_audit(*, thorough: bool = False, defences: Iterable[Defence] = ()) -> tuple[AnyAttack, ...]:
    """The attacks that an audit makes if none are named: those that are quick, and those that know a run's defences.

    A thorough audit makes these, and all others, each in several forms.
    """
    if thorough:
        forms = [form for name in ATTACKS for form in ATTACKS[name].variants()]
        alike = [(type(form), vars(form)) for form in forms]
        usual = attacks_of_audit(defences=defences)
        return (*forms, *(attack for attack in usual if (type(attack), vars(attack)) not in alike))
    quick: list[tuple[str, Mapping[str, Any]]] = [(name, {}) for name in ATTACKS if name not in THOROUGH]
    made = quick + [known for defence in defences for known in defence.known_by]
    once = [each for place, each in enumerate(made) if each not in made[:place]]
    return tuple(ATTACKS[name](**settings) for name, settings in once)


def attacks_knowing(defence: Defence) -> tuple[AnyAttack, ...]:
    """The attacks that know how a defence works."""
    return tuple(ATTACKS[name](**settings) for name, settings in defence.known_by)
