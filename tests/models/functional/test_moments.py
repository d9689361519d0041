import numpy as np
import pytest

from colonnade.models.functional.moments import form_moments


def test_corrected_moments_are_those_of_the_curves_without_noise_on_average():
    rng = np.random.default_rng(1)
    z, y, w = rng.normal(size=(60, 2, 6)), rng.normal(size=(60, 3)), rng.normal(size=(12, 3))
    root = rng.normal(size=(2, 6, 6)) / 4
    noise = root.transpose(0, 2, 1) @ root
    clean = form_moments(z, y)
    n, gram, cross, error = 4000, 0.0, 0.0, 0.0
    for _ in range(n):
        noisy = z + np.einsum("njq,jqr->njr", rng.normal(size=z.shape), root)
        found = form_moments(noisy, y, noise)
        gram, cross = gram + found.gram / n, cross + found.cross / n
        error += (found.total + (w * (found.gram @ w - 2 * found.cross)).sum()) / n
    assert np.abs(gram - clean.gram).max() < 0.02 * np.abs(clean.gram).max()
    assert np.abs(cross - clean.cross).max() < 0.02 * np.abs(clean.gram).max()
    true = clean.total + (w * (clean.gram @ w - 2 * clean.cross)).sum()
    assert abs(error - true) < 0.02 * true


def test_repaired_moments_are_positive_and_the_unrepaired_ones_are_not():
    rng = np.random.default_rng(2)
    z, y = rng.normal(size=(30, 4, 10)) * 1.5, rng.normal(size=(30, 5))
    found = form_moments(z, y, np.stack([np.eye(10)] * 4))
    assert np.linalg.eigvalsh(found.gram)[0] < -10
    for correction in (1.0, 0.5):
        assert np.linalg.eigvalsh(found.for_training(correction).gram)[0] > 0
    uncorrected = form_moments(z, y)
    np.testing.assert_allclose(found.for_training(0.0).gram, uncorrected.gram, atol=1e-9)


def test_moments_without_noise_are_trained_on_as_they_are():
    z, y = np.random.default_rng(0).normal(size=(2, 9, 3))
    found = form_moments(z[:, None], y)
    assert found.for_training(1.0) is found


def test_the_blocks_are_those_of_each_feature():
    z = np.random.default_rng(0).normal(size=(20, 3, 4))
    found = form_moments(z, z[:, 0])
    for j in range(3):
        np.testing.assert_allclose(found.blocks[j], form_moments(z[:, j : j + 1], z[:, 0]).gram)


@pytest.mark.parametrize("rows", [(7, 5), (7, 9), (30, 5)])
def test_products_that_are_asked_for_piece_by_piece_are_those_of_the_whole_matrix(rows):
    rng = np.random.default_rng(4)
    noise = np.stack([(j + 1) * np.eye(4) for j in range(4)])
    some = [form_moments(rng.normal(size=(n, 4, 4)), rng.normal(size=(n, 2)), noise) for n in rows]
    together = some[0] + some[1]
    centred = [each for each in some if each.products.inputs is not None]
    assert (together.products.stacked is None) == (len(centred) < 2 or sum(rows) >= 16)
    gram = sum(each.gram for each in some)
    np.testing.assert_allclose(together.gram, gram, atol=1e-12)
    assert together.trace == pytest.approx(np.trace(gram))
    for j in range(4):
        np.testing.assert_allclose(together.blocks[j], gram[4 * j : 4 * j + 4, 4 * j : 4 * j + 4], atol=1e-12)
        asked = [together.block(i, j) for i in range(4)]
        np.testing.assert_allclose(np.concatenate(asked), gram[:, 4 * j : 4 * j + 4], atol=1e-12)
        columns = together.products.columns_of(j).reshape(16, 4)
        np.testing.assert_allclose(columns, together.products.whole[:, 4 * j : 4 * j + 4], atol=1e-12)


def test_noise_that_is_put_back_leaves_the_products_shared():
    rng = np.random.default_rng(4)
    found = form_moments(rng.normal(size=(7, 4, 4)), rng.normal(size=(7, 2)), np.stack([np.eye(4)] * 4))
    assert found.for_training(0.0).products is found.products
