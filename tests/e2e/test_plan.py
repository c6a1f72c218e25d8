"""`bascule plan`: what a sync would move, from checkpoints and from layout files, without moving anything."""

import json
import pathlib
import tempfile
import unittest

from bascule_program import EndToEndTest, checkpoint, run


def model_bytes(path):
    """All of the files' data: what is left of them after their headers."""
    total = 0
    for file in pathlib.Path(path).glob("*.safetensors"):
        raw = file.read_bytes()
        total += len(raw) - 8 - int.from_bytes(raw[:8], "little")
    return total


class PlanTest(EndToEndTest):
    SIDES = ("--tp", 2, "--trainer-ranks", 3, "--trainer-layout", "fsdp")

    def plan(self, *arguments):
        return self.run_ok("plan", *arguments).object

    def test_every_byte_of_the_model_has_one_route_but_for_what_both_engine_ranks_hold(self):
        plan = self.plan(checkpoint(), *self.SIDES)

        routed = sum(route["bytes"] for route in plan["routes"])
        self.assertEqual(sum(plan["trainer_bytes"]), routed)
        self.assertEqual(sum(plan["engine_bytes"]), routed)
        # The five norms of 64 bf16 elements are on both engine ranks; every other element is on one.
        self.assertEqual(routed, model_bytes(checkpoint()) + 5 * 64 * 2)
        self.assertEqual([mode["mode"] for mode in plan["flip_modes"]], ["shadow", "shadow --slots 3", "in_place"])
        for mode in plan["flip_modes"]:
            self.assertTrue(mode["guarantee"])
            self.assertTrue(mode["way_back"])

    def test_layout_files_say_the_same_as_the_checkpoint_they_came_from(self):
        with tempfile.TemporaryDirectory() as folder:
            files = {}
            for side in ("trainer", "engine"):
                printed = run("plan", checkpoint(), *self.SIDES, "--print", side, as_json=False)
                self.assertEqual(printed.code, 0, printed)
                files[side] = pathlib.Path(folder) / f"{side}.json"
                files[side].write_text(printed.stdout)

            plan = self.plan("--trainer", files["trainer"], "--engine", files["engine"])

            self.assertEqual(plan, self.plan(checkpoint(), *self.SIDES))

    def test_a_layout_file_with_a_hole_is_refused_by_its_tensor(self):
        with tempfile.TemporaryDirectory() as folder:
            files = {}
            for side in ("trainer", "engine"):
                layout = json.loads(run("plan", checkpoint(), *self.SIDES, "--print", side, as_json=False).stdout)
                if side == "trainer":
                    lost = layout["ranks"][1]["rows"].pop()
                files[side] = pathlib.Path(folder) / f"{side}.json"
                files[side].write_text(json.dumps(layout))

            ended = run("plan", "--trainer", files["trainer"], "--engine", files["engine"])

            self.assertTrue(lost)
            self.assert_fails(ended, 1, "not_covered")

    def test_a_file_that_is_no_layout_is_refused_by_its_name(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "layout.json"
            path.write_text('{"ranks": 3}')

            ended = run("plan", "--trainer", path, "--engine", path)

            self.assert_fails(ended, 1, "bad_layout_file")
            self.assertIn("layout.json", ended.error["message"])


if __name__ == "__main__":
    unittest.main()
