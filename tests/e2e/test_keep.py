"""Test --keep, which writes the weights of evaluated epochs beside the checkpoints."""
import json
import signal

import pytest

from support.programs import until


def accuracies(directory):
    """Returns the accuracy of each epoch in the history. The last line may be incomplete."""
    file = directory / "history.jsonl"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = map(json.loads, text[:text.rfind("\n") + 1].splitlines())
    return {o["epoch"]: o["accuracy"] for o in lines if o["kind"] == "epoch"}


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
    assert final.read_bytes() == (place / "epoch-000006.safetensors").read_bytes()
    assert result["status"] == "done"
    again = programs.train(1, "--model", "seed:4", "--epochs", 1, "--init",
                           place / "best.safetensors", data=small, directory="again")
    assert again["accuracy"] > 0.5


def check_files(programs, place, data):
    """The file of each epoch has weights of the accuracy in the history. Returns the number of
    evaluated epochs without a file."""
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


@pytest.mark.parametrize("rules", ["all", "every=0", "best;every=2", "best,"])
def test_other_rules_are_refused(programs, rules):
    server = programs.server("--model", "seed:4", "--keep", rules)
    assert server.wait(10) == 2 and "--keep" in server.tail()
