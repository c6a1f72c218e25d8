"""Drives the built `bascule` program from outside: what a user sees of it, and what /proc sees.

BASCULE_PROGRAM names the program. Nothing here sleeps: waits are for a line, an exit, or a state that `watch` reports.
"""

import atexit
import functools
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

SUPPORT = pathlib.Path(__file__).resolve().parent.parent / "support" / "python"
sys.path.insert(0, str(SUPPORT))
import fixtures  # noqa: E402

PROGRAM = os.environ.get("BASCULE_PROGRAM", "bascule")
# A wait that takes longer is stuck.
PATIENCE_S = 120


class Ended:
    """A command that has ended: exit code, JSON objects of stdout, text of stderr."""

    def __init__(self, code, stdout, stderr):
        self.code = code
        self.stdout = stdout
        self.stderr = stderr

    @property
    def objects(self):
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def object(self):
        """The only object, or the last."""
        return self.objects[-1]

    @property
    def error(self):
        return self.object["error"]

    def __repr__(self):
        return f"exit code {self.code}\nstdout: {self.stdout}\nstderr: {self.stderr}"


def run(*arguments, env=None, timeout=PATIENCE_S, as_json=True):
    """Runs `bascule ARGUMENTS --json` to its end."""
    command = [PROGRAM, *map(str, arguments), *(["--json"] if as_json else [])]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})}, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


class Running:
    """A command that runs: its stdout line by line, its signals, its /proc."""

    def __init__(self, *arguments, env=None, before=None):
        """`before` runs in the new process just before the program."""
        self.process = subprocess.Popen(
            [PROGRAM, *map(str, arguments), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            preexec_fn=before,
        )
        self._lines = queue.SimpleQueue()
        self._stderr = []
        self._readers = [
            threading.Thread(target=self._read_stdout, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_stdout(self):
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_stderr(self):
        for line in self.process.stderr:
            self._stderr.append(line)

    @property
    def pid(self):
        return self.process.pid

    def until_it_logs(self, *words, timeout=PATIENCE_S):
        """A line on stderr that has all of these words."""
        until = time.monotonic() + timeout
        while not any(all(word in line for word in words) for line in list(self._stderr)):
            if time.monotonic() > until:
                raise AssertionError(f"{self.process.args} did not log {words}: {''.join(self._stderr)}")
            time.sleep(0.01)

    def next(self, timeout=PATIENCE_S):
        """The next object on stdout; None at its end."""
        line = self._lines.get(timeout=timeout)
        return None if line is None else json.loads(line)

    def until(self, wanted, timeout=PATIENCE_S):
        """The next object for which `wanted` holds."""
        while True:
            found = self.next(timeout)
            if found is None:
                raise AssertionError(f"{self.process.args} ended before: {self.finish()}")
            if wanted(found):
                return found

    def send(self, signal_number):
        self.process.send_signal(signal_number)

    def finish(self, timeout=PATIENCE_S):
        """Waits for its end; what is left of stdout belongs to the result."""
        code = self.process.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
        self.process.stdout.close()
        self.process.stderr.close()
        rest = []
        while not self._lines.empty():
            line = self._lines.get()
            rest += [] if line is None else [line]
        return Ended(code, "".join(rest), "".join(self._stderr))

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        return self.finish()


class Engine(Running):
    """`bascule engine` on a free port, ready."""

    def __init__(self, checkpoint, *arguments, env=None, listen="127.0.0.1:0", before=None):
        super().__init__("engine", checkpoint, "--listen", listen, *arguments, env=env, before=before)
        self.address = self.until(lambda event: event.get("event") == "listening")["address"]
        self.ready = self.until(lambda event: event.get("event") == "ready")

    def status(self):
        return run("status", self.address).object

    def census(self):
        """What a leak would let grow: descriptors, threads, and resident kilobytes."""
        proc = pathlib.Path(f"/proc/{self.pid}")
        fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
        return {
            "descriptors": len(list((proc / "fd").iterdir())),
            "threads": int(fields["Threads"]),
            "resident_kb": int(fields["VmRSS"].split()[0]),
        }


@functools.cache
def scratch():
    """A directory for the whole test run."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="bascule_e2e_"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def checkpoint(kind="dense", version=1, dtype="BF16", size=None):
    """The path of a checkpoint written by plain Python; `size` in bytes for kind `sized`."""
    path = scratch() / f"{kind}-{version}-{dtype}-{size}"
    if path.exists():
        return path
    spec = fixtures.SPECS[kind] if size is None else fixtures.sized_spec(size)
    fixtures.write_checkpoint(path, spec, version, "hash" if size is None else "normal", dtype)
    return path


class EndToEndTest(unittest.TestCase):
    """Starts engines that end with the test and must leave nothing behind."""

    maxDiff = None

    def setUp(self):
        self.runtime = pathlib.Path(tempfile.mkdtemp(prefix="bascule_run_"))
        self.env = {"XDG_RUNTIME_DIR": str(self.runtime)}
        self.addCleanup(shutil.rmtree, self.runtime, ignore_errors=True)

    def start(self, *arguments, before=None, env=None):
        """Any command, killed at the end of the test if it still runs."""
        running = Running(*arguments, env={**self.env, **(env or {})}, before=before)
        self.addCleanup(running.kill)
        return running

    def start_engine(self, *arguments, **options):
        engine = Engine(*arguments, env={**(self.env or {}), **options.pop("env", {})}, **options)
        self.addCleanup(engine.kill)
        return engine

    def run_ok(self, *arguments):
        ended = run(*arguments, env=self.env)
        self.assertEqual(ended.code, 0, ended)
        return ended

    def publish(self, path, *engines, arguments=()):
        to = ",".join(engine.address for engine in engines)
        return run("publish", path, "--to", to, *arguments, env=self.env)

    def publish_ok(self, path, *engines, arguments=()):
        ended = self.publish(path, *engines, arguments=arguments)
        self.assertEqual(ended.code, 0, ended)
        return ended.object

    def generate(self, engine, tokens, *arguments):
        return self.run_ok("generate", engine.address, "--tokens", ",".join(map(str, tokens)), *arguments).object

    def assert_fails(self, ended, code, reason):
        """The exit code, the error object, and a text for people that says the same."""
        self.assertEqual(ended.code, code, ended)
        self.assertEqual(ended.error["reason"], reason, ended)
        self.assertEqual(set(ended.error), {"code", "reason", "message", "peer", "phase"})
        self.assertIn(reason, ended.stderr)

    def assert_nothing_left(self):
        """No socket and no shared memory of processes that have ended."""
        left = [path for path in self.runtime.rglob("*") if not path.is_dir()]
        self.assertEqual(left, [])
        self.assertEqual([name for name in os.listdir("/dev/shm") if "bascule" in name], [])

    def stop(self, engine, signal_number=signal.SIGTERM, timeout=10):
        engine.send(signal_number)
        return engine.finish(timeout)
