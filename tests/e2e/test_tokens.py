"""Access tokens: who may call what, on every RPC that a server shows, and that no token is ever told."""

import json
import os
import pathlib
import subprocess

from bascule_program import PATIENCE_S, EndToEndTest, checkpoint, run, scratch

ROLES = ("read", "generate", "operate", "publish")
TOKENS = {role: f"sesame-{role}-7f3a" for role in ROLES} | {"all": "sesame-all-11c2", "two": "sesame-two-9d04"}
BYTES = 20_000_000  # of a publish that is still under way when it is asked
WRONG = "sesame-wrong-0000"

# A few that must never move to another role; the rest is what the .proto files say.
FIXED = {
    "/bascule.v1.VersionStatus/GetStatus": "read",
    "/bascule.v1.VersionStatus/Rollback": "operate",
    "/bascule.v1.Rollout/Generate": "generate",
    "/bascule.v1.WeightSync/Connect": "publish",
    "/bascule.v1.Transfer/Route": "publish",
    "/bascule.v1.VersionLoad/LoadVersion": "publish",
}


def token_file():
    path = scratch() / "tokens"
    lines = [f"{TOKENS[role]} {role}" for role in ROLES]
    lines += [f"{TOKENS['all']} {','.join(ROLES)}", f"{TOKENS['two']} read,generate"]
    path.write_text("# tokens of this test\n\n" + "\n".join(lines) + "\n")
    path.chmod(0o600)
    return path


def walk(address, token, rounds=0):
    """Every RPC of the server at `address`, called with `token`: with nothing, or with nonsense in each of `rounds`."""
    env = {key: value for key, value in os.environ.items() if key != "BASCULE_TOKEN"}
    env["BASCULE_WALK_TOKEN"] = TOKENS["all"]
    if token is not None:
        env["BASCULE_TOKEN"] = token
    command = [os.environ["BASCULE_RPC_WALK"], os.environ["BASCULE_DESCRIPTORS"], address, str(rounds)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class TokenTest(EndToEndTest):
    def engine(self, *arguments):
        engine = self.start_engine(
            checkpoint(), "--token-file", token_file(), "--log-level", "debug", *arguments
        )
        self.addCleanup(self.assert_tells_no_token, engine)
        return engine

    def ask(self, token, *arguments):
        env = {**self.env, **({} if token is None else {"BASCULE_TOKEN": token})}
        ended = run(*arguments, env=env)
        self.assertNotIn("sesame", ended.stdout + ended.stderr)
        return ended

    def assert_tells_no_token(self, running):
        ended = running.kill()
        self.assertNotIn("sesame", ended.stdout + ended.stderr)


class WalkTest(TokenTest):
    def assert_walk(self, address):
        rpcs = walk(address, TOKENS["all"])
        for rpc in rpcs:
            self.assertIn(rpc["role"], ROLES, f"{rpc['rpc']} names no role in its .proto")
            self.assertEqual(FIXED.get(rpc["rpc"], rpc["role"]), rpc["role"])
            self.assertNotIn(rpc["reason"], ("unauthenticated", "permission_denied"), rpc)
        for token in (None, WRONG, "", "Bearer"):
            for rpc in walk(address, token):
                self.assertEqual((rpc["code"], rpc["reason"]), ("UNAUTHENTICATED", "unauthenticated"), rpc)
        for holder, may in [(role, (role,)) for role in ROLES] + [("two", ("read", "generate"))]:
            for rpc in walk(address, TOKENS[holder]):
                if rpc["role"] in may:
                    self.assertNotIn(rpc["reason"], ("unauthenticated", "permission_denied"), (holder, rpc))
                else:
                    denied = ("PERMISSION_DENIED", "permission_denied")
                    self.assertEqual((rpc["code"], rpc["reason"]), denied, (holder, rpc))
        return rpcs

    def test_every_rpc_of_an_engine_wants_a_token_with_its_role(self):
        engine = self.engine("--allow-root", checkpoint().parent)

        rpcs = self.assert_walk(engine.address)

        self.assertLessEqual(set(FIXED), {rpc["rpc"] for rpc in rpcs})
        status = self.ask(TOKENS["read"], "status", engine.address).object
        self.assertEqual((status["live"]["version"], status["flips"]["count"]), (0, 0))

    def test_every_rpc_of_a_publisher_wants_a_token_with_its_role(self):
        engine = self.start_engine(checkpoint(size=BYTES))
        publisher = self.start(
            "publish", checkpoint(size=BYTES, version=2), "--to", engine.address, "--max-rate", "256KiB",
            "--listen", "127.0.0.1:0", "--token-file", token_file(), "--log-level", "debug"
        )  # fmt: skip
        self.addCleanup(self.assert_tells_no_token, publisher)

        self.assert_walk(publisher.until(lambda event: event.get("event") == "listening")["address"])

    def test_without_a_token_file_anyone_may_call(self):
        engine = self.start_engine(checkpoint())

        for rpc in walk(engine.address, None):
            self.assertNotIn(rpc["reason"], ("unauthenticated", "permission_denied"), rpc)


class CommandTest(TokenTest):
    def test_every_command_sends_the_token_of_its_environment(self):
        engine = self.engine("--allow-root", checkpoint().parent)
        commands = [
            ("read", "status", engine.address),
            ("read", "versions", engine.address),
            ("read", "verify", checkpoint(), engine.address),
            ("generate", "generate", engine.address, "--tokens", "1,2,3", "--max-new", 2),
            ("publish", "publish", checkpoint(version=2), "--to", engine.address),
            ("publish", "publish", checkpoint(version=3), "--to", engine.address, "--transport", "grpc"),
            ("publish", "publish", checkpoint(version=4), "--to", engine.address, "--trainer-ranks", 2),
            ("publish", "publish", checkpoint(version=5), "--to", engine.address, "--from-disk", "--version", 9),
            ("operate", "rollback", engine.address),
        ]
        for role, *command in commands:
            for token, reason in [
                (None, "unauthenticated"),
                (WRONG, "unauthenticated"),
                (TOKENS["generate" if role != "generate" else "read"], "permission_denied"),
            ]:
                self.assert_fails(self.ask(token, *command), 1, reason)
            ended = self.ask(TOKENS[role], *command)
            self.assertEqual(ended.code, 0, (command, ended))

        self.assert_fails(self.ask(None, "watch", engine.address), 1, "unauthenticated")
        watching = self.start("watch", engine.address, env={"BASCULE_TOKEN": TOKENS["read"]})
        self.assertEqual(watching.next()["live"]["version"], 3)

    def test_the_ranks_of_a_trainer_join_with_its_token_only(self):
        engine = self.start_engine(checkpoint())

        ended = self.ask(TOKENS["all"], "publish", checkpoint(version=2), "--to", engine.address, "--trainer-ranks", 3)

        self.assertEqual(ended.code, 0, ended)

    def test_a_token_that_is_none_is_refused_before_anything_is_sent(self):
        for token in ("with space", "caf\u00e9", "x" * 600):
            ended = self.ask(token, "status", "127.0.0.1:9")
            self.assert_fails(ended, 1, "bad_token")
            self.assertIn("BASCULE_TOKEN", ended.error["message"])
            self.assertNotIn(token, ended.stdout + ended.stderr)


class TokenFileTest(TokenTest):
    def refused(self, text, mode=0o600, directory_mode=0o700):
        folder = pathlib.Path(self.runtime) / "secrets"
        folder.mkdir(exist_ok=True)
        self.runtime.chmod(directory_mode)
        folder.chmod(directory_mode)
        path = folder / "tokens"
        path.write_text(text)
        path.chmod(mode)
        ended = run("engine", checkpoint(), "--token-file", path, env={"XDG_RUNTIME_DIR": "/tmp"})
        self.assertEqual(ended.code, 1, ended)
        self.assertIn(str(path), ended.error["message"])
        self.assertNotIn("sesame", ended.stdout + ended.stderr)
        return ended.error

    def test_a_bad_line_is_named_and_not_quoted(self):
        self.assertIn("line 2", self.refused("sesame-a read\nsesame-b root\n")["message"])
        self.assertIn("line 3", self.refused("sesame-a read\n\nsesame-a publish\n")["message"])
        self.assertEqual(self.refused("# nothing\n")["reason"], "bad_token_file")

    def test_a_file_that_others_can_read_is_refused_by_name(self):
        error = self.refused("sesame-a read\n", mode=0o644, directory_mode=0o755)
        self.assertEqual(error["reason"], "loose_permissions")

    def test_tokens_are_never_taken_over_plaintext_from_other_hosts(self):
        ended = run("engine", checkpoint(), "--token-file", token_file(), "--listen", "0.0.0.0:0", env=self.env)
        self.assert_fails(ended, 1, "token_in_the_clear")
        for command in (("status",), ("generate", "--tokens", "1")):
            ended = self.ask(TOKENS["read"], command[0], "192.0.2.1:7000", *command[1:])
            self.assert_fails(ended, 1, "token_in_the_clear")
