"""Faults N1 to N4 and N8 of docs/faults.md, in network namespaces. A network fails for a while, in
both directions or in one; links are lossy or slow; connections are reset."""
import random
import time

import pytest

from namespaces import moved, seqs
from support import idx
from support.build import FULL, PATIENCE
from support.ledger import LedgerRun
from support.programs import until

# the default of --replay-window: the maximum number of pushes of a worker that are not durable
RETAINED = 256
FEW = 20000
FRAME = 425000  # the number of weights of a model; a push for this model has 1.7 MB
POOR = {"delay": 0.05, "jitter": 0.01, "loss": 0.05, "dup": 0.01, "reorder": 0.01, "hold": 0.02}
NEVER = 100000  # the number of pushes between two pulls, so large that the worker never pulls again


@pytest.fixture(scope="module")
def few(data, tmp_path_factory):
    """Returns the directory of a data set with the first FEW images."""
    directory = tmp_path_factory.mktemp("few")
    idx.cut(data, directory, FEW, 1000)
    return directory


def under_way(net, run, pushes=10):
    """Wait until the server has decided `pushes` pushes of each worker."""
    until(lambda: len(seqs(net, run.server)) == len(run.fleet)
          and min(seqs(net, run.server).values()) >= pushes, 60, "all are pushing")


def settled(net, run):
    """Wait until the seqs of the workers no longer grow: the server has then decided all pushes
    that it received before the network was cut. Returns for each worker the newest seq that the
    server has decided."""
    newest = seqs(net, run.server)
    for _ in range(100):
        time.sleep(0.1)
        before, newest = newest, seqs(net, run.server)
        if newest == before:
            return newest
    raise AssertionError("the server still decides pushes 10 s after the cut")


def gone_for(net, run, seconds):
    """Cut the network for `seconds`. Returns for each worker the newest seq that the server had
    decided when the cut ended."""
    net.cut()
    end = time.monotonic() + seconds
    before = settled(net, run)
    time.sleep(max(0, end - time.monotonic()))
    stood = seqs(net, run.server)
    assert stood == before, "something came through"
    return stood


def soon(full):
    """Returns the maximum time for a recovery, in seconds: the required time in the long form, and
    more in the short form, which may run on a busy machine."""
    return 2 * PATIENCE if full else 5 * PATIENCE


def outlasts(seconds, pace):
    """Returns the number of pushes that keep a worker busy for at least `seconds`, not counting the
    time in which the network is cut. `pace` is the time between two pushes in milliseconds."""
    return int(seconds * 1000 / pace)


def test_partition(nets, figure, full, seed):
    """For some time the network loses all packets. The workers wait, and continue without help when
    packets arrive again."""
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
    """The server's network device is down, so that sending fails with an error instead of losing
    packets."""
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
    """During a partition, a worker that makes only pushes, no pulls, retains at most
    --replay-window pushes, and then waits."""
    net = nets("N1", 2)
    run = LedgerRun(net, 1, 1500, pace=(1, NEVER))
    under_way(net, run)
    gone_for(net, run, 5 if full else 1.5)
    pushed = run.pushed()
    decided = sum(seqs(net, run.server).values())
    net.heal()
    lost, twice = run.count()
    figure("N1", pushed - decided, "pushes retained", pushed - decided <= RETAINED)
    assert lost + twice == 0


@pytest.mark.parametrize("mode", ["downpour", "ssp", "sync", "sandblaster"] if FULL else ["sync"])
def test_images_count_once_across_partitions(nets, figure, full, few, mode):
    """The test cuts the training workers off from the network, one at a time. Each worker stays cut
    off until the server has declared it dead and granted its work to others. Each image still
    counts once per epoch."""
    rounds = 8 if full else 1
    # an additional epoch, so that the server notices the last death before the run ends
    epochs = rounds + 1
    net = nets("N1", 3)
    server = net.server("--model", "seed:256", "--epochs", epochs, "--mode", mode, "--heartbeat-ms",
                        200, "--suspect-ms", 500, "--dead-ms", 1000, "--checkpoint-ms", 100)
    fleet = [net.worker_at(i, server.endpoint, data=few) for i in range(2)]
    for number in range(rounds):
        until(lambda: net.status(server)["images"] >= number * FEW + FEW // 10, 60,
              "training goes on")
        deaths = net.status(server)["counters"]["deaths"]
        net.cut("*", 1 + number % 2)
        until(lambda: net.status(server)["counters"]["deaths"] > deaths, 30, "it counts as dead")
        net.heal()
    result = server.result()
    assert [w.wait(20) for w in fleet] == [0, 0]
    wrong = sum(n != FEW for n in result["images_per_epoch"])
    figure("N1", wrong, f"of {epochs} epochs with a wrong number of images", wrong == 0, what=mode)


def test_restart_behind_a_partition(nets, figure, full):
    """The server dies and restarts during a partition."""
    net = nets("N1", 4)
    rounds = 10 if full else 1
    run = LedgerRun(net, 3, outlasts(2 + rounds, 5), pace=(5,))
    slowest = 0
    for _ in range(rounds):
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
    """The server's replies are lost, but the pushes arrive. The workers send the pushes again, and
    the server does not apply them again."""
    net = nets("N2", 4)
    rounds = 20 if full else 1
    run = LedgerRun(net, 3, outlasts(2 + rounds, 3), pace=(3, NEVER))
    for number in range(rounds):
        under_way(net, run)
        net.cut(0, "*")
        # longer than the time after which TCP ends a connection on which no acknowledgements arrive
        time.sleep(3 + 3 * number / rounds)
        stood = seqs(net, run.server)
        net.heal()
        moved(net, run, stood)
    again = net.status(run.server)["counters"]["duplicates"]
    lost, twice = run.count()
    assert again > 0, "no push came again: nothing was tried"
    figure("N2", again, "pushes came again and were answered as duplicates", again > 0,
           what="again")
    figure("N2", twice, "applied twice", lost + twice == 0)


# ---- N3 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0, 0.01, 0.03, 0.05] if FULL else [0.05])
def test_poor_link(nets, figure, full, loss):
    """The link delays, loses, duplicates and reorders packets at once: the run is slower, and
    nothing else changes."""
    net = nets("N3", 4)
    net.rule("*", "*", **{**POOR, "loss": loss})
    pushes = 300 if full else 50
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
    """The link flips bits of packets. TCP detects the wrong packets and sends them again. The
    checksums in messages detect errors that TCP does not detect."""
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
    """The transfer of a message of 1.7 MB takes seconds, and the server does not close the
    connection while bytes arrive."""
    net = nets("N4", 2)
    net.rule("*", "*", rate=megabits * 1000000, queue=60000)
    run = LedgerRun(net, 1, 3 if full else 1, size=FRAME)
    code = run.fleet[0].wait(400)
    assert code == 0, run.fleet[0].tail()
    words = dict(w.split("=") for w in run.fleet[0].out[-1].split()[1:])
    lost, twice = run.count()
    figure("N4", 100 * int(words["acked"]) / run.pushes, "% of pushes delivered",
           int(words["acked"]) == run.pushes and lost + twice == 0, what=f"at {megabits} Mbit/s")
    figure("N4", int(words["replayed"]), f"of {run.pushes} pushes sent again",
           words["replayed"] == "0", what=f"again at {megabits} Mbit/s")
    figure("N4", int(words["reconnects"]), "times that the connection was cut",
           int(words["reconnects"]) == 0, what=f"cut at {megabits} Mbit/s")


# ---- N8 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", ["tcp", "auto"])
def test_reset_storm(nets, figure, full, seed, lane):
    """Reset all connections every 100 ms, mostly in the middle of a message, because a push has 1.7
    MB. With shared-memory lanes, only the messages outside the lanes are lost."""
    net = nets("N8", 4)
    seconds = 60 if full else 4
    run = LedgerRun(net, 3, 700 if full else 15, "--lane", lane, size=FRAME, pace=(100,))
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
