"""Test cnn-ctl top on a terminal: its display, its keys, its end, and the state in which it leaves
the terminal."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pyte
import pytest

from support.build import command
from support.programs import SIGTERM, until

ENDLESS = ("--model", "seed:8", "--epochs", 1000)
OPENED, CLOSED = "\x1b[?1049h", "\x1b[?1049l"


class Screen(pyte.Screen):
    """A screen that also scrolls by several lines (SU and SD), which pyte does not support."""

    def scroll_up(self, count=1):
        self.change_top(self.delete_lines, count)

    def scroll_down(self, count=1):
        self.change_top(self.insert_lines, count)

    def change_top(self, change, count):
        x, y = self.cursor.x, self.cursor.y
        self.cursor.y = self.margins.top if self.margins else 0
        change(count or 1)
        self.cursor.x, self.cursor.y = x, y


class Stream(pyte.ByteStream):
    csi = {**pyte.ByteStream.csi, "S": "scroll_up", "T": "scroll_down"}
    events = pyte.ByteStream.events | {"scroll_up", "scroll_down"}


class Terminal:
    """cnn-ctl top in a session of its own, on a terminal of 24 lines of 80 characters. `text` is
    all output of cnn-ctl top, and `screen` is what the terminal shows. The TERM of this terminal
    lacks the sequence REP, because pyte does not support REP."""

    def __init__(self, endpoint, *options, size=(24, 80), hup=signal.SIG_DFL, **env):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.text = ""
        self.screen = Screen(size[1], size[0])
        self.stream = Stream(self.screen)
        env = {**os.environ, "TERM": "screen-256color", "LC_ALL": "C.UTF-8", **env}

        def own():
            os.setsid()
            signal.signal(signal.SIGHUP, hup)
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.popen = subprocess.Popen(
            command("cnn-ctl", "--server", endpoint, *options, "top"), stdin=self.slave,
            stdout=self.slave, stderr=self.slave, preexec_fn=own, env=env)

    def read(self, seconds=0.0):
        while select.select([self.master], [], [], seconds)[0]:
            data = os.read(self.master, 65536)
            self.stream.feed(data)
            self.text += data.decode(errors="replace")
            seconds = 0
        return self.text

    def see(self):
        self.read(0.05)
        return "\n".join(line.rstrip() for line in self.screen.display)

    def shows(self, pattern, seconds=10):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.see()):
            assert time.monotonic() < end, f"{pattern!r} is not on:\n{self.see()}"

    def resize(self, rows, columns):
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, keys):
        os.write(self.master, keys)

    def wait(self, seconds=10):
        """Wait until cnn-ctl top has ended, and check that it has restored the terminal. Returns
        its exit status."""
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

    def start(*arguments, **how):
        opened.append(Terminal(*arguments, **how))
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
    """Eight cnn-ctl top run in parallel, and request the status at different times of a second.
    Each program notices the end of the run."""
    server = programs.server("--model", "seed:8", "--epochs", 40)
    programs.worker(server.endpoint, data=small)
    tops = []
    for _ in range(8):
        tops.append(terminal(server.endpoint))
        time.sleep(0.13)
    server.result()
    for top in tops:
        assert top.wait() == 0 and "training done" in top.last_line(), top.last_line()


def test_top_says_why_a_run_has_ended_early(programs, small, terminal):
    server = programs.server("--model", "seed:4", "--epochs", 500, "--stop-at", "accuracy=0.7")
    top = terminal(server.endpoint)
    top.shows("waiting for workers")
    programs.worker(server.endpoint, data=small)
    assert top.wait() == 0
    assert "ended early: the goal of --stop-at is reached: epoch " in top.last_line(), top.last_line()


def test_top_of_a_drained_run_says_so(programs, small, terminal):
    server = programs.server(*ENDLESS)
    programs.worker(server.endpoint, data=small)
    top = terminal(server.endpoint)
    top.shows(r"loss \d")  # the worker has pushed
    programs.ctl("--server", server.endpoint, "drain")
    assert top.wait() == 0
    assert "training drained" in top.last_line()
    end = top.text[top.text.rindex(CLOSED):].replace("\r", "")
    assert re.search(r"images/s -   loss \d", end) and re.search(r"ETA -\n", end), end
    assert re.search(r"^\S*drained\S*   epoch", end, re.M), end
    assert re.search(r"^1 .* -  +-", end, re.M) and " live " not in end, end


@pytest.mark.parametrize("limit", [0, 5000])
def test_top_of_a_run_without_images_shows_updates(programs, terminal, limit):
    server = programs.server("--model", "vector:5000", "--max-updates", limit)
    programs.ledger_worker(server.endpoint, 0, 5000, 2)
    top = terminal(server.endpoint, size=(30, 240))
    top.shows(r"updates/s [1-9]\d*   loss \d")
    top.shows(r"(?m)^updates/s +[\u2581-\u2588]")
    if limit:
        top.shows(r"ETA \d[\d.]* (s|min|h)")
    for _ in range(21):
        top.type(b">")
    seen = top.see()
    assert "epoch" not in seen and "images" not in seen and "accuracy" not in seen, seen
    assert ("ETA" in seen) == bool(limit) and "hidden" not in seen, seen
    programs.ctl("--server", server.endpoint, "drain")
    assert top.wait() == 0


def test_top_of_a_run_without_an_update_shows_no_loss(programs, terminal):
    server = programs.server(*ENDLESS)
    top = terminal(server.endpoint)
    top.shows("waiting")
    programs.ctl("--server", server.endpoint, "drain")
    assert top.wait() == 0
    assert "training drained: 0 updates" in top.last_line(), top.last_line()


def test_top_waits_for_a_killed_server_and_connects_again(programs, small, terminal):
    """The screen stays open for longer than --connect-timeout-ms, shows no old value as if it were
    new, and ends with the run."""
    options = ("--model", "seed:8", "--epochs", 1000, "--checkpoint-ms", 100)
    server = programs.server(*options)
    worker = programs.worker(server.endpoint, "--name", "w1", data=small)
    top = terminal(server.endpoint, "--connect-timeout-ms", 500)
    top.shows(r"w1 .*live +\d")
    server.kill()
    top.shows(r"server away since \d\d:\d\d:\d\d", 20)
    top.shows("waiting for the server at .* to return", 20)
    assert "gives up" not in top.see()
    assert re.search(r"images/s -", top.see()) and re.search(r"w1 .* - +- ", top.see()), top.see()
    assert re.search(r"(?m)^images/s .*\S -$", top.see()), "no rate beside its curve:\n" + top.see()
    time.sleep(1)
    assert top.popen.poll() is None and "training done" not in top.text
    server = programs.restart(server, *options)
    top.shows(r"w1 .*live +\d", 30)
    assert "server away" not in top.see()
    programs.ctl("--server", server.endpoint, "drain")
    assert top.wait(20) == 0 and "training drained" in top.last_line()
    assert worker.wait(20) == 12


def test_top_of_a_server_that_hangs_says_so(programs, terminal):
    server = programs.server(*ENDLESS)
    top = terminal(server.endpoint)
    top.shows("waiting for workers: 0 of 1")
    server.signal(signal.SIGSTOP)
    top.shows(r"server away since \d\d:\d\d:\d\d", 20)
    server.signal(signal.SIGCONT)
    top.shows("waiting for workers: 0 of 1", 20)
    assert "server away" not in top.see()
    top.type(b"q")
    assert top.wait(3) == 0


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
    """SIGTSTP cannot stop the cnn-ctl top of this test, because this process leads its session. So
    cnn-ctl top restores the terminal, and then continues at once, as after SIGCONT."""
    server = programs.server(*ENDLESS)
    top = terminal(server.endpoint)
    top.shows("waiting")
    time.sleep(0.3)  # wait, because ncurses ignores the signal while it draws
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
    top.shows(r"ETA \d[\d.]* (s|min|h)")
    worker.signal(SIGTERM)
    assert worker.wait(10) == 12
    top.shows("waiting for workers: 0 of 1")
    top.shows("ETA -")
    assert f"cnn-worker --server {server.endpoint}" in top.see().replace("\n", "")
    top.type(b"q")
    assert top.wait(3) == 0


def test_the_filter_takes_letters_of_any_language(programs, small, terminal):
    server = programs.server(*ENDLESS)
    for name in ("größe", "w2"):
        programs.worker(server.endpoint, "--name", name, data=small)
    top = terminal(server.endpoint)
    until(lambda: "größe" in top.see() and "w2" in top.see(), 20, "both workers")
    top.type("/rö\n".encode())
    until(lambda: "größe" in top.see() and "w2" not in top.see(), 3, "the filter")
    top.type("/ö\x7f\x7f\x7fw2\n".encode())  # a backspace deletes the two bytes of a letter
    until(lambda: "größe" not in top.see() and "w2" in top.see(), 3, "the other filter")


def rows(top):
    """Returns the names of the workers on the screen, from top to bottom."""
    return re.findall(r"^ *\d+  (w\d) ", top.see(), re.M)


def test_sort_filter_and_help(programs, small, terminal):
    server = programs.server(*ENDLESS)
    for name in ("w2", "w3", "w1"):
        programs.worker(server.endpoint, "--name", name, data=small)
        until(lambda: any(w["name"] == name for w in server.status()["workers"]), 20, name)
    top = terminal(server.endpoint)
    until(lambda: rows(top) == ["w2", "w3", "w1"], 10, "workers by number")
    top.type(b">")
    until(lambda: rows(top) == ["w1", "w2", "w3"], 3, "workers by name")
    top.type(b"r")
    until(lambda: rows(top) == ["w3", "w2", "w1"], 3, "the other direction")
    top.type(b"/W1\n")
    until(lambda: rows(top) == ["w1"], 3, "a filter")
    top.type(b"\x1b")
    until(lambda: len(rows(top)) == 3, 3, "no filter")
    top.type(b"h")
    top.shows("any key: back")
    top.type(b" ")
    until(lambda: len(rows(top)) == 3, 3, "the workers again")
    top.shows(r"server: apply \d+ %   verify \d+ %   idle \d+ %")
    top.shows(r"images/s +[▁▂▃▄▅▆▇█]+ \d+")
    top.type(b"q")
    assert top.wait(3) == 0


def test_a_small_terminal_scrolls(programs, small, terminal):
    server = programs.server(*ENDLESS)
    for name in ("w1", "w2", "w3", "w4"):
        programs.worker(server.endpoint, "--name", name, data=small)
    until(lambda: len(server.status()["workers"]) == 4, 20, "four workers")
    top = terminal(server.endpoint, size=(12, 60))
    top.shows("workers 1 to . of 4")
    top.type(b"\x1bOB")  # the key "arrow down"
    second = server.status()["workers"][1]["name"]
    until(lambda: rows(top)[:1] == [second], 3, "the next worker")
    top.type(b"q")
    assert top.wait(3) == 0


TIMES = ["compute", "pull", "copy", "ack", "work"]
ASKED = ["name", "host", "device", "state", "images/s", *TIMES, "stale", "silent", "again", "refused"]
OTHERS = ["pid", "address", "images", "pushes", "durable", "rejected", "wire"]


def titles(top):
    found = re.search(r"^ *# .*$", top.see(), re.M)
    return found[0].split()[1:] if found else []


@pytest.mark.parametrize("columns, shown", [
    (200, ASKED + OTHERS), (120, ASKED),
    (100, [t for t in ASKED if t not in ("copy", "work", "again", "refused")]),
    (80, ["name", "host", "device", "state", "images/s", "stale", "silent"])])
def test_a_narrow_terminal_shows_the_most_important_columns(programs, small, terminal, columns, shown):
    """At each width, the terminal shows the most important columns. The name of the worker is
    longer than its column."""
    server = programs.server(*ENDLESS)
    programs.worker(server.endpoint, "--name", "a-worker-with-a-long-name", data=small)
    until(lambda: server.status()["workers"], 20, "a worker")
    top = terminal(server.endpoint, size=(24, columns))
    top.shows("live")
    until(lambda: set(shown) <= set(titles(top)), 5, f"the columns {shown}")
    assert all(len(line) <= columns for line in top.see().splitlines())
    hidden = [title for title in ASKED + OTHERS if title not in titles(top)]
    if hidden:
        top.shows(f"{len(hidden)} columns hidden: h")
    top.type(b"h")
    top.shows("any key: back")
    listed = re.search(r"^No room for: ((\S+,\s+)*\S+)$", top.see(), re.M)
    assert sorted(hidden) == sorted(re.split(r",\s+", listed[1]) if listed else [])
    assert "+ marks a cut text" in top.see()
    top.type(b" ")
    for title in ("name", "host", "pid"):
        top.type(b">")
        until(lambda: title in titles(top), 3, f"the column {title}, which sorts, is shown")
    top.type(b"q")
    assert top.wait(3) == 0


def test_40_columns(programs, small, terminal):
    server = programs.server(*ENDLESS)
    programs.worker(server.endpoint, "--name", "a-worker-with-a-long-name", data=small)
    until(lambda: server.status()["workers"], 20, "a worker")
    top = terminal(server.endpoint, size=(24, 40))
    top.shows(r"(?m)^ *# +name +state +images/s +silent$")
    top.shows(r"(?m)^ *1 +a-wo\S*\+\S*ame +live +\d+ +\d")
    top.shows(r"(?m)^q quit  h help  / filter  \d\d hidden$")
    top.type(b"h")
    top.shows(r"refresh\w*\s+it\s+every\s+second")
    top.type(b" q")
    assert top.wait(3) == 0


def test_each_width_shows_how_many_columns_are_hidden(programs, small, terminal):
    """The last line gives the number of hidden columns, also with a filter. The text of the filter
    is cut if the line has no room for it."""
    server = programs.server(*ENDLESS)
    programs.worker(server.endpoint, "--name", "a-worker-with-a-long-name", data=small)
    until(lambda: server.status()["workers"], 20, "a worker")
    top = terminal(server.endpoint, size=(24, 40))
    top.shows("live")
    for keys, widths in (b"", range(40, 130, 10)), (b"/a-worker-with-a-long-name\n", (40, 60)):
        for width in widths:
            top.resize(24, width)
            top.type(keys)
            keys = b""
            until(lambda: str(len(ASKED + OTHERS) - len(titles(top))) ==
                  (re.search(r"^q quit .* (\d+) (columns )?hidden(: h)?\s*$", top.see(), re.M) or "??")[1],
                  3, f"the number of hidden columns at a width of {width}")
    top.shows(": a-worker")  # wait, because the screen may still be that of 40 columns
    top.type(b"q")
    assert top.wait(3) == 0


def test_10_rows_of_40_columns(programs, small, terminal):
    """A small terminal shows less of the run, so that a worker and the keys have room."""
    server = programs.server(*ENDLESS)
    for name in ("w1", "w2", "w3", "w4"):
        programs.worker(server.endpoint, "--name", name, data=small)
    until(lambda: len(server.status()["workers"]) == 4, 30, "four workers")
    top = terminal(server.endpoint, size=(10, 40))
    top.shows(r"(?m)^ *\d +w\d +live +\d+ +\d")
    top.shows("(?m)^q quit +h help")
    assert "training" in top.see()
    top.type(b"q")
    assert top.wait(3) == 0


def test_the_help_scrolls_on_a_small_terminal(programs, terminal):
    server = programs.server(*ENDLESS)
    top = terminal(server.endpoint, size=(12, 40))
    top.shows("(?m)^q quit +h help")
    top.type(b"h")
    top.shows("(?m)^cnn-ctl top shows the status")
    top.shows("(?m)^arrows: scroll  other keys: back$")
    top.type(b"\x1b[6~" * 9)
    top.shows("(?s)since the.*cut text.*arrows: scroll")
    top.type(b"\x1bOA" * 3)
    top.shows("(?m)^arrows: scroll")
    top.type(b"x")
    top.shows("(?m)^q quit +h help")
    top.type(b"q")
    assert top.wait(3) == 0


def test_cut_names_differ(programs, small, terminal):
    """The names of the workers of a cluster often differ only at their end."""
    server = programs.server(*ENDLESS)
    for number in ("001", "022"):
        programs.worker(server.endpoint, "--name", f"training-rack1-node-{number}", data=small)
    until(lambda: len(server.status()["workers"]) == 2, 20, "two workers")
    top = terminal(server.endpoint, size=(24, 100))
    top.shows(r"(?m)^ *\d +tra\S*\+\S*001 ")
    top.shows(r"(?m)^ *\d +tra\S*\+\S*022 ")
    top.type(b"q")
    assert top.wait(3) == 0


def test_names_of_hosts_with_numbers_differ(programs, small, terminal):
    """The names HOST.DOMAIN-0 and HOST.DOMAIN-1 of two hosts differ at two places."""
    server = programs.server(*ENDLESS)
    for host in ("00", "17"):
        for number in "01":
            programs.worker(server.endpoint, "--name", f"gpu-node-{host}.cluster.example.org-{number}", data=small)
    until(lambda: len(server.status()["workers"]) == 4, 30, "four workers")
    top = terminal(server.endpoint)
    for host in ("00", "17"):
        for number in "01":
            top.shows(rf"(?m)^ *\d +\S*{host}\S*\+\S*{number} ")
    top.type(b"q")
    assert top.wait(3) == 0


def test_wide_and_combining_characters_keep_the_columns(programs, small, terminal):
    """A Chinese character occupies two columns, and a combining accent none."""
    server = programs.server(*ENDLESS)
    names = ("\u5de5\u4eba\u4e00\u53f7", "Zoe\u0308", "plain", 12 * "\u5de5")
    for name in names:
        programs.worker(server.endpoint, "--name", name, data=small)
    until(lambda: len(server.status()["workers"]) == 4, 30, "four workers")
    top = terminal(server.endpoint, size=(24, 100))
    top.shows("(?s)(live.*){4}")
    top.see()
    head = next(i for i, line in enumerate(top.screen.display) if " name " in line)
    cells = [[top.screen.buffer[row][column].data for column in range(100)]
             for row in range(head, head + 5)]
    state = "".join(c or " " for c in cells[0]).index("state")
    for row in cells[1:]:
        assert "".join(row[state:state + 4]) == "live", row
    top.type(b"q")
    assert top.wait(3) == 0


def test_without_utf8_other_letters_are_question_marks(programs, small, terminal):
    server = programs.server(*ENDLESS)
    for name in ("\u5de5\u4f5c", "plain"):
        programs.worker(server.endpoint, "--name", name, data=small)
    until(lambda: len(server.status()["workers"]) == 2, 30, "two workers")
    top = terminal(server.endpoint, size=(24, 100), LC_ALL="C")
    top.shows("(?s)(live.*){2}")
    rows = [line for line in top.see().splitlines() if " live " in line]
    assert len({row.index(" live ") for row in rows}) == 1, rows
    assert any(" ?? " in row for row in rows), rows


def test_joined_emoji_keep_the_columns(programs, small, terminal):
    """Terminals disagree on the width of emoji that a zero-width joiner joins, or that have a skin
    tone or a variation selector. cnn-ctl top draws the emoji one by one."""
    server = programs.server(*ENDLESS)
    names = ("\U0001f469\u200d\U0001f680 a", "\U0001f44b\U0001f3fd b", "\u2764\ufe0f c", "plain")
    for name in names:
        programs.worker(server.endpoint, "--name", name, data=small)
    until(lambda: len(server.status()["workers"]) == 4, 30, "four workers")
    top = terminal(server.endpoint, size=(24, 100))
    top.shows("(?s)(live.*){4}")
    for sign in "\u200d\U0001f3fd\ufe0f":
        assert sign not in top.see() + top.text
    for drawn in ("\U0001f469\U0001f680 a", "\U0001f44b b", "\u2764 c"):
        assert drawn in top.text
    top.type(b"q")
    assert top.wait(3) == 0


def test_a_server_without_a_directory_has_no_durable_pushes(programs, small, terminal):
    server = programs.server(*ENDLESS, directory=None)
    programs.worker(server.endpoint, data=small)
    top = terminal(server.endpoint, size=(24, 200))
    top.shows("live")
    assert titles(top)[-1] == "wire" and "pushes" in titles(top) and "durable" not in titles(top)
    top.type(b"h")
    top.shows("All columns are shown")
    top.type(b" q")
    assert top.wait(3) == 0


def test_an_accuracy_on_held_back_images_is_a_validation_accuracy(programs, small, terminal):
    server = programs.server("--model", "seed:8", "--epochs", 30, "--validate", 500)
    programs.worker(server.endpoint, data=small)
    top = terminal(server.endpoint)
    top.shows(r"loss \d\S*   validation accuracy \d")
    top.shows(r"(?m)^validation +[\u2581-\u2588]+ \d+\.\d\d %$")
    programs.ctl("--server", server.endpoint, "drain")
    assert top.wait(10) == 0
    assert "training drained: validation accuracy" in top.last_line(), top.last_line()


@pytest.mark.parametrize("keys", [b"", b"/w"])
def test_top_ends_with_its_terminal(programs, terminal, keys):
    server = programs.server(*ENDLESS)
    top = terminal(server.endpoint, hup=signal.SIG_IGN)
    top.shows("waiting")
    top.type(keys)
    time.sleep(0.3)
    os.close(top.slave)
    os.close(top.master)
    try:
        assert top.popen.wait(5) == 0
    finally:
        # new descriptors, because close() of the fixture closes both ends of the terminal
        top.master, top.slave = pty.openpty()


@pytest.mark.parametrize("no, coloured", [("", True), ("1", False)])
@pytest.mark.parametrize("size", [(24, 80), (50, 200)])
def test_colours_unless_NO_COLOR(programs, small, terminal, size, no, coloured):
    server = programs.server(*ENDLESS)
    programs.worker(server.endpoint, "--name", "w1", data=small)
    top = terminal(server.endpoint, size=size, NO_COLOR=no)
    top.shows("live")
    assert bool(re.search(r"\x1b\[([0-9]+;)*[34][0-9][;m]", top.text)) == coloured
    top.type(b"q")
    assert top.wait(3) == 0


@pytest.mark.parametrize("term", ["no-such-terminal", "dumb"])
def test_a_terminal_that_cannot_place_text_gets_lines(programs, terminal, term):
    server = programs.server(*ENDLESS)
    top = terminal(server.endpoint, TERM=term)
    until(lambda: top.read(0.05) is None or top.popen.poll() is not None, 5, "it ends")
    assert top.popen.returncode == 0 and "images/s" in top.read(0.1)


def test_once_and_json(programs):
    server = programs.server(*ENDLESS)
    lines = programs.ctl("--server", server.endpoint, "--once", "top").out
    assert lines[0].startswith("waiting") and not any("\x1b" in line for line in lines)
    line, = programs.ctl("--server", server.endpoint, "--once", "--json", "top").out
    assert json.loads(line)["state"] == "waiting"


def test_once_shows_how_workers_and_server_spend_their_time(programs, small):
    """A column for each part of a worker's time has the share of the status. A worker that waits
    for a second worker waits for work."""
    server = programs.server(*ENDLESS, "--min-workers", 2)
    programs.worker(server.endpoint, "--name", "w1", data=small)

    def waits():
        worker, = server.status()["workers"] or [{}]
        return (worker.get("time") or {}).get("lease", 0) > 0.999
    until(waits, 20, "a second of waiting")
    text = "\n".join(programs.ctl("--server", server.endpoint, "--once", "top").out)
    assert re.search(r"^ *# .* compute  pull  copy  ack  work ", text, re.M), text
    assert re.search(r"^ *1 .*  0% +0% +0% +0% +100% ", text, re.M), text
    shares = re.search(r"^server since its start: apply (\d+) %   verify (\d+) %   idle (\d+) %$", text, re.M)
    assert shares and int(shares[3]) > 50 and sum(map(int, shares.groups())) <= 100, text


def test_a_server_without_workers(programs, terminal):
    """There is no loss before the first push. The shares of the server's time are at most 100 %
    together."""
    server = programs.server(*ENDLESS)
    top = terminal(server.endpoint)
    top.shows(r"loss -")
    top.shows(r"idle \d+ %")
    end, seen = time.monotonic() + 6, set()
    while time.monotonic() < end:
        screen = top.see()
        assert "loss 0" not in screen
        seen.update(re.findall(r"apply (\d+) %   verify (\d+) %   idle (\d+) %", screen))
    assert seen and all(sum(map(int, shares)) <= 100 for shares in seen), seen
