"""Whatever processes are killed, history.jsonl has every epoch once and no torn line, and cnn-ctl
can read it."""
import csv
import io
import json
import os
import random
import shutil
import struct
import subprocess
import time

import pytest
import xxhash

from support.build import BUILD, ROOT, command, without
from support.programs import until

TOOLS = ROOT / "build/tools/bin/python"  # made by deploy/setup.sh tools


def lines_of(directory):
    """Returns the parsed lines of the history. The test fails if a line is incomplete."""
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
        time.sleep(chance.uniform(0, 0.3))  # kill the server at a random point of an epoch
        server.kill()
        with (server.directory / "history.jsonl").open("a") as file:
            file.write('{"t":17,"kind":"epo')  # a torn line, as a power cut may leave it
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
    rates = [o["images_per_s"] for o in lines if o["kind"] == "epoch"]
    assert all(rate is None or rate > 0 for rate in rates)


def test_no_epoch_is_dropped_for_changes_of_workers(programs, small):
    """The history of a worker that joins again and again exceeds the maximum size of the file. The
    server drops lines about workers, but no epoch, and a restart does not change the order of the
    epochs."""
    options = ("--model", "seed:4", "--epochs", 500, "--checkpoint-ms", 200)
    server = programs.server(*options)
    worker = programs.worker(server.endpoint, data=small)
    for _ in range(2):
        begun = server.status()["training_epoch"]
        until(lambda: server.status()["training_epoch"] >= begun + 8, 30, "epochs")
        until(lambda: any(
            o["kind"] == "sample" for o in lines_of(server.directory)), 30, "a sample")
        server.kill()
        file = server.directory / "history.jsonl"
        last = lines_of(server.directory)[-1]["t"]
        change = {"t": last, "kind": "worker", "term": 1, "worker": 1, "change": "joined",
                  "name": "again and again " * 4, "host": "", "device": "cpu", "images": 0}
        with file.open("a") as out:
            out.writelines(json.dumps(change, separators=(",", ":")) + "\n" for _ in range(25624))
        assert file.stat().st_size > 4 << 20
        server = programs.restart(server, *options)
        server.line("http listening")
        until(lambda: file.stat().st_size < 4 << 20, 20, "the file is bounded")
    programs.ctl("--server", server.endpoint, "drain")
    assert server.wait(20) == 0 and worker.wait(20) == 12
    epochs, lines = epochs_of(server.directory), lines_of(server.directory)
    assert len(epochs) >= 4 and epochs == list(range(1, len(epochs) + 1))
    assert [o["t"] for o in lines] == sorted(o["t"] for o in lines)
    assert sum(o["kind"] == "start" for o in lines) == 3
    assert any(o["kind"] == "sample" and o["term"] == 1 for o in lines)


def test_an_epoch_that_is_missing_returns_to_its_place(programs, small):
    options = ("--model", "seed:4", "--epochs", 500, "--checkpoint-ms", 200)
    server = programs.server(*options)
    programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["training_epoch"] > 4, 30, "epochs")
    server.kill()
    lines = [o for o in lines_of(server.directory) if o["kind"] != "epoch" or o["epoch"] != 2]
    (server.directory / "history.jsonl").write_text("".join(json.dumps(o) + "\n" for o in lines))
    server = programs.restart(server, *options)
    until(lambda: 2 in epochs_of(server.directory), 20, "the epoch")
    epochs = epochs_of(server.directory)
    assert epochs == list(range(1, len(epochs) + 1))
    assert [o["t"] for o in lines_of(server.directory)] == sorted(
        o["t"] for o in lines_of(server.directory))


def test_epochs_whose_lines_were_lost_do_not_hide_the_time_without_a_server(programs, small):
    """A server may be killed after a checkpoint of an epoch, and before it has written the line of this
    epoch. The page and the report take the time from the last line to the next start as the time
    without a server."""
    options = ("--model", "seed:4", "--epochs", 500, "--checkpoint-ms", 200)
    server = programs.server(*options)
    programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["training_epoch"] > 5, 30, "epochs")
    saved = server.status()["checkpoint"]["generation"]
    until(lambda: server.status()["checkpoint"]["generation"] > saved + 1, 30, "a checkpoint of epoch 5")
    server.kill()
    lines = lines_of(server.directory)
    kept = lines[:1 + next(i for i, o in enumerate(lines) if o["kind"] == "epoch" and o["epoch"] == 2)]
    (server.directory / "history.jsonl").write_text("".join(json.dumps(o) + "\n" for o in kept))
    time.sleep(1)
    server = programs.restart(server, *options)
    until(lambda: lines_of(server.directory)[-1]["term"] == 2 and
          any(o["kind"] == "start" and o["term"] == 2 for o in lines_of(server.directory)), 20, "the start")
    lines = lines_of(server.directory)
    start = next(i for i, o in enumerate(lines) if o["kind"] == "start" and o["term"] == 2)
    added = [o for o in lines[len(kept):start] if o["kind"] == "epoch"]
    assert [o["epoch"] for o in added] == list(range(3, 3 + len(added))) and added
    assert [o["t"] for o in lines] == sorted(o["t"] for o in lines)
    assert lines[start]["t"] - max(o["t"] for o in lines[:start]) > 1000


def test_a_start_whose_line_was_lost_returns(programs, small):
    """A server that is killed on a full disk may leave no line of its start. The next server adds
    the missing line, so that each term has a line."""
    options = ("--model", "seed:4", "--epochs", 500, "--checkpoint-ms", 200)
    server = programs.server(*options)
    file = server.directory / "history.jsonl"

    def restart():
        server.kill()
        after = programs.restart(server, *options)
        until(lambda: file.exists() and after.status()["term"] == lines_of(server.directory)[-1]["term"],
              20, "a line of this start")
        return after

    def lose(is_lost):
        server.kill()
        left = "".join(json.dumps(o) + "\n" for o in lines_of(server.directory) if not is_lost(o["term"]))
        file.unlink()
        if left:
            file.write_text(left)
    programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["training_epoch"] > 2, 30, "epochs")
    server = restart()
    server = restart()
    lose(lambda term: term > 1)  # remove the lines of terms 2 and 3
    server = restart()
    starts = [o for o in lines_of(server.directory) if o["kind"] == "start"]
    assert [o["term"] for o in starts] == [1, 2, 3, 4]
    assert [o["options"] is None for o in starts] == [False, True, True, False]
    assert all(o["run"] == starts[0]["run"] and o["model"] == starts[0]["model"] for o in starts)
    assert [o["resumed"] for o in starts] == [False, True, True, True]
    lose(lambda term: True)  # remove the lines of all terms
    server = restart()
    server = restart()
    lines = lines_of(server.directory)
    starts = [o for o in lines if o["kind"] == "start"]
    assert [o["term"] for o in starts] == list(range(1, 7)) and lines[0] == starts[0]
    assert [o["resumed"] for o in starts] == [None] + 5 * [True]
    assert [o["t"] for o in lines] == sorted(o["t"] for o in lines)
    epochs = epochs_of(server.directory)
    assert epochs == list(range(1, len(epochs) + 1))
    programs.ctl("history", server.directory)
    programs.ctl("report", server.directory)


def test_the_end_is_written_after_a_slow_write(programs, small):
    """The run ends while the server is writing the line of the last epoch."""
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


def test_a_worker_that_dies_with_its_server_is_lost(programs, small):
    """The restarted server counts the worker as lost after --dead-ms, long before the end of
    --session-ttl-ms. The worker may return until --session-ttl-ms have passed."""
    options = ("--model", "seed:4", "--epochs", 3000, "--checkpoint-ms", 200, "--suspect-ms", 1000,
               "--dead-ms", 3000)
    server = programs.server(*options)
    victim = programs.worker(server.endpoint, "--name", "victim", data=small)
    programs.worker(server.endpoint, "--name", "survivor", data=small)
    until(lambda: server.status()["live_workers"] == 2, 30, "two workers")
    saved = server.status()["checkpoint"]["generation"]
    until(lambda: server.status()["checkpoint"]["generation"] > saved + 1, 30, "a checkpoint of both")
    victim.kill()
    server.kill()
    server = programs.restart(server, *options)

    def changes():
        return [o["change"] for o in lines_of(server.directory) if o["kind"] == "worker" and
                o["term"] == 2 and o["name"] == "victim"]
    until(lambda: changes() == ["gone"], 30, "the worker is lost")
    assert server.status()["counters"]["deaths"] >= 1
    worker = next(w for w in server.status()["workers"] if w["name"] == "victim")
    assert worker["state"] == "away"
    programs.worker(server.endpoint, "--name", "victim", data=small)
    until(lambda: changes() == ["gone", "restarted"], 30, "another process takes the slot")


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
    """Yields a directory with the checkpoints and the history of a run of three epochs."""
    from support.programs import Programs
    programs = Programs(tmp_path_factory.mktemp("trained"), data)
    programs.train(2, "--model", "seed:8", "--epochs", 3, data=small)
    yield programs.directory / "ckpt"
    programs.close()


def test_history_as_csv_and_json(programs, trained):
    rows = list(csv.DictReader(io.StringIO("\n".join(programs.ctl("history", trained).out))))
    assert [r["epoch"] for r in rows if r["kind"] == "epoch"] == ["1", "2", "3"]
    assert all(0 < float(r["accuracy"]) < 1 for r in rows if r["kind"] == "epoch")
    printed = subprocess.run(command("cnn-ctl", "--format", "json", "history", trained),
                             capture_output=True, check=True, timeout=30).stdout
    again = json.loads(printed)
    assert len(again) == len(rows) and again == lines_of(trained)
    assert printed.endswith(b"\n]\n"), "the last line is complete"


def test_csv_has_the_means_of_the_workers(programs, tmp_path):
    lines = [
        {"t": 1, "kind": "worker", "term": 1, "worker": 1, "change": "joined", "device": "cpu, x"},
        {"t": 2, "kind": "sample", "term": 1, "checkpoint_s": 0.25, "degraded": "no space",
         "time": {"apply": 1.5, "verify": 0.5, "idle": 2, "total": 5}, "workers": [
             [1, "live", 9, 3.5, 0, [60, 20, 10, 5, 5]], [2, "live", 9, None, 0, None],
             [3, "live", 9, 1.5, 0, [80, 10, 0, 5, 5]]]},
        {"t": 3, "kind": "sample", "term": 1, "time": None, "workers": []}]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(o) + "\n" for o in lines))
    rows = list(csv.DictReader(io.StringIO("\n".join(programs.ctl("history", tmp_path).out))))
    assert rows[0]["device"] == "cpu, x"
    sample = {column: rows[1][column] for column in (
        "checkpoint_s", "degraded", "server_apply_s", "server_verify_s", "server_idle_s", "server_total_s",
        "staleness", "compute_percent", "weights_percent", "push_percent", "lease_percent", "copy_percent")}
    assert list(sample.values()) == ["0.25", "no space", "1.5", "0.5", "2", "5", "2.5", "70", "15", "5", "5", "5"]
    assert {rows[2][column] for column in sample} == {""}


def test_csv_has_the_options_of_a_start(programs, tmp_path):
    lines = [{"t": 1, "kind": "start", "term": 2, "resumed": True, "model": "seed:4, x",
              "options": {"lr": 0.05, "metrics": "accuracy mae", "epochs": 3, "schedule": None}}]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(o) + "\n" for o in lines))
    row, = csv.DictReader(io.StringIO("\n".join(programs.ctl("history", tmp_path).out)))
    assert [row[name] for name in ("resumed", "model", "options")] == [
        "true", "seed:4, x", "lr=0.05; metrics=accuracy mae; epochs=3; schedule=null"]


def test_csv_has_a_column_for_each_metric(programs, tmp_path):
    """A metric may have the name of another column, so the names have a prefix."""
    metrics = {"mae": 0.25, "loss": None}, {"mae": 1e-7, "loss": 3}
    lines = [{"t": i, "kind": "epoch", "term": 1, "epoch": i + 1, "loss": 9, "accuracy": None,
              "test_loss": 0.5, "metrics": m} for i, m in enumerate(metrics)]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(o) + "\n" for o in lines))
    rows = list(csv.DictReader(io.StringIO("\n".join(programs.ctl("history", tmp_path).out))))
    assert [[row[column] for column in ("loss", "accuracy", "test_loss", "metric_mae", "metric_loss")]
            for row in rows] == [["9", "", "0.5", "0.25", ""], ["9", "", "0.5", "1e-07", "3"]]


def test_text_in_a_history_does_not_control_a_terminal(programs, tmp_path):
    """Attack A22 of docs/faults.md: a worker chooses the name that a history contains."""
    name = "a\u202eb\x85c\x1b[2J\x7f\u00e9"
    (tmp_path / "history.jsonl").write_text(json.dumps(
        {"t": 1, "kind": "worker", "term": 1, "worker": 1, "change": "joined", "name": name}))
    [row] = csv.DictReader(io.StringIO("\n".join(programs.ctl("history", tmp_path).out)))
    assert row["name"] == "a?b?c?[2J?\u00e9"
    out = "\n".join(programs.ctl("--format", "json", "history", tmp_path).out)
    assert out.isascii() and "\x1b" not in out and "\x7f" not in out
    assert json.loads(out)[0]["name"] == name
    page = subprocess.run(command("cnn-ctl", "report", tmp_path), stdout=subprocess.PIPE, check=True,
                          timeout=20).stdout.decode()
    assert not {"\u202e", "\x85", "\x1b", "\x7f"} & set(page)
    data = next(line for line in page.splitlines() if "\\u202e" in line)
    assert json.loads(data)[0]["lines"][0]["name"] == name


def change_model(checkpoint, text):
    """Changes the model in the head of a checkpoint's section "run" (common/run_head.h), and
    computes the checksums of the file again."""
    data, text = bytearray(checkpoint.read_bytes()), text.encode()
    n_sections = int.from_bytes(data[12:16], "little")
    for row in range(24, 24 + 40 * n_sections, 40):
        at, size = struct.unpack_from("<QQ", data, row + 16)
        if data[row:row + 16].rstrip(b"\0") == b"run":
            data[at + 32:at + 32 + 512] = text.ljust(512, b"\0")
            struct.pack_into("<Q", data, row + 32, xxhash.xxh3_64_intdigest(data[at:at + size]))
    end = 24 + 40 * n_sections
    struct.pack_into("<Q", data, end, xxhash.xxh3_64_intdigest(data[:end]))
    checkpoint.write_bytes(data)


def test_the_model_of_a_checkpoint_does_not_control_a_terminal(programs, trained, tmp_path):
    """`cnn-ctl show` prints the model of the newest checkpoint."""
    [checkpoint] = sorted(trained.glob("ckpt-*"))[-1:]
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(checkpoint, copy)
    change_model(copy / checkpoint.name, "a\u202e\x9b\x1b[2J\x7f")
    shown = programs.ctl("show", copy).out
    assert 'model "a???[2J?"' in shown[0]


def test_a_report_has_a_run_whose_directory_is_not_utf_8(tmp_path):
    directory = os.fsencode(tmp_path) + b"/run-\xff"
    os.mkdir(directory)
    with open(directory + b"/history.jsonl", "w", encoding="utf-8") as f:
        print(json.dumps({"t": 1, "kind": "worker", "term": 1, "worker": 1, "change": "joined",
                          "name": "a-worker"}), file=f)
    page = subprocess.run([*command("cnn-ctl", "report"), directory], stdout=subprocess.PIPE,
                          check=True, timeout=20).stdout.decode()
    assert "run-?" in page and "a-worker" in page


def test_a_directory_without_history_is_refused(programs, tmp_path):
    ctl = programs.ctl("history", tmp_path, code=6)
    assert "has no history.jsonl; give the --checkpoint-dir of a run" in ctl.lines[-1]


def rows_of(shown):
    """Returns the heading of `cnn-ctl show`, and the state of each file below it."""
    at = next(i for i, line in enumerate(shown) if line.startswith("file "))
    column, rows = shown[at].index("state"), {}
    for line in shown[at + 1:]:
        if not line:
            break
        rows[line.split()[0]] = line[column:]
    return shown[:at], rows


def test_show_gives_every_file_a_state(programs, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    oldest, middle, newest = sorted(path.name for path in copy.glob("ckpt-*"))
    programs.ctl("--checkpoint", copy, "export", copy / "best.safetensors")
    weights = (copy / "best.safetensors").read_bytes()
    (copy / "epoch-000002.safetensors").write_bytes(weights)
    (copy / "epoch-000003.safetensors").write_bytes(weights[:-1])
    above, rows = rows_of(programs.ctl("show", copy).out)
    assert 'model "conv:8:3' in above[0] and above[1:] == [""]
    assert [rows.pop(name) for name in (newest, middle, oldest)] == ["newest", "older", "older"]
    assert rows.pop("best.safetensors").startswith("kept best, epoch ")
    assert rows.pop("epoch-000002.safetensors").startswith("kept epoch 2, accuracy ")
    assert rows.pop("epoch-000003.safetensors").startswith("damaged: ") and not rows


def test_show_lists_damaged_checkpoints_below_the_heading(programs, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    oldest, middle, newest = sorted(copy.glob("ckpt-*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    shown = programs.ctl("show", copy).out
    above, rows = rows_of(shown)
    assert 'model "conv:8:3' in above[0] and above[1:] == [""]
    assert rows == {newest.name: "damaged: a section does not lie directly after the part before it",
                    middle.name: "newest", oldest.name: "older"}
    assert "epoch 3: accuracy" in shown[-1]
    middle.write_bytes(b"")
    oldest.write_bytes(b"")
    above, rows = rows_of(programs.ctl("show", copy).out)
    assert above == ["no undamaged checkpoint, so no start continues this run", ""]
    assert rows[middle.name] == "damaged: not a checkpoint: it has no header of a checkpoint"


def add_metadata(file, **texts):
    """Adds texts to the metadata of a safetensors file."""
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] |= texts
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def test_show_names_the_metrics_of_kept_weights(programs, trained, tmp_path):
    """Without an accuracy, the best epoch is the first one with the lowest test loss."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    epochs = [{"t": i, "kind": "epoch", "epoch": i, "accuracy": None, "test_loss": loss,
               "metrics": {"mae": 2 * loss}} for i, loss in ((1, 0.75), (2, 0.25), (3, 0.25))]
    (copy / "history.jsonl").write_text("".join(json.dumps(o) + "\n" for o in epochs))
    for name in "best", "epoch-000001":
        programs.ctl("--checkpoint", copy, "export", copy / f"{name}.safetensors")
    add_metadata(copy / "best.safetensors",
                 evaluation=json.dumps(epochs[1] | {"validate": 0}))
    out = programs.ctl("show", copy).out
    assert [line[line.index("kept "):] for line in out if "safetensors" in line] == [
        "kept best, epoch 2, mae 0.5, test loss 0.2500", "kept epoch 1, mae 1.5, test loss 0.7500"]
    assert out[-1] == "epoch 3: mae 0.5, test loss 0.2500"


def test_tensorboard_reads_the_events(programs, trained, tmp_path):
    programs.ctl("--tensorboard", tmp_path / "events/run1", "history", trained)
    if not TOOLS.exists():
        without("TensorBoard", "deploy/setup.sh tools")
    code = ("import json, sys\n"
            "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
            "a = EventAccumulator(sys.argv[1])\na.Reload()\n"
            "print(json.dumps({t: [[s.step, s.value] for s in a.Scalars(t)]"
            " for t in a.Tags()['scalars']}))\n")
    done = subprocess.run([TOOLS, "-c", code, tmp_path / "events/run1"], capture_output=True, text=True,
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
    # 0, because the rule of --stop-at counts as the end of the training; after any other drain a
    # worker exits with 12
    assert worker.wait(10) == 0, worker.tail()
    worker.line(r'worker end.* reason=".*training is done"$')
    server.line(r"train stops.* has accuracy 0\.[7-9]")
    epochs = epochs_of(server.directory)
    assert len(epochs) < 100
    end = lines_of(server.directory)[-1]
    assert end["status"] == "drained" and end["stop_reason"].startswith("the goal of --stop-at is reached: epoch ")
    rows = list(csv.DictReader(io.StringIO("\n".join(programs.ctl("history", server.directory).out))))
    assert rows[-1]["stop_reason"] == end["stop_reason"]
    again = programs.server(*options)
    late = programs.worker(again.endpoint, data=small)
    assert again.result()["status"] == "drained" and epochs_of(server.directory) == epochs
    assert late.wait(10) == 0, late.tail()


def test_a_run_stops_without_progress(programs, small):
    server = programs.server("--model", "seed:4", "--epochs", 500, "--lr", 1e-9, "--patience-epochs", 2)
    worker = programs.worker(server.endpoint, data=small)
    server.result()
    assert worker.wait(10) == 0, worker.tail()
    accuracy = [o["accuracy"] for o in lines_of(server.directory) if o["kind"] == "epoch"]
    due = [n for n in range(3, len(accuracy) + 1) if max(accuracy[n - 2:n]) <= max(accuracy[:n - 2])]
    assert due == [len(accuracy)] and len(accuracy) < 60
    assert "--patience-epochs" in lines_of(server.directory)[-1]["stop_reason"]


@pytest.mark.parametrize("rule", ["accuracy=1.5", "accuracy=", "loss=0.1", "accuracy=0.9x", "accuracy=-1"])
def test_an_unknown_stop_rule_is_refused(programs, rule):
    server = programs.server("--model", "seed:4", "--stop-at", rule)
    assert server.wait(10) == 2 and "--stop-at" in server.tail()


def test_a_sample_has_the_learning_rate_of_the_schedule(programs, small):
    server = programs.server("--model", "seed:4", "--epochs", 150, "--lr", 0.01,
                             "--schedule", "cosine", "--http", "127.0.0.1:0")
    worker = programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["learning_rate"] < 0.0095, 60, "a lower rate")
    server.result()
    assert worker.wait(10) == 0
    rates = [o["learning_rate"] for o in lines_of(server.directory) if o["kind"] == "sample"]
    assert rates == sorted(rates, reverse=True) and 0 <= rates[-1] < rates[0] <= 0.01


def test_easgd_has_no_learning_rate_of_the_server(programs, small):
    server = programs.server("--model", "seed:4", "--mode", "easgd", "--epochs", 500)
    programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["updates"], 30, "training")
    assert server.status()["learning_rate"] is None
