"""An engine of several tensor-parallel ranks: what it serves and says of itself, and what a flip and a fault do to all."""

import unittest

from bascule_program import EndToEndTest, checkpoint, run
import digest_oracle
import test_faults
import test_publish

try:
    import numpy  # noqa: F401
    import forward_oracle
except ImportError:
    forward_oracle = None

# Sums over ranks round otherwise than one long sum: by this much log-probabilities may differ from the oracle's, and the
# engine may choose another token where the two best are closer than twice as much.
TOLERANCE = 1e-4


class TensorParallelTest(EndToEndTest):
    def start_ranks(self, kind, ranks, *arguments):
        return self.start_engine(checkpoint(kind), "--tp", ranks, *arguments)

    @unittest.skipIf(forward_oracle is None, "needs the Python package numpy")
    def test_greedy_tokens_and_log_probabilities_are_those_of_the_oracle_on_any_number_of_ranks(self):
        prompt = [5, 17, 99, 3] * 5
        cases = [("wide", 1), ("wide", 2), ("wide", 4), ("wide", 8), ("bias", 4), ("qk-norm", 2), ("tied", 2)]
        for kind, ranks in cases:
            with self.subTest(kind, ranks=ranks):
                wanted = forward_oracle.greedy(forward_oracle.Model(checkpoint(kind), "float64"), prompt, 24)
                engine = self.start_ranks(kind, ranks)

                answer = self.generate(engine, prompt, "--max-new", 24)

                self.assert_close(answer, wanted)
                engine.kill()

    def assert_close(self, answer, wanted):
        for number, (token, margin) in enumerate(zip(wanted["tokens"], wanted["margins"])):
            self.assertAlmostEqual(answer["logprobs"][number], wanted["logprobs"][number], delta=TOLERANCE)
            if answer["tokens"][number] != token:
                self.assertLess(margin, 2 * TOLERANCE)
                return  # From here on the two continue different texts.

    def test_every_rank_has_its_share_and_the_version_of_all(self):
        whole = self.start_ranks("wide", 1)
        engine = self.start_ranks("wide", 4)

        status = engine.status()

        digest = digest_oracle.version_digest(checkpoint("wide"))
        self.assertEqual(status["live"]["digest"], digest)
        self.assertEqual([rank["rank"] for rank in status["ranks"]], [0, 1, 2, 3])
        self.assertEqual({(rank["live_version"], rank["digest"]) for rank in status["ranks"]}, {(0, digest)})
        bytes_of_whole = whole.status()["ranks"][0]["slot_bytes"]
        for rank in status["ranks"]:
            self.assertLess(rank["slot_bytes"], bytes_of_whole / 2)
        self.assertTrue(self.run_ok("verify", checkpoint("wide"), engine.address).object["equal"])

    def test_a_second_engine_gives_the_same_bits(self):
        requests = [([1, 2, 3], ()), ([9] * 40, ("--temperature", "1", "--seed", 5))]
        answers = []
        for _ in range(2):
            engine = self.start_ranks("wide", 8)
            answers.append([self.generate(engine, prompt, "--max-new", 60, *more) for prompt, more in requests])
            engine.kill()

        self.assertEqual(*answers)

    def test_a_model_that_ranks_cannot_share_is_refused_with_the_numbers(self):
        for kind, ranks, numbers in (("dense", 3, ["4", "3"]), ("dense", 8, ["4", "8"])):
            with self.subTest(kind, ranks=ranks):
                ended = run("engine", checkpoint(kind), "--tp", ranks, "--listen", "127.0.0.1:0", env=self.env)

                self.assert_fails(ended, 1, "does_not_divide")
                for number in numbers:
                    self.assertIn(number, ended.error["message"])
                self.assert_nothing_left()

    def test_no_ranks_at_all_are_wrong_usage(self):
        ended = run("engine", checkpoint(), "--tp", 0, env=self.env)

        self.assertEqual(ended.code, 2, ended)

    def test_it_stops_in_mid_generation_and_leaves_nothing(self):
        engine = self.start_ranks("wide", 4)
        client = self.start("generate", engine.address, "--tokens", "1", "--max-new", 4000, "--stream")
        client.next()

        ended = self.stop(engine)

        self.assertEqual(ended.code, 0, ended)
        client.finish(10)
        self.assert_nothing_left()

    def test_both_transports_reach_every_rank(self):
        engine = self.start_ranks("wide", 4)

        for number, transport in enumerate(("shm", "grpc"), 1):
            with self.subTest(transport):
                path = checkpoint("wide", version=1 + number % 2)
                report = self.publish_ok(path, engine, arguments=("--transport", transport))

                self.assertEqual(report["transport"], transport)
                self.assertEqual(report["version_digest"], digest_oracle.version_digest(path))
                self.assertEqual({rank["live_version"] for rank in engine.status()["ranks"]}, {number})
                self.assertTrue(self.run_ok("verify", path, engine.address).object["equal"])


class OnTwoRanks:
    """The tests of another file, with engines of two ranks."""

    def start_engine(self, path, *arguments, **options):
        engine = super().start_engine(path, "--tp", 2, *arguments, **options)
        self.assertEqual(len(engine.status()["ranks"]), 2)
        return engine


class PublishWhileTwoRanksDecodeTest(OnTwoRanks, test_publish.PublishWhileDecodingTest):
    pass


class RollbackOfTwoRanksTest(OnTwoRanks, test_publish.RollbackTest):
    pass


class KilledPublisherOfTwoRanksTest(OnTwoRanks, test_faults.KilledPublisherTest):
    pass


if __name__ == "__main__":
    unittest.main()
