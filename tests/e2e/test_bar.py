"""The progress bar of cnn-ps on a terminal."""
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

from support.build import command
from support.programs import until


def test_a_server_in_the_foreground_draws_its_bar(programs):
    """The server has its default options, and its terminal is that of its session, as in a shell.
    Ctrl-C ends it."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))
    server = subprocess.Popen(
        command("cnn-ps", "--model", "vector:5000", "--bind", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0"),
        stdin=its, stdout=subprocess.DEVNULL, stderr=its, cwd=programs.directory,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(its)
    os.set_blocking(ours, False)
    text = b""

    def find(pattern):
        nonlocal text
        try:
            text += os.read(ours, 65536)
        except BlockingIOError:
            pass
        return re.search(pattern, text)
    try:
        until(lambda: find(rb"endpoint=(\S+)"), 20, "the server listens")
        programs.ledger_worker(find(rb"endpoint=(\S+)")[1].decode(), 0, 5000, 2)
        until(lambda: find(rb"\x1b\[K[1-9]\d* updates  \d+ updates/s  loss .*1 worker"), 10,
              "a bar of progress")
        os.write(ours, b"\x03")
        assert server.wait(20) == 0
    finally:
        server.kill()
        server.wait()
        os.close(ours)


def test_the_bar_of_a_worker_shows_nothing_that_is_not_true(programs, small):
    """A worker does not have the --max-updates of its run, so its bar shows the share of the epoch.
    While the server is away, the worker has no rate, and so no bar."""
    server = programs.server("--model", "seed:8", "--epochs", 1000, "--max-updates", 100000)
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))
    worker = subprocess.Popen(
        command("cnn-worker", "--server", server.endpoint, "--data", small, "--device", "cpu", "--threads", 1),
        stdin=its, stdout=subprocess.DEVNULL, stderr=its, cwd=programs.directory,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(its)
    os.set_blocking(ours, False)
    text = b""

    def find(pattern):
        nonlocal text
        try:
            text += os.read(ours, 65536)
        except BlockingIOError:
            pass
        return re.search(pattern, text)
    try:
        until(lambda: find(rb"epoch \d+/1000: +\d+ % \[#*\.*\]  [1-9]\d* images/s"), 20, "a bar")
        server.kill()
        until(lambda: find(rb"net waiting"), 20, "the worker waits")
        until(lambda: find(rb"net waiting[^\n]*\n[^\n]*$"), 5, "the whole line")
        assert b"images/s" not in text[text.rindex(b"net waiting"):], text[-400:]
    finally:
        worker.kill()
        worker.wait()
        os.close(ours)
