#!/usr/bin/env python3
"""Writes what every engine rank must hold of a quantised checkpoint, standard library only.

    python3 quant_oracle.py CHECKPOINT OUT --tp N

OUT/rank-R.safetensors for every rank. An oracle that cuts and joins whole tensors: it knows the published names, which
weights each scale belongs to and the names of the artifact format, and nothing of layouts, plans or boxes. A rank's
scales are those of the blocks, groups or rows that its weights lie in; scales for a whole weight are on every rank.
"""

import argparse
import collections
import pathlib
import re

import safetensors_io

VOCABULARY_MULTIPLE = 64
ENDINGS = "weight|weight_packed|weight_scale|weight_scale_inv|weight_zero_point|weight_shape|input_scale"


def as_rows(tensor):
    """(dtype, shape, list of rows as bytes)."""
    shape = list(tensor.shape) or [1]  # one number is a vector of one
    row_bytes = safetensors_io.tensor_bytes(tensor.dtype, shape[1:])
    data = bytes(tensor.data)
    return tensor.dtype, shape, [data[at : at + row_bytes] for at in range(0, len(data), row_bytes)]


def cut_rows(rows, share, shares):
    assert len(rows) % shares == 0, (len(rows), shares)
    size = len(rows) // shares
    return rows[share * size : (share + 1) * size]


def cut_columns(rows, share, shares, item_bytes):
    columns = len(rows[0]) // item_bytes
    assert columns % shares == 0, (columns, shares)
    size = columns // shares * item_bytes
    return [row[share * size : (share + 1) * size] for row in rows]


class Oracle:
    def __init__(self, tensors, config, tp):
        self.tensors, self.config, self.tp = tensors, config, tp
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]

    def part(self, name, rank, axis, units):
        """A rank's share of a stored tensor: (dtype, inner shape, rows). `axis`: "rows", "columns" or "whole"."""
        dtype, shape, rows = as_rows(self.tensors[name])
        for_whole_weight = name.endswith(("input_scale", "weight_shape")) or len(shape) == 1
        shares = min(self.tp, units)
        share = rank * shares // self.tp
        if axis == "rows" and not for_whole_weight:
            rows = cut_rows(rows, share, shares)
        if axis == "columns" and not for_whole_weight and shape[1] > 1:
            item_bytes = safetensors_io.ELEMENT_BYTES[dtype]
            rows = cut_columns(rows, share, shares, item_bytes)
            shape = [shape[0], len(rows[0]) // item_bytes]
        return dtype, shape[1:], rows

    def joined(self, parts):
        rows = [row for _, _, part in parts for row in part]
        return parts[0][0], [len(rows), *parts[0][1]], b"".join(rows)

    def vocabulary(self, name, rank):
        dtype, shape, rows = as_rows(self.tensors[name])
        padded = -(-len(rows) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        rows += [bytes(len(rows[0]))] * (padded - len(rows))
        size = padded // self.tp
        return dtype, [size, *shape[1:]], b"".join(rows[rank * size : (rank + 1) * size])

    def attention(self, prefix, ending, rank):
        return self.joined(
            [
                self.part(f"{prefix}q_proj.{ending}", rank, "rows", self.heads),
                self.part(f"{prefix}k_proj.{ending}", rank, "rows", self.kv_heads),
                self.part(f"{prefix}v_proj.{ending}", rank, "rows", self.kv_heads),
            ]
        )

    def gate_up(self, prefix, ending, rank):
        return self.joined([self.part(f"{prefix}{half}_proj.{ending}", rank, "rows", self.tp) for half in ("gate", "up")])

    def stacked(self, of_expert):
        parts = [of_expert(expert) for expert in range(self.config["num_experts"])]
        return parts[0][0], [len(parts), *parts[0][1]], b"".join(part[2] for part in parts)

    def rank(self, rank):
        """{engine name: (dtype, shape, bytes)}."""
        result = {}
        for name, tensor in self.tensors.items():
            if name in ("model.embed_tokens.weight", "lm_head.weight"):
                result[name] = self.vocabulary(name, rank)
            elif m := re.fullmatch(rf"(.*\.self_attn\.)q_proj\.({ENDINGS})", name):
                result[f"{m[1]}qkv_proj.{m[2]}"] = self.attention(m[1], m[2], rank)
            elif m := re.fullmatch(rf"(.*\.mlp\.)gate_proj\.({ENDINGS})", name):
                result[f"{m[1]}gate_up_proj.{m[2]}"] = self.gate_up(m[1], m[2], rank)
            elif m := re.fullmatch(rf"(.*\.mlp\.experts\.)0\.gate_proj\.({ENDINGS})", name):
                result[f"{m[1]}w13_{m[2]}"] = self.stacked(lambda e, m=m: self.gate_up(f"{m[1]}{e}.", m[2], rank))
                result[f"{m[1]}w2_{m[2]}"] = self.stacked(
                    lambda e, m=m: self.joined([self.part(f"{m[1]}{e}.down_proj.{m[2]}", rank, "columns", self.tp)])
                )
            elif re.fullmatch(rf".*\.(self_attn\.o_proj|mlp\.down_proj)\.({ENDINGS})", name):
                result[name] = self.joined([self.part(name, rank, "columns", self.tp)])
            elif not re.search(r"\.(k_proj|v_proj|up_proj)\.|\.experts\.\d", name):
                dtype, shape, rows = as_rows(tensor)
                result[name] = (dtype, shape, b"".join(rows))
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--tp", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    oracle = Oracle(
        safetensors_io.read_checkpoint(arguments.checkpoint),
        collections.defaultdict(int, safetensors_io.read_config(arguments.checkpoint)),
        arguments.tp,
    )
    for rank in range(arguments.tp):
        tensors = sorted(oracle.rank(rank).items())
        safetensors_io.write_file(
            arguments.out / f"rank-{rank}.safetensors", [(name, *tensor) for name, tensor in tensors]
        )


if __name__ == "__main__":
    main()
