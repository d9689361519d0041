"""How well the frozen lattice profiles hide: by the flood at their caps, and by the lattice-estimator if it is there.

The first is arithmetic: the statistical distance of flooded answers from answers without noise, at the most rows, the
widest numbers and the most values of each profile. For the second COLONNADE_SAGE_PYTHON names a Python that can import
`estimator` (the lattice-estimator, on Sage or passagemath); it takes some minutes for each profile. Ternary secrets,
centred binomial errors, as many samples as one likes, the MATZOV model; the least of the attacks by usvp, bdd and
dual_hybrid counts. Targets are ratios: what is asked for over what was found.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from math import sqrt

from colonnade.crypto import rlwe
from colonnade.crypto.fixedpoint import Widths
from colonnade.crypto.profiles import ARBITER, DISTANCE_BITS, HISTOGRAM, SHARES, Profile
from colonnade.crypto.sampling import ERROR_BITS

SAGE_PYTHON = os.environ.get("COLONNADE_SAGE_PYTHON")
SECURITY_BITS = 128
TARGETS: Mapping[str, float] = {"distance_ratio": 1.0} | ({"security_ratio": 1.0} if SAGE_PYTHON else {})
ESTIMATE = """
import json, sys
from math import log2
from sage.all import oo
from estimator import LWE, ND, RC
n, q, coins = map(int, sys.argv[1:])
parameters = LWE.Parameters(n=n, q=q, Xs=ND.Uniform(-1, 1), Xe=ND.CenteredBinomial(coins), m=oo)
attacks = LWE.primal_usvp, LWE.primal_bdd, LWE.dual_hybrid
print(json.dumps(min(log2(attack(parameters, red_cost_model=RC.MATZOV)["rop"]) for attack in attacks)))
"""


def distance_bits(profile: Profile) -> float:
    """How far answers are from hiding all noise, as minus a power of two, with everything at its cap."""
    n_rows = profile.most_rows
    if profile is HISTOGRAM:
        noise = sqrt(10.5 * n_rows + 14 * profile.n)
    elif profile is ARBITER:
        largest = 2.0 ** Widths.of(n_rows).column_bits
        noise = rlwe.noise(5, n_rows * largest**2, n_rows * largest)
    else:
        # Standardised columns with 12 bits behind the point; a run refuses columns whose products would not be hidden.
        noise = rlwe.noise(1, n_rows * 4.0**12, n_rows * 2.0**12)
    return profile.distance_bits(noise, profile.most_values)


def security_bits(profile: Profile) -> float:
    """The cost of the cheapest attack that the estimator finds, as a power of two."""
    command = [str(SAGE_PYTHON), "-c", ESTIMATE, str(profile.n), str(profile.modulus), str(ERROR_BITS)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(json.loads(said.splitlines()[-1]))


def measure(*, quick: bool) -> dict[str, float]:
    """Bits for each profile, and the worst of them against what is asked for."""
    distances = {f"{profile.name}.distance_bits": distance_bits(profile) for profile in (HISTOGRAM, ARBITER, SHARES)}
    figures = {"distance_ratio": DISTANCE_BITS / min(distances.values()), **distances}
    if SAGE_PYTHON:
        # The profile of shares has the lattice of the arbiter's.
        found = {f"{profile.name}.security_bits": security_bits(profile) for profile in (HISTOGRAM, ARBITER)}
        figures |= {"security_ratio": SECURITY_BITS / min(found.values()), **found}
    return figures
