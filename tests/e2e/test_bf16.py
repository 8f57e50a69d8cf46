"""Workers with --wire bf16 (docs/bf16.md) learn as well as others, in every mode, and lose no push
if programs are killed."""
import random
import time

import pytest

from support.ledger import LedgerRun
from support.programs import until

WIRE = ("--wire", "bf16")
BATCHNORM = "conv:4:3 batchnorm relu pool:2 fc:10"


def train(programs, workers, *options, data=None, model="seed:8", wire="bf16", name="ckpt"):
    server = programs.server("--model", model, "--epochs", 1, "--lane", "tcp", "--min-workers",
                             workers, *options, directory=name)
    fleet = [programs.worker(server.endpoint, "--wire", wire, data=data) for _ in range(workers)]
    result = server.result()
    for worker in fleet:
        assert worker.wait(20) == 0, worker.tail()
        said = [line for line in worker.lines if '"net wire" format=bf16' in line]
        assert len(said) == (wire == "bf16"), worker.tail()
    return result


def test_bf16_reaches_the_accuracy_of_fp32(programs):
    """Compares two runs that have the same seed and one worker each. Rounding to bfloat16 may cost
    at most 0.3 percentage points of accuracy. The learning rate falls to 0, because at a constant
    rate the accuracy varies by more than that from step to step."""
    accuracy = {wire: train(programs, 1, "--schedule", "cosine", model="seed:32", wire=wire,
                            name=wire)["accuracy"] for wire in ("fp32", "bf16")}
    assert accuracy["bf16"] >= accuracy["fp32"] - 0.003, accuracy


@pytest.mark.parametrize("workers, options", [
    (2, ("--optimizer", "momentum", "--lr", 0.02, "--clip-norm", 1)),
    (2, ("--optimizer", "adam", "--lr", 0.002, "--n-push", 2, "--prefetch")),
    (2, ("--delay-compensation", "constant", "--norm-ratio", 0)),
    (2, ("--mode", "ssp", "--ssp-bound", 4)),
    (3, ("--mode", "sync", "--aggregate", "median")),
    (2, ("--mode", "sandblaster", "--optimizer", "sgd", "--step-images", 200)),
    (2, ("--mode", "easgd"))], ids=str)
def test_bf16_trains_in_every_mode(programs, small, workers, options):
    result = train(programs, workers, *options, data=small)
    assert result["images_per_epoch"] == [6000] and result["rejected"] == 0, result
    assert result["accuracy"] > 0.5, result


def test_bf16_trains_running_statistics(programs, small):
    accuracy = {wire: train(programs, 1, "--durability", "always", data=small, model=BATCHNORM,
                            wire=wire, name=wire)["accuracy"] for wire in ("fp32", "bf16")}
    assert accuracy["bf16"] >= accuracy["fp32"] - 0.05, accuracy


class HalfRun(LedgerRun):
    """A run whose workers send their gradients in bfloat16. The values of the ledger gradient, 0
    and 1, are exact in bfloat16."""

    def start_worker(self, index, **how):
        super().start_worker(index, wrap=("env", "CNN_WIRE=bf16"), **how)


@pytest.mark.parametrize("level, size", [("replay", 0), ("always", 200000)])
def test_bf16_pushes_count_once_despite_kills(programs, level, size):
    dice = random.Random(size)
    run = HalfRun(programs, 2, 200, "--lane", "tcp", "--durability", level, pace=(4,), size=size)
    for _ in range(3):
        until(lambda: {w["wire"] for w in run.server.status()["workers"]} == {"bf16"}, 20, "both")
        time.sleep(dice.uniform(0, 0.1))
        run.kill_worker(dice.randrange(2))
        time.sleep(dice.uniform(0, 0.1))
        run.kill_server()
    run.verdict(60)


def test_bf16_gives_way_to_shared_memory(programs):
    """A worker with --wire bf16 and a shared-memory lane sends float32 over the lane, and its log
    says so."""
    run = HalfRun(programs, 1, 200)
    assert run.fleet[0].line("net wire.*format=fp32.*shared memory")
    until(lambda: run.server.status()["lanes"]["pushes"], 20, "pushes in a lane")
    run.verdict(60)
