"""The sums of one tree where an addition is a product of ciphertexts: what peers of the hinted scheme take.

Gradient and hessian of a row share a ciphertext. A tree of depth 5 encrypts all rows once and adds up three times as
many as there are, since of two children the smaller one is asked for; which rows a node has is told in the clear, as
these schemes need it. Measured on fewer rows and scaled, in processor seconds. Paillier is ours (gmpy2, short
exponents, fixed base), without its decryption. Where COLONNADE_HEU_PYTHON names a Python that has sf-heu, the kernel of
SecretFlow's boosted trees runs there under Okamoto-Uchiyama, with the decryption of 16 nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
from time import process_time

import numpy as np

from benchmarks.histograms import Size
from colonnade.crypto import paillier

HEU_PYTHON = os.environ.get("COLONNADE_HEU_PYTHON")
PASSES, NODES = 3, 16
HEU = """
import json, sys, time
import numpy as np
from heu import numpy as hnp, phe
key_bits, n, columns, bins = map(int, sys.argv[1:])
kit = hnp.setup(phe.SchemaType.OU, key_bits)
random = np.random.default_rng(0)
numbers = kit.array(random.integers(0, 2**60, (n, 1)))
codes = np.ascontiguousarray(random.integers(0, bins, (n, columns)).astype(np.int8))
said = {}
def timed(name, act):
    act()
    start = time.process_time()
    found = act()
    said[name] = time.process_time() - start
    return found
data = timed("encrypt", lambda: kit.encryptor().encrypt(numbers))
everybody = np.ones((1, n), np.int8)
sums = timed("add", lambda: kit.evaluator().feature_wise_bucket_sum(data, everybody, codes, bins, True))
timed("decrypt", lambda: kit.decryptor().decrypt(sums))
print(json.dumps(said))
"""


def paillier_tree_s(size: Size, key_bits: int, n_rows: int) -> float:
    """Processor seconds of a tree's encryptions and additions under Paillier."""
    key, random = paillier.SecretKey(key_bits=key_bits).public, np.random.default_rng(0)
    numbers = [int(number) for number in random.integers(0, 2**60, n_rows)]
    key.encrypt_numbers(numbers[:2])
    start = process_time()
    data = key.encrypt_numbers(numbers)
    encrypted = process_time() - start
    rows, square = key._numbers(data), key.square
    codes = random.integers(0, size.bins, (n_rows, size.columns)).tolist()
    sums = [[rows[0]] * size.bins for _ in range(size.columns)]
    start = process_time()
    for row, bins in zip(rows, codes, strict=True):
        for found, place in zip(sums, bins, strict=True):
            found[place] = found[place] * row % square
    return (encrypted + PASSES * (process_time() - start)) * size.rows / n_rows


def heu_tree_s(size: Size, key_bits: int, n_rows: int) -> float:
    """Processor seconds of a tree's sums by sf-heu's kernel."""
    command = [str(HEU_PYTHON), "-c", HEU, str(key_bits), str(n_rows), str(size.columns), str(size.bins)]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    return float((said["encrypt"] + PASSES * said["add"]) * size.rows / n_rows + NODES * said["decrypt"])


def peers(size: Size, *, quick: bool) -> dict[str, float]:
    """Processor seconds of one tree's sums under each scheme that can be run here."""
    found = {"paillier_2048_s": paillier_tree_s(size, 2048, 5 if quick else 300)}
    if HEU_PYTHON is not None:
        for bits, n_rows in ((2048, 10_000), (3072, 4_000)):
            found[f"ou_{bits}_s"] = heu_tree_s(size, bits, 500 if quick else n_rows)
    return found
