"""Curves in R's own files: `fd` objects of the package fda, read and written without R; the extra `r`.

    yfdobj_<l>_<k>_<hh>.RData          yfdobj, the response
    predictorLst_<l>_<k>_<hh>.RData    predictorLst, a list with an fd for each input that worker l owns, else NULL
    truth_active_idx.RData             active_idx

An `fd` has coefficients with one column per curve, and a basis by name: "bspline" or "fourier".
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.curves import Basis, BSplines, Curves, Fourier
from colonnade.errors import DataError, StorageError, imported
from colonnade.storage import explained

MOST_BYTES = 2**30
"""How large a file may be once decompressed: a few bytes can hold as much as a disk."""

_COMPRESSIONS: Mapping[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_LONGEST_MAGIC = max(map(len, _COMPRESSIONS))

# The call that R's own basis objects hold; fda expects one there.
_ARGUMENTS = ("type", "rangeval", "nbasis", "params", "dropind", "quadvals", "values", "basisvalues")


@dataclass(frozen=True)
class _Classed:
    """A named list of R with a class."""

    fields: Mapping[str, Any]
    name: str


def write_rdata(path: Path, **objects: Any) -> None:
    """Write objects under their names; `Curves` become `fd`, None is NULL, pandas frames are data frames.

    Raises:
        DataError: Curves are in a basis that R's fda lacks.
    """
    rdata = _rdata()
    from rdata.conversion.to_r import DEFAULT_CLASS_MAP

    def classed(value: _Classed, converter: Any) -> Any:
        from rdata.conversion.to_r import build_r_object
        from rdata.parser import RObjectType

        # Symbols are numbered as they are converted, and a file has values before attributes.
        values = [converter.convert_to_r_object(each) for each in value.fields.values()]
        names = np.array(list(value.fields), dtype="U")
        attributes = converter.convert_to_r_attributes({"names": names, "class": value.name})
        return build_r_object(RObjectType.VEC, value=values, is_object=True, attributes=attributes)

    plain = {name: _for_r(value) for name, value in objects.items()}
    unfinished = path.with_name(f".{path.name}.partial")
    with explained(f"write {path.name}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            rdata.write_rda(unfinished, plain, constructor_dict={**DEFAULT_CLASS_MAP, _Classed: classed})
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def read_rdata(path: Path, name: str) -> Any:
    """Read one object; `fd` become `Curves`, and NULL is None.

    Raises:
        StorageError: The file is missing, is not R's, or has no such object.
        DataError: An `fd` is not one that can be read.
    """
    rdata = _rdata()
    from rdata.conversion import DEFAULT_CLASS_MAP

    def kept(value: Any, attributes: Mapping[str, Any]) -> Any:
        return value

    constructors = {**DEFAULT_CLASS_MAP, "fd": _curves_of, "basisfd": kept}
    if not path.is_file():
        raise StorageError(f"A file of R was expected at {path}, but there is none. Check the path.")
    with _readable(path):
        found = rdata.read_rda(
            BytesIO(_unpacked(path)), constructor_dict=constructors, altrep_constructor_dict=_bounded_sequences()
        )
        if name not in found:
            raise StorageError(
                f"{path.name} should hold the object {name!r}, but holds {', '.join(found) or 'none'}. Check the file."
            )
        return found[name]


def _unpacked(path: Path) -> bytes:
    """The bytes of a file, decompressed no further than `MOST_BYTES`."""
    with explained(f"read {path.name}"), path.open("rb") as file:
        start = file.read(_LONGEST_MAGIC)
        file.seek(0)
        unpack = next((unpack for magic, unpack in _COMPRESSIONS.items() if start.startswith(magic)), None)
        data: bytes = (file if unpack is None else unpack(file)).read(MOST_BYTES + 1)
    # The parser would decompress what was compressed twice without any limit.
    if len(data) > MOST_BYTES or (unpack is not None and data.startswith(tuple(_COMPRESSIONS))):
        raise StorageError(
            f"{path.name} should hold at most {MOST_BYTES:,} bytes once decompressed, but holds more. Save fewer "
            "objects in each file."
        )
    return data


def _bounded_sequences() -> dict[bytes, Any]:
    """How R's sequences are expanded, which a file holds as three numbers: none that is larger than a file may be."""
    from rdata.parser import DEFAULT_ALTREP_MAP

    def bounded(expand: Callable[[Any], Any], state: Any) -> Any:
        if not 0 <= state.value[0] <= MOST_BYTES // 8:
            raise StorageError(
                f"A sequence of R should have at most {MOST_BYTES // 8:,} numbers, but has {state.value[0]:g}. Save a "
                "shorter one."
            )
        return expand(state)

    sequences = (b"compact_intseq", b"compact_realseq")
    return {**DEFAULT_ALTREP_MAP, **{name: partial(bounded, DEFAULT_ALTREP_MAP[name]) for name in sequences}}


def _for_r(value: Any) -> Any:
    if isinstance(value, Curves):
        return _fd_of(value)
    if isinstance(value, list | tuple):
        return [_for_r(each) for each in value]
    return value


def _fd_of(curves: Curves) -> _Classed:
    names = {"args": "time", "reps": [f"reps {i + 1}" for i in range(len(curves))], "funs": "values"}
    labels = {key: np.array(value, dtype="U") for key, value in names.items()}
    coefficients = np.asfortranarray(curves.coefficients.T)
    return _Classed({"coefs": coefficients, "basis": _basisfd_of(curves.basis), "fdnames": labels}, "fd")


def _basisfd_of(basis: Basis) -> _Classed:
    from rdata.conversion import RLanguage

    if isinstance(basis, BSplines):
        kind, parameters = "bspline", basis.breaks[1:-1]
        names = [f"bspl{basis.order}.{i + 1}" for i in range(basis.size)]
    elif isinstance(basis, Fourier):
        period = basis.domain[1] - basis.domain[0] if basis.period is None else basis.period
        kind, parameters = "fourier", np.array([period])
        pairs = [f"{wave}{i + 1}" for i in range(basis.size // 2) for wave in ("sin", "cos")]
        names = ["const", *pairs]
    else:
        raise DataError(
            f"R's fda knows splines and Fourier bases, but these curves are in a {basis.kind} basis. "
            "Smooth them into one of R's first."
        )
    fields = {
        "call": RLanguage(["basisfd", *_ARGUMENTS], {}),
        "type": kind,
        "rangeval": np.array(basis.domain),
        "nbasis": float(basis.size),
        "params": parameters,
        "dropind": None,
        "quadvals": None,
        "values": [],
        "basisvalues": [],
        "names": np.array(names, dtype="U"),
    }
    return _Classed(fields, "basisfd")


def _curves_of(value: Any, attributes: Mapping[str, Any]) -> Curves:
    coefficients = np.asarray(value["coefs"], dtype=np.float64)
    if coefficients.ndim != 2:
        raise DataError(
            f"An fd of R should have one column of coefficients per curve, but its array has {coefficients.ndim} "
            "dimensions. Take one of its variables."
        )
    return Curves(np.ascontiguousarray(coefficients.T), _basis_of(value["basis"]))


def _basis_of(fields: Mapping[str, Any]) -> Basis:
    kind, size = str(np.ravel(fields["type"])[0]), int(np.ravel(fields["nbasis"])[0])
    low, high = (float(end) for end in np.ravel(fields["rangeval"]))
    parameters = np.asarray([] if fields["params"] is None else fields["params"], dtype=np.float64).ravel()
    if fields.get("dropind") is not None and len(np.ravel(fields["dropind"])):
        raise DataError("A basis of R with dropped functions cannot be read. Write the curves in the whole basis.")
    if kind == "bspline":
        return BSplines.with_knots((low, high), size, size - len(parameters), parameters.tolist())
    if kind == "fourier":
        period = float(parameters[0])
        return Fourier((low, high), size, None if np.isclose(period, high - low, rtol=1e-12) else period)
    raise DataError(
        f"Curves of R can be read in a bspline or fourier basis, but this one is {kind!r}. Convert it in R."
    )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    import warnings

    try:
        with warnings.catch_warnings():
            # Objects that nobody asked for may be of classes that nobody knows here.
            warnings.simplefilter("ignore")
            yield
    except (StorageError, DataError):
        raise
    except Exception as error:
        # The parser raises many kinds of errors on a file that is not R's.
        raise StorageError(
            f"{path.name} should be a file that R's save wrote, but cannot be read ({type(error).__name__}). "
            "Save it again in R."
        ) from error


def _rdata() -> Any:
    return imported("rdata", "r", "Reading and writing files of R")


def curve_list(values: Sequence[Any], path: Path) -> list[Curves | None]:
    """A list of curves and NULLs, as R's predictorLst is."""
    for value in values:
        if value is not None and not isinstance(value, Curves):
            raise DataError(
                f"{path.name} should hold fd objects and NULL only, but holds a {type(value).__name__}. "
                "Write the list again in R."
            )
    return list(values)
