"""What an update may take from requests that decode: a flip keeps to its budget, staging to its cores and priority."""

import os
import pathlib
import signal
import unittest

from bascule_program import EndToEndTest, checkpoint

BYTES = 40_000_000
SLOW = "8MB"  # bytes a second: holds a publish under way for five seconds
NORMAL = os.getpriority(os.PRIO_PROCESS, 0)
NICE = max(10, NORMAL)  # of threads that stage while a version is live


def threads_of(engine):
    """Name, cores and niceness of each thread."""
    threads = []
    for task in pathlib.Path(f"/proc/{engine.pid}/task").iterdir():
        number = int(task.name)
        threads.append(((task / "comm").read_text().strip(), os.sched_getaffinity(number),
                        os.getpriority(os.PRIO_PROCESS, number)))  # fmt: skip
    return threads


class GivingWayTest(EndToEndTest):
    def start_decoding(self, *arguments):
        """An engine whose flips take milliseconds, and a client for whom it decodes all the time."""
        engine = self.start_engine(checkpoint(size=BYTES), "--flip", "in_place", *arguments)
        client = self.start("generate", engine.address, "--tokens", "1", "--max-new", 4000, "--stream")
        client.next()
        return engine, client

    def start_publish(self, engine, *arguments):
        return self.start("publish", checkpoint(size=BYTES, version=2), "--to", engine.address, *arguments)


class StallBudgetTest(GivingWayTest):
    BUDGET = ("--stall-budget", "0.001ms")

    def test_a_flip_over_the_budget_waits_until_nothing_decodes(self):
        engine, client = self.start_decoding(*self.BUDGET)
        watch = self.start("watch", engine.address)
        publisher = self.start_publish(engine, "--deadline", "100s")

        watch.until(lambda line: (line["session"] or {}).get("state") == "ready")
        self.assertEqual(engine.status()["live"]["version"], 0)
        self.assertIsNone(publisher.process.poll())
        client.send(signal.SIGINT)

        ended = publisher.finish()
        self.assertEqual(ended.code, 0, ended)
        replica = ended.object["replicas"][0]
        self.assertEqual((replica["state"], replica["flip_stall_us"]), ("committed", 0))
        self.assertEqual(engine.status()["live"]["version"], 1)

    def test_where_that_is_asked_for_it_is_refused_at_once(self):
        engine, client = self.start_decoding(*self.BUDGET, "--over-budget", "refuse")

        ended = self.start_publish(engine).finish()

        self.assert_fails(ended, 1, "stall_over_budget")
        self.assertIn("budget is 1 us", ended.error["message"])
        self.assertEqual(engine.status()["live"]["version"], 0)
        self.assertIsNone(client.process.poll())

    def test_a_flip_within_the_budget_does_not_wait(self):
        engine, client = self.start_decoding("--stall-budget", "100s", "--over-budget", "refuse")

        ended = self.start_publish(engine).finish()

        self.assertEqual(ended.code, 0, ended)
        replica = ended.object["replicas"][0]
        self.assertGreater(replica["flip_stall_us"], 0)
        self.assertEqual(replica["kv"]["recomputed"], 1)
        self.assertIsNone(client.process.poll())


class StagingThreadsTest(GivingWayTest):
    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "needs two cores")
    def test_they_keep_to_their_cores_and_have_a_lower_priority_than_decoding(self):
        first, *_, last = sorted(os.sched_getaffinity(0))
        engine, _ = self.start_decoding("--staging-cores", first, "--decode-cores", last, "--threads", 2)
        self.start_publish(engine, "--max-rate", SLOW)
        # Each answer is another look: niceness comes with the first bucket.
        while not (engine.status()["session"] or {}).get("received_bytes"):
            pass

        threads = threads_of(engine)

        staging = [thread[1:] for thread in threads if thread[0] == "route0-0"]
        decoding = [thread[1:] for thread in threads if thread[0].startswith("decode")]
        self.assertEqual(staging, [({first}, NICE)])
        self.assertEqual(decoding, [({last}, NORMAL)] * 2)


if __name__ == "__main__":
    unittest.main()
