#!/usr/bin/env python3
"""Measure how long pushes take with and without checkpoints, with the weights on a GPU, and compare
a checkpoint of the GPU with one of the CPU.

    tests/bench/snapshots.py [--store cuda:0] [--values 60000000] [--pushes 100] [--interval-ms 500]
                             [--dir DIR] [--program PROGRAM] [--no-comparison]

One worker pushes whole vectors of --values values to a server with --optimizer adam, and pulls
after each push. The script prints a row of CSV for a server with checkpoints, and one for a server
without. A row has the number of checkpoints while the worker pushed, the number of pairs of a push
and a pull, and the milliseconds that a pair took: p50, p99, maximum. DIR should be a directory in
memory, such as /dev/shm, so that the times do not depend on a disk. Then a server with --store host
gets the same pushes up to a checkpoint that the server with --store took during the run, and the
script compares the weights and the state of the optimizer, bit for bit. PROGRAM is the path of the
cnn-ps to measure, for example one of an earlier commit.
"""
import argparse
import hashlib
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.build import command  # noqa: E402
from support.programs import SIGTERM, Programs, until  # noqa: E402

HEAD = struct.Struct("<8sIIQ")
ROW = struct.Struct("<16sQQQ")


def sections(path):
    """Returns the sections of a checkpoint (common/checkpoint.h), as pairs of offset and size."""
    with path.open("rb") as f:
        _, _, n, _ = HEAD.unpack(f.read(HEAD.size))
        rows = [ROW.unpack(f.read(ROW.size)) for _ in range(n)]
    return {name.rstrip(b"\0").decode(): (offset, size) for name, offset, size, _ in rows}


def part(path, section):
    offset, size = sections(path)[section]
    with path.open("rb") as f:
        f.seek(offset)
        return f.read(size)


def version_of(path):
    return int.from_bytes(part(path, "run")[24:32], "little")


def hash_of(path):
    return {name: hashlib.sha256(part(path, name)).hexdigest() for name in ("weights", "optim")}


def keep_files(directory, kept, seen):
    """Give the first three checkpoints with updates a second name, because the server removes old
    ones."""
    for file in sorted(directory.glob("ckpt-*")):
        if file.suffix == ".tmp" or file.name in seen:
            continue
        seen.add(file.name)
        if version_of(file) > 0 and len(list(kept.iterdir())) < 3:
            os.link(file, kept / file.name)


def start(programs, options, store, pushes, directory):
    server = programs.server(
        "--model", f"vector:{options.values}", "--optimizer", "adam", "--lr", 0.001,
        "--warm-start-updates", 0, "--staleness-scaling", "constant", "--lr-scaling", "none",
        "--replay-window", 64, "--store", store, "--lane-socket", programs.directory / "lane",
        *(["--checkpoint-ms", options.interval_ms] if directory else []), directory=directory, **({"program": options.program} if options.program else {}))
    endpoint = server.endpoint
    worker = subprocess.Popen(command("tests/bench/timed_pushes", endpoint, pushes),
                              stdout=subprocess.PIPE, text=True)
    return server, worker


def measure(programs, options, name, directory):
    """Prints a row. Returns the directory with the checkpoints that the server made while it
    received pushes."""
    server, worker = start(programs, options, options.store, options.pushes, directory)
    kept, seen = programs.directory / f"kept-{name}", set()
    kept.mkdir()
    while worker.poll() is None:
        if directory:
            keep_files(programs.directory / directory, kept, seen)
        time.sleep(0.02)
    assert worker.returncode == 0, server.tail()
    made = len(seen)
    if directory:
        until(lambda: keep_files(programs.directory / directory, kept, seen) or any(kept.iterdir()),
              60, "a checkpoint with updates")
    pairs = [[float(word) for word in line.split()] for line in worker.stdout]
    took = sorted(ms for _, ms in pairs[5:])
    print(f"{name},{made},{len(took)},{took[len(took) // 2]:.1f},"
          f"{took[len(took) * 99 // 100]:.1f},{took[-1]:.1f}", flush=True)
    end(server)
    return kept


def end(server):
    server.signal(SIGTERM)
    assert server.wait(120) == 0, server.tail()


def compare(programs, options, kept):
    file = max(kept.iterdir())
    pushes = version_of(file)
    server, worker = start(programs, options, "host", pushes, "host")
    assert worker.wait(300) == 0, server.tail()
    end(server)
    newest = max((programs.directory / "host").glob("ckpt-*"))
    assert version_of(newest) == pushes
    equal = hash_of(file) == hash_of(newest)
    print(f"checkpoint of {options.store} after {pushes} of {options.pushes} pushes, weights and "
          f"state of host: {'equal' if equal else 'DIFFERENT'}", flush=True)
    return equal


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", default="cuda:0")
    parser.add_argument("--values", type=int, default=60000000)
    parser.add_argument("--pushes", type=int, default=100)
    parser.add_argument("--interval-ms", type=int, default=500)
    parser.add_argument("--dir")
    parser.add_argument("--program")
    parser.add_argument("--no-comparison", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        programs = Programs(Path(directory), None)
        try:
            print("checkpoints,checkpoints_made,pairs,p50_ms,p99_ms,max_ms")
            measure(programs, options, "none", None)
            kept = measure(programs, options, "on", "ckpt")
            equal = options.no_comparison or compare(programs, options, kept)
        finally:
            programs.close()
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
