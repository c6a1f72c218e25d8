#!/usr/bin/env python3
"""The layout-independent digest by brute force: an oracle for `bascule digest`, sharing no code with it.

A tensor's row-major bytes are 32-bit little-endian words; 1024 words make a chunk. In each of four lanes l
    D[l] = sum over chunks c of A(c,l) * sum over words j of B(j,l) * word(c,j)    mod 2^64
where A and B come from the splitmix64 finaliser, A seeded by name, dtype and shape. The version digest is the SHA-256
of the sorted list of (name, dtype, shape, digest). See docs/design.md.

With numpy the sums run over arrays, without it over plain integers; both give the same numbers.
"""

import argparse
import array
import functools
import hashlib
import json
import operator
import sys

import safetensors_io

try:
    import numpy
except ImportError:
    numpy = None

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
WORD_KEY_SEED = 0x42617363756C65  # "Bascule" in ASCII.
LANES = 4
CHUNK_WORDS = 1024
CHUNK_BYTES = 4 * CHUNK_WORDS


def mix(x):
    """The splitmix64 finaliser."""
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def dims_text(shape):
    return ",".join(map(str, shape))


def lane_seeds(name, dtype, shape):
    """Four 64-bit seeds from the tensor's identity."""
    sha = hashlib.sha256(f"{name}\n{dtype}\n{dims_text(shape)}".encode()).digest()
    return [int.from_bytes(sha[8 * lane : 8 * lane + 8], "little") for lane in range(LANES)]


def chunk_key(seed, chunk):
    """A: 64 bits, odd."""
    return mix((seed + (chunk + 1) * GOLDEN) & MASK) | 1


@functools.cache
def word_keys(lane):
    """B for every word of a chunk: 32 bits, odd."""
    first = lane * CHUNK_WORDS + 1
    return tuple(mix((WORD_KEY_SEED + (first + j) * GOLDEN) & MASK) >> 32 | 1 for j in range(CHUNK_WORDS))


def _words_of(data):
    words = array.array("I")
    assert words.itemsize == 4
    words.frombytes(bytes(data) + bytes(-len(data) % 4))
    if sys.byteorder == "big":
        words.byteswap()
    return words


def lanes_plain(seeds, data):
    """The four sums in plain Python."""
    data = memoryview(data).cast("B")
    sums = [0] * LANES
    for chunk in range(-(-len(data) // CHUNK_BYTES)):
        words = _words_of(data[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES])
        for lane, seed in enumerate(seeds):
            inner = sum(map(operator.mul, word_keys(lane), words))
            sums[lane] = (sums[lane] + chunk_key(seed, chunk) * inner) & MASK
    return sums


def lanes_numpy(seeds, data, chunks_at_once=256):
    """The four sums with numpy; every product and sum wraps at 2^64 as it should."""
    data = memoryview(data).cast("B")
    keys = [numpy.array(word_keys(lane), dtype=numpy.uint64) for lane in range(LANES)]
    sums = [0] * LANES
    block_bytes = chunks_at_once * CHUNK_BYTES
    for start in range(0, len(data), block_bytes):
        block = data[start : start + block_bytes]
        if len(block) % CHUNK_BYTES:
            block = bytes(block) + bytes(-len(block) % CHUNK_BYTES)
        words = numpy.frombuffer(block, dtype="<u4").astype(numpy.uint64).reshape(-1, CHUNK_WORDS)
        for lane, seed in enumerate(seeds):
            inner = (words * keys[lane]).sum(axis=1, dtype=numpy.uint64)
            first = start // CHUNK_BYTES
            outer = numpy.array([chunk_key(seed, first + c) for c in range(len(inner))], dtype=numpy.uint64)
            sums[lane] = (sums[lane] + int((inner * outer).sum(dtype=numpy.uint64))) & MASK
    return sums


def tensor_digest(name, dtype, shape, data):
    """64 hex digits: the four lanes, lane 0 first."""
    seeds = lane_seeds(name, dtype, shape)
    lanes = lanes_plain(seeds, data) if numpy is None else lanes_numpy(seeds, data)
    return "".join(f"{lane:016x}" for lane in lanes)


def fp32_bits_to_bf16_bits(x):
    """Round to nearest even; a NaN keeps its top bits and turns quiet; denormals are kept."""
    if x & 0x7FFFFFFF > 0x7F800000:
        return x >> 16 | 0x40
    return (x + 0x7FFF + (x >> 16 & 1)) >> 16


def _cast_plain(data, narrow):
    if narrow:
        out = array.array("H", map(fp32_bits_to_bf16_bits, _words_of(data)))
    else:
        halves = array.array("H")
        halves.frombytes(bytes(data))
        if sys.byteorder == "big":
            halves.byteswap()
        out = array.array("I", (half << 16 for half in halves))
    if sys.byteorder == "big":
        out.byteswap()
    return out.tobytes()


def _cast_numpy(data, narrow):
    if not narrow:
        return (numpy.frombuffer(data, dtype="<u2").astype("<u4") << 16).astype("<u4").tobytes()
    x = numpy.frombuffer(data, dtype="<u4").astype(numpy.uint64)
    rounded = (x + 0x7FFF + (x >> 16 & 1)) >> 16
    return numpy.where(x & 0x7FFFFFFF > 0x7F800000, x >> 16 | 0x40, rounded).astype("<u2").tobytes()


def convert(dtype, data, wanted):
    """(dtype, data) after `wanted` = keep, bf16 or fp32. Integers stay; a float that the rule does not cover fails."""
    target = {"keep": dtype, "bf16": "BF16", "fp32": "F32"}[wanted]
    if target == dtype or dtype[0] in "IU" or dtype == "BOOL":
        return dtype, data
    if (dtype, target) not in (("F32", "BF16"), ("BF16", "F32")):
        raise ValueError(f"no rule converts {dtype} to {target}")
    cast = _cast_plain if numpy is None else _cast_numpy
    return target, cast(data, narrow=target == "BF16")


def logical_tensors(tensors, config):
    """`tensors` without a head that is the embedding again: tied by the config and equal to it byte for byte."""
    head, embedding = tensors.get("lm_head.weight"), tensors.get("model.embed_tokens.weight")
    is_tied = config.get("tie_word_embeddings", False) and head is not None and embedding is not None
    if is_tied and head[:2] == embedding[:2] and bytes(head.data) == bytes(embedding.data):
        return {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
    return tensors


def digests(tensors, config=None, dtype="keep"):
    """(version digest, {name: tensor digest}) of {name: Tensor}."""
    by_name = {}
    listing = hashlib.sha256()
    named = logical_tensors(tensors, config or {})
    for name in sorted(named, key=lambda n: n.encode()):
        tensor = named[name]
        stored_dtype, data = convert(tensor.dtype, tensor.data, dtype)
        by_name[name] = tensor_digest(name, stored_dtype, tensor.shape, data)
        listing.update(f"{name}\n{stored_dtype}\n{dims_text(tensor.shape)}\n{by_name[name]}\n".encode())
    return listing.hexdigest(), by_name


def version_digest(checkpoint_dir, dtype="keep"):
    """The version digest of a checkpoint directory or single safetensors file."""
    return digests(safetensors_io.read_checkpoint(checkpoint_dir), safetensors_io.read_config(checkpoint_dir), dtype)[0]


def main():
    parser = argparse.ArgumentParser(
        description="Prints the JSON that `bascule digest CHECKPOINT --tensors --json` must print.",
        epilog="example: python3 digest_oracle.py /tmp/dense1 --dtype fp32",
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--dtype", choices=["keep", "bf16", "fp32"], default="keep")
    parser.add_argument("--tensors", action="store_true", help="accepted for likeness; tensors are always printed")
    arguments = parser.parse_args()
    tensors = safetensors_io.read_checkpoint(arguments.checkpoint)
    version, by_name = digests(tensors, safetensors_io.read_config(arguments.checkpoint), arguments.dtype)
    print(json.dumps({"version_digest": version, "tensors": by_name}))


if __name__ == "__main__":
    main()
