"""Rows N1 and N2: networks that are gone for a while, whole or in one direction, in namespaces."""
import random
import time

import pytest

import idx
from flavour import FULL, PATIENCE
from lab import until
from ledger import LedgerRun
from netlab import moved, seqs

KEPT = 256  # --replay-window's default: pushes that a worker may have outside a checkpoint
FEW = 20000
NEVER = 100000  # pushes between two pulls: so pushes alone are under way


@pytest.fixture(scope="module")
def few(data, tmp_path_factory):
    """Some of the images."""
    directory = tmp_path_factory.mktemp("few")
    idx.cut(data, directory, FEW, 1000)
    return directory


def under_way(net, run, pushes=10):
    """Each worker has had some pushes decided."""
    until(lambda: len(seqs(net, run.server)) == len(run.crew)
          and min(seqs(net, run.server).values()) >= pushes, 60, "all are pushing")


def gone_for(net, run, seconds):
    """Nothing passes for so long; what was decided until then."""
    net.cut()
    before = seqs(net, run.server)
    time.sleep(seconds)
    stood = seqs(net, run.server)
    assert all(stood[name] <= before[name] + 2 for name in stood), "something came through"
    return stood


def soon(full):
    """Seconds that coming back may take: the goal, and room for a crowded machine in the short form."""
    return 2 * PATIENCE if full else 5 * PATIENCE


def outlasts(seconds, pace):
    """Pushes for workers that shall be at work for so long between the faults."""
    return int(seconds * 1000 / pace)


def test_partition(nets, figure, full, seed):
    """All is lost for a while: workers wait, and go on by themselves when it has healed."""
    net = nets("N1", 4)
    lengths = [1, 30, 300] if full else [1]
    lengths += [random.Random(seed).uniform(0.5, 15) for _ in range(40)] if full else []
    run = LedgerRun(net, 3, outlasts(1.5 + len(lengths), 5), pace=(5,))
    slowest = 0
    for seconds in lengths:
        under_way(net, run)
        stood = gone_for(net, run, seconds)
        healed = net.heal()
        slowest = max(slowest, moved(net, run, stood) - healed)
    assert net.count()["lost"] > 0
    assert all(w.running() for w in run.crew), "the run ended before the faults"
    lost, twice = run.count()
    figure("N1", slowest, "s at most from healing to the slowest worker's next push",
           slowest <= soon(full), what="resumed")
    figure("N1", lost + twice, f"lost or applied twice in {len(lengths)} partitions",
           lost + twice == 0)


def test_link_down(nets, figure, full):
    """The server's device is down: sending is an error then, not a silence."""
    net = nets("N1", 4)
    run = LedgerRun(net, 3, outlasts(2, 5), pace=(5,))
    under_way(net, run)
    net.home.link("down")
    stood = seqs(net, run.server)
    time.sleep(30 if full else 1)
    net.home.link("up")
    healed = time.monotonic()
    took = moved(net, run, stood) - healed
    lost, twice = run.count()
    figure("N1", took, "s until the slowest worker's next push", took <= soon(full))
    assert lost + twice == 0


def test_pushes_kept_in_a_partition(nets, figure, full):
    """A worker that never waits for weights keeps a bounded number of pushes, then stands still."""
    net = nets("N1", 2)
    run = LedgerRun(net, 1, 1500, pace=(1, NEVER))
    under_way(net, run)
    gone_for(net, run, 5 if full else 1.5)
    told = run.pushed()
    decided = sum(seqs(net, run.server).values())
    net.heal()
    lost, twice = run.count()
    figure("N1", told - decided, "pushes kept", told - decided <= KEPT)
    assert lost + twice == 0


@pytest.mark.parametrize("mode", ["downpour", "ssp", "sync", "sandblaster"] if FULL else ["sync"])
def test_images_count_once_across_partitions(nets, figure, full, few, mode):
    """Training: one worker after the other is cut off, until it counts as dead and its work is lost."""
    turns = 8 if full else 1
    epochs = turns + 1  # so that the run does not end before the last death is noticed
    net = nets("N1", 3)
    server = net.server("--model", "seed:64", "--epochs", epochs, "--mode", mode, "--beat-ms", 200,
                        "--suspect-ms", 500, "--dead-ms", 1000, "--checkpoint-ms", 100)
    crew = [net.worker_at(i, server.endpoint, data=few) for i in range(2)]
    for turn in range(turns):
        until(lambda: net.status(server)["images"] >= turn * FEW + FEW // 10, 60, "training goes on")
        deaths = net.status(server)["counters"]["deaths"]
        net.cut("*", 1 + turn % 2)
        until(lambda: net.status(server)["counters"]["deaths"] > deaths, 30, "it counts as dead")
        net.heal()
    result = server.result()
    assert [w.wait(20) for w in crew] == [0, 0]
    wrong = sum(n != FEW for n in result["images_per_epoch"])
    figure("N1", wrong, f"of {epochs} epochs with a wrong number of images", wrong == 0, what=mode)


def test_restart_behind_a_partition(nets, figure, full):
    """The server dies and comes back while nobody can see it."""
    net = nets("N1", 4)
    turns = 10 if full else 1
    run = LedgerRun(net, 3, outlasts(2 + turns, 5), pace=(5,))
    slowest = 0
    for _ in range(turns):
        under_way(net, run)
        stood = gone_for(net, run, 0.5)
        run.kill_server()
        run.server.endpoint
        healed = net.heal()
        slowest = max(slowest, moved(net, run, stood) - healed)
    lost, twice = run.count()
    figure("N1", slowest, "s at most from healing to the slowest worker's next push",
           slowest <= soon(full))
    assert lost + twice == 0


def test_only_replies_are_lost(nets, figure, full):
    """The server hears and applies, nobody hears it: pushes that come again are not applied again."""
    net = nets("N2", 4)
    turns = 20 if full else 1
    run = LedgerRun(net, 3, outlasts(2 + turns, 3), pace=(3, NEVER))
    for turn in range(turns):
        under_way(net, run)
        net.cut(0, "*")
        time.sleep(3 + 3 * turn / turns)  # long enough for TCP to give up
        stood = seqs(net, run.server)
        net.heal()
        moved(net, run, stood)
    again = net.status(run.server)["counters"]["duplicates"]
    lost, twice = run.count()
    assert again > 0, "no push came again: nothing was tried"
    figure("N2", again, "pushes came again and were answered as duplicates", again > 0, what="again")
    figure("N2", twice, "applied twice", lost + twice == 0)
