"""Names from outside: whatever a checkpoint calls its tensors, it is the same version; what is not clear is refused."""

import itertools
import json
import shutil
import unittest

from bascule_program import EndToEndTest, checkpoint, run, scratch
import fixtures
import safetensors_io

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
NUMBERS = itertools.count()


class NamesTest(EndToEndTest):
    def changed(self, kind, change):
        """A copy of a checkpoint whose {name: tensor} went through `change`."""
        out = scratch() / f"names-{next(NUMBERS)}"
        out.mkdir()
        shutil.copy(checkpoint(kind) / "config.json", out)
        tensors = change(safetensors_io.read_checkpoint(checkpoint(kind)))
        rows = [(name, tensor.dtype, tensor.shape, tensor.data) for name, tensor in sorted(tensors.items())]
        safetensors_io.write_file(out / "model.safetensors", rows, {})
        return out

    def digest(self, path):
        return self.run_ok("digest", path).object["version_digest"]

    def shard(self, path, *arguments):
        out = scratch() / f"names-{next(NUMBERS)}"
        return out, run("shard", path, "--tp", 2, "--out", out, *arguments)

    def assert_refused(self, path, reason, *words, arguments=()):
        out, ended = self.shard(path, *arguments)
        self.assert_fails(ended, 1, reason)
        for word in words:
            self.assertIn(word, ended.error["message"])
        self.assertFalse(out.exists())

    def test_prefixes_and_wrappers_are_the_same_version(self):
        """C-080."""
        spellings = {
            "without model.": lambda name: name.removeprefix("model."),
            "data parallel": lambda name: "module." + name,
            "compiled": lambda name: "_orig_mod." + name,
            "both": lambda name: "module._orig_mod." + name,
            "adapters": lambda name: "base_model.model." + name.replace("q_proj.", "q_proj.base_layer."),
            "beside an image tower": lambda name: "language_model." + name,
        }
        for what, spelled in spellings.items():
            with self.subTest(what):
                path = self.changed("qk-norm", lambda tensors: {spelled(n): t for n, t in tensors.items()})  # noqa: B023

                self.assertEqual(self.digest(path), self.digest(checkpoint("qk-norm")))
                self.assertEqual(self.shard(path)[1].code, 0)

    def test_a_rotary_table_is_left_out(self):
        table = safetensors_io.Tensor("F32", (8,), bytes(32))
        path = self.changed("dense", lambda tensors: {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": table})

        self.assertEqual(self.digest(path), self.digest(checkpoint("dense")))
        self.assertEqual(self.shard(path)[1].code, 0)

    def test_a_tied_head_may_be_missing_or_equal_and_is_refused_when_it_differs(self):
        """C-077."""
        different = self.changed("tied", lambda tensors: {**tensors, HEAD: turned(tensors[EMBEDDING])})

        self.assertEqual(self.digest(checkpoint("tied-head")), self.digest(checkpoint("tied")))
        self.assertNotEqual(self.digest(different), self.digest(checkpoint("tied")))
        self.assert_refused(different, "tensor_unexpected", HEAD)
        out, ended = self.shard(different, "--ignore", HEAD)
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(self.digest(out), self.digest(checkpoint("tied")))

    def test_the_head_of_an_untied_model_is_needed(self):
        path = self.changed("dense", lambda tensors: {n: t for n, t in tensors.items() if n != HEAD})

        self.assert_refused(path, "tensor_missing", HEAD)

    def test_a_wrong_shape_is_refused_with_both_shapes_and_the_rule(self):
        name = "model.layers.1.self_attn.k_proj.weight"

        def cut(tensors):
            tensor = tensors[name]
            return {**tensors, name: safetensors_io.Tensor(tensor.dtype, (31, 64), bytes(tensor.data)[: 31 * 128])}

        path = self.changed("dense", cut)

        self.assert_refused(path, "shape_mismatch", name, "[31, 64]", "[32, 64] = [kv_heads 2 * head_size 16, hidden 64]")

    def test_an_unknown_name_is_refused_with_the_nearest_and_ignored_on_request(self):
        extra = safetensors_io.Tensor("BF16", (2,), bytes(4))
        path = self.changed("dense", lambda tensors: {**tensors, "model.layers.1.mlp.down_prj.weight": extra})

        self.assert_refused(path, "tensor_unexpected", "down_prj.weight (nearest: model.layers.1.mlp.down_proj.weight)")
        self.assertEqual(self.shard(path, "--ignore", "*down_prj*")[1].code, 0)
        self.assert_refused(path, "ignore_matches_nothing", "draft.*",
                            arguments=("--ignore", "*down_prj*", "--ignore", "draft.*"))  # fmt: skip

    def test_what_a_pattern_leaves_out_takes_no_neighbour_of_its_file_along(self):
        """C-026. Of three files the first and the last also hold a part of what is left out."""
        draft = safetensors_io.Tensor("BF16", (64, 64), bytes(64 * 64 * 2))
        tensors = safetensors_io.read_checkpoint(checkpoint("dense"))
        path = scratch() / f"names-{next(NUMBERS)}"
        path.mkdir()
        shutil.copy(checkpoint("dense") / "config.json", path)
        extra = {"draft.first.weight": draft, "mtp.last.weight": draft}
        rows = [(n, t.dtype, t.shape, [t.data]) for n, t in sorted({**tensors, **extra}.items())]
        rows.append(rows.pop(next(i for i, row in enumerate(rows) if row[0] == "mtp.last.weight")))
        fixtures.write_sharded(path, rows, 3)
        files = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
        self.assertEqual([len([f for f in files.values() if f == files[name]]) > 1 for name in extra], [True, True])
        self.assertNotEqual(*(files[name] for name in extra))

        self.assert_refused(path, "tensor_unexpected", *extra)
        out, ended = self.shard(path, "--ignore", "draft.*", "--ignore", "mtp.*")

        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(self.digest(out), self.digest(checkpoint("dense")))
        engine = self.start_engine(checkpoint("dense", version=2))
        self.publish_ok(path, engine, arguments=("--ignore", "draft.*", "--ignore", "mtp.*"))
        self.assertEqual(engine.status()["live"]["digest"], self.digest(checkpoint("dense")))


def turned(tensor):
    data = bytes(tensor.data)
    return safetensors_io.Tensor(tensor.dtype, tensor.shape, data[2:] + data[:2])


if __name__ == "__main__":
    unittest.main()
