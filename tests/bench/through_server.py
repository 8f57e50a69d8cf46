#!/usr/bin/env python3
"""Compare the training speed of workers with a real server to the speed of their kernels alone.

    tests/bench/through_server.py [--device cuda] [--workers 1] [--epochs 20] [--repeat 1]
                                  [--n-push 1,4,16] [NET,BATCH,PRECISION...]
                                  [-- OPTIONS OF cnn-ps]

--workers has numbers of workers, separated by commas: with --device cuda and several workers,
worker i uses GPU i. With --repeat R, an epoch has every training image R times, because an epoch of
60,000 images takes several GPUs only a few milliseconds.

n_push is the number of batches between a pull and the push after it (cnn-ps --n-push and
--n-fetch). A lease has all batches of an epoch of 60,000 images. The script prints CSV with the
columns net,batch,precision,n_push,workers,images_per_s,bare_images_per_s,share,accuracy.
images_per_s is the mean of the rates that the server logs for each epoch, without evaluations. The
first quarter of the epochs does not count, because the programs allocate buffers in this time.
bare_images_per_s is the rate of the kernels of one worker without a server (column
local_images_per_s of tests/bench/gpu), and share is images_per_s / bare_images_per_s. accuracy is
the test accuracy of the last evaluation.

The learning rate is 0.005, because cnn99 diverges at the default rate with 16 batches of 1000
images per push. An option --lr after -- replaces this rate.

Data: $CNN_DATA or the default data directories.
"""
import argparse
import csv
import gzip
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
    """Returns a list of the images per second of each epoch, which the server has logged."""
    found = []
    for line in server.lines:
        if 'msg="train epoch"' in line:
            found.append(float(line.rsplit("images_per_s=", 1)[1].split()[0]))
    return found


def repeated(name, source, target, repeat):
    """Write the IDX file `name` of the directory `source` to `target`, with its items `repeat`
    times."""
    path = source / name
    opened = open if path.exists() else gzip.open
    with opened(path if path.exists() else f"{path}.gz", "rb") as f:
        content = f.read()
    header = 4 + 4 * content[3]
    items = int.from_bytes(content[4:8], "big") * repeat
    with open(target / name, "wb") as f:
        f.write(content[:4] + items.to_bytes(4, "big") + content[8:header])
        for _ in range(repeat):
            f.write(content[header:])


def devices(args, workers):
    """Returns the device of each worker."""
    if workers == 1 or args.device != "cuda":
        return [args.device] * workers
    return [f"cuda:{i}" for i in range(workers)]


def through_server(net, batch, precision, n_push, workers, data, args):
    """Train through a server. Returns the mean images per second of all epochs after the first
    quarter, and the accuracy at the end."""
    with tempfile.TemporaryDirectory() as directory:
        programs = Programs(Path(directory), data)
        try:
            server = programs.server("--model", net, "--epochs", args.epochs, "--batch-size", batch,
                                "--n-push", n_push, "--n-fetch", n_push,
                                "--lease-batches", 60000 // int(batch), "--min-workers", workers,
                                *args.options, env=RATE)
            fleet = [worker(programs, server, device, "--precision", precision)
                     for device in devices(args, workers)]
            accuracy = server.result(240)["accuracy"]
            for w in fleet:
                assert w.wait(20) == 0, w.tail()
            return statistics.harmonic_mean(rates(server)[args.epochs // 4:]), accuracy
        finally:
            programs.close()


def bare(net, batch, precision, args):
    """Returns the images per second that tests/bench/gpu measures without a server."""
    done = subprocess.run(command("tests/bench/gpu", net, batch, precision, 5, args.device),
                          check=True, stdout=subprocess.PIPE, text=True)
    [row] = csv.DictReader(done.stdout.splitlines())
    return float(row["local_images_per_s"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", default="1")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=1, help="how often an epoch has each image")
    parser.add_argument("--n-push", default="1,4,16")
    parser.add_argument("races", nargs="*", metavar="NET,BATCH,PRECISION")
    ours = sys.argv[1:]
    split = ours.index("--") if "--" in ours else len(ours)
    args = parser.parse_args(ours[:split])
    args.options = ours[split + 1:]
    print("net,batch,precision,n_push,workers,images_per_s,bare_images_per_s,share,accuracy")
    with tempfile.TemporaryDirectory() as directory:
        data = data_directory()
        if args.repeat > 1:
            for part, repeat in (("train", args.repeat), ("t10k", 1)):
                for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
                    repeated(name, data, Path(directory), repeat)
            data = Path(directory)
        for race in args.races or RACES:
            net, batch, precision = race.split(",")
            bare_speed = bare(net, batch, precision, args)
            for n_push in map(int, args.n_push.split(",")):
                for workers in map(int, args.workers.split(",")):
                    speed, accuracy = through_server(net, batch, precision, n_push, workers, data,
                                                     args)
                    print(f"{race},{n_push},{workers},{speed:.0f},{bare_speed:.0f},"
                          f"{speed / bare_speed:.3f},{accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
