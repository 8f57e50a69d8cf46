"""A peer of Hivemind. The peers average their weights when they have computed 30 batches of 100
images together."""
import sys
import time

import hivemind
import torch
from applied import BATCHES, STEP_S, named, note

named(f"worker{sys.argv[1]}")
initial = sys.argv[2:]
dht = hivemind.DHT(initial_peers=initial, start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
if not initial:
    print("MADDR", dht.get_visible_maddrs()[0], flush=True)
model = torch.nn.Linear(784, 10)
optimizer = hivemind.Optimizer(
    dht=dht, run_id="peer", batch_size_per_step=100, target_batch_size=3000, params=model.parameters(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.01), matchmaking_time=1.0, averaging_timeout=10.0,
    use_local_updates=False)
epoch = optimizer.local_epoch
for step in range(BATCHES):
    model(torch.randn(100, 784)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if optimizer.local_epoch != epoch:  # the peers have updated the weights
        epoch = optimizer.local_epoch
        note(epoch)
    time.sleep(STEP_S)
