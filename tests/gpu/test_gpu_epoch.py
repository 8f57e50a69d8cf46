"""One epoch of 60,000 images on the CPU and on the GPU ends in the same weights: the same start, the
same batches in the same order, fp32, through a server and a worker each."""
import pytest

from support.epoch import distance, one_epoch

# In lengths of the epoch's way. A single gradient differs by 1e-7 to 4e-5 (test_real_batches.c); then
# roundings choose another argmax of a pool, and the ways part, the faster the larger the rate. Two CPU
# devices, or one with 1 and with 2 threads, end 2e-4, 3e-5, 7e-4 and 3e-4 apart in these rows; with
# lenet5 at rate 0.1 it is 2e-1.
NEAR = 5e-3


@pytest.mark.parametrize("model, batch, rate", [
    ("seed:32", 100, 0.1), ("seed:32", 1000, 0.1), ("lenet5", 100, 0.01), ("cnn99", 1000, 0.02)])
def test_an_epoch_on_the_gpu_ends_where_one_on_the_cpu_does(gpu, programs, model, batch, rate):
    start, right = one_epoch(programs, "cpu", model, "--batch-size", batch, rate=rate)
    again, fast = one_epoch(programs, gpu, model, "--batch-size", batch, rate=rate)
    assert (start == again).all()
    assert distance(right, fast, start) <= NEAR
