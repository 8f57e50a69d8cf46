"""A loss that a worker reports may be tiny, and cnn-ctl top still shows it."""
import numpy as np

from client import Worker
from support.programs import until


def test_top_shows_a_tiny_loss(programs):
    server = programs.server("--model", "vector:8", "--optimizer", "sgd", "--lr", 1)
    worker = Worker(server.endpoint)
    worker.push(np.ones(8, np.float32), 0, loss=1e-5)
    until(lambda: server.status()["loss"], 10, "the loss")
    lines = programs.ctl("--server", server.endpoint, "--once", "top").out
    assert any("loss 1.0e-05" in line for line in lines), lines
    worker.close()
