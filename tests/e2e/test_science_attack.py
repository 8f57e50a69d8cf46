"""Attack A14 of docs/faults.md, in virtual time: one of five workers sends bad gradients. With the
default options the run reaches its usual accuracy. Without --norm-ratio and --aggregate the
accuracy is lower."""
import pytest

from test_science import end, science

WORKERS = "--workers", 5, "--eval-s", 1000
RUN = "--model", "fc:10", "--epochs", 1, "--seed", 1


def accuracy(data, attack, *options):
    return end(science(data, *WORKERS, "--attack", attack, run=(*RUN, *options)))["accuracy"]


def test_a_scaled_gradient_ruins_a_mean_and_not_a_median(data):
    """The bad worker sends -10 times its gradient: the mean of the gradients is ruined, but the
    median is not."""
    options = "--mode", "sync", "--norm-ratio", 0
    honest = accuracy(data, "none", *options)
    assert accuracy(data, "scale", *options) < honest - 0.3
    assert accuracy(data, "scale", *options, "--aggregate", "median") > honest - 0.03


@pytest.mark.parametrize("attack", ["scale", "noise", "huge"])
def test_gradients_of_another_size_are_found(data, attack):
    honest = accuracy(data, "none")
    assert accuracy(data, attack, "--norm-ratio", 0) < honest - 0.03
    assert accuracy(data, attack) > honest - 0.01
