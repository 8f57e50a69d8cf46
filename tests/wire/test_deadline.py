"""A worker that sends heartbeats but delivers nothing does not delay a run. The server does not
mistake a worker on a slow link for such a worker."""
import socket
import threading
import time

import pytest

from client import Worker, checksum, pb
from support import idx


def data_id(directory):
    arrays = [idx.read(directory, name) for name in idx.NAMES]
    return pb.DataId(n_train=len(arrays[0]), n_test=len(arrays[2]), rows=28, cols=28, classes=10,
                     xxh3=checksum(b"".join(idx.encode(a) for a in arrays)))


class StallingWorker:
    """A worker that requests leases until it gets a lease of the given kind, and then only sends
    heartbeats."""

    def __init__(self, endpoint, data, kind):
        self.worker = Worker(endpoint, name="stalling", data=data_id(data))
        self.kind = kind
        self.has = threading.Event()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while self.worker.lease(60).kind != self.kind:
                # a pause, because the server closes a connection that requests leases at a higher
                # rate
                self.stop.wait(0.02)
            self.has.set()
            while not self.stop.is_set():
                self.worker.maybe_heartbeat()
                while self.worker.heartbeat.socket.poll(0):
                    self.worker.heartbeat.socket.recv_multipart()
                self.stop.wait(0.05)
        except Exception:  # the run is over, and the server has sent BYE
            pass

    def end(self):
        self.stop.set()
        self.thread.join(30)
        self.worker.close()


# {case: (options of the server, the kind of lease that the worker keeps, True if the server must
# declare the worker stalled)}
STALLS = {
    "warm start": (("--warm-start-updates", 50, "--first-deadline-ms", 3000), pb.GRANT_TRAIN,
                   False),
    "evaluation": (("--warm-start-updates", 0, "--backup-copies", "none", "--eval-images", 5),
                   pb.GRANT_EVAL, False),
    "sync": (("--mode", "sync", "--min-workers", 3), pb.GRANT_TRAIN, True),
    "ssp": (("--mode", "ssp", "--warm-start-updates", 0, "--min-workers", 3), pb.GRANT_TRAIN, True),
    "sandblaster": (("--mode", "sandblaster", "--optimizer", "sgd", "--backup-copies", "none",
                     "--min-workers", 3), pb.GRANT_TRAIN, False),
}


@pytest.mark.parametrize("what", STALLS)
def test_a_hanging_worker_does_not_delay_the_run(programs, small, what):
    options, kind, stalls = STALLS[what]
    server = programs.server("--model", "seed:8", "--epochs", 2, *options, directory=None)
    stalling = StallingWorker(server.endpoint, small, kind)
    if "--min-workers" not in options and kind == pb.GRANT_TRAIN:
        assert stalling.has.wait(10)  # the stalling worker must get the first lease
    fleet = [programs.worker(server.endpoint, data=small) for _ in range(2)]
    if stalls:
        server.line('worker stalled.*name="stalling"', 40)
    result = server.result(60)
    stalling.end()
    assert stalling.has.is_set()
    assert result["images_per_epoch"] == [6000, 6000] and result["accuracy"], result
    for worker in fleet:
        assert worker.wait(10) == 0, worker.tail()


class SlowLink:
    """A TCP proxy that limits each direction of each connection to `rate` bytes per second."""

    def __init__(self, endpoint, rate):
        self.host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
        self.port, self.rate = int(port), rate
        self.front = socket.socket()
        self.front.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self.front.bind(("127.0.0.1", 0))
        self.front.listen(16)
        self.endpoint = f"tcp://127.0.0.1:{self.front.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.front.accept()
            except OSError:
                return
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            far.connect((self.host, self.port))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    def copy(self, source, target):
        try:
            while True:
                block = source.recv(max(256, self.rate // 20))
                if not block:
                    break
                time.sleep(len(block) / self.rate)
                target.sendall(block)
        except OSError:
            pass
        for s in (source, target):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def test_transfer_that_progresses_is_not_cut(programs, small):
    """The transfer of a message takes about five seconds, and the deadline of a grant is two
    seconds. The grant must not expire as long as the transfer progresses."""
    server = programs.server("--model", "fc:256 fc:10", "--epochs", 1, "--first-deadline-ms", 2000,
                        "--warm-start-updates", 0, "--max-updates", 2, directory=None)
    link = SlowLink(server.endpoint, 160000)
    programs.worker(link.endpoint, data=small)
    server.line("worker joined", 20)
    begin = time.monotonic()
    counters = {}
    while not counters.get("pushes") and time.monotonic() < begin + 60:
        counters = server.status()["counters"]
        time.sleep(0.1)
    took = time.monotonic() - begin
    print(f"first push after {took:.1f} s, {counters}")
    assert counters["pushes"] and took > 4
    assert (counters["expired"], counters["stalls"]) == (0, 0)
