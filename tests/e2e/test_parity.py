"""The decoder says what an independent engine says of the same weights: SmolLM2-135M, fifty prompts."""

import json
import os
import pathlib
import tempfile
import unittest

import bascule_program as bascule
import parity
import real_model

# Log-probabilities, and logits of two tokens for the same prefix. Why it is that much: docs/testing.md, "Parity".
TOLERANCE = 2e-3


class RealModelParityTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.python = parity.oracle_python()
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.checkpoint = real_model.make(cls.folder.name)
        engine = bascule.Engine(cls.checkpoint)
        try:
            cls.greedy, cls.hot = parity.rollouts(cls.checkpoint, engine)
        finally:
            engine.kill()
        verdicts = parity.verdicts(cls.python, cls.checkpoint, cls.greedy + cls.hot)
        cls.greedy_verdicts, cls.hot_verdicts = verdicts[: len(cls.greedy)], verdicts[len(cls.greedy) :]

    def test_every_log_probability_is_the_independent_engines(self):
        for rollout, verdict in zip(self.greedy + self.hot, self.greedy_verdicts + self.hot_verdicts, strict=True):
            for place, (logprob, token) in enumerate(zip(rollout["logprobs"], verdict, strict=True)):
                with self.subTest(prompt=rollout["prompt"], place=place, token=token["token"]):
                    self.assertAlmostEqual(logprob, token["logprob"], delta=TOLERANCE)

    def test_greedy_continuations_of_fifty_prompts_differ_only_where_two_logits_are_that_close(self):
        self.assertEqual(len({tuple(rollout["prompt"]) for rollout in self.greedy}), 50)
        for prompt, rollout, verdict in zip(parity.PROMPTS, self.greedy, self.greedy_verdicts, strict=True):
            self.assertEqual(len(rollout["continuation"]), parity.GREEDY_TOKENS)
            difference = parity.first_difference(verdict)
            if difference is None:
                continue
            place, token = difference
            with self.subTest(prompt=prompt, place=place, **token):
                self.assertLess(token["gap"], TOLERANCE)

    def test_hot_continuations_come_from_all_over_the_vocabulary(self):
        unlikely = [token for verdict in self.hot_verdicts for token in verdict if token["logprob"] < -8]

        self.assertGreater(len(unlikely), 100)

    def test_the_tolerance_tells_a_wrong_constant(self):
        wrong = pathlib.Path(self.folder.name) / "wrong"
        wrong.mkdir()
        config = json.loads((self.checkpoint / "config.json").read_text())
        (wrong / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 4e-5}))
        os.symlink(self.checkpoint / "model.safetensors", wrong / "model.safetensors")
        some = self.hot[:4]

        differences = [
            abs(logprob - token["logprob"])
            for rollout, verdict in zip(some, parity.verdicts(self.python, wrong, some), strict=True)
            for logprob, token in zip(rollout["logprobs"], verdict, strict=True)
        ]

        self.assertGreater(max(differences), 2 * TOLERANCE)


if __name__ == "__main__":
    unittest.main()
