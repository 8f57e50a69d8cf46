"""Test --durability always: every acknowledged push survives if server and workers are killed
together, or if the disk is full. docs/durability.md says what each level guarantees."""
import json
import re
import time

import pytest

from support import safetensors
from support.build import command
from support.ledger import LedgerRun
from support.programs import SIGTERM, Process, fill, mount_small, unmount, until

ALWAYS = ("--durability", "always")


def kill_all(run):
    """Kill the server and all workers with -9. Returns for each worker the seq of its newest
    acknowledged push."""
    run.server.popen.kill()
    for worker in run.fleet:
        worker.popen.kill()
    run.server.wait(10)
    for worker in run.fleet:
        worker.wait(10)
    said = [re.findall(r"acked (\d+)", "\n".join(w.out)) for w in run.fleet]
    return [int(s[-1]) if s else 0 for s in said]


def resumed(worker):
    return int(worker.line(r"^resumed (\d+)")[1])


def test_nothing_acknowledged_is_lost_when_all_are_killed_together(programs):
    run = LedgerRun(programs, 3, 3000, *ALWAYS)
    for kill in range(3):
        run.reached(kill)
        acked = kill_all(run)
        assert sum(acked) > 0
        run.restart_server()
        for i in range(3):
            run.start_worker(i)
            assert resumed(run.fleet[i]) >= acked[i]
    run.verdict()


def test_a_server_killed_alone_loses_nothing_and_nothing_is_sent_again(programs):
    run = LedgerRun(programs, 2, 3000, *ALWAYS)
    for kill in range(3):
        run.reached(kill)
        run.kill_server()
    run.verdict()
    # a worker replays only pushes that it had sent but that were not acknowledged
    for worker in run.fleet:
        assert int(worker.line(r"replayed=(\d+)")[1]) <= 3 * 8, worker.tail()


TRAINING = ("--epochs", 2, "--seed", 5, "--batch-size", 50, "--lease-batches",
            7, "--checkpoint-ms", 200, *ALWAYS)


def trained(programs, small, model, name, kills):
    """Train a run with one worker, and kill worker and server when the run reaches each number of
    images in `kills`. Returns the exported weights."""
    options = ("--model", model, *TRAINING)
    server = programs.server(*options, directory=name)
    worker = programs.worker(server.endpoint, "--name", "solo", data=small)
    for images in kills:
        until(lambda: server.status()["images"] >= images, 60, f"{images} images trained")
        worker.popen.kill()
        server.kill()
        worker.wait(10)
        server = programs.restart(server, *options)
        worker = programs.worker(server.endpoint, "--name", "solo", data=small)
    assert server.result()["status"] == "done"
    assert worker.wait(10) == 0, worker.tail()
    return programs.export(server.directory, f"{name}.safetensors").read_bytes()


@pytest.mark.parametrize("model", ["seed:4", "conv:4:3 batchnorm relu pool:2 fc:10"],
                         ids=["seed", "batchnorm"])
def test_killed_or_not_one_worker_ends_with_the_same_bytes(programs, small, model):
    whole = trained(programs, small, model, "whole", ())
    assert trained(programs, small, model, "killed", (1000, 4000, 9000)) == whole


def test_a_start_replays_the_log_with_either_level(programs):
    """The level of durability may change at a restart. With each of the two levels, the server
    applies an existing write-ahead log at its start."""
    run = LedgerRun(programs, 2, 2000, *ALWAYS)
    run.reached(0)
    acked = kill_all(run)
    run.options = run.options[:-1] + ("replay",)
    run.restart_server()
    run.server.line("wal replayed")
    for i in range(2):
        run.start_worker(i)
        assert resumed(run.fleet[i]) >= acked[i]
    run.verdict()
    assert not list(run.server.directory.glob("journal-*"))


@pytest.fixture
def small_disk(tmp_path):
    """Yields the path at which a file system of 6 MiB is mounted."""
    place = tmp_path / "disk"
    why = mount_small(place, "6m")
    if why:
        pytest.skip(f"no file system can be mounted: {why}")
    yield place
    unmount(place)


def test_a_full_disk_stops_acknowledgements_until_there_is_room(programs, small_disk):
    run = LedgerRun(programs, 2, 3000, *ALWAYS, "--wal-mb", 1, "--replay-window", 8,
                    directory=small_disk / "ckpt", pace=(1,))
    run.reached(0)
    # A checkpoint for which the disk already had space can still be completed. The server then
    # deletes older files, and the disk has space again, so the test fills the disk again.
    for i in range(20):
        fill(small_disk / f"rubbish {i}")
        until(lambda: run.server.status()["degraded"], 20, "degraded")
        before = run.server.status()
        until(lambda: run.server.status()["live_workers"] == 2, 20, "both send heartbeats")
        after = run.server.status()
        if after["degraded"] and after["checkpoint"]["saved"] == before["checkpoint"]["saved"]:
            break
    assert run.server.running() and all(w.running() for w in run.fleet)
    # while the disk is full, the server applies at most 8 pushes of each of the 2 workers, which is
    # their replay window, and acknowledges none of them
    assert after["counters"]["pushes"] <= before["counters"]["pushes"] + 2 * 8
    for rubbish in small_disk.glob("rubbish *"):
        rubbish.unlink()
    until(lambda: not run.server.status()["degraded"], 20, "well again")
    # at full speed, the write-ahead log of these pushes would fill the disk again
    run.verdict(hurry=False)
    assert safetensors.flat(programs.export(run.server.directory)).sum() == -6000


def test_an_operator_reaches_a_server_whose_disk_is_full(programs, small_disk):
    """The server delays only those messages that promise durability until the disk has space. The
    server answers cnn-ctl at once."""
    run = LedgerRun(programs, 2, 3000, *ALWAYS, directory=small_disk / "ckpt", pace=(2,))
    run.reached(0)
    names = iter(range(10**6))

    def is_full():  # delete old checkpoints, too, because the server could delete them to get space
        fill(small_disk / f"rubbish {next(names)}")
        for old in sorted((small_disk / "ckpt").glob("ckpt-*[0-9a-f]"))[:-1]:
            old.unlink(missing_ok=True)
        fill(small_disk / f"rubbish {next(names)}")
        return run.server.status()["degraded"]

    # a checkpoint for which the disk already had space may still be completed, and the server then
    # deletes older files, so fill the disk several times
    def stays_full():
        for _ in range(10):
            if not is_full():
                return False
            time.sleep(0.05)
        return True
    until(stays_full, 60, "degraded")
    server = ("--server", run.server.endpoint)
    assert json.loads("\n".join(programs.ctl(*server, "status").out))["degraded"]
    begun = time.monotonic()
    ctl = programs.add(Process("drain", command("cnn-ctl", *server, "drain")))
    assert run.server.wait(20) == 10, run.server.tail()
    assert time.monotonic() - begun < 5
    assert "No space" in "\n".join(run.server.lines).split("gave_up")[1]
    ctl.wait(10)


def acked(worker):
    said = re.findall(r"acked (\d+)", "\n".join(worker.out))
    return int(said[-1]) if said else 0


@pytest.mark.parametrize("first", ["server", "worker"])
def test_replay_loses_what_no_checkpoint_has_when_both_die(programs, first):
    """With the level replay, a push is lost if the server and its worker die before the next
    checkpoint. README.md and docs/durability.md state this limit of the level replay."""
    pushes = 4000
    options = ("--model", f"vector:{pushes}", "--optimizer", "sgd", "--lr", 1, "--lr-scaling",
               "none", "--staleness-scaling", "constant", "--max-staleness", 10**6,
               "--warm-start-updates", 0, "--replay-window", 1024, "--checkpoint-ms", 3600000)
    server = programs.server(*options)
    worker = programs.ledger_worker(server.endpoint, 0, pushes, 2)
    until(lambda: acked(worker) >= 200, 60, "some pushes")
    before = acked(worker)
    programs.ctl("--server", server.endpoint, "checkpoint")
    after = acked(worker)
    until(lambda: acked(worker) >= after + 300, 60, "more of them")
    for process in (server, worker) if first == "server" else (worker, server):
        process.kill()
    server = programs.restart(server, *options[:-1], 50)
    again = programs.ledger_worker(server.endpoint, 0, pushes)
    assert resumed(again) >= before, "the checkpoint had them"
    assert resumed(again) < acked(worker), "nothing was lost: then the documents promise too little"
    worker = again
    assert worker.wait(60) == 0, worker.tail()
    server.signal(SIGTERM)
    assert server.wait(10) == 0
    # exactly -1 at each coordinate, so no push was applied twice
    assert (safetensors.flat(programs.export(server.directory)) == -1).all()
