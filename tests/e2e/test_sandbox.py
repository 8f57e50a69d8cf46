"""The sandbox of cnn-ps applies to every thread, and --sandbox selects how strict the server is.

The tests cover attack A21 of docs/faults.md.
"""
import ctypes
import errno
import os
import struct
import sys
from pathlib import Path

import pytest

VECTOR = ("--model", "vector:100", "--epochs", 0)
# the numbers of Landlock's system calls, which are equal on all architectures
LANDLOCK = (444, 445, 446)
# a command prefix that makes the system calls of Landlock fail in a program
NO_LANDLOCK = (sys.executable, __file__)


def threads(server):
    """Yields /proc/PID/task/TID/status of each thread as a dict."""
    for task in Path(f"/proc/{server.popen.pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        yield dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def forbid(calls):
    """Make the system calls `calls` fail with ENOSYS, in this process and in all processes that it
    starts."""
    code = [(0x20, 0, 0, 0)]  # load the number of the call
    for n in calls:  # if the number is n, return ENOSYS
        code += [(0x15, 0, 1, n), (0x06, 0, 0, 0x00050000 | errno.ENOSYS)]
    code.append((0x06, 0, 0, 0x7FFF0000))  # otherwise allow the call
    text = b"".join(struct.pack("HBBI", *step) for step in code)
    text = ctypes.create_string_buffer(text, len(text))
    head = struct.pack("HxxxxxxP", len(code), ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.create_string_buffer(head, len(head)), 0, 0) == 0


def confined(programs, *options, **how):
    server = programs.server(*VECTOR, "--log-level", "debug", *options, **how)
    server.line("net listening")
    if any("sandbox incomplete" in line for line in server.lines):
        pytest.skip("this system has no Landlock or no seccomp")
    return server


def test_every_thread_is_confined(programs):
    server = confined(programs)
    worker = programs.ledger_worker(server.endpoint, 0, 50)
    worker.line("pushed 50", 20)
    seen = list(threads(server))
    assert len(seen) > 3
    for status in seen:
        assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", status["Name"]
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0, status["Name"]
    assert worker.wait(20) == 0
    server.signal(15)
    assert server.wait(20) == 0
    assert not [line for line in server.lines if "error" in line]


def test_off_confines_nothing(programs):
    server = programs.server(*VECTOR, "--sandbox", "off")
    server.line("net listening")
    assert all(s["Seccomp"] == "0" and s["NoNewPrivs"] == "0" for s in threads(server))


def test_without_landlock_auto_starts_and_require_ends(programs):
    server = programs.server(*VECTOR, wrap=NO_LANDLOCK)
    server.line('sandbox incomplete.*missing=" Landlock"')
    server.line("net listening")
    server = programs.server(*VECTOR, "--sandbox", "require", wrap=NO_LANDLOCK,
                             directory="other")
    assert server.wait(10) == 2
    server.line("--sandbox: require, but this system does not permit: Landlock")


if __name__ == "__main__":
    forbid(LANDLOCK)
    os.execv(sys.argv[1], sys.argv[1:])
