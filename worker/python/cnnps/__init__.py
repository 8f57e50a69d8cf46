"""cnnps: makes any Python program a worker of a cnn-ps parameter server.

    import cnnps

    with cnnps.connect("tcp://10.0.0.1:5555", data=cnnps.Data(n_train=60000)) as client:
        for lease in client.leases(progress=True):
            for batch in lease.batches():
                weights = client.pull()
                client.push(gradient(weights, batch.indices), batch)

The library retains every push until the server has stored it on disk, and sends it again after a
crash of the server. Each sample therefore counts exactly once per epoch. cnnps.torch trains PyTorch
models, and cnnps.ray trains on a Ray cluster.
"""
from ._library import lib as _lib
from .client import Batch, Client, Data, Info, Lease, Stats, connect
from .errors import *  # noqa: F403
from .errors import __doc__ as _  # noqa: F401
from .server import Server
from .training import Worker

__version__ = _lib.version().decode()
