"""Fault P10 of docs/faults.md: a worker that receives SIGTERM gives its work back and exits with
12."""
import os
import signal
import time

import pytest

from support.build import PATIENCE, command
from support.programs import SIGTERM, Process, until

STOPPED = 12
# With these times the server declares no worker dead during the test, so a leased batch becomes
# free only when its worker sends BYE.
NEVER_DEAD = ("--suspect-ms", 590000, "--dead-ms", 600000)
# a model whose batches take seconds on the device cpu-ref
SLOW_MODEL = "conv:64:5 relu conv:64:5 relu pool:2 fc:10"


def slow_worker(programs, server, small, *options):
    return programs.add(Process("cnn-worker", command(
        "cnn-worker", "--server", server.endpoint, "--data", small, "--device", "cpu-ref",
        "--log-level", "debug", *options)))


def cpu_seconds(process):
    fields = open(f"/proc/{process.popen.pid}/stat").read().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


def images(server):
    return server.status()["images"]


@pytest.mark.parametrize("mode, options", [
    ("downpour", ("--n-push", 3)), ("downpour", ("--n-push", 4, "--n-fetch", 4)), ("sync", ()),
    ("sandblaster", ()), ("easgd", ("--n-push", 4))])
def test_preempted_worker(programs, figure, small, mode, options):
    """Send SIGTERM to a worker and start a new worker instead, three times. Each image counts once
    per epoch."""
    server = programs.server("--model", "seed:8", "--epochs", 8, "--mode", mode, "--batch-size", 20,
                             "--min-workers", 2, *NEVER_DEAD, *options)
    fleet = [programs.worker(server.endpoint, data=small) for _ in range(2)]
    times = []
    for i in range(3):
        until(lambda: images(server) > (i + 1) * 6000, 60, "progress")
        begun = time.monotonic()
        fleet[0].signal(SIGTERM)
        assert fleet[0].wait(10) == STOPPED, fleet[0].tail()
        times.append(time.monotonic() - begun)
        fleet[0] = programs.worker(server.endpoint, data=small)
        # before it logs this line, a worker may have no handler for SIGTERM
        fleet[0].line("worker connected")
    result = server.result()
    wrong = sum(n != 6000 for n in result["images_per_epoch"])
    assert len(result["images_per_epoch"]) == 8
    assert [w.wait(10) for w in fleet] == [0, 0], "0: training is done"
    figure("P10", max(times) * 1e3, "ms from SIGTERM to a worker's end", max(times) <= 5 * PATIENCE,
           what="end")
    figure("P10", wrong, "epochs with an image lost or counted twice", wrong == 0, what="batches")


def test_returned_lease(programs, figure, small):
    """A worker that leaves in the middle of its lease returns the lease, so that another worker can
    finish the epoch at once."""
    server = programs.server("--model", SLOW_MODEL, "--epochs", 1, "--batch-size", 20,
                             "--max-updates", 6, *NEVER_DEAD)
    slow = slow_worker(programs, server, small)
    until(lambda: server.status()["updates"] >= 1, 60 * PATIENCE, "a batch")
    slow.signal(SIGTERM)
    assert slow.wait(30 * PATIENCE) == STOPPED, slow.tail()
    done = server.status()["updates"]
    programs.worker(server.endpoint, data=small)
    result = server.result()
    figure("P10", result["updates"], f"updates, {done} of them before the worker left",
           result["updates"] == 6 and done < 6)


def test_grace_is_over(programs, figure, small):
    """A batch takes longer than --grace-ms: the worker exits in time, without the result of the
    batch."""
    server = programs.server("--model", SLOW_MODEL, "--epochs", 1, "--batch-size", 1000,
                             "--min-workers", 1)
    slow = slow_worker(programs, server, small, "--grace-ms", 300)
    until(lambda: cpu_seconds(slow) > 1, 60 * PATIENCE, "it computes")
    begun = time.monotonic()
    slow.signal(SIGTERM)
    assert slow.wait(10) == STOPPED, slow.tail()
    took = time.monotonic() - begun
    slow.line(r'worker stopped" reason="--grace-ms 300 is over"', 0.1)
    assert images(server) == 0
    figure("P10", took * 1e3, "ms from SIGTERM to the end, in a batch of minutes",
           0.25 <= took <= 3 * PATIENCE)


def test_grace_with_a_silent_server(programs, figure, small):
    """The server hangs: a worker that receives SIGTERM still exits in time. When the server
    continues, another worker finishes the run."""
    server = programs.server("--model", "seed:8", "--epochs", 4)
    worker = programs.worker(server.endpoint, "--grace-ms", 1000, data=small)
    until(lambda: images(server) > 1000, 20, "training")
    server.signal(signal.SIGSTOP)
    begun = time.monotonic()
    worker.signal(SIGTERM)
    assert worker.wait(10) == STOPPED, worker.tail()
    took = time.monotonic() - begun
    server.signal(signal.SIGCONT)
    programs.worker(server.endpoint, data=small)
    result = server.result()
    figure("P10", took * 1e3, "ms from SIGTERM to the end", took <= 4 * PATIENCE, what="end")
    assert result["images_per_epoch"] == [6000] * 4


def test_stopped_before_it_connects(programs, data):
    """A worker that receives SIGTERM before it has connected exits at once."""
    worker = programs.worker("tcp://127.0.0.1:1", data=data)
    worker.line("worker data")
    worker.signal(SIGTERM)
    assert worker.wait(5) == STOPPED, worker.tail()


def test_workers_of_a_drained_server(programs, small):
    """A drain ends the workers before the training is complete. They must not exit with 0: only
    then does a supervisor start them again together with the server."""
    server = programs.server("--model", "seed:8", "--epochs", 1000)
    worker = programs.worker(server.endpoint, data=small)
    until(lambda: images(server) > 1000, 20, "training")
    server.signal(SIGTERM)
    assert server.wait(10) == 0, server.tail()
    assert worker.wait(10) == STOPPED, worker.tail()
