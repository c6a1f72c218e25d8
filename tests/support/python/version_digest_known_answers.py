"""Digest keys, version digests and layout digests, computed from their documented rules with the standard library only.

Prints the constants that tests/unit/layout and tests/unit/manifest hold:
    python3 tests/support/python/version_digest_known_answers.py
"""

import hashlib
import struct


def key_text(name, dtype, shape):
    return f"{name}\n{dtype}\n{','.join(str(d) for d in shape)}"


def key_seeds(name, dtype, shape):
    return struct.unpack("<4Q", hashlib.sha256(key_text(name, dtype, shape).encode()).digest())


def version_digest(entries):
    text = "".join(
        f"{key_text(name, dtype, shape)}\n{''.join(f'{lane:016x}' for lane in lanes)}\n"
        for name, dtype, shape, lanes in sorted(entries)
    )
    return hashlib.sha256(text.encode()).hexdigest()


def number(value):
    return struct.pack("<q", value)


def text(value):
    data = value.encode()
    return number(len(data)) + data


def items(encode, values):
    return number(len(values)) + b"".join(encode(value) for value in values)


def dims(values):
    return items(number, values)


def box(value):
    offset, extent = value
    return dims(offset) + dims(extent)


def tensor(value):
    name, dtype, shape = value
    return text(name) + text(dtype) + dims(shape)


def local(value):
    name, dtype, shape, stride = value
    return tensor((name, dtype, shape)) + dims(stride)


def row(value):
    local_index, local_box, logical_index, logical_box = value
    return number(local_index) + box(local_box) + number(logical_index) + box(logical_box)


def rank(value):
    tensors, rows = value
    return items(local, tensors) + items(row, rows)


def layout_digest(tensors, ranks):
    return hashlib.sha256(text("bascule layout 1") + items(tensor, tensors) + items(rank, ranks)).hexdigest()


def main():
    print("key   ", [f"{seed:#x}" for seed in key_seeds("model.norm.weight", "BF16", [64])])
    print("scalar", [f"{seed:#x}" for seed in key_seeds("scale", "F32", [])])
    print("version", version_digest([
        ("model.norm.weight", "BF16", [64], (1, 2, 3, 4)),
        ("a", "F32", [2, 3], (0xFEDCBA9876543210, 0, 0xFFFFFFFFFFFFFFFF, 7)),
        ("scale", "F32", [], (0, 0, 0, 0)),
    ]))
    whole = ([0, 0], [4, 6])
    print("plain ", layout_digest([("w", "F32", [4, 6])], [([("w", "F32", [4, 6], [])], [(0, whole, 0, whole)])]))
    print("padded", layout_digest(
        [("w", "BF16", [3, 6])],
        [([("fused", "BF16", [4, 6], [8, 1])],
          [(0, ([0, 0], [3, 6]), 0, ([0, 0], [3, 6])), (0, ([3, 0], [1, 6]), -1, ([], []))])]))


if __name__ == "__main__":
    main()
