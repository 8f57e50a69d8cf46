"""At the end of a run, the server sends its last status to each observer that has requested the
status before."""
import json

import numpy as np
import pytest

from client import Link, Refused, Worker, hello, pb
from support.programs import SIGTERM, fill, mount_small, unmount, until


@pytest.fixture
def observer(programs):
    links = []

    def start(server):
        links.append(Link(server.endpoint))
        return links[-1]
    yield start
    for link in links:
        link.close()


def last_status(link):
    """Returns (the status that the server sends next, the code of the BYE that follows it)."""
    status = json.loads(link.expect("status")[1].text)
    with pytest.raises(Refused) as bye:
        link.expect("status")
    return status, bye.value.code


def test_a_watcher_is_sent_the_last_status_and_bye(programs, observer):
    server = programs.server("--model", "vector:3")
    watcher, silent = observer(server), observer(server)
    for link in (watcher, silent):
        link.send(hello(role=pb.ROLE_OBSERVER))
        link.expect("welcome")
    watcher.send(pb.Status())
    assert json.loads(watcher.expect("status")[1].text)["ending"] is None
    server.signal(SIGTERM)
    status, code = last_status(watcher)
    assert (status["state"], status["ending"], code) == ("ending", "drained", 19)
    assert status["stop_reason"] is None
    assert silent.receive(0.3) is None
    silent.send(pb.Status())  # a request after the end of the run
    assert last_status(silent)[1] == 19
    assert server.wait(10) == 0


def test_a_worker_that_asks_is_not_sent_home(programs, observer):
    """A client that requests the status without having sent HELLO as an observer may be a worker
    that retains pushes for the next term. If the server sent BYE to this client, the client would
    end and lose these pushes, so the server sends only the status."""
    server = programs.server("--model", "vector:3")
    watcher, late = observer(server), observer(server)
    watcher.send(hello(role=pb.ROLE_OBSERVER))
    watcher.expect("welcome")
    watcher.send(pb.Status())
    watcher.expect("status")
    late.send(pb.Status())
    late.expect("status")
    server.signal(SIGTERM)
    last_status(watcher)
    assert late.receive(0.3) is None
    late.send(pb.Status())  # the server answers a request after the end, but sends no BYE
    late.expect("status")
    assert late.receive(0.3) is None


def diverge(worker):
    """Pushes NaN until the server ends the run."""
    with pytest.raises(Refused) as end:
        for _ in range(30):
            worker.push(np.full(8, np.nan, np.float32), 0, loss=1)
    assert end.value.code == 25  # PS_EDIVERGED
    worker.close()


def test_a_run_that_diverged_can_continue_and_says_so(programs):
    """The first server that starts after the divergence logs the options that may help, and the run
    continues from its last finite weights. If the run then ends in another way, the next start must
    not mention the divergence."""
    options = "--model", "vector:8", "--optimizer", "sgd", "--lr", 1, "--lr-scaling", "none"
    server = programs.server(*options)
    worker = Worker(server.endpoint)
    assert worker.push(np.ones(8, np.float32), 0).verdict == pb.VERDICT_OK
    diverge(worker)
    assert server.wait(20) == 1, server.tail()
    assert json.loads(server.out[-1])["status"] == "diverged"
    again = programs.server(*options[:-4], "--lr", 0.5, "--lr-scaling", "none")
    warning = again.line(r"level=warn .*server diverged_before.*")[0]
    for option in ("--lr", "--clip-norm", "--staleness-scaling", "--checkpoint-dir"):
        assert option in warning
    worker = Worker(again.endpoint)
    assert (worker.pull()[0] == -1).all()
    assert worker.push(np.ones(8, np.float32), 1).verdict == pb.VERDICT_OK
    assert (worker.pull()[0] == -1.5).all()
    worker.close()
    again.signal(SIGTERM)
    assert again.wait(20) == 0, again.tail()
    third = programs.server(*options)
    third.line("net listening")
    assert not any("diverged_before" in line for line in third.lines)


def test_a_stop_rule_is_the_end_for_workers_and_a_drain_for_observers(programs, observer):
    server = programs.server("--model", "vector:8", "--epochs", 9, "--batch-size", 10, "--stop-at",
                             "accuracy=0.5")
    watcher = observer(server)
    watcher.send(hello(role=pb.ROLE_OBSERVER))
    watcher.expect("welcome")
    watcher.send(pb.Status())
    watcher.expect("status")
    worker = Worker(server.endpoint, data=pb.DataId(n_train=10, n_test=4, xxh3=5))
    assert worker.push(np.ones(8, np.float32), 0, worker.lease().work, 10).verdict == pb.VERDICT_OK
    grant = worker.lease()
    worker.bulk.send(pb.Result(stamp=worker.stamp, eval_id=grant.eval_id, eval_count=4, correct=2,
                               code=grant.code))
    with pytest.raises(Refused) as bye:
        worker.wait("bye")
    assert bye.value.code == 20  # PS_EDONE
    status, code = last_status(watcher)
    assert (status["ending"], code) == ("drained", 19)
    assert status["stop_reason"] == "the goal of --stop-at is reached: epoch 1 has accuracy 0.5000"
    worker.close()
    assert server.wait(10) == 0


def train_epoch(worker, correct):
    """Trains and evaluates an epoch of one batch. The evaluation has `correct` of 4 images."""
    version = worker.pull()[1]
    work = worker.lease().work
    assert worker.push(np.ones(8, np.float32), version, work, 10).verdict == pb.VERDICT_OK
    grant = worker.lease()
    assert grant.kind == pb.GRANT_EVAL
    worker.bulk.send(pb.Result(stamp=worker.stamp, eval_id=grant.eval_id, eval_count=4,
                               correct=correct, code=grant.code))


def accuracies(server):
    lines = [json.loads(line) for line in (server.directory / "history.jsonl").open()]
    return [line["accuracy"] for line in lines if line["kind"] == "epoch"]


def test_patience_ends_at_the_first_epoch_that_is_due(programs):
    """After the epoch that ends the run, the worker asks for work at once, and each further epoch
    would be better: the server must not forget that the run was due to end."""
    server = programs.server("--model", "vector:8", "--epochs", 9, "--batch-size", 10,
                             "--patience-epochs", 2)
    worker = Worker(server.endpoint, data=pb.DataId(n_train=10, n_test=4, xxh3=5))
    with pytest.raises(Refused) as bye:
        for correct in (1, 0, 2, 2, 1, 3, 4):
            train_epoch(worker, correct)
        worker.wait("bye")
    assert bye.value.code == 20  # PS_EDONE
    worker.close()
    assert server.wait(10) == 0
    assert accuracies(server) == [0.25, 0, 0.5, 0.5, 0.25]


def test_a_new_rule_ignores_epochs_that_were_not_better_long_ago(programs):
    """Only the newest evaluated epochs matter to a resumed run."""
    options = "--model", "vector:8", "--epochs", 9, "--batch-size", 10
    server = programs.server(*options)
    worker = Worker(server.endpoint, data=pb.DataId(n_train=10, n_test=4, xxh3=5))
    for correct in (1, 1, 1, 2):
        train_epoch(worker, correct)
    until(lambda: len(accuracies(server)) == 4, 10, "the history")
    server.signal(SIGTERM)
    assert server.wait(10) == 0
    worker.close()
    again = programs.server(*options, "--patience-epochs", 2)
    worker = Worker(again.endpoint, data=pb.DataId(n_train=10, n_test=4, xxh3=5))
    with pytest.raises(Refused) as bye:
        for correct in (1, 2, 3):
            train_epoch(worker, correct)
        worker.wait("bye")
    assert bye.value.code == 20  # PS_EDONE
    worker.close()
    assert again.wait(10) == 0
    assert accuracies(again) == [0.25, 0.25, 0.25, 0.5, 0.25, 0.5]


@pytest.fixture
def small_disk(tmp_path):
    """Yields the directory of a tmpfs of 1 MiB."""
    why = mount_small(tmp_path / "disk", "1m")
    if why:
        pytest.skip(f"no tmpfs can be mounted: {why}")
    yield tmp_path / "disk"
    unmount(tmp_path / "disk")


def test_a_run_that_diverged_ends_though_the_disk_is_full(programs, small_disk):
    """At the end of the run, the server waits for disk space for its last checkpoint, but only for
    a limited time. After this time the server exits, and its log says how the run ended and that
    the wait was too long."""
    server = programs.server("--model", "vector:8", "--checkpoint-ms", 3600000,
                        directory=small_disk / "ckpt")
    worker = Worker(server.endpoint)
    assert worker.push(np.ones(8, np.float32), 0).verdict == pb.VERDICT_OK
    # delete the old checkpoints, because the server could delete them to get space
    for old in sorted((small_disk / "ckpt").glob("ckpt-*"))[:-1]:
        old.unlink()
    fill(small_disk / "filler")
    with pytest.raises((Refused, AssertionError)):
        for _ in range(120):
            worker.push(np.full(8, np.nan, np.float32), 0, wait=False)
            worker.wait("ack", seconds=1)
    worker.close()
    assert server.wait(20) == 10, server.tail()
    said = "\n".join(server.lines).split("gave_up")[1]
    assert "diverged" in said and "cannot be written" in said, said
