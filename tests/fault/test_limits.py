"""Faults P12 and P13, and attacks A5 and A6 of docs/faults.md: a server runs out of file
descriptors or memory."""
import os
import random
import re
import socket
import threading
import time

import cgroup
from support.build import BUILD
from support.programs import until


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Flood:
    """Keeps many connections open that send nothing. When the server closes a connection, Flood
    opens a new one.

    While the queue of the server's listening socket is full, the kernel answers the client's SYN,
    so that connect() succeeds, and then drops the connection. Such a connection seems open to the
    client, but the server does not have it. Therefore Flood also replaces each connection that has
    not received libzmq's greeting after GREETED seconds.
    """

    GREETED = 0.5

    def __init__(self, endpoint, connections):
        host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
        self.address = (host, int(port))
        self.open = [None] * connections
        # for each connection: the time by which it must have received the server's greeting
        self.until = [0] * connections
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def alive(self, i):
        try:
            greeting = self.open[i].recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return time.monotonic() < self.until[i]
        except OSError:
            return False
        self.until[i] = float("inf")
        return greeting != b""

    def dial(self, i):
        self.open[i] = s = socket.socket()
        self.until[i] = time.monotonic() + self.GREETED
        s.setblocking(False)
        s.connect_ex(self.address)

    def run(self):
        while not self.over.wait(0.05):
            for i, s in enumerate(self.open):
                if s and not self.alive(i):
                    s.close()
                    s = None
                if not s:
                    self.dial(i)

    def stop(self):
        self.over.set()
        self.thread.join()
        for s in self.open:
            if s:
                s.close()


# ---- P12: descriptors ----------------------------------------------------------------------------


def test_out_of_descriptors(ledger, programs, figure, full):
    """More clients connect than the server has file descriptors: workers and checkpoints continue,
    and the server's event loop does not spin. When the test has closed the clients' connections, a
    new worker joins."""
    seconds = 20 if full else 3
    # The accept gate attaches a filter to the listening socket. On some systems only an
    # administrator may do this, and a server in the sandbox has given up this right
    # (docs/operations.md, "Sandbox").
    run = ledger(3, 150 * seconds, "--sandbox", "off", pace=(10,),
                 wrap=("prlimit", "--nofile=100"))
    run.kill_worker(2)  # frees a slot for the new worker at the end of the test
    run.fleet[2].kill()
    run.reached(0)
    flood = Flood(run.server.endpoint, 200)
    run.server.line("descriptors_short", seconds=60)
    before, cpu, begun = run.server.status(), cpu_seconds(run.server.popen.pid), time.monotonic()
    until(lambda: time.monotonic() >= begun + seconds, seconds + 5, "the flood's end")
    share = (cpu_seconds(run.server.popen.pid) - cpu) / (time.monotonic() - begun)
    saved = run.server.status()["checkpoint"]["saved"] - before["checkpoint"]["saved"]
    failed = run.server.status()["checkpoint"]["failed"]
    flood.stop()
    run.start_worker(2)
    run.fleet[2].line("pushed", seconds=30)
    lost, twice = run.count(300)
    reconnects = sum(int(re.search(r"reconnects=(\d+)", w.out[-1])[1]) for w in run.fleet[:2])
    figure("P12", reconnects, "connections of workers lost", reconnects == 0, what="established")
    figure("P12", failed, f"checkpoints failed while {saved} were saved", failed == 0 and saved > 0,
           what="checkpoints")
    figure("P12", 100 * share, "% of a CPU used by the server", share <= 0.3, what="cpu")
    figure("P12", lost + twice, "pushes lost or applied twice", lost + twice == 0, what="ledger")


# ---- P13: memory ---------------------------------------------------------------------------------


class Endless:
    """A peer that sends a multipart message without end. The class implements ZMTP itself, because
    libzmq sends no part of an incomplete message."""

    GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    READY = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"

    def __init__(self, endpoint, part):
        host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
        self.address = (host, int(port))
        # The first byte of a frame has the flags: 3 says that another part follows, and that the
        # length has 8 bytes.
        self.frames = (b"\x03" + part.to_bytes(8, "big") + bytes(part)) * 64
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def once(self):
        with socket.create_connection(self.address, 5) as peer:
            peer.sendall(self.GREETING)
            peer.recv(64, socket.MSG_WAITALL)  # the server's greeting
            peer.sendall(b"\x04" + bytes([len(self.READY)]) + self.READY)
            peer.recv(2, socket.MSG_WAITALL)  # the beginning of the server's READY
            while not self.over.is_set():
                peer.sendall(self.frames)

    def run(self):
        while not self.over.is_set():
            try:
                self.once()
            except OSError:
                self.over.wait(0.1)

    def stop(self):
        self.over.set()
        self.thread.join()


def test_message_that_never_ends(ledger, figure, full):
    """libzmq stores the parts of an incomplete message. Above --memory-mb the server closes the
    connection, which frees the parts, and continues."""
    limit = 200
    run = ledger(3, 10000 if full else 2000, "--memory-mb", limit, pace=(10,))
    run.reached(0)
    peak, gaps, closed = 0, [], 0
    peer = Endless(run.server.endpoint, 4096)
    try:
        for _ in range(10 if full else 2):
            place = len(run.server.lines)
            run.server.line("server memory_short", after=place, seconds=60)
            version, begun = run.server.status()["version"], time.monotonic()
            until(lambda: run.server.status()["version"] > version + 3, 20, "updates go on")
            gaps.append(time.monotonic() - begun)
            closed += 1
            status = open(f"/proc/{run.server.popen.pid}/status").read()
            peak = max(peak, int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024)
    finally:
        peer.stop()
    figure("P13", peak, f"MiB at most while a message never ends, with --memory-mb {limit}",
           peak <= 1.25 * limit, what="peak")
    figure("P13", max(gaps) * 1e3, f"ms at most without updates after one of {closed} disconnects",
           max(gaps) <= 3, what="gap")
    lost, twice = run.count(300)
    figure("P13", lost + twice, "pushes lost or applied twice", lost + twice == 0, what="ledger")


def allocations(programs, ledger, fail):
    """Make a short run in which allocation number `fail` of the server fails. Returns (exit status,
    the run). The status is None if the server still runs when the workers have exited."""
    run = ledger(0, 20, size=20, directory=f"ckpt{fail}", env={
        "LD_PRELOAD": str(BUILD / "tests/fault/memory.so"), "MEMORY_FAIL": str(fail),
        "MEMORY_COUNT": str(programs.directory / "count"), "UV_THREADPOOL_SIZE": "1"})
    until(lambda: not run.server.running() or any("net listening" in line
          for line in run.server.lines), 20, "it listens, or has ended")
    if not run.server.running():
        return run.server.wait(), run
    run.fleet = [programs.ledger_worker(run.server.endpoint, 0, 20, 1)]
    until(lambda: not run.server.running() or not run.fleet[0].running(), 60, "an end")
    return None if run.server.running() else run.server.wait(), run


def test_every_allocation_that_fails(programs, ledger, figure, seed, full):
    """In each run, a different allocation of the server fails. The server goes on without the
    memory, or logs a line and exits with a status. After the next start of the server, each push
    has been applied exactly once."""
    code, run = allocations(programs, ledger, 0)
    assert code is None
    run.verdict()
    count = int((programs.directory / "count").read_text())
    assert count > 50, "the shim counts"
    places = range(1, count + 10) if full else random.Random(seed).sample(range(1, count), 8)
    crashed, aborted, mute, ended = [], [], [], 0
    for n in places:
        code, run = allocations(programs, ledger, n)
        if code == -6 and not run.fleet:
            aborted.append(n)
        elif code is not None:
            ended += 1
            if code <= 0:
                crashed.append((n, code))
            if not run.server.lines:
                mute.append(n)
        if run.fleet and code is not None:
            run.restart_server()
        elif code is not None:
            run.server = programs.server(*run.options, directory=f"ckpt{n}")
            run.fleet = [programs.ledger_worker(run.server.endpoint, 0, 20, 1)]
        run.verdict()
    figure("P13", len(crashed),
           f"crashes in {len(places)} failed allocations; {ended} starts or runs "
           f"ended with an exit status {crashed[:3] or ''}", not crashed, what="crashes")
    figure("P13", len(mute), "exits without a line", not mute, what="mute")
    figure("P13", len(aborted), "starts that libuv aborts", len(aborted) <= 3,
           what="aborted")


def test_killed_for_its_memory(ledger, figure):
    """The kernel kills a server that exceeds the memory limit of its cgroup. The test starts
    another server, which continues the run."""
    try:
        group = cgroup.Group(memory=64 << 20)
    except cgroup.NoGroup as no:
        figure.cannot("P13", f"no cgroup with a limit of memory: {no}")
    run = ledger(3, 1500, "--memory-mb", 4096, pace=(5,))
    group.join(run.server)
    run.reached(0)
    peer = Endless(run.server.endpoint, 4096)
    try:
        code = run.server.wait(30)
    finally:
        peer.stop()
        group.close()
    run.restart_server()
    figure("P13", code, "is the status of a process that the kernel kills", code == -9,
           what="killed")
    lost, twice = run.count(300)
    figure("P13", lost + twice, "pushes lost or applied twice after that", lost + twice == 0,
           what="ledger")
