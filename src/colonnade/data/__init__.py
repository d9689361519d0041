"""Data for simulation: sets by name, and ways to cut tables by rows and by columns."""

from colonnade.data.datasets import Dataset, DatasetInfo, available, load
from colonnade.data.partition import extend, intersect, require_same_rows, split, train_test_split
from colonnade.data.ranking import FeaturePartition, public_private
from colonnade.data.splits import ColumnSplit, cut_columns

__all__ = [
    "ColumnSplit",
    "Dataset",
    "DatasetInfo",
    "FeaturePartition",
    "available",
    "cut_columns",
    "extend",
    "intersect",
    "load",
    "public_private",
    "require_same_rows",
    "split",
    "train_test_split",
]
