import numpy as np

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
