"""How well the frozen lattice profiles hide: by the flood at their caps, and by what attacks on the lattice cost.

The first is arithmetic: the statistical distance of flooded answers from answers without noise, at the most rows, the
widest numbers and the most values of each profile. So are the costs of three attacks, with block sizes by the geometric
series assumption and the sieve's cost in the MATZOV model. The lattice-estimator was asked for the same attacks at some
points, and ours differ from its figures by this:

    primal    a unique shortest vector (Alkim et al. 2016); within 0.1 bits at six points
    bdd       a smaller block, then one larger sieve (bounded distance decoding); 0.2 to 0.8 bits below at five
    dual      short vectors of the dual lattice, some digits of the secret guessed (Guo & Johansson 2021, MATZOV 2022,
              whose independence heuristic is disputed and favours the attack); 0.3 to 0.8 bits above at five

For the estimator itself COLONNADE_SAGE_PYTHON names a Python that can import `estimator` (the lattice-estimator, on
Sage or passagemath); it takes some minutes for each profile. Ternary secrets, centred binomial errors, as many samples
as one likes, the MATZOV model; the least of the attacks by usvp, bdd and dual_hybrid counts. Targets are ratios: what
is asked for over what was found.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from math import ceil, e, exp, floor, inf, log, log2, pi, sqrt

from colonnade.crypto import hinted, rlwe
from colonnade.crypto.additive import Widths
from colonnade.crypto.profiles import ARBITER, DISTANCE_BITS, HISTOGRAM, SHARES, Profile
from colonnade.crypto.sampling import ERROR_BITS

SAGE_PYTHON = os.environ.get("COLONNADE_SAGE_PYTHON")
SECURITY_BITS = 128
# List decoding, classical, of MATZOV 2022.
SIEVE_SLOPE, SIEVE_OFFSET = 0.29613500308205365, 20.387885985467914
# Classical sieving without anything but its exponent.
CORE_SVP_SLOPE = 0.292
TARGETS: Mapping[str, float] = {"distance_ratio": 1.0, "attack_ratio": 1.0} | (
    {"security_ratio": 1.0} if SAGE_PYTHON else {}
)
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
        noise = hinted.noise(n_rows, profile)
    elif profile is ARBITER:
        largest = 2.0 ** Widths.of(n_rows).column_bits
        noise = rlwe.noise(5, n_rows * largest**2, n_rows * largest)
    else:
        # Standardised columns with 12 bits behind the point; a run refuses columns whose products would not be hidden.
        noise = rlwe.noise(1, n_rows * 4.0**12, n_rows * 2.0**12)
    return profile.distance_bits(noise, profile.most_values)


def primal_blocks(profile: Profile) -> Iterator[tuple[int, int]]:
    """For each number of samples the block size that finds a unique shortest vector, and the lattice's dimension."""
    n, error, secret = profile.n, sqrt(ERROR_BITS / 2), sqrt(2 / 3)
    for samples in range(n // 2, 2 * n, n // 256):
        dimension = n + samples + 1
        volume = log(error) + n * log(error / secret) + samples * log(2) * profile.modulus_bits
        low, high = 60, dimension
        while low < high:
            block = (low + high) // 2
            found = (
                log(error) + log(block) / 2 <= root_hermite(block) * (2 * block - dimension - 1) + volume / dimension
            )
            low, high = (low, block) if found else (block + 1, high)
        yield low, dimension


def primal_bits(profile: Profile) -> float:
    """The cost of the primal attack by a unique shortest vector, as a power of two."""
    return min(sieve_bits(block, dimension) for block, dimension in primal_blocks(profile))


def core_svp_bits(profile: Profile) -> float:
    """The cost of one shortest vector in one block of the same attack, as a power of two (Alkim et al. 2016)."""
    return CORE_SVP_SLOPE * min(block for block, _ in primal_blocks(profile))


def bdd_bits(profile: Profile) -> float:
    """The cost of bounded distance decoding, as a power of two: a reduction, and one sieve of a larger block."""
    n, error, secret = profile.n, sqrt(ERROR_BITS / 2), sqrt(2 / 3)
    usual, dimension = min(primal_blocks(profile), key=lambda found: sieve_bits(*found))
    least = inf
    for samples in range(dimension - n - n // 8, dimension - n + n // 8, n // 64):
        size = n + samples + 1
        volume = log(error) + n * log(error / secret) + samples * log(2) * profile.modulus_bits
        for block in range(usual - 40, usual + 1):
            slope = root_hermite(block)
            fits = (
                last
                for last in range(block, 2 * block)
                if log(error) + log(last) / 2 <= slope * (2 * last - size - 1) + volume / size
            )
            if (last := next(fits, None)) is not None:
                least = min(least, sum_bits(sieve_bits(block, size), sieve_bits(last, last)))
    return least


def dual_bits(profile: Profile) -> float:
    """The cost of the dual attack that guesses some digits of the secret, as a power of two.

    The vectors that distinguish come from one sieve, as expensive as the reduction before it; a sieve in s dimensions
    gives 2^(0.2075 s) of them, longer than the shortest by the root of 4/3.
    """
    n, error, secret = profile.n, sqrt(ERROR_BITS / 2), sqrt(2 / 3)
    (usual, _), gap = min(primal_blocks(profile)), log(secret / error) + profile.modulus_bits * log(2)
    least, chance = inf, sqrt(0.99)
    for block in range(usual - 40, usual + 60):
        slope = root_hermite(block)
        for guessed in range(0, 80, 2):
            kept = n - guessed
            dimension = ceil(sqrt(kept * gap / slope))
            reduction = sieve_bits(block, dimension)
            sieved = min(dimension, floor((reduction - SIEVE_OFFSET + log2(1 - 2**-SIEVE_SLOPE)) / SIEVE_SLOPE))
            longer = log(4 / 3) / 2 + (sieved - 1) * (root_hermite(sieved) - slope)
            # How far the errors of the new samples reach, as a share of q.
            spread = exp(longer + log(secret) + dimension * slope - gap * (dimension - kept) / dimension)
            if spread > 3:
                continue
            wrong = log(guessed * log(3) - log(log(1 / chance)))
            vectors = 2 + (4 * pi**2 * spread**2 + wrong) / log(2)
            sieves = max(0.0, vectors - 0.2075 * sieved)
            guesses = guessed * log2(3) + 2 + vectors
            least = min(least, sum_bits(reduction + 1 + sieves, guesses))
    return least


def sum_bits(one: float, other: float) -> float:
    """The sum of two costs that are powers of two."""
    return max(one, other) + log2(1 + 2 ** -abs(one - other))


def root_hermite(block: int) -> float:
    """The logarithm of the root Hermite factor that blocks of this size reach."""
    return log(block / (2 * pi * e) * (pi * block) ** (1 / block)) / (2 * (block - 1))


def sieve_bits(block: int, dimension: int) -> float:
    """The cost of a reduction with blocks of this size, with dimensions for free, as a power of two."""
    free = block * log(4 / 3) / log(block / (2 * pi * e))
    calls = max(dimension - block, 1) / (1 - 2**-SIEVE_SLOPE) ** 2
    return log2(calls) + SIEVE_SLOPE * (block - free) + SIEVE_OFFSET


def security_bits(profile: Profile) -> float:
    """The cost of the cheapest attack that the estimator finds, as a power of two."""
    command = [str(SAGE_PYTHON), "-c", ESTIMATE, str(profile.n), str(profile.modulus), str(ERROR_BITS)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(json.loads(said.splitlines()[-1]))


def measure(*, quick: bool) -> dict[str, float]:
    """Bits for each profile, and the worst of them against what is asked for."""
    distances = {f"{profile.name}.distance_bits": distance_bits(profile) for profile in (HISTOGRAM, ARBITER, SHARES)}
    primal = {f"{profile.name}.primal_bits": primal_bits(profile) for profile in (HISTOGRAM, ARBITER)}
    core = {f"{profile.name}.core_svp_bits": core_svp_bits(profile) for profile in (HISTOGRAM, ARBITER)}
    others = {f"{HISTOGRAM.name}.bdd_bits": bdd_bits(HISTOGRAM), f"{HISTOGRAM.name}.dual_bits": dual_bits(HISTOGRAM)}
    figures = {
        "distance_ratio": DISTANCE_BITS / min(distances.values()),
        "attack_ratio": SECURITY_BITS / min(*primal.values(), *others.values()),
        **distances,
        **primal,
        **others,
        **core,
    }
    if SAGE_PYTHON:
        # The profile of shares has the lattice of the arbiter's.
        found = {f"{profile.name}.security_bits": security_bits(profile) for profile in (HISTOGRAM, ARBITER)}
        figures |= {"security_ratio": SECURITY_BITS / min(found.values()), **found}
    return figures
