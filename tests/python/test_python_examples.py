"""The examples of the Python package learn as well as plain PyTorch does.

The tests use parts of the data and few epochs. docs/python.md has the figures of whole runs."""
import json
import os
import subprocess
import sys

import pytest
from support.build import ROOT, needs

needs("torch", "deploy/setup.sh")

from cnnps.examples import resnet

SHORT = {"fashion": ["--samples", "4000", "--tests", "500", "--epochs", "2", "--batch-size", "25"],
         "resnet": ["--samples", "600", "--tests", "200", "--epochs", "3", "--batch-size", "20"],
         "gpt": ["--samples", "500", "--tests", "50", "--epochs", "3"]}


def run(*argv):
    """Run a Python module. Each process has one PyTorch thread, because several threads wait for
    each other on a busy machine."""
    done = subprocess.run([sys.executable, "-m", *map(str, argv)], text=True, capture_output=True,
                          timeout=300, check=False, env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", SHORT)
def test_example_learns_as_well_as_plain_pytorch(name, data, tmp_path):
    if name == "fashion":
        more = ["--data", data]
    elif name == "resnet":
        for file, count in (("data_batch_1", 300), ("data_batch_2", 300), ("test_batch", 200)):
            (tmp_path / f"{file}.bin").write_bytes(resnet.synthetic(count, len(file) + count))
        more = ["--data", tmp_path]
    else:
        more = ["--data", ROOT / "proto/WIRE.md"]
    module = f"cnnps.examples.{name}"
    plain = run(module, "--plain", *SHORT[name], *more)
    ours = run("cnnps.run", "--workers", "2", "-m", module, *SHORT[name], *more)
    assert (plain["with"], ours["with"]) == ("PyTorch", "cnn-ps")
    if name == "gpt":
        # an untrained model needs 7 bits per byte
        assert ours["bits"] < 1.08 * plain["bits"] < 6.5, (ours, plain)
    else:
        assert ours["accuracy"] > plain["accuracy"] - 0.08 > 0.6, (ours, plain)


def test_example_without_its_data_says_what_to_fetch(tmp_path):
    done = subprocess.run([sys.executable, "-m", "cnnps.examples.fashion", "--data", tmp_path],
                          text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1 and "zalandoresearch/fashion-mnist" in done.stderr
