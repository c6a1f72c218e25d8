"""Runs the loop for a few steps with the real engine, and looks at what it prints, writes and leaves behind.

RL_LOOP names the program.
"""

import csv
import functools
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

PROGRAM = os.environ["RL_LOOP"]
# A wait that takes longer is stuck.
PATIENCE_S = 240


def is_alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def other_ranks(pid):
    """Processes of the other trainer ranks that `pid` has started."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [int(child) for child in children
            if b"--as-trainer-rank" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes()]


def free_port():
    """Below the range that the kernel gives out by itself: nobody takes it before the program does."""
    for port in random.sample(range(20000, 30000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise RuntimeError("no free port")


class RlLoopTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "out"

    def run_loop(self, *options):
        command = [PROGRAM, "--out", str(self.out), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def rows(self):
        with open(self.out / "steps.csv", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def engine_pid(self, text):
        return int(re.search(r"process (\d+)", text).group(1))

    def test_three_steps_publish_three_versions_that_both_sides_agree_on(self):
        done = self.run_loop("--steps", "3")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"versions +3 published; each one's digest is the same")
        rows = self.rows()
        self.assertEqual([row["step"] for row in rows], ["1", "2", "3"])
        self.assertEqual([row["version"] for row in rows], ["1", "2", "3"])
        self.assertEqual(len({row["digest"] for row in rows}), 3)
        for row in rows:
            self.assertRegex(row["digest"], r"^[0-9a-f]{64}$")
            self.assertEqual(int(row["tokens"]), 24 * 16 * 5)
            self.assertGreater(int(row["bytes"]), 0)
            self.assertLess(float(row["reward"]), 0.2)
        # Every token of the first batch is of the version that the trainer holds, but for rounding.
        self.assertEqual(float(rows[0]["staleness"]), 0)
        self.assert_engine_agrees_with_the_trainer(rows)
        chart = xml.etree.ElementTree.parse(self.out / "curves.svg").getroot()
        svg = "{http://www.w3.org/2000/svg}"
        self.assertEqual(len(chart.findall(f"{svg}polyline")[0].get("points").split()), 3)
        self.assertFalse(is_alive(self.engine_pid(done.stdout)))

    def assert_engine_agrees_with_the_trainer(self, rows):
        for row in rows:
            self.assertLess(float(row["parity"]), 1e-3)
            self.assertRegex(row["digest"], r"^[0-9a-f]{64}$")
        self.assertLess(float(rows[0]["ratio_deviation"]), 0.01)

    def test_three_trainer_ranks_publish_into_two_engine_ranks(self):
        done = self.run_loop("--steps", "2", "--trainer-ranks", "3", "--tp", "2")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, "over 3 processes")
        rows = self.rows()
        self.assertEqual([row["version"] for row in rows], ["1", "2"])
        self.assertEqual([int(row["tokens"]) for row in rows], [24 * 16 * 5] * 2)
        self.assert_engine_agrees_with_the_trainer(rows)

    def test_ranks_that_a_launcher_starts_find_each_other(self):
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                 "BASCULE_LEADER": f"unix:{self.out.parent}/leader"}
        command = [PROGRAM, "--steps", "1", "--tp", "4", "--out", str(self.out)]
        ranks = [subprocess.Popen(command, env={**os.environ, **place, "RANK": rank}, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in ("1", "0")]
        (printed, errors), (first_printed, first_errors) = (rank.communicate(timeout=PATIENCE_S) for rank in ranks)

        self.assertEqual([rank.returncode for rank in ranks], [0, 0], errors + first_errors)
        self.assertEqual(printed, "")
        self.assertIn("over 2 processes", first_printed)
        self.assert_engine_agrees_with_the_trainer(self.rows())

    def test_a_lost_rank_ends_the_loop_by_name(self):
        command = [PROGRAM, "--out", str(self.out), "--steps", "100000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as loop:
            seen = ""
            while not re.search(r"^ +2 ", seen, re.MULTILINE):
                line = loop.stdout.readline()
                self.assertTrue(line, "the loop ended early")
                seen += line
            (rank,) = other_ranks(loop.pid)
            os.kill(rank, signal.SIGKILL)
            errors = loop.communicate(timeout=PATIENCE_S)[1]

        self.assertEqual(loop.returncode, 1)
        self.assertIn("rank_lost", errors)
        self.assertFalse(is_alive(self.engine_pid(seen)))

    def test_without_the_bridge_no_version_is_published(self):
        done = self.run_loop("--steps", "2", "--no-publish")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("versions ", done.stdout)
        self.assertEqual([row["version"] for row in self.rows()], ["", ""])
        # The engine stays at version 0 while the masters move on.
        self.assertEqual([float(row["staleness"]) for row in self.rows()], [0, 1])

    def test_the_first_batch_is_the_same_for_the_same_seed(self):
        first, second = (self.run_loop("--steps", "1", "--seed", "7") and self.rows()[0] for _ in range(2))

        self.assertEqual(first["reward"], second["reward"])
        self.assertEqual(first["digest"], second["digest"])

    def test_an_interrupt_stops_the_loop_and_its_engine(self):
        command = [PROGRAM, "--out", str(self.out), "--steps", "100000"]
        # A shell starts what runs in its background with SIGINT ignored.
        heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed) as loop:
            seen = ""
            while not re.search(r"^ +2 ", seen, re.MULTILINE):
                line = loop.stdout.readline()
                self.assertTrue(line, loop.stderr.read() if loop.poll() is not None else "")
                seen += line
            self.assertTrue(is_alive(self.engine_pid(seen)))
            (rank,) = other_ranks(loop.pid)
            loop.send_signal(signal.SIGINT)
            loop.communicate(timeout=PATIENCE_S)

        self.assertEqual(loop.returncode, 130)
        self.assertFalse(is_alive(self.engine_pid(seen)))
        self.assertFalse(is_alive(rank))

    def test_an_engine_that_cannot_start_is_an_error_that_names_its_log(self):
        done = self.run_loop("--steps", "1", "--bascule", "/nonexistent/bascule")

        self.assertEqual(done.returncode, 1)
        self.assertIn("engine_failed", done.stderr)
        self.assertIn(str(self.out / "engine.log"), done.stderr)

    def test_an_unknown_option_is_wrong_usage(self):
        done = self.run_loop("--stepz", "3")

        self.assertEqual(done.returncode, 2)
        self.assertFalse(self.out.exists())


if __name__ == "__main__":
    unittest.main()
