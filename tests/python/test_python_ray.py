"""Test cnnps.ray with a Ray cluster: killed actors start again, and no push is lost."""
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from support.build import ROOT, without
from support.programs import Process, until

TOOLS = ROOT / "build/tools/bin/python"
SCRIPT = Path(__file__).with_name("ray_script.py")
# The script imports Debian's numpy, because Debian's torch was built with this numpy.
PATHS = [str(ROOT / "worker/python"), "/usr/lib/python3/dist-packages"]

if not TOOLS.exists() or subprocess.run([TOOLS, "-c", "import ray"], capture_output=True,
                                        check=False).returncode:
    without("ray", "deploy/setup.sh tools")
pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
def directory():
    """Yields a temporary directory with a short path, because the paths of Ray's sockets must be
    short."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def script(programs, *arguments):
    return programs.add(Process("ray", [TOOLS, SCRIPT, *arguments], env={
        "PYTHONPATH": ":".join(PATHS), "RAY_USAGE_STATS_ENABLED": "0",
        # Ray runs its workers with niceness 15, which starves them beside other tests.
        "RAY_worker_niceness": "0"}))


def server_of(directory):
    """Returns the process ids of the cnn-ps of a test and of its Ray actor, or None if no cnn-ps
    runs."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], text=True, capture_output=True,
                            check=True).stdout
    found = [line.split()[:2] for line in listed.splitlines()
             if "cnn-ps --bind" in line and f"{directory}/run" in line]
    return tuple(map(int, found[0])) if found else None


def test_killed_actors_and_servers_lose_nothing(programs, directory):
    run = script(programs, "ledger", directory)
    until(lambda: len(list(directory.glob("batch-*"))) == 3, 90, "three workers train")
    os.kill(int(next(directory.glob("worker-*")).read_text()), signal.SIGKILL)
    first = server_of(directory)
    os.kill(first[0], signal.SIGKILL)
    until(lambda: server_of(directory) not in (None, first), 30, "the server runs again")
    second = server_of(directory)
    assert second[1] == first[1]
    os.kill(second[1], signal.SIGKILL)  # kill the actor that runs the server
    assert run.wait(150) == 0, run.tail()
    result = json.loads((directory / "result.json").read_text())
    assert result["images_per_epoch"] == [300, 300] and result["wrong"] == 0
    # 2 if the server was killed the second time before it had written its term
    assert result["term"] in (2, 3)
    until(lambda: server_of(directory) is None, 20, "no server is left")


def test_a_model_trains_on_the_cluster(programs, directory):
    probe = subprocess.run([TOOLS, "-c", "import torch"], capture_output=True, check=False,
                           env={**os.environ, "PYTHONPATH": ":".join(PATHS)})
    if probe.returncode:
        without("python3-torch", "deploy/setup.sh")
    run = script(programs, "torch", directory)
    assert run.wait(120) == 0, run.tail()
    result = json.loads((directory / "result.json").read_text())
    assert result["accuracy"] > 0.85 and abs(result["own"] - result["accuracy"]) < 1e-6
    assert result["rule"]["status"] == "drained" and result["rule"]["accuracy"] >= 0.7


def test_a_node_that_comes_brings_a_worker_and_may_go(programs, directory):
    run = script(programs, "nodes", directory)
    assert run.wait(150) == 0, run.tail()
    assert json.loads((directory / "result.json").read_text())["images_per_epoch"] == [300, 300]
    # two workers, because no node had room for the third
    assert len(list(directory.glob("worker-*"))) == 2


def test_an_exception_of_a_worker_ends_the_run(programs, directory):
    """The worker connects with keys that the caller has made. The script also kills the server
    after each of its starts: cnnps.ray must give up after a limited number of restarts."""
    run = script(programs, "error", directory)
    assert run.wait(120) == 0, run.tail()
    result = json.loads((directory / "result.json").read_text())
    assert "as intended with vector:3" in result["why"]
    assert f"the workers need {directory}/keys/worker.key" in result["no_key"]
    assert result["dies"].startswith("an actor of the run has died, and max_restarts=1 permits")
    assert result["refused"] == [
        "UsageError: workers=0: expected 1 to 4294967295",
        "UsageError: workers=-1: expected 1 to 4294967295",
        "TypeError: workers: expected an integer, not float",
        "TypeError: bind: the run chooses the address of its server",
        "TypeError: checkpoint_dir: expected a path, not bool",
        "TypeError: metrics: expected a text or a number, not list",
        "UsageError: max_restarts=-2: expected -1 or more",
        'UsageError: cnn-ps: --lr: "fast" is not a number; expected a number in [1e-12, 1000000]']
    assert result["starts"] == 10
    assert result["killed"].startswith("signal 9 killed the server 10 times in a row within 60 s")
