"""Tests of WIRE.md, "bfloat16": a worker that asks for bfloat16 sends gradients and receives weights
in two bytes per value."""
import re

import numpy as np
import pytest

from client import Keys, Link, Refused, Worker, checksum, from_bf16, hello, pb, to_bf16
from conftest import LEDGER, PLAIN, SIZE, ends

from test_chunked_push import CHUNK

BF16, F32 = pb.ENCODING_BF16, pb.ENCODING_F32
EPROTO = 12
BETWEEN = np.float32(1 + 2 ** -10)  # lies between the bfloat16 values 1 and 1 + 2^-7


@pytest.fixture
def worker(server):
    worker = Worker(server.endpoint, name="half", wire=BF16)
    yield worker
    worker.close()


def test_bf16_gradients_and_weights(server, worker):
    """Weights are rounded for the worker that asked for bfloat16, and for no other. The server
    keeps its own weights in float32."""
    plain = Worker(server.endpoint, name="plain")
    assert worker.welcome.wire == BF16 and plain.welcome.wire == F32
    assert plain.push(np.full(SIZE, BETWEEN, np.float32), 0).verdict == pb.VERDICT_OK
    before, _ = plain.pull()
    gradient = np.linspace(-3, 3, SIZE, dtype=np.float32)
    sent = from_bf16(to_bf16(gradient))
    assert (sent != gradient).any()
    assert worker.push(gradient, 0).verdict == pb.VERDICT_OK
    exact, _ = plain.pull()
    assert (exact == before - sent).all()
    weights, _ = worker.pull()
    assert [s.encoding for s in worker.params.slices] == [BF16]
    assert (weights == from_bf16(to_bf16(exact))).all()
    ack, weights, _ = worker.push_pull(-gradient, 0)
    assert ack.verdict == pb.VERDICT_OK and [s.encoding for s in worker.params.slices] == [BF16]
    exact, _ = plain.pull()
    assert (weights == from_bf16(to_bf16(exact))).all()
    plain.close()


def test_bf16_ends_with_a_hello_without_it(worker):
    """The newest HELLO of a connection determines the encoding of the weights on this connection."""
    worker.wire = pb.ENCODING_NONE
    worker.hello()
    worker.pull()
    assert [s.encoding for s in worker.params.slices] == [F32]
    worker.wire = BF16
    worker.reconnect()
    worker.pull()
    assert [s.encoding for s in worker.params.slices] == [BF16]


def test_bf16_status_names_the_format(server, worker, honest):
    formats = {w["name"]: w["wire"] for w in server.status()["workers"]}
    assert formats == {"half": "bf16", "honest": "fp32"}


def test_bf16_in_chunks(server, worker):
    """The slices of one push may have different encodings, and the worker may send each slice as a
    chunk."""
    values = np.arange(SIZE, dtype=np.float32)
    push, frames = pb.Push(stamp=worker.stamp, seq=1, chunks=2), []
    for offset, count, encoding in ((0, 20, BF16), (20, 4, F32), (24, SIZE - 24, BF16)):
        part = values[offset:offset + count]
        frames.append(to_bf16(part).tobytes() if encoding == BF16 else part.tobytes())
        push.slices.add(offset=offset, count=count, encoding=encoding, xxh3=checksum(frames[-1]))
    worker.bulk.send_frames([CHUNK, frames[0]])
    worker.bulk.send_frames([CHUNK, frames[1]])
    worker.bulk.send_frames([pb.Message(push=push).SerializeToString(), frames[2]])
    worker.seq = 1
    assert worker.ack(1).verdict == pb.VERDICT_OK
    link = Link(server.endpoint)
    link.send(pb.Pull(request=1, which=pb.WEIGHTS_CURRENT))
    assert (link.expect("params")[2] == -values).all()
    link.close()


@pytest.mark.parametrize("wrong", ["checksum", "size", "encoding"])
def test_bf16_malformed_is_refused(worker, wrong):
    data = to_bf16(np.ones(SIZE)).tobytes()
    push = pb.Push(stamp=worker.stamp, seq=1)
    push.slices.add(offset=0, count=SIZE, encoding=3 if wrong == "encoding" else BF16,
                    xxh3=checksum(data) + (wrong == "checksum"))
    if wrong == "size":
        data += bytes(2)
    worker.bulk.send_frames([pb.Message(push=push).SerializeToString(), data])
    with pytest.raises(Refused) as refused:
        worker.ack(1)
    assert refused.value.code == EPROTO
    # accepted as seq 1, because the refused push has not used this seq up
    assert worker.push(np.ones(SIZE, np.float32), 0).verdict == pb.VERDICT_OK


@pytest.mark.parametrize("value, reject", [(np.nan, pb.REJECT_NONFINITE),
                                           (np.inf, pb.REJECT_NONFINITE),
                                           (2e15, pb.REJECT_NONFINITE)])
def test_bf16_wild_values_are_rejected(worker, value, reject):
    gradient = np.ones(SIZE, np.float32)
    gradient[7] = value
    ack = worker.push(gradient, 0)
    assert (ack.verdict, ack.reject) == (pb.VERDICT_REJECTED, reject)


def test_bf16_wild_values_in_a_chunk_are_rejected(worker):
    """When a chunk arrives, the server does not have the encoding of its values, which comes with
    the PUSH. If the server read two bfloat16 values as one float32, the first value would be the
    low half of this float32, that is, a part of the mantissa, so the server would not detect that
    the first value is infinite."""
    data = to_bf16(np.ones(SIZE))
    data[2] = 0x7f80  # infinity
    push = pb.Push(stamp=worker.stamp, seq=1, chunks=1)
    frames = [data[:32].tobytes(), data[32:].tobytes()]
    for offset, frame in zip((0, 32), frames):
        push.slices.add(offset=offset, count=32, encoding=BF16, xxh3=checksum(frame))
    worker.bulk.send_frames([CHUNK, frames[0]])
    worker.bulk.send_frames([pb.Message(push=push).SerializeToString(), frames[1]])
    worker.seq = 1
    assert worker.ack(1).reject == pb.REJECT_NONFINITE


@pytest.mark.parametrize("encrypted", [False, True])
def test_bf16_survives_a_kill_of_the_server(programs, keys, encrypted):
    """The write-ahead log has the bytes of the pushes as the server received them. After kill -9,
    the next server reads these bytes, and a worker whose ACK was lost sends the same bytes again.
    With keys, the server also stores the key of the sender with each HELLO in its write-ahead log,
    which the replay must read."""
    own = Keys(keys / "worker.key", keys / "server.pub") if encrypted else None
    options = (*LEDGER, "--durability", "always", "--checkpoint-ms", 60000,
               *(("--key", keys / "server.key") if encrypted else ()))
    server = programs.server(*options)
    worker = Worker(server.endpoint, name="half", keys=own, wire=BF16)
    for k in range(5):
        worker.push(np.full(SIZE, BETWEEN * k, np.float32), 0)
    expected = -sum(from_bf16(to_bf16(np.float32(BETWEEN * k))) for k in range(5))
    worker.push(np.full(SIZE, BETWEEN, np.float32), 0, wait=False)
    server.kill()
    server = programs.restart(server, *options)
    worker.reconnect()
    assert worker.welcome.wire == BF16
    link = Link(server.endpoint, worker.keys)
    link.send(pb.Pull(stamp=worker.stamp, request=1, which=pb.WEIGHTS_CURRENT))
    assert (link.expect("params")[2] == np.float32(expected - 1)).all()
    link.close()
    worker.close()


def test_bf16_is_not_accepted_where_gradients_must_be_exact(programs, small):
    """L-BFGS compares gradients of neighbouring points, so its line search needs exact values.
    WELCOME therefore gives float32 as the encoding, and the server refuses bfloat16. A cnn-worker
    with --wire bf16 logs one line and exits."""
    server = programs.server("--model", "fc:10", "--mode", "sandblaster", "--optimizer", "lbfgs",
                             "--epochs", 1, directory=None)
    link = Link(server.endpoint)
    data = pb.DataId(n_train=100, n_test=10, rows=28, cols=28, classes=10, xxh3=1)
    link.send(hello(wire=BF16, requires="bf16", data=data))
    welcome = link.expect("welcome")[1]
    assert welcome.wire == F32
    push = pb.Push(stamp=welcome.stamp, seq=1)
    link.send(push, [(0, np.ones(10, np.float32))], BF16)
    assert "exact gradients" in link.expect("error")[1].text
    link.close()
    worker = programs.worker(server.endpoint, "--wire", "bf16", data=small)
    assert worker.wait(30) == 2, worker.tail()
    assert sum("--wire fp32" in line for line in worker.lines) == 1, worker.tail()


def test_bf16_is_a_feature_that_an_older_server_refuses_by_name(programs, small):
    server = programs.server("--model", "fc:10", "--epochs", 1, directory=None,
                             program="variants/six/cnn-ps")
    worker = programs.worker(server.endpoint, "--wire", "bf16", data=small)
    assert worker.wait(30) == 2, worker.tail()
    named = [line for line in worker.lines if re.search('feature .*bf16.* is required', line)]
    assert len(named) == 1, worker.tail()


def test_bf16_needs_the_connection(programs):
    code, worker = ends(programs, "cnn-worker", "--wire", "bf16", "--lane", "shm")
    assert code == 2 and any("--wire bf16" in line for line in worker.lines), worker.tail()


def test_bf16_evaluation_has_exact_weights(programs):
    """The weights of an evaluation are those of the checkpoint, to the last bit."""
    server = programs.server("--model", "vector:8", *PLAIN, "--epochs", 1, "--batch-size", 10,
                             "--eval-checks", 0, directory=None)
    data = pb.DataId(n_train=10, n_test=4, rows=0, cols=0, classes=0, xxh3=1)
    worker = Worker(server.endpoint, data=data, wire=BF16)
    grant = worker.lease()
    worker.push(np.full(8, BETWEEN, np.float32), 0, work=grant.work, images=10)
    worker.wire = F32  # the next push is in float32, which a worker may send at any time
    assert worker.lease().kind == pb.GRANT_EVAL
    weights, _ = worker.pull(pb.WEIGHTS_EVAL)
    assert [s.encoding for s in worker.params.slices] == [F32]
    assert (weights == -1).all()
    worker.close()
