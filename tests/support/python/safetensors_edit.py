"""Changes bytes of a safetensors file in place: for tests that damage one. Standard library only; shares no code with
the product.
"""

import json
import struct


class OpenTensors:
    """A file's tensors by name, as bytes that can be read and written.

        with OpenTensors(path) as tensors:
            tensors.swap("qkv", 0, 64, 128)     # 64 bytes from 0 on and 64 from 128 on
    """

    def __init__(self, path):
        self._file = open(path, "r+b")  # closed by __exit__
        (length,) = struct.unpack("<Q", self._file.read(8))
        self.header = json.loads(self._file.read(length))
        self._data_start = 8 + length

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def names(self):
        return sorted(name for name in self.header if name != "__metadata__")

    def shape(self, name):
        return self.header[name]["shape"]

    def row_bytes(self, name):
        """Of one index of the first dimension."""
        begin, end = self.header[name]["data_offsets"]
        return (end - begin) // self.shape(name)[0]

    def read(self, name, begin=0, size=None):
        start, end = self.header[name]["data_offsets"]
        self._file.seek(self._data_start + start + begin)
        return self._file.read(end - start - begin if size is None else size)

    def write(self, name, begin, data):
        start, end = self.header[name]["data_offsets"]
        assert begin + len(data) <= end - start
        self._file.seek(self._data_start + start + begin)
        self._file.write(data)

    def read_rows(self, name, first, count):
        row = self.row_bytes(name)
        return self.read(name, first * row, count * row)

    def write_rows(self, name, first, data):
        self.write(name, first * self.row_bytes(name), data)

    def swap_rows(self, name, first, second, count):
        one, other = self.read_rows(name, first, count), self.read_rows(name, second, count)
        assert one != other
        self.write_rows(name, first, other)
        self.write_rows(name, second, one)
