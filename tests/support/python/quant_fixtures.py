#!/usr/bin/env python3
"""Writes small quantised checkpoints in the forms that are published, standard library only.

    python3 quant_fixtures.py KIND OUT [--tensors dense|moe] [--drop NAME ...] [--scale-dtype F32|BF16|F16]

    fp8-block         DeepSeek-V3: weight F8_E4M3, weight_scale_inv [rows / 128, columns / 128]
    fp8-tensor        one weight_scale [] a weight; activations measured at run time
    fp8-tensor-static the same with input_scale, and k_scale and v_scale of the KV cache
    ct-fp8-tensor     compressed-tensors, float-quantized, weight_scale [1], input_scale [1], KV scales
    ct-fp8-channel    compressed-tensors, float-quantized, weight_scale [rows, 1]
    ct-fp8-block      compressed-tensors, float-quantized, weight_scale [rows / 128, columns / 128]
    ct-int8-channel   compressed-tensors, int-quantized, weight I8, weight_scale [rows, 1]
    ct-int8-zero      the same with weight_zero_point [rows, 1]
    ct-int4-group     compressed-tensors, pack-quantized, weight_packed, weight_scale [rows, columns / 32], weight_shape
    ct-int4-zero      the same with weight_zero_point [rows / 8, columns / 32], packed too
    ct-int8-packed    compressed-tensors, pack-quantized with 8 bits and weight_scale [rows, 1]

Weights and scales are random bits, other for each tensor, so that a misplaced element is found: nothing computes with
them. Two layers, hidden 256, 4 query and 2 KV heads of 128, ffn 512, vocabulary 130, untied; `moe` has 4 experts of
ffn 256 (Qwen3-MoE's names) in place of the ffn.
"""

import argparse
import json
import pathlib
import random

import safetensors_io

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, FFN, VOCAB = 2, 256, 4, 2, 128, 512, 130
EXPERTS, EXPERT_FFN = 4, 256


def ct_config(form, weights, inputs=None, kv_cache=None, ignore=("lm_head",)):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(ignore),
        "kv_cache_scheme": kv_cache,
    }


def ct_weights(kind, bits, strategy, symmetric=True, **more):
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": symmetric, "dynamic": False, **more}


STATIC_TENSOR = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}

CONFIGS = {
    "fp8-block": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "fp8-tensor": {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]},
    "fp8-tensor-static": {"quant_method": "fp8", "activation_scheme": "static", "kv_cache_scheme": "static"},
    "ct-fp8-tensor": ct_config("float-quantized", ct_weights("float", 8, "tensor"), STATIC_TENSOR, STATIC_TENSOR),
    "ct-fp8-channel": ct_config("float-quantized", ct_weights("float", 8, "channel"), {"dynamic": True}),
    "ct-fp8-block": ct_config("float-quantized", ct_weights("float", 8, "block", block_structure="128x128")),
    "ct-int8-channel": ct_config("int-quantized", ct_weights("int", 8, "channel"), {"dynamic": True}),
    "ct-int8-zero": ct_config("int-quantized", ct_weights("int", 8, "channel", symmetric=False)),
    "ct-int4-group": ct_config("pack-quantized", ct_weights("int", 4, "group", group_size=32)),
    "ct-int4-zero": ct_config("pack-quantized", ct_weights("int", 4, "group", symmetric=False, group_size=32)),
    "ct-int8-packed": ct_config("pack-quantized", ct_weights("int", 8, "channel")),
}


def up(count, step):
    return -(-count // step)


def members(kind, rows, columns, scale_dtype):
    """{ending: (dtype, shape)} of one quantised weight."""
    if kind in ("fp8-block", "ct-fp8-block"):
        scale = "weight_scale_inv" if kind == "fp8-block" else "weight_scale"
        return {"weight": ("F8_E4M3", [rows, columns]), scale: (scale_dtype, [up(rows, 128), up(columns, 128)])}
    if kind == "fp8-tensor":
        return {"weight": ("F8_E4M3", [rows, columns]), "weight_scale": (scale_dtype, [])}
    if kind == "fp8-tensor-static":
        one = (scale_dtype, [])
        return {"weight": ("F8_E4M3", [rows, columns]), "weight_scale": one, "input_scale": one}
    if kind == "ct-fp8-tensor":
        one = (scale_dtype, [1])
        return {"weight": ("F8_E4M3", [rows, columns]), "weight_scale": one, "input_scale": one}
    if kind == "ct-fp8-channel":
        return {"weight": ("F8_E4M3", [rows, columns]), "weight_scale": (scale_dtype, [rows, 1])}
    if kind.startswith("ct-int8") and kind != "ct-int8-packed":
        result = {"weight": ("I8", [rows, columns]), "weight_scale": (scale_dtype, [rows, 1])}
        if kind == "ct-int8-zero":
            result["weight_zero_point"] = ("I8", [rows, 1])
        return result
    pack, groups = (8, columns // 32) if kind.startswith("ct-int4") else (4, 1)
    result = {
        "weight_packed": ("I32", [rows, up(columns, pack)]),
        "weight_scale": (scale_dtype, [rows, groups]),
        "weight_shape": ("I64", [2]),
    }
    if kind == "ct-int4-zero":
        result["weight_zero_point"] = ("I32", [up(rows, pack), groups])
    return result


def linears(moe):
    """{module: (rows, columns)} of one layer."""
    result = {
        "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
    }
    ffns = [(f"mlp.experts.{e}", EXPERT_FFN) for e in range(EXPERTS)] if moe else [("mlp", FFN)]
    for module, ffn in ffns:
        result[f"{module}.gate_proj"] = (ffn, HIDDEN)
        result[f"{module}.up_proj"] = (ffn, HIDDEN)
        result[f"{module}.down_proj"] = (HIDDEN, ffn)
    return result


def tensors(kind, moe, scale_dtype):
    """{name: (dtype, shape)}."""
    result = {"model.embed_tokens.weight": ("BF16", [VOCAB, HIDDEN]), "lm_head.weight": ("BF16", [VOCAB, HIDDEN])}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for module, (rows, columns) in linears(moe).items():
            for ending, spec in members(kind, rows, columns, scale_dtype).items():
                result[f"{prefix}{module}.{ending}"] = spec
        for norm in ("input_layernorm", "post_attention_layernorm"):
            result[f"{prefix}{norm}.weight"] = ("BF16", [HIDDEN])
        if moe:
            result[f"{prefix}self_attn.q_norm.weight"] = ("BF16", [HEAD])
            result[f"{prefix}self_attn.k_norm.weight"] = ("BF16", [HEAD])
            result[f"{prefix}mlp.gate.weight"] = ("BF16", [EXPERTS, HIDDEN])
        if kind in ("fp8-tensor-static", "ct-fp8-tensor"):
            one = [] if kind == "fp8-tensor-static" else [1]
            result[f"{prefix}self_attn.k_scale"] = ("F32", one)
            result[f"{prefix}self_attn.v_scale"] = ("F32", one)
    result["model.norm.weight"] = ("BF16", [HIDDEN])
    return result


def config(kind, moe):
    result = {
        "architectures": ["Qwen3MoeForCausalLM" if moe else "LlamaForCausalLM"],
        "model_type": "qwen3_moe" if moe else "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": 4096,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "quantization_config": CONFIGS[kind],
    }
    if moe:
        result |= {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT_FFN}
        result |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=CONFIGS)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--tensors", choices=["dense", "moe"], default="dense")
    parser.add_argument("--drop", action="append", default=[], metavar="NAME", help="leave this tensor out")
    parser.add_argument("--scale-dtype", choices=["F32", "BF16", "F16", "U8"], default="F32")
    arguments = parser.parse_args()
    moe = arguments.tensors == "moe"
    arguments.out.mkdir(parents=True)
    written = []
    for name, (dtype, shape) in sorted(tensors(arguments.kind, moe, arguments.scale_dtype).items()):
        if name not in arguments.drop:
            data = random.Random(name).randbytes(safetensors_io.tensor_bytes(dtype, shape))
            written.append((name, dtype, shape, data))
    safetensors_io.write_file(arguments.out / "model.safetensors", written, {"format": "pt"})
    (arguments.out / "config.json").write_text(json.dumps(config(arguments.kind, moe), indent=2) + "\n")


if __name__ == "__main__":
    main()
