"""Tests of keys: only peers with a listed key may connect, and the role of a key decides which
messages its peer may send. A peer without a key can neither send nor receive a message.

The worker of the fixture `honest` pushes before and after each test, on the same connections.

The tests cover attacks A2, A7, A8, A9 and A10 of docs/faults.md.
"""
import contextlib
import os
import random
import re
import signal
import socket
import threading
import time
import urllib.request

import numpy as np
import pytest
import zmq

from conftest import LEDGER, Honest, ends

from client import CONTEXT, PROTOCOL, Keys, Link, Refused, Worker, hello, pb
from support.build import FLAVOUR, PATIENCE
from support.programs import until
from test_document import rows, section

PS_EAUTH = 11


@pytest.fixture
def server(programs, keys):
    return programs.server(*LEDGER, "--dead-ms", 60000, "--key", keys / "server.key",
                           directory=None)


@pytest.fixture
def known(keys):
    """Returns a function: known("admin") returns the Keys of a client with the key pair `admin`."""
    return lambda name: Keys(keys / f"{name}.key", keys / "server.pub")


@pytest.fixture
def honest(server, known):
    worker = Honest(server.endpoint, name="honest", keys=known("worker"))
    worker.goes_on()
    yield worker
    worker.goes_on()
    assert server.running()
    worker.close()


def counters(server):
    return server.status()["counters"]


def metric(server, name):
    address = server.line(r"http listening.* url=(\S+)")[1]
    with urllib.request.urlopen(f"{address}/metrics", timeout=5) as reply:
        return float(re.search(rf"^cnnps_{name} (\S+)", reply.read().decode(), re.M)[1])


def all_read(server, *workers):
    """Wait until the server has read all messages that these workers have sent. Check that the
    server has read no other message since its start."""
    sent = sum(w.bulk.sent + w.heartbeat.sent for w in workers)
    until(lambda: metric(server, "messages_received_total") >= sent, 20 * PATIENCE, "all is read")
    assert metric(server, "messages_received_total") == sent
    return sent


# ---- unauthenticated peers

UNAUTHENTICATED = {
    "a key that is not on the list": lambda keys: Keys(server=keys / "server.pub"),
    "a key of the list, the server's not known": lambda keys: Keys(own=keys / "worker.key"),
    "no key of any kind": lambda keys: None,
}


@pytest.mark.parametrize("peer", UNAUTHENTICATED)
def test_nothing_of_an_unauthenticated_peer_is_read_or_answered(server, honest, keys, peer):
    peer_keys = UNAUTHENTICATED[peer](keys)
    version = honest.pull()[1]
    received = all_read(server, honest)
    link = Link(server.endpoint)
    link.close()
    link.socket = CONTEXT.socket(zmq.DEALER)
    link.socket.linger = 0
    # a time limit, because sends block on a socket whose connection the server has refused
    link.socket.sndtimeo = 2000
    if peer_keys:
        link.socket.curve_publickey, link.socket.curve_secretkey = peer_keys.own
        link.socket.curve_serverkey = peer_keys.server
    monitor = link.socket.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
    link.socket.connect(server.endpoint)
    for body in (hello(), pb.Status(), pb.Pull(stamp=honest.stamp, request=1, which=1),
                 pb.Push(stamp=honest.stamp, seq=honest.seq + 1), pb.Admin(verb=2)):
        with contextlib.suppress(zmq.Again):
            link.send(body)
    assert monitor.poll(20000)
    event = int.from_bytes(monitor.recv_multipart()[0][:2], "little")
    assert event != zmq.EVENT_HANDSHAKE_SUCCEEDED
    assert link.receive(0.3) is None
    link.socket.disable_monitor()
    link.close()
    assert metric(server, "messages_received_total") == received
    assert honest.pull()[1] == version
    until(lambda: metric(server, "connections") == 2, 10, "the peer is gone")


# The first bytes of a ZMTP greeting. In a complete greeting, the version, the mechanism, the role
# and padding follow.
GREETING = b"\xff" + bytes(8) + b"\x7f"
GARBAGE = {
    "HTTP": lambda noise: b"GET / HTTP/1.1\r\n\r\n",
    "zeros": lambda noise: bytes(64),
    "a greeting without keys": lambda noise:
        GREETING + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32),
    "a greeting with keys, then noise": lambda noise:
        GREETING + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32) + noise(500),
    "an old greeting, then noise": lambda noise: GREETING + b"\x01\x00" + noise(100),
    "noise": lambda noise: noise(4000),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_never_reaches_the_decoder(server, honest, kind):
    seed = int(os.environ.get("CNN_GARBAGE_SEED") or random.randrange(1 << 32))
    print(f"seed {seed}; again: CNN_GARBAGE_SEED={seed} FLAVOUR={FLAVOUR} /usr/bin/python3 -m pytest "
          f"'tests/wire/test_keys.py::test_garbage_never_reaches_the_decoder[{kind}]'")
    garbage = GARBAGE[kind](random.Random(seed).randbytes)
    received = all_read(server, honest)
    host, port = server.endpoint.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as s:
        s.sendall(garbage)
        try:
            while s.recv(4096):  # read what libzmq sends, until the server closes the connection
                pass
        except ConnectionResetError:
            pass
    assert metric(server, "messages_received_total") == received
    assert metric(server, "malformed_total") == 0


class Wire(threading.Thread):
    """A TCP proxy, which records the bytes of each connection and can change one byte."""

    def __init__(self, endpoint, flip=None):
        super().__init__(daemon=True)
        host, port = endpoint.removeprefix("tcp://").split(":")
        self.server = host, int(port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = "tcp://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.flip = flip  # (direction, index) of the byte in which the proxy flips a bit, once
        self.streams = []
        self.start()

    @property
    def recorded(self):
        return b"".join(self.streams)

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.server)
            except OSError:  # the server has ended
                client.close()
                continue
            for pair in ((client, server, "up"), (server, client, "down")):
                threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source, sink, direction):
        passed = 0
        stream = bytearray()
        if direction == "up":
            self.streams.append(stream)
        try:
            while data := source.recv(65536):
                if self.flip and self.flip[0] == direction and self.flip[1] < passed + len(data):
                    data = bytearray(data)
                    data[self.flip[1] - passed] ^= 1
                    self.flip = None
                stream += data
                passed += len(data)
                sink.sendall(data)
        except OSError:
            pass
        for s in (source, sink):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()


def test_recorded_traffic_played_again_says_nothing(server, honest, known):
    wire = Wire(server.endpoint)
    victim = Worker(wire.endpoint, name="victim", keys=known("second"))
    victim.pull()
    version = honest.pull()[1]
    received = all_read(server, honest, victim)
    victim.close()
    assert len(wire.recorded) > 600
    host, port = server.endpoint.removeprefix("tcp://").split(":")
    for stream in wire.streams:
        with socket.create_connection((host, int(port)), timeout=20) as s:
            s.sendall(stream)
            try:
                while s.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    wire.close()
    assert metric(server, "messages_received_total") == received
    assert honest.pull()[1] == version


def test_no_plain_byte_on_the_wire(server, honest, known):
    """Text that a HELLO or a push contains must not occur in the encrypted traffic."""
    wire = Wire(server.endpoint)
    worker = Worker(wire.endpoint, name="plainname", keys=known("second"))
    worker.push(np.append(np.full(63, 12345, np.float32), np.float32(np.nan)), 0)
    worker.close()
    wire.close()
    assert len(wire.recorded) > 600
    assert b"plainname" not in wire.recorded and b"python" not in wire.recorded
    assert np.float32(12345).tobytes() * 2 not in wire.recorded


FORGED = [("up", 700), ("up", 50000), ("down", 700), ("down", 50000)]


@pytest.mark.parametrize("direction, index", FORGED)
def test_a_forged_message_ends_its_connection_and_nothing_else(programs, keys, small, direction,
                                                               index):
    """A proxy flips a bit of an encrypted message on the way. The receiver of the message closes
    the connection, and the worker continues with a new one. libzmq itself could keep the connection
    open and read nothing more from it."""
    server = programs.server("--model", "seed:4", "--epochs", 1, "--key", keys / "server.key")
    wire = Wire(server.endpoint, flip=(direction, index))
    worker = programs.worker(wire.endpoint, "--key", keys / "worker.key", "--server-key",
                             keys / "server.pub", "--lane", "tcp", data=small)
    assert server.result(20 * PATIENCE)["images_per_epoch"] == [6000]
    assert worker.wait(10 * PATIENCE) == 0, worker.tail()
    assert not wire.flip and len(wire.streams) > 2
    wire.close()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_heartbeats_go_on_after_a_forged_message(programs, keys, small, direction):
    """The worker waits for work. Meanwhile only its connection for heartbeats carries more than
    1,500 bytes, so the proxy can tell it from the other connection. A proxy flips a bit of a
    heartbeat on the way. After that, the worker must send its heartbeats on a new connection."""
    server = programs.server("--model", "seed:4", "--epochs", 1, "--min-workers", 2, "--key",
                             keys / "server.key")
    wire = Wire(server.endpoint, flip=(direction, 1500))
    worker = programs.worker(wire.endpoint, "--key", keys / "worker.key", "--server-key",
                             keys / "server.pub", "--lane", "tcp", data=small)
    until(lambda: not wire.flip, 60 * PATIENCE, "a forged message")
    until(lambda: len(wire.streams) > 2 and len(wire.streams[2]) > 1500, 30 * PATIENCE,
          "heartbeats on a third connection")
    assert len(wire.streams) == 3 and worker.running()
    assert server.status()["workers"][0]["state"] == "live"
    wire.close()


# ---- roles

def one_of(name, stamp):
    """Returns a message with this name, and with `stamp` if such messages have a stamp."""
    return {"HELLO with ROLE_OBSERVER": pb.Hello(protocol=PROTOCOL, role=pb.ROLE_OBSERVER),
            "HELLO with ROLE_WORKER": hello(), "STATUS": pb.Status(),
            "PULL": pb.Pull(stamp=stamp, request=1, which=pb.WEIGHTS_CURRENT),
            "ADMIN": pb.Admin(verb=pb.ADMIN_CHECKPOINT),
            "ADMIN_LOG_LEVEL": pb.Admin(verb=pb.ADMIN_LOG_LEVEL, level=pb.LOG_LEVEL_INFO),
            "ADMIN_RELEASE": pb.Admin(verb=pb.ADMIN_RELEASE, worker="nobody"),
            "PUSH": pb.Push(stamp=stamp, seq=1), "LEASE": pb.Lease(stamp=stamp, request=1),
            "RESULT": pb.Result(stamp=stamp, eval_count=1), "HEARTBEAT": pb.Heartbeat(stamp=stamp),
            "BYE": pb.Bye(stamp=stamp)}[name]


def test_handshakes_take_their_memory_from_the_program(server, honest):
    """libsodium's memory would cost 25 system calls for each handshake (curve_memory.h)."""
    assert not any("slow_handshakes" in line for line in server.lines)


TABLE = rows(section("Keys"))
ROLES = TABLE[0][1:]


@pytest.mark.parametrize("role", ROLES)
def test_keys_table(server, honest, known, role):
    """The table in proto/WIRE.md, "Keys", says which messages each role may send. For each row of
    the table, the test checks that the server accepts or refuses the message as the table says."""
    assert ROLES == ["observer", "admin", "worker"]
    stamp = pb.Stamp()
    stamp.CopyFrom(honest.stamp)
    stamp.worker = stamp.incarnation = 0
    for row in TABLE[1:]:
        names = row[0].split(", ")
        for name in names + ["ADMIN_LOG_LEVEL", "ADMIN_RELEASE"] * ("ADMIN" in names):
            link = Link(server.endpoint, known("second" if role == "worker" else role))
            link.send(one_of(name, stamp))
            # The server may send no answer to a worker's HELLO, RESULT or HEARTBEAT. Therefore a
            # STATUS follows, which always gets a reply.
            link.send(pb.Status())
            codes = set()
            while True:
                what, body, _ = link.receive()
                if what == "error":
                    codes.add(body.code)
                if what == "status":
                    break
            link.close()
            assert (PS_EAUTH in codes) == (row[1 + ROLES.index(role)] == "no"), (role, name, codes)


@pytest.mark.parametrize("key", ["second", "admin"])
def test_another_workers_stamp_is_refused(server, honest, known, key):
    link = Link(server.endpoint, known(key))
    unauthorized = counters(server)["unauthorized"]
    for body in (pb.Push(stamp=honest.stamp, seq=honest.seq + 1), pb.Bye(stamp=honest.stamp),
                 pb.Pull(stamp=honest.stamp, request=1, which=1), hello(resume=honest.stamp)):
        link.send(body)
        what, answer, _ = link.receive()
        assert (what, answer.code) == ("error", PS_EAUTH)
    link.close()
    assert counters(server)["unauthorized"] == unauthorized + 4


def test_one_name_two_keys_two_workers(server, honest, known):
    other = Worker(server.endpoint, name="honest", keys=known("second"))
    assert other.stamp.worker != honest.stamp.worker
    names = {w["name"] for w in server.status()["workers"]}
    assert names == {f"honest@{known(k).own[0].decode()[:8]}" for k in ("worker", "second")}
    other.bye()


# ---- the list

def without(keys, name):
    lines = (keys / "authorized_keys").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if line.split()[2] != name)


def read_again(server, keys, text):
    n = len(server.lines)
    (keys / "authorized_keys").write_text(text)
    server.signal(signal.SIGHUP)
    server.line(r"auth list_(read|kept)", after=n)


def test_sighup_revokes(server, honest, known, keys):
    second = Worker(server.endpoint, keys=known("second"))
    # a push of NaN: the server rejects it, so the push does not change the weights
    refused_push = np.full(64, np.nan, np.float32)
    assert second.push(refused_push, 0).reject == pb.REJECT_NONFINITE
    read_again(server, keys, without(keys, "second"))
    assert server.status()["log_level"] == "info"
    time.sleep(0.1)  # let the server begin its periodic work, after which it must still answer
    version = honest.pull()[1]
    with pytest.raises(Refused) as refused:
        second.push(refused_push, 0)
    assert refused.value.code == PS_EAUTH
    link = Link(server.endpoint, known("second"))
    link.try_send(pb.Status())  # a send would wait if the server has already refused the key
    assert link.receive(0.5) is None
    link.close()
    second.close()
    assert honest.pull()[1] == version


def test_sighup_admits(server, honest, known, keys, programs):
    programs.keygen("third")
    third = Link(server.endpoint, known("third"))
    third.try_send(pb.Status())  # a send would wait if the server has already refused the key
    assert third.receive(0.3) is None
    third.close()
    read_again(server, keys, (keys / "authorized_keys").read_text())
    third = Link(server.endpoint, known("third"))
    third.send(pb.Status())
    assert third.expect("status")
    third.close()


def test_a_bad_list_changes_nothing(server, honest, known, keys):
    read_again(server, keys, "worker nonsense\n")
    assert "authorized_keys:1" in server.tail()
    link = Link(server.endpoint, known("second"))
    link.send(pb.Status())
    assert link.expect("status")
    link.close()


# ---- programs: exit statuses, files, secrets

def test_a_refused_worker_ends_at_once(server, honest, keys, programs, data):
    other = programs.keygen(directory="other")
    (other / "server.pub").write_text((keys / "server.pub").read_text())
    for options, words in (
            (["--key", other / "worker.key"], "not on the server's list"),
            ([], "requires a key"),
            (["--key", keys / "observer.key"], "role")):
        began = time.monotonic()
        code, worker = ends(programs, "cnn-worker", "--server", server.endpoint, "--data", data,
                            "--device", "cpu", "--threads", 1, "--connect-timeout-ms",
                            60000 * PATIENCE, *options)
        assert code == 9, worker.tail()
        assert time.monotonic() - began < 30 * PATIENCE
        assert [line for line in worker.lines if " level=info " not in line] == \
            worker.lines[-1:], worker.tail()
        assert words in worker.lines[-1]


def test_a_worker_of_another_server_names_the_key_of_its_server(server, honest, keys, programs, data):
    other = programs.keygen(directory="other")
    code, worker = ends(programs, "cnn-worker", "--server", server.endpoint, "--data", data,
                        "--device", "cpu", "--threads", 1, "--connect-timeout-ms", 1500, "--key",
                        keys / "worker.key", "--server-key", other / "server.pub")
    key = (other / "server.pub").read_text().splitlines()[1]
    assert code == 3 and f"is {key[:8]} its key?" in worker.lines[-1], worker.tail()


@pytest.mark.parametrize("name, text", [("allow", ""), ("authorized_keys", "worker key\n")])
def test_keygen_writes_no_key_beside_a_list_that_it_cannot_extend(programs, name, text):
    directory = programs.directory / "old"
    directory.mkdir()
    (directory / name).write_text(text)
    done = programs.ctl("keygen", directory, code=2)
    assert f"{directory}/{name}" in done.tail()
    assert [p.name for p in directory.iterdir()] == [name]
