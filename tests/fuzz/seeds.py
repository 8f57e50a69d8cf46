#!/usr/bin/python3
"""Write one or more valid inputs of each fuzz target to DIR/TARGET, for a fuzzer to begin with.

  tests/fuzz/seeds.py DIR

The corpora in tests/fuzz/corpus began with these files. libFuzzer then added inputs, and `TARGET
-merge=1` reduced each corpus to the inputs that reach different code.
"""
import gzip
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import xxhash

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/wire")]

import client  # noqa: E402
from support import idx  # noqa: E402


def name_of(body):
    return type(body).__name__


def wire():
    """Yields an input for each message: a byte for n_params, bytes for the sizes of the tensor
    frames, and the header of the message."""
    pb = client.pb
    stamp = pb.Stamp(run_hi=1, run_lo=2, term=3, worker=1, incarnation=1)
    zeros = np.zeros(8, "<f4")
    bodies = [
        (pb.Hello(protocol=client.PROTOCOL, role=1, name="anna", device="cpu", resume=stamp,
                  host="h", pid=1), []),
        (pb.Welcome(stamp=stamp, model="vector:8", n_params=8, batch=1, push_window=4,
                    replay_window=8, heartbeat_ms=100, dead_ms=1000, session_ttl_ms=5000, mode=1,
                    n_push=1, n_fetch=1, protocol=client.PROTOCOL), []),
        (pb.Pull(stamp=stamp, request=1, which=1), []),
        (pb.Params(request=1, version=2, which=1), [(0, zeros)]),
        (pb.Push(stamp=stamp, seq=1, base_version=2, images=10, loss=1, base_term=3, pull=4),
         [(0, zeros[:3]), (4, zeros[:2])]),
        (pb.Push(stamp=stamp, seq=1, base_version=2, images=10, loss=1, base_term=3, lane_slot=1,
                 lane_count=8), []),
        (pb.Params(request=1, version=2, which=1, lane_hold=1, lane_ticket=2, lane_buffer=1), []),
        (pb.Ack(seq=1, verdict=1, version=2, durable_seq=1, term=3), []),
        (pb.Lease(stamp=stamp, request=1), []),
        (pb.Grant(request=1, kind=2, eval_count=3, eval_id=4), []),
        (pb.Result(stamp=stamp, eval_id=4, eval_count=3, correct=2, loss_sum=1), []),
        (pb.Heartbeat(stamp=stamp, last_seq=1, durable_seq=1), []),
        (pb.Bye(stamp=stamp), []),
        (pb.Status(reply=1, text="{}"), []),
        (pb.Admin(verb=1), []),
        (pb.Error(code=3, expected=2, text="no"), []),
    ]
    for body, tensors in bodies:
        frames = client.encode(body, tensors)
        sizes = bytes(len(f) // 4 for f in frames[1:])
        yield bytes([8, 0]) + sizes + b"\xff" + frames[0]
        if name_of(body) == "Hello":
            yield bytes([8, 8]) + sizes + b"\xff" + frames[0]
            body.protocol = 6
            yield bytes([8, 8]) + sizes + b"\xff" + pb.Message(hello=body).SerializeToString()
        if name_of(body) == "Push":
            body.chunks = 1
            yield bytes([8, 1]) + sizes + b"\xff" + pb.Message(push=body).SerializeToString()
        if name_of(body) in ("Push", "Params") and tensors:
            for how in 0, 16, 32, 64:
                again = type(body)()
                again.CopyFrom(body)
                del again.slices[:]
                halves = client.encode(again, [(0, zeros)], client.pb.ENCODING_BF16)
                yield bytes([8, how, 4, 255]) + halves[0]
        if name_of(body) == "Params":
            yield bytes([136, 0]) + sizes + b"\xff" + frames[0]


def safetensors_file(text):
    """Returns the bytes of a .safetensors file with the weights of the model fc:3 for 1x2x3
    images."""
    tensors = {"fc1.weight": [3, 6], "fc1.bias": [3]}
    header, at = {"__metadata__": {"model": text}}, 0
    for name, shape in tensors.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(at)


def checkpoint_file(sections):
    head = b"CNNPSCK1" + struct.pack("<IIQ", 1, len(sections), 7)
    at, table, content = 24 + 40 * len(sections) + 8, b"", b""
    for name, data in sections.items():
        table += name.encode().ljust(16, b"\0") + struct.pack(
            "<QQQ", at + len(content), len(data), xxhash.xxh3_64_intdigest(data))
        content += data
    head += table
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + content


def wal_record(payload, seq):
    head = b"CNNPSREC" + struct.pack("<QQQQ", 1, seq, seq, len(payload))
    xxh3 = xxhash.xxh3_64_intdigest(head + payload)
    return (head + struct.pack("<Q", xxh3) + payload).ljust((48 + len(payload) + 7) // 8 * 8, b"\0")


def wal_file():
    head = b"CNNPSJNL" + struct.pack("<QQQQQQ", 1, 11, 22, 5, 1, 1)
    head += struct.pack("<Q", xxhash.xxh3_64_intdigest(head))
    heartbeat = client.encode(client.pb.Heartbeat(stamp=client.pb.Stamp(run_lo=1, term=1, worker=1,
                                                              incarnation=1)))[0]
    message = struct.pack("<QQQQQQ", 0, 7, 1000, 0, 1, len(heartbeat)) + heartbeat
    tick = struct.pack("<QQQQQ", 2, 0, 1050, 0, 0)
    return head + wal_record(message, 1) + wal_record(tick, 2)


def png(width, height, kind, channels):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(
            ">I", zlib.crc32(name + data))
    rows = b"".join(b"\0" + bytes(width * channels) for _ in range(height))
    return (b"\x89PNG\r\n\x1a\n" +
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def image_sets():
    images = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    labels = struct.pack(">BBBBI", 0, 0, 0x0b, 1, 3) + struct.pack(">3h", 1, 2, 3)
    for plain in (idx.encode(images), idx.encode(images.reshape(2, 1, 3, 4))):
        yield b"\0" + plain
        yield b"\0" + gzip.compress(plain, mtime=0)
    yield b"\1" + labels
    yield b"\1" + idx.encode(np.array([1, 2, 3], np.uint8))


SEEDS = {
    "wire": wire,
    "core": lambda: [bytes([0, 0, 0, mode, 0, 0, 0]) + bytes(
        [60, 12, 64, 61, 12, 65] * 40) for mode in range(5)],
    "session": lambda: [bytes([10, 0] + [0] * 20 + [6, 5, 10, 2, 0, 0, 0, 0] * 4)],
    "snapshot": lambda: [b"", bytes([0, 1, 0, 9, 1, 7]), bytes([1, 5, 0, 40, 2, 1, 1])],
    "model": lambda: [b"\0\3" + t for t in (
        b"seed:32", b"lenet5", b"cnn99", b"cifar", b"vector:8", b"fc:10 relu fc:10",
        b"input:3x8x8 norm:0.5:0.25 shift:2 flip conv:4:3:pad=1 relu pool:2 dropout:0.5 fc:10",
        b"conv:4:5:stride=2:pad=auto relu fc:10")],
    "idx": image_sets,
    "checkpoint": lambda: [b"\0" + checkpoint_file({
        "run": struct.pack("<QQQQ", 11, 22, 5, 9) + b"vector:8".ljust(512, b"\0"),
        "weights": bytes(32)})],
    "wal": lambda: [b"\0" + wal_file(), b"\2" + struct.pack("<QQQQQ", 2, 0, 1050, 0, 0)],
    "safetensors": lambda: [safetensors_file("fc:3"), safetensors_file("")],
    "keys": lambda: [b"\0# list\nworker " + b"a" * 40 + b" anna\nadmin " + b"b" * 40 + b"\n",
                     b"\1cnn-ps public key\n" + b"a" * 40 + b"\n",
                     b"\2cnn-ps secret key\n" + b"a" * 40 + b"\n"],
    "picture": lambda: [b"\0P5\n2 2\n255\n\1\2\3\4", b"\1P2\n# c\n2 2\n255\n1 2 3 4\n",
                        b"\0" + png(3, 2, 0, 1), b"\1" + png(3, 2, 2, 3), b"\2" + png(3, 2, 6, 4)],
    "options": lambda: [b"--check-config\n--model\nseed:32\n--mode\nsync\n--optimizer=adam\n",
                        b"--model=vector:8\n--epochs=0\n--lr=0.5\n--max-workers\n4\n"],
    "http": lambda: [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                     b"HEAD /healthz HTTP/1.0\r\n\r\n",
                     b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"],
    "zmtp": lambda: [b"\0" + bytes(64)] + [
        b"\1" + bytes([0, len(h)]) + h for h in (s[s.index(b"\xff") + 1:] for s in wire())],
}


def main():
    for target, make in SEEDS.items():
        folder = Path(sys.argv[1]) / target
        folder.mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(make()):
            (folder / f"seed-{i:02}").write_bytes(data)


if __name__ == "__main__":
    main()
