"""The loops over residues of 50 bits, compiled by numba at first use and cached on disk.

A residue is a double that holds a whole number; centred ones lie between -p/2 and p/2. A product of two modulo p takes
its high part h = ab rounded, its low part ab - h by a fused multiply-add, and the nearest quotient k = ab/p: the rest
is (h - kp) + (ab - h), both of them exact. With |a| <= c p and |b| <= p/2 the quotient is off by 1/2 + c/8 at most, so
the rest lies within (1/2 + c/8) p. All is exact while numbers stay below 2^53, that is 8 p. Without the instruction in
hardware the result is the same and slow. Nothing here branches on a residue's value except to make it canonical, but
the compiler promises no constant time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.core import types
from numba.extending import intrinsic

from colonnade.crypto.sampling import ERROR_BITS

_ERROR_MASK = np.uint64(2**ERROR_BITS - 1)
_ERROR_SHIFT = np.uint64(ERROR_BITS)
# So many numbers of 50 bits stay below 2^64 when they are added up.
MOST_ADDED = 2**14
TRITS = 3
"""Ternary numbers are taken by threes: a table holds all 27 sums."""
_COMBINATIONS = 3**TRITS
LANES_AT_ONCE = 64
_MASK_50 = np.uint64(2**50 - 1)
DIGIT = 25
N_DIGITS = 8


@intrinsic
def _fma_of(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    def emitted(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), emitted


@intrinsic
def _rint_of(typingctx: Any, a: Any) -> Any:
    def emitted(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.rint", [args[0].type]), args)

    return types.float64(types.float64), emitted


@intrinsic
def _popcount_of(typingctx: Any, a: Any) -> Any:
    def emitted(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), emitted


# numba passes the first argument of an intrinsic itself, which its annotations do not say.
_fma: Any = _fma_of
_rint: Any = _rint_of
_popcount: Any = _popcount_of


@njit(cache=True, nogil=True, inline="always")
def _product(a: Any, b: Any, quotient: Any, p: Any) -> Any:
    """A product modulo p, given b / p."""
    high, k = a * b, _rint(a * quotient)
    return _fma(-k, p, high) + _fma(a, b, -high)


@njit(cache=True, nogil=True, inline="always")
def _centred(a: Any, p: Any, reciprocal: Any) -> Any:
    return _fma(-_rint(a * reciprocal), p, a)


@njit(cache=True, nogil=True)
def forward(x: Any, wide: Any, wide_q: Any, short: Any, short_q: Any, primes: Any) -> None:
    """Transform every x[k, l] in place (Cooley-Tukey); values come out centred, in an order that `inverse` expects.

    A polynomial of n = rows * columns coefficients goes through log2(rows) stages as it is. It is then transposed, so
    that the stages over short distances also work on long rows, and stays transposed. Between two reductions there are
    at most seven stages, over which numbers grow from p/2 to 6.3 p.

    Args:
        x: Centred residues (K, L, n).
        wide: The roots of the first stages (L, rows).
        wide_q: The same over their primes.
        short: The roots of the other stages (L, columns, rows).
        short_q: The same over their primes.
        primes: The primes (L,).
    """
    n, rows, columns = x.shape[2], short.shape[2], short.shape[1]
    turned = np.empty(n, np.float64)
    for k in range(x.shape[0]):
        for limb in range(x.shape[1]):
            p, a = primes[limb], x[k, limb]
            reciprocal = 1.0 / p
            length, count = n, 1
            while count < rows:
                length >>= 1
                for i in range(count):
                    w, q = wide[limb, count + i], wide_q[limb, count + i]
                    low = a[2 * i * length : (2 * i + 1) * length]
                    high = a[(2 * i + 1) * length : (2 * i + 2) * length]
                    for j in range(length):
                        u, v = low[j], _product(high[j], w, q, p)
                        low[j], high[j] = u + v, u - v
                count <<= 1
            _turn(a, turned, rows, columns, p, reciprocal)
            length, count = columns, 1
            while length > 1:
                length >>= 1
                for i in range(count):
                    w_row, q_row = short[limb, count + i], short_q[limb, count + i]
                    for j in range(length):
                        place = (2 * i * length + j) * rows
                        low = turned[place : place + rows]
                        high = turned[place + length * rows : place + (length + 1) * rows]
                        for r in range(rows):
                            u, v = low[r], _product(high[r], w_row[r], q_row[r], p)
                            low[r], high[r] = u + v, u - v
                count <<= 1
            for j in range(n):
                a[j] = _centred(turned[j], p, reciprocal)


@njit(cache=True, nogil=True)
def inverse(x: Any, roots: Any, roots_q: Any, ends: Any, ends_q: Any, primes: Any, columns: Any) -> None:
    """Undo `forward` in place; values come out centred.

    A cyclic transform of values in bit-reversed order (decimation in time), and in the end coefficient i is multiplied
    by `ends[i]`, which undoes the twist of X^n + 1 and divides by n.

    Args:
        x: Centred residues (K, L, n), transposed as `forward` leaves them.
        roots: For the stage over distance d and for j < d, at d + j, the power of the root (L, n).
        roots_q: The same over their primes.
        ends: The last factors (L, n).
        ends_q: The same over their primes.
        primes: The primes (L,).
        columns: How many coefficients stood together in a row before the transposition.
    """
    n = x.shape[2]
    rows = n // columns
    straight = np.empty(n, np.float64)
    for k in range(x.shape[0]):
        for limb in range(x.shape[1]):
            p, a = primes[limb], x[k, limb]
            reciprocal = 1.0 / p
            w, q = roots[limb], roots_q[limb]
            length = 1
            while length < columns:
                for start in range(0, columns, 2 * length):
                    for j in range(length):
                        place = (start + j) * rows
                        low, high = a[place : place + rows], a[place + length * rows : place + (length + 1) * rows]
                        factor, quotient = w[length + j], q[length + j]
                        for r in range(rows):
                            u, v = low[r], _product(high[r], factor, quotient, p)
                            low[r], high[r] = u + v, u - v
                length <<= 1
            _turn(a, straight, columns, rows, p, reciprocal)
            while length < n:
                w_row, q_row = w[length : 2 * length], q[length : 2 * length]
                for start in range(0, n, 2 * length):
                    low = straight[start : start + length]
                    high = straight[start + length : start + 2 * length]
                    for j in range(length):
                        u, v = low[j], _product(high[j], w_row[j], q_row[j], p)
                        low[j], high[j] = u + v, u - v
                length <<= 1
            end, end_q = ends[limb], ends_q[limb]
            for j in range(n):
                a[j] = _centred(_product(straight[j], end[j], end_q[j], p), p, reciprocal)


@njit(cache=True, nogil=True, inline="always")
def _turn(a: Any, out: Any, rows: Any, columns: Any, p: Any, reciprocal: Any) -> None:
    """Transpose a matrix (rows, columns) whose sides are powers of two, and centre its numbers."""
    step = min(8, rows, columns)
    for row in range(0, rows, step):
        for column in range(0, columns, step):
            for r in range(row, row + step):
                for c in range(column, column + step):
                    out[c * rows + r] = _centred(a[r * columns + c], p, reciprocal)


@njit(cache=True, nogil=True)
def times(a: Any, b: Any, primes: Any, out: Any) -> None:
    """out[k, l] = a[k, l] * b[l], number by number, centred."""
    for k in range(a.shape[0]):
        for limb in range(a.shape[1]):
            p = primes[limb]
            reciprocal = 1.0 / p
            x, y, z = a[k, limb], b[limb], out[k, limb]
            for j in range(a.shape[2]):
                z[j] = _centred(_product(x[j], y[j], y[j] * reciprocal, p), p, reciprocal)


@njit(cache=True, nogil=True)
def dot(a: Any, b: Any, primes: Any, out: Any) -> None:
    """out[l] = sum over k of a[k, l] * b[k, l], number by number, centred."""
    for limb in range(a.shape[1]):
        p, total = primes[limb], out[limb]
        reciprocal = 1.0 / p
        for j in range(a.shape[2]):
            total[j] = 0.0
        for k in range(a.shape[0]):
            x, y = a[k, limb], b[k, limb]
            for j in range(a.shape[2]):
                total[j] = _centred(total[j] + _product(x[j], y[j], y[j] * reciprocal, p), p, reciprocal)


@njit(cache=True, nogil=True)
def add_errors(x: Any, words: Any, primes: Any) -> None:
    """Add to x[k, :, j] the centred binomial error that words[k, j] holds; centred in and out."""
    errors = np.empty(x.shape[2], np.float64)
    for k in range(x.shape[0]):
        for j in range(x.shape[2]):
            word = words[k, j]
            heads = np.int64(_popcount(word & _ERROR_MASK))
            errors[j] = np.float64(heads - np.int64(_popcount((word >> _ERROR_SHIFT) & _ERROR_MASK)))
        for limb in range(x.shape[1]):
            p, a = primes[limb], x[k, limb]
            reciprocal = 1.0 / p
            for j in range(x.shape[2]):
                a[j] = _centred(a[j] + errors[j], p, reciprocal)


@njit(cache=True, nogil=True)
def encode(g: Any, h: Any, rests: Any, factors: Any, quotients: Any, primes: Any, out: Any) -> None:
    """out[s, l, i] = g[i] * factors[s, l, 0] + h[i] * factors[s, l, 1] + rests[i] modulo the l-th prime, centred."""
    for slot in range(out.shape[0]):
        for limb in range(out.shape[1]):
            p, row = primes[limb], out[slot, limb]
            reciprocal = 1.0 / p
            a, b = factors[slot, limb, 0], factors[slot, limb, 1]
            aq, bq = quotients[slot, limb, 0], quotients[slot, limb, 1]
            for i in range(g.shape[0]):
                row[i] = _centred(_product(g[i], a, aq, p) + _product(h[i], b, bq, p) + rests[i], p, reciprocal)


@njit(cache=True, nogil=True)
def seal(pads: Any, messages: Any, places: Any, first: Any, primes: Any, words: Any, tails: Any) -> None:
    """Add to the pad of each row the message of its node, and pack four residues of 50 bits into 25 bytes.

    Args:
        pads: Centred residues (blocks, 4, n).
        messages: For each slot centred residues of every row's message (slots, 4, rows).
        places: The node of each row among those asked for (rows,); others are negative.
        first: The node in slot 0.
        primes: The primes (4,).
        words: Where the first 192 bits of each row go (3, rows).
        tails: Where the last 8 go (rows,).
    """
    n, n_rows, slots = pads.shape[2], places.shape[0], messages.shape[0]
    residues = np.empty((4, n), np.uint64)
    # The second slot's mask is never set where there is one slot only.
    last = slots - 1
    for block in range((n_rows + n - 1) // n):
        start = block * n
        count = min(n, n_rows - start)
        here = places[start : start + count]
        for limb in range(4):
            p, pad, row = primes[limb], pads[block, limb], residues[limb]
            one, two = messages[0, limb, start : start + count], messages[last, limb, start : start + count]
            for j in range(count):
                node = here[j] - first
                message = one[j] if node == 0 else 0.0
                message = two[j] if (node == 1) & (last == 1) else message
                value = pad[j] + message
                value = value + p if value < 0 else value
                value = value - p if value >= p else value
                row[j] = np.uint64(np.int64(value))
        one_word, two_word = words[0, start : start + count], words[1, start : start + count]
        three_word, tail = words[2, start : start + count], tails[start : start + count]
        for j in range(count):
            b, c, d = residues[1, j], residues[2, j], residues[3, j]
            one_word[j] = residues[0, j] | (b << np.uint64(50))
            two_word[j] = (b >> np.uint64(14)) | (c << np.uint64(36))
            three_word[j] = (c >> np.uint64(28)) | (d << np.uint64(22))
            tail[j] = np.uint8(d >> np.uint64(42))


@njit(cache=True, nogil=True)
def unseal(words: Any, tails: Any, limits: Any, values: Any, lane: Any) -> Any:
    """Undo the packing of `seal` into values[i, lane : lane + 4]; returns whether residues are below their primes."""
    bad = False
    for i in range(words.shape[1]):
        a, b, c = words[0, i], words[1, i], words[2, i]
        one, two = a & _MASK_50, ((a >> np.uint64(50)) | (b << np.uint64(14))) & _MASK_50
        three = ((b >> np.uint64(36)) | (c << np.uint64(28))) & _MASK_50
        four = (c >> np.uint64(22)) | (np.uint64(tails[i]) << np.uint64(42))
        bad |= (one >= limits[0]) | (two >= limits[1]) | (three >= limits[2]) | (four >= limits[3])
        values[i, lane], values[i, lane + 1], values[i, lane + 2], values[i, lane + 3] = one, two, three, four
    return not bad


def _adding(lanes: int) -> Any:
    """Compiles cells[places[i]] += values[i] for a fixed number of lanes, over which the compiler unrolls its loop."""

    @njit(cache=True, nogil=True)
    def add(places: Any, values: Any, cells: Any) -> None:
        for i in range(places.shape[0]):
            cell, value = cells[places[i]], values[i]
            for lane in range(lanes):
                cell[lane] += value[lane]

    return add


add_four, add_eight = _adding(4), _adding(8)


@njit(cache=True, nogil=True)
def margins(cells: Any, limits: Any, one: Any, two: Any) -> None:
    """Empty cells (width * width of two, lanes) into one[b] and two[c] for cell (b, c), modulo the lanes' primes."""
    width = two.shape[0]
    reciprocals = 1.0 / limits.astype(np.float64)
    for b in range(one.shape[0]):
        for c in range(width):
            cell, left, right = cells[b * width + c], one[b], two[c]
            for lane in range(limits.shape[0]):
                value, p = cell[lane], limits[lane]
                # The quotient is off by one at most, and the rest is then made canonical.
                rest = np.int64(value - np.uint64(np.float64(value) * reciprocals[lane]) * p)
                rest = rest + np.int64(p) if rest < 0 else rest
                rest = rest - np.int64(p) if rest >= np.int64(p) else rest
                for side in (left, right):
                    total = side[lane] + np.uint64(rest)
                    side[lane] = total - p if total >= p else total
                cell[lane] = np.uint64(0)


@njit(cache=True, nogil=True)
def trits(ternary: Any, out: Any) -> None:
    """Numbers -1, 0 and 1 by threes: out[a, t] = sum of (ternary[a, 3t + i] + 1) * 3^i, beyond the end 0."""
    n = ternary.shape[1]
    for a in range(ternary.shape[0]):
        for t in range(out.shape[1]):
            value, power = np.int64(0), 1
            for i in range(TRITS):
                place = TRITS * t + i
                value += ((np.int64(ternary[a, place]) if place < n else 0) + 1) * power
                power *= 3
            out[a, t] = value


@njit(cache=True, nogil=True)
def ternary_products(indices: Any, numbers: Any, out: Any) -> None:
    """out[a, c] = sum over j of ternary[a, j] * numbers[j, c], `indices` being the threes of the ternary numbers.

    For three numbers of a lane there are only 27 sums. They are written into a table once and then looked up for every
    row, which takes a third of the additions and no product (the method of the four Russians).
    """
    n, lanes = numbers.shape
    table = np.zeros((2, _COMBINATIONS, LANES_AT_ONCE), np.int64)
    total = np.zeros((indices.shape[0], LANES_AT_ONCE), np.int64)
    for start in range(0, lanes, LANES_AT_ONCE):
        width = min(LANES_AT_ONCE, lanes - start)
        total[:] = 0
        for t in range(0, indices.shape[1], 2):
            for half in range(2):
                _fill(table[half], numbers, (t + half) * TRITS, start, width, n)
            one, two = table[0], table[1]
            for a in range(indices.shape[0]):
                row, left, right = total[a], one[indices[a, t]], two[indices[a, t + 1]]
                for c in range(LANES_AT_ONCE):
                    row[c] += left[c] + right[c]
        for a in range(indices.shape[0]):
            for c in range(width):
                out[a, start + c] = total[a, c]


@njit(cache=True, nogil=True, inline="always")
def _fill(table: Any, numbers: Any, first: Any, start: Any, width: Any, n: Any) -> None:
    """All sums of three rows of numbers, each times -1, 0 or 1."""
    for c in range(width):
        x = numbers[first, start + c] if first < n else 0
        y = numbers[first + 1, start + c] if first + 1 < n else 0
        z = numbers[first + 2, start + c] if first + 2 < n else 0
        for k in range(3):
            for j in range(3):
                for i in range(3):
                    table[9 * k + 3 * j + i, c] = (i - 1) * x + (j - 1) * y + (k - 1) * z


@njit(cache=True, nogil=True)
def rescale(x: Any, inverses: Any, primes: Any, out: Any) -> None:
    """out[k, l] = (x[k, l + 1] - x[k, 0]) / p_0 modulo p_(l + 1): division by the first prime, rounded; centred."""
    for k in range(x.shape[0]):
        first = x[k, 0]
        for limb in range(out.shape[1]):
            p, factor = primes[limb + 1], inverses[limb]
            reciprocal = 1.0 / p
            quotient = factor * reciprocal
            a, b = x[k, limb + 1], out[k, limb]
            for j in range(x.shape[2]):
                b[j] = _centred(_product(a[j] - first[j], factor, quotient, p), p, reciprocal)


@njit(cache=True, nogil=True)
def flood(sums: Any, keyed: Any, words: Any, bits: Any, primes: Any, out: Any) -> None:
    """out[k, l, j] = sums + keyed + U1 + U2 + U3 - 3 * 2^(bits - 1), centred; each U uniform below 2^bits.

    Args:
        sums: Residues (K, J, L).
        keyed: Residues of the same shape.
        words: Random words (K, J, 6): of every pair the first gives the lower 40 bits, the second the rest.
        bits: How many bits each U has, between 41 and 90.
        primes: The primes (L,).
        out: Where centred residues go (K, L, J).
    """
    low, high = np.uint64(64 - 40), np.uint64(64 - (bits - 40))
    for limb in range(primes.shape[0]):
        p = primes[limb]
        reciprocal = 1.0 / p
        power = _centred(2.0**40, p, reciprocal)
        middle = _centred(2.0 ** (bits - 1 - 40), p, reciprocal)
        offset = _product(middle, power, power * reciprocal, p)
        for k in range(sums.shape[0]):
            for j in range(sums.shape[1]):
                total = _centred(np.float64(sums[k, j, limb]), p, reciprocal) + _centred(
                    np.float64(keyed[k, j, limb]), p, reciprocal
                )
                total = _centred(total - 3 * offset, p, reciprocal)
                for u in range(3):
                    lower, upper = words[k, j, 2 * u] >> low, words[k, j, 2 * u + 1] >> high
                    total += np.float64(lower) + _product(np.float64(upper), power, power * reciprocal, p)
                    total = _centred(total, p, reciprocal)
                out[k, limb, j] = total


@njit(cache=True, nogil=True, inline="always")
def _modular(a: Any, b: Any, p: Any) -> Any:
    """A product of canonical residues, canonical."""
    x, y, prime = np.float64(a), np.float64(b), np.float64(p)
    value = np.int64(_centred(_product(_centred(x, prime, 1.0 / prime), y, y / prime, prime), prime, 1.0 / prime))
    return value + p if value < 0 else value


@njit(cache=True, nogil=True)
def decode(residues: Any, primes: Any, inverses: Any, drop: Any, width: Any, sums: Any, rests: Any) -> None:
    """Signed slots of numbers modulo three primes: number = rest + 2^drop * (s_0 + s_1 2^width + ...), |rest| small.

    By digits in the mixed radix of the primes (Garner), then in digits of 25 bits; all of it is exact.

    Args:
        residues: Canonical residues (3, M).
        primes: The primes (3,).
        inverses: 1 / p_0 modulo p_1, 1 / (p_0 p_1) modulo p_2, and p_0 modulo p_2.
        drop: How many low bits the noise has.
        width: How many bits each slot has.
        sums: Where the slots go (M, slots).
        rests: Where the noise goes (M,).
    """
    one, two, three = primes[0], primes[1], primes[2]
    mask = (1 << DIGIT) - 1
    digits = np.zeros(N_DIGITS + 1, np.int64)
    for m in range(residues.shape[1]):
        a = residues[0, m]
        b = _modular((residues[1, m] - a) % two, inverses[0], two)
        part = (residues[2, m] - a - _modular(b % three, inverses[2], three)) % three
        c = _modular(part, inverses[1], three)
        negative = 2 * c >= three
        if negative:
            # x - p_0 p_1 p_2 = -1 - (its complement), digit by digit.
            a, b, c = one - 1 - a, two - 1 - b, three - 1 - c
        digits[:] = 0
        digits[0], digits[1] = c & mask, c >> DIGIT
        for radix, extra in ((two, b), (one, a)):
            low, high, carry, before = radix & mask, radix >> DIGIT, extra, 0
            for i in range(N_DIGITS):
                here = digits[i]
                carry += here * low + before * high
                digits[i], before = carry & mask, here
                carry >>= DIGIT
        if negative:
            # The two's complement over all digits, so that what follows knows one sign only.
            for i in range(N_DIGITS):
                digits[i] ^= mask
        rest = _bits(digits, 0, drop)
        borrow = 0
        if rest >= 1 << (drop - 1):
            rest, borrow = rest - (1 << drop), 1
        rests[m] = rest
        for s in range(sums.shape[1]):
            value = _bits(digits, drop + s * width, width) + borrow
            borrow = 0
            if value >= 1 << (width - 1):
                value, borrow = value - (1 << width), 1
            sums[m, s] = value


@njit(cache=True, nogil=True, inline="always")
def _bits(digits: Any, first: Any, count: Any) -> Any:
    """So many bits of a number in digits of 25 bits, at most 61."""
    value, have, place = np.int64(0), 0, first // DIGIT
    skip = first % DIGIT
    while have < count:
        piece = digits[place] >> skip
        value |= piece << have
        have += DIGIT - skip
        skip = 0
        place += 1
    return value & ((np.int64(1) << count) - 1)


@njit(cache=True, nogil=True)
def fractions(residues: Any, primes: Any, weights: Any, out: Any) -> None:
    """out[q, r] = sum over l of floor(2^128 y_l / p_l) modulo 2^128 in two words, y_l = residues[r, l, q] weights[l].

    With the weights of the Chinese remainder this is x 2^128 / q for the x that has these residues, less than one unit
    too small for each prime.
    """
    for r in range(residues.shape[0]):
        for q in range(residues.shape[2]):
            low, high = np.uint64(0), np.uint64(0)
            for limb in range(residues.shape[1]):
                p = primes[limb]
                rest = _modular(np.int64(residues[r, limb, q]), weights[limb], p)
                one, two = np.uint64(0), np.uint64(0)
                # Eight bits of the quotient at a time: the rest has 50, so that 58 are divided.
                for place in range(16):
                    rest <<= 8
                    digit = np.uint64(rest // p)
                    rest %= p
                    if place < 8:
                        two = (two << np.uint64(8)) | digit
                    else:
                        one = (one << np.uint64(8)) | digit
                low += one
                high += two + (np.uint64(1) if low < one else np.uint64(0))
            out[q, r, 0], out[q, r, 1] = low, high
