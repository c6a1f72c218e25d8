"""What the engine says to fifty prompts, and what an independent engine thinks of it.

The other engine is `transformers` on torch (support/python/transformers_oracle.py): torch from Debian, the rest from
PyPI. Where either is missing, tests skip by that name.
"""

import concurrent.futures
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest

import bascule_program as bascule
import real_model

sys.path.insert(0, str(real_model.SCRIPTS))
import byte_level_bpe  # noqa: E402
import pypi_environment  # noqa: E402

# The last releases that run on the torch of Debian 12.
PACKAGES = ["transformers==4.46.3", "tokenizers==0.20.3", "huggingface-hub==0.26.5", "safetensors==0.4.5"]

PROMPTS = json.loads((pathlib.Path(__file__).resolve().parent / "parity_prompts.json").read_text(encoding="utf-8"))
GREEDY_TOKENS = 24
# Some prompts again, hot: tokens that greedy decoding would never show, from all over the vocabulary.
HOT_PROMPTS = PROMPTS[::2]
HOT_TOKENS = 12
HOT = 2.0
# Requests that the engine serves at once.
CLIENTS = 6


def oracle_python():
    """The interpreter that runs the oracle."""
    if importlib.util.find_spec("torch") is None:
        raise unittest.SkipTest(f"needs Debian's python3-torch, for {sys.executable}")
    cache = pypi_environment.default_cache_dir("parity")
    try:
        # Most of transformers is never imported: compiling it takes longer than all the rest.
        installs = [["--no-compile", *PACKAGES]]
        return pypi_environment.make(cache, installs, lambda line: print(f"parity: {line}"), system_packages=True)
    except pypi_environment.Unreachable as unreachable:
        raise unittest.SkipTest(str(unreachable)) from None


def ask(engine, tokenizer, prompt, *arguments):
    """One rollout of `engine`: prompt, continuation and log-probabilities."""
    tokens = tokenizer.encode(prompt)
    ended = bascule.run("generate", engine.address, "--tokens", ",".join(map(str, tokens)), *arguments, timeout=600)
    if ended.code != 0:
        raise AssertionError(f"prompt {prompt!r}: {ended}")
    answer = ended.object
    return {"prompt": tokens, "continuation": answer["tokens"], "logprobs": answer["logprobs"]}


def rollouts(checkpoint, engine):
    """Greedy continuations of every prompt and hot ones of some, many at once."""
    tokenizer = byte_level_bpe.Tokenizer.from_file(checkpoint / "tokenizer.json")
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
        greedy = [clients.submit(ask, engine, tokenizer, p, "--max-new", GREEDY_TOKENS) for p in PROMPTS]
        hot = [
            clients.submit(ask, engine, tokenizer, p, "--max-new", HOT_TOKENS, "--temperature", HOT, "--seed", seed)
            for seed, p in enumerate(HOT_PROMPTS)
        ]
        return [rollout.result() for rollout in greedy], [rollout.result() for rollout in hot]


def verdicts(python, checkpoint, sequences):
    """What the oracle says to each token of each sequence."""
    # One thread: those of OpenBLAS spin for each other, which takes forever where others want the cores too.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # its environment lasts: the second run starts faster
    done = subprocess.run(
        [python, bascule.SUPPORT / "transformers_oracle.py", checkpoint],
        input=json.dumps({"sequences": sequences}), capture_output=True, text=True, timeout=900, env=environment,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise AssertionError(f"the oracle failed:\n{done.stderr}")
    return json.loads(done.stdout)


def first_difference(verdict):
    """The first token that the oracle would not have chosen, with its place; None when there is none."""
    return next(((i, token) for i, token in enumerate(verdict) if token["best"] != token["token"]), None)
