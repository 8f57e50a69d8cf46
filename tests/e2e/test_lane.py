"""Shared-memory lanes (docs/lane.md) give the same results as TCP, and leave nothing behind after
the death of a process."""
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from support.build import FULL
from support.ledger import LedgerRun
from support.programs import SIGTERM, until

NET = ("--model", "seed:16", "--epochs", 1, "--warm-start-updates", 0)
SHM = ("--lane", "shm")


def maps(process):
    """Returns the lines of /proc/PID/maps that describe the shared memory of a lane."""
    lines = Path(f"/proc/{process.popen.pid}/maps").read_text().splitlines()
    return [line for line in lines if "memfd:cnn-ps pushes" in line]


def test_the_weights_are_those_of_tcp(programs):
    """One worker trains a network over TCP, and one over shared memory. The weights are equal bit
    for bit."""
    files = []
    for lane in ("tcp", "shm"):
        server = programs.server(*NET, "--lane", lane, directory=lane)
        worker = programs.worker(server.endpoint, "--lane", lane)
        server.result()
        assert worker.wait(10) == 0, worker.tail()
        opened = [line for line in server.lines + worker.lines if "lane open" in line]
        assert len(opened) == (2 if lane == "shm" else 0), opened
        files.append(programs.export(server.directory, f"{lane}.safetensors").read_bytes())
    assert files[0] == files[1]
    assert not (programs.directory / "shm" / "lane").exists(), "the server removes its socket"


@pytest.mark.parametrize("size, level", [(0, "replay"), (200000, "replay"), (0, "always")])
def test_kills_of_both_sides(programs, size, level):
    """Each push in shared memory counts exactly once, although the test kills workers and the
    server at random times. The server closes the lane of a worker that dies, and a new server
    replaces the socket of the old one."""
    rounds, pushes = (250, 30000) if FULL else (4, 300)
    dice = random.Random(size)
    run = LedgerRun(programs, 3, pushes, *SHM, "--sandbox", "require", "--durability", level,
                    pace=(4,), size=size)
    until(lambda: len(maps(run.server)) == 3, 20, "three lanes")
    for _ in range(rounds):
        time.sleep(dice.uniform(0, 0.06))
        run.kill_worker(dice.randrange(3))
        time.sleep(dice.uniform(0, 0.06))
        run.kill_server()
        run.server.line("net listening")
    until(lambda: len(maps(run.server)) == 3, 20, "three lanes")
    run.fleet[0].kill()
    until(lambda: len(maps(run.server)) == 2, 10, "its lane is closed")
    run.start_worker(0)
    run.verdict(600 if FULL else 60)


def test_a_lane_has_a_slot_for_each_push_of_the_replay_window(programs):
    """A gradient has 1.74 MB. The worker retains up to 256 pushes until they are durable. If the
    lane had fewer slots, the worker would send some of these pushes over TCP."""
    run = LedgerRun(programs, 1, 50, *SHM, size=435000)
    until(lambda: any("lane open" in line for line in run.server.lines), 20, "a lane")
    [line] = [line for line in run.server.lines if "lane open" in line]
    assert "slots=256" in line
    run.verdict(60)


def test_workers_use_a_lane_without_any_option(programs):
    run = LedgerRun(programs, 1, 2000, pace=(2,))
    until(lambda: (run.server.status()["lanes"] or {}).get("pushes"), 20, "pushes in a lane")
    lanes = run.server.status()["lanes"]
    assert lanes["open"] == 1 and lanes["params"] > 0 and lanes["torn"] == lanes["refused"] == 0
    run.verdict(60)


def test_a_worker_in_another_directory_uses_a_lane(programs):
    """The server gets a relative path of its socket, and the worker starts in another directory."""
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        run = LedgerRun(programs, 0, 100, *SHM, "--lane-socket", os.path.relpath(f"{home}/lane"), size=100)
        elsewhere = ["env", f"--chdir={Path(__file__).parent}"]
        run.fleet = [programs.ledger_worker(run.server.endpoint, 0, 100, wrap=elsewhere)]
        run.server.line("lane open")
        run.verdict(60)


def test_lanes_work_after_a_start_inside_the_process(programs):
    """With --input auto the server starts again inside its process when the first worker joins. The
    socket of lanes, which the sandboxed server could not make again, stays open."""
    home = programs.directory / "home"
    home.mkdir()
    server = programs.server("--model", "fc:10", "--epochs", 1, "--input", "auto", *SHM,
                             "--lane-socket", home / "lane", "--sandbox", "require")
    worker = programs.worker(server.endpoint, *SHM)
    server.line("server images.* input=1x28x28")
    worker.line("lane open")
    until(lambda: (server.status()["lanes"] or {}).get("pushes"), 20, "pushes in a lane")
    assert server.result()["status"] == "done"
    assert worker.wait(10) == 0, worker.tail()


def test_a_worker_that_cannot_reach_the_socket_uses_tcp(programs):
    """The socket of the server is missing, as for a worker in another container. The log of the
    worker says why it has no lane, and the server counts no lane."""
    run = LedgerRun(programs, 0, 100, size=100)
    run.server.line("net listening")
    (programs.directory / "ckpt" / "lane").unlink()
    run.fleet = [programs.ledger_worker(run.server.endpoint, 0, 100)]
    run.fleet[0].line(r"lane tcp.*reason=.*No such file")
    assert run.fleet[0].wait(60) == 0, run.fleet[0].tail()
    assert run.server.status()["lanes"]["pushes"] == 0


def test_a_stopped_worker_delays_nobody(programs):
    run = LedgerRun(programs, 2, 300, *SHM, pace=(2,))
    until(lambda: len(maps(run.server)) == 2, 10, "two lanes")
    run.fleet[0].signal(signal.SIGSTOP)
    assert run.fleet[1].wait(60) == 0, run.fleet[1].tail()
    run.fleet[0].signal(signal.SIGCONT)
    run.verdict(60)


def test_without_shared_memory_workers_use_tcp(programs):
    """The path of the directory is too long for a socket, and the log of the server says so. A
    worker with --lane shm exits and prints one line."""
    deep = "x" * 100
    run = LedgerRun(programs, 1, 50, "--lane", "auto", directory=deep)
    assert "--lane-socket" in run.server.line(r"lane off. reason=(.*)")[1]
    stubborn = programs.worker(run.server.endpoint, "--lane", "shm")
    assert stubborn.wait(20) == 2
    assert sum("shared memory" in line for line in stubborn.lines) == 1, stubborn.tail()
    run.fleet[0].line(r"lane tcp.*reason=.the server offers none")
    run.verdict(60)


def test_a_server_that_needs_shared_memory_exits_without_it(programs):
    server = programs.server("--model", "vector:10", *SHM, "--lane-socket", "/nowhere/lane")
    assert server.wait(20) == 2, server.tail()
    assert any("--lane shm" in line and "/nowhere/lane" in line for line in server.lines)


def test_containers_share_the_directory_of_the_socket(programs):
    """A worker in other PID, mount and IPC namespaces gets a lane if it can open the file of the
    socket."""
    unshare = shutil.which("unshare")
    words = [unshare, "--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child"]
    if not unshare or subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system permits no namespaces")
    run = LedgerRun(programs, 0, 100, *SHM, size=100)
    run.fleet = [programs.ledger_worker(run.server.endpoint, 0, 100, wrap=words)]
    run.server.line("lane open")
    assert run.fleet[0].wait(60) == 0, run.fleet[0].tail()
    run.server.signal(SIGTERM)
    assert run.server.wait(20) == 0
