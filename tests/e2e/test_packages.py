"""Test `make deb`: two builds give packages with the same bytes, lintian accepts the packages, and
a fresh Debian trains with these packages, and with the wheel of `make wheel`.

Most tests take minutes and need debhelper, lintian, a Docker engine and Debian's archive, so only
`make deb-test` runs them. `make deb-test CUDA=0` omits the package for CUDA workers, whose build
takes most of the time.
"""
import hashlib
import json
import os
import re
import shutil
import subprocess

import pytest

from machines import Booted, base_image
from support.build import FLAVOUR, FULL, ROOT, command, without
from support.programs import Process, until

pytestmark = pytest.mark.xdist_group("packages")
UNITS = ("cnn-ps", "cnn-worker")
# time limit of a container; apt needed more than 10 minutes to install PyTorch while other programs
# used the cores
CONTAINER_SECONDS = 1800
# time limit of a build; the CUDA compiler needed 15 minutes on two cores that other programs used,
# too
BUILD_SECONDS = 2400


def run(*argv, seconds=900, **kwargs):
    done = subprocess.run(argv, text=True, capture_output=True, timeout=seconds, check=False,
                          **kwargs)
    assert done.returncode == 0, f"{argv}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def packages():
    """Returns the packages, except for those with debug symbols."""
    if not FULL:
        pytest.skip("make deb-test: builds the packages twice")
    run("make", "-C", ROOT, "deb", seconds=BUILD_SECONDS)
    found = [p for p in sorted((ROOT / "build/deb").glob("*.deb")) if "-dbgsym_" not in p.name]
    nvcc = os.access("/usr/local/cuda/bin/nvcc", os.X_OK) or shutil.which("nvcc")
    cuda = ["cnn-worker-cuda"] if nvcc and os.environ.get("CUDA") != "0" else []
    assert [p.name.split("_")[0] for p in found] == [
        "cnn-ps", *cuda, "libcnnps-dev", "libcnnps0", "python3-cnnps"]
    return found


def test_lintian_reports_no_error_and_no_warning(packages):
    changes = next((ROOT / "build/deb").glob("*.changes"))
    text = run("lintian", "--fail-on", "none", changes)
    assert not re.findall(r"^[EW]: .*", text, re.M), text


def digests(root):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest()
            for p in (root / "build/deb").glob("*.deb")}


def test_two_builds_have_the_same_bytes(packages):
    first = digests(ROOT)
    assert first.keys() >= {p.name for p in packages}
    run("make", "-C", ROOT, "deb", seconds=BUILD_SECONDS)
    assert digests(ROOT) == first


def test_build_in_another_directory_has_the_same_bytes(packages, tmp_path):
    """The test omits the package cnn-worker-cuda, because nvcc derives the names of kernels from the
    path of their source file."""
    copy = tmp_path / "another/directory"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=lambda directory, _:
                    ("build", "data") if directory == str(ROOT) else ())
    run("make", "-C", copy, "deb", "CUDA=0")
    assert digests(copy) == {name: digest for name, digest in digests(ROOT).items()
                             if not name.startswith("cnn-worker-cuda")}


@pytest.fixture
def image():
    """Returns the name of a container image of a fresh Debian."""
    if not FULL:
        pytest.skip("make deb-test: downloads packages of Debian")
    return base_image()


def test_fresh_debian_trains_with_the_packages(packages, image, tmp_path):
    """apt installs the packages, their dependencies and the recommended data set in a fresh Debian. A
    server, two workers, a C program and a Python program then run there."""
    example = (ROOT / "worker/examples/line.c").read_text(encoding="utf-8")
    (tmp_path / "line.c").write_text(
        example.replace('"worker/client/cnnps.h"', "<cnnps.h>"), encoding="utf-8")
    for package in packages:
        (tmp_path / package.name).write_bytes(package.read_bytes())
    script = """set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null
apt-get install -q -y /made/*.deb >/dev/null
ls /usr/share/zsh/vendor-completions/_cnn-ps /usr/share/bash-completion/completions/cnn-ctl
cnn-ps --epochs 1 --min-workers 2 --checkpoint-dir /tmp/run & server=$!
cnn-worker & $(command -v cnn-worker-cuda || echo cnn-worker) &
wait $server
cnn-ctl --checkpoint /tmp/run export /tmp/weights.safetensors
cnn-ps --epochs 1 --checkpoint-dir /tmp/run1 & cnn-worker
apt-get install -q -y --no-install-recommends gcc libc6-dev pkg-config >/dev/null
gcc -o /tmp/line /made/line.c $(pkg-config --cflags --libs cnnps) -lm
cnn-ps --model vector:2 --optimizer sgd --lr 0.5 >/dev/null &
/tmp/line
apt-get install -q -y --no-install-recommends python3-torch >/dev/null
python3 -m cnnps.run --workers 4 -m cnnps.examples.fashion --samples 4000 --tests 500 --epochs 2 \
    --batch-size 25
apt-get purge -q -y "cnn-*" libcnnps0 >/dev/null
! ls /usr/bin/cnn-* 2>/dev/null
"""
    text = run("docker", "run", "--rm", "--network", "host", "-v", f"{tmp_path}:/made:ro", image,
               "sh", "-c", script, seconds=CONTAINER_SECONDS)
    assert re.search(r"accuracy[\"=: ]+0\.[789]", text), text
    assert float(re.search(r'"example": "fashion".*"accuracy": ([\d.]+)', text)[1]) > 0.5, text
    assert abs(float(re.search(r"a=(\S+) b=", text)[1]) - 2) < 0.2, text


def test_debian_without_network_trains_with_the_packages(packages, image, tmp_path):
    """The commands of docs/install.md download the packages that are needed and install them on a
    machine without network. After the installation, the training needs no other command."""
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    download, install = (
        re.search(rf"^```\n((?:sudo .*\n|mkdir .*\n)*sudo apt-get install -y {start}.*\n)```$", page,
                  re.M)[1].replace("sudo ", "") for start in ("--download-only", "./needed"))
    (tmp_path / "build/deb").mkdir(parents=True)
    for package in packages:
        (tmp_path / "build/deb" / package.name).write_bytes(package.read_bytes())

    def shell(network, script):
        return run("docker", "run", "--rm", "--network", network, "-v", f"{tmp_path}:/copy", "-w",
                   "/copy", "-e", "DEBIAN_FRONTEND=noninteractive", image, "sh", "-euc", script,
                   seconds=CONTAINER_SECONDS)
    shell("host", download)
    text = shell("none", f"{install}\ncd /tmp\n"
                 "cnn-ps --epochs 1 --checkpoint-dir run1 & cnn-worker && wait $!")
    assert re.search(r'"status": "done".*"accuracy": 0\.[789]', text), text[-3000:]


def test_fresh_debian_trains_with_the_wheel(image, tmp_path):
    """The container has Debian's packages of Python, numpy and torch. The wheel contains all other
    libraries that the programs need."""
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
python3 -m venv --system-site-packages /tmp/venv
. /tmp/venv/bin/activate
pip install -q /made/cnnps-*.whl
for file in lib/libcnnps.so.0 bin/cnn-ps; do
    ldd /tmp/venv/lib/python3*/site-packages/cnnps/$file | grep libzmq
done
python -m cnnps.run --workers 4 /made/fashion.py --samples 4000 --tests 500 --epochs 2 \
    --batch-size 25
"""
    text = run("docker", "run", "--rm", "--network", "host", "-v", f"{tmp_path}:/made:ro", image,
               "sh", "-c", script, seconds=CONTAINER_SECONDS)
    # the programs must not use the libzmq that Debian's torch brings
    used = re.findall(r"libzmq\S+ => (\S+)", text)
    assert len(used) == 2 and all("cnnps.libs/" in path for path in used), text
    assert float(re.search(r'"example": "fashion".*"accuracy": ([\d.]+)', text)[1]) > 0.5, text


@pytest.fixture
def booted(packages, tmp_path):
    """Yields a function that runs a script in a container where systemd runs and the packages are
    installed."""
    for package in packages:
        (tmp_path / package.name).write_bytes(package.read_bytes())
    container = Booted(f"cnn-ps-systemd-{os.getpid()}", tmp_path)
    yield container
    container.close()


def test_systemd_runs_the_units(booted):
    """`systemctl start` returns when the server is ready. systemd starts server and worker again
    after SIGKILL, and the run continues from its checkpoint in /var/lib/cnn-ps."""
    def pid(unit, other_than=0):
        return int(booted(f"""for _ in $(seq 100); do
    pid=$(systemctl show -p MainPID --value {unit})
    [ $pid = 0 ] || [ $pid = {other_than} ] || break
    sleep 0.2
done
echo $pid"""))

    def status():
        return json.loads(booted("cnn-ctl status"))

    def trains_on():
        before = status()["updates"]
        until(lambda: status()["updates"] > before + 100, 60, "100 more updates")
    booted("printf 'CNN_EPOCHS=1000\nCNN_MODEL=lenet5\n' >/etc/default/cnn-ps; "
           "systemctl start cnn-ps; systemctl is-active cnn-ps; systemctl start cnn-worker")
    trains_on()
    server, worker = pid("cnn-ps"), pid("cnn-worker")
    booted("[ \"$(stat -c %a /var/lib/private/cnn-ps/run)\" = 700 ]; ls /var/lib/cnn-ps/run/ckpt-*")
    booted(f"kill -9 {server}")
    assert pid("cnn-ps", other_than=server) != server
    trains_on()
    assert pid("cnn-worker") == worker
    booted(f"kill -9 {worker}")
    assert pid("cnn-worker", other_than=worker) != worker
    trains_on()
    booted("systemctl stop cnn-worker cnn-ps; ! systemctl --failed --plain --no-legend | grep .")
    log = booted("journalctl -o cat --no-pager -u cnn-ps")
    assert log.count("server resumed") == 1 and log.count("server finished") == 1, log


def allowed_calls(unit):
    """Returns the names of the system calls that the unit permits."""
    sets, names = {}, []
    for line in run("systemd-analyze", "--no-pager", "syscall-filter").splitlines():
        if line[:1] == "@":
            names = sets.setdefault(line, [])
        elif re.match(r"    [@a-z_]", line):
            names.append(line.strip())

    def expand(name):
        return set().union(*map(expand, sets[name])) if name[0] == "@" else {name}
    allowed = set()
    text = (ROOT / f"deploy/systemd/{unit}.service").read_text(encoding="utf-8")
    for value in re.findall(r"^SystemCallFilter=(.*)", text, re.M):
        named = set().union(*map(expand, value.lstrip("~").split()))
        allowed = allowed - named if value[0] == "~" else allowed | named
    return allowed


@pytest.mark.skipif(FLAVOUR != "release", reason="sanitizers make other system calls")
def test_systemd_units_permit_every_system_call(programs, data, tmp_path):
    """The units permit every system call that the programs make. For any other call, a program
    would get SIGSYS."""
    for program in ("systemd-analyze", "strace"):
        if not shutil.which(program):
            without(program, "deploy/setup.sh")

    def traced(unit):
        return ["strace", "-f", "-qq", "-o", str(tmp_path / unit)]
    server = programs.server("--model", "lenet5", "--epochs", 1, wrap=traced("cnn-ps"))
    worker = programs.add(Process("cnn-worker", [*traced("cnn-worker"), *command(
        "cnn-worker", "--server", server.endpoint, "--data", data)]))
    server.result(120)
    assert worker.wait(60) == 0
    for unit in UNITS:
        calls = set(re.findall(r"^\d+ +(\w+)\(", (tmp_path / unit).read_text(errors="replace"), re.M))
        assert len(calls) > 20 and calls <= allowed_calls(unit), calls - allowed_calls(unit)


def install_unit(unit, directory, drop_ins):
    """Writes a unit to a directory, with its drop-in if `drop_ins` is true. The program and the
    manual page of the unit need not exist: the function replaces or removes their names, because
    `systemd-analyze verify` would report missing files. Returns the path of the unit."""
    source = ROOT / "deploy/systemd"
    text = (source / f"{unit}.service").read_text(encoding="utf-8")
    path = directory / f"{unit}.service"
    path.write_text(re.sub("^Documentation=.*\n", "", text.replace(f"/usr/bin/{unit}", "/bin/true"),
                           flags=re.M), encoding="utf-8")
    if drop_ins:
        shutil.copytree(source / f"{unit}.service.d", directory / f"{unit}.service.d")
    return path


def verify_unit(path):
    done = subprocess.run(["systemd-analyze", "verify", path], text=True, capture_output=True,
                          timeout=60, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("drop_ins", [False, True], ids=["unit", "keys"])
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_unit_is_valid_and_confined(unit, drop_ins, tmp_path):
    if not shutil.which("systemd-analyze"):
        without("systemd-analyze", "deploy/setup.sh")
    path = install_unit(unit, tmp_path, drop_ins)
    found = run("systemd-analyze", "security", "--offline=true", path,
                env=dict(os.environ, TERM="dumb"))
    assert float(re.search(r"Overall exposure level.*?: ([\d.]+)", found)[1]) < 2.5
    assert verify_unit(path) == (0, "")


def test_systemd_drop_ins_give_the_keys_to_the_units(programs, data, tmp_path):
    """The drop-ins name files that cnn-ctl keygen writes, and variables that the programs read.
    With these variables and with copies of the credentials, a worker joins the server."""
    keys = tmp_path / "etc"
    assert run(*command("cnn-ctl", "keygen", keys))
    variables = {}
    for unit in UNITS:
        text = (ROOT / f"deploy/systemd/{unit}.service.d/keys.conf").read_text(encoding="utf-8")
        [(name, file)] = re.findall(r"^LoadCredential=(\S+):/etc/cnn-ps/(\S+)$", text, re.M)
        credentials = tmp_path / unit
        credentials.mkdir(mode=0o700)
        (credentials / name).write_bytes((keys / file).read_bytes())
        (credentials / name).chmod(0o400)
        variables[unit] = {
            key: value.replace("%d", str(credentials)).replace("/etc/cnn-ps", str(keys))
            for key, value in re.findall(r"^Environment=(\w+)=(\S+)$", text, re.M)}
        help_text = run(*command(unit, "--help"))
        assert all(f"{key})" in help_text for key in variables[unit])
    assert variables["cnn-ps"].pop("CNN_BIND") == "tcp://0.0.0.0:5555"
    server = programs.server("--model", "lenet5", directory=None, env=variables["cnn-ps"])
    server.line('"auth keys"')
    programs.add(Process("cnn-worker", command(
        "cnn-worker", "--server", server.endpoint, "--data", data), env=variables["cnn-worker"]))
    server.line('"worker joined"')


def test_systemd_analyze_reads_the_drop_ins(tmp_path):
    """A wrong setting in a drop-in is found, so verify_unit does read the drop-ins."""
    if not shutil.which("systemd-analyze"):
        without("systemd-analyze", "deploy/setup.sh")
    path = install_unit(UNITS[0], tmp_path, True)
    with (tmp_path / f"{UNITS[0]}.service.d/keys.conf").open("a", encoding="utf-8") as file:
        file.write("NoSuchSetting=1\n")
    assert "NoSuchSetting" in verify_unit(path)[1]
