"""Alignment: parties find their common rows without showing the others.

protocol       Align and Aligned: what a party runs
settings       what all parties agree on beforehand
limits         what a party refuses, and how often it aligns with a peer
identifiers    how ids are read; phone reads telephone numbers, phonetic the sound of names
opening        who takes part, and what they agree on before they compare
star, ring     one topology each, both roles, from the first list to the agreed order
order          how all check that they have the same order
learned        who learned what, in words
state          what one party holds: its ids in buckets, its secrets, its durable steps
buckets        ids cut into parts that fit into memory, and what each part leaves
matching       arithmetic on digests and masked values
messages       what crosses
rr22           the fast engine and its side process
"""

from colonnade.align.identifiers import Identifiers
from colonnade.align.limits import Limits
from colonnade.align.protocol import Align, Aligned
from colonnade.align.settings import Settings
from colonnade.runtime.alignment import Alignment

__all__ = ["Align", "Aligned", "Alignment", "Identifiers", "Limits", "Settings"]
