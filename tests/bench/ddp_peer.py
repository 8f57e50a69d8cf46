"""Measure synchronous training in PyTorch on several GPUs of one host, to compare cnn-ps with it.

    python3 tests/bench/ddp_peer.py [--gpus 4] [--epochs 5] [NET,BATCH,PRECISION...]

Each GPU has a process and computes the gradient of BATCH images per step. In the mode ddp,
DistributedDataParallel takes the mean of all gradients with NCCL while the backward pass runs. In
the modes graph and compile+graph, one CUDA graph holds several complete steps, and a step has one
all-reduce of all gradients as one vector. The script prints CSV: net,batch,precision,gpus,mode,
layout,images_per_s, where images_per_s is the rate of all GPUs together in the median epoch.

Data: $CNN_DATA or the default data directories. The networks, steps and variants are those of
torch_peer.py. With precision bf16, PyTorch computes under autocast and keeps the weights in fp32.
"""
import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_peer

RACES = ["seed:256,1000,bf16", "cnn99,1000,tf32"]


class Synchronous(torch_peer.Training):
    """A training in which each step applies the mean of the gradients of all processes."""

    def __init__(self, net, batch, data, mode, precision, layout):
        self.ddp = None
        super().__init__(net, batch, data, "eager" if mode == "ddp" else mode, precision, layout)
        if mode == "ddp":
            self.ddp = self.model = DistributedDataParallel(self.model,
                                                            gradient_as_bucket_view=True)

    def step(self):
        if self.ddp:
            self.loss_of(self.first).backward()
            grads = [p.grad for p in self.params]
        else:
            grads = torch.autograd.grad(self.loss_of(self.first), self.params)
            flat = torch.cat([g.reshape(-1) for g in grads])
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
            grads = [g.view_as(p) for g, p in
                     zip(flat.split([p.numel() for p in self.params]), self.params)]
        with torch.no_grad():
            torch._foreach_add_(self.params, grads, alpha=-torch_peer.RATE)
            if self.ddp:
                torch._foreach_zero_(grads)
            self.first.add_(self.batch).remainder_(self.n // self.batch * self.batch)


def one_gpu(rank, args):
    """Runs in the process of GPU number `rank`. The process of GPU 0 prints the results."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=args.gpus)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(rank)
    data = torch_peer.load(torch.device("cuda", rank))
    for race in args.races:
        net, batch, precision = race.split(",")
        for mode in args.modes.split(","):
            for layout in torch_peer.LAYOUTS:
                training = Synchronous(net, int(batch), data, mode, precision, layout)
                rate = args.gpus * torch_peer.IMAGES / training.median_ms(args.epochs) * 1e3
                if rank == 0:
                    print(f"{race},{args.gpus},{mode},{layout},{rate:.0f}", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--epochs", type=int, default=5, help="timed, after one that is not")
    parser.add_argument("--modes", default="ddp,graph,compile+graph")
    parser.add_argument("--port", type=int, default=29517, help="of the processes' meeting point")
    parser.add_argument("races", nargs="*", metavar="NET,BATCH,PRECISION", default=RACES)
    args = parser.parse_args()
    if not 1 <= args.gpus <= torch.cuda.device_count():
        sys.exit(f"ddp_peer: --gpus {args.gpus}, but PyTorch sees {torch.cuda.device_count()}")
    print("net,batch,precision,gpus,mode,layout,images_per_s", flush=True)
    torch.multiprocessing.spawn(one_gpu, (args,), args.gpus)


if __name__ == "__main__":
    main()
