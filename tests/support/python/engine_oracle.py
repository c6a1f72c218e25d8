#!/usr/bin/env python3
"""Writes what one engine rank must hold of a checkpoint, by concatenating full tensors; standard library only.

    python3 engine_oracle.py CHECKPOINT OUT.safetensors

An oracle for maps between logical and engine tensors: it knows the names of the artifact format (q, k, v rows; gate, up
rows; vocabulary padded with zero rows to a multiple of 64) and nothing of layouts, plans or boxes.
"""

import argparse
import re

import safetensors_io

VOCABULARY_MULTIPLE = 64


def joined(parts):
    """One tensor with the rows of `parts`, one behind the other."""
    dtype, inner = parts[0].dtype, list(parts[0].shape[1:])
    rows = sum(part.shape[0] for part in parts)
    return dtype, [rows, *inner], b"".join(bytes(part.data) for part in parts)


def padded(tensor):
    """`tensor` with zero rows behind it."""
    rows = -(-tensor.shape[0] // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    shape = [rows, *tensor.shape[1:]]
    data = bytes(tensor.data)
    return tensor.dtype, shape, data + bytes(safetensors_io.tensor_bytes(tensor.dtype, shape) - len(data))


def engine_tensors(tensors, tied):
    """{engine name: (dtype, shape, bytes)}."""
    result = {}
    for name, tensor in tensors.items():
        if name == "model.embed_tokens.weight" or (name == "lm_head.weight" and not tied):
            result[name] = padded(tensor)
        elif match := re.fullmatch(r"(model\.layers\.\d+\.self_attn\.)q_proj\.weight", name):
            result[match[1] + "qkv_proj.weight"] = joined([tensors[f"{match[1]}{p}_proj.weight"] for p in "qkv"])
        elif match := re.fullmatch(r"(model\.layers\.\d+\.mlp\.)gate_proj\.weight", name):
            result[match[1] + "gate_up_proj.weight"] = joined([tensor, tensors[match[1] + "up_proj.weight"]])
        elif not re.search(r"\.(k_proj|v_proj|up_proj)\.weight$", name) and name != "lm_head.weight":
            result[name] = (tensor.dtype, list(tensor.shape), bytes(tensor.data))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("out")
    arguments = parser.parse_args()
    tied = safetensors_io.read_config(arguments.checkpoint).get("tie_word_embeddings", False)
    tensors = engine_tensors(safetensors_io.read_checkpoint(arguments.checkpoint), tied)
    safetensors_io.write_file(arguments.out, [(name, *tensor) for name, tensor in sorted(tensors.items())])


if __name__ == "__main__":
    main()
