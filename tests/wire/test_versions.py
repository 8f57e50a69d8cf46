"""Programs of different protocol versions work together as WIRE.md, "Versions", says. The tests use
builds with other schemas:

`newer` has the next protocol version, with one more field in every message. `older` lacks two
fields of HELLO, and `lane_ring` of WELCOME. `six` has version 6, the version of release 0.2.0,
which has no codes of grants and decisions, shorter texts, and no command that ends a quarantine.
`needy` requires a feature that no build has. The script tests/wire/variant makes these builds.
"""
import json
import re
import time

import pytest

from conftest import LEDGER

from client import PROTOCOL, Link, Worker, hello, pb
from support.build import PATIENCE, command
from support.programs import Process, until

from test_many_workers import HELLOS_PER_SECOND

EVERSION = 13
EPROTO = 12
TRAIN = ("--model", "fc:10", "--epochs", 1, "--batch-size", 50)
NOT_SUPPORTED = "feature .*thought-reading.* is required and not supported here"
PAIRS = [("cnn-ps", "variants/newer/cnn-worker"), ("variants/newer/cnn-ps", "cnn-worker"),
         ("cnn-ps", "variants/older/cnn-worker"), ("variants/older/cnn-ps", "cnn-worker"),
         ("variants/newer/cnn-ps", "variants/older/cnn-worker"),
         ("variants/older/cnn-ps", "variants/newer/cnn-worker"),
         ("variants/six/cnn-ps", "variants/six/cnn-worker"),
         ("variants/six/cnn-ps", "cnn-worker"), ("cnn-ps", "variants/six/cnn-worker")]
LOGGED = ("--durability", "always")
PIPELINED = ("--prefetch", "--n-push", 3, "--n-fetch", 3)
SYNC = ("--mode", "sync")
RUNS = [(*pair, LOGGED) for pair in PAIRS] + [
    ("cnn-ps", "variants/six/cnn-worker", options) for options in [(), PIPELINED, SYNC]]


@pytest.fixture
def link(server, honest):
    link = Link(server.endpoint)
    yield link
    link.close()


def extended(body, *unknown):
    """Encode a message, and append fields that the schema of the message does not have."""
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


@pytest.mark.parametrize("server, worker, options", RUNS)
def test_versions_one_field_more_or_fewer_trains(programs, small, server, worker, options):
    """A run trains to its end, and neither side logs a warning."""
    ps = programs.server(*TRAIN, *options, "--min-workers", 2, program=server)
    fleet = [programs.worker(ps.endpoint, data=small, program=worker) for _ in range(2)]
    result = ps.result(60 * PATIENCE)
    assert result["images"] == 6000 and result["rejected"] == 0
    for process in fleet:
        assert process.wait(10 * PATIENCE) == 0, process.tail()
    for process in (ps, *fleet):
        assert not re.search("level=(warn|error)", "".join(process.lines)), process.tail()


@pytest.mark.parametrize("server, worker, rings", [
    ("cnn-ps", "cnn-worker", True), ("cnn-ps", "variants/older/cnn-worker", False),
    ("variants/older/cnn-ps", "cnn-worker", False)])
def test_versions_a_lane_needs_no_rings(programs, small, server, worker, rings):
    """A program that does not support the rings of a lane uses the lane without them."""
    # enough epochs for the test to see the lane before the run ends
    ps = programs.server("--model", "fc:10", "--epochs", 60, "--batch-size", 50, "--lane", "shm",
                         program=server)
    process = programs.worker(ps.endpoint, "--lane", "shm", data=small, program=worker)
    lanes = {}

    def watch():
        lanes.update(ps.status()["lanes"])
        return process.popen.poll() is not None or lanes["pushes"] > 40
    until(watch, 10 * PATIENCE, "pushes in a lane")
    assert lanes["open"] == 1 and lanes["pushes"] > 40
    assert (lanes["messages"] > 40) == rings and (lanes["messages"] == 0) != rings
    assert process.wait(10 * PATIENCE) == 0, process.tail()


def test_versions_unknown_fields_are_skipped(link, honest):
    for unknown in (b"\x98\x06\x01", field(500, b"text"), field(20, field(1, b"inner")) * 100):
        link.send_frames([extended(pb.Status(), unknown)])
        assert link.expect("status")[1].reply
        stamp = honest.stamp.SerializeToString() + unknown
        link.send_frames([field(3, field(1, stamp) + b"\x18\x01" + unknown)])
        assert len(link.receive()[2]) == honest.welcome.n_params


def test_versions_unknown_fields_within_the_budget(programs):
    """The server accepts a frame with one unknown field of 50,000 bytes, but refuses a frame with
    20,000 unknown fields, because decoding it would take too much memory."""
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


def many(epochs, checkpoint_ms):
    return ("--model", "fc:10", "--epochs", epochs, "--batch-size", 50, "--recovery-ms", 500,
            "--checkpoint-ms", checkpoint_ms)


def replaced(programs, ps, options, ready):
    """Kill the server when ready(w) is true for both workers w in its status. Returns a new server,
    of the build under test, in the directory of the killed one."""
    until(lambda: sum(ready(w) for w in ps.status()["workers"]) == 2, 20 * PATIENCE,
          "both workers push")
    ps.kill()
    return programs.restart(ps, *options)


def counts_once(ps, fleet, epochs):
    """The run trains to its end, every image counts once in each epoch, and the server excludes no
    worker. If the server had lost a durable push, the worker of this push would end with status 4.
    Returns the server's result."""
    result = ps.result(60 * PATIENCE)
    assert result["images_per_epoch"] == epochs * [6000]
    for worker in fleet:
        assert worker.wait(10 * PATIENCE) == 0, worker.tail()
    assert not re.search("excluded|quarantine", "".join(ps.lines)), ps.tail()
    return result


@pytest.mark.parametrize("epochs, options", [(40, ()), (40, PIPELINED), (20, SYNC), (20, LOGGED)],
                         ids=["replay", "pipelined", "sync", "logged"])
def test_versions_workers_of_version_6_survive_a_killed_server(programs, small, epochs, options):
    """The killed server had not yet saved some of its grants and decisions, and workers of version
    6 have no codes with which they could prove them. Without a write-ahead log, the next server
    therefore grants the batches again. With a write-ahead log, the next server has all grants and
    decisions."""
    options = *many(epochs, 60000), *options
    ps = programs.server(*options, "--min-workers", 2)
    fleet = [programs.worker(ps.endpoint, data=small, program="variants/six/cnn-worker")
             for _ in range(2)]
    unsaved = 0 if options[-2:] == LOGGED else 20
    ps = replaced(programs, ps, options, lambda w: w["last_seq"] > 20 and
                  w["last_seq"] - w["durable_seq"] >= unsaved)
    result = counts_once(ps, fleet, epochs)
    assert unsaved or result["rejected"] == 0


def test_versions_a_run_of_version_6_is_upgraded(programs, small):
    """A server of version 6 is killed, and a server of this build takes its place. A worker of
    version 6 and a worker of this build, both connected to the old server, train until the end."""
    options = many(40, 100)
    ps = programs.server(*options, "--min-workers", 2, program="variants/six/cnn-ps")
    fleet = [programs.worker(ps.endpoint, data=small, program=program)
             for program in ("variants/six/cnn-worker", "cnn-worker")]
    ps = replaced(programs, ps, options, lambda w: w["last_seq"] > 50)
    counts_once(ps, fleet, 40)


@pytest.mark.parametrize("feature, options", [
    ("validate", (*TRAIN, "--validate", 1000)),
    ("images", ("--model", "shift:2 fc:10", *TRAIN[2:]))], ids=["validate", "images"])
def test_versions_a_worker_of_version_6_lacks_a_feature_of_the_run(
        programs, small, feature, options):
    ps = programs.server(*options, directory=None)
    worker = programs.worker(ps.endpoint, data=small, program="variants/six/cnn-worker")
    assert worker.wait(20 * PATIENCE) == 2, worker.tail()
    assert worker.line(f"feature .*{feature}.* is required and not supported here")
    assert ps.status()["images"] == 0


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


@pytest.mark.parametrize("server, ctl", [
    ("cnn-ps", "variants/six/cnn-ctl"), ("variants/six/cnn-ps", "cnn-ctl"),
    ("cnn-ps", "variants/older/cnn-ctl"), ("variants/newer/cnn-ps", "cnn-ctl")])
def test_versions_cnn_ctl_shows_and_controls_a_server(programs, server, ctl):
    ps = programs.server("--model", "vector:20000", program=server)
    how = {"program": ctl}
    assert json.loads("\n".join(programs.ctl("--server", ps.endpoint, "status", **how).out))
    assert "vector:20000" in "\n".join(programs.ctl("--server", ps.endpoint, "top", "--once", **how).out)
    programs.ctl("--server", ps.endpoint, "log-level", "debug", **how)
    programs.ctl("--server", ps.endpoint, "checkpoint", **how)
    programs.ctl("--server", ps.endpoint, "drain", **how)
    assert ps.wait(10 * PATIENCE) == 0, ps.tail()


@pytest.fixture
def crowd(programs):
    """A server with more workers than one status text of version 6 can list."""
    ps = programs.server("--model", "vector:64", "--max-workers", 128, "--dead-ms", 600000)
    workers = []
    for i in range(120):
        workers.append(Worker(ps.endpoint, name=f"worker-{i:03d}-with-a-name-of-usual-length"))
        time.sleep(1 / HELLOS_PER_SECOND)
    yield ps
    for worker in workers:
        worker.close()


def test_versions_the_status_fits_a_client_of_version_6(programs, crowd):
    """A client of version 6 drops the text of a status that has more than 32,767 bytes. The server
    sends it no text above this limit, also not at the end of the run."""
    top = programs.add(Process("cnn-ctl", command("variants/six/cnn-ctl", "--server",
                                                  crowd.endpoint, "top", "--json")))
    ctl = programs.ctl("--server", crowd.endpoint, "status", program="variants/six/cnn-ctl")
    status = json.loads("\n".join(ctl.out))
    assert len(status["workers"]) + status["workers_left_out"] == 120
    link = Link(crowd.endpoint)
    for max_text, limit in ((0, 32767), (1, 32767), (36000, 36000), (2**32 - 1, 61439)):
        link.send(pb.Status(max_text=max_text))
        text = link.expect("status")[1].text
        assert len(text) <= limit
        assert (json.loads(text)["workers_left_out"] > 0) == (limit < 61439)
    link.close()
    until(lambda: top.out, 10 * PATIENCE, "top shows the status")
    programs.ctl("--server", crowd.endpoint, "drain", program="variants/six/cnn-ctl")
    assert top.wait(20 * PATIENCE) == 0, top.tail()
    assert json.loads(top.out[-1])["ending"] == "drained"


def test_versions_cnn_ctl_does_not_send_a_command_that_the_server_lacks(programs):
    ps = programs.server("--model", "vector:64", directory=None, program="variants/six/cnn-ps")
    ctl = programs.ctl("--server", ps.endpoint, "release", "bob", code=2)
    assert ctl.lines == ["cnn-ctl: the server has protocol 6, and `release` exists since protocol 7: "
                         "update the server"]
    assert not any("refused" in line for line in ps.lines)
