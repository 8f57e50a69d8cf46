"""Runs each block of the documents that has the mark `gpu` (tests/e2e/documents.py), as a reader
types it, in a checkout with a build. This build may be the programs of an unpacked bundle.

What a test does differs from what a reader does in these points only:

- A free port replaces the port 5555. If a block starts only a server, the test starts a worker on
  the GPU.
- The tests use their own Python, and a checkout without the results of earlier measurements.
- The bundle is the one that `make bundle` has made. The demo of the bundle uses the data set of the
  tests.
- SHORTER changes commands that would take minutes, so that they do less work. The command
  `tests/gpu/run` runs only the tests whose names are in SELECTED or OF_EACH_PART.
"""
import importlib.util
import os
import re
import shutil
import socket
import sys

import pytest

from support.build import ROOT

if not (ROOT / "docs").exists():
    pytest.skip("a bundle has no documents", allow_module_level=True)

sys.path.append(str(ROOT / "tests/e2e"))
from documents import DOCUMENTS, blocks  # noqa: E402
from machines import run_script  # noqa: E402
from test_documents import copy, environment  # noqa: E402

SECONDS = 90
SELECTED = "test_gradients_go_from_gpu_to_gpu"
# tests that take only seconds, one for each part of gpu.md
OF_EACH_PART = f"test_share or {SELECTED} or test_auto_takes_a_gpu_that_works"
SHORTER = (
    (r"(?<=tests/bench/gpu_vs_torch)", " --rounds 1 --epochs 1 --modes eager --precisions fp32 "
     "--layouts contiguous --no-memory seed:32,1000"),
    (r"(?m)^tests/bench/science", rf"{sys.executable} \g<0> --seeds 1"),
    (r"(?<=--workers )1,4,16 --modes downpour,ssp,sync,easgd", "1,4 --modes downpour,sync"),
    (r"\bNET BATCH PRECISION\b", "seed:32 100 fp32"),
    (r'(?m)(?<= -k )"?([^"\n]+)"?$', rf'"(\1) and ({OF_EACH_PART})"'),
)


def marked():
    for path in DOCUMENTS:
        for block in blocks(path):
            if block.mark == "gpu":
                yield pytest.param(block, id=block.name)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("block", list(marked()))
def test_a_documented_command_runs_on_a_gpu(gpu, block, programs, tmp_path):
    if gpu == "cpu":
        pytest.skip("CNN_TEST_DEVICE is not cuda")
    text = block.text()
    if "ncu " in text and not shutil.which("ncu"):
        pytest.skip("no ncu, which is part of NVIDIA's Nsight Compute")
    if " -n " in text and not importlib.util.find_spec("xdist"):
        pytest.skip("no pytest-xdist")
    place = copy(tmp_path / "cnn-ps")
    for results in place.glob("docs/modes/wall/*.csv"):
        # remove the results, because science skips each run whose result is in the file
        results.unlink()
    (place / "build").mkdir()
    (place / "build/release").symlink_to(ROOT / "build/release")
    if "tar xzf" in text:
        found = list(ROOT.glob("build/bundle/cnn-ps-*.tar.gz"))
        if not found:
            pytest.skip("no bundle: make bundle")
        place = tmp_path / "host"
        place.mkdir()
        shutil.copy(found[0], place)
        text = text.replace("/where/the/four/MNIST/files/are", str(programs.data))
    for pattern, less in SHORTER:
        text = re.sub(pattern, less, text)
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    env = environment(place, CNN_DATA=str(programs.data), CNN_BIND=endpoint, CNN_SERVER=endpoint,
                      PYTHON=sys.executable, PYTEST_ADDOPTS=f"-k {SELECTED}",
                      PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    if "/cnn-ps" in text and "cnn-worker" not in text:
        env["CNN_EPOCHS"] = "2"
        text = f"build/release/cnn-worker --device {gpu} &\n{text}wait $!\n"
    output = run_script(text, place, env, SECONDS)
    if "--store" in text:
        assert re.search("store open.* device=cuda:0", output), output
    if "tests/gpu/run" in text:
        passed = re.findall(r"^\d+ passed.*", output, re.M)
        assert len(passed) == text.count("tests/gpu/run"), output
    if "tests/gpu/run" in text and "tar xzf" in text:
        # 1 skipped: in a bundle, the test of this file skips itself
        assert re.match(r"\d+ passed, 1 skipped, \d+ deselected", passed[0]), output
    if "/science" in text:
        assert (place / "docs/modes/wall/runs.csv").read_text().count("\nend,") == 4, output
    if "ncu " in text:
        assert "gpu__time_duration.sum" in output, output
