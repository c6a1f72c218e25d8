"""The disk route of a live update: an engine reads a version itself, from a directory beneath a root that it allows."""

import os
import pathlib
import shutil
import socket
import tempfile
import unittest

from bascule_program import EndToEndTest, checkpoint, run
import digest_oracle
import fixtures
import safetensors_io
from safetensors_edit import OpenTensors

BYTES = 160_000_000


class DiskRouteTest(EndToEndTest):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="bascule_disk_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.root = self.folder / "root"
        self.root.mkdir()

    def copy(self, name, version=2, source=None):
        path = self.root / name
        shutil.copytree(source or checkpoint(version=version), path)
        return path

    def engine(self, *arguments, path=None):
        return self.start_engine(path or checkpoint(), "--allow-root", self.root, *arguments)

    def load(self, path, *engines, arguments=()):
        return self.publish(path, *engines, arguments=("--from-disk", *arguments))


class LoadTest(DiskRouteTest):
    def test_a_directory_becomes_the_next_version_of_every_replica(self):
        first, second = self.engine(), self.engine()
        path = self.copy("next")

        report = self.load(path, first, second)

        self.assertEqual(report.code, 0, report)
        report = report.object
        digest = digest_oracle.version_digest(path)
        self.assertEqual(
            list(report), ["version", "version_digest", "bytes", "wire_bytes", "transport", "replicas"]
        )
        self.assertEqual(
            (report["version"], report["version_digest"], report["transport"]), (1, digest, "disk")
        )
        for engine, replica in zip((first, second), report["replicas"], strict=True):
            self.assertEqual((replica["address"], replica["state"], replica["digest"]),
                             (engine.address, "committed", digest))  # fmt: skip
            self.assertEqual(engine.status()["live"]["digest"], digest)
            self.assertEqual(engine.status()["kept"]["version"], 0)
            self.assertTrue(self.run_ok("verify", path, engine.address).object["equal"])

    def test_a_relative_path_is_one_below_the_root(self):
        engine = self.engine()
        self.copy("a/b")

        for version, path in ((1, "a/b"), (2, "a/../a/./b"), (3, f"{self.root}//a/b/")):
            report = self.load(path, engine)

            self.assertEqual(report.code, 0, report)
            self.assertEqual(report.object["version"], version)

    def test_links_that_stay_beneath_the_root_are_followed_as_in_a_hugging_face_cache(self):
        engine = self.engine()
        cache = self.copy("models--x/blobs-source").parent
        (cache / "blobs").mkdir()
        snapshot = cache / "snapshots" / "0123"
        snapshot.mkdir(parents=True)
        for file in (cache / "blobs-source").iterdir():
            file.rename(cache / "blobs" / file.name)
            (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
        (self.root / "newest").symlink_to("models--x/snapshots/0123")

        report = self.load("newest", engine)

        self.assertEqual(report.code, 0, report)
        self.assertEqual(report.object["version_digest"], digest_oracle.version_digest(checkpoint(version=2)))

    def test_an_artifact_is_loaded_against_its_manifest(self):
        spec = fixtures.Spec(hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=96)
        first, second = self.folder / "first", self.folder / "second"
        fixtures.write_checkpoint(first, spec, 1)
        fixtures.write_checkpoint(second, spec, 2)
        engine = self.engine("--tp", 2, path=first)
        good, damaged, other = (self.root / name for name in ("good", "damaged", "other"))
        for out, ranks in ((good, 2), (damaged, 2), (other, 1)):
            self.run_ok("shard", second, "--tp", ranks, "--out", out)
        with OpenTensors(damaged / "rank-1.safetensors") as tensors:
            name = "model.layers.0.mlp.gate_up_proj.weight"
            half = tensors.shape(name)[0] // 2
            tensors.swap_rows(name, 0, half, half)

        refused = self.load(damaged, engine)
        self.assert_fails(refused, 3, "digest_mismatch")
        self.assertIn("gate_proj", refused.error["message"])
        self.assert_fails(self.load(other, engine), 1, "fingerprint_mismatch")
        self.assertEqual(engine.status()["live"]["version"], 0)

        self.assertEqual(self.load(good, engine).code, 0)
        self.assertTrue(self.run_ok("verify", second, engine.address).object["equal"])

    def test_the_old_version_serves_meanwhile_and_no_client_fails(self):
        engine = self.engine(path=checkpoint(size=BYTES))
        path = self.copy("large", source=checkpoint(size=BYTES, version=2))
        client = self.start("generate", engine.address, "--tokens", "1,2,3", "--max-new", 200, "--stream")
        client.next()

        report = self.load(path, engine)

        self.assertEqual(report.code, 0, report)
        answer = client.finish()
        self.assertEqual(answer.code, 0, answer)
        self.assertEqual(len(answer.object["tokens"]), 200)
        self.assertEqual(answer.object["spans"][0]["version"], 0)

    def test_overwritten_files_are_read_anew_whatever_their_time_and_size_say(self):
        """C-025."""
        engine = self.engine()
        path = self.copy("same", version=1)
        self.assertEqual(self.load(path, engine).code, 0)
        file = path / "model.safetensors"
        before = file.stat()
        with open(file, "r+b") as old, open(checkpoint(version=2) / "model.safetensors", "rb") as new:
            old.write(new.read())
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

        report = self.load(path, engine)

        self.assertEqual(report.code, 0, report)
        self.assertEqual(report.object["version_digest"], digest_oracle.version_digest(checkpoint(version=2)))

    def test_version_rules_are_those_of_any_offer(self):
        engine = self.engine()
        path = self.copy("next")
        self.assertEqual(self.load(path, engine, arguments=("--version", 5)).code, 0)

        for arguments, reason in (
            (("--version", 5), "version_reused"),
            (("--version", 4), "stale_version"),
            (("--version", 1, "--run", "other"), "unknown_run"),
        ):
            self.assert_fails(self.load(path, engine, arguments=arguments), 1, reason)
        self.assertEqual(self.load(path, engine).object["version"], 6)
        report = self.load(path, engine, arguments=("--version", 1, "--run", "other", "--new-run"))

        self.assertEqual(report.code, 0, report)
        live = engine.status()["live"]
        self.assertEqual((live["run"], live["version"]), ("other", 1))
        rows = self.run_ok("versions", engine.address).objects
        self.assertEqual([row["version"] for row in rows], [0, 5, 6, 1])

    def test_what_only_senders_have_a_use_for_is_a_wrong_usage_and_not_ignored(self):
        for arguments in (
            ("--policy", "all"), ("--max-weight", 1), ("--sentinels", "file"), ("--journal", "file"), ("--min-replicas", 1),
            ("--transport", "shm"), ("--max-rate", "1MiB"), ("--trainer-ranks", 2), ("--listen", "127.0.0.1:0"),
            ("--serve", "--listen", "127.0.0.1:0"),
        ):  # fmt: skip
            with self.subTest(arguments):
                ended = run("publish", "next", "--to", "127.0.0.1:1", "--from-disk", *arguments)

                self.assertEqual(ended.code, 2, ended)

    def test_another_model_is_refused_and_nothing_changes(self):
        engine = self.engine()
        path = self.copy("other", source=checkpoint("qk-norm"))

        ended = self.load(path, engine)

        self.assertEqual(ended.code, 1, ended)
        self.assertEqual(engine.status()["live"]["version"], 0)

    def test_nobody_at_the_address_is_exit_code_4(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = "127.0.0.1:{}".format(free.getsockname()[1])

            ended = run("publish", "next", "--to", address, "--from-disk", "--version", 1)

        self.assertEqual(ended.code, 4, ended)


class ScopeTest(DiskRouteTest):
    """Of a partial version each replica reads the scope and copies the rest from what it has live."""

    SCOPE = ("--scope", "model.layers.*")

    def setUp(self):
        super().setUp()
        base, sent = (safetensors_io.read_checkpoint(checkpoint(version=version)) for version in (1, 2))
        self.expected = self.write("whole", {n: (sent if n.startswith("model.layers.") else base)[n] for n in base})
        self.layers = self.write("layers", {n: t for n, t in sent.items() if n.startswith("model.layers.")})

    def write(self, name, tensors):
        path = self.root / name
        path.mkdir()
        shutil.copy(checkpoint() / "config.json", path)
        blocks = [(key, tensor.dtype, tensor.shape, tensor.data) for key, tensor in tensors.items()]
        safetensors_io.write_file(path / "model.safetensors", blocks)
        return path

    def test_the_scope_is_read_and_the_engines_have_the_digest_of_the_whole(self):
        """C-017."""
        engines = self.engine(), self.engine("--tp", 2, "--flip", "in_place")
        self.assert_fails(self.load(self.layers, *engines), 1, "tensor_missing")

        report = self.load(self.layers, *engines, arguments=self.SCOPE)

        self.assertEqual(report.code, 0, report)
        digest = digest_oracle.version_digest(self.expected)
        self.assertEqual((report.object["version"], report.object["version_digest"]), (1, digest))
        self.assertEqual(report.object["scope"], ["model.layers.*"])
        self.assertEqual(report.object["base"]["digest"], digest_oracle.version_digest(checkpoint()))
        for engine in engines:
            self.assertTrue(self.run_ok("verify", self.expected, engine.address).object["equal"])
            self.assertGreater(self.run_ok("versions", engine.address).objects[-1]["carried_bytes"], 0)

    def test_an_artifact_brings_its_part_in_its_own_cut(self):
        engine = self.engine("--tp", 2)
        self.run_ok("shard", checkpoint(version=2), "--tp", 2, "--out", self.root / "artifact")

        report = self.load("artifact", engine, arguments=self.SCOPE)

        self.assertEqual(report.code, 0, report)
        self.assertTrue(self.run_ok("verify", self.expected, engine.address).object["equal"])

    def test_a_replica_with_another_live_version_is_no_base_and_may_be_brought_along_later(self):
        first, second = self.engine(), self.engine()
        whole = self.copy("one", version=1)
        self.assertEqual(self.load(whole, second, arguments=("--version", 5)).code, 0)

        report = self.load(self.layers, first, second, arguments=(*self.SCOPE, "--version", 6))

        self.assert_fails(report, 1, "wrong_base")
        self.assertEqual([replica["state"] for replica in report.objects[0]["replicas"]], ["aborted", "committed"])
        self.assertEqual(first.status()["live"]["version"], 0)
        self.assertEqual(self.load(whole, first, arguments=("--version", 5)).code, 0)
        again = self.load(self.layers, second, first, arguments=(*self.SCOPE, "--version", 6))
        self.assertEqual([replica["state"] for replica in again.objects[0]["replicas"]], ["aborted", "committed"])
        self.assertEqual(first.status()["live"]["digest"], second.status()["live"]["digest"])

    def test_a_scope_that_matches_nothing_or_lacks_a_tensor_changes_nothing(self):
        engine = self.engine()
        tensors = safetensors_io.read_checkpoint(checkpoint(version=2))
        holed = self.write("holed", {n: t for n, t in tensors.items() if not n.endswith("q_proj.weight")})

        self.assert_fails(self.load(self.layers, engine, arguments=("--scope", "vision.*")), 1, "scope_matches_nothing")
        self.assert_fails(self.load(holed, engine, arguments=self.SCOPE), 1, "tensor_missing")
        self.assertEqual(engine.status()["live"]["version"], 0)


class PathTest(DiskRouteTest):
    """C-121. What lies outside is neither read nor told of: every refusal is word for word the same but for the path."""

    def refusal(self, path, engine):
        ended = self.load(path, engine)
        self.assert_fails(ended, 1, "path_not_allowed")
        shown = str(path)[:200]
        self.assertIn(shown, ended.error["message"])
        return ended.error["message"].replace(str(path), "PATH").replace(shown + "...", "PATH").replace(shown, "PATH")

    def test_what_is_outside_is_refused_alike_whether_it_is_there_or_not(self):
        engine = self.engine()
        outside = self.folder / "outside"
        shutil.copytree(checkpoint(version=2), outside)
        (self.root / "absolute").symlink_to(outside)
        (self.root / "relative").symlink_to("../outside")
        (self.root / "dangling").symlink_to(self.folder / "nothing")
        (self.root / "up").symlink_to("..")
        os.mkfifo(self.root / "fifo")
        (self.root / "file").write_text("no directory")
        paths = [
            "../outside", "../nothing", outside, self.folder / "nothing", "absolute", "relative", "dangling",
            "up/outside", "up/nothing", "fifo", "file", "nothing", "/etc", "/", "/dev/zero", "a" * 100_000,
            "x/" * 5000, "https://example.org/model", f"{self.root}/../outside", f"{self.root}x", "proc/self/root",
        ]  # fmt: skip

        refusals = {self.refusal(path, engine) for path in paths}
        self.assertEqual(len(refusals), 1, refusals)
        self.assertEqual(engine.status()["live"]["version"], 0)

    def test_a_file_of_the_directory_that_leads_out_or_would_block_is_not_there(self):
        engine = self.engine()
        outside = self.folder / "outside"
        shutil.copytree(checkpoint(version=2), outside)
        for name, replace in {
            "out": lambda file: file.symlink_to(outside / file.name),
            "gone": lambda file: file.symlink_to(self.folder / "nothing" / file.name),
            "fifo": os.mkfifo,
            "directory": lambda file: file.mkdir(),
        }.items():
            for file_name in ("config.json", "model.safetensors"):
                with self.subTest(name, file=file_name):
                    path = self.copy(f"{name}-{file_name}")
                    (path / file_name).unlink()
                    replace(path / file_name)

                    ended = self.load(path, engine)

                    self.assertEqual(ended.code, 1, ended)
                    self.assertNotIn("outside", ended.error["message"].replace(str(self.root), ""))
                    self.assertNotIn(str(self.folder / "nothing"), ended.error["message"])
        self.assertEqual(engine.status()["live"]["version"], 0)

    def test_a_link_that_is_exchanged_again_and_again_never_leads_out(self):
        engine = self.engine()
        inside = self.copy("inside")
        outside = self.folder / "outside"
        shutil.copytree(checkpoint(version=1), outside)
        wanted = digest_oracle.version_digest(inside)
        link, other = self.root / "link", self.root / "other"
        for number in range(30):
            link.unlink(missing_ok=True)
            link.symlink_to("inside" if number % 2 else outside)
            loading = self.start("publish", "link", "--to", engine.address, "--from-disk")
            for _ in range(200):
                other.unlink(missing_ok=True)
                other.symlink_to(outside if number % 2 else "inside")
                os.replace(other, link)
            ended = loading.finish()

            self.assertIn(ended.code, (0, 1), ended)
            if ended.code == 0:
                self.assertEqual(ended.object["version_digest"], wanted)
        self.assertEqual(run("status", engine.address).code, 0)

    def test_without_an_allowed_root_nothing_is_read(self):
        engine = self.start_engine(checkpoint())

        ended = self.load(self.copy("next"), engine)

        self.assert_fails(ended, 1, "path_not_allowed")
        self.assertIn("--allow-root", ended.error["message"])

    def test_a_root_that_is_not_there_is_an_error_at_the_start(self):
        ended = run("engine", checkpoint(), "--allow-root", self.folder / "nothing", env=self.env)

        self.assertEqual(ended.code, 1, ended)
        self.assertIn("nothing", ended.error["message"])


if __name__ == "__main__":
    unittest.main()
