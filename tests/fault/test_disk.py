"""Faults P3, P5 and P16 of docs/faults.md: torn checkpoints, disks that are full or fail, and an
old checkpoint that replaces a newer one."""
import json
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

import strace
from support import safetensors
from support.build import BUILD, command
from support.programs import Process, fill, freeze, mount_image, mount_small, unmount, until


def report(figure, row, run, what):
    """Drain the server, and report how many pushes were lost or applied twice."""
    lost, twice = run.count(300)
    figure(row, lost + twice, f"pushes lost or applied twice ({what})", lost + twice == 0,
           what="ledger")


def generations(directory):
    """Returns the checkpoint files of a directory, newest first."""
    return sorted((f for f in directory.glob("ckpt-*") if f.suffix != ".tmp"), reverse=True)


# ---- P3: torn and corrupt checkpoints ------------------------------------------------------------


@pytest.fixture
def history(programs):
    """Returns the directory of a run that was killed, with three generations that have different
    weights."""
    run = programs.server("--model", "vector:8", "--optimizer", "sgd", "--lr", 1, "--max-workers",
                     1, "--checkpoint-ms", 3600000)
    worker = programs.ledger_worker(run.endpoint, 0, 8, 100)
    for k in (2, 4, 6):
        until(lambda: run.status()["version"] >= k, 20, "pushes")
        programs.ctl("--server", run.endpoint, "checkpoint")
    worker.kill()
    run.kill()
    files = generations(run.directory)
    assert len(files) == 3
    return run.directory


def loaded(programs, directory, name):
    """Load the newest undamaged checkpoint with `cnn-ctl export`. Returns (exit status, weights,
    log)."""
    out = programs.directory / name
    done = subprocess.run(command("cnn-ctl", "--log-level", "info", "export", "--checkpoint",
                                  directory, out), capture_output=True, text=True, timeout=20)
    weights = safetensors.flat(out).tolist() if done.returncode == 0 else None
    return done.returncode, weights, done.stderr


def test_every_byte_of_a_checkpoint(programs, history, figure, seed, full):
    """Flip a bit in one byte of the newest checkpoint, or truncate the file at this byte; the long
    form tries every byte. The loader takes the previous generation, and logs the name of the file
    that it refused."""
    newest, older, _ = generations(history)
    whole = newest.read_bytes()
    newest.rename(programs.directory / "newest")
    expected = loaded(programs, history, "older")[1]
    assert expected is not None
    places = range(len(whole)) if full else random.Random(seed).sample(range(len(whole)), 25)
    wrong, silent = [], []
    for at in places:
        flipped = bytearray(whole)
        flipped[at] ^= 1 << (at % 8)
        for kind, data in (("flip", bytes(flipped)), ("cut", whole[:at])):
            newest.write_bytes(data)
            code, weights, said = loaded(programs, history, "again")
            if code != 0 or weights != expected:
                wrong.append((kind, at))
            if "checkpoint refused" not in said or "fallback" not in said:
                silent.append((kind, at))
    tried = 2 * len(places)
    figure("P3", len(wrong), f"of {tried} flips and cuts of {len(whole)} bytes undetected "
           f"{wrong[:3] or ''}", not wrong, what="undetected")
    figure("P3", len(silent), f"of {tried} not logged", not silent, what="silent")


def start_ms(programs, directory):
    """Start a server on a copy of this directory. Returns a pair: the time in ms from exec until
    the server listens, and the lines that the server logged until the test killed it."""
    copy = programs.directory / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("lane"))
    begun = time.monotonic()
    server = programs.server("--model", "vector:425000", "--lr", 1, "--optimizer", "sgd",
                        directory="copy")
    server.line("net listening")
    took = time.monotonic() - begun
    server.kill()
    return took * 1e3, "\n".join(server.lines)


def test_falling_back_takes_little(programs, figure, full):
    """The newest checkpoint has 425,000 weights, and its last byte is flipped. The test measures
    how much later the server listens than with an undamaged checkpoint."""
    run = programs.server("--model", "vector:425000", "--lr", 1, "--optimizer", "sgd")
    endpoint = run.endpoint
    for _ in range(2):
        programs.ctl("--server", endpoint, "checkpoint")
    run.kill()
    good, bad = [], []
    newest = generations(run.directory)[0]
    data = bytearray(newest.read_bytes())
    for _ in range(15 if full else 8):
        newest.write_bytes(data)
        good.append(start_ms(programs, run.directory)[0])
        newest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        took, said = start_ms(programs, run.directory)
        assert "checkpoint fallback" in said, said
        bad.append(took)
    # compare the minima, because other processes can only delay a start
    later = min(bad) - min(good)
    # noise: the difference between the minima of the two halves of the starts on undamaged
    # checkpoints; a delay that is smaller than this difference is not significant
    noise = abs(min(good[::2]) - min(good[1::2]))
    cost, unit = (later, "ms more for") if later > noise else ("no measurable cost", "of")
    figure("P3", cost, f"{unit} a start with a fallback (the fastest of {len(bad)} starts of each "
           "kind)", later <= 50, what="fallback")


def test_no_good_checkpoint_exits_7(programs, history, figure):
    for file in generations(history):
        file.write_bytes(file.read_bytes()[:-1])
    server = programs.server("--model", "vector:8", "--max-workers", 1)
    code = server.wait(10)
    figure("P3", code, "is the exit status if no generation is good", code == 7, what="status")


# ---- P5: disks that are full or fail -------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path, figure):
    """Yields the directory of a tmpfs of 1 MiB."""
    place = tmp_path / "disk"
    why = mount_small(place, "1m")
    if why:
        figure.cannot("P5", f"no tmpfs can be mounted: {why}")
    yield place
    unmount(place)


def health(server, name="/healthz"):
    url = server.line(r"http listening.* url=(\S+?)/?$")[1] + name
    try:
        with urllib.request.urlopen(url, timeout=5) as page:
            return page.status
    except urllib.error.HTTPError as e:
        return e.code


def fill_up(server, filler):
    """Write files until the server reports that it cannot save a checkpoint. The server deletes its
    older checkpoints meanwhile, so one file is not enough."""
    filler.mkdir()
    names = iter(range(10**6))

    def is_full():
        fill(filler / str(next(names)))
        for old in generations(server.directory)[1:]:
            old.unlink(missing_ok=True)
        fill(filler / str(next(names)))
        return health(server) == 503
    until(is_full, 20, "it says that it is not well")


def wait_well(run, figure, what):
    """Wait until the server has written another checkpoint and is healthy again. A checkpoint is
    due every 50 ms. Reports how long this took, in ms."""
    begun, saved = time.monotonic(), run.server.status()["checkpoint"]["saved"]
    until(lambda: run.server.status()["checkpoint"]["saved"] > saved and health(run.server) == 200,
          20, "checkpoints work again")
    took = time.monotonic() - begun
    figure("P5", took * 1e3, "ms until checkpoints, one every 50 ms, work again", took <= 2,
           what=what)


# A worker whose replay window is full waits until the disk works again. This window is so large
# that, even on a busy machine, the workers still push when the test notices that the disk fails.
ROOMY = ("--replay-window", 1024)


def test_full_disk(ledger, small_disk, figure):
    """The disk is full: training continues, /healthz reports "degraded", and no push becomes
    durable. When the disk has space again, the server recovers."""
    run = ledger(2, 1500, *ROOMY, pace=(4,), directory=small_disk / "ckpt")
    run.reached(0)
    assert health(run.server) == 200
    filler = small_disk / "filler"
    fill_up(run.server, filler)
    last = generations(small_disk / "ckpt")[0].name
    status = run.server.status()
    assert "No space" in status["degraded"]
    assert health(run.server, "/livez") == 200, "a restart would not make space"
    until(lambda: run.server.status()["version"] > status["version"] + 10, 20, "training goes on")
    durable = [w["durable_seq"] for w in status["workers"]]
    assert [w["durable_seq"] for w in run.server.status()["workers"]] == durable
    assert generations(small_disk / "ckpt")[0].name == last, "the last good one is kept"
    shutil.rmtree(filler)
    wait_well(run, figure, "back")
    report(figure, "P5", run, "one full disk")
    lines = (small_disk / "ckpt/history.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines][-1] == "end", "the history is whole"


def test_full_disk_holds_workers_back(ledger, small_disk, figure):
    """The disk is full: a worker retains the pushes that are not durable, at most --replay-window,
    and then waits."""
    run = ledger(2, 1500, "--replay-window", 64, pace=(2,), directory=small_disk / "ckpt")
    run.reached(0)
    filler = small_disk / "filler"
    fill_up(run.server, filler)

    def outstanding():
        return [w["last_seq"] - w["durable_seq"] for w in run.server.status()["workers"]]
    until(lambda: min(outstanding()) >= 64, 20, "the window is full")
    peak = max(outstanding())
    shutil.rmtree(filler)
    figure("P5", peak, "pushes retained at most, with a window of 64", peak <= 64, what="window")
    report(figure, "P5", run, "full windows")


# ---- P5: a disk that its own checkpoints fill ----------------------------------------------------

WEIGHTS = ("--model", "vector:80000", "--optimizer", "sgd", "--lr", 1)  # a checkpoint takes 320 kB


def test_own_checkpoints_fill_the_disk(programs, small_disk, figure):
    """The disk has room for three checkpoints but not for four: the server deletes the oldest
    checkpoint, and never the newest undamaged one."""
    server = programs.server(*WEIGHTS, directory=small_disk / "ckpt")
    for _ in range(6):
        programs.ctl("--server", server.endpoint, "checkpoint")
    kept = [int(f.name[5:], 16) for f in generations(small_disk / "ckpt")]
    status = server.status()
    assert status["degraded"] is None and status["checkpoint"]["failed"] == 0, status
    assert kept[0] == status["checkpoint"]["generation"] >= 7
    server.line("checkpoint dropped")
    assert sum("checkpoint dropped" in line for line in server.lines) == 1, "said once"
    server.kill()
    again = programs.restart(server, *WEIGHTS)
    again.line("server resumed")
    figure("P5", len(kept), "generations of 320 kB each are kept on a disk of 1 MiB",
           2 <= len(kept) <= 3, what="own")


def test_own_wal_fills_the_disk(programs, small_disk, figure):
    """Each push is as large as a checkpoint. The write-ahead log nevertheless leaves space for the
    next checkpoint, and no worker waits forever."""
    server = programs.server(*WEIGHTS, "--durability", "always", "--checkpoint-ms", 3600000,
                        directory=small_disk / "ckpt")
    worker = programs.ledger_worker(server.endpoint, 0, 30)
    begun = time.monotonic()
    worker.line("done pushed=30 acked=30 ", 20)
    took = time.monotonic() - begun
    status = server.status()
    assert status["degraded"] is None and status["checkpoint"]["failed"] == 0, status
    server.line("wal gives_way")
    assert sum("wal gives_way" in line for line in server.lines) == 1, "said once"
    figure("P5", took, "s for 30 pushes that fill the disk", took <= 10, what="own log")


def test_sigterm_with_a_full_disk(programs, small_disk, figure):
    """A server receives SIGTERM while the disk is full: within seconds, it logs that there is no
    space and exits with 10."""
    server = programs.server("--model", "vector:8", directory=small_disk / "ckpt")
    server.status()
    fill(small_disk / "filler")
    begun = time.monotonic()
    server.signal(15)
    code = server.wait(20)
    took = time.monotonic() - begun
    said = "\n".join(server.lines)
    figure("P5", took, "s from SIGTERM to the end, with a full disk", took <= 4, what="drain")
    figure("P5", code, "is the exit status", code == 10 and "No space" in said.split("gave_up")[1],
           what="drain status")


def full_with_one_checkpoint(server, disk):
    """Delete all checkpoints but the newest one, and fill the disk. The server then has no old
    checkpoint that it could delete to get space."""
    server.status()
    for old in generations(server.directory)[1:]:
        old.unlink(missing_ok=True)
    fill(disk / "filler")


def test_drain_with_a_full_disk(programs, small_disk, figure):
    """cnn-ctl drain ends a server whose disk is full, as SIGTERM does. The state of the server is
    "ending" until the server exits."""
    server = programs.server("--model", "vector:8", directory=small_disk / "ckpt")
    full_with_one_checkpoint(server, small_disk)
    ctl = programs.add(Process("ctl", command("cnn-ctl", "--server", server.endpoint, "drain")))
    server.line("checkpoint failed")
    begun = time.monotonic()
    assert server.status()["state"] == "ending"
    code = server.wait(20)
    figure("P5", time.monotonic() - begun, "s from cnn-ctl drain to the end, with a full disk",
           time.monotonic() - begun <= 4, what="drain by ctl")
    assert code == 10 and "No space" in "\n".join(server.lines).split("gave_up")[1]
    ctl.wait(10)


def test_a_write_that_hangs_leaves_nothing(programs, figure):
    """Two SIGTERMs end a server in which every fsync hangs. The checkpoint that the server was
    writing leaves no file."""
    how = programs.directory / "how"
    server = programs.server("--model", "vector:100000", env={
        "LD_PRELOAD": str(BUILD / "tests/fault/disk.so"), "DISK_HANG": str(how),
        "DISK_ROOT": str(programs.directory / "ckpt")})
    server.status()
    how.touch()
    server.signal(15)
    until(lambda: list(server.directory.glob("ckpt-*.tmp")), 10, "the write is under way")
    server.signal(15)
    code = server.wait(10)
    left = len(list(server.directory.glob("ckpt-*.tmp")))
    figure("P5", left, "temporary files left by a write that hung", code != 0 and not left,
           what="hung")
    assert len(generations(server.directory)) == 1


def hanging(programs, how, *options):
    """Start a server with a write-ahead log, and two workers that train. As long as the file `how`
    exists, no fsync of the server returns."""
    server = programs.server("--model", "seed:8", "--durability", "always", *options, env={
        "LD_PRELOAD": str(BUILD / "tests/fault/disk.so"), "DISK_HANG": str(how),
        "DISK_ROOT": str(programs.directory / "ckpt")})
    fleet = [programs.worker(server.endpoint) for _ in range(2)]
    until(lambda: server.status()["updates"] > 20, 30, "training")
    return server, fleet


def test_nobody_stalls_while_the_disk_hangs(programs, figure):
    """The disk hangs for longer than a worker's deadline. The status must report that the disk does
    not answer, but no stalled worker, and no step of sync may end with fewer gradients than
    it needs."""
    how = programs.directory / "how"
    server, fleet = hanging(programs, how, "--mode", "sync", "--epochs", 1, "--max-updates", 120,
                        "--suspect-ms", 20000, "--dead-ms", 60000, "--min-workers", 2)
    how.touch()
    begun = time.monotonic()
    until(lambda: health(server) == 503, 10, "it says that it is not well")
    figure("P5", time.monotonic() - begun, "s until the server is degraded by a disk that hangs",
           "the disk does not answer" in server.status()["degraded"], what="overdue")
    fleet.append(programs.worker(server.endpoint))
    # longer than 6 s, the time without a delivery after which the server would declare a worker
    # stalled
    time.sleep(8)
    status = server.status()
    said = ["\n".join(w.lines) for w in fleet]
    figure("P5", sum("the server waits for its disk" in text for text in said),
           "of 3 workers (one has just started) print what they wait for", all(
               "the server waits for its disk" in text and "silent" not in text and
               "not as cnn-ps" not in text and "has not welcomed" not in text for text in said),
           what="said")
    assert [w["state"] for w in status["workers"]][:2] == ["live", "live"]
    how.unlink()
    result = server.result()
    figure("P5", status["counters"]["stalls"] + status["counters"]["expired"]
           + result["steps_short"],
           "workers stalled, grants expired and steps cut short because of the disk",
           status["counters"]["stalls"] + status["counters"]["expired"]
           + result["steps_short"] == 0, what="nobody stalls")


def test_sigterm_while_the_disk_hangs(programs, figure):
    how = programs.directory / "how"
    server, _ = hanging(programs, how, "--epochs", 1000)
    how.touch()
    until(lambda: health(server) == 503, 10, "it says that it is not well")
    begun = time.monotonic()
    server.signal(15)
    code = server.wait(20)
    took = time.monotonic() - begun
    figure("P5", took, "s from SIGTERM to the end, with a disk that hangs", took <= 11,
           what="drain")
    figure("P5", code, "is the exit status", code == 10 and "the disk does not answer" in
           "\n".join(server.lines).split("gave_up")[1], what="drain status")


@pytest.fixture
def frozen_disk(tmp_path, figure):
    """Yields the directory of an ext4 file system, and a function that freezes the file system."""
    place = tmp_path / "frozen"
    why = mount_image(tmp_path / "image", place)
    if why:
        figure.cannot("P5", f"no ext4 can be mounted: {why}")
    stopped = []

    def stop():
        stopped.append(freeze(place, "-f"))
        return stopped[-1]

    yield place, stop
    if any(stopped):
        freeze(place, "-u")
    unmount(place)


def accepts(server):
    """Returns True if the server's port accepts a connection."""
    host, port = server.endpoint.removeprefix("tcp://").rsplit(":", 1)
    with socket.socket() as s:
        s.settimeout(2)
        return s.connect_ex((host, int(port))) == 0


def test_sigterm_while_the_kernel_holds_a_write(programs, frozen_disk, figure):
    """A thread that hangs in a write to a frozen file system keeps the process alive. The server
    prints its result and closes its ports without waiting for this thread."""
    place, stop = frozen_disk
    server = programs.server("--model", "seed:8", "--durability", "always", "--epochs", 1000,
                             directory=place / "ckpt")
    worker = programs.worker(server.endpoint)
    until(lambda: server.status()["updates"] > 20, 30, "training")
    if not stop():
        figure.cannot("P5", "no file system can be frozen")
    until(lambda: health(server) == 503, 10, "it says that it is not well")
    begun = time.monotonic()
    server.signal(15)
    until(lambda: not accepts(server), 20, "the port is free")
    took = time.monotonic() - begun
    figure("P5", took, "s from SIGTERM to free ports, with a disk that the kernel waits for",
           took <= 12, what="drain, frozen")
    worker.line("waiting for the server", 20)
    assert freeze(place, "-u")
    assert server.wait(10) == 10
    assert "the disk does not answer" in "\n".join(server.lines).split("gave_up")[1]


def test_sigterm_when_space_comes(programs, small_disk):
    """The disk is full when the server receives SIGTERM, but has space again soon afterwards: the
    server writes its last checkpoint."""
    server = programs.server("--model", "vector:8", "--checkpoint-ms", 100,
                             directory=small_disk / "ckpt")
    server.status()
    fill(small_disk / "filler")
    server.signal(15)
    time.sleep(0.5)
    (small_disk / "filler").unlink()
    assert server.wait(10) == 0


def test_disk_too_small_for_two_checkpoints(programs, small_disk, figure):
    """The disk is too small for two checkpoints, so the server cannot send WELCOME. The server
    sends the reason to the worker, and /healthz reports the reason, too."""
    server = programs.server("--model", "vector:180000", "--optimizer", "sgd", "--lr", 1,
                        directory=small_disk / "ckpt")
    worker = programs.ledger_worker(server.endpoint, 0, 8, 1)
    until(lambda: health(server) == 503, 20, "it says that it is not well")
    begun = time.monotonic()
    worker.line("checkpoints cannot be written", 20)
    figure("P5", time.monotonic() - begun, "s until a worker says what it waits for", True,
           what="too small")
    assert len(generations(small_disk / "ckpt")) == 1, "the only sound one is kept"
    assert [w["pid"] for w in server.status()["workers"]] == [worker.popen.pid]
    worker.kill()


@pytest.mark.parametrize("durability", ["replay", "always"])
def test_start_on_a_full_disk(programs, small_disk, figure, durability):
    """The test kills a server and then fills its disk. The next server deletes older generations at
    its start, as a running server does."""
    options = ("--model", "vector:20000", "--durability", durability)
    server = programs.server(*options, directory=small_disk / "ckpt")
    for _ in range(3):
        programs.ctl("--server", server.endpoint, "checkpoint")
    server.kill()
    kept = generations(small_disk / "ckpt")
    fill(small_disk / "filler")
    again = programs.restart(server, *options)
    again.line("net listening")
    status = again.status()
    again.kill()
    left = generations(small_disk / "ckpt")
    figure("P5", len(left),
           f"of {len(kept)} generations are left after a start on a full disk, the "
           "newest one of the run among them", len(kept) == 3 and status["version"] == 0
           and len(left) >= 2 and left[1] == kept[0], what=f"full start {durability}")


def breaks_and_heals(run, figure, what, heal):
    """Check that a server whose disk fails trains, reports the failure, and reports no push as
    durable, and that the server recovers after heal()."""
    until(lambda: health(run.server) == 503, 20, "it says that it is not well")
    place = run.server.status()
    until(lambda: run.server.status()["version"] > place["version"] + 10, 20, "training goes on")
    now = run.server.status()
    assert now["checkpoint"]["saved"] == place["checkpoint"]["saved"], "nothing counts as saved"
    heal()
    wait_well(run, figure, "back")
    run.kill_server()  # every push that the server has reported as durable must survive
    report(figure, "P5", run, what)


ERRORS = {"EIO in fsync": ("fsync", "error=EIO"), "EIO in rename": ("renameat", "error=EIO"),
          "EMFILE in open": ("openat", "error=EMFILE"), "EIO in close": ("close", "error=EIO")}


@pytest.mark.parametrize("name", ERRORS)
def test_call_that_fails(programs, ledger, figure, name):
    """Every call of the system call `name` fails in the server's thread that writes checkpoints."""
    why = strace.unusable()
    if why:
        figure.cannot("P5", why)
    run = ledger(2, 1500, *ROOMY, pace=(4,), env={"UV_THREADPOOL_SIZE": "1"})
    run.reached(0)
    call, fault = ERRORS[name]
    tracer = strace.attach(programs, strace.checkpointer(run.server.popen.pid), "-o", "/dev/null",
                           *strace.inject(call, fault, "1+"))

    def heal():
        tracer.signal(2)
        tracer.wait(10)
    breaks_and_heals(run, figure, name, heal)


WRITES = {"ENOSPC": "28", "EIO": "5", "lie": "lie"}


@pytest.mark.parametrize("name", WRITES)
def test_write_that_fails(programs, ledger, figure, name):
    """Every write to a file of the checkpoint directory fails. With `name` "lie", a write reports
    success but writes nothing."""
    how = programs.directory / "how"
    run = ledger(2, 1500, *ROOMY, pace=(4,), env={
        "LD_PRELOAD": str(BUILD / "tests/fault/disk.so"), "DISK_WRITE": str(how),
        "DISK_ROOT": str(programs.directory / "ckpt")})
    run.reached(0)
    how.write_text(WRITES[name])
    breaks_and_heals(run, figure, f"{name} in write", how.unlink)


def test_short_writes(programs, ledger, figure):
    """Each write stores only half of the bytes, and still the checkpoints are complete."""
    how = programs.directory / "how"
    how.write_text("short")
    run = ledger(2, 300, pace=(4,), env={
        "LD_PRELOAD": str(BUILD / "tests/fault/disk.so"), "DISK_WRITE": str(how),
        "DISK_ROOT": str(programs.directory / "ckpt")})
    run.reached(0)
    assert run.server.status()["checkpoint"]["saved"] > 1 and health(run.server) == 200
    run.kill_server()
    assert not any("refused" in line for line in run.server.lines)
    report(figure, "P5", run, "short writes")


# ---- P16: an old checkpoint is put back ----------------------------------------------------------


def rolled_back(ledger, keep_term, *options):
    """Kill the server of a run, and start the server again on an older copy of its directory, which
    lacks the last hundreds of pushes. The workers run on meanwhile. Returns the run."""
    run = ledger(2, 900, pace=(4,))
    run.reached(0)
    run.programs.ctl("--server", run.server.endpoint, "checkpoint")
    old = run.programs.directory / "old"
    until(lambda: copied(run.server.directory, old), 10, "a copy with whole files")
    before = run.server.status()["version"]
    until(lambda: all(w["durable_seq"] > 150 for w in run.server.status()["workers"])
          and run.server.status()["version"] > before + 200, 30, "much more is durable")
    run.server.kill()
    term = (run.server.directory / "TERM").read_bytes()
    shutil.rmtree(run.server.directory)
    shutil.copytree(old, run.server.directory)
    if keep_term:
        (run.server.directory / "TERM").write_bytes(term)
    run.options = (*run.options, *options)
    run.restart_server()
    return run


def copied(source, to):
    """Copy a directory. Returns False if a file vanished during the copy."""
    shutil.rmtree(to, ignore_errors=True)
    try:
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("*.tmp", "lane"))
    except (shutil.Error, FileNotFoundError):
        return False
    return True


@pytest.mark.parametrize("term", ["kept", "old"])
def test_rollback_is_refused(ledger, figure, term):
    """Workers with newer durable pushes exit with 4 and log one line. With `term` "old", an
    older copy also replaces the file TERM."""
    run = rolled_back(ledger, term == "kept")
    version = run.server.status()["version"]
    said = []
    for w in run.fleet:
        assert w.wait(30) == 4, w.tail()
        said.append("lost pushes that it had reported as durable" in "\n".join(w.lines))
    figure("P16", sum(said), "of 2 workers say why they end", all(said), what="said")
    applied = run.server.status()["version"] - version
    figure("P16", applied, "of their pushes applied to the old weights", applied == 0,
           what="applied")


@pytest.mark.parametrize("term", ["kept", "old"])
def test_rollback_that_was_asked_for(ledger, figure, term):
    """With --accept-rollback, the workers continue with new pushes. Only the pushes that the
    operator rolled back are lost."""
    run = rolled_back(ledger, term == "kept", "--accept-rollback")
    lost, twice = run.count(120)
    figure("P16", twice, f"pushes applied twice; {lost} were rolled back", twice == 0 and lost > 0,
           what="accepted")
