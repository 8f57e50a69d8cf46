"""What pytest runs: the C units, one item per cmocka test, beside the Python tests.

FLAVOUR (release, asan, ubsan, tsan) says which build is tested. `make test` sets CNN_DATA. A unit
binary runs once, in its own process, with a deadline; its TAP lines are the items' outcomes, and
one item more demands that the process as a whole ended well.
"""
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLAVOUR = os.environ.get("FLAVOUR", "release")
BUILD = ROOT / "build" / FLAVOUR
UNIT_SECONDS = 120 if FLAVOUR == "release" else 400

os.environ.setdefault("ASAN_OPTIONS", "abort_on_error=0:detect_leaks=1")
os.environ.setdefault("TSAN_OPTIONS", "halt_on_error=1")


def without_aslr(command):
    """ThreadSanitizer of gcc 12 cannot start where the kernel randomises more than 28 bits."""
    setarch = shutil.which("setarch")
    if FLAVOUR != "tsan" or not setarch:
        return command
    wrapped = [setarch, platform.machine(), "-R"]
    usable = subprocess.run(wrapped + ["true"], capture_output=True).returncode == 0
    return wrapped + command if usable else command


class Outcome:
    """One run of a unit binary."""

    def __init__(self, binary):
        self.tests = {}
        env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP")
        try:
            done = subprocess.run(without_aslr([str(binary)]), cwd=ROOT, env=env, text=True,
                                  errors="replace", timeout=UNIT_SECONDS,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.code, self.text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            text = late.stdout or b""
            self.code, self.text = f"none after {UNIT_SECONDS} s", text.decode(errors="replace")
        for ok, name, skip in re.findall(
                r"^(ok|not ok) \d+(?: -)? (\S+)(.*# SKIP.*)?$", self.text, re.M):
            self.tests[name] = "skip" if skip else ok

    def tail(self):
        return "\n".join(self.text.splitlines()[-60:])


class UnitFile(pytest.File):
    """tests/unit/test_x.c, run as build/<flavour>/tests/unit/test_x."""

    def collect(self):
        self.ran = None
        names = re.findall(r"cmocka_unit_test(?:_\w+)?\(\s*(\w+)", self.path.read_text())
        for name in dict.fromkeys(names):
            yield UnitTest.from_parent(self, name=name)
        yield UnitTest.from_parent(self, name="ends_well")

    def outcome(self):
        if self.ran is None:
            binary = BUILD / "tests" / "unit" / self.path.stem
            assert binary.exists(), f"{binary} is not built: make FLAVOUR={FLAVOUR} tests"
            self.ran = Outcome(binary)
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


def pytest_collect_file(file_path, parent):
    if file_path.parent.name == "unit" and file_path.suffix == ".c":
        return UnitFile.from_parent(parent, path=file_path)
    return None
