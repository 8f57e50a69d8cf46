"""The bad wire itself; then rows N3, N4, N8: lossy links, slow links, connections that are reset."""
import socket
import subprocess
import time

import pytest

from flavour import FULL, command
from lab import until
from ledger import LedgerRun
from netlab import seqs

FRAME = 425000  # values: 1.7 MB
POOR = {"delay": 0.05, "jitter": 0.01, "loss": 0.05, "dup": 0.01, "reorder": 0.01, "hold": 0.02}


# ---- the wire --------------------------------------------------------------------------------


def fates(seed, direction, *rules):
    """[(lost, doubled, overtaken, corrupt, delay in us)] of 20000 packets."""
    argv = command("tests/fault/badwire", "--fates", seed, *direction, 20000, *rules)
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [tuple(map(int, line.split())) for line in out.splitlines()]


def test_fates_are_a_function_of_the_seed(seed):
    rules = ("loss=50000", "dup=10000", "reorder=20000", "delay=50000", "jitter=10000")
    first = fates(seed, (0, 1), *rules)
    assert fates(seed, (0, 1), *rules) == first
    assert fates(seed, (1, 0), *rules) != first and fates(seed + 1, (0, 1), *rules) != first
    for column, share in ((0, 0.05), (1, 0.01), (2, 0.02), (3, 0)):
        assert abs(sum(f[column] for f in first) / len(first) - share) < 0.01
    assert min(f[4] for f in first) < 41000 and max(f[4] for f in first) > 59000


def test_wire_does_what_its_rules_say(nets):
    """UDP through it: how many arrive, twice, late, out of order; a limited rate; a cut direction."""
    net = nets("N3", 2)
    with net.hosts[0]:
        there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        there.bind((net.home.address, 0))
    with net.hosts[1]:
        here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    there.settimeout(0.5)

    def through(count, size=100):
        """What arrives of so many, and when the first and last."""
        begun = time.monotonic()
        got, times = [], []
        for k in range(count):
            here.sendto(k.to_bytes(4, "big") + bytes(size - 4), there.getsockname())
        try:
            while True:
                got.append(int.from_bytes(there.recv(2000)[:4], "big"))
                times.append(time.monotonic() - begun)
        except TimeoutError:
            return got, times

    assert through(200)[0] == list(range(200))
    net.rule(1, 0, loss=0.3, dup=0.2)
    got, _ = through(200)
    assert 100 <= len(set(got)) <= 180 and 10 <= len(got) - len(set(got)) <= 60
    net.rule(1, 0, loss=0, dup=0, delay=0.2, jitter=0.01, reorder=0.1, hold=0.05)
    got, times = through(200)
    assert times[0] >= 0.19 and sorted(got) == list(range(200)) != got
    net.rule(1, 0, delay=0, jitter=0, reorder=0, rate=1000000, queue=1000000)
    got, times = through(100, 1000)  # 100 * 1028 bytes at 1 Mbit/s: 0.82 s
    assert got == list(range(100)) and times[-1] >= 0.8
    net.rule(1, 0, rate=0, corrupt=1)  # a checksum does not fit any more: the kernel drops it
    assert through(100)[0] == []
    net.rule(1, 0, corrupt=0)
    net.cut(0, 1)
    assert through(10)[0] == list(range(10))
    net.cut(1, 0)
    assert through(10)[0] == []
    counted = net.count()
    assert counted["corrupt"] == 100 and counted["lost"] >= 10 and counted["strange"] < 100
    here.close()
    there.close()


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
    code = run.crew[0].wait(400)
    assert code == 0, run.crew[0].tail()
    words = dict(w.split("=") for w in run.crew[0].out[-1].split()[1:])
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
    while time.monotonic() < ends and any(w.running() for w in run.crew):
        killed = net.home.run("ss", "-HtnK", "state", "established", "sport", "=", f":{port}")
        resets += len(killed.splitlines())
        time.sleep(0.1)
    lost, twice = run.count()
    assert resets >= 10, f"only {resets} connections were reset"
    figure("N8", lost + twice, f"lost or applied twice after {resets} resets", lost + twice == 0)
