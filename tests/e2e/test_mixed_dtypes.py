"""Checkpoints whose norms are fp32 beside bf16 weights: served as they are stored."""

import struct
import unittest

from bascule_program import EndToEndTest, run, scratch
import fixtures
import safetensors_io


def mixed():
    """The path of a dense checkpoint in BF16 whose norms are F32, with values that BF16 does not have."""
    path = scratch() / "mixed-dtypes"
    if path.exists():
        return path
    fixtures.write_checkpoint(path, fixtures.DENSE, 1, "hash")
    tensors = []
    for name, tensor in safetensors_io.read_checkpoint(path).items():
        if not fixtures.is_norm(name):
            tensors.append((name, *tensor))
            continue
        count = len(tensor.data) // 2
        values = [struct.unpack("<f", b"\0\0" + bytes(tensor.data[2 * i : 2 * i + 2]))[0] for i in range(count)]
        data = struct.pack(f"<{count}f", *(value * (1 + (i + 1) / 4096) for i, value in enumerate(values)))
        tensors.append((name, "F32", tensor.shape, data))
    (path / "model.safetensors").unlink()
    safetensors_io.write_file(path / "model.safetensors", tensors, {"format": "pt"})
    return path


class MixedDtypesTest(EndToEndTest):
    def answers(self, path, *arguments):
        engine = self.start_engine(path, *arguments)
        answers = [self.generate(engine, prompt, "--max-new", 8) for prompt in ([1, 2, 3], [7], [5, 4] * 9)]
        return [(answer["tokens"], answer["logprobs"]) for answer in answers]

    def test_norms_in_fp32_compute_what_the_model_in_fp32_does(self):
        """Widening bf16 is exact, so the two engines read the same numbers."""
        wanted = self.answers(mixed(), "--dtype", "fp32")

        self.assertEqual(self.answers(mixed()), wanted)
        self.assertNotEqual(self.answers(mixed(), "--dtype", "bf16"), wanted)
        artifact = scratch() / "mixed-artifact"
        self.run_ok("shard", mixed(), "--tp", 2, "--out", artifact)
        self.assertEqual(self.answers(artifact), self.answers(mixed(), "--tp", 2))

    def test_an_update_keeps_the_types(self):
        engine = self.start_engine(mixed())

        report = self.publish_ok(mixed(), engine)

        self.assertEqual(report["replicas"][0]["state"], "committed")
        self.assertTrue(run("verify", mixed(), engine.address).object["equal"])


if __name__ == "__main__":
    unittest.main()
