"""Run every fuzz target on every input of its corpus. So no bug that fuzzing has found can return
unnoticed."""
import subprocess

import pytest

from support.build import PATIENCE, ROOT, command

TARGETS = sorted(p.stem for p in (ROOT / "tests/fuzz").glob("*.c") if p.stem != "replay")


@pytest.mark.parametrize("target", TARGETS)
def test_corpus(target):
    corpus = ROOT / "tests/fuzz/corpus" / target
    done = subprocess.run(command(f"tests/fuzz/{target}", corpus), text=True, errors="replace",
                          capture_output=True, timeout=60 * PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-2]) == len(list(corpus.iterdir())) > 0
