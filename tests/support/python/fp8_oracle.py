#!/usr/bin/env python3
"""Quantises bf16 tensors to FP8 (E4M3) in blocks of 128 x 128, standard library only.

    python3 fp8_oracle.py IN.safetensors OUT.safetensors

Every BF16 tensor `X.weight` of two dimensions becomes `X.weight` (F8_E4M3) and `X.weight_scale_inv` (F32); the others are
copied. An oracle written from the format and the formula alone: a list of the 127 finite numbers of E4M3, searched for
the nearest, and quotients in double precision, which rounded to fp32 are the fp32 quotients.
"""

import argparse
import bisect
import struct

import safetensors_io

BLOCK = 128
LARGEST = 448.0
SCALE_INV_MIN = 2.0**-116


def value_of_code(code):
    """The number that a code without sign stands for; the last, 0x7f, is NaN."""
    exponent, mantissa = code >> 3, code & 7
    return mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)


VALUES = [value_of_code(code) for code in range(0x7F)]


def code_of_value(value):
    """The code nearest to a number, the even one of two as near; beyond the largest, the largest."""
    sign = 0x80 if struct.pack("<d", value)[7] & 0x80 else 0
    magnitude = abs(value)
    above = bisect.bisect_left(VALUES, magnitude)
    if above == len(VALUES):
        return sign | (len(VALUES) - 1)
    if above == 0:
        return sign
    below = above - 1
    to_below, to_above = magnitude - VALUES[below], VALUES[above] - magnitude
    nearer_is_below = to_below < to_above or (to_below == to_above and below % 2 == 0)
    return sign | (below if nearer_is_below else above)


def fp32(value):
    """The nearest fp32."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def bf16_values(data):
    words = struct.unpack(f"<{len(data) // 2}H", data)
    return struct.unpack(f"<{len(words)}f", b"".join(struct.pack("<I", word << 16) for word in words))


def blocks(extent):
    return [(begin, min(begin + BLOCK, extent)) for begin in range(0, extent, BLOCK)]


def scale_inv_of(amax):
    return max(fp32(amax / LARGEST), SCALE_INV_MIN)


def quantised(rows, columns, data):
    """(codes, scales) as bytes, of the bytes of a row-major bf16 matrix."""
    values = bf16_values(bytes(data))
    codes = bytearray(rows * columns)
    scales = []
    known = {}
    for row_begin, row_end in blocks(rows):
        for begin, end in blocks(columns):
            places = [row * columns + c for row in range(row_begin, row_end) for c in range(begin, end)]
            scale = scale_inv_of(max(abs(values[place]) for place in places))
            scales.append(scale)
            for place in places:
                key = (struct.pack("<f", values[place]), scale)
                if key not in known:
                    known[key] = code_of_value(fp32(values[place] / scale))
                codes[place] = known[key]
    return bytes(codes), struct.pack(f"<{len(scales)}f", *scales)


def quantised_tensors(tensors, is_quantised):
    """{name: (dtype, shape, bytes)}; `is_quantised` says of a name whether it is a weight to quantise."""
    result = {}
    for name, tensor in tensors.items():
        if not is_quantised(name, tensor):
            result[name] = (tensor.dtype, list(tensor.shape), bytes(tensor.data))
            continue
        rows, columns = tensor.shape
        codes, scales = quantised(rows, columns, tensor.data)
        result[name] = ("F8_E4M3", [rows, columns], codes)
        result[name + "_scale_inv"] = ("F32", [len(blocks(rows)), len(blocks(columns))], scales)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="IN.safetensors")
    parser.add_argument("out", metavar="OUT.safetensors")
    arguments = parser.parse_args()
    tensors, _ = safetensors_io.read_file(arguments.source)
    result = quantised_tensors(
        tensors, lambda name, t: name.endswith(".weight") and t.dtype == "BF16" and len(t.shape) == 2
    )
    safetensors_io.write_file(arguments.out, [(name, *tensor) for name, tensor in sorted(result.items())])


if __name__ == "__main__":
    main()
