"""Each mutant removes one rule or check from the code. The first line of its patch names a test.
With the mutant, this test must fail, or end in a failed assertion of the code (common/assert.h) or
of libzmq."""
import os
import re
import subprocess
import sys
from signal import SIGABRT

import pytest

from support.build import BUILD, ROOT, command

BUGS = sorted(patch.stem for patch in (ROOT / "tests/mutants").glob("*.patch"))


def finder(bug):
    """Returns (file, name) of the test that must fail."""
    with open(ROOT / f"tests/mutants/{bug}.patch") as patch:
        return re.fullmatch(r"# found by (tests/\S+): (\w+)\n", patch.readline()).groups()


def unit_test(bug, file, name):
    """Run the test in a C program that is linked with the bug. Returns the output of the test, and
    a true value if the test failed or an assertion failed."""
    program = command(f"rule-mutants/{bug}/{os.path.basename(file)[:-2]}")
    run = subprocess.run([*program, name], cwd=ROOT, text=True, timeout=60, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
    failed = re.search(rf"^\[  FAILED  \] {name}$", run.stdout, re.M)
    tests = re.findall(r"^\[ RUN      \] (\w+)$", run.stdout, re.M)
    aborted = (run.returncode == -SIGABRT and tests and tests[-1] == name and
               re.search(r"^(\S+:\d+: assertion|Assertion) failed: ", run.stdout, re.M))
    return run.stdout, failed or aborted


def program_test(bug, file, name):
    """Run a Python test with programs that were built with the bug `bug`. Returns the output of the
    test, and a true value if the test failed."""
    assert (BUILD / f"rule-mutants/{bug}/made").exists(), "not built: make mutants"
    run = subprocess.run([sys.executable, "-B", "-m", "pytest", "-qx", "-p", "no:cacheprovider",
                          f"{file}::{name}"], cwd=ROOT, text=True, timeout=120,
                         env=dict(os.environ, KX_MUTANT=bug), stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
    return run.stdout, re.search(rf"^FAILED {file}::{name}\b", run.stdout, re.M)


@pytest.mark.parametrize("bug", BUGS)
def test_mutant_is_found(bug):
    file, name = finder(bug)
    run = unit_test if file.startswith("tests/unit") else program_test
    output, failed = run(bug, file, name)
    assert failed, output[-4000:]
