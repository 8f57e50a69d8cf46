"""Test --keep, which writes the weights of evaluated epochs beside the checkpoints."""
import json
import signal

import pytest

from support.programs import until


def accuracies(directory):
    """Returns the accuracy of each epoch in the history. Ignores the last line if it is
    incomplete."""
    file = directory / "history.jsonl"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = map(json.loads, text[:text.rfind("\n") + 1].splitlines())
    return {o["epoch"]: o["accuracy"] for o in lines if o["kind"] == "epoch"}


def parts_of(file):
    """Returns the metadata of a safetensors file, and its tensors."""
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    return header.pop("__metadata__"), (header, data[end:])


def test_the_best_epoch_and_each_one(programs, small):
    result = programs.train(1, "--model", "seed:4", "--epochs", 6, "--lr", 0.01, "--keep",
                            "best,every=2", data=small)
    place = programs.directory / "ckpt"
    found = accuracies(place)
    best = max(found, key=lambda epoch: (found[epoch], -epoch))
    assert sorted(p.name for p in place.glob("*.safetensors")) == [
        "best.safetensors", *(f"epoch-00000{n}.safetensors" for n in (2, 4, 6))]
    if best % 2 == 0:
        assert (place / "best.safetensors").read_bytes() == \
            (place / f"epoch-00000{best}.safetensors").read_bytes()
    shown = programs.ctl("show", place).out
    kept = {line.split()[0]: line for line in shown if "safetensors" in line}
    assert sorted(kept) == sorted(p.name for p in place.glob("*.safetensors"))
    assert f"epoch {best}, accuracy {100 * found[best]:.2f} %" in kept["best.safetensors"]
    assert f"epoch 4, accuracy {100 * found[4]:.2f} %" in kept["epoch-000004.safetensors"]
    start = json.loads((place / "history.jsonl").read_text().splitlines()[0])
    assert [start["options"][name] for name in ("keep", "stop-at", "patience-epochs")] == \
        ["best,every=2", None, 0]
    final = programs.directory / "final.safetensors"
    programs.ctl("--checkpoint", place, "export", final)
    metadata, tensors = parts_of(place / "epoch-000006.safetensors")
    results = json.loads(metadata.pop("evaluation"))
    assert parts_of(final) == (metadata, tensors)
    assert (results["epoch"], results["accuracy"]) == (6, pytest.approx(found[6])), results
    assert result["status"] == "done"
    again = programs.train(1, "--model", "seed:4", "--epochs", 1, "--init",
                           place / "best.safetensors", data=small, directory="again")
    assert again["accuracy"] > 0.5


def check_files(programs, place, data):
    """The weights in the file of an epoch have the accuracy that the history gives for this epoch.
    Returns the number of evaluated epochs without a file."""
    missing = 0
    for epoch, accuracy in accuracies(place).items():
        file = place / f"epoch-{epoch:06}.safetensors"
        if not file.exists():
            missing += 1
            continue
        said = "\n".join(programs.ctl("eval", "--weights", file, "--data", data).out)
        assert f"accuracy {accuracy:.4f} " in said, f"{file.name}: {accuracy} {said[:200]}"
    return missing


@pytest.mark.parametrize("durability", ["replay", "always"])
def test_kills_leave_the_file_of_each_evaluated_epoch(programs, small, durability):
    options = ("--model", "fc:10", "--epochs", 1000, "--checkpoint-ms", 20, "--keep", "every=1",
               "--durability", durability)
    server = programs.server(*options)
    worker = programs.worker(server.endpoint, data=small)
    for n in range(1, 5):
        until(lambda: len(accuracies(server.directory)) >= 3 * n, 30, "three epochs")
        server.kill()
        server = programs.restart(server, *options)
    until(lambda: len(accuracies(server.directory)) >= 15, 30, "the last epochs")
    server.signal(signal.SIGTERM)
    server.wait(20)
    worker.kill()
    missing = check_files(programs, server.directory, small)
    assert missing == 0 or durability == "always"


def test_another_start_of_a_finished_run_leaves_the_files_alone(programs, small):
    options = ("--model", "fc:10", "--epochs", 2, "--keep", "best,every=1")
    programs.train(1, *options, data=small)
    place = programs.directory / "ckpt"
    before = {file.name: file.read_bytes() for file in place.glob("*.safetensors")}
    assert len(before) == 3
    server = programs.server(*options, directory=place)
    assert server.wait(10) == 0
    assert {file.name: file.read_bytes() for file in place.glob("*.safetensors")} == before


def best_of(programs, place):
    """Returns what `cnn-ctl show` says about best.safetensors."""
    return next(line for line in programs.ctl("show", place).out if line.startswith("best."))


def test_show_names_the_epoch_that_is_in_the_file(programs, small):
    """If a run was continued without --keep, a later epoch may be better than the epoch whose
    weights are in best.safetensors."""
    programs.train(1, "--model", "fc:10", "--epochs", 2, "--keep", "best", data=small)
    place = programs.directory / "ckpt"
    said = best_of(programs, place)
    with (place / "history.jsonl").open("a", encoding="utf-8") as f:
        f.write('{"kind": "epoch", "t": 9, "epoch": 3, "accuracy": 0.9999, "test_loss": 0.01}\n')
    assert best_of(programs, place) == said and "99.99 %" not in said
    programs.ctl("--checkpoint", place, "export", place / "best.safetensors")
    assert best_of(programs, place).endswith("kept best, epoch unknown")


def test_the_best_epoch_is_written_when_the_disk_permits_it(programs, small):
    """The weights do not change, so the first epoch is the best one. Its file cannot be written
    until the directory in its place is removed."""
    place = programs.directory / "ckpt"
    file = place / "best.safetensors"
    file.mkdir(parents=True)
    server = programs.server("--model", "fc:10", "--epochs", 65536, "--optimizer", "sgd", "--lr",
                             1e-12, "--keep", "best", directory=place)
    programs.worker(server.endpoint, data=small)
    until(lambda: len(accuracies(place)) >= 3, 30, "three epochs")
    server.line("keep failed.* epoch=1 ", 5)
    assert len(set(accuracies(place).values())) == 1
    file.rmdir()
    until(file.is_file, 10, "the file of the best epoch")
    assert "kept best, epoch 1, accuracy" in best_of(programs, place)


@pytest.mark.parametrize("rules", ["all", "every=0", "every=65537", "best;every=2", "best,"])
def test_other_rules_are_refused(programs, rules):
    server = programs.server("--model", "seed:4", "--keep", rules)
    assert server.wait(10) == 2 and "with N of at most 65536" in server.tail()
