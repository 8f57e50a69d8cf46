"""Test the code paths for other GPUs that this GPU can run, too: the general kernels instead of the
fused kernels, the code that the driver compiles from the PTX of compute_80 (without clusters and
dependent launches), and tiles for 99 KB of shared memory per block."""
import os
import subprocess

import pytest

from support.build import command

CASES = {
    "general": {"CNN_TEST_KERNELS": "general"},
    "ptx": {"CUDA_FORCE_PTX_JIT": "1"},
    "shared_99k": {"CNN_TEST_KERNELS": "general", "CNN_TEST_SHARED": "101376"},
}

# {name: [program, names of the tests in it; none: all]}; `tiles` is for the GPUs with 99 KB of
# shared memory, with which it runs other kernels
PROGRAMS = {
    "odd_models": ["odd_models", "seventeen_images*"],
    "tiles": ["odd_models", "convolutions_in_tiles*"],
    "contract": ["contract"],
    "walk": ["walk"],
}


@pytest.mark.parametrize("tests", PROGRAMS)
@pytest.mark.parametrize("case", CASES)
def test_results_are_right_there_too(gpu, case, tests):
    if gpu == "cpu":
        pytest.skip("CNN_TEST_DEVICE is not cuda")
    program, *names = PROGRAMS[tests]
    done = subprocess.run(command(f"tests/gpu/test_{program}", *names),
                          env={**os.environ, **CASES[case]},
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "SKIPPED" not in done.stdout, done.stdout[-3000:]
