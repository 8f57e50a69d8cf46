"""Fixtures of the wire tests: a real server, and an honest client that must not suffer."""
import numpy as np
import pytest

from client import Worker, pb
from support.build import PATIENCE, command
from support.programs import Process

SIZE = 64
# every push adds -1 times itself to the weights, whatever its age
PLAIN = ("--optimizer", "sgd", "--lr", 1, "--lr-scaling", "none", "--staleness-scaling", "constant",
         "--max-staleness", 1000000,
         "--warm-start-updates", 0)
LEDGER = ("--model", f"vector:{SIZE}", *PLAIN)


class Honest(Worker):
    """A worker that pushes a ledger gradient: push k sets coordinate k of all to 1, round and round."""

    def push_next(self, wait=True):
        size = self.welcome.n_params
        unit = np.zeros(size, np.float32)
        unit[self.seq % size] = 1
        return self.push(unit, 0, wait=wait)

    def goes_on(self):
        """Push once more, and find every push of this worker in the weights exactly once."""
        ack = self.push_next()
        assert (ack.verdict, ack.duplicate) == (pb.VERDICT_OK, False)
        weights, version = self.pull()
        assert version == self.seq
        size = len(weights)
        assert weights.tolist() == [-((self.seq - k + size - 1) // size) for k in range(size)]


def started(programs, program, *options):
    return programs.add(Process(program, command(program, *options)))


def ends(programs, program, *options):
    """The exit status of a program, and what it said."""
    process = started(programs, program, *options)
    return process.wait(60 * PATIENCE), process


@pytest.fixture
def keys(programs):
    return programs.keygen("second")


@pytest.fixture
def server(programs):
    """A ledger server without a checkpoint directory: all is durable at once."""
    return programs.server(*LEDGER, directory=None)


@pytest.fixture
def honest(server):
    """Works before and after each test, on the same connections."""
    worker = Honest(server.endpoint, name="honest")
    worker.goes_on()
    yield worker
    worker.goes_on()
    assert server.running()
    worker.close()
