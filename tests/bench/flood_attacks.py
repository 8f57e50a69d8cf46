"""The attackers of tests/bench/floods, and the unrelated socket that they flood in a control.

Each attacker is a process. It attacks two addresses, `endpoint` and `http`. They belong to a server
or, in the control, to an unrelated process, and the attacker sends the same messages to both. An
attacker does what no correct peer does: it ignores replies, and opens each connection that it loses
again at once.
"""
import random
import selectors
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import zmq

sys.path += [str(Path(__file__).resolve().parents[1] / part) for part in ("", "wire")]

from client import CONTEXT, Keys, Link, Worker, encode, hello, pb  # noqa: E402

START_S = 60       # maximum time in seconds until an attacker is ready
LINKS = 4          # number of connections over which a flood of messages is sent
# number of connections of a flood of chunks; greater than the number of chunks that the server
# holds
CHUNK_LINKS = 70
CHUNK = bytes(16384)
OPEN = 128         # in a flood of connections: number of connections that are open at the same time
# in a flood of connections: maximum time in seconds for which a connection stays open
OPEN_S = 0.5
GARBAGE = [random.Random(1).randbytes(64), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 10,
           b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
           b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)]


@dataclass
class Target:
    """What an attacker attacks, and the keys that it has."""
    server: str    # endpoint of the server, even if the attack is on the unrelated socket
    endpoint: str  # the ZeroMQ socket to attack
    http: tuple    # the HTTP socket to attack: host, port
    keys: Path     # the directory of the keys

    def keys_of(self, name):
        return Keys(self.keys / f"{name}.key", self.keys / "server.pub")


class Messages:
    """Sends the same message again and again, on several connections in turn."""

    def __init__(self, target, key, frames, links=LINKS):
        self.frames, self.at = frames, 0
        CONTEXT.reconnect_ivl = 1
        self.links = [Link(target.endpoint, target.keys_of(key)) for _ in range(links)]

    def step(self):
        self.at += 1
        try:
            self.links[self.at % len(self.links)].socket.send_multipart(self.frames, zmq.DONTWAIT)
        except zmq.Again:
            return False  # the server has closed the connection, or does not read
        return True

    def close(self):
        for link in self.links:
            link.close()


def hellos(target):
    """Floods the server with HELLO messages of one key."""
    return Messages(target, "attacker", encode(hello(name="flood")))


def statuses(target):
    """STATUS: an observer requests the state of the run again and again."""
    return Messages(target, "observer", encode(pb.Status()))


def malformed(target):
    """Floods the server with messages that it cannot decode, with a key that the server accepts."""
    return Messages(target, "attacker", [b"\xff" * 16])


def chunks(target):
    """Floods the server with chunks whose PUSH message never follows."""
    return Messages(target, "attacker", [b"\0", CHUNK], CHUNK_LINKS)


class revoked(Messages):
    """Sends STATUS again and again with a key that was removed from the server's list of keys."""

    def __init__(self, target):
        super().__init__(target, "revoked", encode(pb.Status()))
        # the connections must be open before the key is revoked
        if target.endpoint == target.server:
            for link in self.links:
                link.send(pb.Status())
                link.expect("status")


class results(Messages):
    """A worker that has joined sends results of evaluations that the server did not grant to it."""

    def __init__(self, target):
        self.worker = Worker(target.server, keys=target.keys_of("attacker"))
        body = pb.Result(stamp=self.worker.stamp, eval_id=1, eval_count=100, correct=100)
        super().__init__(target, "attacker", encode(body))

    def close(self):
        super().close()
        self.worker.close()


class slots:
    """Sends HELLO with a new name on a new connection again and again: one key takes all worker
    slots that it can get."""

    def __init__(self, target):
        self.target, self.keys = target, target.keys_of("attacker")
        self.links, self.sent = [], 0

    def step(self):
        if len(self.links) == OPEN:
            self.links.pop(0).close()
        self.links.append(Link(self.target.endpoint, self.keys))
        self.sent += 1
        return self.links[-1].try_send(hello(name=f"flood {self.sent}"))

    def close(self):
        for link in self.links:
            link.close()


class garbage:
    """Opens connections from several addresses, and sends bytes of other protocols on them."""

    def __init__(self, target):
        self.address = target.endpoint.removeprefix("tcp://").rsplit(":", 1)
        self.open, self.at = [], 0

    def step(self):
        self.at += 1
        s = socket.socket()
        s.setsockopt(socket.IPPROTO_IP, 24, 1)  # 24: IP_BIND_ADDRESS_NO_PORT
        s.bind((f"127.0.1.{1 + self.at % 16}", 0))
        s.setblocking(False)
        s.connect_ex((self.address[0], int(self.address[1])))
        self.open.append((s, time.monotonic() + OPEN_S))
        if len(self.open) < OPEN:
            return True
        return self.end(*self.open.pop(0))

    @staticmethod
    def end(s, until):
        """Send garbage on a connection that is open or has time to open, and close it. Returns
        whether the connection was open."""
        try:
            s.setblocking(time.monotonic() < until)
            s.settimeout(max(0.001, until - time.monotonic()))
            s.sendall(random.choice(GARBAGE))
        except OSError:
            return False
        finally:
            s.close()
        return True

    def close(self):
        for s, until in self.open:
            self.end(s, until)


class slow_http:
    """HTTP clients that send their requests slowly, one byte at a time. In one step, they send a
    byte, or open a connection in place of one that the server has closed."""

    REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + 4000 * b"x"

    def __init__(self, target):
        self.address, self.at = target.http, 0
        self.open, self.sent = [None] * OPEN, [0] * OPEN

    def step(self):
        self.at = (self.at + 1) % OPEN
        s = self.open[self.at]
        try:
            if s is None:
                self.open[self.at], self.sent[self.at] = s, at = socket.socket(), 0
                s.setblocking(False)
                s.connect_ex(self.address)
                return True
            at = self.sent[self.at] = (self.sent[self.at] + 1) % len(self.REQUEST)
            s.send(self.REQUEST[at:at + 1])
        except BlockingIOError:
            return False
        except OSError:
            s.close()
            self.open[self.at] = None
        return True

    def close(self):
        for s in self.open:
            if s:
                s.close()


class requests:
    """Complete HTTP requests. Each step opens a connection, in place of the oldest one, because the
    server answers one request of a connection and then closes it."""

    PATH, REQUESTS = "/healthz", 20

    def __init__(self, target):
        request = f"GET {self.PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        self.address, self.request = target.http, self.REQUESTS * request.encode()
        self.open = []

    def step(self):
        if len(self.open) == LINKS:
            self.open.pop(0).close()
        try:
            self.open.append(socket.create_connection(self.address, 1))
            self.open[-1].sendall(self.request)
        except OSError:
            return False
        return True

    def close(self):
        for s in self.open:
            s.close()


class pages(requests):
    """HTTP requests for the page /status."""

    PATH = "/status"


# name: (the class or function that makes the attacker, number of steps per second)
ATTACKS = {
    "hello": (hellos, 10000), "slots": (slots, 500), "status": (statuses, 10000),
    "revoked": (revoked, 10000), "malformed": (malformed, 10000), "http": (slow_http, 5000),
    "garbage": (garbage, 100000 / 15), "chunks": (chunks, 2000), "results": (results, 10000),
    "requests": (requests, 1000), "pages": (pages, 1000)}


def flood(step, rate, seconds, steps):
    """Call step() `rate` times per second, for `seconds` and until there were `steps` calls.
    Returns (number of calls that returned true, seconds that they took)."""
    begin = now = time.monotonic()
    made = called = 0
    while now < begin + seconds or (called < steps and now < begin + 4 * seconds):
        for _ in range(min(int((now - begin) * rate) - called, 100)):
            called += 1
            made += bool(step())
        if called >= int((now - begin) * rate):
            time.sleep(0.001)
        now = time.monotonic()
    return made, now - begin


def attack(name, target, rate, seconds, steps, barrier, queue):
    """Runs in the process of an attacker. The process waits at `barrier` when the attacker is
    ready, and again before the attack begins."""
    attacker = ATTACKS[name][0](target)
    barrier.wait(START_S)
    barrier.wait(START_S)
    queue.put(flood(attacker.step, rate, seconds, steps))
    attacker.close()


# ---- the unrelated socket ------------------------------------------------------------------------


def read_and_drop(listener):
    """Accept all connections of `listener`, and read all that they send."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                s = listener.accept()[0]
                s.setblocking(False)
                selector.register(s, selectors.EVENT_READ)
                continue
            try:
                more = key.fileobj.recv(4096)
            except OSError:
                more = b""
            if not more:
                selector.unregister(key.fileobj)
                key.fileobj.close()


def unrelated_socket(keys, queue):
    """Runs in a process with two sockets that are not the server's. The ZeroMQ socket has the
    server's key, admits all keys and drops all messages. The TCP socket takes the place of the HTTP
    socket. The process puts the two addresses into `queue`."""
    router = zmq.Context().socket(zmq.ROUTER)
    router.curve_server = True
    router.curve_secretkey = Keys(keys / "server.key").own[1]
    router.handshake_ivl = 2000
    port = router.bind_to_random_port("tcp://127.0.0.1")
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    threading.Thread(target=read_and_drop, args=(listener,), daemon=True).start()
    queue.put((f"tcp://127.0.0.1:{port}", listener.getsockname()))
    while True:
        router.recv_multipart(copy=False)
