"""CurvesType: the Arrow type of a column of curves, which carries its basis wherever the column goes."""

from __future__ import annotations

import json

import pyarrow as pa

from colonnade.curves.basis import Basis, basis_of


class CurvesType(pa.ExtensionType):  # type: ignore[misc]
    """A column of curves: a fixed number of coefficients in a basis that the type itself names.

    >>> from colonnade.curves import BSplines
    >>> CurvesType(BSplines((0, 24), 8)).basis.size
    8
    """

    def __init__(self, basis: Basis) -> None:
        self.basis = basis
        super().__init__(pa.list_(pa.float64(), basis.size), "colonnade.curves")

    def __arrow_ext_serialize__(self) -> bytes:
        return json.dumps(self.basis.describe(), sort_keys=True).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> CurvesType:
        return cls(basis_of(json.loads(serialized)))

    def __reduce__(self) -> tuple[type[CurvesType], tuple[Basis]]:
        return CurvesType, (self.basis,)


_EXAMPLE = json.loads('{"kind": "fourier", "domain": [0, 1], "size": 1, "period": null}')
# Registered once for the process, so that files with such columns are read back as what they are.
pa.register_extension_type(CurvesType(basis_of(_EXAMPLE)))
