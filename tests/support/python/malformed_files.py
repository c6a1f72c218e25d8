"""Writes safetensors files and checkpoints that break one rule each, and odd ones that break none.

    malformed_files.py refused DIR     every case of REFUSED in a place of its own below DIR
    malformed_files.py accepted DIR    every case of ACCEPTED
    malformed_files.py seeds DIR       the small ones of both, as fuzzers take them

Prints one JSON object a line: {"name", "path", "reason", "message": [parts]} for a refused one, {"name", "path",
"tensors": [{"name", "dtype", "shape", "data": hex | null}]} for an accepted one. Written from the format's description,
standard library only.
"""

import json
import pathlib
import struct
import sys

INDEX = "model.safetensors.index.json"
FILE = "model.safetensors"


def raw(header, data=b"", length=None):
    """A file of a header as text or object, whatever it says."""
    text = header if isinstance(header, bytes) else (
        header if isinstance(header, str) else json.dumps(header, separators=(",", ":"), ensure_ascii=False)
    ).encode("utf-8")
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype="U8", shape=(4,), offsets=(0, 4), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def without(field):
    fields = entry()
    del fields[field]
    return {"w": fields}


def twice(first, second):
    """JSON with two keys, possibly the same, that a map could not hold."""
    return "{" + first + "," + second + "}"


W = '"w":' + json.dumps(entry())
GOOD = raw({"w": entry()}, b"abcd")
TWO = {"a": entry(), "b": entry(offsets=(4, 8))}
TWO_FILE = raw(TWO, b"abcdefgh")
TWO_DATA_AT = len(TWO_FILE) - 8
HUGE = 1 << 62

# name -> (file bytes, reason, parts of the message; the file's path is always one)
REFUSED_FILES = {
    # Not safetensors at all (C-107).
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 988097824\n",
                    "not_safetensors", ["git-lfs pointer", "988097824 bytes"]),
    "lfs pointer cut short": (b"version https://git-lfs.github.com/spec/v1\noid", "not_safetensors", ["git-lfs pointer"]),
    "html": (b"<!DOCTYPE html><html><title>Sign in</title></html>", "not_safetensors", ["HTML"]),
    "html behind blanks": (b"\r\n  <html><body>404</body></html>", "not_safetensors", ["HTML"]),
    "xml": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "not_safetensors", ["XML"]),
    "zip": (b"PK\x03\x04" + b"\0" * 60, "not_safetensors", ["zip archive", "torch.save"]),
    "empty zip": (b"PK\x05\x06" + b"\0" * 18, "not_safetensors", ["zip archive"]),
    "pickle 2": (b"\x80\x02}q\0." + b"\0" * 20, "not_safetensors", ["pickle"]),
    "pickle 4": (b"\x80\x04\x95" + b"\0" * 20, "not_safetensors", ["pickle"]),
    "pickle 5": (b"\x80\x05\x95" + b"\0" * 20, "not_safetensors", ["pickle"]),
    "gzip": (b"\x1f\x8b\x08\0" + b"\0" * 20, "not_safetensors", ["gzip"]),
    "zstd": (b"\x28\xb5\x2f\xfd" + b"\x05" * 20, "not_safetensors", ["zstd"]),
    "xz": (b"\xfd7zXZ\0" + b"\x05" * 20, "not_safetensors", ["xz"]),
    "gguf": (b"GGUF\x03\0\0\0" + b"\0" * 16, "not_safetensors", ["GGUF"]),
    "numpy": (b"\x93NUMPY\x01\0" + b"\0" * 16, "not_safetensors", ["NumPy"]),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + b"\0" * 16, "not_safetensors", ["HDF5"]),
    "elf": (b"\x7fELF\x02\x01\x01" + b"\0" * 16, "not_safetensors", ["ELF"]),
    "text": (b"Entry not found", "not_safetensors", ["a text file"]),
    "json without a length": (b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', "not_safetensors", ["a text file"]),
    "zeros of a download that never began": (b"\0" * 4096, "not_safetensors", ["zeros"]),
    # Cut downloads (C-107).
    "empty": (b"", "file_truncated", ["got=0 bytes, want=8"]),
    "seven bytes": (GOOD[:7], "file_truncated", ["got=7 bytes, want=8"]),
    "length alone": (TWO_FILE[:8], "file_truncated", [f"got=8 bytes, want={TWO_DATA_AT}"]),
    "header cut by one": (TWO_FILE[: TWO_DATA_AT - 1], "file_truncated",
                          [f"got={TWO_DATA_AT - 1} bytes, want={TWO_DATA_AT}", "for the header"]),
    "header alone": (TWO_FILE[:TWO_DATA_AT], "file_truncated",
                     [f"got={TWO_DATA_AT} bytes, want={TWO_DATA_AT + 8}", "2 of 2", "tensor=a"]),
    "data cut by one": (TWO_FILE[:-1], "file_truncated", [f"got={TWO_DATA_AT + 7} bytes, want={TWO_DATA_AT + 8}",
                                                          "1 of 2", "tensor=b"]),
    # The length field.
    "length above the cap": (raw({"w": entry()}, b"abcd", length=100_000_001), "header_length", ["most=100000000"]),
    "length of 2^64 - 1": (raw({"w": entry()}, b"abcd", length=(1 << 64) - 1), "header_length", [str((1 << 64) - 1)]),
    "length of 2^63": (raw({"w": entry()}, b"abcd", length=1 << 63), "header_length", [str(1 << 63)]),
    "length of zero": (raw({"w": entry()}, b"abcd", length=0), "header_json", ["does not begin with '{'"]),
    "length one too long": (raw({"w": entry()}, b"abcd", length=len(GOOD) - 12 + 1), "header_json", ["not JSON at byte"]),
    "length one too short": (raw({"w": entry()}, b"abcd", length=len(GOOD) - 12 - 1), "header_json", ["not JSON at byte"]),
    # The JSON.
    "blank before the object": (raw(b" {}"), "header_json", ["does not begin with '{'"]),
    "byte order mark": (raw(b"\xef\xbb\xbf{}"), "header_json", ["does not begin with '{'"]),
    "an array": (raw(b"[]"), "header_json", ["does not begin with '{'"]),
    "object not closed": (raw(b'{"w":'), "header_json", ["not JSON at byte"]),
    "two objects": (raw(b"{}{}"), "header_json", ["not JSON at byte"]),
    "a zero byte behind the object": (raw(b"{}\0\0"), "header_json", ["zero byte"]),
    "name that is not utf-8": (raw(b'{"\xff":{}}'), "header_json", ["not JSON at byte"]),
    "name with half a surrogate": (raw(rb'{"\ud800":{}}'), "header_json", ["not JSON at byte"]),
    "comment": (raw(b'{/* x */"w":{}}'), "header_json", ["not JSON at byte"]),
    "comma too many": (raw('{' + W + ',}', b"abcd"), "header_json", ["not JSON at byte"]),
    "nested ten thousand deep": (raw(b'{"w":' + b"[" * 10_000), "bad_entry", ["tensor=w", "an array"]),
    # Keys that come twice (C-109); their offsets are wrong too, and that is not what is said.
    "tensor twice": (raw(twice(W, W), b"ab"), "duplicate_key", ['duplicate key "w"']),
    "tensor twice, far apart": (raw(twice(W, '"v":' + json.dumps(entry(offsets=(4, 8))) + "," + W), b"ab"),
                                "duplicate_key", ['duplicate key "w"']),
    "tensor twice, once escaped": (raw(twice(W, W.replace('"w"', '"\\u0077"')), b"ab"), "duplicate_key",
                                   ['duplicate key "w"']),
    "metadata twice": (raw(twice('"__metadata__":{}', '"__metadata__":{}')), "duplicate_key", ['"__metadata__"']),
    "metadata key twice": (raw('{"__metadata__":{"a":"b","a":"b"}}'), "duplicate_key", ['"a"']),
    "field twice": (raw('{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"shape":[4]}}', b"abcd"), "duplicate_key",
                    ["tensor=w", 'duplicate key "shape"']),
    # Entries.
    "no dtype": (raw(without("dtype"), b"abcd"), "bad_entry", ["tensor=w", "no dtype"]),
    "no shape": (raw(without("shape"), b"abcd"), "bad_entry", ["tensor=w", "no shape"]),
    "no offsets": (raw(without("data_offsets"), b"abcd"), "bad_entry", ["tensor=w", "no data_offsets"]),
    "unknown field": (raw({"w": entry(scale=1)}, b"abcd"), "bad_entry", ["tensor=w", 'unknown field "scale"']),
    "entry is null": (raw({"w": None}), "bad_entry", ["tensor=w", "null"]),
    "entry is a string": (raw({"w": "U8"}), "bad_entry", ["tensor=w", "a string"]),
    "shape is a number": (raw({"w": {"dtype": "U8", "shape": 4, "data_offsets": [0, 4]}}, b"abcd"), "bad_entry",
                          ["tensor=w", "shape has a number"]),
    "shape with a fraction": (raw({"w": entry(shape=(4.0,))}, b"abcd"), "bad_entry", ["tensor=w", "no whole one"]),
    "shape with a negative number": (raw({"w": entry(shape=(-4,))}, b"abcd"), "bad_entry", ["tensor=w", "negative"]),
    "shape with a string": (raw({"w": entry(shape=("4",))}, b"abcd"), "bad_entry", ["tensor=w", "a string"]),
    "shape with true": (raw({"w": entry(shape=(True,))}, b"abcd"), "bad_entry", ["tensor=w", "a boolean"]),
    "shape of nine dimensions": (raw({"w": entry(shape=(1,) * 8 + (4,))}, b"abcd"), "bad_entry",
                                 ["tensor=w", "more than 8 dimensions"]),
    "shape product above 2^64": (raw({"w": entry(shape=(HUGE, 4), offsets=(0, 0))}), "shape_overflow",
                                 ["tensor=w", "more than 2^63 bytes"]),
    "shape product above 2^64 times zero": (raw({"w": entry(shape=(0, HUGE, 4), offsets=(0, 0))}), "shape_overflow",
                                            ["tensor=w", "more than 2^63 bytes"]),
    "shape whose bytes are above 2^63": (raw({"w": entry("F64", (HUGE // 2,), (0, 0))}), "shape_overflow",
                                         ["tensor=w", "more than 2^63 bytes"]),
    "offsets as 2^64": (raw({"w": entry(offsets=(0, 1 << 64))}, b"abcd"), "bad_entry", ["tensor=w", "data_offsets"]),
    "offsets as 2^63": (raw({"w": entry(offsets=(0, 1 << 63))}, b"abcd"), "bad_entry", ["tensor=w", "above 2^63"]),
    "negative offset": (raw({"w": entry(offsets=(-4, 0))}, b"abcd"), "bad_entry", ["tensor=w", "negative"]),
    "offset with a fraction": (raw({"w": entry(offsets=(0.5, 4))}, b"abcd"), "bad_entry", ["tensor=w", "no whole one"]),
    "one offset": (raw({"w": entry(offsets=(0,))}, b"abcd"), "bad_entry", ["tensor=w", "1 data_offsets, want=2"]),
    "three offsets": (raw({"w": entry(offsets=(0, 4, 4))}, b"abcd"), "bad_entry", ["tensor=w", "more than two"]),
    "dtype is a number": (raw({"w": entry(dtype=8)}, b"abcd"), "bad_entry", ["tensor=w", "dtype has a number"]),
    "dtype in small letters": (raw({"w": entry("bf16", (2,))}, b"abcd"), "unknown_dtype", ["tensor=w", '"bf16"']),
    "dtype of torch": (raw({"w": entry("torch.bfloat16", (2,))}, b"abcd"), "unknown_dtype", ["tensor=w", "torch.bfloat16"]),
    # Types of the format that are not read, each refused by its name.
    **{f"dtype {dtype}": (raw({"w": entry(dtype, shape)}, b"abcd"), "unsupported_dtype", ["tensor=w", f'"{dtype}"'])
       for dtype, shape in [("F4", (8,)), ("F6_E2M3", (5,)), ("F6_E3M2", (5,)), ("F8_E8M0", (4,)),
                            ("F8_E4M3FNUZ", (4,)), ("F8_E5M2FNUZ", (4,))]},
    "dtype C64": (raw({"w": entry("C64", (1,), (0, 8))}, b"abcdefgh"), "unsupported_dtype", ["tensor=w", '"C64"']),
    # Names.
    "name that is empty": (raw({"": entry()}, b"abcd"), "bad_name", ["no name"]),
    "name with a line break": (raw({"a\nb": entry()}, b"abcd"), "bad_name", [r"a\x0ab", "control character"]),
    "name with a zero": (raw({"a\0b": entry()}, b"abcd"), "bad_name", [r"a\x00b", "control character"]),
    "name of 1025 bytes": (raw({"x" * 1025: entry()}, b"abcd"), "bad_name", ["most=1024"]),
    # Metadata (C-113).
    "metadata is a string": (raw({"__metadata__": "pt"}), "bad_metadata", ["__metadata__ is a string"]),
    "metadata is null": (raw({"__metadata__": None}), "bad_metadata", ["__metadata__ is null"]),
    "metadata with a number": (raw({"__metadata__": {"step": 7}}), "bad_metadata", ["__metadata__.step is a number"]),
    "metadata with null": (raw({"__metadata__": {"step": None}}), "bad_metadata", ["__metadata__.step is null"]),
    "metadata with an object": (raw({"__metadata__": {"a": {"b": "c"}}}), "bad_metadata", ["__metadata__.a is an object"]),
    "metadata that is a tensor": (raw({"__metadata__": entry()}, b"abcd"), "bad_metadata", ["__metadata__.shape"]),
    # Ranges (C-110).
    "end before begin": (raw({"w": entry(offsets=(4, 0))}, b"abcd"), "bad_offsets", ["tensor=w", "end before"]),
    "range shorter than the shape": (raw({"w": entry("F32", (1,), (0, 3))}, b"abc"), "size_mismatch",
                                     ["tensor=w", "hold 3 bytes, but F32 of shape [1] takes 4"]),
    "range longer than the shape": (raw({"w": entry("F32", (1,), (0, 5))}, b"abcde"), "size_mismatch", ["tensor=w"]),
    "scalar of no bytes": (raw({"w": entry("F32", (), (0, 0))}), "size_mismatch", ["tensor=w", "takes 4"]),
    "range far behind the file": (raw({"w": entry(offsets=(HUGE, HUGE + 4))}, b"abcd"), "range_gap", ["tensor=w"]),
    "overlap by one": (raw({"a": entry(), "b": entry(offsets=(3, 7))}, b"abcdefg"), "ranges_overlap",
                       ["tensor=b", "overlap what ends at 4"]),
    "the same range twice": (raw({"a": entry(), "b": entry()}, b"abcd"), "ranges_overlap", ["tensor=b"]),
    "gap of one": (raw({"a": entry(), "b": entry(offsets=(5, 9))}, b"abcdefghi"), "range_gap",
                   ["tensor=b", "a gap behind 4"]),
    "gap at the beginning": (raw({"w": entry(offsets=(1, 5))}, b"abcde"), "range_gap", ["tensor=w", "a gap behind 0"]),
    "one byte too many": (raw(TWO, b"abcdefghi"), "trailing_bytes", ["1 bytes behind the last tensor", "tensor=b"]),
    "eight bytes too many": (raw(TWO, b"abcdefgh" * 2), "trailing_bytes", ["8 bytes behind the last tensor"]),
    "data without tensors": (raw({}, b"abc"), "trailing_bytes", ["3 bytes"]),
    "large shape over few bytes": (raw({"w": entry("F32", (1 << 20, 1 << 20), (0, 4))}, b"abcd"), "size_mismatch",
                                   ["tensor=w", "takes 4398046511104"]),
    "large range over few bytes": (raw({"w": entry("U8", (1 << 40,), (0, 1 << 40))}, b"abcd"), "file_truncated",
                                   ["tensor=w", "want="]),
}


def one(name):
    return raw({name: entry()}, b"abcd")


def index(weight_map, **more):
    return json.dumps({"metadata": {"total_size": 8}, "weight_map": weight_map, **more}).encode()


PAIR = {"1.safetensors": one("a"), "2.safetensors": one("b")}
PAIR_MAP = {"a": "1.safetensors", "b": "2.safetensors"}

# name -> ({file: bytes, or a str: a link to it}, reason, parts of the message)
REFUSED_DIRECTORIES = {
    "nothing": ({"config.json": b"{}"}, "no_safetensors", []),
    "pickles only": ({"pytorch_model.bin": b"\x80\x02"}, "no_safetensors", ["pytorch_model.bin", "pickle"]),
    "two files without an index": (PAIR, "ambiguous_files", ["1.safetensors, 2.safetensors"]),
    "a whole file beside an index": ({**PAIR, FILE: one("a"), INDEX: index(PAIR_MAP)}, "ambiguous_files", [FILE]),
    # The index (C-115, C-116).
    "index is a pointer": ({**PAIR, INDEX: REFUSED_FILES["lfs pointer"][0]}, "bad_index", [INDEX, "git-lfs pointer"]),
    "index is a page": ({**PAIR, INDEX: b"<html>"}, "bad_index", [INDEX, "HTML"]),
    "index is empty": ({**PAIR, INDEX: b""}, "bad_index", [INDEX, "not JSON"]),
    "index is cut": ({**PAIR, INDEX: index(PAIR_MAP)[:-9]}, "bad_index", [INDEX, "not JSON"]),
    "index is an array": ({**PAIR, INDEX: b"[]"}, "bad_index", [INDEX, "not an object"]),
    "index without a map": ({**PAIR, INDEX: b"{}"}, "bad_index", [INDEX, "no weight_map"]),
    "index with a number for a file": ({**PAIR, INDEX: index({"a": 7})}, "bad_index", ["tensor=a"]),
    "index with a list of files": ({**PAIR, INDEX: index({"a": ["1.safetensors"]})}, "bad_index", ["tensor=a"]),
    "index key twice": ({**PAIR, INDEX: b'{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}'}, "duplicate_key",
                        [INDEX, 'duplicate key "a"']),
    "index with two maps": ({**PAIR, INDEX: b'{"weight_map":{},"weight_map":{}}'}, "duplicate_key", ["weight_map"]),
    "one file missing": ({"1.safetensors": one("a"), INDEX: index(PAIR_MAP)}, "shard_missing",
                         [INDEX, "1 of 2 listed files, with 1 tensors", "2.safetensors"]),
    "an index of another split": ({**PAIR, INDEX: index({f"t{i}": f"x-{i % 30}.safetensors" for i in range(90)})},
                                  "shard_missing", ["30 of 30 listed files, with 90 tensors", "x-7.safetensors"]),
    "a listed name that no file has": ({**PAIR, INDEX: index({**PAIR_MAP, "c": "1.safetensors"})}, "tensor_not_in_shard",
                                       ["tensor=c", "1.safetensors", "in no other"]),
    "names in each other's file": ({**PAIR, INDEX: index({"a": "2.safetensors", "b": "1.safetensors"})},
                                   "tensor_not_in_shard", ["tensor=a", "file=2.safetensors", "but in 1.safetensors"]),
    "a name that is not listed": ({"1.safetensors": one("a"), "2.safetensors": TWO_FILE.replace(b'"a"', b'"c"'),
                                   INDEX: index(PAIR_MAP)}, "tensor_not_in_index", ["tensor=c", "2.safetensors"]),
    "a name in two files": ({"1.safetensors": one("a"), "2.safetensors": TWO_FILE, INDEX: index(PAIR_MAP)},
                            "duplicate_tensor", ["tensor=a", "1.safetensors and in 2.safetensors"]),
    "a path upwards": ({**PAIR, INDEX: index({"a": "../1.safetensors"})}, "outside_directory", ["tensor=a"]),
    "an absolute path": ({**PAIR, INDEX: index({"a": "/etc/passwd"})}, "outside_directory", ["tensor=a"]),
    "a sub-directory": ({**PAIR, INDEX: index({"a": "sub/1.safetensors"})}, "outside_directory", ["tensor=a"]),
    "the directory itself": ({**PAIR, INDEX: index({"a": "."})}, "outside_directory", ["tensor=a"]),
    "a file with a zero in its name": ({**PAIR, INDEX: index({"a": "1\0.safetensors"})}, "outside_directory", ["tensor=a"]),
    "a listed link that leads out": ({"1.safetensors": one("a"), "2.safetensors": "../outside.safetensors",
                                      INDEX: index(PAIR_MAP)}, "outside_directory", ["2.safetensors", "outside"]),
    "a single link that leads out": ({FILE: "../outside.safetensors"}, "outside_directory", [FILE]),
    "a listed link to nowhere": ({"1.safetensors": one("a"), "2.safetensors": "nowhere", INDEX: index(PAIR_MAP)},
                                 "shard_missing", ["2.safetensors"]),
    "a listed directory": ({"1.safetensors": one("a"), "2.safetensors/x": b"", INDEX: index(PAIR_MAP)},
                           "file_not_readable", ["2.safetensors", "not a regular file"]),
    "a shard that is a pointer": ({"1.safetensors": one("a"), "2.safetensors": REFUSED_FILES["lfs pointer"][0],
                                   INDEX: index(PAIR_MAP)}, "not_safetensors", ["2.safetensors", "git-lfs"]),
    "a shard that is cut": ({"1.safetensors": one("a"), "2.safetensors": one("b")[:-1], INDEX: index(PAIR_MAP)},
                            "file_truncated", ["2.safetensors", "tensor=b"]),
}


def tensor(name, dtype, shape, data):
    return {"name": name, "dtype": dtype, "shape": list(shape), "data": None if data is None else data.hex()}


def every_dtype():
    sizes = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
             "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}  # fmt: skip
    header, data, tensors = {}, b"", []
    for number, (dtype, size) in enumerate(sizes.items()):
        block = bytes([number]) * (3 * size)
        header[dtype] = entry(dtype, (3,), (len(data), len(data) + len(block)))
        tensors.append(tensor(dtype, dtype, (3,), block))
        data += block
    return raw(header, data), tensors


def many(count):
    header = {f"t{i:05d}": entry("U8", (1,), (i, i + 1)) for i in range(count)}
    data = bytes(i % 251 for i in range(count))
    return raw(header, data), [tensor(name, "U8", (1,), data[i : i + 1]) for i, name in enumerate(header)]


def padded(blanks):
    """Data that begin at every distance from alignment (C-112)."""
    text = json.dumps({"w": entry("F64", (2,), (0, 16))}).encode() + b" " * blanks
    return raw(text, b"0123456789abcdef"), [tensor("w", "F64", (2,), b"0123456789abcdef")]


def at_offset(offset):
    text = json.dumps({"w": entry("F32", (2,), (0, 8))}).encode()
    return padded_to(text, offset, b"01234567"), [tensor("w", "F32", (2,), b"01234567")]


def padded_to(text, offset, data):
    return raw(text + b" " * (offset - 8 - len(text)), data)


def large_header(size):
    text = json.dumps({"__metadata__": {"note": "x" * size}, "w": entry()})
    return raw(text, b"abcd"), [tensor("w", "U8", (4,), b"abcd")]


W_TENSOR = [tensor("w", "U8", (4,), b"abcd")]
LINKED = {"models--x/blobs/0a1b": one("w"), "models--x/snapshots/r1/model.safetensors": "../../blobs/0a1b"}

# name -> (file bytes or {file: bytes or link}, what is read, where below the place)
ACCEPTED = {
    "every dtype": every_dtype(),
    "no tensors": (raw({}), []),
    "empty metadata": (raw({"__metadata__": {}, "w": entry()}, b"abcd"), W_TENSOR),
    "metadata alone": (raw({"__metadata__": {"format": "pt"}}), []),
    "metadata last": (raw({"w": entry(), "__metadata__": {"b": "1", "a": "2"}}, b"abcd"), W_TENSOR),
    "metadata of unicode": (raw({"__metadata__": {"é": "日\n"}, "w": entry()}, b"abcd"), W_TENSOR),
    "scalar": (raw({"w": entry("F32", (), (0, 4))}, b"abcd"), [tensor("w", "F32", (), b"abcd")]),
    "zero-size tensor": (raw({"w": entry("F32", (0, 5), (0, 0))}), [tensor("w", "F32", (0, 5), b"")]),
    "zero-size tensors between others": (
        raw({"z": entry("F32", (3, 0), (4, 4)), "y": entry("F32", (0,), (0, 0)), "w": entry(),
             "x": entry(offsets=(4, 8))}, b"abcdefgh"),
        [*W_TENSOR, tensor("x", "U8", (4,), b"efgh"), tensor("y", "F32", (0,), b""), tensor("z", "F32", (3, 0), b"")]),
    "eight dimensions": (raw({"w": entry(shape=(1,) * 7 + (4,))}, b"abcd"), [tensor("w", "U8", (1,) * 7 + (4,), b"abcd")]),
    "data in another order than the header": (raw({"b": entry(offsets=(4, 8)), "a": entry()}, b"abcdefgh"),
                                              [tensor("a", "U8", (4,), b"abcd"), tensor("b", "U8", (4,), b"efgh")]),
    "fields in another order": (raw({"w": {"data_offsets": [0, 4], "shape": [4], "dtype": "U8"}}, b"abcd"), W_TENSOR),
    "unicode names": (raw({"层.0.重み": entry(), "ключ é": entry(offsets=(4, 8))}, b"abcdefgh"),
                      [tensor("ключ é", "U8", (4,), b"efgh"), tensor("层.0.重み", "U8", (4,), b"abcd")]),
    "escaped names": (raw(rb'{"\u0077\ud83d\ude00\"\\/":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', b"abcd"),
                      [tensor('w😀"\\/', "U8", (4,), b"abcd")]),
    "a name of 1024 bytes": (raw({"x" * 1024: entry()}, b"abcd"), [tensor("x" * 1024, "U8", (4,), b"abcd")]),
    "a name like a path": (raw({"../../etc/passwd": entry()}, b"abcd"), [tensor("../../etc/passwd", "U8", (4,), b"abcd")]),
    "blanks and line breaks in the header": (raw(json.dumps({"w": entry()}, indent=4) + " \n\t\r", b"abcd"), W_TENSOR),
    **{f"data at distance {blanks} from alignment": padded(blanks) for blanks in range(8)},
    "data at 4096 + 1": at_offset(4097),
    "ten thousand tensors": many(10_000),
    "a header of 40 MB": large_header(40_000_000),
    "shards": ({**PAIR, INDEX: index(PAIR_MAP)}, [tensor("a", "U8", (4,), b"abcd"), tensor("b", "U8", (4,), b"abcd")]),
    "a wrong total_size": ({"1.safetensors": one("a"), INDEX: index({"a": "1.safetensors"})},
                           [tensor("a", "U8", (4,), b"abcd")]),
    "an index with more in it": ({**PAIR, INDEX: index(PAIR_MAP, extra={"weight_map": {"x": 1}})},
                                 [tensor("a", "U8", (4,), b"abcd"), tensor("b", "U8", (4,), b"abcd")]),
    "a file that the index leaves out": ({**PAIR, "consolidated.safetensors": one("a"), INDEX: index(PAIR_MAP)},
                                         [tensor("a", "U8", (4,), b"abcd"), tensor("b", "U8", (4,), b"abcd")]),
    "a link within the directory": ({"stored.bin": one("w"), FILE: "stored.bin"}, W_TENSOR),
    "a snapshot of the Hugging Face cache": (LINKED, W_TENSOR, "models--x/snapshots/r1"),
}


def write(place, content):
    """Returns the path to open."""
    if isinstance(content, bytes):
        path = place.with_suffix(".safetensors")
        path.write_bytes(content)
        return path
    for name, data in content.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, str):
            path.symlink_to(data)
        else:
            path.write_bytes(data)
    return place


def write_all(directory, cases):
    """Yields (name, path, rest of the case)."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "outside.safetensors").write_bytes(one("b"))
    for number, (name, (content, *rest)) in enumerate(cases.items()):
        yield name, write(directory / f"case-{number}", content), rest


def write_seeds(directory):
    """Files and their JSON (behind two bytes: how many bytes of data follow) for one fuzzer, indexes for the other."""
    headers, indexes = directory / "safetensors_header_fuzzer", directory / "shard_index_fuzzer"
    headers.mkdir(parents=True)
    indexes.mkdir(parents=True)
    places = {**REFUSED_FILES, **REFUSED_DIRECTORIES, **ACCEPTED}.values()
    for number, (content, *_) in enumerate(places):
        files = {FILE: content} if isinstance(content, bytes) else content
        for name, data in files.items():
            if isinstance(data, str) or len(data) > 4096:
                continue
            if name == INDEX:
                (indexes / f"{number}").write_bytes(data)
            elif name.endswith(".safetensors"):
                (headers / f"{number}-{name}").write_bytes(data)
                end = 8 + struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else len(data)
                json_and_size = struct.pack("<H", max(0, len(data) - end)) + data[8:end]
                (headers / f"{number}-{name}.json").write_bytes(json_and_size)


def main():
    which, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    if which == "seeds":
        write_seeds(directory)
    elif which == "refused":
        for name, path, (reason, message) in write_all(directory, {**REFUSED_FILES, **REFUSED_DIRECTORIES}):
            parts = [path.name, *message]
            print(json.dumps({"name": name, "path": str(path), "reason": reason, "message": parts}))
    else:
        for name, path, (tensors, *below) in write_all(directory, ACCEPTED):
            print(json.dumps({"name": name, "path": str(path.joinpath(*below)), "tensors": tensors}))


if __name__ == "__main__":
    main()
