"""The fault matrix of docs/testing.md names a test in each row; each of them exists."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def rows():
    section = (ROOT / "docs/testing.md").read_text().split("## What a fault leaves behind")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def tests_in(path):
    if path.suffix == ".cc":
        return set(re.findall(r"TEST(?:_F|_P)?\(\w+,\s*(\w+)\)", path.read_text()))
    return set(re.findall(r"def (test_\w+)\(", path.read_text())) if path.suffix == ".py" else set()


def all_tests():
    return set().union(*map(tests_in, (ROOT / "tests").rglob("*")))


class FaultMatrixTest(unittest.TestCase):
    def test_every_row_names_its_test_and_every_test_is_there(self):
        known = all_tests()
        self.assertGreater(len(rows()), 30)
        for row in rows():
            with self.subTest(row[0]):
                self.assertEqual(len(row), 7)
                named = re.findall(r"`(\w+)`", row[-1])
                self.assertTrue(named, "no test")
                self.assertEqual([name for name in named if name not in known], [])


if __name__ == "__main__":
    unittest.main()
