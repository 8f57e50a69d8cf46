"""cnn-ps --store cuda:N (docs/store.md), with a module that computes on the CPU
(tests/device/store_double.c): the results are those of --store host, even after kill -9 or after
the death of the device. tests/gpu/test_store.c tests the real module, which computes on a GPU."""
import hashlib

import pytest

from support import idx
from support.build import BUILD
from support.ledger import LedgerRun
from support.programs import SIGTERM, until

DOUBLE = {"program": "tests/device/cnn-ps"}
VECTOR = ("--model", "vector:20000", "--epochs", 0)
MODEL = ("--model", "fc:80 relu fc:10", "--epochs", 1, "--batch-size", 50, "--seed", 7,
         "--keep", "best")


@pytest.fixture(scope="module")
def images(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("store")
    idx.cut(data, directory, 2000, 100)
    return directory


def refused(programs, store, words, *options, **how):
    server = programs.server(*VECTOR, *options, "--store", store, **how)
    assert server.wait(20) == 2, server.tail()
    server.line(words)
    assert not (programs.directory / "ckpt").exists()


@pytest.mark.parametrize("store", ["cuda", "cuda:", "cuda:-1", "cuda:64", "cuda:1x", "rocm:0"])
def test_a_wrong_store_is_refused(programs, store):
    refused(programs, store, f'--store: "{store}": expected host or cuda:N, N 0 to 63')


def test_lbfgs_is_refused(programs):
    server = programs.server(*MODEL, "--store", "cuda:0", "--mode", "sandblaster", "--optimizer",
                             "lbfgs", **DOUBLE)
    assert server.wait(20) == 2
    server.line("--store: cuda:0: the line searches of --optimizer lbfgs need the weights on the "
                "host")


@pytest.mark.skipif((BUILD / "cnnps-store-cuda.so").exists(), reason="this build has the module")
def test_a_build_without_the_module_says_so(programs):
    refused(programs, "cuda:0", "cannot_start|cannot start.*cnnps-store-cuda.so is neither in")


def test_a_missing_gpu_is_refused(programs):
    refused(programs, "cuda:9", "--store: cuda:9: no such GPU", **DOUBLE)


def test_a_gpu_without_memory_is_refused(programs):
    server = programs.server(*VECTOR, "--store", "cuda:2", **DOUBLE)
    assert server.wait(20) == 1
    server.line("--store: the GPU has no memory for .* vectors of 20000 values")
    assert not (programs.directory / "ckpt").exists()


def weights_after(programs, images, store, *options, kill=False):
    """Trains with one worker and --store `store`. Returns the hash of the best weights. `kill`:
    kill the server once, and continue with --store host."""
    server = programs.server(*MODEL, *options, "--store", store, directory=store.replace(":", ""),
                             **DOUBLE)
    worker = programs.worker(server.endpoint, data=images)
    if kill:
        until(lambda: server.status()["images"] >= 300, 60, "300 images trained")
        server.kill()
        server = programs.restart(server, *MODEL, *options, "--store", "host")
    server.result(100)
    assert worker.wait(20) == 0, worker.tail()
    file = (server.directory / "best.safetensors").read_bytes()
    return hashlib.sha256(file[8 + int.from_bytes(file[:8], "little"):]).hexdigest()


@pytest.mark.parametrize("lane", ["tcp", "shm"])
@pytest.mark.parametrize("options", [
    ("--optimizer", "adam", "--clip-norm", 1),
    ("--optimizer", "momentum", "--mode", "sync")], ids=["adam", "sync"])
def test_the_weights_are_those_of_the_host(programs, images, options, lane):
    options = (*options, "--lane", lane)
    host = weights_after(programs, images, "host", *options)
    assert host == weights_after(programs, images, "cuda:0", *options, "--sandbox", "require")


def test_a_killed_run_continues_on_the_host(programs, images):
    options = ("--optimizer", "adam", "--durability", "always")
    host = weights_after(programs, images, "host", *options)
    assert host == weights_after(programs, images, "cuda:0", *options, kill=True)


@pytest.mark.parametrize(("level", "store", "pushes"), [
    ("replay", "cuda:0", 200), ("always", "cuda:0", 200), ("always", "cuda:5", 200)])
def test_kills_lose_and_repeat_nothing(programs, level, store, pushes):
    """The device cuda:5 takes 500 ms to copy a snapshot, so the kills come during such a copy."""
    run = LedgerRun(programs, 2, pushes, "--store", store, "--durability", level, pace=(4,),
                    size=20000, **DOUBLE)
    for kill in range(3):
        run.reached(kill)
        run.kill_server(**DOUBLE)
    run.verdict(60)


@pytest.mark.parametrize(("level", "store"), [
    ("replay", "cuda:3"), ("always", "cuda:3"), ("always", "cuda:6")])
def test_a_device_that_fails_ends_the_server_and_loses_nothing(programs, level, store):
    """cuda:3 fails at its 21st update, and cuda:6 while a checkpoint is copied. The server ends
    with status 1, as documented, and sends no worker an answer about this update. Another server
    then continues the run from the directory."""
    run = LedgerRun(programs, 2, 100, "--durability", level, "--store", store, pace=(2,),
                    size=20000, **DOUBLE)
    assert run.server.wait(30) == 1, run.server.tail()
    run.server.line("store failed.* reason=.an illegal memory access")
    run.options = tuple("host" if word == store else word for word in run.options)
    run.restart_server()
    run.verdict(60)


def test_updates_continue_while_a_checkpoint_is_copied(programs):
    """A checkpoint begins 50 ms after the last one, and its copy takes 1.5 s. The worker makes at
    most 25 pushes in 50 ms, so more pushes prove that updates continue during the copy."""
    run = LedgerRun(programs, 1, 400, "--store", "cuda:5", "--durability", "always", pace=(2,),
                    size=20000, **DOUBLE)
    first = {}

    def updates_between_two_checkpoints():
        now = run.server.status()
        saved = now["checkpoint"]["saved"]
        return now["updates"] - first.setdefault(saved, now["updates"])

    until(lambda: updates_between_two_checkpoints() >= 100, 20, "100 updates during a checkpoint")
    run.verdict(60)


def test_a_gpu_without_memory_for_a_second_copy_still_saves(programs):
    run = LedgerRun(programs, 1, 100, "--store", "cuda:4", pace=(4,), size=20000, **DOUBLE)
    run.verdict(60)
    lines = [line for line in run.server.lines if "no_second_copy" in line]
    assert len(lines) == 1, run.server.tail()


def test_the_log_names_the_device(programs):
    server = programs.server(*VECTOR, "--store", "cuda:1", **DOUBLE)
    server.line('store open.* device=cuda:1 name="test double"')
    server.endpoint
    server.signal(SIGTERM)
    assert server.wait(20) == 0
