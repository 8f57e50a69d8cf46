"""Fixtures of the wire tests: a real server, and a correct client. The misbehaving peers of the
tests must not disturb this client."""
import numpy as np
import pytest

from client import Worker, pb
from support.build import PATIENCE, command
from support.programs import Process

SIZE = 64
# With these options, every push subtracts its gradient from the weights, whatever its staleness.
PLAIN = ("--optimizer", "sgd", "--lr", 1, "--lr-scaling", "none", "--staleness-scaling", "constant",
         "--max-staleness", 1000000,
         "--warm-start-updates", 0)
LEDGER = ("--model", f"vector:{SIZE}", *PLAIN)


class Honest(Worker):
    """A worker that pushes a ledger gradient. The gradient of push k is 1 in coordinate k, modulo
    the number of coordinates."""

    def push_next(self, wait=True):
        size = self.welcome.n_params
        unit = np.zeros(size, np.float32)
        unit[self.seq % size] = 1
        return self.push(unit, 0, wait=wait)

    def goes_on(self):
        """Make another push, and check that the weights contain every push of this worker exactly
        once."""
        ack = self.push_next()
        assert (ack.verdict, ack.duplicate) == (pb.VERDICT_OK, False)
        weights, version = self.pull()
        assert version == self.seq
        size = len(weights)
        assert weights.tolist() == [-((self.seq - k + size - 1) // size) for k in range(size)]


def started(programs, program, *options):
    return programs.add(Process(program, command(program, *options)))


def ends(programs, program, *options):
    """Run a program until it ends. Returns (exit status, Process object with the output)."""
    process = started(programs, program, *options)
    return process.wait(60 * PATIENCE), process


@pytest.fixture
def keys(programs):
    return programs.keygen("second")


@pytest.fixture
def server(programs):
    """Returns a server for the ledger gradient. The server has no checkpoint directory, so that
    every push is durable at once."""
    return programs.server(*LEDGER, "--dead-ms", 60000, directory=None)


@pytest.fixture
def honest(server):
    """Yields a correct worker. This worker pushes before the test and, on the same connections,
    after the test, and checks that each of its pushes was applied once."""
    worker = Honest(server.endpoint, name="honest")
    worker.goes_on()
    yield worker
    worker.goes_on()
    assert server.running()
    worker.close()
