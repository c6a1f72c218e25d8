#!/usr/bin/env python3
"""Prints digests of fixed byte patterns, computed byte by byte from the formula in kernels/digest.h.

    python3 tests/support/python/digest_known_answers.py

Nothing here shares code or structure with the C++: each byte adds A(chunk) * B(word) * (byte << 8 * place in word)
on its own. Byte p of a pattern is the upper byte of the 32-bit number p * 2654435761 + salt.
"""

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
SEEDS = (0x0123456789ABCDEF, 0xFEDCBA9876543210, 0, MASK)


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def chunk_key(seed, chunk):
    return mix((seed + (chunk + 1) * GAMMA) & MASK) | 1


def word_key(lane, word):
    return (mix((0x42617363756C65 + (lane * 1024 + word + 1) * GAMMA) & MASK) >> 32) | 1


def byte_at(position, salt):
    return ((position * 2654435761 + salt) & 0xFFFFFFFF) >> 24


def digest(position, size, salt):
    lanes = [0, 0, 0, 0]
    for p in range(position, position + size):
        chunk, within = divmod(p, 4096)
        word, place = divmod(within, 4)
        for lane, seed in enumerate(SEEDS):
            weight = chunk_key(seed, chunk) * word_key(lane, word)
            lanes[lane] += weight * (byte_at(p, salt) << (8 * place))
    return "".join("%016x" % (lane & MASK) for lane in lanes)


CASES = (  # position, size, salt
    (0, 0, 0),
    (0, 1, 4000000000),
    (0, 4096, 1),
    (4095, 2, 2),
    (3, 10, 3),
    (4097, 8191, 4),
    (65536, 70000, 5),
    ((1 << 33) + 4093, 4200, 6),
)

if __name__ == "__main__":
    for case in CASES:
        print('{%d, %d, %d, "%s"},' % (*case, digest(*case)))
