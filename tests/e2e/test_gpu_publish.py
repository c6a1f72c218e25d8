"""`publish --transport cuda_ipc` and `nccl` to engines on one GPU or two, over the fake CUDA runtime, which says nothing about a GPU: what
is said where they do not fit together, and what faults of either side leave behind."""

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

    def start_gpu_engine(self, path, *arguments, env=None):
        return self.start_engine(path, "--device", "cuda:0", "--kv-pages", 64, *arguments, env=env or self.env)

    def publish_over_cuda_ipc(self, path, engine, *arguments, env=None):
        return run(
            "publish", path, "--to", engine.address, "--transport", "cuda_ipc", *arguments, env={**self.env, **(env or {})}
        )

    def assert_live(self, engine, path, version):
        self.assertEqual(engine.status()["live"]["version"], version)
        self.assertTrue(self.run_ok("verify", path, engine.address).object["equal"])

    def assert_went_over_grpc(self, engine, ended, reason):
        """Version 1, after a session that ended for that reason: nothing of it is live, and its number is not used up."""
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(ended.object["transport"], "grpc")
        self.assertIn("publish_goes_another_way", ended.stderr)
        self.assertIn(reason, ended.stderr)
        rows = self.run_ok("versions", engine.address).objects
        self.assertEqual(
            [(row["version"], row["outcome"], row["reason"]) for row in rows[1:]],
            [(1, "aborted", reason), (1, "committed", None)],
        )
        self.assert_live(engine, checkpoint(version=2), 1)


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


class SeveralGpusTest(GpuTest):
    """An engine of two ranks on two GPUs, of which the publisher shares one."""

    def start_two_gpu_engine(self, *arguments, env=None):
        return self.start_engine(
            checkpoint(), "--tp", 2, "--device", "cuda:0,1", "--kv-pages", 64, *arguments, env={**self.env, **(env or {})}
        )

    def test_each_rank_reads_the_publishers_memory_from_its_own_gpu(self):
        engine = self.start_two_gpu_engine("--transport", "cuda_ipc")

        # There GPU 1 is number 0, and number 1 is one that the engine does not use.
        ended = self.publish_over_cuda_ipc(
            checkpoint(version=2), engine, "--device", "cuda:0", env={"BASCULE_FAKE_CUDA_DEVICES": "1,2"}
        )

        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(ended.object["transport"], "cuda_ipc")
        self.assert_live(engine, checkpoint(version=2), 1)

    def test_a_gpu_that_no_rank_is_on_has_no_business_there(self):
        engine = self.start_two_gpu_engine()

        ended = self.publish_over_cuda_ipc(
            checkpoint(version=2), engine, "--device", "cuda:1", env={"BASCULE_FAKE_CUDA_DEVICES": "1,2"}
        )

        self.assert_fails(ended, 1, "transport_unavailable")
        self.assert_live(engine, checkpoint(), 0)

    def test_a_rank_whose_gpu_cannot_reach_the_publishers_is_named_and_the_version_goes_over_grpc(self):
        engine = self.start_two_gpu_engine(env={"BASCULE_FAKE_CUDA_FAR": "0-1"})

        ended = self.publish_over_cuda_ipc(checkpoint(version=2), engine)

        self.assert_went_over_grpc(engine, ended, "no_peer_access")
        for named in ("engine rank 1", "000000000000", "000000000001"):
            self.assertIn(named, ended.stderr)

    def test_where_grpc_is_not_offered_the_refusal_stands(self):
        engine = self.start_two_gpu_engine("--transport", "cuda_ipc", env={"BASCULE_FAKE_CUDA_FAR": "0-1"})

        ended = self.publish_over_cuda_ipc(checkpoint(version=2), engine)

        self.assert_fails(ended, 1, "no_peer_access")
        self.assert_live(engine, checkpoint(), 0)


class AnotherWayTest(GpuTest):
    """A link that fails, at either end, at its n-th call: the session ends by name, the version goes over gRPC, and the next
    publish is over the same link again."""

    def check(self, transport, device, reason, trainer_faults="", engine_faults="", arguments=()):
        engine = self.start_gpu_engine(checkpoint(), env={**self.env, "BASCULE_FAKE_CUDA_FAULTS": engine_faults})
        publish = ("--to", engine.address, "--transport", transport, "--device", device, *arguments)

        ended = run("publish", checkpoint(version=2), *publish, env={**self.env, "BASCULE_FAKE_CUDA_FAULTS": trainer_faults})

        self.assert_went_over_grpc(engine, ended, reason)
        again = run("publish", checkpoint(version=3), *publish, env=self.env)
        self.assertEqual(again.code, 0, again)
        self.assertEqual(again.object["transport"], transport)
        self.assert_live(engine, checkpoint(version=3), 2)

    def test_nccl_that_fails_the_publisher(self):
        for faults, reason in (("ncclGetUniqueId:1=2", "nccl_system_error"), ("ncclSend:1=1006", "nccl_remote_error")):
            with self.subTest(faults):
                self.check("nccl", "cuda:1", reason, trainer_faults=faults)

    def test_nccl_that_fails_the_engine(self):
        self.check("nccl", "cuda:1", "nccl_error", engine_faults="ncclRecv:1=3")

    def test_nccl_that_fails_one_of_two_trainer_ranks(self):
        self.check("nccl", "cuda:1", "nccl_error", trainer_faults="ncclSend:1=3", arguments=("--trainer-ranks", 2))

    def test_memory_that_cannot_be_exported_or_opened(self):
        self.check("cuda_ipc", "cuda:0", "device_error", trainer_faults="cudaIpcGetMemHandle:1=1")
        self.check("cuda_ipc", "cuda:0", "device_error", engine_faults="cudaIpcOpenMemHandle:1=801")


if __name__ == "__main__":
    unittest.main()
