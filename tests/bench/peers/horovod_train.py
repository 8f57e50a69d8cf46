"""Train elastically with Horovod, with a commit every SAVE_EVERY steps."""
import time

import horovod.torch as hvd
import torch
from applied import BATCHES, SAVE_EVERY, STEP_S, named, note

hvd.init()
named(f"worker{hvd.rank()}")
model = torch.nn.Linear(784, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, done=0)


@hvd.elastic.run
def train(state):
    named(f"worker{hvd.rank()}")
    for step in range(BATCHES):
        optimizer.zero_grad()
        model(torch.randn(100, 784)).square().mean().backward()
        optimizer.step()
        note(state.done + hvd.rank())
        state.done += hvd.size()
        if step % SAVE_EVERY == SAVE_EVERY - 1:
            state.commit()
        time.sleep(STEP_S)


train(state)
