"""Limits for processes, before they start (`before=`) and while they run."""

import ctypes
import functools
import os
import pathlib
import resource

CLONE_NEWNS = 0x20000
MS_REC, MS_PRIVATE = 0x4000, 0x40000


def with_limit(kind, most):
    """For a new process: `most` of a resource, and no way to raise that."""
    return lambda: resource.setrlimit(kind, (most, most))


def with_full_shared_memory():
    """For a new process: /dev/shm is its own, of 64 KiB, and full."""
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.unshare(CLONE_NEWNS) != 0
        or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0
        or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64k") != 0
    ):
        os._exit(126)
    with open("/dev/shm/filler", "wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError:
            pass


@functools.cache
def mounting_permitted():
    """Empty, or why a process cannot have a /dev/shm of its own here."""
    child = os.fork()
    if child == 0:
        try:
            with_full_shared_memory()
            os._exit(0)
        except BaseException:
            os._exit(126)
    return "" if os.waitpid(child, 0)[1] == 0 else "mount namespaces cannot be made here"


class Limited:
    """For a while, a running process gets no more than `most` of a resource; then what it had."""

    def __init__(self, pid, kind, most):
        self._pid, self._kind, self._most = pid, kind, most

    def __enter__(self):
        self._before = resource.prlimit(self._pid, self._kind)
        resource.prlimit(self._pid, self._kind, (self._most, self._before[1]))
        return self

    def __exit__(self, *_):
        resource.prlimit(self._pid, self._kind, self._before)


def highest_descriptor(pid):
    return max(int(entry.name) for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir())


def mapped_bytes(pid):
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def shared_arenas(pid):
    """How many of our shared-memory objects a process has mapped."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return sum("memfd:bascule" in line for line in maps.splitlines())
