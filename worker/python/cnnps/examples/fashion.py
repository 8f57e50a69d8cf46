"""A small CNN on Fashion-MNIST.

    python -m cnnps.run --workers 4 -m cnnps.examples.fashion
    python -m cnnps.examples.fashion --plain
"""
import gzip
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import cnnps.torch
from cnnps.examples.common import arguments, compare

# where Debian's package dataset-fashion-mnist installs the data
DEBIAN = "/usr/share/datasets/fashion-mnist"


def images(directory: Path, part: str, count: int) -> TensorDataset:
    """Returns the first `count` images of a part of the data set, "train" or "t10k"."""
    try:
        pixels = gzip.decompress((directory / f"{part}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((directory / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    except FileNotFoundError as why:
        sys.exit(f"fashion: {why}; --data or CNN_DATA names the directory with the four files of "
                 "https://github.com/zalandoresearch/fashion-mnist")
    x = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 1, 28, 28)[:count]
    y = np.frombuffer(labels, np.uint8, offset=8)[:count]
    return TensorDataset(torch.from_numpy(x.astype(np.float32) / 255 - 0.5),
                         torch.from_numpy(y.astype(np.int64)))


def main() -> None:
    options = arguments((__doc__ or "").splitlines()[0], "directory of the four files of Fashion-MNIST",
                        epochs=3, batch_size=50, samples=60000, tests=10000)
    directory = Path(options.data or os.environ.get("CNN_DATA") or DEBIAN)
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))
    compare("fashion", model, nn.functional.cross_entropy,
            images(directory, "train", options.samples), images(directory, "t10k", options.tests),
            options, {"accuracy": cnnps.torch.accuracy}, adam_lr=0.004,
            optimizer="rmsprop", lr=0.004, schedule="onecycle")


if __name__ == "__main__":
    main()
