"""Test workers that share a GPU through the Multi-Process Service (MPS) of NVIDIA. With MPS, kernels
of several processes run on a GPU at the same time, and a process may get only a part of the
multiprocessors. The persistent kernel of seed networks in bf16 needs nearly all of them: 128 blocks
for seed:256, each on a multiprocessor of its own. If it cannot get them, it must give up, or the
worker must use other kernels.

The tests start an MPS daemon of their own. It serves only processes whose environment has its
directory, so programs outside the tests are not affected."""
import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from gpu import worker
from support.programs import until

CONTROL = shutil.which("nvidia-cuda-mps-control")


class Mps:
    """An MPS daemon, and the servers that it starts."""

    def __init__(self):
        # in /tmp, because the path of a Unix socket must be short
        self.directory = tempfile.TemporaryDirectory(prefix="mps-", dir="/tmp")
        self.pipes, self.logs = (Path(self.directory.name, name) for name in ("pipes", "logs"))
        self.pipes.mkdir()
        self.logs.mkdir()
        self.env = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
                    "CUDA_MPS_LOG_DIRECTORY": str(self.logs)}
        with open(self.logs / "daemon.log", "wb") as log:
            self.daemon = subprocess.Popen([CONTROL, "-f"], env={**os.environ, **self.env},
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self):
        """Wait until the daemon listens."""
        until(lambda: (self.pipes / "control").exists() or not self.runs(), 20, "MPS listens")
        assert self.runs(), f"the MPS daemon has ended: {self.log()}"

    def runs(self):
        return self.daemon.poll() is None

    def request(self, text):
        """Send a request to the daemon. Returns its answer."""
        return subprocess.run([CONTROL], input=text + "\n", env={**os.environ, **self.env},
                              capture_output=True, text=True, timeout=60, check=False).stdout

    def log(self):
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.logs.iterdir()))

    def close(self):
        """Stop the daemon and its servers."""
        servers = re.findall(r"\d+", self.request("get_server_list")) if self.runs() else []
        try:
            self.request("quit -t 10")
            self.daemon.wait(20)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait(10)
            for pid in map(int, servers):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.directory.cleanup()


@pytest.fixture
def mps(gpu):
    if gpu == "cpu":
        pytest.skip("CNN_TEST_DEVICE is not cuda")
    if not CONTROL:
        pytest.skip("no nvidia-cuda-mps-control, which belongs to the NVIDIA driver")
    daemon = Mps()
    try:
        daemon.wait()
        yield daemon
    finally:
        daemon.close()


def train(programs, mps, workers, *options, share=None):
    """Train with bf16 workers that share a GPU through MPS. Each image must count once. Returns the
    workers."""
    server = programs.server("--model", "seed:256", "--epochs", 1, "--min-workers", workers,
                             *options)
    env = mps.env | ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share)} if share else {})
    fleet = [worker(programs, server, "cuda:0", "--precision", "bf16", env=env)
             for _ in range(workers)]
    result = server.result()
    for w in fleet:
        assert w.wait(10) == 0, f"{w.tail()}\n{mps.log()}"
        assert re.search(rf"\b{w.popen.pid}\b", mps.log()), f"not through MPS: {mps.log()}"
    assert result["images_per_epoch"] == [60000] and result["duplicates"] == 0, result
    # two workers in the first epoch of an asynchronous run: 0.86 has been measured
    assert result["accuracy"] > 0.75, result
    return fleet


def gave_up(w):
    """Returns 1 if the worker has continued with the general kernels, which it says once."""
    reasons = [re.search(r'reason="([^"]*)"', line)[1] for line in w.lines
               if "cuda general_kernels" in line]
    assert reasons in ([], ["a block of a kernel waited too long for another one"]), w.tail()
    return len(reasons)


def test_one_worker_has_the_whole_gpu(programs, mps):
    [w] = train(programs, mps, 1)
    assert "fused:persistent" in w.line(r'worker kernels\b.*layers="([^"]*)"')[1]
    assert not gave_up(w), "no other process has used the multiprocessors"


@pytest.mark.parametrize("share", [50, 10])
def test_a_worker_with_a_part_of_the_gpu_uses_other_kernels_or_gives_up(programs, mps, share):
    [w] = train(programs, mps, 1, share=share)
    persistent = "fused:persistent" in w.line(r'worker kernels\b.*layers="([^"]*)"')[1]
    assert not persistent or gave_up(w), w.tail()


@pytest.mark.parametrize("steps", [1, 16])
def test_two_workers_share_the_multiprocessors(programs, mps, steps):
    """The blocks of both persistent kernels do not fit on the GPU at the same time. A kernel whose
    blocks wait too long gives up, and the worker says so."""
    for w in train(programs, mps, 2, "--n-push", steps, "--n-fetch", steps):
        gave_up(w)
