"""Fixtures of the GPU tests. If no GPU works, the fixture `gpu` skips each test that uses it or,
with KX_REQUIRE_GPU=1, fails the test."""
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gpu import UNREACHABLE, probe  # noqa: E402
from support.programs import Programs  # noqa: E402


def pytest_collection_modifyitems(items):
    """Start the tests of test_sanitizer and test_odd_models first, because they take longest."""
    items.sort(key=lambda item: item.path.stem not in ("test_sanitizer", "test_odd_models"))


@pytest.fixture(scope="session")
def gpu(tmp_path_factory, data):
    """Returns the name of the device under test. With CNN_TEST_DEVICE=cpu the tests run on the CPU,
    so that one can try them without a GPU."""
    device = os.environ.get("CNN_TEST_DEVICE", "cuda")
    programs = Programs(tmp_path_factory.mktemp("probe"), data)
    try:
        w = probe(programs, device)
        answers = w.wait(60) == UNREACHABLE
        why = w.lines[-1] if w.lines else "it says nothing"
    finally:
        programs.close()
    if not answers and os.environ.get("KX_REQUIRE_GPU"):
        pytest.fail(f"KX_REQUIRE_GPU is set, but: {why}")
    if not answers:
        pytest.skip(f"no GPU: {why}")
    return device
