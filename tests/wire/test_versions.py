"""Programs of different protocol versions work together as WIRE.md, "Versions", says. The tests use
builds with other schemas:

`newer` has the next protocol version, with one more field in every message. `older` lacks two
fields of HELLO. `six` has version 6, the version of release 0.2.0, which has no codes of grants and
decisions. `needy` requires a feature that no build has. The script tests/wire/variant makes these
builds.
"""
import re

import pytest

from conftest import LEDGER

from client import PROTOCOL, Link, Refused, hello, pb
from support.build import PATIENCE
from support.programs import until

EVERSION = 13
EPROTO = 12
TRAIN = ("--model", "fc:10", "--epochs", 1, "--batch-size", 50)
NO_CODES = "feature .*codes.* is required and not supported by this worker: update it"
NOT_SUPPORTED = "feature .*thought-reading.* is required and not supported here"
PAIRS = [("cnn-ps", "variants/newer/cnn-worker"), ("variants/newer/cnn-ps", "cnn-worker"),
         ("cnn-ps", "variants/older/cnn-worker"), ("variants/older/cnn-ps", "cnn-worker"),
         ("variants/newer/cnn-ps", "variants/older/cnn-worker"),
         ("variants/older/cnn-ps", "variants/newer/cnn-worker"),
         ("variants/six/cnn-ps", "variants/six/cnn-worker"),
         ("variants/six/cnn-ps", "cnn-worker")]


@pytest.fixture
def link(server, honest):
    link = Link(server.endpoint)
    yield link
    link.close()


def extended(body, *unknown):
    """Encode a message, and append fields that its schema does not have."""
    name = next(f for f in pb.Message.DESCRIPTOR.fields if f.message_type is body.DESCRIPTOR)
    inner = body.SerializeToString() + b"".join(unknown)
    return field(name.number, inner)


def varint(n):
    head = b""
    while n > 127:
        head += bytes([n & 127 | 128])
        n >>= 7
    return head + bytes([n])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


@pytest.mark.parametrize("server, worker", PAIRS)
def test_versions_one_field_more_or_fewer_trains(programs, small, server, worker):
    """A run trains to its end, and neither side logs a warning."""
    ps = programs.server(*TRAIN, "--durability", "always", program=server)
    fleet = [programs.worker(ps.endpoint, data=small, program=worker) for _ in range(2)]
    result = ps.result(60 * PATIENCE)
    assert result["images"] == 6000 and result["rejected"] == 0
    for process in fleet:
        assert process.wait(10 * PATIENCE) == 0, process.tail()
    for process in (ps, *fleet):
        assert not re.search("level=(warn|error)", "".join(process.lines)), process.tail()


def test_versions_unknown_fields_are_skipped(link, honest):
    for unknown in (b"\x98\x06\x01", field(500, b"text"), field(20, field(1, b"inner")) * 100):
        link.send_frames([extended(pb.Status(), unknown)])
        assert link.expect("status")[1].reply
        stamp = honest.stamp.SerializeToString() + unknown
        link.send_frames([field(3, field(1, stamp) + b"\x18\x01" + unknown)])
        assert len(link.receive()[2]) == honest.welcome.n_params


def test_versions_unknown_fields_within_the_budget(programs):
    """The server accepts a frame with one unknown field of 50,000 bytes, but refuses a frame with
    so many unknown fields that decoding it would take too much memory."""
    link = Link(programs.server("--model", "vector:20000", directory=None).endpoint)
    link.send_frames([extended(pb.Status(), field(99, bytes(50000)))])
    assert link.expect("status")[1].reply
    link.send_frames([extended(pb.Status(), b"\x98\x06\x01" * 20000)])
    assert link.expect("error")[1].code == EPROTO
    link.close()


@pytest.mark.parametrize("versions", [
    {"protocol": PROTOCOL - 2}, {"protocol": PROTOCOL + 1}, {"protocol": 0},
    {"protocol": PROTOCOL + 2, "oldest_protocol": PROTOCOL + 1}], ids=str)
def test_versions_none_in_common(link, versions):
    link.send_frames([extended(hello(role=9, **versions), b"\x98\x06\x01")])
    _, error, _ = link.expect("error")
    assert error.code == EVERSION
    assert f"protocol {versions['protocol']} is not supported" in error.text


@pytest.mark.parametrize("program, speaks", [("cnn-ps", PROTOCOL),
                                             ("variants/newer/cnn-ps", PROTOCOL + 1)])
def test_versions_one_apart(programs, program, speaks):
    link = Link(programs.server(*LEDGER, directory=None, program=program).endpoint)
    for newest in (speaks - 1, speaks, speaks + 1):
        link.send(hello(role=pb.ROLE_OBSERVER, protocol=newest, oldest_protocol=newest - 1))
        _, welcome, _ = link.expect("welcome")
        assert (welcome.protocol, welcome.oldest_protocol) == (speaks, speaks - 1)
    link.close()


def test_versions_a_worker_of_version_6_is_refused(link, honest):
    """The server refuses a worker of version 6, whether the worker is new or resumes a session, and
    whatever older versions it supports."""
    for fields in ({}, {"resume": honest.stamp}, {"oldest_protocol": 5}):
        link.send(hello(protocol=6, **fields))
        with pytest.raises(Refused, match=NO_CODES) as refused:
            link.expect("welcome")
        assert refused.value.code == EVERSION


def test_versions_a_run_of_version_6_is_upgraded(programs, small):
    """A server of version 6 is killed, and a server of this build takes its place. The worker of
    version 6 exits, because it cannot prove the decisions on its pushes and would lose the pushes
    one by one. A worker of this build, which was connected to the old server, too, trains until the
    end."""
    many = ("--model", "fc:10", "--epochs", 40, "--batch-size", 50, "--checkpoint-ms", 100,
            "--recovery-ms", 500)
    ps = programs.server(*many, "--min-workers", 2, program="variants/six/cnn-ps")
    old, new = (programs.worker(ps.endpoint, data=small, program=program)
                for program in ("variants/six/cnn-worker", "cnn-worker"))
    until(lambda: sum(w["last_seq"] > 50 for w in ps.status()["workers"]) == 2, 20 * PATIENCE,
          "both workers push")
    ps.kill()
    ps = programs.restart(ps, *many)
    assert old.wait(20 * PATIENCE) == 2, old.tail()
    assert len([line for line in old.lines if re.search(NO_CODES, line)]) == 1, old.tail()
    result = ps.result(60 * PATIENCE)
    assert new.wait(10 * PATIENCE) == 0, new.tail()
    assert result["images_per_epoch"] == 40 * [6000]


def test_versions_a_required_feature_is_named(link, server):
    link.send(hello(requires="chunked-push thought-reading"))
    _, error, _ = link.expect("error")
    assert error.code == EVERSION and 'feature "thought-reading" is required' in error.text
    link.send(hello(requires="chunked-push"))
    assert link.expect("welcome")


def test_versions_a_worker_that_requires_too_much_ends(programs):
    ps = programs.server(*TRAIN, directory=None)
    worker = programs.worker(ps.endpoint, program="variants/needy/cnn-worker")
    assert worker.wait(20 * PATIENCE) == 2, worker.tail()
    assert worker.line(NOT_SUPPORTED)
    assert ps.running()


def test_versions_a_server_that_requires_too_much_is_left(programs):
    ps = programs.server(*TRAIN, directory=None, program="variants/needy/cnn-ps")
    worker = programs.worker(ps.endpoint)
    assert worker.wait(20 * PATIENCE) == 2, worker.tail()
    assert worker.line(NOT_SUPPORTED)
