"""The scripts of deploy/slurm end with a clear line when a program fails again and again. The tests
run the scripts without Slurm. Shell scripts that fail replace the programs."""
import os
import subprocess

import pytest

from support.build import PATIENCE, ROOT


@pytest.fixture
def job(tmp_path):
    """Returns a function that runs a script. `server` is what cnn-ps does, as shell commands, and
    `worker` is the exit status of cnn-worker. The commands sleep and srun do not wait and do not
    need Slurm. The function returns the process, and how often each program was started."""
    programs = tmp_path / "bin"
    programs.mkdir()

    def program(name, text):
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)

    def run(script, worker, server="exit 0"):
        run_dir = tmp_path / "run"
        run_dir.mkdir(exist_ok=True)
        program("cnn-ctl", "exit 0")
        program("cnn-ps", f"echo x >>{tmp_path}/servers; {server}")
        program("cnn-worker", f"echo x >>{tmp_path}/workers; exit {worker}")
        program("srun", 'shift 2; exec "$@"')
        program("sleep", "exec /bin/sleep 0.01")
        done = subprocess.run(
            ["bash", ROOT / "deploy/slurm" / script], capture_output=True, text=True,
            timeout=60 * PATIENCE, cwd=tmp_path, env={
                "PATH": f"{programs}:{os.environ['PATH']}", "RUN_DIR": str(run_dir),
                "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURMD_NODENAME": "here",
                "SLURM_PROCID": "3", "CNN_CONNECT_TIMEOUT_MS": "1000", "RUN_WAIT": "1"})

        def starts(name):
            file = tmp_path / name
            return len(file.read_text().split()) if file.exists() else 0
        return done, starts("servers"), starts("workers")
    return run


@pytest.mark.parametrize("status, starts", [(1, 10), (137, 10), (10, 10), (2, 1), (6, 1), (8, 1)])
def test_a_server_that_fails_at_once_ends_the_job(job, status, starts):
    done, servers, _ = job("train.sbatch", worker=3, server=f"exit {status}")
    assert (done.returncode, servers) == (status, starts), done.stderr
    line = f"train.sbatch: cnn-ps ended with status {status}, 10 times in a row within 60 s"
    assert (line in done.stderr) == (starts > 1)


def test_a_run_that_diverged_ends_the_job(job):
    """The script does not start the server again: with the same options, the run would most likely
    diverge again."""
    done, servers, _ = job("train.sbatch", worker=3,
                           server="""echo '{"status": "diverged"}'; exit 1""")
    assert (done.returncode, servers, done.stdout) == (1, 1, '{"status": "diverged"}\n')


@pytest.mark.parametrize("status, starts", [(1, 10), (13, 10), (2, 1), (10, 1)])
def test_a_worker_that_fails_at_once_ends_its_task(job, tmp_path, status, starts):
    """The server of this test ends when the script has started the worker as many times as the test
    expects."""
    done, _, workers = job("train.sbatch", worker=status, server=f"""
for _ in $(seq 1000); do
    [ $(cat {tmp_path}/workers 2>/dev/null | wc -l) -lt {starts} ] || break
    /bin/sleep 0.02
done""")
    assert (done.returncode, workers) == (0, starts), done.stderr
    line = f"train.sbatch: task 3: cnn-worker ended with status {status}, 10 times in a row"
    assert (line in done.stderr) == (starts > 1)


@pytest.mark.parametrize("status, starts", [(1, 10), (139, 10), (10, 1), (9, 1)])
def test_an_elastic_worker_that_fails_at_once_gives_up(job, tmp_path, status, starts):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/address").write_text("tcp://127.0.0.1:1\n")
    done, _, workers = job("workers.sbatch", worker=status)
    assert (done.returncode, workers) == (status, starts), done.stderr
    line = f"workers.sbatch: cnn-worker ended with status {status}, {starts} times in a row"
    assert (line in done.stderr) == (starts > 1)


@pytest.mark.parametrize("status", [3, 12])
def test_an_elastic_worker_without_a_server_gives_up(job, tmp_path, status):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/address").write_text("tcp://127.0.0.1:1\n")
    done, _, workers = job("workers.sbatch", worker=status)
    assert done.returncode == status and workers > 1, done.stderr
    assert "workers.sbatch: no server for 1 s: cnn-worker is not started again" in done.stderr


def test_an_elastic_worker_without_a_run_says_so(job, tmp_path):
    done, _, workers = job("workers.sbatch", worker=3)
    assert (done.returncode, workers) == (0, 0)
    assert f"no file {tmp_path}/run/address: the run has ended, or its job has not begun" \
        in done.stderr
