"""Measure training steps in PyTorch on one GPU, to compare the CUDA device with them (docs/gpu.md).

    python3 tests/bench/torch_peer.py [--nets seed:32,cnn99] [--batches 100,1000] [--epochs 5]

All images are on the device as uint8. A step selects its images by the permutation of the epoch,
converts them to floats, computes forward and backward, and updates the weights with SGD. An epoch
has 60,000 images. The script measures every combination of {eager, CUDA graph, torch.compile +
CUDA graph; with --modes also torch.compile alone} x {fp32, tf32, bf16 (autocast), bf16 weights} x
{contiguous, channels-last}. A CUDA graph contains STEPS complete training steps. The device counts
the position in the permutation, so the host makes few launches. The script prints CSV:
net,batch,mode,precision,layout,ms_per_epoch (the median epoch).

Data: $CNN_DATA or the default data directories. Without data the script draws random images; the
speed does not depend on their content.
"""
import argparse
import gzip
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

STEPS = 10
IMAGES = 60000
RATE = 0.01
USUAL = ("data/mnist", "/usr/share/datasets/fashion-mnist")
PRECISIONS = ("fp32", "tf32", "bf16", "bf16-weights")
LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


NAMES = {
    "lenet5": "conv:6:5:pad=2 relu pool:2 conv:16:5 relu pool:2 fc:120 relu fc:84 relu fc:10",
    "cnn99": "conv:32:5 relu pool:2 conv:64:5 relu pool:2 fc:128 relu fc:10",
    "cifar": "conv:32:3:pad=1 relu conv:32:3:pad=1 relu pool:2 conv:64:3:pad=1 relu "
             "conv:64:3:pad=1 relu pool:2 fc:512 relu dropout:0.5 fc:10",
    "alexnet": "conv:96:11:stride=4:pad=auto relu lrn pool:3:stride=2 conv:256:5:pad=2:groups=2 relu "
               "lrn pool:3:stride=2 conv:384:3:pad=1 relu conv:384:3:pad=1:groups=2 relu "
               "conv:256:3:pad=1:groups=2 relu pool:3:stride=2 dropout:0.5 fc:4096 relu "
               "dropout:0.5 fc:4096 relu fc:1000",
    "resnet8": "conv:16:3:pad=1 batchnorm relu skip conv:16:3:pad=1 batchnorm relu "
               "conv:16:3:pad=1 batchnorm add relu skip conv:32:3:stride=2:pad=same batchnorm relu "
               "conv:32:3:pad=1 batchnorm add relu skip conv:64:3:stride=2:pad=same batchnorm relu "
               "conv:64:3:pad=1 batchnorm add relu avgpool:global fc:10"}
# {network: the shape of its images}; the images of all other networks have the shape (1, 28, 28)
SHAPES = {"cifar": (3, 32, 32), "resnet8": (3, 32, 32), "alexnet": (3, 224, 224)}


def text_of(net):
    """Returns the layers of a network, also for names such as seed:32 and cnn99."""
    if net.startswith("seed:"):
        return f"conv:{net[5:]}:3 relu pool:2 fc:10"
    return NAMES.get(net, net)


def shape_of(net):
    return SHAPES.get(net, (1, 28, 28))


def operations_of(net):
    """Yields (channels, side, filters, size, pad, stride, groups) for each convolution and fc
    layer."""
    channels, _, side = shape_of(net)
    flat = False
    for word in text_of(net).split():
        kind, *values = word.split(":")
        o = {"pad": 0, "stride": 1, "groups": 1,
             **dict(x.split("=") for x in values if "=" in x)}
        if o["pad"] == "auto":  # PyTorch has no pad=auto, and omits the last rows
            o["pad"] = int(values[1]) // int(o["stride"])
        elif o["pad"] == "same":
            o["pad"] = int(values[1]) // 2
        o = {k: int(v) for k, v in o.items()}
        if kind == "conv":
            yield channels, side, int(values[0]), int(values[1]), o["pad"], o["stride"], o["groups"]
            channels = int(values[0])
            side = (side + 2 * o["pad"] - int(values[1])) // o["stride"] + 1
        elif word == "avgpool:global":
            side = 1
        elif kind in ("pool", "avgpool"):
            size = int(values[0])
            side = (side - size) // (o["stride"] if "stride=" in word else size) + 1
        elif kind == "fc":
            yield (channels if flat else channels * side * side), 1, int(values[0]), 1, 0, 1, 1
            channels, flat = int(values[0]), True


class Residual(nn.Module):
    """The layers between the `skip` and the `add` of a model text, and the addition at their end.
    The skip leaves out rows, columns and, at the end, channels like the `add` of cnn-ps."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        y = self.layers(x)
        stride = -(-x.shape[2] // y.shape[2])
        x = x[:, :, ::stride, ::stride]
        return y + functional.pad(x, (0, 0, 0, 0, 0, y.shape[1] - x.shape[1]))


PLAIN = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


def build(net):
    layers, flat, operations, outside = [], False, operations_of(net), []
    filters = shape_of(net)[0]
    for word in text_of(net).split():
        kind, *values = word.split(":")
        if kind in ("conv", "fc"):
            channels, _, filters, size, pad, stride, groups = next(operations)
        if kind == "conv":
            layers.append(nn.Conv2d(channels, filters, size, stride, pad, groups=groups))
        elif kind == "fc":
            layers += [] if flat else [nn.Flatten()]
            layers.append(nn.Linear(channels, filters))
            flat = True
        elif kind == "pool":
            stride = [int(v[7:]) for v in values if v.startswith("stride=")]
            layers.append(nn.MaxPool2d(int(values[0]), *stride))
        elif word == "avgpool:global":
            layers.append(nn.AdaptiveAvgPool2d(1))
        elif kind == "avgpool":
            layers.append(nn.AvgPool2d(int(values[0])))
        elif kind in PLAIN:
            layers.append(PLAIN[kind]())
        elif kind == "batchnorm":
            layers.append((nn.BatchNorm1d if flat else nn.BatchNorm2d)(filters))
        elif kind == "skip":
            outside.append(layers)
            layers = []
        elif kind == "add":
            layers = [*outside.pop(), Residual(layers)]
        elif kind == "lrn":
            layers.append(nn.LocalResponseNorm(5))
        elif kind == "dropout":
            layers.append(nn.Dropout(float(values[0])))
        else:
            sys.exit(f"torch_peer: no layer {word}")
    return nn.Sequential(*layers)


def read_idx(name, offset):
    """Returns the bytes of an IDX file after its header, or None if the file does not exist."""
    places = [os.environ["CNN_DATA"]] if os.environ.get("CNN_DATA") else USUAL
    for place in places:
        for path, opened in ((f"{place}/{name}", open), (f"{place}/{name}.gz", gzip.open)):
            if os.path.exists(path):
                with opened(path, "rb") as f:
                    return torch.frombuffer(bytearray(f.read()[offset:]), dtype=torch.uint8)
    return None


def load(device):
    images, labels = read_idx("train-images-idx3-ubyte", 16), read_idx("train-labels-idx1-ubyte", 8)
    if images is None or labels is None or len(labels) != IMAGES:
        print("torch_peer: no images found: random ones", file=sys.stderr)
        images = torch.randint(0, 256, (IMAGES * 784,), dtype=torch.uint8)
        labels = torch.randint(0, 10, (IMAGES,), dtype=torch.uint8)
    return images.reshape(IMAGES, 1, 28, 28).to(device), labels.long().to(device)


def random_images(net, device):
    """Returns random images and labels for a network whose images have another shape than MNIST's:
    10,000 images, or 1,280 large ones."""
    shape = shape_of(net)
    n = 10000 if shape[1] < 100 else 1280
    return (torch.randint(0, 256, (n, *shape), dtype=torch.uint8, device=device),
            torch.randint(0, 10, (n,), device=device))


def set_tf32(on):
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


class Training:
    """Trains one network in one precision and memory format, with eager steps, a CUDA graph,
    torch.compile, or both."""

    def __init__(self, net, batch, data, mode, precision, layout):
        self.images, self.labels = data
        self.device = self.images.device
        self.mode, self.precision, self.layout, self.batch = mode, precision, layout, batch
        set_tf32(precision == "tf32")
        self.dtype = torch.bfloat16 if precision == "bf16-weights" else torch.float32
        self.format = LAYOUTS[layout]
        self.model = build(net).to(self.device, self.dtype).to(memory_format=self.format)
        self.params = list(self.model.parameters())
        self.n = len(self.images)
        self.order = torch.randperm(self.n, device=self.device)
        self.first = torch.zeros((), dtype=torch.long, device=self.device)
        self.range = torch.arange(batch, device=self.device)
        self.loss_of = self.loss
        if "compile" in mode:
            # Without the reset, torch.compile would stop after a few networks and run all later
            # ones eagerly.
            torch._dynamo.reset()
            self.loss_of = torch.compile(self.loss)
        self.graph = self.capture() if "graph" in mode else None

    def loss(self, first):
        index = self.order.index_select(0, first + self.range)
        x = self.images.index_select(0, index).to(self.dtype).mul_(1 / 255)
        x = x.contiguous(memory_format=self.format)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            logits = self.model(x)
        return functional.cross_entropy(logits.float(), self.labels.index_select(0, index))

    def step(self):
        grads = torch.autograd.grad(self.loss_of(self.first), self.params)
        with torch.no_grad():
            torch._foreach_add_(self.params, grads, alpha=-RATE)
            self.first.add_(self.batch).remainder_(self.n // self.batch * self.batch)

    def capture(self):
        """Capture a CUDA graph of STEPS training steps. PyTorch requires a warm-up on another
        stream before the capture."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.first.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(STEPS):
                self.step()
        return graph

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def epoch_ms(self):
        set_tf32(self.precision == "tf32")
        self.synchronize()
        start = time.perf_counter()
        steps = self.n // self.batch // STEPS * STEPS
        for _ in range(steps // STEPS if self.graph else steps):
            self.graph.replay() if self.graph else self.step()
        self.synchronize()
        return (time.perf_counter() - start) * 1e3 * (IMAGES / self.batch) / steps

    def median_ms(self, epochs):
        self.epoch_ms()
        return statistics.median(self.epoch_ms() for _ in range(epochs))

    def name(self):
        return f"{self.mode} {self.precision} {self.layout}"


def variants(net, batch, data, epochs, modes, precisions=PRECISIONS, layouts=tuple(LAYOUTS)):
    """Measure all variants. Yields (milliseconds, variant) as soon as a variant is measured."""
    for mode in modes:
        for precision in precisions:
            for layout in layouts:
                try:
                    training = Training(net, batch, data, mode, precision, layout)
                    ms = training.median_ms(epochs)
                except RuntimeError as e:  # skip a variant that PyTorch does not support
                    print(f"torch_peer: {net} {batch} {mode} {precision} {layout}: {e}",
                          file=sys.stderr)
                    continue
                yield ms, training


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", default="seed:256,seed:32,cnn99")
    parser.add_argument("--batches", default="100,1000")
    parser.add_argument("--epochs", type=int, default=5, help="timed, after one that is not")
    parser.add_argument("--modes", default="eager,graph,compile+graph",
                        help="of eager, graph, compile and compile+graph")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--device", default="cuda", help="cpu: tries the program itself (eager)")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    mnist = load(torch.device(args.device))
    print("net,batch,mode,precision,layout,ms_per_epoch")
    for net in args.nets.split(","):
        data = random_images(net, args.device) if net in SHAPES else mnist
        for batch in map(int, args.batches.split(",")):
            for ms, t in variants(net, batch, data, args.epochs, args.modes.split(","),
                                  args.precisions.split(","), args.layouts.split(",")):
                print(f"{net},{batch},{t.mode},{t.precision},{t.layout},{ms:.2f}", flush=True)


if __name__ == "__main__":
    main()
