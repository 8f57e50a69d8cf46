"""The server's status is correct even if its workers do not fit into one message."""
import json
import time

import pytest

from client import Worker

WORKERS = 200
HELLOS_PER_SECOND = 40  # below the limit of 50, above which a worker must repeat its HELLO


@pytest.fixture
def crowd(programs):
    server = programs.server("--model", "vector:64", "--max-workers", 256, "--dead-ms", 600000,
                             directory=None)
    workers = []
    for i in range(WORKERS):
        workers.append(Worker(server.endpoint, name=f"worker-{i:03d}-with-a-name-of-usual-length",
                              host=f"compute-{i:04d}.cluster", pid=1000 + i))
        time.sleep(1 / HELLOS_PER_SECOND)
    yield server
    for worker in workers:
        worker.close()


def test_status_and_top_list_every_worker(programs, crowd):
    names = [f"worker-{i:03d}-with-a-name-of-usual-length" for i in range(WORKERS)]
    status = json.loads("\n".join(programs.ctl("--server", crowd.endpoint, "status").out))
    assert [w["name"] for w in status["workers"]] == names
    assert status["workers_left_out"] == 0
    assert [w["name"] for w in crowd.status()["workers"]] == names, "/status"
    top = programs.ctl("--server", crowd.endpoint, "top", "--once").out
    assert [name for name in names if not any(name[:10] in line for line in top)] == []
