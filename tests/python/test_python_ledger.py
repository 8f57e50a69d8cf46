"""The test kills Python workers and the server: no push is lost, and none counts twice."""
import sys
from pathlib import Path

from support import safetensors
from support.build import FULL
from support.programs import Process, until

WORKER = Path(__file__).with_name("ledger_worker.py")
SAMPLES, EPOCHS = (2000, 4) if FULL else (500, 2)


def test_every_sample_counts_once_per_epoch_despite_kills(programs, server, tmp_path):
    """The run has three workers. The test kills one of them and starts another, and kills the
    server five times."""
    run = server(model=f"vector:{SAMPLES * EPOCHS}", epochs=EPOCHS, batch_size=1, optimizer="sgd",
                 lr=1, lr_scaling="none", staleness_scaling="constant", max_staleness=1000000,
                 warm_start_updates=0, checkpoint_ms=50, min_workers=3)

    def start(name):
        return programs.add(Process(name, [
            sys.executable, WORKER, run.endpoint, name, str(SAMPLES)]))
    fleet = [start(f"worker-{i}") for i in range(3)]

    def computed():
        return sum(len(w.out) for w in programs.processes)
    for kill in range(5):
        until(lambda: computed() > (kill + 1) * SAMPLES * EPOCHS / 7, 60, "enough is computed")
        if kill == 2:
            fleet[1].kill()
            fleet[1] = start("worker-1")
        run.restart()
    result = run.wait(120)
    for worker in fleet:
        assert worker.wait(30) == 0, worker.tail()
    weights = safetensors.flat(programs.export(Path(run.checkpoint_dir)))
    lost, twice = int((weights == 0).sum()), int((weights < -1).sum())
    assert (lost, twice) == (0, 0), f"{lost} lost, {twice} applied twice"
    assert (weights == -1).all()
    assert result["images_per_epoch"] == EPOCHS * [SAMPLES]
    assert all(int(w.line(r"done reconnects=(\d+)")[1]) for w in (fleet[0], fleet[2]))
