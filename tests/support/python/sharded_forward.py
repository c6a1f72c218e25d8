"""A numpy forward pass over the tensors of engine ranks: outputs of column-parallel linears lie side by side, outputs of
row-parallel ones are added. Any number of ranks must give what one gives, and what forward_oracle gives of the whole.

Every architecture of architectures.py, in float64, written from the published models. Ranks are maps of engine names to
arrays of numbers. It shares no code with the product.
"""

import numpy

import forward_oracle
import safetensors_io
from architectures import head_sizes, is_tied


def read_ranks(paths):
    """Rank files as arrays of float64."""
    return [
        {
            name: forward_oracle.as_array(tensor, numpy.dtype("float64"))
            for name, tensor in safetensors_io.read_file(path)[0].items()
        }
        for path in paths
    ]


class ShardedModel:
    """The ranks of one replica. Thread-compatible."""

    def __init__(self, config, ranks, expert_parallel=False):
        self.config, self.ranks, self.expert_parallel = config, ranks, expert_parallel
        self.architecture = config["architectures"][0]
        self.gemma = "Gemma" in self.architecture
        self.heads = config["num_attention_heads"] // len(ranks)
        self.kv_heads = max(1, (config.get("num_key_value_heads") or config["num_attention_heads"]) // len(ranks))
        self.size, _ = head_sizes(config)

    def logits(self, tokens):
        """[positions, vocabulary] of the sequence `tokens`."""
        x = self.embed(numpy.array(tokens))
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            x = self.layer(prefix, x)
        x = self.norm("model.norm.weight", x)
        head = "model.embed_tokens.weight" if is_tied(self.config) else "lm_head.weight"
        return numpy.concatenate([x @ rank[head].T for rank in self.ranks], axis=1)[:, : self.config["vocab_size"]]

    def layer(self, prefix, x):
        attention = self.latent_attention if "kv_lora_rank" in self.config else self.attention
        mixed = attention(prefix, self.norm(prefix + "input_layernorm.weight", x))
        if self.gemma:
            x = x + self.norm(prefix + "post_attention_layernorm.weight", mixed)
            out = self.feed_forward(prefix, self.norm(prefix + "pre_feedforward_layernorm.weight", x))
            return x + self.norm(prefix + "post_feedforward_layernorm.weight", out)
        x = x + mixed
        return x + self.feed_forward(prefix, self.norm(prefix + "post_attention_layernorm.weight", x))

    def embed(self, tokens):
        """Each rank adds the rows that it holds."""
        rows = len(self.ranks[0]["model.embed_tokens.weight"])
        x = 0
        for number, rank in enumerate(self.ranks):
            here = (tokens >= number * rows) & (tokens < (number + 1) * rows)
            table = rank["model.embed_tokens.weight"]
            x = x + numpy.where(here[:, None], table[numpy.where(here, tokens - number * rows, 0)], 0)
        return x

    def norm(self, name, x, rank=None):
        weight = (rank or self.ranks[0])[name]
        mean_square = numpy.mean(x * x, axis=-1, keepdims=True)
        return x / numpy.sqrt(mean_square + self.config["rms_norm_eps"]) * (weight + 1 if self.gemma else weight)

    def rotate(self, x):
        return forward_oracle.rotate(x, forward_oracle.rope_frequencies(self.config, x.shape[-1]))

    def summed(self, name, partial_outputs):
        """The sum of what the ranks made, and the bias once."""
        bias = self.ranks[0].get(name + ".bias")
        total = sum(partial_outputs)
        return total if bias is None else total + bias

    def attention(self, prefix, x):
        cut = [self.heads * self.size, (self.heads + self.kv_heads) * self.size]
        outputs = []
        for rank in self.ranks:
            fused = x @ rank[prefix + "self_attn.qkv_proj.weight"].T + rank.get(prefix + "self_attn.qkv_proj.bias", 0)
            q, k, v = numpy.split(fused, cut, axis=1)
            q, k, v = (
                part.reshape(len(x), heads, -1).swapaxes(0, 1)
                for part, heads in ((q, self.heads), (k, self.kv_heads), (v, self.kv_heads))
            )
            if prefix + "self_attn.q_norm.weight" in rank:
                q = self.norm(prefix + "self_attn.q_norm.weight", q, rank)
                k = self.norm(prefix + "self_attn.k_norm.weight", k, rank)
            group = self.heads // self.kv_heads
            k, v = numpy.repeat(self.rotate(k), group, axis=0), numpy.repeat(v, group, axis=0)
            outputs.append(attend(self.rotate(q), k, v) @ rank[prefix + "self_attn.o_proj.weight"].T)
        return self.summed(prefix + "self_attn.o_proj", outputs)

    def latent_attention(self, prefix, x):
        config = self.config
        nope, rope, kv_rank = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["kv_lora_rank"]
        outputs = []
        for rank in self.ranks:
            if config.get("q_lora_rank"):
                both = x @ rank[prefix + "self_attn.fused_qkv_a_proj.weight"].T
                q, kv = numpy.split(both, [config["q_lora_rank"]], axis=1)
                q = self.norm(prefix + "self_attn.q_a_layernorm.weight", q, rank)
                q = q @ rank[prefix + "self_attn.q_b_proj.weight"].T
            else:
                kv = x @ rank[prefix + "self_attn.kv_a_proj_with_mqa.weight"].T
                q = x @ rank[prefix + "self_attn.q_proj.weight"].T
            latent, k_rope = numpy.split(kv, [kv_rank], axis=1)
            latent = self.norm(prefix + "self_attn.kv_a_layernorm.weight", latent, rank)
            kv = (latent @ rank[prefix + "self_attn.kv_b_proj.weight"].T).reshape(len(x), self.heads, -1).swapaxes(0, 1)
            q_nope, q_rope = numpy.split(q.reshape(len(x), self.heads, -1).swapaxes(0, 1), [nope], axis=2)
            k_nope, v = numpy.split(kv, [nope], axis=2)
            k_rope = numpy.broadcast_to(self.rotate(k_rope[None]), (self.heads, len(x), rope))
            q = numpy.concatenate([q_nope, self.rotate(q_rope)], axis=2)
            k = numpy.concatenate([k_nope, k_rope], axis=2)
            outputs.append(attend(q, k, v) @ rank[prefix + "self_attn.o_proj.weight"].T)
        return self.summed(prefix + "self_attn.o_proj", outputs)

    def gated(self, gate_up, down):
        gate, up = numpy.split(gate_up, 2, axis=-1)
        tanh = numpy.tanh((2 / numpy.pi) ** 0.5 * (gate + 0.044715 * gate**3))
        active = 0.5 * gate * (1 + tanh) if self.gemma else gate / (1 + numpy.exp(-gate))
        return (active * up) @ down.T

    def dense(self, module, x):
        return self.summed(
            module + "down_proj",
            [
                self.gated(
                    x @ rank[module + "gate_up_proj.weight"].T + rank.get(module + "gate_up_proj.bias", 0),
                    rank[module + "down_proj.weight"],
                )
                for rank in self.ranks
            ],
        )

    def feed_forward(self, prefix, x):
        if prefix + "mlp.experts.w13_weight" not in self.ranks[0]:
            return self.dense(prefix + "mlp.", x)
        out = sum(self.expert_output(prefix, number, x) for number in range(len(self.ranks)))
        if prefix + "mlp.shared_experts.gate_up_proj.weight" in self.ranks[0]:
            out = out + self.dense(prefix + "mlp.shared_experts.", x)
        return out

    def expert_output(self, prefix, number, x):
        """What one rank's experts, or slices of all experts, add."""
        rank = self.ranks[number]
        share = self.expert_shares(prefix, x, rank)
        w13, w2 = rank[prefix + "mlp.experts.w13_weight"], rank[prefix + "mlp.experts.w2_weight"]
        first = number * len(w13) if self.expert_parallel else 0
        return sum(
            share[:, first + e, None] * self.gated(x @ w13[e].T, w2[e]) for e in range(len(w13))
        )

    def expert_shares(self, prefix, x, rank):
        """[positions, experts]: the weight of each expert's output; zero for those that are not chosen."""
        scores = forward_oracle.softmax(x @ rank[prefix + "mlp.gate.weight"].T)
        choice = scores + rank.get(prefix + "mlp.gate.e_score_correction_bias", 0)
        chosen = numpy.argsort(-choice, axis=1, kind="stable")[:, : self.config["num_experts_per_tok"]]
        mask = numpy.zeros_like(scores)
        numpy.put_along_axis(mask, chosen, 1, axis=1)
        return scores * mask / numpy.sum(scores * mask, axis=1, keepdims=True)


def attend(q, k, v):
    """[heads, positions, size] each -> [positions, heads * value size]; causal."""
    scores = q @ k.swapaxes(1, 2) / q.shape[2] ** 0.5
    future = numpy.triu(numpy.ones(scores.shape[1:], dtype=bool), k=1)
    mixed = forward_oracle.softmax(numpy.where(future, -numpy.inf, scores)) @ v
    return mixed.swapaxes(0, 1).reshape(q.shape[1], -1)
