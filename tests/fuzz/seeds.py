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


# the first frames of messages on side connections (proto/side.h)
GREETING = struct.pack("<BQQB", 0, 1, 2, 1)
MARK = struct.pack("<BQB", 0, 1, 2)


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
    for first, sizes in ((GREETING, b""), (MARK, b"\x04"), (MARK, b"")):
        yield bytes([8, 0]) + sizes + b"\xff" + first


def safetensors_file(tensors, **metadata):
    """Returns the bytes of a .safetensors file with tensors of these shapes."""
    header, at = {"__metadata__": metadata}, 0
    for name, shape in tensors.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(at)


def safetensors():
    """Yields files with the weights of the model fc:3 for 1x2x3 images, and with the values of
    vector:8:running=2."""
    layers, values = {"fc1.weight": [3, 6], "fc1.bias": [3]}, "w F32 2x3\nn I64 scalar 3\nw2 = w\n"
    yield safetensors_file(layers, model="fc:3", evaluation='{"loss": 0.5}')
    yield safetensors_file(layers, model="")
    yield safetensors_file({"vector": [8]}, model="vector:8:running=2")
    yield safetensors_file({"w": [2, 3], "b": [], "c": [1]})
    yield safetensors_file({"w": [2, 3], "r": [2]}, tensor_list=values + "r F32 2\n")


def checkpoint_file(sections):
    head = b"CNNPSCK1" + struct.pack("<IIQ", 1, len(sections), 7)
    at, table, content = 24 + 40 * len(sections) + 8, b"", b""
    for name, data in sections.items():
        table += name.encode().ljust(16, b"\0") + struct.pack(
            "<QQQ", at + len(content), len(data), xxhash.xxh3_64_intdigest(data))
        content += data
    head += table
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + content


def old_worker(name, n_decisions):
    """Returns the fields of a worker in the section "ledger" of release 0.1.0."""
    return struct.pack("<5Q64s64s", 1, 0, 0, 1, 1, name, b"python") + struct.pack(
        "<16Q", n_decisions, 20, 0, *[0] * 10, n_decisions, 0, 0) + struct.pack(
        "<Q", n_decisions) + struct.pack("<QBB", 1, 1, 0) * n_decisions


def old_checkpoint(mode, optimizer, optim, *, train=35, epoch=0, states=bytes(4), portions=None,
                   images=0, push_sum=0, compensation=0, window=(0, 0, 0)):
    """Returns a checkpoint of release 0.1.0 with two workers and a model of 8 parameters
    (server/core/snapshot_v5.c reads these fields)."""
    epochs = 2 if train else 0
    options = [3, 10, epochs, optimizer, mode, 20, 2, push_sum, compensation > 0, compensation > 1]
    counters = [0] * 20
    counters[5], counters[17] = images, images // 10
    run = struct.pack("<4Q512s", 11, 22, 5, 0, b"vector:8") + struct.pack(
        "<39Q", 5, 77, 8, *options, 1, 0, *counters, *[0] * 4) + bytes(160)
    ledger = struct.pack("<Q", 3) + old_worker(b"anna", 3) + bytes(8) + old_worker(b"bert", 1)
    training = bool(train and epoch < epochs)
    leases = struct.pack("<12Q", train, 7 if train else 0, *([2, 3, 10, 99] if train else [0] * 4),
                         epoch, training, portions is not None, *window)
    leases += states if training else b""
    leases += struct.pack("<Q", 3) + portions if portions else b""
    for i in range(epoch + training):
        done = images - 35 * epoch if i == epoch else 35
        leases += struct.pack("<2Qd3Q", done, done // 10, 1.0 * done, 0, 0, 0)
    live = struct.pack("<3Q", 0, 0, 0)
    return checkpoint_file({"run": run, "ledger": ledger, "leases": leases, "weights": bytes(32),
                            "optim": optim, "live": live})


def old_checkpoints():
    """Yields a checkpoint of release 0.1.0 for each kind of state that it can have."""
    vector, sums = struct.pack("<8f", *[0.5] * 8), struct.pack("<8d", *[0.1] * 8)
    step = [struct.pack("<2Q2d", 2, 20, weight, 20.0) + sums for weight in (20, 2)]
    search = struct.pack("<5Q6d", 1, 1, 2, 0, 1, 1, -1, 1, 0, 0, 1) + 3 * vector
    pairs = 2 * (struct.pack("<d", 1.0) + 2 * vector)
    yield old_checkpoint(1, 0, b"", train=0)
    yield old_checkpoint(1, 1, vector, states=b"\2\1\0\2", images=15)
    yield old_checkpoint(1, 1, vector + struct.pack("<Q", 0) + vector, epoch=1, images=35,
                         portions=b"\2\1\0")
    for push_sum in 0, 1:
        yield old_checkpoint(3, 2, step[push_sum] + vector, states=b"\2\2\1\0", images=20,
                             push_sum=push_sum)
    yield old_checkpoint(3, 0, struct.pack("<2Q2d", 0, 0, 0, 0))
    yield old_checkpoint(4, 6, struct.pack("<2Q2d", 1, 10, 10.0, 10.0) + sums + search + pairs,
                         states=b"\2\1\3\3", images=10, window=(0, 2, 1))
    yield old_checkpoint(4, 0, struct.pack("<2Q2d", 0, 0, 0, 0), states=b"\0\0\3\3",
                         window=(0, 2, 1))
    for mode, compensation in (1, 1), (2, 2):
        yield old_checkpoint(mode, 5, (vector if compensation > 1 else b"") + struct.pack("<Q", 1) +
                             vector + bytes(8) + 2 * vector, compensation=compensation)
    yield old_checkpoint(5, 0, b"")
    # three damaged ones: a section that ends early, one that ends late, a step without its batches
    yield old_checkpoint(1, 1, vector[:-8])
    yield old_checkpoint(1, 1, vector + bytes(8))
    yield old_checkpoint(3, 2, step[0] + vector, states=b"\2\0\0\0", images=20)


def sections_of(file):
    """Returns {name: content} of the sections of a checkpoint file."""
    n, = struct.unpack_from("<I", file, 12)
    table = [struct.unpack_from("<16sQQ", file, 24 + 40 * i) for i in range(n)]
    return {name.rstrip(b"\0").decode(): file[at:at + size] for name, at, size in table}


def shrunk(file, n_params):
    """Returns a checkpoint of 0.2.0 with only the first `n_params` weights, and with
    --replay-window 64, so that its core is small. Its optimizer has one vector of the size of the
    weights."""
    sections = sections_of(file)
    count = struct.pack("<Q", len(sections["weights"]) // 4)
    for name in "run", "live":
        assert sections[name].count(count) == 1
        sections[name] = sections[name].replace(count, struct.pack("<Q", n_params))
        value = sections[name].index(b"replay-window") + len("replay-window")
        sections[name] = b"".join([sections[name][:value], struct.pack("<d", 64),
                                   sections[name][value + 8:]])
    for name in "weights", "optim":
        sections[name] = sections[name][:4 * n_params]
    return checkpoint_file(sections)


def checkpoints_of_releases():
    """Yields small checkpoints that releases 0.1.0 and 0.2.0 wrote."""
    fixtures = ROOT / "tests/fixtures"
    for name in "wal-killed/ckpt-0000000000000002", "wal-stopped/ckpt-0000000000000003":
        yield b"\0" + (fixtures / "run-0.1.0" / name).read_bytes()
    file = (fixtures / "run-0.2.0/wal-killed/ckpt-0000000000000002").read_bytes()
    for how in b"\0", b"\2":
        yield how + shrunk(file, 8)


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


def wal_events():
    """Yields lists of events for the replay of a log (wal.c)."""
    pb = client.pb
    stamps = [pb.Stamp(run_hi=11, run_lo=22, term=5, worker=i, incarnation=1) for i in (1, 2)]

    def message(peer, body, tensors=(), last=b"\0"):
        frames = client.encode(body, tensors)
        return bytes([0, peer, 1, len(frames[0])]) + frames[0] + last

    def push(worker, seq, first, count):
        body = pb.Push(stamp=stamps[worker], seq=seq, base_version=0, base_term=5, images=10 * count,
                       loss=1, work=pb.Work(epoch=0, first=first, count=count), grant_first=first,
                       grant_count=count, pull=seq)
        # one tensor frame with 8 values: 0.5
        return message(worker + 1, body, [(0, np.full(8, 0.5, "<f4"))], bytes([1, 9 + 8]))

    hello = pb.Hello(protocol=client.PROTOCOL, oldest_protocol=client.PROTOCOL, role=1, name="carl",
                     device="cpu", data=pb.DataId(n_train=35, n_test=7, rows=2, cols=3, classes=10,
                                                  xxh3=99, channels=1))
    tick, late, durable, failed = b"\2\0\1\0", b"\2\0\xf9\0", b"\3\0\1\0", b"\4\0\1\0"
    save, mark, next_file, lost = b"\5\0\1", b"\x08", b"\x09", b"\x0a"
    leases = b"".join(message(i + 1, pb.Lease(stamp=stamps[i], request=1)) for i in (0, 1))
    pushes = push(0, 1, 0, 1) + push(0, 2, 1, 1) + push(1, 1, 2, 1) + push(1, 2, 3, 1)
    pairs = push(0, 1, 0, 2) + push(1, 1, 2, 2)
    result = message(1, pb.Result(stamp=stamps[0], eval_id=1, eval_count=3, correct=2, loss_sum=1))
    for mode in range(5):
        for work in (leases + pushes, leases + pairs):
            yield bytes([4, mode]) + durable + tick + work + tick + result
        yield bytes([4, mode]) + durable + leases + save + mark + durable + save + next_file + pushes
    yield b"\4\0" + failed + message(3, hello) + b"\1\1\1" + late + late
    yield b"\4\0" + durable + b"\7\1\1\0" + b"\6\0\1" + mark + durable + tick
    for body in (pb.Pull(stamp=stamps[0], request=1, which=1), pb.Heartbeat(stamp=stamps[0]),
                 pb.Bye(stamp=stamps[1]), pb.Status()):
        yield b"\4\0" + durable + message(1, body) + tick
    for verb in 1, 2:
        yield b"\4\0" + durable + message(1, pb.Admin(verb=verb)) + mark + durable + tick
    for how in b"\4", b"\x0c":
        yield how + b"\0" + tick + lost + tick


def exif(order, orientation):
    """Returns an EXIF block with an orientation; `order` is "<" or ">", as for struct."""
    entries = struct.pack(order + "HHII", 0x10f, 2, 1, ord("X")), struct.pack(
        order + "HHIHH", 0x112, 3, 1, orientation, 0)
    return b"Exif\0\0" + (b"II" if order == "<" else b"MM") + struct.pack(
        order + "HIH", 42, 8, len(entries)) + b"".join(entries)


def jpeg(width, height, *blocks):
    """Returns a grey JPEG of at most 8 x 8 pixels with some blocks in its marker APP1."""
    def marker(code, data):
        return struct.pack(">BBH", 0xff, code, 2 + len(data)) + data
    one_code = bytes([1] + 15 * [0] + [0])  # a Huffman table: the only code means 0
    return (b"\xff\xd8" + b"".join(marker(0xe1, block) for block in blocks) +
            marker(0xdb, b"\0" + bytes([1] * 64)) +
            marker(0xc0, struct.pack(">BHHBBBB", 8, height, width, 1, 1, 0x11, 0)) +
            marker(0xc4, b"\0" + one_code + b"\x10" + one_code) +
            marker(0xda, b"\1\1\0\0\x3f\0") + b"\x3f\xff\xd9")


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


def http():
    """Yields the byte that says how, and a request (http.c)."""
    token, version = b"0123456789abcdef", b" HTTP/1.1\r\nHost: localhost\r\n"
    form, escaped = b"token=" + token, b"token=%30" + token[1:] + b"++"
    for how in range(4):
        for path in b"/", b"/status", b"/events", b"/login", b"/livez", b"/none":
            yield bytes([how]) + b"GET " + path + version + b"\r\n"
        yield bytes([how]) + b"HEAD /healthz HTTP/1.0\r\n\r\n"
        yield bytes([how]) + b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"
        yield bytes([how]) + b"POST /" + version + b"Content-Length: 5\r\n\r\nhello"
        for header in (b"Authorization: Bearer ", b"Cookie: cnnps_token_\1="):
            for value in token, token[:-1] + b"x":
                yield bytes([how]) + b"GET /" + version + header + value + b"\r\n\r\n"
        for body in form, escaped, form + b"x", b"tok", b"token=%3":
            yield (bytes([how]) + b"POST /login" + version +
                   b"Content-Length: %d\r\n\r\n" % len(body) + body)


def zmtp():
    """Yields the byte that says how, and frames (zmtp.c)."""
    yield b"\0" + bytes(64)
    for message in wire():
        header = message[message.index(b"\xff") + 1:]
        yield b"\1" + bytes([0, len(header)]) + header
    first = struct.pack("<BQB", 0, 1, 0)
    part = bytes([1, len(first)]) + first + struct.pack(">BQ", 2, 256) + bytes(256)
    for how in 2, 6, 1:
        for frames in (b"", part, 2 * part, bytes([0, len(MARK)]) + MARK, b"\0\1\0",
                       bytes([0, len(GREETING)]) + GREETING, b"\1\1\0\0\4" + bytes(4)):
            yield bytes([how]) + frames
    hello = b"\5HELLO\1\0" + bytes(72 + 32 + 8 + 80)
    for how in 8, 9:
        yield bytes([how]) + bytes([4, len(hello)]) + hello
        yield bytes([how]) + b"\4\x1c\5READY\x0bSocket-Type\0\0\0\6DEALER"
    yield b"\x08\xff" + bytes(8) + b"\x7f\3\0CURVE" + bytes(47) + bytes([4, len(hello)]) + hello


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
        "weights": bytes(32)})] + [b"\0" + c for c in old_checkpoints()] + list(
            checkpoints_of_releases()),
    "wal": lambda: [b"\0" + wal_file(), b"\2" + struct.pack("<QQQQQ", 2, 0, 1050, 0, 0),
                    *wal_events()],
    "safetensors": safetensors,
    "keys": lambda: [b"\0# list\nworker " + b"a" * 40 + b" anna\nadmin " + b"b" * 40 + b"\n",
                     b"\1cnn-ps public key\n" + b"a" * 40 + b"\n",
                     b"\2cnn-ps secret key\n" + b"a" * 40 + b"\n"],
    "picture": lambda: [b"\0P5\n2 2\n255\n\1\2\3\4", b"\1P2\n# c\n2 2\n255\n1 2 3 4\n",
                        b"\0" + png(3, 2, 0, 1), b"\1" + png(3, 2, 2, 3), b"\2" + png(3, 2, 6, 4),
                        b"\0" + jpeg(3, 2), b"\1" + jpeg(3, 2, exif("<", 3)),
                        b"\0" + jpeg(3, 2, b"http://ns", exif(">", 6)),
                        b"\2" + jpeg(3, 2, exif(">", 9)), b"\1" + jpeg(3, 2, exif("<", 8)[:-4])],
    "options": lambda: [b"--check-config\n--model\nseed:32\n--mode\nsync\n--optimizer=adam\n",
                        b"--mode=sync\n--sync-workers=5\n--aggregate=trimmed:2\n",
                        b"--model=vector:8\n--epochs=0\n--lr=0.5\n--max-workers\n4\n",
                        b"--bind\ntcp://*:0\n--insecure\n--http=8080\n",
                        b"--bind=tcp://[::1]:5555\n--http\n10.0.0.1:80\n--http-token=t\n"],
    "http": http,
    "zmtp": zmtp,
}


def main():
    for target, make in SEEDS.items():
        folder = Path(sys.argv[1]) / target
        folder.mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(make()):
            (folder / f"seed-{i:02}").write_bytes(data)


if __name__ == "__main__":
    main()
