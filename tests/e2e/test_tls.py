"""TLS and mutual TLS from outside: every command, both ways to be wrong, and what people are told about it."""

import os
import pathlib
import subprocess
import tempfile
import unittest

from bascule_program import PROGRAM, EndToEndTest, checkpoint, run
from test_tokens import TOKENS, token_file

EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A certificate authority that lives as long as the test."""

    def __init__(self, folder, name):
        self.folder = folder
        self.certificate = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"
        openssl("req", "-x509", *EC, "-keyout", self.key, "-out", self.certificate, "-days", 1, "-subj", f"/CN={name}")

    def issue(self, name, subject="DNS:localhost,IP:127.0.0.1", days=1):
        """Arguments --tls-cert and --tls-key of a certificate for `subject`."""
        certificate, key, request, extensions = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr", "ext"))
        extensions.write_text(f"subjectAltName={subject}\n")
        openssl("req", *EC, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-days", days,
                "-extfile", extensions, "-out", certificate)  # fmt: skip
        return ("--tls-cert", certificate, "--tls-key", key)


class TlsTest(EndToEndTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory(prefix="bascule_tls_")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.authority = Authority(cls.folder, "authority")
        cls.stranger = Authority(cls.folder, "stranger")
        cls.server = cls.authority.issue("server")
        cls.client = cls.authority.issue("client", subject="DNS:trainer")
        cls.ca = ("--tls-ca", cls.authority.certificate)

    def ask(self, *arguments, env=None):
        return run(*arguments, env={**self.env, **(env or {})})

    def everything(self, engine, address=None):
        """Each command that calls an engine, in an order in which each can succeed."""
        address = address or engine.address
        return [
            ("publish", checkpoint(version=2), "--to", address),
            ("publish", checkpoint(version=3), "--to", address, "--transport", "grpc"),
            ("publish", checkpoint(version=4), "--to", address, "--trainer-ranks", 2, "--transport", "grpc"),
            ("publish", checkpoint(version=5), "--to", address, "--from-disk"),
            ("generate", address, "--tokens", "1,2,3", "--max-new", 2),
            ("status", address),
            ("versions", address),
            ("verify", checkpoint(version=5), address),
            ("rollback", address),
        ]

    def assert_tls_fails(self, ended, *words):
        self.assert_fails(ended, 1, "tls_failed")
        for word in words:
            self.assertIn(word, ended.error["message"])

    def test_every_command_speaks_tls_with_a_server_that_its_ca_vouches_for(self):
        engine = self.start_engine(checkpoint(), *self.server, "--allow-root", checkpoint().parent)

        for command in self.everything(engine):
            ended = self.ask(*command, *self.ca)
            self.assertEqual(ended.code, 0, (command, ended))
        watching = self.start("watch", engine.address, *self.ca)
        self.assertEqual(watching.next()["live"]["version"], 3)

    def test_an_engine_on_every_address_is_reached_for_buckets_under_the_name_that_was_dialled(self):
        """C-037."""
        engine = self.start_engine(checkpoint(), *self.server, listen="0.0.0.0:0")
        address = engine.address.replace("0.0.0.0", "localhost")

        ended = self.ask("publish", checkpoint(version=2), "--to", address, "--transport", "grpc", *self.ca)

        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(ended.object["transport"], "grpc")
        self.assertIn("open_to_the_network", engine.kill().stderr)

    def test_variables_and_the_config_file_say_the_same_as_options(self):
        engine = self.start_engine(checkpoint(), *self.server, "--tls-client-ca", self.authority.certificate)
        variables = {
            "BASCULE_TLS_CA": str(self.authority.certificate),
            "BASCULE_TLS_CERT": str(self.client[1]),
            "BASCULE_TLS_KEY": str(self.client[3]),
        }
        config = self.folder / "client.toml"
        config.write_text(
            f'tls-ca = "{self.authority.certificate}"\ntls-cert = "{self.client[1]}"\ntls-key = "{self.client[3]}"\n'
        )

        self.assertEqual(self.ask("status", engine.address, env=variables).code, 0)
        self.assertEqual(self.ask("status", engine.address, "--config", config).code, 0)

    def test_with_mutual_tls_a_caller_needs_a_certificate_of_the_right_authority(self):
        engine = self.start_engine(checkpoint(), *self.server, "--tls-client-ca", self.authority.certificate,
                                   "--allow-root", checkpoint().parent)  # fmt: skip
        forged = self.stranger.issue("forged")
        expired = self.authority.issue("past", days=-1)

        for command in self.everything(engine):
            self.assert_tls_fails(self.ask(*command, *self.ca), "certificate")
            ended = self.ask(*command, *self.ca, *self.client)
            self.assertEqual(ended.code, 0, (command, ended))
        for certificate in (forged, expired):
            self.assert_tls_fails(self.ask("status", engine.address, *self.ca, *certificate), "certificate")
        self.assertEqual(self.ask("status", engine.address, *self.ca, *self.client).object["live"]["version"], 3)

    def test_a_server_that_cannot_be_believed_is_told_apart_and_nothing_changes(self):
        cases = [
            (self.server, ("--tls-ca", self.stranger.certificate), "localhost", "unable to get local issuer"),
            (self.authority.issue("late", days=-1), self.ca, "localhost", "expired"),
            (self.authority.issue("other", subject="DNS:elsewhere"), self.ca, "localhost", "ostname mismatch"),
            (self.server, (), "localhost", "speaks TLS"),
            ((), self.ca, "localhost", "does not speak TLS"),
        ]
        for server, client, host, why in cases:
            engine = self.start_engine(checkpoint(), *server)
            address = engine.address.replace("127.0.0.1", host)
            for command in (("status", address), ("publish", checkpoint(version=2), "--to", address),
                            ("generate", address, "--tokens", "1")):  # fmt: skip
                self.assert_tls_fails(self.ask(*command, *client), why, address)
            trust = self.ca if server else ()
            self.assertNotIn("commit", engine.kill().stdout, trust)

    def test_another_name_than_the_address_can_be_expected_of_the_certificate(self):
        engine = self.start_engine(checkpoint(), *self.authority.issue("named", subject="DNS:engine-3"))

        self.assert_tls_fails(self.ask("status", engine.address, *self.ca), "mismatch")
        self.assertEqual(self.ask("status", engine.address, *self.ca, "--tls-server-name", "engine-3").code, 0)

    def test_where_nobody_listens_the_peer_is_unreachable_with_tls_too(self):
        address = self.start_engine(checkpoint(), *self.server)
        address.kill()

        self.assert_fails(self.ask("status", address.address, *self.ca), 4, "peer_unreachable")

    def test_tokens_travel_over_tls_and_are_checked_behind_it(self):
        engine = self.start_engine(checkpoint(), *self.server, "--token-file", token_file(), listen="0.0.0.0:0")
        address = engine.address.replace("0.0.0.0", "127.0.0.1")

        with_token = {"BASCULE_TOKEN": TOKENS["read"]}
        self.assertEqual(self.ask("status", address, *self.ca, env=with_token).code, 0)
        self.assert_fails(self.ask("status", address, *self.ca), 1, "unauthenticated")
        self.assert_fails(self.ask("rollback", address, *self.ca, env=with_token), 1, "permission_denied")
        self.assert_tls_fails(self.ask("status", address, env=with_token), "speaks TLS")

    def test_a_publisher_serves_its_status_with_the_certificate_that_it_shows(self):
        engine = self.start_engine(checkpoint(size=20_000_000), *self.server)
        publisher = self.start("publish", checkpoint(size=20_000_000, version=2), "--to", engine.address, "--max-rate",
                               "256KiB", "--listen", "127.0.0.1:0", *self.ca, *self.server)  # fmt: skip
        address = publisher.until(lambda event: event.get("event") == "listening")["address"]

        self.assertEqual(self.ask("status", address, *self.ca).object["role"], "publisher")
        self.assert_tls_fails(self.ask("status", address), "speaks TLS")

    def test_a_file_that_holds_something_else_is_named_before_anything_starts(self):
        garbage = self.folder / "garbage"
        garbage.write_text("nothing of the kind\n")
        garbage.chmod(0o600)
        other_key = self.authority.issue("unrelated")[3]
        cases = [
            ("--tls-cert", garbage, "--tls-key", self.server[3]),
            ("--tls-cert", self.server[1], "--tls-key", garbage),
            ("--tls-cert", self.server[1], "--tls-key", other_key),
            (*self.server, "--tls-client-ca", garbage),
        ]
        for arguments in cases:
            ended = self.ask("engine", checkpoint(), *arguments)
            self.assert_fails(ended, 1, "bad_tls_file")
            self.assertTrue(any(str(path) in ended.error["message"] for path in (garbage, other_key)), ended)
        self.assert_fails(self.ask("status", "127.0.0.1:9", "--tls-ca", garbage), 1, "bad_tls_file")
        absent = self.ask("status", "127.0.0.1:9", "--tls-ca", self.folder / "absent")
        self.assert_fails(absent, 1, "no_such_file")
        self.assertEqual(self.ask("engine", checkpoint(), "--tls-cert", self.server[1]).code, 2)
        self.assertEqual(self.ask("engine", checkpoint(), "--tls-client-ca", self.server[1]).code, 2)


class UnixSocketTest(EndToEndTest):
    def test_a_unix_socket_is_its_owners_alone_and_takes_tokens_without_tls(self):
        path = self.runtime / "engine.sock"
        engine = self.start_engine(checkpoint(), "--token-file", token_file(), listen=f"unix:{path}")

        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        for token, code in ((TOKENS["read"], 0), (TOKENS["generate"], 1)):
            self.assertEqual(run("status", engine.address, env={**self.env, "BASCULE_TOKEN": token}).code, code)
        for transport in ("shm", "grpc"):
            ended = run("publish", checkpoint(version=2), "--to", engine.address, "--transport", transport,
                        env={**self.env, "BASCULE_TOKEN": TOKENS["publish"]})  # fmt: skip
            self.assertEqual(ended.code, 0, ended)
        self.stop(engine)
        self.assertFalse(path.exists())

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to become another user")
    def test_another_user_is_kept_out_by_the_mode_and_by_the_kernels_word_for_who_calls(self):
        nobody = 65534
        path = self.runtime / "engine.sock"
        engine = self.start_engine(checkpoint(), listen=f"unix:{path}")
        self.runtime.chmod(0o755)

        for mode in (0o600, 0o666):
            path.chmod(mode)
            command = [PROGRAM, "status", engine.address, "--timeout", "20s"]
            done = subprocess.run(command, user=nobody, cwd="/", capture_output=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 4, done)

        self.assertEqual(engine.status()["live"]["version"], 0)
        self.assertIn(f"uid={nobody}", engine.kill().stderr)


class ProxyTest(EndToEndTest):
    def test_proxy_variables_reach_no_connection(self):
        nowhere = "http://127.0.0.1:9"
        self.env |= {name: nowhere for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY",
                                                "all_proxy", "ALL_PROXY")}  # fmt: skip
        engine = self.start_engine(checkpoint())

        for command in (("status", engine.address), ("generate", engine.address, "--tokens", "1", "--max-new", 1),
                        ("publish", checkpoint(version=2), "--to", engine.address, "--transport", "grpc",
                         "--trainer-ranks", 2)):  # fmt: skip
            self.run_ok(*command)
