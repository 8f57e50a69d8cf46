"""Programs must be able to read the log: a strict parser of each format reads every log line of
every program."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

from client import Worker
from support.build import command
from support.programs import Process

TIME = re.compile(r"20\d\d-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d\.\d{3}Z")
KEY = re.compile(r"[A-Za-z0-9_.-]+")
BARE = re.compile(r"[!-~]+")
LEVELS = ("error", "warn", "info", "debug")


def logfmt(line):
    """Returns the fields of a line in logfmt: KEY=VALUE, separated by single blanks. A value is
    quoted like a JSON string, or contains no blank, quote, = or backslash. The function raises an
    exception for any other line."""
    fields, at = {}, 0
    while True:
        key = KEY.match(line, at)
        assert key and line[key.end():key.end() + 1] == "=", f"no KEY= at {at} of {line!r}"
        at = key.end() + 1
        if line[at:at + 1] == '"':
            value, at = json.decoder.py_scanstring(line, at + 1, True)
        else:
            end = line.find(" ", at)
            end = len(line) if end < 0 else end
            value, at = line[at:end], end
            assert BARE.fullmatch(value) and not set('"=\\') & set(value), f"{value!r} of {line!r}"
        assert key[0] not in fields, f"{key[0]} twice in {line!r}"
        fields[key[0]] = value
        if at == len(line):
            return fields
        assert line[at] == " ", f"no blank at {at} of {line!r}"
        at += 1


def once(pairs):
    assert len(dict(pairs)) == len(pairs), f"a key comes twice: {pairs}"
    return dict(pairs)


def json_line(line):
    fields = json.loads(line, object_pairs_hook=once, parse_constant=lambda c: 1 / 0)
    assert isinstance(fields, dict)
    assert all(isinstance(v, (str, int, float)) for v in fields.values()), line
    return fields


PARSERS = {"text": logfmt, "json": json_line}


def parsed(data, how):
    """Returns the fields of all lines that a program wrote to stderr. `data` is of type bytes,
    because the function also checks that the lines are valid UTF-8."""
    text = data.decode("utf-8")
    assert text.endswith("\n")
    lines = [PARSERS[how](line) for line in text[:-1].split("\n")]
    for fields in lines:
        assert list(fields)[:3] == ["ts", "level", "msg"], fields
        assert TIME.fullmatch(fields["ts"]) and fields["level"] in LEVELS
        assert re.fullmatch(r"\S+ \S+", fields["msg"])
    return lines


def find(lines, msg):
    found = [fields for fields in lines if fields["msg"] == msg]
    assert found, f"no {msg!r} in {lines}"
    return found[-1]


def run(program, *arguments):
    """Run a program that ends by itself. Returns (exit status, stderr) of the program."""
    done = subprocess.run([*command(program), *arguments], timeout=30, check=False,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return done.returncode, done.stderr


NASTY = 'a" level=error msg="disk on fire\\'


@pytest.mark.parametrize("how", PARSERS)
def test_every_line_of_a_run_parses(programs, how, tmp_path):
    """The name of a worker has quotes, a backslash, blanks, and text that looks like fields."""
    file = tmp_path / "log"
    server = programs.add(Process("cnn-ps", ["sh", "-c", 'exec "$@" 2>"$0"', file, *command(
        "cnn-ps", "--bind", "tcp://127.0.0.1:0", "--model", "vector:10", "--log-level", "debug",
        "--log-format", how)]))
    lines = until_logged(file, how, "net listening")
    endpoint = find(lines, "net listening")["endpoint"]
    worker = Worker(endpoint, NASTY)
    joined = find(until_logged(file, how, "worker joined"), "worker joined")
    assert joined["name"] == NASTY and joined["level"] == "info" and "disk" not in joined
    assert joined["worker"] == (1 if how == "json" else "1")
    worker.close()
    server.signal(signal.SIGTERM)
    assert server.wait(20) == 0
    lines = parsed(file.read_bytes(), how)
    assert find(lines, "server draining") and find(lines, "server finished")
    assert find(lines, "options value")["origin"]


def until_logged(file, how, msg):
    """Wait until a line of the log has `msg`. Returns all complete lines of the log up to then."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        whole = file.read_bytes() if file.exists() else b""
        whole = whole[:whole.rfind(b"\n") + 1]
        if whole:
            lines = parsed(whole, how)
            if any(fields["msg"] == msg for fields in lines):
                return lines
        time.sleep(0.05)
    raise AssertionError(f"no {msg!r}")


ODD = b'such a\n"dir"=\xff\xc3\\\x1b[2J\xc2\x9b\x7f'
SEEN = 'such a\n"dir"=\ufffd\ufffd\\\x1b[2J\x9b\x7f'


def steers_nothing(said):
    return not any(byte in said for byte in (b"\x1b", b"\x7f", b"\xc2\x9b"))


@pytest.mark.parametrize("how", PARSERS)
@pytest.mark.parametrize("program", ["cnn-ps", "cnn-worker", "cnn-ctl"])
def test_a_path_of_any_bytes_is_one_value(how, program, tmp_path, data):
    """A path contains a newline, quotes, an escape sequence and bytes that are not UTF-8. The
    program logs the path as a value, and in the error with which it ends."""
    odd = os.path.join(os.fsencode(tmp_path), ODD)
    os.symlink(data, odd)
    options, msg, key = {
        "cnn-ps": (("--key", odd, "--model", "vector:10", "--log-level", "debug"),
                   "options value", "value"),
        "cnn-worker": (("--data", odd, "--device", "cpu", "--connect-timeout-ms", "100"),
                       "worker data", "dir"),
        "cnn-ctl": (("export", "--checkpoint", odd + b"/no", "x.safetensors"), None, None),
    }[program]
    code, said = run(program, "--log-format", how, *options)
    assert code != 0
    if program == "cnn-ctl" and how == "text":
        # not checked here: cnn-ctl prints this error as plain text, which test_ctl.py checks
        return
    assert steers_nothing(said), said
    lines = parsed(said, how)
    assert lines[-1]["level"] == "error" and lines[-1]["code"].startswith("PS_E") and lines[-1]["reason"]
    if msg:
        values = [fields[key] for fields in lines if fields["msg"] == msg]
        assert os.fsdecode(os.fsencode(tmp_path)) + "/" + SEEN in values, values


def test_a_command_that_waits_says_so_in_json():
    code, said = run("cnn-ctl", "--log-format", "json", "--server", "tcp://127.0.0.1:1",
                     "--connect-timeout-ms", "1500", "--checkpoint", "x", "status")
    lines = parsed(said, "json")
    assert code == 3 and lines[-1]["msg"] == "ctl failed" and lines[-1]["code"] == "PS_EUNREACHABLE"
    assert "--checkpoint" in find(lines, "options no_effect")["reason"]
    assert find(lines, "ctl waiting")["level"] == "warn"


def test_a_format_that_there_is_not(tmp_path):
    for program in ("cnn-ps", "cnn-worker", "cnn-ctl"):
        code, said = run(program, "--log-format", "xml", *(["status"] if program == "cnn-ctl"
                                                           else []))
        assert code == 2 and b"--log-format" in said and b"json" in said
