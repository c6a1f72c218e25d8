"""Every mistake is a clear error with the right exit code, and costs nothing that was there before."""

import json
import shutil
import socket
import subprocess
import unittest

from bascule_program import PROGRAM, EndToEndTest, checkpoint, run, scratch
from test_tokens import walk

LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 269060552\n".format("a" * 64)


def broken(name, change):
    """A copy of a good checkpoint after `change`."""
    path = scratch() / f"broken-{name}"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(checkpoint(), path)
    change(path)
    return path


def with_config(name, **changes):
    def change(path):
        config = json.loads((path / "config.json").read_text())
        config.update(changes)
        (path / "config.json").write_text(json.dumps(config))

    return broken(name, change)


class UsageTest(EndToEndTest):
    def test_wrong_usage_is_told_in_few_words(self):
        cases = {
            "a command is required; see bascule --help": [],
            "no command 'engin'; see bascule --help": ["engin", "x"],
            "no option '--typo'; see bascule engine --help": ["engine", "x", "--typo", "1"],
            "--to is required; see bascule publish --help": ["publish", "x"],
            "'y' is one argument too many; see bascule status --help": ["status", "127.0.0.1:1", "y"],
            "--max-new: 0 is less than 1; see bascule generate --help":
                ["generate", "127.0.0.1:1", "--tokens", "1", "--max-new", "0"],
            "--temperature: -1 is less than 0; see bascule generate --help":
                ["generate", "127.0.0.1:1", "--tokens", "1", "--temperature", "-1"],
        }  # fmt: skip
        for message, arguments in cases.items():
            with self.subTest(message):
                self.assertEqual(run(*arguments).error["message"], message)

    def test_wrong_usage_is_exit_code_2(self):
        dense = checkpoint()
        cases = {
            "no command": [],
            "unknown command": ["frobnicate"],
            "unknown flag": ["status", "127.0.0.1:1", "--frobnicate"],
            "a flag that comes later": ["publish", dense, "--to", "127.0.0.1:1", "--delta"],
            "missing argument": ["status"],
            "missing option": ["publish", dense],
            "one argument too many": ["status", "127.0.0.1:1", "127.0.0.1:2"],
            "port is no number": ["status", "127.0.0.1:70x0"],
            "port too large": ["status", "127.0.0.1:70000"],
            "no port": ["publish", dense, "--to", "127.0.0.1"],
            "token is no number": ["generate", "127.0.0.1:1", "--tokens", "1,two"],
            "no token": ["generate", "127.0.0.1:1", "--tokens", ""],
            "no new token": ["generate", "127.0.0.1:1", "--tokens", "1", "--max-new", "0"],
            "negative temperature": ["generate", "127.0.0.1:1", "--tokens", "1", "--temperature", "-1"],
            "bad duration": ["publish", dense, "--to", "127.0.0.1:1", "--deadline", "5"],
            "unknown policy": ["publish", dense, "--to", "127.0.0.1:1", "--policy", "most"],
            "unknown transport": ["publish", dense, "--to", "127.0.0.1:1", "--transport", "pigeon"],
            "new run without a name": ["publish", dense, "--to", "127.0.0.1:1", "--new-run"],
            "negative version": ["publish", dense, "--to", "127.0.0.1:1", "--version", "-1"],
            "one slot": ["engine", dense, "--slots", "1"],
            "no request may wait, so none would ever run": ["engine", dense, "--max-waiting", "0"],
            "unknown dtype": ["digest", dense, "--dtype", "fp8"],
            "unknown flip": ["engine", dense, "--flip", "sideways"],
            "unknown log level": ["--log-level", "loud", "digest", dense],
        }
        for name, arguments in cases.items():
            with self.subTest(name):
                self.assert_fails(run(*arguments), 2, "usage")


class OutputTest(EndToEndTest):
    def test_what_stdout_does_not_take_is_a_failure(self):
        with open("/dev/full", "w") as full:
            ended = subprocess.run(
                [PROGRAM, "digest", checkpoint()], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )

        self.assertEqual(ended.returncode, 1)
        self.assertIn("[output_failed]", ended.stderr)

    def test_a_reader_that_goes_away_has_had_what_it_wanted(self):
        ended = subprocess.run(
            f"'{PROGRAM}' map '{checkpoint()}' --tp 2 --json | head -n 1; echo ${{PIPESTATUS[0]}}",
            shell=True, executable="/bin/bash", capture_output=True, text=True, check=False,
        )  # fmt: skip

        self.assertEqual(ended.stdout.splitlines()[1:], ["0"], ended.stderr)
        self.assertEqual(ended.stderr, "")


class ConfigFileTest(EndToEndTest):
    def write(self, text):
        path = self.runtime / "bascule.toml"
        path.write_text(text)
        return path

    def test_options_come_from_a_file(self):
        config = self.write('tensors = true\n[publish]\nto = ["127.0.0.1:1"]\n[digest]\ndtype = "fp32"\n')

        self.assertEqual(
            self.run_ok("digest", checkpoint(), "--config", config).object,
            self.run_ok("digest", checkpoint(), "--tensors", "--dtype", "fp32").object,
        )

    def test_the_command_line_wins(self):
        config = self.write('dtype = "fp32"\n')

        self.assertEqual(
            self.run_ok("digest", checkpoint(), "--dtype", "bf16", "--config", config).object,
            self.run_ok("digest", checkpoint()).object,
        )

    def test_required_options_may_come_from_it(self):
        config = self.write('to = ["127.0.0.1:1"]\n')

        self.assertEqual(run("publish", checkpoint(), "--config", config).code, 4)

    def test_a_mistake_in_it_is_wrong_usage(self):
        for text in ("dtype = \"fp8\"\n", "frobnicate = 1\n", "[digest]\nfrobnicate = 1\n"):
            with self.subTest(text):
                self.assert_fails(run("digest", checkpoint(), "--config", self.write(text)), 2, "usage")
        self.assert_fails(run("digest", checkpoint(), "--config", self.runtime / "none.toml"), 2, "usage")


class CheckpointTest(EndToEndTest):
    def test_a_checkpoint_that_cannot_be_read_fails_with_1_and_names_the_file(self):
        def lfs(path):
            (path / "model.safetensors").write_text(LFS_POINTER)

        def cut(path):
            file = path / "model.safetensors"
            file.write_bytes(file.read_bytes()[:-1])

        cases = {
            "missing": (scratch() / "none", "none"),
            "empty directory": (broken("empty", lambda path: (path / "model.safetensors").unlink()), "empty"),
            "lfs pointer": (broken("lfs", lfs), "model.safetensors"),
            "cut short": (broken("cut", cut), "model.safetensors"),
        }
        for name, (path, named) in cases.items():
            for command in (["engine", path], ["digest", path], ["publish", path, "--to", "127.0.0.1:1"],
                            ["verify", path, checkpoint()]):  # fmt: skip
                with self.subTest(name, command=command[0]):
                    ended = run(*command, env=self.env)

                    self.assertEqual(ended.code, 1, ended)
                    self.assertIn(named, ended.error["message"])
        self.assertIn("LFS", run("digest", cases["lfs pointer"][0]).error["message"].upper())

    def test_a_config_that_cannot_be_used_fails_with_1_and_says_why(self):
        cases = {
            "missing": (broken("noconfig", lambda path: (path / "config.json").unlink()), "config.json"),
            "no JSON": (broken("nojson", lambda path: (path / "config.json").write_text("{")), "config.json"),
            "no size": (with_config("nosize", hidden_size=None), "hidden_size"),
            "a size of another model": (with_config("othersize", intermediate_size=97), "mlp.down_proj"),
            "an unknown architecture": (with_config("arch", architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel"),
            "rope scaling": (with_config("rope", rope_scaling={"rope_type": "yarn"}), "rope_scaling"),
        }
        for name, (path, named) in cases.items():
            with self.subTest(name):
                ended = run("engine", path, env=self.env)

                self.assertEqual(ended.code, 1, ended)
                self.assertIn(named, ended.error["message"])
        self.assert_nothing_left()


class PeerTest(EndToEndTest):
    def test_an_address_where_nobody_listens_is_exit_code_4_at_once(self):
        with socket.socket() as free:  # bound and not listening: nobody else can take it
            free.bind(("127.0.0.1", 0))
            address = "127.0.0.1:{}".format(free.getsockname()[1])
            for arguments in (
                ["status", address], ["watch", address], ["versions", address], ["rollback", address],
                ["generate", address, "--tokens", "1"], ["verify", checkpoint(), address],
                ["publish", checkpoint(), "--to", address],
                ["status", f"unix:{self.runtime}/nobody"],
            ):  # fmt: skip
                with self.subTest(arguments[0]):
                    ended = run(*arguments, timeout=10)

                    self.assert_fails(ended, 4, "peer_unreachable")
                    self.assertIn(ended.error["peer"], arguments)

    def test_an_address_in_use_fails_with_1(self):
        engine = self.start_engine(checkpoint())
        unix = f"unix:{self.runtime}/engine.socket"
        other = self.start_engine(checkpoint(), listen=unix)

        for address in (engine.address, unix):
            with self.subTest(address):
                self.assert_fails(run("engine", checkpoint(), "--listen", address, env=self.env), 1, "address_in_use")

        self.assertTrue(engine.status()["ready"])
        self.assertTrue(other.status()["ready"])

    def test_something_that_is_no_engine_fails_in_time(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = "127.0.0.1:{}".format(server.getsockname()[1])

            ended = run("status", address, "--timeout", "1s")

            self.assertIn(ended.code, (1, 4), ended)


class RefusedTest(EndToEndTest):
    def setUp(self):
        super().setUp()
        self.engine = self.start_engine(checkpoint())
        self.publish_ok(checkpoint(version=2), self.engine, arguments=("--version", 5))
        self.before = self.engine.status()

    def assert_nothing_changed(self):
        after = self.engine.status()
        for key in ("live", "kept", "session", "flips", "ready"):
            self.assertEqual(after[key], self.before[key], key)

    def test_a_reused_or_older_version_is_refused(self):
        for number in (5, 4, 0):
            with self.subTest(number):
                ended = self.publish(checkpoint(), self.engine, arguments=("--version", number))

                self.assertEqual(ended.code, 1, ended)
                self.assertIn(ended.error["reason"], ("version_reused", "stale_version"))
                self.assertIn("5", ended.error["message"])
        self.assert_nothing_changed()

    def test_another_run_has_to_say_that_it_starts(self):
        ended = self.publish(checkpoint(), self.engine, arguments=("--run", "other"))

        self.assert_fails(ended, 1, "unknown_run")
        self.assert_nothing_changed()

    def test_another_model_is_refused_with_both_models_spelled_out(self):
        for kind in ("qk-norm", "tied"):
            with self.subTest(kind):
                ended = self.publish(checkpoint(kind), self.engine)

                self.assert_fails(ended, 1, "wrong_model")
                self.assertIn(self.before["model"], ended.error["message"])
                self.assertIn("tied_head=true" if kind == "tied" else "Qwen3ForCausalLM", ended.error["message"])
        self.assert_nothing_changed()

    def test_token_ids_and_lengths_that_the_model_does_not_have_are_refused(self):
        for arguments in (["--tokens", "130"], ["--tokens", "-1"], ["--tokens", "1", "--max-new", 5000]):
            with self.subTest(arguments):
                ended = run("generate", self.engine.address, *arguments)

                self.assert_fails(ended, 1, "bad_request")
        self.assertEqual(len(self.generate(self.engine, [129], "--max-new", 2)["tokens"]), 2)


class NonsenseTest(EndToEndTest):
    def test_calls_that_make_no_sense_are_answered_and_decoding_goes_on(self):
        """C-047. Fields that nobody knows, numbers at the ends of their range, messages that are cut, to every RPC."""
        asked = ("--tokens", "1,2,3", "--max-new", 3000)
        engine = self.start_engine(checkpoint(), "--allow-root", scratch())
        client = self.start("generate", engine.address, *asked, "--stream")
        client.next()

        calls = walk(engine.address, None, rounds=40)

        self.assertGreater(len(calls), 400)
        for call in calls:
            self.assertTrue(call["code"] == "OK" or call["reason"], call)
        self.assertEqual(client.finish().object["tokens"], self.run_ok("generate", engine.address, *asked).object["tokens"])
        self.assertEqual(engine.status()["live"]["version"], 0)
        self.publish_ok(checkpoint(version=2), engine)


if __name__ == "__main__":
    unittest.main()
