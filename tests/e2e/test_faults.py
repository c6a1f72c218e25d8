"""Processes that are killed or stopped in the middle of a publish: nothing live changes, all memory comes back."""

import signal
import unittest

from bascule_program import EndToEndTest, checkpoint, run
import digest_oracle

BYTES = 40_000_000
# Holds a publish under way for so long that it is seen there: five seconds, or two.
SLOW, LESS_SLOW = "8MB", "20MB"


def large(version):
    return checkpoint(size=BYTES, version=version)


class FaultTest(EndToEndTest):
    def publish_caught_in(self, state, engine, *arguments, rate=SLOW):
        """A publish that the engine sees in `state`, and the watch that saw it."""
        watch = self.start("watch", engine.address)
        watch.next()
        publisher = self.start("publish", large(2), "--to", engine.address, "--max-rate", rate, *arguments)
        watch.until(lambda line: (line["session"] or {}).get("state") == state)
        return publisher, watch

    def until_session_is_over(self, watch):
        return watch.until(lambda line: line["session"] is None)


class KilledPublisherTest(FaultTest):
    def test_the_old_version_serves_and_the_next_publish_works(self):
        """C-010."""
        for transport in ("shm", "grpc"):
            with self.subTest(transport):
                engine = self.start_engine(large(1))
                before = self.generate(engine, [1, 2, 3], "--max-new", 8)
                self.publish_ok(large(1), engine, arguments=("--transport", transport))
                settled = engine.census()
                publisher, watch = self.publish_caught_in("receiving", engine, "--transport", transport)

                publisher.send(signal.SIGKILL)

                publisher.finish()
                line = self.until_session_is_over(watch)
                watch.kill()
                self.assertEqual(line["live"]["version"], 1)
                after = self.generate(engine, [1, 2, 3], "--max-new", 8)
                self.assertEqual(after["tokens"], before["tokens"])
                self.assertEqual(after["logprobs"], before["logprobs"])
                self.assertTrue(self.run_ok("verify", large(1), engine.address).object["equal"])
                self.publish_ok(large(2), engine)
                self.assertTrue(self.run_ok("verify", large(2), engine.address).object["equal"])
                grown = engine.census()
                self.assertLess(grown["descriptors"] - settled["descriptors"], 4)
                self.assertLess(grown["resident_kb"] - settled["resident_kb"], 32 * 1024)
                engine.kill()

    def test_the_history_says_why_the_session_ended(self):
        engine = self.start_engine(large(1))
        publisher, watch = self.publish_caught_in("receiving", engine)

        publisher.send(signal.SIGKILL)

        self.until_session_is_over(watch)
        row = self.run_ok("versions", engine.address).objects[-1]
        self.assertEqual((row["version"], row["outcome"], row["reason"]), (1, "aborted", "peer_lost"))
        self.assertEqual(engine.status()["last_error"]["reason"], "peer_lost")

    def test_with_two_slots_the_way_back_is_given_up_and_with_three_it_stays(self):
        for slots, kept in ((2, None), (3, 0)):
            with self.subTest(slots=slots):
                engine = self.start_engine(large(1), "--slots", slots)
                self.publish_ok(large(2), engine)
                publisher, watch = self.publish_caught_in("receiving", engine)

                publisher.send(signal.SIGKILL)

                line = self.until_session_is_over(watch)
                self.assertEqual(line["live"]["version"], 1)
                self.assertEqual((line["kept"] or {}).get("version"), kept)
                engine.kill()

    def test_an_interrupted_publish_tells_the_engine_at_once(self):
        engine = self.start_engine(large(1))
        publisher, watch = self.publish_caught_in("receiving", engine)

        publisher.send(signal.SIGINT)

        ended = publisher.finish(15)
        self.assertEqual(ended.code, 130, ended)
        line = self.until_session_is_over(watch)
        self.assertEqual((line["live"]["version"], line["last_error"]["reason"]), (0, "cancelled"))


class BusyTest(FaultTest):
    def test_a_second_publisher_is_refused_while_one_is_at_work(self):
        engine = self.start_engine(large(1))
        first, watch = self.publish_caught_in("receiving", engine)
        first.send(signal.SIGSTOP)

        second = self.publish(large(2), engine)

        first.send(signal.SIGCONT)
        self.assert_fails(second, 1, "publisher_busy")
        self.assertEqual(second.error["phase"], "offer")
        self.assertEqual(first.finish().code, 0)
        watch.until(lambda line: line["live"]["version"] == 1)

    def test_a_publisher_that_stops_for_good_ends_at_its_deadline(self):
        engine = self.start_engine(large(1))
        publisher, watch = self.publish_caught_in("receiving", engine, "--deadline", "4s", rate=LESS_SLOW)

        publisher.send(signal.SIGSTOP)

        line = self.until_session_is_over(watch)
        self.assertEqual((line["live"]["version"], line["last_error"]["reason"]), (0, "deadline"))
        publisher.send(signal.SIGKILL)
        self.publish_ok(large(2), engine)


class KilledEngineTest(FaultTest):
    def test_the_publisher_ends_in_time_and_names_peer_and_phase(self):
        """C-029."""
        for transport in ("shm", "grpc"):
            with self.subTest(transport):
                engine = self.start_engine(large(1))
                publisher, _ = self.publish_caught_in("receiving", engine, "--transport", transport)

                engine.send(signal.SIGKILL)

                ended = publisher.finish(20)
                self.assertIn(ended.code, (1, 4), ended)
                self.assertEqual(ended.error["peer"], engine.address)
                self.assertIn(ended.error["phase"], ("offer", "send", "seal", "verify", "flip"))
                self.assertEqual(ended.objects[0]["replicas"][0]["state"], "aborted")

    def test_an_engine_that_stops_answering_costs_no_more_than_the_deadline(self):
        """C-029."""
        engine = self.start_engine(large(1))
        publisher, _ = self.publish_caught_in("receiving", engine, "--deadline", "4s", rate=LESS_SLOW)

        engine.send(signal.SIGSTOP)

        ended = publisher.finish(20)
        self.assertEqual(ended.code, 1, ended)
        self.assertEqual(ended.error["reason"], "deadline")
        engine.send(signal.SIGCONT)
        self.assertEqual(engine.status()["live"]["version"], 0)
        self.publish_ok(large(2), engine)

    def test_it_can_start_again_at_the_same_address(self):
        """C-035."""
        engine = self.start_engine(checkpoint())
        address = engine.address
        engine.kill()

        again = self.start_engine(checkpoint(), listen=address)

        self.assertEqual(again.address, address)
        self.publish_ok(checkpoint(version=2), again)
        self.assertEqual(again.status()["live"]["digest"], digest_oracle.version_digest(checkpoint(version=2)))

    def test_its_sockets_do_not_stay_for_the_next_one(self):
        """C-100."""
        address = f"unix:{self.runtime}/engine.socket"
        self.start_engine(checkpoint(), listen=address).kill()

        again = self.start_engine(checkpoint(), listen=address)

        self.assertTrue(again.status()["ready"])
        self.assertEqual(run("status", address).code, 0)
        self.assertEqual(len(list(self.runtime.rglob("*.sock"))), 1, "what the killed one left is gone")


if __name__ == "__main__":
    unittest.main()
