"""What a flip does to running requests, by the policy that each has: told apart by spans, key/value epochs and tokens."""

import unittest

from bascule_program import EndToEndTest, checkpoint


class KvPolicyTest(EndToEndTest):
    PROMPTS = [[3 + client, 50, 7 * client + 1] for client in range(4)]
    NEW_TOKENS = 3000

    def across_a_flip(self, policy, *engine_arguments, kv=()):
        """Answers of requests that ran when version 1 went live, and the publish report's counts of them."""
        engine = self.start_engine(checkpoint(), *engine_arguments)
        clients = [
            self.start("generate", engine.address, "--tokens", ",".join(map(str, prompt)), "--max-new",
                       self.NEW_TOKENS, "--stream", *kv)
            for prompt in self.PROMPTS
        ]  # fmt: skip
        for client in clients:
            client.next()

        counts = self.publish_ok(checkpoint(version=2), engine)["replicas"][0]["kv"]

        answers = [client.finish().object for client in clients]
        self.assertGreater(counts[policy], 0, counts)
        self.assertEqual(sum(counts[other] for other in ("recomputed", "drained", "kept", "aborted")), counts[policy])
        return answers, counts

    def test_abort_ends_them_with_what_they_have(self):
        answers, counts = self.across_a_flip("aborted", kv=("--kv", "abort"))

        aborted = [answer for answer in answers if answer["finish"] == "aborted_by_flip"]
        self.assertEqual(len(aborted), counts["aborted"])
        for answer in aborted:
            self.assertLess(len(answer["tokens"]), self.NEW_TOKENS)
            self.assertEqual(len(answer["logprobs"]), len(answer["tokens"]))
            self.assertEqual([span["version"] for span in answer["spans"]], [0])

    def test_keep_goes_on_under_the_new_version_and_says_whose_state_it_reads(self):
        answers, counts = self.across_a_flip("kept", "--kv", "keep")

        kept = [answer for answer in answers if len(answer["spans"]) == 2]
        self.assertEqual(len(kept), counts["kept"])
        for answer in kept:
            self.assertEqual(answer["finish"], "length")
            self.assertEqual([span["version"] for span in answer["spans"]], [0, 1])
            self.assertEqual([span["kv_epoch"] for span in answer["spans"]], [0, 0])
        self.assertEqual(counts["recompute_tokens"], 0)

    def test_drain_finishes_them_on_the_old_version_to_the_last_bit(self):
        answers, _ = self.across_a_flip("drained", kv=("--kv", "drain"))

        cold = self.start_engine(checkpoint())
        for prompt, answer in zip(self.PROMPTS, answers, strict=True):
            self.assertEqual([span["version"] for span in answer["spans"]], [0])
            alone = self.generate(cold, prompt, "--max-new", self.NEW_TOKENS)
            self.assertEqual(answer["tokens"], alone["tokens"])
            self.assertEqual(answer["logprobs"], alone["logprobs"])

    def test_a_request_after_the_flip_begins_on_the_new_version_whatever_the_policy(self):
        for policy in ("recompute", "drain", "keep", "abort"):
            with self.subTest(policy):
                engine = self.start_engine(checkpoint(), "--kv", policy)
                self.generate(engine, [1, 2, 3])
                self.publish_ok(checkpoint(version=2), engine)

                answer = self.generate(engine, [1, 2, 3], "--max-new", 8)

                cold = self.start_engine(checkpoint(version=2))
                self.assertEqual([span["version"] for span in answer["spans"]], [1])
                self.assertEqual([span["kv_epoch"] for span in answer["spans"]], [1])
                self.assertEqual(answer["tokens"], self.generate(cold, [1, 2, 3], "--max-new", 8)["tokens"])
                self.assertEqual(engine.status()["kv"]["policy"], policy)


if __name__ == "__main__":
    unittest.main()
