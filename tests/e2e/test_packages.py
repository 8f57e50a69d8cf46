"""Tests make deb: two builds give packages with the same bytes, lintian accepts the packages, and a
fresh Debian trains with them, and with the wheel of make wheel.

Most tests take minutes and need debhelper, lintian, a Docker engine and Debian's archive, so only
`make deb-test` runs them.
"""
import hashlib
import os
import re
import shutil
import subprocess

import pytest
from support.build import FULL, ROOT

pytestmark = pytest.mark.xdist_group("packages")
UNITS = ("cnn-ps", "cnn-worker")


def run(*argv, seconds=900, **kwargs):
    done = subprocess.run(argv, text=True, capture_output=True, timeout=seconds, check=False,
                          **kwargs)
    assert done.returncode == 0, f"{argv}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def packages():
    """The packages without debug symbols."""
    if not FULL:
        pytest.skip("make deb-test: builds the packages twice")
    run("make", "-C", ROOT, "deb")
    found = [p for p in sorted((ROOT / "build/deb").glob("*.deb")) if "-dbgsym_" not in p.name]
    nvcc = os.access("/usr/local/cuda/bin/nvcc", os.X_OK) or shutil.which("nvcc")
    cuda = ["cnn-worker-cuda"] if nvcc else []
    assert [p.name.split("_")[0] for p in found] == [
        "cnn-ps", *cuda, "libcnnps-dev", "libcnnps0", "python3-cnnps"]
    return found


def test_lintian_reports_no_error_and_no_warning(packages):
    changes = next((ROOT / "build/deb").glob("*.changes"))
    text = run("lintian", "--fail-on", "none", changes)
    assert not re.findall(r"^[EW]: .*", text, re.M), text


def test_two_builds_have_the_same_bytes(packages):
    def digests():
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in packages}
    first = digests()
    run("make", "-C", ROOT, "deb")
    assert digests() == first


@pytest.fixture
def image():
    """The name of an image of a fresh Debian."""
    if not FULL:
        pytest.skip("make deb-test: downloads packages of Debian")
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no containers: no Docker engine answers")
    return run(ROOT / "deploy/base_image.sh").strip()


def test_fresh_debian_trains_with_the_packages(packages, image, tmp_path):
    """apt installs the packages and their dependencies. Then server, two workers, a C program and a
    Python program run."""
    example = (ROOT / "worker/examples/line.c").read_text(encoding="utf-8")
    (tmp_path / "line.c").write_text(
        example.replace('"worker/client/cnnps.h"', "<cnnps.h>"), encoding="utf-8")
    for package in packages:
        (tmp_path / package.name).write_bytes(package.read_bytes())
    script = """set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null
apt-get install -q -y --no-install-recommends /made/*.deb dataset-fashion-mnist >/dev/null
cnn-ps --epochs 1 --min-workers 2 --checkpoint-dir /tmp/run & server=$!
cnn-worker & $(command -v cnn-worker-cuda || echo cnn-worker) &
wait $server
cnn-ctl --checkpoint /tmp/run export /tmp/weights.safetensors
apt-get install -q -y --no-install-recommends gcc libc6-dev pkg-config >/dev/null
gcc -o /tmp/line /made/line.c $(pkg-config --cflags --libs cnnps) -lm
cnn-ps --model vector:2 --optimizer sgd --lr 0.5 >/dev/null &
/tmp/line
apt-get install -q -y --no-install-recommends python3-torch >/dev/null
python3 -m cnnps.run --workers 4 -m cnnps.examples.fashion --samples 4000 --tests 500 --epochs 2
apt-get purge -q -y "cnn-*" libcnnps0 >/dev/null
! ls /usr/bin/cnn-* 2>/dev/null
"""
    text = run("docker", "run", "--rm", "--network", "host", "-v", f"{tmp_path}:/made:ro", image,
               "sh", "-c", script, seconds=600)
    assert re.search(r"accuracy[\"=: ]+0\.[789]", text), text
    assert float(re.search(r'"example": "fashion".*"accuracy": ([\d.]+)', text)[1]) > 0.5, text
    assert abs(float(re.search(r"a=(\S+) b=", text)[1]) - 2) < 0.2, text


def test_fresh_debian_trains_with_the_wheel(image, tmp_path):
    """The container has Python, numpy and torch of Debian. The wheel has all other libraries."""
    run("make", "-C", ROOT, "wheel")
    wheel = next((ROOT / "build/wheel").glob("*.whl"))
    (tmp_path / wheel.name).write_bytes(wheel.read_bytes())
    example = ROOT / "worker/python/cnnps/examples/fashion.py"
    (tmp_path / "fashion.py").write_bytes(example.read_bytes())
    script = """set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null
apt-get install -q -y --no-install-recommends python3-venv python3-torch dataset-fashion-mnist \
    >/dev/null
! ldconfig -p | grep libzmq
python3 -m venv --system-site-packages /tmp/venv
. /tmp/venv/bin/activate
pip install -q /made/cnnps-*.whl
python -m cnnps.run --workers 4 /made/fashion.py --samples 4000 --tests 500 --epochs 2
"""
    text = run("docker", "run", "--rm", "--network", "host", "-v", f"{tmp_path}:/made:ro", image,
               "sh", "-c", script, seconds=600)
    assert float(re.search(r'"example": "fashion".*"accuracy": ([\d.]+)', text)[1]) > 0.5, text


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_unit_is_valid_and_confined(unit, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze")
    text = (ROOT / f"deploy/systemd/{unit}.service").read_text(encoding="utf-8")
    path = tmp_path / f"{unit}.service"
    path.write_text(text, encoding="utf-8")
    found = run("systemd-analyze", "security", "--offline=true", path,
                env=dict(os.environ, TERM="dumb"))
    assert float(re.search(r"Overall exposure level.*?: ([\d.]+)", found)[1]) < 2.5
    # verify needs programs and manual pages that exist
    path.write_text(re.sub("^Documentation=.*\n", "", text.replace(f"/usr/bin/{unit}", "/bin/true"),
                           flags=re.M), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", path], text=True, capture_output=True,
                          timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
