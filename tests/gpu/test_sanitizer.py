"""compute-sanitizer finds no error in any kernel: no invalid access, race, uninitialized value or
missing barrier."""
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.build import command

USUAL = Path("/usr/local/cuda/bin/compute-sanitizer")
# number of runs of test_walk: one for each of its models, and one for the kernels without a model
MODELS = 16
AT_ONCE = 5


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_every_kernel_is_clean(gpu, tool):
    if gpu == "cpu":
        pytest.skip("CNN_TEST_DEVICE is not cuda")
    sanitizer = shutil.which("compute-sanitizer") or (str(USUAL) if USUAL.exists() else None)
    if not sanitizer:
        pytest.skip("no compute-sanitizer")

    def walk(model):
        return subprocess.run(
            [sanitizer, "--tool", tool, "--target-processes", "all", "--error-exitcode", "77",
             *command("tests/gpu/test_walk", model)],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        walks = list(pool.map(walk, range(MODELS)))
    for done in walks:
        assert done.returncode == 0, done.stdout[-3000:]
        assert "0 errors" in done.stdout or "0 hazards" in done.stdout, done.stdout[-3000:]
    past = subprocess.run(command("tests/gpu/test_walk", MODELS), timeout=30)
    assert past.returncode == 3, "test_walk has more models than that"
