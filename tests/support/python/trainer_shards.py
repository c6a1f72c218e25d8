#!/usr/bin/env python3
"""What each rank of a sharded trainer holds of a checkpoint, under its framework's names: whole tensors cut with numpy.

    python3 trainer_shards.py CHECKPOINT OUT fsdp --ranks 3
    python3 trainer_shards.py CHECKPOINT OUT mesh --mesh 2x2              (data, tensor)
    python3 trainer_shards.py CHECKPOINT OUT megatron --ranks 8 [--tp 2] [--pp 2] [--vpp 2] [--ep 2] [--etp 1]

writes OUT/rank-R.safetensors. An oracle for trainer layouts: it follows what torch (FlatParameter, DTensor with FSDP2
over tensor parallelism, as torchtitan wraps Llama) and Megatron-LM publish, and knows nothing of layouts, plans or boxes.
Padding is filled with PADDING, so that padding which is sent shows.
"""

import argparse
import pathlib

import numpy

import safetensors_io
from stored_checkpoint import StoredCheckpoint

PADDING = 0x5A5A5A5A5A5A5A5A
VOCABULARY_MULTIPLE = 128
# The parameters of LlamaDecoderLayer, in the order of its modules.
LAYER_ORDER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
)  # fmt: skip
ROOT_ORDER = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")


def padded_to(array, rows):
    """`array` with rows of padding behind it."""
    out = numpy.full((rows, *array.shape[1:]), PADDING & ((1 << 8 * array.itemsize) - 1), array.dtype)
    out[: len(array)] = array
    return out


def chunk(array, count, axis=0):
    """torch.chunk, but always `count` pieces: the last ones may be empty."""
    size = -(-array.shape[axis] // count)
    return [array.take(range(min(i * size, array.shape[axis]), min((i + 1) * size, array.shape[axis])), axis)
            for i in range(count)]  # fmt: skip


# --- FSDP: FlatParameter ---


def flat_shards(arrays, ranks):
    """Flattened, concatenated, cut as FlatParamHandle._get_shard does: torch.chunk, and every chunk padded to the first."""
    chunks = chunk(numpy.concatenate([array.ravel() for array in arrays]), ranks)
    return [padded_to(piece, len(chunks[0])) for piece in chunks]


def fsdp(model, ranks):
    held = [{} for _ in range(ranks)]
    units = {"_fsdp_wrapped_module._flat_param": [name for name in ROOT_ORDER if name in model.tensors]}
    for layer in range(model.config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        units[prefix + "_fsdp_wrapped_module._flat_param"] = [f"{prefix}{name}.weight" for name in LAYER_ORDER]
    for unit, names in units.items():
        assert len({model.dtypes[name] for name in names}) == 1
        for rank, shard in zip(held, flat_shards([model.tensors[name] for name in names], ranks)):
            rank[unit] = (model.dtypes[names[0]], shard)
    return held


# --- Device mesh: parallelize_module, then fully_shard ---


def tensor_parallel_axis(name, array):
    """ColwiseParallel cuts rows of the weight, RowwiseParallel columns (of an embedding rows); None: replicated."""
    module, ending = name.split(".")[-2:]
    if "norm" in module or module == "gate":
        return None
    if module in ("o_proj", "down_proj"):
        return 1 if ending == "weight" else None
    return 0


def mesh(model, data, tensor):
    held = [{} for _ in range(data * tensor)]
    for name, array in model.tensors.items():
        axis = tensor_parallel_axis(name, array)
        locals_ = [array] * tensor if axis is None else chunk(array, tensor, axis)
        for t, local in enumerate(locals_):
            for d, shard in enumerate(chunk(local, data)):
                held[d * tensor + t][name] = (model.dtypes[name], shard)
    return held


# --- Megatron-LM ---


class Megatron:
    def __init__(self, model, ranks, tp, pp, vpp, ep, etp):
        self.model, self.tp, self.ep, self.etp = model, tp, ep, etp
        self.config = model.config
        self.heads = self.config["num_attention_heads"]
        self.groups = self.config.get("num_key_value_heads") or self.heads
        per_chunk = self.config["num_hidden_layers"] // (pp * vpp)
        in_stage = ranks // pp
        self.held = [{} for _ in range(ranks)]
        for rank, held in enumerate(self.held):
            stage, place = divmod(rank, in_stage)
            self.tensor = place % tp
            self.expert_tensor, self.expert = place % etp, place // etp % ep
            for c in range(vpp):
                self.out, self.prefix = held, f"model{c}." if vpp > 1 else ""
                number = c * pp + stage
                if number == 0:
                    self.vocabulary("embedding.word_embeddings.weight", "model.embed_tokens.weight")
                for i in range(per_chunk):
                    self.layer(i, f"model.layers.{number * per_chunk + i}.")
                if number == pp * vpp - 1:
                    self.put("decoder.final_layernorm.weight", "model.norm.weight")
                    if "lm_head.weight" in model.tensors:
                        self.vocabulary("output_layer.weight", "lm_head.weight")
                    elif pp > 1:
                        self.vocabulary("output_layer.weight", "model.embed_tokens.weight")

    def put(self, name, like, array=None):
        self.out[self.prefix + name] = (self.model.dtypes[like], self.model.tensors[like] if array is None else array)

    def rows(self, array):
        return numpy.split(array, self.tp)[self.tensor]

    def vocabulary(self, name, like):
        array = self.model.tensors[like]
        multiple = VOCABULARY_MULTIPLE * self.tp
        self.put(name, like, self.rows(padded_to(array, -(-len(array) // multiple) * multiple)))

    def layer(self, number, hf):
        names = {name.removeprefix(hf) for name in self.model.tensors if name.startswith(hf)}
        base, self.prefix = self.prefix, f"{self.prefix}decoder.layers.{number}."
        latent = "self_attn.kv_b_proj.weight" in names
        sparse = "mlp.gate.weight" in names
        self.put("input_layernorm.weight" if latent else "self_attention.linear_qkv.layer_norm_weight",
                 hf + "input_layernorm.weight")  # fmt: skip
        self.put("pre_mlp_layernorm.weight" if sparse else "mlp.linear_fc1.layer_norm_weight",
                 hf + "post_attention_layernorm.weight")  # fmt: skip
        if latent:
            self.latent(hf, names)
        else:
            self.attention(hf, names)
        self.put("self_attention.linear_proj.weight", hf + "self_attn.o_proj.weight",
                 numpy.split(self.model.tensors[hf + "self_attn.o_proj.weight"], self.tp, axis=1)[self.tensor])  # fmt: skip
        if "self_attn.o_proj.bias" in names:
            self.put("self_attention.linear_proj.bias", hf + "self_attn.o_proj.bias")
        self.feed_forward(hf, names) if not sparse else self.mixture(hf, names)
        self.prefix = base

    def attention(self, hf, names):
        for ending in ("weight", "bias"):
            if f"self_attn.q_proj.{ending}" not in names:
                continue
            parts = [self.model.tensors[f"{hf}self_attn.{kind}_proj.{ending}"] for kind in "qkv"]
            # [groups, (queries of a group + 1 + 1) * head size, hidden]
            grouped = [part.reshape(self.groups, len(part) // self.groups, *part.shape[1:]) for part in parts]
            fused = numpy.concatenate(grouped, axis=1)
            self.put(f"self_attention.linear_qkv.{ending}", f"{hf}self_attn.q_proj.{ending}",
                     self.rows(fused.reshape(-1, *parts[0].shape[1:])))  # fmt: skip
        for kind in "qk":
            if f"self_attn.{kind}_norm.weight" in names:
                self.put(f"self_attention.{kind}_layernorm.weight", f"{hf}self_attn.{kind}_norm.weight")

    def latent(self, hf, names):
        get = self.model.tensors.__getitem__
        attention = hf + "self_attn."
        query = "self_attn.q_a_proj.weight" in names
        if query:
            self.put("self_attention.linear_q_down_proj.weight", attention + "q_a_proj.weight")
            self.put("self_attention.linear_q_up_proj.layer_norm_weight", attention + "q_a_layernorm.weight")
        name = "q_b_proj.weight" if query else "q_proj.weight"
        self.put(f"self_attention.linear_q_{'up_' if query else ''}proj.weight", attention + name,
                 self.rows(get(attention + name)))  # fmt: skip
        self.put("self_attention.linear_kv_down_proj.weight", attention + "kv_a_proj_with_mqa.weight")
        self.put("self_attention.linear_kv_up_proj.layer_norm_weight", attention + "kv_a_layernorm.weight")
        self.put("self_attention.linear_kv_up_proj.weight", attention + "kv_b_proj.weight",
                 self.rows(get(attention + "kv_b_proj.weight")))  # fmt: skip

    def gated(self, megatron, hf, tp, rank, number=""):
        """[gate of this rank; up of this rank], and this rank's columns of down."""
        get = self.model.tensors.__getitem__
        gate, up = (numpy.split(get(f"{hf}.{kind}_proj.weight"), tp)[rank] for kind in ("gate", "up"))
        self.put(f"{megatron}.linear_fc1.weight{number}", f"{hf}.gate_proj.weight", numpy.concatenate([gate, up]))
        down = f"{hf}.down_proj.weight"
        self.put(f"{megatron}.linear_fc2.weight{number}", down, numpy.split(get(down), tp, axis=1)[rank])

    def feed_forward(self, hf, names):
        self.gated("mlp", hf + "mlp", self.tp, self.tensor)
        if "mlp.gate_proj.bias" in names:
            gate, up = (self.rows(self.model.tensors[f"{hf}mlp.{kind}_proj.bias"]) for kind in ("gate", "up"))
            self.put("mlp.linear_fc1.bias", hf + "mlp.gate_proj.bias", numpy.concatenate([gate, up]))
            self.put("mlp.linear_fc2.bias", hf + "mlp.down_proj.bias")

    def mixture(self, hf, names):
        self.put("mlp.router.weight", hf + "mlp.gate.weight")
        if "mlp.gate.e_score_correction_bias" in names:
            self.put("mlp.router.expert_bias", hf + "mlp.gate.e_score_correction_bias")
        experts = sum(name.startswith("mlp.experts.") and name.endswith("gate_proj.weight") for name in names)
        assert experts % self.ep == 0
        for e in range(experts // self.ep):
            number = self.expert * (experts // self.ep) + e
            self.gated("mlp.experts", f"{hf}mlp.experts.{number}", self.etp, self.expert_tensor, number=e)
        if "mlp.shared_experts.gate_proj.weight" in names:
            self.gated("mlp.shared_experts", hf + "mlp.shared_experts", self.tp, self.tensor)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("framework", choices=("fsdp", "mesh", "megatron"))
    parser.add_argument("--mesh", default="1x1")
    for size in ("ranks", "tp", "pp", "vpp", "ep", "etp"):
        parser.add_argument(f"--{size}", type=int)
    arguments = parser.parse_args()
    model = StoredCheckpoint(arguments.checkpoint)
    if arguments.framework == "fsdp":
        held = fsdp(model, arguments.ranks)
    elif arguments.framework == "mesh":
        held = mesh(model, *map(int, arguments.mesh.split("x")))
    else:
        tp = arguments.tp or 1
        held = Megatron(
            model, arguments.ranks, tp, arguments.pp or 1, arguments.vpp or 1, arguments.ep or 1, arguments.etp or tp
        ).held
    arguments.out.mkdir(parents=True, exist_ok=True)
    for rank, tensors in enumerate(held):
        rows = [(name, dtype, array.shape, array.tobytes()) for name, (dtype, array) in sorted(tensors.items())]
        safetensors_io.write_file(arguments.out / f"rank-{rank}.safetensors", rows)


if __name__ == "__main__":
    main()
