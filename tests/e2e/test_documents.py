"""Run every command that the documents show, as a reader types it. documents.py explains which
blocks contain commands, and which marks a block may have.

What a test does differs from what a reader does in these points only:

- The blocks of a document run in order in one copy of the checkout. In this copy, data/mnist has a
  tenth of the data set, and build/release is the build under test. The blocks with `make` share
  another copy, without a build, and get CUDA=0 and the data set in CNN_DATA.
- If one of the slow blocks of a document has `sudo`, all slow blocks of this document run as root,
  in the copy without a build and in a file system of their own (machine()). So an installation
  changes nothing on the machine of the test. The test provides worker.c, the reader's own program,
  which a block links with libcnnps. Before a block downloads packages, the test removes those of
  cnn-ps and one that they recommend; a block that installs the downloaded packages has no network.
- Free ports replace 5555 and 8080, also where a command omits the address, and 127.0.0.1 replaces
  SERVER and 0.0.0.0. The name of a fault test, or of a worker in quarantine, replaces NAME.
- A line with cnn-ps or cnn-worker runs in parallel with the lines after it, as in a terminal of its
  own. At the end of the block, each of these programs must have exited with status 0, except that a
  worker must have exited with 12 if the block drains the server. Any other line that fails is
  tried again for some seconds, because a reader types more slowly than a test.
- If a block uses a server but does not start one, the test starts a server, with keys if the block
  uses keys.
- `--epochs` with a value of 100 or more becomes `--epochs 10`, and SHORTER changes commands that
  would take minutes, so that they do less work.
- In a block with gdb, gdb starts the program, stops in main and ends.
- run1 and run2 are the directories of small runs, unless an earlier block has made them.
- A block that needs a Docker engine, Kubernetes, Slurm or systemd runs on a machine of machines.py.
  machines.py says how this machine differs from the reader's machine.
- `make bundle` compiles for one kind of GPU.
- Python blocks run with the Python of the tests, and import the package cnnps of the source tree.
  The module tests/support/safetensors.py replaces the package safetensors, which Debian lacks.
- The test inserts a C block into the main function of a program that starts a server of its own.
"""
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from documents import DOCUMENTS, NO_COMMAND, Wrong, blocks
from machines import CONTAINERS, MACHINES, kind_of, run_script
from support import safetensors
from support.build import BUILD, FULL, PATIENCE, ROOT, command, without
from support.programs import Programs, Process

SECONDS = 60 * PATIENCE
SLOW_SECONDS = 900 * PATIENCE
LEFT_OUT = shutil.ignore_patterns("build", ".git", "data", "__pycache__", "run[0-9]*", "keys", "arrays",
                                  "shapes")
CACHES = shutil.ignore_patterns("__pycache__")
TOOLS = ROOT / "build/tools/bin/python"  # `deploy/setup.sh tools` makes it
MODULES = {"torch": "python3-torch"}
# With the address "local", Ray starts a new cluster even if /tmp still has the directory of a
# cluster that has ended.
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": "local"}
ELSEWHERE = ("gpu", "ci")  # the marks of blocks that only tests in other places run
NVCC = f"/usr/local/cuda/bin:{os.environ['PATH']}"
FAULT_TEST = "test_parts_that_get_lost_or_come_twice"

# Less work for commands that take minutes: a pattern, and what replaces it.
SHORTER = (
    (r"(?<=--epochs )\d{3,}\b", "10"),
    (r"(?<=make fuzz SECONDS=)\d+", "1"),
    (r"(?<=-m cnnps\.examples\.)\w+", r"\g<0> --epochs 1"),
    (r"(?<=tests/bench/python_rate) --seconds \S+$", " --seconds 0.1 --rounds 1"),
    (r"(?<=tests/bench/floods)", " --seconds 2"),
    (r"(?<=tests/bench/connections[.]py)", " --seconds 1"),
    (r"(?<=tests/bench/optimizers)", " --seeds 1"),
    (r"(?<=--seeds )1,2,3\b", "1"),
    (r"(?<=--seeds 1[.][.])\d{4,}", "100"),
    (r"^gdb(?= --args)", "gdb -batch -ex start"),
)

C_PROGRAM = """
#include <err.h>
#include <stdint.h>
#include "worker/client/cnnps.h"
static void my_gradient(const float *w, float *g)
{{
	for (int i = 0; i < 2; i++)
		g[i] = w[i] - 1;
}}
int main(void)
{{
	float w[2], g[2];
{body}
	return 0;
}}
"""


def runnable():
    for path in DOCUMENTS:
        for block in blocks(path):
            if block.mark not in ELSEWHERE and block.language not in NO_COMMAND:
                slow = [pytest.mark.skipif(not FULL, reason=f"CNN_SLOW=1: {block.reason}")]
                kinds = {kind_of(b) for b in blocks(path)} - {None}
                # the blocks with kubectl do not need the other blocks of their document
                group = "kubernetes" if kind_of(block) == "kubernetes" else min(
                    kinds, default=f"document {path.name}")
                yield pytest.param(block, id=block.name, marks=[
                    pytest.mark.xdist_group("containers" if group in CONTAINERS else group),
                    *(slow if block.mark == "slow" else [])])


FASHION = Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")


@pytest.mark.skipif(not FASHION.exists(), reason="the package dataset-fashion-mnist is not here")
def test_workers_of_the_readme_find_the_images_that_an_offline_demo_trains_on(tmp_path):
    """The offline demo leaves data/mnist empty. The workers of the README nevertheless find images,
    and load them before they connect to the server."""
    (tmp_path / "data/mnist").mkdir(parents=True)
    (tmp_path / "build").mkdir()
    (tmp_path / "build/release").symlink_to(BUILD)
    env = {k: v for k, v in os.environ.items() if not k.startswith("CNN_")}
    workers = [c for b in blocks(ROOT / "README.md") for c in b.commands()
               if re.match(r"build/release/cnn-worker\b", c) and "--key" not in c]
    assert workers
    free = f":{free_port()}"  # no server listens there, whatever other tests run
    for c in (worker.replace(":5555", free) for worker in workers):
        assert free in c
        done = subprocess.run(shlex.split(c), cwd=tmp_path, timeout=SECONDS, text=True,
                              env=dict(env, CNN_CONNECT_TIMEOUT_MS="1"), stderr=subprocess.PIPE,
                              check=False)
        assert done.returncode == 3, done.stderr
        assert str(FASHION.parent) in done.stderr


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def copy(place):
    """Make a copy of the checkout without a build, as a reader would have it."""
    # leave out LEFT_OUT, which contains `data`, only at the top: worker/data has source files
    shutil.copytree(ROOT, place, symlinks=True, ignore=lambda folder, names: (
        LEFT_OUT if Path(folder) == ROOT else CACHES)(folder, names))
    return place


@pytest.fixture(scope="module")
def copies(tmp_path_factory, small):
    """Returns a function: copies(document) returns a copy of the checkout with a build, or without
    one. All blocks of the document share this copy."""
    made = {}

    def get(path, built=True):
        if (path.name, built) not in made:
            place = copy(tmp_path_factory.mktemp("document") / "cnn-ps")
            if built:
                (place / "build").mkdir()
                (place / "build/release").symlink_to(BUILD)
                (place / "data").mkdir()
                (place / "data/mnist").symlink_to(small)
            made[path.name, built] = place
        return made[path.name, built]
    return get


def a_slow_block_has_sudo(path):
    return any(re.match("sudo ", command) for block in blocks(path) if block.mark == "slow"
               for command in block.commands())


MACHINE = """
root=$1/root
mount -t tmpfs none "$1"
mkdir "$1/changes" "$1/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$1/changes,workdir=$1/work" none "$root"
shift
for path in /dev /proc /sys "$@"; do
	mkdir -p "$root$path"
	mount --rbind "$path" "$root$path"
done
mkdir -p "$root/run/sudo" "$root/etc/apt/apt.conf.d"
printf '#!/bin/sh\\nexec "$@"\\n' >"$root/run/sudo/sudo"
chmod +x "$root/run/sudo/sudo"
echo 'APT::Get::Assume-Yes "true";' >"$root/etc/apt/apt.conf.d/99yes"
echo ready
read -r _
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory, data):
    """Yields a function: machine(directory) returns the start of a command that runs as root in a
    file system of its own. This file system has all files of the test's machine. Changes of files
    in the directory are real; all other changes are only in memory."""
    if os.getuid():
        pytest.skip("not root")
    held = {}

    def prefix(place, network=True):
        if place not in held:
            ours = tmp_path_factory.mktemp("machine")
            held[place] = ours, subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-euc", MACHINE, "sh",
                 ours, place, ROOT, data], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True)
            if held[place][1].stdout.readline() != "ready\n":
                pytest.skip(f"no file system of its own: {held[place][1].stderr.read()}")
        ours, holder = held[place]
        return [*(() if network else ("unshare", "--net")), "nsenter",
                f"--mount=/proc/{holder.pid}/ns/mnt", "chroot", f"{ours}/root", "env", "-C", place]
    yield prefix
    for _, holder in held.values():
        holder.stdin.close()
        holder.wait(SECONDS)


@pytest.fixture(scope="module")
def machines(copies, small):
    """Yields a function: machines(block) returns the machine of machines.py that runs the block, or
    None. A machine ends at the first block of another document, because its programs would slow
    down the tests after it."""
    made = {}

    def get(block):
        for key in [key for key in made if key[0] != block.path]:
            made.pop(key).close()
        kind, key = kind_of(block), (block.path, kind_of(block))
        if kind and key not in made:
            place = copies(block.path, kind in ("kubernetes", "slurm"))
            made[key] = MACHINES[kind](place, small)
        return made.get(key)
    yield get
    for machine in reversed(made.values()):
        machine.close()


@pytest.fixture(scope="module")
def a_run(tmp_path_factory, small, data):
    """Yields the checkpoint directory of a small run."""
    programs = Programs(tmp_path_factory.mktemp("a-run"), data)
    programs.train(1, "--model", "seed:4", "--epochs", 2, data=small)
    yield programs.directory / "ckpt"
    programs.close()


class Shell:
    """Runs the commands of a block in a directory."""

    def __init__(self, place, env, seconds, prefix=(), name=FAULT_TEST):
        self.place, self.env, self.beside = place, env, []
        self.prefix, self.name = prefix, name
        self.end = time.monotonic() + seconds
        self.ports = {"5555": str(free_port()), "8080": str(free_port())}

    def substituted(self, text):
        text = re.sub(r"\b(0\.0\.0\.0|SERVER)\b", "127.0.0.1", text)
        text = re.sub(r"^(taskset \S+ \S+ )?python3? ", rf"\1{sys.executable} ", text)
        text = re.sub(r"\bNAME(?='?$)", lambda _: self.name, text)
        text = re.sub(r"^cnn-ps(?!.*--bind)", "cnn-ps --bind tcp://127.0.0.1:5555", text)
        text = re.sub(r"& cnn-worker$", "& cnn-worker --server tcp://127.0.0.1:5555", text)
        for pattern, less in SHORTER:
            text = re.sub(pattern, less, text)
        return re.sub(r"(?<=:)(5555|8080)\b", lambda port: self.ports[port[1]], text)

    def start(self, command):
        """Start a program in a process group of its own, with its output in a file."""
        log = (self.place / f".block-{len(self.beside)}.log").open("w+")
        process = subprocess.Popen(
            [*self.prefix, "bash", "-c",
             f"exec {command}" if re.match(r"(build/release/)?cnn-[^&]*$", command) else command],
            cwd=self.place, env=self.env, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True)
        return process, command, log

    def waited(self, process, command, log, seconds):
        try:
            status = process.wait(max(seconds, 0.01))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            status = "none in time"
        log.seek(0)
        return status, f"`{command}`: exit status {status}\n{log.read()[-3000:]}"

    def left(self):
        return self.end - time.monotonic()

    def foreground(self, command, patience):
        """Run a command again and again until it succeeds. The test fails after `patience`
        seconds."""
        give_up = time.monotonic() + patience
        while True:
            status, report = self.waited(*self.start(command), self.left())
            if status == 0:
                return report
            assert time.monotonic() < min(give_up, self.end), report
            time.sleep(0.3)

    def workers_are_there(self):
        """Wait until all workers have loaded their data and connected: a `drain` does not reach a
        worker that has not connected."""
        for process, command, log in self.beside:
            while "/cnn-worker" in command and process.poll() is None:
                with open(log.name) as text:
                    if "worker connected" in text.read():
                        break
                assert self.left() > 0, f"`{command}` does not connect"
                time.sleep(0.05)

    def run(self, commands, stopped):
        """Run the commands of a block, and wait until the programs in the background exit. If
        `stopped` is true, first send SIGTERM to these programs."""
        try:
            for command in map(self.substituted, commands):
                if re.match(r"(\w+=\S+ )*(\S*/)?cnn-(ps|worker)\b[^&]*$", command):
                    self.beside.append(self.start(command))
                else:
                    self.workers_are_there()
                    self.foreground(command, 20 * PATIENCE if self.beside else 0)
            if stopped:
                self.workers_are_there()
            for process, _, _ in self.beside if stopped else ():
                if process.poll() is None:
                    process.terminate()
            for process, command, log in self.beside:
                status, report = self.waited(process, command, log, self.left())
                # a worker exits with 12 if the block drains the server
                assert status in ((0, 12) if "/cnn-worker" in command else (0,)), report
        finally:
            for process, _, log in self.beside:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
                    process.wait()
                log.close()


def environment(place, **more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CNN_", "MAKE", "MFLAGS"))}
    clean.pop("FLAVOUR", None)
    return {**clean, "PATH": f"{place}/build/release:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT / "worker/python"),
            **more}


def run_shell(block, copies, data, tmp_path, request):
    commands = block.commands()
    assert commands, f"{block.name}: no command"
    machine = request.getfixturevalue("machines")(block)
    if machine:
        machine.run(block, environment(machine.place))
        return
    if "make bundle" in block.text() and not shutil.which("nvcc", path=NVCC):
        pytest.skip("no nvcc")
    if "--draw" in block.text() and not shutil.which("gnuplot"):
        without("gnuplot", "deploy/setup.sh bench")
    seconds = SLOW_SECONDS if block.mark == "slow" else SECONDS
    as_root = block.mark == "slow" and a_slow_block_has_sudo(block.path)
    own_build = as_root or any(re.search(r"\bmake\b", c) for c in commands)
    place = copies(block.path, not own_build)
    env = environment(place, **{"CUDA": "0", "CNN_DATA": str(data)} if own_build else {})
    if "make bundle" in block.text():
        del env["CUDA"]
        env["CUDA_ARCHS"] = "90"
    text = block.text()
    if "~/" in text:
        env["HOME"] = str(tmp_path)
    if as_root:
        run_as_root(commands, text, place, env, request.getfixturevalue("machine"))
        return
    if commands[-1].endswith("release -- 'NAME'"):
        run_with_quarantine(commands, place, env)
        return
    stopped = block.mark == "stopped"
    if "--server" in text and "/cnn-ps" not in text:
        key = " --key keys/server.key" if "--key" in text else ""
        commands = [*(["build/release/cnn-ctl keygen keys"] if key else []),
                    f"build/release/cnn-ps --bind tcp://127.0.0.1:5555 --model seed:4{key}", *commands]
        stopped = True
    for name in set(re.findall(r"\brun[12]\b", text)) if "--checkpoint-dir" not in text else ():
        if not (place / name).exists():
            shutil.copytree(request.getfixturevalue("a_run"), place / name)
    Shell(place, env, seconds).run(commands, stopped)


def run_as_root(commands, text, place, env, machine):
    """Run a block in the file system of machine(place)."""
    env = {**env, "PATH": f"/run/sudo:{os.environ['PATH']}"}
    env.pop("PYTHONPATH")  # so that the block uses the Python package that it has installed
    start = machine(place, network="./needed/" not in text)
    if "worker.c" in text:
        # another directory, because the checkout already has a directory "worker"
        own = place / "build/own"
        own.mkdir(exist_ok=True)
        source = (ROOT / "worker/examples/line.c").read_text()
        (own / "worker.c").write_text(source.replace('"worker/client/cnnps.h"', "<cnnps.h>"))
        start = [*start, "env", "-C", own]
    if "--download-only" in text:
        commands = ["sudo apt-get remove -y '^cnn-ps$' '^libcnnps' '^python3-cnnps$' dataset-fashion-mnist",
                    *commands]
    Shell(place, env, SLOW_SECONDS, start).run(commands, False)


def run_with_quarantine(commands, place, env):
    """Run a block that releases a worker. Before the block runs, a server puts this worker in
    quarantine."""
    sys.path.append(str(ROOT / "tests/wire"))
    from client import Keys, exclude
    programs = Programs(place, None)
    try:
        keys = programs.keygen("second")
        server = programs.server("--model", "vector:64", "--key", keys / "server.key", directory=None)
        while not server.status()["quarantine"]:
            exclude(server.endpoint, name="worker", keys=Keys(keys / "second.key", keys / "server.pub"))
        shell = Shell(place, env, SECONDS, name=server.status()["quarantine"][0]["name"])
        shell.ports["5555"] = server.endpoint.rpartition(":")[2]
        shell.run(commands, False)
        assert server.status()["quarantine"] == []
    finally:
        programs.close()


def python_of(block, place, run):
    """Returns the Python that runs a block. A block that uses ONNX Runtime or Ray needs the Python
    of `deploy/setup.sh tools`. A block that uses ONNX Runtime reads the file that this function
    exports from the directory `run`."""
    if "import ray" in block.text():
        if not TOOLS.exists():
            without("Ray", "deploy/setup.sh tools")
        return TOOLS
    if "onnxruntime" not in block.text():
        return sys.executable
    if not TOOLS.exists():
        without("ONNX Runtime", "deploy/setup.sh tools")
    subprocess.run(command("cnn-ctl", "export", "--checkpoint", run, place / "weights.onnx"), check=True,
                   timeout=SECONDS)
    return TOOLS


def run_python(block, copies, tmp_path, request):
    for module, package in MODULES.items():
        if re.search(rf"import .*\b{module}\b", block.text()) and subprocess.run(
                [sys.executable, "-c", f"import {module}"], capture_output=True).returncode:
            without(package, "deploy/setup.sh")
    shim = tmp_path / "safetensors"
    shim.mkdir()
    (shim / "__init__.py").touch()
    (shim / "torch.py").write_text(
        "import importlib.util, pathlib, torch\n"
        f"spec = importlib.util.spec_from_file_location('own', {safetensors.__file__!r})\n"
        "own = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(own)\n"
        "def load_file(path):\n"
        "    return {n: torch.tensor(t) for n, t in own.load(pathlib.Path(path)).items()}\n")
    (tmp_path / "block.py").write_text(block.text())
    place = copies(block.path)
    python = python_of(block, place, request.getfixturevalue("a_run"))
    paths = [tmp_path, ROOT / "worker/python"]
    if "import ray" in block.text():
        paths.append("/usr/lib/python3/dist-packages")  # Debian's torch, and the numpy it was built with
    env = environment(place, PYTHONPATH=":".join(map(str, paths)), **RAY)
    done = subprocess.run([python, tmp_path / "block.py"], cwd=place, env=env, capture_output=True,
                          text=True, timeout=SLOW_SECONDS if block.mark == "slow" else SECONDS)
    assert done.returncode == 0, done.stderr


def run_c(block, tmp_path):
    programs = Programs(tmp_path, None)
    try:
        server = programs.server("--model", "vector:2", "--optimizer", "sgd", "--lr", 0.5,
                            "--max-updates", 1000)
        text = block.text().replace("tcp://127.0.0.1:5555", server.endpoint)
        (tmp_path / "block.c").write_text(C_PROGRAM.format(body=text))
        libraries = subprocess.run(
            ["pkg-config", "--libs", "libzmq", "libuv", "libprotobuf-c", "libxxhash"], check=True,
            capture_output=True, text=True).stdout.split()
        done = subprocess.run(
            ["gcc", "-std=gnu11", "-Wall", "-Werror", f"-I{ROOT}", "-o", tmp_path / "block",
             tmp_path / "block.c", BUILD / "libcnnps.a", *libraries, "-lm", "-pthread"],
             capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        program = programs.add(Process("block", [str(tmp_path / "block")]))
        assert program.wait(SECONDS) == 0, program.tail()
        assert server.result(SECONDS)["updates"] == 1000
    finally:
        programs.close()


@pytest.mark.parametrize("block", runnable())
def test_a_documented_command_runs_as_it_is_typed(block, copies, data, tmp_path, request):
    if block.language == "python":
        run_python(block, copies, tmp_path, request)
    elif block.language == "c":
        run_c(block, tmp_path)
    else:
        run_shell(block, copies, data, tmp_path, request)


def history_epochs(directory):
    """Returns the epochs in the history of a run. The last line may be incomplete, because the
    server may still be writing it."""
    file = directory / "history.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [o["epoch"] for o in map(json.loads, lines) if o["kind"] == "epoch"]


@pytest.mark.xdist_group("document tutorial.md")
def test_the_server_of_the_tutorial_can_be_killed(copies, data, tmp_path, request):
    """Below its commands, the tutorial says that the server can be killed. This test runs the
    commands, and kills the server with kill -9 in the middle of the training."""
    arrays, convert, train = blocks(ROOT / "docs/tutorial.md")[:3]
    place = copies(arrays.path)
    if not (place / "shapes").exists():
        run_python(arrays, copies, tmp_path, request)
        run_shell(convert, copies, data, tmp_path, request)
    shell = Shell(place, environment(place), SECONDS)
    server, *workers = [shell.substituted(c).replace("run1", "killed") for c in train.commands()]
    assert "cnn-ps" in server and len(workers) == 2
    first, *fleet = [shell.start(c) for c in (server, *workers)]
    fleet.insert(0, first)
    try:
        while len(history_epochs(place / "killed")) < 2:
            assert shell.left() > 0 and first[0].poll() is None
            time.sleep(0.02)
        os.killpg(first[0].pid, 9)
        fleet[0] = shell.start(server)
        for one in fleet:
            status, report = shell.waited(*one, shell.left())
            assert status == 0, report
    finally:
        for process, _, _ in (first, *fleet):
            if process.poll() is None:
                os.killpg(process.pid, 9)
    assert history_epochs(place / "killed") == list(range(1, 11))


def test_the_parts_of_the_gpu_tests_are_all_gpu_tests(data):
    """The commands of the block with tests/gpu/run in docs/gpu.md need a GPU, so
    tests/gpu/test_gpu_documents.py runs them. This test only lists the tests that each command
    chooses: each GPU test must be in exactly one part."""
    [block] = [block for block in blocks(ROOT / "docs/gpu.md") if "tests/gpu/run -n" in block.text()]
    parts = block.text().count("tests/gpu/run")
    listed = run_script(block.text(), ROOT, environment(
        ROOT, CNN_DATA=str(data), PYTHON=sys.executable, PYTEST_ADDOPTS="--collect-only"),
        parts * SECONDS)
    tests = re.findall(r"^tests/gpu/\S.*::.*$", listed, re.M)
    found = re.findall(r"^(\d+)/(\d+) tests collected", listed, re.M)
    assert len(found) == parts > 1, listed
    assert len(tests) == len(set(tests)) == int(found[0][1]), "each test once"
    assert sum(int(chosen) for chosen, _ in found) == len(tests)


@pytest.mark.parametrize("text, words", [
    ("```json\n{}\n```", "cannot be run"),
    ("<!-- a comment -->\n```json\n{}\n```", "cannot be run"),
    ("<!-- not run: needs a printer -->\n```json\n{}\n```", "cannot be run"),
    ("<!-- stopped: -->\n```\nx\n```", "no reason"),
    ("<!-- slow: long -->\n```\nx\n```", "no reason"),
    ("<!-- gpu: card -->\n```\nx\n```", "no reason"),
    ("```\nx\n", "no end"),
], ids=["language", "other comment", "not run", "no reason", "one word", "GPU", "no end"])
def test_a_block_that_is_neither_run_nor_marked_is_refused(text, words, tmp_path):
    with pytest.raises(Wrong, match=words):
        blocks(tmp_path / "a.md", text)


def test_a_reason_names_tests_that_are_there():
    named = [(block.name, test) for path in DOCUMENTS for block in blocks(path)
             for test in re.findall(r"\b(?:tests|deploy)/[\w./-]+\w", block.reason)]
    assert named and not [(name, test) for name, test in named if not (ROOT / test).exists()]


@pytest.mark.parametrize("mark, heading", [
    ("slow", "`make documents` runs these, which take long:"),
    ("gpu", "`make gpu-test` runs these on a GPU:"), ("ci", "`.ci/run` has these itself:")])
def test_readers_see_which_commands_are_not_run(mark, heading):
    """A comment with a mark is invisible on the page, so docs/README.md lists the reasons."""
    text = (ROOT / "docs/README.md").read_text().partition(heading)[2]
    items = re.match(r"\n\n((?:[*] .*\n(?:  .*\n)*)*)", text)[1]
    listed = {re.search(r"\((\S+)\)", item)[1]: " ".join(item.replace("`", "").lower().split())
              for item in re.split(r"^[*] ", items, flags=re.M)[1:]}
    marked = {}
    for path in DOCUMENTS:
        for block in blocks(path):
            if block.mark == mark:
                marked.setdefault(os.path.relpath(path, ROOT / "docs"), set()).add(block.reason.lower())
    assert sorted(listed) == sorted(marked)
    for page, reasons in marked.items():
        sentences = listed[page].partition("): ")[2].removesuffix(".").split(". ")
        assert sorted(sentences) == sorted(reasons), page
        parts = re.split(r"[.;] ", ". ".join(sentences))
        assert sorted(parts) == sorted(set(parts)), f"{page} repeats a reason"


def test_ci_has_the_commands_with_the_mark_ci():
    """The block with the mark `ci` runs all tests, so a test cannot run it. .ci/run begins with the
    first command of the block, and ends with its last command."""
    [[command]] = [block.commands() for path in DOCUMENTS for block in blocks(path)
                   if block.mark == "ci"]
    first, last = command.split(" && ")
    parts = [line.split(" ", 2)[2] for line in (ROOT / ".ci/run").read_text().splitlines()
             if line.startswith("part ")]
    assert parts[0] == first
    end = (ROOT / ".ci/run").read_text().splitlines()[-1]
    assert re.fullmatch(rf"exec deploy/docker_engine.sh timeout( -\S+| \d+)* {last}", end), end


def test_a_copy_has_every_source_file(tmp_path):
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "common", "proto", "server", "worker", "kernels"],
                             capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not in a checkout of git")
    place = copy(tmp_path / "cnn-ps")
    assert not [file for file in tracked.stdout.split() if not (place / file).exists()]


def test_a_copy_lacks_the_directories_of_a_reader_of_the_documents(tmp_path, monkeypatch):
    """A reader of the tutorial makes the directories `made` in the checkout. A copy must not have
    them, because the commands that run in the copy make them again."""
    made = {"run1", "run2", "keys", "arrays", "shapes"}
    for name in made:
        (tmp_path / "checkout" / name).mkdir(parents=True)
    monkeypatch.setitem(globals(), "ROOT", tmp_path / "checkout")
    assert list(copy(tmp_path / "cnn-ps").iterdir()) == []


def test_every_document_is_read():
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "*.md"], capture_output=True, text=True,
                             check=False)
    if tracked.returncode:
        pytest.skip("not in a checkout of git")
    assert sorted(tracked.stdout.split()) == sorted(str(p.relative_to(ROOT)) for p in DOCUMENTS)


def test_marks_and_commands_of_a_block():
    first, second = blocks(ROOT / "a.md", "<!-- gpu: needs a GPU -->\n\n```\na b # c\n```\n"
                                          "between\n```\nx --y=1 \\\n\t--z  # why\n# alone\nw#v\n```\n")
    assert (first.mark, first.reason, first.language) == ("gpu", "needs a GPU", "")
    assert second.mark == "", "a mark belongs to the next block only"
    assert second.commands() == ["x --y=1  \t--z", "w#v"]


def test_text_and_configuration_need_no_mark():
    found = blocks(ROOT / "a.md", "```text\nx --> y\n```\n```yaml\na: 1\n```\n"
                                  "<!-- stopped: it would wait -->\n```\nx\n```\n")
    assert [(b.language, b.mark) for b in found] == [("text", ""), ("yaml", ""), ("", "stopped")]


def is_there(word):
    """Returns True if `word` is a file of the checkout, a pattern that matches files, or a program
    that the Makefile builds from a .c file or a mutant. In `word`, NAME stands for any name."""
    built = re.fullmatch(r"build/release/(.*)", word)
    if built and built[1].startswith("mutants/"):
        return any((ROOT / "tests/sim").glob(built[1].replace("NAME", "*") + ".patch"))
    if built:
        return built[1].startswith("cnn-") or (ROOT / f"{built[1]}.c").exists()
    return any(ROOT.glob(word))


@pytest.mark.parametrize(
    # CHANGELOG.md is excluded, because it names files of old releases.
    "path", [path for path in DOCUMENTS if path.name != "CHANGELOG.md"],
    ids=lambda path: str(path.relative_to(ROOT)))
def test_files_named_in_the_text_are_there(path):
    text = re.sub(r"^\s*```.*?^\s*```", "", path.read_text(), flags=re.M | re.S)
    words = {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(
        r"(?:^|\s)((?:build/release|tests|deploy|kernels|server|worker|common|proto)/[\w./*-]*\w)",
        code)}
    assert not [word for word in sorted(words) if not is_there(word)]


def test_faults_names_tests_that_exist():
    page = (ROOT / "docs/faults.md").read_text()
    files = {"e2e": "tests/e2e/test_durability.py", "wire": "tests/wire/test_data_set.py"}
    found = re.findall(r"^\* `([a-z]\w+)[^`]*`(?::| \((?:unit )?(\w+)\)$)", page, re.M)
    assert len(found) > 60
    injected = "".join(file.read_text() for file in (ROOT / "tests/fault").glob("test_*.py"))
    for name, where in found:
        file = ROOT / files.get(where, f"tests/unit/test_{where}.c")
        text = injected if where in ("", "fault") else file.read_text()
        assert re.search(rf"{name}[(]|\bTEST(_IN)?[(]{name}\b", text), name


def test_each_attack_has_tests_that_name_it():
    """In docs/faults.md, each attack lists its tests. The file of each listed test must name the
    attack."""
    page = (ROOT / "docs/faults.md").read_text()
    attacks = re.findall(r"^### (A\d+): .*\n((?:(?!#).*\n)*)", page, re.M)
    assert [number for number, _ in attacks] == [f"A{n}" for n in range(1, 24)]
    injected = sorted((ROOT / "tests/fault").glob("test_*.py"))
    for number, section in attacks:
        tests = re.findall(r"^\* `(\w+)` \((\w+) ?(\w*)\)$", section, re.M)
        assert tests and len(tests) == section.count("\n* "), number
        for name, folder, module in tests:
            files = [file for file in (ROOT / f"tests/{folder}").glob(f"test_{module}.*")
                     ] if module else injected
            texts = [text for text in (file.read_text() for file in files) if re.search(
                rf"def test_{name}[(]|\bTEST(_IN)?[(]{name}\b", text)]
            assert texts and re.search(rf"\b{number}\b", texts[0]), (number, name)


def test_security_names_tests_that_exist():
    page = (ROOT / "docs/security.md").read_text()
    named = re.findall(r"`(\w+)`\s+\((unit|wire|e2e|fault)\s+(\w+)\)", page)
    assert len(named) > 40
    for name, folder, module in named:
        file = ROOT / f"tests/{folder}/test_{module}.{'c' if folder == 'unit' else 'py'}"
        assert re.search(rf"def test_{name}[(]|\bTEST(_IN)?[(]{name}\b", file.read_text()), name


def test_faults_lists_every_mutant_and_its_test():
    """docs/faults.md must list each mutant with the test that the first line of the mutant
    names."""
    page = (ROOT / "docs/faults.md").read_text().partition("## Mutants\n")[2]
    listed = re.findall(r"^\| `([\w-]+)` \| `(\w+)` \|$", page, re.M)
    found = []
    for patch in (ROOT / "tests/mutants").glob("*.patch"):
        file, test = re.match(r"# found by (\S+): (\w+)\n", patch.read_text()).groups()
        assert re.search(rf"def {test}[(]|\bTEST(_IN)?[(]{test}\b", (ROOT / file).read_text()), test
        found.append((patch.stem, test))
    assert sorted(listed) == sorted(found)


def test_troubleshooting_quotes_messages_of_the_programs():
    """In docs/troubleshooting.md, each heading is a part of a string in the sources, of the script of
    the page, or a message of the operating system."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r"^### `(.*)`$", page, re.M)
    assert len(quoted) > 10
    folders = ("common", "proto", "kernels", "server", "worker")
    sources = "".join(file.read_text() for folder in folders
                      for file in sorted((ROOT / folder).rglob("*.[ch]")))
    sources = re.sub(r'"\s*\n\s*"', "", sources)
    strings = "\n".join(re.findall(r'"(?:[^"\\\n]|\\.)*"', sources))
    strings += (ROOT / "server/monitor/page/live.js").read_text()
    system = {os.strerror(number) for number in range(1, 40)}
    assert [text for text in quoted if text not in strings and text not in system] == []


def test_readme_lists_every_exit_status():
    """The README must list all exit statuses of common/err.h. Status 1 is for all errors that have
    no status of their own."""
    rows = re.findall(r"^\tX\(\w+, -?\d+, (\d+), \"", (ROOT / "common/err.h").read_text(), re.M)
    table = re.findall(r"^\| (\d+) \| \w", (ROOT / "README.md").read_text(), re.M)
    assert table == [str(n) for n in sorted({int(n) for n in rows})]


def test_variables_of_the_containers_are_documented():
    passed = re.findall(r"CNN_\w+", " ".join(re.findall(
        r"environment: \[(.*?)\]", (ROOT / "deploy/compose.yaml").read_text(), re.S)))
    text = (ROOT / "docs/cluster.md").read_text()
    assert passed and not [name for name in passed if f"`{name}`" not in text]
