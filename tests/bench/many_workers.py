#!/usr/bin/python3
"""Measure how the server's processor time per push grows with the number of workers.

    tests/bench/many_workers.py [--workers 4,256] [--rounds 3] [--seconds 10] [--model fc:10]

Each worker is a cnn-worker with one thread, on the machine of the server, with batches of 10 images
and one push per batch. In each round the script measures all these numbers of workers, one after
the other, each with a new server. It waits until all workers have joined and pushed. Then it reads
the processor time of the server (the sum over all threads, from /proc) and the number of its pushes
at the beginning and at the end of --seconds. It prints CSV, and by how many percent the median of
the processor time per push is higher than with the first number of workers. The workers read a
copy of the data set that is not compressed, so that 256 of them start within seconds also on two
cores. The script needs the programs that `make tests` builds, about 20 MB of memory for each
worker, and a machine with nothing else to do. Data: $CNN_DATA or the default data directories.
"""
import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE)]

from page_cost import processor_s  # noqa: E402
from support import idx  # noqa: E402
from support.programs import Programs, until  # noqa: E402
from through_server import data_directory  # noqa: E402

COLUMNS = "workers,round,pushes_per_s,server_us_per_push,server_cores"


def status_of(server):
    # 256 processes that compute leave the server's thread little time on a small machine
    return server.status(timeout=60)


def pushes_of(server):
    return status_of(server)["counters"]["pushes"]


def measure(directory, n, options):
    """Returns (pushes per second, microseconds of the server's processor time per push)."""
    data = directory / "data"
    data.mkdir()
    idx.cut(Path(data_directory()), data, 60000, 10000)  # files that are not compressed
    programs = Programs(directory, data)
    try:
        server = programs.server("--model", options.model, "--batch-size", 10, "--epochs", 60000,
                                 "--max-workers", 1024, "--n-push", 1, "--lane", options.lane)
        for _ in range(n):
            programs.worker(server.endpoint)
            time.sleep(0.03)  # HELLOs that come faster must be repeated

        def all_push():
            workers = status_of(server)["workers"]
            return sum(w["state"] == "live" and w["images"] > 0 for w in workers) == n
        until(all_push, 300, f"{n} workers that push")
        begun, used, before = time.monotonic(), processor_s(server), pushes_of(server)
        time.sleep(options.seconds)
        used, pushes = processor_s(server) - used, pushes_of(server) - before
        return pushes / (time.monotonic() - begun), 1e6 * used / pushes
    finally:
        programs.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=lambda text: [int(n) for n in text.split(",")],
                        default=[4, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--model", default="fc:10")
    parser.add_argument("--lane", default="auto")
    options = parser.parse_args()
    us = {n: [] for n in options.workers}
    print(COLUMNS, flush=True)
    for number in range(options.rounds):
        for n in options.workers[::-1 if number % 2 else 1]:
            with tempfile.TemporaryDirectory() as directory:
                rate, per_push = measure(Path(directory), n, options)
            us[n].append(per_push)
            cores = 1e-6 * rate * per_push
            print(f"{n},{number},{rate:.0f},{per_push:.1f},{cores:.2f}", flush=True)
    first = statistics.median(us[options.workers[0]])
    for n in options.workers[1:]:
        ratio = statistics.median(us[n]) / first
        print(f"{n} workers: {100 * (ratio - 1):+.1f} % of processor time per push")


if __name__ == "__main__":
    main()
