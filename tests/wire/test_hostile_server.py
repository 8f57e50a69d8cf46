"""Attack A22 of docs/faults.md: a hostile server. A cnn-worker that is connected to such a server
sends few messages, does not compute forever, and needs no more memory than a batch of its own
images needs.

The hostile server changes the WELCOME of a real server and passes it on. The hostile server answers
all other messages itself.
"""
import contextlib
import json
import threading
import time
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
    returns. The list has bodies, or pairs of a body and its tensors. `change` may change the
    WELCOME."""

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
    """After each of these errors, a worker sends HELLO again."""
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
    """The server asks for the pictures of the page after each push and each STATUS."""
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


def test_a_server_that_grants_only_steps_that_are_over_gets_few(hostile, programs, small):
    """A worker in mode sync pulls weights for each lease, and computes nothing because the step of
    the lease has other weights."""
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
    """Each lease is an evaluation of one image. The worker may request 64 leases at once, and then
    500 per second. After each lease it pulls weights and sends a result."""
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


@pytest.mark.parametrize("last_seq", [0, 2**62])
def test_a_server_that_acknowledges_nothing_stops_the_computing(hostile, programs, small, last_seq):
    """A worker retains each push until the server has acknowledged it. When the worker has no room
    for another push, it waits."""
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
    for batch in (6000, 2**24):  # 6000: all images; 2^24: the maximum in WIRE.md
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
        with contextlib.suppress(OSError, IndexError):  # the worker ends while the test reads
            peak = max(peak, peak_mib(worker))
        time.sleep(0.01)
    assert peak < 500
    assert worker.wait() == 1
    assert "needs more than 400 MiB of memory for batches of" in worker.tail()


@pytest.mark.parametrize("what", ["status", "top"])
def test_pages_without_end_are_refused(hostile, programs, what):
    """Each page of the status lists one worker, and says that 1000 more are left out, however many
    pages came before."""
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
