#!/usr/bin/python3
"""Traces a push through a real server, and prints the functions that the server enters, in order:

    make walk-trace
    tests/tools/walk_trace.py [--check]

The server is of the flavour `trace`, which records each function that its main thread enters. A
line has the file, a function that the push enters for the first time, and its caller. With --check
the program compares the trace with docs/architecture.md ("The walk of a push"), and exits with 1 if
the page leaves out a file or a call from one file to another, or gives other numbers of functions
and files. Functions of headers, of common/, and of the code that protobuf-c generates do not count.
"""
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "build" / "trace" / "cnn-ps"
PAGE = ROOT / "docs" / "architecture.md"
PARAMS = 20000
OPTIONS = ("--bind", "tcp://127.0.0.1:0", "--model", f"vector:{PARAMS}", "--threads", "1",
           "--lane", "tcp", "--sandbox", "off", "--warm-start-updates", "0")


def push(endpoint):
    """Act as a worker that pulls the weights once and then pushes three times. Each push also
    requests the weights."""
    sys.path.insert(0, str(ROOT / "tests" / "wire"))
    # imported here, because the functions that check a page need neither numpy nor the client
    import numpy as np
    from client import Worker
    worker = Worker(endpoint)
    weights, version = worker.pull()
    for _ in range(3):
        _, weights, version = worker.push_pull(np.full_like(weights, 0.001), version)
    worker.close()


def record(directory):
    """Runs a server, and pushes to it. Returns the records of call_trace.c: for each function that
    the server enters or leaves, twice its offset, plus 1 if the server leaves it."""
    trace = Path(directory) / "trace"
    server = subprocess.Popen(
        [str(SERVER), *OPTIONS, "--checkpoint-dir", f"{directory}/run"], text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "KX_CALL_TRACE": str(trace)})
    try:
        for line in server.stderr:
            found = re.search(r'net listening.*?(tcp://127\.0\.0\.1:\d+)', line)
            if found:
                break
        push(found[1])
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    finally:
        server.kill()
    data = trace.read_bytes()
    return struct.unpack(f"<{len(data) // 8}Q", data[:len(data) // 8 * 8])


def names_of(offsets):
    """Returns {offset: (function, file)}; the file is relative to the root of the source tree."""
    offsets = sorted(offsets)
    text = subprocess.run(["addr2line", "-f", "-e", str(SERVER), *map(hex, offsets)], check=True,
                          capture_output=True, text=True).stdout.splitlines()
    return {offset: (re.sub(r"\..*", "", function),
                     os.path.relpath(os.path.join(ROOT, place.split(":")[0]), ROOT))
            for offset, function, place in zip(offsets, text[::2], text[1::2])}


def counts(file):
    return file.endswith(".c") and not file.startswith("common/") and "/gen/" not in file


def steps(entries, names):
    """Yields for each message that the server handles the list of its calls, as (function, file,
    caller, file of the caller). The caller is the nearest enclosing function for whose file
    counts() is true."""
    stack, message, base = [], None, 0
    for entry in entries:
        name = names[entry // 2]
        if entry % 2:
            stack.pop()
            if message is not None and len(stack) == base:
                yield message
                message = None
            continue
        if message is None and name == ("on_readable", "server/net/net.c"):
            message, base = [], len(stack)
        if message is not None and counts(name[1]):
            caller = next((c for c in reversed(stack[base:]) if counts(c[1])), (None, None))
            message.append((*name, *caller))
        stack.append(name)


def first_calls(message):
    """Returns the first call of each function during the handling of a message."""
    known = {}
    for call in message:
        known.setdefault(call[:2], call)
    return list(known.values())


def figures(calls):
    """Returns the numbers of functions, of files, and of changes of file in `calls`."""
    files = [call[1] for call in calls]
    return (len(calls), len(set(files)),
            1 + sum(a != b for a, b in zip(files, files[1:])))


def section(page, title):
    return re.search(rf"^## {title}\n(.*?)(?=^## )", page, re.M | re.S)[1]


def findings(page, message):
    """Yields the differences between the walk in the page and the traced calls of a push."""
    walk = section(page, "The walk of a push")
    fields = re.search(r"\* functions that return a field.*?(?=\n\n|\n\*)",
                       section(page, "How to read the walks"), re.S)[0]
    named = set(re.findall(r"`([^`]+)`", walk)) | set(re.findall(r"`([^`]+)`", fields))
    for file in dict.fromkeys(call[1] for call in message):
        if file not in named:
            yield f"a push enters {file}, which the walk does not name"
    for name, file, caller, of in dict.fromkeys(message):
        if of and of != file and name not in named:
            yield f"{caller} ({of}) calls {name} ({file}), which the walk does not name"
    entered = {call[0] for call in message}
    for row in re.findall(r"^\| `.*", walk, re.M):
        # skip rows of common/, whose functions the trace leaves out
        if "here not" in row or "| `common/" in row:
            continue
        for name in re.findall(r"`(\w+)`", row.split("|")[1]):
            if name not in entered:
                yield f"the walk has a row of {name}, which a push does not call"
    page_has = re.search(r"enters\s+(\d+)\s+functions\s+in\s+(\d+)\s+files\b.*?\s(\d+)\s+functions\s+"
                         r"are\s+in\s+another\s+file", walk, re.S)
    found = figures(first_calls(message))
    if not page_has or tuple(map(int, page_has.groups())) != found:
        yield f"a push enters {found[0]} functions in {found[1]} files, with {found[2]} changes"


def main():
    with tempfile.TemporaryDirectory() as directory:
        entries = record(directory)
    names = names_of({entry // 2 for entry in entries})
    pushes = [m for m in steps(entries, names) if any(c[0] == "ledger_on_push" for c in m)]
    assert len(pushes) == 3, f"the trace has {len(pushes)} pushes"
    message = pushes[1]  # the first push also allocates buffers
    if "--check" in sys.argv:
        wrong = list(findings(PAGE.read_text(encoding="utf-8"), message))
        for line in wrong:
            print(f"{PAGE.relative_to(ROOT)}: {line}")
        return bool(wrong)
    before = None
    for name, file, caller, _ in first_calls(message):
        print(f"{'' if file == before else file:32} {name:28} {caller or ''}".rstrip())
        before = file
    print("%d functions in %d files, %d changes of file" % figures(first_calls(message)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
