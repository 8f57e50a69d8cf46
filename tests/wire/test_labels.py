"""Every view of the server's state shows a label of each worker: its host, pid and address. The
length of a label is bounded, and no decision of the server depends on a label."""
import os
import pty
import re
import struct
import subprocess
import termios
import urllib.request
from fcntl import ioctl

import numpy as np
import pyte
import pytest

from conftest import LEDGER

from client import Keys, Link, Refused, Worker, hello, pb
from support.build import PATIENCE, command
from support.programs import until

EPROTO, EFENCED = 12, 6


@pytest.fixture
def server(programs):
    return programs.server(*LEDGER, "--dead-ms", 60000, directory=None)


def workers(server):
    return {w["worker"]: w for w in server.status()["workers"]}


def label(server, worker):
    w = workers(server)[worker]
    return w["host"], w["pid"], w["address"]


def metrics(server):
    url = server.line(r"http listening.* url=(\S+)")[1]
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as reply:
        return reply.read().decode()


def push(worker, k=0):
    gradient = np.zeros(worker.welcome.n_params, np.float32)
    gradient[k] = 1
    return worker.push(gradient, 0).verdict


def test_status_metrics_and_log_have_the_label(server):
    worker = Worker(server.endpoint, "job7", host='no"de\\7', pid=4194304)
    nameless = Worker(server.endpoint)
    assert label(server, worker.stamp.worker) == ('no"de\\7', 4194304, "127.0.0.1")
    assert label(server, nameless.stamp.worker) == (None, None, "127.0.0.1")
    info = re.findall(r"^cnnps_worker_info(.*)$", metrics(server), re.M)
    assert info == ['{worker="1",name="job7",host="no\\"de\\\\7",pid="4194304",address="127.0.0.1",'
                    'wire="fp32"} 1',
                    '{worker="2",name="",host="",pid="0",address="127.0.0.1",wire="fp32"} 1']
    server.line(r'"worker joined" worker=1 .*host="no\\"de\\\\7" pid=4194304 address="127.0.0.1"')
    worker.bye()
    server.line(r'"worker gone" worker=1 .* pid=4194304')
    nameless.close()


def keys_with_an_at_sign(programs):
    """Returns keys whose Z85 text contains @. The server uses the same character to separate the
    name of a worker from its key."""
    for i in range(300):
        keys = programs.keygen(directory=f"keys{i}")
        listed = (keys / "authorized_keys").read_text()
        if any("@" in key[:8] for key in re.findall(r"^worker (\S{40})", listed, re.M)):
            return keys
    raise AssertionError("no key with @ among 300")


@pytest.mark.parametrize("keys_of", [lambda programs: programs.keygen(), keys_with_an_at_sign])
def test_the_address_of_a_worker_with_a_key(programs, keys_of):
    """For its write-ahead log, the server appends the key to the name in a HELLO and encodes the
    HELLO again. After this, the HELLO must still have the address of the worker."""
    keys = keys_of(programs)
    server = programs.server(*LEDGER, "--key", keys / "server.key", directory=None)
    worker = Worker(server.endpoint, "job7", host="a", pid=1,
                    keys=Keys(keys / "worker.key", keys / "server.pub"))
    assert label(server, 1) == ("a", 1, "127.0.0.1")
    newer = Worker(server.endpoint, "job7", host="b", pid=2,
                   keys=Keys(keys / "worker.key", keys / "server.pub"))
    with pytest.raises(Refused, match='took over --name "job7": this one runs on a pid 1, the new '
                       "one on b pid 2;"):
        push(worker)
    newer.close()


def test_a_label_is_bounded_and_printable(server):
    link = Link(server.endpoint)
    for host in ("x" * 65, "a\nb", "a\x1b[2J", "a\x7f", "a\x9b2J"):
        link.send(hello(host=host, pid=1))
        name, body, _ = link.receive()
        assert name == "error" and body.code == EPROTO, host
    link.send(hello(host="\u00e4" * 32, pid=2 ** 32 - 1))
    assert link.receive()[0] == "welcome"
    assert label(server, 1) == ("\u00e4" * 32, 2 ** 32 - 1, "127.0.0.1")
    link.close()


def test_a_label_never_fences(server):
    """Two processes with the same label are two different workers. A process whose label is
    different when it reconnects is still the same worker."""
    a, b = (Worker(server.endpoint, host="same", pid=7) for _ in range(2))
    assert a.stamp.worker != b.stamp.worker
    assert push(a) == push(b, 1) == pb.VERDICT_OK
    before = a.stamp.incarnation
    a.host, a.pid = "elsewhere", 8
    a.reconnect()
    assert a.stamp.incarnation == before and push(a, 2) == pb.VERDICT_OK
    assert label(server, a.stamp.worker)[:2] == ("elsewhere", 8)
    assert label(server, b.stamp.worker)[:2] == ("same", 7)
    assert server.status()["counters"]["deaths"] == 0
    a.close()
    b.close()


def test_each_fenced_process_of_a_name_gets_its_own_host(server):
    """Six processes have the same --name, as in a Slurm job whose tasks all run the same
    command."""
    fleet = [Worker(server.endpoint, "job7", host=f"node-{i}", pid=100 + i) for i in range(6)]
    last = fleet.pop()
    for i, worker in enumerate(fleet):
        for say in (lambda w: push(w), lambda w: w.reconnect()):
            with pytest.raises(Refused) as refused:
                say(worker)
            assert refused.value.code == EFENCED
            assert (f'--name "job7": this one runs on node-{i} pid {100 + i}, the new one on node-5 '
                    "pid 105; give each worker its own --name or none") in str(refused.value)
        server.line(rf'level=warn msg="worker fenced".* host="node-{i}" pid={100 + i} .*'
                    r'new_host="node-5" new_pid=105 .*--name')
    assert sum("worker fenced" in line for line in server.lines) == len(fleet)
    assert push(last) == pb.VERDICT_OK
    for worker in (*fleet, last):
        worker.close()


def test_labels_come_back_after_a_restart(programs):
    server = programs.server(*LEDGER, "--recovery-ms", 0)
    worker = Worker(server.endpoint, "job7", host="a", pid=1)
    assert push(worker) == pb.VERDICT_OK
    # wait for this file, because another thread of the server writes it
    history = server.directory / "history.jsonl"
    until(lambda: '"host":"a"' in history.read_text().replace(" ", ""), 20, "the history has the host")
    server.kill()
    server = programs.restart(server, *LEDGER, "--recovery-ms", 0)
    server.line("net listening")
    # until the worker returns, the server takes the worker's host from the history file
    assert label(server, 1) == ("a", None, None)
    worker.reconnect()
    assert label(server, 1) == ("a", 1, "127.0.0.1")
    newer = Worker(server.endpoint, "job7", host="b", pid=2)
    with pytest.raises(Refused, match="this one runs on a pid 1, the new one on b pid 2"):
        push(worker, 1)
    newer.close()


def test_after_a_restart_the_newer_process_may_be_first(programs):
    """After a restart of the server, the newer of two processes of one name connects first. The
    server must refuse the HELLO of the older process with an error that names both hosts, even if
    the host names differ only in their last characters."""
    server = programs.server(*LEDGER, "--recovery-ms", 0)
    hosts = ["node-of-a-cluster-with-long-names-" + which for which in ("a", "b")]
    older = Worker(server.endpoint, "job7", host=hosts[0], pid=1)
    newer = Worker(server.endpoint, "job7", host=hosts[1], pid=2)
    server.kill()
    server = programs.restart(server, *LEDGER, "--recovery-ms", 0)
    newer.reconnect()
    with pytest.raises(Refused, match=f"this one runs on {hosts[0]} pid 1, the new one on "
                       f"{hosts[1]} pid 2;"):
        older.reconnect()
    server.line(f'"worker fenced".* host="{hosts[0]}" pid=1 .*new_host="{hosts[1]}" new_pid=2')
    newer.close()
    older.close()


# ---- cnn-ctl top

def top(server, columns, rows):
    """Returns the lines that `cnn-ctl top` shows on a terminal of this size."""
    master, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    ctl = subprocess.Popen(command("cnn-ctl", "--server", server.endpoint, "top"), stdin=terminal,
                           stdout=terminal, stderr=subprocess.DEVNULL,
                           env={**os.environ, "TERM": "screen-256color"})
    os.close(terminal)
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    try:
        while not any("q quit" in line for line in screen.display):
            stream.feed(os.read(master, 65536))
    finally:
        ctl.kill()
        ctl.wait(5 * PATIENCE)
        os.close(master)
    return [line.rstrip() for line in screen.display]


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_top_fits_the_terminal(programs, columns):
    server = programs.server("--model", "fc:10", "--dead-ms", 60000, directory=None)
    images = pb.DataId(n_train=1000, n_test=100, rows=28, cols=28, classes=10, xxh3=1)
    fleet = [Worker(server.endpoint, f"a-rather-long-name-of-job-{i:02}", host=f"gpu-{i:04}",
                   pid=4190000 + i, data=images) for i in range(30)]
    lines = top(server, columns, 24)
    titles = next(line for line in lines if line.lstrip().startswith("#"))
    assert {"name", "host", "state", "images/s", "stale"} <= set(titles.split())
    assert ("device" in titles and "compute" in titles) == (columns >= 80)
    assert ({"pull", "copy", "ack", "work"} <= set(titles.split())) == (columns >= 120)
    assert ("address" in titles and "pid" in titles) == (columns >= 200)
    row = next(line for line in lines if re.match(r" *1 ", line))
    assert "gpu-0000" in row and ("4190000" in row) == (columns >= 200)
    assert re.search(r"^workers 1 to \d+ of 30$", "\n".join(lines), re.M)
    for worker in fleet:
        worker.close()
