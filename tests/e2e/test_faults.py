"""The tests kill processes and send garbage: no push is lost or applied twice. tests/fault tests
each fault in more detail."""
import random
import socket
import time

import pytest

from support.ledger import LedgerRun
from support.programs import SIGTERM, until


def test_everybody_killed_in_turn_loses_nothing(programs):
    run = LedgerRun(programs, 3, 5000)
    for k in range(5):
        run.reached(k)
        run.kill_server()
        run.kill_worker(k % 3)
    run.verdict()


@pytest.mark.parametrize("durability", ("replay", "always"))
def test_large_pushes_through_kills_lose_nothing(programs, durability):
    """Each push is sent in four parts (WIRE.md, "Chunked push")."""
    run = LedgerRun(programs, 2, 200, "--durability", durability, size=200000, pace=(5,))
    for k in range(3):
        run.reached(k)
        run.kill_server()
        run.kill_worker(k % 2)
    run.verdict()


def trained(server, images):
    """Wait until the server has counted this number of images."""
    until(lambda: server.status()["images"] >= images, 60, f"{images} images trained")


# With these options the server notices a death soon, so that the tests are short.
TRAINING = ("--model", "seed:8", "--epochs", 2, "--checkpoint-ms", 100, "--heartbeat-ms", 100,
            "--suspect-ms", 500, "--dead-ms", 2000, "--recovery-ms", 1000)


def test_every_image_counts_once_whatever_dies(programs):
    server = programs.server(*TRAINING)
    fleet = [programs.worker(server.endpoint) for _ in range(2)]
    for k in range(3):
        trained(server, 15000 * (2 * k + 1))
        fleet[k % 2].kill()
        fleet[k % 2] = programs.worker(server.endpoint)
        trained(server, 15000 * (2 * k + 2))
        server.kill()
        server = programs.restart(server, *TRAINING)
    result = server.result()
    assert result["images_per_epoch"] == [60000, 60000]
    for worker in fleet:
        assert worker.wait(10) == 0, worker.tail()


def test_a_dead_worker_is_replaced(programs):
    server = programs.server("--model", "seed:8", "--epochs", 1)
    worker = programs.worker(server.endpoint)
    trained(server, 10000)
    worker.kill()
    programs.worker(server.endpoint)
    assert server.result()["images_per_epoch"] == [60000]


def test_sigterm_drains_and_the_run_goes_on_later(programs):
    server = programs.server(*TRAINING)
    worker = programs.worker(server.endpoint)
    trained(server, 20000)
    asked = time.monotonic()
    server.signal(SIGTERM)
    assert server.wait(10) == 0, server.tail()
    assert time.monotonic() - asked <= 3
    assert worker.wait(10) == 12, worker.tail()
    server = programs.restart(server, *TRAINING)
    assert server.status()["images"] >= 20000
    programs.worker(server.endpoint)
    assert server.result()["images_per_epoch"] == [60000, 60000]


def test_worker_with_other_data_exits_6(programs, small):
    server = programs.server("--model", "seed:8", "--epochs", 1)
    worker = programs.worker(server.endpoint)
    trained(server, 1000)
    other = programs.worker(server.endpoint, data=small)
    assert other.wait(20) == 6, other.tail()
    assert server.result()["images_per_epoch"] == [60000]
    assert worker.wait(10) == 0


GARBAGE = {"random bytes": random.Random(2).randbytes(65536),
           "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
           "ZMTP 1.0": b"\x01\x00" + b"\x05\x00GREET", "silence": b""}


def test_garbage_peers_change_nothing(programs, small):
    server = programs.server("--model", "seed:8", "--epochs", 2)
    host, port = server.endpoint.removeprefix("tcp://").rsplit(":", 1)
    peers = []
    for text in GARBAGE.values():
        for _ in range(10):
            peer = socket.create_connection((host, int(port)), 5)
            peer.sendall(text)
            peers.append(peer)
    programs.worker(server.endpoint, data=small)
    assert server.result()["images_per_epoch"] == [6000, 6000]
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:1"])
def test_worker_without_server_exits_3(programs, small, endpoint):
    worker = programs.worker(endpoint, "--connect-timeout-ms", 1000, data=small)
    assert worker.wait(15) == 3, worker.tail()
