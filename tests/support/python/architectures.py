#!/usr/bin/env python3
"""Small checkpoints of every architecture, and odd sizes: config.json and model.safetensors.

    python3 architectures.py KIND OUT        makes the directory OUT
    python3 architectures.py --list          prints the kinds

Names and shapes are written down from the published checkpoints, one function for each kind of attention and of
feed-forward network. Every element is a pseudo-random number that depends on its tensor's name, so that a misplaced one
shows; the values are of the size that decoding needs.
"""

import argparse
import hashlib
import json
import pathlib
import sys

import numpy

import safetensors_io

BASE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 130,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def config(architecture, **changes):
    return {"architectures": [architecture], **BASE, **changes}


EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
LATENT = {
    "num_key_value_heads": 8,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    **EXPERTS,
}

KINDS = {
    "llama": config("LlamaForCausalLM"),
    "llama-biases": config("LlamaForCausalLM", attention_bias=True, mlp_bias=True),
    "llama-tied": config("LlamaForCausalLM", tie_word_embeddings=True),
    "mistral": config("MistralForCausalLM", head_dim=24, sliding_window=4096),
    "qwen2": config("Qwen2ForCausalLM", tie_word_embeddings=True),
    "qwen3": config("Qwen3ForCausalLM", head_dim=16),
    "phi3": config("Phi3ForCausalLM", sliding_window=2047),
    "gemma2": config("Gemma2ForCausalLM", head_dim=32, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=None),
    "gemma3": config("Gemma3ForCausalLM", head_dim=32, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=None),
    "mixtral": config("MixtralForCausalLM", num_local_experts=8, num_experts_per_tok=2, intermediate_size=32),
    "mixtral-stacked": config("MixtralForCausalLM", num_local_experts=8, num_experts_per_tok=2, intermediate_size=32),
    "qwen3-moe": config(
        "Qwen3MoeForCausalLM", head_dim=16, num_experts=8, num_hidden_layers=3, mlp_only_layers=[1], **EXPERTS
    ),
    "qwen3-moe-stacked": config("Qwen3MoeForCausalLM", head_dim=16, num_experts=8, **EXPERTS),
    "deepseek-v2": config("DeepseekV2ForCausalLM", q_lora_rank=None, topk_method="greedy", **LATENT),
    "deepseek-v3": config("DeepseekV3ForCausalLM", q_lora_rank=40, topk_method="noaux_tc", **LATENT),
    # Odd sizes: KV heads 1 and 3, heads that are no power of two, hidden 48, value heads of another size, experts that
    # do not divide among all ranks.
    "one-kv-head": config("LlamaForCausalLM", num_key_value_heads=1),
    "three-kv-heads": config("LlamaForCausalLM", num_attention_heads=6, num_key_value_heads=3, head_dim=16),
    "twelve-heads": config("Qwen3ForCausalLM", num_attention_heads=12, num_key_value_heads=4, head_dim=10, hidden_size=48),
    "indivisible": config("LlamaForCausalLM", hidden_size=58, intermediate_size=94, num_attention_heads=2, head_dim=14,
                          vocab_size=131, num_hidden_layers=3),
    "four-layers": config("LlamaForCausalLM", num_hidden_layers=4, tie_word_embeddings=True),
    "value-heads": config("LlamaForCausalLM", head_dim=16, v_head_dim=12),
    "six-experts": config("Qwen3MoeForCausalLM", head_dim=16, num_experts=6, **EXPERTS),
}  # fmt: skip


def head_sizes(c):
    """(query and key head, value head)."""
    if "kv_lora_rank" in c:
        return c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["v_head_dim"]
    size = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    return size, c.get("v_head_dim", size)


def plain_attention(c):
    architecture, hidden = c["architectures"][0], c["hidden_size"]
    size, value_size = head_sizes(c)
    q, k = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    v, mixed = c["num_key_value_heads"] * value_size, c["num_attention_heads"] * value_size
    if architecture == "Phi3ForCausalLM":
        return {"self_attn.qkv_proj.weight": (q + k + v, hidden), "self_attn.o_proj.weight": (hidden, mixed)}
    out = {
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (k, hidden),
        "self_attn.v_proj.weight": (v, hidden),
        "self_attn.o_proj.weight": (hidden, mixed),
    }
    if c.get("attention_bias") or architecture == "Qwen2ForCausalLM":
        out.update({"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (k,), "self_attn.v_proj.bias": (v,)})
    if c.get("attention_bias"):
        out["self_attn.o_proj.bias"] = (hidden,)
    if "Qwen3" in architecture or "Gemma3" in architecture:
        out.update({"self_attn.q_norm.weight": (size,), "self_attn.k_norm.weight": (size,)})
    return out


def latent_attention(c):
    hidden, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    size, value_size = head_sizes(c)
    out = {
        "self_attn.kv_a_proj_with_mqa.weight": (rank + c["qk_rope_head_dim"], hidden),
        "self_attn.kv_a_layernorm.weight": (rank,),
        "self_attn.kv_b_proj.weight": (heads * (c["qk_nope_head_dim"] + value_size), rank),
        "self_attn.o_proj.weight": (hidden, heads * value_size),
    }
    if c["q_lora_rank"] is None:
        return {**out, "self_attn.q_proj.weight": (heads * size, hidden)}
    return {
        **out,
        "self_attn.q_a_proj.weight": (c["q_lora_rank"], hidden),
        "self_attn.q_a_layernorm.weight": (c["q_lora_rank"],),
        "self_attn.q_b_proj.weight": (heads * size, c["q_lora_rank"]),
    }


def gated(module, ffn, hidden):
    return {
        f"{module}.gate_proj.weight": (ffn, hidden),
        f"{module}.up_proj.weight": (ffn, hidden),
        f"{module}.down_proj.weight": (hidden, ffn),
    }


def dense_feed_forward(c):
    hidden, ffn = c["hidden_size"], c["intermediate_size"]
    if c["architectures"][0] == "Phi3ForCausalLM":
        return {"mlp.gate_up_proj.weight": (2 * ffn, hidden), "mlp.down_proj.weight": (hidden, ffn)}
    out = gated("mlp", ffn, hidden)
    if c.get("mlp_bias"):
        out.update({"mlp.gate_proj.bias": (ffn,), "mlp.up_proj.bias": (ffn,), "mlp.down_proj.bias": (hidden,)})
    return out


def mixtral_experts(c):
    hidden, ffn, count = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
    out = {"block_sparse_moe.gate.weight": (count, hidden)}
    for expert in range(count):
        module = f"block_sparse_moe.experts.{expert}"
        out.update({f"{module}.w1.weight": (ffn, hidden), f"{module}.w2.weight": (hidden, ffn)})
        out[f"{module}.w3.weight"] = (ffn, hidden)
    return out


def experts(c):
    hidden, ffn = c["hidden_size"], c["moe_intermediate_size"]
    count = c.get("num_experts") or c["n_routed_experts"]
    out = {"mlp.gate.weight": (count, hidden)}
    for expert in range(count):
        out.update(gated(f"mlp.experts.{expert}", ffn, hidden))
    if c.get("topk_method") == "noaux_tc":
        out["mlp.gate.e_score_correction_bias"] = (count,)
    if c.get("n_shared_experts"):
        out.update(gated("mlp.shared_experts", c["n_shared_experts"] * ffn, hidden))
    return out


def feed_forward(c, layer):
    architecture = c["architectures"][0]
    if architecture == "MixtralForCausalLM":
        return mixtral_experts(c)
    if "num_experts" in c and layer not in c.get("mlp_only_layers", []):
        return experts(c)
    if "n_routed_experts" in c and layer >= c["first_k_dense_replace"]:
        return experts(c)
    return dense_feed_forward(c)


def shapes(c):
    """{name: shape} of every tensor, unstacked."""
    hidden = c["hidden_size"]
    norms = ["input_layernorm", "post_attention_layernorm"]
    if "Gemma" in c["architectures"][0]:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(c["num_hidden_layers"]):
        attention = latent_attention(c) if "kv_lora_rank" in c else plain_attention(c)
        parts = {**attention, **feed_forward(c, layer), **{f"{norm}.weight": (hidden,) for norm in norms}}
        out.update({f"model.layers.{layer}.{name}": shape for name, shape in parts.items()})
    if not is_tied(c):
        out["lm_head.weight"] = (c["vocab_size"], hidden)
    return out


def is_tied(c):
    """Gemma ties where nothing is said."""
    tied = c.get("tie_word_embeddings")
    return "Gemma" in c["architectures"][0] if tied is None else tied


def fill(name, shape):
    """(dtype, bits): bf16, and fp32 for the buffer that stays so."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    values = numpy.random.default_rng(seed).normal(size=shape).astype(numpy.float32)
    values = 1 + values / 8 if "norm" in name else values / numpy.float32(shape[-1] ** 0.5)
    bits = values.astype("<f4").view("<u4")
    return ("F32", bits) if name.endswith("e_score_correction_bias") else ("BF16", (bits >> 16).astype("<u2"))


def stacked(tensors, c):
    """Experts stacked and renamed as newer files have them."""
    out = {}
    count = c.get("num_local_experts") or c["num_experts"]
    gate, up, down = ("w1", "w3", "w2") if "num_local_experts" in c else ("gate_proj", "up_proj", "down_proj")
    for name, (dtype, bits) in tensors.items():
        module, found, _ = name.partition(f".experts.0.{gate}.weight")
        if found:
            of = lambda part: [tensors[f"{module}.experts.{e}.{part}.weight"][1] for e in range(count)]  # noqa: B023, E731
            mlp = module.replace("block_sparse_moe", "mlp")
            pairs = [numpy.concatenate(pair) for pair in zip(of(gate), of(up))]
            out[f"{mlp}.experts.gate_up_proj"] = (dtype, numpy.stack(pairs))
            out[f"{mlp}.experts.down_proj"] = (dtype, numpy.stack(of(down)))
        elif ".experts." not in name:
            out[name.replace("block_sparse_moe.gate", "mlp.gate")] = (dtype, bits)
    return out


def write_checkpoint(kind, out):
    c = KINDS[kind]
    tensors = {name: fill(name, shape) for name, shape in shapes(c).items()}
    if kind.endswith("-stacked"):
        tensors = stacked(tensors, c)
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    rows = [(name, dtype, bits.shape, bits.tobytes()) for name, (dtype, bits) in sorted(tensors.items())]
    safetensors_io.write_file(out / "model.safetensors", rows, {"format": "pt"})
    (out / "config.json").write_text(json.dumps({k: v for k, v in c.items() if v is not None}, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=list(KINDS))
    parser.add_argument("out", nargs="?")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(KINDS))
    elif arguments.kind and arguments.out:
        write_checkpoint(arguments.kind, arguments.out)
    else:
        parser.print_usage(sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
