"""Fixtures of the fault tests: they report figures, give the seed, choose the short or the long
form of a test, and start runs with the ledger gradient (docs/glossary.md).

With the fixture `figure`, a test reports what it has measured. The call

    figure("P14", grown_kb, "KiB", grown_kb <= 1024)

prints the line `name seed figure unit PASS|FAIL`, appends the same line to
build/faults/results.tsv, and fails the test unless the last argument is true. `make faults` runs
the long form of all tests (CNN_SLOW=1) and writes the last figures into docs/faults.md. `make test`
runs the short form of each test.
"""
import os

import pytest

from namespaces import NetPrograms, NoNetwork
from support.build import FULL, ROOT
from support.ledger import LedgerRun

RESULTS = ROOT / "build" / "faults" / "results.tsv"


def record(capture, *fields):
    """Print one line of results, and append the line to build/faults/results.tsv."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a") as file:
        file.write("\t".join(str(f) for f in fields) + "\n")
    with capture.global_and_fixture_disabled():
        print("\n" + " ".join(str(f) for f in fields), flush=True)


def short(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Figures:
    """Reports the figures of one test. `row` is the number of a fault in docs/faults.md, such as
    P14."""

    def __init__(self, request, seed):
        self.seed = seed
        self.test = request.node.name.removeprefix("test_")
        self.replay = (f"{'CNN_SLOW=1 ' if FULL else ''}CNN_FAULT_SEED={seed} "
                       f"/usr/bin/python3 -B -m pytest '{request.node.nodeid}'")
        self.capture = request.config.pluginmanager.getplugin("capturemanager")

    def __call__(self, row, value, unit, ok, what=""):
        """Report a figure. If a test reports several figures, `what` is the name of each figure."""
        name = ":".join(filter(None, (row, self.test, what.replace(" ", "_"))))
        record(self.capture, name, self.seed, short(value), unit, "PASS" if ok else "FAIL")
        assert ok, f"{name} is {short(value)} {unit}; again: {self.replay}"

    def cannot(self, row, why):
        """Print that this machine cannot run the test, with the reason `why`, and skip the test."""
        record(self.capture, f"{row}:{self.test}", self.seed, why, "-", "SKIP")
        pytest.skip(why)


@pytest.fixture(scope="session")
def seed():
    return int(os.environ.get("CNN_FAULT_SEED", 1))


@pytest.fixture
def figure(request, seed):
    return Figures(request, seed)


@pytest.fixture(scope="session")
def full():
    """Returns True if the long form of the tests runs. Example: `n = 1000 if full else 10`."""
    return FULL


@pytest.fixture
def ledger(programs):
    """Returns a function that starts a LedgerRun: ledger(workers, pushes, *server options)."""
    return lambda *arguments, **named: LedgerRun(programs, *arguments, **named)


@pytest.fixture
def nets(tmp_path, data, seed, figure):
    """Yields a function that makes a network: nets("N1", 4) has 4 hosts and is for fault N1. The
    function skips the test if this machine does not allow network namespaces."""
    made = []

    def make(row, hosts):
        try:
            made.append(NetPrograms(tmp_path, data, seed, hosts))
        except NoNetwork as no:
            figure.cannot(row, f"no network of its own: {no}")
        return made[-1]
    yield make
    for net in made:
        net.close()
