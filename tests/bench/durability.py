#!/usr/bin/env python3
"""Measure the cost of each level of durability: pushes per second of ledger workers to a server.

    tests/bench/durability.py [--workers 2] [--seconds 2] [--pushes PART] [--dir DIR]

DIR selects the disk, and is created if it does not exist. PART (default 1) is a factor for the
number of pushes; a small value gives a quick measurement. The script prints CSV:
what,bytes,pushes_per_s,mb_per_s. In the column `what`, "none" is a server without a checkpoint
directory. "replay" and "always" are servers with this --durability and a checkpoint every 500 ms.
"disk" is no server, but a loop of write and fdatasync on the same disk. One row is for a new file,
and one for a file whose blocks are already allocated. The second case resembles the write-ahead
log, because the server reuses the files of the log. Workers push whole vectors and pull rarely.
"""
import argparse
import json
import os
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.programs import Programs  # noqa: E402

# {bytes of a push: the number of pushes of all workers together}
PUSHES = {26_000: 6400, 1_740_000: 2000}
LEVELS = ("none", "replay", "always")


def disk(directory, size, seconds, again):
    """Measure the number of writes with fdatasync per second: on a new file, or, if `again` is
    true, on a file that already has its blocks."""
    block, path = bytes(range(256)) * (size // 256 + 1), directory / "disk"
    with path.open("wb", buffering=0) as f:
        if again:
            for _ in range(64):
                f.write(block[:size])
            os.fsync(f)
        begun, n = time.monotonic(), 0
        while time.monotonic() < begun + seconds:
            if again and n % 64 == 0:
                f.seek(0)
            f.write(block[:size])
            os.fdatasync(f)
            n += 1
        rate = n / (time.monotonic() - begun)
    path.unlink()
    return rate


def version(place):
    with urllib.request.urlopen(f"http://{place}/status", timeout=20) as reply:
        return json.load(reply)["version"]


def pushes(programs, level, size, workers, part):
    """Measure the number of pushes that the server decides per second. The measurement begins when
    the server has decided about a tenth of the pushes, and ends at the last push."""
    each, values = max(10, int(PUSHES[size] * part)) // workers, size // 4
    options = ["--model", f"vector:{values}", "--optimizer", "sgd", "--lr", 1, "--max-staleness",
               10**9, "--staleness-scaling", "constant", "--lr-scaling", "none"]
    if level != "none":
        options += ["--durability", level]
    server = programs.server(*options, directory=None if level == "none" else f"{level}-{size}")
    place = server.line(r"http listening.* url=http://(\S+?)/?$")[1]
    begun = now = time.monotonic(), 0
    fleet = [programs.ledger_worker(server.endpoint, i, each, 0, 1000) for i in range(workers)]
    while now[1] < each * workers:
        if now[1] <= each * workers // 10:
            begun = now
        time.sleep(0.005)
        now = time.monotonic(), version(place)
    for process in [*fleet, server]:
        process.kill()
    return (now[1] - begun[1]) / (now[0] - begun[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--pushes", type=float, default=1)
    parser.add_argument("--dir", type=Path)
    wanted = parser.parse_args()
    if wanted.dir:
        try:
            wanted.dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--dir {wanted.dir}: {error.strerror}")
    print("what,bytes,pushes_per_s,mb_per_s")
    with tempfile.TemporaryDirectory(dir=wanted.dir) as directory:
        programs = Programs(Path(directory), None)
        try:
            for size in PUSHES:
                rows = [(f"disk {kind}", disk(Path(directory), size, wanted.seconds, again))
                        for kind, again in (("new blocks", False), ("old blocks", True))]
                for what, rate in rows:
                    print(f"{what},{size},{rate:.0f},{rate * size / 1e6:.0f}", flush=True)
                for level in LEVELS:
                    rate = pushes(programs, level, size, wanted.workers, wanted.pushes)
                    print(f"{level},{size},{rate:.0f},{rate * size / 1e6:.0f}", flush=True)
        finally:
            programs.close()


if __name__ == "__main__":
    main()
