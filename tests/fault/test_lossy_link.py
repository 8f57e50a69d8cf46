"""Tests of the lossy link itself: its effect on packets depends only on its rules and its seed."""
import socket
import subprocess
import time

from support.build import command


def deliveries(seed, direction, *rules):
    """Returns what lossy_link predicts for 20000 packets, one tuple per packet: (lost, doubled,
    overtaken, corrupt, delay in microseconds)."""
    argv = command("tests/fault/lossy_link", "--predict", seed, *direction, 20000, *rules)
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [tuple(map(int, line.split())) for line in out.splitlines()]


def test_the_link_model_is_a_function_of_the_seed(seed):
    rules = ("loss=50000", "dup=10000", "reorder=20000", "delay=50000", "jitter=10000")
    first = deliveries(seed, (0, 1), *rules)
    assert deliveries(seed, (0, 1), *rules) == first
    assert deliveries(seed, (1, 0), *rules) != first and deliveries(seed + 1, (0, 1), *rules) != first
    for column, share in ((0, 0.05), (1, 0.01), (2, 0.02), (3, 0)):
        assert abs(sum(f[column] for f in first) / len(first) - share) < 0.01
    assert min(f[4] for f in first) < 41000 and max(f[4] for f in first) > 59000


def test_wire_does_what_its_rules_say(nets):
    """Send UDP packets through the link and check how many arrive, how many arrive twice, how late
    they arrive, and in which order. Repeat this with a limited rate, and with a direction that is
    cut."""
    net = nets("N3", 2)
    with net.hosts[0]:
        there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        there.bind((net.home.address, 0))
    with net.hosts[1]:
        here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    there.settimeout(0.5)

    def through(count, size=100):
        """Send `count` packets. Returns the numbers of the packets that arrive, and the arrival
        time of each."""
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
    got, times = through(100, 1000)  # 100 packets of 1028 bytes take 0.82 s at 1 Mbit/s
    assert got == list(range(100)) and times[-1] >= 0.8
    # all packets are corrupt, and the kernel drops a packet with a wrong checksum
    net.rule(1, 0, rate=0, corrupt=1)
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
