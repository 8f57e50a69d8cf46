"""Continue runs that releases 0.1.0 and 0.2.0 began. In each directory of tests/fixtures,
expected.json has the command that began the run, and the report of the old release about the
run."""
import hashlib
import json
import shutil

import pytest

from support.build import ROOT
from support.programs import Server

RENAMED = {"--batch": "--batch-size"}


def left_by(release, programs, name):
    """Returns (a copy of the run's directory, its expected.json)."""
    directory = programs.directory / "run"
    shutil.copytree(ROOT / f"tests/fixtures/run-{release}" / name, directory)
    return directory, json.loads((directory / "expected.json").read_text())


def left_by_0_1_0(programs, name):
    """Returns (a copy of the run's directory, its expected.json, the run's options under their
    present names)."""
    directory, expected = left_by("0.1.0", programs, name)
    options = [RENAMED.get(word, word) for word in expected["command"].split()]
    # name the optimizer, because release 0.1.0 had another default
    if "--optimizer" not in options:
        options += ["--optimizer", expected["optimizer"]]
    return directory, expected, options


def first_checkpoint(programs, directory, old):
    """Copy the checkpoint that the server writes at its start, before it accepts messages, to a new
    directory, so that later checkpoints cannot replace it. Returns this directory."""
    first = programs.directory / "first"
    first.mkdir()
    shutil.copy(directory / f"ckpt-{int(old[5:], 16) + 1:016x}", first)
    return first


@pytest.mark.parametrize("name", ["downpour", "sync", "sync-sum", "lbfgs", "dc"])
def test_a_checkpoint_of_0_1_0_is_trained_to_its_end(programs, name):
    directory, expected, options = left_by_0_1_0(programs, name)
    old, = [file.name for file in directory.glob("ckpt-*")]
    server = programs.add(Server(directory, options))
    server.line(r"checkpoint upgraded.* from=0\.1\.0")
    endpoint = server.endpoint
    weights = programs.export(first_checkpoint(programs, directory, old))
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == expected["weights_sha256"]
    status = server.status()
    assert [status[key] for key in ("run", "model", "mode", "term")] == [
        expected[key] for key in ("run", "model", "mode", "epoch")]
    assert [(w["worker"], w["name"], w["last_seq"]) for w in status["workers"]] == [
        (w["worker"], w["name"], w["last_seq"]) for w in expected["workers"]]
    fleet = [programs.worker(endpoint) for _ in range(2)]
    result = server.result()
    for worker in fleet:
        assert worker.wait(10) == 0, worker.tail()
    epochs = int(options[options.index("--epochs") + 1])
    images = result["data"]["n_train"]
    assert result["images_per_epoch"] == epochs * [images]
    assert result["images"] == epochs * images
    if expected["mode"] in ("downpour", "ssp"):
        assert result["updates"] == epochs * images // 200


def test_a_log_of_0_1_0_is_refused_and_left_alone(programs):
    directory, _, options = left_by_0_1_0(programs, "wal-killed")
    before = {file.name: file.read_bytes() for file in directory.iterdir()}
    server = programs.add(Server(directory, options))
    assert server.wait(20) == 7
    server.line("0.1.0 was killed and left a write-ahead log that this version cannot read", 1)
    (directory / "LOCK").unlink()
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == before


def test_a_run_with_a_log_that_0_1_0_ended_is_resumed(programs):
    directory, expected, options = left_by_0_1_0(programs, "wal-stopped")
    server = programs.add(Server(directory, options))
    assert server.endpoint
    assert server.status()["version"] == expected["version"]
    weights = programs.export(server.endpoint)
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == expected["weights_sha256"]


@pytest.mark.parametrize("name", ["downpour", "sync", "easgd", "wal-killed"])
def test_a_run_of_0_2_0_is_trained_to_its_end(programs, name):
    """SIGTERM ended the first three of these runs. The server of the run wal-killed was killed with
    -9, so the write-ahead log has events that the checkpoint lacks."""
    directory, expected = left_by("0.2.0", programs, name)
    options = expected["command"].split()
    old, = [file.name for file in directory.glob("ckpt-*")]
    server = programs.add(Server(directory, options))
    endpoint = server.endpoint
    weights = programs.export(first_checkpoint(programs, directory, old))
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == expected["weights_sha256"]
    status = server.status()
    for key in ("run", "model", "mode", "term", "version", "images", "updates"):
        assert status[key] == expected[key], key
    assert [(w["worker"], w["name"], w["last_seq"]) for w in status["workers"]] == [
        (w["worker"], w["name"], w["last_seq"]) for w in expected["workers"]]
    fleet = [programs.worker(endpoint, "--name", w["name"]) for w in expected["workers"]]
    result = server.result()
    for worker in fleet:
        assert worker.wait(10) == 0, worker.tail()
    assert result["images_per_epoch"] == 4 * [60000]
    assert result["rejected"] == 0


@pytest.mark.parametrize("metrics", ["none", "accuracy,f1"])
def test_a_run_of_0_2_0_keeps_its_metrics(programs, metrics):
    """Release 0.2.0 evaluated the accuracy, and its checkpoints have no names of metrics."""
    directory, expected = left_by("0.2.0", programs, "downpour")
    before = {file.name for file in directory.iterdir()}
    server = programs.add(Server(directory, [*expected["command"].split(), "--metrics", metrics]))
    assert server.wait(20) == 7
    server.line(f"its run has --metrics accuracy, not {metrics.replace(',', ' ')}: ", 1)
    assert {file.name for file in directory.iterdir()} - {"LOCK"} == before
