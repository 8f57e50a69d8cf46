"""Tests of WIRE.md, "Chunked push": a worker sends tensor frames before the PUSH that they belong
to."""
import numpy as np
import pytest

from client import Link, Worker, encode, pb
from conftest import SIZE

CHUNK = b"\0"  # the header frame of each CHUNK message
MAX_CHUNKS = 7
EPROTO = 12


def in_parts(worker, seq, gradient, parts, chunks=None):
    """Returns the messages of a push in `parts` slices: a chunk for each slice but the last, and
    then the PUSH."""
    cuts = np.array_split(gradient.astype(np.float32), parts)
    offsets = np.cumsum([0] + [len(cut) for cut in cuts])
    push = pb.Push(stamp=worker.stamp, seq=seq, chunks=parts - 1 if chunks is None else chunks)
    header, *frames = encode(push, list(zip(offsets.tolist(), cuts)))
    return [[CHUNK, frame] for frame in frames[:-1]] + [[header, frames[-1]]]


def send(worker, messages):
    for frames in messages:
        worker.bulk.send_frames(frames)


def next_one(worker):
    """Returns (seq, gradient) of the push that the honest worker will make next."""
    unit = np.zeros(SIZE, np.float32)
    unit[worker.seq % SIZE] = 1
    return worker.seq + 1, unit


@pytest.mark.parametrize("parts", (1, 2, MAX_CHUNKS + 1))
def test_chunked_push_are_part_of_their_push(honest, parts):
    seq, unit = next_one(honest)
    send(honest, in_parts(honest, seq, unit, parts))
    honest.seq = seq
    ack = honest.ack(seq)
    assert (ack.verdict, ack.duplicate) == (pb.VERDICT_OK, False)
    # goes_on() of the fixture checks that the weights contain the push exactly once
    assert honest.pull()[1] == seq


@pytest.mark.parametrize("lost", range(4))
def test_chunked_push_a_lost_part_loses_the_push(honest, lost):
    seq, unit = next_one(honest)
    messages = in_parts(honest, seq, unit, 4)
    send(honest, messages[:lost] + messages[lost + 1:])
    # the server sends no ACK, applies nothing, and drops the chunks
    assert honest.pull()[1] == seq - 1
    send(honest, messages)
    honest.seq = seq
    assert not honest.ack(seq).duplicate
    send(honest, messages)  # send the same push again, in parts
    assert honest.ack(seq).duplicate


def test_chunked_push_anything_in_between_makes_them_void(honest):
    seq, unit = next_one(honest)
    messages = in_parts(honest, seq, unit, 3)
    send(honest, messages[:2])
    honest.pull()
    send(honest, messages[2:])
    assert honest.pull()[1] == seq - 1


def test_chunked_push_of_another_push_do_not_pass(honest):
    """The server receives one chunk of another push, and then three chunks and the PUSH of a push
    that announces three chunks. When this PUSH arrives, the server has four chunks, one too many,
    and must not apply the push."""
    seq, unit = next_one(honest)
    old, new = in_parts(honest, seq, -unit, 4), in_parts(honest, seq, unit, 4)
    send(honest, old[:1] + new)
    assert honest.pull()[1] == seq - 1
    # this time the number of chunks is right, but some of them belong to another push
    send(honest, new[:1] + old[1:3] + new[3:])
    assert honest.pull()[1] == seq - 1


def refusal(link):
    name, body, _ = link.receive()
    assert name == "error"
    return body.code


@pytest.fixture
def link(server, honest):
    link = Link(server.endpoint)
    yield link
    link.close()


@pytest.mark.parametrize("too_much", ([4] * (MAX_CHUNKS + 1), [4 * SIZE, 4]),
                         ids=("frames", "values"))
def test_chunked_push_too_many_are_void(honest, too_much):
    for size in too_much:
        honest.bulk.send_frames([CHUNK, b"\0" * size])
    seq, unit = next_one(honest)
    send(honest, in_parts(honest, seq, unit, 4))
    honest.seq = seq
    assert honest.ack(seq).verdict == pb.VERDICT_OK


@pytest.mark.parametrize("frame", (b"", b"12345"), ids=len)
def test_chunked_push_of_a_bad_size(link, frame):
    link.send_frames([CHUNK, frame])
    assert refusal(link) == EPROTO


def test_chunked_push_and_no_push(server, honest):
    """A peer that repeatedly disconnects in the middle of a push does not make any other peer lose
    its push."""
    for _ in range(50):
        gone = Link(server.endpoint)
        gone.send_frames([CHUNK, b"\0" * 4 * SIZE])
        gone.send(pb.Status())
        gone.send_frames([CHUNK, b"\0" * 4 * SIZE])
        gone.expect("status")
        gone.close()
        seq, unit = next_one(honest)
        send(honest, in_parts(honest, seq, unit, 4))
        honest.seq = seq
        assert honest.ack(seq).verdict == pb.VERDICT_OK


def test_chunked_push_more_than_the_push_has(server, honest):
    other = Worker(server.endpoint, name="other")
    push = pb.Push(stamp=other.stamp, seq=1, chunks=2)
    send(other, [[CHUNK, b"1234"], [CHUNK, b"1234"], encode(push)])
    assert refusal(other.bulk) == EPROTO
    other.close()
