"""cnn-ctl top on a terminal: how it ends, what it shows, and in what state it leaves the
terminal."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from support.build import command
from support.programs import SIGTERM, until

ENDLESS = ("--model", "seed:8", "--epochs", 1000)
OPENED, CLOSED = "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """cnn-ctl top in a session of its own, on a terminal of 24 lines of 80 characters."""

    def __init__(self, endpoint, *options):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.text = ""

        def own():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.popen = subprocess.Popen(
            command("cnn-ctl", "--server", endpoint, *options, "top"), stdin=self.slave,
            stdout=self.slave, stderr=self.slave, preexec_fn=own)

    def read(self, seconds=0.0):
        while select.select([self.master], [], [], seconds)[0]:
            self.text += os.read(self.master, 65536).decode(errors="replace")
            seconds = 0
        return self.text

    def shows(self, pattern, seconds=10):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.read(0.05)):
            assert time.monotonic() < end, f"{pattern!r} is not on:\n{self.text[-3000:]}"

    def type(self, keys):
        os.write(self.master, keys)

    def wait(self, seconds=10):
        """Wait until top has ended and has restored the terminal. Returns its exit status."""
        until(lambda: self.read(0.02) is None or self.popen.poll() is not None, seconds,
              "top has ended")
        self.read(0.1)
        assert termios.tcgetattr(self.slave)[3] & (termios.ICANON | termios.ECHO) == \
            termios.ICANON | termios.ECHO
        assert termios.tcgetattr(self.slave) == self.before
        assert self.text.count(OPENED) == self.text.count(CLOSED) >= 1
        assert self.text.rindex("\x1b[?25h") > self.text.rindex("\x1b[?25l")
        return self.popen.returncode

    def last_line(self):
        return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", self.text).strip().splitlines()[-1]

    def close(self):
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal():
    opened = []

    def start(*arguments):
        opened.append(Terminal(*arguments))
        return opened[-1]
    yield start
    for t in opened:
        t.close()


@pytest.mark.parametrize("durable", [True, False])
def test_top_ends_with_the_run_and_its_accuracy(programs, small, terminal, durable):
    server = programs.server("--model", "seed:8", "--epochs", 30,
                             directory="ckpt" if durable else None)
    worker = programs.worker(server.endpoint, data=small)
    top = terminal(server.endpoint)
    top.shows("epoch [1-9]")
    accuracy = server.result()["accuracy"]
    assert top.wait() == 0, top.last_line()
    assert f"training done: accuracy {100 * accuracy:.2f} %" in top.last_line()
    assert worker.wait(10) == 0


def test_the_end_is_noticed_whenever_top_asks(programs, small, terminal):
    """Eight programs at once, which request the status at different moments of a second."""
    server = programs.server("--model", "seed:8", "--epochs", 40)
    programs.worker(server.endpoint, data=small)
    tops = []
    for _ in range(8):
        tops.append(terminal(server.endpoint))
        time.sleep(0.13)
    server.result()
    for top in tops:
        assert top.wait() == 0 and "training done" in top.last_line(), top.last_line()


def test_top_of_a_drained_run_says_so(programs, small, terminal):
    server = programs.server(*ENDLESS)
    programs.worker(server.endpoint, data=small)
    top = terminal(server.endpoint)
    top.shows("epoch [1-9]")
    programs.ctl("--server", server.endpoint, "drain")
    assert top.wait() == 0
    assert "training drained" in top.last_line()


def test_top_of_a_killed_server_does_not_say_that_the_run_is_done(programs, terminal):
    server = programs.server(*ENDLESS)
    top = terminal(server.endpoint, "--connect-timeout-ms", 2500)
    top.shows("waiting for workers: 0 of 1")
    server.kill()
    top.shows("waiting for the server at .* to return", 5)
    assert top.wait() == 3
    assert "contact lost" in top.last_line() and "training done" not in top.text


def test_q_quits(programs, terminal):
    server = programs.server(*ENDLESS)
    for key in (b"q", b"Q", b"xyzq"):
        top = terminal(server.endpoint)
        top.shows("waiting")
        started = time.monotonic()
        top.type(key)
        assert top.wait(3) == 0
        assert time.monotonic() - started < 0.9


def test_q_quits_while_the_server_does_not_answer(programs, terminal):
    server = programs.server(*ENDLESS)
    top = terminal(server.endpoint, "--connect-timeout-ms", 60000)
    top.shows("waiting")
    server.kill()
    top.shows("to return", 8)
    top.type(b"q")
    assert top.wait(3) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, SIGTERM, signal.SIGHUP, signal.SIGQUIT,
                                    signal.SIGABRT, signal.SIGSEGV])
def test_a_signal_gives_the_terminal_back(programs, terminal, number):
    server = programs.server(*ENDLESS)
    top = terminal(server.endpoint)
    top.shows("waiting")
    top.popen.send_signal(number)
    assert top.wait(3) == -number


def test_control_c_gives_the_terminal_back(programs, terminal):
    server = programs.server(*ENDLESS)
    top = terminal(server.endpoint)
    top.shows("waiting")
    top.type(b"\x03")
    assert top.wait(3) == -signal.SIGINT


def test_a_stopped_top_gives_the_terminal_back_and_takes_it_again(programs, terminal):
    """SIGTSTP cannot stop the leader of a session. So top restores the terminal and continues at
    once, as after SIGCONT."""
    server = programs.server(*ENDLESS)
    top = terminal(server.endpoint)
    top.shows("waiting")
    top.popen.send_signal(signal.SIGTSTP)
    until(lambda: "waiting" in top.read(0.02).partition(CLOSED)[2].partition(OPENED)[2], 5,
          "it goes on")
    top.type(b"q")
    assert top.wait(3) == 0
    assert top.text.count(OPENED) == 2


def test_without_workers_there_is_no_eta(programs, small, terminal):
    server = programs.server(*ENDLESS)
    worker = programs.worker(server.endpoint, data=small)
    top = terminal(server.endpoint)
    top.shows(r"ETA \d+ s")
    worker.signal(SIGTERM)
    assert worker.wait(10) == 12
    top.shows("waiting for workers: 0 of 1")
    frame = top.read(0.1)[top.text.rindex("waiting  "):]
    assert "ETA -" in frame and f"cnn-worker --server {server.endpoint}" in frame
    top.type(b"q")
    assert top.wait(3) == 0
