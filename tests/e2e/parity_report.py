#!/usr/bin/env python3
"""Measures how far three computations of the same log-probabilities lie apart, over the rollouts of test_parity.py:
the engine, `transformers` on torch in fp32, and the numpy forward pass in float64, which stands for the exact value.

    OPENBLAS_NUM_THREADS=1 BASCULE_PROGRAM=build/dev/tools/bascule python3 tests/e2e/parity_report.py /tmp/smollm2
"""

import argparse
import pathlib
import sys

import bascule_program as bascule
import parity

import forward_oracle  # found through bascule_program's path
import numpy


def exact_logprobs(model, rollout):
    begin = len(rollout["prompt"]) - 1
    logits = model.logits([*rollout["prompt"], *rollout["continuation"][:-1]])[begin:]
    logprobs = forward_oracle.log_softmax(logits)
    return [float(row[token]) for row, token in zip(logprobs, rollout["continuation"], strict=True)]


def print_row(what, differences):
    points = numpy.percentile(numpy.abs(differences), [50, 99, 100])
    print(f"{what:36} {len(differences):6} " + " ".join(f"{point:9.1e}" for point in points), flush=True)


def print_worst(rollouts, verdicts):
    """The prompts whose continuations lie farthest apart."""
    prompts = parity.PROMPTS + parity.HOT_PROMPTS
    farthest = [
        max(abs(logprob - token["logprob"]) for logprob, token in zip(rollout["logprobs"], verdict))
        for rollout, verdict in zip(rollouts, verdicts)
    ]
    for i in sorted(range(len(farthest)), key=farthest.__getitem__)[-4:]:
        print(f"  {farthest[i]:.1e} after {len(rollouts[i]['prompt'])} tokens of {prompts[i][:40]!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path, help="as scripts/real_checkpoint makes it")
    checkpoint = parser.parse_args().checkpoint
    python = parity.oracle_python()
    engine = bascule.Engine(checkpoint)
    greedy, hot = parity.rollouts(checkpoint, engine)
    engine.kill()
    rollouts = greedy + hot
    verdicts = parity.verdicts(python, checkpoint, rollouts)
    ours = numpy.array([logprob for rollout in rollouts for logprob in rollout["logprobs"]])
    theirs = numpy.array([token["logprob"] for verdict in verdicts for token in verdict])
    print(f"{'difference of log-probabilities':36} {'tokens':>6} {'median':>9} {'p99':>9} {'max':>9}")
    print_row("engine - transformers", ours - theirs)
    print_row("engine - transformers, greedy", (ours - theirs)[: len(greedy) * parity.GREEDY_TOKENS])
    print_worst(rollouts, verdicts)
    differing = [found for found in map(parity.first_difference, verdicts[: len(greedy)]) if found is not None]
    print(f"greedy continuations that differ: {len(differing)} of {len(greedy)} {differing or ''}", flush=True)
    model = forward_oracle.Model(checkpoint, "float64")
    exact = numpy.array([logprob for rollout in rollouts for logprob in exact_logprobs(model, rollout)])
    print_row("engine - numpy float64", ours - exact)
    print_row("transformers - numpy float64", theirs - exact)


if __name__ == "__main__":
    sys.exit(main())
