"""A plain-Python reader and writer of safetensors files, standard library only.

It is an oracle: written from the format's description (8-byte little-endian header length, JSON header, raw data) and
sharing no code with the product, so that a file which both read alike is read right. Strict: whatever the format does
not allow is a FormatError that names the file.
"""

import json
import mmap
import os
import pathlib
import struct
from collections import namedtuple

ELEMENT_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip

HEADER_BYTES_MAX = 100_000_000

# `data` is any bytes-like object of exactly the tensor's row-major little-endian bytes.
Tensor = namedtuple("Tensor", "dtype shape data")


class FormatError(ValueError):
    """A file breaks the format. The text names the file and the rule."""


def tensor_bytes(dtype, shape):
    """How many bytes a tensor takes."""
    count = ELEMENT_BYTES[dtype]
    for extent in shape:
        count *= extent
    return count


def _no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise FormatError("a key appears twice in the header")
    return dict(pairs)


def _is_count(value):
    return type(value) is int and value >= 0


def _check_entry(name, entry):
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"tensor {name}: want exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in ELEMENT_BYTES:
        raise FormatError(f"tensor {name}: unknown dtype {dtype!r}")
    if not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise FormatError(f"tensor {name}: bad shape {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise FormatError(f"tensor {name}: bad data_offsets {offsets!r}")
    if offsets[1] - offsets[0] != tensor_bytes(dtype, shape):
        raise FormatError(f"tensor {name}: {dtype} {shape} does not take data_offsets {offsets}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def parse_header(header_bytes, data_bytes):
    """Header JSON -> ({name: (dtype, shape, begin, end)}, metadata).

    The tensors must cover `data_bytes` exactly once.
    """
    try:
        header = json.loads(header_bytes.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except UnicodeDecodeError as error:
        raise FormatError(f"header is not UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        raise FormatError(f"header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise FormatError("header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError("__metadata__ is not a map of strings")
    entries = {name: _check_entry(name, entry) for name, entry in header.items()}
    position = 0
    for name, (_, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if begin != position:
            raise FormatError(f"tensor {name}: begins at {begin}, want {position}")
        position = end
    if position != data_bytes:
        raise FormatError(f"tensors end at {position}, the file's data at {data_bytes}")
    return entries, metadata


def _parse_file(view):
    if len(view) < 8:
        raise FormatError(f"{len(view)} bytes are too short for a length")
    (header_length,) = struct.unpack_from("<Q", view)
    if header_length > HEADER_BYTES_MAX or 8 + header_length > len(view):
        raise FormatError(f"header length {header_length} does not fit the file's {len(view)} bytes")
    data_start = 8 + header_length
    entries, metadata = parse_header(bytes(view[8:data_start]), len(view) - data_start)
    tensors = {
        name: Tensor(dtype, shape, view[data_start + begin : data_start + end])
        for name, (dtype, shape, begin, end) in entries.items()
    }
    return tensors, metadata


def read_file(path):
    """({name: Tensor}, metadata) of one file.

    The data are views of a mapping of the file: nothing is read until used.
    """
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise FormatError("empty file")
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return _parse_file(view)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def checkpoint_files(place):
    """The safetensors files of a checkpoint directory, or the one file that `place` itself is."""
    place = pathlib.Path(place)
    if place.is_file():
        return [place]
    index_path = place / "model.safetensors.index.json"
    if index_path.exists():
        weight_map = json.loads(index_path.read_text(encoding="utf-8"))["weight_map"]
        return [place / name for name in sorted(set(weight_map.values()))]
    files = sorted(place.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(2, "no safetensors file", str(place))
    return files


def read_checkpoint(place):
    """{name: Tensor} of a checkpoint directory (one file, or several with an index) or of a single file."""
    tensors = {}
    for path in checkpoint_files(place):
        for name, tensor in read_file(path)[0].items():
            if name in tensors:
                raise FormatError(f"{path}: tensor {name} is in another file too")
            tensors[name] = tensor
    return tensors


def read_config(place):
    """config.json of a checkpoint directory; an empty map where there is none."""
    path = pathlib.Path(place) / "config.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def make_header(specs, metadata=None):
    """`specs`: (name, dtype, shape) in file order -> the file's bytes before the data, data 8-byte aligned."""
    header = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, dtype, shape in specs:
        end = offset + tensor_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_file(path, tensors, metadata=None):
    """Writes (name, dtype, shape, blocks) in the given order. `blocks`: bytes-like, or an iterable of bytes-like."""
    tensors = list(tensors)
    with open(path, "wb") as file:
        file.write(make_header([tensor[:3] for tensor in tensors], metadata))
        for name, dtype, shape, blocks in tensors:
            start = file.tell()
            for block in [blocks] if isinstance(blocks, (bytes, bytearray, memoryview)) else blocks:
                file.write(block)
            written = file.tell() - start
            if written != tensor_bytes(dtype, shape):
                raise ValueError(f"{path}: tensor {name}: got {written} bytes, want {tensor_bytes(dtype, shape)}")
