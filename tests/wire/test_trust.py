"""A worker with a valid key cannot harm a run in the ways that docs/security.md lists.

The tests cover attacks A2, A4, A5, A7, A13 and A14 of docs/faults.md.
"""
import collections
import json
import socket
import time
import urllib.request
from signal import SIGHUP, SIGTERM

import numpy as np
import pytest

from test_keys import metric
from test_training import ZERO, few, leased  # noqa: F401
from conftest import LEDGER, PLAIN, Honest

from support.build import BUILD
from support.programs import until

from client import CONTEXT, Keys, Link, Refused, Worker, encode, exclude, hello, pb

EAUTH, EFULL, EQUARANTINE = 11, 17, 24


def test_trust_a_run_is_not_forged_by_pushes_and_results(programs, few):
    """A worker without a grant sends pushes for all batches, and results for all portions of the
    test set: none of them counts."""
    server, honest = leased(programs, few, "--min-workers", 2)
    forger = Worker(server.endpoint, data=few.id)
    granted = honest.lease()
    for first in range(6):
        ack = forger.push(ZERO, 0, pb.Work(first=first, count=1), 500)
        assert (ack.verdict, ack.reject) == (pb.VERDICT_REJECTED, pb.REJECT_WORK)
    forger.grant = granted  # claim the grant of another worker for the next push
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
    forger.pull()  # the reply to the pull shows that the server has handled all results before it
    assert server.status()["epoch_records"][0]["accuracy"] is None
    for w in (honest, forger):
        w.close()


def evaluate(worker, correct):
    """Get a lease of the evaluation, and report this number of correct images."""
    grant = worker.lease()
    assert grant.kind == pb.GRANT_EVAL
    report(worker, grant, correct)


def report(worker, grant, correct):
    """Send the result of a granted portion, and wait until the server has handled it."""
    send_result(worker, grant, correct)
    worker.pull()  # the reply shows that the server has handled the result


def send_result(worker, grant, correct):
    """Send the result of a granted portion with this number of correctly classified images."""
    worker.bulk.send(pb.Result(stamp=worker.stamp, eval_id=grant.eval_id, code=grant.code,
                               eval_first=grant.eval_first, eval_count=grant.eval_count,
                               correct=correct, loss_sum=0))


def test_trust_a_forged_evaluation_is_outvoted(programs, few):
    """A worker reports that all images of the evaluation that it was granted are correct. Two other
    workers compute the same images, and the server takes their result."""
    server, forger = leased(programs, few, "--min-workers", 3, "--eval-images", 1000)
    honest = [Worker(server.endpoint, data=few.id) for _ in range(2)]
    left = 6
    while left:
        work = forger.lease().work
        assert forger.push(ZERO, 0, work, 500 * work.count).verdict == pb.VERDICT_OK
        left -= work.count
    evaluate(forger, 1000)
    evaluate(honest[0], 100)
    # no accuracy yet, because the results of two workers differ, and the result of a third worker
    # must agree with one of them
    assert server.status()["epoch_records"][0]["accuracy"] is None
    evaluate(honest[1], 103)
    status = server.status()
    assert status["epoch_records"][0]["accuracy"] == pytest.approx(0.1)
    assert status["counters"]["checks_outvoted"] == 1
    for w in (forger, *honest):
        w.close()


def test_trust_a_false_result_that_nobody_checks_ends_a_run(programs, few):
    """With a single worker, nobody checks evaluations: it reports that all images are correct, so
    the rule of --stop-at ends the run. docs/security.md names this limit. With a second and a third
    worker, the server would compare their results."""
    server, forger = leased(programs, few, "--stop-at", "accuracy=0.99")
    left = 6
    while left:
        work = forger.lease().work
        assert forger.push(ZERO, 0, work, 500 * work.count).verdict == pb.VERDICT_OK
        left -= work.count
    send_result(forger, forger.lease(), 1000)
    server.line("train stops")
    forger.close()


def test_trust_no_check_is_granted_before_all_results(programs, few):
    """The server lets another worker check two of the three portions of an evaluation, so at least
    one of the first two. The server grants this check only when the last portion has its result. If
    the server granted the check earlier, the first worker could see from the number of leases
    whether its last result will be checked."""
    server, first = leased(programs, few, "--min-workers", 2, "--eval-images", 400,
                           "--eval-checks", 2, "--backup-copies", "none")
    checker = Worker(server.endpoint, data=few.id)
    left = 6
    while left:
        work = first.lease().work
        assert first.push(ZERO, 0, work, 500 * work.count).verdict == pb.VERDICT_OK
        left -= work.count
    for _ in range(2):
        evaluate(first, 40)
    grant = first.lease()
    assert (grant.kind, grant.eval_first) == (pb.GRANT_EVAL, 800)
    assert checker.lease().kind == pb.GRANT_TRAIN
    report(first, grant, 20)
    check = checker.lease()
    assert (check.kind, check.eval_id) == (pb.GRANT_EVAL, grant.eval_id)
    for w in (first, checker):
        w.close()


def test_trust_a_claimed_verdict_switches_no_rule_off(programs):
    """A worker claims VERDICT_OK for pushes that it has never sent before, and gives them a version
    far in the future. The server still applies all rules to these pushes."""
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
    """A worker with the stamp of another worker, but with another key, cannot take over the
    session of that worker."""
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


def test_trust_a_key_has_its_share_of_the_slots(programs, keys):
    server = programs.server(*LEDGER, "--key", keys / "server.key", "--max-workers", 5)
    public = keys / "server.pub"
    greedy = Keys(keys / "worker.key", public)
    slots = [Honest(server.endpoint, name=f"s{i}", keys=greedy) for i in range(3)]
    with pytest.raises(Refused) as e:
        Honest(server.endpoint, name="made up", keys=greedy)
    assert e.value.code == EFULL
    other = Honest(server.endpoint, keys=Keys(keys / "second.key", public))
    other.goes_on()
    slots[0].bye()
    slots.append(Honest(server.endpoint, name="x", keys=greedy))
    # resume the session that has ended, with the name of another slot
    with pytest.raises(Refused) as e:
        Honest(server.endpoint, name="x", keys=greedy, resume=(slots[0].stamp, 0, 0))
    assert e.value.code == EFULL
    # a new process names the worker id of another slot
    with pytest.raises(Refused) as e:
        Honest(server.endpoint, keys=greedy, resume=(pb.Stamp(worker=slots[1].stamp.worker), 0, 0))
    assert e.value.code == EFULL
    for w in (*slots, other):
        w.close()


def test_trust_slots_of_workers_that_are_away_count(programs, keys):
    """A process claims pushes that it would have to replay, and then sends nothing more, so its slot
    is kept. A HELLO of a new worker on its connection gives its key no slot beyond the share."""
    server = programs.server(*LEDGER, "--key", keys / "server.key", "--max-workers", 5,
                             "--heartbeat-ms", 100, "--suspect-ms", 500, "--dead-ms", 2000, directory=None)
    greedy = Keys(keys / "worker.key", keys / "server.pub")
    links = [Link(server.endpoint, greedy) for _ in range(3)]
    stamps = []
    for link in links:
        link.send(hello())
        stamps.append(link.expect("welcome")[1].stamp)
    for link, stamp in zip(links, stamps):
        link.send(hello(resume=stamp, last_seq=5))
        link.expect("welcome")
    until(lambda: all(w["state"] == "away" for w in server.status()["workers"]), 10,
          "all three workers away")
    for link in links:
        link.send(hello())
        with pytest.raises(Refused) as e:
            link.expect("welcome")
        assert e.value.code == EFULL
    other = Honest(server.endpoint, keys=Keys(keys / "second.key", keys / "server.pub"))
    other.goes_on()
    for link in (*links, other):
        link.close()


def test_trust_each_key_has_a_slot(programs):
    """The server has four slots and three keys. One key may take two slots, but one slot for each
    of the other two keys stays free."""
    k = programs.keygen("w1", "w2")
    server = programs.server(*LEDGER, "--key", k / "server.key", "--max-workers", 4)
    first, second, third = (Keys(k / f"{name}.key", k / "server.pub")
                            for name in ("worker", "w1", "w2"))
    slots = [Honest(server.endpoint, keys=keys) for keys in (first, first, second)]
    for greedy in first, second:
        with pytest.raises(Refused) as e:
            Honest(server.endpoint, keys=greedy)
        assert e.value.code == EFULL
    slots.append(Honest(server.endpoint, keys=third))
    slots[-1].goes_on()
    for w in slots:
        w.close()


@pytest.mark.parametrize("slots", [50, 256])
def test_trust_floods_lock_nobody_out(programs, keys, slots):
    """A worker sends HELLO and an observer sends STATUS in a loop for 3 s. Meanwhile a worker with
    another key can join and push, even if a key may have many of the slots."""
    server = programs.server(*LEDGER, "--key", keys / "server.key", "--max-workers", slots,
                             directory=None)
    public = keys / "server.pub"
    hellos, others = (Link(server.endpoint, Keys(keys / name, public))
                      for name in ("worker.key", "observer.key"))
    end = time.monotonic() + 3
    worker = None
    while time.monotonic() < end:
        for _ in range(200):
            hellos.try_send(hello(name="flood"))
            others.try_send(pb.Status())
        if not worker and time.monotonic() > end - 2:
            begin = time.monotonic()
            worker = Honest(server.endpoint, keys=Keys(keys / "second.key", public))
            assert time.monotonic() - begin < 1
        if worker:
            worker.push_next()
    answers = collections.Counter()
    for link in hellos, others:
        while got := link.receive(0.5):
            answers[got[0]] += 1
        link.close()
    # The server answers at most QUOTA_HELLO HELLOs and QUOTA_STATUS STATUS messages at once, and as
    # many in each second (server/auth/quota.h). In a measurement without the quota of HELLO, the
    # server answered 204 HELLOs, or the other worker could not join in time.
    assert answers["welcome"] < 5 * 25 and answers["status"] < 5 * 50, answers
    worker.close()


def flood_ends(server, link, body):
    """Send `body` again and again until the server has closed the connection. libzmq then opens a
    new connection at once."""
    flood_of_frames_ends(server, link, encode(body))


def flood_of_frames_ends(server, link, frames):
    before, end = metric(server, "floods_total"), time.monotonic() + 20
    while metric(server, "floods_total") == before:
        assert time.monotonic() < end
        for _ in range(500):
            link.try_send_frames(frames)


@pytest.mark.parametrize("role, body", [
    ("worker", hello(name="flood")), ("observer", pb.Status()), ("observer", hello()),
    ("worker", pb.Heartbeat(stamp=pb.Stamp(run_hi=7, run_lo=7, term=1, worker=3, incarnation=4)))],
    ids=["HELLO", "STATUS", "role", "stamp"])
def test_trust_a_flood_loses_its_connection(programs, keys, role, body):
    """A peer keeps sending messages above its quota, messages that its role does not allow, or
    messages of a session that does not exist. The server closes the connection of this peer."""
    server = programs.server(*LEDGER, "--key", keys / "server.key", "--max-workers", 50,
                             directory=None)
    public = keys / "server.pub"
    honest = Honest(server.endpoint, keys=Keys(keys / "second.key", public))
    link = Link(server.endpoint, Keys(keys / f"{role}.key", public))
    flood_ends(server, link, body)
    server.line("net flood")
    honest.goes_on()
    honest.close()
    link.close()


def test_trust_a_flood_of_results_loses_its_connection(programs, keys):
    """A worker that has joined keeps sending evaluation results that nobody granted."""
    server = programs.server(*LEDGER, "--key", keys / "server.key", "--dead-ms", 60000,
                             directory=None)
    public = keys / "server.pub"
    honest = Honest(server.endpoint, keys=Keys(keys / "second.key", public))
    liar = Worker(server.endpoint, keys=Keys(keys / "worker.key", public))
    flood_ends(server, liar.bulk,
               pb.Result(stamp=liar.stamp, eval_id=1, eval_count=100, correct=100))
    honest.goes_on()
    honest.close()
    liar.close()


def test_trust_a_flood_of_leases_loses_its_connection(programs, few):
    """A worker requests leases without end, and neither pushes nor evaluates."""
    server, idler = leased(programs, few)
    flood_ends(server, idler.bulk, pb.Lease(stamp=idler.stamp, request=1))
    honest = Worker(server.endpoint, data=few.id)
    assert honest.lease().work.count
    honest.close()
    idler.close()


def test_trust_a_flood_of_rejected_pushes_loses_its_connection(programs, few):
    """A worker pushes batches that nobody granted, as fast as it can."""
    server, pusher = leased(programs, few)
    before, end, seq = metric(server, "floods_total"), time.monotonic() + 20, 1
    while metric(server, "floods_total") == before:
        assert time.monotonic() < end
        for _ in range(100):
            push = pb.Push(stamp=pusher.stamp, seq=seq, images=500, work=pb.Work(count=1))
            seq += pusher.bulk.try_send_frames(encode(push, [(0, ZERO)]))
    honest = Worker(server.endpoint, data=few.id)
    assert honest.lease().work.count
    honest.close()
    pusher.close()


def test_trust_a_flood_of_chunks_loses_its_connection(programs, keys):
    """A worker keeps sending chunks whose PUSH never follows."""
    server = programs.server(*LEDGER, "--key", keys / "server.key", "--dead-ms", 60000,
                             directory=None)
    public = keys / "server.pub"
    honest = Honest(server.endpoint, keys=Keys(keys / "second.key", public))
    link = Link(server.endpoint, Keys(keys / "worker.key", public))
    flood_of_frames_ends(server, link, [b"\0", bytes(16)])
    honest.goes_on()
    honest.close()
    link.close()


def test_trust_a_flood_of_hello_without_keys_loses_its_connection(server):
    link = Link(server.endpoint)
    flood_ends(server, link, hello(name="flood"))
    link.close()
    time.sleep(1)  # wait, because the server admits only 50 HELLOs per second of all peers together
    honest = Honest(server.endpoint)
    honest.push_next()
    honest.close()


@pytest.mark.parametrize("kind", ["malformed", "chunk", "message"])
def test_trust_a_revoked_key_is_refused_before_its_message_is_read(programs, keys, kind):
    """The server answers the first message of a revoked key with an error. It closes the connection
    at the second message, even if it could not decode this message."""
    server = programs.server(*LEDGER, "--key", keys / "server.key", directory=None)
    public = keys / "server.pub"
    link = Link(server.endpoint, Keys(keys / "second.key", public))
    link.send(pb.Status())
    link.expect("status")
    file = keys / "authorized_keys"
    file.write_text("".join(line for line in file.read_text().splitlines(True)
                            if not line.rstrip().endswith("second")))
    server.signal(SIGHUP)
    server.line("auth list_read")
    frames = {"malformed": [b"\xff"], "chunk": [b"\0", bytes(64)], "message": encode(pb.Status())}
    link.send_frames(frames[kind])
    with pytest.raises(Refused) as e:
        link.expect("status")
    assert e.value.code == EAUTH
    for _ in range(20):
        link.send_frames(frames[kind])
    end = time.monotonic() + 10
    while metric(server, "connections") > 0:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert metric(server, "malformed_total") == 0
    assert metric(server, "unauthorized_total") == 2
    link.close()


def test_trust_an_observer_may_not_send_chunks(programs, keys):
    """The chunks of a push occupy memory until the push arrives, and an observer cannot push."""
    server = programs.server(*LEDGER, "--key", keys / "server.key", directory=None)
    link = Link(server.endpoint, Keys(keys / "observer.key", keys / "server.pub"))
    link.send_frames([b"\0", bytes(64)])
    with pytest.raises(Refused) as e:
        link.expect("status")
    assert e.value.code == EAUTH
    link.close()


def links_once(endpoint, keys, n, again_ms=-1):
    """Opens `n` connections. When the server closes one, libzmq does not open it again or, if
    `again_ms` is given, only after this time."""
    CONTEXT.reconnect_ivl = again_ms
    links = [Link(endpoint, keys) for _ in range(n)]
    CONTEXT.reconnect_ivl = 100
    return links


def answered(server, links):
    """Send STATUS on each of the links. Returns the links that get an answer. The server must close
    all other links."""
    taken, before = [], metric(server, "crowded_total")
    for link in links:
        link.send(pb.Status())

    def all_known():
        taken.extend(link for link in links if link not in taken and link.receive(0))
        return len(taken) + metric(server, "crowded_total") - before == len(links)

    until(all_known, 20, "each link has an answer, or is closed")
    return taken


def test_trust_a_robust_rule_with_few_keys_is_a_warning(programs):
    """A robust rule needs at least three keys of workers, and krum needs 2F + 3 keys."""
    options = (*LEDGER, "--buffer-size", 5, "--key")
    directory = programs.keygen("second")
    for rule, others, needed in (("median", (), 3), ("krum", ("third", "fourth"), 5),
                                 ("median", (), 0), ("mean", (), 0)):
        for name in others:
            programs.keygen(name)
        server = programs.server(*options, directory / "server.key", "--aggregate", rule,
                                 directory=None)
        server.line("net listening")
        assert any(f"needed={needed}" in line for line in server.lines
                   if "auth few_keys" in line) == (needed > 0)


def test_trust_a_key_has_a_limited_number_of_connections(programs, keys):
    """A key opens many connections and sends a message on each of them. The server closes the
    connections above the limit of the key. A worker with another key continues, and another worker
    joins."""
    server = programs.server(*LEDGER, "--key", keys / "server.key", "--max-workers", 4,
                             "--dead-ms", 60000, directory=None)
    public = keys / "server.pub"
    second = Keys(keys / "second.key", public)
    honest = Honest(server.endpoint, keys=second)
    observer = Keys(keys / "observer.key", public)
    links = links_once(server.endpoint, observer, 40)
    taken = answered(server, links)
    limit = 4 * 2 + 16  # the limit for a key that may have two of the four slots (auth_connections)
    assert len(taken) == limit
    server.line("net crowded")
    assert metric(server, "crowded_total") == 40 - limit
    honest.goes_on()
    late = Honest(server.endpoint, keys=second)
    late.bye()
    for link in taken[:5]:  # connections that have ended do not count
        link.close()
    until(lambda: metric(server, "connections") == limit - 5 + 2, 10, "5 connections have ended")
    assert len(answered(server, links_once(server.endpoint, observer, 10))) == 5
    assert len(answered(server, taken[5:])) == limit - 5
    honest.goes_on()
    honest.close()


def test_trust_a_key_has_a_limited_number_of_handshakes(programs, keys):
    """A key opens connections in a loop and sends nothing on them. The server admits only a limited
    number of them. A worker with another key joins. On a busy machine, a handshake can take longer
    than the server's limit of 2 s and then counts as neither admitted nor deferred, so the key
    tries again."""
    server = programs.server(*LEDGER, "--key", keys / "server.key", "--max-workers", 4,
                             "--dead-ms", 120000, directory=None)
    public = keys / "server.pub"
    begin = time.monotonic()
    links = links_once(server.endpoint, Keys(keys / "observer.key", public), 200, again_ms=3000)
    honest = Honest(server.endpoint, keys=Keys(keys / "second.key", public))
    honest.goes_on()
    until(lambda: metric(server, "keys_admitted_total") + metric(server, "keys_deferred_total")
          >= 202, 60, "all handshakes have ended")
    seconds = time.monotonic() - begin
    assert metric(server, "keys_admitted_total") <= 2 + 50 * (1 + seconds)
    honest.goes_on()
    for w in (honest, *links):
        w.close()


def slow_links(endpoint, keys, n):
    """Opens `n` connections whose receive queues hold only a few messages."""
    CONTEXT.rcvhwm = 1
    links = [Link(endpoint, keys) for _ in range(n)]
    CONTEXT.rcvhwm = 1000
    return links


def test_trust_weights_that_wait_are_limited_for_each_key(programs, keys):
    """A key requests weights on three connections and does not read them. The server refuses the
    requests above the limit of the key. A worker with another key gets its weights."""
    server = programs.server("--model", "vector:1000000", *PLAIN, "--key", keys / "server.key",
                             "--max-workers", 2, directory=None)
    public = keys / "server.pub"
    key = Keys(keys / "worker.key", public)
    greedy = Worker(server.endpoint, keys=key)
    links = slow_links(server.endpoint, key, 3)
    for link in links:
        for k in range(10):
            link.send(pb.Pull(stamp=greedy.stamp, request=k + 1, which=pb.WEIGHTS_CURRENT))
    other = Worker(server.endpoint, keys=Keys(keys / "second.key", public))
    assert len(other.pull()[0]) == 1000000
    answers = []
    for link in links:
        while got := link.receive(1):
            answers.append(getattr(got[1], "text", got[0]))
    refused = [text for text in answers if "does not read the weights" in text]
    assert len(refused) > 5 and len(answers) == 30, answers
    assert len(greedy.pull()[0]) == 1000000
    for w in (greedy, other, *links):
        w.close()


def test_trust_chunks_of_one_key_leave_memory_for_the_others(programs, keys):
    """A key sends a large chunk on each of many connections, and never the PUSH. The chunks would
    take 200 MB, but the server does not reach its memory limit, and closes no connection of another
    key."""
    server = programs.server("--model", "vector:1000000", *PLAIN, "--key", keys / "server.key",
                             "--memory-mb", 160, "--lane", "tcp", directory=None)
    public = keys / "server.pub"
    other = Worker(server.endpoint, keys=Keys(keys / "second.key", public))
    links = []
    for _ in range(50):
        links.append(Link(server.endpoint, Keys(keys / "worker.key", public)))
        links[-1].send_frames([b"\0", bytes(4 * 999990)])
        # keeps the session of `other` alive, because the loop can take long
        other.maybe_heartbeat()
    until(lambda: other.maybe_heartbeat() or
          metric(server, "messages_received_total") > len(links), 20, "the chunks")
    time.sleep(0.3)  # the server compares its memory with the limit every 50 ms
    assert len(other.pull()[0]) == 1000000
    assert not any("memory_short" in line for line in server.lines)
    for w in (other, *links):
        w.close()


def received(server, n):
    """Wait until the server has received n messages."""
    until(lambda: metric(server, "messages_received_total") >= n, 20, f"{n} messages")


def test_trust_worker_ids_use_no_share_of_another_key(programs, keys):
    """While the disk hangs, an observer and a worker send messages with the ids of many workers,
    also of the worker of another key. Each key must use up only its own share of the queue of
    events that wait for the write-ahead log, whatever worker ids its messages contain. After the
    hang the log must continue, and no push of the other key may be dropped."""
    how = programs.directory / "how"
    server = programs.server("--model", "vector:20000", *PLAIN, "--key", keys / "server.key",
                             "--durability", "always", "--dead-ms", 60000, env={
                                 "LD_PRELOAD": str(BUILD / "tests/fault/disk.so"),
                                 "DISK_HANG": str(how), "DISK_ROOT": str(programs.directory / "ckpt")})
    public, gradient = keys / "server.pub", np.zeros(20000, np.float32)
    own = Keys(keys / "second.key", public)
    honest = Worker(server.endpoint, keys=own)
    thief = Worker(server.endpoint, keys=Keys(keys / "worker.key", public))
    observer = Link(server.endpoint, Keys(keys / "observer.key", public))
    how.touch()
    honest.push(gradient, 0, wait=False)
    n = metric(server, "messages_received_total")
    forged = pb.Stamp()
    forged.CopyFrom(honest.stamp)
    forged.incarnation += 1
    theft = encode(pb.Push(stamp=forged, seq=1), [(0, gradient)])
    for _ in range(30):
        thief.bulk.send_frames(theft)
    for i in range(100):
        forged.worker = 1 + i % 64
        body = pb.Bye(stamp=forged)
        body.MergeFromString(b"\x82\x7d\xe0\xd4\x03" + bytes(60000))  # field 2000, unknown
        observer.send(body)
        honest.maybe_heartbeat()
    received(server, n + 130)
    for _ in range(7):
        honest.push(gradient, 0, wait=False)
    received(server, n + 137)
    until(lambda: honest.maybe_heartbeat() or thief.bulk.try_send_frames(theft) and
          any("server drops" in line for line in server.lines), 20, "the line about drops")
    how.unlink()
    acks = []
    while acks[-1:] != [8]:  # the server also sends notices that it waits for its disk
        name, body, _ = honest.bulk.receive()
        acks += [body.seq] if name == "ack" else []
    assert acks == list(range(1, 9))
    assert not any("server drops" in line and own.own[0][:8].decode() in line or "wal failed" in line
                   for line in server.lines)
    for w in (honest, thief, observer):
        w.close()


def test_trust_a_revoked_key_loses_its_connections(programs, keys):
    server = programs.server(*LEDGER, "--key", keys / "server.key", directory=None)
    public = keys / "server.pub"
    revoked = Honest(server.endpoint, keys=Keys(keys / "second.key", public))
    revoked.push_next()
    file = keys / "authorized_keys"
    file.write_text("".join(line for line in file.read_text().splitlines(True)
                            if not line.rstrip().endswith("second")))
    server.signal(SIGHUP)
    server.line("auth list_read")
    sent, end = 0, time.monotonic() + 1
    # when the server has closed the connection, the queue fills up and try_send returns 0
    while sent < 20000 and time.monotonic() < end:
        if revoked.bulk.try_send(pb.Heartbeat(stamp=revoked.stamp)):
            sent, end = sent + 1, time.monotonic() + 1
    assert sent < 20000
    assert Worker(server.endpoint, keys=Keys(keys / "worker.key", public)).pull()[1] == 1
    assert server.status()["counters"]["unauthorized"] < 5000
    revoked.close()


def test_trust_a_key_in_quarantine_is_refused_until_it_is_released(programs, keys):
    """The server excludes workers of one key three times. Each time the worker has another name.
    After the third time the server refuses the key until an admin releases it, even after a
    restart. The server continues to accept other keys."""
    options = *LEDGER, "--key", keys / "server.key"
    server = programs.server(*options)
    public = keys / "server.pub"
    bad, good = (Keys(keys / f"{name}.key", public) for name in ("second", "worker"))
    honest = Honest(server.endpoint, keys=good)
    honest.goes_on()
    for name in ("a", "b", "c"):
        assert server.status()["quarantine"] == []
        assert exclude(server.endpoint, name=name, keys=bad).code == EQUARANTINE

    def refused():
        with pytest.raises(Refused) as e:
            Worker(server.endpoint, name="d", keys=bad)
        assert e.value.code == EQUARANTINE and "cnn-ctl release" in str(e.value)

    def ctl(role, *arguments, code=0):
        return programs.ctl("--server", server.endpoint, "--server-key", public, "--key",
                            keys / f"{role}.key", *arguments, code=code)

    refused()
    honest.goes_on()
    server.kill()
    server = programs.restart(server, *options)
    refused()
    [entry] = json.loads("\n".join(ctl("observer", "status").out))["quarantine"]
    assert entry["exclusions"] == 3 and entry["name"].startswith("c@")
    assert metric(server, "quarantined") == 1
    assert f"in quarantine: {entry['name']}, excluded 3 times" in \
        "\n".join(ctl("observer", "top", "--once").out)
    ctl("observer", "release", entry["name"], code=9)
    ctl("admin", "release", "nobody", code=2)
    refused()
    assert ctl("admin", "release", "--", entry["key"]).out == [f"released {entry['key']}"]
    server.line('msg="server release"')
    [line] = [line for line in server.lines if 'msg="server release"' in line]
    assert f'worker="{entry["key"]}"' in line
    assert server.status()["quarantine"] == []
    assert metric(server, "quarantined") == 0
    Worker(server.endpoint, name="d", keys=bad).close()
    honest.endpoint = server.endpoint
    honest.reconnect()
    honest.goes_on()
    honest.close()


def test_trust_the_owner_of_a_hello_is_the_servers(server):
    link = Link(server.endpoint)
    link.send(hello(owner="x" * 40))
    with pytest.raises(Refused) as e:
        link.expect("welcome")
    assert e.value.code == 12
    link.close()


def with_long_history(programs, *options):
    """Makes a run whose history has nearly the maximum size, and ends its server. Returns the
    server."""
    server = programs.server(*options)
    worker = Worker(server.endpoint)
    end = time.monotonic() + 2.5  # the history has a sample each second
    while time.monotonic() < end:
        worker.push(0 * worker.pull()[0], 0)
    worker.bye()
    server.signal(SIGTERM)
    assert server.wait(20) == 0
    file = server.directory / "history.jsonl"
    first, *rest = [json.loads(line) for line in file.read_text().splitlines()]
    sample = next(o for o in reversed(rest) if o["kind"] == "sample")
    n = (15 << 18) // (len(json.dumps(sample, separators=(",", ":"))) + 1)
    begin, first["t"] = sample["t"], sample["t"] - (n + 1) * 1000
    old = [{**sample, "t": begin - (n - i) * 1000} for i in range(n)]
    file.write_text("".join(json.dumps(o, separators=(",", ":")) + "\n"
                            for o in [first, *old, *rest]))
    return server


def slow_reader(url):
    """Requests the history, and reads nothing of the answer."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect((url[1], int(url[2])))
    reader.sendall(b"GET /history HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return reader


def test_trust_slow_readers_of_the_history_leave_memory_for_the_workers(programs):
    """One address requests a history of 4 MB on 47 connections, and reads nothing. The server does
    not reach its memory limit, and closes no connection of a worker."""
    options = ("--model", "vector:64", *PLAIN, "--lane", "tcp", "--memory-mb", 48)
    server = programs.restart(with_long_history(programs, *options), *options)
    url = server.line(r"http listening.*http://([^:]+):(\d+)")
    worker, readers = Worker(server.endpoint), []
    zero = 0 * worker.pull()[0]
    for _ in range(47):
        readers.append(slow_reader(url))
        end = time.monotonic() + 0.15
        while time.monotonic() < end:
            assert worker.push(zero, 0).verdict == pb.VERDICT_OK
            time.sleep(0.01)
    with urllib.request.urlopen("http://%s:%s/healthz" % url.groups(), timeout=5) as reply:
        assert reply.status == 200
    assert not any("memory_short" in line for line in server.lines)
    for connection in (*readers, worker):
        connection.close()
