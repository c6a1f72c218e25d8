"""`--read` and `--drop-cache`: how a checkpoint comes from disk changes nothing but how it comes from disk."""

import os
import unittest

from bascule_program import EndToEndTest, checkpoint, run
import safetensors_io


def has_direct():
    """Whether the file system of the checkpoints has O_DIRECT; memory has none."""
    try:
        os.close(os.open(checkpoint() / "model.safetensors", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


STRATEGIES = ("auto", "mmap", "read") + (("direct",) if has_direct() else ())


def tensor_bytes(path):
    return sum(len(tensor.data) for tensor in safetensors_io.read_checkpoint(path).values())


class ReadingTest(EndToEndTest):
    def test_every_strategy_gives_the_same_digest(self):
        plain = self.run_ok("digest", checkpoint("tied-head")).object
        for strategy in STRATEGIES:
            for more in ((), ("--drop-cache",)):
                with self.subTest(strategy, more=more):
                    again = self.run_ok("digest", checkpoint("tied-head"), "--read", strategy, *more)

                    self.assertEqual(again.object, plain)

    def test_an_engine_reads_what_it_needs_once_and_says_how(self):
        dense = checkpoint()
        for strategy in STRATEGIES:
            with self.subTest(strategy):
                engine = self.start_engine(dense, "--read", strategy)

                ready = engine.ready
                self.assertEqual(ready["digest"], self.run_ok("digest", dense).object["version_digest"])
                read = ready["read"]
                self.assertEqual(read["logical_bytes"], tensor_bytes(dense))
                self.assertIn(read["strategy"], STRATEGIES[1:])
                if strategy in ("mmap", "read"):
                    self.assertEqual(read["strategy"], strategy)
                    self.assertEqual(read["read_bytes"], read["logical_bytes"])
                self.assertGreaterEqual(read["read_bytes"], read["logical_bytes"])

    def test_a_publish_takes_the_option_too(self):
        engine = self.start_engine(checkpoint())

        for number, strategy in enumerate(STRATEGIES):
            other = checkpoint(version=2 + number % 2)
            report = self.run_ok("publish", other, "--to", engine.address, "--read", strategy).object

            self.assertEqual(report["version_digest"], self.run_ok("digest", other).object["version_digest"])

    def test_another_strategy_is_wrong_usage(self):
        self.assert_fails(run("digest", checkpoint(), "--read", "floppy"), 2, "usage")


if __name__ == "__main__":
    unittest.main()
