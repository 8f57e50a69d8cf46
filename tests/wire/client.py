"""A worker of cnn-ps in Python, written only from proto/WIRE.md and proto/cnnps.proto, with pyzmq,
protobuf and xxhash.

The worker uses none of the project's C code. The import of this module runs protoc, which generates
the module `pb` outside the source tree.
"""
import importlib.util
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import xxhash
import zmq

PROTO = Path(__file__).resolve().parent.parent.parent / "proto"
PROTOCOL = 7
PATIENCE = 20  # the maximum time in seconds for which the client waits for a reply


def _generate():
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["protoc", f"--python_out={directory}", f"-I{PROTO}",
                        str(PROTO / "cnnps.proto")], check=True)
        spec = importlib.util.spec_from_file_location("cnnps_pb2", f"{directory}/cnnps_pb2.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


pb = _generate()
CONTEXT = zmq.Context()


def checksum(data):
    return xxhash.xxh3_64_intdigest(data)


def to_bf16(values):
    """Round finite float32 values to bfloat16. Returns the upper halves as uint16."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype("<u2")


def from_bf16(halves):
    return (halves.astype("<u4") << 16).view("<f4")


def encode(body, tensors=(), encoding=pb.ENCODING_F32):
    """Returns the frames of a message. `tensors` has the pair (offset, float32 array) of each slice
    of the message."""
    frames = []
    for offset, values in tensors:
        data = np.ascontiguousarray(values, "<f4")
        if encoding == pb.ENCODING_BF16:
            data = to_bf16(data)
        count, data = len(data), data.tobytes()
        body.slices.add(offset=offset, count=count, encoding=encoding, xxh3=checksum(data))
        frames.append(data)
    name = next(f.name for f in pb.Message.DESCRIPTOR.fields
                if f.message_type is body.DESCRIPTOR)
    return [pb.Message(**{name: body}).SerializeToString(), *frames]


def decode(frames):
    """Decode a message. Returns (its name, its body, the flat vector of its tensors or None)."""
    message = pb.Message.FromString(frames[0])
    name = message.WhichOneof("body")
    body = getattr(message, name)
    slices = getattr(body, "slices", [])
    assert len(frames) == 1 + len(slices), "one tensor frame per slice"
    parts, at = [], 0
    for s, data in zip(slices, frames[1:]):
        assert s.encoding in (pb.ENCODING_F32, pb.ENCODING_BF16)
        size = 2 if s.encoding == pb.ENCODING_BF16 else 4
        assert s.offset == at and len(data) == size * s.count
        assert checksum(data) == s.xxh3, "checksum"
        parts.append(from_bf16(np.frombuffer(data, "<u2")) if size == 2
                     else np.frombuffer(data, "<f4"))
        at += s.count
    return name, body, np.concatenate(parts) if parts else None


class Refused(Exception):
    """Raised if the server answers with ERROR or BYE."""

    def __init__(self, body):
        super().__init__(f"{type(body).__name__} {body.code} {getattr(body, 'text', '')}")
        self.code = body.code
        self.expected = getattr(body, "expected", 0)


class Keys:
    """Has the key pair of a client and the public key of its server. The key pair comes from a key
    file or is random."""

    def __init__(self, own=None, server=None):
        self.own, self.server = zmq.curve_keypair(), zmq.curve_keypair()[0]
        if own:
            secret = own.read_bytes().split(b"\n")[1]
            self.own = zmq.curve_public(secret), secret
        if server:
            self.server = server.read_bytes().split(b"\n")[1]


class Link:
    """One DEALER connection."""

    def __init__(self, endpoint, keys=None):
        self.socket = CONTEXT.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.maxmsgsize = -1
        # a time limit, because sends block on a socket whose connection the server has refused
        self.socket.sndtimeo = PATIENCE * 1000
        self.sent = 0  # number of messages sent
        if keys:
            self.socket.curve_publickey, self.socket.curve_secretkey = keys.own
            self.socket.curve_serverkey = keys.server
        self.socket.connect(endpoint)

    def send(self, body, tensors=(), encoding=pb.ENCODING_F32):
        self.send_frames(encode(body, tensors, encoding))

    def send_frames(self, frames):
        self.sent += 1
        self.socket.send_multipart(frames)

    def try_send(self, body):
        """Queue a message. Returns 1, or 0 if the queue is full."""
        return self.try_send_frames(encode(body, ()))

    def try_send_frames(self, frames):
        try:
            self.socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            return 0
        return 1

    def receive(self, seconds=PATIENCE):
        """Returns the next message, or None if no message arrives in time."""
        if not self.socket.poll(int(seconds * 1000)):
            return None
        return decode(self.socket.recv_multipart())

    def expect(self, *names, seconds=PATIENCE):
        """Returns the next message that is no HEARTBEAT. This message must have one of `names`."""
        end = time.monotonic() + seconds
        while True:
            got = self.receive(max(0, end - time.monotonic()))
            assert got, f"no {names} in {seconds} s"
            if got[0] in names:
                return got
            if got[0] in ("error", "bye"):
                raise Refused(got[1])
            assert got[0] == "heartbeat", f"{got[0]} instead of {names}"

    def close(self):
        self.socket.close()


class Worker:
    """A worker that behaves like a process with a single thread. Every method that waits for a
    message also sends heartbeats."""

    def __init__(self, endpoint, name="", data=None, resume=None, keys=None, host="", pid=0,
                 wire=pb.ENCODING_NONE, metrics=""):
        self.endpoint = endpoint
        self.keys = keys
        self.name = name
        self.data = data
        self.host, self.pid = host, pid
        self.wire = wire   # the encoding of tensors in pushes; ENCODING_NONE stands for float32
        self.metrics = metrics
        self.links()
        self.notices = 0  # number of notices that the server waits for its disk
        self.kept = {}     # retained pushes: seq -> [PUSH body without stamp, tensors, ACK or None]
        self.request = self.lease_request = 0
        self.welcome = self.stamp = self.grant = None
        self.seq = self.durable = 0
        self.base_term = 0  # the term of the newest PARAMS; 0: none was received
        self.next_heartbeat = 0.0
        if resume:
            self.stamp, self.seq, self.durable = resume
        self.hello()

    def links(self):
        self.bulk = Link(self.endpoint, self.keys)
        self.heartbeat = Link(self.endpoint, self.keys)

    def close(self):
        self.bulk.close()
        self.heartbeat.close()

    # ---- Session

    def hello(self):
        body = pb.Hello(protocol=PROTOCOL, role=pb.ROLE_WORKER, name=self.name, device="python",
                        last_seq=self.seq, durable_seq=self.durable, host=self.host, pid=self.pid,
                        wire=self.wire, metrics=self.metrics)
        if self.wire == pb.ENCODING_BF16:
            body.requires = "bf16"
        if self.data:
            body.data.CopyFrom(self.data)
        if self.stamp:
            body.resume.CopyFrom(self.stamp)
        self.bulk.send(body)
        while True:
            name, welcome, _ = self.bulk.receive() or (None, None, None)
            assert name, "no WELCOME"
            if name in ("error", "bye") and getattr(welcome, "code", 0) not in (14, 15, 16):
                raise Refused(welcome)
            if name == "welcome":
                break
        if not self.stamp:
            self.seq = self.durable = welcome.last_seq
        self.welcome, self.stamp = welcome, welcome.stamp
        self.let_go(welcome.durable_seq)
        # wait for each ACK, because at most push_window pushes may be without an ACK
        for seq in sorted(self.kept):
            if seq > welcome.last_seq or self.kept[seq][2] is None:
                self.send_push(seq)
                self.ack(seq)

    def reconnect(self):
        """Connect to the process that has replaced a dead server, and resume the session."""
        self.close()
        self.links()
        self.hello()

    def let_go(self, durable):
        self.durable = max(self.durable, min(durable, self.seq))
        for seq in [s for s in self.kept if s <= self.durable]:
            del self.kept[seq]

    def maybe_heartbeat(self):
        now = time.monotonic()
        if now >= self.next_heartbeat:
            self.next_heartbeat = now + self.welcome.heartbeat_ms / 1000
            self.heartbeat.sent += self.heartbeat.try_send(pb.Heartbeat(
                stamp=self.stamp, last_seq=self.seq, durable_seq=self.durable))

    def wait(self, *names, seconds=PATIENCE):
        """Wait for a message with one of these names, and return it. Meanwhile, send heartbeats and
        process ACKs and HEARTBEATs."""
        poller = zmq.Poller()
        poller.register(self.bulk.socket, zmq.POLLIN)
        poller.register(self.heartbeat.socket, zmq.POLLIN)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.maybe_heartbeat()
            for socket, _ in poller.poll(self.welcome.heartbeat_ms):
                name, body, vector = decode(socket.recv_multipart())
                ack = body if name == "ack" else body.ack if name == "params" else None
                if name == "heartbeat" or ack and ack.seq:
                    self.let_go((ack or body).durable_seq)
                if ack and ack.seq in self.kept:
                    self.kept[ack.seq][2] = ack
                if name == "error" and body.notice:
                    self.notices += 1  # the server waits for its disk, and answers later
                    continue
                if name in ("error", "bye"):
                    raise Refused(body)
                if name in names:
                    return body, vector
        raise AssertionError(f"no {names} in {seconds} s")

    # ---- requests

    def pull(self, which=pb.WEIGHTS_CURRENT):
        """Pull the weights. Returns (weights, version)."""
        self.request += 1
        self.bulk.send(pb.Pull(stamp=self.stamp, request=self.request, which=which))
        while True:
            body, vector = self.wait("params")
            if body.request == self.request:
                assert len(vector) == self.welcome.n_params
                self.base_term = self.stamp.term
                self.params = body
                return vector, body.version

    def send_push(self, seq):
        meta, tensors, ack = self.kept[seq]
        body = pb.Push()
        body.CopyFrom(meta)
        body.stamp.CopyFrom(self.stamp)
        body.seq = seq
        if ack:
            body.verdict, body.reject, body.superseded = ack.verdict, ack.reject, ack.superseded
            body.code = ack.code
        self.bulk.send(body, tensors, self.wire or pb.ENCODING_F32)

    def push_pull(self, gradient, version):
        """Send one message that has the next push and also requests the weights after the push.
        Returns (ACK of the push, weights, version of the weights)."""
        self.seq += 1
        self.request += 1
        meta = pb.Push(base_version=version, base_term=self.base_term, pull=self.request)
        self.kept[self.seq] = [meta, [(0, gradient)], None]
        self.send_push(self.seq)
        ack = None
        while True:
            body, vector = self.wait("ack", "params")
            if vector is None:
                ack = body
            elif body.request == self.request:
                self.params = body
                ack = body.ack if body.ack.seq else ack
                return ack or self.ack(self.seq), vector, body.version

    def push(self, gradient, version, work=None, images=0, loss=0.0, offset=0, wait=True):
        """Send the next push. Returns the ACK of the push, or None at once if `wait` is false."""
        self.seq += 1
        meta = pb.Push(base_version=version, base_term=self.base_term, images=images, loss=loss)
        if work:
            meta.work.CopyFrom(work)
            self.show_grant(meta)
        self.kept[self.seq] = [meta, [(offset, gradient)], None]
        self.send_push(self.seq)
        return self.ack(self.seq) if wait else None

    def show_grant(self, push):
        """If the batches of the push are those of the newest GRANT, copy the code of this GRANT to
        the push. The code proves that the server has granted the batches."""
        if self.grant and self.grant.kind == pb.GRANT_TRAIN:
            own = self.grant.work
            push.grant_first, push.grant_count = own.first, own.count
            push.grant_code = self.grant.code

    def ack(self, seq):
        while True:
            body, _ = self.wait("ack")
            if body.seq == seq:
                return body

    def lease(self, seconds=PATIENCE):
        self.lease_request += 1
        self.bulk.send(pb.Lease(stamp=self.stamp, request=self.lease_request))
        while True:
            body, _ = self.wait("grant", seconds=seconds)
            if body.request == self.lease_request:
                self.grant = body
                return body

    def bye(self):
        """Send BYE and wait for the server's BYE. While it waits, the worker sends no HEARTBEAT,
        because the server refuses a HEARTBEAT after a BYE."""
        self.bulk.send(pb.Bye(stamp=self.stamp))
        name = None
        while name != "bye":
            name, body, _ = self.bulk.receive() or ("no BYE", None, None)
            assert name in ("bye", "ack", "heartbeat", "params", "grant"), f"{name} {body}"
        assert body.code == 0, body
        self.close()


def hello(**fields):
    """Returns the HELLO of a new worker. `fields` replaces some fields of this message."""
    return pb.Hello(**{"protocol": PROTOCOL, "role": pb.ROLE_WORKER, "device": "python", **fields})


def exclude(endpoint, **how):
    """Let a worker join and push NaN until the server has excluded it. Returns the exception
    Refused of this exclusion."""
    worker = Worker(endpoint, **how)
    try:
        for _ in range(20):
            ack = worker.push(0 * worker.pull()[0], 0, loss=float("nan"))
            assert ack.reject == pb.REJECT_NONFINITE
        worker.wait("ack")
    except Refused as refusal:
        return refusal
    finally:
        worker.close()
    raise AssertionError("20 pushes of NaN have not excluded the worker")
