"""The rings of a shared-memory lane, as proto/WIRE.md, "Shared-memory lane", describes them: a client
in Python that sends and receives through them, and workers that break the rules.

The tests cover attack A23 of docs/faults.md.
"""
import contextlib
import mmap
import os
import random
import re
import socket
import struct
import time

import numpy as np
import pytest

from client import PROTO, Refused, Worker, checksum, encode, hello, pb
from conftest import LEDGER, PLAIN
from support.ledger import LedgerRun
from support.programs import until

EPROTO = 12
RING, ALIGN, LONGEST = 16384, 8, 2048
TAIL, HEAD, SLEEPS, RECEIVED, BYTES = 0, 64, 68, 128, 192
MEMORY = BYTES + RING  # bytes of one ring with its positions
TO_SERVER, TO_WORKER = 0, MEMORY


def constant(name):
    return int(re.search(rf"{name} +(0x[0-9a-f]+|\d+)", (PROTO / "lane.h").read_text())[1], 0)


def read_header(data):
    """Returns (name, body) of a header frame. The tensor of a PARAMS may be in the lane."""
    message = pb.Message.FromString(data)
    name = message.WhichOneof("body")
    return name, getattr(message, name)


def over_connection(worker):
    """Returns (name, body) of the next message over TCP."""
    assert worker.bulk.socket.poll(20000)
    return read_header(worker.bulk.socket.recv_multipart()[0])


class Lane:
    """The lane of a worker. `fds` has the descriptors that the server has sent."""

    def __init__(self, worker, rings=True):
        w = worker.welcome
        self.worker = worker
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(w.lane_path)
        magic = constant("LANE_RING_MAGIC" if rings else "LANE_MAGIC")
        self.socket.send(struct.pack("=QQQII", magic, w.lane_secret_hi, w.lane_secret_lo,
                                     w.stamp.worker, w.stamp.incarnation))
        layout, self.fds, _, _ = socket.recv_fds(self.socket, 4096, 9)
        self.layout = struct.unpack("=7Q", layout)
        if rings:
            self.memory = mmap.mmap(self.fds[2], 2 * MEMORY)
            self.tail = self.head = 0
            self.show_received(0)

    def close(self):
        self.socket.close()
        if hasattr(self, "memory"):
            self.memory.close()
        for fd in self.fds:
            os.close(fd)

    def is_open(self):
        """Returns whether the server has kept the connection open."""
        self.socket.setblocking(False)
        try:
            return self.socket.recv(1) != b""
        except BlockingIOError:
            return True

    def show_received(self, n):
        """Show the server that `n` messages have arrived over TCP after the newest WELCOME."""
        self.memory[TO_WORKER + RECEIVED:TO_WORKER + RECEIVED + 8] = struct.pack(
            "=Q", (self.worker.welcome.lane_secret_lo << 32 & 2**64 - 1) + n)

    def needs_no_weights(self):
        """Show the server that the worker has read all weights, also those of later PARAMS."""
        os.pwrite(self.fds[1], struct.pack("=5Q", 2**63, 0, 0, 0, 0), 0)

    def number(self, at, value=None):
        if value is not None:
            self.memory[at:at + 4] = struct.pack("=I", value & 2**32 - 1)
        return struct.unpack("=I", self.memory[at:at + 4])[0]

    def bell(self):
        os.write(self.fds[3], struct.pack("=Q", 1))

    def put(self, data):
        """Write the bytes of a header to the ring, without waking the server up. Returns 0 if the
        ring is full."""
        entry = struct.pack("=I", len(data)) + data
        entry += b"\0" * (-len(entry) % ALIGN)
        if self.tail + len(entry) - self.number(TO_SERVER + HEAD) > RING:
            return 0
        for i, byte in enumerate(entry):
            self.memory[TO_SERVER + BYTES + (self.tail + i) % RING] = byte
        self.tail += len(entry)
        self.number(TO_SERVER + TAIL, self.tail)
        return 1

    def send(self, body):
        [data] = encode(body)
        assert self.put(data)
        if self.number(TO_SERVER + SLEEPS):
            self.bell()

    def receive(self, seconds=20):
        """Returns the next message of the ring, or None if no message arrives in time."""
        end = time.monotonic() + seconds
        while self.number(TO_WORKER + TAIL) == self.head % 2**32:
            if time.monotonic() > end:
                return None
            self.worker.maybe_heartbeat()
            time.sleep(0.001)
        at = lambda i: self.memory[TO_WORKER + BYTES + (self.head + i) % RING]
        size = struct.unpack("=I", bytes(at(i) for i in range(4)))[0]
        data = bytes(at(4 + i) for i in range(size))
        self.head += (4 + size + ALIGN - 1) // ALIGN * ALIGN
        self.number(TO_WORKER + HEAD, self.head)
        return read_header(data)


@pytest.fixture
def server(programs):
    return programs.server(*LEDGER, "--dead-ms", 60000)


@pytest.fixture
def worker(server):
    worker = Worker(server.endpoint, name="rings")
    yield worker
    worker.close()


@pytest.fixture
def lane(worker):
    assert worker.welcome.lane_ring
    lane = Lane(worker)
    yield lane
    lane.close()


def pull(worker, request=1):
    return pb.Pull(stamp=worker.stamp, request=request, which=pb.WEIGHTS_CURRENT)


def test_shared_memory_lane_messages_in_rings(server, worker, lane):
    """The server answers a message in the ring through the ring, and counts both."""
    lane.needs_no_weights()
    for request in range(1, 300):
        lane.send(pull(worker, request))
        name, body = lane.receive()
        assert (name, body.request) == ("params", request) and body.lane_hold
    until(lambda: server.status()["lanes"]["messages"] == 598, 10, "598 messages")


def test_shared_memory_lane_a_full_ring_is_left_to_tcp(worker, lane):
    """The worker does not read its ring. When the ring is full, the answers come over TCP. From then
    on all of them come over TCP, until the worker shows that it has received them."""
    lane.needs_no_weights()
    request, over_tcp, in_ring = 0, [], []
    while len(over_tcp) < 20:
        request += 1
        assert request < 2000
        lane.send(pull(worker, request))
        while worker.bulk.socket.poll(50 if request > 300 else 0):
            over_tcp.append(over_connection(worker)[1].request)
    while worker.bulk.socket.poll(500):
        over_tcp.append(over_connection(worker)[1].request)
    while len(in_ring) + len(over_tcp) < request:
        in_ring.append(lane.receive()[1].request)
    assert in_ring + over_tcp == list(range(1, request + 1))
    lane.send(pull(worker, 5000))
    assert over_connection(worker)[1].request == 5000
    lane.show_received(len(over_tcp) + 1)
    lane.send(pull(worker, 5001))
    assert lane.receive()[1].request == 5001


def test_shared_memory_lane_order_of_ring_and_tcp(worker, lane):
    """The worker writes a message to the ring without waking the server up, and then sends one over
    TCP. The server handles the message in the ring first."""
    for seq in range(1, 200):
        while not lane.number(TO_SERVER + SLEEPS):
            time.sleep(0.0005)
        assert lane.put(encode(pull(worker, seq))[0])
        worker.bulk.send(pb.Pull(stamp=worker.stamp, request=seq + 1000,
                                 which=pb.WEIGHTS_CURRENT))
        requests, end = [], time.monotonic() + 20
        while len(requests) < 2 and time.monotonic() < end:
            if lane.number(TO_WORKER + TAIL) != lane.head % 2**32:
                requests.append(lane.receive()[1].request)
            elif worker.bulk.socket.poll(1):
                requests.append(over_connection(worker)[1].request)
        assert requests == [seq, seq + 1000]


def test_shared_memory_lane_a_worker_without_rings(worker):
    """The greeting of a worker that does not support rings."""
    lane = Lane(worker, rings=False)
    assert len(lane.fds) == 2 and lane.layout[0] == constant("LANE_MAGIC")
    worker.bulk.send(pull(worker))
    name, body = over_connection(worker)
    assert name == "params" and body.lane_hold
    lane.close()


def test_shared_memory_lane_only_headers_of_the_session(worker, lane):
    """A HELLO, bytes that are no message, and a message with a wrong stamp."""
    lane.send(hello(resume=worker.stamp))
    name, body = lane.receive()
    assert (name, body.code) == ("error", EPROTO) and "HELLO" in body.text
    assert lane.put(b"\0" * 24)  # the bytes of the greeting of a side connection
    lane.bell()
    name, body = lane.receive()
    assert (name, body.code) == ("error", EPROTO)
    stamp = pb.Stamp()
    stamp.CopyFrom(worker.stamp)
    stamp.incarnation += 1
    lane.send(pb.Pull(stamp=stamp, request=1, which=pb.WEIGHTS_CURRENT))
    assert lane.receive()[0] == "error"
    lane.send(pull(worker))
    assert lane.receive()[0] == "params"


def test_shared_memory_lane_a_flood_ends_the_lane(server, worker, lane):
    """Refused messages in the ring count like refused messages over TCP."""
    sent = 0
    while lane.is_open():
        sent += lane.put(b"\xff")
        lane.bell()
        assert sent < 5000
        lane.number(TO_WORKER + HEAD, lane.number(TO_WORKER + TAIL))
    assert sent >= 256
    server.line("lane closed.*too many refused messages")
    worker.bulk.send(pull(worker))
    worker.reconnect()
    assert worker.pull()[1] == 0


@pytest.mark.parametrize("seed", range(3))
def test_shared_memory_lane_garbage_in_the_rings_harms_nobody(programs, seed):
    """A worker writes random bytes to all parts of its rings, again and again, and opens a new lane
    whenever the server has closed the old one. Honest workers train meanwhile."""
    run = LedgerRun(programs, 2, 20000, "--lane", "shm", "--dead-ms", 60000)
    dice = random.Random(seed)
    worker, lanes = Worker(run.server.endpoint, name="hostile"), 0
    while any(w.running() for w in run.fleet):
        lane = Lane(worker)
        lanes += 1
        write_garbage(lane, dice)
        lane.close()
        worker.close()
        # another worker: the server may have excluded this one
        worker = Worker(run.server.endpoint, name=f"hostile{lanes % 5}")
        time.sleep(0.05)
    assert lanes > 3
    worker.close()
    run.verdict()


def write_garbage(lane, dice):
    for _ in range(dice.randrange(1, 400)):
        at = dice.choice((TAIL, HEAD, SLEEPS, RECEIVED, BYTES + dice.randrange(RING - 8)))
        at += dice.choice((TO_SERVER, TO_WORKER))
        width = dice.choice((1, 4, 8))
        now = int.from_bytes(lane.memory[at:at + width], "little")
        value = dice.choice((dice.randrange(2**64), now + 8, now + dice.randrange(4096), 16))
        lane.memory[at:at + width] = (value % 2**(8 * width)).to_bytes(width, "little")
        lane.bell()


def push_unwritten_slot(worker, slot, zeros):
    """Push the values of a slot of the lane to which nobody has written, and which are therefore
    zeros."""
    worker.seq += 1
    push = pb.Push(stamp=worker.stamp, seq=worker.seq, lane_slot=slot + 1, lane_count=len(zeros))
    push.slices.add(count=len(zeros), encoding=pb.ENCODING_F32, xxh3=checksum(zeros))
    worker.bulk.send(push)
    return worker.wait("ack")[0]


def test_shared_memory_lane_memory_is_limited_for_each_worker(programs):
    """Two workers push from slots of their lanes to which they have not written. The server fills
    these slots with pages, which --memory-mb does not count: the server keeps all connections. The
    slots of a lane have at most 512 MiB."""
    limit, zeros = 128, np.zeros(1 << 20, np.float32)
    server = programs.server("--model", f"vector:{len(zeros)}", *PLAIN, "--memory-mb", limit,
                             "--max-workers", 2, "--dead-ms", 60000)
    taken = 0
    with contextlib.ExitStack() as stack:
        for name in ("one", "two"):
            worker = stack.enter_context(contextlib.closing(Worker(server.endpoint, name=name)))
            lane = stack.enter_context(contextlib.closing(Lane(worker, rings=False)))
            memory = os.fstat(lane.fds[1])
            slots = memory.st_size // zeros.nbytes
            assert 500 << 20 < memory.st_size <= (512 << 20) + 4096
            before = memory.st_blocks
            for slot in range(24):
                ack = push_unwritten_slot(worker, slot, zeros)
                assert ack.verdict == pb.VERDICT_OK
            taken += 512 * (os.fstat(lane.fds[1]).st_blocks - before)
            with pytest.raises(Refused) as refused:
                push_unwritten_slot(worker, slots, zeros)
            assert refused.value.code == EPROTO
        assert 2 * 24 * zeros.nbytes <= taken and 1.4 * (limit << 20) < taken
        assert server.status()["rss_bytes"] < limit << 20
        assert not any("memory_short" in line for line in server.lines)
