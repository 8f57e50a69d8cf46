"""Rows N1 to N4 and N8, in namespaces: networks that are gone for a while, whole or in one direction, lossy
links, slow links, connections that are reset."""
import random
import time

import pytest

from namespaces import moved, seqs
from support import idx
from support.build import FULL, PATIENCE
from support.ledger import LedgerRun
from support.programs import until

KEPT = 256  # --replay-window's default: pushes that a worker may have outside a checkpoint
FEW = 20000
FRAME = 425000  # values: 1.7 MB
POOR = {"delay": 0.05, "jitter": 0.01, "loss": 0.05, "dup": 0.01, "reorder": 0.01, "hold": 0.02}
NEVER = 100000  # pushes between two pulls: so pushes alone are under way


@pytest.fixture(scope="module")
def few(data, tmp_path_factory):
    """Some of the images."""
    directory = tmp_path_factory.mktemp("few")
    idx.cut(data, directory, FEW, 1000)
    return directory


def under_way(net, run, pushes=10):
    """Each worker has had some pushes decided."""
    until(lambda: len(seqs(net, run.server)) == len(run.fleet)
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
    assert all(w.running() for w in run.fleet), "the run ended before the faults"
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
    server = net.server("--model", "seed:64", "--epochs", epochs, "--mode", mode, "--heartbeat-ms", 200,
                        "--suspect-ms", 500, "--dead-ms", 1000, "--checkpoint-ms", 100)
    fleet = [net.worker_at(i, server.endpoint, data=few) for i in range(2)]
    for turn in range(turns):
        until(lambda: net.status(server)["images"] >= turn * FEW + FEW // 10, 60, "training goes on")
        deaths = net.status(server)["counters"]["deaths"]
        net.cut("*", 1 + turn % 2)
        until(lambda: net.status(server)["counters"]["deaths"] > deaths, 30, "it counts as dead")
        net.heal()
    result = server.result()
    assert [w.wait(20) for w in fleet] == [0, 0]
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


# ---- N3 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0, 0.01, 0.03, 0.05] if FULL else [0.05])
def test_poor_link(nets, figure, full, loss):
    """Delay, jitter, loss, duplicates, reordering at once: slower, and nothing else."""
    net = nets("N3", 4)
    net.rule("*", "*", **{**POOR, "loss": loss})
    pushes = 300 if full else 25
    run = LedgerRun(net, 3, pushes, size=4000)
    until(lambda: len(seqs(net, run.server)) == 3, 60, "all are welcome")
    begun = time.monotonic()
    until(lambda: sum(seqs(net, run.server).values()) == 3 * pushes, 600, "all is pushed")
    rate = 3 * pushes / (time.monotonic() - begun)
    counters = net.status(run.server)["counters"]
    counted = net.count()
    lost, twice = run.count()
    assert counted["dup"] > 0 and counted["reorder"] > 0 and (counted["lost"] > 0) == (loss > 0)
    what = f"with {loss:.0%} loss"
    figure("N3", rate, "pushes/s of 16 kB", rate > 0, what=f"speed {what}")
    figure("N3", counters["deaths"], f"false deaths {what}", counters["deaths"] == 0,
           what=f"deaths {what}")
    figure("N3", lost + twice, f"lost or applied twice {what}", lost + twice == 0, what=what)


def test_corrupt_packets(nets, figure, full):
    """Bits that flip on the way: TCP sends again; what it misses, the checksums would find."""
    net = nets("N3", 3)
    net.rule("*", "*", corrupt=0.02)
    run = LedgerRun(net, 2, 300 if full else 60, size=40000)
    lost, twice = run.count()
    corrupt = net.count()["corrupt"]
    figure("N3", corrupt, "corrupt packets, no push lost or applied twice",
           corrupt > 0 and lost + twice == 0)


# ---- N4 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("megabits", [1, 4] if FULL else [4])
def test_slow_link(nets, figure, full, megabits):
    """1.7 MB a message: seconds each, and never cut while they make progress."""
    net = nets("N4", 2)
    net.rule("*", "*", rate=megabits * 1000000, queue=60000)
    run = LedgerRun(net, 1, 3 if full else 1, size=FRAME)
    code = run.fleet[0].wait(400)
    assert code == 0, run.fleet[0].tail()
    words = dict(w.split("=") for w in run.fleet[0].out[-1].split()[1:])
    lost, twice = run.count()
    figure("N4", 100 * int(words["acked"]) / run.pushes, "% of pushes delivered",
           int(words["acked"]) == run.pushes and lost + twice == 0, what=f"at {megabits} Mbit/s")
    figure("N4", int(words["replayed"]), f"of {run.pushes} pushes sent again", words["replayed"] == "0",
           what=f"again at {megabits} Mbit/s")
    figure("N4", int(words["reconnects"]), "times cut", int(words["reconnects"]) == 0,
           what=f"cut at {megabits} Mbit/s")


# ---- N8 --------------------------------------------------------------------------------------


def test_reset_storm(nets, figure, full, seed):
    """Every 100 ms all connections are reset, most of them in the middle of 1.7 MB."""
    net = nets("N8", 4)
    seconds = 60 if full else 4
    run = LedgerRun(net, 3, 700 if full else 15, size=FRAME, pace=(100,))
    until(lambda: len(seqs(net, run.server)) == 3, 60, "all are welcome")
    port = run.server.endpoint.rsplit(":", 1)[1]
    ends, resets = time.monotonic() + seconds, 0
    while time.monotonic() < ends and any(w.running() for w in run.fleet):
        killed = net.home.run("ss", "-HtnK", "state", "established", "sport", "=", f":{port}")
        resets += len(killed.splitlines())
        time.sleep(0.1)
    lost, twice = run.count()
    assert resets >= 10, f"only {resets} connections were reset"
    figure("N8", lost + twice, f"lost or applied twice after {resets} resets", lost + twice == 0)
