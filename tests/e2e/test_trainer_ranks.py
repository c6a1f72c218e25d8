"""A checkpoint published by several processes, each with its own share of it: the same version, and no rank is missed."""

import os
import pathlib
import select
import signal
import unittest

from bascule_program import EndToEndTest, checkpoint
import digest_oracle

BYTES = 40_000_000
SLOW = "8MB"  # bytes a second: holds a publish under way for five seconds


def rank_processes(publisher):
    """Process ids of the other ranks, by trainer rank."""
    ranks = {}
    for pid in pathlib.Path(f"/proc/{publisher.pid}/task/{publisher.pid}/children").read_text().split():
        variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        ranks.update({int(v[5:]): int(pid) for v in variables if v.startswith(b"RANK=")})
    return ranks


class TrainerRanksTest(EndToEndTest):
    def publish_slowly(self, engine, version=2, ranks=4, arguments=()):
        """A publish that the engine is receiving, and the watch that saw it."""
        watch = self.start("watch", engine.address)
        watch.next()
        publisher = self.start(
            "publish", checkpoint(size=BYTES, version=version), "--to", engine.address, "--trainer-ranks", ranks,
            "--max-rate", SLOW, *arguments,
        )
        watch.until(lambda line: (line["session"] or {}).get("state") == "receiving")
        return publisher, watch

    def assert_gone(self, pids):
        self.assertEqual([pid for pid in pids if os.path.exists(f"/proc/{pid}")], [])

    def test_the_version_is_the_same_whoever_sends_it(self):
        for kind in ("dense", "tied", "bias"):
            engine = self.start_engine(checkpoint(kind), "--tp", 2)
            path = checkpoint(kind, version=2)
            digest = self.publish_ok(path, engine)["version_digest"]
            for transport in ("shm", "grpc"):
                for ranks in (2, 4):
                    with self.subTest(kind=kind, ranks=ranks, transport=transport):
                        self.publish_ok(checkpoint(kind), engine)

                        report = self.publish_ok(
                            path, engine, arguments=("--trainer-ranks", ranks, "--transport", transport)
                        )

                        self.assertEqual(report["version_digest"], digest)
                        self.assertEqual(report["version_digest"], digest_oracle.version_digest(path))
                        self.assertEqual(report["transport"], transport)
                        self.assertTrue(self.run_ok("verify", path, engine.address).object["equal"])
            self.stop(engine)
        self.assert_nothing_left()

    def test_every_layout_brings_the_same_version(self):
        for kind, layouts in (
            ("dense", ("fsdp", "mesh:4", "mesh:2x2", "megatron:tp=2,pp=2", "plain")),
            ("tied", ("fsdp", "mesh:2x2", "megatron:tp=2,pp=2")),
        ):
            engine = self.start_engine(checkpoint(kind), "--tp", 2)
            path = checkpoint(kind, version=2)
            for layout in layouts:
                with self.subTest(kind=kind, layout=layout):
                    self.publish_ok(checkpoint(kind), engine)

                    report = self.publish_ok(
                        path, engine, arguments=("--trainer-ranks", 4, "--trainer-layout", layout)
                    )

                    self.assertEqual(report["version_digest"], digest_oracle.version_digest(path))
                    self.assertTrue(self.run_ok("verify", path, engine.address).object["equal"])
            engine.kill()

    def test_full_tensors_are_gathered_where_asked_for_and_where_an_engine_takes_nothing_else(self):
        path = checkpoint(version=2)
        gather = ("--trainer-ranks", 4, "--gather")
        for engine_options, arguments in (
            ((), (*gather, "--trainer-layout", "megatron:tp=2,pp=2", "--transport", "grpc")),
            (("--tp", 2), gather),
            (("--tp", 2, "--full-tensors"), ("--trainer-ranks", 3, "--trainer-layout", "mesh:3")),
        ):
            with self.subTest(engine=engine_options, arguments=arguments):
                engine = self.start_engine(checkpoint(), *engine_options)

                report = self.publish_ok(path, engine, arguments=arguments)

                self.assertEqual(report["version_digest"], digest_oracle.version_digest(path))
                self.assertTrue(self.run_ok("verify", path, engine.address).object["equal"])
                self.stop(engine)
        self.assert_nothing_left()

    def test_a_stopped_rank_ends_the_publish_at_its_deadline_by_name(self):
        engine = self.start_engine(checkpoint(size=BYTES), "--tp", 2)
        publisher, watch = self.publish_slowly(engine, arguments=("--deadline", "9s"))
        stopped = rank_processes(publisher)[2]

        os.kill(stopped, signal.SIGSTOP)

        ended = publisher.finish()
        self.assertEqual(ended.code, 1, ended)
        self.assertEqual(ended.error["reason"], "deadline", ended)
        self.assertRegex(ended.error["message"], r"trainer ranks .*\b2\b")
        watch.until(lambda line: line["session"] is None)
        self.assertEqual(engine.status()["live"]["version"], 0)
        self.assert_gone([stopped])
        self.publish_ok(checkpoint(size=BYTES, version=2), engine, arguments=("--trainer-ranks", 4))
        self.assertTrue(self.run_ok("verify", checkpoint(size=BYTES, version=2), engine.address).object["equal"])
        self.stop(engine)
        self.assert_nothing_left()

    def test_every_replica_gets_it_from_all_ranks(self):
        engines = [self.start_engine(checkpoint(), "--tp", tp) for tp in (1, 2)]

        report = self.publish_ok(checkpoint(version=2), *engines, arguments=("--trainer-ranks", 3, "--version", 9))

        self.assertEqual(report["version"], 9)
        self.assertEqual([replica["state"] for replica in report["replicas"]], ["committed", "committed"])
        for engine in engines:
            self.assertTrue(self.run_ok("verify", checkpoint(version=2), engine.address).object["equal"])

    def test_a_rank_that_is_killed_is_named_and_nothing_changes(self):
        engine = self.start_engine(checkpoint(size=BYTES), "--tp", 2)
        publisher, watch = self.publish_slowly(engine)
        ranks = rank_processes(publisher)
        self.assertEqual(sorted(ranks), [1, 2, 3])

        os.kill(ranks[2], signal.SIGKILL)

        ended = publisher.finish()
        self.assertEqual(ended.code, 4, ended)
        self.assertEqual(ended.error["reason"], "rank_lost", ended)
        self.assertIn("rank 2", ended.error["message"])
        self.assertEqual(ended.objects[0]["replicas"][0]["state"], "aborted")
        self.assert_gone(ranks.values())
        watch.until(lambda line: line["session"] is None)
        self.assertEqual(engine.status()["live"]["version"], 0)
        self.publish_ok(checkpoint(size=BYTES, version=2), engine, arguments=("--trainer-ranks", 4))
        self.assertTrue(self.run_ok("verify", checkpoint(size=BYTES, version=2), engine.address).object["equal"])
        self.stop(engine)
        self.assert_nothing_left()

    def test_the_ranks_end_with_the_publisher_however_that_ends(self):
        engine = self.start_engine(checkpoint(size=BYTES))
        for end, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130), (signal.SIGTERM, 130)):
            with self.subTest(end):
                publisher, watch = self.publish_slowly(engine)
                handles = {rank: os.pidfd_open(pid) for rank, pid in rank_processes(publisher).items()}

                publisher.send(end)

                self.assertEqual(publisher.finish().code, code)
                for handle in handles.values():
                    self.await_end(handle)
                watch.until(lambda line: line["session"] is None)
                watch.kill()
        self.assertEqual(engine.status()["live"]["version"], 0)

    def await_end(self, handle):
        """A process handle can be read once its process has ended."""
        readable, _, _ = select.select([handle], [], [], 60)
        self.assertEqual(readable, [handle])
        os.close(handle)

    def test_what_no_layout_can_split_is_refused_before_anything_is_sent(self):
        engine = self.start_engine(checkpoint())

        for layout in ("rows", "mesh:3x1", "megatron:tp=3,pp=1,ep=1"):
            with self.subTest(layout):
                ended = self.publish(
                    checkpoint(version=2), engine, arguments=("--trainer-ranks", 4, "--trainer-layout", layout)
                )

                self.assert_fails(ended, 1, "bad_trainer_layout")
        self.assertEqual(engine.status()["live"]["version"], 0)


if __name__ == "__main__":
    unittest.main()
