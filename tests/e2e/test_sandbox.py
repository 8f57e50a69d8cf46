"""The sandbox of cnn-ps applies to every thread of the server, and --sandbox selects whether the
server uses the sandbox, and whether it starts if the system lacks a part of it.

The tests cover attack A21 of docs/faults.md.
"""
import ctypes
import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

# this file is also a program (NO_LANDLOCK), which does not have the path of the tests
sys.path.append(str(Path(__file__).resolve().parents[1]))
from support.build import BUILD, FLAVOUR, without  # noqa: E402

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
        without("Landlock or seccomp", "a newer kernel")
    return server


@pytest.mark.skipif(FLAVOUR != "release", reason="the flags of the release flavour")
def test_the_release_is_hardened():
    flags = (BUILD / "flags").read_text().split()
    assert {"-D_FORTIFY_SOURCE=3", "-ftrivial-auto-var-init=zero", "-fstack-protector-strong"} <= {*flags}

    def show(*words):
        return subprocess.run([*words, BUILD / "cnn-ps"], check=True, capture_output=True, text=True).stdout
    symbols, elf = show("nm", "-D"), show("readelf", "--wide", "-h", "-l", "-d")
    assert "__memcpy_chk" in symbols and "__stack_chk_fail" in symbols, "fortified calls"
    assert "DYN" in elf and "BIND_NOW" in elf and "GNU_RELRO" in elf
    stack = next(line for line in elf.splitlines() if "GNU_STACK" in line)
    assert "RWE" not in stack, "no executable stack"


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


def test_a_lane_needs_no_right_in_the_directory_of_its_socket(programs):
    """The socket is made before the sandbox. The sandboxed server cannot remove the file of the
    socket when it ends, so the next start replaces the file."""
    home = programs.directory / "home"
    home.mkdir()
    for directory in ("first", "second", "third"):
        server = confined(programs, "--lane", "shm", "--lane-socket", home / "lane", "--sandbox",
                          "require", directory=directory)
        worker = programs.ledger_worker(server.endpoint, 0, 50)
        worker.line("lane open")
        worker.line("pushed 50", 20)
        for status in threads(server):
            assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", status["Name"]
            assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0, status["Name"]
        assert server.status()["lanes"]["pushes"] > 0
        assert worker.wait(20) == 0
        server.signal(15)
        assert server.wait(20) == 0
        assert [path.name for path in home.iterdir()] == ["lane"]


def test_a_refused_start_removes_its_socket(programs):
    """A second server is refused, because its checkpoint directory is in use by the first server.
    The second server must not remove the socket of the first server."""
    server = confined(programs)
    lane = programs.directory / "ckpt" / "lane"
    assert lane.exists()
    second = programs.server(*VECTOR, "--sandbox", "require")
    assert second.wait(20) != 0
    worker = programs.ledger_worker(server.endpoint, 0, 50)
    worker.line("lane open")
    assert worker.wait(20) == 0
    refused = programs.server(*VECTOR, directory="new", endpoint=server.endpoint)
    assert refused.wait(20) != 0
    assert not (programs.directory / "new").exists()


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
    assert not (programs.directory / "other").exists()


if __name__ == "__main__":
    forbid(LANDLOCK)
    os.execv(sys.argv[1], sys.argv[1:])
