"""Attack A22 of docs/faults.md: a hostile server. A cnn-worker that is connected to such a server
sends few messages, does not compute forever, and needs no more memory than a batch of its own
images needs.

The hostile server changes the WELCOME of a real server and passes it on. The hostile server answers
all other messages itself.
"""
import contextlib
import json
import os
import pty
import select
import socket
import subprocess
import threading
import time
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import zmq

from client import CONTEXT, Link, decode, encode, pb
from support.build import command
from support.programs import Process, until

ETERM, EGAP, ESTATE = 14, 15, 16
SECONDS = 4
SYNC = 3  # the number of mode sync in WELCOME


class Hostile(threading.Thread):
    """A server that answers each message of a worker with the list that `answer(name, body)`
    returns. An element of the list is a message body, or a pair of a body and its tensors. The
    function `change` may change the WELCOME."""

    def __init__(self, endpoint, answer, change=lambda welcome: None):
        super().__init__(daemon=True)
        self.real = Link(endpoint)
        self.socket = CONTEXT.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.endpoint = "tcp://127.0.0.1:%d" % self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.answer, self.change = answer, change
        self.welcome, self.received, self.over = None, [], False
        self.start()

    def on_hello(self, frames):
        if not self.welcome:
            self.real.send_frames(frames)
            self.welcome = self.real.expect("welcome")[1]
            self.welcome.lane_path = ""
            self.change(self.welcome)
        return [self.welcome]

    def run(self):
        while not self.over:
            if not self.socket.poll(100):
                continue
            peer, *frames = self.socket.recv_multipart()
            name, body, _ = decode(frames)
            self.received.append(name)
            said = self.on_hello(frames) if name == "hello" else self.answer(name, body)
            for reply in said:
                body, tensors = reply if isinstance(reply, tuple) else (reply, ())
                self.socket.send_multipart([peer, *encode(body, tensors)])

    def close(self):
        self.over = True
        self.join()
        self.socket.close()
        self.real.close()


@pytest.fixture
def hostile(programs):
    servers = []

    def start(answer, change=lambda welcome: None, model="seed:4"):
        real = programs.server("--model", model, "--epochs", 1, directory=None)
        servers.append(Hostile(real.endpoint, answer, change))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def cpu_seconds(process):
    fields = Path(f"/proc/{process.popen.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def peak_mib(process):
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@pytest.mark.parametrize("code", [ETERM, EGAP, ESTATE])
def test_errors_for_ever_get_few_messages(hostile, programs, small, code):
    """A worker answers each of these errors with HELLO. If the server always sends such an error,
    the worker must send only a few HELLOs."""
    server = hostile(lambda name, body: [pb.Error(code=code, text="again")])
    worker = programs.worker(server.endpoint, data=small)
    # the first answer to HELLO comes from a real server, which may be slow
    until(lambda: server.received.count("hello") > 1, 30, "the second HELLO")
    first = len(server.received)
    time.sleep(SECONDS)
    assert worker.running()
    rate = (len(server.received) - first) / SECONDS
    assert 1 < rate < 200, server.received[-20:]


def grants(name, body):
    """The replies of a server that grants every lease and answers every pull, but acknowledges
    nothing."""
    if name == "lease":
        return [pb.Grant(request=body.request, kind=pb.GRANT_TRAIN, version=1,
                         work=pb.Work(epoch=0, first=0, count=1))]
    if name == "pull":
        return [(pb.Params(request=body.request, version=1, which=body.which),
                 [(0, np.zeros(grants.n_params, np.float32))])]
    return []


def test_a_server_that_always_asks_for_pictures_gets_few(hostile, programs, small):
    """After each push and each STATUS, the hostile server asks for pictures, as if a browser had
    opened its page. The worker must send them only a few times."""
    def change(welcome):
        grants.n_params = welcome.n_params

    def answer(name, body):
        said = grants(name, body)
        if name == "push":
            said = [pb.Ack(seq=body.seq, verdict=1, version=1, durable_seq=body.seq,
                           term=body.stamp.term)]
        return said + [pb.Status(text="show")] * (name in ("push", "status", "pull"))

    server = hostile(answer, change)
    worker = programs.worker(server.endpoint, data=small)
    while "status" not in server.received:
        assert worker.running(), worker.tail()
        time.sleep(0.01)
    first = server.received.count("status")
    time.sleep(SECONDS)
    assert worker.running(), worker.tail()
    assert server.received.count("status") - first <= 2 * SECONDS


def test_a_server_that_sends_garbage_loses_its_connections(hostile, programs, small):
    """The server answers each message with weights that nobody asked for and nobody can decode. The
    worker reports them about once per second, and dials again after ever longer pauses."""
    def answer(name, body):
        weights = pb.Params(request=999999, version=1, which=1)
        return [(weights, [(0, np.zeros(3, np.float32))])] * 20

    server = hostile(answer)
    worker = programs.worker(server.endpoint, data=small)
    worker.line("net flood.*pause_ms=2000", 30)
    lines, hellos = len(worker.lines), server.received.count("hello")
    time.sleep(SECONDS)
    assert worker.running()
    assert len(worker.lines) - lines <= 4 * SECONDS, worker.tail()
    assert 1 <= server.received.count("hello") - hellos <= SECONDS, server.received[-20:]


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"


def test_a_server_that_always_hangs_up_does_not_fill_the_log(programs, small):
    """The hostile server closes each connection after the handshake. The worker connects 20 times
    at once, and then about twice per second."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def hang_up(connection):
            connection.settimeout(0.2)
            connection.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
            got = more = b"."
            while more and b"READY" not in got:
                more = connection.recv(4096)
                got += more

        def serve():
            while not over.is_set():
                with contextlib.suppress(OSError), listener.accept()[0] as connection:
                    hang_up(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        worker = programs.worker(f"tcp://127.0.0.1:{listener.getsockname()[1]}", data=small)
        worker.line("connection_lost", 30)
        time.sleep(2 * SECONDS)
        assert worker.running()
        lines = [line for line in worker.lines if "connect" in line]
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(lines) <= 2 * (20 + 4 * SECONDS + 4), worker.tail()


def test_a_server_that_grants_only_steps_that_are_over_gets_few(hostile, programs, small):
    """Each grant is for a version of the weights that the worker never gets. A worker in mode sync
    pulls weights for each grant, and computes nothing because the version is another one. It then
    requests another lease, but only at a limited rate."""
    def change(welcome):
        welcome.mode = SYNC
        grants.n_params = welcome.n_params

    def answer(name, body):
        said = grants(name, body)
        if name == "lease":
            said[0].exact, said[0].version = True, 2**63
        return said

    server = hostile(answer, change)
    worker = programs.worker(server.endpoint, data=small)
    until(lambda: server.received.count("lease") > 20, 30, "leases")
    first = len(server.received)
    time.sleep(SECONDS)
    assert worker.running(), worker.tail()
    rate = (len(server.received) - first) / SECONDS
    assert 1 < rate < 100, server.received[-20:]


def test_a_server_that_grants_only_small_evaluations_gets_few(hostile, programs, small):
    """The answer to each LEASE is a grant to evaluate one image. The worker may request 64 leases
    at once, and then 500 per second. For each grant the worker pulls weights and sends a result."""
    def change(welcome):
        grants.n_params = welcome.n_params

    def answer(name, body):
        said = grants(name, body)
        if name == "lease":
            said = [pb.Grant(request=body.request, kind=pb.GRANT_EVAL, version=1, eval_first=0,
                             eval_count=1)]
        return said

    server = hostile(answer, change, model="fc:10")
    worker = programs.worker(server.endpoint, data=small)
    until(lambda: server.received.count("result") > 80, 30, "results")
    first = len(server.received)
    time.sleep(SECONDS)
    assert worker.running(), worker.tail()
    rate = (len(server.received) - first) / SECONDS
    assert 1 < rate < 1700, server.received[-20:]


def trains_fast(welcome):
    """Changes a WELCOME so that the worker computes and pushes as fast as possible: batches of one
    image, a push for each batch, and no wait for weights or acknowledgements."""
    welcome.batch = welcome.n_push = welcome.heartbeat_ms = 1
    welcome.n_fetch = 2**20
    welcome.push_window = welcome.replay_window = 1024
    grants.n_params = welcome.n_params


def ack(push, durable):
    return pb.Ack(seq=push.seq, verdict=1, version=1, durable_seq=durable, term=push.stamp.term)


def test_a_server_gets_no_more_pushes_than_granted_batches(hostile, programs, small):
    """The server grants 100 batches for each LEASE, in three equal messages, and acknowledges each
    push at once. The number of pushes has no other limit than the speed of the computation, but
    each push needs a batch of a grant that the worker has requested. All other messages are few."""
    at_most = [0]  # the number of batches in the answers to requested leases
    pushed = []    # (pushes so far, batches granted so far) at each push

    def answer(name, body):
        said = grants(name, body)
        if name == "lease":
            said[0].work.count = 100
            at_most[0] += 100
            said *= 3
        if name == "push":
            pushed.append((len(pushed) + body.work.count, at_most[0]))
            said = [ack(body, body.seq)]
        return said

    server = hostile(answer, trains_fast, model="pool:14 fc:10")
    worker = programs.worker(server.endpoint, data=small)
    until(lambda: server.received.count("lease") > 2, 30, "leases")
    first = len(server.received)
    time.sleep(SECONDS)
    received = Counter(server.received[first:])
    assert worker.running(), worker.tail()
    assert len(pushed) > 200
    assert all(pushes <= granted for pushes, granted in pushed)
    assert received["lease"] <= received["push"] / 100 + 2, received
    assert received["pull"] <= received["lease"] + 2, received
    others = sum(received.values()) - received["push"] - received["lease"] - received["pull"]
    assert others < 50 * SECONDS, received


def test_a_server_that_always_loses_the_pushes_gets_few(hostile, programs, small):
    """The server acknowledges each push. When the worker retains 1000 pushes, the server has it
    send HELLO again and again, and answers as if it had lost all pushes."""
    newest = [0]

    def change(welcome):
        trains_fast(welcome)
        welcome.last_seq = welcome.durable_seq = 0

    def answer(name, body):
        said = grants(name, body)
        if name == "lease":
            said[0].work.count = 100
        if name == "push":
            newest[0] = max(newest[0], body.seq)
            said = [ack(body, 0)]
            said += [pb.Error(code=ESTATE, text="again")] * (body.seq == newest[0] >= 1000)
        return said

    server = hostile(answer, change, model="pool:14 fc:10")
    worker = programs.worker(server.endpoint, data=small)
    until(lambda: newest[0] >= 1000, 30, "pushes")
    time.sleep(1)  # a burst of repeated pushes may follow the first HELLO
    first = server.received.count("push")
    time.sleep(SECONDS)
    assert worker.running(), worker.tail()
    assert 0 < server.received.count("push") - first < 1100 * SECONDS + 1024


@pytest.mark.parametrize("last_seq", [0, 2**62])
def test_a_server_that_acknowledges_nothing_stops_the_computing(hostile, programs, small, last_seq):
    """A worker retains each push until the server has acknowledged it. When the worker has no room
    for another push, it computes nothing more until an ACK arrives."""
    def change(welcome):
        welcome.last_seq = welcome.durable_seq = last_seq
        grants.n_params = welcome.n_params

    server = hostile(grants, change)
    worker = programs.worker(server.endpoint, data=small)
    while "push" not in server.received:
        assert worker.running(), worker.tail()
        time.sleep(0.01)
    time.sleep(2)
    busy = cpu_seconds(worker)
    time.sleep(SECONDS)
    assert worker.running()
    assert cpu_seconds(worker) - busy < 0.1 * SECONDS
    assert len(server.received) < 1000


def test_a_huge_batch_takes_no_more_memory_than_the_own_images(hostile, programs, small):
    peaks = []
    # batch sizes; 6000: all images of the worker; 2^24: the maximum in WIRE.md
    for batch in (6000, 2**24):
        def change(welcome):
            welcome.batch = batch
            grants.n_params = welcome.n_params

        server = hostile(grants, change, model="fc:10")
        worker = programs.worker(server.endpoint, data=small)
        while "push" not in server.received:
            assert worker.running(), worker.tail()
            time.sleep(0.01)
        time.sleep(1)
        peaks.append(peak_mib(worker))
        worker.kill()
    assert peaks[1] < 1.1 * peaks[0] + 10, peaks


def test_a_model_with_huge_activations_is_refused(hostile, programs, small):
    def change(welcome):
        grants.n_params = welcome.n_params

    server = hostile(grants, change, model="conv:20000:1 tanh tanh tanh pool:2 pool:2 pool:7 fc:10")
    worker = programs.worker(server.endpoint, "--memory-mb", 400, data=small)
    peak = 0
    while worker.running() and peak < 500:
        # ignore errors, because the worker may end while the test reads its /proc files
        with contextlib.suppress(OSError, IndexError):
            peak = max(peak, peak_mib(worker))
        time.sleep(0.01)
    assert peak < 500
    assert worker.wait() == 1
    assert "needs more than 400 MiB of memory for batches of" in worker.tail()


@pytest.mark.parametrize("what", ["status", "top"])
def test_pages_without_end_are_refused(hostile, programs, what):
    """The hostile server sends the status in pages without end: each page lists one worker and says
    that 1000 more workers follow."""
    pages = []

    def answer(name, body):
        if name != "status":
            return []
        pages.append(body)
        worker = {"worker": 100 * len(pages), "name": "x" * 1000}
        return [pb.Status(reply=True, text=json.dumps({"workers": [worker],
                                                       "workers_left_out": 1000}))]

    server = hostile(answer, model="fc:10")
    ctl = programs.add(Process("cnn-ctl", command("cnn-ctl", "--server", server.endpoint, what)))
    assert ctl.wait(10) == 1
    ctl.line("the server lists more than 1024 workers, which no cnn-ps has")
    assert len(pages) == 11


# characters that a terminal executes, or that change the order in which it shows text
CONTROLS = "\x7f\u009b31m\u009d0;x\u009c\u061c\u200f\u2028\u202e\u2066"


def controls_in(text):
    """Returns the control characters of a text, except for the ends of its lines."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and
            c not in "\r\n"}


@contextlib.contextmanager
def program_on_terminal(*arguments):
    """Runs cnn-ctl with a terminal as its output, and yields a function that waits for its end and
    returns its output."""
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "screen-256color", "LC_ALL": "C.UTF-8"}
    with subprocess.Popen(command("cnn-ctl", *arguments), stdin=slave, stdout=slave,
                          stderr=subprocess.DEVNULL, env=env) as process:
        os.close(slave)

        def output():
            data = b""
            with contextlib.suppress(OSError):  # the terminal has no other end any more
                while select.select([master], [], [], 20)[0]:
                    data += os.read(master, 65536)
            process.wait(20)
            return data
        try:
            yield output
        finally:
            process.kill()
            os.close(master)


@pytest.fixture
def steering(hostile):
    """A server with controls in each text of its status, which has the given additional fields."""
    def start(**fields):
        def answer(name, _):
            if name != "status":
                return []
            server.real.send(pb.Status())
            status = json.loads(server.real.expect("status")[1].text)
            status.update(model="a\u00e9" + CONTROLS, metrics={CONTROLS: 1.5}, **fields)
            status[CONTROLS] = [CONTROLS, {"waiting": CONTROLS}]
            start.status = status
            return [pb.Status(reply=True, text=json.dumps(status, ensure_ascii=False))]
        server = hostile(answer)
        return server
    return start


@pytest.mark.parametrize("arguments", [["status"], ["top", "--once"], ["top", "--once", "--json"]],
                         ids=" ".join)
def test_the_status_of_a_server_does_not_control_a_terminal(steering, programs, arguments):
    """JSON keeps the text: it has an escape sequence for each control."""
    server = steering()
    said = subprocess.run(command("cnn-ctl", "--server", server.endpoint, *arguments), timeout=20,
                          stdout=subprocess.PIPE, check=True).stdout.decode()
    assert "a\u00e9" in said and not controls_in(said)
    if "--once" not in arguments or "--json" in arguments:
        assert json.loads(said) == steering.status


def test_the_end_of_a_run_does_not_control_a_terminal(steering):
    """`cnn-ctl top` shows the end of the run and its metrics below the last status."""
    server = steering(ending="done" + CONTROLS)
    with program_on_terminal("--server", server.endpoint, "top") as output:
        said = output().decode(errors="replace")
    said = said[said.rindex("training "):]
    assert "done?" in said and " 1.5," in said and not controls_in(said)
