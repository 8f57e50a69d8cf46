"""Test the choice of GPUs and kernels by a worker."""
import os
import re
import socket
import subprocess

import pytest

from gpu import worker


@pytest.fixture(scope="module")
def gpus(gpu):
    """Returns the number of GPUs that a program may use."""
    if gpu == "cpu":
        pytest.skip("CNN_TEST_DEVICE is not cuda")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip()])
    return len(subprocess.run(["nvidia-smi", "-L"], text=True, check=True,
                              stdout=subprocess.PIPE).stdout.splitlines())


def number(w):
    return int(w.line(r'trainer start\b.*device="cuda:(\d+) ')[1])


def test_auto_takes_a_gpu_that_works(gpus, programs):
    server = programs.server("--model", "fc:10", "--epochs", 1, "--max-updates", 3)
    w = worker(programs, server, "auto")
    assert server.result()["updates"] == 3
    assert w.wait(10) == 0 and number(w) < gpus, w.tail()


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_slurm_numbers_the_gpus(gpus, programs, device):
    server = programs.server("--model", "fc:10", "--epochs", 1, "--max-updates", 3)
    w = worker(programs, server, device, env={"SLURM_LOCALID": "7"})
    assert w.wait(20) == 0 and number(w) == 7 % gpus, w.tail()


def test_workers_that_start_together_take_different_gpus(gpus, programs):
    if gpus == 1:
        pytest.skip("one GPU")
    server = programs.server("--model", "seed:32", "--epochs", 3, "--min-workers", gpus)
    fleet = [worker(programs, server, "auto") for _ in range(gpus)]
    assert server.result()["images"] == 180000
    assert sorted(number(w) for w in fleet) == list(range(gpus))


def test_a_gpu_in_use_is_not_taken(gpus, programs):
    if gpus == 1:
        pytest.skip("one GPU")
    server = programs.server("--model", "seed:32", "--epochs", 100)
    first = worker(programs, server, f"cuda:{gpus - 2}")
    server.line(r"train epoch.* epoch=1 ")
    rest = [worker(programs, server, "cuda") for _ in range(gpus - 1)]
    assert number(first) not in [number(w) for w in rest]


def test_a_process_that_keeps_the_locks_delays_a_worker_for_a_limited_time(gpus, programs):
    if gpus == 1:
        pytest.skip("one GPU")
    server = programs.server("--model", "fc:10", "--epochs", 1, "--max-updates", 3)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        lock.bind("\0cnn-worker GPU choice")
        w = worker(programs, server, "auto")
        w.line(r"cuda gpus_locked\b.*waited_ms=30000", 60)
        assert server.result(60)["updates"] == 3 and number(w) < gpus


@pytest.mark.parametrize("model", ["seed:32", "cnn99"])
def test_general_kernels_can_be_requested(gpus, programs, model):
    server = programs.server("--model", model, "--epochs", 1, "--max-updates", 3)
    w = worker(programs, server, "cuda", "--kernels", "general")
    assert w.wait(20) == 0, w.tail()
    kernels = w.line(r'worker kernels\b.*layers="([^"]*)"')[1]
    assert kernels and not re.search("fused", kernels), kernels
