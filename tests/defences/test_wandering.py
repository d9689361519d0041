import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from colonnade.data import load
from colonnade.defences.wandering import BoundaryWandering, kernel_wandering_loss, wandering_loss
from colonnade.errors import PlanError
from colonnade.models.networks.messages import Gradient
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.context import HookContext
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table

BOTH = Roles(label="bank", features=("shop",))
WEIGHTINGS = ["pairs", "classes"]


def batch(rows, width, n_classes, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, width, generator=generator, dtype=torch.float64).to(dtype)
    return z.requires_grad_(), torch.randint(n_classes, (rows,), generator=generator)


def pair_by_pair(z, labels, weighting="pairs"):
    """The definition, one pair at a time."""
    units = [row / row.norm() for row in z]
    cosines = {}
    for i in range(len(z)):
        for j in range(len(z)):
            if i != j and labels[i] == labels[j]:
                cosines.setdefault(int(labels[i]), []).append(units[i] @ units[j])
    if not cosines:
        return 0 * z.sum()
    if weighting == "pairs":
        return torch.stack([cosine for of_class in cosines.values() for cosine in of_class]).mean()
    return torch.stack([torch.stack(of_class).mean() for of_class in cosines.values()]).mean()


def with_gradient(loss, z):
    return loss.item(), torch.autograd.grad(loss, z)[0]


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@given(rows=st.integers(1, 24), width=st.integers(1, 9), n_classes=st.integers(1, 6), seed=st.integers(0, 2**31))
def test_the_closed_form_is_the_mean_over_pairs_in_value_and_gradient(weighting, rows, width, n_classes, seed):
    z, labels = batch(rows, width, n_classes, seed, torch.float64)
    value, gradient = with_gradient(wandering_loss(z, labels, n_classes, weighting=weighting), z)
    expected, expected_gradient = with_gradient(pair_by_pair(z, labels, weighting), z)
    assert value == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_in_single_precision_it_is_right_to_a_millionth(weighting):
    z, labels = batch(96, 16, 5)
    value, gradient = with_gradient(wandering_loss(z, labels, 5, weighting=weighting), z)
    expected, expected_gradient = with_gradient(pair_by_pair(z.double(), labels, weighting), z)
    assert value == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_the_gradients_are_those_of_the_values(weighting):
    z, labels = batch(12, 3, 3, dtype=torch.float64)
    frequencies = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.autograd.gradcheck(lambda x: wandering_loss(x, labels, 3, weighting=weighting), z)
    assert torch.autograd.gradcheck(lambda x: kernel_wandering_loss(x, labels, 3, frequencies, weighting=weighting), z)


def test_ordered_and_unique_pairs_have_one_mean_and_the_mixed_reading_is_twice_as_much():
    z, labels = batch(20, 4, 3, dtype=torch.float64)
    units = torch.nn.functional.normalize(z, dim=1)
    cosines, same = units @ units.T, labels[:, None] == labels
    ordered, unique = same & ~torch.eye(20, dtype=torch.bool), same.triu(diagonal=1)
    value = wandering_loss(z, labels, 3).item()
    assert value == pytest.approx(cosines[ordered].mean().item()) == pytest.approx(cosines[unique].mean().item())
    assert 2 * value == pytest.approx((cosines[ordered].sum() / unique.sum()).item())


KERNELS = {
    "cosine": wandering_loss,
    "gaussian": lambda z, labels, n_classes, **more: kernel_wandering_loss(
        z, labels, n_classes, torch.randn(z.shape[1], 16, generator=torch.Generator().manual_seed(2)), **more
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        ([[0, 0], [0, 0], [0, 0]], [0, 0, 1]),
        ([[0, 0], [1, 0], [0, 1]], [0, 0, 0]),
        ([[1e-7, 0], [1e-5, 0], [1, 1]], [0, 0, 0]),
        ([[1, 2], [3, 4], [5, 6]], [0, 1, 2]),
        ([[1, 2]], [0]),
        ([[1, 2], [2, 1], [1, 1]], [1, 1, 1]),
        ([[3e4, 3e4], [-3e4, 3e4]], [0, 0]),
    ],
    ids=["all zero", "one zero", "tiny", "only singletons", "one row", "one class", "large"],
)
def test_nothing_makes_value_or_gradient_infinite(kernel, weighting, rows, labels, dtype):
    z = torch.tensor(rows, dtype=dtype, requires_grad=True)
    loss = KERNELS[kernel](z, torch.tensor(labels), 3, weighting=weighting)
    (gradient,) = torch.autograd.grad(loss, z)
    assert loss.dtype == torch.float32
    assert gradient.dtype == dtype
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient.float()).all()


def test_a_row_without_a_direction_counts_as_not_there():
    z, labels = batch(10, 4, 2)
    with_zero = torch.cat([z.detach(), torch.zeros(1, 4)]).requires_grad_()
    loss = wandering_loss(with_zero, torch.cat([labels, labels[:1]]), 2)
    assert loss.item() == pytest.approx(wandering_loss(z, labels, 2).item())
    assert torch.autograd.grad(loss, with_zero)[0][-1].tolist() == [0, 0, 0, 0]


def test_under_mixed_precision_the_loss_is_still_computed_in_single_precision():
    z, labels = batch(256, 16, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = wandering_loss(z, labels, 4)
    assert mixed.dtype == torch.float32
    assert mixed.item() == wandering_loss(z, labels, 4).item()


def test_antipodal_codes_fool_the_cosine_and_not_the_kernel():
    codes = torch.eye(5).repeat_interleave(40, dim=0) * torch.tensor([1.0, -1.0]).repeat(100)[:, None]
    labels = torch.arange(5).repeat_interleave(40)
    shuffled = labels[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
    assert abs(wandering_loss(codes, labels, 5).item()) < 0.03
    gaussian = KERNELS["gaussian"]
    assert gaussian(codes, labels, 5).item() > 5 * gaussian(codes, shuffled, 5).item()


def test_the_kernel_loss_is_the_mean_discrepancy_of_the_gaussian_kernel():
    z, labels = batch(30, 3, 2, dtype=torch.float64)
    frequencies = torch.randn(3, 200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) / 0.5
    units = torch.nn.functional.normalize(z, dim=1)
    kernel = torch.exp(-torch.cdist(units, units).square() / (2 * 0.5**2))
    expected = 0.0
    for k in range(2):
        is_class = (labels == k).double()
        difference = is_class / is_class.sum() - 1 / 30
        expected += (is_class.sum() / 30 * (difference @ kernel @ difference)).item()
    assert kernel_wandering_loss(z, labels, 2, frequencies).item() == pytest.approx(expected, rel=0.02)


def test_weighting_by_classes_lets_a_rare_class_count_as_much_as_a_frequent_one():
    z = torch.cat([torch.eye(8).repeat(5, 1), torch.ones(2, 8)])
    labels = torch.tensor([0] * 40 + [1] * 2)
    of_frequent = wandering_loss(z[:40], labels[:40], 2).item()
    assert wandering_loss(z, labels, 2).item() == pytest.approx(of_frequent, abs=2e-3)
    assert wandering_loss(z, labels, 2, weighting="classes").item() == pytest.approx((of_frequent + 1) / 2)


def test_the_gradient_of_the_loss_alone_tells_which_rows_share_a_class():
    """Embeddings are pure noise here; the documentation warns of this where the scope is "received"."""
    z, labels = batch(60, 16, 4, dtype=torch.float64)
    _, gradient = with_gradient(wandering_loss(z, labels, 4), z)
    lengths = z.detach().norm(dim=1, keepdim=True)
    units, scaled = z.detach() / lengths, gradient * lengths
    # Scaled, a row's gradient is its class's sum without the part along the row. So the difference of two rows of one
    # class lies in the plane of these two rows, and that of rows of different classes does not.
    outside = torch.zeros(60, 60, dtype=torch.float64)
    for i in range(60):
        for j in range(i):
            plane = torch.linalg.qr(units[[i, j]].T)[0]
            difference = scaled[i] - scaled[j]
            outside[i, j] = (difference - plane @ (plane.T @ difference)).norm() / difference.norm()
    same = (labels[:, None] == labels).tril(-1)
    different = (labels[:, None] != labels).tril(-1)
    assert outside[same].max() < 1e-9
    assert outside[different].min() > 1e-2


@pytest.fixture(scope="module")
def tables():
    return load("breast-cancer", rows=120).split()


def at(z, labels, n_classes=2, **more):
    given = {"own": {"embedding": z}, "received": {"shop": z}} | more
    return HookContext(1, 0, np.arange(len(z)), "train", labels=labels, n_classes=n_classes, **given)


def test_the_penalty_is_added_alpha_times_for_each_embedding_in_its_scope():
    own, labels = batch(20, 4, 2)
    received, _ = batch(20, 4, 2, seed=1)
    public, _ = batch(20, 4, 2, seed=2)
    base = torch.tensor(0.25)
    losses = {name: wandering_loss(z, labels, 2).item() for name, z in (("own", own), ("received", received))}
    where = at(own, labels, own={"embedding": own}, received={"shop": received})
    for scope, total in (("public", losses["own"]), ("received", losses["received"]), ("both", sum(losses.values()))):
        held = BoundaryWandering(alpha=3.0, scope=scope)
        assert held.loss(base, where).item() == pytest.approx(0.25 + 3 * total, abs=1e-6)
    two_tracks = at(own, labels, own={"public": public, "private": own})
    expected = 0.25 + wandering_loss(public, labels, 2).item()
    assert BoundaryWandering().loss(base, two_tracks).item() == pytest.approx(expected, abs=1e-6)


def test_the_local_track_is_left_alone_and_so_is_everything_at_alpha_0():
    z, labels = batch(20, 4, 2)
    base = torch.tensor(0.25)
    assert BoundaryWandering().loss(base, at(z, labels, track="local")) is base
    assert BoundaryWandering(alpha=0.0).loss(base, at(z, labels)) is base


def first_gradient(tables, scope, alpha, **more):
    defences = {"bank": [BoundaryWandering(alpha=alpha, scope=scope, **more)]}
    model = SplitClassifier(epochs=1, n_iter_no_change=None)
    run = simulate(model.fit, tables, roles=BOTH, defences=defences, keep="all")
    return next(iter(run.transcripts["shop"].messages(Gradient))).message.values


@pytest.mark.parametrize("kernel", ["cosine", "gaussian"])
def test_in_the_public_scope_the_feature_party_gets_the_very_same_gradient_from_the_same_state(tables, kernel):
    gradients = [first_gradient(tables, "public", alpha, kernel=kernel) for alpha in (0.0, 5.0)]
    np.testing.assert_array_equal(*gradients)


def test_in_the_received_scope_the_gradient_carries_the_penalty(tables):
    without, with_penalty = (first_gradient(tables, "received", alpha) for alpha in (0.0, 5.0))
    assert np.abs(with_penalty - without).max() > 1e-4


@pytest.mark.parametrize("kernel", ["cosine", "gaussian"])
def test_training_under_it_pushes_the_classes_mean_directions_together(tables, kernel):
    penalties = {}
    for alpha in (0.0, 5.0):
        defences = {"bank": [BoundaryWandering(alpha=alpha, scope="received", kernel=kernel)]}
        run = simulate(SplitClassifier(epochs=40, n_iter_no_change=None).fit, tables, roles=BOTH, defences=defences)
        share = run.results["shop"]
        embedding = share.bottom_(torch.from_numpy(share.inputs_.encode(tables["shop"])))
        labels = torch.tensor(np.asarray(tables["bank"].labels))
        penalties[alpha] = KERNELS[kernel](embedding, labels, 2).item()
    assert penalties[5.0] < penalties[0.0] / 3


def test_a_rare_class_without_pairs_is_warned_about_although_others_have_many(tables):
    labels = np.zeros(120, int)
    labels[60:118], labels[118:] = 1, 2
    rare = {**tables, "bank": tables["bank"].with_labels(labels)}
    model = SplitClassifier(epochs=1, n_iter_no_change=None)
    with pytest.warns(UserWarning, match=r"1 of 3 classes have fewer than 3 of the first batch's 120 rows"):
        simulate(model.fit, rare, roles=BOTH, defences={"bank": [BoundaryWandering()]})


def test_a_second_derivative_is_refused_rather_than_wrong():
    z, labels = batch(12, 4, 2)
    (gradient,) = torch.autograd.grad(wandering_loss(z, labels, 2).exp(), z, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_batch_with_few_pairs_is_warned_about_once(tables):
    labels = np.arange(120) // 2
    many = {**tables, "bank": tables["bank"].with_labels(labels)}
    model = SplitClassifier(epochs=2, batch_size=20, n_iter_no_change=None)
    words = r"\d\d of 60 classes have fewer than 3 of the first batch's 20 rows"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        simulate(model.fit, many, roles=BOTH, defences={"bank": [BoundaryWandering()]})
    (warning,) = caught
    assert re.match(words, str(warning.message))
    assert "Use larger batches." in str(warning.message)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"alpha": -1.0}, "alpha should be a number, at least 0, but is -1.0"),
        ({"alpha": float("nan")}, "alpha should be a number, at least 0, but is nan"),
        ({"scope": "private"}, "scope should be 'public', 'received' or 'both', but is 'private'"),
        ({"kernel": "rbf"}, "kernel should be 'cosine' or 'gaussian', but is 'rbf'"),
        ({"weighting": "rows"}, "weighting should be 'pairs' or 'classes', but is 'rows'"),
        ({"features": 0}, "features should be a whole number, at least 1, but is 0"),
        ({"bandwidth": 0.0}, "bandwidth should be a number, above 0, but is 0.0"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters, words):
    with pytest.raises(PlanError, match=f"BoundaryWandering's {re.escape(words)}. Change it"):
        BoundaryWandering(**parameters)


def test_measurements_have_no_classes_to_push_apart():
    z, labels = batch(4, 2, 2)
    with pytest.raises(PlanError, match=r"the labels of this run are measurements\. Leave the defence out"):
        BoundaryWandering().loss(torch.tensor(0.0), at(z, labels, n_classes=None))


def test_a_label_party_without_columns_has_no_public_embedding(tables):
    bare = Table.of({"id": range(120), "label": np.asarray(tables["bank"].labels)}, labels="label", owner="bank")
    shop = load("breast-cancer", rows=120).split()["shop"]
    shop = Table.of({"id": range(120), **{name: shop.column(name) for name in shop.columns}}, owner="shop")
    with pytest.raises(PlanError, match=r"the label party has no columns. Use the scope 'received'"):
        simulate(
            SplitClassifier(epochs=1).fit,
            {"bank": bare, "shop": shop},
            roles=BOTH,
            defences={"bank": [BoundaryWandering()]},
        )


def test_a_feature_party_has_no_labels_to_push_apart_by(tables):
    words = "shop holds BoundaryWandering(public), which reads labels, but in SplitClassifier shop has none."
    with pytest.raises(PlanError, match=re.escape(words)):
        simulate(SplitClassifier().fit, tables, roles=BOTH, defences={"shop": [BoundaryWandering()]})
