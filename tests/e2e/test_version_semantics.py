"""Cases of stale caches and forgotten labels, from outside: what is reused, aborted and reported when versions change."""

import itertools
import unittest

from bascule_program import EndToEndTest, checkpoint

PROMPT = [(7 * place + 3) % 128 for place in range(64)]  # four pages of key/value state


class StalePrefixTest(EndToEndTest):
    def test_c001_no_prefix_of_the_old_version_is_reused_and_the_new_one_shares_its_own(self):
        engine = self.start_engine(checkpoint())
        self.generate(engine, PROMPT)
        self.assertEqual(self.ask(engine, PROMPT)["prompt"]["shared_tokens"], len(PROMPT) - 1)
        self.publish_ok(checkpoint(version=2), engine)
        cold = self.start_engine(checkpoint(version=2))

        for prompt, shared in ((PROMPT, 0), ([*PROMPT, 99, 98], len(PROMPT)), (PROMPT, len(PROMPT) - 1)):
            answer = self.ask(engine, prompt)

            self.assertEqual(answer["prompt"], {"shared_tokens": shared, "version": 1, "kv_epoch": 1})
            alone = self.generate(cold, prompt)
            self.assertEqual(answer["tokens"], alone["tokens"])
            self.assertEqual(answer["logprobs"], alone["logprobs"])

    def test_a_rollback_finds_no_prefix_of_the_version_that_it_left_nor_of_its_own_earlier_life(self):
        engine = self.start_engine(checkpoint())
        first = self.ask(engine, PROMPT)
        self.publish_ok(checkpoint(version=2), engine)
        self.ask(engine, PROMPT)

        self.run_ok("rollback", engine.address)

        again = self.ask(engine, PROMPT)
        self.assertEqual(again["prompt"], {"shared_tokens": 0, "version": 0, "kv_epoch": 0})
        self.assertEqual((again["tokens"], again["logprobs"]), (first["tokens"], first["logprobs"]))

    def ask(self, engine, prompt):
        return self.generate(engine, prompt, "--details")


class LabelTest(EndToEndTest):
    def test_c007_a_new_version_aborts_none_of_sixteen_requests_unless_they_ask_for_that(self):
        size = 8_000_000  # so that all of them decode for longer than a publish takes
        for policy, counted in (("keep", "kept"), (None, "recomputed")):
            with self.subTest(policy):
                engine = self.start_engine(checkpoint(size=size))
                client = self.start(
                    "generate", engine.address, "--tokens", "1,2", "--samples", 16, "--max-new", 800, "--stream",
                    *(("--kv", policy) if policy else ()),
                )  # fmt: skip
                client.next()

                counts = self.publish_ok(checkpoint(size=size, version=2), engine)["replicas"][0]["kv"]

                answers = client.finish().objects[-16:]
                self.assertEqual(counts["aborted"], 0)
                self.assertGreater(counts[counted], 0)
                self.assertEqual({answer["finish"] for answer in answers}, {"length"})
                engine.kill()

    def test_c008_every_route_records_version_and_digest_in_every_order(self):
        source = checkpoint(version=2)
        engine = self.start_engine(checkpoint(), "--allow-root", source.parent)
        digest = self.run_ok("digest", source).object["version_digest"]
        routes = {
            "disk": (source.name, ("--from-disk",)),
            "shm": (source, ("--transport", "shm")),
            "grpc": (source, ("--transport", "grpc")),
        }
        wanted = 0
        for order in itertools.permutations(routes):
            for route in order:
                with self.subTest(order=order, route=route):
                    path, arguments = routes[route]
                    wanted += 1

                    published = self.publish_ok(path, engine, arguments=arguments)

                    live = engine.status()["live"]
                    self.assertEqual((published["version"], live["version"]), (wanted, wanted))
                    self.assertEqual(live["digest"], digest)


if __name__ == "__main__":
    unittest.main()
