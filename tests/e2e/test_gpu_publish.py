"""`publish --transport cuda_ipc` and engines on a GPU, over the fake CUDA runtime, which says nothing about a GPU: what is said where
they do not fit together, and what faults of either side leave behind."""

import os
import signal
import unittest

from bascule_program import EndToEndTest, checkpoint, run

# What makes a process find the fakes: "NAME=VALUE NAME=VALUE", of the build.
FAKES = dict(setting.split("=", 1) for setting in os.environ.get("BASCULE_FAKE_CUDA", "").split())
LARGE, SLOW = 5_000_000, "512KiB"  # three buckets, of which the second goes after four seconds


def large(version):
    return checkpoint(size=LARGE, version=version)


@unittest.skipUnless(FAKES, "a build without CUDA (BASCULE_CUDA=OFF)")
class GpuTest(EndToEndTest):
    def setUp(self):
        super().setUp()
        self.env |= {**FAKES, "BASCULE_FAKE_CUDA_DEVICES": "0,1", "BASCULE_FAKE_CUDA_STANDS": "0"}

    def start_gpu_engine(self, path, *arguments):
        return self.start_engine(path, "--device", "cuda:0", "--kv-pages", 64, *arguments)

    def publish_over_cuda_ipc(self, path, engine, *arguments, env=None):
        return run(
            "publish", path, "--to", engine.address, "--transport", "cuda_ipc", *arguments, env={**self.env, **(env or {})}
        )

    def assert_live(self, engine, path, version):
        self.assertEqual(engine.status()["live"]["version"], version)
        self.assertTrue(self.run_ok("verify", path, engine.address).object["equal"])


class CudaIpcPublishTest(GpuTest):
    def test_a_version_goes_live_without_leaving_the_gpu_that_both_processes_number_differently(self):
        engine = self.start_gpu_engine(checkpoint())

        # There the engine's GPU is number 1.
        ended = self.publish_over_cuda_ipc(
            checkpoint(version=2), engine, "--device", "cuda:1", env={"BASCULE_FAKE_CUDA_DEVICES": "1,0"}
        )

        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(ended.object["transport"], "cuda_ipc")
        self.assert_live(engine, checkpoint(version=2), 1)
        rollout = self.generate(engine, [1, 2, 3], "--max-new", 3)
        self.assertEqual([span["version"] for span in rollout["spans"]], [1])
        self.run_ok("rollback", engine.address)
        self.assert_live(engine, checkpoint(), 0)

    def test_trainer_ranks_in_processes_of_their_own_send_their_shares(self):
        engine = self.start_gpu_engine(checkpoint(), "--transport", "cuda_ipc")

        ended = self.publish_over_cuda_ipc(checkpoint(version=2), engine, "--trainer-ranks", 2)

        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(ended.object["transport"], "cuda_ipc")
        self.assert_live(engine, checkpoint(version=2), 1)

    def test_an_engine_on_a_gpu_takes_versions_from_host_memory_too(self):
        engine = self.start_gpu_engine(checkpoint())

        published = self.publish_ok(checkpoint(version=2), engine)

        self.assertEqual(published["transport"], "shm")
        self.assert_live(engine, checkpoint(version=2), 1)


class MismatchTest(GpuTest):
    def test_without_a_gpu_both_sides_say_so(self):
        no_gpu = {**self.env, "BASCULE_FAKE_CUDA_DEVICES": ""}
        for command in (
            ("publish", checkpoint(), "--to", "127.0.0.1:1", "--transport", "cuda_ipc"),
            ("engine", checkpoint(), "--device", "cuda:0"),
        ):
            self.assert_fails(run(*command, env=no_gpu), 1, "no_cuda_device")

    def test_slots_on_another_gpu_are_told_from_where_the_weights_lie(self):
        engine = self.start_gpu_engine(checkpoint())

        ended = self.publish_over_cuda_ipc(checkpoint(version=2), engine, "--device", "cuda:1")

        self.assert_fails(ended, 1, "transport_unavailable")
        for named in ("offers cuda_ipc:GPU-", "000000000000:", "cuda_ipc from GPU-", "000000000001"):
            self.assertIn(named, ended.stderr)
        self.assert_live(engine, checkpoint(), 0)

    def test_slots_in_host_memory_are_not_reached_from_a_gpu(self):
        engine = self.start_engine(checkpoint())

        ended = self.publish_over_cuda_ipc(checkpoint(version=2), engine)

        self.assert_fails(ended, 1, "transport_unavailable")

    def test_an_engine_without_a_gpu_cannot_offer_cuda_ipc(self):
        ended = run("engine", checkpoint(), "--transport", "cuda_ipc", env=self.env)

        self.assertEqual(ended.code, 2, ended)
        self.assertIn("--device", ended.stderr)


class CudaIpcFaultTest(GpuTest):
    def publish_caught_receiving(self, engine):
        watch = self.start("watch", engine.address)
        watch.next()
        publisher = self.start(
            "publish", large(2), "--to", engine.address, "--transport", "cuda_ipc", "--max-rate", SLOW, "--deadline", "60s"
        )
        watch.until(lambda line: (line["session"] or {}).get("state") == "receiving")
        return publisher, watch

    def test_a_killed_publisher_changes_nothing_and_the_next_version_goes_live(self):
        engine = self.start_gpu_engine(large(1))
        publisher, watch = self.publish_caught_receiving(engine)

        publisher.send(signal.SIGKILL)

        publisher.finish()
        watch.until(lambda line: line["session"] is None)
        self.assert_live(engine, large(1), 0)
        self.assertEqual(self.publish_over_cuda_ipc(large(2), engine).code, 0)
        self.assert_live(engine, large(2), 1)

    def test_a_killed_engine_ends_the_publish_by_name(self):
        engine = self.start_gpu_engine(large(1))
        publisher, _ = self.publish_caught_receiving(engine)

        engine.send(signal.SIGKILL)

        self.assert_fails(publisher.finish(), 4, "peer_lost")

    def test_a_device_that_fails_the_publisher_leaves_the_engine_as_it_was(self):
        engine = self.start_gpu_engine(checkpoint())

        failed = self.publish_over_cuda_ipc(
            checkpoint(version=2), engine, env={"BASCULE_FAKE_CUDA_FAULTS": "cudaLaunchKernelExC:1=9"}
        )

        self.assert_fails(failed, 1, "device_error")
        self.assert_live(engine, checkpoint(), 0)
        self.assertEqual(self.publish_over_cuda_ipc(checkpoint(version=2), engine).code, 0)


if __name__ == "__main__":
    unittest.main()
