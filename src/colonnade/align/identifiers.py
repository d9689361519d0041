"""Identifiers: how ids are read, so that one person has one id however two organisations write it.

A *key* is what people are matched by: one rule, or several joined by `+` for columns that identify only together.

    exact          text as it stands, or a whole number as its digits: 7 and "7" are the same, "007" is not
    text           text without regard to case; white space is dropped at the ends, and is one space elsewhere; a whole
                   number as its digits
    integer        a whole number or text of one: 7, "7", "007" and "7.0" are the same
    email          as text, without what stands around an address; a value without exactly one @, or with white space
                   in it, counts as missing
    phone:41       digits in E.164; a number without a country code gets this code; a value that is no number counts as
                   missing
    soundex        a name by its sound in English, each word by itself; a value without a letter counts as missing
    cologne        a name by its sound in German, likewise

All rules but `exact` first take the Unicode normal form NFKC, drop invisible characters (format characters such as a
zero-width space), and write digits of every script as 0 to 9, dashes as -, apostrophes as '.

Normal forms, case and kinds of characters come from the Unicode tables of a party's Python. The entry of a character
hardly ever changes, so two versions of Python agree on all characters that both know.

A value that is missing or empty is no id. The parts of a composite key are joined with their lengths, so that
("ab", "c") and ("a", "bc") differ; the key is missing if one of its parts is.

All parties must read ids alike: they compare the hash of their rules before anything else.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from colonnade.align.phone import e164, is_code, metadata_version
from colonnade.align.phonetic import cologne, soundex
from colonnade.errors import DataError, PlanError
from colonnade.tables.columns import whole_numbers
from colonnade.tables.table import Table
from colonnade.text import nearest

# Raised whenever a rule reads a value differently.
VERSION = 3
DIGEST_BYTES = 16

# What Python's str.split takes for white space, among ASCII.
_BLANKS = "[\t\n\x0b\x0c\r\x1c-\x1f ]+"


@dataclass(frozen=True)
class Identifiers:
    """The rules by which a party reads its ids, one key after the other, and the columns they are in.

    Args:
        keys: Rules, tried in this order; equal at all parties.
        columns: For each key the party's own column, or columns joined by `+`; empty where the party has no id under
            the key. The id column if there is one key only.

    >>> Identifiers(("email", "text+integer"), ("mail", "surname+born")).columns_of(1)
    ('surname', 'born')
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse rules that do not exist, and columns that do not go with them."""
        check_keys(self.keys)
        if len(self.columns) != len(self.keys):
            raise PlanError(
                f"Each of the {len(self.keys)} keys ({', '.join(self.keys)}) needs a column, but {len(self.columns)} "
                "were named. Name one for each key."
            )
        for key, columns in zip(self.keys, self.columns, strict=True):
            if columns and len(key.split("+")) != len(columns.split("+")):
                raise PlanError(
                    f"The key {key!r} has {len(key.split('+'))} parts, but {columns!r} names {len(columns.split('+'))} "
                    "columns. Join as many columns by '+'."
                )

    @classmethod
    def of(cls, table: Table, keys: Sequence[str] | None, columns: Sequence[str] | None) -> Identifiers:
        """The rules for a table: as given, or by the type of what it is matched by."""
        if isinstance(columns, str):
            raise PlanError(
                f"The columns of {table.owner or 'a party'} should be a list with one for each key, but are the text "
                f"{columns!r}. Write [{columns!r}]."
            )
        if keys is None:
            keys = ("integer" if _holds_whole_numbers(table, columns[0] if columns else table.id_name) else "text",)
        if columns is None:
            if len(keys) > 1 or "+" in keys[0]:
                raise PlanError(
                    f"The keys {', '.join(keys)} need columns, but {table.owner or 'the party'} named none. Name one "
                    "for each key, several joined by '+'."
                )
            columns = (table.id_name,)
        return cls(tuple(keys), tuple(columns))

    @property
    def hash(self) -> str:
        """A digest of the rules, which all parties must share; each party names its own columns."""
        return blake3(json.dumps({"version": VERSION, "keys": self.rules}).encode()).hexdigest()

    @property
    def rules(self) -> list[str]:
        """The keys as other parties are told them: with the version of the numbering plans that `phone` reads by."""
        return [f"{key} ({metadata_version()})" if "phone:" in key else key for key in self.keys]

    @property
    def enumerable(self) -> tuple[str, ...]:
        """The keys under which a party could list all ids there are: numbers and sounds of names.

        >>> Identifiers(("phone:41", "email"), ("mobile", "mail")).enumerable
        ('phone:41',)
        """
        return tuple(self.keys[key] for key in self.held if all(map(_is_enumerable, self.keys[key].split("+"))))

    @property
    def held(self) -> tuple[int, ...]:
        """The numbers of the keys under which the party has ids."""
        return tuple(key for key, columns in enumerate(self.columns) if columns)

    def columns_of(self, key: int) -> tuple[str, ...]:
        """The party's columns that a key is in."""
        return tuple(filter(None, self.columns[key].split("+")))

    def digests(
        self, table: Table, key: int, salt: bytes
    ) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]:
        """Keyed digests of the ids under a key, and the numbers of their rows, chunk by chunk; others are left out.

        The salt is equal at all parties of a run, and new in every run.
        """
        named = self._require_columns(table, key)
        if not named:
            return
        secret = blake3(self.hash.encode(), key=salt).digest() + bytes([key])
        matched = table.select([name for name in named if name in table.columns])
        found = matched.map(keyed_digests, self.keys[key].split("+"), named, secret)
        for begin, (digests, rows) in zip(matched.partitions.bounds, found, strict=False):
            yield digests, begin + rows

    def count(self, table: Table, key: int, known: npt.NDArray[np.bool_]) -> tuple[int, int]:
        """The number of different ids under a key, and of rows that repeat one; marks in `known` rows with an id."""
        n_held, hashes = 0, np.empty(len(table), np.int64)
        for digests, rows in self.digests(table, key, secrets.token_bytes(32)):
            known[rows] = True
            hashes[n_held : n_held + len(rows)] = digests.view(np.int64)[:, 0]
            n_held += len(rows)
        hashes = hashes[:n_held]
        hashes.sort()
        repeated = int((hashes[1:] == hashes[:-1]).sum())
        return n_held - repeated, repeated

    def repetition(self, table: Table, key: int, repeated: int, owner: str) -> DataError:
        """The error about rows that repeat an id."""
        columns = " and ".join(repr(name) for name in self.columns_of(key))
        return DataError(
            f"{owner} should have one row for each id, but {repeated:,} of {len(table):,} rows repeat an id of an "
            f"earlier one in {columns}. Merge them, or set duplicates under [align] to 'first' or 'all'."
        )

    def absence(self, table: Table, key: int, owner: str) -> DataError:
        """The error about a table without a single id."""
        columns = " and ".join(repr(name) for name in self.columns_of(key))
        return DataError(
            f"{owner} should have ids by the rule {self.keys[key]!r} in {columns}, but none of its {len(table):,} rows "
            f"has one. Name the right columns for {owner} under [align.columns], or another rule under [align] keys."
        )

    def _require_columns(self, table: Table, key: int) -> tuple[str, ...]:
        """The columns that a key is in, which the table must have."""
        names, existing = self.columns_of(key), (table.id_name, *table.columns)
        for name in names:
            if name not in existing:
                raise DataError(
                    f"{table.owner or 'The party'} should be matched by its column {name!r}, but has none of that name."
                    f"{nearest(name, existing)} Correct the columns of the alignment."
                )
        return names


def keyed_digests(
    part: Table, rules: Sequence[str], names: Sequence[str], secret: bytes
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The digests, under a secret, of those rows of a partition that have an id, and the numbers of these rows."""
    ids, rows = _read(part, rules, names)
    # A key in front is as safe for BLAKE2 as its key parameter, and takes a third less time.
    # Digests go into one piece of memory: many small pieces would leave gaps that nothing larger fits into.
    hashed = bytearray(len(ids) * DIGEST_BYTES)
    for start, each in zip(range(0, len(hashed), DIGEST_BYTES), ids, strict=True):
        hashed[start : start + DIGEST_BYTES] = blake2b(secret + each, digest_size=DIGEST_BYTES).digest()
    return np.frombuffer(hashed, np.uint8).reshape(-1, DIGEST_BYTES), rows


def _read(part: Table, rules: Sequence[str], names: Sequence[str]) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """The ids of a partition as the rules read them, and the numbers of their rows."""
    arrow = part.to_arrow()
    parts = [
        normalised(arrow.column(name).combine_chunks(), rule, column=name, owner=part.owner)
        for rule, name in zip(rules, names, strict=True)
    ]
    valid = [each.is_valid().to_numpy(zero_copy_only=False) for each in parts]
    held = np.flatnonzero(np.logical_and.reduce(valid))
    texts = [each.take(pa.array(held)).cast(pa.large_binary()).to_pylist() for each in parts]
    return texts[0] if len(texts) == 1 else [_joined(each) for each in zip(*texts, strict=True)], held


def _holds_whole_numbers(table: Table, column: str) -> bool:
    if column not in (table.id_name, *table.columns):
        return False
    return all(table.select([name for name in (column,) if name in table.columns]).map(_are_whole_numbers, column))


def _are_whole_numbers(part: Table, column: str) -> bool:
    values = part.to_arrow().column(column)
    return pa.types.is_integer(values.type) or (pa.types.is_floating(values.type) and whole_numbers(values) is not None)


def normalised(values: pa.Array, rule: str, *, column: str = "ids", owner: str | None = None) -> pa.Array:
    """Values as a rule reads them, as text; null where there is no id.

    >>> normalised(pa.array([" Jürgen  Müller", "JÜRGEN MÜLLER ", ""]), "text").to_pylist()
    ['jürgen müller', 'jürgen müller', None]
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    name, _, argument = rule.partition(":")
    if pa.types.is_floating(values.type):
        # Whole numbers with gaps may come as floats, and so does a column without a single value.
        whole = whole_numbers(values)
        values = values if whole is None else whole
    if pa.types.is_date(values.type):
        values = values.cast(pa.large_string())
    if values.null_count == len(values):
        return pa.nulls(len(values), pa.large_string())
    if pa.types.is_integer(values.type):
        if name == "integer":
            return values.cast(pa.large_string())
        if name in ("email", "soundex", "cologne"):
            raise DataError(
                f"{owner or 'The party'} should bring text for the rule {name!r}, but its column {column!r} holds "
                "whole numbers. Name another column, or another rule at all parties."
            )
    elif not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise DataError(
            f"{owner or 'The party'} should be matched by text or whole numbers, but its column {column!r} is of type "
            f"{values.type}. Convert it, at all parties alike."
        )
    values = values.cast(pa.large_string())
    if name == "exact":
        return _without_empty(values)
    if name == "text":
        return _without_empty(_as_text(values))
    read = _READERS[name]
    return pa.array(
        [None if value is None else read(value, argument) for value in values.to_pylist()], pa.large_string()
    )


def _as_text(values: pa.Array) -> pa.Array:
    """The rule `text`: in Arrow what is ASCII, one by one in Python what is not."""
    plain = pc.string_is_ascii(values)
    lowered = pc.utf8_lower(values)
    if pc.any(pc.match_substring_regex(lowered, _BLANKS)).as_py():
        lowered = pc.utf8_trim(pc.replace_substring_regex(lowered, _BLANKS, " "), " ")
    if pc.all(plain).as_py() in (True, None):
        return lowered
    odd = pc.fill_null(pc.invert(plain), False)
    read = pa.array([as_text(value) for value in values.filter(odd).to_pylist()], pa.large_string())
    return pc.replace_with_mask(lowered, odd, read)


def as_text(value: str) -> str:
    """One value under the rule `text`."""
    # Folding case can undo the normal form, and so can leaving characters out, so it is restored.
    return " ".join(unicodedata.normalize("NFKC", _plain(value).casefold()).split())


def _plain(value: str) -> str:
    """A value without what is only another way of writing it."""
    if value.isascii():
        return value
    normal = unicodedata.normalize("NFKC", value)
    return "".join([each if each.isascii() else _plain_character(each) for each in normal])


def _plain_character(character: str) -> str:
    match unicodedata.category(character):
        case "Cf":
            return ""
        case "Pd":
            return "-"
        case "Nd":
            return str(unicodedata.decimal(character))
    return _LOOK_ALIKE.get(character, character)


# The minus sign, and what word processors and keyboards make of an apostrophe.
_LOOK_ALIKE = {"\u2212": "-", "\u2018": "'", "\u2019": "'", "\u02bc": "'"}


def _as_integer(value: str, argument: str) -> str | None:
    found = re.fullmatch(r"([+-]?)0*(\d+?)(\.0+)?", _plain(value).strip())
    if found is None:
        return None
    return f"-{found[2]}" if found[1] == "-" and found[2] != "0" else found[2]


def _as_email(value: str, argument: str) -> str | None:
    text = as_text(value)
    if bracketed := re.fullmatch("[^<>@]*<([^<>]*)>[^<>@]*", text):
        text = bracketed[1]
    text = text.strip(" ,;:.\"'()[]")
    if text.startswith("mailto:"):
        text = text.removeprefix("mailto:").partition("?")[0].strip()
    return text if re.fullmatch(r"[^@\s]+@[^@\s]+", text) else None


def _as_phone(value: str, argument: str) -> str | None:
    return e164(_plain(value), argument)


_READERS: Mapping[str, Callable[[str, str], str | None]] = {
    "integer": _as_integer,
    "email": _as_email,
    "phone": _as_phone,
    "soundex": lambda value, _: soundex(as_text(value)),
    "cologne": lambda value, _: cologne(as_text(value)),
}
RULES = ("exact", "text", *_READERS)


def check_keys(keys: Sequence[str]) -> None:
    """Raise `PlanError` for a key with a rule that does not exist, and for no key at all."""
    if isinstance(keys, str):
        raise PlanError(f"Keys should be a list of rules, but are the text {keys!r}. Write [{keys!r}].")
    if not keys:
        raise PlanError("Ids are read by at least one key, but none was named. Name one such as 'text'.")
    for key in keys:
        for rule in key.split("+"):
            _check_rule(rule)


def _check_rule(rule: str) -> None:
    name, _, argument = rule.partition(":")
    if name not in RULES:
        raise PlanError(
            f"Ids are read by the rules {', '.join(RULES)}, but {rule!r} was named.{nearest(name, RULES)} Name one of "
            "them, or several joined by '+'."
        )
    if name == "phone" and not is_code(argument):
        raise PlanError(
            f"The rule 'phone' should name the country of numbers without a code, as in 'phone:41', but is {rule!r}. "
            "Add it."
        )
    if name != "phone" and argument:
        raise PlanError(f"The rule {name!r} takes nothing behind a colon, but is {rule!r}. Leave it out.")


def _without_empty(values: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.large_string()), values)


def _joined(parts: tuple[bytes, ...]) -> bytes:
    return b"".join([len(part).to_bytes(4, "little") + part for part in parts])


def _is_enumerable(rule: str) -> bool:
    return rule.partition(":")[0] in ("integer", "phone", "soundex", "cologne")


def enumerable_warning(party: str, key: str) -> str:
    """What a party should know before it aligns by a key under which all ids can be listed.

    >>> enumerable_warning("bank", "integer")[:61]
    "The key 'integer' has so few values that a peer can list many"
    """
    return (
        f"The key {key!r} has so few values that a peer can list many or all of them, and learn which {party} has. Set "
        "most_ids and most_common under [align], or match by a key that is hard to guess, such as an e-mail address."
    )
