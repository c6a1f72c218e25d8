"""Partial versions: a scope is sent, an engine keeps the rest, and everybody sees one whole version."""

import fnmatch
import shutil
import unittest

from bascule_program import EndToEndTest, checkpoint, run, scratch
import digest_oracle
import safetensors_io

LAYERS = "model.layers.*"


def mixed(base, sent, scope, name):
    """A checkpoint of `base`'s tensors with those of `sent` that a pattern of `scope` matches."""
    kept, new = safetensors_io.read_checkpoint(base), safetensors_io.read_checkpoint(sent)
    in_scope = {key for key in kept if any(fnmatch.fnmatch(key, pattern) for pattern in scope)}
    return written(name, base, {key: (new if key in in_scope else kept)[key] for key in kept})


def written(name, like, tensors):
    path = scratch() / name
    if not path.exists():
        path.mkdir()
        shutil.copy(like / "config.json", path)
        blocks = [(key, tensor.dtype, tensor.shape, tensor.data) for key, tensor in tensors.items()]
        safetensors_io.write_file(path / "model.safetensors", blocks)
    return path


class ScopeTest(EndToEndTest):
    def test_only_the_scope_is_sent_and_the_engine_has_the_digest_of_the_whole(self):
        """C-017."""
        engine = self.start_engine(checkpoint(), "--tp", 2)
        expected = mixed(checkpoint(), checkpoint(version=2), [LAYERS], "layers-of-2")
        whole = self.publish_ok(checkpoint(), engine)["bytes"]

        report = self.publish_ok(checkpoint(version=2), engine, arguments=("--scope", LAYERS))

        digest = digest_oracle.version_digest(expected)
        self.assertEqual(report["version_digest"], digest)
        self.assertEqual(report["scope"], [LAYERS])
        self.assertEqual(report["base"]["version"], 1)
        self.assertEqual(report["base"]["digest"], digest_oracle.version_digest(checkpoint()))
        self.assertLess(report["bytes"], whole)
        self.assertEqual(engine.status()["live"]["digest"], digest)
        self.assertTrue(self.run_ok("verify", expected, engine.address).object["equal"])
        row = self.run_ok("versions", engine.address).objects[-1]
        self.assertEqual((row["kind"], row["bytes"], row["digest"]), ("full", report["bytes"], digest))
        self.assertGreater(row["carried_bytes"], 0)
        cold = self.start_engine(expected)
        self.assertEqual(self.generate(engine, [1, 2, 3])["tokens"], self.generate(cold, [1, 2, 3])["tokens"])

    def test_a_checkpoint_of_the_scope_alone_will_do_and_no_other_way(self):
        """C-017."""
        engine = self.start_engine(checkpoint())
        tensors = safetensors_io.read_checkpoint(checkpoint(version=2))
        part = written("only-layers", checkpoint(), {n: t for n, t in tensors.items() if n.startswith("model.layers.")})
        holed = written("a-layer-less", checkpoint(), {n: t for n, t in tensors.items() if not n.endswith("q_proj.weight")})

        self.assert_fails(self.publish(part, engine), 1, "tensor_missing")
        self.assert_fails(self.publish(holed, engine, arguments=("--scope", LAYERS)), 1, "tensor_missing")
        self.assert_fails(self.publish(part, engine, arguments=("--scope", "vision.*")), 1, "scope_matches_nothing")
        self.assertEqual(engine.status()["live"]["version"], 0)
        report = self.publish_ok(part, engine, arguments=("--scope", LAYERS))

        expected = mixed(checkpoint(), checkpoint(version=2), [LAYERS], "layers-of-2")
        self.assertEqual(report["version_digest"], digest_oracle.version_digest(expected))

    def test_several_patterns_and_processes_and_the_way_back(self):
        engine = self.start_engine(checkpoint(), "--flip", "in_place")
        scope = ["model.layers.0.*", "model.norm.weight"]
        expected = mixed(checkpoint(), checkpoint(version=2), scope, "a-layer-and-the-norm-of-2")

        for ranks in ((), ("--gather",)):
            report = self.publish_ok(
                checkpoint(version=2), engine,
                arguments=("--scope", scope[0], "--scope", scope[1], "--trainer-ranks", 2, *ranks),
            )  # fmt: skip
            self.assertEqual(report["version_digest"], digest_oracle.version_digest(expected))

        self.run_ok("rollback", engine.address)
        self.assertTrue(self.run_ok("verify", expected, engine.address).object["equal"], "the first of the two")

    def test_replicas_with_different_versions_are_no_common_base_and_the_policy_decides(self):
        engines = [self.start_engine(checkpoint()) for _ in range(2)]
        self.publish_ok(checkpoint(version=2), engines[1], arguments=("--version", 5))
        arguments = ("--scope", LAYERS, "--policy")

        self.assert_fails(self.publish(checkpoint(version=2), *engines, arguments=(*arguments, "all")), 1, "wrong_base")
        self.assertEqual([engine.status()["live"]["version"] for engine in engines], [0, 5])
        ended = self.publish(checkpoint(version=2), *engines, arguments=(*arguments, "each"))

        self.assertEqual([replica["state"] for replica in ended.objects[0]["replicas"]], ["aborted", "committed"])
        self.assertEqual(ended.error["peer"], engines[0].address)

    def test_a_scope_needs_replicas(self):
        arguments = ("--scope", LAYERS, "--serve", "--listen", "127.0.0.1:0", "--run", "r")

        self.assertEqual(run("publish", checkpoint(), *arguments, env=self.env).code, 2)

    def test_a_late_engine_gets_the_whole_version_where_the_checkpoint_has_it(self):
        engine = self.start_engine(checkpoint())
        expected = mixed(checkpoint(), checkpoint(version=2), [LAYERS], "layers-of-2")
        publisher = self.start(
            "publish", expected, "--to", engine.address, "--scope", LAYERS, "--serve", "--listen", "127.0.0.1:0"
        )
        address = publisher.until(lambda event: event.get("event") == "listening")["address"]
        publisher.until(lambda event: event.get("event") == "ready")

        late = self.start_engine(checkpoint(version=3), "--join", address)

        self.assertEqual(late.ready["digest"], digest_oracle.version_digest(expected))


if __name__ == "__main__":
    unittest.main()
