"""The data set of a run is fixed by the option --data-id or, without this option, by the first
accepted push. A worker that only joins does not fix the data set."""
import re
import subprocess

import numpy as np
import pytest

from client import Refused, Worker, pb
from support import idx
from support.build import command

SMALL = ("--model", "fc:10", "--epochs", 1, "--warm-start-updates", 0)


@pytest.fixture
def sets(data, tmp_path):
    """Returns the directories of two data sets with different images."""
    for name, train in (("right", 500), ("wrong", 400)):
        (tmp_path / name).mkdir()
        idx.cut(data, tmp_path / name, train, 100)
    return tmp_path / "right", tmp_path / "wrong"


def data_id(directory):
    """Returns the value of --data-id for the data set in `directory`."""
    done = subprocess.run(command("cnn-worker", "--print-data-id", "--data", directory),
                          capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and re.fullmatch("[0-9a-f]{16}:[0-9]+:100\n", done.stdout), done
    return done.stdout.strip()


def fingerprint(directory):
    return data_id(directory)[:16]


def test_a_machine_with_other_images_locks_nobody_out(programs, sets):
    """A worker with other images joins first, takes a lease, delivers nothing and leaves. After a
    restart of the server, workers with the right images can train."""
    right, _ = sets
    server = programs.server(*SMALL)
    other = Worker(server.endpoint, data=pb.DataId(
        n_train=1, n_test=1, rows=28, cols=28, classes=10, xxh3=1))
    other.lease()
    other.close()
    server.kill()
    server = programs.restart(server, *SMALL, "--session-ttl-ms", 1500, "--dead-ms", 1500,
                         "--recovery-ms", 100)
    worker = programs.worker(server.endpoint, data=right)
    assert worker.wait(60) == 0, worker.tail()
    assert server.wait(30) == 0, server.tail()


def test_another_data_id_does_not_continue_a_run_and_gets_the_reason(programs, sets):
    """A run keeps the data set of the first images on which it has trained. A server that starts
    again with another --data-id refuses to continue the run. The error of the server names both
    fingerprints, both sizes and a remedy."""
    right, wrong = sets
    server = programs.server(*SMALL)
    assert programs.worker(server.endpoint, data=right).wait(60) == 0
    assert server.wait(30) == 0
    again = programs.server(*SMALL, "--data-id", fingerprint(wrong))
    assert again.wait(10) == 7, again.tail()
    again.line(rf"its run has --data-id {fingerprint(right)} \(500 training and 100 test images\), "
               f"not {fingerprint(wrong)}: give the run's own value, or another --checkpoint-dir")
    again = programs.server(*SMALL, "--data-id", fingerprint(right).upper())
    assert again.wait(10) == 0, again.tail()


def test_the_refusal_names_both_and_the_remedy(programs, sets):
    right, wrong = sets
    ours, theirs = fingerprint(right), fingerprint(wrong)
    server = programs.server(*SMALL, "--min-workers", 2, "--data-id", ours)
    worker = programs.worker(server.endpoint, data=wrong)
    assert worker.wait(30) == 6
    said = "\n".join(worker.lines)
    assert ours in said and theirs in said and "400 train" in said and "--data-id" in said
    for _ in range(2):
        programs.worker(server.endpoint, data=right)
    assert server.wait(60) == 0, server.tail()
    server.line(f"server data_set.*{ours}")


def test_a_worker_cannot_claim_fewer_images(programs, sets):
    """A worker has the fingerprint of the right images, but claims other numbers of images. The
    server has the option --data-id with the text that cnn-worker prints, so the server refuses this
    worker, and the reason that it gives has both numbers."""
    right, _ = sets
    server = programs.server(*SMALL, "--data-id", data_id(right))
    for train, test in ((1, 1), (500, 99), (499, 100)):
        few = pb.DataId(n_train=train, n_test=test, rows=28, cols=28, classes=10,
                        xxh3=int(fingerprint(right), 16))
        with pytest.raises(Refused) as refusal:
            Worker(server.endpoint, data=few)
        assert f"({train} train, {test} test, " in str(refusal.value)
        assert f"--data-id {data_id(right)}: give" in str(refusal.value)
    assert programs.worker(server.endpoint, data=right).wait(60) == 0
    assert server.wait(30) == 0, server.tail()
    again = programs.server(*SMALL, "--data-id", fingerprint(right) + ":500:99")
    assert again.wait(10) == 7, again.tail()
    again.line(rf"its run has --data-id {fingerprint(right)} \(500 training and 100 test images\), "
               f"not {fingerprint(right)}:500:99: give the run's own value")


@pytest.mark.parametrize("mode", ("downpour", "sync"))
def test_a_machine_with_other_images_is_no_silent_wait(programs, sets, mode):
    """A worker with other images does not count as a worker of the run. The server logs that it
    waits for a worker with its images. When the run begins, the server refuses the worker with
    other images."""
    right, wrong = sets
    ours, theirs = fingerprint(right), fingerprint(wrong)
    server = programs.server(*SMALL, "--mode", mode, "--min-workers", 2, directory=None)
    first = programs.worker(server.endpoint, data=right)
    server.line("worker joined", 10)
    outsider = programs.worker(server.endpoint, data=wrong)
    server.line(f"level=warn.*data_sets_differ.*{theirs}.*{ours}", 10)
    server.line(f"server waiting.*workers: 1 of 2 .*1 more has data set {theirs}, not {ours}", 10)
    assert f"data set {theirs}" in server.status()["waiting"]
    second = programs.worker(server.endpoint, data=right)
    assert [w.wait(60) for w in (first, second, outsider)] == [0, 0, 6], outsider.tail()
    assert server.wait(30) == 0, server.tail()


def test_nobody_fixes_it_before_the_run_begins(programs, sets):
    """A worker pushes before the run begins, so without a grant. This push must not fix the run's
    data set."""
    right, _ = sets
    server = programs.server(*SMALL, "--min-workers", 2)
    other = Worker(server.endpoint, data=pb.DataId(
        n_train=400, n_test=100, rows=28, cols=28, classes=10, xxh3=1))
    gradient = np.zeros(other.welcome.n_params, np.float32)
    ack = other.push(gradient, 0, work=pb.Work(epoch=0, first=0, count=1), images=100, loss=1.0)
    assert (ack.verdict, ack.reject) == (pb.VERDICT_REJECTED, pb.REJECT_WORK)
    fleet = [programs.worker(server.endpoint, data=right) for _ in range(2)]
    assert [w.wait(60) for w in fleet] == [0, 0], fleet[0].tail()
    assert server.wait(30) == 0, server.tail()


@pytest.mark.parametrize("options,needed", [
    (["--validate", 3], "validate"), ([], ""),
    (["--validate", 3, "--model", "norm:0.5:0.5 fc:10"], "images validate")])
def test_a_worker_must_know_what_its_images_need(programs, options, needed):
    """If the run holds back training images for evaluations, WELCOME requires the feature
    `validate`. A worker without this feature would train on the images that are held back, so it
    must refuse to join."""
    server = programs.server(*SMALL[2:], *(options if "--model" in options
                                           else [*SMALL[:2], *options]))
    worker = Worker(server.endpoint, data=pb.DataId(
        n_train=10, n_test=1, rows=28, cols=28, classes=10, xxh3=1))
    assert worker.welcome.requires == needed
    assert worker.welcome.validate == (3 if "validate" in needed else 0)
    worker.close()
