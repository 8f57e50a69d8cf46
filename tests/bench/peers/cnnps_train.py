"""Train with cnn-ps: compute each batch of a lease, push its gradient, and wait until the server has
applied it. The server runs in another process."""
import os
import time

import cnnps
import numpy as np
from applied import BATCHES, STEP_S, named, note

named(f"worker{os.environ['PEER_RANK']}")
weights = np.empty(7850, np.float32)
random = np.random.default_rng()
data = cnnps.Data(n_train=100 * BATCHES, n_test=100)
with cnnps.connect(os.environ["PEER_SERVER"], data=data) as client:
    for lease in client.leases():
        if lease.is_eval:
            client.result(lease, 0, 0.0)
            continue
        for batch in lease.batches():
            client.pull(weights)
            x = random.standard_normal((100, 784), np.float32)
            y = x @ weights[:7840].reshape(784, 10) + weights[7840:]
            gradient = np.concatenate([(x.T @ y).ravel(), y.sum(0)]) / 500
            client.push(gradient, batch, loss=float((y ** 2).mean()))
            client.flush(durable=False)
            note(batch.first)
            time.sleep(STEP_S)
