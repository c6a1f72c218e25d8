"""Processes that get no more descriptors, memory, threads or shared memory: an error by name, never an abort, and the live
version stays."""

import json
import resource
import unittest

from bascule_program import EndToEndTest, Running, checkpoint
import limits

BYTES = 40_000_000
MB = 1 << 20


def large(version):
    return checkpoint(size=BYTES, version=version)


class LimitTest(EndToEndTest):
    def ready_or_refused(self, limit, *arguments):
        """An engine that starts under a limit: None when it got ready, else how it ended."""
        engine = self.start("engine", large(1), "--listen", "127.0.0.1:0", *arguments, before=limit)
        lines = []
        while (event := engine.next()) is not None:
            if event.get("event") == "ready":
                engine.kill()
                return None
            lines.append(json.dumps(event))
        ended = engine.finish()
        ended.stdout = "\n".join(lines)
        return ended

    def assert_serves(self, engine, version):
        self.assertEqual(engine.status()["live"]["version"], version)
        self.generate(engine, [1, 2, 3], "--max-new", 2)

    def publish_under(self, kind, most, engine, *arguments):
        """A publish while the engine is limited."""
        with limits.Limited(engine.pid, kind, most):
            return self.publish(large(2), engine, arguments=("--deadline", "1s", *arguments))


class DescriptorTest(LimitTest):
    def test_a_program_that_may_open_too_few_files_says_so_before_it_begins(self):
        engine = self.start_engine(checkpoint())
        for most in (8, 12, 16, 24):
            limit = limits.with_limit(resource.RLIMIT_NOFILE, most)
            for command in (
                ("engine", checkpoint(), "--listen", "127.0.0.1:0"),
                ("publish", checkpoint(version=2), "--to", engine.address),
                ("status", engine.address),
                ("digest", checkpoint()),
            ):
                with self.subTest(most=most, command=command[0]):
                    ended = self.start(*command, before=limit).finish()

                    self.assert_fails(ended, 1, "descriptors")
                    self.assertIn(f"limit={most}", ended.error["message"])
        self.assertEqual(engine.status()["live"]["version"], 0)

    def test_the_limit_that_a_shell_sets_is_raised_to_what_is_allowed(self):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        engine = Running(
            "engine", checkpoint(), "--listen", "127.0.0.1:0", env=self.env,
            before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (16, hard)),
        )  # fmt: skip
        self.addCleanup(engine.kill)

        engine.until(lambda event: event.get("event") == "ready")

        self.assertEqual(resource.prlimit(engine.pid, resource.RLIMIT_NOFILE), (hard, hard))

    def test_an_engine_that_runs_out_of_them_refuses_by_name_and_goes_on(self):
        for transport in ("shm", "grpc"):
            with self.subTest(transport):
                engine = self.start_engine(large(1))
                settled = engine.census()
                for spare in range(4):
                    most = limits.highest_descriptor(engine.pid) + 1 + spare
                    ended = self.publish_under(resource.RLIMIT_NOFILE, most, engine, "--transport", transport)

                    if ended.code != 0:
                        self.assertIn(ended.error["reason"], ("descriptors", "deadline", "peer_lost"), ended)
                        self.assertEqual(ended.error["peer"], engine.address)
                version = engine.status()["live"]["version"]
                self.assert_serves(engine, version)
                self.publish_ok(large(2), engine)
                self.assert_serves(engine, version + 1)
                self.assertLess(engine.census()["descriptors"] - settled["descriptors"], 8)
                engine.kill()


class MemoryTest(LimitTest):
    REASONS = ("map_failed", "kv_memory", "slot_memory", "device_memory", "frame_memory", "out_of_memory", "thread_limit")

    def test_an_engine_whose_memory_does_not_fit_says_which_and_how_large(self):
        """C-098."""
        # The further the limit, the further a start gets; two slots of 40 MB are more than several steps of it.
        reasons = []
        for most in range(16 * MB, 512 * MB, 16 * MB):
            refused = self.ready_or_refused(limits.with_limit(resource.RLIMIT_DATA, most), "--kv-pages", 64)
            self.assertIsNotNone(refused, f"ready with {most} bytes, after {reasons}")
            self.assertEqual(refused.code, 1, refused)
            reasons.append(refused.error["reason"])
            self.assertIn(reasons[-1], self.REASONS)
            if reasons[-1] == "slot_memory":
                break
        self.assertEqual(reasons[-1], "slot_memory")
        self.assertRegex(refused.error["message"], r"slot=\d rank=0 bytes=\d+")

    def test_an_engine_that_gets_no_more_refuses_a_publish_and_takes_the_next(self):
        """C-098."""
        for transport in ("shm", "grpc"):
            with self.subTest(transport):
                engine = self.start_engine(large(1))
                self.publish_ok(large(1), engine)
                for spare in (24 * MB, 48 * MB):
                    most = limits.mapped_bytes(engine.pid) + spare
                    ended = self.publish_under(resource.RLIMIT_AS, most, engine, "--transport", transport)

                    if ended.code != 0:
                        self.assertIn(ended.error["reason"], (*self.REASONS, "deadline", "peer_lost"), ended)
                version = engine.status()["live"]["version"]
                self.assert_serves(engine, version)
                self.publish_ok(large(2), engine)
                self.assert_serves(engine, version + 1)
                self.assertEqual(engine.status()["session"], None)
                engine.kill()

    def test_a_publisher_that_gets_too_little_ends_with_a_reason_and_leaves_the_engine_as_it_was(self):
        engine = self.start_engine(large(1))
        for most in (16 * MB, 32 * MB, 64 * MB):
            limit = limits.with_limit(resource.RLIMIT_DATA, most)
            ended = self.start("publish", large(2), "--to", engine.address, before=limit).finish()
            with self.subTest(most=most):
                self.assertEqual(ended.code, 1, ended)
                self.assertIn(ended.error["reason"], self.REASONS)
                self.assertIn(ended.error["reason"], ended.stderr)
        self.assert_serves(engine, 0)
        self.publish_ok(large(2), engine)


class SharedMemoryTest(LimitTest):
    def setUp(self):
        super().setUp()
        if why := limits.mounting_permitted():
            self.skipTest(why)

    def test_a_full_dev_shm_is_nobodys_business(self):
        """C-094."""
        engine = self.start_engine(large(1), before=limits.with_full_shared_memory)

        publish = ("publish", large(2), "--to", engine.address, "--transport", "shm")
        ended = self.start(*publish, before=limits.with_full_shared_memory).finish()

        self.assertEqual((ended.code, ended.object["transport"]), (0, "shm"), ended)
        self.assert_serves(engine, 1)


if __name__ == "__main__":
    unittest.main()
