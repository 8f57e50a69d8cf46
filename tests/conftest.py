"""Makes pytest run the C tests, with one pytest item for each cmocka test. Also defines fixtures
that tests of several folders use.

`make test` sets CNN_DATA and FLAVOUR. A C test program runs once, in a process of its own, with a
deadline. Each TAP line that the program prints is the outcome of one pytest item. The additional
item `ends_well` checks the exit status of the program.
"""
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from support import idx
from support.build import PATIENCE, ROOT, command
from support.programs import Programs

# Folders whose C files are test programs, and the time limit of one program in seconds. A program
# of tests/gpu takes longer, because it compares the GPU with cpu-ref on large networks.
PROGRAM_SECONDS = {"unit": 60 * PATIENCE, "gpu": 420 * PATIENCE}


class Outcome:
    """The outcome of one run of a test program."""

    def __init__(self, binary, seconds):
        self.tests = {}
        env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP")
        try:
            done = subprocess.run(command(binary), cwd=ROOT, env=env, text=True,
                                  errors="replace", timeout=seconds,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.code, self.text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            text = late.stdout or b""  # after a timeout, stdout is bytes, in spite of text=True
            self.code = f"none after {seconds} s"
            self.text = text if isinstance(text, str) else text.decode(errors="replace")
        for ok, skip, name in re.findall(
                r"^(ok|not ok) \d+ (?:- |(# SKIP ))(\S+)$", self.text, re.M):
            self.tests[name] = "skip" if skip else ok

    def tail(self):
        return "\n".join(self.text.splitlines()[-60:])


class UnitFile(pytest.File):
    """A C test program: tests/unit/test_x.c runs as build/<flavour>/tests/unit/test_x. Likewise for
    tests/gpu."""

    def collect(self):
        self.ran = None
        names = re.findall(r"^(?:TEST|TEST_IN)\((\w+)|\bcmocka_unit_test\w*\(\s*(\w+)",
                           self.path.read_text(), re.M)
        names = [one or other for one, other in names]
        for name in [*dict.fromkeys(names), "ends_well"]:
            test = UnitTest.from_parent(self, name=name)
            # one group, so that only one process runs the program
            test.add_marker(pytest.mark.xdist_group(self.path.stem))
            yield test

    def outcome(self):
        if self.ran is None:
            folder = self.path.parent.name
            self.ran = Outcome(f"tests/{folder}/{self.path.stem}", PROGRAM_SECONDS[folder])
        return self.ran


class UnitTest(pytest.Item):
    def runtest(self):
        outcome = self.parent.outcome()
        if self.name == "ends_well":
            good = outcome.code == 0
        else:
            if outcome.tests.get(self.name) == "skip":
                pytest.skip("the program says so")
            good = outcome.tests.get(self.name) == "ok"
        if not good:
            raise UnitFailure(f"exit status {outcome.code}\n{outcome.tail()}")

    def repr_failure(self, excinfo, style=None):
        if excinfo.errisinstance(UnitFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self.path, None, f"{self.path.stem}.{self.name}"


class UnitFailure(Exception):
    pass


def pytest_configure(config):
    config.addinivalue_line("markers",
                            "alone: what it measures is time that other tests would take")
    # on SIGTERM pytest cleans up before it exits, as on Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collect_file(file_path, parent):
    if file_path.parent.name in PROGRAM_SECONDS and file_path.match("test_*.c"):
        return UnitFile.from_parent(parent, path=file_path)
    return None


# The files whose tests or groups of tests take longest: those of containers, Slurm and Ray, the
# simulator's, and C programs that compute gradients.
LONG = ("test_compose.py", "test_slurm.py", "test_python_ray.py", "test_sim.py",
        "test_kernels_cpu.c", "test_kernels.c")


def pytest_collection_modifyitems(items):
    """Start the longest files first, in the order of LONG, so that no processor is idle while the
    last of them ends."""
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONG)))


@pytest.fixture(scope="session")
def data():
    """The directory of the four IDX files."""
    for d in (os.environ.get("CNN_DATA"), "data/mnist", "/usr/share/datasets/fashion-mnist"):
        if d and any(Path(d).glob("train-images-*")):
            return Path(d).resolve()  # absolute, because tests run programs in other directories
    pytest.fail("no training images: deploy/data.sh finds or fetches some")


@pytest.fixture(scope="session")
def small(data, tmp_path_factory):
    """A tenth of the data as plain files: 6,000 images to train on, 1,000 to test with."""
    directory = tmp_path_factory.mktemp("small")
    idx.cut(data, directory, 6000, 1000)
    return directory


@pytest.fixture
def programs(tmp_path, data):
    """Starts programs in a temporary directory. Kills the programs that still run at the end of the
    test."""
    programs = Programs(tmp_path, data)
    yield programs
    programs.close()
