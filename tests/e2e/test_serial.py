"""Compare whole runs with a serial reference. A run has several virtual workers, with the real code
of the server core, the workers and the gradients. The reference computes the formulas of the papers
with NumPy in float64, and has its own implementation of the networks (numpy_net).

The reference reads only the order of events (science --record): the grants of each worker, its
messages, and the point at which the server decided each push. From the seed, the reference computes
the batches, the gradients, the workers' own weights and the server's weights. The reference must
end with the same weights as the run.
"""
import subprocess

import numpy as np
import pytest

from support import idx
from support import numpy_net
from support.build import ROOT, command

LAYERS, SHAPES = "fc:16 relu fc:10", ((16, 784), (16,), (10, 16), (10,))
FAN_IN = (784, 784, 16, 16)
BATCH, TRAIN, WORKERS = 50, 2020, 4


@pytest.fixture(scope="module")
def images(data, tmp_path_factory):
    """Returns (directory, images, labels) of 2,020 training images; the data set has 100 test
    images. The last batch of an epoch has 20 images, all others have 50."""
    directory = tmp_path_factory.mktemp("serial")
    idx.cut(data, directory, TRAIN, 100)
    return directory, idx.read(directory, idx.NAMES[0]), idx.read(directory, idx.NAMES[1])


class Problem:
    """Computes from the seed the initial weights, the order of the images and the gradients of
    batches."""

    def __init__(self, images, seed):
        _, self.x, self.y = images
        self.seed, self.orders = seed, {}

    def initial(self):
        tensors = [numpy_net.initial(self.seed, i, shape, fan)
                   for i, (shape, fan) in enumerate(zip(SHAPES, FAN_IN))]
        return np.concatenate([t.ravel() for t in tensors]).astype(np.float64)

    def gradient(self, w, epoch, batch):
        if epoch not in self.orders:
            self.orders[epoch] = numpy_net.order(self.seed, epoch, TRAIN)
        rows = self.orders[epoch][batch * BATCH:(batch + 1) * BATCH]
        tensors, at = [], 0
        for shape in SHAPES:
            size = int(np.prod(shape))
            tensors.append(w[at:at + size].reshape(shape))
            at += size
        parts = numpy_net.gradient(LAYERS, tensors, self.x[rows].astype(np.float64), self.y[rows])
        return np.concatenate([p.ravel() for p in parts])


class Replay:
    """Has the server's weights by version, and the pulls of each worker in order."""

    def __init__(self, problem, say):
        self.problem, self.say = problem, say
        self.weights = [problem.initial()]
        self.pulls = [[] for _ in range(WORKERS)]
        self.first = [0] * WORKERS
        self.pushes = self.late = 0

    def run(self, lines):
        for kind, worker, *rest in lines:
            worker = int(worker)
            if kind == "grant":
                self.grant(worker, rest[0], *map(int, rest[1:]))
            elif kind == "pull":
                self.pulls[worker].append((int(rest[0]), float(rest[1])))
            else:
                base, epoch, first, count, verdict, version = rest
                change = self.worker(worker, int(epoch), int(first), int(count), int(base))
                assert verdict == "ok"
                self.late += int(base) < len(self.weights) - 1
                self.weights.append(self.apply(change, int(base)))
                self.pushes += 1
                assert int(version) == len(self.weights) - 1
        return self.weights[-1]

    def grant(self, worker, kind, epoch, first, count):
        self.first[worker] = first


class Asynchronous(Replay):
    """Computes the asynchronous modes as WIRE.md, "Modes", specifies them. The clocks follow Ho 2013,
    and delay compensation follows Zheng 2017."""

    def __init__(self, problem, say):
        super().__init__(problem, say)
        self.own = [None] * WORKERS
        self.version = [0] * WORKERS
        self.clock, self.evaluating = [0] * WORKERS, False
        n = len(self.weights[0])
        self.square, self.sums, self.mean = np.zeros(n), np.zeros(n), np.zeros(n)

    def grant(self, worker, kind, epoch, first, count):
        super().grant(worker, kind, epoch, first, count)
        self.evaluating |= kind == "eval"
        if kind == "train" and not self.evaluating and "bound" in self.say:
            # Each worker numbers its batches. The granted batches have the numbers clock to clock +
            # count - 1. A worker must not begin a batch whose number exceeds the clock of the
            # slowest worker by more than the bound.
            slowest = min(c for i, c in enumerate(self.clock) if i != worker)
            assert self.clock[worker] + count - 1 <= slowest + self.say["bound"]

    def worker(self, worker, epoch, first, count, base):
        say, total = self.say, 0
        self.clock[worker] += count
        for batch in range(first, first + count):
            i = batch - self.first[worker]
            if i % say["n_fetch"] == 0:
                self.version[worker], _ = self.pulls[worker].pop(0)
                self.own[worker] = self.weights[self.version[worker]] - say["local_rate"] * total
            g = self.problem.gradient(self.own[worker], epoch, batch)
            total = total + g
            self.own[worker] = self.own[worker] - say["local_rate"] * g
        assert base == self.version[worker]
        return total / count

    def apply(self, g, base):
        w, say = self.weights[-1], self.say
        tau = len(self.weights) - 1 - base
        rate = say["lr"]
        if say.get("scaling") == "linear":
            rate /= 1 + tau
        age = {"constant": 1, "relative": tau / WORKERS, "inverse": tau}[say["stale"]]
        rate /= max(1, age)
        if "adaptive" in say:
            self.mean = 0.95 * self.mean + 0.05 * g * g
            g = g + say["adaptive"] / np.sqrt(self.mean + 1e-7) * g * g * (w - self.weights[base])
        elif "lambda" in say:
            g = g + say["lambda"] * g * g * (w - self.weights[base])
        if say["optimizer"] == "adagrad":
            self.sums += g * g
            g = g / (np.sqrt(self.sums) + 1e-10)
        elif say["optimizer"] == "rmsprop":
            self.square = 0.99 * self.square + 0.01 * g * g
            g = g / (np.sqrt(self.square) + 1e-8)
        return w - rate * g


class Elastic(Replay):
    """Computes EASGD, as algorithms 1 and 2 of Zhang 2015 specify it."""

    def __init__(self, problem, say):
        super().__init__(problem, say)
        self.x, self.v = [None] * WORKERS, [0] * WORKERS

    def worker(self, worker, epoch, first, count, base):
        say, i = self.say, worker
        if self.x[i] is None:
            version, _ = self.pulls[i].pop(0)
            self.x[i] = self.weights[version]
        for batch in range(first, first + count):
            ahead = self.x[i] + say["momentum"] * self.v[i]
            g = self.problem.gradient(ahead, epoch, batch)
            self.v[i] = say["momentum"] * self.v[i] - say["local_rate"] * g
            self.x[i] = self.x[i] + self.v[i]
        version, alpha = self.pulls[i].pop(0)
        assert version == base
        assert alpha == pytest.approx(say["beta"] / WORKERS, rel=1e-12)
        e = alpha * (self.x[i] - self.weights[version])
        self.x[i] = self.x[i] - e
        return e

    def apply(self, e, base):
        return self.weights[-1] + e


def recorded(directory, file, seed, options):
    subprocess.run(
        command("tests/bench/science", "--data", directory, "--threads", 1, "--workers", WORKERS,
                "--jitter", 0.5, "--slow", 1.7, "--latency-us", 3000, "--record", file, "--",
                "--model", LAYERS, "--batch-size", BATCH, "--epochs", 3, "--seed", seed,
                "--max-staleness", 1000, "--lease-batches", 6, "--backup-copies", "none",
               "--norm-ratio", 0,  # the references scale no gradient
               *options),
        check=True, stdout=subprocess.DEVNULL, cwd=ROOT, timeout=100)
    lines = [line.split(",") for line in file.read_text().splitlines()]
    return ([line for line in lines if line[0] != "weight"],
            np.array([float(line[1]) for line in lines if line[0] == "weight"]))


def ends_alike(images, tmp_path, replay, seed, options, say):
    lines, end = recorded(images[0], tmp_path / "record", seed, options)
    reference = replay(Problem(images, seed), say)
    expected, start = reference.run(lines), reference.weights[0]
    way, off = np.abs(expected - start).max(), np.abs(end - expected).max()
    print(f"seed {seed}: {reference.pushes} pushes, {reference.late} of them late; "
          f"the farthest weight moved {way:.3f}; the largest difference is {off:.1e}")
    assert reference.late > reference.pushes / 4
    assert off < 2e-4 * way


PLAIN = {"n_fetch": 1, "local_rate": 0, "stale": "constant"}
SSP = {
    "sgd, bound 1": (
        "--ssp-bound 1 --optimizer sgd --lr 0.1 --staleness-scaling constant --warm-start-updates 0 "
        "--lr-scaling none", {**PLAIN, "bound": 1, "optimizer": "sgd", "lr": 0.1}),
    "sgd, bound 0, rate by staleness": (
        "--ssp-bound 0 --optimizer sgd --lr 0.2 --staleness-scaling constant --warm-start-updates 0 "
        "--lr-scaling linear", {**PLAIN, "bound": 0, "optimizer": "sgd", "lr": 0.2,
                                "scaling": "linear"}),
    "adagrad, bound 4, inverse, warm start and ramp": (
        "--ssp-bound 4 --optimizer adagrad --lr 0.01 --staleness-scaling inverse --warm-start-updates 10 "
        "--warm-start-ramp 5 --lr-scaling none",
        {**PLAIN, "bound": 4, "optimizer": "adagrad", "lr": 0.01, "stale": "inverse"}),
    "rmsprop, bound 6, local steps, prefetch": (
        "--ssp-bound 6 --optimizer rmsprop --lr 0.001 --rmsprop-alpha 0.99 --staleness-scaling relative "
        "--warm-start-updates 0 --lr-scaling none --n-push 2 --n-fetch 3 --local-lr 0.05 --prefetch",
        {"bound": 6, "optimizer": "rmsprop", "lr": 0.001, "stale": "relative", "n_fetch": 3,
         "local_rate": 0.05}),
    "delay compensation and prefetch": (
        "--ssp-bound 5 --optimizer sgd --lr 0.1 --staleness-scaling constant --warm-start-updates 0 "
        "--lr-scaling none --delay-compensation constant --dc-lambda 2 --prefetch",
        {**PLAIN, "bound": 5, "optimizer": "sgd", "lr": 0.1, "lambda": 2}),
    "adaptive delay compensation, three rounds in flight": (
        "--ssp-bound 8 --optimizer sgd --lr 0.1 --staleness-scaling constant --warm-start-updates 0 "
        "--lr-scaling none --delay-compensation adaptive --dc-lambda 1 --prefetch --n-push 2 "
        "--n-fetch 2 --local-lr 0.05",
        {"bound": 8, "optimizer": "sgd", "lr": 0.1, "stale": "constant", "n_fetch": 2,
         "local_rate": 0.05, "adaptive": 1}),
}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("options", SSP)
def test_a_run_of_ssp_ends_where_the_serial_reference_does(images, tmp_path, options, seed):
    text, say = SSP[options]
    ends_alike(images, tmp_path, Asynchronous, seed, ("--mode", "ssp", *text.split()), say)


EASGD = {
    "algorithm 1, every third batch": (
        "--easgd-momentum 0 --n-push 3 --local-lr 0.1",
        {"momentum": 0, "local_rate": 0.1, "beta": 0.9}),
    "algorithm 2": (
        "--easgd-momentum 0.9 --local-lr 0.02", {"momentum": 0.9, "local_rate": 0.02, "beta": 0.9}),
    "algorithm 2, prefetch, beta 0.5": (
        "--easgd-momentum 0.8 --easgd-beta 0.5 --n-push 2 --local-lr 0.03 --prefetch",
        {"momentum": 0.8, "local_rate": 0.03, "beta": 0.5}),
}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("options", EASGD)
def test_a_run_of_easgd_ends_where_the_serial_reference_does(images, tmp_path, options, seed):
    text, say = EASGD[options]
    ends_alike(images, tmp_path, Elastic, seed, ("--mode", "easgd", *text.split()), say)
