"""Starts clusters of containers for the fault tests, from the unchanged deploy/compose.yaml.

The image contains the programs of this build, so that the tests need not compile them again in the
stage `runtime` of deploy/Dockerfile. The names of all images, containers and networks of a test
contain the test's process id, and close() removes them.
"""
import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np

from support import safetensors
from support.build import BUILD, PATIENCE, ROOT
from support.ledger import LEDGER
from support.programs import until

FILES = ("deploy/compose.yaml", "tests/fault/small_disk.yaml")
PROGRAMS = ("cnn-ps", "cnn-worker", "cnn-ctl", "tests/tools/ledger_worker")
SOON = 60 * PATIENCE
# a directory with one file for each process that uses the base image
HOLDERS = ROOT / "build/docker/base"
KEYS = "/keys/worker.key"
SERVER = "tcp://server:5555"
# the security options that deploy/compose.yaml sets for workers
CONFINED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true",
            "--memory", "1g", "--memory-swap", "1g", "--pids-limit", "640")


class NoEngine(Exception):
    """Raised if this machine cannot run containers. The text of the exception gives the reason."""


def call(argv, seconds=120, check=True, **how):
    done = subprocess.run([str(a) for a in argv], cwd=ROOT, capture_output=True, text=True,
                          timeout=seconds, **how)
    assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done


def docker(*argv, **how):
    return call(["docker", *argv], **how).stdout.strip()


def inspect(container, what):
    return docker("inspect", "--format", "{{%s}}" % what, container)


# ---- images --------------------------------------------------------------------------------------


def _needs():
    """Raise NoEngine if this machine cannot run containers with the programs of this build."""
    if not shutil.which("docker"):
        raise NoEngine("no docker")
    try:
        if call(["docker", "info"], seconds=20, check=False).returncode:
            raise NoEngine("no Docker engine answers")
    except subprocess.TimeoutExpired:
        raise NoEngine("the Docker engine does not answer") from None
    compose_command()
    with open("/etc/os-release") as file:
        if "bookworm" not in file.read():
            raise NoEngine("this build's programs need the libraries of Debian 12")


def compose_command():
    for argv in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(argv[0]) and call([*argv, "version"], check=False).returncode == 0:
            return argv
    raise NoEngine("neither 'docker compose' nor docker-compose")


@contextlib.contextmanager
def _lock():
    """Hold the lock that protects the base image: all processes of pytest share one base image."""
    HOLDERS.mkdir(parents=True, exist_ok=True)
    with (HOLDERS / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Images:
    """Makes two images with the same programs: .first and .second. Several processes may make
    images at the same time: the first process makes the base image that all share, and the last
    process removes it."""

    def __init__(self, directory):
        _needs()
        name = f"cnn-test-{os.getpid()}"
        self.first, self.second, self.runtime = f"{name}:first", f"{name}:second", f"{name}:runtime"
        self.base = None
        try:
            with _lock():
                self._build(directory)
        except (AssertionError, subprocess.TimeoutExpired) as no:
            self.close()
            raise NoEngine(f"no image can be built: {' '.join(str(no).split())[-200:]}") from None
        except BaseException:
            self.close()
            raise

    def _build(self, directory):
        for name in PROGRAMS:
            shutil.copy(BUILD / name, directory)
        files = " ".join(os.path.basename(p) for p in PROGRAMS)
        before = docker("images", "--format", "{{.Repository}}:{{.Tag}}").split()
        base = call(["deploy/base_image.sh"], seconds=300).stdout.strip()
        if base not in before or self._others():
            self.base = base
            (HOLDERS / str(os.getpid())).touch()
        docker("build", "-q", "-f", "deploy/Dockerfile", "--target", "runtime",
               "--build-arg", f"BASE={base}", "-t", self.runtime, ".", seconds=300)
        for tag in (self.first, self.second):
            text = f"FROM {self.runtime}\nCOPY {files} /usr/local/bin/\nLABEL cnn-ps.test={tag}\n"
            (directory / "Dockerfile").write_text(text)
            docker("build", "-q", "-t", tag, directory)

    def _others(self):
        """Returns True if another process still uses the base image, so that this process must not
        remove it."""
        alive = set()
        for file in HOLDERS.glob("[0-9]*"):
            if Path(f"/proc/{file.name}").exists():
                alive.add(int(file.name))
            else:
                file.unlink()
        return bool(alive - {os.getpid()})

    def close(self):
        for tag in (self.first, self.second, self.runtime):
            docker("image", "rm", tag, check=False)
        with _lock():
            (HOLDERS / str(os.getpid())).unlink(missing_ok=True)
            if self.base and not self._others():
                docker("image", "rm", self.base, check=False)


# ---- clusters ------------------------------------------------------------------------------------


class Cluster:
    """A cluster of one server and `size` workers, to which a test applies faults."""

    def __init__(self, name, images, data, size, env):
        self.project = f"cnn-{name}-{os.getpid()}"
        self.compose_argv = compose_command()
        self.images = images
        self.size = size
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CNN_", "COMPOSE_"))}
        self.env = dict(clean, COMPOSE_PROJECT_NAME=self.project, CNN_IMAGE=images.first,
                        CNN_IMAGES=str(data), CNN_DEAD_MS="2000", CNN_CHECKPOINT_MS="50")
        self.env.update({k: str(v) for k, v in env.items()})
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def compose(self, *argv, **how):
        files = [word for f in FILES for word in ("-f", f)]
        return call([*self.compose_argv, *files, *argv], env=self.env, **how).stdout

    def containers(self, service, *flags):
        return docker("ps", "-q", "--no-trunc", *flags, "--filter",
                      f"label=com.docker.compose.project={self.project}", "--filter",
                      f"label=com.docker.compose.service={service}").split()

    @property
    def network(self):
        return f"{self.project}_cluster"

    @property
    def server(self):
        return self.containers("server", "-a")[0]

    @property
    def holder(self):
        return self.containers("holder")[0]

    def status(self):
        """Returns the status of the server, or None if the server does not answer."""
        done = call(["docker", "exec", self.server, "cnn-ctl", "--key", "/keys/observer.key",
                     "status"], check=False, seconds=30)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def ask(self, key):
        return until(self.status, SOON, "the server answers")[key]

    def at_work(self):
        """Wait until all workers are live and the server has applied more pushes than there are
        workers."""
        self.ask("state")

        def complete():
            s = self.status()
            return s and s["live_workers"] == self.size and s["state"] != "waiting" and s
        begun = until(complete, SOON, f"{self.size} workers are there")
        assert begun["state"] == "training", f"{begun['state']}: the run ended before the faults"
        until(lambda: (self.status() or begun)["version"] > begun["version"] + self.size, SOON,
              "updates are applied")

    def goes_on(self):
        """Wait until the server has applied another push, from any worker."""
        version = self.ask("version")
        until(lambda: (self.status() or {"version": 0})["version"] > version, SOON,
              "the others go on")

    def logs(self):
        said = (call(["docker", "logs", "--tail", "12", c], check=False)
                for c in [self.server, *self.workers("-a")])
        return "\n".join(s.stderr + s.stdout[-200:] for s in said)

    def unlisted_worker(self, *options, prepare="true"):
        """Run a worker whose key is not in authorized_keys, or a worker without a key. Returns its
        exit status and its output."""
        script = f"{prepare} && exec cnn-worker --server {SERVER} --data /data --threads 1 \"$@\""
        done = call(["docker", "run", "--rm", *CONFINED, "--network", self.network, "-v",
                     f"{self.project}_worker-keys:/keys:ro", "-v",
                     f"{self.env['CNN_IMAGES']}:/data:ro", self.images.first, "sh", "-euc", script,
                     "sh", *options], check=False)
        return done.returncode, done.stderr

    def close(self):
        self.compose("down", "--volumes", "--timeout", "1", check=False)


class Training(Cluster):
    """A cluster whose workers train. docker-compose starts the workers."""

    def start(self):
        self.compose("up", "-d", "--scale", f"worker={self.size}")
        self.at_work()

    def workers(self, *flags):
        return self.containers("worker", *flags)

    def scale(self, n):
        self.size = n
        self.compose("up", "-d", "--no-deps", "--scale", f"worker={n}", "worker")

    def replace_workers(self):
        self.compose("up", "-d", "--no-deps", "--scale", f"worker={self.size}", "worker")

    def ends_an_epoch(self):
        epoch = self.ask("training_epoch")
        until(lambda: (self.status() or {"training_epoch": 0})["training_epoch"] > epoch, SOON,
              "an epoch ends")

    def result(self, seconds=600):
        """Wait until the server exits with 0. Returns its final JSON line."""
        code = docker("wait", self.server, seconds=seconds)
        assert code == "0", self.logs()
        said = call(["docker", "logs", self.server]).stdout.splitlines()
        return json.loads(said[-1])


class Ledger(Cluster):
    """A cluster whose workers push the ledger gradient. Each worker has its own coordinates."""

    PUSHES, MAX_WORKERS, PACE = 6000, 5, 20

    def __init__(self, name, images, data, size, env):
        plain = {"CNN_" + option[2:].upper().replace("-", "_"): value
                 for option, value in zip(LEDGER[::2], LEDGER[1::2])}
        plain["CNN_MODEL"] = f"vector:{self.PUSHES * self.MAX_WORKERS}"
        super().__init__(name, images, data, size, dict(plain, **env))

    def name(self, index):
        return f"{self.project}-ledger-{index}"

    def run(self, index):
        docker("run", "-d", "--name", self.name(index), *CONFINED, "--restart", "on-failure",
               "--network", self.network, "-v", f"{self.project}_worker-keys:/keys:ro",
               self.env["CNN_IMAGE"], "ledger_worker", SERVER, index, self.PUSHES, self.PACE, 8,
               KEYS)

    def start(self):
        self.compose("up", "-d", "--scale", "worker=0")
        for i in range(self.size):
            self.run(i)
        self.at_work()

    def workers(self, *flags):
        return docker("ps", "-q", "--no-trunc", *flags, "--filter",
                      f"name={self.project}-ledger-").split()

    def scale(self, n):
        there = docker("ps", "-a", "--format", "{{.Names}}").split()
        for i in range(self.size, n):
            if self.name(i) in there:
                docker("start", self.name(i))
            else:
                self.run(i)
        for i in range(n, self.size):
            docker("stop", self.name(i))
        self.size = n

    def replace_workers(self):
        for i in range(self.size):
            docker("stop", self.name(i))
            docker("rm", self.name(i))
            self.run(i)

    def tally(self, file):
        """Drain the server. Returns the numbers (pushes applied, acknowledged pushes lost, pushes
        applied twice)."""
        self.compose("stop", "server")
        docker("exec", self.holder, "cnn-ctl", "export", "--checkpoint", "/checkpoints",
               "/dev/shm/w.safetensors")
        with file.open("wb") as out:
            subprocess.run(["docker", "exec", self.holder, "cat", "/dev/shm/w.safetensors"],
                           stdout=out, check=True, timeout=60)
        weights = safetensors.flat(file).reshape(self.MAX_WORKERS, self.PUSHES)
        lost = twice = 0
        for index, row in enumerate(weights):
            done = int((row != 0).sum())
            gaps = int((row[:done] == 0).sum())
            lost += max(gaps, self.acknowledged(index) - done)
            twice += int((row < -1).sum())
            assert not np.setdiff1d(row, [0, -1, -2]).size
        return int((weights != 0).sum()), lost, twice

    def acknowledged(self, index):
        said = call(["docker", "logs", self.name(index)], check=False).stdout
        return max([int(n) for n in re.findall(r"acked (\d+)$", said, re.M)], default=0)

    def close(self):
        for container in self.workers("-a"):
            docker("rm", "-f", container, check=False)
        super().close()


# ---- memory --------------------------------------------------------------------------------------


def used(container):
    """Returns the memory use of the container in bytes, as the container's control group counts
    it."""
    return int(docker("exec", container, "sh", "-c", "cat /sys/fs/cgroup/memory.current "
                      "/sys/fs/cgroup/memory/memory.usage_in_bytes 2>/dev/null | head -n 1"))


def run_out_of_memory(container):
    """Limit the container's memory to 4 MiB more than it uses now. Then write a larger file to its
    /dev/shm, so that the kernel kills a process."""
    before, begun = int(inspect(container, ".RestartCount")), int(time.time())
    limit = used(container) + (4 << 20)
    docker("update", "--memory", limit, "--memory-swap", limit, container)
    docker("exec", container, "sh", "-c", "head -c 60M /dev/zero >/dev/shm/fill", check=False)
    until(lambda: int(inspect(container, ".RestartCount")) > before, SOON, "it is started again")
    # Docker refuses this update while it restarts the container, so the update is repeated. Until
    # the update succeeds, the container has the small limit.
    more = ["docker", "update", "--memory", "1g", "--memory-swap", "1g", container]
    until(lambda: call(more, check=False).returncode == 0, SOON, "it has its memory again")
    events = docker("events", "--since", begun, "--until", int(time.time()) + 1, "--filter",
                    f"container={container}", "--filter", "event=oom")
    assert events, "it ended, but not for lack of memory"
