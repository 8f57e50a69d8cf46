"""The bundle of `make bundle` works in another directory than that of its build: its programs use
its own libraries, and its demo trains."""
import os
import re
import subprocess
import tarfile

import pytest

from support.build import ROOT

# The bundle may use these libraries of the host: glibc and the runtime of gcc.
HOST = re.compile(r"(ld-linux.*|linux-vdso.*|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+))\.so.*")

pytestmark = pytest.mark.skipif("CNN_BUNDLE" not in os.environ, reason="make bundle tries it")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    [archive] = (ROOT / "build/bundle").glob("cnn-ps-*.tar.gz")
    place = tmp_path_factory.mktemp("a strange place")
    with tarfile.open(archive) as tar:
        tar.extractall(place)
    [directory] = place.iterdir()
    assert archive.name == directory.name + ".tar.gz"
    return directory


def run(argv, cwd, seconds=120, **env):
    return subprocess.run([str(a) for a in argv], cwd=cwd, text=True, capture_output=True,
                          timeout=seconds, env={"PATH": "/usr/bin:/bin", "HOME": "/", **env})


def test_every_library_is_the_bundles_or_the_hosts(bundle):
    programs = [p for p in (bundle / "libexec").rglob("*") if p.is_file()]
    assert {"cnn-ps", "cnn-worker", "cnn-ctl", "gpu", "test_odd_models"} <= {
        p.name for p in programs}
    for program in programs:
        text = run(["ldd", program], "/", LD_LIBRARY_PATH=str(bundle / "lib")).stdout
        found = dict(re.findall(r"^\s*(\S+) => (.*?)(?: \(0x\w+\))?$", text, re.M))
        assert found, text
        for name, path in found.items():
            mine = path.startswith(f"{bundle}/lib/")
            assert mine or HOST.fullmatch(name), f"{program.name}: {name} => {path}"


def test_programs_start_by_any_path_to_them(bundle):
    version = run(["bin/cnn-ps", "--version"], bundle).stdout
    assert version.strip()
    for argv, cwd in ((["./cnn-ps"], bundle / "bin"), ([bundle / "bin/cnn-ps"], "/"),
                      (["build/release/cnn-ps"], bundle), (["../bin/cnn-ps"], bundle / "lib")):
        assert run([*argv, "--version"], cwd).stdout == version
    assert run(["cnn-ps", "--version"], "/", PATH=f"{bundle}/bin:/usr/bin:/bin").stdout == version


def test_the_demo_trains(bundle, data):
    done = run([bundle / "deploy/demo.sh"], "/", CNN_DATA=str(data))
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = float(re.search(r"accuracy\s+([\d.]+) %", done.stdout)[1])
    assert accuracy >= (85 if "fashion" in str(data) else 97.5), done.stdout


def test_the_proofs_start(bundle, data):
    """Run tests from the bundle. Without a GPU they are skipped, but no test may fail because a
    file is missing from the bundle."""
    for argv in (["bin/tests/gpu/test_odd_models"], ["tests/gpu/run", "-k", "training"]):
        done = run(argv, bundle, CNN_DATA=str(data))
        assert done.returncode == 0, done.stdout + done.stderr
