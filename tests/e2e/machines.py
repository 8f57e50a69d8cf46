"""Machines on which test_documents.py runs blocks that need more than a checkout: a Docker engine, a
Slurm cluster, a stand-in for a Kubernetes cluster, and a Debian with systemd and the packages of
`make deb`.

A machine runs the blocks of a document in order, each as one script, so that variables and the
working directory stay the same from one line of the block to the next. Before it runs a block, it
runs the earlier blocks of the document that need the same machine. After each block, the machine
checks the results of the block's commands. The machines train on a tenth of the data set. If a run
would end on this tenth while its block still needs it, the machine gives the run more epochs than
the document does.
"""
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from documents import blocks
from support.build import BUILD, PATIENCE, ROOT, without
from support.kubectl import kubectl
from support.programs import Programs, until

sys.path.append(str(ROOT / "tests/fault"))
from slurm_cluster import NoSlurm, Slurm  # noqa: E402

SECONDS = 1800 * PATIENCE
SOON = 120 * PATIENCE
INDEX = "batch.kubernetes.io/job-completion-index"  # label of a worker of an indexed Job


def run(*argv, seconds=SECONDS, check=True, **how):
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=seconds, check=False, **how)
    assert not check or done.returncode == 0, f"{argv}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def run_script(text, place, env, seconds, keys="", prefix=()):
    """Run the commands of a block as one script, which ends at the first command that fails. Returns
    its output. With `keys` the script has a terminal, at which these keys are typed once a
    second. `prefix` is a command whose further arguments are the command line of the script."""
    argv = [*prefix, "bash", "-euo", "pipefail", "-c", text]
    if keys:
        argv = ["script", "-qefc", shlex.join(argv), "/dev/null"]
    log = tempfile.TemporaryFile("w+", errors="replace")
    process = subprocess.Popen(argv, cwd=place, env=env, text=True, stdout=log,
                               stdin=subprocess.PIPE if keys else subprocess.DEVNULL,
                               stderr=subprocess.STDOUT, start_new_session=True)
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(1 if keys else 0.1)
        try:
            if keys:
                process.stdin.write(keys)
                process.stdin.flush()
        except BrokenPipeError:
            pass
    status = process.poll()
    try:
        os.killpg(process.pid, signal.SIGKILL)  # also ends processes that the script left running
    except ProcessLookupError:
        pass
    process.wait()
    log.seek(0)
    output = log.read()
    assert status == 0, f"exit status {status}\n{text}\n{output[-5000:]}"
    return output


class Machine:
    """Runs the blocks of a document that need this machine: the blocks whose text matches the
    regular expression `needs`."""
    needs = "$^"

    def __init__(self, place):
        self.place, self.done = place, []

    def run(self, block, env):
        ours = [one for one in blocks(block.path)
                if not one.language and re.search(self.needs, one.text())]
        for one in ours:
            if one.line <= block.line and one.line not in self.done:
                self.run_block(one, env)
                self.done.append(one.line)
        if block.line == ours[-1].line:
            self.stop()

    def stop(self):
        """End the programs that still run after the last block of the document."""

    def close(self):
        pass


# ---- Docker ------------------------------------------------------------------------------------


def docker(*argv, **how):
    return run("docker", *argv, **how).strip()


def base_image():
    """Returns the name of a container image of a fresh Debian."""
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no containers: no Docker engine answers")
    return run(ROOT / "deploy/base_image.sh").strip()


class Engine(Machine):
    """A Docker engine with a registry. The image of deploy/base_image.sh gets the name of the
    public image, PUBLIC, and trusts the certificates that the administrator of this machine has
    added. In a block, the test replaces SERVER by the address at which containers reach the
    engine's own machine, and registry.example by the address of the local registry. On the terminal
    of a block, the test types the key that ends `cnn-ctl top`."""
    needs = r"\bdocker\b|make cluster"
    PUBLIC = "debian:bookworm-slim"
    CERTIFICATES = "/usr/local/share/ca-certificates"
    REGISTRY = r"""FROM debian:bookworm-slim
RUN apt-get update -q && apt-get install -q -y --no-install-recommends docker-registry
RUN printf 'version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: /var/lib/docker-registry\nhttp:\n  addr: :5000\n' >/etc/own.yml
CMD ["docker-registry", "serve", "/etc/own.yml"]
"""
    KINDS = {"container": ("ps", "-aq"), "image": ("images", "-q"), "volume": ("volume", "ls", "-q"),
             "network": ("network", "ls", "-q")}

    def __init__(self, place, small):
        super().__init__(place)
        base = base_image()
        self.base = docker("inspect", "-f", "{{.Id}}", base), base
        self.before = {kind: self.list(kind) for kind in self.KINDS}
        shutil.copytree(self.CERTIFICATES, place.parent / "base/certificates")
        self.build("base", self.PUBLIC,
                   f"FROM {base}\nCOPY certificates {self.CERTIFICATES}\n")
        # a copy that everybody may read, because the containers read the images as another user
        self.images = place.parent / "images"
        shutil.copytree(small, self.images)
        self.images.chmod(0o755)
        (place / "data").mkdir(exist_ok=True)
        (place / "data/mnist").unlink(missing_ok=True)
        (place / "data/mnist").symlink_to(self.images)
        self.registry = None

    def list(self, kind):
        return set(docker(*self.KINDS[kind]).split())

    def build(self, name, tag, text):
        folder = self.place.parent / name
        folder.mkdir(exist_ok=True)
        (folder / "Dockerfile").write_text(text)
        docker("build", "-q", "-t", tag, folder)

    def start_registry(self):
        if not self.registry:
            self.build("registry", "cnn-ps-registry", self.REGISTRY)
            name = docker("run", "-d", "-p", "127.0.0.1::5000", "cnn-ps-registry")
            self.registry = docker("port", name, "5000").splitlines()[0]
        return self.registry

    def run_block(self, block, env):
        text = block.text()
        if "registry.example" in text:
            text = text.replace("registry.example", self.start_registry())
            # compile only for one kind of GPU, which takes less time
            text = text.replace("CUDA=1", "CUDA=1 --build-arg CUDA_ARCHS=90")
        if "SERVER" in text:
            gateway = "{{(index .IPAM.Config 0).Gateway}}"
            text = text.replace("SERVER", docker("network", "inspect", "-f", gateway, "bridge"))
        env = {**env, "CNN_DATA": str(self.images), "KEEP_IMAGES": "1",
               "COMPOSE_PROJECT_NAME": "cnn-documents"}
        # give the runs enough epochs that they do not end during the block
        if "docker-compose" in text:
            env["CNN_EPOCHS"] = "10000"
        text = text.replace("docker run -d ", "docker run -d -e CNN_EPOCHS=10000 ")
        run_script(text, self.place, env, SECONDS, keys="q")
        self.check(text)

    def check(self, text):
        def log(words):
            until(lambda: words in "".join(run("sh", "-c", f"docker logs {c} 2>&1") for c in
                                           self.list("container") - self.before["container"]),
                  SOON, words)
        if "export" in text:
            assert (self.place / "w.safetensors").stat().st_size > 1000
        if "docker push" in text:
            tags = run("curl", "-sf", f"http://{self.registry}/v2/cnn-ps/tags/list")
            assert '"v1"' in tags and '"cuda"' in tags
        if "cnn-worker" in text:
            log("worker connected")
        if "kill -s HUP" in text:
            log("auth list_read")

    def stop(self):
        left = self.list("container") - self.before["container"]
        if left:
            docker("rm", "-f", *left)
            self.registry = None

    def close(self):
        docker("rmi", self.PUBLIC, check=False)
        docker("tag", *self.base, check=False)
        for kind in self.KINDS:
            # an image can be removed only after the images that are built on it
            while left := self.list(kind) - self.before[kind]:
                docker(kind, "rm", "-f", *left, check=False)
                if self.list(kind) - self.before[kind] == left:
                    break


# ---- Slurm -------------------------------------------------------------------------------------


class Cluster(Machine):
    """A Slurm cluster of one node, whose GPUs are plain files, so that the workers use the CPUs.
    The first job has the number 17, as in the document."""
    needs = "sbatch|run-17"

    def __init__(self, place, data):
        super().__init__(place)
        self.programs = Programs(place, data)
        # in /tmp, because the path of munge's socket must be short
        self.home = Path(tempfile.mkdtemp(prefix="slurm"))
        self.home.chmod(0o755)
        self.slurm = Slurm.__new__(Slurm)
        try:
            self.slurm.__init__(self.programs, self.home, gpus=12, first_job=17)
        except NoSlurm as no:
            self.close()
            pytest.skip(str(no))

    def run_block(self, block, env):
        run_script(block.text(), self.place, {
            **env, **self.slurm.env, "RUN_HOST": "127.0.0.1", "CNN_THREADS": "1"}, SOON)
        text = block.text()
        if "train.sbatch" in text:
            until(lambda: "worker connected" in self.output("17"), SOON, "workers in the job")
            until(lambda: (self.place / "run-17/address").exists(), SOON, "the server's address")
        if "workers.sbatch" in text:
            until(lambda: "worker connected" in self.output("18_*"), SOON, "workers of the array")
            until(lambda: "18_7" not in self.slurm("squeue", "-hro", "%i").split(), SOON,
                  "the end of element 7")

    def output(self, job):
        return "".join(f.read_text(errors="replace") for f in self.place.glob(f"slurm-{job}.out"))

    def close(self):
        if hasattr(self.slurm, "daemons"):
            self.slurm.close()
        self.programs.close()
        shutil.rmtree(self.home, ignore_errors=True)


# ---- Kubernetes --------------------------------------------------------------------------------


class Kubernetes(Machine):
    """A stand-in for a Kubernetes cluster (tests/support/kubernetes.py). The overlay is that of
    docs/kubernetes.md with two changes: it uses overlays/cpu, because the node has no GPU, and it
    trains a small network. The test repeats the command `kubectl logs` until the server has ended.
    For the blocks after this command, the test starts a run that does not end."""
    needs = r"\bkubectl\b"
    IMAGE = "registry.example/cnn-ps:cuda"
    PORT = 6443
    CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "cnn-data"},
             "spec": {"accessModes": ["ReadOnlyMany"],
                      "resources": {"requests": {"storage": "1Gi"}}}}
    CONFIG = {"apiVersion": "v1", "kind": "Config", "current-context": "stand-in",
              "clusters": [{"name": "stand-in", "cluster": {"server": f"http://127.0.0.1:{PORT}"}}],
              "contexts": [{"name": "stand-in", "context": {"cluster": "stand-in", "user": ""}}]}
    LESS = (("overlays/gpu", "overlays/cpu"), ("CNN_MODEL=cnn99", "CNN_MODEL=seed:8"))

    def __init__(self, place, small):
        super().__init__(place)
        if os.getuid():
            pytest.skip("not root")
        if not shutil.which("tini"):
            without("tini", "deploy/setup.sh")
        self.home = place.parent / "kubernetes"
        for name in ("cnn-ps", "cnn-worker", "cnn-ctl"):
            (self.home / "programs").mkdir(parents=True, exist_ok=True)
            shutil.copy(BUILD / name, self.home / "programs")
        shutil.copytree(small, self.home / "claims/cnn/cnn-data")
        (self.home / "claims/cnn/cnn-data").chmod(0o755)
        (self.home / "bin").mkdir()
        (self.home / "bin/kubectl").symlink_to(kubectl())
        (self.home / "config").write_text(json.dumps(self.CONFIG))
        self.env = {"HOME": str(self.home), "KUBECONFIG": str(self.home / "config")}
        self.trains = False
        own = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if subprocess.run([*own, "true"], check=False).returncode:
            pytest.skip("no namespaces")
        self.log = (self.home / "log").open("w+")
        self.cluster = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", *own, sys.executable, "-B",
             ROOT / "tests/support/kubernetes.py", self.home, str(self.PORT),
             self.home / "programs", self.IMAGE],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        until(lambda: self.runs() and "ready" in (self.home / "log").read_text(), SOON, "the cluster")

    def runs(self):
        assert self.cluster.poll() is None, (self.home / "log").read_text()[-3000:]
        return True

    def script(self, text, env=None):
        """Run a script in the network namespace of the stand-in cluster."""
        env = {**(env or os.environ), **self.env}
        env["PATH"] = f"{self.home}/bin:{env['PATH']}"
        self.runs()
        return run_script(text, self.place, env, SOON,
                          prefix=("nsenter", f"--net=/proc/{self.cluster.pid}/ns/net"))

    def write_overlay(self, epochs):
        page = blocks(ROOT / "docs/kubernetes.md")
        text, = (one.text() for one in page if one.language == "yaml")
        for old, new in (*self.LESS, ("CNN_EPOCHS=50", f"CNN_EPOCHS={epochs}")):
            assert old in text, old
            text = text.replace(old, new)
        (self.place / "run").mkdir(exist_ok=True)
        (self.place / "run/kustomization.yaml").write_text(text)

    def pods(self):
        """Returns {index: uid of the pod} of the workers that are connected."""
        found = json.loads(self.script("kubectl -n cnn get pods -o json"))["items"]
        return {int(one["metadata"]["labels"][INDEX]): one["metadata"]["uid"] for one in found
                if INDEX in one["metadata"]["labels"] and one["status"]["phase"] == "Running"
                and "worker connected" in self.logs(one["metadata"]["uid"])}

    def logs(self, uid="*"):
        return "".join(file.read_text(errors="replace") for file in self.home.glob(f"logs/{uid}/*"))

    def start_long_run(self):
        """Continue the run of the first blocks with more epochs."""
        self.script("kubectl delete -k run")
        self.write_overlay(10000)
        self.script("kubectl apply -k run")
        until(lambda: sorted(self.pods()) == [0, 1, 2, 3], SOON, "four workers")
        assert "server resumed" in self.script("kubectl -n cnn logs server-0")
        ready = "kubectl -n cnn get pod server-0 -o jsonpath={.status.containerStatuses[0].ready}"
        until(lambda: self.script(ready) == "true", SOON, "the probes of the server succeed")
        self.trains = True

    def run_block(self, block, env):
        text = block.text()
        if "apply -k" in text:
            self.write_overlay(2)
            self.script(f"kubectl -n cnn apply -f - <<<'{json.dumps(self.CLAIM)}'")
            text = re.sub(r"^(kubectl .* logs .*'\^\{').*$", r"until \1; do sleep 0.2; done", text,
                          flags=re.M)
        elif "namespace" not in text and not self.trains:
            self.start_long_run()
        before = self.pods() if "delete pod" in text else {}
        output = self.script(text, env)
        if "apply -k" in text:
            result, = (json.loads(line) for line in output.splitlines() if line.startswith("{"))
            assert result["images_per_epoch"] == [6000, 6000], result
            until(lambda: "server-0" not in self.script("kubectl -n cnn get pods -o name"), SOON,
                  "the end of the server")
            assert "checkpoints-server-0" in self.script("kubectl -n cnn get pvc -o name")
        if "delete pod" in text:
            until(lambda: sorted(self.pods()) == list(range(16)), SOON, "16 workers")
            after = self.pods()
            assert {index for index, uid in before.items() if after[index] != uid} == {3}
            assert "worker stopped" in self.logs(before[3])
        if "kill -HUP" in text:
            until(lambda: "auth list_read" in self.logs(), SOON, "a read of the keys")

    def close(self):
        self.cluster.kill()
        self.cluster.wait()
        self.log.close()


# ---- systemd -----------------------------------------------------------------------------------

# A script that starts systemd with a cgroup hierarchy of its own, in version 1.
INIT = """
umount /sys/fs/cgroup/* /sys/fs/cgroup
mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd && mount --make-rshared / &&
exec /sbin/init systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1
"""


class Booted:
    """A container in which systemd runs and the packages of the directory `made` are installed. An
    object of this class is called with a script: the call runs the script in the container and
    returns the output."""

    def __init__(self, name, made):
        self.name = name
        try:
            self.boot(made)
        except BaseException:
            self.close()
            raise

    def boot(self, made):
        name = self.name
        docker("run", "--name", f"{name}-made", "--network", "host", "-v", f"{made}:/made:ro",
               base_image(), "sh", "-c", "apt-get update -q && DEBIAN_FRONTEND=noninteractive "
               "apt-get install -q -y --no-install-recommends systemd-sysv procps sudo "
               "dataset-fashion-mnist /made/cnn-ps_*.deb")
        docker("commit", f"{name}-made", name)
        # the setting PrivateUsers= of the units needs SYS_PTRACE
        docker("run", "-d", "--name", name, "--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE",
               "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
               "--tmpfs", "/run", "--tmpfs", "/tmp", "-e", "container=docker", name, "sh", "-c", INIT)
        end = time.monotonic() + 30
        while subprocess.run(["docker", "exec", name, "systemctl", "is-system-running"],
                             capture_output=True, check=False).returncode:
            if time.monotonic() > end:
                pytest.skip("systemd does not run as the first process of a container here")
            time.sleep(0.5)

    def __call__(self, script):
        return docker("exec", self.name, "sh", "-euc", script, seconds=120)

    def close(self):
        for argv in (["rm", "-f", self.name, f"{self.name}-made"], ["rmi", self.name]):
            docker(*argv, check=False)


class Service(Machine):
    """A machine with systemd and the packages that the document has built."""
    needs = "systemctl"

    def __init__(self, place, _):
        super().__init__(place)
        if not list(place.glob("build/deb/cnn-ps_*.deb")):
            run("make", "-C", place, "deb", "CUDA=0", seconds=SECONDS)
        self.booted = Booted(f"cnn-ps-documents-{os.getpid()}", place / "build/deb")

    def run_block(self, block, env):
        self.booted(block.text())
        assert self.booted("systemctl is-active cnn-ps") == "active"
        keys = "--key /etc/cnn-ps/admin.key " if "keygen" in block.text() else ""
        # the status does not show the name lenet5, but the model text that lists the layers of
        # lenet5
        assert "fc:84 relu fc:10" in self.booted(f"cnn-ctl {keys}status")

    def close(self):
        self.booted.close()


MACHINES = {"docker": Engine, "kubernetes": Kubernetes, "slurm": Cluster, "systemd": Service}
CONTAINERS = ("docker", "systemd")


def kind_of(block):
    """Returns the key in MACHINES of the machine that a block needs, or None."""
    for name, machine in MACHINES.items():
        if not block.language and re.search(machine.needs, block.text()):
            return name
    return None
