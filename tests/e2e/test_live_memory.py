"""`verify` reads an engine's live memory: what is changed there behind its back is found."""

import re
import unittest
from pathlib import Path

from bascule_program import EndToEndTest, checkpoint, run
import safetensors_io

NORM = "model.layers.0.input_layernorm.weight"


class Memory:
    """The writable memory of a process."""

    def __init__(self, pid):
        self.maps = Path(f"/proc/{pid}/maps").read_text()
        self.file = open(f"/proc/{pid}/mem", "r+b", buffering=0)

    def close(self):
        self.file.close()

    def places_of(self, pattern):
        """Addresses at which `pattern` lies."""
        for begin, end in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", self.maps, re.MULTILINE):
            begin, end = int(begin, 16), int(end, 16)
            if end - begin > 1 << 30:  # a sanitizer's, most of it never touched
                continue
            try:
                self.file.seek(begin)
                content = self.file.read(end - begin)
            except (OSError, OverflowError):  # not memory
                continue
            at = content.find(pattern)
            while at >= 0:
                yield begin + at
                at = content.find(pattern, at + 1)

    def flip_bit(self, address):
        self.file.seek(address)
        byte = self.file.read(1)[0]
        self.file.seek(address)
        self.file.write(bytes([byte ^ 1]))


class LiveMemoryTest(EndToEndTest):
    def memory_of(self, engine):
        try:
            memory = Memory(engine.pid)
        except PermissionError:
            self.skipTest("this kernel lets no process look into its children's memory")
        self.addCleanup(memory.close)
        return memory

    def norm_bytes(self, path):
        return bytes(safetensors_io.read_checkpoint(path)[NORM].data)

    def test_a_replica_that_differs_is_a_difference_of_its_tensor(self):
        path = checkpoint()
        engine = self.start_engine(path, "--tp", 2)
        memory = self.memory_of(engine)
        self.run_ok("verify", path, engine.address)
        found = []

        # Copies that have passed through buffers lie about as well; a change to those is none to the weights.
        for place in list(memory.places_of(self.norm_bytes(path))):
            memory.flip_bit(place)
            ended = run("verify", path, engine.address, env=self.env)
            memory.flip_bit(place)
            if ended.code != 0:
                found.append(ended)

        self.assertEqual(len(found), 2, "one for each rank")
        for ended in found:
            self.assertEqual(ended.code, 3, ended)
            self.assertEqual([d["tensor"] for d in ended.objects[0]["differences"]], [NORM])
            self.assertFalse(ended.objects[0]["equal"])
            self.assertRegex(ended.objects[0]["differences"][0]["why"], "holds other bytes")
            self.assertEqual(ended.error["reason"], "content_differs")
        self.run_ok("verify", path, engine.address)


if __name__ == "__main__":
    unittest.main()
