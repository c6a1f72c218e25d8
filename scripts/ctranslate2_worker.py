"""CTranslate2 behind one line of JSON a call, for scripts/compare_engines.

    ctranslate2_worker.py MODEL THREADS TYPE      MODEL: as ct2-transformers-converter writes it; TYPE: of its weights

Reads {"prompts":[[token, ..], ..],"new":n}, generates n tokens after each prompt, all prompts at once and greedily, and
writes {"seconds":s,"tokens":[[..], ..]}. Its first line says what it is.
"""

import json
import pathlib
import sys
import time

import ctranslate2


def main():
    model, threads = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    generator = ctranslate2.Generator(
        str(model), device="cpu", compute_type=sys.argv[3], inter_threads=1, intra_threads=threads
    )
    names = json.loads((model / "vocabulary.json").read_text(encoding="utf-8"))
    print(json.dumps({"version": ctranslate2.__version__, "compute_type": generator.compute_type}), flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        prompts = [[names[token] for token in prompt] for prompt in call["prompts"]]
        begin = time.perf_counter()
        answers = generator.generate_batch(
            prompts,
            max_batch_size=0,
            beam_size=1,
            sampling_topk=1,
            min_length=call["new"],  # a token that ends a text does not end it
            max_length=call["new"],
            include_prompt_in_result=False,
        )
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": seconds, "tokens": [answer.sequences_ids[0] for answer in answers]}), flush=True)


main()
