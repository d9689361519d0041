"""Data for simulation: sets by name, and ways to cut tables into parties, training and test rows."""

from colonnade.data.datasets import Dataset, DatasetInfo, available, load
from colonnade.data.partition import intersect, require_same_rows, split, train_test_split

__all__ = [
    "Dataset",
    "DatasetInfo",
    "available",
    "intersect",
    "load",
    "require_same_rows",
    "split",
    "train_test_split",
]
