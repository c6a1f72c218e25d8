"""Compares the malformed-file suite with the reference implementation, where the `safetensors` package is installed.

What the suite calls valid the reference reads too, with the same types, shapes and bytes; what the suite refuses the
reference refuses too, but for rules of ours that are stricter, which are listed. Exits with 77 without the package.
"""

import pathlib
import sys
import tempfile

import malformed_files

try:
    from safetensors import SafetensorError, deserialize
except ImportError:
    print("skipped: the Python package `safetensors` is not installed")
    sys.exit(77)

# What the reference accepts and we do not, and why.
STRICTER = {
    "blank before the object": "the format says that a header begins with '{'",
    "metadata key twice": "it keeps one of them",
    "unknown field": "it skips what it does not know",
    "shape of nine dimensions": "our kernels have at most eight",
    "shape product above 2^64 times zero": "an index that is computed later would overflow",
    "metadata is null": "metadata are strings or absent",
    "name that is empty": "no message could name the tensor",
    "name with a line break": "it would forge lines of logs",
    "name with a zero": "it would cut text in C",
    "name of 1025 bytes": "names are bounded",
    **{f"dtype {dtype}": "not read" for dtype in ("F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "C64", "F8_E4M3FNUZ", "F8_E5M2FNUZ")},
}


def read(content):
    """{name: (dtype, shape, bytes)}, or why the reference refuses."""
    try:
        return {name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"])) for name, entry in deserialize(content)}
    except SafetensorError as error:
        return str(error)


def main():
    wrong = []
    for name, (content, *_) in malformed_files.REFUSED_FILES.items():
        got = read(content)
        if isinstance(got, dict) and name not in STRICTER:
            wrong.append(f"{name}: the reference reads it: {sorted(got)}")
    compared = 0
    for name, (content, tensors, *_) in malformed_files.ACCEPTED.items():
        if not isinstance(content, bytes):
            continue
        wanted = {t["name"]: (t["dtype"], tuple(t["shape"]), bytes.fromhex(t["data"])) for t in tensors}
        if (got := read(content)) != wanted:
            wrong.append(f"{name}: the reference says {got if isinstance(got, str) else 'other tensors'}")
        compared += 1
    print("\n".join(wrong) or f"the reference agrees on {compared} valid and {len(malformed_files.REFUSED_FILES)} broken files")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
