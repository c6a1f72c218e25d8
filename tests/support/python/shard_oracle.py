#!/usr/bin/env python3
"""What each tensor-parallel engine rank must hold of a checkpoint: whole tensors concatenated, cut and fused with numpy.

    python3 shard_oracle.py CHECKPOINT OUT --tp 1,2,4 [--expert-parallel]

writes OUT/tpN-rank-R.safetensors for each N that the sizes allow, and OUT/tpN-refused (the reason) for the others. An
oracle for maps between logical and engine tensors: it knows the names of the artifact format and the published shapes,
and nothing of layouts, plans or boxes.
"""

import argparse
import pathlib

import numpy

import safetensors_io
from stored_checkpoint import StoredCheckpoint

VOCABULARY_MULTIPLE = 64


class Refused(Exception):
    """The sizes do not divide."""


def parts(array, count, axis=0, what=""):
    """`count` equal ranges of `array` along `axis`."""
    if array.shape[axis] % count:
        raise Refused(f"{what} {array.shape[axis]} among {count}")
    return numpy.split(array, count, axis=axis)


def head_parts(array, heads, ranks, axis=0):
    """One range of whole query heads for each rank."""
    if heads % ranks:
        raise Refused(f"{heads} heads among {ranks}")
    return parts(array, ranks, axis)


def kv_parts(array, heads, ranks):
    """KV heads for each rank: a range of them, or the one that the rank's query heads use."""
    each = numpy.split(array, heads)
    if heads % ranks == 0:
        count = heads // ranks
        return [numpy.concatenate(each[rank * count : (rank + 1) * count]) for rank in range(ranks)]
    if ranks % heads == 0:
        return [each[rank // (ranks // heads)] for rank in range(ranks)]
    raise Refused(f"{heads} KV heads among {ranks}")


def vocabulary_parts(array, ranks):
    rows = -(-len(array) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    padded = numpy.zeros((rows, array.shape[1]), array.dtype)
    padded[: len(array)] = array
    return parts(padded, ranks, what="padded vocabulary")


class Oracle(StoredCheckpoint):
    """A checkpoint, and what the ranks hold of it. Thread-compatible."""

    def __init__(self, checkpoint_dir):
        super().__init__(checkpoint_dir)
        self.heads = self.config["num_attention_heads"]
        self.kv_heads = self.config.get("num_key_value_heads") or self.heads

    def ranks(self, count, expert_parallel=False):
        """[{engine name: (dtype, array)}] of the `count` ranks."""
        held = [{} for _ in range(count)]
        self.count, self.expert_parallel = count, expert_parallel
        architecture = self.config["architectures"][0]
        tied = self.config.get("tie_word_embeddings", "Gemma" in architecture)
        self.put(held, "model.embed_tokens.weight", vocabulary_parts(self.tensors["model.embed_tokens.weight"], count))
        for layer in range(self.config["num_hidden_layers"]):
            self.layer(held, f"model.layers.{layer}.")
        self.put(held, "model.norm.weight", [self.tensors["model.norm.weight"]] * count)
        if not tied:
            self.put(held, "lm_head.weight", vocabulary_parts(self.tensors["lm_head.weight"], count))
        return held

    def put(self, held, name, arrays, like=None):
        for rank, array in zip(held, arrays, strict=True):
            rank[name] = (self.dtypes.get(like or name, "BF16"), array)

    def layer(self, held, prefix):
        names = [name.removeprefix(prefix) for name in self.tensors if name.startswith(prefix)]
        get = lambda name: self.tensors[prefix + name]  # noqa: E731
        for name in names:
            if "norm" in name or name == "mlp.gate.e_score_correction_bias":
                self.put(held, prefix + name, [get(name)] * self.count)
        if "self_attn.kv_b_proj.weight" in names:
            self.latent_attention(held, prefix, names, get)
        else:
            self.attention(held, prefix, names, get)
        self.out(held, prefix, names, get)
        for module in ("mlp.", "mlp.shared_experts."):
            self.feed_forward(held, prefix, module, names, get)
        self.experts(held, prefix, names, get)

    def attention(self, held, prefix, names, get):
        for ending in ("weight", "bias"):
            if f"self_attn.qkv_proj.{ending}" in names:  # Phi-3
                whole = get(f"self_attn.qkv_proj.{ending}")
                size = len(whole) // (self.heads + 2 * self.kv_heads)
                q, k, v = numpy.split(whole, [self.heads * size, (self.heads + self.kv_heads) * size])
            elif f"self_attn.q_proj.{ending}" in names:
                q, k, v = (get(f"self_attn.{kind}_proj.{ending}") for kind in "qkv")
            else:
                continue
            triples = zip(
                head_parts(q, self.heads, self.count),
                kv_parts(k, self.kv_heads, self.count),
                kv_parts(v, self.kv_heads, self.count),
            )
            self.put(held, f"{prefix}self_attn.qkv_proj.{ending}", [numpy.concatenate(triple) for triple in triples])

    def latent_attention(self, held, prefix, names, get):
        kv_in = get("self_attn.kv_a_proj_with_mqa.weight")
        if "self_attn.q_a_proj.weight" in names:
            fused = numpy.concatenate([get("self_attn.q_a_proj.weight"), kv_in])
            self.put(held, prefix + "self_attn.fused_qkv_a_proj.weight", [fused] * self.count)
            query = "self_attn.q_b_proj.weight"
        else:
            self.put(held, prefix + "self_attn.kv_a_proj_with_mqa.weight", [kv_in] * self.count)
            query = "self_attn.q_proj.weight"
        for name in (query, "self_attn.kv_b_proj.weight"):
            self.put(held, prefix + name, head_parts(get(name), self.heads, self.count))

    def out(self, held, prefix, names, get):
        name = "self_attn.o_proj."
        self.put(held, prefix + name + "weight", head_parts(get(name + "weight"), self.heads, self.count, axis=1))
        if name + "bias" in names:
            self.put(held, prefix + name + "bias", [get(name + "bias")] * self.count)

    def feed_forward(self, held, prefix, module, names, get):
        for ending in ("weight", "bias"):
            if f"{module}gate_up_proj.{ending}" in names:  # Phi-3
                gate, up = numpy.split(get(f"{module}gate_up_proj.{ending}"), 2)
            elif f"{module}gate_proj.{ending}" in names:
                gate, up = (get(f"{module}{kind}_proj.{ending}") for kind in ("gate", "up"))
            else:
                continue
            pairs = zip(parts(gate, self.count, what="ffn"), parts(up, self.count))
            self.put(held, f"{prefix}{module}gate_up_proj.{ending}", [numpy.concatenate(pair) for pair in pairs])
        if f"{module}down_proj.weight" in names:
            self.put(held, f"{prefix}{module}down_proj.weight", parts(get(f"{module}down_proj.weight"), self.count, 1))
        if f"{module}down_proj.bias" in names:
            self.put(held, f"{prefix}{module}down_proj.bias", [get(f"{module}down_proj.bias")] * self.count)

    def experts(self, held, prefix, names, get):
        stacks = self.expert_stacks(names, get)
        if stacks is None:
            return
        gate, up, down = stacks
        router = next(name for name in names if name.endswith(".gate.weight"))
        self.put(held, prefix + "mlp.gate.weight", [get(router)] * self.count)
        if self.expert_parallel:
            w13 = parts(numpy.concatenate([gate, up], axis=1), self.count, what="experts")
            w2 = parts(down, self.count)
        else:
            pairs = zip(parts(gate, self.count, axis=1, what="expert ffn"), parts(up, self.count, axis=1))
            w13 = [numpy.concatenate(pair, axis=1) for pair in pairs]
            w2 = parts(down, self.count, axis=2)
        self.put(held, prefix + "mlp.experts.w13_weight", w13)
        self.put(held, prefix + "mlp.experts.w2_weight", w2)

    def expert_stacks(self, names, get):
        """Gate, up and down of all experts, each with the experts in front; None where there are none."""
        if "mlp.experts.gate_up_proj" in names:
            gate, up = numpy.split(get("mlp.experts.gate_up_proj"), 2, axis=1)
            return gate, up, get("mlp.experts.down_proj")
        for module, gate, up, down in (
            ("mlp", "gate_proj", "up_proj", "down_proj"),
            ("block_sparse_moe", "w1", "w3", "w2"),
        ):
            if f"{module}.experts.0.{gate}.weight" in names:
                count = sum(name.startswith(f"{module}.experts.") and name.endswith(f".{gate}.weight") for name in names)
                return [
                    numpy.stack([get(f"{module}.experts.{expert}.{kind}.weight") for expert in range(count)])
                    for kind in (gate, up, down)
                ]
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--tp", default="1")
    parser.add_argument("--expert-parallel", action="store_true")
    arguments = parser.parse_args()
    oracle = Oracle(arguments.checkpoint)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for count in map(int, arguments.tp.split(",")):
        try:
            ranks = oracle.ranks(count, arguments.expert_parallel)
        except Refused as refused:
            (arguments.out / f"tp{count}-refused").write_text(f"{refused}\n")
            continue
        for rank, held in enumerate(ranks):
            rows = [(name, dtype, array.shape, array.tobytes()) for name, (dtype, array) in sorted(held.items())]
            safetensors_io.write_file(arguments.out / f"tp{count}-rank-{rank}.safetensors", rows)


if __name__ == "__main__":
    main()
