"""On a machine without a GPU, a program that needs a GPU prints one clear line. The tests hide the
CUDA driver, so they run on every machine."""
import re

import pytest

from gpu import probe, worker

HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


def refused(programs, device):
    """Run a worker that must refuse the device. Returns the only line that the worker logs."""
    w = probe(programs, device, env=HIDDEN)
    assert w.wait(20) in (1, 2), w.tail()
    assert len(w.lines) == 1, w.tail()
    return w.lines[0]


def test_auto_takes_the_cpu_and_says_so(programs):
    reason = "built without cuda" if "built without cuda" in refused(programs, "cuda") else "."
    server = programs.server("--model", "fc:10", "--epochs", 1, "--max-updates", 3)
    w = worker(programs, server, "auto", env=HIDDEN)
    assert server.result()["updates"] == 3
    assert w.wait(10) == 0, w.tail()
    w.line(r'trainer start\b.*device="cpu 1 thread')
    assert w.line(rf'backend auto\b.* without=cuda reason=".*{reason}.*"'), w.tail()


@pytest.mark.parametrize("device", ["cuda", "cuda:99", "cuda:one", "cuda:"])
def test_cuda_without_a_device_is_refused_in_one_line(programs, device):
    assert re.search(rf"{device}\b|no GPU answers|built without cuda", refused(programs, device))


def test_a_precision_that_does_not_exist_is_refused(programs):
    w = probe(programs, "auto", "--precision", "fp64")
    assert w.wait(20) == 2, w.tail()
    assert "fp32" in w.lines[0] and "bf16" in w.lines[0]


def test_auto_trains_where_a_precision_is_asked_for(programs):
    """The CPU devices compute only in fp32. With the device "auto", a worker without a GPU must not
    fail if tf32 is requested, but must train in fp32."""
    server = programs.server("--model", "fc:10", "--epochs", 1, "--max-updates", 3)
    w = worker(programs, server, "auto", "--precision", "tf32", env=HIDDEN)
    assert server.result()["updates"] == 3
    assert w.wait(10) == 0, w.tail()
