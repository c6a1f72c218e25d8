"""The first Ctrl-C ends every command that reads or writes files."""

import os
import shutil
import signal
import tempfile
import unittest
from pathlib import Path

from bascule_program import EndToEndTest, checkpoint


def signal_waits():
    """The signal is there before the program is: it waits, blocked, and is taken once the program looks."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.kill(os.getpid(), signal.SIGINT)


class InterruptTest(EndToEndTest):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp(prefix="bascule_interrupt_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def assert_interrupted(self, *arguments):
        before = sorted(self.folder.rglob("*"))

        ended = self.start(*arguments, before=signal_waits).finish()

        self.assert_fails(ended, 130, "interrupted")
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def test_commands_on_a_checkpoint(self):
        for command in (
            ("inspect", checkpoint()),
            ("digest", checkpoint()),
            ("verify", checkpoint(), checkpoint(version=2)),
            ("shard", checkpoint(), "--tp", 2, "--out", self.folder / "artifact"),
            ("shard", checkpoint(), "--tp", 2, "--out", self.folder / "artifact", "--quantize", "fp8-block"),
        ):
            with self.subTest(command[0]):
                self.assert_interrupted(*command)

    def test_commands_on_an_artifact(self):
        artifact = self.folder / "artifact"
        self.run_ok("shard", checkpoint(), "--tp", 2, "--out", artifact)
        for command in (
            ("inspect", artifact),
            ("digest", artifact),
            ("verify", artifact, checkpoint()),
            ("unshard", artifact, "--out", self.folder / "back"),
        ):
            with self.subTest(command[0]):
                self.assert_interrupted(*command)


if __name__ == "__main__":
    unittest.main()
