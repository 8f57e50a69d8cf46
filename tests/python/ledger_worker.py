"""A worker in Python that pushes a ledger gradient.

  ledger_worker.py SERVER NAME SAMPLES

The run has epochs, batches of one sample, and plain SGD with learning rate 1. The gradient of a
sample is 1 at the index epoch * SAMPLES + sample and 0 elsewhere, so every weight must be -1 at the
end. A weight of 0 means a lost push, and -2 means a push that was applied twice.
"""
import sys
import time

import cnnps


def main(server, name, samples):
    with cnnps.connect(server, name=name, data=cnnps.Data(n_train=samples, xxh3=7)) as client:
        def gradient(weights, batch, out):
            out[:] = 0
            out[batch.epoch * samples + batch.indices[0]] = 1
            print("batch", flush=True)
            time.sleep(0.002)
            return 1.0
        cnnps.Worker(client, gradient).train()
        stats = client.stats()
        print(f"done reconnects={stats.reconnects} replayed={stats.replayed}", flush=True)


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
