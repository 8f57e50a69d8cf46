"""Test the scripts that a new user runs first: setup, data, demo."""
import fcntl
import http.server
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from support.build import FLAVOUR, ROOT
from support.programs import until

FILES = [n + "-ubyte.gz" for n in
         ("t10k-labels-idx1", "train-labels-idx1", "t10k-images-idx3", "train-images-idx3")]


class Mirror(http.server.BaseHTTPRequestHandler):
    """An HTTP server for a directory. The server supports Range, and can close a connection in the
    middle of a file or send wrong bytes."""

    def do_GET(self):
        server = self.server
        name = self.path.rsplit("/", 1)[1]
        body = (server.directory / name).read_bytes()
        first = int(re.match(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])
        server.asked.append((name, first))
        if server.lie:
            body = bytes(len(body))
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(body) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        if len(server.asked) == server.break_at:
            self.wfile.write(body[first:len(body) // 2])
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.wfile.write(body[first:])

    def log_message(self, *_):
        pass


@pytest.fixture
def mirror(data):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    server.directory, server.asked, server.lie, server.break_at = data, [], False, 0
    server.url = f"http://127.0.0.1:{server.server_port}/mnist"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def checkout(tmp_path):
    """Returns a directory that contains only deploy/."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    return tmp_path


def run(script, env, seconds=60, arguments=()):
    keep = {k: v for k, v in os.environ.items() if not k.startswith("CNN_")}
    return subprocess.run([script, *arguments], env=dict(keep, **env), capture_output=True,
                          text=True, timeout=seconds)


def test_data_is_fetched_checked_and_resumed(checkout, mirror, mnist):
    if not mnist:
        pytest.skip("needs the real files to serve them: set CNN_DATA to MNIST")
    mirror.break_at = 4
    first = run(checkout / "deploy/data.sh", {"CNN_MIRRORS": mirror.url})
    assert "fashion" in first.stdout, first.stderr
    again = run(checkout / "deploy/data.sh", {"CNN_MIRRORS": mirror.url})
    assert again.stdout.strip() == str(checkout / "data/mnist"), again.stderr
    assert [n for n, _ in mirror.asked] == FILES + FILES[3:]
    assert mirror.asked[-1][1] > 0, "the second try did not go on where the first had ended"
    asked = len(mirror.asked)
    third = run(checkout / "deploy/data.sh", {"CNN_MIRRORS": mirror.url})
    assert third.stdout == again.stdout and len(mirror.asked) == asked


def test_lying_mirror_is_dropped(checkout, mirror, mnist):
    mirror.lie = True
    done = run(checkout / "deploy/data.sh", {"CNN_MIRRORS": mirror.url})
    assert "another sha256" in done.stderr
    assert done.stdout.strip() == "/usr/share/datasets/fashion-mnist"
    assert not list((checkout / "data/mnist").iterdir())


def test_silent_mirror_costs_seconds(checkout):
    """No mirror answers, as on a machine without internet access. Within seconds the script uses
    Fashion-MNIST instead, and says so."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mnist"
        done = run(checkout / "deploy/data.sh", {"CNN_MIRRORS": url})
    assert time.monotonic() - begun < 10
    assert done.stdout.strip() == "/usr/share/datasets/fashion-mnist"
    assert "Fashion-MNIST" in done.stderr


def test_without_curl_the_reason_is_not_the_mirrors(checkout):
    (checkout / "bin").mkdir()
    for name in ("sh", "dirname", "mkdir", "sha256sum"):
        (checkout / "bin" / name).symlink_to(shutil.which(name))
    done = run(checkout / "deploy/data.sh", {"PATH": str(checkout / "bin")})
    assert done.stdout.strip() == "/usr/share/datasets/fashion-mnist"
    assert done.stderr == ("data: curl is missing, so MNIST cannot be downloaded: using Debian's "
                           "Fashion-MNIST (clothes instead of digits)\n")


def test_cnn_data_wins(checkout):
    done = run(checkout / "deploy/data.sh", {"CNN_DATA": "/some/where"})
    assert done.stdout == "/some/where\n" and "CNN_DATA" in done.stderr


def stub(directory, name, text):
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path):
    """Returns a directory that the tests put at the front of PATH. The dpkg-query in this directory
    reports that no package is installed, and the apt-get in it records its arguments."""
    stub(tmp_path, "dpkg-query", "exit 1")
    stub(tmp_path, "apt-get", f'echo "$@" >> {tmp_path}/asked')
    return tmp_path


def setup_on(machine, *words):
    env = {"PATH": f"{machine}:{os.environ['PATH']}", "POLICY_RC_D": f"{machine}/policy"}
    return run(ROOT / "deploy/setup.sh", env, arguments=words)


@pytest.mark.parametrize("words", [("check",), ("check", "bench"), ("check", "build")])
def test_check_names_what_is_missing_and_installs_nothing(machine, words):
    stub(machine, "id", "echo 0")
    done = setup_on(machine, *words)
    assert done.returncode == 2 and "libzmq3-dev" in done.stderr
    assert f"'deploy/setup.sh{''.join(f' {w}' for w in words[1:])}' as root" in done.stderr
    assert ("chromium" in done.stderr) == ("build" not in words)
    assert ("gnuplot-nox" in done.stderr) == ("bench" in words)
    assert not (machine / "asked").exists()
    stub(machine, "dpkg-query", "echo installed")
    assert setup_on(machine, *words).returncode == 0


def test_setup_prints_the_command_when_not_root(machine):
    stub(machine, "id", "echo 1000")
    done = setup_on(machine)
    assert done.returncode == 2
    assert "sudo deploy/setup.sh'" in done.stderr and "libzmq3-dev" in done.stderr
    assert not (machine / "asked").exists()


def test_setup_installs_only_what_is_missing(machine):
    stub(machine, "id", "echo 0")
    stub(machine, "dpkg-query",
         'for p; do :; done; [ "$p" = libuv1-dev ] || [ "$p" = curl ] || echo installed')
    done = setup_on(machine)
    assert done.returncode == 0
    update, install = (machine / "asked").read_text().splitlines()
    assert install.endswith("--no-install-recommends libuv1-dev curl")
    assert "installing libuv1-dev curl" in done.stderr


@pytest.mark.parametrize("release, cuda, said", [
    ("", "", "nvcc not found:"), ("", "0", ""), ("11.8, V11.8.89", "", "nvcc is older than 12:"),
    ("11.8, V11.8.89", "0", "")], ids=["none", "none, CUDA=0", "11.8", "11.8, CUDA=0"])
def test_a_build_without_a_useful_nvcc_says_so_unless_asked_for(tmp_path, release, cuda, said):
    """The package nvidia-cuda-toolkit of Debian 12 contains nvcc 11.8, which cannot compile for
    compute_90a."""
    stub(tmp_path, "nvcc", f"""case $1 in
--version) echo "Cuda compilation tools, release {release}" ;;
*) echo compute_80 compute_90 ;; esac""")
    done = subprocess.run(
        ["make", "-n", "-C", ROOT, f"NVCC={tmp_path / 'nvcc' if release else ''}", f"CUDA={cuda}", "all"],
        capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"cuda: (.*) the workers will compute on CPUs only", done.stdout) == (
        [said] if said else [])
    assert "-gencode" not in done.stdout


@pytest.mark.parametrize("answer, code", [
    ("echo 8.9; echo 9.0; echo 8.9", "sm_89 sm_90a"), ("exit 127", None),
    ("echo NVIDIA-SMI has failed because it could not communicate with the driver.; exit 9", None)],
    ids=["gpus", "no driver installed", "no driver answers"])
def test_native_needs_a_gpu_and_says_so(tmp_path, answer, code):
    stub(tmp_path, "nvidia-smi", answer)
    stub(tmp_path, "nvcc", """case $1 in
--version) echo "Cuda compilation tools, release 13.0" ;;
*) printf "compute_%s\\n" 80 86 89 90 ;; esac""")
    done = subprocess.run(
        ["make", "-s", "-C", ROOT, f"NVCC={tmp_path / 'nvcc'}", "CUDA=", "CUDA_ARCHS=native",
         "print-NVCC_CODE"], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    if code:
        assert re.findall(r"code=(\w+)", done.stdout) == code.split(), done.stderr
        return
    assert done.returncode == 2
    assert re.search("CUDA_ARCHS=native: nvidia-smi names no GPU.* CUDA_ARCHS=90", done.stderr)


@pytest.mark.parametrize("cuda", [True, False])
def test_deb_has_a_cuda_package_only_if_the_makefile_has_cuda(checkout, cuda):
    """deb.sh finds out whether the Makefile builds CUDA code: a Makefile that builds none has the
    target no-cuda. An installed nvcc is no proof that the Makefile builds CUDA code, because nvcc
    may be too old."""
    (checkout / "common").mkdir()
    shutil.copy(ROOT / "common/version.h", checkout / "common")
    (checkout / "Makefile").write_text("all:\n" if cuda else "no-cuda:\n\t@echo too old\n")
    for name, text in (("dh", ""), ("nvcc", ""),
                       ("dpkg-buildpackage", 'echo "$DEB_BUILD_PROFILES" >../profiles; touch ../a.deb')):
        stub(checkout, name, text)
    done = run(checkout / "deploy/deb.sh", {"PATH": f"{checkout}:{os.environ['PATH']}", "CUDA": ""})
    assert done.returncode == 0, done.stderr
    profiles = (checkout / "build/deb/profiles").read_text().strip()
    assert profiles == ("pkg.cnn-ps.cuda" if cuda else "")
    assert done.stderr == ("" if cuda else "too old\ndeb: without the package cnn-worker-cuda\n")


def test_the_demo_needs_few_packages(machine):
    """The first command of the README installs the set `build` of packages. This set is enough for
    `make install`, too, and contains no package that only the tests need and no daemon."""
    stub(machine, "id", "echo 0")
    assert setup_on(machine, "build").returncode == 0
    install = (machine / "asked").read_text().splitlines()[1].split()
    assert {"gcc", "libzmq3-dev", "curl", "help2man", "python3"} < set(install)
    assert not {"chromium", "slurm-wlm", "munge", "prometheus", "python3-torch", "clang"} & set(install)
    assert setup_on(machine, "list", "build").stdout.split() == install[install.index("gcc"):]


@pytest.mark.parametrize("status", [0, 100])
def test_setup_starts_no_daemon(machine, status):
    """If a package has daemons, Debian starts them after the installation and at each boot.
    setup.sh prevents this for the daemons that it installs, even if apt-get fails. munge was
    installed before setup.sh ran, so setup.sh does not prevent the start of munge's daemon."""
    stub(machine, "id", "echo 0")
    stub(machine, "dpkg-query", f'for p; do :; done; [ -e {machine}/done ] || [ "$p" = munge ] && echo installed')
    stub(machine, "systemctl", f'echo "$@" >> {machine}/systemctl.log')
    stub(machine, "apt-get", f"""[ "$1" = install ] || exit 0
for unit in prometheus.service slurmd munge.service postgresql; do
    status=0
    {machine}/policy $unit start || status=$?
    echo "$unit $status" >> {machine}/starts
done
touch {machine}/done
exit {status}""")
    assert setup_on(machine).returncode == status
    assert (machine / "starts").read_text().splitlines() == [
        "prometheus.service 101", "slurmd 101", "munge.service 0", "postgresql 0"]
    assert (machine / "systemctl.log").read_text().splitlines() == [
        f"--quiet disable {d}.service" for d in ("prometheus", "slurmctld", "slurmd")]
    assert not (machine / "policy").exists()


def test_setup_keeps_the_policy_of_the_machine(machine):
    stub(machine, "id", "echo 0")
    (machine / "policy").write_text("exit 0\n")
    assert setup_on(machine).returncode == 0
    assert (machine / "policy").read_text() == "exit 0\n"


def test_setup_with_everything_needs_neither_root_nor_network(machine):
    stub(machine, "id", "echo 1000")
    stub(machine, "dpkg-query", "echo installed")
    assert setup_on(machine).returncode == 0
    assert not (machine / "asked").exists()


@pytest.mark.skipif(FLAVOUR != "release", reason="the demo is of the release build")
def test_demo_trains_and_cleans_up(data, mnist):
    done = run(ROOT / "deploy/demo.sh", {"CNN_DATA": str(data)}, 200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(data) in done.stdout
    accuracy = float(re.search(r"accuracy\s+([\d.]+) %", done.stdout)[1])
    assert accuracy >= (97.5 if mnist else 85), done.stdout
    float(re.search(r"training\s+([\d.]+) s", done.stdout)[1])
    assert "<html" in (ROOT / "build/demo/report.html").read_text()
    started = re.findall(r"\d+", re.search(r"processes (.*)", done.stderr)[1])
    assert len(started) == 3
    for pid in started:
        assert not os.path.exists(f"/proc/{pid}"), f"{pid} still runs"

@pytest.mark.parametrize("missing", ["cnn-ps", "cnn-worker", "cnn-ctl"])
def test_a_demo_without_programs_says_so(checkout, missing):
    (checkout / "build/release").mkdir(parents=True)
    for name in {"cnn-ps", "cnn-worker", "cnn-ctl"} - {missing}:
        stub(checkout / "build/release", name, "sleep 30")
    done = run(checkout / "deploy/demo.sh", {"CNN_DATA": "/some/where"})
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"demo: build/release/{missing} is missing: run make\n"


def test_the_training_of_the_demo_begins_with_the_first_worker(checkout):
    """The demo measures the training from the time at which the first worker joins, not from the
    start of the server. Before a worker joins, it reads the images, which takes seconds on a busy
    machine."""
    (checkout / "build/release").mkdir(parents=True)
    stub(checkout / "build/release", "cnn-ps", """sleep 0.5; echo '{"accuracy": 0.9, "images": 1000}'""")
    stub(checkout / "build/release", "cnn-worker", "exit 0")
    stub(checkout / "build/release", "cnn-ctl", "printf '%s\\n' t,kind 1000,start 2000,sample "
         "5000,worker 5010,worker 6000,epoch 7000,end")
    done = run(checkout / "deploy/demo.sh", {"CNN_DATA": "/some/where"})
    assert done.returncode == 0, done.stderr
    assert "training  2.0 s, 500 images/s\n" in done.stdout


@pytest.mark.parametrize("status", [0, 1])
def test_a_demo_whose_server_ends_at_once_fails(checkout, status):
    """The server ends before the script waits for it, and prints no result."""
    (checkout / "build/release").mkdir(parents=True)
    stub(checkout / "build/release", "cnn-ps", f"exit {status}")
    stub(checkout / "build/release", "cnn-worker", "echo waits >&2; exec sleep 30")
    stub(checkout / "build/release", "cnn-ctl", "exit 2")
    done = run(checkout / "deploy/demo.sh", {"CNN_DATA": "/some/where"})
    assert done.returncode == 1 and done.stdout == ""
    assert "demo: a process ended early" in done.stderr


# a server that writes a history, and trains until its directory has the file `end`
TRAINS = """until [ "$1" = --checkpoint-dir ]; do shift; done
echo "$$" >>"$2/history.jsonl"
until [ -e "$2/end" ]; do sleep 0.1; done
echo '{"accuracy": 0.9, "images": 1000}'"""


@pytest.fixture
def start_demo(checkout):
    """Returns a function that starts the demo. Its server is TRAINS, and its temporary directories
    are in checkout/tmp."""
    programs, started = checkout / "build/release", []
    programs.mkdir(parents=True)
    (checkout / "tmp").mkdir()
    stub(programs, "cnn-ps", TRAINS)
    stub(programs, "cnn-worker", "exit 0")
    stub(programs, "cnn-ctl", "printf '%s\\n' t,kind 1000,worker 2000,end")

    def start():
        env = dict(os.environ, CNN_DATA="/some/where", TMPDIR=str(checkout / "tmp"))
        started.append(subprocess.Popen(checkout / "deploy/demo.sh", env=env, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return started[-1]
    yield start
    for demo in started:
        demo.terminate()
        demo.communicate(timeout=60)


def trains_elsewhere(checkout, demo):
    """Check that a demo runs in a temporary directory because build/demo is in use, and says so."""
    [run] = until(lambda: [path.parent for path in checkout.glob("tmp/*/history.jsonl")], 20,
                  "the demo trains in a temporary directory")
    (run / "end").touch()
    out, err = demo.communicate(timeout=60)
    assert demo.returncode == 0, err
    assert f"demo: build/demo is in use or not writable: this run is in {run}\n" in err
    assert f"history   build/release/cnn-ctl history {run}\n" in out
    assert f"report    {run}/report.html," in out and (run / "report.html").exists()


def test_a_demo_leaves_the_run_of_another_demo_alone(checkout, start_demo):
    """The run belongs to the other demo also while its server is dead and starts again in 3 s. The
    directory is free when the other demo has ended."""
    history = checkout / "build/demo/history.jsonl"
    first = start_demo()
    until(lambda: history.exists() and history.read_text(), 20, "the first demo trains")
    server = history.read_text()
    os.kill(int(server), signal.SIGKILL)
    trains_elsewhere(checkout, start_demo())
    until(lambda: history.read_text() != server, 20, "the server trains again")
    assert history.read_text().startswith(server)
    (checkout / "build/demo/end").touch()
    out, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    assert "history   build/release/cnn-ctl history build/demo\n" in out
    third = start_demo()
    until(lambda: not (checkout / "build/demo/end").exists() and history.exists(), 20, "a new run")
    (checkout / "build/demo/end").touch()
    assert "in use" not in third.communicate(timeout=60)[1] and len(history.read_text().split()) == 1


def test_a_demo_leaves_the_run_of_a_server_alone(checkout, start_demo):
    """A server locks the file LOCK of its directory."""
    run = checkout / "build/demo"
    run.mkdir()
    (run / "history.jsonl").write_text("a line\n")
    with open(run / "LOCK", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        trains_elsewhere(checkout, start_demo())
    assert (run / "history.jsonl").read_text() == "a line\n"
