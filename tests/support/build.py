"""Selects the build under test and the length of the tests, and makes the command lines of the
build's programs.

FLAVOUR selects the build: release, asan, ubsan or tsan. With CNN_SLOW=1 the fault tests take their
long form. KX_MUTANT selects programs with a bug (tests/mutants).
"""
import importlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAVOUR = os.environ.get("FLAVOUR", "release")
BUILD = ROOT / "build" / FLAVOUR
FULL = bool(os.environ.get("CNN_SLOW"))
MUTANT = os.environ.get("KX_MUTANT", "none")
# the factor by which tests multiply their deadlines in this flavour
PATIENCE = {"release": 1, "ubsan": 2, "asan": 4, "tsan": 10}[FLAVOUR]


def without(program, package):
    """End a test, or the import of its file, because a program or module is not installed. This
    function skips the test or, if KX_REQUIRE_TOOLS=1, which .ci/run sets, fails it."""
    import pytest  # imported here, because benchmarks use this module without pytest
    why = f"no {program}: {package} installs it"
    if os.environ.get("KX_REQUIRE_TOOLS"):
        pytest.fail(f"KX_REQUIRE_TOOLS is set, but: {why}")
    pytest.skip(why, allow_module_level=True)


def needs(module, package):
    """Import the module that a test needs. If the module is not installed, call without(), which
    ends the test."""
    try:
        return importlib.import_module(module)
    except ImportError:
        without(module, package)


os.environ.setdefault("TSAN_OPTIONS", f"suppressions={ROOT}/tests/tsan.supp")


def _tsan_prefix():
    """Returns the command that must precede a program built with ThreadSanitizer. The returned
    command turns off address randomization, because the ThreadSanitizer of gcc 12 cannot start if
    the kernel randomizes more than 28 bits of addresses."""
    setarch = shutil.which("setarch")
    if FLAVOUR != "tsan" or not setarch:
        return []
    prefix = [setarch, platform.machine(), "-R"]
    return prefix if subprocess.run(prefix + ["true"], capture_output=True).returncode == 0 else []


PREFIX = _tsan_prefix()


def command(binary, *arguments):
    """Returns the command line of a program of this build. `binary` is a path relative to the
    build's directory."""
    path = BUILD / binary
    mutant = BUILD / "rule-mutants" / MUTANT / binary
    if mutant.exists():
        path = mutant
    # under pytest this exit fails the test; in a script of tests/bench it prints the message
    if not path.exists():
        sys.exit(f"{path} is not built: make FLAVOUR={FLAVOUR} tests")
    return [*PREFIX, str(path), *(str(a) for a in arguments)]
