"""What the tests of the CUDA device share."""
from flavour import command
from lab import Process

PRELOAD = "tests/gpu/poison.so"
UNREACHABLE = 3  # exit status of a worker whose server is not there


def worker(lab, server, device, *options, env=None):
    """A cnn-worker on a device of the test's choice."""
    return lab.add(Process("cnn-worker", command(
        "cnn-worker", "--server", server.endpoint, "--data", lab.data, "--device", device,
        "--threads", 1, *options), env))


def probe(lab, device, *options, env=None):
    """A cnn-worker for no server at all: UNREACHABLE if it came as far as looking for one."""
    return lab.add(Process("cnn-worker", command(
        "cnn-worker", "--server", "tcp://127.0.0.1:1", "--connect-timeout-ms", 1, "--data", lab.data,
        "--device", device, *options), env))
