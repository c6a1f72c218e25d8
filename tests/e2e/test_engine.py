"""An engine on a checkpoint written by plain Python: what it serves, says of itself, and leaves behind."""

import signal
import subprocess
import unittest

from bascule_program import PROGRAM, EndToEndTest, checkpoint, run
import digest_oracle

try:
    import numpy  # noqa: F401
    import forward_oracle
except ImportError:
    forward_oracle = None

STATUS_KEYS = [
    "role", "model", "live", "kept", "session", "last_error", "ranks", "requests", "kv", "flips", "staleness", "ready",
]  # fmt: skip


class EngineTest(EndToEndTest):
    def test_its_version_is_the_digest_of_the_checkpoint_in_its_own_type(self):
        for stored, dtype in (("BF16", "keep"), ("F32", "keep"), ("F32", "bf16"), ("BF16", "fp32")):
            with self.subTest(stored=stored, dtype=dtype):
                path = checkpoint(dtype=stored)

                engine = self.start_engine(path, "--dtype", dtype)

                wanted = digest_oracle.version_digest(path, dtype)
                self.assertEqual(engine.ready["digest"], wanted)
                self.assertEqual(engine.status()["live"]["digest"], wanted)
                engine.kill()

    def test_every_supported_kind_of_model_loads(self):
        for kind in ("dense", "tied", "tied-head", "bias", "qk-norm", "mistral", "llama3"):
            with self.subTest(kind):
                engine = self.start_engine(checkpoint(kind))

                answer = self.generate(engine, [1, 2, 3], "--max-new", 4)

                self.assertEqual(len(answer["tokens"]), 4)
                engine.kill()

    def test_the_status_has_the_keys_of_the_contract(self):
        engine = self.start_engine(checkpoint(), "--version", 3, "--run", "mine")

        status = engine.status()

        self.assertEqual(list(status), STATUS_KEYS)
        self.assertEqual(status["role"], "engine")
        self.assertEqual(list(status["live"]), ["version", "run", "digest", "since"])
        self.assertEqual((status["live"]["version"], status["live"]["run"]), (3, "mine"))
        self.assertIsNone(status["kept"])
        self.assertIsNone(status["session"])
        self.assertIsNone(status["last_error"])
        self.assertEqual([list(rank) for rank in status["ranks"]], [["rank", "live_version", "digest", "slot_bytes"]])
        self.assertEqual(status["ranks"][0]["digest"], status["live"]["digest"])
        self.assertGreater(status["ranks"][0]["slot_bytes"], 0)
        self.assertEqual(status["requests"], {"running": 0, "waiting": 0})
        self.assertEqual(list(status["kv"]), ["policy", "pages_used", "pages_total", "prefix_entries"])
        self.assertEqual(status["kv"]["policy"], "recompute")
        self.assertEqual(status["flips"], {"count": 0, "stall_us": {"p50": 0, "p99": 0, "max": 0}})
        self.assertEqual(status["staleness"], 0)
        self.assertIs(status["ready"], True)

    def test_details_are_one_more_key_and_count_every_flip(self):
        engine = self.start_engine(checkpoint())
        for version in (2, 3, 2):
            self.publish_ok(checkpoint(version=version), engine)

        status = self.run_ok("status", engine.address, "--details").object

        self.assertEqual(list(status), [*STATUS_KEYS, "details"])
        details = status["details"]
        self.assertEqual(list(details), ["stall_histogram_us", "token_gap_histogram_us", "staging_share", "device"])
        self.assertEqual(details["device"], "cpu")
        self.assertEqual(details["stall_histogram_us"], [{"up_to": 1, "count": 3}])  # nothing was decoding
        self.assertEqual(details["token_gap_histogram_us"], [])
        self.assertGreater(details["staging_share"], 0)

    def test_manners_of_threads_that_cannot_be_are_refused_before_it_listens(self):
        for arguments, code in ((("--staging-slowdown", "0.5"), 2), (("--decode-cores", "99999"), 1),
                                (("--staging-cores", "0,0"), 1)):  # fmt: skip
            with self.subTest(arguments):
                ended = self.start("engine", checkpoint(), *arguments).finish()

                self.assertEqual(ended.code, code, ended)
                if code == 1:
                    self.assertEqual(ended.error["reason"], "bad_cores")

    def test_a_runtime_directory_that_is_not_there_is_said_with_the_variable_that_names_it(self):
        for place in ("/nonexistent", f"{self.runtime}/{'long' * 30}"):
            with self.subTest(place):
                ended = self.start("engine", checkpoint(), env={"XDG_RUNTIME_DIR": place}).finish()

                self.assertEqual(ended.code, 1, ended)
                self.assertIn(ended.error["reason"], ("runtime_directory", "bad_socket_path"))
                self.assertIn("XDG_RUNTIME_DIR", ended.error["message"])

    def test_the_initial_load_is_the_first_row_of_its_history(self):
        engine = self.start_engine(checkpoint())

        rows = self.run_ok("versions", engine.address).objects

        self.assertEqual(len(rows), 1)
        self.assertEqual(
            list(rows[0]),
            ["version", "run", "digest", "kind", "outcome", "reason", "at", "bytes", "stage_ms", "verify_ms",
             "flip_stall_us"],
        )  # fmt: skip
        self.assertEqual(
            [rows[0][key] for key in ("version", "run", "kind", "outcome", "reason")],
            [0, "checkpoint", "initial", "committed", None],
        )
        self.assertEqual(rows[0]["digest"], engine.ready["digest"])

    def test_it_listens_on_a_unix_socket_too(self):
        address = f"unix:{self.runtime}/engine.socket"
        engine = self.start_engine(checkpoint(), listen=address)

        self.assertEqual(engine.address, address)
        self.assertTrue(engine.status()["ready"])
        self.stop(engine)
        self.assert_nothing_left()


class GenerateTest(EndToEndTest):
    @unittest.skipIf(forward_oracle is None, "needs the Python package numpy")
    def test_greedy_tokens_and_their_log_probabilities_are_those_of_the_oracle(self):
        # 90 positions: Llama 3's scaling of the `llama3` model begins to tell beyond a few.
        for kind in ("dense", "tied", "bias", "qk-norm", "mistral", "llama3"):
            with self.subTest(kind):
                path = checkpoint(kind)
                engine = self.start_engine(path)
                prompt = [5, 17, 99, 3] * 17

                answer = self.generate(engine, prompt, "--max-new", 22)

                wanted = forward_oracle.greedy(forward_oracle.Model(path, "float64"), prompt, 22)
                self.assertEqual(answer["tokens"], wanted["tokens"])
                for ours, theirs in zip(answer["logprobs"], wanted["logprobs"]):
                    self.assertAlmostEqual(ours, theirs, places=4)
                engine.kill()

    def test_the_stream_adds_up_to_the_whole(self):
        engine = self.start_engine(checkpoint())

        objects = self.run_ok(
            "generate", engine.address, "--tokens", "1,2,3", "--max-new", 40, "--stream"
        ).objects

        pieces, whole = objects[:-1], objects[-1]
        self.assertEqual([list(piece) for piece in pieces], [["tokens", "logprobs"]] * len(pieces))
        self.assertEqual(list(whole), ["tokens", "logprobs", "spans", "finish"])
        self.assertEqual(sum((piece["tokens"] for piece in pieces), []), whole["tokens"])
        self.assertEqual(sum((piece["logprobs"] for piece in pieces), []), whole["logprobs"])
        self.assertEqual(whole, self.generate(engine, [1, 2, 3], "--max-new", 40))

    def test_one_version_makes_one_span(self):
        engine = self.start_engine(checkpoint(), "--version", 7, "--run", "r")

        answer = self.generate(engine, [1], "--max-new", 9)

        self.assertEqual(answer["spans"], [{"begin": 0, "end": 9, "version": 7, "kv_epoch": 7}])
        self.assertEqual(answer["finish"], "length")
        self.assertEqual(len(answer["logprobs"]), 9)

    def test_a_stop_token_ends_it_and_belongs_to_it(self):
        engine = self.start_engine(checkpoint())
        free = self.generate(engine, [1, 2], "--max-new", 20)["tokens"]
        stop = free[7]

        answer = self.generate(engine, [1, 2], "--max-new", 20, "--stop", f"{stop},{stop}")

        self.assertEqual(answer["finish"], "stop")
        self.assertEqual(answer["tokens"], free[: free.index(stop) + 1])

    def test_a_seed_gives_the_same_tokens_again_and_another_seed_others(self):
        engine = self.start_engine(checkpoint())
        sampled = ("--max-new", 32, "--temperature", "1.5", "--seed")

        first, again, other = (self.generate(engine, [4, 5], *sampled, seed) for seed in (11, 11, 12))

        self.assertEqual(first, again)
        self.assertNotEqual(first["tokens"], other["tokens"])

    def test_ctrl_c_ends_the_client_with_130_and_its_request_in_the_engine(self):
        engine = self.start_engine(checkpoint())
        client = self.start("generate", engine.address, "--tokens", "1", "--max-new", 4000, "--stream")
        client.next()

        client.send(signal.SIGINT)

        ended = client.finish(10)
        self.assertEqual(ended.code, 130, ended)
        self.assertEqual(ended.error["reason"], "interrupted")
        self.until_idle(engine)

    def test_a_client_that_is_killed_leaves_no_request_in_the_engine(self):
        engine = self.start_engine(checkpoint())
        client = self.start("generate", engine.address, "--tokens", "1", "--max-new", 4000, "--stream")
        client.next()

        client.send(signal.SIGKILL)

        client.finish(10)
        self.until_idle(engine)

    def test_a_reader_of_the_stream_that_goes_away_ends_the_request(self):
        engine = self.start_engine(checkpoint(size=40_000_000))
        # A quarter of a million tokens: minutes, were they all made.
        arguments = ["--tokens", "1", "--max-new", "4000", "--samples", "64", "--stream", "--json"]
        client = subprocess.Popen(
            [PROGRAM, "generate", engine.address, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        client.stdout.readline()

        client.stdout.close()

        self.assertEqual(client.wait(60), 0)
        self.assertEqual(client.stderr.read(), "")
        client.stderr.close()
        self.until_idle(engine)

    def until_idle(self, engine):
        """Each answer of the engine is another look; a request that stays makes the test run into its time limit."""
        while engine.status()["requests"] != {"running": 0, "waiting": 0}:
            pass
        self.assertEqual(engine.status()["kv"]["pages_used"], 0)


class StopTest(EndToEndTest):
    def stop_with_clients(self, signal_number):
        engine = self.start_engine(checkpoint())
        clients = [
            self.start("generate", engine.address, "--tokens", "1", "--max-new", 4000, "--stream"),
            self.start("watch", engine.address),
        ]
        for client in clients:
            client.next()

        ended = self.stop(engine, signal_number)

        for client in clients:
            client.finish(10)
        self.assert_nothing_left()
        return ended

    def test_sigterm_ends_it_with_0_within_10_s_though_clients_are_there(self):
        ended = self.stop_with_clients(signal.SIGTERM)

        self.assertEqual(ended.code, 0, ended)

    def test_ctrl_c_ends_it_with_130(self):
        ended = self.stop_with_clients(signal.SIGINT)

        self.assertEqual(ended.code, 130, ended)

    def test_watch_ends_with_130_on_ctrl_c(self):
        engine = self.start_engine(checkpoint())
        watch = self.start("watch", engine.address)
        self.assertEqual(list(watch.next()), STATUS_KEYS)

        watch.send(signal.SIGINT)

        self.assertEqual(watch.finish(10).code, 130)

    def test_watch_ends_with_4_when_its_engine_is_killed(self):
        engine = self.start_engine(checkpoint())
        watch = self.start("watch", engine.address)
        watch.next()

        engine.kill()

        ended = watch.finish(10)
        self.assertEqual(ended.code, 4, ended)
        self.assertEqual(ended.error["peer"], engine.address)


class HelpTest(EndToEndTest):
    def test_every_level_has_help_with_an_example(self):
        commands = ["engine", "publish", "generate", "status", "watch", "versions", "rollback", "digest", "verify", "inspect", "map",
                    "shard", "unshard", "bench"]  # fmt: skip
        for command in ([], *([name] for name in commands)):
            with self.subTest(command):
                ended = run(*command, "--help", as_json=False)

                self.assertEqual(ended.code, 0)
                self.assertIn("Example", ended.stdout)
                self.assertIn(f"bascule {' '.join(command)}".strip(), ended.stdout)


if __name__ == "__main__":
    unittest.main()
