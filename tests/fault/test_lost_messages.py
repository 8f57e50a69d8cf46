"""Faults N5 to N7 of docs/faults.md: pushes arrive twice, pushes are lost, and replies are lost."""
import sys

import numpy as np
import pytest

from support.build import ROOT
from support.ledger import LEDGER, LedgerRun
from fault_proxy import FaultProxy

sys.path.append(str(ROOT / "tests/wire"))
# noqa: E402  a client in Python, written from WIRE.md
from client import Refused, Worker, encode, pb

SIZE = 512


@pytest.fixture
def proxied(programs, seed):
    """Yields a function that starts a LedgerRun behind a FaultProxy: proxied(workers, pushes,
    drop=..., double=...). The function returns (run, proxy)."""
    made = []

    def make(workers, pushes, size=0, **how):
        # in a lane, the messages would not pass through the proxy
        run = LedgerRun(programs, 0, pushes, "--lane", "tcp", size=max(size, workers * pushes))
        made.append(FaultProxy(run.server.endpoint, seed, **how))
        run.fleet = [programs.ledger_worker(made[-1].endpoint, i, pushes) for i in range(workers)]
        return run, made[-1]
    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def peer(programs):
    """Yields a worker in Python, connected to a server: the test controls every byte that it
    sends."""
    server = programs.server("--model", f"vector:{SIZE}", *LEDGER, "--replay-window", SIZE)
    worker = Worker(server.endpoint, name="peer")
    worker.server = server
    yield worker
    worker.close()


def unit(k):
    gradient = np.zeros(SIZE, np.float32)
    gradient[k % SIZE] = 1
    return gradient


def answers(peer, frames, count):
    """Send the same message `count` times. Yields the ACKs, one for each copy."""
    for _ in range(count):
        peer.bulk.send_frames(frames)
    for _ in range(count):
        yield peer.wait("ack")[0]


def same(first, ack):
    return (ack.seq, ack.duplicate, ack.verdict, ack.version) == (
        first.seq, True, first.verdict, first.version)


# ---- N5 --------------------------------------------------------------------------------------


def test_same_bytes_again(peer, figure, full):
    """The worker sends the bytes of each push many times. The server decides once, and answers with
    this decision each time."""
    pushes, rounds, at_once = (500, 100, 20) if full else (100, 1, 20)
    again, wrong = rounds * at_once, 0
    for k in range(pushes):
        first = peer.push(unit(k), 0)
        wrong += first.duplicate
        body, tensors, _ = peer.kept[first.seq]
        body.stamp.CopyFrom(peer.stamp)
        body.seq = first.seq
        frames = encode(body, tensors)
        for _ in range(rounds):
            wrong += sum(not same(first, ack) for ack in answers(peer, frames, at_once))
    weights, version = peer.pull()
    twice = int((weights < -1).sum())
    assert version == pushes and (weights[:pushes] == -1).all() and not weights[pushes:].any()
    figure("N5", twice, f"applied twice of {pushes * again} duplicates", twice == 0)
    figure("N5", wrong, "answers that differed from the first one", wrong == 0, what="answers")


def test_every_push_may_come_twice(proxied, figure, full):
    """Workers written in C connect through a proxy that duplicates pushes. Other pushes arrive
    between a push and its copy."""
    run, proxy = proxied(3, 5000 if full else 200, double={"push": 0.3})
    lost, twice = run.count()
    figure("N5", lost + twice, f"lost or applied twice, {proxy.doubled} pushes came twice",
           proxy.doubled > 50 and lost + twice == 0)


# ---- N6 --------------------------------------------------------------------------------------


def test_gap_is_named(peer, figure):
    """A push arrives although pushes with smaller seqs are missing. The server answers PS_EGAP with
    the first missing seq, and does not store the push."""
    wrong = 0
    for ahead in (2, 3, 100, 2**32, 2**61):
        peer.push(unit(peer.seq), 0)
        body = pb.Push(stamp=peer.stamp, seq=peer.seq + ahead)
        peer.bulk.send(body, [(0, unit(SIZE - 1))])
        with pytest.raises(Refused) as refused:
            peer.wait("ack")
        wrong += (refused.value.code, refused.value.expected) != (15, peer.seq + 1)
    weights, version = peer.pull()
    assert version == peer.seq and weights[-1] == 0, "something of a gap was applied"
    figure("N6", wrong, "gaps without the right answer", wrong == 0)


def test_pushes_that_get_lost(proxied, figure, full):
    """The proxy drops one push in five. The workers send every dropped push again."""
    run, proxy = proxied(3, 5000 if full else 40, drop={"push": 0.2})
    stalls = sum(worker.wait(300) != 0 for worker in run.fleet)
    gaps = run.server.status()["counters"]["gaps"]
    lost, twice = run.count()
    assert gaps > 10, "no gap, nothing was tried"
    figure("N6", stalls, f"stalls after {gaps} gaps", stalls == 0)
    figure("N6", lost + twice, "lost or applied twice", lost + twice == 0, what="ledger")


def test_parts_that_get_lost_or_come_twice(proxied, figure, full):
    """Each push has four parts (WIRE.md, "Chunked push"). The proxy drops one part in twenty, and
    duplicates one in twenty."""
    odds = {"chunk": 0.05, "push": 0.05}
    run, proxy = proxied(2, 1000 if full else 30, size=140000, drop=odds, double=odds)
    lost, twice = run.count(600)
    assert proxy.dropped and proxy.doubled, "nothing was tried"
    figure("N6", lost + twice, f"lost or applied twice, {proxy.dropped} parts lost, "
           f"{proxy.doubled} came twice", lost + twice == 0, what="parts")


# ---- N7 --------------------------------------------------------------------------------------


def test_lost_acks(proxied, figure, full):
    """The proxy drops three ACKs in ten. The workers send the pushes of these ACKs again, and the
    server does not apply a push twice."""
    run, proxy = proxied(3, 5000 if full else 100, drop={"ack": 0.3})
    for worker in run.fleet:
        assert worker.wait(300) == 0, worker.tail()
    again = run.server.status()["counters"]["duplicates"]
    lost, twice = run.count()
    assert again > 10, "no push came again, nothing was tried"
    figure("N7", 100 * (1 - (lost + twice) / (len(run.fleet) * run.pushes)),
           f"% exactly once, {proxy.dropped} ACKs lost", lost + twice == 0)


def test_any_answer_may_be_lost(proxied, figure, full):
    """The proxy drops one reply in ten of any kind (WELCOME, PARAMS, ACK, HEARTBEAT, ERROR); in the
    long form, three in ten."""
    kinds = ("welcome", "params", "ack", "heartbeat", "error")
    replies = dict.fromkeys(kinds, 0.3 if full else 0.1)
    run, proxy = proxied(2, 1000 if full else 8, drop=replies)
    lost, twice = run.count(600)
    figure("N7", 100 * (1 - (lost + twice) / (2 * run.pushes)),
           f"% exactly once, {proxy.dropped} answers lost", lost + twice == 0)
