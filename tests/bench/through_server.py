#!/usr/bin/env python3
"""One worker through a real server on this machine, against its bare kernels.

    tests/bench/through_server.py [--device cuda] [--precision fp32] [--epochs 5] [--batch 100]
                                  [--n-push 1,4,16] [--nets seed:32,seed:256]
                                  [-- OPTIONS OF cnn-ps]

n_push: batches from a pull to its push (cnn-ps --n-push and --n-fetch), in leases of 64 batches.
Prints CSV: net,batch,precision,n_push,images_per_s,bare_images_per_s,share. images_per_s is the
median of the server's own epoch rates from the second epoch on (evaluation not counted); bare is
tests/bench/gpu's local, the kernels with nothing around them.

Data: $CNN_DATA or the usual places.
"""
import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS), str(TESTS / "gpu")]

from flavour import command  # noqa: E402
from gpu import worker  # noqa: E402
from lab import Lab  # noqa: E402


def data_directory():
    for d in (os.environ.get("CNN_DATA"), "data/mnist", "/usr/share/datasets/fashion-mnist"):
        if d and Path(d).is_dir():
            return Path(d)
    sys.exit("no training images: set CNN_DATA")


def rates(server):
    """The server's images per second of each epoch, as its log has them."""
    found = []
    for line in server.lines:
        if " train epoch" in line:
            found.append(float(line.rsplit("images_per_s=", 1)[1].split()[0]))
    return found


def through_server(net, n_push, args):
    """Images per second of the median epoch; the first one warms up."""
    with tempfile.TemporaryDirectory() as directory:
        lab = Lab(Path(directory), data_directory())
        try:
            server = lab.server("--model", net, "--epochs", args.epochs, "--batch", args.batch,
                                "--n-push", n_push, "--n-fetch", n_push,
                                "--lease-batches", 64, *args.options)
            w = worker(lab, server, args.device, "--precision", args.precision)
            server.result(240)
            assert w.wait(20) == 0, w.tail()
            return statistics.median(rates(server)[1:])
        finally:
            lab.close()


def bare(net, args):
    """By "local" and "gradient", images per second without a server."""
    done = subprocess.run(
        command("tests/bench/gpu", net, args.batch, args.precision, 3, args.device),
        check=True, stdout=subprocess.PIPE, text=True)
    [row] = csv.DictReader(done.stdout.splitlines())
    return {way: float(row[f"{way}_images_per_s"]) for way in ("local", "gradient")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--n-push", default="1,4,16")
    parser.add_argument("--nets", default="seed:32,seed:256")
    parser.add_argument("options", nargs="*", help="more of cnn-ps, behind --")
    args = parser.parse_args()
    print("net,batch,precision,n_push,images_per_s,bare_images_per_s,share")
    for net in args.nets.split(","):
        alone = bare(net, args)
        for n_push in map(int, args.n_push.split(",")):
            speed = through_server(net, n_push, args)
            most = alone["local"]
            print(f"{net},{args.batch},{args.precision},{n_push},{speed:.0f},{most:.0f},"
                  f"{speed / most:.3f}", flush=True)


if __name__ == "__main__":
    main()
