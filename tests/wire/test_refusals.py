"""The server answers every error of a client with the reply that WIRE.md specifies, and no other
client is affected.

The worker of the fixture `honest` pushes before and after each test on its own connections.

The tests cover attacks A12, A13 and A15 of docs/faults.md.
"""
import re
import socket
import struct
import time

import numpy as np
import pytest

from client import PROTO, PROTOCOL, Link, Refused, Worker, checksum, encode, hello, pb
from conftest import LEDGER, PLAIN, SIZE, Honest

EPROTO, EVERSION, ETERM, EGAP, ESTATE = 12, 13, 14, 15, 16
EWRONGRUN, EFENCED, EFULL, EAGAIN, EUSAGE, EROLLEDBACK = 5, 6, 17, 21, 1, 18
EQUARANTINE = 24
MAX_SEQ = 2**62
ONE = np.eye(1, SIZE, dtype=np.float32)[0]


@pytest.fixture
def link(server, honest):
    """Yields a connection on which the test sends wrong messages."""
    link = Link(server.endpoint)
    yield link
    link.close()


@pytest.fixture
def other(server, honest):
    """A second worker. The test lets it push only gradients that the server rejects, so the weights
    contain only the pushes of the honest worker."""
    worker = Worker(server.endpoint, name="other")
    yield worker
    worker.close()


def refusal(link, *frames):
    """Send these frames. The server must answer with ERROR. Returns the body of the ERROR."""
    link.send_frames(list(frames))
    name, body, _ = link.receive()
    assert name == "error", f"{name} instead of error"
    return body


def code(link, body, tensors=()):
    return refusal(link, *encode(body, tensors)).code


# ---- Frames, Strict headers

GARBAGE = [b"", b"\x00", b"\xff" * 100, b"GET / HTTP/1.1", b"\x1a\x05", b"\x1a\x00\x1a\x00",
           b"\x7a\x00", b"\x1a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", bytes(range(256))]


@pytest.mark.parametrize("header", GARBAGE, ids=lambda h: h[:8].hex() or "empty")
def test_strict_headers_garbage(link, header):
    assert refusal(link, header).code == EPROTO


def test_strict_headers_random_bytes(link):
    random = np.random.default_rng(5)
    for _ in range(250):  # fewer than 272, after which the server closes the connection
        link.send_frames([random.bytes(random.integers(1, 300))])
    for _ in range(250):
        name, body, _ = link.receive()
        assert name == "error" and body.code in (EPROTO, EVERSION)


def test_strict_headers_zero_enum(link, honest):
    assert code(link, pb.Pull(stamp=honest.stamp, which=pb.WEIGHTS_NONE)) == EPROTO


def test_strict_headers_control_characters_in_a_name(link):
    for name in ("a\nb", "\x1b[2J", "x" * 64):
        assert code(link, hello(name=name)) == EPROTO


@pytest.fixture
def roomy(programs):
    """Yields a server and a connection. The model is so large that the server must receive frames
    larger than WIRE_MAX_HEADER."""
    server = programs.server("--model", "vector:20000", *PLAIN, directory=None)
    worker, link = Honest(server.endpoint), Link(server.endpoint)
    yield server, link
    worker.goes_on()
    worker.close()
    link.close()


def test_strict_headers_amplifying(roomy):
    """Headers of 64 KiB that need far more memory when they are decoded: fields of two bytes, empty
    slices, nested messages. The server must refuse these headers without using more memory."""
    server, _ = roomy
    before = rss(server)
    for _ in range(4):
        # a new connection, because the server closes a connection after 272 refusals
        link = Link(server.endpoint)
        for _ in range(75):
            for flood in (b"\x78\x00", b"\x3a\x00", b"\x0a\x00"):
                assert refusal(link, wrap(5, flood * 32000)).code == EPROTO
        link.close()
    assert rss(server) - before < 8 << 20


def test_limits_header_too_long(roomy):
    # with the tags and lengths of both messages, the first frame has 65,537 bytes, one more than a
    # header may have, and the second one has 65,536
    found = refusal(roomy[1], wrap(12, wrap(2, b"x" * 65529)))
    assert found.code == EPROTO and "a header over the limit" in found.text
    found = refusal(roomy[1], wrap(12, wrap(2, b"x" * 65528)))
    assert found.code == EPROTO and "text is too long" in found.text


def test_frames_too_many(link):
    assert refusal(link, *[b"x"] * 70).code == EPROTO


def test_frames_of_a_message_that_no_server_takes(link):
    assert code(link, pb.Ack(verdict=pb.VERDICT_OK)) == EPROTO
    assert code(link, pb.Grant(kind=pb.GRANT_EVAL, eval_count=1)) == EPROTO


def wrap(field, body):
    """Encode `body` as field `field` of an outer message."""
    size, n = b"", len(body)
    while n > 127:
        size += bytes([n & 127 | 128])
        n >>= 7
    return bytes([field << 3 | 2]) + size + bytes([n]) + body


def rss(server):
    with open(f"/proc/{server.popen.pid}/statm") as f:
        return int(f.read().split()[1]) * 4096


# ---- Frames: a refused slice uses up no seq

def push_of(worker, **slice_fields):
    data = ONE.tobytes()
    push = pb.Push(stamp=worker.stamp, seq=worker.seq + 1)
    push.slices.add(**{"offset": 0, "count": SIZE, "encoding": pb.ENCODING_F32,
                       "xxh3": checksum(data), **slice_fields})
    return pb.Message(push=push).SerializeToString(), data


BAD_SLICES = {
    "wrong checksum": {"xxh3": 1}, "unknown encoding": {"encoding": 0}, "empty": {"count": 0},
    "shorter than its frame": {"count": SIZE - 1}, "past the end": {"offset": 1},
    "far past the end": {"offset": 2**64 - 1}, "as long as all memory": {"count": 2**62},
}


@pytest.mark.parametrize("fields", BAD_SLICES.values(), ids=BAD_SLICES)
def test_frames_bad_slice(other, fields):
    assert refusal(other.bulk, *push_of(other, **fields)).code == EPROTO
    # The refused push has not used up its seq, so this push can use it.
    assert other.push(ONE * np.nan, 0).verdict == pb.VERDICT_REJECTED


def test_frames_without_their_tensor(other):
    header, _ = push_of(other)
    assert refusal(other.bulk, header).code == EPROTO


def test_frames_with_a_tensor_too_many(other):
    assert refusal(other.bulk, *push_of(other), b"1234").code == EPROTO


def test_frames_overlapping_slices(other):
    tensors = [(0, ONE[:10]), (9, ONE[:10])]
    assert code(other.bulk, pb.Push(stamp=other.stamp, seq=1), tensors) == EPROTO


# ---- HELLO, Session, Errors

def test_errors_role(link):
    assert code(link, hello(role=pb.ROLE_NONE)) == EPROTO


def test_errors_say_hello_first(link, honest):
    for worker in (2, 1000):
        stamp = pb.Stamp(run_hi=honest.stamp.run_hi, run_lo=honest.stamp.run_lo,
                         term=honest.stamp.term, worker=worker, incarnation=1)
        for body in (pb.Pull(stamp=stamp, which=1), pb.Push(stamp=stamp, seq=1),
                     pb.Lease(stamp=stamp, request=1), pb.Heartbeat(stamp=stamp),
                     pb.Bye(stamp=stamp)):
            assert code(link, body) == ESTATE


def changed(stamp, **fields):
    copy = pb.Stamp()
    copy.CopyFrom(stamp)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


def test_errors_wrong_run(link, honest):
    stamp = changed(honest.stamp, run_lo=honest.stamp.run_lo ^ 1)
    assert code(link, pb.Push(stamp=stamp, seq=honest.seq + 1), [(0, ONE)]) == EWRONGRUN
    assert code(link, pb.Pull(stamp=stamp, which=1)) == EWRONGRUN
    assert code(link, hello(resume=stamp, last_seq=1)) == EWRONGRUN


def test_errors_term(link, honest):
    for term in (0, honest.stamp.term + 1):
        stamp = changed(honest.stamp, term=term)
        assert code(link, pb.Push(stamp=stamp, seq=honest.seq + 1), [(0, ONE)]) == ETERM


def test_errors_fenced(server, honest):
    """When a second process with the same name joins, the server refuses the older process."""
    old = Worker(server.endpoint, name="twin")
    new = Worker(server.endpoint, name="twin")
    assert (new.stamp.worker, new.stamp.incarnation) == (old.stamp.worker,
                                                         old.stamp.incarnation + 1)
    for act in (lambda: old.push(ONE, 0), old.pull, old.hello):
        with pytest.raises(Refused) as e:
            act()
        assert e.value.code == EFENCED
    assert new.push(ONE + np.inf, 0).reject == pb.REJECT_NONFINITE
    old.close()
    new.close()


def test_errors_rolled_back(link, honest):
    """HELLO has a durable_seq that is greater than the newest seq of the server: the server
    was restored from an old checkpoint."""
    body = hello(resume=honest.stamp, last_seq=honest.seq + 5, durable_seq=honest.seq + 5)
    assert code(link, body) == EROLLEDBACK


def test_session_an_old_hello_is_ignored(link, honest):
    """The server ignores a HELLO whose last_seq is smaller than the newest seq that the server has
    decided. Such a HELLO was sent earlier, and the network has delayed it."""
    link.send(hello(resume=honest.stamp, last_seq=honest.seq - 1))
    # the first reply is the one to this message, so the server has not answered the HELLO
    assert code(link, pb.Pull(which=0)) == EPROTO


def test_errors_full(programs):
    server = programs.server(*LEDGER, "--max-workers", 1, directory=None)
    first = Honest(server.endpoint)
    with pytest.raises(Refused) as e:
        Worker(server.endpoint)
    assert e.value.code == EFULL
    first.goes_on()
    first.close()


def open_lane(worker):
    """Returns the Unix socket of the worker's lane. The lane is open until this socket is
    closed."""
    magic = re.search(r"LANE_MAGIC +0x([0-9a-f]+)", (PROTO / "lane.h").read_text())[1]
    w, lane = worker.welcome, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lane.connect(w.lane_path)
    lane.send(struct.pack("=QQQII", int(magic, 16), w.lane_secret_hi, w.lane_secret_lo,
                          w.stamp.worker, w.stamp.incarnation))
    assert lane.recv(4096)
    return lane


def test_errors_of_slots_lock_no_worker_out(programs):
    """A worker pushes from lane slots that do not exist, and gets an ERROR each time. Then it sends
    more HELLOs than the server answers per second. After that, one more HELLO must still get a
    WELCOME."""
    server = programs.server(*LEDGER)
    worker = Worker(server.endpoint)
    with open_lane(worker):
        for slot, count in ((1, 0), (1, SIZE + 1), (257, SIZE), (258, 1), (2**32 - 1, 2**28)):
            push = pb.Push(stamp=worker.stamp, seq=1, lane_slot=slot, lane_count=count)
            assert code(worker.bulk, push) == EPROTO
    again = hello(resume=worker.stamp)
    for _ in range(60):
        worker.bulk.send(again)
    answers = 0
    while worker.bulk.receive(0.2):
        answers += 1
    assert 40 <= answers < 60
    worker.reconnect()
    assert worker.welcome.last_seq == 0
    worker.close()


def test_errors_nothing_is_evaluated(link, other):
    assert code(link, pb.Pull(stamp=other.stamp, which=pb.WEIGHTS_EVAL)) == EAGAIN


def test_errors_no_checkpoint_directory(link):
    assert code(link, pb.Admin(verb=pb.ADMIN_CHECKPOINT)) == EUSAGE
    assert code(link, pb.Admin()) == EPROTO


def test_admin_level_goes_with_its_verb(server, link):
    for body in (pb.Admin(verb=pb.ADMIN_LOG_LEVEL), pb.Admin(verb=pb.ADMIN_LOG_LEVEL, level=5),
                 pb.Admin(verb=pb.ADMIN_DRAIN, level=pb.LOG_LEVEL_INFO), pb.Admin(verb=5),
                 pb.Admin(verb=pb.ADMIN_RELEASE), pb.Admin(verb=pb.ADMIN_RELEASE, worker="x" * 64),
                 pb.Admin(verb=pb.ADMIN_DRAIN, worker="x")):
        assert code(link, body) == EPROTO, body
    assert code(link, pb.Admin(verb=pb.ADMIN_RELEASE, worker="nobody")) == EUSAGE
    for level, name in ((pb.LOG_LEVEL_DEBUG, "debug"), (pb.LOG_LEVEL_INFO, "info")):
        link.send(pb.Admin(verb=pb.ADMIN_LOG_LEVEL, level=level))
        _, body, _ = link.expect("admin")
        assert (body.verb, body.reply, body.level) == (pb.ADMIN_LOG_LEVEL, True, level)
        server.line(f'msg="server log_level" from=\\w+ to={name}')


def test_status_needs_no_hello(link):
    link.send(pb.Status())
    name, body, _ = link.receive()
    assert name == "status" and body.reply and body.text.startswith("{")


def test_pull_of_an_observer_needs_no_hello(link, honest):
    link.send(pb.Pull(request=5, which=1))
    name, body, vector = link.receive()
    assert (name, body.request) == ("params", 5)
    assert vector.tolist() == honest.pull()[0].tolist()


# ---- Exactly once

def test_exactly_once_gap(other):
    push = pb.Push(stamp=other.stamp, seq=other.seq + 2)
    error = refusal(other.bulk, *encode(push, [(0, ONE)]))
    assert (error.code, error.expected) == (EGAP, other.seq + 1)
    push = pb.Push(stamp=other.stamp, seq=MAX_SEQ)
    assert refusal(other.bulk, *encode(push, [(0, ONE)])).code == EGAP
    push.seq = MAX_SEQ + 1
    assert refusal(other.bulk, *encode(push, [(0, ONE)])).code == EPROTO
    assert code(other.bulk, pb.Push(stamp=other.stamp)) == EPROTO


def test_exactly_once_duplicate_of_an_accepted_push(honest):
    first = honest.push_next()
    honest.kept[honest.seq] = [pb.Push(), [(0, ONE)], None]
    for _ in range(3):
        honest.push_next()
    seq = honest.seq - 3
    honest.kept[seq] = [pb.Push(), [(0, ONE * 7)], None]
    # send other bytes under a seq that the server has already decided: the server does not compare
    # the bytes, and answers with its first decision
    honest.send_push(seq)
    again = honest.ack(seq)
    assert (again.verdict, again.version, again.duplicate) == (pb.VERDICT_OK, first.version, True)


def test_exactly_once_a_push_that_asks_gets_the_weights_after_it(honest, other):
    unit = np.zeros(SIZE, np.float32)
    unit[honest.seq] = 1
    ack, weights, version = honest.push_pull(unit, 0)
    assert (ack.verdict, version, weights[honest.seq - 1]) == (pb.VERDICT_OK, honest.seq, -1)
    honest.kept[honest.seq] = [pb.Push(pull=77), [(0, unit)], None]
    # the same push again, as after a lost reply: the server answers, but does not apply it again
    honest.send_push(honest.seq)
    last, same = honest.wait("ack", "params")
    # the server sends the ACK and the weights in one message
    assert (last.ack.seq, last.ack.duplicate) == (honest.seq, True)
    assert (last.request, last.version, same.tolist()) == (77, version, weights.tolist())
    ack, still, same = other.push_pull(unit * np.nan, version)
    assert (ack.verdict, ack.reject) == (pb.VERDICT_REJECTED, pb.REJECT_NONFINITE)
    assert (still.tolist(), same) == (weights.tolist(), version)


def test_exactly_once_duplicate_of_a_rejected_push(other):
    first = other.push(ONE * np.nan, 0)
    assert (first.verdict, first.reject) == (pb.VERDICT_REJECTED, pb.REJECT_NONFINITE)
    other.kept[other.seq] = [pb.Push(), [(0, ONE)], None]
    other.send_push(other.seq)
    again = other.ack(other.seq)
    assert (again.verdict, again.reject, again.duplicate) == (first.verdict, first.reject, True)


def test_exactly_once_duplicate_too_old(honest):
    honest.push_next()
    old = honest.seq
    for _ in range(honest.welcome.replay_window):
        honest.push_next()
    honest.kept[old] = [pb.Push(), [(0, ONE)], None]
    honest.send_push(old)
    again = honest.ack(old)
    assert (again.verdict, again.reject, again.duplicate) == (
        pb.VERDICT_REJECTED, pb.REJECT_UNKNOWN, True)


def test_exactly_once_resume_on_a_new_connection(honest):
    stamp = honest.stamp.SerializeToString()
    honest.reconnect()
    assert honest.stamp.SerializeToString() == stamp


# ---- Rejections

@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.1e15, -3e38])
def test_rejections_nonfinite(other, value):
    for place in (0, SIZE - 1):
        gradient = np.zeros(SIZE, np.float32)
        gradient[place] = value
        ack = other.push(gradient, 0)
        assert (ack.verdict, ack.reject) == (pb.VERDICT_REJECTED, pb.REJECT_NONFINITE)


def test_rejections_loss(other):
    assert other.push(ONE, 0, loss=float("nan")).reject == pb.REJECT_NONFINITE


def test_rejections_exclude_a_worker_that_goes_on(server, honest, other):
    """Twenty losses that are NaN exclude the process of a worker. The other workers
    continue."""
    for i in range(20):
        assert other.push(ONE, 0, loss=float("nan")).reject == pb.REJECT_NONFINITE
        honest.goes_on()
    with pytest.raises(Refused) as refused:
        other.push(ONE, 0)
    assert refused.value.code == EQUARANTINE and "finite" in str(refused.value)
    honest.goes_on()
    status = server.status()
    assert status["counters"]["excluded"] >= 1 and status["state"] == "training"
    assert [w["state"] for w in status["workers"] if w["name"] == "other"] == ["excluded"]
    # another process joins with the name of the excluded process
    again = Worker(server.endpoint, name="other")
    assert again.push(ONE * np.nan, 0).reject == pb.REJECT_NONFINITE
    again.close()


def test_rejections_shape_work_without_a_data_set(other):
    ack = other.push(ONE, 0, work=pb.Work(epoch=0, first=0, count=1), images=100)
    assert ack.reject == pb.REJECT_SHAPE


def test_rejections_norm_and_stale(programs):
    server = programs.server("--model", f"vector:{SIZE}", "--optimizer", "sgd", "--lr", 1,
                        "--reject-norm", 2, "--max-staleness", 3, "--staleness-scaling",
                        "constant", directory=None)
    worker = Worker(server.endpoint)
    assert worker.push(ONE * 2.1, 0).reject == pb.REJECT_NORM
    for version in range(4):
        assert worker.push(ONE, 0).version == version + 1
    assert worker.push(ONE, 0).reject == pb.REJECT_STALE
    assert worker.push(ONE, 1).verdict == pb.VERDICT_OK
    worker.close()
