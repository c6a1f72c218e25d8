"""Publishing into an engine that decodes: nobody fails, nothing is mixed, and there is a way back."""

import unittest

from bascule_program import EndToEndTest, checkpoint, run
import digest_oracle


class PublishTest(EndToEndTest):
    def test_the_report_has_the_keys_of_the_contract_and_the_digest_of_both_sides(self):
        engine = self.start_engine(checkpoint())

        report = self.publish_ok(checkpoint(version=2), engine)

        digest = digest_oracle.version_digest(checkpoint(version=2))
        self.assertEqual(list(report), ["version", "version_digest", "bytes", "wire_bytes", "transport", "replicas"])
        self.assertEqual((report["version"], report["version_digest"], report["transport"]), (1, digest, "shm"))
        replica = report["replicas"][0]
        self.assertEqual(
            list(replica), ["address", "state", "stage_ms", "verify_ms", "flip_stall_us", "digest", "kv", "error"]
        )
        self.assertEqual(
            [replica[key] for key in ("address", "state", "digest", "error", "flip_stall_us")],
            [engine.address, "committed", digest, None, 0],
        )
        self.assertEqual(
            replica["kv"], {"recomputed": 0, "drained": 0, "kept": 0, "aborted": 0, "recompute_tokens": 0}
        )
        self.assertEqual(engine.status()["live"]["digest"], digest)
        self.assertTrue(self.run_ok("verify", checkpoint(version=2), engine.address).object["equal"])

    def test_both_transports_give_the_same_version(self):
        engine = self.start_engine(checkpoint())

        for transport in ("grpc", "shm"):
            with self.subTest(transport):
                report = self.publish_ok(checkpoint(version=2), engine, arguments=("--transport", transport))

                self.assertEqual(report["transport"], transport)
                self.assertEqual(report["version_digest"], digest_oracle.version_digest(checkpoint(version=2)))
                self.publish_ok(checkpoint(version=1), engine)

    def test_an_fp32_checkpoint_is_rounded_by_the_publisher(self):
        engine = self.start_engine(checkpoint())

        report = self.publish_ok(checkpoint(version=2, dtype="F32"), engine)

        self.assertEqual(
            report["version_digest"], digest_oracle.version_digest(checkpoint(version=2, dtype="F32"), "bf16")
        )

    def test_two_replicas_get_the_same_version(self):
        engines = [self.start_engine(checkpoint()) for _ in range(2)]

        report = self.publish_ok(checkpoint(version=2), *engines)

        self.assertEqual([replica["state"] for replica in report["replicas"]], ["committed", "committed"])
        self.assertEqual(len({engine.status()["live"]["digest"] for engine in engines}), 1)

    def test_a_replica_that_is_not_there_fails_alone(self):
        engine = self.start_engine(checkpoint())

        ended = run("publish", checkpoint(version=2), "--to", f"127.0.0.1:1,{engine.address}", env=self.env)

        self.assertEqual(ended.code, 4, ended)
        self.assertEqual([r["state"] for r in ended.objects[0]["replicas"]], ["aborted", "committed"])
        self.assertEqual(ended.error["peer"], "127.0.0.1:1")
        self.assertEqual(ended.error["phase"], "connect")
        self.assertEqual(engine.status()["live"]["version"], 1)

    def test_numbers_go_on_from_the_highest_seen_and_a_new_run_starts_anywhere(self):
        engine = self.start_engine(checkpoint())

        numbers = [
            self.publish_ok(checkpoint(version=2), engine, arguments=arguments)["version"]
            for arguments in ((), ("--version", 40), (), ("--run", "next", "--new-run", "--version", 5), ())
        ]

        self.assertEqual(numbers, [1, 40, 41, 5, 6])
        self.assertEqual(engine.status()["live"]["run"], "next")

    def test_an_ignored_tensor_is_not_sent_and_a_pattern_that_matches_nothing_is_an_error(self):
        engine = self.start_engine(checkpoint("tied"))
        file = checkpoint("tied-head") / "model.safetensors"  # no config: the head is a tensor like any other

        self.assert_fails(self.publish(file, engine), 1, "tensor_unexpected")
        self.assert_fails(
            self.publish(file, engine, arguments=("--ignore", "lm_head.weight", "--ignore", "nothing.*")),
            1,
            "ignore_matches_nothing",
        )
        self.publish_ok(file, engine, arguments=("--ignore", "lm_head.*"))
        self.assertEqual(engine.status()["live"]["version"], 1)

    def test_a_publisher_serves_its_own_status(self):
        engine = self.start_engine(checkpoint(size=64_000_000))
        publisher = self.start(
            "publish", checkpoint(size=64_000_000, version=2), "--to", engine.address, "--listen", "127.0.0.1:0"
        )

        address = publisher.next()["address"]
        status = run("status", address)

        self.assertEqual(publisher.finish().code, 0)
        if status.code == 0:  # the publish may be over before
            self.assertEqual(list(status.object), ["role", "newest", "committed", "publishing", "replicas"])
            self.assertEqual(status.object["role"], "publisher")


class PublishWhileDecodingTest(EndToEndTest):
    PROMPTS = [[3 + client, 50, 7 * client + 1] for client in range(8)]
    NEW_TOKENS = 3000

    def streams(self, engine):
        clients = [
            self.start(
                "generate", engine.address, "--tokens", ",".join(map(str, prompt)), "--max-new", self.NEW_TOKENS,
                "--stream", *(("--temperature", "1", "--seed", number) if number % 2 else ()),
            )
            for number, prompt in enumerate(self.PROMPTS)
        ]  # fmt: skip
        for client in clients:
            client.next()
        return clients

    def test_no_client_fails_and_tokens_after_the_flip_equal_a_cold_engine_to_the_last_bit(self):
        for flip in ("shadow", "in_place"):
            with self.subTest(flip):
                self.publish_while_decoding(flip)

    def publish_while_decoding(self, flip):
        first, second = checkpoint(), checkpoint(version=2)
        engine = self.start_engine(first, "--flip", flip)
        clients = self.streams(engine)

        report = self.publish_ok(second, engine)

        answers = [client.finish() for client in clients]
        self.assertEqual([answer.code for answer in answers], [0] * 8)
        answers = [answer.object for answer in answers]
        for answer in answers:
            self.assert_spans_add_up(answer)
        flipped = [number for number, answer in enumerate(answers) if len(answer["spans"]) == 2]
        self.assertTrue(flipped, "no client was running at the flip")
        self.assertGreaterEqual(report["replicas"][0]["kv"]["recomputed"], len(flipped))
        self.assertGreater(engine.status()["flips"]["count"], 0)
        self.assertTrue(self.run_ok("verify", second, engine.address).object["equal"])
        self.assert_equal_cold(flipped, answers, self.start_engine(first), self.start_engine(second))

    def assert_spans_add_up(self, answer):
        self.assertEqual(answer["finish"], "length")
        self.assertEqual(len(answer["tokens"]), self.NEW_TOKENS)
        self.assertEqual(len(answer["logprobs"]), self.NEW_TOKENS)
        ends = [0] + [span["end"] for span in answer["spans"]]
        self.assertEqual([span["begin"] for span in answer["spans"]], ends[:-1])
        self.assertEqual(ends[-1], self.NEW_TOKENS)
        # `recompute` makes all key/value state anew: nothing of the old version is read under the new one.
        self.assertEqual([s["kv_epoch"] for s in answer["spans"]], [s["version"] for s in answer["spans"]])
        self.assertEqual([s["version"] for s in answer["spans"]], [0, 1][: len(answer["spans"])])

    def assert_equal_cold(self, flipped, answers, cold_first, cold_second):
        for number in flipped:
            answer, prompt = answers[number], self.PROMPTS[number]
            flip = answer["spans"][0]["end"]
            sampling = ("--temperature", "1", "--seed", number) if number % 2 else ()
            before = self.generate(cold_first, prompt, "--max-new", flip, *sampling)
            after = self.generate(
                cold_second, prompt + answer["tokens"][:flip], "--max-new", self.NEW_TOKENS - flip, *sampling
            )
            self.assertEqual(before["tokens"], answer["tokens"][:flip])
            self.assertEqual(before["logprobs"], answer["logprobs"][:flip])
            self.assertEqual(after["tokens"], answer["tokens"][flip:])
            self.assertEqual(after["logprobs"], answer["logprobs"][flip:])


class WatchTest(EndToEndTest):
    def test_every_change_of_a_publish_is_a_line(self):
        engine = self.start_engine(checkpoint())
        watch = self.start("watch", engine.address)
        self.assertEqual(watch.next()["live"]["version"], 0)

        self.publish_ok(checkpoint(version=2), engine)

        states = []
        live = 0
        while live == 0:
            line = watch.next()
            live = line["live"]["version"]
            states.append((line["session"] or {}).get("state"))
        self.assertEqual(states, ["offered", "receiving", "sealed", "ready", None])

    def test_a_rollback_is_a_line(self):
        engine = self.start_engine(checkpoint())
        self.publish_ok(checkpoint(version=2), engine)
        watch = self.start("watch", engine.address)
        self.assertEqual(watch.next()["live"]["version"], 1)

        self.run_ok("rollback", engine.address)

        self.assertEqual(watch.next()["live"]["version"], 0)


class RollbackTest(EndToEndTest):
    def test_the_kept_version_comes_back_with_its_number_and_its_tokens(self):
        for flip in ("shadow", "in_place"):
            with self.subTest(flip):
                self.publish_and_roll_back(self.start_engine(checkpoint(), "--flip", flip))

    def publish_and_roll_back(self, engine):
        before = self.generate(engine, [1, 2, 3])
        self.publish_ok(checkpoint(version=2), engine)
        between = self.generate(engine, [1, 2, 3])

        report = self.run_ok("rollback", engine.address, "--to", 0).object

        self.assertEqual(list(report), ["version", "digest", "flip_stall_us"])
        self.assertEqual((report["version"], report["digest"]), (0, engine.ready["digest"]))
        self.assertEqual(self.generate(engine, [1, 2, 3]), before)
        self.assertNotEqual(between["tokens"], before["tokens"])
        status = engine.status()
        self.assertEqual((status["live"]["version"], status["kept"]["version"]), (0, 1))
        self.assertEqual(status["flips"]["count"], 2)

    def test_there_is_no_way_back_before_the_first_publish(self):
        engine = self.start_engine(checkpoint())

        self.assert_fails(run("rollback", engine.address), 1, "no_kept_version")

    def test_a_number_that_is_not_kept_is_refused_and_nothing_changes(self):
        engine = self.start_engine(checkpoint())
        self.publish_ok(checkpoint(version=2), engine)

        self.assert_fails(run("rollback", engine.address, "--to", 7), 1, "version_not_kept")

        self.assertEqual(engine.status()["live"]["version"], 1)

    def test_a_number_is_not_used_again_after_a_rollback(self):
        engine = self.start_engine(checkpoint())
        self.publish_ok(checkpoint(version=2), engine)
        self.run_ok("rollback", engine.address)

        self.assert_fails(
            self.publish(checkpoint(version=2), engine, arguments=("--version", 1)), 1, "version_reused"
        )
        self.assertEqual(self.publish_ok(checkpoint(version=2), engine)["version"], 2)

    def test_the_history_has_a_row_for_the_load_each_session_and_each_rollback(self):
        engine = self.start_engine(checkpoint())
        self.publish_ok(checkpoint(version=2), engine)
        self.run_ok("rollback", engine.address)
        self.publish(checkpoint(version=2), engine, arguments=("--version", 1))  # refused: no row

        rows = self.run_ok("versions", engine.address).objects

        self.assertEqual(
            [(row["version"], row["kind"], row["outcome"]) for row in rows],
            [(0, "initial", "committed"), (1, "full", "committed"), (0, "rollback", "committed")],
        )
        self.assertEqual(rows[1]["digest"], digest_oracle.version_digest(checkpoint(version=2)))
        self.assertGreater(rows[1]["bytes"], 0)


class GrowthTest(EndToEndTest):
    def test_two_hundred_publishes_leave_no_descriptor_thread_or_memory(self):
        engine = self.start_engine(checkpoint())
        paths = [checkpoint(), checkpoint(version=2)]

        def publish(count):
            for number in range(count):
                self.publish_ok(paths[number % 2], engine, arguments=("--transport", ("shm", "grpc")[number // 2 % 2]))
            self.generate(engine, [1], "--max-new", 2)
            return engine.census()

        settled = publish(40)
        grown = publish(160)

        # One a publish would be 160. gRPC keeps a few threads and connections more or less about.
        self.assertLess(grown["descriptors"] - settled["descriptors"], 8)
        self.assertLess(grown["threads"] - settled["threads"], 8)
        # One leaked version would be 0.2 MB a publish; allocators settle within a few.
        self.assertLess(grown["resident_kb"] - settled["resident_kb"], 8 * 1024)
        self.assertEqual(engine.status()["live"]["version"], 200)
        self.assertEqual(self.stop(engine).code, 0)
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
