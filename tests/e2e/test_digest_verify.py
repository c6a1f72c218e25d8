"""`digest` and `verify` against the oracle in Python, on checkpoints written by plain Python."""

import json
import shutil
import unittest

from bascule_program import EndToEndTest, checkpoint, run, scratch
import digest_oracle
import safetensors_io


def oracle(path, dtype="keep"):
    return digest_oracle.digests(safetensors_io.read_checkpoint(path), safetensors_io.read_config(path), dtype)


class DigestTest(EndToEndTest):
    def assert_equals_oracle(self, path, dtype):
        version_digest, tensors = oracle(path, dtype)

        digest = self.run_ok("digest", path, "--tensors", "--dtype", dtype).object

        self.assertEqual(digest, {"version_digest": version_digest, "tensors": tensors})

    def test_the_digest_of_every_kind_of_checkpoint_equals_the_oracle(self):
        for kind in ("dense", "tied", "tied-head", "bias", "qk-norm"):
            with self.subTest(kind):
                self.assert_equals_oracle(checkpoint(kind), "keep")

    def test_conversion_in_either_direction_equals_the_oracle(self):
        for stored in ("BF16", "F32"):
            for dtype in ("bf16", "fp32"):
                with self.subTest(stored=stored, dtype=dtype):
                    self.assert_equals_oracle(checkpoint(dtype=stored), dtype)

    def test_a_tied_head_that_is_stored_is_not_a_tensor_of_its_own(self):
        without, with_head = (self.run_ok("digest", checkpoint(kind)).object for kind in ("tied", "tied-head"))

        self.assertEqual(without, with_head)

    def test_a_single_file_has_the_digest_of_its_directory(self):
        directory = checkpoint()

        self.assertEqual(
            self.run_ok("digest", directory / "model.safetensors").object, self.run_ok("digest", directory).object
        )

    def test_without_tensors_only_the_version_digest_is_printed(self):
        self.assertEqual(list(self.run_ok("digest", checkpoint()).object), ["version_digest"])


class VerifyTest(EndToEndTest):
    def test_equal_checkpoints_are_equal(self):
        self.assertEqual(
            self.run_ok("verify", checkpoint("tied"), checkpoint("tied-head")).object,
            {"equal": True, "differences": []},
        )

    def test_a_checkpoint_equals_itself_rounded(self):
        rounded = scratch() / "rounded"
        if not rounded.exists():
            rounded.mkdir()
            exact = checkpoint(dtype="F32")
            shutil.copy(exact / "config.json", rounded)
            tensors = safetensors_io.read_checkpoint(exact)
            safetensors_io.write_file(
                rounded / "model.safetensors",
                [
                    (name, *_rounded(tensors[name]))
                    for name in sorted(tensors)
                ],
                {"format": "pt"},
            )

        for pair in ((checkpoint(dtype="F32"), rounded), (rounded, checkpoint(dtype="F32"))):
            self.assertTrue(self.run_ok("verify", *pair).object["equal"])

    def test_one_changed_byte_is_one_difference(self):
        changed = scratch() / "changed"
        shutil.copytree(checkpoint(), changed, dirs_exist_ok=True)
        file = changed / "model.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        last = max(safetensors_io.read_checkpoint(changed))

        ended = run("verify", checkpoint(), changed)

        self.assertEqual(ended.code, 3, ended)
        self.assertEqual(
            ended.objects[0], {"equal": False, "differences": [{"tensor": last, "why": "digest differs"}]}
        )
        self.assertEqual(ended.error["reason"], "content_differs")

    def test_a_missing_tensor_and_another_shape_are_named(self):
        fewer = scratch() / "fewer"
        fewer.mkdir(exist_ok=True)
        tensors = safetensors_io.read_checkpoint(checkpoint())
        head = tensors.pop("lm_head.weight")
        norm = tensors["model.norm.weight"]
        tensors["model.norm.weight"] = safetensors_io.Tensor(norm.dtype, (1, *norm.shape), norm.data)
        self.assertIsNotNone(head)
        safetensors_io.write_file(
            fewer / "model.safetensors", [(name, *tensors[name]) for name in sorted(tensors)], {}
        )

        ended = run("verify", checkpoint(), fewer / "model.safetensors")

        self.assertEqual(ended.code, 3, ended)
        self.assertEqual([d["tensor"] for d in ended.objects[0]["differences"]], ["lm_head.weight", "model.norm.weight"])

    def test_a_running_engine_holds_what_its_checkpoint_does(self):
        for stored in ("BF16", "F32"):
            for dtype in ("keep", "bf16", "fp32"):
                with self.subTest(stored=stored, dtype=dtype):
                    engine = self.start_engine(checkpoint(dtype=stored), "--dtype", dtype)

                    self.assertTrue(self.run_ok("verify", checkpoint(dtype=stored), engine.address).object["equal"])
                    self.assertTrue(self.run_ok("verify", engine.address, engine.address).object["equal"])

                    ended = run("verify", engine.address, checkpoint(version=2))
                    self.assertEqual(ended.code, 3, ended)
                    self.assertEqual(
                        {d["tensor"] for d in ended.objects[0]["differences"]}, set(oracle(checkpoint(version=2))[1])
                    )
                    engine.kill()


def _rounded(tensor):
    dtype, data = digest_oracle.convert(tensor.dtype, tensor.data, "bf16")
    return dtype, tensor.shape, data


class JsonTest(EndToEndTest):
    def test_stdout_has_one_object_and_nothing_else(self):
        lines = self.run_ok("digest", checkpoint()).stdout.splitlines()

        self.assertEqual(len(lines), 1)
        self.assertIsInstance(json.loads(lines[0]), dict)


if __name__ == "__main__":
    unittest.main()
