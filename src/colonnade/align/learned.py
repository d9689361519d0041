"""Learned: who learns what in an alignment, in words, for the privacy ledger and for the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from colonnade.align.opening import Agreement, Participants
from colonnade.align.settings import Settings


@dataclass(frozen=True)
class Learned:
    """What the parties of an alignment learn, as one of them knows it.

    >>> from colonnade.roles import Roles
    >>> settings, roles = Settings(), Roles(label="bank", features=("shop",))
    >>> list(Learned(Participants.of(roles, settings, "shop"), settings).from_sizes([50]))
    ['bank learns that shop has 50 ids']
    """

    names: Participants
    settings: Settings

    def from_sizes(self, ids: Sequence[int]) -> Iterator[str]:
        """Yield what others learn about this party when it tells how many ids it has."""
        rounded = ", rounded up to a power of two" if self.settings.pad else ""
        for peer in self.names.compared:
            counts = self._counts(ids, peer if self.names.leads else self.names.me)
            yield f"{peer} learns that {self.names.me} has {counts} ids{rounded}"
        for peer in (*self.names.apart, *self.names.without_tables):
            yield f"{peer} learns {self._cut}"

    def from_comparison(self, agreement: Agreement) -> Iterator[str]:
        """Yield what others learn about this party when ids are compared."""
        settings, names, me = self.settings, self.names, self.names.me
        in_each = _in_each_bucket(agreement)
        for peer in names.compared:
            if settings.reveal == "both" or (settings.reveal == "one" and peer == names.leader):
                of_pair = names.star and (self._shows_pairs(agreement) or peer == names.leader)
                common = f"{me} has" if of_pair else "all parties have"
                yield f"{peer} learns which of its own ids {common}{self._by_key}"
                if of_pair and peer != names.leader and self._shows_whole(agreement):
                    yield f"{peer} learns which of its own ids all parties have"
            elif settings.reveal == "size":
                yield f"{peer} learns how many ids are common{in_each if peer == names.leader else ''}"
            elif not names.star and peer == names.order[-1]:
                yield f"{peer} learns how many ids are common in each bucket"
            if not names.star and peer == names.leader and len(names.order) > 2:
                yield f"{peer} learns how many ids each group of parties has in common{in_each}"
            if settings.join == "left" and names.leads:
                yield f"{peer} learns how many rows {me} keeps"
            if settings.by_party and names.leads:
                yield f"{peer} learns in which of the aligned rows each of its ids stands"
        if settings.reveal == "both" and settings.join == "inner":
            for peer in names.apart:
                yield f"{peer} learns which of its own ids all parties have"
        if settings.reveal != "one":
            for peer in names.without_tables:
                yield f"{peer} learns {self._size_told}"
        if settings.duplicates == "all":
            # The leader tells every party's numbers to all.
            for peer in names.others:
                yield f"{peer} learns how many rows {me} has for each {self._counted_ids}"

    def by_all(self, agreement: Agreement, size: int | None) -> Iterator[str]:
        """Yield what each party has learned, a sentence each, as far as this party knows."""
        reveal, leader, star = self.settings.reveal, self.names.leader, self.names.star
        me, follower = self.names.me, None if self.names.leads else self.names.me
        sizes = ", ".join(
            f"{name} {self._counts(n_ids, follower or (None if name == me else name))}"
            for name, n_ids in agreement.ids.items()
        )
        rounded = "rounded up to a power of two, " if self.settings.pad else ""
        yield f"Told to those who compare: how many ids there are ({rounded}{sizes})."
        by_key, in_each = self._by_key, _in_each_bucket(agreement)
        rows = "" if size is None else f" ({size:,} rows)"
        if reveal == "size":
            yield "Every party learned how many ids are common, and nobody which."
            if agreement.n_buckets > 1:
                yield f"{leader} learned besides how many are{in_each}."
        elif reveal == "one":
            yield f"{leader} learned which of its own ids are common to all{rows}."
        elif not star or not self._shows_pairs(agreement):
            yield f"Every party learned which of its own ids are common to all{rows}{by_key}."
        else:
            yield f"Every other party learned which of its own ids {leader} has{by_key}."
            if self._shows_whole(agreement):
                yield f"Every party learned which of its own ids are common to all{rows}."
            else:
                yield f"{leader} learned which of its own ids are common to all{by_key}."
        if not star and reveal == "one":
            yield f"{self.names.order[-1]} learned how many ids are common in each bucket."
        if len(self.names.order) > 2 and star:
            yield f"{leader} learned besides which of its ids each other party has{by_key}."
            yield f"Every other party learned {self._cut}."
        elif len(self.names.order) > 2:
            yield f"{leader} learned besides how many ids each group of parties has in common{in_each}, but not which."
        if self.settings.join == "left":
            yield f"Every other party learned how many rows {leader} keeps."
        if self.settings.by_party:
            yield "Every other party learned in which of the aligned rows each of its ids stands."
        yield from self.by_bystanders()
        if self.settings.engine == "rr22":
            yield "The side processes talked over a connection of their own, which is not in the recording."
        if self.settings.duplicates == "all":
            yield f"Every party learned how many rows each other party has for each {self._counted_ids}."

    def by_bystanders(self) -> Iterator[str]:
        """Yield what parties without tables have learned, if there are any."""
        if self.names.without_tables:
            told = "" if self.settings.reveal == "one" else f"{self._size_told}, and "
            yield f"{' and '.join(self.names.without_tables)} learned {told}{self._cut}."

    def _shows_pairs(self, agreement: Agreement) -> bool:
        """Whether a star shows each other party what it has in common with the leader alone."""
        return self.settings.engine == "rr22" or self.settings.join == "left" or self.settings.several_keys

    def _shows_whole(self, agreement: Agreement) -> bool:
        """Whether a star that shows pairs also shows the others which of their ids all parties have."""
        return self._shows_pairs(agreement) and self.settings.join == "inner" and len(self.names.order) > 2

    def _counts(self, ids: Sequence[int], feature_party: str | None) -> str:
        """Numbers of ids by key; if a feature party is named, under the keys that it is matched by."""
        told = [n for key, n in enumerate(ids) if feature_party is None or self.settings.matches(feature_party, key)]
        return " and ".join(f"{n:,}" for n in told)

    @property
    def _by_key(self) -> str:
        return ", and by which key" if self.settings.several_keys else ""

    @property
    def _cut(self) -> str:
        """What the number of buckets tells a party that does not know the lengths of all lists."""
        if self.settings.counts_by_bucket:
            return "into how many buckets lists are cut, hence about how long the longest or the shortest is"
        return f"into how many buckets of {self.settings.bucket_size:,} ids the longest list is cut"

    @property
    def _size_told(self) -> str:
        return "how many ids are common" if self.settings.reveal == "size" else "how many rows are aligned"

    @property
    def _counted_ids(self) -> str:
        return f"id that {self.names.leader} keeps" if self.settings.join == "left" else "common id"


def _in_each_bucket(agreement: Agreement) -> str:
    return f" in each of {agreement.n_buckets:,} buckets" if agreement.n_buckets > 1 else ""
