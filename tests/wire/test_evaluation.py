"""Test "Evaluation" of WIRE.md with the default --eval-images: in the asynchronous modes one worker
evaluates an epoch while the others train."""
import numpy as np
import pytest

from client import Worker, pb

BATCHES, PORTIONS, SIZE = 80, 10, 8


@pytest.fixture(params=["downpour", "ssp", "easgd"])
def server(programs, request):
    return programs.server("--model", f"vector:{SIZE}", "--mode", request.param, "--epochs", 2,
                           "--suspect-ms", 20000, "--dead-ms", 60000, directory=None)


@pytest.fixture
def workers(server):
    """Yields two workers that report a data set of 80 batches and 10,000 test images."""
    data = pb.DataId(n_train=100 * BATCHES, n_test=1000 * PORTIONS, xxh3=5)
    pair = [Worker(server.endpoint, data=data) for _ in range(2)]
    yield pair
    for worker in pair:
        worker.close()


def train(worker, grant):
    assert grant.kind == pb.GRANT_TRAIN
    for b in range(grant.work.first, grant.work.first + grant.work.count):
        one = pb.Work(epoch=grant.work.epoch, first=b, count=1)
        ack = worker.push(np.zeros(SIZE, np.float32), worker.pull()[1], one, 100)
        assert ack.verdict == pb.VERDICT_OK, ack


def evaluate(worker, grant):
    assert (grant.kind, grant.eval_count) == (pb.GRANT_EVAL, 1000)
    worker.bulk.send(pb.Result(stamp=worker.stamp, eval_id=grant.eval_id, code=grant.code,
                               eval_first=grant.eval_first, eval_count=grant.eval_count))


def test_evaluation_by_one_worker_while_another_trains(server, workers):
    """The second worker evaluates only the portion that checks the results of the first one."""
    first, second = workers
    grant = first.lease()
    while grant.kind == pb.GRANT_TRAIN:
        train(first, grant)
        grant = first.lease()
    for portion in range(PORTIONS):
        assert grant.eval_first == 1000 * portion
        train(second, second.lease())
        evaluate(first, grant)
        grant = first.lease()
    assert grant.kind == pb.GRANT_TRAIN
    evaluate(second, second.lease())
    assert second.lease().kind == pb.GRANT_TRAIN
    assert server.status()["counters"]["checks_agreed"] == 1
