"""Train one epoch with one worker on a given device, and compare the final weights of two such
runs."""
import numpy as np

from support import safetensors
from support.build import command
from support.programs import Process

# The options of the epoch choose plain SGD, because the first step of Adagrad depends only on the
# sign of the gradient, and a rounding error may change this sign.
PLAIN = ("--epochs", 1, "--optimizer", "sgd", "--warm-start-updates", 0)


def one_epoch(programs, device, model, *options, rate=0.05, seed=7, data=None, seconds=240):
    """Returns the weights as a pair (before the epoch, after the epoch). Equal seeds give equal
    initial weights, batches and order on every device. The learning rate is 0.05: at 0.1, a
    difference of the weights that begins with a rounding error in an argmax of a pool grows a
    hundredfold in one epoch, but at 0.05 it does not grow."""
    name = f"{device.replace(':', '-')}-{len(programs.processes)}"
    server = programs.server("--model", model, *PLAIN, "--seed", seed, "--lr", rate, *options,
                             directory=name)
    start = safetensors.flat(programs.export(server.endpoint, f"{name}-start.safetensors"))
    worker = programs.add(Process("cnn-worker", command(
        "cnn-worker", "--server", server.endpoint, "--data", data or programs.data, "--device",
        device, "--threads", 2)))
    result = server.result(seconds)
    assert worker.wait(20) == 0, worker.tail()
    assert result["rejected"] == 0, result
    return start, safetensors.flat(programs.export(server.directory, f"{name}-end.safetensors"))


def distance(one, other, start):
    """Returns the distance between the final weights `one` and `other` of two runs, relative to the
    distance from the initial weights `start` to `one`."""
    way = np.linalg.norm(one.astype(float) - start)
    return np.linalg.norm(one.astype(float) - other) / way
