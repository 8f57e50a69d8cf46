"""Compare the server's L-BFGS (mode sandblaster) with SciPy's, on convex problems, with the same
start, objective and length of history.

The model is softmax regression (`fc:10`). The label of each image is random, so no weights fit all
labels. The cross-entropy is therefore convex with a minimum at finite weights. The Python worker of
the wire tests computes the gradients of the objective, and records every point at which the server
requests a gradient.
"""
import numpy as np
import pytest

from support import idx
from support.build import needs
from test_training import EDONE, DataSet, SoftmaxRegression
from test_wire_modes import IndependentWorker

HISTORY = 20  # the number of pairs that both L-BFGS implementations store; the default of cnn-ps
STEPS = 70
# a loss counts as near the minimum if it exceeds the minimum by at most this fraction of the loss
# at the start
NEAR = 1e-5
# TIMES is the maximum number of points that the server evaluates, relative to the number that SciPy
# evaluates. In each step, a line search evaluates one or several points. SciPy's needs fewer: it
# accepts a point more easily (curvature constant 0.9 instead of 0.5 in Wolfe's condition) and
# interpolates, while the server's line search doubles and halves the step length. The measured
# ratios were 1.2 to 1.4.
TIMES = 1.5


def make_data(directory, seed, images=500, pixels=6):
    """Write 28x28 images with a few nonzero pixels. The label of an image is random, with
    probabilities that depend on the image."""
    draw = np.random.default_rng(seed)
    x = np.zeros((images, 28 * 28), np.uint8)
    lit = draw.choice(28 * 28, pixels, replace=False)
    x[:, lit] = draw.integers(0, 256, (images, pixels))
    logits = x[:, lit] / 255 @ draw.normal(0, 1, (pixels, 10))
    labels = (logits + draw.gumbel(size=logits.shape)).argmax(1).astype(np.uint8)
    for name in idx.NAMES:
        array = x.reshape(-1, 28, 28) if "images" in name else labels
        (directory / name).write_bytes(idx.encode(array if "train" in name else array[:100]))
    return DataSet(directory)


class Exact(SoftmaxRegression):
    """The loss function to minimise: that of softmax regression, in double precision."""

    def __init__(self, images, labels):
        super().__init__(images, labels)
        self.x = images.reshape(len(images), -1) / 255

        self.values = []

    def __call__(self, w):
        loss, gradient = self.gradient(w, np.arange(len(self.y)))
        self.values.append(loss)
        return loss, gradient


class Evaluator(IndependentWorker):
    """A worker that records the weights at which it computes the gradient of each pass."""

    def __init__(self, endpoint, data):
        self.points = []
        super().__init__(endpoint, data, Exact)

    def exact(self, grant, work):
        if not self.points or self.points[-1][0] != grant.version:
            self.points.append((grant.version, self.pull()[0].astype(float)))
        super().exact(grant, work)


def scipys(objective, start):
    """Returns the list of the losses at the points that SciPy's L-BFGS evaluates, in order."""
    optimize = needs("scipy.optimize", "deploy/setup.sh")
    objective.values = []
    optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options={
        "maxcor": HISTORY, "ftol": 0, "gtol": 1e-9, "maxiter": 5000, "maxfun": 10000})
    return objective.values


def servers(programs, data):
    """Returns the weights at which each pass over the data evaluates the loss for the server's
    L-BFGS."""
    server = programs.server("--model", "fc:10", "--mode", "sandblaster", "--lbfgs-history",
                        HISTORY, "--epochs", STEPS, "--seed", 3, directory=None)
    worker = Evaluator(server.endpoint, data)
    assert worker.run() == EDONE
    server.result()
    return [w for _, w in worker.points]


def evaluations_to(values, bound):
    return next((n for n, value in enumerate(values, 1) if value <= bound), None)


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_lbfgs_reaches_scipys_minimum_in_about_as_many_evaluations(programs, tmp_path, seed):
    data = make_data(tmp_path, seed)
    points = servers(programs, data)
    objective = Exact(data.train_x, data.train_y)
    ours = [objective(w)[0] for w in points]
    theirs = scipys(objective, points[0])
    assert ours[0] == theirs[0]  # both begin at the same weights
    lowest = min(theirs)
    near = lowest + NEAR * (ours[0] - lowest)
    reached = evaluations_to(ours, near)
    assert reached, f"{min(ours)} after {len(ours)} evaluations, SciPy {lowest}"
    assert reached <= TIMES * evaluations_to(theirs, near)
    assert min(ours) >= lowest - 1e-9  # so SciPy's result is the minimum
