"""A small ResNet with BatchNorm on images in CIFAR-10's binary format.

    python -m cnnps.run --workers 4 -m cnnps.examples.resnet --data cifar-10-batches-bin
    python -m cnnps.examples.resnet --data cifar-10-batches-bin --plain

Without --data the example trains on random images in this format: each image shows the colored
pattern of its class, with noise.
"""
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import cnnps.torch
from cnnps.examples.common import arguments, compare

RECORD = 1 + 3 * 32 * 32  # bytes of a record: the label, and three planes of 32 x 32 pixels


def synthetic(count: int, seed: int) -> bytes:
    """Returns `count` random records. An image is the pattern of its class, with a random contrast,
    plus noise."""
    patterns = np.random.default_rng(0).normal(0, 1, (10, 3, 4, 4)).repeat(8, 2).repeat(8, 3)
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count)
    pixels = np.empty((count, 3, 32, 32), np.uint8)
    for i, label in enumerate(labels):
        image = patterns[label] * random.uniform(10, 30) + random.normal(0, 40, (3, 32, 32))
        pixels[i] = np.clip(128 + image, 0, 255)
    return np.hstack([labels[:, None].astype(np.uint8), pixels.reshape(count, -1)]).tobytes()


def images(raw: bytes, count: int) -> TensorDataset:
    records = np.frombuffer(raw, np.uint8).reshape(-1, RECORD)[:count]
    x = records[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / 64 - 2
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(records[:, 0].astype(np.int64)))


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside),
            nn.ReLU(), nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside))
        self.shortcut = (nn.Identity() if stride == 1 and inside == outside else
                         nn.Conv2d(inside, outside, 1, stride, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def main() -> None:
    options = arguments((__doc__ or "").splitlines()[0], "directory of data_batch_*.bin and "
                        "test_batch.bin", epochs=3, batch_size=50, samples=50000, tests=10000)
    if options.data:
        directory = Path(options.data)
        train = b"".join(p.read_bytes() for p in sorted(directory.glob("data_batch_*.bin")))
        test = (directory / "test_batch.bin").read_bytes()
    else:
        train, test = synthetic(min(options.samples, 10000), 1), synthetic(
            min(options.tests, 2000), 2)
    torch.manual_seed(1)
    compare("resnet", resnet(), nn.functional.cross_entropy, images(train, options.samples),
            images(test, options.tests), options, {"accuracy": cnnps.torch.accuracy},
            adam_lr=0.002, optimizer="rmsprop", lr=0.002, schedule="onecycle")


if __name__ == "__main__":
    main()
