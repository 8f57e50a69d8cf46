"""Tests of WIRE.md, "Side connections": a worker sends and receives the parts of large tensors on
several connections. Covers attacks A5 and A10 of docs/faults.md."""
import struct

import numpy as np
import pytest

from client import Keys, Link, Worker, checksum, encode, pb
from conftest import LEDGER, PLAIN, Honest
from support.build import PATIENCE

EAUTH, EPROTO, ESTATE = 11, 12, 16
CONNECTIONS = 3
WHOLE_PUSH = 255  # the part number of the receipt for a PUSH
LARGE = 200003  # number of parameters of a model whose PARAMS the server sends in parts


def greeting(welcome, number, flip=0):
    return struct.pack("<BQQB", 0, welcome.side_secret_hi, welcome.side_secret_lo ^ flip, number)


def mark(number, part):
    return struct.pack("<BQB", 0, number, part)


class Side(Link):
    """A side connection, which presents the secret of a WELCOME to the server."""

    def __init__(self, worker, number, keys=None, flip=0, welcome=None):
        super().__init__(worker.endpoint, keys or worker.keys)
        self.send_frames([greeting(welcome or worker.welcome, number, flip)])

    def raw(self, seconds=PATIENCE):
        """Returns the frames of the next message, or None if the server has closed it."""
        return self.socket.recv_multipart() if self.socket.poll(int(seconds * 1000)) else None

    def opened(self, number):
        assert self.raw() == [mark(0, number)]
        return self

    def refused(self, code):
        name, body, _ = self.receive()
        assert (name, body.code) == ("error", code), body


def opened(worker, connections=CONNECTIONS):
    return [Side(worker, i).opened(i) for i in range(1, connections)]


def parts_of(worker, seq, gradient, n):
    """Returns the messages of a push in `n` slices: the list of its parts, and the PUSH."""
    cuts = np.array_split(gradient.astype(np.float32), n)
    offsets = np.cumsum([0] + [len(cut) for cut in cuts])
    push = pb.Push(stamp=worker.stamp, seq=seq, chunks=n)
    header, *frames = encode(push, list(zip(offsets.tolist(), cuts)))
    return [[mark(seq, i), frame] for i, frame in enumerate(frames)], [header]


def push_in_parts(worker, sides, n=CONNECTIONS):
    """Pushes the next gradient of the ledger in parts, one part on each connection in turn."""
    size = worker.welcome.n_params
    unit = np.zeros(size, np.float32)
    unit[worker.seq % size] = 1
    worker.seq += 1
    parts, push = parts_of(worker, worker.seq, unit, n)
    links = [worker.bulk, *sides]
    for i, part in reversed(list(enumerate(parts))):
        links[i % len(links)].send_frames(part)
    for i in reversed(range(n)):
        if i % len(links):
            assert links[i % len(links)].raw() == [mark(worker.seq, i)]
    worker.bulk.send_frames(push)
    assert worker.bulk.socket.poll(PATIENCE * 1000)
    assert worker.bulk.socket.recv_multipart() == [mark(worker.seq, WHOLE_PUSH)]
    ack = worker.ack(worker.seq)
    assert (ack.verdict, ack.duplicate) == (pb.VERDICT_OK, False)


@pytest.fixture
def server(programs):
    return programs.server(*LEDGER, "--dead-ms", 60000, "--connections", CONNECTIONS,
                           directory=None)


def test_sides_a_server_offers_none_by_default(programs):
    worker = Worker(programs.server(*LEDGER, directory=None).endpoint)
    assert (worker.welcome.connections, worker.welcome.side_secret_hi) == (0, 0)
    Side(worker, 1).refused(EPROTO)
    worker.close()


def test_sides_carry_parts_of_a_push(honest):
    sides = opened(honest)
    for n in (CONNECTIONS, 1, 7, CONNECTIONS):
        push_in_parts(honest, sides, n)
    # goes_on() of the fixture checks that the weights contain each push exactly once


def test_sides_need_the_secret(honest):
    Side(honest, 1, flip=1).refused(EAUTH)
    Side(honest, 0).refused(EAUTH)
    Side(honest, CONNECTIONS).refused(EAUTH)
    Side(honest, 1, welcome=pb.Welcome()).refused(EAUTH)
    push_in_parts(honest, opened(honest))


def test_sides_a_secret_opens_each_number_once(honest):
    sides = opened(honest)
    Side(honest, 1).refused(EAUTH)
    push_in_parts(honest, sides)


def test_sides_an_old_secret_opens_nothing(honest):
    old = honest.welcome
    sides = opened(honest, 2)
    honest.reconnect()
    assert old.side_secret_lo != honest.welcome.side_secret_lo
    Side(honest, 1, welcome=old).refused(EAUTH)
    Side(honest, 2, welcome=old).refused(EAUTH)
    # the server sends nothing on the side connection of the old WELCOME, which it has closed
    assert sides[0].socket.poll(0) == 0
    push_in_parts(honest, opened(honest))


def test_sides_of_a_session_that_has_ended(server, honest):
    worker = Worker(server.endpoint, name="leaves")
    welcome = worker.welcome
    Side(worker, 1).opened(1)
    worker.bye()
    server.line("side_connections_closed.*reason=\"the session has ended\"")
    Side(worker, 2, welcome=welcome).refused(EAUTH)


@pytest.mark.parametrize("message", ("hello", "pull", "chunk", "greeting", "nothing"))
def test_sides_carry_nothing_but_parts(server, honest, message):
    worker = Worker(server.endpoint, name="other")
    side = opened(worker, 2)[0]
    side.send_frames({
        "hello": encode(pb.Hello(protocol=7, role=pb.ROLE_WORKER, device="python")),
        "pull": encode(pb.Pull(stamp=worker.stamp, request=1, which=pb.WEIGHTS_CURRENT)),
        "chunk": [b"\0", bytes(4)],
        "greeting": [greeting(worker.welcome, 2)],
        "nothing": [b""]}[message])
    server.line("side_connections_closed.*reason=\"one of them is closed\"")
    parts, _ = parts_of(worker, 1, np.zeros(worker.welcome.n_params), 1)
    worker.bulk.send_frames(parts[0])
    name, body, _ = worker.bulk.receive()
    assert (name, body.code) == ("error", ESTATE)
    worker.close()


def test_sides_of_another_worker_do_not_count(server, honest):
    """The server assigns a part to the session of its connection, no matter which seq the mark of
    the part has."""
    other = Worker(server.endpoint, name="other")
    opened(honest)
    thief = opened(other, 2)[0]
    unit = np.ones(honest.welcome.n_params, np.float32)
    parts, push = parts_of(honest, honest.seq + 1, unit, 1)
    thief.send_frames(parts[0])
    assert thief.raw() == [parts[0][0]]
    honest.bulk.send_frames(push)
    assert honest.pull()[1] == honest.seq  # the server has not applied the push
    other.close()


def test_sides_a_lost_part_loses_the_push(honest):
    side = opened(honest, 2)[0]
    unit = np.ones(honest.welcome.n_params, np.float32)
    parts, push = parts_of(honest, honest.seq + 1, unit, 2)
    side.send_frames(parts[1])
    assert side.raw() == [parts[1][0]]
    honest.bulk.send_frames(push)
    assert honest.pull()[1] == honest.seq


def test_sides_hello_discards_parts(honest):
    side = opened(honest, 2)[0]
    unit = np.ones(honest.welcome.n_params, np.float32)
    parts, push = parts_of(honest, honest.seq + 1, unit, 1)
    side.send_frames(parts[0])
    assert side.raw() == [parts[0][0]]
    honest.hello()
    honest.bulk.send_frames(push)
    assert honest.pull()[1] == honest.seq


def test_sides_need_the_key_of_their_session(programs, keys):
    server = programs.server(*LEDGER, "--dead-ms", 60000, "--key", keys / "server.key",
                             "--connections", CONNECTIONS, directory=None)
    known = {name: Keys(keys / f"{name}.key", keys / "server.pub")
             for name in ("worker", "second", "observer")}
    worker = Honest(server.endpoint, name="honest", keys=known["worker"])
    worker.goes_on()
    Side(worker, 1, keys=known["second"]).refused(EAUTH)
    Side(worker, 1, keys=known["observer"]).refused(EAUTH)
    push_in_parts(worker, opened(worker))
    worker.goes_on()
    worker.close()


def test_sides_weights_in_parts(programs):
    server = programs.server("--model", f"vector:{LARGE}", *PLAIN, "--connections", CONNECTIONS,
                             directory=None)
    worker = Honest(server.endpoint)
    worker.goes_on()
    sides = opened(worker)
    worker.request += 1
    worker.bulk.send(pb.Pull(stamp=worker.stamp, request=worker.request,
                             which=pb.WEIGHTS_CURRENT))
    assert worker.bulk.socket.poll(PATIENCE * 1000)
    header, first = worker.bulk.socket.recv_multipart()
    params = pb.Message.FromString(header).params
    frames = [first]
    for i, side in enumerate(sides, 1):
        name, frame = side.raw()
        assert name == mark(worker.request, i)
        frames.append(frame)
    data = b"".join(frames)
    assert (params.parts, params.ack.seq, len(params.slices)) == (CONNECTIONS, 0, 1)
    assert len(data) == 4 * LARGE and checksum(data) == params.slices[0].xxh3
    assert max(map(len, frames)) < 1.1 * len(data) / CONNECTIONS
    assert params.version == worker.seq
    # without a side connection, the weights come in one message again
    sides[0].close()
    worker.hello()
    assert np.array_equal(worker.pull()[0], np.frombuffer(data, "<f4"))
    worker.goes_on()
    worker.close()
