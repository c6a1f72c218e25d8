"""Several replicas as one fleet: policies all and canary, with processes that die at every point between."""

import json
import signal
import unittest

from bascule_program import EndToEndTest, checkpoint, run

BYTES = 8_000_000
# All replicas together: a publish to four stays under way for seconds.
SLOW = "8MB"


def large(version):
    return checkpoint(size=BYTES, version=version)


def states(ended):
    return [replica["state"] for replica in ended.objects[0]["replicas"]]


def session_state(line):
    return (line["session"] or {}).get("state")


class FleetTest(EndToEndTest):
    def start_fleet(self, path, count=4, *arguments):
        return [self.start_engine(path, "--tp", 2, *arguments) for _ in range(count)]

    def watch(self, engine):
        watch = self.start("watch", engine.address)
        watch.next()
        return watch

    def assert_live(self, engine, version, ready=True):
        status = engine.status()
        self.assertEqual((status["live"]["version"], status["ready"]), (version, ready), status)
        self.assertEqual({rank["live_version"] for rank in status["ranks"]}, {version})
        return status


class PolicyAllTest(FleetTest):
    def journal(self):
        return self.runtime / "journal"

    def publish_all(self, path, engines, *arguments):
        to = ",".join(engine.address for engine in engines)
        return ("publish", path, "--to", to, "--policy", "all", "--journal", self.journal(), *arguments)

    def publish_caught_before_the_decision(self, engines, *arguments):
        """A publish that waits for engine 2, which is stopped; it has heard that the others are ready. And a watch of each."""
        watches = [self.watch(engine) for engine in engines]
        publisher = self.start(*self.publish_all(large(2), engines, "--max-rate", SLOW, "--log-level", "info", *arguments))
        watches[2].until(lambda line: session_state(line) == "receiving")
        engines[2].send(signal.SIGSTOP)
        for number in (0, 1, 3):
            watches[number].until(lambda line: session_state(line) == "ready")
            publisher.until_it_logs("fleet_ready", engines[number].address)
        return publisher, watches

    def test_all_commit_or_none_does(self):
        engines = self.start_fleet(checkpoint())

        report = run(*self.publish_all(checkpoint(version=2), engines), env=self.env)

        self.assertEqual((report.code, states(report)), (0, ["committed"] * 4), report)
        for engine in engines:
            self.assert_live(engine, 1)
        engines[1].kill()
        failed = run(*self.publish_all(checkpoint(version=3), engines), env=self.env)
        self.assertEqual((failed.code, states(failed)), (4, ["aborted"] * 4), failed)
        reasons = [replica["error"]["reason"] for replica in failed.objects[0]["replicas"]]
        self.assertEqual(reasons, ["replica_not_ready", "peer_unreachable", "replica_not_ready", "replica_not_ready"])
        for engine in engines[:1] + engines[2:]:
            self.assert_live(engine, 1)

    def test_one_that_is_killed_between_verified_and_the_decision_keeps_all_from_flipping(self):
        engines = self.start_fleet(large(1))
        publisher, _ = self.publish_caught_before_the_decision(engines)

        engines[3].send(signal.SIGKILL)
        engines[2].send(signal.SIGCONT)

        ended = publisher.finish()
        self.assertEqual((ended.code, states(ended)), (4, ["aborted"] * 4), ended)
        for engine in engines[:3]:
            status = self.assert_live(engine, 0)
            self.assertIsNone(status["session"])
            self.assertEqual(status["last_error"]["reason"], "replica_not_ready")
            self.assertIn(engines[3].address, status["last_error"]["message"])
        engines[3] = self.start_engine(large(1), "--tp", 2, listen=engines[3].address)
        again = run(*self.publish_all(large(2), engines), env=self.env)
        self.assertEqual((again.code, states(again)), (0, ["committed"] * 4), again)

    def test_one_that_is_killed_between_the_decision_and_its_flip_is_out_of_rotation_until_it_has_the_version(self):
        """C-019."""
        engines = self.start_fleet(large(1))
        publisher, watches = self.publish_caught_before_the_decision(engines)
        engines[3].send(signal.SIGSTOP)
        engines[2].send(signal.SIGCONT)
        for watch in watches[:3]:
            watch.until(lambda line: line["live"]["version"] == 1)

        engines[3].send(signal.SIGKILL)

        ended = publisher.finish()
        self.assertEqual((ended.code, states(ended)), (4, ["committed"] * 3 + ["missed"]), ended)
        self.finish_what_was_decided(engines)

    def test_one_that_stops_between_the_decision_and_its_flip_has_missed_it_and_serves_its_old_version(self):
        engines = self.start_fleet(large(1))
        publisher, watches = self.publish_caught_before_the_decision(engines, "--deadline", "20s")
        engines[3].send(signal.SIGSTOP)
        engines[2].send(signal.SIGCONT)
        for watch in watches[:3]:
            watch.until(lambda line: line["live"]["version"] == 1)

        ended = publisher.finish()
        engines[3].send(signal.SIGCONT)

        self.assertEqual((ended.code, states(ended)), (1, ["committed"] * 3 + ["missed"]), ended)
        self.assertEqual(ended.error["reason"], "deadline")
        watches[3].until(lambda line: line["session"] is None)
        self.assertEqual(engines[3].status()["live"]["version"], 0)
        again = run(*self.publish_all(large(2), engines, "--version", 1), env=self.env)
        self.assertEqual((again.code, states(again)), (0, ["committed"] * 4), again)
        for engine in engines:
            self.assert_live(engine, 1)

    def test_a_publisher_that_stops_when_replicas_are_ready_costs_them_the_deadline_and_no_more(self):
        engines = self.start_fleet(large(1))
        publisher, watches = self.publish_caught_before_the_decision(engines, "--deadline", "8s")

        publisher.send(signal.SIGSTOP)
        engines[2].send(signal.SIGCONT)

        for watch, engine in zip(watches, engines):
            line = watch.until(lambda line: line["session"] is None)
            self.assertEqual((line["live"]["version"], line["last_error"]["reason"]), (0, "deadline"))
        publisher.kill()
        again = run(*self.publish_all(large(2), engines), env=self.env)
        self.assertEqual((again.code, states(again)), (0, ["committed"] * 4), again)

    def test_a_publisher_that_is_killed_after_its_decision_finishes_it_from_its_journal(self):
        engines = self.start_fleet(large(1))
        publisher, watches = self.publish_caught_before_the_decision(engines)
        engines[3].send(signal.SIGSTOP)
        engines[2].send(signal.SIGCONT)
        for watch in watches[:3]:
            watch.until(lambda line: line["live"]["version"] == 1)

        publisher.send(signal.SIGKILL)
        engines[3].send(signal.SIGKILL)

        publisher.finish()
        self.finish_what_was_decided(engines)

    def finish_what_was_decided(self, engines):
        """Version 1 was decided, and engine 3 was killed before it had it."""
        engines[3].finish()
        engines[3] = self.start_engine(large(1), "--tp", 2, listen=engines[3].address)
        self.assert_live(engines[3], 0)
        watch = self.watch(engines[3])
        slow = ("--version", 1, "--max-rate", SLOW)

        finished = run(*self.publish_all(large(2), engines, *slow), env=self.env)

        self.assertEqual((finished.code, states(finished)), (0, ["committed"] * 4), finished)
        behind = watch.until(lambda line: not line["ready"])
        self.assertEqual((behind["live"]["version"], behind["required"]["version"]), (0, 1))
        caught_up = watch.until(lambda line: line["ready"])
        self.assertEqual((caught_up["live"]["version"], caught_up.get("required")), (1, None))
        for engine in engines[:3]:
            self.assertEqual(self.assert_live(engine, 1)["flips"]["count"], 1, "nothing was sent to it again")
        digests = {engine.status()["live"]["digest"] for engine in engines}
        self.assertEqual(len(digests), 1)

    def test_a_publisher_that_is_killed_before_its_decision_leaves_everybody_serving(self):
        engines = self.start_fleet(large(1))
        publisher, watches = self.publish_caught_before_the_decision(engines)

        publisher.send(signal.SIGKILL)
        engines[2].send(signal.SIGCONT)

        for watch, engine in zip(watches, engines):
            watch.until(lambda line: line["session"] is None)
            self.assert_live(engine, 0)
        again = run(*self.publish_all(large(2), engines), env=self.env)
        self.assertEqual((again.code, states(again)), (0, ["committed"] * 4), again)

    def test_two_publishers_do_not_share_a_journal(self):
        engine = self.start_engine(large(1))
        watch = self.watch(engine)
        self.start(*self.publish_all(large(2), [engine], "--max-rate", "2MB"))
        watch.until(lambda line: session_state(line) == "receiving")

        second = run(*self.publish_all(large(2), [engine]), env=self.env)

        self.assert_fails(second, 1, "journal_in_use")


class CanaryTest(FleetTest):
    PROMPTS = [[1, 2, 3, 4, 5], [7, 50, 3], [100, 20, 30, 40]]

    def sentinels(self, version):
        """What another engine, started from that version's files, says of the prompts: it stands for the trainer."""
        trainer = self.start_engine(checkpoint(version=version, dtype="F32"))
        lines = []
        for prompt in self.PROMPTS:
            answer = self.generate(trainer, prompt, "--max-new", 1, "--prompt-logprobs")
            lines.append(json.dumps({"tokens": prompt, "logprobs": answer["prompt_logprobs"]}))
        trainer.kill()
        path = self.runtime / f"sentinels-{version}"
        path.write_text("\n".join(lines) + "\n")
        return path

    def publish_canary(self, engines, version, sentinels, *arguments):
        path = checkpoint(version=version, dtype="F32")
        return self.publish(path, *engines, arguments=("--policy", "canary", "--sentinels", sentinels, *arguments))

    def test_a_canary_that_agrees_with_the_trainer_is_followed_by_the_rest(self):
        engines = self.start_fleet(checkpoint(dtype="F32"), 3)

        ended = self.publish_canary(engines, 2, self.sentinels(2), "--sentinel-bound", "0.001")

        self.assertEqual((ended.code, states(ended)), (0, ["committed"] * 3), ended)
        for engine in engines:
            self.assert_live(engine, 1)

    def test_a_canary_that_does_not_goes_back_by_itself_and_the_rest_never_sees_the_version(self):
        engines = self.start_fleet(checkpoint(dtype="F32"), 3)
        before = self.generate(engines[0], [1, 2, 3])
        watches = [self.watch(engine) for engine in engines[1:]]

        ended = self.publish_canary(engines, 2, self.sentinels(3))

        self.assert_fails(ended, 1, "sentinel_differs")
        self.assertEqual(states(ended), ["rolled_back", "aborted", "aborted"])
        status = self.assert_live(engines[0], 0)
        self.assertEqual((status["kept"], status["flips"]["count"]), (None, 2))
        for target in ((), ("--to", 1)):
            self.assert_fails(run("rollback", engines[0].address, *target, env=self.env), 1, "no_kept_version")
        rows = self.run_ok("versions", engines[0].address).objects
        self.assertEqual(
            [(row["kind"], row["version"], row["outcome"], row["reason"]) for row in rows[1:]],
            [("full", 1, "committed", None), ("rollback", 0, "committed", "sentinel_differs")],
        )
        after = self.generate(engines[0], [1, 2, 3])
        self.assertEqual((after["tokens"], after["logprobs"]), (before["tokens"], before["logprobs"]))
        for engine, watch in zip(engines[1:], watches):
            self.assertEqual(len(self.run_ok("versions", engine.address).objects), 1)
            self.assertEqual(engine.status()["live"]["version"], 0)
            watch.kill()

    def test_weights_out_of_range_reach_nobody(self):
        engines = self.start_fleet(checkpoint(dtype="F32"), 2)

        ended = self.publish_canary(engines, 2, self.sentinels(2), "--max-weight", "0.0001")

        self.assert_fails(ended, 1, "weights_too_large")
        self.assertEqual(states(ended), ["aborted", "aborted"])
        self.assertEqual(len(self.run_ok("versions", engines[0].address).objects), 1)

    def test_a_canary_needs_sentinels_and_they_have_to_make_sense(self):
        self.assertEqual(run("publish", checkpoint(), "--to", "x:1", "--policy", "canary").code, 2)
        self.assertEqual(run("publish", checkpoint(), "--to", "x:1", "--journal", "j").code, 2)
        for text in ("", "[]", '{"tokens":[1],"logprobs":[]}', '{"tokens":[1,2],"logprobs":[0.5]}', '{"tokens":[1,2]}'):
            path = self.runtime / "bad"
            path.write_text(text)
            ended = run("publish", checkpoint(), "--to", "x:1", "--policy", "canary", "--sentinels", path)
            self.assert_fails(ended, 1, "bad_sentinels")
            self.assertIn(str(path), ended.error["message"])


if __name__ == "__main__":
    unittest.main()
