"""Train data-parallel under torchrun, with a checkpoint every SAVE_EVERY steps."""
import os
import time

import torch
import torch.distributed as dist
from applied import BATCHES, SAVE_EVERY, STEP_S, named, note

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
named(f"worker{rank}")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(784, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
file, done = os.environ["PEER_LOG"] + ".checkpoint", 0
if os.path.exists(file):
    saved = torch.load(file)
    done = saved["done"]
    model.load_state_dict(saved["model"])
for step in range(BATCHES):
    optimizer.zero_grad()
    model(torch.randn(100, 784)).square().mean().backward()
    optimizer.step()
    note(done + rank)
    done += size
    if rank == 0 and step % SAVE_EVERY == 0:
        torch.save({"done": done, "model": model.state_dict()}, file + ".tmp")
        os.replace(file + ".tmp", file)
    time.sleep(STEP_S)
