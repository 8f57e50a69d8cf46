"""cnn-ps --threads: the threads exist, are confined and end with the server, and the weights do not
depend on their number, also after kill -9."""
import hashlib
import os
import signal
from pathlib import Path

import pytest

from support import idx
from support.programs import until

# 397,510 parameters, so that each vector has 49 blocks, which several threads divide among
# themselves
MODEL = ("--model", "fc:500 relu fc:10", "--epochs", 1, "--batch-size", 50, "--seed", 7)


@pytest.fixture(scope="module")
def images(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("threads")
    idx.cut(data, directory, 2000, 100)
    return directory


def apply_threads(server):
    """The status of each apply thread as a dict."""
    found = []
    for task in Path(f"/proc/{server.popen.pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if status["Name"] == "cnn-ps apply":
            found.append(status)
    return found


def test_threads_block_signals_and_are_confined(programs):
    server = programs.server("--model", "vector:300000", "--epochs", 0, "--threads", 4)
    server.line('msg="server threads" n=4')
    server.line("net listening")
    found = apply_threads(server)
    assert len(found) == 3
    for status in found:
        blocked = int(status["SigBlk"], 16)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            assert blocked >> number - 1 & 1
    if not any("sandbox incomplete" in line for line in server.lines):
        assert all(s["Seccomp"] == "2" and s["NoNewPrivs"] == "1" for s in found)
    server.signal(signal.SIGTERM)
    assert server.wait(20) == 0


def test_one_thread_is_the_main_thread(programs):
    server = programs.server("--model", "vector:300000", "--epochs", 0, "--threads", 1)
    server.line("net listening")
    assert not apply_threads(server)


@pytest.mark.parametrize("options", [(), ("--threads", 0)], ids=["default", "0"])
def test_threads_follow_from_the_cpus(programs, options):
    server = programs.server("--model", "vector:100", "--epochs", 0, *options)
    n = int(server.line('msg="server threads" n=(\\d+)')[1])
    cpus = len(os.sched_getaffinity(0))
    assert n == max(min(cpus, 4), min(cpus // 2, 8))


def weights_after(programs, images, threads, name, *options, kill=False):
    """Trains with one worker and a server of `threads` threads. Returns the hash of the best
    weights. `kill`: kill the server once."""
    options = (*MODEL, *options, "--keep", "best", "--threads", threads)
    server = programs.server(*options, directory=name)
    worker = programs.worker(server.endpoint, data=images)
    if kill:
        until(lambda: server.status()["images"] >= 300, 60, "300 images trained")
        server.kill()
        server.wait(10)
        server = programs.restart(server, *options)
    server.result(100)
    assert worker.wait(20) == 0
    file = (server.directory / "best.safetensors").read_bytes()
    return hashlib.sha256(file[8 + int.from_bytes(file[:8], "little"):]).hexdigest()


@pytest.mark.parametrize("options", [
    ("--optimizer", "adam", "--clip-norm", 1),
    ("--mode", "sync"),
    ("--mode", "sandblaster", "--optimizer", "lbfgs")], ids=["adam", "sync", "lbfgs"])
def test_the_weights_do_not_depend_on_the_threads(programs, images, options):
    one = weights_after(programs, images, 1, "one", *options)
    assert one == weights_after(programs, images, 3, "three", *options)


def test_a_killed_server_continues_with_other_threads(programs, images):
    one = weights_after(programs, images, 1, "one", "--durability", "always")
    assert one == weights_after(programs, images, 3, "three", "--durability", "always", kill=True)
