"""Every case of docs/cases.md has tests that are there and bear its id, and no test bears the id of another."""

import re
import unittest

from test_fault_matrix import ROOT, all_tests, tests_in

CASES = 84
OWN_NAMES = {"test_case_index.py"}


def rows():
    lines = [line for line in (ROOT / "docs/cases.md").read_text().splitlines() if line.startswith("| C-")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def ids_in_tests():
    """{id: the files that bear it}, in comments as C-049, in names of tests as test_c049_what_it_does."""
    found = {}
    for path in (ROOT / "tests").rglob("*"):
        if path.suffix in (".cc", ".h", ".py") and path.name not in OWN_NAMES:
            for number in re.findall(r"\bC-(\d{3})\b|test_c(\d{3})_", path.read_text()):
                found.setdefault("C-" + "".join(number), set()).add(path)
    return found


class CaseIndexTest(unittest.TestCase):
    def test_every_case_has_one_row(self):
        ids = [row[0] for row in rows()]

        self.assertEqual(len(ids), CASES)
        self.assertEqual(ids, sorted(set(ids)))

    def test_every_row_names_tests_and_they_are_there(self):
        known = all_tests()
        for row in rows():
            with self.subTest(row[0]):
                self.assertEqual(len(row), 4)
                named = re.findall(r"`([^`]+)`", row[2])
                self.assertTrue(named, "no test")
                self.assertEqual([name for name in named if name not in known and not (ROOT / name).is_file()], [])

    def test_every_case_is_found_in_the_tests_by_its_id_and_no_other_is(self):
        found = ids_in_tests()

        for case, _, tests, _ in rows():
            with self.subTest(case):
                named = set(re.findall(r"`([^`]+)`", tests))
                self.assertTrue(any(named & tests_in(path) for path in found.pop(case, ())), "no named test bears it")
        self.assertEqual(found, {})


if __name__ == "__main__":
    unittest.main()
