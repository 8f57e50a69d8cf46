"""A Python worker that was written from WIRE.md trains models on real images."""
import numpy as np
import pytest

from conftest import LEDGER, Honest

from client import Refused, Worker, checksum, pb
from support import idx
from support import numpy_net
from support.programs import SIGTERM

EDONE, ESHUTDOWN, EWRONGDATA, ETERM, ESTATE = 20, 19, 8, 14, 16
FILES = [(name, "images" in name) for name in idx.NAMES]


class DataSet:
    def __init__(self, directory):
        arrays = [idx.read(directory, name) for name in idx.NAMES]
        self.train_x, self.train_y, self.test_x, self.test_y = arrays
        self.id = pb.DataId(
            n_train=len(self.train_x), n_test=len(self.test_x), rows=28, cols=28, classes=10,
            xxh3=checksum(b"".join(idx.encode(a) for a in arrays)))


def softmax_loss(logits, labels):
    """Returns (loss of each image, derivative of each loss with respect to the logits)."""
    e = np.exp(logits - logits.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(np.maximum(p[rows, labels], 1e-30))
    p[rows, labels] -= 1
    return loss, p


class SoftmaxRegression:
    """The model `fc:10`. The flat vector of its parameters has weight [10][784], then bias [10]."""

    def __init__(self, images, labels):
        self.x = images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
        self.y = labels.astype(int)

    def logits(self, w, rows):
        return self.x[rows] @ w[:7840].reshape(10, 784).T + w[7840:]

    def gradient(self, w, rows):
        """Returns (mean loss, mean gradient) of these images."""
        loss, d = softmax_loss(self.logits(w, rows), self.y[rows])
        d /= len(rows)
        return loss.mean(), np.concatenate([(d.T @ self.x[rows]).ravel(), d.sum(0)])

    def evaluate(self, w, rows):
        """Returns (number of correctly classified images, sum of the losses)."""
        logits = self.logits(w, rows)
        loss, _ = softmax_loss(logits, self.y[rows])
        return int((logits.argmax(1) == self.y[rows]).sum()), float(loss.sum())


class Trainer(Worker):
    """The worker that WIRE.md, "A first worker", describes."""

    def __init__(self, endpoint, data, model):
        self.train, self.test = model(data.train_x, data.train_y), model(data.test_x, data.test_y)
        self.orders = {}
        self.losses = []
        super().__init__(endpoint, data=data.id)

    def batch(self, epoch, b):
        """Returns the images of batch b of an epoch (WIRE.md, "Order of images")."""
        if epoch not in self.orders:
            self.orders[epoch] = numpy_net.order(self.welcome.seed, epoch, self.data.n_train)
        return self.orders[epoch][b * self.welcome.batch:(b + 1) * self.welcome.batch]

    def train_on(self, grant):
        work = grant.work
        for b in range(work.first, work.first + work.count):
            w, version = self.pull()
            rows = self.batch(work.epoch, b)
            loss, gradient = self.train.gradient(w, rows)
            one = pb.Work(epoch=work.epoch, first=b, count=1)
            ack = self.push(gradient, version, one, len(rows), loss)
            assert ack.verdict == pb.VERDICT_OK, ack
            self.losses.append(loss)

    def evaluate(self, grant):
        w, _ = self.pull(pb.WEIGHTS_EVAL)
        rows = np.arange(grant.eval_first, grant.eval_first + grant.eval_count)
        correct, loss = self.test.evaluate(w, rows)
        self.bulk.send(pb.Result(stamp=self.stamp, eval_id=grant.eval_id,
                                 eval_first=grant.eval_first, eval_count=grant.eval_count,
                                 correct=correct, loss_sum=loss))

    def run(self):
        """Work until the server sends BYE. Returns the code of the BYE."""
        try:
            while True:
                grant = self.lease()
                if grant.kind == pb.GRANT_TRAIN:
                    self.train_on(grant)
                else:
                    self.evaluate(grant)
        except Refused as over:
            self.close()
            return over.code


@pytest.fixture(scope="module")
def images():
    return {}


def load(data, images):
    if data not in images:
        images[data] = DataSet(data)
    return images[data]


def is_mnist(data_set):
    """Returns True for MNIST. The digits of MNIST are easier than the clothes of Fashion-MNIST, so
    the tests demand a higher accuracy."""
    return data_set.id.xxh3 == 0x90DFC56C5135FD65


def test_a_first_worker_trains_softmax_regression(programs, data, images):
    server = programs.server("--model", "fc:10", "--epochs", 1, "--batch-size", 100, "--optimizer",
                        "adagrad", "--lr", 0.02, "--seed", 7)
    worker = Trainer(server.endpoint, load(data, images), SoftmaxRegression)
    assert worker.welcome.model == "fc:10" and worker.welcome.n_params == 7850
    assert worker.run() == EDONE
    result = server.result()
    assert result["accuracy"] > (0.90 if is_mnist(load(data, images)) else 0.80)
    assert result["images"] == worker.data.n_train
    assert len(worker.losses) == 600
    assert np.mean(worker.losses[-100:]) < 0.5 * np.mean(worker.losses[:10])


class SmallNet:
    """A small convolutional network, whose gradients numpy_net computes in float64."""

    layers = "conv:4:3 relu pool:2 fc:10"
    shapes = [(4, 1, 3, 3), (4,), (10, 676), (10,)]

    def __init__(self, images, labels):
        self.x, self.y = images, labels.astype(int)

    def tensors(self, w):
        ends = np.cumsum([np.prod(s) for s in self.shapes])
        return [p.reshape(s) for p, s in zip(np.split(w, ends[:-1]), self.shapes)]

    def logits(self, w, rows):
        a, b, c, d = (p.astype(np.float64) for p in self.tensors(w))
        y, _ = numpy_net.conv(self.x[rows][:, None] / 255.0, a, b, 1, 0)
        y, _ = numpy_net.pool(numpy_net.relu(y)[0], 2)
        return numpy_net.fc(y, c, d)[0]

    def gradient(self, w, rows):
        loss, _ = softmax_loss(self.logits(w, rows), self.y[rows])
        g = numpy_net.gradient(self.layers, self.tensors(w), self.x[rows], self.y[rows])
        return loss.mean(), np.concatenate([p.ravel() for p in g]).astype(np.float32)

    evaluate = SoftmaxRegression.evaluate


@pytest.fixture
def few(data, tmp_path):
    """Returns a data set of 3,000 training images and 1,000 test images."""
    idx.cut(data, tmp_path, 3000, 1000)
    return DataSet(tmp_path)


def test_a_first_worker_trains_a_convolutional_network(programs, data, images, few):
    server = programs.server("--model", "seed:4", "--epochs", 1, "--batch-size", 50, "--lr", 0.03,
                             "--seed", 3)
    worker = Trainer(server.endpoint, few, SmallNet)
    assert worker.welcome.model == SmallNet.layers
    assert worker.run() == EDONE
    assert server.result()["accuracy"] > (0.80 if is_mnist(load(data, images)) else 0.70)


def test_initial_weights(programs, few):
    server = programs.server("--model", "seed:4", "--epochs", 1, "--seed", 11, directory=None)
    worker = Worker(server.endpoint, data=few.id)
    weights, version = worker.pull()
    expected = [numpy_net.initial(11, t, shape, fan_in) for t, (shape, fan_in) in
                enumerate(zip(SmallNet.shapes, (9, 9, 676, 676)))]
    assert version == 0
    assert weights.tobytes() == np.concatenate([p.ravel() for p in expected]).tobytes()
    worker.close()


# ---- WIRE.md, "Leases" and "Rejections of work"

def leased(programs, few, *options):
    server = programs.server("--model", "fc:10", "--epochs", 2, "--batch-size", 500, "--lr", 0.01,
                        "--warm-start-updates", 0, *options, directory=None)
    return server, Worker(server.endpoint, data=few.id)


ZERO = np.zeros(7850, np.float32)


def test_leases_a_batch_counts_once_for_all_workers(programs, few):
    server, a = leased(programs, few)
    b = Worker(server.endpoint, data=few.id)
    grant = a.lease()
    one = pb.Work(epoch=0, first=grant.work.first, count=1)
    # rejected, because the server has not granted the batch to b
    assert b.push(ZERO, 0, one, 500).reject == pb.REJECT_WORK
    assert a.push(ZERO, 0, one, 500).verdict == pb.VERDICT_OK
    late = b.push(ZERO, 0, one, 500)
    assert (late.verdict, late.reject) == (pb.VERDICT_REJECTED, pb.REJECT_WORK)
    for w in (a, b):
        w.close()


def test_rejections_shape(programs, few):
    """The third push of a wrong shape excludes its worker. A push of a later epoch does not count."""
    server, a = leased(programs, few)
    b = Worker(server.endpoint, data=few.id)
    for w, work, n in ((a, pb.Work(count=0), 0), (a, pb.Work(first=6, count=1), 500),
                       (b, pb.Work(first=5, count=2), 1000), (b, pb.Work(first=0, count=1), 499),
                       (a, pb.Work(epoch=1, first=0, count=1), 500),
                       (a, pb.Work(epoch=2, first=0, count=1), 500)):
        ack = w.push(ZERO, 0, work, n)
        assert (ack.verdict, ack.reject) == (pb.VERDICT_REJECTED, pb.REJECT_SHAPE), work
    with pytest.raises(Refused, match="of a wrong shape"):
        b.push(ZERO, 0, pb.Work(count=0), 0)
        b.wait("ack")
    b.close()
    assert a.push(ZERO, 0, a.lease().work, 3000).verdict == pb.VERDICT_OK
    # rejected, because epoch 0 is over
    assert a.push(ZERO, 1, pb.Work(first=0, count=1), 500).reject == pb.REJECT_WORK
    a.close()


def test_leases_the_same_request_gets_the_same_grant(programs, few):
    server, a = leased(programs, few)
    first = a.lease()
    a.bulk.send(pb.Lease(stamp=a.stamp, request=a.lease_request))
    again, _ = a.wait("grant")
    assert again == first
    a.close()


def test_leases_give_back_what_is_undone(programs, few):
    """The only worker requests leases and pushes nothing, so the server grants it the batches
    again."""
    server, a = leased(programs, few, "--lease-batches", 4)
    assert [a.lease().work.count > 0 for _ in range(20)] == [True] * 20
    a.close()


def test_evaluation_results_that_make_no_sense(programs, few):
    server, a = leased(programs, few)
    assert a.push(ZERO, 0, a.lease().work, 3000).verdict == pb.VERDICT_OK
    grant = a.lease()
    assert grant.kind == pb.GRANT_EVAL
    result = pb.Result(stamp=a.stamp, eval_id=grant.eval_id, eval_first=grant.eval_first,
                       eval_count=grant.eval_count, correct=1, loss_sum=float("nan"))
    a.bulk.send(result)  # the result is not finite, so the server grants the portion again
    assert (a.lease().kind, server.status()["epoch_records"][0]["accuracy"]) == (pb.GRANT_EVAL,
                                                                                 None)
    result.eval_count, result.loss_sum = grant.eval_count + 1, 1.0
    a.bulk.send(result)
    with pytest.raises(Refused) as e:
        a.wait("nothing")
    assert e.value.code == 12
    a.pull(pb.WEIGHTS_EVAL)
    a.close()


def test_data_set_fingerprint(programs, few):
    server, a = leased(programs, few)
    # The first push that counts fixes the data set of the run.
    a.lease()
    assert a.push(ZERO, 0, pb.Work(first=0, count=1), 500).verdict == pb.VERDICT_OK
    wrong = pb.DataId()
    wrong.CopyFrom(few.id)
    wrong.xxh3 ^= 1
    for other in (wrong, None):
        with pytest.raises(Refused) as e:
            Worker(server.endpoint, data=other)
        assert e.value.code == EWRONGDATA
    a.pull()
    a.close()


# ---- each push counts exactly once, even if the server dies

def test_exactly_once_when_the_server_is_killed(programs):
    server = programs.server(*LEDGER, "--checkpoint-ms", 20)
    worker = Honest(server.endpoint, name="ledger")
    term = worker.stamp.term
    for life in range(3):
        for _ in range(40):
            worker.push_next()
        for _ in range(worker.welcome.push_window):
            worker.push_next(wait=False)
        server.kill()
        server = programs.restart(server, *LEDGER, "--checkpoint-ms", 20)
        worker.reconnect()
        assert worker.stamp.term == term + life + 1
    worker.goes_on()
    assert worker.seq == 3 * (40 + worker.welcome.push_window) + 1
    worker.bye()


def test_errors_old_term_after_a_restart(programs):
    server = programs.server(*LEDGER)
    worker = Honest(server.endpoint, name="late")
    worker.goes_on()
    old = pb.Stamp()
    old.CopyFrom(worker.stamp)
    worker.bye()
    server.kill()
    server = programs.restart(server, *LEDGER)
    worker.links()
    worker.bulk.send(pb.Pull(stamp=old, which=1))
    name, body, _ = worker.bulk.receive()
    assert (name, body.code) == ("error", ETERM)
    worker.hello()
    worker.goes_on()
    worker.close()


def test_all_receive_the_end_of_training(programs):
    server = programs.server(*LEDGER)
    worker = Honest(server.endpoint)
    worker.goes_on()
    server.signal(SIGTERM)
    with pytest.raises(Refused) as e:
        worker.wait("nothing")
    assert e.value.code == ESHUTDOWN
    worker.close()
    assert server.wait(10) == 0
