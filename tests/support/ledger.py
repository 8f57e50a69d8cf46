"""Test runs with the ledger gradient (docs/glossary.md): the final weights show for every push
whether it was applied."""
import signal

from support import safetensors
from support.programs import SIGTERM, until

LEDGER = ("--optimizer", "sgd", "--lr", 1, "--lr-scaling", "none", "--staleness-scaling",
          "constant", "--max-staleness", 1000000,
          "--warm-start-updates", 0, "--checkpoint-ms", 50)


class LedgerRun:
    """Workers that push the ledger gradient to a server, while a test kills workers or the server.

    `pace`: a tuple with one number, the milliseconds between two pushes of a worker; empty: no
    pauses. The workers keep this pace to the end, unless count() ends the pauses. `size`: the
    number of weights. A test sets it to more than the number of pushes to make messages larger.
    """

    def __init__(self, programs, workers, pushes, *options, pace=(), size=0, **how):
        self.programs = programs
        self.pushes = pushes
        self.pace = pace
        self.size = size or workers * pushes
        self.options = ("--model", f"vector:{self.size}", *LEDGER, *options)
        self.server = programs.server(*self.options, **how)
        self.fleet = [None] * workers
        for i in range(workers):
            self.start_worker(i)

    def pushed(self):
        """Returns the total number of pushes of all workers, from the last line that each worker
        has printed."""
        words = [w.out[-1].split() for w in self.fleet if w.out]
        return sum(int(word[1]) for word in words if word[0] in ("resumed", "pushed"))

    def reached(self, kill):
        """Wait until kill number `kill` (0, 1, ...) is due. The kills are spread over the run, and
        all of them come well before its end."""
        self.server.endpoint
        until(lambda: self.pushed() >= (kill + 1) * self.pushes // 4, 60, "enough is pushed")

    def start_worker(self, index, **how):
        self.fleet[index] = self.programs.ledger_worker(
            self.server.endpoint, index, self.pushes, *self.pace, **how)

    def restart_server(self, **how):
        """Start a new server in the directory of the dead server."""
        self.server = self.programs.restart(self.server, *self.options, **how)

    def kill_server(self, **how):
        self.server.kill()
        self.restart_server(**how)

    def kill_worker(self, index):
        assert self.fleet[index].running(), self.fleet[index].tail()
        self.fleet[index].kill()
        self.start_worker(index)

    def count(self, seconds=120, hurry=True):
        """Wait until every worker ends, and drain the server. Returns (number of lost pushes,
        number of pushes that were applied twice)."""
        for worker in self.fleet if hurry else ():
            # the test causes no more faults; SIGURG lets the workers push the rest without pauses
            worker.signal(signal.SIGURG)
        for worker in self.fleet:
            assert worker.wait(seconds) == 0, worker.tail()
        self.server.line("net listening")  # before this line the server has no signal handlers
        self.server.signal(SIGTERM)
        assert self.server.wait(10) == 0, self.server.tail()
        return self.tally()

    def tally(self):
        """Returns the same pair as count(). The server must have drained and exited."""
        weights = safetensors.flat(self.programs.export(self.server.directory))
        assert len(weights) == self.size
        assert not weights[self.pushes * len(self.fleet):].any(), "a coordinate that nobody pushes"
        weights = weights[:self.pushes * len(self.fleet)]
        lost, twice = int((weights == 0).sum()), int((weights < -1).sum())
        assert lost + twice == int((weights != -1).sum()), "a coordinate that is no count at all"
        return lost, twice

    def verdict(self, seconds=120, hurry=True):
        """Do the same as count(), but fail the test unless every push was applied exactly once."""
        lost, twice = self.count(seconds, hurry)
        assert (lost, twice) == (0, 0), f"{lost} lost, {twice} applied twice"
