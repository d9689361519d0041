"""Alignment: parties find their common rows without showing the others.

identifiers    how ids are read
buckets, shelf ids cut into parts that fit into memory, and what each part leaves
star, ring     who compares what with whom
protocol       Align and Aligned: what a party runs
limits         what it refuses
"""

from colonnade.align.identifiers import Identifiers
from colonnade.align.limits import Limits
from colonnade.align.protocol import Align, Aligned, align
from colonnade.align.settings import Settings
from colonnade.runtime.alignment import Alignment

__all__ = ["Align", "Aligned", "Alignment", "Identifiers", "Limits", "Settings", "align"]
