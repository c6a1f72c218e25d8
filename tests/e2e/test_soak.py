"""A few publishes of both soaks, and what their judgement is worth."""

import unittest

import bascule_program as bascule
import fault_soak
import soak

CALM = {"errors": [], "growth": dict.fromkeys(soak.ALLOWED, 0), "stall_us_p50_of_halves": [5, 6]}


class SoakTest(unittest.TestCase):
    def test_versions_come_while_rollouts_go_on_and_nothing_grows(self):
        report = soak.soak(lambda publishes: publishes == 12, period_s=0)

        self.assertEqual(soak.faults(report), [])
        self.assertEqual(report["publishes"], 12)
        self.assertGreater(report["tokens"], 0)
        self.assertEqual(sum(entry["count"] for entry in report["stall_histogram_us"]), 12)

    def test_errors_growth_and_longer_stalls_are_faults(self):
        self.assertEqual(soak.faults(CALM), [])
        self.assertEqual(len(soak.faults({**CALM, "errors": ["x"]})), 1)
        self.assertEqual(len(soak.faults({**CALM, "growth": {**CALM["growth"], "threads": 100}})), 1)
        self.assertEqual(len(soak.faults({**CALM, "stall_us_p50_of_halves": [10, 1000]})), 1)

    def test_growth_is_told_from_a_beginning_that_warms_up_and_from_what_comes_and_goes(self):
        def run(values):
            return soak.growth([dict.fromkeys(soak.ALLOWED, value) for value in values])["threads"]

        self.assertEqual(run([1] * 6 + [9] * 30), 0)
        self.assertEqual(run([9, 40] * 18), 0)
        self.assertEqual(run(range(36)), 20)


class FaultSoakTest(unittest.TestCase):
    def test_each_fault_once_and_every_token_is_one_of_a_published_version(self):
        report = fault_soak.fault_soak(publishes=len(fault_soak.FAULTS), seed=1)

        self.assertEqual(report["wrong"], [])
        self.assertEqual(set(report["faults"]), set(fault_soak.FAULTS))
        self.assertGreater(report["tokens"], 0)

    def test_a_token_of_another_version_is_noticed(self):
        judge = fault_soak.Judge()
        self.addCleanup(judge.close)
        engine = bascule.Engine(fault_soak.content_of(1), "--version", "1", "--run", "soak")
        self.addCleanup(engine.kill)
        prompt = fault_soak.PROMPTS[0]
        words = ("--tokens", ",".join(map(str, prompt)), "--max-new", fault_soak.TOKENS)
        rollout = bascule.run("generate", engine.address, *words).object
        mislabelled = {**rollout, "spans": [{**rollout["spans"][0], "version": 2}]}

        self.assertEqual(judge.complaint(prompt, rollout), "")
        self.assertIn("version 2 said", judge.complaint(prompt, mislabelled))


if __name__ == "__main__":
    unittest.main()
