#!/usr/bin/env python3
"""Compare the training speed of a worker with a real server to the speed of its kernels alone.

    tests/bench/through_server.py [--device cuda] [--epochs 20] [--n-push 1,4,16]
                                  [NET,BATCH,PRECISION...] [-- OPTIONS OF cnn-ps]

n_push is the number of batches between a pull and the push after it (cnn-ps --n-push and
--n-fetch). A lease has all batches of an epoch. The script prints CSV:
net,batch,precision,n_push,images_per_s,bare_images_per_s,share. images_per_s is the mean of the
rates that the server logs for each epoch, without evaluations. The first quarter of the epochs does
not count, because the programs allocate buffers in this time. bare_images_per_s is the rate of the
kernels without a server (column local_images_per_s of tests/bench/gpu), and share is images_per_s /
bare_images_per_s.

The learning rate is 0.005, because cnn99 diverges at the default rate with 16 batches of 1000
images per push. An --lr after -- takes precedence.

Data: $CNN_DATA or the default data directories.
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

from gpu import worker  # noqa: E402
from support.build import command  # noqa: E402
from support.programs import Programs  # noqa: E402


RACES = ["seed:256,1000,fp32", "seed:256,100,fp32", "seed:32,1000,fp32", "seed:32,100,fp32",
         "cnn99,1000,tf32"]
RATE = {"CNN_LR": "0.005"}


def data_directory():
    for d in (os.environ.get("CNN_DATA"), "data/mnist", "/usr/share/datasets/fashion-mnist"):
        if d and any(Path(d).glob("train-images-*")):
            return Path(d).resolve()
    sys.exit("no training images: set CNN_DATA")


def rates(server):
    """Returns the images per second of each epoch, from the server's log."""
    found = []
    for line in server.lines:
        if 'msg="train epoch"' in line:
            found.append(float(line.rsplit("images_per_s=", 1)[1].split()[0]))
    return found


def through_server(net, batch, precision, n_push, args):
    """Train through a server. Returns the mean images per second of all epochs after the first
    quarter."""
    with tempfile.TemporaryDirectory() as directory:
        programs = Programs(Path(directory), data_directory())
        try:
            server = programs.server("--model", net, "--epochs", args.epochs, "--batch-size", batch,
                                "--n-push", n_push, "--n-fetch", n_push,
                                "--lease-batches", 60000 // int(batch), *args.options,
                                env=RATE)
            w = worker(programs, server, args.device, "--precision", precision)
            server.result(240)
            assert w.wait(20) == 0, w.tail()
            return statistics.harmonic_mean(rates(server)[args.epochs // 4:])
        finally:
            programs.close()


def bare(net, batch, precision, args):
    """Returns the images per second of the kernels without a server."""
    done = subprocess.run(command("tests/bench/gpu", net, batch, precision, 5, args.device),
                          check=True, stdout=subprocess.PIPE, text=True)
    [row] = csv.DictReader(done.stdout.splitlines())
    return float(row["local_images_per_s"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--n-push", default="1,4,16")
    parser.add_argument("races", nargs="*", metavar="NET,BATCH,PRECISION")
    ours = sys.argv[1:]
    split = ours.index("--") if "--" in ours else len(ours)
    args = parser.parse_args(ours[:split])
    args.options = ours[split + 1:]
    print("net,batch,precision,n_push,images_per_s,bare_images_per_s,share")
    for race in args.races or RACES:
        net, batch, precision = race.split(",")
        bare_speed = bare(net, batch, precision, args)
        for n_push in map(int, args.n_push.split(",")):
            speed = through_server(net, batch, precision, n_push, args)
            print(f"{race},{n_push},{speed:.0f},{bare_speed:.0f},{speed / bare_speed:.3f}", flush=True)


if __name__ == "__main__":
    main()
