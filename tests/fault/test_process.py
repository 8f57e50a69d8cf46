"""Faults P6 to P8, P10, P11, P14, P15 and P17 of docs/faults.md: a process hangs, runs slowly,
ends, restarts again and again, or belongs to an old run."""
import hashlib
import os
import random
import re
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import cgroup
import strace
from support import safetensors
from support.build import BUILD, FLAVOUR, command
from support.programs import SIGTERM, Process, until


def percentile(times, part):
    return sorted(times)[min(len(times) - 1, int(part * len(times)))]


def report(figure, row, run, what):
    """Drain the server, and report how many pushes were lost or applied twice."""
    lost, twice = run.count(300)
    figure(row, lost + twice, f"pushes lost or applied twice ({what})", lost + twice == 0,
           what="ledger")


def trained(server, images):
    until(lambda: server.status()["images"] >= images, 120, f"{images} images trained")


# ---- P6: a worker hangs --------------------------------------------------------------------------


def test_stopped_worker_is_noticed(ledger, figure, seed, full):
    """SIGSTOP stops a worker that has the default heartbeats: the server notices that the worker is
    silent. After SIGCONT the worker continues."""
    run = ledger(4, 1500 if full else 250, pace=(40 if full else 12,))
    run.reached(0)
    dice, times = random.Random(seed), []
    for _ in range(20 if full else 1):
        place, stopped = len(run.server.lines), {}
        for i in dice.sample(range(4), 3):
            stopped[i] = time.monotonic()
            run.fleet[i].signal(signal.SIGSTOP)
        for i, begun in stopped.items():
            run.server.line(rf"worker silent\b.*name=\"ledger-{i}\"", after=place)
            times.append(time.monotonic() - begun)
        for i in stopped:
            run.fleet[i].signal(signal.SIGCONT)
        for i in stopped:
            run.server.line(rf"worker back\b.*name=\"ledger-{i}\"", after=place)
    for w in run.fleet:
        w.signal(signal.SIGCONT)
    figure("P6", percentile(times, 0.99) * 1e3,
           f"ms until a hang is noticed, p99 of {len(times)} hangs",
           percentile(times, 0.99) <= 1.8, what="detect")
    report(figure, "P6", run, f"{len(times)} hangs")


# With these times the server soon notices a death, so that the tests are short.
SOON = ("--heartbeat-ms", 100, "--suspect-ms", 400, "--dead-ms", 1000, "--recovery-ms", 1000)
EPOCHS = 40  # the run lasts longer than the server needs to notice a death


@pytest.mark.parametrize("mode", ["downpour", "sync"])
def test_worker_that_slept_past_its_death(programs, figure, small, mode):
    """The server grants the batches of a worker that SIGSTOP has stopped to other workers. After
    SIGCONT wakes the worker, no image counts twice."""
    server = programs.server("--model", "seed:8", "--epochs", EPOCHS, "--mode", mode,
                             "--min-workers", 3, *SOON)
    fleet = [programs.worker(server.endpoint, data=small) for _ in range(3)]
    trained(server, 3000)
    fleet[0].signal(signal.SIGSTOP)
    server.line("worker silent")
    seen = server.status()["images"]
    server.line("worker gone")
    trained(server, seen + 1000)  # wait until the other workers have trained 1000 more images
    fleet[0].signal(signal.SIGCONT)
    result = server.result()
    wrong = sum(n != 6000 for n in result["images_per_epoch"])
    figure("P6", wrong, "epochs with an image lost or counted twice", wrong == 0, what="batches")
    assert len(result["images_per_epoch"]) == EPOCHS
    assert [w.wait(30) for w in fleet[1:]] == [0, 0]
    # the exit status may be any, because the run may end before this worker has connected again
    fleet[0].wait(30)


@pytest.mark.alone
def test_busy_machine_kills_nobody(programs, figure, small, full):
    """With twice as many runnable processes as CPUs, for ten minutes in the long form, the server
    suspects no live worker."""
    spin = [programs.add(Process("spin", ["/bin/sh", "-c", "while :; do :; done"]))
            for _ in range(2 * os.cpu_count())]
    server = programs.server("--model", "seed:32", "--epochs", 10000)
    fleet = [programs.worker(server.endpoint, data=small) for _ in range(2)]
    trained(server, 100)
    seconds = 600 if full else 3
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end, 700, "the time")
    suspected = sum("worker silent" in line for line in server.lines)
    figure("P6", suspected, f"live workers suspected in {seconds} s", suspected == 0, what="false")
    assert all(p.running() for p in (*spin, *fleet))


# ---- P7: the server hangs ------------------------------------------------------------------------


def healthy(server, seconds, page="/healthz"):
    """Returns True if the page answers with status 200 within this number of seconds."""
    url = server.line(r"http listening.* url=(\S+?)/?$")[1] + page
    try:
        with urllib.request.urlopen(url, timeout=seconds) as page:
            return page.status == 200
    except (urllib.error.URLError, OSError):
        return False


def test_stopped_server(ledger, figure, full):
    """The workers of a stopped server wait. A supervisor that probes /livez every second notices
    that the server hangs, kills it and starts another."""
    run = ledger(3, 2000 if full else 300, pace=(4,))
    run.reached(0)
    probe = 2 if full else 0.5
    assert healthy(run.server, 5) and healthy(run.server, 5, "/livez")
    run.server.signal(signal.SIGSTOP)
    begun = time.monotonic()
    until(lambda: not healthy(run.server, probe, "/livez"), 10, "the probe fails")
    decided = time.monotonic() - begun
    stood = [run.pushed() for _ in range(2)]
    assert all(w.running() for w in run.fleet), "workers wait"
    assert stood[0] == stood[1], "nobody gets more than its window done"
    run.kill_server()
    figure("P7", decided, f"s until a probe with a time-out of {probe} s requests a restart",
           decided <= 6, what="decision")
    report(figure, "P7", run, "one hang and restart")


def test_server_that_wakes_up_again(ledger, figure, full):
    """SIGSTOP stops the server for some seconds, and SIGCONT lets it continue. This time must not
    count as a silence of the workers: no worker may end, and the server must declare none dead."""
    run = ledger(3, 2000 if full else 300, pace=(4,))
    run.reached(0)
    run.server.signal(signal.SIGSTOP)
    end = time.monotonic() + (30 if full else 2)
    until(lambda: time.monotonic() >= end, 40, "the hang's end")
    run.server.signal(signal.SIGCONT)
    report(figure, "P7", run, "one hang")
    assert not any("worker silent" in line for line in run.server.lines), "the workers were not silent"


# ---- P8: a slow worker ---------------------------------------------------------------------------

@pytest.fixture
def crawl(figure):
    """Yields a function crawl(process) that limits a process to a tenth of one CPU."""
    try:
        group = cgroup.Group(cpu=0.1)
    except cgroup.NoGroup as no:
        figure.cannot("P8", f"no cgroup with a CPU quota: {no}")
    yield group.join
    group.close()


@pytest.mark.alone
def test_slow_worker_slows_nobody(ledger, crawl, figure, full):
    """Worker 0 is limited to a tenth of a CPU. The other workers must keep at least 90 % of their
    push rate."""
    run = ledger(3, 8000 if full else 700, pace=(10,))
    run.reached(0)
    window = 6 if full else 1

    def others():
        """Returns the number of pushes per second of workers 1 and 2 together."""
        marks = []
        for _ in range(2):
            marks.append((time.monotonic(), sum(int(w.out[-1].split()[1]) for w in run.fleet[1:])))
            until(lambda: time.monotonic() >= marks[0][0] + window, window + 1, "the window")
        return (marks[1][1] - marks[0][1]) / (marks[1][0] - marks[0][0])
    normal = others()
    crawl(run.fleet[0])
    # the maximum, because other programs on the machine can only lower the measured rate
    slow = max(others() for _ in range(3))
    figure("P8", 100 * slow / normal,
           "% of the usual rate of the other workers, beside a worker with 0.1 CPU",
           slow >= 0.9 * normal, what="others")
    run.kill_worker(0)
    report(figure, "P8", run, "one slow worker")


def test_sync_steps_do_not_wait_for_the_slow(programs, crawl, figure, small):
    """Sync with one backup worker: a step ends with the first two of three gradients. The gradient
    of the slow worker comes after these two."""
    server = programs.server("--model", "seed:8", "--mode", "sync", "--backup-workers", 1,
                        "--epochs", 4, "--min-workers", 3)
    fleet = [programs.worker(server.endpoint, data=small) for _ in range(3)]
    trained(server, 1000)
    crawl(fleet[0])
    result = server.result()
    wrong = sum(n != 6000 for n in result["images_per_epoch"])
    figure("P8", result["superseded"],
           "late gradients dropped in 4 epochs, with steps that use 2 of 3 gradients",
           result["superseded"] > 0 and wrong == 0, what="sync")


# ---- P10: signals --------------------------------------------------------------------------------


def test_sigterm_drains(ledger, figure, seed, full):
    """SIGTERM or SIGINT drains a server under load, many times. Each time the server exits with 0,
    and its last checkpoint contains every acknowledged push."""
    dice, times, missing = random.Random(seed), [], 0
    rounds = 100 if full else 4
    run = ledger(3, rounds * 60, pace=(2,))
    for _ in range(rounds):
        until(lambda: all(w.out for w in run.fleet), 30, "all are at work")
        moment = time.monotonic() + dice.uniform(0, 0.1)
        until(lambda: time.monotonic() >= moment, 1, "the moment")
        begun = time.monotonic()
        run.server.signal(dice.choice([signal.SIGTERM, signal.SIGINT]))
        assert run.server.wait(10) == 0, run.server.tail()
        times.append(time.monotonic() - begun)
        weights = safetensors.flat(run.programs.export(run.server.directory))
        for i, w in enumerate(run.fleet):
            assert w.wait(10) in (0, 1), w.tail()
            said = " ".join(w.out)
            found = re.search(r"resumed (\d+) .*(?:stopped|done) .*acked=(\d+)", said)
            own = weights[i * run.pushes:(i + 1) * run.pushes]
            if found:  # a worker that printed no such line ended before its WELCOME
                missing += max(0, int(found[1]) + int(found[2]) - int((own == -1).sum()))
        run.restart_server()
        for i in range(3):
            run.start_worker(i)
    figure("P10", percentile(times, 0.99) * 1e3, f"ms until the end, p99 of {rounds} drains",
           percentile(times, 0.99) <= 3, what="drain")
    figure("P10", missing, "acknowledged pushes not in the last checkpoint", missing == 0,
           what="missing")
    report(figure, "P10", run, f"{rounds} drains")


def test_second_sigterm_ends_at_once(programs, figure):
    """A disk that hangs blocks the drain. A second SIGTERM ends the server with status 1."""
    stuck = programs.directory / "stuck"
    server = programs.server("--model", "vector:1000", "--checkpoint-ms", 3600000, env={
        "LD_PRELOAD": str(BUILD / "tests/fault/disk.so"), "DISK_HANG": str(stuck)})
    server.endpoint
    programs.ledger_worker(server.endpoint, 0, 900).line(r"pushed 100\b")
    stuck.touch()
    server.signal(SIGTERM)
    server.line("server draining")
    begun = time.monotonic()
    server.signal(SIGTERM)
    assert server.wait(10) == 1, server.tail()
    took = time.monotonic() - begun
    figure("P10", took * 1e3, "ms from the second signal to status 1", took <= 3, what="second")


def test_other_signals(ledger, figure):
    """The server ignores SIGPIPE, SIGXFSZ and SIGUSR2, and SIGHUP does not change its log level."""
    run = ledger(1, 300, pace=(2,))
    run.reached(0)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGUSR2, signal.SIGHUP):
        run.server.signal(number)
    run.server.line("server no_keys")
    report(figure, "P10", run, "SIGPIPE, SIGXFSZ, SIGUSR2 and SIGHUP")
    assert not any("level=debug" in line for line in run.server.lines)


@pytest.mark.parametrize("number", [SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
@pytest.mark.parametrize("call", ["rt_sigaction", "flock"])
def test_signal_during_the_start(programs, figure, call, number):
    """A signal arrives when the server sets its first signal handler, or while it locks the
    directory: the server completes its start and then drains. SIGHUP has no effect."""
    if strace.unusable():
        figure.cannot("P10", strace.unusable())
    if FLAVOUR != "release" and call == "rt_sigaction":
        pytest.skip("a sanitizer sets handlers before main begins")
    server = programs.add(Process("cnn-ps", [
        "strace", "-o", "/dev/null", *strace.inject(call, f"signal={number.name[3:]}", 1),
        *command("cnn-ps", "--model", "vector:10", "--bind", "tcp://127.0.0.1:0",
                 "--checkpoint-dir", programs.directory / "run")]))
    if number == signal.SIGHUP:
        server.line("server no_keys")
        programs.ctl("--server", server.line(r"net listening.* endpoint=(\S+)")[1], "drain")
    assert server.wait(20) == 0, server.tail()
    if number != signal.SIGHUP:
        server.line(f"server draining.* signal={number.value}", 0.1)
    assert (programs.directory / "run").exists()


# ---- P11: two servers on one directory -----------------------------------------------------------


def digest(directory):
    """Returns {file name: hash of its content} for a directory, without the history file."""
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest()
            for f in sorted(directory.iterdir())
            if f.is_file() and not f.name.startswith("history")}


def test_second_server_on_a_directory(programs, figure, full):
    """A second server on the same directory exits with 8, names the process that holds it, and
    changes no byte. kill -9 of the first server frees the directory."""
    first = programs.server("--model", "vector:10")
    first.endpoint
    history = first.directory / "history.jsonl"
    until(history.exists, 10, "the history")
    before, begun_history = digest(first.directory), history.read_bytes()
    times = []
    for _ in range(100 if full else 5):
        begun = time.monotonic()
        second = programs.server("--model", "vector:10")
        assert second.wait(10) == 8, second.tail()
        times.append(time.monotonic() - begun)
        assert f"process {first.popen.pid};" in "\n".join(second.lines), second.tail()
    after = digest(first.directory)
    changed = sum(before.get(name) != after.get(name) for name in {*before, *after})
    changed += not history.read_bytes().startswith(begun_history)
    figure("P11", changed, "files changed", changed == 0, what="changed")
    figure("P11", percentile(times, 0.5) * 1e3, "ms until it is refused, median",
           percentile(times, 0.5) <= 2, what="refused")
    first.kill()
    programs.restart(first, "--model", "vector:10").line("net listening")


# ---- P14: a worker restarts again and again ------------------------------------------------------


def test_restart_storm(programs, ledger, figure, full):
    """A worker with a name is killed and started again many times. Each process gets a higher
    incarnation, and the server's memory does not grow."""
    run = ledger(2, 4000 if full else 150, "--max-workers", 4, pace=(20,))
    run.reached(0)
    lives, rounds = [], 1000 if full else 25

    def life():
        run.kill_worker(0)
        run.fleet[0].line("resumed")
        lives.extend(w["incarnation"] for w in run.server.status()["workers"]
                     if w["name"] == "ledger-0")
    for _ in range(max(5, rounds // 10)):
        life()
    before = run.server.status()["rss_bytes"]
    for _ in range(rounds):
        life()
    grown = (run.server.status()["rss_bytes"] - before) / 1024
    backwards = sum(b <= a for a, b in zip(lives, lives[1:]))
    slots = len(run.server.status()["workers"])
    figure("P14", grown, f"KiB more memory after {rounds} restarts", grown <= 1024, what="memory")
    figure("P14", backwards, "processes without a higher incarnation", backwards == 0, what="lives")
    figure("P14", slots, "slots in use", slots == 2, what="slots")
    report(figure, "P14", run, f"{len(lives)} restarts")


# ---- P15: workers of an old run ------------------------------------------------------------------


def test_workers_of_an_old_run(programs, ledger, figure, full):
    """A server with a new directory takes the address of an old server. All workers of the old run
    exit with 4, and the new server applies none of their pushes."""
    foreign, ended, rounds = 0, [], 10 if full else 2
    for k in range(rounds):
        run = ledger(3, 400, pace=(2,), directory=f"old{k}")
        run.reached(0)
        run.server.kill()
        new = programs.server(*run.options, directory=f"new{k}", endpoint=run.server.endpoint)
        for w in run.fleet:
            assert w.wait(30) == 4, w.tail()
            ended.append("another run" in "\n".join(w.lines))
        foreign += new.status()["counters"]["pushes"] + new.status()["version"]
        new.kill()
    figure("P15", foreign, "pushes of another run applied", foreign == 0, what="applied")
    figure("P15", sum(ended), f"of {3 * rounds} old workers end and say why", all(ended),
           what="ended")


def test_trainer_of_an_old_run_exits_4(programs, figure, small):
    options = ("--model", "seed:8", "--epochs", 1000)
    server = programs.server(*options)
    worker = programs.worker(server.endpoint, data=small)
    trained(server, 500)
    server.kill()
    programs.server(*options, directory="other", endpoint=server.endpoint)
    code = worker.wait(30)
    figure("P15", code, "is cnn-worker's exit status", code == 4, what="status")


# ---- P17: a worker's device breaks ---------------------------------------------------------------


def test_device_that_breaks(programs, figure, small):
    """A device fails during its eighth gradient, after it has written one wrong coordinate. The
    worker pushes no part of this gradient."""
    server = programs.server("--model", "seed:8", "--epochs", 2, "--seed", 7, *SOON)
    broken = programs.add(Process("broken_worker", command(
        "tests/tools/broken_worker", "--server", server.endpoint, "--data", small,
        "--device", "cpu")))
    code = broken.wait(60)
    assert code not in (0, None) and code > 0, broken.tail()
    assert re.search("device|broken", broken.tail()), broken.tail()
    pushed = server.status()["counters"]["pushes"]
    weights = safetensors.flat(programs.export(server.endpoint))
    bad = int((abs(weights) > 10).sum())
    figure("P17", bad,
           f"weights changed by the bad gradient; {pushed} good gradients came before it",
           bad == 0 and pushed == 7, what="weights")
    programs.worker(server.endpoint, data=small)  # a new worker, as a supervisor would start it
    assert server.result()["images_per_epoch"] == [6000, 6000]


def test_device_that_hangs(programs, figure, small):
    """A device never finishes its eighth gradient. The worker exits after its time-out, and another
    worker finishes the run."""
    server = programs.server("--model", "seed:8", "--epochs", 2, "--seed", 7, *SOON)
    broken = programs.add(Process("broken_worker", command(
        "tests/tools/broken_worker", "--server", server.endpoint, "--data", small,
        "--device", "cpu", "--device-timeout-ms", 500), env={"BROKEN_HANGS": "1"}))
    code = broken.wait(60)
    assert "device has not answered for 500 ms" in broken.tail(), broken.tail()
    figure("P17", code, "is the exit status of a worker whose device hangs", code == 13, what="hang")
    programs.worker(server.endpoint, data=small)
    assert server.result()["images_per_epoch"] == [6000, 6000]


def test_gpu_that_breaks(programs, figure, small):
    """A real GPU breaks: on SIGRTMIN, a library in LD_PRELOAD makes the CUDA context unusable."""
    if not Path("/dev/nvidia0").exists():
        figure.cannot("P17", "this machine has no GPU; make gpu-test runs it on one that has")
    server = programs.server("--model", "seed:32", "--epochs", 1000, *SOON)
    broken = programs.add(Process("cnn-worker", command(
        "cnn-worker", "--server", server.endpoint, "--data", small, "--device", "cuda"),
        env={"LD_PRELOAD": str(BUILD / "tests/gpu/poison.so")}))
    trained(server, 6000)
    broken.signal(signal.SIGRTMIN)
    assert broken.wait(20) == 1, broken.tail()
    computed = int(broken.line(r"worker done\b.*\bbatches=(\d+)")[1])
    more = server.status()["updates"] - computed
    figure("P17", more, "pushes of what was not computed", more == 0, what="gpu")
