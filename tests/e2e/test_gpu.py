"""`bascule engine --device cuda:N`: over the fake CUDA runtime and the fake cuBLAS, which say nothing about a GPU, and on
a machine that has none."""

import os
import pathlib
import unittest

from bascule_program import EndToEndTest, checkpoint, run

# What makes a process find the fakes: "NAME=VALUE NAME=VALUE", of the build.
FAKES = dict(setting.split("=", 1) for setting in os.environ.get("BASCULE_FAKE_CUDA", "").split())
TWO_GPUS = {**FAKES, "BASCULE_FAKE_CUDA_DEVICES": "0,1", "BASCULE_FAKE_CUDA_STANDS": "0"}
PROMPT = [3, 1, 4, 1, 5]


@unittest.skipUnless(FAKES, "a build without CUDA (BASCULE_CUDA=OFF)")
class FakeGpuTest(EndToEndTest):
    def tokens(self, engine):
        return self.generate(engine, PROMPT, "--max-new", 6)["tokens"]

    def test_versions_come_and_go_on_a_device_as_they_do_on_processors(self):
        for device, tp, flip in (("cuda:1", 1, "shadow"), ("cuda:0,1", 2, "in_place")):
            with self.subTest(device=device, flip=flip):
                manners = (checkpoint(), "--tp", tp, "--flip", flip, "--kv-pages", 64)
                on_cpu = self.start_engine(*manners)
                on_gpu = self.start_engine(*manners, "--device", device, env=TWO_GPUS)
                self.assertEqual((on_cpu.ready["device"], on_gpu.ready["device"]), ("cpu", device))
                self.assertEqual(on_gpu.ready["digest"], on_cpu.ready["digest"])
                self.assertEqual(self.tokens(on_gpu), self.tokens(on_cpu))

                for engine in (on_cpu, on_gpu):
                    self.publish_ok(checkpoint(version=2), engine)

                self.assertEqual(on_gpu.status()["live"]["digest"], on_cpu.status()["live"]["digest"])
                self.assertEqual(self.tokens(on_gpu), self.tokens(on_cpu))
                self.assertIs(self.run_ok("verify", on_gpu.address, checkpoint(version=2)).object["equal"], True)
                for engine in (on_cpu, on_gpu):
                    self.run_ok("rollback", engine.address)
                self.assertEqual(self.tokens(on_gpu), self.tokens(on_cpu))
                details = self.run_ok("status", on_gpu.address, "--details").object["details"]
                self.assertEqual(details["device"], device)

    def test_a_version_goes_from_a_trainers_gpu_to_the_engine_on_the_same_one(self):
        engine = self.start_engine(checkpoint(), "--device", "cuda:1", "--kv-pages", 64, env=TWO_GPUS)
        on_cpu = self.start_engine(checkpoint(version=2))

        sent = run("publish", checkpoint(version=2), "--to", engine.address, "--transport", "cuda_ipc", "--device", "1",
                   env={**self.env, **TWO_GPUS})  # fmt: skip

        self.assertEqual(sent.code, 0, sent)
        self.assertEqual(sent.object["transport"], "cuda_ipc")
        self.assertEqual(engine.status()["live"]["digest"], on_cpu.ready["digest"])
        self.assertEqual(self.tokens(engine), self.tokens(on_cpu))

    def test_a_version_goes_from_a_trainers_gpu_to_an_engine_on_another_by_nccl(self):
        engine = self.start_engine(checkpoint(), "--device", "cuda:1", "--kv-pages", 64, env=TWO_GPUS)
        on_cpu = self.start_engine(checkpoint(version=2))
        for device, transport in (("0", "nccl"), ("1", "grpc")):  # NCCL takes no two ranks on one device
            with self.subTest(device=device):
                sent = run("publish", checkpoint(version=2), "--to", engine.address, "--transport", "nccl",
                           "--device", device, env={**self.env, **TWO_GPUS})  # fmt: skip

                self.assertEqual(sent.code, 0, sent)
                self.assertEqual(sent.object["transport"], transport)
                self.assertEqual(engine.status()["live"]["digest"], on_cpu.ready["digest"])
                self.assertEqual(self.tokens(engine), self.tokens(on_cpu))

    def test_an_engine_on_a_device_copies_what_a_daemon_lends_and_follows_it(self):
        socket = self.runtime / "cache.sock"
        daemon = self.start("daemon", checkpoint(), "--socket", socket)
        daemon.address = daemon.until(lambda event: event.get("event") == "listening")["address"]
        daemon.until(lambda event: event.get("event") == "ready")
        on_cpu = self.start_engine(checkpoint())
        engines = [self.start_engine(checkpoint(), "--device", "cuda:1", "--kv-pages", 64, "--from-daemon", socket, "--flip", flip,
                                     env=TWO_GPUS) for flip in ("shadow", "in_place")]  # fmt: skip
        for engine in engines:
            self.assertEqual((engine.ready["source"], engine.ready["digest"]), ("daemon", on_cpu.ready["digest"]))
            self.assertEqual(self.tokens(engine), self.tokens(on_cpu))

        self.publish_ok(checkpoint(version=2), daemon)
        self.publish_ok(checkpoint(version=2), on_cpu)

        for engine in engines:
            watch = self.start("watch", engine.address)
            watch.until(lambda line: line["live"]["digest"] == on_cpu.status()["live"]["digest"] and line["ready"])
            watch.kill()
            self.assertEqual(self.tokens(engine), self.tokens(on_cpu))
            self.assertIs(self.run_ok("verify", engine.address, checkpoint(version=2)).object["equal"], True)

    def test_devices_that_are_not_there_or_too_few_are_refused_with_those_that_are(self):
        """C-095."""
        for arguments, reason in ((("--device", "cuda:7"), "no_such_device"),
                                  (("--device", "cuda:0", "--tp", 2), "bad_options")):  # fmt: skip
            with self.subTest(arguments):
                ended = run("engine", checkpoint(), *arguments, env=TWO_GPUS)

                self.assertEqual(ended.code, 1, ended)
                self.assertEqual(ended.error["reason"], reason)


class NoGpuTest(EndToEndTest):
    @unittest.skipIf(pathlib.Path("/dev/nvidiactl").exists(), "this machine has a GPU")
    def test_without_a_gpu_an_engine_for_one_says_so_and_ends(self):
        ended = run("engine", checkpoint(), "--device", "cuda:0")

        self.assertEqual(ended.code, 1, ended)
        self.assertIn(ended.error["reason"], ("no_cuda_device", "no_cuda_backend"))
        self.assertIn("nvidia-smi" if FAKES else "BASCULE_CUDA", ended.error["message"])

    def test_a_device_that_is_no_device_is_wrong_usage(self):
        for device in ("gpu", "cuda", "cuda:", "cuda:x", "cuda:0,", "cuda:-1", "cpu,cuda:0"):
            with self.subTest(device):
                self.assertEqual(run("engine", checkpoint(), "--device", device).code, 2)


if __name__ == "__main__":
    unittest.main()
