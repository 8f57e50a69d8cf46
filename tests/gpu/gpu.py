"""Functions that the tests of the CUDA device share."""
from support.build import command
from support.programs import Process

PRELOAD = "tests/gpu/poison.so"
UNREACHABLE = 3  # exit status of a worker that cannot reach its server


def worker(programs, server, device, *options, env=None):
    """Start a cnn-worker on the given device."""
    return programs.add(Process("cnn-worker", command(
        "cnn-worker", "--server", server.endpoint, "--data", programs.data, "--device", device,
        "--threads", 1, *options), env))


def probe(programs, device, *options, env=None):
    """Run a cnn-worker without a server, to probe the device. If the device works, the worker tries
    to reach a server and exits with UNREACHABLE."""
    return programs.add(Process("cnn-worker", command(
        "cnn-worker", "--server", "tcp://127.0.0.1:1", "--connect-timeout-ms", 1, "--data",
        programs.data, "--device", device, *options), env))
