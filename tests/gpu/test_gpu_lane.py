"""Runs whose gradients and weights go from GPU to GPU (docs/lane.md, "GPU to GPU"): a server with
--store cuda:0, and workers whose GPUs are on the same host. The server's store and the workers may
use the same GPU."""
import pytest

from gpu import worker
from support.programs import until

SOON = ("--heartbeat-ms", 100, "--suspect-ms", 500, "--dead-ms", 1000)
MODEL = ("--model", "seed:256", "--schedule", "cosine", "--prefetch", "--checkpoint-ms", 50)


def start(gpu, programs, epochs, workers, *options):
    if gpu == "cpu":
        pytest.skip("CNN_TEST_DEVICE is not cuda")
    options = (*MODEL, "--epochs", epochs, "--store", "cuda:0", *options)
    server = programs.server(*options)
    return options, server, [worker(programs, server, gpu) for _ in range(workers)]


def finish(server, fleet, epochs):
    result = server.result(120)
    for w in fleet:
        assert w.wait(20) == 0, w.tail()
        assert not [line for line in w.lines if "checksum" in line], w.tail()
    assert result["images_per_epoch"] == [60000] * epochs and result["duplicates"] == 0, result
    return result


@pytest.mark.parametrize("workers", [1, 2])
def test_gradients_go_from_gpu_to_gpu(gpu, programs, workers):
    _, server, fleet = start(gpu, programs, 8, workers)
    for w in fleet:
        w.line("lane gpu.* server=")
    result = finish(server, fleet, 8)
    assert result["accuracy"] > 0.95, result
    assert server.line("lane gpu.* worker=1")


@pytest.mark.parametrize("sandbox", ["off", "require"])
def test_the_sandbox_permits_memory_of_other_processes(gpu, programs, sandbox):
    _, server, fleet = start(gpu, programs, 4, 1, "--sandbox", sandbox)
    fleet[0].line("lane gpu.* server=")
    finish(server, fleet, 4)


def test_kills_lose_and_repeat_nothing(gpu, programs):
    """Two workers and the server are killed with -9, one after the other."""
    options, server, fleet = start(gpu, programs, 40, 2, *SOON)
    server.line("train epoch.* epoch=2 ")
    for epoch in (6, 10):
        fleet.pop(0).kill()
        fleet.append(worker(programs, server, gpu))
        fleet[-1].line("lane gpu.* server=", 30)
        server.line(f"train epoch.* epoch={epoch} ")
    server.kill()
    server = programs.restart(server, *options)
    for w in fleet:
        until(lambda: sum("lane gpu" in line for line in w.lines) >= 2, 30, "the lane is back")
    lanes = server.status()["lanes"]
    assert lanes["torn"] == 0, lanes
    finish(server, fleet, 40)


def test_a_run_that_needs_the_host_stays_on_the_lane_of_the_host(gpu, programs):
    _, server, fleet = start(gpu, programs, 2, 1, "--durability", "always")
    fleet[0].line("lane no_gpu.*memory of the host")
    finish(server, fleet, 2)
