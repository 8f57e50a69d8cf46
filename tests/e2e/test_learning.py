"""Networks learn with real servers and workers. Runs with equal seeds end with the same weights,
byte by byte, and a step equals the step of an implementation in NumPy."""
import numpy as np
import pytest

from support import idx
from support import numpy_net
from support import safetensors


def bound(mnist, digits, clothes):
    """Returns the accuracy that a test must reach: `digits` with MNIST, `clothes` with
    Fashion-MNIST, which is harder."""
    return digits if mnist else clothes


def test_one_worker_learns(programs, mnist):
    result = programs.train(1, "--model", "seed:32", "--epochs", 1)
    assert result["images_per_epoch"] == [60000]
    assert result["accuracy"] >= bound(mnist, 0.93, 0.75), result


def test_eight_asynchronous_workers_learn(programs, mnist):
    result = programs.train(8, "--model", "seed:32", "--epochs", 3, "--min-workers", 8)
    assert result["images_per_epoch"] == [60000] * 3
    assert result["accuracy"] >= bound(mnist, 0.93, 0.75), result


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "rmsprop", "adam"])
def test_other_optimizers_learn_at_their_own_rates(programs, mnist, optimizer):
    result = programs.train(2, "--model", "seed:32", "--epochs", 1, "--optimizer", optimizer,
                   "--schedule", "cosine")
    assert result["accuracy"] >= bound(mnist, 0.90, 0.70), result


def test_same_seed_gives_the_same_bytes(programs, small):
    exports = []
    for name in ("a", "b"):
        server = programs.server("--model", "seed:32", "--epochs", 2, "--seed", 11, directory=name)
        programs.worker(server.endpoint, data=small)
        server.result()
        exports.append(programs.export(server.directory, f"{name}.safetensors").read_bytes())
    assert exports[0] == exports[1]


def test_another_seed_gives_other_bytes(programs, small):
    exports = []
    for seed in (11, 12):
        server = programs.server("--model", "fc:10", "--epochs", 1, "--seed", seed,
                                 directory=str(seed))
        programs.worker(server.endpoint, data=small)
        server.result()
        exports.append(programs.export(server.directory, f"{seed}.safetensors").read_bytes())
    assert exports[0] != exports[1]


# If Adagrad's sum starts at 0, the first step depends only on the sign of the gradient g. If g is
# nearly 0, two programs in float32 may compute different signs. If the sum starts at 0.01, the step
# is a smooth function of g.
STEPS = {"sgd": lambda w, g: w - 0.1 * g,
         "adagrad": lambda w, g: w - 0.1 * g / (np.sqrt(0.01 + g * g) + 1e-8)}


@pytest.mark.parametrize("optimizer", STEPS)
@pytest.mark.parametrize("model", [
    "conv:8:3 relu pool:2 fc:10",
    "conv:4:4:stride=2:pad=1 relu conv:6:3 relu pool:2 fc:16 relu fc:10"])
def test_one_step_equals_numpy(programs, small, model, optimizer):
    """The initial weights, order of images, gradient and update equal those of an independent
    implementation."""
    seed, batch = 5, 64
    server = programs.server("--model", model, "--optimizer", optimizer, "--lr", 0.1, "--seed",
                        seed, "--batch-size", batch, "--epochs", 1, "--max-updates", 1,
                        "--adagrad-init", 0.01)
    before = safetensors.load(programs.export(server.endpoint, "before.safetensors"))
    programs.worker(server.endpoint, data=small)
    assert server.result()["updates"] == 1
    after = safetensors.load(programs.export(server.directory, "after.safetensors"))

    for number, (name, tensor) in enumerate(before.items()):
        weight = before[name.replace("bias", "weight")]
        fan_in = int(np.prod(weight.shape[1:]))
        assert (tensor == numpy_net.initial(seed, number, tensor.shape, fan_in)).all(), name
    images, labels = (idx.read(small, name) for name in idx.NAMES[:2])
    first = numpy_net.order(seed, 0, len(images))[:batch]
    gradient = numpy_net.gradient(model, before.values(), images[first], labels[first])
    for (name, w), g in zip(before.items(), gradient):
        assert np.abs(STEPS[optimizer](w, g) - after[name]).max() <= 1e-5, name
