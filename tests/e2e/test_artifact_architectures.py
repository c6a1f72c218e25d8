"""Artifacts of every architecture, beside what numpy cuts of the same checkpoint."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from bascule_program import SUPPORT, EndToEndTest, run, scratch
import safetensors_io
from safetensors_edit import OpenTensors

try:
    import architectures
except ImportError:  # numpy
    architectures = None

SIZES = (1, 2, 4, 8)


def bits(path):
    tensors = safetensors_io.read_checkpoint(path)
    return {name: (tensor.dtype, tuple(tensor.shape), bytes(tensor.data)) for name, tensor in tensors.items()}


@unittest.skipIf(architectures is None, "needs the Python package numpy")
class ArchitecturesTest(EndToEndTest):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="bascule_architectures_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def made(self, kind):
        path = scratch() / f"architecture-{kind}"
        if not path.exists():
            architectures.write_checkpoint(kind, path)
        return path

    def cut_by_oracle(self, path):
        out = self.folder / f"oracle-{path.name}"
        out.mkdir()
        sizes = ",".join(map(str, SIZES))
        subprocess.run([sys.executable, SUPPORT / "shard_oracle.py", path, out, "--tp", sizes], check=True)
        return out

    def test_every_rank_file_is_what_numpy_cuts_and_the_checkpoint_comes_back(self):
        for kind in architectures.KINDS:
            path = self.made(kind)
            wanted = self.cut_by_oracle(path)
            digest = self.run_ok("digest", path).object
            for ranks in SIZES:
                with self.subTest(kind, ranks=ranks):
                    out = self.folder / f"{kind}-{ranks}"
                    if (wanted / f"tp{ranks}-refused").exists():
                        self.assertEqual(run("shard", path, "--tp", ranks, "--out", out).code, 1)
                        self.assertFalse(out.exists())
                        continue
                    self.run_ok("shard", path, "--tp", ranks, "--out", out)
                    for rank in range(ranks):
                        self.assertEqual(
                            bits(out / f"rank-{rank}.safetensors"), bits(wanted / f"tp{ranks}-rank-{rank}.safetensors")
                        )
                    self.assertEqual(self.run_ok("digest", out).object, digest)
                    self.assert_comes_back(out, path)

    def assert_comes_back(self, artifact, path):
        back = artifact.with_name(artifact.name + "-back")
        self.run_ok("unshard", artifact, "--out", back)
        ignored = json.loads((artifact / "manifest.json").read_text())["source"]["ignored"]
        stored = bits(path)
        self.assertEqual(bits(back), {name: stored[name] for name in stored if name not in ignored})
        self.assertEqual((back / "config.json").read_bytes(), (path / "config.json").read_bytes())

    def test_two_experts_that_changed_places_are_found(self):
        path = self.made("mixtral")
        for tensor in ("w13_weight", "w2_weight"):
            with self.subTest(tensor):
                artifact = self.folder / tensor
                self.run_ok("shard", path, "--tp", 2, "--out", artifact)
                with OpenTensors(artifact / "rank-1.safetensors") as tensors:
                    name = next(name for name in tensors.names() if name.endswith(f"layers.1.mlp.experts.{tensor}")
                                or name.endswith(f"layers.1.block_sparse_moe.experts.{tensor}"))  # fmt: skip
                    tensors.swap_rows(name, 3, 5, 1)

                ended = run("verify", path, artifact)

                self.assertEqual(ended.code, 3, ended)
                changed = {difference["tensor"] for difference in ended.objects[0]["differences"]}
                self.assertEqual(len(changed), 4 if tensor == "w13_weight" else 2)
                self.assertTrue(all(".experts.3." in name or ".experts.5." in name for name in changed), changed)
                self.assert_fails(run("digest", artifact), 3, "artifact_altered")


if __name__ == "__main__":
    unittest.main()
