"""Each mutant lacks one rule or check. A unit test must fail for each mutant."""
import subprocess

import pytest

from support.build import ROOT, command

BUGS = sorted(patch.stem for patch in (ROOT / "tests/unit/mutants").glob("*.patch"))


@pytest.mark.parametrize("bug", BUGS)
def test_mutant_is_found(bug):
    """build/FLAVOUR/unit-mutants/BUG is the test with the bug of tests/unit/mutants/BUG.patch."""
    run = subprocess.run(command(f"unit-mutants/{bug}"), cwd=ROOT, text=True, timeout=60,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert run.returncode != 0, run.stdout[-4000:]
    assert "FAILED" in run.stdout, run.stdout[-4000:]
