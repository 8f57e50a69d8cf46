"""Fault P9 of docs/faults.md: clocks that jump. The server and the workers measure time only with
CLOCK_MONOTONIC, and work with any start value of this clock."""
import glob
import os
import shutil
import subprocess
import time

import pytest

from support.programs import SIGTERM, until

JUMPS = ["+3600", "-3600", "@1970-01-01 12:00:00", "@2106-02-07 07:00:00", "@2038-01-19 04:00:00"]


@pytest.fixture
def wall(figure, tmp_path):
    """Returns (the environment of a program whose wall clock the test sets, the function
    set_clock(to) that sets it)."""
    found = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
    if not found:
        figure.cannot("P9", "libfaketime is not installed")
    file = tmp_path / "clock"
    env = {"LD_PRELOAD": found[0], "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1",
           "FAKETIME_DONT_FAKE_MONOTONIC": "1", "TZ": "UTC"}

    def set_clock(to):
        new = tmp_path / "clock.new"
        new.write_text(to + "\n")
        new.rename(file)
    set_clock("+0")
    return env, set_clock


def year(env):
    return int(subprocess.run(["date", "+%Y"], env={**os.environ, **env}, text=True,
                              capture_output=True, check=True).stdout)


def saved_in(server, seconds):
    """Returns the number of checkpoints that the server saves in the next `seconds`."""
    before, end = server.status()["checkpoint"]["saved"], time.monotonic() + seconds
    until(lambda: time.monotonic() >= end, seconds + 5, "the window")
    return server.status()["checkpoint"]["saved"] - before


def test_wall_clock_jumps(ledger, wall, figure, full):
    """The server's wall clock jumps by an hour back and forth, and to 1970, 2038 and 2106."""
    env, set_clock = wall
    run = ledger(3, 3000 if full else 700, pace=(10,), env=env)
    run.reached(0)
    set_clock("@1970-01-01 12:00:00")
    assert year(env) == 1970, "the wall clock can be turned"
    missed = extra = 0
    window = 2 if full else 1
    for to in JUMPS:
        set_clock(to)
        saved = saved_in(run.server, window)
        # The server should save 20 checkpoints per second. If other programs use the machine, the
        # server saves fewer, so the test requires only 5.
        missed += saved < window * 5
        extra += saved > window * 20 + 2
    counters = run.server.status()["counters"]
    silent = sum("worker silent" in line for line in run.server.lines)
    figure("P9", counters["deaths"] + silent, f"workers declared dead in {len(JUMPS)} jumps",
           counters["deaths"] + silent == 0, what="deaths")
    figure("P9", missed + extra, "jumps after which checkpoints were missed or too many",
           missed + extra == 0, what="checkpoints")
    lost, twice = run.count(300)
    figure("P9", lost + twice, "pushes lost or applied twice", lost + twice == 0, what="ledger")


@pytest.mark.parametrize("wraps_at", [2**31, 2**32])
def test_monotonic_clock_passes(ledger, figure, wraps_at):
    """The server's monotonic clock passes 2^31 or 2^32 milliseconds (25 or 50 days) in the middle
    of a run."""
    offset = wraps_at // 1000 - int(time.monotonic()) - 2
    prefix = ("unshare", "--time", f"--monotonic={offset}", "--fork", "--kill-child")
    tried = shutil.which("unshare") and subprocess.run([*prefix, "true"], capture_output=True)
    if not tried or tried.returncode:
        figure.cannot("P9", "no time namespace can be made here")
    run = ledger(2, 400, pace=(10,), wrap=prefix)
    for worker in run.fleet:
        assert worker.wait(60) == 0, worker.tail()
    pid = int((run.server.directory / "LOCK").read_text())
    with open(f"/proc/{pid}/timens_offsets") as file:
        assert str(offset) in file.read()
    counters = run.server.status()["counters"]
    os.kill(pid, SIGTERM)  # signal the server itself, because unshare ignores SIGTERM
    assert run.server.wait(10) == 0, run.server.tail()
    silent = sum("worker silent" in line for line in run.server.lines)
    figure("P9", counters["deaths"] + silent, "workers declared dead",
           counters["deaths"] + silent == 0, what="deaths")
    lost, twice = run.tally()
    figure("P9", lost + twice, "pushes lost or applied twice", lost + twice == 0, what="ledger")
