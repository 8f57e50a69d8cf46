"""What one worker with a valid key must not be able to do (docs/security.md)."""
import numpy as np
import pytest

from test_training import ZERO, few, leased  # noqa: F401
from conftest import LEDGER, Honest

from client import Keys, Link, Refused, Worker, hello, pb

EAUTH = 11


def test_trust_a_run_is_not_forged_by_pushes_and_results(programs, few):
    """Empty pushes of all batches and results of all portions, without a grant: nothing counts."""
    server, honest = leased(programs, few, "--min-workers", 2)
    forger = Worker(server.endpoint, data=few.id)
    granted = honest.lease()
    for first in range(6):
        ack = forger.push(ZERO, 0, pb.Work(first=first, count=1), 500)
        assert (ack.verdict, ack.reject) == (pb.VERDICT_REJECTED, pb.REJECT_WORK)
    forger.grant = granted  # the grant of another worker
    ack = forger.push(ZERO, 0, granted.work, 500 * granted.work.count)
    assert (ack.verdict, ack.reject) == (pb.VERDICT_REJECTED, pb.REJECT_WORK)
    left = 6
    while left:
        work = granted.work
        assert honest.push(ZERO, 0, work, 500 * work.count).verdict == pb.VERDICT_OK
        left -= work.count
        granted = honest.lease()
    assert granted.kind == pb.GRANT_EVAL
    size = granted.eval_count
    for first in range(0, few.id.n_test, size):
        count = min(size, few.id.n_test - first)
        forger.bulk.send(pb.Result(stamp=forger.stamp, eval_id=granted.eval_id, eval_first=first,
                                   eval_count=count, correct=count, loss_sum=0))
    forger.pull()  # every RESULT before it was handled
    assert server.status()["epoch_records"][0]["accuracy"] is None
    for w in (honest, forger):
        w.close()


def test_trust_a_claimed_verdict_switches_no_rule_off(programs):
    """VERDICT_OK on pushes that were never sent before, and a version of the far future."""
    server = programs.server("--model", "vector:64", "--max-staleness", 2, "--optimizer", "sgd",
                        directory=None)
    worker = Honest(server.endpoint)
    weights, version = worker.pull()
    for _ in range(5):
        assert worker.push(0 * weights, worker.seq).verdict == pb.VERDICT_OK
    worker.seq += 1
    worker.bulk.send(pb.Push(stamp=worker.stamp, seq=worker.seq, base_version=0,
                             base_term=worker.base_term, verdict=pb.VERDICT_OK))
    ack, _ = worker.wait("ack")
    assert (ack.verdict, ack.reject) == (pb.VERDICT_REJECTED, pb.REJECT_STALE)
    ack = worker.push(0 * weights, 2**64 - 1)
    assert (ack.verdict, ack.reject) == (pb.VERDICT_REJECTED, pb.REJECT_STALE)
    worker.close()


def test_trust_a_session_is_not_stolen_after_a_restart(programs, keys):
    """The thief has a worker's key and knows the stamp of the victim."""
    options = *LEDGER, "--key", keys / "server.key"
    server = programs.server(*options)
    public = keys / "server.pub"
    victim = Honest(server.endpoint, keys=Keys(keys / "worker.key", public))
    victim.push_next()
    server.kill()
    server = programs.restart(server, *options)
    victim.endpoint = server.endpoint
    link = Link(server.endpoint, Keys(keys / "second.key", public))
    link.send(hello(resume=victim.stamp, last_seq=victim.seq))
    with pytest.raises(Refused) as e:
        link.expect("welcome")
    assert e.value.code == EAUTH
    victim.reconnect()
    victim.goes_on()
    link.close()
    victim.close()


def test_trust_the_owner_of_a_hello_is_the_servers(server):
    link = Link(server.endpoint)
    link.send(hello(owner="x" * 40))
    with pytest.raises(Refused) as e:
        link.expect("welcome")
    assert e.value.code == 12
    link.close()
