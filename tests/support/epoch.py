"""One epoch of one worker on a device of the test's choice: the weights before and after it."""
import numpy as np

from support import safetensors
from support.build import command
from support.programs import Process

# Plain SGD: Adagrad's first step is the sign of the gradient, which a rounding may turn.
PLAIN = ("--epochs", 1, "--optimizer", "sgd", "--seed", 7, "--warm-start-updates", 0)


def one_epoch(programs, device, model, *options, rate=0.05, data=None, seconds=240):
    """(start, end): the same seed gives the same start, batches and order to every device. At rate
    0.1 a rounding that picks another argmax of a pool grows a hundredfold in an epoch; at 0.05 it stays."""
    name = f"{device.replace(':', '-')}-{len(programs.processes)}"
    server = programs.server("--model", model, *PLAIN, "--lr", rate, *options, directory=name)
    start = safetensors.flat(programs.export(server.endpoint, f"{name}-start.safetensors"))
    worker = programs.add(Process("cnn-worker", command(
        "cnn-worker", "--server", server.endpoint, "--data", data or programs.data, "--device", device,
        "--threads", 2)))
    result = server.result(seconds)
    assert worker.wait(20) == 0, worker.tail()
    assert result["rejected"] == 0, result
    return start, safetensors.flat(programs.export(server.directory, f"{name}-end.safetensors"))


def distance(one, other, start):
    """How far two ends are from each other, in lengths of the way from the start."""
    way = np.linalg.norm(one.astype(float) - start)
    return np.linalg.norm(one.astype(float) - other) / way
