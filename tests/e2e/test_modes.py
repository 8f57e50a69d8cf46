"""With real processes every mode learns, each image counts once per epoch, and a stopped worker
does not stop the run.

With CNN_SLOW=1 further tests run, which take minutes: three epochs of all images in each mode, 16
workers, and longer stops.
"""
import os
import re
import signal
import threading
import time

import pytest

from support import idx
from support import safetensors
from support.programs import until

SLOW = bool(os.environ.get("CNN_SLOW"))
slow = pytest.mark.skipif(not SLOW, reason="minutes: CNN_SLOW=1")
STOP_S = 10 if SLOW else 4


def train(programs, workers, *options, data=None, epochs=3, name="ckpt"):
    return programs.train(workers, "--model", "seed:32", "--epochs", epochs, "--min-workers",
                     workers, *options, data=data, seconds=300, directory=name)


# ---- learning ------------------------------------------------------------------------------------

def test_sync_learns_with_its_defaults(programs, mnist):
    result = train(programs, 4, "--mode", "sync")
    assert result["images_per_epoch"] == [60000] * 3
    assert result["accuracy"] >= (0.975 if mnist else 0.85), result


def test_sync_runs_of_one_seed_end_with_the_same_bytes(programs):
    """Five runs have four workers each. In each epoch 600 batches make 150 steps, and the order in
    which the workers deliver does not matter."""
    ends = set()
    for run in range(5):
        server = programs.server("--model", "seed:8", "--mode", "sync", "--epochs", 2, "--seed", 7,
                            "--min-workers", 4, "--suspect-ms", 20000, "--dead-ms", 60000,
                            directory=f"run{run}")
        for _ in range(4):
            programs.worker(server.endpoint)
        result = server.result(120)
        assert result["updates"] == 300, result
        assert (result["steps_short"], result["rejected"]) == (0, 0), result
        programs.export(server.directory, f"run{run}.safetensors")
        ends.add((programs.directory / f"run{run}.safetensors").read_bytes())
    assert len(ends) == 1


def test_sync_steps_end_with_n_of_n_plus_b_gradients(programs, small):
    """Four workers compute, and each step uses the first 3 gradients. So an epoch of 60 batches has
    20 steps. A gradient that arrives too late is superseded, not rejected."""
    server = programs.server("--model", "seed:8", "--mode", "sync", "--epochs", 4, "--min-workers",
                        4, "--sync-workers", 3, "--backup-workers", 1, "--suspect-ms", 20000,
                        "--dead-ms", 60000)
    fleet = [programs.worker(server.endpoint, data=small) for _ in range(4)]
    result = server.result()
    assert result["images_per_epoch"] == [6000] * 4
    assert (result["updates"], result["steps_short"], result["rejected"]) == (80, 0, 0), result
    counts = [w.line(r"worker done.* rejected=(\d+) superseded=(\d+)") for w in fleet]
    assert [int(c[1]) for c in counts] == [0] * 4, "the workers' own counts"
    assert sum(int(c[2]) for c in counts) <= result["superseded"]


@pytest.mark.parametrize("mode", ["downpour", "ssp"])
def test_a_buffer_makes_one_update_of_several_gradients(programs, small, mode):
    """An epoch has 60 batches. Seven updates use 8 gradients each, and the last update uses the
    remaining 4."""
    result = train(programs, 3, "--mode", mode, "--buffer-size", 8, "--warm-start-updates", 2,
                   data=small, epochs=4)
    assert result["images_per_epoch"] == [6000] * 4
    assert result["updates"] == 4 * 8, result


def test_sync_reports_short_steps(programs, small):
    """A step needs three gradients, but there are only two workers: the run continues, and the
    server reports short steps."""
    server = programs.server("--model", "seed:8", "--mode", "sync", "--epochs", 2, "--min-workers",
                        2, "--sync-workers", 3, "--suspect-ms", 20000, "--dead-ms", 60000)
    for _ in range(2):
        programs.worker(server.endpoint, data=small)
    server.line(r'"sync steps_short" steps=\d+ of=\d+ sync_workers=3 live=2')
    result = server.result()
    assert result["images_per_epoch"] == [6000] * 2
    # the last step of an epoch needs only the remaining batches, so it is not short
    assert (result["updates"], result["steps_short"]) == (60, 58), result


SMALL = {  # {name: options of the mode}
    "ssp": ("--mode", "ssp", "--ssp-bound", 4),
    "easgd": ("--mode", "easgd"),
    "constant delay compensation": ("--delay-compensation", "constant"),
}


@pytest.mark.parametrize("mode", SMALL)
def test_mode_learns_from_a_few_images(programs, small, mnist, mode):
    """A run has eight epochs of 6,000 images. In 12 runs of each mode on MNIST, the accuracy on a
    thousand test images was 0.935 to 0.970. In 8 runs of each mode on Fashion-MNIST, the accuracy
    was 0.71 to 0.88."""
    result = train(programs, 4, *SMALL[mode], data=small, epochs=8)
    assert result["images_per_epoch"] == [6000] * 8
    assert result["accuracy"] >= (0.9 if mnist else 0.6), result


@pytest.mark.parametrize("mode", [
    (), ("--n-push", 4, "--n-fetch", 4), ("--push", "sum", "--buffer-size", 3, "--lr", 0.005),
    ("--mode", "sync"), ("--mode", "easgd"),
    ("--mode", "sandblaster", "--optimizer", "sgd", "--step-images", 200)],
    ids=["downpour", "several", "sum", "sync", "easgd", "sandblaster"])
def test_running_statistics_are_those_of_the_images(programs, small, mode):
    """The first layer of the model is a batchnorm of the pixels, whose mean and variance are nearly
    the same in all batches. In every mode, and with any number of workers, the running statistics
    of this layer must end near the mean and the variance of all pixels."""
    server = programs.server("--model", "batchnorm conv:8:3 batchnorm relu pool:2 fc:10",
                             "--epochs", 4, "--min-workers", 3, *mode)
    for _ in range(3):
        programs.worker(server.endpoint, data=small)
    result = server.result()
    assert result["images_per_epoch"] == [6000] * 4
    assert result["accuracy"] >= 0.6 and result["rejected"] == 0, result
    weights = safetensors.load(programs.export(server.directory))
    pixels = idx.read(small, idx.NAMES[0]) / 255
    left = 0.9 ** result["updates"]  # the remaining share of the initial values 0 and 1
    for name, start, end in (("mean", 0, pixels.mean()), ("var", 1, pixels.var())):
        expected = left * start + (1 - left) * end
        assert abs(weights[f"bn1.running_{name}"][0] - expected) < 0.01, (name, expected)
    assert (weights["bn2.running_var"] > 0).all()


@pytest.mark.parametrize("optimizer", ["lbfgs", "sgd"])
def test_sandblaster_goes_down(programs, small, optimizer):
    """The loss decreases in sandblaster. One step uses the whole data set, so an epoch has one
    step."""
    server = programs.server("--model", "seed:32", "--epochs", 8, "--mode", "sandblaster",
                        "--optimizer", optimizer, "--min-workers", 3)
    for _ in range(3):
        programs.worker(server.endpoint, data=small)
    result = server.result()
    losses = [float(server.line(rf"train epoch\" epoch={e} .* loss=(\S+)")[1]) for e in range(1, 9)]
    assert result["images_per_epoch"] == [6000] * 8 and result["updates"] == 8
    assert losses[7] < 0.8 * losses[0], losses
    if optimizer == "lbfgs":  # with L-BFGS, the loss must not rise in any step
        assert all(b <= a + 1e-4 for a, b in zip(losses, losses[1:])), losses


@pytest.mark.parametrize("options", [
    ("--mode", "sandblaster", "--optimizer", "sgd", "--step-images", 1000),
    ("--mode", "downpour", "--warm-start-updates", 20)], ids=["sandblaster", "downpour"])
def test_healthy_run_rejects_nothing(programs, small, options):
    """The workers are equally fast. If a backup copy makes a result useless, the result is
    superseded, not rejected."""
    result = train(programs, 4, *options, data=small, epochs=4)
    print(f"superseded {result['superseded']}")
    assert result["images_per_epoch"] == [6000] * 4
    assert result["rejected"] == 0, result


@slow
def test_asynchronous_modes_are_as_good_as_sync(programs, mnist):
    sync = train(programs, 4, "--mode", "sync", name="sync")["accuracy"]
    worse = {}
    for name, workers, options, points in (
            ("downpour 8", 8, (), 0.007), ("downpour 16", 16, (), 0.007),
            ("ssp", 4, ("--mode", "ssp", "--ssp-bound", 4), 0.005)):
        result = train(programs, workers, *options, name=name.replace(" ", "-"))
        assert result["images_per_epoch"] == [60000] * 3
        worse[name] = (sync - result["accuracy"], points)
    print(f"sync {sync}, worse by {worse}")
    assert all(by <= (points if mnist else 0.04) for by, points in worse.values()), (sync, worse)


@slow
@pytest.mark.parametrize("options, min_accuracy", [
    (("--mode", "easgd"), 0.97), (("--delay-compensation", "constant"), 0.96),
    (("--delay-compensation", "adaptive"), 0.96)])
def test_other_modes_learn(programs, mnist, options, min_accuracy):
    result = train(programs, 4, *options)
    assert result["images_per_epoch"] == [60000] * 3
    assert result["accuracy"] >= (min_accuracy if mnist else min_accuracy - 0.13), result


# ---- evaluations ---------------------------------------------------------------------------------

def leases(worker):
    """Returns (time stamp, kind) of each lease of a worker, from its log."""
    return [re.search(r"ts=(\S+) .* kind=(\w+)", line).groups()
            for line in worker.lines if "trainer lease" in line]


def evaluations(worker):
    """Returns the time stamps of the first and of the last lease of each sequence of at least 9
    leases that are all for an evaluation. An evaluation of all test images has 10 leases."""
    found, stamps = [], []
    for stamp, kind in [*leases(worker), ("", "end")]:
        if kind == "eval":
            stamps.append(stamp)
            continue
        if len(stamps) >= 9:
            found.append((stamps[0], stamps[-1]))
        stamps = []
    return found


@pytest.mark.parametrize("mode", ["downpour", "ssp", "easgd"])
def test_one_worker_evaluates_while_the_other_trains(programs, data, mode):
    """After the first five epochs one worker evaluates, and the other trains meanwhile. Two of the
    five are enough, because a busy machine may let the other worker run only after an evaluation,
    or the evaluator only when the other has no batches left and helps."""
    place = programs.directory / "images"
    place.mkdir()
    idx.cut(data, place, 20000, 10000)
    server = programs.server("--model", "seed:8", "--epochs", 6, "--mode", mode, "--min-workers", 2,
                             "--lease-batches", 2)
    pair = [programs.worker(server.endpoint, "--log-level", "debug", data=place) for _ in range(2)]
    assert server.result()["images_per_epoch"] == [20000] * 6
    for worker in pair:
        assert worker.wait(10) == 0, worker.tail()
    during = [[kind for stamp, kind in leases(other) if begin < stamp < end]
              for one, other in (pair, pair[::-1]) for begin, end in evaluations(one)]
    alone = [kinds for kinds in during if "train" in kinds and "eval" not in kinds]
    assert len(alone) >= 2, during


# ---- memory --------------------------------------------------------------------------------------

def peak_mib(process):
    with open(f"/proc/{process.popen.pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read())[1]) / 1024


def test_delay_compensation_takes_memory_for_live_workers_only(programs, small):
    """The weights have 3 MiB, and the server has 256 slots. The server does not keep 256 copies of
    the weights, but only one copy of each version that a worker holds."""
    server = programs.server("--model", "fc:1000 relu fc:10", "--delay-compensation", "constant",
                        "--epochs", 2, "--min-workers", 2, "--max-updates", 100, directory=None)
    endpoint = server.endpoint
    at_start = peak_mib(server)
    for _ in range(2):
        programs.worker(endpoint, data=small)
    peak = at_start
    while server.running():
        try:
            peak = max(peak, peak_mib(server))
        except (OSError, TypeError):
            break
        time.sleep(0.02)
    server.result()
    print(f"peak {at_start:.0f} MiB at the start, {peak:.0f} MiB with two workers")
    assert at_start < 100 and peak < 200


# ---- a worker that SIGSTOP has stopped -----------------------------------------------------------

def worker_images(server):
    """Returns {worker id: number of counted images} of the live workers."""
    return {w["worker"]: w["images"] for w in server.status()["workers"] if w["state"] == "live"}


class Speed:
    """Measures two rates since this object was created: the steps per second of the run, and the
    images per second of `workers` together."""

    def __init__(self, server, workers):
        self.server, self.workers = server, workers
        self.begin, self.first = time.monotonic(), self.counts()

    def counts(self):
        status = self.server.status()
        images = {w["worker"]: w["images"] for w in status["workers"]}
        return status["updates"], sum(images[w] for w in self.workers)

    def after(self, seconds):
        until(lambda: time.monotonic() >= self.begin + seconds, seconds + 10, "time passes")
        steps, images = (new - old for new, old in zip(self.counts(), self.first))
        seconds = time.monotonic() - self.begin
        return steps / seconds, images / seconds


ENDLESS = ("--model", "fc:32 relu fc:10", "--epochs", 65536, "--min-workers", 4)
# {name: (options, the share of their images per second that the other workers must still reach)}
STOPPED = {
    "downpour": ((), 0.95),
    # a bound so large that no worker ever waits
    "ssp": (("--mode", "ssp", "--ssp-bound", 1000000), 0.95),
    "sync": (("--mode", "sync", "--backup-workers", 1), 0),
    "sandblaster": (("--mode", "sandblaster", "--optimizer", "sgd", "--step-images", 2000), 0),
}


def stop_one(server, victim, number):
    """Stop the process `victim`. Returns the speed of the other workers before the stop, during it,
    and after worker `number` has returned."""
    others = [w for w in worker_images(server) if w != number]
    before = Speed(server, others).after(2)
    victim.signal(signal.SIGSTOP)
    during = Speed(server, others).after(STOP_S)
    victim.signal(signal.SIGCONT)
    had = until(lambda: worker_images(server).get(number), 20, "it is admitted again")
    until(lambda: worker_images(server).get(number, 0) > had, 20, "its work counts again")
    return before, during, Speed(server, others).after(2)


@pytest.mark.alone
@pytest.mark.parametrize("mode", STOPPED)
def test_a_stopped_worker_stops_nobody(programs, small, mode):
    """While one worker is stopped, a step takes at most 1.5 times as long as before and after the
    stop."""
    options, keep = STOPPED[mode]
    server = programs.server(*ENDLESS, *options, directory=None)
    fleet = [programs.worker(server.endpoint, data=small) for _ in range(4)]
    until(lambda: len(worker_images(server)) == 4 and server.status()["updates"] > 20, 20,
          "all work")
    victim = int(fleet[1].line(r"connected\b.*worker=(\d+)")[1])
    before, during, after = stop_one(server, fleet[1], victim)
    print(f"{mode}: steps/s and the others' images/s: {before} before, {during} while one of four is "
          f"stopped, {after} after")
    assert during[0] >= min(before[0], after[0]) / 1.5
    assert during[1] >= keep * min(before[1], after[1])
    server.signal(signal.SIGTERM)
    assert server.wait(20) == 0, server.tail()
    for worker in fleet:
        assert worker.wait(20) == 12, worker.tail()


def slow_down(process, ended):
    """Let the process run for only a tenth of the time, until the event `ended` is set."""
    while not ended.is_set() and process.running():
        process.signal(signal.SIGCONT)
        ended.wait(0.01)
        process.signal(signal.SIGSTOP)
        ended.wait(0.09)
    process.signal(signal.SIGCONT)


@slow
def test_backup_copies_make_up_for_a_slow_worker(programs, small):
    """One of four workers is 10 times slower than the others. A step takes at most 1.25 times as
    long as with three equally fast workers."""
    speed = {}
    for workers in (3, 4):
        server = programs.server("--model", "seed:32", "--epochs", 65536, "--mode", "sandblaster",
                            "--optimizer", "sgd", "--min-workers", workers, directory=None)
        fleet = [programs.worker(server.endpoint, data=small) for _ in range(workers)]
        until(lambda: server.status()["updates"] > 3, 60, "it has begun")
        ended = threading.Event()
        duty = threading.Thread(target=slow_down, args=(fleet[-1], ended))
        if workers == 4:
            duty.start()
        speed[workers], _ = Speed(server, []).after(20)
        ended.set()
        if workers == 4:
            duty.join()
        server.kill()
        for worker in fleet:
            worker.kill()
    print(f"steps/s: {speed}")
    assert speed[4] >= speed[3] / 1.25, speed
