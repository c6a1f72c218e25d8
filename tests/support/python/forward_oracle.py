#!/usr/bin/env python3
"""A numpy forward pass of Llama-, Mistral-, Qwen2- and Qwen3-style decoders: an oracle for the engine's tokens and log-probs.

The plainest form of the mathematics: the whole sequence is computed anew for every token, there is no KV cache and no
batch, all activations have one precision (float32 or float64). It shares no code with the product.
"""

import argparse
import json

import numpy

import safetensors_io


class Model:
    """A checkpoint in memory at one precision. Thread-compatible."""

    def __init__(self, checkpoint_dir, precision="float32"):
        self.config = safetensors_io.read_config(checkpoint_dir)
        self.precision = numpy.dtype(precision)
        self.weights = {
            name: as_array(tensor, self.precision)
            for name, tensor in safetensors_io.read_checkpoint(checkpoint_dir).items()
        }
        self._check_config()
        config = self.config
        self.layer_count = config["num_hidden_layers"]
        self.head_count = config["num_attention_heads"]
        self.kv_head_count = config.get("num_key_value_heads") or self.head_count
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.head_count
        self.eps = config["rms_norm_eps"]
        self.frequencies = rope_frequencies(config, self.head_dim)
        self.window = config.get("sliding_window") if config["architectures"] == ["MistralForCausalLM"] else None

    def _check_config(self):
        config = self.config
        if config.get("hidden_act", "silu") != "silu" or config.get("use_sliding_window"):
            raise ValueError("only silu without Qwen's sliding window is supported")

    def linear(self, name, x):
        """x times the transposed weight, plus the bias where the checkpoint has one."""
        y = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def rms_norm(self, name, x):
        mean_square = numpy.mean(x * x, axis=-1, keepdims=True)
        return x / numpy.sqrt(mean_square + self.precision.type(self.eps)) * self.weights[f"{name}.weight"]

    def heads(self, layer, kind, count, x):
        """[positions, hidden] -> [count, positions, head_dim], with the per-head norm of Qwen3 where there is one."""
        y = self.linear(f"{layer}.self_attn.{kind}_proj", x).reshape(len(x), count, self.head_dim)
        if f"{layer}.self_attn.{kind}_norm.weight" in self.weights:
            y = self.rms_norm(f"{layer}.self_attn.{kind}_norm", y)
        return y.swapaxes(0, 1)

    def attention(self, layer, x):
        query = rotate(self.heads(layer, "q", self.head_count, x), self.frequencies)
        key = rotate(self.heads(layer, "k", self.kv_head_count, x), self.frequencies)
        value = self.heads(layer, "v", self.kv_head_count, x)
        group = self.head_count // self.kv_head_count
        key, value = numpy.repeat(key, group, axis=0), numpy.repeat(value, group, axis=0)
        scores = query @ key.swapaxes(1, 2) / self.precision.type(self.head_dim**0.5)
        future = numpy.triu(numpy.ones(scores.shape[1:], dtype=bool), k=1)
        scores = numpy.where(future, self.precision.type(-numpy.inf), scores)
        if self.window:
            past = numpy.tril(numpy.ones(scores.shape[1:], dtype=bool), k=-self.window)
            scores = numpy.where(past, self.precision.type(-numpy.inf), scores)
        mixed = (softmax(scores) @ value).swapaxes(0, 1).reshape(len(x), -1)
        return self.linear(f"{layer}.self_attn.o_proj", mixed)

    def feed_forward(self, layer, x):
        gate = self.linear(f"{layer}.mlp.gate_proj", x)
        with numpy.errstate(over="ignore"):
            silu = gate / (1 + numpy.exp(-gate))
        return self.linear(f"{layer}.mlp.down_proj", silu * self.linear(f"{layer}.mlp.up_proj", x))

    def logits(self, tokens):
        """[positions, vocabulary] of the sequence `tokens`."""
        x = self.weights["model.embed_tokens.weight"][numpy.array(tokens)]
        for index in range(self.layer_count):
            layer = f"model.layers.{index}"
            x = x + self.attention(layer, self.rms_norm(f"{layer}.input_layernorm", x))
            x = x + self.feed_forward(layer, self.rms_norm(f"{layer}.post_attention_layernorm", x))
        x = self.rms_norm("model.norm", x)
        head = self.weights.get("lm_head.weight")
        if head is None or self.config.get("tie_word_embeddings"):
            head = self.weights["model.embed_tokens.weight"]
        return x @ head.T


def as_array(tensor, precision):
    """A safetensors tensor as an array of `precision`; bf16 widens exactly."""
    if tensor.dtype == "BF16":
        bits = numpy.frombuffer(tensor.data, dtype="<u2").astype(numpy.uint32) << 16
        values = bits.view(numpy.float32)
    else:
        values = numpy.frombuffer(tensor.data, dtype={"F32": "<f4", "F16": "<f2", "F64": "<f8"}[tensor.dtype])
    return values.astype(precision).reshape(tensor.shape)


def rope_frequencies(config, head_dim):
    """Radians a position for each pair of elements; `llama3` as in Meta's llama-models (apply_scaling)."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = config.get("rope_theta") or rope.get("rope_theta", 10000.0)
    half = head_dim // 2
    plain = theta ** (-numpy.arange(half, dtype=numpy.float64) / half)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return plain
    if kind != "llama3":
        raise ValueError(f"rope {rope} is not supported")
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    context = rope["original_max_position_embeddings"]
    scaled = []
    for frequency in plain:
        wavelength = 2 * numpy.pi / frequency
        if wavelength < context / high:
            scaled.append(frequency)
        elif wavelength > context / low:
            scaled.append(frequency / factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            scaled.append((1 - smooth) * frequency / factor + smooth * frequency)
    return numpy.array(scaled)


def rotate(x, frequencies):
    """Rotary position embedding of [heads, positions, dim]: element i of the first half pairs with i of the second."""
    half = x.shape[-1] // 2
    angle = numpy.arange(x.shape[1], dtype=numpy.float64)[:, None] * frequencies
    cos, sin = numpy.cos(angle).astype(x.dtype), numpy.sin(angle).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return numpy.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def softmax(x):
    e = numpy.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(x):
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(axis=-1, keepdims=True))


def prompt_logprobs(model, tokens):
    """Log-probability of each token after the first, given those before it."""
    logprobs = log_softmax(model.logits(tokens))
    return [float(logprobs[i, token]) for i, token in enumerate(tokens[1:])]


def greedy(model, tokens, max_new, stop=()):
    """Continues `tokens` greedily: the lowest id wins a tie.

    Gives tokens, their log-probabilities, the margin by which each logit led the next best (a caller that computes in
    another order may differ only where it is tiny), and why it ended. A stop token is part of the answer.
    """
    answer = {"tokens": [], "logprobs": [], "margins": [], "finish": "length"}
    while len(answer["tokens"]) < max_new:
        logits = model.logits([*tokens, *answer["tokens"]])[-1]
        best = int(numpy.argmax(logits))
        answer["tokens"].append(best)
        answer["logprobs"].append(float(log_softmax(logits)[best]))
        answer["margins"].append(float(logits[best] - numpy.delete(logits, best).max()))
        if best in stop:
            answer["finish"] = "stop"
            break
    return answer


def token_list(text):
    return [int(token) for token in text.split(",")]


def main():
    parser = argparse.ArgumentParser(
        description="Continues tokens greedily and prints JSON: tokens, logprobs, margins, finish, prompt_logprobs.",
        epilog="example: python3 forward_oracle.py /tmp/dense1 --tokens 1,2,3 --max-new 8 --precision float64",
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--tokens", type=token_list, required=True)
    parser.add_argument("--max-new", type=int, default=16)
    parser.add_argument("--stop", type=token_list, default=[])
    parser.add_argument("--precision", choices=["float32", "float64"], default="float32")
    arguments = parser.parse_args()
    model = Model(arguments.checkpoint, arguments.precision)
    answer = greedy(model, arguments.tokens, arguments.max_new, arguments.stop)
    answer["prompt_logprobs"] = prompt_logprobs(model, arguments.tokens)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
