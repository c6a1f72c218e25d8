"""The real checkpoint of scripts/real_checkpoint, for tests. Where PyPI cannot be reached they skip by that name."""

import pathlib
import subprocess
import sys
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
SKIPPED = 77


def make(folder, *, second=False):
    """The path of the checkpoint, made in `folder`, and that of its second version where one is wanted."""
    first, step = pathlib.Path(folder) / "smollm2", pathlib.Path(folder) / "smollm2-step1"
    command = [sys.executable, SCRIPTS / "real_checkpoint", first, *(["--second", step] if second else [])]
    made = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    if made.returncode == SKIPPED:
        raise unittest.SkipTest(made.stdout.strip() or made.stderr.strip())
    if made.returncode != 0:
        raise AssertionError(f"real_checkpoint failed:\n{made.stdout}{made.stderr}")
    return (first, step) if second else first
