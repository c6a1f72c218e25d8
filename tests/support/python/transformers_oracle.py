#!/usr/bin/env python3
"""Judges continuations by LlamaForCausalLM of the PyPI package `transformers`, on torch, in fp32 on the CPU.

An engine of other people, with its own reader of checkpoints. It is not asked to generate: each continuation goes
through one forward pass behind its prompt, so that every token is judged given the very tokens before it, also after a
difference. Reads {"sequences": [{"prompt": [..], "continuation": [..]}, ..]} from standard input and prints for every
sequence, for every token of its continuation,

    {"token", "logprob", "best", "gap"}    `best`: its own choice; `gap`: by how much that one's logit leads the token's
"""

import argparse
import json
import sys

import torch
from transformers import LlamaForCausalLM
from transformers.utils import logging

# Sequences of like length go through the model together.
BATCH = 8


def judge_batch(model, batch):
    rows = [[*sequence["prompt"], *sequence["continuation"][:-1]] for sequence in batch]
    width = max(map(len, rows))
    # Padding on the right: no token attends to what follows it.
    padded = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    hidden = model.model(input_ids=padded, use_cache=False).last_hidden_state
    for state, sequence in zip(hidden, batch):
        begin = len(sequence["prompt"]) - 1
        logits = model.lm_head(state[begin : begin + len(sequence["continuation"])])
        yield [judge_token(row, token) for row, token in zip(logits, sequence["continuation"])]


def judge_token(logits, token):
    best = int(logits.argmax())
    return {
        "token": token,
        "logprob": float(torch.log_softmax(logits.double(), dim=-1)[token]),
        "best": best,
        "gap": float(logits[best] - logits[token]),
    }


def judge(model, sequences):
    """Verdicts in the order of `sequences`."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]["prompt"]) + len(sequences[i]["continuation"]))
    verdicts = [None] * len(sequences)
    with torch.no_grad():
        for begin in range(0, len(order), BATCH):
            indices = order[begin : begin + BATCH]
            for index, verdict in zip(indices, judge_batch(model, [sequences[i] for i in indices])):
                verdicts[index] = verdict
    return verdicts


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='example: echo \'{"sequences": [{"prompt": [1, 2], "continuation": [3]}]}\' |'
        " python transformers_oracle.py /tmp/smollm2",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    model = LlamaForCausalLM.from_pretrained(
        arguments.checkpoint, torch_dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    print(json.dumps(judge(model.eval(), json.load(sys.stdin)["sequences"])))


if __name__ == "__main__":
    main()
