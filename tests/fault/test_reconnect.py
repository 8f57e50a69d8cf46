"""Faults N9 and N10 of docs/faults.md: a server restarts while many workers run, and connections
are half open."""
import sys
import time

import pytest
import zmq

from support.build import PATIENCE, ROOT
from support.programs import until
from support.ledger import LedgerRun
from namespaces import seqs

sys.path.append(str(ROOT / "tests/wire"))
from client import Link, Worker, hello  # noqa: E402

WORKERS = 16


def worst_percent(values, percent=1):
    """Returns a high percentile: `percent` percent of the values are greater."""
    return sorted(values)[-1 - len(values) * percent // 100]


def seqs_here(run):
    """Returns {worker name: newest decided seq}, as namespaces.seqs does, for a server outside
    namespaces."""
    return {w["name"]: w["last_seq"] for w in run.server.status()["workers"]}


@pytest.mark.alone
def test_restart_under_16_workers(programs, figure, full):
    """Measures, for each of 16 workers, the time from the exec of a new server until it has decided
    a new push of the worker."""
    restarts = 100 if full else 2
    run = LedgerRun(programs, WORKERS, 60 + 20 * restarts, pace=(50,))
    took = []
    for _ in range(restarts):
        until(lambda: sum(n >= 5 for n in seqs_here(run).values()) == WORKERS, 60,
              "all are pushing")
        before = seqs_here(run)
        run.server.kill()
        begun = time.monotonic()
        run.restart_server()
        waiting = set(before)
        while waiting:
            now = seqs_here(run)
            back = {name for name in waiting if now[name] > before[name]}
            took += [time.monotonic() - begun] * len(back)
            waiting -= back
            assert time.monotonic() < begun + 60, f"not back: {waiting}"
    lost, twice = run.count(300)
    p99 = worst_percent(took)
    figure("N9", p99, f"s p99 until a worker is productive, {restarts} restarts, {WORKERS} workers",
           p99 <= (2 if full else 5) * PATIENCE)
    assert lost + twice == 0


def test_hello_storm(programs, figure):
    """A thousand HELLOs arrive at once: the server answers 50 per second, and still accepts a
    worker."""
    server = programs.server("--model", "vector:10", directory=None)
    # ten connections, because the server closes a connection after 272 messages that exceed a limit
    links = [Link(server.endpoint) for _ in range(10)]
    begun = time.monotonic()
    for k in range(1000):
        links[k % 10].send(hello())
    until(lambda: server.status()["counters"]["hellos_turned_away"] > 0, 20, "some are turned away")
    answers = 0
    for link in links:
        while link.receive(0.5):
            answers += 1
    rate = max(0, answers - 50) / (time.monotonic() - begun)
    assert answers + server.status()["counters"]["hellos_turned_away"] == 1000
    Worker(server.endpoint).close()
    for link in links:
        link.close()
    figure("N9", rate, "HELLOs per second accepted after the first 50", rate <= 51)


# ---- N10 -------------------------------------------------------------------------------------


def half_open(net, server, count):
    """Connect `count` peers from host 2, and then cut off the host, so that the peers vanish
    without a message to the server."""
    before = net.status(server)["connections"]
    with net.hosts[2]:
        context = zmq.Context()
        context.max_sockets = count + 10
        peers = [context.socket(zmq.DEALER) for _ in range(count)]
        for peer in peers:
            peer.linger = 0
            peer.connect(server.endpoint)
    until(lambda: net.status(server)["connections"] == before + count, 30, "all are connected")
    net.cut("*", 2)
    net.cut(2, "*")
    context.destroy(linger=0)


def test_half_open_connections(nets, figure, full):
    """The server notices that the peers have vanished, and a healthy worker continues."""
    net = nets("N10", 3)
    rounds, count = (5, 200) if full else (1, 100)
    run = LedgerRun(net, 1, 400 * rounds if full else 600, pace=(10,))
    until(lambda: seqs(net, run.server), 30, "the worker is there")
    open_before = len(net.home.connections())
    slowest = 0
    for _ in range(rounds):
        half_open(net, run.server, count)
        vanished = time.monotonic()
        until(lambda: net.status(run.server)["connections"] <= 2, 30, "they are closed")
        slowest = max(slowest, time.monotonic() - vanished)
        net.heal()
    leaked = len(net.home.connections()) - open_before
    honest = run.fleet[0]
    lost, twice = run.count()
    assert "reconnects=0" in honest.out[-1], honest.tail()
    figure("N10", slowest, "s at most until the connection is closed", slowest <= 15, what="closed")
    figure("N10", leaked, f"connections left of {rounds * count}", leaked <= 0)
    assert lost + twice == 0


def test_silent_worker_is_suspected(nets, figure, full):
    """A worker's connection stays open, but the network loses all of its packets: after three
    missed heartbeats the server must suspect the worker."""
    net = nets("N10", 2)
    run = LedgerRun(net, 1, 3000 if full else 250, pace=(5,))
    slowest = 0
    for _ in range(10 if full else 1):
        until(lambda: state(net, run) == "live", 30, "it is live")
        net.cut()
        cut = time.monotonic()
        until(lambda: state(net, run) == "suspect", 30, "it is suspected")
        slowest = max(slowest, time.monotonic() - cut)
        net.heal()
    lost, twice = run.count()
    figure("N10", slowest, "s at most until it is suspected", slowest <= (1.7 if full else 4),
           what="suspected")
    assert lost + twice == 0


def state(net, run):
    workers = net.status(run.server)["workers"]
    return workers[0]["state"] if workers else None
