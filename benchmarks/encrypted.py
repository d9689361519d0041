"""The gradient of 100,000 rows and 20 columns under encryption, and the operations that it is made of.

Ours is the whole of it, by one thread: the encryption of the residuals, the product with columns that were prepared
once, masks and flood, and the arbiter's decryption, checked against plain integers. A training prepares its columns
once for all its gradients; `unprepared` figures count the preparation with a single gradient. Paillier is ours too
(gmpy2, short exponents, fixed base, CRT), with 2,048 and 3,072 bits, measured on fewer rows and scaled to as many,
since every row costs the same. Where COLONNADE_HEU_PYTHON names a Python that has sf-heu, its Okamoto-Uchiyama scheme
is measured in the same run, also on fewer rows.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.clock import median_time
from colonnade.crypto import paillier, rlwe
from colonnade.crypto.additive import unmasked

HEU_PYTHON = os.environ.get("COLONNADE_HEU_PYTHON")
TARGETS: Mapping[str, float] = {"paillier_2048_ratio": 1e-3} | ({"ou_2048_ratio": 1 / 300} if HEU_PYTHON else {})
ROWS, COLUMNS = 100_000, 20
HEU = """
import json, sys, time
import numpy as np
from heu import numpy as hnp, phe
n, columns = map(int, sys.argv[1:])
kit = hnp.setup(phe.SchemaType.OU, 2048)
random = np.random.default_rng(0)
d = kit.array(random.integers(-2**20, 2**20, n).tolist())
x = kit.array(random.integers(-2**12, 2**12, (columns, n)).tolist())
start = time.perf_counter()
c = kit.encryptor().encrypt(d)
encrypted = time.perf_counter()
g = kit.evaluator().matmul(x, c)
multiplied = time.perf_counter()
kit.decryptor().decrypt(g)
print(json.dumps({"row": (multiplied - start) / n, "end": time.perf_counter() - multiplied}))
"""


def numbers(n_rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Columns of 12 bits and residuals of 20."""
    random = np.random.default_rng(0)
    return random.integers(-(2**12), 2**12, (n_rows, COLUMNS)), random.integers(-(2**20), 2**20, n_rows)


def gradient(secret: Any, prepared: Any, residuals: np.ndarray[Any, Any], block: int) -> np.ndarray[Any, Any]:
    """One encrypted gradient from its residuals to its sums."""
    key = secret.public
    product = key.product(prepared, key.encrypt(residuals, block))
    masked, masks = key.masked(product, block, COLUMNS)
    return unmasked(secret.decrypt(masked, block, COLUMNS), masks)


def with_lattice(n_rows: int, times: int) -> tuple[float, float]:
    """Seconds for one gradient, and for the preparation of its columns."""
    secret, (columns, residuals) = rlwe.SecretKey(), numbers(n_rows)
    block = rlwe.rows_per_block(n_rows, COLUMNS)
    prepared = secret.public.prepare(columns, block)
    if not (gradient(secret, prepared, residuals, block) == columns.T @ residuals).all():
        raise RuntimeError("An encrypted gradient should equal the plain one and does not.")
    preparation = median_time(lambda: secret.public.prepare(columns, block), times=max(1, times // 3))
    return median_time(lambda: gradient(secret, prepared, residuals, block), times=times), preparation


def with_paillier(key_bits: int, n_rows: int) -> float:
    """Seconds for one gradient of all rows, scaled from fewer."""
    secret, (columns, residuals) = paillier.SecretKey(key_bits=key_bits), numbers(n_rows)
    prepare = secret.public.prepare
    gradient(secret, prepare(columns[:2], 1), residuals[:2], 1)
    start = perf_counter()
    if not (gradient(secret, prepare(columns, 1), residuals, 1) == columns.T @ residuals).all():
        raise RuntimeError("An encrypted gradient should equal the plain one and does not.")
    return (perf_counter() - start) * ROWS / n_rows


def with_heu(n_rows: int) -> dict[str, float]:
    """Seconds for one gradient of all rows with sf-heu's OU of 2,048 bits, scaled; nothing where it is not there."""
    if HEU_PYTHON is None:
        return {}
    command = [HEU_PYTHON, "-c", HEU, str(n_rows), str(COLUMNS)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = json.loads(said.splitlines()[-1])
    return {"ou_2048_s": found["row"] * ROWS + found["end"]}


def measure(*, quick: bool) -> dict[str, float]:
    """Seconds per gradient, ratios to the peers, and milliseconds per ciphertext of 8,192 numbers."""
    n_rows = 8192 if quick else ROWS
    ours, preparation = (seconds * ROWS / n_rows for seconds in with_lattice(n_rows, 1 if quick else 9))
    peers = {f"paillier_{bits}_s": with_paillier(bits, 10 if quick else 200) for bits in (2048, 3072)}
    peers |= with_heu(500 if quick else 3000)
    secret = rlwe.SecretKey()
    key, values = secret.public, np.zeros(8192, np.int64)
    data, columns = key.encrypt(values, 8192), key.prepare(values[:, None], 8192)
    times = 3 if quick else 50
    return {
        "paillier_2048_ratio": ours / peers["paillier_2048_s"],
        **{f"{name[:-2]}_ratio": ours / seconds for name, seconds in peers.items() if name != "paillier_2048_s"},
        "paillier_2048_unprepared_ratio": (ours + preparation) / peers["paillier_2048_s"],
        "gradient_s": ours,
        "preparation_s": preparation,
        **peers,
        "encrypt_ms": 1e3 * median_time(lambda: key.encrypt(values, 8192), times=times),
        "multiply_ms": 1e3 * median_time(lambda: key.product(columns, data), times=times),
        "mask_ms": 1e3 * median_time(lambda: key.masked(data, 8192, 1), times=times),
        "decrypt_ms": 1e3 * median_time(lambda: secret.decrypt(data, 8192, 1), times=times),
    }
