"""Measures the time from the death of a server to the next update, and how much the death of a
worker slows the other workers."""
import time

import pytest

from support.build import PATIENCE

pytestmark = pytest.mark.alone
WORKERS = 16


def worst(values, percent=1):
    """Returns a high percentile: `percent` percent of the values are greater."""
    return sorted(values)[-1 - len(values) * percent // 100]


def milliseconds(probe, since, seconds=30):
    """Call probe() every two milliseconds until it is true. Returns the time in ms from `since` to
    the end of the wait."""
    while not probe():
        assert time.monotonic() < since + seconds, "not in time"
        time.sleep(0.002)
    return (time.monotonic() - since) * 1e3


def seqs(run):
    return {w["name"]: w["last_seq"] for w in run.server.status()["workers"]}


@pytest.mark.parametrize("level", ["replay", "always"])
def test_first_update_after_a_kill(ledger, figure, full, level):
    """A server with 16 workers is killed with -9. The next server starts at the same moment, and
    the workers keep running."""
    kills = 100 if full else 2
    run = ledger(WORKERS, 300 + 30 * kills if full else 200, "--durability", level, pace=(20,))
    first, everybody = [], []
    for _ in range(kills):
        milliseconds(lambda: sum(n >= 5 for n in seqs(run).values()) == WORKERS, time.monotonic())
        # popen.kill does not wait, so the killed server may still hold its lock and its port.
        run.server.popen.kill()
        begun = time.monotonic()
        run.restart_server()
        found = int(run.server.line(r"resumed\b.*\bversion=(\d+)")[1])
        first.append(milliseconds(lambda: run.server.status()["version"] > found, begun))
        before = seqs(run)
        everybody.append(milliseconds(lambda: all(n > before[name] for name,
                                                  n in seqs(run).items()),
                                      begun))
    assert all(w.running() for w in run.fleet)
    unit = f"ms p99 from exec to the first new update, {kills} kills, {WORKERS} workers"
    figure("P2", worst(first), unit, worst(first) <= 500 * (1 if full else 4) * PATIENCE,
           what=level)
    unit = "ms p99 until the server has accepted or rejected a new push of every worker"
    figure("P2", worst(everybody), unit,
           worst(everybody) <= 2000 * (1 if full else 4) * PATIENCE, what=f"{level} everybody")
    lost, twice = run.count(300)
    assert lost + twice == 0


def pushed_in(run, names, seconds):
    """Returns the number of pushes per second of the workers `names`, over the next `seconds`."""
    begun, before = time.monotonic(), seqs(run)
    milliseconds(lambda: time.monotonic() >= begun + seconds, begun)
    after = seqs(run)
    return sum(after[n] - before[n] for n in names) / (time.monotonic() - begun)


def test_a_death_does_not_slow_the_others(ledger, figure, full):
    """Four workers push at a rate that the machine can sustain. The test kills one worker, and the
    server declares this worker dead after its silence. The death must not slow down the other three
    workers."""
    rounds, seconds = (10, 2.5) if full else (2, 2)
    run = ledger(4, int((rounds * 2 * seconds + 30) * 100), pace=(10,))
    others = ["ledger-1", "ledger-2", "ledger-3"]
    milliseconds(lambda: sum(n >= 5 for n in seqs(run).values()) == 4, time.monotonic())
    before = after = 0
    for _ in range(rounds):
        before += pushed_in(run, others, seconds)
        run.fleet[0].kill()
        after += pushed_in(run, others, seconds)
        run.start_worker(0)
        run.fleet[0].line("pushed")
    dip = 100 * (1 - after / before)
    figure("P1", dip, f"percent fewer pushes of the others in {rounds} deaths",
           dip < (5 if full else 20), what="dip")
