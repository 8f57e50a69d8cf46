#!/usr/bin/env python3
"""Measures a step of the ladder in PyTorch, which calls cuDNN and cuBLAS, in a CUDA graph.

    library.py [--filters F] [--batch B] [--seconds S] [--runs N]     as `cnn-ladder steps`

The row `cudnn` is a step that copies weights and gradient, like the rung `production`. `cudnn
local` keeps the weights on the device, like the rung `local`. `cudnn bf16` also keeps the weights
there and uses autocast to bf16; it corresponds to the rungs `bf16` and `persistent`. Products of
`cudnn` and `cudnn local` are fp32. The script measures each row with both memory layouts of PyTorch
(NCHW and NHWC) and prints the faster one. The script compares every gradient with a gradient in
double precision. The script needs PyTorch and a GPU.
"""
import argparse
import statistics
import sys

import torch
import torch.nn.functional as F
from stage0 import SWEEP, Data, initial, measure, print_step

KINDS = {"cudnn": (False, False), "cudnn local": (True, False), "cudnn bf16": (True, True)}
BOUND = {False: 1e-4, True: 2e-2}  # bounds of the relative error in fp32 (False) and bf16 (True)
RATE = 1e-4


def loss_of(weights, pixels, labels, dtype):
    conv, conv_bias, fc, fc_bias = weights
    x = pixels.unsqueeze(1).to(dtype) / 255
    x = F.max_pool2d(F.relu(F.conv2d(x, conv, conv_bias)), 2)
    logits = F.linear(x.flatten(1), fc, fc_bias)
    return F.cross_entropy(logits.to(dtype), labels)


class Step:
    """A step that is captured in a CUDA graph, and the gradient of this step on the host."""

    def __init__(self, data, params, batch, local, bf16, layout):
        shapes = [(len(params[0]), 1, 3, 3), *(p.shape for p in params[1:])]
        self.batch, self.steps = batch, len(data.order) // batch if local else 1
        self.host = [torch.from_numpy(p).reshape(s).pin_memory() for p, s in zip(params, shapes)]
        self.out = [torch.empty_like(p).pin_memory() for p in self.host]
        self.weights = [p.cuda() for p in self.host]
        self.weights[0] = self.weights[0].contiguous(memory_format=layout)
        for w in self.weights:
            w.requires_grad_()
        self.images, self.labels = data.images_on_gpu, data.labels_on_gpu
        self.order = torch.from_numpy(data.order).cuda()
        self.local, self.bf16 = local, bf16
        self.first = torch.zeros((), dtype=torch.int64, device="cuda")
        self.numbers = torch.arange(batch, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.enqueue()
                self.first.zero_()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.enqueue()
        self.reset()

    def reset(self):
        with torch.no_grad():
            for w, h in zip(self.weights, self.host):
                w.copy_(h)
        self.first.zero_()
        torch.cuda.synchronize()

    def enqueue(self):
        if not self.local:
            with torch.no_grad():
                for w, h in zip(self.weights, self.host):
                    w.copy_(h, non_blocking=True)
        index = self.order[self.first + self.numbers]
        with torch.autocast("cuda", torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            loss = loss_of(self.weights, self.images[index], self.labels[index], torch.float32)
        self.grads = torch.autograd.grad(loss, self.weights)
        if self.local:
            with torch.no_grad():
                torch._foreach_add_(self.weights, self.grads, alpha=-RATE)
            self.first.add_(self.batch)
        else:
            for o, g in zip(self.out, self.grads):
                o.copy_(g, non_blocking=True)

    def run(self):
        """Runs an epoch of steps if the weights stay on the device (`local`), else one step."""
        if self.local:
            self.first.zero_()
        for _ in range(self.steps):
            self.graph.replay()
        torch.cuda.synchronize()

    def error(self):
        """Returns the relative error of the gradient of the first batch against double
        precision."""
        self.reset()
        self.graph.replay()
        torch.cuda.synchronize()
        index = self.order[:self.batch]
        exact = [h.double().cuda().requires_grad_() for h in self.host]
        right = torch.autograd.grad(
            loss_of(exact, self.images[index], self.labels[index], torch.float64), exact)
        found = self.grads if self.local else self.out
        off = sum(((f.cuda().double() - r) ** 2).sum() for f, r in zip(found, right))
        return float((off / sum((r ** 2).sum() for r in right)) ** 0.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filters", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("library: PyTorch sees no GPU")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    data = Data(args.seed)
    data.images_on_gpu = torch.from_numpy(data.images.copy()).cuda()
    data.labels_on_gpu = torch.from_numpy(data.labels).cuda()
    print("rung,filters,batch,repetitions,ms_median,ms_min,images_per_s,copy_in_ms,kernel_ms,"
          "copy_out_ms,host_ms,error,ms_low,ms_high")
    points = [(args.filters or 256, args.batch or 1000)] if args.filters or args.batch else SWEEP
    for filters, batch in points:
        params = initial(filters, args.seed)
        for kind, (local, bf16) in KINDS.items():
            best = None
            for layout in torch.contiguous_format, torch.channels_last:
                step = Step(data, params, batch, local, bf16, layout)
                error = step.error()
                if not error <= BOUND[bf16]:
                    sys.exit(f"library: {kind}: the relative error of the gradient is {error}")
                runs = [[ms / step.steps for ms in measure(step.run, args.seconds)]
                        for _ in range(args.runs)]
                median = statistics.median(map(statistics.median, runs))
                if best is None or median < best[0]:
                    best = median, runs, error
            print_step(kind, filters, batch, best[1], f"{best[2]:.2e}")


if __name__ == "__main__":
    main()
