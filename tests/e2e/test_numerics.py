"""`--numerics fast`: the same tokens to choose from, with log-probabilities as near as bf16 activations are."""

import unittest

from bascule_program import EndToEndTest, checkpoint, run

PROMPT = [1 + 7 * i % 50 for i in range(40)]
BOUND = 0.25  # as in tests/unit/decode/fast_numerics_test.cc


class NumericsTest(EndToEndTest):
    def prompt_logprobs(self, *arguments):
        engine = self.start_engine(checkpoint(), *arguments)
        answer = self.generate(engine, PROMPT, "--max-new", 4, "--prompt-logprobs")
        self.assertEqual(len(answer["tokens"]), 4)
        return answer["prompt_logprobs"]

    def test_fast_is_near_exact_and_is_not_exact(self):
        first = self.start("engine", checkpoint(), "--numerics", "fast").next()
        if first.get("error", {}).get("reason") == "numerics_unsupported":
            self.skipTest(first["error"]["message"])
        exact = self.prompt_logprobs("--numerics", "exact")
        self.assertEqual(exact, self.prompt_logprobs())

        fast = self.prompt_logprobs("--numerics", "fast")

        self.assertEqual(len(fast), len(exact))
        self.assertLess(max(abs(a - b) for a, b in zip(fast, exact)), BOUND)
        self.assertNotEqual(fast, exact)

    def test_another_name_is_a_wrong_usage(self):
        self.assertEqual(run("engine", checkpoint(), "--numerics", "quick").code, 2)


if __name__ == "__main__":
    unittest.main()
