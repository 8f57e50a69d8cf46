"""Test --keep, which writes the weights of evaluated epochs beside the checkpoints."""
import json

import numpy as np
import pytest

from support import safetensors
from support.programs import until


def accuracies(directory):
    lines = (directory / "history.jsonl").read_text().splitlines()
    epochs = [o for o in map(json.loads, lines) if o["kind"] == "epoch"]
    return {o["epoch"]: o["accuracy"] for o in epochs}


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


def test_the_next_start_writes_what_a_killed_server_did_not(programs, small):
    options = ("--model", "seed:4", "--epochs", 1000, "--checkpoint-ms", 100, "--keep", "every=1")
    server = programs.server(*options)
    worker = programs.worker(server.endpoint, data=small)
    until(lambda: len(list(server.directory.glob("epoch-*.safetensors"))) >= 3, 30, "three files")
    server.kill()
    worker.kill()
    written = sorted(server.directory.glob("epoch-*.safetensors"))
    for file in written:
        file.unlink()
    programs.restart(server, *options)
    until(lambda: list(server.directory.glob("epoch-*.safetensors")), 10, "the newest epoch")
    (file,) = server.directory.glob("epoch-*.safetensors")
    assert np.isfinite(safetensors.flat(file)).all()


@pytest.mark.parametrize("rules", ["all", "every=0", "best;every=2", "best,"])
def test_other_rules_are_refused(programs, rules):
    server = programs.server("--model", "seed:4", "--keep", rules)
    assert server.wait(10) == 2 and "--keep" in server.tail()
