"""Which build is tested, how much, and how its programs are started.

FLAVOUR chooses: release, asan, ubsan, tsan. CNN_SLOW=1 asks for the long forms of the fault tests.
"""
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
# how much longer things may take under a sanitizer
PATIENCE = {"release": 1, "ubsan": 2, "asan": 4, "tsan": 10}[FLAVOUR]

os.environ.setdefault("TSAN_OPTIONS", f"suppressions={ROOT}/tests/tsan.supp")


def _tsan_prefix():
    """ThreadSanitizer of gcc 12 cannot start where the kernel randomises more than 28 bits."""
    setarch = shutil.which("setarch")
    if FLAVOUR != "tsan" or not setarch:
        return []
    prefix = [setarch, platform.machine(), "-R"]
    return prefix if subprocess.run(prefix + ["true"], capture_output=True).returncode == 0 else []


PREFIX = _tsan_prefix()


def command(binary, *arguments):
    """The command line of a program of this build, named relative to its directory."""
    path = BUILD / binary
    if not path.exists():  # pytest fails the test, a script of tests/bench says it and ends
        sys.exit(f"{path} is not built: make FLAVOUR={FLAVOUR} tests")
    return [*PREFIX, str(path), *(str(a) for a in arguments)]
