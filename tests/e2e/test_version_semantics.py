"""Cases of stale caches and forgotten labels, from outside: what is reused, aborted and reported when versions change."""

import itertools
import shutil
import struct
import unittest

from bascule_program import EndToEndTest, checkpoint, scratch
import digest_oracle
import safetensors_io

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


class RoundingTest(EndToEndTest):
    NAME = "model.norm.weight"
    # What a master in fp32 holds, and the same rounded to the nearest bf16, to even where two are as near.
    MASTERS = [1.00390625, 1.01171875, 3.4e38, 1e-40, -0.0, float("inf"), 65504.0]
    ROUNDED = [0x3F80, 0x3F82, 0x7F80, 0x0001, 0x8000, 0x7F80, 0x4780]
    SIGNALLING_NAN, QUIET_NAN = 0x7F800001, 0x7FC0

    def write(self, name, dtype, head):
        """A checkpoint of `dtype` whose last norm begins with `head`."""
        rows = []
        for key, tensor in sorted(safetensors_io.read_checkpoint(checkpoint(dtype="F32")).items()):
            stored, data = digest_oracle.convert(tensor.dtype, tensor.data, dtype)
            rows.append((key, stored, tensor.shape, head + bytes(data)[len(head) :] if key == self.NAME else data))
        out = scratch() / name
        out.mkdir()
        shutil.copy(checkpoint(dtype="F32") / "config.json", out)
        safetensors_io.write_file(out / "model.safetensors", rows)
        return out

    def test_c074_masters_are_rounded_alike_on_every_route_and_as_ieee_has_it(self):
        masters = struct.pack("<7f", *self.MASTERS) + struct.pack("<I", self.SIGNALLING_NAN)
        source = self.write("masters", "keep", masters)
        rounded = self.write("rounded", "bf16", struct.pack("<8H", *self.ROUNDED, self.QUIET_NAN))
        digest = digest_oracle.version_digest(rounded)
        engine = self.start_engine(checkpoint(), "--tp", 2, "--allow-root", source.parent)

        for path, arguments in (
            (source.name, ("--from-disk",)),
            (source, ("--transport", "shm")),
            (source, ("--transport", "grpc")),
            (source, ("--transport", "shm", "--trainer-ranks", 3)),
        ):
            with self.subTest(arguments):
                self.publish_ok(path, engine, arguments=arguments)
                self.assertEqual(engine.status()["live"]["digest"], digest)
        self.run_ok("shard", source, "--tp", 2, "--dtype", "bf16", "--out", scratch() / "sharded")
        self.assertEqual(self.run_ok("digest", scratch() / "sharded").object["version_digest"], digest)


if __name__ == "__main__":
    unittest.main()
