#!/usr/bin/env python3
"""Writes small Hugging Face checkpoints (config.json and model.safetensors) for tests, standard library only.

    dense      F-DENSE of cases.md: Llama, 2 layers, hidden 64, 4 query and 2 KV heads, ffn 96, vocab 130, untied
    tied       F-TIED: the same with a tied head and no lm_head tensor
    tied-head  the same with an lm_head tensor that equals the embedding
    bias       F-BIAS: the same as dense with q/k/v biases (Qwen2)
    qk-norm    the same as dense with q/k norms (Qwen3)
    mistral    the same as dense, with a window that holds every position
    llama3     the same as dense with the scaled positions of Llama 3
    wide       Llama, 8 query and 2 KV heads, ffn 96, vocab 250: shared evenly by 1, 2, 4 and 8 engine ranks
    sized      Llama-style of about --bytes bytes, for benchmarks
    qwen3-0.6b the shapes of Qwen3-0.6B: 1.19 GB of bf16

Two fills. `hash`: every element's bits are a hash of (name, row, column, version), so a misplaced element is found and
traced; never a NaN. `normal`: Gaussian with standard deviation 1/sqrt(fan in), from blocks that are generated once and
repeated with a different start for each tensor; for large files. Under both, norm weights lie around 1, decoding gives
finite logits, and they depend on every tensor and on the version.
"""

import argparse
import array
import hashlib
import json
import math
import pathlib
import random
import struct
import sys
from dataclasses import dataclass, replace

import safetensors_io
from digest_oracle import GOLDEN, MASK, mix

# A prime, so that no row length divides it and rows do not repeat.
NORMAL_BLOCK_ELEMENTS = 65521


@dataclass(frozen=True)
class Spec:
    """The sizes of a decoder."""

    model_type: str = "llama"
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 96
    vocab: int = 130
    tied: bool = False
    head_tensor: bool = True  # Whether an lm_head tensor is written.
    qkv_bias: bool = False
    qk_norm: bool = False
    extra: tuple = ()  # Pairs that config.json has besides.


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
DENSE = Spec()
SPECS = {
    "dense": DENSE,
    "tied": replace(DENSE, tied=True, head_tensor=False),
    "tied-head": replace(DENSE, tied=True),
    "bias": replace(DENSE, model_type="qwen2", qkv_bias=True),
    "qk-norm": replace(DENSE, model_type="qwen3", qk_norm=True),
    "mistral": replace(DENSE, model_type="mistral", extra=(("sliding_window", 4096),)),
    "llama3": replace(DENSE, extra=(("rope_scaling", LLAMA3_ROPE),)),
    "wide": replace(DENSE, heads=8, kv_heads=2, head_dim=8, vocab=250),
    "qwen3-0.6b": Spec("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, tied=True, head_tensor=False, qk_norm=True),
}

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def sized_spec(total_bytes, element_bytes=2):
    """An untied Llama-style spec of as large a width as leaves four layers; the vocabulary takes up what is left."""
    for hidden, ffn, vocab in (
        (2048, 5632, 32000),
        (1024, 3072, 16384),
        (512, 1536, 8192),
        (256, 704, 1024),
        (64, 96, 130),
    ):
        heads, kv_heads = max(hidden // 64, 1), max(hidden // 256, 1)
        spec = Spec(layers=0, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=64, ffn=ffn, vocab=vocab)
        left = total_bytes // element_bytes - element_count(spec)
        layers = left // (element_count(replace(spec, layers=1)) - element_count(spec))
        if layers >= 4:
            break
    spec = replace(spec, layers=max(layers, 1))
    left = total_bytes // element_bytes - element_count(spec)
    return replace(spec, vocab=vocab + max(left, 0) // (2 * hidden * 64) * 64)


def shapes(spec):
    """Name -> shape of every tensor that is written, in Hugging Face's order."""
    q_rows, kv_rows = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    out = {"model.embed_tokens.weight": (spec.vocab, spec.hidden)}
    for index in range(spec.layers):
        layer = f"model.layers.{index}"
        for kind, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            out[f"{layer}.self_attn.{kind}_proj.weight"] = (rows, spec.hidden)
            if spec.qkv_bias:
                out[f"{layer}.self_attn.{kind}_proj.bias"] = (rows,)
        out[f"{layer}.self_attn.o_proj.weight"] = (spec.hidden, q_rows)
        if spec.qk_norm:
            out[f"{layer}.self_attn.q_norm.weight"] = (spec.head_dim,)
            out[f"{layer}.self_attn.k_norm.weight"] = (spec.head_dim,)
        out[f"{layer}.mlp.gate_proj.weight"] = (spec.ffn, spec.hidden)
        out[f"{layer}.mlp.up_proj.weight"] = (spec.ffn, spec.hidden)
        out[f"{layer}.mlp.down_proj.weight"] = (spec.hidden, spec.ffn)
        out[f"{layer}.input_layernorm.weight"] = (spec.hidden,)
        out[f"{layer}.post_attention_layernorm.weight"] = (spec.hidden,)
    out["model.norm.weight"] = (spec.hidden,)
    if spec.head_tensor:
        out["lm_head.weight"] = (spec.vocab, spec.hidden)
    return out


def element_count(spec):
    return sum(math.prod(shape) for shape in shapes(spec).values())


def config_of(spec, dtype="BF16"):
    """config.json in Hugging Face's spelling."""
    return {
        "architectures": [ARCHITECTURES[spec.model_type]],
        "model_type": spec.model_type,
        "hidden_act": "silu",
        "hidden_size": spec.hidden,
        "intermediate_size": spec.ffn,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "vocab_size": spec.vocab,
        "tie_word_embeddings": spec.tied,
        "attention_bias": False,
        "torch_dtype": {"BF16": "bfloat16", "F32": "float32"}[dtype],
        "bos_token_id": 1,
        "eos_token_id": 2,
        **dict(spec.extra),
    }


# ---- fills -------------------------------------------------------------------------------------------------------


def is_norm(name):
    return "norm" in name


def scale_exponent(name, shape):
    """k such that elements of the tensor have a typical size of 2^k."""
    if name.endswith(".bias"):
        return -3
    k = round(-0.5 * math.log2(shape[-1]))
    # Logits spread a little wider, so that the best token is rarely a close call.
    return k + 1 if name in ("lm_head.weight", "model.embed_tokens.weight") else k


def fp32_bits_from_hash(h, k, norm):
    """Bits of a float from a hash: all 23 mantissa bits; sign and one of four binades, for a norm [0.5, 2)."""
    mantissa = h >> 32 & 0x7FFFFF
    if norm:
        return (126 + (h >> 63)) << 23 | mantissa
    return (h >> 63) << 31 | (127 + k - (h >> 55 & 3)) << 23 | mantissa


def hash_fill(name, shape, version, dtype):
    """Row-major little-endian bytes; element (row, column) depends on nothing but (name, row, column, version).

    A tensor of one dimension is one row. A bf16 element is the upper half of the fp32 element.
    """
    identity = hashlib.sha256(f"{name}\n{version}".encode()).digest()
    seed = int.from_bytes(identity[:8], "little")
    columns = shape[-1]
    norm, k = is_norm(name), scale_exponent(name, shape)
    bits = []
    for row in range(math.prod(shape[:-1])):
        row_seed = mix((seed + (row + 1) * GOLDEN) & MASK)
        bits += [fp32_bits_from_hash(mix((row_seed + c * GOLDEN) & MASK), k, norm) for c in range(1, columns + 1)]
    if dtype == "BF16":
        return struct.pack(f"<{len(bits)}H", *(b >> 16 for b in bits))
    return struct.pack(f"<{len(bits)}I", *bits)


class NormalFill:
    """Gaussian blocks, one for each scale, made once and repeated."""

    def __init__(self, version, dtype):
        self._dtype = dtype
        self._version = version
        rng = random.Random(f"bascule normal fill {version}")
        self._values = [rng.gauss(0.0, 1.0) for _ in range(NORMAL_BLOCK_ELEMENTS)]
        self._blocks = {}

    def _block(self, mean, deviation):
        if (mean, deviation) not in self._blocks:
            values = (mean + deviation * value for value in self._values)
            self._blocks[mean, deviation] = pack_floats(values, self._dtype)
        return self._blocks[mean, deviation]

    def blocks(self, name, shape):
        """Yields the tensor's bytes, block by block."""
        if is_norm(name):
            block = self._block(1.0, 0.1)
        else:
            block = self._block(0.0, 0.05 if name.endswith(".bias") else 1 / math.sqrt(shape[-1]))
        start = int.from_bytes(hashlib.sha256(f"{name}\n{self._version}".encode()).digest()[:4], "little")
        start = start % NORMAL_BLOCK_ELEMENTS * safetensors_io.ELEMENT_BYTES[self._dtype]
        turned = block[start:] + block[:start]
        left = safetensors_io.tensor_bytes(self._dtype, shape)
        many = turned * max(1, min(left, 8 << 20) // len(turned))
        while left > 0:
            yield many[:left]
            left -= min(left, len(many))


def pack_floats(values, dtype):
    """Little-endian bytes of fp32, or of bf16 rounded to nearest even."""
    floats = array.array("f", values)
    if sys.byteorder == "big":
        floats.byteswap()
    if dtype == "F32":
        return floats.tobytes()
    words = struct.unpack(f"<{len(floats)}I", floats.tobytes())
    return struct.pack(f"<{len(words)}H", *((w + 0x7FFF + (w >> 16 & 1)) >> 16 for w in words))


# ---- files -------------------------------------------------------------------------------------------------------


def tensors_of(spec, version, fill="hash", dtype="BF16"):
    """Yields (name, dtype, shape, blocks) for `safetensors_io.write_file`, in bytewise order of names."""
    normal = NormalFill(version, dtype) if fill == "normal" else None
    for name, shape in sorted(shapes(spec).items()):
        # A tied head that is written all the same holds the embedding's bytes.
        source = "model.embed_tokens.weight" if spec.tied and name == "lm_head.weight" else name
        yield name, dtype, shape, normal.blocks(source, shape) if normal else hash_fill(source, shape, version, dtype)


def write_sharded(out, tensors, shard_count):
    """Cuts `tensors` in order into files of about equal bytes, with an index."""
    tensors = list(tensors)
    total = sum(safetensors_io.tensor_bytes(dtype, shape) for _, dtype, shape, _ in tensors)
    files = [[] for _ in range(shard_count)]
    position = 0
    for tensor in tensors:
        files[min(position * shard_count // total, shard_count - 1)].append(tensor)
        position += safetensors_io.tensor_bytes(tensor[1], tensor[2])
    files = [file for file in files if file]
    weight_map = {}
    for number, file in enumerate(files, 1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        safetensors_io.write_file(out / name, file, {"format": "pt"})
        weight_map.update((tensor[0], name) for tensor in file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def write_checkpoint(out, spec, version, fill="hash", dtype="BF16", shard_count=1):
    """Makes the directory `out` (which must not hold a checkpoint yet)."""
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    if any(out.glob("*.safetensors")):
        raise FileExistsError(17, "holds a checkpoint already", str(out))
    tensors = tensors_of(spec, version, fill, dtype)
    if shard_count > 1:
        write_sharded(out, tensors, shard_count)
    else:
        safetensors_io.write_file(out / "model.safetensors", tensors, {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config_of(spec, dtype), indent=2) + "\n")


def parse_bytes(text):
    """1200MB, 1.2GB, 64MiB or plain bytes."""
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1}
    for unit, factor in units.items():
        if text.endswith(unit):
            return round(float(text.removesuffix(unit)) * factor)
    return int(text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  python3 fixtures.py dense /tmp/dense1 --version 1\n"
        "  python3 fixtures.py sized /tmp/big1 --bytes 1.2GB --version 1",
    )
    parser.add_argument("kind", choices=[*SPECS, "sized"])
    parser.add_argument("out", metavar="OUT", help="directory to make")
    parser.add_argument("--version", type=int, default=1, help="another version has other bytes (default: 1)")
    parser.add_argument("--fill", choices=["hash", "normal"], help="default: hash; normal for sized and qwen3-0.6b")
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="cut into N files with an index")
    parser.add_argument("--bytes", type=parse_bytes, default=10**8, help="size of `sized` (default: 100MB)")
    arguments = parser.parse_args()
    dtype = {"bf16": "BF16", "fp32": "F32"}[arguments.dtype]
    is_large = arguments.kind in ("sized", "qwen3-0.6b")
    if arguments.kind == "sized":
        spec = sized_spec(arguments.bytes, safetensors_io.ELEMENT_BYTES[dtype])
    else:
        spec = SPECS[arguments.kind]
    fill = arguments.fill or ("normal" if is_large else "hash")
    try:
        write_checkpoint(arguments.out, spec, arguments.version, fill, dtype, arguments.shards)
    except OSError as error:
        sys.exit(f"fixtures.py: {error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
