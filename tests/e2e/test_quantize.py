"""Quantised checkpoints and artifacts: `shard --quantize`, the way back, and what is refused."""

import json
import pathlib
import shutil
import struct
import tempfile
import unittest

from bascule_program import EndToEndTest, run, scratch
import digest_oracle
import fixtures
import fp8_oracle
import quant_oracle
import safetensors_io

# Heads and ffn of whole blocks for up to four ranks; the hidden size ends inside one.
SPEC = fixtures.Spec(layers=1, hidden=192, heads=4, kv_heads=2, head_dim=128, ffn=512)
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def made(dtype="BF16"):
    path = scratch() / f"to-quantize-{dtype}"
    if not path.exists():
        fixtures.write_checkpoint(path, SPEC, 1, "hash", dtype)
    return path


def is_linear(name, _):
    return name.endswith(".weight") and name.split(".")[-2] in LINEAR


def bits(tensors):
    return {name: (dtype, list(shape), bytes(data)) for name, (dtype, shape, data) in tensors.items()}


def expected():
    """The tensors of made(), quantised by the oracle."""
    if not hasattr(expected, "tensors"):
        expected.tensors = fp8_oracle.quantised_tensors(safetensors_io.read_checkpoint(made()), is_linear)
    return expected.tensors


class QuantizeTest(EndToEndTest):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="bascule_quantize_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def quantized(self, path, ranks, *arguments):
        out = self.folder / f"artifact-{ranks}"
        self.run_ok("shard", path, "--tp", ranks, "--out", out, "--quantize", "fp8-block", *arguments)
        return out

    def assert_refused(self, reason, path, ranks, *arguments):
        out = self.folder / "refused"
        ended = run("shard", path, "--tp", ranks, "--out", out, "--quantize", "fp8-block", *arguments)
        self.assert_fails(ended, 1, reason)
        self.assertFalse(out.exists())
        return ended.error["message"]

    def test_every_ranks_bytes_equal_an_independent_quantisation_for_every_size(self):
        tensors = {name: safetensors_io.Tensor(*tensor) for name, tensor in expected().items()}
        for ranks in (1, 2, 4):
            oracle = quant_oracle.Oracle(tensors, safetensors_io.read_config(made()), ranks)

            artifact = self.quantized(made(), ranks)

            for rank in range(ranks):
                with self.subTest(ranks=ranks, rank=rank):
                    held, _ = safetensors_io.read_file(artifact / f"rank-{rank}.safetensors")
                    self.assertEqual(bits(held), bits(oracle.rank(rank)))

    def test_the_digest_is_that_of_the_quantised_tensors_and_the_sources_is_there_too(self):
        quantised = {name: safetensors_io.Tensor(*tensor) for name, tensor in expected().items()}
        wanted, _ = digest_oracle.digests(quantised, {})
        source = digest_oracle.version_digest(made())

        for ranks in (1, 2):
            digest = self.run_ok("digest", self.quantized(made(), ranks)).object
            self.assertEqual(digest, {"version_digest": wanted, "source_version_digest": source})

    def test_the_way_back_is_a_quantised_checkpoint_that_is_cut_like_any_other(self):
        artifact = self.quantized(made(), 2)
        back = self.folder / "back"

        self.run_ok("unshard", artifact, "--out", back)

        tensors = {name: tuple(tensor) for name, tensor in safetensors_io.read_checkpoint(back).items()}
        self.assertEqual(bits(tensors), bits(expected()))
        config = safetensors_io.read_config(back)
        self.assertEqual(config.pop("quantization_config")["weight_block_size"], [128, 128])
        self.assertEqual(config, safetensors_io.read_config(made()))
        self.assertTrue(self.run_ok("verify", artifact, back).object["equal"])
        again = self.folder / "again"
        self.run_ok("shard", back, "--tp", 2, "--out", again)
        for rank in range(2):
            one, two = (path / f"rank-{rank}.safetensors" for path in (artifact, again))
            self.assertEqual(one.read_bytes(), two.read_bytes())

    def test_scales_keep_their_type_whatever_the_model_is_wanted_in(self):
        artifact = self.quantized(made("F32"), 1, "--dtype", "bf16")

        tensors, _ = safetensors_io.read_file(artifact / "rank-0.safetensors")

        types = {name.rsplit(".", 1)[1]: tensor.dtype for name, tensor in tensors.items() if "_proj" in name}
        self.assertEqual(types, {"weight": "F8_E4M3", "weight_scale_inv": "F32"})
        self.assertEqual(tensors["model.norm.weight"].dtype, "BF16")

    def test_what_cannot_be_quantised_is_refused_by_name_and_nothing_is_left(self):
        small = self.folder / "small"
        fixtures.write_checkpoint(small, fixtures.DENSE, 1, "hash")
        nan = self.folder / "nan"
        shutil.copytree(made(), nan)
        self.put_nan(nan / "model.safetensors", "model.layers.0.mlp.up_proj.weight", 3)

        cut = self.assert_refused("quantization_block_cut", small, 2)
        self.assertIn("rows [0, 32) of 64 are rank 0's of 2, and cut a block of 128", cut)
        self.assertIn("up_proj.weight: row=0 column=3 is NaN", self.assert_refused("not_finite", nan, 1))
        self.assertIn("--dtype bf16", self.assert_refused("quantize_needs_bf16", made("F32"), 1))
        back = self.folder / "back"
        self.run_ok("unshard", self.quantized(made(), 1), "--out", back)
        self.assert_refused("already_quantized", back, 1)
        self.assertEqual(run("shard", made(), "--tp", 1, "--out", self.folder / "x", "--quantize", "int4").code, 2)

    @staticmethod
    def put_nan(path, name, element):
        data = bytearray(path.read_bytes())
        header_bytes = struct.unpack_from("<Q", data)[0]
        begin = json.loads(data[8 : 8 + header_bytes])[name]["data_offsets"][0]
        struct.pack_into("<H", data, 8 + header_bytes + begin + 2 * element, 0x7FC0)
        path.write_bytes(data)

    def test_two_scales_that_changed_places_are_found_by_name(self):
        """C-085. A rank's scales of gate, then up: types, shapes and the file's size agree."""
        source = self.folder / "source"
        fixtures.write_checkpoint(source, SPEC, 1, "normal")  # blocks whose largest values differ
        artifact = self.quantized(source, 2)
        path = artifact / "rank-1.safetensors"
        data = bytearray(path.read_bytes())
        header_bytes = struct.unpack_from("<Q", data)[0]
        entry = json.loads(data[8 : 8 + header_bytes])["model.layers.0.mlp.gate_up_proj.weight_scale_inv"]
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        half = (begin + end) // 2
        self.assertNotEqual(data[begin:half], data[half:end])
        data[begin:end] = data[half:end] + data[begin:half]
        path.write_bytes(data)

        ended = run("verify", artifact, self.quantized(source, 1))

        self.assertEqual(ended.code, 3, ended)
        found = {difference["tensor"] for difference in ended.objects[0]["differences"]}
        mlp = "model.layers.0.mlp."
        self.assertEqual(found, {mlp + "gate_proj.weight_scale_inv", mlp + "up_proj.weight_scale_inv"})
        self.assert_fails(run("unshard", artifact, "--out", self.folder / "back"), 3, "artifact_altered")

    def test_an_engine_says_that_it_does_not_decode_quantised_weights(self):
        ended = run("engine", self.quantized(made(), 1), "--listen", "127.0.0.1:0")

        self.assert_fails(ended, 1, "unsupported_quantization")


if __name__ == "__main__":
    unittest.main()
