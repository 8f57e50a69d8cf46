"""What the tests of the CUDA device share."""
from support.build import command
from support.programs import Process

PRELOAD = "tests/gpu/poison.so"
UNREACHABLE = 3  # exit status of a worker whose server is not there


def worker(programs, server, device, *options, env=None):
    """A cnn-worker on a device of the test's choice."""
    return programs.add(Process("cnn-worker", command(
        "cnn-worker", "--server", server.endpoint, "--data", programs.data, "--device", device,
        "--threads", 1, *options), env))


def probe(programs, device, *options, env=None):
    """A cnn-worker for no server at all: UNREACHABLE if it came as far as looking for one."""
    return programs.add(Process("cnn-worker", command(
        "cnn-worker", "--server", "tcp://127.0.0.1:1", "--connect-timeout-ms", 1, "--data", programs.data,
        "--device", device, *options), env))
