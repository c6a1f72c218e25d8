"""Wires that break, vanish and crawl in the middle of a publish, ports that others have taken, and IPv6 alone."""

import signal
import socket
import subprocess
import unittest

from bascule_program import EndToEndTest, checkpoint, run
import network

BYTES = 8_000_000
# Holds a publish under way for two seconds.
SLOW = "4MB"


def large(version):
    return checkpoint(size=BYTES, version=version)


def received(line):
    return (line["session"] or {}).get("received_bytes", 0)


class LostWireTest(EndToEndTest):
    """The publisher is on the near host, the engine on the far one; the wire between them is the test's."""

    def setUp(self):
        super().setUp()
        if why := network.link_permitted():
            self.skipTest(why)
        self.link = network.Link()
        self.addCleanup(self.link.close)
        self.engine = self.start_engine(
            large(1), listen=f"{self.link.FAR}:0", before=network.enter(self.link.far)
        )

    def far(self, *arguments):
        """A command on the engine's host, where the wire does not matter."""
        return self.start(*arguments, before=network.enter(self.link.far))

    def status(self):
        ended = self.far("status", self.engine.address).finish()
        self.assertEqual(ended.code, 0, ended)
        return ended.object

    def begin_publish(self, *arguments):
        command = ("publish", large(2), "--to", self.engine.address, *arguments)
        return self.start(*command, before=network.enter(self.link.near))

    def publish_caught_receiving(self, transport, deadline="3s"):
        watch = self.far("watch", self.engine.address)
        watch.next()
        publisher = self.begin_publish("--max-rate", SLOW, "--deadline", deadline, "--transport", transport)
        watch.until(lambda line: (line["session"] or {}).get("state") == "receiving")
        return publisher, watch

    def assert_lost(self, publisher, watch):
        """Both ends of the publish gave it up in time; the version that was live is."""
        ended = publisher.finish(20)
        # The session receives before its routes are open: they may be what finds no way.
        ends = ((1, "deadline"), (4, "peer_lost"), (4, "peer_unreachable"))
        self.assertIn((ended.code, ended.error["reason"]), ends, ended)
        self.assertEqual(ended.error["peer"], self.engine.address)
        self.assertIn(ended.error["phase"], ("send", "seal", "verify"))
        over = watch.until(lambda line: line["session"] is None)
        watch.kill()
        self.assertEqual(over["live"]["version"], 0)
        self.assertIn(over["last_error"]["reason"], ("deadline", "peer_lost"))

    def assert_next_commits(self, settled):
        ended = self.begin_publish().finish()
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(self.status()["live"]["digest"], ended.object["version_digest"])
        grown = self.engine.census()
        self.assertLess(grown["descriptors"] - settled["descriptors"], 8)
        self.assertLess(grown["resident_kb"] - settled["resident_kb"], 32 << 10)

    def test_a_wire_that_is_pulled_costs_both_sides_the_deadline_and_the_next_publish_works(self):
        # Over shared memory the frames arrive all the same: only the seal and the decision have no way.
        for transport in ("grpc", "shm"):
            with self.subTest(transport):
                settled = self.engine.census()
                publisher, watch = self.publish_caught_receiving(transport)

                self.link.down()

                try:
                    self.assert_lost(publisher, watch)
                finally:
                    self.link.up()
        self.assert_next_commits(settled)

    def test_a_route_into_nowhere_is_no_different(self):
        settled = self.engine.census()
        publisher, watch = self.publish_caught_receiving("grpc")

        self.link.blackhole()

        self.assert_lost(publisher, watch)
        self.link.heal()
        self.assert_next_commits(settled)

    def test_a_wire_that_comes_back_in_time_costs_nothing_but_time(self):
        publisher, watch = self.publish_caught_receiving("grpc", deadline="60s")
        # A route that is dialled while there is no wire finds no way at once.
        while self.status()["session"]["received_bytes"] == 0:
            pass

        self.link.down()
        self.assertEqual(self.status()["session"]["state"], "receiving")
        self.link.up()

        ended = publisher.finish()
        self.assertEqual(ended.code, 0, ended)
        watch.until(lambda line: line["live"]["version"] == 1)

    def test_a_thin_wire_shows_how_far_a_publish_is_and_carries_it(self):
        self.link.limit("32mbit")
        publisher = self.begin_publish("--transport", "grpc")
        watch = self.far("watch", self.engine.address)
        watch.until(lambda line: (line["session"] or {}).get("state") == "receiving")

        seen = {received(self.status())}
        while len(seen) < 3:
            status = self.status()
            self.assertIsNotNone(status["session"], f"it was over after {sorted(seen)}")
            seen.add(received(status))

        self.assertTrue(all(0 <= count <= BYTES for count in seen), seen)
        ended = publisher.finish()
        self.assertEqual((ended.code, ended.object["transport"]), (0, "grpc"), ended)

    def test_ipv6_alone_is_enough(self):
        for host in (self.link.near, self.link.far):
            for address, device in (("127.0.0.1/8", "lo"), (None, "wire")):
                arguments = ["addr", "del", address] if address else ["-4", "addr", "flush"]
                subprocess.run(["ip", "-n", host, *arguments, "dev", device], check=True)
        engine = self.start_engine(
            checkpoint(), "--tp", 2, listen=f"[{self.link.FAR_6}]:0", before=network.enter(self.link.far)
        )

        for version, transport in ((2, "grpc"), (3, "shm")):
            publish = ("publish", checkpoint(version=version), "--to", engine.address, "--transport", transport)
            ended = self.start(*publish, before=network.enter(self.link.near)).finish()
            self.assertEqual((ended.code, ended.object["transport"]), (0, transport), ended)
        for command in (("status", engine.address), ("generate", engine.address, "--tokens", "1,2")):
            ended = self.start(*command, before=network.enter(self.link.near)).finish()
            self.assertEqual(ended.code, 0, ended)

    def test_an_engine_on_every_address_is_sent_its_buckets_where_it_was_dialled(self):
        """C-037, C-038. It names no address and no card; the route to the address that was dialled does."""
        engine = self.start_engine(checkpoint(), listen="0.0.0.0:0", before=network.enter(self.link.far))
        address = engine.address.replace("0.0.0.0", self.link.FAR)

        publish = ("publish", checkpoint(version=2), "--to", address, "--transport", "grpc")
        ended = self.start(*publish, before=network.enter(self.link.near)).finish()

        self.assertEqual((ended.code, ended.object["transport"]), (0, "grpc"), ended)
        self.assertEqual(ended.object["replicas"][0]["address"], address)

    def test_an_engine_that_others_cannot_dial_does_not_join_a_fleet_of_another_host(self):
        """C-037."""
        publisher = self.start("publish", checkpoint(version=2), "--serve", "--run", "r", "--listen", f"{self.link.NEAR}:0",
                               before=network.enter(self.link.near))  # fmt: skip
        fleet = publisher.until(lambda event: event.get("event") == "listening")["address"]

        for listen in ("127.0.0.1:0", "127.0.1.1:0", "0:0", "[::0]:0"):
            with self.subTest(listen):
                ended = self.far("engine", checkpoint(), "--listen", listen, "--join", fleet).finish()

                self.assert_fails(ended, 1, "bad_address")
                self.assertIn("--advertise", ended.error["message"])


class Ipv6Test(EndToEndTest):
    def test_every_command_takes_an_ipv6_address(self):
        engine = self.start_engine(checkpoint(), listen="[::1]:0")
        self.assertRegex(engine.address, r"^\[::1\]:\d+$")

        for transport in ("shm", "grpc"):
            report = self.publish_ok(checkpoint(version=2), engine, arguments=("--transport", transport))
            self.assertEqual(report["replicas"][0]["address"], engine.address)
        self.generate(engine, [1, 2, 3])
        self.assertEqual(engine.status()["live"]["version"], 2)
        self.assertEqual(self.run_ok("rollback", engine.address).object["version"], 1)


class SlowProxyTest(EndToEndTest):
    """Control goes through the proxy; frames go straight to where the engine says."""

    def setUp(self):
        super().setUp()
        self.engine = self.start_engine(large(1))
        self.proxy = network.SlowProxy(self.engine.address, delay_s=0.03)
        self.addCleanup(self.proxy.close)

    def publish_through(self, *arguments):
        return self.start("publish", large(2), "--to", self.proxy.address, *arguments)

    def test_a_peer_that_is_far_away_gets_its_version(self):
        ended = self.publish_through().finish()

        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(self.engine.status()["live"]["digest"], ended.object["version_digest"])
        self.assertGreater(self.proxy.passed_bytes, 10_000, "offer, plan and manifest")

    def test_a_connection_that_is_cut_is_lost_at_once_on_both_sides(self):
        watch = self.start("watch", self.engine.address)
        watch.next()
        publisher = self.publish_through("--max-rate", SLOW)
        watch.until(lambda line: (line["session"] or {}).get("state") == "receiving")

        self.proxy.cut()

        ended = publisher.finish(20)
        self.assert_fails(ended, 4, "peer_lost")
        self.assertEqual(ended.error["peer"], self.proxy.address)
        over = watch.until(lambda line: line["session"] is None)
        self.assertEqual((over["live"]["version"], over["last_error"]["reason"]), (0, "peer_lost"))
        self.assertEqual(self.publish_through().finish().code, 0)


class TakenPortTest(EndToEndTest):
    def setUp(self):
        super().setUp()
        self.engine = self.start_engine(checkpoint())
        self.address = self.engine.address
        self.engine.kill()

    def publish_to_whoever_is_there(self):
        return run("publish", checkpoint(version=2), "--to", self.address, "--deadline", "1s", env=self.env)

    def test_a_stranger_at_the_engines_port_is_told_from_an_engine(self):
        host, _, port = self.address.rpartition(":")
        with socket.create_server((host, int(port))):
            silent = self.publish_to_whoever_is_there()

        self.assertIn((silent.code, silent.error["reason"]), ((1, "deadline"), (4, "peer_unreachable")), silent)
        self.assertEqual((silent.error["peer"], silent.error["phase"]), (self.address, "connect"))

    def test_an_engine_of_another_model_at_that_port_refuses(self):
        other = self.start_engine(checkpoint("tied"), listen=self.address)

        ended = self.publish_to_whoever_is_there()

        self.assert_fails(ended, 1, "wrong_model")
        self.assertEqual(other.status()["live"]["version"], 0)

    def test_an_engine_cannot_take_the_port_of_another_and_does_not_disturb_it(self):
        """C-035."""
        first = self.start_engine(checkpoint(), listen=self.address)

        second = run("engine", checkpoint(), "--listen", self.address, env=self.env)

        self.assert_fails(second, 1, "address_in_use")
        self.assertIn(self.address, second.error["message"])
        self.publish_ok(checkpoint(version=2), first)
        self.assertEqual(self.stop(first, signal.SIGTERM).code, 0)


if __name__ == "__main__":
    unittest.main()
