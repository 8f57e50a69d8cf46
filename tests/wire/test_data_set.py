"""The data set of a run: fixed by what is trained or by --data-id, never by whoever came first."""
import re
import subprocess

import idx
import pytest

from client import Worker, pb
from flavour import command

SMALL = ("--model", "fc:10", "--epochs", 1, "--warm-updates", 0)


@pytest.fixture
def sets(data, tmp_path):
    """Two directories of different images."""
    for name, train in (("right", 500), ("wrong", 400)):
        (tmp_path / name).mkdir()
        idx.cut(data, tmp_path / name, train, 100)
    return tmp_path / "right", tmp_path / "wrong"


def fingerprint(directory):
    done = subprocess.run(command("cnn-worker", "--print-data-id", "--data", directory),
                          capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and re.fullmatch("[0-9a-f]{16}\n", done.stdout), done
    return done.stdout.strip()


def test_a_machine_with_other_images_locks_nobody_out(lab, sets):
    """It came first, took work, delivered nothing and went; then the server starts again."""
    right, _ = sets
    server = lab.server(*SMALL)
    intruder = Worker(server.endpoint, data=pb.DataId(
        n_train=1, n_test=1, rows=28, cols=28, classes=10, xxh3=1))
    intruder.lease()
    intruder.close()
    server.kill()
    server = lab.restart(server, *SMALL, "--forget-ms", 1500, "--dead-ms", 1500,
                         "--recovery-ms", 100)
    worker = lab.worker(server.endpoint, data=right)
    assert worker.wait(60) == 0, worker.tail()
    assert server.wait(30) == 0, server.tail()


def test_the_refusal_names_both_and_the_remedy(lab, sets):
    right, wrong = sets
    ours, theirs = fingerprint(right), fingerprint(wrong)
    server = lab.server(*SMALL, "--min-workers", 2, "--data-id", ours)
    worker = lab.worker(server.endpoint, data=wrong)
    assert worker.wait(30) == 6
    said = "\n".join(worker.lines)
    assert ours in said and theirs in said and "400 train" in said and "--data-id" in said
    for _ in range(2):
        lab.worker(server.endpoint, data=right)
    assert server.wait(60) == 0, server.tail()
    server.line(f"server data_set.*{ours}")
