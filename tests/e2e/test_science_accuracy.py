"""Test the modes with their defaults in virtual time (tests/bench/science.c): more workers are
faster, and every mode learns with 1 to 16 workers. The model is seed:32 and the data set MNIST.
If the data set is not MNIST, the tests are skipped.

Without CNN_SLOW=1, a test uses one to three seeds. With CNN_SLOW=1 they use the median of five
seeds, and try more numbers of workers.
"""
import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from support import idx
from support.build import ROOT
from test_science import science

sys.path.append(str(ROOT / "tests/bench"))
from science_figures import reached  # noqa: E402

FULL = bool(os.environ.get("CNN_SLOW"))
SLOW = pytest.mark.skipif(not FULL, reason="CNN_SLOW=1: the other numbers of workers and modes")
SEEDS = (1, 2, 3, 4, 5) if FULL else (1,)
MNIST_LABELS = [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
# The time to 97 % of the fastest run with one worker in docs/modes/seed32/runs.csv, as the median
# of five seeds.
SINGLE_SECONDS = 1.795


@pytest.fixture(scope="module")
def mnist(data):
    if idx.read(data, "t10k-labels-idx1-ubyte")[:10].tolist() != MNIST_LABELS:
        pytest.skip("the accuracies are those of MNIST")
    return data


def run(data, seed, workers, *options, limit=1e9):
    rows = science(data, "--workers", workers, "--eval-s", 0.2, "--eval-ratio", 1.05,
                   "--limit-s", limit, run=("--seed", seed, *options))
    points = [(float(r[4]), float(r[9])) for r in rows if r[0] == "point"]
    return reached(points, 0.97), points[-1][1]


def runs(data, workers, *options, limit=1e9, seeds=SEEDS):
    """Returns (seconds to 97 %, accuracy at the end, seconds of each seed). The first two values
    are medians over the seeds. The time of a run that never reaches 97 % is infinite."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(lambda s: run(data, s, workers, *options, limit=limit), seeds))
    times = [t or float("inf") for t, _ in done]
    return statistics.median(times), statistics.median(a for _, a in done), times


@pytest.mark.parametrize("mode, workers, factor", [
    ("sync", 8, 3), pytest.param("sync", 16, 3, marks=SLOW), ("downpour", 8, 2.5), ("ssp", 8, 2.5)])
def test_more_workers_are_faster_than_the_best_single_one(mnist, mode, workers, factor):
    seconds, _, _ = runs(mnist, workers, "--mode", mode, limit=1.5,
                         seeds=SEEDS if FULL else (1, 2, 3))
    assert seconds <= SINGLE_SECONDS / factor


@pytest.mark.skipif(not FULL, reason="CNN_SLOW=1: 100 runs of three epochs")
@pytest.mark.parametrize("mode", ["downpour", "ssp", "sync", "easgd"])
@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16])
def test_every_mode_reaches_97_percent_with_any_number_of_workers(mnist, mode, workers):
    _, _, times = runs(mnist, workers, "--mode", mode)
    assert max(times) < float("inf"), times


@pytest.mark.parametrize("mode, minimum", [
    ("downpour", 0.975), pytest.param("ssp", 0.975, marks=SLOW), ("easgd", 0.97)])
def test_three_epochs_of_eight_workers_learn(mnist, mode, minimum):
    _, accuracy, _ = runs(mnist, 8, "--mode", mode)
    assert accuracy >= minimum


@pytest.mark.skipif(not FULL, reason="CNN_SLOW=1: 30 epochs each")
def test_sandblaster_learns_at_its_defaults_within_60_passes(mnist):
    for seed in SEEDS:
        rows = science(mnist, "--workers", 4, "--eval-s", 1000, run=(
            "--mode", "sandblaster", "--seed", seed))
        [end] = [r for r in rows if r[0] == "end"]
        assert float(end[7]) >= 0.965 and int(end[11]) <= 60, end
