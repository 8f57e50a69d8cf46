"""One epoch of 60,000 images ends with the same weights on the CPU and on the GPU, except for
rounding errors. Both runs have a server and a worker, the same initial weights, the same batches in
the same order, and fp32."""
import pytest

from support.epoch import distance, one_epoch

# The maximum distance between the final weights, relative to their distance from the initial
# weights. A single gradient of the GPU differs from that of the CPU by 1e-7 to 4e-5
# (test_real_batches.c). During an epoch, a rounding error changes an argmax of a pool sooner or
# later. From then on, the weights of the two runs move away from each other, faster with a larger
# learning rate. Runs without a GPU differ, too: in the four cases below, two CPU devices, or one
# device with 1 and with 2 threads, differ by 2e-4, 3e-5, 7e-4 and 3e-4. With lenet5 and a learning
# rate of 0.1, such CPU runs differ by 2e-1.
NEAR = 5e-3


@pytest.mark.parametrize("model, batch, rate", [
    ("seed:32", 100, 0.1), ("seed:32", 1000, 0.1), ("lenet5", 100, 0.01), ("cnn99", 1000, 0.02)])
def test_an_epoch_on_the_gpu_ends_where_one_on_the_cpu_does(gpu, programs, model, batch, rate):
    start, right = one_epoch(programs, "cpu", model, "--batch-size", batch, rate=rate)
    again, fast = one_epoch(programs, gpu, model, "--batch-size", batch, rate=rate)
    assert (start == again).all()
    assert distance(right, fast, start) <= NEAR
