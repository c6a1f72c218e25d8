"""Which transport a publish takes where a container or a security module forbids the better one, and who is told."""

import ctypes
import errno
import os
import platform
import struct
import unittest

from bascule_program import EndToEndTest, checkpoint

MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}.get(platform.machine())
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD_SYSCALL, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL_WITH = 0x7FFF0000, 0x00050000


def forbid_memfd(error):
    """For the new process: memfd_create fails with `error`, as under a container's seccomp profile."""

    def forbid():
        instructions = [(LOAD_SYSCALL, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, MEMFD_CREATE),
                        (RETURN, 0, 0, FAIL_WITH | error), (RETURN, 0, 0, ALLOW)]  # fmt: skip
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in instructions))
        program = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(code))
        libc = ctypes.CDLL(None, use_errno=True)
        for call in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0)):
            if libc.prctl(*call) != 0:
                os._exit(126)

    return forbid


@unittest.skipIf(MEMFD_CREATE is None, "needs the number of memfd_create on this processor")
class ForbiddenSharedMemoryTest(EndToEndTest):
    def publish_without_memfd(self, engine, error, *arguments):
        return self.start(
            "publish", checkpoint(version=2), "--to", engine.address, *arguments, before=forbid_memfd(error)
        ).finish()

    def test_the_next_best_is_taken_and_the_log_says_why(self):
        """C-094."""
        for error in (errno.EPERM, errno.ENOSYS):
            engine = self.start_engine(checkpoint())

            ended = self.publish_without_memfd(engine, error)

            self.assertEqual(ended.code, 0, ended)
            self.assertEqual(ended.object["transport"], "grpc")
            for word in ("transport_passed_over", "transport=shm", "memfd_create", os.strerror(error)):
                self.assertIn(word, ended.stderr)

    def test_a_transport_that_was_asked_for_is_not_replaced(self):
        """C-094."""
        engine = self.start_engine(checkpoint())

        ended = self.publish_without_memfd(engine, errno.EPERM, "--transport", "shm")

        self.assert_fails(ended, 1, "transport_unavailable")
        self.assertIn("memfd_create", ended.stderr)
        self.assertEqual(engine.status()["live"]["version"], 0)

    def test_where_nothing_is_forbidden_shared_memory_is_taken_in_silence(self):
        engine = self.start_engine(checkpoint())

        ended = self.publish(checkpoint(version=2), engine)

        self.assertEqual(ended.object["transport"], "shm")
        self.assertEqual(ended.stderr, "")


if __name__ == "__main__":
    unittest.main()
