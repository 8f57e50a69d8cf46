"""Faults P1 and P2 of docs/faults.md: kill -9 ends workers and the server, at any time, and in
every system call of a push, a checkpoint and a start."""
import os
import random
import time

import pytest

import strace
from support.build import FULL
from support.programs import until

# With one thread in libuv's pool, strace can select the thread that writes checkpoints.
ONE_POOL_THREAD = {"UV_THREADPOOL_SIZE": "1"}


@pytest.fixture
def tracing(figure):
    """Returns a function tracing(row) that skips the test if strace cannot be used."""
    def check(row):
        why = strace.unusable()
        if why:
            figure.cannot(row, why)
    return check


def percentile(times, part):
    return sorted(times)[min(len(times) - 1, int(part * len(times)))]


def spread(places, max_places):
    """Returns at most `max_places` elements of a list, evenly spaced."""
    step = max(1, -(-len(places) // max_places))
    return places[step // 2::step]


def report(figure, row, run, deaths):
    """Report how many pushes were lost or applied twice, and the number of deaths in the run."""
    lost, twice = run.count(300)
    figure(row, lost, f"pushes lost in {deaths} deaths", lost == 0, what="lost")
    figure(row, twice, f"pushes applied twice in {deaths} deaths", twice == 0, what="twice")


# ---- P2: the server ------------------------------------------------------------------------------


class Survival:
    """Records how the server of one run recovers from each kill."""

    def __init__(self, run):
        self.run = run
        self.refused = []  # exit statuses of starts that failed
        self.back = []     # for each start: the seconds from exec to the first new update
        self.deaths = 0

    def restart(self, **how):
        assert all(w.running() for w in self.run.fleet), "it must not end before the last kill"
        self.deaths += 1
        self.begun = time.monotonic()
        self.run.restart_server(**how)

    def come_back(self, **how):
        """Restart the server, and wait until the new process has applied a push."""
        self.restart(**how)
        server = self.run.server
        until(lambda: server.popen.poll() is not None or any("http listening" in line
              for line in server.lines), 30, "it listens")
        if not server.running():
            self.refused.append(server.wait())
            self.run.restart_server(**how)
            return
        found = int(server.line(r"resumed\b.*\bversion=(\d+)")[1])
        until(lambda: server.status()["version"] > found, 60, "a new update")
        self.back.append(time.monotonic() - self.begun)

    def report(self, figure, what):
        named = f", {self.refused[:3]}" if self.refused else ""
        figure("P2", len(self.refused), f"starts refused in {self.deaths}{named}",
               not self.refused, what=f"{what} refused")
        figure("P2", percentile(self.back, 0.99) * 1e3, "ms from exec to the first new update, p99",
               percentile(self.back, 0.99) <= 5, what=f"{what} back")
        report(figure, "P2", self.run, self.deaths)


@pytest.mark.parametrize("part", range(10 if FULL else 1))
def test_server_killed_at_any_time(ledger, figure, seed, full, part):
    """Kill the server of a run with four workers 100 times, at random moments; the long form has
    ten such runs. After a third of the kills, the test does not wait until the next server has
    recovered, so that the next kill may come during its start."""
    dice = random.Random(seed * 10 + part)
    kills, pushes = (100, 7000) if full else (12, 900)
    run = ledger(4, pushes, pace=(4,))
    survival = Survival(run)
    run.reached(0)
    for k in range(kills):
        early = dice.random() < 0.33
        moment = time.monotonic() + dice.uniform(0, 0.04 if early else 0.1)
        until(lambda: time.monotonic() >= moment, 1, "the moment")
        if run.server.popen.poll() not in (None, -9):
            survival.refused.append(run.server.wait())
        run.server.kill()
        if early and k < kills - 1:
            survival.restart()
        else:
            survival.come_back()
    survival.report(figure, "kills")


def checkpointer_calls(programs, pid):
    """Returns the system calls of one checkpoint, as a list of pairs (name, n): the nth call of the
    system call `name`. A checkpoint begins when the server opens the directory, and ends when it
    opens the directory for the next checkpoint."""
    def whole(seen):
        starts = [i for i, (_, line) in enumerate(seen) if "O_DIRECTORY" in line and "/ckpt" in line
                  and "O_NONBLOCK" not in line]
        return len(starts) >= 3
    seen = strace.watch(programs, strace.checkpointer(pid), whole)
    starts = [i for i, (_, line) in enumerate(seen) if "O_DIRECTORY" in line and "/ckpt" in line
              and "O_NONBLOCK" not in line]
    counted, places = {}, []
    for name, _ in seen[starts[0]:starts[1]]:
        counted[name] = counted.get(name, 0) + 1
        places.append((name, counted[name]))
    return places


def kill_in_threads(programs, survival, threads, places, **how):
    for name, nth in places:
        run = survival.run
        tracer = strace.kill_at(programs, threads(run.server.popen.pid), name, nth)
        assert run.server.wait(30) == -9, f"{name} {nth}: {run.server.tail()}"
        tracer.wait(10)
        survival.come_back(**how)


def test_server_killed_in_every_call_of_a_checkpoint(programs, ledger, tracing, figure, full):
    tracing("P2")
    run = ledger(2, 16000 if full else 1000, pace=(4,), env=ONE_POOL_THREAD)
    run.reached(0)
    places = checkpointer_calls(programs, run.server.popen.pid)
    names = {name for name, _ in places}
    assert {"openat", "write", "fsync", "renameat", "close"} <= names, places
    if not full:
        places = spread(places, 8)
    survival = Survival(run)
    kill_in_threads(programs, survival, strace.checkpointer, places, env=ONE_POOL_THREAD)
    figure("P2", len(places), "system calls of a checkpoint interrupted",
           survival.deaths == len(places), what="places")
    survival.report(figure, "checkpoint")


def test_server_killed_in_every_call_of_a_push(programs, ledger, tracing, figure, full):
    """Kill the server in each system call that the event loop or a thread of libzmq uses: in the
    first call of each name, and in some later ones."""
    tracing("P2")
    # in a lane, few messages come through the threads of libzmq
    run = ledger(3, 16000 if full else 1000, "--lane", "tcp", pace=(4,))
    run.reached(0)
    places = []
    for threads in (strace.loop, strace.wire):
        seen = strace.watch(programs, threads(run.server.popen.pid),
                            lambda calls: len(calls) >= 500)
        for name, times in strace.count(seen).items():
            places += [(threads, name, n) for n in (1, 2, 3, 5, 8, 13) if n * 5 <= times
                       and name != "restart_syscall"]
    if not full:
        places = spread(places, 6)
    survival = Survival(run)
    for threads, name, nth in places:
        kill_in_threads(programs, survival, threads, [(name, nth)])
    figure("P2", len(places), "system calls of a push interrupted", len(places) == survival.deaths,
           what="places")
    survival.report(figure, "push")


def start_places(programs, run):
    """Returns the system calls of a start on a used directory, from the first access to the
    directory to the first log line, as [(name, n)] for the nth call of this name since exec."""
    log = programs.directory / "start.log"
    run.server.kill()
    run.restart_server(wrap=("strace", "-o", log))
    run.server.line("net listening")
    os.kill(int((run.server.directory / "LOCK").read_text()), 9)
    run.server.wait(10)
    counted, places, begun = {}, [], False
    for name, line in strace.calls(log.read_text(errors="replace").splitlines()):
        counted[name] = counted.get(name, 0) + 1
        begun = begun or "/ckpt" in line and name != "execve"
        if begun and line.startswith("write(2,"):
            break
        if begun:
            places.append((name, counted[name]))
    return places


def test_server_killed_in_every_call_of_a_start(programs, ledger, tracing, figure, full):
    """Kill the server in each system call of its start. A start binds its port, then writes the
    term and a checkpoint, and only then answers messages."""
    tracing("P2")
    run = ledger(2, 16000 if full else 1000, pace=(4,))
    run.reached(0)
    places = start_places(programs, run)
    assert sum(name == "renameat" for name, _ in places) == 2, "TERM and the first checkpoint"
    if not full:
        places = spread(places, 8)
    survival = Survival(run)
    for name, nth in places:
        # strace must start the server that it kills, so first kill the server that runs.
        run.server.kill()
        dying = programs.server(*run.options, endpoint=run.server.endpoint, wrap=(
            "strace", "-o", "/dev/null", *strace.inject(name, "signal=KILL", nth)))
        assert dying.wait(30) == -9, f"{name} {nth}: {dying.tail()}"
        survival.come_back()
    figure("P2", len(places), "system calls of a start interrupted", len(places) == survival.deaths,
           what="places")
    survival.report(figure, "start")


# ---- P1: workers ---------------------------------------------------------------------------------


def test_worker_killed_in_every_send(ledger, tracing, figure, seed, full):
    """Kill worker 0 in its Nth write to a socket and start it again, for several N. The other
    workers must continue."""
    tracing("P1")
    run = ledger(3, 30000 if full else 1500, pace=(10 if full else 5,))
    run.reached(0)
    places = list(range(1, 201)) if full else [1, 2, 5, 11, 40]
    for nth in places:
        run.fleet[0].kill()
        run.start_worker(0, wrap=("strace", "-f", "-o", "/dev/null",
                                  *strace.inject("sendto", "signal=KILL", nth)))
        assert run.fleet[0].wait(60) == -9, f"sendto {nth}: {run.fleet[0].tail()}"
    begun = time.monotonic()
    run.start_worker(0)
    resumed = int(run.fleet[0].line(r"resumed (\d+)")[1])
    figure("P1", (time.monotonic() - begun) * 1e3, "ms until the new process works",
           time.monotonic() - begun < 5, what="rejoin")
    assert resumed > 0 and all(w.running() for w in run.fleet), "it has gone on where it was"
    report(figure, "P1", run, len(places))


def test_worker_killed_in_every_other_call(ledger, tracing, figure, full):
    """Kill worker 0 in system calls that do not send: for example, calls that wake a thread, and
    calls that read the socket."""
    tracing("P1")
    run = ledger(3, 8000 if full else 1500, pace=(5,))
    run.reached(0)
    names = ["recvfrom", "epoll_wait", "write", "read", "poll", "futex", "connect", "socket",
             "epoll_ctl", "getpid", "eventfd2", "setsockopt"]
    places = [(name, nth) for nth in ((1, 2, 3, 5, 8, 13, 21, 34) if full else (3,))
              for name in names]
    died = 0
    for name, nth in places if full else spread(places, 4):
        run.fleet[0].kill()
        run.start_worker(0, wrap=("strace", "-f", "-o", "/dev/null",
                                  *strace.inject(name, "signal=KILL", nth)))
        until(lambda: not run.fleet[0].running() or run.fleet[0].out, 30, "it dies, or is at work")
        died += run.fleet[0].popen.poll() == -9
    run.kill_worker(0) if run.fleet[0].running() else run.start_worker(0)
    figure("P1", died, "deaths in other system calls than sendto", died > 0, what="other calls")
    report(figure, "P1", run, died)


@pytest.mark.alone
def test_death_is_noticed(ledger, figure, full):
    """With the default heartbeats, the server notices the death of a worker in time. A new process
    with the worker's name gets its slot at once."""
    run = ledger(2, 1500 if full else 400, pace=(10,))
    run.reached(0)
    times = []
    for _ in range(10 if full else 2):
        place = len(run.server.lines)
        run.fleet[0].kill()
        killed = time.monotonic()
        run.server.line(r"worker silent\b.*name=\"ledger-0\"", after=place)
        times.append(time.monotonic() - killed)
        run.start_worker(0)
        run.fleet[0].line("pushed")
    figure("P1", max(times) * 1e3, f"ms at most until a death is noticed, in {len(times)} deaths",
           max(times) <= (1.5 if full else 1.75), what="detect")
    report(figure, "P1", run, len(times))
