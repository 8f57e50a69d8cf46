#!/usr/bin/env python3
"""Measure the seconds from the launch of a server and its workers to a given accuracy.

    tests/bench/to_accuracy.py [--target 0.99] [--device cuda] [--workers 1] [--repeat 5]
                               [--model MODEL] [--epochs 3] [-- OPTIONS OF cnn-ps]

The clock starts before the first process starts, and stops when the server logs an evaluation that
reaches the target. The script prints CSV: run,seed,epoch,accuracy,launch_s,training_s, and then the
median of launch_s. launch_s is the time until this log line (empty if no evaluation reaches the
target). training_s is the part of launch_s after the first worker has joined.

Data: $CNN_DATA or the default data directories. The script unpacks the images before the clock
starts, so launch_s does not include this time.
"""
import argparse
import gzip
import re
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from through_server import Programs, data_directory, worker  # noqa: E402

MODEL = "conv:32:5 relu pool:2 conv:64:5 relu pool:2 fc:10"


class Watch(threading.Thread):
    """Records the time at which the server writes each line of its log."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.epochs, self.begin = server, [], None
        self.start()

    def run(self):
        seen = 0
        while self.server.running():
            with self.server.news:
                self.server.news.wait(0.2)
                lines, now = self.server.lines[seen:], time.monotonic()
            seen += len(lines)
            for line in lines:
                epoch = re.search(r"train epoch.* epoch=(\d+) .*\baccuracy=([\d.]+)", line)
                if epoch:
                    self.epochs.append((now, int(epoch[1]), float(epoch[2])))
                elif self.begin is None and "worker joined" in line:
                    self.begin = now


def unpack(source, target):
    """Decompress the files of the data set `source` into the directory `target`."""
    for path in source.glob("*-ubyte*"):
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rb") as packed:
            (target / path.name.removesuffix(".gz")).write_bytes(packed.read())


def one(run, data, args):
    seed = args.seed + run
    with tempfile.TemporaryDirectory() as directory:
        start = time.monotonic()
        programs = Programs(Path(directory), data)
        try:
            server = programs.server("--model", args.model, "--epochs", args.epochs, "--seed", seed,
                                *args.options, directory=None)
            watch = Watch(server)
            for _ in range(args.workers):
                worker(programs, server, args.device, "--precision", args.precision)
            server.result(300)
            watch.join(5)
        finally:
            programs.close()
    reached = [e for e in watch.epochs if e[2] >= args.target]
    now, epoch, accuracy = (reached or watch.epochs)[0 if reached else -1]
    seconds = f"{now - start:.2f}" if reached else ""
    training = f"{now - watch.begin:.2f}" if reached and watch.begin else ""
    print(f"{run},{seed},{epoch},{accuracy:.4f},{seconds},{training}", flush=True)
    return now - start if reached else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=float, default=0.99)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("options", nargs="*", help="of cnn-ps, after --")
    args = parser.parse_args()
    print("run,seed,epoch,accuracy,launch_s,training_s")
    with tempfile.TemporaryDirectory() as directory:
        unpack(data_directory(), Path(directory))
        times = [one(run, Path(directory), args) for run in range(args.repeat)]
    reached = [t for t in times if t is not None]
    print(f"median,,,,{statistics.median(reached):.2f}," if reached else "median,,,,,")
    print(f"# {len(reached)} of {len(times)} runs reached {args.target}")


if __name__ == "__main__":
    main()
