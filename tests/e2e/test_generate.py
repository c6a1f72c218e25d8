"""`bascule generate` beyond one greedy rollout: samples, log-probabilities, limits, and what the engine refuses."""

import unittest

from bascule_program import EndToEndTest, checkpoint, run

try:
    import numpy
    import forward_oracle
except ImportError:
    numpy = forward_oracle = None

KEYS = ["tokens", "logprobs", "spans", "finish"]
PROMPT = [5, 17, 99, 3] * 9  # more than two pages of key/value state


class SamplesTest(EndToEndTest):
    def test_each_sample_is_the_single_request_of_its_number_to_the_last_bit(self):
        engine = self.start_engine(checkpoint())
        hot = ("--max-new", 24, "--temperature", "1.3", "--seed", 11, "--top-k", 60, "--top-p", "0.95")

        samples = self.run_ok(
            "generate", engine.address, "--tokens", ",".join(map(str, PROMPT)), *hot, "--samples", 6, "--sample", 2,
            "--details",
        ).objects  # fmt: skip

        self.assertEqual([answer["sample"] for answer in samples], list(range(2, 8)))
        cold = self.start_engine(checkpoint())
        for answer in samples:
            alone = self.generate(cold, PROMPT, *hot, "--sample", answer["sample"])
            self.assertEqual({key: answer[key] for key in KEYS}, alone)
        self.assertEqual(len({tuple(answer["tokens"]) for answer in samples}), 6)

    def test_the_prompt_is_computed_once_for_all_samples(self):
        engine = self.start_engine(checkpoint())

        samples = self.run_ok(
            "generate", engine.address, "--tokens", ",".join(map(str, PROMPT)), "--samples", 5, "--details"
        ).objects

        shared = [answer["prompt"]["shared_tokens"] for answer in samples]
        self.assertEqual(sorted(shared), [0] + [len(PROMPT) - 1] * 4)

    def test_pieces_of_a_stream_say_which_sample_they_are_of(self):
        engine = self.start_engine(checkpoint())

        objects = self.run_ok(
            "generate", engine.address, "--tokens", "1,2", "--samples", 3, "--max-new", 12, "--stream"
        ).objects

        pieces, wholes = objects[:-3], objects[-3:]
        for whole in wholes:
            mine = [piece for piece in pieces if piece["sample"] == whole["sample"]]
            self.assertEqual(sum((piece["tokens"] for piece in mine), []), whole["tokens"])


@unittest.skipIf(forward_oracle is None, "needs the Python package numpy")
class LogprobsTest(EndToEndTest):
    def test_prompt_log_probabilities_are_those_of_the_oracle_cold_and_beside_a_shared_prompt(self):
        for kind in ("dense", "tied", "bias", "qk-norm"):
            with self.subTest(kind):
                path = checkpoint(kind)
                engine = self.start_engine(path)
                wanted = forward_oracle.prompt_logprobs(forward_oracle.Model(path, "float64"), PROMPT)
                self.generate(engine, PROMPT)  # its state is there to be shared

                answer = self.generate(engine, PROMPT, "--prompt-logprobs")

                self.assertEqual(list(answer), [*KEYS, "prompt_logprobs"])
                self.assertEqual(len(answer["prompt_logprobs"]), len(PROMPT) - 1)
                for ours, theirs in zip(answer["prompt_logprobs"], wanted, strict=True):
                    self.assertAlmostEqual(ours, theirs, places=4)
                engine.kill()

    def test_the_most_probable_tokens_are_those_of_the_oracle_in_its_order(self):
        path = checkpoint()
        engine = self.start_engine(path)
        model = forward_oracle.Model(path, "float64")

        answer = self.generate(engine, PROMPT, "--max-new", 6, "--temperature", "1", "--seed", 3, "--top-logprobs", 5)

        self.assertEqual(list(answer), [*KEYS, "top_logprobs"])
        sequence = PROMPT + answer["tokens"]
        wanted = forward_oracle.log_softmax(model.logits(sequence[:-1]))[len(PROMPT) - 1 :]
        for place, (top, logprobs) in enumerate(zip(answer["top_logprobs"], wanted, strict=True)):
            best = numpy.argsort(-logprobs, kind="stable")[:5]
            self.assertEqual([entry["token"] for entry in top], best.tolist())
            for entry in top:
                self.assertAlmostEqual(entry["logprob"], logprobs[entry["token"]], places=4)
            self.assertAlmostEqual(answer["logprobs"][place], logprobs[answer["tokens"][place]], places=4)

    def test_top_k_1_is_greedy_and_a_stop_token_waits_for_the_minimum(self):
        engine = self.start_engine(checkpoint())
        greedy = self.generate(engine, [4, 5], "--max-new", 12)
        stop = greedy["tokens"][2]

        only_best = self.generate(engine, [4, 5], "--max-new", 12, "--temperature", "2", "--top-k", 1)
        late = self.generate(engine, [4, 5], "--max-new", 12, "--stop", stop, "--min-new", 8)

        self.assertEqual(only_best, greedy)
        self.assertNotIn(stop, late["tokens"][:8])
        self.assertEqual(late["tokens"][:2], greedy["tokens"][:2])


class LimitsTest(EndToEndTest):
    def test_a_time_limit_ends_it_as_cancelled_with_the_reason(self):
        engine = self.start_engine(checkpoint())

        answer = self.generate(engine, [1], "--max-new", 4000, "--time-limit", "1ms", "--details")

        self.assertEqual((answer["finish"], answer["reason"]), ("cancelled", "deadline"))
        self.assertLess(len(answer["tokens"]), 4000)
        self.assertEqual(list(answer), [*KEYS, "reason", "flip_gaps", "prompt"])

    def test_a_full_queue_refuses_by_name_and_what_waits_is_served(self):
        engine = self.start_engine(checkpoint(), "--max-waiting", 1)
        waits = ("generate", engine.address, "--tokens", "1", "--client", "one", "--min-start-version", 9)
        waiting = self.start(*waits)
        while engine.status()["requests"] != {"running": 0, "waiting": 1}:
            self.assertIsNone(waiting.process.poll(), "it did not wait")

        refused = self.start(*waits).finish()

        self.assert_fails(refused, 1, "queue_full")
        self.assertIn("waiting=1", refused.error["message"])
        self.publish_ok(checkpoint(version=2), engine, arguments=("--version", 9))
        self.assertEqual([span["version"] for span in waiting.finish().object["spans"]], [9])

    def test_bounds_of_the_options_are_usage_errors_or_refused_by_the_engine(self):
        engine = self.start_engine(checkpoint())
        ask = ("generate", engine.address, "--tokens", "1")
        for arguments in (("--top-logprobs", 21), ("--samples", 0), ("--top-k", -1), ("--top-p", "1.5"),
                          ("--min-new", -1), ("--max-staleness", "x"), ("--time-limit", "soon")):  # fmt: skip
            with self.subTest(arguments):
                self.assertEqual(self.start(*ask, *arguments).finish().code, 2)
        for arguments in (("--top-p", "0"), ("--min-new", 99), ("--samples", 4097), ("--client", "x" * 129)):
            with self.subTest(arguments):
                self.assert_fails(self.start(*ask, *arguments).finish(), 1, "bad_request")

    def across_a_publish(self, engine, *arguments):
        """Answers of four samples that ran when version 1 went live, and the publish report's counts."""
        client = self.start(
            "generate", engine.address, "--tokens", "1,2", "--samples", 4, "--max-new", 3000, "--stream", *arguments
        )
        client.next()
        counts = self.publish_ok(checkpoint(version=2), engine)["replicas"][0]["kv"]
        return client.finish().objects[-4:], counts

    def test_a_flip_shows_in_the_gap_before_the_first_token_after_it(self):
        engine = self.start_engine(checkpoint())

        answers, counts = self.across_a_publish(engine, "--details")

        crossed = [answer for answer in answers if len(answer["spans"]) == 2]
        self.assertEqual(len(crossed), counts["recomputed"])
        self.assertGreater(len(crossed), 0)
        for answer in crossed:
            self.assertEqual([gap["token"] for gap in answer["flip_gaps"]], [answer["spans"][1]["begin"]])
            self.assertGreater(answer["flip_gaps"][0]["gap_us"], 0)
            self.assertIsNone(answer["reason"])

    def test_max_staleness_0_ends_it_at_the_flip_and_min_start_version_waits_for_it(self):
        engine = self.start_engine(checkpoint())
        early = self.start("generate", engine.address, "--tokens", "1", "--min-start-version", 1)
        while engine.status()["requests"]["waiting"] != 1:
            self.assertIsNone(early.process.poll(), "it did not wait")

        answers, counts = self.across_a_publish(engine, "--max-staleness", 0)

        stale = [answer for answer in answers if answer["finish"] == "too_stale"]
        self.assertEqual(len(stale), counts["aborted"])
        self.assertGreater(len(stale), 0)
        for answer in stale:
            self.assertEqual([span["version"] for span in answer["spans"]], [0])
        self.assertEqual(early.finish().object["spans"], [{"begin": 0, "end": 16, "version": 1, "kv_epoch": 1}])


class TextTest(EndToEndTest):
    def test_people_are_told_whatever_was_asked_for(self):
        engine = self.start_engine(checkpoint())
        asked = ("generate", engine.address, "--tokens", "1,2,3", "--max-new", 4, "--top-logprobs", 2,
                 "--prompt-logprobs", "--details")  # fmt: skip
        wanted = self.run_ok(*asked).object

        text = run(*asked, as_json=False, env=self.env).stdout

        lines = text.splitlines()
        self.assertEqual(lines[0].split(), ["tokens", ",".join(map(str, wanted["tokens"]))])
        prompt = next(line for line in lines if line.startswith("prompt"))
        said = [float(number) for number in prompt.rsplit(" ", 1)[1].split(",")]
        for ours, theirs in zip(said, wanted["prompt_logprobs"], strict=True):
            self.assertAlmostEqual(ours, theirs, places=3)
        self.assertIn("shared    0 tokens of the prompt", lines)
        rows = [line.split() for line in lines[lines.index(next(x for x in lines if x.startswith("TOKEN"))) + 1:]]
        self.assertEqual([int(row[0]) for row in rows], wanted["tokens"])
        self.assertEqual([[int(token) for token in row[2::2]] for row in rows],
                         [[top["token"] for top in tops] for tops in wanted["top_logprobs"]])  # fmt: skip


if __name__ == "__main__":
    unittest.main()
