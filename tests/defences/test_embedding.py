import re

import numpy as np
import pytest
import torch

from colonnade.data import load
from colonnade.defences.embedding import DistanceCorrelation, PotentialEnergy, distance_correlation, potential_energy
from colonnade.errors import PlanError
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.context import HookContext
from colonnade.runtime.simulate import simulate

BOTH = Roles(label="bank", features=("shop",))


def numbers(rows, width, seed=0, dtype=torch.float64):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


def slow_distance_correlation(x, y):
    def centred(z):
        d = np.array([[np.linalg.norm(a - b) for b in z] for a in z])
        return d - d.mean(axis=0) - d.mean(axis=1, keepdims=True) + d.mean()

    a, b = centred(x), centred(y)
    return np.sqrt((a * b).mean() / np.sqrt((a * a).mean() * (b * b).mean()))


def test_the_distance_correlation_is_what_its_definition_says():
    x, y = numbers(25, 3), numbers(25, 2, seed=1)
    y = (y + x[:, :2] ** 2).detach()
    expected = slow_distance_correlation(x.detach().numpy(), y.numpy())
    assert distance_correlation(x, y).item() == pytest.approx(expected, rel=1e-6)
    assert torch.autograd.gradcheck(lambda z: distance_correlation(z, y), x)


def test_it_finds_dependence_that_a_correlation_does_not():
    x = torch.linspace(-1, 1, 200)[:, None]
    assert abs(np.corrcoef(x[:, 0], x[:, 0] ** 2)[0, 1]) < 1e-6
    assert distance_correlation(x, x**2).item() > 0.4
    assert distance_correlation(numbers(400, 1), numbers(400, 1, seed=1)).item() < 0.2


def slow_energy(z, labels, angular):
    z = torch.nn.functional.normalize(z, dim=1) if angular else z
    of_rows = []
    for i in range(len(z)):
        mates = [j for j in range(len(z)) if j != i and labels[j] == labels[i]]
        inverse = [1 / ((z[i] - z[j]).square().sum() + 0.05**2).sqrt() for j in mates]
        of_rows.append(sum(inverse) / len(mates) if mates else torch.tensor(0.0, dtype=z.dtype))
    return torch.stack(of_rows).mean()


@pytest.mark.parametrize("angular", [True, False])
def test_the_energy_is_the_mean_over_rows_of_the_mean_inverse_distance_to_mates(angular):
    z, labels = numbers(20, 4), torch.arange(20) % 7
    found = potential_energy(z, labels, angular=angular)
    assert found.item() == pytest.approx(slow_energy(z, labels, angular).item(), rel=1e-5)
    assert torch.autograd.gradcheck(lambda x: potential_energy(x, labels, angular=angular), z)


def test_the_published_energy_is_as_much_larger_as_the_page_says():
    """A sum over classes of 1 / n times one over the distances of all its ordered pairs (arXiv 2210.09617)."""
    z, labels, n_rows, n = 1_000 * numbers(20, 4), torch.arange(20) % 4, 20, 5
    published = sum(
        (1 / torch.dist(z[i], z[j])).item() / n
        for i in range(n_rows)
        for j in range(n_rows)
        if i != j and labels[i] == labels[j]
    )
    found = potential_energy(z, labels, angular=False).item()
    assert published == pytest.approx(n_rows * (n - 1) / n * found, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "rows", [[[0, 0], [0, 0], [0, 0]], [[1, 1], [1, 1], [1, 1]], [[1e4, 0], [-1e4, 0], [0, 1e-8]], [[1, 2]]]
)
@pytest.mark.parametrize(
    "penalty",
    [
        lambda z, labels: potential_energy(z, labels, angular=True),
        lambda z, labels: potential_energy(z, labels, angular=False),
        lambda z, labels: torch.log(distance_correlation(z, torch.nn.functional.one_hot(labels, 2)) + 1e-6),
    ],
    ids=["angular energy", "energy", "distance correlation"],
)
def test_nothing_makes_a_penalty_or_its_gradient_infinite(penalty, rows, dtype):
    z = torch.tensor(rows, dtype=dtype, requires_grad=True)
    value = penalty(z, torch.tensor([0, 0, 1])[: len(rows)])
    (gradient,) = torch.autograd.grad(value, z)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient.float()).all()


def at(**more):
    labels = torch.arange(12) % 3
    given = {"labels": labels, "n_classes": 3, "received": {"shop": numbers(12, 4), "telco": numbers(12, 4, seed=1)}}
    return HookContext(0, 0, np.arange(12), "train", **(given | more))


def test_penalties_of_all_received_embeddings_add_up():
    where, base = at(), torch.tensor(0.5)
    one_hot = torch.nn.functional.one_hot(where.labels, 3)
    dependence = [distance_correlation(z, one_hot) for z in where.received.values()]
    energy = [potential_energy(z, where.labels, angular=True).item() for z in where.received.values()]
    for held, penalty in (
        (DistanceCorrelation(weight=2.0), sum(torch.log(d + 1e-6).item() for d in dependence)),
        (DistanceCorrelation(weight=2.0, log=False), sum(d.item() for d in dependence)),
        (PotentialEnergy(weight=2.0), sum(energy)),
    ):
        assert held.loss(base, where).item() == pytest.approx(0.5 + 2 * penalty, abs=1e-5)
        assert held.loss(base, at(track="local")) is base


def test_with_measurements_the_dependence_on_their_values_counts():
    measured = numbers(12, 1).detach()[:, 0]
    where = at(labels=measured, n_classes=None)
    expected = sum(distance_correlation(z, measured[:, None]).item() for z in where.received.values())
    found = DistanceCorrelation(weight=1.0, log=False).loss(torch.tensor(0.0), where).item()
    assert found == pytest.approx(expected, abs=1e-5)


def test_at_a_feature_party_the_embedding_is_to_depend_less_on_its_columns():
    tables = load("breast-cancer", rows=150).split()
    dependence = {}
    for weight in (None, 3.0):
        defences = {} if weight is None else {"shop": [DistanceCorrelation(weight=weight)]}
        model = SplitClassifier(epochs=40, n_iter_no_change=None)
        share = simulate(model.fit, tables, roles=BOTH, defences=defences).results["shop"]
        inputs = torch.from_numpy(share.inputs_.encode(tables["shop"]))
        dependence[weight] = distance_correlation(share.bottom_(inputs), inputs).item()
    assert dependence[3.0] < dependence[None] - 0.2


def test_the_message_ledger_of_the_feature_party_names_it():
    tables = load("breast-cancer", rows=100).split()
    defences = {"shop": [DistanceCorrelation()]}
    run = simulate(SplitClassifier(epochs=1, n_iter_no_change=None).fit, tables, roles=BOTH, defences=defences)
    entries = [entry for entry in run.transcripts["shop"].entries if entry.kind == "split/embedding"]
    assert {entry.under for entry in entries} == {("DistanceCorrelation(weight=0.3)",)}


def test_measurements_have_no_classes_to_push_apart():
    words = "PotentialEnergy compares rows of one class, but the labels of this run are measurements."
    with pytest.raises(PlanError, match=re.escape(words)):
        PotentialEnergy().loss(torch.tensor(0.0), at(n_classes=None))


@pytest.mark.parametrize("defence", [DistanceCorrelation, PotentialEnergy])
def test_a_weight_is_above_0(defence):
    words = f"{defence.__name__}'s weight should be a number, above 0, but is 0.0. Change it."
    with pytest.raises(PlanError, match=re.escape(words)):
        defence(weight=0.0)
