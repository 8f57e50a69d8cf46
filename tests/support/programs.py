"""Real processes for the end-to-end tests.

A test starts a process, waits for what the process reports, and always ends it. The
functions never sleep for a fixed time: they wait for a line, an exit or a status, with a deadline.
If the deadline passes, the test fails and shows the last lines of the process.
"""
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request

from support.build import ROOT, command


class Process:
    """A running program. Threads read its stdout and stderr into lists of lines."""

    def __init__(self, name, argv, env=None):
        self.name = name
        self.lines = []
        self.out = []
        self.news = threading.Condition()
        clean = {k: v for k, v in os.environ.items() if not k.startswith("CNN_") or k == "CNN_DATA"}
        self.popen = subprocess.Popen(
            argv, cwd=ROOT, env=dict(clean, **(env or {}), **self._open(env)),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace")
        self.threads = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in
                        ((self.popen.stdout, self.out), (self.popen.stderr, self.lines))]
        for t in self.threads:
            t.start()

    @staticmethod
    def _open(env):
        """Returns the additional variables for an environment with the variables `env`. A library
        that a test loads with LD_PRELOAD reads files that the sandbox of cnn-ps forbids. Therefore,
        if `env` has LD_PRELOAD, the additional variables turn the sandbox off."""
        return {"CNN_SANDBOX": "off"} if "LD_PRELOAD" in (env or {}) else {}

    def _read(self, stream, lines):
        for line in stream:
            with self.news:
                lines.append(line.rstrip("\n"))
                self.news.notify_all()
        with self.news:
            self.news.notify_all()

    def line(self, pattern, seconds=20, after=0):
        """Wait for the first line of either output that matches `pattern`, from line number `after`
        on. Returns the match."""
        def find():
            for lines in (self.lines, self.out):
                for text in lines[after:]:
                    found = re.search(pattern, text)
                    if found:
                        return found
            return None
        end = time.monotonic() + seconds
        with self.news:
            while True:
                found = find()
                if found:
                    return found
                left = end - time.monotonic()
                closed = not any(t.is_alive() for t in self.threads)
                assert left > 0 and not closed, f"no line like {pattern!r} from {self.tail()}"
                self.news.wait(min(left, 0.5))

    def wait(self, seconds=60):
        """Wait until the process ends. Returns its exit status."""
        try:
            code = self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s: {self.tail()}") from None
        for t in self.threads:
            t.join(5)
        return code

    def signal(self, number):
        self.popen.send_signal(number)

    def kill(self):
        if self.popen.poll() is None:
            self.popen.kill()
        return self.wait(10)

    def running(self):
        return self.popen.poll() is None

    def tail(self):
        text = "\n  ".join((self.lines + self.out)[-25:])
        return f"{self.name} (exit {self.popen.poll()}):\n  {text}"


class Server(Process):
    """cnn-ps on a free port, or on the port of the server that it replaces."""

    def __init__(self, directory, options, endpoint="tcp://127.0.0.1:0", wrap=(), env=None,
                 program="cnn-ps"):
        self.directory = directory
        self.asked = endpoint
        place = ["--checkpoint-dir", directory] if directory else []
        if "127.0.0.1" not in endpoint and "--key" not in options:
            # --insecure is safe here, because only the test's own network reaches this endpoint
            place.append("--insecure")
        if "--http" not in options:
            place += ["--http", "127.0.0.1:0"]
        super().__init__("cnn-ps", [*wrap, *command(
            program, "--bind", endpoint, *place, *options)], env)

    @property
    def endpoint(self):
        return self.line(r"net listening.* endpoint=(\S+)")[1]

    def status(self, timeout=5):
        address = self.line(r"http listening.* (?:endpoint|url|address)=(?:http://)?(\S+?)/?$")[1]
        with urllib.request.urlopen(f"http://{address}/status", timeout=timeout) as reply:
            return json.load(reply)

    def result(self, seconds=120):
        """Wait until the run ends by itself. Returns the final JSON line of the server."""
        code = self.wait(seconds)
        assert code == 0, self.tail()
        assert len(self.out) == 1, f"not one line on stdout: {self.tail()}"
        return json.loads(self.out[0])


class Programs:
    """The processes of one test. close() ends each process that is still running."""

    def __init__(self, directory, data):
        self.directory = directory
        self.data = data
        self.processes = []

    def add(self, process):
        self.processes.append(process)
        return process

    def server(self, *options, directory="ckpt", endpoint="tcp://127.0.0.1:0", **how):
        """Start a server. The keyword arguments `how` are optional: `wrap` is a command line that
        precedes the command line of the program. `env` has additional environment variables.
        `program` is the name of the program to start instead of cnn-ps."""
        path = self.directory / directory if directory else None
        return self.add(Server(path, options, endpoint, **how))

    def restart(self, server, *options, **how):
        """Start a new server process in place of the dead process `server`, with its directory and
        port."""
        endpoint = server.endpoint if server.asked.endswith(":0") else server.asked
        return self.add(Server(server.directory, options, endpoint, **how))

    def worker(self, endpoint, *options, data=None, program="cnn-worker"):
        return self.add(Process("cnn-worker", command(
            program, "--server", endpoint, "--data", data or self.data, "--device", "cpu",
            "--threads", 1, *options)))

    def train(self, workers, *options, data=None, seconds=150, **how):
        """Train a run to its end. All workers must succeed. Returns the server's final JSON
        line."""
        server = self.server(*options, **how)
        fleet = [self.worker(server.endpoint, data=data) for _ in range(workers)]
        result = server.result(seconds)
        for worker in fleet:
            assert worker.wait(10) == 0, worker.tail()
        return result

    def ledger_worker(self, endpoint, index, pushes, *pace, wrap=()):
        """Start a worker that pushes the ledger gradient. `pace`: the milliseconds between two
        pushes, or nothing."""
        return self.add(Process(f"ledger {index}", [*wrap, *command(
            "tests/tools/ledger_worker", endpoint, index, pushes, *pace)]))

    def keygen(self, *names, directory="keys"):
        """Create a directory with fresh keys."""
        path = self.directory / directory
        self.ctl("keygen", path, *names)
        return path

    def ctl(self, *arguments, code=0, seconds=30, program="cnn-ctl"):
        ctl = self.add(Process("cnn-ctl", command(program, *arguments)))
        assert ctl.wait(seconds) == code, ctl.tail()
        return ctl

    def export(self, source, name="export.safetensors"):
        """Export the weights, from a live server's endpoint or from a checkpoint directory."""
        file = self.directory / name
        if isinstance(source, str):
            self.ctl("--server", source, "export", file)
        else:
            self.ctl("export", "--checkpoint", source, file)
        return file

    def close(self):
        for p in self.processes:
            p.kill()


def until(probe, seconds, what):
    """Call `probe` until it returns a true value, and return this value. The test fails after
    `seconds`."""
    end = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < end, f"after {seconds} s still not: {what}"
        time.sleep(0.02)


def mount_small(place, size):
    """Mount a new file system of `size`, for example "6m", at `place`. Returns "", or the reason
    why mount failed."""
    place.mkdir()
    return subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], text=True,
                          stderr=subprocess.PIPE, check=False).stderr.strip()


def mount_image(image, place):
    """Create an ext4 file system in the file `image`, and mount it at `place`. freeze() can freeze
    such a file system. Returns "", or the reason why mkfs.ext4 or mount failed."""
    place.mkdir()
    with image.open("wb") as f:
        f.truncate(32 << 20)
    for words in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, place]):
        run = subprocess.run(words, text=True, stderr=subprocess.PIPE, check=False)
        if run.returncode:
            return run.stderr.strip() or f"{words[0]} failed"
    return ""


def freeze(place, how):
    """Freeze (how: "-f") or thaw (how: "-u") the file system. While the file system is frozen,
    writes wait in the kernel. Returns True if the command succeeded."""
    return subprocess.run(["fsfreeze", how, place], check=False).returncode == 0


def unmount(place):
    subprocess.run(["umount", "-l", place], check=True)


def fill(file):
    """Write to the file until the disk is full."""
    with file.open("wb", buffering=0) as f:
        try:
            while True:
                f.write(bytes(4096))
        except OSError:
            pass


SIGTERM = signal.SIGTERM
