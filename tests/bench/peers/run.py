#!/usr/bin/env python3
"""Kill -9 a worker, or the server or coordinator, of a project, and measure the damage.

    tests/bench/peers/run.py cnnps|torchrun|horovod|tensorflow|hivemind worker|server

Three workers train on this machine with steps of 50 ms. After 5 s the script kills one process. If
the job ends, the script starts it again with the same command, as a supervisor would do. With cnnps
only the server ends, so the script starts only the server again. The script prints the longest time
without an applied batch, the number of batches that were applied twice, and the number of batches
that were never applied (Hivemind has no numbered batches). The Python that runs this script must
have the packages of the project (PyPI: torch; horovod with torch 1.13.1; tensorflow-cpu; hivemind;
for cnnps, NumPy and the programs of `make`).
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BEFORE_S, AFTER_S, START_S = 5, 40, 90
PYTHON = sys.executable


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Job:
    """A run: its processes, each in a process group of its own, and its log."""

    def __init__(self, place):
        self.log = Path(place) / "log"
        self.env = dict(os.environ, PEER_LOG=str(self.log), PYTHONPATH=str(HERE), OMP_NUM_THREADS="1",
                        CUDA_VISIBLE_DEVICES="", PATH=f"{Path(PYTHON).parent}:{os.environ['PATH']}")
        self.processes, self.output = [], (Path(place) / "output").open("w+")

    def start(self, *argv, **how):
        self.processes.append(subprocess.Popen(
            list(map(str, argv)), env=self.env, cwd=HERE, start_new_session=True,
            stderr=self.output, stdin=subprocess.DEVNULL, **({"stdout": self.output} | how)))
        return self.processes[-1]

    def pid(self, role):
        return int(Path(f"{self.log}.{role}").read_text())

    def applied(self):
        """Returns [(time, process, batch)] for the batches that have been applied so far."""
        if not self.log.exists():
            return []
        rows = (line.split() for line in self.log.read_text().splitlines())
        return [(float(t), pid, int(batch)) for t, pid, batch in rows]

    def close(self):
        for p in self.processes:
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            p.wait()
        # also kill workers that left their process group, and perhaps are still starting
        mine = f"PEER_LOG={self.log}\0".encode()
        for file in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mine in file.read_bytes():
                    os.kill(int(file.parent.name), signal.SIGKILL)
            except OSError:  # the process has ended, or belongs to another user
                pass


def cnnps(job):
    root = HERE.parents[2]
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    job.env |= {"PEER_SERVER": endpoint, "PYTHONPATH": f"{HERE}:{root / 'worker/python'}"}

    def begin():
        server = job.start(root / "build/release/cnn-ps", "--bind", endpoint, "--epochs", 1,
                           "--model", "vector:7850", "--batch-size", 100, "--optimizer", "sgd",
                           "--lr", 0.01, "--checkpoint-dir", job.log.parent / "run")
        if len(job.processes) == 1:
            for rank in range(3):
                job.env["PEER_RANK"] = str(rank)
                job.start(PYTHON, "cnnps_train.py")
        return server
    return begin, {"worker": lambda: job.pid("worker1"), "server": lambda: job.processes[0].pid}


def torchrun(job):
    def begin():
        return job.start(PYTHON, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=3",
                         "--max-restarts=9", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                         "--rdzv-backend=c10d", "torchrun_train.py")
    return begin, {"worker": lambda: job.pid("worker1"), "server": lambda: job.processes[-1].pid}


def horovod(job):
    hosts = job.log.parent / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:2\necho 127.0.0.1:1\n")
    hosts.chmod(0o755)

    def begin():
        return job.start("horovodrun", "-np", 3, "--min-np", 1, "--max-np", 3, "--gloo",
                         "--host-discovery-script", hosts, PYTHON, "horovod_train.py")
    return begin, {"worker": lambda: job.pid("worker2"), "server": lambda: job.processes[-1].pid}


def tensorflow(job):
    roles = {"chief": 1, "ps": 1, "worker": 3}
    cluster = {role: [f"127.0.0.1:{free_port()}" for _ in range(n)] for role, n in roles.items()}
    job.env["PEER_CLUSTER"] = json.dumps(cluster)

    def begin():
        for role in "ps", "worker", "chief":
            for i in range(roles[role]):
                last = job.start(PYTHON, "tf_train.py", role, i)
        return last
    return begin, {"worker": lambda: job.pid("worker1"), "server": lambda: job.pid("ps0")}


def hivemind(job):
    def begin():
        first = job.start(PYTHON, "hivemind_train.py", 0, stdout=subprocess.PIPE, text=True)
        address = next(line.split()[1] for line in first.stdout if line.startswith("MADDR"))
        for i in (1, 2):
            job.start(PYTHON, "hivemind_train.py", i, address)
        return job.processes[-1]
    return begin, {"worker": lambda: job.pid("worker1"), "server": lambda: job.pid("worker0")}


PEERS = {"cnnps": cnnps, "torchrun": torchrun, "horovod": horovod, "tensorflow": tensorflow,
         "hivemind": hivemind}


def wait(probe, seconds):
    end = time.monotonic() + seconds
    while not (found := probe()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def experiment(peer, victim, place):
    job = Job(place)
    try:
        begin, victims = PEERS[peer](job)
        main = begin()
        if not wait(lambda: len(job.applied()) > 2, START_S):
            sys.exit(f"{peer} does not train:\n{Path(job.output.name).read_text()[-3000:]}")
        time.sleep(BEFORE_S)
        pid = victims[victim]()
        os.kill(pid, signal.SIGKILL)
        killed, ended = time.time(), None
        while time.time() < killed + AFTER_S:
            if main.poll() is not None and ended is None:
                ended = time.time() - killed
                if peer == "cnnps":
                    main = begin()
                elif (peer, victim) != ("torchrun", "server"):
                    job.close()
                    main = begin()
            time.sleep(0.05)
        report(peer, victim, job.applied(), killed, ended)
        if "--show" in sys.argv:
            print(Path(job.output.name).read_text()[-6000:])
    finally:
        job.close()


def report(peer, victim, rows, killed, ended):
    after = [t - killed for t, _, _ in rows if t > killed + 0.1]
    gaps = [b - a for a, b in zip([0.0, *after], [*after, AFTER_S])]
    words = [f"{peer}, kill -9 of the {victim}:", f"longest time without an applied batch"
             f" {max(gaps):.2f} s" if after else "no batch was applied again"]
    words += [f"; the job ended after {ended:.1f} s" if ended is not None else ""]
    if peer != "hivemind":
        batches = [b for _, _, b in rows]
        words += [f"; {len(batches) - len(set(batches))} of {len(set(batches))} batches applied more"
                  " than once"]
        # skip cnn-ps here: its workers apply batches from different places of the epoch, so a
        # number that is missing so far is no lost batch
        if peer != "cnnps":
            words += [f", {max(batches) + 1 - len(set(batches))} never"]
    print("".join(w if w[:1] in ";," else f" {w}" for w in words if w).strip(), flush=True)


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in PEERS or sys.argv[2] not in ("worker", "server"):
        sys.exit(__doc__)
    place = tempfile.mkdtemp()
    try:
        experiment(sys.argv[1], sys.argv[2], place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
