"""Replicas that join a publisher's fleet, come back, or take their first version from a peer; and the fleet's way back."""

import os
import signal
import unittest

from bascule_program import checkpoint, run
from test_fleet import FleetTest
from test_trainer_ranks import rank_processes


class JoinTest(FleetTest):
    def serve(self, path, *arguments):
        """`publish --serve`: the process, and the address of its status and its Fleet service."""
        publisher = self.start("publish", path, "--serve", "--listen", "127.0.0.1:0", *arguments)
        address = publisher.until(lambda event: event.get("event") == "listening")["address"]
        publisher.until(lambda event: event.get("event") == "ready")
        return publisher, address

    def fleet(self, publisher):
        return {row["address"]: row for row in self.run_ok("status", publisher).objects[0]["replicas"]}

    def until_fleet(self, publisher, wanted):
        watch = self.start("watch", publisher)
        line = watch.until(lambda line: wanted({row["address"]: row for row in line["replicas"]}))
        watch.kill()
        return line

    def digest(self, path):
        return self.run_ok("digest", path).object["version_digest"]

    def test_a_late_engine_is_not_ready_before_it_has_what_the_fleet_has_committed(self):
        """C-052."""
        engine = self.start_engine(checkpoint(), "--tp", 2)
        publisher, address = self.serve(checkpoint(version=2), "--to", engine.address)

        late = self.start_engine(checkpoint(), "--join", address)

        self.assertEqual((late.ready["version"], late.ready["digest"]), (1, self.digest(checkpoint(version=2))))
        rows = self.run_ok("versions", late.address).objects
        self.assertEqual([(row["kind"], row["version"]) for row in rows], [("initial", 1)], "never the base weights")
        self.assertEqual(self.assert_live(engine, 1)["flips"]["count"], 1, "nothing was sent to it again")
        self.until_fleet(address, lambda fleet: late.address in fleet and fleet[late.address]["state"] == "committed")
        row = self.fleet(address)[late.address]
        self.assertEqual((row["version"], row["digest"], row["staleness"], row["ready"]),
                         (1, self.digest(checkpoint(version=2)), 0, True))  # fmt: skip
        self.assertEqual(self.stop(late).code, 0)
        self.until_fleet(address, lambda fleet: late.address not in fleet)
        self.assertEqual(self.stop(publisher).code, 0)

    def test_a_fleet_may_begin_empty_and_an_engine_that_restarts_gets_its_version_again(self):
        """C-052."""
        publisher, address = self.serve(checkpoint(version=3), "--run", "r", "--version", 7)
        engine = self.start_engine(checkpoint(), "--join", address)
        self.assertEqual((engine.ready["version"], engine.ready["run"]), (7, "r"))
        engine.kill()

        again = self.start_engine(checkpoint(), "--join", address, listen=engine.address)

        self.assertEqual(again.ready["digest"], self.digest(checkpoint(version=3)))
        self.assert_live(again, 7)

    def test_an_engine_takes_its_first_version_from_a_peer_of_another_cut(self):
        peer = self.start_engine(checkpoint(version=2), "--tp", 2, "--version", 5, "--run", "r")

        engine = self.start_engine(checkpoint(), "--from-peer", peer.address)

        self.assertEqual((engine.ready["version"], engine.ready["run"]), (5, "r"))
        self.assertEqual(engine.status()["live"]["digest"], self.digest(checkpoint(version=2)))
        self.assertEqual(
            self.generate(engine, [1, 2, 3])["tokens"], self.generate(peer, [1, 2, 3])["tokens"]
        )
        self.publish_ok(checkpoint(version=3), peer, engine)

    def test_whoever_joins_late_gets_every_ranks_share_from_its_own_process(self):
        """C-052. A process that is gone takes its share with it: then a replica that has the version sends it."""
        ranks = ("--trainer-ranks", 3, "--run", "r", "--version", 7)
        publisher, address = self.serve(checkpoint(version=3), *ranks)
        first = self.start_engine(checkpoint(), "--tp", 2, "--join", address)
        self.assertEqual((first.ready["version"], first.ready["source"]), (7, "fleet"))
        self.assertEqual(first.ready["digest"], self.digest(checkpoint(version=3)))
        self.assertEqual(self.generate(first, [1, 2, 3])["spans"][0]["version"], 7)

        os.kill(rank_processes(publisher)[2], signal.SIGKILL)
        late = self.start_engine(checkpoint(), "--join", address)

        self.assertEqual((late.ready["version"], late.ready["digest"]), (7, first.ready["digest"]))
        self.assertEqual(self.stop(publisher).code, 0)

    def test_what_a_publisher_brings_while_an_engine_starts_is_not_loaded_over(self):
        """Whichever is first, the files or the publish: the engine is ready, with what was published."""
        engine = self.start("engine", checkpoint(size=60_000_000))
        address = engine.until(lambda event: event.get("event") == "listening")["address"]

        published = ("publish", checkpoint(size=60_000_000, version=2), "--to", address, "--run", "r", "--new-run")
        while (ended := run(*published, "--version", 3, env=self.env)).code != 0:
            self.assertEqual(ended.error["reason"], "publisher_busy", ended)

        ready = engine.until(lambda event: event.get("event") == "ready")
        self.assertIn(ready["source"], ("disk", "publisher"))
        live = self.run_ok("status", address).object["live"]
        self.assertEqual((live["run"], live["version"], live["digest"]), ("r", 3, ended.object["version_digest"]))

    def test_what_a_publisher_brings_while_a_peer_is_waited_for_is_not_sent_over(self):
        peer = self.start_engine(checkpoint(version=2), "--version", 5, "--run", "r")
        peer.send(signal.SIGSTOP)
        engine = self.start("engine", checkpoint(), "--from-peer", peer.address)
        address = engine.until(lambda event: event.get("event") == "listening")["address"]
        published = self.run_ok("publish", checkpoint(version=3), "--to", address, "--run", "s", "--new-run", "--version", 1)

        peer.send(signal.SIGCONT)

        ready = engine.until(lambda event: event.get("event") == "ready")
        self.assertEqual((ready["source"], ready["run"], ready["version"]), ("publisher", "s", 1))
        rows = self.run_ok("versions", address).objects
        self.assertEqual([(row["run"], row["outcome"]) for row in rows], [("s", "committed")])
        self.assertEqual(self.run_ok("status", address).object["live"]["digest"], published.object["version_digest"])
        peer.kill()
        engine.kill()

    def test_a_peer_that_is_not_there_or_cannot_be_dialled_back_is_an_error_and_no_slow_start(self):
        """C-037."""
        engine = self.start_engine(checkpoint())
        address = engine.address
        engine.kill()

        self.assert_fails(run("engine", checkpoint(), "--from-peer", address, env=self.env), 4, "peer_unreachable")
        wild = run("engine", checkpoint(), "--listen", "0.0.0.0:0", "--join", address, env=self.env)
        self.assert_fails(wild, 1, "bad_address")
        self.assertIn("--advertise", wild.error["message"])

    def test_what_a_publisher_brings_while_the_fleets_version_is_waited_for_is_enough(self):
        holder = self.start_engine(checkpoint())
        publisher, address = self.serve(checkpoint(version=2), "--to", holder.address)
        self.run_ok("rollback", address)  # the publisher does not have these bytes, the holder does
        holder.send(signal.SIGSTOP)
        late = self.start("engine", checkpoint(version=3), "--join", address)
        listening = late.until(lambda event: event.get("event") == "listening")["address"]
        self.until_fleet(address, lambda fleet: listening in fleet)
        newer = ("--run", "checkpoint", "--new-run", "--version", 9)
        self.run_ok("publish", checkpoint(version=3), "--to", listening, *newer)

        holder.send(signal.SIGCONT)

        self.assertEqual(late.until(lambda event: event.get("event") == "ready")["version"], 9)
        self.assertEqual([row["version"] for row in self.run_ok("versions", listening).objects], [9])
        late.kill()

    def test_a_fleet_goes_back_as_one_and_who_joins_then_gets_that_version_from_a_peer(self):
        engines = self.start_fleet(checkpoint(), 2)
        publisher, address = self.serve(
            checkpoint(version=2), "--to", ",".join(engine.address for engine in engines), "--policy", "all"
        )

        back = self.run_ok("rollback", address).object

        self.assertEqual((back["version"], [row["state"] for row in back["replicas"]]), (0, ["rolled_back"] * 2))
        for engine in engines:
            self.assert_live(engine, 0)
            row = self.run_ok("versions", engine.address).objects[-1]
            self.assertEqual((row["kind"], row["version"], row["reason"]), ("rollback", 0, "fleet_rollback"))
        late = self.start_engine(checkpoint(version=3), "--join", address)
        self.assertEqual(late.ready["digest"], self.digest(checkpoint()))
        status = self.run_ok("status", address).object
        self.assertEqual((status["role"], status["committed"]["version"]), ("publisher", 0))
        nowhere = run("rollback", address, "--to", 5)
        self.assert_fails(nowhere, 1, "no_kept_version")
        self.assertRegex(nowhere.error["message"], r"^127.0.0.1:\d+ has no version to go back to$")
        nobodys = run("generate", address, "--tokens", 1)
        self.assert_fails(nobodys, 1, "wrong_service")
        self.assertIn("of another kind", nobodys.error["message"])


if __name__ == "__main__":
    unittest.main()
