"""Weights that outlive the engine: `bascule daemon`, and engines of its host that map what it holds."""

import os
import pathlib
import signal
import time
import unittest

from bascule_program import PATIENCE_S, EndToEndTest, checkpoint, run

PROMPT = [1, 2, 3]


class CacheDaemonTest(EndToEndTest):
    def setUp(self):
        super().setUp()
        self.socket = self.runtime / "cache.sock"

    def start_daemon(self, *arguments, ready=True):
        """The daemon; its `address` takes publishes."""
        daemon = self.start("daemon", *arguments, "--socket", self.socket)
        daemon.socket_event = daemon.until(lambda event: event.get("event") == "socket")
        daemon.address = daemon.until(lambda event: event.get("event") == "listening")["address"]
        if ready:
            daemon.ready = daemon.until(lambda event: event.get("event") == "ready")
        return daemon

    def start_attached(self, *arguments):
        return self.start_engine(*(arguments or (checkpoint(),)), "--from-daemon", self.socket)

    def start_refused(self, *arguments):
        return run("engine", *(arguments or (checkpoint(),)), "--from-daemon", self.socket, env=self.env)

    def status(self, running):
        return self.run_ok("status", running.address).object

    def until_cache(self, daemon, wanted):
        """Asks until what the daemon says of its cache is so: an engine that comes or goes is no change of a version."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            cache = self.status(daemon)["cache"]
            if wanted(cache):
                return cache
        raise AssertionError(f"the daemon still says {cache}")

    def until_live(self, engine, version):
        watch = self.start("watch", engine.address)
        line = watch.until(lambda line: line["live"] and line["live"]["version"] == version and line["ready"])
        watch.kill()
        return line

    def digest(self, path):
        return self.run_ok("digest", path).object["version_digest"]

    def objects_of(self, process):
        """Descriptors of version memory that a process holds."""
        links = []
        for entry in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                links.append(os.readlink(entry))
            except FileNotFoundError:
                pass
        return [link for link in links if "bascule_weights" in link]

    def test_engines_map_what_the_daemon_holds_and_answer_as_engines_from_disk_do(self):
        daemon = self.start_daemon(checkpoint(version=2), "--tp", 2)
        self.assertEqual(daemon.ready["digest"], self.digest(checkpoint(version=2)))

        engine = self.start_attached(checkpoint(), "--tp", 2)  # of its checkpoint only the model counts
        other = self.start_attached(checkpoint(), "--tp", 2, "--daemon-check", "recorded")

        self.assertEqual((engine.ready["source"], engine.ready["read"]["read_bytes"]), ("daemon", 0))
        self.assertEqual(engine.ready["digest"], daemon.ready["digest"])
        disk = self.start_engine(checkpoint(version=2), "--tp", 2)
        self.assertEqual(disk.ready["source"], "disk")
        tokens = [self.generate(each, PROMPT)["tokens"] for each in (disk, engine, other)]
        self.assertEqual(tokens, [tokens[0]] * 3)
        self.assertEqual(self.run_ok("verify", engine.address, checkpoint(version=2)).object["equal"], True)
        status = self.status(daemon)
        self.assertEqual((status["role"], status["ready"], status["cache"]["phase"]), ("daemon", True, "holding"))
        self.assertEqual([(row["version"], row["live"]) for row in status["cache"]["objects"]], [(0, True)])
        self.assertEqual(status["cache"]["objects"][0]["bytes"], sum(rank["slot_bytes"] for rank in status["ranks"]))
        cache = self.until_cache(daemon, lambda cache: [row["version"] for row in cache["engines"]] == [0, 0])
        self.assertEqual({row["pid"] for row in cache["engines"]}, {engine.pid, other.pid})
        for running in (engine, other, disk, daemon):
            self.assertEqual(self.stop(running).code, 0)
        self.assert_nothing_left()

    def test_what_is_published_to_the_daemon_reaches_its_engines_and_so_does_its_rollback(self):
        daemon = self.start_daemon(checkpoint())
        engines = [self.start_attached(), self.start_attached()]
        before = self.generate(engines[0], PROMPT)["tokens"]

        self.publish_ok(checkpoint(version=2), daemon)
        for engine in engines:
            line = self.until_live(engine, 1)
            self.assertEqual(line["live"]["digest"], self.digest(checkpoint(version=2)))
        disk = self.start_engine(checkpoint(version=2))
        after = self.generate(disk, PROMPT)["tokens"]
        self.assertEqual(self.generate(engines[1], PROMPT)["tokens"], after)
        self.run_ok("rollback", daemon.address)
        for engine in engines:
            self.until_live(engine, 0)
            self.assertEqual(self.generate(engine, PROMPT)["tokens"], before)
            rows = self.run_ok("versions", engine.address).objects
            self.assertEqual([row["kind"] for row in rows], ["initial", "full", "rollback"])

    def test_an_engine_that_maps_the_daemons_memory_takes_versions_from_publishers_too(self):
        daemon = self.start_daemon(checkpoint())
        engine = self.start_attached()

        self.publish_ok(checkpoint(version=2), engine)
        self.publish_ok(checkpoint(version=2), daemon)  # the same version by the other way

        self.until_cache(daemon, lambda cache: [row["version"] for row in cache["engines"]] == [1])
        self.publish_ok(checkpoint(version=3), engine)
        self.assertEqual(self.until_live(engine, 2)["live"]["digest"], self.digest(checkpoint(version=3)))
        self.assertEqual(self.status(engine)["flips"]["count"], 2)

    def test_engines_outlive_a_killed_daemon_and_the_next_one_replaces_its_socket(self):
        """C-122."""
        daemon = self.start_daemon(checkpoint())
        self.publish_ok(checkpoint(version=2), daemon)
        engine = self.start_attached()
        tokens = self.generate(engine, PROMPT)["tokens"]

        daemon.kill()

        self.assertEqual(self.generate(engine, PROMPT)["tokens"], tokens)
        self.assertTrue(self.socket.exists(), "what a killed process leaves")
        self.assert_fails(self.start_refused(), 4, "peer_unreachable")
        again = self.start_daemon(checkpoint(version=3))
        self.assertNotEqual(again.socket_event["instance"], daemon.socket_event["instance"])
        late = self.start_attached()
        self.assertEqual(late.ready["digest"], self.digest(checkpoint(version=3)))
        self.until_cache(again, lambda cache: {row["pid"] for row in cache["engines"]} == {engine.pid, late.pid})
        self.assertEqual(self.status(engine)["live"]["version"], 1, "it does not go back with a daemon that starts anew")
        self.assertEqual(self.generate(engine, PROMPT)["tokens"], tokens)

    def test_a_daemon_that_stops_holds_nobody_up_who_has_its_version_and_newcomers_until_their_deadline(self):
        daemon = self.start_daemon(checkpoint())
        engine = self.start_attached()
        tokens = self.generate(engine, PROMPT)["tokens"]

        daemon.send(signal.SIGSTOP)

        self.assertEqual(self.generate(engine, PROMPT)["tokens"], tokens)
        hurried = run("engine", checkpoint(), "--from-daemon", self.socket, "--load-deadline", "1s", env=self.env)
        self.assert_fails(hurried, 1, "deadline")
        daemon.send(signal.SIGCONT)
        self.publish_ok(checkpoint(version=2), daemon)
        self.assertEqual(self.until_live(engine, 1)["live"]["digest"], self.digest(checkpoint(version=2)))

    def test_a_daemon_that_is_killed_while_it_loads_leaves_no_socket_that_is_taken_for_a_ready_one(self):
        """C-122."""
        large = checkpoint(size=40_000_000)
        daemon = self.start("daemon", large, "--socket", self.socket)
        daemon.until(lambda event: event.get("event") == "socket")

        daemon.kill()

        self.assertTrue(self.socket.exists())
        self.assert_fails(self.start_refused(large), 4, "peer_unreachable")
        again = self.start("daemon", large, "--socket", self.socket)
        again.until(lambda event: event.get("event") == "socket")
        engine = self.start_attached(large)  # which waits until the daemon has loaded
        self.assertEqual((engine.ready["source"], engine.ready["digest"]), ("daemon", self.digest(large)))

    def test_a_killed_engine_is_forgotten_and_memory_does_not_grow_with_versions(self):
        daemon = self.start_daemon(checkpoint(), "--keep", 2)
        engine = self.start_attached()
        self.until_cache(daemon, lambda cache: len(cache["engines"]) == 1)

        engine.kill()

        self.until_cache(daemon, lambda cache: cache["engines"] == [])
        for version in range(2, 7):
            self.publish_ok(checkpoint(version=version % 3 + 1), daemon)
        cache = self.until_cache(daemon, lambda cache: cache["objects"][0]["version"] == 5)
        self.assertEqual([row["version"] for row in cache["objects"]], [5, 4])
        # Per version its memory and its manifest, and each once more in a slot; the slot that was reserved before holds
        # an older one until it is reserved again.
        self.assertLessEqual(len(self.objects_of(daemon)), 7)
        second = self.start_engine(checkpoint(), "--from-daemon", self.socket, "--daemon-version", 4)
        self.assertEqual(second.ready["version"], 4)

    def test_an_engine_that_comes_first_waits_for_the_daemons_first_version(self):
        daemon = self.start_daemon(checkpoint(), "--empty", ready=False)
        self.assertEqual((self.status(daemon)["ready"], self.status(daemon)["cache"]["phase"]), (False, "empty"))
        hurried = run("engine", checkpoint(), "--from-daemon", self.socket, "--load-deadline", "100ms", env=self.env)
        self.assert_fails(hurried, 1, "deadline")
        engine = self.start("engine", checkpoint(), "--listen", "127.0.0.1:0", "--from-daemon", self.socket)
        engine.address = engine.until(lambda event: event.get("event") == "listening")["address"]
        self.until_cache(daemon, lambda cache: len(cache["engines"]) == 1)

        ended = self.publish(checkpoint(version=2), daemon, arguments=("--run", "r", "--new-run", "--version", 7))
        self.assertEqual(ended.code, 0, ended)

        ready = engine.until(lambda event: event.get("event") == "ready")
        self.assertEqual((ready["version"], ready["run"], ready["source"]), (7, "r", "daemon"))
        self.assertEqual(daemon.until(lambda event: event.get("event") == "ready")["version"], 7)

    def test_in_a_fleet_the_publisher_brings_what_comes_and_the_daemon_is_where_engines_start(self):
        publisher = self.start("publish", checkpoint(version=2), "--serve", "--listen", "127.0.0.1:0", "--run", "r")
        fleet = publisher.until(lambda event: event.get("event") == "listening")["address"]
        daemon = self.start_daemon(checkpoint(), "--join", fleet)
        self.assertEqual((daemon.ready["run"], daemon.ready["digest"]), ("r", self.digest(checkpoint(version=2))))

        engine = self.start_attached(checkpoint(), "--join", fleet)

        self.assertEqual((engine.ready["source"], engine.ready["digest"]), ("daemon", daemon.ready["digest"]))
        self.assertEqual([row["kind"] for row in self.run_ok("versions", engine.address).objects], ["initial"])

    def test_only_a_socket_that_is_absent_lets_an_engine_load_from_disk(self):
        """C-124."""
        absent = self.start_attached()
        self.assertEqual(absent.ready["source"], "disk")
        self.assertEqual(self.stop(absent).code, 0)
        self.socket.write_text("no socket")
        self.assert_fails(self.start_refused(), 4, "peer_unreachable")
        self.socket.unlink()
        self.start_daemon(checkpoint(), "--tp", 2)

        mismatch = self.start_refused(checkpoint(), "--tp", 1)
        in_place = self.start_refused(checkpoint(), "--tp", 2, "--flip", "in_place")
        far = run("engine", checkpoint(), "--from-daemon", "/" + "x" * 120, env=self.env)

        self.assert_fails(mismatch, 1, "fingerprint_mismatch")
        self.assertIn("tensor=2", mismatch.error["message"])
        self.assertIn("tensor=1", mismatch.error["message"])
        self.assert_fails(in_place, 1, "slot_read_only")
        self.assert_fails(far, 1, "bad_socket_path")
        second = run("daemon", checkpoint(), "--socket", self.socket, env=self.env)
        self.assert_fails(second, 1, "address_in_use")


if __name__ == "__main__":
    unittest.main()
