"""Side connections (docs/connections.md) give the same results as one connection. If a side
connection breaks, no push and no weights are lost or repeated."""
import re
import socket
import threading

import pytest

from support.ledger import LedgerRun
from support.programs import until

SIZE = 4000000  # number of values of the model: 16 MB
PUSHES = 20
# number of the connections that the proxy never cuts: a worker first opens its two connections for
# messages and heartbeats
HELPERS = 2


class Proxy:
    """Forwards TCP connections to a server. Cuts each of the first `cuts` side connections after
    `limit` bytes from the worker, or from the server with `downwards`."""

    def __init__(self, endpoint, cuts, limit, downwards=False):
        host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
        self.target = host, int(port)
        self.cuts, self.limit, self.downwards = cuts, limit, downwards
        self.seen = self.cut = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                here = self.listener.accept()[0]
                there = socket.create_connection(self.target)
            except OSError:
                return
            self.seen += 1
            is_victim = self.seen > HELPERS and self.cut < self.cuts and self.seen % 2
            for source, target, down in ((here, there, False), (there, here, True)):
                limit = self.limit if is_victim and down == self.downwards else None
                threading.Thread(target=self._pump, args=(source, target, limit),
                                 daemon=True).start()

    def _pump(self, source, target, limit):
        moved = 0
        try:
            while data := source.recv(1 << 18):
                moved += len(data)
                if limit and moved > limit:
                    self.cut += 1
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()


class ProxiedRun(LedgerRun):
    """A ledger run with one worker, which has three connections to the server, all through a
    proxy."""

    def __init__(self, programs, cuts, limit, downwards=False):
        self.cuts, self.limit, self.downwards = cuts, limit, downwards
        self.proxy = None
        super().__init__(programs, 1, PUSHES, "--lane", "tcp", "--connections", 3, size=SIZE)

    def start_worker(self, index, **how):
        self.proxy = Proxy(self.server.endpoint, self.cuts, self.limit, self.downwards)
        self.fleet[index] = self.programs.ledger_worker(
            self.proxy.endpoint, index, self.pushes, 150, 2, wrap=("env", "CNN_CONNECTIONS=3"),
            **how)


def opened(run):
    return sum('msg="net connections" n=3' in line for line in run.fleet[0].lines)


def opened_again(run):
    """Returns a match if the worker has opened three connections again after a loss. Only a line
    after the loss counts: the side connection may break before the worker has logged that it has
    opened three connections for the first time."""
    return re.search(r'"net one_connection"[^\0]*"net connections" n=3',
                     "\n".join(run.fleet[0].lines))


def test_three_connections(programs):
    run = ProxiedRun(programs, 0, 0)
    until(lambda: opened(run), 20, "three connections")
    assert run.proxy.seen == HELPERS + 2
    run.verdict()
    assert opened(run) == 1, run.fleet[0].tail()


@pytest.mark.parametrize("downwards", (False, True))
def test_a_side_connection_breaks_in_the_middle_of_a_tensor(programs, downwards):
    """The first side connection breaks in the middle of a part of a push, or of weights. The
    transfer goes on with the first connection, and later with three connections again."""
    run = ProxiedRun(programs, 1, 2000000, downwards)
    until(lambda: opened_again(run), 30, "three connections again")
    run.verdict()
    assert run.proxy.cut == 1
    assert any("one_connection" in line for line in run.fleet[0].lines)
    [done] = [line for line in run.fleet[0].out if line.startswith("done")]
    assert "reconnects=0" in done, done
