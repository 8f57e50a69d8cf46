"""Networks for tests. Each host is a network namespace, and one lossy link (lossy_link.c) connects
all hosts.

The namespaces have no names. The kernel removes a namespace when this process has closed the
namespace's descriptor and no process is inside. So a test leaves no namespace behind, however it
ends. All addresses are in 198.18.0.0/15, and a namespace has routes to the other namespaces only,
so no packet can leave the machine. `with host:` moves this thread into the host's namespace. A
process that the thread starts in the `with` block, or a socket that it opens there, belongs to the
host's namespace.
"""
import ctypes
import os
import subprocess
import time

from support.build import command
from support.programs import Programs, until

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
MILLION = 1000000
# rules whose values are shares of all packets, from 0 to 1
PARTS = ("loss", "dup", "reorder", "corrupt")
TIMES = ("delay", "jitter", "hold")            # rules whose values are times in seconds


class NoNetwork(Exception):
    """Raised if this machine does not let the test make network namespaces."""


def _own():
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _enter(fd):
    if LIBC.setns(fd, CLONE_NEWNET):
        raise NoNetwork(f"setns: {os.strerror(ctypes.get_errno())}")


class Host:
    """A network namespace with one address."""

    def __init__(self, number):
        self.address = f"198.18.0.{number + 1}"
        self.homes = []
        home = _own()
        if LIBC.unshare(CLONE_NEWNET):
            os.close(home)
            raise NoNetwork(f"unshare: {os.strerror(ctypes.get_errno())}")
        self.fd = _own()
        _enter(home)
        os.close(home)

    @property
    def path(self):
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def __enter__(self):
        self.homes.append(_own())
        _enter(self.fd)
        return self

    def __exit__(self, *_):
        home = self.homes.pop()
        _enter(home)
        os.close(home)

    def run(self, *argv):
        """Run a command in the namespace. Returns its output."""
        with self:
            done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def link(self, state):
        self.run("ip", "link", "set", "wire", state)

    def connections(self):
        """Returns the established TCP connections of the namespace, except for those on
        loopback."""
        lines = self.run("ss", "-Htn", "state", "established").splitlines()
        return [line for line in lines if "127.0.0.1" not in line]

    def close(self):
        os.close(self.fd)


def no_lane(options):
    """Returns an option of cnn-ps: the hosts stand for machines, which share no memory, so a server
    offers no lanes unless the options say so."""
    return () if "--lane" in options else ("--lane", "tcp")


class NetPrograms(Programs):
    """Programs on the hosts of a network: the server on host 0, and the workers in turn on the
    other hosts."""

    def __init__(self, directory, data, seed, hosts):
        super().__init__(directory, data)
        self.hosts = []
        self.wire = None
        try:
            self._build(seed, hosts)
        except Exception:
            self.close()
            raise

    def _build(self, seed, hosts):
        for i in range(hosts):
            self.hosts.append(Host(i))
        ports = [f"{h.path}={h.address}" for h in self.hosts]
        self.wire = subprocess.Popen(command("tests/fault/lossy_link", seed, *ports), text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE)
        if self.wire.stdout.readline() != "ready\n":
            raise NoNetwork(self.wire.stderr.readline().strip())
        for host in self.hosts:
            host.run("ip", "link", "set", "lo", "up")
            host.run("ip", "address", "add", f"{host.address}/24", "dev", "wire")
            host.link("up")

    @property
    def home(self):
        return self.hosts[0]

    # ---- the lossy link

    def _say(self, line):
        self.wire.stdin.write(line + "\n")
        self.wire.stdin.flush()
        answer = self.wire.stdout.readline()
        assert answer.startswith("ok"), f"{line!r}: {answer!r}"
        return answer

    def rule(self, source, target, **rules):
        """Set rules for the direction from host `source` to host `target` from now on. A host is a
        number, or "*" for all hosts. Shares are from 0 to 1, times in seconds, `rate` in bit/s."""
        words = []
        for key, value in rules.items():
            factor = MILLION if key in PARTS + TIMES else 1
            words.append(f"{key}={int(value * factor)}")
        self._say(" ".join([str(source), str(target), *words]))

    def cut(self, source="*", target="*"):
        self.rule(source, target, loss=1)

    def heal(self):
        self.rule("*", "*", loss=0)
        return time.monotonic()

    def count(self):
        """Returns the numbers of packets that the link has counted so far, by kind."""
        return {k: int(v) for k, v in (w.split("=") for w in self._say("count").split()[1:])}

    # ---- processes, each on its host

    def server(self, *options, directory="ckpt", endpoint=None, **how):
        with self.home:
            return super().server(*options, *no_lane(options), directory=directory,
                                  endpoint=endpoint or f"tcp://{self.home.address}:0", **how)

    def restart(self, server, *options, **how):
        with self.home:
            return super().restart(server, *options, *no_lane(options), **how)

    def _host_of(self, index):
        return self.hosts[1 + index % (len(self.hosts) - 1)]

    def ledger_worker(self, endpoint, index, *arguments, **how):
        with self._host_of(index):
            return super().ledger_worker(endpoint, index, *arguments, **how)

    def worker_at(self, index, endpoint, *options, data=None):
        with self._host_of(index):
            return self.worker(endpoint, *options, data=data)

    def status(self, server):
        with self.home:
            return server.status()

    def close(self):
        super().close()
        if self.wire:
            self.wire.stdin.close()
            self.wire.wait(10)
            self.wire.stdout.close()
            self.wire.stderr.close()
        for host in self.hosts:
            host.close()
        self.hosts = []


# ---- what a test observes ------------------------------------------------------------------------


def seqs(net, server):
    """Returns {worker name: newest decided seq} for all workers."""
    return {w["name"]: w["last_seq"] for w in net.status(server)["workers"]}


def moved(net, run, than, seconds=60):
    """Wait until the server has decided, for each worker, a push with a higher seq than the worker
    has in `than`, which is an earlier result of seqs(). Returns the time.monotonic() at the end of
    the wait."""
    until(lambda: all(n > than.get(name, 0) for name, n in seqs(net, run.server).items())
          and len(seqs(net, run.server)) >= len(run.fleet), seconds, f"all are past {than}")
    return time.monotonic()
