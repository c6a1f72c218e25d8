"""scripts/gpu_check with programs that fail, hang and crash: what ran is in the table, whatever happened to the rest."""

import importlib.machinery
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import time
import unittest
from contextlib import redirect_stdout

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "scripts" / "gpu_check"


def load_script():
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    sys.modules["gpu_check"] = module
    loader.exec_module(module)
    return module


gpu_check = load_script()

ROW = '{"name":"%s","value":2,"unit":"GB/s","limit":4,"limit_what":"a copy","ratio":0.5,"dry":false}'
# A GoogleTest program of three tests, of which the second ends the process, alone too.
CRASHES = """#!/bin/sh
case "$1" in
  --gtest_list_tests) printf 'A.\\n  One\\n  Two\\nB/Cases.\\n  Three/0  # GetParam() = 1\\n' ;;
  --gtest_filter=A.Two) echo '[ RUN      ] A.Two'; echo 'two is wrong'; exit 1 ;;
  --gtest_filter=B/Cases.Three/0) echo '[       OK ] B/Cases.Three/0 (1 ms)' ;;
  *) echo '[       OK ] A.One (1 ms)'; echo '[ RUN      ] A.Two'; exit 139 ;;
esac
"""


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        with redirect_stdout(io.StringIO()):
            self.report = gpu_check.Report(self.folder / "results", {"hardware": "a GPU"})
        self.check = gpu_check.Check(self.report, {"PATH": "/usr/bin:/bin"}, self.folder / "logs", seconds=60)

    def program(self, text):
        path = self.folder / f"program{len(list(self.folder.iterdir()))}"
        path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def run_step(self, name, text, kind, seconds=20, words=(), **more):
        with redirect_stdout(io.StringIO()):
            return self.check.run(gpu_check.Step(name, [self.program(text), *words], seconds, kind, **more))

    def written(self):
        return json.loads(self.report.stem.with_suffix(".json").read_text())

    def test_rows_of_a_group_that_fails_are_kept_and_the_next_one_runs(self):
        self.assertFalse(self.run_step("bench one", f"echo '{ROW % 'first'}'; echo 'the device is lost' >&2; exit 1", "rows"))
        self.assertTrue(self.run_step("bench two", f"echo '{ROW % 'second'}'", "rows"))

        self.assertEqual([row["name"] for row in self.written()["rows"]], ["first", "second"])
        self.assertEqual([step["state"] for step in self.written()["steps"]], ["failed", "passed"])
        self.assertEqual(self.written()["steps"][0]["detail"], "the device is lost")
        table = self.report.stem.with_suffix(".md").read_text()
        self.assertIn("| first | 2 GB/s | a copy, 4 GB/s | 0.5 |  |", table)
        self.assertFalse(self.report.passed())

    def test_what_is_promised_of_a_row_stands_beside_it_with_the_verdict(self):
        rows = [("gpu_digest", 0.79, 1, "ratio at least 0.8: MISSED"), ("gpu_pack_columns", 0.8, 1, "ratio at least 0.8: kept"),
                ("gpu_scatter_1pct", 0.1, 4.9, "at most 5: kept"), ("gpu_scatter_10pct", 0.1, 50, ""),
                ("gpu_stall_shadow_p99", 1.2, 1200, "at most 1000: MISSED"), ("gpu_sync_cuda_ipc", 2.5, 9, "ratio at most 3: kept")]
        for name, ratio, value, promised in rows:
            row = {"name": name, "ratio": ratio, "value": value, "dry": False}
            self.assertEqual(gpu_check.promise_of(row), promised, name)
            self.assertEqual(gpu_check.promise_of({**row, "dry": True}), promised.split(":")[0], name)

    def test_a_group_that_hangs_ends_at_its_limit_with_the_processes_that_it_started(self):
        began = time.monotonic()
        self.assertFalse(self.run_step("bench one", f"echo '{ROW % 'first'}'; sleep 1000 & wait", "rows", seconds=0.5))

        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual(self.written()["rows"][0]["name"], "first")
        self.assertEqual(self.written()["steps"][0]["state"], "failed")

    def test_a_row_is_written_when_it_comes(self):
        with redirect_stdout(io.StringIO()):
            self.report.add_row(json.loads(ROW % "early"))

        self.assertEqual(self.written()["rows"][0]["name"], "early")
        self.assertEqual(self.written()["steps"], [])

    def test_tests_behind_one_that_ends_the_process_run_alone(self):
        self.assertFalse(self.run_step("test kernels", CRASHES, "test"))

        self.assertEqual(self.written()["steps"][0]["detail"], "2 tests passed; failed: A.Two")

    def test_tests_that_are_skipped_are_no_success(self):
        self.assertFalse(self.run_step("test nccl", "echo '[  SKIPPED ] A.One (0 ms)'", "test"))

    def test_a_sanitizer_that_does_not_come_to_its_end_has_passed_as_far_as_it_came(self):
        slow = "echo '[       OK ] A.One (1 ms)'; {} sleep 1000"
        self.assertTrue(self.run_step("memcheck", slow.format(""), "test", 0.5, ["a program"], may_run_out=True))
        found = "echo '========= Invalid __global__ write of size 4 bytes';"
        self.assertFalse(self.run_step("memcheck", slow.format(found), "test", 0.5, ["a program"], may_run_out=True))

    def test_a_program_that_does_nothing_is_no_success(self):
        self.assertFalse(self.run_step("bench one", "true", "rows"))
        self.assertFalse(self.run_step("test kernels", "true", "test"))

        self.assertEqual([step["detail"] for step in self.written()["steps"]], ["no row", "0 tests"])

    def test_what_no_time_is_left_for_is_said(self):
        self.check.until = time.monotonic()
        self.assertFalse(self.run_step("bench one", "true", "rows"))

        self.assertEqual(self.written()["steps"][0]["detail"], "no time was left for it")

    def test_a_program_that_is_not_there_is_a_step_that_failed(self):
        with redirect_stdout(io.StringIO()):
            self.assertFalse(self.check.run(gpu_check.Step("build", [self.folder / "nothing"], 5)))

        self.assertIn("No such file", self.written()["steps"][0]["detail"])


if __name__ == "__main__":
    unittest.main()
