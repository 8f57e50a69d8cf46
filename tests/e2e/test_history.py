"""history.jsonl has every epoch once and no torn line, whatever is killed; cnn-ctl can read it."""
import csv
import io
import json
import random
import shutil
import subprocess
import time

import pytest

from support.build import BUILD, ROOT, without
from support.programs import until

TOOLS = ROOT / "build/tools/bin/python"  # made by deploy/setup.sh tools


def lines_of(directory):
    """The lines of the history, parsed. Fails if a line is incomplete."""
    text = (directory / "history.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def epochs_of(directory):
    return [o["epoch"] for o in lines_of(directory) if o["kind"] == "epoch"]


def test_every_epoch_once_after_ten_kills(programs, small):
    chance, epochs = random.Random(1), 60
    server = programs.server("--model", "seed:4", "--epochs", epochs, "--checkpoint-ms", 200)
    worker = programs.worker(server.endpoint, data=small)
    for _ in range(10):
        begun = server.status()["training_epoch"]
        until(lambda: server.status()["training_epoch"] >= min(begun + 2, epochs - 1), 30, "an epoch")
        time.sleep(chance.uniform(0, 0.3))  # so that the kill comes at any point of an epoch
        server.kill()
        with (server.directory / "history.jsonl").open("a") as file:
            file.write('{"t":17,"kind":"epo')  # a torn line, as a loss of power may leave it
        server = programs.restart(server, "--model", "seed:4", "--epochs", epochs,
                                  "--checkpoint-ms", 200)
        server.line("http listening")
    assert server.result()["status"] == "done"
    assert worker.wait(10) == 0
    lines = lines_of(server.directory)
    assert [o["epoch"] for o in lines if o["kind"] == "epoch"] == list(range(1, epochs + 1))
    starts = [o for o in lines if o["kind"] == "start"]
    assert [o["term"] for o in starts] == list(range(1, 12))
    assert [o["resumed"] for o in starts] == [False] + 10 * [True]
    assert lines[-1]["kind"] == "end" and lines[-1]["status"] == "done"
    assert {o["change"] for o in lines if o["kind"] == "worker"} >= {"joined", "back"}
    assert all(0 <= o["accuracy"] <= 1 for o in lines if o["kind"] == "epoch")


def test_the_end_is_written_after_a_slow_write(programs, small):
    """The run ends while the line of its last epoch is being written."""
    server = programs.server("--model", "seed:4", "--epochs", 2, env={
        "LD_PRELOAD": str(BUILD / "tests/fault/disk.so"), "DISK_SLOW": "400"})
    worker = programs.worker(server.endpoint, data=small)
    assert server.result()["status"] == "done"
    assert worker.wait(10) == 0
    lines = lines_of(server.directory)
    assert lines[-1]["kind"] == "end" and lines[-1]["status"] == "done"


def test_samples_say_how_the_time_was_spent(programs, small):
    server = programs.server("--model", "seed:8", "--epochs", 1000)
    programs.worker(server.endpoint, data=small)

    def split():
        rows = [o for o in lines_of(server.directory) if o["kind"] == "sample" and o["workers"]]
        return [o for o in rows if o["workers"][0][5]][-2:]
    until(lambda: (server.directory / "history.jsonl").exists() and len(split()) == 2, 30, "two samples")
    before, after = split()
    for o in before, after:
        assert len(o["workers"][0][5]) == 5 and 97 <= sum(o["workers"][0][5]) <= 103
        assert sum(o["time"][part] for part in ("apply", "verify", "idle")) <= o["time"]["total"]
    assert after["time"]["total"] > before["time"]["total"] and after["time"]["apply"] > 0


def test_another_run_begins_another_history(programs, small):
    programs.train(1, "--model", "seed:4", "--epochs", 2, data=small)
    directory = programs.directory / "ckpt"
    for file in directory.glob("ckpt-*"):
        file.unlink()
    programs.train(1, "--model", "seed:4", "--epochs", 1, data=small)
    assert epochs_of(directory) == [1]
    assert [o["resumed"] for o in lines_of(directory) if o["kind"] == "start"] == [False]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, small, data):
    """A directory with the checkpoints and the history of a run of three epochs."""
    from support.programs import Programs
    programs = Programs(tmp_path_factory.mktemp("trained"), data)
    programs.train(2, "--model", "seed:8", "--epochs", 3, data=small)
    yield programs.directory / "ckpt"
    programs.close()


def test_history_as_csv_and_json(programs, trained):
    rows = list(csv.DictReader(io.StringIO("\n".join(programs.ctl("history", trained).out))))
    assert [r["epoch"] for r in rows if r["kind"] == "epoch"] == ["1", "2", "3"]
    assert all(0 < float(r["accuracy"]) < 1 for r in rows if r["kind"] == "epoch")
    again = json.loads("\n".join(programs.ctl("--format", "json", "history", trained).out))
    assert len(again) == len(rows) and again == lines_of(trained)


def test_a_directory_without_history_is_refused(programs, tmp_path):
    ctl = programs.ctl("history", tmp_path, code=10)
    assert "history.jsonl" in ctl.lines[-1]


def test_show_lists_the_checkpoints(programs, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    newest = sorted(copy.glob("ckpt-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    out = "\n".join(programs.ctl("show", copy).out)
    assert 'model "conv:8:3' in out and "epoch 3: accuracy" in out
    assert out.count("good") == 2 and str(newest) in out


def test_tensorboard_reads_the_events(programs, trained, tmp_path):
    if not TOOLS.exists():
        without("TensorBoard", "deploy/setup.sh tools")
    programs.ctl("--tensorboard", tmp_path / "events", "history", trained)
    code = ("import json, sys\n"
            "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
            "a = EventAccumulator(sys.argv[1])\na.Reload()\n"
            "print(json.dumps({t: [[s.step, s.value] for s in a.Scalars(t)]"
            " for t in a.Tags()['scalars']}))\n")
    done = subprocess.run([TOOLS, "-c", code, tmp_path / "events"], capture_output=True, text=True,
                          timeout=120, check=True)
    scalars = json.loads(done.stdout.splitlines()[-1])
    epochs = [o for o in lines_of(trained) if o["kind"] == "epoch"]
    for tag in ("accuracy", "test_loss", "loss"):
        assert [s[0] for s in scalars[f"epoch/{tag}"]] == [1, 2, 3]
        assert [s[1] for s in scalars[f"epoch/{tag}"]] == pytest.approx([o[tag] for o in epochs])
    assert len(scalars["train/loss"]) >= 1


def test_a_run_stops_at_an_accuracy_and_stays_stopped(programs, small):
    options = ("--model", "seed:4", "--epochs", 500, "--stop-at", "accuracy=0.7")
    server = programs.server(*options)
    worker = programs.worker(server.endpoint, data=small)
    result = server.result()
    assert result["status"] == "drained" and result["accuracy"] >= 0.7
    assert worker.wait(10) == 12  # as after a drain
    server.line(r"train stops.* has accuracy 0\.[7-9]")
    epochs = epochs_of(server.directory)
    assert len(epochs) < 100
    again = programs.server(*options)
    assert again.result()["status"] == "drained" and epochs_of(server.directory) == epochs


def test_a_run_stops_without_progress(programs, small):
    server = programs.server("--model", "seed:4", "--epochs", 500, "--lr", 1e-9, "--patience-epochs", 2)
    programs.worker(server.endpoint, data=small)
    server.result()
    assert 3 <= len(epochs_of(server.directory)) < 60


@pytest.mark.parametrize("rule", ["accuracy=1.5", "accuracy=", "loss=0.1", "accuracy=0.9x", "accuracy=-1"])
def test_an_unknown_stop_rule_is_refused(programs, rule):
    server = programs.server("--model", "seed:4", "--stop-at", rule)
    assert server.wait(10) == 2 and "--stop-at" in server.tail()
