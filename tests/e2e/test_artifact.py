"""Artifacts: a checkpoint cut for an engine, and every way to get it wrong without a shape that disagrees."""

import json
import pathlib
import shutil
import signal
import tempfile
import unittest

from bascule_program import EndToEndTest, checkpoint, run, scratch
import digest_oracle
import fixtures
import safetensors_io
from safetensors_edit import OpenTensors

# Eight query heads, so that every size up to 8 cuts them; one, two and eight KV heads; a vocabulary that needs padding.
SPECS = {
    "kv2": fixtures.Spec(hidden=64, heads=8, kv_heads=2, head_dim=16, ffn=96),
    "kv8": fixtures.Spec(hidden=48, heads=8, kv_heads=8, head_dim=8, ffn=64),
    "kv1-tied": fixtures.Spec(hidden=64, heads=8, kv_heads=1, head_dim=16, ffn=96, tied=True),
    "qk-norm": fixtures.Spec(
        "qwen3", hidden=64, heads=8, kv_heads=2, head_dim=16, ffn=96, tied=True, head_tensor=False, qk_norm=True
    ),
}


def made(name, dtype="BF16", version=1):
    """The path of a checkpoint with the sizes of SPECS[name]."""
    path = scratch() / f"cut-{name}-{dtype}-{version}"
    if not path.exists():
        fixtures.write_checkpoint(path, SPECS[name], version, "hash", dtype)
    return path


def bits(tensors):
    return {name: (tensor.dtype, tuple(tensor.shape), bytes(tensor.data)) for name, tensor in tensors.items()}


class ArtifactTest(EndToEndTest):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="bascule_artifact_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def shard(self, path, ranks, *arguments, name="artifact"):
        out = self.folder / name
        self.run_ok("shard", path, "--tp", ranks, "--out", out, *arguments)
        return out

    def left(self):
        return sorted(path.name for path in self.folder.iterdir())


class RoundTripTest(ArtifactTest):
    def test_every_size_gives_the_checkpoints_digest_and_the_checkpoint_back_to_the_bit(self):
        for kind in SPECS:
            wanted = digest_oracle.version_digest(made(kind))
            for ranks in (1, 2, 4, 8):
                with self.subTest(kind, ranks=ranks):
                    out = self.folder / f"{kind}-{ranks}"

                    report = self.run_ok("shard", made(kind), "--tp", ranks, "--out", out).object

                    self.assertEqual(report["version_digest"], wanted)
                    self.assertEqual(list(report), ["ranks", "version_digest"])
                    self.assertEqual([rank["rank"] for rank in report["ranks"]], list(range(ranks)))
                    for rank in report["ranks"]:
                        self.assertEqual(rank["bytes"], (out / rank["file"]).stat().st_size)
                    self.assertEqual(self.run_ok("digest", out).object, {"version_digest": wanted})
                    self.assert_comes_back(out, made(kind))

    def assert_comes_back(self, artifact, path):
        back = artifact.with_name(artifact.name + "-back")
        report = self.run_ok("unshard", artifact, "--out", back).object
        tensors = safetensors_io.read_checkpoint(path)
        self.assertEqual(bits(safetensors_io.read_checkpoint(back)), bits(tensors))
        self.assertEqual((back / "config.json").read_bytes(), (path / "config.json").read_bytes())
        self.assertEqual(report, {"tensors": len(tensors), "version_digest": digest_oracle.version_digest(path)})

    def test_a_checkpoint_in_several_files_comes_back_as_one(self):
        path = self.folder / "sharded"
        fixtures.write_checkpoint(path, SPECS["kv2"], 1, "hash", shard_count=3)

        self.assert_comes_back(self.shard(path, 2), path)

    def test_the_digests_of_tensors_and_of_other_types_are_those_of_the_checkpoint(self):
        for stored, dtype in (("BF16", "keep"), ("F32", "keep"), ("F32", "bf16"), ("BF16", "fp32")):
            with self.subTest(stored=stored, dtype=dtype):
                path = made("kv2", stored)
                artifact = self.shard(path, 4, "--dtype", dtype, name=f"{stored}-{dtype}")
                version_digest, tensors = digest_oracle.digests(
                    safetensors_io.read_checkpoint(path), safetensors_io.read_config(path), dtype
                )

                digest = self.run_ok("digest", artifact, "--tensors").object

                self.assertEqual(digest, {"version_digest": version_digest, "tensors": tensors})
                self.assertTrue(self.run_ok("verify", artifact, path).object["equal"])
                self.assertTrue(self.run_ok("verify", path, artifact).object["equal"])
        self.assertEqual(
            self.run_ok("digest", self.folder / "F32-keep", "--dtype", "bf16").object,
            self.run_ok("digest", self.folder / "F32-bf16").object,
        )

    def test_two_sizes_of_one_checkpoint_are_equal_and_another_version_is_not(self):
        two, eight = self.shard(made("kv2"), 2, name="two"), self.shard(made("kv2"), 8, name="eight")
        other = self.shard(made("kv2", version=2), 2, name="other")

        self.assertTrue(self.run_ok("verify", two, eight).object["equal"])
        ended = run("verify", two, other)

        self.assertEqual(ended.code, 3, ended)
        self.assertEqual(
            {difference["tensor"] for difference in ended.objects[0]["differences"]},
            set(safetensors_io.read_checkpoint(made("kv2"))),
        )

    def test_the_manifest_says_what_the_artifact_is_for_and_where_it_comes_from(self):
        path = self.folder / "models--x--y" / "snapshots" / ("0123456789abcdef" * 3)[:40]
        fixtures.write_checkpoint(path, SPECS["kv2"], 1)
        (path / "tokenizer.json").write_text("{}")

        manifest = json.loads((self.shard(path, 2) / "manifest.json").read_text())

        self.assertEqual(manifest["fingerprint"]["parallel"], {"tensor": 2, "pipeline": 1, "expert_parallel": False})
        self.assertEqual(manifest["fingerprint"]["dtype"], "BF16")
        self.assertEqual(manifest["fingerprint"]["quantization"], "none")
        self.assertIn("LlamaForCausalLM", manifest["fingerprint"]["architecture"])
        self.assertEqual(manifest["origin"]["model_revision"], path.name)
        self.assertRegex(manifest["origin"]["tokenizer_revision"], "^[0-9a-f]{64}$")
        self.assertEqual(manifest["config"], (path / "config.json").read_text())
        self.assertEqual(manifest["version_digest"], digest_oracle.version_digest(path))


class RefusalTest(ArtifactTest):
    def test_a_checkpoint_that_does_not_fit_fails_with_its_numbers_and_leaves_nothing(self):
        cases = {"three ranks": ("kv2", 3, "8"), "sixteen ranks": ("kv8", 16, "8")}
        for name, (kind, ranks, number) in cases.items():
            with self.subTest(name):
                ended = run("shard", made(kind), "--tp", ranks, "--out", self.folder / "out")

                self.assertEqual(ended.code, 1, ended)
                self.assertIn(str(ranks), ended.stderr)
                self.assertIn(number, ended.stderr)
                self.assertEqual(self.left(), [])

    def test_tensors_that_the_engine_does_not_know_are_named_unless_they_are_ignored(self):
        """C-026."""
        path = self.folder / "extra"
        shutil.copytree(made("kv2"), path)
        tensors = safetensors_io.read_checkpoint(made("kv2"))
        safetensors_io.write_file(
            path / "model.safetensors",
            [*((name, *tensor) for name, tensor in tensors.items()), ("extra.weight", "BF16", [1], b"ab")],
        )
        out = self.folder / "out"

        refused = run("shard", path, "--tp", 2, "--out", out)
        self.assert_fails(refused, 1, "tensor_unexpected")
        self.assertIn("extra.weight", refused.error["message"])
        self.assertEqual(self.left(), ["extra"])
        self.assert_fails(
            run("shard", path, "--tp", 2, "--out", out, "--ignore", "extra.*", "--ignore", "no.such.*"),
            1, "ignore_matches_nothing",
        )  # fmt: skip

        self.run_ok("shard", path, "--tp", 2, "--out", out, "--ignore", "extra.*")

        self.assertEqual(json.loads((out / "manifest.json").read_text())["source"]["ignored"], ["extra.weight"])
        self.assertEqual(self.run_ok("digest", out).object["version_digest"], digest_oracle.version_digest(made("kv2")))
        back = self.folder / "back"
        report = self.run_ok("unshard", out, "--out", back).object
        self.assertEqual(report.pop("absent"), ["extra.weight"])
        self.assertEqual(report["tensors"], len(tensors))
        self.assertEqual(bits(safetensors_io.read_checkpoint(back)), bits(tensors))

    def test_what_is_there_already_is_not_touched(self):
        out = self.shard(made("kv2"), 2)
        before = {path.name: path.read_bytes() for path in out.iterdir()}

        self.assert_fails(run("shard", made("kv2", version=2), "--tp", 2, "--out", out), 1, "output_exists")
        self.assert_fails(run("unshard", out, "--out", out), 1, "output_exists")

        self.assertEqual({path.name: path.read_bytes() for path in out.iterdir()}, before)
        self.assertEqual(self.left(), ["artifact"])

    def test_a_checkpoint_is_not_unsharded_and_an_artifact_not_sharded(self):
        artifact = self.shard(made("kv2"), 2)

        self.assert_fails(run("unshard", made("kv2"), "--out", self.folder / "a"), 1, "not_an_artifact")
        self.assert_fails(run("shard", artifact, "--tp", 2, "--out", self.folder / "b"), 1, "not_a_checkpoint")

        self.assertEqual(self.left(), ["artifact"])

    def test_an_artifact_without_its_manifest_loads_nowhere(self):
        artifact = self.shard(made("kv2"), 1)
        (artifact / "manifest.json").unlink()

        for command in (["digest"], ["engine"], ["inspect"], ["verify", made("kv2")]):
            with self.subTest(command[0]):
                self.assert_fails(run(*command, artifact), 1, "manifest_not_found")


class KilledWriterTest(ArtifactTest):
    def test_a_writer_killed_at_any_moment_leaves_no_artifact_and_the_next_one_cleans_up(self):
        """C-058."""
        path = checkpoint(size=160_000_000)
        killed = 0
        for bytes_written in (0, 1, 1 << 20, 60 << 20, 120 << 20):
            with self.subTest(bytes_written=bytes_written):
                writer = self.start("shard", path, "--tp", 2, "--out", self.folder / "artifact")
                self.until_written(writer, bytes_written)

                writer.send(signal.SIGKILL)

                killed += writer.finish().code != 0
                for left in self.folder.iterdir():  # whole, or nothing that loads
                    if run("digest", left).code == 0:
                        self.assertTrue(self.run_ok("verify", left, path).object["equal"])
                shutil.rmtree(self.folder / "artifact", ignore_errors=True)
        self.assertGreater(killed, 0)

        self.run_ok("shard", path, "--tp", 2, "--out", self.folder / "artifact")

        self.assertEqual(self.left(), ["artifact"])

    def until_written(self, writer, bytes_written):
        """Each look at the disk is another; ends with the writer at the latest."""
        while writer.process.poll() is None:
            try:
                size = sum(file.stat().st_blocks * 512 for file in self.folder.glob(".artifact.*/*"))
            except FileNotFoundError:  # renamed meanwhile
                return
            if size >= bytes_written and any(self.folder.glob(".artifact.*")):
                return

    def test_ctrl_c_leaves_nothing(self):
        writer = self.start("shard", checkpoint(size=160_000_000), "--tp", 2, "--out", self.folder / "artifact")
        self.until_written(writer, 1 << 20)

        writer.send(signal.SIGINT)

        ended = writer.finish()
        self.assertIn(ended.code, (0, 130), ended)
        self.assertEqual(self.left(), [] if ended.code == 130 else ["artifact"])


class SabotageTest(ArtifactTest):
    """Every change keeps all names, types and shapes."""

    LAYER = "model.layers.1"
    QKV = f"{LAYER}.self_attn.qkv_proj.weight"
    GATE_UP = f"{LAYER}.mlp.gate_up_proj.weight"
    HEAD = 16

    def edit(self, artifact, rank):
        return OpenTensors(artifact / f"rank-{rank}.safetensors")

    def swap_k_and_v(self, artifact, ranks):
        with self.edit(artifact, ranks - 1) as tensors:
            rows = tensors.shape(self.QKV)[0]
            queries = 8 * self.HEAD // ranks
            kv = (rows - queries) // 2
            tensors.swap_rows(self.QKV, queries, queries + kv, kv)
        return [f"{self.LAYER}.self_attn.k_proj.weight", f"{self.LAYER}.self_attn.v_proj.weight"]

    def swap_gate_and_up(self, artifact, ranks):
        with self.edit(artifact, 0) as tensors:
            half = tensors.shape(self.GATE_UP)[0] // 2
            tensors.swap_rows(self.GATE_UP, 0, half, half)
        return [f"{self.LAYER}.mlp.gate_proj.weight", f"{self.LAYER}.mlp.up_proj.weight"]

    def swap_query_heads(self, artifact, ranks):
        with self.edit(artifact, 0) as tensors:
            tensors.swap_rows(self.QKV, 0, 8 * self.HEAD // ranks - self.HEAD, self.HEAD)
        return [f"{self.LAYER}.self_attn.q_proj.weight"]

    def flip_one_bit(self, artifact, ranks):
        with self.edit(artifact, ranks - 1) as tensors:
            byte = tensors.read("model.norm.weight", 5, 1)[0]
            tensors.write("model.norm.weight", 5, bytes([byte ^ 4]))
        return ["model.norm.weight"]

    def write_into_padding(self, artifact, ranks):
        with self.edit(artifact, ranks - 1) as tensors:  # the last row is padding: 130 rows of 192
            name = "lm_head.weight"
            tensors.write(name, tensors.row_bytes(name) * tensors.shape(name)[0] - 2, b"\x80\x3f")
        return ["lm_head.weight"]

    def swap_kv_heads_of_two_ranks(self, artifact, ranks):
        with self.edit(artifact, 0) as first, self.edit(artifact, ranks - 1) as last:
            start = 8 * self.HEAD // ranks
            one, other = (tensors.read_rows(self.QKV, start, self.HEAD) for tensors in (first, last))
            assert one != other
            first.write_rows(self.QKV, start, other)
            last.write_rows(self.QKV, start, one)
        return [f"{self.LAYER}.self_attn.k_proj.weight"]

    def give_one_rank_anothers_tensor(self, artifact, ranks):
        name = f"{self.LAYER}.mlp.down_proj.weight"
        with self.edit(artifact, 0) as first, self.edit(artifact, 1) as second:
            second.write(name, 0, first.read(name))
        return [name]

    def exchange_files(self, artifact, ranks):
        first, last = artifact / "rank-0.safetensors", artifact / f"rank-{ranks - 1}.safetensors"
        kept = first.read_bytes()
        first.write_bytes(last.read_bytes())
        last.write_bytes(kept)
        return [f"{self.LAYER}.self_attn.q_proj.weight", f"{self.LAYER}.mlp.down_proj.weight"]

    def copy_a_file(self, artifact, ranks):
        shutil.copy(artifact / "rank-0.safetensors", artifact / "rank-1.safetensors")
        return [f"{self.LAYER}.self_attn.q_proj.weight", f"{self.LAYER}.mlp.down_proj.weight"]

    ONE_RANK = (swap_k_and_v, swap_gate_and_up, swap_query_heads, flip_one_bit, write_into_padding)
    SEVERAL = (swap_kv_heads_of_two_ranks, give_one_rank_anothers_tensor, exchange_files, copy_a_file)

    def test_verify_names_the_tensor_and_no_engine_starts(self):
        for ranks in (1, 2, 4):
            whole = self.shard(made("kv2"), ranks, name=f"whole-{ranks}")
            for sabotage in self.ONE_RANK + (self.SEVERAL if ranks > 1 else ()):
                with self.subTest(sabotage.__name__, ranks=ranks):
                    artifact = self.folder / "damaged"
                    shutil.copytree(whole, artifact)

                    tensors = sabotage(self, artifact, ranks)

                    self.assert_found(artifact, made("kv2"), tensors)
                    self.assert_refused_by_an_engine(artifact)
                    shutil.rmtree(artifact)

    def assert_found(self, artifact, path, tensors):
        for pair in ((artifact, path), (path, artifact), (artifact, artifact)):
            ended = run("verify", *pair)
            self.assertEqual(ended.code, 3, ended)
            self.assertLessEqual(set(tensors), {found["tensor"] for found in ended.objects[0]["differences"]}, ended)
        self.assert_fails(run("digest", artifact), 3, "artifact_altered")

    def assert_refused_by_an_engine(self, artifact):
        ended = run("engine", artifact, env=self.env)

        self.assertEqual(ended.code, 3, ended)
        self.assertNotIn("ready", [line.get("event") for line in ended.objects])

    def test_unshard_refuses_too_and_leaves_nothing(self):
        artifact = self.shard(made("kv2"), 2)
        self.swap_gate_and_up(artifact, 2)

        self.assert_fails(run("unshard", artifact, "--out", self.folder / "back"), 3, "artifact_altered")

        self.assertEqual(self.left(), ["artifact"])

    def test_a_file_that_is_missing_cut_or_another_ones_is_named(self):
        for change in ("missing", "cut", "longer", "other"):
            with self.subTest(change):
                artifact = self.shard(made("kv2"), 2, name=change)
                file = artifact / "rank-1.safetensors"
                content = file.read_bytes()
                file.unlink()
                if change == "cut":
                    file.write_bytes(content[:-1])
                elif change == "longer":
                    file.write_bytes(content + b"\0")
                elif change == "other":
                    shutil.copy(self.shard(made("kv8"), 2, name="kv8") / "rank-1.safetensors", file)
                for command in (["engine"], ["digest"], ["verify", made("kv2")]):
                    ended = run(*command, artifact, env=self.env)

                    self.assert_fails(ended, 3, "artifact_altered")
                    self.assertIn("rank-1.safetensors", ended.error["message"])

    def test_a_manifest_that_was_edited_is_refused(self):
        artifact = self.shard(made("kv2"), 2)
        manifest = artifact / "manifest.json"
        text = manifest.read_text()
        exchanged = text.replace("rank-0.", "rank-x.").replace("rank-1.", "rank-0.").replace("rank-x.", "rank-1.")
        self.assertNotEqual(exchanged, text)
        for changed in (exchanged, text[:-5], text + "x", "{}", ""):
            manifest.write_text(changed)

            self.assert_fails(run("engine", artifact, env=self.env), 3, "artifact_altered")


class EngineTest(ArtifactTest):
    def test_an_engine_starts_from_an_artifact_as_from_its_checkpoint(self):
        for kind, ranks in (("kv2", 1), ("kv2", 2), ("kv1-tied", 1), ("qk-norm", 2)):
            with self.subTest(kind, ranks=ranks):
                artifact = self.shard(made(kind), ranks, name=f"{kind}-{ranks}")
                engine = self.start_engine(artifact)
                twin = self.start_engine(made(kind), "--tp", ranks)

                self.assertEqual(engine.ready["digest"], digest_oracle.version_digest(made(kind)))
                self.assertEqual((engine.ready["version"], engine.ready["run"]), (0, "checkpoint"))
                self.assertEqual(
                    self.generate(engine, [1, 2, 3], "--max-new", 8), self.generate(twin, [1, 2, 3], "--max-new", 8)
                )
                for pair in ((artifact, engine.address), (engine.address, artifact), (made(kind), engine.address)):
                    self.assertTrue(self.run_ok("verify", *pair).object["equal"])
                self.assertEqual(len(engine.status()["ranks"]), ranks)
                engine.kill()
                twin.kill()

    def test_a_version_published_from_an_artifact_is_the_checkpoints(self):
        engine = self.start_engine(made("kv2"))

        report = self.publish_ok(self.shard(made("kv2", version=2), 4), engine)

        self.assertEqual(report["version_digest"], digest_oracle.version_digest(made("kv2", version=2)))
        self.assertTrue(self.run_ok("verify", made("kv2", version=2), engine.address).object["equal"])

    def test_another_fingerprint_is_refused_with_both_spelled_out(self):
        artifact = self.shard(made("kv2"), 2)
        cases = {
            "tp": (["--tp", 4], "tensor=2", "tensor=4"),
            "dtype": (["--dtype", "fp32"], "dtype=BF16", "dtype=F32"),
        }
        for name, (arguments, has, wants) in cases.items():
            with self.subTest(name):
                ended = run("engine", artifact, *arguments, env=self.env)

                self.assert_fails(ended, 1, "fingerprint_mismatch")
                self.assertIn(has, ended.error["message"])
                self.assertIn(wants, ended.error["message"])


class InspectTest(EndToEndTest):
    def test_it_lists_what_the_headers_say(self):
        path = made("kv2")
        tensors = safetensors_io.read_checkpoint(path)
        sizes = {name: safetensors_io.tensor_bytes(tensor.dtype, tensor.shape) for name, tensor in tensors.items()}

        listed = self.run_ok("inspect", path).object

        self.assertEqual(
            list(listed),
            ["files", "tensors", "parameters", "data_bytes", "dtypes", "architecture", "tensor_list"],
        )
        self.assertEqual(
            listed["tensor_list"],
            [
                {"name": name, "dtype": "BF16", "shape": list(tensors[name].shape), "bytes": sizes[name],
                 "file": "model.safetensors"}
                for name in sorted(tensors)
            ],
        )  # fmt: skip
        self.assertEqual((listed["files"], listed["tensors"]), (1, len(tensors)))
        self.assertEqual(listed["parameters"], sum(sizes.values()) // 2)
        self.assertEqual(listed["data_bytes"], sum(sizes.values()))
        self.assertEqual(listed["dtypes"], {"BF16": len(tensors)})
        self.assertEqual(listed["architecture"], "LlamaForCausalLM")
        single = self.run_ok("inspect", path / "model.safetensors").object
        self.assertEqual(single["architecture"], None)
        self.assertEqual(single["tensor_list"], listed["tensor_list"])


class MapTest(EndToEndTest):
    def rows(self, *arguments):
        lines = self.run_ok("map", *arguments).objects
        return lines[:-1], lines[-1]

    def test_the_rows_put_the_engines_tensors_together(self):
        path = made("kv2")
        rows, names = self.rows(path, "--tp", 4)

        tensors = safetensors_io.read_checkpoint(path)
        self.assertEqual(
            names, {"expected": [], "loaded": names["loaded"], "ignored": [], "unexpected": []}
        )
        self.assertEqual(sorted(names["loaded"]), sorted(tensors))
        self.assertEqual({row["rank"] for row in rows}, {0, 1, 2, 3})
        qkv = [row for row in rows if row["engine_tensor"] == "model.layers.0.self_attn.qkv_proj.weight"]
        self.assertEqual(
            [(row["rank"], row["logical_tensor"].split(".")[4], row["engine_box"][0], row["logical_box"][0])
             for row in qkv if row["rank"] in (1, 2)],
            [(1, "q_proj", [0, 32], [32, 64]), (1, "k_proj", [32, 48], [0, 16]), (1, "v_proj", [48, 64], [0, 16]),
             (2, "q_proj", [0, 32], [64, 96]), (2, "k_proj", [32, 48], [16, 32]), (2, "v_proj", [48, 64], [16, 32])],
        )  # fmt: skip
        fill = [row for row in rows if "fill" in row]
        self.assertEqual({row["engine_tensor"] for row in fill}, {"model.embed_tokens.weight", "lm_head.weight"})
        self.assertEqual(sum(row["engine_box"][0][1] - row["engine_box"][0][0] for row in fill), 2 * (192 - 130))

    def test_one_rank_alone(self):
        rows, _ = self.rows(made("kv2"), "--tp", 4, "--rank", 3)

        self.assertEqual({row["rank"] for row in rows}, {3})
        self.assert_fails(run("map", made("kv2"), "--tp", 4, "--rank", 4), 2, "usage")

    def test_a_checkpoint_that_lacks_a_tensor_shows_its_name_and_fails(self):
        path = scratch() / "lacking"
        if not path.exists():
            shutil.copytree(made("kv2"), path)
            tensors = safetensors_io.read_checkpoint(made("kv2"))
            del tensors["model.norm.weight"]
            safetensors_io.write_file(path / "model.safetensors", [(name, *tensors[name]) for name in sorted(tensors)])

        ended = run("map", path, "--tp", 2)

        self.assert_fails(ended, 1, "tensor_missing")
        self.assertEqual(ended.objects[-2]["expected"], ["model.norm.weight"])


if __name__ == "__main__":
    unittest.main()
