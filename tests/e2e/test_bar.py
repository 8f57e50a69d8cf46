"""The progress bar of cnn-ps on a terminal."""
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import pytest

from support.build import command
from support.programs import until


class Foreground:
    """A program in the foreground of a terminal, as in a shell."""

    def __init__(self, directory, *argv, columns=120):
        self.terminal, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        self.program = subprocess.Popen(
            command(*argv), stdin=its, stdout=subprocess.DEVNULL, stderr=its, cwd=directory,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(its)
        os.set_blocking(self.terminal, False)
        self.text = b""

    def find(self, pattern):
        """Returns the first match in all that the program has written so far, or None."""
        try:
            self.text += os.read(self.terminal, 65536)
        except BlockingIOError:
            pass
        return re.search(pattern, self.text)

    def bars(self):
        """Returns all progress bars that the server has drawn completely so far."""
        self.find(b"")
        return [bar.decode() for bar in re.findall(rb"\x1b\[K([^\x1b\r\n]+)(?=[\x1b\r\n])", self.text)]

    def close(self):
        self.program.kill()
        self.program.wait()
        os.close(self.terminal)


def test_a_server_in_the_foreground_draws_its_bar(programs):
    """The server has its default options. Ctrl-C ends it."""
    server = Foreground(programs.directory, "cnn-ps", "--model", "vector:5000",
                        "--bind", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0")
    with contextlib.closing(server):
        until(lambda: server.find(rb"endpoint=(\S+)"), 20, "the server listens")
        programs.ledger_worker(server.find(rb"endpoint=(\S+)")[1].decode(), 0, 5000, 2)
        until(lambda: server.find(rb"\x1b\[K[1-9]\d* updates  \d+ updates/s  loss .*1 worker"), 10,
              "a bar of progress")
        os.write(server.terminal, b"\x03")
        assert server.program.wait(20) == 0


def test_the_bar_of_a_worker_shows_nothing_that_is_not_true(programs, small):
    """--max-updates is an option of the server, and the worker does not receive its value. The bar
    of the worker therefore shows which share of the epoch is done. While the server is away, the
    worker has no rate to show, so it draws no bar."""
    server = programs.server("--model", "seed:8", "--epochs", 1000, "--max-updates", 100000)
    worker = Foreground(programs.directory, "cnn-worker", "--server", server.endpoint,
                        "--data", small, "--device", "cpu", "--threads", 1)
    with contextlib.closing(worker):
        until(lambda: worker.find(rb"epoch \d+/1000: +\d+ % \[#*\.*\]  [1-9]\d* images/s"), 20, "a bar")
        server.kill()
        until(lambda: worker.find(rb"net waiting"), 20, "the worker waits")
        until(lambda: worker.find(rb"net waiting[^\n]*\n[^\n]*$"), 5, "the whole line")
        assert b"images/s" not in worker.text[worker.text.rindex(b"net waiting"):], worker.text[-400:]


@pytest.mark.parametrize("columns", [80, 60])
def test_the_most_important_values_fit_the_terminal(programs, small, columns):
    server = Foreground(programs.directory, "cnn-ps", "--model", "fc:10", "--epochs", 3000, "--bind",
                        "tcp://127.0.0.1:0", "--http", "127.0.0.1:0", columns=columns)
    with contextlib.closing(server):
        until(lambda: server.find(rb"endpoint=(\S+)"), 20, "the server listens")
        worker = Foreground(programs.directory, "cnn-worker", "--server",
                            server.find(rb"endpoint=(\S+)")[1].decode(), "--data", small,
                            "--device", "cpu", "--threads", 1, columns=columns)
        with contextlib.closing(worker):
            until(lambda: server.find(rb"epoch \d\d+/3000 [^\r\n]*accuracy \d+\.\d+ %  ETA \d+[\d.]* (?:s|min|h)"), 20,
                  "accuracy and time left")
            until(lambda: worker.find(rb"epoch \d\d+/3000: +\d+ %[^\r\n]*  [1-9]\d* images/s"), 20,
                  "the worker's rate")
            bars = [bar for bar in server.bars() + worker.bars()
                    if re.match(r"(worker \d  )?epoch ", bar)]
            assert len(bars) > 2 and max(map(len, bars)) < columns, bars
            widths = [len(found[0]) for found in (re.search(r"\[[#.]+\]|$", bar)
                                                  for bar in bars if bar.startswith("worker"))]
            assert widths == sorted(widths, reverse=True), f"the worker's bar has a steady width: {bars}"
