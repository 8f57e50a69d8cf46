"""The annotations of the Python package are complete and consistent."""
import subprocess

from support.build import ROOT, without

MYPY = ROOT / "build/tools/bin/mypy"


def test_annotations_agree(tmp_path):
    """Run mypy with the options in pyproject.toml."""
    if not MYPY.exists():
        without("mypy", "deploy/setup.sh tools")
    done = subprocess.run([
        MYPY, "--config-file", ROOT / "worker/python/pyproject.toml", "--cache-dir", tmp_path,
        ROOT / "worker/python/cnnps"], text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
