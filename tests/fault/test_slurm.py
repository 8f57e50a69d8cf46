"""Fault P27 of docs/faults.md: Slurm cancels workers, and requeues running jobs of deploy/slurm."""
import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from slurm_cluster import NoSlurm, Slurm
from support import safetensors
from support.build import BUILD, ROOT, command
from support.ledger import LEDGER
from support.programs import until

TRAIN, WORKERS = ROOT / "deploy/slurm/train.sbatch", ROOT / "deploy/slurm/workers.sbatch"
EPOCHS = 60
# The job number determines the server's port, and each cluster numbers its jobs from 1. Two
# clusters would use the same ports, so run only one cluster at a time.
pytestmark = pytest.mark.xdist_group("slurm")


@pytest.fixture
def slurm(programs, figure):
    """Yields a running cluster. The path of its directory is short, because the path of munge's
    socket may have at most 107 bytes."""
    home = Path(tempfile.mkdtemp(prefix="slurm"))
    home.chmod(0o755)
    cluster = Slurm.__new__(Slurm)
    try:
        cluster.__init__(programs, home)
        yield cluster
    except NoSlurm as no:
        figure.cannot("P27", str(no).replace("\n", " ")[:200])
    finally:
        if hasattr(cluster, "daemons"):
            cluster.close()
        shutil.rmtree(home, ignore_errors=True)


def environment(slurm, data, **more):
    """Returns the environment that a user of deploy/slurm sets: a PATH with the programs, and
    variables for the data and for the directory of the run."""
    programs = slurm.home / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("cnn-ps", "cnn-worker", "cnn-ctl"):
        wrapper = programs / name
        if not wrapper.exists():
            wrapper.write_text("#!/bin/sh\nexec " + " ".join(command(name)) + ' "$@"\n')
            wrapper.chmod(0o755)
    return {"PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin:/usr/sbin", "RUN_HOST": "127.0.0.1",
            "RUN_DIR": str(slurm.home / "run"), "CNN_DATA": str(data), "CNN_DEVICE": "cpu",
            "CNN_THREADS": "1", **more}


def epoch_reached(slurm, job, epoch):
    return lambda: int((re.findall(r'"train epoch" epoch=(\d+)', slurm.output(job)) or [0])[-1]) >= epoch


def starts(slurm, job):
    return len(re.findall(r'msg="server (?:new_run|resumed)"', slurm.output(job)))


def requeue_on_drained_node(slurm, job):
    """Drains the node, requeues the job, which must wait, and resumes the node."""
    slurm("scontrol", "update", f"nodename={slurm.host}", "state=drain", "reason=test")
    slurm("scontrol", "requeue", job)
    until(lambda: slurm.state(job) == "PENDING", 30, "a requeued job")
    slurm("scontrol", "update", f"nodename={slurm.host}", "state=resume")


def test_requeued_job(slurm, figure, small):
    """A job runs the server and two workers, and a job array runs two more workers. The test
    cancels one job of the array. Then it drains the node and requeues the first job, which must
    wait until the test resumes the node."""
    env = environment(slurm, small)
    job = slurm.submit(TRAIN, "--model", "seed:8", "--epochs", EPOCHS,
                       options=("--ntasks=2", "--gpus-per-task=1"), **env)
    until(epoch_reached(slurm, job, 2), 60, "training")
    array = slurm.submit(WORKERS, options=("--array=1-2", f"--dependency=after:{job}"), **env)
    until(lambda: slurm.output(array).count("worker connected") == 2, 30, "elastic workers")
    slurm("scancel", f"{array}_1")
    until(lambda: "worker stopped" in slurm.output(f"{array}-1"), 20, "a cancelled worker")
    place = int(re.findall(r"epoch=(\d+) images", slurm.output(job))[-1])
    assert place < EPOCHS - 5, "the run was too short"
    requeue_on_drained_node(slurm, job)
    until(lambda: starts(slurm, job) == 2, 60, "the second start")
    until(lambda: slurm.state(job) in ("", "COMPLETED"), 60, "the end")
    until(lambda: not slurm("squeue", "-h").strip(), 30, "the end of the array")
    result = json.loads((slurm.home / "run/result.json").read_text())
    assert result["status"] == "done" and result["term"] == 2
    counts = result["images_per_epoch"]
    wrong = sum(n != 6000 for n in counts)
    assert len(counts) == EPOCHS
    assert "training is done" in slurm.output(f"{array}-2")
    figure("P27", wrong, "epochs with an image lost or counted twice", wrong == 0)


def test_time_is_nearly_over(slurm, figure, small):
    """Workers push the ledger gradient. When the test kills a worker, the job starts this worker
    again. When Slurm signals that the job's time is nearly over, the job must requeue itself. Then
    the test requeues the job again, this time while its node is drained, and resumes the node."""
    pushes, tasks = 600, 2
    env = environment(slurm, small, PUSHES=str(pushes))
    fake = slurm.home / "bin/cnn-worker"
    fake.write_text("#!/bin/sh\necho $$ >>worker.pids\nexec " + " ".join(
        command("tests/tools/ledger_worker")) +
        ' "$CNN_SERVER" "$SLURM_PROCID" "$PUSHES" 20 8 "$CNN_KEY"\n')
    job = slurm.submit(TRAIN, "--model", f"vector:{pushes * tasks}", *LEDGER,
                       options=(f"--ntasks={tasks}",), **env)

    def pushed(n):
        return lambda: re.search(rf"pushed {n}\b", slurm.output(job))
    until(pushed(50), 60, "pushes")
    pid = (slurm.home / "worker.pids").read_text().split()[0]
    slurm("kill", "-9", pid)
    until(lambda: "resumed" in slurm.output(job), 30, "a new worker")
    until(pushed(100), 60, "pushes")
    slurm("scancel", "--batch", "--signal=USR1", job)
    until(lambda: starts(slurm, job) == 2, 90, "the second start")
    until(pushed(200), 60, "pushes")
    requeue_on_drained_node(slurm, job)
    until(lambda: starts(slurm, job) == 3, 90, "the third start")
    assert not re.search(rf"pushed {pushes - 100}\b", slurm.output(job)), "the run was too short"
    until(lambda: slurm.output(job).count("done pushed=") == tasks, 60, "the last push")
    address = (slurm.home / "run/address").read_text().strip()
    slurm(BUILD / "cnn-ctl", "--server", address, "--key", slurm.home / "run/keys/admin.key", "drain")
    until(lambda: slurm.state(job) in ("", "COMPLETED"), 60, "the end")
    weights = safetensors.flat(slurm_export(slurm))
    wrong = int((weights != -1).sum())
    assert len(weights) == pushes * tasks
    figure("P27", wrong, "pushes lost or applied twice", wrong == 0)


def slurm_export(slurm):
    file = slurm.home / "w.safetensors"
    slurm(BUILD / "cnn-ctl", "export", "--checkpoint", slurm.home / "run/checkpoints", file)
    return file
