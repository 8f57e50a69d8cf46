"""The annotations of the Python package are complete and consistent."""
import subprocess

import pytest
from support.build import ROOT

MYPY = ROOT / "build/tools/bin/mypy"


def test_annotations_agree(tmp_path):
    """pyproject.toml has the options of mypy."""
    if not MYPY.exists():
        pytest.skip("no mypy: deploy/setup.sh tools installs it")
    done = subprocess.run([
        MYPY, "--config-file", ROOT / "worker/python/pyproject.toml", "--cache-dir", tmp_path,
        ROOT / "worker/python/cnnps"], text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
