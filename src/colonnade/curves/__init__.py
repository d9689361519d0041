"""Functional data: curves as coefficients in a basis, and the matrices that inner products and roughness are made of.

    values on a grid ── Curves.smooth ──▶ Curves(coefficients, basis) ── evaluate ──▶ values on any grid

A `Basis` knows its functions, the exact matrix of their inner products (`gram`) and of their roughness (`penalty`).
In *coordinates* z = c M^(1/2), with c a curve's coefficients and M the Gram matrix, lengths are L2 norms of curves.
"""

from colonnade.curves.basis import Basis, BSplines, Fourier, Operator, Tabulated, basis_of
from colonnade.curves.curves import Curves, CurvesType
from colonnade.curves.smoothing import Roughness

__all__ = [
    "BSplines",
    "Basis",
    "Curves",
    "CurvesType",
    "Fourier",
    "Operator",
    "Roughness",
    "Tabulated",
    "basis_of",
]
