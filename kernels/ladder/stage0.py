#!/usr/bin/env python3
"""Stage 0 of the ladder: computes seed:F in NumPy and prints the same rows as cnn-ladder.

    stage0.py steps [--filters F] [--batch B] [--seconds S] [--runs N]     as `cnn-ladder steps`
    stage0.py train [--filters F] [--batch B] [--seconds S] [--rate R]

This stage computes whole batches in single precision. The convolution is a matrix product over the
windows of all images (im2col). Pooling and the backward pass are array expressions. NumPy draws the
initial weights within the same bounds as cnn-ladder. The data set is in $CNN_DATA or in one of the
default directories. The script needs only NumPy.
"""
import argparse
import gzip
import os
import statistics
import struct
import sys
import time
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

SWEEP = ((256, 1000), (256, 500), (256, 250), (256, 100), (128, 1000), (64, 1000), (32, 1000))
MARKS = (0.01, 0.03, 0.1, 0.3, 1, 3)
SHOWN, EVALUATED = 12, 1000
USUAL = ("data/mnist", "/usr/share/datasets/fashion-mnist")


def read_idx(name):
    """Returns the array from the first default directory that has the file, plain or .gz."""
    for place in [os.environ["CNN_DATA"]] if os.environ.get("CNN_DATA") else USUAL:
        for path, opened in ((Path(place) / name, open), (Path(place) / (name + ".gz"), gzip.open)):
            if path.exists():
                with opened(path, "rb") as f:
                    raw = f.read()
                dims = struct.unpack(f">{raw[3]}I", raw[4:4 + 4 * raw[3]])
                return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(dims)
    sys.exit(f"stage0: there is no file {name}: set CNN_DATA to its directory")


def initial(filters, seed):
    """Returns the initial conv weight [F, 9] and bias, fc weight [10, F * 169] and bias."""
    draw = np.random.default_rng(seed)

    def uniform(*shape, fan_in):
        return draw.uniform(-1, 1, shape).astype(np.float32) / np.float32(np.sqrt(fan_in))
    inputs = filters * 169
    return [uniform(filters, 9, fan_in=9), uniform(filters, fan_in=9),
            uniform(10, inputs, fan_in=inputs), uniform(10, fan_in=inputs)]


def forward(params, pixels):
    """Returns the logits of images [N, 28, 28], and the values that the backward pass needs."""
    conv, conv_bias, fc, fc_bias = params
    n, f = len(pixels), len(conv)
    windows = sliding_window_view(pixels.astype(np.float32) / 255, (3, 3), (1, 2))
    windows = windows.reshape(n, 26 * 26, 9)
    out = windows @ conv.T + conv_bias
    np.maximum(out, 0, out=out)
    # from N, 13, 2, 13, 2, F to N, F, 13, 13, 4: the four values of a window are last
    tiles = out.reshape(n, 13, 2, 13, 2, f).transpose(0, 5, 1, 3, 2, 4).reshape(n, f, 169, 4)
    argmax = tiles.argmax(3)
    pooled = np.take_along_axis(tiles, argmax[..., None], 3)[..., 0].reshape(n, f * 169)
    return pooled @ fc.T + fc_bias, (windows, argmax, pooled)


def softmax(logits):
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def gradient(params, pixels, labels):
    """Returns the mean gradient of the softmax loss, one array per tensor."""
    conv, _, fc, _ = params
    n, f = len(pixels), len(conv)
    logits, (windows, argmax, pooled) = forward(params, pixels)
    d_logits = softmax(logits)
    d_logits[np.arange(n), labels] -= 1
    d_logits /= n
    d_pooled = (d_logits @ fc) * (pooled > 0)
    d_tiles = np.zeros((n, f, 169, 4), np.float32)
    np.put_along_axis(d_tiles, argmax[..., None], d_pooled.reshape(n, f, 169, 1), 3)
    d_out = d_tiles.reshape(n, f, 13, 13, 2, 2).transpose(0, 2, 4, 3, 5, 1).reshape(n * 676, f)
    return [d_out.T @ windows.reshape(n * 676, 9), d_out.sum(0), d_logits.T @ pooled,
            d_logits.sum(0)]


class Data:
    def __init__(self, seed):
        self.images = read_idx("train-images-idx3-ubyte")
        self.labels = read_idx("train-labels-idx1-ubyte").astype(np.int64)
        self.order = np.random.default_rng(seed).permutation(len(self.images))

    def batch(self, number, size):
        begin = number * size % (len(self.order) - size + 1)
        index = self.order[begin:begin + size]
        return self.images[index], self.labels[index]


def check(params, data):
    """Compares the gradient with the slope of the loss in a random direction, in double
    precision."""
    doubles = [p.astype(np.float64) for p in params]
    pixels, labels = data.batch(0, 5)
    draw = np.random.default_rng(3)
    direction = [draw.standard_normal(p.shape) for p in doubles]

    def loss(t):
        p = softmax(forward([w + t * d for w, d in zip(doubles, direction)], pixels)[0])
        return -np.log(p[np.arange(5), labels]).mean()
    h = 1e-6
    slope = (loss(h) - loss(-h)) / (2 * h)
    along = sum((g * d).sum() for g, d in zip(gradient(params, pixels, labels), direction))
    if not abs(along - slope) < 1e-3 * abs(slope):
        sys.exit(f"stage0: the slope is {along} by the gradient, but {slope} by the loss")


def measure(step, seconds):
    """Returns the times of steps in ms, measured for about `seconds`."""
    taken = []
    while not taken or (sum(taken) < seconds * 1e3 and len(taken) < 2000):
        begin = time.perf_counter()
        step()
        taken.append((time.perf_counter() - begin) * 1e3)
    return taken


def print_step(rung, filters, batch, runs, error=""):
    """Prints the row of the median run."""
    runs = sorted(runs, key=statistics.median)
    median = [statistics.median(taken) for taken in runs]
    ms, taken = median[len(runs) // 2], runs[len(runs) // 2]
    print(f"{rung},{filters},{batch},{len(taken)},{ms:.4f},{min(taken):.4f},"
          f"{batch / ms * 1e3:.0f},0,0,0,{ms:.4f},{error},{median[0]:.4f},{median[-1]:.4f}",
          flush=True)


def steps(args):
    data = Data(args.seed)
    print("rung,filters,batch,repetitions,ms_median,ms_min,images_per_s,copy_in_ms,kernel_ms,"
          "copy_out_ms,host_ms,error,ms_low,ms_high")
    points = [(args.filters or 256, args.batch or 1000)] if args.filters or args.batch else SWEEP
    check(initial(7, args.seed), data)
    for filters, batch in points:
        params = initial(filters, args.seed)
        print_step("numpy", filters, batch,
                   [measure(lambda: gradient(params, *data.batch(0, batch)), args.seconds)
                    for _ in range(args.runs)])


def print_predictions(params, seconds, made, images, labels):
    predictions = np.concatenate([softmax(forward(params, images[i:i + 100])[0])
                              for i in range(0, EVALUATED, 100)])
    right = (predictions.argmax(1) == labels[:EVALUATED]).mean()
    for i in range(SHOWN):
        print(f"numpy,{seconds:g},{made},{right:.4f},{i},{labels[i]},{predictions[i].argmax()},"
              f"{predictions[i].max():.3f},{predictions[i][labels[i]]:.3f}", flush=True)


def train(args):
    """Trains like cnn-ladder. A step that ends after a given time does not change the weights of
    this time."""
    data, batch = Data(args.seed), args.batch or 100
    images = read_idx("t10k-images-idx3-ubyte")[:EVALUATED]
    labels = read_idx("t10k-labels-idx1-ubyte")[:EVALUATED]
    params = initial(args.filters or 256, args.seed)
    marks = [m for m in MARKS if m <= args.seconds] or [MARKS[0]]
    print("rung,seconds,steps,right,image,label,prediction,probability,of_label")
    gradient(params, *data.batch(0, batch))
    made, clock = 0, 0.0
    while marks:
        before, begin = params, time.perf_counter()
        g = gradient(params, *data.batch(made, batch))
        params = [p - np.float32(args.rate) * d for p, d in zip(params, g)]
        clock += time.perf_counter() - begin
        while marks and clock > marks[0]:
            print_predictions(before, marks.pop(0), made, images, labels)
        made += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("steps", "train"))
    parser.add_argument("--filters", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    steps(args) if args.command == "steps" else train(args)


if __name__ == "__main__":
    main()
