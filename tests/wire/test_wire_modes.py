"""Test an independent implementation of WIRE.md, "Modes": a run with one Python worker must end
with the same weights as a run with one cnn-worker."""
import numpy as np
import pytest

from client import Worker, pb
from support import idx
from test_training import EDONE, DataSet, SoftmaxRegression, Trainer


class IndependentWorker(Trainer):
    """A Python worker for every mode, written from WIRE.md, "Modes"."""

    own = None  # mode easgd: the worker's own weights; None before the first pull
    velocity = 0

    def gradient(self, w, epoch, b):
        rows = self.batch(epoch, b)
        loss, gradient = self.train.gradient(w, rows)
        self.seen.append((len(rows), loss))
        return gradient

    def push_batches(self, gradient, version, epoch, end):
        """Send one PUSH for all batches since the last push. `end` is the number of the batch after
        the last of these batches."""
        images = sum(n for n, _ in self.seen)
        loss = sum(n * loss for n, loss in self.seen) / images
        work = pb.Work(epoch=epoch, first=end - len(self.seen), count=len(self.seen))
        ack = self.push(gradient.astype(np.float32), version, work, images, loss)
        assert ack.verdict == pb.VERDICT_OK, ack
        self.seen = []

    def train_on(self, grant):
        self.seen = []
        way = (self.exact if grant.exact else
               self.elastic if self.welcome.mode == pb.MODE_EASGD else self.asynchronous)
        way(grant, grant.work)

    def asynchronous(self, grant, work):
        say, total, ahead = self.welcome, 0, None
        for i in range(work.count):
            last = i + 1 == work.count
            if i % say.n_fetch == 0:
                w, version = ahead or self.pull()
                w, ahead = w - np.float32(say.local_rate) * total, None
            if say.prefetch and not last and (i + 1) % say.n_fetch == 0:
                ahead = self.pull()
            g = self.gradient(w, work.epoch, work.first + i)
            total, w = total + g, w - np.float32(say.local_rate) * g
            if last or len(self.seen) == say.n_push:
                self.push_batches(total if say.push_sum else total / len(self.seen), version,
                                  work.epoch, work.first + i + 1)
                total = 0

    def exact(self, grant, work):
        w, version = self.pull()
        # this worker is alone, so the weights have exactly the version of the grant
        assert version == grant.version
        total = 0
        for b in range(work.first, work.first + work.count):
            g = self.gradient(w, work.epoch, b)
            total = total + self.seen[-1][0] * g
        self.push_batches(total / sum(n for n, _ in self.seen), version, work.epoch,
                          work.first + work.count)

    def elastic(self, grant, work):
        say = self.welcome
        if self.own is None:
            self.own, _ = self.pull()
        for i in range(work.count):
            self.velocity = np.float32(say.momentum) * self.velocity
            self.own = self.own + self.velocity
            g = self.gradient(self.own, work.epoch, work.first + i)
            self.velocity = self.velocity - np.float32(say.local_rate) * g
            self.own = self.own - np.float32(say.local_rate) * g
            if i + 1 == work.count or len(self.seen) == say.n_push:
                centre, version = self.pull()
                e = np.float32(self.params.elastic) * (self.own - centre)
                self.own = self.own - e
                self.push_batches(-e, version, work.epoch, work.first + i + 1)


@pytest.fixture(scope="module")
def few(data, tmp_path_factory):
    """Returns a data set of 1,020 training images and 500 test images. The last batch of an epoch
    has 20 images, all others have 100."""
    directory = tmp_path_factory.mktemp("few")
    idx.cut(data, directory, 1020, 500)
    return directory, DataSet(directory)


RUN = ("--model", "fc:10", "--epochs", 2, "--batch-size", 100, "--seed", 5, "--warm-start-updates",
       0)
MODES = {
    "downpour": ("--mode", "downpour"),
    "downpour, several batches a push": ("--mode", "downpour", "--n-push", 3, "--n-fetch", 2,
                                         "--local-lr", 0.05),
    "downpour, sums": ("--mode", "downpour", "--n-push", 2, "--push", "sum", "--lr", 0.01),
    "downpour, pulls ahead": ("--mode", "downpour", "--prefetch"),
    "ssp": ("--mode", "ssp", "--ssp-bound", 2, "--n-fetch", 4),
    "sync": ("--mode", "sync"),
    "sandblaster, sgd": ("--mode", "sandblaster", "--optimizer", "sgd", "--step-images", 500),
    "sandblaster, lbfgs": ("--mode", "sandblaster", "--optimizer", "lbfgs"),
    "easgd": ("--mode", "easgd", "--n-push", 4, "--easgd-beta", 0.3, "--local-lr", 0.1,
              "--easgd-momentum", 0),
    "easgd with momentum": ("--mode", "easgd", "--n-push", 3, "--easgd-momentum", 0.9,
                            "--local-lr", 0.05),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes(programs, few, mode):
    directory, images = few
    ends = []
    for ours in (False, True):
        server = programs.server(*RUN, *MODES[mode], directory=None)
        if ours:
            assert programs.worker(server.endpoint, data=directory).wait() == 0
        else:
            assert IndependentWorker(server.endpoint, images, SoftmaxRegression).run() == EDONE
        ends.append(server.result())
    independent, own = ends
    assert independent["images"] == own["images"] == 2 * 1020
    assert (independent["updates"], independent["rejected"]) == (own["updates"], 0)
    assert independent["loss"] == pytest.approx(own["loss"], rel=1e-4)
    assert independent["loss"] < 2.2  # less than ln 10 = 2.30, the loss of a network that guesses


def test_modes_weights_of_another_term_are_not_exact(programs, few):
    """The server rejects a gradient with REJECT_STALE if its base_term is another term, even if its
    base_version is right."""
    server = programs.server(*RUN, *MODES["sync"], directory=None)
    worker = Worker(server.endpoint, data=few[1].id)
    grant = worker.lease()
    weights, version = worker.pull()
    assert grant.exact and version == grant.version
    worker.base_term += 1
    ack = worker.push(0 * weights, version, grant.work, 100)
    assert (ack.verdict, ack.reject) == (pb.VERDICT_REJECTED, pb.REJECT_STALE)
    worker.base_term -= 1
    ack = worker.push(0 * weights, version, grant.work, 100)
    assert ack.verdict == pb.VERDICT_OK
    worker.close()


def test_modes_a_step_that_answers_nobody_is_flushed(programs, few):
    """A step of sync ends because the second worker falls silent. The end is therefore not caused
    by a message to which a worker expects a reply. The server must still write the step to the
    write-ahead log at once, and does not send the notice that replies wait for the disk (WIRE.md,
    "Errors")."""
    server = programs.server(*RUN, *MODES["sync"], "--durability", "always", "--checkpoint-ms",
                        60000, "--min-workers", 2, "--heartbeat-ms", 100, "--suspect-ms", 300,
                        "--dead-ms", 60000)
    first, second = (Worker(server.endpoint, data=few[1].id) for _ in range(2))
    for worker in (first, second):
        worker.lease_request += 1
        worker.bulk.send(pb.Lease(stamp=worker.stamp, request=worker.lease_request))
    grant, _ = first.wait("grant")
    weights, version = first.pull()
    assert first.push(0 * weights, version, grant.work, 100).verdict == pb.VERDICT_OK
    second.close()
    with pytest.raises(AssertionError, match="no .'bye',. in 3 s"):
        first.wait("bye", seconds=3)
    assert server.status()["updates"] == 1
    assert first.notices == 0
    first.close()
