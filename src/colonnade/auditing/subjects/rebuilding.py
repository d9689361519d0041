"""Rebuilding: how well whole records are rebuilt, by measures that stand beside the worst column's R²."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from colonnade.auditing.contents import Picture
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array

TOLERANCE = 0.1
# Distances between all pairs of rows are computed among at most this many.
MOST_ROWS = 1000
MOST_PICTURES = 6


@dataclass(frozen=True)
class Pixels:
    """What turns standardised columns back into pixels.

    Attributes:
        deviations: The deviation of each pixel.
        means: The mean of each pixel.
        peak: The range of all pixels.
        darkest: The lowest value of any pixel.
        places: The row and the column of each pixel in the image.
    """

    deviations: Float64Array
    means: Float64Array
    peak: float
    darkest: float
    places: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, table: Table, columns: tuple[str, ...]) -> Pixels | None:
        """The pixels of a table whose columns are all named like pixel_03_11; None where they are not."""
        found = [re.fullmatch(r".*_(\d+)_(\d+)", name) for name in columns]
        if not all(re.fullmatch(r".*_\d+_\d+", name) for name in table.columns) or len(set(columns)) < len(columns):
            return None
        values = np.stack([np.asarray(table.column(name), np.float64) for name in columns], axis=1)
        if np.isnan(values).any():
            return None
        places = tuple((int(place[1]), int(place[2])) for place in found if place is not None)
        return cls(values.std(axis=0), values.mean(axis=0), float(np.ptp(values)), float(values.min()), places)

    def pictures(self, said: Float64Array, truth: Float64Array) -> tuple[Picture, ...]:
        """The first few rows as images, true beside rebuilt."""
        few = slice(MOST_PICTURES)
        return tuple(map(Picture, self._drawn(truth[few]), self._drawn(said[few])))

    def _drawn(self, values: Float64Array) -> list[tuple[str, ...]]:
        places = np.array(self.places) - np.min(self.places, axis=0)
        shades = (values * self.deviations + self.means - self.darkest) / max(self.peak, 1e-12)
        images = np.full((len(values), *(places.max(axis=0) + 1)), -1)
        images[:, places[:, 0], places[:, 1]] = (255 * shades.clip(0, 1)).round()
        return [tuple("".join(".." if p < 0 else f"{p:02x}" for p in line) for line in image) for image in images]

    def quality(self, said: Float64Array, truth: Float64Array) -> tuple[float, float]:
        """PSNR in dB, and the structural similarity of whole images on average (Wang et al. 2004)."""
        x, y = (values * self.deviations + self.means for values in (said, truth))
        psnr = 10 * np.log10(self.peak**2 / max(float(((x - y) ** 2).mean()), 1e-12))
        first, second = (0.01 * self.peak) ** 2, (0.03 * self.peak) ** 2
        covariance = ((x - x.mean(axis=1, keepdims=True)) * (y - y.mean(axis=1, keepdims=True))).mean(axis=1)
        mean_x, mean_y, var_x, var_y = x.mean(axis=1), y.mean(axis=1), x.var(axis=1), y.var(axis=1)
        similar = (2 * mean_x * mean_y + first) * (2 * covariance + second)
        similar /= (mean_x**2 + mean_y**2 + first) * (var_x + var_y + second)
        return float(psnr), float(similar.mean())


def near_share(said: Float64Array, truth: Float64Array) -> float:
    """The share of numbers within a tenth of their column's range; missing ones do not count."""
    with np.errstate(invalid="ignore"):
        close = np.abs(said - truth) <= TOLERANCE * (np.nanmax(truth, axis=0) - np.nanmin(truth, axis=0))
    return float(close[~np.isnan(truth)].mean())


def singled_out(said: Float64Array, truth: Float64Array) -> tuple[float, float, float]:
    """The share of rows whose own record is the nearest, the same for exact values, and the median rank.

    Records at equal distance share the place. Numbers of which the guess says the same for all rows do not count.
    """
    from scipy.spatial.distance import cdist

    tells = np.ptp(said, axis=0) > 0
    said, truth = said[:MOST_ROWS, tells], np.nan_to_num(truth[:MOST_ROWS, tells])
    shares = []
    for values in (said, truth):
        far = cdist(values, truth)
        own = np.diag(far)[:, None]
        nearer, equal = (far < own - 1e-12).sum(axis=1), (np.abs(far - own) <= 1e-12).sum(axis=1)
        shares.append((float(((nearer == 0) / equal).mean()), float(np.median(nearer + (equal - 1) / 2))))
    (share, rank), (best, _) = shares
    return share, best, rank


def random_error(truth: Float64Array) -> Float64Array:
    """The expected squared error, number by number, of a guess that is uniform over each column's range."""
    low, high = np.nanmin(truth, axis=0), np.nanmax(truth, axis=0)
    return np.asarray((high - low) ** 2 / 12 + (truth - (low + high) / 2) ** 2, np.float64)


def named_categories(
    said: Float64Array, truth: Float64Array, columns: tuple[str, ...]
) -> Mapping[str, tuple[float, float]]:
    """For each column of text, how often its level is named, and how often the commonest level is right."""
    names, found = np.array(columns), {}
    for name in dict.fromkeys(columns):
        mine = np.flatnonzero(names == name)
        levels = truth[:, mine]
        present = ~np.isnan(levels).any(axis=1)
        if len(mine) < 2 or any(len(np.unique(level)) > 2 for level in levels[present].T):
            continue
        # Numbers were centred: the level of a row is the one number that is at its upper value.
        upper = np.argmax(levels[present] - levels[present].min(axis=0), axis=1)
        # A guess is compared with the upper value of each level, so that rare levels are not named by their mean.
        guessed = np.argmax(said[present][:, mine] - levels[present].min(axis=0), axis=1)
        counts = np.bincount(upper)
        found[name] = float((guessed == upper).mean()), float(counts.max() / counts.sum())
    return found
